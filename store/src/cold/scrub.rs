//! Scrubbing: a cold file is read through, piece by piece, past the system's cache, and every
//! checksum in it is compared. For `tidemark check`, and for the scrubber of a server.
//!
//! The cache would answer with what was read before the disk spoiled it, and what is read here is
//! not needed soon. Damage in one block does not end the scrub: the other blocks are still of use,
//! so each damaged one is named.

use super::header::{Head as _, place};
use super::{BLOCK_BYTES, ColdFile, PageFile, is_pages};
use crate::batch::Lineage;
use crate::disk::{BLOCK, Disk, DiskFile, read_full_at};
use crate::error::{Error, Result};
use crate::manifest::FileEntry;

/// Bytes that are read together: they hold up a request's read for some hundred microseconds on a
/// disk that gives 500 MB/s.
const PIECE: usize = 32 * BLOCK_BYTES;

/// A part of a file that cannot be read.
#[derive(Debug)]
pub struct Damage {
    /// The byte at which it begins.
    pub offset: u64,
    /// Whether it is a block of what the file holds, and not what says where that lies: the head,
    /// or what stands behind the blocks.
    pub is_block: bool,
    /// What is wrong there.
    pub error: Error,
}

#[derive(Debug)]
enum Body {
    Rows { file: Box<ColdFile>, rows: u64, last: Option<u64>, ids: Vec<u64>, values: Vec<i64> },
    Pages(Box<PageFile>),
}

/// The scrub of one file, under way.
#[derive(Debug)]
pub struct Scrub {
    body: Body,
    file: Box<dyn DiskFile>,
    head: [u8; BLOCK_BYTES],
    bytes: u64,
    /// So much has been read.
    at: u64,
    /// From `start` on one piece, at an address from which a read can go past the system's cache.
    memory: Vec<u8>,
    start: usize,
    /// CRC-32C of what is behind the head, as far as it was read; then what it is to be.
    check: u32,
    body_check: u32,
    /// Whether any damage was found: then the checksum of the whole says nothing more.
    is_damaged: bool,
}

impl Scrub {
    /// Begins with a file that the manifest names: reads its head and index, and compares them with
    /// the manifest's entry.
    pub fn begin(disk: &dyn Disk, entry: &FileEntry, lineage: Lineage) -> Result<Scrub> {
        let body = if is_pages(disk, &entry.name) {
            Body::Pages(Box::new(PageFile::open(disk, entry, lineage)?.0))
        } else {
            Body::rows(ColdFile::open(disk, entry, lineage)?)
        };
        let scrub = Scrub::of(body, disk, &entry.name)?;
        let whole = crc32c::crc32c_combine(
            crc32c::crc32c(&scrub.head),
            scrub.body_check,
            (scrub.bytes - BLOCK as u64) as usize,
        );
        match whole == entry.check {
            true => Ok(scrub),
            false => Err(Error::corrupt(
                disk.path(&entry.name),
                0,
                "it is not the file that the manifest names",
            )),
        }
    }

    /// The same with a file of which nothing is known but its name.
    pub(crate) fn begin_any(disk: &dyn Disk, name: &str) -> Result<Scrub> {
        let body = if is_pages(disk, name) {
            Body::Pages(Box::new(PageFile::open_any(disk, name)?.0))
        } else {
            Body::rows(ColdFile::open_any(disk, name)?)
        };
        Scrub::of(body, disk, name)
    }

    fn of(body: Body, disk: &dyn Disk, name: &str) -> Result<Scrub> {
        let file =
            disk.open_uncached(name).map_err(|e| Error::io(disk.path(name), "opening", e))?;
        let (head, bytes, body_check) = match &body {
            Body::Rows { file, .. } => {
                (file.head.encode(), file.head.length(), file.head.body_check)
            }
            Body::Pages(file) => {
                let head = file.head();
                (head.encode(), head.length(), head.body_check)
            }
        };
        let mut memory: Vec<u8> = Vec::with_capacity(PIECE + BLOCK);
        let start = memory.as_ptr().align_offset(BLOCK).min(BLOCK);
        // Within its capacity, so it stays where it is.
        memory.resize(start + PIECE, 0);
        let (at, check, is_damaged) = Default::default();
        Ok(Scrub { body, file, head, bytes, at, memory, start, check, body_check, is_damaged })
    }

