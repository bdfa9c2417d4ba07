//! The log of a replica: its master's batches, byte for byte, in segments of the same numbers.
//!
//! Since the bytes are the same, positions mean the same on both: a replica goes on where it
//! stopped whichever node it finds, and when it is promoted its siblings go on with it. So nothing
//! here may differ from the master's log by as much as a number:
//!
//! - **F1** What is appended is checked against the place first: it follows the last batch, by
//!   number and chain, or is refused.
//! - **F2** What is not durable after a failure is not written elsewhere, as a master does it
//!   (`log.rs`, L3): it is cut off, for good, and asked for again. The file is shortened and synced
//!   before anything is written there; that needs no room, so a full disk costs a replica nothing
//!   that it has. If the power undoes a cut, there is a torn tail again (F3): what counts lies
//!   before it, and was durable before it. A node that has shown it to others already, expecting
//!   the sync, must read everything anew then ([`FollowLog::secure`] fails).
//! - **F3** A torn tail is cut the same way at the next start, whatever follows it: the master has
//!   those bytes.
//!
//! Promotion is [`FollowLog::into_log`]: the next segment, with a higher term, is the first one of
//! the node's own.

use std::sync::Arc;

use crate::batch::{BATCH_HEAD_BYTES, BatchHead, Lineage, body_matches, read_head};
use crate::disk::{Disk, DiskFile, replace, write_all_at};
use crate::error::{Error, Result};
use crate::log::{Log, LogOptions, Position, Resume};
use crate::replay::{BatchReader, Found, read_segment_head, segment_numbers};
use crate::segment::{MAX_NUMBER, SEGMENT_HEAD_BYTES, SegmentHead, segment_name};

/// The writing end of a replica's log. One thread owns it.
#[derive(Debug)]
pub struct FollowLog {
    disk: Arc<dyn Disk>,
    lineage: Lineage,
    /// The newest segment; none before the first one has come.
    newest: Option<(SegmentHead, Box<dyn DiskFile>)>,
    written: Position,
    durable: Position,
    /// A sync has failed: nothing behind `durable` can be trusted.
    failed: bool,
    /// It is to begin where a snapshot does, and not where the history did.
    staged: bool,
}

impl FollowLog {
    /// Goes on behind `end`: the last place that is known to be good. Whatever lies behind it is
    /// cut off.
    pub fn open(disk: Arc<dyn Disk>, lineage: Lineage, end: Position) -> Result<FollowLog> {
        let numbers = segment_numbers(&*disk)?;
        let newest = match numbers.contains(&end.segment) {
            false if numbers.iter().all(|&n| n > end.segment) => None,
            false => {
                let path = disk.path(&segment_name(end.segment));
                return Err(Error::corrupt(
                    path,
                    0,
                    format!("missing; the log is to go on at {end}"),
                ));
            }
            // The very first one was never finished, so it holds nothing; recovery has passed it
            // over, too.
            true if end == Position::START && read_segment_head(&*disk, end.segment)?.is_err() => {
                let name = segment_name(end.segment);
                disk.remove(&name).map_err(|e| Error::io(disk.path(&name), "removing", e))?;
                None
            }
            true => Some(open_segment(&disk, end)?),
        };
        // The newest first, so that the log has no gap at any moment.
        for &number in numbers.iter().rev().filter(|&&n| n > end.segment) {
            let name = segment_name(number);
            disk.remove(&name).map_err(|e| Error::io(disk.path(&name), "removing", e))?;
        }
        disk.sync_dir().map_err(|e| Error::io(disk.path(""), "syncing the folder", e))?;
        Ok(FollowLog {
            disk,
            lineage,
            newest,
            written: end,
            durable: end,
            failed: false,
            staged: false,
        })
    }

    /// An empty one beside a snapshot, of which the first segment is whichever the master has.
    pub fn staged(disk: Arc<dyn Disk>, lineage: Lineage) -> Result<FollowLog> {
        Ok(FollowLog { staged: true, ..FollowLog::open(disk, lineage, Position::START)? })
    }

