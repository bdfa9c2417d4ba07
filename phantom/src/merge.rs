//! Joining a table of another site into ours, block by block: two sites become one, or a replica is repaired from another.
//!
//! A block is 64 KiB of one filter of a table's chain, with the revoked pairs whose bits lie in it. As no pair's bits leave a page, a block says
//! all there is to say of its pairs. [`Space::digest`] has a checksum of each, so only those that differ need to be moved; whoever moves them
//! needs memory for one at a time.
//!
//! ```text
//!   block  offset  size  field
//!               0     8  magic "TMPHBLK" 01
//!               8     8  error rate (f64)           16  8  fingerprint of the seed
//!              24     8  lowest id                  32  8  highest id of the table (inclusive)
//!              40     8  no pair has a higher id    48  8  pages of the first filter
//!              56     4  filter of the chain        60  4  block of the filter
//!              64     4  revoked pairs              68  4  0
//!              72        the words, 64 KiB (the last block of a filter may be shorter)
//!                        the revoked pairs' hashes, 16 bytes each
//!                     8  XXH3-64 of all before
//! ```
//!
//! Filters of equal layout are or-ed: what either has is then found. A pair is set afterwards if it is set on either side; where one
//! side revoked it and the other still has it, it is set: a like that is lost is worse than one that comes back. A false yes of
//! the other side's filter can so bring back one revoked pair in 1 / rate.
//!
//! Nothing that a stranger sends is believed, as in `codec`: the sizes of everything are those of *our* table, with which the header has to agree.
//!
//! **M1** The error rate holds after a merge, too: a block that would give its filter more pairs than the rate allows is refused, and
//! changes nothing; those before it have been merged. Filters of the same data, as in a repair, hardly grow. As bits that were put where they do the most
//! harm count for few pairs, the rate of the block itself, which its bits tell exactly, is held against the configured one, too: with the
//! slack that chance needs a stranger can bring 16 pages to 1.6 times the rate, not to an answer of yes to everything.
//!
//! **M2** A table is never closed below a pair that it got from another site: its ids count as normal before its bits come. A bad one makes no more
//! of that than a bad id (promise 7): if it lies further ahead than the window of the frontier, the block is refused.

use crate::codec::{BLOCK_WORDS, block_sums, u64_at};
use crate::filter::Filter;
use crate::hash::Pair;
use crate::sizing::{LINE_BITS, LINES, PAGE_WORDS, uncertainty};
use crate::space::Space;
use crate::table::{LINKS, State, Table};
use crate::{DecodeError, Error};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"TMPHBLK\x01";
const HEADER: usize = 72;
const CHECK: usize = 8;

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
    /// A checksum of each 64 KiB of each filter of the chain, in order, with the pairs that are revoked there.
    pub blocks: Vec<u64>,
}

/// Why a block could not be merged. It has changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// The bytes are no block.
    #[error(transparent)]
    Undecodable(#[from] DecodeError),
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
    /// Its ids reach so far above ours that one alone would be kept aside.
    #[error(
        "its ids reach up to {highest}, far ahead of ours, which end at {ours}: merge it when there are such ids here"
    )]
    FarAhead {
        /// The highest that a pair of it may have.
        highest: u64,
        /// The highest that counts as normal here.
        ours: u64,
    },
    /// The union would be fuller than the error rate allows.
    #[error("the union would exceed the error rate")]
    Overfull,
    /// As for any write.
    #[error(transparent)]
    Refused(#[from] Error),
}

/// Where a block belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockPlace {
    /// An id of the table that it belongs to: the lowest.
    pub low: u64,
    /// Filter of the table's chain.
    pub link: usize,
    /// Number of the block in its filter.
    pub block: usize,
}

/// A block of another site's table that fits one of ours: for [`Space::merge_block`].
pub struct Block {
    place: BlockPlace,
    /// No pair of it has a higher id.
    highest: u64,
    words: Vec<u64>,
    /// Sorted.
    revoked: Vec<u128>,
}

impl Block {
    /// Where it belongs.
    pub fn place(&self) -> BlockPlace {
        self.place
    }
}

