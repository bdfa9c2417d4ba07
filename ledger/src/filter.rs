//! Bloom filter of an upper run. Lookups skip runs that do not contain the pair.
//!
//! The filter is a blocked Bloom filter (Putze, Sanders, Singler, "Cache-, hash- and
//! space-efficient Bloom filters", WEA 2007) with five bits per pair. The three probes of a pair
//! are in one 64-byte cache line. The false-positive rate is about 10 %.

const LINE_BYTES: usize = 64;
const BITS_PER_PAIR: usize = 5;
const PROBES: u32 = 3;

#[derive(Debug)]
pub(crate) struct Filter {
    lines: Box<[[u8; LINE_BYTES]]>,
}

fn line_of(hash: u64, lines: usize) -> usize {
    ((u128::from(hash) * lines as u128) >> 64) as usize
}

/// Returns the byte index and bit mask of each probe in its cache line. Each probe uses nine bits
/// of the mixed hash.
fn probes(hash: u64) -> impl Iterator<Item = (usize, u8)> {
    let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bits = (0..PROBES).map(move |probe| (mixed >> (64 - 9 * (probe + 1))) as usize & 511);
    bits.map(|bit| (bit / 8, 1 << (bit % 8)))
}

impl Filter {
    pub(crate) fn of(hashes: &[u64]) -> Filter {
        let lines = (hashes.len() * BITS_PER_PAIR).div_ceil(LINE_BYTES * 8).max(1);
        let mut lines = vec![[0; LINE_BYTES]; lines].into_boxed_slice();
        for &hash in hashes {
            let line = &mut lines[line_of(hash, lines.len())];
            probes(hash).for_each(|(byte, bit)| line[byte] |= bit);
        }
        Filter { lines }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Filter, &'static str> {
        match bytes.as_chunks() {
            (lines, []) if !lines.is_empty() => Ok(Filter { lines: lines.into() }),
            _ => Err("invalid length of the filter"),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.lines.as_flattened()
    }

    pub(crate) fn may_hold(&self, hash: u64) -> bool {
        let line = &self.lines[line_of(hash, self.lines.len())];
        probes(hash).all(|(byte, bit)| line[byte] & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_has_all_pairs_and_few_others() {
        let mut random = fastrand::Rng::with_seed(1);
        let hashes: Vec<u64> = (0..100_000).map(|_| random.u64(..)).collect();
        let filter = Filter::of(&hashes);
        let filter = Filter::decode(filter.bytes()).unwrap();
        assert!(hashes.iter().all(|&hash| filter.may_hold(hash)));
        let wrong = (0..100_000).filter(|_| filter.may_hold(random.u64(..))).count();
        assert!((7_000..13_000).contains(&wrong), "{wrong} of 100,000");
        assert!(Filter::decode(&[]).is_err() && Filter::decode(&[0; 63]).is_err());
    }
}
