//! Cache of cold rows and of lookups of cold pairs, and the rows pinned for the current request
//! batch.
//!
//! The cache stores rows rather than blocks, because cold requests are spread over many old posts:
//! of the 600 rows in a cached block only one would be used. A row's key contains the identity of
//! its file. A merge writes a new file, so entries never become stale.
//!
//! The cache uses the crate quick_cache, which takes about 12 ns per hit and limits the cache by
//! weight. quick_cache is scan-resistant: rows that are read only once do not evict frequently read
//! rows.
//!
//! A pinned row stays available to its thread until the batch ends, even if the cache evicts it.

use crate::cold::damage;
use crate::cold::key_hash::KeyHash;
use quick_cache::OptionsBuilder;
use quick_cache::sync::{Cache, DefaultLifecycle};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Rows pinned for a request batch.
pub type Pins = HashMap<Key, Read, KeyHash>;
/// Cache key: the identity of the file, and the row's id or the pair's hash.
pub(crate) type Key = (u64, u128);
/// Values of a row. Up to [`INLINE`] values are stored inline, so that the cache counts their
/// bytes.
pub(crate) type Values = SmallVec<[i64; INLINE]>;
/// Result of a lookup in a file: the values of a row, or `None` if the row does not exist. For a
/// pair that is set the list of values is empty.
pub(crate) type Row = Option<Values>;
/// A row, or the error message of the read.
pub(crate) type Read = Result<Row, Arc<str>>;

#[derive(Clone)]
pub(super) struct Weight;

const INLINE: usize = 4;
/// Accounted size of a cached row in bytes: its entry, and its share of the ghost entries and the
/// hash table.
const ROW_BYTES: u64 = 152;
/// Number of rows by which the cache may exceed its capacity during eviction.
const MAX_EXCESS_ROWS: usize = 1024;
/// Maximum number of bytes reserved when the cache is first used. A larger cache grows on demand.
const MAX_RESERVED_BYTES: u64 = 1 << 30;
/// Ghost entries per cached row. A ghost entry stores the key of an evicted row. If the row is read
/// again, it enters the hot queue.
const GHOSTS_PER_ROW: f64 = 0.2;

impl quick_cache::Weighter<Key, Row> for Weight {
    fn weight(&self, _: &Key, row: &Row) -> u64 {
        let apart = row.as_ref().filter(|values| values.spilled());
        ROW_BYTES + apart.map_or(0, |values| 8 * values.capacity() as u64 + 16)
    }
}

/// Counters of cold reads, spills and scrubs since startup.
#[derive(Default)]
pub struct ColdStats {
    /// Blocks read.
    pub reads: AtomicU64,
    /// Blocks read synchronously by a worker.
    pub reads_in_place: AtomicU64,
    /// Total latency of reads in nanoseconds.
    pub read_ns: AtomicU64,
    /// Histogram of read latencies: bucket n counts reads shorter than 2^n microseconds that are
    /// not in a lower bucket.
    pub(crate) slower: [AtomicU64; 24],
    /// Failed reads other than checksum errors.
    pub errors: AtomicU64,
    /// Blocks with a wrong checksum.
    pub corrupt: AtomicU64,
    /// Cold rows found in the cache.
    pub hits: AtomicU64,
    /// Cold rows not found in the cache.
    pub misses: AtomicU64,
    /// Tables written to disk.
    pub spilled_tables: AtomicU64,
    /// Rows moved from memory to disk.
    pub spilled_rows: AtomicU64,
    /// Pairs moved from memory to disk.
    pub spilled_pairs: AtomicU64,
    /// Merges of a file with later changes.
    pub merges: AtomicU64,
    /// Bytes of new cold files.
    pub written_bytes: AtomicU64,
    /// Failed spills and merges. Each failed operation is retried.
    pub failures: AtomicU64,
    /// Bytes read by the scrubber.
    pub scrubbed_bytes: AtomicU64,
    /// Bytes left in the current scrub pass; 0 between passes.
    pub scrub_left_bytes: AtomicU64,
    /// Finished scrub passes.
    pub scrub_passes: AtomicU64,
    /// Unix time at which the last scrub pass finished; 0 if none has since startup.
    pub scrub_last_s: AtomicU64,
}

impl ColdStats {
    pub(super) fn record_read(&self, took: Duration) {
        self.reads.fetch_add(1, Relaxed);
        self.read_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let class = (64 - us.leading_zeros() as usize).min(self.slower.len() - 1);
        self.slower[class].fetch_add(1, Relaxed);
    }

