//! How the link to the master stands, as INFO and ROLE tell it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use store::time::{now, since};

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// It is about to connect.
    Connect,
    /// It connects.
    Connecting,
    /// It takes a full copy.
    Sync,
    /// It follows the log.
    Connected,
}

/// See the top of the file.
#[derive(Clone, Debug)]
pub struct Link {
    /// Where it stands.
    pub state: LinkState,
    /// This node's end of the connection, if there is one.
    pub local: Option<SocketAddr>,
    /// When the master was heard last.
    pub heard: Instant,
    /// When this node had all of the master's changes, as far as the master had said.
    pub in_step: Option<Instant>,
    /// When the link was lost; `None` while it is up, and until it was up for the first time.
    pub down_since: Option<Instant>,
    /// The last reason why it was.
    pub error: String,
    /// When the next attempt is due.
    pub due: Option<Instant>,
    /// The master's end, as it last said.
    pub master_end: u64,
    /// Bytes that a full sync has brought.
    pub fetched: u64,
}

impl Link {
    /// Of a node that is to be a replica from now on.
    pub(crate) fn new() -> Link {
        Link {
            state: LinkState::Connect,
            local: None,
            heard: now(),
            in_step: None,
            down_since: None,
            error: String::new(),
            due: None,
            master_end: 0,
            fetched: 0,
        }
    }

    /// Whether the node had all of the master's changes within the last `ms` milliseconds.
    pub fn is_in_step(&self, ms: u64) -> bool {
        self.in_step.is_some_and(|at| since(at) <= Duration::from_millis(ms))
    }

    /// It is down for this reason until `due`.
    pub(crate) fn fail(&mut self, error: String, due: Instant) {
        if self.state == LinkState::Connected {
            self.down_since = Some(now());
        }
        self.state = LinkState::Connect;
        self.local = None;
        self.error = error;
        self.due = Some(due);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_down_since_it_was_lost() {
        let mut link = Link::new();
        link.fail("nobody listens".to_owned(), now());
        assert_eq!(link.down_since, None, "there was none");
        (link.state, link.down_since) = (LinkState::Connected, None);
        link.fail("reset".to_owned(), now());
        let lost = link.down_since;
        assert!(lost.is_some());
        link.state = LinkState::Connecting;
        link.fail("nobody listens".to_owned(), now());
        assert_eq!(link.down_since, lost);
    }
}
