//! Poll backoff: how long a background thread sleeps when it finds no work.
//!
//! A wake-up costs 20 to 60 us on an idle processor, far more than the poll itself. Two threads
//! with fifty polls per second each caused most of the load of an idle server. Nearly all work of
//! these threads is caused by writes, so without writes they poll rarely. The first work after a
//! quiet period is delayed by at most `QUIET_POLL_INTERVAL`. This does not delay writers: they can
//! wait for memory, or rewrite part of a table themselves.

use std::time::Duration;

/// Poll interval while data changes.
const BUSY_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Poll interval in a quiet period.
const QUIET_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Number of polls without work or changes after which a quiet period begins: one second. The log
/// thread publishes the number of changes every 100 ms.
const QUIET_POLLS: u32 = 50;

/// Poll backoff of one thread.
#[derive(Default)]
pub struct PollBackoff {
    /// Number of changes at the last poll, from [`crate::commit::dirty_parts::DirtyParts`].
    changes: u64,
    /// Number of polls since the last work or change.
    quiet: u32,
}

impl PollBackoff {
    /// Resets the backoff after work.
    pub fn worked(&mut self) {
        self.quiet = 0;
    }

    /// Returns how long to sleep after a poll without work. `changes` is the total number of
    /// changes.
    pub fn next(&mut self, changes: u64) -> Duration {
        if std::mem::replace(&mut self.changes, changes) != changes {
            self.quiet = 0;
        }
        self.quiet = (self.quiet + 1).min(QUIET_POLLS);
        if self.quiet < QUIET_POLLS { BUSY_POLL_INTERVAL } else { QUIET_POLL_INTERVAL }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_are_long_when_nothing_has_happened_for_a_second() {
        let mut backoff = PollBackoff::default();
        let mut short = |changes: u64| {
            (0..1000).take_while(|_| backoff.next(changes) == BUSY_POLL_INTERVAL).count()
        };
        assert_eq!(short(0), 49);
        assert_eq!(short(0), 0, "naps stay long");
        assert_eq!(short(1), 49, "a change");
        backoff.worked();
        assert_eq!(
            (0..1000).take_while(|_| backoff.next(1) == BUSY_POLL_INTERVAL).count(),
            49,
            "work"
        );
    }
}
