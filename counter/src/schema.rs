//! The schema: which counters a row has, in which order, and how many bits each gets inside the
//! row.
//!
//! A field has a *position*, which it keeps for ever: adding appends, dropping leaves a hole that
//! reads as 0, and nothing is ever renumbered. So a row in an old table, in a log record or in a
//! request that was parsed a moment before the schema changed means the same under every later
//! schema, and no reader needs to know which schema a row was written under.
//!
//! A width is how much of a value is held *inside* the row. It is no limit on the value: what does
//! not fit (the value 2^width - 1 and above, and every negative one) goes to the table's aux
//! dictionary, exactly.

use crate::Error;
use std::fmt;

/// Positions a schema may ever use, holes included.
pub const MAX_FIELDS: usize = 64;
/// Inline bits of one row, all fields together: so that at least two rows fit in a bucket.
pub const MAX_ROW_BITS: u32 = 512;
/// Bytes of a field's name.
pub const MAX_NAME_BYTES: usize = 64;

/// One counter of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// As clients call it.
    pub name: String,
    /// Inline bits, 1..=64.
    pub width: u8,
    /// The field was dropped: its position reads as 0 and takes no writes.
    pub dropped: bool,
}

/// The fields of a space, by position. See the top of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    fields: Vec<Field>,
}

/// A change of schema ([`crate::Space::alter`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alteration {
    /// A new field, 0 in every row, at the next free position.
    Add {
        /// Its name; no living field may have it.
        name: String,
        /// Inline bits, 1..=64.
        width: u8,
    },
    /// Another width for a field (wider, or narrower as `advise` may say); values are unaffected.
    Widen {
        /// The field.
        name: String,
        /// Inline bits from now on, 1..=64.
        width: u8,
    },
    /// Removes a field and its values.
    Drop {
        /// The field.
        name: String,
    },
}

impl Schema {
    /// Reads `"like:12 repost:8"`: names with widths in bits, divided by blanks or commas. A `!`
    /// before a name marks a dropped field, so that what [`fmt::Display`] prints reads back as the
    /// same schema.
    pub fn parse(text: &str) -> Result<Schema, Error> {
        let mut fields = Vec::new();
        for word in text.split([' ', '\t', '\n', ',']).filter(|w| !w.is_empty()) {
            let (name, width) = word
                .split_once(':')
                .ok_or_else(|| Error::BadSchema(format!("'{word}' is not name:bits")))?;
            let width = width
                .parse()
                .map_err(|_| Error::BadSchema(format!("'{width}' is no number of bits")))?;
            let (name, dropped) = name.strip_prefix('!').map_or((name, false), |n| (n, true));
            fields.push(Field { name: name.to_owned(), width, dropped });
        }
        Schema::from_fields(fields)
    }

    /// A schema of these fields, checked.
    pub fn from_fields(fields: Vec<Field>) -> Result<Schema, Error> {
        let bad = |text: String| Err(Error::BadSchema(text));
        if fields.iter().all(|f| f.dropped) {
            return bad("a space needs at least one field".into());
        }
        if fields.len() > MAX_FIELDS {
            return bad(format!("more than {MAX_FIELDS} fields, dropped ones included"));
        }
        for (i, field) in fields.iter().enumerate() {
            let letters =
                field.name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
            if !letters || field.name.is_empty() || field.name.len() > MAX_NAME_BYTES {
                return bad(format!(
                    "'{}' is no field name: 1 to {MAX_NAME_BYTES} of a-z A-Z 0-9 _ -",
                    field.name
                ));
            }
            if !(1..=64).contains(&field.width) {
                return bad(format!(
                    "field '{}' has {} bits, not 1 to 64",
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
                bad(format!("{bits} bits per row, more than {MAX_ROW_BITS}"))
            }
            _ => Ok(schema),
        }
    }

    /// The fields by position, dropped ones included.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Positions and fields that are not dropped.
    pub fn living(&self) -> impl Iterator<Item = (usize, &Field)> + Clone {
        self.fields.iter().enumerate().filter(|(_, f)| !f.dropped)
    }

    /// How many values a row has: one per position.
    pub fn width(&self) -> usize {
        self.fields.len()
    }

    /// The position of a living field.
    pub fn index_of(&self, name: &[u8]) -> Option<usize> {
        self.fields.iter().position(|f| !f.dropped && f.name.as_bytes() == name)
    }

    /// Inline bits of all living fields.
    pub fn row_bits(&self) -> u32 {
        self.living().map(|(_, f)| u32::from(f.width)).sum()
    }

    /// The schema after a change.
    pub fn altered(&self, change: &Alteration) -> Result<Schema, Error> {
        let find = |name: &str| {
            self.index_of(name.as_bytes()).ok_or_else(|| Error::NoField(name.to_owned()))
        };
        let mut fields = self.fields.clone();
        match change {
            Alteration::Add { name, width } => {
                fields.push(Field { name: name.clone(), width: *width, dropped: false });
            }
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
            let mark = if field.dropped { "!" } else { "" };
            write!(f, "{blank}{mark}{}:{}", field.name, field.width)?;
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
    fn positions_never_move() {
        let one = Schema::parse("a:4 b:5").unwrap();
        let two = one.altered(&Alteration::Drop { name: "a".into() }).unwrap();
        let three = two.altered(&Alteration::Add { name: "a".into(), width: 9 }).unwrap();
        assert_eq!(three.to_string(), "!a:4 b:5 a:9");
        assert_eq!(Schema::parse(&three.to_string()).unwrap(), three);
        assert_eq!(
            (three.index_of(b"b"), three.index_of(b"a"), three.row_bits()),
            (Some(1), Some(2), 14)
        );
        assert!(three.altered(&Alteration::Add { name: "b".into(), width: 1 }).is_err());
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
