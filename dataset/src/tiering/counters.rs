//! What of a counter space is spilled or merged, and when: its oldest tables when memory is short,
//! the changes of cold rows where they are most, small neighbours.

use super::{Ground, Spilled, alone_with, discard};
use crate::cold::files::Files;
use crate::cold::overlay::overlay_bytes;
use crate::engines::CounterSpace;
use crate::live::Live;
use counter::RangeStats;
use std::sync::Arc;
use store::ColdFile;

/// A table of fewer bytes is not worth a file, nor a merge; nor is one of less than so many parts
/// of the limit.
const LEAST_BYTES: u64 = 64 << 10;
const LEAST_PART: u64 = 64;
/// Changed cold rows are merged when they take so much (one part in so many) of the limit.
const OVERLAY: u64 = 16;
/// A file is small if it has less than so many parts of a table's rows; so many neighbours become
/// one.
const SMALL: u64 = 4;
const NEIGHBOURS: usize = 4;

/// Whether a range cannot be merged now.
pub(super) fn is_damaged(space: &CounterSpace, range: &RangeStats) -> bool {
    space.cold().damaged.has(range.low, range.last)
}

/// The spilled range of which changes take most memory, of those that can be merged, and how much
/// they take.
fn most_changed(space: &CounterSpace) -> Option<(RangeStats, u64)> {
    let files = space.cold().files();
    let is_cold = |range: &RangeStats| !range.open && files.overlap(range.low, range.last);
    let weighed =
        space.ranges().into_iter().filter(|range| is_cold(range) && !is_damaged(space, range)).map(
            |range| {
                let rows = if range.rows > 0 { range.bytes } else { 0 };
                (range, rows + space.tombs_of(range.low, range.last).1)
            },
        );
    weighed.filter(|range| range.1 > 0).max_by_key(|range| range.1)
}

/// Removes the files of which all rows were retired. No other thread may write files. Whether there
/// were any.
pub(crate) fn remove_retired(ground: &Ground<'_>, space: &CounterSpace) -> store::Result<bool> {
    let (cold, files) = (space.cold(), space.cold().files());
    let gone = files.below(space.horizon());
    if gone.is_empty() {
        return Ok(false);
    }
    ground.take_out(gone.iter().map(|file| file.entry()))?;
    cold.set_files(Files::new(files.all()[gone.len()..].to_vec()));
    discard(ground.store, gone);
    Ok(true)
}

/// The oldest neighbouring tables that have not been spilled, with as many rows as one table has,
/// and more than `least` bytes: of the range of ids that has most of those.
fn oldest_fresh(space: &CounterSpace, least: u64) -> Option<RangeStats> {
    let (ranges, files) = (space.ranges(), space.cold().files());
    let is_fresh = |table: &RangeStats| !table.open && !files.overlap(table.low, table.last);
    let oldest = |run: &[RangeStats]| {
        let mut all = run[0];
        for table in &run[1..] {
            if all.rows + table.rows > space.rows_per_table() {
                break;
            }
            all.last = table.last;
            all.rows += table.rows;
            all.bytes += table.bytes;
        }
        (is_fresh(&all) && all.bytes > least && all.rows > 0).then_some(all)
    };
    let of_range = |tables: &[RangeStats]| {
        let bytes = tables.iter().filter(|table| is_fresh(table)).map(|table| table.bytes);
        let oldest = tables.chunk_by(|a, b| is_fresh(a) && is_fresh(b)).find_map(oldest)?;
        Some((bytes.sum::<u64>(), oldest))
    };
    let all = ranges.split_inclusive(|table| table.open).filter_map(of_range);
    all.max_by_key(|(bytes, _)| *bytes).map(|(_, oldest)| oldest)
}

