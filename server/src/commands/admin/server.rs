//! Server commands: INFO, DBSIZE, SAVE, SHUTDOWN and related commands.

use super::{acl, backup, command, config};
use crate::commands::admin::info;
use crate::commands::call::Call;
use crate::commands::call::answer;
use crate::commands::command::{Command, Group, Run::Once};
use dataset::clock::unix_us;
use node::command::error::{Refusal, refuse};
use node::command::spec::{ALWAYS, NO_KEYS, Outcome, READ, flag};
use node::roles::graceful_shutdown;
use node::roles::graceful_shutdown::How;

const SERVER: Group = Group::new("server", "1.0.0", NO_KEYS);
const ANYTIME: u32 = flag::LOADING | flag::STALE;
const ADMIN: u32 = flag::ADMIN | flag::NOSCRIPT;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    acl::ACL,
    command::COMMAND,
    config::CONFIG,
    SERVER.row("dbsize", 1, READ, "", Once(dbsize),
        "Returns the number of rows, without pairs. In a space with cold files, rows that are \
         created or deleted in the id range of a cold file are counted \
         only after the next merge.").linear("spaces")
        .tips(&["request_policy:all_shards", "response_policy:agg_sum"]),
    SERVER.row("flushall", -1, flag::WRITE, "[ASYNC|SYNC]", Once(refuse_flush),
        NO_FLUSH).tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
    SERVER.row("flushdb", -1, flag::WRITE, "[ASYNC|SYNC]", Once(refuse_flush),
        NO_FLUSH).tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
    SERVER.row("info", -1, ANYTIME, "[section [section ...]]", Once(info::info),
        "Returns information and statistics about the server.").linear("spaces")
        .tips(&["request_policy:all_shards", "response_policy:special", "nondeterministic_output"]),
    SERVER.row("bgsave", -1, ADMIN, "[SCHEDULE]", Once(bgsave),
        "Starts a snapshot in the background. Reads and writes continue. INFO persistence and \
         LASTSAVE show when the snapshot is complete.")
        .linear("rows and filter bytes that changed since the last snapshot"),
    SERVER.row("bgrewriteaof", 1, ADMIN, "", Once(bgrewriteaof),
        "Same as BGSAVE. After the snapshot, the older log is no longer needed for a restart."),
    SERVER.row("lastsave", 1, ANYTIME | flag::FAST, "", Once(lastsave),
        "Returns the Unix time of the last complete snapshot, in seconds.")
        .tips(&["nondeterministic_output"]),
    SERVER.row("save", 1, ADMIN | flag::NO_MULTI, "", Once(save),
        "Writes a snapshot, and replies when the snapshot is complete. Does not block other \
         clients.")
        .linear("rows and filter bytes that changed since the last snapshot"),
    backup::BACKUP,
    SERVER.row("shutdown", -1, ALWAYS | flag::ADMIN | flag::NO_MULTI,
        "[NOSAVE|SAVE] [NOW] [FORCE] [ABORT]", Once(shutdown),
        "Stops the server. A master first waits for its replicas to catch up (shutdown_timeout); \
         NOW skips the wait, and ABORT cancels the shutdown. Writes a snapshot first if the log is \
         long; NOSAVE never writes a snapshot, and SAVE always writes one. If SAVE fails, the \
         server keeps running unless FORCE is given. The server closes the connection when it has \
         released the data folder, so that another server can open it."),
    SERVER.row("time", 1, ANYTIME | flag::FAST, "", Once(time),
        "Returns the Unix time as seconds and microseconds.").since("2.6.0")
        .tips(&["nondeterministic_output"]),
];

#[rustfmt::skip]
const NO_FLUSH: &str =
    "Not supported. Delete rows and pairs individually, or start with an empty data folder.";

fn dbsize(call: &mut Call<'_>) -> Outcome {
    let rows = call.node.engines().all_rows();
    call.reply.int(i64::try_from(rows).unwrap_or(i64::MAX));
    Ok(())
}

fn refuse_flush(call: &mut Call<'_>) -> Outcome {
    let option = call.args.at(1);
    let known = [&b"async"[..], b"sync"].iter().any(|word| option.eq_ignore_ascii_case(word));
    if call.args.len() > 2 || call.args.len() == 2 && !known {
        return Err(Refusal::SYNTAX);
    }
    Err(refuse!(
        "ERR {} is not supported: delete rows (DEL, CNT.DEL), unset pairs (SREM, PH.DEL), or \
         start with an empty data folder",
        call.spec.name.to_ascii_uppercase()
    ))
}

fn bgsave(call: &mut Call<'_>) -> Outcome {
    if call.args.from(1).iter().any(|option| !option.eq_ignore_ascii_case(b"SCHEDULE"))
        || call.args.len() > 2
    {
        return Err(Refusal::SYNTAX);
    }
    if call.node.snapshots.begin().is_none() {
        return Err(refuse!("ERR Background save already in progress"));
    }
    call.reply.simple("Background saving started");
    Ok(())
}

