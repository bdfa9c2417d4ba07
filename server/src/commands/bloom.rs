//! The members of one id as a RedisBloom filter: `BF.ADD liked:17 7`. Filters need not be reserved;
//! their size and error rate are the space's.

use super::{Call, ONE_KEY, Outcome, Printable, Refusal, Spec, flag, refuse};
use crate::resp::Reply;
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
        group: "bloom",
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
    spec("bf.add", 3, WRITE, "key item", "Adds an item; 1 if it was not there, else 0.", add),
    spec("bf.madd", -3, WRITE, "key item [item ...]", "Adds items; per item 1 if it was not there, else 0.", madd),
    spec("bf.exists", 3, READ, "key item", "1 if the item is there, 0 if not, or if the id lies below the horizon.", exists),
    spec("bf.mexists", -3, READ, "key item [item ...]", "Per item 1, or 0, also if the id lies below the horizon.", mexists),
    spec("bf.insert", -4, WRITE, "key [CAPACITY capacity] [ERROR error] [EXPANSION expansion] [NOCREATE] [NONSCALING] ITEMS item [item ...]",
        "Adds items as BF.MADD does. CAPACITY, EXPANSION, NOCREATE and NONSCALING have no effect; an ERROR below the space's rate is refused.", insert),
    spec("bf.reserve", -4, WRITE, "key error_rate capacity [EXPANSION expansion] [NONSCALING]",
        "OK: filters need not be reserved. An error rate below the space's is refused.", reserve),
    spec("bf.card", 2, READ, "key", "Refused: a filter cannot tell how many items one id has.", super::set::unknowable),
    spec("bf.info", -2, READ, "key [field]", "Refused: a filter holds the items of all ids of its table together; see TM.TABLES.", super::set::unknowable),
    spec("bf.scandump", 3, READ, "key iterator", "Refused: a filter holds the items of all ids of its table together; see TM.EXPORT.", super::set::unknowable),
    spec("bf.loadchunk", 4, WRITE, "key iterator data", "Refused: a filter holds the items of all ids of its table together; see TM.MERGE.", super::set::unknowable),
];

pub(super) fn add_one(call: &Call<'_>, item: &[u8]) -> Result<bool, Refusal> {
    let (space, id) = call.pairs(1)?;
    match call.node.engines.flag(space, id, &Member::parse(item))? {
        Change::Changed => Ok(true),
        Change::Unchanged => Ok(false),
        Change::Unknown => Err(Refusal::BELOW_HORIZON),
    }
}

pub(super) fn add(call: &mut Call<'_>) -> Outcome {
    let added = add_one(call, call.args.at(2))?;
    call.reply.bool(added);
    Ok(())
}

fn madd(call: &mut Call<'_>) -> Outcome {
    add_many(call, 2)
}

/// Adds the arguments from `first` on.
fn add_many(call: &mut Call<'_>, first: usize) -> Outcome {
    call.pairs(1)?;
    let items = call.args.from(first);
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

/// Refuses an error rate that the space's filters do not keep.
fn check_rate(call: &Call<'_>, rate: &[u8]) -> Outcome {
    let (space, _) = call.pairs(1)?;
    let wanted = std::str::from_utf8(rate).ok().and_then(|text| text.parse::<f64>().ok());
    let wanted = wanted.filter(|rate| *rate > 0.0 && *rate < 1.0);
    let wanted = wanted
        .ok_or_else(|| refuse!("ERR '{}' is no error rate between 0 and 1", Printable(rate)))?;
    let ours = space.options().false_positive_rate;
    if wanted < ours {
        return Err(refuse!(
            "ERR the space '{}' was made for an error rate of {ours}",
            space.name()
        ));
    }
    Ok(())
}

fn natural(text: &[u8]) -> Outcome {
    crate::resp::natural(text).map(|_| ()).ok_or(Refusal::NOT_AN_INTEGER)
}

fn insert(call: &mut Call<'_>) -> Outcome {
    call.pairs(1)?;
    let mut at = 2;
    while at < call.args.len() {
        let word = call.args.at(at);
        let value = || {
            if at + 1 < call.args.len() { Ok(call.args.at(at + 1)) } else { Err(Refusal::SYNTAX) }
        };
        if word.eq_ignore_ascii_case(b"ITEMS") {
            return if at + 1 < call.args.len() {
                add_many(call, at + 1)
            } else {
                Err(call.wrong_arity())
            };
        } else if word.eq_ignore_ascii_case(b"ERROR") {
            check_rate(call, value()?)?;
            at += 2;
        } else if word.eq_ignore_ascii_case(b"CAPACITY") || word.eq_ignore_ascii_case(b"EXPANSION")
        {
            natural(value()?)?;
            at += 2;
        } else if word.eq_ignore_ascii_case(b"NOCREATE") || word.eq_ignore_ascii_case(b"NONSCALING")
        {
            at += 1;
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    Err(call.wrong_arity())
}

fn reserve(call: &mut Call<'_>) -> Outcome {
    call.pairs(1)?;
    check_rate(call, call.args.at(2))?;
    natural(call.args.at(3))?;
    let mut options = call.args.from(4).iter();
    while let Some(word) = options.next() {
        if word.eq_ignore_ascii_case(b"EXPANSION") {
            natural(options.next().ok_or(Refusal::SYNTAX)?)?;
        } else if !word.eq_ignore_ascii_case(b"NONSCALING") {
            return Err(Refusal::SYNTAX);
        }
    }
    call.reply.ok();
    Ok(())
}

/// Clients of RedisBloom expect one of two answers: what is not known any more is not there.
pub(super) fn write(reply: &mut Reply<'_>, answer: Answer) {
    reply.bool(answer == Answer::Yes);
}

pub(super) fn exists(call: &mut Call<'_>) -> Outcome {
    let (space, id) = call.pairs(1)?;
    write(&mut call.reply, space.contains(id, &Member::parse(call.args.at(2))));
    Ok(())
}

pub(super) fn mexists(call: &mut Call<'_>) -> Outcome {
    let (space, id) = call.pairs(1)?;
    let items = call.args.from(2);
    call.reply.array(items.len());
    for item in items.iter() {
        write(&mut call.reply, space.contains(id, &Member::parse(item)));
    }
    Ok(())
}
