//! Computes an upper bound of the number of log bytes that a group of changes needs. A group is
//! logged in one batch (`store/src/commit`, C6), so the group must fit into one batch.
//!
//! The bound is computed before the first change, from the encodings in
//! `dataset/src/log_records.rs`, and reserved in the next batch
//! ([`Call::alone`](crate::commands::call::Call::alone)). Because the bound is not exact, a group
//! that is refused might have fitted.
//!
//! Splitting a group into several batches with an end mark was rejected. Every log reader
//! (recovery, replica, `check`) would have to buffer incomplete groups of any size, and a snapshot
//! could not start in the middle of a group. Redis accepts an MSET of any size, but buffers the
//! whole command in memory.

use crate::commands::run::select;
use dataset::commit::MAX_CHANGE_BYTES;
use dataset::engines::Engines;
use dataset::log_records::VALUE_BYTES;
use node::command::error::{Refusal, refuse};
use node::command::footprint::{Footprint, Reach, Touch};
use node::command::id_list::count_packed;
use node::command::spec::flag;
use node::command::table::find;
use resp::Args;

/// Size in bytes up to which the rough estimate is used, without computing the exact bound.
const ROUGH_BYTES: usize = 1 << 20;
/// Size of an encoded token in bytes: hash, time, hash of the increment, number of values.
const TOKEN_BYTES: usize = 16 + 5 + 4 + 1;

/// Returns the maximum log size of these requests in bytes. Fails if no batch can hold that many
/// bytes.
#[inline]
pub(crate) fn of<'a, I: Iterator<Item = Args<'a>>>(
    engines: &Engines,
    requests: impl Fn() -> I,
) -> Result<usize, Refusal> {
    // For the rough estimate, each argument may change a pair, and also a row in every space.
    let most: usize = engines.log_bytes_of_pair()
        + engines.counters().iter().map(|space| engines.log_bytes_of_row(space)).sum::<usize>();
    let args: usize = requests().map(|args| args.len() + count_packed(args)).sum();
    if args * most <= ROUGH_BYTES { Ok(args * most) } else { exact_bound(engines, requests()) }
}

/// Returns whether a request may change a schema. Rows that wait to be logged may then grow, so no
/// other group may have a reservation of log space at that time.
pub(crate) fn may_change_schema(engines: &Engines, args: Args<'_>) -> bool {
    let spec = find(args.at(0)).and_then(|(_, spec)| select(spec, args).ok());
    spec.is_some_and(|(spec, _)| {
        let reach = Footprint::new(spec, args, engines).reach();
        spec.has(flag::WRITE) && reach == Reach::Everything
    })
}

/// Computes the exact bound, which counts each row once.
#[cold]
fn exact_bound<'a>(
    engines: &Engines,
    requests: impl Iterator<Item = Args<'a>>,
) -> Result<usize, Refusal> {
    let mut bytes = 0;
    let mut rows: Vec<(u32, u64)> = Vec::new();
    for args in requests {
        let Some((_, spec)) = find(args.at(0)).filter(|(_, spec)| spec.may_write(args)) else {
            continue;
        };
        let footprint = Footprint::new(spec, args, engines);
        let is_once = args.iter().any(|word| word.eq_ignore_ascii_case(b"TOKEN"));
        let mut count = |_, touch: Touch<'_>| match touch {
            Touch::Row(space, id) => {
                rows.push((space.number(), id));
                if is_once {
                    bytes += TOKEN_BYTES + space.schema().width() * VALUE_BYTES;
                }
            }
            Touch::Pair(space, ..) => bytes += space.log_bytes_of_pair(),
            Touch::Shown(..) => {}
        };
        footprint.each(&mut count);
        if let Some(marked) = footprint.marked() {
            marked.each(count);
        }
    }
    rows.sort_unstable();
    rows.dedup();
    for of_space in rows.chunk_by(|a, b| a.0 == b.0) {
        let each = engines
            .counter_by_number(of_space[0].0)
            .map_or(0, |space| engines.log_bytes_of_row(space));
        bytes += each * of_space.len();
    }
    if bytes <= MAX_CHANGE_BYTES {
        return Ok(bytes);
    }
    Err(refuse!(
        "ERR atomic change too large: it may need {bytes} bytes of the log, and the maximum is \
         {MAX_CHANGE_BYTES}"
    ))
}
