//! [`Engines`]: the spaces, views and actions of a data set, and which keys name what.
//!
//! The value is immutable. A change of the catalogue makes another value, which replaces this one as
//! a whole (`current.rs`). Both share the data of the spaces that they have in common.

use crate::catalogue::Catalogue;
use crate::cold::Cold;
use crate::cold::PairFile;
use crate::cold::ledger::PairLedger;
use crate::commit::Durability;
use crate::engines::action::Action;
use crate::engines::spaces::{CounterSpace, ExistenceSpace};
use crate::engines::view::View;
use crate::groups::Groups;
use crate::key_patterns::{Kind, Match, Pattern};
use crate::offsets::Offsets;
use crate::options::Expire;
use crate::tokens::Tokens;
use crate::watch::{Place, Watches};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

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

/// The spaces, views and actions of a data set, as an immutable value.
#[derive(Clone)]
pub struct Engines {
    pub(super) counters: Vec<CounterSpace>,
    pub(super) existences: Vec<ExistenceSpace>,
    pub(super) views: Vec<View>,
    pub(super) actions: Vec<Action>,
    /// Key patterns, what they name, and the index of the space. No two match one key.
    pub(super) patterns: Vec<(Pattern, Kind, usize)>,
    pub(super) durability: Arc<Durability>,
    pub(super) memory: Arc<MemoryBudget>,
    /// Whether any space moves old tables or pairs to disk.
    pub(super) spills: bool,
    pub(crate) watches: Arc<Watches>,
    /// Increments that count once.
    pub tokens: Arc<Tokens>,
    /// Positions up to which events of brokers were applied.
    pub offsets: Arc<Offsets>,
    /// Consumer groups of streams.
    pub groups: Arc<Groups>,
    /// Listener for changes, none by default.
    pub tracking: Listener,
    /// Cache and reader threads of cold rows, shared by all spaces.
    pub cold: Arc<Cold>,
    /// Whether a master's log decides where tables begin, also in new spaces.
    pub(crate) follows: Arc<AtomicBool>,
    /// Catalogue, except for schemas: the spaces have those.
    pub(super) catalogue: Arc<Catalogue>,
}

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

/// MemoryBudget budget of all spaces together (`memory.rs`).
pub(crate) struct MemoryBudget {
    pub(super) budget: AtomicU64,
    /// Whether no limit holds, as during recovery: [`Engines::lift_limits`].
    pub(super) is_lifted: AtomicBool,
}

impl MemoryBudget {
    pub(crate) fn new(budget: u64) -> MemoryBudget {
        MemoryBudget { budget: AtomicU64::new(budget), is_lifted: AtomicBool::new(false) }
    }
}

/// Notifications of changed places, for the server's client tracking. None are sent while no client
/// listens.
pub trait ChangeListener: Send + Sync {
    /// A place has changed. Called after the change, in the id's stripe.
    fn changed(&self, engines: &Engines, place: Place);
    /// Begins the changes of one log record. [`ChangeListener::end`] ends them.
    fn begin(&self);
    /// Ends the changes of a log record.
    fn end(&self, engines: &Engines);
    /// Any place may have changed, as after a schema change.
    fn all_changed(&self);
}

/// A [`ChangeListener`] and the number of its clients. A writer pays one load while there are none.
#[derive(Clone, Default)]
pub struct Listener {
    clients: Arc<AtomicUsize>,
    listener: Option<Arc<dyn ChangeListener>>,
}

impl Listener {
    /// `clients`: number of clients that listen now.
    pub fn new(clients: Arc<AtomicUsize>, listener: Arc<dyn ChangeListener>) -> Listener {
        Listener { clients, listener: Some(listener) }
    }

    /// Returns the listener if it has clients.
    #[inline]
    pub(crate) fn any(&self) -> Option<&dyn ChangeListener> {
        if self.clients.load(Relaxed) == 0 { None } else { self.listener.as_deref() }
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
