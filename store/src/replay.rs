//! Reading the log: which segments count, which batches are valid, and where it ends.
//!
//! **Which segments.** From the newest one back: each names the one it continues (segment.rs).
//! Files beside that path are void if the path says so, and otherwise a mistake that is reported. A
//! newest file without a valid header and without a batch is a segment whose creation was cut
//! short: nothing can have been acknowledged from it.
//!
//! **Which batches.** All that are valid, in order. A segment that has a successor must be valid
//! exactly up to the successor's base. The newest one ends at its first invalid batch, at byte P,
//! and then:
//!
//! | what follows P | verdict |
//! |---|---|
//! | nothing | a clean end |
//! | bytes, nowhere a valid head of a batch | a torn tail: the log is cut at P |
//! | a batch's valid head, written before the bytes at P were durable | a torn tail, out of order |
//! | a batch's valid head, written after the bytes at P were durable | damage: start is refused |
//!
//! So a torn tail never holds a batch that `always` acknowledged, with one exception that no format
//! can exclude: damage to the very last sync's batches, before anything was written after it, looks
//! exactly like a torn write. An idle log is sealed for that reason. The manifest also names a
//! durable offset; a log that ends before it is refused. So is a segment that ends before the place
//! where replay begins: that place was durable when the manifest was written.

use std::path::PathBuf;

use crate::batch::{BATCH_HEAD_BYTES, BatchHead, Lineage, body_matches, fields, read_head};
use crate::disk::{Disk, DiskFile, read_full_at};
use crate::error::{Error, Result};
use crate::log::Position;
use crate::segment::{
    BadHead, LOG_VERSION, SEGMENT_HEAD_BYTES, SegmentHead, SegmentName, parse_segment_name,
    segment_name,
};

/// How much is read at once; larger batches enlarge the buffer, within their limit.
const CHUNK: usize = 1 << 20;

/// The segments that a recovery reads, oldest first, and what lies beside them.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) segments: Vec<SegmentHead>,
    /// Segments that were never finished or were left for a new one: they hold nothing.
    pub(crate) void: Vec<u64>,
    /// Older than the replay position: not needed any more.
    pub(crate) obsolete: Vec<u64>,
    /// Above every number in use.
    pub(crate) next_segment: u64,
}

/// Finds the segments from the newest one back to `start`. An empty path means a lineage of which
/// no segment was created yet. `at_rest`: no writer has the log, and the caller is about to go
/// on with it; then what is read is [settled](settle).
pub(crate) fn find_path(
    disk: &dyn Disk,
    lineage: Lineage,
    start: Position,
    at_rest: bool,
) -> Result<Path> {
    let numbers = segment_numbers(disk)?;
    let next_segment = numbers.last().map_or(start.segment, |n| n + 1);
    let obsolete: Vec<u64> = numbers.iter().copied().filter(|&n| n < start.segment).collect();
    let numbers: Vec<u64> = numbers.into_iter().filter(|&n| n >= start.segment).collect();
    let mut path = Path { segments: Vec::new(), void: Vec::new(), obsolete, next_segment };
    let first = disk.path(&segment_name(start.segment));
    if numbers.is_empty() {
        if start == Position::START && path.obsolete.is_empty() {
            return Ok(path);
        }
        return Err(Error::corrupt(
            first,
            0,
            format!("missing; the manifest says that replay begins at {start}"),
        ));
    }
    let mut rest = &numbers[..];
    let mut wanted: Option<SegmentHead> = None; // the successor, whose predecessor we look for
    loop {
        let Some((&number, below)) = rest.split_last() else {
            return match wanted {
                None if start == Position::START => Ok(path), // only unfinished ones
                None => Err(Error::corrupt(first, 0, "no segment from here on has a valid header")),
                Some(next) => Err(missing(disk, &next)),
            };
        };
        if let Some(next) = wanted
            && number != next.previous
        {
            check_void(disk, number, &next)?;
            path.void.push(number);
            rest = below;
            continue;
        }
        if at_rest && wanted.is_none() {
            settle(disk, number)?;
        }
        match read_segment_head(disk, number)? {
            Ok(head) => {
                check_identity(disk, number, &head, lineage)?;
                path.segments.push(head);
                // The very first segment may have a later number, if the first attempts to create
                // it were cut short.
                let is_first =
                    number == start.segment || (start == Position::START && head.previous == 0);
                if is_first {
                    if number > start.segment {
                        path.void.extend_from_slice(below);
                    }
                    break;
                }
                if head.previous < start.segment {
                    let what = format!(
                        "it continues segment {}, but the manifest says that replay begins at \
                         {start}",
                        head.previous
                    );
                    return Err(Error::corrupt(disk.path(&segment_name(number)), 40, what));
                }
                wanted = Some(head);
            }
            Err(bad) => {
                check_unfinished(disk, lineage, number, bad, wanted.is_none())?;
                path.void.push(number);
            }
        }
        rest = below;
    }
    path.segments.reverse();
    check_start(disk, &path.segments[0], start)?;
    Ok(path)
}

