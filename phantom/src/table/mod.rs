//! State of an id range: a chain of filters, and the set of deleted pairs.
//!
//! ```text
//!   first filter     extension 1      extension 2           revoked
//!   [ C pairs ]  ->  [ C/8 ]      ->  [ C/4 ]     -> ...    { exact }
//! ```
//!
//! A table normally has one filter. The table closes early enough to leave room for late pairs. The
//! expected number of late pairs is estimated from earlier tables. If late pairs exceed that room,
//! the table appends an extension filter. The rates of all filters add up to at most the configured
//! rate (`sizing`). New pairs go to the first filter with room.
//!
//! The filters of an old table may be on disk ([`Cold`]). In that case `first` is an empty page.
//!
//! - **T1** A lookup finds every pair that was set and not deleted since.
//! - **T2** No filter exceeds its capacity by more than one pair per concurrent writer.

pub(crate) mod cold_table;
pub(crate) mod pages;

use crate::Error;
use crate::deleted_pairs::DeletedPairs;
use crate::filter::{Filter, Probe};
use crate::fp_estimator::FpEstimator;
use crate::hash::Pair;
use crate::sizing::Sizing;
use cold_table::{Chain, ColdBackend, FilterPages};
use parking_lot::{Mutex, RwLock};
use rolling::Unreadable;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use std::sync::{Arc, OnceLock};

/// Maximum number of filters in a chain. The last filter has 2,048 times the capacity of the first.
pub(crate) const LINKS: usize = 16;

#[repr(C)]
pub(crate) struct ChainedFilter {
    pub(crate) filter: Filter,
    pairs: AtomicU64,
    capacity: u64,
}

impl ChainedFilter {
    pub(crate) fn new(filter: Filter, pairs: u64) -> ChainedFilter {
        let capacity = filter.capacity();
        ChainedFilter { filter, pairs: AtomicU64::new(pairs), capacity }
    }

