//! The aux dictionary of a table: exact values of fields that exceed their width.
//!
//! An entry is one word: position, field, and a value below 2^26 - 1. Larger and negative values
//! are rare and go to an ordered map, `wide_values`. A common entry uses ten bytes at the typical
//! load factor.
//!
//! ```text
//!   bit 63                          26                      0
//!   | 2 + (position * 64 + field)   |  value, or all ones   |   0: never used  1 << 26: deleted
//! ```
//!
//! Each array is a hash table with linear probing. Readers take no lock; the version of the row's
//! bucket protects them. Entries of a row change only while the row's bucket is locked, so a reader
//! that sees a partial change retries. Changes to *other* rows never disturb a reader: entries do
//! not move within an array, and growth copies the entries to a new array while readers finish in
//! the old array.
//!
//! Writers lock a shard before they lock any bucket. Growth happens in [`Shard::reserve`], so no
//! reader waits for it. Shards are small and grow in microseconds.
//!
//! Invariants:
//! - **A1** An entry is stored between its home and the first never-used word.
//! - **A2** Every stored entry was reserved, so a write cannot fail once it has begun.

use crate::Error;
use crate::budget::{Quota, Reservation};
use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const VALUE_BITS: u32 = 26;
const VALUE_MASK: u64 = (1 << VALUE_BITS) - 1;
/// Marks a value that is in `wide_values`.
const WIDE_VALUE_MARK: u64 = VALUE_MASK;
const UNUSED: u64 = 0;
const DELETED: u64 = 1 << VALUE_BITS;
/// Accounted bytes of a wide value: key, value, and a share of tree nodes that are two thirds full.
const WIDE_VALUE_BYTES: u64 = 40;
/// Accounted bytes of an array in addition to its words.
const ARRAY_BYTES: u64 = 64;
const SLOTS_PER_SHARD: u64 = 1 << 16;
const MIN_WORDS: usize = 16;

pub(crate) struct Aux {
    shards: Box<[ShardData]>,
    /// Number of entries whose field has no inline bits in this table. While the number is 0,
    /// readers skip the lookup for such fields.
    outside: AtomicU64,
    quota: Quota,
    _grant: Reservation,
}

struct ShardData {
    array: ArcSwap<Array>,
    counts: Mutex<Counts>,
    wide_values: Mutex<WideValues>,
}

struct WideValues {
    values: BTreeMap<u64, i64>,
    /// Reservation for all stored values. While the shard is locked, the reservation also covers
    /// values that the current write reserves or removes.
    reservation: Reservation,
}

#[derive(Default)]
struct Counts {
    live: usize,
    deleted: usize,
}

struct Array {
    words: Box<[AtomicU64]>,
    _grant: Reservation,
}

fn is_wide_value(value: i64) -> bool {
    value < 0 || value as u64 >= WIDE_VALUE_MARK
}

fn key_of(position: u64, field: usize) -> u64 {
    assert!(position >> 32 == 0 && field < 64, "position {position} field {field}");
    (position << 6) | field as u64
}

impl Array {
    /// Creates an array of `len` words; `reservation` covers its bytes.
    fn new(len: usize, reservation: Reservation) -> Arc<Array> {
        Arc::new(Array {
            words: (0..len).map(|_| AtomicU64::new(UNUSED)).collect(),
            _grant: reservation,
        })
    }

    fn bytes_of(len: usize) -> u64 {
        len as u64 * 8 + ARRAY_BYTES
    }

    /// Returns index and content of the entry of `key`.
    fn find(&self, key: u64) -> Option<(usize, u64)> {
        let len = self.words.len();
        let mut at = self.home(key);
        // By A1 the loop ends at an unused word. The bound is for readers: their search must also
        // end while writers of other rows keep changing the array.
        for _ in 0..len {
            let word = self.words[at].load(Relaxed);
            if word >> VALUE_BITS == key + 2 {
                return Some((at, word));
            }
            if word == UNUSED {
                return None;
            }
            at = if at + 1 == len { 0 } else { at + 1 };
        }
        None
    }

