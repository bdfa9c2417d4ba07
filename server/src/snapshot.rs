//! Snapshots: the engines' state as files, written while everything goes on, so that the log need not be kept for ever.
//!
//! One file per table; a table that has not changed since the last snapshot is not written again. The walk takes no lock that a
//! reader or a writer could wait for: what it misses because it changes meanwhile is in the log behind the position that was
//! noted before it began (`store/src/snapshot.rs` has the argument). Extra memory is one chunk.
//!
//! | file's kind | per | holds |
//! |---|---|---|
//! | catalogue | folder | the catalogue |
//! | rows | table of a counter space | rows, in chunks that are sorted by id |
//! | table | table of an existence space | its filters and revoked pairs, in the phantom engine's format |
//! | loose | existence space | ids at which a counter of 0 proves nothing of a flag: `engines/loose.rs` |
//! | head | space | its frontier, of an existence space also the pairs of ids far ahead, in the engine's format |

use crate::catalogue::{Catalogue, Mismatch};
use crate::config::Config;
use crate::engines::{CounterSpace, Engines, existence_options};
use crate::node::{Host, Node, unix_us};
use crate::records::{RecordKind, RowsWriter, read_rows};
use counter::LoadRange;
use parking_lot::{Condvar, Mutex};
use phantom::{StoredTable, TableDecoder};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use store::{FileEntry, FileWriter, Progress, Role, SnapshotReader, Store, Tag};
use tokio::sync::watch;

/// Rows that are sorted and written together.
const CHUNK_ROWS: usize = 16 << 10;
/// Bytes of a filter that are written together.
const CHUNK_BYTES: usize = 256 << 10;
/// How often it is looked whether a snapshot is due.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Which parts (id ranges of spaces) have changed since they were last written. The commit thread says what changes.
#[derive(Default)]
pub(crate) struct Parts {
    /// Per space, by lowest id: highest id, the stamp of the file that holds the part, and whether it changed since.
    spaces: Mutex<HashMap<u32, BTreeMap<u64, Part>>>,
    /// Spaces that had pairs aside when they were last written.
    aside: Mutex<HashSet<u32>>,
    changes: AtomicU64,
}

#[derive(Clone, Copy)]
struct Part {
    high: u64,
    stamp: u64,
    changed: bool,
}

impl Parts {
    /// Something about `id` has changed.
    pub(crate) fn touch(&self, space: u32, id: u64) {
        self.touch_all([(space, id)].into_iter());
    }

    /// The same for many, under one lock.
    pub(crate) fn touch_all(&self, ids: impl Iterator<Item = (u32, u64)>) {
        let mut spaces = self.spaces.lock();
        let mut changes = 0;
        for (space, id) in ids {
            changes += 1;
            if let Some(parts) = spaces.get_mut(&space)
                && let Some((_, part)) = parts.range_mut(..=id).next_back()
            {
                part.changed = true;
            }
        }
        self.changes.fetch_add(changes, Relaxed);
    }

    /// Takes over what a manifest names.
    fn adopt(&self, files: &[FileEntry]) {
        // What the last process had aside is not known: then it may have moved.
        self.aside.lock().extend(files.iter().filter(|f| f.tag.kind == RecordKind::Head as u32).map(|f| f.tag.space));
        let mut spaces = self.spaces.lock();
        for tag in files.iter().filter(|f| f.role == Role::Snapshot).map(|f| f.tag) {
            if !matches!(RecordKind::from_number(tag.kind as u8), Some(RecordKind::Rows | RecordKind::Table)) {
                continue;
            }
            let part = Part { high: tag.high, stamp: tag.stamp, changed: false };
            spaces.entry(tag.space).or_default().insert(tag.low, part);
        }
    }

    /// These tables are the parts of the space from now on. Gives for each the stamp of the file that holds it, if it has one and
    /// has not changed since; the others are to be written. That they have changed is forgotten in the same moment, under the same
    /// lock: what changes from here on counts for the next snapshot.
    fn begin(&self, space: u32, tables: &[(u64, u64)], stamp: u64) -> Vec<Option<u64>> {
        let mut spaces = self.spaces.lock();
        let before = spaces.remove(&space).unwrap_or_default();
        let kept = |&(low, high): &(u64, u64)| {
            before.get(&low).filter(|part| part.high == high && !part.changed).map(|part| part.stamp)
        };
        let kept: Vec<Option<u64>> = tables.iter().map(kept).collect();
        let now = tables
            .iter()
            .zip(&kept)
            .map(|(&(low, high), kept)| (low, Part { high, stamp: kept.unwrap_or(stamp), changed: false }));
        spaces.insert(space, now.collect());
        kept
    }

