//! What can go wrong, named for what the caller does next.
//!
//! | error | the caller |
//! |---|---|
//! | [`Error::Corrupt`] | does not start, or fetches the file anew; shows path, offset and advice |
//! | [`Error::Full`] | refuses writes, goes on reading, tries again: nothing was half applied |
//! | [`Error::Io`] | as Full; a disk that keeps failing is the operator's |
//! | [`Error::Locked`] | does not start: another process has the folder |
//! | [`Error::Version`] | does not start: a newer release wrote the file |
//! | [`Error::OldVersion`] | does not start: an older release wrote the folder |
//! | [`Error::Refused`] | reports it: the request itself was wrong |

use std::io;
use std::path::{Path, PathBuf};

/// Anything that the store refuses or fails to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Bytes on disk that are not what was written.
    #[error("{} is damaged at byte {offset}: {what}", .path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// The byte at which the first wrong structure begins.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// No room on the disk (or in the quota). Nothing was applied; the same call may succeed later.
    #[error("no room on the disk while {doing} {}: {source}", .path.display())]
    Full {
        /// The file that could not grow.
        path: PathBuf,
        /// The step that failed.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused a file operation.
    #[error("{doing} {}: {source}", .path.display())]
    Io {
        /// The file concerned.
        path: PathBuf,
        /// The step that failed.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Another process works on this folder.
    #[error("{} is in use by another process", .path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// A file of a format version that this release does not know. The file is left as it is.
    #[error("{} has format version {found}, this release reads up to {newest}", .path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version it names.
        found: u32,
        /// The newest version that can be read.
        newest: u32,
    },
    /// The folder has an older format version, which this release does not read. It is left as it
    /// is.
    #[error(
        "{} has format version {found}, this release reads version {needed} only and does not \
         convert older folders", .path.display()
    )]
    OldVersion {
        /// The file.
        path: PathBuf,
        /// The version it names.
        found: u32,
        /// The version that can be read.
        needed: u32,
    },
    /// The request cannot be done, whatever the disk does.
    #[error("{0}")]
    Refused(String),
}

/// [`Error::gist`] of a message.
pub fn gist(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// The result of everything here.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn corrupt(path: impl Into<PathBuf>, offset: u64, what: impl Into<String>) -> Error {
        Error::Corrupt { path: path.into(), offset, what: what.into() }
    }

    /// Sorts an I/O error by what it asks of the caller. A full disk shows as ENOSPC, a full quota
    /// as EDQUOT.
    pub(crate) fn io(path: impl AsRef<Path>, doing: &'static str, source: io::Error) -> Error {
        let path = path.as_ref().to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::Full { path, doing, source }
            }
            _ => Error::Io { path, doing, source },
        }
    }

    /// Is it worth trying again without a human? Room may be made, a disk may come back.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Full { .. } | Error::Io { .. })
    }

    /// The message without its numbers: when the same thing fails again the next message may name
    /// another segment or another size, and says nothing new.
    pub fn gist(&self) -> String {
        gist(&self.to_string())
    }

    /// [`Error::advice`] where the data of a server that runs are not concerned: for backups and
    /// what is restored.
    pub fn advice_beside(&self) -> &'static str {
        match self {
            Error::Full { .. } => "Make room on that disk, then try again.",
            Error::Io { source, .. }
                if !matches!(
                    source.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                "Look at the path, the disk and the kernel's log, then try again."
            }
            _ => self.advice(),
        }
    }

    /// What an operator can do about it, in one sentence.
    pub fn advice(&self) -> &'static str {
        match self {
            Error::Corrupt { .. } => {
                "Keep a copy of the folder, run `tidemark check` on it, then fetch the data again \
                 from a replica or restore a backup; do not delete the file: what it holds would \
                 be lost in silence."
            }
            Error::Full { .. } => "Make room on the disk; writes are accepted again by themselves.",
            Error::Io { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => {
                    "Give the folder and all its files to the user under whom this runs."
                }
                io::ErrorKind::ReadOnlyFilesystem => {
                    "Mount the file system so that it can be written."
                }
                _ => {
                    "Look at the disk and at the kernel's log; a server that runs refuses writes \
                     until the operation succeeds."
                }
            },
            Error::Locked { .. } => "Stop the other process, or give this one a folder of its own.",
            Error::Version { .. } => {
                "Start the release that wrote the file, or a newer one; the file was not touched."
            }
            Error::OldVersion { .. } => {
                "Start the release that wrote the folder, and copy its data into a new folder with \
                 `tidemark import --from`; the file was not touched."
            }
            Error::Refused(_) => "Correct the request.",
        }
    }
}
