//! Guards for writers. A writer holds a guard while it changes the engines and marks the changed
//! keys.
//!
//! A [`WriteGuard`] locks one stripe. An [`Exclusive`] guard locks several stripes, which the
//! commit thread reads together (C6). The invariants are numbered in `mod.rs`.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use parking_lot::MutexGuard;

use super::committer::{Committer, SyncPolicy};
use super::source::Ticket;
use super::stripe::{FIRST_DEDUPE, Joined, Stripe, StripeGuard};
use super::visibility::CHANGING;
use crate::batch::MAX_BODY_BYTES;

/// Maximum number of keys in a joined stripe before writes are held back (C5). With this limit, the
/// keys of all joined stripes take only a fraction of a batch.
const JOINED_KEYS: usize = 256;

/// Limit of all [reservations](Committer::reserve) in bytes. The rest of a batch is for record
/// headers and for records that the source adds.
const RESERVED_BYTES: usize = MAX_BODY_BYTES / 32 * 31;

/// Bytes of joined changes above which all writers wait for the log, so that no further changes are
/// joined.
const MAX_JOINABLE_BYTES: usize = MAX_BODY_BYTES / 4;

/// Bytes up to which the changes of a single stripe need not be [`Joined`]. One lock covers these
/// changes, and they fit into any batch.
const MAX_SINGLE_STRIPE_BYTES: usize = 64 << 10;

#[cfg(debug_assertions)]
thread_local! {
    /// Whether this thread has locked several stripes. Such a thread must not enter other stripes,
    /// because their changes would be in another batch.
    static HOLDS_SEVERAL: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Space reserved in a batch for an atomic group ([`Committer::reserve`]). The space is released
/// when the group is logged, or when the reservation is dropped without use.
pub struct BatchReservation<'a, K> {
    committer: &'a Committer<K>,
    bytes: usize,
}

impl<K> Drop for BatchReservation<'_, K> {
    fn drop(&mut self) {
        self.committer.reserved.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

impl<'a, K: Copy + Ord> BatchReservation<'a, K> {
    /// Like [`Committer::several`], for a group of at most the reserved size.
    pub fn several(self, hashes: impl IntoIterator<Item = u64>) -> Exclusive<'a, K> {
        let several = self.committer.several(hashes);
        several.with(self)
    }

    /// Like [`Committer::exclusive`], for a group of at most the reserved size.
    pub fn exclusive(self) -> Exclusive<'a, K> {
        let all = self.committer.exclusive();
        all.with(self)
    }
}

/// A writer's lock of one stripe. The commit thread reads the stripe only after the guard is
/// dropped.
pub struct WriteGuard<'a, K> {
    committer: &'a Committer<K>,
    stripe: StripeGuard<'a, K>,
    index: usize,
    /// With `always`: the [`VisibilityTable`](super::visibility::VisibilityTable) entry of the id,
    /// and its previous value.
    last_change: Option<(&'a AtomicU64, Ticket)>,
    has_marked: bool,
    affects_all_ids: bool,
}

/// A writer's lock of several or all stripes. Other writers of these stripes wait, and all marks go
/// into one batch (C6). The thread that holds the guard may enter these stripes, but no other
/// stripes.
pub struct Exclusive<'a, K: Copy> {
    committer: &'a Committer<K>,
    joined: MutexGuard<'a, Joined<K>>,
    /// Index and lock of each stripe, and its number of keys when it was locked.
    stripes: Vec<(usize, StripeGuard<'a, K>, usize)>,
    reserved: Option<BatchReservation<'a, K>>,
    /// Whether the guard's changes may affect any id, so that readers of all ids wait for them.
    affects_all_ids: std::cell::Cell<bool>,
}

