//! CNT.SCAN, and the stateless cursor that SCAN uses as well.

use crate::commands::call::{Call, counter_space, disk, integer, set_option_once};
use dataset::cold;
use dataset::engines::CounterSpace;
use node::command::error::{Refusal, refuse};
use node::command::spec::Outcome;
use resp::Reply;
use tokio::runtime::Handle;

/// Bit of a cursor that is set while the scan visits rows on disk.
const ON_DISK: u64 = 1 << counter::scan::CURSOR_BITS;
/// Exclusive upper bound of a space's cursors.
pub(crate) const CURSOR_LIMIT: u64 = ON_DISK << 1;

/// Maximum number of keys in a reply of KEYS or of one SCAN call.
pub(crate) const MOST_KEYS: u64 = 10_000;

/// Passes the ids of about `max_rows` rows to `take`, in one step of a scan. Returns the next
/// cursor, which is less than [`CURSOR_LIMIT`]. Cursor 0 starts a scan and marks its end. Reads
/// cold rows synchronously.
pub(crate) fn step(
    space: &CounterSpace,
    cursor: u64,
    max_rows: u64,
    take: &mut impl FnMut(u64),
) -> Result<u64, Refusal> {
    if cursor & ON_DISK == 0 {
        // Scan memory before disk, because rows may move from memory to disk during the scan.
        return Ok(match space.scan(cursor, max_rows, &mut *take) {
            0 if space.cold_end() > 0 => ON_DISK,
            next => next,
        });
    }
    let cold = space.cold();
    let mut next = cold.id_at(cursor & !ON_DISK);
    loop {
        let Some(id) = cold.scan(space, next, max_rows, take).map_err(disk)? else { return Ok(0) };
        next = id;
        // Continue until the cursor advances.
        if let Some(moved) = cold.cursor_at(id).filter(|&at| ON_DISK | at != cursor) {
            return Ok(ON_DISK | moved);
        }
    }
}

/// Parses a cursor returned by [`step`].
pub(crate) fn parse_cursor(text: &[u8]) -> Result<u64, Refusal> {
    let cursor = resp::natural(text).filter(|&cursor| cursor < CURSOR_LIMIT);
    cursor.ok_or_else(|| refuse!("ERR invalid cursor"))
}

struct ScanRequest {
    cursor: u64,
    max_rows: u64,
    binary: bool,
}

pub(super) fn run(call: &mut Call<'_>) -> Outcome {
    let space = counter_space(call.node.engines(), call.args.at(1))?;
    let cursor = parse_cursor(call.args.at(2))?;
    let (mut max_rows, mut binary) = (None, None);
    let mut options = call.args.from(3).iter();
    while let Some(option) = options.next() {
        if option.eq_ignore_ascii_case(b"binary") {
            set_option_once(&mut binary, true)?;
        } else if option.eq_ignore_ascii_case(b"count") {
            let rows = integer(options.next().ok_or(Refusal::SYNTAX)?)?;
            if rows < 1 {
                return Err(Refusal::SYNTAX);
            }
            set_option_once(&mut max_rows, rows.unsigned_abs().min(MOST_KEYS))?;
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    let asked = ScanRequest { cursor, max_rows: max_rows.unwrap_or(10), binary: binary.is_some() };
    if space.cold_end() == 0 {
        return answer(space, &asked, None, &mut call.reply);
    }
    let name = space.name().to_owned();
    call.answer_later(move |node, reply| {
        let Some(space) = node.engines().counter(name.as_bytes()) else {
            return Err(refuse!("ERR no such counter space '{name}'"));
        };
        answer(space, &asked, Handle::try_current().ok(), reply)
    })
}

/// Writes the reply. If `waits` is given, the thread may block, so all cold blocks are read
/// concurrently.
fn answer(
    space: &CounterSpace,
    asked: &ScanRequest,
    waits: Option<Handle>,
    reply: &mut Reply<'_>,
) -> Outcome {
    let mut ids = Vec::new();
    let next = step(space, asked.cursor, asked.max_rows, &mut |id| ids.push(id))?;
    if let Some(runtime) = waits {
        runtime.block_on(space.fetch(&ids));
    }
    let (mut rows, mut found) = (Vec::new(), Vec::new());
    let mut read = space.read();
    let read_all = read.get_batch(&ids, &mut rows, &mut found);
    cold::unpin();
    read_all?;
    let schema = read.schema();
    let there = || {
        let rows = rows.chunks_exact(schema.width()).zip(&ids).zip(&found);
        // Skip rows that were deleted after the scan.
        rows.filter(|(_, found)| **found).map(|((row, id), _)| (*id, row))
    };
    reply.array(2 + usize::from(asked.binary));
    reply.bulk(next.to_string().as_bytes());
    if asked.binary {
        let mut packed = Vec::with_capacity(ids.len() * 8 * (1 + schema.width()));
        for (id, row) in there() {
            packed.extend_from_slice(&id.to_le_bytes());
            let values = schema.living().map(|(position, _)| row[position]);
            values.for_each(|value| packed.extend_from_slice(&value.to_le_bytes()));
        }
        reply.bulk(&packed);
        // A field may have been added since the last call.
        reply.count(schema.living().count());
        return Ok(());
    }
    reply.array(there().count());
    for (id, row) in there() {
        reply.array(1 + schema.living().count());
        reply.bulk(id.to_string().as_bytes());
        schema.living().for_each(|(position, _)| reply.int(row[position]));
    }
    Ok(())
}
