//! Bit reader and writer for the integers of a block, low bit first.
//!
//! A *number* is stored in Elias delta coding. Its bit length plus one comes first, in Elias gamma
//! coding: a zero for each bit below the highest one, a one, and the lower bits. The bits of the
//! number below its highest one follow. 0 takes one bit, 1 takes three, a 20-bit number takes 28
//! (P. Elias, "Universal codeword sets and representations of the integers", IEEE Transactions on
//! Information Theory, 1975).

use store::bits::{get, put, width_of};

/// Returns the encoded size of a number in bits.
pub(crate) fn bits_of(number: u64) -> usize {
    let length = width_of(number);
    2 * (length + 1).ilog2() as usize + 1 + length.saturating_sub(1) as usize
}

pub(crate) struct BitWriter<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl<'a> BitWriter<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> BitWriter<'a> {
        BitWriter { bytes, at: 0 }
    }

    #[cfg(test)]
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Appends the lower `width` bits of `number`. All higher bits must be zero.
    #[inline]
    pub(crate) fn put(&mut self, width: u32, number: u64) {
        put(self.bytes, self.at, width, number);
        self.at += width as usize;
    }

    #[inline]
    pub(crate) fn skip(&mut self, bits: usize) {
        self.at += bits;
    }

    pub(crate) fn number(&mut self, number: u64) {
        let length = width_of(number);
        let (head, zeros) = (u64::from(length) + 1, (length + 1).ilog2());
        self.skip(zeros as usize);
        self.put(1, 1);
        self.put(zeros, head & !(1 << zeros));
        if length > 1 {
            self.put(length - 1, number & !(1 << (length - 1)));
        }
    }
}

/// Bit reader. Returns zeros after the end of the input.
#[derive(Clone, Copy)]
pub(crate) struct BitReader<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) at: usize,
}

impl BitReader<'_> {
    #[inline]
    pub(crate) fn take(&mut self, width: u32) -> u64 {
        let number = get(self.bytes, self.at, width);
        self.at += width as usize;
        number
    }

    /// Decodes a number. Returns `None` if the code is invalid.
    #[inline]
    pub(crate) fn number(&mut self) -> Option<u64> {
        let zeros = get(self.bytes, self.at, 7).trailing_zeros();
        if zeros > 6 {
            return None;
        }
        self.at += zeros as usize + 1;
        let length = (self.take(zeros) | 1 << zeros) as u32 - 1;
        match length {
            0 => Some(0),
            1..=64 => Some(self.take(length - 1) | 1 << (length - 1)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_back_and_take_the_bits_that_were_said() {
        let numbers: Vec<u64> =
            (0..64).flat_map(|bit| [1 << bit, (1 << bit) - 1, u64::MAX >> bit]).collect();
        let mut bytes = vec![0; 8192];
        let mut writer = BitWriter::new(&mut bytes);
        for &number in &numbers {
            let before = writer.at();
            writer.number(number);
            assert_eq!(writer.at() - before, bits_of(number), "{number}");
        }
        let mut reader = BitReader { bytes: &bytes, at: 0 };
        for &number in &numbers {
            assert_eq!(reader.number(), Some(number));
        }
        assert_eq!([0, 1, 1 << 19].map(bits_of), [1, 3, 28]);
    }

    #[test]
    fn zeros_are_no_number() {
        assert_eq!(BitReader { bytes: &[0; 16], at: 0 }.number(), None);
        assert_eq!(BitReader { bytes: &[], at: 0 }.number(), None);
        // This code declares a bit length of 127.
        let mut bytes = [0; 32];
        let mut writer = BitWriter::new(&mut bytes);
        writer.skip(6);
        writer.put(7, 127);
        assert_eq!(BitReader { bytes: &bytes, at: 0 }.number(), None);
    }
}
