//! Writing a cold file: rows come in rising order, and leave in full blocks.

use std::sync::Arc;

use super::block::{MAX_BLOCK_ROWS, Rows};
use super::header::{self, FileIdentity};
use super::{BLOCK_BYTES, ColdHead, Index, MAX_COLUMNS};
use crate::batch::Lineage;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::frame::Check;
use crate::immutable_file::Draft;
use crate::manifest::{FileEntry, Role, Tag};

/// Blocks are written so many together.
const BLOCKS_AT_ONCE: usize = 16;
/// Rows that wait for a block: enough to see how many fit.
const WAITING: usize = 2 * MAX_BLOCK_ROWS;

/// A cold file under construction. Dropped before [`finish`](ColdWriter::finish) it leaves nothing.
#[derive(Debug)]
pub struct ColdWriter {
    draft: Draft,
    whose: FileIdentity,
    columns: usize,
    ids: Vec<u64>,
    values: Vec<i64>,
    /// Of the rows that wait, so many are in blocks.
    used: usize,
    /// Rows of the last block.
    guess: usize,
    /// Blocks that are not written yet.
    blocks: Vec<u8>,
    firsts: Vec<u64>,
    rows: u64,
    last: Option<u64>,
}

impl ColdWriter {
    pub(crate) fn create(
        disk: Arc<dyn Disk>,
        lineage: Lineage,
        numbers: (u64, u64),
        tag: Tag,
        columns: usize,
    ) -> Result<ColdWriter> {
        if columns > MAX_COLUMNS {
            return Err(Error::Refused(format!(
                "{columns} columns; a cold file has at most {MAX_COLUMNS}"
            )));
        }
        let (draft, whose) = header::begin(disk, lineage, numbers, tag)?;
        Ok(ColdWriter {
            draft,
            whose,
            columns,
            ids: Vec::new(),
            values: Vec::new(),
            used: 0,
            guess: 512,
            blocks: Vec::new(),
            firsts: Vec::new(),
            rows: 0,
            last: None,
        })
    }

    /// Adds a row; its id lies above all before, within the tag's range. Missing values are 0.
    pub fn push(&mut self, id: u64, values: &[i64]) -> Result<()> {
        assert!(self.last.is_none_or(|last| last < id), "a cold file's ids rise");
        assert!(
            (self.whose.tag.low..=self.whose.tag.high).contains(&id),
            "a cold file's ids lie within its range"
        );
        assert!(values.len() <= self.columns, "a row has at most the file's columns");
        self.last = Some(id);
        self.ids.push(id);
        self.values.extend_from_slice(values);
        self.values.resize(self.ids.len() * self.columns, 0);
        self.rows += 1;
        if self.ids.len() - self.used >= MAX_BLOCK_ROWS {
            self.pack()?;
        }
        Ok(())
    }

    /// Rows so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes so far: for a budget.
    pub fn bytes(&self) -> u64 {
        self.draft.bytes() + self.blocks.len() as u64
    }

    /// The file answers for ids up to `high` only, and not as far as its tag said.
    pub fn end_at(&mut self, high: u64) {
        assert!(
            self.last.is_none_or(|last| last <= high),
            "a cold file's ids lie within its range"
        );
        self.whose.tag.high = high;
    }

    /// Makes one block of rows that wait.
    fn pack(&mut self) -> Result<()> {
        let Rows { ids, values, columns } = Rows {
            ids: &self.ids[self.used..],
            values: &self.values[self.used * self.columns..],
            columns: self.columns,
        };
        let n = Rows { ids, values, columns }.fitting(self.guess);
        let rows = Rows { ids: &ids[..n], values: &values[..n * columns], columns };
        let block = rows.encode(self.whose.identity, self.firsts.len() as u64);
        self.firsts.push(ids[0]);
        self.blocks.extend_from_slice(&block[..]);
        self.guess = n;
        self.used += n;
        if self.used >= WAITING {
            self.ids.drain(..self.used);
            self.values.drain(..self.used * self.columns);
            self.used = 0;
        }
        if self.blocks.len() >= BLOCKS_AT_ONCE * BLOCK_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.draft.put(&self.blocks)?;
        self.blocks.clear();
        self.draft.sync_if_much()
    }

    /// Completes the file, makes it durable and gives it its name; `None`, and no file is left, if
    /// it has no row. The folder is not synced:
    /// [`Store::replace_files`](crate::Store::replace_files) does that.
    pub fn finish(mut self) -> Result<Option<FileEntry>> {
        let (Some(&first), Some(last)) = (self.firsts.first().or(self.ids.first()), self.last)
        else {
            return Ok(None);
        };
        while self.used < self.ids.len() {
            self.pack()?;
        }
        self.flush()?;
        let index = Index::encode(&self.firsts);
        self.draft.put(&index)?;
        let FileIdentity { lineage, identity, tag } = self.whose;
        let head = ColdHead {
            lineage,
            identity,
            tag,
            columns: self.columns,
            blocks: self.firsts.len() as u64,
            rows: self.rows,
            first,
            last,
            index_bytes: index.len() as u64,
            index_check: Check::new().u64(identity).bytes(&index).value(),
            body_check: self.draft.body_check(),
        };
        self.draft.publish(&head.encode(), Role::Cold, tag).map(Some)
    }
}
