//! Payloads of DUMP and RESTORE: strings, hashes and sets as Redis and Valkey serialize them.
//!
//! ```text
//! type (1) | value, as in an RDB file | RDB version (2, little endian) | CRC-64 (8, little endian)
//! ```
//!
//! [`Payload::open`] checks the footer and the type; [`Payload::elements`] walks the value without
//! building it. Any client can send a right checksum, so nothing in a payload is trusted: no count
//! or length reserves memory, and what is compressed may take [`MAX_UNPACKED_BYTES`]. The work is
//! linear in the payload's length, and in what it unpacks to.
//!
//! Encodings that are read, by the version that writes them: plain (all), intset (2.2), ziplist
//! (2.6 to 6), listpack (7.0, sets 7.2), hashes with expiring fields (Redis 7.4, Valkey 9.0).
//! Lists, sorted sets, streams and modules are refused by name.

mod crc64;
pub mod fuzz;
mod lzf;
mod packed;
mod reader;
mod write;

pub use write::{SetDump, dump_hash, dump_string};

use reader::{Reader, Scratch};

/// Most bytes that one compressed string may unpack to.
pub const MAX_UNPACKED_BYTES: usize = 16 << 20;
/// The newest RDB version of Redis whose types are known: unreleased in 2025, 8.0 writes 12.
pub const REDIS_NEWEST: u16 = 16;
/// The RDB versions of Valkey 9, which parted from Redis's numbers.
pub const VALKEY: std::ops::RangeInclusive<u16> = 80..=81;

const FOOTER_BYTES: usize = 10;

/// Why a payload is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is cut, damaged, or newer than this.
    #[error("payload version or checksum are wrong")]
    Footer,
    /// The footer is right, and what stands before it is not what the type says.
    #[error("{0}")]
    Format(&'static str),
    /// It holds something that this crate does not read.
    #[error("it holds {0}")]
    Type(&'static str),
    /// A type that no release known to this crate writes.
    #[error(
        "it holds a value of RDB type {number}, written as RDB version {version}, which is \
         unknown here"
    )]
    UnknownType {
        /// The type, its first byte.
        number: u8,
        /// From the footer.
        version: u16,
    },
}

/// What a payload holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One element.
    String,
    /// Fields and values in turn.
    Hash,
    /// Members.
    Set,
}

impl Kind {
    /// As TYPE calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::String => "string",
            Kind::Hash => "hash",
            Kind::Set => "set",
        }
    }
}

/// What a walk over a payload gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element<'a> {
    /// A string, a member, a field or its value.
    Text(&'a [u8]),
    /// The field that came just before expires, alone of its hash. Its value comes next.
    Expires,
}

/// How the elements are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    String,
    /// A count, and so many strings.
    Strings,
    /// A count, and so many pairs of strings.
    Pairs,
    /// Redis 7.4 and later: a count, and so many of expiry, field, value; before it the time of the
    /// first expiry, but for release candidates of 7.4.
    ExpiringPairs {
        has_minimum: bool,
    },
    /// Valkey 9: a count, and so many of field, value, expiry.
    PairsExpiring,
    Intset,
    Ziplist,
    Listpack,
    /// A listpack of fields, values and expiries in turn.
    ExpiringListpack {
        has_minimum: bool,
    },
}

/// A payload whose footer is right. See the top of the file.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    kind: Kind,
    layout: Layout,
    /// Behind the type, without the footer.
    body: &'a [u8],
}

impl<'a> Payload<'a> {
    /// Checks version, checksum and type.
    pub fn open(bytes: &'a [u8]) -> Result<Payload<'a>, Error> {
        let at = bytes.len().checked_sub(FOOTER_BYTES).ok_or(Error::Footer)?;
        let (value, footer) = bytes.split_at(at);
        let version = u16::from_le_bytes([footer[0], footer[1]]);
        if version > REDIS_NEWEST && !VALKEY.contains(&version) {
            return Err(Error::Footer);
        }
        let mut sum = [0; 8];
        sum.copy_from_slice(&footer[2..]);
        if crc64::crc64(&bytes[..at + 2]) != u64::from_le_bytes(sum) {
            return Err(Error::Footer);
        }
        let (&number, body) = value.split_first().ok_or(Error::Format("it is empty"))?;
        let (kind, layout) = of_type(number, version)?;
        Ok(Payload { kind, layout, body })
    }

    /// What it holds.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Gives all elements to `take`, in the order of the payload: the string, the members of a set,
    /// or each field of a hash and then its value. The first error, of the payload or of `take`,
    /// ends it.
    pub fn elements<E: From<Error>>(
        &self,
        mut take: impl FnMut(Element<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        use Element::{Expires, Text};
        let mut reader = Reader::new(self.body);
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

    /// Redis keeps no empty value, and a field without a value is none.
    fn packed(&self, elements: u64) -> Result<(), Error> {
        match self.kind {
            Kind::Hash if elements % 2 == 1 => Err(Error::Format("a field has no value")),
            _ if elements == 0 => Err(reader::EMPTY),
            _ => Ok(()),
        }
    }
}

/// What a type's number means.
fn of_type(number: u8, version: u16) -> Result<(Kind, Layout), Error> {
    let is_valkey = VALKEY.contains(&version);
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
        9 => return Err(Error::Type("a hash of a Redis before 2.6")),
        15 | 19 | 21 => return Err(Error::Type("a stream")),
        _ => return Err(Error::UnknownType { number, version }),
    })
}

#[cfg(test)]
mod tests;
