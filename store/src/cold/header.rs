//! Header and lifetime of both kinds of cold files, rows and pages: create, open, compare with the
//! manifest, read by 4 KiB, remove.
//!
//! Both headers share their first 72 bytes: magic, version, kind, lineage, identity, space, range
//! and stamp. A checksum of bytes 0..124 is at byte 124; zeros fill the rest of the block. The
//! bytes in between differ per kind, see the tops of `mod.rs` (rows) and `pages.rs` (pages).

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::batch::Lineage;
use crate::disk::{Disk, DiskFile, read_full_at};
use crate::error::{Error, Result};
use crate::frame::{Check, u32_at, u64_at};
use crate::immutable_file::{self, Draft, Naming, identity_of};
use crate::manifest::{FileEntry, Role, Tag};

/// Size of a block in bytes. A lookup reads one block.
pub const BLOCK_BYTES: usize = 4096;
/// Version that is written, and the newest that can be read, of both formats.
pub const COLD_VERSION: u32 = 1;
/// Offset of the header's checksum.
const CHECKED: usize = 124;
/// Bytes of the header that are in use; the others are zero.
const HEAD: usize = 128;

const NAMING: Naming = Naming { prefix: "cold-", suffix: ".tcold" };

pub(crate) fn cold_name(number: u64, file: u64) -> String {
    NAMING.name(number, file)
}

/// The two numbers in a cold file's name, if it is one.
pub(crate) fn parse_cold_name(name: &str) -> Option<(u64, u64)> {
    NAMING.numbers(name)
}

/// The head of a file of one kind.
pub(super) trait Head: Sized {
    const MAGIC: &'static [u8; 8];
    /// Reads it; on an error the byte and what is wrong there.
    fn decode(bytes: &[u8]) -> std::result::Result<Self, (u64, &'static str)>;
    /// What all kinds have of it.
    fn whose(&self) -> FileIdentity;
    /// Bytes of the whole file.
    fn length(&self) -> u64;
}

/// Whose a file is, which it is, and what for: the fields that every header has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    pub(super) lineage: Lineage,
    pub(super) identity: u64,
    pub(super) tag: Tag,
}

impl FileIdentity {
    /// A head with these fields, in which the others are to be [put], and which is to be
    /// [sealed](seal).
    pub(super) fn encode(&self, magic: &[u8; 8]) -> [u8; BLOCK_BYTES] {
        let mut head = [0; BLOCK_BYTES];
        put(&mut head, 0, magic);
        put(&mut head, 8, &COLD_VERSION.to_le_bytes());
        put(&mut head, 12, &self.tag.kind.to_le_bytes());
        put(&mut head, 16, &self.lineage.0);
        put(&mut head, 32, &self.identity.to_le_bytes());
        put(&mut head, 40, &self.tag.space.to_le_bytes());
        put_numbers(&mut head, 48, &[self.tag.low, self.tag.high, self.tag.stamp]);
        head
    }

    /// Reads these fields of a head, whose first `used` bytes before its check are not all zeros;
    /// on an error the byte and what is wrong there. `begins`: what a file of another kind does
    /// not.
    pub(super) fn decode(
        bytes: &[u8],
        magic: &[u8; 8],
        begins: &'static str,
        used: usize,
    ) -> std::result::Result<FileIdentity, (u64, &'static str)> {
        if bytes.len() < BLOCK_BYTES {
            return Err((bytes.len() as u64, "it ends inside its head"));
        }
        if &bytes[..8] != magic {
            return Err((0, begins));
        }
        if Check::new().bytes(&bytes[..CHECKED]).value() != u32_at(bytes, CHECKED) {
            return Err((CHECKED as u64, "the head's checksum does not match"));
        }
        if bytes[used..CHECKED].iter().chain(&bytes[HEAD..]).any(|&b| b != 0) {
            return Err((used as u64, "a reserved field is not zero"));
        }
        let mut lineage = [0; 16];
        lineage.copy_from_slice(&bytes[16..32]);
        let tag = Tag {
            space: u32_at(bytes, 40),
            kind: u32_at(bytes, 12),
            low: u64_at(bytes, 48),
            high: u64_at(bytes, 56),
            stamp: u64_at(bytes, 64),
        };
        Ok(FileIdentity { lineage: Lineage(lineage), identity: u64_at(bytes, 32), tag })
    }
}

