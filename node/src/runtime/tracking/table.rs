//! Tracking table: maps each id to its keys, as clients named them, and each key to the clients
//! that have read it.
//!
//! The table is divided into shards by id, each with its own lock. An id has few keys (its row, its
//! cells, its pairs, the id itself), so they are stored in a list.

use dataset::watch::Place;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem::size_of;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Number of shards, a power of two.
const SHARDS: usize = 64;
/// Number of ids above which a table is freed on another thread, because freeing it takes
/// milliseconds.
const MANY_KEYS: usize = 10_000;
/// Overhead of an allocation, in bytes.
const ALLOCATION: usize = 16;

/// Spaces whose changes make a key stale.
pub type Spaces = SmallVec<[u32; 4]>;

struct Key {
    text: Box<[u8]>,
    spaces: Spaces,
    /// Numbers of the clients that track the key, in ascending order.
    readers: SmallVec<[u64; 2]>,
}

impl Key {
    fn bytes(&self) -> usize {
        let spilled = |is: bool, bytes: usize| if is { bytes + ALLOCATION } else { 0 };
        size_of::<Key>()
            + self.text.len()
            + ALLOCATION
            + spilled(self.spaces.spilled(), self.spaces.capacity() * size_of::<u32>())
            + spilled(self.readers.spilled(), self.readers.capacity() * size_of::<u64>())
    }
}

struct OfId {
    id: u64,
    keys: Vec<Key>,
}

/// Memory used by an id, excluding its keys: the list element and the map entry.
const ID_BYTES: usize = size_of::<OfId>() + ALLOCATION + 2 * size_of::<(u64, usize)>();

/// A list of ids, for random eviction, and the index of each id.
#[derive(Default)]
pub(crate) struct Shard {
    at: HashMap<u64, usize>,
    ids: Vec<OfId>,
    keys: usize,
    /// Number of entries: pairs of a key and a reader.
    items: usize,
    bytes: usize,
}

impl Shard {
    /// Subtracts a removed key from the totals.
    fn count_out(&mut self, key: &Key) {
        self.keys -= 1;
        self.items -= key.readers.len();
        self.bytes -= key.bytes();
    }

    /// Removes the keys of the id at `index` that satisfy `is_taken`. If no key remains, also
    /// removes the id, and moves the last id to this index.
    fn take_of(
        &mut self,
        index: usize,
        is_evicted: bool,
        is_taken: impl Fn(&Key) -> bool,
        taken: &mut Vec<RemovedKey>,
    ) {
        let mut at = 0;
        while let Some(key) = self.ids[index].keys.get(at) {
            if !is_taken(key) {
                at += 1;
                continue;
            }
            let key = self.ids[index].keys.swap_remove(at);
            self.count_out(&key);
            taken.push(RemovedKey { key: key.text, readers: key.readers, is_evicted });
        }
        if self.ids[index].keys.is_empty() {
            let gone = self.ids.swap_remove(index);
            self.at.remove(&gone.id);
            if let Some(moved) = self.ids.get(index) {
                self.at.insert(moved.id, index);
            }
            self.bytes -= ID_BYTES;
        }
    }

    fn remember(&mut self, id: u64, text: &[u8], spaces: &Spaces, reader: u64) -> bool {
        let index = match self.at.entry(id) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                new.insert(self.ids.len());
                self.ids.push(OfId { id, keys: Vec::new() });
                self.bytes += ID_BYTES;
                self.ids.len() - 1
            }
        };
        let keys = &mut self.ids[index].keys;
        let key = match keys.iter().position(|key| *key.text == *text) {
            Some(known) => {
                self.bytes -= keys[known].bytes();
                &mut keys[known]
            }
            None => {
                // Reserves exactly one element, because most ids have one key.
                keys.reserve_exact(1);
                let (spaces, readers) = (Spaces::new(), SmallVec::new());
                keys.push(Key { text: text.into(), spaces, readers });
                self.keys += 1;
                keys.last_mut().expect("the key was just pushed")
            }
        };
        for space in spaces {
            if !key.spaces.contains(space) {
                key.spaces.push(*space);
            }
        }
        let place = key.readers.binary_search(&reader);
        if let Err(place) = place {
            key.readers.insert(place, reader);
            self.items += 1;
        }
        self.bytes += key.bytes();
        place.is_err()
    }

    fn keep_readers(&mut self, is_kept: impl Fn(u64) -> bool) {
        // Iterates backwards, because removing an id moves the last id to its index.
        for index in (0..self.ids.len()).rev() {
            for key in &mut self.ids[index].keys {
                let (readers, bytes) = (key.readers.len(), key.bytes());
                key.readers.retain(|number| is_kept(*number));
                key.readers.shrink_to_fit();
                self.items -= readers - key.readers.len();
                self.bytes -= bytes - key.bytes();
            }
            self.take_of(index, true, |key| key.readers.is_empty(), &mut Vec::new());
        }
    }
}

