//! Log of a replica: the master's batches, byte for byte, in segments of the same numbers.
//!
//! A position is therefore valid on all nodes. A replica can resume from any node, and after a
//! promotion other replicas can resume from it. The replica's log must equal the master's exactly:
//!
//! - **F1** Before an append the replica verifies that the batch follows the last batch, by
//!   sequence number and chain value.
//! - **F2** After a failure the replica truncates the batches that are not durable and fetches them
//!   again. Unlike a master (`log.rs`, L3), the replica never writes such batches to another
//!   segment. It truncates and syncs the file before it writes to the file again. Truncation needs
//!   no space, so a full disk loses no durable data. If a power cut undoes the truncation, the
//!   result is a torn tail (F3). A node that has already applied the lost batches must reload its
//!   data: [`ReplicaLog::sync_and_truncate`] fails.
//! - **F3** The next startup also truncates a torn tail, even if valid batches follow. The master
//!   still has those bytes.
//!
//! A promotion calls [`ReplicaLog::into_log`]. The next segment has a higher term and is the first
//! segment that the node writes as a master.

use std::sync::Arc;

use crate::batch::{BATCH_HEAD_BYTES, BatchHead, Lineage, body_matches, read_head};
use crate::disk::{Disk, DiskFile, replace, write_all_at};
use crate::error::{Error, Result};
use crate::log::{Log, LogOptions, LogResume, Position};
use crate::replay::{BatchReader, NextBatch, read_segment_head, segment_numbers};
use crate::segment::{MAX_NUMBER, SEGMENT_HEAD_BYTES, SegmentHead, segment_name};

/// Writer of a replica's log, owned by one thread.
#[derive(Debug)]
pub struct ReplicaLog {
    disk: Arc<dyn Disk>,
    lineage: Lineage,
    /// Newest segment, or `None` before the first segment arrives.
    newest: Option<(SegmentHead, Box<dyn DiskFile>)>,
    written: Position,
    durable: Position,
    /// Whether a sync failed. Bytes after `durable` are then unreliable.
    failed: bool,
    /// True if this log begins at a snapshot, false if it begins at the start of the lineage.
    staged: bool,
}

impl ReplicaLog {
    /// Opens the log at `end`, the last known good position, and removes everything after `end`.
    pub fn open(disk: Arc<dyn Disk>, lineage: Lineage, end: Position) -> Result<ReplicaLog> {
        let numbers = segment_numbers(&*disk)?;
        let newest = match numbers.contains(&end.segment) {
            false if numbers.iter().all(|&n| n > end.segment) => None,
            false => {
                let path = disk.path(&segment_name(end.segment));
                return Err(Error::corrupt(
                    path,
                    0,
                    format!("missing, but the log must continue at {end}"),
                ));
            }
            // The creation of the first segment was interrupted, and recovery has skipped the
            // segment.
            true if end == Position::START && read_segment_head(&*disk, end.segment)?.is_err() => {
                let name = segment_name(end.segment);
                disk.remove(&name).map_err(|e| Error::io(disk.path(&name), "removing", e))?;
                None
            }
            true => Some(open_segment(&disk, end)?),
        };
        // Remove the newest segments first, so that the log never has a gap.
        for &number in numbers.iter().rev().filter(|&&n| n > end.segment) {
            let name = segment_name(number);
            disk.remove(&name).map_err(|e| Error::io(disk.path(&name), "removing", e))?;
        }
        disk.sync_dir().map_err(|e| Error::io(disk.path(""), "syncing the folder", e))?;
        Ok(ReplicaLog {
            disk,
            lineage,
            newest,
            written: end,
            durable: end,
            failed: false,
            staged: false,
        })
    }

    /// Opens an empty log for a full sync. Its first segment may have any number and base.
    pub fn staged(disk: Arc<dyn Disk>, lineage: Lineage) -> Result<ReplicaLog> {
        Ok(ReplicaLog { staged: true, ..ReplicaLog::open(disk, lineage, Position::START)? })
    }

    /// Discards everything that is not durable, after a failure.
    pub fn reopen(&mut self) -> Result<()> {
        self.open_again(self.durable)
    }

