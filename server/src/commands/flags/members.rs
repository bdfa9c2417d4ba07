//! Lists pairs from the exact ledger of a space: PH.MEMBERS, PH.SCAN, and the set commands that
//! list members.
//!
//! Each of these commands reads the disk on another thread, in chunks of [`MEMBERS_PER_SCAN`]
//! members.

use crate::commands::call::{Call, disk, integer};
use crate::commands::command::{Command, Group, Run::Once};
use crate::commands::counter::scan::MAX_KEYS;
use crate::commands::flags::phantom::{no_ledger, space};
use dataset::cold::ledger::{PairLedger, in_ledger};
use ledger::{Member, OwnedMember, Pairs};
use node::command::error::{Refusal, refuse};
use node::command::spec::{IdTarget, KeyArgs, NO_KEYS, Outcome, flag};
use node::roles::node::Now;
use node::runtime::glob;
use resp::Reply;
use std::borrow::Cow;

const PHANTOM: Group = Group::new("phantom", "0.2.0", NO_KEYS);

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    PHANTOM.row("ph.members", -3, flag::READONLY | flag::NAMED,
        "space id [AFTER member] [COUNT count]", Once(members),
        "Returns the members that have set a flag on an id, in ascending order: numbers first, \
         then strings. Returns up to COUNT members (default 100) greater than AFTER; AFTER need \
         not exist. Requires a ledger.").keys(KeyArgs::Ids(IdTarget::RowsAndPairs, 2, usize::MAX)),
    PHANTOM.row("ph.scan", -3, flag::READONLY | flag::NAMED,
        "space cursor [COUNT count]", Once(scan_pairs),
        "Iterates over all set pairs, ordered by id and then by member. Returns the next cursor (0 \
         at the end) and an array of alternating ids and members. Start with cursor 0. A cursor \
         encodes the last returned pair and never expires. Pairs that are set or unset during the \
         iteration may or may not be returned. Requires a ledger."),
];

const MEMBERS_PER_SCAN: usize = 4096;
/// An SSCAN cursor contains the first `PREFIX` bytes of a string, or the top `NUMBER_BITS` bits of
/// a number. Cursors are less than 2^50, so that clients may store them as doubles.
const PREFIX: usize = 6;
const NUMBER_BITS: u32 = 43;
/// Bit that is set in the cursor of a string.
const STRING: u64 = 1 << 49;

struct MemberScan {
    most: usize,
    after: Option<OwnedMember>,
    pattern: Option<Vec<u8>>,
}

fn parse(text: &[u8]) -> Member<'_> {
    in_ledger(phantom::Member::parse(text))
}

fn text(member: Member<'_>) -> Cow<'_, [u8]> {
    match member {
        Member::Number(number) => Cow::Owned(number.to_string().into_bytes()),
        Member::Bytes(bytes) => Cow::Borrowed(bytes),
    }
}

/// Parses the options from the argument at index `first` on. Only the options in `known` are
/// accepted.
fn read_options(
    call: &Call<'_>,
    first: usize,
    most: usize,
    known: &[&str],
) -> Result<MemberScan, Refusal> {
    let mut asked = MemberScan { most, after: None, pattern: None };
    let mut options = call.args.from(first).iter();
    while let Some(option) = options.next() {
        let value = options.next().ok_or(Refusal::SYNTAX)?;
        let Some(known) = known.iter().find(|name| option.eq_ignore_ascii_case(name.as_bytes()))
        else {
            return Err(Refusal::SYNTAX);
        };
        match *known {
            "count" => {
                let most = integer(value)?;
                if most < 1 {
                    return Err(Refusal::SYNTAX);
                }
                asked.most = most.unsigned_abs().min(MAX_KEYS) as usize;
            }
            "after" => asked.after = Some(parse(value).to_owned()),
            _ => asked.pattern = Some(value.to_vec()),
        }
    }
    Ok(asked)
}

pub(crate) fn write_member(reply: &mut Reply<'_>, member: Member<'_>) {
    reply.bulk(&text(member));
}

/// Returns the ledger of the space with this number. Fails if the space was dropped.
fn ledger_of<'n>(node: Now<'n>, number: u32) -> Result<&'n PairLedger, Refusal> {
    let space = node.engines().existence_by_number(number);
    let ledger = space.and_then(|space| space.ledger());
    ledger.map(|ledger| &**ledger).ok_or_else(|| refuse!("ERR the space was dropped"))
}

