//! Audits: TM.AUDIT and scheduled passes. `dataset/src/engines/audit.rs` compares the ids.
//!
//! One thread runs one pass at a time, in batches. It holds the node only during a batch, so that a
//! full sync can replace the data set, which ends the pass. A repair is a long change
//! ([`Node::begin_long_change`]). Like a client's write, it waits while writes are paused, and
//! fails on a replica or after a disk error.

use crate::acl::{Request, User};
use crate::command::spec::flag;
use crate::command::table::with_numbers;
use crate::roles::audit_state::{AuditRequest, AuditState, DEFAULT_RATE};
use crate::roles::node::{Host, Node};
use dataset::cold::Unreadable;
use dataset::engines::audit::{AuditPass, Comparison};
use dataset::engines::{Action, Engines};
use dataset::tiering::io_throttle::IoThrottle;
use resp::RequestQueue;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of users that a report names.
const MAX_USERS: usize = 100;
/// Number of increments after which a repair gives up. The first suffices unless other commands
/// change the counter or the members at the same time.
const MAX_REPAIR_STEPS: usize = 8;
/// Time between two checks whether the log has room for a repair.
const ROOM_INTERVAL: Duration = Duration::from_millis(1);

/// Runs the audit thread until the server stops.
pub fn audits(host: &Host) {
    let is_stopped = || host.stop.is_stopped();
    let mut scheduled = Instant::now();
    while !is_stopped() {
        if let Some(request) = host.audits.wait(&is_stopped) {
            run(host, &request);
        }
        let every = Duration::from_secs(host.config().server.audit_every_s);
        if every.is_zero() {
            scheduled = Instant::now();
        } else if scheduled.elapsed() >= every {
            scheduled = Instant::now();
            for action in auditable_actions(&host.node()) {
                let request = AuditRequest { action, repairs: false, rate: DEFAULT_RATE };
                if host.audits.begin(request.clone()) {
                    host.audits.shared.lock().is_wanted = false;
                    run(host, &request);
                }
            }
        }
    }
}

/// Actions whose flags have a ledger.
fn auditable_actions(node: &Node) -> Vec<String> {
    let Some(engines) = node.loaded() else { return Vec::new() };
    let has_ledger = |action: &&Action| engines.flag_of(action).ledger().is_some();
    let actions = engines.actions().iter().filter(has_ledger);
    actions.map(|action| action.name().to_owned()).collect()
}

/// Runs a pass that [`Audits::begin`] has accepted.
fn run(host: &Host, request: &AuditRequest) {
    let generation = host.now().generation;
    let is_over = || {
        host.stop.is_stopped()
            || host.now().generation != generation
            || host.audits.shared.lock().is_stopping
    };
    let outcome = compare_all(host, request, &is_over);
    host.audits.end(match outcome {
        Ok(()) => AuditState::Done,
        Err(_) if host.now().generation != generation => {
            AuditState::Failed("a full sync replaced the data set".to_owned())
        }
        Err(_) if is_over() => AuditState::Stopped,
        Err(error) => AuditState::Failed(error),
    });
    let names = auditable_actions(&host.node());
    host.audits.shared.lock().complete.retain(|name, _| names.contains(name));
}

fn compare_all(
    host: &Host,
    request: &AuditRequest,
    is_over: &(dyn Fn() -> bool + Sync),
) -> Result<(), String> {
    let mut pass = AuditPass::new(&request.action);
    if let Some(engines) = host.node().loaded()
        && let Some(action) = engines.action(request.action.as_bytes())
    {
        let writers = other_writers(&host.node(), &engines, action);
        host.audits.update(|report| report.other_writers = writers);
    }
    while let Some(id) = pass.next_id() {
        host.audits.update(|report| report.next_id = id);
        let node = host.node();
        let engines = node.loaded().ok_or("the data are being loaded")?;
        // A new throttle for each batch: a slow batch must not make later ones faster.
        let throttle = IoThrottle::new(request.rate, &is_over);
        let (mut ids, mut failed) = (0, None);
        pass.step(&engines, is_over, |id, found| {
            ids += 1;
            if failed.is_none() {
                failed = record(&node, request, id, found).err();
            }
        })?;
        failed.map_or(Ok(()), Err)?;
        drop((engines, node));
        throttle.after(ids);
    }
    Ok(())
}

