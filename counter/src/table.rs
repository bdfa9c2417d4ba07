//! One table: the rows of one id range, in buckets, with what does not fit there.
//!
//! ```text
//!   segments[0]   the buckets that the table was opened with
//!   segments[1..] the extend dictionary: rows that found all their probes full. Buckets again, each segment twice the one before, so that a row
//!                 there costs little more than any other and is read without a lock, too. Normally 0.03 % of the rows, or none.
//!   aux           the exact values of fields that outgrew their bits
//! ```
//!
//! All segments hold ids of the same range; a search goes on to the next segment only where it was led past all its probes.
//!
//! **T1** A row is in one slot of one segment, and stays there until it is deleted. (So it can be named by its *position*, and
//! a reader cannot miss it.) **T2** Writes of one key are serialised by the caller (the ring's stripe); different keys may be
//! written at once. **T3** An aux entry exists exactly for the fields whose bits are the escape, and for the non-zero
//! ones that have no bits here; both change under the lock of the row's bucket. **T4** A write that fails has changed nothing.

use crate::Error;
use crate::aux::{Aux, Shard};
use crate::bucket::Bucket;
use crate::budget::{Budget, Grant};
use crate::key::{Home, Keys, PROBES};
use crate::layout::{BUCKET_WORDS, Layout};
use crate::plan::Plan;
use crate::schema::Schema;
use parking_lot::Mutex;
use rolling::Words;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// The main segment and so many for extension, the last of them 128 times as large as the main one.
const SEGMENTS: usize = 17;
/// The first extension has this fraction of the main segment's slots.
const EXTEND_SHARE: u64 = 256;

/// A fixed number of buckets.
struct Buckets {
    keys: Keys,
    layout: Layout,
    words: Words,
    rows: AtomicU64,
    /// The position of slot 0 of bucket 0.
    first_position: u64,
    _grant: Grant,
}

/// Where a search stands that goes on in steps, one memory access each: see [`Table::advance`].
#[derive(Clone, Copy, Default)]
pub(crate) struct Search {
    remainder: u64,
    bucket: u64,
    probe: u64,
    /// The candidates of this bucket are on their way into the cache.
    candidates: bool,
}

/// What one step of a search says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The next step will find what it needs in the cache, soon.
    Waiting,
    /// Found, and handed to the caller.
    Found,
    /// Nowhere in the table.
    Absent,
    /// Not in the main segment, but something went past all its probes.
    Past,
}

/// What a search in one segment found.
enum Looked<R> {
    Found(R),
    Absent,
    /// Something went past every probe: look in the next segment.
    Past,
}

/// Where a row is.
#[derive(Clone, Copy)]
pub(crate) struct At {
    segment: usize,
    bucket: u64,
    slot: usize,
}

/// The rows of one id range. See the top of the file.
pub(crate) struct Table {
    segments: [OnceLock<Box<Buckets>>; SEGMENTS],
    growing: Mutex<()>,
    aux: Aux,
    schema: Arc<Schema>,
    budget: Arc<Budget>,
    seed: u64,
    rows: AtomicU64,
    /// The highest id that was inserted, and how many inserted ones were higher than all before: a table that fills in
    /// the order of ids rolls, one that fills in any order must grow.
    high: AtomicU64,
    rising: AtomicU64,
    /// Rows at the last [`Table::review`], plus one.
    reviewed: AtomicU64,
}

/// One row as a reader sees it: valid only inside the closure that it is handed to.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    table: &'a Table,
    layout: &'a Layout,
    bucket: Bucket<'a>,
    slot: usize,
    position: u64,
    hash: u64,
}

