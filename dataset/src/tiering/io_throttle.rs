//! Rate limit for background writes in bytes per second, suspended while a foreground writer waits.

use std::time::{Duration, Instant};
use store::time;

/// Maximum sleep between two checks for waiting writers.
const WAITER_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Rate limit for a file operation.
pub struct IoThrottle<'a> {
    rate: u64,
    started: Instant,
    /// Returns whether a writer waits for this operation.
    has_waiters: &'a dyn Fn() -> bool,
}

impl<'a> IoThrottle<'a> {
    /// Limits the write rate to `rate` bytes per second, starting now; 0: unlimited. The limit is
    /// suspended while `has_waiters` returns true.
    pub fn new(rate: u64, has_waiters: &'a dyn Fn() -> bool) -> IoThrottle<'a> {
        IoThrottle { rate, started: time::now(), has_waiters }
    }

    /// Sleeps until the rate allows a total of `bytes` bytes since the start of the operation.
    pub fn after(&self, bytes: u64) {
        if self.rate == 0 {
            return;
        }
        let due = Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        loop {
            let left = due.saturating_sub(self.elapsed());
            if left.is_zero() || (self.has_waiters)() {
                return;
            }
            time::sleep(left.min(WAITER_POLL_INTERVAL));
        }
    }

    /// Time since the start of the operation.
    pub fn elapsed(&self) -> Duration {
        time::now() - self.started
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_waiting_request_ends_the_slowness() {
        let looks = Cell::new(0);
        let has_waiters = || looks.replace(looks.get() + 1) == 2;
        // Without the suspension this would take a year.
        IoThrottle::new(1, &has_waiters).after(1 << 25);
        assert_eq!(looks.get(), 3);
        let calm = || false;
        let pace = IoThrottle::new(1 << 20, &calm);
        pace.after(1 << 15);
        assert!(pace.elapsed() >= Duration::from_micros(31_250), "{:?}", pace.elapsed());
        IoThrottle::new(0, &|| panic!("the callback is not called")).after(u64::MAX);
    }
}
