//! Stepping back: whoever computes for long offers its processor, again and again, to those who wait for it.
//!
//! A scheduler lets a thread that is running go on for a slice, and looks at the end of slices only when its clock ticks: up to 4 ms with
//! 250 ticks a second. A worker that is woken on the same processor meanwhile waits for that long, and its page with it; a lower priority
//! does not help, as it changes how much one gets and not when. So the offer is made in between. It costs half a microsecond if
//! nobody waits.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long one computes between two offers, about.
const BURST: Duration = Duration::from_micros(100);

/// When the last offer was made.
pub(crate) struct Pace {
    since: Cell<Instant>,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace { since: Cell::new(Instant::now()) }
    }

    /// To be called every few microseconds of work, and before and after what takes longer.
    #[inline]
    pub(crate) fn step(&self) {
        if self.since.get().elapsed() >= BURST {
            std::thread::yield_now();
            self.since.set(Instant::now());
        }
    }
}