/// A removed key, whose readers must be notified.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RemovedKey {
    pub(crate) key: Box<[u8]>,
    pub(crate) readers: SmallVec<[u64; 2]>,
    /// Whether the key was evicted, rather than changed by a client.
    pub(crate) is_evicted: bool,
}

pub(crate) struct Table {
    shards: Box<[Mutex<Shard>]>,
    items: AtomicUsize,
}

impl Default for Table {
    fn default() -> Table {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Table { shards, items: AtomicUsize::new(0) }
    }
}

impl Table {
    fn of(&self, id: u64) -> &Mutex<Shard> {
        // Fibonacci hashing: the upper bits of a multiplication by 2^64 / golden ratio.
        &self.shards[(id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize % SHARDS]
    }

    /// Runs `work` on a shard, and adds the change in its number of entries to the total.
    fn with<R>(&self, shard: &Mutex<Shard>, work: impl FnOnce(&mut Shard) -> R) -> R {
        let mut shard = shard.lock();
        let before = shard.items;
        let done = work(&mut shard);
        // The subtraction wraps around if the number has decreased. The atomic addition then wraps
        // around as well, so the total is correct.
        self.items.fetch_add(shard.items.wrapping_sub(before), Relaxed);
        done
    }

    fn sum(&self, of: impl Fn(&Shard) -> usize) -> usize {
        self.shards.iter().map(|shard| of(&shard.lock())).sum()
    }

    pub(crate) fn keys(&self) -> usize {
        self.sum(|shard| shard.keys)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.sum(|shard| shard.bytes)
    }

    /// Number of entries: pairs of a key and a reader.
    pub(crate) fn items(&self) -> usize {
        self.items.load(Relaxed)
    }

    /// Adds an entry. Returns false if it exists.
    pub(crate) fn remember(&self, id: u64, text: &[u8], spaces: &Spaces, reader: u64) -> bool {
        self.with(self.of(id), |shard| shard.remember(id, text, spaces, reader))
    }

    /// Removes and returns the keys of this id that depend on this space.
    pub(crate) fn take(&self, (space, id): Place) -> Vec<RemovedKey> {
        let mut taken = Vec::new();
        self.with(self.of(id), |shard| {
            if let Some(&index) = shard.at.get(&id) {
                shard.take_of(index, false, |key| key.spaces.contains(&space), &mut taken);
            }
        });
        taken
    }

    /// Removes and returns the keys of ids below `end` that depend on this space.
    pub(crate) fn take_below(&self, space: u32, end: u64) -> Vec<RemovedKey> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            self.with(shard, |shard| {
                for index in (0..shard.ids.len()).rev() {
                    if shard.ids[index].id < end {
                        shard.take_of(index, true, |key| key.spaces.contains(&space), &mut taken);
                    }
                }
            });
        }
        taken
    }

    /// Removes and returns a random key.
    pub(crate) fn evict(&self) -> Option<RemovedKey> {
        let first = fastrand::usize(..SHARDS);
        let shards = self.shards[first..].iter().chain(&self.shards[..first]);
        let evict = |shard: &mut Shard| {
            let index = fastrand::usize(..shard.ids.len().max(1));
            let key = shard.ids.get_mut(index)?.keys.pop()?;
            shard.count_out(&key);
            shard.take_of(index, true, |_| false, &mut Vec::new());
            Some(RemovedKey { key: key.text, readers: key.readers, is_evicted: true })
        };
        shards.map(|shard| self.with(shard, evict)).find(Option::is_some).flatten()
    }

    /// Removes all readers for which `is_kept` returns false.
    pub(crate) fn keep_readers(&self, is_kept: impl Fn(u64) -> bool) {
        for shard in &self.shards {
            self.with(shard, |shard| shard.keep_readers(&is_kept));
        }
    }

    /// Removes all entries. Pass the result to [`drop_in_background`].
    pub(crate) fn clear(&self) -> Vec<Shard> {
        self.shards.iter().map(|shard| self.with(shard, std::mem::take)).collect()
    }
}

