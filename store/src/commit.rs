//! Group commit: many writers mark what they changed; one thread reads the changed state once, logs it, syncs, and says up to where.
//!
//! ```text
//!   writer                                     commit thread, one round after the other
//!   turn = committer.enter(hash of the id)     round n ends, n + 1 begins
//!     change the engines                       for each stripe that is not empty: lock, take its keys, dedupe,
//!     turn.mark(key) ...                           source.collect(keys) reads their state now, unlock
//!   ticket = turn.leave()                      source.encode(batch), log.append(batch), log.sync()
//!   reply when durable() >= ticket             durable = n; source.published(..) wakes who waits
//! ```
//!
//! What holds:
//!
//! - **C1** What was marked before a ticket was given is in the log, and synced as the policy says, when [`Committer::durable`] has reached the ticket.
//! - **C2** All keys marked in one turn, and their state, go into one batch; so does everything that the turn's change made visible. A change of
//!   a counter and a flag that belong together is therefore in the log with both halves or not at all, if both are changed and marked
//!   within one turn, of one stripe. This is why the state is read under the stripe's lock: read outside it, a batch could hold a counter with
//!   an increment of which the flag comes only in the next batch.
//! - **C3** A key marked any number of times within a round costs one record, and memory for few: stripes dedupe themselves as they grow.
//! - **C4** A failed round loses nothing: its keys are taken up by the next one, which reads their state anew.
//! - **C5** Keys waiting are bounded: above [`CommitOptions::crowded_keys`] in any stripe [`Committer::is_crowded`] says so, and the server stops taking writes until it does not.
//! - **C6** All that was marked during one [`Exclusive`] is in one batch, and no other writer's change comes between in the stripes that it holds.
//!   The stripes in which it marked, if there are several, are read together, in one moment, by the round that comes to the first of them; or all
//!   that it holds, if it says so ([`Exclusive::join`]): where a change is of ids that nobody knows.
//! - **C7** A batch holds each key once: a source may sort what it has read as it likes, and the last state of a key is in the last batch that has it.
//!
//! A writer holds its stripe for as long as its change takes, the commit thread for as long as reading the state of the stripe's few keys takes. Readers
//! take no stripe (promise 1).
//!
//! Why a ticket is a round and not a count: it is then one load for the writer, no shared counter is incremented, and every stripe may be empty.
//! The commit thread first raises the round, then looks for stripes with keys. A writer sets its stripe's bit, then loads the round. So a
//! writer that still saw round n set its bit before the commit thread looked, and its keys are in round n. (Both orders are sequentially consistent.)

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex, MutexGuard, ReentrantMutex, ReentrantMutexGuard};

use crate::error::{Error, Result};
use crate::log::{Log, LogStats, Position};
use crate::record::Batch;

/// A round of the commit thread: what was marked under it is safe when [`Committer::durable`] has reached it.
pub type Ticket = u64;

/// When an appended batch is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncPolicy {
    /// At once; replies wait for it.
    Always,
    /// So that no write is older than a second when it reaches the disk. Replies do not wait.
    EverySecond,
    /// When the system likes, but at least whenever `unsynced_bytes` have been written, and at each new segment.
    No,
}

/// How commits are made.
#[derive(Clone, Copy, Debug)]
pub struct CommitOptions {
    /// When batches are synced.
    pub policy: SyncPolicy,
    /// Locks, a power of two. Writes of ids in different stripes do not meet. Default 1024.
    pub stripes: usize,
    /// A stripe with this many distinct keys is crowded (C5). Default 4096: some 100 MiB of keys in the worst case.
    pub crowded_keys: usize,
    /// Without `always`: how long changes may gather before they are written (not synced). Longer means fewer log bytes for hot
    /// rows, and a killed process loses as much. Default 50 ms.
    pub gather: Duration,
    /// A batch is closed once the source holds about this many bytes; a round may have several. Default 1 MiB.
    pub batch_bytes: usize,
    /// After a failure: how long until the next attempt. Default 200 ms.
    pub retry: Duration,
    /// A log that nothing was written to for this long is sealed. Default 1 s.
    pub seal_after: Duration,
}

