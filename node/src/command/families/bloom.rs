//! The rows of `server/src/handlers/flags/bloom.rs`.

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
        group: "bloom",
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
    spec("bf.add", 3, WRITE, "key item", "Adds an item; 1 if it was not there, else 0."),
    spec("bf.madd", -3, WRITE, "key item [item ...]",
        "Adds items; per item 1 if it was not there, else 0."),
    spec("bf.exists", 3, READ, "key item",
        "1 if the item is there, 0 if not, or if the id lies below the horizon."),
    spec("bf.mexists", -3, READ, "key item [item ...]",
        "Per item 1, or 0, also if the id lies below the horizon."),
    spec("bf.insert", -4, WRITE,
        "key [CAPACITY capacity] [ERROR error] [EXPANSION expansion] [NOCREATE] [NONSCALING] ITEMS \
         item [item ...]",
        "Adds items as BF.MADD does. NOCREATE: only if BF.RESERVE or BF.INSERT has named the key \
         before, or the counter that moves with its flags is above 0. CAPACITY, EXPANSION and \
         NONSCALING are checked and have no effect: a filter never fills. An ERROR below the \
         space's rate is refused."),
    spec("bf.reserve", -4, WRITE, "key error_rate capacity [EXPANSION expansion] [NONSCALING]",
        "OK, or 'item exists' if BF.RESERVE or BF.INSERT has named the key before. Filters need \
         not be reserved: capacity and expansion are checked and have no effect, as they are the \
         space's. An error rate below the space's is refused."),
    spec("bf.card", 2, READ, "key",
        "How many items all ids of the key's space have together: a filter cannot tell how many \
         one id has. 0 for a key of no space."),
    spec("bf.info", -2, READ, "key [CAPACITY|SIZE|FILTERS|ITEMS|EXPANSION]",
        "Capacity, bytes, number of tables, items and expansion rate of the key's space, whose \
         filters hold the items of all its ids together."),
    spec("bf.scandump", 3, READ, "key iterator",
        "Refused: a filter holds the items of all ids of its table together."),
    spec("bf.loadchunk", 4, WRITE, "key iterator data",
        "Refused: a filter holds the items of all ids of its table together."),
];
