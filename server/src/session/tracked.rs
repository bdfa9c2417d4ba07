//! Client-side caching state of a connection (CLIENT TRACKING).

use node::runtime::tracking::Tracker;
use std::collections::BTreeSet;
use std::sync::Arc;

pub(crate) struct Tracked {
    pub(crate) tracker: Arc<Tracker>,
    /// Prefixes of broadcast mode.
    pub(crate) prefixes: BTreeSet<Box<[u8]>>,
    /// Whether CLIENT CACHING applies to the next command or transaction.
    pub(crate) caching: bool,
}

/// Bytes per prefix in addition to its text, rounded up: entries in the client's set and in the
/// registry.
const PREFIX_BYTES: usize = 256;

pub(crate) fn bytes_of(prefixes: &BTreeSet<Box<[u8]>>) -> usize {
    prefixes.iter().map(|prefix| PREFIX_BYTES + 2 * prefix.len()).sum()
}

impl Tracked {
    pub(crate) fn bytes(&self) -> usize {
        bytes_of(&self.prefixes)
    }
}
