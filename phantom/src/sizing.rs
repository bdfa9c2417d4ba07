//! Filter size for a false-positive rate, derived for this layout rather than for the textbook
//! filter.
//!
//! **Layout.** A filter has P pages of 64 lines of 512 bits. A pair maps to one page and to two
//! distinct lines in it. It sets h distinct bits in each of these lines.
//!
//! **Derivation.** Take n pairs and uniform hashes. The number X of pairs with bits in a given line
//! is Poisson with mean λ = 2n / 64P = n / 32P. (The number of pairs per page varies as well. If it
//! is Poisson and its pairs are spread over lines at random, the number of pairs per line is still
//! Poisson.) Let G_h(x) be the probability that h distinct random bits are all set in a line with x
//! pairs. A false positive requires that all h bits are set in both lines:
//!
//! ```text
//!   rate(λ, h) = ( Σ_x  Poisson(x; λ) G_h(x) )²            bits per pair = 32768 P / n = 1024 / λ
//! ```
//!
//! G_h(x) follows from the distribution of the number j of set bits after x pairs. A pair adds a
//! new bits with probability C(j, h-a) C(512-j, a) / C(512, h), a Markov chain of 513 states. Then
//! G_h(x) = Σ_j P(j) C(j, h) / C(512, h). No term is approximated. G is convex, so the mix over x
//! exceeds the rate of a line with mean load; this excess is the cost of cache-line blocks.
//!
//! Bits per pair with the best h, compared with the textbook filter at its best k:
//!
//! ```text
//!   rate     h + h    two lines    one line    textbook
//!   1 %      3 + 3      9.66         9.89        9.59
//!   0.1 %    5 + 5     14.60        15.48       14.38
//!   0.01 %   6 + 6     19.78        21.92       19.17
//! ```
//!
//! **Counting.** A filter neither sets nor counts a pair that it already reports as set. Counted
//! pairs therefore fill the filter as fast as all received pairs do. Up to a load Λ the counted
//! share is 1 - (∫₀^Λ rate(λ) dλ) / Λ: 0.9985 at 1 %, 0.92 at 25 %. This share converts between
//! counted and received pairs.
//!
//! **Budget.** A lookup in a table with extensions returns true if any filter does, so their rates
//! add up. The first filter gets [`FIRST_SHARE`] of the configured rate. The i-th extension gets a
//! part of the rest proportional to 1/i². The sum stays below the configured rate for any length of
//! the chain.

use parking_lot::RwLock;
use std::sync::LazyLock;

pub(crate) const LINE_BITS: usize = 512;
pub(crate) const LINES: usize = 64;
pub(crate) const PAGE_WORDS: usize = LINES * LINE_BITS / 64;
/// Maximum number of bits that a pair sets in each of its two lines.
pub(crate) const MAX_BITS: usize = 7;

/// Supported false-positive rates.
pub const RATES: std::ops::RangeInclusive<f64> = 1e-7..=0.25;
/// Share of the configured rate that the first filter of a table has when it is full. This share
/// costs 0.1 bits per pair, and keeps a pair at 0.01 % within 19.9 bits.
pub(crate) const FIRST_SHARE: f64 = 0.952;

/// Number of pairs beyond which a line counts as full.
const MAX_LOAD: usize = 1024;

/// `COVER[h][x]`: probability that h distinct random bits are all set in a line with x pairs.
static COVER: LazyLock<Vec<Vec<f64>>> = LazyLock::new(|| (0..=MAX_BITS).map(cover).collect());

fn choose(n: usize, k: usize) -> f64 {
    if k > n { 0.0 } else { (0..k).map(|i| (n - i) as f64 / (k - i) as f64).product() }
}

fn cover(h: usize) -> Vec<f64> {
    let all = choose(LINE_BITS, h);
    let hit: Vec<f64> = (0..=LINE_BITS).map(|j| choose(j, h) / all).collect();
    let step = |j: usize, new: usize| choose(j, h - new) * choose(LINE_BITS - j, new) / all;
    let steps: Vec<Vec<f64>> =
        (0..=LINE_BITS).map(|j| (0..=h).map(|new| step(j, new)).collect()).collect();
    let mut set = vec![0.0; LINE_BITS + 1];
    set[0] = 1.0;
    (0..=MAX_LOAD)
        .map(|_| {
            let covered = set.iter().zip(&hit).map(|(p, hit)| p * hit).sum();
            let mut next = vec![0.0; LINE_BITS + 1];
            for (j, &p) in set.iter().enumerate().filter(|(_, p)| **p > 1e-30) {
                for new in 0..=h.min(LINE_BITS - j) {
                    next[j + new] += p * steps[j][new];
                }
            }
            set = next;
            covered
        })
        .collect()
}

