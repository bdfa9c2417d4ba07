//! Metrics of the INFO section Cold.

use super::metric::MetricKind::{Counter, Gauge};
use super::sample::{SampleMetric, field, metric_without_field};

/// Metrics of INFO's section Cold.
pub const COLD: &[SampleMetric] = &[
    field("cold_files", Gauge, "tidemark_cold_files", "Cold files.", |s| s.cold().files.into()),
    field("cold_rows", Gauge, "tidemark_cold_rows", "Rows in cold files.", |s| {
        s.cold().rows.into()
    }),
    field("cold_pairs", Gauge, "tidemark_cold_pairs", "Pairs in cold files.", |s| {
        s.cold().pairs.into()
    }),
    field("cold_file_bytes", Gauge, "tidemark_cold_file", "Total size of the cold files.", |s| {
        s.cold().bytes.into()
    })
    .bytes(),
    field(
        "cold_index_bytes",
        Gauge,
        "tidemark_cold_index",
        "Memory used by the index of cold files.",
        |s| s.cold().index_bytes.into(),
    )
    .bytes(),
    field("cold_reads", Counter, "tidemark_cold_reads", "Blocks read from cold files.", |s| {
        s.figure(|f| &f.reads)
    }),
    field(
        "cold_reads_in_place",
        Counter,
        "tidemark_cold_reads_in_place",
        "Cold blocks read synchronously by a worker.",
        |s| s.figure(|f| &f.reads_in_place),
    ),
    field(
        "cold_read_errors",
        Counter,
        "tidemark_cold_read_errors",
        "Failed reads of cold files.",
        |s| s.figure(|f| &f.errors),
    ),
    field(
        "cold_corrupt_blocks",
        Counter,
        "tidemark_cold_corrupt_blocks",
        "Cold blocks with a wrong checksum.",
        |s| s.figure(|f| &f.corrupt),
    ),
    field(
        "cold_cache_bytes",
        Gauge,
        "tidemark_cold_cache",
        "Memory used by the cache of cold rows.",
        |s| s.cache().0.into(),
    )
    .bytes(),
    field(
        "cold_cache_limit_bytes",
        Gauge,
        "tidemark_cold_cache_limit",
        "Memory limit of the cache of cold rows.",
        |s| s.cache().1.into(),
    )
    .bytes(),
    field(
        "cold_cache_hits",
        Counter,
        "tidemark_cold_cache_hits",
        "Hits in the cache of cold rows.",
        |s| s.figure(|f| &f.hits),
    ),
    field(
        "cold_cache_misses",
        Counter,
        "tidemark_cold_cache_misses",
        "Misses in the cache of cold rows.",
        |s| s.figure(|f| &f.misses),
    ),
    field(
        "overlay_rows",
        Gauge,
        "tidemark_overlay_rows",
        "Cold rows changed since they were spilled.",
        |s| s.cold().changed.into(),
    ),
    field("overlay_bytes", Gauge, "tidemark_overlay", "Memory used by changed cold rows.", |s| {
        s.cold().overlay_bytes.into()
    })
    .bytes(),
    field(
        "overlay_deleted",
        Gauge,
        "tidemark_overlay_deleted",
        "Deleted cold rows that are not merged yet.",
        |s| s.cold().deleted.into(),
    ),
    field(
        "overlay_pairs",
        Gauge,
        "tidemark_overlay_pairs",
        "Pairs set since their table was spilled.",
        |s| s.cold().late.into(),
    ),
    field(
        "merge_backlog_rows",
        Gauge,
        "tidemark_merge_backlog_rows",
        "Changed cold rows waiting for a merge.",
        |s| (s.cold().changed + s.cold().deleted).into(),
    ),
    field(
        "spilled_tables",
        Counter,
        "tidemark_spilled_tables",
        "Tables written to cold files.",
        |s| s.figure(|f| &f.spilled_tables),
    ),
    field("spilled_rows", Counter, "tidemark_spilled_rows", "Rows written to cold files.", |s| {
        s.figure(|f| &f.spilled_rows)
    }),
    field(
        "spilled_pairs",
        Counter,
        "tidemark_spilled_pairs",
        "Pairs written to cold files.",
        |s| s.figure(|f| &f.spilled_pairs),
    ),
    field("merges", Counter, "tidemark_merges", "Merges of cold files.", |s| {
        s.figure(|f| &f.merges)
    }),
    field(
        "spill_written_bytes",
        Counter,
        "tidemark_spill_written",
        "Bytes written by spills and merges.",
        |s| s.figure(|f| &f.written_bytes),
    )
    .bytes(),
    field("spill_failures", Counter, "tidemark_spill_failures", "Failed spills and merges.", |s| {
        s.figure(|f| &f.failures)
    }),
    field(
        "cold_damaged_files",
        Gauge,
        "tidemark_cold_damaged_files",
        "Cold files with unreadable blocks.",
        |s| s.damaged().len().into(),
    ),
    field(
        "cold_damaged_blocks",
        Gauge,
        "tidemark_cold_damaged_blocks",
        "Unreadable blocks in cold files.",
        |s| s.damaged().iter().map(|(_, parts)| *parts).sum::<usize>().into(),
    ),
    field(
        "scrub_read_bytes",
        Counter,
        "tidemark_scrub_read",
        "Bytes of cold files read by scrubbing.",
        |s| s.figure(|f| &f.scrubbed_bytes),
    )
    .bytes(),
    field(
        "scrub_left_bytes",
        Gauge,
        "tidemark_scrub_left",
        "Bytes left to read in the current scrub; 0 if none is running.",
        |s| s.figure(|f| &f.scrub_left_bytes),
    )
    .bytes(),
    field(
        "scrub_passes",
        Counter,
        "tidemark_scrub_passes",
        "Completed scrubs of all cold files.",
        |s| s.figure(|f| &f.scrub_passes),
    ),
    field(
        "scrub_last_pass_time",
        Gauge,
        "tidemark_scrub_last_pass_timestamp",
        "Unix time of the last completed scrub; 0 if none since the server started.",
        |s| s.figure(|f| &f.scrub_last_s),
    )
    .seconds(),
    metric_without_field(
        Gauge,
        "tidemark_spill_last_succeeded",
        "0 if the last spill or merge of a space failed.",
        |s| s.node.loaded().is_none_or(|e| e.cold.trouble.lock().is_empty()).into(),
    ),
];
