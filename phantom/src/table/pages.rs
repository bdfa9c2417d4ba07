//! Pages of a table's filters plus its late pairs: the input of a rewrite.
//!
//! Late pairs fill the filters of the chain in order. The hash of a late pair selects its filter,
//! so that late pairs spread evenly over the pages. The chain grows as needed; only its last filter
//! may have room left.

use crate::filter::{PAGE_BYTES, page_has, page_of, page_set};
use crate::hash::{Pair, mix};
use crate::table::cold_table::{Chain, ColdBackend, FilterPages};
use crate::table::{ColdSource, LINKS, Table};
use rolling::Unreadable;
use std::sync::Arc;

const PAGES_PER_READ: usize = 16;

pub(crate) struct RewriteContents {
    /// Target chain, with the pair counts of the source.
    pub(crate) chain: Chain,
    pub(crate) lower: Arc<ColdSource>,
    pub(crate) stored: usize,
    /// All late pairs, including those that the source already contains.
    pub(crate) late: Vec<u128>,
    /// New late pairs by target page, in ascending order.
    placed: Vec<(usize, u128)>,
    /// Number of new pairs per filter.
    new_pairs: Vec<u64>,
    /// Whether the longest possible chain lacks room. The last filter then takes the excess.
    pub(crate) is_overfull: bool,
}

impl RewriteContents {
    /// Returns the contents for a rewrite of `table`. For a cold table this reads the pages of the
    /// late pairs, unless a single filter has room for all of them.
    pub(crate) fn of(table: &Arc<Table>) -> Result<RewriteContents, Unreadable> {
        let Some(cold) = table.cold() else {
            return Ok(RewriteContents::below(Arc::new(ColdSource::Memory(table.clone()))));
        };
        // C1: read the late pairs before the lower filters.
        let mut late = vec![];
        cold.late.for_each(|hash| late.push(hash));
        let mut contents = RewriteContents { late, ..RewriteContents::below(cold.lower()) };
        let fresh = contents.fresh()?;
        contents.place_pairs(fresh);
        Ok(contents)
    }

    pub(crate) fn below(lower: Arc<ColdSource>) -> RewriteContents {
        let chain = Chain::clone(&lower.chain());
        let new_pairs = vec![0; chain.links()];
        RewriteContents {
            stored: chain.pages(),
            chain,
            lower,
            late: vec![],
            placed: vec![],
            new_pairs,
            is_overfull: false,
        }
    }

    /// Returns the late pairs that no filter contains. Replay delivers pairs that the filters
    /// already contain. Without this check, every restart would enlarge the chain. A single filter
    /// with enough room needs no check, because the rewrite skips existing pairs. With several
    /// filters, this function reads each affected page once, in order.
    fn fresh(&self) -> Result<Vec<u128>, Unreadable> {
        let mut fresh = self.late.clone();
        let ColdSource::Disk(below, chain) = &*self.lower else { return Ok(fresh) };
        if chain.links() == 1 && fresh.len() as u64 <= self.room(0) {
            return Ok(fresh);
        }
        // Sorting by hash also sorts by page number, in every filter.
        fresh.sort_unstable();
        for (link, part) in chain.parts.iter().enumerate() {
            let mut pages = Pages::new(&**below, part);
            let mut failed = Ok(());
            fresh.retain(|&hash| {
                let pair = Pair::from_hash(0, hash);
                let found = match failed {
                    Ok(()) => pages.get(page_of(&pair, part.pages)),
                    Err(_) => return true,
                };
                match found {
                    Ok(page) => !chain.has(link, &pair, page),
                    Err(unreadable) => {
                        failed = Err(unreadable);
                        true
                    }
                }
            });
            failed?;
        }
        Ok(fresh)
    }

    fn room(&self, link: usize) -> u64 {
        let part = &self.chain.parts[link];
        part.sizing.capacity(part.pages).saturating_sub(part.pairs + self.new_pairs[link])
    }

    fn place_pairs(&mut self, mut pairs: Vec<u128>) {
        if pairs.len() as u64 > self.room(0) {
            pairs.sort_by_cached_key(|&hash| distribution_key(hash));
        }
        let mut rest = &pairs[..];
        for link in 0..LINKS {
            if rest.is_empty() {
                break;
            }
            if link == self.chain.links() {
                self.chain.extend(self.chain.first_pages(), 0);
                self.new_pairs.push(0);
            }
            let room = usize::try_from(self.room(link)).unwrap_or(usize::MAX);
            self.is_overfull = link + 1 == LINKS && rest.len() > room;
            let fits = if self.is_overfull { rest.len() } else { room.min(rest.len()) };
            let (here, more) = rest.split_at(fits);
            let FilterPages { first, pages, .. } = self.chain.parts[link];
            let place = |&hash: &u128| (first + page_of(&Pair::from_hash(0, hash), pages), hash);
            self.placed.extend(here.iter().map(place));
            self.new_pairs[link] += here.len() as u64;
            rest = more;
        }
        self.placed.sort_unstable();
    }

    /// Adds the late pairs of page `at` to `page`. Returns the filter and the number of pairs that
    /// were not set in it before.
    pub(crate) fn complete(&self, at: usize, page: &mut [u8; PAGE_BYTES]) -> (usize, u64) {
        let link = self.chain.link_of(at);
        let part = &self.chain.parts[link];
        let mut came = 0;
        let from = self.placed.partition_point(|pair| pair.0 < at);
        for &(_, hash) in self.placed[from..].iter().take_while(|pair| pair.0 == at) {
            let pair = Pair::from_hash(0, hash);
            if !page_has(page, &pair, part.sizing.bits) {
                page_set(page, &pair, part.sizing.bits);
                came += 1;
            }
        }
        (link, came)
    }
}

/// Returns the sort key that distributes late pairs over filters. It must be independent of the
/// page within a filter.
fn distribution_key(hash: u128) -> u64 {
    mix(mix((hash >> 64) as u64) ^ hash as u64)
}

/// Reader for the pages of one filter on disk, in ascending order with read-ahead.
struct Pages<'a> {
    below: &'a dyn ColdBackend,
    part: &'a FilterPages,
    bytes: Vec<[u8; PAGE_BYTES]>,
    first: usize,
}

impl<'a> Pages<'a> {
    fn new(below: &'a dyn ColdBackend, part: &'a FilterPages) -> Pages<'a> {
        Pages { below, part, bytes: vec![], first: 0 }
    }

    fn get(&mut self, page: usize) -> Result<&[u8; PAGE_BYTES], Unreadable> {
        if !(self.first..self.first + self.bytes.len()).contains(&page) {
            self.bytes.resize(PAGES_PER_READ.min(self.part.pages - page), [0; PAGE_BYTES]);
            // After a failed read the buffer must stay empty.
            let mut bytes = std::mem::take(&mut self.bytes);
            self.below.read(self.part.first + page, bytes.as_flattened_mut())?;
            (self.bytes, self.first) = (bytes, page);
        }
        Ok(&self.bytes[page - self.first])
    }
}
