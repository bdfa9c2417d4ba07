//! Converts lines to commands.

use super::args::{ImportArgs, LineShape, renamed};
use super::csv::Columns;
use super::json::{Object, is_present, text_of};
use super::pipe::{CommandKind, Pipe};
use resp::{Protocol, Reply as Writer};
use std::borrow::Cow;

pub(super) enum LineOutcome {
    Command,
    /// The event is an original post and changes no counter.
    OriginalPost,
    /// All counters of the row are null.
    NoCounters,
}

pub(super) struct Command {
    pub(super) shape: LineShape,
    /// Name of the space or the action.
    of: String,
    /// Encoded command up to, but excluding, its first value.
    head: Vec<u8>,
    /// Field names of a row, encoded as arguments.
    fields: Vec<Vec<u8>>,
}

impl Command {
    pub(super) fn new(shape: LineShape, args: &ImportArgs) -> Command {
        let bulk = |text: &str| {
            let mut out = Vec::new();
            request(&mut out).bulk(text.as_bytes());
            out
        };
        let (name, of, fields) = match &shape {
            LineShape::Rows { fields, .. } => ("CNT.SET", &args.space, &fields[..]),
            LineShape::Flags => ("PH.ADD", &args.space, &[][..]),
            LineShape::Events => ("FEED.ACT", &args.action, &[][..]),
        };
        let arguments =
            if matches!(shape, LineShape::Rows { .. }) { 3 + 2 * fields.len() } else { 4 };
        let mut head = Vec::new();
        request(&mut head).array(arguments);
        head.extend([bulk(name), bulk(of)].concat());
        let fields = fields.iter().map(|field| bulk(field)).collect();
        Command { of: of.clone(), shape, head, fields }
    }

    /// Converts a line to a command. If the line is bad, returns the reason.
    pub(super) fn push(
        &self,
        columns: &Columns,
        line: u64,
        pipe: &mut Pipe,
    ) -> Result<LineOutcome, String> {
        let expected = match &self.shape {
            LineShape::Rows { width, .. } => *width,
            LineShape::Flags => 2,
            LineShape::Events => 4,
        };
        if columns.len() != expected {
            return Err(format!("found {} columns, expected {expected}", columns.len()));
        }
        match &self.shape {
            LineShape::Rows { fields, column_indexes, .. } => {
                let values = column_indexes.iter().skip(1).map(|place| columns.get(*place));
                let (id, number) = integer::<u64>("id", columns.get(column_indexes[0]))?;
                for (field, value) in fields.iter().zip(values.clone()) {
                    integer::<i64>(field, value)?;
                }
                pipe.push(number, line, CommandKind::Row, |out| {
                    out.extend_from_slice(&self.head);
                    request(out).bulk(id);
                    for (field, value) in self.fields.iter().zip(values) {
                        out.extend_from_slice(field);
                        request(out).bulk(value.trim_ascii());
                    }
                });
            }
            LineShape::Flags => {
                let (id, number) = integer::<u64>("id", columns.get(0))?;
                self.push_pair(number, line, columns.get(1), id, pipe);
            }
            LineShape::Events => {
                integer::<u64>("post_id", columns.get(1))?;
                let (user, _) = integer::<u64>("user_id", columns.get(3))?;
                if columns.get(2).is_empty() {
                    return Ok(LineOutcome::OriginalPost);
                }
                let (origin, number) = integer::<u64>("origin_post_id", columns.get(2))?;
                self.push_pair(number, line, user, origin, pipe);
            }
        }
        Ok(LineOutcome::Command)
    }

