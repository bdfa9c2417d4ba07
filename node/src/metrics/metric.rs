//! Declaration of a metric: name, unit, help, field of INFO, and the function that reads its value.

use std::fmt::Write as _;

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Increases until a restart or CONFIG RESETSTAT. The name of a counter in `/metrics` ends in
    /// `_total`.
    Counter,
    /// Increases and decreases over time.
    Gauge,
    /// Counts by upper bound, with a sum and a total count.
    Histogram,
}

/// A value, as INFO prints it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    Int(u64),
    /// A number, printed with the given number of decimals.
    Float(f64, usize),
    /// A number, printed in its shortest form.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// No unit: a plain number.
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

/// A metric, read from an `S`.
pub struct Metric<S: ?Sized> {
    /// Field of INFO; empty if INFO has none.
    pub(crate) field: &'static str,
    /// Name in `/metrics`, without the suffixes of unit and kind.
    pub(super) name: &'static str,
    /// Label that distinguishes adjacent metrics with the same name.
    pub(super) label: Option<(&'static str, &'static str)>,
    pub(super) unit: Unit,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    /// Number of units of the INFO field in one `unit`.
    pub(super) per_unit: f64,
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

    /// Sets the unit to seconds. INFO shows microseconds.
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

    /// Returns the value in `unit`.
    pub(super) fn exposed(&self, sample: &S) -> Value {
        match self.value(sample) {
            Value::Int(value) if self.per_unit == 1.0 => Value::Int(value),
            value => Value::Rate(value.as_f64() / self.per_unit),
        }
    }

    pub(super) fn full_name(&self) -> String {
        let total = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{}{total}", self.name, self.unit.suffix())
    }

    pub(super) fn describe(&self, labels: &str) -> Described {
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

/// Description of a metric, for docs/metrics.md.
#[derive(Clone, Debug)]
pub struct Described {
    /// Name of the metric in `/metrics`.
    pub name: String,
    /// Labels; `...` is a placeholder for a configured name.
    pub labels: String,
    /// Kind of the metric.
    pub kind: Kind,
    /// Meaning of the metric.
    pub help: &'static str,
    /// Field of INFO with the same value; empty if there is none.
    pub field: &'static str,
    /// Number of units of the INFO field in one unit of the metric.
    pub per_unit: f64,
}

/// Appends `name:value` lines of INFO.
pub fn lines<S: ?Sized>(metrics: &[Metric<S>], sample: &S, out: &mut String) {
    for metric in metrics.iter().filter(|metric| !metric.field.is_empty()) {
        let _ = write!(out, "{}:{}\r\n", metric.field, metric.value(sample));
    }
}

/// Appends comma-separated `name=value` pairs, for one line of INFO.
pub fn pairs<S: ?Sized>(metrics: &[Metric<S>], sample: &S, out: &mut String) {
    let mut before = "";
    for metric in metrics.iter().filter(|metric| !metric.field.is_empty()) {
        let _ = write!(out, "{before}{}={}", metric.field, metric.value(sample));
        before = ",";
    }
}
