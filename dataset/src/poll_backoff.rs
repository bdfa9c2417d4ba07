//! How long a thread sleeps that now and then looks for work, when there was none. A look costs
//! little, but to be woken for it does: 20 to 60 us of a processor that had nothing else to do, so
//! that two threads at fifty looks a second each took most of what an idle server took. Nearly all
//! of that work comes from writes, so where none come it is looked less often. What comes first
//! after that waits for a long nap at most; writers that need memory before that wait for it, and
//! writers that need a rewritten table do some of that themselves.

use std::time::Duration;

/// Between two looks while something happens.
const SHORT: Duration = Duration::from_millis(20);
/// Between two looks when nothing has happened for a while.
const LONG: Duration = Duration::from_millis(200);
/// So many looks in vain are a while: a second. The log thread says what was changed every tenth of
/// a second.
const QUIET_LOOKS: u32 = 50;

/// The poll backoff of one thread.
#[derive(Default)]
pub struct PollBackoff {
    /// Of [`crate::commit::dirty_parts::DirtyParts`], at the last look.
    changes: u64,
    /// Looks since something happened.
    quiet: u32,
}

impl PollBackoff {
    /// There was work.
    pub fn worked(&mut self) {
        self.quiet = 0;
    }

    /// There was none: how long to sleep.
    /// `changes`: how often the data have changed so far.
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
        assert_eq!(short(0), 0, "and they stay so");
        assert_eq!(short(1), 49, "a change");
        backoff.worked();
        assert_eq!((0..1000).take_while(|_| backoff.next(1) == SHORT).count(), 49, "work");
    }
}
