//! Ids for which an aside had no room. When many have gathered they are asked where the frontier should be: they are a sample of the traffic then, which
//! what is aside is not.

use crate::frontier::Frontier;

/// See the top of the file. As many as [`Frontier::sample`] says at most, of either.
#[derive(Default)]
pub(crate) struct TurnedAway {
    /// On the frontier's side of the middle, if that matters: neither is to drown the other.
    near: Vec<u64>,
    across: Vec<u64>,
}

impl TurnedAway {
    /// Notes an id. If that makes so many of its kind that the frontier is to be asked: these.
    pub(crate) fn note(&mut self, frontier: &Frontier, id: u64) -> Option<Vec<u64>> {
        if id > frontier.reach() {
            return None;
        }
        let (most, most_of_id) = frontier.sample();
        let ids = if frontier.lies_across(id) { &mut self.across } else { &mut self.near };
        // However popular one is, those that are gathered can be enough.
        if ids.iter().filter(|&&other| other == id).count() < most_of_id {
            ids.push(id);
        }
        if ids.len() < most {
            return None;
        }
        if !frontier.should_advance(most) {
            // There is other traffic, or others were asked just now. The older half goes.
            ids.drain(..most / 2);
            return None;
        }
        let mut ids = std::mem::take(ids);
        ids.retain(|&id| !frontier.takes(id));
        Some(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontier::{Admission, MIDDLE};

    /// Writes each id to a space without room aside; how often the frontier was asked.
    fn write(frontier: &Frontier, away: &mut TurnedAway, ids: impl Iterator<Item = u64>) -> usize {
        let away = ids.filter(|&id| frontier.admit(id) == Admission::Ahead).filter_map(|id| {
            let mut asked = away.note(frontier, id)?;
            frontier.advance(&mut asked);
            Some(())
        });
        away.count()
    }

    #[test]
    fn a_popular_id_is_no_more_than_its_share() {
        for (room, most) in [(500, 512), (1 << 16, 4096)] {
            let (frontier, mut away) = (Frontier::restore(Some(5000), 1024, None, room), TurnedAway::default());
            // Alone it says nothing, and takes no memory.
            assert_eq!(write(&frontier, &mut away, std::iter::repeat_n(1 << 40, 100_000)), 0);
            assert_eq!(away.near.len(), most / 64);
            let popular = (0..3 * most as u64).map(|i| (1 << 40) + if i % 2 == 0 { 0 } else { i / 16 });
            assert_eq!(write(&frontier, &mut away, popular), 1, "the first sample does");
            assert!(frontier.high() > Some(1 << 40), "{:?}", frontier.high());
        }
    }

    /// Those far above come as often as those below, turn about, so both samples are full at a time.
    #[test]
    fn ids_above_and_below_the_middle_do_not_drown_each_other() {
        for below_first in [true, false] {
            let frontier = Frontier::restore(Some(MIDDLE + 5000), 1024, None, 1 << 16).indivisible();
            frontier.part(true);
            let ids = |i: u64| {
                let both = [(1 << 50) + i / 10, MIDDLE + (1 << 61) + (i << 40)];
                if below_first { both } else { [both[1], both[0]] }
            };
            write(&frontier, &mut TurnedAway::default(), (0..4100).flat_map(ids));
            assert_eq!(frontier.taken().is_some_and(|(low, _)| low == 0), below_first, "{:?}", frontier.high());
            // They go on, and are asked next.
            let before = frontier.high();
            write(&frontier, &mut TurnedAway::default(), (4100..20_000).flat_map(ids));
            assert_eq!(frontier.taken().map(|(low, _)| low), Some(0), "{before:?} to {:?}", frontier.high());
        }
    }
}
