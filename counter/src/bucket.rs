//! One bucket: a few cache lines of rows with a version, read by everybody without a lock, written by one at a time.
//!
//! ```text
//!   header:  bit 0    something went past: a row found no place here and went on to its next probe
//!            bit 1    locked: a writer is inside
//!            bit 2..  version, one more after every write
//! ```
//!
//! **Reading** (a sequence lock; Boehm, Can Seqlocks Get Along With Programming Language Memory Models?, 2012): take the first
//! word, read what you like with relaxed loads, fence, take the first word again; if it is locked or has changed, nothing that was
//! read counts, so read again. What is read in between may be torn, hence nothing that is read there may be trusted with
//! more than arithmetic. A writer is inside for some nanoseconds, so readers wait for nobody (promise 1).
//!
//! **Writing**: set the lock bit (compare and swap), store, clear it while raising the version. The 30 bits of the version come round
//! after 2^30 writes; a reader would have to sleep through exactly a multiple of that, inside one lookup.
//!
//! **B1** A slot's bits, outside its own writes, are never changed by writes to its neighbours: those read-modify-write words under
//! the same lock. **B2** An empty slot is all zero. **B3** The mark of bit 0 is never taken back: so a search that meets a
//! bucket without it may stop. (A rewrite of the table starts with fresh buckets.)

use crate::layout::{BUCKET_WORDS, Inline, Layout};
use crate::sync::{AtomicU64, fence, wait};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const PAST: u64 = 1;
const LOCKED: u64 = 2;
const VERSION_ONE: u64 = 4;
const HEADER: u64 = 0xFFFF_FFFF;

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;
/// The four lanes of the first word that are not header.
const FIRST_LANES: u64 = !HEADER;

/// A view of one bucket's words.
#[derive(Clone, Copy)]
pub(crate) struct Bucket<'a> {
    words: &'a [AtomicU64; BUCKET_WORDS],
    layout: &'a Layout,
}

/// The high bit of every byte of `x` that is zero, exactly.
#[inline(always)]
fn zero_bytes(x: u64) -> u64 {
    !(((x & !HIGH_BITS) + !HIGH_BITS) | x) & HIGH_BITS
}

