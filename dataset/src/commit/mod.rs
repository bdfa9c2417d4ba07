//! From a write to the disk and back: how far commits have come, and their waiters.
//!
//! ```text
//!   write: Engines enters the id's stripe, changes, marks
//!          ---- commit thread: collect, encode, append, sync ----> Reached
//!   connection: with fsync = always its replies wait until Reached has its ticket
//! ```
//!
//! [`store::Committer`] has the rules of commits. `encode.rs` and `ring_records.rs` encode marked
//! state as records; `recovery/apply.rs` applies recovered records.
//! Here is what is ours beside: what clients are told while the disk says no. Writes are refused
//! ([`Durability::refusal`]), reads go on, and waiters for a commit are told that it is not safe.
//! Nothing that was applied is forgotten: it will be in the log when there is room, but it was not
//! reported as safe.

use crate::commit::dirty_parts::DirtyParts;
use crate::dirty_keys::Mark;
use crate::options::Fsync;
use crate::waiters::Release;
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

use round_offsets::Ends;

/// A replica syncs at least every second, if its disk lets it.
const FOLLOWER_SYNCS: Duration = Duration::from_secs(30);

/// Most bytes of changes that belong together. The rest of a batch is for schemas, layouts and
/// heads of records, and for a little of others.
pub const MOST_BYTES: usize = MAX_BODY_BYTES / 16 * 15;

/// How long a request that shows the log's end waits for acknowledged writes that the log lacks.
const LOGGED_WITHIN: Duration = Duration::from_secs(1);

/// How often a reader looks whether a writer's turn, of some microseconds, has ended.
const TURN_ENDS: Duration = Duration::from_millis(1);

/// How far commits have come, as connections wait for it.
#[derive(Clone, Debug)]
pub(crate) struct Reached {
    pub(crate) durable: Ticket,
    pub(crate) synced: Ticket,
    pub(crate) failed: Ticket,
    pub(crate) health: Health,
    pub(crate) reason: Arc<str>,
}

/// What writers, connections and the commit thread share.
pub struct Durability {
    pub(crate) committer: Committer<Mark>,
    pub(crate) release: Release<Reached>,
    pub(crate) ends: Ends,
    /// What WAIT and a stop wait for: a replica has acknowledged something, a round has failed or
    /// added nothing, the role is another.
    acknowledged: Release<()>,
    /// End of the log: appended, synced.
    positions: Mutex<(Position, Position)>,
    /// The log's end, appended and synced: rises with either.
    grown: watch::Sender<(u64, u64)>,
    /// The log is a replica's, which its master's batches grow.
    follows: AtomicBool,
    /// Replies to all up to this ticket may have gone before the sync: `always` came later.
    replied: AtomicU64,
    /// What snapshots must write again.
    pub parts: DirtyParts,
}

impl Durability {
    /// Nothing is committed before `run`.
    pub fn new(policy: Fsync) -> Durability {
        let reached =
            Reached { durable: 0, synced: 0, failed: 0, health: Health::Good, reason: "".into() };
        Durability {
            committer: Committer::new(CommitOptions {
                policy: policy_of_store(policy),
                ..CommitOptions::default()
            }),
            release: Release::new(reached),
            ends: Ends::default(),
            acknowledged: Release::new(()),
            positions: Mutex::new((Position::START, Position::START)),
            grown: watch::Sender::new((0, 0)),
            follows: AtomicBool::new(false),
            replied: AtomicU64::new(0),
            parts: DirtyParts::default(),
        }
    }

    /// Waits for what the replies to a write have to wait for: room in the log's queue, and with
    /// `always`, or if `everysec` is late, the disk.
    pub async fn replies_may_go(&self, ticket: Ticket) -> Result<(), String> {
        self.room().await;
        if self.holds_replies() || self.committer.is_late() {
            self.safe(ticket).await
        } else {
            Ok(())
        }
    }

    /// Where writers mark what they change.
    #[inline]
    pub fn committer(&self) -> &Committer<Mark> {
        &self.committer
    }

    /// Why a write must be refused now, if it must.
    #[inline]
    pub fn refusal(&self) -> Option<String> {
        match self.committer.health() {
            Health::Good => None,
            Health::Full | Health::Failing => Some(refusal_text(&self.release.look().reason)),
        }
    }

    /// This node is to be a master, and its log cannot be begun: writes are refused with the
    /// reason. False if that was said already.
    pub fn unable(&self, error: &store::Error) -> bool {
        let reason: Arc<str> = error.to_string().into();
        let is_new = self.committer.health() == Health::Good
            || store::gist(&self.release.look().reason) != error.gist();
        self.refuse(reason, error.into());
        is_new
    }

    /// Whether changes that were acknowledged are not synced: a stop while the log cannot be
    /// written would lose them. With `always` what is not synced was not acknowledged, but for what
    /// was changed under another policy.
    pub fn would_lose(&self) -> bool {
        self.has_unsynced(self.committer.synced())
    }

    fn has_unsynced(&self, synced: Ticket) -> bool {
        !self.follows.load(SeqCst) && synced < self.acknowledged_ticket()
    }

