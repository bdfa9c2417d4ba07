//! Page file v1, also `cold-<number>-<number>.tcold`: pages of 4 KiB that the caller fills to the
//! last bit (a filter's, for example), of which a lookup reads one.
//!
//! ```text
//!   offset  size  field
//!        0     8  magic     "TIDEPAGE"
//!        8     4  version   1
//!       12     4  kind      the server's: what the pages are
//!       16    16  lineage
//!       32     8  identity  the two numbers in the file's name: first * 2^24 + second
//!       40     4  space
//!       44     4  zero
//!       48     8  low       lowest id that the file answers for
//!       56     8  high      highest id that it answers for
//!       64     8  stamp     the server's
//!       72     8  pages
//!       80     8  note      length of the note in bytes
//!       88     4  noted     CRC-32C of (identity, the pages' checksums, the note)
//!       92     4  body      CRC-32C of all behind the head
//!       96    28  zeros
//!      124     4  check     CRC-32C of bytes 0..124
//!      128        zeros up to 4096
//!     4096        pages of 4096 bytes each
//!     then        CRC-32C of each: of (identity, number of the page, the page)
//!     then        the note: the server's, what it must know to find its way in the pages
//! ```
//!
//! Little-endian. A page has no room for a checksum of its own, so they stand together behind the
//! pages, and stay in memory while the file is open: a thousandth of it. Valid only if: (1) magic,
//! version, check, zeros of the head (2) lineage and tag are those that the manifest names (3) the
//! length is what the head says, and the manifest's (4) the check of sums and note (5) every page's
//! check, when it is read (6) the CRC-32C of the whole file = the manifest's; only `tidemark check`
//! and a full sync compare that.
//!
//! Written, named and removed as the files of rows are (`mod.rs`).

use std::path::Path;
use std::sync::Arc;

use super::header::{self, FileIdentity, Head, OpenColdFile, place, put, put_numbers, seal};
use super::{BLOCK_BYTES, MAX_BLOCKS};
use crate::batch::Lineage;
use crate::disk::{Disk, read_full_at};
use crate::error::{Error, Result};
use crate::frame::{Check, u32_at, u64_at};
use crate::immutable_file::Draft;
use crate::manifest::{FileEntry, Role, Tag};

/// Most bytes of a note.
const MAX_NOTE: u64 = 1 << 30;

fn check_of(identity: u64, number: u64, page: &[u8]) -> u32 {
    Check::new().u64(identity).u64(number).bytes(page).value()
}

/// The head of a page file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageHead {
    whose: FileIdentity,
    pub(crate) pages: u64,
    note_bytes: u64,
    note_check: u32,
    pub(super) body_check: u32,
}

impl PageHead {
    pub(super) fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut head = self.whose.encode(Self::MAGIC);
        put_numbers(&mut head, 72, &[self.pages, self.note_bytes]);
        put(&mut head, 88, &self.note_check.to_le_bytes());
        put(&mut head, 92, &self.body_check.to_le_bytes());
        seal(head)
    }

    pub(crate) fn lineage(&self) -> Lineage {
        self.whose.lineage
    }

    pub(crate) fn tag(&self) -> &Tag {
        &self.whose.tag
    }

    /// Where the pages end, and the checksums begin.
    fn sums_at(&self) -> u64 {
        place(self.pages)
    }
}

impl Head for PageHead {
    const MAGIC: &'static [u8; 8] = b"TIDEPAGE";

    fn decode(bytes: &[u8]) -> std::result::Result<PageHead, (u64, &'static str)> {
        let whose =
            FileIdentity::decode(bytes, Self::MAGIC, "it does not begin as a page file does", 96)?;
        if u32_at(bytes, 44) != 0 {
            return Err((44, "a reserved field is not zero"));
        }
        let head = PageHead {
            whose,
            pages: u64_at(bytes, 72),
            note_bytes: u64_at(bytes, 80),
            note_check: u32_at(bytes, 88),
            body_check: u32_at(bytes, 92),
        };
        let range = whose.tag.low <= whose.tag.high;
        let plausible =
            (1..=MAX_BLOCKS).contains(&head.pages) && head.note_bytes <= MAX_NOTE && range;
        if plausible { Ok(head) } else { Err((48, "the head describes an impossible file")) }
    }

    fn whose(&self) -> FileIdentity {
        self.whose
    }

    fn length(&self) -> u64 {
        self.sums_at() + 4 * self.pages + self.note_bytes
    }
}

/// Whether a file, by its first bytes, is one of pages. What cannot be read is none: opening it
/// reports why.
pub(crate) fn is_pages(disk: &dyn Disk, name: &str) -> bool {
    let mut magic = [0; 8];
    let read = disk.open(name).and_then(|file| read_full_at(&*file, &mut magic, 0));
    read.is_ok() && magic == *PageHead::MAGIC
}

/// A page file under construction. Dropped before [`finish`](PageWriter::finish) it leaves nothing.
#[derive(Debug)]
pub struct PageWriter {
    draft: Draft,
    whose: FileIdentity,
    sums: Vec<u8>,
}

impl PageWriter {
    pub(crate) fn create(
        disk: Arc<dyn Disk>,
        lineage: Lineage,
        numbers: (u64, u64),
        tag: Tag,
    ) -> Result<PageWriter> {
        let (draft, whose) = header::begin(disk, lineage, numbers, tag)?;
        Ok(PageWriter { draft, whose, sums: Vec::new() })
    }

