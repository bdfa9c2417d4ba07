//! Diagnostic commands: SLOWLOG, LATENCY, MONITOR, MEMORY, DEBUG.

use crate::commands::call::Call;
use crate::commands::command::{Command, Group, Run::Once};
use dataset::cold::Unreadable;
use dataset::engines::{CounterSpace, KeyRef};
use node::command::error::{Printable, Refusal, refuse};
use node::command::spec::{ALWAYS, NO_KEYS, Outcome, SECOND_KEY, flag};
use node::command::table::with_numbers;
use std::time::Duration;

const SERVER: Group = Group::new("server", "2.8.13", NO_KEYS);
const READ_FLAGS: u32 = ALWAYS | flag::ADMIN;
/// Command tips of reports that describe only the node that executes them.
const REPORT_OF_EACH: &[&str] =
    &["request_policy:all_nodes", "response_policy:special", "nondeterministic_output"];

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    SERVER.container("slowlog", "A container for commands about slow commands.", &[
        SERVER.row("slowlog|get", -2, READ_FLAGS, "[count]", Once(slow_get),
            "Returns the newest entries of the slow log (default 10, -1 for all): id, time, \
             duration in microseconds, arguments, and address and name of the client. \
             Constant-time commands with few arguments are recorded only if \
             slowlog-log-slower-than is below 10000.").since("2.2.12")
            .linear("entries").tips(&["request_policy:all_nodes", "nondeterministic_output"]),
        SERVER.help("slowlog|help").since("6.2.0"),
        SERVER.row("slowlog|len", 2, READ_FLAGS, "", Once(slow_len),
            "Returns the number of entries in the slow log.").since("2.2.12")
            .tips(&["request_policy:all_nodes", "response_policy:agg_sum",
                "nondeterministic_output"]),
        SERVER.row("slowlog|reset", 2, READ_FLAGS, "", Once(slow_reset),
            "Clears the slow log.").since("2.2.12").linear("entries")
            .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
    ]).since("2.2.12"),
    SERVER.container("latency", "A container for commands about latency.", &[
        SERVER.row("latency|doctor", 2, READ_FLAGS, "", Once(latency_doctor),
            "Returns a human-readable report of the recorded latency events.")
            .tips(REPORT_OF_EACH),
        SERVER.help("latency|help"),
        SERVER.row("latency|histogram", -2, READ_FLAGS,
            "[command [command ...]]", Once(latency_histogram),
            "Returns for each command the number of calls and a cumulative histogram of their \
             duration, with buckets in powers of two microseconds. Constant-time commands are \
             sampled: one call in 64 is \
             timed and represents all 64.").since("7.0.0").linear("timed commands")
            .tips(REPORT_OF_EACH),
        SERVER.row("latency|history", 3, READ_FLAGS, "event", Once(latency_history),
            "Returns the occurrences of an event (command or fast-command) that exceeded \
             latency-monitor-threshold, each with its time and its duration in milliseconds.")
            .tips(REPORT_OF_EACH),
        SERVER.row("latency|latest", 2, READ_FLAGS, "", Once(latency_latest),
            "Returns for each event its name, the time and duration of the latest occurrence, and \
             the maximum duration. Durations are in milliseconds.")
            .tips(REPORT_OF_EACH),
        SERVER.row("latency|reset", -2, READ_FLAGS, "[event [event ...]]", Once(latency_reset),
            "Clears the given events, or all events. Returns the number of cleared events.")
            .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
    ]),
    SERVER.row("monitor", 1, READ_FLAGS | flag::NO_MULTI, "", Once(monitor),
        "Streams the commands of all clients, except administrative commands, until the client \
         sends RESET or closes the connection.").since("1.0.0")
        .cost("the cost of every command that the server processes"),
    SERVER.container("memory", "A container for commands about memory.", &[
        SERVER.row("memory|doctor", 2, flag::STALE, "", Once(memory_doctor),
            "Returns a human-readable report on spaces that are \
             close to their memory limit.").since("4.0.0")
            .tips(&["request_policy:all_shards", "response_policy:special",
                "nondeterministic_output"]),
        SERVER.help("memory|help").since("4.0.0"),
        SERVER.row("memory|malloc-stats", 2, flag::STALE, "", Once(memory_malloc),
            "Returns a message that the statistics of jemalloc are not compiled in.").since("4.0.0")
            .tips(&["request_policy:all_shards", "response_policy:special",
                "nondeterministic_output"]),
        SERVER.row("memory|purge", 2, flag::STALE, "", Once(memory_purge),
            "Returns OK and does nothing.").since("4.0.0")
            .tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
        SERVER.row("memory|stats", 2, flag::STALE, "", Once(memory_stats),
            "Returns the memory usage by component, with the names that Redis uses.").since("4.0.0")
            .tips(&["request_policy:all_shards", "response_policy:special",
                "nondeterministic_output"]),
        SERVER.row("memory|usage", -3, flag::READONLY, "key [SAMPLES count]", Once(memory_usage),
            "Returns the memory used by the row of a key, in bytes, including values stored \
             outside the row. The value is that of a row in a full table. Returns nil if the row \
             does not exist.").keys(SECOND_KEY).since("4.0.0")
            .uses("RO"),
    ]).since("4.0.0"),
    SERVER.container("debug", "A container for debugging commands.", &[
        SERVER.help("debug|help").since("1.0.0"),
        SERVER.row("debug|object", 3, READ_FLAGS | flag::READONLY, "key", Once(debug_object),
            "Returns low-level information about a key, in the format of Redis.")
            .keys(SECOND_KEY).since("1.0.0"),
        SERVER.row("debug|set-active-expire", 3, READ_FLAGS, "<0|1>", Once(debug_ok),
            "Returns OK and does nothing, because nothing expires.").since("3.0.0"),
        SERVER.row("debug|reload", -2, READ_FLAGS | flag::NO_MULTI,
            "[option [option ...]]", Once(debug_reload),
            "Writes a snapshot, and returns OK when the snapshot is complete. Does not reload the \
             data.")
            .since("1.0.0"),
        SERVER.row("debug|sleep", 3, READ_FLAGS | flag::NO_MULTI, "seconds", Once(debug_sleep),
            "Replies after the given number of seconds (at most 3600). Blocks this connection \
             only.")
            .since("1.0.0"),
    ]).since("1.0.0"),
];

