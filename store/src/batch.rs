//! Encoding of batches. A batch is the atomic unit of writing, syncing, replication and replay.
//!
//! ```text
//!   offset  size  field
//!        0     4  n         length of the body in bytes; 0 for a seal, which holds no records
//!        4     4  records   number of records in the body
//!        8     8  sequence  number of the batch in the lineage, from 1, without gaps
//!       16     8  time      milliseconds since 1970 by the writer's clock; for people, for the lag
//!                           of replicas, and for restores to a point in time
//!       24     4  unsynced  number of bytes before this batch that were not known to be durable
//!                           when it was written
//!       28     4  previous  chain value of the previous batch or, for the first, the header
//!       32     4  chain     CRC-32C of (lineage, segment, offset, bytes 0..32, body); the next
//!                           batch's `previous`
//!       36     4  check     CRC-32C of (lineage, segment, byte, bytes 0..36)
//!       40     n  body      records, see record.rs
//! ```
//!
//! Numbers are little-endian. `offset` is the batch's offset in the lineage, `byte` its offset in
//! the segment's file (see segment.rs). The file stores neither `offset` nor `byte`.
//!
//! A batch is valid only if:
//!
//! 1. `check` matches, so that the head is trustworthy;
//! 2. `n` is at most [`MAX_BODY_BYTES`] and the body is complete;
//! 3. `previous` equals the preceding chain value;
//! 4. `sequence` equals the preceding one plus one;
//! 5. `chain` matches.
//!
//! Recovery (replay.rs) needs both checksums. With `check` and `previous`, a reader can recognise a
//! valid batch after damaged bytes. The `unsynced` field of that batch then shows whether the
//! damaged bytes were durable, which distinguishes damage from a torn tail.

use crate::frame::{Check, u32_at, u64_at};

/// Size of a batch head in bytes.
pub const BATCH_HEAD_BYTES: usize = 40;

/// Maximum size of a body in bytes. Writers reject longer bodies, so readers can bound their
/// memory.
pub const MAX_BODY_BYTES: usize = 64 << 20;

/// Identifier of one history of a data set. Every file of the data set contains the identifier.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lineage(pub [u8; 16]);

impl Lineage {
    /// Generates a random identifier.
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

    /// Parses the 32 hexadecimal digits of the [`Display`](std::fmt::Display) format.
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

/// Fields of a batch head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHead {
    /// Length of the body in bytes.
    pub body_bytes: u32,
    /// Number of records.
    pub records: u32,
    /// Sequence number in the lineage, from 1, without gaps.
    pub sequence: u64,
    /// Milliseconds since 1970 by the writer's clock.
    pub time_ms: u64,
    /// Number of bytes before this batch that were not known to be durable at the time of writing.
    pub unsynced_bytes: u32,
    /// Chain value before this batch.
    pub previous: u32,
    /// Chain value of this batch.
    pub chain: u32,
}

impl BatchHead {
    /// Returns the size of head and body in bytes.
    pub fn bytes(&self) -> u64 {
        BATCH_HEAD_BYTES as u64 + u64::from(self.body_bytes)
    }

    /// Whether this is a seal: an empty batch that marks everything before it as durable.
    pub fn is_seal(&self) -> bool {
        self.records == 0
    }
}

/// Location of a batch. The checksums of the batch cover its location.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchLocation {
    pub(crate) lineage: Lineage,
    pub(crate) segment: u64,
    pub(crate) byte: u64,
    pub(crate) offset: u64,
}

impl BatchLocation {
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

/// Appends the batch to `out` and returns its chain value. Computes `body_bytes` and `chain`, and
/// ignores the values in `head`.
pub(crate) fn put_batch(
    out: &mut Vec<u8>,
    place: &BatchLocation,
    head: &BatchHead,
    body: &[u8],
) -> u32 {
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

/// Decodes a head. Returns `None` if `check` does not match the location or the body is too long.
///
/// Panics if `bytes` is shorter than [`BATCH_HEAD_BYTES`].
pub(crate) fn read_head(bytes: &[u8], place: &BatchLocation) -> Option<BatchHead> {
    if place.check(bytes) != u32_at(bytes, 36) {
        return None;
    }
    let head = fields(bytes);
    (head.body_bytes as usize <= MAX_BODY_BYTES).then_some(head)
}

/// Decodes the fields of a batch head without verification.
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

/// Whether the body matches the chain value in the encoded head.
pub(crate) fn body_matches(head_bytes: &[u8], body: &[u8], place: &BatchLocation) -> bool {
    place.chain(head_bytes, body) == u32_at(head_bytes, 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(byte: u64) -> BatchLocation {
        BatchLocation { lineage: Lineage([3; 16]), segment: 5, byte, offset: 1000 + byte }
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
