//! The walk: every table that has changed becomes a file, while writes go on.

use crate::cold::ledger::PairLedger;
use crate::commit::Durability;
use crate::commit::dirty_parts::DirtyParts;
use crate::cpu_throttle::CpuThrottle;
use crate::engines::{CounterSpace, Current, ExistenceSpace};
use crate::live::Live;
use crate::log_records::{
    ExactPairsWriter, RecordKind, RowsWriter, encode_drops, encode_forgotten,
};
use crate::ring_records::encode_ring;
use crate::tokens::Tokens;
use std::sync::atomic::Ordering::Relaxed;
use store::{FileWriter, SnapshotWriter, Store, Tag, time};

/// Rows that are sorted and written together.
const CHUNK_ROWS: usize = 16 << 10;
/// Rows between two looks at the pace.
const STEP_ROWS: usize = 256;
/// Rows that are sorted without one.
const SORT_ROWS: usize = 2 << 10;
/// Forgotten ids that are written together.
const CHUNK_IDS: usize = 64 << 10;
/// Bytes of a filter that are written together.
const CHUNK_BYTES: usize = 256 << 10;

fn text(e: store::Error) -> String {
    format!("{e}. {}", e.advice())
}

/// What a snapshot is made of.
pub(crate) struct Walk<'a> {
    pub(crate) current: &'a Current,
    pub(crate) store: &'a Store,
    pub(crate) durability: &'a Durability,
    pub(crate) pace: &'a CpuThrottle<'a>,
    /// Bytes that it leaves free on the disk.
    pub(crate) keep_free: u64,
}

/// One snapshot, that leaves so many bytes free on the disk. Gives the bytes that were written.
pub(crate) fn write(live: &Live<'_>, keep_free: u64) -> Result<u64, String> {
    let mut alone = live.snapshots.alone.lock();
    let is_awaited = || live.snapshots.is_awaited();
    let (durability, pace) = (live.durability, &CpuThrottle::until(live.is_stopped, &is_awaited));
    let changes = durability.parts.changes();
    let walk = Walk { current: live.current, store: live.store, durability, pace, keep_free };
    // A spill between two files: see the end of the walk.
    let bytes = walk.write(&mut || time::bump(&mut alone), || durability.flush())?;
    live.snapshots.changes.store(changes, Relaxed);
    Ok(bytes)
}

impl Walk<'_> {
    /// Walks, and has the manifest name what was written. Others may write data files in `between`;
    /// `flush` has all that was changed before it synced.
    pub(crate) fn write(
        &self,
        between: &mut dyn FnMut(),
        flush: impl FnOnce() -> store::Result<()>,
    ) -> Result<u64, String> {
        let written = self.walk(between, flush);
        if written.is_err() {
            // Nothing of it can be relied on.
            self.durability.parts.forget();
        }
        written
    }

    fn walk(
        &self,
        between: &mut dyn FnMut(),
        flush: impl FnOnce() -> store::Result<()>,
    ) -> Result<u64, String> {
        let Walk { current, store, durability, pace, keep_free } = *self;
        let parts = &durability.parts;
        parts.begin_all();
        // The synced end, not the written one: after a failed sync the written one may come to
        // nothing.
        let mut writer = store.begin_snapshot(durability.positions().1);
        writer.keep_free(keep_free);
        let stamp = writer.replay().offset.max(1);
        // Behind that position: the log that is replayed has what comes after this. Each space is
        // taken for itself, so that one which is dropped meanwhile is in memory no longer than its
        // own turn takes.
        let (counters, existences) = {
            let engines = current.load();
            let counters = engines.counters().iter().map(CounterSpace::number);
            let existences = engines.existences().iter().map(ExistenceSpace::number);
            (counters.collect::<Vec<u32>>(), existences.collect::<Vec<u32>>())
        };
        let mut bytes = 0;
        let mut add = |writer: &mut SnapshotWriter<'_>, file: FileWriter| -> Result<(), String> {
            // Each file takes a sync, or two.
            pace.goes_on().map_err(text)?;
            let entry = file.finish().map_err(text)?;
            bytes += entry.bytes;
            writer.add(entry);
            Ok(())
        };

        for number in counters {
            let Some(space) = current.load().counter_by_number(number).cloned() else { continue };
            write_counters(&space, parts, &mut writer, stamp, pace, &mut add, between)?;
        }
        for number in existences {
            let space = current.load().existence_by_number(number).cloned();
            let Some(space) = space else { continue };
            write_pairs(&space, parts, &mut writer, stamp, pace, &mut add)?;
            between();
        }
        write_small(current, &mut writer, stamp, &mut add)?;

        // Last, as its schemas must not be older than those by which the rows were written.
        let mut file = writer
            .file(Tag { kind: RecordKind::Catalogue as u32, ..Tag::default() })
            .map_err(text)?;
        file.write(&current.catalogue().encode(), 1).map_err(text)?;
        add(&mut writer, file)?;
        // What was dropped after this is skipped when it is read.
        let now = current.load();

        // What a spill has written since is there, and the log has all that was changed later: as
        // if it had come before this began.
        writer.leave_out(|tag| parts.is_gone(tag) || now.is_dropped(tag.space));
        // What the walk has seen and the log has not must be in the log before any reader relies on
        // the walk.
        pace.goes_on().map_err(text)?;
        flush().map_err(text)?;
        writer.commit(durability.positions().1).map_err(text)?;
        Ok(bytes)
    }
}

