//! Moves tables of existence spaces to disk, following the procedure of `store/src/rewrite.rs`:
//!
//! - Step 1: `phantom::Space::begin_rewrite` freezes a table. Later changes are stored exactly, in
//!   memory.
//! - Step 2: writes the table's filters, merged with late pairs, as the pages of a file. Writes
//!   unset pairs to the file's note.
//! - Step 4: removes the old file and the snapshot's file of the table from the manifest.
//! - Step 5: `phantom::Space::end_rewrite` makes lookups read the file, and frees the table's
//!   memory.
//!
//! The manifest stores a log offset with each file (`stamp`). The file contains all changes to its
//! ids before that offset, so recovery skips those records. Recovery reads the ranges of all other
//! tables and the horizon from the log and the snapshot's ring; it must not derive them from
//! missing files.
//!
//! If a step fails, the frozen table stays in memory and remains readable. The next attempt reuses
//! it.

use super::ground::{SpillContext, SpillResult, lock_data_files, out_of_space, to_spill};
use super::io_throttle::IoThrottle;
use crate::cold::PairFile;
use crate::cold::cold_filters::refused;
use crate::cpu_throttle::CpuThrottle;
use crate::engines::{Engines, ExistenceSpace};
use crate::live::Live;
use crate::log_records::RecordKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use store::{BLOCK_BYTES, FileEntry, NewFiles, Tag};

const PAGES_PER_WRITE: usize = 16;

