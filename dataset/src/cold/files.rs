//! Cold files of one counter space, and reads of their rows.
//!
//! The ranges of the files do not overlap, so one binary search finds the block that may contain a
//! row.

use crate::cold::cache::{Key, PINS, Read, Row, Values};
use crate::cold::fetch::{Cold, ColdReads};
use crate::cold::quarantine::Quarantine;
use crate::log_records::RecordKind;
use arc_swap::ArcSwap;
use counter::ColdBackend;
use counter::scan::{CURSOR_BITS, POSITION_BITS, position_shift};
use rolling::Unreadable;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use store::{BLOCK_BYTES, ColdFile, FileEntry, Store};

/// Cold files in ascending order of their ranges, which do not overlap.
#[derive(Default)]
pub struct Files(Vec<Arc<ColdFile>>);

pub(crate) struct BlockPosition<'a> {
    pub(crate) file: &'a Arc<ColdFile>,
    pub(crate) block: u64,
}

impl BlockPosition<'_> {
    fn key(&self, id: u64) -> Key {
        (self.file.head().identity, u128::from(id))
    }
}

impl Files {
    pub(crate) fn new(mut files: Vec<Arc<ColdFile>>) -> Files {
        files.sort_by_key(|file| file.entry().tag.low);
        Files(files)
    }

    pub(crate) fn lows(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|file| file.entry().tag.low)
    }

    /// All files, in ascending order of their ranges.
    pub fn all(&self) -> &[Arc<ColdFile>] {
        &self.0
    }

    pub(crate) fn find(&self, id: u64) -> Option<BlockPosition<'_>> {
        let above = self.0.partition_point(|file| file.entry().tag.low <= id);
        let file = &self.0[above.checked_sub(1)?];
        file.block_of(id).map(|block| BlockPosition { file, block })
    }

    /// Files whose ranges end below `id`.
    pub(crate) fn below(&self, id: u64) -> &[Arc<ColdFile>] {
        &self.0[..self.0.partition_point(|file| file.entry().tag.high < id)]
    }

    /// Whether a file overlaps the range `low..=last`.
    pub(crate) fn overlap(&self, low: u64, last: u64) -> bool {
        let above = self.0.partition_point(|file| file.entry().tag.low <= last);
        above.checked_sub(1).is_some_and(|at| self.0[at].entry().tag.high >= low)
    }

    /// Extends the range `low..=last` to include all files that overlap it. Returns the range and
    /// the files.
    pub(crate) fn cover(&self, low: u64, last: u64) -> (u64, u64, Vec<Arc<ColdFile>>) {
        let overlap =
            |file: &&Arc<ColdFile>| file.entry().tag.low <= last && low <= file.entry().tag.high;
        let files: Vec<_> = self.0.iter().filter(overlap).cloned().collect();
        let low = files.first().map_or(low, |file| file.entry().tag.low.min(low));
        let last = files.last().map_or(last, |file| file.entry().tag.high.max(last));
        (low, last, files)
    }
}

/// Name of a file in a scan cursor: the upper bits of its identity, never 0.
fn name_of(file: &ColdFile) -> u64 {
    (file.head().identity >> (64 - (CURSOR_BITS - POSITION_BITS))).max(1)
}

/// Cold rows of one counter space.
pub struct ColdSpace {
    shared: Arc<Cold>,
    files: ArcSwap<Files>,
    /// True if the last spill found no work. In this state writers do not wait for memory.
    pub(crate) stuck: AtomicBool,
    /// Distance below the space's memory limit at which writers start to wait, in bytes.
    pub(crate) margin: AtomicU64,
    /// Ranges that cannot be merged because a file is unreadable.
    pub(crate) damaged: Quarantine,
}

impl ColdSpace {
    pub(crate) fn new(shared: Arc<Cold>) -> Arc<ColdSpace> {
        let (files, stuck, margin, damaged) = Default::default();
        Arc::new(ColdSpace { shared, files, stuck, margin, damaged })
    }

    /// Opens the space's files listed in the manifest, and attaches them to `space`. Does nothing
    /// if the space is already attached.
    pub(crate) fn attach(
        self: &Arc<Self>,
        space: &counter::Space,
        number: u32,
        store: &Store,
    ) -> store::Result<()> {
        if space.is_attached() {
            return Ok(());
        }
        let ours = |file: &&FileEntry| {
            file.tag.space == number && file.tag.kind == RecordKind::Rows as u32
        };
        let files = store.cold_files();
        let files = files.iter().filter(ours).map(|file| store.open_cold(file).map(Arc::new));
        let files = Files::new(files.collect::<store::Result<_>>()?);
        let end = files.0.last().map_or(0, |file| file.entry().tag.high.saturating_add(1));
        let newest = files.0.last().map(|file| (file.head().first, file.head().last));
        if end > 0 {
            self.shared.begins();
        }
        self.set_files(files);
        space.attach(Box::new(ColdReader(self.clone())), end, newest);
        Ok(())
    }

