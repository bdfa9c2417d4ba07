//! A space: the ring of tables, the pairs aside, and when to roll.
//!
//! **Rolling.** The newest table is closed when its pairs reach capacity / (1 + late), where `late` is the measured ratio of the pairs that
//! came after a table was closed to those that came before (30 % until there is a measurement), so that late pairs fit, too. The first
//! table of a space is small, and each next one twice as large, up to `pairs_per_table`: a small space costs little.
//!
//! **Recycling.** The ring keeps filters for `max_tables * pairs_per_table` pairs; when a roll brings more, the oldest tables go.
//! Extensions do not count: what is sent for one id extends its table, and costs memory up to the limit, but moves no horizon (P4).
//!
//! **Locks**, in this order: aside, a stripe of the ring, a table's growth or a shard of its revoked pairs. All that happens to one
//! pair happens under its stripe (or, for an id far ahead, under the mutex of the aside), so test and set are one step (P3).

use crate::Error;
use crate::filter::{Filter, Spot};
use crate::hash::{Member, Pair, Ready, Seed};
use crate::options::{Answer, Change, Options};
use crate::revoked::Hashes;
use crate::sizing::Sizing;
use crate::stats::{Layout, TableStats};
use crate::table::{State, Table};
use crate::upkeep::Upkeep;
use parking_lot::Mutex;
use rolling::{Aside, Frontier, Refused, Ring};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Ids that are looked up together: enough for all fetches that a core has in flight.
const BATCH: usize = 32;
/// The first table of a space is so many times smaller than a grown one.
const FIRST_TABLE_PART: usize = 64;
/// Late pairs by early pairs, until measured.
const LATE_AT_START: f64 = 0.3;
/// The measured ratio is taken for no less and no more than this.
const LATE: std::ops::RangeInclusive<f64> = 0.05..=1.0;
/// Up to so many pairs aside, a writer that finds it is time moves them itself; more are left to `maintain`.
const MOVED_BY_WRITER: usize = 4096;

/// Pairs of (id, member). See the top of the file; all methods may be called from any thread.
pub struct Space {
    options: Options,
    seed: Seed,
    sizing: Sizing,
    /// Pages of a grown table's first filter.
    pages_per_table: usize,
    ring: Ring<Arc<Table>>,
    frontier: Frontier,
    aside: Aside<Hashes>,
    aside_pairs: AtomicUsize,
    upkeep: Mutex<Upkeep>,
    rolling: Mutex<()>,
    /// How often the ring has changed.
    changes: AtomicU64,
}

impl Space {
    /// An empty space whose horizon is 0.
    pub fn new(options: Options) -> Result<Space, Error> {
        options.check()?;
        let sizing = Table::first_sizing(options.false_positive_rate);
        let pages = sizing.pages(options.pairs_per_table).div_ceil(FIRST_TABLE_PART);
        let filter = Filter::new(sizing, pages).map_err(Error::Memory)?;
        let first = Arc::new(Table::new(options.false_positive_rate, filter));
        let frontier = Frontier::new(options.max_ahead);
        Space::from_parts(options, vec![(0, first)], frontier)
    }

    pub(crate) fn from_parts(
        options: Options,
        tables: Vec<(u64, Arc<Table>)>,
        frontier: Frontier,
    ) -> Result<Space, Error> {
        options.check()?;
        let sizing = Table::first_sizing(options.false_positive_rate);
        let space = Space {
            seed: Seed::new(options.seed),
            sizing,
            pages_per_table: sizing.pages(options.pairs_per_table),
            ring: Ring::from_parts(tables),
            frontier,
            aside: Aside::default(),
            aside_pairs: AtomicUsize::new(0),
            upkeep: Mutex::default(),
            rolling: Mutex::new(()),
            changes: AtomicU64::new(0),
            options,
        };
        space.estimate();
        Ok(space)
    }

    /// The options it was made with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The pair of `id` and `member`, as the log names it.
    #[inline]
    pub fn pair(&self, id: u64, member: &Member) -> Pair {
        self.seed.pair(id, self.seed.ready(member))
    }

    // --- reading ---

    /// Whether the pair is set.
    #[inline]
    pub fn contains(&self, id: u64, member: &Member) -> Answer {
        self.contains_pair(&self.pair(id, member))
    }

