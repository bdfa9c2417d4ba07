//! Parsers for decimal integers: `u64` for keys and ids, `i64` for values. The functions process
//! eight digits at a time.
#![forbid(unsafe_code)]

/// Parses a decimal integer by the rules of Redis: an optional minus and digits, without leading
/// zeros, plus sign or spaces. Returns `None` for any other text and on overflow.
pub fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let magnitude = natural(digits)?;
    if negative {
        // Rejects "-0". The magnitude 2^63 is valid only with a minus sign.
        if magnitude == 0 { None } else { 0i64.checked_sub_unsigned(magnitude) }
    } else {
        i64::try_from(magnitude).ok()
    }
}

/// Parses a canonical decimal `u64`: digits only, no leading zero. Returns `None` for any other
/// text and on overflow.
#[inline(always)]
pub fn natural(digits: &[u8]) -> Option<u64> {
    // Fast path for most ids.
    if let (9..=16, Some(first), Some(last)) =
        (digits.len(), digits.first_chunk(), digits.last_chunk())
    {
        // Shift out the bytes of `first` that are also in `last`, and fill with '0'.
        let zeros = 8 * (16 - digits.len() as u32);
        let first = u64::from_le_bytes(*first) << zeros | ZEROS & !(u64::MAX << zeros);
        let (high, low) = (first ^ ZEROS, u64::from_le_bytes(*last) ^ ZEROS);
        if no_digits(high) | no_digits(low) != 0 || digits[0] == b'0' {
            return None;
        }
        return Some(eight_digits(high).wrapping_mul(100_000_000).wrapping_add(eight_digits(low)));
    }
    natural_of_any_length(digits)
}

fn natural_of_any_length(digits: &[u8]) -> Option<u64> {
    match digits {
        [b'0'] => return Some(0),
        [] | [b'0', ..] => return None,
        _ => {}
    }
    if digits.len() > 19 {
        return long_natural(digits);
    }
    // 19 digits cannot overflow.
    let (head, eights) = digits.as_rchunks::<8>();
    let mut value = 0u64;
    for &byte in head {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
    }
    for &eight in eights {
        let eight = u64::from_le_bytes(eight) ^ ZEROS;
        if no_digits(eight) != 0 {
            return None;
        }
        value = value.wrapping_mul(100_000_000).wrapping_add(eight_digits(eight));
    }
    Some(value)
}

#[cold]
fn long_natural(digits: &[u8]) -> Option<u64> {
    if digits.len() > 20 {
        return None;
    }
    digits.iter().try_fold(0u64, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { value.checked_mul(10)?.checked_add(u64::from(digit)) }
    })
}

const ALL: u64 = 0x0101_0101_0101_0101;
const ZEROS: u64 = ALL * 0x30;

/// Returns 0 if all bytes of a text, XORed with [`ZEROS`], are digits.
#[inline(always)]
fn no_digits(digits: u64) -> u64 {
    // The addition sets the high bit of a byte of 10 or more, unless it is already set. Only such a
    // byte can carry into the next byte.
    (digits.wrapping_add(ALL * 0x76) | digits) & (ALL * 0x80)
}

/// Parses eight digits with three multiplications: digits to pairs, pairs to fours, fours to the
/// result. The first digit is the lowest byte.
///
/// The method is Lamport's multiple byte processing, applied to decimals by Lemire (2018).
#[inline(always)]
fn eight_digits(digits: u64) -> u64 {
    // Bits that overflow the word do not affect the masked result.
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
    fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xffff_ffff
}

#[cfg(test)]
mod tests {
    use super::{integer, natural};

    #[test]
    fn naturals_are_read_as_the_standard_library_reads_them() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..200_000 {
            let value = random.u64(..) >> random.u32(0..64);
            let mut text = value.to_string().into_bytes();
            assert_eq!(natural(&text), Some(value));
            // A non-digit at any position is rejected.
            let at = random.usize(..text.len());
            text[at] = loop {
                let byte = random.u8(..);
                if !byte.is_ascii_digit() {
                    break byte;
                }
            };
            assert_eq!(natural(&text), None, "{text:?}");
        }
        for text in
            ["18446744073709551616", "99999999999999999999", "100000000000000000000", "0123456789"]
        {
            assert_eq!(natural(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn numbers_are_read_as_redis_reads_them() {
        let good = [
            ("0", 0),
            ("7", 7),
            ("-1", -1),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
            ("1000000000000000000", 1_000_000_000_000_000_000),
        ];
        for (text, value) in good {
            assert_eq!(integer(text.as_bytes()), Some(value), "{text}");
        }
        let bad = [
            "",
            "-",
            "-0",
            "+1",
            "01",
            "-01",
            " 1",
            "1 ",
            "1.0",
            "1e3",
            "9223372036854775808",
            "-9223372036854775809",
            "x",
        ];
        for text in bad {
            assert_eq!(integer(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(natural(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(natural(b"18446744073709551616"), None);
        assert_eq!(natural(b"99999999999999999999"), None);
        assert_eq!(natural(b"123456789012345678901"), None);
        assert_eq!(natural(b"1844674407370955161x"), None);
    }

    #[test]
    fn random_numbers_read_as_the_standard_library_reads_them() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..200_000 {
            let value = random.i64(..) >> random.u32(0..64);
            assert_eq!(integer(value.to_string().as_bytes()), Some(value));
        }
    }
}