/// Words of block number `block` of a filter of so many pages; none if there is no such block.
fn range_of(pages: usize, block: usize) -> std::ops::Range<usize> {
    let words = pages.saturating_mul(PAGE_WORDS);
    let start = block.saturating_mul(BLOCK_WORDS).min(words);
    start..(start + BLOCK_WORDS).min(words)
}

/// The block of `filter` in which the bits of the pair lie.
pub(crate) fn block_of(filter: &Filter, pair: &Pair) -> usize {
    filter.page(pair) / BLOCK_WORDS
}

impl Space {
    /// The checksums of the table that begins at `low`. Takes 0.1 s per GiB, and no lock.
    pub fn digest(&self, low: u64) -> Option<TableDigest> {
        let ((low, last), table) = self.table_at(low)?;
        let (rate, pages, revoked) = (table.rate(), table.pages(), table.revoked.len());
        Some(TableDigest { low, last, rate, pages, revoked, blocks: block_sums(&table) })
    }

    /// The blocks with these numbers, in the order of [`TableDigest::blocks`], of the table that begins at `low`, one after the other.
    /// `false`: there is no such table. Numbers that there are not are left out.
    pub fn export_blocks<E>(
        &self,
        low: u64,
        numbers: &[usize],
        mut sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let Some(((low, last), table)) = self.table_at(low) else { return Ok(false) };
        // All filters' blocks in a row: number of the first, and the filter.
        let mut firsts = vec![];
        let mut first = 0;
        for (i, link) in table.links().enumerate() {
            firsts.push((first, i, link));
            first += link.filter.words().len().div_ceil(BLOCK_WORDS);
        }
        let mut revoked: HashMap<usize, Vec<u128>> = numbers.iter().map(|&number| (number, vec![])).collect();
        table.revoked.for_each(|hash| {
            for (first, _, link) in &firsts {
                let number = first + block_of(&link.filter, &Pair::from_hash(low, hash));
                revoked.entry(number).and_modify(|hashes| hashes.push(hash));
            }
        });
        let mut bytes = vec![];
        for &number in numbers.iter().filter(|&&number| number < first) {
            let Some(&(first, link, filter)) = firsts.iter().rev().find(|(first, ..)| *first <= number) else {
                continue;
            };
            let (block, filter) = (number - first, &filter.filter);
            let hashes = &revoked[&number];
            bytes.clear();
            bytes.extend_from_slice(MAGIC);
            let highest = self.highest_in((low, last));
            for field in [table.rate().to_bits(), self.seed.fingerprint(), low, last, highest, table.pages() as u64] {
                bytes.extend_from_slice(&field.to_le_bytes());
            }
            for field in [link as u32, block as u32, hashes.len() as u32, 0] {
                bytes.extend_from_slice(&field.to_le_bytes());
            }
            let words = &filter.words()[range_of(filter.pages(), block)];
            words.iter().for_each(|word| bytes.extend_from_slice(&word.load(Relaxed).to_le_bytes()));
            hashes.iter().for_each(|hash| bytes.extend_from_slice(&hash.to_le_bytes()));
            bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
            sink(&bytes)?;
        }
        Ok(true)
    }

    /// Takes the next block off `bytes`. What it claims to be has to fit one of our tables.
    pub fn read_block(&self, bytes: &mut &[u8]) -> Result<Block, MergeError> {
        self.read_block_as(bytes, true)
    }

