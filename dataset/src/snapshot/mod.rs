//! Snapshots: files with the engines' state, written while the server runs. Afterwards old log
//! segments can be removed.
//!
//! Each table is one file. A table that has not changed since the last snapshot keeps its file.
//! Writing a snapshot never blocks readers or writers and needs memory for one chunk only. Changes
//! that it misses are in the log after the position at which the snapshot began (see
//! `store/src/snapshot.rs`).
//!
//! | kind of file | one per | contents |
//! |---|---|---|
//! | catalogue | folder | the catalogue |
//! | rows | table of a counter space | rows in chunks sorted by id |
//! | table | table of an existence space | its filters and unset pairs |
//! | late | existence space | late changes to its cold tables |
//! | ring | existence space | its tables, each with the number of pairs that closes it |
//! | exact pairs | existence space with a ledger | the ledger's memory |
//! | forgotten | existence space | forgotten ids with their generations |
//! | tokens | folder | idempotency tokens |
//! | offsets | folder | offsets of event streams of brokers |
//! | groups | folder | cursors of consumer groups of streams |
//! | head | space | its frontier; for an existence space also its outlier pairs |

mod load;
pub(crate) mod write;

use crate::clock::unix_us;
use crate::live::{Live, Snapshots};
use std::time::{Duration, Instant};
use store::{Health, time};

pub(crate) use load::{attach_pairs, lay_out, load, read_catalogue};

/// Interval between checks whether a snapshot is due.
pub const SNAPSHOT_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Delay of the next scheduled snapshot after a failed snapshot, because each attempt writes much
/// data. Redis uses the same delay.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// Disk space that a scheduled snapshot leaves free for the log, in bytes.
const LOG_ROOM: u64 = 16 << 20;

/// Conditions for scheduled snapshots.
#[derive(Clone, Copy)]
pub struct Due {
    /// A snapshot is due when the log has grown by this number of bytes since the last snapshot; 0
    /// disables this condition.
    pub log_bytes: u64,
    /// A snapshot is due this number of seconds after the last snapshot; 0 disables this condition.
    pub every_s: u64,
}

/// Schedule of the snapshot thread.
pub struct Schedule {
    last: Instant,
    not_before: Instant,
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule { last: time::now(), not_before: time::now() }
    }
}

impl Schedule {
    /// Waits up to [`SNAPSHOT_POLL_INTERVAL`] for a request or for the server to stop. Returns
    /// whether there is a request.
    pub fn wait(&self, snapshots: &Snapshots, is_stopped: &dyn Fn() -> bool) -> bool {
        let mut wanted = snapshots.wanted.lock();
        if !*wanted && !is_stopped() {
            snapshots.nudge.wait_for(&mut wanted, SNAPSHOT_POLL_INTERVAL);
        }
        std::mem::take(&mut *wanted)
    }

    /// Writes a snapshot if it is requested or due.
    pub fn step(&mut self, live: &Live<'_>, asked: bool, due: Due) {
        make_room(live);
        if !asked && !self.begins(live, due) {
            return;
        }
        let snapshots = live.snapshots;
        let started = time::now();
        let result = write::write(live, if asked { 0 } else { LOG_ROOM });
        self.last = time::now();
        if result.is_err() && (live.is_stopped)() {
            tracing::info!("snapshot cancelled, the server is stopping; the log is kept");
        } else if let Err(error) = &result {
            self.not_before = self.last + RETRY_DELAY;
            tracing::error!("snapshot failed, the log is kept: {error}");
        }
        snapshots.saved.send_modify(|s| {
            s.ended += 1;
            s.running = false;
            s.took = time::now() - started;
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

    /// Returns whether a scheduled snapshot is due, and marks a due snapshot as running.
    fn begins(&self, live: &Live<'_>, due: Due) -> bool {
        let (snapshots, durability) = (live.snapshots, live.durability);
        let changed = snapshots.changes(durability) > 0;
        let last_offset = live.store.manifest().replay.offset;
        let log_bytes = durability.positions().1.offset.saturating_sub(last_offset);
        let by_size = due.log_bytes > 0 && log_bytes >= due.log_bytes;
        let by_time = due.every_s > 0 && (time::now() - self.last).as_secs() >= due.every_s;
        let is_due = changed && (by_size || by_time) && time::now() >= self.not_before;
        let begins = is_due && snapshots.begin().is_some();
        if begins {
            *snapshots.wanted.lock() = false;
        }
        begins
    }
}

/// Removes the oldest log segment retained for disconnected replicas if the disk is full.
fn make_room(live: &Live<'_>) {
    if live.durability.committer().health() != Health::Full {
        return;
    }
    match live.store.give_up_oldest_segment() {
        Ok(None) => {}
        Ok(Some((number, bytes))) => tracing::warn!(
            "disk full: removed segment {number} of the log, {bytes} bytes kept for replicas. A \
             replica that still needs it gets a full sync. Free disk space, or lower keep_log"
        ),
        Err(error) => {
            tracing::warn!(
                "disk full, and the oldest segment of the log cannot be removed: {error}. Free \
                 disk space"
            )
        }
    }
}