    pub(crate) fn attach_new(self: &Arc<Self>, space: &counter::Space) {
        if !space.is_attached() {
            space.attach(Box::new(ColdReader(self.clone())), 0, None);
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Cold> {
        &self.shared
    }

    /// Current set of files.
    pub fn files(&self) -> Arc<Files> {
        self.files.load_full()
    }

    pub(crate) fn set_files(&self, files: Files) {
        self.files.store(Arc::new(files));
    }

    /// Number of rows in all files, including rows that were deleted later.
    pub fn rows(&self) -> u64 {
        self.files.load().0.iter().map(|file| file.head().rows).sum()
    }

    /// Calls `f` with the ids on disk in ascending order, starting at `from`. Stops after the block
    /// that completes `most` ids. Skips deleted rows. Returns the id at which the scan continues,
    /// or `None` at the end. The call blocks while it reads from disk.
    pub fn scan(
        &self,
        space: &counter::Space,
        from: u64,
        most: u64,
        f: &mut impl FnMut(u64),
    ) -> store::Result<Option<u64>> {
        let files = self.files();
        let from = from.max(space.horizon());
        let (mut next, mut given) = (from, 0);
        let (mut ids, mut values, mut buffer) = (Vec::new(), Vec::new(), [0; BLOCK_BYTES]);
        let after = files.0.partition_point(|file| file.head().last < from);
        for file in &files.0[after..] {
            while next <= file.head().last {
                if given >= most {
                    return Ok(Some(next));
                }
                let number = file.block_of(next.max(file.head().first)).unwrap_or(0);
                ids.clear();
                values.clear();
                let block = file.read(number, &mut buffer)?;
                block
                    .append_to(&mut ids, &mut values)
                    .map_err(|what| file.corrupt(number, what))?;
                for &id in ids.iter().filter(|&&id| id >= next && !space.has_tombstone(id)) {
                    given += 1;
                    f(id);
                }
                // Ids between this block's last and the next block's first do not exist.
                let last = ids.last().copied().unwrap_or(next).max(next);
                let Some(above) = last.checked_add(1) else { return Ok(None) };
                next = file.block_start(number + 1).unwrap_or(above).max(above);
            }
        }
        Ok(None)
    }

    /// Returns the cursor of a scan that continues at `id`: the file's name and a block number.
    /// Returns `None` if no file has ids of at least `id`, or if an earlier file has the same name.
    pub fn cursor_at(&self, id: u64) -> Option<u64> {
        let files = self.files();
        let at = files.0.partition_point(|file| file.head().last < id);
        let file = files.0.get(at)?;
        let name = name_of(file);
        if files.0[..at].iter().any(|file| name_of(file) == name) {
            return None;
        }
        let block = file.block_of(id.max(file.head().first)).unwrap_or(0);
        Some(name << POSITION_BITS | block >> position_shift(file.head().blocks))
    }

    /// Id at which a scan with this cursor continues; 0 if its file has been removed.
    pub fn id_at(&self, cursor: u64) -> u64 {
        let files = self.files();
        let Some(file) = files.0.iter().find(|file| name_of(file) == cursor >> POSITION_BITS)
        else {
            return 0;
        };
        let position = cursor & ((1 << POSITION_BITS) - 1);
        let block = position << position_shift(file.head().blocks);
        file.block_start(block).unwrap_or(file.head().first)
    }

    /// Reads a random block, uniformly over all files, into `ids` and `values`. Returns the number
    /// of values per row; 0 if there is no file. The call blocks while it reads from disk.
    fn some_block(
        &self,
        random: &mut fastrand::Rng,
        ids: &mut Vec<u64>,
        values: &mut Vec<i64>,
    ) -> store::Result<usize> {
        ids.clear();
        values.clear();
        let files = self.files();
        let blocks = files.0.iter().map(|file| file.head().blocks).sum::<u64>();
        if blocks == 0 {
            return Ok(0);
        }
        let mut number = random.u64(..blocks);
        for file in &files.0 {
            if number < file.head().blocks {
                let mut buffer = [0; BLOCK_BYTES];
                let block = file.read(number, &mut buffer)?;
                block.append_to(ids, values).map_err(|what| file.corrupt(number, what))?;
                return Ok(file.head().columns);
            }
            number -= file.head().blocks;
        }
        Ok(0)
    }

    /// Returns a random id from a random block, or `None` if all rows of the block are deleted.
    pub fn some_id(
        &self,
        space: &counter::Space,
        random: &mut fastrand::Rng,
    ) -> store::Result<Option<u64>> {
        let (mut ids, mut values) = (Vec::new(), Vec::new());
        self.some_block(random, &mut ids, &mut values)?;
        ids.retain(|&id| id >= space.horizon() && !space.has_tombstone(id));
        Ok(random.choice(ids))
    }

    /// Calls `f` with about `most` rows, from random blocks of all files.
    pub fn sample(&self, most: u64, f: &mut dyn FnMut(&[i64])) -> store::Result<()> {
        let (mut ids, mut values, mut given) = (Vec::new(), Vec::new(), 0);
        let mut random = fastrand::Rng::new();
        while given < most {
            let width = self.some_block(&mut random, &mut ids, &mut values)?;
            if width == 0 {
                return Ok(());
            }
            values.chunks_exact(width).for_each(&mut *f);
            given += ids.len() as u64;
        }
        Ok(())
    }

    /// Adds to `fetching` the read that a command on `id` needs, unless the row is pinned or
    /// cached. The row must not be in memory.
    pub fn ask(&self, id: u64, fetching: &mut ColdReads) {
        let files = self.files.load();
        let Some(place) = files.find(id) else { return };
        if !self.shared.is_at_hand(place.key(id)) {
            fetching.want(place.file, place.block, id);
        }
    }

    /// Reads the row synchronously and caches it. Counts and logs a failure.
    fn read(&self, place: &BlockPosition<'_>, id: u64) -> Read {
        let started = Instant::now();
        let mut buffer = [0; BLOCK_BYTES];
        let read = place.file.read(place.block, &mut buffer).map(|block| {
            let mut values = Values::from_elem(0, place.file.head().columns);
            block.get(id, &mut values).then_some(values)
        });
        self.shared.figures.record_read(started.elapsed());
        self.shared.figures.reads_in_place.fetch_add(1, Relaxed);
        match read {
            Ok(row) => {
                self.shared.cache.insert(place.key(id), row.clone());
                Ok(row)
            }
            Err(error) => {
                self.shared.record_failure(&error);
                Err(error.to_string().into())
            }
        }
    }
}

fn copy(row: Row, out: &mut [i64]) -> bool {
    let Some(values) = row else { return false };
    let n = values.len().min(out.len());
    out[..n].copy_from_slice(&values[..n]);
    out[n..].fill(0);
    true
}

/// Implements the counter space's backend. The orphan rule forbids implementing it for
/// `Arc<ColdSpace>`.
pub(crate) struct ColdReader(pub(crate) Arc<ColdSpace>);

impl ColdBackend for ColdReader {
    fn get(&self, id: u64, out: &mut [i64]) -> Result<bool, Unreadable> {
        let files = self.0.files.load();
        let Some(place) = files.find(id) else { return Ok(false) };
        let want = |fetching: &mut ColdReads| fetching.want(place.file, place.block, id);
        let read = self.0.shared.find(&place.key(id), want);
        let read = read.unwrap_or_else(|| self.0.read(&place, id));
        read.map(|row| copy(row, out)).map_err(|why| Unreadable { id, why })
    }

    fn at_hand(&self, id: u64, out: &mut [i64]) -> Option<bool> {
        let files = self.0.files.load();
        let Some(place) = files.find(id) else { return Some(false) };
        match self.0.shared.at_hand(&place.key(id))? {
            Ok(row) => Some(copy(row, out)),
            Err(_) => None,
        }
    }

    fn divides(&self, low: u64, last: u64) -> bool {
        let files = &self.0.files.load().0;
        let above = files.partition_point(|file| file.entry().tag.low <= low);
        let ends = |file: &Arc<ColdFile>| (low..last).contains(&file.entry().tag.high);
        files.get(above).is_some_and(|file| file.entry().tag.low <= last)
            || above.checked_sub(1).is_some_and(|below| ends(&files[below]))
    }

    fn fetch(&self, id: u64) -> Result<(), Unreadable> {
        let files = self.0.files.load();
        let Some(place) = files.find(id) else { return Ok(()) };
        let read = match self.0.shared.at_hand(&place.key(id)) {
            // The fetch for this batch has already failed; do not read again.
            Some(Err(why)) => Err(why),
            _ => self.0.read(&place, id),
        };
        let row = read.map_err(|why| Unreadable { id, why })?;
        PINS.with_borrow_mut(|pins| pins.insert(place.key(id), Ok(row)));
        Ok(())
    }
}
