//! Snapshot file format v1, `snap-<snapshot number>-<file number>.tsnap`. A file contains one table
//! or a part of it, as read by a walk over the table.
//!
//! ```text
//!   offset  size  field
//!        0     8  magic     "TIDESNAP"
//!        8     4  version   1
//!       12     4  kind      kind of the records, defined by the server
//!       16    16  lineage
//!       32     8  identity  snapshot number * 2^24 + file number, as in the file's name
//!       40     4  space
//!       44     4  zero
//!       48     8  low       lowest id of the file's range
//!       56     8  high      highest id of the file's range
//!       64     8  stamp     version of the table when the walk began
//!       72     8  body      length of the chunks in bytes
//!       80     4  zero
//!       84     4  check     CRC-32C of bytes 0..84
//!       88        chunks: frames (frame.rs), context (identity, number of the chunk from 0)
//!     then     4  zero      end of the body: no frame has length 0
//!              4  chunks    number of chunks
//!              8  rows      number of rows according to the writer
//!              4  total     CRC-32C of all bytes before the footer
//!              4  check     CRC-32C of (identity, the footer's first 20 bytes)
//! ```
//!
//! Numbers are little-endian. A chunk contains whole rows, so threads can decode chunks in any
//! order.
//!
//! A file is valid only if:
//!
//! 1. magic, version and check of the header are correct;
//! 2. lineage and tag equal those of the manifest;
//! 3. the file's length is 88 + body + 24 and equals that of the manifest;
//! 4. the check of every chunk matches;
//! 5. chunks, total and check of the footer are correct;
//! 6. the CRC-32C of the whole file equals that of the manifest.
//!
//! The writer uses the name plus `.tmp` and writes the header last, because it contains the length
//! of the body. The writer then syncs and renames the file and syncs the folder, before a manifest
//! lists the file. A published file never changes. A snapshot file is removed once no manifest
//! lists it.
//!
//! **Why a walk concurrent with writes gives a correct snapshot** (promise 2). The manifest
//! contains a log position P, the durable end of the log at some time before the walk. If the walk
//! missed a change, the change happened later, so its record is after P and will be replayed. If
//! the walk saw a change, its replay is harmless, because records contain state. The walk may also
//! have seen a change that is not in the log yet, perhaps half of an action. Therefore the snapshot
//! is published only after all marks made before the end of the walk are durable in the log.
//! [`SnapshotWriter::commit`](crate::SnapshotWriter::commit) receives that log position.

use std::sync::Arc;

use crate::batch::Lineage;
use crate::disk::{Disk, DiskFile, read_full_at};
use crate::error::{Error, Result};
use crate::frame::{Check, FRAME_BYTES, Frame, frame_head, read_frame, u32_at, u64_at};
use crate::immutable_file::{self, Draft, Naming, OpenedFile, identity_of};
use crate::manifest::{FileEntry, Role, Tag};

const MAGIC: &[u8; 8] = b"TIDESNAP";
/// Snapshot format version that this release writes, and the newest that it reads.
pub const SNAPSHOT_VERSION: u32 = 1;
const HEADER_BYTES: usize = 88;
const FOOTER_BYTES: usize = 24;

/// Maximum size of a chunk in bytes.
pub const MAX_CHUNK_BYTES: usize = 16 << 20;

const NAMING: Naming = Naming { prefix: "snap-", suffix: ".tsnap" };

pub(crate) fn snapshot_name(manifest: u64, file: u64) -> String {
    NAMING.name(manifest, file)
}

pub(crate) fn parse_snapshot_name(name: &str) -> Option<(u64, u64)> {
    NAMING.numbers(name)
}

fn chunk_context(identity: u64, chunk: u32) -> Check {
    Check::new().u64(identity).u32(chunk)
}

