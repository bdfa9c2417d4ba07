//! Interface between a space and the store of its cold rows.

use rolling::Unreadable;

/// Store of cold rows. All methods may be called from any thread.
pub trait ColdBackend: Send + Sync {
    /// Reads a row into `out`, by position, with missing values as 0. Returns false if there is no
    /// such row. May read the disk.
    fn get(&self, id: u64, out: &mut [i64]) -> Result<bool, Unreadable>;

    /// Reads a row from memory only; the caller holds locks. Returns `None` if the row must be
    /// [fetched](ColdBackend::fetch) first.
    fn at_hand(&self, id: u64, out: &mut [i64]) -> Option<bool>;

    /// Reads the row from the disk, so that this thread's next [`ColdBackend::at_hand`] succeeds.
    fn fetch(&self, id: u64) -> Result<(), Unreadable>;

    /// Whether a file begins or ends inside `low..=last`. A table across that range would have to
    /// be merged with several files, so the space does not create such a table.
    fn divides(&self, low: u64, last: u64) -> bool {
        let _ = (low, last);
        false
    }
}

/// Result of a cold lookup for a writer.
pub(crate) enum ColdLookup {
    Absent,
    Found(Box<[i64; 64]>),
    /// The caller must release its locks and fetch the row.
    ToFetch,
}
