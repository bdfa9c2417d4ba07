//! Spilling: the oldest table of a space becomes a cold file, and what changed of cold rows is
//! merged into a new one. One procedure for both.
//!
//! ```text
//!   1  counter::Space::begin_spill   the line rises; then the ids of the range that are in memory,
//!                                    rising, piece by piece
//!   2  a new file                    rows in memory, and of the old files' rows those that are
//!                                    neither in memory nor deleted
//!   3  the log is flushed            what the file has seen, the log has: no half of an action is
//!                                    in a file alone; the manifest says how far the log went, so
//!                                    that one which was cut since is refused
//!   4  the manifest                  names the new file, and neither the old ones nor the range's
//!                                    snapshot file
//!   5  the file answers              then rows that are in memory as they are in the file leave
//! ```
//!
//! It begins only if the disk has room for all that it may write: on a disk that is nearly full the
//! log is to have what is left. A step that fails (a disk that fills up meanwhile) leaves
//! everything as it was, and is tried again.
//!
//! A crash before 4 leaves the old state: the rows come from the snapshot, the log and the old
//! files. After 4 they come from the new file and the log, which still begins where the manifest
//! says: replaying it puts those rows into memory that it names, in their latest state, and they
//! are newer than the file. A replica spills as its master does, by its own memory: what it has
//! applied its log has, and its files are its own, as its snapshots are. Writes go on all the time;
//! those that come after the walk stay in memory, as the file's overlay.

mod filters;
pub mod io_throttle;
mod ledgers;
mod rebuild;
pub mod replay_filter;
mod scrub;

use crate::cold::Cold;
use crate::cold::damage::place_of;
use crate::cold::files::Files;
use crate::cold::overlay::overlay_bytes;
use crate::cold::quarantine::Quarantine;
use crate::commit::Durability;
use crate::commit::dirty_parts::DirtyParts;
use crate::cpu_throttle::CpuThrottle;
use crate::engines::{CounterSpace, Engines, ExistenceSpace};
use crate::live::Live;
use crate::log_records::RecordKind;
use crate::poll_backoff::PollBackoff;
use counter::RangeStats;
use io_throttle::IoThrottle;
pub use ledgers::drop_pairs;
use parking_lot::MutexGuard;
use scrub::Scrubber;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use store::{ColdFile, ColdRows, ColdWriter, FileEntry, Role, Store, Tag, time};

/// After a failure it is tried again so much later.
const RETRY: Duration = Duration::from_secs(1);
/// Rows that are looked up together.
const CHUNK_ROWS: usize = 1024;
/// Rows between two looks at the pace.
const PACED_ROWS: usize = 64;
/// Ids that are sorted together, at least, and into how many pieces those of a range fall: each
/// piece is a walk of its tables, and takes 16 bytes of memory for each id.
const PIECE_IDS: usize = 1 << 16;
const PIECES: usize = 16;
/// A table of fewer bytes is not worth a file, nor a merge; nor is one of less than so many parts
/// of the limit.
const LEAST_BYTES: u64 = 64 << 10;
const LEAST_PART: u64 = 64;

/// Changed cold rows are merged when they take so much (one part in so many) of the limit.
const OVERLAY: u64 = 16;
/// Writers will soon wait when less than this part of what a space keeps free is left: they do at
/// half of that.
const URGENT: u64 = 2;
/// A file is small if it has less than so many parts of a table's rows; so many neighbours become
/// one.
const SMALL: u64 = 4;
const NEIGHBOURS: usize = 4;

/// The rows of some files in order, one by one.
struct OldRows {
    files: std::vec::IntoIter<Arc<ColdFile>>,
    rows: Option<ColdRows>,
    width: usize,
    ids: Vec<u64>,
    values: Vec<i64>,
    next: usize,
}

impl OldRows {
    fn new(files: Vec<Arc<ColdFile>>) -> store::Result<OldRows> {
        let files = files.into_iter();
        let mut rows =
            OldRows { files, rows: None, width: 0, ids: Vec::new(), values: Vec::new(), next: 0 };
        rows.fill()?;
        Ok(rows)
    }

    fn fill(&mut self) -> store::Result<()> {
        while self.next == self.ids.len() {
            self.next = 0;
            let more = match &mut self.rows {
                Some(rows) => rows.next(&mut self.ids, &mut self.values)?,
                None => false,
            };
            if !more {
                self.ids.clear();
                let Some(file) = self.files.next() else { return Ok(()) };
                self.width = file.head().columns;
                self.rows = Some(file.rows());
            }
        }
        Ok(())
    }

