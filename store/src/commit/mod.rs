//! Group commit: many writers mark what they changed; one thread reads the changed state once, logs
//! it, syncs, and says up to where.
//!
//! ```text
//!   writer                                     commit thread, one round after the other
//!   turn = committer.enter(hash of the id)     round n ends, n + 1 begins
//!     change the engines                       for each stripe that is not empty: lock, take its
//!                                              keys, dedupe,
//!     turn.mark(key) ...                           source.collect(keys) reads their state, unlock
//!   ticket = turn.leave()                      source.encode(batch), log.append(batch), log.sync()
//!   reply when durable() >= ticket             durable = n; source.published(..) wakes waiters
//! ```
//!
//! What holds:
//!
//! - **C1** What was marked before a ticket was given is in the log, and synced as the policy says,
//!   when [`Committer::durable`] has reached the ticket.
//! - **C2** All keys marked in one turn, and their state, go into one batch; so does everything
//!   that the turn's change made visible. A change of a counter and a flag that belong together is
//!   therefore in the log with both halves or not at all, if both are changed and marked within one
//!   turn, of one stripe. This is why the state is read under the stripe's lock: read outside it, a
//!   batch could hold a counter with an increment of which the flag comes only in the next batch.
//! - **C3** A key marked any number of times within a round costs one record, and memory for few:
//!   stripes dedupe themselves as they grow.
//! - **C4** A failed round loses nothing: its keys are taken up by the next one, which reads their
//!   state anew.
//! - **C5** Keys waiting are bounded: above [`CommitOptions::crowded_keys`] in any stripe, or
//!   [`CommitOptions::queued_keys`] in all, or beside what belongs together and is large,
//!   [`Committer::is_crowded`] says so, and the server stops taking writes until it does not.
//! - **C6** All that was marked during one [`Exclusive`] is in one batch, and no other writer's
//!   change comes between in the stripes that it holds. The stripes in which it marked, if there
//!   are several, are read together, in one moment, by the round that comes to the first of them;
//!   or all that it holds, if it says so ([`Exclusive::join`]): where a change is of unknown ids.
//! - **C7** A batch holds each key once: a source may sort what it has read as it likes, and the
//!   last state of a key is in the last batch that has it.
//! - **C8** A batch has a limit ([`MAX_BODY_BYTES`](crate::MAX_BODY_BYTES)), and C6 holds all the
//!   same: a writer of an atomic group says before its first change how many bytes the group may
//!   take, and waits while what waits for the log leaves no room for them ([`Committer::reserve`]).
//!   If other writers' changes of the same stripes are more than what is left, theirs go into
//!   batches of their own, those of the same ids excepted ([`Source::may_part`]). Only what was not
//!   reserved, or takes more than was reserved, is parted, down to what
//!   [`Source::may_part`] keeps together. It is never tried again as it is: that would be for ever.
//! - **C9** Under `always`: a reader of a changed id that then asks [`Committer::sight`] learns
//!   which round it has to wait for (`visibility.rs`).
//!
//! A writer holds its stripe for as long as its change takes, the commit thread for as long as
//! reading the state of the stripe's few keys takes. Readers take no stripe (promise 1).
//! `stripes.rs` has the writers' side, `commit_loop.rs` the commit thread's.
//!
//! Why a ticket is a round and not a count: it is then one load for the writer, no shared counter
//! is incremented, and every stripe may be empty. The commit thread first raises the round, then
//! looks for stripes with keys. A writer sets its stripe's bit, then loads the round. So a writer
//! that still saw round n set its bit before the commit thread looked, and its keys are in round n.
//! (Both orders are sequentially consistent.)

mod commit_loop;
mod stripes;
mod visibility;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};
use crate::log::{Log, LogStats, Position};
use crate::record::Batch;
use crate::time;

pub use commit_loop::Rounds;
use stripes::{Aligned, Joined};
pub use stripes::{Exclusive, Reserved, WriteGuard};
use visibility::Sights;

