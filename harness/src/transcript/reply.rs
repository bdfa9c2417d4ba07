//! Replies of a transcript: applies its filters, and formats replies like redis-cli.

use client::Reply;
use std::fmt::Write;

fn as_text(reply: &Reply) -> Option<String> {
    match reply {
        Reply::BulkString(bytes) | Reply::Verbatim(bytes) | Reply::SimpleString(bytes) => {
            String::from_utf8(bytes.clone()).ok()
        }
        _ => None,
    }
}

/// Returns the reply that shows a name instead of a value that differs between runs.
pub fn masked(name: &str) -> Reply {
    Reply::SimpleString(format!("<{name}>").into_bytes())
}

/// Returns the type and the length of the reply as text.
pub fn describe(reply: &Reply) -> String {
    match reply {
        Reply::Array(items) => format!("(array of {})", items.len()),
        Reply::Set(items) => format!("(set of {})", items.len()),
        Reply::Push(items) => format!("(push of {})", items.len()),
        Reply::Map(pairs) => format!("(map of {})", pairs.len()),
        Reply::BulkString(_) | Reply::Verbatim(_) => "(string)".to_owned(),
        other => print(other),
    }
}

/// Formats the reply like redis-cli on a terminal, without the final newline.
pub fn print(reply: &Reply) -> String {
    let mut out = String::new();
    print_nested(reply, "", &mut out);
    out.truncate(out.trim_end_matches('\n').len());
    out
}

/// Formats the reply; every line but the first begins with `indent`.
fn print_nested(reply: &Reply, indent: &str, out: &mut String) {
    let (items, mark, empty): (Vec<&Reply>, char, &str) = match reply {
        Reply::Array(items) => (items.iter().collect(), ')', "(empty array)"),
        Reply::Push(items) => (items.iter().collect(), ')', "(empty push)"),
        Reply::Set(items) => (items.iter().collect(), '~', "(empty set)"),
        Reply::Map(pairs) => (pairs.iter().map(|(key, _)| key).collect(), '#', "(empty hash)"),
        _ => return print_scalar(reply, out),
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
        print_nested(item, &inner, out);
        if let Reply::Map(pairs) = reply {
            out.truncate(out.len() - 1);
            out.push_str(" => ");
            let mut value = String::new();
            print_nested(&pairs[i].1, &inner, &mut value);
            // A value of several lines starts on a new line.
            if value.trim_end().contains('\n') {
                out.push('\n');
                out.push_str(&inner);
            }
            out.push_str(&value);
        }
    }
}

fn print_scalar(reply: &Reply, out: &mut String) {
    _ = match reply {
        Reply::SimpleString(text) => writeln!(out, "{}", String::from_utf8_lossy(text)),
        Reply::Error(text) => writeln!(out, "(error) {text}"),
        Reply::Integer(n) => writeln!(out, "(integer) {n}"),
        Reply::Double(text) => writeln!(out, "(double) {text}"),
        Reply::Boolean(b) => writeln!(out, "({b})"),
        Reply::BulkString(bytes) => writeln!(out, "{}", quoted(bytes)),
        Reply::Verbatim(bytes) => {
            writeln!(out, "{}", String::from_utf8_lossy(bytes).replace('\r', ""))
        }
        Reply::Null => writeln!(out, "(nil)"),
        Reply::Array(_) | Reply::Set(_) | Reply::Push(_) | Reply::Map(_) => Ok(()),
    };
}

/// Masks the values of these names in maps, in lists of alternating names and values, and in
/// `name:value` or `name=value` texts.
pub fn mask(reply: Reply, names: &[String]) -> Reply {
    let is_named = |reply: &Reply| as_text(reply).filter(|text| names.contains(text));
    match reply {
        Reply::Array(items) => Reply::Array(mask_list(items, names)),
        Reply::Set(items) => Reply::Set(items.into_iter().map(|i| mask(i, names)).collect()),
        Reply::Push(items) => Reply::Push(mask_list(items, names)),
        Reply::Map(pairs) => Reply::Map(
            pairs
                .into_iter()
                .map(|(key, value)| match is_named(&key) {
                    Some(name) => (key, masked(&name)),
                    None => (key, mask(value, names)),
                })
                .collect(),
        ),
        Reply::BulkString(bytes) => Reply::BulkString(mask_text(bytes, names)),
        Reply::Verbatim(bytes) => Reply::Verbatim(mask_text(bytes, names)),
        other => other,
    }
}

/// Removes all names except these, and their values. Applies to maps, lists of alternating
/// names and values, lists of such lists, and lines of a text.
pub fn show(reply: Reply, names: &[String]) -> Reply {
    let is_named = |reply: &Reply| as_text(reply).is_some_and(|text| names.contains(&text));
    match reply {
        Reply::Map(pairs) => {
            Reply::Map(pairs.into_iter().filter(|(key, _)| is_named(key)).collect())
        }
        Reply::Array(items) if items.iter().step_by(2).any(is_named) => {
            let mut items = items.into_iter();
            let pairs = std::iter::from_fn(|| items.next().zip(items.next()));
            Reply::Array(pairs.filter(|(key, _)| is_named(key)).flat_map(|(k, v)| [k, v]).collect())
        }
        Reply::Array(items) => {
            Reply::Array(items.into_iter().map(|item| show(item, names)).collect())
        }
        Reply::BulkString(bytes) | Reply::Verbatim(bytes) => {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let kept: Vec<&str> =
                text.lines().filter(|l| names.iter().any(|n| has_name(l, n))).collect();
            Reply::Verbatim(kept.join("\n").into_bytes())
        }
        other => other,
    }
}

/// Applies `change` to all strings. Used to replace ports and folders by names.
pub fn rename(reply: Reply, change: &impl Fn(&str) -> String) -> Reply {
    let text = |bytes: Vec<u8>| match String::from_utf8(bytes) {
        Ok(text) => change(&text).into_bytes(),
        Err(bytes) => bytes.into_bytes(),
    };
    let list = |items: Vec<Reply>| items.into_iter().map(|i| rename(i, change)).collect();
    match reply {
        Reply::SimpleString(said) => Reply::SimpleString(text(said)),
        Reply::Error(said) => Reply::Error(change(&said)),
        Reply::BulkString(bytes) => Reply::BulkString(text(bytes)),
        Reply::Verbatim(bytes) => Reply::Verbatim(text(bytes)),
        Reply::Array(items) => Reply::Array(list(items)),
        Reply::Set(items) => Reply::Set(list(items)),
        Reply::Push(items) => Reply::Push(list(items)),
        Reply::Map(pairs) => {
            let pairs = pairs.into_iter();
            Reply::Map(pairs.map(|(k, v)| (rename(k, change), rename(v, change))).collect())
        }
        other => other,
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
            Some(name) => masked(&name),
            None => {
                before = as_text(&item);
                mask(item, names)
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
