//! The envelope of a run of bytes: how long, and a CRC-32C that also binds it to its place.
//!
//! ```text
//!   offset  size  field
//!        0     4  n      length of the body in bytes, little-endian, 1..=limit
//!        4     4  check  CRC-32C of (context, n, body)
//!        8     n  body
//! ```
//!
//! The *context* is not stored: it is what the reader knows anyway (which file, which chunk of it).
//! Bytes that are intact but belong elsewhere (a sector written to the wrong place, an old file
//! under a new name) therefore fail the check.
//!
//! Snapshots, cold files and the messages of the replication link use this envelope; the log's
//! batches have one of their own (`batch.rs`), since a reader of the log must be able to tell a
//! torn tail from damage. The polynomial is the same everywhere.

/// Bytes that the envelope adds.
pub const FRAME_BYTES: usize = 8;

/// A CRC-32C under construction, fed with fields rather than with bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Check(u32);

impl Check {
    /// The check of nothing.
    pub fn new() -> Check {
        Check(0)
    }

    /// Adds bytes.
    pub fn bytes(self, bytes: &[u8]) -> Check {
        Check(crc32c::crc32c_append(self.0, bytes))
    }

    /// Adds a number, as eight little-endian bytes.
    pub fn u64(self, n: u64) -> Check {
        self.bytes(&n.to_le_bytes())
    }

    /// Adds a number, as four little-endian bytes.
    pub fn u32(self, n: u32) -> Check {
        self.bytes(&n.to_le_bytes())
    }

    /// The value.
    pub fn value(self) -> u32 {
        self.0
    }
}

fn check(context: Check, body: &[u8]) -> u32 {
    context.u32(body.len() as u32).bytes(body).value()
}

/// The eight bytes that go before `body`. A body is 1..=`u32::MAX` bytes long.
pub fn frame_head(context: Check, body: &[u8]) -> [u8; FRAME_BYTES] {
    assert!(
        !body.is_empty() && u32::try_from(body.len()).is_ok(),
        "a frame holds 1..2^32 bytes, not {}",
        body.len()
    );
    let mut head = [0; FRAME_BYTES];
    head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[4..].copy_from_slice(&check(context, body).to_le_bytes());
    head
}

/// What the start of a buffer holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A whole frame; the bytes after it.
    Whole(&'a [u8], &'a [u8]),
    /// A part of a frame that is this long in all, as far as is known yet.
    Part(usize),
    /// Not a frame.
    Bad(&'static str),
}

/// Reads the frame at the start of `bytes`, for bodies of at most `limit` bytes.
pub fn read_frame(context: Check, bytes: &[u8], limit: usize) -> Frame<'_> {
    let Some((head, rest)) = bytes.split_first_chunk::<FRAME_BYTES>() else {
        return Frame::Part(FRAME_BYTES);
    };
    let n = u32_at(head, 0) as usize;
    if n == 0 || n > limit {
        return Frame::Bad("a length out of bounds");
    }
    let Some((body, rest)) = rest.split_at_checked(n) else { return Frame::Part(FRAME_BYTES + n) };
    if check(context, body) != u32_at(head, 4) {
        return Frame::Bad("the checksum does not match");
    }
    Frame::Whole(body, rest)
}

/// The little-endian number at `at`, which the caller has made sure is there.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

/// The little-endian number at `at`, which the caller has made sure is there.
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
        // The check value of CRC-32C (RFC 3720, appendix B.4, and the usual catalogue).
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