/// A round of the commit thread: what was marked under it is safe when [`Committer::durable`] has
/// reached it.
pub type Ticket = u64;

/// What `everysec` promises.
const LATE_MS: u64 = 1000;

/// When an appended batch is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncPolicy {
    /// At once; replies wait for it.
    Always,
    /// So that no write is older than a second when it reaches the disk. Replies do not wait,
    /// unless the disk takes longer ([`Committer::is_late`]): power cut or kill, at most the last
    /// second of what was acknowledged is lost.
    EverySecond,
    /// When the system likes, but at least whenever `unsynced_bytes` have been written, and at each
    /// new segment.
    No,
}

/// How commits are made.
#[derive(Clone, Copy, Debug)]
pub struct CommitOptions {
    /// When batches are synced.
    pub policy: SyncPolicy,
    /// Locks, a power of two. Writes of ids in different stripes do not meet. Default 1024.
    pub stripes: usize,
    /// A stripe with this many distinct keys is crowded (C5). Default 4096.
    pub crowded_keys: usize,
    /// With so many keys in all stripes together they are crowded, too; those with few keys are not
    /// counted. Default 262,144: of the server's keys, with the room that lists have to spare, 16
    /// MiB, and 8 MiB that are not counted.
    pub queued_keys: usize,
    /// Without `always`: how long changes may gather before they are written (not synced). Longer
    /// means fewer log bytes for hot rows, and a killed process loses as much. Default 50 ms.
    pub gather: Duration,
    /// A batch is closed once the source holds about this many bytes; a round may have several.
    /// Default 1 MiB.
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
            queued_keys: 256 << 10,
            gather: Duration::from_millis(50),
            batch_bytes: 1 << 20,
            retry: Duration::from_millis(200),
            seal_after: Duration::from_secs(1),
        }
    }
}

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

impl From<&Error> for Health {
    fn from(error: &Error) -> Health {
        if matches!(error, Error::Full { .. }) { Health::Full } else { Health::Failing }
    }
}

/// How far commits have come.
#[derive(Clone, Copy, Debug)]
pub struct Committed {
    /// All up to this round is appended.
    pub written: Ticket,
    /// All up to this round is as durable as the policy makes it before a reply: synced with
    /// `always`, else appended.
    pub durable: Ticket,
    /// All up to this round is synced.
    pub synced: Ticket,
    /// Rounds up to this one were tried, and those above `written` (with `always`: above `durable`)
    /// failed. Their changes are in memory and will be logged by a later round, but their waiters
    /// may be told now.
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
    /// Reads the present state of these keys (sorted, each once) and keeps it. Called under a lock
    /// that their writers take, so it is to be quick: copy now, encode later. Returns about how
    /// many bytes all that is kept will take.
    fn collect(&mut self, keys: &[K]) -> usize;

    /// Turns all that was collected into records, and forgets it. An error, if some of it could not
    /// be read: then the round fails.
    fn encode(&mut self, batch: &mut Batch) -> Result<()>;

    /// Forgets what was collected: the round failed, and its keys will come again.
    fn forget(&mut self);

    /// Nothing has come for a while: gives back what it does not need now.
    fn rest(&mut self) {}

    /// Something changed: release waiters, feed replicas. Called by the commit thread, after each
    /// round and each change of health.
    fn published(&mut self, now: &Committed);

    /// The wall clock for batches, milliseconds since 1970.
    fn now_ms(&mut self) -> u64 {
        time::unix_us() / 1000
    }

    /// The clock by which rounds are begun, for how long one has taken so far.
    fn now(&self) -> Instant {
        time::now()
    }

    /// Whether a batch may end between these two keys, neighbours in their order, if it has to.
    /// Default: yes.
    fn may_part(&self, _before: &K, _after: &K) -> bool {
        true
    }

    /// What was to be one batch takes so many bytes, and is parted (C8); for the server's own log.
    fn parted(&mut self, _bytes: usize) {}

