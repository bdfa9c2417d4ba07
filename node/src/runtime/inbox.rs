//! What others send to a client: messages of channels, lines for MONITOR. Any thread may push, from
//! any thread; the client's own worker writes it to the socket between two turns.
//!
//! A client that does not read makes it grow, so it has a limit: beyond it the client is
//! disconnected, and the publisher goes on.

use crate::runtime::client_memory::Share;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Waker;

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    /// Of the task that serves the client, once it has looked.
    waker: Option<Waker>,
}

/// One client's inbox. See the top of the file.
#[derive(Default)]
pub struct Inbox {
    state: Mutex<State>,
    /// Length of `bytes`, to be seen without the lock.
    waiting: AtomicUsize,
    /// Changed under the lock only.
    share: Share,
}

impl Inbox {
    pub(crate) fn new(share: Share) -> Inbox {
        Inbox { share, ..Inbox::default() }
    }

    /// Whose waker is woken when something comes, until [`Inbox::take`] names another.
    pub fn introduce(&self, waker: &Waker) {
        self.state.lock().waker.get_or_insert_with(|| waker.clone());
    }

    /// Adds bytes and wakes the client's task; false, and nothing is added, if there would be more
    /// than `most`.
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

    /// Moves what is there to the end of `out`; true if there was something. If not, `waker` is
    /// woken when something comes.
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

    /// Bytes that count as all clients' memory.
    pub(crate) fn counted(&self) -> usize {
        self.share.counted()
    }

    /// Bytes that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }
}