    /// Number of pairs, including deleted pairs. A filter at capacity accepts no more pairs.
    pub(crate) fn pairs(&self) -> u64 {
        self.pairs.load(Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Unset,
    Set,
    DeletedPairs,
}

/// Table of one id range. The first two fields share a cache line, and a lookup needs only these
/// two. This matters because a page request accesses the tables of all its ids.
#[repr(C, align(64))]
pub(crate) struct Table {
    last: AtomicUsize,
    first: ChainedFilter,
    rate: f64,
    more: [OnceLock<ChainedFilter>; LINKS - 1],
    growth_lock: Mutex<()>,
    pub(crate) revoked: Arc<DeletedPairs>,
    /// Filters on disk, if any. `first` is then an empty page and `last` is 1. The table then looks
    /// like one with an extension, so lookups in other tables need no additional test.
    cold: Option<Box<Cold>>,
    /// Number of pairs when the table was closed; 0 while it is open.
    early: AtomicU64,
    /// Number of pairs at which the table closes.
    roll_at: AtomicU64,
    pub(crate) canaries: Mutex<FpEstimator>,
    /// Index of the first filter that may have free space. All filters before it are full.
    filling: AtomicUsize,
    /// Number of changes that did not alter the number of pairs.
    touched: AtomicU64,
    /// Table that will replace this table (`rebuild`). The next field is a flag for a cheap test.
    successor: RwLock<Option<Arc<Table>>>,
    has_successor: AtomicBool,
    /// Whether the table must be rebuilt regardless of its rate.
    outdated: AtomicBool,
}

impl Table {
    /// Returns an empty table. `first` must have the parameters of [`Table::first_sizing`] for
    /// `rate`.
    pub(crate) fn new(rate: f64, first: Filter) -> Table {
        Table::from_links(rate, ChainedFilter::new(first, 0), vec![], 0)
    }

    pub(crate) fn from_links(
        rate: f64,
        first: ChainedFilter,
        more: Vec<ChainedFilter>,
        early: u64,
    ) -> Table {
        assert!(more.len() < LINKS, "a chain of {} filters", more.len() + 1);
        let last = AtomicUsize::new(more.len());
        let roll_at = AtomicU64::new(first.capacity);
        let mut more = more.into_iter();
        Table {
            rate,
            first,
            more: std::array::from_fn(|_| more.next().map_or_else(OnceLock::new, OnceLock::from)),
            last,
            growth_lock: Mutex::new(()),
            revoked: Arc::default(),
            cold: None,
            early: AtomicU64::new(early),
            roll_at,
            canaries: Mutex::default(),
            filling: AtomicUsize::new(0),
            touched: AtomicU64::new(0),
            successor: RwLock::default(),
            has_successor: AtomicBool::new(false),
            outdated: AtomicBool::new(false),
        }
    }

    /// Returns an empty table that will replace `other` and shares its deleted pairs.
    pub(crate) fn succeeding(other: &Table, rate: f64, first: Filter) -> Table {
        Table { revoked: other.revoked.clone(), ..Table::new(rate, first) }
    }

    /// Returns a table whose filters are on disk. `empty` is a filter of one page.
    pub(crate) fn cold_table(
        rate: f64,
        empty: Filter,
        cold: Cold,
        revoked: Arc<DeletedPairs>,
        early: u64,
    ) -> Table {
        let mut table = Table::from_links(rate, ChainedFilter::new(empty, 0), vec![], early.max(1));
        table.last = AtomicUsize::new(1);
        table.roll_at = AtomicU64::new(early);
        Table { cold: Some(Box::new(cold)), revoked, ..table }
    }

    pub(crate) fn first_sizing(rate: f64) -> Sizing {
        Sizing::in_chain(rate, 0)
    }

    /// Returns the sizes of the filters in the order of the file.
    pub(crate) fn layout_of_filters(&self) -> Chain {
        let mut chain = Chain { rate: self.rate(), parts: Vec::new() };
        for link in self.links() {
            let (sizing, pages, first) =
                (*link.filter.sizing(), link.filter.pages(), chain.pages());
            chain.parts.push(FilterPages { sizing, pages, first, pairs: link.pairs() });
        }
        chain
    }

    pub(crate) fn rate(&self) -> f64 {
        self.cold().map_or(self.rate, |cold| cold.chain().rate)
    }

    #[inline(always)]
    pub(crate) fn cold(&self) -> Option<&Cold> {
        self.cold.as_deref()
    }

    /// Pages of the first filter, in memory or on disk.
    pub(crate) fn pages(&self) -> usize {
        self.cold().map_or(self.first.filter.pages(), |cold| cold.chain().first_pages())
    }

    /// Pages of the first filter, or 0 if it is on disk.
    pub(crate) fn pages_in_memory(&self) -> usize {
        if self.cold().is_some_and(|cold| cold.memory().is_none()) { 0 } else { self.pages() }
    }

    pub(crate) fn link(&self, i: usize) -> Option<&ChainedFilter> {
        if i == 0 { Some(&self.first) } else { self.more.get(i - 1)?.get() }
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = &ChainedFilter> {
        (0..=self.last.load(Acquire)).map_while(|i| self.link(i))
    }

    pub(crate) fn first_filter(&self) -> &Filter {
        &self.first.filter
    }

    pub(crate) fn into_first_filter(self) -> Filter {
        self.first.filter
    }

    /// Counts a change that does not alter the number of pairs.
    pub(crate) fn touch(&self) {
        self.touched.fetch_add(1, Relaxed);
    }

    /// Returns the table's version. Every change increments the version.
    pub(crate) fn version(&self) -> u64 {
        self.pairs() + self.touched.load(Relaxed)
    }

    /// Returns the number of pairs in all filters, including deleted pairs.
    pub(crate) fn pairs(&self) -> u64 {
        self.links().map(ChainedFilter::pairs).sum::<u64>() + self.cold().map_or(0, Cold::pairs)
    }

    pub(crate) fn pairs_in_first(&self) -> u64 {
        self.cold().map_or(self.first.pairs(), |cold| cold.chain().first_pairs())
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.cold().map_or(self.first.capacity, |cold| cold.chain().first_capacity())
    }

    pub(crate) fn early(&self) -> u64 {
        self.early.load(Relaxed)
    }

    pub(crate) fn close(&self) {
        self.set_closed_at(self.pairs().max(1));
    }

    /// Copies the open or closed state from `other`, which this table replaces.
    pub(crate) fn close_as(&self, other: &Table) {
        self.early.store(other.early(), Relaxed);
        self.roll_at.store(other.roll_at(), Relaxed);
    }

    pub(crate) fn set_successor(&self, successor: Option<Arc<Table>>) {
        let mut held = self.successor.write();
        self.has_successor.store(successor.is_some(), SeqCst);
        *held = successor;
    }

    /// Sets the pair in the successor, if any. The caller holds the pair's stripe, and sets the
    /// pair in this table afterwards.
    #[inline]
    pub(crate) fn pass_on(&self, pair: &Pair) -> Result<(), Error> {
        if self.has_successor.load(Relaxed) { self.pass_on_now(pair) } else { Ok(()) }
    }

    #[cold]
    fn pass_on_now(&self, pair: &Pair) -> Result<(), Error> {
        self.successor.read().as_ref().map_or(Ok(()), |next| next.put(pair))
    }

    pub(crate) fn successor_lacks(&self, pair: &Pair) -> bool {
        self.has_successor.load(Relaxed)
            && self.successor.read().as_ref().is_some_and(|next| !next.has_in_memory(pair))
    }

    /// Sets a pair. The caller need not hold the pair's stripe.
    pub(crate) fn put(&self, pair: &Pair) -> Result<(), Error> {
        if !self.has_in_memory(pair) {
            Table::set(self.room(|_| true)?, pair);
        }
        Ok(())
    }

    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated.load(Relaxed)
    }

    pub(crate) fn set_outdated(&self, outdated: bool) {
        self.outdated.store(outdated, Relaxed);
    }

    /// Sets the open state of a restored table.
    pub(crate) fn set_open(&self, open: bool) {
        let early = if open { 0 } else { self.early().max(1) };
        self.early.store(early, Relaxed);
        self.roll_at.store(if open { self.capacity() } else { early }, Relaxed);
    }

    pub(crate) fn reopen(&self) {
        self.early.store(0, Relaxed);
    }

    /// Whether the table is open: it receives new ids and is followed by a new table when full.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.early() == 0
    }

    pub(crate) fn set_roll_at(&self, pairs: u64) {
        self.roll_at.store(pairs, Relaxed);
    }

    /// Closes the table at the pair count that the log recorded.
    pub(crate) fn set_closed_at(&self, pairs: u64) {
        self.early.store(pairs, Relaxed);
        self.roll_at.store(pairs, Relaxed);
    }

    pub(crate) fn roll_at(&self) -> u64 {
        self.roll_at.load(Relaxed)
    }

    /// Whether an open table has enough pairs to be closed, counting either the first filter or the
    /// whole chain.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        let roll_at = self.roll_at.load(Relaxed);
        self.first.pairs() >= roll_at
            || (self.is_chained() && self.links().map(ChainedFilter::pairs).sum::<u64>() >= roll_at)
    }

