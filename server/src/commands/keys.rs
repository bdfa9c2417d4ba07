//! Keys of any kind.

use super::{ALL_KEYS, Call, ONE_KEY, Outcome, Refusal, Spec, flag, refuse};
use crate::engines::KeyRef;

const fn spec(
    name: &'static str,
    arity: i32,
    flags: u32,
    keys: super::KeyArgs,
    usage: &'static str,
    summary: &'static str,
    run: super::Handler,
) -> Spec {
    Spec { name, arity, flags, keys, group: "generic", since: "1.0.0", usage, summary, run, subcommands: &[] }
}

const READ: u32 = flag::READONLY | flag::FAST;

#[rustfmt::skip]
pub(super) const TABLE: &[Spec] = &[
    spec("del", -2, flag::WRITE, ALL_KEYS, "key [key ...]",
        "Deletes rows; a cell becomes 0, its row stays. Answers how many rows there were and cells were not 0. The pairs of an id \
         cannot be deleted together.", del),
    spec("unlink", -2, flag::WRITE | flag::FAST, ALL_KEYS, "key [key ...]", "The same as DEL.", del),
    spec("exists", -2, READ, ALL_KEYS, "key [key ...]",
        "How many of the rows, and of the cells' rows, exist. The pairs of an id cannot be asked together.", exists),
    spec("type", 2, READ, ONE_KEY, "key",
        "hash for a row, string for a cell, none if there is no such row; set for the pairs of an id, whether there are any or not.", kind),
    spec("ttl", 2, READ, ONE_KEY, "key", "-1: nothing expires; -2 if there is no such row.", ttl),
    spec("pttl", 2, READ, ONE_KEY, "key", "The same as TTL.", ttl),
];

fn many_pairs(doing: &str) -> Refusal {
    refuse!("ERR the pairs of an id cannot be {doing} together: name the members (SISMEMBER, SREM, PH.EXISTS, PH.DEL)")
}

fn del(call: &mut Call<'_>) -> Outcome {
    let engines = &call.node.engines;
    // All keys are read before the first is deleted.
    for key in call.args.from(1).iter() {
        if let KeyRef::Pair { .. } = engines.resolve(key)? {
            return Err(many_pairs("deleted"));
        }
    }
    let mut deleted = 0;
    for key in call.args.from(1).iter() {
        match engines.resolve(key)? {
            KeyRef::Row { space, id } => deleted += i64::from(engines.delete(space, id)),
            KeyRef::Cell { space, id, field } => deleted += i64::from(engines.clear(space, id, field)?),
            KeyRef::Pair { .. } => {}
        }
    }
    call.reply.int(deleted);
    Ok(())
}

fn exists(call: &mut Call<'_>) -> Outcome {
    let mut found = 0;
    for key in call.args.from(1).iter() {
        match call.node.engines.resolve(key)? {
            KeyRef::Row { space, id } | KeyRef::Cell { space, id, .. } => found += i64::from(space.exists(id)),
            KeyRef::Pair { .. } => return Err(many_pairs("asked for")),
        }
    }
    call.reply.int(found);
    Ok(())
}

fn kind(call: &mut Call<'_>) -> Outcome {
    let kind = match call.node.engines.resolve(call.args.at(1))? {
        KeyRef::Row { space, id } if space.exists(id) => "hash",
        KeyRef::Cell { space, id, .. } if space.exists(id) => "string",
        KeyRef::Row { .. } | KeyRef::Cell { .. } => "none",
        KeyRef::Pair { .. } => "set",
    };
    call.reply.simple(kind);
    Ok(())
}

fn ttl(call: &mut Call<'_>) -> Outcome {
    let exists = match call.node.engines.resolve(call.args.at(1))? {
        KeyRef::Row { space, id } | KeyRef::Cell { space, id, .. } => space.exists(id),
        KeyRef::Pair { .. } => true,
    };
    call.reply.int(if exists { -1 } else { -2 });
    Ok(())
}
