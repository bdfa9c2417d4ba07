//! Channels: their subscribers, and how a message gets there (SUBSCRIBE, PSUBSCRIBE, SSUBSCRIBE,
//! PUBLISH).
//!
//! One registry for all workers. A publisher writes the message into each listener's
//! inbox and wakes its worker; a listener that does not keep up is
//! disconnected. A message is not kept for later subscribers.

use crate::runtime::clients::Client;
use crate::runtime::glob;
use parking_lot::RwLock;
use resp::{Protocol, Reply};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Longest name of a channel, in bytes; with the next one it bounds what matching a message with
/// one pattern costs.
pub const MAX_CHANNEL: usize = 4096;
/// Longest pattern, in bytes.
pub const MAX_PATTERN: usize = 256;

/// What a subscription names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One channel.
    Channel,
    /// All channels that match a pattern.
    Pattern,
    /// One channel of a name space of its own, as SPUBLISH uses it.
    Shard,
}

impl Kind {
    /// Each kind.
    pub const ALL: [Kind; 3] = [Kind::Channel, Kind::Pattern, Kind::Shard];
}

/// Nanoseconds that a listener takes, beside those of the message's bytes, one each.
const PER_LISTENER: usize = 256;
/// Nanoseconds for each byte of a channel, and of a pattern that is made to compare slowly: each
/// byte with each.
const PER_COMPARISON: usize = 3;
/// Bytes that are copied to listeners before others may subscribe.
const SENT_AT_ONCE: usize = 1 << 20;

type Listeners = BTreeMap<u64, Arc<Client>>;

/// The registry. See the top of the file.
#[derive(Default)]
pub struct Channels {
    /// By kind, then by name.
    listeners: [RwLock<HashMap<Arc<[u8]>, Listeners>>; 3],
    /// Of all patterns together.
    pattern_listeners: AtomicUsize,
    /// Their lengths.
    pattern_bytes: AtomicUsize,
}

impl Channels {
    fn of(&self, kind: Kind) -> &RwLock<HashMap<Arc<[u8]>, Listeners>> {
        &self.listeners[kind as usize]
    }

    /// From now on `client` gets what comes there. Gives the name, of which all share one copy.
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

    /// The clients that listen to something that they may not hear; `may` says whether the client
    /// with this id may.
    /// Takes time in proportion to all subscriptions.
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

    /// It gets no more of it.
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

    /// How long [`Channels::publish`] takes at most, in nanoseconds, roughly: to copy the message
    /// for each listener, and to compare the channel with each pattern.
    pub fn effort(&self, kind: Kind, channel: &[u8], message: &[u8]) -> usize {
        let mut listeners = self.count(kind, channel);
        let mut comparisons = 0;
        if kind == Kind::Channel {
            listeners += self.pattern_listeners.load(Relaxed);
            comparisons = self.pattern_bytes.load(Relaxed) * channel.len().max(1);
        }
        listeners.saturating_mul(message.len() + PER_LISTENER) + comparisons * PER_COMPARISON
    }

    /// Sends a message to all listeners; returns how many got it (one that listens twice gets it
    /// twice). A listener with more than `most` bytes waiting is disconnected instead.
    /// Takes time in proportion to [`Channels::effort`]; nothing is locked for all of it.
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

    /// Sends the parts of a message to those that listen to this name; returns how many got it.
    fn send(&self, kind: Kind, name: &[u8], parts: &[&[u8]], most: usize) -> usize {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let at_once = (SENT_AT_ONCE / length).max(1);
        let (mut got, mut written, mut from) = (0, Written::default(), 0);
        loop {
            // A listener that is told that it listens no more gets nothing afterwards.
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

    /// Names that have listeners and match `pattern`, if there is one.
    pub fn names(&self, kind: Kind, pattern: Option<&[u8]>) -> Vec<Arc<[u8]>> {
        let all = self.of(kind).read();
        all.keys()
            .filter(|name| pattern.is_none_or(|p| glob::matches(p, name, false)))
            .cloned()
            .collect()
    }

    /// How many listen to this name.
    pub fn count(&self, kind: Kind, name: &[u8]) -> usize {
        self.of(kind).read().get(name).map_or(0, BTreeMap::len)
    }

    /// Names that have listeners.
    pub fn len(&self, kind: Kind) -> usize {
        self.of(kind).read().len()
    }
}

/// A message as bytes, written once per protocol however many get it.
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