impl Default for CommitOptions {
    fn default() -> CommitOptions {
        CommitOptions {
            policy: SyncPolicy::EverySecond,
            stripes: 1024,
            crowded_keys: 4096,
            gather: Duration::from_millis(50),
            batch_bytes: 1 << 20,
            retry: Duration::from_millis(200),
            seal_after: Duration::from_secs(1),
        }
    }
}

/// `everysec` syncs a little before the second is over, since the sync itself takes time.
const EVERY_SECOND: Duration = Duration::from_millis(800);

/// Can the log take writes?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Yes.
    Good,
    /// No room: writes are to be refused, they will be taken again when there is room.
    Full,
    /// The disk fails: writes are to be refused.
    Failing,
}

/// How far commits have come.
#[derive(Clone, Copy, Debug)]
pub struct Committed {
    /// All up to this round is appended.
    pub written: Ticket,
    /// All up to this round is as durable as the policy makes it before a reply: synced with `always`, else appended.
    pub durable: Ticket,
    /// All up to this round is synced.
    pub synced: Ticket,
    /// Rounds up to this one were tried, and those above `written` (with `always`: above `durable`) failed. Their changes are in memory and
    /// will be logged by a later round, but who waits for them may be told now.
    pub failed: Ticket,
    /// End of what is appended.
    pub written_to: Position,
    /// End of what is synced.
    pub synced_to: Position,
    /// Can the log take writes?
    pub health: Health,
}

/// What the commit thread asks of the server.
pub trait Source<K> {
    /// Reads the present state of these keys (sorted, each once) and keeps it. Called under a lock that their writers take, so it is to be
    /// quick: copy now, encode later. Returns about how many bytes all that is kept will take.
    fn collect(&mut self, keys: &[K]) -> usize;

    /// Turns all that was collected into records, and forgets it. An error, if some of it could not be read: then the round fails.
    fn encode(&mut self, batch: &mut Batch) -> Result<()>;

    /// Forgets what was collected: the round failed, and its keys will come again.
    fn forget(&mut self);

    /// Something changed: release who waits, feed replicas. Called by the commit thread, after each round and each change of health.
    fn published(&mut self, now: &Committed);

    /// The wall clock for batches, milliseconds since 1970.
    fn now_ms(&mut self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
    }

    /// The log failed; for the server's own log. The same error is reported once.
    fn failed(&mut self, _error: &Error) {}
}

struct Stripe<K> {
    keys: Vec<K>,
    /// The key that was [marked](Turn::mark) last, if it is among them: beside the lock, as the end of the list is rarely in the cache.
    last: Option<K>,
    /// Length at which the keys are deduped next.
    dedupe_at: usize,
    /// Something was marked since an [`Exclusive`] began.
    touched: bool,
    /// To be read in one moment with all stripes of which this is true (C6).
    joined: bool,
}

/// Re-entrant: who has several stripes enters single ones as usual.
type Lock<K> = ReentrantMutex<RefCell<Stripe<K>>>;
type Guard<'a, K> = ReentrantMutexGuard<'a, RefCell<Stripe<K>>>;

const FIRST_DEDUPE: usize = 256;

/// With so many keys in a joined stripe the committer is crowded (C5): what all of them hold then still fits into one batch several times.
const JOINED_KEYS: usize = 256;

