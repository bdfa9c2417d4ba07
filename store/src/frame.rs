//! Frames: a length and a CRC-32C in front of a body. The checksum also covers the frame's
//! location.
//!
//! ```text
//!   offset  size  field
//!        0     4  n      length of the body in bytes, little-endian, 1..=limit
//!        4     4  check  CRC-32C of (context, n, body)
//!        8     n  body
//! ```
//!
//! The *context* is not stored. The context consists of values that the reader already knows, such
//! as the file and the chunk number. Intact bytes in the wrong location therefore fail the check,
//! for example a misdirected sector or an old file under a new name.
//!
//! Snapshots, cold files and messages of the replication link use frames. The log's batches have a
//! different format (`batch.rs`), because a reader of the log must distinguish a torn tail from
//! damage. Batches and frames use the same polynomial.

/// Size of a frame's head in bytes.
pub const FRAME_BYTES: usize = 8;

/// Incremental CRC-32C over fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct Check(u32);

impl Check {
    /// Returns the checksum of an empty input.
    pub fn new() -> Check {
        Check(0)
    }

    /// Adds bytes.
    pub fn bytes(self, bytes: &[u8]) -> Check {
        Check(crc32c::crc32c_append(self.0, bytes))
    }

    /// Adds a number as eight little-endian bytes.
    pub fn u64(self, n: u64) -> Check {
        self.bytes(&n.to_le_bytes())
    }

    /// Adds a number as four little-endian bytes.
    pub fn u32(self, n: u32) -> Check {
        self.bytes(&n.to_le_bytes())
    }

    /// Returns the checksum.
    pub fn value(self) -> u32 {
        self.0
    }
}

fn check(context: Check, body: &[u8]) -> u32 {
    context.u32(body.len() as u32).bytes(body).value()
}

/// Returns the head for `body`.
///
/// # Panics
///
/// Panics unless the body has 1 to `u32::MAX` bytes.
pub fn frame_head(context: Check, body: &[u8]) -> [u8; FRAME_BYTES] {
    assert!(
        !body.is_empty() && u32::try_from(body.len()).is_ok(),
        "a frame has 1..2^32 bytes, not {}",
        body.len()
    );
    let mut head = [0; FRAME_BYTES];
    head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[4..].copy_from_slice(&check(context, body).to_le_bytes());
    head
}

/// Result of parsing the start of a buffer.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Body of a complete frame, and the bytes after the frame.
    Whole(&'a [u8], &'a [u8]),
    /// Incomplete frame. The number is the frame's total length, or [`FRAME_BYTES`] while the
    /// length is unknown.
    Part(usize),
    /// Invalid frame, with the reason.
    Bad(&'static str),
}

/// Parses the frame at the start of `bytes`, with a body of at most `limit` bytes.
pub fn read_frame(context: Check, bytes: &[u8], limit: usize) -> Frame<'_> {
    let Some((head, rest)) = bytes.split_first_chunk::<FRAME_BYTES>() else {
        return Frame::Part(FRAME_BYTES);
    };
    let n = u32_at(head, 0) as usize;
    if n == 0 || n > limit {
        return Frame::Bad("length out of bounds");
    }
    let Some((body, rest)) = rest.split_at_checked(n) else { return Frame::Part(FRAME_BYTES + n) };
    if check(context, body) != u32_at(head, 4) {
        return Frame::Bad("checksum mismatch");
    }
    Frame::Whole(body, rest)
}

/// Reads a little-endian number at `at`. Panics if the bytes are missing.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

/// Reads a little-endian number at `at`. Panics if the bytes are missing.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_is_castagnoli() {
        // Test vectors of CRC-32C: the standard check value, and RFC 3720 appendix B.4.
        assert_eq!(Check::new().bytes(b"123456789").value(), 0xe306_9283);
        assert_eq!(Check::new().bytes(&[0; 32]).value(), 0x8a91_36aa);
    }

    #[test]
    fn a_frame_reads_back_at_every_cut() {
        let body = b"some bytes";
        let context = Check::new().u64(7);
        let mut bytes = frame_head(context, body).to_vec();
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(b"next");
        assert_eq!(read_frame(context, &bytes, 100), Frame::Whole(body, b"next"));
        for cut in 0..FRAME_BYTES + body.len() {
            assert!(
                matches!(read_frame(context, &bytes[..cut], 100), Frame::Part(n) if n > cut),
                "{cut}"
            );
        }
        assert!(matches!(read_frame(context, &bytes, 9), Frame::Bad(_)));
        assert!(
            matches!(read_frame(Check::new().u64(8), &bytes, 100), Frame::Bad(_)),
            "another place"
        );
    }

    #[test]
    fn each_flipped_bit_is_seen() {
        let body = b"payload";
        let mut bytes = frame_head(Check::new(), body).to_vec();
        bytes.extend_from_slice(body);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(
                !matches!(read_frame(Check::new(), &bytes, 1 << 20), Frame::Whole(..)),
                "bit {bit}"
            );
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
