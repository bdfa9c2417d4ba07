//! Loads the files of a snapshot into the engines, on all cores.

use crate::catalogue::{Catalogue, Unreadable};
use crate::cold::PairFile;
use crate::cold::cold_filters::files_of;
use crate::commit::dirty_parts::DirtyParts;
use crate::engines::{CounterSpace, Engines, existence_options};
use crate::log_records::{RecordKind, decode_drops, decode_forgotten, read_exact_pairs, read_rows};
use crate::ring_records::decode_ring;
use counter::LoadRange;
use ledger::Ledger;
use parking_lot::Mutex;
use phantom::{LatePairs, StoredTable, TableDecoder};
use std::collections::HashMap;
use store::{FileEntry, Progress, Role, Store, Tag};

/// Returns the catalogue of the snapshot in the manifest, or `None` if there is no snapshot.
pub(crate) fn read_catalogue(
    store: &Store,
) -> store::Result<Option<Result<Catalogue, Unreadable>>> {
    let text = read_small(store, |tag| tag.kind == RecordKind::Catalogue as u32)?;
    Ok(text.map(|text| Catalogue::decode(&text)))
}

fn read_small(store: &Store, is: impl Fn(&Tag) -> bool) -> store::Result<Option<Vec<u8>>> {
    let file =
        store.manifest().files.iter().find(|f| f.role == Role::Snapshot && is(&f.tag)).cloned();
    file.map(|file| store::read_small(&**store.disk(), &file, store.lineage())).transpose()
}

/// Creates a loader with tables for the ranges and row counts of the snapshot.
fn loader<'a>(store: &Store, space: &'a CounterSpace) -> store::Result<counter::Loader<'a>> {
    let of_space =
        |tag: &Tag, kind: RecordKind| tag.space == space.number() && tag.kind == kind as u32;
    let head = read_small(store, |tag| of_space(tag, RecordKind::Head))?.unwrap_or_default();
    let files = store.manifest().files.clone();
    let files =
        files.iter().filter(|f| f.role == Role::Snapshot && of_space(&f.tag, RecordKind::Rows));
    let range = |f: &FileEntry| LoadRange {
        low: f.tag.low,
        last: f.tag.high,
        rows: store::row_hint(&**store.disk(), f),
    };
    let mut ranges: Vec<LoadRange> = files.map(range).collect();
    ranges.sort_unstable();
    let unsound = || {
        ranges.windows(2).any(|w| w[0].last >= w[1].low) || ranges.iter().any(|r| r.low > r.last)
    };
    let path = store.path(store::MANIFEST);
    if unsound() {
        return Err(store::Error::Corrupt {
            path,
            offset: 0,
            what: "row files overlap".to_owned(),
        });
    }
    let ranges = cut(&ranges, space.cold_end());
    // A spill removes its range's files from the snapshot.
    let files = space.cold().files();
    space.loader(&head, &fill_gaps(&ranges, files.lows())).map_err(|e| store::Error::Corrupt {
        path,
        offset: 0,
        what: e.to_string(),
    })
}

/// Splits ranges at `end`, below which rows may be cold. The newest table of the snapshot may have
/// been closed and spilled later. No table may cover both sides, because DBSIZE and merges rely on
/// rows above `end` not being in a cold file.
fn cut(ranges: &[LoadRange], end: u64) -> Vec<LoadRange> {
    let halves = ranges.iter().flat_map(|&range| {
        let is_cut = range.low < end && end <= range.last;
        let above = is_cut.then_some(LoadRange { low: end, rows: 0, ..range });
        let last = if is_cut { end - 1 } else { range.last };
        [LoadRange { last, ..range }].into_iter().chain(above)
    });
    halves.collect()
}

