//! State of a table rewrite in progress.

use crate::budget::Quota;
use crate::table::Table;
use rolling::Slot;
use std::sync::Arc;

/// A rewrite in progress.
pub(crate) struct Rewrite {
    pub(crate) old: Arc<Slot<Table>>,
    pub(crate) next_bucket: u64,
    pub(crate) reason: RewriteReason,
    /// Source of memory for the new tables.
    pub(crate) quota: Quota,
}

impl Rewrite {
    /// Range of the replaced table.
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.old.low(), self.old.last())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RewriteReason {
    Crowded,
    Oversized,
    OutdatedLayout,
    StaleMarks,
}
