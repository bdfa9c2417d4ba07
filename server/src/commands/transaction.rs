//! MULTI, EXEC and WATCH.
//!
//! EXEC locks the stripes of all ids that its commands name (`store/src/commit`, C6), or all
//! stripes if a command may touch other ids (DBSIZE, TM.ROLL, ...). No other client's change of
//! these ids can interleave, and all changes go into one batch of the log: after a crash either all
//! or none exist. If the log has no room for the batch, EXEC waits before it begins (C8).
//! Concurrent reads continue; writes of the same ids wait. EXEC checks once whether writes are
//! accepted, while it holds the stripes. Therefore either all queued commands run, or none of them.
//!
//! A transaction that touches no data (Sentinel's SLAVEOF, CONFIG REWRITE, ...) takes no locks and
//! may suspend while a command waits for the disk.
//!
//! Slow commands (SAVE, SCAN, TM.ADVISE, ...) are refused between MULTI and EXEC, because other
//! clients wait. Expensive commands that touch no data (COMMAND DOCS, INFO) share a CPU budget of
//! [`MAX_OTHER_CPU_TIME`].

use crate::commands::call::Call;
use crate::commands::check::checked;
use crate::commands::cluster::route::Router;
use crate::commands::command::{Command, Group, Run::Once};
use crate::commands::log_size;
use crate::commands::run::{run, select};
use crate::session::transaction::{ExecProgress, Transaction};
use crate::session::{Scratch, Session};
use dataset::commit::MAX_CHANGE_BYTES;
use dataset::engines::{Engines, KeyRef, WatchedState};
use dataset::watch::WatchedId;
use node::command::error::Refusal;
use node::command::footprint::{Footprint, FootprintScope};
use node::command::spec::{ALL_KEYS, ALWAYS, NO_KEYS, Outcome, flag};
use node::command::table::find;
use node::roles::node::Node;
use resp::{Args, Reply};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// CPU time that commands without data access may use per transaction. Administrative and O(1)
/// commands are not counted; only the size of the transaction limits their number.
const MAX_OTHER_CPU_TIME: Duration = Duration::from_millis(100);

const TRANSACTIONS: Group = Group::new("transactions", "1.2.0", NO_KEYS);

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    TRANSACTIONS.row("multi", 1, ALWAYS | flag::FAST | flag::AT_ONCE, "", Once(multi),
        "Starts a transaction. The commands that follow are queued until EXEC."),
    TRANSACTIONS.row("exec", 1, ALWAYS | flag::SKIP_SLOWLOG | flag::AT_ONCE, "", Once(exec),
        "Executes the queued commands atomically. No other client's changes are interleaved, and \
         the log contains all changes of the transaction or none. Returns one reply per command, \
         or nil if a watched key has changed. If a command fails, the other commands are still \
         executed.")
        .cost("the cost of the queued commands"),
    TRANSACTIONS.row("discard", 1, ALWAYS | flag::FAST | flag::AT_ONCE, "", Once(discard),
        "Discards the queued commands and unwatches all keys.")
        .since("2.0.0").linear("queued commands"),
    TRANSACTIONS.row("watch", -2, flag::FAST | flag::STALE | flag::NOSCRIPT | flag::AT_ONCE,
        "key [key ...]", Once(watch),
        "Makes the next EXEC return nil, without executing any command, if one of the keys changes \
         before it. Watching the key of a counter watches its whole row. A schema change or \
         TM.ROLL counts as a change \
         of all keys in the space.").keys(ALL_KEYS).since("2.2.0").linear("keys").uses("RO"),
    TRANSACTIONS.row("unwatch", 1, ALWAYS | flag::FAST, "", Once(unwatch),
        "Unwatches all keys.").since("2.2.0"),
];

/// Discards the transaction and all watches of a connection. Called when the connection ends.
pub(crate) fn forget(session: &mut Session, node: &Node) {
    session.transaction = None;
    session.client.queued.store(-1, Relaxed);
    forget_watched(session, node);
}

fn forget_watched(session: &mut Session, node: &Node) {
    if let Some(engines) = node.loaded() {
        session.watched.drain().for_each(|(_, seen)| engines.unwatch(&seen));
    }
    session.watch_lost = false;
    session.publish_watched_count();
}

fn multi(call: &mut Call<'_>) -> Outcome {
    if call.session.transaction.is_some() {
        return Err(Refusal::fixed(b"ERR MULTI calls can not be nested"));
    }
    call.session.transaction = Some(Transaction::default());
    call.session.client.queued.store(0, Relaxed);
    call.reply.ok();
    Ok(())
}

fn discard(call: &mut Call<'_>) -> Outcome {
    if call.session.transaction.is_none() {
        return Err(Refusal::fixed(b"ERR DISCARD without MULTI"));
    }
    forget(call.session, &call.node);
    call.reply.ok();
    Ok(())
}

