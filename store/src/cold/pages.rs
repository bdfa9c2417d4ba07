//! Page file format v2: pages of 4 KiB, a checksum for each page, and a note with the caller's
//! index. A lookup reads one page.
//!
//! ```text
//!   offset  size  field
//!        0     8  magic     "TIDECOLD"
//!        8     4  version   2
//!       12     4  kind      kind of the contents, defined by the server
//!       16    16  lineage
//!       32     8  identity  first * 2^24 + second number of the file's name
//!       40     4  space
//!       44     4  rows      1: each page is a block of rows; 0: the caller defines the pages
//!       48     8  low       lowest id of the file's range
//!       56     8  high      highest id of the file's range
//!       64     8  stamp     defined by the server
//!       72     8  pages     1..=2^26
//!       80     8  note      length of the note in bytes
//!       88     4  noted     CRC-32C of (identity, checksums after the pages, note)
//!       92     4  body      CRC-32C of everything after the header
//!       96    28  zero
//!      124     4  check     CRC-32C of bytes 0..124
//!      128        zeros up to 4096
//!     4096        pages of 4096 bytes each
//!     then        except for rows: a checksum of 4 bytes per page
//!     then        note: the caller's index of the pages
//! ```
//!
//! Numbers are little-endian. The checksum of a page is the CRC-32C of (identity, page number, page
//! contents). A block of rows contains its checksum in its first four bytes, which the CRC omits.
//! Other pages, such as filter pages, use every bit, so their checksums follow the last page. An
//! open file caches these checksums, which take a thousandth of the file's size in memory.
//!
//! A file is valid only if:
//!
//! 1. magic, version, check and zeros of the header are correct;
//! 2. lineage and tag equal those of the manifest;
//! 3. the length equals that of the header and of the manifest;
//! 4. the checksum of the note matches;
//! 5. each page's checksum matches when it is read;
//! 6. the CRC-32C of the whole file equals that of the manifest; only `tidemark check`, scrubbing
//!    and a full sync compare it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::batch::Lineage;
use crate::disk::{Disk, DiskFile, read_full_at};
use crate::error::{Error, Result};
use crate::frame::{Check, u32_at, u64_at};
use crate::immutable_file::{self, Draft, Naming, identity_of};
use crate::manifest::{FileEntry, Role, Tag};

/// Size of a page in bytes. A lookup reads one page.
pub const BLOCK_BYTES: usize = 4096;
/// Format version of page files. This release reads no other version.
pub const COLD_VERSION: u32 = 2;
const MAGIC: &[u8; 8] = b"TIDECOLD";
/// Maximum number of pages in a file. This many pages take 256 GiB.
const MAX_PAGES: u64 = 1 << 26;
/// Maximum length of a note in bytes.
const MAX_NOTE_BYTES: u64 = 1 << 30;
/// Length of a page's checksum in bytes.
const SUM_BYTES: usize = 4;
/// Offset of the header's checksum. The bytes from `UNUSED` to the checksum, and the bytes after
/// it, are zero.
const CHECKSUM_OFFSET: usize = 124;
const UNUSED: usize = 96;

const NAMING: Naming = Naming { prefix: "cold-", suffix: ".tcold" };

#[cfg(any(test, fuzzing))]
pub(crate) fn cold_name(number: u64, file: u64) -> String {
    NAMING.name(number, file)
}

pub(crate) fn parse_cold_name(name: &str) -> Option<(u64, u64)> {
    NAMING.numbers(name)
}

pub(super) fn page_offset(number: u64) -> u64 {
    (1 + number) * BLOCK_BYTES as u64
}