    /// Reads the next piece; gives its bytes, 0 at the end. What is damaged goes to `found`.
    pub fn step(&mut self, found: &mut Vec<Damage>) -> u64 {
        let from = self.at;
        let wanted = (self.bytes - from).min(PIECE as u64) as usize;
        if wanted == 0 {
            return 0;
        }
        let before = found.len();
        let piece = &mut self.memory[self.start..][..PIECE];
        let whole = read_full_at(&*self.file, piece, from).is_ok_and(|n| n >= wanted);
        for at in (0..wanted).step_by(BLOCK_BYTES) {
            let offset = from + at as u64;
            let bytes = BLOCK_BYTES.min(wanted - at);
            // What could not be read together may be readable one by one.
            let read = match whole {
                true => Ok(bytes),
                false => {
                    let block = &mut self.memory[self.start + at..][..BLOCK_BYTES];
                    read_full_at(&*self.file, block, offset)
                }
            };
            let looked = match read {
                Ok(n) => self.look(offset, at, n.min(bytes), bytes),
                Err(error) => Err(Error::io(self.body.path(), "reading", error)),
            };
            let is_block = (BLOCK_BYTES as u64..place(self.body.blocks())).contains(&offset);
            found.extend(looked.err().map(|error| Damage { offset, is_block, error }));
        }
        self.at += wanted as u64;
        self.is_damaged |= found.len() > before;
        if self.at == self.bytes && !self.is_damaged {
            found.extend(self.end().err());
        }
        wanted as u64
    }

    /// Compares `n` bytes that were read, of as many as there should be, from a byte of the file
    /// on, which lie at a byte of the piece.
    fn look(&mut self, offset: u64, at: usize, n: usize, wanted: usize) -> Result<()> {
        let bytes = &self.memory[self.start + at..][..n];
        let corrupt = |path, what: &str| Err(Error::corrupt(path, offset, what));
        if n < wanted {
            return corrupt(self.body.path(), "it is cut short");
        }
        if offset == 0 {
            return match bytes == self.head {
                true => Ok(()),
                false => corrupt(self.body.path(), "the head is not as it was written"),
            };
        }
        self.check = crc32c::crc32c_append(self.check, bytes);
        let number = offset / BLOCK_BYTES as u64 - 1;
        if number < self.body.blocks() { self.body.look(number, bytes) } else { Ok(()) }
    }

    /// At the end of a file of which all blocks are as they should be.
    fn end(&self) -> std::result::Result<(), Damage> {
        let damage = |offset, what: &str| {
            let error = Error::corrupt(self.body.path(), offset, what);
            Err(Damage { offset, is_block: false, error })
        };
        if let Body::Rows { file, rows, last, .. } = &self.body
            && (*rows != file.head.rows || *last != Some(file.head.last))
        {
            return damage(80, "it holds other rows than its head says");
        }
        if self.check != self.body_check {
            let what = "what stands behind the blocks is not as it was written";
            return damage(place(self.body.blocks()), what);
        }
        Ok(())
    }

    /// Reads the whole file. Gives its rows, or pages, and the word for them.
    pub(crate) fn run(mut self, found: &mut Vec<Damage>) -> (u64, &'static str) {
        while self.step(found) > 0 {}
        match &self.body {
            Body::Rows { file, .. } => (file.head.rows, "rows"),
            Body::Pages(file) => (file.pages(), "pages"),
        }
    }
}

impl Body {
    fn rows(file: ColdFile) -> Body {
        let (rows, last, ids, values) = Default::default();
        Body::Rows { file: Box::new(file), rows, last, ids, values }
    }

    fn path(&self) -> &std::path::Path {
        match self {
            Body::Rows { file, .. } => file.path(),
            Body::Pages(file) => file.path(),
        }
    }

    fn blocks(&self) -> u64 {
        match self {
            Body::Rows { file, .. } => file.head.blocks,
            Body::Pages(file) => file.pages(),
        }
    }

    fn look(&mut self, number: u64, bytes: &[u8]) -> Result<()> {
        match self {
            Body::Rows { file, rows, last, ids, values } => {
                let before = last.take();
                file.take_rows(number, bytes, before, ids, values)?;
                *rows += ids.len() as u64;
                *last = ids.last().copied();
                Ok(())
            }
            Body::Pages(file) => file.verify_page(number, bytes),
        }
    }
}
