//! Metrics by space. INFO has one line per space.

use super::encode::{Labels, write_all};
use super::metric::MetricKind::{Counter, Gauge};
use super::metric::{Metric, Value};
use crate::roles::node::Node;
use dataset::cold::ledger::PairLedger;
use dataset::engines::{CounterSpace, ExistenceSpace};
use prometheus_client::encoding::DescriptorEncoder;
use std::sync::atomic::Ordering::Relaxed;

type CounterMetric = Metric<CounterSpace>;
type ExistenceMetric = Metric<ExistenceSpace>;
type LedgerMetric = Metric<PairLedger>;

/// Returns the fill ratio of the newest table. At 1 the space closes the table and creates a new
/// table.
fn newest(space: &CounterSpace) -> f64 {
    let rows = space.ranges().last().map_or(0, |range| range.rows);
    rows as f64 / space.rows_per_table().max(1) as f64
}

/// Metrics of a counter space, as in the line `counter_post:` of INFO.
pub const COUNTER_SPACES: &[CounterMetric] = &[
    CounterMetric::new(
        "rows",
        Gauge,
        "tidemark_counters_rows",
        "Rows in memory, by counter space.",
        |s| s.rows().into(),
    ),
    CounterMetric::new(
        "memory_bytes",
        Gauge,
        "tidemark_counters_memory",
        "Memory used by the tables, by counter space.",
        |s| s.memory_bytes().into(),
    )
    .bytes(),
    CounterMetric::new(
        "",
        Gauge,
        "tidemark_counters_memory_limit",
        "Current memory limit: a share of server.memory that depends on demand.",
        |s| s.memory_limit_bytes().into(),
    )
    .bytes(),
    CounterMetric::new(
        "tables",
        Gauge,
        "tidemark_counters_tables",
        "Tables in memory, by counter space.",
        |s| s.ranges().len().into(),
    ),
    CounterMetric::new(
        "",
        Gauge,
        "tidemark_counters_newest_fill_ratio",
        "Fill ratio of the newest table; at 1 a new table is created.",
        |s| Value::Rate(newest(s)),
    ),
    CounterMetric::new(
        "",
        Gauge,
        "tidemark_counters_outlier_rows",
        "Rows stored outside the tables (outliers).",
        |s| s.outlier_rows().into(),
    ),
    CounterMetric::new(
        "",
        Gauge,
        "tidemark_counters_cold_rows",
        "Rows in cold files, by counter space.",
        |s| s.cold().rows().into(),
    ),
    CounterMetric::new(
        "",
        Gauge,
        "tidemark_counters_cold_files",
        "Cold files, by counter space.",
        |s| s.cold().files().all().len().into(),
    ),
    CounterMetric::new(
        "",
        Gauge,
        "tidemark_counters_horizon_id",
        "Lowest id that is not retired; 0 if no ids were retired.",
        |s| s.horizon().into(),
    ),
    CounterMetric::new(
        "",
        Gauge,
        "tidemark_counters_cold_end_id",
        "Only ids below this id can have rows on disk; 0 if no row is on disk.",
        |s| s.cold_end().into(),
    ),
];

