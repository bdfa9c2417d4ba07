//! RESP2 and RESP3 replies: reads them from a socket, applies the filters of a transcript, and
//! formats them like redis-cli.
//!
//! The crate redis-protocol is not used here, because its hash maps lose the order of a RESP3 map.

use std::fmt::Write;
use std::io::{self, BufRead, Error, ErrorKind};

/// One reply. Strings are byte vectors, because a reply may contain any byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A simple string such as `OK` or `PONG`.
    Status(String),
    /// An error such as `ERR ...`.
    Error(String),
    /// An integer reply.
    Integer(i64),
    /// RESP3: a floating-point number, in the server's notation.
    Double(String),
    /// RESP3: a boolean.
    Boolean(bool),
    /// A bulk string.
    Bulk(Vec<u8>),
    /// RESP3: a verbatim string.
    Verbatim(Vec<u8>),
    /// A null reply.
    Nil,
    /// An array reply.
    Array(Vec<Reply>),
    /// RESP3: a set.
    Set(Vec<Reply>),
    /// RESP3: a map, in the server's order.
    Map(Vec<(Reply, Reply)>),
    /// RESP3: an out-of-band message.
    Push(Vec<Reply>),
    /// Placeholder for a value that differs between runs.
    Masked(String),
}

fn line(from: &mut impl BufRead) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.read_until(b'\n', &mut bytes)?;
    if !bytes.ends_with(b"\r\n") {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    bytes.truncate(bytes.len() - 2);
    String::from_utf8(bytes).map_err(|e| Error::new(ErrorKind::InvalidData, e))
}

