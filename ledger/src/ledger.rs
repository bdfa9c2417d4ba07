//! The ledger of one space.

use crate::memory::Memory;
use crate::merge::{Source, merge};
use crate::pair::{MAX_MEMBER_BYTES, Member, OwnedMember, Pair, Pairs};
use crate::question::{Answer, Question};
use crate::ranges::{self, Range, Ranges};
use crate::run::Run;
use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use store::Store;

/// Bytes of memory that a pair may take, else it counts as several.
const MOST_PAIR_BYTES: usize = 64;

/// How a ledger is kept.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Pairs in memory beyond which they are to be flushed, or 64 bytes of memory for each of so
    /// many. Default 1,048,576: about 25 MB, and 64 MiB where members are long, or posts have one
    /// pair each.
    pub memory_pairs: usize,
    /// Most runs of a range: a lookup reads one block of each at worst. Default 4.
    pub runs: usize,
    /// A range of more pairs is divided. Default 2,097,152, about 9 MB: the newest range takes most
    /// likes, and a merge rewrites all of it.
    pub range_pairs: u64,
    /// The upper runs of a range have at most a so-manyth of the pairs of its lowest, default 12,
    pub upper_part: u64,
    /// and this many more, all ranges together: few new ranges take most likes, and would be
    /// rewritten by each flush. Default 2,097,152; their filters take 5 bits a pair.
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

/// What a ledger has, and has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Ranges.
    pub ranges: usize,
    /// Runs of all of them.
    pub runs: usize,
    /// Runs of the range that has most.
    pub most_runs: usize,
    /// Pairs in runs, unset ones included. A pair counts in each run that has it.
    pub run_pairs: u64,
    /// Bytes of all runs on the disk.
    pub run_bytes: u64,
    /// Pairs in memory, unset ones included.
    pub memory_pairs: usize,
    /// Bytes of memory of the pairs there.
    pub memory_bytes: usize,
    /// Bytes of memory of indexes, checksums and filters of runs.
    pub index_bytes: usize,
    /// Dropped ids that runs may still have pairs of: [`Ledger::trim`] removes those.
    pub drops: usize,
    /// Pairs that were flushed.
    pub flushed_pairs: u64,
    /// Pairs that were written to runs, by flushes and merges.
    pub written_pairs: u64,
    /// Bytes that were written to runs.
    pub written_bytes: u64,
}

/// Every pair of an existence space, exact. See the crate's documentation.
pub struct Ledger {
    pub(crate) space: u32,
    pub(crate) kind: u32,
    pub(crate) options: Options,
    /// What [`Ledger::set_memory_bytes`] has left of [`Options::memory_pairs`].
    memory_pairs: AtomicUsize,
    pub(crate) memory: Memory,
    pub(crate) ranges: ArcSwap<Ranges>,
    /// Rises when pairs have moved from memory to a run.
    pub(crate) version: AtomicU64,
    /// Ids of which runs up to this identity hold no pairs any more.
    dropped: RwLock<BTreeMap<u64, u64>>,
    drops: AtomicUsize,
    /// The identity of the newest run, of those that are being written, too.
    pub(crate) newest: AtomicU64,
    /// Held by what writes files.
    pub(crate) files: Mutex<()>,
    /// Why a flush has not merged a run.
    pub(crate) unreadable: Mutex<Option<store::Error>>,
    /// What is kept of runs, in bytes of memory.
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
    /// A ledger without a pair; `kind`: how its runs are tagged in the manifest.
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

    /// Opens the runs of a space that the manifest names. What was in memory comes from a snapshot
    /// and the log: [`Ledger::set`], [`Ledger::restore_drop`].
    pub fn open(store: &Store, space: u32, kind: u32, options: Options) -> store::Result<Ledger> {
        let ledger = Ledger::new(space, kind, options);
        ledger.attach(store)?;
        Ok(ledger)
    }

    /// The runs that the manifest names answer from now on. Nothing was flushed before. Whether
    /// there are any.
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

    /// These ranges answer from now on.
    pub(crate) fn put_ranges(&self, ranges: Ranges) {
        let runs = ranges.iter().flat_map(|range| &range.runs);
        self.index_bytes.store(runs.map(|run| run.memory_bytes()).sum(), Relaxed);
        self.ranges.store(Arc::new(ranges));
    }

    /// Bytes of memory that it takes: pairs there, and what is kept of runs.
    pub fn memory_bytes(&self) -> usize {
        self.memory.bytes() + self.index_bytes.load(Relaxed)
    }

    /// Pairs in memory.
    pub fn memory_pairs(&self) -> usize {
        self.memory.len()
    }

    /// Pairs in memory beyond which they are to be flushed.
    pub(crate) fn most_memory_pairs(&self) -> usize {
        self.memory_pairs.load(Relaxed)
    }

    /// From now on pairs are to be flushed when they take so many bytes; never later than
    /// [`Options::memory_pairs`] says.
    pub fn set_memory_bytes(&self, bytes: u64) {
        let pairs = usize::try_from(bytes).unwrap_or(usize::MAX) / MOST_PAIR_BYTES;
        self.memory_pairs.store(pairs.clamp(1, self.options.memory_pairs), Relaxed);
    }

