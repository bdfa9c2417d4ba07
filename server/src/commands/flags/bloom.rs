//! Presents the members of one id as a RedisBloom filter: `BF.ADD liked:17 7`. A filter need not be
//! created with BF.RESERVE, because size and error rate are properties of the space.

use crate::commands::call::Call;
use crate::commands::command::{Command, Group, Run::Long, Run::Once};
use crate::commands::flags::phantom::{has_changed, refuse_unknowable};
use crate::commands::items::ITEMS_PER_CLOCK_READ;
use crate::commands::turn::Answered;
use dataset::cold::Unreadable;
use dataset::engines::ExistenceSpace;
use node::command::error::{Refusal, refuse};
use node::command::spec::{ONE_KEY, Outcome, READ, flag};
use phantom::{Answer, Member};
use resp::{Args, Protocol, Reply};
use std::ops::RangeInclusive;

const BLOOM: Group = Group::new("bloom", "1.0.0", ONE_KEY);
const WRITE: u32 = flag::WRITE | flag::DENYOOM | flag::FAST;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    BLOOM.row("bf.add", 3, WRITE, "key item", Once(add),
        "Adds an item. Returns 1 if it is new, else 0.").uses("RW insert"),
    BLOOM.row("bf.madd", -3, WRITE, "key item [item ...]", Long(madd),
        "Adds items. Returns for each item 1 if it is new, else 0.")
        .linear("members").uses("RW insert"),
    BLOOM.row("bf.exists", 3, READ, "key item", Once(exists),
        "Returns 1 if the item exists; 0 if not, or if the id is below the horizon."),
    BLOOM.row("bf.mexists", -3, READ, "key item [item ...]", Long(mexists),
        "Returns for each item 1 if it exists; 0 if not, or if the id is below the horizon.")
        .linear("members"),
    BLOOM.row("bf.insert", -4, WRITE,
        "key [CAPACITY capacity] [ERROR error] [EXPANSION expansion] [NOCREATE] [NONSCALING] ITEMS \
         item [item ...]", Once(insert),
        "Adds items, as BF.MADD does. NOCREATE fails unless BF.RESERVE or BF.INSERT has created \
         the key. In a space with a ledger, a key exists if its id has a member. CAPACITY, \
         EXPANSION and NONSCALING are validated but have no effect, because filters grow. ERROR \
         must not be below the \
         false-positive rate of the space.").linear("members").uses("RW insert"),
    BLOOM.row("bf.reserve", -4, WRITE,
        "key error_rate capacity [EXPANSION expansion] [NONSCALING]", Once(reserve),
        "Returns OK, or the error 'item exists' if BF.RESERVE or BF.INSERT has created the key \
         before. In a space with a ledger, a key exists if its id has a member. The capacity and \
         the expansion are validated but have no effect, because filters grow. The error rate must \
         not be below the false-positive rate of the space.").uses("RW insert"),
    BLOOM.row("bf.card", 2, READ, "key", Once(card),
        "Returns the number of items of all ids in the key's space, because a filter cannot count \
         the items of one id. Returns 0 if the key matches no space.").uses("RO"),
    BLOOM.row("bf.info", -2, READ, "key [CAPACITY|SIZE|FILTERS|ITEMS|EXPANSION]", Once(info),
        "Returns the capacity, size in bytes, number of tables, number of items and expansion rate \
         of the key's space. The values cover all ids of the space, because its filters hold the \
         items of all ids.").uses("RO"),
    BLOOM.row("bf.scandump", 3, READ, "key iterator", Once(refuse_unknowable),
        "Not supported: a filter holds the items of all ids in a table, not of one key."),
    BLOOM.row("bf.loadchunk", 4, WRITE, "key iterator data", Once(load),
        "Not supported: a filter holds the items of all ids in a table, not of one key."),
];

pub(crate) fn add_one(call: &Call<'_>, item: &[u8]) -> Result<bool, Refusal> {
    let (space, id) = call.pairs(1)?;
    has_changed(call.node.engines().flag(space, id, &Member::parse(item))?)
}

pub(crate) fn add(call: &mut Call<'_>) -> Outcome {
    let added = add_one(call, call.args.at(2))?;
    call.reply.bool(added);
    Ok(())
}

fn madd(call: &mut Call<'_>) -> Answered {
    call.pairs(1)?;
    let words = call.args.from(2);
    call.answer_each(words.len(), ITEMS_PER_CLOCK_READ, |call, items| {
        add_all(call, words.until(items.end).from(items.start));
        Ok(())
    })
}

/// Adds items and replies for each. As in RedisBloom, an error affects only the item that caused
/// it.
fn add_all(call: &mut Call<'_>, items: Args<'_>) {
    for item in items.iter() {
        match add_one(call, item) {
            Ok(added) => call.reply.bool(added),
            Err(refusal) => call.reply.error(refusal.text()),
        }
    }
}

