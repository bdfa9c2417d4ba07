//! The writers' side: turns, in which a writer changes the engines and marks the changed keys.
//!
//! A turn holds one stripe ([`WriteGuard`]), or several at once ([`Exclusive`]), which the commit
//! thread then reads together (C6). The invariants are numbered in `mod.rs`.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use parking_lot::MutexGuard;

use super::committer::{Committer, SyncPolicy};
use super::source::Ticket;
use super::stripe::{FIRST_DEDUPE, Guard, Joined, Stripe};
use super::visibility::CHANGING;
use crate::batch::MAX_BODY_BYTES;

/// With so many keys in a joined stripe the committer is crowded (C5): what all of them hold then
/// still fits into one batch several times.
const JOINED_KEYS: usize = 256;

/// Most bytes that may be [reserved](Committer::reserve) together: what is not is for heads of
/// records and for what a source logs unasked.
const RESERVED_BYTES: usize = MAX_BODY_BYTES / 32 * 31;

/// Beyond so many bytes of changes that wait other writers wait for the log, too: meanwhile nothing
/// is added to what has to go with them.
const HEAVY_BYTES: usize = MAX_BODY_BYTES / 4;

/// Changes of one stripe that take no more than this need not be [`Joined`]: they are read in one
/// moment anyway, and a batch has room for them.
const LIGHT_BYTES: usize = 64 << 10;

#[cfg(debug_assertions)]
thread_local! {
    /// Whether this thread holds several stripes: then it must not enter others, whose changes
    /// would go into another batch.
    static HOLDS_SEVERAL: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Room in a batch for changes that belong together, until they are logged, or this is dropped: see
/// [`Committer::reserve`].
pub struct Reserved<'a, K> {
    committer: &'a Committer<K>,
    bytes: usize,
}

impl<K> Drop for Reserved<'_, K> {
    fn drop(&mut self) {
        self.committer.reserved.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

impl<'a, K: Copy + Ord> Reserved<'a, K> {
    /// [`Committer::several`], for changes that take no more than what was reserved: it stays so
    /// until they are logged.
    pub fn several(self, hashes: impl IntoIterator<Item = u64>) -> Exclusive<'a, K> {
        let several = self.committer.several(hashes);
        several.with(self)
    }

    /// [`Committer::exclusive`], for changes that take no more than what was reserved: it stays so
    /// until they are logged.
    pub fn exclusive(self) -> Exclusive<'a, K> {
        let all = self.committer.exclusive();
        all.with(self)
    }
}

/// A writer's stay in its stripe: nothing of the stripe is read for the log meanwhile.
pub struct WriteGuard<'a, K> {
    committer: &'a Committer<K>,
    stripe: Guard<'a, K>,
    index: usize,
    /// With `always`: where readers look, and what stood there before.
    sight: Option<(&'a AtomicU64, Ticket)>,
    has_marked: bool,
    concerns_all: bool,
}

/// A stay in several stripes at once, or in all: no other writer changes anything there meanwhile,
/// and all that is marked goes into one batch (C6). The thread that has it may enter these stripes
/// as usual, and no others.
pub struct Exclusive<'a, K: Copy> {
    committer: &'a Committer<K>,
    joined: MutexGuard<'a, Joined<K>>,
    /// Each with how many keys it had.
    stripes: Vec<(usize, Guard<'a, K>, usize)>,
    reserved: Option<Reserved<'a, K>>,
    /// It changes ids that are not known: readers of any id wait for it.
    concerns_all: std::cell::Cell<bool>,
}

impl<'a, K: Copy> Exclusive<'a, K> {
    fn with(mut self, reserved: Reserved<'a, K>) -> Exclusive<'a, K> {
        self.reserved = Some(reserved);
        self
    }

    /// All that waits in its stripes is to be read in one moment, into one batch, with what is
    /// marked now: then no other writer's change is in the log with one half, or as it was before,
    /// because the state that is read here shows it, too.
    pub fn join(&self) {
        for (_, stripe, _) in &self.stripes {
            let stripe = &mut *stripe.borrow_mut();
            (stripe.touched, stripe.mixed) = (true, true);
        }
        self.committer.sights.begin_all();
        self.concerns_all.set(true);
    }
}

impl<K: Copy> Drop for Exclusive<'_, K> {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        HOLDS_SEVERAL.set(false);
        let committer = self.committer;
        if self.concerns_all.get() {
            committer.sights.end_all(committer.round.load(Ordering::SeqCst));
        }
        let touched = || self.stripes.iter().filter(|(_, stripe, _)| stripe.borrow().touched);
        let bytes = self.reserved.as_ref().map_or(0, |reserved| reserved.bytes);
        match touched().take(2).count() {
            0 => return,
            // One alone is read in one moment anyway.
            1 if bytes <= LIGHT_BYTES => return,
            _ => {}
        }
        let Joined { stripes, units, .. } = &mut *self.joined;
        let mut most = 0;
        for (index, stripe, before) in touched() {
            let mut stripe = stripe.borrow_mut();
            // If it is unknown which of them are ours, all are.
            let ours = if stripe.mixed { 0 } else { *before };
            units.extend_from_slice(&stripe.keys[ours..]);
            if !std::mem::replace(&mut stripe.joined, true) {
                stripes.push(*index);
            }
            most = most.max(stripe.keys.len());
        }
        // From here on it is the commit thread's to give back.
        self.reserved.take().into_iter().for_each(std::mem::forget);
        self.joined.bytes += bytes;
        if most >= JOINED_KEYS || self.joined.bytes > HEAVY_BYTES {
            // Writers wait until it is logged.
            committer.crowded.store(true, Ordering::Relaxed);
            committer.nudge();
        }
    }
}