    /// Converts a JSON object to a command. The object may contain any counters of the space. Null
    /// counters are skipped.
    pub(super) fn push_object(
        &self,
        object: &Object,
        line: u64,
        pipe: &mut Pipe,
    ) -> Result<LineOutcome, String> {
        let id = text_of(object, "id")?;
        let (id, number) = integer::<u64>("id", id.as_bytes())?;
        match &self.shape {
            LineShape::Rows { .. } => {
                let mut values: Vec<(&str, Cow<'_, str>)> = Vec::with_capacity(object.len());
                let counters = || object.keys().filter(|name| *name != "id");
                for name in counters().filter(|name| is_present(object, name)) {
                    let value = text_of(object, name)?;
                    integer::<i64>(name, value.as_bytes())?;
                    values.push((name, value));
                }
                if values.is_empty() && counters().next().is_some() {
                    return Ok(LineOutcome::NoCounters);
                }
                if values.is_empty() {
                    return Err("the line has no counters".to_owned());
                }
                pipe.push(number, line, CommandKind::Row, |out| {
                    let mut request = request(out);
                    request.array(3 + 2 * values.len());
                    [b"CNT.SET", self.of.as_bytes(), id].iter().for_each(|arg| request.bulk(arg));
                    for (name, value) in &values {
                        request.bulk(name.as_bytes());
                        request.bulk(value.trim().as_bytes());
                    }
                });
            }
            LineShape::Flags => {
                let member = text_of(object, "member")?;
                self.push_pair(number, line, member.as_bytes(), id, pipe);
            }
            LineShape::Events => {
                let user = text_of(object, "user")?;
                self.push_pair(number, line, user.as_bytes(), id, pipe);
            }
        }
        Ok(LineOutcome::Command)
    }

    fn push_pair(&self, number: u64, line: u64, member: &[u8], id: &[u8], pipe: &mut Pipe) {
        let verb = if matches!(self.shape, LineShape::Flags) {
            CommandKind::Flag
        } else {
            CommandKind::Event
        };
        pipe.push(number, line, verb, |out| {
            out.extend_from_slice(&self.head);
            let mut request = request(out);
            request.bulk(member);
            request.bulk(id);
        });
    }
}

/// Returns a writer of a request, which is encoded like an array reply of RESP2.
fn request(out: &mut Vec<u8>) -> Writer<'_> {
    Writer::new(out, Protocol::Resp2)
}

/// Parses an integer of type `T`. Returns its text, which is sent unchanged, and its value.
fn integer<'a, T: std::str::FromStr>(what: &str, text: &'a [u8]) -> Result<(&'a [u8], T), String> {
    let text = text.trim_ascii();
    match std::str::from_utf8(text).ok().and_then(|t| t.parse::<T>().ok()) {
        // Rust accepts a leading `+`, Redis does not.
        Some(value) if !text.starts_with(b"+") => Ok((text, value)),
        _ => Err(format!(
            "{what}: \"{}\" is not an integer or out of range",
            text[..text.len().min(40)].escape_ascii()
        )),
    }
}

pub(super) fn named_columns(header: &[String], names: &[String]) -> Result<LineShape, String> {
    let place = |name: &str| {
        let place = header.iter().position(|column| column == name);
        place.ok_or_else(|| format!("--fields: no such column '{name}'"))
    };
    let (mut id, mut fields, mut column_indexes) = ("id", Vec::new(), Vec::new());
    for (from, to) in names.iter().map(|name| renamed(name)) {
        if to == "id" {
            id = from;
        } else {
            fields.push(to.to_owned());
            column_indexes.push(place(from)?);
        }
    }
    column_indexes.insert(0, place(id)?);
    Ok(LineShape::Rows { fields, column_indexes, width: header.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_checked_before_they_are_sent() {
        assert_eq!(
            integer::<u64>("id", b" 18446744073709551615 "),
            Ok((&b"18446744073709551615"[..], u64::MAX))
        );
        assert!(integer::<u64>("id", b"18446744073709551616").is_err());
        assert!(integer::<u64>("id", b"-1").is_err());
        assert_eq!(
            integer::<i64>("like", b"-9223372036854775808"),
            Ok((&b"-9223372036854775808"[..], i64::MIN))
        );
        for bad in [&b"+1"[..], b"", b"1.0", b"0x10", b"1e3", b"\xff", b"1 2"] {
            assert!(integer::<i64>("like", bad).is_err(), "{bad:?}");
        }
    }
}
