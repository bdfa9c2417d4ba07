//! Single counters as Redis strings: a cell key (`post:17:like`) is a string that holds an integer.

use crate::commands::call::{Call, integer};
use crate::commands::command::{Command, Group, Run::Long, Run::Once};
use crate::commands::counter::cnt::READ_BATCH_ROWS;
use crate::commands::keys::keyspace::{has_passed, refuse_expiry};
use crate::commands::log_size;
use crate::commands::turn::Answered;
use crate::commands::unreadable::UnreadableRows;
use crate::session::Scratch;
use counter::Schema;
use dataset::cold::Unreadable;
use dataset::engines::{CounterSpace, KeyError, KeyRef, WriteError};
use dataset::options::Expire;
use node::command::error::{Refusal, refuse};
use node::command::spec::{ALL_KEYS, KeyArgs, ONE_KEY, Outcome, READ, flag};
use resp::{Args, Reply, decimal};

const STRING: Group = Group::new("string", "1.0.0", ONE_KEY);
const WRITE: u32 = flag::WRITE | flag::DENYOOM | flag::FAST;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    STRING.row("get", 2, READ, "key", Once(get),
        "Returns the value of a counter; nil if its row does not exist or the key matches no \
         space."),
    STRING.row("mget", -2, READ, "key [key ...]", Long(mget),
        "Returns the values of counters; nil if a row is missing or a key is not the key of a \
         counter. If a row cannot be read, its element is an error.").keys(ALL_KEYS)
        .linear("keys").tips(&["request_policy:multi_shard"]),
    STRING.row("set", -3, WRITE, "key value [NX|XX] [GET] [KEEPTTL]", Once(set),
        "Sets a counter. NX sets it only if it is 0 or missing; XX sets it only if its row exists. \
         GET returns the old value. EX, PX, EXAT and PXAT fail, because counters do not expire. In \
         a space with expire = \"ignore\" these options have no effect, except that a time in the \
         past sets the counter to 0.").uses("RW access update variable_flags"),
    STRING.row("setnx", 3, WRITE, "key value", Once(setnx),
        "Sets a counter only if it is 0 or missing. Returns 1 if it was set, else 0.")
        .uses("OW insert"),
    STRING.row("getset", 3, WRITE | flag::READS, "key value", Once(getset),
        "Sets a counter. Returns its old value."),
    STRING.row("getdel", 2, WRITE | flag::READS, "key", Once(getdel),
        "Sets a counter to 0, or deletes its row if it has no other field, as DEL does. Returns \
         the old value.").since("6.2.0").uses("RW access delete"),
    STRING.row("getex", -2, READ, "key [PERSIST]", Once(getex),
        "Returns the value of a counter, as GET does. Options that set an expiry fail unless the \
         space has expire = \"ignore\".").since("6.2.0").uses("RW access update"),
    STRING.row("mset", -3, WRITE, "key value [key value ...]", Once(mset),
        "Sets several counters atomically.")
        .keys(KeyArgs::Keys(1, -1, 2)).since("1.0.1").linear("keys")
        .uses("OW update").tips(&["request_policy:multi_shard", "response_policy:all_succeeded"]),
    STRING.row("msetnx", -3, WRITE, "key value [key value ...]", Once(msetnx),
        "Sets several counters atomically, but only if all of them are 0 or missing. Returns 1 if \
         they were set, else 0.")
        .keys(KeyArgs::Keys(1, -1, 2)).since("1.0.1").linear("keys").uses("OW insert")
        .tips(&["request_policy:multi_shard", "response_policy:agg_min"]),
    STRING.row("substr", 4, flag::READONLY, "key start end", Once(getrange),
        "Same as GETRANGE."),
    STRING.row("strlen", 2, READ, "key", Once(strlen),
        "Returns the length of a counter's value in decimal characters; 0 if its row does not \
         exist.")
        .since("2.2.0").uses("RO"),
    STRING.row("append", 3, WRITE, "key value", Once(refuse_text),
        NO_TEXT).since("2.0.0").uses("RW insert"),
    STRING.row("setrange", 4, WRITE, "key offset value", Once(refuse_text), NO_TEXT).since("2.2.0"),
    STRING.row("getrange", 4, READ, "key start end", Once(getrange),
        "Returns the characters from start to end of a counter's decimal value. Negative offsets \
         count from the end.").since("2.4.0"),
    STRING.row("incrbyfloat", 3, WRITE, "key increment", Once(no_fraction),
        "Not supported: counters are integers.").since("2.6.0").uses("RW access update"),
    STRING.row("setex", 4, WRITE, "key seconds value", Once(setex),
        SET_EXPIRES).since("2.0.0").uses("OW update"),
    STRING.row("psetex", 4, WRITE, "key milliseconds value", Once(setex),
        SET_EXPIRES).since("2.6.0").uses("OW update"),
    STRING.row("incr", 2, WRITE | flag::READS, "key", Once(incr),
        "Adds 1 to a counter. Returns the new value."),
    STRING.row("incrby", 3, WRITE | flag::READS, "key increment", Once(incrby),
        "Adds to a counter. Returns the new value."),
    STRING.row("decr", 2, WRITE | flag::READS, "key", Once(decr),
        "Subtracts 1 from a counter. Returns the new value."),
    STRING.row("decrby", 3, WRITE | flag::READS, "key decrement", Once(decrby),
        "Subtracts from a counter. Returns the new value."),
];