    /// [`Space::contains`] for a pair that was hashed before: what the log stores is asked like this.
    #[inline]
    pub fn contains_pair(&self, pair: &Pair) -> Answer {
        // Aside first, tables second: a pair moves from there to here. The list of tables is taken after that, or it might lack the
        // table into which the pair went.
        if self.is_aside(pair) {
            return Answer::Yes;
        }
        let tables = self.ring.load();
        match tables.find(pair.id) {
            None => Answer::Unknown,
            Some(entry) => answer(entry.table().state(pair)),
        }
    }

    /// One member, many ids, the feed's shape: appends an answer per id. Faster per id than [`Space::contains`], as the memory
    /// of up to 32 pairs is fetched at once.
    pub fn contains_batch(&self, member: &Member, ids: &[u64], out: &mut Vec<Answer>) {
        self.contains_batch_where(member, ids, |_| true, out);
    }

    /// [`Space::contains_batch`], in which only the ids at positions for which `wanted` holds are looked up: the others are answered with
    /// no. For flags that a counter of 0 has already answered.
    pub fn contains_batch_where(
        &self,
        member: &Member,
        ids: &[u64],
        wanted: impl Fn(usize) -> bool,
        out: &mut Vec<Answer>,
    ) {
        let member = self.seed.ready(member);
        out.reserve(ids.len());
        for (chunk, ids) in ids.chunks(BATCH).enumerate() {
            self.contains_chunk(member, ids, |i| wanted(chunk * BATCH + i), out);
        }
    }

    #[inline]
    fn contains_chunk(&self, member: Ready, ids: &[u64], wanted: impl Fn(usize) -> bool, out: &mut Vec<Answer>) {
        /// What the first pass leaves for the second.
        #[derive(Clone, Copy)]
        enum Found<'a> {
            Done(Answer),
            At(&'a Table, Pair, Spot),
        }
        let mut pairs = [Pair { id: 0, high: 0, low: 0 }; BATCH];
        let mut aside = 0u32;
        for (i, &id) in ids.iter().enumerate() {
            pairs[i] = self.seed.pair(id, member);
            if self.is_aside(&pairs[i]) {
                aside |= 1 << i;
            }
        }
        let tables = self.ring.load();
        let mut found = [Found::Done(Answer::No); BATCH];
        for (i, pair) in pairs[..ids.len()].iter().enumerate().filter(|(i, _)| wanted(*i)) {
            found[i] = match tables.find(pair.id) {
                _ if aside >> i & 1 == 1 => Found::Done(Answer::Yes),
                None => Found::Done(Answer::Unknown),
                Some(entry) => {
                    let table: &Table = entry.table();
                    let spot = table.first_filter().spot(pair);
                    table.first_filter().prefetch(&spot);
                    Found::At(table, *pair, spot)
                }
            };
        }
        out.extend(found[..ids.len()].iter().map(|found| match found {
            Found::Done(answer) => *answer,
            Found::At(table, pair, spot) => answer(table.state_at(pair, spot)),
        }));
    }

    #[inline]
    fn is_aside(&self, pair: &Pair) -> bool {
        self.aside.may_hold(pair.id) && self.aside.read(pair.id, |set| set.contains(&pair.hash())) == Some(true)
    }

    /// Hints that the pair will be asked for, set or unset soon: call it for all pairs of a request, then do what is asked. An
    /// addition to a large filter takes a third of the time then.
    #[inline]
    pub fn prefetch(&self, id: u64, member: &Member) {
        let pair = self.pair(id, member);
        if let Some(entry) = self.ring.load().find(id) {
            let filter = entry.table().first_filter();
            filter.prefetch(&filter.spot(&pair));
        }
    }

    // --- writing ---

    /// Sets the pair.
    pub fn add(&self, id: u64, member: &Member) -> Result<Change, Error> {
        self.add_with(id, member, || Ok::<(), Error>(()))
    }

    /// Unsets the pair.
    pub fn remove(&self, id: u64, member: &Member) -> Result<Change, Error> {
        self.remove_with(id, member, || Ok::<(), Error>(()))
    }

    /// If the pair is not set, runs `first` and, if that succeeds, sets it: in one step, as nobody else tests or changes this pair
    /// meanwhile (P3). `first` runs under a lock: it must be short, and must not write to this space. All that can be refused is
    /// checked before, so when `first` has run the pair is set.
    pub fn add_with<E: From<Error>>(
        &self,
        id: u64,
        member: &Member,
        first: impl FnOnce() -> Result<(), E>,
    ) -> Result<Change, E> {
        self.change(&self.pair(id, member), true, false, first)
    }

