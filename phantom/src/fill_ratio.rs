//! How full a filter is, by its bits alone, block by block.
//!
//! Pairs that were written lie evenly, so their number tells the error rate (`sizing`). What is
//! merged need not: blocks come one by one, perhaps not all of them, and a stranger may put bits
//! where they do the most harm. But the bits tell the rate exactly, whatever set them: a pair that
//! is not set is dealt a page and two of its lines at random, and has all its bits in a line of
//! which `ones` are set with the chance C(ones, h) / C(512, h).
//!
//! A filter with uneven blocks has less room than its number of pairs says, as the rate rises with
//! about the fourteenth power of the load. [`FillRatio::pairs`] is the number that would give the
//! same rate if they lay evenly. Pairs that come evenly on top, up to the capacity, keep the rate
//! then: of loads x, the mean of (x + d)^p to the power of 1/p is at most d more than that of x^p
//! (Minkowski's inequality).

use crate::block_layout::{BLOCK_WORDS, block_range};
use crate::filter::Filter;
use crate::sizing::{LINE_BITS, LINES, PAGE_WORDS, Sizing};
use std::sync::atomic::Ordering::Relaxed;

/// See the top of the file.
pub(crate) struct FillRatio {
    sizing: Sizing,
    pages: usize,
    line: LineRates,
    /// Per block, the rates of its pages, summed up.
    blocks: Vec<f64>,
    /// Pairs that have come since, by writes, and are in none of these sums. They are taken to do
    /// what they would do if all had come evenly on top: more than they do (Minkowski, as above).
    pub(crate) since: u64,
}

/// For a line with so many ones, the chance that all bits of a pair are among them.
struct LineRates(Vec<f64>);

impl LineRates {
    fn new(bits: usize) -> LineRates {
        let chance = |ones: usize| {
            (0..bits).map(|i| ones.saturating_sub(i) as f64 / (LINE_BITS - i) as f64).product()
        };
        LineRates((0..=LINE_BITS).map(chance).collect())
    }

    /// The rates of pages, summed up.
    fn of_pages(&self, mut words: impl Iterator<Item = u64>) -> f64 {
        let mut total = 0.0;
        let mut word = words.next();
        while word.is_some() {
            // A pair has two different lines of a page.
            let (mut sum, mut squares) = (0.0, 0.0);
            for _ in 0..LINES {
                let mut ones = 0;
                for _ in 0..PAGE_WORDS / LINES {
                    ones += word.unwrap_or(0).count_ones() as usize;
                    word = words.next();
                }
                let chance = self.0[ones];
                sum += chance;
                squares += chance * chance;
            }
            total += (sum * sum - squares) / (LINES * (LINES - 1)) as f64;
        }
        total
    }
}

impl FillRatio {
    /// Of a filter without a bit.
    pub(crate) fn empty(sizing: Sizing, pages: usize) -> FillRatio {
        let blocks = vec![0.0; (pages * PAGE_WORDS).div_ceil(BLOCK_WORDS)];
        FillRatio { sizing, pages, line: LineRates::new(sizing.bits), blocks, since: 0 }
    }

    /// Measures a whole filter: 0.1 s per GiB.
    pub(crate) fn of(filter: &Filter) -> FillRatio {
        let mut fill = FillRatio::empty(*filter.sizing(), filter.pages());
        (0..fill.blocks.len()).for_each(|block| fill.measure(filter, block));
        fill
    }

    /// Measures one block again.
    pub(crate) fn measure(&mut self, filter: &Filter, block: usize) {
        let words = &filter.words()[block_range(self.pages, block)];
        self.blocks[block] = self.line.of_pages(words.iter().map(|word| word.load(Relaxed)));
    }

    /// The same of a block that has these words.
    pub(crate) fn measure_words(&mut self, block: usize, words: &[u64]) {
        self.blocks[block] = self.line.of_pages(words.iter().copied());
    }

