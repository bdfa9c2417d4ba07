//! The engines of a data set as they are now: a value that is replaced as a whole.
//!
//! What asks for several things asks one value for all of them, so nothing sees half a change: a
//! turn of a worker, a page, a snapshot's list of spaces. A value is held for as long as its holder
//! works, and no longer: what was dropped is in memory until then.

use crate::engines::registry::Engines;
use arc_swap::{ArcSwap, Guard};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// See the top of the file.
pub struct Current {
    now: ArcSwap<Engines>,
    /// Held while another value is made: one at a time.
    changing: Mutex<()>,
    /// Values that something may still hold.
    former: Mutex<Vec<Arc<Engines>>>,
}

/// Keeps other changes out.
pub(crate) struct Changing<'a> {
    current: &'a Current,
    _one: MutexGuard<'a, ()>,
}

impl Current {
    /// Begins with these.
    pub fn new(engines: Engines) -> Current {
        Current {
            now: ArcSwap::from_pointee(engines),
            changing: Mutex::default(),
            former: Mutex::default(),
        }
    }

    /// For a moment: the guard is not to be kept across a wait.
    #[inline]
    pub fn now(&self) -> Guard<Arc<Engines>> {
        self.now.load()
    }

    /// For work that takes its time.
    pub fn load(&self) -> Arc<Engines> {
        self.now.load_full()
    }

    /// Waits for a change that is being made. Those that come later see what this thread did
    /// before.
    pub fn pass_changes(&self) {
        drop(self.changing.lock());
    }

    /// Keeps other changes out until it is dropped.
    pub(crate) fn change(&self) -> Changing<'_> {
        Changing { current: self, _one: self.changing.lock() }
    }

    /// Frees the former values that nothing holds any more; returns whether none is left. Call it
    /// after a change and about once a second, on no worker: freeing a space's memory takes time.
    pub fn forget_former(&self) -> bool {
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
    /// What is to be changed.
    pub(crate) fn now(&self) -> Arc<Engines> {
        self.current.load()
    }

    /// From now on these are the engines.
    pub(crate) fn publish(&self, next: Engines) {
        let before = self.current.now.swap(Arc::new(next));
        self.current.former.lock().push(before);
    }
}
