//! `tidemark.manifest`: the list of files that make up the data. The manifest is text with one fact
//! per line, readable with `cat`.
//!
//! ```text
//!   tidemark manifest 4
//!   lineage 6f0c0d9bb4b24a0d8f1f6f7a5f0c2e11
//!   number 17
//!   term 0
//!   replay 12 4096 1234567 8841 9a3c77e0
//!   durable 1239999
//!   file snap-0000000017-000001.tsnap 73400412 c0ffee00 snapshot 1 2 0 999999 41
//!   file snap-0000000016-000002.tsnap 5512 0badcafe snapshot 1 2 1000000 18446744073709551615 7
//!   check 5d2f0c11
//! ```
//!
//! | line | fields |
//! |---|---|
//! | `tidemark manifest` | format version |
//! | `lineage` | 32 hexadecimal digits |
//! | `number` | increases with each manifest |
//! | `term` | term of the log at the time of writing |
//! | `replay` | start of replay: segment, byte, offset, sequence, chain value (8 hex digits) |
//! | `durable` | durable offset of the log; a log that ends earlier has lost data |
//! | `file` | name, bytes, CRC-32C, `snapshot` or `cold`, space, kind, lowest id, highest, stamp |
//! | `check` | CRC-32C of all bytes before this line |
//!
//! Lines appear in this order, with any number of `file` lines, sorted by name. Numbers are decimal
//! without leading zeros. Each line ends with one newline, and the file ends after the last
//! newline. The encoding of a manifest is canonical, so that any changed byte is detected.
//!
//! The store writes `tidemark.manifest.tmp`, syncs it, renames it, and syncs the folder. Files
//! listed in a manifest are durable before the manifest is written. Files listed only in the
//! previous manifest are removed afterwards.

use crate::batch::Lineage;
use crate::disk::{Disk, TEMPORARY, read_whole, replace};
use crate::error::{Error, Result};
use crate::frame::Check;
use crate::log::Position;
use crate::segment::{MAX_NUMBER, SEGMENT_HEAD_BYTES};

/// File name of the manifest.
pub const MANIFEST: &str = "tidemark.manifest";

/// Name of the file that marks a folder as a backup (backup.rs).
pub const BACKUP: &str = "tidemark.backup";

/// Format version of the manifest. This release reads no other version. Version 4 introduced a
/// common container for cold files.
pub const MANIFEST_VERSION: u32 = 4;

/// Maximum number of files in a manifest. 100,000 lines take about 10 MB.
pub const MAX_FILES: usize = 100_000;

const LIMIT_BYTES: u64 = 64 << 20;

/// Maximum size of a file in bytes. The sum over all files stays below 2^63.
const MAX_FILE_BYTES: u64 = 1 << 44;

/// Purpose of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Loaded at startup.
    Snapshot,
    /// Opened at startup and read on demand.
    Cold,
}

/// Attributes of a file that the server defines. The store does not interpret these attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// Space number; 0 is the catalogue.
    pub space: u32,
    /// Kind of the contents, analogous to the kind of a record.
    pub kind: u32,
    /// Lowest id that the file may contain.
    pub low: u64,
    /// Highest id that the file may contain.
    pub high: u64,
    /// Version of the table when its snapshot began. A table with an unchanged version need not be
    /// written again.
    pub stamp: u64,
}

/// Entry of a file in the manifest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileEntry {
    /// Name in the data folder.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// CRC-32C of all bytes.
    pub check: u32,
    /// Purpose of the file.
    pub role: Role,
    /// Attributes that the server defines.
    pub tag: Tag,
}

/// Contents of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Lineage of all files.
    pub lineage: Lineage,
    /// Sequence number of this manifest.
    pub number: u64,
    /// Term of the log.
    pub term: u64,
    /// Position at which replay begins.
    pub replay: Position,
    /// Offset up to which the log was durable.
    pub durable: u64,
    /// Files, sorted by name.
    pub files: Vec<FileEntry>,
}

