//! Selects what to spill or merge in a counter space. Spills the oldest tables when memory is
//! short. Merges cold ranges with many changes, and adjacent small files.

use super::ground::{SpillContext, SpillResult, is_short, lock_data_files};
use crate::cold::files::Files;
use crate::cold::overlay::overlay_bytes;
use crate::engines::CounterSpace;
use crate::live::Live;
use counter::RangeStats;
use std::sync::Arc;
use store::{ColdFile, FileEntry, NewFiles};

/// Minimum size of the rows in a new file, in bytes, or 1/`MIN_FILE_PART` of the memory limit if
/// that is less. Smaller runs of tables are spilled only if there is no larger run.
const MIN_FILE_BYTES: u64 = 64 << 10;
const MIN_FILE_PART: u64 = 64;
/// Changed cold rows are merged when they use 1/`OVERLAY` of the memory limit.
const OVERLAY: u64 = 16;
/// A file is small if it has at most 1/`SMALL_FILE_PART` of a table's rows.
const SMALL_FILE_PART: u64 = 4;
/// Minimum number of adjacent small files to merge into one.
const MIN_MERGED_FILES: usize = 4;

fn is_damaged(space: &CounterSpace, range: &RangeStats) -> bool {
    space.cold().damaged.has(range.low, range.last)
}

/// Mergeable cold range whose changes use the most memory, and their size in bytes.
fn most_changed(space: &CounterSpace) -> Option<(RangeStats, u64)> {
    let files = space.cold().files();
    let is_cold = |range: &RangeStats| !range.open && files.overlap(range.low, range.last);
    let weighed =
        space.ranges().into_iter().filter(|range| is_cold(range) && !is_damaged(space, range)).map(
            |range| {
                let rows = if range.rows > 0 { range.bytes } else { 0 };
                (range, rows + space.count_tombstones(range.low, range.last).1)
            },
        );
    weighed.filter(|range| range.1 > 0).max_by_key(|range| range.1)
}

/// Removes files whose rows are all below the horizon. Returns whether it removed a file. No other
/// thread may write files.
pub(crate) fn remove_retired(
    ground: &SpillContext<'_>,
    space: &CounterSpace,
) -> store::Result<bool> {
    let (cold, files) = (space.cold(), space.cold().files());
    let gone = files.below(space.horizon());
    if gone.is_empty() {
        return Ok(false);
    }
    let is_gone = |file: &FileEntry| gone.iter().any(|gone| gone.entry() == file);
    NewFiles::new(ground.store).publish(|| ground.flush(), is_gone)?;
    cold.set_files(Files::new(files.all()[gone.len()..].to_vec()));
    ground.store.retire(gone.iter().map(|file| file.pages()));
    Ok(true)
}

/// Oldest run of adjacent unspilled tables, from the id range with the most bytes in such tables. A
/// run has the rows of one full table, or more than `worthwhile` bytes if that is more. If no run
/// is that large, returns the largest run.
fn oldest_unspilled(space: &CounterSpace, worthwhile: u64) -> Option<RangeStats> {
    let (ranges, files) = (space.ranges(), space.cold().files());
    let is_fresh = |table: &RangeStats| !table.open && !files.overlap(table.low, table.last);
    let oldest = |run: &[RangeStats]| {
        let mut all = run[0];
        for table in &run[1..] {
            if all.rows + table.rows > space.rows_per_table() && all.bytes > worthwhile {
                break;
            }
            all.last = table.last;
            all.rows += table.rows;
            all.bytes += table.bytes;
        }
        (is_fresh(&all) && all.rows > 0).then_some(all)
    };
    let of_range = |tables: &[RangeStats]| {
        let bytes = tables.iter().filter(|table| is_fresh(table)).map(|table| table.bytes);
        let mut runs = tables.chunk_by(|a, b| is_fresh(a) && is_fresh(b)).filter_map(oldest);
        let mut largest = runs.next()?;
        while largest.bytes <= worthwhile
            && let Some(run) = runs.next()
        {
            largest = if run.bytes > largest.bytes { run } else { largest };
        }
        Some((bytes.sum::<u64>(), largest))
    };
    let all = ranges.split_inclusive(|table| table.open).filter_map(of_range);
    all.max_by_key(|(bytes, _)| *bytes).map(|(_, oldest)| oldest)
}

/// Frees memory. Spills the oldest unspilled tables, or merges the cold range with the most changes
/// if they use more memory. If neither is possible, closes the open table of an old id range.
/// Returns `None` if no memory can be freed.
pub(super) fn make_room(
    ground: &SpillContext<'_>,
    space: &CounterSpace,
    limit: u64,
) -> store::Result<Option<SpillResult>> {
    let worthwhile = MIN_FILE_BYTES.min(limit / MIN_FILE_PART);
    let fresh = oldest_unspilled(space, worthwhile);
    let changed = most_changed(space)
        .filter(|changed| fresh.is_none_or(|fresh| changed.1 > fresh.bytes.max(worthwhile)));
    if let Some((range, _)) = changed {
        let before = space.memory_bytes();
        let spilled = ground.spill(space, range.low, range.last, 0)?;
        // If memory is too short to split a table, a range may also count rows of the adjacent
        // range. Do not merge it repeatedly without effect, which would block writers forever.
        if spilled.left > 0 || space.memory_bytes() < before {
            return Ok(Some(spilled));
        }
    }
    if let Some(range) = fresh {
        return ground.spill(space, range.low, range.last, 0).map(Some);
    }
    Ok(space.close_range().then(SpillResult::default))
}