impl Reply {
    /// Reads one reply.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the server has closed the connection.
    pub fn read(from: &mut impl BufRead) -> io::Result<Reply> {
        let head = line(from)?;
        let (kind, rest) = head.split_at_checked(1).unwrap_or(("", ""));
        let bad = || Error::new(ErrorKind::InvalidData, format!("invalid reply: {head:?}"));
        let number = || rest.parse::<i64>().map_err(|_| bad());
        let mut bulk = |length: i64| -> io::Result<Vec<u8>> {
            let mut bytes = vec![0; length as usize + 2];
            from.read_exact(&mut bytes)?;
            bytes.truncate(length as usize);
            Ok(bytes)
        };
        Ok(match kind {
            "+" => Reply::Status(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(number()?),
            "," => Reply::Double(rest.to_owned()),
            "#" => Reply::Boolean(rest == "t"),
            "_" => Reply::Nil,
            "$" | "*" if number()? < 0 => Reply::Nil,
            "$" => Reply::Bulk(bulk(number()?)?),
            // Skip the three-letter type and the colon.
            "=" => Reply::Verbatim(bulk(number()?)?.split_off(4)),
            "*" | "~" | ">" | "%" => {
                let mut items = Vec::new();
                for _ in 0..number()? * if kind == "%" { 2 } else { 1 } {
                    items.push(Reply::read(from)?);
                }
                match kind {
                    "*" => Reply::Array(items),
                    "~" => Reply::Set(items),
                    ">" => Reply::Push(items),
                    _ => {
                        let mut items = items.into_iter();
                        let pairs = std::iter::from_fn(|| items.next().zip(items.next()));
                        Reply::Map(pairs.collect())
                    }
                }
            }
            _ => return Err(bad()),
        })
    }

    fn as_text(&self) -> Option<String> {
        match self {
            Reply::Bulk(bytes) | Reply::Verbatim(bytes) => String::from_utf8(bytes.clone()).ok(),
            Reply::Status(text) => Some(text.clone()),
            _ => None,
        }
    }

    /// Returns the type and the length of the reply as text.
    pub fn describe(&self) -> String {
        match self {
            Reply::Array(items) => format!("(array of {})", items.len()),
            Reply::Set(items) => format!("(set of {})", items.len()),
            Reply::Push(items) => format!("(push of {})", items.len()),
            Reply::Map(pairs) => format!("(map of {})", pairs.len()),
            Reply::Bulk(_) | Reply::Verbatim(_) => "(string)".to_owned(),
            other => other.print(),
        }
    }

    /// Formats the reply like redis-cli on a terminal, without the final newline.
    pub fn print(&self) -> String {
        let mut out = String::new();
        self.print_nested("", &mut out);
        out.truncate(out.trim_end_matches('\n').len());
        out
    }

    /// Formats the reply; every line but the first begins with `indent`.
    fn print_nested(&self, indent: &str, out: &mut String) {
        let (items, mark, empty): (Vec<&Reply>, char, &str) = match self {
            Reply::Array(items) => (items.iter().collect(), ')', "(empty array)"),
            Reply::Push(items) => (items.iter().collect(), ')', "(empty push)"),
            Reply::Set(items) => (items.iter().collect(), '~', "(empty set)"),
            Reply::Map(pairs) => (pairs.iter().map(|(key, _)| key).collect(), '#', "(empty hash)"),
            _ => return self.print_scalar(out),
        };
        if items.is_empty() {
            out.push_str(empty);
            out.push('\n');
        }
        let width = items.len().to_string().len();
        let inner = format!("{indent}{}", " ".repeat(width + 2));
        for (i, item) in items.iter().enumerate() {
            let before = if i == 0 { "" } else { indent };
            _ = write!(out, "{before}{:width$}{mark} ", i + 1);
            item.print_nested(&inner, out);
            if let Reply::Map(pairs) = self {
                out.truncate(out.len() - 1);
                out.push_str(" => ");
                let mut value = String::new();
                pairs[i].1.print_nested(&inner, &mut value);
                // A value of several lines starts on a new line.
                if value.trim_end().contains('\n') {
                    out.push('\n');
                    out.push_str(&inner);
                }
                out.push_str(&value);
            }
        }
    }

    fn print_scalar(&self, out: &mut String) {
        _ = match self {
            Reply::Status(text) => writeln!(out, "{text}"),
            Reply::Error(text) => writeln!(out, "(error) {text}"),
            Reply::Integer(n) => writeln!(out, "(integer) {n}"),
            Reply::Double(text) => writeln!(out, "(double) {text}"),
            Reply::Boolean(b) => writeln!(out, "({b})"),
            Reply::Bulk(bytes) => writeln!(out, "{}", quoted(bytes)),
            Reply::Verbatim(bytes) => {
                writeln!(out, "{}", String::from_utf8_lossy(bytes).replace('\r', ""))
            }
            Reply::Nil => writeln!(out, "(nil)"),
            Reply::Masked(name) => writeln!(out, "<{name}>"),
            Reply::Array(_) | Reply::Set(_) | Reply::Push(_) | Reply::Map(_) => Ok(()),
        };
    }

    /// Masks the values of these names in maps, in lists of alternating names and values, and in
    /// `name:value` or `name=value` texts.
    pub fn mask(self, names: &[String]) -> Reply {
        let is_named = |reply: &Reply| reply.as_text().filter(|text| names.contains(text));
        match self {
            Reply::Array(items) => Reply::Array(mask_list(items, names)),
            Reply::Set(items) => Reply::Set(items.into_iter().map(|i| i.mask(names)).collect()),
            Reply::Push(items) => Reply::Push(mask_list(items, names)),
            Reply::Map(pairs) => Reply::Map(
                pairs
                    .into_iter()
                    .map(|(key, value)| match is_named(&key) {
                        Some(name) => (key, Reply::Masked(name)),
                        None => (key, value.mask(names)),
                    })
                    .collect(),
            ),
            Reply::Bulk(bytes) => Reply::Bulk(mask_text(bytes, names)),
            Reply::Verbatim(bytes) => Reply::Verbatim(mask_text(bytes, names)),
            Reply::Error(text) => Reply::Error(text),
            other => other,
        }
    }

    /// Keeps only these names and their values. Applies to maps, lists of alternating names and
    /// values, lists of such lists, and lines of a text.
    pub fn show(self, names: &[String]) -> Reply {
        let is_named = |reply: &Reply| reply.as_text().is_some_and(|text| names.contains(&text));
        match self {
            Reply::Map(pairs) => {
                Reply::Map(pairs.into_iter().filter(|(key, _)| is_named(key)).collect())
            }
            Reply::Array(items) if items.iter().step_by(2).any(is_named) => {
                let mut items = items.into_iter();
                let pairs = std::iter::from_fn(|| items.next().zip(items.next()));
                Reply::Array(
                    pairs.filter(|(key, _)| is_named(key)).flat_map(|(k, v)| [k, v]).collect(),
                )
            }
            Reply::Array(items) => {
                Reply::Array(items.into_iter().map(|item| item.show(names)).collect())
            }
            Reply::Bulk(bytes) | Reply::Verbatim(bytes) => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let kept: Vec<&str> =
                    text.lines().filter(|l| names.iter().any(|n| has_name(l, n))).collect();
                Reply::Verbatim(kept.join("\n").into_bytes())
            }
            other => other,
        }
    }

