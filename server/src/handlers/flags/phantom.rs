//! Flags by space, member and id: one member, many ids, the feed's shape.

use crate::handlers::Handler;
use crate::handlers::call::Call;
use crate::handlers::execute::UnreadableRows;
use crate::handlers::session::Scratch;
use dataset::engines::ExistenceSpace;
use node::command::error::{Printable, Refusal, refuse};
use node::command::footprint;
use node::command::spec::Outcome;
use phantom::{Answer, Change, Member};
use resp::Reply;

pub(crate) const RUN: &[(&str, Handler)] =
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

fn exists(call: &mut Call<'_>) -> Outcome {
    let space = space(call)?;
    let member = Member::parse(call.args.at(2));
    let exact = footprint::exact(call.spec, call.args);
    call.scratch.ids.clear();
    for at in (3..call.args.len()).filter(|at| Some(*at) != exact) {
        let id = call.id(at)?;
        call.scratch.ids.push(id);
    }
    if call.scratch.ids.is_empty() {
        return Err(call.wrong_arity());
    }
    if exact.is_some() && space.ledger().is_none() {
        return Err(no_ledger(space));
    }
    let Scratch { ids, answers, .. } = &mut *call.scratch;
    answers.clear();
    let mut unreadable = UnreadableRows::default();
    unreadable.note(space.contains_batch(&member, ids, answers));
    if exact.is_some() {
        unreadable.note(space.verify(&member, ids, answers));
    }
    call.reply.array(answers.len());
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
}

fn add(call: &mut Call<'_>) -> Outcome {
    change(call, |call, space, id, member| Ok(call.node.engines().flag(space, id, member)?))
}

fn del(call: &mut Call<'_>) -> Outcome {
    change(call, |call, space, id, member| Ok(call.node.engines().unflag(space, id, member)?))
}

fn change(
    call: &mut Call<'_>,
    one: fn(&Call<'_>, &ExistenceSpace, u64, &Member<'_>) -> Result<Change, Refusal>,
) -> Outcome {
    let space = space(call)?;
    let member = Member::parse(call.args.at(2));
    call.ids_from(3)?;
    call.reply.array(call.scratch.ids.len());
    for index in 0..call.scratch.ids.len() {
        let id = call.scratch.ids[index];
        match one(call, space, id, &member) {
            Ok(change) => write_change(&mut call.reply, change),
            Err(refusal) => call.reply.error(refusal.text()),
        }
    }
    Ok(())
}