fn members(call: &mut Call<'_>) -> Outcome {
    let space = space(call)?;
    let id = call.id(2)?;
    let asked = read_options(call, 3, 100, &["after", "count"])?;
    if space.ledger().is_none() {
        return Err(no_ledger(space));
    }
    let number = space.number();
    call.answer_later(move |node, reply| {
        let after = asked.after.as_ref().map(|member| (id, member.as_member()));
        let ledger = ledger_of(node, number)?.ledger();
        let pairs = ledger.list((id, id), after, asked.most).map_err(disk)?;
        reply.array(pairs.len());
        pairs.iter().for_each(|pair| write_member(reply, pair.member));
        Ok(())
    })
}

/// PH.SCAN. The cursor is the last pair that was returned, as `id/member`.
fn scan_pairs(call: &mut Call<'_>) -> Outcome {
    let space = space(call)?;
    let invalid = || refuse!("ERR invalid cursor");
    let cursor = call.args.at(2);
    let after = if cursor == b"0" {
        None
    } else {
        let slash = cursor.iter().position(|byte| *byte == b'/').ok_or_else(invalid)?;
        let id = resp::natural(&cursor[..slash]).ok_or_else(invalid)?;
        Some((id, parse(&cursor[slash + 1..]).to_owned()))
    };
    let asked = read_options(call, 3, 100, &["count"])?;
    if space.ledger().is_none() {
        return Err(no_ledger(space));
    }
    let number = space.number();
    call.answer_later(move |node, reply| {
        let after = after.as_ref().map(|(id, member)| (*id, member.as_member()));
        let ledger = ledger_of(node, number)?.ledger();
        let pairs = ledger.list((0, u64::MAX), after, asked.most).map_err(disk)?;
        reply.array(2);
        let mut cursor = vec![b'0'];
        if pairs.len() == asked.most
            && let Some(last) = pairs.last()
        {
            cursor = format!("{}/", last.id).into_bytes();
            cursor.extend_from_slice(&text(last.member));
        }
        reply.bulk(&cursor);
        reply.array(2 * pairs.len());
        for pair in pairs.iter() {
            reply.bulk(pair.id.to_string().as_bytes());
            write_member(reply, pair.member);
        }
        Ok(())
    })
}

/// Passes all members of an id to `each`, in chunks.
fn walk(ledger: &PairLedger, id: u64, mut each: impl FnMut(&Pairs) -> Outcome) -> Outcome {
    let mut after: Option<OwnedMember> = None;
    loop {
        let behind = after.as_ref().map(|member| (id, member.as_member()));
        let pairs = ledger.ledger().list((id, id), behind, MEMBERS_PER_SCAN).map_err(disk)?;
        each(&pairs)?;
        match pairs.last() {
            Some(last) if pairs.len() == MEMBERS_PER_SCAN => after = Some(last.member.to_owned()),
            _ => return Ok(()),
        }
    }
}

pub(crate) fn dump_members(call: &mut Call<'_>, number: u32, id: u64) -> Outcome {
    let most = call.session.max_out_bytes;
    call.answer_later(move |node, reply| {
        let mut dump = rdb::SetDump::default();
        walk(ledger_of(node, number)?, id, |pairs| {
            for pair in pairs.iter() {
                match pair.member {
                    Member::Number(number) => dump.push_number(number),
                    Member::Bytes(bytes) => dump.push(bytes),
                }
            }
            if dump.bytes() > most { Err(too_many(most)) } else { Ok(()) }
        })?;
        match dump.seal() {
            Some(payload) => reply.bulk(&payload),
            None => reply.null(),
        }
        Ok(())
    })
}

