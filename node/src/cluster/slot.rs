//! Hash slots: 16,384 parts of the ids, which are distributed over shards as in Redis.
//!
//! The slot of a key is the hash of its tag, the text in its first braces. The slot of an id is the
//! hash of its decimal text. So `post:{1001}`, `liked:{1001}` and the argument `1001` share a slot.
//! The server refuses a key without a hash tag, since such a key would be in a different slot from
//! its id.

/// Number of slots of a cluster.
pub const SLOTS: u16 = 16_384;

/// Maximum length of an id's decimal text.
const ID_BYTES: usize = 20;

/// Lookup table of CRC-16/XMODEM, by byte.
const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Computes CRC-16/XMODEM, as in Redis.
const fn crc16(bytes: &[u8]) -> u16 {
    let (mut crc, mut at) = (0u16, 0);
    while at < bytes.len() {
        crc = crc << 8 ^ TABLE[((crc >> 8) as u8 ^ bytes[at]) as usize];
        at += 1;
    }
    crc
}

const _: () = assert!(crc16(b"123456789") == 0x31c3, "the check value of CRC-16/XMODEM");

/// Returns the hash tag of a key: the text in its first braces, if not empty.
pub fn tag_of(key: &[u8]) -> Option<&[u8]> {
    let rest = &key[key.iter().position(|&b| b == b'{')? + 1..];
    rest.iter().position(|&b| b == b'}').filter(|&length| length > 0).map(|end| &rest[..end])
}

/// Returns the slot of a key. As in Redis, hashes the whole key if it has no hash tag.
pub fn of_key(key: &[u8]) -> u16 {
    crc16(tag_of(key).unwrap_or(key)) % SLOTS
}

/// Returns the slot of an id.
pub fn of_id(id: u64) -> u16 {
    let (mut text, mut at, mut rest) = ([0; ID_BYTES], ID_BYTES, id);
    loop {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return of_text(&text[at..]);
        }
    }
}

/// Returns the slot of an id by its decimal text.
#[inline]
pub fn of_text(text: &[u8]) -> u16 {
    crc16(text) % SLOTS
}

/// Formats a range of slots: `7` or `0-5460`.
pub fn write_range(first: u16, last: u16) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// Parses slots and ranges separated by spaces: `0-5460 7000`. The error is the invalid part of the
/// text.
pub fn parse_ranges(text: &str) -> Result<Vec<(u16, u16)>, String> {
    let slot = |text: &str| text.parse::<u16>().ok().filter(|slot| *slot < SLOTS);
    let range = |word: &str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let range = (slot(first)?, slot(last)?);
        (range.0 <= range.1).then_some(range)
    };
    text.split_ascii_whitespace().map(|word| range(word).ok_or_else(|| word.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values are from redis-server 7.0.
    #[test]
    fn slots_of_keys_are_those_of_redis() {
        for (key, slot) in [
            (&b"foo"[..], 12_182),
            (b"post:1", 10_484),
            (b"{post:1}:like", 10_484),
            (b"a{post:1}b{c}", 10_484),
            (b"{}post:1", 8_252),
            (b"", 0),
        ] {
            assert_eq!(of_key(key), slot, "{}", String::from_utf8_lossy(key));
        }
        assert_ne!(of_key(b"{}a"), of_key(b"{}b"), "empty braces are not a hash tag");
    }

    #[test]
    fn an_id_has_the_slot_of_its_text_and_of_keys_with_it_in_braces() {
        for id in [0, 1, 9, 10, 1001, 3_631_614_501_919_378, u64::MAX] {
            let slot = of_id(id);
            assert_eq!(of_key(id.to_string().as_bytes()), slot);
            assert_eq!(of_key(format!("post:{{{id}}}").as_bytes()), slot);
            assert_eq!(of_key(format!("liked:{{{id}}}").as_bytes()), slot);
        }
    }

    #[test]
    fn ranges_read_back() {
        assert_eq!(parse_ranges("0-5460 7 16383"), Ok(vec![(0, 5460), (7, 7), (16_383, 16_383)]));
        for text in ["16384", "5-4", "a", "1-", "-1", "1-2-3", "0-16384"] {
            assert_eq!(parse_ranges(text), Err(text.to_owned()));
        }
        assert_eq!([write_range(7, 7), write_range(0, 9)], ["7", "0-9"]);
    }
}
