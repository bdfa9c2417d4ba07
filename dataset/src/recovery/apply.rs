//! Applies log records to the engines, during recovery and on a replica.

use crate::cold::ledger::in_filters;
use crate::commit::dirty_parts::DirtyParts;
use crate::commit::encode::{PREFETCHED, pair};
use crate::engines::{CounterSpace, Engines, ExistenceSpace};
use crate::log_records::{RecordKind, decode_forgotten, read_exact_pairs, read_pairs, read_rows};
use crate::ring_records::{decode_frontier, decode_layout, decode_ring};
use crate::tiering::replay_filter::ReplayFilter;
use ledger::Ledger;
use phantom::Pair;
use std::ops::RangeInclusive;
use store::Record;

/// Applies one record. `end` is the log offset after the record's batch.
///
/// Marks the parts dirty after the change. So either a concurrent snapshot contains the change, or
/// the next snapshot writes the part again. Recovery skips pairs whose table or ledger files cover
/// `end`. No file of a running replica covers `end`.
pub fn apply_record(
    engines: &Engines,
    parts: &DirtyParts,
    record: &Record<'_>,
    end: u64,
) -> Result<(), String> {
    let &Record { space: number, kind, payload } = record;
    // A later log record dropped the space, or it was dropped before the snapshot.
    if engines.is_dropped(number) {
        return Ok(());
    }
    let existence = || existence(engines, number);
    match RecordKind::from_number(kind) {
        Some(RecordKind::Rows | RecordKind::Pairs | RecordKind::ExactPairs) => {
            let changes = Changes::decode(engines, record, end)?;
            changes.map_or(Ok(()), |changes| changes.apply(engines, parts, &(0..=u64::MAX)))
        }
        Some(RecordKind::Forgotten) => {
            let (space, forgotten) = (existence()?, decode_forgotten(payload)?);
            let ids = forgotten.iter().map(|&(id, _)| id);
            changes(engines, number, ids.clone());
            // A snapshot may already contain this deletion. Repeating the deletion is safe, because
            // the log also contains all later writes. Drop the ids from the ledger before storing
            // their new generations. Otherwise a concurrent rebuild could add old pairs with the
            // new generation.
            if let Some(ledger) = space.ledger().map(|ledger| ledger.ledger()) {
                ids.clone()
                    .filter(|&id| end > ledger.covered(id))
                    .for_each(|id| ledger.drop_id(id));
            }
            forgotten.iter().for_each(|&(id, times)| space.put_generation(id, times));
            engines.changed_by_log(number, ids);
            Ok(())
        }
        Some(RecordKind::Layout) => {
            existence()?.put_layout(&decode_layout(payload)?).map_err(|e| e.to_string())
        }
        Some(RecordKind::Ring) => {
            existence()?.put_layout(&decode_ring(payload)?).map_err(|e| e.to_string())
        }
        Some(RecordKind::Frontier) => {
            existence()?.put_frontier(&decode_frontier(payload)?);
            Ok(())
        }
        Some(RecordKind::Tokens) => engines.tokens.decode(payload),
        Some(RecordKind::Offsets) => engines.offsets.decode(payload),
        Some(RecordKind::Groups) => engines.groups.decode(payload),
        Some(
            RecordKind::Catalogue | RecordKind::Table | RecordKind::Head | RecordKind::LatePairs,
        )
        | None => Err(format!("unexpected record of kind {kind}")),
    }
}

fn existence(engines: &Engines, number: u32) -> Result<&ExistenceSpace, String> {
    let space = engines.existence_by_number(number);
    space.ok_or_else(|| format!("no existence space {number}"))
}

/// A decoded record of rows or pairs. Changes to different ids are independent.
pub(super) struct Changes<'a> {
    /// Ids in ascending order.
    ids: Vec<u64>,
    end: u64,
    of: ChangeKind<'a>,
}

enum ChangeKind<'a> {
    Rows {
        space: &'a CounterSpace,
        /// For each id, the index in `values` at which its values end, or `None` if the row does
        /// not exist.
        ends: Vec<Option<u32>>,
        values: Vec<i64>,
    },
    Pairs {
        space: &'a ExistenceSpace,
        pairs: Vec<(Pair, bool)>,
    },
    ExactPairs {
        space: &'a ExistenceSpace,
        ledger: &'a Ledger,
        pairs: Vec<(Pair, bool)>,
        exact: Vec<(ledger::Pair<'a>, u64)>,
    },
}