fn check_of(identity: u64, number: u64, page: &[u8]) -> u32 {
    Check::new().u64(identity).u64(number).bytes(page).value()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PageFileHead {
    lineage: Lineage,
    identity: u64,
    tag: Tag,
    has_rows: bool,
    pages: u64,
    note_bytes: u64,
    note_check: u32,
    body_check: u32,
}

impl PageFileHead {
    fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut head = [0; BLOCK_BYTES];
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        let Tag { space, kind, low, high, stamp } = self.tag;
        put(0, MAGIC);
        put(16, &self.lineage.0);
        let words = [(8, COLD_VERSION), (12, kind), (40, space), (44, self.has_rows.into())];
        let checks = [(88, self.note_check), (92, self.body_check)];
        words.iter().chain(&checks).for_each(|(at, word)| put(*at, &word.to_le_bytes()));
        put(32, &self.identity.to_le_bytes());
        let numbers = [low, high, stamp, self.pages, self.note_bytes];
        (48..).step_by(8).zip(numbers).for_each(|(at, n)| put(at, &n.to_le_bytes()));
        let check = Check::new().bytes(&head[..CHECKSUM_OFFSET]).value();
        head[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 4].copy_from_slice(&check.to_le_bytes());
        head
    }

    /// Decodes a header. An error contains the offset and the reason.
    fn decode(bytes: &[u8]) -> std::result::Result<PageFileHead, (u64, &'static str)> {
        if bytes.len() < BLOCK_BYTES {
            return Err((bytes.len() as u64, "the file ends inside its header"));
        }
        if &bytes[..8] != MAGIC {
            return Err((0, "not a cold file"));
        }
        if Check::new().bytes(&bytes[..CHECKSUM_OFFSET]).value() != u32_at(bytes, CHECKSUM_OFFSET) {
            return Err((CHECKSUM_OFFSET as u64, "header checksum mismatch"));
        }
        if bytes[UNUSED..CHECKSUM_OFFSET]
            .iter()
            .chain(&bytes[CHECKSUM_OFFSET + 4..])
            .any(|&b| b != 0)
        {
            return Err((UNUSED as u64, "a reserved field is not zero"));
        }
        let mut lineage = [0; 16];
        lineage.copy_from_slice(&bytes[16..32]);
        let head = PageFileHead {
            lineage: Lineage(lineage),
            identity: u64_at(bytes, 32),
            tag: Tag {
                space: u32_at(bytes, 40),
                kind: u32_at(bytes, 12),
                low: u64_at(bytes, 48),
                high: u64_at(bytes, 56),
                stamp: u64_at(bytes, 64),
            },
            has_rows: u32_at(bytes, 44) == 1,
            pages: u64_at(bytes, 72),
            note_bytes: u64_at(bytes, 80),
            note_check: u32_at(bytes, 88),
            body_check: u32_at(bytes, 92),
        };
        let plausible = u32_at(bytes, 44) <= 1
            && (1..=MAX_PAGES).contains(&head.pages)
            && head.note_bytes <= MAX_NOTE_BYTES
            && head.tag.low <= head.tag.high;
        if plausible { Ok(head) } else { Err((44, "the header is inconsistent")) }
    }

    /// Returns the length of the checksums after the pages in bytes.
    fn sums_bytes(&self) -> u64 {
        if self.has_rows { 0 } else { SUM_BYTES as u64 * self.pages }
    }

    fn length(&self) -> u64 {
        page_offset(self.pages) + self.sums_bytes() + self.note_bytes
    }
}

/// Writer of a page file. Removes the file if dropped before [`finish`](PageWriter::finish).
#[derive(Debug)]
pub struct PageWriter {
    draft: Draft,
    lineage: Lineage,
    identity: u64,
    tag: Tag,
    pages: u64,
    /// Checksums of the pages; empty for blocks of rows.
    sums: Vec<u8>,
}

impl PageWriter {
    pub(crate) fn create(
        disk: Arc<dyn Disk>,
        lineage: Lineage,
        (number, file): (u64, u64),
        tag: Tag,
    ) -> Result<PageWriter> {
        let draft = Draft::create(disk, NAMING.name(number, file), BLOCK_BYTES)?;
        let identity = identity_of(number, file);
        Ok(PageWriter { draft, lineage, identity, tag, pages: 0, sums: Vec::new() })
    }

    /// Appends pages. The length must be a multiple of [`BLOCK_BYTES`].
    pub fn put(&mut self, pages: &[u8]) -> Result<()> {
        let (pages, rest) = pages.as_chunks::<BLOCK_BYTES>();
        assert!(rest.is_empty(), "whole pages");
        for page in pages {
            let check = check_of(self.identity, self.pages, page);
            self.sums.extend_from_slice(&check.to_le_bytes());
            self.pages += 1;
        }
        self.draft.put(pages.as_flattened())?;
        self.draft.sync_if_much()
    }

    /// Fills in the checksum of a block of rows and appends the block. All pages of the file must
    /// be blocks of rows.
    pub(super) fn put_block(&mut self, block: &mut [u8; BLOCK_BYTES]) -> Result<()> {
        let check = check_of(self.identity, self.pages, &block[SUM_BYTES..]);
        block[..SUM_BYTES].copy_from_slice(&check.to_le_bytes());
        self.pages += 1;
        self.draft.put(block)?;
        self.draft.sync_if_much()
    }

