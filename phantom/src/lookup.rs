//! Reading: one pair, or one member and many ids.
//!
//! The order matters. A pair aside moves into a table at any moment, first stored there, then deleted here. So a reader asks the
//! aside first; and takes the list of tables only after that, or the list might lack the table into which the pair went (P1).
//!
//! A batch goes in two passes, as the counters do: hash all pairs and have their two lines each fetched; then look. The fetches overlap,
//! and a check costs what two of them cost in a row of many, not the wait for one.

use crate::filter::Spot;
use crate::hash::{Member, Pair, Ready};
use crate::options::Answer;
use crate::space::Space;
use crate::table::{State, Table};

/// Ids that are looked up together: enough for all fetches that a core has in flight.
const BATCH: usize = 32;

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
        self.contains_batch_where(member, ids, std::iter::repeat(true), out);
    }

    /// [`Space::contains_batch`], in which only the ids for which `wanted` says so are looked up: the others are answered with no, or
    /// with unknown below the horizon. For flags of which it is known that nobody has set them.
    pub fn contains_batch_where(
        &self,
        member: &Member,
        ids: &[u64],
        wanted: impl IntoIterator<Item = bool>,
        out: &mut Vec<Answer>,
    ) {
        let member = self.seed.ready(member);
        let mut wanted = wanted.into_iter();
        out.reserve(ids.len());
        for ids in ids.chunks(BATCH) {
            let bits = (0..ids.len()).fold(0, |bits, i| bits | u32::from(wanted.next().unwrap_or(true)) << i);
            self.contains_chunk(member, ids, bits, out);
        }
    }

    #[inline]
    fn contains_chunk(&self, member: Ready, ids: &[u64], wanted: u32, out: &mut Vec<Answer>) {
        let mut pairs = [Pair { id: 0, high: 0, low: 0 }; BATCH];
        let pairs = &mut pairs[..ids.len()];
        pairs.iter_mut().zip(ids).for_each(|(pair, &id)| *pair = self.seed.pair(id, member));
        let mut aside = 0u32;
        if !self.aside.is_empty() {
            pairs.iter().enumerate().for_each(|(i, pair)| aside |= u32::from(self.is_aside(pair)) << i);
        }
        let tables = self.ring.load();
        // What the first pass leaves for the second: answers that are known, and where to look for the others.
        let mut known = [Answer::No; BATCH];
        let mut at: [Option<&Table>; BATCH] = [None; BATCH];
        let mut spots = [Spot::default(); BATCH];
        for (i, pair) in pairs.iter().enumerate() {
            match tables.find(pair.id) {
                found if wanted >> i & 1 == 0 => {
                    if found.is_none() {
                        known[i] = Answer::Unknown;
                    }
                }
                _ if aside >> i & 1 == 1 => known[i] = Answer::Yes,
                None => known[i] = Answer::Unknown,
                Some(entry) => {
                    let table: &Table = entry.table();
                    spots[i] = table.first_filter().spot(pair);
                    table.prefetch(pair, &spots[i]);
                    at[i] = Some(table);
                }
            }
        }
        out.extend(pairs.iter().enumerate().map(|(i, pair)| match at[i] {
            Some(table) => answer(table.state_at(pair, &spots[i])),
            None => known[i],
        }));
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
