//! Reads change entries from the log, with an index of their positions.
//!
//! A segment is scanned when a reader first needs a position in it; later scans cover only the new
//! part. The index contains marks, which are batch boundaries where a reader may begin, and an
//! [`EntrySummary`] per space. A reader skips segments without entries of its space. There is at
//! most one mark per 64 KiB of log. A mark takes 40 bytes, so the marks of a 2 GiB log take 1.3 MB.
//!
//! Readers do not hold the lock while they read files. Two readers may scan the same part
//! concurrently; the reader that finishes last discards its result.

use super::{CHECKS, Change, Id, each_change};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use store::{BATCH_HEAD_BYTES, Error, Position, SegmentHead, Step, Store, Tail};

/// Minimum distance between two marks in the log, in bytes.
const MARK_BYTES: u64 = 64 << 10;
/// Number of bytes scanned before the result is added to the index.
const STEP_BYTES: u64 = 4 << 20;

/// Entries that a reader requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Entries of all spaces.
    All,
    /// Entries of the space with this number, and entries of the catalogue.
    Space(u32),
}

impl Scope {
    fn has(self, space: u32) -> bool {
        match self {
            Scope::All => true,
            Scope::Space(number) => space == number || space == 0,
        }
    }
}

/// Number of entries in a set, and the ids of the first and the last entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntrySummary {
    /// Number of entries.
    pub entries: u64,
    /// Ids of the first and the last entry, or `None` if there are no entries.
    pub ends: Option<(Id, Id)>,
}

impl EntrySummary {
    fn add(&mut self, id: Id) {
        self.entries += 1;
        self.ends = Some((self.ends.map_or(id, |ends| ends.0), id));
    }

    fn join(&mut self, other: &EntrySummary) {
        self.entries += other.entries;
        self.ends = match (self.ends, other.ends) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (a, b) => a.or(b),
        };
    }
}

/// Position where a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the oldest entry of the log.
    Oldest,
    /// After the newest entry of the log.
    End,
    /// After this entry. `After(0-0)` begins at the first entry ever written.
    After(Id),
    /// At this entry.
    At(Id),
}

/// Reason why a reader cannot begin or continue.
#[derive(Debug)]
pub enum ChangeReadError {
    /// The position is before the first segment of the log.
    Trimmed,
    /// The position belongs to a diverged history.
    OtherHistory,
    /// The position is after the end of the log.
    Ahead,
    /// An I/O error, or damage.
    Store(Error),
}

impl From<Error> for ChangeReadError {
    fn from(error: Error) -> ChangeReadError {
        match error {
            // The segment was removed after the list of segments was read.
            Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                ChangeReadError::Trimmed
            }
            error => ChangeReadError::Store(error),
        }
    }
}

/// Calls `look` again while it returns `Trimmed`, at most eight times, because segments may be
/// removed concurrently.
fn again<T>(look: impl Fn() -> Result<T, ChangeReadError>) -> Result<T, ChangeReadError> {
    let mut looks = (0..8).map(|_| look());
    looks
        .find(|found| !matches!(found, Err(ChangeReadError::Trimmed)))
        .unwrap_or(Err(ChangeReadError::Trimmed))
}

/// Position of a reader in the log.
#[derive(Clone, Copy, Debug)]
pub struct ChangeCursor {
    head: SegmentHead,
    at: Position,
    /// Number of entries to skip in the next batch.
    skip: u32,
}

impl ChangeCursor {
    /// Returns the offset in the log.
    pub fn offset(&self) -> u64 {
        self.at.offset
    }

    /// Whether the log ends in the same segment, at most 128 KiB after this position. These bytes
    /// were written recently, so reading them is fast and needs no disk access.
    pub fn is_at_hand(&self, end: Position) -> bool {
        const RECENT_BYTES: u64 = 128 << 10;
        self.at.segment == end.segment && end.offset.saturating_sub(self.at.offset) <= RECENT_BYTES
    }
}

