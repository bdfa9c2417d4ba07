//! A table stores the rows of one id range.
//!
//! ```text
//!   main     segment 0: the buckets that the table was opened with
//!   extend   the extend dictionary: rows that found all their probes full. Segments, each twice
//!            the one before, read without a lock. Normally less than 0.1 % of the rows, or none.
//!   aux      exact values of fields that exceed their width
//! ```
//!
//! All segments cover the same id range. A search continues in the next segment only if all probed
//! buckets carry its overflow mark.
//!
//! Invariants:
//! - **T1** A row keeps its slot until it is deleted. A *position* therefore identifies the row,
//!   and no reader misses the row.
//! - **T2** The caller serialises the writes of one key (by the ring's stripe). Writes of different
//!   keys run concurrently.
//! - **T3** A field has an aux entry exactly if its code is the escape, or if its value is non-zero
//!   and the field has no inline bits in this table. Code and entry change under the lock of the
//!   row's bucket.
//! - **T4** A failed write changes nothing.
//!
//! Long: the methods are in one file because all of them use the private segments of a table.

use crate::Error;
use crate::aux_dictionary::{Aux, Shard};
use crate::bucket::{Bucket, OVERFLOW_MARKS};
use crate::buckets::{BucketLookup, Buckets};
use crate::budget::{Quota, Reservation};
use crate::key::{Home, MIN_BUCKETS, PROBES, hash_by, seed_of};
use crate::layout::Layout;
use crate::schema::Schema;
use crate::sizing::Sizing;
use parking_lot::Mutex;
use rolling::Slot;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Segments of a table: the main segment, and extensions that grow up to 128 times its size.
const SEGMENTS: usize = 17;
/// Divisor of the main segment's slots for the size of the first extension.
const EXTEND_SHARE: u64 = 256;
/// Number of buckets that [`Table::has_stale_marks`] samples.
const WEAR_BUCKETS: u64 = 512;

/// Location of a row.
#[derive(Clone, Copy)]
pub(crate) struct SlotPosition {
    segment: usize,
    bucket: u64,
    slot: usize,
}

pub(crate) struct Table {
    main: Buckets,
    extend: [OnceLock<Box<Buckets>>; SEGMENTS - 1],
    growth_lock: Mutex<()>,
    aux: Aux,
    schema: Arc<Schema>,
    quota: Quota,
    _grant: Reservation,
    seed: u64,
    rows: AtomicU64,
    /// Rows deleted since the table was opened: the current number, and the number at the last
    /// [`Table::has_stale_marks`] sample.
    deleted: AtomicU64,
    deleted_at_sample: AtomicU64,
    /// Highest inserted id, and the number of insertions that raised it. When a table is full, the
    /// space creates the next table if ids arrive in order. Otherwise the table must grow.
    high: AtomicU64,
    ascending_inserts: AtomicU64,
    /// Number of rows at the last [`Table::review`], plus one.
    reviewed_rows: AtomicU64,
    /// Number of insertions plus deletions at the last [`Table::settle`], plus one. `is_idle`: the
    /// flag that [`Table::settle`] sets.
    changes_at_idle_check: AtomicU64,
    is_idle: AtomicBool,
}

/// A row as a reader sees it. Only valid inside the closure that receives it.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    table: &'a Table,
    layout: &'a Layout,
    bucket: Bucket<'a>,
    slot: usize,
    position: u64,
    id: u64,
}

impl Row<'_> {
    /// Value of a field; 0 if this table does not know the field.
    #[inline(always)]
    pub(crate) fn value(&self, field: usize) -> i64 {
        if let Some(inline) = self.layout.inline(field) {
            let code = self.bucket.field(self.slot, inline);
            if code != inline.escape() {
                return code as i64;
            }
        } else if !self.table.aux.has_non_inline_entries() {
            return 0;
        }
        self.table.aux.value(self.table.hash(self.id), self.position, field)
    }

    /// Copies the values to `out`, by position. Positions outside `living` become 0.
    #[inline(always)]
    pub(crate) fn values(&self, living: u64, out: &mut [i64]) {
        if let Some(packed) = self.layout.plan_for(living, out.len())
            && packed.take(self.bucket.rest(self.slot), out)
        {
            return;
        }
        self.read_values_singly(living, out);
    }

    #[inline(never)]
    pub(crate) fn read_values_singly(&self, living: u64, out: &mut [i64]) {
        for (field, value) in out.iter_mut().enumerate() {
            *value = if field < 64 && living >> field & 1 == 1 { self.value(field) } else { 0 };
        }
    }

    /// Whether the value of a field is in the aux dictionary.
    pub(crate) fn is_in_aux(&self, field: usize) -> bool {
        match self.layout.inline(field) {
            Some(inline) => self.bucket.field(self.slot, inline) == inline.escape(),
            None => self.table.aux.has_non_inline_entries() && self.value(field) != 0,
        }
    }

    pub(crate) fn is_extended(&self) -> bool {
        !std::ptr::eq(self.layout, &self.table.main.layout)
    }

    /// Whether any value of the row may be in the aux dictionary.
    fn uses_aux(&self) -> bool {
        let escaped = |inline| self.bucket.field(self.slot, inline) == inline.escape();
        self.table.aux.has_non_inline_entries()
            || self.layout.fields.iter().flatten().any(|&inline| escaped(inline))
    }
}