    pub(crate) fn filter_bytes(&self) -> usize {
        match self.cold() {
            None => self.links().map(|link| link.filter.size_bytes()).sum(),
            // The first filter of a cold table is a single untouched page, which does not count.
            Some(cold) => cold.memory().map_or(0, |table| table.filter_bytes()),
        }
    }

    pub(crate) fn size_bytes(&self) -> usize {
        let successor = self.successor.read();
        let successor = successor.as_ref().map_or(0, |next| next.filter_bytes());
        self.filter_bytes()
            + self.revoked.size_bytes()
            + self.cold().map_or(0, Cold::late_bytes)
            + successor
    }

    /// Returns the state of `pair` from the filters in memory. `probe` is its position in the first
    /// filter.
    #[inline]
    pub(crate) fn state_in_memory(&self, pair: &Pair, probe: &Probe) -> State {
        self.found(self.filters_contain(pair, probe), pair)
    }

    /// Returns the state of a pair. `found` is true if a filter of the table contains the pair.
    #[inline]
    pub(crate) fn found(&self, found: bool, pair: &Pair) -> State {
        match found {
            false => State::Unset,
            true if self.revoked.contains(pair.hash()) => State::DeletedPairs,
            true => State::Set,
        }
    }

    #[inline(always)]
    pub(crate) fn is_chained(&self) -> bool {
        self.last.load(Acquire) > 0
    }