impl SpillContext<'_> {
    /// Writes the table that starts at `low` to disk, or merges its file with late pairs. Returns
    /// `None` if there is no such table. `rate` is in bytes per second, 0 for unlimited. No other
    /// thread may write files.
    pub(crate) fn spill_pairs(
        &self,
        space: &ExistenceSpace,
        low: u64,
        rate: u64,
    ) -> store::Result<Option<SpillResult>> {
        // The quarantine identifies a table by its lowest id.
        space.cold().damaged.note(low, low, self.write_pairs(space, low, rate))
    }

    fn write_pairs(
        &self,
        space: &ExistenceSpace,
        low: u64,
        rate: u64,
    ) -> store::Result<Option<SpillResult>> {
        // Check the free disk space before freezing, because a frozen table collects changes in
        // memory.
        if let Some((oldest, bytes)) = space.oldest_in_memory()
            && oldest == low
            && self.room_for(bytes, 0)? < bytes
        {
            return Err(out_of_space(self.store));
        }
        let covered = self.covered(space, low)?;
        let Some(rewrite) = space.begin_rewrite(low).map_err(refused)? else { return Ok(None) };
        self.write_rewrite(space, rewrite, covered, rate).map(Some)
    }

    /// Log offset up to which the table that starts at `low` contains all changes to its ids.
    /// Returns 0 while pairs of these ids are outliers (stored outside the tables), because no log
    /// record marks their move into the table.
    fn covered(&self, space: &ExistenceSpace, low: u64) -> store::Result<u64> {
        let Some((low, last)) = space.range_over(low) else { return Ok(0) };
        while space.has_outliers(low, last) && space.move_on() {}
        let offset = self.settle()?;
        Ok(if space.has_outliers(low, last) { 0 } else { offset })
    }

    pub(super) fn write_rebuilt(
        &self,
        space: &ExistenceSpace,
        rewrite: phantom::Rewrite,
        rate: u64,
    ) -> store::Result<SpillResult> {
        let low = rewrite.range().0;
        space.cold().damaged.note(low, low, self.write_rewrite(space, rewrite, 0, rate))
    }

    /// Writes the file of a frozen table. `covered` is the log offset up to which the table
    /// contains all changes. The stamp is the higher of `covered` and the old file's offset.
    fn write_rewrite(
        &self,
        space: &ExistenceSpace,
        mut rewrite: phantom::Rewrite,
        covered: u64,
        rate: u64,
    ) -> store::Result<SpillResult> {
        let store = self.store;
        let has_waiters = || self.has_waiters();
        let pace = IoThrottle::new(rate, &has_waiters);
        let cold = space.cold();
        let figures = &cold.shared().figures;
        let (low, last) = rewrite.range();
        let files = cold.files();
        let old = files.iter().find(|file| file.entry().tag.low == low);
        let needed = (rewrite.pages() as u64 + 1) * (BLOCK_BYTES as u64 + 4)
            + 16 * space.most_revoked() as u64;
        if self.room_for(needed, old.map_or(0, |old| old.entry().bytes))? < needed {
            return Err(out_of_space(store));
        }

        cold.stuck.store(false, Relaxed);
        let tag = Tag {
            space: space.number(),
            kind: RecordKind::Table as u32,
            low,
            high: last,
            stamp: old.map_or(0, |old| old.covered()).max(covered),
        };
        let mut writer = store.begin_pages(tag)?;
        let is_urgent = || self.is_urgent();
        copy_pages(&mut rewrite, old, &mut writer, &pace, &CpuThrottle::new(&is_urgent))?;
        let mut new = NewFiles::new(store);
        new.entries.push(writer.finish(&rewrite.note())?);
        let (file, _) = PairFile::open(store, &new.entries[0], space.options(), cold.shared())?;
        let is_old = |file: &FileEntry| old.is_some_and(|old| old.entry() == file);
        let bytes = self.publish(new, tag, is_old, |part| part.low == low)?;

        let others = files.iter().filter(|file| file.entry().tag.low != low);
        cold.set_files(others.chain([&file]).cloned().collect());
        let is_spill = rewrite.is_spill();
        let left = if is_spill { file.pairs() } else { rewrite.late() as u64 };
        space.end_rewrite(rewrite, file);
        store.retire(old.map(|old| old.file()));
        let spilled = SpillResult { rows: 0, left, bytes };
        figures.written_bytes.fetch_add(bytes, Relaxed);
        figures.spilled_pairs.fetch_add(left, Relaxed);
        if is_spill { &figures.spilled_tables } else { &figures.merges }.fetch_add(1, Relaxed);
        tracing::debug!(
            "space '{}': pairs of {low} to {last}: {spilled:?} in {:.1?}",
            space.name(),
            pace.elapsed()
        );
        Ok(spilled)
    }

    /// Removes the files of recycled tables. Returns whether it removed a file.
    pub(crate) fn drop_recycled(&self, space: &ExistenceSpace) -> store::Result<bool> {
        let (files, horizon) = (space.cold().files(), space.horizon());
        let (gone, kept): (Vec<_>, Vec<_>) =
            files.iter().cloned().partition(|file| file.entry().tag.high < horizon);
        if gone.is_empty() {
            return Ok(false);
        }
        let is_gone = |file: &FileEntry| gone.iter().any(|gone| gone.entry() == file);
        NewFiles::new(self.store).publish(|| self.flush(), is_gone)?;
        space.cold().set_files(kept);
        self.store.retire(gone.iter().map(|file| file.file()));
        Ok(true)
    }

    /// Spills or merges the most urgent table. Returns whether there was any work, or `None` if
    /// memory is short and nothing can free it.
    pub(crate) fn do_urgent_pair_work(
        &self,
        space: &ExistenceSpace,
        rate: u64,
    ) -> store::Result<Option<bool>> {
        if let Some(low) = to_spill(space) {
            return Ok(self.spill_pairs(space, low, 0)?.map(|_| true));
        }
        // All tables in memory are open. Closing a range's table allows it to be spilled.
        if space.is_short() && self.close_range(space) {
            return Ok(Some(true));
        }
        let (late, most) = space.late();
        if late > most / 2 {
            // `most_late` returns `None` if all late pairs belong to quarantined tables.
            let Some((low, _)) = most_late(space) else { return Ok(None) };
            let rate = if space.is_crowded() { 0 } else { rate };
            return Ok(Some(self.spill_pairs(space, low, rate)?.is_some()));
        }
        Ok(Some(self.drop_recycled(space)?))
    }
}

impl SpillContext<'_> {
    /// Closes the open table of a range, so that it can be spilled. The log records this before a
    /// file contains the table. Otherwise recovery would treat ids in the gap as outliers. Does
    /// nothing during recovery, which replays such records from the log.
    fn close_range(&self, space: &ExistenceSpace) -> bool {
        self.live().is_some_and(|live| live.current.load().close_range(space))
    }
}

/// Lowest id of the table with the most late pairs among the tables that can be merged, and the
/// number of its late pairs.
fn most_late(space: &ExistenceSpace) -> Option<(u64, usize)> {
    space.most_late(|low| !space.cold().damaged.has(low, low))
}

fn needs_work(space: &ExistenceSpace) -> bool {
    let (late, most) = space.late();
    let horizon = space.horizon();
    to_spill(space).is_some()
        || (space.is_short() && space.has_ranges())
        || late > most / 2
        || space.cold().files().first().is_some_and(|file| file.entry().tag.high < horizon)
}

/// Spills the oldest table in memory. If no table can be spilled, merges the table with the most
/// late pairs. Returns `None` if no table has late pairs either.
pub(crate) fn spill_oldest(
    ground: &SpillContext<'_>,
    space: &ExistenceSpace,
) -> store::Result<Option<SpillResult>> {
    let low = space.oldest_in_memory().or(most_late(space).map(|(low, late)| (low, late as u64)));
    low.map_or(Ok(None), |(low, _)| ground.spill_pairs(space, low, 0))
}

