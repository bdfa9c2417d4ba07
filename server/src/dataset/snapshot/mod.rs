//! Snapshots: the engines' state as files, written while everything goes on, so that the log need
//! not be kept for ever.
//!
//! One file per table; a table that has not changed since the last snapshot is not written again.
//! The walk takes no lock that a reader or a writer could wait for: what it misses because it
//! changes meanwhile is in the log behind the position that was noted before it began
//! (`store/src/snapshot.rs` has the argument). Extra memory is one chunk.
//!
//! | file's kind | per | holds |
//! |---|---|---|
//! | catalogue | folder | the catalogue |
//! | rows | table of a counter space | rows, in chunks that are sorted by id |
//! | table | table of an existence space | its filters and revoked pairs |
//! | late | existence space | what came late to its tables on the disk |
//! | loose | existence space | ids at which a counter of 0 proves nothing of a flag |
//! | head | space | its frontier; of an existence space also the pairs of ids far ahead |

mod cpu_throttle;
mod dirty_parts;
mod load;
mod write;

use crate::roles::node::{Host, Node, unix_us};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use store::Health;
use tokio::sync::watch;

pub(crate) use dirty_parts::Parts;
pub(crate) use load::{attach_pairs, lay_out, load, read_catalogue};
#[cfg(test)]
pub(crate) use {
    cpu_throttle::Pace,
    write::{Walk, write_pairs},
};

/// How often it is looked whether a snapshot is due.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Delay of the next scheduled snapshot after a failed one, as in Redis: each attempt writes much
/// in vain.
const RETRY: Duration = Duration::from_secs(5);
/// What a scheduled snapshot leaves free on the disk: the last bytes are the log's.
const LOG_ROOM: u64 = 16 << 20;

/// How the last snapshot went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Saved {
    /// Snapshots that have ended, well or not.
    pub(crate) ended: u64,
    pub(crate) running: bool,
    /// Unix time in seconds of the last one that ended well, or of the start.
    pub(crate) last_s: u64,
    pub(crate) took: Duration,
    pub(crate) bytes: u64,
    pub(crate) error: Option<Arc<str>>,
}

/// What the snapshot thread shares with its callers.
pub(crate) struct Snapshots {
    pub(crate) saved: watch::Sender<Saved>,
    wanted: Mutex<bool>,
    nudge: Condvar,
    /// Held while the folder's data files are written: a snapshot, which lets others in between its
    /// files, or a spill.
    alone: Mutex<()>,
    /// Waiters for the end of what it does: spills for that lock, and SAVE.
    awaited: AtomicUsize,
    /// Changes that the last snapshot has seen.
    changes: AtomicU64,
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
    /// Asks for a snapshot, unless one is running. Gives how many had ended before it.
    pub(crate) fn begin(&self) -> Option<u64> {
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

    /// Waits for the end of a snapshot that begins after this call.
    pub(crate) async fn save(&self) -> Result<(), String> {
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

    /// Changed rows and pairs since the last snapshot, about.
    pub(crate) fn changes(&self, parts: &Parts) -> u64 {
        parts.changes().saturating_sub(self.changes.load(Relaxed))
    }
}

/// The snapshot thread: waits until a snapshot is requested or due.
pub(crate) fn run(host: &Host) {
    let (mut last, mut not_before) = (Instant::now(), Instant::now());
    while !host.stop.is_stopped() {
        let node = &host.node();
        let snapshots = &node.snapshots;
        if !node.is_loaded() {
            std::thread::sleep(LOOK_EVERY);
            continue;
        }
        let asked = {
            let mut wanted = snapshots.wanted.lock();
            if !*wanted {
                snapshots.nudge.wait_for(&mut wanted, LOOK_EVERY);
            }
            std::mem::take(&mut *wanted)
        };
        make_room(node);
        if !asked {
            let config = node.config();
            let settings = &config.durability;
            let changed = snapshots.changes(&node.durability.parts) > 0;
            let last_offset = node.store.manifest().replay.offset;
            let log_bytes = node.durability.positions().1.offset.saturating_sub(last_offset);
            let by_size =
                settings.snapshot_log_bytes > 0 && log_bytes >= settings.snapshot_log_bytes;
            let by_time = settings.snapshot_every_s > 0
                && last.elapsed().as_secs() >= settings.snapshot_every_s;
            let due = changed && (by_size || by_time) && Instant::now() >= not_before;
            if !(due && snapshots.begin().is_some()) {
                continue;
            }
            *snapshots.wanted.lock() = false;
        }
        let started = Instant::now();
        let result = write::write(node, if asked { 0 } else { LOG_ROOM });
        last = Instant::now();
        if result.is_err() && node.stop.is_stopped() {
            tracing::info!("the snapshot is given up, as the server stops: the log is kept");
        } else if let Err(error) = &result {
            not_before = last + RETRY;
            tracing::error!("the snapshot failed, the log is kept: {error}");
        }
        snapshots.saved.send_modify(|s| {
            s.ended += 1;
            s.running = false;
            s.took = started.elapsed();
            match result {
                Ok(bytes) => {
                    tracing::info!(
                        "snapshot: {bytes} bytes written in {:.1} s",
                        s.took.as_secs_f64()
                    );
                    s.error = None;
                    s.bytes = bytes;
                    s.last_s = unix_us() / 1_000_000;
                }
                Err(error) => s.error = Some(error.into()),
            }
        });
    }
}

/// While the log has no room, what is kept of it for replicas that are away gives way, segment by
/// segment.
fn make_room(node: &Node) {
    if node.durability.committer().health() != Health::Full {
        return;
    }
    match node.store.give_up_oldest_segment() {
        Ok(None) => {}
        Ok(Some((number, bytes))) => tracing::warn!(
            "no room on the disk: segment {number} of the log, {bytes} bytes that were kept for \
             replicas, was removed; one that was away since then is sent all data"
        ),
        Err(error) => {
            tracing::warn!(
                "no room on the disk, and the oldest segment of the log cannot be removed: {error}"
            )
        }
    }
}
