//! Stripes. A stripe has one lock for many ids, and the keys that writers have marked and no round
//! has read yet. The invariants are numbered in `mod.rs`.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

/// Keys that writers have marked and no round has logged yet.
pub(super) struct Stripe<K> {
    pub(super) keys: Vec<K>,
    /// Last marked key, if it is in `keys`. This field shares the lock's cache line, whereas the
    /// end of `keys` is rarely cached.
    pub(super) last: Option<K>,
    /// Number of keys that triggers the next deduplication.
    pub(super) dedupe_at: usize,
    /// Number of keys that this stripe has added to the committer's total (C5).
    pub(super) counted: usize,
    /// Whether a key was marked since an [`Exclusive`](super::Exclusive) guard was created.
    pub(super) touched: bool,
    /// Whether `keys` was deduplicated, and so reordered, since an exclusive guard was created.
    pub(super) is_reordered: bool,
    /// Whether the next round reads this stripe together with all other joined stripes (C6).
    pub(super) joined: bool,
}

/// Lock of a stripe. The lock is re-entrant, so that a thread that has locked several stripes can
/// enter one of these stripes.
type StripeLock<K> = ReentrantMutex<RefCell<Stripe<K>>>;
pub(super) type StripeGuard<'a, K> = ReentrantMutexGuard<'a, RefCell<Stripe<K>>>;

/// Number of keys for which an empty stripe retains memory.
const KEPT_KEYS: usize = 32;

/// Number of keys that triggers the first deduplication of a stripe.
pub(super) const FIRST_DEDUPE: usize = 256;

/// A stripe that has two cache lines to itself.
#[repr(C, align(128))]
pub(super) struct AlignedStripe<K> {
    /// First byte of the two cache lines, for a prefetch. `end` is the last byte.
    pub(super) begin: AtomicBool,
    pub(super) lock: StripeLock<K>,
    pub(super) end: AtomicBool,
}

/// Stripes and keys that the next round reads together, into one batch (C6).
pub(super) struct Joined<K> {
    pub(super) stripes: Vec<usize>,
    /// Keys marked under exclusive guards. The stripes of these keys may also contain other keys.
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
        // Free the memory that a burst of keys has allocated, because there are thousands of
        // stripes.
        keys.shrink_to(KEPT_KEYS);
        std::mem::swap(keys, &mut self.keys);
        (self.last, self.dedupe_at) = (None, FIRST_DEDUPE);
        queued.fetch_sub(std::mem::take(&mut self.counted), Ordering::Relaxed);
    }
}

pub(super) fn empty<K>(stripes: usize) -> Box<[AlignedStripe<K>]> {
    let stripe = || {
        let empty = Stripe {
            keys: Vec::new(),
            last: None,
            dedupe_at: FIRST_DEDUPE,
            counted: 0,
            touched: false,
            is_reordered: false,
            joined: false,
        };
        AlignedStripe {
            begin: AtomicBool::new(false),
            lock: ReentrantMutex::new(RefCell::new(empty)),
            end: AtomicBool::new(false),
        }
    };
    (0..stripes).map(|_| stripe()).collect()
}
