//! The memory of a ledger: the newest state of each pair since the last flush.
//!
//! ```text
//!   shard     selected by the hash of the id; one lock, a tree of ids
//!     id        numbers:  one change inline, a list of changes, or a tree (more than
//!                         `MAX_LIST_CHANGES`)
//!               strings:  a tree
//! ```
//!
//! A write appends to the list of an id. A walk sorts the list and retains the newest change of
//! each number. Between flushes most writes are for few ids, so the tree of ids is small and a
//! write touches few cache lines. A lock is held for one write, one lookup, or one piece of a walk.

use crate::pair::{Member, OwnedMember, Pair, Pairs};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const SHARDS: usize = 64;
/// Number of pairs that a walk visits per lock acquisition.
const PAIRS_PER_LOCK: usize = 1024;
/// Number of pairs that [`Memory::list`] reads from each shard in addition to the shard's share.
const MIN_PAIRS_PER_SHARD: usize = 16;
/// Maximum number of changes in the list of an id. A longer list becomes a tree.
const MAX_LIST_CHANGES: usize = 128;

/// Bytes per id, including its share of tree nodes that are two thirds full.
const ID_BYTES: usize = 88;
/// Bytes per pair: a number in a list that is three quarters full, or in a tree.
const PAIR_BYTES: usize = 22;
/// Additional bytes per string: its entries in two maps.
const STRING_BYTES: usize = 60;
/// Bytes per id that has strings: the tree's root and most of a node.
const STRINGS_BYTES: usize = 210;

#[derive(Clone, Copy)]
struct MemberState {
    set: bool,
    /// Whether a flush has copied the pair since its last change. Such a pair may leave memory when
    /// the copy is on disk. A pair that has changed twice since the copy must stay although its
    /// state is the same: the log reads the state from memory.
    copied: bool,
}

impl MemberState {
    fn new(set: bool) -> MemberState {
        MemberState { set, copied: false }
    }
}

type List = SmallVec<[(u64, MemberState); 1]>;

/// Shrinks a list that has become much shorter than its capacity.
fn shrink_list(list: &mut List) {
    if list.capacity() > 2 * list.len().max(1) {
        list.shrink_to_fit();
    }
}

enum Numbers {
    /// At most `MAX_LIST_CHANGES` changes, oldest first; the last change of a number is valid.
    Few(List),
    Many(BTreeMap<u64, MemberState>),
}

impl Numbers {
    fn get(&self, number: u64) -> Option<bool> {
        match self {
            Numbers::Few(list) => {
                list.iter().rev().find(|change| change.0 == number).map(|change| change.1.set)
            }
            Numbers::Many(tree) => tree.get(&number).map(|state| state.set),
        }
    }

    fn set(&mut self, number: u64, set: bool) {
        let change = (number, MemberState::new(set));
        match self {
            Numbers::Few(list) if list.len() < MAX_LIST_CHANGES => list.push(change),
            Numbers::Few(list) => {
                // `collect` keeps the last change of each number.
                *self = Numbers::Many(list.drain(..).chain([change]).collect());
            }
            Numbers::Many(tree) => drop(tree.insert(change.0, change.1)),
        }
    }

    /// Sorts a list and keeps one change per number.
    fn sort(&mut self) {
        let Numbers::Few(list) = self else { return };
        if !list.is_sorted_by(|a, b| a.0 < b.0) {
            list.reverse();
            list.sort_by_key(|change| change.0);
            list.dedup_by_key(|change| change.0);
            shrink_list(list);
        }
    }

    /// Removes the numbers in `gone`, which must be ascending, if they are unchanged since the
    /// copy.
    fn remove_copied(&mut self, gone: impl Iterator<Item = u64>) {
        self.sort();
        let mut gone = gone.peekable();
        match self {
            Numbers::Few(list) => {
                list.retain(|&mut (number, state)| {
                    while gone.next_if(|&other| other < number).is_some() {}
                    !(state.copied && gone.peek() == Some(&number))
                });
                shrink_list(list);
            }
            Numbers::Many(tree) => {
                for number in gone {
                    if let Entry::Occupied(entry) = tree.entry(number)
                        && entry.get().copied
                    {
                        entry.remove();
                    }
                }
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Numbers::Few(list) => list.len(),
            Numbers::Many(tree) => tree.len(),
        }
    }

    /// Calls `each` for the numbers after `after`, in order, until `each` returns false. Returns
    /// whether the walk reached the end. The list must be sorted.
    fn walk(
        &mut self,
        after: Option<u64>,
        mut each: impl FnMut(u64, &mut MemberState) -> bool,
    ) -> bool {
        match self {
            Numbers::Few(list) => {
                let from = list.partition_point(|&(number, _)| Some(number) <= after);
                list[from..].iter_mut().all(|(number, state)| each(*number, state))
            }
            Numbers::Many(tree) => {
                let mut rest = tree.range_mut((after.map_or(Unbounded, Excluded), Unbounded));
                rest.all(|(&number, state)| each(number, state))
            }
        }
    }
}

struct Members {
    numbers: Numbers,
    #[expect(
        clippy::box_collection,
        reason = "most ids have no deleted pairs, and there are many ids"
    )]
    strings: Option<Box<BTreeMap<Arc<[u8]>, MemberState>>>,
}

