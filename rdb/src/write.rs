//! Writes payloads that Redis 2.6 and later and every Valkey can restore. The payloads use only
//! plain types and an old RDB version.

use crate::crc64::crc64;

/// RDB version of the payloads. The plain types have not changed since this version, and servers
/// reject only versions newer than their own.
const VERSION: u16 = 6;

/// Appends a length in the shortest encoding.
fn put_length(out: &mut Vec<u8>, length: usize) {
    match length {
        0..=0x3f => out.push(length as u8),
        0x40..=0x3fff => out.extend_from_slice(&(0x4000 | length as u16).to_be_bytes()),
        _ => {
            // All written texts, sets and hashes are shorter than u32::MAX.
            out.push(0x80);
            out.extend_from_slice(&(length as u32).to_be_bytes());
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put_length(out, text.len());
    out.extend_from_slice(text);
}

/// Appends an integer as Redis does: in 1, 2 or 4 bytes if it fits, otherwise as text.
fn put_integer(out: &mut Vec<u8>, value: i64) {
    if let Ok(value) = i8::try_from(value) {
        out.extend_from_slice(&[0xc0, value as u8]);
    } else if let Ok(value) = i16::try_from(value) {
        out.push(0xc1);
        out.extend_from_slice(&value.to_le_bytes());
    } else if let Ok(value) = i32::try_from(value) {
        out.push(0xc2);
        out.extend_from_slice(&value.to_le_bytes());
    } else {
        put_text(out, value.to_string().as_bytes());
    }
}

pub(crate) fn seal(mut out: Vec<u8>, version: u16) -> Vec<u8> {
    out.extend_from_slice(&version.to_le_bytes());
    let sum = crc64(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

/// Returns the payload of a string with an integer.
pub fn dump_string(value: i64) -> Vec<u8> {
    let mut out = vec![0];
    put_integer(&mut out, value);
    seal(out, VERSION)
}

/// Builder for the payload of a set.
#[derive(Debug, Default)]
pub struct SetDump {
    members: Vec<u8>,
    count: usize,
}

impl SetDump {
    /// Adds a member. The set must not contain the member yet.
    pub fn push(&mut self, member: &[u8]) {
        put_text(&mut self.members, member);
        self.count += 1;
    }

    /// Adds an integer as a member. The set must not contain the member yet.
    pub fn push_number(&mut self, member: u64) {
        match i64::try_from(member) {
            Ok(number) => put_integer(&mut self.members, number),
            Err(_) => put_text(&mut self.members, member.to_string().as_bytes()),
        }
        self.count += 1;
    }

    /// Returns the size of the encoded members in bytes.
    pub fn bytes(&self) -> usize {
        self.members.len()
    }

    /// Returns the payload. Returns `None` for an empty set, because Redis does not store empty
    /// sets.
    pub fn seal(self) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(self.members.len() + 16);
        out.push(2);
        put_length(&mut out, self.count);
        out.extend_from_slice(&self.members);
        (self.count > 0).then(|| seal(out, VERSION))
    }
}

/// Returns the payload of a hash whose values are integers. `fields` must not be empty.
pub fn dump_hash<'f>(fields: impl ExactSizeIterator<Item = (&'f [u8], i64)>) -> Vec<u8> {
    let mut out = vec![4];
    put_length(&mut out, fields.len());
    for (name, value) in fields {
        put_text(&mut out, name);
        put_integer(&mut out, value);
    }
    seal(out, VERSION)
}