    /// The row that is next.
    fn peek(&self) -> Option<(u64, &[i64])> {
        let id = *self.ids.get(self.next)?;
        Some((id, &self.values[self.next * self.width..][..self.width]))
    }

    fn skip(&mut self) -> store::Result<()> {
        self.next += 1;
        self.fill()
    }
}

/// The new files of a range.
struct Output<'a> {
    store: &'a Store,
    tag: Tag,
    width: usize,
    /// Rows of one file, at most.
    most: u64,
    /// Bytes that they may take.
    room: u64,
    pace: &'a IoThrottle<'a>,
    bytes: u64,
    writer: Option<ColdWriter>,
    entries: Vec<FileEntry>,
}

impl Output<'_> {
    fn push(&mut self, id: u64, row: &[i64]) -> store::Result<()> {
        if let Some(mut full) = self.writer.take_if(|writer| writer.rows() >= self.most) {
            full.end_at(id - 1);
            self.tag.low = id;
            self.add(full)?;
        }
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => self.writer.insert(self.store.begin_cold(self.tag, self.width)?),
        };
        writer.push(id, row)?;
        if writer.rows() % 4096 != 0 {
            return Ok(());
        }
        if self.bytes + writer.bytes() > self.room {
            return Err(no_room(self.store));
        }
        self.pace.after(self.bytes + writer.bytes());
        Ok(())
    }

    fn add(&mut self, writer: ColdWriter) -> store::Result<()> {
        if let Some(entry) = writer.finish()? {
            self.bytes += entry.bytes;
            self.entries.push(entry);
        }
        if self.bytes > self.room { Err(no_room(self.store)) } else { Ok(()) }
    }

    fn finish(&mut self) -> store::Result<()> {
        self.writer.take().map_or(Ok(()), |writer| self.add(writer))
    }
}

/// What was not published is removed at once: the disk may be full because of it.
impl Drop for Output<'_> {
    fn drop(&mut self) {
        self.store.discard(&self.entries);
    }
}

/// The limit of all cold files is reached.
pub(crate) fn no_room(store: &Store) -> store::Error {
    let source =
        std::io::Error::new(std::io::ErrorKind::QuotaExceeded, "spill.max_bytes is reached");
    store::Error::Full { path: store.path(""), doing: "writing a cold file to", source }
}

/// What a spill did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spilled {
    /// Rows in the new files.
    pub(crate) rows: u64,
    /// Rows that left memory.
    pub left: u64,
    /// Bytes of the new files.
    pub(crate) bytes: u64,
}

/// Where a spill happens.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    pub(crate) store: &'a Store,
    pub(crate) durability: &'a Durability,
    /// Bytes that all cold files may take; 0: as many as the disk has.
    pub(crate) most_bytes: u64,
    /// None in recovery: all that is in memory comes from the log.
    pub(crate) live: Option<Live<'a>>,
}

impl<'a> Ground<'a> {
    fn of(live: &Live<'a>) -> Ground<'a> {
        Ground {
            store: live.store,
            durability: live.durability,
            most_bytes: live.max_cold_bytes,
            live: Some(*live),
        }
    }

    /// Whether this thread is waited for: by a space whose memory is short, or by a stop.
    pub(crate) fn hurries(&self) -> bool {
        self.live.is_some_and(|live| {
            is_waited_for(&live, |space| is_short(space, space.memory_limit_bytes()))
        })
    }

    /// Whether there is no time for rests: writers will soon wait, or others do already. Without a
    /// data set that is served there is nothing to rest for.
    pub(crate) fn is_urgent(&self) -> bool {
        let is_nearly_full = |space: &CounterSpace| {
            let limit = space.memory_limit_bytes();
            space.spills() && space.memory_bytes() > limit - space.spare(limit) / URGENT
        };
        self.live
            .is_none_or(|live| live.snapshots.is_awaited() || is_waited_for(&live, is_nearly_full))
    }

    /// Has everything in the log, and durable, that a new file may have seen. Gives an offset up to
    /// which the log is durable, for the manifest: a log that ends before it has lost something
    /// that the file has. 0 while the log is replayed, which is durable as it is.
    pub(crate) fn flush(&self) -> store::Result<u64> {
        if self.live.is_none() {
            return Ok(0);
        }
        self.durability.flush()?;
        Ok(self.durability.positions().1.offset)
    }

    /// Takes files out of the manifest that lie below the horizon, which must be in the log,
    /// safely, before.
    fn take_out<'f>(&self, gone: impl Iterator<Item = &'f FileEntry>) -> store::Result<()> {
        let durable = self.flush()?;
        let names: Vec<String> = gone.map(|file| file.name.clone()).collect();
        self.store.replace_files(Vec::new(), &names, durable)
    }

