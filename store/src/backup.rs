//! A backup: a folder that holds a whole data set as it was at one position of its log, made beside
//! running writes.
//!
//! ```text
//!   tidemark.backup              what is described here
//!   tidemark.manifest            the data folder's as it was pinned, its log durable up to the end
//!   snap-*.tsnap, cold-*.tcold   the pinned files: links where the file system can, else copies
//!   log-*.tlog                   copies: from the manifest's replay position up to the end
//! ```
//!
//! `tidemark.backup` is text, one fact a line, with one spelling, as the manifest is:
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
//! | `from` | the lowest offset that it can be restored to, and the time of the batch before it |
//! | `position` | its end: segment, byte, offset, sequence, chain value |
//! | `time` | of its last batch, milliseconds since 1970 by the writer's clock; 0 for none |
//! | `made` | when it was complete, by the clock of the server that made it |
//! | `file` | name, bytes, CRC-32C, of every file of the folder but this one; sorted by name |
//! | `check` | CRC-32C of all bytes before this line |
//!
//! **Why it is consistent.** The manifest and its files are pinned, so the log behind its replay
//! position stays, too; the end of the log is taken after that. A full sync sends the same, and a
//! start reads the same. `from` is the pinned manifest's durable offset: its files may show what
//! was logged up to there.
//!
//! **Why it is never half visible.** All of it is written and synced under a name that begins with
//! a dot, then renamed. What a kill leaves there is swept before the next backup.
//!
//! A linked file costs nothing until the server removes its own name of it. On another file system
//! files are copied; one that the last backup beside it has is linked from there.

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
use crate::replay::{BatchReader, Found, find_path};
use crate::segment::{SEGMENT_HEAD_BYTES, SegmentHead, segment_name};
use crate::store::Store;

/// The newest version that can be read; the one that is written.
pub const BACKUP_VERSION: u32 = 1;

const LIMIT_BYTES: u64 = 64 << 20;

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupFile {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// CRC-32C of all its bytes.
    pub check: u32,
}

/// What `tidemark.backup` says; see the top of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// The history that it belongs to.
    pub lineage: Lineage,
    /// The lowest offset that it can be restored to.
    pub from: u64,
    /// The time of the batch before that; 0 if it is not known.
    pub from_ms: u64,
    /// Where its log ends.
    pub position: Position,
    /// The time of its last batch; 0 for none.
    pub time_ms: u64,
    /// When it was complete.
    pub made_ms: u64,
    /// Every file but this one, sorted by name.
    pub files: Vec<BackupFile>,
}

impl Backup {
    /// The file of that name.
    pub fn file(&self, name: &str) -> Option<&BackupFile> {
        self.files.binary_search_by(|f| f.name.as_str().cmp(name)).ok().map(|at| &self.files[at])
    }

    /// Bytes of all its files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.bytes).sum()
    }

    /// The text.
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

    /// Reads the text; on an error the byte and what is wrong there.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Backup, BadManifest> {
        let bad = |at, what| BadManifest::Corrupt(at, what);
        let text = std::str::from_utf8(bytes).map_err(|e| bad(e.valid_up_to(), "not text"))?;
        let mut lines = Lines::new(text);
        let first = lines.fields("tidemark", 2)?;
        if first[0] != "backup" {
            return Err(bad(0, "not a backup's"));
        }
        match number(first[1]) {
            Some(BACKUP_VERSION) => {}
            Some(version) if version > BACKUP_VERSION => return Err(BadManifest::Version(version)),
            _ => return Err(bad(0, "there is no such format version")),
        }
        let lineage = Lineage::parse(lines.fields("lineage", 1)?[0]);
        let lineage = lineage.ok_or_else(|| bad(lines.at(), "no lineage"))?;
        let from = lines.fields("from", 2)?;
        let from = number(from[0]).zip(number(from[1]));
        let (from, from_ms) = from.ok_or_else(|| bad(lines.at(), "no place"))?;
        let position = lines.position("position")?;
        let (time_ms, made_ms) = (lines.number("time")?, lines.number("made")?);
        let mut files: Vec<BackupFile> = Vec::new();
        while lines.next_is("file ") {
            let start = lines.at();
            let f = lines.fields("file", 3)?;
            let file = number(f[1]).zip(hexadecimal(f[2])).filter(|_| is_plain_name(f[0]));
            let (bytes, check) = file.ok_or_else(|| bad(start, "no file"))?;
            // The data folder's own limit, as much again for its log.
            let fits = files.len() < 2 * MAX_FILES && bytes <= 1 << 44;
            if !fits || files.last().is_some_and(|last| *last.name >= *f[0]) {
                return Err(bad(start, "too many files, too long, or out of order"));
            }
            files.push(BackupFile { name: f[0].to_owned(), bytes, check });
        }
        let end = lines.at();
        let check = hexadecimal(lines.fields("check", 1)?[0]);
        if check != Some(Check::new().bytes(&bytes[..end]).value()) {
            return Err(bad(end, "the checksum does not match"));
        }
        if lines.at() != bytes.len() {
            return Err(bad(lines.at(), "bytes after the last line"));
        }
        Ok(Backup { lineage, from, from_ms, position, time_ms, made_ms, files })
    }

    /// Reads it from a folder; `None`: the folder is no backup.
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

    /// The same, of a folder that may not be there, or be damaged: then it is none to rely on.
    pub fn of(folder: &Path) -> Option<Backup> {
        if !folder.is_dir() {
            return None;
        }
        Backup::read(&RealDisk::open(folder).ok()?).ok().flatten()
    }
}

