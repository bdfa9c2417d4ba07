//! Reader that follows the log while it is written; the source of the replication stream.
//!
//! A tailing reader ([`Tail`]) begins at any position between two batches and reads up to a limit,
//! usually the durable end of the log. A tailing reader uses one read buffer, regardless of its
//! lag. As in recovery, a segment ends at its successor's base. The reader returns the bytes of the
//! log unchanged. A replica's log is therefore identical to the master's, and a position is valid
//! on both.

use std::sync::Arc;

use crate::batch::BatchHead;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::log::Position;
use crate::replay::{BatchReader, NextBatch, read_segment_head, segment_numbers};
use crate::segment::{SEGMENT_HEAD_BYTES, SegmentHead, segment_name};

/// Next item of the log.
#[derive(Debug)]
pub enum Step<'a> {
    /// Beginning of a segment.
    Segment(SegmentHead),
    /// Fields of a batch, and its bytes in the file.
    Batch(BatchHead, &'a [u8]),
    /// There are no more batches before the limit.
    End,
}

/// Reason why a tailing reader cannot begin at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionMissing {
    /// The segment was removed.
    Removed,
    /// The log has different bytes before the position.
    Diverged,
    /// The log ends before the position. The log may reach the position later.
    Short,
}

/// A reader that follows the log.
#[derive(Debug)]
pub struct Tail {
    disk: Arc<dyn Disk>,
    head: SegmentHead,
    /// Successor of the current segment, if known. A successor below a durable end is final.
    next: Option<SegmentHead>,
    reader: BatchReader,
}

impl Tail {
    /// Verifies that the log contains position `start`, including its chain value, and opens a
    /// tailing reader at that position. `limit` is the log's durable end.
    ///
    /// Returns [`Error::Refused`] if the log does not contain the position. The replica then needs
    /// a full sync.
    pub fn open(disk: Arc<dyn Disk>, start: Position, limit: Position) -> Result<Tail> {
        match Tail::find(&disk, start, limit)? {
            Ok(tail) => Ok(tail),
            Err(PositionMissing::Removed) => {
                Err(Error::Refused(format!("the log no longer contains {start}")))
            }
            Err(PositionMissing::Diverged | PositionMissing::Short) => {
                Err(Error::Refused(format!("the log does not contain {start}")))
            }
        }
    }

    /// Like [`Tail::open`], but returns the reason why the position is unavailable.
    pub fn find(
        disk: &Arc<dyn Disk>,
        start: Position,
        limit: Position,
    ) -> Result<std::result::Result<Tail, PositionMissing>> {
        let numbers = segment_numbers(&**disk)?;
        let is_newest = start.segment >= limit.segment;
        if start.offset > limit.offset {
            return Ok(Err(if is_newest {
                PositionMissing::Short
            } else {
                PositionMissing::Diverged
            }));
        }
        if !numbers.contains(&start.segment) {
            return Ok(Err(if is_newest {
                PositionMissing::Diverged
            } else {
                PositionMissing::Removed
            }));
        }
        // A power cut may undo the removal of some old segments, so there may be gaps between them.
        let mut wanted = limit.segment;
        while wanted > start.segment {
            if !numbers.contains(&wanted) {
                return Ok(Err(PositionMissing::Removed));
            }
            wanted = read_segment_head(&**disk, wanted)?.map_or(0, |head| head.previous);
        }
        if wanted != start.segment {
            return Ok(Err(PositionMissing::Diverged));
        }
        let Ok(head) = read_segment_head(&**disk, start.segment)? else {
            return Ok(Err(PositionMissing::Removed));
        };
        if head.byte_of(start.offset) != Some(start.byte) || start.byte < SEGMENT_HEAD_BYTES {
            return Ok(Err(PositionMissing::Diverged));
        }
        let mut tail = Tail::at_segment(disk.clone(), head)?;
        // `start` must be a batch boundary with the same chain value. The position is void if the
        // successor begins earlier.
        if let Some(next) = tail.successor(limit)?
            && next.base < start.offset
        {
            return Ok(Err(PositionMissing::Diverged));
        }
        tail.reader.read_up_to(start.byte)?;
        while tail.reader.position().byte < start.byte {
            match tail.reader.next()? {
                NextBatch::Batch(_) => {}
                NextBatch::End | NextBatch::Bad(_) => return Ok(Err(PositionMissing::Diverged)),
            }
        }
        let at = tail.reader.position();
        Ok(if at == start { Ok(tail) } else { Err(PositionMissing::Diverged) })
    }

