//! Reading the log: selection of segments, validation of batches, and detection of the end.
//!
//! **Segments.** Recovery follows the predecessors from the newest segment back (segment.rs). Other
//! segments are void if a segment of this path declares them void. Otherwise their presence is an
//! error. If the newest file has neither a valid header nor a batch, its creation was interrupted.
//! Such a file contains no acknowledged write.
//!
//! **Batches.** Recovery reads all valid batches in order. A segment with a successor must be valid
//! exactly up to the successor's base. The newest segment ends at its first invalid batch, at byte
//! P:
//!
//! | after P | verdict |
//! |---|---|
//! | nothing | clean end |
//! | bytes without a valid batch head | torn tail: the log is cut at P |
//! | a valid batch head, written before the bytes at P were durable | torn tail, out of order |
//! | a valid batch head, written after the bytes at P were durable | damage: startup fails |
//!
//! A torn tail therefore never contains a batch acknowledged under `always`, with one exception.
//! Damage to the batches of the last sync is indistinguishable from a torn write. Therefore an idle
//! log is sealed. Recovery also rejects a log that ends before the manifest's durable offset or
//! replay position.

use std::path::PathBuf;

use crate::batch::{BATCH_HEAD_BYTES, BatchHead, Lineage, body_matches, fields, read_head};
use crate::disk::{Disk, DiskFile, read_full_at};
use crate::error::{Error, Result};
use crate::log::Position;
use crate::segment::{
    BadHead, LOG_VERSION, SEGMENT_HEAD_BYTES, SegmentHead, SegmentName, parse_segment_name,
    segment_name,
};

/// Read size in bytes. Larger batches enlarge the buffer, up to the size limit of a batch.
const READ_BYTES: usize = 1 << 20;

/// Segments that recovery reads, oldest first, and the other segments in the folder.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) segments: Vec<SegmentHead>,
    /// Unfinished or abandoned segments, without contents.
    pub(crate) void: Vec<u64>,
    /// Segments before the replay position.
    pub(crate) obsolete: Vec<u64>,
    /// A number greater than every segment number in use.
    pub(crate) next_segment: u64,
}