    /// Returns the histogram of read latencies. Bucket n counts reads shorter than 2^n microseconds
    /// that are not in a lower bucket. The last bucket also counts all longer reads.
    pub fn reads_by_us(&self) -> Vec<u64> {
        self.slower.iter().map(|n| n.load(Relaxed)).collect()
    }

    /// Upper bound for the quantile `share` (0 to 1) of read latencies: a power of two, in
    /// microseconds.
    pub fn read_us(&self, share: f64) -> u64 {
        let counts = self.reads_by_us();
        let wanted = (counts.iter().sum::<u64>() as f64 * share).ceil() as u64;
        let mut below = 0;
        let class = counts.iter().position(|n| {
            below += n;
            below >= wanted.max(1)
        });
        class.map_or(0, |class| 1 << class)
    }
}

/// Cached rows, counters of cold reads and known damaged blocks of all spaces.
pub struct ColdCache {
    pub(super) cache: Cache<Key, Row, Weight, KeyHash>,
    /// Counters of cold reads and spills.
    pub figures: ColdStats,
    /// Known damaged blocks.
    pub damaged: damage::Damaged,
    any: AtomicBool,
}

impl ColdCache {
    pub(super) fn new(cache_bytes: u64) -> ColdCache {
        let items = (cache_bytes / ROW_BYTES).max(16) as usize;
        let mut options = OptionsBuilder::new();
        options
            .estimated_items_capacity(items)
            .weight_capacity(cache_bytes)
            .ghost_allocation(GHOSTS_PER_ROW);
        // `build` fails only if a capacity is missing.
        let options = options.build().expect("both capacities are set");
        let cache =
            Cache::with_options(options, Weight, KeyHash::default(), DefaultLifecycle::default());
        ColdCache {
            cache,
            figures: ColdStats::default(),
            damaged: damage::Damaged::default(),
            any: AtomicBool::new(false),
        }
    }

    /// Whether any row or flag of any space may be on disk. Commands check this several times, so
    /// it is a single load. The flag is set before the first row is written to disk, and never
    /// cleared.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Marks the cold tier as in use. Call this function before the first row or flag is written to
    /// disk.
    pub(crate) fn begins(&self) {
        if !self.any.swap(true, Relaxed) {
            // Reserve memory, because repeated growth would fragment the heap. Untouched pages are
            // not resident.
            let bytes = self.cache.capacity().min(MAX_RESERVED_BYTES);
            self.cache.reserve((bytes / ROW_BYTES) as usize + MAX_EXCESS_ROWS);
        }
    }

    pub(crate) fn set_cache_bytes(&self, bytes: u64) {
        if self.cache.capacity() != bytes {
            self.cache.set_capacity(bytes);
        }
    }

    /// Memory use of cached rows and the capacity, in bytes.
    pub fn cache_bytes(&self) -> (u64, u64) {
        (self.cache.weight(), self.cache.capacity())
    }

    pub(super) fn at_hand(&self, key: &Key) -> Option<Read> {
        pinned(key).or_else(|| self.cache.get(key).map(Ok))
    }

    /// Whether the row is pinned or cached. Pins a row found in the cache, and counts the hit or
    /// miss.
    pub(super) fn is_at_hand(&self, key: Key) -> bool {
        if PINS.with_borrow(|pins| pins.contains_key(&key)) {
            return true;
        }
        let Some(row) = self.cache.get(&key) else {
            self.figures.misses.fetch_add(1, Relaxed);
            return false;
        };
        self.figures.hits.fetch_add(1, Relaxed);
        PINS.with_borrow_mut(|pins| pins.insert(key, Ok(row)));
        true
    }

    /// Counts and logs a failed read. Logs each damaged block once.
    pub(super) fn record_failure(&self, error: &store::Error) {
        let place = damage::damage_location(error);
        let kind = if place.is_some() { &self.figures.corrupt } else { &self.figures.errors };
        kind.fetch_add(1, Relaxed);
        match place {
            Some((file, offset)) if !self.damaged.note(&file, offset) => {}
            Some(_) => tracing::error!("{error}. {DAMAGE_CONSEQUENCE} {}", error.advice()),
            None => tracing::error!("cannot read a cold row: {error}. {}", error.advice()),
        }
    }
}

/// Explanation appended to the log message about a damaged block.
pub(crate) const DAMAGE_CONSEQUENCE: &str = "Requests for data in this block fail. Other blocks \
    are still served. The file is excluded from merges so that none of them is lost.";

thread_local! {
    pub(super) static PINS: RefCell<Pins> = RefCell::default();
}

