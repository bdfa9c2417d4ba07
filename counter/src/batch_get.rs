//! Batched reads with overlapping memory accesses and few branch mispredictions.
//!
//! ```text
//!   start      for each quarter of the ids:
//!                compute table and bucket of each id
//!                prefetch the buckets
//!   round      match the first byte of the tag in each pending bucket
//!                                   match -> candidates; no match, but the mark -> advance
//!              advance:             compute the next bucket and prefetch it
//!              candidates:          read tag and fields of the first matching slot -> done
//!              not done:            search slot by slot; absent, but the mark -> advance
//! ```
//!
//! The next step of an id is unpredictable, so each stage keeps its ids in a bitmap instead of
//! branching. The end of a bitmap is the only branch. Each pass is short, so the processor overlaps
//! the memory accesses of many rows.
//!
//! The search itself needs no version check: the tag of a row that exists throughout is always
//! present (B1, T1). Reading the fields does need a version check, and so does the check that the
//! fields belong to the row.

use crate::bucket::{TagMatch, take};
use crate::buckets::{BucketLookup, Buckets};
use crate::key::PROBES;
use crate::read::Read;
use crate::table::Table;
use rolling::{Entry, Unreadable, UnreadableIds, ones};

/// Ids per batch: enough to overlap memory latencies, few enough for the L1 cache and for one bit
/// each in a u32.
const IDS_PER_BATCH: usize = 32;

/// State of the search for one row.
#[derive(Clone, Copy)]
struct Probe<'a> {
    entry: &'a Entry<Table>,
    /// Bucket number.
    index: u64,
    tag: u64,
    seen: TagMatch,
}

impl<'a> Probe<'a> {
    #[inline(always)]
    fn main(&self) -> &'a Buckets {
        self.entry.table().main()
    }

    /// Prefetches the bucket.
    #[inline(always)]
    fn prefetch(&self) {
        self.main().prefetch(self.index);
    }

    /// Matches the first bytes of the bucket.
    #[inline(always)]
    fn match_first_bytes(&mut self) {
        self.seen = self.main().match_tags(self.index, self.tag as u8);
    }

    /// Returns true if a row that is missing from this bucket may be at a later probe.
    #[inline(always)]
    fn has_overflow_mark(&self) -> bool {
        self.seen.head().has_overflow_mark(self.tag)
    }

    /// Tries the fast path. Returns true if `out` holds the row. Otherwise the content of `out` is
    /// undefined.
    #[inline(always)]
    fn take(&self, living: u64, out: &mut [i64]) -> bool {
        let main = self.main();
        match (main.layout.plan_for(living, out.len()), main.narrow(self.index)) {
            (Some(packed), Some(words)) => {
                take(words, &main.layout, packed, self.tag, self.seen, out)
            }
            _ => false,
        }
    }

    /// Searches slot by slot and fills `out` with the row of `id`, or with zeros if the bucket
    /// lacks it.
    #[inline(never)]
    fn search_slots(&self, id: u64, living: u64, out: &mut [i64]) -> BucketLookup<()> {
        let (table, main) = (self.entry.table(), self.main());
        let (found, head) = main.bucket(self.index).read(|bucket| {
            let slot = bucket.find(self.tag)?;
            table.row_in(bucket, self.index, slot, id).values(living, out);
            Some(())
        });
        if found.is_some() {
            return BucketLookup::Found(());
        }
        // The fast path may have left values of another row.
        out.fill(0);
        if head.has_overflow_mark(self.tag) {
            BucketLookup::Overflowed
        } else {
            BucketLookup::Absent
        }
    }

    /// Advances to the next bucket; returns false after the last probe. Also prefetches the bucket
    /// after the next bucket, because one row in eighty needs a third probe, and a third stall
    /// would delay the whole batch.
    #[inline(always)]
    fn advance(&mut self) -> bool {
        let main = self.main();
        let step = main.keys.step(main.layout.remainder(self.tag));
        self.index = main.keys.next(self.index, step);
        main.prefetch(self.index);
        main.prefetch(main.keys.next(self.index, step));
        self.tag = self.tag.wrapping_add(main.layout.probe_one);
        self.tag < main.layout.tag(0, PROBES)
    }
}

