//! INFO, with the section and field names of Redis, so that tools for Redis can read it.

use crate::commands::call::Call;
use dataset::clock::unix_us;
use node::command::spec::Outcome;
use node::command::table::with_numbers;
use node::metrics::{self, Sample};
use node::roles::node::Node;
use node::runtime::process_memory::{kilobytes, resident_bytes};
use node::runtime::pubsub::ChannelKind;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Version of Redis with which commands and replies are compatible. Client libraries detect
/// features by this version.
pub(crate) const REDIS_VERSION: &str = "7.4.0";

type Section = (&'static str, fn(&Sample, &mut String));

/// Default sections, in output order.
const SECTIONS: &[Section] = &[
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Stats", stats),
    ("Replication", |sample, out| {
        crate::commands::replication::info(&sample.node, out);
    }),
    ("CPU", cpu),
    ("Modules", |_, _| {}),
    ("Errorstats", errorstats),
    ("Cluster", cluster),
    ("Keyspace", keyspace),
    ("Spaces", spaces),
    ("Cold", cold),
    ("Ingest", ingest),
];

/// Sections that `all` includes and that can be selected by name.
const EXTRA_SECTIONS: &[Section] =
    &[("Commandstats", commandstats), ("Latencystats", latencystats)];
/// Sections that must be selected by name. These sections scan every table, and therefore run on
/// another thread.
const ON_DEMAND: &[Section] = &[("Tables", tables)];

pub(crate) fn info(call: &mut Call<'_>) -> Outcome {
    let wanted = call.args.from(1);
    let is_wanted = |names: &[&[u8]]| {
        wanted.iter().any(|w| names.iter().any(|name| w.eq_ignore_ascii_case(name)))
    };
    let all = is_wanted(&[b"all", b"everything"]);
    let every = all || wanted.is_empty() || is_wanted(&[b"default"]);
    let named = |(name, _): &&Section| is_wanted(&[name.as_bytes()]);
    let mut sections: Vec<&'static Section> =
        SECTIONS.iter().filter(|s| every || named(s)).collect();
    sections.extend(EXTRA_SECTIONS.iter().filter(|s| all || named(s)));
    let short = sections.len();
    sections.extend(ON_DEMAND.iter().filter(named));
    if sections.len() > short {
        let may_flush = !call.session.in_exec || call.session.may_suspend;
        return call.answer_later(move |node, reply| {
            if may_flush && !node.durability.has_logged() {
                // If the flush fails, the offsets in the reply show that the log is behind.
                let _ = node.durability.flush();
            }
            reply.text(&text(&node, &sections));
            Ok(())
        });
    }
    if call.may_show_offsets() {
        let text = text(&call.node, &sections);
        call.reply.text(&text);
    }
    Ok(())
}

fn text(node: &Arc<Node>, sections: &[&Section]) -> String {
    let sample = Sample::new(node.clone());
    let mut out = String::with_capacity(4096);
    for (name, write) in sections {
        if !out.is_empty() {
            out.push_str("\r\n");
        }
        let _ = write!(out, "# {name}\r\n");
        write(&sample, &mut out);
    }
    out
}

macro_rules! lines {
    ($out:expr, $($name:literal = $value:expr),* $(,)?) => {
        $( let _ = write!($out, concat!($name, ":{}\r\n"), $value); )*
    };
}

fn server(Sample { node, .. }: &Sample, out: &mut String) {
    let uptime = node.started.elapsed().as_secs();
    let port = node.addresses.first().map_or(0, std::net::SocketAddr::port);
    let file =
        node.config().file.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let program = std::env::current_exe().map(|p| p.display().to_string()).unwrap_or_default();
    lines!(
        out,
        "redis_version" = REDIS_VERSION,
        "tidemark_version" = env!("CARGO_PKG_VERSION"),
        "redis_mode" = mode(node),
        "os" = std::env::consts::OS,
        "arch_bits" = usize::BITS,
        "process_supervised" = "no",
        "multiplexing_api" = "epoll",
        "process_id" = std::process::id(),
        "run_id" = node.run_id,
        "tcp_port" = port,
        "admin_port" = node.admin.get().map_or(0, std::net::SocketAddr::port),
        "server_time_usec" = unix_us(),
        "uptime_in_seconds" = uptime,
        "uptime_in_days" = uptime / 86_400,
        "io_threads_active" = node.tallies.len(),
        "hz" = 10,
        "configured_hz" = 10,
        "lru_clock" = (unix_us() / 1_000_000) & 0xff_ffff,
        "executable" = program,
        "config_file" = file,
    );
    if let Some(until) = node.stop.leaves() {
        let left = until.saturating_duration_since(std::time::Instant::now());
        lines!(out, "shutdown_in_milliseconds" = left.as_millis());
    }
}

pub(crate) fn mode(node: &Node) -> &'static str {
    if node.cluster.is_enabled() { "cluster" } else { "standalone" }
}

