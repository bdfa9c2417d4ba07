//! A bucket: a few cache lines of rows, protected by a version number. Readers take no lock;
//! writers exclude each other.
//!
//! ```text
//!   header:  bit  0       lock, held by a writer
//!            bits 1..24   version, incremented by every write
//!            bits 24..40  overflow marks, by the low four bits of the remainder: a row with these
//!                         bits found the bucket full and moved on to its next probe
//! ```
//!
//! **Overflow marks.** When a table is closed, nearly half of its buckets have been full when a row
//! arrived. A single mark per bucket would send nearly half of all misses to the next probe;
//! sixteen marks send one in ten (docs/performance/journal.md).
//!
//! **Reading** is a sequence lock (Boehm, Can Seqlocks Get Along With Programming Language Memory
//! Models?, 2012). A reader loads the first word, reads with relaxed loads, fences, and loads the
//! first word again. If the bucket is locked or its version has changed, the reader starts over.
//! The values may be torn until that check, so the reader only does arithmetic on them. A writer
//! holds the lock for nanoseconds.
//!
//! **Writing** sets the lock bit by compare-and-swap, stores, then clears the bit and increments
//! the version. The 23-bit version wraps after 2^23 writes. A reader would miss a change only if
//! the bucket received an exact multiple of 2^23 writes during one lookup.
//!
//! Invariants:
//! - **B1** A write to one slot leaves the bits of all other slots unchanged. Shared words are
//!   read, modified and written under the same lock.
//! - **B2** An empty slot is all zeros.
//! - **B3** Marks are never cleared, so the search for a row may stop at a bucket without the row's
//!   mark. A rewrite copies the rows to new buckets without marks.

use crate::layout::{HEADER_BITS, Inline, Layout, NARROW_BUCKET_WORDS, Packed};
use crate::sync::{AtomicU64, fence, wait};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const LOCKED: u64 = 1;
const VERSION_ONE: u64 = 2;
const VERSION: u64 = (1 << MARKS_SHIFT) - VERSION_ONE;
const MARKS_SHIFT: u32 = 24;
/// Number of overflow marks in a bucket.
pub(crate) const OVERFLOW_MARKS: u32 = HEADER_BITS - MARKS_SHIFT;

#[derive(Clone, Copy)]
pub(crate) struct Bucket<'a> {
    /// The words of the bucket and one word of padding, whose bits are always masked off.
    words: &'a [AtomicU64],
    layout: &'a Layout,
}

/// Snapshot of the first word of a bucket.
#[derive(Clone, Copy)]
pub(crate) struct BucketHead(u64);

impl BucketHead {
    /// Returns whether a row with this remainder may be stored at a later probe.
    #[inline(always)]
    pub(crate) fn has_overflow_mark(self, remainder: u64) -> bool {
        // `remainder` may also be a tag, whose low bits are the remainder.
        self.0 >> (MARKS_SHIFT + (remainder as u32 & (OVERFLOW_MARKS - 1))) & 1 != 0
    }

    /// Returns how many of the [`OVERFLOW_MARKS`] are set.
    pub(crate) fn marks(self) -> u32 {
        ((self.0 >> MARKS_SHIFT) as u16).count_ones()
    }
}

/// Words of a bucket of [packed](Layout::packed) rows, and one word of padding.
pub(crate) type PackedWords = [AtomicU64; NARROW_BUCKET_WORDS + 1];

#[inline(always)]
fn equal_bytes<const N: usize>(words: &[AtomicU64; N], byte: u8) -> u64 {
    rolling::equal_bytes(std::array::from_fn::<u64, N, _>(|i| words[i].load(Relaxed)), byte)
}

/// Like [`equal_bytes`], for a full cache line. Not inlined, so that callers that do not need this
/// function do not spill registers for it.
#[inline(never)]
fn equal_in_line(words: &[AtomicU64], byte: u8) -> u64 {
    words.first_chunk::<8>().map_or(0, |words| equal_bytes(words, byte))
}

