//! CONFIG REWRITE: writes the current lists of spaces, views and actions of the data folder.

use crate::config::{Action, Counter, Existence, Key, View};
use dataset::catalogue::is_same;
use toml::{Table, Value};
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, TableLike};

const LISTS: &[(&str, &[Key])] = &[
    ("counter", Counter::KEYS),
    ("existence", Existence::KEYS),
    ("view", View::KEYS),
    ("action", Action::KEYS),
];

/// Returns the defaults of an entry.
fn plain(list: &str) -> Table {
    let plain = match list {
        "counter" => Table::try_from(Counter::default()),
        "existence" => Table::try_from(Existence::default()),
        "view" => Table::try_from(View::default()),
        _ => Table::try_from(Action::default()),
    };
    plain.unwrap_or_default()
}

fn entries(all: &Table, list: &str) -> Vec<Table> {
    let entries = all.get(list).and_then(Value::as_array);
    entries.into_iter().flatten().filter_map(Value::as_table).cloned().collect()
}

fn name_of(entry: &Table) -> &str {
    entry.get("name").and_then(Value::as_str).unwrap_or_default()
}

/// Returns the renamed entries as pairs of indexes in `before` and `now`. An entry counts as
/// renamed if its name disappeared and a new entry has an equal declaration. The new entry gets the
/// original text of its fields.
fn renamed(before: &[Table], now: &mut [Table]) -> Vec<(usize, usize)> {
    fn has(list: &[Table], name: &str) -> bool {
        list.iter().any(|entry| name_of(entry) == name)
    }
    fn fields(entry: &Table) -> &str {
        entry.get("fields").and_then(Value::as_str).unwrap_or_default()
    }
    let is_alike = |old: &Table, new: &Table| {
        old.iter().all(|(key, value)| match key.as_str() {
            "name" | "seed" => true,
            "fields" => is_same(fields(old), fields(new)),
            _ => new.get(key) == Some(value),
        })
    };
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    for (from, old) in before.iter().enumerate() {
        if has(now, name_of(old)) {
            continue;
        }
        let twin = now.iter().enumerate().position(|(at, new)| {
            let is_free = pairs.iter().all(|pair| pair.1 != at);
            is_free && !has(before, name_of(new)) && is_alike(old, new)
        });
        let Some(to) = twin else { continue };
        pairs.push((from, to));
        if let Some(fields) = old.get("fields") {
            now[to].insert("fields".to_owned(), fields.clone());
        }
    }
    pairs
}

/// Writes the lists that differ from `now`. `written` contains the lists with the text of the file,
/// and `read` contains the same lists with normalized values. If the file does not contain a list,
/// `defaults` contains its entries. Preserves the text and comments of remaining entries.
pub(crate) fn write(
    file: &mut DocumentMut,
    written: &Table,
    read: &Table,
    now: &Table,
    defaults: &Table,
) -> Result<(), String> {
    for &(list, keys) in LISTS {
        let (plain, mut now) = (plain(list), entries(now, list));
        let whole = |entry: &Table| {
            let mut whole = plain.clone();
            whole.extend(entry.clone());
            whole
        };
        let is_written = written.contains_key(list);
        let before: Vec<Table> =
            entries(if is_written { read } else { defaults }, list).iter().map(whole).collect();
        if before == now {
            continue;
        }
        let renamed = renamed(&before, &mut now);
        let now = now;
        // An empty list is written as an array of values.
        let is_empty = file.get(list).and_then(Item::as_array).is_some_and(Array::is_empty);
        if now.is_empty() {
            file.insert(list, Item::Value(Array::new().into()));
            continue;
        }
        if !is_written || is_empty {
            file.insert(list, Item::ArrayOfTables(ArrayOfTables::new()));
        }
        let known = |entry: &dyn TableLike| {
            let name = entry.get("name").and_then(Item::as_str).unwrap_or_default();
            let other = renamed.iter().find(|(from, _)| name_of(&before[*from]) == name);
            let named = now.iter().find(|entry| name_of(entry) == name);
            named.or(other.map(|(_, to)| &now[*to]))
        };
        let old = |entry: &Table| {
            let other = renamed.iter().find(|(_, to)| name_of(&now[*to]) == name_of(entry));
            let named = before.iter().find(|old| name_of(old) == name_of(entry));
            named.or(other.map(|(from, _)| &before[*from]))
        };
        let is_new = |entry: &&Table| !is_written || old(entry).is_none();
        match file.get_mut(list) {
            Some(Item::ArrayOfTables(entries)) => {
                entries.retain(|entry| known(entry).is_some());
                for entry in entries.iter_mut() {
                    let Some(now) = known(entry) else { continue };
                    change(entry, keys, now, old(now).unwrap_or(&plain))?;
                }
                for now in now.iter().filter(is_new) {
                    let mut entry = toml_edit::Table::new();
                    change(&mut entry, keys, now, &plain)?;
                    entries.push(entry);
                }
            }
            Some(Item::Value(toml_edit::Value::Array(entries))) => {
                let is_known = |entry: &toml_edit::Value| {
                    entry.as_inline_table().is_some_and(|entry| known(entry).is_some())
                };
                entries.retain(is_known);
                let tables = entries.iter_mut().filter_map(toml_edit::Value::as_inline_table_mut);
                for entry in tables {
                    let Some(now) = known(entry) else { continue };
                    change(entry, keys, now, old(now).unwrap_or(&plain))?;
                }
                for now in now.iter().filter(is_new) {
                    let mut entry = InlineTable::new();
                    change(&mut entry, keys, now, &plain)?;
                    entries.push(entry);
                }
            }
            _ => return Err(format!("'{list}' is not an array")),
        }
    }
    Ok(())
}

/// Sets a key of a table, and preserves the comments before and after the old value.
pub(super) fn put(table: &mut dyn TableLike, key: &str, value: &Value) -> Result<(), String> {
    let mut value: toml_edit::Value =
        value.to_string().parse().map_err(|e: toml_edit::TomlError| e.message().to_owned())?;
    // `insert` would discard the comment before the key.
    match table.get_mut(key) {
        Some(item) => {
            if let Some(old) = item.as_value() {
                *value.decor_mut() = old.decor().clone();
            }
            *item = Item::Value(value);
        }
        None => _ = table.insert(key, Item::Value(value)),
    }
    Ok(())
}

/// Sets the changed keys of an entry, in the order of the printed file. A seed of 0 in `now` means
/// that the seed is secret, so the file's seed remains.
fn change(
    entry: &mut dyn TableLike,
    keys: &[Key],
    now: &Table,
    before: &Table,
) -> Result<(), String> {
    let is_told = |key: &Key, value: &Value| key.name != "seed" || *value != Value::Integer(0);
    for key in keys {
        let value = now.get(key.name).filter(|value| before.get(key.name) != Some(value));
        if let Some(value) = value.filter(|value| is_told(key, value)) {
            put(entry, key.name, value)?;
        }
    }
    Ok(())
}
