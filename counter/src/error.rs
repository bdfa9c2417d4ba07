//! Errors of the counter engine. A call that returns an error has changed nothing.

use rolling::Unreadable;

/// Reason why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The sum is outside the range of i64 (Redis: `ERR increment or decrement would overflow`).
    #[error("increment or decrement would overflow")]
    Overflow,
    /// The sum is outside the caller's MIN..MAX, and the caller requested FAIL.
    #[error("the new value would be out of bounds")]
    Bounds,
    /// The new value is outside the bounds declared in the schema.
    #[error("the value of '{field}' would be out of bounds {bounds}")]
    OutOfBounds {
        /// Name of the field.
        field: String,
        /// [`crate::FieldBounds`] as text.
        bounds: String,
    },
    /// The write needs memory, and the space has reached its limit.
    #[error("the space has reached its memory limit of {limit_bytes} bytes")]
    Full {
        /// The limit, [`crate::Options::memory_limit_bytes`].
        limit_bytes: u64,
    },
    /// The outliers (ids far above all others) have used up their share of the space's memory. The
    /// space still accepts ids near the ids in its tables.
    #[error(
        "too many outliers: their rows use their full share of the space's {limit_bytes} bytes"
    )]
    TooManyOutliers {
        /// The limit, [`crate::Options::memory_limit_bytes`].
        limit_bytes: u64,
    },
    /// The operating system cannot allocate memory for a table.
    #[error("the operating system cannot allocate memory for a table")]
    NoMemory,
    /// The id exceeds the highest existing id by more than `max_ahead` (`ERR key too big`).
    #[error("key too big")]
    KeyTooBig,
    /// The id is below the horizon: see [`crate::Space::retire_below`].
    #[error("the counters of ids below {horizon} were retired")]
    Retired {
        /// The lowest id that has not been retired.
        horizon: u64,
    },
    /// The row is on a disk that cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The schema has no such field.
    #[error("no field '{0}'")]
    NoField(String),
    /// The schema, or the change of a schema, is invalid.
    #[error("bad schema: {0}")]
    BadSchema(String),
    /// The bytes are not a valid head of a counter space: see [`crate::Space::loader`].
    #[error("not a head of a counter space, version 1 or 2")]
    BadHead,
}