/// Adds ranges for the gaps between the ascending `ranges`, split at the start of each cold file. A
/// table that covered several files would be merged with all of them.
fn fill_gaps(ranges: &[LoadRange], lows: impl Iterator<Item = u64>) -> Vec<LoadRange> {
    let covered = |low: u64| ranges.iter().any(|range| range.low <= low && low <= range.last);
    let after = ranges.iter().filter_map(|range| range.last.checked_add(1));
    let begin = (!ranges.is_empty()).then_some(0);
    let mut free: Vec<u64> =
        begin.into_iter().chain(after).chain(lows).filter(|&low| !covered(low)).collect();
    free.sort_unstable();
    free.dedup();
    let mut all = ranges.to_vec();
    for (i, &low) in free.iter().enumerate() {
        let ends = [
            free.get(i + 1).copied(),
            ranges.iter().map(|range| range.low).find(|&next| next > low),
        ];
        let last = ends.into_iter().flatten().min().map_or(u64::MAX, |next| next - 1);
        all.push(LoadRange { low, last, rows: 0 });
    }
    all.sort_unstable();
    all
}

/// Creates a table for each cold file of an empty space, and a table for all higher ids.
pub(crate) fn lay_out(engines: &Engines) -> Result<(), counter::Error> {
    for space in
        engines.counters().iter().filter(|space| space.rows() == 0 && space.ranges().len() == 1)
    {
        let files = space.cold().files();
        let end = [space.cold_end()];
        let lows: Vec<u64> = [0].into_iter().chain(files.lows()).chain(end).collect();
        if !files.all().is_empty() {
            space.loader(&[], &fill_gaps(&[], lows.into_iter()))?.install()?;
        }
    }
    Ok(())
}

#[derive(Default)]
struct Restored {
    head: Vec<u8>,
    tables: Vec<StoredTable>,
    late: HashMap<u64, LatePairs>,
    forgotten: Vec<(u64, u64)>,
    /// Record of the ring, read after the tables were written; empty if the snapshot does not
    /// contain the space.
    ring: Vec<u8>,
}

impl Restored {
    fn install(
        mut self,
        store: &Store,
        options: &phantom::Options,
        engines: &mut Engines,
        number: u32,
    ) -> Result<(), RestoreError> {
        let mut files = Vec::new();
        let snapshot = store.manifest().replay.offset;
        for entry in files_of(store, number) {
            let (file, note) = PairFile::open(store, &entry, options, engines.cold.cache())?;
            let (low, _) = note.range();
            // The table was closed and spilled after the snapshot. The cold file replaces its
            // snapshot file.
            self.tables.retain(|table| table.range().0 != low);
            let is_later = file.covered() > 0 && file.covered() >= snapshot;
            self.tables.push(note.table(file.clone(), self.late.get(&low), is_later)?);
            files.push(file);
        }
        let layout = decode_ring(&self.ring).map_err(RestoreError::Damaged)?;
        let space = phantom::Space::restore(options.clone(), &self.head, &layout, self.tables)?;
        space.put_late(&self.late)?;
        space.restore_generations(&self.forgotten);
        engines.restore(number, space, files);
        Ok(())
    }
}

enum RestoreError {
    Store(store::Error),
    Damaged(String),
}

impl From<store::Error> for RestoreError {
    fn from(error: store::Error) -> RestoreError {
        RestoreError::Store(error)
    }
}

impl From<phantom::DecodeError> for RestoreError {
    fn from(error: phantom::DecodeError) -> RestoreError {
        RestoreError::Damaged(error.to_string())
    }
}

impl RestoreError {
    /// Converts the error to one of the store. Damage is reported for the file `name`.
    fn of(self, store: &Store, name: &str) -> store::Error {
        match self {
            RestoreError::Store(error) => error,
            RestoreError::Damaged(what) => {
                store::Error::Corrupt { path: store.path(name), offset: 0, what }
            }
        }
    }
}

fn options_of(engines: &Engines) -> HashMap<u32, phantom::Options> {
    let catalogue = engines.catalogue();
    let known = catalogue.existence.iter();
    known.map(|known| (known.number, existence_options(&known.made))).collect()
}