    /// Appends pages: a multiple of [`BLOCK_BYTES`].
    pub fn put(&mut self, pages: &[u8]) -> Result<()> {
        let (pages, rest) = pages.as_chunks::<BLOCK_BYTES>();
        assert!(rest.is_empty(), "whole pages");
        for page in pages {
            let number = self.sums.len() as u64 / 4;
            self.sums.extend_from_slice(&check_of(self.whose.identity, number, page).to_le_bytes());
        }
        self.draft.put(pages.as_flattened())?;
        self.draft.sync_if_much()
    }

    /// The two numbers of its name.
    pub fn identity(&self) -> u64 {
        self.whose.identity
    }

    /// The file answers for ids up to `high` only, and not as far as its tag said.
    pub fn end_at(&mut self, high: u64) {
        self.whose.tag.high = high;
    }

    /// Bytes so far: for a budget.
    pub fn bytes(&self) -> u64 {
        self.draft.bytes() + self.sums.len() as u64
    }

    /// Completes the file, makes it durable and gives it its name. The folder is not synced:
    /// [`Store::replace_files`](crate::Store::replace_files) does that.
    pub fn finish(mut self, note: &[u8]) -> Result<FileEntry> {
        self.draft.put(&self.sums)?;
        self.draft.put(note)?;
        let head = PageHead {
            whose: self.whose,
            pages: self.sums.len() as u64 / 4,
            note_bytes: note.len() as u64,
            note_check: Check::new().u64(self.whose.identity).bytes(&self.sums).bytes(note).value(),
            body_check: self.draft.body_check(),
        };
        self.draft.publish(&head.encode(), Role::Cold, self.whose.tag)
    }
}

/// A page file, open for lookups from any thread.
#[derive(Debug)]
pub struct PageFile {
    shelf: OpenColdFile,
    head: PageHead,
    sums: Box<[u8]>,
}

impl PageFile {
    /// Opens a file that the manifest names, and compares it with the manifest's entry. Gives its
    /// note, too.
    pub(crate) fn open(
        disk: &dyn Disk,
        entry: &FileEntry,
        lineage: Lineage,
    ) -> Result<(PageFile, Vec<u8>)> {
        let (mut file, note) = PageFile::open_any(disk, &entry.name)?;
        file.shelf.expect(entry, lineage)?;
        Ok((file, note))
    }

    /// Opens a file by its name alone. Its entry's checksum is then unknown: 0.
    pub(crate) fn open_any(disk: &dyn Disk, name: &str) -> Result<(PageFile, Vec<u8>)> {
        let (shelf, head) = OpenColdFile::open::<PageHead>(disk, name)?;
        let at = head.sums_at();
        let mut sums = vec![0; (head.length() - at) as usize];
        let n = shelf.read_at(&mut sums, at)?;
        if n != sums.len()
            || Check::new().u64(head.whose.identity).bytes(&sums).value() != head.note_check
        {
            return Err(shelf.corrupt(at, "the check of its checksums and its note does not match"));
        }
        let note = sums.split_off(4 * head.pages as usize);
        Ok((PageFile { shelf, head, sums: sums.into() }, note))
    }

    /// What the manifest says of it.
    pub fn entry(&self) -> &FileEntry {
        &self.shelf.entry
    }

    pub(super) fn path(&self) -> &Path {
        &self.shelf.path
    }

    /// Pages.
    pub fn pages(&self) -> u64 {
        self.head.pages
    }

    /// The two numbers of its name.
    pub fn identity(&self) -> u64 {
        self.head.whose.identity
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<PageFile>() + self.sums.len() + self.shelf.memory_bytes()
    }

    pub(crate) fn head(&self) -> &PageHead {
        &self.head
    }

    /// An error that says what is wrong with a page.
    pub fn corrupt(&self, number: u64, what: &str) -> Error {
        self.shelf.corrupt(place(number), what)
    }

    /// Reads and verifies a page: one read of 4 KiB at a multiple of 4 KiB.
    pub fn read(&self, number: u64, page: &mut [u8; BLOCK_BYTES]) -> Result<()> {
        let at = place(number);
        if number >= self.head.pages {
            return Err(self.shelf.corrupt(at, "it has no such page"));
        }
        let n = self.shelf.read_at(page, at)?;
        self.verify_page(number, &page[..n])
    }

    /// Reads and verifies the pages from number `first` on that fill `pages`: one read.
    pub fn read_many(&self, first: u64, pages: &mut [u8]) -> Result<()> {
        let n = self.shelf.read_at(pages, place(first))?;
        let numbered = (first..).zip(pages[..n].chunks(BLOCK_BYTES));
        for (number, page) in numbered {
            self.verify_page(number, page)?;
        }
        if n < pages.len() {
            let end = first + (n / BLOCK_BYTES) as u64;
            return Err(self.shelf.corrupt(place(end), "it has no such page"));
        }
        Ok(())
    }

    /// Verifies a page that was read.
    pub fn verify_page(&self, number: u64, page: &[u8]) -> Result<()> {
        let expected = (number < self.head.pages).then(|| u32_at(&self.sums, 4 * number as usize));
        if page.len() != BLOCK_BYTES || expected != Some(check_of(self.identity(), number, page)) {
            return Err(self.shelf.corrupt(place(number), "the page's checksum does not match"));
        }
        Ok(())
    }

    /// The file is named by no manifest any more: it is removed when the last of its readers lets
    /// go of it.
    pub fn retire(&self, disk: Arc<dyn Disk>) {
        self.shelf.retire(disk);
    }
}
