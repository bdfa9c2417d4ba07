//! Consumer groups of streams: what was delivered to which consumer, and what of it was not
//! acknowledged yet.
//!
//! Of a group the log has one thing, its [`Cursor`]: where delivery goes on if all else is
//! forgotten. That is its first pending entry, or, if none is pending, what follows the last
//! delivered one. So after a start or a failover what was delivered and not acknowledged is
//! delivered again. Consumers and pending entries are in memory, each with a limit.
//!
//! A cursor moves when the first pending entry is acknowledged; its new state goes into the next
//! batch of the log, as any state does (`Groups::encode_changed`).

use crate::changes::{Id, Place, Scope, Start};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::watch;

mod records;
mod waiting;

#[cfg(any(test, fuzzing))]
pub(crate) use records::check_decoder;
use waiting::WaitQueues;
pub use waiting::{Key, QueuePlace};

/// Bytes of a pending entry in memory, about: in two ordered maps.
const PENDING_BYTES: usize = 112;
/// Bytes of a consumer or a group in memory, about, beside its name.
const NAMED_BYTES: usize = 256;

/// Where delivery goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cursor {
    /// With this entry.
    At(Id),
    /// Behind it.
    After(Id),
}

impl Cursor {
    /// As a reader of the log is told.
    pub fn start(self) -> Start {
        match self {
            Cursor::At(id) => Start::At(id),
            Cursor::After(id) => Start::After(id),
        }
    }

    /// The last id that lies before it.
    pub fn last(self) -> Id {
        match self {
            Cursor::At(id) => id.before(),
            Cursor::After(id) => id,
        }
    }
}

/// An entry that was delivered and not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The one to which it was delivered last.
    pub consumer: Arc<[u8]>,
    /// When, in milliseconds since 1970.
    pub time_ms: u64,
    /// How often.
    pub times: u64,
}

/// A reader of a group.
#[derive(Clone, Debug, Default)]
pub struct Consumer {
    /// When it was last heard of, in milliseconds since 1970.
    pub seen_ms: u64,
    /// What was delivered to it.
    pub pending: BTreeSet<Id>,
}

/// A group.
#[derive(Clone, Debug)]
pub struct Group {
    /// Where delivery goes on.
    pub next: Cursor,
    /// The same as a place in the log, if that is known.
    pub place: Option<Place>,
    /// By the entries' ids.
    pub pending: BTreeMap<Id, Pending>,
    /// By their names.
    pub consumers: BTreeMap<Arc<[u8]>, Consumer>,
    /// One delivery at a time.
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

    /// What the log has of it.
    pub fn cursor(&self) -> Cursor {
        match self.pending.first_key_value() {
            Some((&first, _)) if first <= self.next.last() => Cursor::At(first),
            _ => self.next,
        }
    }

    /// The consumer of this name, which is there from now on; whether it was not.
    pub fn consumer(&mut self, name: &[u8], now_ms: u64) -> (Arc<[u8]>, bool) {
        let (name, is_new) = match self.consumers.get_key_value(name) {
            Some((name, _)) => (name.clone(), false),
            None => (Arc::from(name), true),
        };
        self.consumers.entry(name.clone()).or_default().seen_ms = now_ms;
        (name, is_new)
    }

    /// An entry was delivered to this consumer.
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

    /// An entry is pending no more; whether it was.
    pub fn acknowledge(&mut self, id: Id) -> bool {
        let Some(pending) = self.pending.remove(&id) else { return false };
        if let Some(consumer) = self.consumers.get_mut(&pending.consumer) {
            consumer.pending.remove(&id);
        }
        true
    }

    /// Removes a consumer with what is pending of it; how much that was, if it was there.
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

/// How many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Groups.
    pub groups: usize,
    /// Consumers of all groups.
    pub consumers: usize,
    /// Entries that were delivered and not acknowledged.
    pub pending: usize,
    /// Memory that they take, about.
    pub bytes: usize,
}

#[derive(Default)]
struct State {
    groups: BTreeMap<Key, Group>,
    /// Those of which the log may have another cursor, or none.
    changed: BTreeSet<Key>,
    /// Those whose cursors were encoded last.
    encoded: BTreeSet<Key>,
}

/// The groups of a data set. See the top of the file.
#[derive(Default)]
pub struct Groups {
    state: Mutex<State>,
    waiting: Arc<WaitQueues>,
}

impl Groups {
    /// Does something with a group, which is `None` if it is not there.
    pub fn with<R>(&self, key: &Key, work: impl FnOnce(Option<&mut Group>) -> R) -> R {
        work(self.state.lock().groups.get_mut(key))
    }

    /// The same where a cursor may move; gives whether it did.
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

    /// The groups of a stream, by their names.
    pub fn of(&self, scope: Scope) -> Vec<(Vec<u8>, Group)> {
        let state = self.state.lock();
        let all = state.groups.iter().filter(|((other, _), _)| *other == scope);
        all.map(|((_, name), group)| (name.clone(), group.clone())).collect()
    }

    /// How many there are.
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

    /// Forgets groups of spaces that are no more; whether there was any.
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

    /// From now on another node delivers: all but the cursors is forgotten.
    pub(crate) fn follow(&self) {
        for group in self.state.lock().groups.values_mut() {
            *group = Group::new(group.cursor());
        }
    }

    /// Puts a consumer at the end of the wait queues of these groups.
    pub fn enqueue(&self, keys: Vec<Key>) -> QueuePlace {
        self.waiting.enqueue(keys)
    }

    /// Whether this waiter is the oldest one of a group, or the group has none.
    pub fn has_turn(&self, key: &Key, number: u64) -> bool {
        self.waiting.has_turn(key, number)
    }

    /// Changes whenever a waiter has left its queues, so that another one may have its turn.
    pub fn departures(&self) -> watch::Receiver<u64> {
        self.waiting.departures()
    }

    /// A group that begins here.
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
        // Delivery goes on behind them; a restart begins with them.
        assert!(change(&|group| group.next = Cursor::After(id(9))));
        assert_eq!(cursor(), Some(Cursor::At(id(6))));
        assert!(!change(&|group| assert!(group.acknowledge(id(7)) && !group.acknowledge(id(8)))));
        assert!(change(&|group| assert!(group.acknowledge(id(6)))));
        assert_eq!(cursor(), Some(Cursor::At(id(9))));
        // To another consumer; then with that one it is gone.
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