/// Attaches cold tables to the existence spaces that are empty and not in the snapshot.
pub(crate) fn attach_pairs(store: &Store, engines: &mut Engines) -> store::Result<()> {
    for (number, options) in options_of(engines) {
        let is_head = |file: &FileEntry| {
            file.role == Role::Snapshot && file.tag.kind == RecordKind::Head as u32
        };
        let in_snapshot =
            store.manifest().files.iter().any(|file| is_head(file) && file.tag.space == number);
        let is_there = engines.existence_by_number(number).is_none_or(|space| space.cold().any());
        if in_snapshot || is_there || files_of(store, number).is_empty() {
            continue;
        }
        let space = engines.existence_by_number(number);
        let head = space.map(|space| space.encode_head()).unwrap_or_default();
        let forgotten = space.map(|space| space.forgotten(0, u64::MAX)).unwrap_or_default();
        let made = Restored { head, forgotten, ..Restored::default() };
        let made = made.install(store, &options, engines, number);
        made.map_err(|error| error.of(store, store::MANIFEST))?;
    }
    Ok(())
}

/// State while a snapshot is loaded: partially loaded spaces, until all files have been read.
struct Loading<'a> {
    /// Filter options of each existence space, keyed by space number.
    options: HashMap<u32, phantom::Options>,
    loaders: HashMap<u32, counter::Loader<'a>>,
    /// Decoders of partially read table files, keyed by file name.
    decoders: Mutex<HashMap<String, TableDecoder>>,
    /// Parts of each existence space read so far, keyed by space number.
    restored: Mutex<HashMap<u32, Restored>>,
}

impl Loading<'_> {
    /// Loads a chunk of a file. One thread loads all chunks of a file, in order.
    fn take(&self, engines: &Engines, file: &FileEntry, chunk: &[u8]) -> Result<(), String> {
        let space = file.tag.space;
        // The space was dropped during the snapshot, or its files have not been removed yet.
        if engines.is_dropped(space) {
            return Ok(());
        }
        match RecordKind::from_number(u8::try_from(file.tag.kind).unwrap_or(0)) {
            Some(RecordKind::Catalogue) => Ok(()),
            Some(RecordKind::Rows) => self.take_rows(engines, file, chunk),
            Some(RecordKind::Table) => self.take_table(file, chunk),
            Some(RecordKind::Head) if self.loaders.contains_key(&space) => Ok(()),
            Some(RecordKind::Head) => {
                self.restored.lock().entry(space).or_default().head.extend_from_slice(chunk);
                Ok(())
            }
            Some(RecordKind::Ring) => {
                self.restored.lock().entry(space).or_default().ring.extend_from_slice(chunk);
                Ok(())
            }
            Some(RecordKind::LatePairs) => {
                let mut restored = self.restored.lock();
                LatePairs::take(&mut restored.entry(space).or_default().late, chunk)
                    .map_err(|e| e.to_string())
            }
            Some(RecordKind::Forgotten) => {
                let forgotten = decode_forgotten(chunk)?;
                self.restored.lock().entry(space).or_default().forgotten.extend(forgotten);
                Ok(())
            }
            Some(RecordKind::ExactPairs) => {
                let ledger = engines.existence_by_number(space).and_then(|space| space.ledger());
                let ledger = ledger.ok_or_else(|| format!("space {space} has no ledger"))?;
                take_ledger(ledger.ledger(), chunk, file.tag.stamp)
            }
            Some(RecordKind::Tokens) => engines.tokens.decode(chunk),
            Some(RecordKind::Offsets) => engines.offsets.decode(chunk),
            Some(RecordKind::Groups) => engines.groups.decode(chunk),
            _ => Err(format!("unexpected file of kind {} in a snapshot", file.tag.kind)),
        }
    }

    fn take_rows(&self, engines: &Engines, file: &FileEntry, chunk: &[u8]) -> Result<(), String> {
        let space = file.tag.space;
        let loader = self.loaders.get(&space);
        let part = |low: u64| loader.and_then(|loader| loader.part(low));
        let missing = || format!("no counter space {space}");
        let counters = engines.counter_by_number(space).ok_or_else(missing)?;
        let end = counters.cold_end();
        let mut below = part(file.tag.low).ok_or_else(missing)?;
        let is_cut = file.tag.low < end && end <= file.tag.high;
        let mut above = if is_cut { part(end) } else { None };
        read_rows(chunk, |id, row| match row {
            Some(row) => {
                let above = above.as_mut().filter(|_| id >= end);
                above.unwrap_or(&mut below).push(id, row).map_err(|e| e.to_string())
            }
            None => {
                counters.add_tombstone(id);
                Ok(())
            }
        })
    }

    fn take_table(&self, file: &FileEntry, chunk: &[u8]) -> Result<(), String> {
        let space = file.tag.space;
        let options =
            self.options.get(&space).ok_or_else(|| format!("no existence space {space}"))?;
        // No other thread needs this file's decoder.
        let decoder = self.decoders.lock().remove(&file.name);
        let mut decoder = decoder.unwrap_or_else(|| TableDecoder::new(options, u64::MAX));
        decoder.feed(chunk).map_err(|e| e.to_string())?;
        self.decoders.lock().insert(file.name.clone(), decoder);
        Ok(())
    }
}

