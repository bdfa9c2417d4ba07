//! Lookups: one pair, or one member and many ids.
//!
//! The order of a lookup matters. An outlier (a pair of an id far above all tables) may move into a
//! table at any time. The move inserts it into the table first and then deletes it from the
//! outliers. A lookup therefore searches the outliers first, and loads the list of tables
//! afterwards. Otherwise the list might lack the table that received the pair (P1).
//!
//! A batch takes two passes, so that cache misses overlap. [`Lookup::place`] hashes all pairs and
//! prefetches the first line of each; [`PlacedPairs::answer`] reads the lines. The caller can do
//! other work between the passes.
//!
//! The second pass proceeds filter by filter on bit masks. It tests the first lines of all pairs,
//! then the whole filter for the remaining pairs. This avoids unpredictable branches per pair. The
//! passes also test pairs that need no lookup, and mask out their results.

use crate::filter::{self, Line, seem_set};
use crate::hash::{Member, Pair, PreparedMember};
use crate::options::Answer;
use crate::space::Space;
use crate::table::{State, Table};
use rolling::{Loaded, Unreadable, UnreadableIds, ones};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Maximum number of ids per lookup. This number uses all outstanding cache-line fetches of a core,
/// and fits into a u32 bit mask.
pub const BATCH: usize = 32;

/// Number of first lines prefetched at once ([`rolling::prefetch`] explains the limit). The limit
/// does not apply to extension filters, because few tables have any.
const PREFETCHED_LINES: usize = 10;

/// Lookup of one member and at most [`BATCH`] ids. It owns a reference to the list of tables.
pub struct Lookup<'s> {
    space: &'s Space,
    ids: &'s [u64],
    member: PreparedMember,
    tables: Loaded<Arc<Table>>,
    /// Bit mask of the ids whose pair is an outlier.
    outliers: u32,
}

/// Buffers for a [`Lookup`], 1.6 kB. The caller provides them to avoid copies.
#[derive(Clone, Copy)]
pub struct Pairs<'l> {
    /// Per pair: its hash, the word from which its bits are drawn, its table, and its first line in
    /// the table's first filter.
    pairs: [Pair; BATCH],
    draws: [u64; BATCH],
    tables: [&'l Table; BATCH],
    lines: [&'l Line; BATCH],
    /// Bit masks of the ids below the horizon, of the pairs to look up, and of the pairs whose
    /// table has extensions.
    unknown: u32,
    open: u32,
    chained: u32,
}

/// Pairs of a [`Lookup`] whose first lines have been prefetched.
#[derive(Clone, Copy)]
pub struct PlacedPairs<'p> {
    lookup: &'p Lookup<'p>,
    pairs: &'p Pairs<'p>,
}

/// Answers for at most [`BATCH`] ids, one bit per id, starting at the lowest bit. An id in neither
/// mask is not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Bit mask of set pairs.
    pub yes: u32,
    /// Bit mask of ids below the horizon.
    pub unknown: u32,
}

impl Answers {
    /// Returns the answer for the id at `index`, which must be below [`BATCH`].
    #[inline(always)]
    pub fn at(self, index: usize) -> Answer {
        match (self.yes >> (index % BATCH) & 1, self.unknown >> (index % BATCH) & 1) {
            (0, 0) => Answer::No,
            (0, _) => Answer::Unknown,
            _ => Answer::Yes,
        }
    }
}

impl Space {
    /// Returns the state of the pair.
    #[inline]
    pub fn contains(&self, id: u64, member: &Member) -> Result<Answer, Unreadable> {
        self.contains_pair(&self.pair(id, member))
    }

    /// Like [`Space::contains`], for a hashed pair, such as one from the log.
    #[inline]
    pub fn contains_pair(&self, pair: &Pair) -> Result<Answer, Unreadable> {
        if self.is_outlier(pair) {
            return Ok(Answer::Yes);
        }
        let tables = self.ring.load();
        match tables.find(pair.id) {
            None => Ok(Answer::Unknown),
            Some(entry) => Ok(answer(entry.table().state(pair)?)),
        }
    }

    /// Appends one answer per id for a single member. This is faster per id than
    /// [`Space::contains`], because the cache misses of up to 32 pairs overlap. An id that cannot
    /// be read gets the answer `No` and is listed in the error.
    pub fn contains_batch(
        &self,
        member: &Member,
        ids: &[u64],
        out: &mut Vec<Answer>,
    ) -> Result<(), UnreadableIds> {
        self.answer_batches(member, ids, |ids, answers| {
            out.extend((0..ids.len()).map(|i| answers.at(i)));
        })
    }

