//! Joining a table of another site into ours, block by block (`block`): two sites become one, or a
//! replica is repaired from another.
//!
//! Filters of equal layout are or-ed: what either has is then found. A pair is set afterwards if it
//! is set on either side; where one side revoked it and the other still has it, it is set: a like
//! that is lost is worse than one that comes back. A false yes of the other side's filter can so
//! bring back one revoked pair in 1 / rate. An id that either side has forgotten has the higher of
//! its two generations: of the lower one nothing is set.
//!
//! **M1** The error rate holds after a merge, too: a block that would give its filter more pairs,
//! or by its bits a higher error rate, than the filter is made for is refused. What chance does to
//! a filter that is full of pairs is allowed (`sizing`): three deviations, so that one honest table
//! of a thousand is refused its last block; for the first filter of 165 pages and more, at 0.01 %,
//! that is within the twentieth of the configured rate that is left for extensions. So that bits
//! are not gathered where they do the most harm, the rate of the block alone is bounded as well,
//! with what chance does to the worst of a million: at 0.01 % a stranger can bring its 16 pages to
//! 1.34 times the rate, not to an answer of yes to everything. What is merged unevenly takes room
//! from what is written later (`fill_ratio`). Filters of the same data, as in a repair, hardly
//! grow.
//!
//! **M2** A table is never closed below a pair that it got from another site: its ids count as
//! normal before its bits come. A bad one makes no more of that than a bad id (promise 7): if it
//! lies further ahead than the window of the frontier, the block is refused; and where no id counts
//! as normal yet nothing is merged, as no distance can be judged.
//!
//! **M3** A block that is refused has changed nothing: all that can fail is done, or held ready,
//! before the first change.
//!
//! **M4** What a log says of a merge makes the same of a table that is as this one was: the block's
//! bits, the pairs that are revoked there, and those that are not any more. That the table *is* the
//! same one, and not one that begins elsewhere, is L1 (`rollover`).

use crate::Error;
use crate::block::{Block, BlockPlace};
use crate::block_layout::{block_of, block_pages, block_range};
use crate::error::MergeError;
use crate::fill_ratio::FillRatio;
use crate::filter::{Filter, page_of, words_have};
use crate::hash::Pair;
use crate::sizing::{PAGE_WORDS, Sizing, pairs_added, uncertainty};
use crate::space::Space;
use crate::table::contents::Contents;
use crate::table::elsewhere::{Cold, ColdFill};
use crate::table::late_blocks::BLOCK_PAIRS;
use crate::table::{LINKS, Link, Table};
use rolling::Unreadable;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// So many standard deviations above what it is sized for a filter is taken for one of pairs: one
/// of 740 is beyond that by chance.
const FILTER_DEVIATIONS: f64 = 3.0;
/// The same for a block: a filter of 1 GiB has 16,384 of them, and of a thousand such filters one
/// has a block beyond that.
const BLOCK_DEVIATIONS: f64 = 5.4;

