//! Joining a table that was exported elsewhere into ours: two sites become one, or a replica is repaired from another.
//!
//! Filters of equal layout are or-ed: what either has is then found. A pair is set afterwards if it is set on either side; where one
//! side revoked it and the other still has it, it is set: a like that is lost is worse than one that comes back. A false yes of
//! the other side's filter can so bring back one revoked pair in 1 / rate.
//!
//! **M1** The error rate holds after a merge, too: when the union of two filters would be fuller than the rate allows, the merge is
//! refused before anything has changed. Filters of the same data, as in a repair, hardly grow.

use crate::Error;
use crate::codec::{StoredTable, block_sums};
use crate::filter::Filter;
use crate::sizing::uncertainty;
use crate::space::Space;
use crate::table::{Link, State, Table};
use std::sync::atomic::Ordering::Relaxed;

/// What `TM.DIGEST` shows of a table: where two tables have equal ranges, rates and pages, their blocks can be compared.
#[derive(Clone, Debug, PartialEq)]
pub struct TableDigest {
    /// Lowest id of the range.
    pub low: u64,
    /// Highest id of the range (inclusive).
    pub last: u64,
    /// The error rate that it is sized for.
    pub rate: f64,
    /// Pages of the first filter.
    pub pages: usize,
    /// Pairs that are revoked (their filter bits remain).
    pub revoked: usize,
    /// XXH3-64 of each 64 KiB of each filter of the chain, in order.
    pub blocks: Vec<u64>,
}

/// Why a table could not be merged. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// No table of ours covers its range.
    #[error("no table covers the ids {low}..={last}")]
    NoTable {
        /// Lowest id of the range.
        low: u64,
        /// Highest id of the range (inclusive).
        last: u64,
    },
    /// Our table of that range has another error rate or size.
    #[error("our table of that range has another error rate or another size")]
    OtherLayout,
    /// The union would be fuller than the error rate allows.
    #[error("the union would exceed the error rate")]
    Overfull,
    /// As for any write.
    #[error(transparent)]
    Refused(#[from] Error),
}

impl Space {
    /// The checksums of the table that begins at `low`. Takes 0.1 s per GiB, and no lock.
    pub fn digest(&self, low: u64) -> Option<TableDigest> {
        let ((low, last), table) = self.table_at(low)?;
        let (rate, pages, revoked) = (table.rate(), table.pages(), table.revoked.len());
        Some(TableDigest { low, last, rate, pages, revoked, blocks: block_sums(&table) })
    }

    /// Adds all pairs of `other` to our table of its range, while reads and writes go on. See the top of the file.
    pub fn merge_table(&self, other: StoredTable) -> Result<(), MergeError> {
        let (low, last) = other.range();
        let Some(((_, our_last), ours)) = self.table_over(low) else { return Err(MergeError::NoTable { low, last }) };
        if last > our_last {
            return Err(MergeError::NoTable { low, last });
        }
        let other = other.table;
        if ours.rate().to_bits() != other.rate().to_bits() || ours.pages() != other.pages() {
            return Err(MergeError::OtherLayout);
        }
        let mut counts = vec![];
        for (ours, theirs) in ours.links().zip(other.links()) {
            let pairs = union_pairs(&ours.filter, &theirs.filter);
            let allowed = ours.capacity().max(ours.pairs());
            if pairs > allowed + uncertainty(allowed) {
                return Err(MergeError::Overfull);
            }
            counts.push(pairs);
        }
        let more: u64 = other.links().skip(counts.len()).map(|link| link.filter.size_bytes() as u64).sum();
        if !self.may_grow(more as usize) {
            return Err(Error::Full.into());
        }
        if ours.revoked.len() + other.revoked.len() > self.options().max_revoked {
            return Err(Error::RevokedFull.into());
        }

        // Revoked there, unknown here: revoked before its bits come. Each pair under its stripe, as every write is.
        let mut refused = Ok(());
        other.revoked.for_each(|hash| {
            let pair = crate::Pair::from_hash(low, hash);
            self.under_stripe(&pair, |table| {
                if table.state(&pair) == State::Unset && !table.revoked.contains(hash) {
                    if table.revoked.reserve(self.options().max_revoked) {
                        table.revoked.insert_reserved(hash);
                    } else {
                        refused = Err(Error::RevokedFull);
                    }
                }
            });
        });
        refused?;
        // Revoked here, set there: set.
        ours.revoked.for_each(|hash| {
            let pair = crate::Pair::from_hash(low, hash);
            if other.state(&pair) == State::Set {
                self.under_stripe(&pair, |table| table.revoked.remove(hash));
            }
        });
        let links = other.into_links();
        for (i, theirs) in links.into_iter().enumerate() {
            match ours.link(i) {
                Some(link) => {
                    link.filter.or(&theirs.filter);
                    link.pairs.fetch_max(counts.get(i).copied().unwrap_or_else(|| theirs.pairs()), Relaxed);
                }
                None => ours.adopt(i, theirs),
            }
        }
        ours.touch();
        Ok(())
    }
}

