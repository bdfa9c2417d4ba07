//! From a write to the disk and back: what the store's commit thread asks of the engines, and recovery at start.
//!
//! ```text
//!   write: Engines enters the id's stripe, changes, marks ---- commit thread: collect, encode, append, sync ----> Progress
//!   connection: with fsync = always its replies wait until Progress has reached its ticket  <-----------------------'
//! ```
//!
//! [`store::Committer`] has the rules of commits; here is what is ours: how marks become records, how a recovered record
//! becomes state, and what clients are told while the disk says no: writes are refused ([`Durability::refusal`]), reads go on, and
//! whoever waits for a commit is told that it is not safe. Nothing that was applied is forgotten: it will be in the log when there is
//! room, but nobody was told that it was safe.

use crate::catalogue::{Catalogue, Mismatch};
use crate::cold::{self, Again, Ground};
use crate::config::{Config, Fsync};
use crate::engines::{BuildError, Engines};
use crate::marks::{Mark, Marked, MarkedMember, told};
use crate::records::{Commit, RecordKind, put_number, read_pairs, read_rows, take_number};
use crate::release::Release;
use crate::replication::director::Held;
use crate::snapshot::{self, Parts};
use counter::Schema;
use parking_lot::Mutex;
use phantom::{Answer, BlockPlace, Frontier, Layout, Member, Pair};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use store::{
    Batch, CommitOptions, Committed, Committer, Health, Log, Position, Progress, RealDisk, Record, Records, Source,
    Store, StoreOptions, SyncPolicy, Ticket,
};

use tokio::sync::watch;

mod ends;

use ends::Ends;

/// A replica syncs at least every second, if its disk lets it.
const FOLLOWER_SYNCS: Duration = Duration::from_secs(30);

/// How far commits have come, as connections wait for it.
#[derive(Clone, Debug)]
struct Reached {
    durable: Ticket,
    failed: Ticket,
    health: Health,
    reason: Arc<str>,
}

/// What writers, connections and the commit thread share.
pub struct Durability {
    committer: Committer<Mark>,
    release: Release<Reached>,
    ends: Ends,
    /// What WAIT waits for: a replica has acknowledged something, or a round has failed or added nothing.
    acknowledged: Release<()>,
    /// End of the log: appended, synced.
    positions: Mutex<(Position, Position)>,
    /// The log's end, appended and synced: rises with either.
    grown: watch::Sender<(u64, u64)>,
    /// The log is a replica's, which its master's batches grow.
    follows: AtomicBool,
    /// What snapshots must write again.
    pub(crate) parts: Parts,
}

impl Durability {
    /// Nothing is committed before `run`.
    pub fn new(policy: Fsync) -> Durability {
        let reached = Reached { durable: 0, failed: 0, health: Health::Good, reason: "".into() };
        Durability {
            committer: Committer::new(CommitOptions { policy: policy_of_store(policy), ..CommitOptions::default() }),
            release: Release::new(reached),
            ends: Ends::default(),
            acknowledged: Release::new(()),
            positions: Mutex::new((Position::START, Position::START)),
            grown: watch::Sender::new((0, 0)),
            follows: AtomicBool::new(false),
            parts: Parts::default(),
        }
    }

