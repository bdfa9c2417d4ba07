//! Following the log while it is written: what a replica is fed from, straight from the files.
//!
//! A [`Tail`] begins at any place between two batches and goes up to a limit that the caller names,
//! usually the durable end of the log. It keeps nothing in memory but one read buffer, however far
//! behind it is, and it crosses segments by the same rule as recovery: a segment ends where its
//! successor begins. The bytes that it hands out are the log's own, so that the replica's log
//! becomes equal to the master's byte for byte, and positions mean the same on both.

use std::sync::Arc;

use crate::batch::BatchHead;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::log::Position;
use crate::replay::{BatchReader, Found, read_segment_head, segment_numbers};
use crate::segment::{SEGMENT_HEAD_BYTES, SegmentHead, segment_name};

/// What comes next in the log.
#[derive(Debug)]
pub enum Step<'a> {
    /// A new segment begins.
    Segment(SegmentHead),
    /// A batch: its fields, and all its bytes as they are in the file.
    Batch(BatchHead, &'a [u8]),
    /// Nothing before the limit.
    End,
}

/// Why a place cannot be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The segment is not there any more.
    Removed,
    /// The log has other bytes before that place.
    Diverged,
    /// The log ends before that place, and may get there.
    Short,
}

/// A reader that follows the log.
#[derive(Debug)]
pub struct Tail {
    disk: Arc<dyn Disk>,
    head: SegmentHead,
    /// The segment that continues this one, once it is known: below a durable end that does not
    /// change any more.
    next: Option<SegmentHead>,
    reader: BatchReader,
}

impl Tail {
    /// Begins at `start`, after checking that the log really passes through it, chain value
    /// included. [`Error::Refused`] if it does not (any more): then only a full sync helps. `limit`
    /// is the log's durable end.
    pub fn open(disk: Arc<dyn Disk>, start: Position, limit: Position) -> Result<Tail> {
        match Tail::find(&disk, start, limit)? {
            Ok(tail) => Ok(tail),
            Err(Absent::Removed) => {
                Err(Error::Refused(format!("the log does not reach back to {start}")))
            }
            Err(Absent::Diverged | Absent::Short) => {
                Err(Error::Refused(format!("the log does not pass through {start}")))
            }
        }
    }

    /// As [`Tail::open`], for a caller that wants to know why a place cannot be followed.
    pub fn find(
        disk: &Arc<dyn Disk>,
        start: Position,
        limit: Position,
    ) -> Result<std::result::Result<Tail, Absent>> {
        let numbers = segment_numbers(&**disk)?;
        let is_newest = start.segment >= limit.segment;
        if start.offset > limit.offset {
            return Ok(Err(if is_newest { Absent::Short } else { Absent::Diverged }));
        }
        if !numbers.contains(&start.segment) {
            return Ok(Err(if is_newest { Absent::Diverged } else { Absent::Removed }));
        }
        // Removals of old segments may be undone by a power cut, and of any of them: then what is
        // left has gaps.
        let mut wanted = limit.segment;
        while wanted > start.segment {
            if !numbers.contains(&wanted) {
                return Ok(Err(Absent::Removed));
            }
            wanted = read_segment_head(&**disk, wanted)?.map_or(0, |head| head.previous);
        }
        if wanted != start.segment {
            return Ok(Err(Absent::Diverged));
        }
        let Ok(head) = read_segment_head(&**disk, start.segment)? else {
            return Ok(Err(Absent::Removed));
        };
        if head.byte_of(start.offset) != Some(start.byte) || start.byte < SEGMENT_HEAD_BYTES {
            return Ok(Err(Absent::Diverged));
        }
        let mut tail = Tail::at_segment(disk.clone(), head)?;
        // The place must be one between two batches, with this very chain before it. A successor
        // that begins earlier makes it void.
        if let Some(next) = tail.successor(limit)?
            && next.base < start.offset
        {
            return Ok(Err(Absent::Diverged));
        }
        tail.reader.read_up_to(start.byte)?;
        while tail.reader.position().byte < start.byte {
            match tail.reader.next()? {
                Found::Batch(_) => {}
                Found::End | Found::Bad(_) => return Ok(Err(Absent::Diverged)),
            }
        }
        let at = tail.reader.position();
        Ok(if at == start { Ok(tail) } else { Err(Absent::Diverged) })
    }

    /// Goes on at a place between two batches of this segment that was read before, and was durable
    /// then: nothing before it is read again.
    pub fn resume(disk: Arc<dyn Disk>, head: SegmentHead, at: Position) -> Result<Tail> {
        let name = segment_name(head.segment);
        let path = disk.path(&name);
        let file = disk.open(&name).map_err(|e| Error::io(&path, "opening", e))?;
        let reader = BatchReader::new(file, path, head, Some(at))?;
        Ok(Tail { disk, head, next: None, reader })
    }

    /// The segment in which it is.
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

    /// The place before the next step.
    pub fn position(&self) -> Position {
        self.reader.position()
    }

    /// The next step before `limit`, the place up to which the log may be read: its durable end, as
    /// it is now or was before.
    pub fn next(&mut self, limit: Position) -> Result<Step<'_>> {
        let at = self.reader.position();
        let mut end = limit.offset;
        if limit.segment > self.head.segment
            && let Some(next) = self.successor(limit)?
        {
            if next.base == at.offset {
                if (next.sequence, next.chain) != (at.sequence, at.chain) {
                    return Err(Error::Refused(format!("the log does not pass through {at}")));
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
            return Err(Error::Refused(format!("the log does not pass through {at}")));
        };
        self.reader.read_up_to(end)?;
        match self.reader.next()? {
            Found::Batch(head) => Ok(Step::Batch(head, self.reader.frame())),
            Found::End => Err(Error::corrupt(
                self.disk.path(&segment_name(at.segment)),
                at.byte,
                "it ends before its successor begins",
            )),
            Found::Bad(what) => {
                Err(Error::corrupt(self.disk.path(&segment_name(at.segment)), at.byte, what))
            }
        }
    }

    /// The segment up to the limit's that continues this one.
    fn successor(&mut self, limit: Position) -> Result<Option<SegmentHead>> {
        if self.next.is_some() {
            return Ok(self.next);
        }
        // From the limit back, since void segments name the same predecessor as the one that
        // counts.
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
