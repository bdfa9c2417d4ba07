//! The append-only log. One thread appends batches to the newest segment, syncs it on request, and
//! begins a new segment at a size limit.
//!
//! ```text
//!   log-..11.tlog   [header][batch][batch][batch]            base 0
//!   log-..12.tlog   [header][batch][batch]-- void ...        base 9,120
//!   log-..13.tlog   [header][same batch again][batch] ...    base 11,000
//! ```
//!
//! In the example, a sync of segment 12 failed. Segment 13 begins at the durable end of segment 12.
//! The log wrote the batches after that position to segment 13 again.
//!
//! Invariants:
//!
//! - **L1** A successful sync covers all bytes before [`Log::durable`], and no earlier sync of that
//!   file failed.
//! - **L2** A segment's header and name are durable before its first batch is written. The previous
//!   segment is synced before that.
//! - **L3** Batches between `durable` and `written` are also in memory, bounded by
//!   [`LogOptions::unsynced_bytes`]. A file failure cannot lose these batches while the process
//!   runs.
//! - **L4** Recovery never mistakes the remains of a failed `append` for an acknowledged write. A
//!   later `append` continues at the end of the last successful `append`.
//! - **L5** The log writes nothing to a segment after it has tried to create a successor, even if
//!   that failed.
//!
//! After a failed sync or write (other than a full disk) the log never uses the file again. The
//! batches that are not durable go to a new segment. A retry on the same file would be unsafe: the
//! kernel marks the pages clean and returns `Ok` for lost data (Rebello et al., "Can Applications
//! Recover from fsync Failures?", ATC 2020).

use std::sync::Arc;

use crate::batch::{BATCH_HEAD_BYTES, BatchHead, Lineage, MAX_BODY_BYTES, fields, put_batch};
use crate::buffer;
use crate::disk::{Disk, DiskFile, write_all_at};
use crate::error::{Error, Result};
use crate::record::Batch;
use crate::segment::{SEGMENT_HEAD_BYTES, SegmentHead, segment_name};

/// A position between two batches of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Segment number.
    pub segment: u64,
    /// Byte offset in the segment's file.
    pub byte: u64,
    /// Byte offset in the lineage. Comparable between nodes with the same lineage.
    pub offset: u64,
    /// Sequence number of the last batch before this position.
    pub sequence: u64,
    /// Chain value of the last batch before this position. Two logs with equal offset and chain
    /// have the same history.
    pub chain: u32,
}

impl Position {
    /// Start of a new lineage.
    pub const START: Position =
        Position { segment: 1, byte: SEGMENT_HEAD_BYTES, offset: 0, sequence: 0, chain: 0 };

    /// Returns the position before a segment's first batch.
    pub fn first_of(head: &SegmentHead) -> Position {
        Position {
            segment: head.segment,
            byte: SEGMENT_HEAD_BYTES,
            offset: head.base,
            sequence: head.sequence,
            chain: head.chain,
        }
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "segment {} byte {} (offset {})", self.segment, self.byte, self.offset)
    }
}

/// Size limits of the log.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// Size in bytes at which the log begins a new segment. Default 64 MiB.
    pub segment_bytes: u64,
    /// Maximum number of unsynced bytes under any policy. These bytes are also in memory (L3).
    /// Default 16 MiB.
    pub unsynced_bytes: usize,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions { segment_bytes: 64 << 20, unsynced_bytes: 16 << 20 }
    }
}

/// Counters of a log since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogStats {
    /// Appended batches, including seals.
    pub batches: u64,
    /// Appended records.
    pub records: u64,
    /// Appended bytes, including batch heads.
    pub bytes: u64,
    /// Successful syncs of segments.
    pub syncs: u64,
    /// Created segments.
    pub segments: u64,
    /// Failed syncs and writes, except for a full disk.
    pub failures: u64,
    /// Recoveries from a failed segment. Each one writes the unsynced batches of that segment to a
    /// new segment.
    pub healed: u64,
}