    /// Number of filters in addition to the first filter, in memory or on disk.
    pub(crate) fn extensions(&self) -> usize {
        self.cold().map_or_else(|| self.last.load(Acquire), |cold| cold.chain().links() - 1)
    }

    #[inline(always)]
    pub(crate) fn chain(&self) -> impl Iterator<Item = &ChainedFilter> {
        let last = self.last.load(Acquire).min(LINKS - 1);
        self.more[..last].iter().map_while(OnceLock::get)
    }

    /// Whether a filter in memory contains `pair`. `probe` is its position in the first filter.
    #[inline]
    fn filters_contain(&self, pair: &Pair, probe: &Probe) -> bool {
        self.first.filter.contains(pair, probe)
            || self.chain().any(|l| l.filter.contains(pair, &l.filter.probe_resized(pair, probe)))
    }

    /// Whether the filters on disk or the late pairs contain `pair`.
    #[inline]
    pub(crate) fn seems_set_on_disk(&self, pair: &Pair) -> Result<bool, Unreadable> {
        self.cold().map_or(Ok(false), |cold| cold.seems_set(pair, &self.revoked))
    }

    /// Prefetches the cache lines for a lookup or write of `pair`. Fetching the first line of every
    /// filter at once avoids one miss per filter for an unset pair.
    #[inline]
    pub(crate) fn prefetch(&self, pair: &Pair, probe: &Probe) {
        self.first.filter.prefetch(probe, 1);
        self.first.filter.prefetch(probe, 0);
        self.chain()
            .for_each(|link| link.filter.prefetch(&link.filter.probe_resized(pair, probe), 0));
        // Setting the pair also needs its second line in the filter with room.
        if self.is_chained()
            && let Some(link) = self.link(self.filling.load(Relaxed))
        {
            link.filter.prefetch(&link.filter.probe_resized(pair, probe), 1);
        }
    }

    #[inline]
    pub(crate) fn prefetch_lines(&self, pair: &Pair) {
        self.prefetch(pair, &self.first.filter.probe(pair));
    }

    pub(crate) fn has_in_memory(&self, pair: &Pair) -> bool {
        self.filters_contain(pair, &self.first.filter.probe(pair))
    }

    #[inline]
    pub(crate) fn state(&self, pair: &Pair) -> Result<State, Unreadable> {
        let probe = self.first.filter.probe(pair);
        self.prefetch(pair, &probe);
        let found = self.filters_contain(pair, &probe) || self.seems_set_on_disk(pair)?;
        Ok(self.found(found, pair))
    }

    /// Returns the first filter with room. If all filters are full, appends another one if
    /// `may_grow` allows its size in bytes.
    #[inline]
    pub(crate) fn room(&self, may_grow: impl Fn(usize) -> bool) -> Result<&ChainedFilter, Error> {
        loop {
            let (at, last) = (self.filling.load(Relaxed), self.last.load(Acquire));
            // A filter beyond `last` may already exist, but readers do not see it yet (T1).
            let link = self.link(at).filter(|_| at <= last);
            match link {
                Some(link) if link.pairs() < link.capacity => return Ok(link),
                Some(_) => _ = self.filling.fetch_max(at + 1, Relaxed),
                None => self.grow(last, &may_grow)?,
            }
        }
    }

    #[cold]
    fn grow(&self, last: usize, may_grow: &dyn Fn(usize) -> bool) -> Result<(), Error> {
        let _growing = self.growth_lock.lock();
        if self.last.load(Acquire) != last {
            return Ok(());
        }
        let filter = self.make(last + 1, may_grow)?;
        self.append_filter(last, filter);
        Ok(())
    }