impl Manifest {
    /// Returns the manifest of an empty data folder.
    pub fn new(lineage: Lineage) -> Manifest {
        Manifest {
            lineage,
            number: 1,
            term: 0,
            replay: Position::START,
            durable: 0,
            files: Vec::new(),
        }
    }

    /// Returns the entry with this name.
    pub fn file(&self, name: &str) -> Option<&FileEntry> {
        self.files.binary_search_by(|f| f.name.as_str().cmp(name)).ok().map(|at| &self.files[at])
    }

    /// Encodes the manifest as text.
    pub fn encode(&self) -> String {
        let at = &self.replay;
        let mut text = format!(
            "tidemark manifest {MANIFEST_VERSION}\nlineage {}\nnumber {}\nterm {}\n\
             replay {} {} {} {} {:08x}\ndurable {}\n",
            self.lineage,
            self.number,
            self.term,
            at.segment,
            at.byte,
            at.offset,
            at.sequence,
            at.chain,
            self.durable,
        );
        for file in &self.files {
            let role = match file.role {
                Role::Snapshot => "snapshot",
                Role::Cold => "cold",
            };
            let tag = &file.tag;
            text.push_str(&format!(
                "file {} {} {:08x} {role} {} {} {} {} {}\n",
                file.name,
                file.bytes,
                file.check,
                tag.space,
                tag.kind,
                tag.low,
                tag.high,
                tag.stamp,
            ));
        }
        let check = Check::new().bytes(text.as_bytes()).value();
        text.push_str(&format!("check {check:08x}\n"));
        text
    }