/// Result of recovery: the position at which the log continues, and its metadata.
#[derive(Debug)]
pub(crate) struct LogResume {
    pub(crate) lineage: Lineage,
    pub(crate) term: u64,
    /// Position after the last valid batch.
    pub(crate) end: Position,
    /// A number greater than every segment number in use.
    pub(crate) next_segment: u64,
    pub(crate) is_first: bool,
    /// Whether recovery discarded bytes after `end`.
    pub(crate) void: bool,
}

/// Writer of the log, owned by one thread.
#[derive(Debug)]
pub struct Log {
    disk: Arc<dyn Disk>,
    options: LogOptions,
    lineage: Lineage,
    term: u64,
    /// Newest segment, or `None` after a failure until the next segment exists.
    file: Option<Box<dyn DiskFile>>,
    head: SegmentHead,
    written: Position,
    durable: Position,
    /// Framed batches between `durable` and `written`.
    unsynced: Vec<u8>,
    next_segment: u64,
    frame: Vec<u8>,
    sealed: bool,
    /// Whether a failed append was truncated. A power cut may restore those bytes, so the next
    /// segment must have the void flag.
    was_truncated: bool,
    /// Whether `durable` is in an existing segment. False until a new lineage has its first
    /// segment.
    has_segment: bool,
    stats: LogStats,
}

impl Log {
    pub(crate) fn resume(
        disk: Arc<dyn Disk>,
        options: LogOptions,
        found: LogResume,
    ) -> Result<Log> {
        let LogResume { lineage, term, end, next_segment, is_first, void } = found;
        let placeholder = SegmentHead {
            void: false,
            lineage,
            segment: end.segment,
            previous: end.segment.saturating_sub(1),
            base: end.offset,
            sequence: end.sequence,
            term,
            chain: end.chain,
        };
        let mut log = Log {
            disk,
            options,
            lineage,
            term,
            file: None,
            head: placeholder,
            written: end,
            durable: end,
            unsynced: Vec::new(),
            next_segment,
            frame: Vec::new(),
            sealed: true,
            was_truncated: false,
            has_segment: !is_first,
            stats: LogStats::default(),
        };
        // Recovery always begins a new segment, even after an empty segment. A power cut may have
        // destroyed bytes of the old segment that replicas already received.
        match log.open_segment(end, void) {
            // Continue if the disk is full, so that the server can serve reads. The first append or
            // sync retries.
            Ok(()) | Err(Error::Full { .. }) => Ok(log),
            Err(error) => Err(error),
        }
    }

    /// Returns the lineage of this log.
    pub fn lineage(&self) -> Lineage {
        self.lineage
    }

    /// Returns the term of the newest segment.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Returns the end of the appended batches.
    pub fn written(&self) -> Position {
        self.written
    }

    /// Returns the durable end (L1).
    pub fn durable(&self) -> Position {
        self.durable
    }

    /// Whether the newest segment failed and has no successor yet. The next [`Log::sync`] or
    /// [`Log::append`] tries to create a successor.
    pub fn has_failed(&self) -> bool {
        self.file.is_none()
    }

    /// Returns the counters since the log was opened.
    pub fn stats(&self) -> LogStats {
        self.stats
    }

    /// Appends a batch and returns the position after it. `time_ms` is the caller's clock in
    /// milliseconds since 1970.
    ///
    /// On [`Error::Full`] and [`Error::Io`] the log contains the same batches as before, and the
    /// caller may retry.
    pub fn append(&mut self, batch: &Batch, time_ms: u64) -> Result<Position> {
        if batch.bytes() > MAX_BODY_BYTES {
            return Err(Error::Refused(format!(
                "a batch of {} bytes; the limit is {MAX_BODY_BYTES}",
                batch.bytes()
            )));
        }
        self.write(batch.body(), batch.count(), time_ms)?;
        self.sealed = false;
        Ok(self.written)
    }

