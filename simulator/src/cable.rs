//! The network between a replica and its master: bytes of a link come late, in pieces, on one side
//! only, or never.

use crate::client::PIPE_BYTES;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// From one end to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ToMaster,
    ToReplica,
}

/// A connection in the middle of which the simulator stands.
pub(crate) struct Cable {
    to_replica: DuplexStream,
    to_master: DuplexStream,
    /// Read from one end, and not written to the other: to the master, to the replica.
    held: [Vec<u8>; 2],
}

impl Cable {
    /// `to_master`: what the master has accepted. Gives the replica's end.
    pub(crate) fn new(to_master: DuplexStream) -> (Cable, DuplexStream) {
        let (ours, to_replica) = tokio::io::duplex(PIPE_BYTES);
        (Cable { to_replica, to_master, held: Default::default() }, ours)
    }

    /// Carries at most so many bytes. False: an end is closed.
    pub(crate) fn carry(&mut self, way: Way, most: usize) -> bool {
        let Cable { to_replica, to_master, held } = self;
        let (from, to, held) = match way {
            Way::ToMaster => (to_replica, to_master, &mut held[0]),
            Way::ToReplica => (to_master, to_replica, &mut held[1]),
        };
        let mut context = Context::from_waker(Waker::noop());
        if held.is_empty() {
            let mut buffer = vec![0; most];
            let mut read = ReadBuf::new(&mut buffer);
            match Pin::new(from).poll_read(&mut context, &mut read) {
                Poll::Ready(Ok(())) if read.filled().is_empty() => return false,
                Poll::Ready(Ok(())) => held.extend_from_slice(read.filled()),
                Poll::Ready(Err(_)) => return false,
                Poll::Pending => {}
            }
        }
        if held.is_empty() {
            return true;
        }
        match Pin::new(to).poll_write(&mut context, held) {
            Poll::Ready(Ok(written)) => _ = held.drain(..written),
            Poll::Ready(Err(_)) => return false,
            Poll::Pending => {}
        }
        true
    }
}
