//! Cold tables: tables whose filters are on disk. The crate reads them through a
//! [`ColdBackend`](crate::ColdBackend).
//!
//! ```text
//!   read    in revoked? no. In late? yes. Otherwise ColdBackend::has
//!   write   the same test under the pair's stripe; a newly set pair goes to `late`
//!   spill   freezes a table behind a cold table; Rewrite writes its pages with the late pairs;
//!           then a ColdBackend answers
//!   merge   like a spill, but Rewrite reads the old pages from disk
//! ```
//!
//! Adding pairs to filters on disk requires rewriting all their pages. A cold table therefore holds
//! late pairs in an exact set (`late`), like deleted pairs, and merges them in bulk. A merge fills
//! the filters of the chain in order (`table/pages`) and extends the chain if needed. A lookup
//! reads one page per filter of the chain. The chain has one filter if the table was closed early
//! enough.
//!
//! - **C1** A pair leaves `late` only after the lower filters contain it. Readers search `late`
//!   first.
//! - **C2** The lower filters are immutable. A table is frozen under the barrier that excludes
//!   writers. A reader with an older list of tables still uses the table in memory.
//! - **C3** Replay of the log does not read the disk. It treats every pair as late, and the merge
//!   skips pairs that the filters already contain.

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

pub use pending::{LatePairs, Note};
pub use rewrite::Rewrite;

/// Divisor: late pairs may use 1/16 of the memory of the tables.
const LATE_PART: u64 = 16;
/// Memory per late pair, in bytes: its hash and its share of the set.
const LATE_BYTES: u64 = 32;

impl Space {
    /// Whether the next table would exceed the page count or the memory limit. The host must then
    /// spill the oldest table.
    pub fn is_short(&self) -> bool {
        let next = self.next_pages(self.ring.load().newest().table());
        let is_full = || {
            self.pages_in_memory() + next > self.max_pages() || !self.may_grow(next * PAGE_BYTES)
        };
        self.spills() && is_full()
    }

    /// Returns the table to spill next: its lowest id and the bytes of its filters. Selects the
    /// oldest closed table in memory, from the id range with the most such tables.
    ///
    /// During replay the ring may be ahead of the frontier. A table that ends above the frontier
    /// may still receive pairs, even if its range has not been created yet.
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

    /// Returns the inclusive id ranges of the tables in memory, oldest first.
    pub fn ranges_in_memory(&self) -> Vec<(u64, u64)> {
        let tables = self.ring.load();
        let here = tables.entries().iter().filter(|entry| entry.table().pages_in_memory() > 0);
        here.map(|entry| (entry.slot().low(), entry.slot().last())).collect()
    }

    /// Whether the table that contains `id` is on disk, or frozen for a spill. The filters of such
    /// a table must not change.
    pub fn is_cold(&self, id: u64) -> bool {
        self.table_over(id).is_some_and(|(_, table)| table.cold().is_some())
    }

    /// Returns whether the answer for this pair requires a read of filter pages on disk.
    pub fn needs_disk(&self, pair: &Pair) -> bool {
        let Some((_, table)) = self.table_over(pair.id) else { return false };
        let Some(cold) = table.cold().filter(|cold| cold.memory().is_none()) else { return false };
        !table.revoked.contains(pair.hash()) && !cold.late.contains(pair.hash())
    }

    /// Returns the number of late pairs in all tables, and the limit.
    pub fn late(&self) -> (usize, usize) {
        let most = self.max_pages() as u64 * 4096 / LATE_PART / LATE_BYTES;
        (self.late.load(Relaxed), most.max(64) as usize)
    }

    /// Returns the table with the most late pairs: its lowest id and their number. Considers only
    /// tables whose lowest id satisfies `may`. Returns `None` if there is no such table with late
    /// pairs.
    pub fn most_late(&self, may: impl Fn(u64) -> bool) -> Option<(u64, usize)> {
        let tables = self.ring.load();
        let late = tables
            .entries()
            .iter()
            .filter_map(|e| Some((e.slot().low(), e.table().cold()?.late())));
        late.filter(|late| late.1 > 0 && may(late.0)).max_by_key(|late| late.1)
    }

    /// Like [`change_in`](Space::change_in), for a cold table.
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
            // C3: replay assumes that the pair changes.
            !set
        } else {
            cold.has(pair).map_err(Error::from)?
        };
        // Test the successor before it receives the pair. A rebuild may already have written the
        // pair's page.
        let is_lacking = set && table.successor_lacks(pair);
        if is_lacking {
            table.pass_on(pair)?;
        }
        if is_set == set {
            // The new filters may lack this pair, although the old filters report it as set.
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
        // A deleted pair also becomes a late pair, because replay may have deleted a pair that the
        // filters do not contain.
        cold.keep_late(hash);
        table.revoked.remove(hash);
        table.touch();
        Ok(Change::Changed)
    }
}

#[cfg(test)]
pub(crate) mod tests;
