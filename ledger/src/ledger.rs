//! [`Ledger`]: the pairs in memory, runs and dropped ids of one space.

use crate::memory::Memory;
use crate::merge::{MergeSource, merge};
use crate::pair::{MAX_MEMBER_BYTES, Member, OwnedMember, Pair, Pairs};
use crate::question::{Answer, PendingLookup};
use crate::ranges::{self, Range, Ranges};
use crate::run::Run;
use crate::snapshot::IdSnapshot;
use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use store::Store;

/// Maximum memory of a pair that counts once, in bytes. A larger pair counts as several pairs.
const MAX_PAIR_BYTES: usize = 64;

/// Options of a ledger.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Flush threshold: number of pairs in memory, or their memory in units of 64 bytes if that is
    /// more. Default 1,048,576: about 25 MB, or 64 MiB with long members or one pair per id.
    pub memory_pairs: usize,
    /// Maximum number of runs per range. A lookup reads at most one block of each run. Default 4.
    pub runs: usize,
    /// Maximum number of pairs of a range; larger ranges are divided. Default 2,097,152, about 9
    /// MB. The newest range receives most writes, and a full merge rewrites the whole range.
    pub range_pairs: u64,
    /// The upper runs of a range may have up to 1/`upper_part` of the pairs of its lowest run.
    /// Default 12.
    pub upper_part: u64,
    /// Number of pairs that upper runs may have in excess of `upper_part`, summed over all ranges.
    /// Without this allowance every flush would rewrite the new ranges, which receive most writes.
    /// Default 2,097,152; the filters take 5 bits per pair.
    pub upper_pairs: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            memory_pairs: 1 << 20,
            runs: 4,
            range_pairs: 1 << 21,
            upper_part: 12,
            upper_pairs: 1 << 21,
        }
    }
}

/// Current sizes of a ledger, and counters since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of ranges.
    pub ranges: usize,
    /// Number of runs in all ranges.
    pub runs: usize,
    /// Largest number of runs in a range.
    pub most_runs: usize,
    /// Number of pairs in runs, including unset pairs. A pair in several runs counts once per run.
    pub run_pairs: u64,
    /// Size of all runs on disk, in bytes.
    pub run_bytes: u64,
    /// Number of pairs in memory, including unset pairs.
    pub memory_pairs: usize,
    /// Memory use of the pairs in memory, in bytes.
    pub memory_bytes: usize,
    /// Memory use of the indexes, checksums and filters of all runs, in bytes.
    pub index_bytes: usize,
    /// Number of dropped ids whose pairs may still be in runs. [`Ledger::trim`] removes those
    /// pairs.
    pub drops: usize,
    /// Number of pairs moved from memory to runs.
    pub flushed_pairs: u64,
    /// Number of pairs written to runs by flushes and merges.
    pub written_pairs: u64,
    /// Number of bytes written to runs.
    pub written_bytes: u64,
}

/// Exact set of the existence pairs of a space. See the crate's documentation.
pub struct Ledger {
    pub(crate) space: u32,
    pub(crate) kind: u32,
    pub(crate) options: Options,
    /// Flush threshold in pairs: [`Options::memory_pairs`], or less after
    /// [`Ledger::set_memory_bytes`].
    memory_pairs: AtomicUsize,
    pub(crate) memory: Memory,
    pub(crate) ranges: ArcSwap<Ranges>,
    /// Incremented when pairs move from memory to a run, and when an id is dropped.
    pub(crate) version: AtomicU64,
    /// For each dropped id, the largest run identity to which its drop record applies.
    dropped: RwLock<BTreeMap<u64, u64>>,
    drops: AtomicUsize,
    /// Identity of the newest run, including runs being written.
    pub(crate) newest: AtomicU64,
    /// Lock that a thread holds while it writes files.
    pub(crate) files: Mutex<()>,
    /// Read error that prevented a flush from merging a run.
    pub(crate) unreadable: Mutex<Option<store::Error>>,
    /// Memory use of the runs in bytes.
    index_bytes: AtomicUsize,
    pub(crate) flushed_pairs: AtomicU64,
    pub(crate) written_pairs: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("space", &self.space).finish_non_exhaustive()
    }
}

