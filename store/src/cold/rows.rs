//! Rows in a page file: sorted by id and packed into blocks (`block.rs`) of one page each. The note
//! has this format:
//!
//! ```text
//!   offset  size  field
//!        0     4  columns  number of columns, 0..=64
//!        4     8  rows     number of rows
//!       12     8  first    lowest id
//!       20     8  last     highest id
//!       28     1  width    w, 0..=64
//!       29        index    lowest id of each block minus `first`, w bits each, low bits first,
//!                          zero-padded to a whole byte
//! ```
//!
//! Numbers are little-endian. A note is valid only if the counts are possible, the ids are within
//! the file's range, and the ids of the index are ascending.
//!
//! An open file stores the packed index in memory, about four bytes per block. A lookup is a binary
//! search in memory and one read of 4 KiB. A lookup of an id outside `first..=last` reads nothing.
//! There is no filter for absent ids in this range. Clients mostly request existing ids, and one
//! byte per row would exceed all other memory of spilled rows.

use std::sync::Arc;

use super::bits;
use super::block::{Block, MAX_BLOCK_ROWS, MAX_COLUMNS, Rows};
use super::pages::{BLOCK_BYTES, PageFile, PageWriter};
use crate::error::{Error, Result};
use crate::frame::{u32_at, u64_at};
use crate::manifest::FileEntry;

/// Number of buffered rows at which the writer removes the rows that are already in blocks.
const MAX_BUFFERED_ROWS: usize = 2 * MAX_BLOCK_ROWS;
/// Length of the note up to the index, in bytes.
const NOTE_HEADER_BYTES: usize = 28;

/// Metadata of a file of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColdHead {
    /// Identity, which combines the two numbers of the file's name.
    pub identity: u64,
    /// Number of values per row.
    pub columns: usize,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of rows.
    pub rows: u64,
    /// Lowest id of a row.
    pub first: u64,
    /// Highest id of a row.
    pub last: u64,
}

impl ColdHead {
    fn decode(file: &PageFile, note: &[u8]) -> std::result::Result<ColdHead, &'static str> {
        if !file.has_rows() || note.len() <= NOTE_HEADER_BYTES {
            return Err("the file has no rows");
        }
        let tag = file.entry().tag;
        let head = ColdHead {
            identity: file.identity(),
            columns: u32_at(note, 0) as usize,
            blocks: file.pages(),
            rows: u64_at(note, 4),
            first: u64_at(note, 12),
            last: u64_at(note, 20),
        };
        let is_plausible = head.columns <= MAX_COLUMNS
            && (head.blocks..=head.blocks * MAX_BLOCK_ROWS as u64).contains(&head.rows)
            && tag.low <= head.first
            && head.first <= head.last
            && head.last <= tag.high;
        if is_plausible { Ok(head) } else { Err("the note is inconsistent") }
    }
}

/// Lowest id of each block, packed as in the file.
#[derive(Debug)]
struct BlockIndex {
    first: u64,
    width: u32,
    packed: Box<[u8]>,
}

impl BlockIndex {
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

    fn decode(bytes: &[u8], head: &ColdHead) -> std::result::Result<BlockIndex, &'static str> {
        let (&width, packed) = bytes.split_first().ok_or("the index is empty")?;
        if width > 64 || packed.len() as u64 != (head.blocks * u64::from(width)).div_ceil(8) {
            return Err("the size of the index does not match the number of blocks");
        }
        let index =
            BlockIndex { first: head.first, width: u32::from(width), packed: packed.into() };
        let mut before = None;
        for block in 0..head.blocks {
            let id = index.offset(block);
            if before.is_some_and(|before| id <= before)
                || id > head.last - head.first
                || (block == 0 && id != 0)
            {
                return Err("ids in the index are not ascending");
            }
            before = Some(id);
        }
        Ok(index)
    }

    fn offset(&self, block: u64) -> u64 {
        bits::get(&self.packed, block as usize * self.width as usize, self.width)
    }

    /// Returns the only block that can contain `id`, which must not be less than the first id.
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

