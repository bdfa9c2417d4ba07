//! Result of an import: counts of the loaded data, or the error that ended the import.

use std::io;

/// Maximum number of bad lines that are printed. Further bad lines are only counted.
pub(super) const MAX_SHOWN_ERRORS: usize = 5;

/// Counts of a finished import.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Lines read, without headers and empty lines.
    pub lines: u64,
    /// Number of rows that were set.
    pub rows: u64,
    /// Number of flags that were sent.
    pub flags: u64,
    /// Number of events that were sent as actions.
    pub events: u64,
    /// Flags and events that changed something.
    pub changed: u64,
    /// Flags and events that changed nothing.
    pub repeated: u64,
    /// Flags and events of posts below the horizon, whose state the server no longer has.
    pub unknown: u64,
    /// Events without an origin, which are skipped.
    pub originals: u64,
    /// Rows whose counters are all null, which are skipped.
    pub without_counters: u64,
    /// Number of lines that were malformed or refused by the server.
    pub bad: u64,
}

/// Reason why an import ended early.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A file could not be read.
    #[error(
        "{path}: {source} (after line {line}; earlier lines are loaded, and it is safe to import \
         the file again)"
    )]
    File {
        /// Path of the file.
        path: String,
        /// Last complete line.
        line: u64,
        /// Cause.
        source: io::Error,
    },
    /// The server is unreachable, or refuses the login.
    #[error("cannot import into {address}: {source}")]
    Connect {
        /// Address of the server.
        address: String,
        /// Cause.
        source: io::Error,
    },
    /// The connection was lost, or the server refuses every command.
    #[error(
        "{address}: {reason} ({path}: lines up to {acknowledged} were acknowledged; it is safe to \
         import the file again)"
    )]
    Server {
        /// Address of the server.
        address: String,
        /// Path of the file that was read.
        path: String,
        /// Last line up to which all lines were acknowledged.
        acknowledged: u64,
        /// Cause.
        reason: String,
    },
    /// A line was bad, and `--strict` was given.
    #[error("{path}, line {line}: {reason}")]
    Strict {
        /// Path of the file.
        path: String,
        /// Line number, starting at 1.
        line: u64,
        /// Reason.
        reason: String,
    },
    /// The kind of the lines is unknown, or the server lacks a space or action that they need.
    #[error("{0}")]
    Kind(String),
}
