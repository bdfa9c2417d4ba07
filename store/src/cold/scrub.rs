//! Scrubbing: reads a whole page file and verifies every checksum. Used by `tidemark check` and by
//! the server's scrubber.
//!
//! The reads bypass the page cache. The cache could return contents from before the damage, and
//! readers are unlikely to need these pages soon. The scrub reports each damaged page and continues
//! with the next page.

use super::pages::{BLOCK_BYTES, PageFile, page_offset};
use super::rows::ColdFile;
use crate::batch::Lineage;
use crate::disk::{BLOCK, Disk, DiskFile, read_full_at};
use crate::error::{Error, Result};
use crate::manifest::FileEntry;

/// Size of a read in bytes. Such a read delays a request's read by a few hundred microseconds on a
/// disk of 500 MB/s.
const READ_BYTES: usize = 32 * BLOCK_BYTES;

/// A part of a file that is damaged or unreadable.
#[derive(Debug)]
pub struct Damage {
    /// Offset of the first byte of the part.
    pub offset: u64,
    /// True if the damaged part is a page; false if it is the header or the data after the pages.
    pub is_block: bool,
    /// Description of the damage.
    pub error: Error,
}

/// Scrub of one file in progress.
#[derive(Debug)]
pub struct Scrub {
    pages: PageFile,
    /// Number of rows or pages, and the name of the unit.
    item_count: (u64, &'static str),
    file: Box<dyn DiskFile>,
    at: u64,
    /// Read buffer. Data begins at index `start`, which is aligned for direct I/O.
    memory: Vec<u8>,
    start: usize,
    /// CRC-32C of the bytes read after the header.
    check: u32,
    /// Whether damage was found, which makes the checksum of the whole file meaningless.
    is_damaged: bool,
}

impl Scrub {
    /// Begins a scrub of a file in the manifest. Reads its header and note, and compares them with
    /// the entry.
    pub fn begin(disk: &dyn Disk, entry: &FileEntry, lineage: Lineage) -> Result<Scrub> {
        let (pages, note) = PageFile::open(disk, entry, lineage)?;
        let (head, body_check) = pages.head();
        let body_bytes = (entry.bytes - BLOCK_BYTES as u64) as usize;
        let whole = crc32c::crc32c_combine(crc32c::crc32c(&head), body_check, body_bytes);
        if whole != entry.check {
            let what = "it is not the file in the manifest";
            return Err(Error::corrupt(disk.path(&entry.name), 0, what));
        }
        Scrub::new(disk, pages, &note)
    }

    /// Begins a scrub of a file without a manifest entry.
    pub(crate) fn begin_any(disk: &dyn Disk, name: &str) -> Result<Scrub> {
        let (pages, note) = PageFile::open_any(disk, name)?;
        Scrub::new(disk, pages, &note)
    }

    fn new(disk: &dyn Disk, mut pages: PageFile, note: &[u8]) -> Result<Scrub> {
        let mut item_count = (pages.pages(), "pages");
        if pages.has_rows() {
            let rows = ColdFile::new(pages, note)?;
            item_count = (rows.head().rows, "rows");
            pages = rows.into_pages();
        }
        let name = &pages.entry().name;
        let file =
            disk.open_uncached(name).map_err(|e| Error::io(disk.path(name), "opening", e))?;
        let mut memory: Vec<u8> = Vec::with_capacity(READ_BYTES + BLOCK);
        let start = memory.as_ptr().align_offset(BLOCK).min(BLOCK);
        // The new size is within the capacity, so the memory does not move.
        memory.resize(start + READ_BYTES, 0);
        let (at, check, is_damaged) = Default::default();
        Ok(Scrub { pages, item_count, file, at, memory, start, check, is_damaged })
    }

    /// Reads the next part of the file and adds its damage to `found`. Returns the number of bytes
    /// read, or 0 at the end of the file.
    pub fn step(&mut self, found: &mut Vec<Damage>) -> u64 {
        let (from, total) = (self.at, self.pages.entry().bytes);
        let wanted = (total - from).min(READ_BYTES as u64) as usize;
        if wanted == 0 {
            return 0;
        }
        let before = found.len();
        let piece = &mut self.memory[self.start..][..READ_BYTES];
        let whole = read_full_at(&*self.file, piece, from).is_ok_and(|n| n >= wanted);
        for at in (0..wanted).step_by(BLOCK_BYTES) {
            let offset = from + at as u64;
            let bytes = BLOCK_BYTES.min(wanted - at);
            // If the read fails, single pages may still be readable.
            let read = match whole {
                true => Ok(bytes),
                false => {
                    let block = &mut self.memory[self.start + at..][..BLOCK_BYTES];
                    read_full_at(&*self.file, block, offset)
                }
            };
            let verified = match read {
                Ok(n) => self.verify(offset, at, n.min(bytes), bytes),
                Err(error) => Err(Error::io(self.pages.path(), "reading", error)),
            };
            let is_block = (page_offset(0)..page_offset(self.pages.pages())).contains(&offset);
            found.extend(verified.err().map(|error| Damage { offset, is_block, error }));
        }
        self.at += wanted as u64;
        self.is_damaged |= found.len() > before;
        if self.at == total && !self.is_damaged && self.check != self.pages.head().1 {
            let what = "the data after the blocks has changed";
            let offset = page_offset(self.pages.pages());
            let error = Error::corrupt(self.pages.path(), offset, what);
            found.push(Damage { offset, is_block: false, error });
        }
        wanted as u64
    }

    /// Verifies a page or a part of a page: `n` bytes at index `at` of the buffer, from `offset` in
    /// the file. Reports damage if `n` is less than `wanted`.
    fn verify(&mut self, offset: u64, at: usize, n: usize, wanted: usize) -> Result<()> {
        let bytes = &self.memory[self.start + at..][..n];
        let corrupt = |what| Err(Error::corrupt(self.pages.path(), offset, what));
        if n < wanted {
            return corrupt("the file is truncated");
        }
        if offset == 0 {
            let is_same = bytes == self.pages.head().0;
            return if is_same { Ok(()) } else { corrupt("the header has changed") };
        }
        self.check = crc32c::crc32c_append(self.check, bytes);
        let number = offset / BLOCK_BYTES as u64 - 1;
        if number < self.pages.pages() { self.pages.verify(number, bytes) } else { Ok(()) }
    }

    /// Reads the whole file. Returns the number of rows or pages, and the name of the unit.
    pub(crate) fn run(mut self, found: &mut Vec<Damage>) -> (u64, &'static str) {
        while self.step(found) > 0 {}
        self.item_count
    }
}
