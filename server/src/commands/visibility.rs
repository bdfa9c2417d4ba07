//! What a read has shown under `fsync = "always"`: perhaps a change that is not synced yet. Then
//! its reply waits until it is, so that no reply shows what a power cut takes (promise 3, and how
//! it agrees with promise 1: `docs/decisions/0009-what-is-shown-is-durable.md`).
//!
//! Asked here for all commands, after they have read, by the ids that they name.

use crate::commands::turn::{Step, Turn};
use crate::session::Session;
use dataset::engines::Engines;
use node::command::footprint::{Footprint, Reach};
use node::command::spec::{KeyArgs, Spec, flag};
use store::Ticket;

/// Notes what the request has shown. `ids`: those that it has read as such, if its arguments are
/// ids.
#[inline]
pub(crate) fn note(
    spec: &Spec,
    turn: Turn<'_>,
    ids: &[u64],
    session: &mut Session,
    engines: Option<&Engines>,
) {
    if let Some(engines) =
        engines.filter(|engines| engines.durability().holds_reads() && spec.has(flag::READONLY))
    {
        session.shown = session.shown.max(shown(spec, turn, ids, engines));
    }
}

/// The round with which it is safe.
fn shown(spec: &Spec, turn: Turn<'_>, ids: &[u64], engines: &Engines) -> Ticket {
    let mut last = 0;
    let mut note = |id| last = last.max(engines.sight(id));
    let reach = if matches!(spec.keys, KeyArgs::Ids(..)) && turn.step == Step::Whole {
        ids.iter().copied().for_each(note);
        Reach::Named
    } else {
        Footprint::new(spec, turn.part, engines).ids(&mut note)
    };
    // What walks what is there has shown anything.
    if reach == Reach::Everything { Ticket::MAX } else { last }
}
