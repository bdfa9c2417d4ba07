//! The rolling log, written by one thread: batches appended to the newest segment, synced when the
//! caller says, rolled by size.
//!
//! ```text
//!   log-..11.tlog   [header][batch][batch][batch]            base 0
//!   log-..12.tlog   [header][batch][batch]-- void ...        base 9,120
//!   log-..13.tlog   [header][same batch again][batch] ...    base 11,000
//! ```
//!
//! Here a sync of segment 12 failed. What was not durable was written again, to 13, which begins
//! where 12 was certain.
//!
//! What holds at all times:
//!
//! - **L1** Bytes before [`Log::durable`] were covered by a successful sync of a file of which no
//!   sync had failed before.
//! - **L2** A segment's header and its name are durable before its first batch is written; the
//!   previous segment is synced before.
//! - **L3** Batches between `durable` and `written` are also in memory
//!   ([`LogOptions::unsynced_bytes`] bounds them), so that no failure of the file can lose them
//!   while the process lives.
//! - **L4** A failed `append` leaves nothing of its batch behind that a recovery could take for an
//!   acknowledged write, and a later `append` continues where the last successful one ended.
//!
//! - **L5** Nothing is written to a segment once a successor was begun, even if beginning it
//!   failed.
//!
//! A file of which a sync or a write failed (other than for want of room) is never written or
//! synced again: the batches that were not durable go to a new segment. Why not try again: the
//! kernel marks the pages clean and answers `Ok` the next time, with the data lost (Rebello and
//! others, "Can applications recover from fsync failures?", ATC 2020).

use std::sync::Arc;

use crate::batch::{BATCH_HEAD_BYTES, BatchHead, Lineage, MAX_BODY_BYTES, fields, put_batch};
use crate::buffer;
use crate::disk::{Disk, DiskFile, write_all_at};
use crate::error::{Error, Result};
use crate::record::Batch;
use crate::segment::{SEGMENT_HEAD_BYTES, SegmentHead, segment_name};

/// A place between two batches of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Number of the segment.
    pub segment: u64,
    /// Byte of the segment's file.
    pub byte: u64,
    /// Offset in the lineage: comparable between all nodes that share it.
    pub offset: u64,
    /// Number of the last batch before this place.
    pub sequence: u64,
    /// Chain value of the last batch before this place: two logs that agree on offset and chain
    /// agree on all before.
    pub chain: u32,
}

impl Position {
    /// The start of a new lineage.
    pub const START: Position =
        Position { segment: 1, byte: SEGMENT_HEAD_BYTES, offset: 0, sequence: 0, chain: 0 };

    /// The place before a segment's first batch.
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

/// How the log is cut into files.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// A segment that has reached this size is followed by a new one. Default 64 MiB.
    pub segment_bytes: u64,
    /// At most this many bytes are written before a sync, whatever the policy: they are kept in
    /// memory until then (L3). Default 16 MiB.
    pub unsynced_bytes: usize,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions { segment_bytes: 64 << 20, unsynced_bytes: 16 << 20 }
    }
}

/// Figures of a log since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogStats {
    /// Batches appended, seals included.
    pub batches: u64,
    /// Records appended.
    pub records: u64,
    /// Bytes appended, heads of batches included.
    pub bytes: u64,
    /// Successful syncs of segments.
    pub syncs: u64,
    /// Segments begun.
    pub segments: u64,
    /// Syncs and writes that failed for another reason than a full disk.
    pub failures: u64,
    /// Times that a failed segment was left and its unsynced batches were written to a new one.
    pub healed: u64,
}

/// What recovery found: where and how the log goes on.
#[derive(Debug)]
pub(crate) struct Resume {
    pub(crate) lineage: Lineage,
    pub(crate) term: u64,
    /// The place after the last valid batch.
    pub(crate) end: Position,
    /// Above every number in use.
    pub(crate) next_segment: u64,
    /// No segment is there yet.
    pub(crate) is_first: bool,
    /// Something after `end` was cut.
    pub(crate) void: bool,
}

/// The writing end of the log. One thread owns it.
#[derive(Debug)]
pub struct Log {
    disk: Arc<dyn Disk>,
    options: LogOptions,
    lineage: Lineage,
    term: u64,
    /// The newest segment; `None` after it failed, until a new one is there.
    file: Option<Box<dyn DiskFile>>,
    head: SegmentHead,
    written: Position,
    durable: Position,
    /// The batches between `durable` and `written`, as they were framed.
    unsynced: Vec<u8>,
    next_segment: u64,
    frame: Vec<u8>,
    sealed: bool,
    /// Bytes of a failed append were cut off, but may come back after a power cut: the next segment
    /// has to call them void.
    scarred: bool,
    /// Does `durable` lie in a segment? Not before a new lineage has its first one.
    has_segment: bool,
    stats: LogStats,
}

