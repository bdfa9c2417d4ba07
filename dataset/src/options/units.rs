//! Parses and formats sizes and times in files and commands, such as "8gb" and "10s". The
//! submodules are for `serde(with)`.
//!
//! A size without a unit is in bytes, a time without a unit in seconds.

/// Unit of a setting's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Millis,
    /// Microseconds; -1 is "off".
    Micros,
}

const SIZES: &[(&str, u64)] = &[("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10)];
/// Suffixes of times, in microseconds.
const TIMES: &[(&str, u64)] = &[
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

impl Unit {
    /// Returns the unit that belongs to the module in a setting's declaration.
    pub(crate) fn of(module: &str) -> Option<Unit> {
        Some(match module.rsplit("::").next()? {
            "bytes" => Unit::Bytes,
            "seconds" => Unit::Seconds,
            "millis" => Unit::Millis,
            "micros" => Unit::Micros,
            _ => return None,
        })
    }

    /// Returns the suffix to append to a number without a unit, as in Redis's settings.
    pub fn suffix(self) -> &'static str {
        match self {
            Unit::Bytes => "",
            Unit::Seconds => "s",
            Unit::Millis => "ms",
            Unit::Micros => "us",
        }
    }

    fn micros(self) -> u64 {
        match self {
            Unit::Bytes | Unit::Micros => 1,
            Unit::Millis => 1_000,
            Unit::Seconds => 1_000_000,
        }
    }

    /// Formats a number in the largest unit that needs no fraction.
    pub fn format(self, number: u64) -> String {
        let fits = |bytes: u64| number > 0 && number.is_multiple_of(bytes);
        if self == Unit::Bytes {
            let size = SIZES.iter().find(|(_, bytes)| fits(*bytes));
            return match size {
                Some((suffix, bytes)) => format!("{}{suffix}", number / bytes),
                None => number.to_string(),
            };
        }
        let own = self.micros();
        let larger = TIMES.iter().filter(|(_, micros)| micros.is_multiple_of(own));
        match larger.map(|(suffix, micros)| (suffix, micros / own)).find(|(_, n)| fits(*n)) {
            Some((suffix, times)) => format!("{}{suffix}", number / times),
            None => "0".to_owned(),
        }
    }

    /// Parses a number with or without a unit.
    pub fn parse(self, text: &str) -> Result<u64, &'static str> {
        if self == Unit::Bytes {
            return size(text).ok_or("argument must be a memory value");
        }
        const WRONG: &str = "argument must be a time, such as 500ms, 10s or 1h";
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, suffix) = text.split_at(digits);
        let suffix = if suffix.is_empty() { "s" } else { suffix };
        let (_, micros) =
            TIMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(suffix)).ok_or(WRONG)?;
        let number = number.parse::<u64>().map_err(|_| WRONG)?;
        let all = u128::from(number) * u128::from(*micros);
        let own = u128::from(self.micros());
        match self {
            Unit::Seconds if !all.is_multiple_of(own) => {
                Err("argument must be a time in whole seconds")
            }
            Unit::Millis if !all.is_multiple_of(own) => {
                Err("argument must be a time in whole milliseconds")
            }
            _ => u64::try_from(all / own).map_err(|_| WRONG),
        }
    }
}

/// Parses a size in Redis's syntax: `1k` is 1000, `1kb` is 1024, likewise for m and g. Returns
/// `None` above 2^63-1.
fn size(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1_000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit).filter(|bytes| i64::try_from(*bytes).is_ok())
}

struct Reader(Unit);

impl serde::de::Visitor<'_> for Reader {
    type Value = u64;

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self.0 {
            Unit::Bytes => "a size, such as 8gb",
            _ => "a time, such as 10s",
        })
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u64, E> {
        self.0.parse(text).map_err(E::custom)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<u64, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<u64, E> {
        self.visit_str(&number.to_string())
    }
}

