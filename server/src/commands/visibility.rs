//! Visibility of reads under `fsync = "always"`. A read may have returned a change that is not
//! durable yet. The reply to the read then waits until the change is durable, so that a power loss
//! cannot undo a change that a client has seen. See
//! `docs/decisions/0009-what-is-shown-is-durable.md`.
//!
//! The check runs after each read command, for the ids that the command names.

use crate::commands::turn::{Step, Turn};
use crate::session::Session;
use dataset::engines::Engines;
use node::command::footprint::{Footprint, Reach};
use node::command::spec::{KeyArgs, Spec, flag};
use store::Ticket;

/// Records which changes the reply depends on. If the arguments of the command are ids, `ids`
/// contains the ids that were read.
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

/// Returns the ticket that must be durable before the reply is sent.
fn shown(spec: &Spec, turn: Turn<'_>, ids: &[u64], engines: &Engines) -> Ticket {
    let mut last = 0;
    let mut note = |id| last = last.max(engines.sight(id));
    let reach = if matches!(spec.keys, KeyArgs::Ids(..)) && turn.step == Step::Whole {
        ids.iter().copied().for_each(note);
        Reach::Named
    } else {
        Footprint::new(spec, turn.part, engines).ids(&mut note)
    };
    // The reply of a scan may depend on any change.
    if reach == Reach::Everything { Ticket::MAX } else { last }
}
