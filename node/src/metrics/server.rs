//! Metrics of INFO's sections Server, Clients and Memory.

use super::metric::MetricKind::{Counter, Gauge};
use super::metric::Value;
use super::sample::{
    CONNECTION_BYTES, Read, SampleMetric, buffer_bytes, field, metric_without_field,
};
use crate::runtime::clients::{Client, ClientKind};
use crate::runtime::process_memory::resident_bytes;
use dataset::clock::unix_us;
use std::sync::atomic::Ordering::Relaxed;

pub(super) const SERVER: &[SampleMetric] = &[
    metric_without_field(
        Gauge,
        "process_start_time",
        "Unix time at which the process started.",
        |s| Value::Rate(unix_us() as f64 / 1e6 - s.node.started.elapsed().as_secs_f64()),
    )
    .seconds(),
    metric_without_field(
        Counter,
        "process_cpu",
        "User and system CPU time of the process.",
        |_| {
            let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
            Value::Rate(used.tv_sec as f64 + used.tv_nsec as f64 / 1e9)
        },
    )
    .seconds(),
    field(
        "used_memory_rss",
        Gauge,
        "process_resident_memory",
        "Resident memory of the process.",
        |_| resident_bytes().into(),
    )
    .bytes(),
    metric_without_field(Gauge, "process_open_fds", "Open file descriptors.", |_| {
        std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count).saturating_sub(1).into()
    }),
    metric_without_field(
        Gauge,
        "process_max_fds",
        "Maximum number of open file descriptors.",
        |_| {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
            limit.current.unwrap_or(u64::MAX).into()
        },
    ),
    field("uptime_in_seconds", Gauge, "tidemark_uptime", "Time since the server started.", |s| {
        s.node.started.elapsed().as_secs().into()
    })
    .seconds(),
    field("io_threads_active", Gauge, "tidemark_workers", "Worker threads.", |s| {
        s.node.tallies.len().into()
    }),
];

/// Metrics of INFO's section Clients.
pub const CLIENTS: &[SampleMetric] = &[
    field("connected_clients", Gauge, "tidemark_clients", "Connected clients.", |s| {
        s.clients().len().into()
    }),
    field(
        "maxclients",
        Gauge,
        "tidemark_clients_limit",
        "Maximum number of connected clients (server.max_clients).",
        |s| s.node.config().server.max_clients.into(),
    ),
    field(
        "blocked_clients",
        Gauge,
        "tidemark_clients_blocked",
        "Clients blocked in WAIT, WAITAOF, XREAD, XREADGROUP or CLIENT PAUSE.",
        |s| s.count_clients(Client::is_blocked),
    ),
    field(
        "tracking_clients",
        Gauge,
        "tidemark_clients_tracking",
        "Clients with CLIENT TRACKING enabled.",
        |s| s.node.tracking.clients().into(),
    ),
    field("pubsub_clients", Gauge, "tidemark_clients_pubsub", "Clients with subscriptions.", |s| {
        s.count_clients(|c| c.kind() == ClientKind::Pubsub)
    }),
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
    field("slowlog_entries", Gauge, "tidemark_slowlog_entries", "Entries in the slow log.", |s| {
        s.node.slow.entries().into()
    }),
];

const PARTS: &str = "Memory used, by part. Code and allocator overhead are not included.";

const fn part(of: &'static str, name: &'static str, read: Read) -> SampleMetric {
    field(of, Gauge, "tidemark_memory_part", PARTS, read).bytes().label("part", name)
}

pub(super) const MEMORY: &[SampleMetric] = &[
    field(
        "used_memory",
        Gauge,
        "tidemark_memory_used",
        "Memory counted against server.memory: of the process or of the tables, whichever is \
         larger.",
        |s| {
            let tables = s.node.loaded().map_or(0, |engines| engines.memory_bytes());
            tables.max(resident_bytes()).into()
        },
    )
    .bytes(),
    field("maxmemory", Gauge, "tidemark_memory_limit", "Memory limit (server.memory).", |s| {
        s.node.config().memory_bytes().into()
    })
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
