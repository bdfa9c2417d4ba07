//! The data folder. One process opens and loads the folder, and updates it with a [`Log`] and a
//! manifest.
//!
//! ```text
//!   Store::open      lock, manifest (or a new lineage), removal of unnamed files
//!     .load          snapshot files, on several threads
//!     .replay        the log after them; returns the writer of the log
//!   running: Log (one thread), snapshots (another): begin_snapshot .. commit -> new manifest
//!            -> removal of old files and segments
//!   stop: Committer::stop, then .record_durable of the log that run() returned
//! ```
//!
//! | file | created | removed |
//! |---|---|---|
//! | `tidemark.lock` | at the first startup; holds the flock | never |
//! | `tidemark.manifest` | at the first startup; replaced by each snapshot | never |
//! | `log-*.tlog` | by the log, in sequence | before the replay position, over `keep_log_bytes` |
//! | `snap-*.tsnap` | by a snapshot | once a later manifest does not list it |
//! | `cold-*.tcold` | by a spill or a merge | once no manifest lists it and no reader uses it |
//! | `*.tmp` | by any of them | by the rename, or at the next startup |

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use crate::batch::{BatchHead, Lineage};
use crate::cold::{ColdFile, ColdWriter, PageFile, PageWriter, Scrub, parse_cold_name};
use crate::disk::{Disk, TEMPORARY};
use crate::error::{Error, Result};
use crate::log::{Log, LogOptions, LogResume, Position};
use crate::manifest::{BACKUP, FileEntry, MANIFEST, Manifest, Role, Tag, is_ours};
use crate::record::{Record, Records};
use crate::replay::{
    ApplyBatch, End, ReplayMode, find_path, read_segment_head, replay, segment_numbers,
    segments_back,
};
use crate::replica_log::ReplicaLog;
use crate::segment::{SegmentHead, segment_name};
use crate::snapshot::{SnapshotReader, parse_snapshot_name};
use crate::staging;

/// Options of a data folder.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Options of the log.
    pub log: LogOptions,
    /// Maximum size of retained obsolete segments in bytes. Disconnected replicas can resume from
    /// these segments. Default 2 GiB.
    pub keep_log_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions { log: LogOptions::default(), keep_log_bytes: 2 << 30 }
    }
}

/// Progress of startup.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Bytes read so far.
    pub bytes: u64,
    /// Estimated total of bytes to read.
    pub of_bytes: u64,
}

/// A manifest whose files and log must not be removed while a replica or a backup reads them. See
/// [`Store::pin`].
#[derive(Debug)]
pub struct Pin {
    /// The pinned manifest.
    pub manifest: Manifest,
}

/// An open data folder.
#[derive(Debug)]
pub struct Store {
    disk: Arc<dyn Disk>,
    options: StoreOptions,
    lineage: Lineage,
    manifest: Mutex<Manifest>,
    /// Next number for a manifest or for files. Failed attempts also consume a number.
    next_number: AtomicU64,
    /// Numbers of snapshots in progress, whose files must not be removed.
    building: Mutex<Vec<u64>>,
    /// Manifests that replicas or backups read.
    pins: Mutex<Vec<Weak<Pin>>>,
    kept: Mutex<Option<Arc<Pin>>>,
    log_from: AtomicU64,
    /// Whether the last write of a manifest failed, perhaps after its rename. Until a write
    /// succeeds, the files of both manifests must stay.
    unconfirmed_manifests: AtomicBool,
    is_new: bool,
    lock: Mutex<Option<Lock>>,
}

struct Lock(#[allow(dead_code)] Box<dyn Send + Sync>); // held for its Drop

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lock")
    }
}

impl Store {
    /// Opens and locks the folder. An empty folder becomes a new data set with a random lineage.
    pub fn open(disk: Arc<dyn Disk>, options: StoreOptions) -> Result<Store> {
        let lineage = || Lineage::random().map_err(|e| Error::io("/dev/urandom", "reading", e));
        Store::open_with(disk, options, lineage)
    }