/// The Kvrocks controller chooses a new master by `sequence`.
fn cluster(Sample { node, .. }: &Sample, out: &mut String) {
    let is_enabled = node.cluster.is_enabled();
    lines!(out, "cluster_enabled" = u8::from(is_enabled));
    if is_enabled {
        let lease = node.cluster.lease();
        lines!(
            out,
            "cluster_version" = node.cluster.topology().version,
            "cluster_election" = lease.map_or(0, |lease| lease.election),
            "cluster_lease_ms" = lease.map_or(0, |lease| lease.ms),
            "cluster_nodes_failed" = node.cluster_failed(),
            "cluster_peer_requests" = node.cluster.asked.load(Relaxed),
            "cluster_peer_requests_failed" = node.cluster.unanswered.load(Relaxed),
            "sequence" = node.durability.acknowledged_offset(),
        );
    }
}

fn clients(sample: &Sample, out: &mut String) {
    let clients = sample.clients();
    let most = |of: fn(&node::runtime::clients::Client) -> usize| {
        clients.iter().map(|c| of(c)).max().unwrap_or(0)
    };
    metrics::lines(metrics::CLIENTS, sample, out);
    lines!(
        out,
        "cluster_connections" = 0,
        "client_recent_max_input_buffer" = most(|c| c.query_bytes.load(Relaxed)),
        "client_recent_max_output_buffer" = most(|c| c.output_bytes.load(Relaxed)),
        "client_recent_max_push_buffer" = most(|c| c.inbox.waiting()),
        "total_watched_keys" = clients.iter().map(|c| c.watching.load(Relaxed)).sum::<usize>(),
        "most_watched_keys" = most(|c| c.watching.load(Relaxed)),
        "most_subscriptions" = most(|c| c.subscriptions.iter().map(|n| n.load(Relaxed)).sum()),
        "most_queued_commands" = most(|c| usize::try_from(c.queued.load(Relaxed)).unwrap_or(0)),
        "acl_log_entries" = sample.node.acl.log.lock().newest(usize::MAX).len(),
    );
}

fn human(bytes: u64) -> String {
    let scaled =
        |shift: u32, unit: &str| format!("{:.2}{unit}", bytes as f64 / (1u64 << shift) as f64);
    match bytes {
        0..1_024 => format!("{bytes}B"),
        1_024..1_048_576 => scaled(10, "K"),
        1_048_576..1_073_741_824 => scaled(20, "M"),
        1_073_741_824..1_099_511_627_776 => scaled(30, "G"),
        _ => scaled(40, "T"),
    }
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.2}%", part as f64 * 100.0 / whole.max(1) as f64)
}

