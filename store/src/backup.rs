//! Backups. A backup is a folder with a complete data set as of one log position. The server makes
//! a backup while it accepts writes.
//!
//! ```text
//!   tidemark.backup              description of the backup, see below
//!   tidemark.manifest            the pinned manifest, with the durable offset of the log's end
//!   snap-*.tsnap, cold-*.tcold   the pinned files: hard links if possible, else copies
//!   log-*.tlog                   copies, from the manifest's replay position to the end
//! ```
//!
//! `tidemark.backup` is text with one fact per line in canonical form, like the manifest:
//!
//! ```text
//!   tidemark backup 1
//!   lineage 6f0c0d9bb4b24a0d8f1f6f7a5f0c2e11
//!   from 1239999 1764040000000
//!   position 13 4096 1300000 8911 9a3c77e0
//!   time 1764040001123
//!   made 1764040002000
//!   file log-0000000000000012.tlog 73400412 c0ffee00
//!   check 5d2f0c11
//! ```
//!
//! | line | fields |
//! |---|---|
//! | `from` | lowest offset to which a restore is possible, and the time of the batch before it |
//! | `position` | end of the log: segment, byte, offset, sequence, chain value |
//! | `time` | of the last batch, milliseconds since 1970 by the writer's clock; 0 for none |
//! | `made` | time of completion by the clock of the server |
//! | `file` | name, bytes, CRC-32C of every other file of the folder; sorted by name |
//! | `check` | CRC-32C of all bytes before this line |
//!
//! **Consistency.** The backup pins the manifest, its files and the log from its replay position,
//! and then reads the log's end. A backup therefore has the same contents as a full sync, and
//! startup reads both in the same way. `from` is the durable offset of the pinned manifest, because
//! the files may show changes logged up to there.
//!
//! **Atomicity.** The backup is written and synced under a name with a leading dot, then renamed.
//! The next backup removes files left by a killed process.
//!
//! A hard link uses no extra space until the server removes the original. On another file system
//! files are copied, unless the previous backup has a copy to link to.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::batch::{BatchHead, Lineage};
use crate::copy::{copy, sync_folder};
use crate::disk::{Disk, RealDisk, TEMPORARY, create_folder, read_whole, replace};
use crate::error::{Error, Result};
use crate::frame::Check;
use crate::log::Position;
use crate::manifest::{
    BACKUP, BadManifest, FileEntry, Lines, MANIFEST, MAX_FILES, Manifest, hexadecimal, is_ours,
    is_plain_name, number,
};
use crate::replay::{BatchReader, NextBatch, find_path};
use crate::segment::{SEGMENT_HEAD_BYTES, SegmentHead, segment_name};
use crate::store::Store;

/// Backup format version that this release writes, and the newest that it reads.
pub const BACKUP_VERSION: u32 = 1;

const LIMIT_BYTES: u64 = 64 << 20;

/// Entry of a file in a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupFile {
    /// Name of the file.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// CRC-32C of all bytes.
    pub check: u32,
}

/// Contents of `tidemark.backup`; see the head of this file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// Lineage of the data set.
    pub lineage: Lineage,
    /// Lowest offset to which a restore is possible.
    pub from: u64,
    /// Time of the batch before `from`, in milliseconds since 1970; 0 if unknown.
    pub from_ms: u64,
    /// End of the log.
    pub position: Position,
    /// Time of the last batch, in milliseconds since 1970; 0 for none.
    pub time_ms: u64,
    /// Time of completion, in milliseconds since 1970.
    pub made_ms: u64,
    /// All files except `tidemark.backup`, sorted by name.
    pub files: Vec<BackupFile>,
}

impl Backup {
    /// Returns the entry with this name.
    pub fn file(&self, name: &str) -> Option<&BackupFile> {
        self.files.binary_search_by(|f| f.name.as_str().cmp(name)).ok().map(|at| &self.files[at])
    }

