//! What changes that belong together take in the log: one batch holds them (`store/src/commit`,
//! C6), so they must fit into it.
//!
//! Asked before the first of them is made. It is an upper bound, of the encodings in
//! `dataset/src/log_records.rs`: so much is reserved in the next batch
//! ([`Call::alone`](crate::commands::call::Call::alone)); what is refused might have fitted.
//!
//! Why they are not logged in several batches with a mark at the end: a reader of the log (a start,
//! a replica, `check`) would have to keep back what may turn out to be half of something, of any
//! size, and a snapshot could not begin in the middle. Redis takes such a MSET, and its memory too.

use crate::commands::run::select;
use dataset::commit::MOST_BYTES;
use dataset::engines::Engines;
use dataset::log_records::VALUE_BYTES;
use node::command::error::{Refusal, refuse};
use node::command::footprint::{Footprint, Reach, Touch};
use node::command::spec::flag;
use node::command::table::find;
use resp::Args;

/// Up to here it need not be known closely.
const ROUGH_BYTES: usize = 1 << 20;
/// A token: its hash, time, the hash of its increment, and how many values follow.
const TOKEN_BYTES: usize = 16 + 5 + 4 + 1;

/// Bytes that what these requests change may take in the log. An error if that fits into no batch.
#[inline]
pub(crate) fn of<'a, I: Iterator<Item = Args<'a>>>(
    engines: &Engines,
    requests: impl Fn() -> I,
) -> Result<usize, Refusal> {
    // As if each argument were a pair, and an id of which every space has a row.
    let most: usize = engines.log_bytes_of_pair()
        + engines.counters().iter().map(|space| engines.log_bytes_of_row(space)).sum::<usize>();
    let args: usize = requests().map(|args| args.len()).sum();
    if args * most <= ROUGH_BYTES { Ok(args * most) } else { closely(engines, requests()) }
}

/// Whether a request may change the shape of what it does not name: a schema, and with it the rows
/// of others that wait for the log. Beside it there is to be room for nothing.
pub(crate) fn reshapes(engines: &Engines, args: Args<'_>) -> bool {
    let spec = find(args.at(0)).and_then(|(_, spec)| select(spec, args).ok());
    spec.is_some_and(|(spec, _)| {
        let reach = Footprint::new(spec, args, engines).reach();
        spec.has(flag::WRITE) && reach == Reach::Everything
    })
}

/// Row by row, each counted once.
#[cold]
fn closely<'a>(
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
    if bytes <= MOST_BYTES {
        return Ok(bytes);
    }
    Err(refuse!(
        "ERR changes that belong together may take {MOST_BYTES} bytes of the log, and these may \
         take {bytes}: none was made"
    ))
}