fn memory(Sample { node, .. }: &Sample, out: &mut String) {
    let tables = node.loaded().map_or(0, |engines| engines.memory_bytes());
    let limit = node.config().memory_bytes();
    let resident = resident_bytes();
    // Value compared with the memory limit; see `Sharing` in net/workers.rs.
    let used = resident.max(tables);
    let (peak, system) =
        (kilobytes("/proc/self/status", "VmHWM"), kilobytes("/proc/meminfo", "MemTotal"));
    lines!(
        out,
        "used_memory" = used,
        "used_memory_human" = human(used),
        "used_memory_rss" = resident,
        "used_memory_rss_human" = human(resident),
        // The kernel's peak covers the whole process.
        "used_memory_peak" = peak,
        "used_memory_peak_human" = human(peak),
        "used_memory_peak_perc" = percent(resident, peak),
        "used_memory_overhead" = resident.saturating_sub(tables),
        "used_memory_dataset" = tables,
        "used_memory_dataset_perc" = percent(tables, resident),
        "total_system_memory" = system,
        "total_system_memory_human" = human(system),
        "used_memory_lua" = 0,
        "used_memory_scripts" = 0,
        "number_of_cached_scripts" = 0,
        "maxmemory" = limit,
        "maxmemory_human" = human(limit),
        "maxmemory_policy" = "noeviction",
        "mem_clients_subscriptions" =
            node.clients.list().iter().map(|c| c.kept_bytes.load(Relaxed)).sum::<usize>(),
        "mem_clients_normal" =
            node.clients.list().iter().map(|c| metrics::buffer_bytes(c)).sum::<usize>(),
        "mem_connections" = node.clients.list().len() * metrics::CONNECTION_BYTES,
        "mem_clients_slaves" = 0,
        "mem_replication_backlog" = 0,
        "mem_aof_buffer" = node.durability.committer().queue_bytes(),
        "mem_cluster_links" = 0,
        "mem_tracking_table" = node.tracking.memory_bytes(),
        "mem_tokens" = node.loaded().map_or(0, |engines| engines.tokens.stats().bytes),
        "mem_groups" = node.loaded().map_or(0, |engines| engines.groups.stats().bytes),
        "mem_changes_index" = node.changes.memory_bytes(),
        "mem_allocator" = "jemalloc",
        "active_defrag_running" = 0,
        "lazyfree_pending_objects" = 0,
    );
}

fn persistence(sample: &Sample, out: &mut String) {
    let is_writable = sample.node.durability.refusal().is_none();
    let status = |is_good: bool| if is_good { "ok" } else { "err" };
    metrics::lines(metrics::PERSISTENCE, sample, out);
    lines!(
        out,
        "async_loading" = 0,
        "rdb_last_bgsave_status" = status(sample.saved().error.is_none()),
        "rdb_current_bgsave_time_sec" = -1,
        "backup_last_status" = sample.backups().last.as_ref().map_or("none", |b| b.fate.name()),
        "backup_log_status" = sample.backups().kept.name(),
        // Snapshots do not fork, so there is no copy-on-write memory.
        "rdb_last_cow_size" = 0,
        "aof_enabled" = 1,
        "aof_rewrite_in_progress" = 0,
        "aof_rewrite_scheduled" = 0,
        "aof_last_rewrite_time_sec" = -1,
        "aof_current_rewrite_time_sec" = -1,
        "aof_last_bgrewrite_status" = "ok",
        "aof_last_write_status" = status(is_writable),
    );
}