/// Completes a file of the snapshot.
type Add<'s, 'a> = dyn FnMut(&mut SnapshotWriter<'s>, FileWriter) -> Result<(), String> + 'a;

/// Writes all that a counter space has in memory.
fn write_counters<'s>(
    space: &CounterSpace,
    parts: &DirtyParts,
    writer: &mut SnapshotWriter<'s>,
    stamp: u64,
    pace: &CpuThrottle<'_>,
    add: &mut Add<'s, '_>,
    between: &mut dyn FnMut(),
) -> Result<(), String> {
    let tables: Vec<(u64, u64)> = space.ranges().iter().map(|t| (t.low, t.last)).collect();
    let kind = RecordKind::Rows;
    for (low, high) in plan(parts, writer, space.number(), kind, &tables, stamp) {
        let kind = kind as u32;
        let mut file =
            writer.file(Tag { space: space.number(), kind, low, high, stamp }).map_err(text)?;
        write_rows(space, low, high, &mut file, pace).map_err(text)?;
        add(writer, file)?;
        // A spill in between: see the end.
        between();
    }
    // After the rows: what came in meanwhile is not ahead of the frontier then.
    let tag = Tag { space: space.number(), kind: RecordKind::Head as u32, low: 0, high: 0, stamp };
    let mut file = writer.file(tag).map_err(text)?;
    file.write(&space.encode_head(), 0).map_err(text)?;
    add(writer, file)?;
    Ok(())
}

/// Writes what is no space's: used tokens, and how far brokers and readers of streams have come.
fn write_small<'s>(
    current: &Current,
    writer: &mut SnapshotWriter<'s>,
    stamp: u64,
    add: &mut Add<'s, '_>,
) -> Result<(), String> {
    let tokens = current.load().tokens.clone();
    if let Some(file) = write_tokens(&tokens, writer, stamp).map_err(text)? {
        add(writer, file)?;
    }
    let offsets = current.load().offsets.encode_all();
    if !offsets.is_empty() {
        let tag = Tag { kind: RecordKind::Offsets as u32, stamp, ..Tag::default() };
        let mut file = writer.file(tag).map_err(text)?;
        file.write(&offsets, 0).map_err(text)?;
        add(writer, file)?;
    }
    let mut cursors = Vec::new();
    current.load().groups.encode_all(&mut cursors);
    if !cursors.is_empty() {
        let tag = Tag { kind: RecordKind::Groups as u32, stamp, ..Tag::default() };
        let mut file = writer.file(tag).map_err(text)?;
        file.write(&cursors, 0).map_err(text)?;
        add(writer, file)?;
    }
    Ok(())
}

