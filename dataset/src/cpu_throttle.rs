//! CPU throttle: a long background computation alternates 100 us of work and 100 us of sleep, so
//! that other threads get the processor.
//!
//! The scheduler preempts a running thread only at clock ticks, every 4 ms at 250 Hz. A worker that
//! wakes up on the same processor waits that long, and so does its request. A lower priority
//! reduces the thread's share of the processor, but not this delay. Sleeping works better than
//! `sched_yield`, because it leaves the processor idle: the scheduler can then use it for any
//! worker.

use std::cell::Cell;
use std::time::{Duration, Instant};
use store::time;

/// Approximate duration of work between two sleeps, and minimum duration of a sleep.
const WORK_SLICE: Duration = Duration::from_micros(100);

pub(crate) struct CpuThrottle<'a> {
    since: Cell<Instant>,
    /// Whether the work should stop.
    is_stopped: Option<&'a (dyn Fn() -> bool + Sync)>,
    /// Returns whether another thread waits for the work. While it does, the throttle does not
    /// sleep.
    is_awaited: &'a dyn Fn() -> bool,
}

impl<'a> CpuThrottle<'a> {
    pub(crate) fn new(is_awaited: &'a dyn Fn() -> bool) -> CpuThrottle<'a> {
        CpuThrottle { since: Cell::new(time::now()), is_stopped: None, is_awaited }
    }

    /// Creates a throttle for work that ends when the server stops.
    pub(crate) fn until(
        is_stopped: &'a (dyn Fn() -> bool + Sync),
        is_awaited: &'a dyn Fn() -> bool,
    ) -> CpuThrottle<'a> {
        CpuThrottle { is_stopped: Some(is_stopped), ..CpuThrottle::new(is_awaited) }
    }

    /// Returns an error if the work should stop. Call this function before long steps.
    pub(crate) fn goes_on(&self) -> store::Result<()> {
        match self.is_stopped {
            Some(is_stopped) if is_stopped() => {
                Err(store::Error::Refused("the server is stopping".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Sleeps if [`WORK_SLICE`] has elapsed since the last sleep. Call this function every few
    /// microseconds, and before and after longer steps.
    #[inline]
    pub(crate) fn step(&self) {
        if time::now() - self.since.get() >= WORK_SLICE {
            if !(self.is_awaited)() {
                time::sleep(WORK_SLICE);
            }
            self.since.set(time::now());
        }
    }
}