    pub(crate) fn read_block_as(&self, bytes: &mut &[u8], verify: bool) -> Result<Block, MergeError> {
        let corrupt = |offset: usize, what| DecodeError::Corrupt { offset: offset as u64, what };
        if bytes.len() < HEADER {
            return Err(corrupt(bytes.len(), "the end, too early").into());
        }
        if bytes[..8] != MAGIC[..] {
            return Err(corrupt(0, "no block of version 1").into());
        }
        if u64_at(bytes, 16) != self.seed.fingerprint() {
            return Err(DecodeError::OtherSeed.into());
        }
        let (low, last) = (u64_at(bytes, 24), u64_at(bytes, 32));
        let halves = |at: usize| (u64_at(bytes, at) as u32 as usize, (u64_at(bytes, at) >> 32) as usize);
        let highest = u64_at(bytes, 40);
        let ((link, block), (revoked, zero)) = (halves(56), halves(64));
        let ours = self.table_over(low).filter(|((_, our_last), _)| (low..=*our_last).contains(&last));
        let Some(((our_low, _), ours)) = ours else { return Err(MergeError::NoTable { low, last }) };
        if ours.rate().to_bits() != u64_at(bytes, 8) || ours.pages() as u64 != u64_at(bytes, 48) {
            return Err(MergeError::OtherLayout);
        }
        if !(low..=last).contains(&highest) {
            return Err(corrupt(40, "a highest id that is none of the table's").into());
        }
        // Filters come in order, so that no stranger makes a chain longer than his own.
        if link > ours.links().count() || link >= LINKS {
            return Err(corrupt(56, "a filter of the chain that has no predecessor").into());
        }
        let (_, pages) = Table::geometry(ours.rate(), ours.pages(), link);
        let words = range_of(pages, block).len();
        if words == 0 || zero != 0 {
            return Err(corrupt(60, "a block that its filter has not").into());
        }
        if revoked > self.options().max_revoked {
            return Err(Error::RevokedFull.into());
        }
        let size = HEADER + words * 8 + revoked * 16 + CHECK;
        let Some((whole, rest)) = bytes.split_at_checked(size) else {
            return Err(corrupt(bytes.len(), "the end, too early").into());
        };
        let (body, check) = whole.split_at(size - CHECK);
        if verify && xxh3_64(body).to_le_bytes() != check {
            return Err(corrupt(0, "a checksum that does not match").into());
        }
        *bytes = rest;
        let (words, hashes) = body[HEADER..].split_at(words * 8);
        let mut revoked: Vec<u128> = hashes.as_chunks().0.iter().map(|hash| u128::from_le_bytes(*hash)).collect();
        revoked.sort_unstable();
        Ok(Block {
            place: BlockPlace { low: our_low, link, block },
            highest,
            words: words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect(),
            revoked,
        })
    }

    /// Adds all pairs of a block to our table, while reads go on; writes, too, for most of the time: `enter` is called before the change, and what it
    /// gives is kept until the end, and returned. With it come the hashes of pairs that were revoked, or are not any more, by this: a log has to hold
    /// them besides the block itself.
    pub fn merge_block<G>(&self, theirs: &Block, enter: impl FnOnce() -> G) -> Result<(G, Vec<u128>), MergeError> {
        let BlockPlace { low, link, block } = theirs.place;
        let Some((range, table)) = self.table_at(low) else { return Err(MergeError::NoTable { low, last: low }) };
        let link = table.extend_to(link, |bytes| self.may_grow(bytes))?;
        let words = range_of(link.filter.pages(), block);
        let added = added(&link.filter, words.clone(), &theirs.words);
        if added > 0 {
            let pages = words.len() / PAGE_WORDS;
            let (pairs, capacity) = (link.pairs() + added, link.capacity());
            let allowed = link.filter.sizing().rate(capacity, link.filter.pages()) * slack(pages);
            if pairs > capacity + uncertainty(capacity)
                || union_rate(&link.filter, words.clone(), &theirs.words) > allowed
            {
                return Err(MergeError::Overfull);
            }
        }
        // Revoked here, set there. All revoked pairs are looked at for this, which takes its time.
        let mut liked = vec![];
        table.revoked.for_each(|hash| {
            let pair = Pair::from_hash(range.0, hash);
            if block_of(&link.filter, &pair) == block
                && link.filter.contains_in(&pair, &theirs.words, words.start)
                && theirs.revoked.binary_search(&hash).is_err()
            {
                liked.push(hash);
            }
        });
        let entered = enter();
        self.reach(low, theirs.highest)?;
        let mut changed = vec![];
        // Revoked there, unknown here: revoked before its bits come. Each pair under its stripe, as every write is.
        for &hash in &theirs.revoked {
            let pair = Pair::from_hash(range.0, hash);
            if block_of(&link.filter, &pair) != block {
                continue;
            }
            let has_room = self.under_stripe(&pair, |table| {
                if table.state(&pair) != State::Unset || table.revoked.contains(hash) {
                    return true;
                }
                let has_room = table.revoked.reserve(self.options().max_revoked);
                if has_room {
                    table.revoked.insert_reserved(hash);
                    changed.push(hash);
                }
                has_room
            });
            if has_room == Some(false) {
                self.take_back(range.0, &changed);
                return Err(Error::RevokedFull.into());
            }
        }
        for hash in liked {
            self.under_stripe(&Pair::from_hash(range.0, hash), |table| table.revoked.remove(hash));
            changed.push(hash);
        }
        link.filter.or(words, &theirs.words);
        link.pairs.fetch_add(added, Relaxed);
        table.touch();
        Ok((entered, changed))
    }

