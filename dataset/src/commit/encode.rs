//! Encodes the current state of the marked keys as log records, for the commit thread. Recovery and
//! replicas can apply the records of a batch one by one, in order.

use crate::cold::Unreadable;
use crate::commit::Durability;
use crate::dirty_keys::{Mark, Marked, MarkedMember, told};
use crate::engines::{CounterSpace, Current, Engines, ExistenceSpace};
use crate::log_records::{Commit, RecordKind, encode_forgotten};
use crate::ring_records::{encode_frontier, encode_ring};
use counter::Schema;
use ledger::OwnedMember;
use phantom::{Answer, Member, Pair, Range};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{Batch, Committed, Health, LoggedState, buffer};

pub(crate) struct CommitSource<'a> {
    shared: &'a Durability,
    current: &'a Current,
    commit: Commit,
    /// Error of reading a marked row that was spilled after the change. The log may contain an
    /// older state, which recovery would prefer to the file. So the log batch fails and its marks
    /// return to the queue.
    unreadable: Option<store::Error>,
    /// Forgotten ids with their generations: space, id, generation.
    forgotten: Vec<(u32, u64, u64)>,
    /// Version of the catalogue in the log.
    version: Option<u64>,
    /// Encoded records of used tokens and changed offsets; whether cursors of groups have changed.
    tokens: Vec<u8>,
    offsets: Vec<u8>,
    groups_moved: bool,
    /// Schemas in the log, keyed by the counter space's number.
    counters: BTreeMap<u32, Arc<Schema>>,
    /// Ring and frontier in the log, keyed by the existence space's number: the ring's change count
    /// and the ranges.
    existences: BTreeMap<u32, (u64, Vec<Range>)>,
}

/// Read views for the rows of one stripe. The views are created under the stripe's lock, so their
/// list of tables covers all marks of the stripe.
struct RowViews<'a> {
    engines: &'a Engines,
    /// View of the last counter space used.
    last: Option<(u32, &'a CounterSpace, counter::Read<'a>)>,
    /// Rows of the current id that were already read.
    done: SmallVec<[(u32, u64); 4]>,
}

/// Number of marks, or of recovered rows and pairs, that are prefetched together.
pub(crate) const PREFETCHED: usize = 32;

/// Approximate encoded size of a forgotten id in bytes.
const FORGOTTEN_BYTES: usize = 12;