    /// The log failed; for the server's own log. The same error is reported once.
    fn failed(&mut self, _error: &Error) {}
}

/// Where writers meet the commit thread.
pub struct Committer<K> {
    options: CommitOptions,
    stripes: Box<[Aligned<K>]>,
    sights: Sights,
    /// What is to be read in one moment. Taken before any stripe by a thread that needs several at
    /// a time.
    joined: Mutex<Joined<K>>,
    /// Bytes of what is to be read in one moment, or is read and not appended yet, or will be
    /// marked.
    reserved: AtomicUsize,
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
    /// From when the oldest change may be that is not safe, in milliseconds since `origin`.
    unsafe_since: AtomicU64,
    origin: Instant,
    health: AtomicU8,
    crowded: AtomicBool,
    /// Keys of stripes that have many.
    queued: AtomicUsize,
    /// The [`SyncPolicy`], as a number.
    policy: AtomicU8,
    /// Set when there is something to do for the commit thread; only the thread that sets it
    /// notifies.
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
    /// Syncs by duration: below 2^n microseconds.
    pub syncs_by_us: [u64; SYNC_CLASSES],
}

/// Classes of [`CommitStats::syncs_by_us`]: the last one has all above four seconds.
const SYNC_CLASSES: usize = 24;

impl<K> std::fmt::Debug for Committer<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Committer")
            .field("round", &self.round)
            .field("durable", &self.durable)
            .finish_non_exhaustive()
    }
}

impl<K> Committer<K> {
    /// Lets the commit thread look now.
    pub fn nudge(&self) {
        if !self.nudged.swap(true, Ordering::SeqCst) {
            // The lock makes sure that the thread is either before its look at `nudged` or already
            // waiting.
            drop(self.orders.lock());
            self.wake.notify_one();
        }
    }

    /// Lets the commit thread look now, if the round of this ticket has not begun yet: for a waiter
    /// for the ticket, which may name a round that no other thread asks for.
    pub fn hurry(&self, ticket: Ticket) {
        if self.round.load(Ordering::SeqCst) <= ticket {
            self.nudge();
        }
    }
}

impl<K: Copy + Ord> Committer<K> {
    /// A meeting place; one thread is to call [`run`](Committer::run).
    pub fn new(options: CommitOptions) -> Committer<K> {
        assert!(options.stripes.is_power_of_two(), "{} stripes", options.stripes);
        Committer {
            options,
            stripes: stripes::empty(options.stripes),
            sights: Sights::new(options.stripes),
            joined: Mutex::default(),
            reserved: AtomicUsize::new(0),
            dirty: (0..options.stripes.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            round: AtomicU64::new(1),
            last_marked: AtomicU64::new(0),
            written: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            unsafe_since: AtomicU64::new(0),
            origin: time::now(),
            health: AtomicU8::new(0),
            crowded: AtomicBool::new(false),
            queued: AtomicUsize::new(0),
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

    /// Changes when batches are synced. A round that is on its way may still be as before; what is
    /// marked after this call is in a later one.
    pub fn set_policy(&self, policy: SyncPolicy) {
        self.policy.store(policy as u8, Ordering::SeqCst);
        if policy == SyncPolicy::Always {
            // What others changed under the old policy may not be synced, and readers would not
            // know of it (C9).
            self.pass_all();
            self.sights.raise_all(self.round.load(Ordering::SeqCst));
        }
        // So that the thread does not sleep on as the old policy told it.
        self.nudge();
    }

    /// The ticket for all that was marked before this call, by any thread: for a connection that
    /// ends several turns at once. It does not rise by itself, so a caller that has marked nothing
    /// waits at most for what others have marked.
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

    /// Is there, with `everysec`, perhaps a change of a second ago that is not synced? Then the
    /// disk is slow, and what is acknowledged now would make that more: replies wait as with
    /// `always`, until their own changes are [`durable`](Committer::durable).
    pub fn is_late(&self) -> bool {
        self.policy() == SyncPolicy::EverySecond && self.is_late_at(time::now())
    }

    /// The same at another moment: for a simulated clock.
    pub fn is_late_at(&self, now: Instant) -> bool {
        self.policy() == SyncPolicy::EverySecond
            && self.millis(now) >= self.unsafe_since.load(Ordering::Relaxed) + LATE_MS
    }

    fn note_unsafe(&self, since: Instant) {
        self.unsafe_since.store(self.millis(since), Ordering::Relaxed);
    }

    fn millis(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.origin).as_millis()).unwrap_or(u64::MAX)
    }

    /// Are there so many keys waiting that writes should be held back (C5)?
    pub fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }

    /// Number of keys that wait for the next round. A key that was marked twice may count twice.
    pub fn queued_keys(&self) -> usize {
        let stripes = self.stripes.iter().map(|stripe| stripe.lock.lock().borrow().keys.len());
        stripes.sum::<usize>() + self.joined.try_lock().map_or(0, |joined| joined.units.len())
    }

    /// Bytes of memory that keys take which wait, or have waited: each stripe keeps some room.
    /// Those that belong together are not counted while an [`Exclusive`] is held; the thread
    /// that asks may be the one.
    pub fn queue_bytes(&self) -> usize {
        let room = |stripe: &Aligned<K>| stripe.lock.lock().borrow().keys.capacity();
        let stripes = self.stripes.iter().map(room).sum::<usize>();
        let units = self.joined.try_lock().map_or(0, |joined| joined.units.capacity());
        (stripes + units) * size_of::<K>()
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

    /// Writes and syncs all turns that began before this call, and waits for it. For SAVE, the end
    /// of a snapshot's walk, and tests.
    pub fn flush(&self) -> Result<Ticket> {
        // A turn under way may have changed something that the caller has seen, and not marked it
        // yet: let all of them end.
        self.pass_all();
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
                    "the log takes no writes now; see the server's log for the disk's error"
                        .to_string(),
                ));
            }
            if orders.ended {
                return Err(Error::Refused("the commit thread has stopped".to_string()));
            }
            time::wait_for(&self.progress, &mut orders, Duration::from_millis(100));
        }
    }

    /// Has all that was written so far synced soon, whatever the policy, without waiting.
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

    /// [`run`](Committer::run) may be called again. Until this is called no thread waits in vain
    /// for a commit after the end of the last one.
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

    /// As [`Committer::stop`], but the log is not sealed: nothing is added to it that no client has
    /// written.
    pub fn step_down(&self) {
        self.orders.lock().unsealed = true;
        self.stop();
    }

    /// What [`health`](Committer::health) says until the next round: for a caller that finds that
    /// there is no log to commit to.
    pub fn set_health(&self, health: Health) {
        let code = match health {
            Health::Good => 0,
            Health::Full => 1,
            Health::Failing => 2,
        };
        self.health.store(code, Ordering::Relaxed);
    }

    /// The commit thread's life: until [`stop`](Committer::stop), and then one more round and a
    /// seal. Gives the log back.
    pub fn run(&self, mut log: Log, source: &mut dyn Source<K>) -> (Log, Result<()>) {
        let _ends = Ends(self);
        let mut rounds = Rounds::new(self);
        if log.has_failed() {
            // It could not be begun: reported now, and tried again before the first write.
            let _ = rounds.turn(&mut log, source, time::now(), false);
        }
        loop {
            let stop = self.sleep(&rounds);
            let last = rounds.turn(&mut log, source, time::now(), stop);
            if stop {
                let seals = !self.orders.lock().unsealed;
                let sealed =
                    last.and_then(|()| if seals { log.seal(source.now_ms()) } else { Ok(()) });
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

/// Says that the commit thread is gone, also when it panics: no thread may wait for it for ever.
struct Ends<'a, K>(&'a Committer<K>);

impl<K> Drop for Ends<'_, K> {
    fn drop(&mut self) {
        self.0.orders.lock().ended = true;
        self.0.progress.notify_all();
    }
}
