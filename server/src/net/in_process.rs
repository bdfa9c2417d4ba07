//! A client without a socket, on the caller's thread: requests in, replies out, by the very turn
//! that a connection runs. For tests and measurements of that path alone.

use crate::net::connection::Connection;
use crate::net::request_loop::{RequestLoop, TurnBuffers};
use node::roles::node::{Host, Node};
use node::runtime::tally::Tallies;
use node::runtime::tls::Socket;
use std::sync::Arc;
use tokio::io::DuplexStream;

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
            assert!(used > 0 || self.talk.more, "the requests end with half a one");
            at += used;
        }
        &self.turn.out
    }
}

/// Serves a client whose socket is a pipe, as a worker does, until it goes. `None` if the node
/// takes no more clients.
pub fn serve(host: &Arc<Host>, stream: DuplexStream) -> Option<impl Future<Output = ()> + use<>> {
    let nowhere = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
    let client = host.clients.admit(nowhere, nowhere, host.config().server.max_clients)?;
    let (host, id) = (host.clone(), client.id);
    Some(async move {
        Connection::new(host.clone(), 0, Socket::Memory(stream), client).serve().await;
        host.clients.remove(id);
    })
}

impl Drop for Local {
    fn drop(&mut self) {
        self.node.clients.remove(self.talk.session.client.id);
    }
}