    /// The filter's error rate.
    pub(crate) fn rate(&self) -> f64 {
        self.now(self.blocks.iter().sum::<f64>())
    }

    /// The rates of one block and of the filter, if the block's words were these.
    pub(crate) fn rates_with(&self, block: usize, words: &[u64]) -> (f64, f64) {
        let sum = self.line.of_pages(words.iter().copied());
        let whole = self.blocks.iter().sum::<f64>() - self.blocks[block] + sum;
        (sum / (words.len() / PAGE_WORDS) as f64, self.now(whole))
    }

    /// The filter's rate now, if the rates of its pages were this in sum when they were measured.
    fn now(&self, sum: f64) -> f64 {
        let rate = sum / self.pages as f64;
        match self.since {
            0 => rate,
            since => self.sizing.rate(self.sizing.pairs_at(rate, self.pages) + since, self.pages),
        }
    }

    /// The pairs that give this rate where they lie evenly.
    pub(crate) fn pairs(&self) -> u64 {
        self.sizing.pairs_at(self.rate(), self.pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Seed;
    use crate::table::{Table, empty};

    /// The part of a filter's pairs by which its measure becomes stale.
    const FEW_OF: u64 = 128;

    fn full(rate: f64, pages: usize) -> Table {
        let table = empty(rate, pages).unwrap();
        let seed = Seed::new(3);
        let link = table.link(0).unwrap();
        (0..link.capacity()).for_each(|n| Table::set(link, &seed.canary(1, n)));
        table
    }

    /// Of pairs that lie evenly it tells what their number does, and what probes measure.
    #[test]
    fn even_pairs_are_as_many_as_they_are() {
        for rate in [0.01, 0.001] {
            let table = full(rate, 200);
            let link = table.link(0).unwrap();
            let fill = FillRatio::of(&link.filter);
            let by_count = link.filter.sizing().rate(link.pairs(), 200);
            assert!(
                (fill.rate() / by_count - 1.0).abs() < 0.06,
                "{} by bits, {by_count} by number",
                fill.rate()
            );
            assert!((fill.pairs() as f64 / link.pairs() as f64 - 1.0).abs() < 0.01);
            let probed = table.probe(Seed::new(4), 2, 4_000_000).rate().unwrap();
            assert!(
                (fill.rate() / probed - 1.0).abs() < 0.06,
                "{} by bits, {probed} by probes",
                fill.rate()
            );
        }
        let none = FillRatio::of(&Filter::new(Sizing::for_rate(0.01), 20).unwrap());
        assert_eq!((none.rate(), none.pairs(), none.blocks.len()), (0.0, 0, 2));
    }

    /// What chance does to pages, and to blocks of them, is what it is derived to be (`sizing`).
    #[test]
    fn full_pages_differ_by_what_chance_does() {
        for rate in [0.01, 0.001, 0.0001] {
            let pages = 1600;
            let table = full(rate, pages);
            let filter = table.first_filter();
            let fill = FillRatio::of(filter);
            let words: Vec<u64> = filter.words().iter().map(|word| word.load(Relaxed)).collect();
            let of_pages =
                words.chunks(PAGE_WORDS).map(|page| fill.line.of_pages(page.iter().copied()).ln());
            let logs: Vec<f64> = of_pages.collect();
            let mean = logs.iter().sum::<f64>() / pages as f64;
            let spread =
                (logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / pages as f64).sqrt();
            let derived = filter.sizing().chance(1, 1.0).ln();
            assert!(
                spread < derived * 1.04 && spread > derived * 0.85,
                "{spread}, {derived} derived, at {rate}"
            );
            let allowed = filter.sizing().rate(filter.capacity(), pages);
            let most = fill.blocks.iter().fold(0.0, |most: f64, sum| most.max(sum / 16.0));
            assert!(
                most < allowed * filter.sizing().chance(16, 4.0) && most > allowed,
                "{most} in a block at {rate}"
            );
            assert!(
                fill.rate() < allowed * filter.sizing().chance(pages, 3.0),
                "{} at {rate}",
                fill.rate()
            );
        }
    }

    /// What was measured some time ago is taken for no less than it is by now, and hardly for more.
    #[test]
    fn a_stale_measure_is_no_less_than_the_rate() {
        let rate = 0.0001;
        let half = full(rate, 64);
        let table = empty(rate, 160).unwrap();
        let link = table.link(0).unwrap();
        let seed = Seed::new(6);
        (0..link.capacity() / 3).for_each(|n| Table::set(link, &seed.canary(1, n)));
        // Some blocks have twice what the others have.
        for block in 0..4 {
            let words: Vec<u64> = half.first_filter().words()[block_range(64, block)]
                .iter()
                .enumerate()
                .map(
                    |(i, word)| {
                        if (i / PAGE_WORDS).is_multiple_of(2) { word.load(Relaxed) } else { 0 }
                    },
                )
                .collect();
            link.join(block, &words, half.capacity() / 8);
        }
        let mut most_stale = 0;
        for round in 0..40 {
            let more = link.capacity() / 300;
            (0..more).for_each(|n| Table::set(link, &seed.canary(2 + round, n)));
            let (told, since) = link.with_fill(|fill| (fill.rate(), fill.since));
            most_stale = most_stale.max(since);
            let is = FillRatio::of(&link.filter).rate();
            assert!(
                told >= is * 0.998 && told < is * 1.03,
                "{told} told, {is} is, {since} pairs since"
            );
        }
        assert!(most_stale > 0);
    }

    /// What a block brought is known as soon as it is there, and is not taken for pairs that came
    /// since.
    #[test]
    fn what_was_joined_counts_once() {
        let table = empty(0.001, 160).unwrap();
        let link = table.link(0).unwrap();
        let seed = Seed::new(7);
        (0..link.capacity() / 2).for_each(|n| Table::set(link, &seed.canary(1, n)));
        let before = link.with_fill(|fill| fill.pairs());
        let other = empty(0.001, 160).unwrap();
        // So few that the measure does not become stale by them.
        let more = link.pairs() / (FEW_OF * 4);
        let theirs = other.link(0).unwrap();
        (0..more * 10).for_each(|n| Table::set(theirs, &seed.canary(2, n)));
        let words = &theirs.filter.words()[block_range(160, 3)];
        link.join(3, &words.iter().map(|word| word.load(Relaxed)).collect::<Vec<_>>(), more);
        assert_eq!(link.with_fill(|fill| fill.since), 0);
        assert!(link.with_fill(|fill| fill.pairs()) >= before);
        (0..more).for_each(|n| Table::set(link, &seed.canary(3, n)));
        assert_eq!(link.with_fill(|fill| fill.since), more);
    }

    /// Half a filter that is full, and half that is empty: pairs up to the capacity that is left
    /// keep the rate.
    #[test]
    fn uneven_pairs_leave_the_room_that_keeps_the_rate() {
        let rate = 0.001;
        let whole = full(rate, 64);
        let table = empty(rate, 64).unwrap();
        let link = table.link(0).unwrap();
        for block in [0, 1] {
            let words = &whole.link(0).unwrap().filter.words()[block_range(64, block)];
            let words: Vec<u64> = words.iter().map(|word| word.load(Relaxed)).collect();
            link.join(block, &words, whole.capacity() / 4);
        }
        assert!(link.load() > whole.capacity() * 9 / 10, "{} of {}", link.load(), whole.capacity());
        let seed = Seed::new(5);
        (link.load()..link.capacity()).for_each(|n| Table::set(link, &seed.canary(1, n)));
        let probed = table.probe(Seed::new(4), 2, 4_000_000).rate().unwrap();
        assert!(probed < rate, "{probed}");
        // Without that: as many pairs as it has no bits of yet.
        (0..whole.capacity() / 2).for_each(|n| Table::set(link, &seed.canary(2, n)));
        assert!(FillRatio::of(&link.filter).rate() > rate * 4.0);
    }
}
