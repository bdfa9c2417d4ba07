//! Building filters anew from a ledger, table by table: after `TM.SPACE ALTER space SET
//! false_positive_rate`, or as TM.REBUILD asks for it (a page of a cold filter is damaged, say).
//!
//! What is to be done follows from the state: a table that was made for another rate than its
//! space's is built anew. So a kill in the middle loses nothing but the work on one table, and a
//! replica, which learns of the rate by the catalogue, does it by itself. The old filters answer
//! until the new ones have every pair (`phantom/src/rebuild.rs`).
//!
//! A step is short: between two of them this thread flushes ledgers and spills tables.

use super::ground::{Ground, alone_with};
use crate::cold::cold_filters::refused;
use crate::cold::ledger::{PairLedger, in_filters};
use crate::cold::rebuilds::Walk;
use crate::cpu_throttle::CpuThrottle;
use crate::engines::ExistenceSpace;
use crate::live::Live;
use phantom::Rebuilt;
use std::sync::atomic::Ordering::Relaxed;

/// Pieces of a list that a step reads.
const PIECES: usize = 16;
/// Pairs of a piece: about as many as a few blocks have, so that few blocks are decoded twice.
const PIECE_PAIRS: usize = 512;

/// Puts the next piece of pairs into the new filters. Returns whether it was the last one.
fn put_piece(walk: &mut Walk, space: &phantom::Space, ledger: &PairLedger) -> store::Result<bool> {
    let after = walk.after.as_ref().map(|(id, member)| (*id, member.as_member()));
    let pairs = ledger.ledger().list(walk.rebuild.range(), after, PIECE_PAIRS)?;
    for pair in pairs.iter() {
        let member = in_filters(pair.member);
        space.put_rebuilt(&walk.rebuild, pair.id, &member).map_err(refused)?;
    }
    ledger.rebuilds.pairs.fetch_add(pairs.len() as u64, Relaxed);
    let last = pairs.last().filter(|_| pairs.len() == PIECE_PAIRS);
    walk.after = last.map(|last| (last.id, last.member.to_owned()));
    Ok(walk.after.is_none())
}

/// Begins with a table; `None`: it has gone.
fn begin(live: &Live<'_>, space: &ExistenceSpace, low: u64) -> store::Result<Option<Walk>> {
    let Some(rebuild) = space.begin_rebuild(low).map_err(refused)? else { return Ok(None) };
    // What they set is in the ledger before it is read, or goes to both.
    live.current.load().pass_writers();
    Ok(Some(Walk::new(rebuild)))
}

/// Takes a step for a space; whether there was anything to do.
pub(super) fn look_after(live: &Live<'_>, space: &ExistenceSpace) -> store::Result<Option<bool>> {
    let Some(ledger) = space.ledger() else { return Ok(Some(false)) };
    let rebuilds = &ledger.rebuilds;
    let due = space.to_rebuild();
    rebuilds.left.store(due.len(), Relaxed);
    let mut now = rebuilds.now.lock();
    // An error drops it: the next attempt begins the table anew.
    let mut walk = now
        .take()
        .filter(|walk| due.contains(&walk.rebuild.range().0) && space.may_end(&walk.rebuild));
    if let (None, Some(&low)) = (&walk, due.first()) {
        walk = begin(live, space, low)?;
    }
    let Some(mut walk) = walk else { return Ok(Some(false)) };
    let is_awaited = || live.snapshots.is_awaited();
    let pace = CpuThrottle::until(live.is_stopped, &is_awaited);
    for _ in 0..PIECES {
        pace.goes_on()?;
        if put_piece(&mut walk, space, ledger)? {
            drop(now);
            return end(live, space, walk).map(Some);
        }
        pace.step();
    }
    *now = Some(walk);
    Ok(Some(true))
}

/// All pairs are in the new filters.
fn end(live: &Live<'_>, space: &ExistenceSpace, walk: Walk) -> store::Result<bool> {
    let Some(ledger) = space.ledger() else { return Ok(false) };
    let (low, pairs) = (walk.rebuild.range().0, walk.rebuild.pairs());
    let Some(_alone) = alone_with(live, space.number()) else { return Ok(false) };
    match space.end_rebuild(walk.rebuild) {
        Rebuilt::Outdated => return Ok(true),
        // The next snapshot has the table as it is now.
        Rebuilt::Done => live.durability.parts.touch(space.number(), low),
        Rebuilt::Elsewhere(written) => {
            Ground::of(live).write_rebuilt(space, written.rewrite, live.merge_bytes_per_s)?;
        }
    }
    ledger.rebuilds.tables.fetch_add(1, Relaxed);
    tracing::info!(
        "space '{}': the filters of ids from {low} on were built anew, of {pairs} pairs",
        space.name()
    );
    Ok(true)
}