fn bgrewriteaof(call: &mut Call<'_>) -> Outcome {
    if call.node.snapshots.begin().is_none() {
        return Err(refuse!("ERR Background append only file rewriting already in progress"));
    }
    call.reply.simple("Background append only file rewriting started");
    Ok(())
}

fn lastsave(call: &mut Call<'_>) -> Outcome {
    call.reply.int(call.node.snapshots.saved.borrow().last_s as i64);
    Ok(())
}

pub(crate) fn save(call: &mut Call<'_>) -> Outcome {
    let (snapshots, protocol) = (call.node.snapshots.clone(), call.reply.protocol());
    call.answer_when(async move {
        let saved = snapshots.save().await;
        answer(protocol, |reply| {
            saved.map_err(|error| refuse!("ERR {error}"))?;
            reply.ok();
            Ok(())
        })
    });
    Ok(())
}

fn time(call: &mut Call<'_>) -> Outcome {
    let now = unix_us();
    call.reply.array(2);
    call.reply.bulk((now / 1_000_000).to_string().as_bytes());
    call.reply.bulk((now % 1_000_000).to_string().as_bytes());
    Ok(())
}

/// Result of waiting for SHUTDOWN's snapshot.
const SAVED: &[u8] = b"saved";

fn shutdown(call: &mut Call<'_>) -> Outcome {
    let take_result = call.session.suspension.take_result();
    let is_saved = matches!(&take_result, Some(Ok(text)) if text == SAVED);
    let has = |option: &[u8]| call.args.from(1).iter().any(|o| o.eq_ignore_ascii_case(option));
    if let Some(Err(refusal)) = take_result {
        tracing::error!("SHUTDOWN SAVE: {}", String::from_utf8_lossy(refusal.text()));
        call.session.client.blocked.end(false);
        return Err(refuse!("ERR Errors trying to SHUTDOWN. Check logs."));
    }
    // Skip this if SHUTDOWN resumes after waiting for replicas.
    if take_result.is_none() || is_saved {
        let known: [&[u8]; 5] = [b"nosave", b"save", b"now", b"force", b"abort"];
        let is_known = |option: &[u8]| known.iter().any(|k| option.eq_ignore_ascii_case(k));
        let aborts = has(b"abort");
        let contradicts =
            has(b"save") && has(b"nosave") || aborts && known[..4].iter().any(|k| has(k));
        if contradicts || !call.args.from(1).iter().all(is_known) {
            return Err(Refusal::SYNTAX);
        }
        let peer = call.session.client.peer;
        if aborts {
            if !graceful_shutdown::abort(&call.node) {
                return Err(refuse!("ERR No shutdown in progress."));
            }
            tracing::warn!("SHUTDOWN ABORT from {peer}: not stopping");
            call.reply.ok();
            return Ok(());
        }
        let cause = format!("SHUTDOWN from {peer}");
        let saves = match has(b"save") {
            true => call.node.is_loaded() && !call.node.stop.is_stopped(),
            false => !has(b"nosave") && graceful_shutdown::saves_first(&call.node),
        };
        // A second SHUTDOWN does not wait for the snapshot of the first.
        if saves && !is_saved && (call.node.stop.begin_save() || has(b"save")) {
            call.session.client.blocked.begin(false);
            let (node, forced) = (call.node.node().clone(), has(b"force") || !has(b"save"));
            call.session.suspension.ask(async move {
                let saved = graceful_shutdown::save(&node, &cause).await;
                let goes_on = !node.stop.is_stopped() && node.stop.leaves().is_none();
                match saved {
                    _ if !node.stop.end_save() && goes_on => {
                        Err(refuse!("ERR SHUTDOWN was aborted"))
                    }
                    Err(why) if !forced => Err(refuse!("ERR {why}")),
                    _ => Ok(SAVED.to_vec()),
                }
            });
            return Ok(());
        }
        let how = How { now: has(b"now"), forced: has(b"nosave") || has(b"force"), insists: false };
        let is_obeyed = graceful_shutdown::leave(&call.node, &cause, how);
        call.session.shuts_down |= is_obeyed;
        if is_obeyed && let Some(until) = call.node.stop.leaves() {
            call.session.client.blocked.begin(false);
            let stop = call.node.stop.clone();
            call.session.suspension.ask(async move {
                stop.waited(until).await;
                Ok(Vec::new())
            });
            return Ok(());
        }
    }
    call.session.client.blocked.end(false);
    if !call.node.stop.is_stopped() {
        return Err(refuse!("ERR Errors trying to SHUTDOWN. Check logs."));
    }
    // As in Redis, SHUTDOWN closes the connection without a reply.
    call.session.leaving = true;
    call.session.replies = crate::session::Replies::Off;
    Ok(())
}