/// How many pairs the union of two filters of equal layout stands for.
fn union_pairs(ours: &Filter, theirs: &Filter) -> u64 {
    let ones = ours.words().iter().zip(theirs.words());
    let ones = ones.map(|(a, b)| u64::from((a.load(Relaxed) | b.load(Relaxed)).count_ones())).sum();
    ours.sizing().pairs_of(ones, ours.pages())
}

impl Table {
    fn into_links(self) -> Vec<Link> {
        let (first, more) = self.take_apart();
        std::iter::once(first).chain(more).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, Change, Member, Options, TableDecoder};

    fn site() -> Space {
        let options =
            Options { false_positive_rate: 0.001, pairs_per_table: 20_000 * 8, seed: 4, ..Options::default() };
        let space = Space::new(options).unwrap();
        for id in 0..100 {
            space.add(id, &Member::Number(0)).unwrap();
        }
        assert_eq!(space.aside_pairs(), 0);
        space
    }

    fn export(space: &Space, low: u64) -> StoredTable {
        let mut decoder = TableDecoder::new(space.options(), 1 << 30);
        assert!(space.encode_table(low, |piece| decoder.feed(piece)).unwrap());
        decoder.finish().unwrap()
    }

    fn add(space: &Space, members: std::ops::Range<u64>) {
        members.for_each(|m| assert_ne!(space.add(m % 50, &Member::Number(m)).unwrap(), Change::Unknown));
    }

    fn answer(space: &Space, member: u64) -> Answer {
        space.contains(member % 50, &Member::Number(member))
    }

    #[test]
    fn what_either_site_had_is_found_and_revoked_where_none_has_it() {
        let (here, there) = (site(), site());
        add(&here, 1..5000);
        add(&there, 4000..9000);
        let revoke = |space: &Space, member: u64| space.remove(member % 50, &Member::Number(member)).unwrap();
        // Here only; there only; on both; on both, but revoked on one.
        for (space, member) in
            [(&here, 100), (&there, 8000), (&here, 4500), (&there, 4500), (&here, 4600), (&there, 4700)]
        {
            assert_eq!(revoke(space, member), Change::Changed);
        }
        assert_ne!(here.digest(0), there.digest(0));
        here.merge_table(export(&there, 0)).unwrap();
        for member in 1..9000 {
            let expected = if [100, 8000, 4500].contains(&member) { Answer::No } else { Answer::Yes };
            assert_eq!(answer(&here, member), expected, "{member}");
        }
        let pairs = here.tables()[0].pairs as f64;
        assert!((pairs / 9100.0 - 1.0).abs() < 0.05, "{pairs}");
        // Both ways: now they are one.
        there.merge_table(export(&here, 0)).unwrap();
        assert_eq!(there.digest(0).unwrap().blocks, here.digest(0).unwrap().blocks);
        // Liked again after it came revoked.
        assert_eq!(here.add(8000 % 50, &Member::Number(8000)).unwrap(), Change::Changed);
        assert_eq!(answer(&here, 8000), Answer::Yes);
    }

    #[test]
    fn an_overrun_table_brings_its_extensions() {
        let (here, there) = (site(), site());
        there.roll_now();
        here.roll_now();
        add(&here, 1..1000);
        add(&there, 1..60_000);
        assert!(there.tables()[0].extensions >= 2);
        here.merge_table(export(&there, 0)).unwrap();
        (1..60_000).for_each(|member| assert_eq!(answer(&here, member), Answer::Yes));
        assert_eq!(there.tables()[0].extensions, here.tables()[0].extensions);
        add(&here, 60_000..61_000);
        (1..61_000).for_each(|member| assert_eq!(answer(&here, member), Answer::Yes));
    }

    #[test]
    fn a_union_that_would_break_the_rate_is_refused_whole() {
        let (here, there) = (site(), site());
        here.roll_now();
        there.roll_now();
        add(&here, 1..15_000);
        add(&there, 15_000..30_000);
        let before = here.digest(0);
        assert!(matches!(here.merge_table(export(&there, 0)), Err(MergeError::Overfull)));
        assert_eq!(here.digest(0), before);
    }

    #[test]
    fn tables_that_do_not_match_are_refused() {
        let here = site();
        here.roll_now();
        here.roll_now();
        let newest = export(&site(), 0);
        assert!(matches!(here.merge_table(newest), Err(MergeError::NoTable { low: 0, .. })));
        let options = Options { pairs_per_table: 5000 * 8, ..here.options().clone() };
        let other = Space::new(options).unwrap();
        for id in 0..100 {
            other.add(id, &Member::Number(0)).unwrap();
        }
        other.roll_now();
        assert!(matches!(here.merge_table(export(&other, 0)), Err(MergeError::OtherLayout)));
        assert!(here.digest(7).is_none());
    }
}