    /// If the pair is set, runs `first` and, if that succeeds, unsets it; otherwise as [`Space::add_with`].
    pub fn remove_with<E: From<Error>>(
        &self,
        id: u64,
        member: &Member,
        first: impl FnOnce() -> Result<(), E>,
    ) -> Result<Change, E> {
        self.change(&self.pair(id, member), false, false, first)
    }

    /// Makes the pair what the log says it is. May be repeated, and come in any order relative to rolls. Bounds on early ids do not
    /// hold here: what was accepted once is accepted again.
    pub fn put(&self, pair: &Pair, set: bool) -> Result<(), Error> {
        self.change(pair, set, true, || Ok::<(), Error>(())).map(|_| ())
    }

    fn change<E: From<Error>>(
        &self,
        pair: &Pair,
        set: bool,
        replay: bool,
        first: impl FnOnce() -> Result<(), E>,
    ) -> Result<Change, E> {
        if self.aside_pairs.load(SeqCst) >= self.options.max_aside {
            self.take_in_early();
        }
        // Exactly one of the two closures runs, once.
        let first = std::cell::Cell::new(Some(first));
        let run_first = || first.take().map_or(Ok(()), |first| first());
        let mut due = None;
        let inside = |early: Option<&Hashes>| {
            if let Some(early) = early {
                self.settle(pair.id, early)?;
            }
            let settled = early.map_or(0, Hashes::len);
            let done = self.ring.write(pair.id, pair.low, |entry| {
                let table = entry.table();
                let done = self.change_in(table, pair, set, run_first);
                if table.is_due() && table.early() == 0 {
                    due = Some(entry.slot().low());
                }
                done
            });
            let done = done.unwrap_or(Ok(Change::Unknown))?;
            // Only a write that succeeds ends their stay in the aside.
            self.aside_pairs.fetch_sub(settled, SeqCst);
            Ok(done)
        };
        let ahead = |entry: &mut Option<Hashes>| {
            let held = entry.as_ref().is_some_and(|held| held.contains(&pair.hash()));
            if held == set {
                return Ok(Change::Unchanged);
            }
            if set && !replay && self.aside_pairs.load(SeqCst) >= self.options.max_aside {
                return Err(Error::AsideFull.into());
            }
            run_first()?;
            if set {
                entry.get_or_insert_default().insert(pair.hash());
                self.aside_pairs.fetch_add(1, SeqCst);
            } else if let Some(held) = entry {
                held.remove(&pair.hash());
                self.aside_pairs.fetch_sub(1, SeqCst);
                entry.take_if(|held| held.is_empty());
            }
            Ok(Change::Changed)
        };
        let result = if replay {
            self.aside.replay(&self.frontier, pair.id, inside, ahead).map_err(Refused::Engine)
        } else {
            self.aside.write(&self.frontier, pair.id, inside, ahead)
        };
        if let Some(low) = due {
            self.roll(low, None);
        }
        if !self.aside.is_empty() && self.aside_pairs.load(SeqCst) <= MOVED_BY_WRITER {
            self.take_in_early();
        }
        result.map_err(|refused| match refused {
            Refused::TooFar => Error::KeyTooBig.into(),
            Refused::Engine(error) => error,
        })
    }

    /// The change of one pair in the table that covers it; called under its stripe.
    #[inline]
    fn change_in<E: From<Error>>(
        &self,
        table: &Table,
        pair: &Pair,
        set: bool,
        first: impl FnOnce() -> Result<(), E>,
    ) -> Result<Change, E> {
        // Both lines are needed if the pair is to be set: fetched at once they cost one miss.
        let spot = table.first_filter().spot(pair);
        table.first_filter().prefetch(&spot);
        match (table.state_at(pair, &spot), set) {
            (State::Set, true) | (State::Unset | State::Revoked, false) => return Ok(Change::Unchanged),
            (State::Unset, true) => {
                let link = table.room(|bytes| self.may_grow(bytes))?;
                first()?;
                // A merge may bring a revoked pair before its bits.
                table.revoked.remove(pair.hash());
                Table::set(link, pair);
            }
            (State::Revoked, true) => {
                first()?;
                table.revoked.remove(pair.hash());
                table.touch();
            }
            (State::Set, false) => {
                if !table.revoked.reserve(self.options.max_revoked) {
                    return Err(Error::RevokedFull.into());
                }
                if let Err(error) = first() {
                    table.revoked.release();
                    return Err(error);
                }
                table.revoked.insert_reserved(pair.hash());
                table.touch();
            }
        }
        Ok(Change::Changed)
    }