impl<'a> CommitSource<'a> {
    /// Creates a source for a log that has no state of these engines yet. The first batch writes
    /// catalogue, schemas and rings.
    pub(crate) fn new(shared: &'a Durability, current: &'a Current) -> CommitSource<'a> {
        CommitSource {
            shared,
            current,
            commit: Commit::default(),
            unreadable: None,
            forgotten: Vec::new(),
            tokens: Vec::new(),
            offsets: Vec::new(),
            groups_moved: false,
            // Recovery has logged the catalogue, but a client may have changed a schema since.
            version: None,
            counters: BTreeMap::new(),
            existences: BTreeMap::new(),
        }
    }

    /// Reads a row unless it was already read. Marks of one id are adjacent and often name the same
    /// row.
    fn row(&mut self, views: &mut RowViews<'_>, number: u32, id: u64) {
        if views.done.contains(&(number, id)) {
            return;
        }
        views.done.retain(|&mut (_, other)| other == id);
        views.done.push((number, id));
        let Some((space, view)) = views.of(number) else { return };
        let width = view.schema().width();
        let read = self.commit.row(number, id, width, |values| view.get(id, values));
        self.note_unreadable(space.name(), read);
    }

    /// Encodes the forgotten ids. In the batch these records precede the pairs, because applying a
    /// record deletes the pairs of earlier generations.
    fn encode_forgotten(&mut self, batch: &mut Batch) {
        self.forgotten.sort_unstable();
        self.forgotten.dedup();
        for group in self.forgotten.chunk_by(|a, b| a.0 == b.0) {
            let ids = group.iter().map(|&(_, id, generation)| (id, generation));
            batch.push(group[0].0, RecordKind::Forgotten as u8, &encode_forgotten(ids));
        }
        buffer::clear(&mut self.forgotten);
    }

    fn note_unreadable(&mut self, space: &str, read: Result<(), Unreadable>) {
        if let Err(Unreadable { id, why }) = read {
            self.unreadable.get_or_insert(store::Error::Io {
                path: format!("the row of {id} in space '{space}'").into(),
                doing: "reading",
                source: std::io::Error::other(why.to_string()),
            });
        }
    }

    fn read(&mut self, views: &mut RowViews<'_>, marks: &[Mark], at: usize) {
        let engines = views.engines;
        if let (Some(counters), (_, id)) = (marks[at].changed_row_space(), marks[at].place()) {
            self.row(views, counters, id);
        }
        match marks[at].read() {
            // `encode` detects a changed catalogue by its version.
            Marked::Catalogue => {}
            Marked::Forgotten(number, id) => {
                // Read the generation at the same time as the rows and pairs. The generation is
                // unknown for ids below the horizon.
                let space = engines.existence_by_number(number);
                let generation = space.map_or(0, |space| space.generation(id));
                if generation > 0 {
                    self.forgotten.push((number, id, generation));
                }
            }
            Marked::Row(space, id) => self.row(views, space, id),
            Marked::Groups => self.groups_moved = true,
            Marked::Token(hash) => engines.tokens.encode(hash, &mut self.tokens),
            Marked::Offset(number) => engines.offsets.encode(number, &mut self.offsets),
            Marked::Pair(number, id, member, _) => {
                let space = engines.existence_by_number(number);
                self.pair(space, (number, id, member), told(marks, at));
            }
        }
    }

    /// Encodes a pair. `told` is the state that the function [`told`] derived from the marks.
    fn pair(
        &mut self,
        space: Option<&ExistenceSpace>,
        (number, id, member): (u32, u64, MarkedMember),
        told: Option<bool>,
    ) {
        if told == Some(false) {
            return;
        }
        if let Some((space, ledger)) = space.and_then(|space| Some((space, space.ledger()?))) {
            let generation = space.generation(id);
            let now = match (told, member) {
                // The id was never forgotten, so the state from the marks is sufficient.
                (Some(true), MarkedMember::Number(member)) if generation == 0 => {
                    Some((OwnedMember::Number(member), true))
                }
                _ => ledger.logged(id, member),
            };
            if let Some((member, set)) = now {
                self.commit.exact_pair(number, id, member, set, generation);
            }
            return;
        }
        let is_number = matches!(member, MarkedMember::Number(_));
        if is_number && space.is_some_and(|space| space.generation(id) > 0) {
            // The mark predates the id's last FORGET; no reader needs the pair.
            return;
        }
        match (told, space) {
            (Some(set), _) => self.commit.pair(number, id, member, set),
            (None, Some(space)) => {
                let read = space.contains_pair(&pair(space, id, member)).map(|answer| {
                    self.commit.pair(number, id, member, answer == Answer::Yes);
                });
                self.note_unreadable(space.name(), read);
            }
            (None, None) => {}
        }
    }
}

impl<'a> RowViews<'a> {
    fn new(engines: &'a Engines) -> RowViews<'a> {
        RowViews { engines, last: None, done: SmallVec::new() }
    }

    fn of(&mut self, number: u32) -> Option<(&'a CounterSpace, &mut counter::Read<'a>)> {
        if self.last.as_ref().is_none_or(|last| last.0 != number) {
            let space = self.engines.counter_by_number(number);
            self.last = space.map(|space| (number, space, space.read()));
        }
        self.last.as_mut().map(|(_, space, view)| (*space, view))
    }

    fn prefetch_row(&mut self, number: u32, id: u64) {
        if let Some((_, view)) = self.of(number) {
            view.prefetch(&[id]);
        }
    }

    fn prefetch(&mut self, marks: &[Mark], at: usize) {
        match marks[at].read() {
            Marked::Row(space, id) => self.prefetch_row(space, id),
            Marked::Pair(space, id, member, _) => {
                if let Some(counters) = marks[at].changed_row_space() {
                    self.prefetch_row(counters, id);
                }
                if let MarkedMember::Number(member) = member
                    && told(marks, at).is_none()
                    && let Some(s) = self.engines.existence_by_number(space)
                    && s.ledger().is_none()
                {
                    s.prefetch(id, &Member::Number(member));
                }
            }
            Marked::Forgotten(..)
            | Marked::Token(..)
            | Marked::Offset(..)
            | Marked::Groups
            | Marked::Catalogue => {}
        }
    }
}

impl LoggedState<Mark> for CommitSource<'_> {
    fn collect(&mut self, marks: &[Mark]) -> usize {
        let rows =
            marks.iter().filter_map(|mark| Some((mark.changed_row_space()?, mark.place().1)));
        // Forgetting an id changes no table.
        let changes = marks.iter().filter(|mark| !matches!(mark.read(), Marked::Forgotten(..)));
        self.shared.parts.touch_all(changes.map(Mark::place).chain(rows));
        // Skip rows and pairs of dropped spaces.
        let engines = self.current.now();
        let mut views = RowViews::new(&engines);
        for first in (0..marks.len()).step_by(PREFETCHED) {
            let some = first..marks.len().min(first + PREFETCHED);
            some.clone().for_each(|at| views.prefetch(marks, at));
            some.for_each(|at| self.read(&mut views, marks, at));
        }
        self.commit.bytes()
            + self.tokens.len()
            + self.offsets.len()
            + self.forgotten.len() * FORGOTTEN_BYTES
    }

