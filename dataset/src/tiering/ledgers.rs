//! Flushes and trims of ledgers. The spill thread runs them, because only one thread may write
//! files.

use super::ground::{Ground, alone_with};
use crate::engines::{Engines, ExistenceSpace};
use crate::live::Live;
use ledger::Flush;

/// Number of dropped ids above which a trim removes their pairs.
const MOST_DROPS: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Flush,
    Trim,
}

fn due(space: &ExistenceSpace) -> Option<Due> {
    let pairs = space.ledger()?;
    match pairs.ledger().is_due() {
        true => Some(Due::Flush),
        false => {
            let trims =
                pairs.ledger().dropped_ids() > MOST_DROPS && !pairs.damaged.has(0, u64::MAX);
            trims.then_some(Due::Trim)
        }
    }
}

impl Ground<'_> {
    fn do_due(&self, space: &ExistenceSpace, due: Due) -> store::Result<()> {
        let Some(ledger) = space.ledger() else { return Ok(()) };
        let log = || self.flush();
        match due {
            Due::Flush => ledger.flush(self.store, Flush::Most, self.settle()?, log).map(|_| ()),
            // Trim one range per step. The disk thus needs free space for only one range, and
            // flushes can run between the steps.
            Due::Trim => {
                let Some(range) = ledger.ledger().most_dropped() else { return Ok(()) };
                let trimmed = ledger.ledger().trim(self.store, range, |_| true, log);
                ledger.damaged.note(0, u64::MAX, trimmed).map(drop)
            }
        }
    }
}

pub(crate) fn flush_all(ground: &Ground<'_>, space: &ExistenceSpace) -> store::Result<()> {
    let Some(ledger) = space.ledger() else { return Ok(()) };
    ledger.flush(ground.store, Flush::All, ground.settle()?, || ground.flush()).map(|_| ())
}

/// Removes pairs of ids that `keep` rejects, in the ledger range that contains `first`. Returns the
/// range's last id and the number of removed pairs; `None` if the space has been dropped.
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
    let Some(_alone) = alone_with(live, space.number()) else { return Ok(None) };
    let ground = Ground::of(live);
    flush_all(&ground, space)?;
    let last = ledger.ledger().end_of_range(first);
    let log = || still().and_then(|()| ground.flush());
    let removed = ledger.ledger().trim(ground.store, (first, last), keep, log)?;
    Ok(Some((last, removed)))
}

/// Performs the most urgent work of a ledger. Returns whether there was any.
pub(super) fn look_after(live: &Live<'_>, space: &ExistenceSpace) -> store::Result<Option<bool>> {
    let Some(due) = due(space) else { return Ok(Some(false)) };
    let Some(_alone) = alone_with(live, space.number()) else { return Ok(Some(false)) };
    Ground::of(live).do_due(space, due).map(|()| Some(true))
}

/// Flushes ledgers that exceed their memory, while recovery replays the log.
pub(super) fn keep_within(
    ground: &Ground<'_>,
    engines: &Engines,
) -> Result<(), (String, store::Error)> {
    for space in engines.existences().iter().filter(|space| space.ledger().is_some()) {
        if due(space) == Some(Due::Flush) {
            let flushed = ground.do_due(space, Due::Flush);
            flushed.map_err(|error| (space.name().to_owned(), error))?;
        }
    }
    Ok(())
}
