//! Shared code of all spills: access to files and log ([`SpillContext`]), the conditions for a
//! spill, and error reports.

use crate::cold::Cold;
use crate::cold::damage::damage_location;
use crate::commit::Durability;
use crate::engines::{CounterSpace, ExistenceSpace};
use crate::live::Live;
use crate::log_records::RecordKind;
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;
use store::{FileEntry, NewFiles, Role, Store, Tag};

/// A spill stops pausing when less than 1/`URGENT_PART` of the margin below the memory limit is
/// free. Writers start to wait when half of that is free.
const URGENT_PART: u64 = 2;

pub(crate) fn out_of_space(store: &Store) -> store::Error {
    let source =
        std::io::Error::new(std::io::ErrorKind::QuotaExceeded, "spill.max_disk is reached");
    store::Error::Full { path: store.path(""), doing: "creating a cold file in", source }
}

/// Result of a spill.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpillResult {
    pub(crate) rows: u64,
    /// Number of rows or pairs removed from memory.
    pub left: u64,
    pub(crate) bytes: u64,
}

/// Files, log and limits of a spill.
#[derive(Clone, Copy)]
pub struct SpillContext<'a> {
    pub(crate) store: &'a Store,
    pub(crate) durability: &'a Durability,
    /// Maximum size of all cold files in bytes; 0: limited only by the disk.
    pub(crate) most_bytes: u64,
    pub(crate) log: SpillLog<'a>,
}

/// The log that contains the changes of a spill's rows.
#[derive(Clone, Copy)]
pub(crate) enum SpillLog<'a> {
    /// Log of a running server, written by the commit thread.
    Served(Live<'a>),
    /// Log that recovery has replayed up to this offset.
    Replayed(u64),
    /// Log of a test. The function syncs the log and returns its end.
    #[cfg(test)]
    Stepped(&'a dyn Fn() -> store::Result<u64>),
}

impl<'a> SpillContext<'a> {
    pub(super) fn of(live: &Live<'a>) -> SpillContext<'a> {
        SpillContext {
            store: live.store,
            durability: live.durability,
            most_bytes: live.max_cold_bytes,
            log: SpillLog::Served(*live),
        }
    }

    pub(super) fn live(&self) -> Option<Live<'a>> {
        match self.log {
            SpillLog::Served(live) => Some(live),
            _ => None,
        }
    }

    /// Whether the rate limit is suspended because the server is stopping or a space is short of
    /// memory.
    pub(crate) fn has_waiters(&self) -> bool {
        self.live().is_some_and(|live| {
            has_waiters_for_space(&live, |space| is_short(space, space.memory_limit_bytes()))
        })
    }

    /// True if the spill must run without pauses, because other threads wait for it or will soon
    /// wait. Always true in recovery.
    pub(crate) fn is_urgent(&self) -> bool {
        let is_nearly_full = |space: &CounterSpace| {
            let limit = space.memory_limit_bytes();
            space.spills() && space.memory_bytes() > limit - space.spare(limit) / URGENT_PART
        };
        self.live().is_none_or(|live| {
            live.snapshots.is_awaited() || has_waiters_for_space(&live, is_nearly_full)
        })
    }

    /// Syncs all changes in the log that a new file may contain. Returns the durable end of the log
    /// for the manifest. If recovery finds a shorter log, the log has lost changes that the file
    /// contains.
    pub(crate) fn flush(&self) -> store::Result<u64> {
        match self.log {
            SpillLog::Served(_) => {
                self.durability.flush()?;
                Ok(self.durability.positions().1.offset)
            }
            // Recovery reads only a synced log.
            SpillLog::Replayed(applied) => Ok(applied),
            #[cfg(test)]
            SpillLog::Stepped(sync) => sync(),
        }
    }

    /// Syncs the log. Returns the offset up to which all changes are durable and applied in memory.
    pub(super) fn settle(&self) -> store::Result<u64> {
        match self.log {
            SpillLog::Served(_) => {
                self.durability.flush()?;
                Ok(self.durability.applied_and_synced().offset)
            }
            SpillLog::Replayed(applied) => Ok(applied),
            #[cfg(test)]
            SpillLog::Stepped(sync) => sync(),
        }
    }

    /// Runs steps 3 and 4 of a rewrite (`store/src/rewrite.rs`) for the range of `tag`. Returns the
    /// bytes of the new files.
    ///
    /// - `is_old`: whether the new files replace this cold file.
    /// - `is_part`: whether a snapshot file with this tag contains only ids of the range.
    pub(super) fn publish(
        &self,
        files: NewFiles<'_>,
        Tag { space, kind, low, high, .. }: Tag,
        is_old: impl Fn(&FileEntry) -> bool,
        is_part: impl Fn(&Tag) -> bool,
    ) -> store::Result<u64> {
        let log = || {
            let durable = self.flush()?;
            self.durability.parts.forget_range(space, low, high);
            Ok(durable)
        };
        files.publish(log, |file| match file.role {
            Role::Cold => is_old(file),
            Role::Snapshot => {
                (file.tag.space, file.tag.kind) == (space, kind) && is_part(&file.tag)
            }
        })
    }

    /// Maximum size of new files that replace `replaced` bytes. Returns an error if the disk has
    /// less than `needed` bytes free.
    pub(crate) fn room_for(&self, needed: u64, replaced: u64) -> store::Result<u64> {
        if self.store.disk().free_bytes().is_ok_and(|free| free < needed) {
            let source = std::io::Error::new(
                std::io::ErrorKind::StorageFull,
                format!("up to {needed} bytes are needed"),
            );
            return Err(store::Error::Full {
                path: self.store.path(""),
                doing: "creating a cold file in",
                source,
            });
        }
        if self.most_bytes == 0 {
            return Ok(u64::MAX);
        }
        let files = self.store.cold_files();
        let spilled = files.iter().filter(|file| file.tag.kind != RecordKind::ExactPairs as u32);
        let all = spilled.map(|file| file.bytes).sum::<u64>();
        Ok((self.most_bytes + replaced).saturating_sub(all))
    }
}

/// Acquires the lock for writing data files. Returns `None` if the space has been dropped.
pub(super) fn lock_data_files<'a>(live: &Live<'a>, number: u32) -> Option<MutexGuard<'a, ()>> {
    let alone = live.snapshots.interrupt();
    live.current.now().has(number).then_some(alone)
}

