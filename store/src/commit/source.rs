//! Interface between the commit thread and the server.

use std::time::Instant;

use crate::error::{Error, Result};
use crate::log::Position;
use crate::record::Batch;
use crate::time;

/// Sequence number of a commit round. Changes marked in the round are as durable as a reply
/// requires once [`Committer::durable`](super::Committer::durable) has reached it.
pub type Ticket = u64;

/// Whether the log accepts writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The log accepts writes.
    Good,
    /// The disk is full. The server refuses writes until space is free.
    Full,
    /// The disk fails. The server refuses writes.
    Failing,
}

impl From<&Error> for Health {
    fn from(error: &Error) -> Health {
        if matches!(error, Error::Full { .. }) { Health::Full } else { Health::Failing }
    }
}

/// Progress of the commit thread.
#[derive(Clone, Copy, Debug)]
pub struct Committed {
    /// Last round whose changes are appended to the log.
    pub written: Ticket,
    /// Last round that is as durable as a reply requires: synced with `always`, otherwise appended.
    pub durable: Ticket,
    /// Last round that is synced.
    pub synced: Ticket,
    /// Last attempted round. The rounds after `written` (`durable` with `always`) up to this round
    /// failed. A later round logs the changes of the failed rounds. Waiters for these rounds can be
    /// notified of the failure now.
    pub failed: Ticket,
    /// End of the appended part of the log.
    pub written_to: Position,
    /// End of the synced part of the log.
    pub synced_to: Position,
    /// Whether the log accepts writes.
    pub health: Health,
}

/// State that the commit thread logs. The server implements this trait.
pub trait LoggedState<K> {
    /// Copies the current state of these keys (sorted, distinct). Runs under the stripe's lock, so
    /// it must be fast; `encode` does the slow work. Returns the approximate encoded size of all
    /// copies.
    fn collect(&mut self, keys: &[K]) -> usize;

    /// Encodes the copies into records and drops them. An error fails the round.
    fn encode(&mut self, batch: &mut Batch) -> Result<()>;

    /// Drops the copies of a failed round. A later round collects its keys again.
    fn forget(&mut self);

    /// Frees unused memory. Called when the thread is idle.
    fn rest(&mut self) {}

    /// Notifies waiters and replicas. Called after each round and each change of health.
    fn published(&mut self, now: &Committed);

    /// Wall clock for batches, in milliseconds since 1970.
    fn now_ms(&mut self) -> u64 {
        time::unix_us() / 1000
    }

    /// Monotonic clock that measures the duration of a round.
    fn now(&self) -> Instant {
        time::now()
    }

    /// Whether an oversized batch may be split between these two adjacent keys. Default: yes.
    fn may_split_between(&self, _before: &K, _after: &K) -> bool {
        true
    }

    /// Reports a batch of `_bytes` that was split (C8).
    fn batch_split(&mut self, _bytes: usize) {}

    /// Reports a failure of the log. A repeated error is reported once.
    fn failed(&mut self, _error: &Error) {}
}
