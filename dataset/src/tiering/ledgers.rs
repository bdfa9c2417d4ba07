//! Flushes and trims of ledgers. The spill thread runs them, because only one thread may write
//! files.

use super::ground::{SpillContext, lock_data_files};
use crate::engines::{Engines, ExistenceSpace};
use crate::live::Live;
use ledger::Flush;

/// Number of dropped ids above which a trim removes their pairs.
const MAX_DROPPED_IDS: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DueWork {
    Flush,
    Trim,
}

fn due(space: &ExistenceSpace) -> Option<DueWork> {
    let pairs = space.ledger()?;
    match pairs.ledger().is_due() {
        true => Some(DueWork::Flush),
        false => {
            let trims =
                pairs.ledger().dropped_ids() > MAX_DROPPED_IDS && !pairs.damaged.has(0, u64::MAX);
            trims.then_some(DueWork::Trim)
        }
    }
}

impl SpillContext<'_> {
    fn do_work(&self, space: &ExistenceSpace, due: DueWork) -> store::Result<()> {
        let Some(ledger) = space.ledger() else { return Ok(()) };
        let log = || self.flush();
        match due {
            DueWork::Flush => {
                ledger.flush(self.store, Flush::Most, self.settle()?, log).map(|_| ())
            }
            // Trim one range per step. The disk thus needs free space for only one range, and
            // flushes can run between the steps.
            DueWork::Trim => {
                let Some(range) = ledger.ledger().range_with_most_drops() else { return Ok(()) };
                let trimmed = ledger.ledger().trim(self.store, range, |_| true, log);
                ledger.damaged.note(0, u64::MAX, trimmed).map(drop)
            }
        }
    }
}

pub(crate) fn flush_all(ground: &SpillContext<'_>, space: &ExistenceSpace) -> store::Result<()> {
    let Some(ledger) = space.ledger() else { return Ok(()) };
    ledger.flush(ground.store, Flush::All, ground.settle()?, || ground.flush()).map(|_| ())
}

/// Removes pairs of ids that `keep` rejects, in the ledger range that contains `first`. Returns the
/// range's last id and the number of removed pairs, or `None` if the space has been dropped.
///
/// The removal is not logged. Each replica removes the pairs by itself, and replay of older log
/// records restores them. `still` runs before the removal takes effect and can cancel it. Pairs
/// that are set during the removal stay.
pub fn drop_pairs(
    live: &Live<'_>,
    space: &ExistenceSpace,
    first: u64,
    keep: impl Fn(u64) -> bool,
    still: impl FnOnce() -> store::Result<()>,
) -> store::Result<Option<(u64, u64)>> {
    let Some(ledger) = space.ledger() else { return Ok(None) };
    let Some(_alone) = lock_data_files(live, space.number()) else { return Ok(None) };
    let ground = SpillContext::of(live);
    flush_all(&ground, space)?;
    let last = ledger.ledger().end_of_range(first);
    let log = || still().and_then(|()| ground.flush());
    let removed = ledger.ledger().trim(ground.store, (first, last), keep, log)?;
    Ok(Some((last, removed)))
}

/// Performs the most urgent work of a ledger. Returns whether there was work.
pub(super) fn do_urgent_work(
    live: &Live<'_>,
    space: &ExistenceSpace,
) -> store::Result<Option<bool>> {
    let Some(due) = due(space) else { return Ok(Some(false)) };
    let Some(_alone) = lock_data_files(live, space.number()) else { return Ok(Some(false)) };
    SpillContext::of(live).do_work(space, due).map(|()| Some(true))
}

/// Flushes ledgers that exceed their memory, while recovery replays the log.
pub(super) fn keep_within(
    ground: &SpillContext<'_>,
    engines: &Engines,
) -> Result<(), (String, store::Error)> {
    for space in engines.existences().iter().filter(|space| space.ledger().is_some()) {
        if due(space) == Some(DueWork::Flush) {
            let flushed = ground.do_work(space, DueWork::Flush);
            flushed.map_err(|error| (space.name().to_owned(), error))?;
        }
    }
    Ok(())
}