/// Returns the number of rows in a file according to its footer, as a hint for allocations.
///
/// The footer is not verified, so the hint is limited to one row per two bytes.
pub fn row_hint(disk: &dyn Disk, entry: &FileEntry) -> u64 {
    let mut foot = [0; FOOTER_BYTES];
    let at = entry.bytes.saturating_sub(FOOTER_BYTES as u64);
    match disk.open(&entry.name).and_then(|file| read_full_at(&*file, &mut foot, at)) {
        Ok(FOOTER_BYTES) => u64_at(&foot, 8).min(entry.bytes / 2),
        _ => 0,
    }
}

/// Writer of one snapshot file. Removes the file if dropped before
/// [`finish`](SnapshotFileWriter::finish).
#[derive(Debug)]
pub struct SnapshotFileWriter {
    draft: Draft,
    lineage: Lineage,
    identity: u64,
    tag: Tag,
    chunks: u32,
    rows: u64,
    keep_free: u64,
}

impl SnapshotFileWriter {
    /// Creates a file. Its writes fail with [`Error::Full`] if fewer than `keep_free` bytes are
    /// free on the disk.
    pub(crate) fn create(
        disk: Arc<dyn Disk>,
        lineage: Lineage,
        (manifest, number): (u64, u64),
        tag: Tag,
        keep_free: u64,
    ) -> Result<SnapshotFileWriter> {
        let draft = Draft::create(disk, snapshot_name(manifest, number), HEADER_BYTES)?;
        Ok(SnapshotFileWriter {
            draft,
            lineage,
            identity: identity_of(manifest, number),
            tag,
            chunks: 0,
            rows: 0,
            keep_free,
        })
    }

    /// Appends a chunk of whole rows. Its size is 1 to [`MAX_CHUNK_BYTES`] bytes, ideally 64 to 256
    /// KiB.
    pub fn write(&mut self, chunk: &[u8], rows: u64) -> Result<()> {
        if chunk.is_empty() || chunk.len() > MAX_CHUNK_BYTES {
            return Err(Error::Refused(format!(
                "a chunk of {} bytes; the limits are 1 to {MAX_CHUNK_BYTES}",
                chunk.len()
            )));
        }
        self.draft.leave_free(self.keep_free)?;
        let head: [u8; FRAME_BYTES] = frame_head(chunk_context(self.identity, self.chunks), chunk);
        self.draft.put(&head)?;
        self.draft.put(chunk)?;
        self.chunks = self
            .chunks
            .checked_add(1)
            .ok_or_else(|| Error::Refused("more than 2^32 chunks".to_string()))?;
        self.rows += rows;
        self.draft.sync_if_much()
    }

    /// Returns the size of the file so far in bytes, for rate limits.
    pub fn bytes(&self) -> u64 {
        self.draft.bytes()
    }

    /// Returns the number of rows written so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Completes and syncs the file, and renames it to its final name.
    pub fn finish(mut self) -> Result<FileEntry> {
        let body = self.draft.body_bytes();
        let mut head = [0; HEADER_BYTES];
        head[0..8].copy_from_slice(MAGIC);
        head[8..12].copy_from_slice(&SNAPSHOT_VERSION.to_le_bytes());
        head[12..16].copy_from_slice(&self.tag.kind.to_le_bytes());
        head[16..32].copy_from_slice(&self.lineage.0);
        head[32..40].copy_from_slice(&self.identity.to_le_bytes());
        head[40..44].copy_from_slice(&self.tag.space.to_le_bytes());
        head[48..56].copy_from_slice(&self.tag.low.to_le_bytes());
        head[56..64].copy_from_slice(&self.tag.high.to_le_bytes());
        head[64..72].copy_from_slice(&self.tag.stamp.to_le_bytes());
        head[72..80].copy_from_slice(&body.to_le_bytes());
        let check = Check::new().bytes(&head[..84]).value();
        head[84..88].copy_from_slice(&check.to_le_bytes());

        let total = self.draft.check(&head);
        let mut foot = [0; FOOTER_BYTES];
        foot[4..8].copy_from_slice(&self.chunks.to_le_bytes());
        foot[8..16].copy_from_slice(&self.rows.to_le_bytes());
        foot[16..20].copy_from_slice(&total.to_le_bytes());
        let check = Check::new().u64(self.identity).bytes(&foot[..20]).value();
        foot[20..24].copy_from_slice(&check.to_le_bytes());

        self.draft.put(&foot)?;
        self.draft.publish(&head, Role::Snapshot, self.tag)
    }
}

