//! A counter space: the ring of tables, what lies ahead of it, its schema and its memory.
//!
//! ```text
//!   id --> aside (ids far ahead of all others)             exact, normally empty
//!      \-> ring --> entry --> [drained table, during a rewrite] --> table --> segments
//!          --> bucket --> slot
//! ```
//!
//! Reads are in read.rs, writes in write.rs, background work in rewrite.rs; this file has what
//! they share.

use crate::budget::{Budget, Quota, Reservation};
use crate::cold_backend::ColdBackend;
use crate::key::seed_of;
use crate::retirement::Retirement;
use crate::rewrite_state::Rewrite;
use crate::schema::{Alteration, Schema};
use crate::sizing::Sizing;
use crate::table::Table;
use crate::tombstones::Tombstones;
use crate::{Error, Field};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rolling::{Frontier, Outliers, Ring, Slot, Tables};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, OnceLock};

/// The first table of a space, when nothing is known of its ids, is made for so many rows; each
/// later one for up to [`GROWTH`] times the one before ...
pub(crate) const FIRST_ROWS: u64 = 1024;
pub(crate) const GROWTH: u64 = 4;
/// ... and for one in so many of the rows that are there, but for no fewer than fill about a huge
/// page.
pub(crate) const GROWTH_PART: u64 = 8;
pub(crate) const LEAST_STEP_ROWS: u64 = 1 << 18;

/// A table is made for so many rows at most.
const MOST_ROWS_PER_TABLE: u64 = 1 << 31;

/// How a space is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// The fields.
    pub schema: Schema,
    /// Rows after which a table rolls, or is split. More means fewer tables; a table is the unit of
    /// a spill, and is copied when it is rewritten. Default 1,048,576.
    pub rows_per_table: u64,
    /// Bytes that the space may take, everything counted; beyond them writes that need memory fail
    /// with [`Error::Full`]. While a table is replaced by a smaller one it may be more by that one.
    /// Default 16 GiB.
    pub memory_limit_bytes: u64,
    /// Ids further than this above the highest one are refused. Default: none are.
    pub max_ahead: Option<u64>,
    /// Rows far ahead of all others that wait for others that lie close to them: a sixteenth of
    /// them, or as many as have 4,096 writes, get tables of their own if they lie together; more
    /// than this if they do not. 0 counts as 1. Default 65,536.
    pub max_aside: usize,
    /// Keys the hash of the tables, so that no client can choose ids that meet in one bucket.
    /// In memory only. Default 0.
    pub seed: u64,
}

impl Options {
    /// The defaults, with this schema.
    pub fn new(schema: Schema) -> Options {
        Options {
            schema,
            rows_per_table: 1 << 20,
            memory_limit_bytes: 16 << 30,
            max_ahead: None,
            max_aside: 1 << 16,
            seed: 0,
        }
    }
}

/// A row in the outliers.
pub(crate) struct OutlierRow {
    /// By position; may be shorter or longer than the schema is now.
    pub(crate) values: Box<[i64]>,
    /// Writes so far, for the frontier's start.
    pub(crate) writes: u32,
    /// What the id is counted as; empty once a later version has it. Only the version that writers
    /// see is counted: another one is there for as long as a reader looks at it, a map's worth for
    /// each of them at most, and keeps no memory from writers meanwhile.
    reservation: Mutex<Reservation>,
}

impl OutlierRow {
    /// What a row of so many values is counted as: it, its key, and its share of the map's nodes.
    pub(crate) fn bytes(width: usize) -> u64 {
        144 + 8 * width as u64
    }

    /// The row that comes of `old` by setting `cells`, as readers see it whole: before that the old
    /// one, and then this one. It takes over what `old` is counted as, and is to replace it: `old`
    /// must be the version that writers see.
    pub(crate) fn after(
        old: Option<&OutlierRow>,
        cells: &[(usize, i64)],
        quota: &Quota,
    ) -> Result<OutlierRow, Error> {
        let before: &[i64] = old.map_or(&[], |row| &row.values);
        let width = cells.iter().map(|c| c.0 + 1).max().unwrap_or(0).max(before.len());
        let more =
            OutlierRow::bytes(width) - old.map_or(0, |row| OutlierRow::bytes(row.values.len()));
        // A write that needs no memory is never refused, however much is in use.
        let mut reservation = if more > 0 { quota.take(more)? } else { quota.charge(0) };
        if let Some(old) = old {
            reservation.absorb(std::mem::replace(&mut *old.reservation.lock(), quota.charge(0)));
        }
        let mut values = vec![0; width].into_boxed_slice();
        values[..before.len()].copy_from_slice(before);
        cells.iter().for_each(|&(field, value)| values[field] = value);
        let writes = old.map_or(0, |row| row.writes).saturating_add(1);
        Ok(OutlierRow { values, writes, reservation: Mutex::new(reservation) })
    }
}

