//! Rows as Redis hashes: a row key (`post:17`) is a hash whose fields are the schema's counters.
//!
//! Unlike a Redis hash, a row has all fields of its schema, and a field that was never set is 0.
//! HSET, HSETNX and HEXISTS therefore treat a counter of 0 as absent. For a field outside the
//! schema, reads return nil, as in Redis, and writes return an error.

use crate::commands::call::{Call, integer};
use crate::commands::command::{Command, Group, Run::Once};
use crate::commands::counter::cnt::read_values;
use counter::{Bounds, Change, Read};
use dataset::engines::CounterSpace;
use node::command::error::Refusal;
use node::command::error::no_field;
use node::command::spec::{ONE_KEY, Outcome, READ, flag};
use resp::decimal;

const HASH: Group = Group::new("hash", "2.0.0", ONE_KEY);
const WRITE: u32 = flag::WRITE | flag::DENYOOM | flag::FAST;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    HASH.row("hset", -4, WRITE, "key field value [field value ...]", Once(hset),
        "Sets counters of a row. Returns the number of counters that were 0 or missing before.")
        .linear("fields"),
    HASH.row("hmset", -4, WRITE, "key field value [field value ...]", Once(hmset),
        "Sets counters of a row. Returns OK.").linear("fields"),
    HASH.row("hsetnx", 4, WRITE, "key field value", Once(hsetnx),
        "Sets a counter only if it is 0 or missing. Returns 1 if it was set, else 0.")
        .uses("RW insert"),
    HASH.row("hincrby", 4, WRITE | flag::READS, "key field increment", Once(hincrby),
        "Adds to a counter; a missing counter starts at 0. Returns the new value."),
    HASH.row("hget", 3, READ, "key field", Once(hget),
        "Returns the value of a counter; nil if the row or the field does not exist."),
    HASH.row("hmget", -3, READ, "key field [field ...]", Once(hmget),
        "Returns the values of counters; nil for each missing row or field.").linear("fields"),
    HASH.row("hgetall", 2, flag::READONLY, "key", Once(hgetall),
        "Returns all fields with their values; empty if the row does not exist.").linear("fields")
        .tips(&["nondeterministic_output_order"]),
    HASH.row("hexists", 3, READ, "key field", Once(hexists),
        "Returns 1 if the counter is not 0. Returns 0 if it is 0, or if the row or field does not \
         exist.")
        .uses("RO"),
    HASH.row("hlen", 2, READ, "key", Once(hlen),
        "Returns the number of fields of a row; 0 if it does not exist.").uses("RO"),
    HASH.row("hkeys", 2, flag::READONLY, "key", Once(hkeys),
        "Returns the names of a row's fields; empty if it does not exist.").linear("fields")
        .tips(&["nondeterministic_output_order"]),
    HASH.row("hvals", 2, flag::READONLY, "key", Once(hvals),
        "Returns the values of a row's fields; empty if it does not exist.").linear("fields")
        .tips(&["nondeterministic_output_order"]),
    HASH.row("hstrlen", 3, READ, "key field", Once(hstrlen),
        "Returns the length of a counter's value in decimal characters; 0 if the row does not \
         exist.")
        .since("3.2.0").uses("RO"),
    HASH.row("hdel", -3, WRITE, "key field [field ...]", Once(hdel),
        "Sets counters to 0. If the row has only one field, HDEL deletes the row; otherwise the \
         row stays, and only DEL deletes it. Returns the number of counters that were not 0 \
         before.").linear("fields").uses("RW delete"),
    HASH.row("hscan", -3, flag::READONLY,
        "key cursor [MATCH pattern] [COUNT count] [NOVALUES]", Once(hscan),
        "Returns all fields of a row in one call, with their values unless NOVALUES is given. The \
         cursor is always 0.")
        .since("2.8.0").linear("fields").tips(&["nondeterministic_output"]),
    HASH.row("hincrbyfloat", 4, WRITE, "key field increment", Once(no_fraction),
        "Not supported: counters are integers.").since("2.6.0").uses("RW access update"),
];

