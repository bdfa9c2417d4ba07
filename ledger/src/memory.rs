//! Pairs since the last flush: the newest state of each, in memory.
//!
//! All pairs of an id lie in one shard, sorted, so that the members of an id can be listed. A lock
//! is held for one change, one look, or a piece of a walk.

use crate::pair::{Member, Pair, Pairs};
use parking_lot::Mutex;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const SHARDS: usize = 64;
/// Pairs of a walk while one lock is held.
const PIECE: usize = 1024;

/// What a pair takes, with its share of the tree's nodes, which are two thirds full.
const NUMBER_BYTES: usize = 30;
/// Of a string, beside its bytes: its places in two maps, and its count.
const STRING_BYTES: usize = 120;

#[derive(Default)]
struct Shard {
    numbers: BTreeMap<(u64, u64), bool>,
    strings: BTreeMap<u64, BTreeMap<Arc<[u8]>, bool>>,
    /// The strings by their names.
    names: HashMap<u128, Arc<[u8]>>,
}

pub(crate) struct Memory {
    /// What names of strings are drawn from.
    seeds: [RandomState; 2],
    shards: Box<[Mutex<Shard>]>,
    pairs: AtomicUsize,
    string_bytes: AtomicUsize,
}

fn shard_of(id: u64) -> usize {
    (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % SHARDS
}

impl Shard {
    /// Pairs of an id, or of all ids of a range, behind `after`, to `each` until it says that it
    /// has enough.
    fn walk(
        &self,
        ids: &RangeInclusive<u64>,
        after: Option<(u64, Member<'_>)>,
        mut each: impl FnMut(Pair<'_>) -> bool,
    ) {
        let (low, high) = (*ids.start(), *ids.end());
        let numbers_from = match after {
            Some((id, Member::Number(number))) => Excluded((id, number)),
            Some((id, Member::Bytes(_))) => Excluded((id, u64::MAX)),
            None => Included((low, 0)),
        };
        let mut numbers = self.numbers.range((numbers_from, Included((high, u64::MAX)))).peekable();
        let strings_from = after.map_or(low, |(id, _)| id);
        let mut strings = self.strings.range(strings_from..=high).peekable();
        // Numbers of an id come before its strings.
        loop {
            let string_id = strings.peek().map(|(id, _)| **id);
            let next = numbers.next_if(|((id, _), _)| string_id.is_none_or(|string| *id <= string));
            if let Some((&(id, number), &set)) = next {
                if !each(Pair { id, member: Member::Number(number), set }) {
                    return;
                }
                continue;
            }
            let Some((&id, members)) = strings.next() else { return };
            let from = match after {
                Some((after, Member::Bytes(bytes))) if after == id => Excluded(bytes),
                _ => Unbounded,
            };
            for (bytes, &set) in members.range::<[u8], _>((from, Unbounded)) {
                if !each(Pair { id, member: Member::Bytes(bytes), set }) {
                    return;
                }
            }
        }
    }

    fn remove(&mut self, id: u64, member: Member<'_>, seeds: &[RandomState; 2]) {
        match member {
            Member::Number(number) => drop(self.numbers.remove(&(id, number))),
            Member::Bytes(bytes) => {
                self.names.remove(&name(seeds, id, bytes));
                let Some(members) = self.strings.get_mut(&id) else { return };
                members.remove(bytes);
                if members.is_empty() {
                    self.strings.remove(&id);
                }
            }
        }
    }

    /// Removes a pair if its state is still that; whether it was.
    fn remove_same(&mut self, pair: Pair<'_>, seeds: &[RandomState; 2]) -> bool {
        let Member::Number(number) = pair.member else {
            let is_same = self.get(pair.id, pair.member) == Some(pair.set);
            if is_same {
                self.remove(pair.id, pair.member, seeds);
            }
            return is_same;
        };
        match self.numbers.entry((pair.id, number)) {
            Entry::Occupied(entry) if *entry.get() == pair.set => {
                entry.remove();
                true
            }
            _ => false,
        }
    }

    fn get(&self, id: u64, member: Member<'_>) -> Option<bool> {
        match member {
            Member::Number(number) => self.numbers.get(&(id, number)).copied(),
            Member::Bytes(bytes) => self.strings.get(&id)?.get(bytes).copied(),
        }
    }
}

impl Memory {
    pub(crate) fn new() -> Memory {
        let (pairs, string_bytes) = Default::default();
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Memory { seeds: Default::default(), shards, pairs, string_bytes }
    }

    /// Pairs in it.
    pub(crate) fn len(&self) -> usize {
        self.pairs.load(Relaxed)
    }

    /// Bytes that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.len() * NUMBER_BYTES + self.string_bytes.load(Relaxed)
    }

    pub(crate) fn set(&self, id: u64, member: Member<'_>, set: bool) {
        let mut shard = self.shards[shard_of(id)].lock();
        let is_new = match member {
            Member::Number(number) => shard.numbers.insert((id, number), set).is_none(),
            Member::Bytes(bytes) => {
                let Shard { strings, names, .. } = &mut *shard;
                let members = strings.entry(id).or_default();
                match members.get_mut(bytes) {
                    Some(state) => {
                        *state = set;
                        false
                    }
                    None => {
                        let bytes: Arc<[u8]> = bytes.into();
                        names.insert(name(&self.seeds, id, &bytes), bytes.clone());
                        members.insert(bytes, set).is_none()
                    }
                }
            }
        };
        if is_new {
            self.pairs.fetch_add(1, Relaxed);
            self.string_bytes.fetch_add(extra(member), Relaxed);
        }
    }

    pub(crate) fn get(&self, id: u64, member: Member<'_>) -> Option<bool> {
        self.shards[shard_of(id)].lock().get(id, member)
    }

    /// See [`Ledger::name`](crate::Ledger::name).
    pub(crate) fn name(&self, id: u64, member: &[u8]) -> u128 {
        name(&self.seeds, id, member)
    }

    /// The member of that name, and whether its pair is set.
    pub(crate) fn named(&self, id: u64, name: u128) -> Option<(Arc<[u8]>, bool)> {
        let shard = self.shards[shard_of(id)].lock();
        let member = shard.names.get(&name)?;
        Some((member.clone(), shard.get(id, Member::Bytes(member))?))
    }

    /// Removes pairs whose states are still those, if `may` says so of the id. In the order of a
    /// walk a shard's tree is passed once.
    pub(crate) fn remove_same(&self, pairs: &Pairs, may: impl Fn(u64) -> bool) {
        let mut pairs = pairs.iter().filter(|pair| may(pair.id)).peekable();
        while let Some(first) = pairs.peek() {
            let number = shard_of(first.id);
            let mut shard = self.shards[number].lock();
            for _ in 0..PIECE {
                let Some(pair) = pairs.next_if(|pair| shard_of(pair.id) == number) else { break };
                if shard.remove_same(pair, &self.seeds) {
                    self.gone(pair.member);
                }
            }
        }
    }

    fn gone(&self, member: Member<'_>) {
        self.pairs.fetch_sub(1, Relaxed);
        self.string_bytes.fetch_sub(extra(member), Relaxed);
    }

    /// Removes all pairs of an id.
    pub(crate) fn remove_id(&self, id: u64) {
        loop {
            let mut piece = Pairs::default();
            let mut shard = self.shards[shard_of(id)].lock();
            shard.walk(&(id..=id), None, |pair| {
                piece.push(pair);
                piece.len() < PIECE
            });
            piece.iter().for_each(|pair| {
                shard.remove(id, pair.member, &self.seeds);
                self.gone(pair.member);
            });
            if piece.len() < PIECE {
                return;
            }
        }
    }

    /// Walks the pairs of some ids, shard by shard, piece by piece; each piece is sorted. What
    /// changes meanwhile may be seen or not.
    pub(crate) fn walk(&self, ids: &RangeInclusive<u64>, mut each: impl FnMut(&Pairs)) {
        let mut piece = Pairs::default();
        let shards = match ids.start() == ids.end() {
            true => shard_of(*ids.start())..shard_of(*ids.start()) + 1,
            false => 0..SHARDS,
        };
        for shard in shards {
            let mut last = Pairs::default();
            loop {
                piece.clear();
                let after = last.get(0).map(|pair| pair.key());
                self.shards[shard].lock().walk(ids, after, |pair| {
                    piece.push(pair);
                    piece.len() < PIECE
                });
                each(&piece);
                let Some(end) = piece.last().filter(|_| piece.len() == PIECE) else { break };
                last.clear();
                last.push(end);
            }
        }
    }

    /// The pairs of some ids from `after` on, sorted. Of each shard not more than hold `most` that
    /// are set: pairs beyond the `most`th set one of all may be missing.
    pub(crate) fn list(
        &self,
        ids: &RangeInclusive<u64>,
        after: Option<(u64, Member<'_>)>,
        most: usize,
    ) -> Pairs {
        let mut list = Pairs::default();
        let single = ids.start() == ids.end();
        for (number, shard) in self.shards.iter().enumerate() {
            if single && number != shard_of(*ids.start()) {
                continue;
            }
            let mut set = 0;
            shard.lock().walk(ids, after, |pair| {
                list.push(pair);
                set += usize::from(pair.set);
                set < most
            });
        }
        list.sort();
        list
    }
}

fn name(seeds: &[RandomState; 2], id: u64, member: &[u8]) -> u128 {
    let [high, low] = seeds.each_ref().map(|seed| seed.hash_one((id, member)));
    u128::from(high) << 64 | u128::from(low)
}

fn extra(member: Member<'_>) -> usize {
    match member {
        Member::Number(_) => 0,
        Member::Bytes(bytes) => STRING_BYTES + bytes.len(),
    }
}
