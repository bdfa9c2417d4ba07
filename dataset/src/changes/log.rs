//! Where entries lie in the log, and reading them.
//!
//! A segment is read through once, when something first asks for a place in it, and then only where
//! it has grown. What is remembered are *marks*, places between two batches from which a reader may
//! begin, and a [`Tally`] per space, by which segments without entries of a space are passed over.
//! A mark is 40 bytes, and there is one per 64 KiB at most: for 2 GiB of log 1.3 MB.
//!
//! No file is read under the lock. Two readers may look through the same part at once; the one that
//! is later finds that it is known.

use super::{CHECKS, Change, Id, each_change};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use store::{BATCH_HEAD_BYTES, Error, Position, SegmentHead, Step, Store, Tail};

/// Log between two marks, at least.
const MARK_BYTES: u64 = 64 << 10;
/// Log that is looked through before what was found is noted.
const STEP_BYTES: u64 = 4 << 20;

/// Which entries are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Those of all spaces.
    All,
    /// Those of the space with this number, and what the catalogue says.
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

/// Entries of a space, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub entries: u64,
    /// The first and the last of them, if there are any.
    pub ends: Option<(Id, Id)>,
}

impl Tally {
    fn add(&mut self, id: Id) {
        self.entries += 1;
        self.ends = Some((self.ends.map_or(id, |ends| ends.0), id));
    }

    fn join(&mut self, other: &Tally) {
        self.entries += other.entries;
        self.ends = match (self.ends, other.ends) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (a, b) => a.or(b),
        };
    }
}

/// Where a reader wants to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the first entry that is there.
    Oldest,
    /// Behind all that is there.
    End,
    /// Behind this one; behind 0-0: with the first one ever.
    After(Id),
    /// With this one.
    At(Id),
}

/// Why it cannot.
#[derive(Debug)]
pub enum Lost {
    /// The log does not reach back to there.
    Trimmed,
    /// It is in no history that led here.
    Parted,
    /// The log is not there yet.
    Ahead,
    /// The disk, or damage.
    Store(Error),
}

impl From<Error> for Lost {
    fn from(error: Error) -> Lost {
        match error {
            // Removed while it was on its way there.
            Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                Lost::Trimmed
            }
            error => Lost::Store(error),
        }
    }
}

/// Looks at all of the log. A segment that is removed meanwhile is none of it any more.
fn again<T>(look: impl Fn() -> Result<T, Lost>) -> Result<T, Lost> {
    let mut looks = (0..8).map(|_| look());
    looks.find(|found| !matches!(found, Err(Lost::Trimmed))).unwrap_or(Err(Lost::Trimmed))
}

/// A place in the log from which a reader goes on.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    head: SegmentHead,
    at: Position,
    /// Entries of the batch behind it that are not wanted.
    skip: u32,
}

impl Place {
    /// The log's byte.
    pub fn offset(&self) -> u64 {
        self.at.offset
    }

    /// Whether all behind it was written a moment ago, so that reading it waits for no disk and
    /// takes little time.
    pub fn is_at_hand(&self, end: Position) -> bool {
        const AT_HAND_BYTES: u64 = 128 << 10;
        self.at.segment == end.segment && end.offset.saturating_sub(self.at.offset) <= AT_HAND_BYTES
    }
}

/// What is known of a segment.
struct Segment {
    head: SegmentHead,
    /// It was read up to here.
    to: Position,
    marks: Vec<Position>,
    tallies: BTreeMap<u32, Tally>,
}

impl Segment {
    fn new(head: SegmentHead) -> Segment {
        Segment {
            head,
            to: Position::first_of(&head),
            marks: vec![Position::first_of(&head)],
            tallies: BTreeMap::new(),
        }
    }

    fn tally(&self, scope: Scope) -> Tally {
        let mut all = Tally::default();
        for (_, tally) in self.tallies.iter().filter(|(space, _)| scope.has(**space)) {
            all.join(tally);
        }
        all
    }
}

/// The segments that are there now, up to a durable end.
struct Path {
    heads: Vec<SegmentHead>,
    end: Position,
}

impl Path {
    /// Where this segment ends.
    fn end_of(&self, index: usize) -> u64 {
        self.heads.get(index + 1).map_or(self.end.offset, |next| next.base)
    }

    /// The segment that holds this byte of the log.
    fn index_of(&self, offset: u64) -> Option<usize> {
        self.heads.partition_point(|head| head.base <= offset).checked_sub(1)
    }
}

/// See the top of the file.
#[derive(Default)]
pub struct ChangeLog {
    segments: Mutex<Vec<Segment>>,
}