#[cfg(debug_assertions)]
thread_local! {
    /// Whether this thread holds several stripes: then it must not enter others, whose changes would go into another batch.
    static HOLDS_SEVERAL: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Stripes on cache lines of their own: two each.
#[repr(align(128))]
struct Aligned<T> {
    lock: T,
    /// Lies in the second line; only there to be [asked for](Committer::hint).
    end: AtomicBool,
}

/// Where writers meet the commit thread.
pub struct Committer<K> {
    options: CommitOptions,
    stripes: Box<[Aligned<Lock<K>>]>,
    /// The stripes that are `joined`. Taken before any stripe by whoever needs several at a time.
    joined: Mutex<Vec<usize>>,
    /// A bit for each stripe that may have keys.
    dirty: Box<[AtomicU64]>,
    /// The round that a mark made now belongs to, at the latest.
    round: AtomicU64,
    /// The highest ticket of any mark.
    last_marked: AtomicU64,
    written: AtomicU64,
    durable: AtomicU64,
    synced: AtomicU64,
    failed: AtomicU64,
    health: AtomicU8,
    crowded: AtomicBool,
    /// The [`SyncPolicy`], as a number.
    policy: AtomicU8,
    /// Set when there is something to do for the commit thread; only who sets it notifies.
    nudged: AtomicBool,
    orders: Mutex<Orders>,
    wake: Condvar,
    progress: Condvar,
    stats: Mutex<CommitStats>,
}

#[derive(Default)]
struct Orders {
    stop: bool,
    /// It goes on as another's log: no seal, which that one would not have.
    unsealed: bool,
    /// The commit thread has returned, or failed.
    ended: bool,
    /// A flush is wanted up to this round.
    flush: Ticket,
}

/// Figures of the commit thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommitStats {
    /// Batches appended.
    pub batches: u64,
    /// Distinct keys logged.
    pub keys: u64,
    /// Rounds that failed.
    pub failed_rounds: u64,
    /// The log's figures.
    pub log: LogStats,
    /// Longest sync so far, in microseconds.
    pub slowest_sync_us: u64,
    /// All syncs together, in microseconds.
    pub sync_us: u64,
}

impl<K> std::fmt::Debug for Committer<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Committer").field("round", &self.round).field("durable", &self.durable).finish_non_exhaustive()
    }
}

/// A writer's stay in its stripe: nothing of the stripe is read for the log meanwhile.
pub struct Turn<'a, K> {
    committer: &'a Committer<K>,
    stripe: Guard<'a, K>,
    index: usize,
}

/// A stay in several stripes at once, or in all: no other writer changes anything there meanwhile, and all that is marked goes into one batch (C6).
/// The thread that has it may enter these stripes as usual, and no others.
pub struct Exclusive<'a, K> {
    committer: &'a Committer<K>,
    joined: MutexGuard<'a, Vec<usize>>,
    stripes: Vec<(usize, Guard<'a, K>)>,
}

impl<K> Exclusive<'_, K> {
    /// All that waits in its stripes is to be read in one moment, into one batch, with what is marked now: then no other writer's change is in the log
    /// with one half, or as it was before, because the state that is read here shows it, too.
    pub fn join(&self) {
        self.stripes.iter().for_each(|(_, stripe)| stripe.borrow_mut().touched = true);
    }
}

impl<K> Drop for Exclusive<'_, K> {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        HOLDS_SEVERAL.set(false);
        let touched = || self.stripes.iter().filter(|(_, stripe)| stripe.borrow().touched);
        // One alone is read in one moment anyway.
        if touched().nth(1).is_none() {
            return;
        }
        let mut most = 0;
        for (index, stripe) in touched() {
            let mut stripe = stripe.borrow_mut();
            if !std::mem::replace(&mut stripe.joined, true) {
                self.joined.push(*index);
            }
            most = most.max(stripe.keys.len());
        }
        if most >= JOINED_KEYS {
            // What is read together must fit into one batch: writers wait until it is logged.
            self.committer.crowded.store(true, Ordering::Relaxed);
            self.committer.nudge();
        }
    }
}

impl<K: Copy + Ord> Turn<'_, K> {
    /// Says that the state behind `key` was changed in this turn. Marking a key that was not changed does no harm.
    #[inline]
    pub fn mark(&mut self, key: K) {
        let stripe = &mut *self.stripe.borrow_mut();
        stripe.touched = true;
        // A hot row.
        if stripe.last != Some(key) {
            stripe.last = Some(key);
            self.committer.push(stripe, self.index, key);
        }
    }

    /// As [`mark`](Turn::mark), for a key that is hardly ever marked twice between two rounds: the stripe goes on remembering the one before.
    #[inline]
    pub fn mark_new(&mut self, key: K) {
        let stripe = &mut *self.stripe.borrow_mut();
        stripe.touched = true;
        self.committer.push(stripe, self.index, key);
    }

    /// Ends the turn; the ticket is for all that was marked in it.
    pub fn leave(self) -> Ticket {
        self.committer.round.load(Ordering::SeqCst)
    }
}

