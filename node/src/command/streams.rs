//! Keys of streams: `tm:changes` and `tm:changes:SPACE` are the only ones.

use dataset::changes::Scope;
use dataset::engines::Engines;

/// The stream of all spaces.
pub(crate) const ALL: &[u8] = b"tm:changes";
/// In front of a space's name: the stream of that space.
const OF_SPACE: &[u8] = b"tm:changes:";

/// The space of whose stream this is the key, whether there is such a space or not.
pub(crate) fn space_in(key: &[u8]) -> Option<&[u8]> {
    key.strip_prefix(OF_SPACE)
}

/// Whether a key is that of a stream, or would be.
pub fn is_stream(key: &[u8]) -> bool {
    key == ALL || space_in(key).is_some()
}

/// The stream that a key names.
pub fn scope_of(engines: &Engines, key: &[u8]) -> Option<Scope> {
    if key == ALL {
        return Some(Scope::All);
    }
    let name = space_in(key)?;
    let counter = || engines.counter(name).map(|space| space.number());
    let existence = || engines.existence(name).map(|space| space.number());
    counter().or_else(existence).map(Scope::Space)
}