impl<'a> Bucket<'a> {
    #[inline(always)]
    pub(crate) fn new(words: &'a [AtomicU64], layout: &'a Layout) -> Bucket<'a> {
        let Ok(words) = words.try_into() else { panic!("B0: a bucket has {BUCKET_WORDS} words, not {}", words.len()) };
        Bucket { words, layout }
    }

    /// Reads consistently: runs `f`, again if a writer came in between, and returns what it made of an untorn bucket, with the
    /// mark "something went past".
    #[inline(always)]
    pub(crate) fn read<R>(self, mut f: impl FnMut(Bucket<'a>) -> R) -> (R, bool) {
        let mut turn = 0;
        loop {
            let before = self.words[0].load(Acquire);
            if before & LOCKED == 0 {
                let result = f(self);
                fence(Acquire);
                if self.words[0].load(Relaxed) == before {
                    return (result, before & PAST != 0);
                }
            }
            wait(turn);
            turn += 1;
        }
    }

    /// Runs `f` as the only writer of this bucket. `f` must not wait for anything.
    pub(crate) fn write<R>(self, f: impl FnOnce(Bucket<'a>) -> R) -> R {
        let mut turn = 0;
        loop {
            let word = self.words[0].load(Relaxed);
            if word & LOCKED == 0 && self.words[0].compare_exchange_weak(word, word | LOCKED, Acquire, Relaxed).is_ok()
            {
                break;
            }
            wait(turn);
            turn += 1;
        }
        // Whoever sees a store of `f` sees the lock, too.
        fence(Release);
        let result = f(self);
        let word = self.words[0].load(Relaxed) & !LOCKED;
        let header = (word & HEADER).wrapping_add(VERSION_ONE) & HEADER;
        self.words[0].store((word & !HEADER) | header, Release);
        result
    }

    /// Notes that a row finds no place here. Under [`Bucket::write`].
    pub(crate) fn mark_past(self) {
        self.words[0].store(self.words[0].load(Relaxed) | PAST, Relaxed);
    }

    #[inline(always)]
    fn bits(self, at: u32, width: u32) -> u64 {
        let (word, shift) = (at as usize / 64, at % 64);
        let low = self.words[word % BUCKET_WORDS].load(Relaxed) >> shift;
        // Where the bits end in this word, what comes from the next (or, at the very end, first) one is masked away.
        let high = self.words[word.wrapping_add(1) % BUCKET_WORDS].load(Relaxed) << 1 << (63 - shift);
        (low | high) & (u64::MAX >> (64u32.wrapping_sub(width) & 63))
    }

    fn set_bits(self, at: u32, width: u32, value: u64) {
        let (word, shift) = (at as usize / 64, at % 64);
        let mask = u64::MAX >> (64 - width);
        let low = self.words[word].load(Relaxed);
        self.words[word].store((low & !(mask << shift)) | (value << shift), Relaxed);
        if shift + width > 64 {
            let high = self.words[word + 1].load(Relaxed);
            self.words[word + 1].store((high & !(mask >> (64 - shift))) | (value >> (64 - shift)), Relaxed);
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

    /// The slots whose first byte is `byte`, as bits, for a bucket of at most 60 slots. Without a branch that depends on data: which
    /// word a match is in cannot be predicted.
    #[inline(always)]
    fn matches(self, byte: u8) -> u64 {
        let pattern = u64::from(byte) * LOW_BITS;
        let mut slots = 0;
        for word in self.words[..self.layout.byte_words.min(8)].iter().rev() {
            let lanes = zero_bytes(word.load(Relaxed) ^ pattern);
            // Gathers the high bit of byte i into bit i.
            slots = (slots << 8) | ((lanes >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56);
        }
        (slots >> 4) & self.layout.slot_mask
    }

    /// The slots whose first byte is `byte`, and for which `is` holds: the first of them.
    #[inline(always)]
    fn search(self, byte: u8, mut is: impl FnMut(usize) -> bool) -> Option<usize> {
        if self.layout.byte_words <= 8 {
            let mut slots = self.matches(byte);
            while slots != 0 {
                let slot = slots.trailing_zeros() as usize;
                if is(slot) {
                    return Some(slot);
                }
                slots &= slots - 1;
            }
            return None;
        }
        self.search_wide(byte, is)
    }

    /// [`Bucket::search`] for buckets of more slots, which narrow rows have.
    fn search_wide(self, byte: u8, mut is: impl FnMut(usize) -> bool) -> Option<usize> {
        let pattern = u64::from(byte) * LOW_BITS;
        let last = self.layout.byte_words - 1;
        for word in 0..=last {
            let mut lanes = zero_bytes(self.words[word].load(Relaxed) ^ pattern);
            if word == 0 {
                lanes &= FIRST_LANES;
            }
            if word == last {
                lanes &= self.layout.last_lanes;
            }
            while lanes != 0 {
                let slot = word * 8 + lanes.trailing_zeros() as usize / 8 - 4;
                if is(slot) {
                    return Some(slot);
                }
                lanes &= lanes - 1;
            }
        }
        None
    }

    /// Some slots that may have this tag: their first bytes are equal. Looks at the first bytes only. Returns the second parts' first bits.
    #[inline(always)]
    pub(crate) fn candidates(self, tag: u64, mut f: impl FnMut(u32)) -> bool {
        let mut any = false;
        self.search(tag as u8, |slot| {
            any = true;
            f(self.rest_at(slot));
            false
        });
        any
    }

    /// Whether something went past, without a version.
    #[inline(always)]
    pub(crate) fn is_past(self) -> bool {
        self.words[0].load(Relaxed) & PAST != 0
    }

    /// The whole second part of a slot, if it fits in a word.
    #[inline(always)]
    pub(crate) fn rest(self, slot: usize) -> Option<u64> {
        (self.layout.rest_bits <= 64).then(|| self.bits(self.rest_at(slot), self.layout.rest_bits.max(1)))
    }

    /// The slot with this tag.
    #[inline(always)]
    pub(crate) fn find(self, tag: u64) -> Option<usize> {
        let rest = tag >> 8;
        self.search(tag as u8, |slot| self.tag_rest(slot) == rest)
    }

    /// An empty slot.
    pub(crate) fn free_slot(self) -> Option<usize> {
        self.search(0, |slot| (self.tag_rest(slot) << 8) >> self.layout.remainder_bits == 0)
    }

    /// The slot's remainder and probe number; `None` if it is empty.
    pub(crate) fn tag(self, slot: usize) -> Option<(u64, u64)> {
        let byte = self.bits(32 + 8 * slot as u32, 8);
        let tag = byte | (self.tag_rest(slot) << 8);
        let state = tag >> self.layout.remainder_bits;
        state.checked_sub(1).map(|probe| (tag & ((1 << self.layout.remainder_bits) - 1), probe))
    }

    /// What a field holds: its value, or the escape.
    #[inline(always)]
    pub(crate) fn field(self, slot: usize, inline: Inline) -> u64 {
        self.bits(self.rest_at(slot).wrapping_add(inline.offset), inline.width)
    }

    /// Under [`Bucket::write`].
    pub(crate) fn set_field(self, slot: usize, inline: Inline, value: u64) {
        self.set_bits(self.rest_at(slot) + inline.offset, inline.width, value);
    }

    /// Takes an empty slot for a row; its fields are 0 (B2). Under [`Bucket::write`].
    pub(crate) fn occupy(self, slot: usize, tag: u64) {
        self.set_bits(32 + 8 * slot as u32, 8, tag & 0xFF);
        if self.layout.tag_rest_bits > 0 {
            self.set_bits(self.rest_at(slot), self.layout.tag_rest_bits, tag >> 8);
        }
    }

    /// Takes an empty slot for a row with these fields ([`Layout::pack`]), as the bucket's only user.
    #[inline]
    pub(crate) fn fill(self, slot: usize, tag: u64, fields: u64) {
        self.set_bits(32 + 8 * slot as u32, 8, tag & 0xFF);
        self.set_bits(self.rest_at(slot), self.layout.rest_bits, (tag >> 8) | fields);
    }

    /// Empties a slot. Under [`Bucket::write`].
    pub(crate) fn vacate(self, slot: usize) {
        self.set_bits(32 + 8 * slot as u32, 8, 0);
        let (mut at, end) = (self.rest_at(slot), self.rest_at(slot + 1));
        while at < end {
            let width = (end - at).min(64);
            self.set_bits(at, width, 0);
            at += width;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::schema::Schema;
    use std::collections::HashMap;

    fn words() -> Vec<AtomicU64> {
        (0..BUCKET_WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn zero_bytes_are_found_exactly() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..100_000 {
            let bytes: [u8; 8] = std::array::from_fn(|_| [0, 1, 0x7F, 0x80, 0xFF, rng.u8(..)][rng.usize(0..6)]);
            let expected: [u8; 8] = bytes.map(|b| if b == 0 { 0x80 } else { 0 });
            assert_eq!(zero_bytes(u64::from_le_bytes(bytes)), u64::from_le_bytes(expected), "{bytes:?}");
        }
    }

    /// Random rows come and go in one bucket, against a map; after every step all of it is compared (B1, B2).
    #[test]
    fn a_bucket_keeps_rows_apart() {
        for (seed, (text, remainder_bits)) in
            [("a:12 b:8 c:8 d:16", 17), ("a:1", 5), ("a:64 b:64 c:3", 60), ("a:5 b:33", 6)].into_iter().enumerate()
        {
            let mut rng = fastrand::Rng::with_seed(seed as u64);
            let layout = Layout::new(&Schema::parse(text).unwrap(), remainder_bits);
            let words = words();
            let bucket = Bucket::new(&words, &layout);
            let inlines: Vec<Inline> = layout.fields.iter().flatten().copied().collect();
            let mut model: HashMap<u64, Vec<u64>> = HashMap::new();
            for step in 0..20_000 {
                let tag = layout.tag(rng.u64(0..(1 << remainder_bits)) % 300, rng.u64(0..crate::key::PROBES));
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
                            inlines.iter().zip(&values).for_each(|(&i, &v)| b.set_field(slot, i, v));
                        });
                        model.insert(tag, values);
                    }
                }
                if step % 16 == 0 {
                    let rows = (0..layout.slots).filter_map(|slot| {
                        let (remainder, probe) = bucket.tag(slot)?;
                        let values = inlines.iter().map(|&i| bucket.field(slot, i)).collect();
                        Some((layout.tag(remainder, probe), values))
                    });
                    assert_eq!(rows.collect::<HashMap<_, _>>(), model, "seed {seed} step {step}");
                }
            }
        }
    }
}

/// Every interleaving of a reader with writers, as far as loom follows them.
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
            // Rows so wide that a bucket has two, and a row's two fields lie in different words.
            let layout = Layout::new(&Schema::parse("a:64 b:64").expect("a schema"), 8);
            Arc::new(Shared { words: (0..BUCKET_WORDS).map(|_| AtomicU64::new(0)).collect(), layout })
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
            let read = |b: Bucket<'_>| b.find(tag).map(|s| (b.field(s, self.field(0)), b.field(s, self.field(1))));
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