    /// Decodes a manifest. An error contains the byte offset and the reason.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Manifest, BadManifest> {
        let text =
            std::str::from_utf8(bytes).map_err(|e| bad(e.valid_up_to(), "not valid UTF-8"))?;
        // Verify the checksum before parsing. Otherwise a flipped byte would be reported as a
        // syntax error. Other versions may store the checksum in a different place.
        if text.starts_with(&format!("tidemark manifest {MANIFEST_VERSION}\n"))
            && let Some(end) = text.trim_end_matches('\n').rfind('\n').map(|at| at + 1)
            && let Some(check) = text[end..]
                .strip_prefix("check ")
                .and_then(|check| hexadecimal(check.trim_end_matches('\n')))
            && check != Check::new().bytes(&bytes[..end]).value()
        {
            return Err(bad(end, "checksum mismatch"));
        }
        let mut lines = Lines::new(text);
        let first = lines.fields("tidemark", 2)?;
        if first[0] != "manifest" {
            return Err(bad(0, "not a manifest"));
        }
        let version: u32 = number(first[1]).ok_or_else(|| bad(0, "invalid version"))?;
        if version == 0 {
            return Err(bad(0, "unknown format version"));
        }
        if version != MANIFEST_VERSION {
            return Err(BadManifest::Version(version));
        }
        let lineage = lines.fields("lineage", 1)?;
        let lineage = Lineage::parse(lineage[0]).ok_or_else(|| bad(lines.at, "invalid lineage"))?;
        let manifest_number = lines.count("number")?;
        let term = lines.number("term")?;
        let replay = lines.position("replay")?;
        let durable = lines.count("durable")?;
        let mut files: Vec<FileEntry> = Vec::new();
        while lines.next_is("file ") {
            if files.len() == MAX_FILES {
                return Err(bad(lines.at, "too many files"));
            }
            let start = lines.at;
            let f = lines.fields("file", 9)?;
            let entry = (|| {
                let role = match f[3] {
                    "snapshot" => Role::Snapshot,
                    "cold" => Role::Cold,
                    _ => return None,
                };
                let tag = Tag {
                    space: number(f[4])?,
                    kind: number(f[5])?,
                    low: number(f[6])?,
                    high: number(f[7])?,
                    stamp: number(f[8])?,
                };
                Some(FileEntry {
                    name: f[0].to_string(),
                    bytes: number(f[1])?,
                    check: hexadecimal(f[2])?,
                    role,
                    tag,
                })
            })();
            let possible = |e: &FileEntry| is_plain_name(&e.name) && e.bytes <= MAX_FILE_BYTES;
            let entry = entry.filter(possible).ok_or_else(|| bad(start, "invalid file entry"))?;
            if files.last().is_some_and(|last| last.name >= entry.name) {
                return Err(bad(start, "files are out of order"));
            }
            files.push(entry);
        }
        let end = lines.at;
        let check = lines.fields("check", 1)?;
        if hexadecimal(check[0]) != Some(Check::new().bytes(&bytes[..end]).value()) {
            return Err(bad(end, "checksum mismatch"));
        }
        if lines.at != bytes.len() {
            return Err(bad(lines.at, "bytes after the last line"));
        }
        Ok(Manifest { lineage, number: manifest_number, term, replay, durable, files })
    }

    /// Reads the folder's manifest. Returns `None` if the folder has no manifest.
    pub fn read(disk: &dyn Disk) -> Result<Option<Manifest>> {
        Manifest::read_as(disk, MANIFEST)
    }

    /// Reads a manifest from the file `name`.
    pub(crate) fn read_as(disk: &dyn Disk, name: &str) -> Result<Option<Manifest>> {
        let path = disk.path(name);
        let bytes = match read_whole(disk, name, LIMIT_BYTES) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io(path, "reading", e)),
        };
        match Manifest::decode(&bytes) {
            Ok(manifest) => Ok(Some(manifest)),
            Err(BadManifest::Version(found)) if found < MANIFEST_VERSION => {
                Err(Error::OldVersion { path, found, needed: MANIFEST_VERSION })
            }
            Err(BadManifest::Version(found)) => {
                Err(Error::Version { path, found, newest: MANIFEST_VERSION })
            }
            Err(BadManifest::Corrupt(offset, what)) => {
                Err(Error::corrupt(path, offset as u64, what))
            }
        }
    }

    /// Replaces the folder's manifest, durably.
    pub(crate) fn write(&self, disk: &dyn Disk) -> Result<()> {
        if self.files.len() > MAX_FILES {
            return Err(Error::Refused(format!(
                "{} files; the limit is {MAX_FILES}",
                self.files.len()
            )));
        }
        debug_assert!(
            self.files.is_sorted_by(|a, b| a.name < b.name),
            "a manifest's files are sorted"
        );
        replace(disk, MANIFEST, self.encode().as_bytes())
            .map_err(|e| Error::io(disk.path(MANIFEST), "replacing", e))
    }
}

/// Reason why bytes are not a valid manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadManifest {
    /// The file has another format version.
    Version(u32),
    /// Byte offset of the error, and its description.
    Corrupt(usize, &'static str),
}

fn bad(at: usize, what: &'static str) -> BadManifest {
    BadManifest::Corrupt(at, what)
}

