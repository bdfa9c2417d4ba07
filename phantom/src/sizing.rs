//! How large a filter must be for its error rate: derived for this layout, not for the textbook
//! filter.
//!
//! **Layout.** A filter is P pages of 64 lines of 512 bits. A pair goes to one page, to two
//! distinct lines of it, and sets h distinct bits in each.
//!
//! **Derivation.** With n pairs, and hashes that spread evenly, the number X of pairs that have
//! bits in a given line is Poisson with mean λ = 2n / 64P = n / 32P. (Pages vary, too, but a
//! Poisson number of pairs dealt to lines at random gives Poisson lines; the page only ties lines
//! together, weakly.) Let G_h(x) be the chance that h distinct random bits are all set in a line
//! that x pairs have written to. A pair never set is answered *yes* if that happens in both of its
//! lines, hence
//!
//! ```text
//!   rate(λ, h) = ( Σ_x  Poisson(x; λ) G_h(x) )²            bits per pair = 32768 P / n = 1024 / λ
//! ```
//!
//! G_h(x) comes from the distribution of the number j of set bits after x pairs: a pair adds a new
//! ones with probability C(j, h-a) C(512-j, a) / C(512, h), a Markov chain of 513 states; then
//! G_h(x) = Σ_j P(j) C(j, h) / C(512, h). No term is approximated. That the mix over x lies above
//! the rate of a mean line (G is convex) is what cache-line blocks cost.
//!
//! What the best h then needs, in bits per pair, beside the textbook's n/m with its best k:
//!
//! ```text
//!   rate     h + h    two lines    one line    textbook
//!   1 %      3 + 3      9.66         9.89        9.59
//!   0.1 %    5 + 5     14.60        15.48       14.38
//!   0.01 %   6 + 6     19.78        21.92       19.17
//! ```
//!
//! **Counting.** A pair that the filter takes for set is not set again, and not counted. So those
//! that are counted are the ones that found a bit unset, and fill the filter faster than pairs at
//! random: as fast as all that came. Of those that lead to a load Λ the share 1 - (∫₀^Λ rate(λ) dλ)
//! / Λ is counted: 0.9985 at 1 %, 0.92 at 25 %. What is held against counts here is converted by
//! that.
//!
//! **Budget.** A table that is overrun gets extension filters, and a lookup says yes if any of them
//! does: their rates add up. So the first filter of a table is sized for [`FIRST_SHARE`] of the
//! configured rate, and the i-th extension for a part of the rest that falls with the square of i,
//! so that the sum never exceeds what is configured, however long the chain.

use parking_lot::RwLock;
use std::sync::LazyLock;

/// Bits in a cache line.
pub(crate) const LINE_BITS: usize = 512;
/// Lines in a page.
pub(crate) const LINES: usize = 64;
/// 64-bit words in a page.
pub(crate) const PAGE_WORDS: usize = LINES * LINE_BITS / 64;
/// A pair sets at most this many bits in each of its two lines.
pub(crate) const MOST_BITS: usize = 7;

/// The rates that may be configured.
pub const RATES: std::ops::RangeInclusive<f64> = 1e-7..=0.25;
/// The share of the configured rate that a table's first filter may use when it is full. It costs
/// 0.1 bits per pair; more than 19.9 bits per pair at 0.01 % were not wanted.
pub(crate) const FIRST_SHARE: f64 = 0.952;

/// Lines with more pairs than this are taken to be full.
const MOST_LOAD: usize = 1024;

/// `COVER[h][x]`: the chance that h distinct random bits are all set in a line that x pairs have
/// written to.
static COVER: LazyLock<Vec<Vec<f64>>> = LazyLock::new(|| (0..=MOST_BITS).map(cover).collect());

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
    (0..=MOST_LOAD)
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

/// The false-positive rate of a filter whose lines hold `load` pairs on average, `bits` of each.
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

/// How the filters of one error rate are built.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sizing {
    /// Bits that a pair sets in each of its two lines.
    pub(crate) bits: usize,
    /// Pairs that fit, per page: those that came.
    pub(crate) pairs_per_page: f64,
    /// The share of them that is counted.
    pub(crate) counted: f64,
}

