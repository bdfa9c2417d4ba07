//! CLIENT PAUSE: requests are left where they are for a while, all of them or those that may change something.
//!
//! A paused connection keeps its place: what it has sent stays unread, nothing is refused. While nobody pauses, a turn pays for one load.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Instant;
use tokio::sync::Notify;

/// What is paused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Paused {
    /// Nothing.
    Nothing,
    /// What may change data, or what others get.
    Writes,
    /// Everything.
    All,
}

/// Whether clients are paused. See the top of the file.
#[derive(Default)]
pub(crate) struct Pause {
    level: AtomicU8,
    /// The end of the pause, if there is one.
    until: Mutex<Option<(Instant, u8)>>,
    ended: Notify,
}

impl Pause {
    /// What is paused now; one load if nothing is.
    #[inline]
    pub(crate) fn now(&self) -> Paused {
        if self.level.load(Relaxed) == 0 { Paused::Nothing } else { self.look() }
    }

    #[cold]
    fn look(&self) -> Paused {
        let mut until = self.until.lock();
        match *until {
            Some((end, level)) if Instant::now() < end => {
                if level == Paused::All as u8 {
                    Paused::All
                } else {
                    Paused::Writes
                }
            }
            _ => {
                *until = None;
                self.level.store(0, Relaxed);
                Paused::Nothing
            }
        }
    }

    /// Pauses until `end`. Of two pauses the later end and the wider kind hold, as in Redis.
    pub(crate) fn begin(&self, kind: Paused, end: Instant) {
        let _ = self.now();
        let mut until = self.until.lock();
        let (end, level) = until.map_or((end, kind as u8), |(e, l)| (end.max(e), l.max(kind as u8)));
        *until = Some((end, level));
        self.level.store(level, Relaxed);
    }

    /// Ends it.
    pub(crate) fn end(&self) {
        *self.until.lock() = None;
        self.level.store(0, Relaxed);
        self.ended.notify_waiters();
    }

    /// Waits until it ends, by itself or by [`Pause::end`].
    pub(crate) async fn over(&self) {
        loop {
            let notified = self.ended.notified();
            let Some((end, _)) = *self.until.lock() else { return };
            if tokio::time::timeout_at(end.into(), notified).await.is_err() {
                let _ = self.now();
            }
        }
    }
}
