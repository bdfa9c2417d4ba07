//! A schema defines the counters of a row, their order, and the inline bits of each counter.
//!
//! A field keeps its *position* forever. Adding appends a position; dropping leaves a position that
//! reads as 0. A row in an old table, a log record or an earlier parsed request therefore keeps its
//! meaning under every later schema.
//!
//! The width is the number of bits stored *inside* the row, not a limit of the value. Values that
//! do not fit (negative values, and values of at least 2^width - 1) are stored exactly in the
//! table's aux dictionary.
//!
//! *Declared bounds*, such as `stock:20{0..}`, do limit the values; every write enforces them. See
//! [`FieldBounds`].

use crate::Error;
use crate::change::Bounds;
use std::fmt;

/// Maximum number of positions of a schema, including dropped fields.
pub const MAX_FIELDS: usize = 64;
/// Maximum inline bits of a row, so that at least two rows fit in a bucket.
pub const MAX_ROW_BITS: u32 = 512;
/// Maximum length of a field name, in bytes.
pub const MAX_NAME_BYTES: usize = 64;

/// One counter of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name of the field in commands.
    pub name: String,
    /// Inline bits, 1..=64.
    pub width: u8,
    /// Range of values that may be written.
    pub bounds: FieldBounds,
    /// Whether the field was dropped: its position reads as 0 and accepts no writes.
    pub dropped: bool,
}

impl Field {
    /// Parses `name:bits` or `name:bits{bounds}`; see [`FieldBounds::parse`].
    pub fn parse(word: &str) -> Result<Field, Error> {
        let bad = || Error::BadSchema(format!("'{word}' is not in the form name:bits"));
        let (name, rest) = word.split_once(':').ok_or_else(bad)?;
        let (width, bounds) = match rest.find('{') {
            Some(at) => (&rest[..at], FieldBounds::parse(&rest[at..])?),
            None => (rest, FieldBounds::default()),
        };
        let width = width.parse().map_err(|_| {
            Error::BadSchema(format!("invalid width '{width}', expected 1 to 64 bits"))
        })?;
        Ok(Field { name: name.to_owned(), width, bounds, dropped: false })
    }

    /// Returns `old + delta`, limited by the declared bounds and by the bounds of the command.
    pub(crate) fn add(&self, asked: &Bounds, old: i64, delta: i64) -> Result<i64, Error> {
        let delta = match asked.add(old, delta) {
            // This cannot overflow, because the difference is between 0 and `delta`.
            Ok(sum) => sum - old,
            // The declared bounds may still stop the sum at a representable value.
            Err(Error::Overflow) => delta,
            Err(error) => return Err(error),
        };
        self.bounds.0.add(old, delta).map_err(|error| self.named(error))
    }

    /// Returns the value that is stored when the field is set to `value`. A value outside the
    /// bounds is saturated or refused.
    pub fn set(&self, value: i64) -> Result<i64, Error> {
        let Bounds { min, max, saturate } = self.bounds.0;
        let within = value.max(min.unwrap_or(i64::MIN)).min(max.unwrap_or(i64::MAX));
        if within == value || saturate { Ok(within) } else { Err(self.named(Error::Bounds)) }
    }

    fn named(&self, error: Error) -> Error {
        match error {
            Error::Bounds => {
                Error::OutOfBounds { field: self.name.clone(), bounds: self.bounds.to_string() }
            }
            other => other,
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.dropped { "!" } else { "" };
        write!(f, "{mark}{}:{}", self.name, self.width)?;
        if self.bounds.is_bounded() { write!(f, "{}", self.bounds) } else { Ok(()) }
    }
}

/// Lowest and highest value that a write may store; unbounded by default.
///
/// The bounds must include 0, the value of fields that were never written. If a value was outside
/// the bounds when they were declared, it remains until the next write; writes may only move it
/// towards the bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FieldBounds(Bounds);

impl FieldBounds {
    /// Parses `{0..}`, `{..100}`, `{-5..5}`, or `{..}` for no bounds. Writes outside the bounds are
    /// refused; with the suffix `sat` (`{0..100}sat`) they saturate.
    pub fn parse(text: &str) -> Result<FieldBounds, Error> {
        let bad = || {
            Error::BadSchema(format!(
                "invalid bounds '{text}', expected {{min..max}}, {{min..}}, {{..max}} or {{..}}"
            ))
        };
        let (range, mode) =
            text.strip_prefix('{').and_then(|rest| rest.split_once('}')).ok_or_else(bad)?;
        let (min, max) = range.split_once("..").ok_or_else(bad)?;
        let bound = |text: &str| match text {
            "" => Ok(None),
            number => number.parse::<i64>().map(Some).map_err(|_| bad()),
        };
        let saturate = match mode {
            "" | "fail" => false,
            "sat" => true,
            _ => return Err(bad()),
        };
        let bounds = Bounds { min: bound(min)?, max: bound(max)?, saturate };
        if let (Some(min), Some(max)) = (bounds.min, bounds.max)
            && min > max
        {
            return Err(Error::BadSchema(format!(
                "invalid bounds {text}: {min} is greater than {max}"
            )));
        }
        if bounds.min.is_some_and(|min| min > 0) || bounds.max.is_some_and(|max| max < 0) {
            return Err(Error::BadSchema(format!(
                "the bounds {text} must include 0, the initial value of a field"
            )));
        }
        Ok(FieldBounds(bounds))
    }

