//! Exact set of pairs that are set in a table's filters but deleted.
//!
//! A Bloom filter cannot delete a pair. A deletion adds the pair to this set instead, and a later
//! write removes it from the set. A lookup consults the set only after the filters report the pair
//! as set. The set is dropped with its table.
//!
//! The set has many shards. A reader waits for at most one insertion, or for the growth of one
//! shard (a thousandth of the set). The shards are allocated on the first deletion.

use crate::filter::page_of;
use crate::hash::Pair;
use hashbrown::HashSet;
use parking_lot::RwLock;
use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const SHARDS: usize = 1024;
/// Number of shards of a set that is rarely modified. A space may have thousands of such sets.
const COLD_TABLE_SHARDS: usize = 16;

pub(crate) type Hashes = HashSet<u128, PairHashHasher>;

/// Returns the heap bytes of `sets` non-empty hash sets with `hashes` entries in total. A set has
/// 17 bytes per bucket (16 and a tag) plus 16 tags. The bucket count is a power of two at a load of
/// at most 7/8.
pub(crate) fn bytes_of(sets: usize, hashes: usize) -> usize {
    let places = (hashes.div_ceil(sets.max(1)) * 8).div_ceil(7).next_power_of_two().max(4);
    sets * (places * 17 + 16)
}

/// Hasher that returns the lower half of a pair hash.
#[derive(Clone, Copy, Default)]
pub(crate) struct PairHashHasher(u64);

impl BuildHasher for PairHashHasher {
    type Hasher = PairHashHasher;
    fn build_hasher(&self) -> PairHashHasher {
        PairHashHasher(0)
    }
}

impl Hasher for PairHashHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("only u128 is hashed")
    }
    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

pub(crate) struct DeletedPairs {
    /// Number of shards that the first insertion allocates.
    most_shards: usize,
    shards: OnceLock<Box<[RwLock<Hashes>]>>,
    /// Number of pairs plus reservations.
    len: AtomicUsize,
}

impl Default for DeletedPairs {
    fn default() -> DeletedPairs {
        DeletedPairs { most_shards: SHARDS, shards: OnceLock::new(), len: AtomicUsize::new(0) }
    }
}

impl DeletedPairs {
    /// Returns a set with few shards, for a cold table.
    pub(crate) fn small() -> DeletedPairs {
        DeletedPairs { most_shards: COLD_TABLE_SHARDS, ..DeletedPairs::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(SeqCst)
    }

    pub(crate) fn size_bytes(&self) -> usize {
        let of = |shards: usize| {
            shards * size_of::<RwLock<Hashes>>() + bytes_of(self.len().min(shards), self.len())
        };
        self.shards.get().map_or(0, |shards| of(shards.len()))
    }

    fn shard(&self, hash: u128) -> Option<&RwLock<Hashes>> {
        self.shards.get().map(|shards| &shards[shard_of(hash, shards.len())])
    }

    #[inline]
    pub(crate) fn contains(&self, hash: u128) -> bool {
        self.len() > 0 && self.shard(hash).is_some_and(|shard| shard.read().contains(&hash))
    }

    /// Reserves room for one pair. Returns `false` if the set already has `most` pairs. The caller
    /// must then insert a pair or [release](DeletedPairs::release) the reservation.
    pub(crate) fn reserve(&self, most: usize) -> bool {
        let room = |len: usize| len.checked_add(1).filter(|&len| len <= most);
        self.len.fetch_update(SeqCst, SeqCst, room).is_ok()
    }

    pub(crate) fn release(&self) {
        self.len.fetch_sub(1, SeqCst);
    }

    pub(crate) fn insert_reserved(&self, hash: u128) {
        let shards =
            self.shards.get_or_init(|| (0..self.most_shards).map(|_| RwLock::default()).collect());
        if !shards[shard_of(hash, shards.len())].write().insert(hash) {
            self.release();
        }
    }

    /// Inserts `hash` without a limit. Returns whether it was absent.
    pub(crate) fn insert(&self, hash: u128) -> bool {
        self.reserve(usize::MAX);
        let before = self.contains(hash);
        self.insert_reserved(hash);
        !before
    }

    /// Removes `hash` and shrinks the shard if it has become much smaller. Returns whether it was
    /// present.
    pub(crate) fn remove(&self, hash: u128) -> bool {
        let Some(shard) = self.shard(hash).filter(|_| self.len() > 0) else { return false };
        let mut shard = shard.write();
        let removed = shard.remove(&hash);
        if removed {
            self.release();
            if shard.capacity() > 4 * shard.len() + 4 {
                let twice = 2 * shard.len();
                shard.shrink_to(twice);
            }
        }
        removed
    }

    /// Calls `f` for all pairs, one shard at a time. May miss concurrent changes.
    pub(crate) fn for_each(&self, mut f: impl FnMut(u128)) {
        for shard in self.shards.get().into_iter().flatten() {
            let hashes: Vec<u128> = shard.read().iter().copied().collect();
            hashes.into_iter().for_each(&mut f);
        }
    }
}

fn shard_of(hash: u128, shards: usize) -> usize {
    page_of(&Pair::from_hash(0, hash), shards)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_bounded_set() {
        let revoked = DeletedPairs::default();
        assert!(!revoked.contains(1) && !revoked.remove(1));
        assert_eq!(revoked.size_bytes(), 0);
        for hash in [1, 2, 2 << 64, 1] {
            assert!(revoked.reserve(4));
            revoked.insert_reserved(hash);
        }
        assert_eq!(revoked.len(), 3, "inserting an existing pair releases its reservation");
        assert!(revoked.reserve(4));
        assert!(!revoked.reserve(4));
        revoked.release();
        let mut all = vec![];
        revoked.for_each(|hash| all.push(hash));
        all.sort_unstable();
        assert_eq!(all, [1, 2, 2 << 64]);
        assert!(revoked.remove(2) && !revoked.remove(2));
        assert!(revoked.contains(1) && !revoked.contains(2) && revoked.contains(2 << 64));
        assert_eq!(revoked.len(), 2);
    }

    /// Regression: sets that had shrunk retained memory without reporting it.
    #[test]
    fn what_a_larger_set_took_is_given_back() {
        let mut rng = fastrand::Rng::with_seed(1);
        let hashes: Vec<u128> = (0..100_000).map(|_| rng.u128(..)).collect();
        for left in [10_000, 100, 1, 0] {
            let revoked = DeletedPairs::small();
            let taken = allocation_counter::measure(|| {
                hashes.iter().for_each(|&hash| assert!(revoked.insert(hash)));
                hashes[left..].iter().for_each(|&hash| assert!(revoked.remove(hash)));
            });
            let (taken, told) = (taken.bytes_current.unsigned_abs() as usize, revoked.size_bytes());
            assert!(taken < 4 * told, "{taken} bytes allocated for {left}, {told} reported");
        }
    }
}
