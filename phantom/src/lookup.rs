//! Reading: one pair, or one member and many ids.
//!
//! The order matters. A pair aside moves into a table at any moment, first stored there, then deleted here. So a reader asks the
//! aside first; and takes the list of tables only after that, or the list might lack the table into which the pair went (P1).
//!
//! A batch goes in two passes, as the counters do: [`Space::ask`] hashes all pairs and has the first line of each fetched; [`Space::answer`]
//! looks. The fetches overlap, and a check costs what two of them cost in a row of many, not the wait for one. Whoever has other
//! memory to wait for does so between the two.
//!
//! The second pass goes filter by filter, in bits: what the first line says of all pairs, which of those that it leaves open the whole
//! filter has, so that no jump depends on what is found for one pair. Whether a pair is to be looked at is no jump either: its line has been
//! fetched, so it is looked at, and the answer is left out.

use crate::filter::draws;
use crate::hash::{Member, Pair};
use crate::options::Answer;
use crate::space::Space;
use crate::table::{State, Table};
use rolling::Loaded;
use std::sync::Arc;

/// Most ids that are asked for together: enough for all fetches that a core has in flight, and a bit each in a u32.
pub const BATCH: usize = 32;

/// Ids that were asked for ([`Space::ask`]): what is known of them already, and where to look for the rest. Its memory is meant to be used
/// again.
#[derive(Default)]
pub struct Asked {
    tables: Option<Loaded<Arc<Table>>>,
    /// How many they are.
    number: usize,
    pairs: [Pair; BATCH],
    /// Where the first line of each is in the first filter of its table, and what its bits there are drawn from.
    lines: [usize; BATCH],
    draws: [u64; BATCH],
    /// Indexes of their tables.
    at: [u32; BATCH],
    /// In bits: those that are set, as they are held aside; those below the horizon; those to be looked up; of these, those whose table has more
    /// than one filter.
    aside: u32,
    unknown: u32,
    open: u32,
    chained: u32,
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

/// The positions of the bits of a word.
#[inline(always)]
fn ones(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (at < BATCH).then_some(at)
    })
}

impl Space {
    /// Whether the pair is set.
    #[inline]
    pub fn contains(&self, id: u64, member: &Member) -> Answer {
        self.contains_pair(&self.pair(id, member))
    }

    /// [`Space::contains`] for a pair that was hashed before: what the log stores is asked like this.
    #[inline]
    pub fn contains_pair(&self, pair: &Pair) -> Answer {
        if self.is_aside(pair) {
            return Answer::Yes;
        }
        let tables = self.ring.load();
        match tables.find(pair.id) {
            None => Answer::Unknown,
            Some(entry) => answer(entry.table().state(pair)),
        }
    }

    /// One member, many ids, the feed's shape: appends an answer per id. Faster per id than [`Space::contains`], as the memory
    /// of up to 32 pairs is fetched at once.
    pub fn contains_batch(&self, member: &Member, ids: &[u64], out: &mut Vec<Answer>) {
        let mut asked = Asked::default();
        for ids in ids.chunks(BATCH) {
            self.ask(member, ids, &mut asked);
            let answers = self.answer(&mut asked, u32::MAX);
            out.extend((0..ids.len()).map(|i| answers.at(i)));
        }
    }

    /// The first pass over one member and at most [`BATCH`] ids. See the top of the file.
    pub fn ask(&self, member: &Member, ids: &[u64], asked: &mut Asked) {
        assert!(ids.len() <= BATCH, "{} ids at once", ids.len());
        let member = self.seed.ready(member);
        (asked.number, asked.aside) = (ids.len(), 0);
        if !self.aside.is_empty() {
            let are_aside = ids.iter().map(|&id| self.is_aside(&self.seed.pair(id, member)));
            asked.aside = are_aside.enumerate().fold(0, |bits, (i, is_aside)| bits | u32::from(is_aside) << i);
        }
        // After the aside: see the top of the file.
        let tables = asked.tables.insert(self.ring.load());
        let (mut unknown, mut chained) = (0u32, 0u32);
        for (i, &id) in ids.iter().enumerate() {
            let pair = self.seed.pair(id, member);
            let index = tables.index_of(id);
            // Below the horizon anything may be looked at.
            let at = index.unwrap_or_default();
            let table: &Table = tables.entries()[at].table();
            let filter = table.first_filter();
            let line = filter.first_line(&pair);
            filter.prefetch_line(line);
            unknown |= u32::from(index.is_none()) << i;
            if table.is_chained() {
                chained |= 1 << i;
                table.prefetch_for_no(&pair, &filter.spot(&pair));
            }
            (asked.at[i], asked.lines[i], asked.draws[i]) = (at as u32, line, draws(&pair, 0));
            asked.pairs[i] = pair;
        }
        let all = u32::MAX.checked_shr((BATCH - ids.len()) as u32).unwrap_or(0);
        (asked.unknown, asked.chained, asked.open) = (unknown, chained, all & !unknown & !asked.aside);
    }

    /// The second pass: the answers for the ids that were asked for. Those whose bit in `wanted` is not set are not looked up, but answered
    /// with no, or with unknown below the horizon: for flags of which it is known that nobody has set them.
    pub fn answer(&self, asked: &mut Asked, wanted: u32) -> Answers {
        let Some(tables) = asked.tables.take() else { return Answers::default() };
        let Asked { pairs, lines, draws, at, .. } = &*asked;
        let table = |i: usize| -> &Table { tables.entries()[at[i] as usize].table() };
        let open = asked.open & wanted;
        let may = |i: usize| table(i).first_filter().may_contain_in(lines[i], draws[i]);
        let maybe = open & (0..asked.number.min(BATCH)).fold(0, |bits, i| bits | u32::from(may(i)) << i);
        let spot = |i: usize| table(i).first_filter().spot(&pairs[i]);
        ones(maybe).for_each(|i| table(i).first_filter().prefetch(&spot(i), 1));
        let mut found = ones(maybe)
            .fold(0, |bits, i| bits | u32::from(table(i).first_filter().does_contain(&pairs[i], &spot(i))) << i);
        for i in ones(open & !found & asked.chained) {
            found |= u32::from(table(i).more_contain(&pairs[i], &spot(i))) << i;
        }
        let mut yes = asked.aside & wanted;
        for i in ones(found) {
            yes |= u32::from(table(i).found(true, &pairs[i]) == State::Set) << i;
        }
        Answers { yes, unknown: asked.unknown & !yes }
    }

    #[inline]
    fn is_aside(&self, pair: &Pair) -> bool {
        self.aside.may_hold(pair.id) && self.aside.read(pair.id, |set| set.contains(&pair.hash())) == Some(true)
    }

    /// Hints that the pair will be asked for, set or unset soon: call it for all pairs of a request, then do what is asked. An
    /// addition to a large filter takes a third of the time then.
    #[inline]
    pub fn prefetch(&self, id: u64, member: &Member) {
        let pair = self.pair(id, member);
        if let Some(entry) = self.ring.load().find(id) {
            let table = entry.table();
            table.prefetch(&pair, &table.first_filter().spot(&pair));
        }
    }
}

fn answer(state: State) -> Answer {
    if state == State::Set { Answer::Yes } else { Answer::No }
}
