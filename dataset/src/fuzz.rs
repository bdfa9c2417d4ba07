//! Fuzz targets for all code of this crate that parses untrusted bytes, and a deterministic test
//! with seeded random bytes.

use crate::catalogue::Catalogue;
use crate::log_records::{
    ExactPairsWriter, decode_forgotten, encode_forgotten, read_exact_pairs, read_pairs, read_rows,
};
use crate::ring_records;
use ledger::{Ledger, Pair};

/// Decodes the bytes as each kind of record.
pub fn records(input: &[u8]) {
    let mut last = None;
    let _ = read_rows(input, |id, _| {
        assert!(last.is_none_or(|last| last <= id), "ids never decrease");
        last = Some(id);
        Ok(())
    });
    let _ = read_pairs(input, |_, _, _| Ok(()));
    exact_pairs(input);
    crate::tokens::check_decoder(input);
    crate::offsets::check_decoder(input);
    crate::groups::check_decoder(input);
    let _ = ring_records::decode_layout(input);
    let _ = ring_records::decode_ring(input);
    let _ = ring_records::decode_frontier(input);
    if let Ok(forgotten) = decode_forgotten(input) {
        let again = encode_forgotten(forgotten.iter().copied());
        assert_eq!(decode_forgotten(&again), Ok(forgotten));
    }
    if let Ok(catalogue) = Catalogue::decode(input) {
        assert_eq!(
            Catalogue::decode(&catalogue.encode()).map(|c| c.encode()).ok(),
            Some(catalogue.encode())
        );
    }
}

fn exact_pairs(input: &[u8]) {
    let read = |bytes: &[u8]| {
        let mut pairs = Vec::new();
        let outcome = read_exact_pairs(bytes, |pair, generation| {
            pairs.push((pair.id, pair.member.to_owned(), pair.set, generation));
            Ok(())
        });
        assert!(pairs.is_sorted_by_key(|pair| pair.0), "ids never decrease");
        outcome.map(|()| pairs)
    };
    let Ok(pairs) = read(input) else { return };
    let mut again = ExactPairsWriter::behind(0);
    for (id, member, set, generation) in &pairs {
        assert!(Ledger::takes(member.as_member()));
        again.pair(Pair { id: *id, member: member.as_member(), set: *set }, *generation);
    }
    assert_eq!(read(&again.finish()[1..]), Ok(pairs));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a damaged copy of one of the seeds. Truncates it, and changes, duplicates and
    /// inserts words.
    fn mutated(random: &mut fastrand::Rng, seeds: &[&[u8]], words: &[&[u8]]) -> Vec<u8> {
        let mut bytes = random.choice(seeds).expect("a seed").to_vec();
        for _ in 0..random.usize(..6) {
            let at = random.usize(..=bytes.len());
            match random.u8(..5) {
                0 => bytes.truncate(at),
                1 if at < bytes.len() => bytes[at] = random.u8(..),
                2 => {
                    bytes.splice(at..at, random.choice(words).expect("a word").iter().copied());
                }
                3 => {
                    let other = random.choice(seeds).expect("a seed");
                    let from = random.usize(..=other.len());
                    bytes.splice(at..at, other[from..].iter().take(60).copied());
                }
                _ if at < bytes.len() => {
                    bytes.remove(at);
                }
                _ => {}
            }
        }
        bytes
    }

    fn rounds(target: fn(&[u8]), seeds: &[&[u8]], words: &[&[u8]]) {
        for seed in 0..3_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let input = mutated(&mut random, seeds, words);
            let outcome = std::panic::catch_unwind(|| target(&input));
            assert!(outcome.is_ok(), "seed {seed}: {:?}", String::from_utf8_lossy(&input));
        }
    }

    #[test]
    fn seeded_rounds_of_records() {
        rounds(
            records,
            &[
                &[4, 1, 2, 4, 6, 8, 1, 0, 0, 0, 0],
                &[3, 7, 2, 9, 1, 1],
                &[0, 1, 4, 9, 200, 1, 5],
                // Exact pairs: a number and two strings, one of them unset.
                &[5, 0, 9, 7, 1, 3, b'a', b'n', b'n', 6, 0, 0],
                b"[[counter]]\nnumber = 1\nname = \"post\"\nfields = \"like:12\"\n",
            ],
            &[
                &[0xff; 9],
                &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
                &[0],
                &[0x80],
                &[1; 20],
            ],
        );
    }
}