impl Row<'_> {
    /// The value of a field, 0 if this table knows nothing of it.
    #[inline(always)]
    pub(crate) fn value(&self, field: usize) -> i64 {
        if let Some(inline) = self.layout.inline(field) {
            let code = self.bucket.field(self.slot, inline);
            if code != inline.escape() {
                return code as i64;
            }
        } else if !self.table.aux.has_outside() {
            return 0;
        }
        self.table.aux.value(self.hash, self.position, field)
    }

    /// Fills `out`, one value per position; those whose bit in `living` is not set are 0.
    #[inline(always)]
    pub(crate) fn values(&self, living: u64, out: &mut [i64]) {
        // The usual row: all living fields are inline, in one word, and none has escaped.
        if let Some(rest) = self.bucket.rest(self.slot)
            && out.len() == self.layout.fields.len()
            && living == self.layout.inline_fields
        {
            let mut escaped = false;
            for (inline, value) in self.layout.fields.iter().zip(out.iter_mut()) {
                let Some(inline) = inline else {
                    *value = 0;
                    continue;
                };
                let code = (rest >> inline.offset) & inline.escape();
                escaped |= code == inline.escape();
                *value = code as i64;
            }
            if !escaped {
                return;
            }
        }
        for (field, value) in out.iter_mut().enumerate() {
            *value = if field < 64 && living >> field & 1 == 1 { self.value(field) } else { 0 };
        }
    }

    /// Whether some value of the row may be in the aux dictionary.
    fn uses_aux(&self) -> bool {
        let escaped = |inline| self.bucket.field(self.slot, inline) == inline.escape();
        self.table.aux.has_outside() || self.layout.fields.iter().flatten().any(|&inline| escaped(inline))
    }
}

/// The hash that orders an id among stripes and aux shards.
#[inline(always)]
pub(crate) fn hash_of(id: u64) -> u64 {
    let x = id.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x ^ (x >> 29) ^ (x >> 47)
}

impl Buckets {
    fn new(
        plan: &Plan,
        schema: &Schema,
        seed: u64,
        first_position: u64,
        budget: &Arc<Budget>,
    ) -> Result<Buckets, Error> {
        let layout = Layout::new(schema, plan.remainder_bits);
        let words = plan.buckets as usize * BUCKET_WORDS;
        if first_position + plan.buckets * layout.slots as u64 >= 1 << 32 {
            return Err(budget.full());
        }
        let grant = budget.take(words as u64 * 8)?;
        Ok(Buckets {
            keys: Keys::new(plan.base, plan.buckets, plan.remainder_bits, seed),
            layout,
            words: Words::zeroed(words).map_err(|_| Error::NoMemory)?,
            rows: AtomicU64::new(0),
            first_position,
            _grant: grant,
        })
    }

    #[inline(always)]
    fn bucket(&self, index: u64) -> Bucket<'_> {
        let at = index as usize * BUCKET_WORDS;
        Bucket::new(&self.words[at..at + BUCKET_WORDS], &self.layout)
    }

    /// Asks the cache for all lines of a bucket but the first.
    #[inline(always)]
    fn prefetch_slots(&self, index: u64) {
        let at = index as usize * BUCKET_WORDS;
        for line in 1..BUCKET_WORDS / 8 {
            self.words.prefetch(at + 8 * line);
        }
    }

    fn slots(&self) -> u64 {
        self.keys.buckets() * self.layout.slots as u64
    }

    fn position(&self, bucket: u64, slot: usize) -> u64 {
        self.first_position.wrapping_add(bucket.wrapping_mul(self.layout.slots as u64)).wrapping_add(slot as u64)
    }

    /// Runs `f(bucket, its number, slot)` on the row of `home`, again if it was torn.
    #[inline(always)]
    fn look<'a, R>(&'a self, home: Home, mut f: impl FnMut(Bucket<'a>, u64, usize) -> R) -> Looked<R> {
        let (mut index, mut step) = (home.bucket, 0);
        for probe in 0..PROBES {
            let tag = self.layout.tag(home.remainder, probe);
            // The slot will be in another line than the first bytes: fetch them at the same time, not one after the other.
            self.prefetch_slots(index);
            let (found, past) = self.bucket(index).read(|b| b.find(tag).map(|slot| f(b, index, slot)));
            if let Some(result) = found {
                return Looked::Found(result);
            }
            if !past {
                return Looked::Absent;
            }
            if step == 0 {
                step = self.keys.step(home.remainder);
            }
            index = self.keys.next(index, step);
        }
        Looked::Past
    }

    /// Takes a slot for a row that is not there, and has `fill` write its fields. `false`: all its probes are full.
    fn claim(&self, home: Home, mut fill: impl FnMut(Bucket<'_>, u64)) -> bool {
        let (mut index, step) = (home.bucket, self.keys.step(home.remainder));
        for probe in 0..PROBES {
            let bucket = self.bucket(index);
            let (free, past) = bucket.read(|b| b.free_slot().is_some());
            // A bucket that is full and says so already needs no lock.
            let done = (free || !past)
                && bucket.write(|b| match b.free_slot() {
                    Some(slot) => {
                        b.occupy(slot, self.layout.tag(home.remainder, probe));
                        fill(b, self.position(index, slot));
                        true
                    }
                    None => {
                        b.mark_past();
                        false
                    }
                });
            if done {
                self.rows.fetch_add(1, Relaxed);
                return true;
            }
            index = self.keys.next(index, step);
        }
        false
    }
}