/// Makes room: spills the oldest tables that have not been spilled, or merges where changes take
/// more than that. Where there is neither, a range of ids makes room whose table is still open;
/// `None` if there is none but the newest.
pub(super) fn make_room(
    ground: &Ground<'_>,
    space: &CounterSpace,
    limit: u64,
) -> store::Result<Option<Spilled>> {
    let least = LEAST_BYTES.min(limit / LEAST_PART);
    let fresh = oldest_fresh(space, least);
    let changed =
        most_changed(space).filter(|changed| changed.1 > fresh.map_or(least, |fresh| fresh.bytes));
    let (before, mut done) = (space.memory_bytes(), None);
    for range in changed.map(|changed| changed.0).into_iter().chain(fresh) {
        let spilled = ground.spill(space, range.low, range.last, 0)?;
        done = Some(spilled);
        // What a range seems to take may be rows of its neighbour, which a rewrite has no memory to
        // part: it would be written again and again, and a writer would wait for ever.
        if spilled.left > 0 || space.memory_bytes() < before {
            break;
        }
    }
    Ok(done.or_else(|| space.close_range().then(Spilled::default)))
}

/// Merges what was changed of cold rows, where most of it is, once it takes too much of the memory.
/// Whether there was anything to do.
fn merge_most_changed(live: &Live<'_>, space: &CounterSpace) -> store::Result<bool> {
    let waiting = overlay_bytes(space, space.cold()) + space.tombstones().1;
    if waiting < space.memory_limit_bytes() / OVERLAY {
        return Ok(false);
    }
    let Some((range, _)) = most_changed(space) else { return Ok(false) };
    let Some(_alone) = alone_with(live, space.number()) else { return Ok(false) };
    Ground::of(live).spill(space, range.low, range.last, live.merge_bytes_per_s)?;
    Ok(true)
}

/// Makes one file of neighbours that are small: a file costs a descriptor, and a step of each
/// search. Whether there were any.
fn merge_neighbours(live: &Live<'_>, space: &CounterSpace) -> store::Result<bool> {
    let files = space.cold().files();
    let damaged =
        |file: &ColdFile| space.cold().damaged.has(file.entry().tag.low, file.entry().tag.high);
    let Some((low, last)) = small_neighbours(files.all(), space.rows_per_table(), damaged) else {
        return Ok(false);
    };
    let Some(_alone) = alone_with(live, space.number()) else { return Ok(false) };
    Ground::of(live).spill(space, low, last, live.merge_bytes_per_s)?;
    Ok(true)
}

/// The range of some neighbours of which each is small and not `damaged`, and all together not
/// large.
fn small_neighbours(
    files: &[Arc<ColdFile>],
    most: u64,
    damaged: impl Fn(&ColdFile) -> bool,
) -> Option<(u64, u64)> {
    let is_small = |file: &Arc<ColdFile>| file.head().rows <= most / SMALL && !damaged(file);
    files
        .chunk_by(|a, b| is_small(a) && is_small(b))
        .filter(|run| run.len() >= NEIGHBOURS)
        .find_map(|run| {
            let mut sum = 0;
            let fits = |file: &&Arc<ColdFile>| {
                sum += file.head().rows;
                sum <= most
            };
            let n = run.iter().take_while(fits).count();
            (n >= NEIGHBOURS).then(|| (run[0].entry().tag.low, run[n - 1].entry().tag.high))
        })
}

/// Whether a space has used up so much of its memory that it is to spill.
pub(super) fn is_short(space: &CounterSpace, limit: u64) -> bool {
    let used = space.memory_bytes();
    if !space.spills() || used <= limit / 2 {
        return false;
    }
    used > limit - space.spare(limit)
}

/// Does for a space what is most urgent; whether there was anything. `None`: memory is short, and
/// nothing can be done about it.
pub(super) fn look_after(live: &Live<'_>, space: &CounterSpace) -> store::Result<Option<bool>> {
    if !space.cold().files().below(space.horizon()).is_empty() {
        let Some(_alone) = alone_with(live, space.number()) else { return Ok(Some(false)) };
        return remove_retired(&Ground::of(live), space).map(Some);
    }
    if is_short(space, space.memory_limit_bytes()) {
        let Some(alone) = alone_with(live, space.number()) else { return Ok(Some(false)) };
        let made = make_room(&Ground::of(live), space, space.memory_limit_bytes())?;
        drop(alone);
        // Tables are not joined across the beginning of a file.
        return Ok((made.is_some() || merge_neighbours(live, space)?).then_some(true));
    }
    Ok(Some(space.spills() && (merge_most_changed(live, space)? || merge_neighbours(live, space)?)))
}
