//! Staging area of a full sync. The new data set is stored next to the current data set and
//! replaces it atomically at the end.
//!
//! ```text
//!   staged-plan.manifest          the master's manifest
//!   staged-snap-..1.tsnap.tmp     partially fetched; the next link resumes it
//!   staged-snap-..2.tsnap         complete, verified, durable
//!   staged-log-..12.tlog          log from the manifest's replay position (replica_log.rs)
//!   staged-next.manifest          committed: this is the data set from now on               (1)
//!   staged-now.manifest           the old segments are removed                              (2)
//!   tidemark.manifest             all files have their final names
//! ```
//!
//! After a crash before (1), the old data set remains, and a later attempt can use the fetched
//! files. After (1), [`adopt`] completes the replacement at the next startup. Between (1) and (2)
//! no staged file has its final name, so all segments with final names are old. After (2) all
//! segments with final names are new. Files that both data sets share, with equal lineage and
//! entry, are neither fetched nor moved.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::batch::Lineage;
use crate::disk::{Disk, DiskFile, TEMPORARY, read_full_at, replace, write_all_at};
use crate::error::{Error, Result};
use crate::manifest::{FileEntry, MANIFEST, Manifest, Role, Tag, is_ours};
use crate::replica_log::ReplicaLog;
use crate::segment::{SegmentName, parse_segment_name};
use crate::snapshot::{MAX_CHUNK_BYTES, read_small};

/// Bytes of staged files that one call of [`Staging::look`] verifies.
pub const VERIFY_BYTES_PER_CALL: u64 = 1 << 20;

/// Name prefix of staged files.
pub const STAGED_PREFIX: &str = "staged-";

/// The master's manifest: the files to fetch.
const PLAN: &str = "staged-plan.manifest";
/// File of step (1) in the module's documentation.
const NEXT: &str = "staged-next.manifest";
/// File of step (2) in the module's documentation.
const NOW: &str = "staged-now.manifest";

/// View of the staged files as a separate folder.
#[derive(Debug)]
struct StagedDisk(Arc<dyn Disk>);

fn staged(name: &str) -> String {
    format!("{STAGED_PREFIX}{name}")
}

impl Disk for StagedDisk {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path(&staged(name))
    }
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.0.create(&staged(name))
    }
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.0.open(&staged(name))
    }
    fn open_write(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.0.open_write(&staged(name))
    }
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self
            .0
            .list()?
            .iter()
            .filter_map(|name| name.strip_prefix(STAGED_PREFIX))
            .map(str::to_owned)
            .collect())
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(&staged(from), &staged(to))
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(&staged(name))
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.0.sync_dir()
    }
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        Err(io::Error::other("staged files have no lock of their own"))
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.0.free_bytes()
    }
}

/// A data set that is being fetched.
#[derive(Debug)]
pub struct Staging {
    staged_disk: Arc<dyn Disk>,
    main: Arc<dyn Disk>,
    manifest: Manifest,
    /// Files to fetch, largest first. The last file is fetched next.
    missing: Vec<FileEntry>,
    /// Complete files of an earlier link that are not verified yet.
    left: Vec<FileEntry>,
    whole: Vec<FileEntry>,
    /// Number of verified bytes of the last file in `left`, and their CRC-32C.
    looked: (u64, u32),
    /// The file being fetched, and its current size in bytes.
    file: Option<(Box<dyn DiskFile>, u64)>,
    log: Option<ReplicaLog>,
}

/// Result of a write to a staged file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifiedFile {
    /// The file is incomplete: more bytes are needed.
    Part,
    /// The file is complete and matches the manifest.
    Whole,
    /// The file does not match the manifest and was deleted.
    Damaged,
}

