//! Error replies of commands, with Redis's texts where Redis has the same error.

use crate::command::streams;
use dataset::catalogue::EditError;
use dataset::cold::{Unreadable, UnreadableIds};
use dataset::engines::{ChangeError, ExistenceSpace, KeyError, WriteError};
use dataset::key_patterns::{Kind, Pattern};
use std::borrow::Cow;
use std::fmt;

/// Text of an error reply, including the code.
#[derive(Clone, Debug)]
pub struct Refusal(Cow<'static, [u8]>);

impl Refusal {
    /// The server is still loading its data.
    pub const LOADING: Refusal =
        Refusal::fixed(b"LOADING Tidemark is loading the dataset in memory");
    pub(crate) const NO_AUTH: Refusal = Refusal::fixed(b"NOAUTH Authentication required.");
    /// The name or the password of AUTH is wrong.
    pub const WRONG_PASS: Refusal =
        Refusal::fixed(b"WRONGPASS invalid username-password pair or user is disabled.");
    /// An argument is not a 64-bit integer.
    pub const NOT_AN_INTEGER: Refusal =
        Refusal::fixed(b"ERR value is not an integer or out of range");
    /// The value of a hash field is not a 64-bit integer.
    pub const HASH_NOT_AN_INTEGER: Refusal = Refusal::fixed(b"ERR hash value is not an integer");
    pub(crate) const OVERFLOW: Refusal =
        Refusal::fixed(b"ERR increment or decrement would overflow");
    /// The negation of a decrement overflows.
    pub const DECREMENT: Refusal = Refusal::fixed(b"ERR decrement would overflow");
    /// The request has a syntax error, such as an unknown option.
    pub const SYNTAX: Refusal = Refusal::fixed(b"ERR syntax error");
    /// The length of a packed string is not a multiple of 8.
    pub const PACKED_IDS: Refusal =
        Refusal::fixed(b"ERR IDS must be a string of 8-byte little-endian ids");
    /// The key belongs to another type.
    pub const WRONG_TYPE: Refusal =
        Refusal::fixed(b"WRONGTYPE Operation against a key holding the wrong kind of value");
    /// The table of the id was recycled.
    pub const TABLE_RECYCLED: Refusal =
        Refusal::fixed(b"ERR the id is below the horizon, its pairs were dropped");

    /// The filter does not exist. The text is that of RedisBloom.
    pub const NO_FILTER: Refusal = Refusal::fixed(b"ERR not found");

    /// A count or a list of members was requested from a filter.
    pub const NOT_LISTABLE: Refusal = Refusal::fixed(
        b"ERR a filter cannot count or list the members of one id. Query members one by one, or \
            keep their number in a counter (FEED.ACT updates both). TM.TABLES shows the table",
    );

    /// The command has a member argument, but the space has no members.
    #[cold]
    pub fn no_members(space: &ExistenceSpace) -> Refusal {
        let name = space.name();
        let text = format!(
            "ERR the space '{name}' has no members, use BFSET, BFGET, EXISTS or DEL on its ids"
        );
        Refusal::new(text.into_bytes())
    }

    /// Creates an error with a constant text.
    pub const fn fixed(text: &'static [u8]) -> Refusal {
        Refusal(Cow::Borrowed(text))
    }

    /// Creates an error with a text for this request.
    pub fn new(text: Vec<u8>) -> Refusal {
        Refusal(Cow::Owned(text))
    }

    /// Returns the text without the leading `-` and the CRLF.
    pub fn text(&self) -> &[u8] {
        &self.0
    }
}

/// Creates a [`Refusal`](crate::command::error::Refusal) from a format string.
#[macro_export]
macro_rules! refuse {
    ($($arg:tt)*) => { $crate::command::error::Refusal::new(format!($($arg)*).into_bytes()) };
}
pub use refuse;

impl From<KeyError<'_>> for Refusal {
    #[cold]
    fn from(error: KeyError<'_>) -> Refusal {
        match error {
            KeyError::NoPattern(key, patterns) => no_pattern(key, patterns),
            KeyError::WholeRow(key) => {
                refuse!("ERR Invalid key '{}': it names a whole row, not a counter", Printable(key))
            }
            KeyError::IdTooBig(key) => {
                refuse!("ERR Invalid key '{}': the id exceeds 18446744073709551615", Printable(key))
            }
            KeyError::IdPadded(key) => {
                refuse!(
                    "ERR Invalid key '{}': the id has leading zeros (set padded_ids = true in the \
                     space to accept them)",
                    Printable(key)
                )
            }
            KeyError::NoField { space, field } => no_field(space, field),
        }
    }
}

const PATTERNS_SHOWN: usize = 8;