fn slow_get(call: &mut Call<'_>) -> Outcome {
    let most = match call.args.len() {
        2 => 10,
        3 => match resp::integer(call.args.at(2)) {
            Some(-1) => usize::MAX,
            count => count
                .and_then(|count| usize::try_from(count).ok())
                .ok_or_else(|| refuse!("ERR count should be greater than or equal to -1"))?,
        },
        _ => return Err(call.wrong_subcommand()),
    };
    let entries = call.node.slow.newest(most);
    call.reply.array(entries.len());
    for entry in entries {
        call.reply.array(6);
        call.reply.int(i64::try_from(entry.id).unwrap_or(i64::MAX));
        call.reply.int(i64::try_from(entry.at_s).unwrap_or(i64::MAX));
        call.reply.int(i64::try_from(entry.took_us).unwrap_or(i64::MAX));
        call.reply.array(entry.args.len());
        entry.args.iter().for_each(|arg| call.reply.bulk(arg));
        call.reply.bulk(entry.peer.as_bytes());
        call.reply.bulk(&entry.name);
    }
    Ok(())
}

fn slow_len(call: &mut Call<'_>) -> Outcome {
    call.reply.count(call.node.slow.entries());
    Ok(())
}

fn slow_reset(call: &mut Call<'_>) -> Outcome {
    call.node.slow.reset();
    call.reply.ok();
    Ok(())
}

fn latency_history(call: &mut Call<'_>) -> Outcome {
    let events = call.node.slow.events();
    let name = String::from_utf8_lossy(call.args.at(2));
    let history = events.get(&*name).map(|event| event.history.clone()).unwrap_or_default();
    call.reply.array(history.len());
    for (at_s, ms) in history {
        call.reply.array(2);
        call.reply.int(at_s as i64);
        call.reply.int(ms as i64);
    }
    Ok(())
}

