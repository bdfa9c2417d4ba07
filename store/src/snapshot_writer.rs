//! A snapshot under construction: its files, until a manifest names them.

use crate::error::{Error, Result};
use crate::log::Position;
use crate::manifest::{FileEntry, Role, Tag};
use crate::snapshot::FileWriter;
use crate::store::Store;

impl Store {
    /// Begins a snapshot. `replay` is the log's durable end, taken before the walk begins:
    /// [`Log::durable`](crate::Log::durable), or what the committer last published as synced. Not
    /// its written end: after a failed sync that place would be void.
    pub fn begin_snapshot(&self, replay: Position) -> SnapshotWriter<'_> {
        SnapshotWriter::new(self, self.number_snapshot(), replay)
    }
}

/// One snapshot under construction. Dropped without [`commit`](SnapshotWriter::commit) it leaves no
/// trace but files that are swept.
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

    /// Files that are begun from now on fail with [`Error::Full`] where they would leave the disk
    /// with less than so many bytes.
    pub fn keep_free(&mut self, bytes: u64) {
        self.keep_free = bytes;
    }

    /// Where replay will begin.
    pub fn replay(&self) -> Position {
        self.replay
    }

    /// The files of the last snapshot that hold this space, kind and version of a table, if it has
    /// them: then the table has not changed, and they become part of this snapshot too. Returns how
    /// many.
    pub fn carry_over(&mut self, tag: &Tag) -> usize {
        let same =
            |f: &&FileEntry| f.role == Role::Snapshot && f.tag == *tag && !self.carried.contains(f);
        let files: Vec<FileEntry> =
            self.store.manifest().files.iter().filter(same).cloned().collect();
        let n = files.len();
        self.carried.extend(files);
        n
    }

    /// Begins a file. Several may be written at once, on several threads; each is handed back by
    /// [`add`](SnapshotWriter::add).
    pub fn file(&mut self, tag: Tag) -> Result<FileWriter> {
        let number = self.next_file;
        if number >= 1 << 24 {
            return Err(Error::Refused("a snapshot of more than 16 million files".to_string()));
        }
        self.next_file += 1;
        FileWriter::create(
            self.store.disk().clone(),
            self.store.lineage(),
            (self.number, number),
            tag,
            self.keep_free,
        )
    }

    /// Makes a finished file part of this snapshot.
    pub fn add(&mut self, file: FileEntry) {
        self.fresh.push(file);
    }

    /// Leaves out what has turned out to be no part of this snapshot.
    pub fn leave_out(&mut self, is_gone: impl Fn(&Tag) -> bool) {
        self.carried.retain(|file| !is_gone(&file.tag));
        for file in self.fresh.extract_if(.., |file| is_gone(&file.tag)) {
            let _ = self.store.disk().remove(&file.name);
        }
    }

    /// Publishes the snapshot and removes what it replaces. `durable` is where the log is durable
    /// now: past every change that was made before the walk's end (see the top of `snapshot.rs`).
    pub fn commit(mut self, durable: Position) -> Result<()> {
        if durable.offset < self.replay.offset {
            return Err(Error::Refused(format!(
                "replay is to begin at {}, but the log is durable up to {durable}",
                self.replay
            )));
        }
        self.store.check_replay(self.replay)?;
        let disk = self.store.disk();
        // One folder sync makes all names durable before the manifest names them.
        disk.sync_dir().map_err(|e| Error::io(disk.path(""), "syncing the folder", e))?;
        let mut files = std::mem::take(&mut self.fresh);
        files.append(&mut self.carried);
        // From here on a manifest on the disk may name the files, even if an error is reported.
        self.committed = true;
        self.store.publish_snapshot(self.replay, durable, files)?;
        self.store.end_snapshot(self.number);
        // What follows only saves room; the next snapshot tries again.
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