impl Default for Members {
    fn default() -> Members {
        Members { numbers: Numbers::Few(SmallVec::new()), strings: None }
    }
}

impl Members {
    fn get(&self, member: Member<'_>) -> Option<bool> {
        match member {
            Member::Number(number) => self.numbers.get(number),
            Member::Bytes(bytes) => self.strings.as_ref()?.get(bytes).map(|state| state.set),
        }
    }

    /// Number of members. May count a number more than once if it has changed since the last sort.
    fn len(&self) -> usize {
        self.numbers.len() + self.strings.as_ref().map_or(0, |strings| strings.len())
    }

    /// Calls `each` for the members after `after`, numbers first, until `each` returns false.
    /// Returns whether the walk reached the end. Subtracts from `usage` the changes that sorting
    /// removed.
    fn walk(
        &mut self,
        usage: &MemoryUsage,
        after: Option<Member<'_>>,
        mut each: impl FnMut(Member<'_>, &mut MemberState) -> bool,
    ) -> bool {
        let before = self.len();
        self.numbers.sort();
        usage.pairs.fetch_sub(before - self.len(), Relaxed);
        let (numbers_after, strings_from) = match after {
            Some(Member::Bytes(bytes)) => (None, Excluded(bytes)),
            Some(Member::Number(number)) => (Some(number), Unbounded),
            None => (None, Unbounded),
        };
        let skips_numbers = matches!(strings_from, Excluded(_));
        if !skips_numbers
            && !self
                .numbers
                .walk(numbers_after, |number, state| each(Member::Number(number), state))
        {
            return false;
        }
        let Some(strings) = &mut self.strings else { return true };
        let mut rest = strings.range_mut::<[u8], _>((strings_from, Unbounded));
        rest.all(|(bytes, state)| each(Member::Bytes(bytes), state))
    }
}

#[derive(Default)]
struct MemoryUsage {
    pairs: AtomicUsize,
    /// Bytes of ids and strings, in addition to `PAIR_BYTES` per pair.
    extra_bytes: AtomicUsize,
}

#[derive(Default)]
struct Shard {
    ids: BTreeMap<u64, Members>,
    names: HashMap<u128, Arc<[u8]>>,
}

fn shard_of(id: u64) -> usize {
    (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % SHARDS
}

impl Shard {
    /// Calls `each` for the pairs of an id range, starting after `after`, until `each` returns
    /// false. `copies` marks the pairs as copied by a flush.
    fn walk(
        &mut self,
        usage: &MemoryUsage,
        ids: &RangeInclusive<u64>,
        after: Option<(u64, Member<'_>)>,
        copies: bool,
        mut each: impl FnMut(Pair<'_>) -> bool,
    ) {
        let low = after.map_or(*ids.start(), |(id, _)| id);
        for (&id, members) in self.ids.range_mut(low..=*ids.end()) {
            let after = after.filter(|after| after.0 == id).map(|(_, member)| member);
            let each = |member: Member<'_>, state: &mut MemberState| {
                state.copied |= copies;
                each(Pair { id, member, set: state.set })
            };
            if !members.walk(usage, after, each) {
                return;
            }
        }
    }

    fn get(&self, id: u64, member: Member<'_>) -> Option<bool> {
        self.ids.get(&id)?.get(member)
    }
}

pub(crate) struct Memory {
    seeds: [RandomState; 2],
    shards: Box<[Mutex<Shard>]>,
    usage: MemoryUsage,
}

impl Memory {
    pub(crate) fn new() -> Memory {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Memory { seeds: Default::default(), shards, usage: MemoryUsage::default() }
    }

    /// Number of pairs. May count a pair more than once if it has changed since the last walk.
    pub(crate) fn len(&self) -> usize {
        self.usage.pairs.load(Relaxed)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len() * PAIR_BYTES + self.usage.extra_bytes.load(Relaxed)
    }

    pub(crate) fn set(&self, id: u64, member: Member<'_>, set: bool) {
        let mut shard = self.shards[shard_of(id)].lock();
        let Shard { ids, names } = &mut *shard;
        let mut extra_bytes = 0;
        let members = ids.entry(id).or_insert_with(|| {
            extra_bytes = ID_BYTES;
            Members::default()
        });
        let before = members.len();
        match member {
            Member::Number(number) => members.numbers.set(number, set),
            Member::Bytes(bytes) => {
                let strings = members.strings.get_or_insert_with(|| {
                    extra_bytes += STRINGS_BYTES;
                    Box::default()
                });
                match strings.get_mut(bytes) {
                    Some(state) => *state = MemberState::new(set),
                    None => {
                        extra_bytes += string_bytes(bytes);
                        let bytes: Arc<[u8]> = bytes.into();
                        names.insert(name(&self.seeds, id, &bytes), bytes.clone());
                        strings.insert(bytes, MemberState::new(set));
                    }
                }
            }
        }
        // The difference is negative if a list became a smaller tree.
        self.usage.pairs.fetch_add(members.len().wrapping_sub(before), Relaxed);
        if extra_bytes > 0 {
            self.usage.extra_bytes.fetch_add(extra_bytes, Relaxed);
        }
    }

    pub(crate) fn get(&self, id: u64, member: Member<'_>) -> Option<bool> {
        self.shards[shard_of(id)].lock().get(id, member)
    }

    pub(crate) fn name(&self, id: u64, member: &[u8]) -> u128 {
        name(&self.seeds, id, member)
    }

    pub(crate) fn named(&self, id: u64, name: u128) -> Option<(Arc<[u8]>, bool)> {
        let shard = self.shards[shard_of(id)].lock();
        let member = shard.names.get(&name)?;
        Some((member.clone(), shard.get(id, Member::Bytes(member))?))
    }

    /// Removes the [copied](Memory::copy) pairs that have not changed since and whose id `may`
    /// accepts. The pairs of an id must be adjacent and ascending.
    pub(crate) fn remove_copied(&self, pairs: &Pairs, may: impl Fn(u64) -> bool) {
        let mut pairs = pairs.iter().peekable();
        let mut group: Vec<Pair<'_>> = Vec::new();
        while let Some(first) = pairs.next() {
            group.clear();
            group.push(first);
            while let Some(pair) =
                pairs.next_if(|pair| pair.id == first.id && group.len() < PAIRS_PER_LOCK)
            {
                group.push(pair);
            }
            self.remove_of_id(first.id, &group, &may);
        }
    }

    /// Calls `may` while holding the shard lock, so that a pair that was dropped and set again
    /// stays.
    fn remove_of_id(&self, id: u64, group: &[Pair<'_>], may: impl Fn(u64) -> bool) {
        let mut shard = self.shards[shard_of(id)].lock();
        if !may(id) {
            return;
        }
        let Shard { ids, names } = &mut *shard;
        let Entry::Occupied(mut entry) = ids.entry(id) else { return };
        let members = entry.get_mut();
        let (before, mut extra_bytes) = (members.len(), 0);
        members.numbers.remove_copied(group.iter().filter_map(|pair| match pair.member {
            Member::Number(number) => Some(number),
            Member::Bytes(_) => None,
        }));
        for pair in group {
            let Member::Bytes(string) = pair.member else { continue };
            let Some(strings) = &mut members.strings else { break };
            if strings.get(string).is_some_and(|state| state.copied) {
                strings.remove(string);
                names.remove(&name(&self.seeds, id, string));
                extra_bytes += string_bytes(string);
            }
        }
        if members.strings.as_ref().is_some_and(|strings| strings.is_empty()) {
            members.strings = None;
            extra_bytes += STRINGS_BYTES;
        }
        let after = members.len();
        if after == 0 {
            entry.remove();
            extra_bytes += ID_BYTES;
        }
        self.usage.pairs.fetch_sub(before - after, Relaxed);
        self.usage.extra_bytes.fetch_sub(extra_bytes, Relaxed);
    }

    pub(crate) fn remove_id(&self, id: u64) {
        let mut shard = self.shards[shard_of(id)].lock();
        let Some(members) = shard.ids.remove(&id) else { return };
        let mut extra_bytes = ID_BYTES + members.strings.as_ref().map_or(0, |_| STRINGS_BYTES);
        for string in members.strings.iter().flat_map(|strings| strings.keys()) {
            shard.names.remove(&name(&self.seeds, id, string));
            extra_bytes += string_bytes(string);
        }
        self.usage.pairs.fetch_sub(members.len(), Relaxed);
        self.usage.extra_bytes.fetch_sub(extra_bytes, Relaxed);
    }

    /// Calls `each` for each id with its approximate number of pairs, shard by shard. May or may
    /// not see concurrent changes.
    pub(crate) fn count(&self, mut each: impl FnMut(u64, usize)) {
        for shard in &self.shards {
            let mut from = Unbounded;
            loop {
                let shard = shard.lock();
                let mut last = None;
                for (&id, members) in shard.ids.range((from, Unbounded)).take(PAIRS_PER_LOCK) {
                    each(id, members.len());
                    last = Some(id);
                }
                let Some(last) = last else { break };
                from = Excluded(last);
            }
        }
    }

    /// Calls `each` for sorted pieces of the pairs in an id range, shard by shard. May or may not
    /// see concurrent changes.
    pub(crate) fn walk(&self, ids: &RangeInclusive<u64>, each: impl FnMut(&Pairs)) {
        self.walk_or_copy(ids, false, each);
    }

    /// Same as [`Memory::walk`], but marks the pairs as copied by a flush. When the copies are on
    /// disk, [`Memory::remove_copied`] removes the pairs from memory.
    pub(crate) fn copy(&self, ids: &RangeInclusive<u64>, each: impl FnMut(&Pairs)) {
        self.walk_or_copy(ids, true, each);
    }

    fn walk_or_copy(&self, ids: &RangeInclusive<u64>, copies: bool, mut each: impl FnMut(&Pairs)) {
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
                self.shards[shard].lock().walk(&self.usage, ids, after, copies, |pair| {
                    piece.push(pair);
                    piece.len() < PAIRS_PER_LOCK
                });
                each(&piece);
                let Some(end) = piece.last().filter(|_| piece.len() == PAIRS_PER_LOCK) else {
                    break;
                };
                last.clear();
                last.push(end);
            }
        }
    }

    /// Returns the next pairs of an id range after the pair `after`, sorted. About `most` of these
    /// pairs are set. Also returns the position up to which the result is complete, or `None` if it
    /// is complete to the end. Reads twice the average share from each shard.
    pub(crate) fn list(
        &self,
        ids: &RangeInclusive<u64>,
        after: Option<(u64, Member<'_>)>,
        most: usize,
    ) -> (Pairs, Option<(u64, OwnedMember)>) {
        let (mut list, mut sure) = (Pairs::default(), None);
        let (shards, each) = match ids.start() == ids.end() {
            true => (shard_of(*ids.start())..shard_of(*ids.start()) + 1, most),
            false => (0..SHARDS, most / (SHARDS / 2) + MIN_PAIRS_PER_SHARD),
        };
        for shard in shards {
            let mut set = 0;
            self.shards[shard].lock().walk(&self.usage, ids, after, false, |pair| {
                list.push(pair);
                set += usize::from(pair.set);
                set < each
            });
            if let Some(last) = list.last().filter(|_| set == each)
                && sure.as_ref().is_none_or(|(id, member): &(u64, OwnedMember)| {
                    last.key() < (*id, member.as_member())
                })
            {
                sure = Some((last.id, last.member.to_owned()));
            }
        }
        list.sort();
        (list, sure)
    }
}

fn name(seeds: &[RandomState; 2], id: u64, member: &[u8]) -> u128 {
    let [high, low] = seeds.each_ref().map(|seed| seed.hash_one((id, member)));
    u128::from(high) << 64 | u128::from(low)
}

/// Returns the memory use of a string in bytes: its map entries plus its allocation with two
/// reference counts, rounded up to jemalloc's size class. Size classes are 16 bytes apart up to 128
/// bytes. Above 128 bytes, there are four classes per power of two.
fn string_bytes(bytes: &[u8]) -> usize {
    let needed = 2 * size_of::<usize>() + bytes.len();
    let step = if needed <= 128 { 16 } else { 1 << ((needed - 1).ilog2() - 2) };
    STRING_BYTES + needed.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(memory: &Memory, id: u64) -> Vec<(u64, bool)> {
        let mut found = vec![];
        memory.walk(&(id..=id), |piece| {
            found.extend(piece.iter().map(|pair| (pair.number(), pair.set)));
        });
        found
    }

    /// Regression: a few members that changed many times kept the memory of all changes.
    #[test]
    fn what_repeated_changes_took_is_given_back() {
        let memory = Memory::new();
        let ids = 0..500;
        let taken = allocation_counter::measure(|| {
            for id in ids.clone() {
                for change in 0..MAX_LIST_CHANGES as u64 - 1 {
                    memory.set(id, Member::Number(change % 5), change % 2 == 0);
                }
            }
            memory.walk(&(0..=u64::MAX), |_| ());
        });
        let (taken, told) = (taken.bytes_current.unsigned_abs() as usize, memory.bytes());
        assert_eq!(memory.len(), 5 * ids.count());
        assert!(taken < 2 * told, "{taken} bytes allocated, {told} reported");
    }

    /// The memory budget and INFO use the reported size.
    #[test]
    fn what_pairs_take_is_told() {
        const PAIRS: u64 = 60_000;
        let mut rng = fastrand::Rng::with_seed(1);
        for (of_each, length) in [(1, 0), (3, 0), (20, 0), (300, 0), (1, 11), (20, 11), (20, 300)] {
            let (memory, mut all) = (Memory::new(), Vec::new());
            for id in (0..PAIRS).step_by(of_each) {
                let id = id << 8 | rng.u64(..256);
                all.extend((0..of_each).map(|_| (id, rng.u64(..))));
            }
            rng.shuffle(&mut all);
            let taken = allocation_counter::measure(|| {
                for &(id, number) in &all {
                    match length {
                        0 => memory.set(id, Member::Number(number), true),
                        _ => {
                            let text = format!("{number:0length$x}");
                            memory.set(id, Member::Bytes(text.as_bytes()), true);
                        }
                    }
                }
            });
            let (taken, told) = (taken.bytes_current as f64, memory.bytes() as f64);
            let ratio = told / taken;
            assert!(
                (0.85..1.5).contains(&ratio),
                "{of_each} of {length}: {told} reported, {taken} allocated"
            );
        }
    }

    #[test]
    fn newest_change_of_a_number_counts_in_lists_and_in_trees() {
        let mut rng = fastrand::Rng::with_seed(1);
        for numbers in [
            1,
            2,
            MAX_LIST_CHANGES / 2,
            MAX_LIST_CHANGES,
            MAX_LIST_CHANGES + 1,
            5 * MAX_LIST_CHANGES,
        ] {
            let (memory, mut truth) = (Memory::new(), BTreeMap::new());
            for _ in 0..4 * numbers.max(MAX_LIST_CHANGES) {
                let (number, set) = (rng.u64(..numbers as u64), rng.bool());
                memory.set(7, Member::Number(number), set);
                truth.insert(number, set);
                assert_eq!(memory.get(7, Member::Number(number)), Some(set));
                if rng.u8(..) == 0 {
                    assert!(all(&memory, 7).into_iter().eq(truth.clone()), "{numbers}");
                    assert_eq!(memory.len(), truth.len(), "{numbers}");
                }
            }
            // A pair that changed after the copy stays.
            let mut copied = Pairs::default();
            memory.copy(&(0..=u64::MAX), |piece| piece.iter().for_each(|pair| copied.push(pair)));
            let changed = rng.u64(..numbers as u64);
            memory.set(7, Member::Number(changed), !truth[&changed]);
            memory.remove_copied(&copied, |_| true);
            assert_eq!(all(&memory, 7), [(changed, !truth[&changed])]);
            // A pair that changed twice after the copy stays: the log may have only the first
            // change.
            memory.copy(&(0..=u64::MAX), |_| ());
            memory.set(7, Member::Number(changed), truth[&changed]);
            memory.set(7, Member::Number(changed), !truth[&changed]);
            copied.clear();
            memory.walk(&(0..=u64::MAX), |piece| piece.iter().for_each(|pair| copied.push(pair)));
            memory.remove_copied(&copied, |_| true);
            assert_eq!(memory.len(), 1);
            memory.remove_id(7);
            assert_eq!((memory.len(), memory.bytes()), (0, 0));
        }
    }
}
