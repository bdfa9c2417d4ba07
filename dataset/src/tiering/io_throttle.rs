//! Rate limit of background writes in bytes per second, lifted while a writer waits for their end.

use std::time::{Duration, Instant};
use store::time;

/// The longest sleep before it checks for waiters.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Since when what is written has been counted, and how much of it may come in a second.
pub struct IoThrottle<'a> {
    /// Bytes per second; 0: as fast as the disk takes them.
    rate: u64,
    started: Instant,
    /// Whether a writer waits.
    hurries: &'a dyn Fn() -> bool,
}

impl<'a> IoThrottle<'a> {
    /// From now on at most `rate` bytes per second, or as fast as the disk takes them if that is 0;
    /// whenever a writer `hurries`, too.
    pub fn new(rate: u64, hurries: &'a dyn Fn() -> bool) -> IoThrottle<'a> {
        IoThrottle { rate, started: time::now(), hurries }
    }

    /// So many bytes have been written since the beginning: returns when more may come.
    pub fn after(&self, bytes: u64) {
        if self.rate == 0 {
            return;
        }
        let due = Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        loop {
            let left = due.saturating_sub(self.elapsed());
            if left.is_zero() || (self.hurries)() {
                return;
            }
            time::sleep(left.min(LOOK_EVERY));
        }
    }

    /// How long it has taken so far.
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
        let hurries = || looks.replace(looks.get() + 1) == 2;
        // A year's worth.
        IoThrottle::new(1, &hurries).after(1 << 25);
        assert_eq!(looks.get(), 3);
        let calm = || false;
        let pace = IoThrottle::new(1 << 20, &calm);
        pace.after(1 << 15);
        assert!(pace.elapsed() >= Duration::from_micros(31_250), "{:?}", pace.elapsed());
        IoThrottle::new(0, &|| panic!("it is not asked")).after(u64::MAX);
    }
}
