//! The rows of `server/src/handlers/flags/cuckoo.rs`.

use crate::command::spec::{ONE_KEY, Spec, flag};

pub(crate) const fn spec(
    name: &'static str,
    arity: i32,
    flags: u32,
    usage: &'static str,
    summary: &'static str,
) -> Spec {
    Spec {
        name,
        arity,
        flags,
        keys: ONE_KEY,
        group: "cuckoo",
        since: "1.0.0",
        usage,
        summary,
        subcommands: &[],
    }
}

pub(crate) const READ: u32 = flag::READONLY | flag::FAST;

pub(crate) const WRITE: u32 = flag::WRITE | flag::DENYOOM | flag::FAST;

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    spec("cf.add", 3, WRITE, "key item",
        "Adds an item; 1 whether it was there or not. It is there once then."),
    spec("cf.addnx", 3, WRITE, "key item", "Adds an item; 1 if it was not there, else 0."),
    spec("cf.exists", 3, READ, "key item",
        "1 if the item is there, 0 if not, or if the id lies below the horizon."),
    spec("cf.mexists", -3, READ, "key item [item ...]",
        "Per item 1, or 0, also if the id lies below the horizon."),
    spec("cf.count", 3, READ, "key item",
        "1 if the item is there, as it is there once, 0 if not, or if the id lies below the \
         horizon."),
    spec("cf.reserve", -3, WRITE,
        "key capacity [BUCKETSIZE bucketsize] [MAXITERATIONS maxiterations] [EXPANSION expansion]",
        "OK, or 'item exists' if the key was reserved, or named by CF.INSERT, before. Filters need \
         not be reserved: the numbers are checked and have no effect."),
    spec("cf.insert", -4, WRITE, "key [CAPACITY capacity] [NOCREATE] ITEMS item [item ...]",
        "Adds items; per item 1 whether it was there or not. NOCREATE as in BF.INSERT; CAPACITY is \
         checked and has no effect."),
    spec("cf.insertnx", -4, WRITE, "key [CAPACITY capacity] [NOCREATE] ITEMS item [item ...]",
        "Adds items; per item 1 if it was not there, else 0. Options as in CF.INSERT."),
    spec("cf.info", 2, READ, "key",
        "Bytes, tables and items of the key's space, whose filters hold the items of all its ids \
         together."),
    spec("cf.scandump", 3, READ, "key iterator",
        "Refused: a filter holds the items of all ids of its table together."),
    spec("cf.loadchunk", 4, WRITE, "key iterator data",
        "Refused: a filter holds the items of all ids of its table together."),
    spec("cf.del", 3, flag::WRITE | flag::FAST, "key item",
        "Removes an item; 1 if it was there, else 0."),
];