impl Ledger {
    /// Returns an empty ledger. `kind` tags its runs in the manifest.
    pub fn new(space: u32, kind: u32, options: Options) -> Ledger {
        let (version, drops, newest, files, unreadable) = Default::default();
        let (index_bytes, flushed_pairs, written_pairs, written_bytes) = Default::default();
        Ledger {
            space,
            kind,
            options,
            memory_pairs: AtomicUsize::new(options.memory_pairs),
            memory: Memory::new(),
            ranges: ArcSwap::from_pointee(ranges::arrange(Vec::new())),
            version,
            dropped: RwLock::default(),
            drops,
            newest,
            files,
            unreadable,
            index_bytes,
            flushed_pairs,
            written_pairs,
            written_bytes,
        }
    }

    /// Opens the runs that the manifest lists for the space. The caller then restores the memory
    /// from a snapshot and the log, with [`Ledger::set`] and [`Ledger::restore_drop`].
    pub fn open(store: &Store, space: u32, kind: u32, options: Options) -> store::Result<Ledger> {
        let ledger = Ledger::new(space, kind, options);
        ledger.attach(store)?;
        Ok(ledger)
    }

    /// Opens the runs that the manifest lists. Returns false if the manifest lists no run of this
    /// ledger. Call this function before the first flush.
    pub fn attach(&self, store: &Store) -> store::Result<bool> {
        let files = store.cold_files();
        let ours = files.iter().filter(|file| ranges::is_of(file, self.space, self.kind));
        let runs = ours.map(|file| Run::open(store, file).map(Arc::new));
        let runs = runs.collect::<store::Result<Vec<_>>>()?;
        let newest = runs.iter().map(|run| run.identity()).max();
        self.newest.fetch_max(newest.unwrap_or(0), AcqRel);
        self.put_ranges(ranges::arrange(runs));
        Ok(newest.is_some())
    }

    pub(crate) fn put_ranges(&self, ranges: Ranges) {
        let runs = ranges.iter().flat_map(|range| &range.runs);
        self.index_bytes.store(runs.map(|run| run.memory_bytes()).sum(), Relaxed);
        self.ranges.store(Arc::new(ranges));
    }

    /// Returns the memory use in bytes: pairs in memory plus indexes, checksums and filters.
    pub fn memory_bytes(&self) -> usize {
        self.memory.bytes() + self.index_bytes.load(Relaxed)
    }

    /// Returns the number of pairs in memory.
    pub fn memory_pairs(&self) -> usize {
        self.memory.len()
    }

    pub(crate) fn max_memory_pairs(&self) -> usize {
        self.memory_pairs.load(Relaxed)
    }

    /// Sets the flush threshold to `bytes` of memory, at most [`Options::memory_pairs`].
    pub fn set_memory_bytes(&self, bytes: u64) {
        let pairs = usize::try_from(bytes).unwrap_or(usize::MAX) / MAX_PAIR_BYTES;
        self.memory_pairs.store(pairs.clamp(1, self.options.memory_pairs), Relaxed);
    }

    /// Whether memory exceeds 1.5 times the flush threshold.
    pub fn is_crowded(&self) -> bool {
        self.weight() > self.max_memory_pairs() / 2 * 3
    }

    pub(crate) fn has_drops(&self, low: u64, high: u64) -> bool {
        self.dropped_ids() > 0 && self.dropped.read().range(low..=high).next().is_some()
    }

    /// Returns the number of dropped ids whose pairs may still be in runs.
    pub fn dropped_ids(&self) -> usize {
        self.drops.load(Relaxed)
    }

    /// Whether the ledger has at least one run.
    pub fn has_runs(&self) -> bool {
        self.ranges.load().iter().any(|range| !range.runs.is_empty())
    }

    /// Returns the name of a byte-string member: a 128-bit hash with a random key that differs in
    /// every process. [`Ledger::named`] finds a member by this name while its pair is in memory.
    pub fn name(&self, id: u64, member: &[u8]) -> u128 {
        self.memory.name(id, member)
    }

    /// Returns the member with this name and whether its pair is set. Returns `None` if the pair is
    /// not in memory.
    pub fn named(&self, id: u64, name: u128) -> Option<(Arc<[u8]>, bool)> {
        self.memory.named(id, name)
    }

    /// Returns whether a pair is set, or `None` if it is not in memory.
    pub fn in_memory(&self, id: u64, member: Member<'_>) -> Option<bool> {
        self.memory.get(id, member)
    }

