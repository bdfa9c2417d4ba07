//! Write-once files: snapshot files and cold files. A file has a temporary name and an empty head
//! until it is complete. A manifest then lists the file.
//!
//! These files are large and unlikely to be read soon, so they bypass the page cache
//! (`Disk::create_uncached`). In the page cache these files would evict useful pages. The kernel's
//! work per cached page would also delay requests of threads on the same CPU.

use std::path::PathBuf;
use std::sync::Arc;

use crate::disk::{BLOCK, Disk, DiskFile, TEMPORARY, read_full_at, write_all_at};
use crate::error::{Error, Result};
use crate::frame::u32_at;
use crate::manifest::{FileEntry, Role, Tag};

/// Bytes between two syncs of a file. Limits the dirty data that can delay a sync of the log.
const SYNC_INTERVAL_BYTES: u64 = 2 << 20;

/// Size of a write in bytes.
const WRITE_BYTES: usize = 1 << 20;

/// Write buffer, aligned for direct I/O.
struct AlignedBuffer {
    /// Memory of the buffer. It is never reallocated, so the alignment is stable.
    memory: Vec<u8>,
    /// Index of the first aligned byte in `memory`.
    start: usize,
}

impl AlignedBuffer {
    fn new() -> AlignedBuffer {
        let mut memory: Vec<u8> = Vec::with_capacity(WRITE_BYTES + BLOCK);
        let start = memory.as_ptr().align_offset(BLOCK).min(BLOCK);
        memory.resize(start, 0);
        AlignedBuffer { memory, start }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..]
    }

    /// Appends as many bytes as fit. Returns the remaining bytes.
    fn take<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (taken, rest) = bytes.split_at(bytes.len().min(WRITE_BYTES - self.bytes().len()));
        self.memory.extend_from_slice(taken);
        rest
    }

    fn is_full(&self) -> bool {
        self.bytes().len() == WRITE_BYTES
    }

    fn clear(&mut self) {
        self.memory.truncate(self.start);
    }
}

/// Naming scheme of one kind of file. A name contains the snapshot or merge number and a file
/// number within that snapshot or merge.
pub(crate) struct Naming {
    pub(crate) prefix: &'static str,
    pub(crate) suffix: &'static str,
}

impl Naming {
    pub(crate) fn name(&self, number: u64, file: u64) -> String {
        format!("{}{number:010}-{file:06}{}", self.prefix, self.suffix)
    }

    pub(crate) fn numbers(&self, name: &str) -> Option<(u64, u64)> {
        let (number, file) =
            name.strip_prefix(self.prefix)?.strip_suffix(self.suffix)?.split_once('-')?;
        let numbers = (number.parse().ok()?, file.parse().ok()?);
        (self.name(numbers.0, numbers.1) == name).then_some(numbers)
    }

    /// Whether the name matches the identity in a file's head.
    pub(crate) fn is_identity(&self, name: &str, identity: u64) -> bool {
        self.numbers(name).is_some_and(|(number, file)| identity_of(number, file) == identity)
    }
}

/// Combines the two numbers of a name into the identity that the head contains.
pub(crate) fn identity_of(number: u64, file: u64) -> u64 {
    number.wrapping_shl(24) ^ file
}

/// A file in progress. Removes the file if dropped before [`publish`](Draft::publish).
pub(crate) struct Draft {
    disk: Arc<dyn Disk>,
    file: Option<Box<dyn DiskFile>>,
    name: String,
    head_bytes: u64,
    /// Number of bytes written, including the head.
    written: u64,
    synced: u64,
    /// Bytes to write next.
    buffer: AlignedBuffer,
    body_check: u32,
}

