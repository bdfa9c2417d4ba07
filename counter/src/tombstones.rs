//! Tombstones: deleted ids whose rows may still be in the cold backend.

use crate::budget::{Budget, Reservation};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Deleted ids and the epoch of their deletion. See D2 in `cold.rs`.
pub(crate) struct Tombstones {
    /// The lock is held for a few tombstones at a time, because readers need it as well.
    deleted_ids: RwLock<DeletedIds>,
    len: AtomicUsize,
    epoch: AtomicU64,
}

struct DeletedIds {
    ids: BTreeMap<u64, u64>,
    reservation: Reservation,
}

/// Accounted bytes of a tombstone: two numbers and a share of tree nodes that are two thirds full.
pub(crate) const TOMBSTONE_BYTES: u64 = 40;
/// Number of tombstones that are visited before the lock is released.
const TOMBSTONES_PER_LOCK: usize = 64;

impl Tombstones {
    pub(crate) fn new(budget: &Arc<Budget>) -> Tombstones {
        let deleted_ids = DeletedIds { ids: BTreeMap::new(), reservation: budget.charge(0) };
        Tombstones {
            deleted_ids: RwLock::new(deleted_ids),
            len: AtomicUsize::new(0),
            epoch: AtomicU64::new(0),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len.load(SeqCst) as u64
    }

    /// Starts a new epoch and returns the number of the previous epoch.
    pub(crate) fn next_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, SeqCst)
    }

    #[inline]
    pub(crate) fn holds(&self, id: u64) -> bool {
        self.len.load(SeqCst) > 0 && self.deleted_ids.read().ids.contains_key(&id)
    }

    /// Adds a tombstone. A deletion is never refused, so the bytes are charged even if usage then
    /// exceeds the limit.
    pub(crate) fn add(&self, id: u64, budget: &Arc<Budget>) {
        let deleted_ids = &mut *self.deleted_ids.write();
        deleted_ids.ids.insert(id, self.epoch.load(SeqCst));
        if deleted_ids.ids.len() > self.len.load(SeqCst) {
            deleted_ids.reservation.absorb(budget.charge(TOMBSTONE_BYTES));
        }
        self.len.store(deleted_ids.ids.len(), SeqCst);
    }

    /// Passes the tombstones of a range, id and epoch, to `f`. The lock is released between
    /// batches.
    pub(crate) fn visit(&self, low: u64, last: u64, mut f: impl FnMut(u64, u64)) {
        let mut next = Some(low);
        while let Some(from) = next.filter(|&from| self.len.load(SeqCst) > 0 && from <= last) {
            next = None;
            for (&id, &epoch) in
                self.deleted_ids.read().ids.range(from..=last).take(TOMBSTONES_PER_LOCK)
            {
                f(id, epoch);
                next = id.checked_add(1);
            }
        }
    }

    /// Removes the tombstones of a range whose epoch is at most `up_to`.
    pub(crate) fn remove(&self, low: u64, last: u64, up_to: u64) {
        let mut deleted_ids = Vec::new();
        self.visit(low, last, |id, epoch| deleted_ids.extend((epoch <= up_to).then_some(id)));
        for ids in deleted_ids.chunks(TOMBSTONES_PER_LOCK) {
            let deleted_ids = &mut *self.deleted_ids.write();
            for id in ids {
                // The id may have been deleted again in the meantime.
                if deleted_ids.ids.get(id).is_some_and(|&epoch| epoch <= up_to) {
                    deleted_ids.ids.remove(id);
                }
            }
            deleted_ids.reservation.shrink_to(deleted_ids.ids.len() as u64 * TOMBSTONE_BYTES);
            self.len.store(deleted_ids.ids.len(), SeqCst);
        }
    }
}
