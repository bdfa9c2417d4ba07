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
//!              40     8  pages of the first filter
//!              48     4  filter of the chain        52  4  block of the filter
//!              56     4  revoked pairs              60  4  0
//!              64        the words, 64 KiB (the last block of a filter may be shorter)
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
const HEADER: usize = 64;
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
            for field in [table.rate().to_bits(), self.seed.fingerprint(), low, last, table.pages() as u64] {
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
        let ((link, block), (revoked, zero)) = (halves(48), halves(56));
        let ours = self.table_over(low).filter(|((_, our_last), _)| (low..=*our_last).contains(&last));
        let Some(((our_low, _), ours)) = ours else { return Err(MergeError::NoTable { low, last }) };
        if ours.rate().to_bits() != u64_at(bytes, 8) || ours.pages() as u64 != u64_at(bytes, 40) {
            return Err(MergeError::OtherLayout);
        }
        // Filters come in order, so that no stranger makes a chain longer than his own.
        if link > ours.links().count() || link >= LINKS {
            return Err(corrupt(48, "a filter of the chain that has no predecessor").into());
        }
        let (_, pages) = Table::geometry(ours.rate(), ours.pages(), link);
        let words = range_of(pages, block).len();
        if words == 0 || zero != 0 {
            return Err(corrupt(52, "a block that its filter has not").into());
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
            words: words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect(),
            revoked,
        })
    }

    /// Adds all pairs of a block to our table, while reads and writes go on. Gives the hashes of pairs that were revoked, or are not any
    /// more, by this: a log has to hold them besides the block itself.
    pub fn merge_block(&self, theirs: &Block) -> Result<Vec<u128>, MergeError> {
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
        // Revoked here, set there: set.
        table.revoked.for_each(|hash| {
            let pair = Pair::from_hash(range.0, hash);
            if block_of(&link.filter, &pair) == block
                && link.filter.contains_in(&pair, &theirs.words, words.start)
                && theirs.revoked.binary_search(&hash).is_err()
            {
                self.under_stripe(&pair, |table| table.revoked.remove(hash));
                changed.push(hash);
            }
        });
        link.filter.or(words, &theirs.words);
        link.pairs.fetch_add(added, Relaxed);
        table.touch();
        Ok(changed)
    }

    /// Of these pairs, those that were revoked before they were set and are not set yet are not revoked any more.
    fn take_back(&self, low: u64, hashes: &[u128]) {
        for &hash in hashes {
            let pair = Pair::from_hash(low, hash);
            self.under_stripe(&pair, |table| table.state(&pair) == State::Unset && table.revoked.remove(hash));
        }
    }

    /// The words of a block as they are now, for a log. `None`: there is none any more.
    pub fn block_words(&self, place: BlockPlace) -> Option<Vec<u8>> {
        let (_, table) = self.table_at(place.low)?;
        let filter = &table.link(place.link)?.filter;
        let words = filter.words().get(range_of(filter.pages(), place.block))?;
        Some(words.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect())
    }

    /// Makes true what a log says of a block: its bits are set. What was revoked there is told apart. Bounds do not hold here, what was accepted
    /// once is accepted again; a table that was recycled needs it no more.
    pub fn put_block(&self, place: BlockPlace, bytes: &[u8]) -> Result<(), String> {
        let BlockPlace { low, link, block } = place;
        let Some((_, table)) = self.table_at(low) else {
            return if low < self.horizon() {
                Ok(())
            } else {
                Err(format!("a block of a table at {low}, where none begins"))
            };
        };
        if link >= LINKS {
            return Err(format!("a block of filter {link} of a chain"));
        }
        let (_, pages) = Table::geometry(table.rate(), table.pages(), link);
        let words = range_of(pages, block);
        if words.is_empty() || bytes.len() != words.len() * 8 {
            return Err(format!("{} bytes for block {block} of a filter of {pages} pages", bytes.len()));
        }
        let link = table.extend_to(link, |_| true).map_err(|e| e.to_string())?;
        let theirs: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let added = added(&link.filter, words.clone(), &theirs);
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
            here.merge_block(&here.read_block(&mut bytes)?)?;
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
            changed.extend(here.merge_block(&block).unwrap());
            places.push(block.place());
        }
        for _ in 0..2 {
            places.iter().for_each(|&place| replica.put_block(place, &here.block_words(place).unwrap()).unwrap());
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
            let hostile = Block { place: block.place(), words, revoked: vec![] };
            assert!(matches!(here.merge_block(&hostile), Err(MergeError::Overfull)), "shape {i}");
            assert_eq!(here.digest(0), before);
        }
        assert!(here.merge_block(&block).is_ok());
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
