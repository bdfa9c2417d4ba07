//! Segments of the log. A file `log-0000000000000001.tlog` is a header followed by batches up to
//! the end of the file.
//!
//! ```text
//!   offset  size  field
//!        0     8  magic     "TIDELOG\n"
//!        8     4  version   1
//!       12     4  flags     bit 0: everything between the previous segment's valid part and this
//!                           one is void; other bits 0
//!       16    16  lineage
//!       32     8  segment   number in the file's name
//!       40     8  previous  number of the segment that this one continues; 0 for the first
//!       48     8  base      offset of the first batch in the lineage
//!       56     8  sequence  sequence number of the last batch before this segment; 0 if none
//!       64     8  term      raised by a promotion; distinguishes branches of a lineage
//!       72     4  chain     chain value at `base`
//!       76     4  check     CRC-32C of bytes 0..76
//!       80        batches, see batch.rs
//! ```
//!
//! The *offset* counts the bytes of all batches of the lineage, without segment headers. The offset
//! never decreases and is comparable between nodes that share a lineage. Byte `b` of a segment has
//! offset `base + b - 80`.
//!
//! **A segment defines the end of its predecessor**: the predecessor ends at the successor's
//! `base`. The log can therefore be truncated without truncating a file. After a failed sync, or
//! after startup with a torn tail, the next segment begins at the last valid offset and has the
//! void flag. Readers ignore the predecessor's bytes after that offset, and all segments with
//! numbers between the two.
//!
//! A segment is valid only if:
//!
//! 1. magic, version and flags are correct, and segment, base and sequence are at most 2^62;
//! 2. the check matches;
//! 3. the number equals that of the file name, and the lineage that of the manifest;
//! 4. `previous` exists and contains valid batches exactly up to `base`, and its last batch has the
//!    stated `chain` and `sequence`. This condition does not apply to the segment of the manifest's
//!    replay position.
//!
//! The log creates and syncs a segment, and syncs the folder, before it writes the first batch. The
//! log never renames a segment, and removes a segment when no manifest refers to it.

use crate::batch::{BatchLocation, Lineage};
use crate::frame::{Check, u32_at, u64_at};

/// Size of the header in bytes.
pub const SEGMENT_HEAD_BYTES: u64 = 80;

/// Upper bound of offsets and numbers. Decoders reject larger values, so that later arithmetic
/// cannot overflow.
pub(crate) const MAX_NUMBER: u64 = 1 << 62;

/// Log format version that this release writes, and the newest that it reads.
pub const LOG_VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"TIDELOG\n";
const VOID_FLAG: u32 = 1;

/// Header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHead {
    /// Whether the bytes and segments between the valid part of `previous` and this segment are
    /// void.
    pub void: bool,
    /// Lineage of the log.
    pub lineage: Lineage,
    /// Sequence number of this segment in the log.
    pub segment: u64,
    /// Sequence number of the preceding segment; 0 if there is no predecessor.
    pub previous: u64,
    /// Offset of the first batch in the lineage.
    pub base: u64,
    /// Sequence number of the last batch before this segment.
    pub sequence: u64,
    /// Replication term; a promotion increments it.
    pub term: u64,
    /// Chain value at `base`.
    pub chain: u32,
}

/// Reason why bytes are not a valid segment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHead {
    /// The file is shorter than a header.
    Short,
    /// Wrong magic: another kind of file, or damage.
    Magic,
    /// Format version of a newer release.
    Version(u32),
    /// Wrong checksum or impossible fields.
    Check,
}

