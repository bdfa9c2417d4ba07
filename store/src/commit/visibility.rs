//! What readers may see before it is durable, and how they know (C9).
//!
//! A change is seen as soon as it is made, long before its round is synced. Under `always` no reply
//! may show what a power cut may take, so a reader of an id looks here and holds the reply back
//! until the round is synced that its last change is in. One number for each of
//! [`SIGHTS`] groups of ids: with a few dozen changes between two syncs a reader of others rarely
//! meets one.
//!
//! ```text
//!   writer, in its stripe    number = CHANGING, change, mark, number = round
//!   reader                   read, then look at the number
//! ```
//!
//! A reader that saw the change sees at least CHANGING. All ids of a group are in one stripe, so a
//! number has one writer at a time.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::source::Ticket;

/// Groups of ids, a power of two: half a megabyte.
const SIGHTS: usize = 1 << 16;

/// In the place of a round: it is not known yet.
pub(super) const CHANGING: Ticket = Ticket::MAX;

/// The rounds of the last changes, by group of ids.
pub(super) struct Sights {
    groups: Box<[AtomicU64]>,
    /// The last change of what no id names.
    all: AtomicU64,
}

impl Sights {
    pub(super) fn new(stripes: usize) -> Sights {
        let groups = (0..SIGHTS.max(stripes)).map(|_| AtomicU64::new(0)).collect();
        Sights { groups, all: AtomicU64::new(0) }
    }

    fn of(&self, hash: u64) -> &AtomicU64 {
        &self.groups[hash as usize & (self.groups.len() - 1)]
    }

    /// Marks an id as about to change. Returns its number, and what that was.
    #[inline]
    pub(super) fn begin(&self, hash: u64) -> (&AtomicU64, Ticket) {
        let sight = self.of(hash);
        let before = sight.load(Ordering::Relaxed);
        sight.store(CHANGING, Ordering::Relaxed);
        // A reader that sees a change made from here on sees that store.
        fence(Ordering::Release);
        (sight, before)
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

    /// All that was changed so far is in this round at the latest.
    pub(super) fn raise_all(&self, round: Ticket) {
        self.all.fetch_max(round, Ordering::SeqCst);
    }
}
