//! The rewrite of a table that is under way, and why it is.

use crate::budget::Quota;
use crate::table::Table;
use rolling::Slot;
use std::sync::Arc;

/// A rewrite under way.
pub(crate) struct Rewrite {
    pub(crate) old: Arc<Slot<Table>>,
    pub(crate) next_bucket: u64,
    pub(crate) reason: Reason,
    /// What the new tables take their memory from.
    pub(crate) quota: Quota,
}

impl Rewrite {
    /// The range of the table that it replaces.
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.old.low(), self.old.last())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Crowded,
    Loose,
    Dated,
    Worn,
}