/// Hash of an id that selects its stripe.
#[inline(always)]
pub(crate) fn hash_of(id: u64) -> u64 {
    let x = id.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x ^ (x >> 29) ^ (x >> 47)
}

impl Table {
    pub(crate) fn new(
        sizing: &Sizing,
        schema: Arc<Schema>,
        seed: u64,
        quota: &Quota,
    ) -> Result<Table, Error> {
        let reservation = quota.take(Table::FIXED_BYTES)?;
        let main = Buckets::new(sizing, &schema, seed, 0, quota)?;
        let aux = Aux::new(main.slots(), quota)?;
        Ok(Table {
            main,
            extend: Default::default(),
            growth_lock: Mutex::new(()),
            aux,
            schema,
            quota: quota.clone(),
            _grant: reservation,
            seed,
            rows: AtomicU64::new(0),
            deleted: AtomicU64::new(0),
            deleted_at_sample: AtomicU64::new(0),
            high: AtomicU64::new(0),
            ascending_inserts: AtomicU64::new(0),
            reviewed_rows: AtomicU64::new(0),
            changes_at_idle_check: AtomicU64::new(0),
            is_idle: AtomicBool::new(false),
        })
    }

    /// Bytes of a table apart from its segments: mainly its slot in the ring.
    pub(crate) const FIXED_BYTES: u64 = (Slot::<Table>::BYTES - size_of::<Buckets>()) as u64;

    /// Seed of this table, unique within the space.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Hash of an id that selects an aux shard.
    #[inline(always)]
    fn hash(&self, id: u64) -> u64 {
        hash_by(self.seed, id)
    }

    #[inline(always)]
    pub(crate) fn main(&self) -> &Buckets {
        &self.main
    }

    fn segment(&self, index: usize) -> Option<&Buckets> {
        match index.checked_sub(1) {
            None => Some(&self.main),
            Some(extend) => self.extend.get(extend)?.get().map(|segment| &**segment),
        }
    }

    fn extend(&self) -> impl Iterator<Item = &Buckets> {
        (1..SEGMENTS).map_while(|i| self.segment(i))
    }

    /// Schema of the table's layout.
    pub(crate) fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Lowest and highest id that the table can store.
    pub(crate) fn span(&self) -> (u64, u64) {
        (self.main().keys.base(), self.main().keys.last())
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows.load(Relaxed)
    }

    pub(crate) fn extend_rows(&self) -> u64 {
        self.extend().map(|b| b.rows.load(Relaxed)).sum()
    }

    pub(crate) fn slots(&self) -> u64 {
        self.main().slots()
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.main().layout
    }

    /// Number of rows at which the table is closed.
    pub(crate) fn roll_at(&self) -> u64 {
        (self.slots() as f64 * self.layout().close_load_factor()) as u64
    }

    /// Whether ids mostly arrived in ascending order.
    pub(crate) fn is_ascending(&self) -> bool {
        self.ascending_inserts.load(Relaxed) >= self.rows() / 16
    }

    pub(crate) fn high(&self) -> u64 {
        self.high.load(Relaxed)
    }

    /// Whether all segments exist. If so, a row that finds no slot needs a rewrite of the table.
    pub(crate) fn has_all_segments(&self) -> bool {
        self.segment(SEGMENTS - 1).is_some()
    }

    /// Number of extension segments.
    pub(crate) fn extensions(&self) -> usize {
        self.extend().count()
    }

    /// Bytes of the main segment's buckets.
    pub(crate) fn main_bytes(&self) -> u64 {
        self.main_buckets() * self.layout().words as u64 * 8
    }