    /// Of these pairs, those that were revoked before they were set and are not set yet are not revoked any more.
    fn take_back(&self, low: u64, hashes: &[u128]) {
        for &hash in hashes {
            let pair = Pair::from_hash(low, hash);
            self.under_stripe(&pair, |table| table.state(&pair) == State::Unset && table.revoked.remove(hash));
        }
    }

    /// The highest id that a pair of the table with this range can have.
    fn highest_in(&self, (low, last): (u64, u64)) -> u64 {
        self.frontier.high().unwrap_or(0).clamp(low, last)
    }

    /// From now on ids up to `highest` are normal, so that the table at `low`, which covers them, is not closed below them (M2).
    fn reach(&self, low: u64, highest: u64) -> Result<(), MergeError> {
        if let Some(ours) = self.frontier.high() {
            if self.frontier.is_too_far(highest, None) {
                return Err(Error::KeyTooBig.into());
            }
            // Where there is no id yet, the first ones decide, wherever they lie.
            if highest.saturating_sub(ours) > self.frontier.window() {
                return Err(MergeError::FarAhead { highest, ours });
            }
        }
        // Among the table's writers: a roll sees the new frontier, or its boundary is seen here.
        let last = self.ring.write(low, 0, |entry| {
            self.frontier.adopt(Some(highest), 0);
            entry.slot().last()
        });
        match last {
            Some(last) if last >= highest => Ok(()),
            _ => Err(MergeError::NoTable { low, last: highest }),
        }
    }

    /// A block as it is now, for a log: the highest id that a pair of it can have, the pages of its table's first filter, its words. `None`: there is none
    /// any more.
    pub fn block_state(&self, place: BlockPlace) -> Option<Vec<u8>> {
        let (range, table) = self.table_at(place.low)?;
        let filter = &table.link(place.link)?.filter;
        let words = filter.words().get(range_of(filter.pages(), place.block))?;
        let words = words.iter().map(|word| word.load(Relaxed));
        Some(
            [self.highest_in(range), table.pages() as u64]
                .into_iter()
                .chain(words)
                .flat_map(u64::to_le_bytes)
                .collect(),
        )
    }

    /// Makes true what [`Space::block_state`] said of a block: its bits are set. What was revoked there is told apart. Bounds do not hold here, what was
    /// accepted once is accepted again; a table that was recycled needs it no more. Where tables begin higher than they did ([`Space::put_layout`]) it goes
    /// to the one that has its ids now.
    pub fn put_block(&self, place: BlockPlace, bytes: &[u8]) -> Result<(), String> {
        let BlockPlace { low, link, block } = place;
        let Some(((_, last), table)) = self.table_over(low) else { return Ok(()) };
        if link >= LINKS {
            return Err(format!("a block of filter {link} of a chain"));
        }
        let mut numbers = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let (highest, first_pages) = (numbers.next().unwrap_or(low), numbers.next().unwrap_or(0));
        let (_, pages) = Table::geometry(table.rate(), table.pages(), link);
        let words = range_of(pages, block);
        if first_pages != table.pages() as u64 || words.is_empty() || bytes.len() != words.len() * 8 + 16 {
            let (size, ours) = (bytes.len(), table.pages());
            return Err(format!(
                "{size} bytes for block {block} of filter {link} of a table of {first_pages} pages; ours has {ours}"
            ));
        }
        let link = table.extend_to(link, |_| true).map_err(|e| e.to_string())?;
        let theirs: Vec<u64> = numbers.collect();
        let added = added(&link.filter, words.clone(), &theirs);
        self.frontier.adopt(Some(highest.clamp(low, last)), 0);
        link.filter.or(words, &theirs);
        link.pairs.fetch_add(added, Relaxed);
        table.touch();
        Ok(())
    }
}