fn unwatch(call: &mut Call<'_>) -> Outcome {
    forget_watched(call.session, &call.node);
    call.reply.ok();
    Ok(())
}

fn watch(call: &mut Call<'_>) -> Outcome {
    if call.session.transaction.is_some() {
        return Err(Refusal::fixed(b"ERR WATCH inside MULTI is not allowed"));
    }
    let engines: &Engines = call.node.engines();
    let most = call.node.config().server.max_watched_keys;
    // Resolve all keys before watching the first.
    let mut places = BTreeSet::new();
    for key in call.args.from(1).iter() {
        match engines.resolve(key) {
            Ok(KeyRef::Row { space, id } | KeyRef::Cell { space, id, .. }) => {
                places.insert((space.number(), id));
            }
            Ok(KeyRef::Pair { .. }) => {}
            // A key outside all spaces never changes.
            Err(_) => continue,
        }
        // A key may name counters and flags at once.
        places.extend(engines.pair_of(key).map(|(space, id)| (space.number(), id)));
    }
    let watched = &mut call.session.watched;
    places.retain(|place| !watched.contains_key(place));
    if watched.len() + places.len() > most {
        return Err(node::command::error::refuse!(
            "ERR too many watched keys: at most {most} per client (max_watched_keys)"
        ));
    }
    watched.extend(places.into_iter().map(|place| (place, engines.watch(place))));
    call.session.publish_watched_count();
    call.reply.ok();
    Ok(())
}

fn exec(call: &mut Call<'_>) -> Outcome {
    let Some(mut transaction) = call.session.transaction.take() else {
        return Err(Refusal::fixed(b"ERR EXEC without MULTI"));
    };
    if let Some(begun) = transaction.begun.take() {
        execute_rest(call, transaction, begun, true);
        return Ok(());
    }
    let node = call.node;
    let engines = node.loaded();
    let unwatch = |session: &mut Session| forget_watched(session, &node);
    if transaction.has_refused_command {
        call.session.client.queued.store(-1, Relaxed);
        unwatch(call.session);
        return Err(Refusal::fixed(b"EXECABORT Transaction discarded because of previous errors."));
    }
    if let Err(refusal) = check_routing(call, &transaction) {
        call.session.client.queued.store(-1, Relaxed);
        unwatch(call.session);
        return Err(refusal);
    }
    let (mut may_suspend, mut taken, mut alone) = (true, Ok(()), None);
    if let Some(engines) = engines.filter(|_| transaction.len() > 0) {
        let ids = ids(engines, &transaction, &call.session.watched);
        may_suspend = !transaction.writes && ids.as_ref().is_some_and(Vec::is_empty);
        let mut reserved = None;
        if transaction.writes {
            let may_change_schema = ids.is_none()
                && transaction.requests().any(|args| log_size::may_change_schema(engines, args));
            let bytes = log_size::of(engines, || transaction.requests());
            // A transaction that will be refused does not wait for log space.
            match bytes.and_then(|bytes| node.refusal().map_or(Ok(bytes), Err)) {
                Ok(bytes) => {
                    reserved =
                        call.reserve(if may_change_schema { MAX_CHANGE_BYTES } else { bytes });
                    if reserved.is_none() {
                        call.session.transaction = Some(transaction);
                        return Ok(());
                    }
                }
                Err(refusal) => taken = Err(refusal),
            }
        }
        call.session.ends_turn = ids.is_none();
        alone = Some(engines.exclusive(ids, reserved));
    }
    // Discard the result of the wait if a refused request has not taken it.
    call.session.suspension.take_result();
    call.session.client.queued.store(-1, Relaxed);
    let has_changed =
        |engines: &Engines| call.session.watched.values().any(|seen| engines.has_changed(seen));
    let changed = call.session.watch_lost || engines.is_some_and(has_changed);
    unwatch(call.session);
    if changed {
        call.reply.null_array();
        return Ok(());
    }
    // Earlier requests of the same pipeline may have written.
    if call.session.wrote {
        call.session.last_write = call.node.durability.committer().ticket();
    }
    if transaction.writes {
        // Check only once. A disk failure or change of role during EXEC must not split the
        // transaction.
        let admitted = taken.and_then(|()| call.admit_write());
        if transaction.changes {
            admitted.as_ref().map_err(discarded)?;
        }
        call.session.admitted = Some(admitted);
    }
    execute_rest(call, transaction, ExecProgress::default(), may_suspend);
    drop(alone);
    Ok(())
}

