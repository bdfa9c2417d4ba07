//! A record made true: at a start, and on a replica that follows its master's log.

use crate::cold::ledger::in_filters;
use crate::commit::dirty_parts::DirtyParts;
use crate::commit::encode::{PREFETCHED, pair};
use crate::engines::{CounterSpace, Engines, ExistenceSpace};
use crate::log_records::{RecordKind, decode_forgotten, read_exact_pairs, read_pairs, read_rows};
use crate::ring_records::{decode_frontier, decode_layout, decode_ring};
use crate::tiering::replay_filter::ReplayFilter;
use phantom::Pair;
use store::Record;

/// One of several threads that apply the same records, each for ids of its own.
#[derive(Clone, Copy)]
pub(super) struct Share {
    /// Below `of`.
    pub(super) number: u64,
    pub(super) of: u64,
}

impl Share {
    /// All ids.
    pub(super) const ALL: Share = Share { number: 0, of: 1 };

    fn has(self, id: u64) -> bool {
        // The upper half of the product: neighbouring ids go to different threads.
        self.of == 1 || (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % self.of == self.number
    }
}

/// Makes one record true. Parts are touched after the change: a snapshot that begins in between
/// sees it, or writes the part again. `end`: offset of the log behind the record's batch. A start
/// passes over pairs that files of tables, or of ledgers, have as they were at that offset or
/// later; a replica's files never do.
pub fn apply_record(
    engines: &Engines,
    parts: &DirtyParts,
    record: &Record<'_>,
    end: u64,
) -> Result<(), String> {
    apply_share(engines, parts, record, end, Share::ALL)
}

/// Whether [`apply_share`] may be called by several threads, in any order between them: the record
/// is of many ids, and what it does to one does not depend on others.
pub(super) fn is_shared(kind: u8) -> bool {
    let kind = RecordKind::from_number(kind);
    matches!(kind, Some(RecordKind::Rows | RecordKind::Pairs | RecordKind::ExactPairs))
}

/// [`apply_record`] for the ids of a share.
pub(super) fn apply_share(
    engines: &Engines,
    parts: &DirtyParts,
    record: &Record<'_>,
    end: u64,
    share: Share,
) -> Result<(), String> {
    let &Record { space: number, kind, payload } = record;
    let space = number;
    // Of one that was dropped later in the log, or before the snapshot that was read.
    if engines.is_dropped(number) {
        return Ok(());
    }
    let counter = || {
        engines.counter_by_number(space).ok_or_else(|| format!("there is no counter space {space}"))
    };
    let existence = || {
        engines
            .existence_by_number(space)
            .ok_or_else(|| format!("there is no existence space {space}"))
    };
    match RecordKind::from_number(kind) {
        Some(RecordKind::Rows) => apply_rows(engines, parts, counter()?, payload, share),
        Some(RecordKind::Pairs) => apply_pairs(engines, parts, existence()?, (payload, end), share),
        Some(RecordKind::ExactPairs) => {
            apply_exact_pairs(engines, parts, existence()?, (payload, end), share)
        }
        Some(RecordKind::Forgotten) => {
            let (space, forgotten) = (existence()?, decode_forgotten(payload)?);
            let ids = forgotten.iter().map(|&(id, _)| id);
            changes(engines, number, ids.clone());
            forgotten.iter().for_each(|&(id, times)| space.put_generation(id, times));
            // Again, if a snapshot had it: what was set since follows in this log.
            if let Some(ledger) = space.ledger().map(|ledger| ledger.ledger()) {
                ids.clone()
                    .filter(|&id| end > ledger.covered(id))
                    .for_each(|id| ledger.drop_id(id));
            }
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
        Some(RecordKind::Catalogue | RecordKind::Table | RecordKind::Head | RecordKind::Late)
        | None => Err(format!("a record of kind {kind} does not belong here")),
    }
}

/// Before a change, and after it by [`Engines::changed_by_log`]: a reader in between, and one that
/// sees the change, will find that there was one.
fn changes(engines: &Engines, number: u32, ids: impl Iterator<Item = u64>) {
    ids.for_each(|id| engines.watches.changed(number, id));
}

fn apply_rows(
    engines: &Engines,
    parts: &DirtyParts,
    space: &CounterSpace,
    payload: &[u8],
    share: Share,
) -> Result<(), String> {
    // Rows are decoded once; a window of them is prefetched while the one before is stored.
    let (mut ids, mut widths, mut values) = (Vec::new(), Vec::new(), Vec::new());
    read_rows(payload, |id, row| {
        if share.has(id) {
            ids.push(id);
            widths.push(row.map(<[i64]>::len));
            values.extend_from_slice(row.unwrap_or(&[]));
        }
        Ok(())
    })?;
    let number = space.number();
    changes(engines, number, ids.iter().copied());
    let mut again = ReplayFilter::new(space);
    let mut rest = &values[..];
    let mut prefetched = 0;
    for (at, (&id, width)) in ids.iter().zip(widths).enumerate() {
        if at.is_multiple_of(PREFETCHED) {
            let to = (at + 2 * PREFETCHED).min(ids.len());
            space.read().prefetch(&ids[prefetched..to]);
            prefetched = to;
        }
        let row = width.map(|width| {
            let (row, others) = rest.split_at(width);
            rest = others;
            row
        });
        if let (Some(again), Some(row)) = (&mut again, row)
            && again.is_there(&ids[at..], row)
        {
            continue;
        }
        space.put(id, row).map_err(|e| e.to_string())?;
    }
    parts.touch_all(ids.iter().map(|&id| (number, id)));
    engines.changed_by_log(number, ids.iter().copied());
    // No thread does it in the background before the data are loaded.
    while space.wants_maintenance() && space.maintain() {}
    Ok(())
}

/// The filters learn of a pair, and the ledger. Not those of an id that was forgotten since: their
/// names in the filters would be those of other pairs.
fn apply_exact_pairs(
    engines: &Engines,
    parts: &DirtyParts,
    space: &ExistenceSpace,
    (payload, end): (&[u8], u64),
    share: Share,
) -> Result<(), String> {
    let number = space.number();
    let ledger = space.ledger().ok_or_else(|| format!("space {number} has no ledger"))?.ledger();
    let (mut exact, mut pairs) = (Vec::new(), Vec::new());
    read_exact_pairs(payload, |pair, generation| {
        if share.has(pair.id) {
            pairs.push((space.pair(pair.id, &in_filters(pair.member)), pair.set));
            exact.push((pair, generation));
        }
        Ok(())
    })?;
    let ids = pairs.iter().map(|(pair, _)| pair.id);
    changes(engines, number, ids.clone());
    for ((pair, generation), (hashed, set)) in exact.into_iter().zip(Window::new(space, &pairs)) {
        if space.generation(pair.id) != generation {
            continue;
        }
        // In this order: filters that are built anew are filled from the ledger.
        if end > ledger.covered(pair.id) {
            ledger.set(pair.id, pair.member, pair.set);
        }
        if end > space.cold().covered(pair.id) {
            space.put(hashed, set).map_err(|e| e.to_string())?;
        }
    }
    parts.touch_all(ids.clone().map(|id| (number, id)));
    engines.changed_by_log(number, ids);
    Ok(())
}

/// Pairs in order, each prefetched some time before its turn.
struct Window<'a> {
    space: &'a ExistenceSpace,
    pairs: &'a [(Pair, bool)],
    /// Pairs that had their turn, and pairs that were prefetched.
    at: usize,
    prefetched: usize,
}

impl<'a> Window<'a> {
    fn new(space: &'a ExistenceSpace, pairs: &'a [(Pair, bool)]) -> Window<'a> {
        Window { space, pairs, at: 0, prefetched: 0 }
    }
}