    /// Returns the identity, which combines the two numbers of the file's name.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    pub(super) fn tag(&self) -> &Tag {
        &self.tag
    }

    /// Lowers the end of the file's id range.
    pub fn end_at(&mut self, high: u64) {
        self.tag.high = high;
    }

    /// Returns the size of the file so far in bytes, for rate limits.
    pub fn bytes(&self) -> u64 {
        self.draft.bytes() + self.sums.len() as u64
    }

    /// Completes the file, syncs it and renames it to its final name. Does not sync the folder;
    /// [`Store::replace_files`](crate::Store::replace_files) does.
    pub fn finish(mut self, note: &[u8]) -> Result<FileEntry> {
        self.draft.put(&self.sums)?;
        self.draft.put(note)?;
        let head = PageFileHead {
            lineage: self.lineage,
            identity: self.identity,
            tag: self.tag,
            has_rows: self.sums.is_empty(),
            pages: self.pages,
            note_bytes: note.len() as u64,
            note_check: Check::new().u64(self.identity).bytes(&self.sums).bytes(note).value(),
            body_check: self.draft.body_check(),
        };
        self.draft.publish(&head.encode(), Role::Cold, self.tag)
    }
}

/// An open page file. Any thread can read from an open file.
#[derive(Debug)]
pub struct PageFile {
    path: PathBuf,
    entry: FileEntry,
    file: Box<dyn DiskFile>,
    head: PageFileHead,
    /// Checksums of the pages; empty for blocks of rows.
    sums: Box<[u8]>,
    /// Disk from which the last reader removes the file. Set when the file is retired.
    retired: OnceLock<Arc<dyn Disk>>,
}

impl PageFile {
    /// Opens a file and compares it with the manifest's entry. Also returns the note.
    pub(crate) fn open(
        disk: &dyn Disk,
        entry: &FileEntry,
        lineage: Lineage,
    ) -> Result<(PageFile, Vec<u8>)> {
        let (mut file, note) = PageFile::open_any(disk, &entry.name)?;
        if file.entry.bytes != entry.bytes {
            return Err(file.corrupt_at(entry.bytes, "its size differs from the manifest"));
        }
        if file.head.lineage != lineage {
            return Err(file.corrupt_at(16, "it belongs to another lineage than the manifest"));
        }
        if file.head.tag != entry.tag {
            return Err(file.corrupt_at(12, "its contents differ from the manifest entry"));
        }
        file.entry.check = entry.check;
        Ok((file, note))
    }

    /// Opens a file by its name, without a manifest entry. The checksum in its entry is unknown and
    /// set to 0.
    pub(crate) fn open_any(disk: &dyn Disk, name: &str) -> Result<(PageFile, Vec<u8>)> {
        let format = (MAGIC, COLD_VERSION);
        let (opened, head) =
            immutable_file::open(disk, name, format, BLOCK_BYTES, PageFileHead::decode)?;
        let immutable_file::OpenedFile { file, path, size, .. } = opened;
        if !NAMING.is_identity(name, head.identity) {
            return Err(Error::corrupt(path, 32, "it was written under another name"));
        }
        if size != head.length() {
            let what = format!("the file has {size} bytes, its header says {}", head.length());
            return Err(Error::corrupt(path, size, what));
        }
        // This call is best effort. Without this hint the kernel may read more than one page per
        // lookup.
        let _ = file.expect_random();
        let at = page_offset(head.pages);
        let mut sums = vec![0; (head.sums_bytes() + head.note_bytes) as usize];
        let n = read_full_at(&*file, &mut sums, at).map_err(|e| Error::io(&path, "reading", e))?;
        let check = Check::new().u64(head.identity).bytes(&sums).value();
        if n != sums.len() || check != head.note_check {
            return Err(Error::corrupt(path, at, "checksum mismatch of the note"));
        }
        let note = sums.split_off(head.sums_bytes() as usize);
        let name = name.to_owned();
        let entry = FileEntry { name, bytes: size, check: 0, role: Role::Cold, tag: head.tag };
        let (sums, retired) = (sums.into(), OnceLock::new());
        Ok((PageFile { path, entry, file, head, sums, retired }, note))
    }

