//! The rows of `server/src/handlers/redis/keys.rs`.

use crate::command::spec::{
    ALL_KEYS, NO_KEYS, ONE_KEY, SECOND_KEY, Spec, TWO_KEYS, flag, help_row,
};

pub(crate) const fn spec(
    name: &'static str,
    arity: i32,
    flags: u32,
    keys: crate::command::spec::KeyArgs,
    since: &'static str,
    usage: &'static str,
    summary: &'static str,
) -> Spec {
    Spec { name, arity, flags, keys, group: "generic", since, usage, summary, subcommands: &[] }
}

pub(crate) const READ: u32 = flag::READONLY | flag::FAST;

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    spec("del", -2, flag::WRITE, ALL_KEYS, "1.0.0", "key [key ...]",
        "Deletes rows. A cell becomes 0 and its row stays, unless it is the row's only field: \
         then the row is deleted. Answers how many rows there were and cells were not 0. The \
         pairs of an id are deleted together with a ledger only, which knows whether there are \
         any; an id of a space without members is unset. Flags of a row's id stay set, unless \
         the space has delete_forgets = true: TM.FORGET unsets them. Where they stay, the next \
         FEED.ACT on the id counts all the same, by any viewer; later ones of viewers whose flag \
         is set do not."),
    spec("unlink", -2, flag::WRITE | flag::FAST, ALL_KEYS, "4.0.0", "key [key ...]",
        "The same as DEL."),
    spec("exists", -2, READ, ALL_KEYS, "1.0.0", "key [key ...]",
        "How many of the rows, and of the cells' rows, exist, and of the sets of spaces with a \
         ledger that have a member. Without a ledger a set cannot be asked for as a whole. Ids of \
         spaces without members count if they are set."),
    spec("type", 2, READ, ONE_KEY, "1.0.0", "key",
        "hash for a row, string for a cell, none if there is no such row; set for the pairs of an \
         id: with a ledger if there are any, without one always."),
    spec("ttl", 2, READ, ONE_KEY, "1.0.0", "key",
        "-1: nothing expires; -2 if there is no such row."),
    spec("pttl", 2, READ, ONE_KEY, "2.6.0", "key", "The same as TTL."),
    spec("expiretime", 2, READ, ONE_KEY, "7.0.0", "key", "The same as TTL."),
    spec("pexpiretime", 2, READ, ONE_KEY, "7.0.0", "key", "The same as TTL."),
    spec("persist", 2, flag::WRITE | flag::FAST, ONE_KEY, "2.2.0", "key", "0: nothing expires."),
    spec("touch", -2, READ, ALL_KEYS, "3.2.1", "key [key ...]", "The same as EXISTS."),
    spec("expire", -3, flag::WRITE | flag::FAST, ONE_KEY, "1.0.0", "key seconds [NX|XX|GT|LT]",
        NO_EXPIRY),
    spec("pexpire", -3, flag::WRITE | flag::FAST, ONE_KEY, "2.6.0",
        "key milliseconds [NX|XX|GT|LT]", NO_EXPIRY),
    spec("expireat", -3, flag::WRITE | flag::FAST, ONE_KEY, "1.2.0",
        "key unix-time-seconds [NX|XX|GT|LT]", NO_EXPIRY),
    spec("pexpireat", -3, flag::WRITE | flag::FAST, ONE_KEY, "2.6.0",
        "key unix-time-milliseconds [NX|XX|GT|LT]", NO_EXPIRY),
    spec("rename", 3, flag::WRITE, TWO_KEYS, "1.0.0", "key newkey", NO_MOVE),
    spec("renamenx", 3, flag::WRITE | flag::FAST, TWO_KEYS, "1.0.0", "key newkey", NO_MOVE),
    spec("copy", -3, flag::WRITE | flag::DENYOOM, TWO_KEYS, "6.2.0",
        "source destination [DB destination-db] [REPLACE]", NO_MOVE),
    spec("move", 3, flag::WRITE | flag::FAST, ONE_KEY, "1.0.0", "key db", NO_MOVE),
    spec("dump", 2, flag::READONLY, ONE_KEY, "2.6.0", "key",
        "A row as a hash, a cell as a string, serialized so that any Redis since 2.6 and any \
         Valkey restores it; nil if there is no such row. With a ledger the members of an id as \
         a set; without one they are refused, as a filter cannot list them."),
    spec("restore", -4, flag::WRITE | flag::DENYOOM, ONE_KEY, "2.6.0",
        "key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
        RESTORE),
    Spec {
        group: "server",
        ..spec("restore-asking", -4, flag::WRITE | flag::DENYOOM, ONE_KEY, "3.0.0",
            "key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
            "The same as RESTORE, as MIGRATE of a cluster sends it.")
    },
    spec("keys", 2, flag::READONLY | flag::NO_MULTI, NO_KEYS, "1.0.0", "pattern",
        "The keys of rows that match, or of their counters where only those have keys, if there \
         are at most 10000 rows in all spaces: else an error that says so. Pairs cannot be \
         listed."),
    spec("scan", -2, flag::READONLY | flag::NO_MULTI, NO_KEYS, "2.8.0",
        "cursor [MATCH pattern] [COUNT count] [TYPE type]",
        "Some keys of rows, or of their counters where only those have keys, and the cursor for \
         more; 0 begins and ends. A row that is there all the time comes at least once, maybe \
         twice. Cursors are below 2^50, so a double holds them. Pairs cannot be listed."),
    spec("randomkey", 1, flag::READONLY | flag::NO_MULTI, NO_KEYS, "1.0.0", "",
        "The key of some row, or of one of its counters where only those have keys; nil if there \
         is none."),
    Spec {
        subcommands: &[
            spec("object|encoding", 3, flag::READONLY, SECOND_KEY, "2.2.3", "key",
                "packed for a row, int for a cell, filter for the pairs of an id."),
            spec("object|freq", 3, flag::READONLY, SECOND_KEY, "4.0.0", "key",
                "Refused: how often a key is used is not tracked."),
            help_row("object|help", "generic", "6.2.0"),
            spec("object|idletime", 3, flag::READONLY, SECOND_KEY, "2.2.3", "key",
                "Refused: when a key was used is not tracked."),
            spec("object|refcount", 3, flag::READONLY, SECOND_KEY, "2.2.3", "key",
                "1 for what exists."),
        ],
        ..spec("object", -2, 0, NO_KEYS, "2.2.3", "",
            "A container for commands about what a key holds.")
    },
];

pub(crate) const NO_EXPIRY: &str = "Refused: a counter does not expire. Where the space has \
    expire = \"ignore\" the expiry is ignored: 1 for what exists, 0 with XX and GT. A time that \
    has passed (EXPIRE key -1) deletes the key there, as in Redis; of the pairs of an id, all.";

const RESTORE: &str = "Takes what DUMP of Redis 2.6 to 8 and of Valkey gives: a hash of integers \
    for the key of a row, a string that holds an integer for that of a cell, a set for the pairs \
    of an id, which are added to those that are there if no ledger knows of any. Hash templates \
    of Redis 8.10 (RDB types 29 and 31) are refused, as all types that are not known: the error \
    names the type and the RDB version. All of the \
    payload is checked before anything changes. With REPLACE the fields that the hash lacks \
    become 0; without it a row or a set that exists, or a cell that is not 0, is refused with \
    BUSYKEY. A ttl above 0, or a field that expires, is refused unless the space has expire = \
    \"ignore\"; there a ttl that has passed \
    (ABSTTL) restores nothing, and with REPLACE deletes what is there, as in Redis. A set is \
    refused between MULTI and EXEC.";

pub(crate) const NO_MOVE: &str = "Refused: where a row lies follows from its id.";
