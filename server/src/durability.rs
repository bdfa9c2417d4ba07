//! From a write to the disk: the log thread, and what connections need to know of it.
//!
//! ```text
//!   write -> marks (changes.rs) ----- log thread: take marks, read what is true now, append, sync ----> progress
//!   connection: ticket, and with fsync = always the reply waits until progress has reached it <-------------'
//! ```
//!
//! - `always`: a connection that wrote nudges the log thread and holds its replies until the commit of its ticket is synced.
//!   Everybody who comes while a sync runs shares the next one.
//! - `everysec`: replies do not wait. Marks are committed every [`TICK`], and synced every second.
//! - `no`: the same, but when the disk gets it is the system's affair.
//!
//! When the disk says no (full, or failing) the commit at hand is kept and tried again; meanwhile writes are refused
//! ([`Durability::refusal`]), reads go on, and whoever waits for a commit is told. Nothing that was applied is forgotten: it will
//! be in the log when there is room, but nobody was told that it was safe.

use crate::changes::{Changes, Mark, MarkedMember};
use crate::config::Fsync;
use crate::engines::Engines;
use crate::node::unix_ms;
use crate::records::{Commit, RecordKind, put_number};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};
use store::{Batch, Log, Position};
use tokio::sync::watch;

/// How long marks wait for company when no reply waits for them.
const TICK: Duration = Duration::from_millis(100);
/// How often `everysec` syncs.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// How often a failed step is tried again.
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// At shutdown a failing disk gets so many more chances.
const LAST_RETRIES: u32 = 20;
/// A batch is about so large at most; what belongs to one id is never split.
const BATCH_BYTES: usize = 8 << 20;

/// How far the log has come.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The last commit that is as safe as the policy promises.
    pub commit: u64,
    /// Why the log cannot go on, as long as it cannot.
    pub failure: Option<Arc<str>>,
}

/// What INFO shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogFigures {
    /// The end of what was appended.
    pub written: u64,
    /// The end of what is certain to be on the disk.
    pub durable: u64,
    /// Bytes, records, batches, syncs, failures since the start.
    pub stats: store::LogStats,
    /// Unix time of the last sync, in milliseconds.
    pub synced_ms: u64,
}

/// What writers, connections and the log thread share.
pub struct Durability {
    policy: Fsync,
    changes: Changes,
    failing: AtomicBool,
    progress: watch::Sender<Progress>,
    /// Under it: whether somebody wants a commit now, and whether the log thread is to end.
    wanted: Mutex<Wanted>,
    nudge: Condvar,
    figures: Mutex<LogFigures>,
    /// Where the log ends, between two batches.
    position: Mutex<Position>,
    durable_offset: AtomicU64,
}

#[derive(Default)]
struct Wanted {
    commit: bool,
    /// Commits up to this one must be synced, whatever the policy.
    sync: u64,
    end: bool,
}

impl Durability {
    /// `most_pending`: marks that may wait before writers have to.
    pub fn new(policy: Fsync, most_pending: usize) -> Durability {
        Durability {
            policy,
            changes: Changes::new(most_pending),
            failing: AtomicBool::new(false),
            progress: watch::Sender::new(Progress::default()),
            wanted: Mutex::default(),
            nudge: Condvar::new(),
            figures: Mutex::default(),
            position: Mutex::new(Position::START),
            durable_offset: AtomicU64::new(0),
        }
    }

    /// Where writers leave their marks.
    #[inline]
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Why a write must be refused now, if it must.
    #[inline]
    pub fn refusal(&self) -> Option<String> {
        if !self.failing.load(Relaxed) {
            return None;
        }
        self.progress.borrow().failure.as_ref().map(|reason| refusal_text(reason))
    }

