//! One budget of memory for all spaces, divided by what they need.
//!
//! Each space has a limit, as if it were alone, and acts on it by itself: it spills, or recycles,
//! or refuses. This file sets the limits many times a second, so that together they keep within
//! the budget, and once more before a write is refused for want of memory:
//!
//! - While there is enough for all, each space may grow into all that is free.
//! - When there is not, a space that does not spill keeps what it has and may grow by its next
//!   table. The spaces that spill share the rest: those that take most are cut to one level, and
//!   those below it keep what they have (max-min fairness). Writers wait until they have spilled.
//!
//! A space's own `memory_limit_bytes` is the most that it is ever given.

use super::error::WriteError;
use super::registry::Engines;
use super::spaces::{CounterSpace, ExistenceSpace};
use crate::options::Options;
use std::sync::atomic::Ordering::Relaxed;

/// A space of counters that spills is always given so much: with less its next tables would be made
/// smaller and smaller, and so would what it needs.
const LEAST_OF_COUNTERS: u64 = 2 << 20;
/// A space of counters begins to spill when so much of its limit (one part in so many) is left, or
/// less than the next table may take.
const SPARE: u64 = 8;
/// Writers wait when all of that is taken but one part in so many: a request that has begun does
/// not wait any more, and what a few of them take must be there.
const MARGIN: u64 = 4;

/// Pairs of ledgers wait in memory until they take so much of the budget (one part in so many), all
/// ledgers together.
const WAITING_PAIRS: u64 = 16;
/// Each may have so many bytes of them in any case: with less it would write all the time.
const LEAST_OF_PAIRS: u64 = 1 << 20;

/// What a space takes and needs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Demand {
    used: u64,
    /// With so much more it has room for its next table.
    next: u64,
    /// What it cannot do without if it spills: its newest table and the next one, and what is in no
    /// table.
    newest: u64,
    /// What it cannot give back by spilling: its newest table, and what is in no table.
    kept: u64,
    /// It is never given more.
    most: u64,
    /// Whether it can give memory back.
    spills: bool,
}

impl Demand {
    /// What it is given if that is there: room to grow.
    fn wants(&self) -> u64 {
        let growth = if self.spills { self.next.max(self.used / 4) } else { self.next };
        self.used.saturating_add(growth).min(self.most).max(self.least())
    }

    /// What it is given in any case.
    fn least(&self) -> u64 {
        if self.spills { self.newest } else { self.used }.min(self.most)
    }

    fn at(&self, level: u64) -> u64 {
        level.clamp(self.least(), self.wants())
    }
}

/// Sum of what the spaces that spill, or those that do not, are given.
fn sum(demands: &[Demand], spills: bool, given: impl Fn(&Demand) -> u64) -> u64 {
    let demands = demands.iter().filter(|demand| demand.spills == spills);
    demands.map(given).fold(0, u64::saturating_add)
}

/// The highest level at which the spaces that spill, or those that do not, keep within `budget`.
fn level(budget: u64, demands: &[Demand], spills: bool) -> u64 {
    let (mut low, mut high) = (0, budget);
    while low < high {
        let level = high - (high - low) / 2;
        if sum(demands, spills, |demand| demand.at(level)) <= budget {
            low = level;
        } else {
            high = level - 1;
        }
    }
    low
}

/// The limits of spaces that share a budget.
fn divide(budget: u64, demands: &[Demand]) -> Vec<u64> {
    let wanted = [true, false].map(|spills| sum(demands, spills, Demand::wants));
    let wanted = wanted[0].saturating_add(wanted[1]);
    if wanted <= budget {
        let free = budget - wanted;
        return demands.iter().map(|d| d.wants().saturating_add(free).min(d.most)).collect();
    }
    // A next table that is not there yet is no reason to refuse a write.
    let kept = sum(demands, true, |demand| demand.kept.min(demand.used));
    let for_others = budget.saturating_sub(kept);
    let of_others = level(for_others, demands, false);
    let rest = budget.saturating_sub(sum(demands, false, |demand| demand.at(of_others)));
    let of_spilling = level(rest, demands, true);
    demands.iter().map(|d| d.at(if d.spills { of_spilling } else { of_others })).collect()
}