struct IndexedSegment {
    head: SegmentHead,
    /// End of the indexed part of the segment.
    to: Position,
    marks: Vec<Position>,
    tallies: BTreeMap<u32, EntrySummary>,
}

impl IndexedSegment {
    fn new(head: SegmentHead) -> IndexedSegment {
        IndexedSegment {
            head,
            to: Position::first_of(&head),
            marks: vec![Position::first_of(&head)],
            tallies: BTreeMap::new(),
        }
    }

    fn tally(&self, scope: Scope) -> EntrySummary {
        let mut all = EntrySummary::default();
        for (_, tally) in self.tallies.iter().filter(|(space, _)| scope.has(**space)) {
            all.join(tally);
        }
        all
    }
}

struct SegmentList {
    heads: Vec<SegmentHead>,
    end: Position,
}

impl SegmentList {
    fn end_of(&self, index: usize) -> u64 {
        self.heads.get(index + 1).map_or(self.end.offset, |next| next.base)
    }

    fn index_of(&self, offset: u64) -> Option<usize> {
        self.heads.partition_point(|head| head.base <= offset).checked_sub(1)
    }
}

/// Index over the log's entries. See the module's documentation.
#[derive(Default)]
pub struct ChangeLog {
    segments: Mutex<Vec<IndexedSegment>>,
}

impl ChangeLog {
    /// Returns the memory use of the index in bytes.
    pub fn memory_bytes(&self) -> usize {
        let bytes = |segment: &IndexedSegment| {
            size_of::<IndexedSegment>()
                + segment.marks.capacity() * size_of::<Position>()
                + segment.tallies.len() * size_of::<(u32, EntrySummary)>()
        };
        self.segments.lock().iter().map(bytes).sum()
    }

    /// Returns the current segments. Deletes removed segments from the index.
    fn path(&self, store: &Store, end: Position) -> Result<SegmentList, ChangeReadError> {
        let (known, heads) = again(|| {
            let segments = self.segments.lock();
            let known: Vec<SegmentHead> = segments.iter().map(|known| known.head).collect();
            drop(segments);
            let heads = store.path_to(end, &known)?;
            Ok((known, heads))
        })?;
        if heads != known {
            let mut segments = self.segments.lock();
            let mut before = std::mem::take(&mut *segments).into_iter().peekable();
            for head in &heads {
                while before.next_if(|known| known.head.segment < head.segment).is_some() {}
                let same = before.next_if(|known| known.head == *head);
                segments.push(same.unwrap_or_else(|| IndexedSegment::new(*head)));
            }
        }
        Ok(SegmentList { heads, end })
    }

    /// Adds the unindexed part of a segment to the index, at least up to this log offset.
    fn index_segment(
        &self,
        store: &Store,
        path: &SegmentList,
        index: usize,
        until: u64,
    ) -> Result<(), ChangeReadError> {
        let (head, until) = (path.heads[index], until.min(path.end_of(index)));
        loop {
            let found = |segment: &&mut IndexedSegment| segment.head == head;
            let at = match self.segments.lock().iter_mut().find(found) {
                // The segment was removed, and another reader has deleted it from the index.
                None => return Err(ChangeReadError::Trimmed),
                Some(known) if known.to.offset >= until => return Ok(()),
                Some(known) => known.to,
            };
            let (mut marks, mut tallies) = (Vec::new(), BTreeMap::<u32, EntrySummary>::new());
            let mut tail = Tail::resume(store.disk().clone(), head, at)?;
            let mut marked = at.offset;
            let mut now = at;
            while now.offset < until && now.offset - at.offset < STEP_BYTES {
                if now.offset - marked >= MARK_BYTES {
                    marks.push(now);
                    marked = now.offset;
                }
                let Step::Batch(batch, frame) = tail.next(path.end)? else { break };
                each_change(&frame[BATCH_HEAD_BYTES..], |number, space, _| {
                    let id = Id::of(head.term, now.offset, batch.chain, number);
                    tallies.entry(space).or_default().add(id);
                    true
                })
                .map_err(|what| damaged(store, now, &what))?;
                now = tail.position();
            }
            if let Some(known) = self.segments.lock().iter_mut().find(found)
                && known.to == at
            {
                known.to = now;
                known.marks.append(&mut marks);
                for (space, tally) in &tallies {
                    known.tallies.entry(*space).or_default().join(tally);
                }
            }
            if now == at {
                return Ok(());
            }
        }
    }

