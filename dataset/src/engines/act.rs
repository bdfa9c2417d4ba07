//! Executes actions: changes a flag and its counters atomically.
//!
//! An action changes one counter of the id, while holding the lock of the id's stripe. It may
//! change further counters of the id and of the member. For example, *follow* changes the followers
//! of the id and the followings of the member. Counters of the member belong to another stripe. In
//! this case the caller locks both stripes ([`Engines::exclusive`], with room reserved in the log),
//! so that all marks are in one log batch.

use crate::dirty_keys::Mark;
use crate::engines::action::{Action, FurtherCounter};
use crate::engines::error::WriteError;
use crate::engines::registry::Engines;
use crate::engines::spaces::{CounterSpace, ExistenceSpace};
use counter::{Bounds, Change as Delta};
use phantom::{Change, Member};
use smallvec::SmallVec;

const NOT_BELOW_ZERO: Bounds = Bounds { min: Some(0), max: None, saturate: true };

/// A counter that an action has changed in addition to its first counter.
struct ChangedCounter<'a> {
    space: &'a CounterSpace,
    id: u64,
    field: usize,
    /// Previous value, or `None` if there was no row.
    before: Option<i64>,
}

/// Further counters that an action has changed. Most actions have none and need no list.
#[derive(Default)]
#[expect(
    clippy::box_collection,
    reason = "most actions move no further counter, so one word is cleared"
)]
struct MovedCounters<'a>(Option<Box<Vec<ChangedCounter<'a>>>>);

impl MovedCounters<'_> {
    /// Restores the counters when the action is refused.
    #[cold]
    fn restore_counters(&self, engines: &Engines) {
        for &ChangedCounter { space, id, field, before } in
            self.0.iter().flat_map(|moved| moved.iter().rev())
        {
            let put = match before {
                Some(value) => engines.set(space, id, &[(field, value)]).map(|_| ()),
                None => engines.delete_row(space, id).map(|_| ()),
            };
            // The row exists and had this value before, so the write should not fail.
            if let Err(error) = put {
                tracing::error!(
                    "cannot roll back a rejected action: counter {field} of {id} in '{}' is wrong, \
                     set it again: {error}",
                    space.name()
                );
            }
        }
    }
}

impl Engines {
    /// Spaces of an action's flag and of its first counter.
    #[inline]
    pub fn spaces_of(&self, action: &Action) -> (&ExistenceSpace, &CounterSpace) {
        (&self.existences[action.flag], &self.counters[action.counter])
    }