    /// Bytes that new files of a range may take instead of the `old` ones. An error if the disk has
    /// too little room for them.
    fn room(
        &self,
        space: &CounterSpace,
        low: u64,
        last: u64,
        old: &[Arc<ColdFile>],
    ) -> store::Result<u64> {
        let replaced = old.iter().map(|file| file.entry().bytes).sum::<u64>();
        // A row takes less in a file than in memory.
        let ranges = space.ranges();
        let ours =
            ranges.iter().filter(|range| range.low <= last && low <= range.last && range.rows > 0);
        let needed = replaced + ours.map(|range| range.bytes).sum::<u64>();
        self.room_for(needed, replaced)
    }

    /// Bytes that new files may take which replace some of `replaced` bytes. An error if the disk
    /// has less room than may be `needed`.
    pub(crate) fn room_for(&self, needed: u64, replaced: u64) -> store::Result<u64> {
        if self.store.disk().free_bytes().is_ok_and(|free| free < needed) {
            let source = std::io::Error::new(
                std::io::ErrorKind::StorageFull,
                format!("it may take {needed} bytes"),
            );
            return Err(store::Error::Full {
                path: self.store.path(""),
                doing: "beginning a cold file in",
                source,
            });
        }
        if self.most_bytes == 0 {
            return Ok(u64::MAX);
        }
        let files = self.store.cold_files();
        let spilled = files.iter().filter(|file| file.tag.kind != RecordKind::ExactPairs as u32);
        let all = spilled.map(|file| file.bytes).sum::<u64>();
        Ok((self.most_bytes + replaced).saturating_sub(all))
    }

    /// Spills the rows of `low..=last`, together with the files that are there. `rate`: bytes per
    /// second. No other thread may write files.
    pub(crate) fn spill(
        &self,
        space: &CounterSpace,
        low: u64,
        last: u64,
        rate: u64,
    ) -> store::Result<Spilled> {
        space.cold().damaged.note(low, last, self.write(space, low, last, rate))
    }

    fn write(
        &self,
        space: &CounterSpace,
        low: u64,
        last: u64,
        rate: u64,
    ) -> store::Result<Spilled> {
        let Ground { store, durability, .. } = *self;
        let hurries = || self.hurries();
        let pace = IoThrottle::new(rate, &hurries);
        let cold = space.cold();
        let figures = &cold.shared().figures;
        let files = cold.files();
        let (low, last, old) = files.cover(low, last);
        let room = self.room(space, low, last, &old)?;
        cold.shared().begins();
        // Writers wait for this one.
        cold.stuck.store(false, Relaxed);
        let mut spill = space.begin_spill(low, last);

        let most = space.rows_per_table().saturating_mul(2);
        let tag =
            Tag { space: space.number(), kind: RecordKind::Rows as u32, low, high: last, stamp: 0 };
        // While a log is replayed from before an ALTER, or followed from there, the files are wider
        // than the schema at that place. What they have beyond it is kept.
        let columns = old.iter().map(|file| file.head().columns);
        let width = columns.fold(spill.width, usize::max);
        let entries = Vec::new();
        let mut out =
            Output { store, tag, width, most, room, pace: &pace, bytes: 0, writer: None, entries };
        let mut before = OldRows::new(old.clone())?;
        let is_urgent = || self.is_urgent();
        let turns = CpuThrottle::new(&is_urgent);
        copy_rows(space, &mut spill, &mut before, &mut out, &turns)?;
        out.finish()?;
        let fresh = out.entries.iter().map(|entry| store.open_cold(entry).map(Arc::new));
        let fresh = fresh.collect::<store::Result<Vec<_>>>()?;

        let durable = self.flush()?;
        let is_replaced = |file: &&FileEntry| match file.role {
            Role::Cold => old.iter().any(|old| old.entry().name == file.name),
            Role::Snapshot => {
                let (ours, theirs) = (&tag, &file.tag);
                (theirs.space, theirs.kind) == (ours.space, ours.kind)
                    && low <= theirs.low
                    && theirs.high <= last
            }
        };
        let replaced: Vec<String> =
            store.manifest().files.iter().filter(is_replaced).map(|f| f.name.clone()).collect();
        durability.parts.forget_range(space.number(), low, last);
        store.replace_files(out.entries.clone(), &replaced, durable)?;
        out.entries.clear();

        let kept = files.all().iter().filter(|file| !old.iter().any(|old| Arc::ptr_eq(old, file)));
        cold.set_files(Files::new(kept.chain(&fresh).cloned().collect()));
        discard(store, &old);

        space.unbury(&spill);
        let spilled = drop_spilled(space, &fresh, width, &turns)?;
        if let Err(error) = space.end_spill(&spill) {
            // Memory stays taken a while longer.
            tracing::warn!(
                "space '{}': tables of spilled rows cannot be made smaller yet: {error}",
                space.name()
            );
        }
        figures.written_bytes.fetch_add(spilled.bytes, Relaxed);
        figures.spilled_rows.fetch_add(spilled.left, Relaxed);
        if old.is_empty() { &figures.spilled_tables } else { &figures.merges }
            .fetch_add(1, Relaxed);
        tracing::debug!(
            "space '{}': {low} to {last}: {spilled:?} in {:.1?}",
            space.name(),
            pace.elapsed()
        );
        Ok(spilled)
    }
}

