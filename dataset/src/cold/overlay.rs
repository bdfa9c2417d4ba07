//! Estimates for the overlay: rows in memory that were changed after they were spilled.

use super::files::ColdSpace;
use counter::{RangeStats, Space};

/// Memory of tables that overlap cold files, in bytes: approximately the memory that merges can
/// free.
pub(crate) fn overlay_bytes(space: &Space, cold: &ColdSpace) -> u64 {
    let files = cold.files();
    let changed =
        |range: &&RangeStats| !range.open && range.rows > 0 && files.overlap(range.low, range.last);
    space.ranges().iter().filter(changed).map(|range| range.bytes).sum()
}

/// Upper bound for the number of rows that are both in memory and in a file. Rows in memory may be
/// new rows that are not in the file; only a merge detects this. Therefore the estimate for a range
/// is at most the number of rows in its file.
pub(crate) fn changed_rows(space: &Space, cold: &ColdSpace) -> u64 {
    let files = cold.files();
    let files = files.all().iter().map(|file| {
        let tag = file.entry().tag;
        ((tag.low, tag.high), (0, file.head().rows))
    });
    let end = space.cold_end();
    let tables = space.ranges().into_iter().filter(|range| range.low < end);
    let tables = tables.map(|range| ((range.low, range.last), (range.rows, 0)));
    in_both(tables.chain(files).collect())
}

/// Upper bound for the number of rows both in memory and on disk. `ranges` contains the ends of
/// each range, and its number of rows in memory and on disk. First adds up the rows of overlapping
/// ranges.
fn in_both(mut ranges: Vec<((u64, u64), (u64, u64))>) -> u64 {
    ranges.sort_unstable();
    let (mut sum, mut last, mut rows) = (0, None, (0u64, 0u64));
    for ((low, high), (here, there)) in ranges {
        if last.is_some_and(|last| low > last) {
            sum += rows.0.min(rows.1);
            rows = (0, 0);
            last = None;
        }
        last = last.max(Some(high));
        rows = (rows.0 + here, rows.1 + there);
    }
    sum + rows.0.min(rows.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a table below `cold_end` that was never spilled has no rows on disk.
    #[test]
    fn rows_are_in_both_only_where_a_file_has_them() {
        let (memory, disk) = (
            |low, last, rows| ((low, last), (rows, 0)),
            |low, last, rows| ((low, last), (0, rows)),
        );
        assert_eq!(in_both(vec![]), 0);
        // A small table that was never spilled, a table changed after its spill, and a table that
        // is not in a file yet.
        let all = [memory(0, 99, 70), memory(100, 199, 20), disk(100, 199, 100)];
        assert_eq!(in_both(all.to_vec()), 20);
        assert_eq!(in_both([all.to_vec(), vec![memory(200, 299, 50)]].concat()), 20);
        // Memory has ten rows in the range of a file with three rows: at most three are in both.
        assert_eq!(in_both(vec![memory(0, 9, 10), disk(0, 9, 3)]), 3);
        // Two tables that share a file, then two files that share a table.
        let parts = vec![memory(0, 4, 80), memory(5, 9, 80), disk(0, 9, 100)];
        assert_eq!(in_both(parts), 100);
        assert_eq!(in_both(vec![memory(0, 9, 80), disk(0, 4, 30), disk(5, 9, 30)]), 60);
        assert_eq!(in_both(vec![memory(0, u64::MAX, 80), disk(5, 9, 30)]), 30);
    }
}
