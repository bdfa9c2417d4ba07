//! Commands on counters by space and id (CNT.*).

use crate::commands::call::{Call, counter_space, id, integer, set_option_once};
use crate::commands::command::{Command, Group, Run::Long, Run::Once};
use crate::commands::counter::scan;
use crate::commands::turn::Answered;
use crate::commands::unreadable::{UnreadableRows, keep_first_unreadable};
use crate::session::Scratch;
use counter::{Bounds, Change, Schema};
use dataset::clock::unix_s;
use dataset::engines::CounterSpace;
use dataset::tokens::{self, MAX_TOKEN_BYTES};
use node::command::error::no_field;
use node::command::error::{Refusal, refuse};
use node::command::spec::{IdTarget, KeyArgs, NO_KEYS, ONE_KEY, Outcome, READ, flag};
use resp::Args;

const COUNTER: Group = Group::new("counter", "0.1.0", NO_KEYS);
const ADD: u32 = flag::READS | flag::WRITE | flag::DENYOOM | flag::FAST;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    COUNTER.row("cnt.get", -3, READ | flag::NAMED | flag::PER_ID, "space id [id ...]", Long(get),
        "Returns for each id an array of its counters in schema order, or nil if it has no row.")
        .keys(KeyArgs::Ids(IdTarget::Rows, 2, 1)).linear("ids"),
    COUNTER.row("cnt.scan", -3, flag::READONLY | flag::NO_MULTI | flag::NAMED,
        "space cursor [COUNT count] [BINARY]", Once(scan::run),
        "Iterates over the rows of a space, for batch jobs. Returns the cursor for the next call \
         (0 at the end), and for each row an array of its id and its counters in schema order. \
         Start with cursor 0. COUNT is the approximate number of rows (default 10, maximum \
         10000). BINARY returns the rows as one string: for each row the id as little-endian u64, \
         then the counters as little-endian i64. The number of counters per row follows as an \
         extra element, because fields can be added or dropped between two calls. As with SCAN, a \
         row may appear twice, and rows that exist during the whole iteration are not missed. \
         Each row has its values at the time of reading.")
        .cost("O(1) for every call, O(N) for a complete iteration, where N is the number of rows"),
    COUNTER.row("cnt.incrby", -5, ADD | flag::NAMED,
        "space id field delta [field delta ...] [MIN min] [MAX max] [SAT|FAIL] [TOKEN token]",
        Once(incrby),
        "Adds to counters of one row, all or none. Returns their new values. If a value would \
         leave the bounds MIN and MAX, it stops at the bound (SAT), or the command fails (FAIL, \
         the default). TOKEN (1 to 64 bytes) makes the command idempotent: while the token is \
         kept, a repeated CNT.INCRBY or CNT.MINCRBY with the same token for the same row returns \
         the first result. A different increment under the same token is an error. A rejected \
         increment stores no token.").keys(KeyArgs::Ids(IdTarget::Rows, 2, usize::MAX))
        .linear("fields"),
    COUNTER.row("cnt.hincrby", 6, ADD, "key field increment TOKEN token", Once(hincrby),
        "HINCRBY that counts once, however often it is sent with the same token: CNT.INCRBY with \
         TOKEN for the key of a row. Returns the new value of the counter.")
        .keys(ONE_KEY),
    COUNTER.row("cnt.mincrby", -5, ADD | flag::NAMED | flag::PER_ID,
        "space id field delta [id field delta ...] [TOKEN token]", Long(mincrby),
        "Adds to one counter of each of several rows. Returns for each triple the new value, or \
         an error (overflow, out of memory) for this triple only. If a triple names no counter, \
         the command fails as a whole. TOKEN makes each triple idempotent: a repeated command \
         returns the first results of the triples that counted, and counts the others. With TOKEN \
         each counter may appear only once.")
        .keys(KeyArgs::Ids(IdTarget::Rows, 2, 3)).linear("ids"),
    COUNTER.row("cnt.set", -5, flag::WRITE | flag::DENYOOM | flag::FAST | flag::NAMED,
        "space id field value [field value ...]", Once(set),
        "Sets counters of one row, all or none. Other fields keep their values.")
        .keys(KeyArgs::Ids(IdTarget::Rows, 2, usize::MAX)).linear("fields"),
    COUNTER.row("cnt.del", -3, flag::WRITE | flag::FAST | flag::NAMED,
        "space id [id ...]", Long(del),
        "Deletes rows. Returns the number of deleted rows.")
        .keys(KeyArgs::Ids(IdTarget::Rows, 2, 1)).linear("ids"),
];

/// Number of rows read together, so that their cache misses overlap. The number also limits the
/// memory for the values of these rows.
pub(crate) const READ_BATCH_ROWS: usize = 1024;
/// Number of rows prefetched together before they are changed. More rows would evict the first rows
/// from the L1 cache.
const WRITE_BATCH_ROWS: usize = 32;

fn space<'a>(call: &Call<'a>) -> Result<&'a CounterSpace, Refusal> {
    counter_space(call.node.engines(), call.args.at(1))
}

