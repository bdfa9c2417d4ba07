//! Rewrites: the procedure that replaces cold files, for rows, filters and the runs of a ledger.
//!
//! ```text
//!   1  choose   a range of ids, its old files and what memory has of it; later changes stay in
//!               memory
//!   2  write    new files
//!   3  sync     the log: it has every change that the new files show
//!   4  publish  the manifest names the new files instead of the old ones, and how far the log is
//!               durable
//!   5  answer   readers use the new files; then memory drops what equals the files
//!   6  discard  each old file goes with its last reader
//! ```
//!
//! The caller does 1, 2 and 5. [`NewFiles::publish`] does 3 and 4, [`Store::retire`] does 6. One
//! thread at a time rewrites; readers and writers continue.
//!
//! A step that fails before 4 leaves everything as it was: dropped [`NewFiles`] remove themselves.
//!
//! A crash before 4 leaves the old files, the snapshot and the log; the next start removes the new
//! files. A crash after 4 leaves the new files and the log, which still begins where the manifest
//! says. Replay puts the rows and pairs that the log names into memory, in their latest state, and
//! memory is newer than a file. Without 3, a file could show half of an action whose log record was
//! lost. A log that ends before the manifest's durable offset is refused.

use crate::error::Result;
use crate::manifest::FileEntry;
use crate::store::Store;

/// New files of a rewrite, which no manifest names yet. Dropping them removes them.
#[derive(Debug)]
pub struct NewFiles<'a> {
    store: &'a Store,
    /// Complete files, in the order in which they were written.
    pub entries: Vec<FileEntry>,
}

impl<'a> NewFiles<'a> {
    /// No file.
    pub fn new(store: &'a Store) -> NewFiles<'a> {
        NewFiles { store, entries: Vec::new() }
    }

    /// Number of bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(|file| file.bytes).sum()
    }

    /// Syncs the log and names the files in the manifest, in the place of the replaced ones.
    /// Returns the number of their bytes.
    ///
    /// - `log`: syncs the log, and returns the offset up to which it is durable.
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