    /// Stores the pairs of `id` that were aside in tables. The caller holds the aside, and deletes them there afterwards.
    fn settle(&self, id: u64, early: &Hashes) -> Result<(), Error> {
        for &hash in early {
            let pair = Pair::from_hash(id, hash);
            let first = || Ok::<(), Error>(());
            self.ring.write(id, pair.low, |entry| self.change_in(entry.table(), &pair, true, first)).transpose()?;
        }
        Ok(())
    }

    pub(crate) fn may_grow(&self, bytes: usize) -> bool {
        let used = self.ring.load().entries().iter().map(|entry| entry.table().size_bytes()).sum::<usize>();
        let limit = self.options.memory_limit_bytes.unwrap_or(self.full_bytes().saturating_mul(2));
        (used as u64).saturating_add(bytes as u64) <= limit
    }

    /// Bytes of `max_tables` full tables.
    fn full_bytes(&self) -> u64 {
        (self.max_pages() as u64).saturating_mul(4096)
    }

    fn max_pages(&self) -> usize {
        self.pages_per_table.saturating_mul(self.options.max_tables)
    }

    // --- the ring ---

    /// Closes the newest table, if it still starts at `low`, and opens one above all normal ids, or at `at` if that is higher.
    fn roll(&self, low: u64, at: Option<Layout>) -> bool {
        let Some(_rolling) = self.rolling.try_lock() else { return false };
        let boundary = || match (self.frontier.high(), at) {
            (Some(high), at) => Some(high.checked_add(1)?.max(at.map_or(0, |at| at.low))),
            (None, at) => at.map(|at| at.low),
        };
        let newest = self.ring.load().newest().clone();
        if newest.slot().low() != low || boundary().is_none_or(|boundary| boundary <= low) {
            return false;
        }
        let newest = newest.table();
        let pages = at.map_or(self.next_pages(newest), |at| at.pages.clamp(1, self.pages_per_table));
        let spare = self.upkeep.try_lock().and_then(|mut upkeep| upkeep.take_spare(pages));
        // Fresh memory is instant, if not as fast at first.
        let Some(filter) = spare.or_else(|| Filter::new(self.sizing, pages).ok()) else { return false };
        let next = Arc::new(Table::new(self.options.false_positive_rate, filter));
        match self.ring.roll(low, boundary, next) {
            Ok(boundary) => {
                newest.close();
                if low > 0 {
                    // The first table begins at 0, wherever its ids do.
                    self.frontier.widen(boundary - low);
                }
                self.changes.fetch_add(1, SeqCst);
            }
            Err(next) => {
                if let Ok(next) = Arc::try_unwrap(next) {
                    self.upkeep.lock().keep_spare(next.into_first_filter());
                }
                return false;
            }
        }
        self.recycle();
        self.estimate();
        true
    }

    /// Recycles the oldest tables, while there are more than the options say (P4).
    fn recycle(&self) {
        loop {
            let tables = self.ring.load();
            let pages: usize = tables.entries().iter().map(|entry| entry.table().pages()).sum();
            if pages <= self.max_pages() {
                return;
            }
            let Some(oldest) = self.ring.recycle() else { return };
            self.changes.fetch_add(1, SeqCst);
            self.upkeep.lock().retire(oldest.table().clone());
        }
    }

    fn next_pages(&self, newest: &Table) -> usize {
        newest.pages().saturating_mul(2).min(self.pages_per_table)
    }

    /// Decides at how many pairs the newest table is to be closed, from how many came late to the others. The youngest of those is
    /// left out if possible: it is not over yet.
    fn estimate(&self) {
        let tables = self.ring.load();
        let closed: Vec<&Table> = tables
            .entries()
            .iter()
            .rev()
            .skip(1)
            .map(|entry| &**entry.table())
            .filter(|table| table.early() > 0)
            .collect();
        let (mut early, mut late) = (0.0, 0.0);
        for table in closed.iter().skip(usize::from(closed.len() > 1)).take(4) {
            early += table.early() as f64;
            // One table that got an import must not decide for all.
            late += ((table.pairs() - table.early()) as f64).min(table.early() as f64);
        }
        let measured = if early > 0.0 { late / early * 1.125 } else { LATE_AT_START };
        let newest = tables.newest().table();
        let roll_at = newest.capacity() as f64 / (1.0 + measured.clamp(*LATE.start(), *LATE.end()));
        newest.set_roll_at((roll_at as u64).max(1));
    }

