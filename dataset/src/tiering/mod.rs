//! Spilling: the oldest table of a space becomes a cold file, and what changed of cold rows is
//! merged into a new one. One procedure for both.
//!
//! ```text
//!   1  counter::Space::begin_spill   the line rises; then the ids of the range that are in memory,
//!                                    rising, piece by piece
//!   2  a new file                    rows in memory, and of the old files' rows those that are
//!                                    neither in memory nor deleted
//!   3  the log is flushed            what the file has seen, the log has: no half of an action is
//!                                    in a file alone; the manifest says how far the log went, so
//!                                    that one which was cut since is refused
//!   4  the manifest                  names the new file, and neither the old ones nor the range's
//!                                    snapshot file
//!   5  the file answers              then rows that are in memory as they are in the file leave
//! ```
//!
//! It begins only if the disk has room for all that it may write: on a disk that is nearly full the
//! log is to have what is left. A step that fails (a disk that fills up meanwhile) leaves
//! everything as it was, and is tried again.
//!
//! A crash before 4 leaves the old state: the rows come from the snapshot, the log and the old
//! files. After 4 they come from the new file and the log, which still begins where the manifest
//! says: replaying it puts those rows into memory that it names, in their latest state, and they
//! are newer than the file. A replica spills as its master does, by its own memory: what it has
//! applied its log has, and its files are its own, as its snapshots are. Writes go on all the time;
//! those that come after the walk stay in memory, as the file's overlay.

pub(crate) mod counters;
pub(crate) mod filters;
pub mod io_throttle;
pub(crate) mod ledgers;
mod rebuild;
pub mod replay_filter;
mod rows;
mod scrub;
mod spiller;

use crate::commit::Durability;
use crate::commit::dirty_parts::DirtyParts;
use crate::engines::{CounterSpace, Engines, ExistenceSpace};
use crate::live::Live;
use crate::log_records::RecordKind;
use counter::RangeStats;
pub use ledgers::drop_pairs;
use parking_lot::MutexGuard;
pub use spiller::Spiller;
use spiller::note_trouble;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use store::{ColdFile, FileEntry, Store};

/// Writers will soon wait when less than this part of what a space keeps free is left: they do at
/// half of that.
const URGENT: u64 = 2;

/// The limit of all cold files is reached.
pub(crate) fn no_room(store: &Store) -> store::Error {
    let source =
        std::io::Error::new(std::io::ErrorKind::QuotaExceeded, "spill.max_bytes is reached");
    store::Error::Full { path: store.path(""), doing: "writing a cold file to", source }
}

/// What a spill did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spilled {
    /// Rows in the new files.
    pub(crate) rows: u64,
    /// Rows that left memory.
    pub left: u64,
    /// Bytes of the new files.
    pub(crate) bytes: u64,
}

/// Where a spill happens.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    pub(crate) store: &'a Store,
    pub(crate) durability: &'a Durability,
    /// Bytes that all cold files may take; 0: as many as the disk has.
    pub(crate) most_bytes: u64,
    pub(crate) log: SpillLog<'a>,
}

