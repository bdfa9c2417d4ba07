//! Metrics by command, and errors by their code.

use super::encode::{Distribution, Durations, write_all};
use super::metric::MetricKind::Counter;
use super::metric::{Metric, Value};
use crate::command::table::with_numbers;
use crate::roles::node::Node;
use crate::runtime::command_stats::Sums;
use prometheus_client::encoding::DescriptorEncoder;

pub(super) const COMMANDS: &[Metric<Sums>] = &[
    Metric::new("", Counter, "tidemark_command_calls", "Calls, by command.", |s: &Sums| {
        s.calls.into()
    }),
    Metric::new(
        "",
        Counter,
        "tidemark_command_rejected_calls",
        "Calls rejected before execution, by command.",
        |s: &Sums| s.rejected.into(),
    ),
    Metric::new(
        "",
        Counter,
        "tidemark_command_failed_calls",
        "Failed calls, by command.",
        |s: &Sums| s.failed.into(),
    ),
];

pub(super) const DURATION: Distribution = Distribution {
    name: "tidemark_command_duration",
    help: "Execution time, by command. For constant-time commands, one call in 64 is timed.",
};

pub(super) const ERRORS: [Metric<u64>; 1] =
    [Metric::new("", Counter, "tidemark_errors", "Error replies, by error code.", |n: &u64| {
        Value::Int(*n)
    })];

/// Writes all commands with non-zero counters, and all errors.
pub(super) fn write(node: &Node, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
    let sums: Vec<(&str, Sums)> = with_numbers()
        .map(|(number, spec)| (spec.name, node.calls.sums(number)))
        .filter(|(_, sums)| !sums.is_all_zero())
        .collect();
    let calls: Vec<_> = sums.iter().map(|(name, sums)| (("command", *name), sums)).collect();
    write_all(COMMANDS, encoder, &calls)?;
    let durations = sums.iter().map(|(name, sums)| {
        let (sum, buckets) = sums.timed_classes();
        (("command", *name), Durations { sum, buckets })
    });
    DURATION.write(encoder, &durations.collect::<Vec<_>>())?;
    let errors = node.calls.errors();
    let errors: Vec<_> =
        errors.iter().map(|(word, count)| (("error", word.as_str()), count)).collect();
    write_all(&ERRORS, encoder, &errors)
}