    /// Whether there is a lower or an upper bound.
    pub fn is_bounded(&self) -> bool {
        self.0.min.is_some() || self.0.max.is_some()
    }
}

impl fmt::Display for FieldBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bound: Option<i64>| bound.map_or(String::new(), |bound| bound.to_string());
        let mode = if self.0.saturate { "sat" } else { "" };
        write!(f, "{{{}..{}}}{mode}", text(self.0.min), text(self.0.max))
    }
}

/// The fields of a space, by position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    fields: Vec<Field>,
}

/// A schema change; see [`crate::Space::alter`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alteration {
    /// Adds a field at the next free position, with 0 in every row.
    Add {
        /// Name of the field; must differ from the names of all existing fields.
        name: String,
        /// Inline bits, 1..=64.
        width: u8,
        /// Range of values that may be written.
        bounds: FieldBounds,
    },
    /// Changes the bounds of a field for future writes. Stored values do not change.
    Bound {
        /// Name of the field.
        name: String,
        /// New bounds.
        bounds: FieldBounds,
    },
    /// Changes the width of a field, up or down. Values do not change.
    Widen {
        /// Name of the field.
        name: String,
        /// New inline bits, 1..=64.
        width: u8,
    },
    /// Removes a field and its values.
    Drop {
        /// Name of the field.
        name: String,
    },
}

impl Schema {
    /// Parses `"like:12 stock:20{0..}"`: fields separated by spaces or commas. A `!` before a name
    /// marks a dropped field, so the output of [`fmt::Display`] parses to the same schema.
    pub fn parse(text: &str) -> Result<Schema, Error> {
        let mut fields = Vec::new();
        for word in text.split([' ', '\t', '\n', ',']).filter(|w| !w.is_empty()) {
            let (word, dropped) = word.strip_prefix('!').map_or((word, false), |w| (w, true));
            fields.push(Field { dropped, ..Field::parse(word)? });
        }
        Schema::from_fields(fields)
    }

    /// Creates a schema from fields.
    pub fn from_fields(fields: Vec<Field>) -> Result<Schema, Error> {
        let bad = |text: String| Err(Error::BadSchema(text));
        if fields.iter().all(|f| f.dropped) {
            return bad("a space needs at least one field".into());
        }
        if fields.len() > MAX_FIELDS {
            return bad(format!("more than {MAX_FIELDS} fields, including dropped ones"));
        }
        for (i, field) in fields.iter().enumerate() {
            let letters =
                field.name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
            if !letters || field.name.is_empty() || field.name.len() > MAX_NAME_BYTES {
                return bad(format!(
                    "invalid field name '{}', expected 1 to {MAX_NAME_BYTES} characters of a-z A-Z \
                     0-9 _ -",
                    field.name
                ));
            }
            if !(1..=64).contains(&field.width) {
                return bad(format!(
                    "field '{}' has {} bits, expected 1 to 64",
                    field.name, field.width
                ));
            }
            if !field.dropped && fields[..i].iter().any(|f| !f.dropped && f.name == field.name) {
                return bad(format!("field '{}' twice", field.name));
            }
        }
        let schema = Schema { fields };
        match schema.row_bits() {
            bits if bits > MAX_ROW_BITS => {
                bad(format!("{bits} bits per row, the limit is {MAX_ROW_BITS}"))
            }
            _ => Ok(schema),
        }
    }

    /// Returns the fields by position, including dropped fields.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Returns the fields that are not dropped, with their positions.
    pub fn living(&self) -> impl Iterator<Item = (usize, &Field)> + Clone {
        self.fields.iter().enumerate().filter(|(_, f)| !f.dropped)
    }

    /// Number of values in a row: one per position.
    pub fn width(&self) -> usize {
        self.fields.len()
    }

    /// Returns the position of the field with this name, unless the field was dropped.
    pub fn index_of(&self, name: &[u8]) -> Option<usize> {
        self.fields.iter().position(|f| !f.dropped && f.name.as_bytes() == name)
    }

    /// Returns the number of inline bits of all fields that are not dropped.
    pub fn row_bits(&self) -> u32 {
        self.living().map(|(_, f)| u32::from(f.width)).sum()
    }

