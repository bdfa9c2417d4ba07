//! Why a payload is refused.

/// Why a payload is refused. The text is sent to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The payload is truncated, damaged or newer than this crate.
    #[error("payload version or checksum are wrong")]
    Footer,
    /// The footer is valid, but the value does not match its type.
    #[error("{0}")]
    Format(&'static str),
    /// A type that this crate does not read.
    #[error("it holds {0}")]
    Type(&'static str),
    /// A type that no release known to this crate writes.
    #[error(
        "it holds a value of RDB type {number}, written as RDB version {version}, which is \
         unknown here"
    )]
    UnknownType {
        /// First byte of the payload.
        number: u8,
        /// RDB version in the footer.
        version: u16,
    },
}
