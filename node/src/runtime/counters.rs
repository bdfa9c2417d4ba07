//! Counters of workers, each in its own cache lines.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

/// Counter with a single writer: `add` is a load and a store instead of an atomic addition.
#[derive(Default)]
pub struct Tally(AtomicU64);

impl Tally {
    /// Adds `n`. Only the owning worker may call this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters of a worker, in separate cache lines to avoid false sharing.
#[derive(Default)]
#[repr(align(128))]
pub struct Tallies {
    /// Number of executed commands.
    pub commands: Tally,
    /// Number of error replies.
    pub errors: Tally,
    /// Number of bytes in requests.
    pub bytes_in: Tally,
    /// Number of bytes in replies.
    pub bytes_out: Tally,
    /// Number of reads by key that found the row.
    pub hits: Tally,
    /// Number of reads by key that did not find the row.
    pub misses: Tally,
    /// Incremented at the start and the end of each event-loop iteration, so the value is odd
    /// during an iteration.
    pub(crate) turn: AtomicU64,
    /// Longest event-loop iteration since startup, in microseconds. `recent_turn_us` is the longest
    /// iteration since [`LongestTurns::measure`].
    longest_turn_us: AtomicU64,
    recent_turn_us: AtomicU64,
}

impl Tallies {
    /// Counts hits and misses of a read. Only the owning worker may call this.
    #[inline]
    pub fn note_found(&self, found: &[bool]) {
        let hits = found.iter().filter(|found| **found).count();
        self.hits.add(hits as u64);
        self.misses.add((found.len() - hits) as u64);
    }

    /// Records the duration of an event-loop iteration. Only the owning worker may call this.
    #[inline]
    pub fn record_turn(&self, took: Duration) {
        let us = took.as_micros() as u64;
        if us > self.recent_turn_us.load(Relaxed) {
            self.recent_turn_us.store(us, Relaxed);
            if us > self.longest_turn_us.load(Relaxed) {
                self.longest_turn_us.store(us, Relaxed);
            }
        }
    }

    /// Marks the start of an event-loop iteration. Dropping the guard marks the end.
    #[inline]
    pub fn enter(&self) -> TurnGuard<'_> {
        self.turn.fetch_add(1, SeqCst);
        TurnGuard(&self.turn)
    }
}

/// Guard of an event-loop iteration: [`Tallies::enter`].
pub struct TurnGuard<'a>(&'a AtomicU64);

impl Drop for TurnGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Longest event-loop iteration of all workers in each of the last 60 seconds, in microseconds.
#[derive(Default)]
pub struct LongestTurns(Mutex<VecDeque<u64>>);

impl LongestTurns {
    /// Records the last second. Called once per second.
    pub fn measure(&self, workers: &[Tallies]) {
        let turns = workers.iter().map(|worker| worker.recent_turn_us.swap(0, Relaxed));
        let longest = turns.max().unwrap_or(0);
        let mut seconds = self.0.lock();
        seconds.truncate(59);
        seconds.push_front(longest);
    }

    /// Returns the longest event-loop iteration of the last minute, including the current second.
    pub(crate) fn last_minute_us(&self, workers: &[Tallies]) -> u64 {
        let now = workers.iter().map(|worker| worker.recent_turn_us.load(Relaxed)).max();
        now.max(self.0.lock().iter().copied().max()).unwrap_or(0)
    }

    pub(crate) fn ever_us(workers: &[Tallies]) -> u64 {
        workers.iter().map(|worker| worker.longest_turn_us.load(Relaxed)).max().unwrap_or(0)
    }
}

/// Sums of [`Tallies`] over the workers.
#[derive(Default, Clone, Copy)]
pub struct Totals {
    /// Number of executed commands.
    pub commands: u64,
    pub(crate) errors: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// Bytes received from a master. `link_bytes_out` counts the bytes sent to replicas.
    pub(crate) link_bytes_in: u64,
    pub(crate) link_bytes_out: u64,
}

/// Rates per second, over the last measuring interval.
#[derive(Default)]
pub struct Rates {
    pub(crate) commands: AtomicU64,
    /// Number of request bytes per second.
    pub bytes_in: AtomicU64,
    /// Number of reply bytes per second.
    pub bytes_out: AtomicU64,
    /// Number of bytes received from the master per second.
    pub link_bytes_in: AtomicU64,
    /// Number of bytes sent to replicas per second.
    pub link_bytes_out: AtomicU64,
}

impl Rates {
    /// Computes the rates from two sums and the time between them.
    pub fn measure(&self, before: &Totals, after: &Totals, elapsed: Duration) {
        let elapsed_us = elapsed.as_micros().max(1);
        for (rate, before, after) in [
            (&self.commands, before.commands, after.commands),
            (&self.bytes_in, before.bytes_in, after.bytes_in),
            (&self.bytes_out, before.bytes_out, after.bytes_out),
            (&self.link_bytes_in, before.link_bytes_in, after.link_bytes_in),
            (&self.link_bytes_out, before.link_bytes_out, after.link_bytes_out),
        ] {
            // CONFIG RESETSTAT may have reset the sums between the two samples.
            let more = u128::from(after.saturating_sub(before));
            rate.store(u64::try_from(more * 1_000_000 / elapsed_us).unwrap_or(u64::MAX), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_turn_is_remembered_for_a_minute_and_for_ever() {
        let workers = [Tallies::default(), Tallies::default()];
        let turns = LongestTurns::default();
        let both = || (LongestTurns::ever_us(&workers), turns.last_minute_us(&workers));
        assert_eq!(both(), (0, 0));
        workers[1].record_turn(Duration::from_micros(700));
        workers[0].record_turn(Duration::from_micros(20));
        assert_eq!(both(), (700, 700));
        for second in 0..60 {
            turns.measure(&workers);
            assert_eq!(both(), (700, 700), "second {second}");
            workers[0].record_turn(Duration::from_micros(30));
        }
        turns.measure(&workers);
        assert_eq!(both(), (700, 30));
    }
}
