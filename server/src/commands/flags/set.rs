//! Presents the members of one id as a Redis set. The key `liked:17` is the set of members that
//! liked post 17. Every space can test and change membership. Only a space with a ledger can list
//! members (`members.rs`).

use crate::commands::call::Call;
use crate::commands::command::{Command, Group, Run::Long, Run::Once};
use crate::commands::flags::bloom::{self, contains};
use crate::commands::flags::members;
use crate::commands::flags::phantom::{has_changed, refuse_unknowable};
use crate::commands::turn::{Answer as Handled, Answered};
use dataset::engines::WriteError;
use node::command::error::{Refusal, refuse};
use node::command::spec::{ALL_KEYS, ONE_KEY, Outcome, READ, SECOND_KEY, TWO_KEYS, flag};
use phantom::{Answer, Change, Member};
use resp::{self, Reply};

const SET: Group = Group::new("set", "1.0.0", ONE_KEY);

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    SET.row("sadd", -3, flag::WRITE | flag::DENYOOM | flag::FAST,
        "key member [member ...]", Long(sadd),
        "Adds members to the set of an id. Returns the number of new members. Stops at the first \
         error; the members before the error stay added.").linear("members").uses("RW insert"),
    SET.row("srem", -3, flag::WRITE | flag::FAST, "key member [member ...]", Long(srem),
        "Removes members from the set of an id. Returns the number of removed members. Stops at \
         the first error; the members \
         before the error stay removed.").linear("members").uses("RW delete"),
    SET.row("sismember", 3, READ, "key member", Once(sismember),
        "Returns 1 if the set contains the member, 0 if not, or nil if the id is below the \
         horizon.").uses("RO"),
    SET.row("smismember", -3, READ, "key member [member ...]", Long(smismember),
        "Returns for each member 1 if the set contains it, 0 if not, or nil if the id is below the \
         horizon.").since("6.2.0")
        .linear("members"),
    SET.row("scard", 2, flag::READONLY, "key", Once(members::count), LISTED).uses("RO"),
    SET.row("smembers", 2, flag::READONLY, "key", Once(members::all),
        LISTED).tips(&["nondeterministic_output_order"]),
    SET.row("spop", -2, flag::WRITE | flag::FAST, "key [count]", Once(random_members),
        UNKNOWABLE).uses("RW access delete").tips(&["nondeterministic_output"]),
    SET.row("srandmember", -2, flag::READONLY, "key [count]", Once(random_members),
        UNKNOWABLE).tips(&["nondeterministic_output"]),
    SET.row("sscan", -3, flag::READONLY,
        "key cursor [MATCH pattern] [COUNT count]", Once(members::scan),
        LISTED).since("2.8.0").tips(&["nondeterministic_output"]),
    SET.row("sinter", -2, flag::READONLY, "key [key ...]", Once(refuse_combination),
        UNKNOWABLE).keys(ALL_KEYS).tips(&["nondeterministic_output_order"]),
    // The number of keys precedes the keys; see `key_positions`.
    SET.row("sintercard", -3, flag::READONLY,
        "numkeys key [key ...] [LIMIT limit]", Once(intercard),
        UNKNOWABLE).keys(SECOND_KEY).since("7.0.0"),
    SET.row("sunion", -2, flag::READONLY, "key [key ...]", Once(refuse_combination),
        UNKNOWABLE).keys(ALL_KEYS).tips(&["nondeterministic_output_order"]),
    SET.row("sdiff", -2, flag::READONLY, "key [key ...]", Once(refuse_combination),
        UNKNOWABLE).keys(ALL_KEYS).tips(&["nondeterministic_output_order"]),
    SET.row("sinterstore", -3, flag::WRITE, "destination key [key ...]", Once(refuse_unknowable),
        UNKNOWABLE).keys(ALL_KEYS).two_uses("RW update", "RO access"),
    SET.row("sunionstore", -3, flag::WRITE, "destination key [key ...]", Once(refuse_unknowable),
        UNKNOWABLE).keys(ALL_KEYS).two_uses("OW update", "RO access"),
    SET.row("sdiffstore", -3, flag::WRITE, "destination key [key ...]", Once(refuse_unknowable),
        UNKNOWABLE).keys(ALL_KEYS).two_uses("OW update", "RO access"),
    SET.row("smove", 4, flag::WRITE | flag::FAST, "source destination member", Once(smove),
        "Moves a member from one set to another. Returns 1, or 0 if the source does not contain \
         the member.")
        .keys(TWO_KEYS).two_uses("RW access delete", "RW insert"),
    SET.row("setbit", 4, flag::WRITE | flag::DENYOOM, "key offset value", Once(setbit),
        "Sets or unsets the flag of the member whose number is the offset. Returns the old value.")
        .group("bitmap").since("2.2.0").uses("RW access update"),
    SET.row("getbit", 3, READ, "key offset", Once(getbit),
        "Returns 1 if the flag of the member whose number is the offset is set, 0 if not, or nil \
         if the id is below the horizon.").group("bitmap").since("2.2.0"),
];

