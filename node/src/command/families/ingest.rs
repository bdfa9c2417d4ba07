//! The rows of `server/src/handlers/admin/ingest.rs`.

use super::spaces::{ADMIN, spec};
use crate::command::spec::{Spec, flag, help_row};

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    Spec {
        subcommands: &[
            help_row("tm.ingest|help", "schema", "0.1.0"),
            spec("tm.ingest|list", 2, flag::STALE | ADMIN, "",
                "All sources of events, a map each: where they are read, how they stand, what they \
                 have brought since the start, what went wrong last; and per partition the \
                 message that is to be read next."),
            spec("tm.ingest|pause", 3, flag::STALE | ADMIN, "source",
                "No more events of this source are taken over by this node, until TM.INGEST RESUME \
                 or a restart. What was taken over is complete up to an event."),
            spec("tm.ingest|resume", 3, flag::STALE | ADMIN, "source",
                "Goes on with a source that was paused, and tries one again that has halted."),
            spec("tm.ingest|setoffset", 5, flag::WRITE | flag::NO_MULTI | ADMIN,
                "source partition offset",
                "Which message of a partition (0 where there are none) is to be read next, \
                 whatever was read: messages before it are passed over, those from it on count, \
                 again if they were read already."),
        ],
        ..spec("tm.ingest", -2, 0, "", "A container for commands about sources of events.")
    },
];