/// Copies the rows of a spill's range to its file, in the order of their ids: those in memory as
/// they are now, and the old ones of which there is no newer one.
fn copy_rows(
    space: &CounterSpace,
    spill: &mut counter::Spill,
    before: &mut OldRows,
    out: &mut Output<'_>,
    turns: &CpuThrottle<'_>,
) -> store::Result<()> {
    let is_kept = |older| older >= space.horizon() && !space.is_buried(older);
    let piece = PIECE_IDS.max(space.rows_per_table() as usize / PIECES);
    let (mut ids, mut rows, mut found, mut seen) = (Vec::new(), Vec::new(), Vec::new(), 0);
    while space.next_ids(spill, piece, &mut ids) {
        turns.step();
        for ids in ids.chunks(CHUNK_ROWS) {
            rows.clear();
            found.clear();
            space.spill_rows(ids, &mut rows, &mut found);
            let width_now = rows.len() / ids.len();
            for (i, &id) in ids.iter().enumerate() {
                paced(turns, &mut seen);
                while let Some((older, row)) = before.peek().filter(|row| row.0 <= id) {
                    paced(turns, &mut seen);
                    if older < id && is_kept(older) {
                        out.push(older, row)?;
                    }
                    before.skip()?;
                }
                if found[i] {
                    // A field that was added meanwhile stays in memory.
                    out.push(id, &rows[i * width_now..][..out.width.min(width_now)])?;
                }
            }
        }
    }
    while let Some((older, row)) = before.peek() {
        paced(turns, &mut seen);
        if is_kept(older) {
            out.push(older, row)?;
        }
        before.skip()?;
    }
    Ok(())
}

/// One more row, of which some go between two looks at the pace.
fn paced(turns: &CpuThrottle<'_>, seen: &mut usize) {
    *seen += 1;
    if seen.is_multiple_of(PACED_ROWS) {
        turns.step();
    }
}

/// Rows that are in memory as they are in the new files leave it.
fn drop_spilled(
    space: &CounterSpace,
    fresh: &[Arc<ColdFile>],
    width: usize,
    turns: &CpuThrottle<'_>,
) -> store::Result<Spilled> {
    let mut spilled = Spilled::default();
    let (mut ids, mut values) = (Vec::new(), Vec::new());
    for file in fresh {
        let mut walk = file.rows();
        while walk.next(&mut ids, &mut values)? {
            spilled.left += space.drop_spilled(&ids, &values, width) as u64;
            turns.step();
        }
        spilled.rows += file.head().rows;
        spilled.bytes += file.entry().bytes;
    }
    Ok(spilled)
}

/// Whether a range cannot be merged now.
fn is_damaged(space: &CounterSpace, range: &RangeStats) -> bool {
    space.cold().damaged.has(range.low, range.last)
}