    /// The part has a new file after all.
    fn rewritten(&self, space: u32, low: u64, stamp: u64) {
        if let Some(part) = self.spaces.lock().get_mut(&space).and_then(|parts| parts.get_mut(&low)) {
            part.stamp = stamp;
        }
    }

    /// Whether the space had pairs aside the last time; `now`: whether it has.
    fn had_aside(&self, space: u32, now: bool) -> bool {
        let mut aside = self.aside.lock();
        if now { !aside.insert(space) } else { aside.remove(&space) }
    }

    /// The parts of the space that lie in a range must be written again.
    pub(crate) fn forget_range(&self, space: u32, low: u64, last: u64) {
        if let Some(parts) = self.spaces.lock().get_mut(&space) {
            parts.retain(|&from, part| from > last || part.high < low);
        }
    }

    /// All parts of the space must be written again.
    fn forget_space(&self, space: u32) {
        self.spaces.lock().remove(&space);
    }

    /// The snapshot failed: nothing of it can be relied on.
    fn forget(&self) {
        self.spaces.lock().clear();
    }
}

/// How the last snapshot went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Saved {
    /// Snapshots that have ended, well or not.
    pub(crate) ended: u64,
    pub(crate) running: bool,
    /// Unix time in seconds of the last one that ended well, or of the start.
    pub(crate) last_s: u64,
    pub(crate) took: Duration,
    pub(crate) bytes: u64,
    pub(crate) error: Option<Arc<str>>,
}

/// What the snapshot thread and those who ask it for something share.
pub(crate) struct Snapshots {
    pub(crate) saved: watch::Sender<Saved>,
    wanted: Mutex<bool>,
    nudge: Condvar,
    /// Held by whoever writes the folder's data files: a snapshot, a spill.
    pub(crate) alone: Mutex<()>,
    /// Changes that the last snapshot has seen.
    changes: AtomicU64,
}

impl Default for Snapshots {
    fn default() -> Self {
        let saved = Saved { last_s: unix_us() / 1_000_000, ..Saved::default() };
        Snapshots {
            saved: watch::Sender::new(saved),
            wanted: Mutex::new(false),
            nudge: Condvar::new(),
            alone: Mutex::new(()),
            changes: AtomicU64::new(0),
        }
    }
}

impl Snapshots {
    /// Asks for a snapshot, unless one is running. Gives how many had ended before it.
    pub(crate) fn begin(&self) -> Option<u64> {
        let mut before = None;
        self.saved.send_if_modified(|s| {
            if !s.running {
                // From now on it counts as running, so that nobody else begins one.
                s.running = true;
                before = Some(s.ended);
            }
            before.is_some()
        });
        if before.is_some() {
            *self.wanted.lock() = true;
            self.nudge.notify_one();
        }
        before
    }

    /// Waits for the end of a snapshot that begins after this call.
    pub(crate) async fn save(&self) -> Result<(), String> {
        let mut saved = self.saved.subscribe();
        let before = loop {
            saved.borrow_and_update();
            if let Some(before) = self.begin() {
                break before;
            }
            if saved.changed().await.is_err() {
                return Err("the server is ending".to_owned());
            }
        };
        match saved.wait_for(|s| s.ended > before).await {
            Ok(s) => s.error.as_ref().map_or(Ok(()), |e| Err(e.to_string())),
            Err(_) => Err("the server is ending".to_owned()),
        }
    }

    /// Changed rows and pairs since the last snapshot, about.
    pub(crate) fn changes(&self, parts: &Parts) -> u64 {
        parts.changes.load(Relaxed).saturating_sub(self.changes.load(Relaxed))
    }
}

