//! What a read has shown under `fsync = "always"`: perhaps a change that is not synced yet. Then
//! its reply waits until it is, so that no reply shows what a power cut takes (promise 3, and how
//! it agrees with promise 1: `docs/decisions/0009-what-is-shown-is-durable.md`).
//!
//! Asked here for all commands, after they have read, by the ids that they name.

use crate::command::keyspec::{id_positions, key_positions};
use crate::command::spec::{NO_KEYS, Spec, flag};
use crate::handlers::session::Session;
use dataset::engines::{Engines, KeyRef};
use resp::Args;
use store::Ticket;

/// Notes what the request has shown. `ids`: those that it has read as such, if its arguments are
/// ids.
#[inline]
pub(crate) fn note(
    spec: &Spec,
    args: Args<'_>,
    ids: &[u64],
    session: &mut Session,
    engines: Option<&Engines>,
) {
    if let Some(engines) =
        engines.filter(|engines| engines.durability().holds_reads() && spec.has(flag::READONLY))
    {
        session.shown = session.shown.max(shown(spec, args, ids, engines));
    }
}

/// The round with which it is safe.
fn shown(spec: &Spec, args: Args<'_>, ids: &[u64], engines: &Engines) -> Ticket {
    if spec.keys != NO_KEYS {
        let of_key = |at| match engines.resolve(args.at(at)) {
            Ok(KeyRef::Row { id, .. } | KeyRef::Cell { id, .. } | KeyRef::Pair { id, .. }) => {
                engines.sight(id)
            }
            Err(_) => 0,
        };
        return key_positions(spec, args).map(of_key).max().unwrap_or(0);
    }
    if id_positions(spec, args).is_some() {
        ids.iter().map(|&id| engines.sight(id)).max().unwrap_or(0)
    } else {
        // It walks what is there.
        Ticket::MAX
    }
}