    /// Returns the manifest entry of the file.
    pub fn entry(&self) -> &FileEntry {
        &self.entry
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> u64 {
        self.head.pages
    }

    /// Returns the identity, which combines the two numbers of the file's name.
    pub fn identity(&self) -> u64 {
        self.head.identity
    }

    pub(crate) fn lineage(&self) -> Lineage {
        self.head.lineage
    }

    pub(crate) fn has_rows(&self) -> bool {
        self.head.has_rows
    }

    /// Returns the encoded header and the checksum of everything after it.
    pub(super) fn head(&self) -> ([u8; BLOCK_BYTES], u32) {
        (self.head.encode(), self.head.body_check)
    }

    /// Returns the memory use in bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<PageFile>() + self.sums.len() + self.entry.name.len() + 64
    }

    fn corrupt_at(&self, at: u64, what: &str) -> Error {
        Error::corrupt(&self.path, at, what)
    }

    /// Returns an error about a damaged page.
    pub fn corrupt(&self, number: u64, what: &str) -> Error {
        self.corrupt_at(page_offset(number), what)
    }

    /// Returns an error about the damaged note.
    pub fn corrupt_note(&self, what: &str) -> Error {
        self.corrupt_at(self.entry.bytes - self.head.note_bytes, what)
    }

    /// Reads and verifies a page with one aligned read of 4 KiB.
    pub fn read(&self, number: u64, page: &mut [u8; BLOCK_BYTES]) -> Result<()> {
        self.read_many(number, page)
    }

    /// Reads and verifies consecutive pages, starting at page `first`, with one read.
    pub fn read_many(&self, first: u64, pages: &mut [u8]) -> Result<()> {
        let n = read_full_at(&*self.file, pages, page_offset(first))
            .map_err(|e| Error::io(&self.path, "reading", e))?;
        let mut numbered = (first..).zip(pages[..n].chunks(BLOCK_BYTES));
        numbered.try_for_each(|(number, page)| self.verify(number, page))?;
        if n < pages.len() {
            return Err(self.corrupt(first + (n / BLOCK_BYTES) as u64, "no such page"));
        }
        Ok(())
    }

    /// Verifies the contents of a page.
    pub fn verify(&self, number: u64, page: &[u8]) -> Result<()> {
        let identity = self.head.identity;
        let is_sound = page.len() == BLOCK_BYTES
            && number < self.head.pages
            && if self.head.has_rows {
                u32_at(page, 0) == check_of(identity, number, &page[SUM_BYTES..])
            } else {
                u32_at(&self.sums, SUM_BYTES * number as usize) == check_of(identity, number, page)
            };
        if is_sound {
            return Ok(());
        }
        Err(self.corrupt(number, "checksum mismatch of the page"))
    }

    /// Marks a file that no manifest lists, so that its last reader removes it.
    pub fn retire(&self, disk: Arc<dyn Disk>) {
        let _ = self.retired.set(disk);
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        if let Some(disk) = self.retired.get() {
            // The removal is best effort. If it fails, the next startup removes the file.
            let _ = disk.remove(&self.entry.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimDisk;

    /// Tests both kinds of pages: pages with separate checksums and pages with embedded checksums.
    #[test]
    fn damaged_and_misplaced_pages_are_refused() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
        let mut pages = [1, 2, 3].map(|seed| [seed; BLOCK_BYTES]);
        for (number, has_rows) in [(1, false), (2, true)] {
            let open = |pages: &mut [[u8; BLOCK_BYTES]; 3], file| {
                let names = (number, file);
                let mut writer =
                    PageWriter::create(disk.clone(), Lineage([7; 16]), names, Tag::default())
                        .unwrap();
                for page in pages {
                    let put = if has_rows { writer.put_block(page) } else { writer.put(page) };
                    put.unwrap();
                }
                PageFile::open_any(&*disk, &writer.finish(b"note").unwrap().name).unwrap().0
            };
            let other = open(&mut pages, 1);
            let file = open(&mut pages, 2);
            assert_eq!(file.has_rows(), has_rows);
            for (at, page) in pages.iter().enumerate() {
                assert!(file.verify(at as u64, page).is_ok());
                let is_known = other.verify(at as u64, page).is_ok();
                assert_eq!(is_known, !has_rows, "the other file has other checksums");
                for place in (0..4).filter(|&place| place != at as u64) {
                    assert!(file.verify(place, page).is_err(), "page {at} at place {place}");
                }
            }
            for bit in 0..BLOCK_BYTES * 8 {
                pages[1][bit / 8] ^= 1 << (bit % 8);
                assert!(file.verify(1, &pages[1]).is_err(), "bit {bit}");
                pages[1][bit / 8] ^= 1 << (bit % 8);
            }
            assert!(file.verify(1, &pages[1][1..]).is_err(), "cut short");
        }
    }
}
