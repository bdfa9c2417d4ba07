//! Retirement of counters: removes the rows below a counter space's horizon.
//!
//! The horizon is part of the catalogue, which is logged, replicated and recovered. TM.SPACE RETIRE
//! or the option `keep_newest` raises the horizon.

use crate::engines::registry::Engines;
use crate::engines::spaces::CounterSpace;
use counter::RangeStats;

impl Engines {
    pub(super) fn retire(&self) {
        for known in &self.catalogue.counter {
            let Some(space) = self.counter_by_number(known.number) else { continue };
            if space.horizon() >= known.horizon {
                continue;
            }
            space.retire_below(known.horizon);
        }
    }

    /// Names and new horizons of the counter spaces with more rows than `keep_newest`.
    pub fn to_retire(&self) -> Vec<(String, u64)> {
        let due = |space: &CounterSpace| Some((space.name().to_owned(), space.due_horizon()?));
        self.counters.iter().filter_map(due).collect()
    }
}

impl CounterSpace {
    /// Lowest id of the oldest table to retain, or `None` if no table must be retired.
    fn due_horizon(&self) -> Option<u64> {
        let kept = self.made.keep_newest;
        if kept == 0 {
            return None;
        }
        let files = self.cold().files();
        // Rows in memory within a file's range are changed rows, which the file's number of rows
        // includes.
        let is_apart = |range: &RangeStats| files.cover(range.low, range.last).2.is_empty();
        let ranges =
            self.ranges().into_iter().filter(is_apart).map(|range| (range.last, range.rows));
        let on_disk = files.all().iter().map(|file| (file.entry().tag.high, file.head().rows));
        let mut parts: Vec<(u64, u64)> = ranges.chain(on_disk).collect();
        parts.sort_unstable();
        let mut rows = 0;
        let goes = parts.iter().rev().find(|part| {
            let goes = rows >= kept;
            rows += part.1;
            goes
        });
        goes?.0.checked_add(1).filter(|&horizon| horizon > self.horizon())
    }
}

#[cfg(test)]
mod tests {
    use crate::catalogue::{Catalogue, EditError};
    use crate::commit::Durability;
    use crate::engines::{ChangeError, Current, Engines};
    use crate::options::{Counter, Options};
    use phantom::{Change, Member};
    use std::sync::Arc;

    fn current(counter: Counter) -> Current {
        let defaults = Options::default();
        let counter = vec![Counter { rows_per_table: 1000, ..counter }];
        let options = Options { counter, ..defaults };
        let catalogue = Catalogue::default().completed(&options);
        let durability = Arc::new(Durability::new(options.fsync));
        Current::new(Engines::new(&options, &catalogue, durability).unwrap())
    }

    fn retire(current: &Current, horizon: u64) -> Result<(), ChangeError> {
        current.edit(|| Ok(()), |now| now.retire("post", horizon))
    }

    #[test]
    fn action_on_retired_post_is_unknown_and_its_flags_remain() {
        let current = current(Options::default().counter[0].clone());
        let engines = current.load();
        let like = engines.action(b"like").unwrap();
        for id in 1000..3000 {
            let liked = engines.act(like, &Member::Number(7), id, &mut vec![]).unwrap();
            assert_eq!(liked, Change::Changed);
        }
        retire(&current, 2000).unwrap();
        for (id, expected) in [(1999, Change::Unknown), (2000, Change::Changed)] {
            let viewer = Member::Number(8);
            assert_eq!(engines.act(like, &viewer, id, &mut vec![]).unwrap(), expected, "{id}");
            assert_eq!(engines.undo(like, &viewer, id, &mut vec![]).unwrap(), expected, "{id}");
        }
        let (view, mut page) = (engines.view(b"home").unwrap(), Default::default());
        engines.feed_get(view, &Member::Number(7), &[1999, 2000], &mut page).unwrap();
        assert_eq!((page.counter(0, 0), page.counter(1, 0)), (0, 1));
        assert_eq!(page.flag(0, 0), phantom::Answer::Yes);
        // The encoded catalogue contains the horizon.
        let told = Catalogue::decode(&current.catalogue().encode()).unwrap();
        assert_eq!((told.counter[0].horizon, told.clone()), (2000, current.catalogue()));
        retire(&current, 5).unwrap();
        assert_eq!(current.catalogue().counter[0].horizon, 2000, "the horizon never falls");
    }

    #[test]
    fn the_oldest_tables_go_when_there_are_more_than_are_kept() {
        let post = Options::default().counter[0].clone();
        let current = current(Counter { keep_newest: 3000, ..post });
        let mut most = 0;
        for id in 1..20_000 {
            let engines = current.load();
            engines.set(&engines.counters()[0], id, &[(0, 1)]).unwrap();
            if id % 100 == 0 {
                for (name, horizon) in engines.to_retire() {
                    current
                        .edit(|| Ok::<(), ChangeError>(()), |now| now.retire(&name, horizon))
                        .unwrap();
                }
                while engines.maintain() {}
            }
            let horizon = engines.counters()[0].horizon();
            assert!(id < 3000 || id - horizon.min(id) >= 2999, "{id} {horizon}");
            most = most.max(engines.counters()[0].rows());
        }
        assert!((3000..6000).contains(&most), "{most}");
    }

    #[test]
    fn only_a_counter_space_is_retired() {
        let none = current(Options::default().counter[0].clone())
            .edit(|| Ok(()), |now| now.retire("liked", 1));
        assert!(matches!(none, Err(ChangeError::Edit(EditError::NoSuch(..)))));
    }
}