/// The snapshot thread: waits until somebody asks, or one is due.
pub(crate) fn run(host: &Host) {
    let mut last = Instant::now();
    while !host.stop.is_stopped() {
        let node = &host.node();
        let snapshots = &node.snapshots;
        if !node.is_loaded() {
            std::thread::sleep(LOOK_EVERY);
            continue;
        }
        let asked = {
            let mut wanted = snapshots.wanted.lock();
            if !*wanted {
                snapshots.nudge.wait_for(&mut wanted, LOOK_EVERY);
            }
            std::mem::take(&mut *wanted)
        };
        if !asked {
            let config = node.config();
            let settings = &config.durability;
            let changed = snapshots.changes(&node.durability.parts) > 0;
            let last_offset = node.store.manifest().replay.offset;
            let log_bytes = node.durability.positions().1.offset.saturating_sub(last_offset);
            let by_size = settings.snapshot_log_bytes > 0 && log_bytes >= settings.snapshot_log_bytes;
            let by_time = settings.snapshot_every_s > 0 && last.elapsed().as_secs() >= settings.snapshot_every_s;
            if !(changed && (by_size || by_time) && snapshots.begin().is_some()) {
                continue;
            }
            *snapshots.wanted.lock() = false;
        }
        let started = Instant::now();
        let result = write(node);
        last = Instant::now();
        if let Err(error) = &result {
            tracing::error!("the snapshot failed, the log is kept: {error}");
            node.durability.parts.forget();
        }
        snapshots.saved.send_modify(|s| {
            s.ended += 1;
            s.running = false;
            s.took = started.elapsed();
            match result {
                Ok(bytes) => {
                    tracing::info!("snapshot: {bytes} bytes written in {:.1} s", s.took.as_secs_f64());
                    s.error = None;
                    s.bytes = bytes;
                    s.last_s = unix_us() / 1_000_000;
                }
                Err(error) => s.error = Some(error.into()),
            }
        });
    }
}

/// One snapshot. Gives the bytes that were written.
fn write(node: &Node) -> Result<u64, String> {
    let _alone = node.snapshots.alone.lock();
    let (engines, store) = (&*node.engines, &*node.store);
    let (durability, parts) = (&node.durability, &node.durability.parts);
    let text = |e: store::Error| format!("{e}. {}", e.advice());
    let changes = parts.changes.load(Relaxed);
    // The synced end, not the written one: after a failed sync the written one may come to nothing.
    let mut writer = store.begin_snapshot(durability.positions().1);
    let stamp = writer.replay().offset.max(1);
    let mut bytes = 0;
    let mut add = |writer: &mut store::SnapshotWriter<'_>, file: FileWriter| -> Result<(), String> {
        let entry = file.finish().map_err(text)?;
        bytes += entry.bytes;
        writer.add(entry);
        Ok(())
    };

    for space in engines.counters() {
        let tables: Vec<(u64, u64)> = space.tables().iter().map(|t| (t.low, t.last)).collect();
        let kind = RecordKind::Rows;
        for (low, high) in plan(parts, &mut writer, space.number(), kind, &tables, stamp) {
            let kind = kind as u32;
            let mut file = writer.file(Tag { space: space.number(), kind, low, high, stamp }).map_err(text)?;
            write_rows(space, low, high, &mut file).map_err(text)?;
            add(&mut writer, file)?;
        }
        // After the rows: what came in meanwhile is not ahead of the frontier then.
        let tag = Tag { space: space.number(), kind: RecordKind::Head as u32, low: 0, high: 0, stamp };
        let mut file = writer.file(tag).map_err(text)?;
        file.write(&space.encode_head(), 0).map_err(text)?;
        add(&mut writer, file)?;
    }
    for space in engines.existences() {
        // The head first: a pair that moves from it into a table meanwhile is then in both. And since such a move is no write, tables
        // count as changed if there was anything to move.
        let aside = space.aside_pairs();
        let head = space.encode_head();
        if parts.had_aside(space.number(), aside > 0) {
            parts.forget_space(space.number());
        }
        let lows: Vec<u64> = space.layout().iter().map(|l| l.low).collect();
        let highs = lows.iter().skip(1).map(|low| low - 1).chain([u64::MAX]);
        let tables: Vec<(u64, u64)> = lows.iter().copied().zip(highs).collect();
        let kind = RecordKind::Table;
        for (low, high) in plan(parts, &mut writer, space.number(), kind, &tables, stamp) {
            let kind = kind as u32;
            let mut file = writer.file(Tag { space: space.number(), kind, low, high, stamp }).map_err(text)?;
            // A table that was recycled meanwhile is not missed: its ids are below the horizon when the log is replayed.
            if write_table(space, low, &mut file).map_err(text)? {
                add(&mut writer, file)?;
            }
        }
        let tag = Tag { space: space.number(), kind: RecordKind::Head as u32, low: 0, high: 0, stamp };
        let mut file = writer.file(tag).map_err(text)?;
        file.write(&head, aside as u64).map_err(text)?;
        add(&mut writer, file)?;
        let mut file = writer.file(Tag { kind: RecordKind::Loose as u32, ..tag }).map_err(text)?;
        file.write(&space.loose().encode(None), 0).map_err(text)?;
        add(&mut writer, file)?;
    }

    // Last, as its schemas must not be older than those by which the rows were written.
    let mut file = writer.file(Tag { kind: RecordKind::Catalogue as u32, ..Tag::default() }).map_err(text)?;
    file.write(&engines.catalogue().encode(), 1).map_err(text)?;
    add(&mut writer, file)?;

    // What the walk has seen and the log has not must be in the log before anybody relies on the walk.
    durability.flush().map_err(text)?;
    writer.commit(durability.positions().1).map_err(text)?;
    node.snapshots.changes.store(changes, Relaxed);
    Ok(bytes)
}

