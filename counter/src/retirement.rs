//! Progress of retirement in a space: see `retire`.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Default)]
pub(crate) struct Retirement {
    /// The horizon: ids below it have no rows.
    pub(crate) line: AtomicU64,
    /// Horizon for which all memory has been freed.
    pub(crate) through: AtomicU64,
    /// Rows still to be deleted from the table that contains the horizon.
    pub(crate) rows: Mutex<Vec<u64>>,
}

impl Retirement {
    /// Restarts the cleanup, because a bulk load may have added rows below the horizon.
    pub(crate) fn restart_cleanup(&self) {
        self.through.store(0, Relaxed);
    }
}