/// How a backup goes: told to its caller, which says whether it goes on.
pub trait BackupProgress {
    /// So many bytes are to be there in all.
    fn expect(&self, bytes: u64);
    /// So many more are there, copied or `linked`. Returns when more may come; an error ends it.
    fn advance(&self, bytes: u64, linked: bool) -> Result<()>;
    /// Has all that was changed before this call synced, and gives the log's durable end.
    fn end(&self) -> Result<Position>;
    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64;
}

/// The name under which a folder is made, beside it.
pub(crate) fn unfinished(folder: &Path) -> Result<(PathBuf, PathBuf)> {
    match (folder.parent(), folder.file_name().and_then(|name| name.to_str())) {
        (Some(parent), Some(name)) => {
            let parent =
                if parent.as_os_str().is_empty() { Path::new(".") } else { parent }.to_path_buf();
            Ok((parent.join(format!(".{name}{TEMPORARY}")), parent))
        }
        _ => Err(Error::Refused(format!("{} is no name of a folder", folder.display()))),
    }
}

/// Removes a folder and what is in it, if it is there.
pub(crate) fn clear(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(folder, "removing", e)),
        _ => Ok(()),
    }
}

/// Gives a finished folder its name, which must not be taken, durably.
pub(crate) fn publish(unfinished: &Path, folder: &Path, parent: &Path) -> Result<()> {
    if folder.symlink_metadata().is_ok() {
        return Err(Error::Refused(format!("{} exists already", folder.display())));
    }
    std::fs::rename(unfinished, folder).map_err(|e| Error::io(folder, "naming", e))?;
    sync_folder(parent)
}

/// Makes a backup in `folder`, which must not be there. `previous`: another backup, of which files
/// are linked that cannot be linked from the data folder.
pub fn back_up(
    store: &Store,
    folder: &Path,
    previous: Option<&Path>,
    course: &dyn BackupProgress,
) -> Result<Backup> {
    let (unfinished, parent) = unfinished(folder)?;
    create_folder(&parent).map_err(|e| Error::io(&parent, "creating", e))?;
    clear(&unfinished)?;
    let made = Making { store, folder: unfinished.clone(), previous: known(previous), course }
        .make()
        .and_then(|backup| publish(&unfinished, folder, &parent).map(|()| backup));
    if made.is_err() {
        // The room that it took may be what was missing.
        let _ = clear(&unfinished);
    }
    made
}

fn known(previous: Option<&Path>) -> Option<(PathBuf, Manifest)> {
    let folder = previous?;
    let manifest = Manifest::read(&RealDisk::open(folder).ok()?).ok().flatten()?;
    Some((folder.to_path_buf(), manifest))
}

struct Making<'a> {
    store: &'a Store,
    /// Where it is made.
    folder: PathBuf,
    previous: Option<(PathBuf, Manifest)>,
    course: &'a dyn BackupProgress,
}

