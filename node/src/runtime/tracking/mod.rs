//! Client tracking (CLIENT TRACKING): notifies clients when a write makes a value in their cache
//! stale.
//!
//! ```text
//!   read by a tracking client        table: id -> key as the client named it -> its readers
//!   write of that id                 removes the id's keys from the table
//!   end of the writer's command      `invalidate` to each reader, then the writer's own reply
//! ```
//!
//! - **Default mode.** A read inserts its keys into the table *before* reading the data. A write
//!   changes the data before it removes the keys. So a reader either sees the new value or is
//!   notified.
//! - **Broadcast mode.** This mode does not use the table. After a change of an id, all possible
//!   names of its keys are sent to the clients with a matching prefix.
//! - **Places.** A key depends on one or several [places](dataset::watch::WatchedId): the row, or
//!   the pairs, of an id in a space. The key of a cell depends on the whole row. An id in FEED.GET
//!   is also a key, which depends on all places that the view reads.
//! - **Order.** Messages go to the inbox of the receiving client. The worker empties an inbox only
//!   between two replies, so a message never precedes an earlier reply.
//!
//! Without tracking clients a write costs one atomic load. Memory is bounded: table entries by
//! `max_tracked_keys`, messages by `max_push_buffer`, prefixes by `max_subscriptions` and
//! `max_subscriptions_memory`.

mod prefixes;
mod table;

pub use prefixes::{MAX_PREFIX, Overlap, find_overlap};
pub use table::Spaces;

use crate::config::Config;
use crate::runtime::clients::{BROADCAST, BROKEN_REDIRECT, Client, TRACKING};
use dataset::engines::Engines;
use dataset::engines::{ChangeListener, Listener};
use dataset::watch::WatchedId;
use parking_lot::{Mutex, RwLock};
use prefixes::Prefixes;
use resp::{Protocol, Reply};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{
    AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst, fence,
};
use std::sync::{Arc, Weak};
use table::{RemovedKey, Table};

impl ChangeListener for Tracking {
    fn changed(&self, engines: &Engines, place: WatchedId) {
        Tracking::changed(self, engines, place);
    }

    fn begin(&self) {
        Tracking::begin(self, None, None);
    }

    fn end(&self, engines: &Engines) {
        Tracking::end(self, Some(engines));
    }

    fn all_changed(&self) {
        Tracking::all_changed(self);
    }
}

/// Channel on which a RESP2 client receives redirected invalidations.
const CHANNEL: &[u8] = b"__redis__:invalidate";
/// Maximum number of changed places for which the key names are generated and sent together.
const PLACES_TOGETHER: usize = 256;
/// Number of stale entries below which a scan of the table is not worthwhile.
const FEW_STALE: usize = 1000;

/// Options of CLIENT TRACKING ON.
#[derive(Clone, Default)]
pub struct Options {
    /// REDIRECT: client that receives the messages, and its id.
    pub redirect: Option<(u64, Weak<Client>)>,
    /// Whether the option BCAST is set.
    pub broadcast: bool,
    /// Whether the option OPTIN is set.
    pub opt_in: bool,
    /// Whether the option OPTOUT is set.
    pub opt_out: bool,
    /// Whether the option NOLOOP is set.
    pub no_loop: bool,
}

/// A tracking client, from CLIENT TRACKING ON to OFF.
pub struct Tracker {
    /// Unique identifier of the tracker. A client that restarts tracking gets a new tracker.
    number: u64,
    client: Arc<Client>,
    /// Options of the client.
    pub options: Options,
    /// Approximate number of this client's entries in the table.
    items: AtomicI64,
}

