//! Metrics of a node. Each metric is declared once, with its name, unit, help, and the field of
//! INFO with the same value.
//!
//! INFO prints fields from these declarations where possible, and `/metrics` of the admin port
//! encodes all metrics. Both read existing counters on demand, so a metric costs nothing until it
//! is requested.

mod audits;
mod cold;
mod commands;
mod encode;
mod groups;
mod ingest;
mod metric;
mod persistence;
mod replication;
mod sample;
mod server;
mod spaces;
mod stats;
mod text;

pub use audits::AUDITS;
pub use cold::COLD;
pub use ingest::SOURCES;
pub use metric::{Described, Metric, MetricKind, lines, pairs};
pub use persistence::PERSISTENCE;
pub use sample::{CONNECTION_BYTES, Sample, buffer_bytes};
pub use server::CLIENTS;
pub use spaces::{COUNTER_SPACES, EXISTENCE_SPACES, LEDGERS};
pub use stats::STATS;
pub use text::{Format, encode};

use metric::Value;

/// Returns the values of all metrics that are not per space, command or replica, by INFO field. A
/// metric without a field appears under its name and label in `/metrics`.
pub fn values(sample: &Sample) -> impl Iterator<Item = (String, serde_json::Value)> {
    groups::GROUPS.iter().copied().flatten().map(|metric| {
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

/// Returns all metrics, in the order of `/metrics`.
pub fn all() -> Vec<Described> {
    fn describe_all<S: ?Sized>(metrics: &[Metric<S>], labels: &str) -> Vec<Described> {
        metrics.iter().map(|metric| metric.describe(labels)).collect()
    }
    let mut all: Vec<Described> =
        groups::GROUPS.iter().flat_map(|group| describe_all(group, "")).collect();
    all.extend(groups::HISTOGRAMS.iter().map(|(histogram, _)| histogram.describe()));
    all.extend(describe_all(COUNTER_SPACES, "space=\"...\""));
    all.extend(describe_all(EXISTENCE_SPACES, "space=\"...\""));
    all.extend(describe_all(LEDGERS, "space=\"...\""));
    all.extend(describe_all(AUDITS, "action=\"...\""));
    all.extend(describe_all(SOURCES, "source=\"...\""));
    all.extend(describe_all(commands::COMMANDS, "command=\"...\""));
    all.extend([commands::DURATION.describe()]);
    all.extend(describe_all(&commands::ERRORS, "error=\"...\""));
    all.extend(describe_all(
        &[replication::REPLICA_LAG, replication::REPLICA_HEARD],
        "replica=\"...\"",
    ));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    #[test]
    fn names_are_distinct_and_follow_the_conventions_of_prometheus() {
        let mut seen = BTreeSet::new();
        for metric in all() {
            assert!(seen.insert((metric.name.clone(), metric.labels.clone())), "{metric:?}");
            let (name, is_counter) = (&metric.name, metric.kind == MetricKind::Counter);
            assert_eq!(name.ends_with("_total"), is_counter, "{name}");
            assert!(name.starts_with("tidemark_") || name.starts_with("process_"), "{name}");
            assert!(metric.help.ends_with('.') && !metric.help.contains('\n'), "{name}");
        }
    }

    /// Compares docs/metrics.md with the declarations; `TIDEMARK_PRINT=1` writes the file.
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