    /// Whether half as many pairs as are to be flushed have come since then.
    pub fn is_crowded(&self) -> bool {
        self.weight() > self.most_memory_pairs() / 2 * 3
    }

    /// Whether runs may still have pairs of dropped ids of a range.
    pub(crate) fn has_drops(&self, low: u64, high: u64) -> bool {
        self.dropped_ids() > 0 && self.dropped.read().range(low..=high).next().is_some()
    }

    /// Dropped ids that runs may still have pairs of.
    pub fn dropped_ids(&self) -> usize {
        self.drops.load(Relaxed)
    }

    /// Whether runs may have pairs.
    pub fn has_runs(&self) -> bool {
        self.ranges.load().iter().any(|range| !range.runs.is_empty())
    }

    /// A name for a member that is a string, of 128 bits, by which [`Ledger::named`] finds it while
    /// the pair is in memory. It holds for this process only, and cannot be foreseen.
    pub fn name(&self, id: u64, member: &[u8]) -> u128 {
        self.memory.name(id, member)
    }

    /// The member of that name and whether its pair is set, if that is in memory.
    pub fn named(&self, id: u64, name: u128) -> Option<(Arc<[u8]>, bool)> {
        self.memory.named(id, name)
    }

    /// Whether a pair is set, if it has changed since it was flushed last.
    pub fn in_memory(&self, id: u64, member: Member<'_>) -> Option<bool> {
        self.memory.get(id, member)
    }

    /// Whether a member can be kept.
    pub fn takes(member: Member<'_>) -> bool {
        !matches!(member, Member::Bytes(bytes) if bytes.len() > MAX_MEMBER_BYTES)
    }

    /// The pair is set, or unset, from now on. Panics if the ledger does not
    /// [take](Ledger::takes) the member.
    pub fn set(&self, id: u64, member: Member<'_>, set: bool) {
        assert!(Ledger::takes(member), "a member of at most {MAX_MEMBER_BYTES} bytes");
        self.memory.set(id, member, set);
    }

    /// Whether a pair is set, or what must be read to know that.
    pub fn ask(&self, id: u64, member: Member<'_>) -> Answer {
        // First: what moves to a run from here on is noticed by `settle`.
        let seen = self.version.load(Acquire);
        if let Some(set) = self.memory.get(id, member) {
            return Answer::Known(set);
        }
        // Before the ranges: a drop is forgotten after those have gone that need it.
        let void = self.dropped_up_to(id);
        let ranges = self.ranges.load();
        let range = &ranges[ranges::at(&ranges, id)];
        Question::begin((id, member), range, void, seen)
    }

    /// Whether a pair is set now, given that the runs of the version `seen` said `told`. `None`:
    /// pairs have moved since; ask again.
    pub fn settle(&self, id: u64, member: Member<'_>, told: bool, seen: u64) -> Option<bool> {
        let newer = self.memory.get(id, member);
        newer.or_else(|| (self.version.load(Acquire) == seen).then_some(told))
    }

    /// Whether a pair is set. Waits for the disk, one read of 4 KiB for each run that may have it.
    pub fn contains(&self, id: u64, member: Member<'_>) -> store::Result<bool> {
        let mut answer = self.ask(id, member);
        loop {
            match answer {
                Answer::Known(set) => return Ok(set),
                Answer::Asks(question) => answer = question.read()?,
            }
        }
    }

    /// At most `most` set pairs of the ids `low` to `high`, in order, behind `after`. Waits for the
    /// disk. Pairs that change meanwhile may be there or not.
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

