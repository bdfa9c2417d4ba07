//! The one path by which data change.
//!
//! Every change of data, whichever command asks for it, goes through a method of [`Engines`] in
//! this file, and nowhere else: it enters the id's stripe of the committer, changes, and marks what
//! it changed, so that the log thread will read and write it. A stripe is held through the whole
//! change, so writers of one id never mix, and no commit parts a flag from its counter
//! (`store/src/commit`).

use crate::dirty_keys::{Mark, MarkedMember};
use crate::engines::action::Action;
use crate::engines::error::{AlterError, WriteError};
use crate::engines::registry::Engines;
use crate::engines::spaces::{CounterSpace, ExistenceSpace, is_reserved};
use crate::engines::view::{Column, View};
use crate::tokens::{Another, Once, Used};
use crate::watch::Place;
use counter::{Alteration, Bounds, Change as Delta};
use phantom::{Change, Member};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{Ordering::SeqCst, fence};
use store::{Exclusive, Reserved, Ticket, WriteGuard};

/// A watched place, and its state when it began to be watched.
pub struct Seen {
    pub(crate) place: Place,
    changes: u64,
    sweeps: u64,
    rolls: u64,
}

/// What the committer's stripes are chosen by: the upper half of a multiplication by 2^64 / golden
/// ratio, so that neighbouring ids go to different ones.
#[inline]
fn stripe_of(id: u64) -> u64 {
    id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32
}

/// The turn of a write to a space of pairs. What else the write moves there, where a table begins
/// or early pairs, is marked with it: also if it is refused itself, which it may be after that has
/// happened.
pub(super) struct PairGuard<'a> {
    turn: WriteGuard<'a, Mark>,
    space: &'a phantom::Space,
}

impl<'a> Deref for PairGuard<'a> {
    type Target = WriteGuard<'a, Mark>;

    fn deref(&self) -> &WriteGuard<'a, Mark> {
        &self.turn
    }
}

impl DerefMut for PairGuard<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.turn
    }
}

impl Drop for PairGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.space.take_news() {
            self.turn.mark(Mark::CATALOGUE);
        }
    }
}

