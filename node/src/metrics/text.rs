//! The text of `/metrics`, through the Prometheus project's own encoder.

use super::{Described, Kind, Metric, Unit, Value, commands, ingest, node, spaces};
use crate::roles::node::Node;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as Suffix};
use std::fmt::{self, Result};
use std::sync::Arc;

/// The two text formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus's own, version 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// What a client gets that accepts these media types: OpenMetrics if it names that.
    pub fn accepted(accept: &str) -> Format {
        let names_it = accept.split(',').any(|media| {
            let kind = media.split(';').next().unwrap_or_default();
            kind.trim().eq_ignore_ascii_case("application/openmetrics-text")
        });
        if names_it { Format::OpenMetrics } else { Format::Prometheus }
    }

    /// The header that names the format.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// All metrics of a node.
pub fn encode(node: Arc<Node>, format: Format) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(All(node)));
    let mut text = String::with_capacity(64 << 10);
    let written = match format {
        Format::Prometheus => {
            prometheus_client::encoding::prometheus_text::encode(&mut text, &registry)
        }
        Format::OpenMetrics => prometheus_client::encoding::text::encode(&mut text, &registry),
    };
    written.expect("writing to a string does not fail");
    text
}

/// The collector of one scrape.
struct All(Arc<Node>);

impl fmt::Debug for All {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> Result {
        f.write_str("All")
    }
}

impl Collector for All {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result {
        let sample = node::Sample::new(self.0.clone());
        for group in node::GROUPS {
            write_all(group, &mut encoder, &[((), &sample)])?;
        }
        for histogram in node::HISTOGRAMS {
            histogram.write(&mut encoder, &[((), histogram.read(&sample))])?;
        }
        node::write_replicas(&sample, &mut encoder)?;
        spaces::write(&self.0, &mut encoder)?;
        ingest::write(&self.0, &mut encoder)?;
        commands::write(&self.0, &mut encoder)
    }
}

/// The labels of one sample.
pub(super) trait Labels {
    /// The label that is not a metric's own.
    fn label(&self) -> Option<(&'static str, &str)>;
}

impl Labels for () {
    fn label(&self) -> Option<(&'static str, &str)> {
        None
    }
}

impl Labels for (&'static str, &str) {
    fn label(&self) -> Option<(&'static str, &str)> {
        Some(*self)
    }
}

fn suffix_of(unit: Unit) -> Option<Suffix> {
    match unit {
        Unit::None => None,
        Unit::Bytes => Some(Suffix::Bytes),
        Unit::Seconds => Some(Suffix::Seconds),
    }
}

/// Writes metrics, each for all samples: a family's samples stand together.
pub(super) fn write_all<S: ?Sized, L: Labels>(
    metrics: &[Metric<S>],
    encoder: &mut DescriptorEncoder<'_>,
    samples: &[(L, &S)],
) -> Result {
    if samples.is_empty() {
        return Ok(());
    }
    for family in metrics.chunk_by(|a, b| a.name == b.name) {
        let unit = suffix_of(family[0].unit);
        let kind = match family[0].kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge | Kind::Histogram => MetricType::Gauge,
        };
        let mut out =
            encoder.encode_descriptor(family[0].name, family[0].help, unit.as_ref(), kind)?;
        for (labels, sample) in samples {
            for metric in family {
                let labels: Vec<(&str, &str)> =
                    labels.label().into_iter().chain(metric.label).collect();
                if labels.is_empty() {
                    write_value(metric.kind, metric.exposed(sample), &mut out)?;
                } else {
                    let labels = &labels[..];
                    write_value(
                        metric.kind,
                        metric.exposed(sample),
                        &mut out.encode_family(&labels)?,
                    )?;
                }
            }
        }
    }
    Ok(())
}

fn write_value(kind: Kind, value: Value, out: &mut MetricEncoder<'_>) -> Result {
    match (kind, value) {
        (Kind::Counter, Value::Int(value)) => {
            out.encode_counter::<NoLabelSet, _, u64>(&value, None)
        }
        (Kind::Counter, value) => out.encode_counter::<NoLabelSet, _, u64>(&value.as_f64(), None),
        (_, Value::Int(value)) => out.encode_gauge(&value),
        (_, value) => out.encode_gauge(&value.as_f64()),
    }
}

/// Durations: how many took no longer than each bound, in seconds.
pub(super) struct Durations {
    /// Seconds of all of them.
    pub(super) sum: f64,
    /// Upper bound, and how many lie between the one before and it.
    pub(super) classes: Vec<(f64, u64)>,
}

/// A histogram of durations.
pub(super) struct Distribution {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) read: fn(&node::Sample) -> Durations,
}

impl Distribution {
    fn read(&self, sample: &node::Sample) -> Durations {
        (self.read)(sample)
    }

    pub(super) fn describe(&self) -> Described {
        Described {
            name: format!("{}_seconds", self.name),
            labels: String::new(),
            kind: Kind::Histogram,
            help: self.help,
            field: "",
            per_unit: 1.0,
        }
    }

    pub(super) fn write<L: Labels>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        samples: &[(L, Durations)],
    ) -> Result {
        if samples.is_empty() {
            return Ok(());
        }
        let kind = MetricType::Histogram;
        let mut out =
            encoder.encode_descriptor(self.name, self.help, Some(&Suffix::Seconds), kind)?;
        for (labels, durations) in samples {
            let count = durations.classes.iter().map(|class| class.1).sum();
            let (sum, classes) = (durations.sum, &durations.classes);
            match labels.label() {
                None => out.encode_histogram::<NoLabelSet>(sum, count, classes, None)?,
                Some(label) => {
                    let labels = [label];
                    out.encode_family(&labels)?
                        .encode_histogram::<NoLabelSet>(sum, count, classes, None)?;
                }
            }
        }
        Ok(())
    }
}
