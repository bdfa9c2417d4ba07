//! The engines of this server: its spaces, views and actions, and which keys name what.
//!
//! [`Engines`] is an immutable value: which spaces there are, and what names them. Another set of
//! them is another value, which takes the place of this one as a whole (`current`). What a space
//! holds is shared by all values that have the space.
//!
//! How they are made from configuration and catalogue is in `build`, how a page is read in `page`,
//! what its rows mean in `shape`, and the one path by which data change in `write`.

mod action;
mod build;
pub mod change;
pub mod current;
pub mod events;
mod forget;
pub mod listener;
mod memory;
mod page;
mod retire;
mod shape;
mod write;

pub use action::Action;
pub use build::{BuildError, existence_options};
pub use change::ChangeError;
pub use current::Current;
pub use page::{Page, View};
pub use write::Seen;
pub use write::{AlterError, WriteError};

use crate::catalogue::Catalogue;
use crate::cold;
use crate::cold::Cold;
use crate::cold::cold_filters::is_crowded;
use crate::cold::cold_filters::{ColdPairs, PairFile};
use crate::cold::fetch::Fetching;
use crate::cold::files::ColdSpace;
use crate::cold::ledger::PairLedger;
use crate::cold::overlay::{changed_rows, overlay_bytes};
use crate::commit::Durability;
use crate::groups::Groups;
use crate::key_patterns::{Kind, Match, Pattern};
use crate::log_records::{EXACT_PAIR_BYTES, PAIR_BYTES};
use crate::offsets::Offsets;
use crate::options;
use crate::options::{BelowHorizon, Expire};
use crate::tokens::Tokens;
use crate::watch::{Place, Watches};
use listener::Listener;
use memory::Memory;
use phantom::{Answer, Member};
use rolling::{Unreadable, UnreadableIds};
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A counter space with its name.
#[derive(Clone)]
pub struct CounterSpace {
    number: u32,
    /// Its place in SCAN's order, which no other space has while this one is there.
    slot: u8,
    /// What was declared of it; but its fields are those of its schema.
    made: Arc<options::Counter>,
    space: Arc<counter::Space>,
    /// Spaces in which an id means the same.
    kin: forget::Kin,
    cold: Arc<ColdSpace>,
    /// GET answers its rows as one text.
    pub text_rows: bool,
    /// What becomes of an expiry that a command asks for.
    pub expire: Expire,
}

impl CounterSpace {
    /// Its number in the catalogue: what records call it.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.made.name
    }

    /// Its place in an order of the counter spaces that stays while others come and go.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// What was declared of it, but for its fields: those are its schema's.
    pub fn declared(&self) -> &options::Counter {
        &self.made
    }

    /// Whether old tables move to the disk when memory runs short.
    pub fn spills(&self) -> bool {
        self.made.spill
    }

    /// Rows in memory and on the disk. Of those that have been changed since they went to the disk,
    /// and new ones in the range of a cold file, it is not known which are which before they are
    /// merged: they are counted as if there were none new. Rows of other ranges are counted
    /// exactly.
    pub fn all_rows(&self) -> u64 {
        let changed = self.changed_rows();
        (self.space.rows() + self.cold.rows()).saturating_sub(changed + self.space.tombstones().0)
    }

    /// Bytes of the tables that hold changed rows of the disk: what merging will give back.
    pub fn overlay_bytes(&self) -> u64 {
        overlay_bytes(&self.space, self.cold())
    }

    /// Rows that were changed since they went to the disk, about.
    pub fn changed_rows(&self) -> u64 {
        changed_rows(&self.space, &self.cold)
    }

    /// The position of its first field.
    pub(crate) fn first(&self) -> Option<usize> {
        self.schema().living().next().map(|(position, _)| position)
    }

    /// Whether a row is one counter: it goes with it.
    pub(crate) fn has_one_field(&self) -> bool {
        self.schema().living().nth(1).is_none()
    }

    /// Its rows on the disk.
    #[inline]
    pub fn cold(&self) -> &Arc<ColdSpace> {
        &self.cold
    }

    /// Has those of these rows read that lie on the disk, all at the same time, as a connection's
    /// turn does before its commands run. They are at hand on the thread that has waited, until it
    /// calls this again. For code that drives the engines without a connection.
    pub async fn fetch(&self, ids: &[u64]) {
        cold::unpin();
        let mut fetching = Fetching::default();
        ids.iter().filter(|&&id| self.is_cold(id)).for_each(|&id| self.cold.ask(id, &mut fetching));
        if !fetching.is_ready() {
            cold::pin(self.cold.shared().fetch(fetching).await);
        }
    }
}