    /// Returns the last mark of a segment at or before this log offset.
    fn mark(&self, head: &SegmentHead, offset: u64) -> Position {
        let segments = self.segments.lock();
        let known = segments.iter().find(|segment| segment.head == *head);
        let before = known.and_then(|segment| {
            let at = segment.marks.partition_point(|mark| mark.offset <= offset);
            Some(*segment.marks.get(at.checked_sub(1)?)?)
        });
        before.unwrap_or_else(|| Position::first_of(head))
    }

    /// Returns the position of the first entry for a reader. The log is durable up to `end`.
    pub fn find(
        &self,
        store: &Store,
        end: Position,
        start: Start,
    ) -> Result<ChangeCursor, ChangeReadError> {
        let path = self.path(store, end)?;
        let (Some(first), Some(last)) = (path.heads.first(), path.heads.last()) else {
            return Err(ChangeReadError::Ahead);
        };
        let begin = |head: &SegmentHead| {
            Ok(ChangeCursor { head: *head, at: Position::first_of(head), skip: 0 })
        };
        let (id, is_wanted) = match start {
            Start::Oldest => return begin(first),
            Start::End => return Ok(ChangeCursor { head: *last, at: end, skip: 0 }),
            Start::After(id) => (id, false),
            Start::At(id) => (id, true),
        };
        if id == Id::MIN {
            return if first.previous == 0 { begin(first) } else { Err(ChangeReadError::Trimmed) };
        }
        if id.seq == 0 {
            // An id of the form `term-0` is the beginning of a term.
            let at = path.heads.partition_point(|head| head.term < id.term);
            return match path.heads.get(at) {
                None => Err(ChangeReadError::Ahead),
                Some(head) if head.term != id.term => Err(ChangeReadError::OtherHistory),
                Some(head) if at == 0 && head.previous != 0 => Err(ChangeReadError::Trimmed),
                Some(head) => begin(head),
            };
        }
        let Some(byte) = id.byte() else { return Err(ChangeReadError::OtherHistory) };
        if byte >= end.offset {
            return Err(if id.term < last.term {
                ChangeReadError::OtherHistory
            } else {
                ChangeReadError::Ahead
            });
        }
        let Some(index) = path.index_of(byte) else { return Err(ChangeReadError::Trimmed) };
        let head = path.heads[index];
        if head.term != id.term {
            return Err(ChangeReadError::OtherHistory);
        }
        self.index_segment(store, &path, index, byte)?;
        let mut tail = Tail::resume(store.disk().clone(), head, self.mark(&head, byte))?;
        loop {
            let at = tail.position();
            let Step::Batch(batch, frame) = tail.next(end)? else {
                return Err(ChangeReadError::OtherHistory);
            };
            if byte >= at.offset + batch.bytes() {
                continue;
            }
            let number = byte - at.offset;
            let mut is_there = u64::from(batch.chain) % CHECKS == id.seq % CHECKS;
            if is_there {
                is_there = false;
                each_change(&frame[BATCH_HEAD_BYTES..], |at, _, _| {
                    is_there = u64::from(at) == number;
                    !is_there
                })
                .map_err(|what| damaged(store, at, &what))?;
            }
            // The entry number fits into 32 bits, because a batch is shorter than 2^26 bytes.
            let skip = number as u32 + u32::from(!is_wanted);
            return if is_there {
                Ok(ChangeCursor { head, at, skip })
            } else {
                Err(ChangeReadError::OtherHistory)
            };
        }
    }