impl<'a> Iterator for Window<'a> {
    type Item = (&'a Pair, bool);

    fn next(&mut self) -> Option<(&'a Pair, bool)> {
        if self.at.is_multiple_of(PREFETCHED) {
            let to = (self.at + 2 * PREFETCHED).min(self.pairs.len());
            let hints = self.space.hints();
            let next = &self.pairs[self.prefetched..to];
            next.iter().for_each(|(pair, _)| hints.prefetch_pair(pair));
            self.prefetched = to;
        }
        let (pair, set) = self.pairs.get(self.at)?;
        self.at += 1;
        Some((pair, *set))
    }
}

fn apply_pairs(
    engines: &Engines,
    parts: &DirtyParts,
    space: &ExistenceSpace,
    (payload, end): (&[u8], u64),
    share: Share,
) -> Result<(), String> {
    let mut pairs = Vec::new();
    read_pairs(payload, |id, member, set| {
        if share.has(id) {
            pairs.push((pair(space, id, member), set));
        }
        Ok(())
    })?;
    let number = space.number();
    changes(engines, number, pairs.iter().map(|(pair, _)| pair.id));
    for (pair, set) in Window::new(space, &pairs) {
        if end > space.cold().covered(pair.id) {
            space.put(pair, set).map_err(|e| e.to_string())?;
        }
    }
    parts.touch_all(pairs.iter().map(|(pair, _)| (number, pair.id)));
    engines.changed_by_log(number, pairs.iter().map(|(pair, _)| pair.id));
    Ok(())
}
