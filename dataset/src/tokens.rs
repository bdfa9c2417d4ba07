//! Idempotency tokens: an increment that is sent twice with the same token is applied once.
//!
//! A client that received no reply cannot know whether its increment was applied. With a token it
//! can send the increment again. The server then returns the first reply and changes nothing. A
//! token belongs to a row, or to one counter of a row. The writer holds the stripe of the row's id,
//! so the lookup and the insert are atomic. A command that changes many rows may have been applied
//! only in part, so its tokens belong to single counters. Commands of either kind also look up the
//! tokens of the other kind (`Used::other_form`).
//!
//! The key of an entry is 128 bits of SHA-256 over space, id, field and token. All nodes must
//! compute the same key, so the hash has no secret seed; finding collisions is too expensive for an
//! attacker. The log stores an entry in the same batch as its row. The first byte of the key
//! selects one of `SHARDS` rings; a full ring evicts its oldest entry. Hence a master, its replicas
//! and a restarted node evict the same entries. An entry contains the time of its first use, by the
//! clock of the node that accepted it. Expiry compares this time with the wall clock, limited by
//! `max_accepted_time_s`.

use crate::clock::unix_s;
use crate::log_records::{put_number, take_number, unzigzag, zigzag};
use counter::{Bounds, Change, MAX_FIELDS};
use hashbrown::HashTable;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;
use store::time::{now, since};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Maximum length of a token in bytes.
pub const MAX_TOKEN_BYTES: usize = 64;

/// Number of rings, each with its own lock. No lock is held for more than a millisecond.
const SHARDS: usize = 64;
/// Maximum number of entries encoded or dropped per lock acquisition.
const ENTRIES_PER_LOCK: usize = 1024;
/// Number of entries up to which a ring never shrinks.
const MIN_SHRINK_ENTRIES: usize = 64;
/// Maximum number of expired entries that one insert drops.
const MAX_EXPIRED_PER_INSERT: usize = 2;
/// A clock before this time (2020, in Unix seconds) has not been set yet.
const MIN_VALID_CLOCK_S: u32 = 1_577_836_800;

/// The token of a command.
#[derive(Clone, Copy)]
pub struct TokenUse<'a> {
    /// Bytes of the token, at most [`MAX_TOKEN_BYTES`].
    pub token: &'a [u8],
    /// Whether the token belongs to one counter instead of the row. True for commands that change
    /// many rows and may be applied only in part.
    pub is_of_cell: bool,
    /// Time of the request in Unix seconds.
    pub now_s: u32,
}

/// Hash of a token and hash of its increment.
#[derive(Clone, Copy)]
pub(crate) struct Used {
    pub(crate) hash: u128,
    increment: u32,
    time_s: u32,
}

impl Used {
    pub(crate) fn new(
        once: TokenUse<'_>,
        space: u32,
        id: u64,
        changes: &[Change],
        bounds: &Bounds,
    ) -> Used {
        let mut told = Vec::with_capacity(16 * changes.len() + 24);
        for change in changes {
            told.extend_from_slice(&(change.field as u64).to_le_bytes());
            told.extend_from_slice(&change.delta.to_le_bytes());
        }
        for bound in [bounds.min, bounds.max] {
            told.push(u8::from(bound.is_some()));
            told.extend_from_slice(&bound.unwrap_or(0).to_le_bytes());
        }
        told.push(u8::from(bounds.saturate));
        let increment = xxh3_64(&told) as u32;
        let field = changes.first().filter(|_| once.is_of_cell).map(|change| change.field);
        Used { hash: hash_of(once.token, space, id, field), increment, time_s: once.now_s }
    }

    /// Returns the entries that the other kind of command would have stored for the same token: for
    /// a row's token, one entry per changed counter; for a counter's token, the entry of the row.
    /// If any of them exists, the token was used.
    pub(crate) fn other_form(
        self,
        once: TokenUse<'_>,
        space: u32,
        id: u64,
        changes: &[Change],
    ) -> impl Iterator<Item = Used> {
        let of_row = once.is_of_cell.then_some(None);
        let of_cells = changes.iter().filter(move |_| !once.is_of_cell);
        let fields = of_row.into_iter().chain(of_cells.map(|change| Some(change.field)));
        fields.map(move |field| Used { hash: hash_of(once.token, space, id, field), ..self })
    }
}