/// An open file of rows. Any thread can read from an open file.
#[derive(Debug)]
pub struct ColdFile {
    pages: PageFile,
    head: ColdHead,
    index: BlockIndex,
}

impl ColdFile {
    pub(crate) fn new(pages: PageFile, note: &[u8]) -> Result<ColdFile> {
        let decoded = ColdHead::decode(&pages, note)
            .and_then(|head| Ok((head, BlockIndex::decode(&note[NOTE_HEADER_BYTES..], &head)?)));
        let (head, index) = decoded.map_err(|what| pages.corrupt_note(what))?;
        Ok(ColdFile { pages, head, index })
    }

    pub(super) fn into_pages(self) -> PageFile {
        self.pages
    }

    /// Returns the metadata.
    pub fn head(&self) -> &ColdHead {
        &self.head
    }

    /// Returns the underlying page file.
    pub fn pages(&self) -> &PageFile {
        &self.pages
    }

    /// Returns the manifest entry of the file.
    pub fn entry(&self) -> &FileEntry {
        self.pages.entry()
    }

    /// Returns the memory use in bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<ColdFile>() - size_of::<PageFile>()
            + self.pages.memory_bytes()
            + self.index.packed.len()
    }

    /// Returns the block to read for `id`, or `None` if the file cannot contain it.
    pub fn block_of(&self, id: u64) -> Option<u64> {
        let within = (self.head.first..=self.head.last).contains(&id);
        within.then(|| self.index.block(id, self.head.blocks))
    }

    /// Returns the lowest id of a block, or `None` if there is no such block.
    pub fn block_start(&self, number: u64) -> Option<u64> {
        (number < self.head.blocks).then(|| self.head.first + self.index.offset(number))
    }

    /// Returns an error about a damaged block.
    pub fn corrupt(&self, number: u64, what: &str) -> Error {
        self.pages.corrupt(number, what)
    }

    /// Reads and verifies a block with one aligned read of 4 KiB.
    pub fn read<'a>(&self, number: u64, buffer: &'a mut [u8; BLOCK_BYTES]) -> Result<Block<'a>> {
        self.pages.read(number, buffer)?;
        Block::parse(buffer, self.head.columns).map_err(|what| self.corrupt(number, what))
    }

    /// Copies the values of a row to `out` with at most one read. Returns whether the row exists.
    pub fn get(&self, id: u64, out: &mut [i64]) -> Result<bool> {
        let Some(number) = self.block_of(id) else { return Ok(false) };
        let mut buffer = [0; BLOCK_BYTES];
        Ok(self.read(number, &mut buffer)?.get(id, out))
    }

    /// Returns an iterator over the rows, block by block.
    pub fn rows(self: &Arc<Self>) -> ColdRows {
        ColdRows { file: self.clone(), block: 0, buffer: Box::new([0; BLOCK_BYTES]), last: None }
    }
}

/// Iterator over the rows of a file; see [`ColdFile::rows`].
#[derive(Debug)]
pub struct ColdRows {
    file: Arc<ColdFile>,
    block: u64,
    buffer: Box<[u8; BLOCK_BYTES]>,
    last: Option<u64>,
}

impl ColdRows {
    /// Returns the block number of the next block.
    pub fn at(&self) -> u64 {
        self.block
    }

    /// Reads the next block into `ids` and, row by row, `values`. Returns false at the end.
    pub fn next(&mut self, ids: &mut Vec<u64>, values: &mut Vec<i64>) -> Result<bool> {
        ids.clear();
        values.clear();
        let (file, number) = (&self.file, self.block);
        let Some(start) = file.block_start(number) else { return Ok(false) };
        let block = file.read(number, &mut self.buffer)?;
        block.append_to(ids, values).map_err(|what| file.corrupt(number, what))?;
        let rises = self.last.is_none_or(|last| last < ids[0]);
        self.last = ids.last().copied();
        if ids[0] != start || !rises || self.last > Some(file.head.last) {
            return Err(file.corrupt(number, "the block's ids differ from the index"));
        }
        self.block += 1;
        Ok(true)
    }
}

