//! Metrics by event source. INFO has one line per source.

use super::encode::write_all;
use super::metric::MetricKind::{Counter, Gauge};
use super::metric::{Metric, Value};
use crate::roles::node::Node;
use crate::runtime::ingest::{IngestSource, SourceState};
use prometheus_client::encoding::DescriptorEncoder;
use std::sync::atomic::Ordering::Relaxed;

type SourceMetric = Metric<IngestSource>;

/// Metrics of a source, as in the line `ingest_likes:` of INFO.
pub const SOURCES: &[SourceMetric] = &[
    SourceMetric::new(
        "",
        Gauge,
        "tidemark_ingest_running",
        "1 while events of all partitions are being consumed; 0 on a replica.",
        |s| {
            (s.ingest_progress().state == SourceState::Running && !s.partitions.lock().is_empty())
                .into()
        },
    ),
    SourceMetric::new(
        "lag",
        Gauge,
        "tidemark_ingest_lag_messages",
        "Consumer lag in messages, as reported by the broker.",
        |s| s.ingest_progress().lag.map_or(Value::Float(f64::NAN, 0), Value::from),
    ),
    SourceMetric::new(
        "events_per_s",
        Gauge,
        "tidemark_ingest_rate",
        "Events consumed in the last second.",
        |s| s.rate.load(Relaxed).into(),
    ),
    SourceMetric::new("events", Counter, "tidemark_ingest_events", "Events consumed.", |s| {
        s.events.load(Relaxed).into()
    }),
    SourceMetric::new("messages", Counter, "tidemark_ingest_messages", "Messages read.", |s| {
        s.messages.load(Relaxed).into()
    }),
    SourceMetric::new(
        "repeated",
        Counter,
        "tidemark_ingest_repeated",
        "Events without effect: the action was already done or undone.",
        |s| s.repeated.load(Relaxed).into(),
    ),
    SourceMetric::new(
        "unknown",
        Counter,
        "tidemark_ingest_unknown",
        "Events with an action on an id below the horizon.",
        |s| s.unknown.load(Relaxed).into(),
    ),
    SourceMetric::new(
        "poison",
        Counter,
        "tidemark_ingest_poison",
        "Events that could not be applied (dead letters).",
        |s| s.poison.load(Relaxed).into(),
    ),
    SourceMetric::new(
        "poison_dropped",
        Counter,
        "tidemark_ingest_poison_dropped",
        "Dead letters lost because their file is full or not writable.",
        |s| s.poison_dropped.load(Relaxed).into(),
    ),
    SourceMetric::new(
        "gaps",
        Counter,
        "tidemark_ingest_gaps",
        "Times the broker deleted messages before they were read.",
        |s| s.gaps.load(Relaxed).into(),
    ),
    SourceMetric::new(
        "gap_messages",
        Counter,
        "tidemark_ingest_gap_messages",
        "Messages that the broker deleted before they were read, as far as known.",
        |s| s.gap_messages.load(Relaxed).into(),
    ),
    SourceMetric::new(
        "reconnects",
        Counter,
        "tidemark_ingest_reconnects",
        "Times a reader was reopened after a failure.",
        |s| s.reconnects.load(Relaxed).into(),
    ),
];

pub(super) fn write(node: &Node, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
    let sources = node.ingest.sources.iter();
    let sources: Vec<_> =
        sources.map(|source| (("source", source.config.name.as_str()), &**source)).collect();
    write_all(SOURCES, encoder, &sources)
}
