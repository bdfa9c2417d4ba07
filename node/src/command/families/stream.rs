//! The rows of `server/src/handlers/stream/`.

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
    spec("xread", -4, READ, KeyArgs::Streams(1),
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
    XGROUP,
    spec("xreadgroup", -7, WRITE, KeyArgs::Streams(4),
        "GROUP group consumer [COUNT count] [BLOCK milliseconds] [NOACK] STREAMS key [key ...] id \
         [id ...]",
        "With `>` what no consumer of the group has got yet, which is pending then until XACK, \
         unless NOACK; with an id what is pending of the consumer behind it. After a restart or a \
         failover all that was pending comes again."),
    spec("xack", -4, WRITE | flag::FAST, ONE_KEY, "key group id [id ...]",
        "Entries of a group are pending no more; answers how many were."),
    spec("xpending", -3, READ, ONE_KEY,
        "key group [[IDLE min-idle-time] start end count [consumer]]",
        "What is pending: how much, from where to where, of whom; or entry by entry."),
    spec("xclaim", -6, WRITE | flag::FAST, ONE_KEY,
        "key group consumer min-idle-time id [id ...] [IDLE ms] [TIME unix-time-milliseconds] \
         [RETRYCOUNT count] [FORCE] [JUSTID] [LASTID lastid]",
        "Pending entries become another consumer's, if they have been pending for so long."),
    Spec { since: "6.2.0", ..spec("xautoclaim", -6, WRITE | flag::FAST, ONE_KEY,
        "key group consumer min-idle-time start [COUNT count] [JUSTID]",
        "The same for those from an id on; answers where to go on, and the ids of those that the \
         log has no more.") },
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
        spec(
            "xinfo|groups",
            3,
            READ,
            SECOND_KEY,
            "key",
            "The groups of a stream, where they are, and how far behind.",
        ),
        spec(
            "xinfo|consumers",
            4,
            READ,
            SECOND_KEY,
            "key group",
            "The consumers of a group, and for how many milliseconds they were not heard of.",
        ),
        help_row("xinfo|help", "stream", "5.0.0"),
    ],
    ..spec("xinfo", -2, 0, KeyArgs::None, "", "What is known of a stream.")
};

const XGROUP: Spec = Spec {
    subcommands: &[
        spec(
            "xgroup|create",
            -5,
            WRITE | flag::DENYOOM,
            SECOND_KEY,
            "key groupname <id|$> [MKSTREAM] [ENTRIESREAD entries-read]",
            "A group that begins behind an id, `$` is the end. PARTED, TRIMMED: the log has no \
             such place, or not any more.",
        ),
        spec(
            "xgroup|setid",
            -5,
            WRITE,
            SECOND_KEY,
            "key groupname <id|$> [ENTRIESREAD entries-read]",
            "The group goes on behind an id.",
        ),
        spec(
            "xgroup|destroy",
            4,
            WRITE,
            SECOND_KEY,
            "key groupname",
            "Removes a group; answers whether it was there.",
        ),
        Spec {
            since: "6.2.0",
            ..spec(
                "xgroup|createconsumer",
                5,
                WRITE | flag::DENYOOM,
                SECOND_KEY,
                "key groupname consumername",
                "Makes a consumer known, as its first XREADGROUP does; answers whether it was not.",
            )
        },
        spec(
            "xgroup|delconsumer",
            5,
            WRITE,
            SECOND_KEY,
            "key groupname consumername",
            "Removes a consumer and what is pending of it; answers how much that was.",
        ),
        help_row("xgroup|help", "stream", "5.0.0"),
    ],
    ..spec("xgroup", -2, 0, KeyArgs::None, "", "Consumer groups.")
};
