//! A data set on its way in: a full sync lays it beside the one that is there, and at the end takes
//! its place in one step.
//!
//! ```text
//!   staged-plan.manifest          the master's manifest: what is being fetched
//!   staged-snap-..1.tsnap.tmp     being fetched; a link that was cut goes on behind what is there
//!   staged-snap-..2.tsnap         whole, checked, durable
//!   staged-log-..12.tlog          the log behind the manifest's replay position (replica_log.rs)
//!   staged-next.manifest          all is there: from now on this is the data set            (1)
//!   staged-now.manifest           the logs of the old one are removed                       (2)
//!   tidemark.manifest             everything has its name
//! ```
//!
//! A crash before (1) leaves the old data set as it was, and what was fetched. After (1), [`adopt`]
//! goes on where it stopped, at the next start: between (1) and (2) no staged file has its final
//! name yet, so all segments that have one are old; after (2) none are. Files that the old data set
//! has too, of the same lineage and the same entry, are not fetched and stay where they are.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::batch::Lineage;
use crate::disk::{Disk, DiskFile, TEMPORARY, read_full_at, replace, write_all_at};
use crate::error::{Error, Result};
use crate::manifest::{FileEntry, MANIFEST, Manifest, Role, Tag, is_ours};
use crate::replica_log::FollowLog;
use crate::segment::{SegmentName, parse_segment_name};
use crate::snapshot::{MAX_CHUNK_BYTES, read_small};

/// Files are looked at in pieces of so many bytes.
pub const LOOK_BYTES: u64 = 1 << 20;

/// What the names of staged files begin with.
pub const STAGED: &str = "staged-";

/// What is being fetched: the master's manifest.
const PLAN: &str = "staged-plan.manifest";
/// (1) in the picture above.
const NEXT: &str = "staged-next.manifest";
/// (2).
const NOW: &str = "staged-now.manifest";

/// The staged files, as a folder of their own.
#[derive(Debug)]
struct Beside(Arc<dyn Disk>);

fn staged(name: &str) -> String {
    format!("{STAGED}{name}")
}

impl Disk for Beside {
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
            .filter_map(|name| name.strip_prefix(STAGED))
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

/// A data set on its way in.
#[derive(Debug)]
pub struct Staging {
    beside: Arc<dyn Disk>,
    main: Arc<dyn Disk>,
    manifest: Manifest,
    /// Files to fetch, the last one first, which is the smallest.
    missing: Vec<FileEntry>,
    /// Of these: what an earlier link has left whole, unless it was damaged since.
    left: Vec<FileEntry>,
    /// What is whole here, and was read.
    whole: Vec<FileEntry>,
    /// The last of them, as far as it was read, and the check of that.
    looked: (u64, u32),
    /// The one that is being fetched.
    file: Option<(Box<dyn DiskFile>, u64)>,
    log: Option<FollowLog>,
}

/// How a file of a full sync arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// More is to come.
    Part,
    /// It is whole, and the one that the manifest names.
    Whole,
    /// It is not what the manifest names, and was thrown away.
    Damaged,
}