/// Which of these tables must be written; for the others the files of the last snapshot serve again.
fn plan(
    parts: &Parts,
    writer: &mut store::SnapshotWriter<'_>,
    space: u32,
    kind: RecordKind,
    tables: &[(u64, u64)],
    stamp: u64,
) -> Vec<(u64, u64)> {
    let mut to_write = Vec::new();
    for (&(low, high), kept) in tables.iter().zip(parts.begin(space, tables, stamp)) {
        let tag = |stamp| Tag { space, kind: kind as u32, low, high, stamp };
        if kept.is_none_or(|stamp| writer.carry_over(&tag(stamp)) == 0) {
            parts.rewritten(space, low, stamp);
            to_write.push((low, high));
        }
    }
    to_write
}

fn write_rows(space: &counter::Space, low: u64, high: u64, file: &mut FileWriter) -> store::Result<()> {
    let width = space.schema().width();
    let (mut ids, mut values): (Vec<(u64, usize)>, Vec<i64>) = (Vec::new(), Vec::new());
    // Deleted rows first, as rows that came to be again under their ids follow.
    for ids in space.tombs_in(low, high).chunks(CHUNK_ROWS) {
        let mut writer = RowsWriter::new(width);
        ids.iter().for_each(|&id| writer.row(id, None));
        file.write(&writer.finish(), 0)?;
    }
    let mut outcome = Ok(());
    let mut flush = |ids: &mut Vec<(u64, usize)>, values: &mut Vec<i64>| -> store::Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        ids.sort_unstable();
        let mut writer = RowsWriter::new(width);
        for &(id, start) in ids.iter() {
            writer.row(id, Some(&values[start..start + width]));
        }
        let rows = ids.len() as u64;
        ids.clear();
        values.clear();
        file.write(&writer.finish(), rows)
    };
    space.for_each_in(low, high, |id, row| {
        if outcome.is_err() {
            return;
        }
        ids.push((id, values.len()));
        // A field that was added during the walk is 0 here, and what was written to it is in the log.
        values.extend((0..width).map(|i| row.get(i).copied().unwrap_or(0)));
        if ids.len() >= CHUNK_ROWS {
            outcome = flush(&mut ids, &mut values);
        }
    });
    outcome?;
    flush(&mut ids, &mut values)
}

fn write_table(space: &phantom::Space, low: u64, file: &mut FileWriter) -> store::Result<bool> {
    let mut chunk = Vec::with_capacity(2 * CHUNK_BYTES);
    let found = space.encode_table(low, |bytes| {
        chunk.extend_from_slice(bytes);
        if chunk.len() >= CHUNK_BYTES {
            file.write(&chunk, 0)?;
            chunk.clear();
        }
        Ok::<(), store::Error>(())
    })?;
    if found && !chunk.is_empty() {
        file.write(&chunk, 0)?;
    }
    Ok(found)
}