    /// The same, put to `list`, as far as memory gave all pairs at once: up to which one that is;
    /// `None`: there are no more.
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
        // Memory first: what moves to a run meanwhile is in both.
        let (pairs, sure) = self.memory.list(&(low..=high), after, most);
        let end = sure.as_ref().map(|(id, member)| (*id, member.as_member()));
        let is_beyond = |pair: Pair<'_>| pair.id > high || end.is_some_and(|end| pair.key() > end);
        let last = end.map_or(high, |(id, _)| id);
        let dropped: BTreeMap<u64, u64> =
            self.dropped.read().range(low..=high).map(|(&id, &up_to)| (id, up_to)).collect();
        let is_void = |id, run: Option<u64>| {
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
            let mut sources = vec![Source::of_pairs(here, None)];
            for run in &range.runs {
                // Of an id that was dropped nothing need be read, and it may be for damage.
                if low == high && is_void(low, Some(run.identity())) {
                    continue;
                }
                sources.push(Source::of_run(run, begin, after.filter(|(id, _)| *id == begin))?);
            }
            merge(&mut sources, is_void, |pair| {
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

    /// All pairs of an id are unset from now on. Pairs of it that are set later count; none is set
    /// or unset meanwhile by another thread.
    pub fn drop_id(&self, id: u64) {
        // First, so that what memory says is unset is not set again in a run.
        self.note_drop(id, None);
        self.memory.remove_id(id);
        // A flush that has begun meanwhile may have copied some of them.
        self.note_drop(id, None);
    }

    /// Offset of the log up to which runs have all changes of an id's pairs, drops included; 0 if
    /// that is not known. What a record that ends there, or a snapshot that begins there, says of
    /// the id must not be repeated: in memory it would count for newer than the runs.
    pub fn covered(&self, id: u64) -> u64 {
        let ranges = self.ranges.load();
        let runs = &ranges[ranges::at(&ranges, id)].runs;
        let answering = runs.iter().filter(|run| run.answers_for(id));
        answering.map(|run| run.covered()).max().unwrap_or(0)
    }

    /// Ids whose pairs were dropped, each with the identity up to which runs do not count, as long
    /// as there are such runs: for a snapshot.
    pub fn drops(&self) -> Vec<(u64, u64)> {
        self.dropped.read().iter().map(|(&id, &up_to)| (id, up_to)).collect()
    }

    /// The first and the last id of the range that has most of them: [`Ledger::trim`] forgets them.
    pub fn most_dropped(&self) -> Option<(u64, u64)> {
        let (drops, ranges) = (self.drops(), self.ranges.load());
        let of_ranges = drops.chunk_by(|a, b| ranges::at(&ranges, a.0) == ranges::at(&ranges, b.0));
        let (id, _) = *of_ranges.max_by_key(|of_range| of_range.len())?.first()?;
        let at = ranges::at(&ranges, id);
        Some((ranges[at].low, ranges::high(&ranges, at)))
    }

    /// Takes over what [`Ledger::drops`] gave, when the runs that the manifest names are attached.
    pub fn restore_drop(&self, id: u64, up_to: u64) {
        // A run that was begun and never named took its identity with it: a later one has it.
        self.note_drop(id, Some(up_to.min(self.newest.load(Acquire))));
    }

    /// `None`: up to the newest run.
    fn note_drop(&self, id: u64, up_to: Option<u64>) {
        let mut dropped = self.dropped.write();
        // With the lock: see `is_dropped_since`.
        let up_to = up_to.unwrap_or_else(|| self.newest.load(Acquire));
        let limit = dropped.entry(id).or_insert(0);
        *limit = up_to.max(*limit);
        self.drops.store(dropped.len(), Release);
        // A lookup that began before is asked again.
        self.version.fetch_add(1, AcqRel);
    }

    /// Whether an id was dropped after the run of this identity was begun. Asked after another run
    /// was begun: if the answer is no, a drop from here on counts for that one, too.
    pub(crate) fn is_dropped_since(&self, id: u64, identity: u64) -> bool {
        self.dropped.read().get(&id).is_some_and(|&up_to| up_to >= identity)
    }

    /// Runs up to this identity hold no pairs of the id.
    pub(crate) fn dropped_up_to(&self, id: u64) -> u64 {
        if self.drops.load(Acquire) == 0 {
            return 0;
        }
        self.dropped.read().get(&id).copied().unwrap_or(0)
    }

    /// Whether pairs of an id count as not there, of a run, or of memory.
    pub(crate) fn is_void(&self, id: u64, run: Option<u64>) -> bool {
        run.is_some_and(|identity| identity <= self.dropped_up_to(id))
    }

    /// Forgets drops of these ids that no run needs any more: all of them are newer than that.
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

    /// Pairs in memory; more, if they take more than [`MOST_PAIR_BYTES`] each.
    pub(crate) fn weight(&self) -> usize {
        self.memory.len().max(self.memory.bytes() / MOST_PAIR_BYTES)
    }

    /// Whether there are so many pairs in memory that they are to be flushed.
    pub fn is_due(&self) -> bool {
        self.weight() >= self.most_memory_pairs()
    }

    /// Whether so many pairs are in memory, because flushes fail or are slow, that no more are to
    /// be taken.
    pub fn is_full(&self) -> bool {
        self.has_flushes(2)
    }

    /// The same of pairs that are to be unset, which may wait for longer than those to be set.
    pub fn is_full_of_unset(&self) -> bool {
        self.has_flushes(3)
    }

    /// Whether so many times as many pairs are in memory as are flushed at most; twice that of a
    /// ledger that flushes fewer, as a request that has begun does not wait for a flush.
    fn has_flushes(&self, times: usize) -> bool {
        let of_fewer = self.most_memory_pairs().saturating_mul(2 * times);
        self.weight() >= of_fewer.min(times * self.options.memory_pairs)
    }

    /// Why a flush has merged fewer runs than it should have: one of them cannot be read. Once.
    pub fn take_unreadable(&self) -> Option<store::Error> {
        self.unreadable.lock().take()
    }

    /// The highest id of the range that has this id: for [`Ledger::trim`], one range at a time.
    pub fn end_of_range(&self, id: u64) -> u64 {
        let ranges = self.ranges.load();
        ranges::high(&ranges, ranges::at(&ranges, id))
    }

    /// Walks the pairs in memory, piece by piece, each of them sorted: for a snapshot. A pair that
    /// is flushed meanwhile may be missing: then the manifest names its run before this ends.
    pub fn walk_memory(&self, each: impl FnMut(&Pairs)) {
        self.memory.walk(&(0..=u64::MAX), each);
    }

    /// What it has and has done.
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
