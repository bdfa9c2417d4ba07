//! Page file v1, also `cold-<number>-<number>.tcold`: pages of 4 KiB that somebody else fills to the last bit, a filter's say, of which a lookup
//! reads one.
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
//! Little-endian. A page has no room for a checksum of its own, so they stand together behind the pages, and stay in memory while the file is open:
//! a thousandth of it. Valid only if: (1) magic, version, check, zeros of the head (2) lineage and tag are those that the manifest names (3) the
//! length is what the head says, and the manifest's (4) the check of sums and note (5) every page's check, when it is read (6) the CRC-32C
//! of the whole file = the manifest's; only `tidemark check` and a full sync compare that.
//!
//! Written, named and removed as the files of rows are (`mod.rs`).

use std::sync::{Arc, OnceLock};

use super::{BLOCK_BYTES, MAX_BLOCKS, cold_name, identity_of, parse_cold_name};
use crate::batch::Lineage;
use crate::disk::{Disk, DiskFile, read_full_at};
use crate::error::{Error, Result};
use crate::frame::{Check, u32_at, u64_at};
use crate::manifest::{FileEntry, Role, Tag};
use crate::once::{self, Draft, Opened};

const MAGIC: &[u8; 8] = b"TIDEPAGE";
const VERSION: u32 = 1;
/// Most bytes of a note.
const MAX_NOTE: u64 = 1 << 30;

fn check_of(identity: u64, number: u64, page: &[u8]) -> u32 {
    Check::new().u64(identity).u64(number).bytes(page).value()
}

/// The head of a page file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageHead {
    pub(crate) lineage: Lineage,
    identity: u64,
    pub(crate) tag: Tag,
    pub(crate) pages: u64,
    note_bytes: u64,
    note_check: u32,
    body_check: u32,
}

impl PageHead {
    fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut head = [0; BLOCK_BYTES];
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &self.tag.kind.to_le_bytes());
        put(16, &self.lineage.0);
        put(32, &self.identity.to_le_bytes());
        put(40, &self.tag.space.to_le_bytes());
        for (i, number) in
            [self.tag.low, self.tag.high, self.tag.stamp, self.pages, self.note_bytes].into_iter().enumerate()
        {
            put(48 + 8 * i, &number.to_le_bytes());
        }
        put(88, &self.note_check.to_le_bytes());
        put(92, &self.body_check.to_le_bytes());
        let check = Check::new().bytes(&head[..124]).value();
        head[124..128].copy_from_slice(&check.to_le_bytes());
        head
    }

    fn decode(bytes: &[u8]) -> std::result::Result<PageHead, (u64, &'static str)> {
        if bytes.len() < BLOCK_BYTES {
            return Err((bytes.len() as u64, "it ends inside its head"));
        }
        if &bytes[..8] != MAGIC {
            return Err((0, "it does not begin as a page file does"));
        }
        if Check::new().bytes(&bytes[..124]).value() != u32_at(bytes, 124) {
            return Err((124, "the head's checksum does not match"));
        }
        if u32_at(bytes, 44) != 0 || bytes[96..124].iter().chain(&bytes[128..]).any(|&b| b != 0) {
            return Err((44, "a reserved field is not zero"));
        }
        let mut lineage = [0; 16];
        lineage.copy_from_slice(&bytes[16..32]);
        let (low, high) = (u64_at(bytes, 48), u64_at(bytes, 56));
        let head = PageHead {
            lineage: Lineage(lineage),
            identity: u64_at(bytes, 32),
            tag: Tag { space: u32_at(bytes, 40), kind: u32_at(bytes, 12), low, high, stamp: u64_at(bytes, 64) },
            pages: u64_at(bytes, 72),
            note_bytes: u64_at(bytes, 80),
            note_check: u32_at(bytes, 88),
            body_check: u32_at(bytes, 92),
        };
        let plausible = (1..=MAX_BLOCKS).contains(&head.pages) && head.note_bytes <= MAX_NOTE && low <= high;
        if plausible { Ok(head) } else { Err((48, "the head describes an impossible file")) }
    }

    /// Where the pages end, and the checksums begin.
    fn sums_at(&self) -> u64 {
        (1 + self.pages) * BLOCK_BYTES as u64
    }

    fn end(&self) -> u64 {
        self.sums_at() + 4 * self.pages + self.note_bytes
    }
}

