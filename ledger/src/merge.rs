//! Merges sorted sources into one sequence, with the newest state of each pair.

use crate::pair::{Member, Pair, Pairs};
use crate::run::Run;
use std::sync::Arc;

pub(crate) struct MergeSource {
    pairs: Pairs,
    at: usize,
    run: Option<RemainingBlocks>,
    /// Identity of the source run, or of the run to which pairs are copied from memory. Determines
    /// which drop records apply. It is `None` for a lookup of pairs in memory, to which no drop
    /// record applies.
    identity: Option<u64>,
}

struct RemainingBlocks {
    run: Arc<Run>,
    block: usize,
}

impl MergeSource {
    pub(crate) fn of_pairs(pairs: Pairs, identity: Option<u64>) -> MergeSource {
        MergeSource { pairs, at: 0, run: None, identity }
    }

    pub(crate) fn into_pairs(self) -> Pairs {
        self.pairs
    }

    /// Returns the pairs of a run after `after`, or with ids of at least `low`.
    pub(crate) fn of_run(
        run: &Arc<Run>,
        low: u64,
        after: Option<(u64, Member<'_>)>,
    ) -> store::Result<MergeSource> {
        let (id, member) = after.map_or((low, None), |(id, member)| (id, Some(member)));
        let block = if id > run.ids().1 { run.blocks() } else { run.block_from(id, member) };
        let rest = RemainingBlocks { run: run.clone(), block };
        let (pairs, identity) = (Pairs::default(), Some(run.identity()));
        let mut source = MergeSource { pairs, at: 0, run: Some(rest), identity };
        source.fill()?;
        let is_before = |pair: Pair<'_>| match after {
            Some(after) => pair.key() <= after,
            None => pair.id < low,
        };
        while source.peek().is_some_and(is_before) {
            source.skip()?;
        }
        Ok(source)
    }

    fn fill(&mut self) -> store::Result<()> {
        let Some(rest) = self.run.as_mut().filter(|rest| rest.block < rest.run.blocks()) else {
            return Ok(());
        };
        let mut last = Pairs::default();
        self.pairs.last().into_iter().for_each(|pair| last.push(pair));
        rest.run.pairs_of(rest.block, last.get(0).map(|pair| pair.key()), &mut self.pairs)?;
        rest.block += 1;
        self.at = 0;
        Ok(())
    }

    #[inline]
    pub(crate) fn peek(&self) -> Option<Pair<'_>> {
        self.pairs.get(self.at)
    }

    #[inline]
    pub(crate) fn skip(&mut self) -> store::Result<()> {
        self.at += 1;
        if self.at < self.pairs.len() { Ok(()) } else { self.fill() }
    }
}

/// Merges sources, newest first. Calls `each` for the newest state of each pair, in order, until
/// `each` returns false. `is_dropped_from` returns whether a drop record applies to an id's pairs
/// from a source.
pub(crate) fn merge(
    sources: &mut [MergeSource],
    is_dropped_from: impl Fn(u64, Option<u64>) -> bool,
    mut each: impl FnMut(Pair<'_>) -> store::Result<bool>,
) -> store::Result<()> {
    loop {
        // Select the lowest pair, and the newest of several equal pairs.
        let mut lowest: Option<(usize, Pair<'_>)> = None;
        for (at, source) in sources.iter().enumerate() {
            if let Some(pair) = source.peek()
                && lowest.is_none_or(|(_, lowest)| pair.key() < lowest.key())
            {
                lowest = Some((at, pair));
            }
        }
        let Some((at, pair)) = lowest else { return Ok(()) };
        let mut id = pair.id;
        if is_dropped_from(id, sources[at].identity) {
            sources[at].skip()?;
            continue;
        }
        let (newer, older) = sources.split_at_mut(at + 1);
        let Some((source, newer)) = newer.split_last_mut() else { return Ok(()) };
        for other in older.iter_mut() {
            let same =
                |other: Pair<'_>| source.peek().is_some_and(|pair| pair.key() == other.key());
            if other.peek().is_some_and(same) {
                other.skip()?;
            }
        }
        // The source's pairs below the next pair of every other source need no further comparison.
        let others = newer.iter().chain(older.iter()).filter_map(MergeSource::peek);
        let end = others.map(|pair| pair.key()).min();
        while let Some(pair) = source.peek() {
            if end.is_some_and(|end| pair.key() >= end)
                || (pair.id != id && is_dropped_from(pair.id, source.identity))
            {
                break;
            }
            id = pair.id;
            if !each(pair)? {
                return Ok(());
            }
            source.skip()?;
        }
    }
}
