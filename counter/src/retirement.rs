//! How far a space has come with retiring its oldest rows (`retire`).

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// See the top of the file.
#[derive(Default)]
pub(crate) struct Retirement {
    /// Ids below it have no rows.
    pub(crate) line: AtomicU64,
    /// The line for which the memory has been given back.
    pub(crate) through: AtomicU64,
    /// Rows that are to be deleted from the table that the line cuts.
    pub(crate) rows: Mutex<Vec<u64>>,
}

impl Retirement {
    /// There may be rows below the line again: a bulk load has come.
    pub(crate) fn begin_again(&self) {
        self.through.store(0, Relaxed);
    }
}