    fn open_again(&mut self, end: Position) -> Result<()> {
        *self = ReplicaLog {
            staged: self.staged,
            ..ReplicaLog::open(self.disk.clone(), self.lineage, end)?
        };
        Ok(())
    }

    /// Makes the appended batches durable and truncates an incomplete batch. Called after a link
    /// ends.
    ///
    /// After an error the batches between [`ReplicaLog::durable`] and [`ReplicaLog::written`] are
    /// lost, and the caller must call [`ReplicaLog::reopen`].
    pub fn sync_and_truncate(&mut self) -> Result<()> {
        self.sync()?;
        self.reopen()
    }

    /// Returns the end of the appended batches.
    pub fn written(&self) -> Position {
        self.written
    }

    /// Returns the durable end.
    pub fn durable(&self) -> Position {
        self.durable
    }

    /// Returns the disk.
    pub fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// Returns the lineage.
    pub fn lineage(&self) -> Lineage {
        self.lineage
    }

    /// Returns the term of the newest segment.
    pub fn term(&self) -> u64 {
        self.newest.as_ref().map_or(0, |(head, _)| head.term)
    }

    /// Returns the position to resume at, and the term of its segment.
    ///
    /// Removes empty segments at the end, because another master may have begun different segments.
    /// Retains the segment in which replay begins.
    pub fn resume_point(&mut self, replay: Position) -> Result<(Position, u64)> {
        while self.newest.as_ref().is_some_and(|(head, _)| replay.segment < head.segment)
            && self.step_back()?
        {}
        Ok((self.written, self.term()))
    }

