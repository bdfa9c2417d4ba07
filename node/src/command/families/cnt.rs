//! The rows of `server/src/handlers/counter/cnt.rs`.

use crate::command::spec::{KeyArgs, ONE_KEY, Of, Spec, flag};

/// One id, behind the name of the space.
const ONE_ID: KeyArgs = KeyArgs::Ids(Of::Rows, 2, usize::MAX);

pub(crate) const TABLE: &[Spec] = &[
    Spec {
        name: "cnt.get",
        arity: -3,
        flags: flag::PER_ID | flag::NAMED | flag::READONLY | flag::FAST,
        keys: KeyArgs::Ids(Of::Rows, 2, 1),
        group: "counter",
        since: "0.1.0",
        usage: "space id [id ...]",
        summary: "For each id an array of its counters in schema order, or nil if it has no row.",

        subcommands: &[],
    },
    Spec {
        name: "cnt.scan",
        arity: -3,
        flags: flag::NAMED | flag::READONLY | flag::NO_MULTI,
        keys: crate::command::spec::NO_KEYS,
        group: "counter",
        since: "0.1.0",
        usage: "space cursor [COUNT count] [BINARY]",
        summary: "Some rows of a space, for batch jobs: the cursor for the next call (0: that was \
                  all) and per row an array of its id and its counters in schema order. Begin with \
                  0. COUNT: about so many rows (10; more than 10000 are taken for 10000). BINARY \
                  answers the rows as one string: per row the id as little-endian u64, then the \
                  counters as little-endian i64; behind it stands how many counters a row has, as \
                  that changes when a field is added or dropped between two calls. As with SCAN, \
                  rows may come twice, none that is there all the time is missed, and a row has \
                  the values of the moment at which it is read.",
        subcommands: &[],
    },
    Spec {
        name: "cnt.incrby",
        arity: -5,
        flags: flag::NAMED | flag::READS | flag::WRITE | flag::DENYOOM | flag::FAST,
        keys: ONE_ID,
        group: "counter",
        since: "0.1.0",
        usage: "space id field delta [field delta ...] [MIN min] [MAX max] [SAT|FAIL] \
                [TOKEN token]",
        summary: "Adds to counters of one row, all or none, and answers their new values. With MIN \
                  and MAX a value that would leave the bounds stops at them (SAT) or refuses the \
                  whole command (FAIL, the default). With TOKEN (1 to 64 bytes) it counts once: \
                  sent again with the same token for the same row, by this command or by \
                  CNT.MINCRBY, while the token is kept, it answers what it answered first. Another \
                  increment under the same token is an error. One that was refused leaves no \
                  token.",

        subcommands: &[],
    },
    Spec {
        name: "cnt.hincrby",
        arity: 6,
        flags: flag::READS | flag::WRITE | flag::DENYOOM | flag::FAST,
        keys: ONE_KEY,
        group: "counter",
        since: "0.1.0",
        usage: "key field increment TOKEN token",
        summary: "HINCRBY that counts once, however often it is sent with the same token: \
                  CNT.INCRBY with TOKEN, for a row that is known by its key. Answers the \
                  counter's new value.",
        subcommands: &[],
    },
    Spec {
        name: "cnt.mincrby",
        arity: -5,
        flags: flag::PER_ID | flag::NAMED | flag::READS | flag::WRITE | flag::DENYOOM | flag::FAST,
        keys: KeyArgs::Ids(Of::Rows, 2, 3),
        group: "counter",
        since: "0.1.0",
        usage: "space id field delta [id field delta ...] [TOKEN token]",
        summary: "Adds to one counter of each of many rows. Per triple the new value, or an error \
                  (an overflow, no memory) that concerns only this triple; one that names no \
                  counter refuses all. With TOKEN each triple counts once: sent again with the \
                  same token, those that were counted answer as they did, and the others are \
                  counted. Each counter may then be named once.",

        subcommands: &[],
    },
    Spec {
        name: "cnt.set",
        arity: -5,
        flags: flag::NAMED | flag::WRITE | flag::DENYOOM | flag::FAST,
        keys: ONE_ID,
        group: "counter",
        since: "0.1.0",
        usage: "space id field value [field value ...]",
        summary: "Sets counters of one row, all or none; the other fields keep their values.",

        subcommands: &[],
    },
    Spec {
        name: "cnt.del",
        arity: -3,
        flags: flag::NAMED | flag::WRITE | flag::FAST,
        keys: KeyArgs::Ids(Of::Rows, 2, 1),
        group: "counter",
        since: "0.1.0",
        usage: "space id [id ...]",
        summary: "Deletes rows; answers how many there were.",

        subcommands: &[],
    },
];