/// How many pairs the union of a range of a filter with `theirs` stands for, beyond those that were there.
fn added(filter: &Filter, range: std::ops::Range<usize>, theirs: &[u64]) -> u64 {
    let pages = range.len() / PAGE_WORDS;
    let (mut before, mut after) = (0, 0);
    for (ours, theirs) in filter.words()[range].iter().zip(theirs) {
        let ours = ours.load(Relaxed);
        before += u64::from(ours.count_ones());
        after += u64::from((ours | theirs).count_ones());
    }
    if after == before {
        return 0;
    }
    filter.sizing().pairs_of(after, pages) - filter.sizing().pairs_of(before, pages)
}

/// The chance that a pair which is not set is answered with yes, if it belongs to this range of the union with `theirs`: by the bits that are set
/// there, exactly, whatever set them.
fn union_rate(filter: &Filter, range: std::ops::Range<usize>, theirs: &[u64]) -> f64 {
    let pages = range.len() / PAGE_WORDS;
    let words = filter.words()[range].iter().zip(theirs).map(|(ours, theirs)| ours.load(Relaxed) | theirs);
    let ones: Vec<u32> = words.map(u64::count_ones).collect();
    // A pair has two different lines of a page; all its bits in a line are set with the chance C(ones, h) / C(512, h).
    let page_rate = |page: &[u32]| {
        let (mut sum, mut squares) = (0.0, 0.0);
        for line in page.chunks(LINE_BITS / 64) {
            let ones = line.iter().sum::<u32>() as f64;
            let bits = 0..filter.sizing().bits;
            let covered: f64 = bits.map(|i| (ones - i as f64).max(0.0) / (LINE_BITS - i) as f64).product();
            sum += covered;
            squares += covered * covered;
        }
        (sum * sum - squares) / (LINES * (LINES - 1)) as f64
    };
    ones.chunks(PAGE_WORDS).map(page_rate).sum::<f64>() / pages as f64
}

