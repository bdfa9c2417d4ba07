//! CONFIG REWRITE: what spaces have become while the server ran, which the file says otherwise.

use crate::config::{Config, Counter, Existence, Key};
use crate::runtime::settings::put;
use dataset::catalogue::is_same;
use serde::Serialize;
use toml::{Table, Value};
use toml_edit::{ArrayOfTables, DocumentMut, Item, TableLike};

/// Writes the fields of counter spaces, and the rates of existence spaces, where they differ.
/// `before` is what the file says.
pub(crate) fn write(file: &mut DocumentMut, before: &Config, now: &Config) -> Result<(), String> {
    let changed: Vec<&Counter> = now
        .counter
        .iter()
        .filter(|now| {
            let same = |old: &Counter| old.name == now.name && is_same(&old.fields, &now.fields);
            !before.counter.iter().any(same)
        })
        .collect();
    if !changed.is_empty() && !file.contains_key("counter") {
        // A list replaces the default one as a whole.
        list(file, "counter", Counter::KEYS, &now.counter, &Counter::default())?;
    } else {
        for space in changed {
            let fields = Value::String(space.fields.clone());
            set(file, "counter", &space.name, "fields", &fields)?;
        }
    }
    let changed: Vec<&Existence> = now
        .existence
        .iter()
        .filter(|now| {
            let same = |old: &Existence| {
                old.name == now.name && old.false_positive_rate == now.false_positive_rate
            };
            !before.existence.iter().any(same)
        })
        .collect();
    if !changed.is_empty() && !file.contains_key("existence") {
        list(file, "existence", Existence::KEYS, &now.existence, &Existence::default())?;
    } else {
        for space in changed {
            let rate = Value::Float(space.false_positive_rate);
            set(file, "existence", &space.name, "false_positive_rate", &rate)?;
        }
    }
    Ok(())
}

/// Sets a key of the entry of that name, in either of TOML's forms of a list. A space that the file
/// does not have any more stays out of it.
fn set(
    file: &mut DocumentMut,
    section: &str,
    name: &str,
    key: &str,
    value: &Value,
) -> Result<(), String> {
    let is_it = |entry: &dyn TableLike| entry.get("name").and_then(Item::as_str) == Some(name);
    match file.get_mut(section) {
        Some(Item::ArrayOfTables(entries)) => {
            entries.iter_mut().filter(|e| is_it(*e)).try_for_each(|e| put(e, key, value))
        }
        Some(Item::Value(toml_edit::Value::Array(entries))) => entries
            .iter_mut()
            .filter_map(toml_edit::Value::as_inline_table_mut)
            .filter(|e| is_it(*e))
            .try_for_each(|e| put(e, key, value)),
        _ => Ok(()),
    }
}

/// Adds a list with an entry per space: what differs from the defaults, in the order of the printed
/// file.
fn list<T: Serialize>(
    file: &mut DocumentMut,
    section: &str,
    keys: &[Key],
    spaces: &[T],
    default: &T,
) -> Result<(), String> {
    let table = |space: &T| Table::try_from(space).map_err(|e| e.to_string());
    let default = table(default)?;
    let mut entries = ArrayOfTables::new();
    for space in spaces {
        let values = table(space)?;
        let mut entry = toml_edit::Table::new();
        for key in keys {
            let value = values.get(key.name).filter(|value| default.get(key.name) != Some(value));
            if let Some(value) = value {
                put(&mut entry, key.name, value)?;
            }
        }
        entries.push(entry);
    }
    file.insert(section, Item::ArrayOfTables(entries));
    Ok(())
}
