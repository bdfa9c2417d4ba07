//! Maps ids to buckets, so that a slot stores only part of the id.
//!
//! A table covers ids starting at `base`. The offset of an id is split into `hi`, a digit of radix
//! `buckets`, and `lo`, the low `bits` binary digits. Two Feistel rounds mix the halves. Each round
//! can be inverted with the half that it leaves unchanged:
//!
//! ```text
//!   offset = hi * 2^bits + lo
//!   lo' = lo XOR f(hi)                       stored in the slot: the remainder
//!   bucket = (hi + g(lo')) mod buckets        implied by the position of the slot
//! ```
//!
//! This is quotienting (Cleary, Compact Hash Tables Using Bidirectional Linear Probing, 1984; Knuth
//! vol. 3, 6.4 exercise 13) with a mixed radix, so the number of buckets need not be a power of
//! two.
//!
//! If the bucket of a row is full, double hashing determines the next bucket: `bucket + probe *
//! step`, with a step that depends only on the remainder. The slot stores the probe number, so the
//! id remains recoverable. The number of buckets is prime, so all probes differ.

/// Number of buckets in a probe sequence, including the home bucket. Probe numbers and the empty
/// state share three bits.
pub(crate) const PROBES: u64 = 7;
/// Minimum number of buckets, so that the remainder of a 64-bit id has at most 60 bits.
pub(crate) const MIN_BUCKETS: u64 = 17;
/// Minimum number of remainder bits. Together with the state bits, the remainder then fills the
/// first byte of the tag.
pub(crate) const MIN_REMAINDER_BITS: u32 = 5;

// Odd constants with well-spread bits: 2^64 / golden ratio, and multipliers from the finalisers of
// SplitMix64 and MurmurHash3.
const M1: u64 = 0x9E37_79B9_7F4A_7C15;
const M2: u64 = 0xBF58_476D_1CE4_E5B9;
const M3: u64 = 0x94D0_49BB_1331_11EB;
const M4: u64 = 0xFF51_AFD7_ED55_8CCD;

/// Mapping between ids and (bucket, probe, remainder) of one segment.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    base: u64,
    /// A prime number.
    buckets: u64,
    bits: u32,
    mask: u64,
    seed: u64,
    last: u64,
}

/// First bucket of an id, and the remainder that its slot stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Home {
    pub(crate) bucket: u64,
    pub(crate) remainder: u64,
}

#[inline(always)]
fn mix(x: u64, a: u64, b: u64) -> u64 {
    let x = x.wrapping_mul(a);
    (x ^ (x >> 32)).wrapping_mul(b)
}

/// Derives the seed of table number `number` of a space (or segment of a table) from its secret. A
/// client that has learned which ids collide in one table learns nothing about other tables.
pub(crate) fn seed_of(secret: u64, number: u64) -> u64 {
    let x = mix(secret ^ number.wrapping_mul(M1), M2, M3);
    mix(x ^ (x >> 31) ^ secret, M4, M1)
}

#[inline(always)]
pub(crate) fn hash_by(seed: u64, id: u64) -> u64 {
    mix(id ^ seed, M1, M4)
}

/// Maps `x` evenly to `0..n`, using the high bits of `x`.
#[inline(always)]
fn reduce(x: u64, n: u64) -> u64 {
    ((u128::from(x) * u128::from(n)) >> 64) as u64
}

impl Keys {
    /// Creates a mapping for `buckets * 2^bits` ids starting at `base`, clipped at the end of u64.
    pub(crate) fn new(base: u64, buckets: u64, bits: u32, seed: u64) -> Keys {
        assert!(
            buckets >= MIN_BUCKETS
                && buckets >> 32 == 0
                && (MIN_REMAINDER_BITS..=60).contains(&bits),
            "{buckets} buckets, {bits} bits"
        );
        let span = u128::from(buckets) << bits;
        let last = (u128::from(base) + span - 1).min(u128::from(u64::MAX)) as u64;
        Keys { base, buckets, bits, mask: (1 << bits) - 1, seed, last }
    }