impl Staging {
    /// Begins a full sync, or resumes a full sync after the link was lost.
    ///
    /// - `manifest`: the master's manifest.
    /// - `own`: the manifest of the current data set.
    /// - `whole`: files that this link has already verified (see [`Staging::into_whole`]).
    ///
    /// Retains complete files of an earlier attempt if the new manifest has the same entry.
    /// [`Staging::look`] must verify these files first, except for files in `whole`.
    pub fn begin(
        main: Arc<dyn Disk>,
        manifest: Manifest,
        own: &Manifest,
        whole: Vec<FileEntry>,
    ) -> Result<Staging> {
        let staged_disk: Arc<dyn Disk> = Arc::new(StagedDisk(main.clone()));
        let (mut missing, mut found, mut seen) = (manifest.files.clone(), Vec::new(), whole);
        seen.sort();
        let mut whole = Vec::new();
        // Files that differ only in the header can have equal checksums. Compare lineage and the
        // whole entry instead.
        let left = Manifest::read_as(&*main, PLAN).ok().flatten();
        let left = left.filter(|plan| plan.lineage == manifest.lineage);
        for name in list(&*staged_disk)? {
            let named = name.strip_suffix(TEMPORARY).unwrap_or(&name);
            let Some(entry) = manifest.file(named) else {
                remove(&*staged_disk, &name)?;
                continue;
            };
            let is_same = left.as_ref().is_some_and(|plan| plan.file(named) == Some(entry));
            if !is_same {
                remove(&*staged_disk, &name)?;
            } else if name == named {
                let to = if seen.binary_search(entry).is_ok() { &mut whole } else { &mut found };
                to.push(entry.clone());
            }
        }
        replace(&*main, PLAN, manifest.encode().as_bytes())
            .map_err(|e| Error::io(main.path(PLAN), "writing", e))?;
        missing.retain(|f| own.lineage != manifest.lineage || own.file(&f.name) != Some(f));
        whole.sort();
        missing.retain(|f| whole.binary_search(f).is_err());
        // The smallest file is fetched first. The smallest file describes the other files, so an
        // unsuitable data set is rejected before they are fetched.
        missing.sort_by_key(|f| std::cmp::Reverse(f.bytes));
        Ok(Staging {
            staged_disk,
            main,
            manifest,
            missing,
            left: found,
            whole,
            looked: (0, 0),
            file: None,
            log: None,
        })
    }

    /// Whether all files of an earlier link are verified.
    pub fn is_known(&self) -> bool {
        self.left.is_empty()
    }

    /// Verifies up to [`VERIFY_BYTES_PER_CALL`] of the files from an earlier link.
    ///
    /// Verifying all files in one call could exceed the peer's timeout. Matching files need not be
    /// fetched again. Other files are deleted.
    pub fn look(&mut self) -> Result<()> {
        let Some(entry) = self.left.last().cloned() else { return Ok(()) };
        let (at, check) = self.looked;
        let size = self.staged_disk.open(&entry.name).and_then(|f| f.size()).unwrap_or(0);
        let (to, mut is_same) =
            ((at + VERIFY_BYTES_PER_CALL).min(entry.bytes), size == entry.bytes);
        if is_same {
            let check = check_on(&*self.staged_disk, &entry.name, at..to, check)?;
            if to < entry.bytes {
                self.looked = (to, check);
                return Ok(());
            }
            is_same = check == entry.check;
        }
        if is_same {
            self.missing.retain(|f| f.name != entry.name);
            self.whole.push(entry);
        } else {
            remove(&*self.staged_disk, &entry.name)?;
        }
        self.left.pop();
        self.looked = (0, 0);
        Ok(())
    }

    /// Returns the manifest of the data set that is being fetched.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the number of files to fetch. Before verification is complete this includes files
    /// that may already exist.
    pub fn missing(&self) -> usize {
        self.missing.len()
    }

