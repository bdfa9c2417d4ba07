//! State of audits: the requested or running pass, and the last complete pass of each action.

use dataset::clock::unix_us;
use dataset::engines::audit::Comparison;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::time::Duration;

/// Default of RATE, in ids per second.
pub const DEFAULT_RATE: u64 = 20_000;
/// Maximum number of differences in a report.
const MAX_EXAMPLES: usize = 100;
/// Time between two checks for a due pass.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

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

    pub(super) fn add_comparison(&mut self, id: u64, found: &Comparison) {
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
pub(super) struct Shared {
    /// The running pass, or the most recent pass if none is running.
    report: Option<AuditReport>,
    /// Whether the thread has not yet taken the requested pass.
    pub(super) is_wanted: bool,
    pub(super) is_stopping: bool,
    /// Last complete pass of each action.
    pub(super) complete: BTreeMap<String, AuditReport>,
}

/// State shared by the audit thread and its callers.
#[derive(Default)]
pub struct Audits {
    pub(super) shared: Mutex<Shared>,
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
    pub(super) fn wait(&self, is_stopped: &dyn Fn() -> bool) -> Option<AuditRequest> {
        let mut shared = self.shared.lock();
        if !shared.is_wanted && !is_stopped() {
            self.nudge.wait_for(&mut shared, POLL_INTERVAL);
        }
        let is_wanted = std::mem::take(&mut shared.is_wanted);
        shared.report.as_ref().filter(|_| is_wanted).map(|report| report.request.clone())
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut AuditReport)) {
        if let Some(report) = &mut self.shared.lock().report {
            change(report);
        }
    }

    pub(super) fn end(&self, state: AuditState) {
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