impl Read<'_> {
    /// Reads many rows: see [`crate::Space::get_batch`].
    pub fn get_batch(
        &mut self,
        ids: &[u64],
        rows: &mut Vec<i64>,
        found: &mut Vec<bool>,
    ) -> Result<(), UnreadableIds> {
        let mut failed = Vec::new();
        self.chunks(
            ids,
            rows,
            |read, id, row| read.get_or_record_failure(id, row, &mut failed),
            hits(found),
        );
        UnreadableIds::check(failed)
    }

    /// Reads many rows; a missing row reads as zeros.
    pub fn get_rows(&mut self, ids: &[u64], rows: &mut Vec<i64>) -> Result<(), UnreadableIds> {
        let mut failed = Vec::new();
        self.chunks(
            ids,
            rows,
            |read, id, row| read.get_or_record_failure(id, row, &mut failed),
            |_, _| (),
        );
        UnreadableIds::check(failed)
    }

    /// Like [`Read::get_batch`], for rows in memory only.
    pub(crate) fn get_batch_in_memory(
        &mut self,
        ids: &[u64],
        rows: &mut Vec<i64>,
        found: &mut Vec<bool>,
    ) {
        self.chunks(ids, rows, |read, id, row| read.get_in_memory(id, row), hits(found));
    }

    /// Reads one row and returns whether it exists. An unreadable row reads as zeros and is added
    /// to `failed`.
    fn get_or_record_failure(
        &mut self,
        id: u64,
        row: &mut [i64],
        failed: &mut Vec<Unreadable>,
    ) -> bool {
        self.get(id, row).unwrap_or_else(|unreadable| {
            failed.push(unreadable);
            false
        })
    }

    /// Appends the rows, and calls `tell` for each chunk with the chunk's length and the bitmap of
    /// existing rows. `get_one` reads the rows that the fast path skipped.
    #[inline(always)]
    fn chunks(
        &mut self,
        ids: &[u64],
        rows: &mut Vec<i64>,
        mut get_one: impl FnMut(&mut Self, u64, &mut [i64]) -> bool,
        mut tell: impl FnMut(usize, u32),
    ) {
        let width = self.shape.schema.width();
        let mut at = rows.len();
        rows.resize(at + ids.len() * width, 0);
        for ids in ids.chunks(IDS_PER_BATCH) {
            let rows = &mut rows[at..at + ids.len() * width];
            at += ids.len() * width;
            let (mut hits, unsure) = self.get_chunk(ids, width, rows);
            if self.horizon > 0 {
                hits &= !self.clear_retired_rows(ids, width, rows);
            }
            for i in ones(unsure) {
                hits |= u32::from(get_one(self, ids[i], &mut rows[i * width..][..width])) << i;
            }
            tell(ids.len(), hits);
        }
    }

    /// Reads rows on the fast path into `rows`, which the caller has zeroed. Returns two bitmaps:
    /// rows that were found, and ids that need the slow path.
    // Out of line: when inlined, the loops spill registers and take ten more instructions per row.
    #[inline(never)]
    fn get_chunk(&self, ids: &[u64], width: usize, rows: &mut [i64]) -> (u32, u32) {
        let ids = &ids[..ids.len().min(IDS_PER_BATCH)];
        let living = self.shape.living;
        // Read the outliers (ids far above all others) first: rows move from the outlier map to the
        // drained table, and then to the table.
        let outliers_from = self.space.outliers.lowest();
        let mut ways = [None; IDS_PER_BATCH];
        let mut looking = 0u32;
        // Work in four parts, so that computing the buckets of one part overlaps with the
        // prefetches of the previous parts.
        let mut begin = 0;
        for end in (1..=4).map(|part| ids.len() * part / 4) {
            for i in begin..end {
                ways[i] = if ids[i] < outliers_from { self.way(ids[i]) } else { None };
                looking |= u32::from(ways[i].is_some()) << i;
            }
            // Issue all prefetches in one burst; see `rolling::prefetch`.
            ways[begin..end].iter().flatten().for_each(Probe::prefetch);
            begin = end;
        }
        let all = ((1u64 << ids.len()) - 1) as u32;
        let (mut hits, mut unsure) = (0, all & !looking);
        // Work in two parts: read the first part while the prefetches of the second part are in
        // flight.
        let mut early = all >> (ids.len() / 2);
        while looking != 0 {
            let parts = [looking & early, looking & !early];
            looking = 0;
            // Few rows need a second probe.
            early = all;
            for part in parts {
                let (mut candidates, mut past) = (0u32, 0u32);
                for i in ones(part) {
                    let Some(way) = &mut ways[i] else { continue };
                    way.match_first_bytes();
                    past |= u32::from(way.has_overflow_mark()) << i;
                    candidates |= u32::from(!way.seen.is_empty()) << i;
                }
                let mut advance = |ways: &mut [Option<Probe<'_>>; IDS_PER_BATCH], i: usize| {
                    let more = ways[i].as_mut().is_some_and(Probe::advance);
                    looking |= u32::from(more) << i;
                    unsure |= u32::from(!more) << i;
                };
                ones(past & !candidates).for_each(|i| advance(&mut ways, i));
                for i in ones(candidates) {
                    let Some(way) = &ways[i] else { continue };
                    hits |= u32::from(way.take(living, row(rows, i, width))) << i;
                }
                for i in ones(candidates & !hits) {
                    let Some(way) = &ways[i] else { continue };
                    match way.search_slots(ids[i], living, row(rows, i, width)) {
                        BucketLookup::Found(()) => hits |= 1 << i,
                        BucketLookup::Absent => {}
                        BucketLookup::Overflowed => advance(&mut ways, i),
                    }
                }
            }
        }
        for i in ones(all & !hits & !unsure) {
            let moved = ways[i].is_none_or(|way| way.entry.slot().has_moved(ids[i]));
            unsure |= u32::from(moved || self.may_be_cold(ids[i])) << i;
        }
        (hits, unsure)
    }

    /// Zeroes the rows below the horizon and returns their bitmap.
    #[cold]
    fn clear_retired_rows(&self, ids: &[u64], width: usize, rows: &mut [i64]) -> u32 {
        let retired = (0..ids.len()).filter(|&i| ids[i] < self.horizon);
        retired.fold(0, |bits, i| {
            row(rows, i, width).fill(0);
            bits | 1 << i
        })
    }

    /// Starts the search for `id`. Returns `None` if the fast path does not apply.
    #[inline(always)]
    fn way(&self, id: u64) -> Option<Probe<'_>> {
        let entry = self.tables.find(id)?;
        let main = entry.table().main();
        let home = main.keys.home(id)?;
        if entry.drains().is_some() || main.layout.byte_lines > 1 {
            return None;
        }
        let tag = home.remainder | main.layout.probe_one;
        Some(Probe { entry, index: home.bucket, tag, seen: TagMatch::default() })
    }
}

/// Appends the bits of a chunk to `found`.
#[inline(always)]
fn hits(found: &mut Vec<bool>) -> impl FnMut(usize, u32) {
    |number, hits| found.extend((0..number).map(|i| hits >> i & 1 == 1))
}

/// Returns row number `i`. The multiplication wraps instead of checking for overflow: the caller
/// guarantees that `rows` contains the row.
#[inline(always)]
fn row(rows: &mut [i64], i: usize, width: usize) -> &mut [i64] {
    &mut rows[i.wrapping_mul(width)..][..width]
}