impl Engines {
    /// Enters the stripe of an id.
    #[inline]
    pub(crate) fn turn(&self, id: u64) -> WriteGuard<'_, Mark> {
        let mut turn = self.durability.committer().enter(stripe_of(id));
        turn.before_mark(rolling::prefetch_to_write);
        turn
    }

    /// The same, for a write of pairs.
    #[inline]
    pub(super) fn pair_guard<'a>(&'a self, space: &'a ExistenceSpace, id: u64) -> PairGuard<'a> {
        PairGuard { turn: self.turn(id), space: &space.space }
    }

    /// For a reader that has just read this id: [`store::Committer::sight`].
    #[inline]
    pub fn sight(&self, id: u64) -> Ticket {
        self.durability.committer().sight(stripe_of(id))
    }

    /// Asks the cache for what every write of an id needs, whatever it writes.
    #[inline]
    pub fn hint(&self, id: u64) {
        self.durability
            .committer()
            .stripe_lines(stripe_of(id))
            .into_iter()
            .for_each(rolling::prefetch_to_write);
    }

    /// Keeps other writers of this id out until it is dropped: for a change that depends on what is
    /// there.
    pub fn alone_with(&self, id: u64) -> WriteGuard<'_, Mark> {
        self.turn(id)
    }

    /// A place has changed: tells its watchers and trackers. To be called in the id's stripe, after
    /// the change.
    #[inline]
    pub(super) fn changed(&self, space: u32, id: u64) {
        self.watches.changed(space, id);
        if let Some(listener) = self.tracking.any() {
            listener.changed(self, (space, id));
        }
    }

    /// The same for places that a record of a log has changed, which enters no stripe.
    pub(crate) fn changed_by_log(&self, space: u32, ids: impl Iterator<Item = u64> + Clone) {
        ids.clone().for_each(|id| self.watches.changed(space, id));
        // A tracker that this does not see began after it, and reads what was changed before it:
        // the other fence is in `Tracking::start`.
        fence(SeqCst);
        if let Some(listener) = self.tracking.any() {
            listener.begin();
            ids.for_each(|id| listener.changed(self, (space, id)));
            listener.end(self);
        }
    }

    /// All places may have changed: a schema, or blocks of filters.
    pub fn all_changed(&self) {
        self.watches.swept();
        fence(SeqCst);
        if let Some(listener) = self.tracking.any() {
            listener.all_changed();
        }
    }

    /// Waits for the writers that are at work now. Those that come later see what this thread did
    /// before. The thread must hold no stripe, or all.
    pub fn pass_writers(&self) {
        self.durability.committer().pass_all();
    }

    /// Marks a row that was changed, and counts it for its watchers.
    #[inline]
    pub(super) fn changed_row(
        &self,
        turn: &mut WriteGuard<'_, Mark>,
        space: &CounterSpace,
        id: u64,
    ) {
        self.changed(space.number, id);
        turn.mark(Mark::row(space.number, id));
    }

    /// Begins to watch a place; gives its state, for [`Engines::has_changed`].
    pub fn watch(&self, place: Place) -> Seen {
        let changes = self.watches.watch(place);
        // A writer inside has finished after this, a later one sees the watcher.
        drop(self.turn(place.1));
        Seen { place, changes, sweeps: self.watches.sweeps(), rolls: self.rolls(place) }
    }

    /// Ends watching.
    pub fn unwatch(&self, seen: &Seen) {
        self.watches.unwatch(seen.place);
    }

    /// Whether a watched place may have changed since. To be asked while its writers are kept out;
    /// for pairs, while all are.
    pub fn has_changed(&self, seen: &Seen) -> bool {
        let now = (self.watches.changes(seen.place), self.watches.sweeps(), self.rolls(seen.place));
        now != (Some(seen.changes), seen.sweeps, seen.rolls)
    }

    /// How often the ring of an existence space has changed: a recycled table makes a pair unknown.
    fn rolls(&self, (space, _): Place) -> u64 {
        self.existence_by_number(space).map_or(0, |space| space.changes())
    }

    /// Keeps out other writers of these ids, and schema changes, until it is dropped; without ids,
    /// all writers. What is marked meanwhile goes into one batch of the log, in which `reserved`
    /// has room for it. Its holder must not write other ids, and nothing at all without a
    /// reservation.
    pub fn exclusive<'a>(
        &'a self,
        ids: Option<Vec<u64>>,
        reserved: Option<Reserved<'a, Mark>>,
    ) -> Exclusive<'a, Mark> {
        let committer = self.durability.committer();
        // 0: the stripe of the catalogue.
        let hashes = ids.map(|ids| ids.into_iter().chain([0]).map(stripe_of));
        match (hashes, reserved) {
            (Some(hashes), None) => committer.several(hashes),
            (Some(hashes), Some(reserved)) => reserved.several(hashes),
            (None, None) => committer.exclusive(),
            (None, Some(reserved)) => reserved.exclusive(),
        }
    }

    /// Whether the schema of a counter space may be changed so.
    pub(crate) fn may_alter(
        &self,
        space: &CounterSpace,
        change: &Alteration,
    ) -> Result<(), AlterError> {
        match change {
            Alteration::Add { name, .. } if is_reserved(name) => {
                Err(AlterError::Reserved(name.clone()))
            }
            Alteration::Drop { name } => {
                let (position, _) = space.field(name.as_bytes())?;
                let is_this = |index: usize| self.counters[index].number == space.number;
                let in_use = |what, by: &str| AlterError::InUse {
                    what,
                    name: by.to_owned(),
                    field: name.clone(),
                };
                let moves = |action: &&Action| {
                    let all = std::iter::once((action.counter, action.field));
                    let beside = action.beside.iter().map(|beside| (beside.counter, beside.field));
                    all.chain(beside).any(|(index, field)| is_this(index) && field == position)
                };
                if let Some(action) = self.actions.iter().find(moves) {
                    return Err(in_use("action", &action.name));
                }
                let names = |view: &View, column: &Column| match *column {
                    Column::Field(source, field) => {
                        is_this(view.sources[source]) && field == position
                    }
                    _ => false,
                };
                let shows = |view: &&View| view.columns.iter().any(|c| names(view, c));
                self.views.iter().find(shows).map_or(Ok(()), |v| Err(in_use("view", &v.name)))
            }
            _ => Ok(()),
        }
    }

    /// Closes the newest table of an existence space, and logs that. False if it is empty.
    pub fn roll_pairs(&self, space: &ExistenceSpace) -> bool {
        let mut turn = self.turn(0);
        turn.concerns_all();
        // Trackers are told by `Tracking::tidy` if it moves the horizon.
        self.watches.swept();
        turn.mark(Mark::CATALOGUE);
        space.space.roll_now()
    }

    /// Moves early pairs of an existence space into its tables, and closes the newest, if that is
    /// due, and has it logged: what follows our log makes the same tables, and so do we, should we
    /// come to follow another's.
    pub(crate) fn move_on(&self, space: &ExistenceSpace) -> bool {
        let _turn = self.pair_guard(space, 0);
        space.space.move_on()
    }

    /// Closes the open table of a range of ids in which nothing new has come for the longest time,
    /// and logs that; whether there was one.
    pub(crate) fn close_range(&self, space: &ExistenceSpace) -> bool {
        let _turn = self.pair_guard(space, 0);
        space.space.close_range()
    }

    /// From now on our log says where tables begin.
    pub fn lead(&self) {
        self.follows.store(false, SeqCst);
        self.existences.iter().for_each(|space| space.space.lead());
    }

    /// From now on a master's log says where tables begin. Nothing decides that here any more when
    /// this returns, and what did is marked.
    pub fn follow(&self) {
        self.follows.store(true, SeqCst);
        self.existences.iter().for_each(|space| space.space.follow());
        self.groups.follow();
        drop(self.turn(0));
    }

    /// [`counter::Space::add`], within the space's share of the memory.
    #[inline]
    pub(super) fn add_to_row(
        &self,
        space: &CounterSpace,
        id: u64,
        changes: &[Delta],
        bounds: &Bounds,
        out: &mut Vec<i64>,
    ) -> Result<(), WriteError> {
        let first = out.len();
        self.with_share(
            || space.memory_limit_bytes(),
            || {
                out.truncate(first);
                Ok(space.space.add(id, changes, bounds, out)?)
            },
        )
    }

    /// [`counter::Space::set`], within the space's share of the memory.
    #[inline]
    fn set_in_row(
        &self,
        space: &CounterSpace,
        id: u64,
        values: &[(usize, i64)],
    ) -> Result<usize, WriteError> {
        self.with_share(|| space.memory_limit_bytes(), || Ok(space.space.set(id, values)?))
    }

    /// Adds to counters of one row; all or nothing. The new values of the changed fields are
    /// appended to `out`.
    #[inline]
    pub fn add(
        &self,
        space: &CounterSpace,
        id: u64,
        changes: &[Delta],
        bounds: &Bounds,
        out: &mut Vec<i64>,
    ) -> Result<(), WriteError> {
        let mut turn = self.turn(id);
        self.add_to_row(space, id, changes, bounds, out)?;
        self.changed_row(&mut turn, space, id);
        Ok(())
    }

    /// The same, but once: if the token was used already, what was answered then is appended, and
    /// nothing changes. `changes` names each field once.
    pub fn add_once(
        &self,
        space: &CounterSpace,
        id: u64,
        changes: &[Delta],
        bounds: &Bounds,
        once: Once<'_>,
        out: &mut Vec<i64>,
    ) -> Result<(), WriteError> {
        if !self.tokens.are_kept() {
            return Err(WriteError::NoTokens);
        }
        let used = Used::new(once, space.number, id, changes, bounds);
        let mut turn = self.turn(id);
        let others = used.otherwise(once, space.number, id, changes);
        for used in std::iter::once(used).chain(others) {
            if self.tokens.answer(used, out).map_err(|Another| WriteError::OtherIncrement)? {
                return Ok(());
            }
        }
        let first = out.len();
        // Within this turn, so that the row and the token are logged together.
        self.add(space, id, changes, bounds, out)?;
        self.tokens.put(used, &out[first..]);
        turn.mark_new(Mark::token(space.number, id, used.hash));
        Ok(())
    }

    /// Sets counters of one row, which `values` names at most once each. Returns the number of
    /// counters that were 0 or whose row did not exist.
    #[inline]
    pub fn set(
        &self,
        space: &CounterSpace,
        id: u64,
        values: &[(usize, i64)],
    ) -> Result<usize, WriteError> {
        let values = &*space.space.within_bounds(values)?;
        let mut turn = self.turn(id);
        let created = self.set_in_row(space, id, values)?;
        self.changed_row(&mut turn, space, id);
        Ok(created)
    }

    /// Sets counters that are all 0, or whose row does not exist. Returns false and changes nothing
    /// otherwise. Of two concurrent callers with values other than 0, one succeeds.
    pub fn set_new(
        &self,
        space: &CounterSpace,
        id: u64,
        values: &[(usize, i64)],
    ) -> Result<bool, WriteError> {
        let mut turn = self.turn(id);
        let mut row = vec![0; space.space.schema().width()];
        let exists = space.space.get(id, &mut row)?;
        if exists && values.iter().any(|&(field, _)| row.get(field).is_some_and(|now| *now != 0)) {
            return Ok(false);
        }
        let values = &*space.space.within_bounds(values)?;
        self.set_in_row(space, id, values)?;
        self.changed_row(&mut turn, space, id);
        Ok(true)
    }

    /// Makes a row what `values` says: the counters that it does not name become 0. `values` names
    /// at least one, and each at most once. False, and nothing is changed, if there is a row and it
    /// is not to be replaced. Two callers that replace nothing never both succeed.
    pub fn put_row(
        &self,
        space: &CounterSpace,
        id: u64,
        values: &[(usize, i64)],
        replace: bool,
    ) -> Result<bool, WriteError> {
        let mut turn = self.turn(id);
        let mut values = space.space.within_bounds(values)?.into_owned();
        if space.space.exists(id)? {
            if !replace {
                return Ok(false);
            }
            let schema = space.space.schema();
            let unnamed = |field: &usize| values.iter().all(|value| value.0 != *field);
            let zeros: Vec<_> =
                schema.living().map(|(field, _)| field).filter(unnamed).map(|f| (f, 0)).collect();
            values.extend(zeros);
        }
        self.set_in_row(space, id, &values)?;
        self.changed_row(&mut turn, space, id);
        Ok(true)
    }

    /// Sets one counter. False, and nothing is changed, if it is not 0 and is not to be replaced.
    pub fn put_cell(
        &self,
        space: &CounterSpace,
        id: u64,
        value: (usize, i64),
        replace: bool,
    ) -> Result<bool, WriteError> {
        let mut turn = self.turn(id);
        let values = [value];
        let values = &*space.space.within_bounds(&values)?;
        if !replace {
            let mut row = vec![0; space.space.schema().width()];
            let there = space.space.get(id, &mut row)?;
            if there && row.get(value.0).copied().unwrap_or(0) != 0 {
                return Ok(false);
            }
        }
        self.set_in_row(space, id, values)?;
        self.changed_row(&mut turn, space, id);
        Ok(true)
    }

    /// Deletes one counter: makes it 0, as its row keeps the others. False if it was 0, or there is
    /// no row. A row of that field only is deleted.
    pub fn clear(&self, space: &CounterSpace, id: u64, field: usize) -> Result<bool, WriteError> {
        if space.has_one_field() {
            return self.delete(space, id);
        }
        let mut turn = self.turn(id);
        let mut row = vec![0; space.space.schema().width()];
        if !space.space.get(id, &mut row)? || row.get(field).copied().unwrap_or(0) == 0 {
            return Ok(false);
        }
        self.set_in_row(space, id, &[(field, 0)])?;
        self.changed_row(&mut turn, space, id);
        Ok(true)
    }

    /// Deletes a row, and leaves the flags of its id as they are. False if there was none.
    #[inline]
    pub fn delete_row(&self, space: &CounterSpace, id: u64) -> Result<bool, WriteError> {
        let mut turn = self.turn(id);
        let deleted = space.space.delete(id)?;
        if deleted {
            self.changed_row(&mut turn, space, id);
        }
        Ok(deleted)
    }

    /// Sets a pair.
    #[inline]
    pub fn flag(
        &self,
        space: &ExistenceSpace,
        id: u64,
        member: &Member<'_>,
    ) -> Result<Change, WriteError> {
        space.may_write(member)?;
        let mut turn = self.pair_guard(space, id);
        let mut change =
            self.with_share(|| space.filter_bytes_limit(), || Ok(space.space.add(id, member)?))?;
        if change == Change::Unchanged && !space.is_true(id, member)? {
            change = Change::Changed;
        }
        self.mark_pair(&mut turn, space, id, member, change, true, None);
        Ok(change)
    }

    /// Unsets a pair.
    #[inline]
    pub fn unflag(
        &self,
        space: &ExistenceSpace,
        id: u64,
        member: &Member<'_>,
    ) -> Result<Change, WriteError> {
        let mut turn = self.pair_guard(space, id);
        let change = space.remove_true(id, member, || Ok(()))?;
        self.mark_pair(&mut turn, space, id, member, change, false, None);
        Ok(change)
    }

    /// A pair that was to be set and seemed to be set is marked, too: it may only have seemed so,
    /// and a filter that is rebuilt from the log need not have the same chance hits. A client that
    /// was told that it is set must find it (promise 6). Where a ledger says it, it is logged
    /// already. With it the row of the id in the counter space `row`, if that has changed.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "what a change of a pair is")]
    pub(super) fn mark_pair(
        &self,
        turn: &mut WriteGuard<'_, Mark>,
        space: &ExistenceSpace,
        id: u64,
        member: &Member<'_>,
        change: Change,
        to_set: bool,
        row: Option<u32>,
    ) {
        if change == Change::Changed {
            if let Some(ledger) = &space.ledger {
                ledger.set(id, member, to_set);
            }
            self.changed(space.number, id);
        }
        let may_be_new = change == Change::Unchanged && to_set && space.ledger.is_none();
        let is_marked = change == Change::Changed || may_be_new;
        let mark = || Mark::pair(space.number, id, space.marked(id, member), to_set);
        let alone = match row {
            Some(row) if is_marked => match mark().with_row(row) {
                Some(both) => return turn.mark_new(both),
                None => Some(row),
            },
            other => other,
        };
        alone.into_iter().for_each(|row| turn.mark(Mark::row(row, id)));
        if is_marked {
            turn.mark_new(mark());
        }
    }
}