impl<'a> Changes<'a> {
    /// Decodes a record; [`Changes::has`] must accept its kind. `end` is the log offset after its
    /// batch. Returns `None` if its space was dropped.
    pub(super) fn decode(
        engines: &'a Engines,
        record: &Record<'a>,
        end: u64,
    ) -> Result<Option<Changes<'a>>, String> {
        let &Record { space: number, kind, payload } = record;
        if engines.is_dropped(number) {
            return Ok(None);
        }
        let mut ids = Vec::new();
        let of = match RecordKind::from_number(kind) {
            Some(RecordKind::Rows) => {
                let space = engines.counter_by_number(number);
                let space = space.ok_or_else(|| format!("no counter space {number}"))?;
                let (mut ends, mut values) = (Vec::new(), Vec::new());
                read_rows(payload, |id, row| {
                    ids.push(id);
                    values.extend_from_slice(row.unwrap_or(&[]));
                    ends.push(row.map(|_| values.len() as u32));
                    Ok(())
                })?;
                ChangeKind::Rows { space, ends, values }
            }
            Some(RecordKind::Pairs) => {
                let (space, mut pairs) = (existence(engines, number)?, Vec::new());
                read_pairs(payload, |id, member, set| {
                    ids.push(id);
                    pairs.push((pair(space, id, member), set));
                    Ok(())
                })?;
                ChangeKind::Pairs { space, pairs }
            }
            Some(RecordKind::ExactPairs) => {
                let space = existence(engines, number)?;
                let ledger = space.ledger().map(|ledger| ledger.ledger());
                let ledger = ledger.ok_or_else(|| format!("space {number} has no ledger"))?;
                let (mut pairs, mut exact) = (Vec::new(), Vec::new());
                read_exact_pairs(payload, |pair, generation| {
                    ids.push(pair.id);
                    pairs.push((space.pair(pair.id, &in_filters(pair.member)), pair.set));
                    exact.push((pair, generation));
                    Ok(())
                })?;
                ChangeKind::ExactPairs { space, ledger, pairs, exact }
            }
            _ => return Err(format!("record of kind {kind} cannot contain changes of many ids")),
        };
        Ok(Some(Changes { ids, end, of }))
    }

    /// Whether records of this kind can be decoded as `Changes`.
    pub(super) fn has(kind: u8) -> bool {
        let kind = RecordKind::from_number(kind);
        matches!(kind, Some(RecordKind::Rows | RecordKind::Pairs | RecordKind::ExactPairs))
    }

    pub(super) fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// Returns the lowest ids of the space's tables in ascending order.
    pub(super) fn tables(&self) -> Vec<u64> {
        match self.of {
            ChangeKind::Rows { space, .. } => {
                space.ranges().iter().map(|table| table.low).collect()
            }
            ChangeKind::Pairs { space, .. } | ChangeKind::ExactPairs { space, .. } => {
                space.layout().iter().map(|table| table.low).collect()
            }
        }
    }

    pub(super) fn apply(
        &self,
        engines: &Engines,
        parts: &DirtyParts,
        ids: &RangeInclusive<u64>,
    ) -> Result<(), String> {
        let from = self.ids.partition_point(|id| id < ids.start());
        let to = self.ids.partition_point(|id| id <= ids.end());
        let ids = &self.ids[from..to];
        let number = match self.of {
            ChangeKind::Rows { space, .. } => space.number(),
            ChangeKind::Pairs { space, .. } | ChangeKind::ExactPairs { space, .. } => {
                space.number()
            }
        };
        changes(engines, number, ids.iter().copied());
        match &self.of {
            ChangeKind::Rows { space, ends, values } => {
                let start = ends[..from].iter().rev().flatten().next().map_or(0, |&end| end);
                put_rows(space, ids, &ends[from..to], start as usize, values)
            }
            ChangeKind::Pairs { space, pairs } => put_pairs(space, &pairs[from..to], self.end),
            ChangeKind::ExactPairs { space, ledger, pairs, exact } => {
                let (pairs, exact) = (&pairs[from..to], &exact[from..to]);
                put_exact_pairs(space, ledger, pairs, exact, self.end)
            }
        }?;
        parts.touch_all(ids.iter().map(|&id| (number, id)));
        engines.changed_by_log(number, ids.iter().copied());
        // No background thread maintains the space during recovery.
        if let ChangeKind::Rows { space, .. } = self.of {
            while space.wants_maintenance() && space.maintain() {}
        }
        Ok(())
    }
}

