//! Payloads of DUMP and RESTORE: strings, hashes and sets as Redis and Valkey serialize them.
//!
//! ```text
//! type (1) | value, as in an RDB file | RDB version (2, little endian) | CRC-64 (8, little endian)
//! ```
//!
//! [`Payload::open`] checks the footer and the type; [`Payload::elements`] visits the value without
//! building it. Any client can compute a valid checksum, so the value is untrusted. The parser does
//! not allocate memory based on a count or length in the payload. A compressed string may unpack to
//! at most [`MAX_UNPACKED_BYTES`]. Parsing takes time linear in the length of the payload and of
//! its unpacked strings.
//!
//! Supported encodings, by the version that writes them: plain (all), intset (2.2), ziplist (2.6 to
//! 6), listpack (7.0, sets 7.2), hashes with expiring fields (Redis 7.4, Valkey 9.0). Lists, sorted
//! sets, streams and modules are rejected with an error that names the type.

mod crc64;
mod error;
pub mod fuzz;
mod lzf;
mod packed;
mod reader;
mod write;

pub use error::Error;
pub use lzf::MAX_UNPACKED_BYTES;
pub use reader::Element;
pub use write::{SetDump, dump_hash, dump_string};

use reader::{PayloadReader, Scratch};

/// Newest RDB version of Redis that this crate supports. Redis 8.0 writes 12.
pub const REDIS_NEWEST: u16 = 16;
/// Range of RDB versions of Valkey 9. These versions do not overlap with the versions of Redis.
pub const VALKEY_VERSIONS: std::ops::RangeInclusive<u16> = 80..=81;

const FOOTER_BYTES: usize = 10;

/// Type of the value in a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A string is one element.
    String,
    /// A hash is a sequence of alternating fields and values.
    Hash,
    /// A set is a sequence of members.
    Set,
}

impl Kind {
    /// Name of the type, as TYPE returns it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::String => "string",
            Kind::Hash => "hash",
            Kind::Set => "set",
        }
    }
}

/// Layout of the elements in the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    String,
    /// A count, then the strings.
    Strings,
    /// A count, then pairs of strings.
    Pairs,
    /// Redis 7.4 and later: a count, then triples of expiry, field and value. The earliest expiry
    /// precedes the count, except in release candidates of 7.4.
    ExpiringPairs {
        has_minimum: bool,
    },
    /// Valkey 9: a count, then triples of field, value and expiry.
    PairsExpiring,
    Intset,
    Ziplist,
    Listpack,
    /// A listpack of triples of field, value and expiry.
    ExpiringListpack {
        has_minimum: bool,
    },
}

/// A payload whose footer is valid.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    kind: Kind,
    layout: Layout,
    /// Bytes of the value, without the type and the footer.
    body: &'a [u8],
}