    /// Whether so many changes wait for the log that a writer should wait for it first. See [`Durability::wait_for_room`].
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.changes.is_full()
    }

    /// Waits until the log has caught up, or fails.
    pub async fn wait_for_room(&self) {
        let mut progress = self.progress.subscribe();
        self.want(false, None);
        while self.is_behind() && !self.failing.load(Relaxed) {
            if progress.changed().await.is_err() {
                return;
            }
        }
    }

    /// Whether replies to writes wait for the disk.
    #[inline]
    pub fn holds_replies(&self) -> bool {
        self.policy == Fsync::Always
    }

    /// Waits until everything that the caller has written so far is safe. The error is what to tell those who wrote.
    pub async fn wait_until_safe(&self) -> Result<(), String> {
        let ticket = self.changes.ticket();
        self.want(false, None);
        let mut progress = self.progress.subscribe();
        let reached = progress.wait_for(|p| p.commit >= ticket || p.failure.is_some()).await;
        match reached {
            Ok(p) if p.commit >= ticket => Ok(()),
            Ok(p) => Err(refusal_text(p.failure.as_deref().unwrap_or("unknown"))),
            Err(_) => Err(refusal_text("the log thread has ended")),
        }
    }

    /// Commits and syncs everything that was marked so far, whatever the policy; blocks. The error says what the disk said.
    pub fn flush(&self) -> Result<Position, String> {
        let ticket = self.changes.ticket();
        let mut progress = self.progress.subscribe();
        self.want(false, Some(ticket));
        loop {
            {
                let p = progress.borrow_and_update();
                if let Some(reason) = &p.failure {
                    return Err(reason.to_string());
                }
            }
            let synced = self.wanted.lock().sync <= self.synced_commit();
            if synced && self.progress.borrow().commit >= ticket {
                return Ok(*self.position.lock());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Where the log ends now: replay from here gives everything that is not yet committed.
    pub fn position(&self) -> Position {
        *self.position.lock()
    }

    /// For INFO.
    pub fn figures(&self) -> LogFigures {
        *self.figures.lock()
    }

    /// Ends the log thread after a last commit.
    pub fn end(&self) {
        self.want(true, None);
    }

    fn synced_commit(&self) -> u64 {
        self.durable_offset.load(SeqCst)
    }

    fn want(&self, end: bool, sync: Option<u64>) {
        let mut wanted = self.wanted.lock();
        wanted.commit = true;
        wanted.end |= end;
        wanted.sync = wanted.sync.max(sync.unwrap_or(0));
        self.nudge.notify_one();
    }
}

fn refusal_text(reason: &str) -> String {
    format!("MISCONF Tidemark cannot write its log, so changes are refused until it can: {reason}")
}

/// The log thread.
pub struct LogThread {
    shared: Arc<Durability>,
    log: Log,
    commit: Commit,
    batch: Batch,
    synced: Instant,
    /// How often each existence space's ring had changed when it was last logged.
    layouts: Vec<u64>,
}

impl LogThread {
    /// Ready to run. `log` is where recovery has ended.
    pub fn new(shared: Arc<Durability>, log: Log, engines: &Engines) -> LogThread {
        *shared.position.lock() = log.written();
        let layouts = vec![u64::MAX; engines.existences().len()];
        LogThread { shared, log, commit: Commit::default(), batch: Batch::new(), synced: Instant::now(), layouts }
    }

    /// Appends a record by itself and syncs it, before the thread runs: the catalogue.
    pub fn append_now(&mut self, space: u32, kind: RecordKind, payload: &[u8]) -> store::Result<()> {
        self.batch.clear();
        self.batch.push(space, kind as u8, payload);
        self.log.append(&self.batch, unix_ms())?;
        self.batch.clear();
        self.log.sync()?;
        *self.shared.position.lock() = self.log.written();
        Ok(())
    }

    /// Commits until [`Durability::end`].
    pub fn run(mut self, engines: &Engines) {
        let shared = self.shared.clone();
        loop {
            let (end, sync) = {
                let mut wanted = shared.wanted.lock();
                // With `always` a nudge comes with the marks; the timeout is for what nobody waits for, as a roll.
                if !wanted.commit {
                    shared.nudge.wait_for(&mut wanted, TICK);
                }
                if shared.policy != Fsync::Always && wanted.sync <= shared.synced_commit() && !wanted.end {
                    // Company is cheaper than haste: one record for a row that is written many times.
                    let since = Instant::now();
                    while since.elapsed() < TICK
                        && !wanted.end
                        && wanted.sync <= shared.synced_commit()
                        && !shared.changes.is_full()
                    {
                        shared.nudge.wait_for(&mut wanted, TICK - since.elapsed().min(TICK));
                    }
                }
                wanted.commit = false;
                (wanted.end, wanted.sync)
            };
            let number = self.commit_all(engines, end);
            let must_sync = match shared.policy {
                Fsync::Always => true,
                Fsync::Everysec => self.synced.elapsed() >= SYNC_EVERY,
                Fsync::No => false,
            };
            if must_sync || end || sync > shared.synced_commit() {
                self.sync(number, end);
            }
            self.publish(number);
            if end {
                return;
            }
        }
    }

    /// Takes the marks and appends what they name, as it is now.
    fn commit_all(&mut self, engines: &Engines, end: bool) -> u64 {
        let mut commit = std::mem::take(&mut self.commit);
        let number = self.shared.changes.take(|mark| match *mark {
            Mark::Row { space, id } => {
                if let Some(s) = engines.counter_by_number(space) {
                    commit.row(space, id, s.schema().width(), |values| s.get(id, values));
                }
            }
            Mark::Pair { space, id, member } => {
                if let Some(s) = engines.existence_by_number(space) {
                    let pair = s.marked_pair(id, member);
                    commit.pair(space, id, member, s.contains_pair(&pair) == phantom::Answer::Yes);
                }
            }
        });
        for (seen, space) in self.layouts.iter_mut().zip(engines.existences()) {
            let changes = space.changes();
            if *seen != changes {
                *seen = changes;
                self.batch.push(space.number(), RecordKind::Layout as u8, &encode_layout(&space.layout()));
            }
        }
        if !self.batch.is_empty() {
            self.append(end);
        }
        let width = |space| engines.counter_by_number(space).map_or(1, |s| s.schema().width());
        commit.records(width, BATCH_BYTES, |space, kind, payload, last| {
            self.batch.push(space, kind as u8, payload);
            if last {
                self.append(end);
            }
        });
        self.commit = commit;
        number
    }

    /// Appends the batch; tries until it succeeds, unless the server is ending.
    fn append(&mut self, end: bool) {
        let mut tries = 0;
        loop {
            match self.log.append(&self.batch, unix_ms()) {
                Ok(position) => {
                    *self.shared.position.lock() = position;
                    break;
                }
                Err(error) => {
                    if !self.failed(&error, end, &mut tries) {
                        tracing::error!("ending without the last changes: {error}");
                        break;
                    }
                }
            }
        }
        self.batch.clear();
    }

    fn sync(&mut self, number: u64, end: bool) {
        let mut tries = 0;
        loop {
            let result = if end { self.log.seal(unix_ms()) } else { self.log.sync().map(|_| ()) };
            match result {
                Ok(()) => break,
                Err(error) => {
                    if !self.failed(&error, end, &mut tries) {
                        tracing::error!("ending without the last sync: {error}");
                        return;
                    }
                }
            }
        }
        self.synced = Instant::now();
        self.shared.durable_offset.store(number, SeqCst);
        *self.shared.position.lock() = self.log.written();
    }

    /// Tells everybody, waits a moment. False: give up.
    fn failed(&mut self, error: &store::Error, end: bool, tries: &mut u32) -> bool {
        *tries += 1;
        if !self.shared.failing.swap(true, SeqCst) {
            tracing::error!("the log: {error}. {}", error.advice());
        }
        let reason: Arc<str> = error.to_string().into();
        self.shared.progress.send_modify(|p| p.failure = Some(reason));
        if end && *tries > LAST_RETRIES {
            return false;
        }
        std::thread::sleep(RETRY_EVERY);
        let ending = self.shared.wanted.lock().end;
        !(ending && *tries > LAST_RETRIES)
    }

    fn publish(&mut self, number: u64) {
        {
            let mut figures = self.shared.figures.lock();
            figures.written = self.log.written().offset;
            figures.durable = self.log.durable().offset;
            figures.stats = self.log.stats();
            if self.log.durable() == self.log.written() {
                figures.synced_ms = unix_ms();
            }
        }
        if self.shared.failing.swap(false, SeqCst) {
            tracing::info!("the log goes on");
        }
        self.shared.progress.send_modify(|p| {
            p.commit = number;
            p.failure = None;
        });
    }
}

fn encode_layout(layout: &[phantom::Layout]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut before = 0;
    for at in layout {
        put_number(&mut out, at.low - before);
        put_number(&mut out, at.pages as u64);
        before = at.low;
    }
    out
}

/// A layout record's payload.
pub fn decode_layout(mut bytes: &[u8]) -> Result<Vec<phantom::Layout>, String> {
    let mut layout = Vec::new();
    let mut low = 0u64;
    while !bytes.is_empty() {
        let step = crate::records::take_number(&mut bytes)?;
        let pages = crate::records::take_number(&mut bytes)?;
        low = low.checked_add(step).ok_or("a table above 2^64-1")?;
        if layout.len() > 0 && step == 0 {
            return Err("two tables with the same lowest id".to_owned());
        }
        let pages = usize::try_from(pages).map_err(|_| "a table of too many pages")?;
        layout.push(phantom::Layout { low, pages });
    }
    Ok(layout)
}

/// A marked member as the log names it.
pub fn marked(space: &phantom::Space, id: u64, member: &phantom::Member<'_>) -> MarkedMember {
    match *member {
        phantom::Member::Number(n) => MarkedMember::Number(n),
        phantom::Member::Bytes(_) => MarkedMember::Hash(space.pair(id, member).hash()),
    }
}
