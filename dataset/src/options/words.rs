//! Parses options in the arguments of a command: `key value key value`. The valid values are the
//! same as in a configuration file.

use super::wide::NO_INTEGER;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// Returns a copy of `base` in which `pairs` replaces the values of some keys.
pub fn with<T: Serialize + DeserializeOwned>(
    base: &T,
    pairs: &[(String, String)],
) -> Result<T, String> {
    let mut all = Table::try_from(base).map_err(|e| e.to_string())?;
    for (i, (key, text)) in pairs.iter().enumerate() {
        if pairs[..i].iter().any(|(other, _)| other == key) {
            return Err(format!("{key}: duplicate parameter"));
        }
        let Some(like) = all.get(key).cloned() else {
            let known = all.keys().map(String::as_str).filter(|key| *key != "name");
            let known = known.collect::<Vec<_>>().join(", ");
            return Err(format!("unknown option '{key}': there are {known}"));
        };
        let value = match (&like, text.as_str()) {
            (Value::Boolean(_), "true") => Value::Boolean(true),
            (Value::Boolean(_), "false") => Value::Boolean(false),
            // The number exceeds TOML's integers. Only a few options accept such numbers, as
            // strings.
            (Value::Integer(_), digits) if is_wide(digits) => Value::String(digits.to_owned()),
            _ => parsed(&like, text).map_err(|why| format!("{key}: {why}"))?,
        };
        all.insert(key.clone(), value);
        // Check each option separately, so that the error names the invalid option.
        all.clone().try_into::<T>().map_err(|e| match e.message() {
            _ if is_wide(text) => format!("{key}: {NO_INTEGER}"),
            why => format!("{key}: {why}"),
        })?;
    }
    all.try_into().map_err(|e: toml::de::Error| e.message().to_owned())
}

/// Whether the text is an unsigned 64-bit number above 2^63-1.
fn is_wide(digits: &str) -> bool {
    digits.parse::<i64>().is_err() && digits.parse::<u64>().is_ok()
}

/// Parses a text as a value of the same type as `like`.
pub fn parsed(like: &Value, text: &str) -> Result<Value, &'static str> {
    Ok(match like {
        Value::Boolean(_) if text.eq_ignore_ascii_case("yes") => Value::Boolean(true),
        Value::Boolean(_) if text.eq_ignore_ascii_case("no") => Value::Boolean(false),
        Value::Boolean(_) => return Err("argument must be 'yes' or 'no'"),
        Value::Integer(_) => Value::Integer(text.parse().map_err(|_| NO_INTEGER)?),
        Value::Float(_) => {
            Value::Float(text.parse().map_err(|_| "argument couldn't be parsed into a number")?)
        }
        Value::Array(_) => Value::Array(
            text.split_ascii_whitespace().map(|word| Value::String(word.to_owned())).collect(),
        ),
        _ => Value::String(text.to_owned()),
    })
}
