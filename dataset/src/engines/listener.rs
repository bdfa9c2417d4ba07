//! A listener for changed places: the server's client tracking.

use super::Engines;
use crate::watch::Place;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What a listener is told. Nothing is told while none of its clients listens.
pub trait Told: Send + Sync {
    /// A place has changed. Called in the id's stripe, after the change.
    fn changed(&self, engines: &Engines, place: Place);
    /// The changes up to [`Told::end`] belong to one record of a log.
    fn begin(&self);
    /// The record ends.
    fn end(&self, engines: &Engines);
    /// Any place may have changed: a schema, or blocks of filters.
    fn all_changed(&self);
}

/// See the top of the file. A writer pays for one load while none listens.
#[derive(Clone, Default)]
pub struct Listener {
    clients: Arc<AtomicUsize>,
    told: Option<Arc<dyn Told>>,
}

impl Listener {
    /// `clients`: how many listen now.
    pub fn new(clients: Arc<AtomicUsize>, told: Arc<dyn Told>) -> Listener {
        Listener { clients, told: Some(told) }
    }

    /// The listener, if any of its clients listens.
    #[inline]
    pub(crate) fn any(&self) -> Option<&dyn Told> {
        if self.clients.load(Relaxed) == 0 { None } else { self.told.as_deref() }
    }
}
