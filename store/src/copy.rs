//! Copies files with little effect on the rest of the system. Periodic syncs limit the dirty pages
//! that delay the log's sync, and copies are dropped from the page cache.

use std::fs::File;
use std::path::Path;

use crate::disk::{Disk, DiskFile, read_full_at, write_all_at};
use crate::error::{Error, Result};

/// Size of a read and write in bytes.
const COPY_BYTES: usize = 1 << 20;
/// Bytes between two syncs.
const SYNC_INTERVAL_BYTES: u64 = 8 << 20;

/// Copies the first `bytes` of a file to a new file in another folder. Returns the CRC-32C.
///
/// The contents are durable on return, but the new name is not. `advance` receives the size of each
/// chunk, and its error aborts the copy.
pub(crate) fn copy(
    (from, name): (&dyn Disk, &str),
    (to, new): (&dyn Disk, &str),
    bytes: u64,
    advance: &dyn Fn(u64) -> Result<()>,
) -> Result<u32> {
    let path = to.path(new);
    let file = to.create(new).map_err(|e| Error::io(&path, "creating", e))?;
    let check = append((from, name), (&*file, &path), 0..bytes, advance)?;
    // This call is best effort. The copy is complete even if its pages stay cached.
    let _ = file.drop_cache();
    Ok(check)
}

/// Appends a range of a file to a copy that ends at the range's start, durably. Returns the CRC-32C
/// of the range.
pub(crate) fn append(
    (from, name): (&dyn Disk, &str),
    (to, path): (&dyn DiskFile, &Path),
    part: std::ops::Range<u64>,
    advance: &dyn Fn(u64) -> Result<()>,
) -> Result<u32> {
    let source = from.path(name);
    let file = from.open(name).map_err(|e| Error::io(&source, "opening", e))?;
    let (mut at, mut synced, mut check) = (part.start, part.start, 0);
    let mut piece = vec![0; COPY_BYTES.min((part.end - part.start).max(1) as usize)];
    while at < part.end {
        let want = piece.len().min((part.end - at) as usize);
        let n = read_full_at(&*file, &mut piece[..want], at)
            .map_err(|e| Error::io(&source, "reading", e))?;
        if n < want {
            return Err(Error::corrupt(source, at + n as u64, "the file ends too early"));
        }
        write_all_at(to, &piece[..n], at).map_err(|e| Error::io(path, "writing", e))?;
        check = crc32c::crc32c_append(check, &piece[..n]);
        at += n as u64;
        if at - synced >= SYNC_INTERVAL_BYTES {
            to.sync().map_err(|e| Error::io(path, "syncing", e))?;
            synced = at;
        }
        advance(n as u64)?;
    }
    to.sync().map_err(|e| Error::io(path, "syncing", e))?;
    Ok(check)
}

/// Returns the CRC-32C of a file, which must have exactly `bytes` bytes.
pub(crate) fn check_of(
    disk: &dyn Disk,
    name: &str,
    bytes: u64,
    advance: &dyn Fn(u64) -> Result<()>,
) -> Result<u32> {
    let path = disk.path(name);
    let file = match disk.open(name) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::corrupt(path, 0, "missing, but listed in the backup"));
        }
        file => file.map_err(|e| Error::io(&path, "opening", e))?,
    };
    let size = file.size().map_err(|e| Error::io(&path, "measuring", e))?;
    if size != bytes {
        let what = format!("{size} bytes long, the backup says {bytes}");
        return Err(Error::corrupt(path, size.min(bytes), what));
    }
    let (mut at, mut check) = (0, 0);
    let mut piece = vec![0; COPY_BYTES.min(bytes.max(1) as usize)];
    while at < bytes {
        let want = piece.len().min((bytes - at) as usize);
        let n = read_full_at(&*file, &mut piece[..want], at)
            .map_err(|e| Error::io(&path, "reading", e))?;
        if n == 0 {
            return Err(Error::corrupt(path, at, "the file ends too early"));
        }
        check = crc32c::crc32c_append(check, &piece[..n]);
        at += n as u64;
        advance(n as u64)?;
    }
    Ok(check)
}

pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|e| Error::io(folder, "syncing the folder", e))
}
