//! Earliest time at which a request may have arrived. Leases need this time, because their duration
//! begins when the sender sends the request.
//!
//! A process that was stopped (SIGSTOP, a suspended machine) finds old requests in its sockets and
//! cannot determine their age. So each worker records the time periodically. A late tick shows that
//! the process was stopped. Input read within `DRAIN_TIME` after the stop may have arrived when the
//! stop began.

use std::cell::Cell;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(50);
/// Minimum delay of a tick at which the worker counts as stopped.
const STALL_DELAY: Duration = Duration::from_millis(150);
/// Time to read all input that arrived during a stop.
const DRAIN_TIME: Duration = Duration::from_millis(200);

#[derive(Clone, Copy)]
struct StallDetector {
    last: Instant,
    /// The tick before `last`, or the last tick before a stop.
    before: Instant,
    /// Time at which the last stop was detected.
    resumed: Option<Instant>,
}

impl StallDetector {
    fn new(now: Instant) -> StallDetector {
        StallDetector { last: now, before: now, resumed: None }
    }

    fn tick(&mut self, now: Instant) {
        if now - self.last > STALL_DELAY {
            self.resumed = Some(now);
            self.before = self.last;
        } else if self.resumed.is_none_or(|resumed| now - resumed > DRAIN_TIME) {
            self.resumed = None;
            self.before = self.last;
        }
        self.last = now;
    }

    fn came(&self, now: Instant) -> Instant {
        if now - self.last > STALL_DELAY && self.resumed.is_none() {
            self.last
        } else {
            self.before
        }
    }
}

thread_local! {
    static WATCH: Cell<Option<StallDetector>> = const { Cell::new(None) };
}

/// Returns the earliest time at which a request just read by this thread may have arrived: at most
/// 0.1 s ago, unless the thread was stopped. Returns the current time if [watch] does not run on
/// this thread.
pub fn came() -> Instant {
    let now = Instant::now();
    WATCH.get().map_or(now, |watch| watch.came(now))
}

/// Records the time on this thread periodically; never returns.
pub async fn watch() {
    loop {
        let now = Instant::now();
        let mut watch = WATCH.get().unwrap_or(StallDetector::new(now));
        watch.tick(now);
        WATCH.set(Some(watch));
        tokio::time::sleep(TICK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_during_a_stall_has_the_time_of_the_stall() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let mut watch = StallDetector::new(at(0));
        (0..=20).for_each(|n| watch.tick(at(n * 50)));
        assert_eq!(watch.came(at(1020)), at(950), "one tick before the last");
        // The thread is stopped from 1.0 s to 3.0 s. Either the request or the tick is processed
        // first.
        assert_eq!(watch.came(at(3000)), at(1000));
        watch.tick(at(3000));
        assert_eq!(watch.came(at(3001)), at(1000));
        watch.tick(at(3050));
        assert_eq!(watch.came(at(3090)), at(1000), "the backlog is not read yet");
        // The thread is stopped again before it has read all input.
        watch.tick(at(3250));
        assert_eq!(watch.came(at(3251)), at(3050));
        (0..=10).for_each(|n| watch.tick(at(3300 + n * 50)));
        assert_eq!(watch.came(at(3810)), at(3750));
    }
}