    /// Closes the newest table now, if it has any pair. Returns whether it did.
    pub fn roll_now(&self) -> bool {
        let tables = self.ring.load();
        let newest = tables.newest();
        newest.table().pairs() > 0 && self.roll(newest.slot().low(), None)
    }

    /// How often the ring has changed: when it differs from what it was, [`Space::layout`] is to be logged.
    pub fn changes(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    /// The tables' places, oldest first.
    pub fn layout(&self) -> Vec<Layout> {
        let tables = self.ring.load();
        tables.entries().iter().map(|entry| Layout { low: entry.slot().low(), pages: entry.table().pages() }).collect()
    }

    /// Makes the ring what the log says it was: opens the tables that it lacks above its newest, and recycles those below
    /// the first of `layout`. May be repeated. A table opens higher than recorded if pairs above that were already put.
    pub fn put_layout(&self, layout: &[Layout]) -> Result<(), Error> {
        for &at in layout {
            let tables = self.ring.load();
            let newest = tables.newest().slot().low();
            drop(tables);
            if at.low > newest {
                self.roll(newest, Some(at));
            }
        }
        let horizon = layout.first().map_or(0, |at| at.low);
        loop {
            let tables = self.ring.load();
            let recycles = tables.entries().get(1).is_some_and(|second| second.slot().low() <= horizon);
            drop(tables);
            if !recycles {
                return Ok(());
            }
            if let Some(oldest) = self.ring.recycle() {
                self.changes.fetch_add(1, SeqCst);
                self.upkeep.lock().retire(oldest.table().clone());
            }
        }
    }

    // --- upkeep ---

    /// Whether [`Space::maintain`] has something to do. Cheap.
    pub fn wants_maintenance(&self) -> bool {
        let pairs = self.aside_pairs.load(SeqCst);
        let early = pairs > 0
            && (self.frontier.should_advance(pairs)
                || self.frontier.high().is_some_and(|high| self.aside.may_hold(high)));
        let tables = self.ring.load();
        let newest = tables.newest().table();
        early
            || self.is_roll_due()
            || self
                .upkeep
                .try_lock()
                .is_some_and(|upkeep| upkeep.wants_step(self.next_pages(newest), needs_spare(newest)))
    }

    /// One small step of background work: moves early pairs into the ring, rolls, clears and prepares memory. Returns whether there
    /// may be more to do.
    pub fn maintain(&self) -> bool {
        let mut worked = self.take_in_early();
        let tables = self.ring.load();
        if self.is_roll_due() {
            worked |= self.roll(tables.newest().slot().low(), None);
        }
        drop(tables);
        let newest = self.ring.load().newest().table().clone();
        let pages = self.next_pages(&newest);
        let make = || Filter::new(self.sizing, pages).ok();
        worked | self.upkeep.lock().step(pages, needs_spare(&newest), make)
    }

    fn is_roll_due(&self) -> bool {
        let tables = self.ring.load();
        let newest = tables.newest();
        newest.table().is_due() && self.frontier.boundary().is_some_and(|boundary| boundary > newest.slot().low())
    }

    /// Advances the frontier to the ids that are ahead, if they say so, and moves up to 256 ids that it has reached into tables.
    fn take_in_early(&self) -> bool {
        let pairs = self.aside_pairs.load(SeqCst);
        if pairs == 0 {
            return false;
        }
        let advanced = self.frontier.should_advance(pairs) && self.aside.advance(&self.frontier, Hashes::len);
        let moved = self.aside.drain(&self.frontier, |id, early| {
            let settled = self.settle(id, early).is_ok();
            if settled {
                self.aside_pairs.fetch_sub(early.len(), SeqCst);
            }
            settled
        });
        advanced || moved > 0
    }

    // --- figures ---

    /// The lowest id that is answered for.
    pub fn horizon(&self) -> u64 {
        self.ring.load().horizon()
    }

    /// Pairs that are set.
    pub fn pairs(&self) -> u64 {
        let tables = self.ring.load();
        let in_tables: u64 = tables
            .entries()
            .iter()
            .map(|entry| entry.table().pairs().saturating_sub(entry.table().revoked.len() as u64))
            .sum();
        in_tables + self.aside_pairs.load(SeqCst) as u64
    }

    /// Pairs held exactly because their ids lie far ahead.
    pub fn aside_pairs(&self) -> usize {
        self.aside_pairs.load(SeqCst)
    }

    /// Memory of all tables, spare ones, and pairs aside, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let tables = self.ring.load();
        let in_tables: usize = tables.entries().iter().map(|entry| entry.table().size_bytes()).sum();
        (in_tables + self.upkeep.lock().size_bytes() + self.aside_pairs() * 40) as u64
    }