const NO_TEXT: &str = "Not supported: a counter is a number, not a string.";

#[rustfmt::skip]
const SET_EXPIRES: &str =
    "Not supported: counters do not expire. In a space with expire = \"ignore\" the command is \
     executed as SET, and the counter does not expire.";

/// Field position that stands for the text of the whole row.
const WHOLE_ROW: usize = usize::MAX;

/// Resolves a key for GET: a cell, or a row of a space with `text_rows`. Returns `None` for a key
/// outside all spaces. If any space has `text_rows`, returns an error instead, because clients of
/// Weibo's service expect an error.
#[inline]
fn readable<'a>(
    call: &Call<'a>,
    key: &[u8],
) -> Result<Option<(&'a CounterSpace, u64, usize)>, Refusal> {
    match call.node.engines().resolve(key) {
        Ok(KeyRef::Cell { space, id, field }) => Ok(Some((space, id, field))),
        Ok(KeyRef::Row { space, id }) if space.text_rows => Ok(Some((space, id, WHOLE_ROW))),
        Ok(_) => Err(Refusal::WRONG_TYPE),
        Err(error) => absent(call, error),
    }
}

/// Returns whether any space supports clients of Weibo's service.
fn is_weibo_mode(call: &Call<'_>) -> bool {
    call.node.engines().counters().iter().any(|space| space.text_rows)
}

#[cold]
fn absent<T>(call: &Call<'_>, error: KeyError<'_>) -> Result<Option<T>, Refusal> {
    if is_weibo_mode(call) || matches!(error, KeyError::NoField { .. }) {
        return Err(error.into());
    }
    Ok(None)
}

/// Writes a cell or a whole row; `row` is `None` if the row is absent.
fn write_one(reply: &mut Reply<'_>, schema: &Schema, field: usize, row: Option<&[i64]>) {
    match row {
        _ if field == WHOLE_ROW => {
            let mut text = Vec::new();
            for (position, field) in schema.living().filter(|_| row.is_some()) {
                if !text.is_empty() {
                    text.push(b',');
                }
                text.extend_from_slice(field.name.as_bytes());
                text.push(b':');
                decimal(row.and_then(|row| row.get(position)).copied().unwrap_or(0), &mut text);
            }
            reply.bulk(&text);
        }
        // The field may have been added after the row was read.
        Some(row) => reply.bulk_int(row.get(field).copied().unwrap_or(0)),
        None => reply.null(),
    }
}

fn get(call: &mut Call<'_>) -> Outcome {
    let Some((space, id, field)) = readable(call, call.args.at(1))? else {
        call.note_found(false);
        call.reply.null();
        return Ok(());
    };
    let mut view = space.read();
    let row = &mut call.scratch.row;
    row.clear();
    row.resize(view.schema().width(), 0);
    let found = view.get(id, row)?;
    let tallies = &call.node.tallies[call.session.worker];
    if found { &tallies.hits } else { &tallies.misses }.add(1);
    write_one(&mut call.reply, view.schema(), field, found.then_some(row));
    Ok(())
}