impl Space {
    /// Adds all pairs of a block to our table, while reads go on; writes, too, for most of the
    /// time: `enter` is called before bits and revoked pairs change, and what it gives is kept
    /// until the end, and returned. With it come the hashes of pairs that were revoked, or are not
    /// any more, by this: a log has to hold them besides the block itself.
    pub fn merge_block<G>(
        &self,
        theirs: &Block,
        enter: impl FnOnce() -> G,
    ) -> Result<(G, Vec<u128>), MergeError> {
        let _alone = self.merging.lock();
        let BlockPlace { low, link: at, block } = theirs.place;
        let Some((_, table)) = self.table_at(low) else {
            return Err(MergeError::NoTable { low, last: low });
        };
        // All that can fail (M3).
        let mut ours = match table.cold() {
            None => self.joint_in_memory(&table, theirs)?,
            Some(cold) => self.joint_elsewhere(&table, cold, theirs)?,
        };
        let added = ours.added;
        let is_new = |(id, _): &&(u64, u64)| self.generation(*id) == 0;
        self.may_forget_more(theirs.forgotten.iter().filter(is_new).count())?;
        let pair_of = |hash: u128| Pair::from_hash(low, hash);
        let revoked = newly_revoked(&table, &ours, theirs)?;
        if !table.revoked.reserve_many(revoked.len(), self.limits.max_revoked.load(Relaxed)) {
            return Err(Error::RevokedFull.into());
        }
        if let Err(refused) = self.reach(low, theirs.highest) {
            table.revoked.release_many(revoked.len());
            return Err(refused);
        }
        let liked = set_again(&table, &ours, theirs);
        // Those set here that have not left the outliers are in no table. A writer that sets one
        // from now on sets it in the table, and a mover stores it there before it leaves.
        let mut outliers = HashMap::new();
        if !revoked.is_empty() {
            self.for_each_outlier(|pair| {
                outliers.insert(pair.hash(), pair.id);
            });
        }
        let is_outlier = |hash: u128| {
            let id = outliers.get(&hash);
            id.is_some_and(|&id| {
                self.outliers.read(id, |held| held.read().contains(&hash)) == Some(true)
            })
        };
        let entered = enter();
        // Not for nothing: each costs every check two lines.
        if let Some(filter) = ours.extension.take().filter(|_| added > 0) {
            table.extend(at, filter);
        }
        let mut changed = vec![];
        // Deleted there, unknown here: revoked before its bits come. Each pair under its
        // stripe, as every write is; the outliers are locked before that.
        for hash in revoked {
            if self.revoke_unknown(&pair_of(hash), is_outlier(hash)) {
                changed.push(hash);
            } else {
                table.revoked.release();
            }
        }
        for hash in liked {
            self.under_stripe(&pair_of(hash), |table| table.revoked.remove(hash));
            changed.push(hash);
        }
        match table.cold() {
            Some(cold) if added > 0 => cold.join(&ours, theirs),
            Some(_) => {}
            None => {
                if let Some(link) = table.link(at) {
                    link.join(block, &theirs.words, added);
                }
            }
        }
        theirs.forgotten.iter().for_each(|&(id, generation)| self.raise(id, generation));
        table.touch();
        Ok((entered, changed))
    }

    /// What a block finds in a table in memory.
    fn joint_in_memory(&self, table: &Table, theirs: &Block) -> Result<Joint, MergeError> {
        let BlockPlace { link: at, block, .. } = theirs.place;
        let extension = match table.link(at) {
            Some(_) => None,
            None => Some(table.make(at, &|bytes| self.may_grow(bytes))?),
        };
        let link = table.link(at);
        let Some(filter) = link.map(|link| &link.filter).or(extension.as_ref()) else {
            return Err(Error::Full.into());
        };
        let (sizing, pages) = (*filter.sizing(), filter.pages());
        let range = block_range(pages, block);
        let words = filter.words()[range].iter().map(|word| word.load(Relaxed)).collect();
        let mut joint = Joint::new(sizing, pages, words, theirs);
        let (of_block, of_filter) = match link {
            Some(link) => link.with_fill(|fill| fill.rates_with(block, &joint.union)),
            None => FillRatio::empty(sizing, pages).rates_with(block, &joint.union),
        };
        joint.may_come(link.map_or(0, Link::pairs), (of_block, of_filter))?;
        joint.extension = extension;
        Ok(joint)
    }

    /// Reads what must be known of a filter before a block comes to it, if that lies elsewhere and
    /// was not read before: all of it. `first` is called before that takes its time; without this
    /// call [`Space::merge_block`] does the same.
    pub fn prepare_merge(&self, place: BlockPlace, first: impl FnOnce()) -> Result<(), MergeError> {
        let BlockPlace { low, link, .. } = place;
        let Some((_, table)) = self.table_at(low) else { return Ok(()) };
        let Some(cold) = table.cold().filter(|cold| !cold.knows_fill(link)) else { return Ok(()) };
        first();
        Ok(cold.measure(&table, link)?)
    }

