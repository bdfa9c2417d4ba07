//! Commands of Weibo's own clients: MINCR on cells, and the bf commands, whose keys name an id
//! without a member. If a space has the option `text_rows`, GET returns a row as text (see
//! `string.rs`).

use crate::commands::call::Call;
use crate::commands::command::{Command, Group, Run::Once};
use counter::{Bounds, Change};
use dataset::engines::{CounterSpace, ExistenceSpace, NO_MEMBER};
use node::command::error::Refusal;
use node::command::spec::{ALL_KEYS, ONE_KEY, Outcome, READ, flag};
use phantom::Answer;

const WEIBO: Group = Group::new("weibo", "0.1.0", ALL_KEYS);
const WRITE: u32 = flag::WRITE | flag::READS | flag::DENYOOM | flag::FAST;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    WEIBO.row("mincr", -2, WRITE, "key [key ...]", Once(mincr),
        "Adds 1 to each counter. Returns for each key the new value, or an error (overflow, out of \
         memory) for this key only. If any key is not the key of a counter, the command fails and \
         changes nothing.")
        .linear("keys"),
    WEIBO.row("bfset", 2, WRITE, "key", Once(bfset),
        "Sets the flag of an id in a space without members. Returns 1 if the flag was already set, \
         and 0 if it was not. Returns -1 and changes nothing if the id is below the oldest table. \
         Returns -2 if the key matches no space.")
        .keys(ONE_KEY),
    WEIBO.row("bfget", 2, READ, "key", Once(bfget),
        "Returns 1 if the flag of an id in a space without members is set, and 0 if it is not. \
         Returns -1 if the id is below the oldest table, and -2 if \
         the key matches no space.").keys(ONE_KEY),
    WEIBO.row("bfmset", -2, WRITE, "key [key ...]", Once(bfmset),
        "Same as BFSET, for several keys. Returns one result per key.").linear("keys"),
    WEIBO.row("bfmget", -2, READ, "key [key ...]", Once(bfmget),
        "Same as BFGET, for several keys. Returns one result per key.").linear("keys"),
];

const BELOW_OLDEST: i64 = -1;
const ILLEGAL_KEY: i64 = -2;

fn mincr(call: &mut Call<'_>) -> Outcome {
    let keys = call.args.from(1);
    let cells = keys
        .iter()
        .map(|key| call.cell(key))
        .collect::<Result<Vec<(&CounterSpace, u64, usize)>, Refusal>>()?;
    call.reply.array(cells.len());
    let bounds = Bounds { min: None, max: None, saturate: false };
    for (space, id, field) in cells {
        let row = &mut call.scratch.row;
        row.clear();
        let added = call.node.engines().add(space, id, &[Change { field, delta: 1 }], &bounds, row);
        match added.map_err(Refusal::from) {
            Ok(()) => call.reply.int(call.scratch.row.first().copied().unwrap_or(0)),
            Err(refusal) => call.reply.error(refusal.text()),
        }
    }
    Ok(())
}

fn pair<'a>(call: &Call<'a>, key: &[u8]) -> Option<(&'a ExistenceSpace, u64)> {
    call.node.engines().pair_of(key)
}

fn set(call: &mut Call<'_>, key: &[u8]) -> Outcome {
    use phantom::Change;
    let before = match pair(call, key) {
        None => ILLEGAL_KEY,
        Some((space, id)) => match call.node.engines().flag(space, id, &NO_MEMBER)? {
            Change::Changed => 0,
            Change::Unchanged => 1,
            Change::Unknown => BELOW_OLDEST,
        },
    };
    call.reply.int(before);
    Ok(())
}

fn get(call: &mut Call<'_>, key: &[u8]) -> Outcome {
    call.reply.int(match pair(call, key) {
        None => ILLEGAL_KEY,
        Some((space, id)) => match space.contains(id, &NO_MEMBER)? {
            Answer::Yes => 1,
            Answer::No => 0,
            Answer::Unknown => BELOW_OLDEST,
        },
    });
    Ok(())
}

fn bfset(call: &mut Call<'_>) -> Outcome {
    set(call, call.args.at(1))
}

fn bfget(call: &mut Call<'_>) -> Outcome {
    get(call, call.args.at(1))
}

fn bfmset(call: &mut Call<'_>) -> Outcome {
    let keys = call.args.from(1);
    call.reply.array(keys.len());
    for key in keys.iter() {
        let mark = call.reply.mark();
        if let Err(refusal) = set(call, key) {
            call.reply.rewind(mark);
            call.reply.error(refusal.text());
        }
    }
    Ok(())
}

fn bfmget(call: &mut Call<'_>) -> Outcome {
    let keys = call.args.from(1);
    call.reply.array(keys.len());
    keys.iter().try_for_each(|key| get(call, key))
}
