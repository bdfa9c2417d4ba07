//! Error of a write or of creating a space.

use rolling::Unreadable;

/// Reason why a write was refused or a space was not created. The space is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The table has `max_unset` deleted pairs. Recycle the table or raise the limit.
    #[error("too many unset pairs in this table (max_unset)")]
    RevokedFull,
    /// The id exceeds the frontier by more than `max_ahead`.
    #[error("key too big")]
    KeyTooBig,
    /// The space is at its memory limit, and the write needs an extension filter or another outlier
    /// (a pair of an id far above all tables).
    #[error("the space is at its memory limit")]
    Full,
    /// Too many late pairs wait for a merge into cold tables.
    #[error("too many late pairs of cold tables wait for a merge")]
    LateFull,
    /// The state of the pair could not be read from disk.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// `max_forgotten` ids are forgotten. Recycle their tables or raise the limit.
    #[error("too many forgotten ids (max_forgotten)")]
    ForgottenFull,
    /// An option is out of range.
    #[error("{0}")]
    BadOption(&'static str),
    /// The operating system could not provide the memory for a table.
    #[error("out of memory for a table")]
    Memory(#[source] std::io::Error),
}
