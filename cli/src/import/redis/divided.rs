//! Rows that are divided: of which a key with a single counter was read. What a hash lacks is 0 in
//! other rows; in these it may be in a key of its own, which a later hash must not take away.
//!
//! Before the first such key of a row is read, none of its counters is here, so the order in which
//! SCAN names keys does not matter. Takes some 20 bytes a divided row.

use super::items::Item;
use super::layout::Layout;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// See the top of the file.
#[derive(Default)]
pub(super) struct Divided {
    /// Ids by space.
    ids: HashMap<String, HashSet<u64>>,
    /// What an earlier attempt has read is not known: any row may be divided.
    may_be_any: bool,
}

impl Divided {
    /// None is known yet; an earlier attempt may have met some.
    pub(super) fn new(may_be_any: bool) -> Divided {
        Divided { ids: HashMap::new(), may_be_any }
    }

    /// Notes what a key of this layout holds.
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

    /// The counters that an item says, those that a hash lacks among them.
    pub(super) fn values<'i>(&self, layout: &Layout, item: &'i Item) -> Cow<'i, [(usize, i64)]> {
        match item {
            Item::Row(_, values) => Cow::Borrowed(values),
            Item::Hash(id, values) => {
                Cow::Owned(layout.with_lacking(values, self.has(&layout.space, *id)))
            }
            Item::Gone(_) | Item::Missing(_) | Item::Member(..) | Item::Unset(_) => {
                Cow::Borrowed(&[])
            }
        }
    }

    /// Whether other keys may have counters of the row.
    pub(super) fn has(&self, space: &str, id: u64) -> bool {
        self.may_be_any || self.ids.get(space).is_some_and(|ids| ids.contains(&id))
    }
}
