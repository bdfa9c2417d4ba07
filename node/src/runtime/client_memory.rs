//! Memory of all clients' buffers. Each client has its own limits, but thousands of clients within
//! their limits could exhaust the memory. So the sum is also limited (`max_clients_memory`, Redis's
//! `maxmemory-clients`). When the sum exceeds the limit, the server disconnects the largest client.
//!
//! Each owner of buffers has a [`Share`] that reports its size. Only whole [`GRAIN`]s are counted.
//! Typical buffers are smaller, so they cause no writes to the shared total.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::Notify;

/// Granularity of counting, in bytes.
const GRAIN: usize = 16 << 10;

/// Sum of all shares, and the limit of the sum.
#[derive(Default)]
pub struct Budget {
    taken: AtomicUsize,
    most: AtomicUsize,
    exceeded: Notify,
}

impl Budget {
    /// Sets the limit in bytes; 0 for none.
    pub fn set_limit_bytes(&self, most: usize) {
        self.most.store(most, Relaxed);
        self.update_exceeded(self.taken());
    }

    pub(crate) fn most(&self) -> Option<usize> {
        Some(self.most.load(Relaxed)).filter(|most| *most > 0)
    }

    /// Waits until the sum exceeds the limit.
    pub async fn exceeded(&self) {
        self.exceeded.notified().await;
    }

    fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    fn update_exceeded(&self, taken: usize) {
        if self.most().is_some_and(|most| taken > most) {
            self.exceeded.notify_one();
        }
    }
}

/// One owner's share of a [`Budget`], released when dropped. Only one thread at a time may change a
/// share.
#[derive(Default)]
pub struct Share {
    of: Arc<Budget>,
    counted: AtomicUsize,
}

impl Share {
    pub(crate) fn of(budget: &Arc<Budget>) -> Share {
        Share { of: budget.clone(), counted: AtomicUsize::new(0) }
    }

    /// Sets the owner's number of bytes.
    #[inline]
    pub fn set(&self, bytes: usize) {
        let grains = bytes - bytes % GRAIN;
        if grains != self.counted.load(Relaxed) {
            self.change(grains);
        }
    }

    #[cold]
    fn change(&self, grains: usize) {
        let before = self.counted.swap(grains, Relaxed);
        let more = grains.wrapping_sub(before);
        // The difference wraps around if the number has decreased.
        let taken = self.of.taken.fetch_add(more, Relaxed).wrapping_add(more);
        if grains > before {
            self.of.update_exceeded(taken);
        }
    }

    pub(crate) fn counted(&self) -> usize {
        self.counted.load(Relaxed)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_shrink_and_go() {
        let budget = Arc::new(Budget::default());
        budget.set_limit_bytes(100 << 10);
        let (a, b) = (Share::of(&budget), Share::of(&budget));
        a.set(GRAIN - 1);
        assert_eq!((a.counted(), budget.taken()), (0, 0), "small shares are not counted");
        a.set(90 << 10);
        b.set(33 << 10);
        assert_eq!((a.counted(), b.counted(), budget.taken()), (80 << 10, 32 << 10, 112 << 10));
        b.set(17 << 10);
        assert_eq!(budget.taken(), 96 << 10);
        drop(a);
        assert_eq!((budget.taken(), budget.most()), (16 << 10, Some(100 << 10)));
        budget.set_limit_bytes(0);
        b.set(usize::MAX);
        assert_eq!(budget.most(), None);
        drop(b);
        assert_eq!(budget.taken(), 0);
    }

    #[tokio::test]
    async fn an_excess_is_reported_once_to_its_collector() {
        let budget = Arc::new(Budget::default());
        let share = Share::of(&budget);
        share.set(1 << 20);
        // The limit is set after the buffers have grown.
        budget.set_limit_bytes(1);
        budget.exceeded().await;
        share.set(0);
        share.set(2 << 20);
        budget.exceeded().await;
        share.set(1 << 20);
        let told =
            tokio::time::timeout(std::time::Duration::from_millis(20), budget.exceeded()).await;
        assert!(told.is_err(), "a smaller share wakes no collector");
    }
}
