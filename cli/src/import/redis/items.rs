//! Contents of a key of the source: rows, counters and flags of ids.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// Counters by their index in `Layout::fields`.
    Row(u64, Vec<(usize, i64)>),
    /// Counters of a hash; a rejected counter has no value. All other counters of `Layout::fields`
    /// are 0, unless another key holds them.
    Hash(u64, Vec<(usize, Option<i64>)>),
    /// The only key of the row was deleted.
    RowKeyDeleted(u64),
    /// No key holds counters of the row.
    Missing(u64),
    /// All members of the id must be unset. The members that are still present follow as further
    /// items.
    Unset(u64),
    Member(u64, Vec<u8>),
}

impl Item {
    /// Returns the id, if this is a row.
    pub(crate) fn row(&self) -> Option<u64> {
        match *self {
            Item::Row(id, _) | Item::Hash(id, _) | Item::RowKeyDeleted(id) | Item::Missing(id) => {
                Some(id)
            }
            Item::Member(..) | Item::Unset(_) => None,
        }
    }

    pub(crate) fn id(&self) -> u64 {
        match *self {
            Item::Member(id, _) | Item::Unset(id) => id,
            Item::Row(id, _) | Item::Hash(id, _) | Item::RowKeyDeleted(id) | Item::Missing(id) => {
                id
            }
        }
    }
}

/// Items that were read from a key. A large key is read in several parts.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) key: Vec<u8>,
    pub(crate) layout: usize,
    pub(crate) items: Vec<Item>,
    /// First reason why a part of the key was rejected.
    pub(crate) bad: Option<String>,
    /// Whether the key was deleted, so that its former items are unknown.
    pub(crate) is_lost: bool,
    /// Names of hash fields that are not counters of the space.
    pub(crate) foreign: Vec<Vec<u8>>,
}

impl Read {
    pub(crate) fn of(key: Vec<u8>, layout: usize, items: Vec<Item>) -> Read {
        Read { key, layout, items, bad: None, is_lost: false, foreign: Vec::new() }
    }

    /// Records that a part of the key is rejected. Only the first reason is stored.
    pub(crate) fn reject(&mut self, why: String) {
        self.bad.get_or_insert(why);
    }
}