/// Returns the key of a token; `field` is `None` for a row's token.
fn hash_of(token: &[u8], space: u32, id: u64, field: Option<usize>) -> u128 {
    let digest = Sha256::new()
        .chain_update(space.to_le_bytes())
        .chain_update(id.to_le_bytes())
        .chain_update(field.map_or(u32::MAX, |field| field as u32).to_le_bytes())
        .chain_update(token)
        .finalize();
    digest.iter().take(16).fold(0, |hash, &byte| hash << 8 | u128::from(byte))
}

/// Error: the token was used with a different increment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IncrementMismatch;

/// A used token and the values of its reply.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    hash: u128,
    time_s: u32,
    increment: u32,
    values: SmallVec<[i64; 2]>,
}

const _: () = assert!(size_of::<Entry>() <= 64);

impl Entry {
    fn heap_bytes(&self) -> usize {
        if self.values.spilled() { self.values.capacity() * size_of::<i64>() } else { 0 }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.hash.to_be_bytes());
        put_number(out, self.time_s.into());
        out.extend_from_slice(&self.increment.to_le_bytes());
        put_number(out, self.values.len() as u64);
        self.values.iter().for_each(|&value| put_number(out, zigzag(value)));
    }

    fn decode(bytes: &mut &[u8]) -> Result<Entry, String> {
        let cut_off = || "truncated token".to_owned();
        let (hash, rest) = bytes.split_first_chunk::<16>().ok_or_else(cut_off)?;
        *bytes = rest;
        let time_s = u32::try_from(take_number(bytes)?).map_err(|_| "invalid time of a token")?;
        let (increment, rest) = bytes.split_first_chunk::<4>().ok_or_else(cut_off)?;
        *bytes = rest;
        let number = take_number(bytes)?;
        if number > MAX_FIELDS as u64 {
            return Err(format!("a token with {number} values"));
        }
        let values =
            (0..number).map(|_| take_number(bytes).map(unzigzag)).collect::<Result<_, _>>()?;
        let (hash, increment) = (u128::from_be_bytes(*hash), u32::from_le_bytes(*increment));
        Ok(Entry { hash, time_s, increment, values })
    }
}

/// Entries in insertion order. A token that was used again after its expiry has two entries; the
/// index refers to the newer entry.
#[derive(Default)]
struct Shard {
    ring: VecDeque<Entry>,
    /// Sequence number of the oldest entry. Sequence numbers increase by 1 and wrap.
    first: u32,
    /// Sequence numbers of the entries, keyed by hash.
    index: HashTable<u32>,
    heap_bytes: usize,
}

impl Shard {
    fn place(&self, number: u32) -> usize {
        number.wrapping_sub(self.first) as usize
    }

    fn number_of(&self, hash: u128, bucket: u64) -> Option<u32> {
        self.index.find(bucket, |&number| self.ring[self.place(number)].hash == hash).copied()
    }

    fn find(&self, hash: u128, bucket: u64) -> Option<&Entry> {
        self.number_of(hash, bucket).map(|number| &self.ring[self.place(number)])
    }

    /// Drops the oldest entry. Returns it, or `None` if the index refers to a newer entry of its
    /// token.
    fn pop(&mut self, bucket: impl Fn(u128) -> u64) -> Option<Entry> {
        let entry = self.ring.pop_front()?;
        let first = self.first;
        self.first = first.wrapping_add(1);
        self.heap_bytes -= entry.heap_bytes();
        let known = self.index.find_entry(bucket(entry.hash), |&number| number == first);
        known.ok().map(|known| {
            known.remove();
            entry
        })
    }

