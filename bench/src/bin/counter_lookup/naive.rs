//! The first peer: what one writes down first. 17-byte slots (id, four u16 counters, state) in one
//! array, `h1 + N * h2` slot by slot. Batched, and prefetched in the same way as ours.

use crate::{BATCH, mix};
use rolling::Words;
use std::sync::atomic::Ordering::Relaxed;

/// See the top of the file.
pub(crate) struct Naive {
    words: Words,
    pub(crate) slots: u64,
}

impl Naive {
    const SLOT_BITS: u64 = 136;

    /// Empty, in so many bytes.
    pub(crate) fn new(bytes: u64) -> std::io::Result<Naive> {
        let most = bytes * 8 / Naive::SLOT_BITS;
        // A prime number: else some ways come round after a few slots, and where all of these are
        // taken an absent id is looked for without end.
        let is_prime = |n: &u64| (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
        let slots = (1..=most).rev().find(is_prime).unwrap_or(1);
        Ok(Naive { words: Words::zeroed(bytes as usize / 8 + 4)?, slots })
    }

    fn bits(&self, at: u64) -> u64 {
        let (word, shift) = ((at / 64) as usize, at % 64);
        (self.words[word].load(Relaxed) >> shift)
            | (self.words[word + 1].load(Relaxed) << 1 << (63 - shift))
    }

    fn set(&self, at: u64, width: u64, value: u64) {
        for bit in (0..width).step_by(8) {
            let (word, shift) = (((at + bit) / 64) as usize, (at + bit) % 64);
            let byte = (value >> bit) & 0xFF;
            let old = self.words[word].load(Relaxed);
            self.words[word].store((old & !(0xFF << shift)) | (byte << shift), Relaxed);
        }
    }

    fn first(&self, id: u64) -> (u64, u64) {
        let hash = mix(id);
        let reduce = |x: u64, n: u64| ((u128::from(x) * u128::from(n)) >> 64) as u64;
        (reduce(hash, self.slots), 1 + reduce(mix(hash), self.slots - 1))
    }

    pub(crate) fn insert(&self, id: u64, row: u64) {
        let (mut slot, step) = self.first(id);
        while self.bits(slot * Naive::SLOT_BITS + 128) & 0xFF != 0 {
            slot = (slot + step) % self.slots;
        }
        let at = slot * Naive::SLOT_BITS;
        self.set(at, 64, id);
        self.set(at + 64, 64, row);
        self.set(at + 128, 8, 1);
    }

    pub(crate) fn get_batch(&self, ids: &[u64], out: &mut Vec<Option<u64>>) {
        let mut firsts = [(0, 0); BATCH];
        for (first, &id) in firsts.iter_mut().zip(ids) {
            *first = self.first(id);
            let word = (first.0 * Naive::SLOT_BITS / 64) as usize;
            self.words.prefetch(word);
            self.words.prefetch(word + 2);
        }
        out.clear();
        for (&(first, step), &id) in firsts.iter().zip(ids) {
            let mut slot = first;
            out.push(loop {
                let at = slot * Naive::SLOT_BITS;
                if self.bits(at + 128) & 0xFF == 0 {
                    break None;
                }
                if self.bits(at) == id {
                    break Some(self.bits(at + 64));
                }
                slot += step;
                if slot >= self.slots {
                    slot -= self.slots;
                }
            });
        }
    }
}
