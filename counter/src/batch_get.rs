//! Reads of many rows at once, so that their memory accesses overlap and the processor rarely
//! guesses wrong.
//!
//! ```text
//!   begin      for each quarter of the ids:
//!                for all of them: table, bucket
//!                for all of them: ask the cache for the bucket
//!   round      for those that are looking: which slots have the right first byte?
//!                                          Some -> candidates. None, but the mark -> onward.
//!              for those that go onward:   the next bucket; ask the cache for it
//!              for the candidates:         tag and fields of the first such slot: taken -> done
//!              for those that were not:    look slot by slot; not there, but the mark -> onward
//! ```
//!
//! Where an id goes next cannot be predicted, so it is no jump: each has a bit in a set, and the
//! sets are walked bit by bit. What is left to jumps is a set's end. Each pass is short, so that
//! the processor has many rows under way in it.
//!
//! The search itself needs no version: the tag of a row that is there all the time is there at
//! every moment (B1, T1). Its fields do, and that they are its own.

use crate::bucket::{TagMatch, take};
use crate::buckets::{Buckets, Looked};
use crate::key::PROBES;
use crate::read::Read;
use crate::table::Table;
use rolling::{Entry, Unreadable, UnreadableIds, ones};

/// Ids that are looked up together: enough to overlap memory latencies, few enough to stay in the
/// first cache; one bit each in a u32.
const CHUNK: usize = 32;

/// Where the search for one row stands.
#[derive(Clone, Copy)]
struct Probe<'a> {
    entry: &'a Entry<Table>,
    /// The bucket's number.
    index: u64,
    tag: u64,
    seen: TagMatch,
}