/// The spilled range of which changes take most memory, of those that can be merged, and how much
/// they take.
fn most_changed(space: &CounterSpace) -> Option<(RangeStats, u64)> {
    let files = space.cold().files();
    let is_cold = |range: &RangeStats| !range.open && files.overlap(range.low, range.last);
    let weighed =
        space.ranges().into_iter().filter(|range| is_cold(range) && !is_damaged(space, range)).map(
            |range| {
                let rows = if range.rows > 0 { range.bytes } else { 0 };
                (range, rows + space.tombs_of(range.low, range.last).1)
            },
        );
    weighed.filter(|range| range.1 > 0).max_by_key(|range| range.1)
}

/// Removes the files of which all rows were retired. No other thread may write files. Whether there
/// were any.
pub(crate) fn remove_retired(ground: &Ground<'_>, space: &CounterSpace) -> store::Result<bool> {
    let (cold, files) = (space.cold(), space.cold().files());
    let gone = files.below(space.horizon());
    if gone.is_empty() {
        return Ok(false);
    }
    ground.take_out(gone.iter().map(|file| file.entry()))?;
    cold.set_files(Files::new(files.all()[gone.len()..].to_vec()));
    discard(ground.store, gone);
    Ok(true)
}

/// Deletes files that the manifest does not name any more. What a replica still fetches goes with a
/// later snapshot.
fn discard(store: &Store, files: &[Arc<ColdFile>]) {
    let unpinned = files.iter().filter(|file| !store.is_pinned(&file.entry().name));
    unpinned.for_each(|file| file.retire(store.disk().clone()));
}

/// Removes the files of spaces that were dropped. That they were must be in the log, safely: a
/// start looks for the files of the spaces that it finds there. No other thread may write files.
/// Whether there were any.
pub(crate) fn remove_dropped(
    store: &Store,
    engines: &Engines,
    parts: &DirtyParts,
) -> store::Result<bool> {
    let manifest = store.manifest().clone();
    let dropped = manifest.files.iter().filter(|file| engines.is_dropped(file.tag.space));
    let dropped: Vec<&FileEntry> = dropped.collect();
    if dropped.is_empty() {
        return Ok(false);
    }
    dropped.iter().for_each(|file| parts.forget_space(file.tag.space));
    let names: Vec<String> = dropped.iter().map(|file| file.name.clone()).collect();
    store.replace_files(Vec::new(), &names, 0)?;
    store.trim()?;
    Ok(true)
}

/// The same while the data set is served.
pub fn forget_dropped(live: &Live<'_>) -> store::Result<bool> {
    let has_any = || {
        let engines = live.current.load();
        live.store.manifest().files.iter().any(|file| engines.is_dropped(file.tag.space))
    };
    if !has_any() {
        return Ok(false);
    }
    live.durability.flush()?;
    let _alone = live.snapshots.interrupt();
    remove_dropped(live.store, &live.current.load(), &live.durability.parts)
}

/// For a spill of this space: no other thread writes data files until the guard is dropped; `None`
/// if the space was dropped meanwhile.
fn alone_with<'a>(live: &Live<'a>, number: u32) -> Option<MutexGuard<'a, ()>> {
    let alone = live.snapshots.interrupt();
    live.current.now().has(number).then_some(alone)
}

/// Spills the oldest range of which anything is in memory; `None` if there is none.
pub fn spill_oldest(live: &Live<'_>, space: &CounterSpace) -> store::Result<Option<Spilled>> {
    let Some(_alone) = alone_with(live, space.number()) else { return Ok(None) };
    let is_worth =
        |range: &RangeStats| range.rows > 0 || space.tombs_of(range.low, range.last).0 > 0;
    let worth = space.ranges().into_iter().filter(|range| !range.open && is_worth(range));
    // The first of the least: one that is damaged if there are no others.
    let oldest = worth.min_by_key(|range| is_damaged(space, range));
    oldest.map(|range| Ground::of(live).spill(space, range.low, range.last, 0)).transpose()
}

/// The same for pairs; what is left to do then is to merge what came late. A ledger writes all that
/// it has in memory.
pub fn spill_oldest_pairs(
    live: &Live<'_>,
    space: &ExistenceSpace,
) -> store::Result<Option<Spilled>> {
    let Some(_alone) = alone_with(live, space.number()) else { return Ok(None) };
    ledgers::flush_all(&Ground::of(live), space)?;
    filters::spill_oldest(&Ground::of(live), space)
}

