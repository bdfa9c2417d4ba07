//! When a counter of 0 proves that a flag is not set, so that a page cannot get a false yes from
//! the filter, and need not ask one on the disk.
//!
//! Where an action ties a flag to a counter, this holds of every id, at every moment that a reader
//! can see:
//!
//! **G** If a reply said that a flag is set, then it is held aside, or its counter is above 0, or
//! the id is *loose* (`unproven_ids.rs`).
//!
//! So where the counter is 0 and the id not loose, no flag is set but for those of outliers, which
//! are held outside the tables; they are exact, and looked up always. Every way to break it, and
//! what keeps it:
//!
//! Actions:
//!
//! - An action sets the flag: its counter rises by 1 in the same turn. If it is not above 0 then
//!   (it was below): loose.
//! - An action finds the flag set of an id without a row (DEL, or a flag set without the action):
//!   it counts, once; then there is a row.
//! - An action finds the flag set, perhaps by a false positive: if the counter is 0 and the id not
//!   loose, it *was* one, and the action counts. Otherwise it may be one; then the counter is above
//!   0, or the id is made loose.
//! - An undo, of a flag or of a false positive: if the counter is 0 and the id not loose, nothing
//!   was set, and nothing is undone. Otherwise, if the counter may come to 0: loose, since a
//!   false positive was not counted.
//!
//! Other writes:
//!
//! - The counter is lowered to 0 or less by any other command (CNT.INCRBY, CNT.SET, HSET, HDEL,
//!   DEL, GETSET, ...): loose, *before* the counter changes, so that a reader of the 0 finds the id
//!   loose.
//! - The flag is set without the action (PH.ADD, SADD, BF.ADD, CF.ADD, another action): if the
//!   counter is not above 0, loose.
//! - The counter is unknown, since its row on the disk cannot be read: it counts as 0 where that
//!   makes the id loose, and as above 0 where 0 would be a proof.
//!
//! Ids ahead of the tables:
//!
//! - An id above all that tables have: its flags are held aside, so it need not be loose. Otherwise
//!   such ids, any number of which have no counter, would fill the set.
//! - A flag moves from the aside into a table: loose, *before* it is there, whatever its counter.
//!
//! The rest:
//!
//! - A flag whose actions name different counters has no gate.
//! - An action ties a flag that was not tied so before: when no writer is left that may not know of
//!   it, all ids that there are become loose, with all writers kept out, and then the tie holds
//!   (`change.rs`). Where an action goes, its tie goes first. The catalogue holds what a folder's
//!   flags are tied to; a replica ties them when all that the same batch says of loose ids is true.
//! - Crash, restart, snapshot, replica: loose ids are logged before the rows of their batch. A
//!   snapshot has them as they are after it has read the tables.
//! - A replay finds a flag in a table that was held aside when it was set: the frontier is logged
//!   before all else of a batch. An id above it is held aside in the replay, too, and becomes loose
//!   as it moves. Any other is logged as loose, wherever it lay when it was set.
//!
//! Loose ids are never taken back. They go when the horizon passes them, and when there are too
//! many all up to the middle one are loose.
//!
//! All writes of one id hold its stripe of the committer, so what is read here before a write is
//! true until it is done.

use crate::catalogue::Catalogue;
use crate::dirty_keys::Mark;
use crate::engines::{CounterSpace, Engines, ExistenceSpace, View};
use phantom::Member;
use rolling::ones;
use std::sync::atomic::Ordering::SeqCst;
use store::WriteGuard;

/// What a flag is tied to: the counter space's number, and the position of the field.
pub type PairedCounter = (u32, u32);

/// A tie in one word, for [`ExistenceSpace`].
const NO_TIE: u64 = u64::MAX;

/// [`PairedCounter`] as one word.
pub(crate) fn tie_word(tie: Option<PairedCounter>) -> u64 {
    tie.map_or(NO_TIE, |(number, field)| u64::from(number) << 32 | u64::from(field))
}

impl ExistenceSpace {
    /// What its flags are tied to: their gate holds since this has been so.
    #[inline]
    pub fn tie(&self) -> Option<PairedCounter> {
        let word = self.kept_tie.load(SeqCst);
        (word != NO_TIE).then_some(((word >> 32) as u32, word as u32))
    }

    pub(crate) fn keep_tie(&self, tie: Option<PairedCounter>) {
        self.kept_tie.store(tie_word(tie), SeqCst);
    }

    /// Ids at which a counter of 0 proves nothing.
    pub fn loose(&self) -> &crate::engines::Loose {
        &self.loose
    }

    /// Which of these ids, in bits, may have a flag by their counters. To be asked after the
    /// counters were read.
    pub(crate) fn not_disproved(
        &self,
        ids: &[u64],
        asked: u32,
        counted: impl Fn(usize) -> i64,
    ) -> u32 {
        let zero = ones(asked).filter(|&i| counted(i) == 0).fold(0, |bits, i| bits | 1 << i);
        if zero == 0 {
            return asked;
        }
        let loose = self.loose.read(&self.space);
        ones(zero).filter(|&i| !loose.holds(ids[i])).fold(asked, |left, i| left & !(1 << i))
    }

    /// Makes an id loose, and the log know it with the rest of the turn; an id above all tables
    /// only for readers that will find it in a table.
    pub(crate) fn loosen(&self, turn: &mut WriteGuard<'_, Mark>, id: u64) {
        if Some(id) > self.space.highest_id() || self.loose.insert(id, self.space.horizon()) {
            turn.mark(Mark::loose(self.number, id));
        }
    }

