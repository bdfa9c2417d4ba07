//! Which members of a list have set a flag on each id: "people you follow who liked this".
//!
//! The filter is probed for one member and all ids at a time, so that the cache misses of the ids
//! overlap. With a ledger, each positive answer is then verified. Ids whose filters are on disk are
//! looked up in the ledger alone: the pairs of an id are adjacent there, but scattered over the
//! pages of a filter.

use crate::cold::ledger::in_ledger;
use crate::engines::spaces::ExistenceSpace;
use ledger::BlockBuffer;
use phantom::{BATCH, Member};
use rolling::{Unreadable, UnreadableIds, ones};
use std::iter::successors;

/// Number of hits that a worker verifies.
const MAX_HITS_IN_MEMORY: usize = 1024;
/// Hits of an id from which on its pairs are listed instead of looked up one by one.
const LISTED_HITS: usize = 16;
/// A lookup of a pair takes as long as the listing of this many pairs.
const LISTED_PAIRS_PER_HIT: usize = 64;

/// For each id of a list, the members that have set the flag.
#[derive(Default)]
pub struct MemberSets {
    /// Number of words per id.
    words: usize,
    /// For each id, one bit per member.
    bits: Vec<u64>,
    /// Whether each id is below the horizon.
    below: Vec<bool>,
    is_probed: bool,
}

impl MemberSets {
    /// Returns empty sets for this number of ids and members.
    pub fn new(ids: usize, members: usize) -> MemberSets {
        let words = members.div_ceil(64);
        let (bits, below) = (vec![0; ids * words], vec![false; ids]);
        MemberSets { words, bits, below, is_probed: false }
    }

    /// Returns the number of members that have set the flag on the id at position `index`, or
    /// `None` if the id is below the horizon.
    pub fn count(&self, index: usize) -> Option<usize> {
        (!self.below[index]).then(|| self.row(index).iter().map(|w| w.count_ones() as usize).sum())
    }

    /// Returns the positions of these members, in rising order.
    pub fn members(&self, index: usize) -> impl Iterator<Item = usize> {
        self.row(index).iter().enumerate().flat_map(|(at, &word)| {
            let rest = successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
            let rest = rest.take_while(|word| *word != 0);
            rest.map(move |word| at * 64 + word.trailing_zeros() as usize)
        })
    }

    fn row(&self, index: usize) -> &[u64] {
        &self.bits[index * self.words..][..self.words]
    }

    fn put(&mut self, index: usize, member: usize, set: bool) {
        let (word, bit) = (&mut self.bits[index * self.words + member / 64], 1 << (member % 64));
        if set { *word |= bit } else { *word &= !bit }
    }

    fn has(&self, index: usize, member: usize) -> bool {
        self.row(index)[member / 64] >> (member % 64) & 1 != 0
    }
}

impl ExistenceSpace {
    /// Finds the members that have set the flag on each id, without disk reads. Returns false if
    /// [`ExistenceSpace::complete_members`] must complete the result.
    pub fn members_in_memory(&self, ids: &[u64], members: &[Member<'_>]) -> (MemberSets, bool) {
        let mut sets = MemberSets::new(ids.len(), members.len());
        let cold_end = self.cold().end();
        if ids.iter().any(|id| *id < cold_end) {
            return (sets, false);
        }
        let all: Vec<usize> = (0..ids.len()).collect();
        if self.probe(ids, &all, members, &mut sets).is_err() {
            return (MemberSets::new(ids.len(), members.len()), false);
        }
        sets.is_probed = true;
        let Some(ledger) = self.ledger() else { return (sets, true) };
        let mut verified = 0;
        for (index, &id) in ids.iter().enumerate() {
            let hits: Vec<usize> = sets.members(index).collect();
            verified += hits.len();
            if verified > MAX_HITS_IN_MEMORY {
                return (sets, false);
            }
            for at in hits {
                match ledger.contains_in_memory(id, &members[at]) {
                    Some(set) => sets.put(index, at, set),
                    None => return (sets, false),
                }
            }
        }
        (sets, true)
    }

    /// Completes the result of [`ExistenceSpace::members_in_memory`] for the same ids and members.
    /// Blocks on disk reads. The error contains the ids whose members could not be read.
    pub fn complete_members(
        &self,
        ids: &[u64],
        members: &[Member<'_>],
        sets: &mut MemberSets,
    ) -> Result<(), UnreadableIds> {
        let mut failed = Vec::new();
        if !sets.is_probed {
            // Without a ledger the filters on disk have the only answer.
            let cold_end = if self.ledger().is_some() { self.cold().end() } else { 0 };
            let (cold, warm): (Vec<usize>, Vec<usize>) =
                (0..ids.len()).partition(|&index| ids[index] < cold_end);
            if let Err(unreadable) = self.probe(ids, &warm, members, sets) {
                failed.extend(Vec::from(unreadable));
            }
            for index in cold {
                sets.below[index] = self.range_over(ids[index]).is_none();
                (0..members.len()).for_each(|at| sets.put(index, at, true));
            }
        }
        self.verify_members(ids, members, sets, &mut failed);
        UnreadableIds::check(failed)
    }

    /// Probes the filters for the ids at these positions.
    fn probe(
        &self,
        ids: &[u64],
        indexes: &[usize],
        members: &[Member<'_>],
        sets: &mut MemberSets,
    ) -> Result<(), UnreadableIds> {
        let asked: Vec<u64> = indexes.iter().map(|&index| ids[index]).collect();
        let mut failed: Vec<Unreadable> = Vec::new();
        for (at, member) in members.iter().enumerate() {
            let mut batches = indexes.chunks(BATCH);
            let answered = self.answer_batches(member, &asked, |_, answers| {
                let indexes = batches.next().unwrap_or_default();
                ones(answers.yes & !answers.unknown).for_each(|i| sets.put(indexes[i], at, true));
                ones(answers.unknown).for_each(|i| sets.below[indexes[i]] = true);
            });
            if let Err(unreadable) = answered {
                failed.extend(Vec::from(unreadable));
            }
        }
        UnreadableIds::check(failed)
    }

    /// Removes the members whose pairs are not in the ledger.
    fn verify_members(
        &self,
        ids: &[u64],
        members: &[Member<'_>],
        sets: &mut MemberSets,
        failed: &mut Vec<Unreadable>,
    ) {
        let Some(ledger) = self.ledger() else { return };
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_unstable_by_key(|&at| in_ledger(members[at]));
        let mut buffer = BlockBuffer::default();
        for (index, &id) in ids.iter().enumerate() {
            let hits: Vec<usize> =
                order.iter().copied().filter(|&at| sets.has(index, at)).collect();
            let most = hits.len() * LISTED_PAIRS_PER_HIT;
            if hits.len() >= LISTED_HITS
                && let Ok(pairs) = ledger.ledger().list((id, id), None, most)
                && pairs.len() < most
            {
                let mut listed = pairs.iter().map(|pair| pair.member).peekable();
                for at in hits {
                    let member = in_ledger(members[at]);
                    while listed.next_if(|listed| *listed < member).is_some() {}
                    sets.put(index, at, listed.peek() == Some(&member));
                }
                continue;
            }
            for at in hits {
                match ledger.contains_buffered(id, &members[at], &mut buffer) {
                    Ok(set) => sets.put(index, at, set),
                    Err(error) => {
                        failed.push(error);
                        break;
                    }
                }
            }
        }
    }
}
