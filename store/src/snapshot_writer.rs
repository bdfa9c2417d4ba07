//! A snapshot in progress: its files until a manifest lists them.

use crate::error::{Error, Result};
use crate::log::Position;
use crate::manifest::{FileEntry, Role, Tag};
use crate::snapshot::SnapshotFileWriter;
use crate::store::Store;

impl Store {
    /// Begins a snapshot.
    ///
    /// `replay` is the durable end of the log before the walk begins:
    /// [`Log::durable`](crate::Log::durable), or the synced position that the committer last
    /// published. The written end is unsuitable, because a failed sync would make it void.
    pub fn begin_snapshot(&self, replay: Position) -> SnapshotWriter<'_> {
        SnapshotWriter::new(self, self.number_snapshot(), replay)
    }
}

/// Writer of one snapshot. If dropped before [`commit`](SnapshotWriter::commit), removes the files
/// that were added with [`add`](SnapshotWriter::add).
#[derive(Debug)]
pub struct SnapshotWriter<'a> {
    store: &'a Store,
    number: u64,
    replay: Position,
    next_file: u64,
    fresh: Vec<FileEntry>,
    carried: Vec<FileEntry>,
    keep_free: u64,
    committed: bool,
}

impl<'a> SnapshotWriter<'a> {
    fn new(store: &'a Store, number: u64, replay: Position) -> SnapshotWriter<'a> {
        let (fresh, carried) = Default::default();
        SnapshotWriter {
            store,
            number,
            replay,
            next_file: 1,
            fresh,
            carried,
            keep_free: 0,
            committed: false,
        }
    }

    /// Sets the free disk space in bytes below which writes to new files fail with [`Error::Full`].
    pub fn keep_free(&mut self, bytes: u64) {
        self.keep_free = bytes;
    }

    /// Returns the position at which replay will begin.
    pub fn replay(&self) -> Position {
        self.replay
    }

    /// Reuses the last snapshot's files of an unchanged table, identified by space, kind and
    /// version. Returns the number of reused files.
    pub fn carry_over(&mut self, tag: &Tag) -> usize {
        let same =
            |f: &&FileEntry| f.role == Role::Snapshot && f.tag == *tag && !self.carried.contains(f);
        let files: Vec<FileEntry> =
            self.store.manifest().files.iter().filter(same).cloned().collect();
        let n = files.len();
        self.carried.extend(files);
        n
    }

    /// Begins a file. Several threads may write files concurrently. Finished files are added with
    /// [`add`](SnapshotWriter::add).
    pub fn file(&mut self, tag: Tag) -> Result<SnapshotFileWriter> {
        let number = self.next_file;
        if number >= 1 << 24 {
            return Err(Error::Refused("more than 16 million files in a snapshot".to_string()));
        }
        self.next_file += 1;
        SnapshotFileWriter::create(
            self.store.disk().clone(),
            self.store.lineage(),
            (self.number, number),
            tag,
            self.keep_free,
        )
    }

    /// Adds a finished file to this snapshot.
    pub fn add(&mut self, file: FileEntry) {
        self.fresh.push(file);
    }

    /// Removes the files of spaces or tables that were dropped during the snapshot.
    pub fn leave_out(&mut self, is_gone: impl Fn(&Tag) -> bool) {
        self.carried.retain(|file| !is_gone(&file.tag));
        for file in self.fresh.extract_if(.., |file| is_gone(&file.tag)) {
            let _ = self.store.disk().remove(&file.name);
        }
    }

    /// Publishes the snapshot and removes the files that it replaces.
    ///
    /// `durable` is the current durable end of the log, past every change made before the walk
    /// ended (see the head of `snapshot.rs`).
    pub fn commit(mut self, durable: Position) -> Result<()> {
        if durable.offset < self.replay.offset {
            return Err(Error::Refused(format!(
                "replay would start at {}, but the log is durable only up to {durable}",
                self.replay
            )));
        }
        self.store.check_replay(self.replay)?;
        let disk = self.store.disk();
        // One sync of the folder makes all names durable before the manifest lists them.
        disk.sync_dir().map_err(|e| Error::io(disk.path(""), "syncing the folder", e))?;
        let mut files = std::mem::take(&mut self.fresh);
        files.append(&mut self.carried);
        // Even after an error, a manifest on disk may name the files.
        self.committed = true;
        self.store.publish_snapshot(self.replay, durable, files)?;
        self.store.end_snapshot(self.number);
        // This call is best effort, because the next snapshot retries.
        let _ = self.store.trim();
        Ok(())
    }
}

impl Drop for SnapshotWriter<'_> {
    fn drop(&mut self) {
        self.store.end_snapshot(self.number);
        if !self.committed {
            for file in &self.fresh {
                let _ = self.store.disk().remove(&file.name);
            }
        }
    }
}
