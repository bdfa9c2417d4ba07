//! Pub/Sub: subscribers of channels, and delivery of messages (SUBSCRIBE, PSUBSCRIBE, SSUBSCRIBE,
//! PUBLISH).
//!
//! All workers share one registry. A publisher writes the message into the inbox of each subscriber
//! and wakes its worker. A subscriber that does not keep up is disconnected. Messages are not
//! stored for future subscribers.

use crate::runtime::clients::Client;
use crate::runtime::glob;
use parking_lot::RwLock;
use resp::{Protocol, Reply};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Maximum length of a channel's name, in bytes. Together with `MAX_PATTERN`, this limit bounds the
/// cost of a match.
pub const MAX_CHANNEL: usize = 4096;
/// Maximum length of a pattern, in bytes.
pub const MAX_PATTERN: usize = 256;

/// Kind of a subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A subscription to a channel.
    Channel,
    /// A subscription to all channels that match a pattern.
    Pattern,
    /// A subscription to a shard channel (SPUBLISH). Shard channels have a separate namespace.
    Shard,
}

impl Kind {
    /// All kinds of subscriptions.
    pub const ALL: [Kind; 3] = [Kind::Channel, Kind::Pattern, Kind::Shard];
}

/// Estimated cost of a delivery to one subscriber, in nanoseconds. Each byte of the message adds
/// one nanosecond.
const PER_LISTENER: usize = 256;
/// Estimated cost of comparing a byte of a channel with a byte of a pattern, in nanoseconds. A
/// malicious pattern causes a comparison of every pair of bytes.
const PER_COMPARISON: usize = 3;
/// Maximum bytes copied to subscribers while the registry is locked.
const MAX_LOCKED_COPY_BYTES: usize = 1 << 20;

type Listeners = BTreeMap<u64, Arc<Client>>;

/// Registry of subscriptions.
#[derive(Default)]
pub struct Channels {
    /// Subscribers by kind and name.
    listeners: [RwLock<HashMap<Arc<[u8]>, Listeners>>; 3],
    /// Number of subscribers of all patterns.
    pattern_listeners: AtomicUsize,
    /// Total length of all patterns.
    pattern_bytes: AtomicUsize,
}

impl Channels {
    fn of(&self, kind: Kind) -> &RwLock<HashMap<Arc<[u8]>, Listeners>> {
        &self.listeners[kind as usize]
    }

    /// Adds a subscription. Returns a reference to the name that all subscribers share.
    pub fn subscribe(&self, kind: Kind, name: &[u8], client: &Arc<Client>) -> Arc<[u8]> {
        let mut all = self.of(kind).write();
        let known = all.get_key_value(name).map(|(name, _)| name.clone());
        if kind == Kind::Pattern && known.is_none() {
            self.pattern_bytes.fetch_add(name.len(), Relaxed);
        }
        let name = known.unwrap_or_else(|| name.into());
        let before = all.entry(name.clone()).or_default().insert(client.id, client.clone());
        if kind == Kind::Pattern && before.is_none() {
            self.pattern_listeners.fetch_add(1, Relaxed);
        }
        name
    }

    /// Returns the clients with a forbidden subscription. `may` returns whether the client with
    /// this id may have the subscription. Takes time linear in the number of subscriptions.
    pub fn denied(&self, may: impl Fn(u64, Kind, &[u8]) -> bool) -> Vec<Arc<Client>> {
        let mut denied = BTreeMap::new();
        for kind in Kind::ALL {
            for (name, listeners) in self.of(kind).read().iter() {
                for (id, client) in listeners {
                    if !may(*id, kind, name) {
                        denied.insert(*id, client.clone());
                    }
                }
            }
        }
        denied.into_values().collect()
    }

    /// Removes a subscription.
    pub fn unsubscribe(&self, kind: Kind, name: &[u8], id: u64) {
        let mut all = self.of(kind).write();
        if let Some(listeners) = all.get_mut(name) {
            if listeners.remove(&id).is_some() && kind == Kind::Pattern {
                self.pattern_listeners.fetch_sub(1, Relaxed);
            }
            if listeners.is_empty() {
                all.remove(name);
                if kind == Kind::Pattern {
                    self.pattern_bytes.fetch_sub(name.len(), Relaxed);
                }
            }
        }
    }

