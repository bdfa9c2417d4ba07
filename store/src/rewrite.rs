//! Replacement of cold files, shared by rows, filters and the runs of a ledger.
//!
//! ```text
//!   1  choose   a range of ids with its old files and its rows in memory; later changes stay in
//!               memory
//!   2  write    the new files
//!   3  sync     the log, which then has every change that the new files show
//!   4  publish  the manifest names the new files instead of the old ones, and the log's durable
//!               offset
//!   5  switch   readers use the new files; memory drops rows that equal the files
//!   6  discard  each old file after its last reader
//! ```
//!
//! The caller does steps 1, 2 and 5. [`NewFiles::publish`] does steps 3 and 4, and
//! [`Store::retire`] does step 6. At most one thread rewrites files, concurrently with readers and
//! writers.
//!
//! A failure before step 4 changes nothing: a dropped [`NewFiles`] removes its files.
//!
//! After a crash before step 4 the old files are valid, and the next startup removes the new files.
//! After a crash following step 4, the new files and the log are valid. Replay loads the latest
//! state of the logged rows and pairs into memory, which takes precedence over files. Without step
//! 3 a file could contain half of an action whose log record was lost. Startup rejects a log that
//! ends before the manifest's durable offset.

use crate::error::Result;
use crate::manifest::FileEntry;
use crate::store::Store;

/// New files of a rewrite that are not published yet. Dropping a `NewFiles` removes its files.
#[derive(Debug)]
pub struct NewFiles<'a> {
    store: &'a Store,
    /// Completed files in the order of writing.
    pub entries: Vec<FileEntry>,
}

impl<'a> NewFiles<'a> {
    /// Returns an empty set.
    pub fn new(store: &'a Store) -> NewFiles<'a> {
        NewFiles { store, entries: Vec::new() }
    }

    /// Returns the total size of the files in bytes.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(|file| file.bytes).sum()
    }

    /// Syncs the log, then replaces the files that match `is_replaced` with the new files in the
    /// manifest. Returns the total size of the new files in bytes.
    ///
    /// - `log`: syncs the log and returns its durable offset.
    pub fn publish(
        mut self,
        log: impl FnOnce() -> Result<u64>,
        is_replaced: impl Fn(&FileEntry) -> bool,
    ) -> Result<u64> {
        let (durable, bytes) = (log()?, self.bytes());
        let files = self.store.manifest().files.clone();
        let replaced = files.into_iter().filter(is_replaced).map(|file| file.name);
        let replaced: Vec<String> = replaced.collect();
        if !self.entries.is_empty() || !replaced.is_empty() {
            self.store.replace_files(self.entries.clone(), &replaced, durable)?;
        }
        self.entries.clear();
        Ok(bytes)
    }
}

impl Drop for NewFiles<'_> {
    fn drop(&mut self) {
        self.store.discard(&self.entries);
    }
}