impl CounterSpace {
    fn largest_table(&self) -> u64 {
        self.ranges().iter().map(|range| range.bytes).max().unwrap_or(0)
    }

    fn demand(&self) -> Demand {
        let largest = self.largest_table();
        let next = (largest + largest / 2).max(self.space.refused_bytes());
        Demand {
            used: self.space.memory_bytes(),
            // Rows far from the others are refused at a quarter of the limit.
            next: next.saturating_add(4 * self.space.outlier_bytes()),
            // Rows far from the others are in no table that could spill. They are refused from a
            // part of the limit on that is less than one, so it does not rise with them for ever.
            newest: (2 * largest).max(LEAST_OF_COUNTERS) + self.space.outlier_bytes(),
            kept: largest + self.space.outlier_bytes(),
            most: self.most_bytes(),
            spills: self.spills(),
        }
    }

    /// It begins to spill when so much of a limit is left. The largest table is as large as the
    /// next one, and its dictionaries grow.
    pub(crate) fn spare(&self, limit: u64) -> u64 {
        let largest = self.largest_table();
        (limit / SPARE).max(largest + largest / 4).min(limit / 2)
    }

    /// The most that it is ever given.
    fn most_bytes(&self) -> u64 {
        if self.made.memory_limit_bytes == 0 { u64::MAX } else { self.made.memory_limit_bytes }
    }
}

impl ExistenceSpace {
    fn demand(&self) -> Demand {
        let (newest, next) = self.space.newest_filter_bytes();
        Demand {
            used: self.space.memory_bytes(),
            next: next + next / 2,
            newest: newest + next,
            kept: newest,
            most: self.space.most_filter_bytes(),
            spills: self.space.spills(),
        }
    }
}

impl Engines {
    /// Other limits hold from now on for what is kept beside the spaces: tokens, and rows that were
    /// read from the disk.
    pub fn limit_kept(&self, options: &Options) {
        self.tokens.set_limits(options.most_tokens(), options.tokens.keep_s);
        self.cold.set_cache_bytes(options.cache_bytes());
    }

    /// From now on all spaces may take so many bytes together.
    pub fn share_memory(&self, budget: u64) {
        self.memory.budget.store(budget, Relaxed);
        self.deal();
    }

    /// While data are read back nothing is refused for want of memory: what was accepted once is
    /// accepted again.
    pub fn lift_limits(&self) {
        self.memory.is_lifted.store(true, Relaxed);
        self.counters.iter().for_each(|s| s.set_memory_limit_bytes(u64::MAX));
    }

    /// From now on the limits hold.
    pub fn set_limits(&self) {
        self.memory.is_lifted.store(false, Relaxed);
        self.deal();
    }

    /// Whether so much of the budget is used, or of a counter space's own limit, that it may be
    /// time to spill, if any space does. Asked behind every record of a log that is read back.
    pub(crate) fn is_filling(&self) -> bool {
        if !self.spills && !self.existences.iter().any(|space| space.space.spills()) {
            return false;
        }
        self.memory_bytes() > self.memory.budget.load(Relaxed) / 2
            || self.counters.iter().any(|s| s.spills() && s.memory_bytes() > s.most_bytes() / 2)
    }

    /// Gives each space its share, by what they take now: those of the counter spaces.
    pub(crate) fn deal(&self) -> Vec<u64> {
        let (counters, existences) = self.shares();
        if !self.memory.is_lifted.load(Relaxed) {
            for (space, &bytes) in self.counters.iter().zip(&counters) {
                space.set_memory_limit_bytes(bytes);
                space.cold.margin.store(space.spare(bytes) / MARGIN, Relaxed);
            }
        }
        for (space, bytes) in self.existences.iter().zip(existences) {
            space.set_filter_bytes(bytes);
        }
        let ledgers = self.ledgers().count().max(1) as u64;
        let waiting = self.memory.budget.load(Relaxed) / WAITING_PAIRS / ledgers;
        for ledger in self.ledgers() {
            ledger.ledger().set_memory_bytes(waiting.max(LEAST_OF_PAIRS));
        }
        counters
    }