impl Deref for CounterSpace {
    type Target = counter::Space;

    #[inline]
    fn deref(&self) -> &counter::Space {
        &self.space
    }
}

/// An existence space with its name.
#[derive(Clone)]
pub struct ExistenceSpace {
    number: u32,
    /// What was declared of it.
    made: Arc<options::Existence>,
    /// Else an id alone is set or not.
    pub has_members: bool,
    /// What becomes of an expiry that a command asks for.
    pub expire: Expire,
    space: Arc<phantom::Space>,
    cold: Arc<ColdPairs>,
    ledger: Option<Arc<PairLedger>>,
    pace: Arc<PairRate>,
}

/// How fast pairs come.
#[derive(Default)]
struct PairRate {
    /// Where the newest table began when the rate was last measured, and its pairs then.
    newest: parking_lot::Mutex<Option<(u64, u64)>>,
    /// The rate, as the bits of an f64.
    rate: AtomicU64,
}

impl ExistenceSpace {
    /// Whether an action on an id below the horizon moves its counters all the same.
    #[inline]
    pub(crate) fn counts_below_horizon(&self) -> bool {
        self.made.below_horizon == BelowHorizon::Count
    }

    /// Its number in the catalogue: what records call it.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.made.name
    }

    /// What was declared of it, as it is by now.
    pub fn declared(&self) -> &options::Existence {
        &self.made
    }

    /// Whether so much has come late that writers are to wait for a merge.
    pub(crate) fn is_crowded(&self) -> bool {
        is_crowded(&self.space)
    }

    /// Its tables on the disk.
    #[inline]
    pub fn cold(&self) -> &ColdPairs {
        &self.cold
    }

    /// Its ledger, if every pair is kept exactly.
    #[inline]
    pub fn ledger(&self) -> Option<&Arc<PairLedger>> {
        self.ledger.as_ref()
    }

    /// Whether a pair is set to which the filters say yes: as its ledger says, if it has one.
    #[inline]
    pub(crate) fn is_true(&self, id: u64, member: &Member<'_>) -> Result<bool, Unreadable> {
        self.ledger.as_ref().map_or(Ok(true), |ledger| ledger.contains(id, member))
    }

    /// The same for one of many: what cannot be read goes to `failed`, and is answered with no.
    pub(crate) fn is_true_of(
        &self,
        id: u64,
        member: &Member<'_>,
        failed: &mut Vec<Unreadable>,
    ) -> bool {
        self.is_true(id, member).unwrap_or_else(|error| {
            failed.push(error);
            false
        })
    }

    /// Whether a pair is set, exact if it has a ledger.
    pub fn contains_exactly(&self, id: u64, member: &Member<'_>) -> Result<Answer, Unreadable> {
        match self.space.contains(id, member)? {
            Answer::Yes if !self.is_true(id, member)? => Ok(Answer::No),
            answer => Ok(answer),
        }
    }

    /// Asks the ledger for what the filters have answered with yes. An id of which it cannot be
    /// read is in the error, and answered with no.
    pub fn verify(
        &self,
        member: &Member<'_>,
        ids: &[u64],
        answers: &mut [Answer],
    ) -> Result<(), UnreadableIds> {
        let mut failed = Vec::new();
        let yes = ids.iter().zip(answers).filter(|(_, answer)| **answer == Answer::Yes);
        for (&id, answer) in yes {
            if !self.is_true_of(id, member, &mut failed) {
                *answer = Answer::No;
            }
        }
        UnreadableIds::check(failed)
    }

    /// Notes what must be read before it can be said whether a pair is set: by the filters, or, if
    /// that is to be `exact` (as for a write), also by the ledger. Nothing if it is at hand.
    pub fn ask(&self, (id, member): (u64, &Member<'_>), exact: bool, fetching: &mut Fetching) {
        let waits = self.cold.ask(&self.space, (id, member), fetching);
        // What the filter says is known once its page is there: then this is called again.
        if exact
            && !waits
            && let Some(ledger) = &self.ledger
            && matches!(self.space.contains(id, member), Ok(Answer::Yes))
        {
            ledger.ask(id, member, fetching);
        }
    }

    /// Bytes of the log that a pair of it takes at most.
    pub fn log_bytes_of_pair(&self) -> usize {
        if self.ledger.is_some() { EXACT_PAIR_BYTES } else { PAIR_BYTES }
    }

    /// New pairs per second in the newest table: the mean of about the last minute.
    pub fn pairs_per_s(&self) -> f64 {
        f64::from_bits(self.pace.rate.load(Relaxed))
    }

    /// At the present rate the oldest table is recycled after so many seconds; `None` if nothing
    /// comes, or nothing is recycled.
    pub fn recycled_in_s(&self) -> Option<f64> {
        let rate = self.pairs_per_s();
        (rate > 1e-6 && !self.space.spills())
            .then(|| self.space.pairs_until_recycled() as f64 / rate)
    }

    /// To be called now and then, by one thread.
    fn measure(&self, elapsed: Duration) {
        let tables = self.space.tables();
        let Some(newest) = tables.last() else { return };
        let before = self.pace.newest.lock().replace((newest.low, newest.pairs));
        let Some((low, pairs)) = before else { return };
        let since = tables.iter().filter(|table| table.low >= low);
        let since = since.map(|table| table.pairs).sum::<u64>();
        // Where that table has been emptied or recycled, this once nothing is learned.
        let Some(come) = since.checked_sub(pairs) else { return };
        let now = come as f64 / elapsed.as_secs_f64().max(1e-3);
        let before = self.pairs_per_s();
        let weight =
            if before == 0.0 { 1.0 } else { 1.0 - (-elapsed.as_secs_f64() / RATE_OVER_S).exp() };
        self.pace.rate.store((before + (now - before) * weight).to_bits(), Relaxed);
    }
}