/// Finds the segments from `start` to the newest segment.
///
/// The path is empty if the lineage has no segment yet. If `at_rest` is true, no writer is active
/// and the caller will continue the log. Recovery then [settles](settle) each segment before it
/// reads the segment.
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
            format!("missing, but the manifest says that replay starts at {start}"),
        ));
    }
    let mut rest = &numbers[..];
    let mut wanted: Option<SegmentHead> = None; // successor, whose predecessor the loop searches
    loop {
        let Some((&number, below)) = rest.split_last() else {
            return match wanted {
                None if start == Position::START => Ok(path), // only unfinished segments
                None => Err(Error::corrupt(first, 0, "no later segment has a valid header")),
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
            reload_from_device(disk, number)?;
        }
        match read_segment_head(disk, number)? {
            Ok(head) => {
                check_identity(disk, number, &head, lineage)?;
                path.segments.push(head);
                // After interrupted creations the first segment may have a number greater than 1.
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
                        "it continues segment {}, but the manifest says that replay starts at \
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

/// Checks that `next` declares the segment void. Otherwise a segment is missing or superfluous.
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

/// Checks that a segment without a valid header is an interrupted creation. The segment must be the
/// newest segment and contain no batch (L2).
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

/// Compares a segment's header with its file name and the manifest's lineage.
fn check_identity(
    disk: &dyn Disk,
    number: u64,
    head: &SegmentHead,
    lineage: Lineage,
) -> Result<()> {
    let name = disk.path(&segment_name(number));
    if head.lineage != lineage {
        let what = format!(
            "it belongs to lineage {}, but the manifest to {lineage}: files of two data sets are \
             mixed",
            head.lineage
        );
        return Err(Error::corrupt(name, 16, what));
    }
    if head.segment != number {
        let what = format!("its header has segment number {}", head.segment);
        return Err(Error::corrupt(name, 32, what));
    }
    Ok(())
}

/// Checks that replay can begin at `start` in the first segment.
fn check_start(disk: &dyn Disk, head: &SegmentHead, start: Position) -> Result<()> {
    let agrees = start.byte > SEGMENT_HEAD_BYTES
        || (head.sequence, head.chain) == (start.sequence, start.chain);
    if head.byte_of(start.offset) == Some(start.byte) && agrees {
        return Ok(());
    }
    let what = format!("its base is {}, so replay cannot start at {start}", head.base);
    Err(Error::corrupt(disk.path(&segment_name(head.segment)), 48, what))
}

fn missing(disk: &dyn Disk, next: &SegmentHead) -> Error {
    let name = disk.path(&segment_name(next.previous));
    Error::corrupt(
        name,
        0,
        format!("missing, but segment {} continues it at offset {}", next.segment, next.base),
    )
}

/// Returns the numbers of all segments in the folder, sorted. Rejects non-canonical names.
pub(crate) fn segment_numbers(disk: &dyn Disk) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for name in disk.list().map_err(|e| Error::io(disk.path(""), "listing", e))? {
        match parse_segment_name(&name) {
            SegmentName::Segment(n) => numbers.push(n),
            SegmentName::Odd => {
                return Err(Error::corrupt(
                    disk.path(&name),
                    0,
                    "invalid name of a segment, possibly a copy",
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

/// Returns the headers of existing segments, from `newest` to older segments, up to a maximum of
/// `most`. Skips void segments, because no segment continues them.
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

/// Ensures that recovery reads the device and not only the page cache.
///
/// The header of the newest file, or of several unfinished files, may exist only in the page cache.
/// This happens if its sync failed and the process died before it could remove the file. If the log
/// continued after such a header, the header and the later segments could be lost. Older segments
/// are safe, because they were durable before their successor was created.
fn reload_from_device(disk: &dyn Disk, number: u64) -> Result<()> {
    let name = segment_name(number);
    let path = disk.path(&name);
    let file = disk.open(&name).map_err(|e| Error::io(&path, "opening", e))?;
    file.sync().map_err(|e| Error::io(&path, "syncing", e))?;
    file.drop_cache().map_err(|e| Error::io(&path, "reading", e))
}

/// Whether any part of the file is a valid batch head.
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

/// Result of [`BatchReader::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextBatch {
    /// A valid batch; [`BatchReader::body`] returns its records.
    Batch(BatchHead),
    End,
    /// Bytes that are not a valid batch, with the reason.
    Bad(&'static str),
}

/// Sequential reader of the batches of one segment.
#[derive(Debug)]
pub(crate) struct BatchReader {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    head: SegmentHead,
    size: u64,
    at: Position,
    buffer: Vec<u8>,
    /// File offset of the start of `buffer`.
    buffer_at: u64,
    /// Range in `buffer` of the last batch.
    batch: (usize, usize),
}

impl BatchReader {
    /// Creates a reader that begins at `start`, or at the first batch.
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

    pub(crate) fn position(&self) -> Position {
        self.at
    }

    fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Returns the length of the file as of the last check.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Updates the known length of the file, up to `limit`.
    ///
    /// Bytes after `limit` may still be truncated and rewritten, so the buffer must not contain
    /// them.
    pub(crate) fn read_up_to(&mut self, limit: u64) -> Result<()> {
        let size = self.file.size().map_err(|e| Error::io(&self.path, "measuring", e))?;
        self.size = size.min(limit);
        Ok(())
    }

    pub(crate) fn body(&self) -> &[u8] {
        &self.buffer[self.batch.0 + BATCH_HEAD_BYTES..self.batch.1]
    }

    pub(crate) fn frame(&self) -> &[u8] {
        &self.buffer[self.batch.0..self.batch.1]
    }

    pub(crate) fn next(&mut self) -> Result<NextBatch> {
        let byte = self.at.byte;
        if byte >= self.size {
            return Ok(if byte == self.size {
                NextBatch::End
            } else {
                NextBatch::Bad("the file ends before this position")
            });
        }
        let Some(start) = self.fill(byte, BATCH_HEAD_BYTES)? else {
            return Ok(NextBatch::Bad("the file ends inside a batch header"));
        };
        let place = self.head.place(byte);
        let Some(head) = read_head(&self.buffer[start..], &place) else {
            return Ok(NextBatch::Bad("checksum mismatch of a batch header"));
        };
        if head.previous != self.at.chain {
            return Ok(NextBatch::Bad("a batch does not follow the one before it"));
        }
        if Some(head.sequence) != self.at.sequence.checked_add(1) {
            return Ok(NextBatch::Bad("a gap in the sequence numbers of batches"));
        }
        let Some(start) = self.fill(byte, head.bytes() as usize)? else {
            return Ok(NextBatch::Bad("the file ends inside a batch"));
        };
        let end = start + head.bytes() as usize;
        if !body_matches(&self.buffer[start..], &self.buffer[start + BATCH_HEAD_BYTES..end], &place)
        {
            return Ok(NextBatch::Bad("checksum mismatch of a batch"));
        }
        self.batch = (start, end);
        self.at = Position {
            segment: self.head.segment,
            byte: byte + head.bytes(),
            offset: self.at.offset + head.bytes(),
            sequence: head.sequence,
            chain: head.chain,
        };
        Ok(NextBatch::Batch(head))
    }

    /// Loads `need` bytes at file offset `byte`. Returns their index in the buffer, or `None` if
    /// the file is too short.
    fn fill(&mut self, byte: u64, need: usize) -> Result<Option<usize>> {
        if byte + need as u64 > self.size {
            return Ok(None);
        }
        let have = self.buffer_at + self.buffer.len() as u64;
        if byte >= self.buffer_at && byte + need as u64 <= have {
            return Ok(Some((byte - self.buffer_at) as usize));
        }
        // Keep the overlap with the old buffer and read the rest.
        let kept = if byte >= self.buffer_at && byte < have { (have - byte) as usize } else { 0 };
        let from = self.buffer.len() - kept;
        self.buffer.copy_within(from.., 0);
        self.buffer.truncate(kept);
        let want = need.max(READ_BYTES).min((self.size - byte) as usize);
        self.buffer.resize(want, 0);
        self.buffer_at = byte;
        let n = read_full_at(&*self.file, &mut self.buffer[kept..], byte + kept as u64)
            .map_err(|e| Error::io(&self.path, "reading", e))?;
        self.buffer.truncate(kept + n);
        Ok((self.buffer.len() >= need).then_some(0))
    }

    /// Searches from offset `byte` for a batch head with a valid checksum for which `accept`
    /// returns true. Does not check the body.
    fn scan(&mut self, byte: u64, accept: impl Fn(&BatchHead, u64) -> bool) -> Result<Option<u64>> {
        let mut byte = byte;
        while let Some(start) = self.fill(byte, BATCH_HEAD_BYTES)? {
            // Test `accept` first, because it is cheap and runs for every byte of a damaged tail.
            if accept(&fields(&self.buffer[start..]), byte)
                && read_head(&self.buffer[start..], &self.head.place(byte)).is_some()
            {
                return Ok(Some(byte));
            }
            byte += 1;
        }
        Ok(None)
    }

    /// After [`NextBatch::Bad`] in the newest segment, checks whether the bytes are damaged or a
    /// torn tail. Damaged bytes are followed by a batch that was written after they were durable.
    /// Returns the offset of that batch, if any.
    pub(crate) fn proof_of_damage(&mut self) -> Result<Option<u64>> {
        let bad = self.at;
        if bad.byte >= self.size {
            return Ok(None);
        }
        // Begin after the bad byte. A valid head at that byte only shows that the bytes before it
        // were durable.
        let base = self.head.base;
        self.scan(bad.byte + 1, |head, byte| {
            let offset = base.wrapping_add(byte - SEGMENT_HEAD_BYTES);
            head.sequence > bad.sequence
                && offset.saturating_sub(u64::from(head.unsynced_bytes)) > bad.offset
        })
    }
}

/// Receives each batch of a replay. An error is reported as damage.
pub type ApplyBatch<'a> = dyn FnMut(&BatchHead, &[u8]) -> std::result::Result<(), String> + 'a;

/// Result of a replay.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Position after the last valid batch.
    pub position: Position,
    /// Size in bytes of the torn tail after `position`.
    pub torn_bytes: u64,
    /// Number of replayed batches.
    pub batches: u64,
    /// Number of replayed records.
    pub records: u64,
    /// Number of replayed log bytes.
    pub bytes: u64,
}

/// Purpose of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplayMode {
    /// Startup of a node with its own log.
    Owner,
    /// Startup of a replica. The `unsynced` fields describe the master's disk, so every invalid
    /// tail is truncated (replica_log.rs, F3).
    Follower,
    /// Inspection without syncs: the folder may belong to a running server or be read-only.
    Check,
}

pub(crate) fn replay(
    disk: &dyn Disk,
    path: &Path,
    start: Position,
    reader_is: ReplayMode,
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
            let what =
                format!("extra bytes after the position where segment {} continues", next.segment);
            let file = disk.path(&segment_name(head.segment));
            return Err(Error::corrupt(file, end.position.byte, what));
        }
        progress(end.position);
    }
    Ok(end)
}

/// Opens the path's segment with index `number` at the byte where its replay begins. Checks that
/// the segment continues at `at`, the end of its predecessor.
fn open_segment(
    disk: &dyn Disk,
    head: &SegmentHead,
    next: Option<&SegmentHead>,
    (number, start): (usize, Position),
    at: Position,
    reader_is: ReplayMode,
) -> Result<BatchReader> {
    let name = segment_name(head.segment);
    let file_path = disk.path(&name);
    let file = disk.open(&name).map_err(|e| Error::io(&file_path, "opening", e))?;
    if next.is_none() && reader_is != ReplayMode::Check {
        // The page cache may contain bytes of the newest file that an earlier process failed to
        // sync.
        file.sync().map_err(|e| Error::io(&file_path, "syncing", e))?;
        file.drop_cache().map_err(|e| Error::io(&file_path, "reading", e))?;
    }
    if number > 0 && (head.base, head.sequence, head.chain) != (at.offset, at.sequence, at.chain) {
        let what = format!(
            "it starts at offset {}, but the previous segment ends at {}",
            head.base, at.offset
        );
        return Err(Error::corrupt(file_path, 48, what));
    }
    let from = (number == 0 && start.segment == head.segment).then_some(start);
    let reader = BatchReader::new(file, file_path.clone(), *head, from)?;
    if let Some(next) = next
        && next.base < reader.position().offset
    {
        let what = format!(
            "it ends segment {} at offset {}, before the start of replay",
            head.segment, next.base
        );
        return Err(Error::corrupt(disk.path(&segment_name(next.segment)), 48, what));
    }
    if reader.size() < reader.position().byte {
        // This is not a torn tail, because everything before the replay position was durable.
        let what = format!(
            "the file ends before {start}, where replay starts according to the manifest: \
             acknowledged writes are missing"
        );
        return Err(Error::corrupt(file_path, reader.size(), what));
    }
    Ok(reader)
}

/// Replays the batches of one segment up to the base of `next`, or up to a torn tail.
fn read_segment(
    reader: &mut BatchReader,
    next: Option<&SegmentHead>,
    reader_is: ReplayMode,
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
            NextBatch::Batch(_)
                if next.is_some_and(|next| reader.position().offset > next.base) =>
            {
                "a batch crosses the start of the next segment".to_owned()
            }
            NextBatch::Batch(batch) => {
                apply(&batch, reader.body())
                    .map_err(|what| Error::corrupt(reader.path(), at.byte, what))?;
                end.batches += 1;
                end.records += u64::from(batch.records);
                end.bytes += batch.bytes();
                if reader.position().byte - reported >= READ_BYTES as u64 {
                    reported = reader.position().byte;
                    progress(reader.position());
                }
                continue;
            }
            NextBatch::End => match next {
                None => return Ok(()),
                Some(next) => format!(
                    "it ends at offset {}, but the next segment starts at {}",
                    at.offset, next.base
                ),
            },
            NextBatch::Bad(what) if next.is_some() => what.to_owned(),
            NextBatch::Bad(what) => {
                let proof = match reader_is {
                    ReplayMode::Follower => None,
                    ReplayMode::Owner | ReplayMode::Check => reader.proof_of_damage()?,
                };
                let Some(proof) = proof else {
                    end.torn_bytes = reader.size().saturating_sub(at.byte);
                    return Ok(());
                };
                format!(
                    "{what}; the batch at byte {proof} was written when this position was already \
                     durable"
                )
            }
        };
        return Err(Error::corrupt(reader.path(), at.byte, what));
    }
}
