//! Metrics of INFO's section Persistence.

use super::metric::MetricKind::{Counter, Gauge};
use super::sample::{SampleMetric, field, metric_without_field};
use crate::roles::backup_state::{ArchiveState, BackupOutcome};

/// Metrics of INFO's section Persistence.
pub const PERSISTENCE: &[SampleMetric] = &[
    field("loading", Gauge, "tidemark_loading", "1 while the data set is loading.", |s| {
        (!s.node.is_loaded()).into()
    }),
    metric_without_field(
        Gauge,
        "tidemark_log_writable",
        "1 if the log is writable; 0 if a disk error makes writes fail with MISCONF.",
        |s| s.node.durability.refusal().is_none().into(),
    ),
    field(
        "rdb_changes_since_last_save",
        Gauge,
        "tidemark_snapshot_changes_since_last",
        "Changes since the last snapshot.",
        |s| s.node.snapshots.changes(&s.node.durability).into(),
    ),
    field(
        "rdb_bgsave_in_progress",
        Gauge,
        "tidemark_snapshot_running",
        "1 while a snapshot is being written.",
        |s| s.saved().running.into(),
    ),
    metric_without_field(
        Gauge,
        "tidemark_snapshot_last_succeeded",
        "1 if the last snapshot succeeded.",
        |s| s.saved().error.is_none().into(),
    ),
    field(
        "rdb_last_save_time",
        Gauge,
        "tidemark_snapshot_last_success_timestamp",
        "Unix time of the last successful snapshot, or of the server start if there is none since.",
        |s| s.saved().last_s.into(),
    )
    .seconds(),
    field(
        "rdb_last_bgsave_time_sec",
        Gauge,
        "tidemark_snapshot_last_duration",
        "Duration of the last snapshot.",
        |s| s.saved().took.as_secs().into(),
    )
    .seconds(),
    field(
        "snapshot_bytes_written",
        Gauge,
        "tidemark_snapshot_last_written",
        "Size of the last snapshot.",
        |s| s.saved().bytes.into(),
    )
    .bytes(),
    field(
        "backup_in_progress",
        Gauge,
        "tidemark_backup_running",
        "1 while a backup is running.",
        |s| s.backups().running.is_some().into(),
    ),
    field(
        "backup_bytes_done",
        Gauge,
        "tidemark_backup_done",
        "Bytes copied or linked by the current or last backup.",
        |s| (s.backups().copied + s.backups().linked).into(),
    )
    .bytes(),
    field(
        "backup_bytes_copied",
        Gauge,
        "tidemark_backup_copied",
        "Bytes copied by the current or last backup.",
        |s| s.backups().copied.into(),
    )
    .bytes(),
    field(
        "backup_bytes_expected",
        Gauge,
        "tidemark_backup_expected",
        "Total size of the current or last backup.",
        |s| s.backups().expected.into(),
    )
    .bytes(),
    metric_without_field(
        Gauge,
        "tidemark_backup_last_succeeded",
        "0 if the last backup failed.",
        |s| {
            let last = s.backups().last.as_ref();
            (!last.is_some_and(|last| matches!(last.fate, BackupOutcome::Failed(_)))).into()
        },
    ),
    field(
        "backup_last_time",
        Gauge,
        "tidemark_backup_last_success_timestamp",
        "Unix time of the last successful backup; 0 if there is none.",
        |s| s.backups().made_s.into(),
    )
    .seconds(),
    metric_without_field(
        Gauge,
        "tidemark_backup_log_kept",
        "0 while archiving the log fails.",
        |s| (!matches!(s.backups().kept, ArchiveState::Failed(_))).into(),
    ),
    field(
        "backup_log_offset",
        Gauge,
        "tidemark_backup_log_position",
        "Offset up to which the log is archived; 0 if archiving is off or fails.",
        |s| match s.backups().kept {
            ArchiveState::UpTo(offset) => offset.into(),
            ArchiveState::Off | ArchiveState::Failed(_) => 0u64.into(),
        },
    )
    .bytes(),
    field(
        "log_written_segment",
        Gauge,
        "tidemark_log_segment",
        "Sequence number of the newest log segment.",
        |s| s.positions().0.segment.into(),
    ),
    field(
        "log_written_offset",
        Gauge,
        "tidemark_log_written_position",
        "Offset up to which the log is written.",
        |s| s.positions().0.offset.into(),
    )
    .bytes(),
    field(
        "log_synced_offset",
        Gauge,
        "tidemark_log_synced_position",
        "Offset up to which the log is synced to disk.",
        |s| s.positions().1.offset.into(),
    )
    .bytes(),
    field("log_records", Counter, "tidemark_log_records", "Records appended to the log.", |s| {
        s.commits().log.records.into()
    }),
    field("log_bytes", Counter, "tidemark_log_appended", "Bytes appended to the log.", |s| {
        s.commits().log.bytes.into()
    })
    .bytes(),
    field("log_batches", Counter, "tidemark_log_batches", "Group-commit batches.", |s| {
        s.commits().batches.into()
    }),
    field(
        "log_marks",
        Counter,
        "tidemark_log_keys",
        "Distinct keys in group-commit batches.",
        |s| s.commits().keys.into(),
    ),
    field(
        "log_queue_bytes",
        Gauge,
        "tidemark_log_queue",
        "Size of the changes waiting to be logged.",
        |s| s.node.durability.committer().queue_bytes().into(),
    )
    .bytes(),
    field("log_syncs", Counter, "tidemark_log_syncs", "Successful fsyncs of log segments.", |s| {
        s.commits().log.syncs.into()
    }),
    field(
        "log_sync_usec",
        Counter,
        "tidemark_log_sync_time",
        "Time spent in fsyncs of the log.",
        |s| s.commits().sync_us.into(),
    )
    .microseconds(),
    field(
        "log_slowest_sync_usec",
        Gauge,
        "tidemark_log_slowest_sync",
        "Longest fsync since the start.",
        |s| s.commits().slowest_sync_us.into(),
    )
    .microseconds(),
    field(
        "log_failed_rounds",
        Counter,
        "tidemark_log_failed_rounds",
        "Failed group commits.",
        |s| s.commits().failed_rounds.into(),
    ),
];
