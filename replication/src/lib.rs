//! Replication by log position. Both ends of a link are state machines without sockets, threads or
//! clocks.
//!
//! ```text
//!   replica (Follower)                       master (Sender)
//!     Hello: lineage, position, term  ---->
//!                                     <----  Welcome: verdict, end, term; unless the log contains
//!                                            the position, the segment headers
//!   log contains the position:        <----  Segment, Batch, Batch, ... from the log's files
//!     Ack: written, durable           ---->
//!   otherwise, full sync:
//!     WantManifest                    ---->
//!                                     <----  Manifest
//!     WantFile: name, from byte       ---->  (missing files only; resumes partial files)
//!                                     <----  Chunk, Chunk, ...
//!     WantLog: segment                ---->
//!                                     <----  Segment, Batch, ...; once complete, the new data
//!                                            replaces the old
//!     StepDown                        ---->  (planned failover to this replica)
//!                                     <----  Batch, ..., SteppedDown: the log's last offset
//! ```
//!
//! Invariants:
//!
//! - **R1** A position identifies a point in one history. It consists of lineage, term of the
//!   segment, segment, byte, offset, and the sequence number and chain value of the last batch. If
//!   the master's log contains the replica's position, both logs are equal up to it, and the master
//!   continues from there.
//! - **R2** A master sends batches that are written to its log file, or only durable batches if its
//!   node requires that. Killing the master process therefore loses no batch that a replica has
//!   received. A replica appends and applies a batch before it acknowledges it as written, and
//!   syncs it before it acknowledges it as durable. Killing the replica's process therefore loses
//!   nothing that clients have read from it, and the replica can be promoted at any time. Only a
//!   power cut can make the logs diverge. A master that has lost unsynced data begins another
//!   segment at that point. The replica then detects by R1 that the logs differ, and applies R3.
//! - **R3** Diverged logs are never merged. The replica fetches the whole data set, if the rules of
//!   [`Follower`] allow the master to replace it. Before that, the replica passes the batches that
//!   it will drop to its host.
//! - **R4** Memory is bounded. A sender reads from files only when there is room to send, and
//!   buffers at most [`WINDOW_BYTES`] and one batch. A replica buffers at most
//!   [`MAX_MESSAGE_BYTES`].
//! - **R5** A promoted node begins a segment with a higher term ([`next_term`]). Earlier positions
//!   stay valid. Positions in different branches of a history differ even if their offsets are
//!   equal.
//! - **R6** After `SteppedDown` the master accepts no more writes, and the replica has received the
//!   master's whole log. The replica's own segment therefore begins after every acknowledged write.
//!
//! Input bytes and timer ticks drive both ends. Any error closes the link; the next link begins
//! with Hello.

#![forbid(unsafe_code)]

mod divergence;
mod follower;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod link;
mod sender;
mod term;
mod wire;

pub use follower::{Follower, FollowerStep, ReplicaHost};
pub use link::{LinkError, Refusal, Timeouts};
pub use sender::{LogSource, Peer, Sender, Sending, WINDOW_BYTES};
pub use term::{next_term, promotions};
pub use wire::{Hello, MAX_MESSAGE_BYTES, PROTOCOL, Verdict};