    /// Opens a tailing reader, without verification, at a position that an earlier reader reached
    /// in this segment.
    pub fn resume(disk: Arc<dyn Disk>, head: SegmentHead, at: Position) -> Result<Tail> {
        let name = segment_name(head.segment);
        let path = disk.path(&name);
        let file = disk.open(&name).map_err(|e| Error::io(&path, "opening", e))?;
        let reader = BatchReader::new(file, path, head, Some(at))?;
        Ok(Tail { disk, head, next: None, reader })
    }

    /// Returns the current segment.
    pub fn segment(&self) -> SegmentHead {
        self.head
    }

    fn at_segment(disk: Arc<dyn Disk>, head: SegmentHead) -> Result<Tail> {
        let name = segment_name(head.segment);
        let path = disk.path(&name);
        let file = disk.open(&name).map_err(|e| Error::io(&path, "opening", e))?;
        let reader = BatchReader::new(file, path, head, None)?;
        Ok(Tail { disk, head, next: None, reader })
    }

    /// Returns the position before the next step.
    pub fn position(&self) -> Position {
        self.reader.position()
    }

    /// Returns the next step before `limit`, which must be a position that is or was the durable
    /// end of the log.
    pub fn next(&mut self, limit: Position) -> Result<Step<'_>> {
        let at = self.reader.position();
        let mut end = limit.offset;
        if limit.segment > self.head.segment
            && let Some(next) = self.successor(limit)?
        {
            if next.base == at.offset {
                if (next.sequence, next.chain) != (at.sequence, at.chain) {
                    return Err(Error::Refused(format!("the log does not contain {at}")));
                }
                *self = Tail::at_segment(self.disk.clone(), next)?;
                return Ok(Step::Segment(next));
            }
            end = next.base;
        }
        if at.offset >= limit.offset {
            return Ok(Step::End);
        }
        let Some(end) = self.head.byte_of(end).filter(|_| at.offset < end) else {
            return Err(Error::Refused(format!("the log does not contain {at}")));
        };
        self.reader.read_up_to(end)?;
        match self.reader.next()? {
            NextBatch::Batch(head) => Ok(Step::Batch(head, self.reader.frame())),
            NextBatch::End => Err(Error::corrupt(
                self.disk.path(&segment_name(at.segment)),
                at.byte,
                "it ends before the next segment starts",
            )),
            NextBatch::Bad(what) => {
                Err(Error::corrupt(self.disk.path(&segment_name(at.segment)), at.byte, what))
            }
        }
    }

    /// Returns the successor of the current segment among the segments up to the limit.
    fn successor(&mut self, limit: Position) -> Result<Option<SegmentHead>> {
        if self.next.is_some() {
            return Ok(self.next);
        }
        // Search backwards from the limit, because void segments can have the same `previous` as
        // the valid successor.
        let mut wanted = limit.segment;
        while wanted > self.head.segment {
            let Ok(head) = read_segment_head(&*self.disk, wanted)? else {
                let path = self.disk.path(&segment_name(wanted));
                return Err(Error::corrupt(path, 0, "the header is damaged"));
            };
            if head.previous == self.head.segment {
                self.next = Some(head);
                return Ok(self.next);
            }
            wanted = head.previous;
        }
        Ok(None)
    }
}
