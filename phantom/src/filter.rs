//! One Bloom filter: all bits of a pair lie in two cache lines of one 4 KiB page.
//!
//! ```text
//!   page  p = high half of the hash, reduced to 0..pages           one 4 KiB read when it is cold
//!   lines a, b: two different ones of its 64, from the low half    two misses, fetched at once
//!   bits  the first h *different* 9-bit draws of a word mixed from the whole hash, a word per line
//! ```
//!
//! **F1** Bits are only ever set while the filter is shared: a pair that was set stays set. **F2**
//! A pair's bits depend on its hash, the number of pages and h, on nothing else (they are part of
//! the format).
//!
//! Draws are distinct because a repeated draw would leave 3 % of the pairs a bit short in each line
//! (and the rate 2 % higher). A check first asks for the first h draws, whatever they are: they are
//! among the pair's bits in any case. Only when all are set, rarely for a pair that is not, it
//! looks whether a draw was repeated.
//!
//! Sets and checks take no lock. Words are read and written relaxed: a reader that was told that a
//! pair is set synchronised with its writer, and each bit is a fact of its own.

use crate::hash::{Pair, mix};
use crate::sizing::{LINE_BITS, LINES, MOST_BITS, PAGE_WORDS, Sizing};
use rolling::{Words, ones};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const LINE_WORDS: usize = LINE_BITS / 64;
/// 9-bit draws in a word.
const DRAWS: usize = 7;

/// A line of a filter.
pub(crate) type Line = [AtomicU64; LINE_WORDS];

const _: () = assert!(MOST_BITS <= DRAWS && LINE_WORDS * LINES == PAGE_WORDS);

/// Where a pair's bits are in one filter.
#[derive(Clone, Copy, Default)]
pub(crate) struct Probe {
    /// First word of the pair's page.
    page: usize,
    /// First word of each line, from there: the same in every filter.
    lines: [usize; 2],
}

impl Probe {
    /// First word of a line.
    #[inline(always)]
    fn line(&self, side: usize) -> usize {
        self.page.wrapping_add(self.lines[side])
    }
}

/// What the bits of a pair in one of its lines are drawn from; the same in every filter.
#[inline(always)]
pub(crate) fn draws(pair: &Pair, side: usize) -> u64 {
    mix(if side == 0 {
        pair.high ^ pair.low
    } else {
        pair.high.wrapping_add(pair.low.rotate_left(32))
    })
}

/// A filter of a fixed number of pages. See the top of the file.
#[repr(C)]
pub(crate) struct Filter {
    words: Words,
    pages: usize,
    sizing: Sizing,
}

