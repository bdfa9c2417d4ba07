//! The data folder: opened by one process, loaded, and then kept by a [`Log`] and a manifest.
//!
//! ```text
//!   Store::open      lock, manifest (or a new lineage), sweep what no manifest names
//!     .load          snapshot files, on several threads
//!     .replay        the log behind them; gives the writing end
//!   running: Log (one thread), snapshots (another): begin_snapshot .. commit -> new manifest
//!            -> old files and segments go
//!   stop: Committer::stop, then .note_durable of the log that run() gives back
//! ```
//!
//! | file | made | goes |
//! |---|---|---|
//! | `tidemark.lock` | at the first start; holds the flock | never |
//! | `tidemark.manifest` | at the first start; replaced by each snapshot | never |
//! | `log-*.tlog` | by the log, one after the other | replay begins behind it, `keep_log_bytes` |
//! | `snap-*.tsnap` | by a snapshot | when a later manifest does not name it |
//! | `cold-*.tcold` | by a spill or a merge | when no manifest names it, and no reader has it |
//! | `*.tmp` | by all of them | renamed, or swept at the next start |

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use crate::batch::{BatchHead, Lineage};
use crate::cold::{ColdFile, ColdWriter, PageFile, PageWriter, Scrub, parse_cold_name};
use crate::disk::{Disk, TEMPORARY};
use crate::error::{Error, Result};
use crate::log::{Log, LogOptions, Position, Resume};
use crate::manifest::{BACKUP, FileEntry, MANIFEST, Manifest, Role, Tag, is_ours};
use crate::record::{Record, Records};
use crate::replay::{
    ApplyBatch, End, Reader, find_path, read_segment_head, replay, segment_numbers, segments_back,
};
use crate::replica_log::FollowLog;
use crate::segment::{SegmentHead, segment_name};
use crate::snapshot::{SnapshotReader, parse_snapshot_name};
use crate::staging;

/// How a data folder is kept.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// The log's.
    pub log: LogOptions,
    /// Segments that a snapshot has made unnecessary are kept up to this many bytes in all, so that
    /// replicas that were away can go on where they stopped. Default 2 GiB.
    pub keep_log_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions { log: LogOptions::default(), keep_log_bytes: 2 << 30 }
    }
}

/// How far a start has come; for a progress line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Bytes read.
    pub bytes: u64,
    /// Bytes to read, as far as is known.
    pub of_bytes: u64,
}

/// A manifest of which everything is kept: for a replica, or a backup. See [`Store::pin`].
#[derive(Debug)]
pub struct Pin {
    /// As it was.
    pub manifest: Manifest,
}

/// An open data folder.
#[derive(Debug)]
pub struct Store {
    disk: Arc<dyn Disk>,
    options: StoreOptions,
    lineage: Lineage,
    manifest: Mutex<Manifest>,
    /// The number of the next manifest, or of the next snapshot's files; never used twice, even if
    /// writing one failed half way.
    next_number: AtomicU64,
    /// Numbers of snapshots under construction: their files are not swept.
    building: Mutex<Vec<u64>>,
    /// What replicas fetch now.
    pins: Mutex<Vec<Weak<Pin>>>,
    /// See [`Store::keep_files`].
    kept: Mutex<Option<Arc<Pin>>>,
    /// See [`Store::keep_log_from`].
    log_from: AtomicU64,
    /// Writing a manifest failed, and perhaps only after its rename: what either manifest names is
    /// kept until one was written well.
    in_doubt: AtomicBool,
    is_new: bool,
    lock: Mutex<Option<Lock>>,
}

struct Lock(#[allow(dead_code)] Box<dyn Send + Sync>); // held, never looked at

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lock")
    }
}

impl Store {
    /// Takes the folder. An empty one becomes a new data set of its own lineage.
    pub fn open(disk: Arc<dyn Disk>, options: StoreOptions) -> Result<Store> {
        let lineage = || Lineage::random().map_err(|e| Error::io("/dev/urandom", "reading", e));
        Store::open_with(disk, options, lineage)
    }

