//! Cold file v1, `cold-<number>-<number>.tcold`: rows of one id range, sorted by id, in blocks of 4
//! KiB, of which a lookup reads one.
//!
//! ```text
//!   offset  size  field
//!        0     8  magic     "TIDECOLD"
//!        8     4  version   1
//!       12     4  kind      the server's: what the rows are
//!       16    16  lineage
//!       32     8  identity  the two numbers in the file's name: first * 2^24 + second
//!       40     4  space
//!       44     4  columns   of each row, 0..=64
//!       48     8  low       lowest id that the file answers for
//!       56     8  high      highest id that it answers for
//!       64     8  stamp     the server's
//!       72     8  blocks
//!       80     8  rows
//!       88     8  first     lowest id that is in it
//!       96     8  last      highest id that is in it
//!      104     8  index     length of the index in bytes
//!      112     4  indexed   CRC-32C of (identity, the index)
//!      116     4  body      CRC-32C of the blocks and the index
//!      120     4  zero
//!      124     4  check     CRC-32C of bytes 0..124
//!      128        zeros up to 4096
//!     4096        blocks of 4096 bytes each (block.rs)
//!     then        index: a byte w (0..=64), then for each block its lowest id less `first`, w bits
//!                 each, low bit first; zeros to a whole byte
//! ```
//!
//! Little-endian. Valid only if: (1) magic, version, check, zeros of the head (2) lineage and tag
//! are those that the manifest names (3) file length = 4096 + 4096 * blocks + index = the
//! manifest's (4) the index's check, and its ids rise (5) every block's check, when it is read (6)
//! the CRC-32C of the whole file = the manifest's; only `tidemark check` and a full sync compare
//! that.
//!
//! Opening a file reads its head and index, some four bytes per block, and keeps the index in
//! memory as it is. So a lookup is a search in memory and one read of 4 KiB; an id outside
//! `first..=last` costs no read. There is no filter for ids in between: ids that are asked for were
//! posted, and a byte of memory per row for all others would cost more than the whole rest of the
//! spill.
//!
//! Written under the name plus `.tmp` (the head last), synced, renamed, folder synced, then named
//! in a manifest; never changed. Removed when no manifest names it any more, and no reader has it:
//! [`ColdFile::retire`].

pub mod bits;
mod block;
mod header;
mod pages;
mod scrub;
mod write;

use std::path::Path;
use std::sync::Arc;

use crate::batch::Lineage;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::frame::{Check, u32_at, u64_at};
use crate::manifest::{FileEntry, Tag};
use header::{FileIdentity, Head, OpenColdFile, place, put, put_numbers, seal};

pub use block::{Block, MAX_BLOCK_ROWS, MAX_COLUMNS};
#[cfg(any(test, fuzzing))]
pub(crate) use header::cold_name;
pub(crate) use header::parse_cold_name;
pub use header::{BLOCK_BYTES, COLD_VERSION};
pub(crate) use pages::is_pages;
pub use pages::{PageFile, PageWriter};
pub use scrub::{Damage, Scrub};
pub use write::ColdWriter;

/// Blocks of one file: 256 GiB.
const MAX_BLOCKS: u64 = 1 << 26;

/// The head of a cold file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColdHead {
    /// The history it belongs to.
    pub lineage: Lineage,
    /// The two numbers of its name.
    pub identity: u64,
    /// What the server said about it.
    pub tag: Tag,
    /// Values per row.
    pub columns: usize,
    /// Blocks.
    pub blocks: u64,
    /// Rows.
    pub rows: u64,
    /// The lowest id that is in it.
    pub first: u64,
    /// The highest.
    pub last: u64,
    index_bytes: u64,
    index_check: u32,
    body_check: u32,
}

impl ColdHead {
    fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut head = self.whose().encode(Self::MAGIC);
        put(&mut head, 44, &(self.columns as u32).to_le_bytes());
        put_numbers(
            &mut head,
            72,
            &[self.blocks, self.rows, self.first, self.last, self.index_bytes],
        );
        put(&mut head, 112, &self.index_check.to_le_bytes());
        put(&mut head, 116, &self.body_check.to_le_bytes());
        seal(head)
    }

    fn index_at(&self) -> u64 {
        place(self.blocks)
    }
}

impl Head for ColdHead {
    const MAGIC: &'static [u8; 8] = b"TIDECOLD";

