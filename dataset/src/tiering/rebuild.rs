//! Rebuilds filters from a ledger, table by table. `TM.SPACE ALTER space SET false_positive_rate`
//! and `TM.REBUILD` start rebuilds, for example after damage to a cold filter. A table is also
//! rebuilt if its filters are too small or too large (`cold/rebuilds.rs`).
//!
//! There is no list of pending rebuilds. A table needs a rebuild if its filters' false-positive
//! rate differs from the rate of the space, or if the table has extensions. A crash loses only the
//! work on one table, and replicas rebuild their own tables. Lookups use the old filters until the
//! new filters contain every pair (`phantom/src/rebuild.rs`).
//!
//! Steps are short, so that the spill thread can flush ledgers and spill tables between them.

use super::ground::{SpillContext, lock_data_files};
use crate::cold::cold_filters::refused;
use crate::cold::ledger::{PairLedger, in_filters};
use crate::cold::rebuilds::{ActiveRebuild, Resize};
use crate::cpu_throttle::CpuThrottle;
use crate::engines::ExistenceSpace;
use crate::live::Live;
use phantom::Rebuilt;
use std::sync::atomic::Ordering::Relaxed;
use store::time;

const PIECES: usize = 8;
/// Number of pairs per piece. A piece spans several blocks, because the blocks at both ends of a
/// piece are decoded twice.
const PIECE_PAIRS: usize = 1024;

/// Adds the next piece of pairs to the new filters. Returns whether this piece was the last.
fn put_piece(
    walk: &mut ActiveRebuild,
    space: &phantom::Space,
    ledger: &PairLedger,
) -> store::Result<bool> {
    let after = walk.after.as_ref().map(|(id, member)| (*id, member.as_member()));
    let pairs = ledger.ledger().list(walk.rebuild.range(), after, PIECE_PAIRS)?;
    let members = pairs.iter().map(|pair| (pair.id, in_filters(pair.member)));
    space.put_rebuilt(&walk.rebuild, members).map_err(refused)?;
    ledger.rebuilds.pairs.fetch_add(pairs.len() as u64, Relaxed);
    let last = pairs.last().filter(|_| pairs.len() == PIECE_PAIRS);
    walk.after = last.map(|last| (last.id, last.member.to_owned()));
    Ok(walk.after.is_none())
}

/// Begins a rebuild. Returns `None` if no table is due, the table no longer exists, or memory is
/// short.
fn begin(
    live: &Live<'_>,
    space: &ExistenceSpace,
    resize: Option<Resize>,
    due: &[u64],
) -> store::Result<Option<ActiveRebuild>> {
    let rebuild = match (resize, due.first()) {
        (Some(Resize { low, spare, .. }), _) => space.begin_resize(low, spare),
        (None, Some(&low)) => space.begin_rebuild(low),
        (None, None) => return Ok(None),
    };
    let Some(rebuild) = rebuild.map_err(refused)? else { return Ok(None) };
    // A writer that began before the new filters existed must finish before the rebuild reads the
    // ledger.
    live.current.load().wait_for_writers();
    Ok(Some(ActiveRebuild { rebuild, after: None, resizes: resize.is_some() }))
}

/// Performs one step of a space's rebuilds. Returns whether there was any work.
pub(super) fn do_urgent_work(
    live: &Live<'_>,
    space: &ExistenceSpace,
) -> store::Result<Option<bool>> {
    let Some(ledger) = space.ledger() else { return Ok(Some(false)) };
    let rebuilds = &ledger.rebuilds;
    let due = space.to_rebuild();
    let (resize, resizes) = rebuilds.next_resize(&space.table_loads(), time::now());
    rebuilds.left.store(due.len() + resizes, Relaxed);
    let mut now = rebuilds.now.lock();
    // An error discards the rebuild, so the next attempt starts over.
    let is_wanted = |walk: &ActiveRebuild| walk.resizes || due.contains(&walk.rebuild.range().0);
    let mut walk = now.take().filter(|walk| is_wanted(walk) && space.may_end(&walk.rebuild));
    if walk.is_none() {
        let begun = begin(live, space, resize, &due);
        if let (Some(Resize { low, .. }), Ok(None) | Err(_)) = (resize, &begun) {
            rebuilds.defer_resize(low, time::now());
        }
        walk = begun?;
    }
    let Some(mut walk) = walk else { return Ok(Some(false)) };
    let (low, resizes) = (walk.rebuild.range().0, walk.resizes);
    match put_pieces(live, space, ledger, &mut walk) {
        Ok(false) => *now = Some(walk),
        Ok(true) => {
            drop(now);
            return end(live, space, walk).map(Some);
        }
        Err(error) => {
            if resizes {
                rebuilds.defer_resize(low, time::now());
            }
            return Err(error);
        }
    }
    Ok(Some(true))
}

/// Adds up to `PIECES` pieces of pairs to the new filters. Returns whether they contain all pairs.
fn put_pieces(
    live: &Live<'_>,
    space: &ExistenceSpace,
    ledger: &PairLedger,
    walk: &mut ActiveRebuild,
) -> store::Result<bool> {
    let is_awaited = || live.snapshots.is_awaited();
    let pace = CpuThrottle::until(live.is_stopped, &is_awaited);
    for _ in 0..PIECES {
        pace.goes_on()?;
        if put_piece(walk, space, ledger)? {
            return Ok(true);
        }
        pace.step();
    }
    Ok(false)
}

fn end(live: &Live<'_>, space: &ExistenceSpace, walk: ActiveRebuild) -> store::Result<bool> {
    let Some(ledger) = space.ledger() else { return Ok(false) };
    let (low, pairs) = (walk.rebuild.range().0, walk.rebuild.pairs());
    let Some(_alone) = lock_data_files(live, space.number()) else { return Ok(false) };
    match space.end_rebuild(walk.rebuild) {
        Rebuilt::Outdated => return Ok(true),
        // The next snapshot must write the table.
        Rebuilt::Done => live.durability.parts.touch(space.number(), low),
        Rebuilt::Elsewhere(written) => {
            SpillContext::of(live).write_rebuilt(space, written.rewrite, live.merge_bytes_per_s)?;
        }
    }
    ledger.rebuilds.tables.fetch_add(1, Relaxed);
    tracing::info!(
        "space '{}': rebuilt the filters of ids from {low} on with {pairs} pairs",
        space.name()
    );
    Ok(true)
}