    /// After a failure: forgets what is not durable.
    pub fn reopen(&mut self) -> Result<()> {
        self.open_again(self.durable)
    }

    /// The same one, which ends there.
    fn open_again(&mut self, end: Position) -> Result<()> {
        *self = FollowLog {
            staged: self.staged,
            ..FollowLog::open(self.disk.clone(), self.lineage, end)?
        };
        Ok(())
    }

    /// After a link has ended: makes durable what was appended, and cuts off what was not whole. An
    /// error: what lies between
    /// [`FollowLog::durable`] and [`FollowLog::written`] is lost, and is cut off by
    /// [`FollowLog::reopen`].
    pub fn secure(&mut self) -> Result<()> {
        self.sync()?;
        self.reopen()
    }

    /// The end of what was appended.
    pub fn written(&self) -> Position {
        self.written
    }

    /// The end of what is certain to be on the disk.
    pub fn durable(&self) -> Position {
        self.durable
    }

    /// The disk that it lies on.
    pub fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// The history that it belongs to.
    pub fn lineage(&self) -> Lineage {
        self.lineage
    }

    /// The newest segment's term.
    pub fn term(&self) -> u64 {
        self.newest.as_ref().map_or(0, |(head, _)| head.term)
    }

    /// The place to name to a master, and the term of its segment. Newest segments that hold
    /// nothing are given up: another master may have begun others there, or none. Unless replay
    /// begins in them.
    pub fn resume_point(&mut self, replay: Position) -> Result<(Position, u64)> {
        while self.newest.as_ref().is_some_and(|(head, _)| replay.segment < head.segment)
            && self.step_back()?
        {}
        Ok((self.written, self.term()))
    }

    /// Gives up a newest segment that holds nothing; false if there is none such, or none before
    /// it.
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

    /// Begins the segment that the master has begun.
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
        // Else this node could not go on as a master, or what it wrote could not be read.
        let leaves_room =
            [head.segment, head.base, head.sequence].iter().all(|&n| n <= MAX_NUMBER / 2);
        if !follows || !fits || !leaves_room {
            return Err(Error::Refused(format!(
                "segment {} does not continue the log at {at}",
                head.segment
            )));
        }
        self.sync()?;
        // Whether the name is taken or not: an unfinished one may have been left.
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

