//! Writes a table to disk page by page. A rewrite either spills a table in memory, or merges late
//! pairs into a cold table.

use crate::Error;
use crate::filter::{Filter, PAGE_BYTES};
use crate::hash::Seed;
use crate::sizing::PAGE_WORDS;
use crate::space::Space;
use crate::table::cold_table::ColdBackend;
use crate::table::pages::RewriteContents;
use crate::table::{Cold, ColdSource, Table};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Table that is being written to disk: first its pages in order, then the note that is needed to
/// read them.
pub struct Rewrite {
    pub(super) range: (u64, u64),
    pub(super) seed: Seed,
    pub(super) table: Arc<Table>,
    /// Existing pages of the table, and the late pairs to add to them. [`Rewrite::next`] adds the
    /// number of new pairs to the counts of the chain.
    pub(super) contents: RewriteContents,
    at: usize,
    pub(super) next_pages: usize,
}

impl Rewrite {
    /// Returns the inclusive id range of the table.
    pub fn range(&self) -> (u64, u64) {
        self.range
    }

    /// Whether the filters of the table are still in memory.
    pub fn is_spill(&self) -> bool {
        self.table.cold().is_some_and(|cold| cold.memory().is_some())
    }

    /// Returns the number of pages to write.
    pub fn pages(&self) -> usize {
        self.contents.chain.pages()
    }

    /// Returns the number of late pairs that the rewrite merges.
    pub fn late(&self) -> usize {
        self.contents.late.len()
    }

    /// Fills `page` with the next page. Returns `false` after the last page. `read` reads a page of
    /// the existing file.
    pub fn next<E>(
        &mut self,
        page: &mut [u8; PAGE_BYTES],
        read: impl FnOnce(usize, &mut [u8; PAGE_BYTES]) -> Result<(), E>,
    ) -> Result<bool, E> {
        if self.at == self.contents.chain.pages() {
            return Ok(false);
        }
        match &*self.contents.lower {
            _ if self.at >= self.contents.stored => page.fill(0),
            ColdSource::Disk(..) => read(self.at, page)?,
            ColdSource::Memory(table) => {
                let chain = &self.contents.chain;
                let part = chain.link_of(self.at);
                let first = (self.at - chain.parts[part].first) * PAGE_WORDS;
                let words =
                    table.link(part).map(|link| &link.filter.words()[first..first + PAGE_WORDS]);
                for (bytes, word) in
                    page.as_chunks_mut().0.iter_mut().zip(words.into_iter().flatten())
                {
                    *bytes = word.load(Relaxed).to_le_bytes();
                }
            }
        }
        let (link, came) = self.contents.complete(self.at, page);
        self.contents.chain.parts[link].pairs += came;
        self.at += 1;
        Ok(true)
    }
}

impl Space {
    /// Begins a rewrite of the table that begins at `low`, and freezes the table if it is in
    /// memory. A space runs one rewrite at a time. Returns `None` if there is no such table or if
    /// it is the newest.
    pub fn begin_rewrite(&self, low: u64) -> Result<Option<Rewrite>, Error> {
        let Some((range, mut table)) = self.table_at(low).filter(|(range, _)| range.1 < u64::MAX)
        else {
            return Ok(None);
        };
        if table.cold().is_none() {
            let empty = Filter::new(*table.first_filter().sizing(), 1).map_err(Error::Memory)?;
            let cold = Cold::new(ColdSource::Memory(table.clone()));
            cold.count_in(&self.late);
            let frozen = Arc::new(Table::cold_table(
                table.rate(),
                empty,
                cold,
                table.revoked.clone(),
                table.early(),
            ));
            frozen.set_outdated(table.is_outdated());
            let _alone = self.merging.lock();
            // C2: the ring replaces the table by one with the same id range, so no pair moves.
            let Ok(old) = self.ring.rewrite(low, vec![(low, frozen.clone())]) else {
                return Ok(None);
            };
            self.ring.finish(&old);
            table = frozen;
        }
        let contents = RewriteContents::of(&table)?;
        if contents.is_overfull {
            return Err(Error::Full);
        }
        Ok(Some(self.rewrite_of(range, &table, contents)))
    }

    /// Returns a rewrite that replaces a cold table by `next`. `next` already contains the pairs in
    /// `late`.
    pub(crate) fn rewrite_as(
        &self,
        range: (u64, u64),
        table: &Arc<Table>,
        next: &Arc<Table>,
        late: Vec<u128>,
    ) -> Rewrite {
        let mut contents = RewriteContents::below(Arc::new(ColdSource::Memory(next.clone())));
        contents.late = late;
        self.rewrite_of(range, table, contents)
    }

    fn rewrite_of(
        &self,
        range: (u64, u64),
        table: &Arc<Table>,
        contents: RewriteContents,
    ) -> Rewrite {
        Rewrite {
            range,
            seed: self.seed,
            table: table.clone(),
            contents,
            at: 0,
            // Size of the following table's first filter.
            next_pages: self.table_over(range.1 + 1).map_or(1, |(_, next)| next.pages()),
        }
    }

    /// Ends a rewrite. `below` contains all pages and serves lookups from now on.
    pub fn end_rewrite(&self, rewrite: Rewrite, below: Arc<dyn ColdBackend>) {
        let Some(cold) = rewrite.table.cold() else { return };
        // C1: a concurrent merge must not treat a pair as late after its page was written.
        let _alone = self.merging.lock();
        let lower = ColdSource::Disk(below, Arc::new(rewrite.contents.chain));
        let old = std::mem::replace(&mut *cold.lower.write(), Arc::new(lower));
        // C1: the new lower filters already contain these pairs.
        cold.forget_late(&rewrite.contents.late);
        // Readers may still use the table. The pool reuses its memory after the last reader has
        // released it.
        let retire = |lower: &ColdSource| match lower {
            ColdSource::Memory(table) => self.filter_pool.retire(table.clone()),
            ColdSource::Disk(..) => {}
        };
        retire(&old);
        if !Arc::ptr_eq(&old, &rewrite.contents.lower) {
            // The rewrite was a rebuild.
            rewrite.table.set_outdated(false);
            retire(&rewrite.contents.lower);
        }
    }
}
