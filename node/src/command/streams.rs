//! Keys of streams. The only streams are `tm:changes` and `tm:changes:SPACE`.

use dataset::changes::Scope;
use dataset::engines::Engines;

/// Key of the stream of all spaces.
pub(crate) const ALL: &[u8] = b"tm:changes";
/// Prefix of the stream of one space.
const OF_SPACE: &[u8] = b"tm:changes:";

/// Returns the space name in a stream's key. The space need not exist.
pub(crate) fn space_in(key: &[u8]) -> Option<&[u8]> {
    key.strip_prefix(OF_SPACE)
}

/// Whether the key has the form of a stream's key.
pub fn is_stream(key: &[u8]) -> bool {
    key == ALL || space_in(key).is_some()
}

/// Returns the scope of the stream with this key.
pub fn scope_of(engines: &Engines, key: &[u8]) -> Option<Scope> {
    if key == ALL {
        return Some(Scope::All);
    }
    let name = space_in(key)?;
    let counter = || engines.counter(name).map(|space| space.number());
    let existence = || engines.existence(name).map(|space| space.number());
    counter().or_else(existence).map(Scope::Space)
}
