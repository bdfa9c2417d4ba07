//! Presents the members of one id as a RedisBloom cuckoo filter: `CF.ADD liked:17 7`, `CF.DEL
//! liked:17 7`.
//!
//! Unlike in RedisBloom, an item that is added several times is stored only once, so one CF.DEL
//! removes it. Deleting an item that was never added does not remove a colliding item.

use crate::commands::call::Call;
use crate::commands::command::{Command, Group, Run::Long, Run::Once};
use crate::commands::flags::bloom::{
    self, CAPACITY, add_one, contains, exists, load, make, mexists, parse_in_range, prepare_insert,
};
use crate::commands::flags::phantom::refuse_unknowable;
use node::command::error::{Refusal, refuse};
use node::command::spec::{ONE_KEY, Outcome, READ, flag};
use phantom::{Answer, Change, Member};
use resp::integer;

const CUCKOO: Group = Group::new("cuckoo", "1.0.0", ONE_KEY);
const WRITE: u32 = flag::WRITE | flag::DENYOOM | flag::FAST;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    CUCKOO.row("cf.add", 3, WRITE, "key item", Once(add),
        "Adds an item. Always returns 1; adding an existing item has no effect.").uses("RW insert"),
    CUCKOO.row("cf.addnx", 3, WRITE, "key item", Once(bloom::add),
        "Adds an item. Returns 1 if it is new, else 0.").uses("RW insert"),
    CUCKOO.row("cf.exists", 3, READ, "key item", Once(exists),
        "Returns 1 if the item exists; 0 if not, or if the id is below the horizon."),
    CUCKOO.row("cf.mexists", -3, READ, "key item [item ...]", Long(mexists),
        "Returns for each item 1 if it exists; 0 if not, or if the id is below the horizon.")
        .linear("members"),
    CUCKOO.row("cf.count", 3, READ, "key item", Once(count),
        "Returns 1 if the item exists, because each item is stored only once. Returns 0 if it does \
         not exist, or if the id is below the horizon."),
    CUCKOO.row("cf.reserve", -3, WRITE,
        "key capacity [BUCKETSIZE bucketsize] [MAXITERATIONS maxiterations] [EXPANSION expansion]",
        Once(reserve),
        "Returns OK, or the error 'item exists' if CF.RESERVE or CF.INSERT has created the key \
         before. In a space with a ledger, a key exists if its id has a member. The options are \
         validated but have no effect, because filters grow.")
        .uses("RW insert"),
    CUCKOO.row("cf.insert", -4, WRITE,
        "key [CAPACITY capacity] [NOCREATE] ITEMS item [item ...]", Once(insert),
        "Adds items. Returns 1 for each item, even if it exists already. NOCREATE has the same \
         meaning as in BF.INSERT. CAPACITY is validated but has no effect.").uses("RW insert"),
    CUCKOO.row("cf.insertnx", -4, WRITE,
        "key [CAPACITY capacity] [NOCREATE] ITEMS item [item ...]", Once(insert),
        "Adds items. Returns for each item 1 if it is new, else 0. The options are those of \
         CF.INSERT.")
        .uses("RW insert"),
    CUCKOO.row("cf.info", 2, READ, "key", Once(info),
        "Returns the size in bytes, number of tables and number of items of the key's space. The \
         values cover all ids of the space, because its filters \
         hold the items of all ids.").uses("RO"),
    CUCKOO.row("cf.scandump", 3, READ, "key iterator", Once(refuse_unknowable),
        "Not supported: a filter holds the items of all ids in a table, not of one key."),
    CUCKOO.row("cf.loadchunk", 4, WRITE, "key iterator data", Once(load),
        "Not supported: a filter holds the items of all ids in a table, not of one key."),
    CUCKOO.row("cf.del", 3, flag::WRITE | flag::FAST, "key item", Once(del),
        "Removes an item. Returns 1 if it existed, else 0.").uses("RW delete"),
];

fn add(call: &mut Call<'_>) -> Outcome {
    add_one(call, call.args.at(2))?;
    call.reply.bool(true);
    Ok(())
}

fn count(call: &mut Call<'_>) -> Outcome {
    let member = Member::parse(call.args.at(2));
    let answer = contains(call.existing_pairs(1)?, &member)?;
    call.reply.int(i64::from(answer == Answer::Yes));
    Ok(())
}

fn del(call: &mut Call<'_>) -> Outcome {
    let (space, id) = call.existing_pairs(1)?.ok_or_else(|| refuse!("ERR Not found"))?;
    match call.node.engines().unflag(space, id, &Member::parse(call.args.at(2)))? {
        Change::Changed => call.reply.bool(true),
        Change::Unchanged => call.reply.bool(false),
        Change::Unknown => return Err(Refusal::TABLE_RECYCLED),
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
            bucket = parse_in_range(value, &(1..=255), bad, name)?;
        } else if is(b"MAXITERATIONS") {
            let (bad, name) = (b"ERR Couldn't parse MAXITERATIONS", "ERR MAXITERATIONS: value");
            parse_in_range(value, &(1..=65_535), bad, name)?;
        } else if is(b"EXPANSION") {
            let (bad, name) = (b"ERR Couldn't parse EXPANSION", "ERR EXPANSION: value");
            parse_in_range(value, &(0..=32_768), bad, name)?;
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
            parse_in_range(call.args.at(at), &range, bad, "ERR Capacity")?;
            at += 1;
        } else {
            return Err(refuse!("ERR Unknown argument received"));
        }
    }
    prepare_insert(call, space, id, at, makes)?;
    let only_new = call.spec.name == "cf.insertnx";
    let items = call.args.from(at);
    call.reply.array(items.len());
    for item in items.iter() {
        match (add_one(call, item), only_new) {
            // As in RedisBloom, CF.INSERTNX returns integers and CF.INSERT booleans.
            (Ok(added), true) => call.reply.int(i64::from(added)),
            (Ok(_), false) => call.reply.bool(true),
            (Err(refusal), _) => call.reply.error(refusal.text()),
        }
    }
    Ok(())
}

fn info(call: &mut Call<'_>) -> Outcome {
    let (space, _) = call.existing_pairs(1)?.ok_or(Refusal::NO_FILTER)?;
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let filters = number(space.tables().len() as u64);
    let facts = [
        ("Size", number(space.memory_bytes())),
        // A bucket is a 64-byte cache line of a filter.
        ("Number of buckets", number(space.memory_bytes() / 64)),
        ("Number of filters", filters),
        ("Number of items inserted", number(space.pairs())),
        // Deleted items are not counted.
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
