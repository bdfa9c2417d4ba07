//! The server as a whole: INFO, CONFIG, COMMAND, SHUTDOWN and their like.

use super::{Call, NO_KEYS, Outcome, Refusal, Spec, command, flag, help_row, info, refuse};
use crate::config::Fsync;
use crate::glob;
use crate::node::unix_us;

const fn spec(
    name: &'static str,
    arity: i32,
    flags: u16,
    since: &'static str,
    usage: &'static str,
    summary: &'static str,
    run: super::Handler,
) -> Spec {
    Spec { name, arity, flags, keys: NO_KEYS, group: "server", since, usage, summary, run, subcommands: &[] }
}

const ALWAYS: u16 = flag::LOADING | flag::STALE;

#[rustfmt::skip]
pub(super) const TABLE: &[Spec] = &[
    command::COMMAND,
    Spec {
        name: "config", arity: -2, flags: 0, keys: NO_KEYS, group: "server", since: "2.0.0", usage: "",
        summary: "A container for commands about the configuration.", run: super::help,
        subcommands: &[
            spec("config|get", -3, ALWAYS | flag::ADMIN | flag::NOSCRIPT, "2.0.0", "parameter [parameter ...]",
                "Settings whose names match the patterns; our own by section and key (server.port), and those that Redis's tools ask for.", config_get),
            help_row("config|help", "server"),
        ],
    },
    spec("dbsize", 1, flag::READONLY | flag::FAST, "1.0.0", "", "How many rows there are. Pairs are not counted.", dbsize),
    spec("info", -1, ALWAYS, "1.0.0", "[section [section ...]]", "What the server knows of itself.", info::info),
    spec("bgsave", -1, flag::ADMIN | flag::NOSCRIPT, "1.0.0", "[SCHEDULE]",
        "Begins a snapshot. Reads and writes go on; INFO persistence and LASTSAVE tell when it is done.", bgsave),
    spec("lastsave", 1, ALWAYS | flag::FAST, "1.0.0", "", "When the last snapshot was complete, in seconds since 1970.", lastsave),
    spec("save", 1, flag::ADMIN | flag::NOSCRIPT, "1.0.0", "",
        "Writes a snapshot, and answers when it is complete. Nobody else waits for it.", save),
    spec("shutdown", -1, ALWAYS | flag::ADMIN | flag::NOSCRIPT, "1.0.0", "[NOSAVE|SAVE] [NOW] [FORCE]",
        "Stops the server. Replies that are on their way still arrive.", shutdown),
    spec("time", 1, ALWAYS | flag::FAST, "2.6.0", "", "Seconds since 1970, and microseconds in this second.", time),
];

fn dbsize(call: &mut Call<'_>) -> Outcome {
    let rows: u64 = call.node.engines.counters().iter().map(|s| s.rows()).sum();
    call.reply.int(i64::try_from(rows).unwrap_or(i64::MAX));
    Ok(())
}

fn bgsave(call: &mut Call<'_>) -> Outcome {
    if call.args.from(1).iter().any(|option| !option.eq_ignore_ascii_case(b"SCHEDULE")) || call.args.len() > 2 {
        return Err(Refusal::SYNTAX);
    }
    if call.node.snapshots.begin().is_none() {
        return Err(refuse!("ERR Background save already in progress"));
    }
    call.reply.simple("Background saving started");
    Ok(())
}

fn lastsave(call: &mut Call<'_>) -> Outcome {
    call.reply.int(call.node.snapshots.saved.borrow().last_s as i64);
    Ok(())
}

fn save(call: &mut Call<'_>) -> Outcome {
    let snapshots = call.node.snapshots.clone();
    call.session.hold =
        Some(Box::pin(async move { snapshots.save().await.map(|()| Vec::new()).map_err(|e| format!("ERR {e}")) }));
    call.reply.ok();
    Ok(())
}

fn time(call: &mut Call<'_>) -> Outcome {
    let now = unix_us();
    call.reply.array(2);
    call.reply.bulk((now / 1_000_000).to_string().as_bytes());
    call.reply.bulk((now % 1_000_000).to_string().as_bytes());
    Ok(())
}

