//! The rows of `server/src/handlers/flags/phantom.rs`.

use crate::command::spec::{KeyArgs, Of, Spec, flag};

pub(crate) const TABLE: &[Spec] = &[
    Spec {
        name: "ph.add",
        arity: -4,
        flags: flag::PER_ID | flag::NAMED | flag::WRITE | flag::DENYOOM | flag::FAST,
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
        flags: flag::PER_ID | flag::NAMED | flag::READONLY | flag::FAST,
        keys: KeyArgs::ids_of(Of::Pairs),
        group: "phantom",
        since: "0.1.0",
        usage: "space member id [id ...] [EXACT]",
        summary: "Per id 1 if the member's flag is set, 0 if not, nil if the id lies below the \
                  horizon (it is not known any more). EXACT asks the space's ledger for what the \
                  filters say yes to, so that no 1 is a false positive.",

        subcommands: &[],
    },
    Spec {
        name: "ph.del",
        arity: -4,
        flags: flag::PER_ID | flag::NAMED | flag::WRITE | flag::FAST,
        keys: KeyArgs::ids_of(Of::Pairs),
        group: "phantom",
        since: "0.1.0",
        usage: "space member id [id ...]",
        summary: "Unsets the member's flag on each id. Per id 1, or 0 if it was not set, or nil if \
                  the id lies below the horizon.",

        subcommands: &[],
    },
    Spec {
        name: "ph.members",
        arity: -3,
        flags: flag::NAMED | flag::READONLY,
        keys: KeyArgs::Ids(Of::Kin, 2, usize::MAX),
        group: "phantom",
        since: "0.2.0",
        usage: "space id [AFTER member] [COUNT count]",
        summary: "The members whose flags are set on an id, in order: numbers first, then strings. \
                  At most count of them (100), those behind AFTER, which need not be one of them. \
                  For spaces with a ledger.",

        subcommands: &[],
    },
    Spec {
        name: "ph.scan",
        arity: -3,
        flags: flag::NAMED | flag::READONLY,
        keys: KeyArgs::None,
        group: "phantom",
        since: "0.2.0",
        usage: "space cursor [COUNT count]",
        summary: "All pairs that are set, by id, then member: the next cursor (0 at the end) and \
                  an array of an id, its member, the next id, and so on. Begins with cursor 0; a \
                  cursor holds for ever, and names the last pair that was answered. A pair that \
                  is set or unset meanwhile may be there or not. For spaces with a ledger.",

        subcommands: &[],
    },
];