impl<'a> Probe<'a> {
    #[inline(always)]
    fn main(&self) -> &'a Buckets {
        self.entry.table().main()
    }

    /// Asks the cache for the bucket.
    #[inline(always)]
    fn prefetch(&self) {
        self.main().prefetch(self.index);
    }

    /// Looks at the first bytes of the bucket.
    #[inline(always)]
    fn look(&mut self) {
        self.seen = self.main().match_tags(self.index, self.tag as u8);
    }

    /// Whether the row, which is not in this bucket, may have gone on from here.
    #[inline(always)]
    fn is_past(&self) -> bool {
        self.seen.head().is_past(self.tag)
    }

    /// Fills `out` with the row, and says so, if that is quick; else with anything.
    #[inline(always)]
    fn take(&self, living: u64, out: &mut [i64]) -> bool {
        let main = self.main();
        match (main.layout.usual(living, out.len()), main.narrow(self.index)) {
            (Some(packed), Some(words)) => {
                take(words, &main.layout, packed, self.tag, self.seen, out)
            }
            _ => false,
        }
    }

    /// Looks slot by slot, and fills `out` with the row of `id` if it is there, else with zeros;
    /// then says whether it may have gone on from here.
    #[inline(never)]
    fn look_closely(&self, id: u64, living: u64, out: &mut [i64]) -> Looked<()> {
        let (table, main) = (self.entry.table(), self.main());
        let (found, head) = main.bucket(self.index).read(|bucket| {
            let slot = bucket.find(self.tag)?;
            table.row_in(bucket, self.index, slot, id).values(living, out);
            Some(())
        });
        if found.is_some() {
            return Looked::Found(());
        }
        // Another row may have left something, or this one, if it was deleted under the search.
        out.fill(0);
        if head.is_past(self.tag) { Looked::Past } else { Looked::Absent }
    }

    /// Goes on to the next bucket; whether there is one. Asks for the one after that, too: where it
    /// will lead is known, and a third wait for memory would be one more for the whole batch,
    /// though one row in eighty goes there.
    #[inline(always)]
    fn go_on(&mut self) -> bool {
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
    /// See [`crate::Space::get_batch`].
    pub fn get_batch(
        &mut self,
        ids: &[u64],
        rows: &mut Vec<i64>,
        found: &mut Vec<bool>,
    ) -> Result<(), UnreadableIds> {
        let mut failed = Vec::new();
        self.chunks(ids, rows, |read, id, row| read.get_or_note(id, row, &mut failed), hits(found));
        UnreadableIds::check(failed)
    }

    /// The same, where a row that does not exist reads as zeros.
    pub fn get_rows(&mut self, ids: &[u64], rows: &mut Vec<i64>) -> Result<(), UnreadableIds> {
        let mut failed = Vec::new();
        self.chunks(ids, rows, |read, id, row| read.get_or_note(id, row, &mut failed), |_, _| ());
        UnreadableIds::check(failed)
    }

    /// [`Read::get_batch`], where only rows in memory count.
    pub(crate) fn get_batch_in_memory(
        &mut self,
        ids: &[u64],
        rows: &mut Vec<i64>,
        found: &mut Vec<bool>,
    ) {
        self.chunks(ids, rows, |read, id, row| read.get_in_memory(id, row), hits(found));
    }

    /// Whether there is a row. One that cannot be read reads as zeros, and is noted.
    fn get_or_note(&mut self, id: u64, row: &mut [i64], failed: &mut Vec<Unreadable>) -> bool {
        self.get(id, row).unwrap_or_else(|unreadable| {
            failed.push(unreadable);
            false
        })
    }

    /// Appends the rows, and tells of each chunk how many ids it had and, in bits, of which there
    /// is a row. `get_one` reads those that are not read quickly.
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
        for ids in ids.chunks(CHUNK) {
            let rows = &mut rows[at..at + ids.len() * width];
            at += ids.len() * width;
            let (mut hits, unsure) = self.get_chunk(ids, width, rows);
            if self.horizon > 0 {
                hits &= !self.retired_among(ids, width, rows);
            }
            for i in ones(unsure) {
                hits |= u32::from(get_one(self, ids[i], &mut rows[i * width..][..width])) << i;
            }
            tell(ids.len(), hits);
        }
    }

    /// Fills `rows`, which are zero, as far as that is quick. Two sets: the ids whose rows were
    /// found, and those to ask again for one by one.
    // Its loops need all registers: inside another function they lose ten instructions a row to the
    // stack.
    #[inline(never)]
    fn get_chunk(&self, ids: &[u64], width: usize, rows: &mut [i64]) -> (u32, u32) {
        let ids = &ids[..ids.len().min(CHUNK)];
        let living = self.shape.living;
        // In the order in which rows move: aside, drained table, table.
        let outliers_from = self.space.outliers.lowest();
        let mut ways = [None; CHUNK];
        let mut looking = 0u32;
        // In four parts: a part is placed while the lines of those before are on their way.
        let mut begin = 0;
        for end in (1..=4).map(|part| ids.len() * part / 4) {
            for i in begin..end {
                ways[i] = if ids[i] < outliers_from { self.way(ids[i]) } else { None };
                looking |= u32::from(ways[i].is_some()) << i;
            }
            // In one go: `rolling::prefetch` says why.
            ways[begin..end].iter().flatten().for_each(Probe::prefetch);
            begin = end;
        }
        let all = ((1u64 << ids.len()) - 1) as u32;
        let (mut hits, mut unsure) = (0, all & !looking);
        // In two parts: the rows of the first are taken while the lines of the second are on their
        // way.
        let mut early = all >> (ids.len() / 2);
        while looking != 0 {
            let parts = [looking & early, looking & !early];
            looking = 0;
            // Those that go on are few.
            early = all;
            for part in parts {
                let (mut candidates, mut past) = (0u32, 0u32);
                for i in ones(part) {
                    let Some(way) = &mut ways[i] else { continue };
                    way.look();
                    past |= u32::from(way.is_past()) << i;
                    candidates |= u32::from(!way.seen.is_empty()) << i;
                }
                let mut go_on = |ways: &mut [Option<Probe<'_>>; CHUNK], i: usize| {
                    let more = ways[i].as_mut().is_some_and(Probe::go_on);
                    looking |= u32::from(more) << i;
                    unsure |= u32::from(!more) << i;
                };
                ones(past & !candidates).for_each(|i| go_on(&mut ways, i));
                for i in ones(candidates) {
                    let Some(way) = &ways[i] else { continue };
                    hits |= u32::from(way.take(living, row(rows, i, width))) << i;
                }
                for i in ones(candidates & !hits) {
                    let Some(way) = &ways[i] else { continue };
                    match way.look_closely(ids[i], living, row(rows, i, width)) {
                        Looked::Found(()) => hits |= 1 << i,
                        Looked::Absent => {}
                        Looked::Past => go_on(&mut ways, i),
                    }
                }
            }
        }
        for i in ones(all & !hits & !unsure) {
            let moved = ways[i].is_none_or(|way| way.entry.slot().has_moved(ids[i]));
            unsure |= u32::from(moved || self.may_lie_below(ids[i])) << i;
        }
        (hits, unsure)
    }

    /// Which of the ids, in bits, lie below the horizon. Their rows are made zero.
    #[cold]
    fn retired_among(&self, ids: &[u64], width: usize, rows: &mut [i64]) -> u32 {
        let retired = (0..ids.len()).filter(|&i| ids[i] < self.horizon);
        retired.fold(0, |bits, i| {
            row(rows, i, width).fill(0);
            bits | 1 << i
        })
    }

    /// Where `id` is looked for first; `None` if that is a place which the quick way does not know.
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

/// Notes of each chunk of so many ids, which have these bits, whether there is a row.
#[inline(always)]
fn hits(found: &mut Vec<bool>) -> impl FnMut(usize, u32) {
    |number, hits| found.extend((0..number).map(|i| hits >> i & 1 == 1))
}

/// The `i`-th of rows of so many values. That the product fits is not asked: `rows` has that row.
#[inline(always)]
fn row(rows: &mut [i64], i: usize, width: usize) -> &mut [i64] {
    &mut rows[i.wrapping_mul(width)..][..width]
}
