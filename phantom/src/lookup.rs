//! Reading: one pair, or one member and many ids.
//!
//! The order matters. A pair aside moves into a table at any moment, first stored there, then
//! deleted here. So a reader asks the outliers first; and takes the list of tables only after that,
//! or the list might lack the table into which the pair went (P1).
//!
//! A batch goes in two passes: [`Lookup::place`] hashes all pairs, finds the first line of each,
//! and has it fetched; [`Placed::answer`] looks. The fetches overlap, and a check costs what two
//! of them cost in a row of many, not the wait for one. A caller with other memory to wait for does
//! that between the two.
//!
//! The second pass goes filter by filter, in bits: what the first line says of all pairs, which of
//! those that it leaves open the whole filter has, so that few jumps depend on what is found for
//! one pair. Whether a pair is to be looked at is no jump either: its line has been fetched, so it
//! is looked at, and the answer is left out.

use crate::filter::{self, Line, seem_set};
use crate::hash::{Member, Pair, PreparedMember};
use crate::options::Answer;
use crate::space::Space;
use crate::table::{State, Table};
use rolling::{Loaded, Unreadable, UnreadableIds, ones};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Most ids that are asked for together: enough for all fetches that a core has in flight, and a
/// bit each in a u32.
pub const BATCH: usize = 32;

/// First lines of pairs that are asked for in one go: [`rolling::prefetch`] says why not more.
/// Those of further filters, which few tables have, follow without a limit.
const ASKED_AT_ONCE: usize = 10;

/// One member and at most [`BATCH`] ids that are about to be looked up: what has to be asked before
/// the list of tables is taken, and that list.
pub struct Lookup<'s> {
    space: &'s Space,
    ids: &'s [u64],
    member: PreparedMember,
    tables: Loaded<Arc<Table>>,
    /// In bits: pairs that are set, as they are held aside.
    outliers: u32,
}

/// Room for the pairs of a [`Lookup`]: what is known of them already, and where to look for the
/// rest. It takes 1.6 kB, so the caller keeps it where it is.
#[derive(Clone, Copy)]
pub struct Pairs<'l> {
    /// Each pair, what its bits in a first line are drawn from, its table, and its first line in
    /// the first filter of that.
    pairs: [Pair; BATCH],
    draws: [u64; BATCH],
    tables: [&'l Table; BATCH],
    lines: [&'l Line; BATCH],
    /// In bits: ids below the horizon; pairs to be looked up; of these, those whose table has more
    /// than one filter.
    unknown: u32,
    open: u32,
    chained: u32,
}

/// The pairs of a [`Lookup`] after they were placed, their lines on the way into the cache.
#[derive(Clone, Copy)]
pub struct Placed<'p> {
    lookup: &'p Lookup<'p>,
    pairs: &'p Pairs<'p>,
}

/// Answers for at most [`BATCH`] ids, a bit each, the first id's the lowest: what is neither is no.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Set.
    pub yes: u32,
    /// Below the horizon.
    pub unknown: u32,
}

impl Answers {
    /// The answer for the id at position `index`, which is below [`BATCH`].
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
    /// Whether the pair is set.
    #[inline]
    pub fn contains(&self, id: u64, member: &Member) -> Result<Answer, Unreadable> {
        self.contains_pair(&self.pair(id, member))
    }

    /// [`Space::contains`] for a pair that was hashed before: what the log stores is asked like
    /// this.
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

    /// One member, many ids, the feed's shape: appends an answer per id. Faster per id than
    /// [`Space::contains`], as the memory of up to 32 pairs is fetched at once. An id of which the
    /// answer cannot be read is in the error, and answered with no.
    pub fn contains_batch(
        &self,
        member: &Member,
        ids: &[u64],
        out: &mut Vec<Answer>,
    ) -> Result<(), UnreadableIds> {
        let mut failed = Vec::new();
        for ids in ids.chunks(BATCH) {
            let lookup = self.lookup(member, ids);
            let mut pairs = lookup.pairs();
            let placed = lookup.place(&mut pairs);
            let answers = placed.answer(&mut failed);
            out.extend((0..ids.len()).map(|i| answers.at(i)));
        }
        UnreadableIds::check(failed)
    }