/// MGET. Consecutive keys of one space are read together, so that their cache misses overlap. As in
/// Redis, a key that names no counter yields nil.
fn mget(call: &mut Call<'_>) -> Answered {
    let keys = call.args.from(1);
    call.answer_each(keys.len(), usize::MAX, |call, items| {
        get_all(call, keys.until(items.end).from(items.start))
    })
}

fn get_all(call: &mut Call<'_>, keys: Args<'_>) -> Outcome {
    call.scratch.ids.clear();
    call.scratch.fields.clear();
    let mut unreadable = UnreadableRows::default();
    let is_weibo_mode = is_weibo_mode(call);
    let mut run: Option<&CounterSpace> = None;
    for key in keys.iter() {
        let found = match readable(call, key) {
            Ok(found) => found,
            Err(refusal) if is_weibo_mode => return Err(refusal),
            Err(_) => None,
        };
        if let Some(before) = run
            && found.is_none_or(|(space, ..)| !std::ptr::eq(before, space))
        {
            write_cells(call, before, &mut unreadable);
        }
        run = found.map(|(space, ..)| space);
        let Some((_, id, field)) = found else {
            call.note_found(false);
            call.reply.null();
            continue;
        };
        call.scratch.ids.push(id);
        call.scratch.fields.push(field);
    }
    if let Some(last) = run {
        write_cells(call, last, &mut unreadable);
    }
    Ok(())
}

/// Reads the counters whose ids and fields are in the scratch buffers, appends their values to the
/// reply, and clears both buffers.
fn write_cells(call: &mut Call<'_>, space: &CounterSpace, unreadable: &mut UnreadableRows) {
    let most = call.session.max_out_bytes;
    let tallies = &call.node.tallies[call.session.worker];
    let Scratch { ids, fields, rows, found, .. } = &mut *call.scratch;
    let mut read = space.read();
    for (ids, fields) in ids.chunks(READ_BATCH_ROWS).zip(fields.chunks(READ_BATCH_ROWS)) {
        if call.reply.mark() > most {
            break;
        }
        rows.clear();
        found.clear();
        unreadable.note(read.get_batch(ids, rows, found));
        tallies.note_found(found);
        let width = read.schema().width();
        for (index, (&field, &found)) in fields.iter().zip(found.iter()).enumerate() {
            if !found && let Some(refusal) = unreadable.refusal(ids[index]) {
                call.reply.error(refusal.text());
                continue;
            }
            let row = found.then(|| &rows[index * width..][..width]);
            write_one(&mut call.reply, read.schema(), field, row);
        }
    }
    ids.clear();
    fields.clear();
}

fn refuse_text(call: &mut Call<'_>) -> Outcome {
    call.cell(call.args.at(1))?;
    Err(refuse!(
        "ERR {} is not supported: a counter is a number, not a string",
        call.spec.name.to_ascii_uppercase()
    ))
}

fn no_fraction(call: &mut Call<'_>) -> Outcome {
    call.cell(call.args.at(1))?;
    Err(refuse!("ERR counters are integers: use INCRBY"))
}

pub(crate) fn value(
    space: &CounterSpace,
    id: u64,
    field: usize,
) -> Result<Option<i64>, Unreadable> {
    let mut row = vec![0; space.schema().width()];
    let found = space.get(id, &mut row)?;
    Ok(found.then(|| row.get(field).copied().unwrap_or(0)))
}

/// Like [`value`], but the cell may be `None`.
fn existing_value(cell: Option<(&CounterSpace, u64, usize)>) -> Result<Option<i64>, Unreadable> {
    cell.map_or(Ok(None), |(space, id, field)| value(space, id, field))
}

fn write(call: &mut Call<'_>, value: Option<i64>) {
    match value {
        Some(value) => call.reply.bulk_int(value),
        None => call.reply.null(),
    }
}

