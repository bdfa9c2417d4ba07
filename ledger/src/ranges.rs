//! Ranges of a ledger, and the merge policy.

use crate::run::Run;
use std::sync::Arc;
use store::FileEntry;

#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) low: u64,
    /// Runs, newest first. The last run is the *lowest* and has most of the pairs.
    pub(crate) runs: Vec<Arc<Run>>,
}

/// All ranges, sorted by `low`. The first range begins at id 0.
pub(crate) type Ranges = Vec<Arc<Range>>;

/// Groups runs into ranges. Files of one range overlap, because its lowest run covers the whole
/// range. Files of different ranges do not overlap.
pub(crate) fn arrange(mut runs: Vec<Arc<Run>>) -> Ranges {
    runs.sort_by_key(|run| run.entry().tag.low);
    let mut ranges: Vec<(u64, Vec<Arc<Run>>)> = Vec::new();
    let mut end = None;
    for run in runs {
        let tag = run.entry().tag;
        match ranges.last_mut() {
            Some((_, runs)) if end.is_some_and(|end| tag.low <= end) => runs.push(run),
            _ => ranges.push((tag.low, vec![run])),
        }
        end = end.max(Some(tag.high));
    }
    let mut ranges: Ranges = ranges
        .into_iter()
        .map(|(low, mut runs)| {
            runs.sort_by_key(|run| std::cmp::Reverse(run.identity()));
            Arc::new(Range { low, runs })
        })
        .collect();
    begin_at_zero(&mut ranges);
    ranges
}

/// Extends the first range down to id 0.
pub(crate) fn begin_at_zero(ranges: &mut Ranges) {
    match ranges.first_mut() {
        Some(first) if first.low > 0 => {
            *first = Arc::new(Range { low: 0, runs: first.runs.clone() });
        }
        Some(_) => {}
        None => ranges.push(Arc::new(Range { low: 0, runs: Vec::new() })),
    }
}

pub(crate) fn at(ranges: &Ranges, id: u64) -> usize {
    ranges.partition_point(|range| range.low <= id) - 1
}

pub(crate) fn high(ranges: &Ranges, at: usize) -> u64 {
    ranges.get(at + 1).map_or(u64::MAX, |next| next.low - 1)
}

/// Returns the number of runs, from the newest on, to merge with `pairs` new pairs.
///
/// - 0 if the range may have another run.
/// - All runs if the upper runs exceed 1/`part` of the lowest by `room` or more. The lowest run is
///   thus rewritten at most `part` times while it doubles, and the filters of the upper runs stay
///   small.
/// - Otherwise the newest run, and each following one that is at most twice as large as all pairs
///   selected so far.
pub(crate) fn runs_to_merge(runs: &[u64], pairs: u64, most: usize, part: u64, room: u64) -> usize {
    let Some((&lowest, upper)) = runs.split_last() else { return 0 };
    let above = upper.iter().sum::<u64>() + pairs;
    if above >= (lowest / part).saturating_add(room) {
        return runs.len();
    }
    if runs.len() < most {
        return 0;
    }
    let mut merged = pairs;
    for (n, &run) in runs.iter().enumerate() {
        if n > 0 && run > 2 * merged {
            return n;
        }
        merged += run;
    }
    runs.len()
}

/// Number of pairs by which the upper runs of a range exceed 1/`part` of the lowest.
pub(crate) fn excess(range: &Range, part: u64) -> u64 {
    let mut sizes = range.runs.iter().rev().map(|run| run.pairs());
    let lowest = sizes.next().unwrap_or(0);
    sizes.sum::<u64>().saturating_sub(lowest / part)
}

pub(crate) fn is_of(file: &FileEntry, space: u32, kind: u32) -> bool {
    (file.tag.space, file.tag.kind) == (space, kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_range_stay_bounded_and_few_pairs_are_rewritten() {
        let few = [(1000, 20_000), (50, 40_000), (100_000, 300)].map(|few| (few, 0));
        for ((flush, flushes), room) in few.into_iter().chain([((1000, 20_000), 4000)]) {
            // The newest run comes first.
            let (mut runs, mut written): (Vec<u64>, u64) = (vec![], 0);
            for _ in 0..flushes {
                let n = runs_to_merge(&runs, flush, 4, 12, room);
                let merged = runs.drain(..n).sum::<u64>() + flush;
                runs.insert(0, merged);
                written += merged;
                assert!(runs.len() <= 4);
                let upper: u64 = runs[..runs.len() - 1].iter().sum();
                assert!(upper <= room + runs[runs.len() - 1] / 12, "{runs:?}");
            }
            let each = written / (flush * flushes);
            assert!(each < 50, "{each} times, by {flush}");
        }
    }
}