    /// Makes all appended batches durable.
    ///
    /// On an error the disk state between [`Log::durable`] and [`Log::written`] is unknown. The
    /// bytes are still in memory, and the next `sync` or `append` writes them to a new segment.
    pub fn sync(&mut self) -> Result<Position> {
        let Some(file) = &self.file else {
            self.heal()?;
            return Ok(self.durable);
        };
        if self.unsynced.is_empty() {
            return Ok(self.durable);
        }
        match file.sync() {
            Ok(()) => {
                self.stats.syncs += 1;
                self.durable = self.written;
                buffer::clear(&mut self.unsynced);
            }
            Err(_) => {
                // Ignore this error. If the disk is broken, writing the new segment also fails.
                // Otherwise the new segment has the data.
                self.stats.failures += 1;
                self.file = None;
                self.heal()?;
            }
        }
        Ok(self.durable)
    }

    /// Syncs, then appends a durable empty batch: a seal.
    ///
    /// Recovery can distinguish damage before a seal from a torn tail. Therefore a log is sealed
    /// when it is idle or closed.
    pub fn seal(&mut self, time_ms: u64) -> Result<()> {
        self.sync()?;
        if !self.sealed {
            self.write(&[], 0, time_ms)?;
            self.sync()?;
            self.sealed = true;
        }
        Ok(())
    }

    /// Begins a new segment regardless of the size of the current segment.
    ///
    /// # Panics
    ///
    /// Panics if `term` is less than the current term.
    pub fn roll(&mut self, term: u64) -> Result<()> {
        assert!(term >= self.term, "a term never decreases: {} to {term}", self.term);
        self.sync()?;
        let before = std::mem::replace(&mut self.term, term);
        let rolled = self.open_segment(self.written, false);
        if rolled.is_err() {
            self.term = before;
        }
        rolled
    }

    fn write(&mut self, body: &[u8], records: u32, time_ms: u64) -> Result<()> {
        if self.file.is_none() {
            self.heal()?;
        }
        if self.written.byte >= self.options.segment_bytes && self.written.byte > SEGMENT_HEAD_BYTES
        {
            self.roll(self.term)?;
        }
        if !self.unsynced.is_empty()
            && self.unsynced.len() + BATCH_HEAD_BYTES + body.len() > self.options.unsynced_bytes
        {
            self.sync()?;
        }
        match self.try_write(body, records, time_ms) {
            // Abandon a file that fails a write. The batch gets one retry in a new segment.
            Err(Error::Io { .. }) if self.file.is_none() => {
                self.heal()?;
                self.try_write(body, records, time_ms)
            }
            other => other,
        }
    }

    fn try_write(&mut self, body: &[u8], records: u32, time_ms: u64) -> Result<()> {
        let mut frame = std::mem::take(&mut self.frame);
        let after = self.put(&mut frame, body, records, time_ms);
        let result = match &self.file {
            Some(file) => write_all_at(&**file, &frame, self.written.byte),
            None => Err(std::io::Error::other("no open segment")),
        };
        let result = result.map_err(|e| {
            Error::io(self.disk.path(&segment_name(self.head.segment)), "appending to", e)
        });
        match &result {
            Ok(()) => {
                self.unsynced.extend_from_slice(&frame);
                self.written = after;
                self.stats.batches += 1;
                self.stats.records += u64::from(records);
                self.stats.bytes += frame.len() as u64;
            }
            Err(error) => {
                // L4: truncate the partial batch to free its space. Recovery would treat the
                // partial batch as a torn tail.
                self.was_truncated = true;
                let cut = self.file.as_ref().is_some_and(|f| f.set_size(self.written.byte).is_ok());
                if !cut || !matches!(error, Error::Full { .. }) {
                    self.stats.failures += u64::from(!matches!(error, Error::Full { .. }));
                    self.file = None;
                }
            }
        }
        buffer::clear(&mut frame);
        self.frame = frame;
        result
    }

    /// Encodes a batch for the position `written`. Returns the position after it.
    fn put(&self, out: &mut Vec<u8>, body: &[u8], records: u32, time_ms: u64) -> Position {
        let at = self.written;
        let unsynced = u32::try_from(at.offset - self.durable.offset).unwrap_or(u32::MAX);
        let head = BatchHead {
            body_bytes: body.len() as u32,
            records,
            sequence: at.sequence + 1,
            time_ms,
            unsynced_bytes: unsynced,
            previous: at.chain,
            chain: 0,
        };
        let chain = put_batch(out, &self.head.place(at.byte), &head, body);
        let bytes = (BATCH_HEAD_BYTES + body.len()) as u64;
        Position {
            byte: at.byte + bytes,
            offset: at.offset + bytes,
            sequence: head.sequence,
            chain,
            ..at
        }
    }