/// The catalogue of the snapshot that the manifest names, if there is one.
pub(crate) fn read_catalogue(store: &Store) -> store::Result<Option<Result<Catalogue, Mismatch>>> {
    let text = read_small(store, |tag| tag.kind == RecordKind::Catalogue as u32)?;
    Ok(text.map(|text| Catalogue::decode(&text)))
}

/// The content of the one small file that `is` points out, if there is one.
fn read_small(store: &Store, is: impl Fn(&Tag) -> bool) -> store::Result<Option<Vec<u8>>> {
    let file = store.manifest().files.iter().find(|f| f.role == Role::Snapshot && is(&f.tag)).cloned();
    let Some(file) = file else { return Ok(None) };
    let mut reader = SnapshotReader::open(&**store.disk(), &file.name, Some((&file, store.lineage())))?;
    let (mut text, mut chunk) = (Vec::new(), Vec::new());
    while reader.next(&mut chunk)? {
        text.extend_from_slice(&chunk);
    }
    Ok(Some(text))
}

/// Makes room for a counter space's rows, as the snapshot says how many there are.
fn loader<'a>(store: &Store, space: &'a CounterSpace) -> store::Result<counter::Loader<'a>> {
    let of_space = |tag: &Tag, kind: RecordKind| tag.space == space.number() && tag.kind == kind as u32;
    let head = read_small(store, |tag| of_space(tag, RecordKind::Head))?.unwrap_or_default();
    let files = store.manifest().files.clone();
    let files = files.iter().filter(|f| f.role == Role::Snapshot && of_space(&f.tag, RecordKind::Rows));
    let range =
        |f: &FileEntry| LoadRange { low: f.tag.low, last: f.tag.high, rows: store::row_hint(&**store.disk(), f) };
    let mut ranges: Vec<LoadRange> = files.map(range).collect();
    ranges.sort_unstable();
    let unsound = || ranges.windows(2).any(|w| w[0].last >= w[1].low) || ranges.iter().any(|r| r.low > r.last);
    let path = store.path(store::MANIFEST);
    if unsound() {
        return Err(store::Error::Corrupt { path, offset: 0, what: "files of rows that overlap".to_owned() });
    }
    // The files of ranges that were spilled since are gone.
    let files = space.cold().files();
    space.loader(&head, &filled_up(&ranges, files.lows())).map_err(|e| store::Error::Corrupt {
        path,
        offset: 0,
        what: e.to_string(),
    })
}

/// The ranges, which rise, and what lies between them, cut where a cold file begins: a table that covers several files would be merged with
/// all of them.
fn filled_up(ranges: &[LoadRange], lows: impl Iterator<Item = u64>) -> Vec<LoadRange> {
    let covered = |low: u64| ranges.iter().any(|range| range.low <= low && low <= range.last);
    let after = ranges.iter().filter_map(|range| range.last.checked_add(1));
    let begin = (!ranges.is_empty()).then_some(0);
    let mut free: Vec<u64> = begin.into_iter().chain(after).chain(lows).filter(|&low| !covered(low)).collect();
    free.sort_unstable();
    free.dedup();
    let mut all = ranges.to_vec();
    for (i, &low) in free.iter().enumerate() {
        let ends = [free.get(i + 1).copied(), ranges.iter().map(|range| range.low).find(|&next| next > low)];
        let last = ends.into_iter().flatten().min().map_or(u64::MAX, |next| next - 1);
        all.push(LoadRange { low, last, rows: 0 });
    }
    all.sort_unstable();
    all
}

/// Gives an empty space that has cold files a table for each of them, and one for what comes behind: as after a snapshot.
pub(crate) fn lay_out(engines: &Engines) -> Result<(), counter::Error> {
    for space in engines.counters().iter().filter(|space| space.rows() == 0 && space.ranges().len() == 1) {
        let files = space.cold().files();
        let end = [space.cold_end()];
        let lows: Vec<u64> = [0].into_iter().chain(files.lows()).chain(end).collect();
        if !files.all().is_empty() {
            space.loader(&[], &filled_up(&[], lows.into_iter()))?.install()?;
        }
    }
    Ok(())
}