    /// As [`Store::open`], with the lineage that a new data set gets: tests need it to be the same
    /// each time.
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
                "{} is a backup, which must stay as it is: make a data folder of it with \
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
                    let what = format!("missing, but {name} is there: this folder held data");
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
            in_doubt: AtomicBool::new(false),
            is_new,
            lock: Mutex::new(Some(lock)),
        };
        // The name of the manifest we read may not be durable yet, if the last process died right
        // after the rename.
        store
            .disk
            .sync_dir()
            .map_err(|e| Error::io(store.disk.path(""), "syncing the folder", e))?;
        store.sweep()?;
        Ok(store)
    }

    /// Lets another process have the folder. To be called when nothing is written any more.
    pub fn unlock(&self) {
        self.lock.lock().take();
    }

    /// Was the folder empty?
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// The history that this data set belongs to.
    pub fn lineage(&self) -> Lineage {
        self.lineage
    }

    /// The disk.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// The manifest as it is now.
    pub fn manifest(&self) -> MutexGuard<'_, Manifest> {
        self.manifest.lock()
    }

    /// Reads all snapshot files, on `threads` threads. `apply` gets each chunk, checked: those of
    /// one file in order, on one thread; files begin in the order of their spaces, kinds and lowest
    /// ids. Its error names what is wrong with the bytes.
    pub fn load(
        &self,
        threads: usize,
        apply: impl Fn(&FileEntry, &[u8]) -> std::result::Result<(), String> + Sync,
        progress: impl Fn(Progress) + Sync,
    ) -> Result<u64> {
        let mut files: Vec<FileEntry> =
            self.manifest().files.iter().filter(|f| f.role == Role::Snapshot).cloned().collect();
        // In the order of their ids, as they once arrived: an engine's tables then roll as they
        // did.
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

    /// Replays the log behind the snapshot and opens it for writing. `apply` gets each record; what
    /// it refuses is damage.
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
                Err("a batch holds another number of records than it says".to_string())
            }
        };
        self.replay_batches(&mut each, progress)
    }

    /// As [`Store::replay`], batch by batch.
    pub fn replay_batches(
        &self,
        apply: &mut ApplyBatch<'_>,
        progress: impl FnMut(Progress),
    ) -> Result<(Log, End)> {
        let (found, end) = self.read_log(false, apply, progress)?;
        let log = Log::resume(self.disk.clone(), self.options.log, found)?;
        match self.note_durable(&log) {
            Ok(()) | Err(Error::Full { .. }) => Ok((log, end)),
            Err(error) => Err(error),
        }
    }

    /// As [`Store::replay_batches`], for a replica: the log goes on as its master's does.
    pub fn replay_following(
        &self,
        apply: &mut ApplyBatch<'_>,
        progress: impl FnMut(Progress),
    ) -> Result<(FollowLog, End)> {
        let (_, end) = self.read_log(true, apply, progress)?;
        Ok((FollowLog::open(self.disk.clone(), self.lineage, end.position)?, end))
    }

    fn read_log(
        &self,
        following: bool,
        apply: &mut ApplyBatch<'_>,
        mut progress: impl FnMut(Progress),
    ) -> Result<(Resume, End)> {
        let manifest = self.manifest().clone();
        let path = find_path(&*self.disk, self.lineage, manifest.replay, true)?;
        let sizes: u64 = path.segments.iter().map(|s| self.size_of(s.segment).unwrap_or(0)).sum();
        let of_bytes = sizes.saturating_sub(manifest.replay.byte);
        let start = manifest.replay.offset;
        let mut report = |at: Position| progress(Progress { bytes: at.offset - start, of_bytes });
        let reader = if following { Reader::Follower } else { Reader::Owner };
        let end = replay(&*self.disk, &path, manifest.replay, reader, apply, &mut report)?;
        if end.position.offset < manifest.durable {
            let name = self.disk.path(&segment_name(end.position.segment));
            let what = format!(
                "the log ends here, at offset {}, but it was durable up to {}: something \
                 acknowledged is missing",
                end.position.offset, manifest.durable
            );
            return Err(Error::corrupt(name, end.position.byte, what));
        }
        let last = path.segments.last().copied();
        let term = last.map_or(manifest.term, |s| s.term);
        let void = end.torn_bytes > 0 || !path.void.is_empty();
        let found = Resume {
            lineage: self.lineage,
            term,
            end: end.position,
            next_segment: path.next_segment,
            is_first: last.is_none(),
            void,
        };
        Ok((found, end))
    }

    /// Notes in the manifest how far the log is durable, so that a log that lost its end is
    /// recognised. Done at each start; to be done when the log is closed, too.
    pub fn note_durable(&self, log: &Log) -> Result<()> {
        self.note(log.durable(), log.term())
    }

    /// As [`Store::note_durable`], for a log that is a replica's: up to where it is durable, and
    /// its term.
    pub fn note(&self, durable: Position, term: u64) -> Result<()> {
        if self.manifest().durable >= durable.offset && self.manifest().term >= term {
            return Ok(());
        }
        self.publish(|manifest| {
            manifest.durable = manifest.durable.max(durable.offset);
            manifest.term = manifest.term.max(term);
        })
    }

    /// How the log is cut.
    pub fn log_options(&self) -> LogOptions {
        self.options.log
    }

    /// Keeps everything that the manifest names now, and the log behind it, until the pin is
    /// dropped: a replica fetches it.
    pub fn pin(&self) -> Arc<Pin> {
        let mut pins = self.pins.lock();
        pins.retain(|pin| pin.strong_count() > 0);
        let pin = Arc::new(Pin { manifest: self.manifest().clone() });
        pins.push(Arc::downgrade(&pin));
        pin
    }

    /// Keeps what the manifest names now until this is called with false, or the store is closed: a
    /// data set that is on its way in shares files with this one.
    pub fn keep_files(&self, keep: bool) {
        let pin = keep.then(|| self.pin());
        *self.kept.lock() = pin;
    }

    /// Keeps the log from this segment on, which an archive has not yet. While the disk is full it
    /// gives way all the same.
    pub fn keep_log_from(&self, segment: u64) {
        self.log_from.store(segment, Ordering::Relaxed);
    }

    /// Whether a replica still fetches the file: then it is not to be removed, though no manifest
    /// names it any more.
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

    /// Begins a cold file for rows of `columns` values each. Rows are pushed, the file is finished,
    /// and [`Store::replace_files`] names it.
    pub fn begin_cold(&self, tag: Tag, columns: usize) -> Result<ColdWriter> {
        ColdWriter::new(self.begin_pages(tag)?, columns)
    }

    /// Opens a cold file that the manifest names, or will name.
    pub fn open_cold(&self, entry: &FileEntry) -> Result<ColdFile> {
        let (pages, note) = self.open_pages(entry)?;
        ColdFile::new(pages, &note)
    }

    /// Begins a page file. Pages are put, the file is finished, and [`Store::replace_files`] names
    /// it.
    pub fn begin_pages(&self, tag: Tag) -> Result<PageWriter> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        PageWriter::create(self.disk.clone(), self.lineage, (number, 1), tag)
    }

    /// Opens a page file that the manifest names, or will name. Gives its note, too.
    pub fn open_pages(&self, entry: &FileEntry) -> Result<(PageFile, Vec<u8>)> {
        PageFile::open(&*self.disk, entry, self.lineage)
    }

    /// Begins to read a cold file through that the manifest names.
    pub fn scrub(&self, entry: &FileEntry) -> Result<Scrub> {
        Scrub::begin(&*self.disk, entry, self.lineage)
    }

    /// The cold files that the manifest names, of rows and of pages.
    pub fn cold_files(&self) -> Vec<FileEntry> {
        self.manifest().files.iter().filter(|f| f.role == Role::Cold).cloned().collect()
    }

    /// The number of a snapshot that begins: its files stay though no manifest names them.
    pub(crate) fn number_snapshot(&self) -> u64 {
        let mut building = self.building.lock();
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        building.push(number);
        number
    }

    pub(crate) fn end_snapshot(&self, number: u64) {
        self.building.lock().retain(|&n| n != number);
    }

    /// Can replay begin there? A place that was written but not durable may have become void by a
    /// failed sync; a manifest must not name it.
    pub(crate) fn check_replay(&self, replay: Position) -> Result<()> {
        let void = || {
            Error::Refused(format!(
                "the log does not pass through {replay} any more; begin the snapshot again"
            ))
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

    /// Adds files to the manifest and takes others out of it, in one step. The files to add are
    /// complete, synced and have their names; those taken out may be removed by the caller once
    /// this has returned, and no reader has them open. `durable`: an offset up to which the log is
    /// durable. The files show nothing that was logged behind it, so a log that ends before it is
    /// refused from now on; 0 leaves that as it was.
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

    /// Removes files that no manifest names any more, each with its last reader. A later snapshot
    /// removes those that a replica still fetches.
    pub fn retire<'f>(&self, files: impl IntoIterator<Item = &'f PageFile>) {
        let unpinned = files.into_iter().filter(|file| !self.is_pinned(&file.entry().name));
        unpinned.for_each(|file| file.retire(self.disk.clone()));
    }

    /// Removes files that were to be [added](Store::replace_files) and will not be: they have their
    /// names, and no manifest names them. What cannot be removed now is only clutter:
    /// [`Store::trim`] and the next start look for it.
    pub fn discard(&self, files: &[FileEntry]) {
        let manifest = self.manifest.lock();
        if self.in_doubt.load(Ordering::Relaxed) {
            return;
        }
        for file in files.iter().filter(|file| manifest.file(&file.name).is_none()) {
            let _ = self.disk.remove(&file.name);
        }
    }

    /// Changes the manifest under its lock, durably.
    fn publish(&self, change: impl FnOnce(&mut Manifest)) -> Result<()> {
        let mut current = self.manifest.lock();
        let mut next = current.clone();
        change(&mut next);
        next.number = self.next_number.fetch_add(1, Ordering::Relaxed);
        next.files.sort();
        if let Some(pair) = next.files.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(Error::Refused(format!("two files named {}", pair[0].name)));
        }
        self.in_doubt.store(true, Ordering::Relaxed);
        next.write(&*self.disk)?;
        self.in_doubt.store(false, Ordering::Relaxed);
        *current = next;
        Ok(())
    }

    /// Removes data files that the manifest does not name and segments that are not needed. Safe
    /// beside a running snapshot, but not beside a thread that has written a cold file that the
    /// manifest does not name yet.
    pub fn trim(&self) -> Result<()> {
        // Both at one moment: a snapshot that is published meanwhile is in one of the two, and one
        // that begins later has a higher number.
        let (building, manifest) = {
            let building = self.building.lock();
            let manifest = self.manifest.lock();
            if self.in_doubt.load(Ordering::Relaxed) {
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

    /// Removes the oldest segment of the log, if no start needs it and no replica fetches it: what
    /// is kept for replicas that are away gives way to what is written now. Gives its number, and
    /// its bytes.
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

    /// Where the log begins that a start needs, or a replica that fetches files.
    fn needed_from(&self) -> Position {
        let replay = self.manifest.lock().replay;
        let pins: Vec<Arc<Pin>> = self.pins.lock().iter().filter_map(Weak::upgrade).collect();
        let needed = pins.iter().map(|pin| pin.manifest.replay).chain([replay]);
        needed.min_by_key(|at| at.segment).unwrap_or(replay)
    }

    /// Removes the oldest segments before the one that is needed, until those kept fit
    /// `keep_log_bytes`.
    fn trim_log(&self, needed: u64) -> Result<()> {
        let numbers = segment_numbers(&*self.disk)?;
        let mut kept = 0u64;
        for &n in numbers.iter().rev().filter(|&&n| n < needed) {
            kept = kept.saturating_add(self.size_of(n).unwrap_or(0));
            if kept > self.options.keep_log_bytes {
                // All older ones go too, oldest first, so that what is left has no gap at any
                // moment.
                for &old in numbers.iter().filter(|&&old| old <= n) {
                    self.remove(&segment_name(old))?;
                }
                break;
            }
        }
        Ok(())
    }

    /// At start: what an earlier process did not finish.
    fn sweep(&self) -> Result<()> {
        let names = self.disk.list().map_err(|e| Error::io(self.disk.path(""), "listing", e))?;
        for name in names.iter().filter(|n| n.ends_with(TEMPORARY) && is_ours(n)) {
            self.remove(name)?;
        }
        // Published but named by no manifest: of a snapshot or a spill that was never committed, or
        // replaced by a merge. Their numbers will be used again.
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

    /// The oldest place from which the log can be read: where an absent replica may still resume.
    pub fn oldest_segment(&self) -> Result<Option<u64>> {
        Ok(segment_numbers(&*self.disk)?.first().copied())
    }

    /// The segment with which the log up to `limit` begins; `None`: it is not there any more, or
    /// not yet. It is not always the oldest file: an attempt to begin the log that was cut short
    /// may have left one, which nothing continues.
    pub fn first_segment(&self, limit: Position) -> Result<Option<SegmentHead>> {
        let oldest = segments_back(&*self.disk, limit.segment, usize::MAX)?.pop();
        Ok(oldest.filter(|head| head.previous == 0))
    }

    /// The segments of the log up to `limit`, oldest first, as far back as they are there. `known`:
    /// what this gave before; of these, all that a successor continues are not read again.
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

    /// Where a file of the folder lies, for messages.
    pub fn path(&self, name: &str) -> PathBuf {
        self.disk.path(name)
    }

    /// Header of a segment, if it is there and sound.
    pub fn segment_head(&self, segment: u64) -> Result<Option<SegmentHead>> {
        Ok(read_segment_head(&*self.disk, segment)?.ok())
    }
}