    /// Returns the total size of the files in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.bytes).sum()
    }

    /// Encodes the description as text.
    pub fn encode(&self) -> String {
        let at = &self.position;
        let mut text = format!(
            "tidemark backup {BACKUP_VERSION}\nlineage {}\nfrom {} {}\n\
             position {} {} {} {} {:08x}\ntime {}\nmade {}\n",
            self.lineage,
            self.from,
            self.from_ms,
            at.segment,
            at.byte,
            at.offset,
            at.sequence,
            at.chain,
            self.time_ms,
            self.made_ms,
        );
        for BackupFile { name, bytes, check } in &self.files {
            text.push_str(&format!("file {name} {bytes} {check:08x}\n"));
        }
        let check = Check::new().bytes(text.as_bytes()).value();
        text.push_str(&format!("check {check:08x}\n"));
        text
    }

    /// Decodes a description. An error contains the byte offset and the reason.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Backup, BadManifest> {
        let bad = |at, what| BadManifest::Corrupt(at, what);
        let text =
            std::str::from_utf8(bytes).map_err(|e| bad(e.valid_up_to(), "not valid UTF-8"))?;
        let mut lines = Lines::new(text);
        let first = lines.fields("tidemark", 2)?;
        if first[0] != "backup" {
            return Err(bad(0, "not a backup file"));
        }
        match number(first[1]) {
            Some(BACKUP_VERSION) => {}
            Some(version) if version > BACKUP_VERSION => return Err(BadManifest::Version(version)),
            _ => return Err(bad(0, "unknown format version")),
        }
        let lineage = Lineage::parse(lines.fields("lineage", 1)?[0]);
        let lineage = lineage.ok_or_else(|| bad(lines.at(), "invalid lineage"))?;
        let from = lines.fields("from", 2)?;
        let from = number(from[0]).zip(number(from[1]));
        let (from, from_ms) = from.ok_or_else(|| bad(lines.at(), "invalid position"))?;
        let position = lines.position("position")?;
        let (time_ms, made_ms) = (lines.number("time")?, lines.number("made")?);
        let mut files: Vec<BackupFile> = Vec::new();
        while lines.next_is("file ") {
            let start = lines.at();
            let f = lines.fields("file", 3)?;
            let file = number(f[1]).zip(hexadecimal(f[2])).filter(|_| is_plain_name(f[0]));
            let (bytes, check) = file.ok_or_else(|| bad(start, "invalid file entry"))?;
            // The limit is twice the manifest's limit, because the log's segments are also files of
            // a backup.
            let fits = files.len() < 2 * MAX_FILES && bytes <= 1 << 44;
            if !fits || files.last().is_some_and(|last| *last.name >= *f[0]) {
                return Err(bad(start, "too many files, too long, or out of order"));
            }
            files.push(BackupFile { name: f[0].to_owned(), bytes, check });
        }
        let end = lines.at();
        let check = hexadecimal(lines.fields("check", 1)?[0]);
        if check != Some(Check::new().bytes(&bytes[..end]).value()) {
            return Err(bad(end, "checksum mismatch"));
        }
        if lines.at() != bytes.len() {
            return Err(bad(lines.at(), "bytes after the last line"));
        }
        Ok(Backup { lineage, from, from_ms, position, time_ms, made_ms, files })
    }

    /// Reads the description from a folder. Returns `None` if the folder is not a backup.
    pub fn read(disk: &dyn Disk) -> Result<Option<Backup>> {
        let path = disk.path(BACKUP);
        let bytes = match read_whole(disk, BACKUP, LIMIT_BYTES) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io(path, "reading", e)),
        };
        match Backup::decode(&bytes) {
            Ok(backup) => Ok(Some(backup)),
            Err(BadManifest::Version(found)) => {
                Err(Error::Version { path, found, newest: BACKUP_VERSION })
            }
            Err(BadManifest::Corrupt(at, what)) => Err(Error::corrupt(path, at as u64, what)),
        }
    }

    /// Like [`Backup::read`], but also returns `None` for a missing folder or a damaged
    /// description.
    pub fn of(folder: &Path) -> Option<Backup> {
        if !folder.is_dir() {
            return None;
        }
        Backup::read(&RealDisk::open(folder).ok()?).ok().flatten()
    }
}

/// Progress reports and control of a backup in progress.
pub trait BackupProgress {
    /// Reports the expected total size in bytes.
    fn expect(&self, bytes: u64);
    /// Reports that `bytes` more bytes were copied, or hard-linked if `linked` is true. May block
    /// to limit the rate; an error aborts the backup.
    fn advance(&self, bytes: u64, linked: bool) -> Result<()>;
    /// Syncs all changes made before this call. Returns the durable end of the log.
    fn end(&self) -> Result<Position>;
    /// Returns milliseconds since 1970.
    fn now_ms(&self) -> u64;
}

