//! What a request will ask for that lies on the disk: looked at before it runs, so that all of it
//! can be read at the same time.
//!
//! A request that is not known here still works: its cold rows are then read in place.

use crate::command::keyspec::{id_positions, key_positions};
use crate::command::spec::{NO_KEYS, Spec};
use crate::command::table::{Found, find};
use crate::handlers::feed::weibo::NOBODY;
use crate::handlers::session::Session;
use dataset::cold::fetch::Fetching;
use dataset::engines::{Action, CounterSpace, Engines, ExistenceSpace, KeyRef, View};
use phantom::Member;
use resp::{Args, natural};

/// Notes the rows of a request that must be read from the disk first.
pub(crate) fn ask(
    found: Found,
    args: Args<'_>,
    session: &Session,
    engines: &Engines,
    fetching: &mut Fetching,
) {
    let Some((_, spec)) = found else { return };
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
            ask_page(engines, view, spec, args, fetching);
            let mark = args.from(3).iter().position(|arg| arg.eq_ignore_ascii_case(b"MARK"));
            let action = mark
                .filter(|at| at + 4 < args.len())
                .and_then(|at| engines.action(args.at(at + 4)));
            if let Some(action) = action {
                ask_action(action, engines, spec, args, fetching);
            }
        }
        "feed.act" | "feed.undo" => {
            let Some(action) = engines.action(args.at(1)) else { return };
            ask_action(action, engines, spec, args, fetching);
        }
        name if name.starts_with("ph.") => {
            let Some(space) = engines.existence(args.at(1)) else { return };
            ask_flags(space, spec, args, fetching);
        }
        // It reads what it finds, on a thread of its own.
        "cnt.scan" => {}
        name if name.starts_with("cnt.") => {
            let Some(space) = engines.counter(args.at(1)) else { return };
            ask_ids(space, spec, args, fetching);
        }
        _ => {}
    }
}

fn ask_keys(spec: &Spec, args: Args<'_>, engines: &Engines, fetching: &mut Fetching) {
    for at in key_positions(spec, args) {
        match engines.resolve_for(spec.is_about_pairs(), args.at(at)) {
            Some(KeyRef::Row { space, id } | KeyRef::Cell { space, id, .. }) => {
                ask_row(space, id, fetching)
            }
            Some(KeyRef::Pair { space, id }) if space.cold().any() => {
                if !space.has_members {
                    ask_pair(space, id, &NOBODY, fetching);
                    continue;
                }
                // Behind the keys are members; what is an option is asked for in vain.
                let members =
                    args.from(key_positions(spec, args).last().map_or(args.len(), |last| last + 1));
                members
                    .iter()
                    .for_each(|member| ask_pair(space, id, &Member::parse(member), fetching));
            }
            _ => {}
        }
    }
}

fn ask_page(engines: &Engines, view: &View, spec: &Spec, args: Args<'_>, fetching: &mut Fetching) {
    let rows = engines.sources(view).map(|space| space.cold_end());
    let end = rows.chain(engines.flags(view).map(|space| space.cold().end())).max().unwrap_or(0);
    ask_pairs(end, spec, args, |id, viewer| {
        engines.sources(view).for_each(|space| ask_row(space, id, fetching));
        for (flag, space) in engines.flags(view).enumerate() {
            let asks = || engines.page_asks(view, flag, id, viewer);
            space.cold().ask(space, (id, viewer), fetching, asks);
        }
    });
}

fn ask_action(
    action: &Action,
    engines: &Engines,
    spec: &Spec,
    args: Args<'_>,
    fetching: &mut Fetching,
) {
    let (counters, flags) = (engines.counter_of(action), engines.flag_of(action));
    ask_pairs(counters.cold_end().max(flags.cold().end()), spec, args, |id, viewer| {
        ask_row(counters, id, fetching);
        ask_pair(flags, id, viewer, fetching);
    });
}

fn ask_flags(space: &ExistenceSpace, spec: &Spec, args: Args<'_>, fetching: &mut Fetching) {
    ask_pairs(space.cold().end(), spec, args, |id, member| ask_pair(space, id, member, fetching));
}

/// Has `ask` ask for the ids of a request below `end`, and its member, which is the argument before
/// the first id. Most ids of most requests are young, and lie in memory: these cost one look.
fn ask_pairs(end: u64, spec: &Spec, args: Args<'_>, mut ask: impl FnMut(u64, &Member<'_>)) {
    let mut member = None;
    for id in ids_below(end, spec, args) {
        ask(id, member.get_or_insert_with(|| Member::parse(args.at(2))));
    }
}

fn ask_pair(space: &ExistenceSpace, id: u64, member: &Member<'_>, fetching: &mut Fetching) {
    space.cold().ask(space, (id, member), fetching, || true);
}

fn ask_ids(space: &CounterSpace, spec: &Spec, args: Args<'_>, fetching: &mut Fetching) {
    ids_below(space.cold_end(), spec, args).for_each(|id| ask_row(space, id, fetching));
}

fn ask_row(space: &CounterSpace, id: u64, fetching: &mut Fetching) {
    if space.is_cold(id) {
        space.cold().ask(id, fetching);
    }
}

/// The ids of a request below `end`. Arguments that are no ids are options.
fn ids_below<'a>(end: u64, spec: &Spec, args: Args<'a>) -> impl Iterator<Item = u64> + use<'a> {
    let positions = if end > 0 { id_positions(spec, args) } else { None };
    positions
        .into_iter()
        .flatten()
        .filter_map(move |at| natural(args.at(at)).filter(|&id| id < end))
}