/// Writes what waits for a merge in the table where most of it does, so that more may come;
/// `None`: there is none that can be merged.
pub fn merge_late(live: &Live<'_>, space: &ExistenceSpace) -> store::Result<Option<Spilled>> {
    let Some(_alone) = alone_with(live, space.number()) else { return Ok(None) };
    filters::merge_late(&Ground::of(live), space)
}

/// The oldest neighbouring tables that have not been spilled, with as many rows as one table has,
/// and more than `least` bytes: of the range of ids that has most of those.
fn oldest_fresh(space: &CounterSpace, least: u64) -> Option<RangeStats> {
    let (ranges, files) = (space.ranges(), space.cold().files());
    let is_fresh = |table: &RangeStats| !table.open && !files.overlap(table.low, table.last);
    let oldest = |run: &[RangeStats]| {
        let mut all = run[0];
        for table in &run[1..] {
            if all.rows + table.rows > space.rows_per_table() {
                break;
            }
            all.last = table.last;
            all.rows += table.rows;
            all.bytes += table.bytes;
        }
        (is_fresh(&all) && all.bytes > least && all.rows > 0).then_some(all)
    };
    let of_range = |tables: &[RangeStats]| {
        let bytes = tables.iter().filter(|table| is_fresh(table)).map(|table| table.bytes);
        let oldest = tables.chunk_by(|a, b| is_fresh(a) && is_fresh(b)).find_map(oldest)?;
        Some((bytes.sum::<u64>(), oldest))
    };
    let all = ranges.split_inclusive(|table| table.open).filter_map(of_range);
    all.max_by_key(|(bytes, _)| *bytes).map(|(_, oldest)| oldest)
}

/// Makes room: spills the oldest tables that have not been spilled, or merges where changes take
/// more than that. Where there is neither, a range of ids makes room whose table is still open;
/// `None` if there is none but the newest.
fn make_room(
    ground: &Ground<'_>,
    space: &CounterSpace,
    limit: u64,
) -> store::Result<Option<Spilled>> {
    let least = LEAST_BYTES.min(limit / LEAST_PART);
    let fresh = oldest_fresh(space, least);
    let changed =
        most_changed(space).filter(|changed| changed.1 > fresh.map_or(least, |fresh| fresh.bytes));
    let (before, mut done) = (space.memory_bytes(), None);
    for range in changed.map(|changed| changed.0).into_iter().chain(fresh) {
        let spilled = ground.spill(space, range.low, range.last, 0)?;
        done = Some(spilled);
        // What a range seems to take may be rows of its neighbour, which a rewrite has no memory to
        // part: it would be written again and again, and a writer would wait for ever.
        if spilled.left > 0 || space.memory_bytes() < before {
            break;
        }
    }
    Ok(done.or_else(|| space.close_range().then(Spilled::default)))
}

/// Keeps the spaces within their limits while they are filled from the log. Whether the disk took
/// what it had to.
pub(crate) fn keep_within(ground: &Ground<'_>, engines: &Engines) -> bool {
    let limits = if engines.is_filling() { engines.deal() } else { Vec::new() };
    let counters = engines.counters().iter().zip(limits);
    for (space, limit) in counters.filter(|(space, _)| space.spills()) {
        while is_short(space, limit) {
            match make_room(ground, space, limit) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    // It takes more memory than it should, and will spill when it serves.
                    note_trouble(&engines.cold, space.name(), &error);
                    return false;
                }
            }
        }
    }
    let kept = filters::keep_within(ground, engines);
    let kept = kept.and_then(|()| ledgers::keep_within(ground, engines));
    kept.inspect_err(|(name, error)| note_trouble(&engines.cold, name, error)).is_ok()
}

/// Notes why a spill failed; says it, if that is not what was said last: it is tried again and
/// again.
fn note_trouble(cold: &Cold, name: &str, error: &store::Error) {
    cold.figures.failures.fetch_add(1, Relaxed);
    if let Some((file, offset)) = place_of(error) {
        cold.damaged.note(&file, offset);
    }
    let text = error.to_string();
    let before = cold.trouble.lock().insert(name.to_owned(), text.clone());
    if before.is_none_or(|before| store::gist(&before) != error.gist()) {
        tracing::error!("space '{name}' cannot spill: {text}. {}", error.advice());
    }
}