impl<'a, K: Copy> Exclusive<'a, K> {
    fn with(mut self, reserved: BatchReservation<'a, K>) -> Exclusive<'a, K> {
        self.reserved = Some(reserved);
        self
    }

    /// Joins all pending keys of the stripes with this guard's marks in one batch. The state that
    /// is logged for these marks includes pending changes of other writers. Without joining, the
    /// log could contain half of such a change.
    pub fn join(&self) {
        for (_, stripe, _) in &self.stripes {
            let stripe = &mut *stripe.borrow_mut();
            (stripe.touched, stripe.is_reordered) = (true, true);
        }
        self.committer.visibility_table.begin_all();
        self.affects_all_ids.set(true);
    }
}

impl<K: Copy> Drop for Exclusive<'_, K> {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        HOLDS_SEVERAL.set(false);
        let committer = self.committer;
        if self.affects_all_ids.get() {
            committer.visibility_table.end_all(committer.round.load(Ordering::SeqCst));
        }
        let touched = || self.stripes.iter().filter(|(_, stripe, _)| stripe.borrow().touched);
        let bytes = self.reserved.as_ref().map_or(0, |reserved| reserved.bytes);
        match touched().take(2).count() {
            0 => return,
            // A single stripe needs no joining, because one lock covers it.
            1 if bytes <= MAX_SINGLE_STRIPE_BYTES => return,
            _ => {}
        }
        let Joined { stripes, units, .. } = &mut *self.joined;
        let mut most = 0;
        for (index, stripe, before) in touched() {
            let mut stripe = stripe.borrow_mut();
            // A deduplication reorders the keys, so the guard can no longer identify its own. Join
            // all keys.
            let ours = if stripe.is_reordered { 0 } else { *before };
            units.extend_from_slice(&stripe.keys[ours..]);
            if !std::mem::replace(&mut stripe.joined, true) {
                stripes.push(*index);
            }
            most = most.max(stripe.keys.len());
        }
        // The commit thread releases the reservation.
        self.reserved.take().into_iter().for_each(std::mem::forget);
        self.joined.bytes += bytes;
        if most >= JOINED_KEYS || self.joined.bytes > MAX_JOINABLE_BYTES {
            // Writers wait until the group is logged.
            committer.crowded.store(true, Ordering::Relaxed);
            committer.wake_commit_thread();
        }
    }
}

impl<K: Copy + Ord> WriteGuard<'_, K> {
    /// Marks a key whose state the caller has changed. Marking an unchanged key is harmless.
    #[inline]
    pub fn mark(&mut self, key: K) {
        self.has_marked = true;
        let stripe = &mut *self.stripe.borrow_mut();
        stripe.touched = true;
        // Skip a hot row whose key is already the last key in the list.
        if stripe.last != Some(key) {
            stripe.last = Some(key);
            self.committer.push(stripe, self.index, key);
        }
    }

    /// Passes the slot of the next key, if it is allocated, to `hint`, which prefetches it.
    #[inline]
    pub fn prefetch_mark(&mut self, hint: impl Fn(&MaybeUninit<K>)) {
        self.stripe.borrow_mut().keys.spare_capacity_mut().first().into_iter().for_each(hint);
    }

    /// Like [`mark`](WriteGuard::mark), for a key that is rarely marked twice in a round. Does not
    /// replace the stripe's last key.
    #[inline]
    pub fn mark_new(&mut self, key: K) {
        self.has_marked = true;
        let stripe = &mut *self.stripe.borrow_mut();
        stripe.touched = true;
        self.committer.push(stripe, self.index, key);
    }

    /// Declares that the following change, for example of a schema, is visible to readers of all
    /// ids. The caller declares this before the change.
    pub fn affects_all_ids(&mut self) {
        self.committer.visibility_table.begin_all();
        self.affects_all_ids = true;
    }

    /// Releases the guard. The ticket covers all its marks.
    pub fn leave(self) -> Ticket {
        self.committer.round.load(Ordering::SeqCst)
    }
}

