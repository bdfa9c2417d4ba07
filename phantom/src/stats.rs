//! What an operator, a log and a forecast want to know of a space.

/// One table, as `TM.TABLES` shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct TableStats {
    /// Lowest id of the range.
    pub low: u64,
    /// Highest id of the range (inclusive).
    pub last: u64,
    /// Pairs set, those unset again included.
    pub pairs: u64,
    /// Pairs that had been set when the table was closed; 0 while it is the newest.
    pub early: u64,
    /// Pairs that its first filter holds at the configured rate.
    pub capacity: u64,
    /// The table is, or was, closed at this many pairs, so that late ones fit.
    pub roll_at: u64,
    /// Pairs in the first filter by its capacity, 0 to 1.
    pub fill: f64,
    /// Share of the first filter's bits that are set, 0 to 1.
    pub bits_set: f64,
    /// Filters that were chained because the table was overrun.
    pub extensions: usize,
    /// Pairs unset, held exactly.
    pub revoked: usize,
    /// Rises with every change: a table with the version it had at the last snapshot need not be written again.
    pub version: u64,
    /// Memory of filters and revoked pairs.
    pub bytes: usize,
    /// The error rate that was configured when the table was made.
    pub configured_rate: f64,
    /// The error rate that its pairs give by calculation.
    pub expected_rate: f64,
    /// Share of canaries (pairs that nobody can set) that were answered with yes; of [`TableStats::canaries`].
    pub measured_rate: f64,
    /// Canaries asked for since the table last grew by a sixteenth.
    pub canaries: u64,
}

/// One table's place in the ring: what a log records when the ring changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Lowest id of the range.
    pub low: u64,
    /// Size of the first filter, in pages of 4 KiB.
    pub pages: usize,
}