/// A segment that `next` does not continue is void, if that says so; else one is missing, or too
/// many.
fn check_void(disk: &dyn Disk, number: u64, next: &SegmentHead) -> Result<()> {
    if number < next.previous {
        return Err(missing(disk, next));
    }
    if next.void {
        return Ok(());
    }
    let what = format!(
        "segment {} continues {}, so this one should not exist",
        next.segment, next.previous
    );
    Err(Error::corrupt(disk.path(&segment_name(number)), 0, what))
}

/// A segment without a sound header: only the newest can be a creation that was cut short, and only
/// if no batch was ever written behind its header (L2).
fn check_unfinished(
    disk: &dyn Disk,
    lineage: Lineage,
    number: u64,
    bad: BadHead,
    is_newest: bool,
) -> Result<()> {
    let path = disk.path(&segment_name(number));
    if let BadHead::Version(found) = bad {
        return Err(Error::Version { path, found, newest: LOG_VERSION });
    }
    if !is_newest || holds_a_batch(disk, lineage, number)? {
        return Err(Error::corrupt(path, 0, bad.to_string()));
    }
    Ok(())
}

/// A segment's header has to say what its name and the manifest say.
fn check_identity(
    disk: &dyn Disk,
    number: u64,
    head: &SegmentHead,
    lineage: Lineage,
) -> Result<()> {
    let name = disk.path(&segment_name(number));
    if head.lineage != lineage {
        let what = format!(
            "it belongs to lineage {}, the manifest to {lineage}: files of two data sets",
            head.lineage
        );
        return Err(Error::corrupt(name, 16, what));
    }
    if head.segment != number {
        let what = format!("its header says that it is segment {}", head.segment);
        return Err(Error::corrupt(name, 32, what));
    }
    Ok(())
}

/// Whether replay can begin there in the first segment.
fn check_start(disk: &dyn Disk, head: &SegmentHead, start: Position) -> Result<()> {
    let agrees = start.byte > SEGMENT_HEAD_BYTES
        || (head.sequence, head.chain) == (start.sequence, start.chain);
    if head.byte_of(start.offset) == Some(start.byte) && agrees {
        return Ok(());
    }
    let what = format!("its base is {}, so replay cannot begin at {start}", head.base);
    Err(Error::corrupt(disk.path(&segment_name(head.segment)), 48, what))
}

fn missing(disk: &dyn Disk, next: &SegmentHead) -> Error {
    let name = disk.path(&segment_name(next.previous));
    Error::corrupt(
        name,
        0,
        format!("missing; segment {} continues it at offset {}", next.segment, next.base),
    )
}