    fn home(&self, key: u64) -> usize {
        let hash = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = (hash ^ (hash >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        ((u128::from(hash) * self.words.len() as u128) >> 64) as usize
    }

    /// Stores a new entry in the first free word. Returns whether that word held a deleted entry.
    fn insert(&self, word: u64) -> bool {
        let mut at = self.home((word >> VALUE_BITS) - 2);
        loop {
            let old = self.words[at].load(Relaxed);
            if old == UNUSED || old == DELETED {
                self.words[at].store(word, Relaxed);
                return old == DELETED;
            }
            at = (at + 1) % self.words.len();
        }
    }
}

impl Aux {
    pub(crate) fn new(slots: u64, quota: &Quota) -> Result<Aux, Error> {
        let shards = (slots / SLOTS_PER_SHARD).next_power_of_two().min(256);
        let reservation = quota.take(shards * size_of::<ShardData>() as u64)?;
        let shards = (0..shards).map(|_| {
            Ok(ShardData {
                array: ArcSwap::new(Array::new(0, quota.take(Array::bytes_of(0))?)),
                counts: Mutex::default(),
                wide_values: Mutex::new(WideValues {
                    values: BTreeMap::new(),
                    reservation: quota.take(0)?,
                }),
            })
        });
        let shards = shards.collect::<Result<_, Error>>()?;
        Ok(Aux { shards, outside: AtomicU64::new(0), quota: quota.clone(), _grant: reservation })
    }

    /// Returns the shard of a row. The shard depends on the hash of the id, because a writer locks
    /// the shard before it knows the row's position.
    fn data(&self, hash: u64) -> &ShardData {
        &self.shards[(hash >> 32) as usize & (self.shards.len() - 1)]
    }

    fn read(&self, hash: u64, position: u64, field: usize) -> Option<i64> {
        let shard = self.data(hash);
        let key = key_of(position, field);
        let (_, word) = shard.array.load().find(key)?;
        match word & VALUE_MASK {
            WIDE_VALUE_MARK => shard.wide_values.lock().values.get(&key).copied(),
            value => Some(value as i64),
        }
    }

    /// Returns the value of an entry. The caller must check the version of the row's bucket
    /// afterwards: a missing entry means a torn read, and reads as 0.
    #[cold]
    pub(crate) fn value(&self, hash: u64, position: u64, field: usize) -> i64 {
        self.read(hash, position, field).unwrap_or(0)
    }

    /// Returns whether the dictionary has an entry for any field without inline bits in this table.
    #[inline]
    pub(crate) fn has_non_inline_entries(&self) -> bool {
        self.outside.load(Relaxed) != 0
    }

    /// Number of entries, and the bytes of the dictionary.
    pub(crate) fn size(&self) -> (u64, u64) {
        self.shards.iter().fold((0, 0), |(entries, bytes), shard| {
            let live = shard.counts.lock().live as u64;
            let wide_values = shard.wide_values.lock().values.len() as u64;
            let array = Array::bytes_of(shard.array.load().words.len());
            (
                entries + live,
                bytes + size_of::<ShardData>() as u64 + array + wide_values * WIDE_VALUE_BYTES,
            )
        })
    }

    /// Locks the shard that holds the entries of all rows with this hash.
    pub(crate) fn lock(&self, hash: u64) -> Shard<'_> {
        let data = self.data(hash);
        Shard { data, counts: data.counts.lock(), has_excess_reservation: false, aux: self }
    }
}

pub(crate) struct Shard<'a> {
    data: &'a ShardData,
    counts: MutexGuard<'a, Counts>,
    /// Whether the reservation for wide values may exceed the stored values.
    has_excess_reservation: bool,
    aux: &'a Aux,
}