impl<K> Committer<K> {
    /// Lets the commit thread look now.
    pub fn nudge(&self) {
        if !self.nudged.swap(true, Ordering::SeqCst) {
            // The lock makes sure that the thread is either before its look at `nudged` or already waiting.
            drop(self.orders.lock());
            self.wake.notify_one();
        }
    }

    /// Lets the commit thread look now, if the round of this ticket has not begun yet: for who waits for the ticket, which may name a
    /// round that nobody else asks for.
    pub fn hurry(&self, ticket: Ticket) {
        if self.round.load(Ordering::SeqCst) <= ticket {
            self.nudge();
        }
    }
}

impl<K: Copy + Ord> Committer<K> {
    #[inline]
    fn push(&self, stripe: &mut Stripe<K>, index: usize, key: K) {
        if stripe.keys.is_empty() {
            // Before the round is read, in `leave`.
            self.set_dirty(index);
            // With `always` somebody waits for it.
            if self.policy() == SyncPolicy::Always {
                self.nudge();
            }
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

    #[cold]
    fn dedupe(&self, stripe: &mut Stripe<K>) {
        stripe.keys.sort_unstable();
        stripe.keys.dedup();
        // At least as many pushes as there are keys go by until the next time: amortised, a mark sorts O(log n) keys.
        stripe.dedupe_at = (stripe.keys.len() * 2).max(FIRST_DEDUPE);
        if stripe.keys.len() >= if stripe.joined { JOINED_KEYS } else { self.options.crowded_keys } {
            self.crowded.store(true, Ordering::Relaxed);
            self.nudge();
        }
    }

    /// A meeting place; one thread is to call [`run`](Committer::run).
    pub fn new(options: CommitOptions) -> Committer<K> {
        assert!(options.stripes.is_power_of_two(), "{} stripes", options.stripes);
        let stripe = || {
            let empty = Stripe { keys: Vec::new(), last: None, dedupe_at: FIRST_DEDUPE, touched: false, joined: false };
            Aligned { lock: ReentrantMutex::new(RefCell::new(empty)), end: AtomicBool::new(false) }
        };
        Committer {
            options,
            stripes: (0..options.stripes).map(|_| stripe()).collect(),
            joined: Mutex::default(),
            dirty: (0..options.stripes.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            round: AtomicU64::new(1),
            last_marked: AtomicU64::new(0),
            written: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            health: AtomicU8::new(0),
            crowded: AtomicBool::new(false),
            policy: AtomicU8::new(options.policy as u8),
            nudged: AtomicBool::new(false),
            orders: Mutex::new(Orders::default()),
            wake: Condvar::new(),
            progress: Condvar::new(),
            stats: Mutex::new(CommitStats::default()),
        }
    }

    /// When batches are synced.
    #[inline]
    pub fn policy(&self) -> SyncPolicy {
        match self.policy.load(Ordering::Relaxed) {
            0 => SyncPolicy::Always,
            1 => SyncPolicy::EverySecond,
            _ => SyncPolicy::No,
        }
    }

    /// Changes when batches are synced. A round that is on its way may still be as before; what is marked after this call is in a
    /// later one.
    pub fn set_policy(&self, policy: SyncPolicy) {
        self.policy.store(policy as u8, Ordering::SeqCst);
        // So that the thread does not sleep on as the old policy told it.
        self.nudge();
    }

    /// Enters the stripe of an id, by a hash of it (the id's, not the pair's: what belongs together must share a stripe). The change is made
    /// and marked before [`Turn::leave`]. A thread is in one turn at a time,
    /// unless it has their stripes: see [`Committer::several`].
    #[inline]
    pub fn enter(&self, hash: u64) -> Turn<'_, K> {
        let index = self.stripe_of(hash);
        #[cfg(debug_assertions)]
        assert!(
            !HOLDS_SEVERAL.get() || self.stripes[index].lock.is_owned_by_current_thread(),
            "who holds several stripes enters another one"
        );
        Turn { committer: self, stripe: self.stripes[index].lock.lock(), index }
    }

    #[inline]
    fn stripe_of(&self, hash: u64) -> usize {
        (hash as usize) & (self.stripes.len() - 1)
    }

    /// Enters the stripes of several ids, by the hashes that [`Committer::enter`] would get: for changes that belong together. Other writers of these
    /// stripes wait until it ends, and whoever else wants several. A thread that has some must not ask for more: it would wait for itself.
    pub fn several(&self, hashes: impl IntoIterator<Item = u64>) -> Exclusive<'_, K> {
        let mut indexes: Vec<usize> = hashes.into_iter().map(|hash| self.stripe_of(hash)).collect();
        indexes.sort_unstable();
        indexes.dedup();
        self.hold(indexes)
    }

    /// Enters all stripes: for changes of which nobody can say beforehand where they are. Costs some ten nanoseconds per stripe.
    pub fn exclusive(&self) -> Exclusive<'_, K> {
        self.hold(0..self.stripes.len())
    }

