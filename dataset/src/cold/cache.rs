//! Cache of cold rows and pair answers, and the pins of the current turn.
//!
//! The cache holds rows, not blocks: cold traffic is spread over old posts, and a block would bring
//! six hundred rows for one. A row's key contains its file, so no entry is ever stale: after a
//! merge the same id has another key. quick_cache: a hit takes some 12 ns, the cache is bounded by
//! weight, and a single scan of many rows does not evict rows that are read repeatedly.
//!
//! A pin keeps a row available to the thread for one turn, whatever the cache evicts.

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

/// Pinned rows of one turn.
pub type Pins = HashMap<Key, Read, KeyHash>;
/// Key of a row: identity of its file, and its id. Of a pair: the same, and its hash.
pub(crate) type Key = (u64, u128);
/// Values of a row. Up to [`INLINE`] values need no heap memory, so that the cache can count its
/// bytes.
pub(crate) type Values = SmallVec<[i64; INLINE]>;
/// Content of a file for an id: its values, or `None` if there is no such row. A pair has no
/// values; it is set or `None`.
pub(crate) type Row = Option<Values>;
/// A row, or why it cannot be read.
pub(crate) type Read = Result<Row, Arc<str>>;

#[derive(Clone)]
pub(super) struct Weight;

const INLINE: usize = 4;
/// Weight of a cached row: its entry, and its share of ghost entries and of the table.
const ROW_BYTES: u64 = 152;
/// Rows that the cache holds beyond its capacity while it evicts others.
const SLACK: usize = 1024;
/// Bytes of the cache that are reserved at once. A larger cache grows on demand.
const SET_ASIDE: u64 = 1 << 30;
/// Ghost entries per cached row. They remember evicted rows, so that rows that come back stay.
const GHOSTS: f64 = 0.2;

impl quick_cache::Weighter<Key, Row> for Weight {
    fn weight(&self, _: &Key, row: &Row) -> u64 {
        let apart = row.as_ref().filter(|values| values.spilled());
        ROW_BYTES + apart.map_or(0, |values| 8 * values.capacity() as u64 + 16)
    }
}

/// Counters of cold reads, spills and scrubs since the start.
#[derive(Default)]
pub struct Figures {
    /// Blocks read.
    pub reads: AtomicU64,
    /// Blocks read in place by a worker.
    pub reads_in_place: AtomicU64,
    /// Total time from the request to the row, in nanoseconds.
    pub read_ns: AtomicU64,
    /// Number of reads shorter than 2^n microseconds.
    pub(crate) slower: [AtomicU64; 24],
    /// Reads that the disk refused.
    pub errors: AtomicU64,
    /// Blocks with a wrong checksum.
    pub corrupt: AtomicU64,
    /// Cold rows found in the cache.
    pub hits: AtomicU64,
    /// Cold rows not found in the cache.
    pub misses: AtomicU64,
    /// Tables written to disk.
    pub spilled_tables: AtomicU64,
    /// Rows that left memory.
    pub spilled_rows: AtomicU64,
    /// Pairs that left memory.
    pub spilled_pairs: AtomicU64,
    /// Files merged with later changes.
    pub merges: AtomicU64,
    /// Bytes of new cold files.
    pub written_bytes: AtomicU64,
    /// Failed spills and merges, each retried.
    pub failures: AtomicU64,
    /// Bytes that the scrubber has read.
    pub scrubbed_bytes: AtomicU64,
    /// Bytes left in the current scrub pass; 0 between passes.
    pub scrub_left_bytes: AtomicU64,
    /// Finished scrub passes.
    pub scrub_passes: AtomicU64,
    /// Unix time at which the last scrub pass finished; 0 if none has since the start.
    pub scrub_last_s: AtomicU64,
}

impl Figures {
    pub(super) fn note_read(&self, took: Duration) {
        self.reads.fetch_add(1, Relaxed);
        self.read_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let class = (64 - us.leading_zeros() as usize).min(self.slower.len() - 1);
        self.slower[class].fetch_add(1, Relaxed);
    }

    /// Number of reads shorter than 2^n microseconds; the last class holds all others.
    pub fn reads_by_us(&self) -> Vec<u64> {
        self.slower.iter().map(|n| n.load(Relaxed)).collect()
    }

    /// Upper bound of the given quantile of read times, in microseconds: a power of two.
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

/// Cached rows, counters of cold reads and known damage of all spaces.
pub struct ColdCache {
    pub(super) cache: Cache<Key, Row, Weight, KeyHash>,
    /// Counters of cold reads and spills.
    pub figures: Figures,
    /// Blocks that are known to be damaged.
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
            .ghost_allocation(GHOSTS);
        // Only a missing number is an error.
        let options = options.build().expect("both capacities are given");
        let cache =
            Cache::with_options(options, Weight, KeyHash::default(), DefaultLifecycle::default());
        ColdCache {
            cache,
            figures: Figures::default(),
            damaged: damage::Damaged::default(),
            any: AtomicBool::new(false),
        }
    }