#[rustfmt::skip]
const LISTED: &str =
    "Reads the members from the ledger on disk; each disk read returns a few hundred members. \
     Fails in a space without a ledger, because a filter cannot list or count the members of one \
     id. A key that matches no space is treated as an empty set.";

#[rustfmt::skip]
const UNKNOWABLE: &str =
    "Not supported: a filter cannot list or count the members of one id. If the space has a \
     ledger, a client can compute the result with SMEMBERS or SSCAN. A key that matches no space \
     is treated as an empty set.";

/// Returns whether every key is outside all spaces. In this case, the result of a set operation is
/// empty.
fn are_all_absent(call: &Call<'_>, keys: std::ops::Range<usize>) -> Result<bool, Refusal> {
    for at in keys {
        if call.existing_pairs(at)?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// SPOP and SRANDMEMBER. For an absent key the reply is nil, or an empty collection if a count was
/// given.
fn random_members(call: &mut Call<'_>) -> Outcome {
    let is_one = call.args.len() == 2;
    if call.existing_pairs(1)?.is_some() {
        return Err(Refusal::NOT_LISTABLE);
    }
    if call.args.len() > 3 {
        return Err(Refusal::SYNTAX);
    }
    if !is_one {
        crate::commands::call::integer(call.args.at(2))?;
    }
    match (is_one, call.spec.name) {
        (true, _) => call.reply.null(),
        (false, "spop") => call.reply.set(0),
        (false, _) => call.reply.array(0),
    }
    Ok(())
}

/// SINTER, SUNION and SDIFF. Refused, unless all keys are absent.
fn refuse_combination(call: &mut Call<'_>) -> Outcome {
    if !are_all_absent(call, 1..call.args.len())? {
        return Err(Refusal::NOT_LISTABLE);
    }
    call.reply.set(0);
    Ok(())
}

/// SINTERCARD. Validates the request as Redis does, and then refuses it unless all keys are absent.
fn intercard(call: &mut Call<'_>) -> Outcome {
    let natural = |text: &[u8]| resp::integer(text).and_then(|number| usize::try_from(number).ok());
    let keys = natural(call.args.at(1)).filter(|keys| *keys > 0);
    let keys = keys.ok_or_else(|| refuse!("ERR numkeys should be greater than 0"))?;
    if keys > call.args.len() - 2 {
        return Err(refuse!("ERR Number of keys can't be greater than number of args"));
    }
    let mut options = call.args.from(2 + keys).iter();
    while let Some(word) = options.next() {
        let limit = options
            .next()
            .filter(|_| word.eq_ignore_ascii_case(b"LIMIT"))
            .ok_or(Refusal::SYNTAX)?;
        natural(limit).ok_or_else(|| refuse!("ERR LIMIT can't be negative"))?;
    }
    if !are_all_absent(call, 2..2 + keys)? {
        return Err(Refusal::NOT_LISTABLE);
    }
    call.reply.int(0);
    Ok(())
}

fn sadd(call: &mut Call<'_>) -> Answered {
    let (space, id) = call.pairs(1)?;
    let members = call.args.from(2);
    call.check_each(members.len(), |_, items| {
        let mut items = items.filter(|_| space.ledger().is_some());
        Ok(items.try_for_each(|item| space.may_write(&Member::parse(members.at(item))))?)
    })?;
    call.count_each(members.len(), |call, item| {
        has_changed(call.node.engines().flag(space, id, &Member::parse(members.at(item)))?)
    })
}

fn srem(call: &mut Call<'_>) -> Answered {
    let Some((space, id)) = call.existing_pairs(1)? else {
        call.reply.int(0);
        return Ok(Handled::Done);
    };
    let members = call.args.from(2);
    call.count_each(members.len(), |call, item| {
        has_changed(call.node.engines().unflag(space, id, &Member::parse(members.at(item)))?)
    })
}

fn smove(call: &mut Call<'_>) -> Outcome {
    let Some((from, from_id)) = call.existing_pairs(1)? else {
        call.reply.int(0);
        return Ok(());
    };
    let (to, to_id) = call.pairs(2)?;
    let member = Member::parse(call.args.at(3));
    let engines = call.node.engines();
    let bytes = from.log_bytes_of_pair() + to.log_bytes_of_pair();
    let Some(_alone) = call.alone(vec![from_id, to_id], bytes) else { return Ok(()) };
    if from.contains_exactly(from_id, &member)? != Answer::Yes {
        call.reply.int(0);
        return Ok(());
    }
    let stays = std::ptr::eq(from, to) && from_id == to_id;
    if !stays && from.ledger().is_none() {
        from.may_remove(from_id, &member).map_err(WriteError::from)?;
    }
    // Add the member to the destination first. If the second change is refused, the member is not
    // lost.
    if engines.flag(to, to_id, &member)? == Change::Unknown {
        return Err(Refusal::TABLE_RECYCLED);
    }
    if !stays {
        engines.unflag(from, from_id, &member)?;
    }
    call.reply.int(1);
    Ok(())
}

fn write(reply: &mut Reply<'_>, answer: Answer) {
    match answer {
        Answer::Yes => reply.int(1),
        Answer::No => reply.int(0),
        Answer::Unknown => reply.null(),
    }
}

fn sismember(call: &mut Call<'_>) -> Outcome {
    let Some((space, id)) = call.existing_pairs(1)? else {
        call.reply.int(0);
        return Ok(());
    };
    write(&mut call.reply, space.contains(id, &Member::parse(call.args.at(2)))?);
    Ok(())
}

fn smismember(call: &mut Call<'_>) -> Answered {
    bloom::contains_each(call, write)
}

/// Parses argument 2, the offset of a bitmap command, as a numeric member: `SETBIT liked:17 42 1`.
fn offset<'a>(call: &Call<'a>) -> Result<Member<'a>, Refusal> {
    let text = call.args.at(2);
    resp::natural(text)
        .map(|_| Member::parse(text))
        .ok_or_else(|| refuse!("ERR bit offset is not an integer or out of range"))
}

fn setbit(call: &mut Call<'_>) -> Outcome {
    let member = offset(call)?;
    let is_on = match call.args.at(3) {
        b"0" => false,
        b"1" => true,
        _ => return Err(refuse!("ERR bit is not an integer or out of range")),
    };
    let (space, id) = call.pairs(1)?;
    let engines = call.node.engines();
    let change = if is_on {
        engines.flag(space, id, &member)?
    } else {
        engines.unflag(space, id, &member)?
    };
    match change {
        Change::Unknown => return Err(Refusal::TABLE_RECYCLED),
        Change::Changed => call.reply.int(i64::from(!is_on)),
        Change::Unchanged => call.reply.int(i64::from(is_on)),
    }
    Ok(())
}

fn getbit(call: &mut Call<'_>) -> Outcome {
    let member = offset(call)?;
    let found = call.existing_pairs(1)?;
    write(&mut call.reply, contains(found, &member)?);
    Ok(())
}