    /// Has the ids become loose whose flags move from the aside into a table.
    pub(crate) fn loosen_arrivals(&self) {
        let (loose, tie) = (self.loose.clone(), self.kept_tie.clone());
        self.space.on_arrival(move |space, id| {
            if tie.load(SeqCst) != NO_TIE {
                loose.arrive(id, space.horizon(), space.follows());
            }
        });
    }

    /// Makes every id loose that may have a flag in a table now.
    fn loosen_all(&self) {
        self.loose.widen(self.space.highest_id());
    }
}

impl Engines {
    /// One counter of a row; 0 if there is no row. `None`: it cannot be known now.
    pub(crate) fn counted(&self, space: &CounterSpace, id: u64, field: usize) -> Option<i64> {
        let mut row = [0; counter::MAX_FIELDS];
        space.space.get(id, &mut row[..space.space.schema().width()]).ok()?;
        row.get(field).copied()
    }

    /// Whether the counter that moves with the flags of `space` is above 0 at `id`.
    pub fn has_counted(&self, space: &ExistenceSpace, id: u64) -> bool {
        let Some((number, field)) = space.tie() else { return false };
        let counters = self.counter_by_number(number);
        let counted = counters.and_then(|counters| self.counted(counters, id, field as usize));
        counted.is_some_and(|counted| counted > 0)
    }

    /// Whether the flags of `space` are tied to this counter.
    pub(crate) fn is_tied(
        &self,
        space: &ExistenceSpace,
        counters: &CounterSpace,
        field: usize,
    ) -> bool {
        space.tie() == Some((counters.number, field as u32))
    }

    /// Whether this flag on `id` is not set, by its counter; its value is what [`Engines::counted`]
    /// gave.
    pub(crate) fn is_proof(
        &self,
        space: &ExistenceSpace,
        id: u64,
        member: &Member<'_>,
        counted: Option<i64>,
    ) -> bool {
        // In this order: what is no more aside has become loose before.
        counted == Some(0)
            && !space.space.is_early(id, member)
            && !space.loose.read(&space.space).holds(id)
    }

    /// Whether a page of `view` asks for its flag number `flag` at `id`: not where the counter, as
    /// it is in memory, proves that it is not set. A counter that would have to be read first is
    /// read together with the flag instead. Another answer by the time the page is read costs a
    /// read in place.
    pub fn page_asks(&self, view: &View, flag: usize, id: u64, viewer: &Member<'_>) -> bool {
        let flag = &view.flags[flag];
        let space = &self.existences[flag.space];
        let Some(gate) = flag.gate(space) else { return true };
        let counters = &self.counters[view.sources[gate.source]];
        if counters.is_cold(id) && !counters.cold().is_at_hand(id) {
            return true;
        }
        !self.is_proof(space, id, viewer, self.counted(counters, id, gate.field))
    }

    /// To be called before the counters of a row change: `lowest` gives for the position and the
    /// value of a field the least that it may become; it is asked only for fields that flags are
    /// tied to.
    #[inline]
    pub(crate) fn before_lowering(
        &self,
        turn: &mut WriteGuard<'_, Mark>,
        counters: &CounterSpace,
        id: u64,
        lowest: impl Fn(usize, i64) -> i64,
    ) {
        for &(field, flag) in &counters.tied {
            // What cannot be lowered even from 1 is not worth a look.
            if lowest(field, 1) >= 1 {
                continue;
            }
            let loosens = self
                .counted(counters, id, field)
                .is_none_or(|now| lowest(field, now) <= 0 && lowest(field, now) < now);
            if loosens {
                self.existences[flag].loosen(turn, id);
            }
        }
    }

    /// To be called before a flag is set without its counter, and where one was found set, before
    /// any client is told.
    pub(crate) fn loosen_uncounted(
        &self,
        turn: &mut WriteGuard<'_, Mark>,
        space: &ExistenceSpace,
        id: u64,
    ) {
        let Some((number, field)) = space.tie() else { return };
        let counters = self.counter_by_number(number);
        let counted = counters.and_then(|counters| self.counted(counters, id, field as usize));
        if counted.is_none_or(|counted| counted <= 0) {
            space.loosen(turn, id);
        }
    }

    /// Whether all flags are tied as their actions say.
    pub(crate) fn is_tied_as_declared(&self) -> bool {
        self.existences.iter().zip(&self.ties).all(|(space, &wanted)| space.tie() == wanted)
    }

    /// What is not tied as before is tied to nothing.
    pub(crate) fn untie(&self) {
        for (space, &wanted) in self.existences.iter().zip(&self.ties) {
            if space.tie() != wanted {
                space.keep_tie(None);
            }
        }
    }

    /// Makes true what a log tells of the ties.
    pub fn adopt_ties(&self, told: &Catalogue) {
        for known in &told.existence {
            if let Some(space) = self.existence_by_number(known.number) {
                space.keep_tie(known.tie);
            }
        }
    }

    /// From now on this process writes: flags are tied as the actions say. Where they were
    /// not before, all ids that there are become loose, but for spaces for which `is_new` holds.
    /// Gives the spaces of which the log has to be told that.
    pub(crate) fn retie(&self, is_new: impl Fn(u32) -> bool) -> Vec<&ExistenceSpace> {
        let mut loosened = Vec::new();
        for (space, &wanted) in self.existences.iter().zip(&self.ties) {
            if space.tie() == wanted {
                continue;
            }
            if wanted.is_some() && !is_new(space.number) {
                space.loosen_all();
                loosened.push(space);
            }
            space.keep_tie(wanted);
        }
        loosened
    }
}