    /// Returns an empty filter for position `i` of the chain, if `may_grow` allows its size in
    /// bytes.
    pub(crate) fn make(&self, i: usize, may_grow: &dyn Fn(usize) -> bool) -> Result<Filter, Error> {
        let (sizing, pages) = Sizing::geometry(self.rate, self.pages(), i);
        if i >= LINKS || !may_grow(pages.saturating_mul(4096)) {
            return Err(Error::Full);
        }
        Filter::new(sizing, pages).map_err(Error::Memory)
    }

    /// Appends a filter. The caller holds `growth_lock`.
    fn append_filter(&self, last: usize, filter: Filter) {
        assert!(
            self.more[last].set(ChainedFilter::new(filter, 0)).is_ok(),
            "only the lock holder extends the chain"
        );
        self.last.store(last + 1, Release);
    }

    #[inline]
    pub(crate) fn set(link: &ChainedFilter, pair: &Pair) {
        link.filter.set(pair, &link.filter.probe(pair));
        link.pairs.fetch_add(1, Relaxed);
    }

    /// False-positive rate that the formula predicts for the current pairs.
    pub(crate) fn expected_rate(&self) -> f64 {
        let here =
            self.links().map(|link| link.filter.sizing().rate(link.pairs(), link.filter.pages()));
        here.sum::<f64>() + self.cold().map_or(0.0, |cold| cold.chain().rate())
    }
}

#[cfg(test)]
pub(crate) fn empty(rate: f64, pages: usize) -> std::io::Result<Table> {
    Ok(Table::new(rate, Filter::new(Table::first_sizing(rate), pages)?))
}

/// Source of the filters of a cold table.
pub(crate) enum ColdSource {
    /// The former table, while its filters are not on disk yet.
    Memory(Arc<Table>),
    Disk(Arc<dyn ColdBackend>, Arc<Chain>),
}

impl ColdSource {
    pub(crate) fn chain(&self) -> Arc<Chain> {
        match self {
            // Compute the chain on each call, because writers that were active when the table was
            // frozen may have added pairs.
            ColdSource::Memory(table) => Arc::new(table.layout_of_filters()),
            ColdSource::Disk(_, chain) => chain.clone(),
        }
    }
}

/// Filters of a cold table and its late pairs (pairs set after the filters were written). `cold.rs`
/// lists the invariants.
pub(crate) struct Cold {
    pub(crate) lower: RwLock<Arc<ColdSource>>,
    pub(crate) late: DeletedPairs,
    /// Number of late pairs in all tables of the space.
    total: OnceLock<Arc<AtomicUsize>>,
}

impl Cold {
    pub(crate) fn new(lower: ColdSource) -> Cold {
        Cold {
            lower: RwLock::new(Arc::new(lower)),
            late: DeletedPairs::small(),
            total: OnceLock::new(),
        }
    }

    pub(crate) fn lower(&self) -> Arc<ColdSource> {
        self.lower.read().clone()
    }

    pub(crate) fn chain(&self) -> Arc<Chain> {
        self.lower().chain()
    }

    pub(crate) fn memory(&self) -> Option<Arc<Table>> {
        match &*self.lower() {
            ColdSource::Memory(table) => Some(table.clone()),
            ColdSource::Disk(..) => None,
        }
    }

    pub(crate) fn identity(&self) -> u64 {
        match &*self.lower() {
            ColdSource::Memory(_) => 0,
            ColdSource::Disk(below, _) => below.identity(),
        }
    }

    pub(crate) fn count_in(&self, total: &Arc<AtomicUsize>) {
        if self.total.set(total.clone()).is_ok() {
            total.fetch_add(self.late(), Relaxed);
        }
    }

    pub(crate) fn late(&self) -> usize {
        self.late.len()
    }

    pub(crate) fn late_bytes(&self) -> usize {
        self.late.size_bytes()
    }

    pub(crate) fn pairs(&self) -> u64 {
        self.chain().pairs() + self.late.len() as u64
    }

