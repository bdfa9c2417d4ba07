//! Tombstones: deleted ids whose rows may still be in the cold backend.

use crate::budget::{Budget, Reservation};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Deleted ids and the epoch of their deletion. See D2 in `cold.rs`.
pub(crate) struct Tombstones {
    /// Locked for a few tombstones at a time, because readers use the lock as well.
    dead: RwLock<Dead>,
    len: AtomicUsize,
    epoch: AtomicU64,
}

struct Dead {
    ids: BTreeMap<u64, u64>,
    reservation: Reservation,
}

/// Accounted bytes of a tombstone: two numbers and a share of tree nodes that are two thirds full.
pub(crate) const TOMB_BYTES: u64 = 40;
/// Tombstones visited per lock.
const TOMBS_AT_ONCE: usize = 64;

impl Tombstones {
    pub(crate) fn new(budget: &Arc<Budget>) -> Tombstones {
        let dead = Dead { ids: BTreeMap::new(), reservation: budget.charge(0) };
        Tombstones { dead: RwLock::new(dead), len: AtomicUsize::new(0), epoch: AtomicU64::new(0) }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len.load(SeqCst) as u64
    }

    /// Starts a new epoch and returns the previous one.
    pub(crate) fn next_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, SeqCst)
    }

    #[inline]
    pub(crate) fn holds(&self, id: u64) -> bool {
        self.len.load(SeqCst) > 0 && self.dead.read().ids.contains_key(&id)
    }

    /// Adds a tombstone. A deletion is never refused, so the bytes are charged even beyond the
    /// limit.
    pub(crate) fn add(&self, id: u64, budget: &Arc<Budget>) {
        let dead = &mut *self.dead.write();
        dead.ids.insert(id, self.epoch.load(SeqCst));
        if dead.ids.len() > self.len.load(SeqCst) {
            dead.reservation.absorb(budget.charge(TOMB_BYTES));
        }
        self.len.store(dead.ids.len(), SeqCst);
    }

    /// Passes the tombstones of a range, id and epoch, to `f`. The lock is released between
    /// batches.
    pub(crate) fn visit(&self, low: u64, last: u64, mut f: impl FnMut(u64, u64)) {
        let mut next = Some(low);
        while let Some(from) = next.filter(|&from| self.len.load(SeqCst) > 0 && from <= last) {
            next = None;
            for (&id, &epoch) in self.dead.read().ids.range(from..=last).take(TOMBS_AT_ONCE) {
                f(id, epoch);
                next = id.checked_add(1);
            }
        }
    }

    /// Removes the tombstones of a range whose epoch is at most `up_to`.
    pub(crate) fn remove(&self, low: u64, last: u64, up_to: u64) {
        let mut dead = Vec::new();
        self.visit(low, last, |id, epoch| dead.extend((epoch <= up_to).then_some(id)));
        for ids in dead.chunks(TOMBS_AT_ONCE) {
            let dead = &mut *self.dead.write();
            for id in ids {
                // The id may have been deleted again since.
                if dead.ids.get(id).is_some_and(|&epoch| epoch <= up_to) {
                    dead.ids.remove(id);
                }
            }
            dead.reservation.shrink_to(dead.ids.len() as u64 * TOMB_BYTES);
            self.len.store(dead.ids.len(), SeqCst);
        }
    }
}