    /// Whether the member is short enough to be stored.
    pub fn takes(member: Member<'_>) -> bool {
        !matches!(member, Member::Bytes(bytes) if bytes.len() > MAX_MEMBER_BYTES)
    }

    /// Sets or unsets a pair.
    ///
    /// # Panics
    /// If the member is [too long](Ledger::takes).
    pub fn set(&self, id: u64, member: Member<'_>, set: bool) {
        assert!(Ledger::takes(member), "the member exceeds {MAX_MEMBER_BYTES} bytes");
        self.memory.set(id, member, set);
    }

    /// Looks up a pair. Returns whether the pair is set, or the block that must be read first.
    pub fn ask(&self, id: u64, member: Member<'_>) -> Answer {
        // Load the version first, so that `settle` detects pairs that move to a run afterwards.
        let seen = self.version.load(Acquire);
        if let Some(set) = self.memory.get(id, member) {
            return Answer::Known(set);
        }
        // Load the dropped ids before the ranges (L4).
        let void = self.dropped_up_to(id);
        let ranges = self.ranges.load();
        let range = &ranges[ranges::at(&ranges, id)];
        PendingLookup::begin((id, member), range, void, seen)
    }

    /// Validates an answer that was read from runs. `seen` is the version at the start of the
    /// lookup. Returns the current state, or `None` if the version has changed and the caller must
    /// repeat the lookup.
    pub fn settle(&self, id: u64, member: Member<'_>, told: bool, seen: u64) -> Option<bool> {
        let newer = self.memory.get(id, member);
        newer.or_else(|| (self.version.load(Acquire) == seen).then_some(told))
    }

    /// Returns whether a pair is set. Blocks on one 4 KiB read per run that may contain the pair.
    pub fn contains(&self, id: u64, member: Member<'_>) -> store::Result<bool> {
        let mut answer = self.ask(id, member);
        loop {
            match answer {
                Answer::Known(set) => return Ok(set),
                Answer::NeedsBlock(question) => answer = question.read()?,
            }
        }
    }