/// Merges the cold range with the most changes if changes use too much memory. Returns whether
/// there was any work.
fn merge_most_changed(live: &Live<'_>, space: &CounterSpace) -> store::Result<bool> {
    let waiting = overlay_bytes(space, space.cold()) + space.tombstones().1;
    if waiting < space.memory_limit_bytes() / OVERLAY {
        return Ok(false);
    }
    let Some((range, _)) = most_changed(space) else { return Ok(false) };
    let Some(_alone) = lock_data_files(live, space.number()) else { return Ok(false) };
    SpillContext::of(live).spill(space, range.low, range.last, live.merge_bytes_per_s)?;
    Ok(true)
}

/// Merges adjacent small files into one file, because each file costs a descriptor and search time.
/// Returns whether it merged files.
fn merge_neighbours(live: &Live<'_>, space: &CounterSpace) -> store::Result<bool> {
    let files = space.cold().files();
    let damaged =
        |file: &ColdFile| space.cold().damaged.has(file.entry().tag.low, file.entry().tag.high);
    let Some((low, last)) = small_neighbours(files.all(), space.rows_per_table(), damaged) else {
        return Ok(false);
    };
    let Some(_alone) = lock_data_files(live, space.number()) else { return Ok(false) };
    SpillContext::of(live).spill(space, low, last, live.merge_bytes_per_s)?;
    Ok(true)
}

/// Range of adjacent files that are small and not `damaged`, and have at most `most` rows in total.
fn small_neighbours(
    files: &[Arc<ColdFile>],
    most: u64,
    damaged: impl Fn(&ColdFile) -> bool,
) -> Option<(u64, u64)> {
    let is_small =
        |file: &Arc<ColdFile>| file.head().rows <= most / SMALL_FILE_PART && !damaged(file);
    files
        .chunk_by(|a, b| is_small(a) && is_small(b))
        .filter(|run| run.len() >= MIN_MERGED_FILES)
        .find_map(|run| {
            let mut sum = 0;
            let fits = |file: &&Arc<ColdFile>| {
                sum += file.head().rows;
                sum <= most
            };
            let n = run.iter().take_while(fits).count();
            (n >= MIN_MERGED_FILES).then(|| (run[0].entry().tag.low, run[n - 1].entry().tag.high))
        })
}

/// Performs the most urgent work of a space. Returns whether there was work, or `None` if memory is
/// short and nothing can free it.
pub(super) fn do_urgent_work(live: &Live<'_>, space: &CounterSpace) -> store::Result<Option<bool>> {
    if !space.cold().files().below(space.horizon()).is_empty() {
        let Some(_alone) = lock_data_files(live, space.number()) else { return Ok(Some(false)) };
        return remove_retired(&SpillContext::of(live), space).map(Some);
    }
    if is_short(space, space.memory_limit_bytes()) {
        let Some(alone) = lock_data_files(live, space.number()) else { return Ok(Some(false)) };
        let made = make_room(&SpillContext::of(live), space, space.memory_limit_bytes())?;
        drop(alone);
        // Tables are not joined across the start of a file. Merging the files allows joining the
        // tables.
        return Ok((made.is_some() || merge_neighbours(live, space)?).then_some(true));
    }
    Ok(Some(space.spills() && (merge_most_changed(live, space)? || merge_neighbours(live, space)?)))
}

#[cfg(test)]
mod tests {
    use super::super::{SpillLog, keep_within};
    use super::*;
    use crate::commit::Durability;
    use crate::engines::Engines;
    use crate::options::{Fsync, Options};
    use crate::recovery::recover_from;
    use store::SimDisk;

    /// Writes one field of each row. Like recovery, spills whenever the space is short of memory.
    /// Panics if a write is refused.
    fn write(
        engines: &Engines,
        ground: &SpillContext<'_>,
        ids: impl Iterator<Item = u64>,
        value: i64,
    ) {
        let space = &engines.counters()[0];
        for (n, id) in ids.enumerate() {
            if n % 256 == 0 {
                assert!(keep_within(ground, engines));
                while engines.maintain() {}
            }
            space.set(id, &[(0, value)]).unwrap_or_else(|error| {
                panic!("row {n}, id {id}: {error}");
            });
        }
    }

    fn with_tables(
        rows_per_table: u64,
        limit: u64,
        test: impl FnOnce(&Engines, &SpillContext<'_>),
    ) {
        let mut options = Options { memory_bytes: 64 << 20, ..Options::default() };
        let made = &mut options.counter[0];
        made.spill = true;
        (made.rows_per_table, made.memory_limit_bytes) = (rows_per_table, limit);
        let durability = Arc::new(Durability::new(Fsync::No));
        let disk = Arc::new(SimDisk::new(1));
        let recovered = recover_from(disk, &options, &durability, false, |_| ()).unwrap();
        let store = &recovered.store;
        let ground = SpillContext {
            store,
            durability: &durability,
            most_bytes: 0,
            log: SpillLog::Replayed(0),
        };
        test(&recovered.engines, &ground);
    }

    /// Tests tables smaller than 1/64 of the limit, and tables smaller than 64 KiB.
    #[test]
    fn small_tables_are_spilled_when_memory_is_short() {
        for (rows_per_table, limit, rows) in [(1024, 900_000, 160_000), (2048, 4_000_000, 600_000)]
        {
            with_tables(rows_per_table, limit, |engines, ground| {
                write(engines, ground, 1..=rows, 5);
                assert_eq!(engines.counters()[0].all_rows(), rows);
            });
        }
    }

    #[test]
    fn few_changes_in_each_of_many_cold_tables_are_merged() {
        const ROWS: u64 = 160_000;
        with_tables(1024, 900_000, |engines, ground| {
            write(engines, ground, 1..=ROWS, 5);
            let scattered = (1..=32).flat_map(|first| (first..=ROWS).step_by(40));
            write(engines, ground, scattered, 6);
            assert_eq!(engines.counters()[0].all_rows(), ROWS);
        });
    }
}