/// Counts a change for WATCH before it is made. [`Engines::changed_by_log`] counts it again
/// afterwards. Both counts are needed, because a WATCH may run after the first count, and an EXEC
/// before the second.
fn changes(engines: &Engines, number: u32, ids: impl Iterator<Item = u64>) {
    ids.for_each(|id| engines.watches.changed(number, id));
}

/// Stores rows. The values of row `i` end at `ends[i]` and begin at the previous end. The values of
/// the first row begin at `start`.
fn put_rows(
    space: &CounterSpace,
    ids: &[u64],
    ends: &[Option<u32>],
    mut start: usize,
    values: &[i64],
) -> Result<(), String> {
    let mut again = ReplayFilter::new(space);
    let mut prefetched = 0;
    for (at, (&id, end)) in ids.iter().zip(ends).enumerate() {
        // Prefetch the next window of rows before storing the current window.
        if at.is_multiple_of(PREFETCHED) {
            let to = (at + 2 * PREFETCHED).min(ids.len());
            space.read().prefetch(&ids[prefetched..to]);
            prefetched = to;
        }
        let row = end.map(|end| &values[std::mem::replace(&mut start, end as usize)..end as usize]);
        if let (Some(again), Some(row)) = (&mut again, row)
            && again.file_has_row(&ids[at..], row)
        {
            continue;
        }
        space.put(id, row).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Adds pairs to the ledger and the filters. Skips pairs of ids that were forgotten later, because
/// filters would hash them with the new generation.
fn put_exact_pairs(
    space: &ExistenceSpace,
    ledger: &Ledger,
    pairs: &[(Pair, bool)],
    exact: &[(ledger::Pair<'_>, u64)],
    end: u64,
) -> Result<(), String> {
    for (&(pair, generation), (hashed, set)) in exact.iter().zip(PrefetchWindow::new(space, pairs))
    {
        if space.generation(pair.id) != generation {
            continue;
        }
        // Write to the ledger first, because rebuilds read pairs from the ledger.
        if end > ledger.covered(pair.id) {
            ledger.set(pair.id, pair.member, pair.set);
        }
        if end > space.cold().covered(pair.id) {
            space.put(hashed, set).map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}

/// Iterator over pairs that prefetches the memory of the following pairs.
struct PrefetchWindow<'a> {
    space: &'a ExistenceSpace,
    pairs: &'a [(Pair, bool)],
    /// Numbers of returned and of prefetched pairs.
    at: usize,
    prefetched: usize,
}

impl<'a> PrefetchWindow<'a> {
    fn new(space: &'a ExistenceSpace, pairs: &'a [(Pair, bool)]) -> PrefetchWindow<'a> {
        PrefetchWindow { space, pairs, at: 0, prefetched: 0 }
    }
}

impl<'a> Iterator for PrefetchWindow<'a> {
    type Item = (&'a Pair, bool);

    fn next(&mut self) -> Option<(&'a Pair, bool)> {
        if self.at.is_multiple_of(PREFETCHED) {
            let to = (self.at + 2 * PREFETCHED).min(self.pairs.len());
            let pair_prefetcher = self.space.pair_prefetcher();
            let next = &self.pairs[self.prefetched..to];
            next.iter().for_each(|(pair, _)| pair_prefetcher.prefetch_pair(pair));
            self.prefetched = to;
        }
        let (pair, set) = self.pairs.get(self.at)?;
        self.at += 1;
        Some((pair, *set))
    }
}

fn put_pairs(space: &ExistenceSpace, pairs: &[(Pair, bool)], end: u64) -> Result<(), String> {
    for (pair, set) in PrefetchWindow::new(space, pairs) {
        if end > space.cold().covered(pair.id) {
            space.put(pair, set).map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}