    /// Runs a write to a space, and again if it was refused for want of memory and the space then
    /// gets a larger share. The spaces that lose it are above their limits until they have spilled,
    /// and the next writes wait for that. `limit`: the limit of the space.
    #[inline]
    pub(super) fn with_share<T>(
        &self,
        limit: impl Fn() -> u64,
        mut write: impl FnMut() -> Result<T, WriteError>,
    ) -> Result<T, WriteError> {
        loop {
            let result = write();
            if !result.as_ref().is_err_and(WriteError::is_want_of_memory) || !self.raises(&limit) {
                return result;
            }
        }
    }

    /// Divides the memory anew. Whether `limit` rises by that.
    #[cold]
    fn raises(&self, limit: &dyn Fn() -> u64) -> bool {
        let before = limit();
        self.deal();
        limit() > before
    }

    /// Bytes that all spaces may take together.
    pub(super) fn memory_budget(&self) -> u64 {
        self.memory.budget.load(Relaxed)
    }

    /// Bytes that no space can give back: all that those have that do not spill, and the newest
    /// tables of the others.
    pub(super) fn kept_bytes(&self) -> u64 {
        let counters = self.counters.iter().map(|space| match space.spills() {
            true => space.largest_table() + space.outlier_bytes(),
            false => space.memory_bytes(),
        });
        let existences = self.existences.iter().map(|space| match space.spills() {
            true => space.newest_filter_bytes().0,
            false => space.memory_bytes(),
        });
        counters.chain(existences).sum()
    }

    /// The shares of counter spaces and of existence spaces.
    fn shares(&self) -> (Vec<u64>, Vec<u64>) {
        let beside = self.tokens.stats().bytes
            + self.ledgers().map(|l| l.ledger().memory_bytes() as u64).sum::<u64>();
        let budget = self.memory.budget.load(Relaxed).saturating_sub(beside);
        let counters = self.counters.iter().map(CounterSpace::demand);
        let demands: Vec<Demand> =
            counters.chain(self.existences.iter().map(ExistenceSpace::demand)).collect();
        let mut shares = divide(budget, &demands);
        let existences = shares.split_off(self.counters.len());
        (shares, existences)
    }

