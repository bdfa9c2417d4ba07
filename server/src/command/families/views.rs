//! The rows of `handlers/schema/views.rs`.

use super::spaces::spec;
use crate::command::spec::{Spec, flag, help_row};

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    Spec {
        subcommands: &[
            help_row("tm.view|help", "schema", "0.1.0"),
            spec("tm.view|list", 2, flag::STALE, "",
                "All views, a map each: their counters and flags in the order of FEED.GET's rows, \
                 and the bytes of a row with BINARY."),
        ],
        ..spec("tm.view", -2, 0, "", "A container for commands about views.")
    },
    Spec {
        subcommands: &[
            help_row("tm.action|help", "schema", "0.1.0"),
            spec("tm.action|list", 2, flag::STALE, "",
                "All actions, a map each: the flag and the counter that FEED.ACT moves."),
        ],
        ..spec("tm.action", -2, 0, "", "A container for commands about actions.")
    },
];
