//! Recycles the memory of tables in the background, in small steps: clears retired filters and
//! prepares spare filters.
//!
//! A reader with an older list of tables may still use a retired table. The pool keeps the table
//! until the last reader drops it, then clears the memory for the next table or frees it. No reader
//! therefore pays for unmapping.

use crate::filter::Filter;
use crate::sizing::Sizing;
use crate::table::Table;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Number of words cleared per step: 8 MiB, one to two milliseconds.
const STEP_WORDS: usize = 1 << 20;

pub(crate) type Size = (Sizing, usize);

fn size_of_filter(filter: &Filter) -> Size {
    (*filter.sizing(), filter.pages())
}

#[derive(Default)]
pub(crate) struct TablePool {
    /// Retired tables. A writer takes this lock during a rollover, so no thread clears or frees
    /// memory while holding it. The same applies to `spare`.
    retired: Mutex<Vec<Arc<Table>>>,
    spare: Mutex<Option<Filter>>,
    /// Filter that is being cleared, and the number of words cleared so far. The lock is held
    /// during a step.
    clearing: Mutex<Option<(Filter, usize)>>,
    clearing_bytes: AtomicUsize,
}

impl TablePool {
    pub(crate) fn retire(&self, table: Arc<Table>) {
        self.retired.lock().push(table);
    }

    pub(crate) fn take_spare(&self, size: Size) -> Option<Filter> {
        self.spare.lock().take_if(|spare| size_of_filter(spare) == size)
    }

    /// Stores the spare filter for the next table, and drops the previous spare filter.
    pub(crate) fn keep_spare(&self, filter: Filter) {
        let other = self.spare.lock().replace(filter);
        drop(other);
    }

    /// Whether a call of [`TablePool::step`] would have work to do. `size` is the filter size of
    /// the next table, and `soon` is true if this table will be needed soon. Returns `false` while
    /// another thread runs a step.
    pub(crate) fn wants_step(&self, size: Size, soon: bool) -> bool {
        self.clearing.try_lock().is_some_and(|clearing| {
            clearing.is_some()
                || self.retired.lock().iter().any(|table| Arc::strong_count(table) == 1)
                || (soon && !self.is_ready(size))
        })
    }

    fn is_ready(&self, size: Size) -> bool {
        self.spare.lock().as_ref().is_some_and(|spare| size_of_filter(spare) == size)
    }

    fn take_retired(&self) -> Option<Arc<Table>> {
        let mut retired = self.retired.lock();
        let at = retired.iter().position(|table| Arc::strong_count(table) == 1)?;
        Some(retired.swap_remove(at))
    }

    /// Runs one small step that prepares a spare filter of this size. If `soon`, the step may call
    /// `make` to allocate a new filter. Returns whether there was work.
    pub(crate) fn step(
        &self,
        size: Size,
        soon: bool,
        make: impl FnOnce() -> Option<Filter>,
    ) -> bool {
        let mut clearing = self.clearing.lock();
        let mut worked = true;
        if let Some((mut filter, done)) = clearing.take() {
            filter.clear(done, STEP_WORDS);
            let done = done + STEP_WORDS;
            if done < filter.words().len() {
                *clearing = Some((filter, done));
            } else {
                self.keep_spare(filter);
            }
        } else if let Some(table) = self.take_retired() {
            match Arc::try_unwrap(table) {
                Ok(table)
                    if size_of_filter(table.first_filter()) == size && !self.is_ready(size) =>
                {
                    *clearing = Some((table.into_first_filter(), 0));
                }
                Ok(table) => drop(table),
                Err(table) => self.retire(table),
            }
        } else if soon && !self.is_ready(size) {
            // Clearing new memory causes its page faults now. Otherwise a later write would incur
            // them.
            *clearing = make().map(|filter| (filter, 0));
            worked = clearing.is_some();
        } else {
            worked = false;
        }
        self.clearing_bytes
            .store(clearing.as_ref().map_or(0, |(filter, _)| filter.size_bytes()), Relaxed);
        worked
    }

