//! Log archive in the backup folder. A restore can use the archive to replay the log past the end
//! of a backup, up to any position or time.
//!
//! ```text
//!   log/<lineage>-<term>/log-0000000000000012.tlog     complete: a hard link if possible
//!                       /log-0000000000000013.tlog     newest: a growing copy
//! ```
//!
//! Lineage, term and number together identify the contents of a segment. Only one node writes under
//! a term, and it uses each segment number once. A replica's log is identical to its master's.
//! Diverged histories therefore have separate folders. A file that already has the expected length
//! need not be copied again.
//!
//! A segment is final once its successor has a batch. No node writes to a final segment again
//! (log.rs, L5), and a replica removes only empty segments (replica_log.rs). Final segments are
//! hard links where possible.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::copy::{append, copy, sync_folder};
use crate::disk::{Disk, RealDisk, TEMPORARY};
use crate::error::{Error, Result};
use crate::log::Position;
use crate::replay::segments_back;
use crate::segment::{SegmentHead, SegmentName, parse_segment_name, segment_name};
use crate::store::Store;

/// Name of the archive in a folder of backups.
pub const ARCHIVE: &str = "log";

fn folder_name(head: &SegmentHead) -> String {
    format!("{}-{:016x}", head.lineage, head.term)
}

/// Newest archived segment.
#[derive(Clone, Copy, Debug)]
struct ArchivedSegment {
    head: SegmentHead,
    /// Number of bytes that are archived and synced.
    bytes: u64,
}

/// Archiver of one store's log.
#[derive(Debug)]
pub struct Archive {
    folder: PathBuf,
    newest_segment: Option<ArchivedSegment>,
}

impl Archive {
    /// Returns the archiver for a folder of backups.
    pub fn new(root: &Path) -> Archive {
        Archive { folder: root.join(ARCHIVE), newest_segment: None }
    }

    /// Archives the log up to `durable`. Returns the first segment that the archive still needs.
    ///
    /// `advance` receives the number of copied bytes. If it returns an error, the call stops with
    /// that error.
    pub fn follow(
        &mut self,
        store: &Store,
        durable: Position,
        advance: &dyn Fn(u64) -> Result<()>,
    ) -> Result<u64> {
        let disk = store.disk();
        let mut heads = Vec::new();
        let mut wanted = durable.segment;
        // Read the segment headers backward, from the newest segment to the last archived segment.
        while let Some(head) = segments_back(&**disk, wanted, 1)?.pop() {
            heads.push(head);
            wanted = head.previous;
            if self.newest_segment.is_some_and(|newest_segment| newest_segment.head == head) {
                break;
            }
        }
        heads.reverse();
        let ends = heads.iter().skip(1).map(|next| next.base).chain([durable.offset]);
        for (i, (head, end)) in heads.iter().zip(ends).enumerate() {
            let bytes = head.byte_of(end).unwrap_or(0);
            let is_newest = i + 1 == heads.len();
            // An empty successor may still be removed.
            let is_final = heads.get(i + 1).is_some_and(|next| durable.offset > next.base);
            let newest_segment =
                self.newest_segment.filter(|newest_segment| newest_segment.head == *head);
            let have = newest_segment.map(|newest_segment| newest_segment.bytes);
            if have.is_none_or(|have| have < bytes) || (is_final && have.is_some()) {
                self.copy_segment(&**disk, head, (have, bytes), (is_newest, is_final), advance)?;
                self.newest_segment = Some(ArchivedSegment { head: *head, bytes });
            }
        }
        Ok(self
            .newest_segment
            .map_or(durable.segment, |newest_segment| newest_segment.head.segment))
    }

    fn copy_segment(
        &self,
        from: &dyn Disk,
        head: &SegmentHead,
        (have, bytes): (Option<u64>, u64),
        (is_newest, is_final): (bool, bool),
        advance: &dyn Fn(u64) -> Result<()>,
    ) -> Result<()> {
        let folder = self.folder.join(folder_name(head));
        let to = RealDisk::open(&folder).map_err(|e| Error::io(&folder, "creating", e))?;
        let name = segment_name(head.segment);
        let there = to.path(&name);
        let size = there.metadata().map_or(0, |m| m.len());
        // An earlier process may not have synced the end of the newest segment.
        if have.is_none() && !is_newest && size >= bytes {
            return Ok(());
        }
        let temporary = to.path(&format!("{name}{TEMPORARY}"));
        let _ = std::fs::remove_file(&temporary);
        let put = || -> Result<()> {
            std::fs::rename(&temporary, &there).map_err(|e| Error::io(&there, "naming", e))?;
            sync_folder(&folder)
        };
        if is_final && std::fs::hard_link(from.path(&name), &temporary).is_ok() {
            return put();
        }
        if let Some(have) = have.filter(|have| *have <= size) {
            let io = |e| Error::io(&there, "opening", e);
            let file = to.open_write(&name).map_err(io)?;
            // Truncate the bytes that a failed attempt has left.
            file.set_size(have).map_err(io)?;
            return append((from, &name), (&*file, &there), have..bytes, advance).map(|_| ());
        }
        copy((from, &name), (&to, &format!("{name}{TEMPORARY}")), bytes, advance)?;
        put()
    }

    /// Removes segments last modified before `oldest`, except for the newest segment, and removes
    /// empty folders. Returns the number of removed segments.
    pub fn trim(&self, oldest: SystemTime) -> Result<u64> {
        let mut removed = 0;
        for (folder, _) in folders_in(&self.folder) {
            let names = RealDisk::open(&folder).and_then(|disk| disk.list());
            for name in names.map_err(|e| Error::io(&folder, "listing", e))? {
                // Also remove temporary files of a killed process.
                let whole = name.strip_suffix(TEMPORARY).unwrap_or(&name);
                let is_newest = self.newest_segment.is_some_and(|newest_segment| {
                    folder.ends_with(folder_name(&newest_segment.head))
                        && name == segment_name(newest_segment.head.segment)
                });
                if is_newest || !matches!(parse_segment_name(whole), SegmentName::Segment(_)) {
                    continue;
                }
                let path = folder.join(&name);
                let written = path.metadata().and_then(|m| m.modified()).unwrap_or(oldest);
                if written < oldest {
                    std::fs::remove_file(&path).map_err(|e| Error::io(&path, "removing", e))?;
                    removed += 1;
                }
            }
            // Fails if the folder is not empty.
            let _ = std::fs::remove_dir(&folder);
        }
        Ok(removed)
    }
}

/// Returns the folders of an archive with the sorted names of their segments.
pub(crate) fn folders_in(archive: &Path) -> Vec<(PathBuf, Vec<String>)> {
    let entries = std::fs::read_dir(archive).into_iter().flatten().flatten();
    let folders = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
    folders
        .filter_map(|folder| {
            let mut names = RealDisk::open(&folder).ok()?.list().ok()?;
            names.retain(|name| matches!(parse_segment_name(name), SegmentName::Segment(_)));
            Some((folder, names))
        })
        .collect()
}
