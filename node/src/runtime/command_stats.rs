//! Statistics by command: calls, rejections, failures, durations and errors. INFO commandstats,
//! latencystats and errorstats and LATENCY HISTOGRAM show them.
//!
//! Each worker has its own cells, which no other thread writes. Counts are exact. Durations are
//! sampled, because two clock reads cost as much as a small command. The worker times one in
//! `SAMPLED` calls of constant-time commands, and every call of the other commands. All calls are
//! timed while a threshold of SLOWLOG or LATENCY is set. Reported durations are extrapolated from
//! the timed calls.

use crate::command::table;
use crate::runtime::counters::Tally;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Sampling interval for constant-time commands, in calls.
const SAMPLED: u64 = 64;
/// Maximum number of distinct error codes. The server has fewer, and clients cannot add any.
const MAX_ERRORS: usize = 128;
/// Number of histogram buckets: four per octave, from 64 ns to a minute.
const BUCKETS: usize = 4 * 30;
/// Binary logarithm of the lower bound of the lowest bucket, in nanoseconds.
const FIRST_BIT: usize = 6;

type Histogram = [AtomicU64; BUCKETS];

#[derive(Default)]
struct Cell {
    calls: Tally,
    rejected: Tally,
    failed: Tally,
    timed: Tally,
    ns: Tally,
    /// Value of `calls` at which the next call is timed.
    next_timed: AtomicU64,
    /// Allocated when the first call is timed.
    histogram: OnceLock<Box<Histogram>>,
}

/// Statistics of a worker.
pub struct Calls {
    /// Cells by the index of the command among all commands and subcommands.
    cells: Box<[Cell]>,
    errors: Mutex<BTreeMap<String, u64>>,
}

fn class_of(ns: u64) -> usize {
    let octave = (63 - (ns | 1).leading_zeros() as usize).max(FIRST_BIT);
    let quarter = (ns >> (octave - 2)) as usize & 3;
    ((octave - FIRST_BIT) * 4 + quarter).min(BUCKETS - 1)
}

/// Returns the exclusive upper bound of a histogram bucket, in nanoseconds.
fn end_of(class: usize) -> u64 {
    (5 + class as u64 % 4) << (class / 4 + FIRST_BIT - 2)
}

impl Calls {
    pub(crate) fn new() -> Calls {
        Calls {
            cells: (0..table::bits()).map(|_| Cell::default()).collect(),
            errors: Mutex::default(),
        }
    }

    /// Counts a call. Returns true if the call must be timed.
    #[inline]
    pub fn begins(&self, number: usize) -> bool {
        let Some(cell) = self.cells.get(number) else { return false };
        let before = cell.calls.get();
        cell.calls.add(1);
        let is_timed = before >= cell.next_timed.load(Relaxed);
        if is_timed {
            cell.next_timed.store(before + SAMPLED, Relaxed);
        }
        is_timed
    }

    /// Counts a call that was refused before its execution.
    #[cold]
    pub fn rejected(&self, number: usize) {
        if let Some(cell) = self.cells.get(number) {
            cell.rejected.add(1);
        }
    }

    /// Counts a call that returned an error.
    #[cold]
    pub fn failed(&self, number: usize) {
        if let Some(cell) = self.cells.get(number) {
            cell.failed.add(1);
        }
    }

    /// Records the duration of a timed call.
    #[inline]
    pub fn took(&self, number: usize, took: Duration) {
        let Some(cell) = self.cells.get(number) else { return };
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        cell.timed.add(1);
        cell.ns.add(ns);
        let histogram =
            cell.histogram.get_or_init(|| Box::new([const { AtomicU64::new(0) }; BUCKETS]));
        histogram[class_of(ns)].fetch_add(1, Relaxed);
    }

    /// Counts an error reply by its code.
    #[cold]
    pub fn error(&self, text: &[u8]) {
        let word = text.split(|&b| b == b' ').next().unwrap_or_default();
        let mut errors = self.errors.lock();
        let word = String::from_utf8_lossy(&word[..word.len().min(64)]);
        if let Some(count) = errors.get_mut(&*word) {
            *count += 1;
        } else if errors.len() < MAX_ERRORS {
            errors.insert(word.into_owned(), 1);
        }
    }
}

/// Returns a percentile of call durations in microseconds, with the precision of a histogram
/// bucket, or `None` without calls. `share` is between 0 and 1.
pub fn percentile_us(buckets: &[u64], share: f64) -> Option<f64> {
    let wanted = ((buckets.iter().sum::<u64>() as f64 * share).ceil() as u64).max(1);
    let mut below = 0;
    let class = buckets.iter().position(|count| {
        below += count;
        below >= wanted
    })?;
    Some(end_of(class) as f64 / 1000.0)
}

