//! Metrics of INFO's section Stats.

use super::metric::MetricKind::{Counter, Gauge};
use super::sample::{Read, SampleMetric, field};
use crate::acl::Reason;
use crate::runtime::counters::LongestTurns;
use crate::runtime::pubsub;
use std::sync::atomic::Ordering::Relaxed;

const DISCONNECTED: &str =
    "Clients disconnected by the server: limits of buffers, memory and time; failed handshakes.";

const fn disconnected(of: &'static str, reason: &'static str, read: Read) -> SampleMetric {
    field(of, Counter, "tidemark_client_disconnections", DISCONNECTED, read).label("reason", reason)
}

const fn denied(of: &'static str, reason: &'static str, read: Read) -> SampleMetric {
    let help = "Requests denied by the ACL, including failed logins.";
    field(of, Counter, "tidemark_acl_denied", help, read).label("reason", reason)
}

/// Metrics of INFO's section Stats.
pub const STATS: &[SampleMetric] = &[
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
        "Commands executed in the last second.",
        |s| s.node.rates.commands.load(Relaxed).into(),
    ),
    field(
        "longest_turn_usec",
        Gauge,
        "tidemark_longest_turn",
        "Longest time that one client's requests blocked other clients, since the start.",
        |s| LongestTurns::ever_us(&s.node.tallies).into(),
    )
    .microseconds(),
    field(
        "longest_turn_last_minute_usec",
        Gauge,
        "tidemark_longest_turn_last_minute",
        "Longest time that one client's requests blocked other clients, in the last minute.",
        |s| s.node.turns.last_minute_us(&s.node.tallies).into(),
    )
    .microseconds(),
    field(
        "total_net_input_bytes",
        Counter,
        "tidemark_network_received",
        "Bytes received from clients.",
        |s| s.totals().bytes_in.into(),
    )
    .bytes(),
    field(
        "total_net_output_bytes",
        Counter,
        "tidemark_network_sent",
        "Bytes sent to clients.",
        |s| s.totals().bytes_out.into(),
    )
    .bytes(),
    field(
        "total_net_repl_input_bytes",
        Counter,
        "tidemark_replication_received",
        "Bytes received from the master.",
        |s| s.totals().link_bytes_in.into(),
    )
    .bytes(),
    field(
        "total_net_repl_output_bytes",
        Counter,
        "tidemark_replication_sent",
        "Bytes sent to replicas.",
        |s| s.totals().link_bytes_out.into(),
    )
    .bytes(),
    field(
        "rejected_connections",
        Counter,
        "tidemark_connections_rejected",
        "Connections rejected by max_clients or protected mode.",
        |s| s.node.clients.rejected.load(Relaxed).into(),
    ),
    field(
        "sync_full",
        Counter,
        "tidemark_replication_full_syncs_sent",
        "Full syncs sent to replicas.",
        |s| s.node.replication.feeds.full_sync_links.load(Relaxed).into(),
    ),
    field(
        "sync_partial_ok",
        Counter,
        "tidemark_replication_partial_syncs_sent",
        "Partial syncs sent to replicas.",
        |s| s.node.replication.feeds.log_only_links.load(Relaxed).into(),
    ),
    field(
        "sync_partial_err",
        Counter,
        "tidemark_replication_partial_syncs_refused",
        "Full syncs forced by a diverged replica.",
        |s| s.node.replication.feeds.refused_log.load(Relaxed).into(),
    ),
    field(
        "keyspace_hits",
        Counter,
        "tidemark_keyspace_hits",
        "Successful lookups of rows by key.",
        |s| s.totals().hits.into(),
    ),
    field(
        "keyspace_misses",
        Counter,
        "tidemark_keyspace_misses",
        "Failed lookups of rows by key.",
        |s| s.totals().misses.into(),
    ),
    field(
        "pubsub_channels",
        Gauge,
        "tidemark_pubsub_channels",
        "Channels with subscribers.",
        |s| s.node.channels.len(pubsub::ChannelKind::Channel).into(),
    ),
    field(
        "pubsub_patterns",
        Gauge,
        "tidemark_pubsub_patterns",
        "Patterns with subscribers.",
        |s| s.node.channels.len(pubsub::ChannelKind::Pattern).into(),
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
        "Keys evicted from the tracking table (max_tracked_keys).",
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
    field(
        "changes_consumers",
        Gauge,
        "tidemark_changes_consumers",
        "Consumers of all groups.",
        |s| s.groups().consumers.into(),
    ),
    field(
        "changes_pending",
        Gauge,
        "tidemark_changes_pending",
        "Entries delivered to consumers but not yet acknowledged.",
        |s| s.groups().pending.into(),
    ),
    field("tokens", Gauge, "tidemark_tokens", "Stored idempotency tokens.", |s| {
        s.tokens().tokens.into()
    }),
    field(
        "tokens_repeated",
        Counter,
        "tidemark_tokens_repeated",
        "Increments ignored because their token was already used.",
        |s| s.tokens().repeated.into(),
    ),
    field(
        "tokens_dropped",
        Counter,
        "tidemark_tokens_dropped",
        "Tokens evicted before tokens.keep, due to tokens.max_tokens or an eighth of \
         server.memory.",
        |s| s.tokens().dropped.into(),
    ),
    field(
        "tokens_dropped_age_s",
        Gauge,
        "tidemark_tokens_dropped_age",
        "Age of the token that was last evicted early: later retries count again. 0 if none was.",
        |s| s.tokens().dropped_age_s.into(),
    )
    .seconds(),
];
