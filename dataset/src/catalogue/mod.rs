//! Catalogue: the spaces, views and actions of a data folder with their options, and the numbers,
//! schemas and seeds of its spaces.
//!
//! Log records refer to spaces by number, and filters are unreadable without their seed. The
//! catalogue is therefore part of the data: the log contains it before the first record that needs
//! it, and recovery reads it first. The configuration initialises a new folder. Afterwards the
//! catalogue is authoritative, and the commands TM.SPACE, TM.VIEW and TM.ACTION change it (`edit`).
//!
//! The catalogue is encoded as TOML, with the keys of the configuration's lists and these
//! additional keys:
//!
//! - `version`: increases with every change except schema changes. Old releases, which stored only
//!   numbers, names, schemas and seeds, did not write this key. The server completes their
//!   catalogues from the configuration.
//! - `last`: the highest number ever assigned to a space. Numbers are never reused, so records of
//!   dropped spaces can be identified.
//! - `number` of each space. `seed` and `first_id` of an existence space are strings of 16
//!   hexadecimal digits, because TOML has no unsigned 64-bit integers.
//! - `horizon` of a counter space with retired ids, also as 16 hexadecimal digits.
//! - `fields` of a counter space: the schema, including dropped fields, which are marked.

mod edit;

pub use edit::EditError;

use crate::options::check::SchemaLists;
use crate::options::{Action, Counter, Existence, Options, View, defaults};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use toml::{Table, Value};

/// Catalogue of a data folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    /// Version, incremented by every change except schema changes; 0 if an old release wrote the
    /// catalogue (see the module's documentation).
    pub version: u64,
    /// Highest number ever assigned to a space.
    pub last: u32,
    /// Counter spaces.
    pub counter: Vec<CounterEntry>,
    /// Existence spaces.
    pub existence: Vec<ExistenceEntry>,
    /// Views.
    pub view: Vec<View>,
    /// Actions.
    pub action: Vec<Action>,
}

/// Counter space in the catalogue.
#[derive(Clone, Debug, PartialEq)]
pub struct CounterEntry {
    /// Space number in log records. Numbers are never reused.
    pub number: u32,
    /// Options of the space. `fields` includes dropped fields, which are marked.
    pub made: Counter,
    /// Lowest id that may have a row; lower ids were retired.
    pub horizon: u64,
}

/// Existence space in the catalogue.
#[derive(Clone, Debug, PartialEq)]
pub struct ExistenceEntry {
    /// Space number in log records. Numbers are never reused.
    pub number: u32,
    /// Options of the space. The seed is secret.
    pub made: Existence,
}

/// Error: the catalogue is invalid. A newer release wrote it, or the checksums missed damage.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the catalogue: {0}")]
pub struct Unreadable(String);

/// Returns the fields of a schema, except dropped fields, in the configuration's syntax.
fn living(fields: &str) -> Option<String> {
    let schema = counter::Schema::parse(fields).ok()?;
    let fields = schema.living().map(|(_, field)| field.to_string());
    Some(fields.collect::<Vec<_>>().join(" "))
}

/// Whether both texts define the same schema, apart from dropped fields.
pub fn is_same(a: &str, b: &str) -> bool {
    a == b || matches!((living(a), living(b)), (Some(a), Some(b)) if a == b)
}

/// Limits a number to the range of TOML's signed integers.
fn within_toml(number: &mut u64) {
    *number = (*number).min(i64::MAX as u64);
}

impl CounterEntry {
    fn new(number: u32, made: &Counter) -> CounterEntry {
        let mut made = made.clone();
        [&mut made.rows_per_table, &mut made.memory_limit_bytes].into_iter().for_each(within_toml);
        CounterEntry { number, made, horizon: 0 }
    }
}

impl ExistenceEntry {
    /// Creates an entry, with a random seed if none is given.
    fn new(number: u32, made: &Existence) -> ExistenceEntry {
        let mut made = made.clone();
        [&mut made.pairs_per_table, &mut made.memory_limit_bytes].into_iter().for_each(within_toml);
        if made.seed == 0 {
            made.seed = fastrand::u64(1..);
        }
        ExistenceEntry { number, made }
    }
}

impl Catalogue {
    /// Returns the catalogue of a new folder, or an old release's catalogue completed from the
    /// configuration. Returns any other catalogue unchanged.
    pub fn completed(&self, options: &Options) -> Catalogue {
        if self.version > 0 {
            return self.clone();
        }
        let mut next = self.clone();
        for made in &options.counter {
            if !next.counter.iter().any(|known| known.made.name == made.name) {
                next.last += 1;
                next.counter.push(CounterEntry::new(next.last, made));
            }
        }
        for made in &options.existence {
            if !next.existence.iter().any(|known| known.made.name == made.name) {
                next.last += 1;
                next.existence.push(ExistenceEntry::new(next.last, made));
            }
        }
        Catalogue { version: 1, ..next.filled(options) }
    }