    /// Highest id of the range.
    #[inline]
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    #[inline]
    pub(crate) fn buckets(&self) -> u64 {
        self.buckets
    }

    #[inline(always)]
    fn f(&self, hi: u64) -> u64 {
        mix(hi ^ self.seed, M1, M2).wrapping_shr(self.bits.wrapping_neg())
    }

    #[inline(always)]
    fn g(&self, remainder: u64) -> u64 {
        reduce(mix(remainder ^ self.seed, M3, M4), self.buckets)
    }

    /// Returns the home of an id, or `None` if the id is outside the range.
    #[inline(always)]
    pub(crate) fn home(&self, id: u64) -> Option<Home> {
        if id < self.base || id > self.last {
            return None;
        }
        let offset = id.wrapping_sub(self.base);
        let hi = offset.wrapping_shr(self.bits);
        let remainder = (offset & self.mask) ^ self.f(hi);
        Some(Home { bucket: self.wrapped(hi.wrapping_add(self.g(remainder))), remainder })
    }

    /// Distance between two probes.
    #[inline]
    pub(crate) fn step(&self, remainder: u64) -> u64 {
        reduce(mix(remainder ^ self.seed, M2, M1), self.buckets.wrapping_sub(1)).wrapping_add(1)
    }

    /// Returns the bucket after `bucket` in a probe sequence.
    #[inline]
    pub(crate) fn next(&self, bucket: u64, step: u64) -> u64 {
        self.wrapped(bucket.wrapping_add(step))
    }

    /// Returns `bucket` modulo the number of buckets. `bucket` must be less than twice that number.
    #[inline(always)]
    fn wrapped(&self, bucket: u64) -> u64 {
        // If `bucket` is in range, the subtraction wraps to a larger number.
        bucket.min(bucket.wrapping_sub(self.buckets))
    }

    /// Returns the id of a slot: the inverse of [`Keys::home`] followed by `probe` steps.
    pub(crate) fn id(&self, bucket: u64, probe: u64, remainder: u64) -> u64 {
        // Cannot overflow: there are fewer than 2^32 buckets.
        let back = (self.step(remainder) * probe + self.g(remainder)) % self.buckets;
        let hi = if bucket >= back { bucket - back } else { bucket + self.buckets - back };
        // Wraps because a torn read may pass arbitrary values; the caller discards the result.
        self.base.wrapping_add((hi << self.bits) | (remainder ^ self.f(hi)))
    }
}

fn is_prime(n: u64) -> bool {
    n >= 2 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d))
}

/// Returns the smallest prime that is at least `n`. For `n` below 2^32, the search tests about ten
/// odd numbers, each with at most 65,536 trial divisions.
pub(crate) fn prime_from(n: u64) -> u64 {
    (n..).find(|&n| is_prime(n)).unwrap_or(n)
}

