//! Metrics of the whole process and its data set, in the order of INFO's sections.

use super::encode::{Distribution, Durations, write_all};
use super::metric::Kind::{Counter, Gauge};
use super::metric::{self, Metric, Value};
use crate::acl::Reason;
use crate::roles::backup_state::{Fate, Kept, Status};
use crate::roles::node::Node;
use crate::roles::{Fed, Link, LinkState};
use crate::runtime::clients::{Client, Kind as ClientKind};
use crate::runtime::counters::{LongestTurns, Totals};
use crate::runtime::process_memory::resident_bytes;
use crate::runtime::pubsub;
use dataset::clock::unix_us;
use dataset::engines::{CounterSpace, ExistenceSpace};
use dataset::groups::GroupStats;
use dataset::live::Saved;
use dataset::tokens::TokenStats;
use prometheus_client::encoding::DescriptorEncoder;
use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use store::{CommitStats, Position};

/// What one INFO, or one scrape, reads: sums that several metrics need are made once.
pub struct Sample {
    /// Whose.
    pub node: Arc<Node>,
    totals: OnceCell<Totals>,
    clients: OnceCell<Vec<Arc<Client>>>,
    commits: OnceCell<CommitStats>,
    positions: OnceCell<(Position, Position)>,
    saved: OnceCell<Saved>,
    cold: OnceCell<ColdSums>,
    link: OnceCell<Option<Link>>,
    backups: OnceCell<Status>,
    tokens: OnceCell<TokenStats>,
    damaged: OnceCell<Vec<(String, usize)>>,
}

/// What lies on the disk, of all spaces.
#[derive(Clone, Copy, Default)]
struct ColdSums {
    files: u64,
    rows: u64,
    pairs: u64,
    bytes: u64,
    index_bytes: u64,
    changed: u64,
    overlay_bytes: u64,
    deleted: u64,
    late: u64,
}

impl Sample {
    /// Of this moment.
    pub fn new(node: Arc<Node>) -> Sample {
        Sample {
            node,
            totals: OnceCell::new(),
            clients: OnceCell::new(),
            commits: OnceCell::new(),
            positions: OnceCell::new(),
            saved: OnceCell::new(),
            cold: OnceCell::new(),
            link: OnceCell::new(),
            backups: OnceCell::new(),
            tokens: OnceCell::new(),
            damaged: OnceCell::new(),
        }
    }

    fn totals(&self) -> &Totals {
        self.totals.get_or_init(|| self.node.totals())
    }

    /// Connected clients.
    pub fn clients(&self) -> &[Arc<Client>] {
        self.clients.get_or_init(|| self.node.clients.list())
    }

    fn count_clients(&self, is_meant: impl Fn(&Client) -> bool) -> Value {
        self.clients().iter().filter(|client| is_meant(client)).count().into()
    }

    fn commits(&self) -> &CommitStats {
        self.commits.get_or_init(|| self.node.durability.committer().stats())
    }

    fn positions(&self) -> (Position, Position) {
        *self.positions.get_or_init(|| self.node.durability.positions())
    }

    /// The newest snapshot.
    pub fn saved(&self) -> &Saved {
        self.saved.get_or_init(|| self.node.snapshots.saved.borrow().clone())
    }

    /// Backups of this process.
    pub fn backups(&self) -> &Status {
        self.backups.get_or_init(|| self.node.backups.status())
    }

    /// The link to the master; nothing on a master.
    fn link(&self) -> Option<&Link> {
        let replication = &self.node.replication;
        let link = || replication.master().map(|_| replication.link.lock().clone());
        self.link.get_or_init(link).as_ref()
    }

    fn groups(&self) -> GroupStats {
        self.node.loaded().map(|engines| engines.groups.stats()).unwrap_or_default()
    }

    fn tokens(&self) -> &TokenStats {
        let stats = || self.node.loaded().map(|engines| engines.tokens.stats());
        self.tokens.get_or_init(|| stats().unwrap_or_default())
    }

    fn cold(&self) -> ColdSums {
        *self.cold.get_or_init(|| cold_sums(&self.node))
    }

    /// A sum over all counter spaces.
    fn of_counters(&self, of: impl Fn(&CounterSpace) -> u64) -> u64 {
        self.node.loaded().map_or(0, |engines| engines.counters().iter().map(of).sum())
    }