    /// The round of the last write whose reply may have been sent.
    fn acknowledged_ticket(&self) -> Ticket {
        if self.holds_replies() { self.replied.load(SeqCst) } else { self.committer.ticket() }
    }

    /// Whether [`Durability::shown`] contains every acknowledged write.
    pub fn has_logged(&self) -> bool {
        self.follows.load(SeqCst) || self.release.look().durable >= self.acknowledged_ticket()
    }

    /// Waits until [`Durability::shown`] contains every write acknowledged before this call. Gives
    /// up after a second, or when the round fails. For tasks of the workers.
    pub async fn logged(&self) {
        let ticket = self.acknowledged_ticket();
        if !self.has_logged() {
            let _ = tokio::time::timeout(LOGGED_WITHIN, self.shown_offset(ticket)).await;
        }
    }

    /// The offset to show to clients: the log's end, or one more while the log lacks an
    /// acknowledged write. A replica has all of them only when it has reached this offset.
    pub fn acknowledged_offset(&self) -> u64 {
        let is_short = !self.has_logged();
        self.shown().offset + u64::from(is_short)
    }

    /// Waits until the log can be written and all that was acknowledged is synced. For tasks.
    pub async fn recovered(&self) {
        let is_safe = |r: &Reached| r.health == Health::Good && !self.has_unsynced(r.synced);
        self.release.wait(|r| is_safe(r).then_some(())).await;
    }

    /// Writes are refused from now on.
    fn refuse(&self, reason: Arc<str>, health: Health) {
        self.release.tell(|r| r.reason = reason);
        self.committer.set_health(health);
        // Waiters that were woken before that, and sleep again.
        self.release.tell(|_| ());
    }

    /// It is begun, or is a replica's.
    pub fn able(&self) {
        self.committer.set_health(Health::Good);
    }

