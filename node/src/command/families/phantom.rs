//! The rows of `server/src/handlers/flags/phantom.rs`.

use crate::command::spec::{KeyArgs, Of, Spec, flag};

pub(crate) const TABLE: &[Spec] = &[
    Spec {
        name: "ph.add",
        arity: -4,
        flags: flag::NAMED | flag::WRITE | flag::DENYOOM | flag::FAST,
        keys: KeyArgs::ids_of(Of::Pairs),
        group: "phantom",
        since: "0.1.0",
        usage: "space member id [id ...]",
        summary: "Sets the member's flag on each id. Per id 1, or 0 if it was set, or nil if the \
                  id lies below the horizon.",

        subcommands: &[],
    },
    Spec {
        name: "ph.exists",
        arity: -4,
        flags: flag::NAMED | flag::READONLY | flag::FAST,
        keys: KeyArgs::ids_of(Of::Pairs),
        group: "phantom",
        since: "0.1.0",
        usage: "space member id [id ...]",
        summary: "Per id 1 if the member's flag is set, 0 if not, nil if the id lies below the \
                  horizon (it is not known any more).",

        subcommands: &[],
    },
    Spec {
        name: "ph.del",
        arity: -4,
        flags: flag::NAMED | flag::WRITE | flag::FAST,
        keys: KeyArgs::ids_of(Of::Pairs),
        group: "phantom",
        since: "0.1.0",
        usage: "space member id [id ...]",
        summary: "Unsets the member's flag on each id. Per id 1, or 0 if it was not set, or nil if \
                  the id lies below the horizon.",

        subcommands: &[],
    },
];
