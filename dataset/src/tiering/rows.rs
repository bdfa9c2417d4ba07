//! Writes a range of counter rows to cold files, following the procedure of `store/src/rewrite.rs`.

use super::ground::{SpillContext, SpillResult, out_of_space};
use super::io_throttle::IoThrottle;
use crate::cold::files::Files;
use crate::cpu_throttle::CpuThrottle;
use crate::engines::CounterSpace;
use crate::log_records::RecordKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use store::{ColdFile, ColdRows, ColdWriter, FileEntry, NewFiles, Store, Tag};

const CHUNK_ROWS: usize = 1024;
/// Number of rows between two calls of the CPU throttle.
const PACED_ROWS: usize = 64;
/// Minimum number of ids per piece. A piece takes 16 bytes of memory per id.
const PIECE_IDS: usize = 1 << 16;
/// Maximum number of pieces for the ids of one table. Each piece requires one scan of the range's
/// tables.
const MAX_PIECES: usize = 16;

impl SpillContext<'_> {
    /// Spills the rows of `low..=last`, and merges them with the existing files of the range.
    /// `rate` is in bytes per second, 0 for unlimited. No other thread may write files.
    pub(crate) fn spill(
        &self,
        space: &CounterSpace,
        low: u64,
        last: u64,
        rate: u64,
    ) -> store::Result<SpillResult> {
        space.cold().damaged.note(low, last, self.write(space, low, last, rate))
    }

    fn write(
        &self,
        space: &CounterSpace,
        low: u64,
        last: u64,
        rate: u64,
    ) -> store::Result<SpillResult> {
        let store = self.store;
        let has_waiters = || self.has_waiters();
        let pace = IoThrottle::new(rate, &has_waiters);
        let cold = space.cold();
        let figures = &cold.shared().figures;
        let files = cold.files();
        let (low, last, old) = files.cover(low, last);
        let room = self.room(space, low, last, &old)?;
        cold.shared().begins();
        cold.stuck.store(false, Relaxed);
        let mut spill = space.begin_spill(low, last);

        let most = space.rows_per_table().saturating_mul(2);
        let tag =
            Tag { space: space.number(), kind: RecordKind::Rows as u32, low, high: last, stamp: 0 };
        // While recovery replays log records older than an ALTER, files may have more columns than
        // the schema. Copy the additional columns.
        let columns = old.iter().map(|file| file.head().columns);
        let width = columns.fold(spill.width, usize::max);
        let new = NewFiles::new(store);
        let mut out =
            SpillOutput { store, tag, width, most, room, pace: &pace, writer: None, files: new };
        let mut before = OldRows::new(old.clone())?;
        let is_urgent = || self.is_urgent();
        let turns = CpuThrottle::new(&is_urgent);
        copy_rows(space, &mut spill, &mut before, &mut out, &turns)?;
        out.finish()?;
        let fresh = out.files.entries.iter().map(|entry| store.open_cold(entry).map(Arc::new));
        let fresh = fresh.collect::<store::Result<Vec<_>>>()?;
        let is_old = |file: &FileEntry| old.iter().any(|old| old.entry() == file);
        let is_part = |part: &Tag| low <= part.low && part.high <= last;
        self.publish(out.files, tag, is_old, is_part)?;

        let kept = files.all().iter().filter(|file| !old.iter().any(|old| Arc::ptr_eq(old, file)));
        cold.set_files(Files::new(kept.chain(&fresh).cloned().collect()));
        store.retire(old.iter().map(|file| file.pages()));

        space.remove_tombstones(&spill);
        let spilled = drop_spilled(space, &fresh, width, &turns)?;
        if let Err(error) = space.end_spill(&spill) {
            // The spill has succeeded. The memory is freed later.
            tracing::warn!(
                "space '{}': cannot shrink the tables of spilled rows yet: {error}",
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

    /// Maximum size of new files of a range that replace `old`. Returns an error if the disk has
    /// too little free space.
    fn room(
        &self,
        space: &CounterSpace,
        low: u64,
        last: u64,
        old: &[Arc<ColdFile>],
    ) -> store::Result<u64> {
        let replaced = old.iter().map(|file| file.entry().bytes).sum::<u64>();
        // A row is smaller in a file than in memory.
        let ranges = space.ranges();
        let ours =
            ranges.iter().filter(|range| range.low <= last && low <= range.last && range.rows > 0);
        let needed = replaced + ours.map(|range| range.bytes).sum::<u64>();
        self.room_for(needed, replaced)
    }
}

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

    fn peek(&self) -> Option<(u64, &[i64])> {
        let id = *self.ids.get(self.next)?;
        Some((id, &self.values[self.next * self.width..][..self.width]))
    }

    fn skip(&mut self) -> store::Result<()> {
        self.next += 1;
        self.fill()
    }
}

struct SpillOutput<'a> {
    store: &'a Store,
    tag: Tag,
    width: usize,
    most: u64,
    /// Maximum size of the new files in bytes.
    room: u64,
    pace: &'a IoThrottle<'a>,
    writer: Option<ColdWriter>,
    files: NewFiles<'a>,
}

