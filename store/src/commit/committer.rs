//! [`Committer`]: the state that writers, readers and the commit thread share.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::source::{Health, Ticket};
use super::stripe::{self, AlignedStripe, Joined};
use super::visibility::VisibilityTable;
use crate::error::{Error, Result};
use crate::log::LogStats;
use crate::time;

/// Age in milliseconds of the oldest unsynced change that `everysec` allows.
const MAX_UNSYNCED_MS: u64 = 1000;

/// Policy for when the commit thread syncs an appended batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncPolicy {
    /// The thread syncs each batch immediately, and replies wait for the sync.
    Always,
    /// The thread syncs within a second. Replies wait only if the disk is slower
    /// ([`Committer::is_late`]), so a power cut or kill loses at most the last second of
    /// acknowledged writes.
    EverySecond,
    /// The operating system decides when to write the pages. The thread syncs only after
    /// `unsynced_bytes` bytes and at each new segment.
    No,
}

/// Options of the commit thread.
#[derive(Clone, Copy, Debug)]
pub struct CommitOptions {
    /// Sync policy.
    pub policy: SyncPolicy,
    /// Number of stripes (locks), a power of two. Default 1024.
    pub stripes: usize,
    /// Maximum number of distinct keys in a stripe before writes are held back (C5). Default 4096.
    pub max_stripe_keys: usize,
    /// Maximum number of keys in all stripes before writes are held back (C5). Stripes with few
    /// keys do not count. Default 262,144, about 16 MiB, plus up to 8 MiB in stripes with few keys.
    pub queued_keys: usize,
    /// Time between rounds, except under `always`. With a longer time, the thread writes fewer
    /// bytes for hot rows, but a killed process loses more changes. Default 50 ms.
    pub gather: Duration,
    /// Approximate maximum size of a batch; a round may write several batches. Default 1 MiB.
    pub batch_bytes: usize,
    /// Delay after a failure before the next attempt. Default 200 ms.
    pub retry: Duration,
    /// Idle time after which the log is sealed. Default 1 s.
    pub seal_after: Duration,
}

impl Default for CommitOptions {
    fn default() -> CommitOptions {
        CommitOptions {
            policy: SyncPolicy::EverySecond,
            stripes: 1024,
            max_stripe_keys: 4096,
            queued_keys: 256 << 10,
            gather: Duration::from_millis(50),
            batch_bytes: 1 << 20,
            retry: Duration::from_millis(200),
            seal_after: Duration::from_secs(1),
        }
    }
}

/// State shared by writers, readers and the commit thread.
pub struct Committer<K> {
    pub(super) options: CommitOptions,
    pub(super) stripes: Box<[AlignedStripe<K>]>,
    pub(super) visibility_table: VisibilityTable,
    /// Stripes that the next round reads together. A thread that locks several stripes locks
    /// `joined` first.
    pub(super) joined: Mutex<Joined<K>>,
    /// Bytes reserved for atomic groups that are not appended yet.
    pub(super) reserved: AtomicUsize,
    /// One bit per stripe that may have keys.
    pub(super) dirty: Box<[AtomicU64]>,
    /// Sequence number of the next commit round. A mark made now is logged in that round or an
    /// earlier round.
    pub(super) round: AtomicU64,
    /// Highest ticket of all marks.
    pub(super) last_marked: AtomicU64,
    pub(super) written: AtomicU64,
    pub(super) durable: AtomicU64,
    pub(super) synced: AtomicU64,
    pub(super) failed: AtomicU64,
    /// Time of the oldest unsynced change, in milliseconds since `origin`.
    pub(super) unsynced_since_ms: AtomicU64,
    pub(super) origin: Instant,
    pub(super) health: AtomicU8,
    pub(super) crowded: AtomicBool,
    /// Number of pending keys, counting only stripes with many keys.
    pub(super) queued: AtomicUsize,
    /// The [`SyncPolicy`], as a number.
    pub(super) policy: AtomicU8,
    /// Set when the commit thread has work. Only the thread that sets the flag sends a
    /// notification.
    pub(super) is_wake_pending: AtomicBool,
    pub(super) pending_requests: Mutex<CommitRequests>,
    pub(super) wake: Condvar,
    pub(super) progress: Condvar,
    pub(super) stats: Mutex<CommitStats>,
}

#[derive(Default)]
pub(super) struct CommitRequests {
    pub(super) stop: bool,
    /// Whether `stop` leaves the log unsealed.
    pub(super) unsealed: bool,
    /// Whether the commit thread has returned or panicked.
    pub(super) ended: bool,
    /// Highest round that a caller of `flush` waits for.
    pub(super) flush: Ticket,
}