    /// Completes an old release's catalogue like [`Catalogue::completed`], but does not add the
    /// configuration's new spaces, which the log may create.
    pub fn filled(&self, options: &Options) -> Catalogue {
        if self.version > 0 {
            return self.clone();
        }
        let mut next = self.clone();
        for known in &mut next.counter {
            let Some(made) = options.counter.iter().find(|made| made.name == known.made.name)
            else {
                say_unknown("counter", &known.made.name);
                continue;
            };
            let fields = std::mem::take(&mut known.made.fields);
            let made = Counter { fields, ..made.clone() };
            *known =
                CounterEntry { horizon: known.horizon, ..CounterEntry::new(known.number, &made) };
        }
        for known in &mut next.existence {
            let Some(made) = options.existence.iter().find(|made| made.name == known.made.name)
            else {
                say_unknown("existence", &known.made.name);
                continue;
            };
            let Existence { seed, false_positive_rate, first_id, .. } = known.made;
            let made = Existence { seed, false_positive_rate, first_id, ..made.clone() };
            *known = ExistenceEntry::new(known.number, &made);
        }
        // Spaces and fields may have been altered, so default views and actions use only those that
        // exist.
        let (counters, existences) = (next.counters(), next.existences());
        let is_default =
            |view: &View| defaults::is_view(&options.counter, &options.existence, view);
        let views = options.view.iter().cloned().map(|view| match is_default(&view) {
            true => defaults::without_missing(view, &counters, &existences),
            false => Some(view),
        });
        next.view = views.flatten().collect();
        let is_there = |action: &&Action| {
            !defaults::is_action(action) || defaults::fits(action, &counters, &existences)
        };
        next.action = options.action.iter().filter(is_there).cloned().collect();
        next
    }

    /// Returns the counter spaces in the configuration's form.
    pub fn counters(&self) -> Vec<Counter> {
        self.counter.iter().map(|known| known.made.clone()).collect()
    }

    /// Returns the existence spaces in the configuration's form.
    pub fn existences(&self) -> Vec<Existence> {
        self.existence.iter().map(|known| known.made.clone()).collect()
    }

    /// Checks that spaces, views and actions are consistent. The error describes the first
    /// inconsistency.
    pub fn check(&self) -> Result<(), String> {
        let (counter, existence) = (&self.counters(), &self.existences());
        let lists = SchemaLists { counter, existence, view: &self.view, action: &self.action };
        lists.check((&|_| false, &|_| false))
    }

    /// Returns the old and new names of the spaces renamed since `before`.
    pub fn renamed_since(&self, before: &Catalogue) -> Vec<(String, String)> {
        let names = |catalogue: &Catalogue| -> Vec<(u32, String)> {
            let counters = catalogue.counter.iter().map(|known| (known.number, &known.made.name));
            let existences = catalogue.existence.iter();
            let existences = existences.map(|known| (known.number, &known.made.name));
            counters.chain(existences).map(|(number, name)| (number, name.clone())).collect()
        };
        let before = names(before);
        let was = |number| before.iter().find(|(other, _)| *other == number);
        let now = names(self).into_iter();
        now.filter_map(|(number, name)| Some((was(number)?.1.clone(), name)))
            .filter(|(was, name)| was != name)
            .collect()
    }

    /// Replaces the lists of a configuration by those of this catalogue. A new folder with this
    /// configuration gets the same spaces, views and actions, but new seeds unless the
    /// configuration sets them.
    pub fn describe(&self, options: Described<'_>) {
        let mut counters = self.counters();
        for made in &mut counters {
            let written = options.counter.iter().find(|old| old.name == made.name);
            made.fields = match written.filter(|old| is_same(&old.fields, &made.fields)) {
                Some(old) => old.fields.clone(),
                None => living(&made.fields).unwrap_or_default(),
            };
        }
        let mut existences = self.existences();
        for made in &mut existences {
            let written = options.existence.iter().find(|old| old.name == made.name);
            made.seed = written.map_or(0, |old| old.seed);
        }
        *options.counter = counters;
        *options.existence = existences;
        *options.view = self.view.clone();
        *options.action = self.action.clone();
    }

