//! Flushes, merges and trims. All use the procedure of `store/src/rewrite.rs` to merge pairs in
//! memory and the newest runs of a range into one run.
//!
//! A rewrite creates its file before it copies pairs from memory (step 1), so a later drop record
//! applies to the file. The merge policy (`ranges::runs_to_merge`) selects the runs. If the policy
//! selects all runs and the range is too large, the rewrite divides the range into several files.

use crate::ledger::{Ledger, Options};
use crate::merge::{MergeSource, merge};
use crate::pair::{Pair, Pairs};
use crate::ranges::{self, Range, Ranges};
use crate::run::{Run, RunWriter};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use store::{Error, FileEntry, NewFiles, Store, Tag};

/// Selects the ranges to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// All ranges with pairs in memory.
    All,
    /// The ranges with the most pairs, until half of the flush threshold is left in memory. Ranges
    /// of old ids with few pairs stay in memory.
    Most,
}

#[derive(Clone, Copy)]
struct MemoryFlush {
    pairs: usize,
    /// Log offset up to which memory or runs contain all changes; see [`Ledger::flush`].
    covered: u64,
}

struct RangeRewrite<'a> {
    /// Index of the rewritten range.
    at: usize,
    /// Number of runs replaced, newest first.
    merged: usize,
    files: NewFiles<'a>,
    /// Pairs copied from memory, sorted.
    pairs: Pairs,
    /// Lowest identity of the new files.
    identity: u64,
}

impl Ledger {
    /// Moves pairs from memory to runs. Returns the number of pairs. If a run cannot be read, the
    /// flush merges only newer runs, and [`Ledger::take_unreadable`] returns the error. If a range
    /// cannot be written, its pairs stay in memory. The flush continues with the other ranges and
    /// returns the error at the end.
    ///
    /// - `covered`: synced log offset up to which memory or runs contain all changes
    ///   ([`Ledger::covered`]); 0 if unknown.
    /// - `log`: syncs the log and returns the durable offset.
    pub fn flush(
        &self,
        store: &Store,
        flush: Flush,
        covered: u64,
        log: impl FnOnce() -> store::Result<u64>,
    ) -> store::Result<u64> {
        let _files = self.files.lock();
        let ranges = self.ranges.load_full();
        let upper_part = self.options.upper_part;
        let excess: u64 = ranges.iter().map(|range| ranges::excess(range, upper_part)).sum();
        let mut room = self.options.upper_pairs.saturating_sub(excess);
        let (mut left, mut damaged) = (self.memory.len(), None);
        // Half of the flush threshold. Pairs with long members count as several pairs, so fewer
        // pairs may stay in memory.
        let may_stay = self.max_memory_pairs() / 2 * left / self.weight().max(1);
        let mut rewrites: Vec<RangeRewrite<'_>> = Vec::new();
        let written = self.ranges_in_memory(&ranges).into_iter().try_for_each(|(at, pairs)| {
            if flush == Flush::Most && left <= may_stay {
                return Ok(());
            }
            // `ranges_in_memory` sorts by size, so the ranges with the most pairs use the shared
            // allowance first.
            let here = room + ranges::excess(&ranges[at], upper_part);
            let from_memory = MemoryFlush { pairs, covered };
            match self.rewrite_readable(store, &ranges, at, from_memory, here) {
                Ok(rewrite) => {
                    let stays = rewrite.merged < ranges[at].runs.len();
                    room = room.saturating_sub(if stays { pairs as u64 } else { 0 });
                    left = left.saturating_sub(pairs);
                    rewrites.push(rewrite);
                }
                Err(error) if is_of_a_file(&error) => drop(damaged.get_or_insert(error)),
                Err(error) => return Err(error),
            }
            Ok(())
        });
        rewrites.sort_by_key(|rewrite| rewrite.at);
        let pairs = rewrites.iter().map(|rewrite| rewrite.pairs.len() as u64).sum();
        self.publish(store, &ranges, rewrites, written, log)?;
        self.flushed_pairs.fetch_add(pairs, Relaxed);
        damaged.map_or(Ok(pairs), Err)
    }

