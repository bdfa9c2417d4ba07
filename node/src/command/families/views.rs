//! The rows of `server/src/handlers/schema/views.rs`.

use super::spaces::{ADMIN, spec};
use crate::command::spec::{Spec, flag, help_row};

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    Spec {
        subcommands: &[
            spec("tm.view|create", -5, flag::NAMED | flag::WRITE | flag::NO_MULTI | ADMIN,
                "view [REPLACE] option value [option value ...]",
                "Makes a view, for all connections at once. The options are the keys of [[view]] \
                 in the configuration: counters, flags and then, each a list divided by blanks. \
                 With REPLACE it takes the place of the one of its name, in one step: each page \
                 is as before or as it is to be."),
            spec("tm.view|drop", 3, flag::NAMED | flag::WRITE | flag::NO_MULTI | ADMIN, "view",
                "Removes a view. What it shows stays."),
            help_row("tm.view|help", "schema", "0.1.0"),
            spec("tm.view|list", 2, flag::STALE, "",
                "All views, a map each: the bytes of a row with BINARY, the counters and flags in \
                 the order of FEED.GET's rows, and the views of further ids (then)."),
        ],
        ..spec("tm.view", -2, 0, "", "A container for commands about views.")
    },
    Spec {
        subcommands: &[
            spec("tm.action|create", -5, flag::NAMED | flag::WRITE | flag::NO_MULTI | ADMIN,
                "action [REPLACE] option value [option value ...]",
                "Makes an action, for all connections at once. The options are the keys of \
                 [[action]] in the configuration: flag, counter as space.field, and lists of such \
                 counters that move beside, also and member_counters. With REPLACE it takes the \
                 place of the one of its name, in one step; what that has counted stays."),
            spec("tm.action|drop", 3, flag::NAMED | flag::WRITE | flag::NO_MULTI | ADMIN, "action",
                "Removes an action. What it has counted stays."),
            help_row("tm.action|help", "schema", "0.1.0"),
            spec("tm.action|list", 2, flag::STALE, "",
                "All actions, a map each: the flag and the counter that FEED.ACT moves, and the \
                 counters that it moves beside, of the id (also) and of the member \
                 (member_counters)."),
        ],
        ..spec("tm.action", -2, 0, "", "A container for commands about actions.")
    },
];
