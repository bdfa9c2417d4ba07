//! Simulated network between a replica and its master. The network delays, splits or drops the
//! bytes of a link, possibly in only one direction.

use crate::client::PIPE_BYTES;
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// Direction of transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkDirection {
    ToMaster,
    ToReplica,
}

/// A connection whose bytes the simulator forwards.
pub(crate) struct Cable {
    to_replica: DuplexStream,
    to_master: DuplexStream,
    /// Bytes read from one end and not yet written to the other, for each direction
    /// ([`LinkDirection`]).
    held: [Vec<u8>; 2],
}

impl Cable {
    /// Creates a cable to `to_master`, an accepted connection, and returns the replica's end.
    pub(crate) fn new(to_master: DuplexStream) -> (Cable, DuplexStream) {
        let (ours, to_replica) = tokio::io::duplex(PIPE_BYTES);
        (Cable { to_replica, to_master, held: Default::default() }, ours)
    }

    /// Forwards at most `most` bytes. Returns false if either end is closed.
    pub(crate) fn carry(&mut self, way: LinkDirection, most: usize) -> bool {
        let Cable { to_replica, to_master, held } = self;
        let (from, to, held) = match way {
            LinkDirection::ToMaster => (to_replica, to_master, &mut held[0]),
            LinkDirection::ToReplica => (to_master, to_replica, &mut held[1]),
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

#[derive(Default)]
pub(crate) struct ReplicaLink {
    pub(crate) cable: RefCell<Option<Cable>>,
    /// Whether each direction ([`LinkDirection`]) of the link is partitioned.
    pub(crate) cut: Cell<[bool; 2]>,
    /// Whether the replica has dialed the current master.
    pub(crate) is_dialed: Cell<bool>,
    /// End of the log when the current master took over.
    pub(crate) floor: Cell<u64>,
    /// Whether the replica has the log up to `floor` and could replace the master.
    pub(crate) is_promotable: Cell<bool>,
    /// Pairs of a time and a log offset. The master's log up to the offset contains all writes
    /// acknowledged before the time.
    pub(crate) marks: RefCell<Vec<(Duration, u64)>>,
}

impl ReplicaLink {
    /// Resets the link for a new master whose log ends at `end`.
    pub(crate) fn begin(&self, at: Duration, end: u64) {
        self.floor.set(end);
        self.is_dialed.set(false);
        self.is_promotable.set(false);
        self.marks.replace(vec![(at, end)]);
    }

    /// Returns a time T such that a log that ends at `end` contains all writes acknowledged before
    /// T.
    pub(crate) fn has_all_before(&self, end: u64) -> Duration {
        let marks = self.marks.borrow();
        let mark = marks.iter().rev().find(|(_, offset)| *offset <= end);
        mark.expect("the replica has the master's initial data").0
    }
}