fn shutdown(call: &mut Call<'_>) -> Outcome {
    for option in call.args.from(1).iter() {
        let known: [&[u8]; 4] = [b"nosave", b"save", b"now", b"force"];
        if option.eq_ignore_ascii_case(b"abort") {
            return Err(refuse!("ERR No shutdown in progress."));
        }
        if !known.iter().any(|k| option.eq_ignore_ascii_case(k)) {
            return Err(Refusal::SYNTAX);
        }
    }
    let has = |option: &[u8]| call.args.from(1).iter().any(|o| o.eq_ignore_ascii_case(option));
    if has(b"save") && has(b"nosave") {
        return Err(Refusal::SYNTAX);
    }
    tracing::info!("SHUTDOWN from {}: stopping", call.session.client.peer);
    call.node.stop.now();
    // As Redis: no reply, the connection closes.
    call.session.leaving = true;
    call.session.replies = super::Replies::Off;
    Ok(())
}

/// All settings by name, as CONFIG GET shows them.
fn settings(call: &Call<'_>) -> Vec<(String, String)> {
    let config = &call.node.config;
    let server = &config.server;
    let mut all: Vec<(String, String)> = Vec::new();
    // What Redis's tools ask for, under Redis's names.
    let fsync = match config.durability.fsync {
        Fsync::Always => "always",
        Fsync::Everysec => "everysec",
        Fsync::No => "no",
    };
    let memory: u64 = config.counter.iter().map(|c| c.memory_limit_bytes).sum();
    for (name, value) in [
        ("appendfsync", fsync.to_owned()),
        ("appendonly", "yes".to_owned()),
        ("bind", server.bind.join(" ")),
        ("client-query-buffer-limit", server.max_query_buffer_bytes.to_string()),
        ("databases", "1".to_owned()),
        ("dir", config.durability.dir.display().to_string()),
        ("maxclients", server.max_clients.to_string()),
        ("maxmemory", memory.to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("port", call.node.addresses.first().map_or(server.port, std::net::SocketAddr::port).to_string()),
        ("proto-max-bulk-len", server.max_bulk_bytes.to_string()),
        ("save", String::new()),
        ("tcp-backlog", server.backlog.to_string()),
        ("tcp-keepalive", server.tcp_keepalive_s.to_string()),
        ("timeout", server.idle_timeout_s.to_string()),
    ] {
        all.push((name.to_owned(), value));
    }
    // Ours, as the file has them. Seeds are secret.
    let plain = |value: &toml::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    for (section, value) in toml::Table::try_from(config).unwrap_or_default() {
        match value {
            toml::Value::Table(table) => {
                all.extend(table.iter().map(|(key, value)| (format!("{section}.{key}"), plain(value))));
            }
            toml::Value::Array(items) => {
                for item in items.iter().filter_map(toml::Value::as_table) {
                    let name = item.get("name").and_then(toml::Value::as_str).unwrap_or_default();
                    let keys = item.iter().filter(|(key, _)| *key != "name" && *key != "seed");
                    all.extend(keys.map(|(key, value)| (format!("{section}.{name}.{key}"), plain(value))));
                }
            }
            _ => {}
        }
    }
    all
}

/// Most bytes of a pattern.
const MAX_PATTERN: usize = 1024;

fn config_get(call: &mut Call<'_>) -> Outcome {
    let patterns = call.args.from(2);
    if patterns.iter().any(|p| p.len() > MAX_PATTERN) || patterns.len() > 1024 {
        return Err(refuse!("ERR too many or too long patterns"));
    }
    let mut found = settings(call);
    found.retain(|(name, _)| patterns.iter().any(|p| glob::matches(p, name.as_bytes(), true)));
    call.reply.map(found.len());
    for (name, value) in found {
        call.reply.bulk(name.as_bytes());
        call.reply.bulk(value.as_bytes());
    }
    Ok(())
}
