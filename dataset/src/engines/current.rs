//! Current engines of a data set: an immutable value that is replaced as a whole.
//!
//! A request batch, a page request or a snapshot uses one value throughout, so it never sees half
//! of a change. A reference keeps dropped spaces in memory, so its holder releases it as soon as
//! possible.

use crate::engines::registry::Engines;
use arc_swap::{ArcSwap, Guard};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// The current [`Engines`] value, and the lock for its replacement.
pub struct Current {
    now: ArcSwap<Engines>,
    changing: Mutex<()>,
    /// Previous values that may still be in use.
    former: Mutex<Vec<Arc<Engines>>>,
}

pub(crate) struct Changing<'a> {
    current: &'a Current,
    _one: MutexGuard<'a, ()>,
}

impl Current {
    /// Creates the value from the given engines.
    pub fn new(engines: Engines) -> Current {
        Current {
            now: ArcSwap::from_pointee(engines),
            changing: Mutex::default(),
            former: Mutex::default(),
        }
    }

    /// Borrows the engines for a short time. Drop the guard before waiting.
    #[inline]
    pub fn now(&self) -> Guard<Arc<Engines>> {
        self.now.load()
    }

    /// Returns the engines for work that takes longer than one event-loop iteration.
    pub fn load(&self) -> Arc<Engines> {
        self.now.load_full()
    }

    /// Waits for a change in progress. Later changes see all previous stores of this thread.
    pub fn wait_for_changes(&self) {
        drop(self.changing.lock());
    }

    /// Excludes other changes until the result is dropped.
    pub(crate) fn change(&self) -> Changing<'_> {
        Changing { current: self, _one: self.changing.lock() }
    }

    /// Frees previous values that are no longer in use. Returns true if all previous values have
    /// been freed. Freeing is slow, so workers must not call this. Call this function after each
    /// change and about once per second.
    pub fn free_former_engines(&self) -> bool {
        let mut former = self.former.lock();
        let (held, gone): (Vec<_>, Vec<_>) =
            former.drain(..).partition(|engines| Arc::strong_count(engines) > 1);
        *former = held;
        let is_alone = former.is_empty();
        drop(former);
        drop(gone);
        is_alone
    }
}

impl Changing<'_> {
    pub(crate) fn now(&self) -> Arc<Engines> {
        self.current.load()
    }

    pub(crate) fn publish(&self, next: Engines) {
        let before = self.current.now.swap(Arc::new(next));
        self.current.former.lock().push(before);
    }
}