    /// How many more pairs of new ids may come before the oldest table is recycled; with the rate at which they come, this is when.
    pub fn pairs_until_recycled(&self) -> u64 {
        let tables = self.ring.load();
        let newest = tables.newest().table();
        let early_share = newest.roll_at() as f64 / newest.capacity().max(1) as f64;
        let mut pages: usize = tables.entries().iter().map(|entry| entry.table().pages()).sum();
        let mut pairs = newest.roll_at().saturating_sub(newest.pairs());
        let mut next = self.next_pages(newest);
        while pages + next <= self.max_pages() {
            pages += next;
            pairs += (self.sizing.capacity(next) as f64 * early_share) as u64;
            next = next.saturating_mul(2).min(self.pages_per_table);
        }
        pairs
    }

    /// All tables, oldest first. Asks each for `canaries` pairs that nobody can have set, to measure its error rate; counts add up
    /// over calls while a table does not grow. 20 ns each: a few thousand are cheap, a million tell 0.01 % from 0.011 %.
    pub fn tables_probed(&self, canaries: u64) -> Vec<TableStats> {
        let tables = self.ring.load();
        let stats = |entry: &rolling::Entry<Arc<Table>>| {
            let (slot, table) = (entry.slot(), entry.table());
            let found = table.probe(self.seed, slot.low(), canaries);
            let filter = table.first_filter();
            TableStats {
                low: slot.low(),
                last: slot.last(),
                pairs: table.pairs(),
                early: table.early(),
                capacity: table.capacity(),
                roll_at: table.roll_at(),
                fill: table.link(0).map_or(0, |link| link.pairs()) as f64 / table.capacity().max(1) as f64,
                bits_set: filter.ones() as f64 / (filter.words().len() * 64) as f64,
                extensions: table.links().count() - 1,
                revoked: table.revoked.len(),
                version: table.version(),
                bytes: table.size_bytes(),
                configured_rate: table.rate(),
                expected_rate: table.expected_rate(),
                measured_rate: if found.probes == 0 { 0.0 } else { found.yes as f64 / found.probes as f64 },
                canaries: found.probes,
            }
        };
        tables.entries().iter().map(stats).collect()
    }

    /// [`Space::tables_probed`] with a few thousand canaries each.
    pub fn tables(&self) -> Vec<TableStats> {
        self.tables_probed(4096)
    }

    // --- for the codec and for merges ---

    pub(crate) fn seed(&self) -> Seed {
        self.seed
    }

    pub(crate) fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    /// Range and table that begin at `low`.
    pub(crate) fn table_at(&self, low: u64) -> Option<((u64, u64), Arc<Table>)> {
        self.table_over(low).filter(|(range, _)| range.0 == low)
    }

    /// Range and table that cover `id`.
    pub(crate) fn table_over(&self, id: u64) -> Option<((u64, u64), Arc<Table>)> {
        let tables = self.ring.load();
        let entry = tables.find(id)?;
        Some(((entry.slot().low(), entry.slot().last()), entry.table().clone()))
    }

    /// Runs `f` on the table of `pair`, alone among its writers.
    pub(crate) fn under_stripe<R>(&self, pair: &Pair, f: impl FnOnce(&Table) -> R) -> Option<R> {
        self.ring.write(pair.id, pair.low, |entry| f(entry.table()))
    }

    pub(crate) fn for_each_aside(&self, mut f: impl FnMut(Pair)) {
        self.aside.for_each(|id, hashes| hashes.iter().for_each(|&hash| f(Pair::from_hash(id, hash))));
    }
}

fn answer(state: State) -> Answer {
    if state == State::Set { Answer::Yes } else { Answer::No }
}

/// A table that is half full will need a successor.
fn needs_spare(newest: &Table) -> bool {
    newest.pairs() >= newest.roll_at() / 2
}
