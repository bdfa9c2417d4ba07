//! Consumer groups of streams: deliveries to consumers and their acknowledgements.
//!
//! The log contains only the [`Cursor`] of a group: the first pending entry or, if none is pending,
//! the position after the last delivered entry. After a restart or a failover, delivery resumes at
//! the cursor, so unacknowledged entries are delivered again. Consumers and pending entries are
//! only in memory, each with a limit.
//!
//! The cursor changes when the first pending entry is acknowledged. The next log batch contains the
//! new cursor (`Groups::encode_changed`).

use crate::changes::{ChangeCursor, Id, Scope, Start};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::watch;

mod records;
mod waiting;

#[cfg(any(test, fuzzing))]
pub(crate) use records::check_decoder;
use waiting::WaitQueues;
pub use waiting::{Key, WaitQueueEntry};

/// Approximate memory use of a pending entry, which is in two ordered maps, in bytes.
const PENDING_BYTES: usize = 112;
/// Approximate memory use of a consumer or a group without its name, in bytes.
const NAMED_BYTES: usize = 256;

/// Position where delivery resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cursor {
    /// At this entry.
    At(Id),
    /// After this entry.
    After(Id),
}

impl Cursor {
    /// Returns the position at which a reader of this cursor starts.
    pub fn start(self) -> Start {
        match self {
            Cursor::At(id) => Start::At(id),
            Cursor::After(id) => Start::After(id),
        }
    }

    /// Returns the highest id before the cursor.
    pub fn last(self) -> Id {
        match self {
            Cursor::At(id) => id.before(),
            Cursor::After(id) => id,
        }
    }
}

/// Delivered entry that is not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Consumer of the last delivery.
    pub consumer: Arc<[u8]>,
    /// Unix time of the last delivery in milliseconds.
    pub time_ms: u64,
    /// Number of deliveries.
    pub times: u64,
}

/// Consumer of a group.
#[derive(Clone, Debug, Default)]
pub struct Consumer {
    /// Unix time of the consumer's last command in milliseconds.
    pub seen_ms: u64,
    /// Entries delivered to this consumer and not acknowledged.
    pub pending: BTreeSet<Id>,
}

/// Consumer group.
#[derive(Clone, Debug)]
pub struct Group {
    /// Position of the next delivery.
    pub next: Cursor,
    /// Place of `next` in the log, if known.
    pub place: Option<ChangeCursor>,
    /// Pending entries by id.
    pub pending: BTreeMap<Id, Pending>,
    /// Consumers by name.
    pub consumers: BTreeMap<Arc<[u8]>, Consumer>,
    /// Serialises deliveries.
    pub delivering: Arc<Mutex<()>>,
}

impl Group {
    fn new(next: Cursor) -> Group {
        Group {
            next,
            place: None,
            pending: BTreeMap::new(),
            consumers: BTreeMap::new(),
            delivering: Arc::default(),
        }
    }

    /// Returns the cursor for the log.
    pub fn cursor(&self) -> Cursor {
        match self.pending.first_key_value() {
            Some((&first, _)) if first <= self.next.last() => Cursor::At(first),
            _ => self.next,
        }
    }

    /// Creates a consumer if it is missing. Returns its name and whether it is new.
    pub fn consumer(&mut self, name: &[u8], now_ms: u64) -> (Arc<[u8]>, bool) {
        let (name, is_new) = match self.consumers.get_key_value(name) {
            Some((name, _)) => (name.clone(), false),
            None => (Arc::from(name), true),
        };
        self.consumers.entry(name.clone()).or_default().seen_ms = now_ms;
        (name, is_new)
    }

    /// Records the delivery of an entry to this consumer.
    pub fn deliver(&mut self, id: Id, consumer: &Arc<[u8]>, time_ms: u64, times: u64) {
        let pending = Pending { consumer: consumer.clone(), time_ms, times };
        if let Some(before) = self.pending.insert(id, pending)
            && before.consumer != *consumer
            && let Some(other) = self.consumers.get_mut(&before.consumer)
        {
            other.pending.remove(&id);
        }
        if let Some(own) = self.consumers.get_mut(consumer) {
            own.pending.insert(id);
        }
    }

    /// Removes a pending entry. Returns whether it was pending.
    pub fn acknowledge(&mut self, id: Id) -> bool {
        let Some(pending) = self.pending.remove(&id) else { return false };
        if let Some(consumer) = self.consumers.get_mut(&pending.consumer) {
            consumer.pending.remove(&id);
        }
        true
    }

    /// Removes a consumer and its pending entries. Returns their number, or `None` if there is no
    /// such consumer.
    pub fn remove_consumer(&mut self, name: &[u8]) -> Option<usize> {
        let consumer = self.consumers.remove(name)?;
        consumer.pending.iter().for_each(|id| _ = self.pending.remove(id));
        Some(consumer.pending.len())
    }

    fn bytes(&self) -> usize {
        let names: usize = self.consumers.keys().map(|name| NAMED_BYTES + name.len()).sum();
        NAMED_BYTES + names + self.pending.len() * PENDING_BYTES
    }
}

/// Statistics of all groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Number of groups.
    pub groups: usize,
    /// Number of consumers of all groups.
    pub consumers: usize,
    /// Number of delivered entries that are not acknowledged.
    pub pending: usize,
    /// Approximate memory of all groups in bytes.
    pub bytes: usize,
}

#[derive(Default)]
struct GroupState {
    groups: BTreeMap<Key, Group>,
    /// Groups whose current cursor is not in the log.
    changed: BTreeSet<Key>,
    /// Groups whose cursors the last batch encoded.
    encoded: BTreeSet<Key>,
}