/// Returns the largest prime that is at most `n`; 2 if there is no such prime.
pub(crate) fn prime_to(n: u64) -> u64 {
    (2..=n).rev().find(|&n| is_prime(n)).unwrap_or(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that knew the seed of a table could fill a single bucket. Under another seed the
    /// same ids spread evenly.
    #[test]
    fn ids_that_were_chosen_to_meet_do_so_under_their_seed_only() {
        let (buckets, bits) = (10_007, 30);
        let guessed = Keys::new(0, buckets, bits, 41);
        let mut rng = fastrand::Rng::with_seed(41);
        // All ids that hash to ten of the ten thousand buckets.
        let chosen: Vec<u64> =
            (0..10_000).map(|i| guessed.id(i % 10, 0, rng.u64(0..1 << bits))).collect();
        let fullest = |seed: u64, ids: &[u64]| {
            let keys = Keys::new(0, buckets, bits, seed);
            let mut load = vec![0u32; buckets as usize];
            ids.iter()
                .filter_map(|&id| keys.home(id))
                .for_each(|home| load[home.bucket as usize] += 1);
            load.into_iter().max().unwrap()
        };
        assert_eq!(fullest(41, &chosen), 1000);
        let random: Vec<u64> = (0..10_000).map(|_| rng.u64(0..=guessed.last())).collect();
        for seed in 42..if cfg!(miri) { 43 } else { 142 } {
            let (chosen, random) = (fullest(seed, &chosen), fullest(seed, &random));
            assert!(
                chosen <= 12 && random <= 12,
                "seed {seed}: {chosen} chosen ids in one bucket, {random} random ids"
            );
        }
    }

    #[test]
    fn every_id_comes_back_from_its_place() {
        let mut rng = fastrand::Rng::with_seed(1);
        for (base, buckets, bits) in [
            (0, 17, 60),
            (1 << 60, 17, 5),
            (5, 101, 16),
            (9, 4_000_000_007, 30),
            (u64::MAX - 9, 97, 20),
            (77, 65_537, 21),
        ] {
            let keys = Keys::new(base, buckets, bits, 99);
            let span = keys.last() - base;
            for i in 0..if cfg!(miri) { 50 } else { 20_000 } {
                let offset = match i {
                    0 => 0,
                    1 => span,
                    _ if span == u64::MAX => rng.u64(..),
                    _ => rng.u64(0..=span),
                };
                let id = base + offset;
                let home = keys.home(id).unwrap();
                assert!(home.bucket < buckets && home.remainder >> bits == 0);
                let (mut bucket, step) = (home.bucket, keys.step(home.remainder));
                for probe in 0..PROBES {
                    assert_eq!(
                        keys.id(bucket, probe, home.remainder),
                        id,
                        "base {base} probe {probe}"
                    );
                    bucket = keys.next(bucket, step);
                }
            }
            assert!(base == 0 || keys.home(base - 1).is_none());
            assert!(keys.last() == u64::MAX || keys.home(keys.last() + 1).is_none());
        }
        assert_eq!(Keys::new(0, 17, 60, 0).last(), u64::MAX, "a table can hold every id");
    }

    /// Returns the variance of the bucket loads divided by their mean: 1 for random ids (Poisson),
    /// 0 for a perfectly even distribution.
    fn unevenness(ids: impl Iterator<Item = u64>, keys: &Keys) -> f64 {
        let mut loads = vec![0u32; keys.buckets() as usize];
        let mut n = 0;
        for id in ids {
            loads[keys.home(id).unwrap().bucket as usize] += 1;
            n += 1;
        }
        let mean = f64::from(n) / loads.len() as f64;
        loads.iter().map(|&l| (f64::from(l) - mean).powi(2)).sum::<f64>()
            / loads.len() as f64
            / mean
    }

    // Ignored under Miri: the test is pure arithmetic, and slow there.
    #[cfg_attr(miri, ignore)]
    #[test]
    fn ids_as_they_come_spread_like_random_numbers() {
        let keys = Keys::new(0, prime_from(3000), 17, 7);
        let mut rng = fastrand::Rng::with_seed(2);
        let random: Vec<u64> = (0..90_000).map(|_| rng.u64(0..=keys.last())).collect();
        let seconds = (0..90u64).flat_map(|s| (0..1000).map(move |i| (s << 22) | i));
        for (name, measured) in [
            ("random", unevenness(random.into_iter(), &keys)),
            ("second << 22 | sequence", unevenness(seconds, &keys)),
            ("consecutive", unevenness(0..90_000, &keys)),
            ("every 4096th", unevenness((0..90_000).map(|i| i * 4096), &keys)),
            ("every 2^17th", unevenness((0..3000).map(|i| i << 17), &keys)),
        ] {
            assert!(measured < 1.25, "{name}: {measured}");
        }
    }

    #[test]
    fn primes() {
        assert_eq!([1, 2, 14, 90, 4_000_000_000].map(prime_from), [2, 2, 17, 97, 4_000_000_007]);
        assert_eq!(
            [0, 2, 3, 18, 96, 4_000_000_010].map(prime_to),
            [2, 2, 3, 17, 89, 4_000_000_009]
        );
    }
}
