//! State of a client that waits for the reply to WAIT, WAITAOF or SHUTDOWN. CLIENT UNBLOCK or a
//! role change may end the wait before its timeout.

use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use tokio::sync::Notify;

const NOT_BLOCKED: u8 = 0;
const BLOCKED: u8 = 1;
/// CLIENT UNBLOCK has ended the wait.
const TIMED_OUT: u8 = 2;
const FAILED: u8 = 3;
/// The connection closes after the current reply.
const CLOSING: u8 = 4;
/// The client is blocked, and CLIENT UNBLOCK has no effect.
const UNINTERRUPTIBLE: u8 = 5;

/// Blocking state of a client.
#[derive(Default)]
pub struct Blocked {
    state: AtomicU8,
    unblock_notify: Notify,
}

impl Blocked {
    /// Begins a wait. `may_be_let_go` is true if CLIENT UNBLOCK may end the wait.
    pub fn begin(&self, may_be_let_go: bool) {
        self.state.store(if may_be_let_go { BLOCKED } else { UNINTERRUPTIBLE }, SeqCst);
    }

    /// Ends the wait. `leaves` is true if the connection closes after this reply.
    pub fn end(&self, leaves: bool) {
        self.state.store(if leaves { CLOSING } else { NOT_BLOCKED }, SeqCst);
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state.load(SeqCst), BLOCKED | UNINTERRUPTIBLE)
    }

    pub fn leaves(&self) -> bool {
        self.state.load(SeqCst) == CLOSING
    }

    /// CLIENT UNBLOCK: ends the wait like a timeout, or with an error. Returns false if the client
    /// is not blocked, or may not be unblocked.
    pub fn unblock_client(&self, with_error: bool) -> bool {
        let next = if with_error { FAILED } else { TIMED_OUT };
        let was_waiting = self.state.compare_exchange(BLOCKED, next, SeqCst, SeqCst).is_ok();
        if was_waiting {
            self.unblock_notify.notify_one();
        }
        was_waiting
    }

    /// Waits for CLIENT UNBLOCK. Returns whether the reply must be an error.
    pub async fn wait_for_unblock(&self) -> bool {
        loop {
            self.unblock_notify.notified().await;
            // The notification may belong to an earlier wait.
            match self.state.load(SeqCst) {
                TIMED_OUT => return false,
                FAILED => return true,
                _ => {}
            }
        }
    }
}
