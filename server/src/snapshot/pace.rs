//! Stepping back: whoever computes for long offers its processor, again and again, to those who wait for it.
//!
//! A scheduler lets a thread that is running go on for a slice, and looks at the end of slices only when its clock ticks: up to 4 ms with
//! 250 ticks a second. A worker that is woken on the same processor meanwhile waits for that long, and its page with it; a lower priority
//! does not help, as it changes how much one gets and not when. So the offer is made in between. It costs half a microsecond if
//! nobody waits.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long one computes between two offers, about.
const BURST: Duration = Duration::from_micros(100);

/// When the last offer was made.
pub(crate) struct Pace<'a> {
    since: Cell<Instant>,
    /// So many wait for the end of the work: then no offers are made, of which others may take a thousand times as much as the work needs.
    awaited: &'a AtomicUsize,
}

impl Pace<'_> {
    pub(crate) fn new(awaited: &AtomicUsize) -> Pace<'_> {
        Pace { since: Cell::new(Instant::now()), awaited }
    }

    /// To be called every few microseconds of work, and before and after what takes longer.
    #[inline]
    pub(crate) fn step(&self) {
        if self.since.get().elapsed() >= BURST {
            if self.awaited.load(Relaxed) == 0 {
                std::thread::yield_now();
            }
            self.since.set(Instant::now());
        }
    }
}