/// Statistics of a command, summed over the workers.
#[derive(Clone)]
pub struct Sums {
    /// Number of executed calls.
    pub calls: u64,
    /// Number of calls refused before execution.
    pub rejected: u64,
    /// Number of calls that returned an error.
    pub failed: u64,
    timed: u64,
    ns: u64,
    buckets: Vec<u64>,
}

impl Sums {
    const ZERO_SUMS: Sums =
        Sums { calls: 0, rejected: 0, failed: 0, timed: 0, ns: 0, buckets: Vec::new() };

    /// Whether all counts are 0.
    pub fn is_all_zero(&self) -> bool {
        self.calls + self.rejected + self.failed == 0
    }

    /// Returns the estimated duration of all calls in microseconds.
    pub fn us(&self) -> f64 {
        self.us_per_call() * self.calls as f64
    }

    /// Returns the mean duration of a call in microseconds.
    pub fn us_per_call(&self) -> f64 {
        self.ns as f64 / 1000.0 / self.timed.max(1) as f64
    }

    /// Returns a percentile in microseconds, with the precision of a histogram bucket, or `None` if
    /// no call was timed.
    pub fn percentile_us(&self, share: f64) -> Option<f64> {
        percentile_us(&self.buckets, share)
    }

    /// Returns the cumulative number of calls by upper bound, which is a power of two of 1.024
    /// microseconds. As in Redis, bounds that add no calls are omitted.
    pub fn distribution(&self) -> Vec<(u64, u64)> {
        let (mut told, mut before) = (Vec::new(), 0);
        let mut limit_us = 1u64;
        while before < self.timed && limit_us < 1 << 40 {
            let within = self
                .buckets
                .iter()
                .enumerate()
                .filter(|(class, _)| end_of(*class) <= limit_us << 10);
            let sum: u64 = within.map(|(_, count)| count).sum();
            // The last bucket also contains the durations beyond its upper bound.
            if sum > before {
                let of_all = u128::from(sum) * u128::from(self.calls) / u128::from(self.timed);
                told.push((limit_us, of_all as u64));
                before = sum;
            }
            limit_us <<= 1;
        }
        told
    }

    /// Returns the total duration of the timed calls in seconds, and their number by upper bound in
    /// seconds. Bounds are 1.024 microseconds times powers of four, and infinity.
    pub(crate) fn timed_classes(&self) -> (f64, Vec<(f64, u64)>) {
        let limits_ns = (0..=10).map(|power| 1u64 << (10 + 2 * power));
        let mut buckets: Vec<(f64, u64)> = limits_ns.map(|ns| (ns as f64 / 1e9, 0)).collect();
        buckets.push((f64::INFINITY, 0));
        for (class, count) in self.buckets.iter().enumerate() {
            let end_s = end_of(class) as f64 / 1e9;
            let end_s = if class == BUCKETS - 1 { f64::INFINITY } else { end_s };
            if let Some(within) = buckets.iter_mut().find(|within| end_s <= within.0) {
                within.1 += count;
            }
        }
        (self.ns as f64 / 1e9, buckets)
    }

    /// Returns the number of timed calls per histogram bucket; empty if no call was timed.
    pub fn buckets(&self) -> &[u64] {
        &self.buckets
    }

    fn minus(mut self, base: &Sums) -> Sums {
        self.calls -= base.calls;
        self.rejected -= base.rejected;
        self.failed -= base.failed;
        self.timed -= base.timed;
        self.ns -= base.ns;
        self.buckets.iter_mut().zip(&base.buckets).for_each(|(count, base)| *count -= base);
        // As in Redis, a call that is running during the reset (CONFIG RESETSTAT itself, or its
        // EXEC) is counted after the reset.
        self.calls = self.calls.max(self.timed);
        self
    }
}

/// Statistics of all workers, and their values at the last CONFIG RESETSTAT. The cells themselves
/// are not reset, because only their worker writes them.
pub struct AllCalls {
    by_worker: Vec<Calls>,
    base: Mutex<Vec<Sums>>,
}

impl AllCalls {
    pub(crate) fn new(workers: usize) -> AllCalls {
        AllCalls { by_worker: (0..workers).map(|_| Calls::new()).collect(), base: Mutex::default() }
    }

    /// Returns the statistics of one worker.
    #[inline]
    pub fn of(&self, worker: usize) -> &Calls {
        &self.by_worker[worker]
    }