    /// Spaces of the further counters that an action changes, and whether they are counters of the
    /// member.
    pub fn beside<'a>(
        &'a self,
        action: &'a Action,
    ) -> impl Iterator<Item = (&'a CounterSpace, bool)> + use<'a> {
        action.beside.iter().map(|beside| (&self.counters[beside.counter], beside.of_member))
    }

    /// Executes an action: if the viewer's flag on `id` is not set, sets it and adds 1 to the
    /// counter, atomically. A repeated or concurrent action finds the flag set and changes nothing.
    ///
    /// After a false positive of the filter, the ledger shows that the flag is not set. In a space
    /// without a ledger, an action whose flag is a false positive changes nothing.
    ///
    /// If the id has no row, for example after DEL, the action changes the id's counters even if
    /// the flag is set. It does not change the member's counters, which already include the action.
    #[inline]
    pub fn act(
        &self,
        action: &Action,
        viewer: &Member<'_>,
        id: u64,
        scratch: &mut Vec<i64>,
    ) -> Result<Change, WriteError> {
        let (flags, counters) = self.spaces_of(action);
        if id < counters.horizon() {
            return Ok(Change::Unknown);
        }
        flags.may_write(viewer)?;
        let mut turn = self.pair_guard(flags, id);
        let mut has_counted = false;
        let mut count = |is_again| {
            self.count_up(action, viewer, id, is_again, scratch)?;
            has_counted = true;
            Ok(())
        };
        let mut change = self.with_share(
            || flags.filter_bytes_limit(),
            || flags.space.add_with(id, viewer, || count(false)),
        );
        if matches!(change, Ok(Change::Unchanged))
            && let Some(is_again) = self.must_count(action, id, viewer)?
        {
            change = count(is_again).map(|()| Change::Changed);
        }
        let row = has_counted.then_some(counters.number);
        let Ok(change) = change else {
            // Normally an error means that nothing has changed. If the row has changed, the log
            // must contain it.
            row.into_iter().for_each(|row| turn.mark(Mark::row(row, id)));
            return change;
        };
        if change == Change::Unknown && flags.counts_recycled_ids() {
            drop(turn);
            return self.count_unknown(action, viewer, id, 1, scratch);
        }
        self.mark_pair(&mut turn, flags, id, viewer, change, true, row);
        Ok(change)
    }

    /// Whether an action must change the counters although the filters report its flag as set.
    /// `Some(false)`: the ledger does not contain the pair. `Some(true)`: the id has no row,
    /// because it was deleted or the flag was set without the action. In this case the member's
    /// counters already include the action.
    fn must_count(
        &self,
        action: &Action,
        id: u64,
        viewer: &Member<'_>,
    ) -> Result<Option<bool>, WriteError> {
        let (flags, counters) = self.spaces_of(action);
        if !flags.confirm_set(id, viewer)? {
            return Ok(Some(false));
        }
        // An unreadable row exists.
        let has_row = || counters.space.exists(id).unwrap_or(true);
        Ok((action.counts_without_row && !has_row()).then_some(true))
    }

    #[inline]
    fn count_up(
        &self,
        action: &Action,
        viewer: &Member<'_>,
        id: u64,
        is_again: bool,
        scratch: &mut Vec<i64>,
    ) -> Result<(), WriteError> {
        let counters = self.counter_of(action);
        let beside = self.move_further_counters(action, id, viewer, 1, is_again)?;
        scratch.clear();
        let change = [Delta { field: action.field, delta: 1 }];
        let added = self.add_to_row(counters, id, &change, &Bounds::default(), scratch);
        added.inspect_err(|_| beside.restore_counters(self))?;
        self.changed(counters.number, id);
        Ok(())
    }

    /// Undoes an action: if the flag is set, unsets it and subtracts 1 from the counter. The
    /// counter does not fall below 0.
    #[inline]
    pub fn undo(
        &self,
        action: &Action,
        viewer: &Member<'_>,
        id: u64,
        scratch: &mut Vec<i64>,
    ) -> Result<Change, WriteError> {
        let (flags, counters) = self.spaces_of(action);
        if id < counters.horizon() {
            return Ok(Change::Unknown);
        }
        let mut turn = self.pair_guard(flags, id);
        let count = || {
            let beside = self.move_further_counters(action, id, viewer, -1, false)?;
            scratch.clear();
            let change = [Delta { field: action.field, delta: -1 }];
            let taken = self.add_to_row(counters, id, &change, &NOT_BELOW_ZERO, scratch);
            taken.inspect_err(|_| beside.restore_counters(self))?;
            self.changed_row(&mut turn, counters, id);
            Ok(())
        };
        let change = flags.remove_true(id, viewer, count)?;
        if change == Change::Unknown && flags.counts_recycled_ids() {
            drop(turn);
            return self.count_unknown(action, viewer, id, -1, scratch);
        }
        self.mark_pair(&mut turn, flags, id, viewer, change, false, None);
        Ok(change)
    }

    /// Changes either all further counters or none of them. If `is_again` is true, changes only
    /// counters of the id, and only in spaces where the id has no row.
    #[inline]
    fn move_further_counters(
        &self,
        action: &Action,
        id: u64,
        member: &Member<'_>,
        delta: i64,
        is_again: bool,
    ) -> Result<MovedCounters<'_>, WriteError> {
        if action.beside.is_empty() {
            return Ok(MovedCounters::default());
        }
        self.move_all_further_counters(action, id, member, delta, is_again)
    }

    #[cold]
    fn move_all_further_counters(
        &self,
        action: &Action,
        id: u64,
        member: &Member<'_>,
        delta: i64,
        is_again: bool,
    ) -> Result<MovedCounters<'_>, WriteError> {
        let bounds = if delta < 0 { NOT_BELOW_ZERO } else { Bounds::default() };
        // Check all counters before the first write: a write creates missing rows, and `is_again`
        // depends on which rows are missing.
        let mut moving = SmallVec::<[(&FurtherCounter, u64); 4]>::new();
        for beside in &action.beside {
            let id = match (beside.of_member, member) {
                (false, _) => id,
                (true, Member::Number(member)) => *member,
                (true, Member::Bytes(_)) => return Err(WriteError::MemberIsNoId),
            };
            if !is_again || !(beside.of_member || self.counters[beside.counter].space.exists(id)?) {
                moving.push((beside, id));
            }
        }
        let mut before = MovedCounters::default();
        for (beside, id) in moving {
            let space = &self.counters[beside.counter];
            let mut row = vec![0; space.schema().width()];
            let change = [Delta { field: beside.field, delta }];
            let moved = space.get(id, &mut row).map_err(WriteError::from).and_then(|exists| {
                self.add(space, id, &change, &bounds, &mut Vec::new())?;
                Ok(exists.then(|| row[beside.field]))
            });
            let value = moved.inspect_err(|_| before.restore_counters(self))?;
            before.0.get_or_insert_default().push(ChangedCounter {
                space,
                id,
                field: beside.field,
                before: value,
            });
        }
        Ok(before)
    }

    /// Executes an action on an id below the horizon. The flag is unknown, so only the counters
    /// change.
    #[cold]
    fn count_unknown(
        &self,
        action: &Action,
        member: &Member<'_>,
        id: u64,
        delta: i64,
        scratch: &mut Vec<i64>,
    ) -> Result<Change, WriteError> {
        let beside = self.move_further_counters(action, id, member, delta, false)?;
        let bounds = if delta < 0 { NOT_BELOW_ZERO } else { Bounds::default() };
        let change = [Delta { field: action.field, delta }];
        scratch.clear();
        self.add(&self.counters[action.counter], id, &change, &bounds, scratch)
            .inspect_err(|_| beside.restore_counters(self))?;
        Ok(Change::Changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;
    use crate::commit::Durability;
    use crate::options::Options;
    use std::sync::Arc;

    /// Each pair must be counted exactly once, even with a false-positive rate of 25 % and a low
    /// limit of unset pairs.
    #[test]
    fn counter_with_ledger_equals_its_members() {
        let mut options = Options::default();
        let liked = &mut options.existence[0];
        (liked.false_positive_rate, liked.pairs_per_table, liked.max_unset) = (0.25, 1000, 10);
        let catalogue = Catalogue::default().completed(&options);
        let engines =
            Engines::new(&options, &catalogue, Arc::new(Durability::new(options.fsync))).unwrap();
        let (like, liked) = (engines.action(b"like").unwrap(), &engines.existences()[0]);
        let mut random = fastrand::Rng::with_seed(1);
        let mut model = std::collections::BTreeSet::new();
        let mut scratch = Vec::new();
        for _ in 0..40_000 {
            let (id, number) = (random.u64(1000..1050), random.u64(0..200));
            let text = number.to_string() + "x";
            let member = match number % 2 {
                0 => Member::Number(number),
                _ => Member::Bytes(text.as_bytes()),
            };
            let (done, changes) = match random.u32(0..3) {
                0 => (engines.undo(like, &member, id, &mut scratch), model.remove(&(id, number))),
                _ => (engines.act(like, &member, id, &mut scratch), model.insert((id, number))),
            };
            assert_eq!(done.unwrap() == Change::Changed, changes, "{id} {number}");
        }
        assert!(
            liked
                .ledger()
                .unwrap()
                .figures
                .false_positives
                .load(std::sync::atomic::Ordering::Relaxed)
                > 100
        );
        for id in 1000..1050 {
            let members = model.range((id, 0)..=(id, u64::MAX)).count();
            let mut row = [0; 4];
            engines.counters()[0].get(id, &mut row).unwrap();
            assert_eq!(row[0], members as i64);
            let listed = liked.ledger().unwrap().ledger().list((id, id), None, usize::MAX);
            assert_eq!(listed.unwrap().len(), members);
        }
    }

    #[test]
    fn member_too_long_for_ledger_is_refused_before_any_change() {
        let options = Options::default();
        let catalogue = Catalogue::default().completed(&options);
        let engines =
            Engines::new(&options, &catalogue, Arc::new(Durability::new(options.fsync))).unwrap();
        let like = engines.action(b"like").unwrap();
        let long = [b'x'; ledger::MAX_MEMBER_BYTES + 1];
        let refused = engines.act(like, &Member::Bytes(&long), 7, &mut Vec::new());
        assert!(matches!(refused, Err(WriteError::MemberTooLong)), "{refused:?}");
        assert!(!engines.counters()[0].exists(7).unwrap());
        let kept = engines.act(like, &Member::Bytes(&long[1..]), 7, &mut Vec::new());
        assert_eq!(kept.unwrap(), Change::Changed);
        // An undo by a member that is too long has no effect.
        assert_eq!(
            engines.undo(like, &Member::Bytes(&long), 7, &mut Vec::new()).unwrap(),
            Change::Unchanged
        );
    }
}
