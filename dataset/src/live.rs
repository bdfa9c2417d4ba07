//! Parts of an open data set that snapshots, spills and other background work use.

use crate::clock::unix_us;
use crate::commit::Durability;
use crate::engines::Current;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use store::Store;
use tokio::sync::watch;

/// References to the parts of an open data set.
#[derive(Clone, Copy)]
pub struct Live<'a> {
    /// Current spaces.
    pub current: &'a Current,
    /// Data files and log.
    pub store: &'a Store,
    /// Progress of commits.
    pub durability: &'a Durability,
    /// State shared with the snapshot thread.
    pub snapshots: &'a Snapshots,
    /// Maximum size of all cold files in bytes; 0: limited only by the disk.
    pub max_cold_bytes: u64,
    /// Write rate of merges in bytes per second; 0: unlimited.
    pub merge_bytes_per_s: u64,
    /// Read rate of the scrubber in bytes per second; 0: disabled.
    pub scrub_bytes_per_s: u64,
    /// Whether the process is stopping. Background work checks this and ends early.
    pub is_stopped: &'a (dyn Fn() -> bool + Sync),
}

/// Result of the last snapshot.
#[derive(Clone, Debug, Default)]
pub struct SnapshotStatus {
    /// Number of snapshots that succeeded or failed.
    pub(crate) ended: u64,
    /// Whether a snapshot is requested or running.
    pub running: bool,
    /// Unix time in seconds of the last success, initially of the startup.
    pub last_s: u64,
    /// Duration of the last snapshot.
    pub took: Duration,
    /// Bytes that the last snapshot wrote.
    pub bytes: u64,
    /// Error of the last snapshot, if it failed.
    pub error: Option<Arc<str>>,
}

/// State shared by the snapshot thread and its callers.
pub struct Snapshots {
    /// Result of the last snapshot.
    pub saved: watch::Sender<SnapshotStatus>,
    pub(crate) wanted: Mutex<bool>,
    pub(crate) nudge: Condvar,
    /// Lock held while a spill or a snapshot writes data files. A snapshot releases the lock
    /// between files.
    pub(crate) alone: Mutex<()>,
    /// Number of spills that wait for `alone`, plus number of SAVE commands that wait for a
    /// snapshot.
    awaited: AtomicUsize,
    /// Number of changes at the last snapshot.
    pub(crate) changes: AtomicU64,
}

impl Default for Snapshots {
    fn default() -> Self {
        let saved = SnapshotStatus { last_s: unix_us() / 1_000_000, ..SnapshotStatus::default() };
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
    /// Wakes the snapshot thread when the server stops.
    pub fn wake(&self) {
        drop(self.wanted.lock());
        self.nudge.notify_one();
    }

    /// Requests a snapshot. Returns the number of snapshots that have ended so far, or `None` if a
    /// snapshot is already requested or running.
    pub fn begin(&self) -> Option<u64> {
        let mut before = None;
        self.saved.send_if_modified(|s| {
            if !s.running {
                // A requested snapshot counts as running, so that other callers do not request
                // another snapshot.
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

    /// Clears the pending request, and returns whether a request was pending.
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
                return Err("the server is shutting down".to_owned());
            }
        };
        match saved.wait_for(|s| s.ended > before).await {
            Ok(s) => s.error.as_ref().map_or(Ok(()), |e| Err(e.to_string())),
            Err(_) => Err("the server is shutting down".to_owned()),
        }
    }

    /// Locks the data files for a spill. A running snapshot releases the lock after its current
    /// file, because writers may be waiting for memory.
    pub(crate) fn interrupt(&self) -> MutexGuard<'_, ()> {
        let _waits = Waits::new(&self.awaited);
        self.alone.lock()
    }

    /// Whether a spill waits for the lock, or SAVE waits for a snapshot.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.load(Relaxed) > 0
    }

    /// Returns the approximate number of rows and pairs changed since the last snapshot; at least 1
    /// if any has changed.
    pub fn changes(&self, durability: &Durability) -> u64 {
        let committer = durability.committer();
        let queued = committer.queued_keys() as u64;
        let changes = durability.parts.changes().saturating_sub(self.changes.load(Relaxed));
        // The commit thread may have drained marks that it has not counted yet.
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
