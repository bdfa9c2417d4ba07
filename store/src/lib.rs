//! What outlives the process: the log, snapshots, the manifest, and recovery from them.
//!
//! The store knows bytes, files and positions. It does not know counters or filters: a record is a space's number, a kind and the
//! server's bytes. It opens no socket, knows no RESP and no tokio; it blocks, and the server decides on which thread.
//!
//! ```text
//!   connections -- mark what changed --> Committer -- one thread: collect, encode the state now, append, sync --> Log
//!        ^                                   |
//!        +------ released when durable ------+          walk of the tables --> SnapshotWriter --> manifest
//! ```
//!
//! The design's promises that this crate keeps, by number:
//!
//! - **2** The log holds state, not deltas: replay from any earlier position converges, so a snapshot needs no pause (`snapshot.rs`).
//! - **3** Acknowledged is durable, as configured (`commit.rs`, `log.rs`).
//! - **4** A published file never changes; damage is found, named (file, offset) and never served (`segment.rs`, `snapshot.rs`, `manifest.rs`).
//!
//! All of it runs on a [`Disk`]: the real one, or the simulated one that tests crash at every step (`sim.rs`).

mod batch;
mod check;
mod commit;
mod disk;
mod error;
mod frame;
mod log;
mod manifest;
mod record;
mod replay;
mod segment;
mod sim;
mod snapshot;
mod store;
mod tail;

pub use batch::{BATCH_HEAD_BYTES, BatchHead, Lineage, MAX_BODY_BYTES};
pub use check::{Finding, Report, Severity, check, dump, lineage_of};
pub use commit::{CommitOptions, CommitStats, Committed, Committer, Health, Rounds, Source, SyncPolicy, Ticket, Turn};
pub use disk::{Disk, DiskFile, LOCK, RealDisk, TEMPORARY, read_full_at, write_all_at};
pub use error::{Error, Result};
pub use frame::{Check, FRAME_BYTES, Frame, frame_head, read_frame};
pub use log::{Log, LogOptions, LogStats, Position};
pub use manifest::{BadManifest, FileEntry, MANIFEST, MANIFEST_VERSION, MAX_FILES, Manifest, Role, Tag};
pub use record::{Batch, Record, Records};
pub use replay::{ApplyBatch, End};
pub use segment::{
    BadHead, LOG_VERSION, SEGMENT_HEAD_BYTES, SegmentHead, SegmentName, parse_segment_name, segment_name,
};
pub use sim::{Faults, SimDisk};
pub use snapshot::{FileWriter, MAX_CHUNK_BYTES, SNAPSHOT_VERSION, SnapshotHead, SnapshotReader, SnapshotWriter};
pub use store::{Progress, Store, StoreOptions};
pub use tail::{Step, Tail};