impl Table {
    pub(crate) fn new(plan: &Plan, schema: Arc<Schema>, seed: u64, budget: &Arc<Budget>) -> Result<Table, Error> {
        let main = Buckets::new(plan, &schema, seed, 0, budget)?;
        let aux = Aux::new(main.slots(), budget)?;
        let segments: [OnceLock<Box<Buckets>>; SEGMENTS] = Default::default();
        let _ = segments[0].set(Box::new(main));
        Ok(Table {
            segments,
            growing: Mutex::new(()),
            aux,
            schema,
            budget: budget.clone(),
            seed,
            rows: AtomicU64::new(0),
            high: AtomicU64::new(0),
            rising: AtomicU64::new(0),
            reviewed: AtomicU64::new(0),
        })
    }

    #[inline(always)]
    fn main(&self) -> &Buckets {
        // Set by `new`.
        self.segments[0].get().unwrap_or_else(|| panic!("T1: a table has a main segment"))
    }

    fn segment(&self, index: usize) -> Option<&Buckets> {
        self.segments.get(index)?.get().map(|b| &**b)
    }

    fn extend(&self) -> impl Iterator<Item = &Buckets> {
        (1..SEGMENTS).map_while(|i| self.segment(i))
    }

    /// The schema that the rows are packed by.
    pub(crate) fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// The lowest and highest id that have a place here.
    pub(crate) fn span(&self) -> (u64, u64) {
        (self.main().keys.base(), self.main().keys.last())
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows.load(Relaxed)
    }

    pub(crate) fn extend_rows(&self) -> u64 {
        self.extend().map(|b| b.rows.load(Relaxed)).sum()
    }

    /// Slots of the main segment.
    pub(crate) fn slots(&self) -> u64 {
        self.main().slots()
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.main().layout
    }

    /// Rows at which the table is full enough to roll.
    pub(crate) fn roll_at(&self) -> u64 {
        (self.slots() as f64 * self.layout().roll_fill()) as u64
    }

    /// Whether ids came in rising order, by and large: then the next ones lie above.
    pub(crate) fn rises(&self) -> bool {
        self.rising.load(Relaxed) >= self.rows() / 16
    }

    pub(crate) fn high(&self) -> u64 {
        self.high.load(Relaxed)
    }

    /// Segments for extension.
    pub(crate) fn extensions(&self) -> usize {
        self.extend().count()
    }

    /// Bytes of buckets.
    pub(crate) fn bucket_bytes(&self) -> u64 {
        self.main().words.size_bytes() as u64 + self.extend_bytes()
    }

    pub(crate) fn extend_bytes(&self) -> u64 {
        self.extend().map(|b| b.words.size_bytes() as u64).sum()
    }

    /// Aux entries and their bytes.
    pub(crate) fn aux_size(&self) -> (u64, u64) {
        self.aux.size()
    }

    /// Whether so much has changed since the last review that another is worth while; notes it.
    pub(crate) fn review(&self) -> bool {
        let (rows, last) = (self.rows() + 1, self.reviewed.load(Relaxed));
        let due = rows.abs_diff(last) > last / 16;
        if due {
            self.reviewed.store(rows, Relaxed);
        }
        due
    }

    /// Buckets of the main segment.
    pub(crate) fn main_buckets(&self) -> u64 {
        self.main().keys.buckets()
    }

    /// Whether something went past this bucket of the main segment.
    pub(crate) fn is_past(&self, bucket: u64) -> bool {
        self.main().bucket(bucket).read(|_| ()).1
    }

    /// Where `id` would be; `None` if it lies outside the table's span.
    #[inline(always)]
    pub(crate) fn home(&self, id: u64) -> Option<Home> {
        self.main().keys.home(id)
    }

    /// Asks the cache for all of the bucket of `home`.
    pub(crate) fn prefetch(&self, home: Home) {
        self.main().words.prefetch(home.bucket as usize * BUCKET_WORDS);
        self.main().prefetch_slots(home.bucket);
    }

    /// Begins a search: asks the cache for the first line of the first bucket, which holds the first bytes of the tags.
    #[inline(always)]
    pub(crate) fn begin(&self, home: Home) -> Search {
        self.main().words.prefetch(home.bucket as usize * BUCKET_WORDS);
        Search { remainder: home.remainder, bucket: home.bucket, probe: 0, candidates: false }
    }

