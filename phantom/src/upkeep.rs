//! The memory of tables, between tables: recycled ones are cleared, fresh ones prepared, in the background and in small steps.
//!
//! A recycled table may still be read by somebody who took the ring's list before. So it waits here until nobody else holds it,
//! and only then is its memory cleared for the next table, or given back. That is also why no reader ever pays for unmapping it.

use crate::filter::Filter;
use crate::table::Table;
use std::sync::Arc;

/// Words cleared in one step: 8 MiB, a millisecond or two.
const STEP_WORDS: usize = 1 << 20;

/// See the top of the file.
#[derive(Default)]
pub(crate) struct Upkeep {
    retired: Vec<Arc<Table>>,
    clearing: Option<(Filter, usize)>,
    spare: Option<Filter>,
}

impl Upkeep {
    /// Takes over a table that left the ring.
    pub(crate) fn retire(&mut self, table: Arc<Table>) {
        self.retired.push(table);
    }

    /// An empty filter of `pages`, if one is ready.
    pub(crate) fn take_spare(&mut self, pages: usize) -> Option<Filter> {
        self.spare.take_if(|spare| spare.pages() == pages)
    }

    /// Gives back a filter that was not used.
    pub(crate) fn keep_spare(&mut self, filter: Filter) {
        self.spare.get_or_insert(filter);
    }

    /// Whether [`Upkeep::step`] has something to do when the next table is to have `pages`.
    pub(crate) fn wants_step(&self, pages: usize, soon: bool) -> bool {
        self.clearing.is_some()
            || self.retired.iter().any(|table| Arc::strong_count(table) == 1)
            || (soon && !self.is_ready(pages))
    }

    fn is_ready(&self, pages: usize) -> bool {
        self.spare.as_ref().is_some_and(|spare| spare.pages() == pages)
    }

    /// One small step towards a spare filter of `pages`; `soon`: it will be needed, so make one if none is coming. Returns whether
    /// it did something.
    pub(crate) fn step(&mut self, pages: usize, soon: bool, make: impl FnOnce() -> Option<Filter>) -> bool {
        if let Some((mut filter, done)) = self.clearing.take() {
            filter.clear(done, STEP_WORDS);
            let done = done + STEP_WORDS;
            if done < filter.words().len() {
                self.clearing = Some((filter, done));
            } else {
                self.spare = Some(filter);
            }
            return true;
        }
        if let Some(at) = self.retired.iter().position(|table| Arc::strong_count(table) == 1) {
            match Arc::try_unwrap(self.retired.swap_remove(at)) {
                Ok(table) if table.first_filter().pages() == pages && !self.is_ready(pages) => {
                    self.clearing = Some((table.into_first_filter(), 0));
                }
                Ok(table) => drop(table),
                Err(table) => self.retired.push(table),
            }
            return true;
        }
        if soon && !self.is_ready(pages) {
            // Writing zeros to fresh memory makes the kernel provide it now, not when a like waits for it.
            self.clearing = make().map(|filter| (filter, 0));
            return self.clearing.is_some();
        }
        false
    }

    pub(crate) fn size_bytes(&self) -> usize {
        let filters = self.clearing.iter().map(|(filter, _)| filter).chain(&self.spare);
        self.retired.iter().map(|table| table.size_bytes()).sum::<usize>()
            + filters.map(Filter::size_bytes).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::{Member, Seed};
    use crate::sizing::Sizing;
    use crate::table::{Table, empty};

    #[test]
    fn a_recycled_table_is_cleared_when_nobody_reads_it_any_more() {
        let mut upkeep = Upkeep::default();
        let table = Arc::new(empty(0.01, 3).unwrap());
        let seed = Seed::new(1);
        for i in 0..1000 {
            let pair = seed.pair(i, seed.ready(&Member::Number(1)));
            Table::set(table.room(|_| true).unwrap(), &pair);
        }
        let reader = table.clone();
        upkeep.retire(table);
        assert!(!upkeep.step(3, false, || None), "somebody reads it");
        assert!(upkeep.size_bytes() >= 3 * 4096);
        drop(reader);
        assert!(upkeep.wants_step(3, false));
        while upkeep.step(3, false, || None) {}
        assert!(upkeep.take_spare(4).is_none());
        assert_eq!(upkeep.take_spare(3).unwrap().ones(), 0);
        assert_eq!(upkeep.size_bytes(), 0);
    }

    #[test]
    fn a_spare_is_made_only_when_it_will_be_needed() {
        let mut upkeep = Upkeep::default();
        let make = || Filter::new(Sizing::for_rate(0.01), 5).ok();
        assert!(!upkeep.step(5, false, make));
        while upkeep.step(5, true, make) {}
        assert!(upkeep.take_spare(5).is_some());
    }
}
