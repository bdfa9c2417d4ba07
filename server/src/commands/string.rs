//! Single counters as Redis strings: a cell key (`post:17:like`) is a string that holds an integer.

use super::{ALL_KEYS, Call, KeyArgs, ONE_KEY, Outcome, Refusal, Spec, flag, integer, refuse};

const READ: u16 = flag::READONLY | flag::FAST;
const WRITE: u16 = flag::WRITE | flag::DENYOOM | flag::FAST;

const fn spec(
    name: &'static str,
    arity: i32,
    flags: u16,
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
    spec("incr", 2, WRITE, ONE_KEY, "key", "Adds 1 to a counter; answers its new value.", incr),
    spec("incrby", 3, WRITE, ONE_KEY, "key increment", "Adds to a counter; answers its new value.", incrby),
    spec("decr", 2, WRITE, ONE_KEY, "key", "Takes 1 from a counter; answers its new value.", decr),
    spec("decrby", 3, WRITE, ONE_KEY, "key decrement", "Takes from a counter; answers its new value.", decrby),
];

/// Answers the value of one cell.
fn write(call: &mut Call<'_>, key: &[u8]) -> Outcome {
    let (space, id, field) = call.cell(key)?;
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

fn get(call: &mut Call<'_>) -> Outcome {
    write(call, call.args.at(1))
}

fn mget(call: &mut Call<'_>) -> Outcome {
    let keys = call.args.from(1);
    call.reply.array(keys.len());
    for key in keys.iter() {
        write(call, key)?;
    }
    Ok(())
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
