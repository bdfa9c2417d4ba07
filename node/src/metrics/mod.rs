//! What is measured: each metric is declared once, with its name, unit, help, and the field of INFO
//! that has the same value.
//!
//! INFO prints its fields from these declarations where it can; `/metrics` of the admin port
//! encodes all of them. Both read the cells that the server keeps anyway, at the moment of the
//! request: a metric costs nothing until it is asked for.

mod commands;
mod ingest;
mod node;
mod spaces;
mod text;

pub use ingest::SOURCES;
pub use node::{CLIENTS, COLD, CONNECTION_BYTES, PERSISTENCE, STATS, Sample, buffer_bytes};
pub use spaces::{COUNTER_SPACES, EXISTENCE_SPACES, LEDGERS};
pub use text::{Format, encode};

use std::fmt::Write as _;

/// Whether a value only rises, until a restart or CONFIG RESETSTAT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only rises. Its name in `/metrics` ends in `_total`.
    Counter,
    /// It may fall, too.
    Gauge,
    /// Counts by upper bound, a sum and a count.
    Histogram,
}

/// A value, as INFO prints it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    Int(u64),
    /// Printed with so many digits behind the point.
    Float(f64, usize),
    /// Printed as short as it can be.
    Rate(f64),
}

impl Value {
    pub(crate) fn as_f64(self) -> f64 {
        match self {
            Value::Int(value) => value as f64,
            Value::Float(value, _) | Value::Rate(value) => value,
        }
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Value {
        Value::Int(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Value {
        Value::Int(value as u64)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Int(u64::from(value))
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Value::Int(value) => write!(f, "{value}"),
            Value::Float(value, digits) => write!(f, "{value:.digits$}"),
            Value::Rate(value) => write!(f, "{value}"),
        }
    }
}

/// Units of the names in `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A number of things.
    None,
    Bytes,
    Seconds,
}

impl Unit {
    fn suffix(self) -> &'static str {
        match self {
            Unit::None => "",
            Unit::Bytes => "_bytes",
            Unit::Seconds => "_seconds",
        }
    }
}

/// One metric; `S` is what it is read from.
pub struct Metric<S: ?Sized> {
    /// The field of INFO; empty if INFO has none.
    pub(crate) field: &'static str,
    /// The name in `/metrics`, without the suffixes of unit and kind.
    name: &'static str,
    /// Metrics of one name differ in this label, and stand next to each other.
    label: Option<(&'static str, &'static str)>,
    unit: Unit,
    kind: Kind,
    help: &'static str,
    /// So many of INFO's units make one of `unit`.
    per_unit: f64,
    read: fn(&S) -> Value,
}

impl<S: ?Sized> Metric<S> {
    pub(crate) const fn new(
        field: &'static str,
        kind: Kind,
        name: &'static str,
        help: &'static str,
        read: fn(&S) -> Value,
    ) -> Metric<S> {
        let (label, unit, per_unit) = (None, Unit::None, 1.0);
        Metric { field, name, label, unit, kind, help, per_unit, read }
    }

    pub(crate) const fn bytes(mut self) -> Metric<S> {
        self.unit = Unit::Bytes;
        self
    }

    pub(crate) const fn seconds(mut self) -> Metric<S> {
        self.unit = Unit::Seconds;
        self
    }

    /// INFO has it in microseconds.
    pub(crate) const fn microseconds(mut self) -> Metric<S> {
        self.per_unit = 1e6;
        self.seconds()
    }

    pub(crate) const fn label(mut self, key: &'static str, value: &'static str) -> Metric<S> {
        self.label = Some((key, value));
        self
    }

    pub(crate) fn value(&self, sample: &S) -> Value {
        (self.read)(sample)
    }

    /// The value in its unit.
    fn exposed(&self, sample: &S) -> Value {
        match self.value(sample) {
            Value::Int(value) if self.per_unit == 1.0 => Value::Int(value),
            value => Value::Rate(value.as_f64() / self.per_unit),
        }
    }

    /// The name of its samples in `/metrics`.
    fn full_name(&self) -> String {
        let total = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{}{total}", self.name, self.unit.suffix())
    }

    fn describe(&self, labels: &str) -> Described {
        let own = self.label.map(|(key, value)| format!("{key}=\"{value}\""));
        let labels: Vec<&str> = [Some(labels), own.as_deref()]
            .into_iter()
            .flatten()
            .filter(|l| !l.is_empty())
            .collect();
        Described {
            name: self.full_name(),
            labels: labels.join(","),
            kind: self.kind,
            help: self.help,
            field: self.field,
            per_unit: self.per_unit,
        }
    }
}

