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
mod link;
mod sender;
mod term;
mod wire;

pub use follower::{Follower, LinkStep, ReplicaHost};
pub use link::{LinkError, Refusal, Timeouts};
pub use sender::{LogSource, Peer, Sender, Sending, WINDOW_BYTES};
pub use term::{next_term, promotions};
pub use wire::{Hello, MAX_MESSAGE_BYTES, PROTOCOL, Verdict};