    pub(crate) fn bytes(&self) -> u64 {
        Table::FIXED_BYTES + self.main().bytes() + self.extend_bytes() + self.aux_size().1
    }

    /// Slots of the extend dictionary.
    pub(crate) fn extend_slots(&self) -> u64 {
        self.extend().map(Buckets::slots).sum()
    }

    pub(crate) fn extend_bytes(&self) -> u64 {
        self.extend().map(Buckets::bytes).sum()
    }

    /// Whether any field without inline bits in this table has a value.
    pub(crate) fn has_non_inline_entries(&self) -> bool {
        self.aux.has_non_inline_entries()
    }

    /// Number of aux entries, and their bytes.
    pub(crate) fn aux_size(&self) -> (u64, u64) {
        self.aux.size()
    }

    /// Returns whether the number of rows changed by a sixteenth since the last review. If so,
    /// records the current number for the next review.
    pub(crate) fn review(&self) -> bool {
        let (rows, last) = (self.rows() + 1, self.reviewed_rows.load(Relaxed));
        let due = rows.abs_diff(last) > last / 16;
        if due {
            self.reviewed_rows.store(rows, Relaxed);
        }
        due
    }

    /// Sets the idle flag if at most one row in 1,024 was inserted or deleted since the last call,
    /// and clears it otherwise.
    pub(crate) fn settle(&self) {
        let rows = self.rows() + 1;
        // Insertions (rows + deletions) plus deletions.
        let changes = rows + 2 * self.deleted.load(Relaxed);
        let since = changes.abs_diff(self.changes_at_idle_check.swap(changes, Relaxed));
        self.is_idle.store(since <= rows / 1024, Relaxed);
    }

    /// Whether deletions have left too many overflow marks: the share of misses that continue past
    /// buckets with a free slot exceeds `most`. Samples only if a quarter of the rows were deleted
    /// since the last sample.
    pub(crate) fn has_stale_marks(&self, most: f64) -> bool {
        let deleted = self.deleted.load(Relaxed);
        if deleted - self.deleted_at_sample.load(Relaxed).min(deleted) <= self.rows() / 4 {
            return false;
        }
        self.deleted_at_sample.store(deleted, Relaxed);
        let buckets = self.main_buckets();
        let sampled = buckets.min(WEAR_BUCKETS);
        // A bucket that was never full has no marks; a bucket that is full may need its marks.
        let free = |bucket: &Bucket<'_>| bucket.free_slot().is_some();
        let looked = (0..sampled).map(|i| self.main().bucket(i * buckets / sampled)).filter(free);
        let (looked, marks) =
            looked.fold((0, 0), |(n, marks), bucket| (n + 1, marks + bucket.head().marks()));
        // If there are too few such buckets, the sample is not significant.
        looked >= sampled / 16
            && f64::from(marks) > most * f64::from(OVERFLOW_MARKS) * looked as f64
    }

    /// Returns the idle flag of [`Table::settle`] and clears it.
    pub(crate) fn take_idle_flag(&self) -> bool {
        self.is_idle.load(Relaxed) && self.is_idle.swap(false, Relaxed)
    }

    pub(crate) fn main_buckets(&self) -> u64 {
        self.main().keys.buckets()
    }

    /// Share of misses that continue past a bucket of the main segment.
    pub(crate) fn overflow_probe_share(&self, bucket: u64) -> f64 {
        f64::from(self.main().bucket(bucket).head().marks()) / f64::from(OVERFLOW_MARKS)
    }

    /// Returns the home of `id`, or `None` if the id is outside the span.
    #[inline(always)]
    pub(crate) fn home(&self, id: u64) -> Option<Home> {
        self.main().keys.home(id)
    }

    pub(crate) fn prefetch(&self, home: Home) {
        self.main().prefetch(home.bucket);
    }

