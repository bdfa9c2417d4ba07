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
//! | tokens | folder | increments that count once |
//! | offsets | folder | how far the events of brokers are taken over |
//! | groups | folder | where consumer groups of streams go on |
//! | head | space | its frontier; of an existence space also the pairs of ids far ahead |

mod load;
pub(crate) mod write;

use crate::clock::unix_us;
use crate::live::{Live, Snapshots};
use std::time::{Duration, Instant};
use store::{Health, time};

pub(crate) use load::{attach_pairs, lay_out, load, read_catalogue};

/// How often it is looked whether a snapshot is due.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Delay of the next scheduled snapshot after a failed one, as in Redis: each attempt writes much
/// in vain.
const RETRY: Duration = Duration::from_secs(5);
/// What a scheduled snapshot leaves free on the disk: the last bytes are the log's.
const LOG_ROOM: u64 = 16 << 20;

/// When snapshots are due.
#[derive(Clone, Copy)]
pub struct Due {
    /// When the log has grown by so many bytes; 0: never.
    pub log_bytes: u64,
    /// After so many seconds; 0: never.
    pub every_s: u64,
}

/// The work of the snapshot thread, step by step.
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
    /// Waits a moment for a request, or for the stop. Whether there is a request.
    pub fn wait(&self, snapshots: &Snapshots, is_stopped: &dyn Fn() -> bool) -> bool {
        let mut wanted = snapshots.wanted.lock();
        if !*wanted && !is_stopped() {
            snapshots.nudge.wait_for(&mut wanted, LOOK_EVERY);
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
            tracing::info!("the snapshot is given up, as the server stops: the log is kept");
        } else if let Err(error) = &result {
            self.not_before = self.last + RETRY;
            tracing::error!("the snapshot failed, the log is kept: {error}");
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

    /// Whether one is due, and counts as running from now on.
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

/// While the log has no room, what is kept of it for replicas that are away gives way, segment by
/// segment.
fn make_room(live: &Live<'_>) {
    if live.durability.committer().health() != Health::Full {
        return;
    }
    match live.store.give_up_oldest_segment() {
        Ok(None) => {}
        Ok(Some((number, bytes))) => tracing::warn!(
            "no room on the disk: segment {number} of the log, {bytes} bytes that were kept for \
             replicas, was removed; one that was away since then is sent all data; make room, or \
             lower keep_log_bytes"
        ),
        Err(error) => {
            tracing::warn!(
                "no room on the disk, and the oldest segment of the log cannot be removed: \
                 {error}; make room"
            )
        }
    }
}
