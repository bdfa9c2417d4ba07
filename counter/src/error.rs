//! What can go wrong, named for what the caller does next. After any error nothing has changed.

use rolling::Unreadable;

/// Why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The sum leaves the range of i64 (Redis: `ERR increment or decrement would overflow`).
    #[error("increment or decrement would overflow")]
    Overflow,
    /// The sum leaves the caller's MIN..MAX and the caller asked for FAIL.
    #[error("the new value would leave the bounds")]
    Bounds,
    /// The new value leaves the bounds that the schema declares.
    #[error("the value of '{field}' would leave its bounds {bounds}")]
    OutOfBounds {
        /// The field.
        field: String,
        /// [`crate::FieldBounds`] as text.
        bounds: String,
    },
    /// The space has reached its memory limit, and this write needs more.
    #[error("the space has reached its memory limit of {limit_bytes} bytes")]
    Full {
        /// The limit, [`crate::Options::memory_limit_bytes`].
        limit_bytes: u64,
    },
    /// Rows of ids far from all others take as much of the space's memory as they may. Others are
    /// taken.
    #[error(
        "too many ids far from the others: their rows take all that they may of the space's \
         {limit_bytes} bytes"
    )]
    TooManyOutliers {
        /// The limit, [`crate::Options::memory_limit_bytes`].
        limit_bytes: u64,
    },
    /// The operating system has no memory for a table.
    #[error("the operating system refused memory for a table")]
    NoMemory,
    /// The id lies further above the highest one than `max_ahead` allows (`ERR key too big`).
    #[error("key too big")]
    KeyTooBig,
    /// The id lies below the horizon: [`crate::Space::retire_below`].
    #[error("the counters of ids below {horizon} were retired")]
    Retired {
        /// The lowest id that has not been retired.
        horizon: u64,
    },
    /// The row lies on a disk that cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The schema has no such field.
    #[error("no field '{0}'")]
    NoField(String),
    /// A schema, or a change of one, that cannot be.
    #[error("bad schema: {0}")]
    BadSchema(String),
    /// Bytes that are no head of a counter space: [`crate::Space::loader`].
    #[error("no head of a counter space, version 1 or 2")]
    BadHead,
}