    pub(crate) fn keep_late(&self, hash: u128) {
        if self.late.insert(hash)
            && let Some(total) = self.total.get()
        {
            total.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn forget_late(&self, hashes: &[u128]) {
        let gone = hashes.iter().filter(|&&hash| self.late.remove(hash)).count();
        if let Some(total) = self.total.get() {
            total.fetch_sub(gone, Relaxed);
        }
    }

    pub(crate) fn has(&self, pair: &Pair) -> Result<bool, Unreadable> {
        // C1: the caller has already searched `late`.
        match &*self.lower() {
            ColdSource::Memory(table) => Ok(table.has_in_memory(pair)),
            ColdSource::Disk(below, _) => below.has(pair),
        }
    }

    /// Whether the filters or the late pairs contain the pair, or the pair was deleted.
    #[cold]
    pub(crate) fn seems_set(
        &self,
        pair: &Pair,
        revoked: &DeletedPairs,
    ) -> Result<bool, Unreadable> {
        let hash = pair.hash();
        Ok(revoked.contains(hash) || self.late.contains(hash) || self.has(pair)?)
    }
}

impl Drop for Cold {
    fn drop(&mut self) {
        if let Some(total) = self.total.get() {
            total.fetch_sub(self.late(), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::{Member, Seed};

    fn pair(id: u64, member: u64) -> Pair {
        let seed = Seed::new(9);
        seed.pair(id, seed.prepare_member(&Member::Number(member)))
    }

    fn fill(table: &Table, members: std::ops::Range<u64>) {
        for member in members {
            let pair = pair(1, member);
            if table.state(&pair).unwrap() == State::Unset {
                Table::set(table.room(|_| true).unwrap(), &pair);
            }
        }
    }

    /// Checks T1, T2 and P6 with forty times as many pairs as planned.
    #[test]
    fn an_overrun_table_keeps_its_rate_and_finds_all() {
        for rate in [0.01, 0.001] {
            let table = empty(rate, 4).unwrap();
            let n = table.capacity() * 40;
            fill(&table, 0..n);
            assert!(table.links().count() > 4);
            assert!(table.links().all(|link| link.pairs() <= link.capacity()), "T2");
            assert!(
                (0..n).all(|member| table.state(&pair(1, member)).unwrap() == State::Set),
                "T1"
            );
            let measured = table.probe(Seed::new(9), 1, 1_000_000).rate().unwrap();
            // Four pages are a small sample, so the tolerance is wide.
            let slack = 1.0 + 4.0 / (rate * 1e6).sqrt() + 0.05;
            assert!(measured <= rate * slack, "measured {measured}, configured {rate}");
            assert!(table.expected_rate() <= rate);
        }
    }

    /// A filter skips pairs that it already reports as set. If the capacity ignored this effect, a
    /// full table would have more bits set than its pair count implies, and the decoder would
    /// reject the table.
    #[test]
    fn a_full_table_is_as_full_as_its_count_says() {
        for (rate, pages) in [(0.25, 100), (0.05, 100)] {
            let table = empty(rate, pages).unwrap();
            let mut member = 0;
            while table.pairs() < table.capacity() {
                fill(&table, member..member + 1000);
                member += 1000;
            }
            let (sizing, ones) = (table.first_filter().sizing(), table.first_filter().ones());
            let by_bits = sizing.pairs_of(ones, pages);
            let slack = crate::sizing::uncertainty(by_bits) + 1000;
            assert!(
                by_bits.abs_diff(table.capacity()) < slack,
                "{by_bits} by bits, {} expected at {rate}",
                table.capacity()
            );
            assert!(
                member.abs_diff(sizing.pairs(pages)) < slack,
                "{member} pairs, expected {} at {rate}",
                sizing.pairs(pages)
            );
            let measured = table.probe(Seed::new(9), 1, 1_000_000).rate().unwrap();
            assert!(
                measured < rate && measured > rate * 0.93,
                "measured {measured}, configured {rate}"
            );
        }
    }

    #[test]
    fn a_table_that_may_not_grow_says_so() {
        let table = empty(0.001, 1).unwrap();
        fill(&table, 0..table.capacity() - 1);
        let mut member = 1 << 32;
        while let Ok(link) = table.room(|_| false) {
            Table::set(link, &pair(1, member));
            member += 1;
        }
        assert!(matches!(table.room(|_| false), Err(Error::Full)));
        assert!(table.room(|bytes| bytes == Sizing::geometry(0.001, 1, 1).1 * 4096).is_ok());
    }
}
