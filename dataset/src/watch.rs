//! WATCH: detects changes between a client's WATCH and its EXEC.
//!
//! A *place* is the unit of watching: a row (for its row key and the keys of its cells), or the
//! pairs of an id. A writer of a watched place increments the place's change count, and EXEC
//! compares counts. If nothing is watched, a writer only performs one atomic load.
//!
//! No change is missed, because WATCH locks the id's stripe once after registering. A writer that
//! held the stripe before has finished, so the client reads its change. A writer that locks it
//! later sees the registration. The stripe orders both, so relaxed atomics suffice.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// A space number and an id.
pub type WatchedId = (u32, u64);

#[derive(Default)]
struct WatchedEntry {
    changes: u64,
    watchers: usize,
}

/// All watched places. See the module's documentation.
#[derive(Default)]
pub(crate) struct Watches {
    /// Number of entries in `places`.
    some: AtomicUsize,
    places: Mutex<HashMap<WatchedId, WatchedEntry>>,
    /// Number of changes that affect all places of a space.
    sweeps: AtomicU64,
}

impl Watches {
    /// Registers a watcher of this place. Returns the place's change count.
    pub(crate) fn watch(&self, place: WatchedId) -> u64 {
        let mut places = self.places.lock();
        let watched = places.entry(place).or_default();
        watched.watchers += 1;
        let changes = watched.changes;
        self.some.store(places.len(), Relaxed);
        changes
    }

    pub(crate) fn unwatch(&self, place: WatchedId) {
        let mut places = self.places.lock();
        if let Some(watched) = places.get_mut(&place) {
            watched.watchers -= 1;
            if watched.watchers == 0 {
                places.remove(&place);
            }
        }
        self.some.store(places.len(), Relaxed);
    }

    /// Returns the change count of a place, or `None` if it is not watched.
    pub(crate) fn changes(&self, place: WatchedId) -> Option<u64> {
        self.places.lock().get(&place).map(|watched| watched.changes)
    }

    /// Counts a change of a place. The caller must hold the id's stripe.
    #[inline]
    pub(crate) fn changed(&self, space: u32, id: u64) {
        if self.some.load(Relaxed) != 0 {
            self.note((space, id));
        }
    }

    #[cold]
    fn note(&self, place: WatchedId) {
        if let Some(watched) = self.places.lock().get_mut(&place) {
            watched.changes += 1;
        }
    }

    /// Counts a change that affects every id of a space, such as a new schema or TM.ROLL.
    pub(crate) fn count_space_change(&self) {
        self.sweeps.fetch_add(1, Relaxed);
    }

    pub(crate) fn sweeps(&self) -> u64 {
        self.sweeps.load(Relaxed)
    }
}