    /// Returns the differences between a configuration and this catalogue, one per line. `lists`
    /// contains the names of the lists in the configuration file.
    pub fn differences(&self, options: &Options, lists: &[String]) -> Vec<String> {
        let mut true_ones = options.clone();
        self.describe(Described {
            counter: &mut true_ones.counter,
            existence: &mut true_ones.existence,
            view: &mut true_ones.view,
            action: &mut true_ones.action,
        });
        let mut said = Vec::new();
        let has = |list: &str| lists.iter().any(|name| name == list);
        if has("counter") {
            differ("counter", "space", &options.counter, &true_ones.counter, &mut said);
        }
        if has("existence") {
            differ("existence", "space", &options.existence, &true_ones.existence, &mut said);
        }
        if has("view") {
            differ("view", "", &options.view, &true_ones.view, &mut said);
        }
        if has("action") {
            differ("action", "", &options.action, &true_ones.action, &mut said);
        }
        said
    }

    /// Encodes the payload of a record.
    pub fn encode(&self) -> Vec<u8> {
        // A struct of strings and numbers can always be encoded as TOML.
        let table = |entry: Option<Table>| entry.unwrap_or_default();
        let mut all = Table::new();
        if self.version > 0 {
            all.insert("version".to_owned(), Value::Integer(self.version.cast_signed()));
            all.insert("last".to_owned(), Value::Integer(self.last.into()));
        }
        let counters = self.counter.iter().map(|known| {
            let mut entry = table(Table::try_from(&known.made).ok());
            entry.insert("number".to_owned(), Value::Integer(known.number.into()));
            if known.horizon > 0 {
                let digits = format!("{:016x}", known.horizon);
                entry.insert("horizon".to_owned(), Value::String(digits));
            }
            Value::Table(entry)
        });
        all.insert("counter".to_owned(), Value::Array(counters.collect()));
        let existences = self.existence.iter().map(|known| {
            let made = Existence { seed: 0, first_id: 0, ..known.made.clone() };
            let mut entry = table(Table::try_from(&made).ok());
            entry.insert("number".to_owned(), Value::Integer(known.number.into()));
            for (key, number) in [("seed", known.made.seed), ("first_id", known.made.first_id)] {
                entry.insert(key.to_owned(), Value::String(format!("{number:016x}")));
            }
            Value::Table(entry)
        });
        all.insert("existence".to_owned(), Value::Array(existences.collect()));
        for (key, list) in
            [("view", Value::try_from(&self.view)), ("action", Value::try_from(&self.action))]
        {
            list.into_iter().for_each(|list| _ = all.insert(key.to_owned(), list));
        }
        all.to_string().into_bytes()
    }

    /// Decodes the payload of a record.
    pub fn decode(bytes: &[u8]) -> Result<Catalogue, Unreadable> {
        let text = std::str::from_utf8(bytes).map_err(|e| Unreadable(e.to_string()))?;
        let mut all: Table = toml::from_str(text).map_err(|e| Unreadable(e.to_string()))?;
        let version = take_number(&mut all, "version")?.unwrap_or(0);
        let last = take_number(&mut all, "last")?;
        let mut catalogue = Catalogue { version, ..Catalogue::default() };
        for mut entry in take_list(&mut all, "counter")? {
            let number = take_space(&mut entry)?;
            let horizon = take_digits(&mut entry, "horizon")?.unwrap_or(0);
            catalogue.counter.push(CounterEntry { number, made: read(entry)?, horizon });
        }
        for mut entry in take_list(&mut all, "existence")? {
            let number = take_space(&mut entry)?;
            let seed = take_digits(&mut entry, "seed")?;
            let seed = seed.ok_or_else(|| Unreadable("missing seed of a space".to_owned()))?;
            let first_id = take_digits(&mut entry, "first_id")?.unwrap_or(0);
            let made = Existence { seed, first_id, ..read(entry)? };
            catalogue.existence.push(ExistenceEntry { number, made });
        }
        for entry in take_list(&mut all, "view")? {
            catalogue.view.push(read(entry)?);
        }
        for entry in take_list(&mut all, "action")? {
            catalogue.action.push(read(entry)?);
        }
        if let Some(key) = all.keys().next() {
            return Err(Unreadable(format!("unknown key '{key}'")));
        }
        let numbers = catalogue.counter.iter().map(|known| known.number);
        let numbers = numbers.chain(catalogue.existence.iter().map(|known| known.number));
        let highest = numbers.max().unwrap_or(0);
        let last = last.map(u32::try_from).transpose().unwrap_or(None);
        catalogue.last = last.unwrap_or(0).max(highest);
        Ok(catalogue)
    }
}

/// Lists of a configuration that [`Catalogue::describe`] replaces.
pub struct Described<'a> {
    /// Counter spaces.
    pub counter: &'a mut Vec<Counter>,
    /// Existence spaces.
    pub existence: &'a mut Vec<Existence>,
    /// Views.
    pub view: &'a mut Vec<View>,
    /// Actions.
    pub action: &'a mut Vec<Action>,
}

