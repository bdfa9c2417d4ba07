//! LZF decompression. Redis compresses strings of more than 20 bytes with LZF: runs of literals and
//! back references.

use crate::error::Error;

/// Maximum size of one string after decompression.
pub const MAX_UNPACKED_BYTES: usize = 16 << 20;

/// Maximum number of bytes to which three compressed bytes can expand.
const MAX_BYTES_PER_REFERENCE: usize = 264;

const BROKEN: Error = Error::Format("invalid compressed string");

/// Decompresses `packed` into exactly `length` bytes of `out`. Rejects an impossible length before
/// `out` grows.
pub(crate) fn unpack(packed: &[u8], length: u64, out: &mut Vec<u8>) -> Result<(), Error> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MAX_UNPACKED_BYTES {
        return Err(Error::Format("a compressed string is longer than 16777216 bytes"));
    }
    if length > packed.len().saturating_mul(MAX_BYTES_PER_REFERENCE) {
        return Err(BROKEN);
    }
    out.clear();
    let mut rest = packed;
    let mut next = |count: usize| {
        let (taken, left) = rest.split_at_checked(count).ok_or(BROKEN)?;
        rest = left;
        Ok::<&[u8], Error>(taken)
    };
    while out.len() < length {
        let control = usize::from(next(1)?[0]);
        if control < 32 {
            out.extend_from_slice(next(control + 1)?);
        } else {
            let mut count = control >> 5;
            if count == 7 {
                count += usize::from(next(1)?[0]);
            }
            let back = ((control & 31) << 8 | usize::from(next(1)?[0])) + 1;
            let from = out.len().checked_sub(back).ok_or(BROKEN)?;
            // The source may overlap the bytes that this loop appends.
            for at in from..from + count + 2 {
                out.push(out[at]);
            }
        }
    }
    if out.len() == length && rest.is_empty() { Ok(()) } else { Err(BROKEN) }
}
