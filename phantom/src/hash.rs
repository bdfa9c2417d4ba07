//! Pair hashes. **Part of the file format**: a change makes every stored filter unreadable.
//!
//! ```text
//!   member is a number:  XXH3-128( id LE 8 | member LE 8 )                      16 bytes in
//!   member is bytes:     XXH3-128( id LE 8 | XXH3-128(member) LE 16 )           24 bytes in
//!   canary (no member):  XXH3-128( id LE 8 | "no client says this" | n LE 8 )   35 bytes in
//!   later generation:    XXH3-128( id LE 8 | hash of the pair LE 16 | generation LE 8 )   32
//! ```
//! All use the space's secret seed. The inputs differ in length, so pairs of different kinds never
//! share an input, and no client can construct a canary. The id and the member are hashed together,
//! because packing both into one word would make some pairs collide with certainty. Without the
//! seed no client can target one page of a filter.

use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Second half of a pair, usually a viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member<'a> {
    /// A number; the common case.
    Number(u64),
    /// Any other byte string.
    Bytes(&'a [u8]),
}

impl<'a> Member<'a> {
    /// Parses a canonical decimal u64 (`0`, `17`; not `017`, `+17` or `2^64`) as a number, and
    /// anything else as bytes.
    #[inline]
    pub fn parse(text: &'a [u8]) -> Member<'a> {
        digits::natural(text).map_or(Member::Bytes(text), Member::Number)
    }
}

impl From<u64> for Member<'_> {
    fn from(number: u64) -> Self {
        Member::Number(number)
    }
}

/// Hashed pair, as stored in the log. The id selects the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pair {
    /// Id of the pair.
    pub id: u64,
    /// Upper half of the 128-bit hash.
    pub high: u64,
    /// Lower half of the 128-bit hash.
    pub low: u64,
}

impl Pair {
    /// Returns the 128-bit hash.
    #[inline]
    pub fn hash(&self) -> u128 {
        (u128::from(self.high) << 64) | u128::from(self.low)
    }

    /// Returns a pair from its id and [`Pair::hash`].
    #[inline]
    pub fn from_hash(id: u64, hash: u128) -> Pair {
        Pair { id, high: (hash >> 64) as u64, low: hash as u64 }
    }
}

/// Member, with the part of its hash that does not depend on the id.
#[derive(Clone, Copy)]
pub(crate) enum PreparedMember {
    Number(Number),
    Bytes(u128),
}

/// Intermediate state of XXH3-128 for a 16-byte input, from the seed and the last eight bytes. It
/// is the same for all ids of a page and saves half of the work. [`Number::pair`] completes the
/// hash. A test compares it with the library.
#[derive(Clone, Copy)]
pub(crate) struct Number {
    /// XORed with the id.
    flip: u64,
    /// Added to the upper half of the first product.
    add: u64,
}

/// XXH3 constants: two secret words per half, and primes.
const FLIP_LOW: u64 = 0x78E5_C0CC_4EE6_79CB ^ 0x2172_FFCC_7DD0_5A82;
const FLIP_HIGH: u64 = 0x8E24_43F7_7446_08B8 ^ 0x4C26_3A81_E690_35E0;
const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME64_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const PRIME32_2: u64 = 0x85EB_CA77;
const AVALANCHE: u64 = 0x1656_6791_9E37_79F9;

impl Number {
    #[inline(always)]
    fn new(number: u64, seed: u64) -> Number {
        let flipped = number ^ FLIP_HIGH.wrapping_add(seed);
        let low_half = flipped & 0xffff_ffff;
        Number {
            flip: number ^ FLIP_LOW.wrapping_sub(seed),
            add: flipped.wrapping_add(low_half.wrapping_mul(PRIME32_2 - 1)),
        }
    }

