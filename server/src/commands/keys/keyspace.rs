//! Commands on keys of any type.

use crate::commands::call::{Call, integer};
use crate::commands::command::{Command, Group, Run::Long, Run::Once};
use crate::commands::stream;
use crate::commands::turn::Answered;
use crate::commands::unreadable::keep_first_unreadable;
use dataset::clock::unix_us;
use dataset::cold::Unreadable;
use dataset::engines::{Engines, ExistenceSpace, KeyRef, NO_MEMBER, WriteError};
use dataset::options::Expire;
use node::command::error::{Printable, Refusal, refuse};
use node::command::spec::{ALL_KEYS, ONE_KEY, Outcome, READ, SECOND_KEY, TWO_KEYS, flag};
use node::command::streams;
use phantom::{Answer, Change};

const GENERIC: Group = Group::new("generic", "1.0.0", ONE_KEY);

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    GENERIC.row("del", -2, flag::WRITE, "key [key ...]", Long(del),
        "Deletes rows. For the key of a counter, sets the counter to 0, or deletes the row if the \
         row has no other field. For the key of a set, deletes all its members; this requires a \
         ledger. In a space without members, unsets the id. Returns the number of keys that \
         existed; a counter counts only if it was not 0. The flags of a deleted row's id stay set \
         unless the space has delete_forgets = true; use TM.FORGET to unset them. While they stay \
         set, the next FEED.ACT on the id counts for any viewer, and later ones do not count for \
         viewers whose flag is set.")
        .keys(ALL_KEYS).linear("keys").uses("RM delete")
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
    GENERIC.row("unlink", -2, flag::WRITE | flag::FAST, "key [key ...]", Long(del),
        "Same as DEL.").keys(ALL_KEYS).since("4.0.0").linear("keys").uses("RM delete")
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
    GENERIC.row("exists", -2, READ, "key [key ...]", Long(exists),
        "Returns the number of existing keys. The key of a row or counter exists if the row \
         exists. The key of a set exists if the set has a member; without a ledger, such keys \
         return an error. In a space without members, a key exists if its id is set.")
        .keys(ALL_KEYS).linear("keys").uses("RO")
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
    GENERIC.row("type", 2, READ, "key", Once(kind),
        "Returns hash for a row, string for a counter, set for the pairs of an id, stream for \
         tm:changes, or none. In a space without a ledger, every set is reported as existing, \
         because a filter cannot tell whether it has members.").uses("RO"),
    GENERIC.row("ttl", 2, READ, "key", Once(ttl),
        "Returns -1, because nothing expires; -2 if the row does not exist.")
        .tips(&["nondeterministic_output"]),
    GENERIC.row("pttl", 2, READ, "key", Once(ttl),
        "Same as TTL.").since("2.6.0").tips(&["nondeterministic_output"]),
    GENERIC.row("expiretime", 2, READ, "key", Once(ttl), "Same as TTL.").since("7.0.0"),
    GENERIC.row("pexpiretime", 2, READ, "key", Once(ttl), "Same as TTL.").since("7.0.0"),
    GENERIC.row("persist", 2, flag::WRITE | flag::FAST, "key", Once(persist),
        "Returns 0, because nothing expires.").since("2.2.0"),
    GENERIC.row("touch", -2, READ, "key [key ...]", Long(exists),
        "Same as EXISTS.").keys(ALL_KEYS).since("3.2.1").linear("keys").uses("RO")
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
    GENERIC.row("expire", -3, flag::WRITE | flag::FAST, "key seconds [NX|XX|GT|LT]", Once(expire),
        NO_EXPIRY),
    GENERIC.row("pexpire", -3, flag::WRITE | flag::FAST,
        "key milliseconds [NX|XX|GT|LT]", Once(expire), NO_EXPIRY).since("2.6.0"),
    GENERIC.row("expireat", -3, flag::WRITE | flag::FAST,
        "key unix-time-seconds [NX|XX|GT|LT]", Once(expire), NO_EXPIRY).since("1.2.0"),
    GENERIC.row("pexpireat", -3, flag::WRITE | flag::FAST,
        "key unix-time-milliseconds [NX|XX|GT|LT]", Once(expire), NO_EXPIRY).since("2.6.0"),
    GENERIC.row("rename", 3, flag::WRITE, "key newkey", Once(refuse_move),
        NO_MOVE).keys(TWO_KEYS).two_uses("RW access delete", "OW update"),
    GENERIC.row("renamenx", 3, flag::WRITE | flag::FAST, "key newkey", Once(refuse_move),
        NO_MOVE).keys(TWO_KEYS).two_uses("RW access delete", "OW insert"),
    GENERIC.row("copy", -3, flag::WRITE | flag::DENYOOM,
        "source destination [DB destination-db] [REPLACE]", Once(refuse_move),
        NO_MOVE).keys(TWO_KEYS).since("6.2.0").two_uses("RO access", "OW update"),
    GENERIC.row("move", 3, flag::WRITE | flag::FAST, "key db", Once(refuse_move),
        NO_MOVE).uses("RW access update"),
];