/// Writes all that a space of pairs has in memory. `add` completes a file.
pub(crate) fn write_pairs<'s>(
    space: &ExistenceSpace,
    parts: &DirtyParts,
    writer: &mut SnapshotWriter<'s>,
    stamp: u64,
    pace: &CpuThrottle<'_>,
    add: &mut dyn FnMut(&mut SnapshotWriter<'s>, FileWriter) -> Result<(), String>,
) -> Result<(), String> {
    // The head first: a pair that moves from it into a table meanwhile is then in both. And since
    // such a move is no write, tables count as changed if there was anything to move.
    let aside = space.outlier_pairs();
    let head = space.encode_head();
    if parts.had_outliers(space.number(), aside > 0) {
        parts.forget_space(space.number());
    }
    // Those on the disk are in the manifest already.
    let (kind, mut tables) = (RecordKind::Table, space.ranges_in_memory());
    let mut to_write = plan(parts, writer, space.number(), kind, &tables, stamp);
    loop {
        let mut is_recycled = false;
        for (low, high) in to_write {
            let tag = Tag { space: space.number(), kind: kind as u32, low, high, stamp };
            let mut file = writer.file(tag).map_err(text)?;
            match write_table(space, low, &mut file, pace).map_err(text)? {
                true => add(writer, file)?,
                false => is_recycled = true,
            }
        }
        if !is_recycled {
            break;
        }
        // Those that came instead: a ring that lacks one, in its middle or at its end, would not
        // have the place of a block that the log has.
        tables = space.ranges_in_memory();
        to_write = parts.grow(space.number(), &tables, stamp);
    }
    // Whatever was written of those that lay below the one that is gone has gone with it.
    let horizon = tables.first().map_or(0, |table| table.0);
    writer.leave_out(|tag| {
        (tag.space, tag.kind) == (space.number(), kind as u32) && tag.low < horizon
    });

    let tag = Tag { space: space.number(), kind: RecordKind::Head as u32, low: 0, high: 0, stamp };
    let mut late = None;
    space
        .encode_late(|bytes| {
            if late.is_none() {
                late = Some(writer.file(Tag { kind: RecordKind::Late as u32, ..tag })?);
            }
            late.as_mut().map_or(Ok(()), |file| file.write(bytes, 0))
        })
        .map_err(text)?;
    if let Some(file) = late {
        add(writer, file)?;
    }
    let mut file = writer.file(tag).map_err(text)?;
    file.write(&head, aside as u64).map_err(text)?;
    add(writer, file)?;
    // After the tables: of none that is in a file it says less than the file does.
    let mut file = writer.file(Tag { kind: RecordKind::Ring as u32, ..tag }).map_err(text)?;
    file.write(&encode_ring(&space.layout()), 0).map_err(text)?;
    add(writer, file)?;
    if let Some(ledger) = space.ledger() {
        let file = writer.file(Tag { kind: RecordKind::ExactPairs as u32, ..tag }).map_err(text)?;
        add(writer, write_ledger(ledger, file, pace).map_err(text)?)?;
    }
    // After the head: of no pair in it is the generation later than these say.
    let forgotten = space.forgotten(0, u64::MAX);
    if forgotten.is_empty() {
        return Ok(());
    }
    let mut file = writer.file(Tag { kind: RecordKind::Forgotten as u32, ..tag }).map_err(text)?;
    for some in forgotten.chunks(CHUNK_IDS) {
        file.write(&encode_forgotten(some.iter().copied()), 0).map_err(text)?;
    }
    add(writer, file)
}

/// Writes what a ledger has in memory; its runs are in the manifest already.
fn write_ledger(
    ledger: &PairLedger,
    mut file: FileWriter,
    pace: &CpuThrottle<'_>,
) -> store::Result<FileWriter> {
    for drops in ledger.ledger().drops().chunks(CHUNK_IDS) {
        file.write(&encode_drops(drops), 0)?;
    }
    let mut outcome = Ok(());
    ledger.ledger().walk_memory(|pairs| {
        if outcome.is_err() || pairs.is_empty() {
            return;
        }
        pace.step();
        let mut writer = ExactPairsWriter::behind(1);
        pairs.iter().for_each(|pair| writer.pair(pair, 0));
        outcome = pace.goes_on().and_then(|()| file.write(&writer.finish(), 0));
    });
    outcome.map(|()| file)
}