/// Whether the name is safe as a path component and as a field of a line.
pub(crate) fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && name.len() <= 200
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Parses a decimal number in canonical form.
pub(crate) fn number<N: std::str::FromStr + std::fmt::Display>(text: &str) -> Option<N> {
    let n: N = text.parse().ok()?;
    (text.bytes().all(|b| b.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0')))
        .then_some(n)
}

pub(crate) fn hexadecimal(text: &str) -> Option<u32> {
    let proper =
        text.len() == 8 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if proper { u32::from_str_radix(text, 16).ok() } else { None }
}

/// Parser of a text with one fact per line.
pub(crate) struct Lines<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(text: &'a str) -> Lines<'a> {
        Lines { text, at: 0 }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn position(&mut self, word: &str) -> std::result::Result<Position, BadManifest> {
        let at = self.fields(word, 5)?;
        let position = (|| {
            Some(Position {
                segment: number(at[0])?,
                byte: number(at[1])?,
                offset: number(at[2])?,
                sequence: number(at[3])?,
                chain: hexadecimal(at[4])?,
            })
        })();
        let possible = |p: &Position| {
            let numbers = [p.segment, p.byte, p.offset, p.sequence];
            p.segment > 0
                && p.byte >= SEGMENT_HEAD_BYTES
                && numbers.iter().all(|&n| n <= MAX_NUMBER)
        };
        position.filter(possible).ok_or_else(|| bad(self.at, "invalid position"))
    }

    pub(crate) fn next_is(&self, start: &str) -> bool {
        self.text[self.at..].starts_with(start)
    }

    /// Returns the `count` fields after `word` on the next line.
    pub(crate) fn fields(
        &mut self,
        word: &str,
        count: usize,
    ) -> std::result::Result<Vec<&'a str>, BadManifest> {
        let rest = &self.text[self.at..];
        let line =
            &rest[..rest.find('\n').ok_or_else(|| bad(self.at, "unexpected end of text"))?];
        let fields: Vec<&str> = line.split(' ').collect();
        if fields[0] != word || fields.len() != count + 1 {
            return Err(bad(self.at, "unexpected line"));
        }
        self.at += line.len() + 1;
        Ok(fields[1..].to_vec())
    }

    pub(crate) fn number(&mut self, word: &str) -> std::result::Result<u64, BadManifest> {
        let at = self.at;
        number(self.fields(word, 1)?[0]).ok_or_else(|| bad(at, "expected a number"))
    }

    /// Parses a number of at most `MAX_NUMBER`.
    fn count(&mut self, word: &str) -> std::result::Result<u64, BadManifest> {
        let at = self.at;
        let n = self.number(word)?;
        if n <= MAX_NUMBER { Ok(n) } else { Err(bad(at, "number out of range")) }
    }
}

/// Whether the name belongs to a data file of Tidemark.
pub(crate) fn is_ours(name: &str) -> bool {
    let name = name.strip_suffix(TEMPORARY).unwrap_or(name);
    name == MANIFEST
        || (name.starts_with("log-") && name.ends_with(".tlog"))
        || (name.starts_with("snap-") && name.ends_with(".tsnap"))
        || (name.starts_with("cold-") && name.ends_with(".tcold"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example() -> Manifest {
        let tag = Tag { space: 1, kind: 2, low: 0, high: 999, stamp: 41 };
        let file = |name: &str, role| FileEntry {
            name: name.to_string(),
            bytes: 1000,
            check: 0xc0ff_ee00,
            role,
            tag,
        };
        Manifest {
            lineage: Lineage([0xab; 16]),
            number: 17,
            term: 3,
            replay: Position {
                segment: 12,
                byte: 4096,
                offset: 1_234_567,
                sequence: 8841,
                chain: 0x9a,
            },
            durable: 1_239_999,
            files: vec![file("cold-1.tcold", Role::Cold), file("snap-1.tsnap", Role::Snapshot)],
        }
    }

    #[test]
    fn it_reads_back_and_each_changed_byte_is_seen() {
        let manifest = example();
        let text = manifest.encode();
        assert_eq!(Manifest::decode(text.as_bytes()), Ok(manifest));
        let mut bytes = text.into_bytes();
        for i in 0..bytes.len() {
            for bit in 0..8 {
                bytes[i] ^= 1 << bit;
                assert!(Manifest::decode(&bytes).is_err(), "byte {i} bit {bit}");
                bytes[i] ^= 1 << bit;
            }
        }
        for cut in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        bytes.push(b'\n');
        assert!(Manifest::decode(&bytes).is_err());
    }

    #[test]
    fn names_stay_in_the_folder() {
        for name in ["", ".", "..", "../x", "/etc/passwd", "a b", "a\tb", ".hidden"] {
            assert!(!is_plain_name(name), "{name:?}");
        }
        assert!(is_plain_name("snap-0000000017-000001.tsnap"));
    }
}