    /// Like [`Store::open`], with the lineage for a new data set. Tests need a reproducible
    /// lineage.
    pub fn open_with(
        disk: Arc<dyn Disk>,
        options: StoreOptions,
        lineage: impl FnOnce() -> Result<Lineage>,
    ) -> Result<Store> {
        let lock = match disk.lock() {
            Ok(lock) => Lock(lock),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                return Err(Error::Locked { path: disk.path(crate::disk::LOCK) });
            }
            Err(e) => return Err(Error::io(disk.path(crate::disk::LOCK), "locking", e)),
        };
        if disk.open(BACKUP).is_ok() {
            return Err(Error::Refused(format!(
                "{} is a backup and must not be changed. Create a data folder from it with \
                 `tidemark restore`",
                disk.path("").display()
            )));
        }
        staging::adopt(&disk)?;
        let (manifest, is_new) = match Manifest::read(&*disk)? {
            Some(manifest) => (manifest, false),
            None => {
                let names = disk.list().map_err(|e| Error::io(disk.path(""), "listing", e))?;
                if let Some(name) = names.iter().find(|n| is_ours(n) && !n.ends_with(TEMPORARY)) {
                    let what = format!("missing, but {name} exists: this folder contained data");
                    return Err(Error::corrupt(disk.path(MANIFEST), 0, what));
                }
                let manifest = Manifest::new(lineage()?);
                manifest.write(&*disk)?;
                (manifest, true)
            }
        };
        let next_number = AtomicU64::new(manifest.number + 1);
        let lineage = manifest.lineage;
        let store = Store {
            disk,
            options,
            lineage,
            manifest: Mutex::new(manifest),
            next_number,
            building: Mutex::new(Vec::new()),
            pins: Mutex::new(Vec::new()),
            kept: Mutex::default(),
            log_from: AtomicU64::new(u64::MAX),
            unconfirmed_manifests: AtomicBool::new(false),
            is_new,
            lock: Mutex::new(Some(lock)),
        };
        // If the last process died right after a rename, the manifest's name may not be durable
        // yet.
        store
            .disk
            .sync_dir()
            .map_err(|e| Error::io(store.disk.path(""), "syncing the folder", e))?;
        store.sweep()?;
        Ok(store)
    }

    /// Releases the folder's lock. The caller must have stopped all writes.
    pub fn unlock(&self) {
        self.lock.lock().take();
    }

    /// Whether the folder was empty.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Returns the lineage of the data set.
    pub fn lineage(&self) -> Lineage {
        self.lineage
    }

    /// Returns the disk.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Locks and returns the current manifest.
    pub fn manifest(&self) -> MutexGuard<'_, Manifest> {
        self.manifest.lock()
    }

    /// Reads all snapshot files on `threads` threads. Returns the number of rows.
    ///
    /// `apply` receives verified chunks. The chunks of a file arrive in order on one thread.
    /// Threads process files in order of space, kind and lowest id. An error from `apply` is
    /// reported as damage at that chunk.
    pub fn load(
        &self,
        threads: usize,
        apply: impl Fn(&FileEntry, &[u8]) -> std::result::Result<(), String> + Sync,
        progress: impl Fn(Progress) + Sync,
    ) -> Result<u64> {
        let mut files: Vec<FileEntry> =
            self.manifest().files.iter().filter(|f| f.role == Role::Snapshot).cloned().collect();
        // Ascending ids approximate the original order of insertion, so tables are closed at
        // similar ids.
        files.sort_by_key(|f| (f.tag.space, f.tag.kind, f.tag.low));
        let of_bytes = files.iter().map(|f| f.bytes).sum();
        let (next, bytes, rows) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        let work = || {
            let mut chunk = Vec::new();
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                let mut read = || -> Result<()> {
                    let mut reader =
                        SnapshotReader::open(&*self.disk, &file.name, Some((file, self.lineage)))?;
                    let mut before = 0;
                    loop {
                        let at = reader.at();
                        if !reader.next(&mut chunk)? || failed.lock().is_some() {
                            break;
                        }
                        apply(file, &chunk)
                            .map_err(|what| Error::corrupt(self.disk.path(&file.name), at, what))?;
                        let done = bytes.fetch_add(reader.at() - before, Ordering::Relaxed)
                            + reader.at()
                            - before;
                        before = reader.at();
                        progress(Progress { bytes: done, of_bytes });
                    }
                    rows.fetch_add(reader.rows(), Ordering::Relaxed);
                    Ok(())
                };
                if let Err(error) = read() {
                    failed.lock().get_or_insert(error);
                }
                if failed.lock().is_some() {
                    break;
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads.max(1) {
                scope.spawn(work);
            }
            work();
        });
        match failed.into_inner() {
            Some(error) => Err(error),
            None => Ok(rows.into_inner()),
        }
    }

    /// Replays the log after the snapshot, record by record, and opens it for writing. An error
    /// from `apply` is reported as damage.
    pub fn replay(
        &self,
        mut apply: impl FnMut(&Record<'_>) -> std::result::Result<(), String>,
        progress: impl FnMut(Progress),
    ) -> Result<(Log, End)> {
        let mut each = |head: &BatchHead, body: &[u8]| {
            let mut records = 0;
            for record in Records::new(body) {
                apply(&record?)?;
                records += 1;
            }
            if records == head.records {
                Ok(())
            } else {
                Err("the batch's record count does not match its header".to_string())
            }
        };
        self.replay_batches(&mut each, progress)
    }

    /// Like [`Store::replay`], but batch by batch.
    pub fn replay_batches(
        &self,
        apply: &mut ApplyBatch<'_>,
        progress: impl FnMut(Progress),
    ) -> Result<(Log, End)> {
        let (found, end) = self.read_log(false, apply, progress)?;
        let log = Log::resume(self.disk.clone(), self.options.log, found)?;
        match self.record_durable(&log) {
            Ok(()) | Err(Error::Full { .. }) => Ok((log, end)),
            Err(error) => Err(error),
        }
    }

    /// Like [`Store::replay_batches`], but opens the log as a replica's.
    pub fn replay_following(
        &self,
        apply: &mut ApplyBatch<'_>,
        progress: impl FnMut(Progress),
    ) -> Result<(ReplicaLog, End)> {
        let (_, end) = self.read_log(true, apply, progress)?;
        Ok((ReplicaLog::open(self.disk.clone(), self.lineage, end.position)?, end))
    }

    fn read_log(
        &self,
        following: bool,
        apply: &mut ApplyBatch<'_>,
        mut progress: impl FnMut(Progress),
    ) -> Result<(LogResume, End)> {
        let manifest = self.manifest().clone();
        let path = find_path(&*self.disk, self.lineage, manifest.replay, true)?;
        let sizes: u64 = path.segments.iter().map(|s| self.size_of(s.segment).unwrap_or(0)).sum();
        let of_bytes = sizes.saturating_sub(manifest.replay.byte);
        let start = manifest.replay.offset;
        let mut report = |at: Position| progress(Progress { bytes: at.offset - start, of_bytes });
        let reader = if following { ReplayMode::Follower } else { ReplayMode::Owner };
        let end = replay(&*self.disk, &path, manifest.replay, reader, apply, &mut report)?;
        if end.position.offset < manifest.durable {
            let name = self.disk.path(&segment_name(end.position.segment));
            let what = format!(
                "the log ends at offset {}, but was durable up to {}: acknowledged writes are \
                 missing",
                end.position.offset, manifest.durable
            );
            return Err(Error::corrupt(name, end.position.byte, what));
        }
        let last = path.segments.last().copied();
        let term = last.map_or(manifest.term, |s| s.term);
        let void = end.torn_bytes > 0 || !path.void.is_empty();
        let found = LogResume {
            lineage: self.lineage,
            term,
            end: end.position,
            next_segment: path.next_segment,
            is_first: last.is_none(),
            void,
        };
        Ok((found, end))
    }

    /// Records the durable offset of the log in the manifest, so that a later startup detects a
    /// truncated log.
    ///
    /// Replay calls this at each startup. Callers should also call it after they close the log.
    pub fn record_durable(&self, log: &Log) -> Result<()> {
        self.note(log.durable(), log.term())
    }

    /// Like [`Store::record_durable`], for a replica's log with this durable position and term.
    pub fn note(&self, durable: Position, term: u64) -> Result<()> {
        if self.manifest().durable >= durable.offset && self.manifest().term >= term {
            return Ok(());
        }
        self.publish(|manifest| {
            manifest.durable = manifest.durable.max(durable.offset);
            manifest.term = manifest.term.max(term);
        })
    }

    /// Returns the options of the log.
    pub fn log_options(&self) -> LogOptions {
        self.options.log
    }

    /// Protects all files of the current manifest, and the log from its replay position, until the
    /// pin is dropped.
    pub fn pin(&self) -> Arc<Pin> {
        let mut pins = self.pins.lock();
        pins.retain(|pin| pin.strong_count() > 0);
        let pin = Arc::new(Pin { manifest: self.manifest().clone() });
        pins.push(Arc::downgrade(&pin));
        pin
    }

    /// Protects the files of the current manifest until a call with `false`. An incoming full sync
    /// may share these files.
    pub fn keep_files(&self, keep: bool) {
        let pin = keep.then(|| self.pin());
        *self.kept.lock() = pin;
    }

    /// Protects the log from this segment on, because the archive does not have it yet.
    /// [`Store::give_up_oldest_segment`] ignores this limit.
    pub fn keep_log_from(&self, segment: u64) {
        self.log_from.store(segment, Ordering::Relaxed);
    }

    /// Whether a pin protects the file.
    pub fn is_pinned(&self, name: &str) -> bool {
        self.pins
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .any(|pin| pin.manifest.file(name).is_some())
    }

    fn size_of(&self, segment: u64) -> Option<u64> {
        self.disk.open(&segment_name(segment)).ok()?.size().ok()
    }

    /// Begins a cold file with `columns` values per row. After [`ColdWriter`] has finished the
    /// file, [`Store::replace_files`] adds it to the manifest.
    pub fn begin_cold(&self, tag: Tag, columns: usize) -> Result<ColdWriter> {
        ColdWriter::new(self.begin_pages(tag)?, columns)
    }

    /// Opens a cold file. The manifest need not list the file yet.
    pub fn open_cold(&self, entry: &FileEntry) -> Result<ColdFile> {
        let (pages, note) = self.open_pages(entry)?;
        ColdFile::new(pages, &note)
    }

    /// Begins a page file. After [`PageWriter`] has finished the file, [`Store::replace_files`]
    /// adds it to the manifest.
    pub fn begin_pages(&self, tag: Tag) -> Result<PageWriter> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        PageWriter::create(self.disk.clone(), self.lineage, (number, 1), tag)
    }

    /// Opens a page file. The manifest need not list the file yet. Also returns its note.
    pub fn open_pages(&self, entry: &FileEntry) -> Result<(PageFile, Vec<u8>)> {
        PageFile::open(&*self.disk, entry, self.lineage)
    }

    /// Begins a verification of a cold file in the manifest.
    pub fn scrub(&self, entry: &FileEntry) -> Result<Scrub> {
        Scrub::begin(&*self.disk, entry, self.lineage)
    }

    /// Returns the manifest's cold files, of rows and of pages.
    pub fn cold_files(&self) -> Vec<FileEntry> {
        self.manifest().files.iter().filter(|f| f.role == Role::Cold).cloned().collect()
    }

    /// Allocates a snapshot number and protects the snapshot's files from removal.
    pub(crate) fn number_snapshot(&self) -> u64 {
        let mut building = self.building.lock();
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        building.push(number);
        number
    }

    pub(crate) fn end_snapshot(&self, number: u64) {
        self.building.lock().retain(|&n| n != number);
    }

    /// Checks that replay can begin at this position.
    ///
    /// A failed sync may have voided a position that was written but not durable. A manifest must
    /// not name such a position.
    pub(crate) fn check_replay(&self, replay: Position) -> Result<()> {
        let void = || {
            Error::Refused(format!("the log no longer contains {replay}. Start the snapshot again"))
        };
        let path = match find_path(&*self.disk, self.lineage, replay, false) {
            Ok(path) => path,
            Err(Error::Corrupt { .. }) => return Err(void()),
            Err(error) => return Err(error),
        };
        let ends_before = path.segments.get(1).is_some_and(|next| next.base < replay.offset);
        if ends_before { Err(void()) } else { Ok(()) }
    }

    pub(crate) fn publish_snapshot(
        &self,
        replay: Position,
        durable: Position,
        fresh: Vec<FileEntry>,
    ) -> Result<()> {
        self.publish(|manifest| {
            manifest.files.retain(|f| f.role != Role::Snapshot);
            manifest.files.extend(fresh);
            if replay.offset >= manifest.replay.offset {
                manifest.replay = replay;
            }
            manifest.durable = manifest.durable.max(durable.offset);
        })
    }

    /// Atomically adds files to the manifest and removes other files from it.
    ///
    /// The new files must be complete and synced under their final names. The caller may delete the
    /// removed files after this call, once no reader has them open. `durable` is an offset up to
    /// which the log is durable, at least as far as the new files' contents. A later startup
    /// rejects a log that ends before `durable`. A `durable` of 0 leaves the recorded offset
    /// unchanged.
    pub fn replace_files(
        &self,
        add: Vec<FileEntry>,
        remove: &[String],
        durable: u64,
    ) -> Result<()> {
        self.disk.sync_dir().map_err(|e| Error::io(self.disk.path(""), "syncing the folder", e))?;
        self.publish(|manifest| {
            manifest.files.retain(|f| !remove.contains(&f.name));
            manifest.files.extend(add);
            manifest.durable = manifest.durable.max(durable);
        })
    }

    /// Deletes files that the manifest no longer lists, each file after its last reader has
    /// finished. Pinned files remain until a later [`Store::trim`].
    pub fn retire<'f>(&self, files: impl IntoIterator<Item = &'f PageFile>) {
        let unpinned = files.into_iter().filter(|file| !self.is_pinned(&file.entry().name));
        unpinned.for_each(|file| file.retire(self.disk.clone()));
    }

    /// Deletes complete files that were never added to the manifest.
    ///
    /// The deletion is best effort. [`Store::trim`] and the next startup delete remaining files.
    pub fn discard(&self, files: &[FileEntry]) {
        let manifest = self.manifest.lock();
        if self.unconfirmed_manifests.load(Ordering::Relaxed) {
            return;
        }
        for file in files.iter().filter(|file| manifest.file(&file.name).is_none()) {
            let _ = self.disk.remove(&file.name);
        }
    }

    fn publish(&self, change: impl FnOnce(&mut Manifest)) -> Result<()> {
        let mut current = self.manifest.lock();
        let mut next = current.clone();
        change(&mut next);
        next.number = self.next_number.fetch_add(1, Ordering::Relaxed);
        next.files.sort();
        if let Some(pair) = next.files.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(Error::Refused(format!("two files are named {}", pair[0].name)));
        }
        self.unconfirmed_manifests.store(true, Ordering::Relaxed);
        next.write(&*self.disk)?;
        self.unconfirmed_manifests.store(false, Ordering::Relaxed);
        *current = next;
        Ok(())
    }

    /// Deletes unnamed data files and unneeded segments.
    ///
    /// May run concurrently with a snapshot. Must not run while a thread has a written and
    /// unpublished cold file.
    pub fn trim(&self) -> Result<()> {
        // Read the unfinished snapshots and the manifest under both locks. A snapshot that is being
        // published is then either unfinished or in the manifest. A snapshot that begins later has
        // a higher number.
        let (building, manifest) = {
            let building = self.building.lock();
            let manifest = self.manifest.lock();
            if self.unconfirmed_manifests.load(Ordering::Relaxed) {
                return Ok(());
            }
            (building.clone(), manifest.clone())
        };
        let names = self.disk.list().map_err(|e| Error::io(self.disk.path(""), "listing", e))?;
        for name in &names {
            let old = parse_snapshot_name(name).or_else(|| parse_cold_name(name)).is_some_and(
                |(number, _)| number <= manifest.number && !building.contains(&number),
            );
            if old && manifest.file(name).is_none() && !self.is_pinned(name) {
                self.remove(name)?;
            }
        }
        self.trim_log(self.needed_from().segment.min(self.log_from.load(Ordering::Relaxed)))
    }

    /// Deletes the oldest segment unless startup or a pin needs it. Returns the segment's number
    /// and its size in bytes.
    ///
    /// The caller uses this to free space for new writes. Disconnected replicas may then need a
    /// full sync.
    pub fn give_up_oldest_segment(&self) -> Result<Option<(u64, u64)>> {
        let replay = self.needed_from();
        let numbers = segment_numbers(&*self.disk)?;
        let Some(&oldest) = numbers.first().filter(|&&oldest| oldest < replay.segment) else {
            return Ok(None);
        };
        let bytes = self.size_of(oldest).unwrap_or(0);
        self.remove(&segment_name(oldest))?;
        Ok(Some((oldest, bytes)))
    }

    /// Returns the earliest replay position that the manifest or a pin needs.
    fn needed_from(&self) -> Position {
        let replay = self.manifest.lock().replay;
        let pins: Vec<Arc<Pin>> = self.pins.lock().iter().filter_map(Weak::upgrade).collect();
        let needed = pins.iter().map(|pin| pin.manifest.replay).chain([replay]);
        needed.min_by_key(|at| at.segment).unwrap_or(replay)
    }

    /// Deletes the oldest segments before `needed` until the remaining segments fit in
    /// `keep_log_bytes`.
    fn trim_log(&self, needed: u64) -> Result<()> {
        let numbers = segment_numbers(&*self.disk)?;
        let mut kept = 0u64;
        for &n in numbers.iter().rev().filter(|&&n| n < needed) {
            kept = kept.saturating_add(self.size_of(n).unwrap_or(0));
            if kept > self.options.keep_log_bytes {
                // Delete the oldest segments first, so that the remaining log never has a gap.
                for &old in numbers.iter().filter(|&&old| old <= n) {
                    self.remove(&segment_name(old))?;
                }
                break;
            }
        }
        Ok(())
    }

    /// Deletes unneeded files of an earlier process.
    fn sweep(&self) -> Result<()> {
        let names = self.disk.list().map_err(|e| Error::io(self.disk.path(""), "listing", e))?;
        for name in names.iter().filter(|n| n.ends_with(TEMPORARY) && is_ours(n)) {
            self.remove(name)?;
        }
        // These files belong to an uncommitted snapshot or spill, or were replaced by a merge.
        // Delete these files, because their numbers will be reused.
        let manifest = self.manifest().clone();
        for name in names
            .iter()
            .filter(|n| parse_snapshot_name(n).is_some() || parse_cold_name(n).is_some())
        {
            if manifest.file(name).is_none() {
                self.remove(name)?;
            }
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        match self.disk.remove(name) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(self.disk.path(name), "removing", e))
            }
            _ => Ok(()),
        }
    }

    /// Returns the segment number of the oldest segment on disk.
    pub fn oldest_segment(&self) -> Result<Option<u64>> {
        Ok(segment_numbers(&*self.disk)?.first().copied())
    }

    /// Follows the log back from `limit` to the first segment of the lineage. Returns `None` if
    /// that segment is missing.
    ///
    /// The oldest file may be a different segment, because an interrupted creation of the first
    /// segment leaves a file that no segment continues.
    pub fn first_segment(&self, limit: Position) -> Result<Option<SegmentHead>> {
        let oldest = segments_back(&*self.disk, limit.segment, usize::MAX)?.pop();
        Ok(oldest.filter(|head| head.previous == 0))
    }

    /// Returns the existing segments of the log up to `limit`, oldest first.
    ///
    /// `known` is an earlier result of this call. The segments in `known`, except for the last, are
    /// not read again.
    pub fn path_to(&self, limit: Position, known: &[SegmentHead]) -> Result<Vec<SegmentHead>> {
        let numbers = segment_numbers(&*self.disk)?;
        let known = &known[..known.len().saturating_sub(1)];
        let (mut path, mut wanted) = (Vec::new(), limit.segment);
        while numbers.binary_search(&wanted).is_ok() {
            let head = match known.binary_search_by_key(&wanted, |head| head.segment) {
                Ok(at) => known[at],
                Err(_) => match read_segment_head(&*self.disk, wanted)? {
                    Ok(head) => head,
                    Err(_) => break,
                },
            };
            path.push(head);
            wanted = head.previous;
        }
        path.reverse();
        Ok(path)
    }

    /// Returns the path of a file in the folder, for messages.
    pub fn path(&self, name: &str) -> PathBuf {
        self.disk.path(name)
    }

    /// Returns the header of a segment if it exists and is valid.
    pub fn segment_head(&self, segment: u64) -> Result<Option<SegmentHead>> {
        Ok(read_segment_head(&*self.disk, segment)?.ok())
    }
}
