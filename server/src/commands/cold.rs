//! What a request will ask for that lies on the disk: looked at before it runs, so that all of it can be read at the same time.
//!
//! A request that is not known here still works: its cold rows are then read in place.

use super::{NO_KEYS, Session, Spec, find, id};
use crate::cold::Fetching;
use crate::engines::{CounterSpace, Engines, KeyRef};
use crate::resp::Args;

/// Notes the rows of a request that must be read from the disk first.
pub(crate) fn ask(args: Args<'_>, session: &Session, engines: &Engines, fetching: &mut Fetching) {
    let Some((_, spec)) = find(args.at(0)) else { return };
    match &session.transaction {
        Some(transaction) if spec.name == "exec" => {
            for args in transaction.requests() {
                if let Some((_, spec)) = find(args.at(0)) {
                    ask_one(spec, args, engines, fetching);
                }
            }
        }
        // It is queued only.
        Some(_) => {}
        None => ask_one(spec, args, engines, fetching),
    }
}

fn ask_one(spec: &Spec, args: Args<'_>, engines: &Engines, fetching: &mut Fetching) {
    if !spec.fits(args.len()) {
        return;
    }
    if spec.keys != NO_KEYS {
        return ask_keys(spec, args, engines, fetching);
    }
    match spec.name {
        "feed.get" => {
            let Some(view) = engines.view(args.at(1)) else { return };
            for space in engines.sources(view) {
                ask_ids(space, args.from(3), fetching);
            }
            let mark = args.from(3).iter().position(|arg| arg.eq_ignore_ascii_case(b"MARK"));
            let action = mark.filter(|at| at + 4 < args.len()).and_then(|at| engines.action(args.at(at + 4)));
            if let Some(action) = action {
                ask_ids(engines.counter_of(action), args.from(3), fetching);
            }
        }
        "feed.act" | "feed.undo" => {
            let Some(action) = engines.action(args.at(1)) else { return };
            ask_ids(engines.counter_of(action), args.from(3), fetching);
        }
        "cnt.get" | "cnt.del" => {
            let Some(space) = engines.counter(args.at(1)) else { return };
            ask_ids(space, args.from(2), fetching);
        }
        "cnt.incrby" | "cnt.set" => {
            let Some(space) = engines.counter(args.at(1)) else { return };
            ask_id(space, args.at(2), fetching);
        }
        "cnt.mincrby" => {
            let Some(space) = engines.counter(args.at(1)) else { return };
            args.from(2).iter().step_by(3).for_each(|text| ask_id(space, text, fetching));
        }
        _ => {}
    }
}

fn ask_keys(spec: &Spec, args: Args<'_>, engines: &Engines, fetching: &mut Fetching) {
    let (first, last, step) = spec.keys;
    let last = if last < 0 { args.len() as i32 + last } else { last };
    for index in (first..=last).step_by(step.max(1) as usize) {
        if let Ok(KeyRef::Row { space, id } | KeyRef::Cell { space, id, .. }) = engines.resolve(args.at(index as usize))
        {
            ask_row(space, id, fetching);
        }
    }
}

/// Arguments that are no ids are options.
fn ask_ids(space: &CounterSpace, args: Args<'_>, fetching: &mut Fetching) {
    if space.cold_end() > 0 {
        args.iter().for_each(|text| ask_id(space, text, fetching));
    }
}

fn ask_id(space: &CounterSpace, text: &[u8], fetching: &mut Fetching) {
    if let Ok(id) = id(text) {
        ask_row(space, id, fetching);
    }
}

fn ask_row(space: &CounterSpace, id: u64, fetching: &mut Fetching) {
    if space.is_cold(id) {
        space.cold().ask(id, fetching);
    }
}
