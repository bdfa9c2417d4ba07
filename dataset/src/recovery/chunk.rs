//! Part of a log that several threads replay in parallel.
//!
//! Rows and pairs of different ids do not depend on each other. A chunk is applied in rounds. In a
//! round each thread applies the records of one space for a range of ids, in log order. A record
//! that changes a whole space, such as its list of tables, needs a separate round:
//!
//! ```text
//!             round 1        round 2   round 3
//!   space 1   rows rows      -         -
//!   space 2   pairs pairs    ring      pairs
//! ```

use super::apply::{Changes, apply_record};
use crate::commit::dirty_parts::DirtyParts;
use crate::engines::Engines;
use std::ops::{Range, RangeInclusive};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use store::Record;

/// Size of the records of a full chunk in bytes.
pub(super) const CHUNK_BYTES: usize = 512 << 10;
/// Minimum size of the records in a round that is divided among threads, in bytes.
const SHARED_BYTES: usize = 16 << 10;
/// Maximum number of ids sampled to divide a round among threads.
const SAMPLES: usize = 1024;

#[derive(Default)]
pub(super) struct Chunk {
    /// Payloads of all records, concatenated.
    bytes: Vec<u8>,
    records: Vec<PendingRecord>,
}

struct PendingRecord {
    space: u32,
    kind: u8,
    payload: Range<usize>,
    /// Log offsets of the record's batch.
    batch: Range<u64>,
}

impl Chunk {
    pub(super) fn push(&mut self, record: &Record<'_>, batch: &Range<u64>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(record.payload);
        self.records.push(PendingRecord {
            space: record.space,
            kind: record.kind,
            payload: start..self.bytes.len(),
            batch: batch.clone(),
        });
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= CHUNK_BYTES
    }

    /// Applies the records on up to `threads` threads and removes them. Returns whether there were
    /// any. The error contains the message and the log offset of the batch.
    pub(super) fn apply(
        &mut self,
        engines: &Engines,
        parts: &DirtyParts,
        threads: usize,
    ) -> Result<bool, String> {
        let any = !self.records.is_empty();
        // The sort is stable, so records of one space keep their order.
        self.records.sort_by_key(|record| record.space);
        let spaces = self.records.chunk_by(|a, b| a.space == b.space);
        let mut stretches: Vec<_> = spaces
            .map(|space| space.chunk_by(|a, b| Changes::has(a.kind) && Changes::has(b.kind)))
            .collect();
        let applied = loop {
            let round: Vec<_> = stretches.iter_mut().filter_map(Iterator::next).collect();
            if round.is_empty() {
                break Ok(any);
            }
            if let Err(what) = self.apply_round(&round, engines, parts, threads) {
                break Err(what);
            }
        };
        drop(stretches);
        self.records.clear();
        self.bytes.clear();
        applied
    }

    /// Applies one group of consecutive records per space.
    fn apply_round(
        &self,
        stretches: &[&[PendingRecord]],
        engines: &Engines,
        parts: &DirtyParts,
        threads: usize,
    ) -> Result<(), String> {
        let bytes: usize = stretches.iter().flat_map(|s| s.iter()).map(|r| r.payload.len()).sum();
        let threads = if bytes < SHARED_BYTES { 1 } else { threads };
        let record = |pending: &PendingRecord| Record {
            space: pending.space,
            kind: pending.kind,
            payload: &self.bytes[pending.payload.clone()],
        };
        let at = |batch: &Range<u64>, what: String| format!("{what} (batch at {})", batch.start);

        let records: Vec<&PendingRecord> = stretches.iter().copied().flatten().collect();
        let decoded: Vec<OnceLock<Changes<'_>>> = records.iter().map(|_| OnceLock::new()).collect();
        on_threads(threads, records.len(), |n| {
            let PendingRecord { kind, batch, .. } = records[n];
            if !Changes::has(*kind) {
                return Ok(());
            }
            match Changes::decode(engines, &record(records[n]), batch.end) {
                Ok(Some(changes)) => _ = decoded[n].set(changes),
                Ok(None) => {}
                Err(what) => return Err(at(batch, what)),
            }
            Ok(())
        })?;

        let mut tasks = Vec::new();
        let mut rest = &decoded[..];
        for stretch in stretches {
            let (of_stretch, others) = rest.split_at(stretch.len());
            rest = others;
            let changes: Vec<&Changes<'_>> = of_stretch.iter().filter_map(OnceLock::get).collect();
            tasks.extend(
                divided(&changes, threads).into_iter().map(|ids| (stretch, of_stretch, ids)),
            );
        }
        on_threads(threads, tasks.len(), |n| {
            let (stretch, decoded, ids) = &tasks[n];
            for (pending, changes) in stretch.iter().zip(*decoded) {
                let batch = &pending.batch;
                match changes.get() {
                    Some(changes) => changes.apply(engines, parts, ids),
                    None => apply_record(engines, parts, &record(pending), batch.end),
                }
                .map_err(|what| at(batch, what))?;
            }
            Ok(())
        })
    }
}

