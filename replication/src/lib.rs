//! Replication by log position: the two ends of a link, as state machines without sockets, threads
//! and clocks.
//!
//! ```text
//!   replica (Follower)                       master (Sender)
//!     Hello: lineage, position, term  ---->
//!                                     <----  Welcome: its end, its term, whether the log passes
//!                                            through there; if not, its segments
//!        it does:                     <----  Segment, Batch, Batch, ... from the log's files
//!     Ack: written, durable           ---->
//!        it does not:
//!     WantManifest                    ---->
//!                                     <----  Manifest
//!     WantFile: name, from byte       ---->  (only files that it lacks, by checksum; from where
//!                                            the link was cut)
//!                                     <----  Chunk, Chunk, ...
//!     WantLog: segment                ---->
//!                                     <----  Segment, Batch, ... until all is there; then it
//!                                            replaces the old data
//!     StepDown                        ---->  an order made this replica the master
//!                                     <----  Batch, ..., SteppedDown: the log's last offset
//! ```
//!
//! What holds:
//!
//! - **R1** A position is a place in one history: lineage, term of the segment, segment, byte,
//!   offset, number and chain value of the last batch. If a master's log passes through it, both
//!   have the same bytes up to there. Only then the link goes on from it.
//! - **R2** A master sends what it has written (or, if its node says so, only what is durable
//!   there): whatever is sent survives the end of its process. A replica appends a batch, applies
//!   it, and acknowledges it as written; syncs, and acknowledges it as durable. So what it shows it
//!   will still have after a kill, and may be promoted at any moment. Only power that fails can
//!   part the two: a master that lost what it had not synced begins another segment there, and its
//!   replica, told apart from it by R1, follows R3.
//! - **R3** A log that does not pass through is never merged: the replica fetches everything anew,
//!   and only from a master that may take its data away ([`Follower`] has the rules). What it drops
//!   is handed to its owner first.
//! - **R4** Nothing that a replica does makes its master's memory grow: a sender reads from files,
//!   when there is room to send, up to [`WINDOW_BYTES`] and one batch. Nothing that a master sends
//!   makes its replica's memory grow beyond [`MAX_MESSAGE_BYTES`].
//! - **R5** A promoted node begins a segment with a higher term ([`next_term`]): positions stay
//!   what they are, and two branches of one history are told apart even where they have the same
//!   offsets.
//!
//! - **R6** After `SteppedDown` the sender accepts no more writes, and the replica has received all
//!   of its log. So the replica begins its own segment with every acknowledged write before it.
//!
//! Both ends are driven by bytes that come in, and by ticks of the caller's clock. A link that
//! fails in any way is closed; the next one begins with Hello again.

#![forbid(unsafe_code)]

mod divergence;
mod follower;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod sender;
mod wire;

pub use follower::{Follower, LinkStep, Refusal, ReplicaHost};
pub use sender::{LogSource, Peer, Sender, Sending, WINDOW_BYTES};
pub use wire::{Hello, MAX_MESSAGE_BYTES, PROTOCOL, Verdict};

/// Timeouts of a link, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// A master says so often how far it is, a replica how far it is; both also when something
    /// happens. Default 1,000.
    pub heartbeat_ms: u64,
    /// A peer that has said nothing for so long is given up. Default 60,000, as Redis's
    /// repl-timeout.
    pub timeout_ms: u64,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts { heartbeat_ms: 1_000, timeout_ms: 60_000 }
    }
}

impl Timeouts {
    /// An error if a peer that was heard then has been silent for too long.
    fn hears(&self, heard_ms: u64, now_ms: u64) -> Result<(), LinkError> {
        let silent_ms = now_ms.saturating_sub(heard_ms);
        if silent_ms < self.timeout_ms { Ok(()) } else { Err(LinkError::Timeout(silent_ms)) }
    }
}

/// Why a link is to be closed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer sent what cannot be.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// It has been silent for too long.
    #[error("nothing was heard for {0} ms")]
    Timeout(u64),
    /// The peer has said why it ends.
    #[error("the peer refused: {0}")]
    Refused(String),
    /// The peer is no Tidemark server: it does not know the first word of the protocol.
    #[error("{0}")]
    Foreign(String),
    /// This replica must not follow that master.
    #[error(transparent)]
    Unfit(Refusal),
    /// The own disk, or log.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A file came wrongly, or what an earlier link left of it was torn by a crash. It is fetched
    /// anew.
    #[error("a file does not match its checksum: it is fetched anew")]
    Damaged,
    /// What the master has next could not be made true here; it was not taken.
    #[error("{0}")]
    Unready(String),
    /// A record could not be made true here.
    #[error("a record cannot be applied: {0}")]
    Apply(String),
}

/// The term of the node that is promoted out of `term`, `by` promotions later: the upper half
/// counts promotions, the lower half is random, so that two nodes that were promoted out of one
/// history at the same time can be told apart. Where no more promotions can be counted, as only a
/// master's word and not promotions can make it, the lower half rises, until the last term there is
/// stays: a node can always be promoted, and no term falls.
pub fn next_term(term: u64, by: u32, random: u32) -> u64 {
    match promotions(term) {
        u32::MAX => term.saturating_add(u64::from(random | 1)),
        count => u64::from(count.saturating_add(by.max(1))) << 32 | u64::from(random),
    }
}

/// How many promotions led to a term.
pub fn promotions(term: u64) -> u32 {
    (term >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_rises_as_long_as_there_is_a_higher_one() {
        let last = u64::from(u32::MAX) << 32;
        for term in
            [0, 1, u64::from(u32::MAX), 1 << 32, last - 1, last, last + 1, u64::MAX - 1, u64::MAX]
        {
            for (by, random) in [(0, 0), (1, 0), (1, 1), (7, 1), (u32::MAX, u32::MAX)] {
                let next = next_term(term, by, random);
                assert!(next > term || next == u64::MAX, "{term:x} and {random:x}: {next:x}");
                assert!(
                    promotions(next) > promotions(term) || term >= last,
                    "{term:x} and {random:x}: {next:x}"
                );
            }
        }
    }
}
