//! CRC-64 of Redis: Jones polynomial, reflected, initial value 0, no final XOR.

const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;

/// `TABLES[n][b]`: CRC of the byte b followed by n zero bytes.
static TABLES: [[u64; 256]; 8] = tables();

const fn tables() -> [[u64; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let (mut sum, mut bit) = (byte as u64, 0);
        while bit < 8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ POLYNOMIAL } else { sum >> 1 };
            bit += 1;
        }
        tables[0][byte] = sum;
        byte += 1;
    }
    let mut n = 1;
    while n < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[n - 1][byte];
            tables[n][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        n += 1;
    }
    tables
}

/// Returns the CRC of the bytes. Processes eight bytes at a time.
pub(crate) fn crc64(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut sum = 0u64;
    for word in words {
        let mixed = (sum ^ u64::from_le_bytes(*word)).to_le_bytes();
        sum = (0..8).fold(0, |sum, n| sum ^ TABLES[7 - n][usize::from(mixed[n])]);
    }
    rest.iter().fold(sum, |sum, byte| sum >> 8 ^ TABLES[0][usize::from(sum as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::crc64;

    /// Checks the value that Redis's own test uses, and compares inputs of all lengths with a
    /// bitwise implementation.
    #[test]
    fn sums_are_those_of_redis() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
        let bytes: Vec<u8> = (0..100u8).map(|n| n.wrapping_mul(37)).collect();
        for length in 0..bytes.len() {
            let slow = bytes[..length].iter().fold(0u64, |mut sum, byte| {
                sum ^= u64::from(*byte);
                (0..8).for_each(|_| sum = (sum >> 1) ^ ((sum & 1) * super::POLYNOMIAL));
                sum
            });
            assert_eq!(crc64(&bytes[..length]), slow, "{length}");
        }
    }
}
