//! Pages of a table's filters plus its late pairs: input of the next rewrite.
//!
//! Late pairs go into the first filters of the chain that have room. Their hashes decide which pair
//! goes into which filter, so that late pairs spread evenly over pages. The chain grows by as many
//! filters as are needed; no filter stays empty before one that is not.

use crate::filter::{PAGE_BYTES, page_has, page_of, page_set};
use crate::hash::{Pair, mix};
use crate::table::cold_table::{Chain, ColdBackend, Part};
use crate::table::{LINKS, Lower, Table};
use rolling::Unreadable;
use std::sync::Arc;

/// Pages that are read together.
const PAGES_TOGETHER: usize = 16;

/// See the top of the file.
pub(crate) struct Contents {
    /// The filters, as many as there are to be, with the pairs that lie below.
    pub(crate) chain: Chain,
    pub(crate) lower: Arc<Lower>,
    /// Pages that lie there.
    pub(crate) stored: usize,
    /// All that came late, also what lies below already.
    pub(crate) late: Vec<u128>,
    /// Late pairs that do not, by their pages among those of all filters, rising.
    placed: Vec<(usize, u128)>,
    /// How many pairs come to each filter.
    coming: Vec<u64>,
    /// Whether the longest chain has no room for all of them. They are in its last filter then.
    pub(crate) is_overfull: bool,
}

impl Contents {
    /// Of a table as it is now. Reads, where its filters lie elsewhere, the pages of late pairs,
    /// unless one filter has room for all of them.
    pub(crate) fn of(table: &Arc<Table>) -> Result<Contents, Unreadable> {
        let Some(cold) = table.cold() else {
            return Ok(Contents::below(Arc::new(Lower::Memory(table.clone()))));
        };
        // Before what lies below: C1.
        let mut late = vec![];
        cold.late.for_each(|hash| late.push(hash));
        let mut contents = Contents { late, ..Contents::below(cold.lower()) };
        let fresh = contents.fresh()?;
        contents.place_pairs(fresh);
        Ok(contents)
    }

    /// Of what lies below alone.
    pub(crate) fn below(lower: Arc<Lower>) -> Contents {
        let chain = Chain::clone(&lower.chain());
        let coming = vec![0; chain.links()];
        Contents {
            stored: chain.pages(),
            chain,
            lower,
            late: vec![],
            placed: vec![],
            coming,
            is_overfull: false,
        }
    }

    /// Returns the late pairs that no filter has. A log that is read again brings pairs that the
    /// filters have, and each start would make the filters larger. One filter with room checks
    /// them page by page when it is rewritten; of several filters the pages are read here, in
    /// order, each once.
    fn fresh(&self) -> Result<Vec<u128>, Unreadable> {
        let mut fresh = self.late.clone();
        let Lower::Disk(below, chain) = &*self.lower else { return Ok(fresh) };
        if chain.links() == 1 && fresh.len() as u64 <= self.room(0) {
            return Ok(fresh);
        }
        // The order of their pages in any filter.
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

    /// How many more pairs a filter has room for.
    fn room(&self, link: usize) -> u64 {
        let part = &self.chain.parts[link];
        part.sizing.capacity(part.pages).saturating_sub(part.pairs + self.coming[link])
    }

    fn place_pairs(&mut self, mut pairs: Vec<u128>) {
        if pairs.len() as u64 > self.room(0) {
            pairs.sort_by_cached_key(|&hash| lot(hash));
        }
        let mut rest = &pairs[..];
        for link in 0..LINKS {
            if rest.is_empty() {
                break;
            }
            if link == self.chain.links() {
                self.chain.extend(self.chain.first_pages(), 0);
                self.coming.push(0);
            }
            let room = usize::try_from(self.room(link)).unwrap_or(usize::MAX);
            self.is_overfull = link + 1 == LINKS && rest.len() > room;
            let fits = if self.is_overfull { rest.len() } else { room.min(rest.len()) };
            let (here, more) = rest.split_at(fits);
            let Part { first, pages, .. } = self.chain.parts[link];
            let place = |&hash: &u128| (first + page_of(&Pair::from_hash(0, hash), pages), hash);
            self.placed.extend(here.iter().map(place));
            self.coming[link] += here.len() as u64;
            rest = more;
        }
        self.placed.sort_unstable();
    }

    /// Gives the page of this number what came late to it: its filter, and how many pairs that is
    /// beyond those that it had.
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

/// What decides to which filter of a chain a late pair goes: by nothing that decides where in a
/// filter it lies.
fn lot(hash: u128) -> u64 {
    mix(mix((hash >> 64) as u64) ^ hash as u64)
}

/// The pages of a filter that lies elsewhere, read in order and some at a time.
struct Pages<'a> {
    below: &'a dyn ColdBackend,
    part: &'a Part,
    bytes: Vec<[u8; PAGE_BYTES]>,
    first: usize,
}

impl<'a> Pages<'a> {
    fn new(below: &'a dyn ColdBackend, part: &'a Part) -> Pages<'a> {
        Pages { below, part, bytes: vec![], first: 0 }
    }

    fn get(&mut self, page: usize) -> Result<&[u8; PAGE_BYTES], Unreadable> {
        if !(self.first..self.first + self.bytes.len()).contains(&page) {
            self.bytes.resize(PAGES_TOGETHER.min(self.part.pages - page), [0; PAGE_BYTES]);
            // Until it is read nothing is.
            let mut bytes = std::mem::take(&mut self.bytes);
            self.below.read(self.part.first + page, bytes.as_flattened_mut())?;
            (self.bytes, self.first) = (bytes, page);
        }
        Ok(&self.bytes[page - self.first])
    }
}
