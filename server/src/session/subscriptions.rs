//! Subscriptions of a connection.

use node::acl::User;
use node::runtime::pubsub::Kind;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes per subscription in addition to its name, rounded up: entries in the client's set and in
/// the registry.
const SUBSCRIPTION_BYTES: usize = 352;

#[derive(Default)]
pub(crate) struct Subscriptions {
    pub(crate) names: [BTreeSet<Arc<[u8]>>; 3],
    /// Memory used by the subscriptions, in bytes. A name shared by several subscribers counts in
    /// full for each of them.
    bytes: usize,
}

impl Subscriptions {
    pub(crate) fn any(&self) -> bool {
        self.names.iter().any(|names| !names.is_empty())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether the user may receive the messages of all subscriptions.
    pub(crate) fn are_allowed(&self, user: &User) -> bool {
        Kind::ALL.iter().all(|&kind| self.of(kind).iter().all(|name| user.may_receive(kind, name)))
    }

    pub(crate) fn of(&self, kind: Kind) -> &BTreeSet<Arc<[u8]>> {
        &self.names[kind as usize]
    }

    pub(crate) fn insert(&mut self, kind: Kind, name: Arc<[u8]>) {
        let bytes = bytes_of(&name);
        if self.names[kind as usize].insert(name) {
            self.bytes += bytes;
        }
    }

    pub(crate) fn remove(&mut self, kind: Kind, name: &[u8]) -> bool {
        let was_there = self.names[kind as usize].remove(name);
        if was_there {
            self.bytes -= bytes_of(name);
        }
        was_there
    }

    /// Returns the number of subscriptions that replies report: channels plus patterns, or only
    /// shard channels.
    pub(crate) fn counted(&self, kind: Kind) -> usize {
        match kind {
            Kind::Shard => self.of(Kind::Shard).len(),
            _ => self.of(Kind::Channel).len() + self.of(Kind::Pattern).len(),
        }
    }
}

pub(crate) fn bytes_of(name: &[u8]) -> usize {
    SUBSCRIPTION_BYTES + name.len()
}