    #[inline(always)]
    fn pair(self, id: u64) -> Pair {
        let (low, high) = multiply(id ^ self.flip, PRIME64_1);
        let high = high.wrapping_add(self.add);
        // 15 is the length of the input minus one.
        let low = low.wrapping_add(15 << 54) ^ high.swap_bytes();
        let (low, more) = multiply(low, PRIME64_2);
        Pair {
            id,
            high: avalanche(more.wrapping_add(high.wrapping_mul(PRIME64_2))),
            low: avalanche(low),
        }
    }
}

#[inline(always)]
fn multiply(a: u64, b: u64) -> (u64, u64) {
    let product = u128::from(a).wrapping_mul(u128::from(b));
    (product as u64, (product >> 64) as u64)
}

#[inline(always)]
fn avalanche(x: u64) -> u64 {
    let x = (x ^ (x >> 37)).wrapping_mul(AVALANCHE);
    x ^ (x >> 32)
}

#[derive(Clone, Copy)]
pub(crate) struct Seed(u64);

impl Seed {
    /// Mixes the secret. XXH3 only adds its seed to a 16-byte input, so unmixed neighbouring seeds
    /// would give neighbouring pairs the same hash.
    pub(crate) fn new(secret: u64) -> Seed {
        Seed(mix(secret.wrapping_add(0x9e37_79b9_7f4a_7c15)))
    }

    #[inline]
    pub(crate) fn prepare_member(self, member: &Member) -> PreparedMember {
        match *member {
            Member::Number(number) => PreparedMember::Number(Number::new(number, self.0)),
            Member::Bytes(bytes) => PreparedMember::Bytes(xxh3_128_with_seed(bytes, self.0)),
        }
    }

    #[inline(always)]
    pub(crate) fn pair(self, id: u64, member: PreparedMember) -> Pair {
        match member {
            PreparedMember::Number(number) => number.pair(id),
            PreparedMember::Bytes(digest) => self.pair_of_bytes(id, digest),
        }
    }

    /// Hashes one member with many ids, up to the shorter of `ids` and `pairs`.
    #[inline(always)]
    pub(crate) fn pairs(self, ids: &[u64], member: PreparedMember, pairs: &mut [Pair]) {
        let places = ids.iter().zip(pairs);
        // Two loops, so that the branch on the kind of member runs once.
        match member {
            PreparedMember::Number(number) => {
                places.for_each(|(&id, pair)| *pair = number.pair(id))
            }
            PreparedMember::Bytes(digest) => {
                places.for_each(|(&id, pair)| *pair = self.pair_of_bytes(id, digest))
            }
        }
    }

    #[inline(never)]
    fn pair_of_bytes(self, id: u64, digest: u128) -> Pair {
        let mut input = [0; 24];
        input[..8].copy_from_slice(&id.to_le_bytes());
        input[8..].copy_from_slice(&digest.to_le_bytes());
        Pair::from_hash(id, xxh3_128_with_seed(&input, self.0))
    }

    /// Returns the pair in a later generation of its id (`forgotten`).
    pub(crate) fn later(self, first: Pair, generation: u64) -> Pair {
        let mut input = [0; 32];
        input[..8].copy_from_slice(&first.id.to_le_bytes());
        input[8..24].copy_from_slice(&first.hash().to_le_bytes());
        input[24..].copy_from_slice(&generation.to_le_bytes());
        Pair::from_hash(first.id, xxh3_128_with_seed(&input, self.0))
    }

    /// Returns the `n`-th canary of an id. A canary is a pair that no client can set.
    pub(crate) fn canary(self, id: u64, n: u64) -> Pair {
        let mut input = [0; 35];
        input[..8].copy_from_slice(&id.to_le_bytes());
        input[8..27].copy_from_slice(b"no client says this");
        input[27..].copy_from_slice(&n.to_le_bytes());
        Pair::from_hash(id, xxh3_128_with_seed(&input, self.0))
    }

    /// Returns a fingerprint that identifies the seed without revealing it. Stored with each table.
    pub(crate) fn fingerprint(self) -> u64 {
        xxh3_128_with_seed(b"fingerprint of a space's seed", self.0) as u64
    }
}

