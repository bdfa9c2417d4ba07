//! The cold files of one space, by their ranges: one search finds the block that may hold a row.

use crate::cold::cache::{Key, PINS, Read, Row, Values};
use crate::cold::fetch::{Cold, Fetching};
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

/// Cold files in the order of their ranges, which do not overlap.
#[derive(Default)]
pub struct Files(Vec<Arc<ColdFile>>);

/// Where a row is, if it is anywhere.
pub(crate) struct Place<'a> {
    pub(crate) file: &'a Arc<ColdFile>,
    pub(crate) block: u64,
}

impl Place<'_> {
    fn key(&self, id: u64) -> Key {
        (self.file.head().identity, u128::from(id))
    }
}

impl Files {
    pub(crate) fn new(mut files: Vec<Arc<ColdFile>>) -> Files {
        files.sort_by_key(|file| file.entry().tag.low);
        Files(files)
    }

    /// Where each begins.
    pub(crate) fn lows(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|file| file.entry().tag.low)
    }

    /// All of them.
    pub fn all(&self) -> &[Arc<ColdFile>] {
        &self.0
    }

    pub(crate) fn find(&self, id: u64) -> Option<Place<'_>> {
        let above = self.0.partition_point(|file| file.entry().tag.low <= id);
        let file = &self.0[above.checked_sub(1)?];
        file.block_of(id).map(|block| Place { file, block })
    }

    /// Those of which all ids lie below this one.
    pub(crate) fn below(&self, id: u64) -> &[Arc<ColdFile>] {
        &self.0[..self.0.partition_point(|file| file.entry().tag.high < id)]
    }

    /// Whether a file overlaps a range.
    pub(crate) fn overlap(&self, low: u64, last: u64) -> bool {
        let above = self.0.partition_point(|file| file.entry().tag.low <= last);
        above.checked_sub(1).is_some_and(|at| self.0[at].entry().tag.high >= low)
    }

    /// The files that overlap a range, and the range that holds them whole.
    pub(crate) fn cover(&self, low: u64, last: u64) -> (u64, u64, Vec<Arc<ColdFile>>) {
        let overlap =
            |file: &&Arc<ColdFile>| file.entry().tag.low <= last && low <= file.entry().tag.high;
        let files: Vec<_> = self.0.iter().filter(overlap).cloned().collect();
        let low = files.first().map_or(low, |file| file.entry().tag.low.min(low));
        let last = files.last().map_or(last, |file| file.entry().tag.high.max(last));
        (low, last, files)
    }
}

/// How a cursor names a file: a part of its identity, never 0.
fn name_of(file: &ColdFile) -> u64 {
    (file.head().identity >> (64 - (CURSOR_BITS - POSITION_BITS))).max(1)
}

/// The cold rows of one space.
pub struct ColdSpace {
    shared: Arc<Cold>,
    files: ArcSwap<Files>,
    /// The last look for something to spill was in vain: no writer need wait for room.
    pub(crate) stuck: AtomicBool,
    /// Bytes below the limit of the space's memory at which writers wait for room.
    pub(crate) margin: AtomicU64,
    /// What cannot be merged.
    pub(crate) damaged: Quarantine,
}

impl ColdSpace {
    pub(crate) fn new(shared: Arc<Cold>) -> Arc<ColdSpace> {
        let (files, stuck, margin, damaged) = Default::default();
        Arc::new(ColdSpace { shared, files, stuck, margin, damaged })
    }