/// Returns the temporary name for a new folder, and its parent folder.
pub(crate) fn unfinished(folder: &Path) -> Result<(PathBuf, PathBuf)> {
    match (folder.parent(), folder.file_name().and_then(|name| name.to_str())) {
        (Some(parent), Some(name)) => {
            let parent =
                if parent.as_os_str().is_empty() { Path::new(".") } else { parent }.to_path_buf();
            Ok((parent.join(format!(".{name}{TEMPORARY}")), parent))
        }
        _ => Err(Error::Refused(format!("{} is not a valid folder name", folder.display()))),
    }
}

pub(crate) fn clear(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(folder, "removing", e)),
        _ => Ok(()),
    }
}

/// Renames a finished folder to its final name, durably. Fails if the name is taken.
pub(crate) fn publish(unfinished: &Path, folder: &Path, parent: &Path) -> Result<()> {
    if folder.symlink_metadata().is_ok() {
        return Err(Error::Refused(format!("{} exists already", folder.display())));
    }
    std::fs::rename(unfinished, folder).map_err(|e| Error::io(folder, "naming", e))?;
    sync_folder(parent)
}

/// Makes a backup in `folder`, which must not exist. Files that cannot be linked from the data
/// folder are linked from the backup `previous` if possible.
pub fn back_up(
    store: &Store,
    folder: &Path,
    previous: Option<&Path>,
    progress: &dyn BackupProgress,
) -> Result<Backup> {
    let (unfinished, parent) = unfinished(folder)?;
    create_folder(&parent).map_err(|e| Error::io(&parent, "creating", e))?;
    clear(&unfinished)?;
    let made = BackupJob { store, folder: unfinished.clone(), previous: known(previous), progress }
        .make()
        .and_then(|backup| publish(&unfinished, folder, &parent).map(|()| backup));
    if made.is_err() {
        // Free the space, because a full disk may have caused the failure.
        let _ = clear(&unfinished);
    }
    made
}

fn known(previous: Option<&Path>) -> Option<(PathBuf, Manifest)> {
    let folder = previous?;
    let manifest = Manifest::read(&RealDisk::open(folder).ok()?).ok().flatten()?;
    Some((folder.to_path_buf(), manifest))
}

struct BackupJob<'a> {
    store: &'a Store,
    folder: PathBuf,
    previous: Option<(PathBuf, Manifest)>,
    progress: &'a dyn BackupProgress,
}