    /// Rewrites the ranges that overlap `low..=high`, and omits pairs of dropped ids and of ids
    /// that `keep` rejects. Returns the number of set pairs that `keep` rejected. Does not change
    /// memory; the caller unsets those pairs. If a range cannot be read, the trim leaves it
    /// unchanged, continues with the other ranges and returns the error at the end.
    pub fn trim(
        &self,
        store: &Store,
        (low, high): (u64, u64),
        keep: impl Fn(u64) -> bool,
        log: impl FnOnce() -> store::Result<u64>,
    ) -> store::Result<u64> {
        let _files = self.files.lock();
        let ranges = self.ranges.load_full();
        let (mut rewrites, mut damaged) = (Vec::new(), None);
        let is_within = |at: usize| ranges[at].low <= high && ranges::high(&ranges, at) >= low;
        let within = (0..ranges.len()).filter(|&at| is_within(at));
        let (empty, written): (Vec<_>, Vec<_>) = within.partition(|&at| ranges[at].runs.is_empty());
        // Drop records apply only to runs. These ranges have no runs, and the lock prevents new
        // runs.
        for at in empty {
            self.forget_drops(ranges[at].low, ranges::high(&ranges, at), u64::MAX);
        }
        let removed = Cell::new(0);
        let keep = |pair: Pair<'_>| {
            let keeps = keep(pair.id);
            removed.set(removed.get() + u64::from(pair.set && !keeps));
            keeps
        };
        let written = written.into_iter().try_for_each(|at| {
            let all = ranges[at].runs.len();
            match self.rewrite(store, &ranges, (at, all), None, &keep) {
                Ok(rewrite) => rewrites.push(rewrite),
                Err(error) if is_of_a_file(&error) => drop(damaged.get_or_insert(error)),
                Err(error) => return Err(error),
            }
            Ok(())
        });
        self.publish(store, &ranges, rewrites, written, log)?;
        damaged.map_or(Ok(removed.get()), Err)
    }

    /// Removes all ranges that are entirely below `horizon`, without reading them, and their pairs
    /// in memory. Returns whether any range was removed. Other pairs below the horizon stay.
    pub fn drop_below(&self, store: &Store, horizon: u64) -> store::Result<bool> {
        let _files = self.files.lock();
        let ranges = self.ranges.load_full();
        let below = ranges.partition_point(|range| range.low < horizon);
        let below = (0..below).take_while(|&at| ranges::high(&ranges, at) < horizon).count();
        let gone: Vec<_> = ranges[..below].iter().flat_map(|range| range.runs.clone()).collect();
        if gone.is_empty() {
            return Ok(false);
        }
        NewFiles::new(store).publish(|| Ok(0), |file| is_among(&gone, file))?;
        let mut left = ranges[below..].to_vec();
        ranges::begin_at_zero(&mut left);
        let last = ranges::high(&ranges, below - 1);
        self.put_ranges(left);
        self.memory.copy(&(0..=last), |piece| self.memory.remove_copied(piece, |_| true));
        store.retire(gone.iter().map(|run| run.file()));
        Ok(true)
    }

    /// Returns the indexes of the ranges with pairs in memory, each with the number of pairs,
    /// largest first.
    fn ranges_in_memory(&self, ranges: &Ranges) -> Vec<(usize, usize)> {
        let mut counts = vec![0usize; ranges.len()];
        self.memory.count(|id, pairs| counts[ranges::at(ranges, id)] += pairs);
        let mut ranges_in_memory: Vec<(usize, usize)> =
            counts.into_iter().enumerate().filter(|&(_, count)| count > 0).collect();
        ranges_in_memory.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        ranges_in_memory
    }

    /// Flushes the range at index `at`. Merges the runs that the merge policy selects, but only
    /// runs newer than the newest unreadable run.
    fn rewrite_readable<'a>(
        &'a self,
        store: &'a Store,
        ranges: &Ranges,
        at: usize,
        from_memory: MemoryFlush,
        room: u64,
    ) -> store::Result<RangeRewrite<'a>> {
        let Options { runs: most, upper_part, .. } = self.options;
        let pairs = from_memory.pairs;
        let runs = &ranges[at].runs;
        let sizes: Vec<u64> = runs.iter().map(|run| run.pairs()).collect();
        let mut readable = runs.len();
        loop {
            let most = most.saturating_sub(runs.len() - readable).max(1);
            let sizes = &sizes[..readable];
            let merged = ranges::runs_to_merge(sizes, pairs as u64, most, upper_part, room);
            let error =
                match self.rewrite(store, ranges, (at, merged), Some(from_memory), &|_| true) {
                    Ok(rewrite) => return Ok(rewrite),
                    Err(error) => error,
                };
            match runs[..merged].iter().position(|run| is_about(&error, run)) {
                Some(unreadable) => readable = unreadable,
                None => return Err(error),
            }
            *self.unreadable.lock() = Some(error);
        }
    }

    /// Steps 1 and 2 for the range at index `at`: merges the newest `merged` runs into new files.
    fn rewrite<'a>(
        &'a self,
        store: &'a Store,
        ranges: &Ranges,
        (at, merged): (usize, usize),
        from_memory: Option<MemoryFlush>,
        keep: &dyn Fn(Pair<'_>) -> bool,
    ) -> store::Result<RangeRewrite<'a>> {
        let range = &ranges[at];
        let is_lowest = merged == range.runs.len();
        let (low, high) = (range.low, ranges::high(ranges, at));
        let total = from_memory.map_or(0, |from| from.pairs) as u64
            + range.runs[..merged].iter().map(|run| run.pairs()).sum::<u64>();
        // A file's stamp is the log offset that it covers. The stamp of the new file is valid for
        // the whole range, so use only the stamps of runs that cover the whole range.
        let answering = range.runs.iter().filter(|run| run.answers_for(low));
        let answering = answering.filter(|run| run.answers_for(high)).map(|run| run.covered());
        // After a restart the ledger does not know to which runs a drop record applies. If older
        // runs remain that contain dropped pairs, replay must read the deletion and all later
        // writes from the log.
        let flushed = from_memory.filter(|_| is_lowest || !self.has_drops(low, high));
        let flushed = flushed.map(|from| from.covered);
        let pieces = if is_lowest { total.div_ceil(self.options.range_pairs).max(1) } else { 1 };
        let mut output = RunOutput {
            ledger: self,
            store,
            tag: Tag {
                space: self.space,
                kind: self.kind,
                low,
                high,
                stamp: answering.chain(flushed).max().unwrap_or(0),
            },
            is_lowest,
            piece: total.div_ceil(pieces),
            left: pieces - 1,
            last: None,
            dropped: None,
            writer: None,
            files: NewFiles::new(store),
            identity: u64::MAX,
        };
        output.begin()?;
        let copied = from_memory.map(|from| self.copy_memory((low, high), from.pairs));
        let copied = copied.unwrap_or_default();
        let mut sources = vec![MergeSource::of_pairs(copied, Some(output.identity))];
        for run in &range.runs[..merged] {
            sources.push(MergeSource::of_run(run, 0, None)?);
        }
        merge(
            &mut sources,
            |id, run| self.is_dropped_from(id, run),
            |pair| {
                if keep(pair) && (pair.set || !is_lowest) {
                    output.push(pair)?;
                }
                Ok(true)
            },
        )?;
        let pairs = sources.swap_remove(0).into_pairs();
        output.finish()?;
        let RunOutput { files, identity, .. } = output;
        Ok(RangeRewrite { at, merged, files, pairs, identity })
    }

    fn copy_memory(&self, (low, high): (u64, u64), about: usize) -> Pairs {
        let mut pairs = Pairs::with_room(about);
        self.memory.copy(&(low..=high), |piece| piece.iter().for_each(|pair| pairs.push(pair)));
        pairs.sort();
        pairs
    }

    /// Steps 3 to 5: syncs the log, publishes the files, and removes the pairs from memory.
    /// `written` is the result of step 2.
    fn publish(
        &self,
        store: &Store,
        ranges: &Ranges,
        mut rewrites: Vec<RangeRewrite<'_>>,
        written: store::Result<()>,
        log: impl FnOnce() -> store::Result<u64>,
    ) -> store::Result<()> {
        written?;
        let durable = log()?;
        let next = arranged(store, ranges, &rewrites)?;
        let mut added = NewFiles::new(store);
        rewrites.iter_mut().for_each(|rewrite| added.entries.append(&mut rewrite.files.entries));
        let gone: Vec<Arc<Run>> = rewrites
            .iter()
            .flat_map(|rewrite| ranges[rewrite.at].runs[..rewrite.merged].iter().cloned())
            .collect();
        let bytes = added.publish(|| Ok(durable), |file| is_among(&gone, file))?;
        self.put_ranges(next);
        self.version.fetch_add(1, AcqRel);
        for rewrite in &rewrites {
            // A pair that was dropped and set again after the copy stays in memory.
            let is_there = |id| self.dropped_up_to(id) < rewrite.identity;
            self.memory.remove_copied(&rewrite.pairs, is_there);
            let range = &ranges[rewrite.at];
            if rewrite.merged == range.runs.len() {
                let high = ranges::high(ranges, rewrite.at);
                self.forget_drops(range.low, high, rewrite.identity);
            }
        }
        store.retire(gone.iter().map(|run| run.file()));
        self.written_bytes.fetch_add(bytes, Relaxed);
        Ok(())
    }
}

