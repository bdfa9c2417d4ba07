//! The server as a whole: INFO, COMMAND, SHUTDOWN and their like.

use crate::handlers::Handler;
use crate::handlers::admin::info;
use crate::handlers::call::Call;
use crate::handlers::call::answer;
use dataset::clock::unix_us;
use node::command::error::{Refusal, refuse};
use node::command::spec::Outcome;
use node::roles::graceful_shutdown;
use node::roles::graceful_shutdown::How;

pub(crate) const RUN: &[(&str, Handler)] = &[
    ("dbsize", dbsize),
    ("flushall", no_flush),
    ("flushdb", no_flush),
    ("info", info::info),
    ("bgsave", bgsave),
    ("bgrewriteaof", bgrewriteaof),
    ("lastsave", lastsave),
    ("save", save),
    ("shutdown", shutdown),
    ("time", time),
];

fn dbsize(call: &mut Call<'_>) -> Outcome {
    let rows = call.node.engines().all_rows();
    call.reply.int(i64::try_from(rows).unwrap_or(i64::MAX));
    Ok(())
}

fn no_flush(call: &mut Call<'_>) -> Outcome {
    let option = call.args.at(1);
    let known = [&b"async"[..], b"sync"].iter().any(|word| option.eq_ignore_ascii_case(word));
    if call.args.len() > 2 || call.args.len() == 2 && !known {
        return Err(Refusal::SYNTAX);
    }
    Err(refuse!(
        "ERR {} is not possible here: delete rows (DEL, CNT.DEL), unset pairs (SREM, PH.DEL), or \
         start with a new data folder",
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

/// What SHUTDOWN waits for first, if it is to save.
const SAVED: &[u8] = b"saved";

fn shutdown(call: &mut Call<'_>) -> Outcome {
    let come = call.session.suspension.come();
    let is_saved = matches!(&come, Some(Ok(text)) if text == SAVED);
    let has = |option: &[u8]| call.args.from(1).iter().any(|o| o.eq_ignore_ascii_case(option));
    if let Some(Err(refusal)) = come {
        tracing::error!("SHUTDOWN SAVE: {}", String::from_utf8_lossy(refusal.text()));
        call.session.client.blocked.end(false);
        return Err(refuse!("ERR Errors trying to SHUTDOWN. Check logs."));
    }
    // Else it has waited for replicas.
    if come.is_none() || is_saved {
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
        if saves && !is_saved {
            call.session.client.blocked.begin(false);
            let (node, forced) = (call.node.node().clone(), has(b"force") || !has(b"save"));
            call.session.suspension.ask(async move {
                match graceful_shutdown::save(&node, &cause).await {
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
    // As Redis: no reply, the connection closes.
    call.session.leaving = true;
    call.session.replies = crate::handlers::session::Replies::Off;
    Ok(())
}