impl BackupJob<'_> {
    fn make(&self) -> Result<Backup> {
        let disk =
            RealDisk::open(&self.folder).map_err(|e| Error::io(&self.folder, "creating", e))?;
        let pin = self.store.pin();
        let mut manifest = pin.manifest.clone();
        self.progress.expect(manifest.files.iter().map(|f| f.bytes).sum());
        let mut files = Vec::new();
        for entry in &manifest.files {
            self.copy_file(entry, &disk)?;
            let FileEntry { name, bytes, check, .. } = entry.clone();
            files.push(BackupFile { name, bytes, check });
        }
        // Read the end as late as possible, to include writes acknowledged during the copy.
        let end = self.progress.end()?;
        if end.offset < manifest.durable {
            return Err(Error::Refused(format!(
                "the log is durable up to {end}, but the files contain changes up to offset {}",
                manifest.durable
            )));
        }
        let segments = self.segments(manifest.replay, end)?;
        let of_log = segments.iter().map(|(_, bytes)| bytes).sum::<u64>();
        self.progress.expect(files.iter().map(|f| f.bytes).sum::<u64>() + of_log);
        for (head, bytes) in &segments {
            let name = segment_name(head.segment);
            let advance = |bytes| self.progress.advance(bytes, false);
            let check = copy((&**self.store.disk(), &name), (&disk, &name), *bytes, &advance)?;
            files.push(BackupFile { name, bytes: *bytes, check });
        }
        let (from_ms, time_ms) = self.verify(&segments, &manifest, end, &disk)?;

        let from = manifest.durable.max(manifest.replay.offset);
        manifest.durable = end.offset;
        manifest.term = segments.last().map_or(manifest.term, |(head, _)| head.term);
        let text = manifest.encode();
        manifest.write(&disk)?;
        files.push(BackupFile {
            name: MANIFEST.to_owned(),
            bytes: text.len() as u64,
            check: crc32c::crc32c(text.as_bytes()),
        });
        files.sort_by(|a, b| a.name.cmp(&b.name));
        let backup = Backup {
            lineage: manifest.lineage,
            from,
            from_ms,
            position: end,
            time_ms,
            made_ms: self.progress.now_ms(),
            files,
        };
        replace(&disk, BACKUP, backup.encode().as_bytes())
            .map_err(|e| Error::io(disk.path(BACKUP), "writing", e))?;
        Ok(backup)
    }

    fn copy_file(&self, entry: &FileEntry, to: &RealDisk) -> Result<()> {
        let there = to.path(&entry.name);
        let ours = self.store.path(&entry.name);
        let theirs = self.previous.as_ref().and_then(|(folder, manifest)| {
            let is_same = manifest.lineage == self.store.lineage()
                && manifest.file(&entry.name) == Some(entry);
            is_same.then(|| folder.join(&entry.name))
        });
        for from in std::iter::once(ours).chain(theirs) {
            // An operator may have truncated or replaced the link's target. Comparing the length
            // detects most such changes.
            let is_whole = from.metadata().is_ok_and(|m| m.is_file() && m.len() == entry.bytes);
            if is_whole && std::fs::hard_link(&from, &there).is_ok() {
                return self.progress.advance(entry.bytes, true);
            }
        }
        let advance = |bytes| self.progress.advance(bytes, false);
        let disk = self.store.disk();
        let check = copy((&**disk, &entry.name), (to, &entry.name), entry.bytes, &advance)?;
        if check != entry.check {
            let what = "its checksum differs from the manifest";
            return Err(Error::corrupt(disk.path(&entry.name), 0, what));
        }
        Ok(())
    }

    /// Returns the segments from `replay` to `end`, and the number of valid bytes in each.
    fn segments(&self, replay: Position, end: Position) -> Result<Vec<(SegmentHead, u64)>> {
        let path = find_path(&**self.store.disk(), self.store.lineage(), replay, false)?;
        let mut heads = path.segments;
        heads.retain(|head| head.segment <= end.segment);
        if heads.last().is_none_or(|last| last.segment != end.segment) && end != Position::START {
            return Err(Error::Refused(format!("the log no longer contains {end}")));
        }
        Ok(with_ends(&heads, end))
    }

    /// Verifies every batch of the copied log up to `end`. Returns the time of the batch before
    /// `from` and the time of the last batch.
    fn verify(
        &self,
        segments: &[(SegmentHead, u64)],
        manifest: &Manifest,
        end: Position,
        disk: &RealDisk,
    ) -> Result<(u64, u64)> {
        let from = manifest.durable.max(manifest.replay.offset);
        let (mut before, mut after, mut time_ms) = (None, None, 0);
        let mut passes = manifest.replay.byte == SEGMENT_HEAD_BYTES;
        let heads: Vec<_> = segments.iter().map(|(head, _)| (*head, disk as &dyn Disk)).collect();
        let reached = walk(&heads, Some(end), &mut |at, batch| {
            passes |= at == manifest.replay;
            if at.offset <= from {
                before = Some(batch.time_ms);
            } else {
                after = after.or(Some(batch.time_ms));
            }
            time_ms = batch.time_ms;
            true
        })?;
        if !segments.is_empty() && (reached != end || !passes) {
            let name = disk.path(&segment_name(reached.segment));
            let what = format!("the log was copied up to {reached}, which does not include {end}");
            return Err(Error::corrupt(name, 0, what));
        }
        // If the batch before `from` is not available, the next batch's time is a safe upper bound.
        let from_ms = before.or(after).unwrap_or_else(|| self.progress.now_ms());
        Ok((from_ms, time_ms))
    }
}

/// Returns the number of valid bytes of each segment in a log that ends at `end`.
pub(crate) fn with_ends(heads: &[SegmentHead], end: Position) -> Vec<(SegmentHead, u64)> {
    let bases = heads.iter().skip(1).map(|next| next.base);
    let ends = bases.chain([end.offset]);
    let sized = heads.iter().zip(ends);
    sized.map(|(head, end)| (*head, head.byte_of(end).unwrap_or(0))).collect()
}

