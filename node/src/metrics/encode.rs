//! Writes metrics and histograms with their labels to the Prometheus encoder.

use super::metric::{Described, Metric, MetricKind, Unit, Value};
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit as Suffix;
use std::fmt::Result;

pub(super) trait Labels {
    /// Returns a label in addition to the label of the metric.
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

/// Writes each metric for all samples before the next metric, so that the samples of a family are
/// adjacent.
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
            MetricKind::Counter => MetricType::Counter,
            MetricKind::Gauge | MetricKind::Histogram => MetricType::Gauge,
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

fn write_value(kind: MetricKind, value: Value, out: &mut MetricEncoder<'_>) -> Result {
    match (kind, value) {
        (MetricKind::Counter, Value::Int(value)) => {
            out.encode_counter::<NoLabelSet, _, u64>(&value, None)
        }
        (MetricKind::Counter, value) => {
            out.encode_counter::<NoLabelSet, _, u64>(&value.as_f64(), None)
        }
        (_, Value::Int(value)) => out.encode_gauge(&value),
        (_, value) => out.encode_gauge(&value.as_f64()),
    }
}

/// A histogram of durations, in seconds.
pub(super) struct Durations {
    pub(super) sum: f64,
    /// Buckets of the histogram: the upper bound, and the number of durations between the previous
    /// bound and this bound.
    pub(super) buckets: Vec<(f64, u64)>,
}

pub(super) struct Distribution {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
}

impl Distribution {
    pub(super) fn describe(&self) -> Described {
        Described {
            name: format!("{}_seconds", self.name),
            labels: String::new(),
            kind: MetricKind::Histogram,
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
            let count = durations.buckets.iter().map(|class| class.1).sum();
            let (sum, buckets) = (durations.sum, &durations.buckets);
            match labels.label() {
                None => out.encode_histogram::<NoLabelSet>(sum, count, buckets, None)?,
                Some(label) => {
                    let labels = [label];
                    out.encode_family(&labels)?
                        .encode_histogram::<NoLabelSet>(sum, count, buckets, None)?;
                }
            }
        }
        Ok(())
    }
}
