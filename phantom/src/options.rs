//! Options of a space, and the results of its reads and writes.

use crate::Error;
use crate::filter::PAGE_BYTES;
use crate::sizing::{RATES, Sizing};

/// Ratio of a full-size table to the first table of a space. If the first table closes too early,
/// its ids overflow into extensions, and each extension costs every lookup two more cache lines.
const FIRST_TABLE_PART: usize = 8;

/// Options of a space. The seed and the first id are part of the stored data. All other options may
/// change at a restart; existing tables keep their false-positive rate until a rebuild.
#[derive(Clone, Debug)]
pub struct Options {
    /// Share of unset pairs that a lookup reports as set: 0.0001 is one in ten thousand. Must be
    /// within [`RATES`].
    pub false_positive_rate: f64,
    /// Number of pairs in a full-size table at the configured rate. A pair takes 19.9 bits at
    /// 0.0001.
    pub pairs_per_table: u64,
    /// Number of full-size tables kept in memory. Beyond this number the oldest table is recycled,
    /// or [spilled](Options::spill). The minimum is 2.
    pub max_tables: usize,
    /// Whether the host writes the oldest table to disk (`cold`) instead of recycling it. While the
    /// host has not freed memory, the newest table grows up to the memory limit.
    pub spill: bool,
    /// Number of full-size tables kept in memory and on disk together, if the space spills. Beyond
    /// this number the oldest table is recycled. The minimum is 2; 0 means no limit.
    pub keep_tables: usize,
    /// Maximum number of deleted pairs per table. Large sets take 26 bytes per pair.
    pub max_unset: usize,
    /// Number of outlier pairs (pairs of ids far above all tables) that the space always accepts
    /// and stores exactly. A pair takes 26 bytes, or about 190 if it is the only pair of its id.
    /// Neighbouring ids get their own table at 1/16 of this number of pairs, or at 4,096 if that is
    /// less. Above this number, scattered ids get tables as well. The minimum is 1, because every
    /// pair is an outlier until the space has its first table.
    pub max_outliers: usize,
    /// Maximum number of forgotten ids. Each takes 32 to 64 bytes until its table is recycled.
    pub max_forgotten: usize,
    /// Maximum distance of a new id above the highest regular id. `None` accepts any id and stores
    /// its pairs as outliers.
    pub max_ahead: Option<u64>,
    /// Secret hash key, stored with the space and replicated. A client that knows it can construct
    /// colliding pairs.
    pub seed: u64,
    /// Horizon of a new space. Lower ids get the same answer as ids of recycled tables. The value
    /// is part of the stored data.
    pub first_id: u64,
    /// Memory limit for filters, in bytes; `None` means twice the size of `max_tables` full tables.
    /// At the limit tables get no more extensions ([`Error::Full`]), but the ring still creates new
    /// tables. Deleted pairs and outliers have separate limits.
    pub memory_limit_bytes: Option<u64>,
}

/// Upper bound of [`Options::max_tables`].
pub const MAX_TABLES: usize = 1 << 16;

impl Default for Options {
    fn default() -> Options {
        Options {
            false_positive_rate: 0.0001,
            pairs_per_table: 16 << 20,
            max_tables: 16,
            spill: false,
            keep_tables: 0,
            max_unset: 1 << 20,
            max_outliers: 1 << 16,
            max_forgotten: 1 << 18,
            max_ahead: None,
            seed: 0,
            first_id: 0,
            memory_limit_bytes: None,
        }
    }
}

impl Options {
    /// Returns the memory limit for filters in bytes: the configured limit, or the default.
    /// Computing the default takes about 0.2 ms.
    pub fn filter_bytes_limit(&self) -> u64 {
        let full = || {
            let pages = Sizing::in_chain(self.false_positive_rate, 0).pages(self.pairs_per_table);
            (pages as u64).saturating_mul(PAGE_BYTES as u64).saturating_mul(self.max_tables as u64)
        };
        self.memory_limit_bytes.unwrap_or_else(|| full().saturating_mul(2))
    }

    pub(crate) fn first_pages(&self) -> usize {
        let grown = Sizing::in_chain(self.false_positive_rate, 0).pages(self.pairs_per_table);
        grown.div_ceil(FIRST_TABLE_PART)
    }

    /// Returns the size of the first table of a space, in bytes.
    pub fn first_table_bytes(&self) -> Result<u64, Error> {
        self.check()?;
        Ok((self.first_pages() as u64).saturating_mul(PAGE_BYTES as u64))
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if !RATES.contains(&self.false_positive_rate) {
            return Err(Error::BadOption("false_positive_rate must be between 0.0000001 and 0.25"));
        }
        if self.pairs_per_table == 0 || self.pairs_per_table > 1 << 40 {
            return Err(Error::BadOption("pairs_per_table must be between 1 and 2^40"));
        }
        if !(2..=MAX_TABLES).contains(&self.max_tables) {
            return Err(Error::BadOption("max_tables must be between 2 and 65536"));
        }
        if self.keep_tables == 1 {
            return Err(Error::BadOption("keep_tables must be 0 or at least 2"));
        }
        if self.max_outliers == 0 {
            return Err(Error::BadOption("max_outliers must be at least 1"));
        }
        Ok(())
    }
}

/// Result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The pair is not set.
    No,
    /// The pair is set, except for false positives at the configured rate.
    Yes,
    /// The id is below the horizon.
    Unknown,
}

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The write changed the state of the pair.
    Changed,
    /// The pair already had the requested state.
    Unchanged,
    /// The id is below the horizon, and the write changed nothing.
    Unknown,
}