    /// What it finds in one whose filters lie elsewhere.
    fn joint_elsewhere(
        &self,
        table: &Arc<Table>,
        cold: &Cold,
        theirs: &Block,
    ) -> Result<Joint, MergeError> {
        let BlockPlace { link: at, block, .. } = theirs.place;
        if !cold.knows_fill(at) {
            cold.measure(table, at)?;
        }
        let (sizing, pages) = Table::geometry(table.rate(), table.pages(), at);
        let mut known = cold.fill.lock();
        let Some(fill) = &mut *known else { return Err(Error::Full.into()) };
        let ours = cold.words((at, block), (sizing, pages), &fill.lots)?;
        let joint = Joint::new(sizing, pages, ours, theirs);
        if joint.added == 0 {
            return Ok(joint);
        }
        let (late, most) = self.late();
        let is_more = cold.blocks.words(at, block).is_none();
        if is_more && late > 0 && late + BLOCK_PAIRS > most {
            return Err(Error::LateFull.into());
        }
        fill.ratio.since = (cold.late.len() as u64).saturating_sub(fill.late);
        let rates = fill.ratio.rates_with(block, &joint.union);
        joint.may_come(fill.pairs + fill.ratio.since, rates)?;
        Ok(joint)
    }

    /// Keeps a pair that its table does not know as unset, in what was reserved for it. False if
    /// the table has come to know it.
    fn revoke_unknown(&self, pair: &Pair, is_outlier: bool) -> bool {
        let is_revoked = self.under_stripe(pair, |table| {
            let hash = pair.hash();
            // What lies elsewhere was asked, and has not changed since: a rewrite ends between two
            // merges.
            let has = match table.cold() {
                None => table.has_in_memory(pair),
                Some(cold) => cold.late.contains(hash),
            };
            let is_new = !has && !table.revoked.contains(hash) && !is_outlier;
            if is_new {
                table.revoked.insert_reserved(hash);
            }
            is_new
        });
        is_revoked == Some(true)
    }

    /// From now on ids up to `highest` are normal, so that the table at `low`, which covers them,
    /// is not closed below them (M2).
    fn reach(&self, low: u64, highest: u64) -> Result<(), MergeError> {
        let Some(ours) = self.frontier.high() else { return Err(MergeError::NoIds { highest }) };
        if self.frontier.is_too_far(highest, None) {
            return Err(Error::KeyTooBig.into());
        }
        if !self.frontier.is_near(highest) {
            return Err(MergeError::FarAhead { highest, ours });
        }
        // Among the table's writers: a roll sees the new frontier, or its boundary is seen here.
        let reached = self.ring.write(low, 0, |entry| {
            let covers = highest <= entry.slot().last();
            if covers {
                self.frontier.adopt(highest, 0);
            }
            covers
        });
        if reached == Some(true) { Ok(()) } else { Err(MergeError::NoTable { low, last: highest }) }
    }

    /// A block as it is now, for a log: the highest id that a pair of it can have, the pages of its
    /// table's first filter, its words, and the hashes of the pairs that are revoked there: a
    /// reader of the log need not have had the bits of a pair that was set and unset again between
    /// two batches, and has them now. `None`: there is no such block any more. No write to the
    /// table is allowed meanwhile.
    pub fn block_state(&self, place: BlockPlace) -> Option<Vec<u8>> {
        let (_, table) = self.table_at(place.low)?;
        // Of a table that was frozen since, or lies elsewhere, what came since then, too. What was
        // merged is logged before it leaves memory.
        let late = table.cold().and_then(|cold| cold.blocks.words(place.link, place.block));
        let memory = table.cold().map_or_else(|| Some(table.clone()), Cold::memory);
        let (_, pages) = Table::geometry(table.rate(), table.pages(), place.link);
        let range = block_range(pages, place.block);
        let of_link = |link: &Link| -> Option<Vec<u64>> {
            let words = link.filter.words().get(range.clone())?;
            Some(words.iter().map(|word| word.load(Relaxed)).collect())
        };
        let words = memory.and_then(|table| table.link(place.link).and_then(of_link));
        let words = match (words, late) {
            (Some(words), None) => words,
            (None, Some(late)) => late.to_vec(),
            (Some(words), Some(late)) => words.iter().zip(&late[..]).map(|(a, b)| a | b).collect(),
            (None, None) => return None,
        };
        let (_, highest) = self.reach_of(place.low)?;
        let mut state: Vec<u8> = [highest, table.pages() as u64]
            .into_iter()
            .chain(words)
            .flat_map(u64::to_le_bytes)
            .collect();
        table.revoked.for_each_in(block_pages(pages, place.block), pages, |hash| {
            state.extend_from_slice(&hash.to_le_bytes());
        });
        Some(state)
    }

