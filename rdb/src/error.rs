//! Errors of RESTORE payloads.

/// Reason why a payload is rejected. The server sends the text to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The payload is truncated, damaged or newer than this crate.
    #[error("payload version or checksum are wrong")]
    Footer,
    /// The footer is valid, but the value's encoding does not match its type.
    #[error("{0}")]
    Format(&'static str),
    /// The type is known, but this crate does not support it.
    #[error("unsupported value type: {0}")]
    Type(&'static str),
    /// The type is unknown.
    #[error("unknown RDB type {number} in a payload of RDB version {version}")]
    UnknownType {
        /// First byte of the payload.
        number: u8,
        /// RDB version in the footer.
        version: u16,
    },
}