    /// Begins a new segment at `start`, which must be durable (L2).
    fn open_segment(&mut self, start: Position, void: bool) -> Result<()> {
        let previous = if self.has_segment { start.segment } else { 0 };
        let segment = self.next_segment;
        // A failed attempt also consumes the number, because a power cut may restore a file of that
        // name.
        self.next_segment += 1;
        let head = SegmentHead {
            void: void || self.was_truncated || segment != previous + 1,
            lineage: self.lineage,
            segment,
            previous,
            base: start.offset,
            sequence: start.sequence,
            term: self.term,
            chain: start.chain,
        };
        // L5: close the previous segment now. A power cut may restore the unfinished successor,
        // which would end the log at its base.
        self.file = None;
        self.file = Some(create_segment(&*self.disk, &head)?);
        self.was_truncated = false;
        self.has_segment = true;
        self.head = head;
        self.written = Position { segment, byte: SEGMENT_HEAD_BYTES, ..start };
        self.durable = self.written;
        self.stats.segments += 1;
        Ok(())
    }

    /// Replaces a failed file: begins a new segment at the durable end and writes the unsynced
    /// batches to it, durably.
    fn heal(&mut self) -> Result<()> {
        let before = (self.durable, self.written, self.head, self.has_segment);
        let durable = self.durable;
        let unsynced = std::mem::take(&mut self.unsynced);
        let result = self.rewrite(durable, &unsynced);
        if let Err(error) = result {
            // Restore the previous state, with no open file and all batches in memory. The next
            // call retries with a new segment number.
            if let Some(file) = self.file.take() {
                drop(file);
                let _ = self.disk.remove(&segment_name(self.head.segment));
            }
            self.stats.failures += u64::from(!matches!(error, Error::Full { .. }));
            (self.durable, self.written, self.head, self.has_segment) = before;
            self.unsynced = unsynced;
            return Err(error);
        }
        self.stats.healed += 1;
        Ok(())
    }

    fn rewrite(&mut self, durable: Position, unsynced: &[u8]) -> Result<()> {
        self.open_segment(durable, true)?;
        let mut out = Vec::with_capacity(unsynced.len());
        let mut rest = unsynced;
        while !rest.is_empty() {
            let head = fields(rest);
            let (batch, after) = rest.split_at(head.bytes() as usize);
            self.written =
                self.put(&mut out, &batch[BATCH_HEAD_BYTES..], head.records, head.time_ms);
            rest = after;
        }
        let path = self.disk.path(&segment_name(self.head.segment));
        let file = self.file.as_ref().expect("open_segment opened it");
        write_all_at(&**file, &out, SEGMENT_HEAD_BYTES)
            .map_err(|e| Error::io(&path, "appending to", e))?;
        file.sync().map_err(|e| Error::io(&path, "syncing", e))?;
        self.stats.syncs += 1;
        self.durable = self.written;
        Ok(())
    }
}

/// Creates a segment's file with a durable header and name (L2).
pub(crate) fn create_segment(disk: &dyn Disk, head: &SegmentHead) -> Result<Box<dyn DiskFile>> {
    let name = segment_name(head.segment);
    let path = disk.path(&name);
    let file = disk.create(&name).map_err(|e| Error::io(&path, "creating", e))?;
    let made = write_all_at(&*file, &head.encode(), 0)
        .and_then(|()| file.sync())
        .and_then(|()| disk.sync_dir())
        .map_err(|e| Error::io(&path, "beginning", e));
    if let Err(error) = made {
        drop(file);
        // The removal is best effort. Recovery ignores a segment without batches.
        let _ = disk.remove(&name);
        return Err(error);
    }
    Ok(file)
}