impl<K> Drop for WriteGuard<'_, K> {
    /// Runs under the stripe's lock, so the marks are in this round or an earlier round.
    #[inline]
    fn drop(&mut self) {
        if self.last_change.is_none() && !self.affects_all_ids {
            return;
        }
        let round = self.committer.round.load(Ordering::SeqCst);
        if let Some((last_change, before)) = self.last_change {
            if self.has_marked {
                last_change.store(round, Ordering::Release);
            } else if last_change.load(Ordering::Relaxed) == CHANGING {
                // If the entry has another value, a nested guard has changed the id.
                last_change.store(before, Ordering::Release);
            }
        }
        if self.affects_all_ids {
            self.committer.visibility_table.end_all(round);
        }
    }
}

impl<K: Copy + Ord> Committer<K> {
    // This function is inlined, so that the key goes from registers to the list. A reload of a key
    // that the caller has just stored would stall on earlier stores.
    #[inline(always)]
    fn push(&self, stripe: &mut Stripe<K>, index: usize, key: K) {
        if stripe.keys.is_empty() {
            self.begin_list(index);
        }
        stripe.keys.push(key);
        // Load the round after the dirty bit is set, as in `leave`. `last_marked` is written once
        // per round.
        let round = self.round.load(Ordering::SeqCst);
        if self.last_marked.load(Ordering::Relaxed) < round {
            self.last_marked.fetch_max(round, Ordering::SeqCst);
        }
        if stripe.keys.len() >= stripe.dedupe_at {
            self.dedupe(stripe);
        }
    }

    /// Sets the dirty bit of a stripe whose list was empty. The caller loads the round number after
    /// this call, so that the round with that number logs the key.
    #[inline(never)]
    fn begin_list(&self, index: usize) {
        self.set_dirty(index);
        // With `always` a reply waits for this round.
        if self.policy() == SyncPolicy::Always {
            self.wake_commit_thread();
        }
    }

    #[cold]
    fn dedupe(&self, stripe: &mut Stripe<K>) {
        stripe.keys.sort_unstable();
        stripe.keys.dedup();
        stripe.is_reordered = true;
        // The number of keys must at least double before the next deduplication, so a mark costs
        // O(log n) amortised.
        let keys = stripe.keys.len();
        stripe.dedupe_at = (keys * 2).max(FIRST_DEDUPE);
        // Wraps around if the number of keys has decreased.
        let more = keys.wrapping_sub(std::mem::replace(&mut stripe.counted, keys));
        let queued = self.queued.fetch_add(more, Ordering::Relaxed).wrapping_add(more);
        let most = if stripe.joined { JOINED_KEYS } else { self.options.max_stripe_keys };
        if keys >= most || queued >= self.options.queued_keys {
            self.crowded.store(true, Ordering::Relaxed);
            self.wake_commit_thread();
        }
    }

