//! Wait queues of consumer groups. As in Redis, the consumer that has waited longest is served
//! first. When the log grows, all waiters wake up, and all except the first go back to waiting.

use crate::changes::Scope;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::watch;

/// Key of a group: its stream and its name.
pub type Key = (Scope, Vec<u8>);

#[derive(Default)]
struct WaiterQueues {
    /// Numbers of each group's waiters, in order of arrival.
    waiters: HashMap<Key, BTreeSet<u64>>,
    last: u64,
}

#[derive(Default)]
pub(super) struct WaitQueues {
    queues: Mutex<WaiterQueues>,
    /// Number of waiters that have left their queues.
    left: watch::Sender<u64>,
}

/// Entry of a waiter in the queues of its groups. Dropping it removes the waiter from all of them.
pub struct WaitQueueEntry {
    all: Arc<WaitQueues>,
    keys: Vec<Key>,
    number: u64,
}

impl WaitQueues {
    pub(super) fn enqueue(self: &Arc<Self>, keys: Vec<Key>) -> WaitQueueEntry {
        let queues = &mut *self.queues.lock();
        queues.last += 1;
        for key in &keys {
            queues.waiters.entry(key.clone()).or_default().insert(queues.last);
        }
        WaitQueueEntry { all: self.clone(), keys, number: queues.last }
    }

    pub(super) fn has_turn(&self, key: &Key, number: u64) -> bool {
        let queues = self.queues.lock();
        let first = queues.waiters.get(key).and_then(BTreeSet::first);
        first.is_none_or(|first| *first >= number)
    }

    pub(super) fn departures(&self) -> watch::Receiver<u64> {
        self.left.subscribe()
    }
}

impl WaitQueueEntry {
    /// Returns the waiter's number, which identifies it in
    /// [`Groups::has_turn`](super::Groups::has_turn).
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for WaitQueueEntry {
    fn drop(&mut self) {
        let queues = &mut *self.all.queues.lock();
        for key in &self.keys {
            if let Some(waiters) = queues.waiters.get_mut(key) {
                waiters.remove(&self.number);
                if waiters.is_empty() {
                    queues.waiters.remove(key);
                }
            }
        }
        self.all.left.send_modify(|left| *left += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_waiter_of_each_group_has_the_turn() {
        let groups = Arc::new(WaitQueues::default());
        let key = |name: &str| (Scope::All, name.as_bytes().to_vec());
        let (a, b) = (key("a"), key("b"));
        assert!(groups.has_turn(&a, u64::MAX), "nobody waits");
        let one = groups.enqueue(vec![a.clone()]);
        let two = groups.enqueue(vec![a.clone(), b.clone()]);
        let turns = |place: &WaitQueueEntry| {
            (groups.has_turn(&a, place.number()), groups.has_turn(&b, place.number()))
        };
        assert_eq!((turns(&one).0, turns(&two)), (true, (false, true)));
        assert!(!groups.has_turn(&b, u64::MAX), "the newcomer is last");
        let mut departures = groups.departures();
        drop(one);
        assert!(departures.has_changed().unwrap());
        departures.mark_unchanged();
        assert_eq!(turns(&two), (true, true));
        drop(two);
        assert!(groups.has_turn(&b, u64::MAX) && departures.has_changed().unwrap());
        assert!(groups.queues.lock().waiters.is_empty());
    }
}
