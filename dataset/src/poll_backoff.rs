//! Poll backoff: how long a background thread sleeps when it found no work.
//!
//! A wake-up costs 20 to 60 us on an idle processor, far more than the poll itself. Two threads
//! with fifty polls a second each caused most of the load of an idle server. Nearly all work of
//! these threads comes from writes, so they poll rarely when there are none. The first work after a
//! quiet time waits at most `LONG`. Writers do not depend on it: they wait for memory or do a part
//! of a table's rewrite by themselves.

use std::time::Duration;

/// Poll interval while the data change.
const SHORT: Duration = Duration::from_millis(20);
/// Poll interval after a quiet time.
const LONG: Duration = Duration::from_millis(200);
/// Number of polls without work that make a quiet time: one second. The log thread publishes
/// changes every 100 ms.
const QUIET_LOOKS: u32 = 50;

/// Poll backoff of one thread.
#[derive(Default)]
pub struct PollBackoff {
    /// Count from [`crate::commit::dirty_parts::DirtyParts`] at the last poll.
    changes: u64,
    /// Polls since the last work or change.
    quiet: u32,
}

impl PollBackoff {
    /// Resets the backoff after work.
    pub fn worked(&mut self) {
        self.quiet = 0;
    }

    /// Returns how long to sleep after a poll without work. `changes` is the number of changes so
    /// far.
    pub fn next(&mut self, changes: u64) -> Duration {
        if std::mem::replace(&mut self.changes, changes) != changes {
            self.quiet = 0;
        }
        self.quiet = (self.quiet + 1).min(QUIET_LOOKS);
        if self.quiet < QUIET_LOOKS { SHORT } else { LONG }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_are_long_when_nothing_has_happened_for_a_second() {
        let mut backoff = PollBackoff::default();
        let mut short =
            |changes: u64| (0..1000).take_while(|_| backoff.next(changes) == SHORT).count();
        assert_eq!(short(0), 49);
        assert_eq!(short(0), 0, "naps stay long");
        assert_eq!(short(1), 49, "a change");
        backoff.worked();
        assert_eq!((0..1000).take_while(|_| backoff.next(1) == SHORT).count(), 49, "work");
    }
}