    /// A sum over all existence spaces.
    fn of_existences(&self, of: impl Fn(&ExistenceSpace) -> u64) -> u64 {
        self.node.loaded().map_or(0, |engines| engines.existences().iter().map(of).sum())
    }

    fn figure(&self, of: fn(&dataset::cold::Figures) -> &AtomicU64) -> Value {
        let engines = self.node.loaded();
        engines.map_or(0, |engines| of(&engines.cold.figures).load(Relaxed)).into()
    }

    /// The damaged cold files, and how many parts of each are.
    pub fn damaged(&self) -> &[(String, usize)] {
        let files = || {
            let there = |name: &str| self.node.store.manifest().file(name).is_some();
            self.node.loaded().map(|engines| engines.cold.damaged.files(there)).unwrap_or_default()
        };
        self.damaged.get_or_init(files)
    }

    fn cache(&self) -> (u64, u64) {
        self.node.loaded().map_or((0, 0), |engines| engines.cold.cache_bytes())
    }
}

fn cold_sums(node: &Node) -> ColdSums {
    let mut sums = ColdSums::default();
    let Some(engines) = node.loaded() else { return sums };
    for space in engines.counters() {
        sums.changed += space.changed_rows();
        sums.overlay_bytes += space.overlay_bytes();
        sums.deleted += space.tombstones().0;
        for file in space.cold().files().all() {
            sums.files += 1;
            sums.rows += file.head().rows;
            sums.bytes += file.entry().bytes;
            sums.index_bytes += file.memory_bytes() as u64;
        }
    }
    for space in engines.existences() {
        sums.late += space.late().0 as u64;
        for file in &*space.cold().files() {
            sums.files += 1;
            sums.pairs += file.pairs();
            sums.bytes += file.entry().bytes;
            sums.index_bytes += file.memory_bytes() as u64;
        }
    }
    sums
}

/// What a connection takes beside its buffers: its task, and its place among the clients.
pub const CONNECTION_BYTES: usize = 8 << 10;

/// Bytes that a client's buffers take.
pub fn buffer_bytes(client: &Client) -> usize {
    let of_worker = [&client.query_bytes, &client.output_bytes, &client.queued_bytes];
    of_worker.iter().map(|bytes| bytes.load(Relaxed)).sum::<usize>()
        + client.inbox.waiting()
        + client.kept_bytes.load(Relaxed)
}

type M = Metric<Sample>;
type Read = fn(&Sample) -> Value;

/// A metric with the same value as a field of INFO.
const fn field(
    field: &'static str,
    kind: metric::Kind,
    name: &'static str,
    help: &'static str,
    read: Read,
) -> M {
    Metric::new(field, kind, name, help, read)
}

/// A metric that INFO has not.
const fn apart(kind: metric::Kind, name: &'static str, help: &'static str, read: Read) -> M {
    Metric::new("", kind, name, help, read)
}

const SERVER: &[M] = &[
    apart(Gauge, "process_start_time", "Unix time at which the process started.", |s| {
        Value::Rate(unix_us() as f64 / 1e6 - s.node.started.elapsed().as_secs_f64())
    })
    .seconds(),
    apart(Counter, "process_cpu", "Processor time of the process, user and system.", |_| {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Value::Rate(used.tv_sec as f64 + used.tv_nsec as f64 / 1e9)
    })
    .seconds(),
    field(
        "used_memory_rss",
        Gauge,
        "process_resident_memory",
        "Memory of the process that is in RAM.",
        |_| resident_bytes().into(),
    )
    .bytes(),
    apart(Gauge, "process_open_fds", "Open file descriptors.", |_| {
        std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count).saturating_sub(1).into()
    }),
    apart(Gauge, "process_max_fds", "Limit of open file descriptors.", |_| {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        limit.current.unwrap_or(u64::MAX).into()
    }),
    field("uptime_in_seconds", Gauge, "tidemark_uptime", "Time since the start.", |s| {
        s.node.started.elapsed().as_secs().into()
    })
    .seconds(),
    field("io_threads_active", Gauge, "tidemark_workers", "Worker threads.", |s| {
        s.node.tallies.len().into()
    }),
];

