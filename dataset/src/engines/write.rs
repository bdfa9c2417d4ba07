//! All writes to a data set.
//!
//! A write locks the id's stripe of the committer, changes the data, and marks the changed keys for
//! the log thread. It holds the stripe until the end, so writers of one id exclude each other, and
//! a log batch never separates a flag from its counter (`store/src/commit`).

use crate::dirty_keys::{Mark, MarkedMember};
use crate::engines::action::Action;
use crate::engines::error::{AlterError, WriteError};
use crate::engines::registry::Engines;
use crate::engines::spaces::{CounterSpace, ExistenceSpace, is_reserved};
use crate::engines::view::{Column, View};
use crate::tokens::{IncrementMismatch, TokenUse, Used};
use crate::watch::WatchedId;
use counter::{Alteration, Bounds, Change as Delta};
use phantom::{Change, Member};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{Ordering::SeqCst, fence};
use store::{BatchReservation, Exclusive, Ticket, WriteGuard};

/// A watched key and its state at the time of WATCH.
pub struct WatchedState {
    pub(crate) place: WatchedId,
    changes: u64,
    sweeps: u64,
    rolls: u64,
}

/// Hash that selects an id's stripe. Fibonacci hashing assigns adjacent ids to different stripes.
#[inline]
fn stripe_of(id: u64) -> u64 {
    id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32
}

/// Guard of a write to an existence space. When dropped, it marks the catalogue as changed if the
/// write created a table or moved outliers (ids far above all tables). Even a refused write may
/// create a table or move outliers.
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
        if self.space.take_unlogged_changes() {
            self.turn.mark(Mark::CATALOGUE);
        }
    }
}

