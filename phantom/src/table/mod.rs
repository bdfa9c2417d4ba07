//! What a space keeps for one id range: a chain of filters, and the revoked pairs.
//!
//! ```text
//!   first filter     extension 1      extension 2           revoked
//!   [ C pairs ]  ->  [ C/8 ]      ->  [ C/4 ]     -> ...    { exact }
//! ```
//!
//! A table normally has its first filter only. When that has taken all the pairs that its error
//! rate allows, although the table was closed early enough by all experience, a further filter is
//! chained to it. Their rates add up to the configured one at most (`sizing`), however long the
//! chain. The first filter that has room takes the pairs.
//!
//! The filters of an old table may be on disk ([`Cold`]). Then `first` is an empty page.
//!
//! - **T1** A pair that was set and not revoked since is found, at every moment.
//! - **T2** No filter takes more pairs than its rate allows, but for one per writer that was inside
//!   when it filled up.

pub(crate) mod cold_table;
pub(crate) mod pages;

use crate::Error;
use crate::deleted_pairs::DeletedPairs;
use crate::filter::{Filter, Probe};
use crate::fp_estimator::FpEstimator;
use crate::hash::Pair;
use crate::sizing::Sizing;
use cold_table::{Chain, ColdBackend, Part};
use parking_lot::{Mutex, RwLock};
use rolling::Unreadable;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use std::sync::{Arc, OnceLock};

/// The longest chain: its last filter holds 2,048 times the pairs of the first.
pub(crate) const LINKS: usize = 16;

/// One filter of the chain.
#[repr(C)]
pub(crate) struct Link {
    pub(crate) filter: Filter,
    pairs: AtomicU64,
    capacity: u64,
}

impl Link {
    pub(crate) fn new(filter: Filter, pairs: u64) -> Link {
        let capacity = filter.capacity();
        Link { filter, pairs: AtomicU64::new(pairs), capacity }
    }

    /// Pairs in it, revoked ones included: when they reach the capacity it takes no more.
    pub(crate) fn pairs(&self) -> u64 {
        self.pairs.load(Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }
}

/// What a table knows of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Unset,
    Set,
    DeletedPairs,
}

/// See the top of the file. A lookup needs the first two and no more, so they lie in one line of
/// the cache: a page meets the tables of all its ids.
#[repr(C, align(64))]
pub(crate) struct Table {
    /// Index of the last filter of the chain.
    last: AtomicUsize,
    first: Link,
    rate: f64,
    more: [OnceLock<Link>; LINKS - 1],
    growing: Mutex<()>,
    pub(crate) revoked: Arc<DeletedPairs>,
    /// Filters on disk, if any. Then `first` is an empty page, so that the table looks like one
    /// with an extension, and readers of other tables pay for no test.
    cold: Option<Box<Cold>>,
    /// Pairs that were set before the table was closed; 0 while it is open.
    early: AtomicU64,
    /// With how many pairs the table is closed.
    roll_at: AtomicU64,
    pub(crate) canaries: Mutex<FpEstimator>,
    /// Index of the first filter that may have room: those before it are full.
    filling: AtomicUsize,
    /// Counts what changes the table but not its number of pairs.
    touched: AtomicU64,
    /// What takes its place soon, and whether there is such (`rebuild`).
    successor: RwLock<Option<Arc<Table>>>,
    has_successor: AtomicBool,
    /// It is to be built anew.
    outdated: AtomicBool,
}

impl Table {
    /// An empty table. `first` was made by [`Table::first_sizing`] for the same rate.
    pub(crate) fn new(rate: f64, first: Filter) -> Table {
        Table::from_links(rate, Link::new(first, 0), vec![], 0)
    }

