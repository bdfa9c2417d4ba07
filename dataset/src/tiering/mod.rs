//! Spilling: the oldest table of a space becomes a cold file, and a merge writes what changed of
//! cold rows into a new one. Both follow the procedure of `store/src/rewrite.rs`:
//!
//! - Step 1: `counter::Space::begin_spill` lists the ids of the range in memory, in order, piece by
//!   piece. Rows that are written later stay in memory, as the file's overlay.
//! - Step 2: the new file has the rows in memory, and those rows of the old files that are neither
//!   in memory nor deleted.
//! - Step 4: the manifest names neither the old files nor the snapshot's file of the range.
//!
//! A rewrite begins only if the disk has room for everything that it may write: what is left of a
//! disk that is nearly full is for the log. A failed rewrite is tried again.
//!
//! A replica spills as its master does, by its own memory. Its log has what it has applied, and its
//! files are its own, as its snapshots are.

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
pub use ground::{Ground, Spilled};
use ground::{alone_with, is_short, note_trouble};
pub use ledgers::drop_pairs;
pub use spiller::Spiller;

/// Spills the oldest range of which anything is in memory; `None` if there is none.
pub fn spill_oldest(live: &Live<'_>, space: &CounterSpace) -> store::Result<Option<Spilled>> {
    let Some(_alone) = alone_with(live, space.number()) else { return Ok(None) };
    let is_worth =
        |range: &RangeStats| range.rows > 0 || space.tombs_of(range.low, range.last).0 > 0;
    let worth = space.ranges().into_iter().filter(|range| !range.open && is_worth(range));
    // The first of the least: one that is damaged if there are no others.
    let oldest = worth.min_by_key(|range| space.cold().damaged.has(range.low, range.last));
    oldest.map(|range| Ground::of(live).spill(space, range.low, range.last, 0)).transpose()
}

/// The same for pairs; what is left to do then is to merge what came late. A ledger writes all that
/// it has in memory.
pub fn spill_oldest_pairs(
    live: &Live<'_>,
    space: &ExistenceSpace,
) -> store::Result<Option<Spilled>> {
    let Some(_alone) = alone_with(live, space.number()) else { return Ok(None) };
    ledgers::flush_all(&Ground::of(live), space)?;
    filters::spill_oldest(&Ground::of(live), space)
}

/// Writes what waits for a merge in the table where most of it does, so that more may come;
/// `None`: there is none that can be merged.
pub fn merge_late(live: &Live<'_>, space: &ExistenceSpace) -> store::Result<Option<Spilled>> {
    let Some(_alone) = alone_with(live, space.number()) else { return Ok(None) };
    filters::merge_late(&Ground::of(live), space)
}

/// Keeps the spaces within their limits while they are filled from the log. Whether the disk took
/// what it had to.
pub(crate) fn keep_within(ground: &Ground<'_>, engines: &Engines) -> bool {
    let limits = if engines.is_filling() { engines.deal() } else { Vec::new() };
    let counters = engines.counters().iter().zip(limits);
    for (space, limit) in counters.filter(|(space, _)| space.spills()) {
        while is_short(space, limit) {
            match counters::make_room(ground, space, limit) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    // It takes more memory than it should, and will spill when it serves.
                    note_trouble(&engines.cold, space.name(), &error);
                    return false;
                }
            }
        }
    }
    let kept = filters::keep_within(ground, engines);
    let kept = kept.and_then(|()| ledgers::keep_within(ground, engines));
    kept.inspect_err(|(name, error)| note_trouble(&engines.cold, name, error)).is_ok()
}