    /// Estimates the maximum duration of [`Channels::publish`] in nanoseconds: copying the message
    /// for each subscriber, and matching the channel with each pattern.
    pub fn effort(&self, kind: Kind, channel: &[u8], message: &[u8]) -> usize {
        let mut listeners = self.count(kind, channel);
        let mut comparisons = 0;
        if kind == Kind::Channel {
            listeners += self.pattern_listeners.load(Relaxed);
            comparisons = self.pattern_bytes.load(Relaxed) * channel.len().max(1);
        }
        listeners.saturating_mul(message.len() + PER_LISTENER) + comparisons * PER_COMPARISON
    }

    /// Sends a message to all subscribers. Returns the number of deliveries; a client with two
    /// matching subscriptions counts twice. A subscriber whose inbox would exceed `most` bytes is
    /// disconnected. The running time is linear in [`Channels::effort`]. The registry is locked for
    /// at most `MAX_LOCKED_COPY_BYTES` bytes at a time.
    pub fn publish(&self, kind: Kind, channel: &[u8], message: &[u8], most: usize) -> usize {
        let word: &[u8] = if kind == Kind::Shard { b"smessage" } else { b"message" };
        let mut got = self.send(kind, channel, &[word, channel, message], most);
        if kind == Kind::Channel {
            let patterns: Vec<Arc<[u8]>> = self.of(Kind::Pattern).read().keys().cloned().collect();
            for pattern in patterns {
                if glob::matches(&pattern, channel, false) {
                    let parts: [&[u8]; 4] = [b"pmessage", &pattern, channel, message];
                    got += self.send(Kind::Pattern, &pattern, &parts, most);
                }
            }
        }
        got
    }

    /// Sends a message to the subscribers of this name. Returns the number of deliveries.
    fn send(&self, kind: Kind, name: &[u8], parts: &[&[u8]], most: usize) -> usize {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let at_once = (MAX_LOCKED_COPY_BYTES / length).max(1);
        let (mut got, mut written, mut from) = (0, Written::default(), 0);
        loop {
            // Deliver the message while holding the lock, so that a client receives no message
            // after a confirmed unsubscription.
            let all = self.of(kind).read();
            let Some(listeners) = all.get(name) else { return got };
            let mut left = at_once;
            for (id, client) in listeners.range(from..).take(at_once) {
                got += usize::from(client.push(written.of(client, parts), most));
                (from, left) = (id + 1, left - 1);
            }
            if left > 0 {
                return got;
            }
        }
    }

    /// Returns the names that have subscribers and match `pattern`, if given.
    pub fn names(&self, kind: Kind, pattern: Option<&[u8]>) -> Vec<Arc<[u8]>> {
        let all = self.of(kind).read();
        all.keys()
            .filter(|name| pattern.is_none_or(|p| glob::matches(p, name, false)))
            .cloned()
            .collect()
    }

    /// Number of subscribers of this name.
    pub fn count(&self, kind: Kind, name: &[u8]) -> usize {
        self.of(kind).read().get(name).map_or(0, BTreeMap::len)
    }

    /// Number of names with subscribers.
    pub fn len(&self, kind: Kind) -> usize {
        self.of(kind).read().len()
    }
}

/// A message, encoded at most once per protocol.
#[derive(Default)]
struct Written {
    resp2: Vec<u8>,
    resp3: Vec<u8>,
}

impl Written {
    fn of(&mut self, client: &Client, parts: &[&[u8]]) -> &[u8] {
        let protocol = client.protocol();
        let bytes = if protocol == Protocol::Resp3 { &mut self.resp3 } else { &mut self.resp2 };
        if bytes.is_empty() {
            let mut reply = Reply::new(bytes, protocol);
            reply.push(parts.len());
            parts.iter().for_each(|part| reply.bulk(part));
        }
        bytes
    }
}
