//! One batch of the log: the unit that is written, synced, shipped to a replica and replayed, whole
//! or not at all.
//!
//! ```text
//!   offset  size  field
//!        0     4  n         length of the body in bytes; 0 for a seal, which holds no records
//!        4     4  records   how many the body holds
//!        8     8  sequence  number of the batch in the lineage, from 1, without gaps
//!       16     8  time      milliseconds since 1970 by the writer's clock; for people, for the lag
//!                           of replicas, and to find the place that a restore is to end at
//!       24     4  unsynced  bytes of the log right before this batch that were not known to be
//!                           durable when it was written
//!       28     4  previous  chain value of the batch before (the first: of the segment's header)
//!       32     4  chain     CRC-32C of (lineage, segment, offset, bytes 0..32, body); the next
//!                           batch's `previous`
//!       36     4  check     CRC-32C of (lineage, segment, byte, bytes 0..36)
//!       40     n  body      records, see record.rs
//! ```
//!
//! Little-endian. `offset` is the batch's place in the whole lineage, `byte` its place in the
//! segment's file (see segment.rs); neither is stored.
//!
//! Valid only if: (1) `check` matches, so that the head can be believed; (2) `n` is at most
//! [`MAX_BODY_BYTES`] and the body is there; (3) `previous` is the chain value before it; (4)
//! `sequence` is the one before it plus one; (5) `chain` matches.
//!
//! Why two checks: `check` and the stored `previous` let a reader recognise a batch that lies
//! behind damage, and `unsynced` tells it whether the damaged bytes were known to be durable by
//! then. That is the difference between a torn tail and damage; see replay.rs.

use crate::frame::{Check, u32_at, u64_at};

/// Bytes before the body.
pub const BATCH_HEAD_BYTES: usize = 40;

/// The longest body. Longer ones are refused when written, so that a reader may bound its memory.
pub const MAX_BODY_BYTES: usize = 64 << 20;

/// Names one history of one data set; every file of it carries it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lineage(pub [u8; 16]);

impl Lineage {
    /// A new, random one.
    pub fn random() -> std::io::Result<Lineage> {
        let mut bytes = [0; 16];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += rustix::rand::getrandom(
                &mut bytes[filled..],
                rustix::rand::GetRandomFlags::empty(),
            )?;
        }
        Ok(Lineage(bytes))
    }

    /// Reads the 32 hexadecimal digits that [`Display`](std::fmt::Display) writes.
    pub fn parse(text: &str) -> Option<Lineage> {
        if text.len() != 32
            || !text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(|n| Lineage(n.to_be_bytes()))
    }
}

impl std::fmt::Display for Lineage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl std::fmt::Debug for Lineage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lineage({self})")
    }
}

/// The fields of a batch's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHead {
    /// Length of the body in bytes.
    pub body_bytes: u32,
    /// Number of records.
    pub records: u32,
    /// Number of the batch in the lineage.
    pub sequence: u64,
    /// Milliseconds since 1970 by the writer's clock.
    pub time_ms: u64,
    /// Bytes before this batch that were not known to be durable when it was written.
    pub unsynced_bytes: u32,
    /// Chain value before this batch.
    pub previous: u32,
    /// Chain value of this batch.
    pub chain: u32,
}

impl BatchHead {
    /// Length of the whole batch in the log.
    pub fn bytes(&self) -> u64 {
        BATCH_HEAD_BYTES as u64 + u64::from(self.body_bytes)
    }

    /// A seal holds no records: it says that all before it is durable.
    pub fn is_seal(&self) -> bool {
        self.records == 0
    }
}

/// Where a batch lies: what its checks are bound to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) lineage: Lineage,
    pub(crate) segment: u64,
    /// In the segment's file.
    pub(crate) byte: u64,
    /// In the lineage.
    pub(crate) offset: u64,
}

impl Place {
    fn chain(&self, head: &[u8], body: &[u8]) -> u32 {
        Check::new()
            .bytes(&self.lineage.0)
            .u64(self.segment)
            .u64(self.offset)
            .bytes(&head[..32])
            .bytes(body)
            .value()
    }