fn stats(sample: &Sample, out: &mut String) {
    let node = &sample.node;
    let tracked = node.tracking.size();
    let kbps = |bytes: &std::sync::atomic::AtomicU64| {
        format!("{:.2}", bytes.load(Relaxed) as f64 / 1024.0)
    };
    metrics::lines(metrics::STATS, sample, out);
    lines!(
        out,
        "instantaneous_input_kbps" = kbps(&node.rates.bytes_in),
        "instantaneous_output_kbps" = kbps(&node.rates.bytes_out),
        "instantaneous_input_repl_kbps" = kbps(&node.rates.link_bytes_in),
        "instantaneous_output_repl_kbps" = kbps(&node.rates.link_bytes_out),
        "expired_subkeys" = 0,
        "expired_keys" = 0,
        "expired_stale_perc" = "0.00",
        "expired_time_cap_reached_count" = 0,
        "expire_cycle_cpu_milliseconds" = 0,
        "evicted_keys" = 0,
        "evicted_scripts" = 0,
        "total_eviction_exceeded_time" = 0,
        "current_eviction_exceeded_time" = 0,
        "migrate_cached_sockets" = 0,
        "slave_expires_tracked_keys" = 0,
        "active_defrag_hits" = 0,
        "active_defrag_misses" = 0,
        "active_defrag_key_hits" = 0,
        "active_defrag_key_misses" = 0,
        "total_active_defrag_time" = 0,
        "current_active_defrag_time" = 0,
        "pubsubshard_channels" = node.channels.len(ChannelKind::Shard),
        "latest_fork_usec" = 0,
        "total_forks" = 0,
        "tracking_total_items" = tracked.1,
        "tracking_total_prefixes" = node.tracking.prefixes(),
        "unexpected_error_replies" = 0,
        "dump_payload_sanitizations" = 0,
    );
}

fn errorstats(Sample { node, .. }: &Sample, out: &mut String) {
    for (word, count) in node.calls.errors() {
        let _ = write!(out, "errorstat_{word}:count={count}\r\n");
    }
}

fn commandstats(Sample { node, .. }: &Sample, out: &mut String) {
    for (number, spec) in with_numbers() {
        let sums = node.calls.sums(number);
        if !sums.is_all_zero() {
            let _ = write!(
                out,
                "cmdstat_{}:calls={},usec={:.0},usec_per_call={:.2},rejected_calls={},failed_calls=\
                 {}\r\n",
                spec.name,
                sums.calls,
                sums.us(),
                sums.us_per_call(),
                sums.rejected,
                sums.failed
            );
        }
    }
}

fn latencystats(Sample { node, .. }: &Sample, out: &mut String) {
    for (number, spec) in with_numbers() {
        let sums = node.calls.sums(number);
        let percentiles = [0.5, 0.99, 0.999].map(|share| sums.percentile_us(share));
        if let [Some(p50), Some(p99), Some(p999)] = percentiles {
            let _ = write!(
                out,
                "latency_percentiles_usec_{}:p50={p50:.3},p99={p99:.3},p99.9={p999:.3}\r\n",
                spec.name
            );
        }
    }
}

fn cpu(_: &Sample, out: &mut String) {
    // Fields 14 to 17 of proc(5). Count from the closing parenthesis, because the process name may
    // contain spaces.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().collect();
    let ticks = rustix::param::clock_ticks_per_second().max(1) as f64;
    let seconds =
        |index: usize| fields.get(index).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0) / ticks;
    let names =
        ["used_cpu_sys", "used_cpu_user", "used_cpu_sys_children", "used_cpu_user_children"];
    for (name, field) in names.into_iter().zip([12, 11, 14, 13]) {
        let _ = write!(out, "{name}:{:.6}\r\n", seconds(field));
    }
}

fn keyspace(Sample { node, .. }: &Sample, out: &mut String) {
    let Some(engines) = node.loaded() else { return };
    let rows = engines.all_rows();
    if rows > 0 {
        let _ = write!(out, "db0:keys={rows},expires=0,avg_ttl=0\r\n");
    }
}

fn spaces(Sample { node, .. }: &Sample, out: &mut String) {
    let Some(engines) = node.loaded() else { return };
    for space in engines.counters() {
        let _ = write!(out, "counter_{}:", space.name());
        metrics::pairs(metrics::COUNTER_SPACES, space, out);
        out.push_str("\r\n");
    }
    for space in engines.existences() {
        let _ = write!(out, "existence_{}:", space.name());
        metrics::pairs(metrics::EXISTENCE_SPACES, space, out);
        out.push_str("\r\n");
        if let Some(ledger) = space.ledger() {
            let _ = write!(out, "ledger_{}:", space.name());
            metrics::pairs(metrics::LEDGERS, ledger, out);
            out.push_str("\r\n");
        }
    }
    for audit in node.audits.complete() {
        let _ = write!(out, "audit_{}:", audit.request.action);
        metrics::pairs(metrics::AUDITS, &audit, out);
        out.push_str("\r\n");
    }
}