/// Bijective mixer (constants of Stafford's Mix13): every input bit affects every output bit.
#[inline(always)]
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_decimals_are_numbers() {
        for (text, number) in [("0", 0), ("7", 7), ("18446744073709551615", u64::MAX), ("10", 10)] {
            assert_eq!(Member::parse(text.as_bytes()), Member::Number(number));
        }
        for text in [
            "",
            "00",
            "07",
            "+7",
            "-0",
            "18446744073709551616",
            "99999999999999999999",
            "1 ",
            "a",
            "123456789012345678901",
        ] {
            assert_eq!(Member::parse(text.as_bytes()), Member::Bytes(text.as_bytes()), "{text:?}");
        }
    }

    /// Stored filters depend on these hashes.
    #[test]
    fn hashes_are_frozen() {
        let seed = Seed::new(0x1234_5678_9abc_def0);
        let pair = |id, member: &Member| seed.pair(id, seed.prepare_member(member)).hash();
        let found = [
            pair(3_631_614_501_919_378, &Member::Number(833_933_534_602)),
            pair(0, &Member::Number(0)),
            pair(u64::MAX, &Member::Bytes(b"")),
            pair(7, &Member::Bytes(b"alice")),
            seed.canary(7, 1).hash(),
            seed.later(seed.pair(7, seed.prepare_member(&Member::Bytes(b"alice"))), 1).hash(),
            u128::from(seed.fingerprint()),
            u128::from(mix(1)),
        ];
        assert_eq!(found, FROZEN);
    }

    /// The hand-written hash of numbers must equal the library's.
    #[test]
    fn numbers_are_hashed_as_the_library_does() {
        let mut rng = fastrand::Rng::with_seed(16);
        let edge = |rng: &mut fastrand::Rng| {
            [0, 1, u64::MAX, 1 << 32, u64::from(u32::MAX), rng.u64(..)][rng.usize(0..6)]
        };
        for _ in 0..if cfg!(miri) { 50 } else { 50_000 } {
            let (seed, id, number) = (Seed(edge(&mut rng)), edge(&mut rng), edge(&mut rng));
            let input = [id.to_le_bytes(), number.to_le_bytes()].concat();
            let expected = Pair::from_hash(id, xxh3_128_with_seed(&input, seed.0));
            assert_eq!(
                seed.pair(id, seed.prepare_member(&Member::Number(number))),
                expected,
                "{id} {number}"
            );
        }
    }

    const FROZEN: [u128; 8] = [
        106_693_952_777_240_952_318_155_874_394_531_135_673,
        17_931_754_802_087_124_011_699_165_433_765_142_195,
        22_419_157_096_417_759_677_807_472_956_820_605_307,
        162_511_057_022_521_727_284_531_981_724_075_017_747,
        95_778_817_449_857_217_482_971_579_694_182_735_337,
        20_643_765_962_629_323_208_481_178_243_424_190_081,
        9_293_747_944_508_331_519,
        6_238_072_747_940_578_789,
    ];

    #[test]
    fn domains_and_seeds_are_apart() {
        let mut seen = std::collections::HashSet::new();
        for seed in [Seed::new(0), Seed::new(1)] {
            for id in [0, 1, u64::MAX] {
                for member in [
                    Member::Number(0),
                    Member::Number(1),
                    Member::Bytes(b""),
                    Member::Bytes(&[0; 8]),
                ] {
                    let hash = seed.pair(id, seed.prepare_member(&member)).hash();
                    assert!(seen.insert(hash), "{id} {member:?} {}", seed.0);
                    for generation in [1, 2] {
                        let later = seed.later(Pair::from_hash(id, hash), generation);
                        assert!(seen.insert(later.hash()), "{id} {member:?} {generation}");
                    }
                }
                assert!(seen.insert(seed.canary(id, 0).hash()));
            }
        }
    }
}