impl SpillOutput<'_> {
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
        let bytes = self.files.bytes() + writer.bytes();
        if bytes > self.room {
            return Err(out_of_space(self.store));
        }
        self.pace.after(bytes);
        Ok(())
    }

    fn add(&mut self, writer: ColdWriter) -> store::Result<()> {
        self.files.entries.extend(writer.finish()?);
        if self.files.bytes() > self.room { Err(out_of_space(self.store)) } else { Ok(()) }
    }

    fn finish(&mut self) -> store::Result<()> {
        self.writer.take().map_or(Ok(()), |writer| self.add(writer))
    }
}

/// Copies the rows of a spill's range to its files in ascending order of ids. Rows in memory take
/// precedence over the old files.
fn copy_rows(
    space: &CounterSpace,
    spill: &mut counter::Spill,
    before: &mut OldRows,
    out: &mut SpillOutput<'_>,
    turns: &CpuThrottle<'_>,
) -> store::Result<()> {
    let is_kept = |older| older >= space.horizon() && !space.has_tombstone(older);
    let piece = PIECE_IDS.max(space.rows_per_table() as usize / MAX_PIECES);
    let (mut ids, mut rows, mut found, mut seen) = (Vec::new(), Vec::new(), Vec::new(), 0);
    while space.next_ids(spill, piece, &mut ids) {
        turns.step();
        for ids in ids.chunks(CHUNK_ROWS) {
            rows.clear();
            found.clear();
            space.spill_rows(ids, &mut rows, &mut found);
            let width_now = rows.len() / ids.len();
            for (i, &id) in ids.iter().enumerate() {
                throttle_row(turns, &mut seen);
                while let Some((older, row)) = before.peek().filter(|row| row.0 <= id) {
                    throttle_row(turns, &mut seen);
                    if older < id && is_kept(older) {
                        out.push(older, row)?;
                    }
                    before.skip()?;
                }
                if found[i] {
                    // Values of a field added after the start of the spill stay in memory.
                    out.push(id, &rows[i * width_now..][..out.width.min(width_now)])?;
                }
            }
        }
    }
    while let Some((older, row)) = before.peek() {
        throttle_row(turns, &mut seen);
        if is_kept(older) {
            out.push(older, row)?;
        }
        before.skip()?;
    }
    Ok(())
}

fn throttle_row(turns: &CpuThrottle<'_>, seen: &mut usize) {
    *seen += 1;
    if seen.is_multiple_of(PACED_ROWS) {
        turns.step();
    }
}

/// Removes rows from memory that are unchanged since they were written to the new files.
fn drop_spilled(
    space: &CounterSpace,
    fresh: &[Arc<ColdFile>],
    width: usize,
    turns: &CpuThrottle<'_>,
) -> store::Result<SpillResult> {
    let mut spilled = SpillResult::default();
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
