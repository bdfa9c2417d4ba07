//! Determines which cold rows a request needs, so that they can be read concurrently before it
//! runs.
//!
//! A page is an exception. A page request records missing rows while it runs, and runs again after
//! these rows were read. A separate pass over its ids would double the cost of a page whose rows
//! are in memory.
//!
//! If the footprint of a request is unknown, the request reads its cold rows synchronously.

use crate::session::Session;
use dataset::cold::fetch::ColdReads;
use dataset::engines::Engines;
use node::cluster::Topology;
use node::cluster::slot::of_id;
use node::command::among;
use node::command::footprint::{Footprint, Touch};
use node::command::id_list::count_packed;
use node::command::spec::{KeyArgs, Of, Spec};
use node::command::table::{Found, find};
use resp::Args;

/// Maximum number of arguments of a page request that records its missing rows. Deduplicating the
/// rows of a longer page would cost too much.
const PAGE_WORDS: usize = 256;

/// Returns the cold rows to read before a request runs, if there are any. For a page, sets
/// [`Session::records_missing_rows`] instead.
#[inline]
pub(crate) fn before(
    found: Found,
    args: Args<'_>,
    session: &mut Session,
    engines: &Engines,
) -> Option<ColdReads> {
    session.records_missing_rows = is_page(found, args, session, engines);
    if session.records_missing_rows {
        return None;
    }
    let mut fetching = ColdReads::default();
    ask(found, args, session, engines, &mut fetching);
    (!fetching.is_ready()).then_some(fetching)
}

/// Returns whether a request only reads a page, so that running the request twice is harmless.
fn is_page(found: Found, args: Args<'_>, session: &Session, engines: &Engines) -> bool {
    let Some((_, spec)) = found else { return false };
    let shows = matches!(spec.keys, KeyArgs::Shown | KeyArgs::Ids(Of::View, ..));
    let ids = if args.len() > PAGE_WORDS { among::before(args) } else { args };
    if !shows || ids.len() + count_packed(ids) > PAGE_WORDS || session.transaction.is_some() {
        return false;
    }
    let footprint = Footprint::new(spec, args, engines);
    // Actions and exact ledgers need blocks that the page does not record.
    footprint.marked().is_none() && !footprint.is_exact()
}

pub(crate) fn ask(
    found: Found,
    args: Args<'_>,
    session: &Session,
    engines: &Engines,
    fetching: &mut ColdReads,
) {
    let Some((_, spec)) = found else { return };
    match &session.transaction {
        Some(transaction) if spec.name == "exec" => {
            for args in transaction.requests() {
                if let Some((_, spec)) = find(args.at(0)) {
                    request_row(spec, args, session, engines, fetching);
                }
            }
        }
        // A request that is only queued reads no rows.
        Some(_) => {}
        None => request_row(spec, args, session, engines, fetching),
    }
}

fn request_row(
    spec: &Spec,
    args: Args<'_>,
    session: &Session,
    engines: &Engines,
    fetching: &mut ColdReads,
) {
    if !spec.fits(args.len()) {
        return;
    }
    let footprint = Footprint::new(spec, args, engines);
    for footprint in std::iter::once(footprint).chain(footprint.marked()) {
        let exact = footprint.is_exact();
        footprint.old(exact, |touch| {
            if session.topology.as_ref().is_none_or(|topology| is_here(topology, touch.id())) {
                request_touched(&touch, exact, engines, fetching);
            }
        });
    }
}

/// Returns whether this node owns an id. Other nodes read the cold rows of their own ids.
#[cold]
fn is_here(topology: &Topology, id: u64) -> bool {
    topology.server_of(of_id(id)).is_here(|| true)
}

fn request_touched(touch: &Touch<'_>, exact: bool, engines: &Engines, fetching: &mut ColdReads) {
    let ask_row = |space: &dataset::engines::CounterSpace, id, fetching: &mut ColdReads| {
        if space.is_cold(id) {
            space.cold().ask(id, fetching);
        }
    };
    match touch {
        Touch::Row(space, id) => ask_row(space, *id, fetching),
        Touch::Pair(space, id, Some(member)) => {
            space.ask((*id, member), exact, fetching);
        }
        Touch::Pair(_, _, None) => {}
        Touch::Shown(view, id, viewer) => {
            engines.sources(view).for_each(|space| ask_row(space, *id, fetching));
            for space in engines.flags(view) {
                space.ask((*id, viewer), exact, fetching);
            }
        }
    }
}
