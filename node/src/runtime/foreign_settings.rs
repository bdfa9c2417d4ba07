//! Settings that only Redis has, for CONFIG GET and CONFIG SET.
//!
//! The design of this server determines the value of a *fixed* setting. CONFIG SET accepts that
//! value, and refuses all other values with a reason. An *idle* setting belongs to a Redis
//! mechanism that this server lacks (encodings, eviction samples, active defragmentation). CONFIG
//! SET accepts any value of its type, without effect, and CONFIG GET returns that value.

use crate::config::{BACKLOG, Config};
use dataset::options::units::Unit;

/// Idle settings, with the default values of Redis.
const IDLE: &[(&str, &str)] = &[
    ("active-defrag-cycle-max", "25"),
    ("active-defrag-cycle-min", "1"),
    ("active-defrag-ignore-bytes", "104857600"),
    ("active-defrag-threshold-lower", "10"),
    ("active-defrag-threshold-upper", "100"),
    ("active-expire-effort", "1"),
    ("activedefrag", "no"),
    ("activerehashing", "yes"),
    ("aof-use-rdb-preamble", "yes"),
    ("auto-aof-rewrite-min-size", "67108864"),
    ("auto-aof-rewrite-percentage", "100"),
    ("busy-reply-threshold", "5000"),
    ("dynamic-hz", "yes"),
    ("hash-max-listpack-entries", "512"),
    ("hash-max-listpack-value", "64"),
    ("hash-max-ziplist-entries", "512"),
    ("hash-max-ziplist-value", "64"),
    ("hll-sparse-max-bytes", "3000"),
    ("hz", "10"),
    ("jemalloc-bg-thread", "yes"),
    ("lazyfree-lazy-eviction", "no"),
    ("lazyfree-lazy-expire", "no"),
    ("lazyfree-lazy-server-del", "no"),
    ("lazyfree-lazy-user-del", "no"),
    ("lazyfree-lazy-user-flush", "no"),
    ("lfu-decay-time", "1"),
    ("lfu-log-factor", "10"),
    ("list-compress-depth", "0"),
    ("list-max-listpack-size", "-2"),
    ("list-max-ziplist-size", "-2"),
    ("lua-time-limit", "5000"),
    ("maxmemory-eviction-tenacity", "10"),
    ("maxmemory-samples", "5"),
    ("no-appendfsync-on-rewrite", "no"),
    ("rdb-save-incremental-fsync", "yes"),
    ("rdbcompression", "yes"),
    ("repl-diskless-load", "disabled"),
    ("repl-diskless-sync", "yes"),
    ("repl-diskless-sync-delay", "5"),
    ("set-max-intset-entries", "512"),
    ("set-max-listpack-entries", "128"),
    ("set-max-listpack-value", "64"),
    ("stream-node-max-bytes", "4096"),
    ("stream-node-max-entries", "100"),
    ("zset-max-listpack-entries", "128"),
    ("zset-max-listpack-value", "64"),
    ("zset-max-ziplist-entries", "128"),
    ("zset-max-ziplist-value", "64"),
];

pub(crate) const IMMUTABLE: &str = "can't set immutable config";

/// Maximum output buffer in bytes. This value also replaces 0, which means no limit in Redis.
const MAX_BUFFER_BYTES: u64 = 2 << 30;

/// Names and current values of all idle settings.
#[derive(Clone, Debug)]
pub(crate) struct Idle(Vec<(&'static str, String)>);

impl Default for Idle {
    fn default() -> Idle {
        Idle(IDLE.iter().map(|(name, value)| (*name, (*value).to_owned())).collect())
    }
}

impl Idle {
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// Sets an idle setting by its case-insensitive name. Returns `None` if the name is unknown.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Option<Result<(), &'static str>> {
        let (_, slot) = self.0.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        let is_switch = |text: &str| ["yes", "no"].iter().any(|w| text.eq_ignore_ascii_case(w));
        let outcome = if is_switch(slot) && !is_switch(value) {
            Err("argument must be 'yes' or 'no'")
        } else if slot.parse::<i64>().is_ok() && Unit::Bytes.parse(value).is_err() {
            Err("argument couldn't be parsed into an integer")
        } else {
            *slot = value.to_ascii_lowercase();
            Ok(())
        };
        Some(outcome)
    }
}

pub(crate) fn fixed(config: &Config, port: u16) -> Vec<(&'static str, String)> {
    let every_s = config.durability.snapshot_every_s;
    let text = str::to_owned;
    vec![
        ("appendonly", text("yes")),
        ("client-output-buffer-limit", buffer_limits(config)),
        ("databases", text("1")),
        ("latency-tracking", text("yes")),
        ("latency-tracking-info-percentiles", text("50 99 99.9")),
        ("loglevel", text("notice")),
        ("maxmemory", config.memory_bytes().to_string()),
        ("maxmemory-policy", text("noeviction")),
        ("notify-keyspace-events", String::new()),
        ("port", port.to_string()),
        ("replica-read-only", text("yes")),
        ("replica-serve-stale-data", text("yes")),
        ("save", if every_s == 0 { String::new() } else { format!("{every_s} 1") }),
        ("slave-read-only", text("yes")),
        ("slave-serve-stale-data", text("yes")),
        ("stop-writes-on-bgsave-error", text("no")),
        ("tcp-backlog", BACKLOG.to_string()),
    ]
}

pub(crate) fn why_fixed(name: &str) -> &'static str {
    match name {
        "appendonly" => "the log cannot be disabled; durability.fsync sets when it is synced",
        "latency-tracking" | "latency-tracking-info-percentiles" => {
            "latency tracking cannot be disabled"
        }
        "loglevel" => "set the environment variable RUST_LOG before the start instead",
        "maxmemory-policy" => "eviction is not supported",
        "notify-keyspace-events" => "keyspace events are not supported; use PUBLISH",
        _ => IMMUTABLE,
    }
}

/// Returns `client-output-buffer-limit`. Replicas have no limit, and there are no soft limits.
fn buffer_limits(config: &Config) -> String {
    let (normal, pubsub) =
        (config.server.max_output_buffer_bytes, config.server.max_push_buffer_bytes);
    format!("normal {normal} 0 0 slave 0 0 0 pubsub {pubsub} 0 0")
}

/// Parses `client-output-buffer-limit`. Returns the corresponding keys of the section `server` with
/// their values.
pub(crate) fn read_buffer_limits(value: &str) -> Result<Vec<(&'static str, String)>, &'static str> {
    let words: Vec<&str> = value.split_ascii_whitespace().collect();
    if words.is_empty() || !words.len().is_multiple_of(4) {
        return Err("Wrong number of arguments in buffer limit configuration.");
    }
    let mut limits = Vec::new();
    for class in words.chunks_exact(4) {
        let ours = match class[0].to_ascii_lowercase().as_str() {
            "normal" => Some("max_output_buffer"),
            "pubsub" => Some("max_push_buffer"),
            "slave" | "replica" => None,
            _ => return Err("Invalid client class specified in buffer limit configuration."),
        };
        let bytes = |text: &str| Unit::Bytes.parse(text).ok();
        let numbers = bytes(class[1]).filter(|_| bytes(class[2]).is_some());
        let hard = numbers.filter(|_| class[3].parse::<u32>().is_ok());
        let hard = hard
            .ok_or("Error in hard, soft or soft_seconds setting in buffer limit configuration.")?;
        let hard = if hard == 0 { MAX_BUFFER_BYTES } else { hard.min(MAX_BUFFER_BYTES) };
        limits.extend(ours.map(|ours| (ours, hard.to_string())));
    }
    Ok(limits)
}