    fn hold(&self, indexes: impl IntoIterator<Item = usize>) -> Exclusive<'_, K> {
        // Only who has this lock waits for a stripe while it holds another one: no circle of waiting.
        let joined = self.joined.lock();
        let enter = |index: usize| {
            let stripe = self.stripes[index].lock.lock();
            stripe.borrow_mut().touched = false;
            (index, stripe)
        };
        let stripes = indexes.into_iter().map(enter).collect();
        #[cfg(debug_assertions)]
        HOLDS_SEVERAL.set(true);
        Exclusive { committer: self, joined, stripes }
    }

    /// Asks the cache for the stripe of `hash`, which will be [entered](Committer::enter) soon: a load that nobody waits for.
    #[inline]
    pub fn hint(&self, hash: u64) {
        let stripe = &self.stripes[self.stripe_of(hash)];
        std::hint::black_box((stripe.lock.is_locked(), stripe.end.load(Ordering::Relaxed)));
    }

    /// The ticket for all that was marked before this call, by whomever: for a connection that ends several turns at once. It does not
    /// rise by itself, so who has marked nothing waits at most for what others have marked.
    pub fn ticket(&self) -> Ticket {
        self.last_marked.load(Ordering::SeqCst)
    }

    /// All up to this ticket is as durable as a reply promises.
    pub fn durable(&self) -> Ticket {
        self.durable.load(Ordering::Acquire)
    }

    /// All up to this ticket is synced, whatever the policy.
    pub fn synced(&self) -> Ticket {
        self.synced.load(Ordering::Acquire)
    }

    /// Rounds up to this one were tried; see [`Committed::failed`].
    pub fn failed(&self) -> Ticket {
        self.failed.load(Ordering::Acquire)
    }

    /// Are there so many keys waiting that writes should be held back (C5)?
    pub fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }

    /// Can the log take writes? Ask before a change is made: if not, refuse it.
    pub fn health(&self) -> Health {
        match self.health.load(Ordering::Relaxed) {
            0 => Health::Good,
            1 => Health::Full,
            _ => Health::Failing,
        }
    }

    /// Figures so far.
    pub fn stats(&self) -> CommitStats {
        *self.stats.lock()
    }

    /// Writes and syncs all turns that began before this call, and waits for it. For SAVE, the end of a snapshot's walk, and tests.
    pub fn flush(&self) -> Result<Ticket> {
        // A turn under way may have changed something that the caller has seen, and not marked it yet: let all of them end.
        for stripe in &self.stripes {
            drop(stripe.lock.lock());
        }
        let ticket = self.round.load(Ordering::SeqCst);
        let mut orders = self.orders.lock();
        orders.flush = orders.flush.max(ticket);
        self.nudged.store(true, Ordering::SeqCst);
        self.wake.notify_one();
        loop {
            if self.synced() >= ticket {
                return Ok(ticket);
            }
            if self.failed() >= ticket {
                return Err(Error::Refused(
                    "the log takes no writes now; see the server's log for the disk's error".to_string(),
                ));
            }
            if orders.ended {
                return Err(Error::Refused("the commit thread has stopped".to_string()));
            }
            self.progress.wait_for(&mut orders, Duration::from_millis(100));
        }
    }

    /// Has all that was written so far synced soon, whatever the policy; nobody waits here.
    pub fn sync_soon(&self) {
        let ticket = self.round.load(Ordering::SeqCst);
        if self.written_to_sync() {
            let mut orders = self.orders.lock();
            orders.flush = orders.flush.max(ticket);
            self.nudged.store(true, Ordering::SeqCst);
            self.wake.notify_one();
        }
    }

    /// Is anything marked or appended that is not synced?
    fn written_to_sync(&self) -> bool {
        self.last_marked.load(Ordering::SeqCst) > self.synced.load(Ordering::SeqCst)
    }

    /// [`run`](Committer::run) may be called again. Until this is called nobody waits in vain for a commit after the end of the last one.
    pub fn reopen(&self) {
        let mut orders = self.orders.lock();
        (orders.stop, orders.unsealed, orders.ended) = (false, false, false);
    }

    /// Asks the commit thread for a last round; [`run`](Committer::run) returns after it.
    pub fn stop(&self) {
        let mut orders = self.orders.lock();
        orders.stop = true;
        self.nudged.store(true, Ordering::SeqCst);
        self.wake.notify_one();
    }

    /// As [`Committer::stop`], but the log is not sealed: nothing is added to it that nobody has written.
    pub fn step_down(&self) {
        self.orders.lock().unsealed = true;
        self.stop();
    }

    fn set_dirty(&self, index: usize) {
        self.dirty[index / 64].fetch_or(1 << (index % 64), Ordering::SeqCst);
    }

    fn take_dirty(&self, mut each: impl FnMut(usize)) {
        for (word, bits) in self.dirty.iter().enumerate() {
            let mut bits = bits.swap(0, Ordering::SeqCst);
            while bits != 0 {
                each(word * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }

    fn set_health(&self, health: Health) {
        let code = match health {
            Health::Good => 0,
            Health::Full => 1,
            Health::Failing => 2,
        };
        self.health.store(code, Ordering::Relaxed);
    }

    /// The commit thread's life: until [`stop`](Committer::stop), and then one more round and a seal. Gives the log back.
    pub fn run(&self, mut log: Log, source: &mut dyn Source<K>) -> (Log, Result<()>) {
        let _ends = Ends(self);
        let mut rounds = Rounds::new(self);
        loop {
            let stop = self.sleep(&rounds);
            let last = rounds.turn(&mut log, source, Instant::now(), stop);
            if stop {
                let seals = !self.orders.lock().unsealed;
                let sealed = last.and_then(|()| if seals { log.seal(source.now_ms()) } else { Ok(()) });
                return (log, sealed);
            }
        }
    }

    /// Waits until there is something to do; true if the thread is to stop.
    fn sleep(&self, rounds: &Rounds<'_, K>) -> bool {
        let mut orders = self.orders.lock();
        let until = rounds.next_look();
        // While the disk fails, marks do not hurry: each attempt costs the disk.
        while (rounds.is_failing() || !self.nudged.load(Ordering::SeqCst)) && !orders.stop {
            match until {
                Some(until) if self.wake.wait_until(&mut orders, until).timed_out() => break,
                Some(_) => {}
                None => self.wake.wait(&mut orders),
            }
        }
        orders.stop
    }
}

/// Says that the commit thread is gone, also when it panics: nobody is to wait for it for ever.
struct Ends<'a, K>(&'a Committer<K>);

impl<K> Drop for Ends<'_, K> {
    fn drop(&mut self) {
        self.0.orders.lock().ended = true;
        self.0.progress.notify_all();
    }
}