    fn push(&mut self, entry: Entry, bucket: impl Fn(u128) -> u64) {
        let (hash, of_it) = (entry.hash, bucket(entry.hash));
        let number = self.first.wrapping_add(self.ring.len() as u32);
        self.heap_bytes += entry.heap_bytes();
        let before = self.number_of(hash, of_it);
        self.ring.push_back(entry);
        let Shard { ring, first, index, .. } = self;
        match before.and_then(|before| index.find_mut(of_it, |&known| known == before)) {
            Some(known) => *known = number,
            None => {
                index.insert_unique(of_it, number, |&number| {
                    bucket(ring[number.wrapping_sub(*first) as usize].hash)
                });
            }
        }
    }

    fn bytes(&self) -> usize {
        // A bucket of the index has one control byte.
        self.ring.capacity() * size_of::<Entry>()
            + self.index.capacity() * (size_of::<u32>() + 1)
            + self.heap_bytes
    }

    fn shrink(&mut self, bucket: impl Fn(u128) -> u64) {
        if self.ring.capacity() <= MIN_SHRINK_ENTRIES.max(4 * self.ring.len()) {
            return;
        }
        self.ring.shrink_to(2 * self.ring.len());
        let Shard { ring, first, index, .. } = self;
        index.shrink_to(2 * ring.len(), |&number| {
            bucket(ring[number.wrapping_sub(*first) as usize].hash)
        });
    }
}

/// Counters of tokens for INFO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenStats {
    /// Number of stored tokens.
    pub tokens: u64,
    /// Memory of all tokens in bytes.
    pub bytes: u64,
    /// Number of repeated increments that were answered with the first reply.
    pub repeated: u64,
    /// Number of tokens evicted before their expiry because a ring was full.
    pub dropped: u64,
    /// Age of the last evicted token in seconds.
    pub dropped_age_s: u64,
}

/// Token store of a data set. See the module's documentation.
pub struct Tokens {
    /// Seed of the index, random per process, so that clients cannot choose colliding tokens.
    seed: u64,
    /// Monotonic clock and wall clock (Unix seconds) at startup.
    began: (Instant, u32),
    /// Number of seconds by which the limit was raised to follow a clock that jumped forward.
    caught_up_s: AtomicU32,
    most: AtomicUsize,
    keep_s: AtomicU32,
    shards: Box<[Mutex<Shard>]>,
    /// False if all rings are empty, so that a sweep has nothing to do.
    any: AtomicBool,
    repeated: AtomicU64,
    dropped: AtomicU64,
    dropped_age_s: AtomicU64,
}

impl Tokens {
    /// Creates a store for up to `most` tokens, which expire after `keep_s` seconds.
    pub(crate) fn new(most: usize, keep_s: u64) -> Tokens {
        let tokens = Tokens {
            seed: fastrand::u64(..),
            began: (now(), unix_s()),
            caught_up_s: AtomicU32::new(0),
            most: AtomicUsize::new(0),
            keep_s: AtomicU32::new(0),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            any: AtomicBool::new(false),
            repeated: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            dropped_age_s: AtomicU64::new(0),
        };
        tokens.set_limits(most, keep_s);
        tokens
    }

    /// Changes the limits. [`Tokens::sweep`] applies them to existing entries.
    pub(crate) fn set_limits(&self, most: usize, keep_s: u64) {
        self.most.store(most, Relaxed);
        self.keep_s.store(u32::try_from(keep_s).unwrap_or(u32::MAX), Relaxed);
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.most.load(Relaxed) > 0
    }

    /// Returns the maximum number of entries of a shard. The shards share the limit evenly; each
    /// gets at least one entry.
    fn most_of_shard(&self, shard: usize) -> usize {
        let most = self.most.load(Relaxed);
        let part = most / SHARDS + usize::from(shard < most % SHARDS);
        if most > 0 { part.max(1) } else { 0 }
    }

    /// Returns the upper limit for the wall clock: its value at startup plus the elapsed monotonic
    /// time. A clock that jumps forward thus does not expire all tokens at once. [`Tokens::sweep`]
    /// raises the limit by one second per call until it reaches the clock. There is no limit if the
    /// clock was not set at startup.
    fn max_accepted_time_s(&self) -> u32 {
        let (began, began_s) = self.began;
        if began_s < MIN_VALID_CLOCK_S {
            return u32::MAX;
        }
        let since_s = u32::try_from(since(began).as_secs()).unwrap_or(u32::MAX);
        began_s.saturating_add(since_s).saturating_add(self.caught_up_s.load(Relaxed))
    }

