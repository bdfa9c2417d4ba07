//! A segment: a fixed number of buckets, probed by double hashing.
//!
//! A row is stored in the first bucket of its probe sequence that had a free slot when the row
//! arrived. All buckets before it carry the row's overflow mark. A search therefore stops at the
//! row or at a bucket without the mark.

use crate::Error;
use crate::bucket::{Bucket, PackedWords, TagMatch, match_tags};
use crate::budget::{Quota, Reservation};
use crate::key::{Home, Keys, PROBES};
use crate::layout::Layout;
use crate::prefetch_trace::{self, Step};
use crate::schema::Schema;
use crate::sizing::Sizing;
use rolling::Words;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(crate) struct Buckets {
    pub(crate) keys: Keys,
    pub(crate) layout: Layout,
    words: Words,
    pub(crate) rows: AtomicU64,
    /// Position of slot 0 of bucket 0 within the table.
    pub(crate) first_position: u64,
    reservation: Reservation,
}

/// Result of a search in one segment.
pub(crate) enum BucketLookup<R> {
    Found(R),
    Absent,
    /// Every probed bucket has the mark: the row may be in the next segment.
    Overflowed,
}

impl Buckets {
    pub(crate) fn new(
        sizing: &Sizing,
        schema: &Schema,
        seed: u64,
        first_position: u64,
        quota: &Quota,
    ) -> Result<Buckets, Error> {
        let layout = Layout::new(schema, sizing.remainder_bits);
        if first_position + sizing.buckets * layout.slots as u64 >= 1 << 32 {
            return Err(quota.full());
        }
        // One word of padding: a reader loads a word and its successor unconditionally.
        let words = sizing.buckets as usize * layout.words + 1;
        let reservation =
            quota.take(Buckets::fixed_bytes(schema) + Words::bytes_of(words) as u64)?;
        Ok(Buckets {
            keys: Keys::new(sizing.base, sizing.buckets, sizing.remainder_bits, seed),
            layout,
            words: Words::zeroed(words).map_err(|_| Error::NoMemory)?,
            rows: AtomicU64::new(0),
            first_position,
            reservation,
        })
    }

    /// Returns the number of bytes that do not depend on the number of buckets.
    fn fixed_bytes(schema: &Schema) -> u64 {
        (size_of::<Buckets>() + schema.width() * Layout::FIELD_BYTES) as u64
    }

    #[inline(always)]
    pub(crate) fn bucket(&self, index: u64) -> Bucket<'_> {
        self.note(Step::Read, index);
        let at = (index as usize).wrapping_mul(self.layout.words);
        Bucket::new(
            &self.words[at..at.wrapping_add(self.layout.words).wrapping_add(1)],
            &self.layout,
        )
    }

    #[inline(always)]
    fn note(&self, step: fn(usize) -> Step, index: u64) {
        if cfg!(debug_assertions) {
            prefetch_trace::note(|| {
                step(
                    self.words.as_ptr().addr().wrapping_add(index as usize * self.layout.words * 8),
                )
            });
        }
    }

    /// Returns a bucket of the usual size and one word of padding. For a wide layout, these are
    /// only the first words of the bucket.
    #[inline(always)]
    pub(crate) fn narrow(&self, index: u64) -> Option<&PackedWords> {
        self.words.get((index as usize).wrapping_mul(self.layout.words)..)?.first_chunk()
    }

    /// Calls [`match_tags`] for bucket `index`. The layout must keep all first bytes in one cache
    /// line.
    #[inline(always)]
    pub(crate) fn match_tags(&self, index: u64, byte: u8) -> TagMatch {
        self.note(Step::Read, index);
        self.narrow(index)
            .map_or_else(TagMatch::default, |words| match_tags(words, &self.layout, byte))
    }

    /// Prefetches all lines of a bucket. A slot and its first byte are usually in different cache
    /// lines; prefetching both overlaps the two misses.
    #[inline(always)]
    pub(crate) fn prefetch(&self, index: u64) {
        self.note(Step::Asked, index);
        let at = (index as usize).wrapping_mul(self.layout.words);
        self.words.prefetch_lines::<2>(at);
        if self.layout.words > 16 {
            self.words.prefetch_lines::<2>(at.wrapping_add(16));
        }
    }

    pub(crate) fn slots(&self) -> u64 {
        self.keys.buckets() * self.layout.slots as u64
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.reservation.bytes()
    }

    #[inline(always)]
    pub(crate) fn position(&self, bucket: u64, slot: usize) -> u64 {
        self.first_position
            .wrapping_add(bucket.wrapping_mul(self.layout.slots as u64))
            .wrapping_add(slot as u64)
    }

    /// Runs `f(bucket, bucket number, slot)` on the row of `home`, repeating it after a concurrent
    /// write.
    #[inline(always)]
    pub(crate) fn look<'a, R>(
        &'a self,
        home: Home,
        mut f: impl FnMut(Bucket<'a>, u64, usize) -> R,
    ) -> BucketLookup<R> {
        let (mut index, mut step) = (home.bucket, 0);
        for probe in 0..PROBES {
            let tag = self.layout.tag(home.remainder, probe);
            self.prefetch(index);
            let (found, head) =
                self.bucket(index).read(|b| b.find(tag).map(|slot| f(b, index, slot)));
            if let Some(result) = found {
                return BucketLookup::Found(result);
            }
            if !head.has_overflow_mark(home.remainder) {
                return BucketLookup::Absent;
            }
            if step == 0 {
                step = self.keys.step(home.remainder);
            }
            index = self.keys.next(index, step);
        }
        BucketLookup::Overflowed
    }

    /// Claims a slot for a row that is absent, and lets `fill` write the fields. Returns `false` if
    /// all probed buckets are full.
    pub(crate) fn claim(&self, home: Home, mut fill: impl FnMut(Bucket<'_>, u64)) -> bool {
        let (mut index, step) = (home.bucket, self.keys.step(home.remainder));
        for probe in 0..PROBES {
            let bucket = self.bucket(index);
            let (free, head) = bucket.read(|b| b.free_slot().is_some());
            // A full bucket that already has the mark need not be locked.
            let done = (free || !head.has_overflow_mark(home.remainder))
                && bucket.write(|b| match b.free_slot() {
                    Some(slot) => {
                        b.occupy(slot, self.layout.tag(home.remainder, probe));
                        fill(b, self.position(index, slot));
                        true
                    }
                    None => {
                        b.set_overflow_mark(home.remainder);
                        false
                    }
                });
            if done {
                self.rows.fetch_add(1, Relaxed);
                return true;
            }
            index = self.keys.next(index, step);
        }
        false
    }
}