impl Staging {
    /// Begins, or goes on after the link was cut: `manifest` is the master's; what an earlier one
    /// has left is kept as far as it is still wanted; it is to be looked at first
    /// ([`Staging::look`]), but for what this link has already seen to be `whole`
    /// ([`Staging::into_whole`]). `own` is the manifest of the data set that is there now.
    pub fn begin(
        main: Arc<dyn Disk>,
        manifest: Manifest,
        own: &Manifest,
        whole: Vec<FileEntry>,
    ) -> Result<Staging> {
        let beside: Arc<dyn Disk> = Arc::new(Beside(main.clone()));
        let (mut missing, mut found, mut seen) = (manifest.files.clone(), Vec::new(), whole);
        seen.sort();
        let mut whole = Vec::new();
        // A checksum does not tell two files apart of which only the headers differ; a whole entry
        // and the lineage do.
        let left = Manifest::read_as(&*main, PLAN).ok().flatten();
        let left = left.filter(|plan| plan.lineage == manifest.lineage);
        for name in list(&*beside)? {
            let named = name.strip_suffix(TEMPORARY).unwrap_or(&name);
            let Some(entry) = manifest.file(named) else {
                remove(&*beside, &name)?;
                continue;
            };
            let is_same = left.as_ref().is_some_and(|plan| plan.file(named) == Some(entry));
            if !is_same {
                remove(&*beside, &name)?;
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
        // The last one comes first: the smallest. One of these says what the others are, and
        // whether they are of use here.
        missing.sort_by_key(|f| std::cmp::Reverse(f.bytes));
        Ok(Staging {
            beside,
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

    /// Whether what an earlier link has left is known.
    pub fn is_known(&self) -> bool {
        self.left.is_empty()
    }

    /// Looks at some of what an earlier link has left, at most at [`LOOK_BYTES`]: all of it may
    /// take longer than a peer waits for a word. What is as the manifest says need not come again,
    /// the rest is thrown away.
    pub fn look(&mut self) -> Result<()> {
        let Some(entry) = self.left.last().cloned() else { return Ok(()) };
        let (at, check) = self.looked;
        let size = self.beside.open(&entry.name).and_then(|f| f.size()).unwrap_or(0);
        let (to, mut is_same) = ((at + LOOK_BYTES).min(entry.bytes), size == entry.bytes);
        if is_same {
            let check = check_on(&*self.beside, &entry.name, at..to, check)?;
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
            remove(&*self.beside, &entry.name)?;
        }
        self.left.pop();
        self.looked = (0, 0);
        Ok(())
    }

    /// What is being staged.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Files that are still to come, as far as is known.
    pub fn missing(&self) -> usize {
        self.missing.len()
    }

    /// The file to fetch next, and from which byte on. What was not looked at yet is looked at
    /// first.
    pub fn wanted(&mut self) -> Result<Option<(FileEntry, u64)>> {
        while !self.is_known() {
            self.look()?;
        }
        let Some(entry) = self.missing.last().cloned() else { return Ok(None) };
        let name = format!("{}{TEMPORARY}", entry.name);
        let io = |e| Error::io(self.beside.path(&name), "opening", e);
        let file = match self.beside.open_write(&name) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.beside.create(&name).map_err(io)?
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

    /// Takes the next bytes of the file that [`Staging::wanted`] has named.
    pub fn write(&mut self, bytes: &[u8]) -> Result<Fetched> {
        let (Some(entry), Some((file, at))) = (self.missing.last().cloned(), &mut self.file) else {
            return Err(Error::Refused("bytes of a file that was not asked for".to_owned()));
        };
        if *at + bytes.len() as u64 > entry.bytes {
            return Err(Error::Refused(format!("{} is longer than the manifest says", entry.name)));
        }
        let name = format!("{}{TEMPORARY}", entry.name);
        let io = |e| Error::io(self.beside.path(&name), "writing", e);
        let is_last = *at + bytes.len() as u64 == entry.bytes;
        let written = write_all_at(&**file, bytes, *at)
            .and_then(|()| if is_last { file.sync() } else { Ok(()) });
        *at += bytes.len() as u64;
        if let Err(e) = written {
            // A later sync that succeeds would prove nothing.
            self.file = None;
            let _ = self.beside.remove(&name);
            return Err(io(e));
        }
        if !is_last {
            return Ok(Fetched::Part);
        }
        self.file = None;
        if check_of(&*self.beside, &name, entry.bytes)? != entry.check {
            remove(&*self.beside, &name)?;
            return Ok(Fetched::Damaged);
        }
        self.beside.rename(&name, &entry.name).map_err(io)?;
        self.missing.pop();
        self.whole.push(entry);
        Ok(Fetched::Whole)
    }

    /// The content of the small snapshot file that `is` points out, as soon as it is here.
    pub fn small(&self, is: impl Fn(&Tag) -> bool) -> Result<Option<Vec<u8>>> {
        let mut files =
            self.manifest.files.iter().filter(|f| f.role == Role::Snapshot && is(&f.tag));
        let Some(file) = files.find(|f| !self.missing.contains(f)) else { return Ok(None) };
        if file.bytes > MAX_CHUNK_BYTES as u64 {
            return Err(Error::Refused(format!(
                "{} of {} bytes is too long for what it is",
                file.name, file.bytes
            )));
        }
        let is_beside = self.beside.open(&file.name).is_ok();
        read_small(if is_beside { &*self.beside } else { &*self.main }, file, self.manifest.lineage)
            .map(Some)
    }

    /// The staged log: empty at first, and again after the link was cut.
    pub fn log(&mut self) -> Result<&mut FollowLog> {
        if self.log.is_none() {
            for name in list(&*self.beside)? {
                if parse_segment_name(&name) != SegmentName::Other {
                    remove(&*self.beside, &name)?;
                }
            }
            self.log = Some(FollowLog::staged(self.beside.clone(), self.manifest.lineage)?);
        }
        self.log.as_mut().ok_or_else(|| Error::Refused("no log".to_owned()))
    }

    /// Whether the log has begun.
    pub fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Whether everything is there that the manifest stands for.
    pub fn is_whole(&self) -> bool {
        let reaches = |log: &FollowLog| {
            let end = log.durable();
            end.segment >= self.manifest.replay.segment
                && end.offset >= self.manifest.replay.offset.max(self.manifest.durable)
        };
        self.missing.is_empty() && self.log.as_ref().is_some_and(reaches)
    }

    /// From now on this is the data set: what `adopt` does next, in this process or a later one,
    /// cannot be refused any more.
    pub fn commit(mut self) -> Result<()> {
        let log = self.log.take();
        let term = log.as_ref().map_or(0, FollowLog::term);
        drop(log);
        if let Some(gone) = self.manifest.files.iter().find(|f| {
            let size = |disk: &dyn Disk| disk.open(&f.name).and_then(|file| file.size()).ok();
            size(&*self.beside) != Some(f.bytes) && size(&*self.main) != Some(f.bytes)
        }) {
            return Err(Error::Refused(format!("{} is not there any more", gone.name)));
        }
        self.beside
            .sync_dir()
            .map_err(|e| Error::io(self.main.path(""), "syncing the folder", e))?;
        self.manifest.term = self.manifest.term.max(term);
        let text = self.manifest.encode();
        replace(&*self.main, NEXT, text.as_bytes())
            .map_err(|e| Error::io(self.main.path(NEXT), "writing", e))
    }

    /// Throws away what was fetched, where it is not wanted any more; not what takes the place of
    /// the old one already.
    pub fn clear(main: &Arc<dyn Disk>) -> Result<()> {
        let beside = Beside(main.clone());
        let names = list(&beside)?;
        if names.iter().any(|name| [NEXT, NOW].contains(&staged(name).as_str())) {
            return Ok(());
        }
        // Of what is left the plan says what it is worth: it goes last.
        let (plan, files): (Vec<_>, Vec<_>) = names.iter().partition(|name| staged(name) == PLAN);
        files.into_iter().chain(plan).try_for_each(|name| remove(&beside, name))
    }

    /// What is whole here, for the one that begins with a later manifest of the same master, on the
    /// same link.
    pub fn into_whole(self) -> Vec<FileEntry> {
        self.whole
    }

    /// The lineage that is being staged.
    pub fn lineage(&self) -> Lineage {
        self.manifest.lineage
    }
}

/// Takes over a staged data set, if one is complete. To be called before the manifest is read.
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
    let manifest = manifest.ok_or_else(|| Error::corrupt(main.path(NOW), 0, "it has gone"))?;
    for name in list(&**main)? {
        let Some(whole) = name.strip_prefix(STAGED) else { continue };
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

/// A folder as it will be when [`adopt`] is done with it: for read-only inspection.
#[derive(Debug)]
pub(crate) struct Adopted<'a> {
    main: &'a dyn Disk,
    names: Vec<String>,
    /// (2) has been reached.
    is_now: bool,
}

/// What a start will make of this folder first, if a staged data set is complete.
pub(crate) fn pending(main: &dyn Disk) -> Result<Option<Adopted<'_>>> {
    let names = list(main)?;
    let has = |name: &str| names.iter().any(|n| n == name);
    let is_now = has(NOW);
    Ok((is_now || has(NEXT)).then_some(Adopted { main, names, is_now }))
}

impl Adopted<'_> {
    /// What a file is called until then. `None`: there will be none of that name.
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
        let whole = self.names.iter().map(|name| name.strip_prefix(STAGED).unwrap_or(name));
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

/// CRC-32C of a file's first bytes.
fn check_of(disk: &dyn Disk, name: &str, bytes: u64) -> Result<u32> {
    check_on(disk, name, 0..bytes, 0)
}

/// The same, of these bytes and those before them, whose check is `check`.
fn check_on(disk: &dyn Disk, name: &str, bytes: Range<u64>, mut check: u32) -> Result<u32> {
    let io = |e| Error::io(disk.path(name), "reading", e);
    let file = disk.open(name).map_err(io)?;
    let mut buffer = vec![0; LOOK_BYTES.min(bytes.end - bytes.start).max(1) as usize];
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
        let long = vec![7u8; 2 * LOOK_BYTES as usize + 5];
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
        assert!(staging.is_known(), "nothing is there");
        while let Some((entry, 0)) = staging.wanted().unwrap() {
            assert_eq!(staging.write(&long[..entry.bytes as usize]).unwrap(), Fetched::Whole);
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
        // A request without the waiting list is answered all the same.
        let mut staging = Staging::begin(main.clone(), manifest.clone(), &own, Vec::new()).unwrap();
        assert_eq!(staging.wanted().unwrap(), Some((manifest.files[2].clone(), 0)));

        // The master's log has outgrown what is kept for this: there is another manifest, and what
        // was looked at is known.
        assert_eq!(staging.write(&long).unwrap(), Fetched::Whole);
        let whole = staging.into_whole();
        assert_eq!(whole.len(), 3, "looked at, or fetched");
        let half =
            Staging::begin(main.clone(), manifest.clone(), &own, whole[1..].to_vec()).unwrap();
        assert_eq!(half.left, whole[..1]);
        // A file of the same name that is another one is fetched, whatever was known of the first.
        manifest.number += 1;
        let old = std::mem::replace(&mut manifest.files[0].check, 0);
        let mut staging =
            Staging::begin(main.clone(), manifest.clone(), &own, whole.clone()).unwrap();
        assert!(staging.is_known() && staging.missing == [manifest.files[0].clone()]);
        assert_eq!(staging.wanted().unwrap(), Some((manifest.files[0].clone(), 0)));
        // Nor is what has gone meanwhile taken for here.
        manifest.files[0].check = old;
        let staging = Staging::begin(main, manifest.clone(), &own, whole).unwrap();
        assert!(staging.missing.contains(&manifest.files[0]));
    }
}
