//! Pauses of all requests, or of requests that may change data. A pause begins on CLIENT PAUSE,
//! FAILOVER, a promotion, a hand-over of slots, or a shutdown.
//!
//! A paused connection leaves its input unread. No request is refused. Without a pause, an
//! event-loop iteration costs one additional atomic load.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::time::Instant;
use tokio::sync::Notify;

/// Extent of a pause.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Paused {
    /// No requests are paused.
    Nothing,
    /// Requests that may change data are paused.
    Changes,
    /// Requests that may change data or have an effect on other nodes or clients are paused.
    Writes,
    /// All requests are paused.
    All,
}

/// Origin of a pause. Each origin ends only its own pause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// CLIENT PAUSE began the pause.
    Command,
    /// A role change in progress began the pause.
    Role,
    /// A shutdown that waits for replicas began the pause.
    Stop,
    /// A hand-over of slots began the pause.
    Slots,
}

/// All current pauses.
#[derive(Default)]
pub struct Pause {
    /// Widest extent of all pauses.
    level: AtomicU8,
    /// End and extent of each pause, by origin.
    pauses: Mutex<[Option<(Instant, Paused)>; 4]>,
    changed: Notify,
}

impl Pause {
    /// Returns the current extent. Costs one load without a pause.
    #[inline]
    pub fn now(&self) -> Paused {
        if self.level.load(Relaxed) == 0 { Paused::Nothing } else { self.refresh_extent() }
    }

    #[cold]
    fn refresh_extent(&self) -> Paused {
        self.change(|_| ())
    }

    /// Changes the pauses, removes expired pauses, and returns the current extent.
    fn change(&self, change: impl FnOnce(&mut [Option<(Instant, Paused)>; 4])) -> Paused {
        let mut pauses = self.pauses.lock();
        change(&mut pauses);
        let now = Instant::now();
        pauses.iter_mut().for_each(|pause| *pause = pause.filter(|(end, _)| now < *end));
        let widest =
            pauses.iter().flatten().map(|(_, kind)| *kind).max().unwrap_or(Paused::Nothing);
        self.level.store(widest as u8, Relaxed);
        widest
    }

    /// Begins a pause until `end`. If a pause of the same origin is already active, the result has
    /// the later end and the wider extent of the two, as in Redis. An event-loop iteration that
    /// does not see the pause began before this function returns. The caller can wait for such
    /// iterations.
    pub fn begin(&self, by: By, kind: Paused, end: Instant) {
        let _ = self.now();
        self.change(|pauses| {
            let pause = &mut pauses[by as usize];
            *pause = Some(pause.map_or((end, kind), |(e, k)| (end.max(e), kind.max(k))));
        });
        fence(SeqCst);
        self.changed.notify_waiters();
    }

    /// Ends the pause of this origin.
    pub fn end(&self, by: By) {
        self.change(|pauses| pauses[by as usize] = None);
        self.changed.notify_waiters();
    }

    /// Waits until the extent is smaller than at the time of the call. A client that waits for the
    /// end of a FAILOVER must not be woken when another pause ends. Otherwise its request would be
    /// refused during the role change.
    pub async fn wait_until_eased(&self) {
        let was = self.now();
        loop {
            let changed = self.changed.notified();
            let now = self.now();
            if now == Paused::Nothing || now < was {
                return;
            }
            let next = self.pauses.lock().iter().flatten().map(|(end, _)| *end).min();
            let Some(end) = next else { continue };
            let _ = tokio::time::timeout_at(end.into(), changed).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_origin_ends_only_its_own_pause() {
        let pause = Pause::default();
        let later = |s| Instant::now() + Duration::from_secs(s);
        assert_eq!(pause.now(), Paused::Nothing);
        pause.begin(By::Role, Paused::Writes, later(60));
        pause.begin(By::Command, Paused::All, later(60));
        assert_eq!(pause.now(), Paused::All);
        pause.end(By::Command);
        assert_eq!(pause.now(), Paused::Writes, "CLIENT UNPAUSE does not end a FAILOVER's pause");
        pause.begin(By::Command, Paused::Writes, later(60));
        pause.end(By::Role);
        assert_eq!(pause.now(), Paused::Writes, "a FAILOVER does not end CLIENT PAUSE");
        pause.begin(By::Command, Paused::All, Instant::now());
        assert_eq!(pause.now(), Paused::All, "the later end and the wider mode win");
        pause.end(By::Command);
        assert_eq!(pause.now(), Paused::Nothing);
        pause.begin(By::Command, Paused::All, Instant::now());
        assert_eq!(pause.now(), Paused::Nothing, "over");
    }

    #[tokio::test]
    async fn a_waiting_client_is_not_woken_by_another_pause() {
        let pause = Pause::default();
        let later = |s| Instant::now() + Duration::from_secs(s);
        pause.begin(By::Role, Paused::Writes, later(60));
        let wait_until_eased = pause.wait_until_eased();
        tokio::pin!(wait_until_eased);
        let mut waits = async || {
            tokio::time::timeout(Duration::from_millis(20), &mut wait_until_eased).await.is_err()
        };
        assert!(waits().await);
        pause.begin(By::Command, Paused::All, later(60));
        pause.end(By::Command);
        pause.begin(By::Command, Paused::Writes, Instant::now());
        assert!(waits().await, "a FAILOVER is still in progress");
        pause.end(By::Role);
        assert!(!waits().await);
        pause.begin(By::Command, Paused::All, Instant::now() + Duration::from_millis(1));
        pause.begin(By::Role, Paused::Writes, later(60));
        pause.wait_until_eased().await;
        assert_eq!(pause.now(), Paused::Writes, "reads continue");
        pause.begin(By::Command, Paused::Writes, later(60));
        pause.end(By::Role);
        pause.begin(By::Role, Paused::Changes, later(60));
        let wait_until_eased = pause.wait_until_eased();
        tokio::pin!(wait_until_eased);
        assert!(
            tokio::time::timeout(Duration::from_millis(20), &mut wait_until_eased).await.is_err()
        );
        pause.end(By::Command);
        wait_until_eased.await;
        assert_eq!(pause.now(), Paused::Changes, "clients that only publish continue");
    }
}
