//! What changes that belong together take in the log: one batch holds them (`store/src/commit`, C6), so they must fit into it.
//!
//! Asked before the first of them is made. It is an upper bound, of the encodings in `records.rs`: what it lets through may still meet others in its
//! batch, which is parted then; what it refuses might have fitted.
//!
//! Why they are not logged in several batches with a mark at the end: whoever reads a log (a start, a replica, `check`) would have to keep back what
//! may turn out to be half of something, of any size, and a snapshot could not begin in the middle. Redis takes such a MSET, and its memory too.

use super::command::{id_positions, key_positions};
use super::{NO_KEYS, Outcome, find, id, refuse};
use crate::engines::{CounterSpace, Engines, KeyRef};
use crate::resp::Args;
use store::MAX_BODY_BYTES;

/// Most bytes of changes that belong together. The rest of a batch is for schemas, layouts and heads of records.
const MOST_BYTES: usize = MAX_BODY_BYTES / 16 * 15;
/// An id in a record: a step, and an escape before it.
const ID_BYTES: usize = 20;
/// A value in a row.
const VALUE_BYTES: usize = 10;
/// A pair: its id, and a member or the hash of one.
const PAIR_BYTES: usize = ID_BYTES + 16;

fn row_bytes(space: &CounterSpace) -> usize {
    ID_BYTES + space.schema().width() * VALUE_BYTES
}

/// Whether what these requests change fits into one batch of the log.
#[inline]
pub(super) fn check<'a, I: Iterator<Item = Args<'a>>>(engines: &Engines, requests: impl Fn() -> I) -> Outcome {
    // As if each argument were a pair, and an id of which every space has a row.
    let most: usize = PAIR_BYTES + engines.counters().iter().map(row_bytes).sum::<usize>();
    let args: usize = requests().map(|args| args.len()).sum();
    if args * most <= MOST_BYTES { Ok(()) } else { check_closely(engines, requests()) }
}

/// Row by row, each counted once.
#[cold]
fn check_closely<'a>(engines: &Engines, requests: impl Iterator<Item = Args<'a>>) -> Outcome {
    let mut bytes = 0;
    let mut rows: Vec<(u32, u64)> = Vec::new();
    for args in requests {
        let Some((_, spec)) = find(args.at(0)).filter(|(_, spec)| spec.may_write(args)) else { continue };
        if spec.keys == NO_KEYS {
            for id in id_positions(spec, args).into_iter().flatten().filter_map(|at| id(args.at(at)).ok()) {
                bytes += PAIR_BYTES;
                rows.extend(engines.counters().iter().map(|space| (space.number(), id)));
            }
            continue;
        }
        for at in key_positions(spec, args) {
            match engines.resolve(args.at(at)) {
                Ok(KeyRef::Row { space, id } | KeyRef::Cell { space, id, .. }) => rows.push((space.number(), id)),
                Ok(KeyRef::Pair { .. }) => bytes += args.len() * PAIR_BYTES,
                // It will be refused.
                Err(_) => {}
            }
        }
    }
    rows.sort_unstable();
    rows.dedup();
    for of_space in rows.chunk_by(|a, b| a.0 == b.0) {
        bytes += engines.counter_by_number(of_space[0].0).map_or(0, row_bytes) * of_space.len();
    }
    if bytes <= MOST_BYTES {
        return Ok(());
    }
    Err(refuse!(
        "ERR changes that belong together may take {MOST_BYTES} bytes of the log, and these may take {bytes}: none was made"
    ))
}
