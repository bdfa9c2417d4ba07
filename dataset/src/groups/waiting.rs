//! Consumers that wait for new entries of a group. The one that has waited longest is served first,
//! as in Redis: all of them wake when the log grows, and those behind the first stand back.

use super::{Groups, Key};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::watch;

#[derive(Default)]
struct Queues {
    /// By group: the numbers of its waiters, which rise.
    waiters: HashMap<Key, BTreeSet<u64>>,
    last: u64,
}

/// The waiters of all groups.
#[derive(Default)]
pub(super) struct WaitQueues {
    queues: Mutex<Queues>,
    /// How many waiters have left.
    left: watch::Sender<u64>,
}

/// A waiter's place in the queues of some groups, which it leaves when this is dropped.
pub struct QueuePlace {
    groups: Arc<Groups>,
    keys: Vec<Key>,
    number: u64,
}

impl Groups {
    /// Takes the last place in the queues of these groups.
    pub fn enqueue(self: &Arc<Self>, keys: Vec<Key>) -> QueuePlace {
        let queues = &mut *self.waiting.queues.lock();
        queues.last += 1;
        for key in &keys {
            queues.waiters.entry(key.clone()).or_default().insert(queues.last);
        }
        QueuePlace { groups: self.clone(), keys, number: queues.last }
    }

    /// Whether this waiter is the oldest one of a group, or the group has none.
    pub fn has_turn(&self, key: &Key, number: u64) -> bool {
        let queues = self.waiting.queues.lock();
        let first = queues.waiters.get(key).and_then(BTreeSet::first);
        first.is_none_or(|first| *first >= number)
    }

    /// Changes whenever a waiter has left its queues, so that it may be another one's turn.
    pub fn departures(&self) -> watch::Receiver<u64> {
        self.waiting.left.subscribe()
    }
}

impl QueuePlace {
    /// What [`Groups::has_turn`] knows the waiter by.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        let queues = &mut *self.groups.waiting.queues.lock();
        for key in &self.keys {
            if let Some(waiters) = queues.waiters.get_mut(key) {
                waiters.remove(&self.number);
                if waiters.is_empty() {
                    queues.waiters.remove(key);
                }
            }
        }
        self.groups.waiting.left.send_modify(|left| *left += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::Scope;

    #[test]
    fn the_oldest_waiter_of_each_group_has_the_turn() {
        let groups = Arc::new(Groups::default());
        let key = |name: &str| (Scope::All, name.as_bytes().to_vec());
        let (a, b) = (key("a"), key("b"));
        assert!(groups.has_turn(&a, u64::MAX), "nobody waits");
        let one = groups.enqueue(vec![a.clone()]);
        let two = groups.enqueue(vec![a.clone(), b.clone()]);
        let turns = |place: &QueuePlace| {
            (groups.has_turn(&a, place.number()), groups.has_turn(&b, place.number()))
        };
        assert_eq!((turns(&one).0, turns(&two)), (true, (false, true)));
        assert!(!groups.has_turn(&b, u64::MAX), "who has no place yet comes last");
        let mut departures = groups.departures();
        drop(one);
        assert!(departures.has_changed().unwrap());
        departures.mark_unchanged();
        assert_eq!(turns(&two), (true, true));
        drop(two);
        assert!(groups.has_turn(&b, u64::MAX) && departures.has_changed().unwrap());
        assert!(groups.waiting.queues.lock().waiters.is_empty());
    }
}
