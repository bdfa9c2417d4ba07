//! The members of one id as a RedisBloom cuckoo filter: `CF.ADD liked:17 7`, `CF.DEL liked:17 7`.
//!
//! Other than there an item is in the filter once, however often it was added, so one CF.DEL
//! removes it; and what was never added is not removed together with what looks like it.

use super::bloom::{add_one, exists, mexists};
use super::{Call, ONE_KEY, Outcome, Refusal, Spec, flag};
use phantom::{Answer, Change, Member};

const fn spec(
    name: &'static str,
    arity: i32,
    flags: u32,
    usage: &'static str,
    summary: &'static str,
    run: super::Handler,
) -> Spec {
    Spec {
        name,
        arity,
        flags,
        keys: ONE_KEY,
        group: "cuckoo",
        since: "1.0.0",
        usage,
        summary,
        run,
        subcommands: &[],
    }
}

const READ: u32 = flag::READONLY | flag::FAST;
const WRITE: u32 = flag::WRITE | flag::DENYOOM | flag::FAST;

#[rustfmt::skip]
pub(super) const TABLE: &[Spec] = &[
    spec("cf.add", 3, WRITE, "key item", "Adds an item; 1 whether it was there or not. It is there once then.", add),
    spec("cf.addnx", 3, WRITE, "key item", "Adds an item; 1 if it was not there, else 0.", super::bloom::add),
    spec("cf.exists", 3, READ, "key item", "1 if the item is there, 0 if not, or if the id lies below the horizon.", exists),
    spec("cf.mexists", -3, READ, "key item [item ...]", "Per item 1, or 0, also if the id lies below the horizon.", mexists),
    spec("cf.count", 3, READ, "key item", "1 if the item is there, as it is there once, 0 if not, or if the id lies below the horizon.", count),
    spec("cf.info", 2, READ, "key", "Refused: a filter holds the items of all ids of its table together; see TM.TABLES.", super::set::unknowable),
    spec("cf.del", 3, flag::WRITE | flag::FAST, "key item", "Removes an item; 1 if it was there, else 0.", del),
];

fn add(call: &mut Call<'_>) -> Outcome {
    add_one(call, call.args.at(2))?;
    call.reply.bool(true);
    Ok(())
}

fn count(call: &mut Call<'_>) -> Outcome {
    let (space, id) = call.pairs(1)?;
    let answer = space.contains(id, &Member::parse(call.args.at(2)));
    call.reply.int(i64::from(answer == Answer::Yes));
    Ok(())
}

fn del(call: &mut Call<'_>) -> Outcome {
    let (space, id) = call.pairs(1)?;
    match call.node.engines.unflag(space, id, &Member::parse(call.args.at(2)))? {
        Change::Changed => call.reply.bool(true),
        Change::Unchanged => call.reply.bool(false),
        Change::Unknown => return Err(Refusal::BELOW_HORIZON),
    }
    Ok(())
}
