//! Rows with counters in several keys. A counter that is missing in a hash is normally 0. In a
//! *divided* row, another key may hold it, and reading the hash later must not reset it.
//!
//! The order of keys in SCAN does not matter. The import sets none of these counters before it
//! reads the first single-counter key of the row. A divided row takes about 20 bytes.

use super::items::Item;
use super::layout::Layout;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

#[derive(Default)]
pub(super) struct DividedRows {
    /// Ids by space.
    ids: HashMap<String, HashSet<u64>>,
    /// Whether any row may be divided. True if an earlier attempt of the import read rows, because
    /// it did not save which of them are divided.
    may_be_any: bool,
}

impl DividedRows {
    pub(super) fn new(may_be_any: bool) -> DividedRows {
        DividedRows { ids: HashMap::new(), may_be_any }
    }

    pub(super) fn note(&mut self, layout: &Layout, items: &[Item]) {
        if !layout.is_cell() {
            return;
        }
        let rows = items.iter().filter_map(Item::row);
        match self.ids.get_mut(&layout.space) {
            Some(ids) => ids.extend(rows),
            None => _ = self.ids.insert(layout.space.clone(), rows.collect()),
        }
    }

    /// Returns the counters of an item, including the zeros of counters that are missing in a hash.
    pub(super) fn values<'i>(&self, layout: &Layout, item: &'i Item) -> Cow<'i, [(usize, i64)]> {
        match item {
            Item::Row(_, values) => Cow::Borrowed(values),
            Item::Hash(id, values) => {
                Cow::Owned(layout.with_zeros_for_lacking(values, self.has(&layout.space, *id)))
            }
            Item::RowKeyDeleted(_) | Item::Missing(_) | Item::Member(..) | Item::Unset(_) => {
                Cow::Borrowed(&[])
            }
        }
    }

    /// Returns whether other keys may hold counters of the row.
    pub(super) fn has(&self, space: &str, id: u64) -> bool {
        self.may_be_any || self.ids.get(space).is_some_and(|ids| ids.contains(&id))
    }
}