/// Header of a snapshot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotHead {
    /// Lineage of the data set.
    pub lineage: Lineage,
    /// Identity, which combines the two numbers of the file's name.
    pub identity: u64,
    /// Attributes that the server defines.
    pub tag: Tag,
    /// Length of the chunks in bytes.
    pub body_bytes: u64,
}

impl SnapshotHead {
    /// Decodes a header. An error contains the byte offset and the reason.
    fn decode(bytes: &[u8]) -> std::result::Result<SnapshotHead, (u64, String)> {
        if bytes.len() < HEADER_BYTES {
            return Err((bytes.len() as u64, "the file ends inside its header".to_string()));
        }
        if &bytes[..8] != MAGIC {
            return Err((0, "not a snapshot file".to_string()));
        }
        if Check::new().bytes(&bytes[..84]).value() != u32_at(bytes, 84) {
            return Err((84, "checksum mismatch of the header".to_string()));
        }
        if u32_at(bytes, 44) != 0 || u32_at(bytes, 80) != 0 {
            return Err((44, "a reserved field is not zero".to_string()));
        }
        let mut lineage = [0; 16];
        lineage.copy_from_slice(&bytes[16..32]);
        let tag = Tag {
            space: u32_at(bytes, 40),
            kind: u32_at(bytes, 12),
            low: u64_at(bytes, 48),
            high: u64_at(bytes, 56),
            stamp: u64_at(bytes, 64),
        };
        Ok(SnapshotHead {
            lineage: Lineage(lineage),
            identity: u64_at(bytes, 32),
            tag,
            body_bytes: u64_at(bytes, 72),
        })
    }
}

/// Reader of a snapshot file, chunk by chunk. Returns only verified chunks.
#[derive(Debug)]
pub struct SnapshotReader {
    file: Box<dyn DiskFile>,
    path: std::path::PathBuf,
    head: SnapshotHead,
    size: u64,
    /// CRC-32C of the whole file according to the manifest.
    expected: Option<u32>,
    at: u64,
    chunks: u32,
    running: u32,
    rows: u64,
    done: bool,
}

/// Reads the whole contents of a small file.
pub fn read_small(disk: &dyn Disk, entry: &FileEntry, lineage: Lineage) -> Result<Vec<u8>> {
    let mut reader = SnapshotReader::open(disk, &entry.name, Some((entry, lineage)))?;
    let (mut content, mut chunk) = (Vec::new(), Vec::new());
    while reader.next(&mut chunk)? {
        content.extend_from_slice(&chunk);
    }
    Ok(content)
}

impl SnapshotReader {
    /// Opens a file by name. `expect` is the manifest's entry and lineage that the file must match.
    pub fn open(
        disk: &dyn Disk,
        name: &str,
        expect: Option<(&FileEntry, Lineage)>,
    ) -> Result<SnapshotReader> {
        let format = (MAGIC, SNAPSHOT_VERSION);
        let (OpenedFile { file, path, size, head: bytes }, head) =
            immutable_file::open(disk, name, format, HEADER_BYTES, SnapshotHead::decode)?;
        if !NAMING.is_identity(name, head.identity) {
            return Err(Error::corrupt(path, 32, "it was written under another name"));
        }
        if Some(size) != head.body_bytes.checked_add((HEADER_BYTES + FOOTER_BYTES) as u64) {
            return Err(Error::corrupt(
                path,
                size,
                format!(
                    "the file has {size} bytes, its header says {} + {}",
                    head.body_bytes,
                    HEADER_BYTES + FOOTER_BYTES
                ),
            ));
        }
        if let Some((entry, lineage)) = expect {
            if size != entry.bytes {
                return Err(Error::corrupt(
                    path,
                    size,
                    format!("the file has {size} bytes, the manifest says {}", entry.bytes),
                ));
            }
            if head.lineage != lineage {
                return Err(Error::corrupt(
                    path,
                    16,
                    format!(
                        "it belongs to lineage {}, but the manifest to {lineage}",
                        head.lineage
                    ),
                ));
            }
            if head.tag != entry.tag {
                return Err(Error::corrupt(
                    path,
                    12,
                    "its contents differ from the manifest entry",
                ));
            }
        }
        let running = crc32c::crc32c(&bytes);
        let expected = expect.map(|(entry, _)| entry.check);
        Ok(SnapshotReader {
            file,
            path,
            head,
            size,
            expected,
            at: HEADER_BYTES as u64,
            chunks: 0,
            running,
            rows: 0,
            done: false,
        })
    }