/// The schema, and what readers need of it at hand.
pub(crate) struct Shape {
    pub(crate) schema: Arc<Schema>,
    /// A bit per position that is not dropped.
    pub(crate) living: u64,
    /// A bit per position with declared bounds.
    pub(crate) bounded: u64,
}

impl Shape {
    fn new(schema: Schema) -> Arc<Shape> {
        let living = schema.living().fold(0, |bits, (i, _)| bits | 1 << i);
        let bounded = schema.living().filter(|(_, field)| field.bounds.is_bounded());
        let bounded = bounded.fold(0, |bits, (i, _)| bits | 1 << i);
        Arc::new(Shape { schema: Arc::new(schema), living, bounded })
    }

    /// A bit per position that is not dropped and has no declared bounds.
    fn plain(&self) -> u64 {
        self.living & !self.bounded
    }
}

/// A named set of ids with one schema. All methods may be called from any thread.
pub struct Space {
    pub(crate) shape: ArcSwap<Shape>,
    /// A bit per field that is not dropped and has no declared bounds: what each write asks first.
    /// Where it names no others, it asks no more.
    pub(crate) plain: AtomicU64,
    pub(crate) ring: Ring<Table>,
    pub(crate) frontier: Frontier,
    pub(crate) outliers: Outliers<OutlierRow>,
    pub(crate) budget: Arc<Budget>,
    /// What tables, but for those of a rewrite, and rows of the outliers take their memory from.
    pub(crate) quota: Quota,
    pub(crate) rows_per_table: AtomicU64,
    pub(crate) max_aside: usize,
    seed: u64,
    /// Tables that were made: each has a seed of its own.
    tables_made: AtomicU64,
    /// Held while a table is opened above the newest.
    pub(crate) rolling: Mutex<()>,
    /// Held during background work; the rewrite under way.
    pub(crate) rewriting: Mutex<Option<Rewrite>>,
    /// Tables that were replaced, while a reader may still have them: none is to unmap what he has
    /// just read.
    pub(crate) retired: Mutex<Vec<Arc<Slot<Table>>>>,
    /// The rewrite that was worked at last is of a crowded table.
    pub(crate) hurries: AtomicBool,
    /// Something has happened that background work may want to look at.
    pub(crate) stirred: AtomicBool,
    /// Bytes in use when there was no memory to begin a rewrite with: until some come back writers
    /// need not try.
    pub(crate) refused_at: AtomicU64,
    /// Serialises changes of the schema.
    altering: Mutex<()>,
    /// Keeps rows that are not in memory, once it is set.
    pub(crate) below: OnceLock<Box<dyn ColdBackend>>,
    /// Ids below this may have their rows there. Rises before any row leaves.
    pub(crate) cold_end: AtomicU64,
    pub(crate) tombstones: Tombstones,
    pub(crate) retirement: Retirement,
}

impl Space {
    /// An empty space. Takes a few dozen KiB; memory grows by table.
    pub fn new(options: Options) -> Result<Space, Error> {
        let budget = Budget::new(options.memory_limit_bytes);
        let shape = Shape::new(options.schema);
        let rows_per_table = options.rows_per_table.clamp(1, MOST_ROWS_PER_TABLE);
        let max_aside = options.max_aside.max(1);
        let sizing = Sizing::new(&shape.schema, 0, u64::MAX, FIRST_ROWS.min(rows_per_table));
        let quota = budget.quota(0);
        let first = Table::new(&sizing, shape.schema.clone(), seed_of(options.seed, 0), &quota)?;
        Ok(Space {
            plain: AtomicU64::new(shape.plain()),
            shape: ArcSwap::new(shape),
            ring: Ring::new(0, first),
            frontier: Frontier::new(options.max_ahead, max_aside),
            outliers: Outliers::default(),
            tombstones: Tombstones::new(&budget),
            budget,
            quota,
            rows_per_table: AtomicU64::new(rows_per_table),
            max_aside,
            seed: options.seed,
            tables_made: AtomicU64::new(1),
            rolling: Mutex::new(()),
            rewriting: Mutex::new(None),
            retired: Mutex::default(),
            hurries: AtomicBool::new(false),
            stirred: AtomicBool::new(false),
            refused_at: AtomicU64::new(u64::MAX),
            altering: Mutex::new(()),
            below: OnceLock::new(),
            retirement: Retirement::default(),
            cold_end: AtomicU64::new(0),
        })
    }