#[rustfmt::skip]
pub(crate) const OBJECT: &[Command] = &[
    GENERIC.container("object", "A container for commands that inspect keys.", &[
        GENERIC.row("object|encoding", 3, flag::READONLY, "key", Once(encoding),
            "Returns packed for a row, int for a counter, filter for the pairs of an id, or stream \
             for tm:changes.")
            .keys(SECOND_KEY)
            .since("2.2.3").uses("RO").tips(&["nondeterministic_output"]),
        GENERIC.row("object|freq", 3, flag::READONLY, "key", Once(frequency),
            "Not supported: access frequencies are not tracked.").keys(SECOND_KEY).since("4.0.0")
            .uses("RO").tips(&["nondeterministic_output"]),
        GENERIC.help("object|help").since("6.2.0"),
        GENERIC.row("object|idletime", 3, flag::READONLY, "key", Once(idletime),
            "Not supported: idle times are not tracked.").keys(SECOND_KEY).since("2.2.3")
            .uses("RO").tips(&["nondeterministic_output"]),
        GENERIC.row("object|refcount", 3, flag::READONLY, "key", Once(refcount),
            "Returns 1 for an existing key.").keys(SECOND_KEY).since("2.2.3").uses("RO")
            .tips(&["nondeterministic_output"]),
    ]).since("2.2.3"),
];

#[rustfmt::skip]
const NO_EXPIRY: &str =
    "Not supported: counters do not expire. In a space with expire = \"ignore\" the expiry has no \
     effect. The reply is then 1 if the key exists, and 0 if it does not exist or if XX or GT is \
     given. As in Redis, a time in the past (EXPIRE key -1) deletes the key. For the key of a set, \
     it deletes all members.";

const NO_MOVE: &str = "Not supported: a key is derived from its id.";

/// Returns whether an id has any pair, or `None` if a filter cannot determine this.
pub(crate) fn has_pairs(space: &ExistenceSpace, id: u64) -> Result<Option<bool>, Unreadable> {
    match space.ledger() {
        Some(ledger) => ledger.has_any(id).map(Some),
        None if space.has_members => Ok(None),
        None => Ok(Some(space.contains(id, &NO_MEMBER)? == Answer::Yes)),
    }
}

fn many_pairs(doing: &str) -> Refusal {
    refuse!(
        "ERR the pairs of an id cannot be {doing} as a whole: name the members (SISMEMBER, SREM, \
         PH.EXISTS, PH.DEL)"
    )
}

/// Resolves a key. As in Redis, a key outside all spaces counts as absent.
fn lookup<'a>(call: &Call<'a>, key: &[u8]) -> Option<KeyRef<'a>> {
    call.node.engines().resolve(key).ok()
}