impl SegmentHead {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; SEGMENT_HEAD_BYTES as usize] {
        let mut bytes = [0; SEGMENT_HEAD_BYTES as usize];
        bytes[0..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&LOG_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(if self.void { VOID_FLAG } else { 0 }).to_le_bytes());
        bytes[16..32].copy_from_slice(&self.lineage.0);
        bytes[32..40].copy_from_slice(&self.segment.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.previous.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.base.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.term.to_le_bytes());
        bytes[72..76].copy_from_slice(&self.chain.to_le_bytes());
        let check = Check::new().bytes(&bytes[..76]).value();
        bytes[76..80].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Decodes a header.
    pub fn decode(bytes: &[u8]) -> Result<SegmentHead, BadHead> {
        if bytes.len() < SEGMENT_HEAD_BYTES as usize {
            return Err(BadHead::Short);
        }
        if &bytes[..8] != MAGIC {
            return Err(BadHead::Magic);
        }
        let (version, flags) = (u32_at(bytes, 8), u32_at(bytes, 12));
        let sound = Check::new().bytes(&bytes[..76]).value() == u32_at(bytes, 76);
        // A newer version may store its check in a different place, so a failed check is not
        // damage. The limit of 2^16 excludes most damaged version fields.
        if version > LOG_VERSION && version < 1 << 16 && !sound {
            return Err(BadHead::Version(version));
        }
        if !sound || version != LOG_VERSION || flags & !VOID_FLAG != 0 {
            return Err(if sound && version > LOG_VERSION {
                BadHead::Version(version)
            } else {
                BadHead::Check
            });
        }
        let mut lineage = [0; 16];
        lineage.copy_from_slice(&bytes[16..32]);
        let head = SegmentHead {
            void: flags & VOID_FLAG != 0,
            lineage: Lineage(lineage),
            segment: u64_at(bytes, 32),
            previous: u64_at(bytes, 40),
            base: u64_at(bytes, 48),
            sequence: u64_at(bytes, 56),
            term: u64_at(bytes, 64),
            chain: u32_at(bytes, 72),
        };
        let numbers = [head.segment, head.base, head.sequence];
        let possible = head.segment > 0
            && head.previous < head.segment
            && numbers.iter().all(|&n| n <= MAX_NUMBER);
        if possible { Ok(head) } else { Err(BadHead::Check) }
    }

    /// Returns the lineage offset of a byte of the file. `byte` must not be inside the header.
    pub fn offset_of(&self, byte: u64) -> u64 {
        self.base + (byte - SEGMENT_HEAD_BYTES)
    }

    /// Returns the byte in the file for a lineage offset, or `None` if the offset is before this
    /// segment.
    pub fn byte_of(&self, offset: u64) -> Option<u64> {
        offset.checked_sub(self.base)?.checked_add(SEGMENT_HEAD_BYTES)
    }

    pub(crate) fn place(&self, byte: u64) -> BatchLocation {
        BatchLocation {
            lineage: self.lineage,
            segment: self.segment,
            byte,
            offset: self.base.wrapping_add(byte - SEGMENT_HEAD_BYTES),
        }
    }
}

impl std::fmt::Display for BadHead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BadHead::Short => f.write_str("the file ends inside its header"),
            BadHead::Magic => f.write_str("not a log segment"),
            BadHead::Version(n) => write!(f, "format version {n} is newer than {LOG_VERSION}"),
            BadHead::Check => f.write_str("checksum mismatch of the header"),
        }
    }
}

/// Returns the file name of a segment.
pub fn segment_name(segment: u64) -> String {
    format!("log-{segment:016}.tlog")
}

/// Classification of a file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentName {
    /// A segment with this number.
    Segment(u64),
    /// The name resembles a segment name but is not canonical, so that two files could have the
    /// same number.
    Odd,
    /// Any other file.
    Other,
}

/// Classifies a file name.
pub fn parse_segment_name(name: &str) -> SegmentName {
    let Some(digits) = name.strip_prefix("log-").and_then(|n| n.strip_suffix(".tlog")) else {
        return SegmentName::Other;
    };
    match digits.parse::<u64>() {
        Ok(n) if n > 0 && n <= MAX_NUMBER && segment_name(n) == name => SegmentName::Segment(n),
        _ => SegmentName::Odd,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back_and_each_flipped_bit_is_seen() {
        let head = SegmentHead {
            void: true,
            lineage: Lineage([1; 16]),
            segment: 12,
            previous: 10,
            base: 1 << 40,
            sequence: 99,
            term: 3,
            chain: 0xabcd_ef01,
        };
        let mut bytes = head.encode();
        assert_eq!(SegmentHead::decode(&bytes), Ok(head));
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHead::decode(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for cut in 0..bytes.len() {
            assert_eq!(SegmentHead::decode(&bytes[..cut]), Err(BadHead::Short));
        }
    }

    #[test]
    fn names() {
        assert_eq!(segment_name(1), "log-0000000000000001.tlog");
        assert_eq!(parse_segment_name(&segment_name(MAX_NUMBER)), SegmentName::Segment(MAX_NUMBER));
        for odd in [
            "log-18446744073709551615.tlog",
            "log-1.tlog",
            "log-0000000000000000.tlog",
            "log-+000000000000001.tlog",
            "log-.tlog",
            "log-00000000000000001.tlog",
        ] {
            assert_eq!(parse_segment_name(odd), SegmentName::Odd, "{odd}");
        }
        assert_eq!(parse_segment_name("tidemark.manifest"), SegmentName::Other);
    }
}