    /// Returns the next file to fetch and the offset to resume at. Completes the verification
    /// first.
    pub fn wanted(&mut self) -> Result<Option<(FileEntry, u64)>> {
        while !self.is_known() {
            self.look()?;
        }
        let Some(entry) = self.missing.last().cloned() else { return Ok(None) };
        let name = format!("{}{TEMPORARY}", entry.name);
        let io = |e| Error::io(self.staged_disk.path(&name), "opening", e);
        let file = match self.staged_disk.open_write(&name) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.staged_disk.create(&name).map_err(io)?
            }
            Err(e) => return Err(io(e)),
        };
        let mut size = file.size().map_err(io)?;
        if size > entry.bytes {
            file.set_size(0).map_err(io)?;
            size = 0;
        }
        self.file = Some((file, size));
        Ok(Some((entry, size)))
    }

    /// Appends bytes to the file that [`Staging::wanted`] returned.
    pub fn write(&mut self, bytes: &[u8]) -> Result<VerifiedFile> {
        let (Some(entry), Some((file, at))) = (self.missing.last().cloned(), &mut self.file) else {
            return Err(Error::Refused("bytes of a file that was not requested".to_owned()));
        };
        if *at + bytes.len() as u64 > entry.bytes {
            return Err(Error::Refused(format!("{} is longer than in the manifest", entry.name)));
        }
        let name = format!("{}{TEMPORARY}", entry.name);
        let io = |e| Error::io(self.staged_disk.path(&name), "writing", e);
        let is_last = *at + bytes.len() as u64 == entry.bytes;
        let written = write_all_at(&**file, bytes, *at)
            .and_then(|()| if is_last { file.sync() } else { Ok(()) });
        *at += bytes.len() as u64;
        if let Err(e) = written {
            // A later sync could succeed although these bytes are lost.
            self.file = None;
            let _ = self.staged_disk.remove(&name);
            return Err(io(e));
        }
        if !is_last {
            return Ok(VerifiedFile::Part);
        }
        self.file = None;
        if check_of(&*self.staged_disk, &name, entry.bytes)? != entry.check {
            remove(&*self.staged_disk, &name)?;
            return Ok(VerifiedFile::Damaged);
        }
        self.staged_disk.rename(&name, &entry.name).map_err(io)?;
        self.missing.pop();
        self.whole.push(entry);
        Ok(VerifiedFile::Whole)
    }

    /// Returns the contents of the first small snapshot file with a tag that matches `is`, or
    /// `None` until it is fetched.
    pub fn small(&self, is: impl Fn(&Tag) -> bool) -> Result<Option<Vec<u8>>> {
        let mut files =
            self.manifest.files.iter().filter(|f| f.role == Role::Snapshot && is(&f.tag));
        let Some(file) = files.find(|f| !self.missing.contains(f)) else { return Ok(None) };
        if file.bytes > MAX_CHUNK_BYTES as u64 {
            return Err(Error::Refused(format!(
                "{} has {} bytes, which is too long",
                file.name, file.bytes
            )));
        }
        let is_beside = self.staged_disk.open(&file.name).is_ok();
        read_small(
            if is_beside { &*self.staged_disk } else { &*self.main },
            file,
            self.manifest.lineage,
        )
        .map(Some)
    }

    /// Returns the staged log. The log is empty at first, and again after the link was lost.
    pub fn log(&mut self) -> Result<&mut ReplicaLog> {
        if self.log.is_none() {
            for name in list(&*self.staged_disk)? {
                if parse_segment_name(&name) != SegmentName::Other {
                    remove(&*self.staged_disk, &name)?;
                }
            }
            self.log = Some(ReplicaLog::staged(self.staged_disk.clone(), self.manifest.lineage)?);
        }
        self.log.as_mut().ok_or_else(|| Error::Refused("the replica has no log yet".to_owned()))
    }

    /// Whether the staged log exists.
    pub fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Whether all files and the log up to the manifest's durable offset have arrived.
    pub fn is_whole(&self) -> bool {
        let reaches = |log: &ReplicaLog| {
            let end = log.durable();
            end.segment >= self.manifest.replay.segment
                && end.offset >= self.manifest.replay.offset.max(self.manifest.durable)
        };
        self.missing.is_empty() && self.log.as_ref().is_some_and(reaches)
    }

    /// Durably replaces the current data set with the staged data set. `adopt` completes the
    /// replacement in this process or a later process.
    pub fn commit(mut self) -> Result<()> {
        let log = self.log.take();
        let term = log.as_ref().map_or(0, ReplicaLog::term);
        drop(log);
        if let Some(gone) = self.manifest.files.iter().find(|f| {
            let size = |disk: &dyn Disk| disk.open(&f.name).and_then(|file| file.size()).ok();
            size(&*self.staged_disk) != Some(f.bytes) && size(&*self.main) != Some(f.bytes)
        }) {
            return Err(Error::Refused(format!("{} no longer exists", gone.name)));
        }
        self.staged_disk
            .sync_dir()
            .map_err(|e| Error::io(self.main.path(""), "syncing the folder", e))?;
        self.manifest.term = self.manifest.term.max(term);
        let text = self.manifest.encode();
        replace(&*self.main, NEXT, text.as_bytes())
            .map_err(|e| Error::io(self.main.path(NEXT), "writing", e))
    }

    /// Deletes an abandoned full sync, unless it is already committed.
    pub fn clear(main: &Arc<dyn Disk>) -> Result<()> {
        let staged_disk = StagedDisk(main.clone());
        let names = list(&staged_disk)?;
        if names.iter().any(|name| [NEXT, NOW].contains(&staged(name).as_str())) {
            return Ok(());
        }
        // Delete the plan last, because the remaining files cannot be identified without it.
        let (plan, files): (Vec<_>, Vec<_>) = names.iter().partition(|name| staged(name) == PLAN);
        files.into_iter().chain(plan).try_for_each(|name| remove(&staged_disk, name))
    }

    /// Returns the verified files, for a [`Staging::begin`] with a later manifest on the same link.
    pub fn into_whole(self) -> Vec<FileEntry> {
        self.whole
    }

    /// Returns the lineage of the staged data set.
    pub fn lineage(&self) -> Lineage {
        self.manifest.lineage
    }
}

