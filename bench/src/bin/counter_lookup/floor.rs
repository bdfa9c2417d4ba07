//! What memory alone takes: the lines that our table would touch, fetched in the same order, and
//! nothing looked up in them.

use crate::{BATCH, mix};
use rolling::Words;
use std::sync::atomic::Ordering::Relaxed;

const BUCKET_WORDS: usize = 16;

/// As many bytes as the table, all touched.
pub(crate) struct Floor {
    words: Words,
    buckets: u64,
}

impl Floor {
    pub(crate) fn new(bytes: u64) -> std::io::Result<Floor> {
        let words = Words::zeroed(bytes as usize / 8)?;
        words.iter().zip(1..).for_each(|(word, i)| word.store(mix(i), Relaxed));
        let buckets = words.len() as u64 / BUCKET_WORDS as u64;
        Ok(Floor { words, buckets })
    }

    fn prefetch(&self, hash: u64) -> usize {
        let bucket = ((u128::from(hash) * u128::from(self.buckets)) >> 64) as usize;
        self.words.prefetch(bucket * BUCKET_WORDS);
        self.words.prefetch(bucket * BUCKET_WORDS + 8);
        bucket * BUCKET_WORDS
    }

    /// Writes to both lines of a bucket.
    pub(crate) fn write(&self, hash: u64) {
        let at = self.prefetch(hash);
        for word in [at, at + 8] {
            self.words[word].store(self.words[word].load(Relaxed).wrapping_add(1), Relaxed);
        }
    }

    fn read(&self, at: usize) -> u64 {
        self.words[at].load(Relaxed) ^ self.words[at + 8].load(Relaxed)
    }

    /// Both lines of one bucket per id, all asked for first; then both lines of a second one for
    /// some, whose place depends on what was read. `buckets_per_row`: how many a lookup touches in
    /// the mean, 1 to 2.
    pub(crate) fn fetch_batch(&self, ids: &[u64], buckets_per_row: f64) -> u64 {
        let onward = ((buckets_per_row - 1.0) * 65_536.0) as u64;
        let (mut places, mut seconds) = ([0; BATCH], [0; 2 * BATCH]);
        let (mut sum, mut more) = (0, 0);
        for (place, &id) in places.iter_mut().zip(ids) {
            *place = self.prefetch(mix(id));
        }
        for &place in &places[..ids.len()] {
            let read = self.read(place);
            sum ^= read;
            seconds[more] = read;
            more += usize::from(read & 0xFFFF < onward);
        }
        let mut places = [0; BATCH];
        for (place, &read) in places.iter_mut().zip(&seconds[..more]) {
            *place = self.prefetch(mix(read));
        }
        for &place in &places[..more] {
            sum ^= self.read(place);
        }
        sum
    }
}
