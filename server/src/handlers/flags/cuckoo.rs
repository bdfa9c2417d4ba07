//! The members of one id as a RedisBloom cuckoo filter: `CF.ADD liked:17 7`, `CF.DEL liked:17 7`.
//!
//! Other than there an item is in the filter once, however often it was added, so one CF.DEL
//! removes it; and what was never added is not removed together with what looks like it.

use crate::handlers::call::Call;
use crate::handlers::flags::bloom::{
    CAPACITY, add_one, before_items, contains, exists, make, mexists, read_within,
};
use crate::handlers::{Handler, LongHandler};
use node::command::error::{Refusal, refuse};
use node::command::spec::Outcome;
use phantom::{Answer, Change, Member};
use resp::integer;

pub(crate) const RUN: &[(&str, Handler)] = &[
    ("cf.add", add),
    ("cf.addnx", crate::handlers::flags::bloom::add),
    ("cf.exists", exists),
    ("cf.count", count),
    ("cf.reserve", reserve),
    ("cf.insert", insert),
    ("cf.insertnx", insert),
    ("cf.info", info),
    ("cf.scandump", crate::handlers::flags::set::unknowable),
    ("cf.loadchunk", crate::handlers::flags::bloom::load),
    ("cf.del", del),
];

pub(crate) const LONG: &[(&str, LongHandler)] = &[("cf.mexists", mexists)];

fn add(call: &mut Call<'_>) -> Outcome {
    add_one(call, call.args.at(2))?;
    call.reply.bool(true);
    Ok(())
}

fn count(call: &mut Call<'_>) -> Outcome {
    let member = Member::parse(call.args.at(2));
    let answer = contains(call.known_pairs(1)?, &member)?;
    call.reply.int(i64::from(answer == Answer::Yes));
    Ok(())
}

fn del(call: &mut Call<'_>) -> Outcome {
    let (space, id) = call.known_pairs(1)?.ok_or_else(|| refuse!("ERR Not found"))?;
    match call.node.engines().unflag(space, id, &Member::parse(call.args.at(2)))? {
        Change::Changed => call.reply.bool(true),
        Change::Unchanged => call.reply.bool(false),
        Change::Unknown => return Err(Refusal::BELOW_HORIZON),
    }
    Ok(())
}

fn reserve(call: &mut Call<'_>) -> Outcome {
    let (space, id) = call.pairs(1)?;
    if call.args.len().is_multiple_of(2) {
        return Err(call.wrong_arity());
    }
    let capacity = integer(call.args.at(2)).ok_or_else(|| refuse!("ERR Bad capacity"))?;
    let mut bucket = 2;
    let mut options = call.args.from(3).iter();
    while let Some(word) = options.next() {
        let value = options.next().ok_or(Refusal::SYNTAX)?;
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        if is(b"BUCKETSIZE") {
            let (bad, name) = (b"ERR Couldn't parse BUCKETSIZE", "ERR BUCKETSIZE: value");
            bucket = read_within(value, &(1..=255), bad, name)?;
        } else if is(b"MAXITERATIONS") {
            let (bad, name) = (b"ERR Couldn't parse MAXITERATIONS", "ERR MAXITERATIONS: value");
            read_within(value, &(1..=65_535), bad, name)?;
        } else if is(b"EXPANSION") {
            let (bad, name) = (b"ERR Couldn't parse EXPANSION", "ERR EXPANSION: value");
            read_within(value, &(0..=32_768), bad, name)?;
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    if !(2 * bucket..=*CAPACITY.end()).contains(&capacity) {
        let most = CAPACITY.end();
        return Err(refuse!("ERR Capacity must be in the range [2 * BUCKETSIZE, {most}]"));
    }
    if !make(call, space, id)? {
        return Err(refuse!("ERR item exists"));
    }
    call.reply.ok();
    Ok(())
}

/// CF.INSERT and CF.INSERTNX.
fn insert(call: &mut Call<'_>) -> Outcome {
    let (space, id) = call.pairs(1)?;
    let (mut at, mut makes) = (2, true);
    while at < call.args.len() {
        let word = call.args.at(at);
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        at += 1;
        if is(b"ITEMS") {
            break;
        } else if is(b"NOCREATE") {
            makes = false;
        } else if is(b"CAPACITY") {
            if at == call.args.len() {
                return Err(call.wrong_arity());
            }
            let range = 4..=*CAPACITY.end();
            let bad = b"ERR Bad capacity";
            read_within(call.args.at(at), &range, bad, "ERR Capacity")?;
            at += 1;
        } else {
            return Err(refuse!("ERR Unknown argument received"));
        }
    }
    before_items(call, space, id, at, makes)?;
    let only_new = call.spec.name == "cf.insertnx";
    let items = call.args.from(at);
    call.reply.array(items.len());
    for item in items.iter() {
        match (add_one(call, item), only_new) {
            // As in RedisBloom: an integer, where CF.INSERT has a boolean.
            (Ok(added), true) => call.reply.int(i64::from(added)),
            (Ok(_), false) => call.reply.bool(true),
            (Err(refusal), _) => call.reply.error(refusal.text()),
        }
    }
    Ok(())
}

fn info(call: &mut Call<'_>) -> Outcome {
    let (space, _) = call.known_pairs(1)?.ok_or(Refusal::NO_FILTER)?;
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let filters = number(space.tables().len() as u64);
    let facts = [
        ("Size", number(space.memory_bytes())),
        // A bucket is a line of a filter.
        ("Number of buckets", number(space.memory_bytes() / 64)),
        ("Number of filters", filters),
        ("Number of items inserted", number(space.pairs())),
        // Items that were deleted are not counted.
        ("Number of items deleted", 0),
        ("Bucket size", 1),
        ("Expansion rate", 2),
        ("Max iterations", 1),
    ];
    call.reply.map(facts.len());
    for (name, value) in facts {
        call.reply.simple(name);
        call.reply.int(value);
    }
    Ok(())
}