    /// Returns the schema after a change.
    pub fn altered(&self, change: &Alteration) -> Result<Schema, Error> {
        let find = |name: &str| {
            self.index_of(name.as_bytes()).ok_or_else(|| Error::NoField(name.to_owned()))
        };
        let mut fields = self.fields.clone();
        match change {
            Alteration::Add { name, width, bounds } => fields.push(Field {
                name: name.clone(),
                width: *width,
                bounds: *bounds,
                dropped: false,
            }),
            Alteration::Bound { name, bounds } => fields[find(name)?].bounds = *bounds,
            Alteration::Widen { name, width } => fields[find(name)?].width = *width,
            Alteration::Drop { name } => fields[find(name)?].dropped = true,
        }
        Schema::from_fields(fields)
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, field) in self.fields.iter().enumerate() {
            let blank = if i > 0 { " " } else { "" };
            write!(f, "{blank}{field}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_prints_and_refuses() {
        let schema = Schema::parse("like:12 repost:8,  comment:8 read:16").unwrap();
        assert_eq!(schema.to_string(), "like:12 repost:8 comment:8 read:16");
        assert_eq!((schema.width(), schema.row_bits()), (4, 44));
        assert_eq!(schema.index_of(b"comment"), Some(2));
        assert_eq!(schema.index_of(b"comments"), None);
        for bad in [
            "",
            "like",
            "like:0",
            "like:65",
            "like:x",
            "like:1 like:2",
            ":3",
            "a.b:3",
            "!a:3",
            "x:1 y z:1",
        ] {
            assert!(matches!(Schema::parse(bad), Err(Error::BadSchema(_))), "{bad}");
        }
        let wide: String = (0..9).map(|i| format!("f{i}:64 ")).collect();
        assert!(Schema::parse(&wide).is_err());
    }

    #[test]
    fn bounds_are_parsed_printed_altered_and_refused() {
        let text = "stock:20{0..} level:8{0..100}sat depth:9{-5..0} free:7{..9}sat plain:3";
        let schema = Schema::parse(&text.replace("{-5..0}", "{-5..0}fail")).unwrap();
        assert_eq!(schema.to_string(), text);
        assert_eq!(Schema::parse(&schema.to_string()).unwrap(), schema);
        assert_eq!(Schema::parse("a:3{..}").unwrap().to_string(), "a:3");
        for bad in [
            "a:3{1..}",
            "a:3{..-1}",
            "a:3{5..1}",
            "a:3{0..",
            "a:3{0}",
            "a:3{x..}",
            "a:3{0..}stop",
            "a:3{0..9223372036854775808}",
            "a:{0..}",
            "a{0..}",
            "a:3{0..}{0..}",
        ] {
            assert!(matches!(Schema::parse(bad), Err(Error::BadSchema(_))), "{bad}");
        }
        let bound = |name: &str, text: &str| Alteration::Bound {
            name: name.to_owned(),
            bounds: FieldBounds::parse(text).unwrap(),
        };
        let altered = schema.altered(&bound("plain", "{0..7}")).unwrap();
        let altered = altered.altered(&bound("stock", "{..}")).unwrap();
        let altered =
            altered.altered(&Alteration::Widen { name: "level".into(), width: 9 }).unwrap();
        assert_eq!(
            altered.to_string(),
            "stock:20 level:9{0..100}sat depth:9{-5..0} free:7{..9}sat plain:3{0..7}"
        );
        assert_eq!(schema.altered(&bound("x", "{..}")), Err(Error::NoField("x".into())));
    }

    #[test]
    fn positions_never_move() {
        let add = |name: &str, width| Alteration::Add {
            name: name.to_owned(),
            width,
            bounds: FieldBounds::default(),
        };
        let one = Schema::parse("a:4 b:5").unwrap();
        let two = one.altered(&Alteration::Drop { name: "a".into() }).unwrap();
        let three = two.altered(&add("a", 9)).unwrap();
        assert_eq!(three.to_string(), "!a:4 b:5 a:9");
        assert_eq!(Schema::parse(&three.to_string()).unwrap(), three);
        assert_eq!(
            (three.index_of(b"b"), three.index_of(b"a"), three.row_bits()),
            (Some(1), Some(2), 14)
        );
        assert!(three.altered(&add("b", 1)).is_err());
        assert_eq!(
            two.altered(&Alteration::Widen { name: "a".into(), width: 7 }),
            Err(Error::NoField("a".into()))
        );
        let widened = three.altered(&Alteration::Widen { name: "b".into(), width: 64 }).unwrap();
        assert_eq!(widened.to_string(), "!a:4 b:64 a:9");
        assert!(
            Schema::parse("x:3").unwrap().altered(&Alteration::Drop { name: "x".into() }).is_err(),
            "the last field"
        );
    }
}