/// Completes the replacement if a staged data set is committed. The caller must read the manifest
/// only after this.
pub(crate) fn adopt(main: &Arc<dyn Disk>) -> Result<()> {
    let io = |doing| move |e| Error::io(main.path(MANIFEST), doing, e);
    let names = list(&**main)?;
    let has = |name: &str| names.iter().any(|n| n == name);
    if !has(NEXT) && !has(NOW) {
        return Ok(());
    }
    if !has(NOW) {
        for name in names.iter().filter(|name| parse_segment_name(name) != SegmentName::Other) {
            remove(&**main, name)?;
        }
        main.sync_dir().map_err(io("adopting a data set"))?;
        main.rename(NEXT, NOW).and_then(|()| main.sync_dir()).map_err(io("adopting a data set"))?;
    }
    let manifest = Manifest::read_as(&**main, NOW)?;
    let manifest =
        manifest.ok_or_else(|| Error::corrupt(main.path(NOW), 0, "the staged data set is gone"))?;
    for name in list(&**main)? {
        let Some(whole) = name.strip_prefix(STAGED_PREFIX) else { continue };
        if name.ends_with(TEMPORARY) || name == PLAN {
            remove(&**main, &name)?;
        } else if is_ours(whole) {
            main.rename(&name, whole).map_err(io("adopting a data set"))?;
        }
    }
    main.sync_dir().map_err(io("adopting a data set"))?;
    main.rename(NOW, MANIFEST).and_then(|()| main.sync_dir()).map_err(io("adopting a data set"))?;
    for name in list(&**main)? {
        let is_old =
            is_ours(&name) && name != MANIFEST && parse_segment_name(&name) == SegmentName::Other;
        if is_old && manifest.file(&name).is_none() {
            remove(&**main, &name)?;
        }
    }
    Ok(())
}

/// Read-only view of a folder as [`adopt`] will leave it.
#[derive(Debug)]
pub(crate) struct Adopted<'a> {
    main: &'a dyn Disk,
    names: Vec<String>,
    is_now: bool,
}

/// Returns the view if a data set is committed and not adopted yet.
pub(crate) fn pending(main: &dyn Disk) -> Result<Option<Adopted<'_>>> {
    let names = list(main)?;
    let has = |name: &str| names.iter().any(|n| n == name);
    let is_now = has(NOW);
    Ok((is_now || has(NEXT)).then_some(Adopted { main, names, is_now }))
}

impl Adopted<'_> {
    /// Returns the current name of a file of the view, or `None` if the view has no such file.
    fn name_now(&self, name: &str) -> Option<String> {
        if name == MANIFEST {
            return Some(if self.is_now { NOW } else { NEXT }.to_owned());
        }
        let staged = staged(name);
        if is_ours(name) && !name.ends_with(TEMPORARY) && self.names.contains(&staged) {
            return Some(staged);
        }
        let is_old = !self.is_now && parse_segment_name(name) != SegmentName::Other;
        (!is_old && self.names.iter().any(|n| n == name)).then(|| name.to_owned())
    }
}

impl Disk for Adopted<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.main.path(&self.name_now(name).unwrap_or_else(|| name.to_owned()))
    }
    fn create(&self, _: &str) -> io::Result<Box<dyn DiskFile>> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.main.open(&self.name_now(name).ok_or(io::ErrorKind::NotFound)?)
    }
    fn open_uncached(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.main.open_uncached(&self.name_now(name).ok_or(io::ErrorKind::NotFound)?)
    }
    fn open_write(&self, _: &str) -> io::Result<Box<dyn DiskFile>> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn list(&self) -> io::Result<Vec<String>> {
        let whole = self.names.iter().map(|name| name.strip_prefix(STAGED_PREFIX).unwrap_or(name));
        let mut names: Vec<String> =
            whole.filter(|name| self.name_now(name).is_some()).map(str::to_owned).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }
    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn remove(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn sync_dir(&self) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.main.free_bytes()
    }
}