fn field(space: &CounterSpace, schema: &Schema, name: &[u8]) -> Result<usize, Refusal> {
    schema.index_of(name).ok_or_else(|| no_field(space.name(), name))
}

fn get(call: &mut Call<'_>) -> Answered {
    let space = space(call)?;
    call.read_ids(2)?;
    let most = call.session.max_out_bytes;
    let mut unreadable = UnreadableRows::default();
    let mut read = space.read();
    call.answer_each(call.scratch.ids.len(), READ_BATCH_ROWS, |call, items| {
        if call.reply.mark() > most {
            return Ok(());
        }
        let tallies = &call.node.tallies[call.session.worker];
        let Scratch { ids, rows, found, .. } = &mut *call.scratch;
        let ids = &ids[items];
        rows.clear();
        found.clear();
        unreadable.note(read.get_batch(ids, rows, found));
        tallies.note_found(found);
        let schema = read.schema();
        for ((row, found), &id) in rows.chunks_exact(schema.width()).zip(found.iter()).zip(ids) {
            if !found {
                match unreadable.refusal(id) {
                    Some(refusal) => call.reply.error(refusal.text()),
                    None => call.reply.null_array(),
                }
                continue;
            }
            call.reply.array(schema.living().count());
            for (position, _) in schema.living() {
                call.reply.int(row[position]);
            }
        }
        Ok(())
    })
}

fn token(word: &[u8]) -> Result<&[u8], Refusal> {
    if (1..=MAX_TOKEN_BYTES).contains(&word.len()) {
        return Ok(word);
    }
    Err(refuse!("ERR a token must have 1 to {MAX_TOKEN_BYTES} bytes"))
}

/// Builds the engine's token with the current time.
fn once(token: &[u8], is_of_cell: bool) -> tokens::TokenUse<'_> {
    tokens::TokenUse { token, is_of_cell, now_s: unix_s() }
}

fn incrby(call: &mut Call<'_>) -> Outcome {
    let space = space(call)?;
    let id = call.id(2)?;
    let schema = space.schema();
    let (mut min, mut max, mut saturate, mut used) = (None, None, None, None);
    call.scratch.changes.clear();
    let mut args = call.args.from(3).iter();
    while let Some(word) = args.next() {
        // A field cannot have the name of an option, because the configuration rejects such names.
        if let Some(position) = schema.index_of(word) {
            let delta = integer(args.next().ok_or_else(|| call.wrong_arity())?)?;
            call.scratch.changes.push(Change { field: position, delta });
        } else if word.eq_ignore_ascii_case(b"MIN") {
            set_option_once(&mut min, integer(args.next().ok_or(Refusal::SYNTAX)?)?)?;
        } else if word.eq_ignore_ascii_case(b"MAX") {
            set_option_once(&mut max, integer(args.next().ok_or(Refusal::SYNTAX)?)?)?;
        } else if word.eq_ignore_ascii_case(b"SAT") {
            set_option_once(&mut saturate, true)?;
        } else if word.eq_ignore_ascii_case(b"FAIL") {
            set_option_once(&mut saturate, false)?;
        } else if word.eq_ignore_ascii_case(b"TOKEN") {
            set_option_once(&mut used, token(args.next().ok_or(Refusal::SYNTAX)?)?)?;
        } else {
            return Err(no_field(space.name(), word));
        }
    }
    if call.scratch.changes.is_empty() {
        return Err(Refusal::SYNTAX);
    }
    let bounds = Bounds { min, max, saturate: saturate.unwrap_or(false) };
    if let (Some(min), Some(max)) = (min, max)
        && min > max
    {
        return Err(refuse!("ERR MIN {min} is greater than MAX {max}"));
    }
    let Scratch { changes, row, .. } = &mut *call.scratch;
    row.clear();
    match used {
        None => call.node.engines().add(space, id, changes, &bounds, row)?,
        Some(token) => {
            // Without repeated counters, the number of values stored with the token is bounded as
            // well.
            let mut fields: Vec<usize> = changes.iter().map(|change| change.field).collect();
            refuse_repeated(&mut fields)?;
            let once = once(token, false);
            call.node.engines().add_once(space, id, changes, &bounds, once, row)?;
        }
    }
    call.reply.array(row.len());
    for &value in row.iter() {
        call.reply.int(value);
    }
    Ok(())
}

/// Refuses a repeated counter under one token, because the second increment would look like a retry
/// of the first.
fn refuse_repeated<T: Ord>(counters: &mut [T]) -> Result<(), Refusal> {
    counters.sort_unstable();
    if counters.is_sorted_by(|a, b| a < b) {
        return Ok(());
    }
    Err(refuse!("ERR with TOKEN each counter may appear only once"))
}

fn hincrby(call: &mut Call<'_>) -> Outcome {
    let (space, id) = call.row(1)?;
    let delta = integer(call.args.at(3))?;
    let field = field(space, &space.schema(), call.args.at(2))?;
    if !call.args.at(4).eq_ignore_ascii_case(b"TOKEN") {
        return Err(Refusal::SYNTAX);
    }
    let once = once(token(call.args.at(5))?, false);
    let row = &mut call.scratch.row;
    row.clear();
    let bounds = Bounds::default();
    call.node.engines().add_once(space, id, &[Change { field, delta }], &bounds, once, row)?;
    call.reply.int(row.first().copied().unwrap_or(0));
    Ok(())
}

