//! Tables whose filters lie elsewhere: on a disk, which this crate reads only through a
//! [`ColdBackend`](crate::ColdBackend).
//!
//! ```text
//!   read:   revoked? late? -> yes, or no;  else ColdBackend::has
//!   write:  under the pair's stripe the same; what becomes set goes to `late`
//!   spill:  the table is frozen: in its place comes one that has it below itself -> Rewrite: its
//!           pages, with what is late -> ColdBackend answers
//!   merge:  the same, with the pages that lie elsewhere
//! ```
//!
//! Filters cannot be merged with a changed few pairs but by writing all of their pages anew. So
//! pairs that are set late are kept exactly (`late`), as those that are unset are, until there are
//! enough of them. They fill the filters of the chain in turn (`table/pages`), and what has no
//! room there is chained behind. A check asks one page of each filter of the chain: of one, if the
//! table was closed early enough.
//!
//! **C1** A pair leaves `late` only after what lies below has its bits; a reader asks `late` first.
//! **C2** A filter that is below never changes: a table is frozen behind the barrier that keeps its
//! writers out, and readers with the old list see the table that it was. **C3** While a log is read
//! again nothing is asked below: what is told is kept, and found to be there already when it is
//! merged.

use crate::Error;
use crate::filter::PAGE_BYTES;
use crate::hash::Pair;
use crate::options::Change;
use crate::space::Space;
use crate::table::{Cold, Table};
use rolling::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

mod pending;
mod rewrite;

pub use pending::{Late, Note};
pub use rewrite::Rewrite;

/// Late pairs may take 1/16 of the memory of the tables.
const LATE_PART: u64 = 16;
/// Memory accounted per late pair: its hash and its share of the set.
const LATE_BYTES: u64 = 32;

impl Space {
    /// Whether there is no room in memory for the next table, or for as much of what comes late to
    /// others: the oldest is to be written elsewhere.
    pub fn is_short(&self) -> bool {
        let next = self.next_pages(self.ring.load().newest().table());
        let is_full = || {
            self.pages_in_memory() + next > self.max_pages() || !self.may_grow(next * PAGE_BYTES)
        };
        self.spills() && is_full()
    }

    /// The lowest id of the oldest table that is in memory and not open, and the bytes of its
    /// filters: of the range of ids that has most of those; `None`: there is none.
    ///
    /// While a log is replayed the ring may be further on than the frontier. A table that ends
    /// above the frontier is still being filled then, even if its range has not opened yet.
    pub fn oldest_in_memory(&self) -> Option<(u64, u64)> {
        let tables = self.ring.load();
        let (_newest, old) = tables.entries().split_last()?;
        let is_filled = |entry: &Entry<Arc<Table>>| {
            !entry.table().is_open() && self.frontier.contains(entry.slot().last())
        };
        let may_leave =
            |entry: &&Entry<Arc<Table>>| entry.table().pages_in_memory() > 0 && is_filled(entry);
        let pages = |ids: &&[Entry<Arc<Table>>]| -> usize {
            ids.iter().filter(may_leave).map(|entry| entry.table().pages_in_memory()).sum()
        };
        let fullest = old.split_inclusive(|entry| entry.table().is_open()).max_by_key(pages)?;
        let entry = fullest.iter().find(may_leave)?;
        Some((entry.slot().low(), entry.table().filter_bytes() as u64))
    }

    /// The ranges of the tables that are in memory, both ends inclusive, oldest first.
    pub fn ranges_in_memory(&self) -> Vec<(u64, u64)> {
        let tables = self.ring.load();
        let here = tables.entries().iter().filter(|entry| entry.table().pages_in_memory() > 0);
        here.map(|entry| (entry.slot().low(), entry.slot().last())).collect()
    }

    /// Whether the filters of the table over `id` are to be left alone: they lie elsewhere, or soon
    /// will.
    pub fn is_cold(&self, id: u64) -> bool {
        self.table_over(id).is_some_and(|(_, table)| table.cold().is_some())
    }

    /// Whether it must be asked elsewhere if the pair is set.
    pub fn lies_elsewhere(&self, pair: &Pair) -> bool {
        let Some((_, table)) = self.table_over(pair.id) else { return false };
        let Some(cold) = table.cold().filter(|cold| cold.memory().is_none()) else { return false };
        !table.revoked.contains(pair.hash()) && !cold.late.contains(pair.hash())
    }

    /// Late pairs of all tables, and the most that there may be.
    pub fn late(&self) -> (usize, usize) {
        let most = self.max_pages() as u64 * 4096 / LATE_PART / LATE_BYTES;
        (self.late.load(Relaxed), most.max(64) as usize)
    }

    /// The lowest id of the table with the most late pairs, and how many, of the tables of which
    /// `may` says yes to that id; `None`: there are none.
    pub fn most_late(&self, may: impl Fn(u64) -> bool) -> Option<(u64, usize)> {
        let tables = self.ring.load();
        let late = tables
            .entries()
            .iter()
            .filter_map(|e| Some((e.slot().low(), e.table().cold()?.late())));
        late.filter(|late| late.1 > 0 && may(late.0)).max_by_key(|late| late.1)
    }

    /// As [`change_in`](Space::change_in), for a table whose filters lie elsewhere.
    #[cold]
    pub(crate) fn change_cold<E: From<Error>>(
        &self,
        table: &Table,
        cold: &Cold,
        pair: &Pair,
        set: bool,
        replay: bool,
        first: impl FnOnce() -> Result<(), E>,
    ) -> Result<Change, E> {
        let hash = pair.hash();
        let is_set = if table.revoked.contains(hash) {
            false
        } else if cold.late.contains(hash) {
            true
        } else if replay {
            // C3.
            !set
        } else {
            cold.has(pair).map_err(Error::from)?
        };
        // In this order: what is passed on may come after its page was written.
        let is_lacking = set && table.successor_lacks(pair);
        if is_lacking {
            table.pass_on(pair)?;
        }
        if is_set == set {
            // The new filters need not have what the old ones say.
            if is_lacking {
                cold.keep_late(hash);
            }
            return Ok(Change::Unchanged);
        }
        if !set {
            self.revoke(table, hash, replay, first)?;
            return Ok(Change::Changed);
        }
        let (late, most) = self.late();
        if late >= most && !replay {
            return Err(Error::LateFull.into());
        }
        first()?;
        // Also what was revoked: a log that was read again may have revoked what is not there.
        cold.keep_late(hash);
        table.revoked.remove(hash);
        table.touch();
        Ok(Change::Changed)
    }
}

#[cfg(test)]
pub(crate) mod tests;
