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

type Listeners = BTreeMap<u64, Arc<Client>>;

/// The registry. See the top of the file.
#[derive(Default)]
pub struct Channels {
    /// By kind, then by name.
    listeners: [RwLock<HashMap<Arc<[u8]>, Listeners>>; 3],
}

impl Channels {
    fn of(&self, kind: Kind) -> &RwLock<HashMap<Arc<[u8]>, Listeners>> {
        &self.listeners[kind as usize]
    }

    /// From now on `client` gets what comes there. Gives the name, of which all share one copy.
    pub fn subscribe(&self, kind: Kind, name: &[u8], client: &Arc<Client>) -> Arc<[u8]> {
        let mut all = self.of(kind).write();
        let known = all.get_key_value(name).map(|(name, _)| name.clone());
        let name = known.unwrap_or_else(|| name.into());
        all.entry(name.clone()).or_default().insert(client.id, client.clone());
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
            listeners.remove(&id);
            if listeners.is_empty() {
                all.remove(name);
            }
        }
    }

    /// Sends a message to all listeners; returns how many got it (one that listens twice gets it
    /// twice). A listener with more than `most` bytes waiting is disconnected instead.
    pub fn publish(&self, kind: Kind, channel: &[u8], message: &[u8], most: usize) -> usize {
        let mut got = 0;
        let mut written = Written::default();
        let word: &[u8] = if kind == Kind::Shard { b"smessage" } else { b"message" };
        if let Some(listeners) = self.of(kind).read().get(channel) {
            for client in listeners.values() {
                got +=
                    usize::from(client.push(written.of(client, &[word, channel, message]), most));
            }
        }
        if kind == Kind::Channel {
            for (pattern, listeners) in self.of(Kind::Pattern).read().iter() {
                if !glob::matches(pattern, channel, false) {
                    continue;
                }
                let mut written = Written::default();
                for client in listeners.values() {
                    got +=
                        usize::from(client.push(
                            written.of(client, &[b"pmessage", pattern, channel, message]),
                            most,
                        ));
                }
            }
        }
        got
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
