//! Progress of a rebuild of filters from a ledger (`tiering/rebuild.rs`).

use ledger::OwnedMember;
use parking_lot::Mutex;
use phantom::Rebuild;
use std::sync::atomic::{AtomicU64, AtomicUsize};

/// The rebuild of a space's tables.
#[derive(Default)]
pub struct Rebuilds {
    pub(crate) now: Mutex<Option<Walk>>,
    /// Number of tables to rebuild at the last step, the current one included.
    pub left: AtomicUsize,
    /// Number of rebuilt tables.
    pub tables: AtomicU64,
    /// Number of pairs written to new filters.
    pub pairs: AtomicU64,
}

/// Rebuild of one table, and the position in its list of pairs.
pub(crate) struct Walk {
    pub(crate) rebuild: Rebuild,
    /// Last pair that was read.
    pub(crate) after: Option<(u64, OwnedMember)>,
}

impl Walk {
    pub(crate) fn new(rebuild: Rebuild) -> Walk {
        Walk { rebuild, after: None }
    }
}