/// Divides all ids into at most one range per thread, with similar numbers of changes. Ranges begin
/// at a table's lowest id, because two threads in one table would contend for cache lines.
fn divided(changes: &[&Changes<'_>], threads: usize) -> Vec<RangeInclusive<u64>> {
    let Some(first) = changes.first().filter(|_| threads > 1) else { return vec![0..=u64::MAX] };
    let all: usize = changes.iter().map(|changes| changes.ids().len()).sum();
    let ids = changes.iter().flat_map(|changes| changes.ids().iter().copied());
    let mut sample: Vec<u64> = ids.step_by(all / SAMPLES + 1).collect();
    sample.sort_unstable();
    let tables = first.tables();
    let begin = |id: u64| tables[..tables.partition_point(|&low| low <= id)].last().copied();
    let middles = (1..threads).filter_map(|n| sample.get(n * sample.len() / threads));
    let mut starts: Vec<u64> = [0].into_iter().chain(middles.filter_map(|&id| begin(id))).collect();
    starts.dedup();
    let ends = starts[1..].iter().map(|start| start - 1).chain([u64::MAX]);
    starts.iter().zip(ends).map(|(&start, end)| start..=end).collect()
}

/// Runs tasks 0 to `tasks` - 1 on up to `threads` threads. Returns the first error.
fn on_threads(
    threads: usize,
    tasks: usize,
    task: impl Fn(usize) -> Result<(), String> + Sync,
) -> Result<(), String> {
    let (next, failed) = (AtomicUsize::new(0), OnceLock::new());
    let work = || {
        loop {
            let n = next.fetch_add(1, Relaxed);
            if n >= tasks || failed.get().is_some() {
                return;
            }
            if let Err(what) = task(n) {
                _ = failed.set(what);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(tasks) {
            scope.spawn(work);
        }
        work();
    });
    failed.into_inner().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::Durability;
    use crate::engines::Current;
    use crate::options::{Existence, Options};
    use crate::recovery::{Commits, NodeLog, Recovered, recover_from};
    use phantom::Member;
    use std::sync::Arc;
    use store::{SimDisk, Store, StoreOptions};

    fn options() -> Options {
        let mut options = Options::default();
        for existence in &mut options.existence {
            let shape = Existence { seed: 7, pairs_per_table: 4000, ..existence.clone() };
            *existence = Existence { false_positive_rate: 1e-7, max_outliers: 1024, ..shape };
        }
        options.counter.iter_mut().for_each(|counter| counter.rows_per_table = 4096);
        options
    }

    fn start(disk: &SimDisk) -> (Recovered, Arc<Durability>) {
        let durability = Arc::new(Durability::new(options().fsync));
        let disk = Arc::new(disk.clone());
        (recover_from(disk, &options(), &durability, false, |_| ()).unwrap(), durability)
    }

    const IDS: u64 = 20_000;

    fn content(engines: &Engines) -> (Vec<Vec<i64>>, Vec<(u64, bool)>) {
        let (rows, likes) = (&engines.counters()[0], &engines.existences()[0]);
        let row = |id| {
            let mut row = vec![0; rows.schema().width()];
            rows.get(id, &mut row).unwrap();
            row
        };
        let has = |id: u64, member| likes.confirm_set(id, &Member::Number(member)).unwrap();
        let pairs = (0..IDS).flat_map(|id| (0..3).map(move |member| (id, member)));
        ((0..IDS).map(row).collect(), pairs.map(|(id, member)| (id, has(id, member))).collect())
    }

    /// The batches create tables, set and unset likes, and forget posts, and are large enough to be
    /// divided. The result must not depend on the number of threads.
    #[test]
    fn threads_that_share_records_leave_what_one_leaves() {
        let disk = SimDisk::new(1);
        let (Recovered { engines, log, .. }, durability) = start(&disk);
        let NodeLog::Own(mut log) = log else { panic!("a master's") };
        engines.lead();
        let current = Current::new(engines);
        durability.begin(&log);
        let mut commits = Commits::new(&durability, &current);
        let mut random = fastrand::Rng::with_seed(3);
        let engines = current.load();
        let like = &engines.actions()[0];
        for first in (0..IDS).step_by(2000) {
            for _ in 0..20_000 {
                let (id, member) = (random.u64(..first + 2000), Member::Number(random.u64(..3)));
                match random.u8(..8) {
                    0 => _ = engines.undo(like, &member, id, &mut vec![]).unwrap(),
                    _ => _ = engines.act(like, &member, id, &mut vec![]).unwrap(),
                }
            }
            for _ in 0..20 {
                engines.forget_flags(&engines.existences()[0], random.u64(..first + 1)).unwrap();
            }
            while engines.maintain() {}
            commits.round(&mut log).unwrap();
        }
        drop((commits, log));
        let expected = content(&engines);
        for threads in [1, 2, 8] {
            let store = Store::open(Arc::new(disk.clone()), StoreOptions::default()).unwrap();
            let (Recovered { engines, .. }, durability) = start(&SimDisk::new(2));
            let (mut chunk, mut shared) = (Chunk::default(), 0);
            store
                .replay(
                    |record| {
                        if engines.counters().iter().any(|space| space.number() == record.space)
                            || engines.existence_by_number(record.space).is_some()
                        {
                            shared += usize::from(record.payload.len() >= SHARED_BYTES);
                            chunk.push(record, &(1..2));
                        }
                        Ok(())
                    },
                    |_| (),
                )
                .unwrap();
            assert!(shared > 10, "only {shared} records for several threads");
            assert!(chunk.apply(&engines, &durability.parts, threads).unwrap());
            engines.lead();
            assert!(content(&engines) == expected, "{threads} threads");
        }
    }
}