    /// Lists the set pairs of an id range in order, starting after the pair `after`. Returns at
    /// most `most` pairs. Blocks on disk reads. The result may or may not include concurrent
    /// changes.
    pub fn list(
        &self,
        ids: (u64, u64),
        after: Option<(u64, Member<'_>)>,
        most: usize,
    ) -> store::Result<Pairs> {
        let mut list = Pairs::default();
        let mut sure = self.list_some(ids, after, most, &mut list)?;
        while let Some((id, member)) = sure.filter(|_| list.len() < most) {
            sure = self.list_some(ids, Some((id, member.as_member())), most, &mut list)?;
        }
        Ok(list)
    }

    /// Appends the next pairs to `list`. Returns the position at which the pairs from memory end,
    /// or `None` if they reach the end of the range.
    fn list_some(
        &self,
        (low, high): (u64, u64),
        after: Option<(u64, Member<'_>)>,
        most: usize,
        list: &mut Pairs,
    ) -> store::Result<Option<(u64, OwnedMember)>> {
        let low = after.map_or(low, |(id, _)| low.max(id));
        if low > high || most == 0 {
            return Ok(None);
        }
        let after = after.filter(|(id, _)| *id == low);
        // Read memory first, so that a pair that concurrently moves to a run is found at least
        // once.
        let (pairs, sure) = self.memory.list(&(low..=high), after, most);
        let end = sure.as_ref().map(|(id, member)| (*id, member.as_member()));
        let is_beyond = |pair: Pair<'_>| pair.id > high || end.is_some_and(|end| pair.key() > end);
        let last = end.map_or(high, |(id, _)| id);
        let dropped: BTreeMap<u64, u64> =
            self.dropped.read().range(low..=high).map(|(&id, &up_to)| (id, up_to)).collect();
        let is_dropped_from = |id, run: Option<u64>| {
            run.is_some_and(|run| dropped.get(&id).is_some_and(|&up_to| run <= up_to))
        };
        let ranges = self.ranges.load_full();
        let first = ranges::at(&ranges, low);
        let mut from_memory = pairs.iter().peekable();
        for (at, range) in ranges.iter().enumerate().skip(first) {
            if list.len() >= most || range.low > last {
                break;
            }
            let highest = ranges::high(&ranges, at);
            let mut here = Pairs::default();
            while let Some(pair) = from_memory.next_if(|pair| pair.id <= highest) {
                here.push(pair);
            }
            let begin = low.max(range.low);
            let mut sources = vec![MergeSource::of_pairs(here, None)];
            for run in &range.runs {
                // Skip older runs for a dropped id: a damaged run must not fail the request.
                if low == high && is_dropped_from(low, Some(run.identity())) {
                    continue;
                }
                sources.push(MergeSource::of_run(
                    run,
                    begin,
                    after.filter(|(id, _)| *id == begin),
                )?);
            }
            merge(&mut sources, is_dropped_from, |pair| {
                if is_beyond(pair) {
                    return Ok(false);
                }
                if pair.set {
                    list.push(pair);
                }
                Ok(list.len() < most)
            })?;
        }
        Ok(sure)
    }

    /// Number of times that pairs moved to runs or an id was dropped. While it is unchanged, the
    /// runs are the same.
    pub fn version(&self) -> u64 {
        self.version.load(Acquire)
    }

    /// Copies what determines the pairs of an id. Reads no disk. The caller excludes writers of the
    /// id during the call; the result does not change afterwards.
    pub fn snapshot(&self, id: u64) -> IdSnapshot {
        // The order of L4: memory, drops, ranges.
        let (memory, _) = self.memory.list(&(id..=id), None, usize::MAX);
        let dropped_up_to = self.dropped_up_to(id);
        let ranges = self.ranges.load();
        let range = ranges[ranges::at(&ranges, id)].clone();
        IdSnapshot { id, memory, dropped_up_to, range }
    }

    /// Drops an id: unsets all its pairs. Later writes may set pairs of the id again. No other
    /// thread may write pairs of the id concurrently.
    pub fn drop_id(&self, id: u64) {
        // Add the drop record before the pairs are removed from memory. Otherwise readers would
        // still find the pairs in runs.
        self.record_drop(id, None);
        self.memory.remove_id(id);
        // Add the drop record again: a flush that began after the first call may have copied some
        // of the pairs.
        self.record_drop(id, None);
    }

    /// Returns the log offset up to which the runs contain all changes to the id, including drop
    /// records; 0 if unknown. The caller must not apply an older log record or snapshot to the id:
    /// the pair in memory would override the newer state in the runs.
    pub fn covered(&self, id: u64) -> u64 {
        let ranges = self.ranges.load();
        let runs = &ranges[ranges::at(&ranges, id)].runs;
        let answering = runs.iter().filter(|run| run.answers_for(id));
        answering.map(|run| run.covered()).max().unwrap_or(0)
    }

    /// Returns the drop records for a snapshot: each dropped id with the largest run identity to
    /// which its drop record applies. Omits drop records that apply to no run.
    pub fn drops(&self) -> Vec<(u64, u64)> {
        self.dropped.read().iter().map(|(&id, &up_to)| (id, up_to)).collect()
    }

    /// Returns the id range with the most dropped ids. [`Ledger::trim`] of that range removes the
    /// drop records.
    pub fn range_with_most_drops(&self) -> Option<(u64, u64)> {
        let (drops, ranges) = (self.drops(), self.ranges.load());
        let of_ranges = drops.chunk_by(|a, b| ranges::at(&ranges, a.0) == ranges::at(&ranges, b.0));
        let (id, _) = *of_ranges.max_by_key(|of_range| of_range.len())?.first()?;
        let at = ranges::at(&ranges, id);
        Some((ranges[at].low, ranges::high(&ranges, at)))
    }

    /// Restores a drop record from [`Ledger::drops`]. The runs of the manifest must be open.
    pub fn restore_drop(&self, id: u64, up_to: u64) {
        // A restart discards the identity of an unfinished run, and a later run may get the same
        // identity. So the limit must not exceed the newest run.
        self.record_drop(id, Some(up_to.min(self.newest.load(Acquire))));
    }

    /// Adds a drop record that applies to the runs up to the identity `up_to`, or to all existing
    /// runs if `up_to` is `None`.
    fn record_drop(&self, id: u64, up_to: Option<u64>) {
        let mut dropped = self.dropped.write();
        // Read `newest` while holding the lock; see `is_dropped_since`.
        let up_to = up_to.unwrap_or_else(|| self.newest.load(Acquire));
        let limit = dropped.entry(id).or_insert(0);
        *limit = up_to.max(*limit);
        self.drops.store(dropped.len(), Release);
        self.version.fetch_add(1, AcqRel);
    }

    /// Whether an id was dropped after the run `identity` had begun. Call this function after
    /// beginning the next run. Later drop records apply to the next run as well.
    pub(crate) fn is_dropped_since(&self, id: u64, identity: u64) -> bool {
        self.dropped.read().get(&id).is_some_and(|&up_to| up_to >= identity)
    }

    /// Returns the largest run identity to which the id's drop record applies; 0 if the id has no
    /// drop record.
    pub(crate) fn dropped_up_to(&self, id: u64) -> u64 {
        if self.drops.load(Acquire) == 0 {
            return 0;
        }
        self.dropped.read().get(&id).copied().unwrap_or(0)
    }

    /// Whether a drop record applies to the id's pairs in the run with this identity. False for
    /// `None`, the identity of pairs in memory.
    pub(crate) fn is_dropped_from(&self, id: u64, run: Option<u64>) -> bool {
        run.is_some_and(|identity| identity <= self.dropped_up_to(id))
    }

    /// Removes the drop records in an id range that no longer apply to any run. `oldest` is the
    /// lowest identity of the runs.
    pub(crate) fn forget_drops(&self, low: u64, high: u64, oldest: u64) {
        let mut dropped = self.dropped.write();
        let gone: Vec<u64> = dropped
            .range(low..=high)
            .filter(|&(_, &up_to)| up_to < oldest)
            .map(|(&id, _)| id)
            .collect();
        for id in &gone {
            dropped.remove(id);
        }
        self.drops.store(dropped.len(), Release);
    }

    /// Number of pairs in memory, or the memory in units of [`MAX_PAIR_BYTES`] if that is more.
    pub(crate) fn weight(&self) -> usize {
        self.memory.len().max(self.memory.bytes() / MAX_PAIR_BYTES)
    }

    /// Whether memory has reached the flush threshold.
    pub fn is_due(&self) -> bool {
        self.weight() >= self.max_memory_pairs()
    }

    /// Whether the caller must reject new pairs because flushes fail or are too slow.
    pub fn is_full(&self) -> bool {
        self.has_reached_flushes(2)
    }

    /// Whether the caller must also reject requests that unset pairs. This limit is higher than the
    /// limit for new pairs.
    pub fn is_full_of_unset(&self) -> bool {
        self.has_reached_flushes(3)
    }

    /// Whether memory has reached `times` the configured flush threshold or `2 * times` the current
    /// threshold. The factor is larger for the current threshold, because running requests do not
    /// wait for a flush when the threshold is lowered.
    fn has_reached_flushes(&self, times: usize) -> bool {
        let of_fewer = self.max_memory_pairs().saturating_mul(2 * times);
        self.weight() >= of_fewer.min(times * self.options.memory_pairs)
    }

    /// Returns and clears the read error that made the last flush merge fewer runs than planned.
    pub fn take_unreadable(&self) -> Option<store::Error> {
        self.unreadable.lock().take()
    }

    /// Returns the highest id of the range that contains `id`, to trim one range at a time.
    pub fn end_of_range(&self, id: u64) -> u64 {
        let ranges = self.ranges.load();
        ranges::high(&ranges, ranges::at(&ranges, id))
    }

    /// Visits the pairs in memory in sorted pieces, for a snapshot. May miss a pair that is flushed
    /// concurrently. In that case the manifest lists the run of that pair before the call returns.
    pub fn walk_memory(&self, each: impl FnMut(&Pairs)) {
        self.memory.walk(&(0..=u64::MAX), each);
    }

    /// Returns the current sizes and counters of the ledger.
    pub fn stats(&self) -> Stats {
        let ranges = self.ranges.load();
        let runs = || ranges.iter().flat_map(|range: &Arc<Range>| &range.runs);
        Stats {
            ranges: ranges.len(),
            runs: runs().count(),
            most_runs: ranges.iter().map(|range| range.runs.len()).max().unwrap_or(0),
            run_pairs: runs().map(|run| run.pairs()).sum(),
            run_bytes: runs().map(|run| run.entry().bytes).sum(),
            memory_pairs: self.memory.len(),
            memory_bytes: self.memory.bytes(),
            index_bytes: self.index_bytes.load(Relaxed),
            drops: self.dropped_ids(),
            flushed_pairs: self.flushed_pairs.load(Relaxed),
            written_pairs: self.written_pairs.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
        }
    }
}
