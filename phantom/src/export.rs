//! What another site needs of a table: a checksum of each block (`block`), so that only those that
//! differ are moved, and the blocks.
//!
//! Pairs that are kept aside, as their ids lie far ahead, are in no table, so they are in no digest
//! and no block: they go along when their ids have come to count as normal.

use crate::block::{Header, encode};
use crate::block_layout::{block_of_id, block_pages};
use crate::codec::block_sums;
use crate::hash::mix;
use crate::space::Space;
use crate::table::contents::Contents;
use rolling::Unreadable;

/// What `TM.DIGEST` shows of a table: where two tables have equal ranges, rates and pages, their
/// blocks can be compared.
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
    /// A checksum of each 64 KiB of each filter of the chain, in order, with the pairs that are
    /// revoked there, and the forgotten ids that go with it.
    pub blocks: Vec<u64>,
}

impl Space {
    /// The checksums of the table that begins at `low`, if there is one. Takes no lock, and 0.1 s
    /// per GiB in memory; what lies elsewhere is read, 64 KiB at a time.
    pub fn digest(&self, low: u64) -> Result<Option<TableDigest>, Unreadable> {
        let Some(((low, last), table)) = self.table_at(low) else { return Ok(None) };
        let (rate, pages, revoked) = (table.rate(), table.pages(), table.revoked.len());
        let mut blocks = block_sums(&Contents::of(&table)?, &table.revoked)?;
        for (id, generation) in self.forgotten_in(low, last) {
            if let Some(sum) = blocks.get_mut(block_of_id(pages, id)) {
                *sum = sum.wrapping_add(mix(mix(id) ^ generation));
            }
        }
        Ok(Some(TableDigest { low, last, rate, pages, revoked, blocks }))
    }

    /// The forgotten ids of a table; not those that are ahead of all tables.
    fn forgotten_in(&self, low: u64, last: u64) -> Vec<(u64, u64)> {
        let highest = self.highest_id().map(|highest| highest.min(last));
        highest.map_or_else(Vec::new, |highest| self.forgotten(low, highest))
    }

    /// The blocks with these numbers, in the order of [`TableDigest::blocks`], of the table that
    /// begins at `low`, one after the other. `false`: there is no such table (any more). Numbers
    /// that there are not are left out. Takes 64 KiB of memory for each.
    pub fn export_blocks<E: From<Unreadable>>(
        &self,
        low: u64,
        numbers: &[usize],
        mut sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let Some((_, table)) = self.table_at(low) else { return Ok(false) };
        let contents = Contents::of(&table)?;
        // The words of all blocks first: of a pair that is set and unset meanwhile the bits would
        // come without what revokes it.
        let mut blocks = vec![];
        for (link, block) in numbers.iter().filter_map(|&number| contents.place(number)) {
            blocks.push((link, block, contents.words(link, block)?));
        }
        let Some((range, highest)) = self.reach_of(low) else { return Ok(false) };
        let revoked_in = |(link, block, _): &(usize, usize, Vec<u64>)| {
            let (pages, mut hashes) = (contents.chain.parts[*link].pages, vec![]);
            table.revoked.for_each_in(block_pages(pages, *block), pages, |hash| hashes.push(hash));
            hashes
        };
        let revoked: Vec<Vec<u128>> = blocks.iter().map(revoked_in).collect();
        let (mut bytes, forgotten) = (vec![], self.forgotten_in(range.0, highest));
        for ((link, block, words), revoked) in blocks.into_iter().zip(revoked) {
            let header = Header {
                rate: table.rate(),
                fingerprint: self.seed.fingerprint(),
                range,
                highest,
                pages: table.pages(),
                link,
                block,
            };
            let goes_along = |id| link == 0 && block_of_id(header.pages, id) == header.block;
            let forgotten: Vec<(u64, u64)> =
                forgotten.iter().copied().filter(|&(id, _)| goes_along(id)).collect();
            encode(&header, &words, &revoked, &forgotten, &mut bytes);
            sink(&bytes)?;
        }
        Ok(true)
    }

    /// The range of the table that begins at `low`, and the highest id that a pair can have of
    /// which a bit was seen in it before this was called.
    pub(crate) fn reach_of(&self, low: u64) -> Option<((u64, u64), u64)> {
        // The writer of a bit had moved the frontier, and held a stripe since then or took one
        // after it: once that was free again we see what it saw.
        let ((low, last), _) = self.table_at(low)?;
        self.ring.barrier(low, last);
        let high = match self.frontier.boundary(last) {
            Some(boundary) => boundary - 1,
            None => self.frontier.high().unwrap_or(0),
        };
        // A table that was closed meanwhile was closed above all of them.
        let ((low, last), _) = self.table_at(low)?;
        Some(((low, last), high.clamp(low, last)))
    }
}