impl Shard<'_> {
    /// Reserves memory for `cells`, so that storing them cannot fail. `position` is the position of
    /// the row, if it exists; its existing entries need no further memory. The caller must not hold
    /// a bucket lock.
    pub(crate) fn reserve(
        &mut self,
        position: Option<u64>,
        cells: impl Iterator<Item = (usize, i64)>,
    ) -> Result<(), Error> {
        let array = self.data.array.load();
        let len = array.words.len();
        let (mut needed, mut wide_values) = (self.counts.live, 0);
        for (field, value) in cells {
            let old = position
                .and_then(|position| array.find(key_of(position, field)))
                .map(|(_, word)| word);
            needed += usize::from(old.is_none());
            wide_values += u64::from(
                is_wide_value(value) && old.is_none_or(|word| word & VALUE_MASK != WIDE_VALUE_MARK),
            );
        }
        if wide_values > 0 {
            let reservation = self.aux.quota.take(wide_values * WIDE_VALUE_BYTES)?;
            self.data.wide_values.lock().reservation.absorb(reservation);
            self.has_excess_reservation = true;
        }
        // One word in eight stays unused so that searches terminate (A1).
        if needed + self.counts.deleted <= len - len / 8 {
            return Ok(());
        }
        let len = (needed + needed / 4 + needed / 8).max(MIN_WORDS);
        let reservation = self.aux.quota.take(Array::bytes_of(len))?;
        self.rebuild(len, reservation);
        Ok(())
    }

    fn rebuild(&mut self, len: usize, reservation: Reservation) {
        let array = Array::new(len, reservation);
        for word in &self.data.array.load().words {
            let word = word.load(Relaxed);
            if word != UNUSED && word != DELETED {
                array.insert(word);
            }
        }
        self.counts.deleted = 0;
        self.data.array.store(array);
    }

    /// Stores a value. The caller has reserved memory for the value and holds the lock of the row's
    /// bucket.
    pub(crate) fn put(&mut self, position: u64, field: usize, value: i64, outside: bool) {
        let key = key_of(position, field);
        let array = self.data.array.load();
        let old = array.find(key);
        let was_giant = old.is_some_and(|(_, word)| word & VALUE_MASK == WIDE_VALUE_MARK);
        let small = if is_wide_value(value) { WIDE_VALUE_MARK } else { value as u64 };
        if is_wide_value(value) {
            let wide_values = &mut *self.data.wide_values.lock();
            wide_values.values.insert(key, value);
            assert!(
                wide_values.values.len() as u64 * WIDE_VALUE_BYTES
                    <= wide_values.reservation.bytes(),
                "A2: large value without a reservation"
            );
        } else if was_giant {
            self.remove_wide_value(key);
        }
        let word = ((key + 2) << VALUE_BITS) | small;
        match old {
            Some((at, _)) => array.words[at].store(word, Relaxed),
            None => {
                let reused = array.insert(word);
                self.counts.live += 1;
                self.counts.deleted -= usize::from(reused);
                if outside {
                    self.aux.outside.fetch_add(1, Relaxed);
                }
            }
        }
    }

    /// Removes a wide value. The shard keeps the reservation until it is unlocked, because the same
    /// write may need it again (A2).
    fn remove_wide_value(&mut self, key: u64) {
        self.has_excess_reservation |= self.data.wide_values.lock().values.remove(&key).is_some();
    }

    /// Deletes an entry, if it exists. The caller holds the lock of the row's bucket.
    pub(crate) fn remove(&mut self, position: u64, field: usize, outside: bool) {
        let key = key_of(position, field);
        let array = self.data.array.load();
        let Some((at, old)) = array.find(key) else { return };
        if old & VALUE_MASK == WIDE_VALUE_MARK {
            self.remove_wide_value(key);
        }
        array.words[at].store(DELETED, Relaxed);
        self.counts.live -= 1;
        self.counts.deleted += 1;
        if outside {
            self.aux.outside.fetch_sub(1, Relaxed);
        }
        // If the next word was never used, no search continues past this word (A1).
        let len = array.words.len();
        let mut at = at;
        if array.words[(at + 1) % len].load(Relaxed) == UNUSED {
            while array.words[at].load(Relaxed) == DELETED {
                array.words[at].store(UNUSED, Relaxed);
                self.counts.deleted -= 1;
                at = (at + len - 1) % len;
            }
        }
    }

    /// Shrinks the array after many deletions. The caller holds no bucket lock.
    pub(crate) fn settle(&mut self) {
        let len = self.data.array.load().words.len();
        if len > 4 * MIN_WORDS && self.counts.live < len / 4 {
            let len = self.counts.live + self.counts.live / 4 + MIN_WORDS;
            // Charge the memory without a check, because the rebuild frees more than it allocates.
            self.rebuild(len, self.aux.quota.charge(Array::bytes_of(len)));
        }
    }
}

