//! Disk interface of the store: one flat folder of files with explicit offsets and explicit syncs.
//!
//! There are two implementations: [`RealDisk`] here, and a simulated disk in `sim` that loses,
//! tears and reorders unsynced writes. The store uses either one through `Arc<dyn Disk>`.
//!
//! The store relies only on the following properties, and the simulator guarantees exactly these:
//!
//! 1. Bytes are durable once a [`DiskFile::sync`] that began after their write has returned `Ok`.
//!    Before that, any subset of 512-byte sectors may reach the disk, in any order, and the file's
//!    length may be any length set since the last sync.
//! 2. A change of a name (creation, rename, removal) is durable once a later [`Disk::sync_dir`] has
//!    returned `Ok`. A rename is atomic.
//! 3. A failed `sync` leaves the state of the non-durable bytes unknown, and a later `Ok` on the
//!    same file does not cover those bytes. The kernel marks the pages clean and reports the error
//!    only once.
//! 4. Read errors and flipped bits may occur at any time, anywhere.
//!
//! The store never writes through a memory map: a full disk would raise SIGBUS, which a process
//! cannot handle reliably.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;

/// A flat folder of files, addressed by plain file names.
pub trait Disk: Send + Sync + Debug {
    /// Returns the path of a file for messages.
    fn path(&self, name: &str) -> PathBuf;
    /// Creates a file for reading and writing. Returns an error of kind `AlreadyExists` if the name
    /// exists.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Creates a file that the caller writes once, sequentially, and does not read soon.
    ///
    /// Whole 4 KiB blocks from 4 KiB aligned memory bypass the page cache if the file system
    /// supports it. Durability is the same as with [`Disk::create`].
    fn create_uncached(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.create(name)
    }
    /// Opens a file for reading.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a file to verify its contents on the device.
    ///
    /// Whole 4 KiB blocks into 4 KiB aligned memory bypass the page cache if the file system
    /// supports it.
    fn open_uncached(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.open(name)
    }
    /// Opens a file for reading and writing.
    fn open_write(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Returns all names in the folder, sorted.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Renames a file and replaces an existing file of the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync_dir(&self) -> io::Result<()>;
    /// Locks the folder for this process until the guard is dropped. Returns an error of kind
    /// `WouldBlock` if another process holds the lock.
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>>;
    /// Returns the number of free bytes that the file system reports.
    fn free_bytes(&self) -> io::Result<u64>;
    /// Returns the real folder of the files, or `None` for a simulated disk.
    fn place(&self) -> Option<&Path> {
        None
    }
}

/// An open file. Reads and writes take an offset, so threads can share a handle.
pub trait DiskFile: Send + Sync + Debug {
    /// Reads up to `buffer.len()` bytes and returns their number; 0 at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes a prefix of the bytes and returns its length.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Returns the length in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Truncates the file, or extends it with zeros.
    fn set_size(&self, bytes: u64) -> io::Result<()>;
    /// Makes the contents durable. After an error the caller must abandon the handle.
    fn sync(&self) -> io::Result<()>;
    /// Reserves space for the first `bytes` bytes without changing the file's length. Writes into
    /// the reserved range do not run out of space.
    fn allocate(&self, bytes: u64) -> io::Result<()>;
    /// Drops the file from the page cache, so that later reads come from the device.
    ///
    /// After a failed sync the cache may contain a page that never reached the device.
    fn drop_cache(&self) -> io::Result<()>;
    /// Disables readahead for random reads.
    fn expect_random(&self) -> io::Result<()>;
}

/// Writes all bytes. Retries after short writes and interruptions.
pub fn write_all_at(file: &dyn DiskFile, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => {
                return Err(io::Error::new(io::ErrorKind::WriteZero, "the disk accepted no bytes"));
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

/// Reads until the buffer is full or the file ends. Returns the number of bytes read.
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

/// Atomically replaces the contents of `name` (promise 4).
///
/// Writes a temporary file, syncs it, renames it and syncs the folder. A crash at any step leaves
/// either the old or the new file.
pub(crate) fn replace(disk: &dyn Disk, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = format!("{name}{TEMPORARY}");
    match disk.remove(&temporary) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = disk.create(&temporary)?;
    let written = write_all_at(&*file, bytes, 0).and_then(|()| file.sync());
    if let Err(e) = written {
        // The removal is best effort. If it fails, the next startup removes the temporary file.
        let _ = disk.remove(&temporary);
        return Err(e);
    }
    disk.rename(&temporary, name)?;
    disk.sync_dir()
}

/// Suffix of unpublished files. Startup removes all files with this suffix.
pub const TEMPORARY: &str = ".tmp";

/// Name of the lock file.
pub const LOCK: &str = "tidemark.lock";

/// Creates a folder and its missing parents, durably: each new name is synced in its parent folder.
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

/// Alignment of direct I/O in bytes, for file offsets and memory. Most devices require an alignment
/// of only 512 bytes.
pub(crate) const BLOCK: usize = 4096;

/// A folder of the file system.
#[derive(Debug)]
pub struct RealDisk {
    folder: PathBuf,
}

impl RealDisk {
    /// Opens the folder. Creates it durably if it does not exist.
    pub fn open(folder: impl AsRef<Path>) -> io::Result<RealDisk> {
        let folder = folder.as_ref().to_path_buf();
        create_folder(&folder)?;
        Ok(RealDisk { folder })
    }

    /// Returns the path of the folder.
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
        // O_DIRECT is a property of the handle, so it needs a second handle. The kernel keeps both
        // handles coherent.
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
            // The store creates only UTF-8 names.
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
        // Also lock the folder, because a removed and recreated lock file would be a different
        // lock. NFS does not support locks on folders.
        let folder = File::open(&self.folder)?;
        if rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)
            == Err(Errno::WOULDBLOCK)
        {
            return Err(Errno::WOULDBLOCK.into());
        }
        // The flock is the lock. The process id in the file is only for the operator.
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
    /// Handle with O_DIRECT, if the file system supports it.
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

/// Returns an error if the file system does not support O_DIRECT.
fn open_direct(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.custom_flags(OFlags::DIRECT.bits() as i32).open(path)
}

impl RealFile {
    /// Returns the O_DIRECT handle if the request's offset, address and size are aligned.
    fn direct(&self, bytes: usize, address: usize, offset: u64) -> Option<&File> {
        let is_whole = offset.is_multiple_of(BLOCK as u64) && address.is_multiple_of(BLOCK);
        self.uncached.as_ref().filter(|_| bytes >= BLOCK && is_whole)
    }
}

/// Some file systems accept O_DIRECT at open and reject the read or write.
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
        // fdatasync also writes the length, the only metadata that a reader needs.
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
        // Without O_DIRECT the file accepts all bytes in one write.
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