/// Groups of a data set. See the module's documentation.
#[derive(Default)]
pub struct Groups {
    state: Mutex<GroupState>,
    waiting: Arc<WaitQueues>,
}

impl Groups {
    /// Calls `work` with a group, or with `None` if the group does not exist.
    pub fn with<R>(&self, key: &Key, work: impl FnOnce(Option<&mut Group>) -> R) -> R {
        work(self.state.lock().groups.get_mut(key))
    }

    /// Runs `work` with a group, which it may create, change or drop. Returns its result and
    /// whether the cursor changed.
    pub(crate) fn change<R>(
        &self,
        key: &Key,
        work: impl FnOnce(&mut Option<Group>) -> R,
    ) -> (R, bool) {
        let state = &mut *self.state.lock();
        let mut group = state.groups.remove(key);
        let before = group.as_ref().map(Group::cursor);
        let done = work(&mut group);
        let has_moved = before != group.as_ref().map(Group::cursor);
        if let Some(group) = group {
            state.groups.insert(key.clone(), group);
        }
        if has_moved {
            state.changed.insert(key.clone());
        }
        (done, has_moved)
    }

    /// Returns the groups of a stream with their names.
    pub fn of(&self, scope: Scope) -> Vec<(Vec<u8>, Group)> {
        let state = self.state.lock();
        let all = state.groups.iter().filter(|((other, _), _)| *other == scope);
        all.map(|((_, name), group)| (name.clone(), group.clone())).collect()
    }

    /// Returns the statistics for INFO.
    pub fn stats(&self) -> GroupStats {
        let state = self.state.lock();
        let mut stats = GroupStats { groups: state.groups.len(), ..GroupStats::default() };
        for ((_, name), group) in &state.groups {
            stats.consumers += group.consumers.len();
            stats.pending += group.pending.len();
            stats.bytes += name.len() + group.bytes();
        }
        stats
    }

    /// Drops the groups of spaces that no longer exist. Returns whether it dropped a group.
    pub(crate) fn retain(&self, is_there: impl Fn(u32) -> bool) -> bool {
        let state = &mut *self.state.lock();
        let gone = |key: &&Key| matches!(key.0, Scope::Space(number) if !is_there(number));
        let gone: Vec<Key> = state.groups.keys().filter(gone).cloned().collect();
        let any = !gone.is_empty();
        for key in gone {
            state.groups.remove(&key);
            state.changed.insert(key);
        }
        any
    }

    /// Discards everything but the cursors. Called when this node becomes a replica.
    pub(crate) fn follow(&self) {
        for group in self.state.lock().groups.values_mut() {
            *group = Group::new(group.cursor());
        }
    }

    /// Appends a waiter to the wait queues of these groups.
    pub fn enqueue(&self, keys: Vec<Key>) -> WaitQueueEntry {
        self.waiting.enqueue(keys)
    }

    /// Whether this waiter is the first in the group's queue, or the queue is empty.
    pub fn has_turn(&self, key: &Key, number: u64) -> bool {
        self.waiting.has_turn(key, number)
    }

    /// Returns a receiver that is notified when a waiter leaves its queues.
    pub fn departures(&self) -> watch::Receiver<u64> {
        self.waiting.departures()
    }

    /// Creates a group whose delivery begins at `next`.
    pub fn begin(next: Cursor) -> Group {
        Group::new(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(seq: u64) -> Id {
        Id { term: 1, seq }
    }

    #[test]
    fn a_cursor_is_the_first_pending_entry_or_what_follows_the_last() {
        let groups = Groups::default();
        let key = (Scope::All, b"g".to_vec());
        let change =
            |work: &dyn Fn(&mut Group)| groups.change(&key, |group| group.as_mut().map(work)).1;
        let cursor = || groups.with(&key, |group| group.map(|group| group.cursor()));
        assert!(groups.change(&key, |group| *group = Some(Group::new(Cursor::After(id(5))))).1);
        assert!(!change(&|group| {
            let (anna, is_new) = group.consumer(b"anna", 7);
            assert!(is_new && !group.consumer(b"anna", 8).1);
            for seq in [6, 7, 9] {
                group.deliver(id(seq), &anna, 8, 1);
            }
        }));
        // Delivery continues after the pending entries. After a restart, delivery begins with the
        // pending entries.
        assert!(change(&|group| group.next = Cursor::After(id(9))));
        assert_eq!(cursor(), Some(Cursor::At(id(6))));
        assert!(!change(&|group| assert!(group.acknowledge(id(7)) && !group.acknowledge(id(8)))));
        assert!(change(&|group| assert!(group.acknowledge(id(6)))));
        assert_eq!(cursor(), Some(Cursor::At(id(9))));
        // The entry moves to another consumer, and is removed together with that consumer.
        assert!(!change(&|group| {
            let (ben, _) = group.consumer(b"ben", 9);
            group.deliver(id(9), &ben, 9, 2);
            assert!(group.consumers[&b"anna"[..]].pending.is_empty());
        }));
        assert!(change(&|group| {
            assert_eq!(
                (group.remove_consumer(b"ben"), group.remove_consumer(b"x")),
                (Some(1), None)
            );
        }));
        assert_eq!(cursor(), Some(Cursor::After(id(9))));
        assert_eq!(groups.stats().consumers, 1);
        groups.follow();
        assert_eq!((groups.stats().consumers, cursor()), (0, Some(Cursor::After(id(9)))));
        groups.change(&key, |group| *group = None);
        assert_eq!((groups.stats().groups, cursor()), (0, None));
    }
}