/// The numbers of all segments in the folder, sorted. A name that is almost one is refused.
pub(crate) fn segment_numbers(disk: &dyn Disk) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for name in disk.list().map_err(|e| Error::io(disk.path(""), "listing", e))? {
        match parse_segment_name(&name) {
            SegmentName::Segment(n) => numbers.push(n),
            SegmentName::Odd => {
                return Err(Error::corrupt(
                    disk.path(&name),
                    0,
                    "the name is not spelled as a segment's; is it a copy?",
                ));
            }
            SegmentName::Other => {}
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

pub(crate) fn read_segment_head(
    disk: &dyn Disk,
    number: u64,
) -> Result<std::result::Result<SegmentHead, BadHead>> {
    let name = segment_name(number);
    let path = disk.path(&name);
    let file = disk.open(&name).map_err(|e| Error::io(&path, "opening", e))?;
    let mut bytes = [0; SEGMENT_HEAD_BYTES as usize];
    let n = read_full_at(&*file, &mut bytes, 0).map_err(|e| Error::io(&path, "reading", e))?;
    Ok(SegmentHead::decode(&bytes[..n]))
}

/// The segments of a log from `newest` back, as far as they are there, `most` at most. Void ones
/// are passed over, as no segment continues them.
pub fn segments_back(disk: &dyn Disk, newest: u64, most: usize) -> Result<Vec<SegmentHead>> {
    let numbers = segment_numbers(disk)?;
    let (mut heads, mut wanted) = (Vec::new(), newest);
    while heads.len() < most
        && numbers.contains(&wanted)
        && let Ok(head) = read_segment_head(disk, wanted)?
    {
        heads.push(head);
        wanted = head.previous;
    }
    Ok(heads)
}

/// Makes what is read of a segment what the disk has. Of the newest file, or of several if they
/// were all cut short, even the header may be in memory only: its sync failed, and the process that
/// wrote it was killed before it could remove the file. A log that went on behind such a header
/// would be lost with it. Older segments are safe: a successor was begun only after they were.
fn settle(disk: &dyn Disk, number: u64) -> Result<()> {
    let name = segment_name(number);
    let path = disk.path(&name);
    let file = disk.open(&name).map_err(|e| Error::io(&path, "opening", e))?;
    file.sync().map_err(|e| Error::io(&path, "syncing", e))?;
    file.drop_cache().map_err(|e| Error::io(&path, "reading", e))
}

/// Is there anywhere in the file what only a written batch can look like?
fn holds_a_batch(disk: &dyn Disk, lineage: Lineage, number: u64) -> Result<bool> {
    let name = segment_name(number);
    let path = disk.path(&name);
    let file = disk.open(&name).map_err(|e| Error::io(&path, "opening", e))?;
    let head = SegmentHead {
        void: false,
        lineage,
        segment: number,
        previous: 0,
        base: 0,
        sequence: 0,
        term: 0,
        chain: 0,
    };
    let mut reader = BatchReader::new(file, path, head, None)?;
    Ok(reader.scan(SEGMENT_HEAD_BYTES, |head, _| head.sequence > 0)?.is_some())
}

/// What a reader finds at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A valid batch: [`BatchReader::body`] has its records.
    Batch(BatchHead),
    /// The end of the file.
    End,
    /// Bytes that are no valid batch.
    Bad(&'static str),
}

/// Reads the batches of one segment in order.
#[derive(Debug)]
pub(crate) struct BatchReader {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    head: SegmentHead,
    size: u64,
    at: Position,
    buffer: Vec<u8>,
    /// Byte of the file at which the buffer begins.
    buffer_at: u64,
    /// Range in the buffer of the last batch found.
    batch: (usize, usize),
}

impl BatchReader {
    /// Reads on from `start`, or from the first batch.
    pub(crate) fn new(
        file: Box<dyn DiskFile>,
        path: PathBuf,
        head: SegmentHead,
        start: Option<Position>,
    ) -> Result<BatchReader> {
        let size = file.size().map_err(|e| Error::io(&path, "measuring", e))?;
        let at = start.unwrap_or_else(|| Position::first_of(&head));
        Ok(BatchReader {
            file,
            path,
            head,
            size,
            at,
            buffer: Vec::new(),
            buffer_at: 0,
            batch: (0, 0),
        })
    }

    /// The place after the last batch found.
    pub(crate) fn position(&self) -> Position {
        self.at
    }

    fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Length of the file, as of the last look.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Looks at the file's length again, since it may have grown, and reads nothing behind `limit`:
    /// what is there now may be cut off and written anew, so it must not get into the buffer
    /// either.
    pub(crate) fn read_up_to(&mut self, limit: u64) -> Result<()> {
        let size = self.file.size().map_err(|e| Error::io(&self.path, "measuring", e))?;
        self.size = size.min(limit);
        Ok(())
    }

    /// The records of the last batch found.
    pub(crate) fn body(&self) -> &[u8] {
        &self.buffer[self.batch.0 + BATCH_HEAD_BYTES..self.batch.1]
    }

    /// The last batch found, head and body.
    pub(crate) fn frame(&self) -> &[u8] {
        &self.buffer[self.batch.0..self.batch.1]
    }

    /// The next batch.
    pub(crate) fn next(&mut self) -> Result<Found> {
        let byte = self.at.byte;
        if byte >= self.size {
            return Ok(if byte == self.size {
                Found::End
            } else {
                Found::Bad("the file ends before this place")
            });
        }
        let Some(start) = self.fill(byte, BATCH_HEAD_BYTES)? else {
            return Ok(Found::Bad("it ends inside a batch's head"));
        };
        let place = self.head.place(byte);
        let Some(head) = read_head(&self.buffer[start..], &place) else {
            return Ok(Found::Bad("a batch's head does not match its checksum"));
        };
        if head.previous != self.at.chain {
            return Ok(Found::Bad("a batch does not follow the one before it"));
        }
        if Some(head.sequence) != self.at.sequence.checked_add(1) {
            return Ok(Found::Bad("a batch's sequence number is not the next one"));
        }
        let Some(start) = self.fill(byte, head.bytes() as usize)? else {
            return Ok(Found::Bad("it ends inside a batch"));
        };
        let end = start + head.bytes() as usize;
        if !body_matches(&self.buffer[start..], &self.buffer[start + BATCH_HEAD_BYTES..end], &place)
        {
            return Ok(Found::Bad("a batch does not match its checksum"));
        }
        self.batch = (start, end);
        self.at = Position {
            segment: self.head.segment,
            byte: byte + head.bytes(),
            offset: self.at.offset + head.bytes(),
            sequence: head.sequence,
            chain: head.chain,
        };
        Ok(Found::Batch(head))
    }

    /// Makes sure that `need` bytes from `byte` are in the buffer; returns where, or `None` if the
    /// file is too short.
    fn fill(&mut self, byte: u64, need: usize) -> Result<Option<usize>> {
        if byte + need as u64 > self.size {
            return Ok(None);
        }
        let have = self.buffer_at + self.buffer.len() as u64;
        if byte >= self.buffer_at && byte + need as u64 <= have {
            return Ok(Some((byte - self.buffer_at) as usize));
        }
        // Keep what is there already, read the rest.
        let kept = if byte >= self.buffer_at && byte < have { (have - byte) as usize } else { 0 };
        let from = self.buffer.len() - kept;
        self.buffer.copy_within(from.., 0);
        self.buffer.truncate(kept);
        let want = need.max(CHUNK).min((self.size - byte) as usize);
        self.buffer.resize(want, 0);
        self.buffer_at = byte;
        let n = read_full_at(&*self.file, &mut self.buffer[kept..], byte + kept as u64)
            .map_err(|e| Error::io(&self.path, "reading", e))?;
        self.buffer.truncate(kept + n);
        Ok((self.buffer.len() >= need).then_some(0))
    }

    /// Looks from `byte` on for the head of a batch whose check matches its place and that
    /// `accept`s. The body is not looked at: that the head was written there is all that is asked.
    fn scan(&mut self, byte: u64, accept: impl Fn(&BatchHead, u64) -> bool) -> Result<Option<u64>> {
        let mut byte = byte;
        while let Some(start) = self.fill(byte, BATCH_HEAD_BYTES)? {
            // The cheap test first: this runs at every byte of a tail.
            if accept(&fields(&self.buffer[start..]), byte)
                && read_head(&self.buffer[start..], &self.head.place(byte)).is_some()
            {
                return Ok(Some(byte));
            }
            byte += 1;
        }
        Ok(None)
    }

    /// After [`Found::Bad`] in the newest segment: is it damage, rather than a torn tail? Returns
    /// the place of the batch that proves it.
    pub(crate) fn proof_of_damage(&mut self) -> Result<Option<u64>> {
        let bad = self.at;
        if bad.byte >= self.size {
            return Ok(None);
        }
        // The head at the bad place itself may be intact, with a damaged body: it says how much of
        // what lies before it was durable, not more.
        let base = self.head.base;
        self.scan(bad.byte + 1, |head, byte| {
            let offset = base.wrapping_add(byte - SEGMENT_HEAD_BYTES);
            head.sequence > bad.sequence
                && offset.saturating_sub(u64::from(head.unsynced_bytes)) > bad.offset
        })
    }
}

/// Gets each batch of a replay, whole; what it refuses is damage.
pub type ApplyBatch<'a> = dyn FnMut(&BatchHead, &[u8]) -> std::result::Result<(), String> + 'a;

/// How a replay ended.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// The place after the last valid batch.
    pub position: Position,
    /// Bytes after it that were cut as a torn tail.
    pub torn_bytes: u64,
    /// Batches replayed.
    pub batches: u64,
    /// Records replayed.
    pub records: u64,
    /// Log bytes replayed.
    pub bytes: u64,
}

/// Whose log is replayed, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// A start, of a log that is ours.
    Owner,
    /// A start, of a replica's log, whose batches tell when they were durable on its master: its
    /// tail is cut whatever follows (replica_log.rs, F3).
    Follower,
    /// A check, which has nothing synced: it may look at the folder of a running server, or at a
    /// disk that can only be read.
    Check,
}

