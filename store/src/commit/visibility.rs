//! Delays replies that show changes that are not durable yet (C9).
//!
//! The commit thread works in *rounds*: a round logs and syncs all changes since the last round.
//! Other clients see a change as soon as it is made, before its round is synced. Under `always` no
//! reply may show data that a power cut could destroy. After it has read an id, a reader therefore
//! looks up the round of the id's last change, and delays the reply until that round is synced. A
//! hash assigns each id to one of [`ID_GROUPS`] groups, and a table stores the round of the last
//! change in each group. If there are only a few dozen changes between two syncs, a reader of an
//! unchanged id rarely has to wait.
//!
//! ```text
//!   writer, in its stripe    number = CHANGING, change, mark, number = round
//!   reader                   read the state, then the number
//! ```
//!
//! A reader that saw the change also sees CHANGING or a later value. All ids of a group share a
//! stripe, so each value has one writer at a time.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::source::Ticket;

/// Number of groups of ids, a power of two. The table takes 512 KiB.
const ID_GROUPS: usize = 1 << 16;

/// Value of a group while a writer changes one of its ids: the round number is not known yet.
pub(super) const CHANGING: Ticket = Ticket::MAX;

/// Table with the round of the last change in each group of ids.
pub(super) struct VisibilityTable {
    groups: Box<[AtomicU64]>,
    /// Round of the last change that affects all ids.
    all: AtomicU64,
}

impl VisibilityTable {
    pub(super) fn new(stripes: usize) -> VisibilityTable {
        let groups = (0..ID_GROUPS.max(stripes)).map(|_| AtomicU64::new(0)).collect();
        VisibilityTable { groups, all: AtomicU64::new(0) }
    }

    fn of(&self, hash: u64) -> &AtomicU64 {
        &self.groups[hash as usize & (self.groups.len() - 1)]
    }

    /// Marks an id as about to change. Returns the entry of the id's group, and the entry's
    /// previous value.
    #[inline]
    pub(super) fn begin(&self, hash: u64) -> (&AtomicU64, Ticket) {
        let last_change = self.of(hash);
        let before = last_change.load(Ordering::Relaxed);
        last_change.store(CHANGING, Ordering::Relaxed);
        // A reader that sees a later change also sees the store above.
        fence(Ordering::Release);
        (last_change, before)
    }

    /// Returns the round of the last change of this id or of all ids.
    #[inline]
    pub(super) fn last_change(&self, hash: u64) -> Ticket {
        fence(Ordering::Acquire);
        self.of(hash).load(Ordering::Acquire).max(self.all.load(Ordering::Acquire))
    }

    pub(super) fn begin_all(&self) {
        self.all.store(CHANGING, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    pub(super) fn end_all(&self, round: Ticket) {
        self.all.store(round, Ordering::Release);
    }

    /// Attributes all earlier changes to this round.
    pub(super) fn raise_all(&self, round: Ticket) {
        self.all.fetch_max(round, Ordering::SeqCst);
    }
}
