//! Bloom filter: all bits of a pair are in two cache lines of one 4 KiB page.
//!
//! ```text
//!   page  p = high half of the hash, reduced to 0..pages           one 4 KiB read when it is cold
//!   lines a, b: two different ones of its 64, from the low half    two misses, fetched at once
//!   bits  the first h *different* 9-bit draws of a word mixed from the whole hash, a word per line
//! ```
//!
//! - **F1** Bits are only set, never cleared, while the filter is shared. A set pair stays set.
//! - **F2** The bits of a pair depend only on its hash, the number of pages and h. The file format
//!   includes them.
//!
//! The draws of a pair are distinct. With repeated draws, 3 % of the pairs would have one bit fewer
//! in a line, and the rate would rise by 2 %. A lookup first tests the first h draws, which are
//! always among the pair's bits. Only if all are set does it check for repeated draws.
//!
//! Lookups and writes take no lock. Words are accessed with relaxed ordering. Each bit is
//! independent of all other bits. A reader that must see a pair has synchronized with the pair's
//! writer.

use crate::hash::{Pair, mix};
use crate::sizing::{LINE_BITS, LINES, MAX_BITS, PAGE_WORDS, Sizing};
use rolling::{Words, ones};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const LINE_WORDS: usize = LINE_BITS / 64;
const DRAWS: usize = 7;

pub(crate) type Line = [AtomicU64; LINE_WORDS];

const _: () = assert!(MAX_BITS <= DRAWS && LINE_WORDS * LINES == PAGE_WORDS);

#[derive(Clone, Copy, Default)]
pub(crate) struct Probe {
    /// Word index at which the page begins.
    page: usize,
    /// Offset of each line's first word in the page. The offsets are the same in every filter.
    lines: [usize; 2],
}

impl Probe {
    #[inline(always)]
    fn line(&self, side: usize) -> usize {
        self.page.wrapping_add(self.lines[side])
    }
}

/// Returns the word from which the bits of a pair in one line are drawn. The word is the same in
/// every filter.
#[inline(always)]
pub(crate) fn draws(pair: &Pair, side: usize) -> u64 {
    mix(if side == 0 {
        pair.high ^ pair.low
    } else {
        pair.high.wrapping_add(pair.low.rotate_left(32))
    })
}

#[repr(C)]
pub(crate) struct Filter {
    words: Words,
    pages: usize,
    sizing: Sizing,
}

impl Filter {
    /// Returns an empty filter. The kernel backs it with the zero page until the first write.
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

    pub(crate) fn capacity(&self) -> u64 {
        self.sizing.capacity(self.pages)
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.words.size_bytes()
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    /// Word index at which the pair's page begins.
    #[inline(always)]
    pub(crate) fn page(&self, pair: &Pair) -> usize {
        page_of(pair, self.pages).wrapping_mul(PAGE_WORDS)
    }

    /// Returns the position of `pair` (F2).
    #[inline(always)]
    pub(crate) fn probe(&self, pair: &Pair) -> Probe {
        Probe { page: self.page(pair), lines: lines_of(pair) }
    }

    /// Returns the position of `pair` in this filter, given its `probe` in another filter.
    #[inline(always)]
    pub(crate) fn probe_resized(&self, pair: &Pair, probe: &Probe) -> Probe {
        Probe { page: self.page(pair), ..*probe }
    }

    /// Returns the first line of `pair`. The first line alone excludes most unset pairs.
    #[inline(always)]
    pub(crate) fn first_line(&self, pair: &Pair) -> &Line {
        self.line(self.page(pair).wrapping_add(pair.low as usize % LINES * LINE_WORDS))
    }

    #[inline(always)]
    pub(crate) fn prefetch(&self, probe: &Probe, side: usize) {
        self.words.prefetch(probe.line(side));
    }

    pub(crate) fn first(&self) -> &Line {
        self.line(0)
    }

    #[inline(always)]
    pub(crate) fn line(&self, first: usize) -> &Line {
        self.words.get(first..).and_then(<[AtomicU64]>::first_chunk).expect("a line of eight words")
    }

    #[inline(always)]
    pub(crate) fn contains(&self, pair: &Pair, probe: &Probe) -> bool {
        self.may_contain(pair, probe) && self.confirm_contains(pair, probe)
    }

    /// Whether the first line has the bits of the first h draws. This is false for 99 % of unset
    /// pairs.
    #[inline(always)]
    pub(crate) fn may_contain(&self, pair: &Pair, probe: &Probe) -> bool {
        has_draws(self.sizing.bits, self.line(probe.line(0)), draws(pair, 0))
    }

    /// Completes the test of a pair that passed [`Filter::may_contain`].
    #[inline]
    pub(crate) fn confirm_contains(&self, pair: &Pair, probe: &Probe) -> bool {
        let sides = [draws(pair, 0), draws(pair, 1)];
        has_draws(self.sizing.bits, self.line(probe.line(1)), sides[1])
            && (0..2).all(|side| self.has_repeats(probe, side, sides[side]))
    }

    /// Whether the bits that replace repeated draws are set.
    #[inline]
    fn has_repeats(&self, probe: &Probe, side: usize, draws: u64) -> bool {
        // Draws that all differ in their low six bits, or in their high six, are distinct. This
        // quick test succeeds for 95 % of the lines.
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

    pub(crate) fn set(&self, pair: &Pair, probe: &Probe) {
        for side in 0..2 {
            let line = self.line(probe.line(side));
            let mask = pattern(draws(pair, side), self.sizing.bits);
            for (word, mask) in line.iter().zip(mask) {
                // Most bits are already set. A load costs a tenth of an atomic OR, and the cache
                // line remains shared.
                if word.load(Relaxed) & mask != mask {
                    word.fetch_or(mask, Relaxed);
                }
            }
        }
    }

    /// Zeroes `count` words, starting at word `from`. Requires exclusive access (F1).
    pub(crate) fn clear(&mut self, from: usize, count: usize) {
        let end = from.saturating_add(count).min(self.words.len());
        self.words[from.min(end)..end].iter().for_each(|word| word.store(0, Relaxed));
    }

    pub(crate) fn ones(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Relaxed).count_ones())).sum()
    }
}

