//! `/api/*` returns the dashboard's data as JSON. docs/admin.md describes the fields.
//!
//! Ids are strings, because a JavaScript number has only 53 bits of precision.

use super::health;
use dataset::engines::{CounterSpace, Engines, ExistenceSpace, View};
use node::command::table::name_of;
use node::metrics::{self, Sample, buffer_bytes};
use node::roles::backup_state::{ArchiveState, BackupOutcome, Status};
use node::roles::node::Node;
use node::roles::{ConnectedReplica, LinkState};
use node::runtime::clients::{Client, ClientKind};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Maximum number of slow-log entries in a response.
const SLOW_ENTRIES: usize = 100;
/// Maximum number of clients in a response.
const CLIENTS: usize = 1000;

/// Memory that Redis 7.0.15 uses for the same data, as measured by the demo: bytes per hash of four
/// counters, and bytes per member of a set of likes.
const REDIS_ROW_BYTES: f64 = 139.5;
const REDIS_PAIR_BYTES: f64 = 119.5 / 8.0;

/// Global metrics and error texts. Metrics of single spaces, commands or replicas are not included.
pub(super) fn status(node: &Arc<Node>) -> Value {
    let sample = Sample::new(node.clone());
    let values: Map<String, Value> = metrics::values(&sample).collect();
    let saved = sample.saved();
    let engines = node.loaded();
    let trouble = engines.as_ref().and_then(|e| e.cold.trouble.lock().values().next().cloned());
    let shown = |error: &str| health::without_paths(node, error);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "port": node.port(),
        "run_id": node.run_id,
        "unready": health::unready(node),
        "values": values,
        "log": {
            "fsync": node.config().durability.fsync,
            "refusal": node.durability.refusal().as_deref().map(shown),
        },
        "snapshot": { "error": saved.error.as_deref().map(shown) },
        "cold": { "error": trouble.as_deref().map(shown) },
        "backup": backup(sample.backups(), node),
        "replication": replication(node),
        "redis": {
            "row_bytes": REDIS_ROW_BYTES,
            "pair_bytes": REDIS_PAIR_BYTES,
            "source": "redis-server 7.0.15, measured by `tidemark demo`",
        },
    })
}

/// Content of BACKUP STATUS, without folder names.
fn backup(status: &Status, node: &Node) -> Value {
    let last = status.last.as_ref();
    let error = last.and_then(|last| match &last.fate {
        BackupOutcome::Failed(why) => Some(health::without_paths(node, why)),
        BackupOutcome::Made { .. } | BackupOutcome::Stopped => None,
    });
    let log_error = match &status.kept {
        ArchiveState::Failed(why) => Some(health::without_paths(node, why)),
        ArchiveState::Off | ArchiveState::UpTo(_) => None,
    };
    json!({
        "running_s": status.running.as_ref().map(|(_, since)| since.elapsed().as_secs_f64()),
        "last": last.map(|last| last.fate.name()),
        "last_took_s": last.map(|last| last.took.as_secs_f64()),
        "error": error,
        "log": status.kept.name(),
        "log_error": log_error,
    })
}

fn replication(node: &Node) -> Value {
    let replication = &node.replication;
    let end = node.durability.acknowledged_offset();
    let master = replication.master().map(|master| {
        let link = replication.link.lock();
        let state = match link.state {
            LinkState::Connect => "connect",
            LinkState::Connecting => "connecting",
            LinkState::Sync => "sync",
            LinkState::Connected => "connected",
        };
        json!({
            "address": format!("{}:{}", master.host, master.port),
            "state": state,
            "heard_s": link.heard.elapsed().as_secs_f64(),
            "lag_bytes": link.master_end.saturating_sub(end),
            "fetched_bytes": link.fetched,
            "error": health::without_paths(node, &link.error),
        })
    });
    let replica = |fed: &ConnectedReplica| {
        json!({
            "address": format!("{}:{}", fed.ip, fed.port),
            "state": fed.state(),
            "heard_s": fed.heard.elapsed().as_secs_f64(),
            "lag_bytes": end.saturating_sub(fed.written),
            "position": fed.written,
            "synced_position": fed.durable,
        })
    };
    let replicas: Vec<Value> = replication.feeds.reachable().iter().map(replica).collect();
    json!({
        "role": if master.is_some() { "replica" } else { "master" },
        "position": end,
        "term": replication.term.load(Relaxed),
        "fenced": replication.is_fenced(),
        "failover": replication.failover.name(),
        "master": master,
        "replicas": replicas,
    })
}

/// All spaces and their tables, and the views and actions that use the spaces.
pub(super) fn spaces(node: &Node) -> Value {
    let Some(engines) = node.loaded() else {
        let none: [Value; 0] = [];
        return json!({
            "loading": true,
            "counters": none,
            "existences": none,
            "views": none,
            "actions": none,
        });
    };
    let counters: Vec<Value> = engines.counters().iter().map(counter).collect();
    let existences: Vec<Value> = engines.existences().iter().map(existence).collect();
    let views: Vec<Value> = engines.views().iter().map(|v| view(&engines, v)).collect();
    let audits = node.audits.complete();
    let actions = engines.actions().iter().map(|action| {
        let audit = audits.iter().find(|audit| audit.request.action == action.name());
        json!({
            "name": action.name(),
            "flag": engines.flag_of(action).name(),
            "counter": engines.first_counter_name(action),
            "also": engines.further_counter_names(action, false),
            "member_counters": engines.further_counter_names(action, true),
            "audit": audit.map(|audit| json!({
                "ended_s": audit.ended_s,
                "ids": audit.ids,
                "differing": audit.differing,
                "repaired": audit.repaired,
                "unreadable": audit.unreadable,
            })),
        })
    });
    let actions: Vec<Value> = actions.collect();
    json!({
        "loading": false,
        "counters": counters,
        "existences": existences,
        "views": views,
        "actions": actions,
    })
}

