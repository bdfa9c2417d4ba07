//! A counter space: a ring of tables, the outliers (ids far above all tables), the schema and a
//! memory budget.
//!
//! ```text
//!   id --> outliers (ids far above all others)             exact, normally empty
//!      \-> ring --> entry --> [drained table, during a rewrite] --> table --> segments
//!          --> bucket --> slot
//! ```
//!
//! This file holds the shared state. Reads are in read.rs, writes in write.rs, background work in
//! rewrite.rs.

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

/// Number of rows for which the first table of a new space is sized.
pub(crate) const FIRST_ROWS: u64 = 1024;
/// Maximum ratio of a new table's rows to the rows of the table below it.
pub(crate) const MAX_TABLE_GROWTH: u64 = 4;
/// Divisor of the number of rows in the space: a new table is sized for at most the quotient, or
/// for [`MIN_STEP_ROWS`] if that is more.
pub(crate) const MAX_TABLE_PART: u64 = 8;
/// Lower bound of the limit that [`MAX_TABLE_PART`] determines: about as many rows as fit in one
/// huge page.
pub(crate) const MIN_STEP_ROWS: u64 = 1 << 18;

/// Upper bound of [`Options::rows_per_table`].
const MAX_ROWS_PER_TABLE: u64 = 1 << 31;

/// Options of a new space.
#[derive(Clone, Debug)]
pub struct Options {
    /// Schema of the rows.
    pub schema: Schema,
    /// Number of rows at which a table is closed or split. A higher number means fewer tables, but
    /// a table is also the unit of spills and rewrites. Default 1,048,576.
    pub rows_per_table: u64,
    /// Limit of the space's memory in bytes, including all overhead. Writes that need more fail
    /// with [`Error::Full`]. Replacing a table by a smaller one may exceed the limit by the size of
    /// the new table. Default 16 GiB.
    pub memory_limit_bytes: u64,
    /// Maximum distance of a new id above the highest existing id. Default: unlimited.
    pub max_ahead: Option<u64>,
    /// Number of outliers at which the space moves outliers into tables even if their ids are far
    /// apart. A group of nearby outliers is moved into a table at a sixteenth of this number of
    /// rows or writes, or at 4,096 if that is less. 0 counts as 1. Default 65,536.
    pub max_outliers: usize,
    /// Secret key of the hash function of the tables. Clients that do not know it cannot choose ids
    /// whose hashes collide. Never written to disk. Default 0.
    pub seed: u64,
}

impl Options {
    /// Returns the default options for a schema.
    pub fn new(schema: Schema) -> Options {
        Options {
            schema,
            rows_per_table: 1 << 20,
            memory_limit_bytes: 16 << 30,
            max_ahead: None,
            max_outliers: 1 << 16,
            seed: 0,
        }
    }
}

/// A row of the outlier map.
pub(crate) struct OutlierRow {
    /// Values by position; may be shorter or longer than the current schema.
    pub(crate) values: Box<[i64]>,
    /// Number of writes, which determines when the first range of the frontier is created.
    pub(crate) writes: u32,
    /// Reservation of the row, moved to the next version on a write. Only the current version is
    /// accounted. An older version is kept as long as a reader uses it.
    reservation: Mutex<Reservation>,
}

impl OutlierRow {
    /// Accounted bytes of a row of `width` values: row, key and a share of the map's nodes.
    pub(crate) fn bytes(width: usize) -> u64 {
        144 + 8 * width as u64
    }