/// Registry of all trackers.
#[derive(Default)]
pub struct Tracking {
    clients: Arc<AtomicUsize>,
    trackers: RwLock<HashMap<u64, Arc<Tracker>>>,
    last_number: AtomicU64,
    table: Table,
    prefixes: RwLock<Prefixes>,
    /// Number of prefixes in broadcast mode.
    broadcasts: AtomicUsize,
    /// Horizons of existence spaces, by space number, at the last [`Tracking::tidy`].
    horizons: Mutex<HashMap<u32, u64>>,
    /// Approximate number of entries in `table` whose client has stopped tracking or disconnected.
    stale: AtomicUsize,
    /// Number of entries evicted from the table.
    pub(crate) evicted: AtomicU64,
    /// Limit `max_tracked_keys`; 0 for none.
    most_items: AtomicUsize,
    most_push_bytes: AtomicUsize,
}

/// Unsent changes by one command or by one record of a master's log.
#[derive(Default)]
struct Changes {
    /// Ids of the client that made the changes and of its tracker.
    client: Option<u64>,
    tracker: Option<u64>,
    taken: Vec<RemovedKey>,
    /// Changed places, for clients in broadcast mode.
    places: Vec<WatchedId>,
    all: bool,
}

thread_local! {
    /// Changes collected by the command that this thread executes.
    static CHANGES: RefCell<Option<Changes>> = const { RefCell::new(None) };
}

/// An invalidation, encoded at most once per protocol.
struct Invalidation<'a> {
    /// Invalidated keys; `None` means all keys.
    pub keys: Option<&'a [&'a [u8]]>,
    push: Vec<u8>,
    channel: Vec<u8>,
}

impl<'a> Invalidation<'a> {
    fn of(keys: Option<&'a [&'a [u8]]>) -> Invalidation<'a> {
        Invalidation { keys, push: Vec::new(), channel: Vec::new() }
    }

    fn bytes(&mut self, protocol: Protocol) -> &[u8] {
        let is_push = protocol == Protocol::Resp3;
        let bytes = if is_push { &mut self.push } else { &mut self.channel };
        if bytes.is_empty() {
            write_message(&mut Reply::new(bytes, protocol), self.keys);
        }
        bytes
    }
}

/// Writes an invalidation of these keys, or of all keys.
fn write_message(reply: &mut Reply<'_>, keys: Option<&[&[u8]]>) {
    if reply.protocol() == Protocol::Resp3 {
        reply.push(2);
        reply.bulk(b"invalidate");
    } else {
        reply.array(3);
        reply.bulk(b"message");
        reply.bulk(CHANNEL);
    }
    match keys {
        Some(keys) => {
            reply.array(keys.len());
            keys.iter().for_each(|key| reply.bulk(key));
        }
        None => reply.null(),
    }
}

/// Writes an invalidation of all keys to a client that lost messages, if the client can receive it.
pub fn write_all(client: &Client, out: &mut Vec<u8>) {
    if client.protocol() == Protocol::Resp3 || client.listens() {
        write_message(&mut Reply::new(out, client.protocol()), None);
    }
}

impl Tracking {
    pub(crate) fn configure(&self, config: &Config) {
        self.most_items.store(config.server.max_tracked_keys, Relaxed);
        self.most_push_bytes.store(config.server.max_push_buffer_bytes, Relaxed);
    }

    /// Whether any client uses tracking.
    #[inline]
    pub fn any(&self) -> bool {
        self.clients.load(Relaxed) != 0
    }

    pub(crate) fn clients(&self) -> usize {
        self.clients.load(Relaxed)
    }

    /// Returns the number of keys in the table, and of entries: pairs of a key and a reader.
    pub fn size(&self) -> (usize, usize) {
        (self.table.keys(), self.table.items())
    }

