//! The members of one id as a RedisBloom filter: `BF.ADD liked:17 7`. Filters need not be reserved; their size and error rate are the space's.

use super::{Call, ONE_KEY, Outcome, Refusal, Spec, flag};
use crate::resp::Reply;
use phantom::{Answer, Change, Member};

const fn spec(
    name: &'static str,
    arity: i32,
    flags: u16,
    usage: &'static str,
    summary: &'static str,
    run: super::Handler,
) -> Spec {
    Spec { name, arity, flags, keys: ONE_KEY, group: "bloom", since: "1.0.0", usage, summary, run, subcommands: &[] }
}

const READ: u16 = flag::READONLY | flag::FAST;
const WRITE: u16 = flag::WRITE | flag::DENYOOM | flag::FAST;

#[rustfmt::skip]
pub(super) const TABLE: &[Spec] = &[
    spec("bf.add", 3, WRITE, "key item", "Adds an item; 1 if it was not there, else 0.", add),
    spec("bf.madd", -3, WRITE, "key item [item ...]", "Adds items; per item 1 if it was not there, else 0.", madd),
    spec("bf.exists", 3, READ, "key item", "1 if the item is there, 0 if not, nil if the id lies below the horizon.", exists),
    spec("bf.mexists", -3, READ, "key item [item ...]", "Per item 1, 0, or nil if the id lies below the horizon.", mexists),
];

fn add_one(call: &Call<'_>, item: &[u8]) -> Result<bool, Refusal> {
    let (space, id) = call.pairs(1)?;
    match call.node.engines.flag(space, id, &Member::parse(item))? {
        Change::Changed => Ok(true),
        Change::Unchanged => Ok(false),
        Change::Unknown => Err(Refusal::BELOW_HORIZON),
    }
}

fn add(call: &mut Call<'_>) -> Outcome {
    let added = add_one(call, call.args.at(2))?;
    call.reply.bool(added);
    Ok(())
}

fn madd(call: &mut Call<'_>) -> Outcome {
    call.pairs(1)?;
    let items = call.args.from(2);
    call.reply.array(items.len());
    for item in items.iter() {
        // As in RedisBloom: an error concerns one item.
        match add_one(call, item) {
            Ok(added) => call.reply.bool(added),
            Err(refusal) => call.reply.error(refusal.text()),
        }
    }
    Ok(())
}

fn write(reply: &mut Reply<'_>, answer: Answer) {
    match answer {
        Answer::Yes => reply.bool(true),
        Answer::No => reply.bool(false),
        Answer::Unknown => reply.null(),
    }
}

fn exists(call: &mut Call<'_>) -> Outcome {
    let (space, id) = call.pairs(1)?;
    write(&mut call.reply, space.contains(id, &Member::parse(call.args.at(2))));
    Ok(())
}

fn mexists(call: &mut Call<'_>) -> Outcome {
    let (space, id) = call.pairs(1)?;
    let items = call.args.from(2);
    call.reply.array(items.len());
    for item in items.iter() {
        write(&mut call.reply, space.contains(id, &Member::parse(item)));
    }
    Ok(())
}
