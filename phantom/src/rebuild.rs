//! Rebuilds a table's filters from an exact list of its pairs. Reasons for a rebuild are a changed
//! false-positive rate, damage, or a long chain of filters.
//!
//! ```text
//!   1  begin_rebuild   the table gets an empty successor
//!   2  the host        waits for active writers, then puts all pairs of its list there
//!      concurrently    a write goes to both tables; readers use the old filters
//!   3  end_rebuild     in memory: the successor replaces the table in the ring
//!                      on disk: the successor's pages are written as in a spill (`cold`)
//! ```
//!
//! - **R1** A pair that the successor lacks at step 3 is unset. The list contains all pairs set
//!   before step 2. Each later write also sets its pair in the successor ([`Table::pass_on`]),
//!   while holding the lock of the pair's stripe. It does so even if the old filters report the
//!   pair as set: the report may be a false positive, and the host may have already read the part
//!   of the list that contains the pair. The ring replaces the table under the barrier that
//!   excludes writers.
//! - **R2** Both tables share one set of deleted pairs. If a pair is deleted before the host puts
//!   it, it is deleted in both.
//! - **R3** A cold table also stores a later write's pair in `late`, because the pair's page may
//!   have been written already. The late pair is dropped if the successor contained it before the
//!   first page was written.
//! - **R4** The old filters serve lookups until the end. If the table spills during the rebuild, or
//!   the successor runs out of memory, the old filters remain and the host starts over.
//! - **R5** The list also contains outliers (pairs of ids far above all tables). Outliers must not
//!   get into the successor, because deleting an outlier does not change tables. A thread that
//!   moves an outlier into a table also sets the pair in the table's successor. The host reads its
//!   list only after all moves that may have missed the successor have ended.
//! - **R6** A forget must not turn old pairs into pairs of the new generation. `begin` reads the
//!   generations after the table has its successor. The listed pairs get these generations. The
//!   host removes an id from its list before the generation rises. If an id still has this
//!   generation when the host puts its pairs, the list contains no older pairs of the id. Otherwise
//!   the id was forgotten after `begin`. Its listed pairs are either old, or were set after the
//!   forget and are already in the successor. The put therefore skips these pairs.

use crate::Error;
use crate::cold::Rewrite;
use crate::filter::{Filter, PAGE_BYTES};
use crate::hash::{Member, Pair};
use crate::space::{Shape, Space};
use crate::table::Table;
use std::sync::Arc;

/// Divisor: a rebuilt table has room for at least 1/16 more pairs than it contains.
const SPARE_PART: u64 = 16;

/// Minimum free room, in pairs, that makes a rebuild worthwhile: 40 KB at 20 bits per pair.
const MIN_FREE_PAIRS: u64 = 1 << 14;
/// Number of pairs whose cache lines are prefetched together.
const PREFETCHED_PAIRS: usize = 16;

/// A rebuild in progress. Dropping it cancels the rebuild.
pub struct Rebuild {
    range: (u64, u64),
    table: Arc<Table>,
    successor: Arc<Table>,
    /// Highest admitted id at the beginning of the rebuild.
    high: Option<u64>,
    /// Forgotten ids of the range at the beginning of the rebuild, ascending, with their
    /// generations (R6).
    generations: Vec<(u64, u64)>,
}

impl Rebuild {
    /// Returns the inclusive id range of the table.
    pub fn range(&self) -> (u64, u64) {
        self.range
    }

    /// Returns the number of pairs in the new filters.
    pub fn pairs(&self) -> u64 {
        self.successor.pairs()
    }

    /// Returns the generation of an id at the beginning of the rebuild.
    fn generation(&self, id: u64) -> u64 {
        let at = self.generations.binary_search_by_key(&id, |(id, _)| *id);
        at.map_or(0, |at| self.generations[at].1)
    }
}

impl Drop for Rebuild {
    fn drop(&mut self) {
        self.table.set_successor(None);
    }
}

/// Number of pairs in a table, and number of pairs planned for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLoad {
    /// Lowest id of the table's range.
    pub low: u64,
    /// Pairs in all filters.
    pub pairs: u64,
    /// Pairs that the first filter holds at the configured rate.
    pub capacity: u64,
    /// Number of pairs when the table was closed; 0 while it is open.
    pub early: u64,
    /// All filters except the first.
    pub extensions: usize,
    /// Whether the table's filters are on disk.
    pub is_cold: bool,
}