impl<K: Copy + Ord> WriteGuard<'_, K> {
    /// Says that the state behind `key` was changed in this turn. Marking a key that was not
    /// changed does no harm.
    #[inline]
    pub fn mark(&mut self, key: K) {
        self.has_marked = true;
        let stripe = &mut *self.stripe.borrow_mut();
        stripe.touched = true;
        // A hot row.
        if stripe.last != Some(key) {
            stripe.last = Some(key);
            self.committer.push(stripe, self.index, key);
        }
    }

    /// Where the next key will lie, if there is room for it: for a caller that prefetches this line
    /// while the change is made.
    #[inline]
    pub fn before_mark(&mut self, hint: impl Fn(&MaybeUninit<K>)) {
        self.stripe.borrow_mut().keys.spare_capacity_mut().first().into_iter().for_each(hint);
    }

    /// As [`mark`](WriteGuard::mark), for a key that is hardly ever marked twice between two
    /// rounds: the stripe goes on remembering the one before.
    #[inline]
    pub fn mark_new(&mut self, key: K) {
        self.has_marked = true;
        let stripe = &mut *self.stripe.borrow_mut();
        stripe.touched = true;
        self.committer.push(stripe, self.index, key);
    }

    /// Says, before anything is changed, that readers of any id will see it: a schema, a ring.
    pub fn concerns_all(&mut self) {
        self.committer.sights.begin_all();
        self.concerns_all = true;
    }

    /// Ends the turn; the ticket is for all that was marked in it.
    pub fn leave(self) -> Ticket {
        self.committer.round.load(Ordering::SeqCst)
    }
}

impl<K> Drop for WriteGuard<'_, K> {
    /// Still under the stripe's lock: what was marked is in the round that is read here, or an
    /// earlier one.
    #[inline]
    fn drop(&mut self) {
        if self.sight.is_none() && !self.concerns_all {
            return;
        }
        let round = self.committer.round.load(Ordering::SeqCst);
        if let Some((sight, before)) = self.sight {
            if self.has_marked {
                sight.store(round, Ordering::Release);
            } else if sight.load(Ordering::Relaxed) == CHANGING {
                // Unless a turn within this one has changed something.
                sight.store(before, Ordering::Release);
            }
        }
        if self.concerns_all {
            self.committer.sights.end_all(round);
        }
    }
}

impl<K: Copy + Ord> Committer<K> {
    // Inlined, so that the key goes from registers to the list, whose end is rarely in the cache:
    // loaded from where its caller has just stored it, word by word, it would wait for all stores
    // before it.
    #[inline(always)]
    fn push(&self, stripe: &mut Stripe<K>, index: usize, key: K) {
        if stripe.keys.is_empty() {
            self.begin_list(index);
        }
        stripe.keys.push(key);
        // As in `leave`: after the bit. Written once a round, so it costs the others nothing.
        let round = self.round.load(Ordering::SeqCst);
        if self.last_marked.load(Ordering::Relaxed) < round {
            self.last_marked.fetch_max(round, Ordering::SeqCst);
        }
        if stripe.keys.len() >= stripe.dedupe_at {
            self.dedupe(stripe);
        }
    }

    /// The first key of a stripe in a round is about to come. Before the round is read, in `leave`.
    #[inline(never)]
    fn begin_list(&self, index: usize) {
        self.set_dirty(index);
        // With `always` a reply waits for it.
        if self.policy() == SyncPolicy::Always {
            self.nudge();
        }
    }