/// Valid ranges, as in RedisBloom.
pub(crate) const CAPACITY: RangeInclusive<i64> = 1..=1 << 30;
const EXPANSION: RangeInclusive<i64> = 0..=32_768;

/// Reserved member that marks an id whose filter was created explicitly (BF.RESERVE, BF.INSERT,
/// CF.RESERVE, CF.INSERT). BF.ADD alone does not set this member.
const CREATED_MARKER: Member<'static> =
    Member::Bytes(b"\0tidemark: a filter was made for this id\0");

/// Returns whether a filter was explicitly created for this id. With a ledger, returns whether the
/// id has members.
fn is_created(space: &ExistenceSpace, id: u64) -> Result<bool, Unreadable> {
    // A ledger lists all members, so the marker would be visible to clients.
    if let Some(ledger) = space.ledger() {
        return ledger.has_any(id);
    }
    Ok(space.contains(id, &CREATED_MARKER)? == Answer::Yes)
}

/// Creates the filter of an id. Returns false if the filter exists. If the space has a ledger,
/// adding the first member creates the filter.
pub(crate) fn make(call: &Call<'_>, space: &ExistenceSpace, id: u64) -> Result<bool, Refusal> {
    if space.ledger().is_some() {
        return Ok(!is_created(space, id)?);
    }
    has_changed(call.node.engines().flag(space, id, &CREATED_MARKER)?)
}

/// Checks a BF.INSERT or CF.INSERT request before its items, which start at argument `at`, are
/// added. If the filter does not exist, creates it if `makes` is true (no NOCREATE), and fails
/// otherwise.
pub(crate) fn prepare_insert(
    call: &Call<'_>,
    space: &ExistenceSpace,
    id: u64,
    at: usize,
    makes: bool,
) -> Outcome {
    if at >= call.args.len() {
        return Err(call.wrong_arity());
    }
    if makes {
        make(call, space, id)?;
    } else if !is_created(space, id)? {
        return Err(Refusal::NO_FILTER);
    }
    Ok(())
}

/// Parses an error rate and checks that the space's filters meet it.
fn check_error_rate(space: &ExistenceSpace, text: &[u8], bad: &'static [u8]) -> Outcome {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
    let wanted = number.ok_or(Refusal::fixed(bad))?;
    if !(wanted > 0.0 && wanted < 1.0) {
        return Err(refuse!("ERR error rate must be in the range (0.000000, 1.000000)"));
    }
    let ours = space.false_positive_rate();
    if wanted < ours {
        return Err(refuse!(
            "ERR the space '{}' has the error rate {ours}: a lower one is not supported",
            space.name()
        ));
    }
    Ok(())
}

/// Parses an integer within a range, with RedisBloom's error texts.
pub(crate) fn parse_in_range(
    text: &[u8],
    range: &RangeInclusive<i64>,
    bad: &'static [u8],
    outside: &str,
) -> Result<i64, Refusal> {
    let number = resp::integer(text).ok_or(Refusal::fixed(bad))?;
    if !range.contains(&number) {
        return Err(refuse!("{outside} must be in the range [{}, {}]", range.start(), range.end()));
    }
    Ok(number)
}

fn insert(call: &mut Call<'_>) -> Outcome {
    let (space, id) = call.pairs(1)?;
    let mut makes = true;
    let mut at = 2;
    while at < call.args.len() {
        let word = call.args.at(at);
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        let value = || {
            if at + 1 < call.args.len() {
                Ok(call.args.at(at + 1))
            } else {
                Err(call.wrong_arity())
            }
        };
        if is(b"ITEMS") {
            at += 1;
            break;
        } else if is(b"ERROR") {
            check_error_rate(space, value()?, b"ERR Bad error rate")?;
            at += 2;
        } else if is(b"CAPACITY") {
            parse_in_range(value()?, &CAPACITY, b"ERR Bad capacity", "ERR capacity")?;
            at += 2;
        } else if is(b"EXPANSION") {
            parse_in_range(value()?, &EXPANSION, b"ERR Bad expansion", "ERR expansion")?;
            at += 2;
        } else if is(b"NOCREATE") {
            makes = false;
            at += 1;
        } else if is(b"NONSCALING") {
            at += 1;
        } else {
            return Err(refuse!("ERR Unknown argument received"));
        }
    }
    prepare_insert(call, space, id, at, makes)?;
    let items = call.args.from(at);
    call.reply.array(items.len());
    add_all(call, items);
    Ok(())
}