impl TableLoad {
    /// Whether the filters of a closed table in memory are much larger than its pairs need.
    ///
    /// A new table is sized for at most twice the pairs that it has when it is closed. A table that
    /// was enlarged beyond this size is oversized if it has room for an eighth more pairs. Any
    /// other table is oversized if it has room for half as many pairs again, because late pairs may
    /// still arrive.
    pub fn is_oversized(&self) -> bool {
        let free = self.capacity.saturating_sub(self.pairs);
        let is_enlarged = self.capacity / 5 > self.early / 2;
        let most = if is_enlarged { self.pairs / 8 } else { self.pairs / 2 };
        self.early > 0 && !self.is_cold && free > most && free > MIN_FREE_PAIRS
    }
}

/// Result of a rebuild.
pub enum Rebuilt {
    /// The new filters are in use.
    Done,
    /// The table changed; the old filters remain and the rebuild must start over.
    Outdated,
    /// The new filters must be written to disk first.
    Elsewhere(Box<Written>),
}

/// Rebuilt pages to write to disk. While this value exists, writes also add their pairs to the late
/// pairs.
pub struct Written {
    /// Pages for [`Space::end_rewrite`].
    pub rewrite: Rewrite,
    _rebuild: Rebuild,
}

impl Space {
    /// Returns the lowest ids of the tables to rebuild, oldest first. These are the tables whose
    /// rate differs from the configured rate, and the tables for which a rebuild was
    /// [requested](Space::ask_rebuild).
    pub fn to_rebuild(&self) -> Vec<u64> {
        let rate = self.false_positive_rate();
        let tables = self.ring.load();
        let is_due = |table: &Table| table.rate() != rate || table.is_outdated();
        let due = tables.entries().iter().filter(|entry| is_due(entry.table()));
        due.map(|entry| entry.slot().low()).collect()
    }

    /// Requests a rebuild of all tables and returns their number. A restart discards the request.
    pub fn ask_rebuild(&self) -> usize {
        let tables = self.ring.load();
        tables.entries().iter().for_each(|entry| entry.table().set_outdated(true));
        tables.entries().len()
    }

    /// Returns the load of each table, oldest first.
    pub fn table_loads(&self) -> Vec<TableLoad> {
        let tables = self.ring.load();
        let load = |entry: &rolling::Entry<Arc<Table>>| {
            let table = entry.table();
            TableLoad {
                low: entry.slot().low(),
                pairs: table.pairs(),
                capacity: table.capacity(),
                early: table.early(),
                extensions: table.extensions(),
                is_cold: table.cold().is_some(),
            }
        };
        tables.entries().iter().map(load).collect()
    }

    /// Begins the rebuild of the table whose range begins at `low`. Returns `None` if there is no
    /// such table. A space rebuilds one table at a time. The module documentation lists the steps.
    ///
    /// # Errors
    /// If the operating system refuses the memory.
    pub fn begin_rebuild(&self, low: u64) -> Result<Option<Rebuild>, Error> {
        let Some((range, table)) = self.table_at(low) else { return Ok(None) };
        let pairs = table.pairs();
        let room = pairs.saturating_add(pairs / SPARE_PART).max(table.capacity());
        let pages = self.shape().sizing.pages(room);
        self.begin(range, table, pages).map(Some)
    }

    /// Begins a rebuild into a single filter with room for the table's pairs and `spare` more.
    /// Returns `None` if there is no such table, or if the memory limit has no room for old and new
    /// filters together.
    ///
    /// # Errors
    /// If the operating system refuses the memory.
    pub fn begin_resize(&self, low: u64, spare: u64) -> Result<Option<Rebuild>, Error> {
        let Some((range, table)) = self.table_at(low) else { return Ok(None) };
        let room = table.pairs().saturating_add(spare.max(table.pairs() / SPARE_PART));
        let pages = self.shape().sizing.pages(room);
        if !self.may_grow(pages.saturating_mul(PAGE_BYTES)) {
            return Ok(None);
        }
        self.begin(range, table, pages).map(Some)
    }