    fn bucket(&self) -> impl Fn(u128) -> u64 + use<> {
        let seed = self.seed;
        move |hash| xxh3_64_with_seed(&hash.to_le_bytes(), seed)
    }

    fn shard_of(hash: u128) -> usize {
        (hash >> 120) as usize % SHARDS
    }

    fn shard(&self, hash: u128) -> &Mutex<Shard> {
        &self.shards[Tokens::shard_of(hash)]
    }

    fn is_expired(&self, entry: &Entry, now_s: u32) -> bool {
        let now_s = now_s.min(self.max_accepted_time_s());
        entry.time_s.saturating_add(self.keep_s.load(Relaxed)) <= now_s
    }

    /// If the token is stored and not expired, appends the values of the first reply and returns
    /// true. The caller must hold the id's stripe until after [`Tokens::put`].
    pub(crate) fn answer(&self, used: Used, out: &mut Vec<i64>) -> Result<bool, IncrementMismatch> {
        let shard = self.shard(used.hash).lock();
        let Some(entry) = shard.find(used.hash, self.bucket()(used.hash)) else { return Ok(false) };
        if self.is_expired(entry, used.time_s) {
            return Ok(false);
        }
        if entry.increment != used.increment {
            return Err(IncrementMismatch);
        }
        out.extend_from_slice(&entry.values);
        self.repeated.fetch_add(1, Relaxed);
        Ok(true)
    }

    pub(crate) fn put(&self, used: Used, values: &[i64]) {
        let Used { hash, increment, time_s } = used;
        self.keep(Entry { hash, time_s, increment, values: SmallVec::from_slice(values) }, true);
    }

    /// Inserts an entry. `is_new` is false for entries replayed from a log or snapshot.
    fn keep(&self, entry: Entry, is_new: bool) {
        let (bucket, now_s) = (self.bucket(), entry.time_s);
        let shard = &mut *self.shard(entry.hash).lock();
        // A replayed record keeps its position in the ring.
        if let Some(number) = shard.number_of(entry.hash, bucket(entry.hash)) {
            let place = shard.place(number);
            let known = &mut shard.ring[place];
            if known.time_s == entry.time_s {
                shard.heap_bytes += entry.heap_bytes();
                shard.heap_bytes -= known.heap_bytes();
                *known = entry;
                return;
            }
        }
        let most = self.most_of_shard(Tokens::shard_of(entry.hash));
        if most == 0 {
            return;
        }
        self.drop_oldest(shard, most - 1, MAX_EXPIRED_PER_INSERT, (now_s, is_new));
        shard.push(entry, bucket);
        self.any.store(true, Relaxed);
    }

    /// Drops the oldest entries until at most `most` remain. Continues with expired entries until
    /// it has dropped `expired` of them. If `is_new`, counts the dropped entries that had not
    /// expired.
    fn drop_oldest(
        &self,
        shard: &mut Shard,
        most: usize,
        mut expired: usize,
        (now_s, is_new): (u32, bool),
    ) {
        while let Some(oldest) = shard.ring.front() {
            let is_expired = self.is_expired(oldest, now_s);
            if shard.ring.len() <= most && !(is_expired && expired > 0) {
                return;
            }
            expired = expired.saturating_sub(usize::from(is_expired));
            if let Some(entry) = shard.pop(self.bucket())
                && !is_expired
                && is_new
            {
                self.dropped.fetch_add(1, Relaxed);
                let age_s = now_s.saturating_sub(entry.time_s);
                self.dropped_age_s.store(age_s.into(), Relaxed);
            }
        }
    }