fn reserve(call: &mut Call<'_>) -> Outcome {
    let (space, id) = call.pairs(1)?;
    if call.args.len() > 7 {
        return Err(call.wrong_arity());
    }
    check_error_rate(space, call.args.at(2), b"ERR bad error rate")?;
    parse_in_range(call.args.at(3), &CAPACITY, b"ERR bad capacity", "ERR capacity")?;
    let mut options = call.args.from(4).iter();
    let (mut scales, mut expansion) = (true, None);
    while let Some(word) = options.next() {
        if word.eq_ignore_ascii_case(b"EXPANSION") {
            let value = options.next().ok_or_else(|| refuse!("ERR no expansion"))?;
            let value = parse_in_range(value, &EXPANSION, b"ERR bad expansion", "ERR expansion")?;
            expansion = Some(value);
        } else if word.eq_ignore_ascii_case(b"NONSCALING") {
            scales = false;
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    if !scales && expansion.is_some_and(|expansion| expansion > 0) {
        return Err(refuse!("ERR Nonscaling filters cannot expand"));
    }
    if !make(call, space, id)? {
        return Err(refuse!("ERR item exists"));
    }
    call.reply.ok();
    Ok(())
}

/// Values of BF.INFO. They describe the whole space, because its filters contain the items of all
/// ids.
fn facts(space: &ExistenceSpace) -> [(&'static str, &'static str, i64); 5] {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let options = space.declared();
    let capacity = options.pairs_per_table.saturating_mul(options.max_tables as u64);
    [
        ("capacity", "Capacity", number(capacity)),
        ("size", "Size", number(space.memory_bytes())),
        ("filters", "Number of filters", number(space.tables().len() as u64)),
        ("items", "Number of items inserted", number(space.pairs())),
        // Each table is twice as large as the previous table, up to `pairs_per_table`.
        ("expansion", "Expansion rate", 2),
    ]
}

fn info(call: &mut Call<'_>) -> Outcome {
    if call.args.len() > 3 {
        return Err(call.wrong_arity());
    }
    let (space, _) = call.existing_pairs(1)?.ok_or(Refusal::NO_FILTER)?;
    let facts = facts(space);
    if call.args.len() == 2 {
        call.reply.map(facts.len());
        for (_, name, value) in facts {
            call.reply.simple(name);
            call.reply.int(value);
        }
        return Ok(());
    }
    let wanted = call.args.at(2);
    let found = facts.iter().find(|(word, ..)| wanted.eq_ignore_ascii_case(word.as_bytes()));
    let (_, name, value) = found.ok_or_else(|| refuse!("ERR Invalid information value"))?;
    // RESP3 clients receive a map with one entry. RESP2 clients receive an array with only the
    // value.
    if call.reply.protocol() == Protocol::Resp3 {
        call.reply.map(1);
        call.reply.simple(name);
    } else {
        call.reply.array(1);
    }
    call.reply.int(*value);
    Ok(())
}

fn card(call: &mut Call<'_>) -> Outcome {
    let pairs = call.existing_pairs(1)?.map_or(0, |(space, _)| space.pairs());
    call.reply.int(i64::try_from(pairs).unwrap_or(i64::MAX));
    Ok(())
}

/// BF.LOADCHUNK and CF.LOADCHUNK: refused with RedisBloom's error texts.
pub(crate) fn load(call: &mut Call<'_>) -> Outcome {
    call.pairs(1)?;
    crate::commands::call::integer(call.args.at(2))?;
    Err(if call.spec.name == "bf.loadchunk" {
        refuse!("ERR received bad data")
    } else {
        refuse!("ERR Couldn't load chunk!")
    })
}

/// Returns whether an id has a member; a key outside all spaces has no members.
pub(crate) fn contains(
    pairs: Option<(&ExistenceSpace, u64)>,
    member: &Member<'_>,
) -> Result<Answer, Unreadable> {
    pairs.map_or(Ok(Answer::No), |(space, id)| space.contains(id, member))
}

/// Writes a boolean, as RedisBloom does. An unknown pair counts as absent.
pub(crate) fn write(reply: &mut Reply<'_>, answer: Answer) {
    reply.bool(answer == Answer::Yes);
}

pub(crate) fn exists(call: &mut Call<'_>) -> Outcome {
    let found = call.existing_pairs(1)?;
    let member = Member::parse(call.args.at(2));
    write(&mut call.reply, contains(found, &member)?);
    Ok(())
}

pub(crate) fn mexists(call: &mut Call<'_>) -> Answered {
    contains_each(call, write)
}

/// For each member in the request, writes whether the key contains that member.
pub(super) fn contains_each(call: &mut Call<'_>, write: fn(&mut Reply<'_>, Answer)) -> Answered {
    let found = call.existing_pairs(1)?;
    let members = call.args.from(2);
    call.answer_each(members.len(), ITEMS_PER_CLOCK_READ, |call, items| {
        for item in items {
            write(&mut call.reply, contains(found, &Member::parse(members.at(item)))?);
        }
        Ok(())
    })
}
