//! Probes tables with canaries. [`FpEstimator`] counts the results.

use crate::fp_estimator::{CanaryCounts, FALSE_POSITIVES_WANTED, FpEstimator};
use crate::hash::Seed;
use crate::space::Space;
use crate::table::Table;
use std::sync::atomic::Ordering::Relaxed;

impl Table {
    /// Looks up `count` canaries and returns the totals of all lookups so far.
    pub(crate) fn probe(&self, seed: Seed, low: u64, count: u64) -> CanaryCounts {
        let pairs = self.pairs();
        let mut canaries = self.canaries.lock();
        if self.cold().is_some() {
            // This table is cold: each lookup would read the disk.
            return canaries.measured;
        }
        if !canaries.count_for(pairs) {
            *canaries = FpEstimator { pairs, next: canaries.next, ..FpEstimator::default() };
        }
        let from = canaries.next;
        let yes = (from..from + count)
            .map(|n| seed.canary(low, n))
            .filter(|pair| self.has_in_memory(pair))
            .count();
        canaries.next += count;
        canaries.measured.canaries += count;
        canaries.measured.yes += yes as u64;
        canaries.measured
    }

    fn wants_canaries(&self) -> bool {
        let canaries = self.canaries.lock();
        let is_known = (canaries.measured.canaries as f64) * self.rate() >= FALSE_POSITIVES_WANTED;
        self.cold().is_none() && !(is_known && canaries.count_for(self.pairs()))
    }
}

impl Space {
    /// Looks up `count` canaries in the next table whose false-positive rate is not yet known
    /// precisely, at about 0.1 µs per lookup. Returns `false` if there is no such table.
    pub fn probe(&self, count: u64) -> bool {
        let tables = self.ring.load();
        let entries = tables.entries();
        let from = self.probed.load(Relaxed);
        let next = (0..entries.len())
            .map(|i| (from + i) % entries.len())
            .find(|&i| entries[i].table().pairs() > 0 && entries[i].table().wants_canaries());
        if let Some(next) = next {
            self.probed.store(next + 1, Relaxed);
            entries[next].table().probe(self.seed, entries[next].slot().low(), count);
        }
        next.is_some()
    }

    /// Returns the sum of the results of all tables in memory.
    pub fn measured(&self) -> CanaryCounts {
        let tables = self.ring.load();
        let of_tables = tables.entries().iter().map(|entry| entry.table().canaries.lock().measured);
        of_tables.fold(CanaryCounts::default(), |sum, of| CanaryCounts {
            canaries: sum.canaries + of.canaries,
            yes: sum.yes + of.yes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::empty;
    use crate::{Member, Options};

    fn fill(table: &Table, members: std::ops::Range<u64>) {
        let seed = Seed::new(9);
        for member in members {
            Table::set(
                table.room(|_| true).unwrap(),
                &seed.pair(1, seed.prepare_member(&Member::Number(member))),
            );
        }
    }

    #[test]
    fn they_are_counted_anew_when_the_table_has_grown() {
        let table = empty(0.01, 1).unwrap();
        fill(&table, 0..100);
        assert_eq!(table.probe(Seed::new(1), 0, 10).canaries, 10);
        assert_eq!(table.probe(Seed::new(1), 0, 10).canaries, 20);
        fill(&table, 100..200);
        assert_eq!(table.probe(Seed::new(1), 0, 10).canaries, 10);
    }

    /// Compares the bounds with exact tail probabilities of the Poisson distribution.
    #[test]
    fn bounds_are_right_but_for_one_in_740() {
        let no_more_than = |yes: u64, mean: f64| {
            let mut term = (-mean).exp();
            (0..=yes).fold(0.0, |sum, i| {
                let sum = sum + term;
                term *= mean / (i + 1) as f64;
                sum
            })
        };
        for yes in [0, 1, 2, 5, 10, 100, 500] {
            let measured = CanaryCounts { canaries: 1_000_000, yes };
            let (least, most) = (measured.at_least() * 1e6, measured.at_most() * 1e6);
            assert!(least <= yes as f64 && most > yes as f64);
            let above = no_more_than(yes, most);
            assert!(above < 1.5 / 740.0 && above > 0.5 / 740.0, "{yes}: {above} above {most}");
            let below = if yes == 0 { 1.0 / 740.0 } else { 1.0 - no_more_than(yes - 1, least) };
            assert!(
                below < 1.5 / 740.0 && (yes < 5 || below > 0.5 / 740.0),
                "{yes}: {below} below {least}"
            );
        }
        let nothing = CanaryCounts::default();
        assert_eq!((nothing.rate(), nothing.at_least(), nothing.at_most()), (None, 0.0, 1.0));
    }

    /// Probing stops once the rate of each table is known. The measured rate matches the calculated
    /// rate, and the lower bound exceeds the configured rate when a filter is overfull.
    #[test]
    fn each_table_is_asked_until_its_rate_is_known() {
        let options = Options {
            false_positive_rate: 0.001,
            pairs_per_table: 4000,
            seed: 9,
            ..Options::default()
        };
        let space = Space::new(options).unwrap();
        assert!(!space.probe(1000), "an empty filter has no false positives");
        for i in 0..20_000 {
            space.add(1000 + i, &Member::Number(i)).unwrap();
        }
        let tables = space.tables().iter().filter(|table| table.pairs > 0).count() as u64;
        assert!(tables > 4);
        let mut steps = 0;
        while space.probe(1000) {
            steps += 1;
            assert!(steps < 10_000, "the estimate converges");
        }
        assert_eq!((steps, space.measured().canaries), (tables * 100, tables * 100_000));
        for table in space.tables().into_iter().filter(|table| table.pairs > 0) {
            let CanaryCounts { canaries, .. } = table.measured;
            assert_eq!(canaries, 100_000);
            assert!(table.measured.at_least() <= table.expected_rate, "{table:?}");
            assert!(table.measured.at_most() >= table.expected_rate, "{table:?}");
        }
        assert!(space.measured().at_least() < 0.001);
        let (low, full) = space.table_at(0).map(|(range, table)| (range.0, table)).unwrap();
        // Doubles the number of pairs in a full filter.
        (0..full.capacity())
            .for_each(|n| Table::set(full.link(0).unwrap(), &space.seed.canary(low + 1, n)));
        while space.probe(1000) {}
        assert!(space.tables()[0].measured.at_least() > 0.001, "{:?}", space.tables()[0]);
    }
}
