//! Hash function for keys of cold rows and pairs, used by the cache and the pins.
//!
//! Clients choose ids, so the hash is keyed to prevent collision attacks. The hash function
//! multiplies each word of a key by a secret and combines both halves of the product. It takes a
//! third of the time of SipHash.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;

static SECRETS: LazyLock<[u64; 3]> = LazyLock::new(|| {
    let random = RandomState::new();
    [0, 1, 2].map(|number: u64| random.hash_one(number))
});

/// Builds hashers with the secrets of this process.
#[derive(Clone)]
pub struct KeyHash([u64; 3]);

impl Default for KeyHash {
    fn default() -> KeyHash {
        KeyHash(*SECRETS)
    }
}

impl BuildHasher for KeyHash {
    type Hasher = KeyHasher;

    #[inline]
    fn build_hasher(&self) -> KeyHasher {
        let [state, a, b] = self.0;
        KeyHasher { state, a, b }
    }
}

/// Hasher of a key.
pub struct KeyHasher {
    state: u64,
    a: u64,
    b: u64,
}

impl Hasher for KeyHasher {
    /// Keys consist of integers, so this method is not on the hot path.
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.state = folded(self.state ^ word, self.a);
    }

    #[inline]
    fn write_u128(&mut self, word: u128) {
        self.state = folded(self.state ^ word as u64, self.b ^ (word >> 64) as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        folded(self.state, self.a)
    }
}

#[inline]
fn folded(x: u64, secret: u64) -> u64 {
    let product = u128::from(x).wrapping_mul(u128::from(secret));
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cold::cache::Key;

    /// Hashes collide only as often as random numbers do, for adjacent and distant ids, ids of
    /// several files, and pairs.
    #[test]
    fn names_are_spread() {
        const PLACES: usize = 1 << 16;
        let mut random = fastrand::Rng::with_seed(7);
        let names: [(&str, Vec<Key>); 5] = [
            ("in a row", (0..1 << 16).map(|id| (7, id)).collect()),
            ("apart", (0..1 << 16).map(|id| (7, id << 22)).collect()),
            ("far apart", (0..1 << 16).map(|id| (7, id << 48)).collect()),
            ("of files", (0..1 << 16).map(|id| (id as u64 % 256, id / 256)).collect()),
            ("pairs", (0..1 << 16).map(|_| (7, random.u128(..))).collect()),
        ];
        let hash = KeyHash::default();
        for (what, names) in names {
            for shift in [0, 16, 32, 48] {
                let mut used = vec![0u32; PLACES];
                for name in &names {
                    used[(hash.hash_one(name) >> shift) as usize % PLACES] += 1;
                }
                let empty = used.iter().filter(|&&names| names == 0).count() as f64;
                let most = used.iter().max().copied().unwrap_or(0);
                // A Poisson distribution with mean 1 leaves 1/e of the slots empty.
                let share = empty / PLACES as f64;
                assert!(
                    (share - 0.368).abs() < 0.02 && most < 16,
                    "{what} {shift}: {share} {most}"
                );
            }
        }
    }
}