    #[cold]
    fn dedupe(&self, stripe: &mut Stripe<K>) {
        stripe.keys.sort_unstable();
        stripe.keys.dedup();
        stripe.mixed = true;
        // At least as many pushes as there are keys go by until the next time: amortised, a mark
        // sorts O(log n) keys.
        let keys = stripe.keys.len();
        stripe.dedupe_at = (keys * 2).max(FIRST_DEDUPE);
        // Modulo 2^64: it may have become fewer.
        let more = keys.wrapping_sub(std::mem::replace(&mut stripe.counted, keys));
        let queued = self.queued.fetch_add(more, Ordering::Relaxed).wrapping_add(more);
        let most = if stripe.joined { JOINED_KEYS } else { self.options.crowded_keys };
        if keys >= most || queued >= self.options.queued_keys {
            self.crowded.store(true, Ordering::Relaxed);
            self.nudge();
        }
    }

    /// Enters the stripe of an id, by a hash of it (the id's, not the pair's: what belongs together
    /// must share a stripe). The change is made and marked before [`WriteGuard::leave`]. A thread
    /// is in one turn at a time, unless it has their stripes: see [`Committer::several`].
    #[inline]
    pub fn enter(&self, hash: u64) -> WriteGuard<'_, K> {
        let index = self.stripe_of(hash);
        #[cfg(debug_assertions)]
        assert!(
            !HOLDS_SEVERAL.get() || self.stripes[index].lock.is_owned_by_current_thread(),
            "a writer that holds several stripes enters another one"
        );
        let stripe = self.stripes[index].lock.lock();
        let sight = (self.policy() == SyncPolicy::Always).then(|| self.sights.begin(hash));
        WriteGuard { committer: self, stripe, index, sight, has_marked: false, concerns_all: false }
    }

    #[inline]
    fn stripe_of(&self, hash: u64) -> usize {
        (hash as usize) & (self.stripes.len() - 1)
    }

    /// Enters the stripes of several ids, by the hashes that [`Committer::enter`] would get: for
    /// changes that belong together. Other writers of these stripes wait until it ends, and so do
    /// other callers that want several. A thread that has some must not ask for more: it would wait
    /// for itself.
    pub fn several(&self, hashes: impl IntoIterator<Item = u64>) -> Exclusive<'_, K> {
        let mut indexes: Vec<usize> = hashes.into_iter().map(|hash| self.stripe_of(hash)).collect();
        indexes.sort_unstable();
        indexes.dedup();
        self.hold(indexes)
    }

    /// Enters all stripes: for changes whose ids are not known beforehand. Costs
    /// some ten nanoseconds per stripe.
    pub fn exclusive(&self) -> Exclusive<'_, K> {
        self.hold(0..self.stripes.len())
    }

    fn hold(&self, indexes: impl IntoIterator<Item = usize>) -> Exclusive<'_, K> {
        // Only the holder of this lock waits for a stripe while it holds another one: no deadlock.
        let joined = self.joined.lock();
        let enter = |index: usize| {
            let guard = self.stripes[index].lock.lock();
            let mut stripe = guard.borrow_mut();
            (stripe.touched, stripe.mixed) = (false, false);
            // What is marked from here on is pushed from here on.
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
            concerns_all: std::cell::Cell::new(false),
        }
    }

    /// Room for changes that belong together (C6) and take so many bytes of the log, at most: all
    /// that is to be read in one moment is one batch, which has a limit (C8). `None`: there is none
    /// until the commit thread has logged what waits, or what was reserved is given back. To be
    /// asked before the stripes are entered: a caller that has to ask again waits for the disk, and
    /// must hold nothing meanwhile.
    pub fn reserve(&self, bytes: usize) -> Option<Reserved<'_, K>> {
        let room = |reserved: usize| self.fits(reserved, bytes).then(|| reserved + bytes);
        self.reserved.fetch_update(Ordering::SeqCst, Ordering::SeqCst, room).ok()?;
        Some(Reserved { committer: self, bytes })
    }

    /// Whether so much could be [reserved](Committer::reserve) now.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.fits(self.reserved.load(Ordering::SeqCst), bytes)
    }

    /// What fits into no batch is not to wait for ever.
    fn fits(&self, reserved: usize, bytes: usize) -> bool {
        reserved == 0 || reserved.saturating_add(bytes) <= RESERVED_BYTES
    }

    /// Where the stripe of `hash` lies, which will be [entered](Committer::enter) soon: for a
    /// caller that prefetches these two cache lines.
    #[inline]
    pub fn stripe_lines(&self, hash: u64) -> [&AtomicBool; 2] {
        let stripe = &self.stripes[self.stripe_of(hash)];
        [&stripe.begin, &stripe.end]
    }

    /// Lets all turns end that are under way. The thread must be in none, or hold all stripes.
    pub fn pass_all(&self) {
        for stripe in &self.stripes {
            drop(stripe.lock.lock());
        }
    }

    /// The first stripe from this one on that is entered now; for a caller that waits until each
    /// was seen free, without a lock.
    pub fn first_busy(&self, from: usize) -> Option<usize> {
        let busy = (from..self.stripes.len()).find(|&index| self.stripes[index].lock.is_locked());
        // What was done in those that are free is seen from here on.
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
