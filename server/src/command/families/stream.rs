//! The rows of `handlers/stream/`.

use crate::command::spec::{KeyArgs, ONE_KEY, SECOND_KEY, Spec, flag, help_row};

const fn spec(
    name: &'static str,
    arity: i32,
    flags: u32,
    keys: KeyArgs,
    usage: &'static str,
    summary: &'static str,
) -> Spec {
    Spec {
        name,
        arity,
        flags,
        keys,
        group: "stream",
        since: "5.0.0",
        usage,
        summary,
        subcommands: &[],
    }
}

const READ: u32 = flag::READONLY;
const WRITE: u32 = flag::WRITE;

/// For what would change a stream.
const READ_ONLY: &str = "Refused: tm:changes is the log, and no client writes to it.";

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    spec("xread", -4, READ, KeyArgs::Streams,
        "[COUNT count] [BLOCK milliseconds] STREAMS key [key ...] id [id ...]",
        "The entries behind an id, in order, or nil: of tm:changes those of all spaces, of \
         tm:changes:NAME those of one. Without COUNT, and at most, 10000 of a stream at once. \
         PARTED: the id belongs to a history that did not lead to this one. TRIMMED: the log does \
         not reach back to it; 0-0 is the beginning of all. Only what is synced is shown."),
    spec("xrange", -4, READ, ONE_KEY, "key start end [COUNT count]",
        "The entries from one id to another; `-` is the oldest that is there. An error if they are \
         more than 10000: use COUNT."),
    spec("xrevrange", -4, READ, ONE_KEY, "key end start [COUNT count]",
        "The same from the last one down."),
    spec("xlen", 2, READ | flag::FAST, ONE_KEY, "key",
        "How many entries the log has. The first time all of it is read."),
    XINFO,
    spec("xadd", -5, WRITE | flag::DENYOOM | flag::FAST, ONE_KEY,
        "key [NOMKSTREAM] [<MAXLEN|MINID> [=|~] threshold [LIMIT count]] <*|id> field value \
         [field value ...]", READ_ONLY),
    spec("xdel", -3, WRITE | flag::FAST, ONE_KEY, "key id [id ...]", READ_ONLY),
    spec("xtrim", -4, WRITE, ONE_KEY, "key <MAXLEN|MINID> [=|~] threshold [LIMIT count]",
        "Refused: durability.keep_log_bytes says how much of the log is kept."),
    spec("xsetid", -3, WRITE | flag::DENYOOM | flag::FAST, ONE_KEY,
        "key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]", READ_ONLY),
];

const XINFO: Spec = Spec {
    subcommands: &[
        spec(
            "xinfo|stream",
            -3,
            READ,
            SECOND_KEY,
            "key [FULL [COUNT count]]",
            "How long it is, its first and last entry; with FULL its groups and entries.",
        ),
        help_row("xinfo|help", "stream", "5.0.0"),
    ],
    ..spec("xinfo", -2, 0, KeyArgs::None, "", "What is known of a stream.")
};
