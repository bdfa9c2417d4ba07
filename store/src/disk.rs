//! The disk as the store sees it: one flat folder of files, written at explicit offsets, synced
//! explicitly.
//!
//! Two implementations: [`RealDisk`] here, and the simulated one in `sim`, which loses, tears and
//! reorders whatever was not synced. All of the store runs on either, through `Arc<dyn Disk>`.
//!
//! What the store assumes of a disk, and nothing more (the simulator grants exactly this):
//!
//! 1. Bytes are durable once [`DiskFile::sync`] on their file has returned `Ok` after they were
//!    written. Before that any subset of 512-byte sectors may reach the disk, in any order, and the
//!    file's length may be any that was set on the way.
//! 2. A name (created, renamed, removed) is durable once [`Disk::sync_dir`] has returned `Ok` after
//!    it. A rename is atomic.
//! 3. After a failed `sync` nothing is known about the bytes that were not durable before it, and a
//!    later `Ok` on the same file says nothing about them: the kernel marks the pages clean and
//!    drops the error once it was told.
//! 4. Read errors and flipped bits may happen at any time, anywhere.
//!
//! Left out on purpose: writing through a memory map. A full disk shows there as SIGBUS, which no
//! program can handle well.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;

/// A flat folder of files. Names are plain file names, without a folder.
pub trait Disk: Send + Sync + Debug {
    /// How a file of the folder is called in messages.
    fn path(&self, name: &str) -> PathBuf;
    /// Creates a file for reading and writing; an error of kind `AlreadyExists` if the name is
    /// taken.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// The same for a file that is written once, from its beginning to its end, and not read soon:
    /// whole blocks of 4 KiB, from memory that begins at a multiple of it, go past the system's
    /// cache where the file system can do that. What is durable when is the same.
    fn create_uncached(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.create(name)
    }
    /// Opens a file for reading.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// The same for a file that is read to see what the device has: whole blocks of 4 KiB, into
    /// memory that begins at a multiple of it, come past the system's cache where the file system
    /// can do that.
    fn open_uncached(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.open(name)
    }
    /// Opens a file for reading and writing.
    fn open_write(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// All names in the folder, sorted.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Renames a file, replacing the one that has the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync_dir(&self) -> io::Result<()>;
    /// Takes the folder for this process until the guard is dropped; an error of kind `WouldBlock`
    /// if another has it.
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>>;
    /// Bytes that could still be written, as far as the file system tells.
    fn free_bytes(&self) -> io::Result<u64>;
    /// Where the files are, for what is done with them as a whole; `None`: nowhere, as they are
    /// simulated.
    fn place(&self) -> Option<&Path> {
        None
    }
}

/// One open file. Reads and writes name their offset, so that a handle can be shared between
/// threads.
pub trait DiskFile: Send + Sync + Debug {
    /// Reads up to `buffer.len()` bytes; 0 at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes some of the bytes and says how many.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Length in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Cuts or extends (with zeros) the file.
    fn set_size(&self, bytes: u64) -> io::Result<()>;
    /// Makes the contents durable. After an error the handle is not to be trusted again.
    fn sync(&self) -> io::Result<()>;
    /// Reserves room for the first `bytes` bytes without changing the file's length, so that writes
    /// there do not meet a full disk.
    fn allocate(&self, bytes: u64) -> io::Result<()>;
    /// Makes later reads come from the device rather than from memory, where the system can: a page
    /// of which the sync failed in an earlier process may still be in memory, whole, while the
    /// device never got it.
    fn drop_cache(&self) -> io::Result<()>;
    /// Tells the system that reads will come in no order, so that it reads nothing ahead.
    fn expect_random(&self) -> io::Result<()>;
}

/// Writes all bytes, through short writes and interruptions.
pub fn write_all_at(file: &dyn DiskFile, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => {
                return Err(io::Error::new(io::ErrorKind::WriteZero, "the disk took no bytes"));
            }
            Ok(n) => {
                bytes = &bytes[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Reads until the buffer is full or the file ends; says how many bytes were read.
pub fn read_full_at(file: &dyn DiskFile, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Reads a whole small file, of at most `limit` bytes.
pub(crate) fn read_whole(disk: &dyn Disk, name: &str, limit: u64) -> io::Result<Vec<u8>> {
    let file = disk.open(name)?;
    let size = file.size()?;
    if size > limit {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("{size} bytes, expected at most {limit}"),
        ));
    }
    let mut bytes = vec![0; size as usize];
    let n = read_full_at(&*file, &mut bytes, 0)?;
    bytes.truncate(n);
    Ok(bytes)
}

/// Replaces `name` by `bytes` so that a crash at any step leaves the old file or the new one, whole
/// (promise 4): write under a temporary name, sync, rename, sync the folder.
pub(crate) fn replace(disk: &dyn Disk, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = format!("{name}{TEMPORARY}");
    match disk.remove(&temporary) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = disk.create(&temporary)?;
    let written = write_all_at(&*file, bytes, 0).and_then(|()| file.sync());
    if let Err(e) = written {
        // A half-written temporary file is only clutter: the next start sweeps it if this fails.
        let _ = disk.remove(&temporary);
        return Err(e);
    }
    disk.rename(&temporary, name)?;
    disk.sync_dir()
}

/// The ending of files that are not published yet; whatever carries it is swept at the next start.
pub const TEMPORARY: &str = ".tmp";

/// Name of the file that carries the folder's lock.
pub const LOCK: &str = "tidemark.lock";

/// Creates a folder, and those above it, where they are missing, durably: each new name is synced
/// in the folder that holds it.
pub fn create_folder(folder: &Path) -> io::Result<()> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    if let Some(above) = folder.parent() {
        create_folder(above)?;
    }
    match std::fs::create_dir(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists || !folder.is_dir() => return Err(e),
        _ => {}
    }
    let above =
        folder.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(above)?.sync_all()
}

/// What is written past the system's cache begins and ends at multiples of so many bytes, in the
/// file and in memory: enough for every device, of which most want 512.
pub(crate) const BLOCK: usize = 4096;

/// A folder of the file system.
#[derive(Debug)]
pub struct RealDisk {
    folder: PathBuf,
}

impl RealDisk {
    /// Opens the folder, creating it if needed (durably: its own name is synced too).
    pub fn open(folder: impl AsRef<Path>) -> io::Result<RealDisk> {
        let folder = folder.as_ref().to_path_buf();
        create_folder(&folder)?;
        Ok(RealDisk { folder })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Disk for RealDisk {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn place(&self) -> Option<&Path> {
        Some(&self.folder)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(RealFile::from(create_new(&self.path(name))?)))
    }

    fn create_uncached(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let path = self.path(name);
        let file = create_new(&path)?;
        // A second handle, as the flag holds for all that goes through one; the kernel keeps what
        // both do to the file in agreement.
        let uncached = open_direct(OpenOptions::new().read(true).write(true), &path).ok();
        Ok(Box::new(RealFile { uncached, ..RealFile::from(file) }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(RealFile::from(File::open(self.path(name))?)))
    }

    fn open_uncached(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let path = self.path(name);
        let file = File::open(&path)?;
        let uncached = open_direct(OpenOptions::new().read(true), &path).ok();
        Ok(Box::new(RealFile { uncached, ..RealFile::from(file) }))
    }

    fn open_write(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(RealFile::from(
            OpenOptions::new().read(true).write(true).open(self.path(name))?,
        )))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            // A name that is not UTF-8 is none of ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path(name))
    }

    fn sync_dir(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }

    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.path(LOCK))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        // The folder, too: a file can be removed, and one of the same name would be another lock.
        // NFS locks no folders.
        let folder = File::open(&self.folder)?;
        if rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)
            == Err(Errno::WOULDBLOCK)
        {
            return Err(Errno::WOULDBLOCK.into());
        }
        // The lock is the flock; the process id inside is for an operator.
        file.set_len(0)?;
        file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0)?;
        Ok(Box::new((file, folder)))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let figures = rustix::fs::statvfs(&self.folder)?;
        Ok(figures.f_bavail.saturating_mul(figures.f_frsize))
    }
}

