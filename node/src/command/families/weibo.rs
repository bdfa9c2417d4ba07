//! The rows of `server/src/handlers/feed/weibo.rs`.

use crate::command::spec::{ALL_KEYS, ONE_KEY, Spec, flag};

pub(crate) const READ: u32 = flag::READONLY | flag::FAST;

pub(crate) const WRITE: u32 = flag::WRITE | flag::READS | flag::DENYOOM | flag::FAST;

pub(crate) const fn spec(
    name: &'static str,
    arity: i32,
    flags: u32,
    keys: crate::command::spec::KeyArgs,
    usage: &'static str,
    summary: &'static str,
) -> Spec {
    Spec {
        name,
        arity,
        flags,
        keys,
        group: "weibo",
        since: "0.1.0",
        usage,
        summary,
        subcommands: &[],
    }
}

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    spec("mincr", -2, WRITE, ALL_KEYS, "key [key ...]",
        "Adds 1 to each of these counters. Per key the new value, or an error (an overflow, no \
         memory) that concerns only this key; one that names no counter refuses all."),
    spec("bfset", 2, WRITE, ONE_KEY, "key",
        "Sets the pair of this id and no member; answers what it was: 1 set, 0 not, -1 below the \
         oldest table (nothing is set then), -2 no such key."),
    spec("bfget", 2, READ, ONE_KEY, "key",
        "Whether it is set: 1, 0, -1 below the oldest table, -2 no such key."),
    spec("bfmset", -2, WRITE, ALL_KEYS, "key [key ...]", "BFSET for many keys."),
    spec("bfmget", -2, READ, ALL_KEYS, "key [key ...]", "BFGET for many keys."),
];