fn field(space: &CounterSpace, name: &[u8]) -> Result<usize, Refusal> {
    space.index_of(name).ok_or_else(|| no_field(space.name(), name))
}

/// Reads the row of the key into `scratch.row`, and counts a keyspace hit or miss. Returns the view
/// with which the row was read, which contains the schema, or `None` if the row does not exist.
fn read_row<'a>(call: &mut Call<'a>) -> Result<Option<Read<'a>>, Refusal> {
    let Some((space, id)) = call.existing_row(1)? else {
        call.note_found(false);
        return Ok(None);
    };
    let mut view = space.read();
    let row = &mut call.scratch.row;
    row.clear();
    row.resize(view.schema().width(), 0);
    let found = view.get(id, row)?;
    call.note_found(found);
    Ok(found.then_some(view))
}

fn hset(call: &mut Call<'_>) -> Outcome {
    // As in Redis, the number of arguments is checked before the key.
    if !call.args.len().is_multiple_of(2) {
        return Err(call.wrong_arity());
    }
    let (space, id) = call.row(1)?;
    let values = read_values(call, space, 2, Refusal::HASH_NOT_AN_INTEGER)?;
    let created = call.node.engines().set(space, id, &values)?;
    call.reply.count(created);
    Ok(())
}

fn hmset(call: &mut Call<'_>) -> Outcome {
    // As in Redis, the number of arguments is checked before the key.
    if !call.args.len().is_multiple_of(2) {
        return Err(call.wrong_arity());
    }
    let (space, id) = call.row(1)?;
    let values = read_values(call, space, 2, Refusal::HASH_NOT_AN_INTEGER)?;
    call.node.engines().set(space, id, &values)?;
    call.reply.ok();
    Ok(())
}

fn hsetnx(call: &mut Call<'_>) -> Outcome {
    let (space, id) = call.row(1)?;
    let values = read_values(call, space, 2, Refusal::HASH_NOT_AN_INTEGER)?;
    let created = call.node.engines().set_new(space, id, &values)?;
    call.reply.int(i64::from(created));
    Ok(())
}

fn hincrby(call: &mut Call<'_>) -> Outcome {
    let (space, id) = call.row(1)?;
    let delta = integer(call.args.at(3))?;
    let field = field(space, call.args.at(2))?;
    add(call, space, id, field, delta)
}

pub(crate) fn add(
    call: &mut Call<'_>,
    space: &CounterSpace,
    id: u64,
    field: usize,
    delta: i64,
) -> Outcome {
    let row = &mut call.scratch.row;
    row.clear();
    let bounds = Bounds { min: None, max: None, saturate: false };
    call.node.engines().add(space, id, &[Change { field, delta }], &bounds, row)?;
    call.reply.int(row.first().copied().unwrap_or(0));
    Ok(())
}

fn hget(call: &mut Call<'_>) -> Outcome {
    let view = read_row(call)?;
    write_field(call, view.as_ref(), call.args.at(2));
    Ok(())
}

fn hmget(call: &mut Call<'_>) -> Outcome {
    let view = read_row(call)?;
    let names = call.args.from(2);
    call.reply.array(names.len());
    for name in names.iter() {
        write_field(call, view.as_ref(), name);
    }
    Ok(())
}

/// Returns one field of the row in `scratch.row`, or `None` if the row or the field does not exist.
#[inline]
fn value_of(call: &Call<'_>, view: Option<&Read<'_>>, name: &[u8]) -> Option<i64> {
    let field = view?.schema().index_of(name)?;
    Some(call.scratch.row[field])
}

/// Writes the value of a field, or nil if the field is absent.
#[inline]
fn write_field(call: &mut Call<'_>, view: Option<&Read<'_>>, name: &[u8]) {
    match value_of(call, view, name) {
        Some(value) => call.reply.bulk_int(value),
        None => call.reply.null(),
    }
}

