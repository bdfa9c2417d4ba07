//! Changes: the log as a stream for consumers.
//!
//! ```text
//!   batch at offset 900 of the log, chain value ..417
//!     record: rows of space 1      row 7   -> entry 1, id <term>-901417
//!                                  row 9   -> entry 2, id <term>-902417
//!     record: pairs of space 2     7, 42   -> entry 3, id <term>-903417
//! ```
//!
//! An entry contains the state of one row, one pair or the catalogue, as in the log (promise 2 in
//! `docs/promises.md`). A consumer may receive an entry twice; the state received last is current.
//!
//! An *id* consists of the term, the entry's place, and three digits of the batch's chain value.
//! The *place* is the log offset of the batch plus the entry's position within the batch, starting
//! at 1. Places are unique because an entry takes at least one byte of the log. Term and chain
//! value identify the history: a reader detects an id from a diverged log
//! (`docs/decisions/0015-changes-are-read-from-the-log.md`).
//!
//! Changes are stored only in the log. [`ChangeLog`] caches one position per 64 KiB, and the number
//! of entries of each space in each segment.

use crate::dirty_keys::MarkedMember;
use crate::log_records::{
    RecordKind, decode_forgotten, read_exact_pairs, read_pairs, read_rows, take_number,
};
use std::cell::Cell;
use std::fmt;
use store::Records;

mod log;

pub use log::{ChangeCursor, ChangeLog, ChangeReadError, EntrySummary, Scope, Start};

/// `seq` is the place times this factor, plus three digits of the chain value.
const CHECKS: u64 = 1000;

/// Id of an entry. Ids are ordered by position and have the text format of Redis stream ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    /// Term of the history that contains the entry.
    pub term: u64,
    /// Place and digits of the chain value.
    pub seq: u64,
}

impl Id {
    /// An id less than that of every entry.
    pub const MIN: Id = Id { term: 0, seq: 0 };
    /// An id greater than that of every entry.
    pub const MAX: Id = Id { term: u64::MAX, seq: u64::MAX };

    /// Returns the id of entry `number` of a batch, counted from 0.
    fn of(term: u64, offset: u64, chain: u32, number: u32) -> Id {
        let place = offset.saturating_add(u64::from(number) + 1);
        Id { term, seq: place.saturating_mul(CHECKS).saturating_add(u64::from(chain) % CHECKS) }
    }

    /// Returns a log offset within the id's batch, or `None` for place 0.
    fn byte(self) -> Option<u64> {
        (self.seq / CHECKS).checked_sub(1)
    }

    /// Returns the next lower id, or the lowest id itself.
    pub fn before(self) -> Id {
        match (self.term, self.seq) {
            (0, 0) => self,
            (term, 0) => Id { term: term - 1, seq: u64::MAX },
            (term, seq) => Id { term, seq: seq - 1 },
        }
    }

    /// Returns the next higher id.
    pub fn after(self) -> Option<Id> {
        match (self.term, self.seq) {
            (u64::MAX, u64::MAX) => None,
            (term, u64::MAX) => Some(Id { term: term + 1, seq: 0 }),
            (term, seq) => Some(Id { term, seq: seq + 1 }),
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.term, self.seq)
    }
}