fn del(call: &mut Call<'_>) -> Answered {
    let engines = call.node.engines();
    let keys = call.args.from(1);
    call.check_each(keys.len(), |call, items| {
        for key in items.map(|item| keys.at(item)) {
            if let Some(KeyRef::Pair { space, .. }) = lookup(call, key)
                && space.has_members
                && space.ledger().is_none()
            {
                return Err(many_pairs("deleted"));
            }
            if is_stream(call, key) {
                return Err(stream::READ_ONLY);
            }
        }
        Ok(())
    })?;
    call.count_each(keys.len(), |call, item| {
        let key = lookup(call, keys.at(item));
        let gone = key.map_or(Ok(false), |key| delete_key(engines, &key));
        Ok(keep_first_unreadable(gone, &mut call.scratch.unreadable)?)
    })
}

fn exists(call: &mut Call<'_>) -> Answered {
    let keys = call.args.from(1);
    call.count_each(keys.len(), |call, item| {
        let key = keys.at(item);
        let found = match lookup(call, key) {
            Some(KeyRef::Row { space, id } | KeyRef::Cell { space, id, .. }) => space.exists(id)?,
            Some(KeyRef::Pair { space, id }) => {
                has_pairs(space, id)?.ok_or_else(|| many_pairs("counted"))?
            }
            None => is_stream(call, key),
        };
        call.note_found(found);
        Ok(found)
    })
}

fn kind(call: &mut Call<'_>) -> Outcome {
    let kind = match lookup(call, call.args.at(1)) {
        None if is_stream(call, call.args.at(1)) => "stream",
        Some(KeyRef::Row { space, id }) if space.exists(id)? => "hash",
        Some(KeyRef::Cell { space, id, .. }) if space.exists(id)? => "string",
        Some(KeyRef::Pair { space, id }) if has_pairs(space, id)? != Some(false) => "set",
        Some(_) | None => "none",
    };
    call.reply.simple(kind);
    Ok(())
}

fn ttl(call: &mut Call<'_>) -> Outcome {
    let (exists, _) = is_there(call, 1)?;
    call.reply.int(if exists { -1 } else { -2 });
    Ok(())
}

fn persist(call: &mut Call<'_>) -> Outcome {
    call.reply.int(0);
    Ok(())
}

/// Deletes the row, the counter or all pairs that a key names. Returns whether anything existed.
/// For pairs without a ledger, always returns true.
pub(crate) fn delete_key(engines: &Engines, key: &KeyRef<'_>) -> Result<bool, WriteError> {
    match *key {
        KeyRef::Row { space, id } => engines.delete(space, id),
        KeyRef::Cell { space, id, field } => engines.clear(space, id, field),
        KeyRef::Pair { space, id } if space.has_members => {
            match has_pairs(space, id)? {
                // If another client sets a pair now, the deletion counts as executed before that
                // write.
                Some(false) => Ok(false),
                _ => engines.forget_flags(space, id),
            }
        }
        KeyRef::Pair { space, id } => {
            engines.unflag(space, id, &NO_MEMBER).map(|change| change == Change::Changed)
        }
    }
}

/// Returns whether a time in milliseconds is in the past. The time is absolute if `is_of_clock`,
/// otherwise relative to now.
pub(crate) fn has_passed(time_ms: i64, is_of_clock: bool) -> bool {
    let now_ms = if is_of_clock { unix_us() / 1000 } else { 0 };
    time_ms <= 0 || time_ms.unsigned_abs() <= now_ms
}