/// The commit thread's own state. Driven by [`Committer::run`], or step by step by a test on a simulated disk.
#[derive(Debug)]
pub struct Rounds<'a, K> {
    committer: &'a Committer<K>,
    batch: Batch,
    /// Stripes that this round has still to visit.
    waiting: Vec<usize>,
    /// Keys that were collected and are not appended yet, stripe by stripe: (stripe, end of its keys, was it joined).
    taken: Vec<K>,
    spans: Vec<(usize, usize, bool)>,
    /// A list to swap with a stripe's, so that neither allocates.
    spare: Vec<K>,
    /// When the oldest round began that is appended but not synced.
    unsynced_since: Option<Instant>,
    last_write: Option<Instant>,
    retry_at: Option<Instant>,
    last_error: String,
}

impl<'a, K: Copy + Ord> Rounds<'a, K> {
    /// The state before the first round.
    pub fn new(committer: &'a Committer<K>) -> Rounds<'a, K> {
        Rounds {
            committer,
            batch: Batch::new(),
            waiting: Vec::new(),
            taken: Vec::new(),
            spans: Vec::new(),
            spare: Vec::new(),
            unsynced_since: None,
            last_write: None,
            retry_at: None,
            last_error: String::new(),
        }
    }

    fn is_failing(&self) -> bool {
        self.retry_at.is_some()
    }

    /// When to look although nobody nudged.
    fn next_look(&self) -> Option<Instant> {
        let options = &self.committer.options;
        if self.retry_at.is_some() {
            return self.retry_at;
        }
        if self.committer.policy() != SyncPolicy::Always {
            return Some(Instant::now() + options.gather);
        }
        self.last_write.map(|t| t + options.seal_after)
    }

    /// One round: whatever is marked now is logged, and synced as the policy says, or because a flush or the end (`stop`) asks for it.
    pub fn turn(&mut self, log: &mut Log, source: &mut dyn Source<K>, now: Instant, stop: bool) -> Result<()> {
        let committer = self.committer;
        let flush = {
            let orders = committer.orders.lock();
            committer.nudged.store(false, Ordering::SeqCst);
            orders.flush > committer.synced.load(Ordering::Relaxed)
        };
        // First the round, then the bits: see the top of this file.
        let round = committer.round.fetch_add(1, Ordering::SeqCst);
        committer.crowded.store(false, Ordering::Relaxed);
        let result = self.attempt(log, source, now, round, flush || stop);
        let mut synced = committer.synced.load(Ordering::Relaxed);
        match &result {
            Ok(()) => {
                self.retry_at = None;
                self.last_error.clear();
                committer.set_health(Health::Good);
                if log.durable().offset == log.written().offset {
                    self.unsynced_since = None;
                    synced = round;
                }
                committer.durable.store(round, Ordering::Release);
            }
            Err(error) => {
                self.retry_at = Some(now + committer.options.retry);
                committer.set_health(if matches!(error, Error::Full { .. }) { Health::Full } else { Health::Failing });
                committer.failed.store(round, Ordering::Release);
                committer.stats.lock().failed_rounds += 1;
                let text = error.to_string();
                if text != self.last_error {
                    source.failed(error);
                    self.last_error = text;
                }
            }
        }
        committer.stats.lock().log = log.stats();
        source.published(&Committed {
            written: committer.written.load(Ordering::Relaxed),
            durable: committer.durable.load(Ordering::Relaxed),
            synced,
            failed: committer.failed.load(Ordering::Relaxed),
            written_to: log.written(),
            synced_to: log.durable(),
            health: committer.health(),
        });
        // Last, so that who waits in `flush` finds what was published already.
        committer.synced.store(synced, Ordering::Release);
        if flush || result.is_err() || stop {
            drop(committer.orders.lock());
            committer.progress.notify_all();
        }
        result
    }

    fn attempt(
        &mut self,
        log: &mut Log,
        source: &mut dyn Source<K>,
        now: Instant,
        round: Ticket,
        must_sync: bool,
    ) -> Result<()> {
        let options = &self.committer.options;
        let before = log.written().sequence;
        if let Err(error) = self.log_round(log, source) {
            source.forget();
            self.give_back();
            return Err(error);
        }
        self.committer.written.store(round, Ordering::Release);
        let logged = log.written().sequence != before;
        if logged {
            self.unsynced_since.get_or_insert(now);
            self.last_write = Some(now);
        }
        // The oldest change waited up to `gather` in its stripe.
        let second_is_over =
            || self.unsynced_since.is_some_and(|t| now.duration_since(t) + options.gather >= EVERY_SECOND);
        let due = match self.committer.policy() {
            SyncPolicy::Always => true,
            SyncPolicy::EverySecond => second_is_over(),
            SyncPolicy::No => false,
        };
        if due || must_sync || log.has_failed() {
            self.sync(log)?;
        }
        let idle = !logged && self.last_write.is_some_and(|t| now.duration_since(t) >= options.seal_after);
        if idle {
            log.seal(source.now_ms())?;
            self.last_write = None;
        }
        Ok(())
    }

    fn sync(&mut self, log: &mut Log) -> Result<()> {
        if log.durable().offset == log.written().offset && !log.has_failed() {
            return Ok(());
        }
        let began = Instant::now();
        log.sync()?;
        let us = began.elapsed().as_micros() as u64;
        let mut stats = self.committer.stats.lock();
        stats.sync_us += us;
        stats.slowest_sync_us = stats.slowest_sync_us.max(us);
        Ok(())
    }

    /// Collects what is marked and appends it, in batches that never part the keys of one stripe (C2).
    fn log_round(&mut self, log: &mut Log, source: &mut dyn Source<K>) -> Result<()> {
        self.taken.clear();
        self.spans.clear();
        self.waiting.clear();
        let waiting = &mut self.waiting;
        self.committer.take_dirty(|index| waiting.push(index));
        // It waits until its keys are taken: if the round fails before, it is visited by the next one (C4).
        while let Some(&index) = self.waiting.last() {
            let stripe = self.committer.stripes[index].lock.lock();
            if stripe.borrow().joined {
                // The lock of the joined comes before those of their stripes.
                drop(stripe);
                // Any of them may have been read for this round before, or be read again, by then changed: so theirs is a batch of its own (C7).
                self.append(log, source)?;
                self.take_joined(index, source);
                self.waiting.pop();
                self.append(log, source)?;
                continue;
            }
            let bytes = self.take(index, &mut stripe.borrow_mut(), source);
            drop(stripe);
            self.waiting.pop();
            if bytes >= self.committer.options.batch_bytes {
                self.append(log, source)?;
            }
        }
        self.append(log, source)
    }

    /// Takes a stripe's keys and reads their state. The caller holds its lock. Gives the bytes that the source holds.
    fn take(&mut self, index: usize, stripe: &mut Stripe<K>, source: &mut dyn Source<K>) -> usize {
        std::mem::swap(&mut self.spare, &mut stripe.keys);
        (stripe.last, stripe.dedupe_at) = (None, FIRST_DEDUPE);
        self.spare.sort_unstable();
        self.spare.dedup();
        let bytes = if self.spare.is_empty() { 0 } else { source.collect(&self.spare) };
        self.taken.append(&mut self.spare);
        self.spans.push((index, self.taken.len(), std::mem::take(&mut stripe.joined)));
        bytes
    }

    /// As `take`, of all joined stripes in one moment (C6), and of this one.
    fn take_joined(&mut self, index: usize, source: &mut dyn Source<K>) {
        let committer = self.committer;
        let mut joined = committer.joined.lock();
        if !joined.contains(&index) {
            // They went with another one meanwhile.
            joined.push(index);
        }
        // In the order in which others lock several.
        joined.sort_unstable();
        let stripes: Vec<_> = joined.iter().map(|&index| (index, committer.stripes[index].lock.lock())).collect();
        joined.clear();
        for (index, stripe) in &stripes {
            self.take(*index, &mut stripe.borrow_mut(), source);
        }
    }

    fn append(&mut self, log: &mut Log, source: &mut dyn Source<K>) -> Result<()> {
        if self.taken.is_empty() {
            return Ok(());
        }
        self.batch.clear();
        source.encode(&mut self.batch)?;
        if !self.batch.is_empty() {
            log.append(&self.batch, source.now_ms())?;
        }
        let mut stats = self.committer.stats.lock();
        stats.batches += 1;
        stats.keys += self.taken.len() as u64;
        self.taken.clear();
        self.spans.clear();
        Ok(())
    }

    /// Puts the keys of a failed round back into their stripes (C4).
    fn give_back(&mut self) {
        let mut start = 0;
        // What was to be in one batch still is to be.
        let mut joined = self.committer.joined.lock();
        for (index, end, was_joined) in self.spans.drain(..) {
            let stripe = self.committer.stripes[index].lock.lock();
            let stripe = &mut *stripe.borrow_mut();
            if was_joined && !stripe.joined {
                stripe.joined = true;
                joined.push(index);
            }
            stripe.keys.extend_from_slice(&self.taken[start..end]);
            self.committer.set_dirty(index);
            if stripe.keys.len() >= self.committer.options.crowded_keys {
                self.committer.crowded.store(true, Ordering::Relaxed);
            }
            start = end;
        }
        drop(joined);
        self.taken.clear();
        for index in self.waiting.drain(..) {
            self.committer.set_dirty(index);
        }
    }
}