    fn decode(bytes: &[u8]) -> std::result::Result<ColdHead, (u64, &'static str)> {
        let FileIdentity { lineage, identity, tag } =
            FileIdentity::decode(bytes, Self::MAGIC, "it does not begin as a cold file does", 120)?;
        let head = ColdHead {
            lineage,
            identity,
            tag,
            columns: u32_at(bytes, 44) as usize,
            blocks: u64_at(bytes, 72),
            rows: u64_at(bytes, 80),
            first: u64_at(bytes, 88),
            last: u64_at(bytes, 96),
            index_bytes: u64_at(bytes, 104),
            index_check: u32_at(bytes, 112),
            body_check: u32_at(bytes, 116),
        };
        let plausible = head.columns <= MAX_COLUMNS
            && (1..=MAX_BLOCKS).contains(&head.blocks)
            && (head.blocks..=head.blocks * MAX_BLOCK_ROWS as u64).contains(&head.rows)
            && (1..=1 + 8 * head.blocks).contains(&head.index_bytes)
            && tag.low <= head.first
            && head.first <= head.last
            && head.last <= tag.high;
        if plausible { Ok(head) } else { Err((44, "the head describes an impossible file")) }
    }

    fn whose(&self) -> FileIdentity {
        let ColdHead { lineage, identity, tag, .. } = *self;
        FileIdentity { lineage, identity, tag }
    }

    fn length(&self) -> u64 {
        self.index_at() + self.index_bytes
    }
}

/// The lowest id of each block, as the file has it.
#[derive(Debug)]
struct Index {
    first: u64,
    width: u32,
    packed: Box<[u8]>,
}

impl Index {
    fn encode(firsts: &[u64]) -> Vec<u8> {
        let first = firsts[0];
        let width = bits::width_of(firsts[firsts.len() - 1] - first);
        let mut bytes = vec![0; 1 + (firsts.len() * width as usize).div_ceil(8)];
        bytes[0] = width as u8;
        for (i, id) in firsts.iter().enumerate() {
            bits::put(&mut bytes[1..], i * width as usize, width, id - first);
        }
        bytes
    }

    fn decode(bytes: &[u8], head: &ColdHead) -> std::result::Result<Index, &'static str> {
        let (&width, packed) = bytes.split_first().ok_or("the index is empty")?;
        if width > 64 || packed.len() as u64 != (head.blocks * u64::from(width)).div_ceil(8) {
            return Err("the index has another length than its blocks need");
        }
        let index = Index { first: head.first, width: u32::from(width), packed: packed.into() };
        let mut before = None;
        for block in 0..head.blocks {
            let id = index.offset(block);
            if before.is_some_and(|before| id <= before)
                || id > head.last - head.first
                || (block == 0 && id != 0)
            {
                return Err("the ids of the index do not rise from the lowest to the highest");
            }
            before = Some(id);
        }
        Ok(index)
    }

    fn offset(&self, block: u64) -> u64 {
        bits::get(&self.packed, block as usize * self.width as usize, self.width)
    }

    /// The block in which `id` is, if it is anywhere; the id is not below the first.
    fn block(&self, id: u64, blocks: u64) -> u64 {
        let offset = id - self.first;
        let (mut from, mut to) = (0, blocks);
        while to - from > 1 {
            let middle = u64::midpoint(from, to);
            if self.offset(middle) <= offset { from = middle } else { to = middle }
        }
        from
    }
}

/// A cold file, open for lookups from any thread.
#[derive(Debug)]
pub struct ColdFile {
    shelf: OpenColdFile,
    head: ColdHead,
    index: Index,
}

impl ColdFile {
    /// Opens a file that the manifest names: reads its head and index, and compares them with the
    /// manifest's entry.
    pub fn open(disk: &dyn Disk, entry: &FileEntry, lineage: Lineage) -> Result<ColdFile> {
        let mut file = ColdFile::open_any(disk, &entry.name)?;
        file.shelf.expect(entry, lineage)?;
        Ok(file)
    }

    /// Opens a file by its name alone. Its entry's checksum is then unknown: 0.
    pub(crate) fn open_any(disk: &dyn Disk, name: &str) -> Result<ColdFile> {
        let (shelf, head) = OpenColdFile::open::<ColdHead>(disk, name)?;
        let (mut index, at) = (vec![0; head.index_bytes as usize], head.index_at());
        let n = shelf.read_at(&mut index, at)?;
        if n != index.len()
            || Check::new().u64(head.identity).bytes(&index).value() != head.index_check
        {
            return Err(shelf.corrupt(at, "the index's checksum does not match"));
        }
        let index = Index::decode(&index, &head).map_err(|what| shelf.corrupt(at, what))?;
        Ok(ColdFile { shelf, head, index })
    }

