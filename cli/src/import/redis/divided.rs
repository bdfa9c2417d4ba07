//! Tracks *divided* rows, whose counters are stored in several keys. A counter that is missing in a
//! hash is normally 0. In a divided row, another key may hold the counter, so reading the hash must
//! not reset the counter to 0.
//!
//! The result does not depend on the order in which SCAN returns the keys: until the first
//! single-counter key of a row is read, a counter that the hash sets to 0 has no value that could
//! be lost. Each divided row uses about 20 bytes of memory.

use super::items::Item;
use super::layout::Layout;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

#[derive(Default)]
pub(super) struct DividedRows {
    /// Ids by space.
    ids: HashMap<String, HashSet<u64>>,
    /// Whether every row must be treated as divided. True if this import resumes an earlier attempt
    /// that has already read rows. The state file does not record which of those rows are divided.
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

    /// Returns the counters of an item. A counter that is missing in a hash is 0 unless the row is
    /// divided.
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