#[derive(Clone, Copy, Default)]
pub(crate) struct TagMatch {
    head: u64,
    matches: Matches,
}

impl TagMatch {
    /// Returns true if the first byte matches no slot. In this case the row is absent, even if a
    /// write was in progress.
    #[inline(always)]
    pub(crate) fn is_empty(self) -> bool {
        self.matches.is_empty()
    }

    /// The first word at the time of the match.
    #[inline(always)]
    pub(crate) fn head(self) -> BucketHead {
        BucketHead(self.head)
    }
}

/// Finds the slots whose first byte is `byte`, for layouts that keep all first bytes in one cache
/// line.
#[inline(always)]
pub(crate) fn match_tags(words: &PackedWords, layout: &Layout, byte: u8) -> TagMatch {
    let head = words[0].load(Acquire);
    let load = |i: usize| if i == 0 { head } else { words[i].load(Relaxed) };
    let equal = if layout.byte_words <= 4 {
        rolling::equal_bytes(std::array::from_fn::<u64, 4, _>(load), byte)
    } else {
        equal_in_line(words, byte)
    };
    TagMatch { head, matches: Matches(equal & layout.lanes[0]) }
}

/// Reads the row with this tag from the first candidate slot of `seen`, which must not be empty.
///
/// Returns whether `out` is valid: the slot has the tag, no writer has changed the bucket since
/// [`match_tags`], and no field is escaped. This function has no data-dependent branches and never
/// waits for a writer.
#[inline(always)]
pub(crate) fn take(
    words: &PackedWords,
    layout: &Layout,
    packed: &Packed,
    tag: u64,
    seen: TagMatch,
    out: &mut [i64],
) -> bool {
    debug_assert!(!seen.is_empty(), "no matching slot");
    let at =
        layout.rest_at.wrapping_add((seen.matches.first(0) as u32).wrapping_mul(layout.rest_bits));
    let (word, shift) = (at as usize / 64 % NARROW_BUCKET_WORDS, at % 64);
    // Bits beyond the tail are masked off.
    let rest =
        (words[word].load(Relaxed) >> shift) | (words[word + 1].load(Relaxed) << 1 << (63 - shift));
    fence(Acquire);
    let changed = (words[0].load(Relaxed) ^ seen.head) | (seen.head & LOCKED);
    packed.fill(rest, out);
    // At most one slot has this tag.
    (changed | ((rest ^ (tag >> 8)) & layout.tag_rest_mask) == 0) & packed.is_whole(rest)
}