    /// Returns the header.
    pub fn head(&self) -> &SnapshotHead {
        &self.head
    }

    /// Returns the number of rows. The number is available only after the last chunk has been read.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the byte offset of the next chunk.
    pub fn at(&self) -> u64 {
        self.at
    }

    fn corrupt(&self, at: u64, what: &str) -> Error {
        Error::corrupt(&self.path, at, what)
    }

    /// Reads the next chunk into `chunk`. Returns false at the end, after verifying the totals.
    pub fn next(&mut self, chunk: &mut Vec<u8>) -> Result<bool> {
        if self.done {
            return Ok(false);
        }
        let mut head = [0; FRAME_BYTES];
        let foot_at = self.size - FOOTER_BYTES as u64;
        if self.at > foot_at {
            return Err(self.corrupt(self.at, "a chunk overlaps the footer"));
        }
        if self.at == foot_at {
            self.finish()?;
            return Ok(false);
        }
        self.read(&mut head, self.at)?;
        let n = u32_at(&head, 0) as usize;
        let next = self.at + (FRAME_BYTES + n) as u64;
        if n == 0 || n > MAX_CHUNK_BYTES || next > foot_at {
            return Err(self.corrupt(self.at, "chunk length out of bounds"));
        }
        chunk.clear();
        chunk.resize(FRAME_BYTES + n, 0);
        self.read(chunk, self.at)?;
        match read_frame(chunk_context(self.head.identity, self.chunks), chunk, MAX_CHUNK_BYTES) {
            Frame::Whole(..) => {}
            Frame::Part(_) => return Err(self.corrupt(self.at, "truncated chunk")),
            Frame::Bad(what) => return Err(self.corrupt(self.at, what)),
        }
        self.running = crc32c::crc32c_append(self.running, chunk);
        chunk.drain(..FRAME_BYTES);
        self.chunks += 1;
        self.at = next;
        Ok(true)
    }

    fn finish(&mut self) -> Result<()> {
        let mut foot = [0; FOOTER_BYTES];
        self.read(&mut foot, self.at)?;
        let sound = u32_at(&foot, 0) == 0
            && Check::new().u64(self.head.identity).bytes(&foot[..20]).value() == u32_at(&foot, 20);
        if !sound {
            return Err(self.corrupt(self.at, "checksum mismatch of the footer"));
        }
        if u32_at(&foot, 4) != self.chunks {
            return Err(self.corrupt(self.at, "the chunk count differs from the footer"));
        }
        if u32_at(&foot, 16) != self.running {
            return Err(self.corrupt(self.at, "mismatch of the total checksum"));
        }
        if self.expected.is_some_and(|check| check != crc32c::crc32c_append(self.running, &foot)) {
            return Err(self.corrupt(self.at, "it is not the file in the manifest"));
        }
        self.rows = u64_at(&foot, 8);
        self.done = true;
        Ok(())
    }

    fn read(&self, buffer: &mut [u8], at: u64) -> Result<()> {
        let n = crate::disk::read_full_at(&*self.file, buffer, at)
            .map_err(|e| Error::io(&self.path, "reading", e))?;
        if n == buffer.len() {
            Ok(())
        } else {
            Err(self.corrupt(at + n as u64, "the file ends too early"))
        }
    }
}
