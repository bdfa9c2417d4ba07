//! Deleted ids whose rows may still lie below the line.

use crate::budget::{Budget, Reservation};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Ids whose rows below the line are dead, with the epoch in which they died. See D2 in `cold.rs`.
pub(crate) struct Tombstones {
    /// Locked for a few of them at a time: readers ask here, too.
    dead: RwLock<Dead>,
    len: AtomicUsize,
    epoch: AtomicU64,
}

struct Dead {
    ids: BTreeMap<u64, u64>,
    reservation: Reservation,
}

/// What one tomb is counted as: two numbers, and its share of the tree's nodes, two thirds full.
pub(crate) const TOMB_BYTES: u64 = 40;
/// Tombstones that are visited while they are locked.
const TOMBS_AT_ONCE: usize = 64;

impl Tombstones {
    pub(crate) fn new(budget: &Arc<Budget>) -> Tombstones {
        let dead = Dead { ids: BTreeMap::new(), reservation: budget.charge(0) };
        Tombstones { dead: RwLock::new(dead), len: AtomicUsize::new(0), epoch: AtomicU64::new(0) }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len.load(SeqCst) as u64
    }

    /// Begins a new epoch; gives the one that ends.
    pub(crate) fn next_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, SeqCst)
    }

    #[inline]
    pub(crate) fn holds(&self, id: u64) -> bool {
        self.len.load(SeqCst) > 0 && self.dead.read().ids.contains_key(&id)
    }

    /// A deletion is never refused: so what it takes is counted, whatever the limit.
    pub(crate) fn add(&self, id: u64, budget: &Arc<Budget>) {
        let dead = &mut *self.dead.write();
        dead.ids.insert(id, self.epoch.load(SeqCst));
        if dead.ids.len() > self.len.load(SeqCst) {
            dead.reservation.absorb(budget.charge(TOMB_BYTES));
        }
        self.len.store(dead.ids.len(), SeqCst);
    }

    /// Hands those of a range to `f`, some at a time: id and epoch.
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

    pub(crate) fn remove(&self, low: u64, last: u64, up_to: u64) {
        let mut dead = Vec::new();
        self.visit(low, last, |id, epoch| dead.extend((epoch <= up_to).then_some(id)));
        for ids in dead.chunks(TOMBS_AT_ONCE) {
            let dead = &mut *self.dead.write();
            for id in ids {
                // It may have died again meanwhile.
                if dead.ids.get(id).is_some_and(|&epoch| epoch <= up_to) {
                    dead.ids.remove(id);
                }
            }
            dead.reservation.shrink_to(dead.ids.len() as u64 * TOMB_BYTES);
            self.len.store(dead.ids.len(), SeqCst);
        }
    }
}