impl Making<'_> {
    fn make(&self) -> Result<Backup> {
        let disk =
            RealDisk::open(&self.folder).map_err(|e| Error::io(&self.folder, "creating", e))?;
        let pin = self.store.pin();
        let mut manifest = pin.manifest.clone();
        self.course.expect(manifest.files.iter().map(|f| f.bytes).sum());
        let mut files = Vec::new();
        for entry in &manifest.files {
            self.bring(entry, &disk)?;
            let FileEntry { name, bytes, check, .. } = entry.clone();
            files.push(BackupFile { name, bytes, check });
        }
        // As late as can be: a backup holds what was acknowledged while the files were copied.
        let end = self.course.end()?;
        if end.offset < manifest.durable {
            return Err(Error::Refused(format!(
                "the log is durable up to {end}, but the files show what was logged up to offset \
                 {}",
                manifest.durable
            )));
        }
        let segments = self.segments(manifest.replay, end)?;
        let of_log = segments.iter().map(|(_, bytes)| bytes).sum::<u64>();
        self.course.expect(files.iter().map(|f| f.bytes).sum::<u64>() + of_log);
        for (head, bytes) in &segments {
            let name = segment_name(head.segment);
            let advance = |bytes| self.course.advance(bytes, false);
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
            made_ms: self.course.now_ms(),
            files,
        };
        replace(&disk, BACKUP, backup.encode().as_bytes())
            .map_err(|e| Error::io(disk.path(BACKUP), "writing", e))?;
        Ok(backup)
    }

    /// A file that never changes.
    fn bring(&self, entry: &FileEntry, to: &RealDisk) -> Result<()> {
        let there = to.path(&entry.name);
        let ours = self.store.path(&entry.name);
        let theirs = self.previous.as_ref().and_then(|(folder, manifest)| {
            let is_same = manifest.lineage == self.store.lineage()
                && manifest.file(&entry.name) == Some(entry);
            is_same.then(|| folder.join(&entry.name))
        });
        for from in std::iter::once(ours).chain(theirs) {
            // What is to be linked may have been cut or replaced by others: its length tells most.
            let is_whole = from.metadata().is_ok_and(|m| m.is_file() && m.len() == entry.bytes);
            if is_whole && std::fs::hard_link(&from, &there).is_ok() {
                return self.course.advance(entry.bytes, true);
            }
        }
        let advance = |bytes| self.course.advance(bytes, false);
        let disk = self.store.disk();
        let check = copy((&**disk, &entry.name), (to, &entry.name), entry.bytes, &advance)?;
        if check != entry.check {
            let what = "its checksum is not the one that the manifest has";
            return Err(Error::corrupt(disk.path(&entry.name), 0, what));
        }
        Ok(())
    }

    /// The segments from `replay` up to `end`, and how many bytes of each count.
    fn segments(&self, replay: Position, end: Position) -> Result<Vec<(SegmentHead, u64)>> {
        let path = find_path(&**self.store.disk(), self.store.lineage(), replay, false)?;
        let mut heads = path.segments;
        heads.retain(|head| head.segment <= end.segment);
        if heads.last().is_none_or(|last| last.segment != end.segment) && end != Position::START {
            return Err(Error::Refused(format!("the log does not pass through {end} any more")));
        }
        Ok(with_ends(&heads, end))
    }

    /// Reads the log back as it was copied: up to `end`, every batch. Gives the time at which the
    /// backup begins, and that of its last batch.
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
            let what = format!("the log was copied up to {reached}, not through {end}");
            return Err(Error::corrupt(name, 0, what));
        }
        // Where the batch before is not here, the next one is surely later.
        let from_ms = before.or(after).unwrap_or_else(|| self.course.now_ms());
        Ok((from_ms, time_ms))
    }
}

/// How many bytes of each segment count in a log that ends there.
pub(crate) fn with_ends(heads: &[SegmentHead], end: Position) -> Vec<(SegmentHead, u64)> {
    let bases = heads.iter().skip(1).map(|next| next.base);
    let ends = bases.chain([end.offset]);
    let sized = heads.iter().zip(ends);
    sized.map(|(head, end)| (*head, head.byte_of(end).unwrap_or(0))).collect()
}

/// Reads the batches of these segments, each from the disk beside it, up to `end`, or to the last
/// valid one. `each` gets the place after a batch, and says whether to go on: if not, the log is
/// taken to end before that batch. Gives where it ended.
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
            let what = format!("it begins at offset {}, the log before it ends at {at}", head.base);
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
                Found::Batch(batch) if each(reader.position(), &batch) => at = reader.position(),
                Found::Batch(_) => return Ok(at),
                Found::End => break,
                // The newest one may be written right now, or have lost its tail with the power.
                Found::Bad(_) if limit.is_none() && reader.proof_of_damage()?.is_none() => break,
                Found::Bad(what) => return Err(Error::corrupt(path, at.byte, what)),
            }
        }
        if limit.is_some_and(|limit| at.offset != limit) {
            let what = "it ends before the log behind it begins";
            return Err(Error::corrupt(path, at.byte, what));
        }
    }
    Ok(at)
}

/// The newest complete backup of this history in a folder of backups.
pub fn newest_in(parent: &Path, lineage: Lineage) -> Option<(PathBuf, Backup)> {
    let found = backups_in(parent).into_iter().filter(|(_, backup)| backup.lineage == lineage);
    found.max_by_key(|(_, backup)| backup.made_ms)
}

/// All complete backups in a folder.
pub fn backups_in(parent: &Path) -> Vec<(PathBuf, Backup)> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let named = entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    named.filter_map(|entry| Some((entry.path(), Backup::of(&entry.path())?))).collect()
}

/// Removes a backup, so that no half of it is ever visible under its name.
pub fn remove(folder: &Path) -> Result<()> {
    let (gone, parent) = unfinished(folder)?;
    clear(&gone)?;
    std::fs::rename(folder, &gone).map_err(|e| Error::io(folder, "removing", e))?;
    sync_folder(&parent)?;
    clear(&gone)
}

/// Removes from a folder of backups what a kill has left of one. No other process may work there.
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

/// A folder to read from.
pub(crate) fn opened(folder: &Path) -> Result<Arc<dyn Disk>> {
    if !folder.is_dir() {
        return Err(Error::Refused(format!("{} is no folder", folder.display())));
    }
    Ok(Arc::new(RealDisk::open(folder).map_err(|e| Error::io(folder, "opening", e))?))
}