/// Whether the error concerns the file of this run.
fn is_about(error: &Error, run: &Run) -> bool {
    let (Error::Corrupt { path, .. } | Error::Io { path, .. }) = error else { return false };
    path.ends_with(&run.entry().name)
}

/// Whether the error concerns a single file, so that other ranges can still be rewritten.
fn is_of_a_file(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::Io { .. })
}

fn arranged(
    store: &Store,
    ranges: &Ranges,
    rewrites: &[RangeRewrite<'_>],
) -> store::Result<Ranges> {
    let mut next: Ranges = Vec::new();
    let mut rewrites = rewrites.iter().peekable();
    for (at, range) in ranges.iter().enumerate() {
        let Some(rewrite) = rewrites.next_if(|rewrite| rewrite.at == at) else {
            next.push(range.clone());
            continue;
        };
        let rest = &range.runs[rewrite.merged..];
        let new = rewrite.files.entries.iter().map(|entry| Run::open(store, entry).map(Arc::new));
        let new = new.collect::<store::Result<Vec<_>>>()?;
        if rest.is_empty() {
            let low = |run: &Arc<Run>| run.entry().tag.low;
            next.extend(
                new.into_iter().map(|run| Arc::new(Range { low: low(&run), runs: vec![run] })),
            );
        } else {
            let runs = new.into_iter().chain(rest.iter().cloned()).collect();
            next.push(Arc::new(Range { low: range.low, runs }));
        }
    }
    ranges::begin_at_zero(&mut next);
    Ok(next)
}

fn is_among(runs: &[Arc<Run>], file: &FileEntry) -> bool {
    runs.iter().any(|run| run.entry().name == file.name)
}

struct RunOutput<'a> {
    ledger: &'a Ledger,
    store: &'a Store,
    /// Tag of the next file. `high` is the end of the range until the end of the file is known.
    tag: Tag,
    is_lowest: bool,
    /// Number of pairs per file. The pairs of the last id of a file may exceed this number. `left`
    /// is the number of files still to begin.
    piece: u64,
    left: u64,
    last: Option<u64>,
    /// First id of the current file, if it was dropped after the first file was begun.
    dropped: Option<u64>,
    writer: Option<RunWriter>,
    files: NewFiles<'a>,
    /// Identity of the first file.
    identity: u64,
}