/// Merges what was changed of cold rows, where most of it is, once it takes too much of the memory.
/// Whether there was anything to do.
fn merge_most_changed(live: &Live<'_>, space: &CounterSpace) -> store::Result<bool> {
    let waiting = overlay_bytes(space, space.cold()) + space.tombstones().1;
    if waiting < space.memory_limit_bytes() / OVERLAY {
        return Ok(false);
    }
    let Some((range, _)) = most_changed(space) else { return Ok(false) };
    let Some(_alone) = alone_with(live, space.number()) else { return Ok(false) };
    Ground::of(live).spill(space, range.low, range.last, live.merge_bytes_per_s)?;
    Ok(true)
}

/// Makes one file of neighbours that are small: a file costs a descriptor, and a step of each
/// search. Whether there were any.
fn merge_neighbours(live: &Live<'_>, space: &CounterSpace) -> store::Result<bool> {
    let files = space.cold().files();
    let damaged =
        |file: &ColdFile| space.cold().damaged.has(file.entry().tag.low, file.entry().tag.high);
    let Some((low, last)) = small_neighbours(files.all(), space.rows_per_table(), damaged) else {
        return Ok(false);
    };
    let Some(_alone) = alone_with(live, space.number()) else { return Ok(false) };
    Ground::of(live).spill(space, low, last, live.merge_bytes_per_s)?;
    Ok(true)
}

/// The range of some neighbours of which each is small and not `damaged`, and all together not
/// large.
fn small_neighbours(
    files: &[Arc<ColdFile>],
    most: u64,
    damaged: impl Fn(&ColdFile) -> bool,
) -> Option<(u64, u64)> {
    let is_small = |file: &Arc<ColdFile>| file.head().rows <= most / SMALL && !damaged(file);
    files
        .chunk_by(|a, b| is_small(a) && is_small(b))
        .filter(|run| run.len() >= NEIGHBOURS)
        .find_map(|run| {
            let mut sum = 0;
            let fits = |file: &&Arc<ColdFile>| {
                sum += file.head().rows;
                sum <= most
            };
            let n = run.iter().take_while(fits).count();
            (n >= NEIGHBOURS).then(|| (run[0].entry().tag.low, run[n - 1].entry().tag.high))
        })
}

/// Whether a stop waits for what spills, or a space: one of counters of which this says so.
fn is_waited_for(live: &Live<'_>, is_short: impl Fn(&CounterSpace) -> bool) -> bool {
    let engines = live.current.load();
    let (counters, existences) = (engines.counters().iter(), engines.existences().iter());
    (live.is_stopped)()
        || counters.filter(|s| !s.cold().stuck.load(Relaxed)).any(is_short)
        || existences
            .filter(|s| !s.cold().stuck.load(Relaxed))
            .any(|s| filters::to_spill(s).is_some() || s.is_crowded())
}

/// Whether a space has used up so much of its memory that it is to spill.
fn is_short(space: &CounterSpace, limit: u64) -> bool {
    let used = space.memory_bytes();
    if !space.spills() || used <= limit / 2 {
        return false;
    }
    used > limit - space.spare(limit)
}

/// Does for a space what is most urgent; whether there was anything. `None`: memory is short, and
/// nothing can be done about it.
fn look_after(live: &Live<'_>, space: &CounterSpace) -> store::Result<Option<bool>> {
    if !space.cold().files().below(space.horizon()).is_empty() {
        let Some(_alone) = alone_with(live, space.number()) else { return Ok(Some(false)) };
        return remove_retired(&Ground::of(live), space).map(Some);
    }
    if is_short(space, space.memory_limit_bytes()) {
        let Some(alone) = alone_with(live, space.number()) else { return Ok(Some(false)) };
        let made = make_room(&Ground::of(live), space, space.memory_limit_bytes())?;
        drop(alone);
        // Tables are not joined across the beginning of a file.
        return Ok((made.is_some() || merge_neighbours(live, space)?).then_some(true));
    }
    Ok(Some(space.spills() && (merge_most_changed(live, space)? || merge_neighbours(live, space)?)))
}

