//! Copies of files: synced piece by piece, so that the log's sync never waits for much of them, and
//! kept out of the system's cache, which others need.

use std::fs::File;
use std::path::Path;

use crate::disk::{Disk, DiskFile, read_full_at, write_all_at};
use crate::error::{Error, Result};

/// Bytes that are read and written together.
const PIECE: usize = 1 << 20;
/// Bytes between two syncs.
const SYNC_EVERY: u64 = 8 << 20;

/// Copies the first `bytes` of a file to a new one of another folder, durably but for the name.
/// `advance` is told of each piece, and an error of it ends the copy. Gives the CRC-32C.
pub(crate) fn copy(
    (from, name): (&dyn Disk, &str),
    (to, new): (&dyn Disk, &str),
    bytes: u64,
    advance: &dyn Fn(u64) -> Result<()>,
) -> Result<u32> {
    let path = to.path(new);
    let file = to.create(new).map_err(|e| Error::io(&path, "creating", e))?;
    let check = append((from, name), (&*file, &path), 0..bytes, advance)?;
    // What it takes of memory is given back; that it is, is not needed.
    let _ = file.drop_cache();
    Ok(check)
}

/// Appends a part of a file to its copy, which ends where that begins, durably. Gives the CRC-32C
/// of the part.
pub(crate) fn append(
    (from, name): (&dyn Disk, &str),
    (to, path): (&dyn DiskFile, &Path),
    part: std::ops::Range<u64>,
    advance: &dyn Fn(u64) -> Result<()>,
) -> Result<u32> {
    let source = from.path(name);
    let file = from.open(name).map_err(|e| Error::io(&source, "opening", e))?;
    let (mut at, mut synced, mut check) = (part.start, part.start, 0);
    let mut piece = vec![0; PIECE.min((part.end - part.start).max(1) as usize)];
    while at < part.end {
        let want = piece.len().min((part.end - at) as usize);
        let n = read_full_at(&*file, &mut piece[..want], at)
            .map_err(|e| Error::io(&source, "reading", e))?;
        if n < want {
            return Err(Error::corrupt(source, at + n as u64, "it ends too early"));
        }
        write_all_at(to, &piece[..n], at).map_err(|e| Error::io(path, "writing", e))?;
        check = crc32c::crc32c_append(check, &piece[..n]);
        at += n as u64;
        if at - synced >= SYNC_EVERY {
            to.sync().map_err(|e| Error::io(path, "syncing", e))?;
            synced = at;
        }
        advance(n as u64)?;
    }
    to.sync().map_err(|e| Error::io(path, "syncing", e))?;
    Ok(check)
}

/// CRC-32C of a file, which must be of this length.
pub(crate) fn check_of(
    disk: &dyn Disk,
    name: &str,
    bytes: u64,
    advance: &dyn Fn(u64) -> Result<()>,
) -> Result<u32> {
    let path = disk.path(name);
    let file = match disk.open(name) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::corrupt(path, 0, "missing; the backup names it"));
        }
        file => file.map_err(|e| Error::io(&path, "opening", e))?,
    };
    let size = file.size().map_err(|e| Error::io(&path, "measuring", e))?;
    if size != bytes {
        let what = format!("{size} bytes long, the backup says {bytes}");
        return Err(Error::corrupt(path, size.min(bytes), what));
    }
    let (mut at, mut check) = (0, 0);
    let mut piece = vec![0; PIECE.min(bytes.max(1) as usize)];
    while at < bytes {
        let want = piece.len().min((bytes - at) as usize);
        let n = read_full_at(&*file, &mut piece[..want], at)
            .map_err(|e| Error::io(&path, "reading", e))?;
        if n == 0 {
            return Err(Error::corrupt(path, at, "it ends too early"));
        }
        check = crc32c::crc32c_append(check, &piece[..n]);
        at += n as u64;
        advance(n as u64)?;
    }
    Ok(check)
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|e| Error::io(folder, "syncing the folder", e))
}
