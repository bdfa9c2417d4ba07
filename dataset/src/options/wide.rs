//! Serializes unsigned 64-bit numbers as TOML. TOML integers are signed, so numbers above 2^63-1
//! become strings.

use serde::de::{Deserializer, Error, Visitor};
use serde::ser::Serializer;
use std::fmt::Formatter;

/// Error message of Redis for a value that is not an integer.
pub(super) const NO_INTEGER: &str = "argument couldn't be parsed into an integer";

/// Writes a number.
pub fn serialize<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
    match i64::try_from(*number) {
        Ok(number) => to.serialize_i64(number),
        Err(_) => to.collect_str(number),
    }
}

/// Reads a number from an integer or from a string.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    from.deserialize_any(Wide)
}

struct Wide;

impl Visitor<'_> for Wide {
    type Value = u64;

    fn expecting(&self, out: &mut Formatter<'_>) -> std::fmt::Result {
        out.write_str("a number from 0 to 2^64-1, as a string above 2^63-1")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        u64::try_from(number).map_err(|_| E::custom(NO_INTEGER))
    }

    fn visit_str<E: Error>(self, digits: &str) -> Result<u64, E> {
        digits.parse().map_err(|_| E::custom(NO_INTEGER))
    }
}
