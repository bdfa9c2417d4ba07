//! The memory of a space, counted: every table, aux array and aside row holds a grant for as long as it lives.

use crate::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a space may use and does use, in bytes.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: AtomicU64,
    used: AtomicU64,
    /// How many stretches there are: see [`Budget::stretch`].
    stretched: AtomicU64,
}

/// A stretch is this part of the limit.
const STRETCH: u64 = 16;

/// Some bytes of a budget; given back when dropped.
#[derive(Debug)]
pub(crate) struct Grant {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Arc<Budget> {
        Arc::new(Budget { limit: AtomicU64::new(limit), used: AtomicU64::new(0), stretched: AtomicU64::new(0) })
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Relaxed);
    }

    /// While the guard lives, a sixteenth more is granted: to those who are about to give back much more.
    pub(crate) fn stretch(self: &Arc<Self>) -> Stretch {
        self.stretched.fetch_add(1, Relaxed);
        Stretch(self.clone())
    }

    pub(crate) fn full(&self) -> Error {
        Error::Full { limit_bytes: self.limit() }
    }

    /// Grants `bytes`, or refuses with [`Error::Full`].
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Result<Grant, Error> {
        let spare = if self.stretched.load(Relaxed) > 0 { self.limit() / STRETCH } else { 0 };
        let limit = self.limit().saturating_add(spare);
        let within = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= limit);
        match self.used.fetch_update(Relaxed, Relaxed, within) {
            Ok(_) => Ok(Grant { budget: self.clone(), bytes }),
            Err(_) => Err(self.full()),
        }
    }
}

/// See [`Budget::stretch`].
pub(crate) struct Stretch(Arc<Budget>);

impl Drop for Stretch {
    fn drop(&mut self) {
        self.0.stretched.fetch_sub(1, Relaxed);
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_end_at_the_limit_and_come_back() {
        let budget = Budget::new(100);
        let grant = budget.take(60).unwrap();
        assert_eq!(budget.take(41).unwrap_err(), Error::Full { limit_bytes: 100 });
        assert!(budget.take(u64::MAX).is_err());
        assert_eq!(budget.used(), 60);
        drop(grant);
        assert_eq!(budget.take(100).unwrap().budget.used(), 100);
        assert_eq!(budget.used(), 0);
    }
}