/// Replays the batches from `start` along the path; `apply` gets each batch whole.
pub(crate) fn replay(
    disk: &dyn Disk,
    path: &Path,
    start: Position,
    reader_is: Reader,
    apply: &mut ApplyBatch<'_>,
    progress: &mut dyn FnMut(Position),
) -> Result<End> {
    let mut end = End { position: start, torn_bytes: 0, batches: 0, records: 0, bytes: 0 };
    for (i, head) in path.segments.iter().enumerate() {
        let next = path.segments.get(i + 1);
        let mut reader = open_segment(disk, head, next, (i, start), end.position, reader_is)?;
        read_segment(&mut reader, next, reader_is, &mut end, apply, progress)?;
        end.position = reader.position();
        if let Some(next) = next
            && !next.void
            && reader.size() != end.position.byte
        {
            let what = format!("bytes follow the place where segment {} continues", next.segment);
            let file = disk.path(&segment_name(head.segment));
            return Err(Error::corrupt(file, end.position.byte, what));
        }
        progress(end.position);
    }
    Ok(end)
}

/// Opens the segment with this number in the path, at the place where its replay begins, and checks
/// that it goes on where the one before has ended, at `at`.
fn open_segment(
    disk: &dyn Disk,
    head: &SegmentHead,
    next: Option<&SegmentHead>,
    (number, start): (usize, Position),
    at: Position,
    reader_is: Reader,
) -> Result<BatchReader> {
    let name = segment_name(head.segment);
    let file_path = disk.path(&name);
    let file = disk.open(&name).map_err(|e| Error::io(&file_path, "opening", e))?;
    if next.is_none() && reader_is != Reader::Check {
        // The newest file may hold, in memory only, bytes of which an earlier process's sync
        // failed. What is read must be on the disk.
        file.sync().map_err(|e| Error::io(&file_path, "syncing", e))?;
        file.drop_cache().map_err(|e| Error::io(&file_path, "reading", e))?;
    }
    if number > 0 && (head.base, head.sequence, head.chain) != (at.offset, at.sequence, at.chain) {
        let what =
            format!("it begins at offset {}, its predecessor ends at {}", head.base, at.offset);
        return Err(Error::corrupt(file_path, 48, what));
    }
    let from = (number == 0 && start.segment == head.segment).then_some(start);
    let reader = BatchReader::new(file, file_path.clone(), *head, from)?;
    if let Some(next) = next
        && next.base < reader.position().offset
    {
        let what = format!(
            "it says that segment {} ends at offset {}, before replay begins",
            head.segment, next.base
        );
        return Err(Error::corrupt(disk.path(&segment_name(next.segment)), 48, what));
    }
    if reader.size() < reader.position().byte {
        // Not a torn tail: what lies before the replay position was durable.
        let what = format!(
            "it ends here; the manifest says that replay begins at {start}, up to which the \
             log was durable: something acknowledged is missing"
        );
        return Err(Error::corrupt(file_path, reader.size(), what));
    }
    Ok(reader)
}