    /// Makes true what [`Space::block_state`] said of a block: its bits are set, and what was
    /// revoked there is. What is not revoked any more is told apart. Bounds do not hold here, what
    /// was accepted once is accepted again; a table that was recycled needs it no more.
    pub fn put_block(&self, place: BlockPlace, bytes: &[u8]) -> Result<(), String> {
        let _alone = self.merging.lock();
        let BlockPlace { low, link, block } = place;
        if low < self.horizon() {
            return Ok(());
        }
        let Some(((_, last), table)) = self.table_at(low) else {
            return Err(format!("a block of a table that begins at {low}, where none does"));
        };
        if link >= LINKS {
            return Err(format!("a block of filter {link} of a chain"));
        }
        let ((_, pages), size) = (Table::geometry(table.rate(), table.pages(), link), bytes.len());
        let words = block_range(pages, block).len();
        // Logs of before have no hashes.
        let (bytes, hashes) = bytes.split_at(size.min(words * 8 + 16));
        let mut numbers = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let (highest, first_pages) = (numbers.next().unwrap_or(low), numbers.next().unwrap_or(0));
        let is_whole = bytes.len() == words * 8 + 16 && hashes.len().is_multiple_of(16);
        if first_pages != table.pages() as u64 || words == 0 || !is_whole {
            let ours = table.pages();
            return Err(format!(
                "{size} bytes for block {block} of filter {link} of a table of {first_pages} \
                 pages; ours has {ours}"
            ));
        }
        let theirs: Vec<u64> = numbers.collect();
        if !self.frontier.follows() {
            // A log of before frontiers were logged.
            self.frontier.adopt(highest.clamp(low, last), 0);
        }
        for hash in hashes.as_chunks().0.iter().map(|hash| u128::from_le_bytes(*hash)) {
            table.revoked.reserve(usize::MAX);
            table.revoked.insert_reserved(hash);
        }
        table.join(link, block, theirs).map_err(|e| e.to_string())?;
        table.touch();
        Ok(())
    }
}

impl Table {
    /// Sets the bits of a block, which has as many words as one of its place, whatever the bounds.
    pub(crate) fn join(&self, link: usize, block: usize, words: Vec<u64>) -> Result<(), Error> {
        if let Some(cold) = self.cold() {
            cold.keep_block(link, block, words);
            return Ok(());
        }
        let link = self.extend_to(link, |_| true)?;
        let filter = &link.filter;
        let ours = &filter.words()[block_range(filter.pages(), block)];
        let before: Vec<u64> = ours.iter().map(|word| word.load(Relaxed)).collect();
        let after: Vec<u64> = before.iter().zip(&words).map(|(a, b)| a | b).collect();
        link.join(block, &words, pairs_added(*filter.sizing(), &before, &after));
        Ok(())
    }
}

impl Cold {
    /// Whether it is known how full a filter is.
    fn knows_fill(&self, link: usize) -> bool {
        let identity = self.identity();
        self.fill.lock().as_ref().is_some_and(|fill| (fill.link, fill.identity) == (link, identity))
    }

    /// Reads how full a filter is of the table that this stands for.
    fn measure(&self, table: &Arc<Table>, link: usize) -> Result<(), Unreadable> {
        let identity = self.identity();
        let contents = Contents::of(table)?;
        let (sizing, pages) = Table::geometry(table.rate(), table.pages(), link);
        let mut ratio = FillRatio::empty(sizing, pages);
        for block in 0..contents.blocks_of(link) {
            ratio.measure_words(block, &contents.words(link, block)?);
        }
        *self.fill.lock() = Some(ColdFill {
            link,
            identity,
            late: contents.late.len() as u64,
            lots: contents.lots_of(link),
            pairs: contents.pairs_of(link),
            ratio,
        });
        Ok(())
    }

