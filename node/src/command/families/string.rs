//! The rows of `server/src/handlers/counter/string.rs`.

use crate::command::spec::{ALL_KEYS, KeyArgs, ONE_KEY, Spec, flag};

pub(crate) const READ: u32 = flag::READONLY | flag::FAST;

pub(crate) const WRITE: u32 = flag::WRITE | flag::DENYOOM | flag::FAST;

pub(crate) const fn spec(
    name: &'static str,
    arity: i32,
    flags: u32,
    keys: KeyArgs,
    since: &'static str,
    usage: &'static str,
    summary: &'static str,
) -> Spec {
    Spec { name, arity, flags, keys, group: "string", since, usage, summary, subcommands: &[] }
}

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    spec("get", 2, READ, ONE_KEY, "1.0.0", "key",
        "The value of a counter, nil if its row does not exist, or the key is of no space."),
    spec("mget", -2, READ, ALL_KEYS, "1.0.0", "key [key ...]",
        "The values of counters, nil for those whose row does not exist and for what is no \
         counter; an error in the place of one whose row cannot be read."),
    spec("set", -3, WRITE, ONE_KEY, "1.0.0", "key value [NX|XX] [GET] [KEEPTTL]",
        "Sets a counter; NX only if it is 0 or its row does not exist, XX only if its row exists; \
         GET answers the old value. EX, PX, EXAT and PXAT are refused, as a counter does not \
         expire, unless the space has expire = \"ignore\"; a time that has passed makes the \
         counter 0 there."),
    spec("setnx", 3, WRITE, ONE_KEY, "1.0.0", "key value",
        "Sets a counter that is 0 or whose row does not exist; answers 1 if it did so, else 0."),
    spec("getset", 3, WRITE | flag::READS, ONE_KEY, "1.0.0", "key value",
        "Sets a counter; answers its old value."),
    spec("getdel", 2, WRITE | flag::READS, ONE_KEY, "6.2.0", "key",
        "Makes a counter 0, or deletes the row if that is its only field, as DEL does; answers its \
         old value."),
    spec("getex", -2, flag::READONLY | flag::FAST, ONE_KEY, "6.2.0", "key [PERSIST]",
        "The same as GET. Options that would let it expire are refused, unless the space has \
         expire = \"ignore\"."),
    spec("mset", -3, WRITE, KeyArgs::Keys(1, -1, 2), "1.0.1", "key value [key value ...]",
        "Sets counters, all at once."),
    spec("msetnx", -3, WRITE, KeyArgs::Keys(1, -1, 2), "1.0.1", "key value [key value ...]",
        "Sets counters, all at once, if each is 0 or has no row; answers 1 if it did so, else 0."),
    spec("substr", 4, flag::READONLY, ONE_KEY, "1.0.0", "key start end", "The same as GETRANGE."),
    spec("strlen", 2, READ, ONE_KEY, "2.2.0", "key",
        "How many characters a counter has in decimal; 0 if its row does not exist."),
    spec("append", 3, WRITE, ONE_KEY, "2.0.0", "key value", NO_TEXT),
    spec("setrange", 4, WRITE, ONE_KEY, "2.2.0", "key offset value", NO_TEXT),
    spec("getrange", 4, READ, ONE_KEY, "2.4.0", "key start end",
        "The characters from start to end of a counter in decimal; negative positions count from \
         the end."),
    spec("incrbyfloat", 3, WRITE, ONE_KEY, "2.6.0", "key increment",
        "Refused: a counter is an integer."),
    spec("setex", 4, WRITE, ONE_KEY, "2.0.0", "key seconds value",
        SET_EXPIRES),
    spec("psetex", 4, WRITE, ONE_KEY, "2.6.0", "key milliseconds value",
        SET_EXPIRES),
    spec("incr", 2, WRITE | flag::READS, ONE_KEY, "1.0.0", "key",
        "Adds 1 to a counter; answers its new value."),
    spec("incrby", 3, WRITE | flag::READS, ONE_KEY, "1.0.0", "key increment",
        "Adds to a counter; answers its new value."),
    spec("decr", 2, WRITE | flag::READS, ONE_KEY, "1.0.0", "key",
        "Takes 1 from a counter; answers its new value."),
    spec("decrby", 3, WRITE | flag::READS, ONE_KEY, "1.0.0", "key decrement",
        "Takes from a counter; answers its new value."),
];

pub(crate) const NO_TEXT: &str = "Refused: a counter is a number, not a text.";

const SET_EXPIRES: &str = "Refused: a counter does not expire. Where the space has expire = \
    \"ignore\" it is SET, and the counter stays.";