    fn encode(&mut self, batch: &mut Batch) -> store::Result<()> {
        if let Some(error) = self.unreadable.take() {
            return Err(error);
        }
        // The rows have been read, so these schemas cover them. The catalogue precedes the rows in
        // the batch.
        let engines = self.current.load();
        let mut changed = self.version.replace(engines.version()) != Some(engines.version());
        if changed {
            self.counters.retain(|&number, _| engines.has(number));
            self.existences.retain(|&number, _| engines.has(number));
        }
        for space in engines.counters() {
            let now = space.schema();
            let seen = self.counters.insert(space.number(), now.clone());
            changed |= seen.is_none_or(|seen| !Arc::ptr_eq(&seen, &now));
        }
        if changed {
            // The catalogue may be newer than the schemas above. In that case the next batch logs
            // it again.
            batch.push(0, RecordKind::Catalogue as u8, &self.current.catalogue().encode());
        }
        // The layout is read after the pairs, so it covers them. In the batch the layout precedes
        // the pairs (invariant L1 in `phantom/src/rollover.rs`).
        for space in engines.existences() {
            let seen = self.existences.get(&space.number());
            let now = space.course(seen.map_or(u64::MAX, |(changes, _)| *changes));
            if let Some(layout) = now.layout {
                batch.push(space.number(), RecordKind::Ring as u8, &encode_ring(&layout));
            }
            if seen.is_none_or(|(_, ranges)| *ranges != now.ranges) {
                let ranges = encode_frontier(&now.ranges);
                batch.push(space.number(), RecordKind::Frontier as u8, &ranges);
            }
            self.existences.insert(space.number(), (now.changes, now.ranges));
        }
        self.encode_forgotten(batch);
        self.commit.encode(batch);
        if !self.tokens.is_empty() {
            batch.push(0, RecordKind::Tokens as u8, &self.tokens);
            buffer::clear(&mut self.tokens);
        }
        if !self.offsets.is_empty() {
            batch.push(0, RecordKind::Offsets as u8, &self.offsets);
            buffer::clear(&mut self.offsets);
        }
        if std::mem::take(&mut self.groups_moved) {
            let mut moved = Vec::new();
            engines.groups.encode_changed(&mut moved);
            batch.push(0, RecordKind::Groups as u8, &moved);
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.rest();
        self.unreadable = None;
        self.groups_moved = false;
        self.current.load().groups.give_back();
        self.version = None;
        self.existences.clear();
        self.counters.clear();
    }

    fn rest(&mut self) {
        self.commit.forget();
        buffer::clear(&mut self.forgotten);
        buffer::clear(&mut self.tokens);
        buffer::clear(&mut self.offsets);
    }

    fn may_split_between(&self, before: &Mark, after: &Mark) -> bool {
        // A flag and its counter, or a token and its row, must stay in one batch.
        before.place().1 != after.place().1
    }

    fn batch_split(&mut self, bytes: usize) {
        tracing::warn!(
            "a group of changes takes {bytes} bytes of the log and is logged in parts, so a crash \
             may keep only some. Send smaller transactions"
        );
    }

    fn published(&mut self, now: &Committed) {
        // Record the offset before replicas receive the batch, so that a thread woken by an
        // acknowledgement finds it.
        let has_grown = self.shared.ends.note(now.durable, now.written_to.offset);
        self.shared.reach(now.written_to, now.synced_to);
        if !has_grown {
            // The batch failed, or replicas already have all changes. Wake the waiters, because no
            // acknowledgement will follow.
            self.shared.acknowledged();
        }
        self.shared.release.tell(|r| {
            r.durable = now.durable;
            r.synced = now.synced;
            r.failed = now.failed;
            if r.health != Health::Good && now.health == Health::Good {
                tracing::info!("the log is writable again");
            }
            r.health = now.health;
        });
    }

    fn failed(&mut self, error: &store::Error) {
        tracing::error!("log write failed: {error}. {}", error.advice());
        self.shared.release.tell(|r| r.reason = error.to_string().into());
    }
}

pub(crate) fn pair(space: &phantom::Space, id: u64, member: MarkedMember) -> Pair {
    match member {
        MarkedMember::Number(n) => space.first_pair(id, &Member::Number(n)),
        MarkedMember::Hash(hash) => Pair::from_hash(id, MarkedMember::hash_of(hash)),
    }
}