impl Filter {
    /// An empty filter. Its memory is the kernel's zero page until it is written to.
    pub(crate) fn new(sizing: Sizing, pages: usize) -> io::Result<Filter> {
        let words = pages.checked_mul(PAGE_WORDS).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Filter { words: Words::zeroed(words)?, pages, sizing })
    }

    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    pub(crate) fn sizing(&self) -> &Sizing {
        &self.sizing
    }

    /// Pairs that it may hold at its rate.
    pub(crate) fn capacity(&self) -> u64 {
        self.sizing.capacity(self.pages)
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.words.size_bytes()
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    /// First word of the page of `pair` here.
    #[inline(always)]
    pub(crate) fn page(&self, pair: &Pair) -> usize {
        page_of(pair, self.pages).wrapping_mul(PAGE_WORDS)
    }

    /// Where `pair` is here (F2).
    #[inline(always)]
    pub(crate) fn probe(&self, pair: &Pair) -> Probe {
        Probe { page: self.page(pair), lines: lines_of(pair) }
    }

    /// Where `pair` is here, if `probe` is where it is in another filter.
    #[inline(always)]
    pub(crate) fn spot_again(&self, pair: &Pair, probe: &Probe) -> Probe {
        Probe { page: self.page(pair), ..*probe }
    }

    /// The first line of `pair` here: all of its probe that is needed for most pairs that are not
    /// set.
    #[inline(always)]
    pub(crate) fn first_line(&self, pair: &Pair) -> &Line {
        self.line(self.page(pair).wrapping_add(pair.low as usize % LINES * LINE_WORDS))
    }

    /// Hints that one line of `probe` will be asked for or set soon.
    #[inline(always)]
    pub(crate) fn prefetch(&self, probe: &Probe, side: usize) {
        self.words.prefetch(probe.line(side));
    }

    /// The first line of all.
    pub(crate) fn first(&self) -> &Line {
        self.line(0)
    }

    /// The line that begins with word `first`.
    #[inline(always)]
    pub(crate) fn line(&self, first: usize) -> &Line {
        self.words.get(first..).and_then(<[AtomicU64]>::first_chunk).expect("a line of eight words")
    }

    /// Whether all bits of the pair at `probe` are set.
    #[inline(always)]
    pub(crate) fn contains(&self, pair: &Pair, probe: &Probe) -> bool {
        self.may_contain(pair, probe) && self.does_contain(pair, probe)
    }

    /// What the first line alone says: no, to 99 of 100 pairs that are not set.
    #[inline(always)]
    pub(crate) fn may_contain(&self, pair: &Pair, probe: &Probe) -> bool {
        has_draws(self.sizing.bits, self.line(probe.line(0)), draws(pair, 0))
    }

    /// The rest of the check, for pairs that [`Filter::may_contain`].
    #[inline]
    pub(crate) fn does_contain(&self, pair: &Pair, probe: &Probe) -> bool {
        let sides = [draws(pair, 0), draws(pair, 1)];
        has_draws(self.sizing.bits, self.line(probe.line(1)), sides[1])
            && (0..2).all(|side| self.has_repeats(probe, side, sides[side]))
    }

    /// The rest of the check, for a line in which the bits of the first draws are set.
    #[inline]
    fn has_repeats(&self, probe: &Probe, side: usize, draws: u64) -> bool {
        // Draws that differ in their low, or in their high, six bits are all different: that is so
        // for nineteen lines of twenty.
        let (mut low, mut high, mut left) = (0u64, 0u64, draws);
        for _ in 0..self.sizing.bits {
            low |= 1 << (left % 64);
            high |= 1 << (left / 8 % 64);
            left >>= 9;
        }
        low.count_ones().max(high.count_ones()) as usize == self.sizing.bits || {
            let mask = pattern(draws, self.sizing.bits);
            self.line(probe.line(side))
                .iter()
                .zip(mask)
                .all(|(word, mask)| word.load(Relaxed) & mask == mask)
        }
    }

    /// Sets the bits of the pair at `probe`.
    pub(crate) fn set(&self, pair: &Pair, probe: &Probe) {
        for side in 0..2 {
            let line = self.line(probe.line(side));
            let mask = pattern(draws(pair, side), self.sizing.bits);
            for (word, mask) in line.iter().zip(mask) {
                // Most are set already: a load costs a tenth of an atomic or, and keeps the line
                // shared.
                if word.load(Relaxed) & mask != mask {
                    word.fetch_or(mask, Relaxed);
                }
            }
        }
    }

    /// Zeroes `count` words from `from` on: an empty filter when all are done. Needs the filter for
    /// itself (F1).
    pub(crate) fn clear(&mut self, from: usize, count: usize) {
        let end = from.saturating_add(count).min(self.words.len());
        self.words[from.min(end)..end].iter().for_each(|word| word.store(0, Relaxed));
    }

    /// How many bits are set.
    pub(crate) fn ones(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Relaxed).count_ones())).sum()
    }
}

/// Number of the page of `pair` among so many.
#[inline(always)]
pub(crate) fn page_of(pair: &Pair, pages: usize) -> usize {
    ((u128::from(pair.high) * pages as u128) >> 64) as usize
}

/// First word of each line of `pair` in its page.
#[inline(always)]
fn lines_of(pair: &Pair) -> [usize; 2] {
    let first = pair.low as usize % LINES;
    let apart = 1 + ((((pair.low >> 6) & 0xffff) * (LINES as u64 - 1)) >> 16) as usize;
    [first * LINE_WORDS, (first + apart) % LINES * LINE_WORDS]
}

/// Bytes of a page.
pub const PAGE_BYTES: usize = PAGE_WORDS * 8;

/// The words of `pair` in its page, by the byte at which each begins, and its bits in them.
fn masks(pair: &Pair, bits: usize) -> impl Iterator<Item = (usize, u64)> {
    (0..2).zip(lines_of(pair)).flat_map(move |(side, line)| {
        (line..)
            .zip(pattern(draws(pair, side), bits))
            .filter(|word| word.1 != 0)
            .map(|(word, mask)| (word * 8, mask))
    })
}