/// The same for a space of pairs.
fn look_after_pairs(live: &Live<'_>, space: &ExistenceSpace) -> store::Result<Option<bool>> {
    let ground = Ground::of(live);
    if !filters::wants_care(space) {
        return Ok(Some(false));
    }
    let Some(_alone) = alone_with(live, space.number()) else { return Ok(Some(false)) };
    ground.look_after_pairs(space, live.merge_bytes_per_s)
}

/// When each space is to be looked after again, of those where it failed.
#[derive(Default)]
struct Retries {
    due: HashMap<u32, Instant>,
    /// The version of the catalogue of which no dropped space has files any more.
    clean: Option<u64>,
}

impl Retries {
    /// Looks after one space, if that is due. Whether there was anything to do.
    fn look_after(
        &mut self,
        cold: &Cold,
        (number, name): (u32, &str),
        (stuck, damaged): (&AtomicBool, &Quarantine),
        look: impl FnOnce() -> store::Result<Option<bool>>,
    ) -> bool {
        if self.due.get(&number).is_some_and(|due| time::now() < *due) {
            return false;
        }
        self.due.remove(&number);
        match look() {
            Ok(Some(true)) => {
                stuck.store(false, Relaxed);
                if !damaged.any() {
                    cold.trouble.lock().remove(name);
                }
                return true;
            }
            Ok(Some(false)) => stuck.store(false, Relaxed),
            Ok(None) => stuck.store(true, Relaxed),
            Err(error) => {
                note_trouble(cold, name, &error);
                stuck.store(true, Relaxed);
                self.due.insert(number, time::now() + RETRY);
            }
        }
        false
    }

    /// Removes what dropped spaces have left on the disk, which a crash, or a master's log, may not
    /// have let their end do. Whether there was anything.
    fn forget_dropped(&mut self, live: &Live<'_>, engines: &Engines) -> bool {
        // 0 is no space's number.
        let is_due = self.due.get(&0).is_none_or(|due| time::now() >= *due);
        if self.clean == Some(engines.version()) || !is_due {
            return false;
        }
        let outcome = forget_dropped(live);
        match &outcome {
            Ok(_) => self.clean = Some(engines.version()),
            Err(error) => {
                tracing::warn!("the files of a dropped space cannot be removed: {error}");
                self.due.insert(0, time::now() + RETRY);
            }
        }
        outcome.is_ok_and(|worked| worked)
    }

    /// Looks after all spaces. Whether there was anything to do.
    fn look_after_all(&mut self, live: &Live<'_>) -> bool {
        let engines = live.current.load();
        // Each for itself: a space that is dropped meanwhile is in memory no longer than it must.
        let (counters, existences) = (engines.counters().to_vec(), engines.existences().to_vec());
        let mut worked = self.forget_dropped(live, &engines);
        let cold = engines.cold.clone();
        drop(engines);
        for space in existences {
            let (whose, of_space) = ((space.number(), space.name()), space.cold());
            let state = (&of_space.stuck, &of_space.damaged);
            worked |= self.look_after(&cold, whose, state, || look_after_pairs(live, &space));
            if let Some(ledger) = space.ledger() {
                let state = (&ledger.stuck, &of_space.damaged);
                let look = || ledgers::look_after(live, &space);
                worked |= self.look_after(&cold, whose, state, look);
                let look = || rebuild::look_after(live, &space);
                worked |= self.look_after(&cold, whose, state, look);
            }
        }
        for space in counters {
            let (whose, of_space) = ((space.number(), space.name()), space.cold());
            let state = (&of_space.stuck, &of_space.damaged);
            worked |= self.look_after(&cold, whose, state, || look_after(live, &space));
        }
        worked
    }
}

/// The work of the spill thread, step by step.
#[derive(Default)]
pub struct Spiller {
    retries: Retries,
    scrubber: Scrubber,
    backoff: PollBackoff,
}

impl Spiller {
    /// Looks after all spaces of a data set, if there is one, and scrubs a little. Gives how long
    /// to sleep before the next step; `None`: there may be more to do.
    pub fn step(&mut self, live: Option<&Live<'_>>, durability: &Durability) -> Option<Duration> {
        let worked = live.is_some_and(|live| self.retries.look_after_all(live));
        let until_due = live.map_or(Duration::MAX, |live| self.scrubber.step(live));
        if worked {
            self.backoff.worked();
            return None;
        }
        Some(self.backoff.next(durability.parts.changes()).min(until_due))
    }
}
