//! Durability: the progress of commits, and the tasks that wait for it.
//!
//! ```text
//!   writer:        lock the id's stripe, change the data, add a mark
//!   commit thread: drain the marks, encode records, append the batch, sync, publish Reached
//!   connection:    with fsync = always, wait until Reached includes the write's ticket
//! ```
//!
//! [`store::Committer`] defines the rules of commits. `encode.rs` and `ring_records.rs` encode
//! marked state as records. `recovery/apply.rs` applies records.
//!
//! This module also defines what clients receive while the log cannot be written. Writes are
//! refused ([`Durability::refusal`]) and reads continue. Clients that wait for a commit receive an
//! error: their change is in memory, but not durable. The commit thread writes these changes when
//! the log is writable again.

use crate::commit::dirty_parts::DirtyParts;
use crate::dirty_keys::Mark;
use crate::options::Fsync;
use crate::waiters::PublishedState;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;
use store::{
    CommitOptions, Committer, Health, Log, MAX_BODY_BYTES, Position, SyncPolicy, Ticket, time,
};
use tokio::sync::watch;

pub mod dirty_parts;
pub(crate) mod encode;
mod round_offsets;

use round_offsets::RoundOffsets;

/// Maximum time that a flush on a replica waits for the link to sync the log. Unless the disk is
/// slow the link syncs at least every second.
const REPLICA_SYNC_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of changes that must be in one batch, in bytes. The rest of a batch is reserved for
/// schemas, layouts, record heads and other small changes.
pub const MAX_CHANGE_BYTES: usize = MAX_BODY_BYTES / 16 * 15;

/// Maximum time that [`Durability::logged`] waits for acknowledged writes to reach the log.
const LOGGED_TIMEOUT: Duration = Duration::from_secs(1);

/// Poll interval of a reader that waits for a writer to release its stripe, which takes
/// microseconds.
const TURN_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Progress of commits, as published to connections.
#[derive(Clone, Debug)]
pub(crate) struct CommitProgress {
    pub(crate) durable: Ticket,
    pub(crate) synced: Ticket,
    pub(crate) failed: Ticket,
    pub(crate) health: Health,
    pub(crate) reason: Arc<str>,
}

/// State shared by writers, connections and the commit thread.
pub struct Durability {
    pub(crate) committer: Committer<Mark>,
    pub(crate) release: PublishedState<CommitProgress>,
    pub(crate) ends: RoundOffsets,
    /// Wakes WAIT and SHUTDOWN when a replica acknowledges, a commit fails or is empty, or the role
    /// changes.
    acknowledged: PublishedState<()>,
    /// Appended and synced end of the log.
    positions: Mutex<(Position, Position)>,
    /// Offsets of the appended and the synced end of the log. Receivers are notified of every
    /// change.
    grown: watch::Sender<(u64, u64)>,
    /// Whether this node is a replica, whose link appends the master's batches to the log.
    follows: AtomicBool,
    /// Highest ticket of the writes before the policy changed to `always`. Their replies may have
    /// been sent before the sync.
    replied: AtomicU64,
    /// Parts of the data that the next snapshot must write.
    pub parts: DirtyParts,
    /// Locked while a replica applies a batch, which locks no stripe. Between two batches each
    /// counter agrees with the flags that its actions set.
    pub applying: Mutex<()>,
}

impl Durability {
    /// Creates the state for an empty log. Only the commit thread commits changes.
    pub fn new(policy: Fsync) -> Durability {
        let reached = CommitProgress {
            durable: 0,
            synced: 0,
            failed: 0,
            health: Health::Good,
            reason: "".into(),
        };
        Durability {
            committer: Committer::new(CommitOptions {
                policy: policy_of_store(policy),
                ..CommitOptions::default()
            }),
            release: PublishedState::new(reached),
            ends: RoundOffsets::default(),
            acknowledged: PublishedState::new(()),
            positions: Mutex::new((Position::START, Position::START)),
            grown: watch::Sender::new((0, 0)),
            follows: AtomicBool::new(false),
            replied: AtomicU64::new(0),
            parts: DirtyParts::default(),
            applying: Mutex::default(),
        }
    }

