//! Where the log ended when each of the last rounds was done: WAIT waits for what was written
//! before it, and not for what has come since.

use parking_lot::Mutex;
use std::collections::VecDeque;
use store::Ticket;

/// Rounds that are remembered. Of an earlier one it is only known that it ended before the oldest
/// of them did.
const KEPT: usize = 64;

/// Rounds, and the offset at which the log ended: both rise.
#[derive(Default)]
pub(crate) struct Ends(Mutex<VecDeque<(Ticket, u64)>>);

impl Ends {
    /// A master's log begins: all up to `round` lies before `offset`, and so does what others have
    /// written into it.
    pub(crate) fn begin(&self, round: Ticket, offset: u64) {
        let mut ends = self.0.lock();
        ends.clear();
        ends.push_back((round, offset));
    }

    /// All up to `round` is as safe as a reply promises, and lies before `offset`. False if there
    /// is nothing new: the round before had it all, or this one has failed.
    pub(crate) fn note(&self, round: Ticket, offset: u64) -> bool {
        let mut ends = self.0.lock();
        match ends.back_mut() {
            Some(last) if round <= last.0 => return false,
            Some(last) if last.1 == offset => {
                last.0 = round;
                return false;
            }
            _ => {}
        }
        if ends.len() == KEPT {
            ends.pop_front();
        }
        ends.push_back((round, offset));
        true
    }

    /// An offset before which all up to this ticket lies; the least that is known. None if it is
    /// not there yet.
    pub(crate) fn of(&self, ticket: Ticket) -> Option<u64> {
        let ends = self.0.lock();
        ends.get(ends.partition_point(|&(round, _)| round < ticket)).map(|&(_, offset)| offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that was started, or promoted: its clients may wait before the first write.
    #[test]
    fn what_was_there_before_the_first_round_lies_before_the_logs_end() {
        let ends = Ends::default();
        ends.begin(0, 500);
        assert_eq!((ends.of(0), ends.of(1)), (Some(500), None));
        assert!(ends.note(7, 600));
        ends.begin(7, 900);
        assert_eq!(
            (ends.of(3), ends.of(7), ends.of(8)),
            (Some(900), Some(900), None),
            "its master has written meanwhile"
        );
    }

    #[test]
    fn each_ticket_has_the_end_of_its_own_round() {
        let ends = Ends::default();
        assert_eq!(ends.of(0), None);
        assert!(ends.note(1, 100));
        assert!(!ends.note(2, 100), "nothing was added");
        assert!(ends.note(5, 180));
        assert_eq!(
            [0, 1, 2, 3, 5].map(|ticket| ends.of(ticket)),
            [100, 100, 100, 180, 180].map(Some)
        );
        assert_eq!(ends.of(6), None);
        // A round failed: the log may have grown, but what it was to have is not safe.
        assert!(!ends.note(5, 200));
        assert_eq!((ends.of(5), ends.of(6)), (Some(180), None));
        for i in 0..1000 {
            assert!(ends.note(10 + i, 1000 + i));
        }
        assert_eq!(ends.0.lock().len(), KEPT);
        assert_eq!(ends.of(1009), Some(1999));
        assert_eq!(ends.of(1), Some(2000 - KEPT as u64), "forgotten: as the oldest that is known");
    }
}