impl Drop for Shard<'_> {
    fn drop(&mut self) {
        if self.has_excess_reservation {
            let wide_values = &mut *self.data.wide_values.lock();
            wide_values.reservation.shrink_to(wide_values.values.len() as u64 * WIDE_VALUE_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use std::collections::HashMap;

    fn bytes_with(words: usize) -> u64 {
        size_of::<ShardData>() as u64 + 2 * ARRAY_BYTES + 8 * words as u64
    }

    #[test]
    fn entries_against_a_map() {
        let (seeds, wave) = if cfg!(miri) { (1, 150) } else { (20, 4000) };
        for seed in 0..seeds {
            let mut rng = fastrand::Rng::with_seed(seed);
            let budget = Budget::new(u64::MAX);
            let aux = Aux::new(200_000, &budget.quota(0)).unwrap();
            let mut model: HashMap<(u64, usize), i64> = HashMap::new();
            for step in 0..5 * wave {
                // Alternate between growth and shrinkage.
                let (position, field) = (rng.u64(0..500), rng.usize(0..3));
                let mut shard = aux.lock(position << 32);
                if rng.usize(0..100) < if step / wave % 2 == 0 { 70 } else { 25 } {
                    let value =
                        [5, 1 << 26, (1 << 26) - 2, -1, i64::MAX, i64::MIN, rng.i64(0..100)]
                            [rng.usize(0..7)];
                    shard.reserve(Some(position), [(field, value)].into_iter()).unwrap();
                    shard.put(position, field, value, field == 2);
                    model.insert((position, field), value);
                } else {
                    shard.remove(position, field, field == 2);
                    shard.settle();
                    model.remove(&(position, field));
                }
                drop(shard);
                let (position, field) = (rng.u64(0..500), rng.usize(0..3));
                assert_eq!(
                    aux.read(position << 32, position, field),
                    model.get(&(position, field)).copied(),
                    "seed {seed} step {step}"
                );
            }
            assert_eq!(aux.size().0, model.len() as u64);
            assert_eq!(aux.has_non_inline_entries(), model.keys().any(|k| k.1 == 2));
            assert_eq!(aux.size().1, budget.used(), "every byte is counted, seed {seed}");
            for (position, field) in model.into_keys() {
                let mut shard = aux.lock(position << 32);
                shard.remove(position, field, field == 2);
                shard.settle();
            }
            let (entries, bytes) = aux.size();
            let least = aux.shards.len()
                * (4 * MIN_WORDS * 8 + size_of::<ShardData>() + ARRAY_BYTES as usize);
            assert!(
                entries == 0 && bytes <= least as u64,
                "deleted values use no memory, seed {seed}: {bytes}"
            );
        }
    }

    #[test]
    fn a_giant_is_changed_without_memory() {
        // The empty array exists until the first entry is stored.
        let budget = Budget::new(bytes_with(MIN_WORDS) + WIDE_VALUE_BYTES);
        let aux = Aux::new(1, &budget.quota(0)).unwrap();
        let mut shard = aux.lock(0);
        shard.reserve(None, [(0, -1)].into_iter()).unwrap();
        shard.put(5, 0, -1, false);
        budget.set_limit(budget.used());
        assert!(shard.reserve(None, [(1, -1)].into_iter()).is_err());
        // One write reserves several values of the same field, wide and narrow.
        shard.reserve(Some(5), [(0, -2), (0, 3), (0, i64::MAX)].into_iter()).unwrap();
        for value in [-2, 3, i64::MAX] {
            shard.put(5, 0, value, false);
        }
        drop(shard);
        assert_eq!(
            (aux.read(0, 5, 0), budget.used()),
            (Some(i64::MAX), bytes_with(MIN_WORDS) - ARRAY_BYTES + WIDE_VALUE_BYTES)
        );
        let mut shard = aux.lock(0);
        shard.put(5, 0, 1, false);
        drop(shard);
        assert_eq!(budget.used(), bytes_with(MIN_WORDS) - ARRAY_BYTES, "given back");
    }

    #[test]
    fn without_memory_nothing_changes() {
        let budget = Budget::new(bytes_with(MIN_WORDS));
        let aux = Aux::new(1, &budget.quota(0)).unwrap();
        let mut shard = aux.lock(0);
        let mut stored = 0;
        while shard.reserve(None, [(0, 7)].into_iter()).is_ok() {
            shard.put(stored, 0, 7, false);
            stored += 1;
        }
        assert_eq!(stored, MIN_WORDS as u64 - 2);
        assert!(shard.reserve(None, [(0, -1)].into_iter()).is_err());
        // An existing entry needs no memory.
        shard.reserve(Some(0), [(0, 8)].into_iter()).unwrap();
        shard.put(0, 0, 7, false);
        drop(shard);
        assert!((0..stored).all(|p| aux.read(0, p, 0) == Some(7)));
    }
}