/// Whether a file, by its first bytes, is one of pages. What cannot be read is none: whoever opens it says why.
pub(crate) fn is_pages(disk: &dyn Disk, name: &str) -> bool {
    let mut magic = [0; 8];
    let read = disk.open(name).and_then(|file| read_full_at(&*file, &mut magic, 0));
    read.is_ok() && magic == *MAGIC
}

/// A page file under construction. Dropped before [`finish`](PageWriter::finish) it leaves nothing.
#[derive(Debug)]
pub struct PageWriter {
    draft: Draft,
    lineage: Lineage,
    identity: u64,
    tag: Tag,
    sums: Vec<u8>,
}

impl PageWriter {
    pub(crate) fn create(
        disk: Arc<dyn Disk>,
        lineage: Lineage,
        number: u64,
        file: u64,
        tag: Tag,
    ) -> Result<PageWriter> {
        let draft = Draft::create(disk, cold_name(number, file), BLOCK_BYTES)?;
        Ok(PageWriter { draft, lineage, identity: identity_of(number, file), tag, sums: Vec::new() })
    }

    /// Appends pages: a multiple of [`BLOCK_BYTES`].
    pub fn put(&mut self, pages: &[u8]) -> Result<()> {
        let (pages, rest) = pages.as_chunks::<BLOCK_BYTES>();
        assert!(rest.is_empty(), "whole pages");
        for page in pages {
            let number = self.sums.len() as u64 / 4;
            self.sums.extend_from_slice(&check_of(self.identity, number, page).to_le_bytes());
        }
        self.draft.put(pages.as_flattened())?;
        self.draft.sync_if_much()
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
            lineage: self.lineage,
            identity: self.identity,
            tag: self.tag,
            pages: self.sums.len() as u64 / 4,
            note_bytes: note.len() as u64,
            note_check: Check::new().u64(self.identity).bytes(&self.sums).bytes(note).value(),
            body_check: self.draft.body_check(),
        };
        self.draft.publish(&head.encode(), Role::Cold, self.tag)
    }
}

/// A page file, open for lookups from any thread.
#[derive(Debug)]
pub struct PageFile {
    path: std::path::PathBuf,
    entry: FileEntry,
    file: Box<dyn DiskFile>,
    head: PageHead,
    sums: Box<[u8]>,
    /// Where it is removed, once it is retired.
    retired: OnceLock<Arc<dyn Disk>>,
}

impl PageFile {
    /// Opens a file that the manifest names, and compares it with the manifest's entry. Gives its note, too.
    pub(crate) fn open(disk: &dyn Disk, entry: &FileEntry, lineage: Lineage) -> Result<(PageFile, Vec<u8>)> {
        let (mut file, note) = PageFile::open_any(disk, &entry.name)?;
        let corrupt = |at, what: &str| Err(Error::corrupt(disk.path(&entry.name), at, what));
        if file.entry.bytes != entry.bytes {
            return corrupt(entry.bytes, "it has another length than the manifest says");
        }
        if file.head.lineage != lineage {
            return corrupt(16, "it belongs to another lineage than the manifest");
        }
        if file.head.tag != entry.tag {
            return corrupt(12, "it holds something else than the manifest says");
        }
        file.entry = entry.clone();
        Ok((file, note))
    }