fn list(disk: &dyn Disk) -> Result<Vec<String>> {
    disk.list().map_err(|e| Error::io(disk.path(""), "listing", e))
}

fn remove(disk: &dyn Disk, name: &str) -> Result<()> {
    match disk.remove(name) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(disk.path(name), "removing", e))
        }
        _ => Ok(()),
    }
}

fn check_of(disk: &dyn Disk, name: &str, bytes: u64) -> Result<u32> {
    check_on(disk, name, 0..bytes, 0)
}

/// Extends `check`, the CRC-32C of the preceding bytes, by a range of a file.
fn check_on(disk: &dyn Disk, name: &str, bytes: Range<u64>, mut check: u32) -> Result<u32> {
    let io = |e| Error::io(disk.path(name), "reading", e);
    let file = disk.open(name).map_err(io)?;
    let mut buffer = vec![0; VERIFY_BYTES_PER_CALL.min(bytes.end - bytes.start).max(1) as usize];
    let mut at = bytes.start;
    while at < bytes.end {
        let want = buffer.len().min((bytes.end - at) as usize);
        let n = read_full_at(&*file, &mut buffer[..want], at).map_err(io)?;
        if n == 0 {
            break;
        }
        check = crc32c::crc32c_append(check, &buffer[..n]);
        at += n as u64;
    }
    Ok(check)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimDisk;

    #[test]
    fn what_an_earlier_link_has_left_is_looked_at_piece_by_piece() {
        let main: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
        let long = vec![7u8; 2 * VERIFY_BYTES_PER_CALL as usize + 5];
        let mut manifest = Manifest::new(Lineage([1; 16]));
        let contents: [(&str, &[u8]); 3] =
            [("snap-1.tsnap", &long), ("snap-2.tsnap", &long[..9]), ("snap-3.tsnap", &long)];
        for (name, content) in contents {
            let check = crc32c::crc32c(content);
            let bytes = content.len() as u64;
            let name = name.to_owned();
            manifest.files.push(FileEntry {
                name,
                bytes,
                check,
                role: Role::Snapshot,
                tag: Tag::default(),
            });
        }
        let own = Manifest::new(Lineage([2; 16]));
        let mut staging = Staging::begin(main.clone(), manifest.clone(), &own, Vec::new()).unwrap();
        assert!(staging.is_known(), "nothing is staged");
        while let Some((entry, 0)) = staging.wanted().unwrap() {
            assert_eq!(staging.write(&long[..entry.bytes as usize]).unwrap(), VerifiedFile::Whole);
        }
        assert_eq!(staging.missing(), 0);
        let file = main.open_write("staged-snap-3.tsnap").unwrap();
        write_all_at(&*file, &[8], long.len() as u64 - 1).unwrap();

        let mut staging = Staging::begin(main.clone(), manifest.clone(), &own, Vec::new()).unwrap();
        let mut looks = 0;
        while !staging.is_known() {
            staging.look().unwrap();
            looks += 1;
        }
        assert_eq!(looks, 3 + 1 + 3);
        assert_eq!(staging.missing, [manifest.files[2].clone()]);
        // `wanted` verifies the bytes that `look` has not verified.
        let mut staging = Staging::begin(main.clone(), manifest.clone(), &own, Vec::new()).unwrap();
        assert_eq!(staging.wanted().unwrap(), Some((manifest.files[2].clone(), 0)));

        // The master sends another manifest because its log grew over the limit. The verified files
        // stay verified.
        assert_eq!(staging.write(&long).unwrap(), VerifiedFile::Whole);
        let whole = staging.into_whole();
        assert_eq!(whole.len(), 3, "verified, or fetched");
        let half =
            Staging::begin(main.clone(), manifest.clone(), &own, whole[1..].to_vec()).unwrap();
        assert_eq!(half.left, whole[..1]);
        // A file whose entry has changed under the same name is fetched again.
        manifest.number += 1;
        let old = std::mem::replace(&mut manifest.files[0].check, 0);
        let mut staging =
            Staging::begin(main.clone(), manifest.clone(), &own, whole.clone()).unwrap();
        assert!(staging.is_known() && staging.missing == [manifest.files[0].clone()]);
        assert_eq!(staging.wanted().unwrap(), Some((manifest.files[0].clone(), 0)));
        // A verified file that has been removed is missing again.
        manifest.files[0].check = old;
        let staging = Staging::begin(main, manifest.clone(), &own, whole).unwrap();
        assert!(staging.missing.contains(&manifest.files[0]));
    }
}