    /// A table as it was stored.
    pub(crate) fn from_links(rate: f64, first: Link, more: Vec<Link>, early: u64) -> Table {
        assert!(more.len() < LINKS, "a chain of {} filters", more.len() + 1);
        let last = AtomicUsize::new(more.len());
        let roll_at = AtomicU64::new(first.capacity);
        let mut more = more.into_iter();
        Table {
            rate,
            first,
            more: std::array::from_fn(|_| more.next().map_or_else(OnceLock::new, OnceLock::from)),
            last,
            growing: Mutex::new(()),
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

    /// A table that is to take the place of another, empty.
    pub(crate) fn succeeding(other: &Table, rate: f64, first: Filter) -> Table {
        Table { revoked: other.revoked.clone(), ..Table::new(rate, first) }
    }

    /// A table whose filters are on disk; `empty` has one page.
    pub(crate) fn cold_table(
        rate: f64,
        empty: Filter,
        cold: Cold,
        revoked: Arc<DeletedPairs>,
        early: u64,
    ) -> Table {
        let mut table = Table::from_links(rate, Link::new(empty, 0), vec![], early.max(1));
        table.last = AtomicUsize::new(1);
        table.roll_at = AtomicU64::new(early);
        Table { cold: Some(Box::new(cold)), revoked, ..table }
    }

    pub(crate) fn first_sizing(rate: f64) -> Sizing {
        Sizing::in_chain(rate, 0)
    }

    /// Sizes of the filters, as a file of them is laid out.
    pub(crate) fn layout_of_filters(&self) -> Chain {
        let mut chain = Chain { rate: self.rate(), parts: Vec::new() };
        for link in self.links() {
            let (sizing, pages, first) =
                (*link.filter.sizing(), link.filter.pages(), chain.pages());
            chain.parts.push(Part { sizing, pages, first, pairs: link.pairs() });
        }
        chain
    }

    pub(crate) fn rate(&self) -> f64 {
        self.cold().map_or(self.rate, |cold| cold.chain().rate)
    }

    /// Returns the filters on disk, if any.
    #[inline(always)]
    pub(crate) fn cold(&self) -> Option<&Cold> {
        self.cold.as_deref()
    }

    /// Pages of the first filter, wherever it lies.
    pub(crate) fn pages(&self) -> usize {
        self.cold().map_or(self.first.filter.pages(), |cold| cold.chain().first_pages())
    }

    /// Pages of the first filter, if it lies in memory.
    pub(crate) fn pages_in_memory(&self) -> usize {
        if self.cold().is_some_and(|cold| cold.memory().is_none()) { 0 } else { self.pages() }
    }

    pub(crate) fn link(&self, i: usize) -> Option<&Link> {
        if i == 0 { Some(&self.first) } else { self.more.get(i - 1)?.get() }
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = &Link> {
        (0..=self.last.load(Acquire)).map_while(|i| self.link(i))
    }

    pub(crate) fn first_filter(&self) -> &Filter {
        &self.first.filter
    }

    /// The memory of the first filter, for use in another table.
    pub(crate) fn into_first_filter(self) -> Filter {
        self.first.filter
    }

    /// Notes a change that leaves the number of pairs as it is.
    pub(crate) fn touch(&self) {
        self.touched.fetch_add(1, Relaxed);
    }

    /// Rises with every change.
    pub(crate) fn version(&self) -> u64 {
        self.pairs() + self.touched.load(Relaxed)
    }

    /// Pairs in the filters, revoked ones included.
    pub(crate) fn pairs(&self) -> u64 {
        self.links().map(Link::pairs).sum::<u64>() + self.cold().map_or(0, Cold::pairs)
    }

    /// Pairs in the first filter.
    pub(crate) fn pairs_in_first(&self) -> u64 {
        self.cold().map_or(self.first.pairs(), |cold| cold.chain().first_pairs())
    }

    /// Pairs that the first filter holds at its rate.
    pub(crate) fn capacity(&self) -> u64 {
        self.cold().map_or(self.first.capacity, |cold| cold.chain().first_capacity())
    }

    pub(crate) fn early(&self) -> u64 {
        self.early.load(Relaxed)
    }

    /// Says that the table is no longer open.
    pub(crate) fn close(&self) {
        self.set_closed_at(self.pairs().max(1));
    }

    /// Says that it is closed, or to be, as that one, whose place it takes.
    pub(crate) fn close_as(&self, other: &Table) {
        self.early.store(other.early(), Relaxed);
        self.roll_at.store(other.roll_at(), Relaxed);
    }

    pub(crate) fn set_successor(&self, successor: Option<Arc<Table>>) {
        let mut held = self.successor.write();
        self.has_successor.store(successor.is_some(), SeqCst);
        *held = successor;
    }

    /// What is set here is set in what takes the place of the table, too. To be called before it
    /// is, under its stripe.
    #[inline]
    pub(crate) fn pass_on(&self, pair: &Pair) -> Result<(), Error> {
        if self.has_successor.load(Relaxed) { self.pass_on_now(pair) } else { Ok(()) }
    }

    #[cold]
    fn pass_on_now(&self, pair: &Pair) -> Result<(), Error> {
        self.successor.read().as_ref().map_or(Ok(()), |next| next.put(pair))
    }

    /// Whether what takes the place of the table may lack a pair.
    pub(crate) fn successor_lacks(&self, pair: &Pair) -> bool {
        self.has_successor.load(Relaxed)
            && self.successor.read().as_ref().is_some_and(|next| !next.has_in_memory(pair))
    }

    /// Sets a pair whose stripe may be held by others.
    pub(crate) fn put(&self, pair: &Pair) -> Result<(), Error> {
        if !self.has_in_memory(pair) {
            Table::set(self.room(|_| true)?, pair);
        }
        Ok(())
    }

    /// Whether it is to be built anew, whatever its rate.
    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated.load(Relaxed)
    }

    pub(crate) fn set_outdated(&self, outdated: bool) {
        self.outdated.store(outdated, Relaxed);
    }

    /// Says whether a restored table is open.
    pub(crate) fn set_open(&self, open: bool) {
        let early = if open { 0 } else { self.early().max(1) };
        self.early.store(early, Relaxed);
        self.roll_at.store(if open { self.capacity() } else { early }, Relaxed);
    }

    /// Says that it is open, whatever was said of it before.
    pub(crate) fn reopen(&self) {
        self.early.store(0, Relaxed);
    }

    /// Whether it is open: new ids come into it, and when it is full the next one opens above it.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.early() == 0
    }

    pub(crate) fn set_roll_at(&self, pairs: u64) {
        self.roll_at.store(pairs, Relaxed);
    }

    /// Makes it what a log says of a table that is closed: it was at so many pairs.
    pub(crate) fn set_closed_at(&self, pairs: u64) {
        self.early.store(pairs, Relaxed);
        self.roll_at.store(pairs, Relaxed);
    }

    pub(crate) fn roll_at(&self) -> u64 {
        self.roll_at.load(Relaxed)
    }

    /// Whether an open table has so many pairs that it is time to close it: as the first filter
    /// holds, or in all of the chain.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        let roll_at = self.roll_at.load(Relaxed);
        self.first.pairs() >= roll_at
            || (self.is_chained() && self.links().map(Link::pairs).sum::<u64>() >= roll_at)
    }