fn set(call: &mut Call<'_>) -> Outcome {
    let (mut absent, mut present, mut get, mut keep) = (false, false, false, false);
    let mut expiry = None;
    let mut options = call.args.from(3).iter();
    while let Some(option) = options.next() {
        let is = |name: &[u8]| option.eq_ignore_ascii_case(name);
        if is(b"nx") && !present {
            absent = true;
        } else if is(b"xx") && !absent {
            present = true;
        } else if is(b"get") {
            get = true;
        } else if is_expiry(option)
            && !keep
            // As in Redis, the same option may be repeated.
            && expiry.is_none_or(|(name, _): (&[u8], _)| option.eq_ignore_ascii_case(name))
        {
            expiry = Some((option, options.next().ok_or(Refusal::SYNTAX)?));
        } else if is(b"keepttl") && expiry.is_none() {
            keep = true;
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    let (space, id, field) = call.cell(call.args.at(1))?;
    let is_over = match expiry {
        Some((unit, time)) => check_expiry(call, space, unit, time)?,
        None => false,
    };
    let new = integer(call.args.at(2))?;
    let engines = call.node.engines();
    // As in Redis, an expiry in the past deletes the counter.
    let put = || match is_over {
        true => engines.clear(space, id, field).map(|_| ()),
        false => engines.set(space, id, &[(field, new)]).map(|_| ()),
    };
    if !absent && !present && !get {
        put()?;
        call.reply.ok();
        return Ok(());
    }
    let alone = engines.lock_id(id);
    // As in HSETNX, a counter with value 0 counts as absent.
    let old = value(space, id, field)?.filter(|&old| !absent || old != 0);
    let does = !(absent && old.is_some() || present && old.is_none());
    if does {
        put()?;
    }
    drop(alone);
    match (get, does) {
        (true, _) => write(call, old),
        (false, true) => call.reply.ok(),
        (false, false) => call.reply.null(),
    }
    Ok(())
}

/// Returns whether an option of SET or GETEX must be followed by a time.
fn is_expiry(word: &[u8]) -> bool {
    [&b"ex"[..], b"px", b"exat", b"pxat"].iter().any(|name| word.eq_ignore_ascii_case(name))
}

/// Fails unless the space ignores expiries. Returns whether the given time is absolute and in the
/// past.
fn check_expiry(
    call: &Call<'_>,
    space: &CounterSpace,
    unit: &[u8],
    time: &[u8],
) -> Result<bool, Refusal> {
    if space.expire == Expire::Refuse {
        return Err(refuse_expiry(call));
    }
    let time = integer(time)?;
    let is = |name: &[u8]| unit.eq_ignore_ascii_case(name);
    let time_ms = if is(b"px") || is(b"pxat") { Some(time) } else { time.checked_mul(1000) };
    let Some(time_ms) = time_ms.filter(|_| time > 0) else {
        return Err(refuse!("ERR invalid expire time in '{}' command", call.spec.name));
    };
    Ok(has_passed(time_ms, is(b"exat") || is(b"pxat")))
}

fn setex(call: &mut Call<'_>) -> Outcome {
    let (space, id, field) = call.cell(call.args.at(1))?;
    let unit: &[u8] = if call.spec.name == "psetex" { b"px" } else { b"ex" };
    check_expiry(call, space, unit, call.args.at(2))?;
    let value = integer(call.args.at(3))?;
    call.node.engines().set(space, id, &[(field, value)])?;
    call.reply.ok();
    Ok(())
}

fn setnx(call: &mut Call<'_>) -> Outcome {
    let (space, id, field) = call.cell(call.args.at(1))?;
    let value = integer(call.args.at(2))?;
    let set = call.node.engines().set_new(space, id, &[(field, value)])?;
    call.reply.int(i64::from(set));
    Ok(())
}

fn getset(call: &mut Call<'_>) -> Outcome {
    let (space, id, field) = call.cell(call.args.at(1))?;
    let new = integer(call.args.at(2))?;
    let alone = call.node.engines().lock_id(id);
    let old = value(space, id, field)?;
    call.node.engines().set(space, id, &[(field, new)])?;
    drop(alone);
    write(call, old);
    Ok(())
}

fn getdel(call: &mut Call<'_>) -> Outcome {
    let Some((space, id, field)) = call.existing_cell(call.args.at(1))? else {
        call.reply.null();
        return Ok(());
    };
    let alone = call.node.engines().lock_id(id);
    let old = value(space, id, field)?;
    call.node.engines().clear(space, id, field)?;
    drop(alone);
    write(call, old);
    Ok(())
}

fn getex(call: &mut Call<'_>) -> Outcome {
    let expiry = match call.args.len() {
        2 => None,
        3 if call.args.at(2).eq_ignore_ascii_case(b"persist") => None,
        4 if is_expiry(call.args.at(2)) => Some((call.args.at(2), call.args.at(3))),
        _ => return Err(Refusal::SYNTAX),
    };
    // If the key is absent, the expiry has no effect and is not checked.
    if let Some((unit, time)) = expiry
        && let Some((space, ..)) = readable(call, call.args.at(1))?
        && check_expiry(call, space, unit, time)?
    {
        // GETEX must not delete, because it is a read command on this server.
        return Err(refuse!("ERR GETEX with a time in the past does not delete: use GETDEL"));
    }
    get(call)
}

fn pairs<'a>(call: &Call<'a>) -> Result<Vec<(&'a CounterSpace, u64, usize, i64)>, Refusal> {
    let args = call.args.from(1);
    if !args.len().is_multiple_of(2) {
        return Err(call.wrong_arity());
    }
    let pair = |at: usize| {
        let (space, id, field) = call.cell(args.at(at))?;
        let value = [(field, integer(args.at(at + 1))?)];
        // MSET is all or nothing, so bounds are checked before the first change.
        let value = space.within_bounds(&value).map_err(WriteError::from)?[0].1;
        Ok((space, id, field, value))
    };
    (0..args.len()).step_by(2).map(pair).collect()
}

fn ids(pairs: &[(&CounterSpace, u64, usize, i64)]) -> Vec<u64> {
    pairs.iter().map(|&(_, id, ..)| id).collect()
}

fn mset(call: &mut Call<'_>) -> Outcome {
    let pairs = pairs(call)?;
    let engines = call.node.engines();
    let bytes = log_size::of(engines, || std::iter::once(call.args))?;
    let _alone = if pairs.len() > 1 {
        let Some(alone) = call.alone(ids(&pairs), bytes) else { return Ok(()) };
        alone
    } else {
        None
    };
    for (space, id, field, value) in pairs {
        engines.set(space, id, &[(field, value)])?;
    }
    call.reply.ok();
    Ok(())
}

fn msetnx(call: &mut Call<'_>) -> Outcome {
    let pairs = pairs(call)?;
    let engines = call.node.engines();
    let bytes = log_size::of(engines, || std::iter::once(call.args))?;
    let Some(_alone) = call.alone(ids(&pairs), bytes) else { return Ok(()) };
    let mut absent = true;
    for &(space, id, field, _) in &pairs {
        absent &= value(space, id, field)?.unwrap_or(0) == 0;
    }
    if absent {
        for (space, id, field, value) in pairs {
            engines.set(space, id, &[(field, value)])?;
        }
    }
    call.reply.int(i64::from(absent));
    Ok(())
}

fn strlen(call: &mut Call<'_>) -> Outcome {
    let found = call.existing_cell(call.args.at(1))?;
    let value = existing_value(found)?;
    call.note_found(value.is_some());
    call.reply.count(value.map_or(0, |value| value.to_string().len()));
    Ok(())
}

fn getrange(call: &mut Call<'_>) -> Outcome {
    let (start, end) = (integer(call.args.at(2))?, integer(call.args.at(3))?);
    let found = call.existing_cell(call.args.at(1))?;
    let value = existing_value(found)?;
    call.note_found(value.is_some());
    let text = value.map(|value| value.to_string()).unwrap_or_default();
    call.reply.bulk(range(text.as_bytes(), start, end));
    Ok(())
}

/// Returns the bytes from `start` to `end`, inclusive; negative positions count from the end.
fn range(text: &[u8], start: i64, end: i64) -> &[u8] {
    let length = i64::try_from(text.len()).unwrap_or(i64::MAX);
    if start < 0 && end < 0 && start > end {
        return b"";
    }
    let place = |at: i64| if at < 0 { at.saturating_add(length).max(0) } else { at };
    let (start, end) = (place(start), place(end).min(length - 1));
    if length == 0 || start > end {
        return b"";
    }
    usize::try_from(start)
        .ok()
        .zip(usize::try_from(end).ok())
        .and_then(|(start, end)| text.get(start..=end))
        .unwrap_or_default()
}

fn add(call: &mut Call<'_>, delta: i64) -> Outcome {
    let (space, id, field) = call.cell(call.args.at(1))?;
    crate::commands::counter::hash::add(call, space, id, field, delta)
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
    // The negation of -2^63 overflows.
    add(call, delta.checked_neg().ok_or(Refusal::DECREMENT)?)
}
