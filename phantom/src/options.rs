//! What a space is made of, and what it answers.

use crate::Error;
use crate::filter::PAGE_BYTES;
use crate::sizing::{RATES, Sizing};

/// The first table of a space is so many times smaller than a grown one: it may close long before
/// what its ids get has come, and each extension that takes the rest costs every check two more
/// lines.
const FIRST_TABLE_PART: usize = 8;

/// What a space is made of. The seed and the first id are part of its data; the rest may be changed
/// at a restart. Tables that are there keep the rate that they were made for until they are built
/// anew (`rebuild`).
#[derive(Clone, Debug)]
pub struct Options {
    /// How many of the pairs that are not set may be answered with yes: 0.0001 is one in ten
    /// thousand. Within [`RATES`].
    pub false_positive_rate: f64,
    /// Pairs that a grown table holds at the rate; at 0.0001 one takes 19.9 bits.
    pub pairs_per_table: u64,
    /// Tables' worth of pairs that are kept in memory; when there are more the oldest table is
    /// recycled, or [spills](Options::spill). At least 2.
    pub max_tables: usize,
    /// The oldest table is not recycled, but waits for the host to write it to disk (`cold`); while
    /// there is no room the newest one goes on, up to the memory limit.
    pub spill: bool,
    /// Of a space that spills: tables' worth of pairs that are kept, in memory and elsewhere
    /// together. When there are more the oldest table is recycled. At least 2; 0: all are kept.
    pub keep_tables: usize,
    /// Unset pairs held exactly, per table; 26 bytes each when they are many.
    pub max_revoked: usize,
    /// Pairs of ids far ahead of the ring that are held exactly, 26 bytes each, or some 190 if each
    /// has an id of its own, and wait for others that lie close to them. A sixteenth of them, or
    /// 4,096, get tables of their own if they lie together; more than this if they do not. At
    /// least 1: a space begins with what is there.
    pub max_aside: usize,
    /// Ids of which all pairs were unset at once: 32 to 64 bytes each. They go with their tables.
    pub max_forgotten: usize,
    /// Ids further than this above the highest normal one are refused. `None`: they are kept aside.
    pub max_ahead: Option<u64>,
    /// The secret key of the hash, stored with the space and replicated: a client that knows it can
    /// choose pairs that collide.
    pub seed: u64,
    /// The horizon of a new space: ids below it are answered as those of recycled tables are. Part
    /// of the space's data, as the rate is.
    pub first_id: u64,
    /// Memory for filters, in bytes. `None`: twice what `max_tables` full tables take. At the limit
    /// tables that are overrun are not extended any more ([`Error::Full`]); rolling goes on.
    /// (Revoked pairs and pairs aside have limits of their own.)
    pub memory_limit_bytes: Option<u64>,
}

/// The most that [`Options::max_tables`] may be.
pub const MOST_TABLES: usize = 1 << 16;

impl Default for Options {
    fn default() -> Options {
        Options {
            false_positive_rate: 0.0001,
            pairs_per_table: 16 << 20,
            max_tables: 16,
            spill: false,
            keep_tables: 0,
            max_revoked: 1 << 20,
            max_aside: 1 << 16,
            max_forgotten: 1 << 18,
            max_ahead: None,
            seed: 0,
            first_id: 0,
            memory_limit_bytes: None,
        }
    }
}

impl Options {
    /// Bytes of memory that filters may take: as given, or what follows from the tables. The sizing
    /// is worked out anew, some 0.2 ms.
    pub fn filter_bytes_limit(&self) -> u64 {
        let full = || {
            let pages = Sizing::in_chain(self.false_positive_rate, 0).pages(self.pairs_per_table);
            (pages as u64).saturating_mul(PAGE_BYTES as u64).saturating_mul(self.max_tables as u64)
        };
        self.memory_limit_bytes.unwrap_or_else(|| full().saturating_mul(2))
    }

    /// Pages of the first table of a space.
    pub(crate) fn first_pages(&self) -> usize {
        let grown = Sizing::in_chain(self.false_positive_rate, 0).pages(self.pairs_per_table);
        grown.div_ceil(FIRST_TABLE_PART)
    }

    /// Bytes of memory that the first table of a space takes.
    pub fn first_table_bytes(&self) -> Result<u64, Error> {
        self.check()?;
        Ok((self.first_pages() as u64).saturating_mul(PAGE_BYTES as u64))
    }

    /// Refuses what cannot work.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !RATES.contains(&self.false_positive_rate) {
            return Err(Error::BadOption(
                "false_positive_rate must lie between 0.0000001 and 0.25",
            ));
        }
        if self.pairs_per_table == 0 || self.pairs_per_table > 1 << 40 {
            return Err(Error::BadOption("pairs_per_table must lie between 1 and 2^40"));
        }
        if !(2..=MOST_TABLES).contains(&self.max_tables) {
            return Err(Error::BadOption("max_tables must lie between 2 and 65536"));
        }
        if self.keep_tables == 1 {
            return Err(Error::BadOption("keep_tables must be 0 or at least 2"));
        }
        if self.max_aside == 0 {
            return Err(Error::BadOption("max_aside must be at least 1"));
        }
        Ok(())
    }
}

/// What is known of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is not set, for certain.
    No,
    /// It is set; but one in 1 / false-positive rate of those that are not is answered like this.
    Yes,
    /// The id lies below the horizon.
    Unknown,
}

/// What a write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The pair is now what it was to become, and was not before.
    Changed,
    /// It was already, and nothing was done.
    Unchanged,
    /// The id lies below the horizon, and nothing was done.
    Unknown,
}