/// Returns the page number of `pair` in a filter with `pages` pages.
#[inline(always)]
pub(crate) fn page_of(pair: &Pair, pages: usize) -> usize {
    ((u128::from(pair.high) * pages as u128) >> 64) as usize
}

/// Returns the offset of the first word of each line in the pair's page.
#[inline(always)]
fn lines_of(pair: &Pair) -> [usize; 2] {
    let first = pair.low as usize % LINES;
    let apart = 1 + ((((pair.low >> 6) & 0xffff) * (LINES as u64 - 1)) >> 16) as usize;
    [first * LINE_WORDS, (first + apart) % LINES * LINE_WORDS]
}

/// Size of a page in bytes.
pub const PAGE_BYTES: usize = PAGE_WORDS * 8;

/// Returns the non-zero words of `pair` in its page: byte offset and mask.
fn masks(pair: &Pair, bits: usize) -> impl Iterator<Item = (usize, u64)> {
    (0..2).zip(lines_of(pair)).flat_map(move |(side, line)| {
        (line..)
            .zip(pattern(draws(pair, side), bits))
            .filter(|word| word.1 != 0)
            .map(|(word, mask)| (word * 8, mask))
    })
}

/// Whether the page has all bits of a pair with `bits` bits per line. The page is an array of
/// little-endian words, as in a file.
pub(crate) fn page_has(page: &[u8; PAGE_BYTES], pair: &Pair, bits: usize) -> bool {
    masks(pair, bits).all(|(at, mask)| crate::bytes::u64_at(page, at) & mask == mask)
}

pub(crate) fn page_set(page: &mut [u8; PAGE_BYTES], pair: &Pair, bits: usize) {
    for (at, mask) in masks(pair, bits) {
        let word = crate::bytes::u64_at(page, at) | mask;
        page[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
}

/// Returns the bit of `line` that the low nine bits of `draw` select, in bit 0. Higher bits of the
/// result are undefined.
#[inline(always)]
fn bit(line: &Line, draw: u64) -> u64 {
    line[draw as usize / 64 % LINE_WORDS].load(Relaxed) >> (draw % 64)
}

/// Whether the bits of the first `bits` draws are set. Tests all of them: an early exit would be an
/// unpredictable branch, which costs more than five loads from a cached line.
#[inline(always)]
fn has_draws(bits: usize, line: &Line, draws: u64) -> bool {
    (0..bits).fold(1, |all, i| all & bit(line, draws >> (9 * i))) & 1 == 1
}

/// Returns a bit mask of those among the first `number` pairs that their first lines do not
/// exclude. All filters must have at least `bits` bits per line.
pub(crate) fn seem_set<const N: usize>(
    bits: usize,
    number: usize,
    lines: &[&Line; N],
    draws: &[u64; N],
) -> u32 {
    // Constant bit counts let the compiler unroll the loop.
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

/// Number of draws that a lookup tests first. They exclude most unset pairs.
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

/// Returns the first `bits` distinct draws as a mask over a line.
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
        seed.pair(id, seed.prepare_member(&Member::Number(member)))
    }

    #[test]
    fn a_pair_has_distinct_bits_in_two_lines_of_one_page() {
        for bits in 1..=MAX_BITS {
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
        // All seven draws are bit 0, so `pattern` replaces six of them.
        assert_eq!(pattern(0, 7).view_bits::<Lsb0>().count_ones(), 7);
        // The bits that replace repeated draws are missing, so the lookup must test them.
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

    /// Compares the formula of `sizing` with measurements of full filters, for various shapes of
    /// ids and members.
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
                // The slack is four standard deviations of the count, plus a margin for the
                // variation between filters.
                let slack = 4.0 * expected.sqrt() + 0.03 * expected;
                assert!(
                    (yes - expected).abs() < slack,
                    "{name}, {rate}: {yes} positives, expected {expected}"
                );
            }
        }
    }
}