    /// Runs `f` on the row of `id`, if it exists. `f` may run several times; results from torn rows
    /// are discarded.
    #[inline(always)]
    pub(crate) fn read<R>(&self, id: u64, f: impl FnMut(Row<'_>) -> R) -> Option<R> {
        self.read_at(self.home(id)?, id, f)
    }

    /// Like [`Table::read`], for a caller that has already computed the home of `id`.
    #[inline(always)]
    pub(crate) fn read_at<R>(
        &self,
        home: Home,
        id: u64,
        mut f: impl FnMut(Row<'_>) -> R,
    ) -> Option<R> {
        let main = self.main();
        match main.look(home, |bucket, index, slot| {
            f(Row {
                table: self,
                layout: &main.layout,
                bucket,
                slot,
                position: main.position(index, slot),
                id,
            })
        }) {
            BucketLookup::Found(result) => Some(result),
            BucketLookup::Absent => None,
            BucketLookup::Overflowed => self.read_extended(id, f),
        }
    }

    /// Returns the row in a slot of the main segment, for a reader that has already located the
    /// row.
    #[inline(always)]
    pub(crate) fn row_in<'a>(
        &'a self,
        bucket: Bucket<'a>,
        index: u64,
        slot: usize,
        id: u64,
    ) -> Row<'a> {
        let main = &self.main;
        Row {
            table: self,
            layout: &main.layout,
            bucket,
            slot,
            position: main.position(index, slot),
            id,
        }
    }

    #[cold]
    fn read_extended<R>(&self, id: u64, mut f: impl FnMut(Row<'_>) -> R) -> Option<R> {
        for b in self.extend() {
            let look = b.look(b.keys.home(id)?, |bucket, index, slot| {
                f(Row {
                    table: self,
                    layout: &b.layout,
                    bucket,
                    slot,
                    position: b.position(index, slot),
                    id,
                })
            });
            match look {
                BucketLookup::Found(result) => return Some(result),
                BucketLookup::Absent => return None,
                BucketLookup::Overflowed => {}
            }
        }
        None
    }

    /// Locates the row of `id`. Requires the row's stripe (T2).
    pub(crate) fn locate(&self, id: u64) -> Option<SlotPosition> {
        for (segment, b) in (0..SEGMENTS).map_while(|i| Some((i, self.segment(i)?))) {
            match b.look(b.keys.home(id)?, |_, bucket, slot| SlotPosition { segment, bucket, slot })
            {
                BucketLookup::Found(at) => return Some(at),
                BucketLookup::Absent => return None,
                BucketLookup::Overflowed => {}
            }
        }
        None
    }

    /// Returns the row at a location. Requires the row's stripe: no other thread then changes these
    /// bits, so no version check is needed (B1, T2).
    pub(crate) fn row(&self, at: SlotPosition, id: u64) -> Row<'_> {
        let b =
            self.segment(at.segment).unwrap_or_else(|| panic!("T1: a segment is never removed"));
        let position = b.position(at.bucket, at.slot);
        Row {
            table: self,
            layout: &b.layout,
            bucket: b.bucket(at.bucket),
            slot: at.slot,
            position,
            id,
        }
    }

