//! State of a FAILOVER: its stage, and whether the replica was asked to take over.

use parking_lot::Mutex;
use std::sync::atomic::AtomicU64;
use tokio::sync::Notify;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Nothing,
    /// This node waits for a replica to catch up. The number identifies the attempt, since the task
    /// of an aborted attempt may still run.
    Waiting(u64),
    /// This node hands the role to a replica, which must have the log up to `offset`.
    Handing {
        offset: u64,
        asked: TakeOverState,
    },
    /// The replica receives no further requests; the restored role is not on disk yet.
    Aborting,
    /// No FAILOVER. This node is becoming a master, and writes wait.
    BecomingMaster,
}

/// State of the takeover request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TakeOverState {
    /// The request was not sent, or the replica refused it.
    No,
    /// The request was sent and is not answered yet.
    Now,
    /// The answer was lost, or an earlier process sent the request.
    Lost,
}

impl Stage {
    /// Sets the state of the takeover request, if the request is sent and unanswered.
    pub(super) fn answered(&mut self, now: TakeOverState) {
        if let Stage::Handing { asked: asked @ TakeOverState::Now, .. } = self {
            *asked = now;
        }
    }
}

/// State of the current FAILOVER, if any.
pub struct Failover {
    /// Stage of the failover. A thread never waits while holding this lock.
    pub(super) stage: Mutex<Stage>,
    /// Held during a role change until the new role is on disk. Workers never acquire this lock.
    pub(super) order_lock: Mutex<()>,
    pub(super) attempts: AtomicU64,
    pub(super) ended: Notify,
}

/// State in INFO while a replica catches up.
pub const WAITING: &str = "waiting-for-sync";
/// State in INFO while a replica takes over.
pub const HANDING: &str = "failover-in-progress";
impl Failover {
    pub(crate) fn new() -> Failover {
        Failover {
            stage: Mutex::new(Stage::Nothing),
            order_lock: Mutex::default(),
            attempts: AtomicU64::new(0),
            ended: Notify::new(),
        }
    }

    /// Name of the state in INFO.
    pub fn name(&self) -> &'static str {
        match *self.stage.lock() {
            Stage::Nothing | Stage::BecomingMaster => "no-failover",
            Stage::Waiting(_) => WAITING,
            Stage::Handing { .. } | Stage::Aborting => HANDING,
        }
    }

    /// Whether a FAILOVER is in progress.
    pub fn is_under_way(&self) -> bool {
        !matches!(*self.stage.lock(), Stage::Nothing | Stage::BecomingMaster)
    }

    /// Resumes the FAILOVER of an earlier process.
    pub(crate) fn resume(&self, offset: u64) {
        *self.stage.lock() = Stage::Handing { offset, asked: TakeOverState::Lost };
    }

    /// Waits until a role change in progress is on disk.
    pub fn wait_for_order(&self) {
        drop(self.order_lock.lock());
    }

    /// Returns the offset up to which the new master must have the log before it takes over.
    pub(crate) fn handover(&self) -> Option<u64> {
        match *self.stage.lock() {
            Stage::Handing { offset, .. } => Some(offset),
            _ => None,
        }
    }
}
