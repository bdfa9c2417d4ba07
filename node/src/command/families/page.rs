//! The rows of `server/src/handlers/feed/page.rs`.

use crate::command::spec::{KeyArgs, Of, Spec, flag};

pub(crate) const TABLE: &[Spec] = &[
    Spec {
        name: "feed.get",
        arity: -4,
        flags: flag::PER_ID | flag::NAMED | flag::READONLY | flag::FAST | flag::MAY_WRITE,
        keys: KeyArgs::ids_of(Of::View),
        group: "feed",
        since: "0.1.0",
        usage: "view viewer id [id ...] [BINARY] [EXACT] [MARK action]",
        summary: "For each id an array: the view's counters, then its flags as the viewer set them \
                  (1, 0, or nil if the id lies below the horizon). If the view names others for \
                  further ids (then), an entry is several ids, post/author, and the rows of all of \
                  them stand in one. BINARY answers one string \
                  instead: per id the counters as little-endian i64, then the flags as signed \
                  bytes (1, 0, -1 for unknown); in Python struct.iter_unpack('<4q2b', reply) for \
                  four counters and two flags. EXACT asks the ledgers of the view's flags (ledger \
                  = \"exact\") for what the filters say yes to, so that no flag is shown by \
                  mistake: a read of the disk for each that is set. MARK also does an action for \
                  all ids, after reading them: the page shows what held before; it needs the \
                  right to FEED.ACT. Its action moves one counter, not several; of an entry of \
                  several ids it is done for the first. An id whose mark is refused has the error \
                  in the place of its row; if all are refused (MISCONF: the log cannot be \
                  written), the page is whole and the error follows as one element more. With \
                  BINARY the reply is then an array of the string and the first error.",

        subcommands: &[],
    },
    Spec {
        name: "feed.row",
        arity: -4,
        flags: flag::NAMED | flag::READONLY | flag::FAST,
        keys: KeyArgs::Shown,
        group: "feed",
        since: "0.2.0",
        usage: "key view viewer [EXACT]",
        summary: "What FEED.GET shows of one id, asked for by the key of its row: the view's \
                  counters, then its flags as the viewer set them. In a cluster a client sends it \
                  to the node of the key, so a page is a pipeline of these, and no node asks \
                  another one.",

        subcommands: &[],
    },
    Spec {
        name: "feed.act",
        arity: -4,
        flags: flag::PER_ID | flag::NAMED | flag::WRITE | flag::DENYOOM | flag::FAST,
        keys: KeyArgs::ids_of(Of::Action),
        group: "feed",
        since: "0.1.0",
        usage: "action viewer id [id ...]",
        summary: "Does an action: sets the viewer's flag and adds 1 to the counter, for each id. \
                  Per id 1, or 0 if it was done before, or nil if the id lies below the horizon. A \
                  repeated action counts once. An action may move more counters, of the id and of \
                  the viewer, all or none. Where the id has no row (none yet, or DEL has \
                  deleted it), the first action counts even if its viewer's flag is set, for the \
                  id and not again for the viewer; the flags of others stay as they are.",

        subcommands: &[],
    },
    Spec {
        name: "feed.undo",
        arity: -4,
        flags: flag::PER_ID | flag::NAMED | flag::WRITE | flag::FAST,
        keys: KeyArgs::ids_of(Of::Action),
        group: "feed",
        since: "0.1.0",
        usage: "action viewer id [id ...]",
        summary: "Undoes an action: unsets the viewer's flag and takes 1 from the counter, which \
                  does not go below 0 by that. Per id 1, or 0 if it was not done, or nil if the id \
                  lies below the horizon.",

        subcommands: &[],
    },
];