    /// Same as [`Space::contains_batch`], but calls `each` for every [`BATCH`] ids with their
    /// answers, in order.
    #[inline]
    pub fn answer_batches(
        &self,
        member: &Member,
        ids: &[u64],
        mut each: impl FnMut(&[u64], Answers),
    ) -> Result<(), UnreadableIds> {
        let mut failed = Vec::new();
        for ids in ids.chunks(BATCH) {
            let answers = {
                let lookup = self.lookup(member, ids);
                lookup.place(&mut lookup.pairs()).answer(&mut failed)
            };
            // The list of tables is released here, so `each` may write.
            each(ids, answers);
        }
        UnreadableIds::check(failed)
    }

    /// Begins a lookup of one member and at most [`BATCH`] ids. The module documentation explains
    /// the two passes.
    ///
    /// # Panics
    /// If there are more than [`BATCH`] ids.
    pub fn lookup<'s>(&'s self, member: &Member, ids: &'s [u64]) -> Lookup<'s> {
        assert!(ids.len() <= BATCH, "a batch of {} ids is too large", ids.len());
        let member = self.seed.prepare_member(member);
        let mut outliers = 0;
        if !self.outliers.is_empty() {
            let are_outliers =
                ids.iter().map(|&id| self.is_outlier(&self.current(self.seed.pair(id, member))));
            outliers = are_outliers
                .enumerate()
                .fold(0, |bits, (i, is_outlier)| bits | u32::from(is_outlier) << i);
        }
        // The search of the outliers must precede the load of the tables. See the module
        // documentation.
        Lookup { space: self, ids, member, tables: self.ring.load(), outliers }
    }

    #[inline]
    pub(crate) fn is_outlier(&self, pair: &Pair) -> bool {
        self.outliers.may_hold(pair.id)
            && self.outliers.read(pair.id, |set| set.read().contains(&pair.hash())) == Some(true)
    }

    /// Prefetches the cache lines for a later lookup or write. Call it for all pairs of a request
    /// before the first lookup or write. A write to a large filter is then three times as fast.
    #[inline]
    pub fn prefetch(&self, id: u64, member: &Member) {
        self.pair_prefetcher().prefetch(id, member);
    }

    /// Returns a handle that prefetches for many requests but loads the list of tables only once.
    #[inline]
    pub fn pair_prefetcher(&self) -> PairPrefetcher<'_> {
        PairPrefetcher { space: self, tables: self.ring.load() }
    }
}

/// Prefetch handle; see [`Space::pair_prefetcher`]. Drop it after the current requests, because it
/// keeps the list of tables alive.
pub struct PairPrefetcher<'s> {
    space: &'s Space,
    tables: Loaded<Arc<Table>>,
}

impl PairPrefetcher<'_> {
    /// Like [`Space::prefetch`].
    #[inline]
    pub fn prefetch(&self, id: u64, member: &Member) {
        self.prefetch_pair(&self.space.pair(id, member));
    }

    /// Like [`Space::prefetch`], for a hashed pair.
    #[inline]
    pub fn prefetch_pair(&self, pair: &Pair) {
        if let Some(entry) = self.tables.find(pair.id) {
            let table = entry.table();
            table.prefetch(pair, &table.first_filter().probe(pair));
        }
    }
}

impl Lookup<'_> {
    /// Returns the buffers for this lookup.
    #[inline(always)]
    pub fn pairs(&self) -> Pairs<'_> {
        let oldest: &Table = self.tables.oldest().table();
        Pairs {
            pairs: [Pair::default(); BATCH],
            draws: [0; BATCH],
            tables: [oldest; BATCH],
            lines: [oldest.first_filter().first(); BATCH],
            unknown: 0,
            open: 0,
            chained: 0,
        }
    }

    /// First pass: hashes all pairs and prefetches their first lines.
    pub fn place<'p>(&'p self, room: &'p mut Pairs<'p>) -> PlacedPairs<'p> {
        let Lookup { space, ids, member, tables: ring, outliers } = self;
        let Pairs { pairs, draws, tables, lines, .. } = &mut *room;
        space.seed.pairs(ids, *member, pairs);
        if space.forgotten.any() {
            space.forgotten.renew(space.seed, &mut pairs[..ids.len()]);
        }
        let (mut unknown, mut chained, mut bit) = (0, 0, 1u32);
        let places = draws.chunks_mut(PREFETCHED_LINES).zip(tables.chunks_mut(PREFETCHED_LINES));
        let places = places.zip(lines.chunks_mut(PREFETCHED_LINES));
        let parts = ids.chunks(PREFETCHED_LINES).zip(pairs.chunks(PREFETCHED_LINES)).zip(places);
        for ((ids, pairs), ((draws, tables), lines)) in parts {
            let places = draws.iter_mut().zip(tables).zip(&mut *lines);
            for ((&id, pair), ((draws, table), line)) in ids.iter().zip(pairs).zip(places) {
                *draws = filter::draws(pair, 0);
                // An id below the horizon uses the oldest table; its result is masked out.
                match ring.find(id) {
                    Some(entry) => *table = entry.table(),
                    None => unknown |= bit,
                }
                *line = table.first_filter().first_line(pair);
                chained |= if table.is_chained() { bit } else { 0 };
                bit = bit.wrapping_shl(1);
            }
            lines[..ids.len()].iter().for_each(|line| rolling::prefetch(*line));
        }
        let all = ((1u64 << ids.len()) - 1) as u32;
        (room.unknown, room.chained, room.open) = (unknown, chained, all & !unknown & !outliers);
        let pairs = &*room;
        for (table, here) in pairs.by_table(chained) {
            for link in table.chain() {
                ones(here).for_each(|i| rolling::prefetch(link.filter.first_line(&pairs.pairs[i])));
            }
        }
        PlacedPairs { lookup: self, pairs }
    }
}