    /// The head.
    pub fn head(&self) -> &ColdHead {
        &self.head
    }

    /// What the manifest says of it.
    pub fn entry(&self) -> &FileEntry {
        &self.shelf.entry
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<ColdFile>() + self.index.packed.len() + self.shelf.memory_bytes()
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.shelf.path
    }

    /// The block that holds `id`, if the file holds it at all.
    pub fn block_of(&self, id: u64) -> Option<u64> {
        let within = (self.head.first..=self.head.last).contains(&id);
        within.then(|| self.index.block(id, self.head.blocks))
    }

    /// The lowest id of a block, if there is such a block.
    pub fn block_start(&self, number: u64) -> Option<u64> {
        (number < self.head.blocks).then(|| self.head.first + self.index.offset(number))
    }

    /// An error that says what is wrong with a block.
    pub fn corrupt(&self, number: u64, what: &str) -> Error {
        self.shelf.corrupt(place(number), what)
    }

    /// Reads and verifies a block: one read of 4 KiB at a multiple of 4 KiB.
    pub fn read<'a>(&self, number: u64, buffer: &'a mut [u8; BLOCK_BYTES]) -> Result<Block<'a>> {
        let n = self.shelf.read_at(buffer, place(number))?;
        self.verified(number, &buffer[..n])
    }

    /// Verifies a block that was read.
    fn verified<'a>(&self, number: u64, bytes: &'a [u8]) -> Result<Block<'a>> {
        let block = Block::read(bytes, self.head.identity, number, self.head.columns);
        block.map_err(|what| self.corrupt(number, what))
    }

    /// The values of a row, if the file holds it. At most one read.
    pub fn get(&self, id: u64, out: &mut [i64]) -> Result<bool> {
        let Some(number) = self.block_of(id) else { return Ok(false) };
        let mut buffer = [0; BLOCK_BYTES];
        Ok(self.read(number, &mut buffer)?.get(id, out))
    }

    /// The rows in order, block by block.
    pub fn rows(self: &Arc<Self>) -> ColdRows {
        ColdRows { file: self.clone(), block: 0, buffer: Box::new([0; BLOCK_BYTES]), last: None }
    }

    /// The file is named by no manifest any more: it is removed when the last of its readers lets
    /// go of it.
    pub fn retire(&self, disk: Arc<dyn Disk>) {
        self.shelf.retire(disk);
    }

    /// Verifies a block that was read, and takes its rows into `ids` and, row by row, `values`:
    /// they must be those of the index, and lie behind the id `before`.
    fn take_rows(
        &self,
        number: u64,
        bytes: &[u8],
        before: Option<u64>,
        ids: &mut Vec<u64>,
        values: &mut Vec<i64>,
    ) -> Result<()> {
        ids.clear();
        values.clear();
        let block = self.verified(number, bytes)?;
        block.append_to(ids, values).map_err(|what| self.corrupt(number, what))?;
        let starts = self.head.first + self.index.offset(number);
        let rises = before.is_none_or(|before| before < ids[0]);
        if ids[0] != starts || !rises || ids.last().is_some_and(|&last| last > self.head.last) {
            return Err(self.corrupt(number, "the block's ids are not those of the index"));
        }
        Ok(())
    }
}

/// A file's rows in order; see [`ColdFile::rows`].
#[derive(Debug)]
pub struct ColdRows {
    file: Arc<ColdFile>,
    block: u64,
    buffer: Box<[u8; BLOCK_BYTES]>,
    last: Option<u64>,
}

impl ColdRows {
    /// The block that the next call reads.
    pub fn at(&self) -> u64 {
        self.block
    }

    /// Reads the next block into `ids` and, row by row, `values`; false at the end.
    pub fn next(&mut self, ids: &mut Vec<u64>, values: &mut Vec<i64>) -> Result<bool> {
        if self.block == self.file.head.blocks {
            ids.clear();
            values.clear();
            return Ok(false);
        }
        let (file, number) = (&self.file, self.block);
        let n = file.shelf.read_at(&mut self.buffer[..], place(number))?;
        file.take_rows(number, &self.buffer[..n], self.last, ids, values)?;
        self.last = ids.last().copied();
        self.block += 1;
        Ok(true)
    }
}
