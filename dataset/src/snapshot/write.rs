//! Writes a snapshot: one file per changed table, concurrently with writes of clients.

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
use store::{SnapshotFileWriter, SnapshotWriter, Store, Tag, time};

/// Maximum number of rows per chunk.
const CHUNK_ROWS: usize = 16 << 10;
/// Number of rows between two calls of the CPU throttle.
const STEP_ROWS: usize = 256;
/// Maximum number of rows sorted without a call of the CPU throttle.
const SORT_ROWS: usize = 2 << 10;
/// Maximum number of ids per chunk.
const CHUNK_IDS: usize = 64 << 10;
/// Maximum size of a filter's chunk in bytes.
const CHUNK_BYTES: usize = 256 << 10;

fn text(e: store::Error) -> String {
    format!("{e}. {}", e.advice())
}

pub(crate) struct SnapshotWalk<'a> {
    pub(crate) current: &'a Current,
    pub(crate) store: &'a Store,
    pub(crate) durability: &'a Durability,
    pub(crate) pace: &'a CpuThrottle<'a>,
    /// Disk space to leave free, in bytes.
    pub(crate) keep_free: u64,
}

/// Writes a snapshot that leaves `keep_free` bytes free on the disk. Returns the number of bytes
/// written.
pub(crate) fn write(live: &Live<'_>, keep_free: u64) -> Result<u64, String> {
    let mut alone = live.snapshots.alone.lock();
    let is_awaited = || live.snapshots.is_awaited();
    let (durability, pace) = (live.durability, &CpuThrottle::until(live.is_stopped, &is_awaited));
    let changes = durability.parts.changes();
    let walk =
        SnapshotWalk { current: live.current, store: live.store, durability, pace, keep_free };
    let bytes = walk.write(&mut || time::bump(&mut alone), || durability.flush())?;
    live.snapshots.changes.store(changes, Relaxed);
    Ok(bytes)
}

impl SnapshotWalk<'_> {
    /// Writes the files and commits the manifest. Other threads may write data files during
    /// `between`. `flush` syncs all previous changes in the log.
    pub(crate) fn write(
        &self,
        between: &mut dyn FnMut(),
        flush: impl FnOnce() -> store::Result<()>,
    ) -> Result<u64, String> {
        let written = self.walk(between, flush);
        if written.is_err() {
            // The manifest does not list the new files, so all parts must be written again.
            self.durability.parts.forget();
        }
        written
    }

    fn walk(
        &self,
        between: &mut dyn FnMut(),
        flush: impl FnOnce() -> store::Result<()>,
    ) -> Result<u64, String> {
        let SnapshotWalk { current, store, durability, pace, keep_free } = *self;
        let parts = &durability.parts;
        parts.begin_all();
        // Use the synced end: after a failed sync, records between it and the appended end may be
        // lost.
        let mut writer = store.begin_snapshot(durability.positions().1);
        writer.keep_free(keep_free);
        let stamp = writer.replay().offset.max(1);
        // Read the spaces after the position, so that the log contains every later change. Load
        // each space separately, so that a space dropped during the snapshot is freed promptly.
        let (counters, existences) = {
            let engines = current.load();
            let counters = engines.counters().iter().map(CounterSpace::number);
            let existences = engines.existences().iter().map(ExistenceSpace::number);
            (counters.collect::<Vec<u32>>(), existences.collect::<Vec<u32>>())
        };
        let mut bytes = 0;
        let mut add =
            |writer: &mut SnapshotWriter<'_>, file: SnapshotFileWriter| -> Result<(), String> {
                // Check for a stop here, because each file takes one or two syncs.
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

        // Write the catalogue last, so that its schemas are not older than those of the rows.
        let mut file = writer
            .file(Tag { kind: RecordKind::Catalogue as u32, ..Tag::default() })
            .map_err(text)?;
        file.write(&current.catalogue().encode(), 1).map_err(text)?;
        add(&mut writer, file)?;
        // Loading skips spaces that are dropped after this point.
        let now = current.load();

        // Omit files of spilled ranges: the cold file contains their data, and the log all later
        // changes.
        writer.leave_out(|tag| parts.is_gone(tag) || now.is_dropped(tag.space));
        // The log must contain all changes that the files contain before the manifest lists them.
        pace.goes_on().map_err(text)?;
        flush().map_err(text)?;
        writer.commit(durability.positions().1).map_err(text)?;
        Ok(bytes)
    }
}