impl ChangeLog {
    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        let bytes = |segment: &Segment| {
            size_of::<Segment>()
                + segment.marks.capacity() * size_of::<Position>()
                + segment.tallies.len() * size_of::<(u32, Tally)>()
        };
        self.segments.lock().iter().map(bytes).sum()
    }

    /// The log as it is now. What is known of other segments is forgotten.
    fn path(&self, store: &Store, end: Position) -> Result<Path, Lost> {
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
                segments.push(same.unwrap_or_else(|| Segment::new(*head)));
            }
        }
        Ok(Path { heads, end })
    }

    /// Reads what is not known of a segment, up to this byte of the log at least.
    fn learn(&self, store: &Store, path: &Path, index: usize, until: u64) -> Result<(), Lost> {
        let (head, until) = (path.heads[index], until.min(path.end_of(index)));
        loop {
            let found = |segment: &&mut Segment| segment.head == head;
            let at = match self.segments.lock().iter_mut().find(found) {
                // Another reader has seen it go.
                None => return Err(Lost::Trimmed),
                Some(known) if known.to.offset >= until => return Ok(()),
                Some(known) => known.to,
            };
            let (mut marks, mut tallies) = (Vec::new(), BTreeMap::<u32, Tally>::new());
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

    /// The last mark of a segment that lies at this byte of the log or before it.
    fn mark(&self, head: &SegmentHead, offset: u64) -> Position {
        let segments = self.segments.lock();
        let known = segments.iter().find(|segment| segment.head == *head);
        let before = known.and_then(|segment| {
            let at = segment.marks.partition_point(|mark| mark.offset <= offset);
            Some(*segment.marks.get(at.checked_sub(1)?)?)
        });
        before.unwrap_or_else(|| Position::first_of(head))
    }

    /// Where a reader begins in the log that is durable up to `end`.
    pub fn find(&self, store: &Store, end: Position, start: Start) -> Result<Place, Lost> {
        let path = self.path(store, end)?;
        let (Some(first), Some(last)) = (path.heads.first(), path.heads.last()) else {
            return Err(Lost::Ahead);
        };
        let begin =
            |head: &SegmentHead| Ok(Place { head: *head, at: Position::first_of(head), skip: 0 });
        let (id, is_wanted) = match start {
            Start::Oldest => return begin(first),
            Start::End => return Ok(Place { head: *last, at: end, skip: 0 }),
            Start::After(id) => (id, false),
            Start::At(id) => (id, true),
        };
        if id == Id::MIN {
            return if first.previous == 0 { begin(first) } else { Err(Lost::Trimmed) };
        }
        if id.seq == 0 {
            // The beginning of a term.
            let at = path.heads.partition_point(|head| head.term < id.term);
            return match path.heads.get(at) {
                None => Err(Lost::Ahead),
                Some(head) if head.term != id.term => Err(Lost::Parted),
                Some(head) if at == 0 && head.previous != 0 => Err(Lost::Trimmed),
                Some(head) => begin(head),
            };
        }
        let Some(byte) = id.byte() else { return Err(Lost::Parted) };
        if byte >= end.offset {
            return Err(if id.term < last.term { Lost::Parted } else { Lost::Ahead });
        }
        let Some(index) = path.index_of(byte) else { return Err(Lost::Trimmed) };
        let head = path.heads[index];
        if head.term != id.term {
            return Err(Lost::Parted);
        }
        self.learn(store, &path, index, byte)?;
        let mut tail = Tail::resume(store.disk().clone(), head, self.mark(&head, byte))?;
        loop {
            let at = tail.position();
            let Step::Batch(batch, frame) = tail.next(end)? else { return Err(Lost::Parted) };
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
            // A batch has fewer than 2^26 bytes.
            let skip = number as u32 + u32::from(!is_wanted);
            return if is_there { Ok(Place { head, at, skip }) } else { Err(Lost::Parted) };
        }
    }

    /// Tells `each` the entries behind `place` up to `end`, until it gives false or `most` bytes of
    /// the log were read. True: it was stopped by neither. `place` is where to go on.
    pub fn read(
        &self,
        store: &Store,
        end: Position,
        scope: Scope,
        place: &mut Place,
        most: u64,
        mut each: impl FnMut(Id, u32, Change<'_>) -> bool,
    ) -> Result<bool, Lost> {
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
                    *place = Place { head, at: Position::first_of(&head), skip: 0 };
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
                        *place = Place { head: place.head, at, skip: number + 1 };
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

    /// Where to go on if this segment, which begins, is known to hold nothing that is wanted.
    fn pass_over(
        &self,
        store: &Store,
        end: Position,
        scope: Scope,
        head: &SegmentHead,
    ) -> Result<Option<Place>, Lost> {
        if scope == Scope::All || head.segment == end.segment {
            return Ok(None);
        }
        let path = self.path(store, end)?;
        let Some(mut index) = path.heads.iter().position(|other| other == head) else {
            return Ok(None);
        };
        let from = index;
        while index + 1 < path.heads.len() {
            self.learn(store, &path, index, u64::MAX)?;
            if self.tally_of(&path.heads[index], scope).entries > 0 {
                break;
            }
            index += 1;
        }
        let head = path.heads[index];
        Ok((index > from).then(|| Place { head, at: Position::first_of(&head), skip: 0 }))
    }

    fn tally_of(&self, head: &SegmentHead, scope: Scope) -> Tally {
        let segments = self.segments.lock();
        let known = segments.iter().find(|segment| segment.head == *head);
        known.map(|segment| segment.tally(scope)).unwrap_or_default()
    }

    /// What `make` makes of the entries from `from` down to `to`, of `most` at most.
    pub fn read_back(
        &self,
        store: &Store,
        end: Position,
        scope: Scope,
        (from, to): (Id, Id),
        most: usize,
        make: impl Fn(Id, u32, Change<'_>) -> Option<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>, Lost> {
        let path = self.path(store, end)?;
        let mut found = Vec::new();
        for index in (0..path.heads.len()).rev() {
            let head = path.heads[index];
            let first = Id::of(head.term, head.base, 0, 0);
            if first > from {
                continue;
            }
            self.learn(store, &path, index, u64::MAX)?;
            let (mut high, low) = (path.end_of(index), head.base);
            if self.tally_of(&head, scope).entries == 0 {
                high = low;
            }
            while high > low {
                let mark = self.mark(&head, high - 1);
                let mut place = Place { head, at: mark, skip: 0 };
                let mut some = VecDeque::new();
                // Within one segment only the offset counts.
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

    /// How many entries there are, and the first and the last of them. All of the log is read that
    /// is not known yet. `is_known`: whether there still is such a space.
    pub fn count(
        &self,
        store: &Store,
        end: Position,
        scope: Scope,
        is_known: impl Fn(u32) -> bool,
    ) -> Result<Tally, Lost> {
        again(|| {
            let path = self.path(store, end)?;
            (0..path.heads.len()).try_for_each(|index| self.learn(store, &path, index, u64::MAX))
        })?;
        let mut all = Tally::default();
        for segment in self.segments.lock().iter() {
            let wanted = segment
                .tallies
                .iter()
                .filter(|(space, _)| scope.has(**space) && (**space == 0 || is_known(**space)));
            wanted.for_each(|(_, tally)| all.join(tally));
        }
        Ok(all)
    }

    /// How many entries there are behind a place.
    pub fn count_behind(
        &self,
        store: &Store,
        end: Position,
        scope: Scope,
        mut place: Place,
        is_known: impl Fn(u32) -> bool,
    ) -> Result<u64, Lost> {
        let path = self.path(store, end)?;
        let mut entries = 0;
        let index = path.heads.iter().position(|head| *head == place.head).ok_or(Lost::Trimmed)?;
        let limit = Position { segment: place.head.segment, offset: path.end_of(index), ..end };
        self.read(store, limit, scope, &mut place, u64::MAX, |_, space, _| {
            entries += u64::from(space == 0 || is_known(space));
            true
        })?;
        for index in index + 1..path.heads.len() {
            self.learn(store, &path, index, u64::MAX)?;
            let segments = self.segments.lock();
            let known = segments.iter().find(|segment| segment.head == path.heads[index]);
            let wanted = known.into_iter().flat_map(|segment| &segment.tallies);
            let wanted = wanted
                .filter(|(space, _)| scope.has(**space) && (**space == 0 || is_known(**space)));
            entries += wanted.map(|(_, tally)| tally.entries).sum::<u64>();
        }
        Ok(entries)
    }

    /// How many segments there are, and where the first of them begins.
    pub fn reach(&self, store: &Store, end: Position) -> Result<(usize, u64), Lost> {
        let path = self.path(store, end)?;
        Ok((path.heads.len(), path.heads.first().map_or(0, |head| head.base)))
    }
}

fn damaged(store: &Store, at: Position, what: &str) -> Lost {
    let path = store.path(&store::segment_name(at.segment));
    Lost::Store(Error::Refused(format!(
        "{} is damaged at byte {}: {what}",
        path.display(),
        at.byte
    )))
}