    /// Approximate size of the table in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.table.bytes()
    }

    /// Number of distinct prefixes in broadcast mode.
    pub fn prefixes(&self) -> usize {
        self.prefixes.read().len()
    }

    /// Starts tracking for a client, or changes its options if it has a tracker `before`.
    /// Concurrent writers may not see the new tracker yet, so the caller must wait for them:
    /// [`Engines::wait_for_writers`].
    pub fn start(
        &self,
        client: &Arc<Client>,
        options: Options,
        prefixes: &[&[u8]],
        before: Option<&Tracker>,
        engines: Option<&Engines>,
    ) -> Arc<Tracker> {
        let number = match before {
            Some(tracker) => tracker.number,
            None => self.last_number.fetch_add(1, Relaxed) + 1,
        };
        let redirect = options.redirect.as_ref();
        let target = redirect.and_then(|(_, target)| target.upgrade());
        target.as_ref().unwrap_or(client).hears.store(true, SeqCst);
        client.hears.store(true, SeqCst);
        client
            .redirect
            .store(redirect.map_or(0, |(id, _)| i64::try_from(*id).unwrap_or(i64::MAX)), Relaxed);
        client.flags.fetch_and(!(BROKEN_REDIRECT | BROADCAST), Relaxed);
        client.flags.fetch_or(TRACKING | if options.broadcast { BROADCAST } else { 0 }, Relaxed);
        if options.broadcast {
            let mut all = self.prefixes.write();
            prefixes.iter().for_each(|prefix| all.add(prefix, number));
            self.broadcasts.store(all.len(), SeqCst);
        }
        let items = before.map_or(0, |tracker| tracker.items.load(Relaxed));
        let tracker =
            Arc::new(Tracker { number, client: client.clone(), options, items: items.into() });
        let mut trackers = self.trackers.write();
        if trackers.is_empty() {
            let horizons = engines.map(|engines| engines.existences()).unwrap_or_default();
            *self.horizons.lock() =
                horizons.iter().map(|space| (space.number(), space.horizon())).collect();
        }
        trackers.insert(number, tracker.clone());
        self.clients.store(trackers.len(), SeqCst);
        drop(trackers);
        // Pairs with the fence in `Engines::changed_by_log`.
        fence(SeqCst);
        tracker
    }

    /// Stops tracking for a client.
    pub fn stop(&self, tracker: &Tracker, prefixes: &BTreeSet<Box<[u8]>>) {
        let client = &tracker.client;
        client.flags.fetch_and(!(TRACKING | BROKEN_REDIRECT | BROADCAST), Relaxed);
        client.redirect.store(-1, Relaxed);
        if !prefixes.is_empty() {
            let mut all = self.prefixes.write();
            prefixes.iter().for_each(|prefix| all.remove(prefix, tracker.number));
            self.broadcasts.store(all.len(), SeqCst);
        }
        let mut trackers = self.trackers.write();
        trackers.remove(&tracker.number);
        self.clients.store(trackers.len(), SeqCst);
        let items = usize::try_from(tracker.items.load(Relaxed)).unwrap_or(0);
        self.stale.fetch_add(items, Relaxed);
        // Clear the table while holding the lock, so that entries of a new tracker remain.
        let all = trackers.is_empty().then(|| {
            self.stale.store(0, Relaxed);
            self.table.clear()
        });
        drop(trackers);
        all.into_iter().for_each(table::drop_in_background);
    }

    /// Inserts a key that a client is about to read, with the spaces on which it depends.
    pub fn remember(&self, tracker: &Tracker, id: u64, key: &[u8], spaces: &Spaces) {
        if !self.table.remember(id, key, spaces, tracker.number) {
            return;
        }
        tracker.items.fetch_add(1, Relaxed);
        // Evict two entries per new entry, so that the size eventually reaches a lowered limit.
        for _ in 0..2 {
            if !self.is_over() || !self.evict() {
                break;
            }
        }
    }

    fn is_over(&self) -> bool {
        let most = self.most_items.load(Relaxed);
        most > 0 && self.table.items() > most
    }

    /// Evicts a random key and notifies its readers. Returns false if the table is empty.
    fn evict(&self) -> bool {
        let Some(taken) = self.table.evict() else { return false };
        self.evicted.fetch_add(taken.readers.len() as u64, Relaxed);
        self.collect_or_send(None, |changes| changes.taken.push(taken));
        true
    }

    /// Starts collecting the changes of a command or a record.
    pub fn begin(&self, client: Option<&Client>, tracker: Option<&Tracker>) {
        let changes = Changes {
            client: client.map(|client| client.id),
            tracker: tracker.map(|tracker| tracker.number),
            ..Changes::default()
        };
        CHANGES.set(Some(changes));
    }

    /// Sends the collected changes. Returns whether the client that made them also receives a
    /// message.
    pub fn end(&self, engines: Option<&Engines>) -> bool {
        CHANGES.take().is_some_and(|changes| self.send(&changes, engines))
    }

    /// Adds a change to the collected changes, or sends it immediately if none are being collected.
    fn collect_or_send(&self, engines: Option<&Engines>, add: impl FnOnce(&mut Changes)) {
        let alone = CHANGES.with_borrow_mut(|gathered| match gathered {
            Some(changes) => {
                add(changes);
                None
            }
            None => {
                let mut changes = Changes::default();
                add(&mut changes);
                Some(changes)
            }
        });
        alone.into_iter().for_each(|changes| _ = self.send(&changes, engines));
    }

    pub(crate) fn listener(self: &Arc<Tracking>) -> Listener {
        Listener::new(self.clients.clone(), self.clone())
    }

    #[cold]
    pub(crate) fn changed(&self, engines: &Engines, place: WatchedId) {
        let taken = self.table.take(place);
        let is_broadcast = self.broadcasts.load(Relaxed) != 0;
        if taken.is_empty() && !is_broadcast {
            return;
        }
        self.collect_or_send(Some(engines), |changes| {
            changes.taken.extend(taken);
            if is_broadcast && changes.places.last() != Some(&place) {
                changes.places.push(place);
            }
        });
    }

    /// Handles a change that may make any key stale, such as a schema change.
    #[cold]
    pub(crate) fn all_changed(&self) {
        table::drop_in_background(self.table.clear());
        for tracker in self.trackers.read().values() {
            tracker.items.store(0, Relaxed);
        }
        self.collect_or_send(None, |changes| changes.all = true);
    }

    /// Sends the messages. Returns whether the client that made the changes also receives a
    /// message.
    fn send(&self, changes: &Changes, engines: Option<&Engines>) -> bool {
        let mut own = false;
        let trackers = self.trackers.read();
        if changes.all {
            let mut message = Invalidation::of(None);
            for tracker in trackers.values() {
                own |= self.deliver(tracker, &mut message, changes);
            }
        }
        for taken in &changes.taken {
            let keys = [&*taken.key];
            let mut message = Invalidation::of(Some(&keys));
            for number in &taken.readers {
                let Some(tracker) = trackers.get(number) else {
                    let less = |stale: usize| Some(stale.saturating_sub(1));
                    let _ = self.stale.fetch_update(Relaxed, Relaxed, less);
                    continue;
                };
                tracker.items.fetch_sub(1, Relaxed);
                let is_own = changes.tracker == Some(*number) && !taken.is_evicted;
                if !(is_own && tracker.options.no_loop) {
                    own |= self.deliver(tracker, &mut message, changes);
                }
            }
        }
        if let Some(engines) = engines.filter(|_| !changes.places.is_empty()) {
            let mut places = changes.places.clone();
            places.sort_unstable_by_key(|&(space, id)| (id, space));
            places.dedup();
            for places in places.chunks(PLACES_TOGETHER) {
                own |= self.broadcast(&trackers, places, changes, engines);
            }
        }
        own
    }

    fn broadcast(
        &self,
        trackers: &HashMap<u64, Arc<Tracker>>,
        places: &[WatchedId],
        changes: &Changes,
        engines: &Engines,
    ) -> bool {
        let mut names = BTreeSet::new();
        places.iter().for_each(|&place| engines.names_of(place, &mut names));
        let mut own = false;
        for (numbers, keys) in self.prefixes.read().matching(&names) {
            let mut message = Invalidation::of(Some(&keys));
            for tracker in numbers.iter().filter_map(|number| trackers.get(number)) {
                if !(tracker.options.no_loop && changes.tracker == Some(tracker.number)) {
                    own |= self.deliver(tracker, &mut message, changes);
                }
            }
        }
        own
    }

    /// Delivers a message to a tracker's client or to its redirection target. Returns whether the
    /// receiver made the changes.
    fn deliver(
        &self,
        tracker: &Tracker,
        message: &mut Invalidation<'_>,
        changes: &Changes,
    ) -> bool {
        let most = self.most_push_bytes.load(Relaxed);
        let push = |client: &Client, bytes: &[u8]| {
            client.push(bytes, most);
            changes.client == Some(client.id)
        };
        let Some((id, target)) = &tracker.options.redirect else {
            let client = &tracker.client;
            // A RESP2 client cannot distinguish a message from a reply.
            return client.protocol() == Protocol::Resp3
                && push(client, message.bytes(Protocol::Resp3));
        };
        let Some(target) = target.upgrade().filter(|target| target.is_connected()) else {
            let client = &tracker.client;
            client.flags.fetch_or(BROKEN_REDIRECT, Relaxed);
            if client.protocol() == Protocol::Resp2 {
                return false;
            }
            let mut bytes = Vec::new();
            let mut reply = Reply::new(&mut bytes, Protocol::Resp3);
            reply.push(2);
            reply.bulk(b"tracking-redir-broken");
            reply.int(i64::try_from(*id).unwrap_or(i64::MAX));
            return push(client, &bytes);
        };
        let protocol = target.protocol();
        let hears = protocol == Protocol::Resp3 || target.listens();
        hears && push(&target, message.bytes(protocol))
    }

    /// Maintains the table. Notifies readers of ids below a new horizon, removes entries of former
    /// trackers, and enforces the limit. Called by the maintenance thread.
    pub fn tidy(&self, engines: &Engines) {
        if !self.any() {
            return;
        }
        for space in engines.existences() {
            let now = space.horizon();
            let before = self.horizons.lock().insert(space.number(), now).unwrap_or(0);
            if before < now {
                self.recycled(engines, space.number(), now);
            }
        }
        let stale = self.stale.load(Relaxed);
        if stale > FEW_STALE && stale > self.table.items() / 4 {
            self.stale.fetch_sub(stale, Relaxed);
            self.table.keep_readers(|number| self.trackers.read().contains_key(&number));
        }
        while self.is_over() && self.evict() {}
    }

    /// Handles a new horizon. Pairs of ids below the horizon are unknown.
    fn recycled(&self, engines: &Engines, space: u32, horizon: u64) {
        let taken = self.table.take_below(space, horizon);
        self.collect_or_send(Some(engines), |changes| changes.taken.extend(taken));
        // The table does not record the keys of clients in broadcast mode, so these clients discard
        // all keys.
        let numbers: BTreeSet<u64> = {
            let prefixes = self.prefixes.read();
            let touched = engines.name_starts(space);
            prefixes.touching(&touched).flatten().copied().collect()
        };
        let trackers = self.trackers.read();
        let mut message = Invalidation::of(None);
        for tracker in numbers.iter().filter_map(|number| trackers.get(number)) {
            self.deliver(tracker, &mut message, &Changes::default());
        }
    }

    /// Disconnects clients whose users may no longer receive their broadcasts. Called after a
    /// change of users.
    pub fn end_denied(&self, may: impl Fn(&Client, &[u8]) -> bool) {
        let trackers = self.trackers.read();
        let prefixes = self.prefixes.read();
        for (prefix, numbers) in prefixes.all() {
            for tracker in numbers.iter().filter_map(|number| trackers.get(number)) {
                if !may(&tracker.client, prefix) {
                    tracker.client.kill();
                }
            }
        }
    }
}