/// Frees the contents of a table, on another thread if the table is large.
pub(crate) fn drop_in_background(shards: Vec<Shard>) {
    if shards.iter().map(|shard| shard.ids.len()).sum::<usize>() > MANY_KEYS {
        // If no thread can be started, the closure is dropped here, which frees the contents.
        let _ = std::thread::Builder::new().name("drop".to_owned()).spawn(move || drop(shards));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spaces(all: &[u32]) -> Spaces {
        Spaces::from_slice(all)
    }

    fn keys(mut taken: Vec<RemovedKey>) -> Vec<(String, Vec<u64>)> {
        taken.sort_by(|a, b| a.key.cmp(&b.key));
        let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        taken.iter().map(|taken| (text(&taken.key), taken.readers.to_vec())).collect()
    }

    fn told(of: &[(&str, &[u64])]) -> Vec<(String, Vec<u64>)> {
        of.iter().map(|(key, readers)| ((*key).to_owned(), readers.to_vec())).collect()
    }

    fn is_empty(table: &Table) -> bool {
        let left = table.shards.iter().map(|shard| shard.lock().at.len()).sum::<usize>();
        (table.keys(), table.items(), table.bytes(), left) == (0, 0, 0, 0)
    }

    #[test]
    fn a_change_takes_the_keys_of_its_place_and_no_others() {
        let table = Table::default();
        for (id, key, of, reader) in [
            (7, "post:7", &[1][..], 5),
            (7, "post:7", &[1], 3),
            (7, "post:7:like", &[1], 3),
            (7, "liked:7", &[2], 3),
            // FEED.GET with two views reads the same id.
            (7, "7", &[1, 2], 3),
            (7, "7", &[1, 9, 8, 6, 4], 3),
            (8, "post:8", &[1], 3),
        ] {
            table.remember(id, key.as_bytes(), &spaces(of), reader);
        }
        assert!(!table.remember(7, b"7", &spaces(&[1]), 3), "the key was tracked already");
        assert_eq!((table.keys(), table.items()), (5, 6));
        assert!(table.bytes() > 5 * size_of::<Key>());
        assert_eq!(table.take((5, 7)), []);
        assert_eq!(keys(table.take((2, 7))), told(&[("7", &[3]), ("liked:7", &[3])]));
        assert_eq!(keys(table.take((1, 7))), told(&[("post:7", &[3, 5]), ("post:7:like", &[3])]));
        assert_eq!(table.take((1, 7)), [], "each once");
        assert_eq!(keys(table.take((1, 8))), told(&[("post:8", &[3])]));
        assert!(is_empty(&table));
    }

    #[test]
    fn everything_that_is_entered_can_be_evicted() {
        let table = Table::default();
        for id in 0..1000u64 {
            table.remember(id, id.to_string().as_bytes(), &spaces(&[1]), 1);
            table.remember(id, b"x", &spaces(&[1]), 2);
        }
        for left in (0..2000).rev() {
            let taken = table.evict().unwrap();
            assert!(taken.is_evicted && table.items() == left, "{left}");
        }
        assert_eq!(table.evict(), None);
        assert!(is_empty(&table));
    }

    #[test]
    fn ids_below_a_horizon_go_and_readers_that_have_left() {
        let table = Table::default();
        for id in 0..500u64 {
            table.remember(id, format!("liked:{id}").as_bytes(), &spaces(&[2]), 1 + id % 2);
            table.remember(id, format!("post:{id}").as_bytes(), &spaces(&[1]), 1);
            table.remember(id, format!("post:{id}").as_bytes(), &spaces(&[1]), 2);
        }
        assert_eq!(table.take_below(2, 100).len(), 100);
        assert_eq!(table.take((2, 99)), []);
        assert_eq!(table.take((2, 100)).len(), 1);
        assert_eq!((table.keys(), table.items()), (500 + 399, 1000 + 399));
        table.keep_readers(|number| number != 1);
        assert_eq!((table.keys(), table.items()), (500 + 200, 500 + 200));
        assert_eq!(keys(table.take((1, 7))), told(&[("post:7", &[2])]));
        table.keep_readers(|_| false);
        assert!(is_empty(&table));
        table.remember(1, b"1", &spaces(&[1]), 1);
        drop_in_background(table.clear());
        assert!(is_empty(&table));
    }

    /// Thousands of clients read one hot key.
    #[test]
    fn a_key_has_any_number_of_readers() {
        let table = Table::default();
        for reader in (0..5000u64).rev() {
            assert!(table.remember(7, b"7", &spaces(&[1]), reader));
        }
        assert_eq!((table.keys(), table.items()), (1, 5000));
        let taken = table.take((1, 7));
        assert!(taken[0].readers.iter().copied().eq(0..5000));
        assert!(is_empty(&table));
    }
}