/// Replays the batches of one segment, up to where `next` begins, or else up to a torn tail.
fn read_segment(
    reader: &mut BatchReader,
    next: Option<&SegmentHead>,
    reader_is: Reader,
    end: &mut End,
    apply: &mut ApplyBatch<'_>,
    progress: &mut dyn FnMut(Position),
) -> Result<()> {
    let mut reported = reader.position().byte;
    loop {
        if next.is_some_and(|next| reader.position().offset == next.base) {
            return Ok(());
        }
        let at = reader.position();
        let what = match reader.next()? {
            Found::Batch(_) if next.is_some_and(|next| reader.position().offset > next.base) => {
                "a batch crosses the place where the next segment begins".to_owned()
            }
            Found::Batch(batch) => {
                apply(&batch, reader.body())
                    .map_err(|what| Error::corrupt(reader.path(), at.byte, what))?;
                end.batches += 1;
                end.records += u64::from(batch.records);
                end.bytes += batch.bytes();
                if reader.position().byte - reported >= CHUNK as u64 {
                    reported = reader.position().byte;
                    progress(reader.position());
                }
                continue;
            }
            Found::End => match next {
                None => return Ok(()),
                Some(next) => format!(
                    "it ends at offset {}, but the next segment begins at {}",
                    at.offset, next.base
                ),
            },
            Found::Bad(what) if next.is_some() => what.to_owned(),
            Found::Bad(what) => {
                let proof = match reader_is {
                    Reader::Follower => None,
                    Reader::Owner | Reader::Check => reader.proof_of_damage()?,
                };
                let Some(proof) = proof else {
                    end.torn_bytes = reader.size().saturating_sub(at.byte);
                    return Ok(());
                };
                format!(
                    "{what}; the batch at byte {proof} was written when this place was already \
                     durable"
                )
            }
        };
        return Err(Error::corrupt(reader.path(), at.byte, what));
    }
}