/// Writer of a file of rows. Leaves no file if dropped before [`finish`](ColdWriter::finish).
#[derive(Debug)]
pub struct ColdWriter {
    pages: PageWriter,
    columns: usize,
    ids: Vec<u64>,
    values: Vec<i64>,
    /// Number of buffered rows that are already in blocks.
    used: usize,
    /// Number of rows in the last block, as an estimate for the next block.
    rows_per_block: usize,
    firsts: Vec<u64>,
    rows: u64,
    last: Option<u64>,
}

impl ColdWriter {
    pub(crate) fn new(pages: PageWriter, columns: usize) -> Result<ColdWriter> {
        if columns > MAX_COLUMNS {
            return Err(Error::Refused(format!(
                "{columns} columns; a cold file has at most {MAX_COLUMNS}"
            )));
        }
        let (ids, values, used, firsts, rows, last) = Default::default();
        Ok(ColdWriter {
            pages,
            columns,
            ids,
            values,
            used,
            rows_per_block: 512,
            firsts,
            rows,
            last,
        })
    }

    /// Adds a row. Ids must be ascending and within the tag's range. Missing values are 0.
    pub fn push(&mut self, id: u64, values: &[i64]) -> Result<()> {
        let tag = self.pages.tag();
        assert!(self.last.is_none_or(|last| last < id), "ids of a cold file are ascending");
        assert!((tag.low..=tag.high).contains(&id), "ids of a cold file are within its range");
        assert!(values.len() <= self.columns, "a row has no more columns than the file");
        self.last = Some(id);
        self.ids.push(id);
        self.values.extend_from_slice(values);
        self.values.resize(self.ids.len() * self.columns, 0);
        self.rows += 1;
        if self.ids.len() - self.used >= MAX_BLOCK_ROWS { self.pack() } else { Ok(()) }
    }

    /// Returns the number of rows added so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the size of the file so far in bytes, for rate limits.
    pub fn bytes(&self) -> u64 {
        self.pages.bytes()
    }

    /// Lowers the end of the file's id range.
    pub fn end_at(&mut self, high: u64) {
        assert!(self.last.is_none_or(|last| last <= high), "the file covers its ids");
        self.pages.end_at(high);
    }

    fn pack(&mut self) -> Result<()> {
        let (ids, columns) = (&self.ids[self.used..], self.columns);
        let waiting = Rows { ids, values: &self.values[self.used * columns..], columns };
        let rows = waiting.first(waiting.fitting(self.rows_per_block));
        self.pages.put_block(&mut rows.encode())?;
        self.firsts.push(ids[0]);
        self.rows_per_block = rows.ids.len();
        self.used += self.rows_per_block;
        if self.used >= MAX_BUFFERED_ROWS {
            self.ids.drain(..self.used);
            self.values.drain(..self.used * columns);
            self.used = 0;
        }
        Ok(())
    }

    /// Completes the file like [`PageWriter::finish`]. Returns `None` and leaves no file if there
    /// are no rows.
    pub fn finish(mut self) -> Result<Option<FileEntry>> {
        while self.used < self.ids.len() {
            self.pack()?;
        }
        let (Some(&first), Some(last)) = (self.firsts.first(), self.last) else { return Ok(None) };
        let mut note = (self.columns as u32).to_le_bytes().to_vec();
        [self.rows, first, last].iter().for_each(|n| note.extend_from_slice(&n.to_le_bytes()));
        note.extend_from_slice(&BlockIndex::encode(&self.firsts));
        self.pages.finish(&note).map(Some)
    }
}