/// Whether all bits of a pair, so many in each of its lines, are set in its page: little-endian
/// words, as a file has them.
pub(crate) fn page_has(page: &[u8; PAGE_BYTES], pair: &Pair, bits: usize) -> bool {
    masks(pair, bits).all(|(at, mask)| crate::bytes::u64_at(page, at) & mask == mask)
}

/// Sets them.
pub(crate) fn page_set(page: &mut [u8; PAGE_BYTES], pair: &Pair, bits: usize) {
    for (at, mask) in masks(pair, bits) {
        let word = crate::bytes::u64_at(page, at) | mask;
        page[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
}

/// The bit that a draw, the lowest nine bits, names; above it anything.
#[inline(always)]
fn bit(line: &Line, draw: u64) -> u64 {
    line[draw as usize / 64 % LINE_WORDS].load(Relaxed) >> (draw % 64)
}

/// Whether the bits of the first draws are set, all looked at: to stop at the first zero is a jump
/// that no processor can foresee, and that costs more than five loads from a line at hand.
#[inline(always)]
fn has_draws(bits: usize, line: &Line, draws: u64) -> bool {
    (0..bits).fold(1, |all, i| all & bit(line, draws >> (9 * i))) & 1 == 1
}

/// What the first lines of the first `number` pairs say, whose filters all have so many bits of a
/// pair in a line, by their [`draws`]: a bit for each pair that may be set.
pub(crate) fn seem_set<const N: usize>(
    bits: usize,
    number: usize,
    lines: &[&Line; N],
    draws: &[u64; N],
) -> u32 {
    // So that no loop over bits is left.
    match bits {
        7 => all_seem_set::<7, N>(number, lines, draws),
        6 => all_seem_set::<6, N>(number, lines, draws),
        5 => all_seem_set::<5, N>(number, lines, draws),
        4 => all_seem_set::<4, N>(number, lines, draws),
        3 => all_seem_set::<3, N>(number, lines, draws),
        2 => all_seem_set::<2, N>(number, lines, draws),
        _ => all_seem_set::<1, N>(number, lines, draws),
    }
}

/// Of pairs that are not set most are known by so few draws; the others are looked at for pairs
/// that these leave open.
const FIRST_DRAWS: usize = 3;

#[inline(always)]
fn all_seem_set<const BITS: usize, const N: usize>(
    number: usize,
    lines: &[&Line; N],
    draws: &[u64; N],
) -> u32 {
    let first = BITS.min(FIRST_DRAWS);
    let seems = |i: usize| has_draws(first, lines[i], draws[i]);
    let open = (0..number.min(N)).rev().fold(0, |open, i| open << 1 | u32::from(seems(i)));
    if first == BITS {
        return open;
    }
    let still = |i: usize| has_draws(BITS - first, lines[i], draws[i] >> (9 * first));
    ones(open).fold(0, |seem, i| seem | u32::from(still(i)) << i)
}

/// The first `bits` different draws, as a mask over a line.
#[inline]
fn pattern(word: u64, bits: usize) -> [u64; LINE_WORDS] {
    let mut mask = [0u64; LINE_WORDS];
    let (mut draws, mut left, mut next, mut found) = (word, DRAWS, word, 0);
    while found < bits {
        let bit = draws as usize % LINE_BITS;
        let seen = mask[bit / 64] >> (bit % 64) & 1;
        mask[bit / 64] |= 1 << (bit % 64);
        found += 1 - seen as usize;
        draws >>= 9;
        left -= 1;
        if left == 0 {
            next = mix(next.wrapping_add(0x9e37_79b9_7f4a_7c15));
            (draws, left) = (next, DRAWS);
        }
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::{Member, Seed};
    use bitvec::prelude::*;

    fn pair(seed: Seed, id: u64, member: u64) -> Pair {
        seed.pair(id, seed.ready(&Member::Number(member)))
    }

    #[test]
    fn a_pair_has_distinct_bits_in_two_lines_of_one_page() {
        for bits in 1..=MOST_BITS {
            let filter = Filter::new(Sizing { bits, ..Sizing::for_rate(0.5) }, 1000).unwrap();
            for i in 0..10_000 {
                let pair = pair(Seed::new(i), i, i * i);
                let probe = filter.probe(&pair);
                assert_ne!(probe.lines[0], probe.lines[1]);
                assert!(probe.page.is_multiple_of(PAGE_WORDS) && probe.page < 1000 * PAGE_WORDS);
                assert!(
                    probe.lines.iter().all(|at| at.is_multiple_of(LINE_WORDS) && *at < PAGE_WORDS)
                );
                for draws in [draws(&pair, 0), draws(&pair, 1)] {
                    let mask = BitArray::<_, Lsb0>::new(pattern(draws, bits));
                    assert_eq!(mask.count_ones(), bits);
                    let first = (0..bits).all(|i| mask[(draws >> (9 * i)) as usize % 512]);
                    assert!(first, "the first draws are among the bits");
                }
            }
        }
    }

    #[test]
    fn a_draw_that_repeats_is_replaced() {
        // Seven equal draws: six more are needed.
        assert_eq!(pattern(0, 7).view_bits::<Lsb0>().count_ones(), 7);
        // Found only if the replacements are checked, too.
        let filter = Filter::new(Sizing { bits: 7, ..Sizing::for_rate(0.5) }, 1).unwrap();
        let pair = Pair { id: 0, high: 0, low: 0 };
        assert_eq!([draws(&pair, 0), draws(&pair, 1)], [0, 0]);
        let probe = filter.probe(&pair);
        filter.words[0].store(1, Relaxed);
        filter.words[8].store(1, Relaxed);
        assert!(filter.may_contain(&pair, &probe) && !filter.contains(&pair, &probe));
        filter.set(&pair, &probe);
        assert!(filter.contains(&pair, &probe));
        assert_eq!(filter.ones(), 14);
    }

    #[test]
    fn what_is_set_is_found_and_clearing_forgets_it() {
        let mut filter = Filter::new(Sizing::for_rate(0.001), 64).unwrap();
        let seed = Seed::new(5);
        let n = filter.capacity();
        for i in 0..n {
            let pair = pair(seed, i, 1);
            filter.set(&pair, &filter.probe(&pair));
        }
        for i in 0..n {
            let pair = pair(seed, i, 1);
            assert!(filter.contains(&pair, &filter.probe(&pair)));
        }
        let counted = filter.sizing.pairs_of(filter.ones(), filter.pages) as f64;
        assert!((counted / n as f64 - 1.0).abs() < 0.02, "{counted} for {n}");
        filter.clear(0, 1000);
        assert!(filter.ones() > 0);
        filter.clear(1000, usize::MAX);
        assert_eq!(filter.ones(), 0);
    }

    /// The formula of `sizing` against filters that are full, over ids and members of every shape.
    #[test]
    fn the_rate_at_the_brim_is_the_derived_one() {
        type Shape = (&'static str, fn(u64) -> (u64, u64));
        let shapes: [Shape; 5] = [
            ("sequential ids", |i| (1 << 40 | i, 7)),
            ("sequential members", |i| (1 << 40, i)),
            ("ids with equal low bits", |i| (i << 40 | 12345, i % 5)),
            ("members with equal low bits", |i| (77, i << 38)),
            ("snowflakes", |i| (3_631_614_501_919_378 + (i / 20) * 4096, 833_933_534_602 + i * 37)),
        ];
        for rate in [0.01, 0.001] {
            let sizing = Sizing::for_rate(rate);
            for (name, shape) in shapes {
                let seed = Seed::new(42);
                let filter = Filter::new(sizing, 600).unwrap();
                let n = filter.capacity();
                for i in 0..n {
                    let (id, member) = shape(i);
                    let pair = pair(seed, id, member);
                    filter.set(&pair, &filter.probe(&pair));
                }
                let probes = 1_000_000;
                let yes = (n..n + probes)
                    .filter(|&i| {
                        let (id, member) = shape(i);
                        let pair = pair(seed, id, member);
                        filter.contains(&pair, &filter.probe(&pair))
                    })
                    .count() as f64;
                let expected = rate * probes as f64;
                // Four deviations of the count, and as much for the filter itself, of which this is
                // only one.
                let slack = 4.0 * expected.sqrt() + 0.03 * expected;
                assert!((yes - expected).abs() < slack, "{name}, {rate}: {yes} for {expected}");
            }
        }
    }
}