    /// Whether any row or flag of any space may be on disk. Checked several times per command, so
    /// it is one load. It never returns to false, and is set before a thread can learn of such a
    /// row.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Called before the first row or flag goes to disk.
    pub(crate) fn begins(&self) {
        if !self.any.swap(true, Relaxed) {
            // Growing step by step would leave holes of half its size in the heap. Pages without
            // rows are not resident.
            let bytes = self.cache.capacity().min(SET_ASIDE);
            self.cache.reserve((bytes / ROW_BYTES) as usize + SLACK);
        }
    }

    /// Changes the capacity, and evicts rows beyond it.
    pub(crate) fn set_cache_bytes(&self, bytes: u64) {
        if self.cache.capacity() != bytes {
            self.cache.set_capacity(bytes);
        }
    }

    /// Bytes of the cached rows, and the capacity.
    pub fn cache_bytes(&self) -> (u64, u64) {
        (self.cache.weight(), self.cache.capacity())
    }

    /// Returns the row if it is pinned or cached.
    pub(super) fn at_hand(&self, key: &Key) -> Option<Read> {
        pinned(key).or_else(|| self.cache.get(key).map(Ok))
    }

    /// Whether the row is pinned or cached. Pins a cached row.
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
    pub(super) fn note_failure(&self, error: &store::Error) {
        let place = damage::place_of(error);
        let kind = if place.is_some() { &self.figures.corrupt } else { &self.figures.errors };
        kind.fetch_add(1, Relaxed);
        match place {
            Some((file, offset)) if !self.damaged.note(&file, offset) => {}
            Some(_) => tracing::error!("{error}. {WHAT_IS_LOST} {}", error.advice()),
            None => tracing::error!("a cold row cannot be read: {error}. {}", error.advice()),
        }
    }
}

/// Consequence of a damaged block, for the log.
pub(crate) const WHAT_IS_LOST: &str = "Requests for what lies in this block answer an error; the \
                                       other blocks are served, and the file is not merged, so \
                                       that none of them is lost.";

thread_local! {
    /// Rows fetched for the current turn.
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

/// Returns the row if the current turn has pinned it.
pub(super) fn pinned(key: &Key) -> Option<Read> {
    PINS.with_borrow(|pins| pins.get(key).cloned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// What the configuration allows is what the cache takes, its tables and what it only remembers
    /// included.
    #[test]
    fn the_cache_takes_no_more_than_it_may() {
        const BYTES: u64 = 16 << 20;
        let cold = ColdCache::new(BYTES);
        cold.begins();
        let map = cold.cache.memory_used().map;
        let row = Values::from_slice(&[1, 2, 3, 4]);
        for id in 0..BYTES / ROW_BYTES * 3 {
            cold.cache.insert((7, u128::from(id)), Some(row.clone()));
            // Some again, so that all kinds of places are used.
            cold.cache.get(&(7, u128::from(id / 2)));
        }
        let used = cold.cache.memory_used();
        assert!(
            cold.cache.weight() > BYTES / 10 * 9,
            "{} of {BYTES} are used",
            cold.cache.weight()
        );
        assert_eq!(used.map, map, "it has not grown");
        let taken = (used.entries + used.map) as u64;
        assert!(taken <= BYTES && taken > BYTES / 2, "{taken} of {BYTES}");
    }

    /// Ids of rows, most asked for few of them: 95 % for one in a hundred. Which these are drifts.
    struct Traffic {
        random: fastrand::Rng,
        asked: u64,
    }

    impl Traffic {
        const IDS: f64 = 2e6;
        const EXPONENT: f64 = 1.27;
        /// After so many requests the next id is the most asked for.
        const DRIFT: u64 = 50;

        /// Bounded Pareto, by inversion.
        fn next(&mut self) -> u64 {
            self.asked += 1;
            let power = 1.0 - Self::EXPONENT;
            let rank = (1.0 + self.random.f64() * (Self::IDS.powf(power) - 1.0)).powf(1.0 / power);
            let place = self.asked / Self::DRIFT + rank as u64;
            place.wrapping_mul(0x9E37_79B9_7F4A_7C15)
        }
    }

    /// The rows that were asked for most often are kept, whenever that was: what a cache can know
    /// at best of traffic that does not change.
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

    /// As many hits as by the rows that were asked for most often, in the same memory, of traffic
    /// of few ids, which drifts; and a scan of all rows does not drive them out.
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
        println!("{ours:.4} of rows at hand, {best:.4} by their number of uses");
        assert!(ours > best - 0.03, "{ours} {best}");
        // A scan reads as many rows again, each once.
        let mut scanned = 1 << 60;
        let [beside_scan, _] = count(600_000, &mut || {
            scanned += 1;
            ask(scanned);
        });
        println!("{beside_scan:.4} beside a scan");
        assert!(beside_scan > ours - 0.08, "{beside_scan} {ours}");
    }
}
