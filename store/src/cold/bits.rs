//! Bit packing of fixed-width numbers, low bits first. Blocks and indexes use this packing.

/// Returns the `width`-bit number (at most 64 bits) at bit offset `at`. Bits beyond the end are 0.
#[inline]
pub fn get(bytes: &[u8], at: usize, width: u32) -> u64 {
    if width == 0 {
        return 0;
    }
    let from = at / 8;
    let mut word = [0; 16];
    match bytes.get(from..from + 16) {
        Some(whole) => word.copy_from_slice(whole),
        None => {
            let rest = bytes.get(from..).unwrap_or_default();
            word[..rest.len()].copy_from_slice(rest);
        }
    }
    (u128::from_le_bytes(word) >> (at % 8)) as u64 & (u64::MAX >> (64 - width))
}

/// Passes `n` numbers of `width` bits, starting at bit offset `at`, to `f` until `f` returns false.
/// Returns whether `f` always returned true. Bits beyond the end are 0.
#[inline]
pub fn each(
    bytes: &[u8],
    at: usize,
    width: u32,
    n: usize,
    mut f: impl FnMut(usize, u64) -> bool,
) -> bool {
    // Eight bytes contain a number of up to 57 bits at any bit offset.
    let mask = if (1..=57).contains(&width) { u64::MAX >> (64 - width) } else { 0 };
    (0..n).all(|index| {
        let bit = at + index * width as usize;
        let number = match bytes.get(bit / 8..).and_then(<[u8]>::first_chunk) {
            Some(word) if mask != 0 => u64::from_le_bytes(*word) >> (bit % 8) & mask,
            _ => get(bytes, bit, width),
        };
        f(index, number)
    })
}

/// Writes a `width`-bit number at bit offset `at`. The bits must be zero and inside `bytes`.
#[inline]
pub fn put(bytes: &mut [u8], at: usize, width: u32, number: u64) {
    if width == 0 {
        return;
    }
    let shifted = u128::from(number) << (at % 8);
    let (from, n) = (at / 8, (at % 8 + width as usize).div_ceil(8));
    for (byte, bits) in bytes[from..from + n].iter_mut().zip(shifted.to_le_bytes()) {
        *byte |= bits;
    }
}

/// Returns the width of a number in bits, from 0 for 0 to 64.
#[inline]
pub fn width_of(number: u64) -> u32 {
    64 - number.leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_all_widths_read_back_at_all_places() {
        for width in 1..=64u32 {
            for start in 0..9 {
                let mut bytes = [0; 40];
                let all = u64::MAX >> (64 - width);
                let numbers = [all, 0, all & 0x5555_5555_5555_5555, 1];
                for (i, &n) in (0..).zip(&numbers) {
                    put(&mut bytes, start + i * width as usize, width, n);
                }
                for (i, &n) in (0..).zip(&numbers) {
                    assert_eq!(
                        get(&bytes, start + i * width as usize, width),
                        n,
                        "{width} bits, {i}"
                    );
                }
                // The last number has fewer than eight bytes after its start.
                let bytes = &bytes[..(start + 4 * width as usize).div_ceil(8)];
                let mut seen = vec![];
                assert!(each(bytes, start, width, 4, |index, n| {
                    seen.push((index, n));
                    true
                }));
                assert_eq!(
                    seen,
                    (0..).zip(numbers).collect::<Vec<_>>(),
                    "{width} bits from {start}"
                );
                assert!(!each(bytes, start, width, 4, |index, _| index < 2), "more than needed");
            }
        }
        assert_eq!(get(&[0xff], 4, 64), 0xf, "bits beyond the end are zero");
        assert_eq!(get(&[0xff], 400, 64), 0);
        assert!(each(&[0xff; 16], 0, 0, 3, |_, n| n == 0), "values of zero bits");
        assert_eq!([width_of(0), width_of(1), width_of(u64::MAX)], [0, 1, 64]);
    }
}