/// Adds a comparison to the report, and repairs the counter if requested.
fn record(
    node: &Arc<Node>,
    request: &AuditRequest,
    id: u64,
    found: Result<Comparison, Unreadable>,
) -> Result<(), String> {
    let found = match found {
        Ok(found) => found,
        Err(unreadable) => {
            tracing::warn!("audit of '{}': {unreadable}", request.action);
            node.audits.update(|report| report.unreadable += 1);
            return Ok(());
        }
    };
    node.audits.update(|report| report.add_comparison(id, &found));
    if request.repairs && !found.is_equal() && repair(node, &request.action, id, found)? {
        node.audits.update(|report| report.repaired += 1);
    }
    Ok(())
}

/// Adds the difference to the counter until counter and members agree. Returns whether they do.
fn repair(node: &Arc<Node>, action: &str, id: u64, mut found: Comparison) -> Result<bool, String> {
    for _ in 0..MAX_REPAIR_STEPS {
        while (node.durability.is_crowded() || node.is_spilling()) && !node.stop.is_stopped() {
            store::time::sleep(ROOM_INTERVAL);
        }
        let long_change = node.begin_long_change();
        let _long_change =
            long_change.map_err(|why| String::from_utf8_lossy(why.text()).into_owned())?;
        let engines = node.engines();
        let dropped = || format!("the action '{action}' was dropped");
        let action = engines.action(action.as_bytes()).ok_or_else(dropped)?;
        let corrected = engines.correct_counter(action, id, &found);
        let compared = corrected.and_then(|_| Ok(engines.compare(action, id)?));
        match compared {
            Ok(Some(now)) if !now.is_equal() => found = now,
            Ok(now) => return Ok(now.is_some()),
            Err(error) => {
                tracing::warn!("audit of '{}': cannot repair {id}: {error}", action.name());
                return Ok(false);
            }
        }
    }
    Ok(false)
}

/// Returns the actions and users that may change the counter or the flag of an action alone.
fn other_writers(node: &Node, engines: &Engines, action: &Action) -> Vec<String> {
    let conflicting = engines.conflicting_actions(action);
    let mut writers: Vec<String> =
        conflicting.map(|other| format!("action {}", other.name())).collect();
    let (flags, counters) = engines.spaces_of(action);
    let (mut words, mut specs) = (RequestQueue::default(), Vec::new());
    for (space, name) in [(counters.number(), counters.name()), (flags.number(), flags.name())] {
        let mut keys = BTreeSet::new();
        engines.names_of((space, 0), &mut keys);
        for (number, spec) in with_numbers().filter(|(_, spec)| spec.has(flag::WRITE)) {
            let of_keys = keys.iter().map(Vec::as_slice);
            let of_keys = of_keys.filter(|_| spec.keys.are_keys() && spec.group != "stream");
            let is_named = spec.has(flag::NAMED) && matches!(spec.group, "counter" | "phantom");
            for first in of_keys.chain(Some(name.as_bytes()).filter(|_| is_named)) {
                words.push_all([spec.name.as_bytes(), first, b"0", b"0"].into_iter());
                specs.push((number, spec));
            }
        }
    }
    let may_write = |user: &User| {
        words.iter().zip(&specs).any(|(args, &(number, spec))| {
            node.acl.dry_run(user, &Request { spec, number, args }, Some(engines)).is_none()
        })
    };
    let users = node.acl.all();
    let users = users.iter().filter(|user| user.flags().contains(&"on") && may_write(user));
    writers.extend(users.take(MAX_USERS).map(|user| format!("user {}", user.name())));
    writers
}
