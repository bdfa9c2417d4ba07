//! Rebuilds the filters of a table from an exact list of its pairs: for another false-positive
//! rate, after damage, or because the table has more pairs than it was made for, so that each
//! lookup reads several filters.
//!
//! ```text
//!   1  begin_rebuild   the table has a successor from here on, empty
//!   2  the host waits for the writers that are inside, then puts all pairs of its list there
//!      meanwhile       a pair that is set goes to both, readers ask the old filters
//!   3  end_rebuild     in memory: the successor takes the table's place in the ring
//!                      elsewhere: its pages are written as those of any cold table (`cold`)
//! ```
//!
//! - **R1** What the successor lacks when it takes over is unset. The list has what was set before
//!   2, what is set later is passed on ([`Table::pass_on`]) under the pair's stripe, and the ring
//!   changes behind the barrier that keeps writers out. A pair is passed on even if the old filters
//!   have it already: they may be wrong, and the list may have been read past its place.
//! - **R2** Both have one set of revoked pairs. A pair of the list that is unset before it is put
//!   is revoked in both.
//! - **R3** What is set in a table elsewhere is kept beside it, too, as it may be passed on after
//!   its page was written. It is forgotten there if the new filters had it before the first page.
//! - **R4** The old filters answer until the end. If the table has gone elsewhere meanwhile, or
//!   there is no memory for the successor, they stay, and the host begins again.
//! - **R5** The list has the pairs of outliers, too, and no table has: unset there, one would stay
//!   set in the new filters. When it is let into a table it is passed on: moves that were under way
//!   at 1, and may not have seen the successor, end before the list is read.

use crate::Error;
use crate::cold::Rewrite;
use crate::filter::{Filter, PAGE_BYTES};
use crate::hash::{Member, Pair};
use crate::space::{Shape, Space};
use crate::table::Table;
use std::sync::Arc;

/// Room for what comes after a table is built anew: one part in so many of its pairs.
const SPARE_PART: u64 = 16;

/// Free room, in pairs, below which a table is not worth a rebuild: 40 KB at 20 bits a pair.
const MIN_FREE_PAIRS: u64 = 1 << 14;
/// Pairs whose cache lines are fetched at a time.
const PREFETCHED_PAIRS: usize = 16;

/// A table that is being built anew. Given up when dropped.
pub struct Rebuild {
    range: (u64, u64),
    table: Arc<Table>,
    successor: Arc<Table>,
    /// Up to where ids were let into tables when it began.
    high: Option<u64>,
}

impl Rebuild {
    /// The table's range of ids, both inclusive.
    pub fn range(&self) -> (u64, u64) {
        self.range
    }

    /// Pairs that its new filters have.
    pub fn pairs(&self) -> u64 {
        self.successor.pairs()
    }
}

impl Drop for Rebuild {
    fn drop(&mut self) {
        self.table.set_successor(None);
    }
}

/// Number of pairs in a table, and the number for which its filters were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLoad {
    /// Lowest id of the table's range.
    pub low: u64,
    /// Pairs in all its filters.
    pub pairs: u64,
    /// Pairs that its first filter holds at the configured rate.
    pub capacity: u64,
    /// Pairs when the table was closed.
    pub early: u64,
    /// Filters that a lookup reads after the first one.
    pub extensions: usize,
    /// Whether new ids go into the table.
    pub is_open: bool,
    /// Whether its filters are on disk.
    pub is_cold: bool,
}

impl TableLoad {
    /// Whether the filter of a closed table in memory has far more room than pairs.
    ///
    /// A table is planned for at most twice the pairs that it has when it closes. One that was
    /// enlarged beyond that is oversized if an eighth is free; a planned one if half its pairs
    /// again would fit, as late pairs may still come.
    pub fn is_oversized(&self) -> bool {
        let free = self.capacity.saturating_sub(self.pairs);
        let is_enlarged = self.capacity / 5 > self.early / 2;
        let most = if is_enlarged { self.pairs / 8 } else { self.pairs / 2 };
        !self.is_open && !self.is_cold && free > most && free > MIN_FREE_PAIRS
    }
}