/// Reads the batches of the segments up to `end`, or to the last valid batch. Returns the end.
///
/// `each` receives the position after a batch. If `each` returns false, the walk stops, and that
/// batch is not included.
pub(crate) fn walk(
    segments: &[(SegmentHead, &dyn Disk)],
    end: Option<Position>,
    each: &mut dyn FnMut(Position, &BatchHead) -> bool,
) -> Result<Position> {
    let mut at = Position::START;
    for (i, (head, disk)) in segments.iter().enumerate() {
        let name = segment_name(head.segment);
        let path = disk.path(&name);
        if i > 0 && (at.offset, at.sequence, at.chain) != (head.base, head.sequence, head.chain) {
            let what =
                format!("it starts at offset {}, but the previous segment ends at {at}", head.base);
            return Err(Error::corrupt(path, 48, what));
        }
        let file = disk.open(&name).map_err(|e| Error::io(&path, "opening", e))?;
        let mut reader = BatchReader::new(file, path.clone(), *head, None)?;
        at = reader.position();
        let next = segments.get(i + 1).map(|(next, _)| next.base);
        let limit = next.or(end.map(|end| end.offset));
        if let Some(limit) = limit {
            reader.read_up_to(head.byte_of(limit).unwrap_or(0))?;
        }
        loop {
            match reader.next()? {
                NextBatch::Batch(batch) if each(reader.position(), &batch) => {
                    at = reader.position()
                }
                NextBatch::Batch(_) => return Ok(at),
                NextBatch::End => break,
                // The newest segment may be in use or have a torn tail.
                NextBatch::Bad(_) if limit.is_none() && reader.proof_of_damage()?.is_none() => {
                    break;
                }
                NextBatch::Bad(what) => return Err(Error::corrupt(path, at.byte, what)),
            }
        }
        if limit.is_some_and(|limit| at.offset != limit) {
            let what = "it ends before the next segment starts";
            return Err(Error::corrupt(path, at.byte, what));
        }
    }
    Ok(at)
}

/// Returns the newest complete backup of this lineage in a folder of backups.
pub fn newest_backup_in(parent: &Path, lineage: Lineage) -> Option<(PathBuf, Backup)> {
    let found = backups_in(parent).into_iter().filter(|(_, backup)| backup.lineage == lineage);
    found.max_by_key(|(_, backup)| backup.made_ms)
}

/// Returns all complete backups in a folder.
pub fn backups_in(parent: &Path) -> Vec<(PathBuf, Backup)> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let named = entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    named.filter_map(|entry| Some((entry.path(), Backup::of(&entry.path())?))).collect()
}

/// Removes a backup. The backup's name disappears atomically.
pub fn remove(folder: &Path) -> Result<()> {
    let (gone, parent) = unfinished(folder)?;
    clear(&gone)?;
    std::fs::rename(folder, &gone).map_err(|e| Error::io(folder, "removing", e))?;
    sync_folder(&parent)?;
    clear(&gone)
}

/// Removes unfinished backups of killed processes from a folder of backups. No other process may
/// use the folder.
pub fn sweep(parent: &Path) -> Result<()> {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_unfinished = name.as_encoded_bytes().starts_with(b".")
            && name.as_encoded_bytes().ends_with(TEMPORARY.as_bytes())
            && entry.file_type().is_ok_and(|kind| kind.is_dir());
        let is_file = |name: &std::ffi::OsString| {
            name.to_str().is_some_and(|name| is_ours(name) || name.starts_with(BACKUP))
        };
        let mut files = std::fs::read_dir(entry.path()).into_iter().flatten().flatten();
        if is_unfinished && files.all(|file| is_file(&file.file_name())) {
            clear(&entry.path())?;
        }
    }
    Ok(())
}

pub(crate) fn open_disk(folder: &Path) -> Result<Arc<dyn Disk>> {
    if !folder.is_dir() {
        return Err(Error::Refused(format!("{} is not a folder", folder.display())));
    }
    Ok(Arc::new(RealDisk::open(folder).map_err(|e| Error::io(folder, "opening", e))?))
}
