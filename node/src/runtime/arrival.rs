//! When a request came, at the earliest: for what counts by the clock of its sender, as a lease
//! does.
//!
//! A process that is stopped (SIGSTOP, a machine that sleeps) finds requests that have waited for
//! it, and does not know for how long. So a worker notes the time again and again. If it has not
//! done so for longer than it should, it has stood still, and what it reads now, or in the next
//! moment, may have come when that began.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// How often a worker notes the time.
const TICK: Duration = Duration::from_millis(50);
/// It has stood still if it has not for so long.
const STILL: Duration = Duration::from_millis(150);
/// What waited meanwhile is read in this time.
const SETTLED: Duration = Duration::from_millis(200);

#[derive(Clone, Copy)]
struct Watch {
    last: Instant,
    /// The tick before the last, or before it stood still.
    before: Instant,
    /// When it was last found to have stood still.
    resumed: Option<Instant>,
}

impl Watch {
    fn new(now: Instant) -> Watch {
        Watch { last: now, before: now, resumed: None }
    }

    fn tick(&mut self, now: Instant) {
        if now - self.last > STILL {
            self.resumed = Some(now);
            self.before = self.last;
        } else if self.resumed.is_none_or(|resumed| now - resumed > SETTLED) {
            self.resumed = None;
            self.before = self.last;
        }
        self.last = now;
    }

    fn came(&self, now: Instant) -> Instant {
        if now - self.last > STILL && self.resumed.is_none() { self.last } else { self.before }
    }
}

thread_local! {
    static WATCH: Cell<Option<Watch>> = const { Cell::new(None) };
}

/// When a request that this thread has just read came, at the earliest; at most a tenth of a second
/// ago unless the thread stood still. Of a thread that does not [watch]: now.
pub fn came() -> Instant {
    let now = Instant::now();
    WATCH.get().map_or(now, |watch| watch.came(now))
}

/// Notes the time on this thread, for ever.
pub async fn watch() {
    loop {
        let now = Instant::now();
        let mut watch = WATCH.get().unwrap_or(Watch::new(now));
        watch.tick(now);
        WATCH.set(Some(watch));
        tokio::time::sleep(TICK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waited_for_a_thread_came_when_it_stopped() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let mut watch = Watch::new(at(0));
        (0..=20).for_each(|n| watch.tick(at(n * 50)));
        assert_eq!(watch.came(at(1020)), at(950), "a tick before the last");
        // From 1.0 s to 3.0 s it is stopped; either the request or the tick is first.
        assert_eq!(watch.came(at(3000)), at(1000));
        watch.tick(at(3000));
        assert_eq!(watch.came(at(3001)), at(1000));
        watch.tick(at(3050));
        assert_eq!(watch.came(at(3090)), at(1000), "it is still reading what waited");
        // Once more, before it had read all.
        watch.tick(at(3250));
        assert_eq!(watch.came(at(3251)), at(3050));
        (0..=10).for_each(|n| watch.tick(at(3300 + n * 50)));
        assert_eq!(watch.came(at(3810)), at(3750));
    }
}