fn too_many(most: usize) -> Refusal {
    refuse!("ERR the members exceed {most} bytes (max_output_buffer): use SSCAN or PH.MEMBERS")
}

/// Resolves the key of a set in a space with a ledger. Returns `None` for a key outside all spaces.
fn ledger_key(call: &Call<'_>) -> Result<Option<(u32, u64)>, Refusal> {
    match call.existing_pairs(1)? {
        Some((space, _)) if space.ledger().is_none() => Err(Refusal::NOT_LISTABLE),
        Some((space, id)) => Ok(Some((space.number(), id))),
        None => Ok(None),
    }
}

pub(super) fn count(call: &mut Call<'_>) -> Outcome {
    let Some((number, id)) = ledger_key(call)? else {
        call.reply.int(0);
        return Ok(());
    };
    call.answer_later(move |node, reply| {
        let mut count = 0;
        walk(ledger_of(node, number)?, id, |pairs| {
            count += pairs.len() as i64;
            Ok(())
        })?;
        reply.int(count);
        Ok(())
    })
}

pub(super) fn all(call: &mut Call<'_>) -> Outcome {
    let Some((number, id)) = ledger_key(call)? else {
        call.reply.set(0);
        return Ok(());
    };
    let (most, protocol) = (call.session.max_out_bytes, call.reply.protocol());
    call.answer_later(move |node, reply| {
        let (mut count, mut bytes) = (0, Vec::new());
        walk(ledger_of(node, number)?, id, |pairs| {
            let mut part = Reply::new(&mut bytes, protocol);
            pairs.iter().for_each(|pair| write_member(&mut part, pair.member));
            count += pairs.len();
            if bytes.len() > most { Err(too_many(most)) } else { Ok(()) }
        })?;
        reply.set(count);
        reply.bytes().extend_from_slice(&bytes);
        Ok(())
    })
}

/// Returns the SSCAN cursor of a member. Cursors increase in the order of the members. Cursor 0
/// marks the beginning and the end of a scan.
fn cursor_of(member: Member<'_>) -> u64 {
    match member {
        Member::Number(number) => {
            let shortened = (64 - number.leading_zeros()).saturating_sub(NUMBER_BITS);
            1 + (u64::from(shortened) << NUMBER_BITS | number >> shortened)
        }
        Member::Bytes(bytes) => {
            let mut prefix = [0; 8];
            let length = bytes.len().min(PREFIX);
            prefix[8 - PREFIX..][..length].copy_from_slice(&bytes[..length]);
            STRING | u64::from_be_bytes(prefix)
        }
    }
}

/// Returns the greatest member with this cursor.
fn last_member_of_cursor(cursor: u64) -> Result<Option<OwnedMember>, Refusal> {
    let invalid = || refuse!("ERR invalid cursor");
    if cursor == 0 {
        return Ok(None);
    }
    if cursor & STRING != 0 {
        let prefix = (cursor & !STRING).to_be_bytes();
        if prefix[..8 - PREFIX] != [0; 8 - PREFIX] {
            return Err(invalid());
        }
        let mut last = prefix[8 - PREFIX..].to_vec();
        last.resize(ledger::MAX_MEMBER_BYTES, 0xff);
        return Ok(Some(OwnedMember::Bytes(last.into())));
    }
    let (shortened, number) =
        ((cursor - 1) >> NUMBER_BITS, (cursor - 1) & ((1 << NUMBER_BITS) - 1));
    if shortened > u64::from(64 - NUMBER_BITS) {
        return Err(invalid());
    }
    Ok(Some(OwnedMember::Number(number << shortened | ((1 << shortened) - 1))))
}