    fn sums_since_start(&self, number: usize) -> Sums {
        let mut sums = Sums::ZERO_SUMS;
        for cell in self.by_worker.iter().filter_map(|calls| calls.cells.get(number)) {
            // Timed calls are read before calls, so that a concurrent call is never timed without
            // being counted.
            sums.timed += cell.timed.get();
            sums.ns = sums.ns.saturating_add(cell.ns.get());
            if let Some(histogram) = cell.histogram.get() {
                sums.buckets.resize(BUCKETS, 0);
                sums.buckets
                    .iter_mut()
                    .zip(histogram.iter())
                    .for_each(|(sum, count)| *sum += count.load(Relaxed));
            }
            sums.failed += cell.failed.get();
            sums.rejected += cell.rejected.get();
            sums.calls += cell.calls.get();
        }
        sums
    }

    /// Returns the statistics of a command since the start or the last reset.
    pub fn sums(&self, number: usize) -> Sums {
        let sums_since_start = self.sums_since_start(number);
        match self.base.lock().get(number) {
            Some(base) => sums_since_start.minus(base),
            None => sums_since_start,
        }
    }

    /// Returns the number of errors by code.
    pub fn errors(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for calls in &self.by_worker {
            for (word, count) in calls.errors.lock().iter() {
                *all.entry(word.clone()).or_default() += count;
            }
        }
        all
    }

    /// Resets all statistics: CONFIG RESETSTAT. The next call of each command is timed.
    pub(crate) fn reset(&self) {
        *self.base.lock() =
            (0..table::bits()).map(|number| self.sums_since_start(number)).collect();
        let cells = self.by_worker.iter().flat_map(|calls| &calls.cells);
        cells.for_each(|cell| cell.next_timed.store(0, Relaxed));
        self.by_worker.iter().for_each(|calls| calls.errors.lock().clear());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_lies_within_its_class() {
        for ns in (0..40)
            .flat_map(|bit| [1 << bit, (1 << bit) + 1, (1u64 << bit) * 3 / 2])
            .filter(|ns| *ns < 60 << 30)
        {
            let class = class_of(ns);
            assert!(ns < end_of(class), "{ns}");
            assert!(ns < 64 || class == 0 || ns >= end_of(class - 1), "{ns}");
        }
        assert_eq!(class_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn sums_start_at_the_last_reset() {
        let all = AllCalls::new(2);
        for n in 0..1000 {
            let calls = all.of(n % 2);
            if calls.begins(3) {
                calls.took(3, Duration::from_micros(3));
            }
        }
        all.of(1).took(3, Duration::from_millis(5));
        all.of(1).failed(3);
        all.of(0).error(b"ERR it");
        all.of(1).error(b"ERR that");
        all.of(1).error(b"NOAUTH");
        let sums = all.sums(3);
        assert_eq!((sums.calls, sums.timed, sums.failed, sums.rejected), (1000, 17, 1, 0));
        assert_eq!(sums.percentile_us(0.5), Some(3.072));
        assert!((5000.0..6300.0).contains(&sums.percentile_us(0.999).unwrap()));
        assert_eq!(sums.distribution(), [(4, 941), (8192, 1000)]);
        let (seconds, buckets) = sums.timed_classes();
        assert!((seconds - 0.005_048).abs() < 1e-9, "{seconds}");
        let some: Vec<_> = buckets.iter().filter(|class| class.1 > 0).collect();
        assert_eq!(some, [&(4.096e-6, 16), &(16_777_216e-9, 1)]);
        assert_eq!(
            all.errors().into_iter().collect::<Vec<_>>(),
            [("ERR".to_owned(), 2), ("NOAUTH".to_owned(), 1)]
        );
        assert!(all.sums(4).is_all_zero() && all.sums(4).percentile_us(0.5).is_none());
        all.reset();
        assert!(
            all.sums(3).is_all_zero()
                && all.errors().is_empty()
                && all.sums(3).distribution().is_empty()
        );
        all.of(0).rejected(3);
        assert_eq!(all.sums(3).rejected, 1);
    }

    /// The first call of each command after a reset is timed, and a call in progress counts.
    #[test]
    fn what_was_timed_since_a_reset_was_called() {
        let all = AllCalls::new(1);
        let calls = all.of(0);
        assert!(calls.begins(3) && !calls.begins(3) && calls.begins(4));
        all.reset();
        calls.took(4, Duration::from_micros(3));
        assert_eq!((all.sums(4).calls, all.sums(4).distribution()), (1, vec![(4, 1)]));
        assert!(calls.begins(3), "the first call since the reset");
        calls.took(3, Duration::from_micros(3));
        assert!((1..SAMPLED).all(|_| !calls.begins(3)) && calls.begins(3));
        assert_eq!(all.sums(3).calls, SAMPLED + 1);
    }
}
