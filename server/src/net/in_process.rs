//! An in-process client without a socket. The client runs the same event-loop code as a connection,
//! on the caller's thread, for tests and measurements.

use crate::net::connection::Connection;
use crate::net::request_loop::{RequestLoop, TurnBuffers};
use crate::session::{LateReplies, Later};
use client::Socket;
use node::roles::node::{Host, Node};
use node::runtime::counters::Tallies;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::DuplexStream;

/// An in-process client. Replies to this client do not wait for fsync, even with policy `always`.
pub struct Local {
    node: Arc<Node>,
    processor: RequestLoop,
    turn: TurnBuffers,
    tallies: Tallies,
}

impl Local {
    pub(crate) fn new(node: Arc<Node>) -> Option<Local> {
        let nowhere = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
        let client = node.clients.admit(nowhere, nowhere, usize::MAX)?;
        Some(Local {
            processor: RequestLoop::new(&node, client, 0),
            node,
            turn: TurnBuffers::default(),
            tallies: Tallies::default(),
        })
    }

    /// Executes complete requests and returns their replies. Panics if a request suspends.
    pub fn turn(&mut self, requests: &[u8]) -> &[u8] {
        self.turn.out.clear();
        let used = self.turn_on(requests);
        assert_eq!(used, requests.len(), "the request is suspended: use Local::answers");
        &self.turn.out
    }

    /// Executes requests that may wait for cold rows or other nodes. Requires a current-thread
    /// runtime. An instrumentation test counts the polls of `turn_end`. For each pending reply,
    /// `turn_end` is polled twice: once at the start and once when the data has arrived.
    pub async fn answers(&mut self, requests: &[u8]) -> &[u8] {
        self.turn.out.clear();
        let mut at = 0;
        while at < requests.len() {
            at += self.turn_on(&requests[at..]);
            if let Some(stalled) = self.processor.stalled.take() {
                let pins = stalled.await;
                self.processor.resume_with(pins);
            }
            if let Some(mut hold) = self.processor.session.hold.take() {
                poll_fn(|cx| self.turn_end(&mut hold, cx)).await;
            }
        }
        &self.turn.out
    }

    /// Executes requests until one of them has to wait. Returns the number of bytes consumed.
    #[inline(never)]
    fn turn_on(&mut self, requests: &[u8]) -> usize {
        let mut at = 0;
        while at < requests.len() && self.processor.session.hold.is_none() {
            let used =
                self.processor.execute(&self.node, &self.tallies, &requests[at..], &mut self.turn);
            at += used;
            if self.processor.stalled.is_some() {
                break;
            }
            assert!(used > 0 || self.processor.more, "incomplete request");
        }
        at
    }

    /// Inserts the missing parts into the replies if these parts have arrived.
    #[inline(never)]
    fn turn_end(&mut self, hold: &mut Later, cx: &mut Context<'_>) -> Poll<()> {
        hold.as_mut()
            .poll(cx)
            .map(|take_result: LateReplies| take_result.complete(&mut self.turn.out))
    }
}

/// Serves a client over an in-memory pipe, as a worker would. Returns `None` if the node accepts no
/// more clients.
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
        self.node.clients.remove(self.processor.session.client.id);
    }
}