/// Returns the false-positive rate of a filter with a mean of `load` pairs per line, each with
/// `bits` bits per line.
pub(crate) fn rate(load: f64, bits: usize) -> f64 {
    if load <= 0.0 {
        return 0.0;
    }
    let cover = &COVER[bits];
    let mut probability = (-load).exp();
    let (mut one_line, mut tail) = (0.0, 1.0);
    if probability > 0.0 {
        for (x, covered) in cover.iter().enumerate() {
            one_line += probability * covered;
            tail -= probability;
            probability *= load / (x + 1) as f64;
            if probability < 1e-30 && x as f64 > load {
                tail = 0.0;
                break;
            }
        }
    }
    (one_line + tail.max(0.0)).min(1.0).powi(2)
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sizing {
    pub(crate) bits: usize,
    /// Number of received pairs per page at the configured rate.
    pub(crate) pairs_per_page: f64,
    /// Share of received pairs that are counted.
    pub(crate) counted: f64,
}

/// Returns the share of received pairs that are counted, up to this load. A filter counts only
/// pairs that find at least one bit unset.
fn counted(load: f64, bits: usize) -> f64 {
    /// Number of intervals in Simpson's rule; must be even.
    const STEPS: usize = 32;
    let at = |i: usize| rate(load * i as f64 / STEPS as f64, bits);
    let inner: f64 = (1..STEPS).map(|i| at(i) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    1.0 - (at(0) + inner + at(STEPS)) / (3 * STEPS) as f64
}

/// Returns the load at which a filter reaches the rate `target`.
fn load_at(target: f64, bits: usize) -> f64 {
    // 700 exceeds the load of any practical rate, and exp(-700) is still above zero.
    let (mut low, mut high) = (0.0, 700.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if rate(middle, bits) <= target { low = middle } else { high = middle }
    }
    low
}

/// Returns the bits per pair in the first filter of a full table with this false-positive rate.
/// Late pairs of a closed table take additional memory.
pub fn bits_per_pair(rate: f64) -> f64 {
    let sizing = Sizing::in_chain(rate, 0);
    (LINES * LINE_BITS) as f64 / (sizing.pairs_per_page * sizing.counted)
}

impl Sizing {
    /// Returns the parameters with the lowest memory use for `target`.
    pub(crate) fn for_rate(target: f64) -> Sizing {
        let (load, bits) = (1..=MAX_BITS)
            .map(|bits| (load_at(target, bits), bits))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .expect("MOST_BITS is at least 1");
        Sizing { bits, pairs_per_page: load * (LINES / 2) as f64, counted: counted(load, bits) }
    }

    /// Returns the parameters and the number of pages of the `i`-th filter in a chain. Part of the
    /// file format.
    pub(crate) fn geometry(rate: f64, first_pages: usize, i: usize) -> (Sizing, usize) {
        let sizing = Sizing::in_chain(rate, i);
        if i == 0 {
            return (sizing, first_pages);
        }
        let first = Sizing::in_chain(rate, 0).pairs(first_pages);
        (sizing, sizing.pages((first / 8).max(1) << (i - 1)))
    }

    /// Returns the parameters of the `i`-th filter in a chain (0 is the first) whose filters share
    /// `rate`. The computation takes about 0.2 ms, so recent results are cached. The cache is
    /// bounded because a peer may send tables with arbitrary rates.
    pub(crate) fn in_chain(rate: f64, i: usize) -> Sizing {
        /// Number of cached results: all filters of four rates.
        const MAX_CACHED_SIZINGS: usize = 64;
        static CACHED_SIZINGS: RwLock<Vec<((u64, usize), Sizing)>> = RwLock::new(Vec::new());
        let key = (rate.to_bits(), i);
        if let Some((_, known)) = CACHED_SIZINGS.read().iter().find(|known| known.0 == key) {
            return *known;
        }
        let sizing = Sizing::for_rate(rate * share(i));
        let mut known = CACHED_SIZINGS.write();
        if known.len() >= MAX_CACHED_SIZINGS {
            known.clear();
        }
        known.push((key, sizing));
        sizing
    }

    /// Returns the number of counted pairs at which a filter of `pages` reaches the rate.
    pub(crate) fn capacity(&self, pages: usize) -> u64 {
        (self.pairs_per_page * self.counted * pages as f64) as u64
    }

    /// Returns the number of received pairs at which a filter of `pages` reaches the rate.
    pub(crate) fn pairs(&self, pages: usize) -> u64 {
        (self.pairs_per_page * pages as f64) as u64
    }

    /// Returns the number of pages for `pairs` received pairs. At least 1.
    pub(crate) fn pages(&self, pairs: u64) -> usize {
        ((pairs as f64 / self.pairs_per_page).ceil() as usize).max(1)
    }

    /// Returns the false-positive rate of a filter of `pages` with `pairs` counted pairs.
    pub(crate) fn rate(&self, pairs: u64, pages: usize) -> f64 {
        let found = pairs as f64 / (pages * LINES / 2) as f64;
        // The share changes slowly with the load; three iterations give six digits.
        let load = (0..3).fold(found, |load, _| found / counted(load, self.bits));
        rate(load, self.bits)
    }

    /// Returns the most likely number of counted pairs in a filter of `pages` with `ones` set bits.
    /// The expected share of zero bits is exactly exp(-λ h / 512).
    pub(crate) fn pairs_of(&self, ones: u64, pages: usize) -> u64 {
        let bits = (pages * LINES * LINE_BITS) as f64;
        let zeros = ((bits - ones as f64) / bits).max(1.0 / bits);
        let load = -zeros.ln() * LINE_BITS as f64 / self.bits as f64;
        (load * counted(load, self.bits) * (pages * LINES / 2) as f64) as u64
    }
}

/// Returns the error bound of [`Sizing::pairs_of`]. The standard deviation of the estimate is below
/// the square root of `pairs`.
pub(crate) fn uncertainty(pairs: u64) -> u64 {
    6 * pairs.isqrt() + 16
}

/// Returns the share of the configured rate for the `i`-th filter of a chain. All shares sum to 1.
pub(crate) fn share(i: usize) -> f64 {
    match i {
        0 => FIRST_SHARE,
        // Σ 1/i² = π²/6
        _ => (1.0 - FIRST_SHARE) * 6.0 / std::f64::consts::PI.powi(2) / (i * i) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bitvec::bitarr;
    use bloomfilter::Bloom;

    /// Compares the table in the module documentation with the textbook formula of the crate
    /// bloomfilter. Also checks that two lines per pair cost at most 4 % more bits.
    #[test]
    fn two_line_filters_cost_at_most_4_percent_more_bits() {
        for (rate, said, ours) in
            [(0.01, 9.59, 9.66), (0.001, 14.38, 14.60), (0.0001, 19.17, 19.78)]
        {
            let pairs = 1_000_000;
            let bits = 8 * Bloom::<u64>::compute_bitmap_size(pairs, rate);
            let textbook = bits as f64 / pairs as f64;
            assert!(
                (textbook - said).abs() < 0.005,
                "{rate}: the textbook has {textbook}, not {said}"
            );
            let sizing = Sizing::for_rate(rate);
            let needed = (PAGE_WORDS * 64) as f64 / sizing.pairs_per_page;
            assert!((needed - ours).abs() < 0.005, "{rate}: {needed}, not {ours}");
            assert!(needed > textbook && needed < 1.04 * textbook, "{rate}: {needed}, {textbook}");
        }
    }

    #[test]
    fn a_full_table_takes_no_more_memory_than_was_allowed() {
        for (rate, allowed, textbook) in
            [(0.01, 9.8, 9.59), (0.001, 14.9, 14.38), (0.0001, 19.9, 19.17)]
        {
            let sizing = Sizing::in_chain(rate, 0);
            let bits_per_pair = (PAGE_WORDS * 64) as f64 / sizing.pairs_per_page;
            assert!(bits_per_pair <= allowed, "{rate}: {bits_per_pair}");
            assert!(
                bits_per_pair > textbook,
                "{rate}: {bits_per_pair} is below the theoretical minimum"
            );
        }
    }

    #[test]
    fn shares_sum_up_to_the_whole() {
        let sum: f64 = (0..100_000).map(share).sum();
        assert!(sum <= 1.0 && sum > 0.999, "{sum}");
    }

    /// Compares the Markov chain with a simulation of random bits.
    #[test]
    fn the_cover_of_a_line_is_what_dice_give() {
        let mut rng = fastrand::Rng::with_seed(1);
        for (bits, load) in [(3, 100), (6, 51), (7, 60)] {
            let (mut hits, tries) = (0u32, 400_000);
            let mut line = bitarr![0; LINE_BITS];
            let draw = |rng: &mut fastrand::Rng| rng.choose_multiple(0..LINE_BITS, bits);
            for i in 0..tries {
                if i % 64 == 0 {
                    line.fill(false);
                    (0..load).for_each(|_| draw(&mut rng).iter().for_each(|&b| line.set(b, true)));
                }
                hits += u32::from(draw(&mut rng).iter().all(|&b| line[b]));
            }
            let (found, expected) = (f64::from(hits) / f64::from(tries), COVER[bits][load]);
            assert!(
                (found / expected - 1.0).abs() < 0.05,
                "{bits} bits, {load} pairs: {found}, expected {expected}"
            );
        }
    }

    #[test]
    fn sizes_answer_each_other() {
        for rate in [1e-7, 1e-4, 0.01, 0.25] {
            for i in [0, 1, 5] {
                let sizing = Sizing::in_chain(rate, i);
                for pages in [1, 7, 100_000] {
                    let capacity = sizing.capacity(pages);
                    assert!(sizing.pages(capacity) <= pages);
                    assert!(sizing.rate(capacity, pages) <= rate * share(i) * 1.001);
                    let load = sizing.pairs(pages) as f64 / (pages * 32) as f64;
                    let ones =
                        (1.0 - (-load * sizing.bits as f64 / 512.0).exp()) * (pages * 32768) as f64;
                    let back = sizing.pairs_of(ones as u64, pages) as f64;
                    assert!((back / capacity as f64 - 1.0).abs() < 0.01, "{back} for {capacity}");
                }
            }
        }
    }
}
