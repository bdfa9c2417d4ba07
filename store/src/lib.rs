//! Durable storage: the log, snapshots, the manifest, and recovery from them.
//!
//! The store handles bytes, files and positions, not counters or filters. A record is a space
//! number, a kind and an opaque payload. The store opens no sockets and does not depend on RESP or
//! tokio. The calls of the store block, so the server chooses the thread.
//!
//! ```text
//!   connections -- mark changes --> Committer -- one thread: collect, encode, append, sync --> Log
//!        ^                                   |
//!        +------ released when durable -----+  walk of the tables --> SnapshotWriter --> manifest
//! ```
//!
//! Promises of the design (docs/promises.md) that this crate implements, by number:
//!
//! - **2** The log holds state, not deltas. Replay from any earlier position converges, so a
//!   snapshot needs no pause (`snapshot.rs`).
//! - **3** An acknowledged write is durable under the configured policy (`commit`, `log.rs`).
//! - **4** A published file never changes. The store detects damage, reports the file and offset,
//!   and never returns damaged data (`segment.rs`, `snapshot.rs`, `manifest.rs`).
//!
//! The following example is a complete run from start to stop. A single counter replaces the
//! engines of a real server:
//!
//! ```
//! use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
//! use store::{
//!     Batch, CommitOptions, Committed, Committer, LoggedState, Record, SimDisk, Store,
//!     StoreOptions, SyncPolicy, Tag,
//! };
//!
//! static LIKES: AtomicU64 = AtomicU64::new(0);
//!
//! struct Engines;
//! impl LoggedState<u64> for Engines {
//!     // Copy the rows of these ids.
//!     fn collect(&mut self, ids: &[u64]) -> usize { ids.len() * 8 }
//!     fn encode(&mut self, batch: &mut Batch) -> store::Result<()> {
//!         batch.push(1, 1, &LIKES.load(Ordering::Acquire).to_le_bytes());
//!         Ok(())
//!     }
//!     fn forget(&mut self) {}
//!     fn published(&mut self, _now: &Committed) {} // release replies, feed replicas
//! }
//! fn apply(bytes: &[u8]) -> Result<(), String> {
//!     let n = bytes.try_into().map_err(|_| "a row is eight bytes")?;
//!     LIKES.store(u64::from_le_bytes(n), Ordering::Release);
//!     Ok(())
//! }
//!
//! # fn main() -> store::Result<()> {
//! // Startup: snapshot, then log. (A server opens `RealDisk::open(folder)`.)
//! let store = Store::open(Arc::new(SimDisk::new(1)), StoreOptions::default())?;
//! store.load(2, |_file, chunk| apply(chunk), |_progress| ())?;
//! let (log, _end) = store.replay(|record: &Record| apply(record.payload), |_progress| ())?;
//! let before_walk = log.durable(); // later: the last `Committed::synced_to`
//!
//! let options = CommitOptions { policy: SyncPolicy::Always, ..CommitOptions::default() };
//! let committer = Committer::new(options);
//! std::thread::scope(|scope| {
//!     let thread = scope.spawn(|| committer.run(log, &mut Engines));
//!
//!     // A write: lock the id's stripe, change and mark. The reply waits for the ticket.
//!     let id = 7;
//!     let mut turn = committer.enter(id);
//!     LIKES.fetch_add(1, Ordering::AcqRel);
//!     turn.mark(id);
//!     let ticket = turn.leave();
//!
//!     // A snapshot: walk, flush, commit.
//!     let mut snapshot = store.begin_snapshot(before_walk);
//!     let mut file = snapshot.file(Tag { space: 1, kind: 1, low: 0, high: u64::MAX, stamp: 0 })?;
//!     file.write(&LIKES.load(Ordering::Acquire).to_le_bytes(), 1)?;
//!     snapshot.add(file.finish()?);
//!     committer.flush()?;
//!     assert!(committer.durable() >= ticket);
//!     snapshot.commit(before_walk)?; // or later: `Committed::synced_to`, after the flush
//!
//!     // Stop: a last round, a seal, and the log's durable offset for the manifest.
//!     committer.stop();
//!     let (log, last) = thread.join().expect("the commit thread does not panic");
//!     last?;
//!     store.record_durable(&log)
//! })
//! # }
//! ```
//!
//! All code uses a [`Disk`]: a real one, or a simulated one that tests can crash at every step
//! (`sim`).

#![forbid(unsafe_code)]

mod archive;
mod backup;
mod batch;
pub mod buffer;
mod check;
mod cold;
mod commit;
mod copy;
mod disk;
mod error;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod immutable_file;
mod log;
mod manifest;
mod record;
mod replay;
mod replica_log;
mod restore;
mod rewrite;
mod segment;
mod sim;
mod snapshot;
mod snapshot_writer;
mod staging;
mod store;
mod tail;
pub mod time;

pub use archive::{ARCHIVE, Archive};
pub use backup::{
    BACKUP_VERSION, Backup, BackupFile, BackupProgress, back_up, backups_in, newest_backup_in,
    remove, sweep,
};
pub use batch::{BATCH_HEAD_BYTES, BatchHead, Lineage, MAX_BODY_BYTES};
pub use check::{Finding, Report, Severity, check, dump, lineage_of, peek};
pub use cold::{
    BLOCK_BYTES, Block, COLD_VERSION, ColdFile, ColdHead, ColdRows, ColdWriter, Damage,
    MAX_BLOCK_ROWS, MAX_COLUMNS, PageFile, PageWriter, Scrub, bits,
};
pub use commit::{
    BatchReservation, CommitOptions, CommitStats, Committed, Committer, Exclusive, Health,
    LoggedState, Rounds, SyncPolicy, Ticket, WriteGuard,
};
pub use disk::{
    Disk, DiskFile, LOCK, RealDisk, TEMPORARY, create_folder, read_full_at, write_all_at,
};
pub use error::{Error, Result, gist};
pub use frame::{Check, FRAME_BYTES, Frame, frame_head, read_frame};
pub use log::{Log, LogOptions, LogStats, Position};
pub use manifest::{
    BACKUP, BadManifest, FileEntry, MANIFEST, MANIFEST_VERSION, MAX_FILES, Manifest, Role, Tag,
};
pub use record::{Batch, Record, Records};
pub use replay::{ApplyBatch, End, segments_back};
pub use replica_log::ReplicaLog;
pub use restore::{RestorePlan, RestoreTarget, plan, restore};
pub use rewrite::NewFiles;
pub use segment::{
    BadHead, LOG_VERSION, SEGMENT_HEAD_BYTES, SegmentHead, SegmentName, parse_segment_name,
    segment_name,
};
pub use sim::{Faults, SimDisk};
pub use snapshot::{
    MAX_CHUNK_BYTES, SNAPSHOT_VERSION, SnapshotFileWriter, SnapshotHead, SnapshotReader,
    read_small, row_hint,
};
pub use snapshot_writer::SnapshotWriter;
pub use staging::{STAGED_PREFIX, Staging, VERIFY_BYTES_PER_CALL, VerifiedFile};
pub use store::{Pin, Progress, Store, StoreOptions};
pub use tail::{PositionMissing, Step, Tail};