    /// Begins to look up one member and at most [`BATCH`] ids. See the top of the file.
    pub fn lookup<'s>(&'s self, member: &Member, ids: &'s [u64]) -> Lookup<'s> {
        assert!(ids.len() <= BATCH, "{} ids at once", ids.len());
        let member = self.seed.ready(member);
        let mut outliers = 0;
        if !self.outliers.is_empty() {
            let are_outliers =
                ids.iter().map(|&id| self.is_outlier(&self.current(self.seed.pair(id, member))));
            outliers = are_outliers
                .enumerate()
                .fold(0, |bits, (i, is_outlier)| bits | u32::from(is_outlier) << i);
        }
        // After the outliers: see the top of the file.
        Lookup { space: self, ids, member, tables: self.ring.load(), outliers }
    }

    #[inline]
    pub(crate) fn is_outlier(&self, pair: &Pair) -> bool {
        self.outliers.may_hold(pair.id)
            && self.outliers.read(pair.id, |set| set.read().contains(&pair.hash())) == Some(true)
    }

    /// Hints that the pair will be asked for, set or unset soon: call it for all pairs of a
    /// request, then do what is asked. An addition to a large filter takes a third of the time
    /// then.
    #[inline]
    pub fn prefetch(&self, id: u64, member: &Member) {
        self.hints().prefetch(id, member);
    }

    /// For many of them, of different requests: takes the list of tables once.
    #[inline]
    pub fn hints(&self) -> Hints<'_> {
        Hints { space: self, tables: self.ring.load() }
    }
}

/// See [`Space::hints`]. To be held for no longer than the requests at hand.
pub struct Hints<'s> {
    space: &'s Space,
    tables: Loaded<Arc<Table>>,
}

impl Hints<'_> {
    /// As [`Space::prefetch`].
    #[inline]
    pub fn prefetch(&self, id: u64, member: &Member) {
        self.prefetch_pair(&self.space.pair(id, member));
    }

    /// The same for a pair that is hashed already.
    #[inline]
    pub fn prefetch_pair(&self, pair: &Pair) {
        if let Some(entry) = self.tables.find(pair.id) {
            let table = entry.table();
            table.prefetch(pair, &table.first_filter().probe(pair));
        }
    }
}

impl Lookup<'_> {
    /// Room for its pairs, or for those of another lookup.
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

    /// The first pass: hashes all pairs, finds the first line of each, and has these fetched.
    pub fn place<'p>(&'p self, room: &'p mut Pairs<'p>) -> Placed<'p> {
        let Lookup { space, ids, member, tables: ring, outliers } = self;
        let Pairs { pairs, draws, tables, lines, .. } = &mut *room;
        space.seed.pairs(ids, *member, pairs);
        if space.forgotten.any() {
            space.forgotten.renew(space.seed, &mut pairs[..ids.len()]);
        }
        let (mut unknown, mut chained, mut bit) = (0, 0, 1u32);
        let places = draws.chunks_mut(ASKED_AT_ONCE).zip(tables.chunks_mut(ASKED_AT_ONCE));
        let places = places.zip(lines.chunks_mut(ASKED_AT_ONCE));
        let parts = ids.chunks(ASKED_AT_ONCE).zip(pairs.chunks(ASKED_AT_ONCE)).zip(places);
        for ((ids, pairs), ((draws, tables), lines)) in parts {
            let places = draws.iter_mut().zip(tables).zip(&mut *lines);
            for ((&id, pair), ((draws, table), line)) in ids.iter().zip(pairs).zip(places) {
                *draws = filter::draws(pair, 0);
                // Below the horizon anything may be looked at: the oldest is there already.
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
        Placed { lookup: self, pairs }
    }
}

impl Pairs<'_> {
    /// The tables of these pairs, with the pairs of each: one or two, mostly.
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

    /// Which of these pairs something behind the first filter of their table has: filter by filter,
    /// as the first ones are looked at.
    fn in_chains(&self, asked: u32, failed: &mut Vec<Unreadable>) -> u32 {
        // Those that are looked at, one right behind the other.
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
                    found |= u32::from(filter.does_contain(pair, &filter.probe(pair))) << i;
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

impl Placed<'_> {
    /// Runs the second pass and returns the answers for the ids. A pair that cannot be read is
    /// answered with no and added to `failed`.
    pub fn answer(self, failed: &mut Vec<Unreadable>) -> Answers {
        let Placed { lookup, pairs } = self;
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
            // Of a table for another rate not all draws were asked.
            let may = filter.sizing().bits == bits || filter.may_contain(pair, &probe);
            found |= u32::from(may && filter.does_contain(pair, &probe)) << i;
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
