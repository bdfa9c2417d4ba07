//! Rows that lie on the disk: which files hold them, how they are read, and what was read lately.
//!
//! ```text
//!   turn of a connection -> which ids are cold, and not at hand?  --none--> commands run, as ever
//!        |  some: the turn stops there                                   ^
//!        '-> one job per 4 KiB block, read by threads (fetch.rs) -------' pinned for the turn,
//!                                                                          and in the cache
//!   a page -> is read, and lacks something --> the same, then it is read again (missing.rs)
//!   a command -> counter::Space -> misses the row in memory -> ColdBackend::get
//!             -> pins, cache, else one read in place
//! ```
//!
//! Flags of old posts go the same way (`cold_filters.rs`).
//!
//! So no command knows of cold rows: the engine finds them below (`counter/src/cold.rs`), and what
//! the connection has fetched beforehand is there. If something was not (a file was replaced in
//! between) the row is read in place, which costs the worker one read of the disk.
//!
//! The cache holds rows, not blocks: cold traffic is spread over old posts, and a block would bring
//! six hundred rows for one. Rows are named by their file, so nothing in it is ever outdated: after
//! a merge the same id has another name. quick_cache: a hit takes some 12 ns, it is bounded by
//! weight, and a scan of many rows once does not drive out those that are read again and again.
//!
//! What cannot be read is an error of each call that asks for it ([`Unreadable`]); it is never
//! taken for a row that does not exist.

pub mod cold_filters;
pub mod damage;
pub mod fetch;
pub mod files;
pub mod key_hash;
pub mod ledger;
pub mod missing;
pub mod overlay;
pub mod quarantine;
pub mod rebuilds;

pub use rolling::{Unreadable, UnreadableIds};

use fetch::Pins;
use fetch::Reads;
use key_hash::KeyHash;
use quick_cache::OptionsBuilder;
use quick_cache::sync::{Cache, DefaultLifecycle};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A row's name: its file's identity, and its id; a pair's: that, and its hash.
pub(crate) type Key = (u64, u128);
/// Values of a row; those of a usual one take no memory of their own, so that the cache's bytes can
/// be counted.
pub(crate) type Values = SmallVec<[i64; INLINE]>;
/// What a file says of an id: its values, or that there is no such row; of a pair, which has no
/// values, whether it is set.
pub(crate) type Row = Option<Values>;
/// A row that was read, or why not.
pub(crate) type Read = Result<Row, Arc<str>>;

#[derive(Clone)]
struct Weight;

const INLINE: usize = 4;
/// What a cached row is counted as: its place in the cache, with the share of places that only
/// remember what was there, and of the table.
const ROW_BYTES: u64 = 152;
/// Rows that are in the cache for the moment in which others leave it.
const SLACK: usize = 1024;
/// Memory for the cache is set aside at once up to here; a larger cache grows into its own.
const SET_ASIDE: u64 = 1 << 30;
/// Places that remember rows that went, so that those that come back are kept longer: per row that
/// is there.
const GHOSTS: f64 = 0.2;

impl quick_cache::Weighter<Key, Row> for Weight {
    fn weight(&self, _: &Key, row: &Row) -> u64 {
        let apart = row.as_ref().filter(|values| values.spilled());
        ROW_BYTES + apart.map_or(0, |values| 8 * values.capacity() as u64 + 16)
    }
}

/// What cold rows have cost so far.
#[derive(Default)]
pub struct Figures {
    /// Blocks read.
    pub reads: AtomicU64,
    /// By a worker in place.
    pub reads_in_place: AtomicU64,
    /// Their time, from the request to the row.
    pub read_ns: AtomicU64,
    /// Reads by their time: below 2^n microseconds.
    pub(crate) slower: [AtomicU64; 24],
    /// Reads that the disk refused.
    pub errors: AtomicU64,
    /// Blocks with a wrong checksum.
    pub corrupt: AtomicU64,
    /// Cold rows that were in the cache, and that were not.
    pub hits: AtomicU64,
    /// See `hits`.
    pub misses: AtomicU64,
    /// Tables that went to the disk.
    pub spilled_tables: AtomicU64,
    /// Rows that left memory.
    pub spilled_rows: AtomicU64,
    /// Pairs that left memory.
    pub spilled_pairs: AtomicU64,
    /// Files that were merged with what had changed.
    pub merges: AtomicU64,
    /// Bytes of new cold files.
    pub written_bytes: AtomicU64,
    /// Spills and merges that failed; they are tried again.
    pub failures: AtomicU64,
    /// Bytes that the scrubber has read.
    pub scrubbed_bytes: AtomicU64,
    /// What it has still to read of the pass under way; 0: there is none.
    pub scrub_left_bytes: AtomicU64,
    /// How often it has read all files.
    pub scrub_passes: AtomicU64,
    /// Unix time at which it had done so last; 0: not since the start.
    pub scrub_last_s: AtomicU64,
}