impl<'a> Payload<'a> {
    /// Checks version, checksum and type.
    pub fn open(bytes: &'a [u8]) -> Result<Payload<'a>, Error> {
        let at = bytes.len().checked_sub(FOOTER_BYTES).ok_or(Error::Footer)?;
        let (value, footer) = bytes.split_at(at);
        let version = u16::from_le_bytes([footer[0], footer[1]]);
        if version > REDIS_NEWEST && !VALKEY_VERSIONS.contains(&version) {
            return Err(Error::Footer);
        }
        let mut sum = [0; 8];
        sum.copy_from_slice(&footer[2..]);
        if crc64::crc64(&bytes[..at + 2]) != u64::from_le_bytes(sum) {
            return Err(Error::Footer);
        }
        let (&number, body) = value.split_first().ok_or(Error::Format("empty payload"))?;
        let (kind, layout) = of_type(number, version)?;
        Ok(Payload { kind, layout, body })
    }

    /// Returns the type of the value.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Passes all elements to `take` in the order of the payload: the string, the members of a set,
    /// or the fields and values of a hash. Stops at the first error of the payload or of `take`.
    pub fn elements<E: From<Error>>(
        &self,
        mut take: impl FnMut(Element<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        use Element::{Expires, Text};
        let mut reader = PayloadReader::new(self.body);
        let mut scratch = Scratch::default();
        match self.layout {
            Layout::String => take(Text(reader.string(&mut scratch)?))?,
            Layout::Strings => {
                for _ in 0..reader.count()? {
                    take(Text(reader.string(&mut scratch)?))?;
                }
            }
            Layout::Pairs => {
                for _ in 0..reader.count()? {
                    take(Text(reader.string(&mut scratch)?))?;
                    take(Text(reader.string(&mut scratch)?))?;
                }
            }
            Layout::ExpiringPairs { has_minimum } => {
                if has_minimum {
                    reader.bytes(8)?;
                }
                for _ in 0..reader.count()? {
                    let expiry = reader.length()?;
                    take(Text(reader.string(&mut scratch)?))?;
                    if expiry != 0 {
                        take(Expires)?;
                    }
                    take(Text(reader.string(&mut scratch)?))?;
                }
            }
            Layout::PairsExpiring => {
                for _ in 0..reader.count()? {
                    take(Text(reader.string(&mut scratch)?))?;
                    let value = reader.string(&mut scratch)?;
                    if reader.bytes(8)? != [0xff; 8] {
                        take(Expires)?;
                    }
                    take(Text(value))?;
                }
            }
            Layout::Intset => {
                packed::intset(reader.string(&mut scratch)?, &mut take)?;
            }
            Layout::Ziplist => {
                let blob = reader.string(&mut scratch)?;
                self.packed(packed::ziplist(blob, &mut take)?)?;
            }
            Layout::Listpack => {
                let blob = reader.string(&mut scratch)?;
                self.packed(packed::listpack(blob, &mut take)?)?;
            }
            Layout::ExpiringListpack { has_minimum } => {
                if has_minimum {
                    reader.bytes(8)?;
                }
                packed::expiring_listpack(reader.string(&mut scratch)?, &mut take)?;
            }
        }
        reader.end().map_err(E::from)
    }

    /// Rejects an empty value and a field without a value; Redis stores neither.
    fn packed(&self, elements: u64) -> Result<(), Error> {
        match self.kind {
            Kind::Hash if elements % 2 == 1 => Err(Error::Format("a field has no value")),
            _ if elements == 0 => Err(reader::EMPTY),
            _ => Ok(()),
        }
    }
}

fn of_type(number: u8, version: u16) -> Result<(Kind, Layout), Error> {
    let is_valkey = VALKEY_VERSIONS.contains(&version);
    Ok(match number {
        0 => (Kind::String, Layout::String),
        2 => (Kind::Set, Layout::Strings),
        4 => (Kind::Hash, Layout::Pairs),
        11 => (Kind::Set, Layout::Intset),
        13 => (Kind::Hash, Layout::Ziplist),
        16 => (Kind::Hash, Layout::Listpack),
        20 => (Kind::Set, Layout::Listpack),
        22 if is_valkey => (Kind::Hash, Layout::PairsExpiring),
        22 => (Kind::Hash, Layout::ExpiringPairs { has_minimum: false }),
        24 => (Kind::Hash, Layout::ExpiringPairs { has_minimum: true }),
        23 => (Kind::Hash, Layout::ExpiringListpack { has_minimum: false }),
        25 => (Kind::Hash, Layout::ExpiringListpack { has_minimum: true }),
        1 | 10 | 14 | 18 => return Err(Error::Type("a list")),
        3 | 5 | 12 | 17 => return Err(Error::Type("a sorted set")),
        6 | 7 => return Err(Error::Type("a module's value")),
        9 => return Err(Error::Type("a hash of Redis before 2.6")),
        15 | 19 | 21 => return Err(Error::Type("a stream")),
        _ => return Err(Error::UnknownType { number, version }),
    })
}

#[cfg(test)]
mod tests;