    /// Appends a batch as the master has it (F1). After an error that is not [`Error::Refused`],
    /// [`FollowLog::reopen`] is to be called.
    pub fn append(&mut self, frame: &[u8]) -> Result<BatchHead> {
        let at = self.written;
        let Some((segment, file)) = &self.newest else {
            return Err(Error::Refused("a batch before the first segment".to_owned()));
        };
        let refused = |what: &str| Error::Refused(format!("a batch for {at}: {what}"));
        if frame.len() < BATCH_HEAD_BYTES {
            return Err(refused("it is cut short"));
        }
        let place = segment.place(at.byte);
        let head = read_head(frame, &place)
            .ok_or_else(|| refused("its head does not match its checksum"))?;
        if head.bytes() != frame.len() as u64 {
            return Err(refused("it is not as long as it says"));
        }
        if head.previous != at.chain || head.sequence != at.sequence + 1 {
            return Err(refused("it does not follow the one before"));
        }
        if !body_matches(frame, &frame[BATCH_HEAD_BYTES..], &place) {
            return Err(refused("it does not match its checksum"));
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

    /// Up to where the log was durable on the master that wrote it, at least, as the batches of the
    /// newest segment tell.
    pub fn durable_at_master(&self) -> Result<u64> {
        let Some((head, _)) = &self.newest else { return Ok(self.written.offset) };
        let mut known = head.base;
        self.newest_batches(|before, batch| {
            known = known.max(before.saturating_sub(u64::from(batch.unsynced_bytes)))
        })?;
        Ok(known)
    }

    /// Whether any data lies behind this offset: a seal is none.
    pub fn holds_after(&self, offset: u64) -> Result<bool> {
        // Older segments are not looked into.
        let mut holds =
            offset < self.newest.as_ref().map_or(self.written.offset, |(head, _)| head.base);
        self.newest_batches(|before, batch| holds |= before >= offset && !batch.is_seal())?;
        Ok(holds)
    }

    /// The batches of the newest segment, each with the offset at which it begins.
    fn newest_batches(&self, mut each: impl FnMut(u64, &BatchHead)) -> Result<()> {
        let Some((head, _)) = &self.newest else { return Ok(()) };
        let name = segment_name(head.segment);
        let path = self.disk.path(&name);
        let file = self.disk.open(&name).map_err(|e| Error::io(&path, "opening", e))?;
        let mut reader = BatchReader::new(file, path, *head, None)?;
        reader.read_up_to(self.written.byte)?;
        loop {
            let before = reader.position().offset;
            let Found::Batch(batch) = reader.next()? else { return Ok(()) };
            each(before, &batch);
        }
    }

    /// Makes all that was appended durable. After an error [`FollowLog::reopen`] is to be called.
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

    /// The system would say that all is well when asked again (see `log.rs`).
    fn failure(&self) -> Error {
        let failed = std::io::Error::other("a sync of it has failed before");
        Error::io(self.disk.path(&segment_name(self.written.segment)), "syncing", failed)
    }

    /// The log of a node that writes for itself from now on: it begins a new segment, of this term.
    /// Everything must be durable.
    pub fn into_log(self, options: LogOptions, term: u64) -> Result<Log> {
        assert!(self.written == self.durable, "F2: what is not durable is not ours to keep");
        assert!(term >= self.term(), "a term never falls: {} to {term}", self.term());
        let next_segment =
            segment_numbers(&*self.disk)?.last().map_or(self.written.segment, |n| n + 1);
        let found = Resume {
            lineage: self.lineage,
            term,
            end: self.durable,
            next_segment,
            is_first: self.newest.is_none(),
            void: false,
        };
        let mut log = Log::resume(self.disk, options, found)?;
        if log.has_failed() {
            // A term that is not on the disk would be forgotten in a crash, and given to another
            // history.
            log.sync()?;
        }
        Ok(log)
    }
}

/// Opens the segment in which the log ends, and cuts off what lies behind.
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
            format!("it ends here; the log is to go on at {end}"),
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

    /// A node was promoted again and again, and has written nothing as a master.
    #[test]
    fn a_log_is_resumed_before_all_segments_that_hold_nothing() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
        let lineage = Lineage([7; 16]);
        let open = |end| FollowLog::open(disk.clone(), lineage, end).unwrap();
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
            "what replay begins in stays"
        );
        let mut log = open(replay);
        assert_eq!(log.resume_point(Position::START).unwrap(), (held, 1));
        assert_eq!(segment_numbers(&*disk).unwrap(), [held.segment]);
        assert_eq!(
            log.resume_point(Position::START).unwrap(),
            (held, 1),
            "with something in it it stays"
        );
    }

    /// A master may say what it likes. What this node has taken it must be able to read, and to go
    /// on with.
    #[test]
    fn a_first_segment_begins_where_the_history_does_and_leaves_room_for_others() {
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
        let begins = |log: &mut FollowLog, head: &SegmentHead| log.begin(*head).is_ok();
        let open = || FollowLog::open(empty(), lineage, Position::START).unwrap();
        for wrong in [
            SegmentHead { base: 5, ..first },
            SegmentHead { segment: 2, sequence: 7, ..first },
            SegmentHead { segment: MAX_NUMBER, ..first },
            SegmentHead { sequence: MAX_NUMBER, ..first },
        ] {
            assert!(!begins(&mut open(), &wrong), "{wrong:?}");
        }
        assert!(begins(&mut open(), &first));
        // Beside a snapshot it begins where that does.
        let mut staged = FollowLog::staged(empty(), lineage).unwrap();
        assert!(!begins(&mut staged, &SegmentHead { base: MAX_NUMBER, ..first }));
        staged.reopen().unwrap();
        assert!(begins(&mut staged, &SegmentHead { segment: 9, base: 5, sequence: 7, ..first }));
    }
}