/// The share of the pairs that lead to this load that found a bit unset, and were counted.
fn counted(load: f64, bits: usize) -> f64 {
    /// Intervals of Simpson's rule: even.
    const STEPS: usize = 32;
    let at = |i: usize| rate(load * i as f64 / STEPS as f64, bits);
    let inner: f64 = (1..STEPS).map(|i| at(i) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    1.0 - (at(0) + inner + at(STEPS)) / (3 * STEPS) as f64
}

/// The load at which a filter has the rate `target`.
fn load_at(target: f64, bits: usize) -> f64 {
    // A line that no load under 700 fills to the rate would be wasted; exp(-load) is still a number
    // there.
    let (mut low, mut high) = (0.0, 700.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if rate(middle, bits) <= target { low = middle } else { high = middle }
    }
    low
}

/// Bits per pair of a table's first filter when it is full, for this false-positive rate of the
/// table. What comes late to a closed table takes room beside.
pub fn bits_per_pair(rate: f64) -> f64 {
    let sizing = Sizing::in_chain(rate, 0);
    (LINES * LINE_BITS) as f64 / (sizing.pairs_per_page * sizing.counted)
}

impl Sizing {
    /// The layout that takes the least memory for `target`.
    pub(crate) fn for_rate(target: f64) -> Sizing {
        let (load, bits) = (1..=MOST_BITS)
            .map(|bits| (load_at(target, bits), bits))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .expect("MOST_BITS is at least 1");
        Sizing { bits, pairs_per_page: load * (LINES / 2) as f64, counted: counted(load, bits) }
    }

    /// Layout and number of pages of the `i`-th filter of a chain. Part of the file format.
    pub(crate) fn geometry(rate: f64, first_pages: usize, i: usize) -> (Sizing, usize) {
        let sizing = Sizing::in_chain(rate, i);
        if i == 0 {
            return (sizing, first_pages);
        }
        let first = Sizing::in_chain(rate, 0).pairs(first_pages);
        (sizing, sizing.pages((first / 8).max(1) << (i - 1)))
    }

    /// The sizing of the `i`-th filter of a table's chain, 0 being the first, for the configured
    /// `rate` of the whole chain. What was worked out lately, some 0.2 ms each, is kept: a process
    /// has few rates, but a peer that sends tables may name any.
    pub(crate) fn in_chain(rate: f64, i: usize) -> Sizing {
        /// Of four rates all filters.
        const KEPT: usize = 64;
        static KNOWN: RwLock<Vec<((u64, usize), Sizing)>> = RwLock::new(Vec::new());
        let key = (rate.to_bits(), i);
        if let Some((_, known)) = KNOWN.read().iter().find(|known| known.0 == key) {
            return *known;
        }
        let sizing = Sizing::for_rate(rate * share(i));
        let mut known = KNOWN.write();
        if known.len() >= KEPT {
            known.clear();
        }
        known.push((key, sizing));
        sizing
    }

    /// Pairs that are counted when `pages` have reached the rate.
    pub(crate) fn capacity(&self, pages: usize) -> u64 {
        (self.pairs_per_page * self.counted * pages as f64) as u64
    }

    /// Pairs that come until `pages` have reached the rate.
    pub(crate) fn pairs(&self, pages: usize) -> u64 {
        (self.pairs_per_page * pages as f64) as u64
    }

    /// The fewest pages that hold `pairs` that come. At least 1.
    pub(crate) fn pages(&self, pairs: u64) -> usize {
        ((pairs as f64 / self.pairs_per_page).ceil() as usize).max(1)
    }

    /// The rate that `pairs` that were counted in `pages` give.
    pub(crate) fn rate(&self, pairs: u64, pages: usize) -> f64 {
        let found = pairs as f64 / (pages * LINES / 2) as f64;
        // The share changes slowly with the load: three steps bring it to six digits.
        let load = (0..3).fold(found, |load, _| found / counted(load, self.bits));
        rate(load, self.bits)
    }

    /// The pairs that were counted when `ones` bits are set in `pages`, most likely: the mean share
    /// of zeros is exp(-λ h / 512), exactly.
    pub(crate) fn pairs_of(&self, ones: u64, pages: usize) -> u64 {
        let bits = (pages * LINES * LINE_BITS) as f64;
        let zeros = ((bits - ones as f64) / bits).max(1.0 / bits);
        let load = -zeros.ln() * LINE_BITS as f64 / self.bits as f64;
        (load * counted(load, self.bits) * (pages * LINES / 2) as f64) as u64
    }
}

/// How far [`Sizing::pairs_of`] may be off: the number of set bits tells `pairs` with a deviation
/// below their square root.
pub(crate) fn uncertainty(pairs: u64) -> u64 {
    6 * pairs.isqrt() + 16
}

/// The share of the configured rate that the `i`-th filter of a chain may use. They sum up to 1.
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

    /// The crate bloomfilter has the textbook's formula: what the table at the top of this file
    /// says of it is right, and our layout pays at most 4 % more for its two lines per pair.
    #[test]
    fn two_lines_cost_at_most_four_percent_more_bits_than_a_textbook_filter() {
        for (rate, said, ours) in
            [(0.01, 9.59, 9.66), (0.001, 14.38, 14.60), (0.0001, 19.17, 19.78)]
        {
            let pairs = 1_000_000;
            let bits = 8 * Bloom::<u64>::compute_bitmap_size(pairs, rate);
            let textbook = bits as f64 / pairs as f64;
            assert!((textbook - said).abs() < 0.005, "{rate}: {textbook}, not {said}");
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
            assert!(bits_per_pair > textbook, "{rate}: {bits_per_pair} is less than is possible");
        }
    }

    #[test]
    fn shares_sum_up_to_the_whole() {
        let sum: f64 = (0..100_000).map(share).sum();
        assert!(sum <= 1.0 && sum > 0.999, "{sum}");
    }

    /// The chain of a line's fill against dice.
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
                "{bits} bits, {load} pairs: {found} for {expected}"
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
