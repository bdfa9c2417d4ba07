//! Errors of the store, classified by how the caller handles them.
//!
//! | error | the caller |
//! |---|---|
//! | [`Error::Corrupt`] | refuses to start or fetches the file again; reports path and offset |
//! | [`Error::Full`] | refuses writes, keeps serving reads, retries: nothing was applied |
//! | [`Error::Io`] | as for `Full`; a persistent failure needs the operator |
//! | [`Error::Locked`] | refuses to start: another process uses the folder |
//! | [`Error::Version`] | refuses to start: a newer release wrote the file |
//! | [`Error::OldVersion`] | refuses to start: an older release wrote the folder |
//! | [`Error::Refused`] | reports it: the request itself was invalid |

use std::io;
use std::path::{Path, PathBuf};

/// Error of a store operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file's contents fail a checksum or a structural check.
    #[error("{} is damaged at byte {offset}: {what}", .path.display())]
    Corrupt {
        /// Path of the damaged file.
        path: PathBuf,
        /// Byte offset of the first invalid structure.
        offset: u64,
        /// Description of the damage.
        what: String,
    },
    /// The disk or the quota is full. Nothing was applied; a retry may succeed.
    #[error("disk full while {doing} {}: {source}", .path.display())]
    Full {
        /// Path of the file that could not grow.
        path: PathBuf,
        /// Operation that failed.
        doing: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file operation failed.
    #[error("{doing} {}: {source}", .path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Operation that failed.
        doing: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Another process holds the folder's lock.
    #[error("{} is in use by another process", .path.display())]
    Locked {
        /// Path of the lock file.
        path: PathBuf,
    },
    /// The file's format version is newer than this release supports. The file is unchanged.
    #[error("{} has format version {found}, this release reads up to {newest}", .path.display())]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// Version in the file.
        found: u32,
        /// Newest version that this release reads.
        newest: u32,
    },
    /// The folder's format version is older than this release supports. The folder is unchanged.
    #[error(
        "{} has format version {found}, this release reads only version {needed} and does not \
         convert older folders", .path.display()
    )]
    OldVersion {
        /// Path of the file.
        path: PathBuf,
        /// Version in the file.
        found: u32,
        /// Only version that this release reads.
        needed: u32,
    },
    /// The request is invalid, regardless of the state of the disk.
    #[error("{0}")]
    Refused(String),
}

/// Removes the digits from a message (see [`Error::gist`]).
pub fn gist(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Result of a store operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn corrupt(path: impl Into<PathBuf>, offset: u64, what: impl Into<String>) -> Error {
        Error::Corrupt { path: path.into(), offset, what: what.into() }
    }

    /// Classifies an I/O error. A full disk reports ENOSPC, an exhausted quota EDQUOT.
    pub(crate) fn io(path: impl AsRef<Path>, doing: &'static str, source: io::Error) -> Error {
        let path = path.as_ref().to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::Full { path, doing, source }
            }
            _ => Error::Io { path, doing, source },
        }
    }

    /// Whether a retry can succeed without an operator, because space may be freed or a disk may
    /// recover.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Full { .. } | Error::Io { .. })
    }

    /// Returns the message without digits.
    ///
    /// Callers compare this text to log a repeated failure only once, since each message may have a
    /// different segment number or size.
    pub fn gist(&self) -> String {
        gist(&self.to_string())
    }

    /// Returns [`Error::advice`] for operations outside the data folder of a running server:
    /// backups and restores.
    pub fn advice_outside_data_folder(&self) -> &'static str {
        match self {
            Error::Full { .. } => "Free disk space, then try again.",
            Error::Io { source, .. }
                if !matches!(
                    source.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                "Check the path, the disk and the kernel log, then try again."
            }
            _ => self.advice(),
        }
    }

    /// Returns one sentence of advice for the operator.
    pub fn advice(&self) -> &'static str {
        match self {
            Error::Corrupt { .. } => {
                "Back up the folder, run `tidemark check` on it, then get the data again from a \
                 replica or a backup. Do not delete the file: its data would be lost silently."
            }
            Error::Full { .. } => "Free disk space; writes then resume automatically.",
            Error::Io { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => {
                    "Make the folder and its files accessible to the user that runs the server."
                }
                io::ErrorKind::ReadOnlyFilesystem => "Mount the file system read-write.",
                _ => {
                    "Check the disk and the kernel log. A running server rejects writes until the \
                     operation succeeds."
                }
            },
            Error::Locked { .. } => "Stop the other process, or use another folder.",
            Error::Version { .. } => {
                "Start the release that wrote the file, or a newer one. The file was not changed."
            }
            Error::OldVersion { .. } => {
                "Start the release that wrote the folder, then copy its data to a new folder with \
                 `tidemark import --from`. The file was not changed."
            }
            Error::Refused(_) => "Correct the request.",
        }
    }
}
