//! Where rows that are not in memory are: what a space asks for them, and what it is told.

use rolling::Unreadable;

/// Keeps the rows below the line. All methods may be called from any thread.
pub trait ColdBackend: Send + Sync {
    /// Fills `out` with the row's values by position (missing ones with 0), if there is such a row.
    /// May take as long as a read of the disk.
    fn get(&self, id: u64, out: &mut [i64]) -> Result<bool, Unreadable>;

    /// The same for a writer that holds locks: what is in memory, and not outdated. `None`: it must
    /// be [fetched](ColdBackend::fetch) first.
    fn at_hand(&self, id: u64, out: &mut [i64]) -> Option<bool>;

    /// Reads the row, so that this thread's next [`ColdBackend::at_hand`] has it.
    fn fetch(&self, id: u64) -> Result<(), Unreadable>;

    /// Whether one of its files begins or ends inside `low..=last`: then no table is to cover that
    /// range, as it could only be merged with the files on both sides.
    fn divides(&self, low: u64, last: u64) -> bool {
        let _ = (low, last);
        false
    }
}

/// What a writer finds below the line.
pub(crate) enum BelowRow {
    Absent,
    Found(Box<[i64; 64]>),
    /// It must be read first, without locks.
    ToFetch,
}
