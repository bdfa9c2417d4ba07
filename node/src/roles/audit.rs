//! Audits: TM.AUDIT and scheduled passes. `dataset/src/engines/audit.rs` compares the ids.
//!
//! One thread runs one pass at a time, in batches. It holds the node only during a batch, so that a
//! full sync can replace the data set, which ends the pass. A repair is a long change
//! ([`Node::begin_long_change`]). Like a client's write, it waits while writes are paused, and
//! fails on a replica or after a disk error.

use crate::acl::{Request, User};
use crate::command::spec::flag;
use crate::command::table::with_numbers;
use crate::roles::node::{Host, Node};
use dataset::clock::unix_us;
use dataset::cold::Unreadable;
use dataset::engines::audit::{AuditPass, Comparison};
use dataset::engines::{Action, Engines};
use dataset::tiering::io_throttle::IoThrottle;
use parking_lot::{Condvar, Mutex};
use resp::RequestQueue;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Default of RATE, in ids per second.
pub const DEFAULT_RATE: u64 = 20_000;
/// Maximum number of differences in a report.
const MAX_EXAMPLES: usize = 100;
/// Maximum number of users that a report names.
const MAX_USERS: usize = 100;
/// Number of increments after which a repair gives up. The first suffices unless other commands
/// change the counter or the members at the same time.
const MAX_REPAIR_STEPS: usize = 8;
/// Time between two checks for a due pass.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two checks whether the log has room for a repair.
const ROOM_INTERVAL: Duration = Duration::from_millis(1);

/// A requested pass.
#[derive(Clone, Debug)]
pub struct AuditRequest {
    /// Name of the action.
    pub action: String,
    /// Whether to set wrong counters to the number of members.
    pub repairs: bool,
    /// Maximum number of ids per second; 0: no limit.
    pub rate: u64,
}

/// State of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditState {
    /// Requested or running.
    Running,
    /// Compared all ids.
    Done,
    /// Stopped by TM.AUDIT STOP or a shutdown.
    Stopped,
    /// Ended by this error.
    Failed(String),
}

impl AuditState {
    /// Name in TM.AUDIT STATUS and INFO.
    pub fn name(&self) -> &'static str {
        match self {
            AuditState::Running => "running",
            AuditState::Done => "done",
            AuditState::Stopped => "stopped",
            AuditState::Failed(_) => "failed",
        }
    }
}

/// Progress and result of a pass.
#[derive(Clone, Debug)]
pub struct AuditReport {
    /// What was requested.
    pub request: AuditRequest,
    /// Current state.
    pub state: AuditState,
    /// Start, in seconds since the Unix epoch.
    pub started_s: u64,
    /// End, in seconds since the Unix epoch; 0 while running.
    pub ended_s: u64,
    /// Next id; the highest one at the end.
    pub next_id: u64,
    /// Number of ids compared.
    pub ids: u64,
    /// Number of their members.
    pub pairs: u64,
    /// Number of counters that differed from their members.
    pub differing: u64,
    /// Sum of the absolute differences.
    pub drift: u64,
    /// Number of differing counters that were repaired.
    pub repaired: u64,
    /// Number of ids, or of damaged blocks, that could not be read.
    pub unreadable: u64,
    /// Actions and users that may change the counter or the flag alone: "action NAME", "user NAME".
    pub other_writers: Vec<String>,
    /// First differences, each with its id.
    pub examples: Vec<(u64, Comparison)>,
}

impl AuditReport {
    fn new(request: AuditRequest) -> AuditReport {
        AuditReport {
            request,
            state: AuditState::Running,
            started_s: unix_us() / 1_000_000,
            ended_s: 0,
            next_id: 0,
            ids: 0,
            pairs: 0,
            differing: 0,
            drift: 0,
            repaired: 0,
            unreadable: 0,
            other_writers: Vec::new(),
            examples: Vec::new(),
        }
    }

    fn add_comparison(&mut self, id: u64, found: &Comparison) {
        self.ids += 1;
        self.pairs += found.members;
        if !found.is_equal() {
            self.differing += 1;
            self.drift = self.drift.saturating_add(found.drift());
            if self.examples.len() < MAX_EXAMPLES {
                self.examples.push((id, *found));
            }
        }
    }
}

#[derive(Default)]
struct Shared {
    /// The running pass, or the most recent pass if none is running.
    report: Option<AuditReport>,
    /// Whether the thread has not yet taken the requested pass.
    is_wanted: bool,
    is_stopping: bool,
    /// Last complete pass of each action.
    complete: BTreeMap<String, AuditReport>,
}

/// State shared by the audit thread and its callers.
#[derive(Default)]
pub struct Audits {
    shared: Mutex<Shared>,
    nudge: Condvar,
}

impl Audits {
    /// Requests a pass. Returns false if another one is running.
    pub fn begin(&self, request: AuditRequest) -> bool {
        let mut shared = self.shared.lock();
        if shared.report.as_ref().is_some_and(|report| report.state == AuditState::Running) {
            return false;
        }
        (shared.is_wanted, shared.is_stopping) = (true, false);
        shared.report = Some(AuditReport::new(request));
        self.nudge.notify_one();
        true
    }

    /// Stops the running pass. Returns false if there is none.
    pub fn stop(&self) -> bool {
        let mut shared = self.shared.lock();
        let is_running =
            shared.report.as_ref().is_some_and(|report| report.state == AuditState::Running);
        shared.is_stopping |= is_running;
        is_running
    }

    /// Returns the running pass, or the most recent pass if none is running.
    pub fn report(&self) -> Option<AuditReport> {
        self.shared.lock().report.clone()
    }

    /// Returns the last complete pass of each action.
    pub fn complete(&self) -> Vec<AuditReport> {
        self.shared.lock().complete.values().cloned().collect()
    }

    /// Wakes the audit thread, for a shutdown.
    pub fn wake(&self) {
        drop(self.shared.lock());
        self.nudge.notify_one();
    }

    /// Waits up to [`POLL_INTERVAL`] for a request.
    fn wait(&self, is_stopped: &dyn Fn() -> bool) -> Option<AuditRequest> {
        let mut shared = self.shared.lock();
        if !shared.is_wanted && !is_stopped() {
            self.nudge.wait_for(&mut shared, POLL_INTERVAL);
        }
        let is_wanted = std::mem::take(&mut shared.is_wanted);
        shared.report.as_ref().filter(|_| is_wanted).map(|report| report.request.clone())
    }

    fn update(&self, change: impl FnOnce(&mut AuditReport)) {
        if let Some(report) = &mut self.shared.lock().report {
            change(report);
        }
    }

    fn end(&self, state: AuditState) {
        let shared = &mut *self.shared.lock();
        let Some(report) = &mut shared.report else { return };
        (report.state, report.ended_s) = (state, unix_us() / 1_000_000);
        let AuditReport { request, ids, differing, repaired, unreadable, .. } = &report;
        tracing::info!(
            "audit of '{}': {}, {ids} counters compared, {differing} differ, {repaired} repaired, \
             {unreadable} unreadable",
            request.action,
            report.state.name(),
        );
        if report.state == AuditState::Done {
            shared.complete.insert(request.action.clone(), report.clone());
        }
    }
}

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