    /// Calls `each` for the entries from `place` to `end`, and advances `place`. Stops early after
    /// an entry for which `each` returns false, and after the batch with which the number of bytes
    /// read reaches `most`. Returns whether it reached `end`.
    pub fn read(
        &self,
        store: &Store,
        end: Position,
        scope: Scope,
        place: &mut ChangeCursor,
        most: u64,
        mut each: impl FnMut(Id, u32, Change<'_>) -> bool,
    ) -> Result<bool, ChangeReadError> {
        if place.at.offset >= end.offset {
            return Ok(true);
        }
        let mut tail = Tail::resume(store.disk().clone(), place.head, place.at)?;
        let mut read = 0;
        loop {
            let at = tail.position();
            match tail.next(end)? {
                Step::End => return Ok(true),
                Step::Segment(head) => {
                    *place = ChangeCursor { head, at: Position::first_of(&head), skip: 0 };
                    if let Some(next) = self.pass_over(store, end, scope, &head)? {
                        *place = next;
                        if next.at.offset >= end.offset {
                            return Ok(true);
                        }
                        tail = Tail::resume(store.disk().clone(), next.head, next.at)?;
                    }
                }
                Step::Batch(batch, frame) => {
                    let (skip, term) = (std::mem::take(&mut place.skip), place.head.term);
                    let mut over = None;
                    each_change(&frame[BATCH_HEAD_BYTES..], |number, space, change| {
                        if number < skip || !scope.has(space) {
                            return true;
                        }
                        let id = Id::of(term, at.offset, batch.chain, number);
                        let goes_on = each(id, space, change);
                        over = (!goes_on).then_some(number);
                        goes_on
                    })
                    .map_err(|what| damaged(store, at, &what))?;
                    if let Some(number) = over {
                        *place = ChangeCursor { head: place.head, at, skip: number + 1 };
                        return Ok(false);
                    }
                    read += batch.bytes();
                    place.at = tail.position();
                    if read >= most {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Skips segments without requested entries, beginning with this segment. Returns the position
    /// after the skipped segments, or `None` if this segment must be read.
    fn pass_over(
        &self,
        store: &Store,
        end: Position,
        scope: Scope,
        head: &SegmentHead,
    ) -> Result<Option<ChangeCursor>, ChangeReadError> {
        if scope == Scope::All || head.segment == end.segment {
            return Ok(None);
        }
        let path = self.path(store, end)?;
        let Some(mut index) = path.heads.iter().position(|other| other == head) else {
            return Ok(None);
        };
        let from = index;
        while index + 1 < path.heads.len() {
            self.index_segment(store, &path, index, u64::MAX)?;
            if self.tally_of(&path.heads[index], scope).entries > 0 {
                break;
            }
            index += 1;
        }
        let head = path.heads[index];
        Ok((index > from).then(|| ChangeCursor { head, at: Position::first_of(&head), skip: 0 }))
    }

    fn tally_of(&self, head: &SegmentHead, scope: Scope) -> EntrySummary {
        let segments = self.segments.lock();
        let known = segments.iter().find(|segment| segment.head == *head);
        known.map(|segment| segment.tally(scope)).unwrap_or_default()
    }

    /// Reads the entries from `from` backwards to `to`. Converts each with `make`, which returns
    /// `None` to skip an entry. Stops when it has `most` results.
    pub fn read_back(
        &self,
        store: &Store,
        end: Position,
        scope: Scope,
        (from, to): (Id, Id),
        most: usize,
        make: impl Fn(Id, u32, Change<'_>) -> Option<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>, ChangeReadError> {
        let path = self.path(store, end)?;
        let mut found = Vec::new();
        for index in (0..path.heads.len()).rev() {
            let head = path.heads[index];
            let first = Id::of(head.term, head.base, 0, 0);
            if first > from {
                continue;
            }
            self.index_segment(store, &path, index, u64::MAX)?;
            let (mut high, low) = (path.end_of(index), head.base);
            if self.tally_of(&head, scope).entries == 0 {
                high = low;
            }
            while high > low {
                let mark = self.mark(&head, high - 1);
                let mut place = ChangeCursor { head, at: mark, skip: 0 };
                let mut some = VecDeque::new();
                // Within one segment only the offsets of two positions are compared.
                let limit = Position { segment: head.segment, offset: high, ..end };
                self.read(store, limit, scope, &mut place, u64::MAX, |id, space, change| {
                    if id > from {
                        return false;
                    }
                    if id >= to
                        && let Some(made) = make(id, space, change)
                    {
                        some.push_back(made);
                        if some.len() > most - found.len() {
                            some.pop_front();
                        }
                    }
                    true
                })?;
                found.extend(some.into_iter().rev());
                high = mark.offset;
                if found.len() >= most || Id::of(head.term, high, 0, 0) < to {
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }

    /// Indexes the unindexed parts of the log, then counts all entries. Omits entries of spaces for
    /// which `is_known` returns false because they no longer exist.
    pub fn count(
        &self,
        store: &Store,
        end: Position,
        scope: Scope,
        is_known: impl Fn(u32) -> bool,
    ) -> Result<EntrySummary, ChangeReadError> {
        again(|| {
            let path = self.path(store, end)?;
            (0..path.heads.len())
                .try_for_each(|index| self.index_segment(store, &path, index, u64::MAX))
        })?;
        let mut all = EntrySummary::default();
        for segment in self.segments.lock().iter() {
            let wanted = segment
                .tallies
                .iter()
                .filter(|(space, _)| scope.has(**space) && (**space == 0 || is_known(**space)));
            wanted.for_each(|(_, tally)| all.join(tally));
        }
        Ok(all)
    }

    /// Returns the number of entries after a position. `is_known`: see [`ChangeLog::count`].
    pub fn count_after(
        &self,
        store: &Store,
        end: Position,
        scope: Scope,
        mut place: ChangeCursor,
        is_known: impl Fn(u32) -> bool,
    ) -> Result<u64, ChangeReadError> {
        let path = self.path(store, end)?;
        let mut entries = 0;
        let index = path
            .heads
            .iter()
            .position(|head| *head == place.head)
            .ok_or(ChangeReadError::Trimmed)?;
        let limit = Position { segment: place.head.segment, offset: path.end_of(index), ..end };
        self.read(store, limit, scope, &mut place, u64::MAX, |_, space, _| {
            entries += u64::from(space == 0 || is_known(space));
            true
        })?;
        for index in index + 1..path.heads.len() {
            self.index_segment(store, &path, index, u64::MAX)?;
            let segments = self.segments.lock();
            let known = segments.iter().find(|segment| segment.head == path.heads[index]);
            let wanted = known.into_iter().flat_map(|segment| &segment.tallies);
            let wanted = wanted
                .filter(|(space, _)| scope.has(**space) && (**space == 0 || is_known(**space)));
            entries += wanted.map(|(_, tally)| tally.entries).sum::<u64>();
        }
        Ok(entries)
    }

    /// Returns the number of segments and the offset of the first segment.
    pub fn reach(&self, store: &Store, end: Position) -> Result<(usize, u64), ChangeReadError> {
        let path = self.path(store, end)?;
        Ok((path.heads.len(), path.heads.first().map_or(0, |head| head.base)))
    }
}

fn damaged(store: &Store, at: Position, what: &str) -> ChangeReadError {
    let path = store.path(&store::segment_name(at.segment));
    ChangeReadError::Store(Error::Refused(format!(
        "{} is damaged at byte {}: {what}",
        path.display(),
        at.byte
    )))
}