/// By how much the rate of so few pages may exceed that of the whole filter by chance: pages differ in their pairs by 2.5 %, and in their rate by ten
/// to sixteen times that.
fn slack(pages: usize) -> f64 {
    1.0 + 2.5 / (pages as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, Change, Member, Options};

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

    /// The blocks that differ, or all that one has more; in one string.
    fn differing(here: &Space, there: &Space, low: u64) -> Vec<u8> {
        let (ours, theirs) = (here.digest(low).unwrap().blocks, there.digest(low).unwrap().blocks);
        let differ = (0..theirs.len()).filter(|&i| ours.get(i) != Some(&theirs[i])).collect::<Vec<_>>();
        let mut bytes = vec![];
        let sink = |block: &[u8]| {
            bytes.extend_from_slice(block);
            Ok::<(), ()>(())
        };
        assert!(there.export_blocks(low, &differ, sink).unwrap());
        bytes
    }

    fn merge(here: &Space, mut bytes: &[u8]) -> Result<usize, MergeError> {
        let mut blocks = 0;
        while !bytes.is_empty() {
            here.merge_block(&here.read_block(&mut bytes)?, || ())?;
            blocks += 1;
        }
        Ok(blocks)
    }

    /// What a log holds of a merge, told to a space that has not seen it, and told twice.
    fn replayed(here: &Space, replica: &Space, mut bytes: &[u8]) {
        let mut places = vec![];
        let mut changed = vec![];
        while !bytes.is_empty() {
            let block = here.read_block(&mut bytes).unwrap();
            changed.extend(here.merge_block(&block, || ()).unwrap().1);
            places.push(block.place());
        }
        for _ in 0..2 {
            places.iter().for_each(|&place| replica.put_block(place, &here.block_state(place).unwrap()).unwrap());
            for &hash in &changed {
                let pair = Pair::from_hash(0, hash);
                replica.put(&pair, here.contains_pair(&pair) == Answer::Yes).unwrap();
            }
        }
    }

    fn add(space: &Space, members: std::ops::Range<u64>) {
        members.for_each(|m| assert_ne!(space.add(m % 50, &Member::Number(m)).unwrap(), Change::Unknown));
    }

    fn answer(space: &Space, member: u64) -> Answer {
        space.contains(member % 50, &Member::Number(member))
    }

    #[test]
    fn what_either_site_had_is_found_and_revoked_where_none_has_it() {
        let (here, there, replica) = (site(), site(), site());
        add(&here, 1..5000);
        add(&there, 4000..9000);
        let revoke = |space: &Space, member: u64| space.remove(member % 50, &Member::Number(member)).unwrap();
        // Here only; there only; on both; on both, but revoked on one.
        for (space, member) in
            [(&here, 100), (&there, 8000), (&here, 4500), (&there, 4500), (&here, 4600), (&there, 4700)]
        {
            assert_eq!(revoke(space, member), Change::Changed);
        }
        add(&replica, 1..5000);
        [100, 4500, 4600].into_iter().for_each(|member| assert_eq!(revoke(&replica, member), Change::Changed));
        assert_ne!(here.digest(0), there.digest(0));
        replayed(&here, &replica, &differing(&here, &there, 0));
        for space in [&here, &replica] {
            for member in 1..9000 {
                let expected = if [100, 8000, 4500].contains(&member) { Answer::No } else { Answer::Yes };
                assert_eq!(answer(space, member), expected, "{member}");
            }
        }
        assert_eq!(here.digest(0), replica.digest(0));
        let pairs = here.tables()[0].pairs as f64;
        assert!((pairs / 9100.0 - 1.0).abs() < 0.05, "{pairs}");
        // Both ways: now they are one.
        merge(&there, &differing(&there, &here, 0)).unwrap();
        assert_eq!(there.digest(0).unwrap().blocks, here.digest(0).unwrap().blocks);
        assert_eq!(merge(&here, &differing(&here, &there, 0)).unwrap(), 0, "nothing differs any more");
        // One unlike makes one block of the table differ, and no more is moved.
        assert_eq!(revoke(&there, 77), Change::Changed);
        assert_eq!(merge(&here, &differing(&here, &there, 0)).unwrap(), 1);
        assert_eq!(answer(&here, 77), Answer::Yes, "set on one side is set");
        // Liked again after it came revoked.
        assert_eq!(here.add(8000 % 50, &Member::Number(8000)).unwrap(), Change::Changed);
        assert_eq!(answer(&here, 8000), Answer::Yes);
    }

    /// M2: sites are never equally far, and one of them may have nothing. What comes with ids above ours stays found when the table is closed, and can be
    /// unliked.
    #[test]
    fn ids_above_ours_stay_in_their_table_when_it_is_closed() {
        let (there, empty) = (site(), Space::new(site().options().clone()).unwrap());
        (100..800).for_each(|id| assert_eq!(there.add(id, &Member::Number(1)).unwrap(), Change::Changed));
        assert_eq!(there.remove(700, &Member::Number(1)).unwrap(), Change::Changed);
        for here in [site(), empty] {
            // What was aside, as an id that is ahead, is no more.
            here.add(799, &Member::Number(3)).unwrap();
            let replica = Space::new(here.options().clone()).unwrap();
            replayed(&here, &replica, &differing(&here, &there, 0));
            while here.maintain() {}
            assert_eq!(here.aside_pairs(), 0);
            for space in [&here, &replica] {
                assert_eq!(
                    (space.remove(300, &Member::Number(1)).unwrap(), space.highest_id()),
                    (Change::Changed, Some(799))
                );
                space.add(790, &Member::Number(2)).unwrap();
                assert!(space.roll_now());
                assert_eq!(space.tables()[0].last, 799);
                for id in 100..800 {
                    let expected = if [300, 700].contains(&id) { Answer::No } else { Answer::Yes };
                    assert_eq!(space.contains(id, &Member::Number(1)), expected, "{id}");
                }
                assert_eq!(space.contains(790, &Member::Number(2)), Answer::Yes);
            }
            assert_eq!(here.contains(799, &Member::Number(3)), Answer::Yes);
        }
    }

    /// A log is told to a space that takes ids for normal which were not when they came, so that a table begins higher there.
    #[test]
    fn a_block_finds_its_table_where_tables_begin_higher() {
        let (here, there, replica) = (site(), site(), site());
        let set = |space: &Space, ids: std::ops::Range<u64>, member: u64| {
            ids.for_each(|id| assert_ne!(space.add(id, &Member::Number(member)).unwrap(), Change::Unknown));
        };
        for space in [&here, &there] {
            for low in (100..600).step_by(100) {
                set(space, low..low + 100, 0);
                assert!(space.roll_now());
            }
        }
        let (low, pages) = (here.layout()[4].low, here.layout()[4].pages);
        assert_eq!((low, here.layout()[3].pages, there.layout()), (500, pages, here.layout()));
        set(&there, low..low + 100, 1);
        for tables in 2..=4 {
            let boundary = here.layout()[tables - 1].low;
            set(&replica, boundary - 100..boundary, 0);
            replica.put_layout(&here.layout()[..tables]).unwrap();
        }
        // It has seen ids above `low` before it is told that a table begins there.
        set(&replica, low - 100..low + 50, 0);
        replica.put_layout(&here.layout()).unwrap();
        assert!(replica.layout()[4].low > low);
        replayed(&here, &replica, &differing(&here, &there, low));
        for id in low..low + 50 {
            assert_eq!(replica.contains(id, &Member::Number(1)), Answer::Yes, "{id}");
        }
        // Of a table of another size its bits say nothing.
        let place = BlockPlace { low, link: 0, block: 0 };
        let state = here.block_state(place).unwrap();
        let error = site().put_block(place, &state).unwrap_err();
        assert!(error.contains("pages; ours has"), "{error}");
    }

    /// Promise 7: a block moves the frontier no further than an id does.
    #[test]
    fn a_block_of_ids_far_ahead_is_refused_until_there_are_such_ids() {
        let (here, there) = (site(), site());
        for id in (0..200).map(|i| 50_000 + i) {
            there.add(id, &Member::Number(1)).unwrap();
        }
        while there.maintain() {}
        assert_eq!((there.highest_id(), there.aside_pairs()), (Some(50_199), 0));
        let blocks = differing(&here, &there, 0);
        let before = here.digest(0);
        let merged = merge(&here, &blocks);
        assert!(matches!(merged, Err(MergeError::FarAhead { highest: 50_199, ours: 99 })), "{merged:?}");
        assert_eq!((here.digest(0), here.highest_id()), (before, Some(99)));
        let limited = Space::new(Options { max_ahead: Some(40_000), ..here.options().clone() }).unwrap();
        for id in 0..100 {
            limited.add(id, &Member::Number(0)).unwrap();
        }
        assert!(matches!(merge(&limited, &blocks), Err(MergeError::Refused(Error::KeyTooBig))));
        for id in (0..200).map(|i| 50_000 + i) {
            here.add(id, &Member::Number(2)).unwrap();
        }
        assert!(merge(&here, &blocks).unwrap() > 0);
        assert_eq!(here.contains(50_100, &Member::Number(1)), Answer::Yes);
    }

    #[test]
    fn an_overrun_table_brings_its_extensions() {
        let (here, there) = (site(), site());
        there.roll_now();
        here.roll_now();
        add(&here, 1..1000);
        add(&there, 1..60_000);
        assert!(there.tables()[0].extensions >= 2);
        merge(&here, &differing(&here, &there, 0)).unwrap();
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
        let merged = merge(&here, &differing(&here, &there, 0));
        assert!(matches!(merged, Err(MergeError::Overfull)));
        let tables = here.tables_probed(100_000);
        assert!(tables[0].measured_rate < 0.0015, "what came before the refusal is within the rate: {tables:?}");
        assert!((1..15_000).all(|member| answer(&here, member) == Answer::Yes));
    }

    /// Few pairs' worth of bits, where they answer much with yes.
    #[test]
    fn bits_that_no_pairs_have_set_are_refused() {
        let (here, there) = (site(), site());
        add(&there, 1..2000);
        let honest = differing(&here, &there, 0);
        let mut blocks = &honest[..];
        let block = here.read_block(&mut blocks).unwrap();
        let before = here.digest(0);
        // Whole lines, most of every second line, whole pages.
        let shapes: [fn(usize) -> u64; 3] = [
            |word| if word / 8 % 4 == 0 { u64::MAX } else { 0 },
            |word| if word % 8 < 6 && word / 8 % 2 == 0 { u64::MAX } else { 0 },
            |word| if word / PAGE_WORDS == 3 { u64::MAX } else { 0 },
        ];
        for (i, shape) in shapes.into_iter().enumerate() {
            let words = (0..block.words.len()).map(shape).collect();
            let hostile = Block { place: block.place(), highest: 99, words, revoked: vec![] };
            assert!(matches!(here.merge_block(&hostile, || ()), Err(MergeError::Overfull)), "shape {i}");
            assert_eq!(here.digest(0), before);
        }
        assert!(here.merge_block(&block, || ()).is_ok());
    }

    /// The rate by the bits is the one that probes measure.
    #[test]
    fn the_rate_of_a_block_is_what_its_bits_tell() {
        let space = site();
        space.roll_now();
        add(&space, 1..8000);
        let (_, table) = space.table_at(0).unwrap();
        let filter = &table.link(0).unwrap().filter;
        let all = 0..filter.words().len();
        let told = union_rate(filter, all.clone(), &vec![0; all.len()]);
        let by_pairs = filter.sizing().rate(table.link(0).unwrap().pairs(), filter.pages());
        assert!((told / by_pairs - 1.0).abs() < 0.1, "{told} by bits, {by_pairs} by pairs");
    }

    /// A revoked set at its bound takes none of the block, and forgets what of it was in.
    #[test]
    fn a_block_that_revokes_more_than_there_is_room_for_changes_nothing() {
        let there = site();
        let here = Space::new(Options { max_revoked: 30, ..there.options().clone() }).unwrap();
        for id in 0..100 {
            here.add(id, &Member::Number(0)).unwrap();
        }
        let revoke = |space: &Space, members: std::ops::Range<u64>| {
            add(space, members.clone());
            members.for_each(|m| assert_eq!(space.remove(m % 50, &Member::Number(m)).unwrap(), Change::Changed));
        };
        revoke(&here, 1..11);
        revoke(&there, 100..125);
        let before = here.digest(0);
        let merged = merge(&here, &differing(&here, &there, 0));
        assert!(matches!(merged, Err(MergeError::Refused(Error::RevokedFull))), "{merged:?}");
        assert_eq!(here.digest(0), before);
        revoke(&there, 125..135);
        let bytes = differing(&here, &there, 0);
        let read = here.read_block(&mut &bytes[..]).err();
        assert!(matches!(read, Some(MergeError::Refused(Error::RevokedFull))), "more than may ever be revoked");
    }

    #[test]
    fn tables_that_do_not_match_are_refused() {
        let here = site();
        here.roll_now();
        here.roll_now();
        let newest = differing(&here, &site(), 0);
        assert!(matches!(merge(&here, &newest), Ok(0) | Err(MergeError::NoTable { low: 0, .. })));
        let other = site();
        add(&other, 1..500);
        assert!(matches!(merge(&here, &differing(&here, &other, 0)), Err(MergeError::NoTable { low: 0, .. })));
        let options = Options { pairs_per_table: 5000 * 8, ..here.options().clone() };
        let other = Space::new(options).unwrap();
        for id in 0..100 {
            other.add(id, &Member::Number(0)).unwrap();
        }
        other.roll_now();
        assert!(matches!(merge(&here, &differing(&here, &other, 0)), Err(MergeError::OtherLayout)));
        assert!(here.digest(7).is_none());
    }
}