#[cold]
fn no_pattern(key: &[u8], patterns: &[(Pattern, Kind, usize)]) -> Refusal {
    if streams::is_stream(key) {
        return Refusal::WRONG_TYPE;
    }
    let shown = Printable(key);
    if patterns.iter().any(|(pattern, ..)| pattern.fits_but_for_id(key)) {
        return refuse!(
            "ERR Invalid key '{shown}': an id is an integer from 0 to 18446744073709551615. Map \
             other ids (text, UUID) to integers, for example the first 8 bytes of a hash"
        );
    }
    // If several patterns map to the same keys, only the first is shown.
    let forms = patterns.chunk_by(|a, b| (a.1, a.2) == (b.1, b.2));
    let mut texts: Vec<String> = forms.map(|forms| forms[0].0.to_string()).collect();
    if texts.len() > PATTERNS_SHOWN {
        texts.truncate(PATTERNS_SHOWN);
        texts.push("...".to_owned());
    }
    refuse!(
        "ERR Invalid key '{shown}': it matches no key pattern ({}). Only counters and flags can be \
         stored here, not locks, sessions or texts",
        texts.join(", ")
    )
}

/// Returns the error for a field that the space does not have.
#[cold]
pub fn no_field(space: &str, field: &[u8]) -> Refusal {
    refuse!("ERR No schema field '{}' in space '{space}'", Printable(field))
}

impl From<WriteError> for Refusal {
    #[cold]
    fn from(error: WriteError) -> Refusal {
        use ::counter::Error as Counter;
        use ::phantom::Error as Phantom;
        match &error {
            WriteError::Counter(Counter::Overflow) => Refusal::OVERFLOW,
            WriteError::Counter(Counter::KeyTooBig) | WriteError::Phantom(Phantom::KeyTooBig) => {
                refuse!("ERR key too big: the id is too far above the highest one (max_ahead)")
            }
            // Clients recognize the error by Redis's text. The limit is either the space's own
            // limit or its share of the memory limit.
            WriteError::Counter(Counter::Full { .. }) => {
                refuse!("OOM command not allowed when used memory > 'maxmemory': {error}")
            }
            WriteError::Counter(Counter::NoMemory | Counter::TooManyOutliers { .. })
            | WriteError::Phantom(
                Phantom::RevokedFull
                | Phantom::ForgottenFull
                | Phantom::Full
                | Phantom::LateFull
                | Phantom::Memory(_),
            ) => {
                refuse!("OOM command not allowed: {error}")
            }
            WriteError::LedgerFull(_) => refuse!("OOM command not allowed: {error}"),
            WriteError::Counter(_)
            | WriteError::Phantom(_)
            | WriteError::Unreadable(_)
            | WriteError::MemberIsNoId
            | WriteError::MemberTooLong
            | WriteError::OtherIncrement
            | WriteError::NoTokens => refuse!("ERR {error}"),
        }
    }
}

impl From<rdb::Error> for Refusal {
    #[cold]
    fn from(error: rdb::Error) -> Refusal {
        match error {
            rdb::Error::Footer => refuse!("ERR DUMP payload version or checksum are wrong"),
            rdb::Error::Format(_) | rdb::Error::Type(_) | rdb::Error::UnknownType { .. } => {
                refuse!("ERR Bad data format: {error}")
            }
        }
    }
}

impl From<Unreadable> for Refusal {
    #[cold]
    fn from(error: Unreadable) -> Refusal {
        refuse!("ERR {error}")
    }
}

impl From<UnreadableIds> for Refusal {
    #[cold]
    fn from(error: UnreadableIds) -> Refusal {
        Unreadable::from(error).into()
    }
}

impl From<EditError> for Refusal {
    #[cold]
    fn from(error: EditError) -> Refusal {
        refuse!("ERR {error}")
    }
}

impl From<ChangeError> for Refusal {
    #[cold]
    fn from(error: ChangeError) -> Refusal {
        refuse!("ERR {error}")
    }
}

/// Displays a client's bytes in an error: at most 128 bytes, with `\xNN` for non-printable bytes.
pub struct Printable<'a>(pub &'a [u8]);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &byte in &self.0[..self.0.len().min(128)] {
            match byte {
                b'\\' | b'\'' => write!(f, "\\{}", char::from(byte))?,
                b' '..=b'~' => write!(f, "{}", char::from(byte))?,
                _ => write!(f, "\\x{byte:02x}")?,
            }
        }
        if self.0.len() > 128 {
            f.write_str("...")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Printable;

    #[test]
    fn unprintable_bytes_are_escaped_and_long_texts_cut() {
        assert_eq!(Printable(b"a'b\r\n\xff\\").to_string(), "a\\'b\\x0d\\x0a\\xff\\\\");
        assert_eq!(Printable(&[b'x'; 1000]).to_string().len(), 131);
    }
}
