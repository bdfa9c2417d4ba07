//! Applies events of a broker together with their offset (`offsets.rs`).
//!
//! A step locks the stripes of all ids in its events and the catalogue's stripe. The changes and
//! the offset are thus in one log batch. Writers of these ids wait during the step, so the caller
//! limits the number of events per step. Readers do not wait.

use crate::dirty_keys::Mark;
use crate::engines::action::Action;
use crate::engines::error::WriteError;
use crate::engines::registry::Engines;
use crate::engines::spaces::CounterSpace;
use crate::log_records::{ID_BYTES, PAIR_BYTES, VALUE_BYTES};
use crate::offsets::{Moved, Offset, RECORD_BYTES};
use counter::{Bounds, Change as Delta};
use phantom::{Change, Member};
use std::ops::ControlFlow;
use store::BatchReservation;

/// Effect of an event on its id.
#[derive(Clone, Copy)]
pub enum EventEffect<'a> {
    /// Executes an action of this member.
    Act(&'a Action, Member<'a>),
    /// Undoes an action of this member.
    Undo(&'a Action, Member<'a>),
    /// Adds to a counter of the space, at this field position.
    Add(&'a CounterSpace, usize, i64),
    /// Sets a counter of the space, at this field position.
    Set(&'a CounterSpace, usize, i64),
}

/// Decoded event.
#[derive(Clone, Copy)]
pub struct Event<'a> {
    /// Id that the event changes.
    pub id: u64,
    /// Effect on the id.
    pub doing: EventEffect<'a>,
    /// Offset of the source before this event.
    pub at: Offset,
}

impl Event<'_> {
    /// Member whose row the event also changes.
    fn other(&self) -> Option<u64> {
        match self.doing {
            EventEffect::Act(action, Member::Number(member))
            | EventEffect::Undo(action, Member::Number(member))
                if action.counts_member() =>
            {
                Some(member)
            }
            _ => None,
        }
    }
}

/// Partition of an event source.
#[derive(Clone, Copy)]
pub struct Partition<'a> {
    /// Name of the source.
    pub source: &'a str,
    /// Partition number; 0 if the source has no partitions.
    pub number: u32,
}

impl Engines {
    /// Maximum size of a row in the log, in bytes.
    pub fn log_bytes_of_row(&self, space: &CounterSpace) -> usize {
        ID_BYTES + space.schema().width() * VALUE_BYTES
    }

    /// Maximum size of a pair of any space in the log, in bytes.
    pub fn log_bytes_of_pair(&self) -> usize {
        let spaces = self.existences().iter().map(|space| space.log_bytes_of_pair());
        spaces.max().unwrap_or(PAIR_BYTES)
    }

    /// Maximum size of `events` events and the offset in the log, in bytes.
    pub fn log_bytes_of_events(&self, events: usize) -> usize {
        let rows: usize = self.counters().iter().map(|space| self.log_bytes_of_row(space)).sum();
        // Per space, an event changes at most one row of its id and one row of its member.
        RECORD_BYTES + events * (self.log_bytes_of_pair() + 2 * rows)
    }

    /// Applies events and sets the partition's offset, atomically. Returns the number of applied
    /// events.
    ///
    /// - `from`: expected current offset. If it differs, nothing changes.
    /// - `end`: new offset if all events are applied.
    /// - `reserved`: room in the log for [`Engines::log_bytes_of_events`].
    /// - `each`: called with the result of each event. A failed event has changed nothing. If
    ///   `each` breaks, the step ends before the failed event.
    ///
    /// # Errors
    ///
    /// Returns [`Moved`] if the current offset is not `from`.
    pub fn take_over(
        &self,
        partition: Partition<'_>,
        events: &[Event<'_>],
        (from, end): (Option<Offset>, Offset),
        reserved: BatchReservation<'_, Mark>,
        mut each: impl FnMut(usize, Result<Change, WriteError>) -> ControlFlow<()>,
    ) -> Result<usize, Moved> {
        let ids = events.iter().flat_map(|event| std::iter::once(event.id).chain(event.other()));
        let _alone = self.exclusive(Some(ids.collect()), Some(reserved));
        // `exclusive` includes the catalogue's stripe, which protects offsets.
        if self.offsets.get(partition.source, partition.number) != from {
            return Err(Moved);
        }
        let mut scratch = Vec::new();
        let mut made = 0;
        for event in events {
            let outcome = self.apply_event(event, &mut scratch);
            let may_end = outcome.is_err();
            if each(made, outcome).is_break() && may_end {
                break;
            }
            made += 1;
        }
        let to = events.get(made).map_or(end, |event| event.at);
        self.move_offset(partition, to);
        Ok(made)
    }

    fn apply_event(&self, event: &Event<'_>, scratch: &mut Vec<i64>) -> Result<Change, WriteError> {
        let id = event.id;
        match event.doing {
            EventEffect::Act(action, member) => self.act(action, &member, id, scratch),
            EventEffect::Undo(action, member) => self.undo(action, &member, id, scratch),
            EventEffect::Add(space, field, delta) => {
                scratch.clear();
                let changes = [Delta { field, delta }];
                self.add(space, id, &changes, &Bounds::default(), scratch).map(|()| Change::Changed)
            }
            EventEffect::Set(space, field, value) => {
                self.set(space, id, &[(field, value)]).map(|_| Change::Changed)
            }
        }
    }

    /// Sets the offset of a source. Returns false if there are too many offsets.
    pub fn move_offset(&self, partition: Partition<'_>, to: Offset) -> bool {
        // Lock the catalogue's stripe, which protects offsets.
        let mut turn = self.turn(0);
        let number = self.offsets.put(partition.source, partition.number, to);
        if let Some(number) = number {
            turn.mark(Mark::offset(number));
        }
        number.is_some()
    }
}
