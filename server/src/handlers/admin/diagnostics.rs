//! Commands for operators: SLOWLOG, LATENCY, MONITOR, MEMORY, DEBUG.

use crate::handlers::Handler;
use crate::handlers::call::Call;
use crate::handlers::help::help;
use dataset::cold::Unreadable;
use dataset::engines::{CounterSpace, KeyRef};
use node::command::error::{Printable, Refusal, refuse};
use node::command::spec::Outcome;
use node::command::table::with_numbers;
use std::time::Duration;

pub(crate) const RUN: &[(&str, Handler)] = &[
    ("slowlog|get", slow_get),
    ("slowlog|help", help),
    ("slowlog|len", slow_len),
    ("slowlog|reset", slow_reset),
    ("slowlog", help),
    ("latency|doctor", latency_doctor),
    ("latency|help", help),
    ("latency|histogram", latency_histogram),
    ("latency|history", latency_history),
    ("latency|latest", latency_latest),
    ("latency|reset", latency_reset),
    ("latency", help),
    ("monitor", monitor),
    ("memory|doctor", memory_doctor),
    ("memory|help", help),
    ("memory|malloc-stats", memory_malloc),
    ("memory|purge", memory_purge),
    ("memory|stats", memory_stats),
    ("memory|usage", memory_usage),
    ("memory", help),
    ("debug|help", help),
    ("debug|object", debug_object),
    ("debug|set-active-expire", debug_ok),
    ("debug|reload", debug_reload),
    ("debug|sleep", debug_sleep),
    ("debug", help),
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
    let wanted = crate::handlers::admin::command::asked_names(call)?;
    // A command with subcommands stands for all of them.
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
        "Latency monitoring is off: CONFIG SET latency-monitor-threshold <milliseconds> turns it \
         on."
        .to_owned()
    } else if events.is_empty() {
        format!("No command has taken {threshold} ms or more.")
    } else {
        let lines = events.iter().map(|(name, event)| {
            format!(
                "{name}: {} seconds with at least {threshold} ms, at most {} ms. ",
                event.history.len(),
                event.highest_ms
            )
        });
        lines.collect::<String>() + "SLOWLOG GET shows the commands."
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
            if crate::handlers::call::integer(call.args.at(4))? < 0 {
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
        Some(KeyRef::Pair { .. }) => return Err(Refusal::NOT_COUNTED),
    }
    Ok(())
}

/// Returns the bytes that a row takes in a full table, unless it does not exist.
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
                "The space '{}' takes {used} of the {limit} bytes that it may (its share of \
                 server.memory_bytes, or its memory_limit_bytes). ",
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
        "jemalloc: its statistics are not compiled in; TM.SPACE LIST tells what the tables take.",
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
    crate::handlers::call::integer(call.args.at(2))?;
    call.reply.ok();
    Ok(())
}

fn debug_reload(call: &mut Call<'_>) -> Outcome {
    crate::handlers::admin::server::save(call)
}

fn debug_object(call: &mut Call<'_>) -> Outcome {
    let (exists, encoding) = crate::handlers::redis::keys::is_there(call, 2)?;
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
        return Err(refuse!("ERR '{}' is no number of seconds from 0 to 3600", Printable(text)));
    };
    call.answer_when(async move {
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        b"+OK\r\n".to_vec()
    });
    Ok(())
}
