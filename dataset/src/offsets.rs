//! Offsets: positions up to which the events of a broker's streams are applied.
//!
//! An event changes rows and pairs and the offset of its source, atomically. The writer locks the
//! stripes of all touched ids, and the catalogue's stripe, where the offset is marked. One log
//! batch thus contains the rows and the offset (`engines/events.rs`, `store/src/commit` C6). After
//! a crash, exactly the events before the offset are applied. This node, or the replica that takes
//! over, reads the later events again.
//!
//! A key consists of the name of a source and a partition number. Offsets are never removed, so a
//! source that is removed from the configuration and added again resumes at its old position. Marks
//! refer to offsets by numbers that are local to the node.

use crate::log_records::{put_number, take_number};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Maximum length of a source's name in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Maximum number of offsets, over all sources and partitions.
pub const MAX_OFFSETS: usize = 65_536;
/// Maximum encoded size of an offset in bytes.
pub const RECORD_BYTES: usize = MAX_NAME_BYTES + 1 + 5 + 10 + 10 + 10 + 10;

/// Position at which reading a source resumes: a message, and the number of its events already
/// applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offset {
    /// Position in the source's own terms: a stream's sequence number, a partition's offset, or
    /// both halves of a stream's id.
    pub message: u128,
    /// Number of events of that message already applied.
    pub events: u64,
    /// Hash of the last message with applied events: this message if `events` is above 0, else the
    /// previous message. 0: unknown. A mismatch means that the stream was truncated or replaced.
    pub hash: u64,
}

/// Error: the current offset differs from the offset that the caller expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved;

#[derive(Default)]
struct OffsetTable {
    /// Local numbers by source and partition.
    numbers: BTreeMap<(Box<str>, u32), u32>,
    offsets: Vec<(Box<str>, u32, Offset)>,
}

impl OffsetTable {
    fn number(&mut self, source: &str, partition: u32) -> Option<u32> {
        if let Some(&number) = self.numbers.get(&(source.into(), partition)) {
            return Some(number);
        }
        let number = self.offsets.len();
        if number >= MAX_OFFSETS || source.len() > MAX_NAME_BYTES {
            return None;
        }
        self.offsets.push((source.into(), partition, Offset::default()));
        self.numbers.insert((source.into(), partition), number as u32);
        Some(number as u32)
    }
}

/// Offsets of all sources. See the module's documentation.
#[derive(Default)]
pub struct Offsets(Mutex<OffsetTable>);

impl Offsets {
    /// Returns the offset of a source, or `None` if the source was never read.
    pub fn get(&self, source: &str, partition: u32) -> Option<Offset> {
        let all = self.0.lock();
        all.numbers.get(&(source.into(), partition)).map(|&number| all.offsets[number as usize].2)
    }

    /// Returns all offsets, ordered by source and partition.
    pub fn list(&self) -> Vec<(Box<str>, u32, Offset)> {
        let all = self.0.lock();
        all.numbers.values().map(|&number| all.offsets[number as usize].clone()).collect()
    }

    /// Sets an offset and returns the offset's number, which identifies it in marks. Returns `None`
    /// if there are already [`MAX_OFFSETS`] or the name is too long.
    pub(crate) fn put(&self, source: &str, partition: u32, to: Offset) -> Option<u32> {
        let mut all = self.0.lock();
        let number = all.number(source, partition)?;
        all.offsets[number as usize].2 = to;
        Some(number)
    }

    pub(crate) fn encode(&self, number: u32, out: &mut Vec<u8>) {
        let all = self.0.lock();
        if let Some((source, partition, offset)) = all.offsets.get(number as usize) {
            put_offset(out, source, *partition, *offset);
        }
    }

    pub(crate) fn encode_all(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (source, partition, offset) in self.list() {
            put_offset(&mut out, &source, partition, offset);
        }
        out
    }

    /// Sets the offsets from a log record or a snapshot.
    pub(crate) fn decode(&self, bytes: &[u8]) -> Result<(), String> {
        let mut all = Vec::new();
        read_offsets(bytes, |source, partition, offset| {
            all.push((source.to_owned(), partition, offset));
        })?;
        for (source, partition, offset) in all {
            self.put(&source, partition, offset).ok_or("too many offsets")?;
        }
        Ok(())
    }
}