    /// Enters the stripe of an id, given a hash of the id. Counters and flags of an id must share a
    /// stripe, so pairs also use the hash of the id. The caller changes the data, marks the keys,
    /// and calls [`WriteGuard::leave`]. A thread has one guard at a time, except for stripes that
    /// it has locked with [`Committer::several`].
    #[inline]
    pub fn enter(&self, hash: u64) -> WriteGuard<'_, K> {
        let index = self.stripe_of(hash);
        #[cfg(debug_assertions)]
        assert!(
            !HOLDS_SEVERAL.get() || self.stripes[index].lock.is_owned_by_current_thread(),
            "a writer that holds several stripes must not lock another"
        );
        let stripe = self.stripes[index].lock.lock();
        let last_change =
            (self.policy() == SyncPolicy::Always).then(|| self.visibility_table.begin(hash));
        WriteGuard {
            committer: self,
            stripe,
            index,
            last_change,
            has_marked: false,
            affects_all_ids: false,
        }
    }

    #[inline]
    fn stripe_of(&self, hash: u64) -> usize {
        (hash as usize) & (self.stripes.len() - 1)
    }

    /// Enters the stripes of several ids, by their hashes, for an atomic group. Other writers of
    /// these stripes, and other exclusive guards, wait until the guard is dropped. A second call by
    /// the same thread would deadlock.
    pub fn several(&self, hashes: impl IntoIterator<Item = u64>) -> Exclusive<'_, K> {
        let mut indexes: Vec<usize> = hashes.into_iter().map(|hash| self.stripe_of(hash)).collect();
        indexes.sort_unstable();
        indexes.dedup();
        self.hold(indexes)
    }

    /// Enters all stripes, for changes whose ids are not known in advance. The call takes about 10
    /// ns per stripe.
    pub fn exclusive(&self) -> Exclusive<'_, K> {
        self.hold(0..self.stripes.len())
    }

    fn hold(&self, indexes: impl IntoIterator<Item = usize>) -> Exclusive<'_, K> {
        // This lock prevents a deadlock. Only the owner of this lock waits for a stripe while it
        // has locked another stripe.
        let joined = self.joined.lock();
        let enter = |index: usize| {
            let guard = self.stripes[index].lock.lock();
            let mut stripe = guard.borrow_mut();
            (stripe.touched, stripe.is_reordered) = (false, false);
            // Make the next mark push its key, even if that key equals the last key.
            stripe.last = None;
            let keys = stripe.keys.len();
            drop(stripe);
            (index, guard, keys)
        };
        let stripes = indexes.into_iter().map(enter).collect();
        #[cfg(debug_assertions)]
        HOLDS_SEVERAL.set(true);
        Exclusive {
            committer: self,
            joined,
            stripes,
            reserved: None,
            affects_all_ids: std::cell::Cell::new(false),
        }
    }

    /// Reserves `bytes` in a batch for an atomic group (C6), because the size of a batch is limited
    /// (C8). Returns `None` until enough pending groups are logged or released. Callers reserve
    /// before they enter stripes, because a caller that retries waits for the disk and must hold no
    /// lock.
    pub fn reserve(&self, bytes: usize) -> Option<BatchReservation<'_, K>> {
        let room = |reserved: usize| self.fits(reserved, bytes).then(|| reserved + bytes);
        self.reserved.fetch_update(Ordering::SeqCst, Ordering::SeqCst, room).ok()?;
        Some(BatchReservation { committer: self, bytes })
    }

    /// Whether [`reserve`](Committer::reserve) would succeed now.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.fits(self.reserved.load(Ordering::SeqCst), bytes)
    }

    /// A group that exceeds a batch is admitted when no other group is pending. Otherwise the group
    /// would wait forever.
    fn fits(&self, reserved: usize, bytes: usize) -> bool {
        reserved == 0 || reserved.saturating_add(bytes) <= RESERVED_BYTES
    }

    /// Returns the addresses of the stripe's two cache lines, for a prefetch before
    /// [`enter`](Committer::enter).
    #[inline]
    pub fn stripe_lines(&self, hash: u64) -> [&AtomicBool; 2] {
        let stripe = &self.stripes[self.stripe_of(hash)];
        [&stripe.begin, &stripe.end]
    }

    /// Waits until all current guards are dropped. The thread must have no guard, or have locked
    /// all stripes.
    pub fn wait_for_stripe_writers(&self) {
        for stripe in &self.stripes {
            drop(stripe.lock.lock());
        }
    }

    /// Returns the first locked stripe at or after index `from`. A caller without a lock polls
    /// until it has seen each stripe free.
    pub fn first_locked_stripe(&self, from: usize) -> Option<usize> {
        let busy = (from..self.stripes.len()).find(|&index| self.stripes[index].lock.is_locked());
        // Makes the changes in the free stripes visible to this thread.
        fence(Ordering::Acquire);
        busy
    }

    pub(super) fn set_dirty(&self, index: usize) {
        self.dirty[index / 64].fetch_or(1 << (index % 64), Ordering::SeqCst);
    }

    pub(super) fn take_dirty(&self, mut each: impl FnMut(usize)) {
        for (word, bits) in self.dirty.iter().enumerate() {
            let mut bits = bits.swap(0, Ordering::SeqCst);
            while bits != 0 {
                each(word * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }
}