impl Draft {
    /// Creates a file with space for a head of `head_bytes`.
    pub(crate) fn create(disk: Arc<dyn Disk>, name: String, head_bytes: usize) -> Result<Draft> {
        let temporary = format!("{name}{TEMPORARY}");
        let file = disk
            .create_uncached(&temporary)
            .map_err(|e| Error::io(disk.path(&temporary), "creating", e))?;
        let mut draft = Draft {
            disk,
            file: Some(file),
            name,
            head_bytes: head_bytes as u64,
            written: 0,
            synced: 0,
            buffer: AlignedBuffer::new(),
            body_check: 0,
        };
        // Zeros reserve space for the head and mark the file as unfinished.
        draft.append(&vec![0; head_bytes])?;
        Ok(draft)
    }

    fn temporary(&self) -> String {
        format!("{}{TEMPORARY}", self.name)
    }

    /// Runs an operation that receives the file and the write buffer.
    ///
    /// A failure removes the file, because a later successful sync would not cover the lost bytes.
    fn attempt(
        &mut self,
        doing: &'static str,
        act: impl FnOnce(&dyn DiskFile, &AlignedBuffer) -> std::io::Result<()>,
    ) -> Result<()> {
        let path = self.disk.path(&self.temporary());
        let Some(file) = self.file.take() else {
            return Err(Error::io(
                path,
                doing,
                std::io::Error::other("an earlier operation on this file failed"),
            ));
        };
        match act(&*file, &self.buffer) {
            Ok(()) => {
                self.file = Some(file);
                Ok(())
            }
            Err(e) => {
                drop(file);
                let _ = self.disk.remove(&self.temporary());
                Err(Error::io(path, doing, e))
            }
        }
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.append(bytes)?;
        self.body_check = crc32c::crc32c_append(self.body_check, bytes);
        Ok(())
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            bytes = self.buffer.take(bytes);
            if self.buffer.is_full() {
                self.write_buffer()?;
            }
        }
        Ok(())
    }

    fn write_buffer(&mut self) -> Result<()> {
        let at = self.written;
        self.attempt("writing", |file, buffer| write_all_at(file, buffer.bytes(), at))?;
        self.written = self.bytes();
        self.buffer.clear();
        Ok(())
    }

    /// Returns [`Error::Full`] if fewer than `bytes` bytes are free on the disk.
    pub(crate) fn leave_free(&self, bytes: u64) -> Result<()> {
        if bytes > 0 && self.disk.free_bytes().is_ok_and(|free| free < bytes) {
            let why = format!("No space left on device, except {bytes} bytes reserved for the log");
            let source = std::io::Error::new(std::io::ErrorKind::StorageFull, why);
            return Err(Error::Full {
                path: self.disk.path(&self.temporary()),
                doing: "writing",
                source,
            });
        }
        Ok(())
    }

    /// Syncs the file if at least `SYNC_INTERVAL_BYTES` bytes are unsynced.
    pub(crate) fn sync_if_much(&mut self) -> Result<()> {
        if self.written - self.synced >= SYNC_INTERVAL_BYTES {
            self.attempt("syncing", |file, _| file.sync())?;
            self.synced = self.written;
        }
        Ok(())
    }

    /// Returns the size of the file so far in bytes, including the head.
    pub(crate) fn bytes(&self) -> u64 {
        self.written + self.buffer.bytes().len() as u64
    }

    pub(crate) fn body_bytes(&self) -> u64 {
        self.bytes() - self.head_bytes
    }

    pub(crate) fn body_check(&self) -> u32 {
        self.body_check
    }

    /// Returns the CRC-32C of this head and the body so far.
    pub(crate) fn check(&self, head: &[u8]) -> u32 {
        crc32c::crc32c_combine(crc32c::crc32c(head), self.body_check, self.body_bytes() as usize)
    }

    /// Writes the head, syncs the file and renames it to its final name. Does not sync the folder.
    pub(crate) fn publish(mut self, head: &[u8], role: Role, tag: Tag) -> Result<FileEntry> {
        let bytes = self.bytes();
        self.write_buffer()?;
        self.attempt("finishing", |file, _| {
            write_all_at(file, head, 0).and_then(|()| file.sync())
        })?;
        let (disk, from, to) = (self.disk.clone(), self.temporary(), self.name.clone());
        self.attempt("publishing", |_, _| disk.rename(&from, &to))?;
        self.file = None; // disarms Drop
        Ok(FileEntry { name: to, bytes, check: self.check(head), role, tag })
    }
}