/// Completes a file of the snapshot.
type Add<'s, 'a> =
    dyn FnMut(&mut SnapshotWriter<'s>, SnapshotFileWriter) -> Result<(), String> + 'a;

/// Writes the state that a counter space has in memory.
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
        between();
    }
    // Encode the frontier after the rows, so that rows written concurrently are not above it.
    let tag = Tag { space: space.number(), kind: RecordKind::Head as u32, low: 0, high: 0, stamp };
    let mut file = writer.file(tag).map_err(text)?;
    file.write(&space.encode_head(), 0).map_err(text)?;
    add(writer, file)?;
    Ok(())
}

/// Writes tokens, offsets and cursors, which do not belong to a space.
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

/// Writes the state that an existence space has in memory. `add` completes a file.
pub(crate) fn write_pairs<'s>(
    space: &ExistenceSpace,
    parts: &DirtyParts,
    writer: &mut SnapshotWriter<'s>,
    stamp: u64,
    pace: &CpuThrottle<'_>,
    add: &mut dyn FnMut(&mut SnapshotWriter<'s>, SnapshotFileWriter) -> Result<(), String>,
) -> Result<(), String> {
    // Encode the head before the tables, so that an outlier (a pair of an id far above all tables)
    // that concurrently moves to a table is in the head or in the table. Such a move does not mark
    // a part as dirty, so all tables of a space with outliers count as changed.
    let aside = space.outlier_pairs();
    let head = space.encode_head();
    if parts.had_outliers(space.number(), aside > 0) {
        parts.forget_space(space.number());
    }
    // The manifest already lists the cold tables.
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
        // Add the tables that replaced recycled tables. If the ring had a gap or ended too low,
        // some log records would have no table.
        tables = space.ranges_in_memory();
        to_write = parts.grow(space.number(), &tables, stamp);
    }
    // Files of tables below the horizon are obsolete, because these tables were recycled.
    let horizon = tables.first().map_or(0, |table| table.0);
    writer.leave_out(|tag| {
        (tag.space, tag.kind) == (space.number(), kind as u32) && tag.low < horizon
    });

    let tag = Tag { space: space.number(), kind: RecordKind::Head as u32, low: 0, high: 0, stamp };
    let mut late = None;
    space
        .encode_late(|bytes| {
            if late.is_none() {
                late = Some(writer.file(Tag { kind: RecordKind::LatePairs as u32, ..tag })?);
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
    // Encode the ring after the tables, so that its record is at least as new as their files.
    let mut file = writer.file(Tag { kind: RecordKind::Ring as u32, ..tag }).map_err(text)?;
    file.write(&encode_ring(&space.layout()), 0).map_err(text)?;
    add(writer, file)?;
    if let Some(ledger) = space.ledger() {
        let file = writer.file(Tag { kind: RecordKind::ExactPairs as u32, ..tag }).map_err(text)?;
        add(writer, write_ledger(ledger, file, pace).map_err(text)?)?;
    }
    // Encode the generations after the head: they must not be older than those of its pairs.
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

/// Writes the memory of a ledger. The manifest already lists its runs.
fn write_ledger(
    ledger: &PairLedger,
    mut file: SnapshotFileWriter,
    pace: &CpuThrottle<'_>,
) -> store::Result<SnapshotFileWriter> {
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

fn write_tokens(
    tokens: &Tokens,
    writer: &mut SnapshotWriter<'_>,
    stamp: u64,
) -> store::Result<Option<SnapshotFileWriter>> {
    let tag = Tag { kind: RecordKind::Tokens as u32, stamp, ..Tag::default() };
    let mut file = None;
    tokens.encode_all(|bytes| {
        if file.is_none() {
            file = Some(writer.file(tag)?);
        }
        file.as_mut().map_or(Ok(()), |file: &mut SnapshotFileWriter| file.write(bytes, 0))
    })?;
    Ok(file)
}

/// Returns the tables that must be written. Unchanged parts keep the files of the last snapshot.
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

/// Sorts with quicksort down to `SORT_ROWS`, and calls the CPU throttle between the steps.
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
    file: &mut SnapshotFileWriter,
    pace: &CpuThrottle,
) -> store::Result<()> {
    let width = space.schema().width();
    let (mut ids, mut values): (Vec<(u64, usize)>, Vec<i64>) = (Vec::new(), Vec::new());
    // Write deleted rows first, because rows recreated under the same ids follow.
    for ids in space.tombstones_in(low, high).chunks(CHUNK_ROWS) {
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
        // A field added during the snapshot is stored as 0. The log contains its values.
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
    file: &mut SnapshotFileWriter,
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
