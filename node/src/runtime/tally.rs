//! What workers count, each in its own cache lines.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

/// A counter that one thread writes and others read now and then: a load and a store instead of a
/// locked addition.
#[derive(Default)]
pub struct Tally(AtomicU64);

impl Tally {
    /// Only the owning worker may call this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What one worker counts. Its own cache lines, so that workers do not slow each other down.
#[derive(Default)]
#[repr(align(128))]
pub struct Tallies {
    /// Commands that were run.
    pub commands: Tally,
    /// Error replies.
    pub errors: Tally,
    /// Bytes of requests.
    pub bytes_in: Tally,
    /// Bytes of replies.
    pub bytes_out: Tally,
    /// Rows that were there when they were read by key, and that were not.
    pub hits: Tally,
    /// Reads that found nothing.
    pub misses: Tally,
    /// Odd while the worker is in a turn.
    pub(crate) turn: AtomicU64,
}

impl Tallies {
    /// The worker is in a turn until the guard is dropped.
    #[inline]
    pub fn enter(&self) -> InTurn<'_> {
        self.turn.fetch_add(1, SeqCst);
        InTurn(&self.turn)
    }
}

/// See [`Tallies::enter`].
pub struct InTurn<'a>(&'a AtomicU64);

impl Drop for InTurn<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Sums of [`Tallies`].
#[derive(Default, Clone, Copy)]
pub struct Totals {
    /// Commands that were run.
    pub commands: u64,
    pub(crate) errors: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// From a master, and to replicas.
    pub(crate) link_bytes_in: u64,
    pub(crate) link_bytes_out: u64,
}

/// What the last second had, by the second.
#[derive(Default)]
pub struct Rates {
    pub(crate) commands: AtomicU64,
    /// Bytes of requests per second.
    pub bytes_in: AtomicU64,
    /// Bytes of replies per second.
    pub bytes_out: AtomicU64,
    /// Bytes from the master per second.
    pub link_bytes_in: AtomicU64,
    /// Bytes to replicas per second.
    pub link_bytes_out: AtomicU64,
}

impl Rates {
    /// Between these two sums so much time went by.
    pub fn measure(&self, before: &Totals, after: &Totals, elapsed: Duration) {
        let elapsed_us = elapsed.as_micros().max(1);
        for (rate, before, after) in [
            (&self.commands, before.commands, after.commands),
            (&self.bytes_in, before.bytes_in, after.bytes_in),
            (&self.bytes_out, before.bytes_out, after.bytes_out),
            (&self.link_bytes_in, before.link_bytes_in, after.link_bytes_in),
            (&self.link_bytes_out, before.link_bytes_out, after.link_bytes_out),
        ] {
            // CONFIG RESETSTAT may come between.
            let more = u128::from(after.saturating_sub(before));
            rate.store(u64::try_from(more * 1_000_000 / elapsed_us).unwrap_or(u64::MAX), Relaxed);
        }
    }
}