    /// Creates the version of a row that follows `old`, with `cells` set. Takes over the
    /// reservation of `old`, which must be the current version.
    pub(crate) fn after(
        old: Option<&OutlierRow>,
        cells: &[(usize, i64)],
        quota: &Quota,
    ) -> Result<OutlierRow, Error> {
        let before: &[i64] = old.map_or(&[], |row| &row.values);
        let width = cells.iter().map(|c| c.0 + 1).max().unwrap_or(0).max(before.len());
        let more =
            OutlierRow::bytes(width) - old.map_or(0, |row| OutlierRow::bytes(row.values.len()));
        // A write that needs no memory succeeds even when usage exceeds the limit.
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

/// A schema, with bitmaps for the hot paths.
pub(crate) struct Shape {
    pub(crate) schema: Arc<Schema>,
    /// Bitmap of the positions that are not dropped.
    pub(crate) living: u64,
    /// Bitmap of the positions that are not dropped and have declared bounds.
    pub(crate) bounded: u64,
}

impl Shape {
    fn new(schema: Schema) -> Arc<Shape> {
        let living = schema.living().fold(0, |bits, (i, _)| bits | 1 << i);
        let bounded = schema.living().filter(|(_, field)| field.bounds.is_bounded());
        let bounded = bounded.fold(0, |bits, (i, _)| bits | 1 << i);
        Arc::new(Shape { schema: Arc::new(schema), living, bounded })
    }

    /// Bitmap of the positions that are not dropped and have no declared bounds.
    fn plain(&self) -> u64 {
        self.living & !self.bounded
    }
}

/// A set of rows with one schema. All methods may be called from any thread.
pub struct Space {
    pub(crate) shape: ArcSwap<Shape>,
    /// Copy of [`Shape::plain`]. A write whose fields are all in this bitmap needs no further
    /// check.
    pub(crate) plain: AtomicU64,
    pub(crate) ring: Ring<Table>,
    pub(crate) frontier: Frontier,
    pub(crate) outliers: Outliers<OutlierRow>,
    pub(crate) budget: Arc<Budget>,
    /// Source of memory for outliers and for tables outside a rewrite.
    pub(crate) quota: Quota,
    pub(crate) rows_per_table: AtomicU64,
    pub(crate) max_outliers: usize,
    seed: u64,
    /// Number of tables created so far. The number determines the seed of the next table.
    tables_made: AtomicU64,
    /// Held while a table is created.
    pub(crate) rolling: Mutex<()>,
    /// Rewrite in progress. Held during background work.
    pub(crate) rewriting: Mutex<Option<Rewrite>>,
    /// Replaced tables, retained until no reader references them, so that no reader has to unmap a
    /// table.
    pub(crate) retired: Mutex<Vec<Arc<Slot<Table>>>>,
    /// Whether the last background step was for a crowded table.
    pub(crate) has_waiters: AtomicBool,
    /// Whether background work may be pending.
    pub(crate) has_pending_work: AtomicBool,
    /// Bytes in use when a rewrite was last refused memory. Writers do not help with rewrites until
    /// usage falls below this value.
    pub(crate) usage_at_refusal: AtomicU64,
    /// Serialises schema changes.
    altering: Mutex<()>,
    /// Store of cold rows, once attached.
    pub(crate) below: OnceLock<Box<dyn ColdBackend>>,
    /// Ids below this may have cold rows. Raised before any row leaves memory.
    pub(crate) cold_end: AtomicU64,
    pub(crate) tombstones: Tombstones,
    pub(crate) retirement: Retirement,
}

impl Space {
    /// Creates an empty space, which uses a few dozen KiB.
    pub fn new(options: Options) -> Result<Space, Error> {
        let budget = Budget::new(options.memory_limit_bytes);
        let shape = Shape::new(options.schema);
        let rows_per_table = options.rows_per_table.clamp(1, MAX_ROWS_PER_TABLE);
        let max_outliers = options.max_outliers.max(1);
        let sizing = Sizing::new(&shape.schema, 0, u64::MAX, FIRST_ROWS.min(rows_per_table));
        let quota = budget.quota(0);
        let first = Table::new(&sizing, shape.schema.clone(), seed_of(options.seed, 0), &quota)?;
        Ok(Space {
            plain: AtomicU64::new(shape.plain()),
            shape: ArcSwap::new(shape),
            ring: Ring::new(0, first),
            frontier: Frontier::new(options.max_ahead, max_outliers),
            outliers: Outliers::default(),
            tombstones: Tombstones::new(&budget),
            budget,
            quota,
            rows_per_table: AtomicU64::new(rows_per_table),
            max_outliers,
            seed: options.seed,
            tables_made: AtomicU64::new(1),
            rolling: Mutex::new(()),
            rewriting: Mutex::new(None),
            retired: Mutex::default(),
            has_waiters: AtomicBool::new(false),
            has_pending_work: AtomicBool::new(false),
            usage_at_refusal: AtomicU64::new(u64::MAX),
            altering: Mutex::new(()),
            below: OnceLock::new(),
            retirement: Retirement::default(),
            cold_end: AtomicU64::new(0),
        })
    }

    /// Creates a table that is not yet in the ring.
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

    /// The current schema.
    pub fn schema(&self) -> Arc<Schema> {
        self.shape.load().schema.clone()
    }

    /// Returns the position of the field with this name, or `None` if the schema has no such field
    /// or the field was dropped.
    #[inline]
    pub fn index_of(&self, name: &[u8]) -> Option<usize> {
        self.shape.load().schema.index_of(name)
    }

    /// Changes the schema immediately and returns the new schema. Existing tables keep their layout
    /// until background work rewrites them; until then they store a new field in their aux
    /// dictionary.
    ///
    /// # Errors
    ///
    /// The change is invalid: [`Error::NoField`] or [`Error::BadSchema`].
    pub fn alter(&self, change: &Alteration) -> Result<Arc<Schema>, Error> {
        let _altering = self.altering.lock();
        let shape = Shape::new(self.shape.load().schema.altered(change)?);
        self.publish_schema(shape.clone());
        Ok(shape.schema.clone())
    }

    /// Publishes a schema. The caller holds `altering`. Readers learn of a new field before any
    /// write to it; a writer that has just loaded the old schema may still write a dropped field.
    fn publish_schema(&self, shape: Arc<Shape>) {
        let plain = shape.plain();
        self.shape.store(shape);
        self.plain.store(plain, Release);
        self.has_pending_work.store(true, Relaxed);
    }

    /// Adopts a schema from a log or a snapshot if it is newer than the current schema. An older
    /// schema has no effect, so replay may start at any point.
    pub fn adopt(&self, told: &Schema) -> Result<(), Error> {
        let _altering = self.altering.lock();
        let ours = self.schema();
        if let Some((a, b)) =
            ours.fields().iter().zip(told.fields()).find(|(a, b)| a.name != b.name)
        {
            return Err(Error::BadSchema(format!("field '{}', expected '{}'", b.name, a.name)));
        }
        let earlier = told.width() < ours.width()
            || ours
                .fields()
                .iter()
                .zip(told.fields())
                .any(|(ours, told)| ours.dropped && !told.dropped);
        if !earlier && *told != *ours {
            self.publish_schema(Shape::new(told.clone()));
        }
        Ok(())
    }

    /// Number of rows, outliers included. Counts a row twice while it moves between tables.
    pub fn rows(&self) -> u64 {
        let tables = self.ring.load();
        let mut rows = self.outliers.len() as u64;
        all_tables(&tables).for_each(|table| rows += table.rows());
        rows
    }

    /// Bytes in use: tables, extend and aux dictionaries, outliers and tombstones. Mapped memory
    /// counts even if it has never been touched.
    pub fn memory_bytes(&self) -> u64 {
        self.budget.used()
    }

    /// Limit of [`Space::memory_bytes`].
    pub fn memory_limit_bytes(&self) -> u64 {
        self.budget.limit()
    }

    /// Bytes of the request that the memory limit refused last.
    pub fn refused_bytes(&self) -> u64 {
        self.budget.refused()
    }

    /// Changes the memory limit; existing rows are kept. Recovery raises the limit so that every
    /// logged write is accepted again.
    pub fn set_memory_limit_bytes(&self, limit: u64) {
        self.budget.set_limit(limit);
    }

    /// Changes [`Options::rows_per_table`] for future tables, and [`Options::max_ahead`].
    pub fn set_limits(&self, rows_per_table: u64, max_ahead: Option<u64>) {
        self.rows_per_table.store(rows_per_table.clamp(1, MAX_ROWS_PER_TABLE), Relaxed);
        self.frontier.set_limits(max_ahead, self.max_outliers);
    }

    /// Returns the position and the definition of the field with this name, unless the field was
    /// dropped.
    pub fn field(&self, name: &[u8]) -> Result<(usize, Field), Error> {
        let schema = self.schema();
        let at = schema
            .index_of(name)
            .ok_or_else(|| Error::NoField(String::from_utf8_lossy(name).into_owned()))?;
        Ok((at, schema.fields()[at].clone()))
    }
}

/// Returns all tables in ascending order of ids. A table that is being drained precedes the tables
/// that replace it.
pub(crate) fn all_tables(tables: &Tables<Table>) -> impl Iterator<Item = &Table> {
    let mut before = std::ptr::null();
    tables.entries().iter().flat_map(move |entry| {
        let drained = entry.drains().filter(|&old| !std::ptr::eq(old, before));
        before = entry.drains().map_or(std::ptr::null(), std::ptr::from_ref);
        drained.map(Slot::table).into_iter().chain([entry.table()])
    })
}
