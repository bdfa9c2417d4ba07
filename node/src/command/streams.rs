//! `tm:changes`, the one kind of stream that there is: its keys, and the options of XREAD and
//! XREADGROUP, in front of which and behind which the keys stand.

use crate::command::error::{Refusal, refuse};
use crate::command::spec::Spec;
use dataset::changes::Scope;
use dataset::engines::Engines;
use resp::Args;

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

/// What stands between the name of XREAD or XREADGROUP and its keys.
#[derive(Default)]
pub struct Options<'a> {
    /// COUNT.
    pub count: Option<&'a [u8]>,
    /// BLOCK, in milliseconds.
    pub block: Option<&'a [u8]>,
    /// The group and the consumer.
    pub group: Option<(&'a [u8], &'a [u8])>,
    /// NOACK.
    pub no_ack: bool,
    /// The position of the first key, and how many there are.
    pub keys: (usize, usize),
}

impl<'a> Options<'a> {
    /// Reads them as Redis does; the one place where it is worked out which words are keys.
    pub fn read(spec: &Spec, args: Args<'a>) -> Result<Options<'a>, Refusal> {
        let name = spec.name;
        let is_group = name == "xreadgroup";
        let of_group = |option: &str| {
            refuse!(
                "ERR The {option} option is only supported by XREADGROUP. You called XREAD instead."
            )
        };
        let mut options = Options::default();
        let mut at = 1;
        while at < args.len() {
            let (word, more) = (args.at(at), args.len() - at - 1);
            let is =
                |option: &[u8], needs: usize| word.eq_ignore_ascii_case(option) && more >= needs;
            if is(b"block", 1) {
                options.block = Some(args.at(at + 1));
                at += 2;
            } else if is(b"count", 1) {
                options.count = Some(args.at(at + 1));
                at += 2;
            } else if is(b"streams", 1) {
                if more % 2 != 0 {
                    let symbol = if is_group { '>' } else { '$' };
                    return Err(refuse!(
                        "ERR Unbalanced '{name}' list of streams: for each stream key an ID or \
                         '{symbol}' must be specified."
                    ));
                }
                options.keys = (at + 1, more / 2);
                break;
            } else if is(b"group", 2) {
                if !is_group {
                    return Err(of_group("GROUP"));
                }
                options.group = Some((args.at(at + 1), args.at(at + 2)));
                at += 3;
            } else if is(b"noack", 0) {
                if !is_group {
                    return Err(of_group("NOACK"));
                }
                options.no_ack = true;
                at += 1;
            } else {
                return Err(Refusal::SYNTAX);
            }
        }
        if options.keys.1 == 0 {
            return Err(Refusal::SYNTAX);
        }
        if is_group && options.group.is_none() {
            return Err(refuse!("ERR Missing GROUP option for XREADGROUP"));
        }
        Ok(options)
    }
}
