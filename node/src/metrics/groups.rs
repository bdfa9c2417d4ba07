//! Groups of metrics that are not per space, source, command or replica, in the order of INFO's
//! sections.

use super::cold::COLD;
use super::encode::{Distribution, Durations};
use super::persistence::PERSISTENCE;
use super::replication::REPLICATION;
use super::sample::{Sample, SampleMetric};
use super::server::{CLIENTS, MEMORY, SERVER};
use super::stats::STATS;
use std::sync::atomic::Ordering::Relaxed;

pub(super) const GROUPS: &[&[SampleMetric]] =
    &[SERVER, CLIENTS, MEMORY, PERSISTENCE, STATS, REPLICATION, COLD];

/// Returns a histogram whose buckets have powers of two as upper bounds, in microseconds.
fn by_powers_of_two(counts: impl Iterator<Item = u64>, sum: f64) -> Durations {
    let mut buckets: Vec<(f64, u64)> =
        counts.enumerate().map(|(bit, count)| ((1u64 << bit) as f64 / 1e6, count)).collect();
    // The last bucket has no upper bound.
    if let Some(last) = buckets.last_mut() {
        last.0 = f64::INFINITY;
    }
    Durations { sum, buckets }
}

type ReadDurations = fn(&Sample) -> Durations;

pub(super) const HISTOGRAMS: &[(Distribution, ReadDurations)] = &[
    (Distribution { name: "tidemark_log_sync_duration", help: "Duration of log fsyncs." }, |s| {
        let commits = s.commits();
        by_powers_of_two(commits.syncs_by_us.into_iter(), commits.sync_us as f64 / 1e6)
    }),
    (
        Distribution {
            name: "tidemark_cold_read_duration",
            help: "Duration of cold reads, from the request until the row is available.",
        },
        |s| match s.node.loaded() {
            None => by_powers_of_two(std::iter::empty(), 0.0),
            Some(engines) => {
                let figures = &engines.cold.figures;
                let sum = figures.read_ns.load(Relaxed) as f64 / 1e9;
                by_powers_of_two(figures.reads_by_us().into_iter(), sum)
            }
        },
    ),
];