impl Pairs<'_> {
    /// Groups pairs by table. There are usually one or two groups.
    #[inline(always)]
    fn by_table(&self, mut left: u32) -> impl Iterator<Item = (&Table, u32)> {
        std::iter::from_fn(move || {
            let table = self.tables[ones(left).next()?];
            let is_here = |&i: &usize| std::ptr::eq(self.tables[i], table);
            let here = ones(left).filter(is_here).fold(0, |bits, i| bits | 1 << i);
            left &= !here;
            Some((table, here))
        })
    }

    /// Returns those of the pairs in `asked` that an extension or a filter on disk contains.
    fn in_chains(&self, asked: u32, failed: &mut Vec<Unreadable>) -> u32 {
        // Index, line and draws of the remaining pairs, without gaps.
        let (mut at, mut lines, mut draws) = ([0u8; BATCH], self.lines, [0; BATCH]);
        let mut found = 0;
        for (table, here) in self.by_table(asked) {
            for link in table.chain() {
                let left = here & !found;
                for (((i, at), line), draws) in
                    ones(left).zip(&mut at).zip(&mut lines).zip(&mut draws)
                {
                    (*at, *line, *draws) =
                        (i as u8, link.filter.first_line(&self.pairs[i]), self.draws[i]);
                }
                let number = left.count_ones() as usize;
                for j in ones(seem_set(link.filter.sizing().bits, number, &lines, &draws)) {
                    let i = usize::from(at[j]);
                    let (filter, pair) = (&link.filter, &self.pairs[i]);
                    found |= u32::from(filter.confirm_contains(pair, &filter.probe(pair))) << i;
                }
            }
            let left = here & !found;
            if left != 0 && table.cold().is_some() {
                for i in ones(left) {
                    match table.seems_set_on_disk(&self.pairs[i]) {
                        Ok(seems_set) => found |= u32::from(seems_set) << i,
                        Err(unreadable) => failed.push(unreadable),
                    }
                }
            }
        }
        found
    }
}

impl PlacedPairs<'_> {
    /// Second pass: returns the answers for the ids. A pair that cannot be read gets the answer
    /// `No` and is added to `failed`.
    pub fn answer(self, failed: &mut Vec<Unreadable>) -> Answers {
        let PlacedPairs { lookup, pairs } = self;
        let Lookup { space, ids, outliers, .. } = *lookup;
        let bits = space.fewest_bits.load(Relaxed);
        let maybe = pairs.open & seem_set(bits, ids.len(), &pairs.lines, &pairs.draws);
        for i in ones(maybe) {
            let filter = pairs.tables[i].first_filter();
            filter.prefetch(&filter.probe(&pairs.pairs[i]), 1);
        }
        let mut found = 0;
        for i in ones(maybe) {
            let (filter, pair) = (pairs.tables[i].first_filter(), &pairs.pairs[i]);
            let probe = filter.probe(pair);
            // A table with another rate may have more bits per line than were tested.
            let may = filter.sizing().bits == bits || filter.may_contain(pair, &probe);
            found |= u32::from(may && filter.confirm_contains(pair, &probe)) << i;
        }
        let chained = pairs.open & !found & pairs.chained;
        if chained != 0 {
            found |= pairs.in_chains(chained, failed);
        }
        let mut yes = outliers;
        for i in ones(found) {
            yes |= u32::from(pairs.tables[i].found(true, &pairs.pairs[i]) == State::Set) << i;
        }
        Answers { yes, unknown: pairs.unknown & !yes }
    }
}

fn answer(state: State) -> Answer {
    if state == State::Set { Answer::Yes } else { Answer::No }
}
