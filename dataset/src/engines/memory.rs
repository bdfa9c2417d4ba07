//! Divides the memory budget among all spaces, according to their demand.
//!
//! Each space has a limit. To stay below its limit, a space spills, recycles or refuses writes.
//! This module sets the limits several times per second, so that their sum stays within the budget.
//! It also adjusts the limits before a write is refused for lack of memory.
//!
//! - While there is enough memory, each space may use all free memory.
//! - Otherwise, a space that does not spill keeps its memory and may grow by its next table. Spaces
//!   that spill share the rest by max-min fairness: the largest spaces get equal limits. Their
//!   writers wait until they have spilled.
//!
//! The limit of a space never exceeds its `memory_limit`.

use super::error::WriteError;
use super::registry::Engines;
use super::spaces::{CounterSpace, ExistenceSpace};
use crate::options::Options;
use std::sync::atomic::Ordering::Relaxed;

/// Minimum limit of a counter space that spills, in bytes. With a lower limit, its tables and thus
/// its demand would shrink repeatedly.
const MIN_COUNTER_BYTES: u64 = 2 << 20;
/// A counter space begins to spill when less than 1/8 of its limit is free, or less than its next
/// table needs.
const SPARE_PART: u64 = 8;
/// Writers start to wait when only 1/`MARGIN_PART` of the margin for spills is free. This part is
/// for requests in progress.
const MARGIN_PART: u64 = 4;

/// The unflushed pairs of all ledgers may use 1/`LEDGER_PART` of the budget.
const LEDGER_PART: u64 = 16;
/// Minimum limit of a ledger's unflushed pairs, in bytes. With a lower limit, a ledger would flush
/// constantly.
const MIN_LEDGER_BYTES: u64 = 1 << 20;

/// Memory used and needed by a space, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct MemoryDemand {
    used: u64,
    next: u64,
    /// Minimum limit of a space that spills: its newest and next tables, and rows outside of
    /// tables.
    newest: u64,
    /// Bytes that spills cannot free: the newest table, and rows outside of tables.
    kept: u64,
    most: u64,
    spills: bool,
}

impl MemoryDemand {
    /// Limit that allows the expected growth.
    fn desired_bytes(&self) -> u64 {
        let growth = if self.spills { self.next.max(self.used / 4) } else { self.next };
        self.used.saturating_add(growth).min(self.most).max(self.min_bytes())
    }

    fn min_bytes(&self) -> u64 {
        if self.spills { self.newest } else { self.used }.min(self.most)
    }

    fn at(&self, level: u64) -> u64 {
        level.clamp(self.min_bytes(), self.desired_bytes())
    }
}

/// Sum of `given` over the spaces that spill or, if `spills` is false, over the spaces that do not
/// spill.
fn sum(demands: &[MemoryDemand], spills: bool, given: impl Fn(&MemoryDemand) -> u64) -> u64 {
    let demands = demands.iter().filter(|demand| demand.spills == spills);
    demands.map(given).fold(0, u64::saturating_add)
}