fn put_offset(out: &mut Vec<u8>, source: &str, partition: u32, offset: Offset) {
    put_number(out, source.len() as u64);
    out.extend_from_slice(source.as_bytes());
    put_number(out, partition.into());
    put_number(out, (offset.message >> 64) as u64);
    put_number(out, offset.message as u64);
    put_number(out, offset.events);
    put_number(out, offset.hash);
}

fn read_offsets(mut bytes: &[u8], mut each: impl FnMut(&str, u32, Offset)) -> Result<(), String> {
    while !bytes.is_empty() {
        let length = take_number(&mut bytes)?;
        let length = usize::try_from(length).ok().filter(|length| *length <= MAX_NAME_BYTES);
        let name = length.and_then(|length| bytes.split_at_checked(length));
        let (name, rest) = name.ok_or("truncated or too long source name")?;
        let name = std::str::from_utf8(name).map_err(|_| "source name is not UTF-8")?;
        bytes = rest;
        let partition = take_number(&mut bytes)?;
        let partition = u32::try_from(partition).map_err(|_| "a partition above 2^32-1")?;
        let high = u128::from(take_number(&mut bytes)?) << 64;
        let message = high | u128::from(take_number(&mut bytes)?);
        let (events, hash) = (take_number(&mut bytes)?, take_number(&mut bytes)?);
        each(name, partition, Offset { message, events, hash });
    }
    Ok(())
}

/// Fuzz target: checks that encoding decoded offsets and decoding them again changes nothing.
#[cfg(any(test, fuzzing))]
pub(crate) fn check_decoder(bytes: &[u8]) {
    let offsets = Offsets::default();
    if offsets.decode(bytes).is_ok() {
        let again = Offsets::default();
        again.decode(&offsets.encode_all()).expect("decoding returns the encoded offsets");
        assert_eq!(again.list(), offsets.list());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_read_back_at_the_ends_of_their_range() {
        let offsets = Offsets::default();
        assert_eq!(offsets.get("likes", 0), None);
        let most = Offset { message: u128::MAX, events: u64::MAX, hash: u64::MAX };
        let some = Offset { message: (7 << 64) | 9, events: 0, hash: 5 };
        let longest = "x".repeat(MAX_NAME_BYTES);
        let numbers = [
            offsets.put("likes", u32::MAX, most),
            offsets.put("likes", 0, some),
            offsets.put(&longest, 3, most),
        ];
        assert_eq!(numbers, [Some(0), Some(1), Some(2)]);
        let mut one = vec![];
        offsets.encode(1, &mut one);
        let again = Offsets::default();
        again.decode(&one).unwrap();
        assert_eq!(again.list(), [("likes".into(), 0, some)]);
        let all = offsets.encode_all();
        again.decode(&all).unwrap();
        assert_eq!(again.list(), offsets.list());
        assert_eq!(again.get("likes", u32::MAX), Some(most));
        offsets.encode(2, &mut vec![]);
        let mut record = vec![];
        offsets.encode(2, &mut record);
        assert_eq!(record.len(), RECORD_BYTES - 4, "a partition of one byte");
        // A damaged record must not change any offset.
        let before = again.list();
        assert!(again.decode(&all[..all.len() - 1]).is_err());
        assert!(again.decode(&[&[65], &[b'x'; 65][..]].concat()).is_err());
        assert!(again.decode(&[1, 0xff, 0, 0, 0, 0]).is_err());
        assert_eq!(again.list(), before);
        assert_eq!(offsets.put(&"x".repeat(MAX_NAME_BYTES + 1), 0, some), None);
    }

    #[test]
    fn no_bytes_make_the_decoder_panic() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..100_000 {
            let bytes: Vec<u8> =
                (0..rng.usize(0..40)).map(|_| if rng.bool() { 1 } else { rng.u8(..) }).collect();
            check_decoder(&bytes);
        }
    }
}