macro_rules! unit {
    ($(#[doc = $about:literal] $module:ident $unit:ident,)*) => { $(
        #[doc = $about]
        pub mod $module {
            use $crate::options::units::{Reader, Unit};
            use serde::de::{Deserializer, Error};
            use serde::ser::Serializer;

            /// Writes a number with its unit.
            pub fn serialize<T: Copy + TryInto<u64>, S: Serializer>(
                number: &T,
                to: S,
            ) -> Result<S::Ok, S::Error> {
                let number = (*number).try_into().unwrap_or(u64::MAX);
                to.collect_str(&Unit::$unit.format(number))
            }

            /// Reads a number with or without a unit.
            pub fn deserialize<'de, T: TryFrom<u64>, D: Deserializer<'de>>(
                from: D,
            ) -> Result<T, D::Error> {
                let number = from.deserialize_any(Reader(Unit::$unit))?;
                T::try_from(number).map_err(|_| D::Error::custom("the number is too large"))
            }
        }
    )* };
}

unit! {
    /// A size in bytes.
    bytes Bytes,
    /// A time in whole seconds.
    seconds Seconds,
    /// A time in milliseconds.
    millis Millis,
}

/// A time in microseconds; -1 is "off".
pub mod micros {
    use crate::options::units::{Reader, Unit};
    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    struct Threshold;

    impl Visitor<'_> for Threshold {
        type Value = i64;

        fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            out.write_str("a time, such as 10ms, or \"off\"")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<i64, E> {
            if ["off", "-1", "-1us"].contains(&text) {
                return Ok(-1);
            }
            let number = Reader(Unit::Micros).visit_str(text)?;
            i64::try_from(number).map_err(|_| E::custom("the number is too large"))
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<i64, E> {
            self.visit_str(&number.to_string())
        }
    }

    /// Writes a threshold.
    pub fn serialize<S: Serializer>(number: &i64, to: S) -> Result<S::Ok, S::Error> {
        match u64::try_from(*number) {
            Ok(number) => to.collect_str(&Unit::Micros.format(number)),
            Err(_) => to.serialize_str("off"),
        }
    }

    /// Reads a threshold.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
        from.deserialize_any(Threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::Unit::{Bytes, Micros, Millis, Seconds};

    #[test]
    fn numbers_keep_their_value_and_take_the_largest_unit() {
        let cases = [
            (Bytes, 0, "0"),
            (Bytes, 1000, "1000"),
            (Bytes, 64 << 20, "64mb"),
            (Bytes, 8 << 30, "8gb"),
            (Seconds, 0, "0"),
            (Seconds, 90, "90s"),
            (Seconds, 3600, "1h"),
            (Seconds, 7 * 86_400, "7d"),
            (Millis, 500, "500ms"),
            (Millis, 5000, "5s"),
            (Micros, 10_000, "10ms"),
            (Micros, 15, "15us"),
        ];
        for (unit, number, text) in cases {
            assert_eq!(unit.format(number), text);
            assert_eq!(unit.parse(text), Ok(number), "{text}");
        }
        for number in [1, 59, 61, 1023, 86_401, 1 << 40, i64::MAX.cast_unsigned()] {
            for unit in [Bytes, Seconds, Millis, Micros] {
                assert_eq!(unit.parse(&unit.format(number)), Ok(number));
            }
        }
        assert_eq!((Seconds.parse("9"), Millis.parse("9")), (Ok(9), Ok(9000)));
        for text in ["", "s", "-1", "1.5s", "1w", "8gb", "99999999999999999999s"] {
            assert!(Seconds.parse(text).is_err(), "{text}");
        }
        assert!(Seconds.parse("500ms").is_err() && Millis.parse("1us").is_err());
        for text in ["", "gb", "-1", "1tb", "10s", "99999999999gb"] {
            assert!(Bytes.parse(text).is_err(), "{text}");
        }
    }
}