    /// Removes the newest segment if it is empty and its predecessor exists. Returns whether it
    /// removed a segment.
    fn step_back(&mut self) -> Result<bool> {
        let at = self.written;
        if let Some((head, _)) = &self.newest
            && at.byte == SEGMENT_HEAD_BYTES
            && head.previous > 0
            && segment_numbers(&*self.disk)?.contains(&head.previous)
            && let Ok(before) = read_segment_head(&*self.disk, head.previous)?
            && let Some(byte) = before.byte_of(at.offset)
        {
            let end = Position { segment: before.segment, byte, ..at };
            self.open_again(end)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Begins the same segment as the master.
    pub fn begin(&mut self, head: SegmentHead) -> Result<()> {
        let at = self.written;
        let follows = match &self.newest {
            Some((newest, _)) if newest.segment == head.segment => at.byte == SEGMENT_HEAD_BYTES,
            Some((newest, _)) => newest.segment == head.previous && newest.term <= head.term,
            None => true,
        };
        let fits = (head.lineage, head.base, head.sequence, head.chain)
            == (self.lineage, at.offset, at.sequence, at.chain)
            || (self.newest.is_none()
                && (self.staged || at != Position::START)
                && head.lineage == self.lineage);
        // Larger numbers would leave no range for this node's own writes after a promotion.
        let leaves_room =
            [head.segment, head.base, head.sequence].iter().all(|&n| n <= MAX_NUMBER / 2);
        if !follows || !fits || !leaves_room {
            return Err(Error::Refused(format!(
                "segment {} does not continue the log at {at}",
                head.segment
            )));
        }
        self.sync()?;
        // `replace` also handles an unfinished file of that name.
        let name = segment_name(head.segment);
        let io = |e| Error::io(self.disk.path(&name), "beginning", e);
        replace(&*self.disk, &name, &head.encode()).map_err(io)?;
        let file = self.disk.open_write(&name).map_err(io)?;
        self.newest = Some((head, file));
        self.written = Position {
            segment: head.segment,
            byte: SEGMENT_HEAD_BYTES,
            offset: head.base,
            sequence: head.sequence,
            chain: head.chain,
        };
        self.durable = self.written;
        Ok(())
    }

    /// Appends a batch of the master (F1). After any error but [`Error::Refused`] the caller must
    /// call [`ReplicaLog::reopen`].
    pub fn append(&mut self, frame: &[u8]) -> Result<BatchHead> {
        let at = self.written;
        let Some((segment, file)) = &self.newest else {
            return Err(Error::Refused("batch before the first segment".to_owned()));
        };
        let refused = |what: &str| Error::Refused(format!("invalid batch for {at}: {what}"));
        if frame.len() < BATCH_HEAD_BYTES {
            return Err(refused("truncated"));
        }
        let place = segment.place(at.byte);
        let head =
            read_head(frame, &place).ok_or_else(|| refused("checksum mismatch of its header"))?;
        if head.bytes() != frame.len() as u64 {
            return Err(refused("its length is wrong"));
        }
        if head.previous != at.chain || head.sequence != at.sequence + 1 {
            return Err(refused("it does not follow the previous batch"));
        }
        if !body_matches(frame, &frame[BATCH_HEAD_BYTES..], &place) {
            return Err(refused("checksum mismatch"));
        }
        if self.failed {
            return Err(self.failure());
        }
        let name = segment_name(segment.segment);
        write_all_at(&**file, frame, at.byte)
            .map_err(|e| Error::io(self.disk.path(&name), "appending to", e))?;
        self.written = Position {
            segment: at.segment,
            byte: at.byte + head.bytes(),
            offset: at.offset + head.bytes(),
            sequence: head.sequence,
            chain: head.chain,
        };
        Ok(head)
    }

    /// Returns a lower bound of the master's durable offset, derived from the batches of the newest
    /// segment.
    pub fn durable_at_master(&self) -> Result<u64> {
        let Some((head, _)) = &self.newest else { return Ok(self.written.offset) };
        let mut known = head.base;
        self.newest_batches(|before, batch| {
            known = known.max(before.saturating_sub(u64::from(batch.unsynced_bytes)))
        })?;
        Ok(known)
    }

    /// Whether the log may contain data after this offset. Seals do not count.
    pub fn has_data_after(&self, offset: u64) -> Result<bool> {
        // Older segments count as data without reading their contents.
        let mut holds =
            offset < self.newest.as_ref().map_or(self.written.offset, |(head, _)| head.base);
        self.newest_batches(|before, batch| holds |= before >= offset && !batch.is_seal())?;
        Ok(holds)
    }

    /// Calls `each` for the batches of the newest segment with their offsets.
    fn newest_batches(&self, mut each: impl FnMut(u64, &BatchHead)) -> Result<()> {
        let Some((head, _)) = &self.newest else { return Ok(()) };
        let name = segment_name(head.segment);
        let path = self.disk.path(&name);
        let file = self.disk.open(&name).map_err(|e| Error::io(&path, "opening", e))?;
        let mut reader = BatchReader::new(file, path, *head, None)?;
        reader.read_up_to(self.written.byte)?;
        loop {
            let before = reader.position().offset;
            let NextBatch::Batch(batch) = reader.next()? else { return Ok(()) };
            each(before, &batch);
        }
    }

    /// Makes all appended batches durable. After an error the caller must call
    /// [`ReplicaLog::reopen`].
    pub fn sync(&mut self) -> Result<Position> {
        if self.durable != self.written
            && let Some((segment, file)) = &self.newest
        {
            if self.failed {
                return Err(self.failure());
            }
            let name = segment_name(segment.segment);
            if let Err(e) = file.sync() {
                self.failed = true;
                return Err(Error::io(self.disk.path(&name), "syncing", e));
            }
            self.durable = self.written;
        }
        Ok(self.durable)
    }

    /// Returns the error for an earlier failed sync. A repeated sync could return `Ok` for lost
    /// data (see `log.rs`).
    fn failure(&self) -> Error {
        let failed = std::io::Error::other("an earlier sync failed");
        Error::io(self.disk.path(&segment_name(self.written.segment)), "syncing", failed)
    }

    /// Converts this to the log of a master that begins a new segment with `term`.
    ///
    /// # Panics
    ///
    /// Panics if a batch is not durable, or if `term` is less than the current term.
    pub fn into_log(self, options: LogOptions, term: u64) -> Result<Log> {
        assert!(self.written == self.durable, "F2: undurable bytes are not kept");
        assert!(term >= self.term(), "a term never decreases: {} to {term}", self.term());
        let next_segment =
            segment_numbers(&*self.disk)?.last().map_or(self.written.segment, |n| n + 1);
        let found = LogResume {
            lineage: self.lineage,
            term,
            end: self.durable,
            next_segment,
            is_first: self.newest.is_none(),
            void: false,
        };
        let mut log = Log::resume(self.disk, options, found)?;
        if log.has_failed() {
            // The term must be durable before use. Otherwise another history could use the same
            // term after a crash.
            log.sync()?;
        }
        Ok(log)
    }
}

/// Opens the segment that contains `end` and truncates it there.
fn open_segment(disk: &Arc<dyn Disk>, end: Position) -> Result<(SegmentHead, Box<dyn DiskFile>)> {
    let name = segment_name(end.segment);
    let path = disk.path(&name);
    let Ok(head) = read_segment_head(&**disk, end.segment)? else {
        return Err(Error::corrupt(path, 0, "the header is damaged"));
    };
    let file = disk.open_write(&name).map_err(|e| Error::io(&path, "opening", e))?;
    let size = file.size().map_err(|e| Error::io(&path, "measuring", e))?;
    if size < end.byte {
        return Err(Error::corrupt(
            path,
            size,
            format!("the file ends here, but the log must continue at {end}"),
        ));
    }
    if size > end.byte {
        file.set_size(end.byte).map_err(|e| Error::io(&path, "cutting", e))?;
    }
    file.sync().map_err(|e| Error::io(&path, "syncing", e))?;
    Ok((head, file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Batch;
    use crate::sim::SimDisk;

    /// A node was promoted several times and wrote no data as a master.
    #[test]
    fn a_log_is_resumed_before_all_segments_that_hold_nothing() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
        let lineage = Lineage([7; 16]);
        let open = |end| ReplicaLog::open(disk.clone(), lineage, end).unwrap();
        let mut log = open(Position::START).into_log(LogOptions::default(), 1).unwrap();
        let mut batch = Batch::new();
        batch.push(1, 1, b"a row");
        log.append(&batch, 0).unwrap();
        let held = log.sync().unwrap();
        let mut end = held;
        for term in 2..5 {
            end = open(end).into_log(LogOptions::default(), term).unwrap().durable();
        }
        assert_eq!((end.segment, end.offset), (held.segment + 3, held.offset));

        let replay = Position { segment: held.segment + 2, ..end };
        assert_eq!(
            open(end).resume_point(replay).unwrap(),
            (replay, 3),
            "the segment of the replay position stays"
        );
        let mut log = open(replay);
        assert_eq!(log.resume_point(Position::START).unwrap(), (held, 1));
        assert_eq!(segment_numbers(&*disk).unwrap(), [held.segment]);
        assert_eq!(
            log.resume_point(Position::START).unwrap(),
            (held, 1),
            "a segment with batches stays"
        );
    }

    /// A master may send any header. The replica must be able to read and continue every segment
    /// that it accepts.
    #[test]
    fn first_segment_header_has_start_position_and_valid_numbers() {
        let lineage = Lineage([7; 16]);
        let empty = || -> Arc<dyn Disk> { Arc::new(SimDisk::new(1)) };
        let chain = Position::START.chain;
        let first = SegmentHead {
            void: false,
            lineage,
            segment: 1,
            previous: 0,
            base: 0,
            sequence: 0,
            term: 1,
            chain,
        };
        let begins = |log: &mut ReplicaLog, head: &SegmentHead| log.begin(*head).is_ok();
        let open = || ReplicaLog::open(empty(), lineage, Position::START).unwrap();
        for wrong in [
            SegmentHead { base: 5, ..first },
            SegmentHead { segment: 2, sequence: 7, ..first },
            SegmentHead { segment: MAX_NUMBER, ..first },
            SegmentHead { sequence: MAX_NUMBER, ..first },
        ] {
            assert!(!begins(&mut open(), &wrong), "{wrong:?}");
        }
        assert!(begins(&mut open(), &first));
        // A staged log begins at the position of its snapshot.
        let mut staged = ReplicaLog::staged(empty(), lineage).unwrap();
        assert!(!begins(&mut staged, &SegmentHead { base: MAX_NUMBER, ..first }));
        staged.reopen().unwrap();
        assert!(begins(&mut staged, &SegmentHead { segment: 9, base: 5, sequence: 7, ..first }));
    }
}