    /// Drops expired entries, at most `ENTRIES_PER_LOCK` per ring. Call this function about once
    /// per second.
    pub fn sweep(&self, now_s: u32) {
        if now_s > self.max_accepted_time_s() {
            self.caught_up_s.fetch_add(1, Relaxed);
        }
        // Clear the flag before the scan: an insert during the scan sets it again.
        if !self.any.swap(false, Relaxed) {
            return;
        }
        let mut any = false;
        for (index, shard) in self.shards.iter().enumerate() {
            let most = self.most_of_shard(index);
            let shard = &mut *shard.lock();
            // Drop at most `ENTRIES_PER_LOCK` entries, even if the limit was lowered.
            let most = most.max(shard.ring.len().saturating_sub(ENTRIES_PER_LOCK));
            self.drop_oldest(shard, most, ENTRIES_PER_LOCK, (now_s, true));
            shard.shrink(self.bucket());
            any |= !shard.ring.is_empty();
        }
        if any {
            self.any.store(true, Relaxed);
        }
    }

    /// Returns the counters for INFO.
    pub fn stats(&self) -> TokenStats {
        let mut stats = TokenStats {
            repeated: self.repeated.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            dropped_age_s: self.dropped_age_s.load(Relaxed),
            ..TokenStats::default()
        };
        for shard in &self.shards {
            let shard = shard.lock();
            stats.tokens += shard.index.len() as u64;
            stats.bytes += shard.bytes() as u64;
        }
        stats
    }

    pub(crate) fn encode(&self, hash: u128, out: &mut Vec<u8>) {
        let shard = self.shard(hash).lock();
        if let Some(entry) = shard.find(hash, self.bucket()(hash)) {
            entry.encode(out);
        }
    }