impl<'a> Bucket<'a> {
    /// `words` contains the words of the bucket, followed by one word of padding.
    #[inline(always)]
    pub(crate) fn new(words: &'a [AtomicU64], layout: &'a Layout) -> Bucket<'a> {
        Bucket { words, layout }
    }

    #[inline(always)]
    pub(crate) fn head(self) -> BucketHead {
        BucketHead(self.words[0].load(Relaxed))
    }

    /// Runs `f` on a consistent bucket, repeating it after a concurrent write. Returns the result
    /// and the first word.
    #[inline(always)]
    pub(crate) fn read<R>(self, mut f: impl FnMut(Bucket<'a>) -> R) -> (R, BucketHead) {
        let mut turn = 0;
        loop {
            let before = self.words[0].load(Acquire);
            if before & LOCKED == 0 {
                let result = f(self);
                fence(Acquire);
                if self.words[0].load(Relaxed) == before {
                    return (result, BucketHead(before));
                }
            }
            wait(turn);
            turn += 1;
        }
    }

    /// Runs `f` as the only writer of this bucket. `f` must not block.
    pub(crate) fn write<R>(self, f: impl FnOnce(Bucket<'a>) -> R) -> R {
        let mut turn = 0;
        loop {
            let word = self.words[0].load(Relaxed);
            if word & LOCKED == 0
                && self.words[0]
                    .compare_exchange_weak(word, word | LOCKED, Acquire, Relaxed)
                    .is_ok()
            {
                break;
            }
            wait(turn);
            turn += 1;
        }
        // Order the lock before the stores of `f`, so that a reader that sees a store also sees the
        // lock.
        fence(Release);
        let result = f(self);
        let word = self.words[0].load(Relaxed);
        let version = word.wrapping_add(VERSION_ONE) & VERSION;
        self.words[0].store((word & !(VERSION | LOCKED)) | version, Release);
        result
    }

    /// Sets the overflow mark for this remainder. Requires [`Bucket::write`].
    pub(crate) fn set_overflow_mark(self, remainder: u64) {
        let mark = 1 << (MARKS_SHIFT + (remainder as u32 & (OVERFLOW_MARKS - 1)));
        self.words[0].store(self.words[0].load(Relaxed) | mark, Relaxed);
    }

    #[inline(always)]
    fn bits(self, at: u32, width: u32) -> u64 {
        let (word, shift) = (at as usize / 64, at % 64);
        let low = self.words[word].load(Relaxed) >> shift;
        // The mask below removes bits of the next word that do not belong to the value.
        let high = self.words[word.wrapping_add(1)].load(Relaxed) << 1 << (63 - shift);
        (low | high) & (u64::MAX >> (64u32.wrapping_sub(width) & 63))
    }

    fn set_bits(self, at: u32, width: u32, value: u64) {
        let (word, shift) = (at as usize / 64, at % 64);
        let mask = u64::MAX >> (64 - width);
        let low = self.words[word].load(Relaxed);
        self.words[word].store((low & !(mask << shift)) | (value << shift), Relaxed);
        if shift + width > 64 {
            let high = self.words[word + 1].load(Relaxed);
            self.words[word + 1]
                .store((high & !(mask >> (64 - shift))) | (value >> (64 - shift)), Relaxed);
        }
    }

    #[inline(always)]
    fn rest_at(self, slot: usize) -> u32 {
        self.layout.rest_at.wrapping_add((slot as u32).wrapping_mul(self.layout.rest_bits))
    }

    #[inline(always)]
    fn tag_rest(self, slot: usize) -> u64 {
        match self.layout.tag_rest_bits {
            0 => 0,
            width => self.bits(self.rest_at(slot), width),
        }
    }

    /// Returns the slots of the bucket's line `line` whose first byte is `byte`. This function has
    /// no data-dependent branches, because the position of a match is unpredictable.
    #[inline(always)]
    pub(crate) fn matches(self, byte: u8, line: usize) -> Matches {
        let words = &self.words[8 * line..];
        // Comparing four words unconditionally is cheaper than a loop over the exact number.
        let equal = match words.first_chunk::<4>() {
            Some(words) if self.layout.byte_words <= 4 => equal_bytes(words, byte),
            _ => equal_in_line(words, byte),
        };
        Matches(equal & self.layout.lanes[line])
    }

    /// Returns the first slot whose first byte is `byte` and that satisfies `is`.
    #[inline(always)]
    fn search(self, byte: u8, mut is: impl FnMut(usize) -> bool) -> Option<usize> {
        for line in 0..self.layout.byte_lines {
            let mut matches = self.matches(byte, line);
            while let Some(slot) = matches.next(line) {
                if is(slot) {
                    return Some(slot);
                }
            }
        }
        None
    }

    /// Returns the tail of a slot, for layouts that are [packed](Layout::packed).
    #[inline(always)]
    pub(crate) fn rest(self, slot: usize) -> u64 {
        self.bits(self.rest_at(slot), self.layout.rest_bits)
    }

    /// Whether a slot has this tag, given that its first byte matches.
    #[inline(always)]
    pub(crate) fn is(self, slot: usize, tag: u64) -> bool {
        self.tag_rest(slot) == tag >> 8
    }

    #[inline(always)]
    pub(crate) fn find(self, tag: u64) -> Option<usize> {
        self.search(tag as u8, |slot| self.is(slot, tag))
    }

    /// Returns an empty slot.
    pub(crate) fn free_slot(self) -> Option<usize> {
        self.search(0, |slot| (self.tag_rest(slot) << 8) >> self.layout.remainder_bits == 0)
    }

    #[inline(always)]
    fn byte_at(slot: usize) -> u32 {
        HEADER_BITS + 8 * slot as u32
    }

    /// Returns the remainder and the probe number in a slot, or `None` if the slot is empty.
    pub(crate) fn tag(self, slot: usize) -> Option<(u64, u64)> {
        let byte = self.bits(Bucket::byte_at(slot), 8);
        let tag = byte | (self.tag_rest(slot) << 8);
        let state = tag >> self.layout.remainder_bits;
        state.checked_sub(1).map(|probe| (tag & ((1 << self.layout.remainder_bits) - 1), probe))
    }

    /// Returns the stored bits of a field: its value or the escape code.
    #[inline(always)]
    pub(crate) fn field(self, slot: usize, inline: Inline) -> u64 {
        self.bits(self.rest_at(slot).wrapping_add(inline.offset), inline.width)
    }

    /// Stores the bits of a field: its value or the escape code. Requires [`Bucket::write`].
    pub(crate) fn set_field(self, slot: usize, inline: Inline, value: u64) {
        self.set_bits(self.rest_at(slot) + inline.offset, inline.width, value);
    }

    /// Assigns an empty slot to a row whose fields are all 0 (B2). Requires [`Bucket::write`].
    pub(crate) fn occupy(self, slot: usize, tag: u64) {
        self.set_bits(Bucket::byte_at(slot), 8, tag & 0xFF);
        if self.layout.tag_rest_bits > 0 {
            self.set_bits(self.rest_at(slot), self.layout.tag_rest_bits, tag >> 8);
        }
    }

    /// Assigns an empty slot to a row with the fields of [`Layout::pack`]. The caller has exclusive
    /// access to the bucket.
    #[inline]
    pub(crate) fn fill(self, slot: usize, tag: u64, fields: u64) {
        self.set_bits(Bucket::byte_at(slot), 8, tag & 0xFF);
        self.set_bits(self.rest_at(slot), self.layout.rest_bits, (tag >> 8) | fields);
    }

    /// Empties a slot. Requires [`Bucket::write`].
    pub(crate) fn vacate(self, slot: usize) {
        self.set_bits(Bucket::byte_at(slot), 8, 0);
        let (mut at, end) = (self.rest_at(slot), self.rest_at(slot + 1));
        while at < end {
            let width = (end - at).min(64);
            self.set_bits(at, width, 0);
            at += width;
        }
    }
}

/// Candidate slots of one cache line: a bitmap of first bytes, by byte position in the line.
#[derive(Clone, Copy, Default)]
pub(crate) struct Matches(u64);

impl Matches {
    #[inline(always)]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the first candidate; the result is meaningless if there is no candidate.
    #[inline(always)]
    fn first(self, line: usize) -> usize {
        // The lanes exclude header bytes, so the subtraction does not wrap.
        (64 * line + self.0.trailing_zeros() as usize).wrapping_sub(HEADER_BITS as usize / 8)
    }

    /// Removes the first candidate and returns it.
    #[inline(always)]
    pub(crate) fn next(&mut self, line: usize) -> Option<usize> {
        let first = (!self.is_empty()).then(|| self.first(line));
        self.0 &= self.0.wrapping_sub(1);
        first
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::schema::Schema;
    use std::collections::HashMap;

    fn words(layout: &Layout) -> Vec<AtomicU64> {
        (0..=layout.words).map(|_| AtomicU64::new(0)).collect()
    }

    /// Inserts and deletes random rows and compares the whole bucket with a map (B1, B2).
    #[test]
    fn a_bucket_keeps_rows_apart() {
        for (seed, (text, remainder_bits)) in
            [("a:12 b:8 c:8 d:16", 17), ("a:1", 5), ("a:64 b:64 c:3", 60), ("a:5 b:33", 6)]
                .into_iter()
                .enumerate()
        {
            let mut rng = fastrand::Rng::with_seed(seed as u64);
            let layout = Layout::new(&Schema::parse(text).unwrap(), remainder_bits);
            let words = words(&layout);
            let bucket = Bucket::new(&words, &layout);
            let inlines: Vec<Inline> = layout.fields.iter().flatten().copied().collect();
            let mut model: HashMap<u64, Vec<u64>> = HashMap::new();
            let steps = if cfg!(miri) { 48 } else { 20_000 };
            let (mut taken, mut missed) = (0, 0);
            for step in 0..steps {
                let tag = layout
                    .tag(rng.u64(0..(1 << remainder_bits)) % 300, rng.u64(0..crate::key::PROBES));
                let found = bucket.find(tag);
                assert_eq!(found.is_some(), model.contains_key(&tag), "seed {seed} step {step}");
                let values: Vec<u64> = inlines.iter().map(|i| rng.u64(..) & i.escape()).collect();
                match (found, rng.bool()) {
                    (Some(slot), true) => {
                        bucket.write(|b| b.vacate(slot));
                        model.remove(&tag);
                    }
                    (found, _) => {
                        let Some(slot) = found.or(bucket.free_slot()) else {
                            assert_eq!(model.len(), layout.slots);
                            continue;
                        };
                        bucket.write(|b| {
                            if found.is_none() {
                                assert!(inlines.iter().all(|&i| b.field(slot, i) == 0), "B2");
                                b.occupy(slot, tag);
                            }
                            inlines
                                .iter()
                                .zip(&values)
                                .for_each(|(&i, &v)| b.set_field(slot, i, v));
                        });
                        model.insert(tag, values);
                    }
                }
                if let (Some(packed), 1) = (&layout.packed, layout.byte_lines) {
                    let mut out = vec![9; packed.width()];
                    let narrow = words.first_chunk().unwrap();
                    let seen = match_tags(narrow, &layout, tag as u8);
                    let found =
                        !seen.is_empty() && take(narrow, &layout, packed, tag, seen, &mut out);
                    let escaped =
                        |values: &[u64]| inlines.iter().zip(values).any(|(i, &v)| v == i.escape());
                    match model.get(&tag) {
                        Some(values) if found => {
                            assert!(!escaped(values), "seed {seed} step {step}");
                            assert!(
                                out.iter().zip(values).all(|(&o, &v)| o as u64 == v),
                                "seed {seed} step {step}"
                            );
                            taken += 1;
                        }
                        row => {
                            assert!(
                                !found && (row.is_none() || !seen.is_empty()),
                                "seed {seed} step {step}"
                            );
                            missed += u32::from(row.is_some_and(|values| !escaped(values)));
                        }
                    }
                }
                if step % 16 == 0 || step + 1 == steps {
                    let rows = (0..layout.slots).filter_map(|slot| {
                        let (remainder, probe) = bucket.tag(slot)?;
                        let values = inlines.iter().map(|&i| bucket.field(slot, i)).collect();
                        Some((layout.tag(remainder, probe), values))
                    });
                    assert_eq!(rows.collect::<HashMap<_, _>>(), model, "seed {seed} step {step}");
                }
            }
            assert!(taken >= missed * 10, "seed {seed}: {taken} direct reads, {missed} retries");
        }
    }

    /// Compares every bit of a bucket with the diagram in `layout.rs`. The expected offsets are
    /// sums of widths, independent of `Layout`.
    #[test]
    fn a_bucket_is_packed_as_its_picture_says() {
        use bitvec::prelude::*;
        for (seed, (text, widths, remainder_bits)) in [
            ("a:12 b:8 c:8 d:16", &[12, 8, 8, 16][..], 17),
            ("a:1", &[1], 5),
            ("a:64 b:64 c:3", &[64, 64, 3], 60),
            ("a:5 b:33", &[5, 33], 6),
            ("a:7 b:64 c:1 d:9", &[7, 64, 1, 9], 11),
        ]
        .into_iter()
        .enumerate()
        {
            let mut rng = fastrand::Rng::with_seed(100 + seed as u64);
            let layout = Layout::new(&Schema::parse(text).unwrap(), remainder_bits);
            let words = words(&layout);
            let bucket = Bucket::new(&words, &layout);
            let inlines: Vec<Inline> = layout.fields.iter().flatten().copied().collect();
            let (header, slots) = (40, layout.slots);
            // The tag is the remainder and three state bits; its low byte is at the beginning of
            // the bucket.
            let tag_rest = (remainder_bits as usize + 3).saturating_sub(8);
            let rest = tag_rest + widths.iter().sum::<usize>();
            let mut picture = bitvec![u64, Lsb0; 0; 64 * layout.words];
            for step in 0..if cfg!(miri) { 20 } else { 3_000 } {
                let slot = rng.usize(0..slots);
                let first_byte = header + 8 * slot;
                let mut at = header + 8 * slots + rest * slot;
                bucket.write(|b| b.vacate(slot));
                picture[first_byte..first_byte + 8].fill(false);
                picture[at..at + rest].fill(false);
                if rng.u32(0..4) > 0 {
                    let remainder = rng.u64(0..1 << remainder_bits);
                    let tag = layout.tag(remainder, rng.u64(0..crate::key::PROBES));
                    let values: Vec<u64> =
                        inlines.iter().map(|i| rng.u64(..) & i.escape()).collect();
                    bucket.write(|b| {
                        b.occupy(slot, tag);
                        inlines.iter().zip(&values).for_each(|(&i, &v)| b.set_field(slot, i, v));
                    });
                    picture[first_byte..first_byte + 8].store_le(tag & 0xFF);
                    if tag_rest > 0 {
                        picture[at..at + tag_rest].store_le(tag >> 8);
                    }
                    at += tag_rest;
                    for (&width, value) in widths.iter().zip(values) {
                        picture[at..at + width].store_le(value);
                        at += width;
                    }
                }
                let held: Vec<u64> = words.iter().map(|word| word.load(Relaxed)).collect();
                let held = &held.view_bits::<Lsb0>()[..picture.len()];
                assert_eq!(held[header..], picture[header..], "{text}, step {step}, slot {slot}");
            }
        }
    }

    /// Between [`match_tags`] and [`take`], another row whose tag has the same upper bits takes
    /// over the slot.
    #[test]
    fn another_row_in_the_same_slot_is_not_taken() {
        let layout = Layout::new(&Schema::parse("a:12 b:8 c:8 d:16").unwrap(), 17);
        let words = words(&layout);
        let bucket = Bucket::new(&words, &layout);
        let (tag, other) = (layout.tag(0x0AB12, 0), layout.tag(0x0AB34, 0));
        let mut out = [9; 4];
        let narrow = words.first_chunk().unwrap();
        let mut look =
            |seen| take(narrow, &layout, layout.packed.as_ref().unwrap(), tag, seen, &mut out);
        bucket.write(|b| b.occupy(0, tag));
        let seen = match_tags(narrow, &layout, tag as u8);
        assert!(look(seen));
        bucket.write(|b| b.vacate(0));
        bucket.write(|b| b.occupy(0, other));
        assert!(!look(seen));
    }
}

/// Explores every interleaving of a reader and writers under loom.
#[cfg(all(test, loom))]
mod interleavings {
    use super::*;
    use crate::schema::Schema;
    use loom::sync::Arc;

    struct Shared {
        words: Vec<AtomicU64>,
        layout: Layout,
    }

    impl Shared {
        fn new() -> Arc<Shared> {
            // Two slots per bucket, and the two fields of a row in different words.
            let layout = Layout::new(&Schema::parse("a:64 b:64").expect("a schema"), 8);
            Arc::new(Shared {
                words: (0..=layout.words).map(|_| AtomicU64::new(0)).collect(),
                layout,
            })
        }

        fn bucket(&self) -> Bucket<'_> {
            Bucket::new(&self.words, &self.layout)
        }

        fn field(&self, i: usize) -> Inline {
            self.layout.inline(i).expect("a field")
        }

        fn put(&self, tag: u64, value: u64) {
            self.bucket().write(|b| {
                let slot = b.find(tag).or_else(|| {
                    let slot = b.free_slot()?;
                    b.occupy(slot, tag);
                    Some(slot)
                });
                let slot = slot.expect("room");
                b.set_field(slot, self.field(0), value);
                b.set_field(slot, self.field(1), value);
            });
        }

        fn get(&self, tag: u64) -> Option<(u64, u64)> {
            let read = |b: Bucket<'_>| {
                b.find(tag).map(|s| (b.field(s, self.field(0)), b.field(s, self.field(1))))
            };
            self.bucket().read(read).0
        }
    }

    fn check(f: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = None;
        let runs = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let count = runs.clone();
        model.check(move || {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            f();
        });
        eprintln!("{} interleavings", runs.load(std::sync::atomic::Ordering::Relaxed));
    }

    #[test]
    fn a_reader_never_sees_half_a_write() {
        check(|| {
            let shared = Shared::new();
            let tag = shared.layout.tag(5, 0);
            shared.put(tag, 6);
            let reader = {
                let shared = shared.clone();
                loom::thread::spawn(move || shared.get(tag))
            };
            shared.put(tag, 7);
            let seen = reader.join().expect("reader");
            assert!(seen == Some((6, 6)) || seen == Some((7, 7)), "torn: {seen:?}");
            assert_eq!(shared.get(tag), Some((7, 7)));
        });
    }

    /// The tail of each row spans two words.
    #[test]
    fn what_is_taken_is_never_half_a_write() {
        check(|| {
            let layout = Layout::new(&Schema::parse("a:20 b:20").expect("a schema"), 8);
            let words = (0..=layout.words).map(|_| AtomicU64::new(0)).collect();
            let shared = Arc::new(Shared { words, layout });
            let tag = shared.layout.tag(5, 0);
            shared.put(shared.layout.tag(9, 0), 1);
            shared.put(tag, 6);
            let reader = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    let (words, packed) =
                        (shared.words.first_chunk(), shared.layout.packed.as_ref());
                    let mut out = [9, 9];
                    let (words, packed) = (words.expect("words"), packed.expect("packed"));
                    let seen = match_tags(words, &shared.layout, tag as u8);
                    assert!(!seen.is_empty(), "the row always exists");
                    take(words, &shared.layout, packed, tag, seen, &mut out).then_some(out)
                })
            };
            shared.put(tag, (1 << 19) | 7);
            let seen = reader.join().expect("reader");
            let whole = [6, (1 << 19) | 7].map(|value| [value, value]);
            assert!(seen.is_none_or(|seen| whole.contains(&seen)), "torn: {seen:?}");
        });
    }

    #[test]
    fn two_writers_keep_each_others_rows() {
        check(|| {
            let shared = Shared::new();
            let tags = [shared.layout.tag(5, 0), shared.layout.tag(9, 1)];
            let writer = {
                let shared = shared.clone();
                loom::thread::spawn(move || shared.put(tags[0], u64::MAX))
            };
            shared.put(tags[1], 1);
            writer.join().expect("writer");
            assert_eq!(shared.get(tags[0]), Some((u64::MAX, u64::MAX)));
            assert_eq!(shared.get(tags[1]), Some((1, 1)));
        });
    }
}