    /// Waits until the reply to a write may be sent: the log's queue must be short enough. With
    /// `always`, or if `everysec` is late, the write must also be synced.
    pub async fn wait_for_replies(&self, ticket: Ticket) -> Result<(), String> {
        self.room().await;
        if self.holds_replies() || self.committer.is_late() {
            self.safe(ticket).await
        } else {
            Ok(())
        }
    }

    /// Returns the committer, to which writers add marks.
    #[inline]
    pub fn committer(&self) -> &Committer<Mark> {
        &self.committer
    }

    /// Returns the error for writes while they must be refused, or `None` while they are accepted.
    #[inline]
    pub fn refusal(&self) -> Option<String> {
        match self.committer.health() {
            Health::Good => None,
            Health::Full | Health::Failing => Some(refusal_text(&self.release.look().reason)),
        }
    }

    /// Refuses writes because a new master cannot begin its log. Returns false if writes were
    /// already refused for this reason.
    pub fn refuse_writes(&self, error: &store::Error) -> bool {
        let reason: Arc<str> = error.to_string().into();
        let is_new = self.committer.health() == Health::Good
            || store::gist(&self.release.look().reason) != error.gist();
        self.refuse(reason, error.into());
        is_new
    }

    /// Returns true if at least one acknowledged change is still unsynced. If the process stops
    /// while the log cannot be written, the change is lost. With `always`, only changes made under
    /// an earlier policy can be unsynced.
    pub fn has_unsynced_acknowledged(&self) -> bool {
        self.has_unsynced(self.committer.synced())
    }

    fn has_unsynced(&self, synced: Ticket) -> bool {
        !self.follows.load(SeqCst) && synced < self.acknowledged_ticket()
    }

    /// Returns the ticket of the last write whose reply may have been sent.
    fn acknowledged_ticket(&self) -> Ticket {
        if self.holds_replies() { self.replied.load(SeqCst) } else { self.committer.ticket() }
    }

    /// Whether the log up to [`Durability::shown`] contains every acknowledged write.
    pub fn has_logged(&self) -> bool {
        self.follows.load(SeqCst) || self.release.look().durable >= self.acknowledged_ticket()
    }

    /// Waits until the log up to [`Durability::shown`] contains every write acknowledged before
    /// this call. Gives up after a second, or when the log batch fails. Call this function only
    /// from tasks of the workers.
    pub async fn logged(&self) {
        let ticket = self.acknowledged_ticket();
        if !self.has_logged() {
            let _ = tokio::time::timeout(LOGGED_TIMEOUT, self.shown_offset(ticket)).await;
        }
    }

    /// Returns the offset to show to clients: the log's end, or one more while the log lacks an
    /// acknowledged write. A replica that has reached this offset has all acknowledged writes.
    pub fn acknowledged_offset(&self) -> u64 {
        let is_short = !self.has_logged();
        self.shown().offset + u64::from(is_short)
    }

    /// Waits until the log can be written and all acknowledged changes are synced. Call this
    /// function only from tasks of the workers.
    pub async fn recovered(&self) {
        let is_safe = |r: &CommitProgress| r.health == Health::Good && !self.has_unsynced(r.synced);
        self.release.wait(|r| is_safe(r).then_some(())).await;
    }

    fn refuse(&self, reason: Arc<str>, health: Health) {
        self.release.tell(|r| r.reason = reason);
        self.committer.set_health(health);
        // Wake tasks that checked the health just before `set_health`.
        self.release.tell(|_| ());
    }

    /// Accepts writes again. Called when a master's log has begun, or when the node becomes a
    /// replica.
    pub fn accept_writes(&self) {
        self.committer.set_health(Health::Good);
    }