/// Writes the tokens that were used lately, if there are any.
fn write_tokens(
    tokens: &Tokens,
    writer: &mut SnapshotWriter<'_>,
    stamp: u64,
) -> store::Result<Option<FileWriter>> {
    let tag = Tag { kind: RecordKind::Tokens as u32, stamp, ..Tag::default() };
    let mut file = None;
    tokens.encode_all(|bytes| {
        if file.is_none() {
            file = Some(writer.file(tag)?);
        }
        file.as_mut().map_or(Ok(()), |file: &mut FileWriter| file.write(bytes, 0))
    })?;
    Ok(file)
}

/// Which of these tables must be written; for the others the files of the last snapshot serve
/// again.
fn plan(
    parts: &DirtyParts,
    writer: &mut SnapshotWriter<'_>,
    space: u32,
    kind: RecordKind,
    tables: &[(u64, u64)],
    stamp: u64,
) -> Vec<(u64, u64)> {
    let mut to_write = Vec::new();
    for (&(low, high), kept) in tables.iter().zip(parts.begin(space, tables, stamp)) {
        let tag = |stamp| Tag { space, kind: kind as u32, low, high, stamp };
        if kept.is_none_or(|stamp| writer.carry_over(&tag(stamp)) == 0) {
            parts.rewritten(space, low, stamp);
            to_write.push((low, high));
        }
    }
    to_write
}

/// Sorts, and looks at the pace in between: the quick sort, as far as parts are not small.
fn sort(ids: &mut [(u64, usize)], pace: &CpuThrottle<'_>) {
    pace.step();
    if ids.len() <= SORT_ROWS {
        return ids.sort_unstable();
    }
    ids.select_nth_unstable(ids.len() / 2);
    let (low, high) = ids.split_at_mut(ids.len() / 2);
    sort(low, pace);
    sort(high, pace);
}

fn write_rows(
    space: &counter::Space,
    low: u64,
    high: u64,
    file: &mut FileWriter,
    pace: &CpuThrottle,
) -> store::Result<()> {
    let width = space.schema().width();
    let (mut ids, mut values): (Vec<(u64, usize)>, Vec<i64>) = (Vec::new(), Vec::new());
    // Deleted rows first, as rows that came to be again under their ids follow.
    for ids in space.tombs_in(low, high).chunks(CHUNK_ROWS) {
        let mut writer = RowsWriter::new(width);
        ids.iter().for_each(|&id| writer.row(id, None));
        file.write(&writer.finish(), 0)?;
    }
    let mut outcome = Ok(());
    let mut flush = |ids: &mut Vec<(u64, usize)>, values: &mut Vec<i64>| -> store::Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        pace.goes_on()?;
        pace.step();
        sort(ids, pace);
        let mut writer = RowsWriter::new(width);
        for some in ids.chunks(STEP_ROWS) {
            pace.step();
            some.iter()
                .for_each(|&(id, start)| writer.row(id, Some(&values[start..start + width])));
        }
        let rows = ids.len() as u64;
        ids.clear();
        values.clear();
        file.write(&writer.finish(), rows)
    };
    space.for_each_in(low, high, |id, row| {
        if outcome.is_err() {
            return;
        }
        ids.push((id, values.len()));
        // A field that was added during the walk is 0 here, and what was written to it is in the
        // log.
        values.extend((0..width).map(|i| row.get(i).copied().unwrap_or(0)));
        if ids.len() % STEP_ROWS == 0 {
            pace.step();
        }
        if ids.len() >= CHUNK_ROWS {
            outcome = flush(&mut ids, &mut values);
        }
    });
    outcome?;
    flush(&mut ids, &mut values)
}

fn write_table(
    space: &phantom::Space,
    low: u64,
    file: &mut FileWriter,
    pace: &CpuThrottle,
) -> store::Result<bool> {
    let mut chunk = Vec::with_capacity(2 * CHUNK_BYTES);
    let found = space.encode_table(low, |bytes| {
        chunk.extend_from_slice(bytes);
        pace.step();
        if chunk.len() >= CHUNK_BYTES {
            pace.goes_on()?;
            file.write(&chunk, 0)?;
            chunk.clear();
            pace.step();
        }
        Ok::<(), store::Error>(())
    })?;
    if found && !chunk.is_empty() {
        file.write(&chunk, 0)?;
    }
    Ok(found)
}