/// Metrics of an existence space, as in the line `existence_liked:` of INFO.
pub const EXISTENCE_SPACES: &[ExistenceMetric] = &[
    ExistenceMetric::new(
        "pairs",
        Gauge,
        "tidemark_existence_pairs",
        "Set pairs, by existence space.",
        |s| s.pairs().into(),
    ),
    ExistenceMetric::new(
        "memory_bytes",
        Gauge,
        "tidemark_existence_memory",
        "Memory used by the filters, by existence space.",
        |s| s.memory_bytes().into(),
    )
    .bytes(),
    ExistenceMetric::new(
        "",
        Gauge,
        "tidemark_existence_memory_limit",
        "Current memory limit of the filters: a share of server.memory that depends on demand.",
        |s| s.filter_bytes_limit().into(),
    )
    .bytes(),
    ExistenceMetric::new(
        "tables",
        Gauge,
        "tidemark_existence_tables",
        "Tables, by existence space.",
        |s| s.layout().len().into(),
    ),
    ExistenceMetric::new(
        "outlier_pairs",
        Gauge,
        "tidemark_existence_outlier_pairs",
        "Pairs stored outside the tables (outliers).",
        |s| s.outlier_pairs().into(),
    ),
    ExistenceMetric::new(
        "most_revoked",
        Gauge,
        "tidemark_existence_most_deleted_pairs",
        "Largest number of unset pairs in a table (limit: existence.max_unset).",
        |s| s.most_revoked().into(),
    ),
    ExistenceMetric::new(
        "pairs_per_s",
        Gauge,
        "tidemark_existence_pairs_per_second",
        "New pairs per second in the newest table, averaged over about a minute.",
        |s| Value::Float(s.pairs_per_s(), 1),
    ),
    ExistenceMetric::new(
        "recycled_in_s",
        Gauge,
        "tidemark_existence_recycled_in",
        "Time until the oldest table is recycled at the current rate of new pairs; -1 if never.",
        // Tools for Redis expect numbers, so -1 means never.
        |s| Value::Float(s.recycled_in_s().unwrap_or(-1.0), 0),
    )
    .seconds(),
    ExistenceMetric::new(
        "forgotten_ids",
        Gauge,
        "tidemark_existence_forgotten_ids",
        "Ids forgotten by TM.FORGET or DEL (limit: existence.max_forgotten).",
        |s| s.forgotten_ids().into(),
    ),
    ExistenceMetric::new(
        "false_positive_rate",
        Gauge,
        "tidemark_existence_false_positive_configured_ratio",
        "Configured false-positive rate.",
        |s| Value::Rate(s.false_positive_rate()),
    ),
    ExistenceMetric::new(
        "measured_rate",
        Gauge,
        "tidemark_existence_false_positive_measured_ratio",
        "False-positive rate measured by canaries; 0 before the first lookup.",
        |s| Value::Float(s.measured().rate().unwrap_or(0.0), 7),
    ),
    ExistenceMetric::new(
        "measured_at_least",
        Gauge,
        "tidemark_existence_false_positive_measured_lower_ratio",
        "Lower bound of the measured rate; a value above the configured rate is a miss.",
        |s| Value::Float(s.measured().at_least(), 7),
    ),
    ExistenceMetric::new(
        "measured_at_most",
        Gauge,
        "tidemark_existence_false_positive_measured_upper_ratio",
        "Upper bound of the measured rate.",
        |s| Value::Float(s.measured().at_most(), 7),
    ),
    ExistenceMetric::new(
        "canaries",
        Gauge,
        "tidemark_existence_canaries",
        "Number of canary lookups.",
        |s| s.measured().canaries.into(),
    ),
    ExistenceMetric::new(
        "horizon",
        Gauge,
        "tidemark_existence_horizon_id",
        "Lowest id whose flags are known.",
        |s| s.horizon().into(),
    ),
    ExistenceMetric::new(
        "",
        Gauge,
        "tidemark_existence_cold_files",
        "Cold files, by existence space.",
        |s| s.cold().files().len().into(),
    ),
];

