//! Writing a table elsewhere, page by page: for the first time (a spill), or with what came late
//! since (a merge).

use crate::Error;
use crate::filter::{Filter, PAGE_BYTES};
use crate::hash::Seed;
use crate::sizing::PAGE_WORDS;
use crate::space::Space;
use crate::table::cold_table::ColdBackend;
use crate::table::pages::Contents;
use crate::table::{Cold, Lower, Table};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A table that is about to be written elsewhere: its pages, one after the other, and a note
/// without which they say nothing.
pub struct Rewrite {
    pub(super) range: (u64, u64),
    pub(super) seed: Seed,
    pub(super) table: Arc<Table>,
    /// Its filters have the pairs that were written so far.
    pub(super) contents: Contents,
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
        self.contents.chain.pages()
    }

    /// Pairs that were late, and are not any more.
    pub fn late(&self) -> usize {
        self.contents.late.len()
    }

    /// The next page; false: there is none. `read` gives a page as it lies elsewhere.
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
            Lower::Disk(..) => read(self.at, page)?,
            Lower::Memory(table) => {
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
            let frozen = Arc::new(Table::cold_table(
                table.rate(),
                empty,
                cold,
                table.revoked.clone(),
                table.early(),
            ));
            frozen.set_outdated(table.is_outdated());
            let _alone = self.merging.lock();
            // C2. Nothing moves between the two: the rewrite of the ring is over at once.
            let Ok(old) = self.ring.rewrite(low, vec![(low, frozen.clone())]) else {
                return Ok(None);
            };
            self.ring.finish(&old);
            table = frozen;
        }
        let contents = Contents::of(&table)?;
        if contents.is_overfull {
            return Err(Error::Full);
        }
        Ok(Some(self.rewrite_of(range, &table, contents)))
    }

    /// To write `next` in the place of what a table has elsewhere; `late` it has already.
    pub(crate) fn rewrite_as(
        &self,
        range: (u64, u64),
        table: &Arc<Table>,
        next: &Arc<Table>,
        late: Vec<u128>,
    ) -> Rewrite {
        let mut contents = Contents::below(Arc::new(Lower::Memory(next.clone())));
        contents.late = late;
        self.rewrite_of(range, table, contents)
    }

    /// To write these contents.
    fn rewrite_of(&self, range: (u64, u64), table: &Arc<Table>, contents: Contents) -> Rewrite {
        Rewrite {
            range,
            seed: self.seed,
            table: table.clone(),
            contents,
            at: 0,
            // Of the first filter of the table that follows.
            next_pages: self.table_over(range.1 + 1).map_or(1, |(_, next)| next.pages()),
        }
    }

    /// `below` has all pages that were given, and answers from now on.
    pub fn end_rewrite(&self, rewrite: Rewrite, below: Arc<dyn ColdBackend>) {
        let Some(cold) = rewrite.table.cold() else { return };
        // A merge finds what is late there, or below, once: C1.
        let _alone = self.merging.lock();
        let lower = Lower::Disk(below, Arc::new(rewrite.contents.chain));
        let old = std::mem::replace(&mut *cold.lower.write(), Arc::new(lower));
        // C1.
        cold.forget_late(&rewrite.contents.late);
        // Readers may still be in it: its memory goes to the next table when they are not.
        let retire = |lower: &Lower| match lower {
            Lower::Memory(table) => self.upkeep.retire(table.clone()),
            Lower::Disk(..) => {}
        };
        retire(&old);
        if !Arc::ptr_eq(&old, &rewrite.contents.lower) {
            // What was written was built anew.
            rewrite.table.set_outdated(false);
            retire(&rewrite.contents.lower);
        }
    }
}
