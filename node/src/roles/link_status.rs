//! State of the link to the master, for INFO and ROLE.

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use store::time::{now, since};

/// Stage of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// The node waits for the next attempt to connect.
    Connect,
    /// The node is connecting to the master.
    Connecting,
    /// The node is receiving a full sync.
    Sync,
    /// The node follows the master's log.
    Connected,
}

/// State of the link to the master.
#[derive(Clone, Debug)]
pub struct ReplicaLinkStatus {
    /// Stage of the link.
    pub state: LinkState,
    /// Local address of the connection, if any.
    pub local: Option<SocketAddr>,
    /// Time of the master's last message.
    pub heard: Instant,
    /// Last time when this node had the master's whole log.
    pub in_step: Option<Instant>,
    /// Time when the link was lost, or `None` while the link is up and before the first connection.
    pub down_since: Option<Instant>,
    /// Last error of the link.
    pub error: String,
    /// Time of the next attempt to connect.
    pub due: Option<Instant>,
    /// End offset of the master's log, as last reported.
    pub master_end: u64,
    /// Bytes received by a full sync.
    pub fetched: u64,
}

impl ReplicaLinkStatus {
    pub(crate) fn new() -> ReplicaLinkStatus {
        ReplicaLinkStatus {
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

    /// Whether the node had the master's whole log within the last `ms` milliseconds.
    pub fn is_in_step(&self, ms: u64) -> bool {
        self.in_step.is_some_and(|at| since(at) <= Duration::from_millis(ms))
    }

    /// Marks the link as down until `due`.
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
        let mut link = ReplicaLinkStatus::new();
        link.fail("nobody listens".to_owned(), now());
        assert_eq!(link.down_since, None, "the replica had no link");
        (link.state, link.down_since) = (LinkState::Connected, None);
        link.fail("reset".to_owned(), now());
        let lost = link.down_since;
        assert!(lost.is_some());
        link.state = LinkState::Connecting;
        link.fail("nobody listens".to_owned(), now());
        assert_eq!(link.down_since, lost);
    }
}