pub(crate) fn merge_late(
    ground: &SpillContext<'_>,
    space: &ExistenceSpace,
) -> store::Result<Option<SpillResult>> {
    most_late(space).map_or(Ok(None), |(low, _)| ground.spill_pairs(space, low, 0))
}

/// Performs the most urgent work of a space. Returns whether there was work, or `None` if memory is
/// short and nothing can free it.
pub(super) fn do_urgent_work(
    live: &Live<'_>,
    space: &ExistenceSpace,
) -> store::Result<Option<bool>> {
    if !needs_work(space) {
        return Ok(Some(false));
    }
    let Some(_alone) = lock_data_files(live, space.number()) else { return Ok(Some(false)) };
    SpillContext::of(live).do_urgent_pair_work(space, live.merge_bytes_per_s)
}

/// Spills until all spaces are within their limits, while recovery replays the log.
pub(crate) fn keep_within(
    ground: &SpillContext<'_>,
    engines: &Engines,
) -> Result<(), (String, store::Error)> {
    for space in engines.existences() {
        loop {
            match ground.do_urgent_pair_work(space, 0) {
                Ok(Some(true)) => {}
                Ok(_) => break,
                Err(error) => return Err((space.name().to_owned(), error)),
            }
        }
    }
    Ok(())
}

fn copy_pages(
    rewrite: &mut phantom::Rewrite,
    old: Option<&Arc<PairFile>>,
    writer: &mut store::PageWriter,
    pace: &IoThrottle<'_>,
    turns: &CpuThrottle<'_>,
) -> store::Result<()> {
    let (mut page, mut pages) =
        ([0; BLOCK_BYTES], Vec::with_capacity(PAGES_PER_WRITE * BLOCK_BYTES));
    let missing = || store::Error::Refused("the old file of the table is not there".to_owned());
    while rewrite
        .next(&mut page, |number, page| old.ok_or_else(missing)?.file().read(number as u64, page))?
    {
        pages.extend_from_slice(&page);
        if pages.len() == PAGES_PER_WRITE * BLOCK_BYTES {
            writer.put(&pages)?;
            pages.clear();
            pace.after(writer.bytes());
            turns.step();
        }
    }
    writer.put(&pages)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::Durability;
    use crate::engines::Current;
    use crate::live::Snapshots;
    use crate::options::{Existence, Options};
    use crate::recovery::{Commits, NodeLog, Recovered, recover};
    use phantom::Member;

    /// The spill thread closes a range. The log must record it, because the next recovery may find
    /// the table in a file.
    #[test]
    fn closed_range_is_in_the_log() {
        const FAR: u64 = 1 << 40;
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options { dir: folder.path().to_path_buf(), ..Options::default() };
        (options.counter, options.view, options.action) = (vec![], vec![], vec![]);
        options.existence = vec![Existence {
            name: "liked".to_owned(),
            pairs_per_table: 400,
            max_tables: 2,
            max_outliers: 1024,
            spill: true,
            ..Existence::default()
        }];
        let durability = Arc::new(Durability::new(options.fsync));
        let Recovered { engines, store, log, .. } =
            recover(&options, &durability, false, |_| ()).unwrap();
        let NodeLog::Own(mut log) = log else { panic!("a master's") };
        engines.lead();
        let current = Current::new(engines);
        durability.begin(&log);
        let mut commits = Commits::new(&durability, &current);
        let space = current.load().existences()[0].clone();
        for id in (0..100).chain(FAR..FAR + 100) {
            current.load().flag(&space, id, &Member::Number(1)).unwrap();
        }
        while current.load().maintain() {}
        commits.round(&mut log).unwrap();
        assert!(space.has_ranges() && to_spill(&space).is_none(), "{:?}", space.layout());
        let snapshots = Snapshots::default();
        let live = Live {
            current: &current,
            store: &store,
            durability: &durability,
            snapshots: &snapshots,
            max_cold_bytes: 0,
            merge_bytes_per_s: 0,
            scrub_bytes_per_s: 0,
            is_stopped: &|| false,
        };
        assert_eq!(do_urgent_work(&live, &space).unwrap(), Some(true));
        assert!(!space.has_ranges());
        commits.round(&mut log).unwrap();
        drop((commits, log, store));
        let durability = Arc::new(Durability::new(options.fsync));
        let restarted = recover(&options, &durability, false, |_| ()).unwrap();
        restarted.engines.lead();
        assert!(!restarted.engines.existences()[0].has_ranges());
    }
}