impl RunOutput<'_> {
    fn begin(&mut self) -> store::Result<()> {
        let writer = RunWriter::begin(self.store, self.tag, self.is_lowest)?;
        self.ledger.newest.fetch_max(writer.identity(), AcqRel);
        self.identity = self.identity.min(writer.identity());
        self.writer = Some(writer);
        Ok(())
    }

    fn push(&mut self, pair: Pair<'_>) -> store::Result<()> {
        let ends = |writer: &mut RunWriter| {
            self.left > 0 && writer.pairs() >= self.piece && self.last != Some(pair.id)
        };
        if let Some(mut full) = self.writer.take_if(ends) {
            full.end_at(pair.id - 1);
            self.tag.low = pair.id;
            self.left -= 1;
            self.add(full)?;
        }
        self.last = Some(pair.id);
        if self.writer.is_none() {
            let first = self.identity;
            self.begin()?;
            self.dropped = self.ledger.is_dropped_since(pair.id, first).then_some(pair.id);
        }
        if self.dropped == Some(pair.id) {
            return Ok(());
        }
        self.writer.as_mut().map_or(Ok(()), |writer| writer.push(pair))
    }

    fn add(&mut self, writer: RunWriter) -> store::Result<()> {
        self.ledger.written_pairs.fetch_add(writer.pairs(), Relaxed);
        self.files.entries.extend(writer.finish()?);
        Ok(())
    }

    fn finish(&mut self) -> store::Result<()> {
        self.writer.take().map_or(Ok(()), |writer| self.add(writer))
    }
}