/// Whether a counter space must spill, because its memory use exceeds the limit minus the margin.
pub(super) fn is_short(space: &CounterSpace, limit: u64) -> bool {
    let used = space.memory_bytes();
    if !space.spills() || used <= limit / 2 {
        return false;
    }
    used > limit - space.spare(limit)
}

/// Lowest id of the table to spill, or `None` if memory is not short. The newest table stays in
/// memory.
pub(super) fn to_spill(space: &ExistenceSpace) -> Option<u64> {
    let oldest = || space.oldest_in_memory().map(|(low, _)| low);
    if space.is_short() { oldest() } else { None }
}

/// Whether the server is stopping or a space is short of memory. For counter spaces, `is_short`
/// decides whether memory is short.
fn has_waiters_for_space(live: &Live<'_>, is_short: impl Fn(&CounterSpace) -> bool) -> bool {
    let engines = live.current.load();
    let (counters, existences) = (engines.counters().iter(), engines.existences().iter());
    (live.is_stopped)()
        || counters.filter(|s| !s.cold().stuck.load(Relaxed)).any(is_short)
        || existences
            .filter(|s| !s.cold().stuck.load(Relaxed))
            .any(|s| to_spill(s).is_some() || s.is_crowded())
}

/// Records and counts a failed spill. Spills are retried forever, so this function logs the error
/// only if it differs from the error of the last attempt.
pub(super) fn record_spill_failure(cold: &Cold, name: &str, error: &store::Error) {
    cold.figures.failures.fetch_add(1, Relaxed);
    if let Some((file, offset)) = damage_location(error) {
        cold.damaged.note(&file, offset);
    }
    let text = error.to_string();
    let before = cold.trouble.lock().insert(name.to_owned(), text.clone());
    if before.is_none_or(|before| store::gist(&before) != error.gist()) {
        tracing::error!("space '{name}' cannot spill: {text}. {}", error.advice());
    }
}
