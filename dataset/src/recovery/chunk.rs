//! Part of a log that is replayed together.
//!
//! Records of different spaces change different engines, so the spaces of a chunk are divided among
//! the cores. All records of one space are applied by one thread in the order of the log: an engine
//! that decides by what came before (where a table begins, say) decides as it did. No client and no
//! other thread sees the engines meanwhile.

use super::apply::apply_record;
use crate::commit::dirty_parts::DirtyParts;
use crate::engines::Engines;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use store::Record;

/// Bytes of records at which a chunk is full.
pub(super) const CHUNK_BYTES: usize = 256 << 10;

/// Records to be applied.
#[derive(Default)]
pub(super) struct Chunk {
    /// Payloads, one behind the other.
    bytes: Vec<u8>,
    records: Vec<PendingRecord>,
}

struct PendingRecord {
    space: u32,
    kind: u8,
    payload: Range<usize>,
    /// Where its batch lies in the log.
    batch: Range<u64>,
}

impl Chunk {
    /// Appends a record of the batch that lies there in the log.
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
    /// any; an error says what is wrong with a record, and where its batch begins.
    pub(super) fn apply(
        &mut self,
        engines: &Engines,
        parts: &DirtyParts,
        threads: usize,
    ) -> Result<bool, String> {
        let any = !self.records.is_empty();
        // A stable sort: records of one space stay in order.
        self.records.sort_by_key(|record| record.space);
        let mut spaces: Vec<_> = self.records.chunk_by(|a, b| a.space == b.space).collect();
        let bytes_of =
            |space: &[PendingRecord]| space.iter().map(|r| r.payload.len()).sum::<usize>();
        spaces.sort_by_key(|space| std::cmp::Reverse(bytes_of(space)));
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
        let work = || {
            while let Some(&space) = spaces.get(next.fetch_add(1, Relaxed)) {
                for PendingRecord { space, kind, payload, batch } in space {
                    let payload = &self.bytes[payload.clone()];
                    let record = Record { space: *space, kind: *kind, payload };
                    if let Err(what) = apply_record(engines, parts, &record, batch.end) {
                        failed.lock().get_or_insert(format!("{what} (batch at {})", batch.start));
                        return;
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads.min(spaces.len()) {
                scope.spawn(work);
            }
            work();
        });
        self.records.clear();
        self.bytes.clear();
        failed.into_inner().map_or(Ok(any), Err)
    }
}
