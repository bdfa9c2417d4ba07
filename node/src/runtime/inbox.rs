//! Inbox of a client: messages of channels, invalidations, and lines of MONITOR. Any thread may
//! push. The client's own worker writes the messages to the socket between two event-loop
//! iterations.
//!
//! The inbox of a client that does not read grows up to a limit. At the limit the client is
//! disconnected. The publisher never waits.

use crate::runtime::client_memory::Share;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Waker;

#[derive(Default)]
struct InboxState {
    bytes: Vec<u8>,
    /// Waker of the task that serves the client. The first poll sets it.
    waker: Option<Waker>,
}

/// Inbox of a client.
#[derive(Default)]
pub struct Inbox {
    state: Mutex<InboxState>,
    /// Length of `bytes`, readable without the lock.
    waiting: AtomicUsize,
    /// Share of the inbox in the memory of all clients. Changed only while holding the lock.
    share: Share,
}

impl Inbox {
    pub(crate) fn new(share: Share) -> Inbox {
        Inbox { share, ..Inbox::default() }
    }

    /// Sets the initial waker; [`Inbox::take`] replaces it.
    pub fn set_waker(&self, waker: &Waker) {
        self.state.lock().waker.get_or_insert_with(|| waker.clone());
    }

    /// Appends a message and wakes the client's task. If the inbox would exceed `most` bytes,
    /// appends nothing and returns false.
    pub(crate) fn push(&self, message: &[u8], most: usize) -> bool {
        let mut state = self.state.lock();
        if state.bytes.len() + message.len() > most {
            return false;
        }
        state.bytes.extend_from_slice(message);
        self.waiting.store(state.bytes.len(), Relaxed);
        self.share.set(state.bytes.capacity());
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Appends all messages to `out` and returns true. If there are none, stores `waker` for the
    /// next message and returns false.
    pub fn take(&self, out: &mut Vec<u8>, waker: Option<&Waker>) -> bool {
        let mut state = self.state.lock();
        if state.bytes.is_empty() {
            if let Some(waker) = waker {
                state.waker = Some(waker.clone());
            }
            return false;
        }
        if out.is_empty() {
            std::mem::swap(out, &mut state.bytes);
        } else {
            out.append(&mut state.bytes);
        }
        state.bytes = Vec::new();
        self.waiting.store(0, Relaxed);
        self.share.set(0);
        true
    }

    pub(crate) fn counted(&self) -> usize {
        self.share.counted()
    }

    /// Number of pending bytes.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }
}
