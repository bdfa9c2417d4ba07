//! What can go wrong. In each case nothing has changed.

use rolling::Unreadable;

/// Why a write was refused, or a space could not be made. In each case nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The table's set of unset pairs is at its bound (`max_revoked`): wait until the table is
    /// recycled, or raise the bound.
    #[error("too many pairs were unset in this table (max_revoked)")]
    RevokedFull,
    /// The id lies further ahead than `max_ahead` allows.
    #[error("key too big")]
    KeyTooBig,
    /// The table is full and may not be extended, or the id lies far ahead and its pair would have
    /// to be held exactly: the space's memory limit is reached.
    #[error("the space is at its memory limit")]
    Full,
    /// There are already so many pairs set of tables that lie elsewhere as may wait to be merged
    /// there.
    #[error("too many pairs of tables on the disk wait to be merged")]
    LateFull,
    /// Whether the pair is set cannot be read from where its table lies.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// So many ids are forgotten already (`max_forgotten`): wait until their tables are recycled,
    /// or raise the bound.
    #[error("too many ids are forgotten (max_forgotten)")]
    ForgottenFull,
    /// An option has a value that cannot work.
    #[error("{0}")]
    BadOption(&'static str),
    /// The system has no memory for a table.
    #[error("no memory for a table")]
    Memory(#[source] std::io::Error),
}