    /// A table that no other thread knows yet.
    pub(crate) fn new_table(
        &self,
        sizing: &Sizing,
        schema: Arc<Schema>,
        quota: &Quota,
    ) -> Result<Table, Error> {
        Table::new(
            sizing,
            schema,
            seed_of(self.seed, self.tables_made.fetch_add(1, Relaxed)),
            quota,
        )
    }

    /// The schema as it is now.
    pub fn schema(&self) -> Arc<Schema> {
        self.shape.load().schema.clone()
    }

    /// The position of a living field, if there is one of that name.
    #[inline]
    pub fn index_of(&self, name: &[u8]) -> Option<usize> {
        self.shape.load().schema.index_of(name)
    }

    /// Changes the schema, at once and without a pause: tables that are there keep the bits that
    /// they have, answer 0 for a new field and keep what is written to it in their aux dictionary,
    /// until background work has rewritten them. Returns the new schema.
    pub fn alter(&self, change: &Alteration) -> Result<Arc<Schema>, Error> {
        let _altering = self.altering.lock();
        let shape = Shape::new(self.shape.load().schema.altered(change)?);
        self.take_shape(shape.clone());
        Ok(shape.schema.clone())
    }

    /// With `altering` held. A field is known to readers before it is written, and to writers for a
    /// moment after it was dropped: to one that had looked just before.
    fn take_shape(&self, shape: Arc<Shape>) {
        let plain = shape.plain();
        self.shape.store(shape);
        self.plain.store(plain, Release);
        self.stirred.store(true, Relaxed);
    }

    /// Takes over a schema that this space had, or its source has, as it is said in a log or a
    /// snapshot: a later one replaces ours, an earlier one changes nothing. So a history may be
    /// told again from any point, as for rows.
    pub fn adopt(&self, told: &Schema) -> Result<(), Error> {
        let _altering = self.altering.lock();
        let ours = self.schema();
        if let Some((a, b)) =
            ours.fields().iter().zip(told.fields()).find(|(a, b)| a.name != b.name)
        {
            return Err(Error::BadSchema(format!("field '{}' where '{}' is", b.name, a.name)));
        }
        let earlier = told.width() < ours.width()
            || ours
                .fields()
                .iter()
                .zip(told.fields())
                .any(|(ours, told)| ours.dropped && !told.dropped);
        if !earlier && *told != *ours {
            self.take_shape(Shape::new(told.clone()));
        }
        Ok(())
    }

    /// Rows, those far ahead included. While a row moves between tables it may be counted twice.
    pub fn rows(&self) -> u64 {
        let tables = self.ring.load();
        let mut rows = self.outliers.len() as u64;
        all_tables(&tables).for_each(|table| rows += table.rows());
        rows
    }

    /// Bytes taken: tables, extend and aux dictionaries, the outliers, deleted ids whose rows lie
    /// below the line. Counted when mapped, touched or not.
    pub fn memory_bytes(&self) -> u64 {
        self.budget.used()
    }

    /// The limit of [`Space::memory_bytes`].
    pub fn memory_limit_bytes(&self) -> u64 {
        self.budget.limit()
    }

    /// Bytes that the memory limit last refused to grant.
    pub fn refused_bytes(&self) -> u64 {
        self.budget.refused()
    }

    /// Changes the limit: rows that are there stay, whatever it is. A recovery lifts it, so that
    /// what was accepted once is accepted again.
    pub fn set_memory_limit_bytes(&self, limit: u64) {
        self.budget.set_limit(limit);
    }

    /// Changes what tables are made for from now on, and which ids are refused.
    pub fn set_limits(&self, rows_per_table: u64, max_ahead: Option<u64>) {
        self.rows_per_table.store(rows_per_table.clamp(1, MOST_ROWS_PER_TABLE), Relaxed);
        self.frontier.set_limits(max_ahead, self.max_aside);
    }

    /// The position and definition of a living field.
    pub fn field(&self, name: &[u8]) -> Result<(usize, Field), Error> {
        let schema = self.schema();
        let at = schema
            .index_of(name)
            .ok_or_else(|| Error::NoField(String::from_utf8_lossy(name).into_owned()))?;
        Ok((at, schema.fields()[at].clone()))
    }
}

/// All tables, by rising ids; one that is drained before those that it is drained into, once.
pub(crate) fn all_tables(tables: &Tables<Table>) -> impl Iterator<Item = &Table> {
    let mut before = std::ptr::null();
    tables.entries().iter().flat_map(move |entry| {
        let drained = entry.drains().filter(|&old| !std::ptr::eq(old, before));
        before = entry.drains().map_or(std::ptr::null(), std::ptr::from_ref);
        drained.map(Slot::table).into_iter().chain([entry.table()])
    })
}
