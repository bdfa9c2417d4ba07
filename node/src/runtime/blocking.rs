//! A client that waits for the reply to WAIT, WAITAOF or SHUTDOWN, and what ends that before its
//! time: CLIENT UNBLOCK, or a change of the role.

use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use tokio::sync::Notify;

/// It does not wait.
const NOT: u8 = 0;
const WAITS: u8 = 1;
/// CLIENT UNBLOCK has said so.
const TIMED_OUT: u8 = 2;
const FAILED: u8 = 3;
/// Its connection ends with this reply.
const LEAVES: u8 = 4;
/// It waits, and CLIENT UNBLOCK does not end that.
const STAYS: u8 = 5;

/// Of one client. See the top of the file.
#[derive(Default)]
pub struct Blocked {
    state: AtomicU8,
    told: Notify,
}

impl Blocked {
    /// It waits from now on; whether CLIENT UNBLOCK may end that.
    pub fn begin(&self, may_be_let_go: bool) {
        self.state.store(if may_be_let_go { WAITS } else { STAYS }, SeqCst);
    }

    /// It has its reply, which is its last one if it `leaves`.
    pub fn end(&self, leaves: bool) {
        self.state.store(if leaves { LEAVES } else { NOT }, SeqCst);
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state.load(SeqCst), WAITS | STAYS)
    }

    pub fn leaves(&self) -> bool {
        self.state.load(SeqCst) == LEAVES
    }

    /// CLIENT UNBLOCK: as if the time were over, or with an error. False if it does not wait.
    pub fn let_go(&self, with_error: bool) -> bool {
        let next = if with_error { FAILED } else { TIMED_OUT };
        let was_waiting = self.state.compare_exchange(WAITS, next, SeqCst, SeqCst).is_ok();
        if was_waiting {
            self.told.notify_one();
        }
        was_waiting
    }

    /// Until CLIENT UNBLOCK. Gives whether it is to be an error.
    pub async fn is_let_go(&self) -> bool {
        loop {
            self.told.notified().await;
            // It may have been said of the wait before.
            match self.state.load(SeqCst) {
                TIMED_OUT => return false,
                FAILED => return true,
                _ => {}
            }
        }
    }
}