/// Formats the measured false-positive rate with its confidence interval. If `measured_at_least` is
/// below `false_positive_rate`, the measurement does not contradict the configured rate.
fn measured(measured: phantom::CanaryCounts) -> String {
    let (least, most) = (measured.at_least(), measured.at_most());
    format!(
        "measured_rate={:.7},measured_at_least={least:.7},measured_at_most={most:.7},canaries={}",
        measured.rate().unwrap_or(0.0),
        measured.canaries
    )
}

const MAX_DAMAGED_SHOWN: usize = 16;

fn cold(sample: &Sample, out: &mut String) {
    let Some(engines) = sample.node.loaded() else { return };
    let cold = &engines.cold;
    let figures = &cold.figures;
    let load = |n: &std::sync::atomic::AtomicU64| n.load(Relaxed);
    let (hits, misses, reads) = (load(&figures.hits), load(&figures.misses), load(&figures.reads));
    let trouble = cold.trouble.lock().values().next().cloned();
    metrics::lines(metrics::COLD, sample, out);
    let damaged = sample.damaged().iter().take(MAX_DAMAGED_SHOWN);
    let damaged: Vec<&str> = damaged.map(|(file, _)| file.as_str()).collect();
    lines!(
        out,
        "cold_read_usec_mean" = load(&figures.read_ns) / 1000 / reads.max(1),
        "cold_read_usec_p50" = figures.read_us(0.5),
        "cold_read_usec_p99" = figures.read_us(0.99),
        "cold_cache_hit_ratio" = format!("{:.4}", hits as f64 / (hits + misses).max(1) as f64),
        "cold_damaged" = damaged.join(","),
        "spill_last_status" = if trouble.is_none() { "ok" } else { "err" },
        "spill_last_error" = trouble.unwrap_or_default(),
    );
}

fn ingest(Sample { node, .. }: &Sample, out: &mut String) {
    for source in &node.ingest.sources {
        let state = source.ingest_progress().state.name();
        let _ = write!(out, "ingest_{}:state={state},", source.config.name);
        metrics::pairs(metrics::SOURCES, source, out);
        let _ =
            write!(out, "\r\ningest_{}_last_error:{}\r\n", source.config.name, source.last_error());
    }
}

fn tables(Sample { node, .. }: &Sample, out: &mut String) {
    let Some(engines) = node.loaded() else { return };
    for space in engines.counters() {
        for (number, t) in space.tables().into_iter().enumerate() {
            let _ = write!(
                out,
                "table_{}_{number}:low={},last={},rows={},fill={:.4},probes_mean={:.3},probes_p99=\
                 {},probes_max={},aux_entries={},aux_bytes={},extend_rows={},extend_bytes={},bytes=\
                 {},bytes_per_row={:.2}\r\n",
                space.name(),
                t.low,
                t.last,
                t.rows,
                t.fill,
                t.probes_mean,
                t.probes_p99,
                t.probes_max,
                t.aux_entries,
                t.aux_bytes,
                t.extend_rows,
                t.extend_bytes,
                t.bytes,
                t.bytes_per_row
            );
        }
    }
    for space in engines.existences() {
        for (number, t) in space.tables().into_iter().enumerate() {
            let _ = write!(
                out,
                "table_{}_{number}:low={},last={},pairs={},fill={:.4},extensions={},revoked={},fals\
                 e_positive_rate={},bytes={}",
                space.name(),
                t.low,
                t.last,
                t.pairs,
                t.fill,
                t.extensions,
                t.revoked,
                t.configured_rate,
                t.bytes
            );
            // Cold tables are not probed, because each probe would be a disk read.
            if !t.is_cold {
                let _ = write!(out, ",{}", measured(t.measured));
            }
            out.push_str("\r\n");
        }
    }
}