impl ExistenceSpace {
    /// Whether its ledger takes one more pair with this member.
    #[inline]
    pub fn may_write(&self, member: &Member<'_>) -> Result<(), WriteError> {
        let Some(ledger) = &self.ledger else { return Ok(()) };
        if !ledger.takes(member) {
            return Err(WriteError::MemberTooLong);
        }
        match ledger.ledger().is_full() {
            true => Err(WriteError::LedgerFull(self.name().to_owned())),
            false => Ok(()),
        }
    }

    /// The member as a mark names it.
    #[inline]
    fn marked(&self, id: u64, member: &Member<'_>) -> MarkedMember {
        match &self.ledger {
            Some(ledger) => ledger.marked(id, member),
            None => MarkedMember::new(&self.space, id, member),
        }
    }

    /// Unsets a pair if it is set, once `first` has run; with a ledger, if that says so, too. Then
    /// there is no bound for pairs that are unset: where the filters can keep no more of them, they
    /// go on saying yes, and only what is exact says no.
    #[inline]
    pub(super) fn remove_true(
        &self,
        id: u64,
        member: &Member<'_>,
        mut first: impl FnMut() -> Result<(), WriteError>,
    ) -> Result<Change, WriteError> {
        if self.ledger.as_ref().is_some_and(|ledger| ledger.ledger().is_full_of_unset()) {
            return Err(WriteError::LedgerFull(self.name().to_owned()));
        }
        /// Why a pair that seemed to be set stays as it is.
        enum Stop {
            NotSet,
            Full(phantom::Error),
            Refused(WriteError),
        }
        impl From<phantom::Error> for Stop {
            fn from(error: phantom::Error) -> Stop {
                Stop::Full(error)
            }
        }
        let mut check = || match self.is_true(id, member)? {
            true => first().map(|()| true),
            false => Ok(false),
        };
        let unsets = || match check() {
            Ok(true) => Ok(()),
            Ok(false) => Err(Stop::NotSet),
            Err(error) => Err(Stop::Refused(error)),
        };
        match self.space.remove_with(id, member, unsets) {
            Ok(change) => Ok(change),
            Err(Stop::NotSet) => Ok(Change::Unchanged),
            Err(Stop::Refused(error)) => Err(error),
            Err(Stop::Full(phantom::Error::RevokedFull)) if self.ledger.is_some() => {
                Ok(if check()? { Change::Changed } else { Change::Unchanged })
            }
            Err(Stop::Full(error)) => Err(error.into()),
        }
    }
}
