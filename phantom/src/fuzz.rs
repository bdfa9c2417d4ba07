//! Fuzz target for the table decoder, and a deterministic test with seeded random input.
//!
//! Random bytes would never pass the checks of magic, fingerprint and checksums. The first byte of
//! the input selects which of these fields to repair, so that corrupt data reaches the code behind
//! the checks.

use crate::{DecodeError, Member, Options, Space, StoredTable, TableDecoder};

/// Memory limit of a decoded table, in bytes.
const LIMIT: u64 = 1 << 20;
const ZEROS: [u8; 4104] = [0; 4104];

fn options() -> Options {
    Options {
        false_positive_rate: 0.001,
        pairs_per_table: 4000 * 8,
        seed: 11,
        ..Options::default()
    }
}

/// Decodes a table without checksums and uses the result. The decoder must either return an error
/// or a usable table. It must not panic or exceed the memory limit.
///
/// Bits of the first byte: 1 repairs magic and fingerprint, 2 pads the end with zeros, 4 feeds the
/// input in pieces.
pub fn table(input: &[u8]) {
    let Some((&help, bytes)) = input.split_first() else { return };
    let mut bytes = bytes.to_vec();
    let space = space();
    if help & 1 == 1 && bytes.len() >= 24 {
        bytes[..8].copy_from_slice(b"TMPHTAB\x01");
        bytes[16..24].copy_from_slice(&space.seed.fingerprint().to_le_bytes());
    }
    if let Ok(stored) = decode(&bytes, help) {
        check(&space, stored);
    }
}

fn decode(bytes: &[u8], help: u8) -> Result<StoredTable, DecodeError> {
    let mut decoder = TableDecoder::new(&options(), LIMIT).without_checksums();
    let piece = if help & 4 == 4 { 1 + usize::from(help >> 3) * 97 } else { usize::MAX };
    bytes.chunks(piece).try_for_each(|piece| decoder.feed(piece))?;
    while help & 2 == 2 && !decoder.is_whole() {
        let zeros = decoder.needs_bytes().min(ZEROS.len());
        decoder.feed(&ZEROS[..zeros])?;
    }
    decoder.finish()
}

fn space() -> Space {
    let space = Space::new(options()).expect("the options are valid");
    for id in 0..100 {
        space.add(id, &Member::Number(id)).expect("a hundred pairs fit");
    }
    space
}

/// Checks that a decoded table can be encoded and decoded again with checksums.
fn check(space: &Space, stored: StoredTable) {
    let (low, last) = stored.range();
    assert!(low <= last);
    assert!(stored.table.size_bytes() as u64 <= LIMIT * 2, "D2");
    let mut whole = TableDecoder::new(space.options(), LIMIT * 2);
    let fed = crate::codec::encode_table(space.seed, (low, last), &stored.table, |piece| {
        whole.feed(piece)
    });
    assert_eq!(fed, Ok(()), "an encoded table can be decoded");
    let again = whole.finish().expect("an encoded table can be decoded");
    assert_eq!(again.range(), (low, last));
    let words = |table: &crate::table::Table| -> Vec<u64> {
        let words = table.links().flat_map(|link| link.filter.words());
        words.map(|word| word.load(std::sync::atomic::Ordering::Relaxed)).collect()
    };
    assert!(words(&again.table) == words(&stored.table));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Unreadable;

    /// Returns [`space`] with `pairs` more pairs, of which the last `unset` are deleted again.
    fn grown(pairs: u64, unset: u64) -> Space {
        let other = space();
        for member in 100..100 + pairs {
            other.add(member % 100, &Member::Number(member)).unwrap();
        }
        for member in 100 + pairs - unset..100 + pairs {
            other.remove(member % 100, &Member::Number(member)).unwrap();
        }
        other
    }

    /// Valid tables are accepted. `PHANTOM_FUZZ_SEEDS=fuzz/corpus` writes them as seeds for the
    /// fuzzer.
    #[test]
    fn real_tables_are_taken() {
        let folder = std::env::var_os("PHANTOM_FUZZ_SEEDS").map(std::path::PathBuf::from);
        let keep = |name: &str, input: &[u8]| {
            if let Some(folder) = &folder {
                let folder = folder.join("table");
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(folder.join(name), input).unwrap();
            }
        };
        for (name, pairs, unset) in
            [("few", 10, 0), ("unset", 700, 100), ("full", 3500, 0), ("chained", 6300, 30)]
        {
            let other = grown(pairs, unset);
            assert_eq!(other.tables()[0].extensions > 1, name == "chained");
            for help in 0..2 {
                let mut whole = vec![help];
                let sink = |piece: &[u8]| {
                    whole.extend_from_slice(piece);
                    Ok::<(), Unreadable>(())
                };
                assert!(other.encode_table(0, sink).unwrap());
                assert!(decode(&whole[1..], help).is_ok(), "{name}");
                keep(&format!("{name}{help}"), &whole);
            }
        }
    }

    #[test]
    fn seeded_rounds() {
        let rounds = if cfg!(debug_assertions) { 3_000 } else { 100_000 };
        let mut whole = Vec::new();
        let space = space();
        let sink = |piece: &[u8]| {
            whole.extend_from_slice(piece);
            Ok::<(), Unreadable>(())
        };
        assert!(space.encode_table(0, sink).unwrap());
        let (mut refused, mut taken) = (0, 0);
        for seed in 0..rounds {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut input = vec![rng.u8(..)];
            input.extend_from_slice(&whole);
            for _ in 0..rng.u32(0..4) {
                // Most corruption goes to the header, which controls the decoder.
                let at = 1 + if rng.u32(0..4) > 0 {
                    rng.usize(0..200)
                } else {
                    rng.usize(0..whole.len())
                };
                match rng.u32(0..4) {
                    0 => input[at] ^= 1 << rng.u32(0..8),
                    1 => input[at] = rng.u8(..),
                    2 => {
                        let word = [0, 1, u64::MAX, 1 << 63, 1 << 36, u64::MAX >> 20]
                            [rng.usize(0..6)]
                        .to_le_bytes();
                        let at = (at / 8 * 8 + 1).min(input.len() - 8);
                        input[at..at + 8].copy_from_slice(&word);
                    }
                    _ => input.truncate(rng.usize(0..input.len()).max(201)),
                }
                if input.len() <= whole.len() {
                    break;
                }
            }
            let mut bytes = input[1..].to_vec();
            if input[0] & 1 == 1 {
                bytes[..8].copy_from_slice(b"TMPHTAB\x01");
                bytes[16..24].copy_from_slice(&space.seed.fingerprint().to_le_bytes());
            }
            if decode(&bytes, input[0]).is_ok() {
                taken += 1
            } else {
                refused += 1
            }
            table(&input);
        }
        println!("{refused} refused, {taken} taken");
        assert!(refused > rounds / 10 && taken > rounds / 10, "{refused} refused, {taken} taken");
    }
}
