//! Fuzz target for RESTORE payloads, and a deterministic test that feeds it seeded input.

use crate::{
    Element, Error, Kind, MAX_UNPACKED_BYTES, Payload, SetDump, dump_hash, dump_string, write,
};

/// Tests a payload with a valid checksum. The first two bytes of `input` are the payload's RDB
/// version.
///
/// The parser must reject the payload, or return no more elements than its packed and unpacked
/// sizes allow. Elements that are encoded again must parse to the same elements.
pub fn payload(input: &[u8]) {
    let Some((version, value)) = input.split_first_chunk() else { return };
    let bytes = write::seal(value.to_vec(), u16::from_le_bytes(*version));
    let Ok(payload) = Payload::open(&bytes) else { return };
    let mut elements: Vec<Vec<u8>> = Vec::new();
    let (mut count, mut length) = (0, 0);
    let outcome = payload.elements(|element| {
        let Element::Text(text) = element else {
            assert!(
                payload.kind() == Kind::Hash && count % 2 == 1,
                "an expiry must follow a field"
            );
            return Ok(());
        };
        count += 1;
        length += text.len();
        if count <= 64 {
            elements.push(text.to_vec());
        }
        Ok::<(), Error>(())
    });
    assert!(count <= bytes.len() + MAX_UNPACKED_BYTES);
    // A compressed string expands by a factor of at most 264. An integer expands to at most 20
    // bytes.
    assert!(length <= 20 * count + 264 * bytes.len() + MAX_UNPACKED_BYTES);
    if outcome.is_err() || count > 64 {
        return;
    }
    assert!(count > 0 && (payload.kind() != Kind::Hash || count % 2 == 0));
    if payload.kind() == Kind::Set {
        let mut again = SetDump::default();
        for member in &elements {
            let number = std::str::from_utf8(member).ok().and_then(|text| text.parse::<u64>().ok());
            match number.filter(|number| number.to_string().as_bytes() == member) {
                Some(number) => again.push_number(number),
                None => again.push(member),
            }
        }
        assert_eq!(read(&again.seal().expect("a set with members")), elements);
        return;
    }
    let numbers: Option<Vec<i64>> = elements
        .iter()
        .skip(usize::from(payload.kind() == Kind::Hash))
        .step_by(1 + usize::from(payload.kind() == Kind::Hash))
        .map(|text| std::str::from_utf8(text).ok()?.parse().ok())
        .collect();
    let Some(numbers) = numbers else { return };
    match payload.kind() {
        Kind::Hash => {
            let names = elements.iter().step_by(2).map(Vec::as_slice);
            let pairs: Vec<_> = names.zip(numbers).collect();
            let again = read(&dump_hash(pairs.iter().copied()));
            let texts = pairs.iter().flat_map(|(name, n)| [name.to_vec(), n.to_string().into()]);
            assert_eq!(again, texts.collect::<Vec<_>>());
        }
        Kind::String => {
            assert_eq!(read(&dump_string(numbers[0])), [numbers[0].to_string().into_bytes()]);
        }
        Kind::Set => {}
    }
}

fn read(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let payload = Payload::open(bytes).expect("a valid payload");
    let read = payload.elements(|element| {
        if let Element::Text(text) = element {
            all.push(text.to_vec());
        }
        Ok::<(), Error>(())
    });
    read.expect("valid elements");
    all
}

#[cfg(test)]
mod tests {
    use crate::tests::{ALL, unhex};

    /// Damages payloads of real servers in various ways, and recomputes their checksums.
    #[test]
    fn seeded_rounds_of_payloads() {
        let seeds: Vec<Vec<u8>> = ALL
            .iter()
            .map(|(hex, _)| {
                let bytes = unhex(hex);
                let (value, footer) = bytes.split_at(bytes.len() - 10);
                [&footer[..2], value].concat()
            })
            .collect();
        for seed in 0..30_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut input = seeds[random.usize(..seeds.len())].clone();
            for _ in 0..random.usize(..5) {
                let at = random.usize(..input.len());
                match random.u8(..5) {
                    0 => input[at] = random.u8(..),
                    1 => input[at] ^= 1 << random.u8(..8),
                    2 => input.insert(at, random.u8(..)),
                    3 => input.truncate(at.max(3)),
                    _ => {
                        let other = &seeds[random.usize(..seeds.len())];
                        let from = random.usize(..other.len());
                        input.splice(at..at, other[from..].iter().copied());
                    }
                }
            }
            let outcome = std::panic::catch_unwind(|| super::payload(&input));
            assert!(outcome.is_ok(), "seed {seed}: {input:?}");
        }
    }
}
