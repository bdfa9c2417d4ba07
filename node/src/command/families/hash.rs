//! The rows of `server/src/handlers/counter/hash.rs`.

use crate::command::spec::{ONE_KEY, Spec, flag, rows_of};

pub(crate) const READ: u32 = flag::READONLY | flag::FAST;

pub(crate) const WRITE: u32 = flag::WRITE | flag::DENYOOM | flag::FAST;

rows_of!("hash", ONE_KEY);

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    spec("hset", -4, WRITE, "2.0.0", "key field value [field value ...]",
        "Sets counters of a row; answers how many of them were 0 or had no row."),
    spec("hmset", -4, WRITE, "2.0.0", "key field value [field value ...]",
        "Sets counters of a row; answers OK."),
    spec("hsetnx", 4, WRITE, "2.0.0", "key field value",
        "Sets a counter that is 0 or whose row does not exist; answers 1 if it did so, else 0."),
    spec("hincrby", 4, WRITE | flag::READS, "2.0.0", "key field increment",
        "Adds to a counter, which begins at 0; answers its new value."),
    spec("hget", 3, READ, "2.0.0", "key field",
        "The value of a counter; nil if the row or the field does not exist."),
    spec("hmget", -3, READ, "2.0.0", "key field [field ...]",
        "The values of counters; nil for each whose row or field does not exist."),
    spec("hgetall", 2, flag::READONLY, "2.0.0", "key",
        "All fields with their values; nothing if the row does not exist."),
    spec("hexists", 3, READ, "2.0.0", "key field",
        "1 if the counter is not 0; 0 if it is, or has no row or no such field."),
    spec("hlen", 2, READ, "2.0.0", "key",
        "How many fields the row has; 0 if it does not exist."),
    spec("hkeys", 2, flag::READONLY, "2.0.0", "key",
        "The names of the row's fields; none if it does not exist."),
    spec("hvals", 2, flag::READONLY, "2.0.0", "key",
        "The values of the row's fields; none if it does not exist."),
    spec("hstrlen", 3, READ, "3.2.0", "key field",
        "How many characters the counter's value has in decimal; 0 if the row does not exist."),
    spec("hdel", -3, WRITE, "2.0.0", "key field [field ...]",
        "Makes counters 0, their row stays unless that is its only field; answers how many were \
         not 0. DEL deletes a row."),
    spec("hscan", -3, flag::READONLY, "2.8.0",
        "key cursor [MATCH pattern] [COUNT count] [NOVALUES]",
        "All fields of a row with their values, or without, at once: the cursor is always 0."),
    spec("hincrbyfloat", 4, WRITE, "2.6.0", "key field increment",
        "Refused: a counter is an integer."),
];