fn view(engines: &Engines, view: &View) -> Value {
    let flags: Vec<&str> = engines.flags(view).map(ExistenceSpace::name).collect();
    let then: Vec<&str> = engines.then(view).map(View::name).collect();
    json!({
        "name": view.name(),
        "counters": engines.columns(view),
        "flags": flags,
        "then": then,
    })
}

fn counter(space: &CounterSpace) -> Value {
    let mut tables: Vec<Value> = space
        .tables()
        .into_iter()
        .map(|t| {
            json!({
                "low": t.low.to_string(),
                "last": t.last.to_string(),
                "state": "closed",
                "rows": t.rows,
                "fill": t.fill,
                "bytes": t.bytes,
                "bytes_per_row": t.bytes_per_row,
                "aux_entries": t.aux_entries,
                "extend_rows": t.extend_rows,
                "draining_rows": t.draining_rows,
            })
        })
        .collect();
    if let Some(newest) = tables.last_mut() {
        newest["state"] = json!("live");
    }
    let cold = space.cold().files();
    let cold = cold.all().iter().map(|file| {
        json!({
            "low": file.entry().tag.low.to_string(),
            "last": file.entry().tag.high.to_string(),
            "state": "cold",
            "rows": file.head().rows,
            "bytes": file.entry().bytes,
        })
    });
    let cold: Vec<Value> = cold.collect();
    let outliers = space.outlier_range().map(|range| {
        json!({ "low": range.low.to_string(), "last": range.last.to_string(), "rows": range.rows })
    });
    json!({
        "name": space.name(),
        "fields": space.schema().to_string(),
        "rows": space.rows(),
        "cold_rows": space.cold().rows(),
        "rows_per_table": space.rows_per_table(),
        "memory_bytes": space.memory_bytes(),
        "memory_limit_bytes": space.memory_limit_bytes(),
        "spills": space.spills(),
        "frontier": space.frontier().map(|id| id.to_string()),
        "tables": tables,
        "cold": cold,
        "outliers": outliers,
    })
}

fn existence(space: &ExistenceSpace) -> Value {
    let mut tables: Vec<Value> = space
        .tables()
        .into_iter()
        .map(|t| {
            json!({
                "low": t.low.to_string(),
                "last": t.last.to_string(),
                "state": if t.is_cold { "cold" } else { "closed" },
                "pairs": t.pairs,
                "capacity": t.capacity,
                "roll_at": t.roll_at,
                "fill": t.fill,
                "bytes": t.bytes,
                "late": t.late,
                "extensions": t.extensions,
                "unset": t.revoked,
                "expected_rate": t.expected_rate,
                "measured_rate": t.measured.rate(),
            })
        })
        .collect();
    if let Some(newest) = tables.last_mut() {
        newest["state"] = json!("live");
    }
    let (options, measured) = (space.declared(), space.measured());
    let outliers = space.outlier_range().map(|(low, last, pairs)| {
        json!({ "low": low.to_string(), "last": last.to_string(), "pairs": pairs })
    });
    json!({
        "name": space.name(),
        "pairs": space.pairs(),
        "memory_bytes": space.memory_bytes(),
        "memory_limit_bytes": space.filter_bytes_limit(),
        "max_tables": options.max_tables,
        "pairs_per_table": options.pairs_per_table,
        "spills": options.spill,
        "horizon": space.horizon().to_string(),
        "pairs_per_s": space.pairs_per_s(),
        "pairs_until_recycled": space.pairs_until_recycled(),
        "recycled_in_s": space.recycled_in_s(),
        "false_positives": {
            "configured": space.false_positive_rate(),
            "measured": measured.rate(),
            "at_least": measured.at_least(),
            "at_most": measured.at_most(),
            "canaries": measured.canaries,
        },
        "tables": tables,
        "outliers": outliers,
    })
}

pub(super) fn slowlog(node: &Node) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let entries: Vec<Value> = node
        .slow
        .newest(SLOW_ENTRIES)
        .iter()
        .map(|entry| {
            json!({
                "id": entry.id,
                "at_s": entry.at_s,
                "took_us": entry.took_us,
                "args": entry.args.iter().map(|arg| text(arg)).collect::<Vec<_>>(),
                "client": entry.peer,
                "name": text(&entry.name),
            })
        })
        .collect();
    json!({
        "slower_than_us": node.config().server.slowlog_slower_than_us,
        "count": node.slow.entries(),
        "entries": entries,
    })
}

/// Connected clients, oldest first.
pub(super) fn clients(node: &Node) -> Value {
    let now = Instant::now();
    let clients = node.clients.list();
    let shown: Vec<Value> = clients.iter().take(CLIENTS).map(|c| client(c, now)).collect();
    json!({ "count": clients.len(), "clients": shown })
}

fn client(client: &Client, now: Instant) -> Value {
    let names = client.names.lock();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    json!({
        "id": client.id,
        "address": client.peer.to_string(),
        "name": text(&names.name),
        "user": names.user,
        "library": format!("{} {}", text(&names.lib_name), text(&names.lib_version)).trim(),
        "kind": match client.kind() {
            ClientKind::Normal => "client",
            ClientKind::Pubsub => "subscriber",
            ClientKind::Replica => "replica",
            ClientKind::Master => "master",
        },
        "age_s": now.saturating_duration_since(client.since).as_secs(),
        "idle_s": client.idle_s(now),
        "last_command": name_of(client.last_command.load(Relaxed)),
        "blocked": client.is_blocked(),
        "buffer_bytes": buffer_bytes(client),
    })
}
