//! Text of `/metrics`, written by the encoder of the Prometheus project.

use super::encode::write_all;
use super::sample::Sample;
use super::{audits, commands, groups, ingest, replication, spaces};
use crate::roles::node::Node;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use std::fmt::{self, Result};
use std::sync::Arc;

/// Format of the text of `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus's own format, version 0.0.4.
    Prometheus,
    /// The format OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// Returns the format for an Accept header: OpenMetrics if the header names it.
    pub fn accepted(accept: &str) -> Format {
        let names_it = accept.split(',').any(|media| {
            let kind = media.split(';').next().unwrap_or_default();
            kind.trim().eq_ignore_ascii_case("application/openmetrics-text")
        });
        if names_it { Format::OpenMetrics } else { Format::Prometheus }
    }

    /// Returns the Content-Type header of the format.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Encodes all metrics of a node.
pub fn encode(node: Arc<Node>, format: Format) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(NodeCollector(node)));
    let mut text = String::with_capacity(64 << 10);
    let written = match format {
        Format::Prometheus => {
            prometheus_client::encoding::prometheus_text::encode(&mut text, &registry)
        }
        Format::OpenMetrics => prometheus_client::encoding::text::encode(&mut text, &registry),
    };
    written.expect("writing to a string cannot fail");
    text
}

struct NodeCollector(Arc<Node>);

impl fmt::Debug for NodeCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> Result {
        f.write_str("All")
    }
}

impl Collector for NodeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result {
        let sample = Sample::new(self.0.clone());
        for group in groups::GROUPS {
            write_all(group, &mut encoder, &[((), &sample)])?;
        }
        for (histogram, read) in groups::HISTOGRAMS {
            histogram.write(&mut encoder, &[((), read(&sample))])?;
        }
        replication::write_replicas(&sample, &mut encoder)?;
        spaces::write(&self.0, &mut encoder)?;
        audits::write(&self.0, &mut encoder)?;
        ingest::write(&self.0, &mut encoder)?;
        commands::write(&self.0, &mut encoder)
    }
}
