//! Writing a table elsewhere, page by page: for the first time (a spill), or with what came late
//! since (a merge).

use crate::Error;
use crate::block_layout::BLOCK_WORDS;
use crate::filter::{Filter, PAGE_BYTES, page_has, page_of, page_set};
use crate::hash::{Pair, Seed};
use crate::sizing::PAGE_WORDS;
use crate::space::Space;
use crate::table::Table;
use crate::table::elsewhere::{Chain, Cold, ColdBackend, Lower, Part};
use crate::table::late_blocks::{BLOCK_PAIRS, LateBlock};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A table that is about to be written elsewhere: its pages, one after the other, and a note
/// without which they say nothing.
pub struct Rewrite {
    pub(super) range: (u64, u64),
    pub(super) seed: Seed,
    pub(super) table: Arc<Table>,
    lower: Arc<Lower>,
    late: Vec<u128>,
    /// In the order of their pages.
    blocks: Vec<LateBlock>,
    /// The late pairs by their pages in the filter number `target`, those that come first at the
    /// end.
    by_page: Vec<(usize, u128)>,
    target: usize,
    pub(super) chain: Chain,
    /// Pages that there are already.
    old_pages: usize,
    at: usize,
    pub(super) next_pages: usize,
}

impl Rewrite {
    /// The table's range of ids, both inclusive.
    pub fn range(&self) -> (u64, u64) {
        self.range
    }

    /// Whether the filters of the table are in memory so far.
    pub fn is_spill(&self) -> bool {
        self.table.cold().is_some_and(|cold| cold.memory().is_some())
    }

    /// Pages in all.
    pub fn pages(&self) -> usize {
        self.chain.pages()
    }

    /// Pairs that were late, and are not any more; blocks count as in [`Space::late`].
    pub fn late(&self) -> usize {
        self.late.len() + self.blocks.len() * BLOCK_PAIRS
    }

    /// The next page; false: there is none. `read` gives a page as it lies elsewhere.
    pub fn next<E>(
        &mut self,
        page: &mut [u8; PAGE_BYTES],
        read: impl FnOnce(usize, &mut [u8; PAGE_BYTES]) -> Result<(), E>,
    ) -> Result<bool, E> {
        if self.at == self.chain.pages() {
            return Ok(false);
        }
        match &*self.lower {
            _ if self.at >= self.old_pages => page.fill(0),
            Lower::Elsewhere(..) => read(self.at, page)?,
            Lower::Memory(table) => {
                let part =
                    self.chain.parts.iter().rposition(|part| part.first <= self.at).unwrap_or(0);
                let first = (self.at - self.chain.parts[part].first) * PAGE_WORDS;
                let words =
                    table.link(part).map(|link| &link.filter.words()[first..first + PAGE_WORDS]);
                for (bytes, word) in
                    page.as_chunks_mut().0.iter_mut().zip(words.into_iter().flatten())
                {
                    *bytes = word.load(Relaxed).to_le_bytes();
                }
            }
        }
        self.join_block(page);
        let part = &mut self.chain.parts[self.target];
        while let Some((_, hash)) = self.by_page.pop_if(|late| late.0 == self.at) {
            let pair = Pair::from_hash(0, hash);
            if !page_has(page, &pair, part.sizing.bits) {
                page_set(page, &pair, part.sizing.bits);
                part.pairs += 1;
            }
        }
        self.at += 1;
        Ok(true)
    }

    /// Adds to the page at hand what a block has for it.
    fn join_block(&mut self, page: &mut [u8; PAGE_BYTES]) {
        if self.blocks.is_empty() {
            return;
        }
        let Some(number) = self.chain.parts.iter().rposition(|part| part.first <= self.at) else {
            return;
        };
        let part = &mut self.chain.parts[number];
        let at = self.at - part.first;
        let behind = self
            .blocks
            .partition_point(|b| (b.link, b.block) <= (number, at * PAGE_WORDS / BLOCK_WORDS));
        let block =
            behind.checked_sub(1).map(|i| &self.blocks[i]).filter(|block| block.link == number);
        let Some(words) = block.and_then(|block| block.page(at)) else { return };
        let (mut before, mut after) = (0, 0);
        for (bytes, more) in page.as_chunks_mut().0.iter_mut().zip(words) {
            let word = u64::from_le_bytes(*bytes);
            before += u64::from(word.count_ones());
            after += u64::from((word | more).count_ones());
            *bytes = (word | more).to_le_bytes();
        }
        part.pairs += part.sizing.pairs_of(after, 1) - part.sizing.pairs_of(before, 1);
    }
}

