//! Reads the lengths and strings of an RDB value.

use crate::error::Error;
use crate::lzf;

pub(crate) const TRUNCATED: Error = Error::Format("truncated value");
pub(crate) const EMPTY: Error = Error::Format("the value has no elements");

/// Element of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element<'a> {
    /// A string, a member, a field or its value.
    Text(&'a [u8]),
    /// The preceding field of a hash has an expiry time. The field's value follows.
    Expires,
}

/// Buffer for strings that are not stored verbatim in the payload, such as integers and compressed
/// strings.
#[derive(Default)]
pub(crate) struct Scratch(Vec<u8>);

/// A length, or the special encoding of a string.
enum Length {
    Plain(u64),
    Encoded(u8),
}

pub(crate) struct PayloadReader<'a> {
    rest: &'a [u8],
}

impl<'a> PayloadReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> PayloadReader<'a> {
        PayloadReader { rest: bytes }
    }

    /// Returns the next `count` bytes, or an error if the payload is shorter.
    pub(crate) fn bytes(&mut self, count: u64) -> Result<&'a [u8], Error> {
        let count = usize::try_from(count).map_err(|_| TRUNCATED)?;
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn any_length(&mut self) -> Result<Length, Error> {
        let [first] = self.array()?;
        Ok(match (first >> 6, first) {
            (0, _) => Length::Plain(u64::from(first)),
            (1, _) => {
                let [second] = self.array()?;
                Length::Plain(u64::from(first & 0x3f) << 8 | u64::from(second))
            }
            (2, 0x80) => Length::Plain(u64::from(u32::from_be_bytes(self.array()?))),
            (2, 0x81) => Length::Plain(u64::from_be_bytes(self.array()?)),
            (3, _) => Length::Encoded(first & 0x3f),
            _ => return Err(Error::Format("invalid length")),
        })
    }

    pub(crate) fn length(&mut self) -> Result<u64, Error> {
        match self.any_length()? {
            Length::Plain(length) => Ok(length),
            Length::Encoded(_) => Err(Error::Format("invalid length")),
        }
    }

    /// Reads the number of elements, which must not be 0. A count that is too large is harmless,
    /// because each element takes at least one byte.
    pub(crate) fn count(&mut self) -> Result<u64, Error> {
        match self.length()? {
            0 => Err(EMPTY),
            count => Ok(count),
        }
    }

    /// Reads a string. Returns a slice of the payload or of `scratch`.
    pub(crate) fn string<'s>(&mut self, scratch: &'s mut Scratch) -> Result<&'s [u8], Error>
    where
        'a: 's,
    {
        let integer = match self.any_length()? {
            Length::Plain(length) => return self.bytes(length),
            Length::Encoded(0) => i64::from(i8::from_le_bytes(self.array()?)),
            Length::Encoded(1) => i64::from(i16::from_le_bytes(self.array()?)),
            Length::Encoded(2) => i64::from(i32::from_le_bytes(self.array()?)),
            Length::Encoded(3) => {
                let (packed, length) = (self.length()?, self.length()?);
                lzf::unpack(self.bytes(packed)?, length, &mut scratch.0)?;
                return Ok(&scratch.0);
            }
            Length::Encoded(_) => return Err(Error::Format("unknown string encoding")),
        };
        Ok(scratch.decimal(integer))
    }

    /// Checks that no bytes follow.
    pub(crate) fn end(&self) -> Result<(), Error> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Error::Format("trailing bytes after the value"))
        }
    }
}

impl Scratch {
    pub(crate) fn decimal(&mut self, value: i64) -> &[u8] {
        use std::io::Write;
        self.0.clear();
        // Writing to a Vec cannot fail.
        let _ = write!(self.0, "{value}");
        &self.0
    }
}