    /// Opens a file by its name alone. Its entry's checksum is then unknown: 0.
    pub(crate) fn open_any(disk: &dyn Disk, name: &str) -> Result<(PageFile, Vec<u8>)> {
        let (Opened { file, path, size, .. }, head) =
            once::open(disk, name, (MAGIC, VERSION), BLOCK_BYTES, PageHead::decode)?;
        if parse_cold_name(name).map(|(n, f)| identity_of(n, f)) != Some(head.identity) {
            return Err(Error::corrupt(path, 32, "it was written under another name"));
        }
        if size != head.end() {
            return Err(Error::corrupt(path, size, format!("{size} bytes long, its head says {}", head.end())));
        }
        let at = head.sums_at();
        let mut sums = vec![0; (head.end() - at) as usize];
        let n = read_full_at(&*file, &mut sums, at).map_err(|e| Error::io(&path, "reading", e))?;
        if n != sums.len() || Check::new().u64(head.identity).bytes(&sums).value() != head.note_check {
            return Err(Error::corrupt(path, at, "the check of its checksums and its note does not match"));
        }
        let note = sums.split_off(4 * head.pages as usize);
        // Only a hint: without it a lookup may read more than its page.
        let _ = file.expect_random();
        let entry = FileEntry { name: name.to_string(), bytes: size, check: 0, role: Role::Cold, tag: head.tag };
        Ok((PageFile { path, entry, file, head, sums: sums.into(), retired: OnceLock::new() }, note))
    }

    /// What the manifest says of it.
    pub fn entry(&self) -> &FileEntry {
        &self.entry
    }

    /// Pages.
    pub fn pages(&self) -> u64 {
        self.head.pages
    }

    /// The two numbers of its name.
    pub fn identity(&self) -> u64 {
        self.head.identity
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<PageFile>() + self.sums.len() + self.entry.name.len() + 64
    }

    pub(crate) fn head(&self) -> &PageHead {
        &self.head
    }

    /// Reads and verifies a page: one read of 4 KiB at a multiple of 4 KiB.
    pub fn read(&self, number: u64, page: &mut [u8; BLOCK_BYTES]) -> Result<()> {
        let at = (1 + number) * BLOCK_BYTES as u64;
        if number >= self.head.pages {
            return Err(Error::corrupt(&self.path, at, "it has no such page"));
        }
        let n = read_full_at(&*self.file, page, at).map_err(|e| Error::io(&self.path, "reading", e))?;
        if n != BLOCK_BYTES || check_of(self.head.identity, number, page) != u32_at(&self.sums, 4 * number as usize) {
            return Err(Error::corrupt(&self.path, at, "the page's checksum does not match"));
        }
        Ok(())
    }

    /// The file is named by no manifest any more: it is removed when the last of its readers lets go of it.
    pub fn retire(&self, disk: Arc<dyn Disk>) {
        let _ = self.retired.set(disk);
    }

    /// Verifies every byte, with `note` as it was opened. `expected`: the manifest's checksum. Gives the pages.
    pub(crate) fn verify(&self, note: &[u8], expected: Option<u32>) -> Result<u64> {
        let (mut total, mut body) = (crc32c::crc32c(&self.head.encode()), 0);
        let mut page = [0; BLOCK_BYTES];
        let mut add = |bytes: &[u8]| {
            body = crc32c::crc32c_append(body, bytes);
            total = crc32c::crc32c_append(total, bytes);
        };
        for number in 0..self.head.pages {
            self.read(number, &mut page)?;
            add(&page);
        }
        add(&self.sums);
        add(note);
        if body != self.head.body_check {
            return Err(Error::corrupt(&self.path, 92, "the total checksum does not match"));
        }
        if expected.is_some_and(|expected| expected != total) {
            return Err(Error::corrupt(&self.path, 0, "it is not the file that the manifest names"));
        }
        Ok(self.head.pages)
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        if let Some(disk) = self.retired.get() {
            // What stays is swept at the next start.
            let _ = disk.remove(&self.entry.name);
        }
    }
}