fn hgetall(call: &mut Call<'_>) -> Outcome {
    let view = read_row(call)?;
    let fields = || view.iter().flat_map(|view| view.schema().living());
    call.reply.map(fields().count());
    for (position, field) in fields() {
        call.reply.bulk(field.name.as_bytes());
        call.reply.bulk_int(call.scratch.row[position]);
    }
    Ok(())
}

fn hexists(call: &mut Call<'_>) -> Outcome {
    let view = read_row(call)?;
    let value = value_of(call, view.as_ref(), call.args.at(2));
    call.reply.int(i64::from(value.is_some_and(|value| value != 0)));
    Ok(())
}

fn hlen(call: &mut Call<'_>) -> Outcome {
    let view = read_row(call)?;
    call.reply.count(view.map_or(0, |view| view.schema().living().count()));
    Ok(())
}

fn hkeys(call: &mut Call<'_>) -> Outcome {
    let view = read_row(call)?;
    let fields = || view.iter().flat_map(|view| view.schema().living());
    call.reply.array(fields().count());
    fields().for_each(|(_, field)| call.reply.bulk(field.name.as_bytes()));
    Ok(())
}

fn hvals(call: &mut Call<'_>) -> Outcome {
    let view = read_row(call)?;
    let fields = || view.iter().flat_map(|view| view.schema().living());
    call.reply.array(fields().count());
    fields().for_each(|(position, _)| call.reply.bulk_int(call.scratch.row[position]));
    Ok(())
}

fn hstrlen(call: &mut Call<'_>) -> Outcome {
    let view = read_row(call)?;
    let mut text = Vec::with_capacity(20);
    if let Some(value) = value_of(call, view.as_ref(), call.args.at(2)) {
        decimal(value, &mut text);
    }
    call.reply.count(text.len());
    Ok(())
}

fn hdel(call: &mut Call<'_>) -> Outcome {
    let Some((space, id)) = call.existing_row(1)? else {
        call.reply.int(0);
        return Ok(());
    };
    let _alone = call.node.engines().lock_id(id);
    let mut cleared = 0;
    for field in call.args.from(2).iter().filter_map(|name| space.index_of(name)) {
        cleared += i64::from(call.node.engines().clear(space, id, field)?);
    }
    call.reply.int(cleared);
    Ok(())
}

fn hscan(call: &mut Call<'_>) -> Outcome {
    resp::natural(call.args.at(2))
        .ok_or_else(|| node::command::error::refuse!("ERR invalid cursor"))?;
    let Some(view) = read_row(call)? else {
        // As in Redis, an absent key is detected before the options are parsed.
        call.reply.array(2);
        call.reply.bulk(b"0");
        call.reply.array(0);
        return Ok(());
    };
    let (mut pattern, mut with_values) = (None, true);
    let mut options = call.args.from(3).iter();
    while let Some(option) = options.next() {
        if option.eq_ignore_ascii_case(b"novalues") {
            with_values = false;
            continue;
        }
        let value = options.next().ok_or(Refusal::SYNTAX)?;
        if option.eq_ignore_ascii_case(b"match") {
            crate::commands::pubsub::check_pattern(value)?;
            pattern = Some(value);
        } else if !option.eq_ignore_ascii_case(b"count") || integer(value)? < 1 {
            return Err(Refusal::SYNTAX);
        }
    }
    let wanted = |name: &str| {
        pattern.is_none_or(|p| node::runtime::glob::matches(p, name.as_bytes(), false))
    };
    let fields: Vec<_> = view.schema().living().filter(|(_, field)| wanted(&field.name)).collect();
    call.reply.array(2);
    call.reply.bulk(b"0");
    call.reply.array(fields.len() * if with_values { 2 } else { 1 });
    for (position, field) in fields {
        call.reply.bulk(field.name.as_bytes());
        if with_values {
            call.reply.bulk_int(call.scratch.row[position]);
        }
    }
    Ok(())
}

fn no_fraction(call: &mut Call<'_>) -> Outcome {
    call.row(1)?;
    Err(node::command::error::refuse!("ERR counters are integers: use HINCRBY"))
}
