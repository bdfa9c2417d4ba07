//! Writing a cold file: rows come in rising order, and leave in full blocks.

use std::sync::Arc;

use super::block::{MAX_BLOCK_ROWS, Rows};
use super::{BLOCK_BYTES, ColdHead, Index, MAX_COLUMNS, cold_name, identity_of};
use crate::batch::Lineage;
use crate::disk::{Disk, DiskFile, TEMPORARY, write_all_at};
use crate::error::{Error, Result};
use crate::frame::Check;
use crate::manifest::{FileEntry, Role, Tag};

/// Dirty bytes are handed to the disk this often: a sync of the log waits for about this much at worst.
const SYNC_EVERY: u64 = 2 << 20;
/// Blocks are written so many together.
const BLOCKS_AT_ONCE: usize = 16;
/// Rows that wait for a block: enough to see how many fit.
const WAITING: usize = 2 * MAX_BLOCK_ROWS;

/// A cold file under construction. Dropped before [`finish`](ColdWriter::finish) it leaves nothing.
#[derive(Debug)]
pub struct ColdWriter {
    disk: Arc<dyn Disk>,
    file: Option<Box<dyn DiskFile>>,
    lineage: Lineage,
    name: String,
    identity: u64,
    tag: Tag,
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
    at: u64,
    synced: u64,
    body_check: u32,
}

impl ColdWriter {
    pub(crate) fn create(
        disk: Arc<dyn Disk>,
        lineage: Lineage,
        number: u64,
        file: u64,
        tag: Tag,
        columns: usize,
    ) -> Result<ColdWriter> {
        if columns > MAX_COLUMNS {
            return Err(Error::Refused(format!("{columns} columns; a cold file has at most {MAX_COLUMNS}")));
        }
        let name = cold_name(number, file);
        let temporary = format!("{name}{TEMPORARY}");
        let file_ = disk.create(&temporary).map_err(|e| Error::io(disk.path(&temporary), "creating", e))?;
        Ok(ColdWriter {
            disk,
            file: Some(file_),
            lineage,
            name,
            identity: identity_of(number, file),
            tag,
            columns,
            ids: Vec::new(),
            values: Vec::new(),
            used: 0,
            guess: 512,
            blocks: Vec::new(),
            firsts: Vec::new(),
            rows: 0,
            last: None,
            at: BLOCK_BYTES as u64,
            synced: 0,
            body_check: 0,
        })
    }

    /// Adds a row; its id lies above all before, within the tag's range. Missing values are 0.
    pub fn push(&mut self, id: u64, values: &[i64]) -> Result<()> {
        assert!(self.last.is_none_or(|last| last < id), "a cold file's ids rise");
        assert!((self.tag.low..=self.tag.high).contains(&id), "a cold file's ids lie within its range");
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
        self.at + self.blocks.len() as u64
    }

    /// The file answers for ids up to `high` only, and not as far as its tag said.
    pub fn end_at(&mut self, high: u64) {
        assert!(self.last.is_none_or(|last| last <= high), "a cold file's ids lie within its range");
        self.tag.high = high;
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
        let block = rows.encode(self.identity, self.firsts.len() as u64);
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
        let blocks = std::mem::take(&mut self.blocks);
        self.put(&blocks)?;
        self.blocks = blocks;
        self.blocks.clear();
        if self.at - self.synced >= SYNC_EVERY {
            self.attempt("syncing", |file| file.sync())?;
            self.synced = self.at;
        }
        Ok(())
    }

    fn temporary(&self) -> String {
        format!("{}{TEMPORARY}", self.name)
    }

    /// Does something to the file. After a failure the file is gone: a later sync that succeeds would prove nothing.
    fn attempt(&mut self, doing: &'static str, act: impl FnOnce(&dyn DiskFile) -> std::io::Result<()>) -> Result<()> {
        let path = self.disk.path(&self.temporary());
        let Some(file) = self.file.take() else {
            return Err(Error::io(path, doing, std::io::Error::other("an earlier operation on this file failed")));
        };
        match act(&*file) {
            Ok(()) => {
                self.file = Some(file);
                Ok(())
            }
            Err(e) => {
                drop(file);
                let _ = self.disk.remove(&self.temporary());
                Err(Error::io(path, doing, e))
            }
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let at = self.at;
        self.attempt("writing", |file| write_all_at(file, bytes, at))?;
        self.body_check = crc32c::crc32c_append(self.body_check, bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Completes the file, makes it durable and gives it its name; `None`, and no file is left, if it has no row. The folder is not
    /// synced: [`Store::replace_files`](crate::Store::replace_files) does that.
    pub fn finish(mut self) -> Result<Option<FileEntry>> {
        let (Some(&first), Some(last)) = (self.firsts.first().or(self.ids.first()), self.last) else { return Ok(None) };
        while self.used < self.ids.len() {
            self.pack()?;
        }
        self.flush()?;
        let index = Index::encode(&self.firsts);
        self.put(&index)?;
        let head = ColdHead {
            lineage: self.lineage,
            identity: self.identity,
            tag: self.tag,
            columns: self.columns,
            blocks: self.firsts.len() as u64,
            rows: self.rows,
            first,
            last,
            index_bytes: index.len() as u64,
            index_check: Check::new().u64(self.identity).bytes(&index).value(),
            body_check: self.body_check,
        };
        let head = head.encode();
        self.attempt("finishing", |file| write_all_at(file, &head, 0).and_then(|()| file.sync()))?;
        let (disk, from, to) = (self.disk.clone(), self.temporary(), self.name.clone());
        self.attempt("publishing", |_| disk.rename(&from, &to))?;
        self.file = None; // nothing is left to clean up
        let body = (self.at - BLOCK_BYTES as u64) as usize;
        Ok(Some(FileEntry {
            name: self.name.clone(),
            bytes: self.at,
            check: crc32c::crc32c_combine(crc32c::crc32c(&head), self.body_check, body),
            role: Role::Cold,
            tag: self.tag,
        }))
    }
}

impl Drop for ColdWriter {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = self.disk.remove(&self.temporary());
        }
    }
}