/// SSCAN. Returns COUNT members, plus any further members that have the same cursor as the last
/// member.
pub(super) fn scan(call: &mut Call<'_>) -> Outcome {
    let found = ledger_key(call)?;
    let cursor = resp::natural(call.args.at(2)).ok_or_else(|| refuse!("ERR invalid cursor"))?;
    let asked = read_options(call, 3, 10, &["count", "match"])?;
    let Some((number, id)) = found else {
        call.reply.array(2);
        call.reply.bulk(b"0");
        call.reply.array(0);
        return Ok(());
    };
    let after = last_member_of_cursor(cursor)?;
    call.answer_later(move |node, reply| {
        let (found, next) = scanned(ledger_of(node, number)?, id, after, asked.most)?;
        let fits = |member: &Member<'_>| {
            let pattern = asked.pattern.as_deref();
            pattern.is_none_or(|pattern| glob::matches(pattern, &text(*member), false))
        };
        let shown: Vec<_> = found.iter().map(|pair| pair.member).filter(fits).collect();
        reply.array(2);
        reply.bulk(next.to_string().as_bytes());
        reply.array(shown.len());
        shown.into_iter().for_each(|member| write_member(reply, member));
        Ok(())
    })
}

/// Returns up to `most` members of an id that follow `after`, and the cursor of the last member (0
/// at the end of the scan). Further members with the same cursor are included, even if the result
/// then exceeds `most`.
fn scanned(
    ledger: &PairLedger,
    id: u64,
    mut after: Option<OwnedMember>,
    most: usize,
) -> Result<(Pairs, u64), Refusal> {
    let (mut found, mut last) = (Pairs::default(), 0);
    loop {
        let behind = after.as_ref().map(|member| (id, member.as_member()));
        let pairs = ledger.ledger().list((id, id), behind, most + 1).map_err(disk)?;
        for pair in pairs.iter() {
            let cursor = cursor_of(pair.member);
            if found.len() >= most && cursor != last {
                return Ok((found, last));
            }
            last = cursor;
            found.push(pair);
        }
        if pairs.len() <= most {
            return Ok((found, 0));
        }
        after = pairs.last().map(|pair| pair.member.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cursors increase in the order of the members. A scan with a cursor resumes after all members
    /// that have this cursor.
    #[test]
    fn cursors_rise_with_members_and_stand_for_all_up_to_them() {
        let numbers = [0, 1, 2, 9, (1 << 43) - 1, 1 << 43, (1 << 43) + 1, 1 << 63, u64::MAX];
        let strings: [&[u8]; 9] =
            [b"", b"\0", b"a", b"ann", b"ann\0\0\0\0", b"user:12", b"user:123", b"v", &[0xff; 512]];
        let members: Vec<Member<'_>> =
            numbers.map(Member::Number).into_iter().chain(strings.map(Member::Bytes)).collect();
        assert!(members.is_sorted());
        let cursors: Vec<u64> = members.iter().map(|member| cursor_of(*member)).collect();
        assert!(cursors.is_sorted(), "{cursors:?}");
        assert!(cursors.iter().all(|cursor| *cursor > 0 && *cursor < 1 << 50));
        for (member, cursor) in members.iter().zip(&cursors) {
            let last = last_member_of_cursor(*cursor).unwrap().unwrap();
            assert!(last.as_member() >= *member, "{member:?}");
            let behind = members.iter().zip(&cursors).filter(|(m, _)| **m > last.as_member());
            assert!(behind.into_iter().all(|(_, next)| next > cursor), "{member:?}");
        }
        assert!(
            last_member_of_cursor(u64::MAX).is_err()
                && last_member_of_cursor(STRING | 1 << 48).is_err()
        );
        assert!(
            last_member_of_cursor(STRING | 1 << 47).is_ok()
                && last_member_of_cursor(23 << NUMBER_BITS).is_err()
        );
        assert!(
            last_member_of_cursor(1 << 50).is_err(),
            "a cursor of an older version, or a rounded one"
        );
    }
}
