//! The rows of `server/src/handlers/flags/set.rs`.

use crate::command::spec::{ALL_KEYS, ONE_KEY, SECOND_KEY, Spec, TWO_KEYS, flag, rows_of};

rows_of!("set", ONE_KEY);

pub(crate) const READ: u32 = flag::READONLY | flag::FAST;

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    spec("sadd", -3, flag::WRITE | flag::DENYOOM | flag::FAST, "1.0.0", "key member [member ...]",
        "Adds members; answers how many were not there before. Ends at the first that is refused: \
         those before it are added."),
    spec("srem", -3, flag::WRITE | flag::FAST, "1.0.0", "key member [member ...]",
        "Removes members; answers how many were there. Ends at the first that is refused: those \
         before it are removed."),
    spec("sismember", 3, READ, "1.0.0", "key member",
        "1 if it is a member, 0 if not, nil if the id lies below the horizon."),
    spec("smismember", -3, READ, "6.2.0", "key member [member ...]",
        "Per member 1, 0, or nil if the id lies below the horizon."),
    spec("scard", 2, flag::READONLY, "1.0.0", "key", LISTED),
    spec("smembers", 2, flag::READONLY, "1.0.0", "key", LISTED),
    spec("spop", -2, flag::WRITE | flag::FAST, "1.0.0", "key [count]", UNKNOWABLE),
    spec("srandmember", -2, flag::READONLY, "1.0.0", "key [count]", UNKNOWABLE),
    spec("sscan", -3, flag::READONLY, "2.8.0", "key cursor [MATCH pattern] [COUNT count]",
        LISTED),
    Spec { keys: ALL_KEYS, ..spec("sinter", -2, flag::READONLY, "1.0.0", "key [key ...]",
    UNKNOWABLE) },
    // The number of keys comes before them: see `key_positions`.
    Spec { keys: SECOND_KEY, ..spec("sintercard", -3, flag::READONLY, "7.0.0",
        "numkeys key [key ...] [LIMIT limit]", UNKNOWABLE) },
    Spec { keys: ALL_KEYS, ..spec("sunion", -2, flag::READONLY, "1.0.0", "key [key ...]",
    UNKNOWABLE) },
    Spec { keys: ALL_KEYS, ..spec("sdiff", -2, flag::READONLY, "1.0.0", "key [key ...]",
        UNKNOWABLE) },
    Spec { keys: ALL_KEYS, ..spec("sinterstore", -3, flag::WRITE, "1.0.0",
        "destination key [key ...]", UNKNOWABLE) },
    Spec { keys: ALL_KEYS, ..spec("sunionstore", -3, flag::WRITE, "1.0.0",
        "destination key [key ...]", UNKNOWABLE) },
    Spec { keys: ALL_KEYS, ..spec("sdiffstore", -3, flag::WRITE, "1.0.0",
        "destination key [key ...]", UNKNOWABLE) },
    Spec { keys: TWO_KEYS, ..spec("smove", 4, flag::WRITE | flag::FAST, "1.0.0",
        "source destination member",
        "Moves a member from one id to another; answers 1, or 0 if it was not there.") },
    Spec { group: "bitmap", ..spec("setbit", 4, flag::WRITE | flag::DENYOOM, "2.2.0",
        "key offset value",
        "Sets or unsets the flag of the member with this number; answers whether it was set.") },
    Spec { group: "bitmap", ..spec("getbit", 3, READ, "2.2.0", "key offset",
        "1 if the flag of the member with this number is set, 0 if not, nil if the id lies below \
         the horizon.") },
];

/// Of what a ledger knows.
const LISTED: &str = "Of a space with a ledger, from the disk: it takes a read for some hundred \
                      members. Refused in other spaces: a filter cannot tell how many or which \
                      members one id has. A key of no space has none.";

pub(crate) const UNKNOWABLE: &str = "Refused: a filter cannot tell how many or which members one \
                                     id has. With a ledger SMEMBERS and SSCAN list them, and a \
                                     client can do the rest. A key of no space has none.";