    fn begin(&self, range: (u64, u64), table: Arc<Table>, pages: usize) -> Result<Rebuild, Error> {
        let Shape { rate, sizing } = self.shape();
        let filter = Filter::new(sizing, pages).map_err(Error::Memory)?;
        let successor = Arc::new(Table::succeeding(&table, rate, filter));
        table.set_successor(Some(successor.clone()));
        // R6: read the generations after the table has its successor.
        let generations = self.forgotten.note(range.0, range.1);
        // R5: wait for moves of outliers that may have missed the successor. The host's own wait
        // does not include replayed moves, because they are not client writes.
        self.outliers.wait_for_writers();
        Ok(Rebuild { range, table, successor, high: self.frontier.high(), generations })
    }

    /// Puts pairs of the host's list into the new filters.
    ///
    /// # Errors
    /// If the operating system refuses the memory for an extension.
    pub fn put_rebuilt<'m>(
        &self,
        rebuild: &Rebuild,
        pairs: impl Iterator<Item = (u64, Member<'m>)>,
    ) -> Result<(), Error> {
        // R5: outliers must not get into the successor.
        let is_in_tables = |pair: &Pair| Some(pair.id) <= rebuild.high && !self.is_outlier(pair);
        // R6: skip ids that were forgotten after the rebuild began.
        let pairs = pairs.filter_map(|(id, member)| {
            let (first, generation) = (self.first_pair(id, &member), rebuild.generation(id));
            (self.generation(id) == generation).then(|| match generation {
                0 => first,
                _ => self.seed.later(first, generation),
            })
        });
        let pairs: Vec<Pair> = pairs.filter(is_in_tables).collect();
        for batch in pairs.chunks(PREFETCHED_PAIRS) {
            batch.iter().for_each(|pair| rebuild.successor.prefetch_lines(pair));
            batch.iter().try_for_each(|pair| rebuild.successor.put(pair))?;
        }
        Ok(())
    }

    /// Whether the table is still in the ring; otherwise the rebuild cannot succeed.
    pub fn may_end(&self, rebuild: &Rebuild) -> bool {
        self.range_of(rebuild).is_some()
    }

    fn range_of(&self, rebuild: &Rebuild) -> Option<(u64, u64)> {
        let (range, table) = self.table_at(rebuild.range.0)?;
        Arc::ptr_eq(&table, &rebuild.table).then_some(range)
    }

    /// Ends a rebuild after all pairs of the list were put. The caller must not run a rewrite
    /// concurrently.
    pub fn end_rebuild(&self, rebuild: Rebuild) -> Rebuilt {
        let (low, table, next) = (rebuild.range.0, &rebuild.table, &rebuild.successor);
        // Excludes rollovers and rewrites.
        let alone = (self.rolling.lock(), self.merging.lock());
        let Some(range) = self.range_of(&rebuild) else { return Rebuilt::Outdated };
        if let Some(cold) = table.cold() {
            let mut late = vec![];
            cold.late.for_each(|hash| late.push(hash));
            // R3: drop the late pairs that the successor already contains.
            late.retain(|hash| next.has_in_memory(&Pair::from_hash(low, *hash)));
            let rewrite = self.rewrite_as(range, table, next, late);
            return Rebuilt::Elsewhere(Box::new(Written { rewrite, _rebuild: rebuild }));
        }
        next.close_as(table);
        // R1: the ring waits for all writers.
        let Ok(old) = self.ring.rewrite(low, vec![(low, next.clone())]) else {
            return Rebuilt::Outdated;
        };
        self.ring.finish(&old);
        drop(alone);
        self.filter_pool.retire(table.clone());
        self.forget_revoked(low, next);
        Rebuilt::Done
    }

    /// Removes deleted pairs that the new filters do not contain.
    fn forget_revoked(&self, low: u64, table: &Arc<Table>) {
        table.revoked.for_each(|hash| {
            let pair = Pair::from_hash(low, hash);
            self.under_stripe(&pair, |now| {
                if std::ptr::eq(now, &**table) && !now.has_in_memory(&pair) {
                    now.revoked.remove(hash);
                    now.touch();
                }
            });
        });
    }
}

#[cfg(test)]
mod tests;