impl Engines {
    #[inline]
    pub(crate) fn turn(&self, id: u64) -> WriteGuard<'_, Mark> {
        let mut turn = self.durability.committer().enter(stripe_of(id));
        turn.prefetch_mark(rolling::prefetch_to_write);
        turn
    }

    #[inline]
    pub(super) fn pair_guard<'a>(&'a self, space: &'a ExistenceSpace, id: u64) -> PairGuard<'a> {
        PairGuard { turn: self.turn(id), space: &space.space }
    }

    /// Records that the caller has just read this id; see [`store::Committer::last_change`].
    #[inline]
    pub fn last_change(&self, id: u64) -> Ticket {
        self.durability.committer().last_change(stripe_of(id))
    }

    /// Prefetches the cache lines that every write of an id uses.
    #[inline]
    pub fn hint(&self, id: u64) {
        self.durability
            .committer()
            .stripe_lines(stripe_of(id))
            .into_iter()
            .for_each(rolling::prefetch_to_write);
    }

    /// Excludes other writers of this id until the guard is dropped. For changes that depend on the
    /// current state.
    pub fn lock_id(&self, id: u64) -> WriteGuard<'_, Mark> {
        self.turn(id)
    }

    /// Notifies WATCH and client tracking of a change. The caller holds the id's stripe and has
    /// made the change.
    #[inline]
    pub(super) fn changed(&self, space: u32, id: u64) {
        self.watches.changed(space, id);
        if let Some(listener) = self.tracking.any() {
            listener.changed(self, (space, id));
        }
    }

    /// Notifies WATCH and client tracking of changes by a log record. Replay locks no stripe.
    pub(crate) fn changed_by_log(&self, space: u32, ids: impl Iterator<Item = u64> + Clone) {
        ids.clone().for_each(|id| self.watches.changed(space, id));
        // Pairs with the fence in `Tracking::start`: a client that this load misses starts tracking
        // after the fence, so it reads the changed data.
        fence(SeqCst);
        if let Some(listener) = self.tracking.any() {
            listener.begin();
            ids.for_each(|id| listener.changed(self, (space, id)));
            listener.end(self);
        }
    }

    /// Notifies WATCH and client tracking that any key may have changed, for example by a schema
    /// change.
    pub fn all_changed(&self) {
        self.watches.count_space_change();
        fence(SeqCst);
        if let Some(listener) = self.tracking.any() {
            listener.all_changed();
        }
    }

    /// Waits for all writers that hold a stripe. Later writers see all previous stores of this
    /// thread. The caller must hold either no stripe or all stripes.
    pub fn wait_for_writers(&self) {
        self.durability.committer().wait_for_stripe_writers();
    }

    /// Marks a changed row for the log and notifies WATCH and client tracking.
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

    /// Starts to watch a key. Returns the key's current state, to be passed to
    /// [`Engines::has_changed`].
    pub fn watch(&self, place: WatchedId) -> WatchedState {
        let changes = self.watches.watch(place);
        // Wait for a writer that holds the stripe. Later writers see the watch.
        drop(self.turn(place.1));
        WatchedState { place, changes, sweeps: self.watches.sweeps(), rolls: self.rolls(place) }
    }

    /// Stops watching.
    pub fn unwatch(&self, seen: &WatchedState) {
        self.watches.unwatch(seen.place);
    }

    /// Whether a watched key may have changed. The caller must exclude the key's writers; for
    /// pairs, all writers.
    pub fn has_changed(&self, seen: &WatchedState) -> bool {
        let now = (self.watches.changes(seen.place), self.watches.sweeps(), self.rolls(seen.place));
        now != (Some(seen.changes), seen.sweeps, seen.rolls)
    }

    /// Number of changes to an existence space's ring. After a table is recycled, lookups of its
    /// pairs return "unknown".
    fn rolls(&self, (space, _): WatchedId) -> u64 {
        self.existence_by_number(space).map_or(0, |space| space.changes())
    }

    /// Excludes schema changes and other writers of these ids, or all writers for `None`, until the
    /// guard is dropped. All marks are in one log batch; `reserved` guarantees that the marks fit
    /// into the batch. The caller may write only these ids, and only with a reservation.
    pub fn exclusive<'a>(
        &'a self,
        ids: Option<Vec<u64>>,
        reserved: Option<BatchReservation<'a, Mark>>,
    ) -> Exclusive<'a, Mark> {
        let committer = self.durability.committer();
        // Id 0 selects the catalogue's stripe.
        let hashes = ids.map(|ids| ids.into_iter().chain([0]).map(stripe_of));
        match (hashes, reserved) {
            (Some(hashes), None) => committer.several(hashes),
            (Some(hashes), Some(reserved)) => reserved.several(hashes),
            (None, None) => committer.exclusive(),
            (None, Some(reserved)) => reserved.exclusive(),
        }
    }

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

    /// Closes the newest table of an existence space, and marks the change for the log. Returns
    /// false if the table is empty.
    pub fn roll_pairs(&self, space: &ExistenceSpace) -> bool {
        let mut turn = self.turn(0);
        turn.affects_all_ids();
        // If this moves the horizon, `Tracking::tidy` notifies trackers.
        self.watches.count_space_change();
        turn.mark(Mark::CATALOGUE);
        space.space.roll_now()
    }

    /// Moves outliers of an existence space to its tables, and closes the newest table if it is
    /// full. Marks this for the log. Replicas thus create the same tables.
    pub(crate) fn move_on(&self, space: &ExistenceSpace) -> bool {
        let _turn = self.pair_guard(space, 0);
        space.space.move_on()
    }

    /// Closes the open table of the id range that has been idle longest, and marks this for the
    /// log. Returns whether there was such a table.
    pub(crate) fn close_range(&self, space: &ExistenceSpace) -> bool {
        let _turn = self.pair_guard(space, 0);
        space.space.close_range()
    }

    /// Makes this node determine the boundaries of tables.
    pub fn lead(&self) {
        self.follows.store(false, SeqCst);
        self.existences.iter().for_each(|space| space.space.lead());
    }

    /// Makes a master's log determine the boundaries of tables. On return this node no longer
    /// changes boundaries, and its earlier changes are marked for the log.
    pub fn follow(&self) {
        self.follows.store(true, SeqCst);
        self.existences.iter().for_each(|space| space.space.follow());
        self.groups.follow();
        drop(self.turn(0));
    }

    /// Calls [`counter::Space::add`], and retries if a new division of the budget raises the
    /// space's memory limit.
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

    /// Calls [`counter::Space::set`], and retries if a new division of the budget raises the
    /// space's memory limit.
    #[inline]
    fn set_in_row(
        &self,
        space: &CounterSpace,
        id: u64,
        values: &[(usize, i64)],
    ) -> Result<usize, WriteError> {
        self.with_share(|| space.memory_limit_bytes(), || Ok(space.space.set(id, values)?))
    }

    /// Adds to counters of one row, all or nothing. Appends the new values of the changed fields to
    /// `out`.
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

    /// Like [`Engines::add`], but at most once per token: if the token was used, appends the values
    /// of the first reply and changes nothing. `changes` contains each field at most once.
    pub fn add_once(
        &self,
        space: &CounterSpace,
        id: u64,
        changes: &[Delta],
        bounds: &Bounds,
        once: TokenUse<'_>,
        out: &mut Vec<i64>,
    ) -> Result<(), WriteError> {
        if !self.tokens.is_enabled() {
            return Err(WriteError::NoTokens);
        }
        let used = Used::new(once, space.number, id, changes, bounds);
        let mut turn = self.turn(id);
        let others = used.other_form(once, space.number, id, changes);
        for used in std::iter::once(used).chain(others) {
            if self
                .tokens
                .answer(used, out)
                .map_err(|IncrementMismatch| WriteError::OtherIncrement)?
            {
                return Ok(());
            }
        }
        let first = out.len();
        // Both writes happen while one stripe is locked, so the row and the token are in one log
        // batch.
        self.add(space, id, changes, bounds, out)?;
        self.tokens.put(used, &out[first..]);
        turn.mark_new(Mark::token(space.number, id, used.hash));
        Ok(())
    }

    /// Sets counters of one row; `values` contains each field at most once. Returns the number of
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

    /// Sets counters if all of them are 0 or the row does not exist. Otherwise returns false and
    /// changes nothing. Of two concurrent callers with nonzero values, one succeeds.
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

    /// Replaces a row: counters that `values` does not contain become 0. `values` contains at least
    /// one field, and each at most once. If the row exists and `replace` is false, returns false
    /// and changes nothing. Of two concurrent callers without `replace`, at most one succeeds.
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

    /// Sets one counter. If it is not 0 and `replace` is false, returns false and changes nothing.
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

    /// Sets one counter to 0, or deletes the row if it has no other field. Returns false if the
    /// counter was 0 or the row did not exist.
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

    /// Deletes a row but not the flags of its id. Returns false if the row did not exist.
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
        if change == Change::Unchanged && !space.confirm_set(id, member)? {
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

    /// Marks a change of a pair for the log, and the id's row in counter space `row` if it has also
    /// changed. Updates the ledger.
    ///
    /// Without a ledger, also marks a pair that the filters reported as set. The report may be a
    /// false positive, which filters rebuilt from the log would not repeat. A client that received
    /// the reply "already set" must still find the pair after a restart (promise 6 in
    /// `docs/promises.md`).
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the change of a pair")]
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
    /// Checks that the ledger accepts another pair with this member.
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

    #[inline]
    fn marked(&self, id: u64, member: &Member<'_>) -> MarkedMember {
        match &self.ledger {
            Some(ledger) => ledger.marked(id, member),
            None => MarkedMember::new(&self.space, id, member),
        }
    }

    /// Unsets a pair if it is set and `first` succeeds. If there is a ledger, it determines whether
    /// the pair is set, and the number of unset pairs is not limited. Filters that cannot record
    /// another unset pair keep reporting it as set, and only the ledger has the correct state.
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
        /// Reason why a pair that the filters report as set stays unchanged.
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
        let mut check = || match self.confirm_set(id, member)? {
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