impl Log {
    /// Goes on where recovery found the end.
    pub(crate) fn resume(disk: Arc<dyn Disk>, options: LogOptions, found: Resume) -> Result<Log> {
        let Resume { lineage, term, end, next_segment, is_first, void } = found;
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
            scarred: false,
            has_segment: !is_first,
            stats: LogStats::default(),
        };
        // Always a segment of its own, even behind an empty one: that one may have lost, with the
        // power, what replicas have of it.
        match log.open_segment(end, void) {
            // A full disk must not keep the data from being read: the first append or sync tries
            // again.
            Ok(()) | Err(Error::Full { .. }) => Ok(log),
            Err(error) => Err(error),
        }
    }

    /// The history that this log belongs to.
    pub fn lineage(&self) -> Lineage {
        self.lineage
    }

    /// The newest segment's term.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// The end of what was appended.
    pub fn written(&self) -> Position {
        self.written
    }

    /// The end of what is certain to be on the disk (L1).
    pub fn durable(&self) -> Position {
        self.durable
    }

    /// Has the newest segment failed, with no new one yet? The next call of [`Log::sync`] or
    /// [`Log::append`] tries to begin one.
    pub fn has_failed(&self) -> bool {
        self.file.is_none()
    }

    /// Figures since the log was opened.
    pub fn stats(&self) -> LogStats {
        self.stats
    }

    /// Appends a batch and returns the place after it. `time_ms` is the caller's clock,
    /// milliseconds since 1970.
    ///
    /// On [`Error::Full`] and [`Error::Io`] nothing was appended and nothing before is lost; the
    /// call may be repeated.
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

    /// Makes all that was appended durable.
    ///
    /// On an error nothing is known of what lies between [`Log::durable`] and [`Log::written`], but
    /// it is still in memory: the next call of `sync` or `append` writes it to a new segment.
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
                // What it was will be known when the new segment fails too; if it does not, the
                // data is safe.
                self.stats.failures += 1;
                self.file = None;
                self.heal()?;
            }
        }
        Ok(self.durable)
    }

    /// Syncs, and adds an empty batch that says so. Damage before a seal can be told from a torn
    /// tail, so an idle or a closing log is sealed.
    pub fn seal(&mut self, time_ms: u64) -> Result<()> {
        self.sync()?;
        if !self.sealed {
            self.write(&[], 0, time_ms)?;
            self.sync()?;
            self.sealed = true;
        }
        Ok(())
    }

    /// Ends the newest segment and begins the next one, even if it is small; `term` of the new one
    /// must not be lower than the present.
    pub fn roll(&mut self, term: u64) -> Result<()> {
        assert!(term >= self.term, "a term never falls: {} to {term}", self.term);
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
            // A file that fails to take bytes is left at once; the batch gets one chance in a new
            // one.
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
            None => Err(std::io::Error::other("no segment is open")),
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
                // L4: cut off what arrived of the batch. It would read as a torn tail anyway;
                // cutting makes the room usable by others.
                self.scarred = true;
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

    /// Frames a batch that goes to `written`; returns the place after it.
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

    /// Begins a new segment at `start`, an already durable place (L2).
    fn open_segment(&mut self, start: Position, void: bool) -> Result<()> {
        let previous = if self.has_segment { start.segment } else { 0 };
        let segment = self.next_segment;
        // The number is used up even if this fails: a file of that name may come back after a power
        // cut.
        self.next_segment += 1;
        let head = SegmentHead {
            void: void || self.scarred || segment != previous + 1,
            lineage: self.lineage,
            segment,
            previous,
            base: start.offset,
            sequence: start.sequence,
            term: self.term,
            chain: start.chain,
        };
        // From here on the segment before takes no more bytes, whether this succeeds or not: an
        // unfinished successor may come back after a power cut, and would say that the log goes on
        // at its base.
        self.file = None;
        self.file = Some(create_segment(&*self.disk, &head)?);
        self.scarred = false;
        self.has_segment = true;
        self.head = head;
        self.written = Position { segment, byte: SEGMENT_HEAD_BYTES, ..start };
        self.durable = self.written;
        self.stats.segments += 1;
        Ok(())
    }

    /// Leaves a failed file: opens a new segment where the log is certain, and writes there,
    /// durably, what was not.
    fn heal(&mut self) -> Result<()> {
        let before = (self.durable, self.written, self.head, self.has_segment);
        let durable = self.durable;
        let unsynced = std::mem::take(&mut self.unsynced);
        let result = self.rewrite(durable, &unsynced);
        if let Err(error) = result {
            // Back to where we were: nothing is open, all is in memory; the next call tries again
            // with yet another number.
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

/// Creates the file of a segment so that it is there, with its header, after a power cut (L2).
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
        // It holds no batch, so recovery ignores it if this fails or is undone by a power cut.
        let _ = disk.remove(&name);
        return Err(error);
    }
    Ok(file)
}