    /// The next step of a search in the main segment; `f` runs on the row when it is found. The search needs no version: the tag of a row that
    /// is there all the time is there at every moment (B1, T1). Its fields do.
    #[inline(always)]
    pub(crate) fn advance(&self, search: &mut Search, id: u64, mut f: impl FnMut(Row<'_>)) -> Step {
        let main = self.main();
        let bucket = main.bucket(search.bucket);
        let tag = main.layout.tag(search.remainder, search.probe);
        if search.candidates {
            let read = |bucket: Bucket<'_>| {
                let slot = bucket.find(tag)?;
                let position = main.position(search.bucket, slot);
                f(Row { table: self, layout: &main.layout, bucket, slot, position, hash: hash_of(id) });
                Some(())
            };
            if bucket.read(read).0.is_some() {
                return Step::Found;
            }
        } else {
            let first_word = search.bucket as usize * BUCKET_WORDS;
            let any = bucket.candidates(tag, |bit| {
                main.words.prefetch(first_word + bit as usize / 64);
                main.words.prefetch(first_word + (bit + main.layout.rest_bits - 1) as usize / 64);
            });
            if any {
                search.candidates = true;
                return Step::Waiting;
            }
        }
        if !bucket.is_past() {
            return Step::Absent;
        }
        search.probe += 1;
        if search.probe == PROBES {
            return Step::Past;
        }
        search.candidates = false;
        search.bucket = main.keys.next(search.bucket, main.keys.step(search.remainder));
        main.words.prefetch(search.bucket as usize * BUCKET_WORDS);
        Step::Waiting
    }

