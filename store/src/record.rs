//! Encoding of records in a batch. Records hold state, never deltas (promise 2).
//!
//! ```text
//!   space    1..5 bytes   space number, LEB128 (0 = the catalogue: spaces, views, actions)
//!   kind     1 byte       kind of the payload, defined by the server
//!   n        1..5 bytes   length of the payload, LEB128
//!   payload  n bytes      defined by the server
//! ```
//!
//! The fields before the payload take at least three bytes. One record can describe many rows: a
//! payload of a thousand packed pairs has these fields only once.

use crate::buffer;

/// One record of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Space number; 0 is the catalogue.
    pub space: u32,
    /// Kind of the payload; opaque to the store.
    pub kind: u8,
    /// Payload, defined by the server.
    pub payload: &'a [u8],
}

/// A group of records that is written atomically.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    body: Vec<u8>,
    count: u32,
}

impl Batch {
    /// Returns an empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Appends a record.
    pub fn push(&mut self, space: u32, kind: u8, payload: &[u8]) {
        put_varint(&mut self.body, space);
        self.body.push(kind);
        put_varint(
            &mut self.body,
            u32::try_from(payload.len()).expect("a payload is shorter than 4 GiB"),
        );
        self.body.extend_from_slice(payload);
        self.count += 1;
    }

    /// Removes all records. May retain the memory (see [`buffer::clear`]).
    pub fn clear(&mut self) {
        buffer::clear(&mut self.body);
        self.count = 0;
    }

    /// Whether the batch has no records.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of records.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the encoded size of the records in bytes.
    pub fn bytes(&self) -> usize {
        self.body.len()
    }

    /// Returns the encoded records.
    pub fn body(&self) -> &[u8] {
        &self.body
    }
}

/// Iterator over the records of a batch body. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// Iterates over the records of `body`.
    pub fn new(body: &'a [u8]) -> Records<'a> {
        Records { rest: body }
    }

    fn read(&mut self) -> Result<Record<'a>, &'static str> {
        let space = self.varint()?;
        let (&kind, rest) = self.rest.split_first().ok_or("a record ends before its kind")?;
        self.rest = rest;
        let n = self.varint()? as usize;
        let (payload, rest) =
            self.rest.split_at_checked(n).ok_or("a record is longer than its batch")?;
        self.rest = rest;
        Ok(Record { space, kind, payload })
    }

    fn varint(&mut self) -> Result<u32, &'static str> {
        let (n, used) = get_varint(self.rest).ok_or("invalid number in a record")?;
        self.rest = &self.rest[used..];
        Ok(n)
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = self.read();
        if record.is_err() {
            self.rest = &[];
        }
        Some(record)
    }
}

/// Appends a LEB128 number: seven bits per byte, low bits first; a set top bit marks continuation.
fn put_varint(out: &mut Vec<u8>, mut n: u32) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Decodes the number at the start of `bytes`. Returns it with its encoded length.
///
/// The encoding is canonical: trailing zero bytes are rejected.
fn get_varint(bytes: &[u8]) -> Option<(u32, usize)> {
    let mut n = 0u32;
    for (i, &byte) in bytes.iter().take(5).enumerate() {
        let part = u32::from(byte & 0x7f);
        if i == 4 && part > 0x0f {
            return None;
        }
        n |= part << (7 * i);
        if byte & 0x80 == 0 {
            return (byte != 0 || i == 0).then_some((n, i + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_spelling() {
        for n in [0, 1, 127, 128, 16383, 16384, 1 << 21, (1 << 28) - 1, 1 << 28, u32::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, n);
            assert_eq!(get_varint(&bytes), Some((n, bytes.len())));
            for cut in 0..bytes.len() {
                assert_eq!(get_varint(&bytes[..cut]), None);
            }
        }
        assert_eq!(get_varint(&[0x80, 0x00]), None, "overlong encoding of 0");
        assert_eq!(get_varint(&[0xff, 0xff, 0xff, 0xff, 0x1f]), None, "33 bits");
        assert_eq!(get_varint(&[0x80; 6]), None);
    }

    #[test]
    fn records_read_back() {
        let mut batch = Batch::new();
        batch.push(1, 2, b"abc");
        batch.push(0, 0, b"");
        batch.push(u32::MAX, 255, &[9; 300]);
        let read: Vec<_> = Records::new(batch.body()).map(|r| r.unwrap()).collect();
        assert_eq!(read.len(), 3);
        assert_eq!(read[0], Record { space: 1, kind: 2, payload: b"abc" });
        assert_eq!(read[1].payload, b"");
        assert_eq!((read[2].space, read[2].kind, read[2].payload), (u32::MAX, 255, &[9; 300][..]));
        // A truncated record yields one error, and then the iterator ends.
        for cut in 1..6 {
            let mut records = Records::new(&batch.body()[..cut]);
            assert!(records.next().unwrap().is_err());
            assert!(records.next().is_none());
        }
    }
}