/// Reads the snapshot into empty engines, on all cores.
pub(crate) fn load(
    store: &Store,
    config: &Config,
    engines: &mut Engines,
    parts: &Parts,
    progress: impl Fn(Progress) + Sync,
) -> store::Result<u64> {
    /// Of one existence space.
    #[derive(Default)]
    struct Restored {
        head: Vec<u8>,
        tables: Vec<StoredTable>,
    }
    let decoders: Mutex<HashMap<String, TableDecoder>> = Mutex::default();
    let restored: Mutex<HashMap<u32, Restored>> = Mutex::default();
    let catalogue = engines.catalogue();
    let options: HashMap<u32, phantom::Options> = config
        .existence
        .iter()
        .filter_map(|made| {
            let known = catalogue.existence.iter().find(|e| e.name == made.name)?;
            Some((known.number, existence_options(made, known)))
        })
        .collect();
    let loaders = engines.counters().iter().map(|space| Ok((space.number(), loader(store, space)?)));
    let loaders: HashMap<u32, counter::Loader<'_>> = loaders.collect::<store::Result<_>>()?;
    let apply = |file: &FileEntry, chunk: &[u8]| -> Result<(), String> {
        let space = file.tag.space;
        match RecordKind::from_number(u8::try_from(file.tag.kind).unwrap_or(0)) {
            Some(RecordKind::Catalogue) => Ok(()),
            Some(RecordKind::Rows) => {
                let part = loaders.get(&space).and_then(|loader| loader.part(file.tag.low));
                let missing = || format!("there is no counter space {space}");
                let (mut part, counters) =
                    (part.ok_or_else(missing)?, engines.counter_by_number(space).ok_or_else(missing)?);
                read_rows(chunk, |id, row| match row {
                    Some(row) => part.push(id, row).map_err(|e| e.to_string()),
                    None => {
                        counters.bury(id);
                        Ok(())
                    }
                })
            }
            Some(RecordKind::Table) => {
                let options = options.get(&space).ok_or_else(|| format!("there is no existence space {space}"))?;
                // A file's chunks come in order, from one thread.
                let decoder = decoders.lock().remove(&file.name);
                let mut decoder = decoder.unwrap_or_else(|| TableDecoder::new(options, u64::MAX));
                decoder.feed(chunk).map_err(|e| e.to_string())?;
                decoders.lock().insert(file.name.clone(), decoder);
                Ok(())
            }
            Some(RecordKind::Head) if loaders.contains_key(&space) => Ok(()),
            Some(RecordKind::Head) => {
                restored.lock().entry(space).or_default().head.extend_from_slice(chunk);
                Ok(())
            }
            Some(RecordKind::Loose) => {
                let existence = engines.existence_by_number(space);
                let existence = existence.ok_or_else(|| format!("there is no existence space {space}"))?;
                existence.loose().decode(chunk, 0)
            }
            _ => Err(format!("a file of kind {} is no part of a snapshot", file.tag.kind)),
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let rows = store.load(threads, apply, progress)?;
    for (number, loader) in loaders {
        let refused = |e: counter::Error| store::Error::Refused(format!("counter space {number}: {e}"));
        loader.install().map_err(refused)?;
    }
    let files = store.manifest().files.clone();
    let damaged =
        |file: &FileEntry, what: String| store::Error::Corrupt { path: store.path(&file.name), offset: 0, what };
    let mut decoders = decoders.into_inner();
    let mut restored = restored.into_inner();
    for file in &files {
        if let Some(decoder) = decoders.remove(&file.name) {
            let table = decoder.finish().map_err(|e| damaged(file, e.to_string()))?;
            restored.entry(file.tag.space).or_default().tables.push(table);
        }
    }
    for file in files.iter().filter(|f| f.tag.kind == RecordKind::Head as u32) {
        let Some(of_space) = restored.remove(&file.tag.space) else { continue };
        let Some(options) = options.get(&file.tag.space) else { continue };
        let space = phantom::Space::restore(options.clone(), &of_space.head, of_space.tables)
            .map_err(|e| damaged(file, e.to_string()))?;
        engines.restore(file.tag.space, space);
    }
    parts.adopt(&files);
    Ok(rows)
}