/// Statistics of the commit thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommitStats {
    /// Number of appended batches.
    pub batches: u64,
    /// Number of logged keys.
    pub keys: u64,
    /// Number of failed rounds.
    pub failed_rounds: u64,
    /// Statistics of the log.
    pub log: LogStats,
    /// Longest sync so far, in microseconds.
    pub slowest_sync_us: u64,
    /// Total duration of all syncs, in microseconds.
    pub sync_us: u64,
    /// Number of syncs shorter than 2^n microseconds.
    pub syncs_by_us: [u64; SYNC_BUCKETS],
}

/// Length of [`CommitStats::syncs_by_us`]. The last bucket counts all syncs that took longer than
/// four seconds.
pub(super) const SYNC_BUCKETS: usize = 24;

impl<K> std::fmt::Debug for Committer<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Committer")
            .field("round", &self.round)
            .field("durable", &self.durable)
            .finish_non_exhaustive()
    }
}

impl<K> Committer<K> {
    /// Wakes the commit thread.
    pub fn wake_commit_thread(&self) {
        if !self.is_wake_pending.swap(true, Ordering::SeqCst) {
            // While this lock is held, the thread either has not read `is_wake_pending` yet or is
            // waiting.
            drop(self.pending_requests.lock());
            self.wake.notify_one();
        }
    }

    /// Wakes the commit thread if the round of this ticket has not begun. The call is needed if no
    /// other thread requests that round.
    pub fn begin_round_for(&self, ticket: Ticket) {
        if self.round.load(Ordering::SeqCst) <= ticket {
            self.wake_commit_thread();
        }
    }
}

impl<K: Copy + Ord> Committer<K> {
    /// Creates a committer. One thread must call [`run`](Committer::run).
    pub fn new(options: CommitOptions) -> Committer<K> {
        assert!(options.stripes.is_power_of_two(), "{} stripes", options.stripes);
        Committer {
            options,
            stripes: stripe::empty(options.stripes),
            visibility_table: VisibilityTable::new(options.stripes),
            joined: Mutex::default(),
            reserved: AtomicUsize::new(0),
            dirty: (0..options.stripes.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            round: AtomicU64::new(1),
            last_marked: AtomicU64::new(0),
            written: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            unsynced_since_ms: AtomicU64::new(0),
            origin: time::now(),
            health: AtomicU8::new(0),
            crowded: AtomicBool::new(false),
            queued: AtomicUsize::new(0),
            policy: AtomicU8::new(options.policy as u8),
            is_wake_pending: AtomicBool::new(false),
            pending_requests: Mutex::new(CommitRequests::default()),
            wake: Condvar::new(),
            progress: Condvar::new(),
            stats: Mutex::new(CommitStats::default()),
        }
    }

    /// Returns the sync policy.
    #[inline]
    pub fn policy(&self) -> SyncPolicy {
        match self.policy.load(Ordering::Relaxed) {
            0 => SyncPolicy::Always,
            1 => SyncPolicy::EverySecond,
            _ => SyncPolicy::No,
        }
    }

    /// Changes the sync policy. Changes marked after this call follow the new policy; a round in
    /// progress may not.
    pub fn set_policy(&self, policy: SyncPolicy) {
        self.policy.store(policy as u8, Ordering::SeqCst);
        if policy == SyncPolicy::Always {
            // Changes made under the old policy may be unsynced, and the table of `visibility.rs`
            // lacks them (C9).
            self.wait_for_stripe_writers();
            self.visibility_table.raise_all(self.round.load(Ordering::SeqCst));
        }
        // The thread may be sleeping for the longer interval of the old policy.
        self.wake_commit_thread();
    }

    /// Returns a ticket that covers all marks made before this call by any thread.
    ///
    /// Only marks increase the ticket. A caller that marked no key therefore waits only for marks
    /// of other threads.
    pub fn ticket(&self) -> Ticket {
        self.last_marked.load(Ordering::SeqCst)
    }

    /// Returns the last round that is as durable as a reply requires.
    pub fn durable(&self) -> Ticket {
        self.durable.load(Ordering::Acquire)
    }

    /// Returns the last round that is synced, regardless of the policy.
    pub fn synced(&self) -> Ticket {
        self.synced.load(Ordering::Acquire)
    }

    /// Returns the last attempted round; see [`Committed::failed`](super::Committed::failed).
    pub fn failed(&self) -> Ticket {
        self.failed.load(Ordering::Acquire)
    }

    /// Whether, under `everysec`, a change may be unsynced for more than a second. Replies then
    /// wait until their changes are [`durable`](Committer::durable).
    pub fn is_late(&self) -> bool {
        self.policy() == SyncPolicy::EverySecond && self.is_late_at(time::now())
    }

    /// Like [`is_late`](Committer::is_late), but for a given time, for a simulated clock.
    pub fn is_late_at(&self, now: Instant) -> bool {
        self.policy() == SyncPolicy::EverySecond
            && self.millis(now) >= self.unsynced_since_ms.load(Ordering::Relaxed) + MAX_UNSYNCED_MS
    }

    pub(super) fn record_unsynced_since(&self, since: Instant) {
        self.unsynced_since_ms.store(self.millis(since), Ordering::Relaxed);
    }

    fn millis(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.origin).as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether the server should hold back writes because too many keys are pending (C5).
    pub fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }

    /// Returns the number of pending keys. A key that was marked twice may count twice.
    pub fn queued_keys(&self) -> usize {
        let stripes = self.stripes.iter().map(|stripe| stripe.lock.lock().borrow().keys.len());
        stripes.sum::<usize>() + self.joined.try_lock().map_or(0, |joined| joined.units.len())
    }

    /// Returns the memory of the lists of pending keys in bytes. While an
    /// [`Exclusive`](super::Exclusive) is held, possibly by this thread, joined keys are not
    /// counted.
    pub fn queue_bytes(&self) -> usize {
        let room = |stripe: &AlignedStripe<K>| stripe.lock.lock().borrow().keys.capacity();
        let stripes = self.stripes.iter().map(room).sum::<usize>();
        let units = self.joined.try_lock().map_or(0, |joined| joined.units.capacity());
        (stripes + units) * size_of::<K>()
    }

    /// Whether the log accepts writes. Callers check before they change anything.
    #[inline]
    pub fn health(&self) -> Health {
        match self.health.load(Ordering::Relaxed) {
            0 => Health::Good,
            1 => Health::Full,
            _ => Health::Failing,
        }
    }

    /// Returns the statistics since startup.
    pub fn stats(&self) -> CommitStats {
        *self.stats.lock()
    }

    /// Logs and syncs all changes of write guards that exist at this call, and waits for the sync.
    pub fn flush(&self) -> Result<Ticket> {
        // A writer may have changed state that the caller saw, and may not have marked the change
        // yet.
        self.wait_for_stripe_writers();
        let ticket = self.round.load(Ordering::SeqCst);
        let mut pending_requests = self.pending_requests.lock();
        pending_requests.flush = pending_requests.flush.max(ticket);
        self.is_wake_pending.store(true, Ordering::SeqCst);
        self.wake.notify_one();
        loop {
            if self.synced() >= ticket {
                return Ok(ticket);
            }
            if self.failed() >= ticket {
                return Err(Error::Refused(
                    "the log is not writable; see the server's log for the disk error".to_string(),
                ));
            }
            if pending_requests.ended {
                return Err(Error::Refused("the commit thread has stopped".to_string()));
            }
            time::wait_for(&self.progress, &mut pending_requests, Duration::from_millis(100));
        }
    }

    /// Requests a sync of all written changes under any policy, without waiting for it.
    pub fn sync_soon(&self) {
        let ticket = self.round.load(Ordering::SeqCst);
        if self.written_to_sync() {
            let mut pending_requests = self.pending_requests.lock();
            pending_requests.flush = pending_requests.flush.max(ticket);
            self.is_wake_pending.store(true, Ordering::SeqCst);
            self.wake.notify_one();
        }
    }

    fn written_to_sync(&self) -> bool {
        self.last_marked.load(Ordering::SeqCst) > self.synced.load(Ordering::SeqCst)
    }

    /// Prepares another [`run`](Committer::run). Until this call, all waits for a commit fail
    /// immediately.
    pub fn reopen(&self) {
        let mut pending_requests = self.pending_requests.lock();
        (pending_requests.stop, pending_requests.unsealed, pending_requests.ended) =
            (false, false, false);
    }

    /// Stops the commit thread: [`run`](Committer::run) returns after one more round.
    pub fn stop(&self) {
        let mut pending_requests = self.pending_requests.lock();
        pending_requests.stop = true;
        self.is_wake_pending.store(true, Ordering::SeqCst);
        self.wake.notify_one();
    }

    /// Like [`Committer::stop`], but does not seal the log, which then contains only client writes.
    pub fn step_down(&self) {
        self.pending_requests.lock().unsealed = true;
        self.stop();
    }

    /// Sets [`health`](Committer::health) until the next round. For callers that have no log.
    pub fn set_health(&self, health: Health) {
        let code = match health {
            Health::Good => 0,
            Health::Full => 1,
            Health::Failing => 2,
        };
        self.health.store(code, Ordering::Relaxed);
    }

    /// Returns the round that must be durable before a reader may reply with the state of an id
    /// that it has just read. `hash` is the id's hash, as for [`enter`](Committer::enter).
    ///
    /// Returns 0 if that round is synced or has failed, and [`Ticket::MAX`] while a writer changes
    /// the id. In the second case the caller polls [`Committer::first_locked_stripe`] until it has
    /// seen each stripe unlocked, and waits for [`Committer::ticket`], which covers the changes of
    /// that writer. Meaningful only under `always`.
    #[inline]
    pub fn last_change(&self, hash: u64) -> Ticket {
        let round = self.visibility_table.last_change(hash);
        if round <= self.synced().max(self.failed()) { 0 } else { round }
    }
}