/// Checks that this cluster node serves all queued commands. As in Redis, their keys must share a
/// slot.
fn check_routing(call: &Call<'_>, transaction: &Transaction) -> Outcome {
    let (Some(topology), Some(engines)) = (&call.session.topology, call.node.loaded()) else {
        return Ok(());
    };
    let mut router = Router::new(topology, call.session, call.node);
    for args in transaction.requests() {
        if let Some((_, spec)) = find(args.at(0))
            && let Ok((spec, _)) = select(spec, args)
        {
            router.add(spec, args, engines);
        }
    }
    router.outcome()
}

/// Executes the queued commands, starting at the saved progress, until a command suspends.
fn execute_rest(
    call: &mut Call<'_>,
    mut transaction: Transaction,
    mut begun: ExecProgress,
    may_suspend: bool,
) {
    let mark = call.reply.mark();
    if begun.replies.is_empty() {
        call.reply.array(transaction.len());
    } else {
        call.reply.bytes().append(&mut begun.replies);
    }
    (call.session.in_exec, call.session.may_suspend) = (true, may_suspend);
    for args in transaction.kept.iter().skip(begun.done) {
        one(call, args, &mut begun.aside);
        if call.session.suspension.is_requested() {
            break;
        }
        // Discard a result that the command has not taken.
        call.session.suspension.take_result();
        begun.done += 1;
    }
    (call.session.in_exec, call.session.may_suspend) = (false, false);
    call.session.admitted = None;
    if call.session.suspension.is_requested() {
        begun.replies = call.reply.bytes().split_off(mark);
        transaction.begun = Some(begun);
        call.session.transaction = Some(transaction);
    }
}

/// Returns EXEC's own error. As in Redis, the prefix `ERR` of the reason is removed.
#[cold]
pub(crate) fn discarded(why: &Refusal) -> Refusal {
    let text = why.text();
    let reason = text.strip_prefix(b"ERR ").unwrap_or(text);
    Refusal::new([b"EXECABORT Transaction discarded because of: ", reason].concat())
}

/// Returns the ids that a transaction watches or may touch, or `None` if they cannot be determined.
fn ids(
    engines: &Engines,
    transaction: &Transaction,
    watched: &HashMap<WatchedId, WatchedState>,
) -> Option<Vec<u64>> {
    let mut ids = Vec::with_capacity(transaction.len() + watched.len());
    for &(space, id) in watched.keys() {
        // A write to any id may recycle a table. This changes the watched pairs in that table.
        if engines.existence_by_number(space).is_some() {
            return None;
        }
        ids.push(id);
    }
    for args in transaction.requests() {
        let (_, spec) = find(args.at(0))?;
        // The subcommand determines which keys are touched.
        let (spec, _) = select(spec, args).ok()?;
        // CLIENT TRACKING must wait for all active writers.
        if spec.name == "client|tracking" {
            return None;
        }
        // Arguments that are not ids are options. The reply for a key outside all spaces does not
        // depend on data.
        if Footprint::new(spec, args, engines).ids(|id| ids.push(id)) == FootprintScope::Everything
        {
            return None;
        }
    }
    Some(ids)
}

fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// Executes one queued command, and appends its reply or error. If the command does not access
/// data, adds its CPU time to `aside`, the total that [`MAX_OTHER_CPU_TIME`] limits.
fn one(call: &mut Call<'_>, args: Args<'_>, aside: &mut Duration) {
    let node = call.node;
    let mark = call.reply.mark();
    let full = mark > call.session.max_out_bytes;
    // Permissions may have changed since the command was queued.
    let outcome = checked(find(args.at(0)), args, call.session.args_limit, call.session, node)
        .and_then(|(numbers, spec)| {
            let (session, scratch): (&mut Session, &mut Scratch) =
                (&mut *call.session, &mut *call.scratch);
            if spec.has(flag::FAST | flag::ADMIN) || spec.keys.are_keys() || spec.may_write(args) {
                return run(spec, numbers, args, call.reply.again(), session, node, scratch);
            }
            if full || *aside > MAX_OTHER_CPU_TIME {
                return Err(Refusal::fixed(
                b"ERR administrative commands take too long in this transaction: the rest of them \
                  is not executed",
            ));
            }
            let began = thread_time();
            let outcome = run(spec, numbers, args, call.reply.again(), session, node, scratch);
            *aside += thread_time().saturating_sub(began);
            outcome
        });
    let reply: &mut Reply<'_> = &mut call.reply;
    reply.set_protocol(call.session.client.protocol());
    if let Err(refusal) = outcome {
        reply.rewind(mark);
        reply.error(refusal.text());
        node.calls.of(call.session.worker).error(refusal.text());
        node.tallies[call.session.worker].errors.add(1);
    }
    // If the reply exceeds the output limit, the client is disconnected, but the transaction
    // completes.
    if full {
        reply.rewind(mark);
    }
}
