//! What a request will ask for that lies on the disk: looked at before it runs, so that all of it
//! can be read at the same time.
//!
//! A page notes itself what it lacks, and runs again once that was read: with its rows in the cache
//! looking ahead would take twice as long as the page.
//!
//! A request whose footprint is not known still works: its cold rows are then read in place.

use crate::session::Session;
use dataset::cold::fetch::Fetching;
use dataset::engines::Engines;
use node::cluster::Topology;
use node::cluster::slot::of_id;
use node::command::footprint::{Footprint, Touch};
use node::command::spec::{KeyArgs, Of, Spec};
use node::command::table::{Found, find};
use resp::Args;

/// Words of a page that notes itself what it lacks. In a longer one, ids that lack something would
/// be compared with too many others.
const PAGE_WORDS: usize = 256;

/// Before a request runs: what must be read from the disk first, if anything must. A page is not
/// looked at: it is to note what it lacks ([`Session::notes_missing`]).
#[inline]
pub(crate) fn before(
    found: Found,
    args: Args<'_>,
    session: &mut Session,
    engines: &Engines,
) -> Option<Fetching> {
    session.notes_missing = is_page(found, args, session, engines);
    if session.notes_missing {
        return None;
    }
    let mut fetching = Fetching::default();
    ask(found, args, session, engines, &mut fetching);
    (!fetching.is_ready()).then_some(fetching)
}

/// Whether a request does nothing but to show a page, which may be read twice.
fn is_page(found: Found, args: Args<'_>, session: &Session, engines: &Engines) -> bool {
    let Some((_, spec)) = found else { return false };
    let shows = matches!(spec.keys, KeyArgs::Shown | KeyArgs::Ids(Of::View, ..));
    if !shows || args.len() > PAGE_WORDS || session.transaction.is_some() {
        return false;
    }
    let footprint = Footprint::new(spec, args, engines);
    // Actions and ledgers have more to ask for.
    footprint.marked().is_none() && !footprint.is_exact()
}

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
                    ask_one(spec, args, session, engines, fetching);
                }
            }
        }
        // It is queued only.
        Some(_) => {}
        None => ask_one(spec, args, session, engines, fetching),
    }
}

fn ask_one(
    spec: &Spec,
    args: Args<'_>,
    session: &Session,
    engines: &Engines,
    fetching: &mut Fetching,
) {
    if !spec.fits(args.len()) {
        return;
    }
    let footprint = Footprint::new(spec, args, engines);
    for footprint in std::iter::once(footprint).chain(footprint.marked()) {
        let exact = footprint.is_exact();
        footprint.old(exact, |touch| {
            if session.topology.as_ref().is_none_or(|topology| is_here(topology, touch.id())) {
                ask_for(&touch, exact, engines, fetching);
            }
        });
    }
}

/// Whether this node may have the row of an id: other nodes are asked for what is theirs.
#[cold]
fn is_here(topology: &Topology, id: u64) -> bool {
    topology.server_of(of_id(id)).is_here(|| true)
}

fn ask_for(touch: &Touch<'_>, exact: bool, engines: &Engines, fetching: &mut Fetching) {
    let ask_row = |space: &dataset::engines::CounterSpace, id, fetching: &mut Fetching| {
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
