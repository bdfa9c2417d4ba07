//! Metrics of INFO's section Replication, and of each replica.

use super::encode::write_all;
use super::metric::MetricKind::{Counter, Gauge};
use super::metric::{Metric, Value};
use super::sample::{Sample, SampleMetric, field, metric_without_field};
use crate::roles::{ConnectedReplica, LinkState};
use prometheus_client::encoding::DescriptorEncoder;
use std::sync::atomic::Ordering::Relaxed;

pub(super) const REPLICATION: &[SampleMetric] = &[
    metric_without_field(
        Gauge,
        "tidemark_replication_is_master",
        "1 on a master, 0 on a replica.",
        |s| s.node.replication.is_master().into(),
    ),
    metric_without_field(
        Gauge,
        "tidemark_replication_link_up",
        "1 if the link to the master is up; always 1 on a master.",
        |s| s.link().is_none_or(|link| link.state == LinkState::Connected).into(),
    ),
    metric_without_field(
        Gauge,
        "tidemark_replication_lag",
        "Lag behind the master; 0 on a master.",
        |s| {
            let shown = s.node.durability.acknowledged_offset();
            s.link().map_or(0, |link| link.master_end.saturating_sub(shown)).into()
        },
    )
    .bytes(),
    metric_without_field(
        Gauge,
        "tidemark_replication_link_silence",
        "Time since the last message from the master; 0 on a master.",
        |s| Value::Rate(s.link().map_or(0.0, |link| link.heard.elapsed().as_secs_f64())),
    )
    .seconds(),
    field("connected_slaves", Gauge, "tidemark_replicas", "Connected replicas.", |s| {
        s.node.replication.feeds.reachable().len().into()
    }),
    field(
        "master_repl_offset",
        Gauge,
        "tidemark_replication_position",
        "Offset up to which replicas can read the log.",
        |s| s.node.durability.acknowledged_offset().into(),
    )
    .bytes(),
    field(
        "repl_refusing_replicas",
        Gauge,
        "tidemark_replication_refusing_replicas",
        "Replicas that have diverged and refuse to follow this master.",
        |s| s.node.replication.feeds.refusing().into(),
    ),
    field(
        "repl_fenced",
        Gauge,
        "tidemark_replication_fenced",
        "1 if this node is fenced: it rejects writes because another node may be the master.",
        |s| s.node.replication.is_fenced().into(),
    ),
    metric_without_field(
        Counter,
        "tidemark_cluster_peer_requests",
        "Requests to other nodes for rows of pages.",
        |s| s.node.cluster.asked.load(Relaxed).into(),
    ),
    metric_without_field(
        Counter,
        "tidemark_cluster_peer_requests_failed",
        "Failed requests to other nodes for rows of pages: timeouts and connection errors.",
        |s| s.node.cluster.unanswered.load(Relaxed).into(),
    ),
    metric_without_field(
        Gauge,
        "tidemark_cluster_nodes_failed",
        "Nodes of the topology that do not reply.",
        |s| (s.node.cluster_failed() as u64).into(),
    ),
    field(
        "repl_full_syncs",
        Counter,
        "tidemark_replication_full_syncs",
        "Full syncs received by this replica.",
        |s| s.node.replication.full_syncs.load(Relaxed).into(),
    ),
];

pub(super) struct Replica {
    fed: ConnectedReplica,
    end: u64,
}

pub(super) const REPLICA_LAG: Metric<Replica> =
    Metric::new("", Gauge, "tidemark_replica_lag", "Lag of each replica.", |r: &Replica| {
        r.end.saturating_sub(r.fed.written).into()
    })
    .bytes();
pub(super) const REPLICA_HEARD: Metric<Replica> = Metric::new(
    "",
    Gauge,
    "tidemark_replica_silence",
    "Time since the last message from each replica.",
    |r: &Replica| Value::Rate(r.fed.heard.elapsed().as_secs_f64()),
)
.seconds();

/// Writes the metrics of each replica, labelled with its address.
pub(super) fn write_replicas(
    sample: &Sample,
    encoder: &mut DescriptorEncoder<'_>,
) -> std::fmt::Result {
    let end = sample.node.durability.acknowledged_offset();
    let feeds = sample.node.replication.feeds.reachable();
    let replicas: Vec<(String, Replica)> = feeds
        .into_iter()
        .map(|fed| (format!("{}:{}", fed.ip, fed.port), Replica { fed, end }))
        .collect();
    let samples: Vec<_> =
        replicas.iter().map(|(name, replica)| (("replica", name.as_str()), replica)).collect();
    write_all(&[REPLICA_LAG, REPLICA_HEARD], encoder, &samples)
}