    pub(crate) fn filter_bytes(&self) -> usize {
        match self.cold() {
            None => self.links().map(|link| link.filter.size_bytes()).sum(),
            // Its own filter is empty, and nothing of it was ever touched.
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

    /// The state of `pair`, whose place in the first filter is `probe`, in a table that has its
    /// filters in memory.
    #[inline]
    pub(crate) fn state_in_memory(&self, pair: &Pair, probe: &Probe) -> State {
        self.found(self.filters_contain(pair, probe), pair)
    }

    /// The state of a pair that some filter has, or none.
    #[inline]
    pub(crate) fn found(&self, found: bool, pair: &Pair) -> State {
        match found {
            false => State::Unset,
            true if self.revoked.contains(pair.hash()) => State::DeletedPairs,
            true => State::Set,
        }
    }

    /// Whether there is more than one filter.
    #[inline(always)]
    pub(crate) fn is_chained(&self) -> bool {
        self.last.load(Acquire) > 0
    }

    /// Number of filters after the first, in memory or on disk.
    pub(crate) fn extensions(&self) -> usize {
        self.cold().map_or_else(|| self.last.load(Acquire), |cold| cold.chain().links() - 1)
    }

    /// The filters behind the first.
    #[inline(always)]
    pub(crate) fn chain(&self) -> impl Iterator<Item = &Link> {
        let last = self.last.load(Acquire).min(LINKS - 1);
        self.more[..last].iter().map_while(OnceLock::get)
    }

    /// Whether a filter in memory has `pair`, whose place in the first is `probe`.
    #[inline]
    fn filters_contain(&self, pair: &Pair, probe: &Probe) -> bool {
        self.first.filter.contains(pair, probe)
            || self.chain().any(|l| l.filter.contains(pair, &l.filter.spot_again(pair, probe)))
    }

    /// Whether the filters on disk, or the late pairs, have `pair`.
    #[inline]
    pub(crate) fn seems_set_on_disk(&self, pair: &Pair) -> Result<bool, Unreadable> {
        self.cold().map_or(Ok(false), |cold| cold.seems_set(pair, &self.revoked))
    }

    /// Hints that `pair`, whose place in the first filter is `probe`, will be asked for, set or
    /// unset soon. If it is not set, the first line of each filter will say so; without this it
    /// would be waited for in one after the other.
    #[inline]
    pub(crate) fn prefetch(&self, pair: &Pair, probe: &Probe) {
        self.first.filter.prefetch(probe, 1);
        self.first.filter.prefetch(probe, 0);
        self.chain().for_each(|link| link.filter.prefetch(&link.filter.spot_again(pair, probe), 0));
        // A pair that is not set yet will be set in the one that has room.
        if self.is_chained()
            && let Some(link) = self.link(self.filling.load(Relaxed))
        {
            link.filter.prefetch(&link.filter.spot_again(pair, probe), 1);
        }
    }

    /// Fetches the cache lines of a pair that will be set.
    #[inline]
    pub(crate) fn prefetch_lines(&self, pair: &Pair) {
        self.prefetch(pair, &self.first.filter.probe(pair));
    }

    /// Whether some filter in memory has the pair.
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

    /// The filter that takes the next pair: the first that has room. When all are full a further
    /// one is chained, if `may_grow` by so many bytes.
    #[inline]
    pub(crate) fn room(&self, may_grow: impl Fn(usize) -> bool) -> Result<&Link, Error> {
        loop {
            let (at, last) = (self.filling.load(Relaxed), self.last.load(Acquire));
            // Not what lies behind `last`, though it may be there already: readers do not know it
            // yet (T1).
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
        let _growing = self.growing.lock();
        if self.last.load(Acquire) != last {
            return Ok(());
        }
        let filter = self.make(last + 1, may_grow)?;
        self.chain_up(last, filter);
        Ok(())
    }

    /// An empty filter for the `i`-th place of the chain, if `may_grow` by so many bytes.
    pub(crate) fn make(&self, i: usize, may_grow: &dyn Fn(usize) -> bool) -> Result<Filter, Error> {
        let (sizing, pages) = Sizing::geometry(self.rate, self.pages(), i);
        if i >= LINKS || !may_grow(pages.saturating_mul(4096)) {
            return Err(Error::Full);
        }
        Filter::new(sizing, pages).map_err(Error::Memory)
    }

    /// With `growing` held.
    fn chain_up(&self, last: usize, filter: Filter) {
        assert!(
            self.more[last].set(Link::new(filter, 0)).is_ok(),
            "only this extends the chain, under a lock"
        );
        self.last.store(last + 1, Release);
    }

    /// Sets a pair that is not set, in the filter that [`Table::room`] gave.
    #[inline]
    pub(crate) fn set(link: &Link, pair: &Pair) {
        link.filter.set(pair, &link.filter.probe(pair));
        link.pairs.fetch_add(1, Relaxed);
    }

    /// The error rate that the pairs in the filters give, by the formula.
    pub(crate) fn expected_rate(&self) -> f64 {
        let here =
            self.links().map(|link| link.filter.sizing().rate(link.pairs(), link.filter.pages()));
        here.sum::<f64>() + self.cold().map_or(0.0, |cold| cold.chain().rate())
    }
}

/// An empty table whose first filter has `pages`.
#[cfg(test)]
pub(crate) fn empty(rate: f64, pages: usize) -> std::io::Result<Table> {
    Ok(Table::new(rate, Filter::new(Table::first_sizing(rate), pages)?))
}

/// Source of the filters of a cold table.
pub(crate) enum Lower {
    /// The former table, until its filters are written.
    Memory(Arc<Table>),
    Disk(Arc<dyn ColdBackend>, Arc<Chain>),
}

impl Lower {
    pub(crate) fn chain(&self) -> Arc<Chain> {
        match self {
            // Counted now: writers that were inside when the table froze have finished since.
            Lower::Memory(table) => Arc::new(table.layout_of_filters()),
            Lower::Disk(_, chain) => chain.clone(),
        }
    }
}

/// Filters of a cold table, and the pairs that were set after they were written (late pairs).
/// `cold.rs` has the invariants.
pub(crate) struct Cold {
    pub(crate) lower: RwLock<Arc<Lower>>,
    /// Late pairs.
    pub(crate) late: DeletedPairs,
    /// Number of late pairs in all tables of the space.
    total: OnceLock<Arc<AtomicUsize>>,
}

impl Cold {
    pub(crate) fn new(lower: Lower) -> Cold {
        Cold {
            lower: RwLock::new(Arc::new(lower)),
            late: DeletedPairs::small(),
            total: OnceLock::new(),
        }
    }

    pub(crate) fn lower(&self) -> Arc<Lower> {
        self.lower.read().clone()
    }

    pub(crate) fn chain(&self) -> Arc<Chain> {
        self.lower().chain()
    }

    /// Returns the former table while it is in memory.
    pub(crate) fn memory(&self) -> Option<Arc<Table>> {
        match &*self.lower() {
            Lower::Memory(table) => Some(table.clone()),
            Lower::Disk(..) => None,
        }
    }

    pub(crate) fn identity(&self) -> u64 {
        match &*self.lower() {
            Lower::Memory(_) => 0,
            Lower::Disk(below, _) => below.identity(),
        }
    }

    /// Includes the late pairs in the total of the space.
    pub(crate) fn count_in(&self, total: &Arc<AtomicUsize>) {
        if self.total.set(total.clone()).is_ok() {
            total.fetch_add(self.late(), Relaxed);
        }
    }

    /// Number of late pairs.
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
        // The caller has searched `late` first: C1.
        match &*self.lower() {
            Lower::Memory(table) => Ok(table.has_in_memory(pair)),
            Lower::Disk(below, _) => below.has(pair),
        }
    }

    /// Whether the pair is set or revoked.
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
        seed.pair(id, seed.ready(&Member::Number(member)))
    }

    fn fill(table: &Table, members: std::ops::Range<u64>) {
        for member in members {
            let pair = pair(1, member);
            if table.state(&pair).unwrap() == State::Unset {
                Table::set(table.room(|_| true).unwrap(), &pair);
            }
        }
    }

    /// T1, T2 and promise 6 for a table that gets forty times what it was made for.
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
            // Only four pages: the first filter is no large sample.
            let slack = 1.0 + 4.0 / (rate * 1e6).sqrt() + 0.05;
            assert!(measured <= rate * slack, "{measured} for {rate}");
            assert!(table.expected_rate() <= rate);
        }
    }

    /// Pairs that are taken for set are not set again, so a table that is full by its count would
    /// be fuller by its bits: at a high rate, or in a large table, by more than a decoder believes.
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
                "{by_bits} for {} at {rate}",
                table.capacity()
            );
            assert!(
                member.abs_diff(sizing.pairs(pages)) < slack,
                "{member} came for {} at {rate}",
                sizing.pairs(pages)
            );
            let measured = table.probe(Seed::new(9), 1, 1_000_000).rate().unwrap();
            assert!(measured < rate && measured > rate * 0.93, "{measured} for {rate}");
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