    /// Runs `f` on the row of `id`, if there is one; `f` may run several times, and what it makes of a torn row is thrown away.
    #[inline(always)]
    pub(crate) fn read<R>(&self, id: u64, f: impl FnMut(Row<'_>) -> R) -> Option<R> {
        self.read_at(self.home(id)?, id, f)
    }

    /// [`Table::read`] with the place already computed.
    #[inline(always)]
    pub(crate) fn read_at<R>(&self, home: Home, id: u64, mut f: impl FnMut(Row<'_>) -> R) -> Option<R> {
        let main = self.main();
        let hash = hash_of(id);
        match main.look(home, |bucket, index, slot| {
            f(Row { table: self, layout: &main.layout, bucket, slot, position: main.position(index, slot), hash })
        }) {
            Looked::Found(result) => Some(result),
            Looked::Absent => None,
            Looked::Past => self.read_extended(id, f),
        }
    }

    #[cold]
    fn read_extended<R>(&self, id: u64, mut f: impl FnMut(Row<'_>) -> R) -> Option<R> {
        let hash = hash_of(id);
        for b in self.extend() {
            let look = b.look(b.keys.home(id)?, |bucket, index, slot| {
                f(Row { table: self, layout: &b.layout, bucket, slot, position: b.position(index, slot), hash })
            });
            match look {
                Looked::Found(result) => return Some(result),
                Looked::Absent => return None,
                Looked::Past => {}
            }
        }
        None
    }

    /// Where the row of `id` is. For its writer, who alone may change it (T2).
    pub(crate) fn locate(&self, id: u64) -> Option<At> {
        for (segment, b) in (0..SEGMENTS).map_while(|i| Some((i, self.segment(i)?))) {
            match b.look(b.keys.home(id)?, |_, bucket, slot| At { segment, bucket, slot }) {
                Looked::Found(at) => return Some(at),
                Looked::Absent => return None,
                Looked::Past => {}
            }
        }
        None
    }

    /// The row at a place, for its writer: it needs no version, since nobody else changes these bits (B1, T2).
    pub(crate) fn row(&self, at: At, id: u64) -> Row<'_> {
        let b = self.segment(at.segment).unwrap_or_else(|| panic!("T1: a segment is never removed"));
        let position = b.position(at.bucket, at.slot);
        Row { table: self, layout: &b.layout, bucket: b.bucket(at.bucket), slot: at.slot, position, hash: hash_of(id) }
    }

    /// Stores `cells` (position and value) in the row of `id`: the one at `at`, as [`Table::locate`] said, or else a new one, of which the
    /// other fields are 0. The caller has seen to it that the id lies within the span.
    pub(crate) fn store(
        &self,
        id: u64,
        at: Option<At>,
        cells: impl Iterator<Item = (usize, i64)> + Clone,
    ) -> Result<(), Error> {
        let layout = self.layout();
        let goes_to_aux = |&(field, value): &(usize, i64)| match layout.inline(field) {
            Some(inline) => inline.encode(value) == inline.escape(),
            None => value != 0,
        };
        let needs = cells.clone().any(|cell| goes_to_aux(&cell));
        let row = at.map(|at| self.row(at, id));
        let mut shard = None;
        if needs || row.is_some_and(|row| row.uses_aux()) {
            let mut locked = self.aux.lock(hash_of(id));
            locked.reserve(cells.clone().filter(goes_to_aux).map(|cell| cell.1))?;
            shard = Some(locked);
        }
        match row {
            Some(row) => {
                row.bucket.write(|b| self.write_cells(row.layout, b, row.slot, row.position, cells, shard.as_mut()));
                if let Some(shard) = &mut shard {
                    shard.settle();
                }
                Ok(())
            }
            None => self.insert(id, cells, shard),
        }
    }

    fn insert(
        &self,
        id: u64,
        cells: impl Iterator<Item = (usize, i64)> + Clone,
        mut shard: Option<Shard<'_>>,
    ) -> Result<(), Error> {
        for index in 0..SEGMENTS {
            let b = match self.segment(index) {
                Some(b) => b,
                None => self.grow(index)?,
            };
            let home = b.keys.home(id).unwrap_or_else(|| panic!("T2: id {id} is outside {:?}", self.span()));
            let fill = |bucket: Bucket<'_>, position: u64| {
                let slot = ((position - b.first_position) % b.layout.slots as u64) as usize;
                self.write_cells(&b.layout, bucket, slot, position, cells.clone(), shard.as_mut());
            };
            if b.claim(home, fill) {
                self.rows.fetch_add(1, Relaxed);
                if id >= self.high.load(Relaxed) {
                    self.high.fetch_max(id, Relaxed);
                    // A lost count harms nothing.
                    self.rising.store(self.rising.load(Relaxed) + 1, Relaxed);
                }
                return Ok(());
            }
        }
        Err(self.budget.full())
    }

    /// Stores a row in the main segment of a table that nobody else knows yet, and of which nothing was ever deleted: without a lock, and
    /// uncounted ([`Table::count`]). False, and nothing has changed, if that is not all there is to it: a value that escapes, a row that
    /// is there already, probes that are all full. Then [`Table::store`] has the means.
    #[inline]
    pub(crate) fn fill(&self, home: Home, row: &[i64]) -> bool {
        let main = self.main();
        let Some(fields) = main.layout.pack(row) else { return false };
        let (mut index, mut step) = (home.bucket, 0);
        for probe in 0..PROBES {
            let bucket = main.bucket(index);
            let tag = main.layout.tag(home.remainder, probe);
            if bucket.find(tag).is_some() {
                return false;
            }
            // Where a slot is free nothing has gone past, so the row is not further on.
            if let Some(slot) = bucket.free_slot() {
                bucket.fill(slot, tag, fields);
                return true;
            }
            bucket.mark_past();
            if step == 0 {
                step = main.keys.step(home.remainder);
            }
            index = main.keys.next(index, step);
        }
        false
    }

    /// Counts rows that were stored by [`Table::fill`]; `high` is the highest id among them.
    pub(crate) fn count(&self, rows: u64, high: u64) {
        self.main().rows.fetch_add(rows, Relaxed);
        self.rows.fetch_add(rows, Relaxed);
        self.high.fetch_max(high, Relaxed);
    }

    /// Says whether ids come in rising order here: [`Table::rises`].
    pub(crate) fn set_rises(&self, rises: bool) {
        self.rising.store(if rises { self.rows() } else { 0 }, Relaxed);
    }

    /// Opens an extension segment.
    fn grow(&self, index: usize) -> Result<&Buckets, Error> {
        let _growing = self.growing.lock();
        if self.segment(index).is_none() {
            let (base, last) = self.span();
            let slots = (self.slots() / EXTEND_SHARE) << (index - 1);
            let plan = Plan::new(&self.schema, base, last, slots);
            let first_position = self.segment(index - 1).map_or(0, |b| b.first_position + b.slots());
            let b = Buckets::new(&plan, &self.schema, self.seed ^ index as u64, first_position, &self.budget)?;
            let _ = self.segments[index].set(Box::new(b));
        }
        self.segment(index).ok_or(Error::NoMemory)
    }

    /// Writes fields under the lock of their bucket; `shard` is locked if any of them was or becomes an aux entry (T3).
    fn write_cells(
        &self,
        layout: &Layout,
        bucket: Bucket<'_>,
        slot: usize,
        position: u64,
        cells: impl Iterator<Item = (usize, i64)>,
        mut shard: Option<&mut Shard<'_>>,
    ) {
        for (field, value) in cells {
            let inline = layout.inline(field);
            let (keep, drop) = match inline {
                Some(inline) => {
                    let was_escape = bucket.field(slot, inline) == inline.escape();
                    let code = inline.encode(value);
                    bucket.set_field(slot, inline, code);
                    (code == inline.escape(), was_escape)
                }
                None => (value != 0, true),
            };
            match &mut shard {
                Some(shard) if keep => shard.put(position, field, value, inline.is_none()),
                Some(shard) if drop => shard.remove(position, field, inline.is_none()),
                Some(_) => {}
                None => assert!(!keep && (!drop || inline.is_none()), "T3: field {field} needs its aux shard"),
            }
        }
    }

    /// Deletes the row of `id` at `at`.
    pub(crate) fn delete(&self, id: u64, at: At) {
        let row = self.row(at, id);
        let mut shard = row.uses_aux().then(|| self.aux.lock(hash_of(id)));
        row.bucket.write(|b| {
            if let Some(shard) = &mut shard {
                let fields = row.layout.fields.len().max(if self.aux.has_outside() { 64 } else { 0 });
                for field in 0..fields {
                    shard.remove(row.position, field, row.layout.inline(field).is_none());
                }
            }
            b.vacate(row.slot);
        });
        if let Some(shard) = &mut shard {
            shard.settle();
        }
        let segment = self.segment(at.segment).unwrap_or_else(|| panic!("T1: a segment is never removed"));
        segment.rows.fetch_sub(1, Relaxed);
        self.rows.fetch_sub(1, Relaxed);
    }

    /// How many buckets [`Table::visit`] knows.
    pub(crate) fn buckets(&self) -> u64 {
        (0..SEGMENTS).map_while(|i| self.segment(i)).map(|b| b.keys.buckets()).sum()
    }

    /// Hands the rows of the bucket with this number (over all segments) to `f`: id, probe and the row as it was at one moment, by
    /// `living`. `ids` and `values` are room to work in.
    pub(crate) fn visit(
        &self,
        number: u64,
        living: u64,
        width: usize,
        room: &mut Vec<i64>,
        mut f: impl FnMut(u64, u64, &[i64]),
    ) {
        let mut index = number;
        for b in (0..SEGMENTS).map_while(|i| self.segment(i)) {
            if index >= b.keys.buckets() {
                index -= b.keys.buckets();
                continue;
            }
            // Two numbers, then the values, per row.
            b.bucket(index).read(|bucket| {
                room.clear();
                for slot in 0..b.layout.slots {
                    let Some((remainder, probe)) = bucket.tag(slot) else { continue };
                    // What is torn makes no sense, but must do no harm.
                    let probe = probe.min(PROBES - 1);
                    let id = b.keys.id(index, probe, remainder);
                    let position = b.position(index, slot);
                    let row = Row { table: self, layout: &b.layout, bucket, slot, position, hash: hash_of(id) };
                    room.extend([id as i64, probe as i64]);
                    let at = room.len();
                    room.resize(at + width, 0);
                    row.values(living, &mut room[at..]);
                }
            });
            for row in room.chunks_exact(width + 2) {
                f(row[0] as u64, row[1] as u64, &row[2..]);
            }
            return;
        }
    }

    /// Ids of some rows, evenly picked, rising: at least `least` of them, if there are so many.
    pub(crate) fn sample(&self, least: u64) -> Vec<u64> {
        let mut ids = Vec::new();
        let mut room = Vec::new();
        let buckets = self.buckets();
        let wanted = (buckets * least).checked_div(self.rows()).unwrap_or(0) + 1;
        for i in 0..wanted.min(buckets) {
            let number = (u128::from(i) * u128::from(buckets) / u128::from(wanted.min(buckets))) as u64;
            self.visit(number, 0, 0, &mut room, |id, _, _| ids.push(id));
        }
        ids.sort_unstable();
        ids
    }
}
