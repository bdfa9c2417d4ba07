//! Recovery: reads a data folder at startup.
//!
//! Recovery reads the catalogue, the snapshot, and then the log after the snapshot. It applies log
//! records in chunks, on all processors. Between two chunks, spaces that exceed their memory limit
//! spill.

pub mod apply;
mod chunk;
#[cfg(test)]
mod crashes;
#[cfg(test)]
mod ranges;
#[cfg(test)]
mod retiring;
#[cfg(test)]
mod rings;

use crate::catalogue::{Catalogue, Unreadable};
use crate::clock::unix_ms;
use crate::commit::Durability;
use crate::commit::encode::CommitSource;
use crate::dirty_keys::Mark;
use crate::engines::{BuildError, Current, Engines};
use crate::log_records::RecordKind;
use crate::options::Options;
use crate::snapshot;
use crate::tiering;
use crate::tiering::{SpillContext, SpillLog};
use chunk::Chunk;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use store::{
    Batch, Disk, Log, Progress, RealDisk, Record, Records, ReplicaLog, Store, StoreOptions, time,
};

/// Error of opening a data folder.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// An error of the store.
    #[error("{0}. {advice}", advice = .0.advice())]
    Store(#[from] store::Error),
    /// The catalogue in the folder cannot be read.
    #[error(transparent)]
    Catalogue(#[from] Unreadable),
    /// A space could not be created.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The folder contains records of a newer release. Recovery leaves it unchanged.
    #[error(
        "the data folder {} contains records of kind {kind}, which this release does not know. {}",
        .folder.display(),
        "Start the release that wrote them, or a newer one. The folder was not changed."
    )]
    Newer {
        /// Path of the folder.
        folder: std::path::PathBuf,
        /// Kind of the unrecognized record.
        kind: u32,
    },
    /// The folder cannot be created.
    #[error("cannot create the data folder {path}: {source}")]
    Folder {
        /// Path of the folder.
        path: std::path::PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

/// The log of a node, depending on its role.
pub enum NodeLog {
    /// Log of a master.
    Own(Box<Log>),
    /// Log of a replica.
    Follows(Box<ReplicaLog>),
}

impl NodeLog {
    /// Whether the node is a master.
    pub fn is_own(&self) -> bool {
        matches!(self, NodeLog::Own(_))
    }

    /// Returns the end of the log.
    pub fn end(&self) -> store::Position {
        match self {
            NodeLog::Own(log) => log.written(),
            NodeLog::Follows(log) => log.written(),
        }
    }

    /// Returns the term of the log's newest segment.
    pub fn term(&self) -> u64 {
        match self {
            NodeLog::Own(log) => log.term(),
            NodeLog::Follows(log) => log.term(),
        }
    }
}

/// Contents of a data folder.
pub struct Recovered {
    /// Engines with all recovered data.
    pub engines: Engines,
    /// Store for snapshots and cold files.
    pub store: Store,
    /// Log to append to.
    pub log: NodeLog,
    /// End of the log that was read.
    pub end: store::End,
}

/// Checks the configured spaces by creating them, so that the server reports errors before clients
/// can connect.
///
/// # Errors
///
/// [`RecoverError::Build`] if the engines refuse the configuration.
pub fn try_spaces(options: &Options) -> Result<(), RecoverError> {
    let fresh = Catalogue::default().completed(options);
    match Engines::new(options, &fresh, Arc::new(Durability::new(options.fsync))) {
        // A view may refer to a field that only exists in the schema of the data folder.
        Ok(_) | Err(BuildError::Missing { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
pub(crate) fn recover(
    options: &Options,
    durability: &Arc<Durability>,
    follows: bool,
    progress: impl Fn(Progress) + Sync,
) -> Result<Recovered, RecoverError> {
    recover_from(open(&options.dir)?, options, durability, follows, progress)
}

/// Delay after a failed spill during replay. Each attempt may fill the disk.
const SPILL_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Opens a data folder and creates it if missing.
pub fn open(dir: &Path) -> Result<Arc<dyn Disk>, RecoverError> {
    let disk = RealDisk::open(dir);
    let disk = disk.map_err(|source| RecoverError::Folder { path: dir.to_path_buf(), source })?;
    Ok(Arc::new(disk))
}

/// Recovers a data set from a disk. Creates the configured spaces if the disk is empty.
// Long: this function contains the closures `learn`, `flush` and `push`, which borrow its local
// variables.
pub fn recover_from(
    disk: Arc<dyn Disk>,
    options: &Options,
    durability: &Arc<Durability>,
    follows: bool,
    progress: impl Fn(Progress) + Sync,
) -> Result<Recovered, RecoverError> {
    let kept = StoreOptions { keep_log_bytes: options.keep_log_bytes, ..StoreOptions::default() };
    let store = Store::open(disk, kept)?;

    // The catalogue precedes all data: it is in the snapshot, or the first record of the log. Later
    // catalogues replace it.
    let parts = &durability.parts;
    let mut known = Catalogue::default();
    let mut engines = Engines::empty(options, durability.clone());
    let learn = |engines: &mut Engines, told: &Catalogue| -> Result<(), RecoverError> {
        // The snapshot's catalogue may be newer than those in the first log records. An older
        // catalogue must not recreate or drop spaces.
        if told.version > 0 && told.version < engines.version() {
            return Ok(engines.adopt_schemas(told)?);
        }
        engines.adopt(&told.filled(options))?;
        engines.attach_cold(&store)?;
        snapshot::attach_pairs(&store, engines)?;
        engines.lift_limits();
        Ok(())
    };
    let snapshot = snapshot::read_catalogue(&store)?;
    let is_first = snapshot.is_none();
    let newer = |kind: u32| RecoverError::Newer { folder: options.dir.clone(), kind };
    if let Some(catalogue) = snapshot {
        let unknown = |kind: &u32| !u8::try_from(*kind).is_ok_and(RecordKind::is_known);
        if let Some(kind) = store.manifest().files.iter().map(|f| f.tag.kind).find(unknown) {
            return Err(newer(kind));
        }
        known = catalogue?;
        learn(&mut engines, &known)?;
        let rows = snapshot::load(&store, &mut engines, parts, &progress)?;
        tracing::info!("loaded a snapshot of {rows} rows");
    }
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (mut failed, mut chunk, mut retry_at) = (None, Chunk::default(), None);
    // Applies the chunk, then spills spaces that exceed their memory limit. `applied` is the log
    // offset up to which all batches are applied.
    let mut flush = |engines: &Engines, chunk: &mut Chunk, applied: u64| -> Result<(), String> {
        let is_due = |&at: &Instant| time::now() >= at;
        if chunk.apply(engines, parts, threads)? && retry_at.as_ref().is_none_or(is_due) {
            let is_kept = keep_within(&store, durability, options, engines, applied);
            retry_at = (!is_kept).then(|| time::now() + SPILL_RETRY_DELAY);
        }
        Ok(())
    };
    let mut push = |record: &Record<'_>, batch: Range<u64>| -> Result<(), String> {
        if record.kind == RecordKind::Catalogue as u8 {
            flush(&engines, &mut chunk, batch.start)?;
            known = Catalogue::decode(record.payload).map_err(|e| e.to_string())?;
            learn(&mut engines, &known).map_err(|error| failed.insert(error).to_string())?;
            return if is_first {
                snapshot::lay_out(&engines).map_err(|e| e.to_string())
            } else {
                Ok(())
            };
        }
        if !RecordKind::is_known(record.kind) {
            return Err(failed.insert(newer(record.kind.into())).to_string());
        }
        if chunk.is_full() {
            flush(&engines, &mut chunk, batch.start)?;
        }
        chunk.push(record, &batch);
        Ok(())
    };
    let replayed = replay(&store, follows, &mut push, &progress);
    let (mut log, end) = match (failed, replayed) {
        // These errors are not caused by damage: the configuration does not match the folder, or a
        // newer release wrote the folder.
        (Some(error), _) => return Err(error),
        (None, replayed) => replayed?,
    };
    // Spill again, even within the retry delay, because no other thread writes yet.
    let last = chunk.apply(&engines, parts, threads).map_err(|what| {
        let path = store.path(&store::segment_name(end.position.segment));
        store::Error::Corrupt { path, offset: end.position.byte, what }
    })?;
    if last {
        keep_within(&store, durability, options, &engines, end.position.offset);
    }
    complete(&mut engines, &known, options, &store, &mut log, follows)?;
    Ok(Recovered { engines, store, log, end })
}

/// Spills spaces that exceed their memory limit. The log is applied up to `applied`. Returns false
/// after a failure.
fn keep_within(
    store: &Store,
    durability: &Durability,
    options: &Options,
    engines: &Engines,
    applied: u64,
) -> bool {
    let most_bytes = options.spill.max_bytes;
    let log = SpillLog::Replayed(applied);
    tiering::keep_within(&SpillContext { store, durability, most_bytes, log }, engines)
}

/// Reads the log and calls `push` for each record, with the log offsets of its batch.
fn replay(
    store: &Store,
    follows: bool,
    mut push: impl FnMut(&Record<'_>, Range<u64>) -> Result<(), String>,
    progress: impl FnMut(Progress),
) -> store::Result<(NodeLog, store::End)> {
    let mut at = store.manifest().replay.offset;
    let mut each = |head: &store::BatchHead, body: &[u8]| {
        let batch = at..at + head.bytes();
        at = batch.end;
        each_record(head, body, &mut |record| push(record, batch.clone()))
    };
    Ok(if follows {
        let (log, end) = store.replay_following(&mut each, progress)?;
        (NodeLog::Follows(Box::new(log)), end)
    } else {
        let (log, end) = store.replay_batches(&mut each, progress)?;
        (NodeLog::Own(Box::new(log)), end)
    })
}

/// Calls `apply` for each record of a batch, and checks their number.
fn each_record(
    head: &store::BatchHead,
    body: &[u8],
    apply: &mut dyn FnMut(&Record<'_>) -> Result<(), String>,
) -> Result<(), String> {
    let mut records = 0;
    for record in Records::new(body) {
        apply(&record?)?;
        records += 1;
    }
    if records == head.records {
        Ok(())
    } else {
        Err("the batch's record count does not match its header".to_owned())
    }
}

/// Completes the engines with the configuration and the role of this process.
fn complete(
    engines: &mut Engines,
    known: &Catalogue,
    options: &Options,
    store: &Store,
    log: &mut NodeLog,
    follows: bool,
) -> Result<(), RecoverError> {
    // The configuration defines the spaces of a new folder, and of a folder whose release had no
    // catalogue. A replica receives them from its master.
    if *known == Catalogue::default() || !follows {
        engines.adopt(&engines.catalogue().completed(options))?;
    }
    engines.attach_cold(store)?;
    engines.follows.store(follows, SeqCst);
    if let NodeLog::Own(log) = log {
        log_news(engines, known, log)?;
    }
    engines.set_limits();
    gather_outliers(engines);
    Ok(())
}

/// Moves outliers (ids far above all tables) that replay created into tables. The number of tables
/// depends on the configured limits, but the limits do not restrict the move itself.
fn gather_outliers(engines: &Engines) {
    let spaces = engines.counters().iter().filter(|space| space.outlier_rows() > 0);
    let limits: Vec<_> = spaces.map(|space| (space, space.memory_limit_bytes())).collect();
    if limits.is_empty() {
        return;
    }
    engines.lift_limits();
    limits.iter().for_each(|(space, limit)| space.gather(*limit));
    engines.set_limits();
}

/// Reads the newest catalogue of a data folder, even while another process uses it. Returns `None`
/// if the folder has no catalogue.
pub fn catalogue_of(disk: &dyn Disk) -> Result<Option<Catalogue>, RecoverError> {
    let mut newest: Result<Option<Catalogue>, Unreadable> = Ok(None);
    store::peek(disk, RecordKind::Catalogue as u8, &mut |payload| {
        match (Catalogue::decode(payload), &newest) {
            // The snapshot's catalogue may be newer than those in the first log records.
            (Ok(told), Ok(Some(known))) if told.version < known.version => {}
            (told, Ok(_)) => newest = told.map(Some),
            (_, Err(_)) => {}
        }
    })?;
    Ok(newest?)
}

fn log_news(engines: &Engines, known: &Catalogue, log: &mut Log) -> store::Result<()> {
    let now = engines.catalogue();
    if now != *known {
        let mut batch = Batch::new();
        batch.push(0, RecordKind::Catalogue as u8, &now.encode());
        log.append(&batch, unix_ms())?;
        log.sync()?;
    }
    Ok(())
}

/// Runs the commit thread until [`store::Committer::stop`] and returns the log. Call
/// [`Durability::begin`] first.
pub fn run_commits(
    durability: &Durability,
    log: Log,
    current: &Current,
) -> (Log, store::Result<()>) {
    durability.committer.run(log, &mut CommitSource::new(durability, current))
}

/// Writes log batches for a caller without a commit thread, such as a simulator. Call
/// [`Durability::begin`] first.
pub struct Commits<'a> {
    rounds: store::Rounds<'a, Mark>,
    source: CommitSource<'a>,
}

impl<'a> Commits<'a> {
    /// Creates the state before the first batch.
    pub fn new(durability: &'a Durability, current: &'a Current) -> Commits<'a> {
        Commits {
            rounds: store::Rounds::new(durability.committer()),
            source: CommitSource::new(durability, current),
        }
    }

    /// Writes one log batch.
    pub fn round(&mut self, log: &mut Log) -> store::Result<()> {
        self.rounds.turn(log, &mut self.source, store::time::now(), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error must say that the release is too old, not that the folder is damaged.
    #[test]
    fn records_of_a_newer_release_are_refused_as_such() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options { dir: folder.path().into(), ..Options::default() };
        let open = || recover(&options, &Arc::new(Durability::new(options.fsync)), false, |_| ());
        let NodeLog::Own(mut log) = open().expect("a new folder").log else { panic!("a master's") };
        let mut batch = Batch::new();
        batch.push(0, 200, b"?");
        log.append(&batch, 0).expect("a record");
        log.sync().expect("a sync");
        drop(log);
        let error = open().err().expect("the folder is rejected");
        assert!(matches!(error, RecoverError::Newer { kind: 200, .. }), "{error}");
        let said = error.to_string();
        assert!(said.contains("records of kind 200, which this release does not know"), "{said}");
    }
}