/// Of these late pairs those that are to be added. A log that is read again has pairs come late
/// that the filters have already, and each start would make them larger. In one filter with room it
/// is seen when its page is at hand; where there are several, or another is to come, all are asked.
fn fresh(late: &[u128], lower: &Lower, chain: &Chain) -> Result<Vec<u128>, Error> {
    let Lower::Elsewhere(below, _) = lower else { return Ok(late.to_vec()) };
    let first = &chain.parts[0];
    let has_room = first.pairs + late.len() as u64 <= first.sizing.capacity(first.pages);
    let mut fresh = late.to_vec();
    if has_room && chain.links() == 1 {
        return Ok(fresh);
    }
    // So that the pages are asked in their order.
    fresh.sort_by_cached_key(|&hash| page_of(&Pair::from_hash(0, hash), first.pages));
    let mut failed = None;
    fresh.retain(|&hash| match below.has(&Pair::from_hash(0, hash)) {
        Ok(is_there) => !is_there,
        Err(unreadable) => {
            failed = Some(unreadable);
            true
        }
    });
    failed.map_or(Ok(fresh), |unreadable| Err(unreadable.into()))
}

impl Space {
    /// Begins to write the table that begins at `low` elsewhere: freezes it, if it is not. One at a
    /// time. `None`: there is none, or it is the newest.
    pub fn begin_rewrite(&self, low: u64) -> Result<Option<Rewrite>, Error> {
        let Some((range, mut table)) = self.table_at(low).filter(|(range, _)| range.1 < u64::MAX)
        else {
            return Ok(None);
        };
        if table.cold().is_none() {
            let empty = Filter::new(*table.first_filter().sizing(), 1).map_err(Error::Memory)?;
            let cold = Cold::new(Lower::Memory(table.clone()));
            cold.count_in(&self.late);
            let frozen = Arc::new(Table::elsewhere(
                table.rate(),
                empty,
                cold,
                table.revoked.clone(),
                table.early(),
            ));
            frozen.set_outdated(table.is_outdated());
            // A merge takes no stripe: C2.
            let _nobody_merges = self.merging.lock();
            // C2. Nothing moves between the two: the rewrite of the ring is over at once.
            let Ok(old) = self.ring.rewrite(low, vec![(low, frozen.clone())]) else {
                return Ok(None);
            };
            self.ring.finish(&old);
            table = frozen;
        }
        let Some(cold) = table.cold() else { return Ok(None) };
        let rewrite = self.rewrite_of(range, &table, cold.lower());
        let mut chain = rewrite.chain.clone();
        let mut late = vec![];
        cold.late.for_each(|hash| late.push(hash));
        let fresh = fresh(&late, &rewrite.lower, &chain)?;
        let blocks = cold.blocks.all();
        let target = chain.make_room(&blocks, fresh.len()).ok_or(Error::Full)?;
        let Part { first, pages, .. } = chain.parts[target];
        let place = |&hash: &u128| (first + page_of(&Pair::from_hash(0, hash), pages), hash);
        let mut by_page: Vec<_> = fresh.iter().map(place).collect();
        by_page.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Some(Rewrite { late, blocks, by_page, target, chain, ..rewrite }))
    }

    /// To write `next` in the place of what a table has elsewhere; `late` it has already.
    pub(crate) fn rewrite_as(
        &self,
        range: (u64, u64),
        table: &Arc<Table>,
        next: &Arc<Table>,
        late: Vec<u128>,
    ) -> Rewrite {
        let lower = Arc::new(Lower::Memory(next.clone()));
        Rewrite { late, ..self.rewrite_of(range, table, lower) }
    }

    /// To write what is below a table as it is.
    fn rewrite_of(&self, range: (u64, u64), table: &Arc<Table>, lower: Arc<Lower>) -> Rewrite {
        let chain = Chain::clone(&lower.chain());
        Rewrite {
            range,
            seed: self.seed,
            table: table.clone(),
            lower,
            late: vec![],
            blocks: vec![],
            by_page: vec![],
            target: 0,
            old_pages: chain.pages(),
            chain,
            at: 0,
            // Of the first filter of the table that follows.
            next_pages: self.table_over(range.1 + 1).map_or(1, |(_, next)| next.pages()),
        }
    }

    /// `below` has all pages that were given, and answers from now on.
    pub fn end_rewrite(&self, rewrite: Rewrite, below: Arc<dyn ColdBackend>) {
        let Some(cold) = rewrite.table.cold() else { return };
        // A merge finds what is late there, or below, once: C1.
        let _nobody_merges = self.merging.lock();
        let lower = Lower::Elsewhere(below, Arc::new(rewrite.chain));
        let old = std::mem::replace(&mut *cold.lower.write(), Arc::new(lower));
        // C1.
        cold.forget_late(&rewrite.late, &rewrite.blocks);
        // Readers may still be in it: its memory goes to the next table when they are not.
        let retire = |lower: &Lower| match lower {
            Lower::Memory(table) => self.upkeep.retire(table.clone()),
            Lower::Elsewhere(..) => {}
        };
        retire(&old);
        if !Arc::ptr_eq(&old, &rewrite.lower) {
            // What was written was built anew.
            rewrite.table.set_outdated(false);
            retire(&rewrite.lower);
        }
    }
}
