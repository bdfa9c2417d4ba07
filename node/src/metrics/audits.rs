//! Metrics of the last complete audit of each action. INFO has one line per action.

use super::encode::write_all;
use super::metric::Metric;
use super::metric::MetricKind::Gauge;
use crate::roles::audit_state::AuditReport;
use crate::roles::node::Node;
use prometheus_client::encoding::DescriptorEncoder;

type AuditMetric = Metric<AuditReport>;

/// Metrics of an audit, as in the line `audit_like:` of INFO.
pub const AUDITS: &[AuditMetric] = &[
    AuditMetric::new(
        "ids",
        Gauge,
        "tidemark_audit_ids",
        "Ids compared by the last complete audit of the action.",
        |a| a.ids.into(),
    ),
    AuditMetric::new("pairs", Gauge, "tidemark_audit_pairs", "Members of the compared ids.", |a| {
        a.pairs.into()
    }),
    AuditMetric::new(
        "differing",
        Gauge,
        "tidemark_audit_differing_counters",
        "Counters that differed from the number of members.",
        |a| a.differing.into(),
    ),
    AuditMetric::new(
        "drift",
        Gauge,
        "tidemark_audit_drift",
        "Sum of the absolute differences between counters and numbers of members.",
        |a| a.drift.into(),
    ),
    AuditMetric::new(
        "repaired",
        Gauge,
        "tidemark_audit_repaired_counters",
        "Counters repaired by the audit.",
        |a| a.repaired.into(),
    ),
    AuditMetric::new(
        "unreadable",
        Gauge,
        "tidemark_audit_unreadable_ids",
        "Ids that could not be compared because of a damaged block on disk.",
        |a| a.unreadable.into(),
    ),
    AuditMetric::new(
        "ended",
        Gauge,
        "tidemark_audit_last_end_timestamp",
        "Unix time at which the last complete audit ended.",
        |a| a.ended_s.into(),
    )
    .seconds(),
];

pub(super) fn write(node: &Node, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
    let reports = node.audits.complete();
    let reports: Vec<_> =
        reports.iter().map(|report| (("action", report.request.action.as_str()), report)).collect();
    write_all(AUDITS, encoder, &reports)
}
