//! Memory accounting of a space. Every table, aux array, wide value and tombstone holds a
//! [`Reservation`] while it exists. The reservation of an outlier (an id far above all others)
//! passes from one version of its row to the next.
//!
//! **Loans.** Replacing a large table by a smaller one needs memory for both at the same time,
//! which a full space lacks. A rewrite that frees at least as much as it allocates may therefore
//! exceed the limit by the amount it will free, one table at a time. After the limit was lowered
//! below the current use, a rewrite may exceed the current use instead, so that tables can shrink.

use crate::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Memory limit and current use of a space, in bytes.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: AtomicU64,
    used: AtomicU64,
    /// Size of the last refused request, in bytes.
    refused: AtomicU64,
}

/// Bytes reserved from a budget. The destructor releases them.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

/// Source of memory for a table or an outlier: the space's budget and, while the table replaces
/// another table, a loan.
#[derive(Clone, Debug)]
pub(crate) struct Quota {
    budget: Arc<Budget>,
    /// Bytes by which allocations may exceed the limit.
    loan: Arc<AtomicU64>,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Arc<Budget> {
        Arc::new(Budget {
            limit: AtomicU64::new(limit),
            used: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
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

    /// Returns the size of the last refused request, in bytes.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Whether the last refused request would be refused again.
    pub(crate) fn is_short(&self) -> bool {
        self.used().saturating_add(self.refused.load(Relaxed)) > self.limit()
    }

    /// Reserves `bytes`, or fails with [`Error::Full`]. The reservation may exceed the limit by
    /// `loan` bytes.
    fn take(self: &Arc<Self>, bytes: u64, loan: u64) -> Result<Reservation, Error> {
        let limit = self.limit().saturating_add(loan);
        let within = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= limit);
        match self.used.fetch_update(Relaxed, Relaxed, within) {
            Ok(_) => Ok(Reservation { budget: self.clone(), bytes }),
            Err(_) => {
                self.refused.store(bytes, Relaxed);
                Err(Error::Full { limit_bytes: self.limit() })
            }
        }
    }

    /// Reserves `bytes` regardless of the limit. The charged bytes count towards the limit of later
    /// requests.
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64) -> Reservation {
        self.used.fetch_add(bytes, Relaxed);
        Reservation { budget: self.clone(), bytes }
    }

    /// Creates a quota that may exceed the limit, or the current use if that is higher, by `loan`
    /// until [`Quota::end_loan`].
    pub(crate) fn quota(self: &Arc<Self>, loan: u64) -> Quota {
        let beyond = if loan > 0 { self.used().saturating_sub(self.limit()) } else { 0 };
        Quota { budget: self.clone(), loan: Arc::new(AtomicU64::new(beyond + loan)) }
    }
}

impl Quota {
    pub(crate) fn take(&self, bytes: u64) -> Result<Reservation, Error> {
        self.budget.take(bytes, self.loan.load(Relaxed))
    }

    pub(crate) fn charge(&self, bytes: u64) -> Reservation {
        self.budget.charge(bytes)
    }

    pub(crate) fn full(&self) -> Error {
        Error::Full { limit_bytes: self.budget.limit() }
    }

    pub(crate) fn end_loan(&self) {
        self.loan.store(0, Relaxed);
    }
}

impl Reservation {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Merges `other` into this reservation.
    pub(crate) fn absorb(&mut self, mut other: Reservation) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Releases all but `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        let rest = self.bytes.saturating_sub(bytes);
        self.budget.used.fetch_sub(rest, Relaxed);
        self.bytes -= rest;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_end_at_the_limit_and_come_back() {
        let budget = Budget::new(100);
        let mut reservation = budget.take(60, 0).unwrap();
        assert_eq!(budget.take(41, 0).unwrap_err(), Error::Full { limit_bytes: 100 });
        assert!(budget.take(u64::MAX, 0).is_err());
        assert_eq!((budget.used(), budget.is_short()), (60, true));
        reservation.absorb(budget.take(40, 0).unwrap());
        assert!(budget.take(20, 0).is_err());
        assert_eq!((reservation.bytes(), budget.used(), budget.is_short()), (100, 100, true));
        reservation.shrink_to(81);
        assert!(budget.is_short());
        reservation.shrink_to(80);
        reservation.shrink_to(90);
        assert_eq!((reservation.bytes(), budget.used(), budget.is_short()), (80, 80, false));
        let charged = budget.charge(1000);
        assert!(budget.take(1, 0).is_err());
        drop((reservation, charged));
        assert_eq!(budget.take(100, 0).unwrap().bytes(), 100);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_loan_belongs_to_its_holder_until_it_ends() {
        let budget = Budget::new(100);
        let (plain, lent) = (budget.quota(0), budget.quota(50));
        let reservation = lent.take(150).unwrap();
        assert!(lent.clone().take(1).is_err() && plain.take(1).is_err());
        drop(reservation);
        let reservation = lent.take(120).unwrap();
        assert_eq!(plain.take(1).unwrap_err(), plain.full());
        lent.end_loan();
        assert!(lent.take(1).is_err());
        drop(reservation);
        assert_eq!(lent.take(100).unwrap().bytes(), 100);
    }

    #[test]
    fn a_lowered_limit_does_not_refuse_a_loan() {
        let budget = Budget::new(100);
        let held = budget.take(100, 0).unwrap();
        budget.set_limit(10);
        assert!(budget.quota(0).take(1).is_err());
        let lent = budget.quota(30);
        let smaller = lent.take(30).unwrap();
        assert!(lent.take(1).is_err(), "at most what it will return");
        drop(held);
        lent.end_loan();
        assert!(lent.take(1).is_err());
        drop(smaller);
        assert_eq!(lent.take(10).unwrap().bytes(), 10);
    }
}
