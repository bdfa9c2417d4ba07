//! The memory of a space, counted: every table, aux array, giant and tomb holds a grant for as long
//! as it lives, and each id aside one, which passes from version to version of its row.
//!
//! **Loans.** In a full space the tables that deletions left empty could not be rewritten, since
//! the smaller table is there before the larger one goes. So a rewrite that gives back at least as
//! much as it takes may go beyond the limit meanwhile, by what it will give back: one table at a
//! time. Where a lowered limit lies below what is used, beyond that: else nothing could ever be
//! made smaller.

use crate::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a space may use and does use, in bytes.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: AtomicU64,
    used: AtomicU64,
    /// What was asked for last in vain.
    refused: AtomicU64,
}

/// Some bytes of a budget; given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

/// What a table takes its memory from, or a row of the outliers: the space's budget and, while it
/// replaces another table, a loan.
#[derive(Clone, Debug)]
pub(crate) struct Quota {
    budget: Arc<Budget>,
    /// So far beyond the limit.
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

    /// Bytes that were last refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Whether what was refused last would be again.
    pub(crate) fn is_short(&self) -> bool {
        self.used().saturating_add(self.refused.load(Relaxed)) > self.limit()
    }

    /// Grants `bytes`, or refuses with [`Error::Full`]. A caller that will give back `loan` may go
    /// so far beyond the limit.
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

    /// Grants what cannot be refused: others will be, earlier.
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64) -> Reservation {
        self.used.fetch_add(bytes, Relaxed);
        Reservation { budget: self.clone(), bytes }
    }

    /// For a table: may go beyond the limit, or what is used if that is more, by `loan`, until that
    /// [ends](Quota::end_loan).
    pub(crate) fn quota(self: &Arc<Self>, loan: u64) -> Quota {
        let beyond = if loan > 0 { self.used().saturating_sub(self.limit()) } else { 0 };
        Quota { budget: self.clone(), loan: Arc::new(AtomicU64::new(beyond + loan)) }
    }
}

impl Quota {
    /// See [`Budget::take`].
    pub(crate) fn take(&self, bytes: u64) -> Result<Reservation, Error> {
        self.budget.take(bytes, self.loan.load(Relaxed))
    }

    /// See [`Budget::charge`].
    pub(crate) fn charge(&self, bytes: u64) -> Reservation {
        self.budget.charge(bytes)
    }

    /// What a refusal says.
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

    /// Makes one grant of two.
    pub(crate) fn absorb(&mut self, mut other: Reservation) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Gives back all but `bytes`.
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
        assert!(lent.take(1).is_err(), "no more than it will give back");
        drop(held);
        lent.end_loan();
        assert!(lent.take(1).is_err());
        drop(smaller);
        assert_eq!(lent.take(10).unwrap().bytes(), 10);
    }
}
