//! A data set that is served, as work in the background sees it: snapshots and spills.

use crate::clock::unix_us;
use crate::commit::Durability;
use crate::engines::Current;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use store::Store;
use tokio::sync::watch;

/// See the top of the file.
#[derive(Clone, Copy)]
pub struct Live<'a> {
    /// Its spaces.
    pub current: &'a Current,
    /// Its files.
    pub store: &'a Store,
    /// How far its changes have come.
    pub durability: &'a Durability,
    /// What the snapshot thread shares with its callers.
    pub snapshots: &'a Snapshots,
    /// Bytes that all cold files may take; 0: as many as the disk has.
    pub max_cold_bytes: u64,
    /// Bytes per second that merging writes; 0: as fast as it goes.
    pub merge_bytes_per_s: u64,
    /// Bytes per second that scrubbing reads; 0: it does not.
    pub scrub_bytes_per_s: u64,
    /// Whether the process is to stop: then work is given up.
    pub is_stopped: &'a (dyn Fn() -> bool + Sync),
}

/// How the last snapshot went.
#[derive(Clone, Debug, Default)]
pub struct Saved {
    /// Snapshots that have ended, well or not.
    pub(crate) ended: u64,
    /// One is requested or under way.
    pub running: bool,
    /// Unix time in seconds of the last one that ended well, or of the start.
    pub last_s: u64,
    /// The time of the last one.
    pub took: Duration,
    /// The bytes that it wrote.
    pub bytes: u64,
    /// Why it failed, if it did.
    pub error: Option<Arc<str>>,
}

/// What the snapshot thread shares with its callers.
pub struct Snapshots {
    /// How the last snapshot went.
    pub saved: watch::Sender<Saved>,
    pub(crate) wanted: Mutex<bool>,
    pub(crate) nudge: Condvar,
    /// Held while the folder's data files are written: a snapshot, which lets others in between its
    /// files, or a spill.
    pub(crate) alone: Mutex<()>,
    /// Waiters for the end of what it does: spills for that lock, and SAVE.
    awaited: AtomicUsize,
    /// Changes that the last snapshot has seen.
    pub(crate) changes: AtomicU64,
}

impl Default for Snapshots {
    fn default() -> Self {
        let saved = Saved { last_s: unix_us() / 1_000_000, ..Saved::default() };
        Snapshots {
            saved: watch::Sender::new(saved),
            wanted: Mutex::new(false),
            nudge: Condvar::new(),
            alone: Mutex::new(()),
            awaited: AtomicUsize::new(0),
            changes: AtomicU64::new(0),
        }
    }
}

/// Counts as one waiter until it is dropped.
struct Waits<'a>(&'a AtomicUsize);

impl Waits<'_> {
    fn new(awaited: &AtomicUsize) -> Waits<'_> {
        awaited.fetch_add(1, Relaxed);
        Waits(awaited)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Snapshots {
    /// Wakes the thread that waits for requests: the server stops.
    pub fn wake(&self) {
        drop(self.wanted.lock());
        self.nudge.notify_one();
    }

    /// Asks for a snapshot, unless one is running. Gives how many had ended before it.
    pub fn begin(&self) -> Option<u64> {
        let mut before = None;
        self.saved.send_if_modified(|s| {
            if !s.running {
                // From now on it counts as running, so that no other thread begins one.
                s.running = true;
                before = Some(s.ended);
            }
            before.is_some()
        });
        if before.is_some() {
            *self.wanted.lock() = true;
            self.nudge.notify_one();
        }
        before
    }

    /// Whether a snapshot is requested; from now on it is not any more.
    pub fn take_wanted(&self) -> bool {
        std::mem::take(&mut *self.wanted.lock())
    }

    /// Waits for the end of a snapshot that begins after this call.
    pub async fn save(&self) -> Result<(), String> {
        let _waits = Waits::new(&self.awaited);
        let mut saved = self.saved.subscribe();
        let before = loop {
            saved.borrow_and_update();
            if let Some(before) = self.begin() {
                break before;
            }
            if saved.changed().await.is_err() {
                return Err("the server is ending".to_owned());
            }
        };
        match saved.wait_for(|s| s.ended > before).await {
            Ok(s) => s.error.as_ref().map_or(Ok(()), |e| Err(e.to_string())),
            Err(_) => Err("the server is ending".to_owned()),
        }
    }

    /// For a spill: no other thread writes data files until the guard is dropped. A snapshot under
    /// way makes room at the end of its file: writers may wait for the memory that a spill gives
    /// back.
    pub(crate) fn interrupt(&self) -> MutexGuard<'_, ()> {
        let _waits = Waits::new(&self.awaited);
        self.alone.lock()
    }

    /// Whether the end of what is being written is waited for.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.load(Relaxed) > 0
    }

    /// Changed rows and pairs since the last snapshot, about. At least 1 if there are any.
    pub fn changes(&self, durability: &Durability) -> u64 {
        let committer = durability.committer();
        let queued = committer.queued_keys() as u64;
        let changes = durability.parts.changes().saturating_sub(self.changes.load(Relaxed));
        // The log thread may be between taking the keys and counting them.
        let is_under_way = committer.synced() < committer.ticket();
        (changes + queued).max(u64::from(is_under_way))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;
    use crate::engines::Engines;
    use crate::options::{Fsync, Options};

    #[test]
    fn a_change_counts_before_the_log_thread_has_seen_it() {
        let options = Options::default();
        let catalogue = Catalogue::default().completed(&options);
        let durability = Arc::new(Durability::new(Fsync::No));
        let engines = Engines::new(&options, &catalogue, durability.clone()).unwrap();
        let snapshots = Snapshots::default();
        assert_eq!(snapshots.changes(&durability), 0);
        engines.set(&engines.counters()[0], 1, &[(0, 1)]).unwrap();
        assert_eq!(snapshots.changes(&durability), 1);
    }
}
