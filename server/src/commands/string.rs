//! Single counters as Redis strings: a cell key (`post:17:like`) is a string that holds an integer.

use super::{ALL_KEYS, Call, KeyArgs, ONE_KEY, Outcome, Refusal, Scratch, Spec, flag, integer, refuse};
use crate::engines::CounterSpace;

const READ: u32 = flag::READONLY | flag::FAST;
const WRITE: u32 = flag::WRITE | flag::DENYOOM | flag::FAST;

const fn spec(
    name: &'static str,
    arity: i32,
    flags: u32,
    keys: KeyArgs,
    usage: &'static str,
    summary: &'static str,
    run: super::Handler,
) -> Spec {
    Spec { name, arity, flags, keys, group: "string", since: "1.0.0", usage, summary, run, subcommands: &[] }
}

#[rustfmt::skip]
pub(super) const TABLE: &[Spec] = &[
    spec("get", 2, READ, ONE_KEY, "key", "The value of a counter, nil if its row does not exist.", get),
    spec("mget", -2, READ, ALL_KEYS, "key [key ...]", "The values of counters, nil for those whose row does not exist.", mget),
    spec("set", -3, WRITE, ONE_KEY, "key value",
        "Sets a counter. Redis's options (EX, NX, GET, ...) are refused: a counter does not expire.", set),
    spec("incr", 2, WRITE | flag::READS, ONE_KEY, "key", "Adds 1 to a counter; answers its new value.", incr),
    spec("incrby", 3, WRITE | flag::READS, ONE_KEY, "key increment", "Adds to a counter; answers its new value.", incrby),
    spec("decr", 2, WRITE | flag::READS, ONE_KEY, "key", "Takes 1 from a counter; answers its new value.", decr),
    spec("decrby", 3, WRITE | flag::READS, ONE_KEY, "key decrement", "Takes from a counter; answers its new value.", decrby),
];

fn get(call: &mut Call<'_>) -> Outcome {
    let (space, id, field) = call.cell(call.args.at(1))?;
    let row = &mut call.scratch.row;
    row.clear();
    row.resize(space.schema().width(), 0);
    if space.get(id, row) {
        call.reply.bulk_int(row[field]);
    } else {
        call.reply.null();
    }
    Ok(())
}

/// All keys are resolved first; then those that follow each other in one space are read together, so that they wait for memory once.
fn mget(call: &mut Call<'_>) -> Outcome {
    let keys = call.args.from(1);
    call.reply.array(keys.len());
    call.scratch.ids.clear();
    call.scratch.fields.clear();
    let mut run: Option<&CounterSpace> = None;
    for key in keys.iter() {
        let (space, id, field) = call.cell(key)?;
        if let Some(before) = run.replace(space)
            && !std::ptr::eq(before, space)
        {
            write_cells(call, before);
        }
        call.scratch.ids.push(id);
        call.scratch.fields.push(field);
    }
    if let Some(last) = run {
        write_cells(call, last);
    }
    Ok(())
}

/// Answers the cells whose ids and fields are in the scratch, and forgets them.
fn write_cells(call: &mut Call<'_>, space: &CounterSpace) {
    let Scratch { ids, fields, rows, found, .. } = &mut *call.scratch;
    rows.clear();
    found.clear();
    let mut read = space.read();
    read.get_batch(ids, rows, found);
    let width = read.schema().width();
    for (index, (&field, &found)) in fields.iter().zip(found.iter()).enumerate() {
        if found {
            call.reply.bulk_int(rows[index * width..][..width].get(field).copied().unwrap_or(0));
        } else {
            call.reply.null();
        }
    }
    ids.clear();
    fields.clear();
}

fn set(call: &mut Call<'_>) -> Outcome {
    let (space, id, field) = call.cell(call.args.at(1))?;
    if call.args.len() > 3 {
        return Err(refuse!("ERR SET takes no options here: a counter has a value and does not expire"));
    }
    let value = integer(call.args.at(2))?;
    call.node.engines.set(space, id, &[(field, value)])?;
    call.reply.ok();
    Ok(())
}

fn add(call: &mut Call<'_>, delta: i64) -> Outcome {
    let (space, id, field) = call.cell(call.args.at(1))?;
    super::hash::add(call, space, id, field, delta)
}

fn incr(call: &mut Call<'_>) -> Outcome {
    add(call, 1)
}

fn incrby(call: &mut Call<'_>) -> Outcome {
    add(call, integer(call.args.at(2))?)
}

fn decr(call: &mut Call<'_>) -> Outcome {
    add(call, -1)
}

fn decrby(call: &mut Call<'_>) -> Outcome {
    let delta = integer(call.args.at(2))?;
    // -2^63 has no opposite.
    add(call, delta.checked_neg().ok_or(Refusal::DECREMENT)?)
}