/// Section Clients.
pub const CLIENTS: &[M] = &[
    field("connected_clients", Gauge, "tidemark_clients", "Connected clients.", |s| {
        s.clients().len().into()
    }),
    field(
        "maxclients",
        Gauge,
        "tidemark_clients_limit",
        "Most clients (server.max_clients).",
        |s| s.node.config().server.max_clients.into(),
    ),
    field(
        "blocked_clients",
        Gauge,
        "tidemark_clients_blocked",
        "Clients that wait in WAIT, WAITAOF or a pause.",
        |s| s.count_clients(Client::is_blocked),
    ),
    field(
        "tracking_clients",
        Gauge,
        "tidemark_clients_tracking",
        "Clients with CLIENT TRACKING.",
        |s| s.node.tracking.clients().into(),
    ),
    field(
        "pubsub_clients",
        Gauge,
        "tidemark_clients_pubsub",
        "Clients that are subscribed.",
        |s| s.count_clients(|c| c.kind() == ClientKind::Pubsub),
    ),
    field(
        "watching_clients",
        Gauge,
        "tidemark_clients_watching",
        "Clients with watched keys.",
        |s| s.count_clients(|c| c.watching.load(Relaxed) > 0),
    ),
    field("acl_users", Gauge, "tidemark_acl_users", "ACL users.", |s| {
        s.node.acl.all().len().into()
    }),
    field("slowlog_entries", Gauge, "tidemark_slowlog_entries", "Entries of SLOWLOG.", |s| {
        s.node.slow.entries().into()
    }),
];

const PARTS: &str = "Memory by part. What the process has beyond their sum is the program \
                     and the allocator's reserve.";

/// A part of the memory.
const fn part(of: &'static str, name: &'static str, read: Read) -> M {
    field(of, Gauge, "tidemark_memory_part", PARTS, read).bytes().label("part", name)
}

const MEMORY: &[M] = &[
    field(
        "used_memory",
        Gauge,
        "tidemark_memory_used",
        "Memory that server.memory_bytes limits: of the process, and at least of the tables.",
        |s| {
            let tables = s.node.loaded().map_or(0, |engines| engines.memory_bytes());
            tables.max(resident_bytes()).into()
        },
    )
    .bytes(),
    field(
        "maxmemory",
        Gauge,
        "tidemark_memory_limit",
        "Memory that it may take (server.memory_bytes).",
        |s| s.node.config().memory_bytes().into(),
    )
    .bytes(),
    part("", "counter_tables", |s| s.of_counters(|space| space.memory_bytes()).into()),
    part("", "existence_tables", |s| s.of_existences(|space| space.memory_bytes()).into()),
    part("mem_tokens", "tokens", |s| s.tokens().bytes.into()),
    part("mem_groups", "groups", |s| s.groups().bytes.into()),
    part("mem_changes_index", "changes_index", |s| s.node.changes.memory_bytes().into()),
    part("cold_cache_bytes", "cold_cache", |s| s.cache().0.into()),
    part("cold_index_bytes", "cold_index", |s| s.cold().index_bytes.into()),
    part("mem_clients_normal", "clients", |s| {
        s.clients().iter().map(|c| buffer_bytes(c)).sum::<usize>().into()
    }),
    part("mem_connections", "connections", |s| (s.clients().len() * CONNECTION_BYTES).into()),
    part("mem_tracking_table", "tracking_table", |s| s.node.tracking.memory_bytes().into()),
    part("mem_aof_buffer", "log_queue", |s| s.node.durability.committer().queue_bytes().into()),
];