    /// What a space of counters has to build its tables for, when it has no limit of its own: an
    /// equal part.
    pub(crate) fn equal_part(&self, spaces: usize) -> u64 {
        self.memory.budget.load(Relaxed) / spaces.max(1) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;
    use crate::commit::Durability;
    use crate::options::{Fsync, LedgerMode, Spill};
    use crate::tokens::{Once, Used};
    use counter::Bounds;
    use ledger::Member;
    use std::sync::Arc;

    const MIB: u64 = 1 << 20;

    fn spilling(used: u64) -> Demand {
        Demand { used, next: MIB, newest: MIB, kept: MIB, most: u64::MAX, spills: true }
    }

    #[test]
    fn while_there_is_enough_each_may_take_all_that_is_free() {
        let kept = Demand { spills: false, ..spilling(8 * MIB) };
        let most = Demand { most: 3 * MIB, ..spilling(MIB) };
        let limits = divide(100 * MIB, &[spilling(40 * MIB), kept, most, spilling(0)]);
        // 50 + 9 + 2 + 1 are wanted, so 38 are free.
        assert_eq!(limits, [88 * MIB, 47 * MIB, 3 * MIB, 39 * MIB]);
    }

    #[test]
    fn when_there_is_not_the_largest_are_cut_to_one_level() {
        let limits =
            divide(100 * MIB, &[spilling(90 * MIB), spilling(60 * MIB), spilling(4 * MIB)]);
        assert!(limits[0] == limits[1] && limits[2] == 5 * MIB, "{limits:?}");
        assert!(limits.iter().sum::<u64>() <= 100 * MIB && limits[0] > 47 * MIB - 1, "{limits:?}");
        // What does not spill cannot give, and grows first.
        let kept = Demand { spills: false, ..spilling(70 * MIB) };
        let limits = divide(100 * MIB, &[spilling(60 * MIB), kept]);
        assert_eq!(limits, [29 * MIB, 71 * MIB]);
        // The others keep their newest tables.
        let limits = divide(72 * MIB, &[spilling(60 * MIB), spilling(60 * MIB), kept]);
        assert_eq!(limits, [MIB, MIB, 70 * MIB]);
        // But not those that they may need next.
        let young = Demand { newest: 20 * MIB, ..spilling(MIB) };
        let kept = Demand { spills: false, ..spilling(8 * MIB) };
        assert_eq!(divide(30 * MIB, &[young, kept, young])[1], 9 * MIB);
    }

    /// Flags have small tables yet, and will have large ones.
    #[test]
    fn rows_are_not_refused_for_tables_that_are_not_there_yet() {
        let mut options = Options { memory_bytes: 12 * MIB, ..Options::default() };
        options.counter.iter_mut().for_each(|space| space.spill = false);
        let catalogue = Catalogue::default().completed(&options);
        let durability = Arc::new(Durability::new(Fsync::No));
        let engines = Engines::new(&options, &catalogue, durability).unwrap();
        let wanted = engines.existences().iter().map(|space| space.demand().newest).sum::<u64>();
        assert!(wanted > 12 * MIB, "{wanted}");
        engines.deal();
        let users = &engines.counters()[1];
        for id in 1..=100_000 {
            engines
                .set(users, id, &[(0, 3)])
                .unwrap_or_else(|error| panic!("{id}: {error}; {} used", engines.memory_bytes()));
        }
        assert!(engines.memory_bytes() < 12 * MIB, "{}", engines.memory_bytes());
    }

    /// Between two divisions of the memory a burst takes more than the share of its space.
    #[test]
    fn a_burst_takes_memory_from_spaces_that_spill() {
        let mut options = Options { memory_bytes: 20 * MIB, ..Options::default() };
        for (space, spills) in options.counter.iter_mut().zip([true, false]) {
            (space.spill, space.rows_per_table) = (spills, 5_000);
        }
        options.existence.iter_mut().for_each(|space| space.pairs_per_table = 1 << 12);
        let catalogue = Catalogue::default().completed(&options);
        let durability = Arc::new(Durability::new(Fsync::No));
        let engines = Engines::new(&options, &catalogue, durability).unwrap();
        let [posts, users] = engines.counters() else { panic!("two counter spaces") };
        let fill = || (1..).find_map(|id| engines.set(posts, id, &[(0, 3)]).err()).unwrap();
        let refused = fill();
        assert!(refused.is_want_of_memory(), "{refused}");
        engines.deal();
        let before = posts.memory_limit_bytes();
        assert!(users.memory_limit_bytes() < MIB, "{}", users.memory_limit_bytes());
        for id in 1..=100_000 {
            engines.set(users, id, &[(0, 3)]).unwrap_or_else(|error| {
                panic!("{id}: {error}; {:?}, {:?}", users.demand(), engines.shares())
            });
        }
        // Far from each other, so in no table: they count against a part of the share.
        for id in 1..=200 {
            let far = engines.set(users, id << 40, &[(0, 3)]);
            far.unwrap_or_else(|error| panic!("{id}: {error}"));
        }
        assert!(posts.memory_limit_bytes() < before);
        assert!(engines.is_spilling(), "the next write waits until the posts have spilled");
        let taken = users.memory_bytes() + posts.memory_limit_bytes();
        assert!(taken <= 20 * MIB, "{taken}");
    }

    /// What is kept beside the spaces takes a part of the memory, not what would suit a large one.
    #[test]
    fn what_is_kept_bends_to_the_memory() {
        let options = |memory_bytes| Options { memory_bytes, ..Options::default() };
        let durability = Arc::new(Durability::new(Fsync::No));
        let engines = Engines::empty(&options(64 * MIB), durability);
        let most_cached = || engines.cold.cache_bytes().1 / MIB;
        let use_tokens = || {
            for n in 0..120_000u64 {
                let once = Once { token: &n.to_le_bytes(), is_of_cell: false, now_s: 1 };
                engines.tokens.put(Used::new(once, 1, 7, &[], &Bounds::default()), &[1]);
            }
            engines.tokens.stats().tokens
        };
        assert_eq!(most_cached(), 8);
        // Of 64 parts none is quite full when the first is.
        assert!((100_000..=104_857).contains(&use_tokens()), "{:?}", engines.tokens.stats());
        engines.limit_kept(&options(16 * MIB));
        assert_eq!((most_cached(), use_tokens()), (2, 26_214));
        let spill = Spill { cache_bytes: 5 * MIB, ..Spill::default() };
        engines.limit_kept(&Options { spill, ..options(1 << 40) });
        assert!(most_cached() == 5 && use_tokens() == 120_000, "as it was told");
    }

    /// So do pairs of ledgers that wait to be flushed.
    #[test]
    fn ledgers_of_a_small_server_are_flushed_earlier() {
        let mut options = Options { memory_bytes: 64 * MIB, ..Options::default() };
        options.existence[1].ledger = LedgerMode::Off;
        let catalogue = Catalogue::default().completed(&options);
        let durability = Arc::new(Durability::new(Fsync::No));
        let engines = Engines::new(&options, &catalogue, durability).unwrap();
        let ledger = engines.ledgers().next().unwrap().ledger();
        let mut ids = 1..;
        for budget in [64 * MIB, 96 * MIB] {
            engines.share_memory(budget);
            let is_due = |id| {
                ledger.set(id, Member::Number(id), true);
                ledger.is_due()
            };
            assert!(ids.by_ref().any(is_due));
            let bytes = ledger.memory_bytes() as u64;
            assert!((budget / 16..budget / 15).contains(&bytes), "{bytes}");
        }
    }

    #[test]
    fn whatever_the_demands_are_no_space_is_given_more_than_the_budget_has() {
        let mut random = fastrand::Rng::with_seed(32);
        let below =
            |random: &mut fastrand::Rng, bits: u32| random.u64(..) >> random.u32(64 - bits..64);
        for _ in 0..10_000 {
            let budget = below(&mut random, 40);
            let demand = |random: &mut fastrand::Rng| Demand {
                used: below(random, 40),
                next: below(random, 30),
                newest: below(random, 30),
                kept: below(random, 29),
                most: if random.bool() { u64::MAX } else { below(random, 40) },
                spills: random.u32(0..4) > 0,
            };
            let demands: Vec<Demand> =
                (0..random.usize(1..8)).map(|_| demand(&mut random)).collect();
            let limits = divide(budget, &demands);
            let least: u64 = demands.iter().map(Demand::least).sum();
            for (demand, &limit) in demands.iter().zip(&limits) {
                assert!(limit <= demand.most && limit >= demand.least(), "{demands:?} {limits:?}");
                assert!(limit <= demand.wants().max(budget));
            }
            let cut: u64 = demands
                .iter()
                .zip(&limits)
                .map(|(d, &limit)| limit.min(d.wants()))
                .fold(0, u64::saturating_add);
            // Beyond it only by next tables of spaces that spill.
            let next = sum(&demands, true, |d| d.least().saturating_sub(d.kept.min(d.used)));
            assert!(cut <= budget.max(least).max(budget + next), "{budget} {demands:?} {limits:?}");
        }
    }

    #[test]
    fn no_demand_and_no_budget_are_no_trouble() {
        assert_eq!(divide(0, &[]), [0; 0]);
        assert_eq!(divide(u64::MAX, &[spilling(0)]), [u64::MAX]);
        let huge = Demand { used: u64::MAX, next: u64::MAX, newest: u64::MAX, ..spilling(0) };
        assert_eq!(divide(MIB, &[huge]), [u64::MAX], "its next table is given in any case");
    }
}
