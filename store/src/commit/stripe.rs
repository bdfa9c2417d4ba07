//! Stripes: the keys that writers have marked and no round has read yet, under one lock for many
//! ids. The invariants are numbered in `mod.rs`.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

/// Keys of some ids that were marked and not logged yet.
pub(super) struct Stripe<K> {
    pub(super) keys: Vec<K>,
    /// Key that was marked last, if `keys` has it. It shares the lock's cache line; the end of
    /// `keys` is rarely cached.
    pub(super) last: Option<K>,
    /// Number of keys at which they are deduped next.
    pub(super) dedupe_at: usize,
    /// Number of keys that the committer's total includes (C5).
    pub(super) counted: usize,
    /// Whether a key was marked since an exclusive turn began.
    pub(super) touched: bool,
    /// Whether `keys` was deduped, and so reordered, since then.
    pub(super) mixed: bool,
    /// Whether the next round reads this stripe together with all other joined ones (C6).
    pub(super) joined: bool,
}

/// Re-entrant, so that a thread which holds several stripes can enter single ones.
type Lock<K> = ReentrantMutex<RefCell<Stripe<K>>>;
pub(super) type Guard<'a, K> = ReentrantMutexGuard<'a, RefCell<Stripe<K>>>;

/// Number of keys for which a stripe keeps memory.
const KEPT_KEYS: usize = 32;

/// Number of keys at which a stripe is first deduped.
pub(super) const FIRST_DEDUPE: usize = 256;

/// A stripe on two cache lines of its own.
#[repr(C, align(128))]
pub(super) struct Aligned<K> {
    /// First byte of the two cache lines; a prefetch needs its address. `end` is the last one.
    pub(super) begin: AtomicBool,
    pub(super) lock: Lock<K>,
    pub(super) end: AtomicBool,
}

/// Stripes and keys that the next round reads together, into one batch (C6).
pub(super) struct Joined<K> {
    pub(super) stripes: Vec<usize>,
    /// Keys marked by exclusive turns. Their stripes may hold others, too.
    pub(super) units: Vec<K>,
    /// Bytes reserved for these keys.
    pub(super) bytes: usize,
}

impl<K> Default for Joined<K> {
    fn default() -> Joined<K> {
        Joined { stripes: Vec::new(), units: Vec::new(), bytes: 0 }
    }
}

impl<K> Stripe<K> {
    /// Swaps the keys of a stripe with an empty list, and subtracts them from `queued`.
    pub(super) fn take(&mut self, keys: &mut Vec<K>, queued: &AtomicUsize) {
        // Frees the memory of a burst: there are thousands of stripes.
        keys.shrink_to(KEPT_KEYS);
        std::mem::swap(keys, &mut self.keys);
        (self.last, self.dedupe_at) = (None, FIRST_DEDUPE);
        queued.fetch_sub(std::mem::take(&mut self.counted), Ordering::Relaxed);
    }
}

pub(super) fn empty<K>(stripes: usize) -> Box<[Aligned<K>]> {
    let stripe = || {
        let empty = Stripe {
            keys: Vec::new(),
            last: None,
            dedupe_at: FIRST_DEDUPE,
            counted: 0,
            touched: false,
            mixed: false,
            joined: false,
        };
        Aligned {
            begin: AtomicBool::new(false),
            lock: ReentrantMutex::new(RefCell::new(empty)),
            end: AtomicBool::new(false),
        }
    };
    (0..stripes).map(|_| stripe()).collect()
}