/// Returns the triples of CNT.MINCRBY and the optional token after them.
fn triples<'a>(call: &Call<'a>) -> Result<(Args<'a>, Option<&'a [u8]>), Refusal> {
    let all = call.args.from(2);
    let length = all.len();
    if length % 3 == 2 && length > 3 && all.at(length - 2).eq_ignore_ascii_case(b"TOKEN") {
        return Ok((all, Some(token(all.at(length - 1))?)));
    }
    if length.is_multiple_of(3) { Ok((all, None)) } else { Err(call.wrong_arity()) }
}

fn mincrby(call: &mut Call<'_>) -> Answered {
    let space = space(call)?;
    let (triples, used) = triples(call)?;
    if call.step.begins_request() {
        call.scratch.changes.clear();
    }
    // Parse all triples before the first change, so that a syntax error leaves no partial effect.
    call.check_each(triples.len() / 3, |call, items| {
        let schema = space.schema();
        let Scratch { ids, changes, .. } = &mut *call.scratch;
        for at in items.map(|item| 3 * item) {
            ids.push(id(triples.at(at))?);
            let field = field(space, &schema, triples.at(at + 1))?;
            changes.push(Change { field, delta: integer(triples.at(at + 2))? });
        }
        Ok(())
    })?;
    let bounds = Bounds { min: None, max: None, saturate: false };
    if used.is_some() && call.step.begins_items() {
        let Scratch { ids, changes, .. } = &*call.scratch;
        let mut cells: Vec<(u64, usize)> =
            ids.iter().zip(changes).map(|(&id, change)| (id, change.field)).collect();
        refuse_repeated(&mut cells)?;
    }
    let once = used.map(|token| once(token, true));
    let engines = call.node.engines();
    call.answer_each(triples.len() / 3, WRITE_BATCH_ROWS, |call, items| {
        let Scratch { ids, changes, row, .. } = &mut *call.scratch;
        let (ids, changes) = (&ids[items.clone()], &changes[items]);
        space.read().prefetch(ids);
        ids.iter().for_each(|&id| engines.hint(id));
        for (&id, change) in ids.iter().zip(changes) {
            row.clear();
            let change = std::slice::from_ref(change);
            let added = match once {
                None => engines.add(space, id, change, &bounds, row),
                Some(once) => engines.add_once(space, id, change, &bounds, once, row),
            };
            match added.map_err(Refusal::from) {
                Ok(()) => call.reply.int(row.first().copied().unwrap_or(0)),
                Err(refusal) => call.reply.error(refusal.text()),
            }
        }
        Ok(())
    })
}

fn set(call: &mut Call<'_>) -> Outcome {
    let space = space(call)?;
    let id = call.id(2)?;
    let values = read_values(call, space, 3, Refusal::NOT_AN_INTEGER)?;
    call.node.engines().set(space, id, &values)?;
    call.reply.ok();
    Ok(())
}

/// Parses `field value` pairs from the argument at index `first` on. As in Redis, if a field is
/// repeated, its last value counts.
pub(crate) fn read_values(
    call: &Call<'_>,
    space: &CounterSpace,
    first: usize,
    not_an_integer: Refusal,
) -> Result<Values, Refusal> {
    let args = call.args.from(first);
    if args.is_empty() || !args.len().is_multiple_of(2) {
        return Err(call.wrong_arity());
    }
    let schema = space.schema();
    let mut values = Values::default();
    for at in (0..args.len()).step_by(2) {
        let field = field(space, &schema, args.at(at))?;
        let Some(value) = resp::integer(args.at(at + 1)) else { return Err(not_an_integer) };
        values.put(field, value);
    }
    Ok(values)
}

/// Values to set. There is at most one value per field, so the list fits on the stack.
pub(crate) struct Values {
    list: [(usize, i64); counter::MAX_FIELDS],
    length: usize,
}

impl Default for Values {
    fn default() -> Values {
        Values { list: [(0, 0); counter::MAX_FIELDS], length: 0 }
    }
}

impl Values {
    fn put(&mut self, field: usize, value: i64) {
        let length = self.length;
        match self.list[..length].iter_mut().find(|(f, _)| *f == field) {
            Some(known) => known.1 = value,
            None => {
                // A schema has at most MAX_FIELDS positions, so the index is in range.
                self.list[length] = (field, value);
                self.length += 1;
            }
        }
    }
}

impl std::ops::Deref for Values {
    type Target = [(usize, i64)];

    fn deref(&self) -> &[(usize, i64)] {
        &self.list[..self.length]
    }
}

fn del(call: &mut Call<'_>) -> Answered {
    let space = space(call)?;
    call.read_ids(2)?;
    call.count_each(call.scratch.ids.len(), |call, item| {
        let gone = call.node.engines().delete(space, call.scratch.ids[item]);
        Ok(keep_first_unreadable(gone, &mut call.scratch.unreadable)?)
    })
}