/// Loads a chunk of a ledger's memory. `begin` is the log offset at which the snapshot began. Skips
/// pairs if the runs of their range cover this offset.
fn take_ledger(ledger: &Ledger, chunk: &[u8], begin: u64) -> Result<(), String> {
    let is_news = |id: u64| begin > ledger.covered(id);
    match chunk.split_first() {
        Some((0, drops)) => {
            let drops = decode_drops(drops)?;
            let news = drops.iter().filter(|drop| is_news(drop.0));
            news.for_each(|&(id, up_to)| ledger.restore_drop(id, up_to));
            Ok(())
        }
        Some((1, pairs)) => read_exact_pairs(pairs, |pair, _| {
            if is_news(pair.id) {
                ledger.set(pair.id, pair.member, pair.set);
            }
            Ok(())
        }),
        first => Err(format!("a chunk of a ledger starts with {:?}", first.map(|f| f.0))),
    }
}

/// Loads the snapshot into empty engines, on all cores. Returns the number of rows.
pub(crate) fn load(
    store: &Store,
    engines: &mut Engines,
    parts: &DirtyParts,
    progress: impl Fn(Progress) + Sync,
) -> store::Result<u64> {
    let loaders =
        engines.counters().iter().map(|space| Ok((space.number(), loader(store, space)?)));
    let loading = Loading {
        options: options_of(engines),
        loaders: loaders.collect::<store::Result<_>>()?,
        decoders: Mutex::default(),
        restored: Mutex::default(),
    };
    let apply = |file: &FileEntry, chunk: &[u8]| loading.take(engines, file, chunk);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let rows = store.load(threads, apply, progress)?;
    let Loading { options, loaders, decoders, restored } = loading;
    for (number, loader) in loaders {
        let refused =
            |e: counter::Error| store::Error::Refused(format!("counter space {number}: {e}"));
        loader.install().map_err(refused)?;
    }
    let files = store.manifest().files.clone();
    let damaged = |file: &FileEntry, what: String| store::Error::Corrupt {
        path: store.path(&file.name),
        offset: 0,
        what,
    };
    let mut decoders = decoders.into_inner();
    let mut restored = restored.into_inner();
    for file in &files {
        if let Some(decoder) = decoders.remove(&file.name) {
            let table = decoder.finish().map_err(|e| damaged(file, e.to_string()))?;
            restored.entry(file.tag.space).or_default().tables.push(table);
        }
    }
    for file in files.iter().filter(|f| f.tag.kind == RecordKind::Head as u32) {
        let Some(of_space) = restored.remove(&file.tag.space) else { continue };
        let Some(options) = options.get(&file.tag.space) else { continue };
        let made = of_space.install(store, options, engines, file.tag.space);
        made.map_err(|error| error.of(store, &file.name))?;
    }
    parts.adopt(&files);
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a range of a snapshot is split at the end of the cold rows.
    #[test]
    fn no_range_covers_both_sides_of_the_line() {
        let range = |low, last, rows| LoadRange { low, last, rows };
        let all = [range(0, 9, 5), range(10, u64::MAX, 7)];
        assert_eq!(cut(&all, 0), all);
        assert_eq!(cut(&all, 10), all, "already split there");
        assert_eq!(cut(&all, 4), [range(0, 3, 5), range(4, 9, 0), range(10, u64::MAX, 7)]);
        assert_eq!(
            cut(&all, u64::MAX),
            [range(0, 9, 5), range(10, u64::MAX - 1, 7), range(u64::MAX, u64::MAX, 0)]
        );
        assert_eq!(cut(&[], 4), []);
    }
}