impl Deref for ExistenceSpace {
    type Target = phantom::Space;

    #[inline]
    fn deref(&self) -> &phantom::Space {
        &self.space
    }
}

/// In the place of a member, in spaces without members. No client can name it otherwise but by an
/// empty argument; in particular it is no viewer's number.
pub const NO_MEMBER: Member<'static> = Member::Bytes(b"");

/// What a key names.
pub enum KeyRef<'a> {
    /// A row of counters.
    Row {
        /// Where.
        space: &'a CounterSpace,
        /// Whose.
        id: u64,
    },
    /// One counter.
    Cell {
        /// Where.
        space: &'a CounterSpace,
        /// Whose.
        id: u64,
        /// The position of its field.
        field: usize,
    },
    /// All pairs of an id.
    Pair {
        /// Where.
        space: &'a ExistenceSpace,
        /// Whose.
        id: u64,
    },
}

impl KeyRef<'_> {
    /// What becomes of an expiry of what it names.
    pub fn expire(&self) -> Expire {
        match self {
            KeyRef::Row { space, .. } | KeyRef::Cell { space, .. } => space.expire,
            KeyRef::Pair { space, .. } => space.expire,
        }
    }
}

/// Why a key names nothing.
#[derive(Debug, PartialEq, Eq)]
pub enum KeyError<'a> {
    /// It fits none of these patterns.
    NoPattern(&'a [u8], &'a [(Pattern, Kind, usize)]),
    /// It names a row of a space whose rows are texts, where a counter is wanted.
    WholeRow(&'a [u8]),
    /// It fits one, but for an id of more than 64 bits.
    IdTooBig(&'a [u8]),
    /// It fits one, but for zeros in front of the id.
    IdPadded(&'a [u8]),
    /// The schema has no such field.
    NoField {
        /// The space's name.
        space: &'a str,
        /// The field that it lacks.
        field: &'a [u8],
    },
}

/// The spaces, views and actions of a server. See the top of the file.
#[derive(Clone)]
pub struct Engines {
    counters: Vec<CounterSpace>,
    existences: Vec<ExistenceSpace>,
    views: Vec<View>,
    actions: Vec<Action>,
    /// Patterns with what they name and the index of the space. No two match one key.
    patterns: Vec<(Pattern, Kind, usize)>,
    durability: Arc<Durability>,
    memory: Arc<Memory>,
    /// Whether old tables of any counter space move to the disk.
    spills: bool,
    pub(crate) watches: Arc<Watches>,
    /// Increments that count once.
    pub tokens: Arc<Tokens>,
    /// How far the events of brokers are taken over.
    pub offsets: Arc<Offsets>,
    /// Consumer groups of streams.
    pub groups: Arc<Groups>,
    /// Told of changes: a listener that hears nothing until the owner gives its own.
    pub tracking: Listener,
    /// What the cold rows of all spaces share.
    pub cold: Arc<Cold>,
    /// A master's log says where tables begin, of new spaces, too.
    pub(crate) follows: Arc<AtomicBool>,
    /// But for schemas, which the spaces themselves know.
    catalogue: Arc<Catalogue>,
}

/// Over about so many seconds the rate of new pairs is averaged.
const RATE_OVER_S: f64 = 60.0;

impl Engines {
    // --- names ---

    /// What a key names.
    #[inline]
    pub fn resolve<'a, 'k>(&'a self, key: &'k [u8]) -> Result<KeyRef<'a>, KeyError<'k>>
    where
        'a: 'k,
    {
        for (pattern, kind, index) in &self.patterns {
            let (id, field) = match pattern.read(key) {
                Match::No => continue,
                Match::IdTooBig => return Err(KeyError::IdTooBig(key)),
                Match::IdPadded => return Err(KeyError::IdPadded(key)),
                Match::Yes(id, field) => (id, field),
            };
            return Ok(match kind {
                Kind::Row => KeyRef::Row { space: &self.counters[*index], id },
                Kind::Pair => KeyRef::Pair { space: &self.existences[*index], id },
                Kind::Cell => {
                    let space = &self.counters[*index];
                    let position =
                        if pattern.has_field() { space.index_of(field) } else { space.first() };
                    match position {
                        Some(field) => KeyRef::Cell { space, id, field },
                        None => return Err(KeyError::NoField { space: space.name(), field }),
                    }
                }
            });
        }
        Err(KeyError::NoPattern(key, &self.patterns))
    }

    /// What a key names; to commands that are `about_pairs` only (BFSET and its kin), always pairs.
    #[inline]
    pub fn resolve_for<'a>(&'a self, about_pairs: bool, key: &[u8]) -> Option<KeyRef<'a>> {
        if about_pairs {
            return self.pair_of(key).map(|(space, id)| KeyRef::Pair { space, id });
        }
        self.resolve(key).ok()
    }

    /// The pairs that a key names, whatever row has the same key: for commands that are about pairs
    /// only, where counters and pairs without members may have the same keys.
    pub fn pair_of(&self, key: &[u8]) -> Option<(&ExistenceSpace, u64)> {
        self.patterns.iter().find_map(|(pattern, kind, index)| match (kind, pattern.read(key)) {
            (Kind::Pair, Match::Yes(id, _)) => Some((&self.existences[*index], id)),
            _ => None,
        })
    }

    /// The row that a key of a row or of a cell names, whether there is such a field or not.
    #[inline]
    pub fn row_of(&self, key: &[u8]) -> Option<(&CounterSpace, u64)> {
        self.patterns.iter().find_map(|(pattern, kind, index)| match (pattern.read(key), kind) {
            (Match::Yes(id, _), Kind::Row | Kind::Cell) => Some((&self.counters[*index], id)),
            _ => None,
        })
    }

    /// The patterns of a counter space's keys of this kind.
    pub fn counter_patterns(
        &self,
        space: &CounterSpace,
        wanted: Kind,
    ) -> impl Iterator<Item = &Pattern> {
        debug_assert_ne!(wanted, Kind::Pair, "the index is one of another list");
        self.patterns_of(space.number)
            .filter(move |(_, kind, _)| *kind == wanted)
            .map(|(pattern, ..)| pattern)
    }

    /// The patterns of a space's keys, rows before cells, as they are written.
    pub fn key_patterns(&self, number: u32) -> Vec<String> {
        self.patterns_of(number).map(|(pattern, ..)| pattern.to_string()).collect()
    }

    /// The patterns that name things of a space.
    fn patterns_of(&self, number: u32) -> impl Iterator<Item = (&Pattern, Kind, usize)> {
        let number_of = |kind: Kind, index: usize| match kind {
            Kind::Row | Kind::Cell => self.counters[index].number,
            Kind::Pair => self.existences[index].number,
        };
        self.patterns
            .iter()
            .filter(move |(_, kind, index)| number_of(*kind, *index) == number)
            .map(|(pattern, kind, index)| (pattern, *kind, *index))
    }

    /// All names by which clients may know what is at a place: the id itself, as FEED.GET takes
    /// it, and the keys of the row, of its cells, or of the pairs.
    pub fn names_of(&self, (space, id): Place, names: &mut BTreeSet<Vec<u8>>) {
        names.insert(id.to_string().into_bytes());
        let mut add = |pattern: &Pattern, field: &str| {
            let mut name = Vec::new();
            pattern.write(id, field.as_bytes(), &mut name);
            names.insert(name);
        };
        for (pattern, kind, index) in self.patterns_of(space) {
            if kind == Kind::Cell {
                let schema = self.counters[index].schema();
                schema.living().for_each(|(_, field)| add(pattern, &field.name));
            } else {
                add(pattern, "");
            }
        }
    }

    /// What the names begin with that [`Engines::names_of`] gives for a space.
    pub fn name_starts(&self, space: u32) -> Vec<Vec<u8>> {
        let ids = (b'0'..=b'9').map(|digit| vec![digit]);
        ids.chain(self.patterns_of(space).map(|(pattern, ..)| pattern.start().to_vec())).collect()
    }

    /// The counter space of that name.
    #[inline]
    pub fn counter(&self, name: &[u8]) -> Option<&CounterSpace> {
        self.counters.iter().find(|s| s.name().as_bytes() == name)
    }

    /// The existence space of that name.
    #[inline]
    pub fn existence(&self, name: &[u8]) -> Option<&ExistenceSpace> {
        self.existences.iter().find(|s| s.name().as_bytes() == name)
    }

    /// The view of that name.
    #[inline]
    pub fn view(&self, name: &[u8]) -> Option<&View> {
        self.views.iter().find(|v| v.name.as_bytes() == name)
    }

    /// The action of that name.
    #[inline]
    pub fn action(&self, name: &[u8]) -> Option<&Action> {
        self.actions.iter().find(|a| a.name.as_bytes() == name)
    }

    /// All views.
    pub fn views(&self) -> &[View] {
        &self.views
    }

    /// All actions.
    pub fn actions(&self) -> &[Action] {
        &self.actions
    }

    /// The counter that an action moves, as "space.field".
    pub fn moved_by(&self, action: &Action) -> String {
        self.counter_name(action.counter, action.field)
    }

    /// The counters that it moves beside, of the id, and of the member.
    pub fn moved_beside(&self, action: &Action, of_member: bool) -> Vec<String> {
        let beside = action.beside.iter().filter(|beside| beside.of_member == of_member);
        beside.map(|beside| self.counter_name(beside.counter, beside.field)).collect()
    }

    fn counter_name(&self, counter: usize, position: usize) -> String {
        let space = &self.counters[counter];
        let schema = space.schema();
        let field = schema.living().find(|(at, _)| *at == position);
        format!("{}.{}", space.name(), field.map_or("", |(_, field)| field.name.as_str()))
    }

    /// All counter spaces.
    #[inline]
    pub fn counters(&self) -> &[CounterSpace] {
        &self.counters
    }

    /// Rows of all counter spaces, in memory and on the disk.
    pub fn all_rows(&self) -> u64 {
        self.counters.iter().map(CounterSpace::all_rows).sum()
    }

    /// All existence spaces.
    #[inline]
    pub fn existences(&self) -> &[ExistenceSpace] {
        &self.existences
    }

    /// The counter space of that number.
    #[inline]
    pub fn counter_by_number(&self, number: u32) -> Option<&CounterSpace> {
        self.counters.iter().find(|s| s.number == number)
    }

    /// The existence space of that number.
    #[inline]
    pub fn existence_by_number(&self, number: u32) -> Option<&ExistenceSpace> {
        self.existences.iter().find(|s| s.number == number)
    }

    /// Replaces an existence space by what a snapshot held of it, and its files on the disk.
    pub(crate) fn restore(
        &mut self,
        number: u32,
        space: phantom::Space,
        files: Vec<Arc<PairFile>>,
    ) {
        if let Some(existence) = self.existences.iter_mut().find(|s| s.number == number) {
            existence.space = Arc::new(space);
            existence.cold.set_files(files);
        }
    }

    /// What the data folder is to know of the spaces, as they are now. While the data set is
    /// served: [`Current::catalogue`].
    pub fn catalogue(&self) -> Catalogue {
        let mut catalogue = Catalogue::clone(&self.catalogue);
        for (entry, space) in catalogue.counter.iter_mut().zip(&self.counters) {
            entry.made.fields = space.schema().to_string();
        }
        catalogue
    }

    /// Rises with each change of what there is: [`Catalogue::version`].
    #[inline]
    pub fn version(&self) -> u64 {
        self.catalogue.version
    }

    /// Whether there is a space of that number.
    pub fn has(&self, number: u32) -> bool {
        self.counter_by_number(number).is_some() || self.existence_by_number(number).is_some()
    }

    /// Whether there was a space of that number, which was dropped.
    pub fn is_dropped(&self, number: u32) -> bool {
        (1..=self.catalogue.last).contains(&number) && !self.has(number)
    }

    /// How far changes have come on their way to the disk.
    #[inline]
    pub fn durability(&self) -> &Durability {
        &self.durability
    }

    /// The cold files of rows that the store's manifest names answer from now on, for spaces that
    /// do not have theirs yet.
    pub(crate) fn attach_cold(&self, store: &store::Store) -> store::Result<()> {
        for space in &self.counters {
            space.cold.attach(&space.space, space.number, store)?;
        }
        self.ledgers().try_for_each(|ledger| ledger.attach(store))
    }

    /// Whether any row, or flag, may lie on the disk.
    #[inline]
    pub fn has_cold(&self) -> bool {
        self.cold.any()
    }

    /// The ledgers of spaces that have one.
    pub fn ledgers(&self) -> impl Iterator<Item = &Arc<PairLedger>> {
        self.existences.iter().filter_map(|space| space.ledger.as_ref())
    }

    /// Whether writers are to wait, as a space is nearly full and will soon be less so. Asked
    /// before every write of a pipeline, so one load or two say that nothing spills.
    #[inline]
    pub fn is_spilling(&self) -> bool {
        (self.spills || self.has_cold()) && self.is_any_crowded()
    }

    fn is_any_crowded(&self) -> bool {
        self.counters.iter().any(|space| {
            space.spills()
                && space.memory_bytes().saturating_add(space.cold.margin.load(Relaxed))
                    > space.memory_limit_bytes()
                && !space.cold.stuck.load(Relaxed)
        }) || self
            .existences
            .iter()
            .any(|space| space.cold.any() && space.is_crowded() && !space.cold.stuck.load(Relaxed))
            || self.ledgers().any(|ledger| ledger.is_crowded())
    }

    /// The counter spaces of a view.
    pub fn sources(&self, view: &View) -> impl Iterator<Item = &CounterSpace> {
        view.sources.iter().map(|&space| &self.counters[space])
    }

    /// The existence spaces of a view's flags.
    pub fn flags(&self, view: &View) -> impl Iterator<Item = &ExistenceSpace> {
        view.flags.iter().map(|&space| &self.existences[space])
    }

    /// The existence space of an action.
    #[inline]
    pub fn flag_of(&self, action: &Action) -> &ExistenceSpace {
        &self.existences[action.flag]
    }

    /// The counter space of an action.
    #[inline]
    pub fn counter_of(&self, action: &Action) -> &CounterSpace {
        &self.counters[action.counter]
    }

    /// Bytes of memory that all tables take.
    pub fn memory_bytes(&self) -> u64 {
        let counters: u64 = self.counters.iter().map(|s| s.memory_bytes()).sum();
        counters
            + self.tokens.stats().bytes
            + self.groups.stats().bytes as u64
            + self.ledgers().map(|l| l.ledger().memory_bytes() as u64).sum::<u64>()
            + self.existences.iter().map(|s| s.memory_bytes()).sum::<u64>()
    }

    /// Does some of the work that the spaces have put off. True if there was any: call again.
    pub fn maintain(&self) -> bool {
        let mut worked = false;
        for space in &self.counters {
            worked |= space.wants_maintenance() && space.maintain();
        }
        for space in &self.existences {
            if space.has_news() || space.wants_maintenance() {
                worked |= self.move_on(space) | space.tidy();
            }
        }
        worked
    }

    /// Asks one existence space for `count` canaries, so that its true error rate is known after a
    /// while: for an idle thread. It is the next from the `turn`-th on whose rate is
    /// not known, so that many spaces cost no more than one.
    pub fn probe(&self, turn: usize, count: u64) {
        let number = self.existences.len();
        let _ =
            (0..number).any(|next| self.existences[(turn % number + next) % number].probe(count));
    }

    /// Whether writers wait for what [`Engines::maintain`] does: [`counter::Space::hurries`].
    pub fn hurries(&self) -> bool {
        self.counters.iter().any(|space| space.hurries())
    }

    /// Looks for tables of counters that have come to rest: [`counter::Space::settle`].
    pub fn settle(&self) {
        self.counters.iter().for_each(|space| space.settle());
    }

    /// Measures how fast pairs come. To be called about once a second, by one thread.
    pub fn measure(&self, elapsed: Duration) {
        self.existences.iter().for_each(|space| space.measure(elapsed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::Durability;
    use crate::options::Options;

    /// However many spaces there are: idle, they take no more of a processor than one.
    #[test]
    fn canaries_go_to_one_space_at_a_time_and_to_all_in_turn() {
        let options = Options::default();
        let catalogue = Catalogue::default().completed(&options);
        let engines =
            Engines::new(&options, &catalogue, Arc::new(Durability::new(options.fsync))).unwrap();
        engines.probe(usize::MAX, 10);
        let asked = || {
            engines.existences().iter().map(|space| space.measured().canaries).collect::<Vec<_>>()
        };
        assert_eq!(asked(), [0, 0, 0], "no space has anything");
        // The one in the middle has nothing to be wrong about.
        for space in [&engines.existences()[0], &engines.existences()[2]] {
            (0..1000).for_each(|id| _ = space.add(id, &phantom::Member::Number(1)).unwrap());
        }
        (0..6).for_each(|turn| engines.probe(turn, 10));
        assert_eq!(asked(), [20, 0, 40], "one a turn; a space without work passes it on");
        engines.probe(usize::MAX, 10);
        assert_eq!(asked().iter().sum::<u64>(), 70);
    }
}