/// Metrics of a ledger, as in the line `ledger_liked:` of INFO.
pub const LEDGERS: &[LedgerMetric] = &[
    LedgerMetric::new(
        "asked",
        Counter,
        "tidemark_ledger_asked",
        "Ledger lookups that verify a positive answer of the filter, for writes and EXACT.",
        |l| l.figures.asked.load(Relaxed).into(),
    ),
    LedgerMetric::new(
        "false_positives",
        Counter,
        "tidemark_ledger_false_positives",
        "False positives of the filter found by ledger lookups.",
        |l| l.figures.false_positives.load(Relaxed).into(),
    ),
    LedgerMetric::new(
        "reads",
        Counter,
        "tidemark_ledger_reads",
        "Blocks of 4 KiB read by ledger lookups.",
        |l| l.figures.reads.load(Relaxed).into(),
    ),
    LedgerMetric::new(
        "pairs",
        Gauge,
        "tidemark_ledger_run_pairs",
        "Pairs in ledger runs on disk, including unset ones and duplicates across runs.",
        |l| l.ledger().stats().run_pairs.into(),
    ),
    LedgerMetric::new(
        "waiting",
        Gauge,
        "tidemark_ledger_waiting_pairs",
        "Ledger pairs waiting for a flush; writes fail at 2,097,152 pairs or 128 MiB.",
        |l| l.ledger().memory_pairs().into(),
    ),
    LedgerMetric::new(
        "disk_bytes",
        Gauge,
        "tidemark_ledger_disk",
        "Size of all ledger runs.",
        |l| l.ledger().stats().run_bytes.into(),
    )
    .bytes(),
    LedgerMetric::new(
        "memory_bytes",
        Gauge,
        "tidemark_ledger_memory",
        "Memory used by waiting pairs and by the indexes and filters of runs.",
        |l| l.ledger().memory_bytes().into(),
    )
    .bytes(),
    LedgerMetric::new("ranges", Gauge, "tidemark_ledger_ranges", "Id ranges of the ledger.", |l| {
        l.ledger().stats().ranges.into()
    }),
    LedgerMetric::new(
        "runs",
        Gauge,
        "tidemark_ledger_runs",
        "Ledger runs. A range with more than one run waits for a merge.",
        |l| l.ledger().stats().runs.into(),
    ),
    LedgerMetric::new(
        "most_runs",
        Gauge,
        "tidemark_ledger_most_runs",
        "Largest number of runs in a range; a lookup reads at most one block per run.",
        |l| l.ledger().stats().most_runs.into(),
    ),
    LedgerMetric::new(
        "dropped_ids",
        Gauge,
        "tidemark_ledger_dropped_ids",
        "Forgotten ids that runs may still contain.",
        |l| l.ledger().dropped_ids().into(),
    ),
    LedgerMetric::new(
        "rebuild_tables",
        Gauge,
        "tidemark_ledger_rebuild_tables",
        "Tables whose filters wait for a rebuild or are being rebuilt.",
        |l| l.rebuilds.left.load(Relaxed).into(),
    ),
    LedgerMetric::new(
        "rebuilt_tables",
        Counter,
        "tidemark_ledger_rebuilt_tables",
        "Tables with rebuilt filters.",
        |l| l.rebuilds.tables.load(Relaxed).into(),
    ),
    LedgerMetric::new(
        "rebuilt_pairs",
        Counter,
        "tidemark_ledger_rebuilt_pairs",
        "Pairs added to rebuilt filters.",
        |l| l.rebuilds.pairs.load(Relaxed).into(),
    ),
    LedgerMetric::new(
        "written_bytes",
        Counter,
        "tidemark_ledger_written",
        "Bytes written to runs by flushes and merges.",
        |l| l.ledger().stats().written_bytes.into(),
    )
    .bytes(),
];

impl Labels for &str {
    fn label(&self) -> Option<(&'static str, &str)> {
        Some(("space", self))
    }
}

/// Writes the metrics of all spaces. Writes nothing before the data are loaded.
pub(super) fn write(node: &Node, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
    let Some(engines) = node.loaded() else { return Ok(()) };
    let counters: Vec<_> = engines.counters().iter().map(|space| (space.name(), space)).collect();
    write_all(COUNTER_SPACES, encoder, &counters)?;
    let existences: Vec<_> =
        engines.existences().iter().map(|space| (space.name(), space)).collect();
    write_all(EXISTENCE_SPACES, encoder, &existences)?;
    let spaces = engines.existences().iter();
    let ledgers: Vec<_> =
        spaces.filter_map(|space| Some((space.name(), &**space.ledger()?))).collect();
    write_all(LEDGERS, encoder, &ledgers)
}