/// Puts a field into a head.
pub(super) fn put(head: &mut [u8; BLOCK_BYTES], at: usize, bytes: &[u8]) {
    head[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Puts numbers of 64 bits into a head, one behind the other.
pub(super) fn put_numbers(head: &mut [u8; BLOCK_BYTES], at: usize, numbers: &[u64]) {
    for (i, number) in numbers.iter().enumerate() {
        put(head, at + 8 * i, &number.to_le_bytes());
    }
}

/// Puts the check of all that has been put into a head.
pub(super) fn seal(mut head: [u8; BLOCK_BYTES]) -> [u8; BLOCK_BYTES] {
    let check = Check::new().bytes(&head[..CHECKED]).value();
    put(&mut head, CHECKED, &check.to_le_bytes());
    head
}

/// Begins the file of these two numbers.
pub(super) fn begin(
    disk: Arc<dyn Disk>,
    lineage: Lineage,
    (number, file): (u64, u64),
    tag: Tag,
) -> Result<(Draft, FileIdentity)> {
    let draft = Draft::create(disk, cold_name(number, file), BLOCK_BYTES)?;
    Ok((draft, FileIdentity { lineage, identity: identity_of(number, file), tag }))
}

/// A cold file of either kind, open for reading from any thread.
#[derive(Debug)]
pub(super) struct OpenColdFile {
    pub(super) path: PathBuf,
    pub(super) entry: FileEntry,
    whose: FileIdentity,
    file: Arc<dyn DiskFile>,
    /// Where it is removed, once it is retired.
    retired: OnceLock<Arc<dyn Disk>>,
}

impl OpenColdFile {
    /// Opens a file by its name alone, and reads its head. Its entry's checksum is then unknown: 0.
    pub(super) fn open<H: Head>(disk: &dyn Disk, name: &str) -> Result<(OpenColdFile, H)> {
        let (opened, head) =
            immutable_file::open(disk, name, (H::MAGIC, COLD_VERSION), BLOCK_BYTES, H::decode)?;
        let immutable_file::Opened { file, path, size, .. } = opened;
        let (whose, length) = (head.whose(), head.length());
        if !NAMING.is_identity(name, whose.identity) {
            return Err(Error::corrupt(path, 32, "it was written under another name"));
        }
        if size != length {
            return Err(Error::corrupt(
                path,
                size,
                format!("{size} bytes long, its head says {length}"),
            ));
        }
        // Only a hint: without it a lookup may read more than its 4 KiB.
        let _ = file.expect_random();
        let entry = FileEntry {
            name: name.to_string(),
            bytes: size,
            check: 0,
            role: Role::Cold,
            tag: whose.tag,
        };
        Ok((OpenColdFile { path, entry, whose, file: file.into(), retired: OnceLock::new() }, head))
    }

    /// It must be the file that the manifest names.
    pub(super) fn expect(&mut self, entry: &FileEntry, lineage: Lineage) -> Result<()> {
        let corrupt = |at, what: &str| Err(self.corrupt(at, what));
        if self.entry.bytes != entry.bytes {
            return corrupt(entry.bytes, "it has another length than the manifest says");
        }
        if self.whose.lineage != lineage {
            return corrupt(16, "it belongs to another lineage than the manifest");
        }
        if self.whose.tag != entry.tag {
            return corrupt(12, "it holds something else than the manifest says");
        }
        self.entry = entry.clone();
        Ok(())
    }

    /// Reads as much as there is from a byte on, at most a buffer full.
    pub(super) fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        read_full_at(&*self.file, buffer, at).map_err(|e| Error::io(&self.path, "reading", e))
    }

    /// An error that says what is wrong at a byte.
    pub(super) fn corrupt(&self, at: u64, what: impl Into<String>) -> Error {
        Error::corrupt(&self.path, at, what)
    }

    /// What it takes of memory beside its own size.
    pub(super) fn memory_bytes(&self) -> usize {
        self.entry.name.len() + 64
    }

    /// The file is named by no manifest any more: it is removed when the last of its readers lets
    /// go of it.
    pub(super) fn retire(&self, disk: Arc<dyn Disk>) {
        let _ = self.retired.set(disk);
    }
}

impl Drop for OpenColdFile {
    fn drop(&mut self) {
        if let Some(disk) = self.retired.get() {
            // What stays is swept at the next start.
            let _ = disk.remove(&self.entry.name);
        }
    }
}

/// Where the block or page of this number lies.
pub(super) fn place(number: u64) -> u64 {
    (1 + number) * BLOCK_BYTES as u64
}
