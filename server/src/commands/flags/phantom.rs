//! Commands on flags by space, member and ids (PH.*). A command tests one member with many ids, as
//! a feed page does.

use crate::commands::call::{Call, id};
use crate::commands::command::{Command, Group, Run::Long};
use crate::commands::items::ITEMS_PER_CLOCK_READ;
use crate::commands::turn::{Answered, Step};
use crate::commands::unreadable::UnreadableRows;
use crate::session::Scratch;
use crate::session::scratch::PageOptions;
use dataset::engines::{Engines, ExistenceSpace};
use node::command::error::{Printable, Refusal, refuse};
use node::command::id_list::is_ids;
use node::command::spec::{IdTarget, KeyArgs, MEMBER, Outcome, READ, flag};
use phantom::{Answer, Change, Member};
use resp::Reply;

const PHANTOM: Group = Group::new("phantom", "0.1.0", KeyArgs::ids_of(IdTarget::Pairs));

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    PHANTOM.row("ph.add", -4, flag::WRITE | flag::DENYOOM | flag::FAST | flag::NAMED | flag::PER_ID
        | flag::PACKED, "space member <IDS packed|id [id ...]>", Long(add),
        "Sets the member's flag on each id. Returns for each id 1, 0 if it was already set, or nil \
         if the id is below the horizon. IDS passes the ids in one string of little-endian u64.")
        .linear("ids"),
    PHANTOM.row("ph.exists", -4, READ | flag::NAMED | flag::PER_ID | flag::PACKED,
        "space member <IDS packed|id [id ...]> [EXACT]", Long(exists),
        "Returns for each id 1 if the member's flag is set, 0 if not, or nil if the id is below \
         the horizon (unknown). EXACT verifies each set flag in the space's ledger, which rules \
         out false positives. IDS passes the ids in one string of little-endian u64.")
        .linear("ids"),
    PHANTOM.row("ph.del", -4, flag::WRITE | flag::FAST | flag::NAMED | flag::PER_ID | flag::PACKED,
        "space member <IDS packed|id [id ...]>", Long(del),
        "Unsets the member's flag on each id. Returns for each id 1, 0 if it was not set, or nil \
         if the id is below the horizon. IDS passes the ids in one \
         string of little-endian u64.").linear("ids"),
];

/// Position of the first id or option.
const FIRST: usize = MEMBER + 1;

pub(super) fn space<'a>(call: &Call<'a>) -> Result<&'a ExistenceSpace, Refusal> {
    space_named(call.node.engines(), call.args.at(1))
}

/// Returns the space with this name, whose ids have members.
pub(crate) fn space_named<'a>(
    engines: &'a Engines,
    name: &[u8],
) -> Result<&'a ExistenceSpace, Refusal> {
    match engines.existence(name) {
        Some(space) if space.has_members => Ok(space),
        Some(space) => Err(Refusal::no_members(space)),
        None => Err(refuse!("ERR no such existence space '{}'", Printable(name))),
    }
}

pub(crate) fn no_ledger(space: &ExistenceSpace) -> Refusal {
    refuse!("ERR the space '{}' has no ledger: create a space with ledger exact", space.name())
}

/// Writes 1 or 0, or nil if the state is unknown.
pub(crate) fn write_change(reply: &mut Reply<'_>, change: Change) {
    match change {
        Change::Changed => reply.int(1),
        Change::Unchanged => reply.int(0),
        Change::Unknown => reply.null(),
    }
}

fn exists(call: &mut Call<'_>) -> Answered {
    let space = space(call)?;
    let member = Member::parse(call.args.at(2));
    if call.step.begins_request() {
        call.scratch.asked = PageOptions::default();
    }
    let words = call.args.from(FIRST);
    call.check_each(words.len(), |call, items| {
        for item in items {
            let (word, asked) = (words.at(item), &mut call.scratch.asked);
            if asked.packed == Some(FIRST + item) {
                call.read_packed_ids(word)?;
            } else if is_ids(word) && asked.packed.is_none() && item + 1 < words.len() {
                asked.packed = Some(FIRST + item + 1);
            } else if word.eq_ignore_ascii_case(b"EXACT") && !asked.exact {
                asked.exact = true;
            } else {
                call.scratch.ids.push(id(word)?);
            }
        }
        Ok(())
    })?;
    let exact = call.scratch.asked.exact;
    call.check_given_ids()?;
    if exact && space.ledger().is_none() {
        return Err(no_ledger(space));
    }
    let together =
        if exact && call.step != Step::Whole { ITEMS_PER_CLOCK_READ } else { usize::MAX };
    call.answer_each(call.scratch.ids.len(), together, |call, items| {
        let Scratch { ids, answers, .. } = &mut *call.scratch;
        let ids = &ids[items];
        answers.clear();
        let mut unreadable = UnreadableRows::default();
        unreadable.note(space.contains_batch(&member, ids, answers));
        if exact {
            unreadable.note(space.verify(&member, ids, answers));
        }
        for (&id, answer) in ids.iter().zip(answers.iter()) {
            match answer {
                Answer::Yes => call.reply.int(1),
                Answer::No => match unreadable.refusal(id) {
                    Some(refusal) => call.reply.error(refusal.text()),
                    None => call.reply.int(0),
                },
                Answer::Unknown => call.reply.null(),
            }
        }
        Ok(())
    })
}

fn add(call: &mut Call<'_>) -> Answered {
    change(call, |call, space, id, member| Ok(call.node.engines().flag(space, id, member)?))
}

fn del(call: &mut Call<'_>) -> Answered {
    change(call, |call, space, id, member| Ok(call.node.engines().unflag(space, id, member)?))
}

fn change(
    call: &mut Call<'_>,
    one: fn(&Call<'_>, &ExistenceSpace, u64, &Member<'_>) -> Result<Change, Refusal>,
) -> Answered {
    let space = space(call)?;
    let member = Member::parse(call.args.at(2));
    call.read_ids(3)?;
    call.answer_each(call.scratch.ids.len(), ITEMS_PER_CLOCK_READ, |call, items| {
        for item in items {
            match one(call, space, call.scratch.ids[item], &member) {
                Ok(change) => write_change(&mut call.reply, change),
                Err(refusal) => call.reply.error(refusal.text()),
            }
        }
        Ok(())
    })
}

/// Refuses a query that a filter cannot answer. A key of the wrong type returns WRONGTYPE instead.
pub(crate) fn refuse_unknowable(call: &mut Call<'_>) -> Outcome {
    call.pairs(1)?;
    Err(Refusal::NOT_LISTABLE)
}

pub(super) fn has_changed(change: Change) -> Result<bool, Refusal> {
    match change {
        Change::Changed => Ok(true),
        Change::Unchanged => Ok(false),
        Change::Unknown => Err(Refusal::TABLE_RECYCLED),
    }
}