#[derive(Debug)]
struct RealFile {
    file: File,
    /// The same file, past the system's cache.
    uncached: Option<File>,
}

impl From<File> for RealFile {
    fn from(file: File) -> RealFile {
        RealFile { file, uncached: None }
    }
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).open(path)
}

/// An error where the file system has nothing past its cache.
fn open_direct(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.custom_flags(OFlags::DIRECT.bits() as i32).open(path)
}

impl RealFile {
    /// The handle past the cache, for so many bytes at an address, to or from an offset.
    fn direct(&self, bytes: usize, address: usize, offset: u64) -> Option<&File> {
        let is_whole = offset.is_multiple_of(BLOCK as u64) && address.is_multiple_of(BLOCK);
        self.uncached.as_ref().filter(|_| bytes >= BLOCK && is_whole)
    }
}

/// There are file systems that take the flag and then refuse the operation.
fn is_refused(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INVAL | Errno::OPNOTSUPP))
}

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let blocks = buffer.len() - buffer.len() % BLOCK;
        if let Some(file) = self.direct(blocks, buffer.as_ptr().addr(), offset) {
            match file.read_at(&mut buffer[..blocks], offset) {
                Err(e) if is_refused(&e) => {}
                read => return read,
            }
        }
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let blocks = bytes.len() - bytes.len() % BLOCK;
        if let Some(file) = self.direct(blocks, bytes.as_ptr().addr(), offset) {
            match file.write_at(&bytes[..blocks], offset) {
                Err(e) if is_refused(&e) => {}
                written => return written,
            }
        }
        self.file.write_at(bytes, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        // fdatasync: it also writes the length, which is all of the metadata that reading needs.
        self.file.sync_data()
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, bytes)?)
    }

    fn drop_cache(&self) -> io::Result<()> {
        Ok(rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed)?)
    }

    fn expect_random(&self) -> io::Result<()> {
        Ok(rustix::fs::fadvise(&self.file, 0, None, Advice::Random)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_made_with_those_above_them() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b/../b/c");
        create_folder(&deep).unwrap();
        create_folder(&deep).unwrap();
        assert!(folder.path().join("a/b/c").is_dir());
        std::fs::write(folder.path().join("file"), "").unwrap();
        for no_folder in ["file", "file/a"] {
            assert!(create_folder(&folder.path().join(no_folder)).is_err(), "{no_folder}");
        }
    }
    #[test]
    fn whole_blocks_go_past_the_cache() {
        let folder = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(folder.path()).unwrap();
        let mut memory = vec![0; 5 * BLOCK];
        memory.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 251) as u8);
        let start = memory.as_ptr().align_offset(BLOCK);
        let bytes = &memory[start..start + 3 * BLOCK + 10];

        let file = disk.create_uncached("file").unwrap();
        // This file system may have no such writes. Then all of it is taken at once.
        let can = open_direct(OpenOptions::new().write(true), &disk.path("file")).is_ok();
        assert_eq!(file.write_at(bytes, 0).unwrap(), if can { 3 * BLOCK } else { bytes.len() });
        for (from, at, taken) in
            [(0, 7, bytes.len()), (1, 0, bytes.len() - 1), (3 * BLOCK, 3 * BLOCK as u64, 10)]
        {
            assert_eq!(file.write_at(&bytes[from..], at).unwrap(), taken, "from {from} to {at}");
        }
        write_all_at(&*file, bytes, 0).unwrap();
        assert_eq!(std::fs::read(disk.path("file")).unwrap()[..bytes.len()], *bytes);

        let file = disk.open_uncached("file").unwrap();
        let mut read = vec![0; 5 * BLOCK];
        let start = read.as_ptr().align_offset(BLOCK);
        for (from, at) in [(0, 0), (1, 0), (0, 7), (0, BLOCK)] {
            let read = &mut read[start + from..][..4 * BLOCK];
            let n = crate::disk::read_full_at(&*file, read, at as u64).unwrap();
            assert!(n >= bytes.len() - at, "{n} bytes to {from} from {at}");
            assert!(read[..bytes.len() - at] == bytes[at..], "to {from} from {at}");
        }
    }
}
