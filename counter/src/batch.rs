//! Reads of many rows at once, so that their memory accesses overlap and the processor rarely guesses wrong.
//!
//! ```text
//!   begin      for all ids: table, bucket; ask the cache for the bucket
//!   round      for those that are looking: which slots have the right first byte? Some -> candidates. None, but the mark -> onward.
//!              for those that go onward:   the next bucket; ask the cache for it
//!              for the candidates:         the whole tag, the fields; a wrong one with the mark -> onward
//! ```
//!
//! Where an id goes next cannot be predicted, so it is no jump: each has a bit in a set, and the sets are walked bit by bit. What is left to
//! jumps is usual (the first candidate is right) or is a set's end.
//!
//! The search itself needs no version: the tag of a row that is there all the time is there at every moment (B1, T1). Its fields do.

use crate::bucket::{Bucket, Matches};
use crate::key::PROBES;
use crate::read::{Read, is_current};
use crate::table::Table;
use rolling::Entry;

/// Ids that are looked up together: enough to overlap memory latencies, few enough to stay in the first cache; one bit each in a u32.
const CHUNK: usize = 32;

/// The numbers of a set, which are below [`CHUNK`].
#[inline(always)]
fn members(mut set: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = (set != 0).then(|| set.trailing_zeros() as usize % CHUNK);
        set &= set.wrapping_sub(1);
        first
    })
}

/// Where the search for one row stands.
#[derive(Clone, Copy)]
struct Way<'a> {
    entry: &'a Entry<Table>,
    bucket: Bucket<'a>,
    /// The bucket's number.
    index: u64,
    remainder: u64,
    tag: u64,
    matches: Matches,
    past: bool,
}

impl<'a> Way<'a> {
    fn table(&self) -> &'a Table {
        self.entry.table()
    }

    /// Looks at the first bytes of the bucket.
    #[inline(always)]
    fn look(&mut self) {
        self.matches = self.bucket.matches(self.tag as u8, 0);
        self.past = self.bucket.head().is_past(self.remainder);
    }

    /// Goes on to the next bucket; whether there is one.
    #[inline(always)]
    fn go_on(&mut self) -> bool {
        let main = self.table().main();
        self.index = main.keys.next(self.index, main.keys.step(self.remainder));
        main.prefetch(self.index);
        self.bucket = main.bucket(self.index);
        self.tag = self.tag.wrapping_add(main.layout.tag(0, 0));
        self.tag < main.layout.tag(0, PROBES)
    }

    /// Fills `out` with the row of `id`, if it is among the matches.
    #[inline(always)]
    fn take(&self, id: u64, living: u64, out: &mut [i64]) -> bool {
        let layout = self.table().layout();
        let usual = layout.usual(living, out.len());
        let take = |bucket: Bucket<'a>| {
            let mut matches = self.matches;
            while let Some(slot) = matches.next(0) {
                if let Some(packed) = usual {
                    let rest = bucket.rest(slot);
                    if rest & layout.tag_rest_mask() != self.tag >> 8 {
                        continue;
                    }
                    if packed.take(rest, out) {
                        return true;
                    }
                } else if !bucket.is(slot, self.tag) {
                    continue;
                }
                self.table().row_in(bucket, self.index, slot, id).values_one_by_one(living, out);
                return true;
            }
            false
        };
        self.bucket.read(take).0
    }
}

impl Read<'_> {
    /// See [`crate::Space::get_batch`].
    pub fn get_batch(&mut self, ids: &[u64], rows: &mut Vec<i64>, found: &mut Vec<bool>) {
        let width = self.shape.schema.width();
        let mut at = rows.len();
        rows.resize(at + ids.len() * width, 0);
        for ids in ids.chunks(CHUNK) {
            let rows = &mut rows[at..at + ids.len() * width];
            at += ids.len() * width;
            let (hits, mut unsure) = self.get_chunk(ids, width, rows);
            let first = found.len();
            found.extend((0..ids.len()).map(|i| hits >> i & 1 == 1));
            while unsure != 0 {
                let i = unsure.trailing_zeros() as usize;
                unsure &= unsure - 1;
                found[first + i] = self.get(ids[i], &mut rows[i * width..][..width]);
            }
        }
    }

    /// Fills `rows`, which are zero, as far as that is quick. Two sets: the ids whose rows were found, and those to ask again for one by one.
    fn get_chunk(&self, ids: &[u64], width: usize, rows: &mut [i64]) -> (u32, u32) {
        let living = self.shape.living;
        let mut ways = [None; CHUNK];
        let mut looking = 0u32;
        for (i, (&id, way)) in ids.iter().zip(&mut ways).enumerate() {
            *way = self.way(id);
            looking |= u32::from(way.is_some()) << i;
        }
        let all = u32::MAX >> (CHUNK - ids.len());
        let (mut hits, mut unsure) = (0, all & !looking);
        // In two parts: the rows of the first are taken while the lines of the second are on their way.
        let early = all >> (ids.len() / 2);
        while looking != 0 {
            let parts = [looking & early, looking & !early];
            looking = 0;
            for part in parts {
                let (mut candidates, mut onward) = (0, 0);
                for i in members(part) {
                    let Some(way) = &mut ways[i] else { continue };
                    way.look();
                    candidates |= u32::from(!way.matches.is_empty()) << i;
                    onward |= u32::from(way.matches.is_empty() & way.past) << i;
                }
                for i in members(onward) {
                    let Some(way) = &mut ways[i] else { continue };
                    let more = way.go_on();
                    looking |= u32::from(more) << i;
                    unsure |= u32::from(!more) << i;
                }
                for i in members(candidates) {
                    let Some(way) = &mut ways[i] else { continue };
                    let out = &mut rows[i * width..][..width];
                    if way.take(ids[i], living, out) {
                        hits |= 1 << i;
                        continue;
                    }
                    // A row that was deleted under the search may have left something.
                    out.fill(0);
                    if way.past {
                        let more = way.go_on();
                        looking |= u32::from(more) << i;
                        unsure |= u32::from(!more) << i;
                    }
                }
            }
        }
        for i in members(all & !hits & !unsure) {
            let current = ways[i].is_some_and(|way| is_current(way.entry, ids[i]));
            unsure |= u32::from(!current || self.may_lie_below(ids[i])) << i;
        }
        (hits, unsure)
    }

    /// Where `id` is looked for first, and is asked for, if it is in none of the places that the quick way does not know: the aside, a
    /// drained table.
    #[inline(always)]
    fn way(&self, id: u64) -> Option<Way<'_>> {
        let entry = self.tables.find(id)?;
        let main = entry.table().main();
        let home = main.keys.home(id)?;
        // In the order in which rows move: aside, drained table, table.
        let elsewhere = self.space.aside.may_hold(id) || entry.drains().is_some();
        if elsewhere || main.layout.byte_lines > 1 {
            return None;
        }
        main.prefetch(home.bucket);
        Some(Way {
            entry,
            bucket: main.bucket(home.bucket),
            index: home.bucket,
            remainder: home.remainder,
            tag: main.layout.tag(home.remainder, 0),
            matches: Matches::default(),
            past: false,
        })
    }
}