    /// Keeps a block that was found to fit.
    fn join(&self, joint: &Joint, theirs: &Block) {
        let BlockPlace { link, block, .. } = theirs.place;
        self.keep_block(link, block, theirs.words.clone());
        if let Some(fill) = self.fill.lock().as_mut().filter(|fill| fill.link == link) {
            fill.ratio.measure_words(block, &joint.union);
            fill.pairs += joint.added;
        }
    }
}

/// A block of another site beside what our filter has there.
struct Joint {
    sizing: Sizing,
    pages: usize,
    bits: usize,
    ours: Vec<u64>,
    /// Ours and theirs.
    union: Vec<u64>,
    /// How many pairs the union stands for, beyond those that were there.
    added: u64,
    /// A filter that is not chained yet.
    extension: Option<Filter>,
}

impl Joint {
    fn new(sizing: Sizing, pages: usize, ours: Vec<u64>, theirs: &Block) -> Joint {
        let union: Vec<u64> = ours.iter().zip(&theirs.words).map(|(a, b)| a | b).collect();
        let added = pairs_added(sizing, &ours, &union);
        Joint { sizing, pages, bits: sizing.bits, ours, union, added, extension: None }
    }

    /// An error if it may not come to a filter of so many pairs (M1), whose block and which as a
    /// whole would have these error rates then.
    fn may_come(&self, pairs: u64, (of_block, of_filter): (f64, f64)) -> Result<(), MergeError> {
        let Joint { sizing, pages, .. } = *self;
        let capacity = sizing.capacity(pages);
        let allowed = sizing.rate(capacity, pages);
        let pairs = pairs + self.added;
        // Both numbers are told by bits, which are hardly ever half as far off as a decoder allows.
        let exceeds = pairs > capacity + uncertainty(capacity) / 2
            || of_block > allowed * sizing.chance(self.union.len() / PAGE_WORDS, BLOCK_DEVIATIONS)
            || of_filter > allowed * sizing.chance(pages, FILTER_DEVIATIONS);
        // What is there already does no more harm by coming again.
        if self.added > 0 && exceeds { Err(MergeError::Overfull) } else { Ok(()) }
    }

    /// Whether words of this block have all bits of a pair, which has them there.
    fn has(&self, words: &[u64], block: usize, pair: &Pair) -> bool {
        let page = page_of(pair, self.pages) * PAGE_WORDS - block_range(self.pages, block).start;
        words_have(&words[page..], pair, self.bits)
    }
}

/// The pairs that a block revokes in our table. A pair that was revoked there has its bits in one
/// of the filters there: with that block it is revoked here, and with no other. So a site that
/// sends forged hashes fills nothing of ours with them.
fn newly_revoked(table: &Table, ours: &Joint, theirs: &Block) -> Result<Vec<u128>, Unreadable> {
    let BlockPlace { low, block, .. } = theirs.place;
    let is_long = table.chain_len() > 1;
    let mut new = vec![];
    for &hash in &theirs.revoked {
        let pair = Pair::from_hash(low, hash);
        let has_bits =
            block_of(ours.pages, &pair) == block && ours.has(&theirs.words, block, &pair);
        if !has_bits || table.revoked.contains(hash) {
            continue;
        }
        let is_known = match table.cold() {
            // All of a chain of one filter is at hand.
            Some(cold) => {
                cold.late.contains(hash)
                    || ours.has(&ours.ours, block, &pair)
                    || (is_long && cold.has(&pair)?)
            }
            None => table.has_in_memory(&pair),
        };
        if !is_known {
            new.push(hash);
        }
    }
    Ok(new)
}

/// The pairs that are revoked in our table and set in the block.
fn set_again(table: &Table, ours: &Joint, theirs: &Block) -> Vec<u128> {
    let BlockPlace { low, block, .. } = theirs.place;
    let mut liked = vec![];
    table.revoked.for_each_in(block_pages(ours.pages, block), ours.pages, |hash| {
        let is_set = ours.has(&theirs.words, block, &Pair::from_hash(low, hash));
        if is_set && theirs.revoked.binary_search(&hash).is_err() {
            liked.push(hash);
        }
    });
    liked
}

#[cfg(test)]
pub(crate) mod tests;