    /// Whether the log's queue is too long, so that a writer must wait in [`Durability::room`].
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.committer.is_crowded()
    }

    /// Waits until the log's queue is short enough, or until the log fails and writes are refused.
    pub async fn room(&self) {
        let may_go = || !self.is_crowded() || self.committer.health() != Health::Good;
        let asked = |_: &CommitProgress| {
            if !may_go() {
                self.committer.wake_commit_thread();
            }
            may_go().then_some(())
        };
        self.release.wait(asked).await;
    }

    /// Waits until [`Committer::reserve`] can reserve `bytes` in a batch, or until the node refuses
    /// writes. Call this function only from tasks of the workers.
    pub async fn room_for(&self, bytes: usize) {
        let is_refused = || self.committer.health() != Health::Good || self.follows.load(SeqCst);
        let may_go = || self.committer.has_room(bytes) || is_refused();
        let asked = |_: &CommitProgress| {
            if !may_go() {
                self.committer.wake_commit_thread();
            }
            may_go().then_some(())
        };
        self.release.wait(asked).await;
    }

    /// Whether replies to writes wait for the sync.
    #[inline]
    pub fn holds_replies(&self) -> bool {
        self.committer.policy() == SyncPolicy::Always
    }

    /// Whether replies to reads wait until the state that they show is durable. False on a replica:
    /// its master has synced this state, and with `always` the replica syncs before it applies.
    #[inline]
    pub fn holds_reads(&self) -> bool {
        self.holds_replies() && !self.follows.load(Relaxed)
    }

    /// Changes the sync policy. Replies that already wait are not affected.
    pub fn set_policy(&self, policy: Fsync) {
        let held = self.holds_replies();
        self.committer.set_policy(policy_of_store(policy));
        if !held {
            // Every write under the old policy has been marked by now.
            self.replied.fetch_max(self.committer.ticket(), SeqCst);
        }
    }

    /// Waits until all changes up to `ticket` are durable under the policy. The error is the reply
    /// to the writers. Call this function only from tasks of the workers.
    pub async fn safe(&self, ticket: Ticket) -> Result<(), String> {
        self.committer.begin_round_for(ticket);
        self.release
            .wait(|r| {
                if r.durable >= ticket {
                    Some(Ok(()))
                } else {
                    (r.failed >= ticket).then(|| Err(doubt_text(&r.reason)))
                }
            })
            .await
    }

    /// Waits until the state that a reader saw is synced. `shown` is the ticket from
    /// [`Committer::last_change`], or `Ticket::MAX` to wait for all changes so far. Also returns
    /// after a failed attempt, because reads continue while the disk fails. Call this function only
    /// from tasks of the workers.
    pub async fn settled(&self, shown: Ticket) {
        let ticket = if shown < Ticket::MAX {
            shown
        } else {
            let mut from = 0;
            while let Some(busy) = self.committer.first_locked_stripe(from) {
                from = busy;
                tokio::time::sleep(TURN_POLL_INTERVAL).await;
            }
            self.committer.ticket()
        };
        if self.committer.synced() < ticket {
            self.committer.begin_round_for(ticket);
            let is_safe =
                |r: &CommitProgress| r.synced.max(r.failed) >= ticket || self.follows.load(SeqCst);
            self.release.wait(|r| is_safe(r).then_some(())).await;
        }
    }

    /// Returns the appended and the synced end of the log.
    pub fn positions(&self) -> (Position, Position) {
        *self.positions.lock()
    }

    /// Returns the position up to which clients and replicas may see the log. With `always` it is
    /// the synced end, else the appended end, which survives a kill of the process. On a replica it
    /// is the applied position.
    pub fn shown(&self) -> Position {
        let (written, synced) = self.positions();
        if self.holds_replies() && !self.follows.load(SeqCst) { synced } else { written }
    }

    /// Returns the position up to which the log is both applied and synced on this node. Changes up
    /// to this position survive a restart.
    pub fn applied_and_synced(&self) -> Position {
        let (written, synced) = self.positions();
        if written.offset < synced.offset { written } else { synced }
    }

    /// Waits until [`Durability::applied_and_synced`] is above this offset. Call this function only
    /// from tasks of the workers.
    pub async fn wait_for_stable_offset(&self, offset: u64) {
        self.release.wait(|_| (self.applied_and_synced().offset > offset).then_some(())).await;
    }

    /// Returns a receiver that is notified when the appended or the synced end changes.
    pub fn subscribe(&self) -> watch::Receiver<(u64, u64)> {
        self.grown.subscribe()
    }

    /// Publishes the appended and the synced end of the log.
    pub fn reach(&self, written: Position, synced: Position) {
        *self.positions.lock() = (written, synced);
        let now = (written.offset, synced.offset);
        self.grown.send_if_modified(|ends| std::mem::replace(ends, now) != now);
    }

    /// Publishes the applied and the durable end of a replica's log.
    pub fn followed(&self, applied: Position, durable: Position) {
        self.follows.store(true, SeqCst);
        self.reach(applied, durable);
        // A replica has no commit thread that would wake the waiters.
        self.release.tell(|_| ());
    }

    /// Waits until all changes made before this call are synced.
    pub fn flush(&self) -> store::Result<()> {
        let applied = self.positions().0.offset;
        let began = time::now();
        // The replica's link syncs the log.
        while self.follows.load(SeqCst) {
            if self.positions().1.offset >= applied {
                return Ok(());
            }
            if time::now() - began > REPLICA_SYNC_TIMEOUT {
                return Err(store::Error::Refused(
                    "timeout while syncing the replica's log".to_owned(),
                ));
            }
            time::sleep(Duration::from_millis(5));
        }
        self.committer.flush().map(|_| ())
    }

    /// Waits until clients and replicas may see all changes up to `ticket`. Returns the log's end.
    pub async fn shown_offset(&self, ticket: Ticket) -> Result<u64, String> {
        if !self.follows.load(SeqCst) {
            self.safe(ticket).await?;
        }
        Ok(self.shown().offset)
    }

    /// Returns the log's end if it contains all changes up to `ticket` and replicas may see it.
    /// Returns `Err` if the log batch failed, `None` if it is pending.
    pub fn shown_at(&self, ticket: Ticket) -> Option<Result<u64, ()>> {
        if self.follows.load(SeqCst) {
            return Some(Ok(self.shown().offset));
        }
        // A retry may have succeeded although `ends` does not contain its entry yet.
        let failed = || {
            (self.committer.failed() >= ticket && ticket > self.committer.durable())
                .then_some(Err(()))
        };
        self.ends.of(ticket).map(Ok).or_else(failed)
    }

    /// Waits until `asked` returns a value. Calls it when a replica acknowledges, when
    /// [`Durability::shown_at`] may have changed, and when the role changes.
    pub async fn until<R>(&self, asked: impl Fn() -> Option<R>) -> R {
        self.acknowledged.wait(|()| asked()).await
    }

    /// Wakes the waiters of [`Durability::until`]. Call this function when a replica acknowledges
    /// or disconnects, the role changes, or a FAILOVER ends. The caller must not hold locks that
    /// `asked` acquires.
    pub fn acknowledged(&self) {
        self.acknowledged.tell(|()| ());
    }

    /// Waits until all changes up to `ticket` are synced, whatever the policy. Returns the log's
    /// end. The caller applies a timeout.
    pub async fn synced_offset(&self, ticket: Ticket) -> u64 {
        let mut grown = self.grown.subscribe();
        while !self.follows.load(SeqCst) && self.committer.synced() < ticket {
            self.committer.sync_soon();
            // The ticket is published shortly after the offset.
            let _ = tokio::time::timeout(Duration::from_millis(2), grown.changed()).await;
        }
        self.positions().1.offset
    }

    /// Begins the log of a master, to which the commit thread appends. Call this function before
    /// clients can write.
    pub fn begin(&self, log: &Log) {
        self.reach(log.written(), log.durable());
        self.ends.begin(self.committer.durable(), log.written().offset);
        self.follows.store(false, SeqCst);
        self.accept_if_room(log);
    }

    /// Accepts writes at startup, unless the disk has no room for the log.
    pub fn accept_if_room(&self, log: &Log) {
        if log.has_failed() {
            self.refuse("the disk was full when the server started".into(), Health::Full);
        } else {
            self.accept_writes();
        }
    }
}

fn policy_of_store(policy: Fsync) -> SyncPolicy {
    match policy {
        Fsync::Always => SyncPolicy::Always,
        Fsync::Everysec => SyncPolicy::EverySecond,
        Fsync::No => SyncPolicy::No,
    }
}

/// Error for a client whose change is in memory but not durable. The change may survive or be lost.
fn doubt_text(reason: &str) -> String {
    format!(
        "MISCONF Tidemark cannot write its log. The change is in memory and will be logged when \
         the disk recovers, but is lost if the server stops before: {reason}"
    )
}

fn refusal_text(reason: &str) -> String {
    format!("MISCONF Tidemark cannot write its log, so it rejects writes: {reason}")
}