/// Highest level at which the limits of the selected spaces add up to at most `budget`.
fn level(budget: u64, demands: &[MemoryDemand], spills: bool) -> u64 {
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

fn divide(budget: u64, demands: &[MemoryDemand]) -> Vec<u64> {
    let wanted = [true, false].map(|spills| sum(demands, spills, MemoryDemand::desired_bytes));
    let wanted = wanted[0].saturating_add(wanted[1]);
    if wanted <= budget {
        let free = budget - wanted;
        return demands
            .iter()
            .map(|d| d.desired_bytes().saturating_add(free).min(d.most))
            .collect();
    }
    // Ignore the next tables of spaces that spill, so that they do not cause refused writes in
    // other spaces.
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

    fn demand(&self) -> MemoryDemand {
        let largest = self.largest_table();
        let next = (largest + largest / 2).max(self.space.refused_bytes());
        MemoryDemand {
            used: self.space.memory_bytes(),
            // Count outliers (ids far above all tables) four times: the space refuses them when
            // they use a quarter of its limit.
            next: next.saturating_add(4 * self.space.outlier_bytes()),
            // Outliers are outside the tables and cannot spill. Count them once, not four times, so
            // that they do not raise the limit without bound.
            newest: (2 * largest).max(MIN_COUNTER_BYTES) + self.space.outlier_bytes(),
            kept: largest + self.space.outlier_bytes(),
            most: self.most_bytes(),
            spills: self.spills(),
        }
    }

    /// Margin below `limit` at which the space begins to spill, in bytes. The next table may be
    /// larger than all existing tables, because dictionaries grow.
    pub(crate) fn spare(&self, limit: u64) -> u64 {
        let largest = self.largest_table();
        (limit / SPARE_PART).max(largest + largest / 4).min(limit / 2)
    }

    fn most_bytes(&self) -> u64 {
        if self.made.memory_limit_bytes == 0 { u64::MAX } else { self.made.memory_limit_bytes }
    }
}

impl ExistenceSpace {
    fn demand(&self) -> MemoryDemand {
        let (newest, next) = self.space.newest_filter_bytes();
        MemoryDemand {
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
    /// Sets the limits of tokens and of the cache of cold rows.
    pub fn limit_kept(&self, options: &Options) {
        self.tokens.set_limits(options.max_tokens(), options.tokens.keep_s);
        self.cold.set_cache_bytes(options.cache_bytes());
    }

    /// Sets the budget of all spaces.
    pub fn share_memory(&self, budget: u64) {
        self.memory.budget.store(budget, Relaxed);
        self.divide_budget();
    }

    /// Lifts all limits. Used by recovery, which must accept every logged write.
    pub fn lift_limits(&self) {
        self.memory.is_lifted.store(true, Relaxed);
        self.counters.iter().for_each(|s| s.set_memory_limit_bytes(u64::MAX));
    }

    /// Enforces the limits again.
    pub fn set_limits(&self) {
        self.memory.is_lifted.store(false, Relaxed);
        self.divide_budget();
    }

    /// Whether recovery may have to spill, because half of the budget or of a counter space's limit
    /// is used. Called after every replayed record.
    pub(crate) fn is_filling(&self) -> bool {
        if !self.spills && !self.existences.iter().any(|space| space.space.spills()) {
            return false;
        }
        self.memory_bytes() > self.memory.budget.load(Relaxed) / 2
            || self.counters.iter().any(|s| s.spills() && s.memory_bytes() > s.most_bytes() / 2)
    }

    /// Sets the limits of all spaces according to their current demand. Returns the limits of the
    /// counter spaces.
    pub(crate) fn divide_budget(&self) -> Vec<u64> {
        let (counters, existences) = self.shares();
        if !self.memory.is_lifted.load(Relaxed) {
            for (space, &bytes) in self.counters.iter().zip(&counters) {
                space.set_memory_limit_bytes(bytes);
                space.cold.margin.store(space.spare(bytes) / MARGIN_PART, Relaxed);
            }
        }
        for (space, bytes) in self.existences.iter().zip(existences) {
            space.set_filter_bytes(bytes);
        }
        let ledgers = self.ledgers().count().max(1) as u64;
        let waiting = self.memory.budget.load(Relaxed) / LEDGER_PART / ledgers;
        for ledger in self.ledgers() {
            ledger.ledger().set_memory_bytes(waiting.max(MIN_LEDGER_BYTES));
        }
        counters
    }

    /// Executes a write. If it fails for lack of memory, divides the budget again and retries while
    /// `limit` of the space rises. Other spaces may then exceed their reduced limits until they
    /// have spilled, and their writers wait.
    #[inline]
    pub(super) fn with_share<T>(
        &self,
        limit: impl Fn() -> u64,
        mut write: impl FnMut() -> Result<T, WriteError>,
    ) -> Result<T, WriteError> {
        loop {
            let result = write();
            if !result.as_ref().is_err_and(WriteError::is_want_of_memory)
                || !self.redivide_budget(&limit)
            {
                return result;
            }
        }
    }

    /// Divides the budget again. Returns whether `limit` has risen.
    #[cold]
    fn redivide_budget(&self, limit: &dyn Fn() -> u64) -> bool {
        let before = limit();
        self.divide_budget();
        limit() > before
    }

    pub(super) fn memory_budget(&self) -> u64 {
        self.memory.budget.load(Relaxed)
    }

    /// Bytes that spills cannot free: all memory of spaces that do not spill, and the newest tables
    /// and outliers of spilling spaces.
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

    fn shares(&self) -> (Vec<u64>, Vec<u64>) {
        let beside = self.tokens.stats().bytes
            + self.ledgers().map(|l| l.ledger().memory_bytes() as u64).sum::<u64>();
        let budget = self.memory.budget.load(Relaxed).saturating_sub(beside);
        let counters = self.counters.iter().map(CounterSpace::demand);
        let demands: Vec<MemoryDemand> =
            counters.chain(self.existences.iter().map(ExistenceSpace::demand)).collect();
        let mut shares = divide(budget, &demands);
        let existences = shares.split_off(self.counters.len());
        (shares, existences)
    }

    /// Budget divided by the number of spaces. Determines the table size of counter spaces without
    /// a configured limit.
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
    use crate::tokens::{TokenUse, Used};
    use counter::Bounds;
    use ledger::Member;
    use std::sync::Arc;

    const MIB: u64 = 1 << 20;

    fn spilling(used: u64) -> MemoryDemand {
        MemoryDemand { used, next: MIB, newest: MIB, kept: MIB, most: u64::MAX, spills: true }
    }

    #[test]
    fn while_there_is_enough_each_may_take_all_that_is_free() {
        let kept = MemoryDemand { spills: false, ..spilling(8 * MIB) };
        let most = MemoryDemand { most: 3 * MIB, ..spilling(MIB) };
        let limits = divide(100 * MIB, &[spilling(40 * MIB), kept, most, spilling(0)]);
        // The spaces request 50 + 9 + 2 + 1 MiB, so 38 MiB are free.
        assert_eq!(limits, [88 * MIB, 47 * MIB, 3 * MIB, 39 * MIB]);
    }

    #[test]
    fn when_there_is_not_the_largest_are_cut_to_one_level() {
        let limits =
            divide(100 * MIB, &[spilling(90 * MIB), spilling(60 * MIB), spilling(4 * MIB)]);
        assert!(limits[0] == limits[1] && limits[2] == 5 * MIB, "{limits:?}");
        assert!(limits.iter().sum::<u64>() <= 100 * MIB && limits[0] > 47 * MIB - 1, "{limits:?}");
        // A space that does not spill keeps its memory and has priority for growth.
        let kept = MemoryDemand { spills: false, ..spilling(70 * MIB) };
        let limits = divide(100 * MIB, &[spilling(60 * MIB), kept]);
        assert_eq!(limits, [29 * MIB, 71 * MIB]);
        // Spaces that spill keep their newest tables.
        let limits = divide(72 * MIB, &[spilling(60 * MIB), spilling(60 * MIB), kept]);
        assert_eq!(limits, [MIB, MIB, 70 * MIB]);
        // The next tables of spaces that spill do not reserve memory.
        let young = MemoryDemand { newest: 20 * MIB, ..spilling(MIB) };
        let kept = MemoryDemand { spills: false, ..spilling(8 * MIB) };
        assert_eq!(divide(30 * MIB, &[young, kept, young])[1], 9 * MIB);
    }

    /// The current tables of flags are small, but the next tables are large.
    #[test]
    fn rows_are_not_refused_for_tables_that_are_not_there_yet() {
        let mut options = Options { memory_bytes: 12 * MIB, ..Options::default() };
        options.counter.iter_mut().for_each(|space| space.spill = false);
        let catalogue = Catalogue::default().completed(&options);
        let durability = Arc::new(Durability::new(Fsync::No));
        let engines = Engines::new(&options, &catalogue, durability).unwrap();
        let wanted = engines.existences().iter().map(|space| space.demand().newest).sum::<u64>();
        assert!(wanted > 12 * MIB, "{wanted}");
        engines.divide_budget();
        let users = &engines.counters()[1];
        for id in 1..=100_000 {
            engines
                .set(users, id, &[(0, 3)])
                .unwrap_or_else(|error| panic!("{id}: {error}; {} used", engines.memory_bytes()));
        }
        assert!(engines.memory_bytes() < 12 * MIB, "{}", engines.memory_bytes());
    }

    /// A burst of writes exceeds the space's limit between two regular divisions of the budget.
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
        engines.divide_budget();
        let before = posts.memory_limit_bytes();
        assert!(users.memory_limit_bytes() < MIB, "{}", users.memory_limit_bytes());
        for id in 1..=100_000 {
            engines.set(users, id, &[(0, 3)]).unwrap_or_else(|error| {
                panic!("{id}: {error}; {:?}, {:?}", users.demand(), engines.shares())
            });
        }
        // Ids that are far apart are outliers, which may use only a part of the limit.
        for id in 1..=200 {
            let far = engines.set(users, id << 40, &[(0, 3)]);
            far.unwrap_or_else(|error| panic!("{id}: {error}"));
        }
        assert!(posts.memory_limit_bytes() < before);
        assert!(engines.is_spilling(), "the next write waits until the posts have spilled");
        let taken = users.memory_bytes() + posts.memory_limit_bytes();
        assert!(taken <= 20 * MIB, "{taken}");
    }

    /// The limits of tokens and of the row cache scale with the memory budget.
    #[test]
    fn what_is_kept_bends_to_the_memory() {
        let options = |memory_bytes| Options { memory_bytes, ..Options::default() };
        let durability = Arc::new(Durability::new(Fsync::No));
        let engines = Engines::empty(&options(64 * MIB), durability);
        let most_cached = || engines.cold.cache_bytes().1 / MIB;
        let use_tokens = || {
            for n in 0..120_000u64 {
                let once = TokenUse { token: &n.to_le_bytes(), is_of_cell: false, now_s: 1 };
                engines.tokens.put(Used::new(once, 1, 7, &[], &Bounds::default()), &[1]);
            }
            engines.tokens.stats().tokens
        };
        assert_eq!(most_cached(), 8);
        // The 64 rings do not fill up evenly, so the total stays below the limit.
        assert!((100_000..=104_857).contains(&use_tokens()), "{:?}", engines.tokens.stats());
        engines.limit_kept(&options(16 * MIB));
        assert_eq!((most_cached(), use_tokens()), (2, 26_214));
        let spill = Spill { cache_bytes: 5 * MIB, ..Spill::default() };
        engines.limit_kept(&Options { spill, ..options(1 << 40) });
        assert!(most_cached() == 5 && use_tokens() == 120_000, "the configured cache size applies");
    }

    /// The limit of unflushed ledger pairs scales with the memory budget.
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
    fn memory_limits_never_exceed_the_budget() {
        let mut random = fastrand::Rng::with_seed(32);
        let below =
            |random: &mut fastrand::Rng, bits: u32| random.u64(..) >> random.u32(64 - bits..64);
        for _ in 0..10_000 {
            let budget = below(&mut random, 40);
            let demand = |random: &mut fastrand::Rng| MemoryDemand {
                used: below(random, 40),
                next: below(random, 30),
                newest: below(random, 30),
                kept: below(random, 29),
                most: if random.bool() { u64::MAX } else { below(random, 40) },
                spills: random.u32(0..4) > 0,
            };
            let demands: Vec<MemoryDemand> =
                (0..random.usize(1..8)).map(|_| demand(&mut random)).collect();
            let limits = divide(budget, &demands);
            let min_bytes: u64 = demands.iter().map(MemoryDemand::min_bytes).sum();
            for (demand, &limit) in demands.iter().zip(&limits) {
                assert!(
                    limit <= demand.most && limit >= demand.min_bytes(),
                    "{demands:?} {limits:?}"
                );
                assert!(limit <= demand.desired_bytes().max(budget));
            }
            let cut: u64 = demands
                .iter()
                .zip(&limits)
                .map(|(d, &limit)| limit.min(d.desired_bytes()))
                .fold(0, u64::saturating_add);
            // The sum may exceed the budget only by the next tables of spaces that spill.
            let next = sum(&demands, true, |d| d.min_bytes().saturating_sub(d.kept.min(d.used)));
            assert!(
                cut <= budget.max(min_bytes).max(budget + next),
                "{budget} {demands:?} {limits:?}"
            );
        }
    }

    #[test]
    fn no_demand_and_no_budget_are_no_trouble() {
        assert_eq!(divide(0, &[]), [0; 0]);
        assert_eq!(divide(u64::MAX, &[spilling(0)]), [u64::MAX]);
        let huge = MemoryDemand { used: u64::MAX, next: u64::MAX, newest: u64::MAX, ..spilling(0) };
        assert_eq!(divide(MIB, &[huge]), [u64::MAX], "the next table always fits");
    }
}
