//! What a connection listens to.

use node::acl::User;
use node::runtime::pubsub::Kind;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of one subscription beside its name: its places in the client's list and in the registry,
/// rounded up.
const SUBSCRIPTION_BYTES: usize = 352;

/// What one connection listens to, by kind.
#[derive(Default)]
pub(crate) struct Subscriptions {
    pub(crate) names: [BTreeSet<Arc<[u8]>>; 3],
    /// Bytes that they take; those of a name that others listen to as well count in full.
    bytes: usize,
}

impl Subscriptions {
    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        self.names.iter().any(|names| !names.is_empty())
    }

    /// Bytes that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a user may hear all of them.
    pub(crate) fn are_allowed(&self, user: &User) -> bool {
        Kind::ALL.iter().all(|&kind| self.of(kind).iter().all(|name| user.may_hear(kind, name)))
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

    /// What replies count: channels and patterns together, shard channels by themselves.
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