fn latency_latest(call: &mut Call<'_>) -> Outcome {
    let events = call.node.slow.events();
    call.reply.array(events.len());
    for (name, event) in events {
        let (at_s, ms) = event.history.back().copied().unwrap_or_default();
        call.reply.array(4);
        call.reply.bulk(name.as_bytes());
        call.reply.int(at_s as i64);
        call.reply.int(ms as i64);
        call.reply.int(event.highest_ms as i64);
    }
    Ok(())
}

fn latency_reset(call: &mut Call<'_>) -> Outcome {
    let names = call.args.from(2);
    let reset = call
        .node
        .slow
        .reset_events(|event| names.is_empty() || names.iter().any(|n| n == event.as_bytes()));
    call.reply.count(reset);
    Ok(())
}

fn latency_histogram(call: &mut Call<'_>) -> Outcome {
    let wanted = crate::commands::admin::command::asked_names(call)?;
    // The name of a container command selects all of its subcommands.
    let is_wanted = |name: &str| {
        let command = name.split('|').next().unwrap_or_default();
        wanted.is_empty()
            || wanted
                .iter()
                .any(|w| [name, command].iter().any(|n| w.eq_ignore_ascii_case(n.as_bytes())))
    };
    let known = with_numbers().filter(|(_, spec)| is_wanted(spec.name));
    let told: Vec<_> =
        known.map(|(number, spec)| (spec.name, call.node.calls.sums(number))).collect();
    let told: Vec<_> = told
        .iter()
        .map(|(name, sums)| (name, sums.calls, sums.distribution()))
        .filter(|t| !t.2.is_empty())
        .collect();
    call.reply.map(told.len());
    for (name, calls, distribution) in told {
        call.reply.bulk(name.as_bytes());
        call.reply.map(2);
        call.reply.bulk(b"calls");
        call.reply.int(i64::try_from(calls).unwrap_or(i64::MAX));
        call.reply.bulk(b"histogram_usec");
        call.reply.map(distribution.len());
        for (limit_us, count) in distribution {
            call.reply.int(i64::try_from(limit_us).unwrap_or(i64::MAX));
            call.reply.int(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
    Ok(())
}

fn latency_doctor(call: &mut Call<'_>) -> Outcome {
    let threshold = call.node.config().server.latency_threshold_ms;
    let events = call.node.slow.events();
    let text = if threshold == 0 {
        "Latency monitoring is disabled. Enable it with CONFIG SET latency-monitor-threshold \
         <milliseconds>."
            .to_owned()
    } else if events.is_empty() {
        format!("No command took {threshold} ms or more.")
    } else {
        let lines = events.iter().map(|(name, event)| {
            format!(
                "{name}: {} seconds with a latency of at least {threshold} ms, maximum {} ms. ",
                event.history.len(),
                event.highest_ms
            )
        });
        lines.collect::<String>() + "SLOWLOG GET lists the slow commands."
    };
    call.reply.text(&text);
    Ok(())
}

fn monitor(call: &mut Call<'_>) -> Outcome {
    if !call.session.monitoring {
        call.session.monitoring = true;
        call.node.monitors.add(&call.session.client);
    }
    call.reply.ok();
    Ok(())
}

fn memory_usage(call: &mut Call<'_>) -> Outcome {
    match call.args.len() {
        3 => {}
        5 if call.args.at(3).eq_ignore_ascii_case(b"samples") => {
            if crate::commands::call::integer(call.args.at(4))? < 0 {
                return Err(Refusal::SYNTAX);
            }
        }
        _ => return Err(Refusal::SYNTAX),
    }
    match call.node.engines().resolve(call.args.at(2)).ok() {
        Some(KeyRef::Row { space, id } | KeyRef::Cell { space, id, .. }) => {
            match row_bytes(call, space, id)? {
                Some(bytes) => call.reply.int(i64::try_from(bytes).unwrap_or(i64::MAX)),
                None => call.reply.null(),
            }
        }
        None => call.reply.null(),
        Some(KeyRef::Pair { .. }) => return Err(Refusal::NOT_LISTABLE),
    }
    Ok(())
}

/// Returns the number of bytes that a row takes in a full table, or `None` if the row does not
/// exist.
fn row_bytes(
    call: &mut Call<'_>,
    space: &CounterSpace,
    id: u64,
) -> Result<Option<u64>, Unreadable> {
    let row = &mut call.scratch.row;
    row.clear();
    row.resize(space.schema().width(), 0);
    Ok(space.get(id, row)?.then(|| space.row_bytes(row)))
}

fn memory_doctor(call: &mut Call<'_>) -> Outcome {
    let mut text = String::new();
    for space in call.node.engines().counters() {
        let (used, limit) = (space.memory_bytes(), space.memory_limit_bytes());
        if used > limit / 10 * 9 {
            text += &format!(
                "The space '{}' uses {used} of {limit} bytes, its limit (memory_limit, or its \
                 share of server.memory). ",
                space.name()
            );
        }
    }
    if text.is_empty() {
        text.push_str("All spaces are well below their memory limits.");
    }
    call.reply.text(text.trim_end());
    Ok(())
}

fn memory_malloc(call: &mut Call<'_>) -> Outcome {
    call.reply.text(
        "jemalloc's statistics are not compiled in; TM.SPACE LIST shows the memory of the tables.",
    );
    Ok(())
}

fn memory_purge(call: &mut Call<'_>) -> Outcome {
    call.reply.ok();
    Ok(())
}

fn memory_stats(call: &mut Call<'_>) -> Outcome {
    let engines = call.node.engines();
    let (resident, tables) =
        (node::runtime::process_memory::resident_bytes(), engines.memory_bytes());
    let keys = engines.all_rows();
    let rows: u64 = engines.counters().iter().map(|s| s.memory_bytes()).sum();
    let all = [
        ("peak.allocated", node::runtime::process_memory::kilobytes("/proc/self/status", "VmHWM")),
        ("total.allocated", resident),
        ("overhead.total", resident.saturating_sub(tables)),
        ("keys.count", keys),
        ("keys.bytes-per-key", rows / keys.max(1)),
        ("dataset.bytes", tables),
    ];
    call.reply.map(all.len());
    for (name, value) in all {
        call.reply.bulk(name.as_bytes());
        call.reply.int(i64::try_from(value).unwrap_or(i64::MAX));
    }
    Ok(())
}

fn debug_ok(call: &mut Call<'_>) -> Outcome {
    crate::commands::call::integer(call.args.at(2))?;
    call.reply.ok();
    Ok(())
}

fn debug_reload(call: &mut Call<'_>) -> Outcome {
    crate::commands::admin::server::save(call)
}

fn debug_object(call: &mut Call<'_>) -> Outcome {
    let (exists, encoding) = crate::commands::keys::keyspace::is_there(call, 2)?;
    if !exists {
        return Err(refuse!("ERR no such key"));
    }
    let bytes = match call.node.engines().resolve(call.args.at(2)).ok() {
        Some(KeyRef::Row { space, id } | KeyRef::Cell { space, id, .. }) => {
            row_bytes(call, space, id)?.unwrap_or(0)
        }
        _ => 0,
    };
    call.reply.simple(&format!(
        "Value at:0x0 refcount:1 encoding:{encoding} serializedlength:{bytes} lru:0 \
         lru_seconds_idle:0"
    ));
    Ok(())
}

fn debug_sleep(call: &mut Call<'_>) -> Outcome {
    let text = call.args.at(2);
    let seconds = std::str::from_utf8(text)
        .ok()
        .and_then(|t| t.parse::<f64>().ok())
        .filter(|s| (0.0..=3600.0).contains(s));
    let Some(seconds) = seconds else {
        return Err(refuse!(
            "ERR Invalid number of seconds '{}': must be 0 to 3600",
            Printable(text)
        ));
    };
    call.answer_when(async move {
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        b"+OK\r\n".to_vec()
    });
    Ok(())
}