/// Content of an entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change<'a> {
    /// Encoded catalogue.
    Catalogue(&'a [u8]),
    /// Row of a counter space: id and values, or `None` if the row does not exist.
    Row(u64, Option<&'a [i64]>),
    /// Pair of an existence space: id, member, and whether the pair is set.
    Pair(u64, MarkedMember, bool),
    /// Pair of a space with a ledger, with its original member.
    ExactPair(ledger::Pair<'a>),
    /// Horizon of an existence space: the lowest id with pairs.
    Horizon(u64),
    /// Id of an existence space whose pairs were all unset.
    Forgotten(u64),
}

/// Calls `each` for the entries of a batch's body: the entry's position in the batch, its space,
/// and its content. Stops when `each` returns false. The error describes damage.
pub fn each_change(
    body: &[u8],
    mut each: impl FnMut(u32, u32, Change<'_>) -> bool,
) -> Result<(), String> {
    let stopped = Cell::new(false);
    let mut number = 0;
    let mut tell = |space: u32, change: Change<'_>| {
        stopped.set(!each(number, space, change));
        number += 1;
        // Return an error, because nothing else stops the decoder of a record.
        if stopped.get() { Err(String::new()) } else { Ok(()) }
    };
    for record in Records::new(body) {
        let record = record?;
        let (space, mut payload) = (record.space, record.payload);
        let told = match RecordKind::from_number(record.kind) {
            Some(RecordKind::Catalogue) => tell(0, Change::Catalogue(payload)),
            Some(RecordKind::Rows) => {
                read_rows(payload, |id, values| tell(space, Change::Row(id, values)))
            }
            Some(RecordKind::Pairs) => {
                read_pairs(payload, |id, member, set| tell(space, Change::Pair(id, member, set)))
            }
            Some(RecordKind::ExactPairs) => {
                read_exact_pairs(payload, |pair, _| tell(space, Change::ExactPair(pair)))
            }
            Some(RecordKind::Forgotten) => {
                let mut ids = decode_forgotten(payload)?.into_iter();
                ids.try_for_each(|(id, _)| tell(space, Change::Forgotten(id)))
            }
            Some(RecordKind::Layout | RecordKind::Ring) if !payload.is_empty() => {
                take_number(&mut payload).and_then(|low| tell(space, Change::Horizon(low)))
            }
            // Records that change no row and no pair.
            Some(
                RecordKind::Layout
                | RecordKind::Ring
                | RecordKind::Table
                | RecordKind::Head
                | RecordKind::Frontier
                | RecordKind::LatePairs
                | RecordKind::Tokens
                | RecordKind::Groups
                | RecordKind::Offsets,
            )
            | None => Ok(()),
        };
        if stopped.get() {
            return Ok(());
        }
        told?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_records::Commit;
    use store::Batch;

    #[test]
    fn ids_rise_with_places_and_have_neighbours() {
        let ids = [
            Id::of(1, 0, 999, 0),
            Id::of(1, 0, 999, 1),
            Id::of(1, 44, 0, 0),
            Id::of(2, 44, 0, 0),
            Id::of(2, u64::MAX, u32::MAX, u32::MAX),
        ];
        assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
        assert_eq!((ids[0].byte(), ids[1].byte(), Id::MIN.byte()), (Some(0), Some(1), None));
        assert_eq!(ids[0].to_string(), "1-1999");
        for id in ids {
            assert_eq!(id.before().after(), Some(id));
        }
        assert_eq!((Id::MIN.before(), Id::MAX.after()), (Id::MIN, None));
        assert_eq!(Id { term: 3, seq: 0 }.before(), Id { term: 2, seq: u64::MAX });
    }

    #[test]
    fn a_batch_is_told_in_its_order_until_that_is_enough() {
        let mut batch = Batch::new();
        batch.push(0, RecordKind::Catalogue as u8, b"version = 1");
        batch.push(2, RecordKind::Ring as u8, &[7, 1, 100]);
        batch.push(2, RecordKind::Frontier as u8, &[]);
        batch.push(2, RecordKind::Forgotten as u8, &[7, 1, 1, 2]);
        let mut commit = Commit::default();
        commit.row(1, 9, 2, |_| Ok(false)).unwrap();
        commit
            .row(1, 7, 2, |values| {
                values.copy_from_slice(&[5, -1]);
                Ok(true)
            })
            .unwrap();
        commit.pair(2, 7, MarkedMember::Number(42), true);
        commit.encode(&mut batch);
        let told = |most: u32| {
            let mut told = Vec::new();
            each_change(batch.body(), |number, space, change| {
                told.push(format!("{number} {space} {change:?}"));
                number + 1 < most
            })
            .unwrap();
            told
        };
        let all = told(u32::MAX);
        assert_eq!(all.len(), 7);
        assert!(all[0].starts_with("0 0 Catalogue"));
        assert_eq!(
            all[1..],
            [
                "1 2 Horizon(7)",
                "2 2 Forgotten(7)",
                "3 2 Forgotten(8)",
                "4 1 Row(7, Some([5, -1]))",
                "5 1 Row(9, None)",
                "6 2 Pair(7, Number(42), true)"
            ]
        );
        for most in 1..=7 {
            assert_eq!(told(most), all[..most as usize]);
        }
        let damaged = &batch.body()[..batch.body().len() - 1];
        assert!(each_change(damaged, |_, _, _| true).is_err());
    }
}
