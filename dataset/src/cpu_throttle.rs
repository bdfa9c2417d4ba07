//! CPU throttle: a long background computation sleeps after every 100 us for as long, so that woken
//! threads get a processor.
//!
//! The scheduler lets a running thread finish its slice, and ends slices only at clock ticks, every
//! 4 ms at 250 Hz. A worker woken on the same processor waits that long, and so does its request. A
//! lower priority reduces the thread's share of the processor, but not that wait. Sleeping works
//! better than `sched_yield`, because it leaves a processor idle. The scheduler can use that one
//! even for a worker whose previous processor is busy with another process.

use std::cell::Cell;
use std::time::{Duration, Instant};
use store::time;

/// Approximate time of work between two sleeps, and minimum time of a sleep.
const BURST: Duration = Duration::from_micros(100);

pub(crate) struct CpuThrottle<'a> {
    since: Cell<Instant>,
    /// Returns true when the work is to be abandoned.
    is_stopped: Option<&'a (dyn Fn() -> bool + Sync)>,
    /// Returns true while another thread waits for the work; then the throttle does not sleep.
    is_awaited: &'a dyn Fn() -> bool,
}

impl<'a> CpuThrottle<'a> {
    pub(crate) fn new(is_awaited: &'a dyn Fn() -> bool) -> CpuThrottle<'a> {
        CpuThrottle { since: Cell::new(time::now()), is_stopped: None, is_awaited }
    }

    /// Creates a throttle for work that is abandoned when the server stops.
    pub(crate) fn until(
        is_stopped: &'a (dyn Fn() -> bool + Sync),
        is_awaited: &'a dyn Fn() -> bool,
    ) -> CpuThrottle<'a> {
        CpuThrottle { is_stopped: Some(is_stopped), ..CpuThrottle::new(is_awaited) }
    }

    /// Returns an error if the work is to be abandoned. Checked before long steps.
    pub(crate) fn goes_on(&self) -> store::Result<()> {
        match self.is_stopped {
            Some(is_stopped) if is_stopped() => {
                Err(store::Error::Refused("the server is stopping".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Sleeps if due. The caller calls it every few microseconds of work, and before and after
    /// longer steps.
    #[inline]
    pub(crate) fn step(&self) {
        if time::now() - self.since.get() >= BURST {
            if !(self.is_awaited)() {
                time::sleep(BURST);
            }
            self.since.set(time::now());
        }
    }
}
