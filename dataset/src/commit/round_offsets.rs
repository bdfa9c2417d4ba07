//! End offsets of the most recent log batches. WAIT uses them to wait for the batch of its own
//! writes, but not for later batches.

use parking_lot::Mutex;
use std::collections::VecDeque;
use store::Ticket;

/// Number of stored batches. For an older batch, the oldest stored offset is an upper bound of its
/// end.
const MAX_ROUNDS: usize = 64;

/// Ticket of each batch, and the log's end after it. Both increase.
#[derive(Default)]
pub(crate) struct RoundOffsets(Mutex<VecDeque<(Ticket, u64)>>);

impl RoundOffsets {
    /// Begins a master's log: all batches up to `round`, and the previous master's writes, end
    /// before `offset`.
    pub(crate) fn begin(&self, round: Ticket, offset: u64) {
        let mut ends = self.0.lock();
        ends.clear();
        ends.push_back((round, offset));
    }

    /// Records that all batches up to `round` are durable under the policy and end before `offset`.
    /// Returns false if the offset has not increased, or if this batch failed.
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
        if ends.len() == MAX_ROUNDS {
            ends.pop_front();
        }
        ends.push_back((round, offset));
        true
    }

    /// Returns the lowest stored offset at which the log contains all changes up to this ticket, or
    /// `None` if their batch is pending.
    pub(crate) fn of(&self, ticket: Ticket) -> Option<u64> {
        let ends = self.0.lock();
        ends.get(ends.partition_point(|&(round, _)| round < ticket)).map(|&(_, offset)| offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After startup or a promotion, clients may call WAIT before the first write.
    #[test]
    fn tickets_before_the_first_round_map_to_the_log_end() {
        let ends = RoundOffsets::default();
        ends.begin(0, 500);
        assert_eq!((ends.of(0), ends.of(1)), (Some(500), None));
        assert!(ends.note(7, 600));
        ends.begin(7, 900);
        assert_eq!(
            (ends.of(3), ends.of(7), ends.of(8)),
            (Some(900), Some(900), None),
            "the master has written in the meantime"
        );
    }

    #[test]
    fn each_ticket_has_the_end_of_its_own_round() {
        let ends = RoundOffsets::default();
        assert_eq!(ends.of(0), None);
        assert!(ends.note(1, 100));
        assert!(!ends.note(2, 100), "the log has not grown");
        assert!(ends.note(5, 180));
        assert_eq!(
            [0, 1, 2, 3, 5].map(|ticket| ends.of(ticket)),
            [100, 100, 100, 180, 180].map(Some)
        );
        assert_eq!(ends.of(6), None);
        // A batch fails: the log may have grown, but its changes are not durable.
        assert!(!ends.note(5, 200));
        assert_eq!((ends.of(5), ends.of(6)), (Some(180), None));
        for i in 0..1000 {
            assert!(ends.note(10 + i, 1000 + i));
        }
        assert_eq!(ends.0.lock().len(), MAX_ROUNDS);
        assert_eq!(ends.of(1009), Some(1999));
        assert_eq!(
            ends.of(1),
            Some(2000 - MAX_ROUNDS as u64),
            "a forgotten round has the oldest known end"
        );
    }
}