    /// Opens the files that the manifest names for this space, once.
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
        space.attach(Box::new(Reader(self.clone())), end, newest);
        Ok(())
    }

    /// For a new space, which has no files.
    pub(crate) fn attach_new(self: &Arc<Self>, space: &counter::Space) {
        if !space.is_attached() {
            space.attach(Box::new(Reader(self.clone())), 0, None);
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Cold> {
        &self.shared
    }

    /// The files as they are now.
    pub fn files(&self) -> Arc<Files> {
        self.files.load_full()
    }

    /// The new files answer from now on.
    pub(crate) fn set_files(&self, files: Files) {
        self.files.store(Arc::new(files));
    }

    /// Rows in all files. What was changed since is counted as it was.
    pub fn rows(&self) -> u64 {
        self.files.load().0.iter().map(|file| file.head().rows).sum()
    }

    /// Hands the ids of rows on the disk from `from` on to `f`, of at least `most` rows; gives
    /// where to go on, `None` at the end. Rows that were deleted since are left out. Reads the disk
    /// in place.
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
                for &id in ids.iter().filter(|&&id| id >= next && !space.is_buried(id)) {
                    given += 1;
                    f(id);
                }
                // The next block's lowest id is above all of these. Between two blocks there may be
                // ids without a row.
                let last = ids.last().copied().unwrap_or(next).max(next);
                let Some(above) = last.checked_add(1) else { return Ok(None) };
                next = file.block_start(number + 1).unwrap_or(above).max(above);
            }
        }
        Ok(None)
    }

    /// The cursor of a scan that goes on at `id`: it names a file and a block. `None` if a file
    /// with the same name comes before.
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

    /// Where a scan goes on with this cursor: at the beginning if its file is gone.
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

    /// The rows of a random block, of all files alike, into `ids` and `values`; gives values per
    /// row, 0 if there is no file. Reads the disk in place.
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

    /// Some row's id; `None` if those that were looked at have been deleted.
    pub fn some_id(
        &self,
        space: &counter::Space,
        random: &mut fastrand::Rng,
    ) -> store::Result<Option<u64>> {
        let (mut ids, mut values) = (Vec::new(), Vec::new());
        self.some_block(random, &mut ids, &mut values)?;
        ids.retain(|&id| id >= space.horizon() && !space.is_buried(id));
        Ok(random.choice(ids))
    }

    /// Hands about `most` rows to `f`, from blocks all over the files.
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

    /// Notes what must be read for `id`, which is not in memory, before a command can run; nothing
    /// if it is at hand.
    pub fn ask(&self, id: u64, fetching: &mut Fetching) {
        let files = self.files.load();
        let Some(place) = files.find(id) else { return };
        if !self.shared.is_at_hand(place.key(id)) {
            fetching.want(place.file, place.block, id);
        }
    }

    /// Reads the row in place.
    fn read(&self, place: &Place<'_>, id: u64) -> Read {
        let started = Instant::now();
        let mut buffer = [0; BLOCK_BYTES];
        let read = place.file.read(place.block, &mut buffer).map(|block| {
            let mut values = Values::from_elem(0, place.file.head().columns);
            block.get(id, &mut values).then_some(values)
        });
        self.shared.figures.note_read(started.elapsed());
        self.shared.figures.reads_in_place.fetch_add(1, Relaxed);
        match read {
            Ok(row) => {
                self.shared.cache.insert(place.key(id), row.clone());
                Ok(row)
            }
            Err(error) => {
                self.shared.note_failure(&error);
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

/// What a counter space asks. (A type of its own, as neither the trait nor `Arc` is ours.)
pub(crate) struct Reader(pub(crate) Arc<ColdSpace>);

impl ColdBackend for Reader {
    fn get(&self, id: u64, out: &mut [i64]) -> Result<bool, Unreadable> {
        let files = self.0.files.load();
        let Some(place) = files.find(id) else { return Ok(false) };
        let want = |fetching: &mut Fetching| fetching.want(place.file, place.block, id);
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
            // It was refused a moment ago, for this turn.
            Some(Err(why)) => Err(why),
            _ => self.0.read(&place, id),
        };
        let row = read.map_err(|why| Unreadable { id, why })?;
        PINS.with_borrow_mut(|pins| pins.insert(place.key(id), Ok(row)));
        Ok(())
    }
}
