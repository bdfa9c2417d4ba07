//! CPU throttle: a long background computation rests after every tenth of a millisecond for as
//! long, so that threads that wake up meanwhile get a processor.
//!
//! A scheduler lets a thread that is running go on for a slice, and looks at the end of slices only
//! when its clock ticks: up to 4 ms with 250 ticks a second. A worker that is woken on the same
//! processor meanwhile waits for that long, and its page with it; a lower priority does not help,
//! as it changes how much one gets and not when. So the processor is given up in between, and not
//! only offered (`sched_yield`): what is woken then finds one that does nothing, also where
//! something else holds up the one it ran on before.

use std::cell::Cell;
use std::time::{Duration, Instant};
use store::time;

/// How long one computes between two rests, about, and how long a rest is at least.
const BURST: Duration = Duration::from_micros(100);

/// When the last rest was over.
pub(crate) struct CpuThrottle<'a> {
    since: Cell<Instant>,
    /// What is being done is not wanted any more when this holds.
    is_stopped: Option<&'a (dyn Fn() -> bool + Sync)>,
    /// Whether the end of the work is waited for: then there are no rests.
    is_awaited: &'a dyn Fn() -> bool,
}

impl<'a> CpuThrottle<'a> {
    pub(crate) fn new(is_awaited: &'a dyn Fn() -> bool) -> CpuThrottle<'a> {
        CpuThrottle { since: Cell::new(time::now()), is_stopped: None, is_awaited }
    }

    /// The same, of work that is given up when the server stops.
    pub(crate) fn until(
        is_stopped: &'a (dyn Fn() -> bool + Sync),
        is_awaited: &'a dyn Fn() -> bool,
    ) -> CpuThrottle<'a> {
        CpuThrottle { is_stopped: Some(is_stopped), ..CpuThrottle::new(is_awaited) }
    }

    /// The error, if the work is to be given up. To be asked before what may take long.
    pub(crate) fn goes_on(&self) -> store::Result<()> {
        match self.is_stopped {
            Some(is_stopped) if is_stopped() => {
                Err(store::Error::Refused("the server is stopping".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// To be called every few microseconds of work, and before and after what takes longer.
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