    pub(crate) fn size_bytes(&self) -> usize {
        let retired: usize = self.retired.lock().iter().map(|table| table.size_bytes()).sum();
        let spare = self.spare.lock().as_ref().map_or(0, Filter::size_bytes);
        retired + spare + self.clearing_bytes.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::{Member, Seed};
    use crate::table::{Table, empty};

    fn of(pages: usize) -> Size {
        (Table::first_sizing(0.01), pages)
    }

    #[test]
    fn recycled_table_is_cleared_after_its_last_reader() {
        let filter_pool = TablePool::default();
        let table = Arc::new(empty(0.01, 3).unwrap());
        let seed = Seed::new(1);
        for i in 0..1000 {
            let pair = seed.pair(i, seed.prepare_member(&Member::Number(1)));
            Table::set(table.room(|_| true).unwrap(), &pair);
        }
        let reader = table.clone();
        filter_pool.retire(table);
        assert!(!filter_pool.step(of(3), false, || None), "a reader holds it");
        assert!(filter_pool.size_bytes() >= 3 * 4096);
        drop(reader);
        assert!(filter_pool.wants_step(of(3), false));
        while filter_pool.step(of(3), false, || None) {}
        assert!(filter_pool.take_spare(of(4)).is_none());
        assert_eq!(filter_pool.take_spare(of(3)).unwrap().ones(), 0);
        assert_eq!(filter_pool.size_bytes(), 0);
    }

    /// A writer that needs a table does not wait until a running step has finished.
    #[test]
    fn a_table_is_retired_while_a_step_is_made() {
        let filter_pool = TablePool::default();
        let table = Arc::new(empty(0.01, 3).unwrap());
        std::thread::scope(|scope| {
            let in_the_middle_of_it = || {
                let (done, ended) = std::sync::mpsc::channel();
                let (filter_pool, table) = (&filter_pool, table.clone());
                scope.spawn(move || {
                    assert!(!filter_pool.wants_step(of(5), true), "another thread is using it");
                    filter_pool.retire(table);
                    assert!(
                        filter_pool.take_spare(of(5)).is_none() && filter_pool.size_bytes() > 0
                    );
                    done.send(()).unwrap();
                });
                assert_eq!(ended.recv_timeout(std::time::Duration::from_secs(10)), Ok(()));
                Filter::new(of(5).0, 5).ok()
            };
            assert!(filter_pool.step(of(5), true, in_the_middle_of_it));
        });
        drop(table);
        while filter_pool.step(of(5), false, || None) {}
        assert_eq!(
            filter_pool.size_bytes(),
            filter_pool.take_spare(of(5)).unwrap().size_bytes(),
            "the other table was returned"
        );
    }

    /// A spare filter with the same number of pages but another rate cannot be used, because it
    /// sets other bits.
    #[test]
    fn a_spare_of_another_rate_is_not_taken() {
        let filter_pool = TablePool::default();
        let other = (Table::first_sizing(0.0001), 5);
        while filter_pool.step(of(5), true, || Filter::new(of(5).0, 5).ok()) {}
        assert!(filter_pool.take_spare(other).is_none() && filter_pool.wants_step(other, true));
        filter_pool.retire(Arc::new(empty(0.01, 5).unwrap()));
        while filter_pool.step(other, true, || Filter::new(other.0, 5).ok()) {}
        assert_eq!(filter_pool.take_spare(other).unwrap().sizing(), &other.0);
    }

    #[test]
    fn a_spare_is_made_only_when_it_will_be_needed() {
        let filter_pool = TablePool::default();
        let make = || Filter::new(of(5).0, 5).ok();
        assert!(!filter_pool.step(of(5), false, make));
        while filter_pool.step(of(5), true, make) {}
        assert!(filter_pool.take_spare(of(5)).is_some());
    }
}