    /// Applies `change` to all strings. Used to replace ports and folders by names.
    pub fn rename(self, change: &impl Fn(&str) -> String) -> Reply {
        let text = |bytes: Vec<u8>| match String::from_utf8(bytes) {
            Ok(text) => change(&text).into_bytes(),
            Err(bytes) => bytes.into_bytes(),
        };
        let list = |items: Vec<Reply>| items.into_iter().map(|i| i.rename(change)).collect();
        match self {
            Reply::Status(said) => Reply::Status(change(&said)),
            Reply::Error(said) => Reply::Error(change(&said)),
            Reply::Bulk(bytes) => Reply::Bulk(text(bytes)),
            Reply::Verbatim(bytes) => Reply::Verbatim(text(bytes)),
            Reply::Array(items) => Reply::Array(list(items)),
            Reply::Set(items) => Reply::Set(list(items)),
            Reply::Push(items) => Reply::Push(list(items)),
            Reply::Map(pairs) => {
                let pairs = pairs.into_iter();
                Reply::Map(pairs.map(|(k, v)| (k.rename(change), v.rename(change))).collect())
            }
            other => other,
        }
    }
}

/// Whether a line is `name:value` or contains `name=value`.
fn has_name(line: &str, name: &str) -> bool {
    line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':'))
        || line.split([' ', ',']).any(|part| part.split_once('=').is_some_and(|(n, _)| n == name))
}

fn mask_list(items: Vec<Reply>, names: &[String]) -> Vec<Reply> {
    let mut before: Option<String> = None;
    items
        .into_iter()
        .map(|item| match before.take().filter(|text| names.contains(text)) {
            Some(name) => Reply::Masked(name),
            None => {
                before = item.as_text();
                item.mask(names)
            }
        })
        .collect()
}

fn mask_text(bytes: Vec<u8>, names: &[String]) -> Vec<u8> {
    let text = match String::from_utf8(bytes) {
        Ok(text) if text.contains([':', '=']) => text,
        Ok(text) => return text.into_bytes(),
        Err(bytes) => return bytes.into_bytes(),
    };
    let mask_line = |line: &str| -> String {
        let end = &line[line.trim_end().len()..];
        if let Some((name, _)) = line.split_once(':')
            && names.iter().any(|n| n == name)
        {
            return format!("{name}:<{name}>{end}");
        }
        let parts = line.split_inclusive([' ', ',', ':']).map(|part| {
            let Some((name, value)) = part.split_once('=') else { return part.to_owned() };
            if !names.iter().any(|n| n == name) {
                return part.to_owned();
            }
            let end = value.trim_end_matches([' ', ',', '\r', '\n']).len();
            format!("{name}=<{name}>{}", &value[end..])
        });
        parts.collect()
    };
    text.split_inclusive('\n').map(mask_line).collect::<String>().into_bytes()
}

/// Quotes a string with the escapes of redis-cli.
fn quoted(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for &byte in bytes {
        match byte {
            b'\\' | b'"' => out.extend(['\\', char::from(byte)]),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            7 => out.push_str("\\a"),
            8 => out.push_str("\\b"),
            b' '..=b'~' => out.push(char::from(byte)),
            _ => _ = write!(out, "\\x{byte:02x}"),
        }
    }
    out.push('"');
    out
}
