//! Flags by space, member and id: one member, many ids, the feed's shape.

use crate::handlers::LongHandler;
use crate::handlers::call::{Call, id};
use crate::handlers::execute::UnreadableRows;
use crate::handlers::items::{Answered, FEW, Step};
use crate::handlers::session::Scratch;
use dataset::engines::ExistenceSpace;
use node::command::error::{Printable, Refusal, refuse};
use phantom::{Answer, Change, Member};
use resp::Reply;

pub(crate) const LONG: &[(&str, LongHandler)] =
    &[("ph.add", add), ("ph.exists", exists), ("ph.del", del)];

pub(super) fn space<'a>(call: &Call<'a>) -> Result<&'a ExistenceSpace, Refusal> {
    let name = call.args.at(1);
    match call.node.engines().existence(name) {
        Some(space) if space.has_members => Ok(space),
        Some(space) => Err(Refusal::no_members(space)),
        None => Err(refuse!("ERR no such existence space '{}'", Printable(name))),
    }
}

/// What a filter alone cannot tell.
pub(crate) fn no_ledger(space: &ExistenceSpace) -> Refusal {
    refuse!(
        "ERR the space '{}' has no ledger, which knows its pairs exactly: make one with ledger \
         exact",
        space.name()
    )
}

/// 1, 0, or nil for unknown.
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
        call.scratch.asked.exact = false;
    }
    let words = call.args.from(3);
    call.check_each(words.len(), |call, items| {
        for word in items.map(|item| words.at(item)) {
            if word.eq_ignore_ascii_case(b"EXACT") && !call.scratch.asked.exact {
                call.scratch.asked.exact = true;
            } else {
                call.scratch.ids.push(id(word)?);
            }
        }
        Ok(())
    })?;
    let exact = call.scratch.asked.exact;
    if call.scratch.ids.is_empty() {
        return Err(call.wrong_arity());
    }
    if exact && space.ledger().is_none() {
        return Err(no_ledger(space));
    }
    let together = if exact && call.step != Step::Whole { FEW } else { usize::MAX };
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
    call.answer_each(call.scratch.ids.len(), FEW, |call, items| {
        for item in items {
            match one(call, space, call.scratch.ids[item], &member) {
                Ok(change) => write_change(&mut call.reply, change),
                Err(refusal) => call.reply.error(refusal.text()),
            }
        }
        Ok(())
    })
}
