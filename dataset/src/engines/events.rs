//! Events of a broker, taken over in one step with how far its stream is read (`offsets.rs`).
//!
//! A step holds the stripes of all that its events touch, and the catalogue's: what it changes and
//! the offset go into one batch of the log. So the number of events of one step is its caller's
//! turn, in which writers of these ids wait; readers wait for nothing.

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
use store::Reserved;

/// What an event does to its id.
#[derive(Clone, Copy)]
pub enum Doing<'a> {
    /// An action, by this member.
    Act(&'a Action, Member<'a>),
    /// Undoes it.
    Undo(&'a Action, Member<'a>),
    /// Adds to a counter.
    Add(&'a CounterSpace, usize, i64),
    /// Sets it.
    Set(&'a CounterSpace, usize, i64),
}

/// An event, ready to be made.
#[derive(Clone, Copy)]
pub struct Event<'a> {
    /// The id that it is about.
    pub id: u64,
    /// What it does.
    pub doing: Doing<'a>,
    /// The source's offset before it.
    pub at: Offset,
}

impl Event<'_> {
    /// The other id that it changes a row of.
    fn other(&self) -> Option<u64> {
        match self.doing {
            Doing::Act(action, Member::Number(member))
            | Doing::Undo(action, Member::Number(member))
                if action.counts_member() =>
            {
                Some(member)
            }
            _ => None,
        }
    }
}

/// A partition of a source of events.
#[derive(Clone, Copy)]
pub struct Partition<'a> {
    /// The source's name.
    pub source: &'a str,
    /// The partition's number; 0 of a source that has none.
    pub number: u32,
}

impl Engines {
    /// Bytes of the log that a row takes at most.
    pub fn log_bytes_of_row(&self, space: &CounterSpace) -> usize {
        ID_BYTES + space.schema().width() * VALUE_BYTES
    }

    /// The same of a pair of any space.
    pub fn log_bytes_of_pair(&self) -> usize {
        let spaces = self.existences().iter().map(|space| space.log_bytes_of_pair());
        spaces.max().unwrap_or(PAIR_BYTES)
    }

    /// The same of so many events of one step, with the offset.
    pub fn log_bytes_of_events(&self, events: usize) -> usize {
        let rows: usize = self.counters().iter().map(|space| self.log_bytes_of_row(space)).sum();
        // The id's, and the member's.
        RECORD_BYTES + events * (self.log_bytes_of_pair() + 2 * rows)
    }

    /// Makes these events, and moves the partition's offset to `end`; both or neither, whatever
    /// comes. `from`: where the offset is believed to be; if it is not there nothing is done.
    /// `each` hears what came of an event; at one with which it breaks the step ends, before that
    /// event, which has changed nothing then: it was refused. Gives how many were made. `reserved`
    /// has [`Engines::log_bytes_of_events`].
    pub fn take_over(
        &self,
        partition: Partition<'_>,
        events: &[Event<'_>],
        (from, end): (Option<Offset>, Offset),
        reserved: Reserved<'_, Mark>,
        mut each: impl FnMut(usize, Result<Change, WriteError>) -> ControlFlow<()>,
    ) -> Result<usize, Moved> {
        let ids = events.iter().flat_map(|event| std::iter::once(event.id).chain(event.other()));
        let _alone = self.exclusive(Some(ids.collect()), Some(reserved));
        // Under the catalogue's stripe, in which all that move it are.
        if self.offsets.get(partition.source, partition.number) != from {
            return Err(Moved);
        }
        let mut scratch = Vec::new();
        let mut made = 0;
        for event in events {
            let outcome = self.make(event, &mut scratch);
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

    fn make(&self, event: &Event<'_>, scratch: &mut Vec<i64>) -> Result<Change, WriteError> {
        let id = event.id;
        match event.doing {
            Doing::Act(action, member) => self.act(action, &member, id, scratch),
            Doing::Undo(action, member) => self.undo(action, &member, id, scratch),
            Doing::Add(space, field, delta) => {
                scratch.clear();
                let changes = [Delta { field, delta }];
                self.add(space, id, &changes, &Bounds::default(), scratch).map(|()| Change::Changed)
            }
            Doing::Set(space, field, value) => {
                self.set(space, id, &[(field, value)]).map(|_| Change::Changed)
            }
        }
    }

    /// Where a source is to be read on from now, whatever it was. False: there are too many
    /// offsets.
    pub fn move_offset(&self, partition: Partition<'_>, to: Offset) -> bool {
        // The stripe of the catalogue.
        let mut turn = self.turn(0);
        let number = self.offsets.put(partition.source, partition.number, to);
        if let Some(number) = number {
            turn.mark(Mark::offset(number));
        }
        number.is_some()
    }
}
