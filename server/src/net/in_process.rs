//! A client without a socket, on the caller's thread: requests in, replies out, by the very turn
//! that a connection runs. For tests and measurements of that path alone.

use crate::net::request_loop::{RequestLoop, TurnBuffers};
use node::roles::node::Node;
use node::runtime::tally::Tallies;
use std::sync::Arc;

/// See the top of the file. What its replies would have to wait for (the disk, with `always`) is
/// not waited for.
pub struct Local {
    node: Arc<Node>,
    talk: RequestLoop,
    turn: TurnBuffers,
    tallies: Tallies,
}

impl Local {
    pub(crate) fn new(node: Arc<Node>) -> Option<Local> {
        let nowhere = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
        let client = node.clients.admit(nowhere, nowhere, usize::MAX)?;
        Some(Local {
            talk: RequestLoop::new(&node, client, 0),
            node,
            turn: TurnBuffers::default(),
            tallies: Tallies::default(),
        })
    }

    /// One turn: executes the requests, which must have come whole, and gives the replies.
    #[inline(never)]
    pub fn turn(&mut self, requests: &[u8]) -> &[u8] {
        self.turn.out.clear();
        let mut at = 0;
        while at < requests.len() {
            let used =
                self.talk.execute(&self.node, &self.tallies, &requests[at..], &mut self.turn);
            assert!(used > 0, "the requests end with half a one");
            at += used;
        }
        &self.turn.out
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.node.clients.remove(self.talk.session.client.id);
    }
}