/// Replaces the pins of this thread.
pub fn pin(pins: Pins) {
    PINS.set(pins);
}

/// Removes and returns the pins of this thread.
pub fn unpin() -> Pins {
    PINS.take()
}

pub(super) fn pinned(key: &Key) -> Option<Read> {
    PINS.with_borrow(|pins| pins.get(key).cloned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The cache's tables and ghost entries count towards the configured bytes.
    #[test]
    fn the_cache_takes_no_more_than_it_may() {
        const BYTES: u64 = 16 << 20;
        let cold = ColdCache::new(BYTES);
        cold.begins();
        let map = cold.cache.memory_used().map;
        let row = Values::from_slice(&[1, 2, 3, 4]);
        for id in 0..BYTES / ROW_BYTES * 3 {
            cold.cache.insert((7, u128::from(id)), Some(row.clone()));
            // Read rows again to fill the hot queue and the ghost entries.
            cold.cache.get(&(7, u128::from(id / 2)));
        }
        let used = cold.cache.memory_used();
        assert!(
            cold.cache.weight() > BYTES / 10 * 9,
            "{} of {BYTES} are used",
            cold.cache.weight()
        );
        assert_eq!(used.map, map, "the map has not grown");
        let taken = (used.entries + used.map) as u64;
        assert!(taken <= BYTES && taken > BYTES / 2, "{taken} of {BYTES}");
    }

    /// Skewed requests: 95 % of them are for 1 % of the ids. The set of popular ids drifts.
    struct Traffic {
        random: fastrand::Rng,
        asked: u64,
    }

    impl Traffic {
        const IDS: f64 = 2e6;
        const EXPONENT: f64 = 1.27;
        /// Number of requests after which the next id becomes the most popular id.
        const DRIFT: u64 = 50;

        /// Samples a bounded Pareto distribution by inversion.
        fn next(&mut self) -> u64 {
            self.asked += 1;
            let power = 1.0 - Self::EXPONENT;
            let rank = (1.0 + self.random.f64() * (Self::IDS.powf(power) - 1.0)).powf(1.0 / power);
            let place = self.asked / Self::DRIFT + rank as u64;
            place.wrapping_mul(0x9E37_79B9_7F4A_7C15)
        }
    }

    /// Cache of the most frequently requested rows: the optimal policy for traffic that does not
    /// change.
    #[derive(Default)]
    struct MostUsed {
        times: std::collections::HashMap<u64, u64>,
        kept: BTreeSet<(u64, u64)>,
    }

    impl MostUsed {
        fn ask(&mut self, id: u64, most: usize) -> bool {
            let times = self.times.entry(id).or_default();
            let hit = self.kept.remove(&(*times, id));
            *times += 1;
            self.kept.insert((*times, id));
            if self.kept.len() > most {
                self.kept.pop_first();
            }
            hit
        }
    }

    /// With drifting traffic the hit rate is close to that of [`MostUsed`] with the same memory. A
    /// scan of all rows does not evict popular rows.
    #[test]
    fn rows_that_are_asked_for_often_stay() {
        const ROWS: u64 = 20_000;
        let cold = ColdCache::new(ROWS * ROW_BYTES);
        cold.begins();
        let row = Values::from_slice(&[1, 2, 3, 4]);
        let ask = |id: u64| {
            let key = (7, u128::from(id));
            let hit = cold.is_at_hand(key);
            unpin();
            if !hit {
                cold.cache.insert(key, Some(row.clone()));
            }
            hit
        };
        let mut traffic = Traffic { random: fastrand::Rng::with_seed(32), asked: 0 };
        let mut ideal = MostUsed::default();
        let mut count = |requests: u64, scan: &mut dyn FnMut()| {
            let mut hits = [0.0; 2];
            for _ in 0..requests {
                let id = traffic.next();
                hits[0] += f64::from(ask(id)) / requests as f64;
                hits[1] += f64::from(ideal.ask(id, ROWS as usize)) / requests as f64;
                scan();
            }
            hits
        };
        count(200_000, &mut || ());
        let [ours, best] = count(600_000, &mut || ());
        println!("{ours:.4} of rows cached, {best:.4} by frequency alone");
        assert!(ours > best - 0.03, "{ours} {best}");
        // Each request also reads one new row of the scan.
        let mut scanned = 1 << 60;
        let [beside_scan, _] = count(600_000, &mut || {
            scanned += 1;
            ask(scanned);
        });
        println!("{beside_scan:.4} during a scan");
        assert!(beside_scan > ours - 0.08, "{beside_scan} {ours}");
    }
}
