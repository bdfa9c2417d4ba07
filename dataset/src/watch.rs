//! WATCH: notices that something changed between a client's look and its EXEC.
//!
//! What is watched is a place: a row (for its row key and the keys of its cells), or the pairs of
//! an id. A writer that changes a place while any client watches anything raises the number of the
//! place, if it is among those watched; EXEC compares numbers. Without watchers a writer pays for
//! one load.
//!
//! Nothing is missed: a new watcher enters the id's stripe once, so a writer has either
//! finished by then (and the watcher will read what it wrote) or begins later (and sees the
//! watcher). Both ends of it run under stripes, so nothing else is needed.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// A space's number and an id.
pub type Place = (u32, u64);

#[derive(Default)]
struct Watched {
    changes: u64,
    watchers: usize,
}

/// All that is watched. See the top of the file.
#[derive(Default)]
pub(crate) struct Watches {
    /// Places in `places`.
    some: AtomicUsize,
    places: Mutex<HashMap<Place, Watched>>,
    /// What changed all places of some space at once.
    sweeps: AtomicU64,
}

impl Watches {
    /// Begins to watch this place; returns the number of its changes so far.
    pub(crate) fn watch(&self, place: Place) -> u64 {
        let mut places = self.places.lock();
        let watched = places.entry(place).or_default();
        watched.watchers += 1;
        let changes = watched.changes;
        self.some.store(places.len(), Relaxed);
        changes
    }

    /// One watcher less.
    pub(crate) fn unwatch(&self, place: Place) {
        let mut places = self.places.lock();
        if let Some(watched) = places.get_mut(&place) {
            watched.watchers -= 1;
            if watched.watchers == 0 {
                places.remove(&place);
            }
        }
        self.some.store(places.len(), Relaxed);
    }

    /// Changes of a place so far; `None` if it is not watched.
    pub(crate) fn changes(&self, place: Place) -> Option<u64> {
        self.places.lock().get(&place).map(|watched| watched.changes)
    }

    /// A place has changed; the caller is in its id's stripe.
    #[inline]
    pub(crate) fn changed(&self, space: u32, id: u64) {
        if self.some.load(Relaxed) != 0 {
            self.note((space, id));
        }
    }

    #[cold]
    fn note(&self, place: Place) {
        if let Some(watched) = self.places.lock().get_mut(&place) {
            watched.changes += 1;
        }
    }

    /// A whole space may have changed (a schema, a roll, a merge).
    pub(crate) fn swept(&self) {
        self.sweeps.fetch_add(1, Relaxed);
    }

    /// How often that happened.
    pub(crate) fn sweeps(&self) -> u64 {
        self.sweeps.load(Relaxed)
    }
}