impl std::fmt::Debug for Draft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Draft")
            .field("name", &self.name)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = self.disk.remove(&self.temporary());
        }
    }
}

/// An open file and the bytes of its head.
pub(crate) struct OpenedFile {
    pub(crate) file: Box<dyn DiskFile>,
    pub(crate) path: PathBuf,
    pub(crate) size: u64,
    pub(crate) head: Vec<u8>,
}

/// Opens a file and decodes its head. An error of `decode` contains the byte offset and the reason.
///
/// Every head begins with eight bytes of magic and a four-byte version.
pub(crate) fn open<H, W: Into<String>>(
    disk: &dyn Disk,
    name: &str,
    (magic, newest): (&[u8; 8], u32),
    head_bytes: usize,
    decode: impl FnOnce(&[u8]) -> std::result::Result<H, (u64, W)>,
) -> Result<(OpenedFile, H)> {
    let path = disk.path(name);
    let file = match disk.open(name) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::corrupt(path, 0, "missing, but listed in the manifest"));
        }
        Err(e) => return Err(Error::io(path, "opening", e)),
    };
    let size = file.size().map_err(|e| Error::io(&path, "measuring", e))?;
    let mut head = vec![0; head_bytes];
    let n = read_full_at(&*file, &mut head, 0).map_err(|e| Error::io(&path, "reading", e))?;
    let version = if n >= 12 { u32_at(&head, 8) } else { 0 };
    if n >= 12 && &head[..8] == magic && version > newest && version < 1 << 16 {
        return Err(Error::Version { path, found: version, newest });
    }
    let decoded = decode(&head[..n]).map_err(|(at, what)| Error::corrupt(&path, at, what))?;
    if version != newest {
        return Err(Error::corrupt(path, 8, "unknown format version"));
    }
    Ok((OpenedFile { file, path, size, head }, decoded))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn a_file_is_what_was_put_into_it() {
        // tmpfs has different rules for direct I/O.
        for folder in [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()] {
            let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(folder.path()).unwrap());
            let sizes = [0, 1, BLOCK, WRITE_BYTES, WRITE_BYTES + 1, 3 * WRITE_BYTES].into_iter();
            for (number, size) in sizes
                .flat_map(|n| {
                    [n.saturating_sub(HEADER_BYTES + 1), n.saturating_sub(HEADER_BYTES), n]
                })
                .enumerate()
            {
                let body: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
                let name = format!("file-{number}");
                let mut draft = Draft::create(disk.clone(), name.clone(), HEADER_BYTES).unwrap();
                let place = draft.buffer.bytes().as_ptr();
                assert!(place.addr().is_multiple_of(BLOCK));
                for some in body.chunks(300_007) {
                    draft.put(some).unwrap();
                    draft.sync_if_much().unwrap();
                    assert_eq!(draft.buffer.bytes().as_ptr(), place);
                }
                assert_eq!(draft.body_bytes(), size as u64);
                let entry =
                    draft.publish(&[7; HEADER_BYTES], Role::Snapshot, Tag::default()).unwrap();
                let file = std::fs::read(disk.path(&name)).unwrap();
                assert!(
                    file[..HEADER_BYTES] == [7; HEADER_BYTES] && file[HEADER_BYTES..] == body,
                    "a body of {size} bytes"
                );
                assert_eq!((entry.bytes, entry.check), (file.len() as u64, crc32c::crc32c(&file)));
            }
        }
    }

    const HEADER_BYTES: usize = 88;
}
