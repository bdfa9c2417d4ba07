//! What a connection that tracks its reads remembers (CLIENT TRACKING).

use node::runtime::tracking::Tracker;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a connection that tracks remembers.
pub(crate) struct Tracked {
    pub(crate) tracker: Arc<Tracker>,
    /// Of broadcast mode.
    pub(crate) prefixes: BTreeSet<Box<[u8]>>,
    /// CLIENT CACHING was sent, for the next command or transaction.
    pub(crate) caching: bool,
}

/// Bytes of a prefix beside its text: its places in the client's list and in the registry, rounded
/// up.
const PREFIX_BYTES: usize = 256;

pub(crate) fn bytes_of(prefixes: &BTreeSet<Box<[u8]>>) -> usize {
    prefixes.iter().map(|prefix| PREFIX_BYTES + 2 * prefix.len()).sum()
}

impl Tracked {
    /// Bytes that the prefixes take.
    pub(crate) fn bytes(&self) -> usize {
        bytes_of(&self.prefixes)
    }
}