/// Section Persistence.
pub const PERSISTENCE: &[M] = &[
    field("loading", Gauge, "tidemark_loading", "1 while the data are loaded.", |s| {
        (!s.node.is_loaded()).into()
    }),
    apart(
        Gauge,
        "tidemark_log_writable",
        "1 if writes are taken; 0 if the disk refuses the log, and writes are answered MISCONF.",
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
        "1 while a snapshot is written.",
        |s| s.saved().running.into(),
    ),
    apart(Gauge, "tidemark_snapshot_last_succeeded", "1 if the last snapshot succeeded.", |s| {
        s.saved().error.is_none().into()
    }),
    field(
        "rdb_last_save_time",
        Gauge,
        "tidemark_snapshot_last_success_timestamp",
        "Unix time of the last snapshot that succeeded, or of the start.",
        |s| s.saved().last_s.into(),
    )
    .seconds(),
    field(
        "rdb_last_bgsave_time_sec",
        Gauge,
        "tidemark_snapshot_last_duration",
        "How long the last snapshot took.",
        |s| s.saved().took.as_secs().into(),
    )
    .seconds(),
    field(
        "snapshot_bytes_written",
        Gauge,
        "tidemark_snapshot_last_written",
        "Bytes that the last snapshot wrote.",
        |s| s.saved().bytes.into(),
    )
    .bytes(),
    field(
        "backup_in_progress",
        Gauge,
        "tidemark_backup_running",
        "1 while a backup is made.",
        |s| s.backups().running.is_some().into(),
    ),
    field(
        "backup_bytes_done",
        Gauge,
        "tidemark_backup_done",
        "Bytes of the backup under way, or the last one, that are there: copied or linked.",
        |s| (s.backups().copied + s.backups().linked).into(),
    )
    .bytes(),
    field(
        "backup_bytes_copied",
        Gauge,
        "tidemark_backup_copied",
        "Bytes of them that were copied.",
        |s| s.backups().copied.into(),
    )
    .bytes(),
    field(
        "backup_bytes_expected",
        Gauge,
        "tidemark_backup_expected",
        "Bytes that it has when it is complete.",
        |s| s.backups().expected.into(),
    )
    .bytes(),
    apart(Gauge, "tidemark_backup_last_succeeded", "0 if the last backup failed.", |s| {
        let last = s.backups().last.as_ref();
        (!last.is_some_and(|last| matches!(last.fate, Fate::Failed(_)))).into()
    }),
    field(
        "backup_last_time",
        Gauge,
        "tidemark_backup_last_success_timestamp",
        "Unix time of the last backup that succeeded; 0 if there is none.",
        |s| s.backups().made_s.into(),
    )
    .seconds(),
    apart(
        Gauge,
        "tidemark_backup_log_kept",
        "0 while the log that is to be kept beside the backups cannot be.",
        |s| (!matches!(s.backups().kept, Kept::Failed(_))).into(),
    ),
    field(
        "backup_log_offset",
        Gauge,
        "tidemark_backup_log_position",
        "End of the log that is kept beside the backups; 0 if it is not, or cannot be.",
        |s| match s.backups().kept {
            Kept::UpTo(offset) => offset.into(),
            Kept::Off | Kept::Failed(_) => 0u64.into(),
        },
    )
    .bytes(),
    field(
        "log_written_segment",
        Gauge,
        "tidemark_log_segment",
        "Number of the newest log segment.",
        |s| s.positions().0.segment.into(),
    ),
    field(
        "log_written_offset",
        Gauge,
        "tidemark_log_written_position",
        "End of the log, written.",
        |s| s.positions().0.offset.into(),
    )
    .bytes(),
    field(
        "log_synced_offset",
        Gauge,
        "tidemark_log_synced_position",
        "End of the log, synced.",
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
    field("log_batches", Counter, "tidemark_log_batches", "Batches of group commit.", |s| {
        s.commits().batches.into()
    }),
    field("log_marks", Counter, "tidemark_log_keys", "Distinct keys in these batches.", |s| {
        s.commits().keys.into()
    }),
    field("log_queue_bytes", Gauge, "tidemark_log_queue", "Changes that wait for the log.", |s| {
        s.node.durability.committer().queue_bytes().into()
    })
    .bytes(),
    field("log_syncs", Counter, "tidemark_log_syncs", "Successful fsyncs of log segments.", |s| {
        s.commits().log.syncs.into()
    }),
    field(
        "log_sync_usec",
        Counter,
        "tidemark_log_sync_time",
        "Time that fsyncs of the log took.",
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
        "Group commits that the disk refused.",
        |s| s.commits().failed_rounds.into(),
    ),
];

const DISCONNECTED: &str = "Clients that the server disconnected: by its limits of buffers, memory \
                            and time, and failed TLS handshakes.";

/// Clients disconnected for one reason.
const fn disconnected(of: &'static str, reason: &'static str, read: Read) -> M {
    field(of, Counter, "tidemark_client_disconnections", DISCONNECTED, read).label("reason", reason)
}

/// Requests that the ACL has refused for one reason.
const fn denied(of: &'static str, reason: &'static str, read: Read) -> M {
    let help = "Refusals by the ACL, failed logins included.";
    field(of, Counter, "tidemark_acl_denied", help, read).label("reason", reason)
}

/// Section Stats.
pub const STATS: &[M] = &[
    field(
        "total_connections_received",
        Counter,
        "tidemark_connections",
        "Connections accepted.",
        |s| s.node.clients.accepted.load(Relaxed).into(),
    ),
    field("total_commands_processed", Counter, "tidemark_commands", "Commands executed.", |s| {
        s.totals().commands.into()
    }),
    field(
        "instantaneous_ops_per_sec",
        Gauge,
        "tidemark_commands_per_second",
        "Commands in the last second.",
        |s| s.node.rates.commands.load(Relaxed).into(),
    ),
    field(
        "longest_turn_usec",
        Gauge,
        "tidemark_longest_turn",
        "Longest time for which requests of one client kept others of their worker waiting, since \
         the start.",
        |s| LongestTurns::ever_us(&s.node.tallies).into(),
    )
    .microseconds(),
    field(
        "longest_turn_last_minute_usec",
        Gauge,
        "tidemark_longest_turn_last_minute",
        "The same in the last minute.",
        |s| s.node.turns.last_minute_us(&s.node.tallies).into(),
    )
    .microseconds(),
    field(
        "total_net_input_bytes",
        Counter,
        "tidemark_network_received",
        "Received from clients.",
        |s| s.totals().bytes_in.into(),
    )
    .bytes(),
    field("total_net_output_bytes", Counter, "tidemark_network_sent", "Sent to clients.", |s| {
        s.totals().bytes_out.into()
    })
    .bytes(),
    field(
        "total_net_repl_input_bytes",
        Counter,
        "tidemark_replication_received",
        "Received from the master.",
        |s| s.totals().link_bytes_in.into(),
    )
    .bytes(),
    field(
        "total_net_repl_output_bytes",
        Counter,
        "tidemark_replication_sent",
        "Sent to replicas.",
        |s| s.totals().link_bytes_out.into(),
    )
    .bytes(),
    field(
        "rejected_connections",
        Counter,
        "tidemark_connections_rejected",
        "Connections refused by max_clients or protected mode.",
        |s| s.node.clients.rejected.load(Relaxed).into(),
    ),
    field(
        "sync_full",
        Counter,
        "tidemark_replication_full_syncs_sent",
        "Replicas that got files first.",
        |s| s.node.replication.feeds.by_files.load(Relaxed).into(),
    ),
    field(
        "sync_partial_ok",
        Counter,
        "tidemark_replication_partial_syncs_sent",
        "Replicas that got the log alone.",
        |s| s.node.replication.feeds.by_log.load(Relaxed).into(),
    ),
    field(
        "sync_partial_err",
        Counter,
        "tidemark_replication_partial_syncs_refused",
        "Replicas that got files because our log does not lead on from their data.",
        |s| s.node.replication.feeds.refused_log.load(Relaxed).into(),
    ),
    field(
        "keyspace_hits",
        Counter,
        "tidemark_keyspace_hits",
        "Rows that were there when read by key.",
        |s| s.totals().hits.into(),
    ),
    field("keyspace_misses", Counter, "tidemark_keyspace_misses", "Rows that were not.", |s| {
        s.totals().misses.into()
    }),
    field(
        "pubsub_channels",
        Gauge,
        "tidemark_pubsub_channels",
        "Channels with subscribers.",
        |s| s.node.channels.len(pubsub::Kind::Channel).into(),
    ),
    field(
        "pubsub_patterns",
        Gauge,
        "tidemark_pubsub_patterns",
        "Patterns with subscribers.",
        |s| s.node.channels.len(pubsub::Kind::Pattern).into(),
    ),
    field(
        "tracking_total_keys",
        Gauge,
        "tidemark_tracking_keys",
        "Keys in the tracking table.",
        |s| s.node.tracking.size().0.into(),
    ),
    field(
        "tracking_evicted_items",
        Counter,
        "tidemark_tracking_evictions",
        "Keys that the tracking table forgot at its limit (max_tracked_keys).",
        |s| s.node.tracking.evicted.load(Relaxed).into(),
    ),
    field("total_error_replies", Counter, "tidemark_error_replies", "Error replies.", |s| {
        s.totals().errors.into()
    }),
    disconnected("evicted_clients", "clients_memory", |s| {
        s.node.clients.ended.by_memory.load(Relaxed).into()
    }),
    disconnected("client_query_buffer_limit_disconnections", "query_buffer", |s| {
        s.node.clients.ended.by_input.load(Relaxed).into()
    }),
    disconnected("client_output_buffer_limit_disconnections", "output_buffer", |s| {
        s.node.clients.ended.by_output.load(Relaxed).into()
    }),
    disconnected("handshake_timeout_disconnections", "handshake_timeout", |s| {
        s.node.clients.ended.by_handshake.load(Relaxed).into()
    }),
    disconnected("idle_timeout_disconnections", "idle_timeout", |s| {
        s.node.clients.ended.by_idleness.load(Relaxed).into()
    }),
    disconnected("tls_handshakes_failed", "tls_handshake", |s| {
        s.node.tls.failed.load(Relaxed).into()
    }),
    denied("acl_access_denied_auth", "auth", |s| {
        s.node.acl.refused[Reason::Auth as usize].load(Relaxed).into()
    }),
    denied("acl_access_denied_cmd", "command", |s| {
        s.node.acl.refused[Reason::Command as usize].load(Relaxed).into()
    }),
    denied("acl_access_denied_key", "key", |s| {
        s.node.acl.refused[Reason::Key as usize].load(Relaxed).into()
    }),
    denied("acl_access_denied_channel", "channel", |s| {
        s.node.acl.refused[Reason::Channel as usize].load(Relaxed).into()
    }),
    field("changes_groups", Gauge, "tidemark_changes_groups", "Consumer groups.", |s| {
        s.groups().groups.into()
    }),
    field("changes_consumers", Gauge, "tidemark_changes_consumers", "Their consumers.", |s| {
        s.groups().consumers.into()
    }),
    field(
        "changes_pending",
        Gauge,
        "tidemark_changes_pending",
        "Entries that were delivered to consumers and not acknowledged.",
        |s| s.groups().pending.into(),
    ),
    field("tokens", Gauge, "tidemark_tokens", "Tokens of increments that are known.", |s| {
        s.tokens().tokens.into()
    }),
    field(
        "tokens_repeated",
        Counter,
        "tidemark_tokens_repeated",
        "Increments that came again with their token, and were not counted again.",
        |s| s.tokens().repeated.into(),
    ),
    field(
        "tokens_dropped",
        Counter,
        "tidemark_tokens_dropped",
        "Tokens dropped before their time, as there were more than tokens.max_tokens, or than an \
         eighth of the memory holds.",
        |s| s.tokens().dropped.into(),
    ),
    field(
        "tokens_dropped_age_s",
        Gauge,
        "tidemark_tokens_dropped_age",
        "Age of the last token that was dropped before its time: so short is the window; else 0.",
        |s| s.tokens().dropped_age_s.into(),
    )
    .seconds(),
];

const REPLICATION: &[M] = &[
    apart(Gauge, "tidemark_replication_is_master", "1 on a master, 0 on a replica.", |s| {
        s.node.replication.is_master().into()
    }),
    apart(
        Gauge,
        "tidemark_replication_link_up",
        "1 if the link to the master is up; 1 on a master, which has none.",
        |s| s.link().is_none_or(|link| link.state == LinkState::Connected).into(),
    ),
    apart(
        Gauge,
        "tidemark_replication_lag",
        "How far this replica is behind its master; 0 on a master.",
        |s| {
            let shown = s.node.durability.acknowledged_offset();
            s.link().map_or(0, |link| link.master_end.saturating_sub(shown)).into()
        },
    )
    .bytes(),
    apart(
        Gauge,
        "tidemark_replication_link_silence",
        "Time since the master was heard; 0 on a master.",
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
        "End of the log as others may have it.",
        |s| s.node.durability.acknowledged_offset().into(),
    )
    .bytes(),
    field(
        "repl_refusing_replicas",
        Gauge,
        "tidemark_replication_refusing_replicas",
        "Replicas that have data of another history and refuse to follow this master.",
        |s| s.node.replication.feeds.refusing().into(),
    ),
    field(
        "repl_fenced",
        Gauge,
        "tidemark_replication_fenced",
        "1 if this node refuses writes because another may be the master.",
        |s| s.node.replication.is_fenced().into(),
    ),
    apart(
        Counter,
        "tidemark_cluster_peer_requests",
        "Parts of pages that other nodes were asked for.",
        |s| s.node.cluster.asked.load(Relaxed).into(),
    ),
    apart(
        Counter,
        "tidemark_cluster_peer_requests_failed",
        "Those that came to nothing: no answer in time, or no connection.",
        |s| s.node.cluster.unanswered.load(Relaxed).into(),
    ),
    apart(
        Gauge,
        "tidemark_cluster_nodes_failed",
        "Nodes of the topology that do not answer this one.",
        |s| (s.node.cluster_failed() as u64).into(),
    ),
    field(
        "repl_full_syncs",
        Counter,
        "tidemark_replication_full_syncs",
        "Full syncs of this node from its master.",
        |s| s.node.replication.full_syncs.load(Relaxed).into(),
    ),
];

/// Section Cold.
pub const COLD: &[M] = &[
    field("cold_files", Gauge, "tidemark_cold_files", "Cold files.", |s| s.cold().files.into()),
    field("cold_rows", Gauge, "tidemark_cold_rows", "Rows in cold files.", |s| {
        s.cold().rows.into()
    }),
    field("cold_pairs", Gauge, "tidemark_cold_pairs", "Pairs in cold files.", |s| {
        s.cold().pairs.into()
    }),
    field("cold_file_bytes", Gauge, "tidemark_cold_file", "Bytes of the cold files.", |s| {
        s.cold().bytes.into()
    })
    .bytes(),
    field("cold_index_bytes", Gauge, "tidemark_cold_index", "Memory of their index.", |s| {
        s.cold().index_bytes.into()
    })
    .bytes(),
    field("cold_reads", Counter, "tidemark_cold_reads", "Blocks read from cold files.", |s| {
        s.figure(|f| &f.reads)
    }),
    field(
        "cold_reads_in_place",
        Counter,
        "tidemark_cold_reads_in_place",
        "Of these, while the worker waited.",
        |s| s.figure(|f| &f.reads_in_place),
    ),
    field(
        "cold_read_errors",
        Counter,
        "tidemark_cold_read_errors",
        "Reads that the disk refused.",
        |s| s.figure(|f| &f.errors),
    ),
    field(
        "cold_corrupt_blocks",
        Counter,
        "tidemark_cold_corrupt_blocks",
        "Blocks with a wrong checksum.",
        |s| s.figure(|f| &f.corrupt),
    ),
    field(
        "cold_cache_bytes",
        Gauge,
        "tidemark_cold_cache",
        "Bytes in the cache of cold rows.",
        |s| s.cache().0.into(),
    )
    .bytes(),
    field(
        "cold_cache_limit_bytes",
        Gauge,
        "tidemark_cold_cache_limit",
        "Most bytes of that cache.",
        |s| s.cache().1.into(),
    )
    .bytes(),
    field(
        "cold_cache_hits",
        Counter,
        "tidemark_cold_cache_hits",
        "Cold rows found in the cache.",
        |s| s.figure(|f| &f.hits),
    ),
    field(
        "cold_cache_misses",
        Counter,
        "tidemark_cold_cache_misses",
        "Cold rows not found there.",
        |s| s.figure(|f| &f.misses),
    ),
    field(
        "overlay_rows",
        Gauge,
        "tidemark_overlay_rows",
        "Cold rows changed since their spill.",
        |s| s.cold().changed.into(),
    ),
    field("overlay_bytes", Gauge, "tidemark_overlay", "Memory of these rows.", |s| {
        s.cold().overlay_bytes.into()
    })
    .bytes(),
    field(
        "overlay_deleted",
        Gauge,
        "tidemark_overlay_deleted",
        "Cold rows deleted and not merged yet.",
        |s| s.cold().deleted.into(),
    ),
    field(
        "overlay_pairs",
        Gauge,
        "tidemark_overlay_pairs",
        "Pairs set since their table's spill.",
        |s| s.cold().late.into(),
    ),
    field(
        "merge_backlog_rows",
        Gauge,
        "tidemark_merge_backlog_rows",
        "Rows that wait for a merge.",
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
        "Bytes that spills and merges wrote.",
        |s| s.figure(|f| &f.written_bytes),
    )
    .bytes(),
    field(
        "spill_failures",
        Counter,
        "tidemark_spill_failures",
        "Spills and merges that failed.",
        |s| s.figure(|f| &f.failures),
    ),
    field(
        "cold_damaged_files",
        Gauge,
        "tidemark_cold_damaged_files",
        "Cold files of which a part cannot be read.",
        |s| s.damaged().len().into(),
    ),
    field(
        "cold_damaged_blocks",
        Gauge,
        "tidemark_cold_damaged_blocks",
        "Parts of cold files that cannot be read.",
        |s| s.damaged().iter().map(|(_, parts)| *parts).sum::<usize>().into(),
    ),
    field(
        "scrub_read_bytes",
        Counter,
        "tidemark_scrub_read",
        "Bytes of cold files that scrubbing has read.",
        |s| s.figure(|f| &f.scrubbed_bytes),
    )
    .bytes(),
    field(
        "scrub_left_bytes",
        Gauge,
        "tidemark_scrub_left",
        "Bytes that the scrub under way has still to read; 0 if there is none.",
        |s| s.figure(|f| &f.scrub_left_bytes),
    )
    .bytes(),
    field(
        "scrub_passes",
        Counter,
        "tidemark_scrub_passes",
        "How often scrubbing has read all cold files.",
        |s| s.figure(|f| &f.scrub_passes),
    ),
    field(
        "scrub_last_pass_time",
        Gauge,
        "tidemark_scrub_last_pass_timestamp",
        "Unix time at which scrubbing had read all cold files; 0: not since the start.",
        |s| s.figure(|f| &f.scrub_last_s),
    )
    .seconds(),
    apart(
        Gauge,
        "tidemark_spill_last_succeeded",
        "0 if the last spill or merge of a space failed.",
        |s| s.node.loaded().is_none_or(|e| e.cold.trouble.lock().is_empty()).into(),
    ),
];

/// What is not by space, command or replica.
pub(super) const GROUPS: &[&[M]] =
    &[SERVER, CLIENTS, MEMORY, PERSISTENCE, STATS, REPLICATION, COLD];

/// Classes of durations whose upper bounds are powers of two of microseconds.
fn by_powers_of_two(counts: impl Iterator<Item = u64>, sum: f64) -> Durations {
    let mut classes: Vec<(f64, u64)> =
        counts.enumerate().map(|(bit, count)| ((1u64 << bit) as f64 / 1e6, count)).collect();
    // The last class has no end.
    if let Some(last) = classes.last_mut() {
        last.0 = f64::INFINITY;
    }
    Durations { sum, classes }
}

/// Reads the durations of a histogram.
type ReadDurations = fn(&Sample) -> Durations;

pub(super) const HISTOGRAMS: &[(Distribution, ReadDurations)] = &[
    (
        Distribution {
            name: "tidemark_log_sync_duration",
            help: "Fsyncs of the log, by duration.",
        },
        |s| {
            let commits = s.commits();
            by_powers_of_two(commits.syncs_by_us.into_iter(), commits.sync_us as f64 / 1e6)
        },
    ),
    (
        Distribution {
            name: "tidemark_cold_read_duration",
            help: "Reads of cold files, by duration, from the request to the row.",
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

/// A replica, and the log's end that it is to reach.
pub(super) struct Replica {
    fed: Fed,
    end: u64,
}

pub(super) const REPLICA_LAG: Metric<Replica> = Metric::new(
    "",
    Gauge,
    "tidemark_replica_lag",
    "How far each replica is behind.",
    |r: &Replica| r.end.saturating_sub(r.fed.written).into(),
)
.bytes();
pub(super) const REPLICA_HEARD: Metric<Replica> = Metric::new(
    "",
    Gauge,
    "tidemark_replica_silence",
    "Time since each replica was heard.",
    |r: &Replica| Value::Rate(r.fed.heard.elapsed().as_secs_f64()),
)
.seconds();

/// Metrics by replica, which are named by their addresses.
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