/// The log whose changes a spill writes to files.
#[derive(Clone, Copy)]
pub(crate) enum SpillLog<'a> {
    /// Written by the commit thread, as the data set is served.
    Served(Live<'a>),
    /// Replayed up to this offset.
    Replayed(u64),
    /// Written by a test, which syncs it and gives its end.
    #[cfg(test)]
    Stepped(&'a dyn Fn() -> store::Result<u64>),
}

impl<'a> Ground<'a> {
    fn of(live: &Live<'a>) -> Ground<'a> {
        Ground {
            store: live.store,
            durability: live.durability,
            most_bytes: live.max_cold_bytes,
            log: SpillLog::Served(*live),
        }
    }

    fn live(&self) -> Option<Live<'a>> {
        match self.log {
            SpillLog::Served(live) => Some(live),
            _ => None,
        }
    }

    /// Whether this thread is waited for: by a space whose memory is short, or by a stop.
    pub(crate) fn hurries(&self) -> bool {
        self.live().is_some_and(|live| {
            is_waited_for(&live, |space| counters::is_short(space, space.memory_limit_bytes()))
        })
    }

    /// Whether there is no time for rests: writers will soon wait, or others do already. Without a
    /// data set that is served there is nothing to rest for.
    pub(crate) fn is_urgent(&self) -> bool {
        let is_nearly_full = |space: &CounterSpace| {
            let limit = space.memory_limit_bytes();
            space.spills() && space.memory_bytes() > limit - space.spare(limit) / URGENT
        };
        self.live()
            .is_none_or(|live| live.snapshots.is_awaited() || is_waited_for(&live, is_nearly_full))
    }

    /// Has everything in the log, and durable, that a new file may have seen. Gives an offset up to
    /// which the log is durable, for the manifest: a log that ends before it has lost something
    /// that the file has. 0 while the log is replayed, which is durable as it is.
    pub(crate) fn flush(&self) -> store::Result<u64> {
        match self.log {
            SpillLog::Served(_) => {
                self.durability.flush()?;
                Ok(self.durability.positions().1.offset)
            }
            SpillLog::Replayed(_) => Ok(0),
            #[cfg(test)]
            SpillLog::Stepped(sync) => sync(),
        }
    }

    /// Gives an offset of the log up to which all changes are both synced and in memory. Much of
    /// what is in memory is synced first, so that little lies behind that.
    fn settle(&self) -> store::Result<u64> {
        match self.log {
            SpillLog::Served(_) => {
                self.durability.flush()?;
                Ok(self.durability.certain().offset)
            }
            SpillLog::Replayed(applied) => Ok(applied),
            #[cfg(test)]
            SpillLog::Stepped(sync) => sync(),
        }
    }

    /// Takes files out of the manifest that lie below the horizon, which must be in the log,
    /// safely, before.
    fn take_out<'f>(&self, gone: impl Iterator<Item = &'f FileEntry>) -> store::Result<()> {
        let durable = self.flush()?;
        let names: Vec<String> = gone.map(|file| file.name.clone()).collect();
        self.store.replace_files(Vec::new(), &names, durable)
    }

    /// Bytes that new files may take which replace some of `replaced` bytes. An error if the disk
    /// has less room than may be `needed`.
    pub(crate) fn room_for(&self, needed: u64, replaced: u64) -> store::Result<u64> {
        if self.store.disk().free_bytes().is_ok_and(|free| free < needed) {
            let source = std::io::Error::new(
                std::io::ErrorKind::StorageFull,
                format!("it may take {needed} bytes"),
            );
            return Err(store::Error::Full {
                path: self.store.path(""),
                doing: "beginning a cold file in",
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

/// Deletes files that the manifest does not name any more. What a replica still fetches goes with a
/// later snapshot.
fn discard(store: &Store, files: &[Arc<ColdFile>]) {
    let unpinned = files.iter().filter(|file| !store.is_pinned(&file.entry().name));
    unpinned.for_each(|file| file.retire(store.disk().clone()));
}

/// Removes the files of spaces that were dropped. That they were must be in the log, safely: a
/// start looks for the files of the spaces that it finds there. No other thread may write files.
/// Whether there were any.
pub(crate) fn remove_dropped(
    store: &Store,
    engines: &Engines,
    parts: &DirtyParts,
) -> store::Result<bool> {
    let manifest = store.manifest().clone();
    let dropped = manifest.files.iter().filter(|file| engines.is_dropped(file.tag.space));
    let dropped: Vec<&FileEntry> = dropped.collect();
    if dropped.is_empty() {
        return Ok(false);
    }
    dropped.iter().for_each(|file| parts.forget_space(file.tag.space));
    let names: Vec<String> = dropped.iter().map(|file| file.name.clone()).collect();
    store.replace_files(Vec::new(), &names, 0)?;
    store.trim()?;
    Ok(true)
}

/// The same while the data set is served.
pub fn forget_dropped(live: &Live<'_>) -> store::Result<bool> {
    let has_any = || {
        let engines = live.current.load();
        live.store.manifest().files.iter().any(|file| engines.is_dropped(file.tag.space))
    };
    if !has_any() {
        return Ok(false);
    }
    live.durability.flush()?;
    let _alone = live.snapshots.interrupt();
    remove_dropped(live.store, &live.current.load(), &live.durability.parts)
}

/// For a spill of this space: no other thread writes data files until the guard is dropped; `None`
/// if the space was dropped meanwhile.
fn alone_with<'a>(live: &Live<'a>, number: u32) -> Option<MutexGuard<'a, ()>> {
    let alone = live.snapshots.interrupt();
    live.current.now().has(number).then_some(alone)
}

/// Spills the oldest range of which anything is in memory; `None` if there is none.
pub fn spill_oldest(live: &Live<'_>, space: &CounterSpace) -> store::Result<Option<Spilled>> {
    let Some(_alone) = alone_with(live, space.number()) else { return Ok(None) };
    let is_worth =
        |range: &RangeStats| range.rows > 0 || space.tombs_of(range.low, range.last).0 > 0;
    let worth = space.ranges().into_iter().filter(|range| !range.open && is_worth(range));
    // The first of the least: one that is damaged if there are no others.
    let oldest = worth.min_by_key(|range| counters::is_damaged(space, range));
    oldest.map(|range| Ground::of(live).spill(space, range.low, range.last, 0)).transpose()
}

/// The same for pairs; what is left to do then is to merge what came late. A ledger writes all that
/// it has in memory.
pub fn spill_oldest_pairs(
    live: &Live<'_>,
    space: &ExistenceSpace,
) -> store::Result<Option<Spilled>> {
    let Some(_alone) = alone_with(live, space.number()) else { return Ok(None) };
    ledgers::flush_all(&Ground::of(live), space)?;
    filters::spill_oldest(&Ground::of(live), space)
}

/// Writes what waits for a merge in the table where most of it does, so that more may come;
/// `None`: there is none that can be merged.
pub fn merge_late(live: &Live<'_>, space: &ExistenceSpace) -> store::Result<Option<Spilled>> {
    let Some(_alone) = alone_with(live, space.number()) else { return Ok(None) };
    filters::merge_late(&Ground::of(live), space)
}

/// Keeps the spaces within their limits while they are filled from the log. Whether the disk took
/// what it had to.
pub(crate) fn keep_within(ground: &Ground<'_>, engines: &Engines) -> bool {
    let limits = if engines.is_filling() { engines.deal() } else { Vec::new() };
    let counters = engines.counters().iter().zip(limits);
    for (space, limit) in counters.filter(|(space, _)| space.spills()) {
        while counters::is_short(space, limit) {
            match counters::make_room(ground, space, limit) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    // It takes more memory than it should, and will spill when it serves.
                    note_trouble(&engines.cold, space.name(), &error);
                    return false;
                }
            }
        }
    }
    let kept = filters::keep_within(ground, engines);
    let kept = kept.and_then(|()| ledgers::keep_within(ground, engines));
    kept.inspect_err(|(name, error)| note_trouble(&engines.cold, name, error)).is_ok()
}

/// Whether a stop waits for what spills, or a space: one of counters of which this says so.
fn is_waited_for(live: &Live<'_>, is_short: impl Fn(&CounterSpace) -> bool) -> bool {
    let engines = live.current.load();
    let (counters, existences) = (engines.counters().iter(), engines.existences().iter());
    (live.is_stopped)()
        || counters.filter(|s| !s.cold().stuck.load(Relaxed)).any(is_short)
        || existences
            .filter(|s| !s.cold().stuck.load(Relaxed))
            .any(|s| filters::to_spill(s).is_some() || s.is_crowded())
}

/// The same for a space of pairs.
fn look_after_pairs(live: &Live<'_>, space: &ExistenceSpace) -> store::Result<Option<bool>> {
    let ground = Ground::of(live);
    if !filters::wants_care(space) {
        return Ok(Some(false));
    }
    let Some(_alone) = alone_with(live, space.number()) else { return Ok(Some(false)) };
    ground.look_after_pairs(space, live.merge_bytes_per_s)
}