    /// Whether so many changes wait for the log that a writer is to wait first:
    /// [`Durability::room`].
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.committer.is_crowded()
    }

    /// Waits until the log has caught up, or fails: then writes are refused anyway.
    pub async fn room(&self) {
        let may_go = || !self.is_crowded() || self.committer.health() != Health::Good;
        let asked = |_: &Reached| {
            if !may_go() {
                self.committer.nudge();
            }
            may_go().then_some(())
        };
        self.release.wait(asked).await;
    }

    /// Waits until so much could be reserved for changes that belong together
    /// ([`Committer::reserve`]); or until they are refused anyway. For tasks of the workers.
    pub async fn room_for(&self, bytes: usize) {
        let is_refused = || self.committer.health() != Health::Good || self.follows.load(SeqCst);
        let may_go = || self.committer.has_room(bytes) || is_refused();
        let asked = |_: &Reached| {
            if !may_go() {
                self.committer.nudge();
            }
            may_go().then_some(())
        };
        self.release.wait(asked).await;
    }

    /// Whether replies to writes wait for the disk.
    #[inline]
    pub fn holds_replies(&self) -> bool {
        self.committer.policy() == SyncPolicy::Always
    }

    /// Whether replies to reads do, if what they show is not there yet. What a replica shows its
    /// master has synced, and so has the replica itself: with `always` it syncs before it applies.
    #[inline]
    pub fn holds_reads(&self) -> bool {
        self.holds_replies() && !self.follows.load(Relaxed)
    }

    /// Changes when a write is safe. Replies that wait already do so as before.
    pub fn set_policy(&self, policy: Fsync) {
        let held = self.holds_replies();
        self.committer.set_policy(policy_of_store(policy));
        if !held {
            // A writer that found the old policy has marked its change before.
            self.replied.fetch_max(self.committer.ticket(), SeqCst);
        }
    }

    /// Waits until everything up to `ticket` is safe. The error is what to tell the writers.
    /// For tasks of the workers.
    pub async fn safe(&self, ticket: Ticket) -> Result<(), String> {
        self.committer.hurry(ticket);
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

    /// Waits until what was read is safe: with the round that [`Committer::sight`] gave, or with
    /// all that has been changed, if that is not known. Reads go on while the disk fails, so it
    /// does not wait for more than an attempt. For tasks of the workers.
    pub async fn settled(&self, shown: Ticket) {
        let ticket = if shown < Ticket::MAX {
            shown
        } else {
            let mut from = 0;
            while let Some(busy) = self.committer.first_busy(from) {
                from = busy;
                tokio::time::sleep(TURN_ENDS).await;
            }
            self.committer.ticket()
        };
        if self.committer.synced() < ticket {
            self.committer.hurry(ticket);
            let is_safe =
                |r: &Reached| r.synced.max(r.failed) >= ticket || self.follows.load(SeqCst);
            self.release.wait(|r| is_safe(r).then_some(())).await;
        }
    }

    /// Where the log ends: appended, and synced.
    pub fn positions(&self) -> (Position, Position) {
        *self.positions.lock()
    }

    /// Up to where others may have the log: what is written, which a kill does not take; with
    /// `always` what is synced. A replica shows what it has applied.
    pub fn shown(&self) -> Position {
        let (written, synced) = self.positions();
        if self.holds_replies() && !self.follows.load(SeqCst) { synced } else { written }
    }

    /// Up to where the log is both applied here and synced: no restart takes it back.
    pub fn certain(&self) -> Position {
        let (written, synced) = self.positions();
        if written.offset < synced.offset { written } else { synced }
    }

    /// Waits until that lies beyond this offset. For tasks of the workers.
    pub async fn certain_beyond(&self, offset: u64) {
        self.release.wait(|_| (self.certain().offset > offset).then_some(())).await;
    }

    /// To be told when an end of the log moves.
    pub fn subscribe(&self) -> watch::Receiver<(u64, u64)> {
        self.grown.subscribe()
    }

    /// The log ends here: appended, and synced.
    pub fn reach(&self, written: Position, synced: Position) {
        *self.positions.lock() = (written, synced);
        let now = (written.offset, synced.offset);
        self.grown.send_if_modified(|ends| std::mem::replace(ends, now) != now);
    }

    /// The log is a replica's, applied and durable up to here.
    pub fn followed(&self, applied: Position, durable: Position) {
        self.follows.store(true, SeqCst);
        self.reach(applied, durable);
        // No round will come.
        self.release.tell(|_| ());
    }

    /// Waits until everything that was changed before this call is synced.
    pub fn flush(&self) -> store::Result<()> {
        let applied = self.positions().0.offset;
        let began = time::now();
        // A replica's log is synced by its link, in time.
        while self.follows.load(SeqCst) {
            if self.positions().1.offset >= applied {
                return Ok(());
            }
            if time::now() - began > FOLLOWER_SYNCS {
                return Err(store::Error::Refused(
                    "the replica's log was not synced in time".to_owned(),
                ));
            }
            time::sleep(Duration::from_millis(5));
        }
        self.committer.flush().map(|_| ())
    }

    /// Waits until everything up to `ticket` may be had by others, and gives the log's end then.
    pub async fn shown_offset(&self, ticket: Ticket) -> Result<u64, String> {
        if !self.follows.load(SeqCst) {
            self.safe(ticket).await?;
        }
        Ok(self.shown().offset)
    }

    /// Where the log ended with everything up to `ticket` in it, once others may have that; the
    /// error: it could not be written.
    pub fn shown_at(&self, ticket: Ticket) -> Option<Result<u64, ()>> {
        if self.follows.load(SeqCst) {
            return Some(Ok(self.shown().offset));
        }
        // A round that failed and was made good may not have been noted yet.
        let failed = || {
            (self.committer.failed() >= ticket && ticket > self.committer.durable())
                .then_some(Err(()))
        };
        self.ends.of(ticket).map(Ok).or_else(failed)
    }

    /// Waits until `asked` has an answer, of what replicas have acknowledged, of
    /// [`Durability::shown_at`], or of which node is to be the master.
    pub async fn until<R>(&self, asked: impl Fn() -> Option<R>) -> R {
        self.acknowledged.wait(|()| asked()).await
    }

    /// A replica has acknowledged something, or has gone; or another role was given, or a FAILOVER
    /// has ended. What `asked` asks for must not be locked.
    pub fn acknowledged(&self) {
        self.acknowledged.tell(|()| ());
    }

    /// Waits until everything up to `ticket` is synced, whatever the policy, and gives the log's
    /// end then. To be given up by the caller if it takes too long.
    pub async fn synced_offset(&self, ticket: Ticket) -> u64 {
        let mut grown = self.grown.subscribe();
        while !self.follows.load(SeqCst) && self.committer.synced() < ticket {
            self.committer.sync_soon();
            // The offset is published a moment before the ticket.
            let _ = tokio::time::timeout(Duration::from_millis(2), grown.changed()).await;
        }
        self.positions().1.offset
    }

    /// The log is a master's, which commits grow. To be called before any client may write: of what
    /// is written the log's end says nothing until a round has brought it there.
    pub fn begin(&self, log: &Log) {
        self.reach(log.written(), log.durable());
        self.ends.begin(self.committer.durable(), log.written().offset);
        self.follows.store(false, SeqCst);
        self.look_at(log);
    }

    /// Until a log could be begun nothing is to be changed: the disk was full at the start.
    pub fn look_at(&self, log: &Log) {
        if log.has_failed() {
            self.refuse("the disk had no room for the log at the start".into(), Health::Full);
        } else {
            self.able();
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

/// For a client that changed something that is not safe yet, and may not wait for ever. It must
/// neither believe that it is safe nor that it was not made.
fn doubt_text(reason: &str) -> String {
    format!(
        "MISCONF Tidemark cannot write its log: what was changed is in memory, and will be logged \
         when it can be; if the server stops before that, it is lost: {reason}"
    )
}

/// For a refused client: nothing was changed.
fn refusal_text(reason: &str) -> String {
    format!("MISCONF Tidemark cannot write its log, so changes are refused until it can: {reason}")
}