fn say_unknown(kind: &str, name: &str) {
    tracing::warn!(
        "the data folder has the {kind} space '{name}', but the configuration does not, so it has \
         no key pattern. Set one with TM.SPACE ALTER {name} SET, or drop it with TM.SPACE DROP"
    );
}

/// Appends the differences between a list of the configuration file and the same list of the
/// catalogue.
fn differ<T: Serialize>(list: &str, kind: &str, file: &[T], is: &[T], said: &mut Vec<String>) {
    let tables = |list: &[T]| -> Vec<Table> {
        list.iter().filter_map(|entry| Table::try_from(entry).ok()).collect()
    };
    let name =
        |entry: &Table| entry.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let (what, command) = match kind {
        "" => (list.to_owned(), format!("TM.{}", list.to_ascii_uppercase())),
        kind => (format!("{list} {kind}"), format!("TM.{}", kind.to_ascii_uppercase())),
    };
    let (file, is) = (tables(file), tables(is));
    for entry in &file {
        let Some(truth) = is.iter().find(|other| name(other) == name(entry)) else {
            said.push(format!(
                "ignoring the {what} '{}' in the file, which is missing in the data folder. Use \
                 {command} CREATE to create it, or CONFIG REWRITE to remove it from the file",
                name(entry)
            ));
            continue;
        };
        for (key, value) in entry {
            if truth.get(key) == Some(value) {
                continue;
            }
            if key == "fields"
                && let Some((file, is)) = value.as_str().zip(truth.get(key).and_then(Value::as_str))
            {
                let before = said.len();
                differ_in_fields(&name(entry), file, is, said);
                // If the call appended no message, the fields differ only in their order.
                if said.len() > before {
                    continue;
                }
            }
            let now = truth.get(key).map(Value::to_string).unwrap_or_default();
            said.push(format!(
                "the {what} '{}' has {key} = {now} in the data folder, which takes precedence over \
                 {value} in the file. Use {command} to change it, or CONFIG REWRITE to update the \
                 file",
                name(entry)
            ));
        }
    }
    for truth in is.iter().filter(|truth| !file.iter().any(|entry| name(entry) == name(truth))) {
        said.push(format!(
            "the data folder has the {what} '{}', but the file does not. Use CONFIG REWRITE to add \
             it to the file, or {command} DROP to drop it",
            name(truth)
        ));
    }
}

/// Appends the fields that only one side has or that both sides declare differently.
fn differ_in_fields(space: &str, file: &str, is: &str, said: &mut Vec<String>) {
    let fields = |text: &str| -> BTreeMap<String, String> {
        let fields = text.split([' ', ',']).filter_map(|field| {
            let (name, declared) = field.split_once(':')?;
            Some((name.to_owned(), declared.to_owned()))
        });
        fields.collect()
    };
    let (file, is) = (fields(file), fields(is));
    let shown = |declared: Option<&String>| declared.map_or("none", String::as_str).to_owned();
    for name in file.keys().chain(is.keys().filter(|name| !file.contains_key(*name))) {
        if file.get(name) != is.get(name) {
            said.push(format!(
                "the field '{name}' of the counter space '{space}' is {} in the data folder, which \
                 takes precedence over {} in the file. Use TM.SPACE ALTER {space} to change it, or \
                 CONFIG REWRITE to update the file",
                shown(is.get(name)),
                shown(file.get(name))
            ));
        }
    }
}

fn read<T: DeserializeOwned>(entry: Table) -> Result<T, Unreadable> {
    entry.try_into().map_err(|e: toml::de::Error| Unreadable(e.to_string()))
}

fn take_list(all: &mut Table, key: &str) -> Result<Vec<Table>, Unreadable> {
    let list = all.remove(key).unwrap_or(Value::Array(Vec::new()));
    list.try_into().map_err(|e| Unreadable(format!("{key}: {e}")))
}

fn take_number(all: &mut Table, key: &str) -> Result<Option<u64>, Unreadable> {
    let number = all.remove(key).map(Value::try_into::<u64>).transpose();
    number.map_err(|e| Unreadable(format!("{key}: {e}")))
}

fn take_space(entry: &mut Table) -> Result<u32, Unreadable> {
    let number = take_number(entry, "number")?.and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| Unreadable("missing number of a space".to_owned()))
}

fn take_digits(entry: &mut Table, key: &str) -> Result<Option<u64>, Unreadable> {
    let Some(value) = entry.remove(key) else { return Ok(None) };
    let digits = value.as_str().and_then(|text| u64::from_str_radix(text, 16).ok());
    digits.map(Some).ok_or_else(|| Unreadable(format!("{key}: expected 16 hexadecimal digits")))
}

#[cfg(test)]
mod tests;