    fn check(&self, head: &[u8]) -> u32 {
        Check::new()
            .bytes(&self.lineage.0)
            .u64(self.segment)
            .u64(self.byte)
            .bytes(&head[..36])
            .value()
    }
}

/// Appends the batch to `out`; the head's `body_bytes` and `chain` are computed. Returns the chain
/// value.
pub(crate) fn put_batch(out: &mut Vec<u8>, place: &Place, head: &BatchHead, body: &[u8]) -> u32 {
    assert!(body.len() <= MAX_BODY_BYTES, "a batch of {} bytes", body.len());
    let mut bytes = [0; BATCH_HEAD_BYTES];
    bytes[0..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    bytes[4..8].copy_from_slice(&head.records.to_le_bytes());
    bytes[8..16].copy_from_slice(&head.sequence.to_le_bytes());
    bytes[16..24].copy_from_slice(&head.time_ms.to_le_bytes());
    bytes[24..28].copy_from_slice(&head.unsynced_bytes.to_le_bytes());
    bytes[28..32].copy_from_slice(&head.previous.to_le_bytes());
    let chain = place.chain(&bytes, body);
    bytes[32..36].copy_from_slice(&chain.to_le_bytes());
    let check = place.check(&bytes);
    bytes[36..40].copy_from_slice(&check.to_le_bytes());
    out.extend_from_slice(&bytes);
    out.extend_from_slice(body);
    chain
}

/// Reads the fields of a head, if its `check` matches the place. `bytes` holds at least
/// [`BATCH_HEAD_BYTES`].
pub(crate) fn read_head(bytes: &[u8], place: &Place) -> Option<BatchHead> {
    if place.check(bytes) != u32_at(bytes, 36) {
        return None;
    }
    let head = fields(bytes);
    (head.body_bytes as usize <= MAX_BODY_BYTES).then_some(head)
}

/// The fields as they are, believed or not.
pub(crate) fn fields(bytes: &[u8]) -> BatchHead {
    BatchHead {
        body_bytes: u32_at(bytes, 0),
        records: u32_at(bytes, 4),
        sequence: u64_at(bytes, 8),
        time_ms: u64_at(bytes, 16),
        unsynced_bytes: u32_at(bytes, 24),
        previous: u32_at(bytes, 28),
        chain: u32_at(bytes, 32),
    }
}

/// Does the body belong to the head? `head_bytes` are the encoded head's.
pub(crate) fn body_matches(head_bytes: &[u8], body: &[u8], place: &Place) -> bool {
    place.chain(head_bytes, body) == u32_at(head_bytes, 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(byte: u64) -> Place {
        Place { lineage: Lineage([3; 16]), segment: 5, byte, offset: 1000 + byte }
    }

    #[test]
    fn each_flipped_bit_is_seen() {
        let head = BatchHead {
            body_bytes: 0,
            records: 2,
            sequence: 9,
            time_ms: 77,
            unsynced_bytes: 11,
            previous: 0xdead,
            chain: 0,
        };
        let mut bytes = Vec::new();
        let chain = put_batch(&mut bytes, &place(80), &head, b"two records");
        let read = read_head(&bytes, &place(80)).unwrap();
        assert_eq!(read, BatchHead { body_bytes: 11, chain, ..head });
        assert!(body_matches(&bytes[..40], &bytes[40..], &place(80)));
        assert!(read_head(&bytes, &place(81)).is_none(), "moved by a byte");
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let seen = read_head(&bytes, &place(80)).is_none()
                || !body_matches(&bytes[..40], &bytes[40..], &place(80));
            assert!(seen, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_lineage_reads_back() {
        let lineage = Lineage::random().unwrap();
        assert_eq!(Lineage::parse(&lineage.to_string()), Some(lineage));
        assert_eq!(Lineage::parse("0123"), None);
        assert_eq!(Lineage::parse(&"G".repeat(32)), None);
        assert_eq!(Lineage::parse(&"+".repeat(32)), None);
    }
}
