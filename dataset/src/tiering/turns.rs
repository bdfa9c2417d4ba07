//! Background work in short turns with rests between them: where it shares a core with a worker,
//! the worker's clients wait for one turn, not for the system's idea of a fair share.

use std::cell::Cell;
use std::time::{Duration, Instant};
use store::time;

/// A turn. What is not cut that short (a piece of a table) may take longer.
const TURN: Duration = Duration::from_micros(250);
/// The longest rest: a turn may have been long because the thread itself had to wait.
const MOST_REST: Duration = Duration::from_millis(1);

/// Work that began a turn when this was made.
pub(crate) struct Turns<'a> {
    began: Cell<Instant>,
    /// Whether there is no time for rests.
    is_urgent: &'a dyn Fn() -> bool,
}

impl<'a> Turns<'a> {
    pub(crate) fn new(is_urgent: &'a dyn Fn() -> bool) -> Turns<'a> {
        Turns { began: Cell::new(time::now()), is_urgent }
    }

    /// Between two pieces of the work: when the turn is over, rests for as long as it took.
    pub(crate) fn rest(&self) {
        let worked = time::now() - self.began.get();
        if worked < TURN {
            return;
        }
        if !(self.is_urgent)() {
            time::sleep(worked.min(MOST_REST));
        }
        self.began.set(time::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_follows_a_turn_unless_it_is_urgent() {
        let work = || {
            let began = Instant::now();
            while began.elapsed() < TURN {}
        };
        let urgent = Cell::new(false);
        let is_urgent = || urgent.get();
        let turns = Turns::new(&is_urgent);
        let took = |times: u32| {
            let began = Instant::now();
            for _ in 0..times {
                work();
                turns.rest();
                turns.rest();
            }
            began.elapsed()
        };
        assert!(took(20) >= 40 * TURN);
        urgent.set(true);
        let calls = Cell::new(0);
        let counts = || calls.replace(calls.get() + 1) < 100;
        let turns = Turns::new(&counts);
        (0..10).for_each(|_| turns.rest());
        assert_eq!(calls.get(), 0, "no turn is over");
        work();
        turns.rest();
        assert_eq!(calls.get(), 1);
    }
}