    /// Waits for what the replies to a write have to wait for: room in the log's queue, and with `always`, or if `everysec` is late, the disk.
    pub async fn replies_may_go(&self, ticket: Ticket) -> Result<(), String> {
        self.room().await;
        if self.holds_replies() || self.committer.is_late() { self.safe(ticket).await } else { Ok(()) }
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

    /// Whether so many changes wait for the log that a writer is to wait first: [`Durability::room`].
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

    /// Whether replies to writes wait for the disk.
    #[inline]
    pub fn holds_replies(&self) -> bool {
        self.committer.policy() == SyncPolicy::Always
    }

    /// Changes when a write is safe. Replies that wait already do so as before.
    pub(crate) fn set_policy(&self, policy: Fsync) {
        self.committer.set_policy(policy_of_store(policy));
    }

    /// Waits until everything up to `ticket` is safe. The error is what to tell those who wrote. For tasks of the workers.
    pub async fn safe(&self, ticket: Ticket) -> Result<(), String> {
        self.committer.hurry(ticket);
        self.release
            .wait(|r| {
                if r.durable >= ticket {
                    Some(Ok(()))
                } else {
                    (r.failed >= ticket).then(|| Err(refusal_text(&r.reason)))
                }
            })
            .await
    }

    /// Where the log ends: appended, and synced.
    pub fn positions(&self) -> (Position, Position) {
        *self.positions.lock()
    }

    /// Up to where others may have the log: what is written, which a kill does not take; with `always` what is synced. A replica shows
    /// what it has applied.
    pub(crate) fn shown(&self) -> Position {
        let (written, synced) = self.positions();
        if self.holds_replies() && !self.follows.load(SeqCst) { synced } else { written }
    }

    /// To be told when an end of the log moves.
    pub(crate) fn subscribe(&self) -> watch::Receiver<(u64, u64)> {
        self.grown.subscribe()
    }

    /// The log ends here: appended, and synced.
    pub(crate) fn reach(&self, written: Position, synced: Position) {
        *self.positions.lock() = (written, synced);
        let now = (written.offset, synced.offset);
        self.grown.send_if_modified(|ends| std::mem::replace(ends, now) != now);
    }

    /// The log is a replica's, applied and durable up to here.
    pub(crate) fn followed(&self, applied: Position, durable: Position) {
        self.follows.store(true, SeqCst);
        self.reach(applied, durable);
    }

    /// Waits until everything that was changed before this call is synced.
    pub(crate) fn flush(&self) -> store::Result<()> {
        let applied = self.positions().0.offset;
        let began = Instant::now();
        // A replica's log is synced by its link, in time.
        while self.follows.load(SeqCst) {
            if self.positions().1.offset >= applied {
                return Ok(());
            }
            if began.elapsed() > FOLLOWER_SYNCS {
                return Err(store::Error::Refused("the replica's log was not synced in time".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.committer.flush().map(|_| ())
    }

    /// Waits until everything up to `ticket` may be had by others, and gives the log's end then.
    pub(crate) async fn shown_offset(&self, ticket: Ticket) -> Result<u64, String> {
        if !self.follows.load(SeqCst) {
            self.safe(ticket).await?;
        }
        Ok(self.shown().offset)
    }

    /// Where the log ended with everything up to `ticket` in it, once others may have that; the error: it could not be written.
    pub(crate) fn shown_at(&self, ticket: Ticket) -> Option<Result<u64, ()>> {
        if self.follows.load(SeqCst) {
            return Some(Ok(self.shown().offset));
        }
        // A round that failed and was made good may not have been noted yet.
        let failed = || (self.committer.failed() >= ticket && ticket > self.committer.durable()).then_some(Err(()));
        self.ends.of(ticket).map(Ok).or_else(failed)
    }

    /// Waits until `asked` has an answer, of what replicas have acknowledged or of [`Durability::shown_at`].
    pub(crate) async fn until<R>(&self, asked: impl Fn() -> Option<R>) -> R {
        self.acknowledged.wait(|()| asked()).await
    }

    /// A replica has acknowledged something, or has gone.
    pub(crate) fn acknowledged(&self) {
        self.acknowledged.tell(|()| ());
    }

    /// Waits until everything up to `ticket` is synced, whatever the policy, and gives the log's end then. To be given up by the
    /// caller if it takes too long.
    pub(crate) async fn synced_offset(&self, ticket: Ticket) -> u64 {
        let mut grown = self.grown.subscribe();
        while !self.follows.load(SeqCst) && self.committer.synced() < ticket {
            self.committer.sync_soon();
            // The offset is published a moment before the ticket.
            let _ = tokio::time::timeout(Duration::from_millis(2), grown.changed()).await;
        }
        self.positions().1.offset
    }

    /// The commit thread's life, until [`Committer::stop`]. Gives the log back.
    pub(crate) fn run(&self, log: Log, engines: &Engines) -> (Log, store::Result<()>) {
        self.reach(log.written(), log.durable());
        self.ends.begin(self.committer.durable(), log.written().offset);
        self.follows.store(false, SeqCst);
        self.committer.run(log, &mut self.state(engines))
    }

    fn state<'a>(&'a self, engines: &'a Engines) -> State<'a> {
        State {
            shared: self,
            engines,
            commit: Commit::default(),
            unreadable: None,
            loose: Vec::new(),
            blocks: Vec::new(),
            // Recovery has written the catalogue, if it was not what the log said.
            schemas: engines.counters().iter().map(|s| Some(s.schema())).collect(),
            courses: vec![None; engines.existences().len()],
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

fn refusal_text(reason: &str) -> String {
    format!("MISCONF Tidemark cannot write its log, so changes are refused until it can: {reason}")
}

/// What the commit thread reads from.
struct State<'a> {
    shared: &'a Durability,
    engines: &'a Engines,
    commit: Commit,
    /// Why a marked row could not be read. It was changed, went to the disk as it is, and the log may know an older state of it, which a
    /// start would take for newer than the disk's: so the round fails, and its marks come again.
    unreadable: Option<store::Error>,
    /// Ids that became loose, by space.
    loose: Vec<(u32, u64)>,
    /// Blocks that were merged, as records.
    blocks: Vec<(u32, Vec<u8>)>,
    /// The schema of each counter space when the catalogue was last logged; `None`: it has to be logged.
    schemas: Vec<Option<Arc<Schema>>>,
    /// Of each existence space how often its ring had changed, and its frontier, when they were last logged.
    courses: Vec<Option<(u64, Frontier)>>,
}

/// Marks whose state is read together.
const PREFETCHED: usize = 32;

impl State<'_> {
    /// Asks the cache for what `read` will look at.
    fn prefetch(&self, marks: &[Mark], at: usize) {
        match marks[at].read() {
            Marked::Row(space, id) => {
                if let Some(s) = self.engines.counter_by_number(space) {
                    s.prefetch(id);
                }
            }
            Marked::Pair(space, id, MarkedMember::Number(member), _) if told(marks, at).is_none() => {
                if let Some(s) = self.engines.existence_by_number(space) {
                    s.prefetch(id, &Member::Number(member));
                }
            }
            Marked::Pair(..) | Marked::Block(..) | Marked::Loose(..) | Marked::Catalogue => {}
        }
    }

    fn note_unreadable(&mut self, space: &str, id: u64, read: Result<(), Arc<str>>) {
        if let Err(why) = read {
            self.unreadable.get_or_insert(store::Error::Io {
                path: format!("the row of {id} in space '{space}'").into(),
                doing: "reading",
                source: std::io::Error::other(why.to_string()),
            });
        }
    }

    fn read(&mut self, marks: &[Mark], at: usize) {
        match marks[at].read() {
            // `encode` sees for itself.
            Marked::Catalogue => {}
            Marked::Loose(space, id) => self.loose.push((space, id)),
            Marked::Block(number, place) => {
                // Now, not when it is encoded: what is liked until then may have its counter in a later batch.
                let state = self.engines.existence_by_number(number).and_then(|space| space.block_state(place));
                if let Some(state) = state {
                    self.blocks.push((number, encode_block(place, &state)));
                }
            }
            Marked::Row(space, id) => {
                if let Some(s) = self.engines.counter_by_number(space) {
                    let width = s.schema().width();
                    let mut row = || self.commit.row(space, id, width, |values| s.get(id, values));
                    let read = crate::cold::if_readable(&mut row);
                    self.note_unreadable(s.name(), id, read);
                }
            }
            Marked::Pair(space, id, member, _) => match told(marks, at) {
                Some(true) => self.commit.pair(space, id, member, true),
                Some(false) => {}
                None => {
                    if let Some(s) = self.engines.existence_by_number(space) {
                        let set = || s.contains_pair(&pair(s, id, member)) == Answer::Yes;
                        let read = crate::cold::if_readable(set).map(|set| self.commit.pair(space, id, member, set));
                        self.note_unreadable(s.name(), id, read);
                    }
                }
            },
        }
    }
}

impl Source<Mark> for State<'_> {
    fn collect(&mut self, marks: &[Mark]) -> usize {
        self.shared.parts.touch_all(marks.iter().map(Mark::place));
        // Each state lies in cache lines of its own: asked for together, they do not wait for memory one by one.
        for first in (0..marks.len()).step_by(PREFETCHED) {
            let some = first..marks.len().min(first + PREFETCHED);
            some.clone().for_each(|at| self.prefetch(marks, at));
            some.for_each(|at| self.read(marks, at));
        }
        self.commit.bytes() + self.blocks.iter().map(|(_, block)| block.len()).sum::<usize>()
    }

    fn encode(&mut self, batch: &mut Batch) -> store::Result<()> {
        if let Some(error) = self.unreadable.take() {
            return Err(error);
        }
        // The catalogue goes before the rows that may need it: they were read before the schemas are looked at here.
        let mut changed = false;
        for (seen, space) in self.schemas.iter_mut().zip(self.engines.counters()) {
            let now = space.schema();
            changed |= seen.as_ref().is_none_or(|seen| !Arc::ptr_eq(seen, &now));
            *seen = Some(now);
        }
        if changed {
            // Its schemas may be later than those seen: then it is logged twice.
            batch.push(0, RecordKind::Catalogue as u8, &self.engines.catalogue().encode());
        }
        // Where pairs go is told before the pairs, and was read after them (L1).
        for (seen, space) in self.courses.iter_mut().zip(self.engines.existences()) {
            let now = space.course(seen.map_or(u64::MAX, |(changes, _)| changes));
            if let Some(layout) = now.layout {
                batch.push(space.number(), RecordKind::Layout as u8, &encode_layout(&layout));
            }
            if seen.is_none_or(|(_, frontier)| frontier != now.frontier) {
                batch.push(space.number(), RecordKind::Frontier as u8, &encode_frontier(now.frontier));
            }
            *seen = Some((now.changes, now.frontier));
        }
        // Before the rows: who applies them one by one sees no counter of 0 whose id is not yet loose.
        self.loose.sort_unstable();
        for group in self.loose.chunk_by(|a, b| a.0 == b.0) {
            if let Some(space) = self.engines.existence_by_number(group[0].0) {
                let ids: Vec<u64> = group.iter().map(|&(_, id)| id).collect();
                batch.push(space.number(), RecordKind::Loose as u8, &space.loose().encode(Some(&ids)));
            }
        }
        self.loose.clear();
        // Before the pairs: some of them say what is revoked in a block.
        for (number, block) in self.blocks.drain(..) {
            batch.push(number, RecordKind::Block as u8, &block);
        }
        self.commit.encode(batch);
        Ok(())
    }

    fn forget(&mut self) {
        self.commit.forget();
        self.unreadable = None;
        self.loose.clear();
        self.blocks.clear();
        // What was encoded may not have been appended.
        self.courses.fill(None);
        self.schemas.fill(None);
    }

    fn may_part(&self, before: &Mark, after: &Mark) -> bool {
        // A flag and its counter.
        before.place().1 != after.place().1
    }

    fn parted(&mut self, bytes: usize) {
        tracing::warn!(
            "changes that belong together take {bytes} bytes of the log: they are logged in parts, of which a crash may leave some"
        );
    }

    fn published(&mut self, now: &Committed) {
        // Before anybody can have it: so who is told of an acknowledgement finds what was acknowledged.
        let has_grown = self.shared.ends.note(now.durable, now.written_to.offset);
        self.shared.reach(now.written_to, now.synced_to);
        if !has_grown {
            // It failed, or replicas have all of it already: there will be no acknowledgement.
            self.shared.acknowledged();
        }
        self.shared.release.tell(|r| {
            r.durable = now.durable;
            r.failed = now.failed;
            if r.health != Health::Good && now.health == Health::Good {
                tracing::info!("the log goes on");
            }
            r.health = now.health;
        });
    }

    fn failed(&mut self, error: &store::Error) {
        tracing::error!("the log: {error}. {}", error.advice());
        self.shared.release.tell(|r| r.reason = error.to_string().into());
    }
}

fn pair(space: &phantom::Space, id: u64, member: MarkedMember) -> Pair {
    match member {
        MarkedMember::Number(n) => space.pair(id, &Member::Number(n)),
        MarkedMember::Hash(hash) => Pair::from_hash(id, MarkedMember::hash_of(hash)),
    }
}

fn encode_block(place: BlockPlace, state: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(state.len() + 24);
    [place.low, place.link as u64, place.block as u64].into_iter().for_each(|n| put_number(&mut out, n));
    out.extend_from_slice(state);
    out
}

pub(crate) fn decode_block(mut bytes: &[u8]) -> Result<(BlockPlace, &[u8]), String> {
    let low = take_number(&mut bytes)?;
    let small = |n: u64| usize::try_from(n).ok().filter(|&n| n <= u32::MAX as usize).ok_or("no block has that number");
    let link = small(take_number(&mut bytes)?)?;
    let block = small(take_number(&mut bytes)?)?;
    Ok((BlockPlace { low, link, block }, bytes))
}

fn encode_layout(layout: &[Layout]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut before = 0;
    for at in layout {
        put_number(&mut out, at.low - before);
        put_number(&mut out, at.pages as u64);
        before = at.low;
    }
    out
}

pub(crate) fn decode_layout(mut bytes: &[u8]) -> Result<Vec<Layout>, String> {
    let mut layout: Vec<Layout> = Vec::new();
    let mut low = 0u64;
    while !bytes.is_empty() {
        let step = take_number(&mut bytes)?;
        let pages = take_number(&mut bytes)?;
        low = low.checked_add(step).ok_or("a table above 2^64-1")?;
        if step == 0 && !layout.is_empty() {
            return Err("two tables with the same lowest id".to_owned());
        }
        let pages = usize::try_from(pages).ok().filter(|&p| p <= 1 << 40).ok_or("a table of too many pages")?;
        layout.push(Layout { low, pages });
    }
    Ok(layout)
}

fn encode_frontier(frontier: Frontier) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some(high) = frontier.high {
        [high, frontier.window].into_iter().for_each(|n| put_number(&mut out, n));
    }
    out
}

pub(crate) fn decode_frontier(mut bytes: &[u8]) -> Result<Frontier, String> {
    if bytes.is_empty() {
        return Ok(Frontier { high: None, window: 0 });
    }
    let (high, window) = (take_number(&mut bytes)?, take_number(&mut bytes)?);
    if bytes.is_empty() { Ok(Frontier { high: Some(high), window }) } else { Err("more than a frontier".to_owned()) }
}

/// Why a data folder could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The store's own word.
    #[error("{0}. {advice}", advice = .0.advice())]
    Store(#[from] store::Error),
    /// The folder and the configuration do not fit together.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// A space could not be made.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The folder cannot be made.
    #[error("cannot make the data folder {path}: {source}")]
    Folder {
        /// Which.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// A data folder, read back.
pub(crate) struct Recovered {
    /// With everything in it.
    pub(crate) engines: Engines,
    /// For snapshots.
    pub(crate) store: Store,
    /// To go on with.
    pub(crate) log: Held,
    /// What was read.
    pub(crate) end: store::End,
}

/// Makes the configured spaces for a moment: what the engines refuse is to be said before anybody can connect.
pub(crate) fn try_spaces(config: &Config) -> Result<(), RecoverError> {
    let fresh = Catalogue::default().completed(config)?;
    match Engines::new(config, &fresh, Arc::new(Durability::new(config.durability.fsync))) {
        // A view may name a field that the data folder's schema has, and the configuration's has not.
        Ok(_) | Err(BuildError::Missing { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Opens the data folder and reads everything back; a new folder becomes a data set with the configured spaces.
pub(crate) fn recover(
    config: &Config,
    durability: &Arc<Durability>,
    follows: bool,
    progress: impl Fn(Progress) + Sync,
) -> Result<Recovered, RecoverError> {
    let dir = &config.durability.dir;
    let disk = RealDisk::open(dir).map_err(|source| RecoverError::Folder { path: dir.clone(), source })?;
    let store = Store::open(
        Arc::new(disk),
        StoreOptions { keep_log_bytes: config.durability.keep_log_bytes, ..StoreOptions::default() },
    )?;

    // The catalogue comes first: in the snapshot, or as the first record of the log. Later ones tell what changed.
    let parts = &durability.parts;
    let mut known = Catalogue::default();
    let mut engines = Engines::empty(config, durability.clone());
    let learn = |engines: &mut Engines, told: &Catalogue| -> Result<(), RecoverError> {
        told.named_by(config)?;
        engines.extend(config, told)?;
        engines.attach_cold(&store)?;
        snapshot::attach_pairs(&store, config, engines)?;
        engines.lift_limits();
        Ok(())
    };
    let snapshot = snapshot::read_catalogue(&store)?;
    let is_first = snapshot.is_none();
    if let Some(catalogue) = snapshot {
        known = catalogue?;
        learn(&mut engines, &known)?;
        let rows = snapshot::load(&store, config, &mut engines, parts, &progress)?;
        tracing::info!("loaded a snapshot of {rows} rows");
    }
    let mut failed = None;
    let mut apply = |record: &Record<'_>| -> Result<(), String> {
        if record.kind == RecordKind::Catalogue as u8 {
            known = Catalogue::decode(record.payload).map_err(|e| e.to_string())?;
            learn(&mut engines, &known).map_err(|error| failed.insert(error).to_string())?;
            return if is_first { snapshot::lay_out(&engines).map_err(|e| e.to_string()) } else { Ok(()) };
        }
        apply_record(&engines, parts, record.space, record.kind, record.payload)?;
        let most_bytes = config.spill.max_bytes;
        cold::keep_within(&Ground { store: &store, durability, most_bytes, is_logged: true }, &engines, config);
        Ok(())
    };
    let replayed = if follows {
        let mut each = |head: &store::BatchHead, body: &[u8]| {
            let mut records = 0;
            for record in Records::new(body) {
                apply(&record?)?;
                records += 1;
            }
            if records == head.records { Ok(()) } else { Err("a batch holds another number of records".to_owned()) }
        };
        store.replay_following(&mut each, &progress).map(|(log, end)| (Held::Follows(Box::new(log)), end))
    } else {
        store.replay(apply, &progress).map(|(log, end)| (Held::Own(Box::new(log)), end))
    };
    let (mut log, end) = match (failed, replayed) {
        // Not damage: the configuration does not fit.
        (Some(error), _) => return Err(error),
        (None, replayed) => replayed?,
    };
    // What is new in the configuration, under numbers that nobody has. On a replica only its master can add spaces: those that the
    // configuration has beyond the master's come when it is promoted.
    let before: Vec<u32> = engines.existences().iter().map(|s| s.number()).collect();
    if known == Catalogue::default() || !follows {
        engines.extend(config, &engines.catalogue().completed(config)?)?;
    }
    engines.attach_cold(&store)?;
    engines.connect(config)?;
    let mut batch = Batch::new();
    for space in engines.retie(|number| !before.contains(&number)) {
        batch.push(space.number(), RecordKind::Loose as u8, &space.loose().encode(None));
    }
    if let Held::Own(log) = &mut log {
        log_news(&engines, &known, batch, log)?;
    }
    engines.set_limits(config);
    Ok(Recovered { engines, store, log, end })
}

fn log_news(engines: &Engines, known: &Catalogue, mut batch: Batch, log: &mut Log) -> store::Result<()> {
    let now = engines.catalogue();
    if now != *known {
        batch.push(0, RecordKind::Catalogue as u8, &now.encode());
        log.append(&batch, unix_ms())?;
        log.sync()?;
    }
    Ok(())
}

fn unix_ms() -> u64 {
    crate::node::unix_us() / 1000
}

/// Makes one record true. Parts are touched after the change: a snapshot that begins in between sees it, or writes the part again.
pub(crate) fn apply_record(
    engines: &Engines,
    parts: &Parts,
    number: u32,
    kind: u8,
    payload: &[u8],
) -> Result<(), String> {
    let space = number;
    let counter = || engines.counter_by_number(space).ok_or_else(|| format!("there is no counter space {space}"));
    let existence = || engines.existence_by_number(space).ok_or_else(|| format!("there is no existence space {space}"));
    // Before the change and after it: who looks in between, and whoever sees the change, will find that there was one.
    let changed = |ids: &mut dyn Iterator<Item = u64>| ids.for_each(|id| engines.watches.changed(number, id));
    match RecordKind::from_number(kind) {
        Some(RecordKind::Rows) => {
            let space = counter()?;
            // Read twice: where the rows lie is asked for some time before they are changed.
            let mut ids = Vec::new();
            read_rows(payload, |id, _| {
                ids.push(id);
                Ok(())
            })?;
            changed(&mut ids.iter().copied());
            let mut again = Again::new(space);
            let mut ahead = ids.chunks(PREFETCHED);
            let mut at = 0;
            read_rows(payload, |id, values| {
                if at % PREFETCHED == 0 {
                    space.read().prefetch(ahead.next().unwrap_or_default());
                }
                at += 1;
                if let (Some(again), Some(values)) = (&mut again, values)
                    && again.is_there(&ids[at - 1..], values)
                {
                    return Ok(());
                }
                space.put(id, values).map_err(|e| e.to_string())
            })?;
            parts.touch_all(ids.iter().map(|&id| (number, id)));
            changed(&mut ids.iter().copied());
            // As under clients: nobody else does it before the data are loaded.
            while space.wants_maintenance() && space.maintain() {}
            Ok(())
        }
        Some(RecordKind::Pairs) => {
            let space = existence()?;
            let mut pairs = Vec::new();
            read_pairs(payload, |id, member, set| {
                pairs.push((id, member, set));
                Ok(())
            })?;
            changed(&mut pairs.iter().map(|pair| pair.0));
            for pairs in pairs.chunks(PREFETCHED) {
                for &(id, member, _) in pairs {
                    if let MarkedMember::Number(member) = member {
                        space.prefetch(id, &Member::Number(member));
                    }
                }
                for &(id, member, set) in pairs {
                    space.put(&pair(space, id, member), set).map_err(|e| e.to_string())?;
                }
            }
            parts.touch_all(pairs.iter().map(|&(id, ..)| (number, id)));
            changed(&mut pairs.iter().map(|pair| pair.0));
            Ok(())
        }
        Some(RecordKind::Block) => {
            let (place, state) = decode_block(payload)?;
            let space = existence()?;
            // It was merged before the table was frozen, and is in its file; merges are refused since, and where a space spills at all.
            if space.is_cold(place.low) {
                return Ok(());
            }
            // After the change, as with rows and pairs.
            let made = space.put_block(place, state);
            parts.touch(number, place.low);
            made
        }
        Some(RecordKind::Loose) => {
            let space = existence()?;
            space.loose().decode(payload, space.horizon())
        }
        Some(RecordKind::Layout) => existence()?.put_layout(&decode_layout(payload)?).map_err(|e| e.to_string()),
        Some(RecordKind::Frontier) => {
            existence()?.put_frontier(decode_frontier(payload)?);
            Ok(())
        }
        Some(RecordKind::Catalogue | RecordKind::Table | RecordKind::Head | RecordKind::Late) | None => {
            Err(format!("a record of kind {kind} does not belong here"))
        }
    }
}

#[cfg(test)]
mod merges;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_read_back() {
        let layout =
            vec![Layout { low: 7, pages: 1 }, Layout { low: 8, pages: 300 }, Layout { low: u64::MAX, pages: 2 }];
        assert_eq!(decode_layout(&encode_layout(&layout)).unwrap(), layout);
        assert_eq!(decode_layout(&[]).unwrap(), []);
        assert!(decode_layout(&[5, 1, 0, 1]).is_err(), "not rising");
        assert!(decode_layout(&[5]).is_err(), "cut off");
        for (high, window) in [(None, 0), (Some(0), 1024), (Some(u64::MAX), u64::MAX)] {
            let bytes = encode_frontier(Frontier { high, window });
            assert_eq!(decode_frontier(&bytes), Ok(Frontier { high, window }));
            (1..bytes.len()).for_each(|end| assert!(decode_frontier(&bytes[..end]).is_err(), "cut off"));
        }
        assert!(decode_frontier(&[1, 1, 1]).is_err());
    }
}