/// EXPIRE and related commands. In a space that ignores expiries, NX, XX, GT and LT treat the
/// current expiry as infinite. As in Redis, a time in the past deletes the key.
fn expire(call: &mut Call<'_>) -> Outcome {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for option in call.args.from(3).iter() {
        let is = |name: &[u8]| option.eq_ignore_ascii_case(name);
        match () {
            () if is(b"nx") => nx = true,
            () if is(b"xx") => xx = true,
            () if is(b"gt") => gt = true,
            () if is(b"lt") => lt = true,
            () => return Err(refuse!("ERR Unsupported option {}", Printable(option))),
        }
    }
    if nx && (xx || gt || lt) {
        return Err(refuse!("ERR NX and XX, GT or LT options at the same time are not compatible"));
    }
    if gt && lt {
        return Err(refuse!("ERR GT and LT options at the same time are not compatible"));
    }
    let time = integer(call.args.at(2))?;
    let name = call.spec.name;
    let time_ms = if name.starts_with('p') { Some(time) } else { time.checked_mul(1000) };
    let Some(time_ms) = time_ms else {
        return Err(refuse!("ERR invalid expire time in '{name}' command"));
    };
    let does = match lookup(call, call.args.at(1)) {
        None if is_stream(call, call.args.at(1)) => return Err(stream::READ_ONLY),
        None => false,
        Some(key) if key.expire() == Expire::Refuse => return Err(refuse_expiry(call)),
        Some(key) => {
            let does = is_there(call, 1)?.0 && !xx && !gt;
            if does && has_passed(time_ms, name.ends_with("at")) {
                delete_key(call.node.engines(), &key)?;
            }
            does
        }
    };
    call.reply.int(i64::from(does));
    Ok(())
}

/// Returns the error of a command that would set an expiry in a space that does not allow expiries.
#[cold]
pub(crate) fn refuse_expiry(call: &Call<'_>) -> Refusal {
    let name = call.spec.name.to_ascii_uppercase();
    let with = match call.spec.name {
        "set" | "getex" | "restore" | "restore-asking" => " with an expiry",
        _ => "",
    };
    refuse!(
        "ERR {name}{with} is not supported: counters, rows and pairs do not expire (set expire = \
         \"ignore\" in the space's configuration to accept it)"
    )
}

fn refuse_move(call: &mut Call<'_>) -> Outcome {
    if is_stream(call, call.args.at(1)) {
        return Err(stream::READ_ONLY);
    }
    if lookup(call, call.args.at(1)).is_none() {
        return match call.spec.name {
            "copy" | "move" => {
                call.reply.int(0);
                Ok(())
            }
            _ => Err(refuse!("ERR no such key")),
        };
    }
    Err(refuse!(
        "ERR {} is not supported: a key is derived from its id",
        call.spec.name.to_ascii_uppercase()
    ))
}

/// Returns whether the key at argument `index` exists, and its encoding. Pairs without a ledger
/// count as existing.
pub(crate) fn is_there(call: &Call<'_>, index: usize) -> Result<(bool, &'static str), Unreadable> {
    Ok(match lookup(call, call.args.at(index)) {
        Some(KeyRef::Row { space, id }) => (space.exists(id)?, "packed"),
        Some(KeyRef::Cell { space, id, .. }) => (space.exists(id)?, "int"),
        Some(KeyRef::Pair { space, id }) => (has_pairs(space, id)? != Some(false), "filter"),
        None => (is_stream(call, call.args.at(index)), "stream"),
    })
}

fn is_stream(call: &Call<'_>, key: &[u8]) -> bool {
    streams::scope_of(call.node.engines(), key).is_some()
}

fn encoding(call: &mut Call<'_>) -> Outcome {
    match is_there(call, 2)? {
        (true, encoding) => call.reply.bulk(encoding.as_bytes()),
        (false, _) => call.reply.null(),
    }
    Ok(())
}

fn refcount(call: &mut Call<'_>) -> Outcome {
    if is_there(call, 2)?.0 {
        call.reply.int(1)
    } else {
        call.reply.null()
    }
    Ok(())
}

fn frequency(call: &mut Call<'_>) -> Outcome {
    if !is_there(call, 2)?.0 {
        call.reply.null();
        return Ok(());
    }
    Err(refuse!(
        "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note \
         that when switching between policies at runtime LRU and LFU data will take some time to \
         adjust."
    ))
}

fn idletime(call: &mut Call<'_>) -> Outcome {
    if !is_there(call, 2)?.0 {
        call.reply.null();
        return Ok(());
    }
    Err(refuse!("ERR idle times are not tracked"))
}