    /// Stores `cells`, position and value, in the row of `id`. `at` is the result of
    /// [`Table::locate`]; if it is `None`, a new row is inserted, with 0 in all other fields. The
    /// id must be within the span.
    pub(crate) fn store(
        &self,
        id: u64,
        at: Option<SlotPosition>,
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
            let mut locked = self.aux.lock(self.hash(id));
            locked.reserve(row.map(|row| row.position), cells.clone().filter(goes_to_aux))?;
            shard = Some(locked);
        }
        match row {
            Some(row) => {
                row.bucket.write(|b| {
                    self.write_cells(row.layout, b, row.slot, row.position, cells, shard.as_mut())
                });
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
            let home = b
                .keys
                .home(id)
                .unwrap_or_else(|| panic!("T2: id {id} is outside {:?}", self.span()));
            let fill = |bucket: Bucket<'_>, position: u64| {
                let slot = ((position - b.first_position) % b.layout.slots as u64) as usize;
                self.write_cells(&b.layout, bucket, slot, position, cells.clone(), shard.as_mut());
            };
            if b.claim(home, fill) {
                self.rows.fetch_add(1, Relaxed);
                if id >= self.high.load(Relaxed) {
                    self.high.fetch_max(id, Relaxed);
                    // Approximate: concurrent increments may be lost.
                    self.ascending_inserts.store(self.ascending_inserts.load(Relaxed) + 1, Relaxed);
                }
                return Ok(());
            }
        }
        Err(self.quota.full())
    }

    /// Stores a row in the main segment of a private table without deletions. Takes no lock and
    /// does not count the row; see [`Table::count`].
    ///
    /// Returns false, and changes nothing, if the row needs [`Table::store`]: a value escapes, the
    /// row exists, or all probed buckets are full.
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
            // A bucket with a free slot was never full, so the row is not at a later probe.
            if let Some(slot) = bucket.free_slot() {
                bucket.fill(slot, tag, fields);
                return true;
            }
            bucket.set_overflow_mark(home.remainder);
            if step == 0 {
                step = main.keys.step(home.remainder);
            }
            index = main.keys.next(index, step);
        }
        false
    }

    /// Counts rows stored by [`Table::fill`]; `high` is their highest id.
    pub(crate) fn count(&self, rows: u64, high: u64) {
        self.main().rows.fetch_add(rows, Relaxed);
        self.rows.fetch_add(rows, Relaxed);
        self.high.fetch_max(high, Relaxed);
    }

    pub(crate) fn set_ascending(&self, is_ascending: bool) {
        self.ascending_inserts.store(if is_ascending { self.rows() } else { 0 }, Relaxed);
    }

    /// Opens extension segment number `index`.
    fn grow(&self, index: usize) -> Result<&Buckets, Error> {
        let _growing = self.growth_lock.lock();
        if self.segment(index).is_none() {
            let (base, last) = self.span();
            // The lower bound also doubles, so each extension is twice as large as the previous
            // extension.
            let slots = (self.slots() / EXTEND_SHARE).max(MIN_BUCKETS * 12) << (index - 1);
            let sizing = Sizing::new(&self.schema, base, last, slots);
            let first_position =
                self.segment(index - 1).map_or(0, |b| b.first_position + b.slots());
            let b = Buckets::new(
                &sizing,
                &self.schema,
                seed_of(self.seed, index as u64),
                first_position,
                &self.quota,
            )?;
            let _ = self.extend[index - 1].set(Box::new(b));
        }
        self.segment(index).ok_or(Error::NoMemory)
    }

    /// Writes fields under the lock of their bucket. `shard` must be locked if any field has or
    /// gets an aux entry (T3).
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
                None => assert!(
                    !keep && (!drop || inline.is_none()),
                    "T3: field {field} needs its aux shard"
                ),
            }
        }
    }

    pub(crate) fn delete(&self, id: u64, at: SlotPosition) {
        let row = self.row(at, id);
        let mut shard = row.uses_aux().then(|| self.aux.lock(self.hash(id)));
        row.bucket.write(|b| {
            if let Some(shard) = &mut shard {
                let fields = row.layout.fields.len().max(if self.aux.has_non_inline_entries() {
                    64
                } else {
                    0
                });
                for field in 0..fields {
                    shard.remove(row.position, field, row.layout.inline(field).is_none());
                }
            }
            b.vacate(row.slot);
        });
        if let Some(shard) = &mut shard {
            shard.settle();
        }
        let segment =
            self.segment(at.segment).unwrap_or_else(|| panic!("T1: a segment is never removed"));
        segment.rows.fetch_sub(1, Relaxed);
        self.rows.fetch_sub(1, Relaxed);
        // Approximate: concurrent increments may be lost.
        self.deleted.store(self.deleted.load(Relaxed) + 1, Relaxed);
    }

    /// Number of buckets in all segments.
    pub(crate) fn buckets(&self) -> u64 {
        (0..SEGMENTS).map_while(|i| self.segment(i)).map(|b| b.keys.buckets()).sum()
    }

    /// Passes the rows of one bucket, numbered across all segments, to `f`: id, probe number and
    /// values. `room` is a scratch buffer.
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
            // In the buffer, each row consists of two numbers followed by its values.
            b.bucket(index).read(|bucket| {
                room.clear();
                for slot in 0..b.layout.slots {
                    let Some((remainder, probe)) = bucket.tag(slot) else { continue };
                    // A torn row may have any probe number; the result is discarded.
                    let probe = probe.min(PROBES - 1);
                    let id = b.keys.id(index, probe, remainder);
                    let position = b.position(index, slot);
                    let row = Row { table: self, layout: &b.layout, bucket, slot, position, id };
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

    /// Returns at least `least` ids of the table, evenly sampled and ascending; all ids if there
    /// are fewer.
    pub(crate) fn sample(&self, least: u64) -> Vec<u64> {
        let mut ids = Vec::new();
        let mut room = Vec::new();
        let buckets = self.buckets();
        let wanted = (buckets * least).checked_div(self.rows()).unwrap_or(0) + 1;
        for i in 0..wanted.min(buckets) {
            let number =
                (u128::from(i) * u128::from(buckets) / u128::from(wanted.min(buckets))) as u64;
            self.visit(number, 0, 0, &mut room, |id, _, _| ids.push(id));
        }
        ids.sort_unstable();
        ids
    }
}