/// How a rebuild ended.
pub enum Rebuilt {
    /// The new filters answer.
    Done,
    /// The old ones do, as before: it has to begin again.
    Outdated,
    /// The new ones will when they are written.
    Elsewhere(Box<Written>),
}

/// Pages that are to be written before they answer. Until it is dropped what is set is kept beside
/// the old ones.
pub struct Written {
    /// For [`Space::end_rewrite`].
    pub rewrite: Rewrite,
    _rebuild: Rebuild,
}

impl Space {
    /// The lowest ids of the tables that are to be built anew, oldest first: those that were made
    /// for another rate, and those that are [asked for](Space::ask_rebuild).
    pub fn to_rebuild(&self) -> Vec<u64> {
        let rate = self.false_positive_rate();
        let tables = self.ring.load();
        let is_due = |table: &Table| table.rate() != rate || table.is_outdated();
        let due = tables.entries().iter().filter(|entry| is_due(entry.table()));
        due.map(|entry| entry.slot().low()).collect()
    }

    /// All tables are to be built anew. How many those are. A restart forgets it.
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
                is_open: table.is_open(),
                is_cold: table.cold().is_some(),
            }
        };
        tables.entries().iter().map(load).collect()
    }

    /// Begins the rebuild of the table whose range begins at `low`. Returns `None` if there is no
    /// such table. A space rebuilds one table at a time. The head of this file lists the steps.
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

    /// Begins the rebuild of a table with one filter that holds the table's pairs and `spare` more,
    /// as [`Space::begin_rebuild`]. Returns `None` if the space's limit of memory has no room for
    /// the filter while the old ones are there.
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
        // R5. The host does not wait for moves that a log asks for: they are no writers.
        self.outliers.pass_writers();
        Ok(Rebuild { range, table, successor, high: self.frontier.high() })
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
        // R5.
        let is_in_tables = |pair: &Pair| Some(pair.id) <= rebuild.high && !self.is_outlier(pair);
        let pairs = pairs.map(|(id, member)| self.pair(id, &member)).filter(is_in_tables);
        let pairs: Vec<Pair> = pairs.collect();
        for batch in pairs.chunks(PREFETCHED_PAIRS) {
            batch.iter().for_each(|pair| rebuild.successor.prefetch_lines(pair));
            batch.iter().try_for_each(|pair| rebuild.successor.put(pair))?;
        }
        Ok(())
    }

    /// Whether a rebuild may still succeed: the table is where it was.
    pub fn may_end(&self, rebuild: &Rebuild) -> bool {
        self.range_of(rebuild).is_some()
    }

    fn range_of(&self, rebuild: &Rebuild) -> Option<(u64, u64)> {
        let (range, table) = self.table_at(rebuild.range.0)?;
        Arc::ptr_eq(&table, &rebuild.table).then_some(range)
    }

    /// All pairs of the list are there. No rewrite of the space is under way, or begins.
    pub fn end_rebuild(&self, rebuild: Rebuild) -> Rebuilt {
        let (low, table, next) = (rebuild.range.0, &rebuild.table, &rebuild.successor);
        // No table rolls, and none is rewritten.
        let alone = (self.rolling.lock(), self.merging.lock());
        let Some(range) = self.range_of(&rebuild) else { return Rebuilt::Outdated };
        if let Some(cold) = table.cold() {
            let mut late = vec![];
            cold.late.for_each(|hash| late.push(hash));
            // R3.
            late.retain(|hash| next.has_in_memory(&Pair::from_hash(low, *hash)));
            let rewrite = self.rewrite_as(range, table, next, late);
            return Rebuilt::Elsewhere(Box::new(Written { rewrite, _rebuild: rebuild }));
        }
        next.close_as(table);
        // R1: behind its barrier.
        let Ok(old) = self.ring.rewrite(low, vec![(low, next.clone())]) else {
            return Rebuilt::Outdated;
        };
        self.ring.finish(&old);
        drop(alone);
        self.upkeep.retire(table.clone());
        self.forget_revoked(low, next);
        Rebuilt::Done
    }

    /// Pairs of which the new filters have no bits are unset without being revoked.
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
