//! Spilling and merging. A spill writes the oldest table of a space to a cold file. A merge
//! replaces a cold file with a new file that includes later changes. Spills and merges follow the
//! procedure of `store/src/rewrite.rs`. For counters:
//!
//! - Step 1: `counter::Space::begin_spill` lists the ids of the range that are in memory, in
//!   ascending order, piece by piece. Rows written later stay in memory and override the file.
//! - Step 2: writes the new file with the rows in memory, and with the rows of the old files that
//!   are neither in memory nor deleted.
//! - Step 4: removes the old files and the snapshot's file of the range from the manifest.
//!
//! A rewrite starts only if the disk has free space for the largest possible new files. Without
//! this check a rewrite could fill a disk that the log needs. A failed rewrite is retried.
//!
//! A replica spills independently, when its own memory is short. Its cold files and snapshots
//! differ from its master's.

pub(crate) mod counters;
pub(crate) mod dropped;
pub(crate) mod filters;
mod ground;
pub mod io_throttle;
pub(crate) mod ledgers;
mod rebuild;
pub mod replay_filter;
mod rows;
mod scrub;
mod spiller;

use crate::engines::{CounterSpace, Engines, ExistenceSpace};
use crate::live::Live;
use counter::RangeStats;
pub use dropped::forget_dropped;
pub(crate) use ground::SpillLog;
pub use ground::{SpillContext, SpillResult};
use ground::{is_short, lock_data_files, record_spill_failure};
pub use ledgers::drop_pairs;
pub use spiller::Spiller;

/// Spills the oldest range with rows or deletions in memory. Returns `None` if there is no such
/// range.
pub fn spill_oldest(live: &Live<'_>, space: &CounterSpace) -> store::Result<Option<SpillResult>> {
    let Some(_alone) = lock_data_files(live, space.number()) else { return Ok(None) };
    let is_worth =
        |range: &RangeStats| range.rows > 0 || space.count_tombstones(range.low, range.last).0 > 0;
    let worth = space.ranges().into_iter().filter(|range| !range.open && is_worth(range));
    // Prefer ranges that are not quarantined. `min_by_key` returns the first minimum, which is the
    // oldest range.
    let oldest = worth.min_by_key(|range| space.cold().damaged.has(range.low, range.last));
    oldest.map(|range| SpillContext::of(live).spill(space, range.low, range.last, 0)).transpose()
}

/// Flushes the ledger, if the space has a ledger, then spills the oldest table of pairs in memory.
/// If there is no such table, merges the table with the most late pairs.
pub fn spill_oldest_pairs(
    live: &Live<'_>,
    space: &ExistenceSpace,
) -> store::Result<Option<SpillResult>> {
    let Some(_alone) = lock_data_files(live, space.number()) else { return Ok(None) };
    ledgers::flush_all(&SpillContext::of(live), space)?;
    filters::spill_oldest(&SpillContext::of(live), space)
}

/// Merges the table with the most late pairs. Returns `None` if no table can be merged.
pub fn merge_late(live: &Live<'_>, space: &ExistenceSpace) -> store::Result<Option<SpillResult>> {
    let Some(_alone) = lock_data_files(live, space.number()) else { return Ok(None) };
    filters::merge_late(&SpillContext::of(live), space)
}

/// Spills until all spaces are within their limits, while recovery replays the log. Returns false
/// after a failure.
pub(crate) fn keep_within(ground: &SpillContext<'_>, engines: &Engines) -> bool {
    let limits = if engines.is_filling() { engines.divide_budget() } else { Vec::new() };
    let counters = engines.counters().iter().zip(limits);
    for (space, limit) in counters.filter(|(space, _)| space.spills()) {
        while is_short(space, limit) {
            match counters::make_room(ground, space, limit) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    // The space now exceeds its limit. The spill thread retries when the server
                    // runs.
                    record_spill_failure(&engines.cold, space.name(), &error);
                    return false;
                }
            }
        }
    }
    let kept = filters::keep_within(ground, engines);
    let kept = kept.and_then(|()| ledgers::keep_within(ground, engines));
    kept.inspect_err(|(name, error)| record_spill_failure(&engines.cold, name, error)).is_ok()
}