impl Figures {
    fn note_read(&self, took: Duration) {
        self.reads.fetch_add(1, Relaxed);
        self.read_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let class = (64 - us.leading_zeros() as usize).min(self.slower.len() - 1);
        self.slower[class].fetch_add(1, Relaxed);
    }

    /// Reads by their time: below 2^n microseconds; the last has all others.
    pub fn reads_by_us(&self) -> Vec<u64> {
        self.slower.iter().map(|n| n.load(Relaxed)).collect()
    }

    /// So many microseconds are not exceeded by this share of the reads; the next power of two.
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

/// What all spaces share: the cache, the readers, and figures.
pub struct Cold {
    cache: Cache<Key, Row, Weight, KeyHash>,
    reads: Reads,
    /// What cold rows have cost.
    pub figures: Figures,
    /// By space: why its last spill or merge failed, if it did.
    pub trouble: parking_lot::Mutex<std::collections::BTreeMap<String, String>>,
    /// What is known to be damaged.
    pub damaged: damage::Damaged,
    any: AtomicBool,
}

impl Cold {
    /// Threads start with the first read.
    pub(crate) fn new(cache_bytes: u64, threads: usize) -> Arc<Cold> {
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
        Arc::new(Cold {
            cache,
            reads: Reads::new(threads),
            figures: Figures::default(),
            trouble: parking_lot::Mutex::default(),
            damaged: damage::Damaged::default(),
            any: AtomicBool::new(false),
        })
    }

    /// Whether any row or flag of any space may lie on the disk: asked several times for each
    /// command, so it is one load. Once set it stays set, and a thread that has learnt of such a
    /// row or flag has learnt of this.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// To be called before the first of them does.
    pub(crate) fn begins(&self) {
        if !self.any.swap(true, Relaxed) {
            // At once: growing step by step it would leave holes of half its size in the heap.
            // Pages that no row has reached yet are not resident.
            let bytes = self.cache.capacity().min(SET_ASIDE);
            self.cache.reserve((bytes / ROW_BYTES) as usize + SLACK);
        }
    }

    /// Other rows go until those that are cached take no more.
    pub(crate) fn set_cache_bytes(&self, bytes: u64) {
        if self.cache.capacity() != bytes {
            self.cache.set_capacity(bytes);
        }
    }

    /// Bytes of the cached rows, and the most that they may be.
    pub fn cache_bytes(&self) -> (u64, u64) {
        (self.cache.weight(), self.cache.capacity())
    }

    /// What is at hand of a row: pinned for this turn, or cached.
    fn at_hand(&self, key: &Key) -> Option<Read> {
        missing::pinned(key).or_else(|| self.cache.get(key).map(Ok))
    }

    /// Whether a turn need not have it read. What is cached stays at hand for the turn, whatever
    /// happens in the cache.
    fn is_at_hand(&self, key: Key) -> bool {
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

    /// Whether requests wait for the disk at this moment.
    pub(crate) fn is_awaited(&self) -> bool {
        self.reads.awaited.load(Relaxed) > 0
    }

    /// Notes a read that failed. Damage is logged once.
    fn note_failure(&self, error: &store::Error) {
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

/// What a damaged block of a cold file means.
pub(crate) const WHAT_IS_LOST: &str = "Requests for what lies in this block answer an error; the \
                                       other blocks are served, and the file is not merged, so \
                                       that none of them is lost.";

thread_local! {
    /// What was fetched for the turn at hand.
    static PINS: RefCell<Pins> = RefCell::default();
}

/// These rows are at hand, on this thread, until others are.
pub fn pin(pins: Pins) {
    PINS.set(pins);
}

/// What was pinned, for a later turn; nothing is from now on.
pub fn unpin() -> Pins {
    PINS.take()
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
        let cold = Cold::new(BYTES, 1);
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
        let cold = Cold::new(ROWS * ROW_BYTES, 1);
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