    /// Encodes all entries as records of at most `ENTRIES_PER_LOCK` entries, and calls `each` for
    /// each record.
    pub(crate) fn encode_all<E>(
        &self,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (bucket, mut piece) = (self.bucket(), Vec::new());
        for shard in &self.shards {
            let mut next = shard.lock().first;
            loop {
                piece.clear();
                let shard = shard.lock();
                // If entry `next` was dropped between two records, continue with the oldest entry.
                let dropped = shard.first.wrapping_sub(next);
                next = if dropped < u32::MAX / 2 { shard.first } else { next };
                let from = shard.place(next);
                if from >= shard.ring.len() {
                    break;
                }
                for entry in shard.ring.range(from..shard.ring.len().min(from + ENTRIES_PER_LOCK)) {
                    if shard.number_of(entry.hash, bucket(entry.hash)) == Some(next) {
                        entry.encode(&mut piece);
                    }
                    next = next.wrapping_add(1);
                }
                drop(shard);
                each(&piece)?;
            }
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn all(&self, from_s: u32) -> std::collections::BTreeSet<Vec<u8>> {
        let mut all = std::collections::BTreeSet::new();
        let mut note = |entry: Entry| {
            if entry.time_s < from_s {
                return;
            }
            let mut record = vec![];
            entry.encode(&mut record);
            all.insert(record);
        };
        self.encode_all(|piece| read_tokens(piece, &mut note)).expect("encoded tokens decode");
        all
    }

    pub(crate) fn decode(&self, bytes: &[u8]) -> Result<(), String> {
        read_tokens(bytes, |entry| self.keep(entry, false))
    }
}

fn read_tokens(mut bytes: &[u8], mut each: impl FnMut(Entry)) -> Result<(), String> {
    while !bytes.is_empty() {
        each(Entry::decode(&mut bytes)?);
    }
    Ok(())
}

/// Fuzz target: checks that encoding decoded tokens and decoding them again changes nothing.
#[cfg(any(test, fuzzing))]
pub(crate) fn check_decoder(bytes: &[u8]) {
    let mut all = Vec::new();
    if read_tokens(bytes, |entry| all.push(entry)).is_ok() {
        let mut out = Vec::new();
        all.iter().for_each(|entry| entry.encode(&mut out));
        let mut again = Vec::new();
        read_tokens(&out, |entry| again.push(entry)).expect("decoding returns the encoded token");
        assert_eq!(all, again);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u32 = 1_700_000_000;

    fn tokens(max_tokens: usize, keep_s: u64) -> Tokens {
        Tokens::new(max_tokens, keep_s)
    }

    fn used(token: u64, delta: i64, now_s: u32) -> Used {
        let token = token.to_le_bytes();
        let once = TokenUse { token: &token, is_of_cell: false, now_s };
        Used::new(once, 1, 7, &[Change { field: 0, delta }], &Bounds::default())
    }

    fn answer(tokens: &Tokens, used: Used) -> Result<Option<Vec<i64>>, IncrementMismatch> {
        let mut out = vec![];
        tokens.answer(used, &mut out).map(|known| known.then_some(out))
    }

    fn copy(tokens: &Tokens) -> Vec<u8> {
        let mut all = vec![];
        let add = |piece: &[u8]| {
            all.extend_from_slice(piece);
            Ok::<(), ()>(())
        };
        tokens.encode_all(add).unwrap();
        all
    }

    /// NTP may set the clock forward, and so may the resumption of a virtual machine.
    #[test]
    fn a_clock_that_is_put_forward_ends_no_token() {
        let (tokens, now_s) = (tokens(1000, 3600), unix_s());
        tokens.put(used(1, 5, now_s), &[12]);
        for later_s in [3601, 1 << 28, u32::MAX - now_s] {
            tokens.sweep(now_s + later_s);
            assert_eq!(answer(&tokens, used(1, 5, now_s + later_s)), Ok(Some(vec![12])));
        }
    }

    #[test]
    fn token_answers_its_own_increment_until_it_expires() {
        let tokens = tokens(1000, 60);
        assert_eq!(answer(&tokens, used(1, 5, NOW)), Ok(None));
        tokens.put(used(1, 5, NOW), &[12, -3, i64::MIN]);
        assert_eq!(answer(&tokens, used(1, 5, NOW + 59)), Ok(Some(vec![12, -3, i64::MIN])));
        assert_eq!(answer(&tokens, used(1, 6, NOW)), Err(IncrementMismatch));
        assert_eq!(answer(&tokens, used(2, 5, NOW)), Ok(None));
        assert_eq!(answer(&tokens, used(1, 5, NOW + 60)), Ok(None), "expired");
        assert_eq!(answer(&tokens, used(1, 6, NOW + 60)), Ok(None), "and can be used again");
        tokens.put(used(1, 6, NOW + 60), &[18]);
        assert_eq!(answer(&tokens, used(1, 6, NOW + 61)), Ok(Some(vec![18])));
        let stats = tokens.stats();
        assert_eq!((stats.tokens, stats.repeated, stats.dropped), (1, 2, 0));
        // Dropping the entry of the first use must not remove the entry of the second use.
        tokens.sweep(NOW + 61);
        assert_eq!(answer(&tokens, used(1, 6, NOW + 61)), Ok(Some(vec![18])));
        tokens.sweep(NOW + 120);
        assert_eq!(tokens.stats().tokens, 0);
    }

    #[test]
    fn what_a_token_belongs_to_is_all_in_its_hash() {
        let changes = [Change { field: 0, delta: 1 }, Change { field: 1, delta: 1 }];
        let of = |space, id, is_of_cell, change: usize, token: &[u8]| {
            let once = TokenUse { token, is_of_cell, now_s: NOW };
            Used::new(once, space, id, &changes[change..=change], &Bounds::default()).hash
        };
        let all = [
            of(1, 7, false, 0, b"t"),
            of(2, 7, false, 0, b"t"),
            of(1, 8, false, 0, b"t"),
            of(1, 7, true, 0, b"t"),
            of(1, 7, true, 1, b"t"),
            of(1, 7, false, 0, b"u"),
        ];
        let distinct: std::collections::BTreeSet<u128> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(of(1, 7, false, 1, b"t"), all[0], "a token of a row, for any field");
        let bounded = |min| {
            let once = TokenUse { token: b"t", is_of_cell: false, now_s: NOW };
            let bounds = Bounds { min, max: None, saturate: true };
            Used::new(once, 1, 7, &changes, &bounds).increment
        };
        assert_ne!(bounded(None), bounded(Some(0)));
    }

    #[test]
    fn oldest_tokens_are_dropped_first_and_counted() {
        const MOST: usize = 64 * 100;
        let tokens = tokens(MOST, 3600);
        for n in 0..2 * MOST as u64 {
            tokens.put(used(n, 1, NOW + n as u32 / 100), &[1]);
        }
        let stats = tokens.stats();
        // Shards fill evenly, but not exactly.
        assert!((MOST as u64 - 200..=MOST as u64).contains(&stats.tokens), "{stats:?}");
        assert_eq!(stats.dropped, 2 * MOST as u64 - stats.tokens);
        assert!((40..=90).contains(&stats.dropped_age_s), "a window of 64 s: {stats:?}");
        let last = 2 * MOST as u64 - 1;
        assert_eq!(answer(&tokens, used(last, 1, NOW + 128)), Ok(Some(vec![1])));
        assert_eq!(answer(&tokens, used(0, 1, NOW + 128)), Ok(None));
        // The documentation promises at most 160 bytes per token.
        assert!(stats.bytes <= 160 * MOST as u64, "{stats:?}");

        tokens.set_limits(100, 3600);
        tokens.sweep(NOW + 128);
        assert!(tokens.stats().tokens == 100, "not all shards were full: {:?}", tokens.stats());
        tokens.set_limits(1, 3600);
        tokens.sweep(NOW + 128);
        assert!(tokens.stats().tokens == 64, "one per shard");
        assert!(tokens.stats().bytes < 40_000, "{:?}", tokens.stats());
        tokens.set_limits(0, 3600);
        tokens.put(used(1, 1, NOW), &[1]);
        tokens.sweep(NOW + 128);
        assert_eq!((tokens.stats().tokens, tokens.is_enabled()), (0, false));
    }

    #[test]
    fn a_copy_holds_the_same_and_lets_the_same_go() {
        let before = tokens(64 * 20, 3600);
        for n in 0..3000 {
            let token = if n < 2900 { n } else { n - 500 };
            before.put(used(token, 1, NOW + n as u32), &vec![n as i64; n as usize % 5]);
        }
        let bytes = copy(&before);
        let after = tokens(64 * 20, 3600);
        after.decode(&bytes).unwrap();
        assert_eq!(after.stats().tokens, before.stats().tokens);
        assert_eq!(copy(&after), bytes);
        // Replay the same records again, like a log after its snapshot.
        after.decode(&bytes).unwrap();
        assert_eq!(copy(&after), bytes);
        for n in 5000..6000 {
            before.put(used(n, 1, NOW + 3100), &[1]);
            after.put(used(n, 1, NOW + 3100), &[1]);
        }
        // The original's rings also contain outdated entries of tokens that were used again.
        assert!(before.all(0).is_subset(&after.all(0)));
        check_decoder(&bytes);
        assert!(after.decode(&bytes[..bytes.len() - 1]).is_err());
    }

    /// Entry numbers wrap, and `encode_all` skips entries that were dropped between records.
    #[test]
    fn a_ring_goes_on_beyond_the_last_number() {
        let tokens = tokens(64 * 8, 3600);
        tokens.shards.iter().for_each(|shard| shard.lock().first = u32::MAX - 3);
        (0..4000).for_each(|n| tokens.put(used(n, 1, NOW), &[n as i64]));
        let mut pieces = 0;
        let each = |piece: &[u8]| {
            pieces += 1;
            (0..50).for_each(|n| tokens.put(used(9000 + n + pieces * 50, 1, NOW), &[1]));
            read_tokens(piece, |_| ())
        };
        tokens.encode_all(each).unwrap();
        assert_eq!(answer(&tokens, used(3999, 1, NOW)).unwrap().is_none(), pieces > 10);
        assert!(tokens.stats().tokens <= 64 * 8);
    }

    #[test]
    fn no_bytes_make_the_decoder_panic() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..100_000 {
            let bytes: Vec<u8> =
                (0..rng.usize(0..60)).map(|_| if rng.bool() { 0 } else { rng.u8(..) }).collect();
            check_decoder(&bytes);
        }
    }
}