/// `name:value` lines of INFO.
pub fn lines<S: ?Sized>(metrics: &[Metric<S>], sample: &S, out: &mut String) {
    for metric in metrics.iter().filter(|metric| !metric.field.is_empty()) {
        let _ = write!(out, "{}:{}\r\n", metric.field, metric.value(sample));
    }
}

/// `name=value` pairs of one line of INFO, with commas between them.
pub fn pairs<S: ?Sized>(metrics: &[Metric<S>], sample: &S, out: &mut String) {
    let mut before = "";
    for metric in metrics.iter().filter(|metric| !metric.field.is_empty()) {
        let _ = write!(out, "{before}{}={}", metric.field, metric.value(sample));
        before = ",";
    }
}

/// The values of what is not by space, command or replica: by the field of INFO, or, where INFO has
/// none, by the name in `/metrics` with its label.
pub fn values(sample: &Sample) -> impl Iterator<Item = (String, serde_json::Value)> {
    node::GROUPS.iter().copied().flatten().map(|metric| {
        let name = match (metric.field, metric.label) {
            ("", Some((key, value))) => format!("{}{{{key}=\"{value}\"}}", metric.full_name()),
            ("", None) => metric.full_name(),
            (field, _) => field.to_owned(),
        };
        let value = match metric.value(sample) {
            Value::Int(value) => value.into(),
            value => value.as_f64().into(),
        };
        (name, value)
    })
}

/// What the documentation says of a metric.
#[derive(Clone, Debug)]
pub struct Described {
    /// The name of its samples.
    pub name: String,
    /// Its labels as they are written; `...` stands for a name of the configuration.
    pub labels: String,
    /// See there.
    pub kind: Kind,
    /// What it is.
    pub help: &'static str,
    /// The field of INFO that has the same value; empty if there is none.
    pub field: &'static str,
    /// So many of the units of INFO make one of the metric's.
    pub per_unit: f64,
}

/// All metrics, in the order of `/metrics`.
pub fn all() -> Vec<Described> {
    fn some<S: ?Sized>(metrics: &[Metric<S>], labels: &str) -> Vec<Described> {
        metrics.iter().map(|metric| metric.describe(labels)).collect()
    }
    let histograms = |list: &[text::Distribution]| {
        list.iter().map(text::Distribution::describe).collect::<Vec<_>>()
    };
    let mut all: Vec<Described> = node::GROUPS.iter().flat_map(|group| some(group, "")).collect();
    all.extend(histograms(node::HISTOGRAMS));
    all.extend(some(COUNTER_SPACES, "space=\"...\""));
    all.extend(some(EXISTENCE_SPACES, "space=\"...\""));
    all.extend(some(LEDGERS, "space=\"...\""));
    all.extend(some(SOURCES, "source=\"...\""));
    all.extend(some(commands::COMMANDS, "command=\"...\""));
    all.extend(histograms(&[commands::DURATION]));
    all.extend(some(&commands::ERRORS, "error=\"...\""));
    all.extend(some(&[node::REPLICA_LAG, node::REPLICA_HEARD], "replica=\"...\""));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_distinct_and_follow_the_conventions_of_prometheus() {
        let mut seen = BTreeSet::new();
        for metric in all() {
            assert!(seen.insert((metric.name.clone(), metric.labels.clone())), "{metric:?}");
            let (name, is_counter) = (&metric.name, metric.kind == Kind::Counter);
            assert_eq!(name.ends_with("_total"), is_counter, "{name}");
            assert!(name.starts_with("tidemark_") || name.starts_with("process_"), "{name}");
            assert!(metric.help.ends_with('.') && !metric.help.contains('\n'), "{name}");
        }
    }

    /// docs/metrics.md; `TIDEMARK_PRINT=1` writes it.
    #[test]
    fn the_documentation_lists_every_metric() {
        let mut text = "# Metrics\n\n\
            All metrics of `/metrics` ([admin.md](admin.md)), printed from their declarations by\n\
            `TIDEMARK_PRINT=1 cargo test -p node --lib the_documentation_lists`.\n\
            Where a field of INFO is named, it has the same value.\n\
            Fields that end in `_usec` are in microseconds, their metrics in seconds.\n\n\
            | metric | kind | labels | INFO | meaning |\n|---|---|---|---|---|\n"
            .to_owned();
        for m in all() {
            let code = |word: &str| {
                if word.is_empty() { String::new() } else { format!("`{word}`") }
            };
            let kind = format!("{:?}", m.kind).to_lowercase();
            let _ = writeln!(
                text,
                "| `{}` | {kind} | {} | {} | {} |",
                m.name,
                code(&m.labels),
                code(m.field),
                m.help
            );
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
        if std::env::var_os("TIDEMARK_PRINT").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        assert!(
            std::fs::read_to_string(path).unwrap_or_default() == text,
            "docs/metrics.md is out of date: run this test with TIDEMARK_PRINT=1"
        );
    }
}
