//! [`Engines`]: the spaces, views and actions of a data set, and the mapping of keys to them.
//!
//! The value is immutable. A catalogue change creates a new value, which replaces the current value
//! (`current.rs`). The old and the new value share the data of their common spaces.

use crate::catalogue::Catalogue;
use crate::cold::Cold;
use crate::cold::PairFile;
use crate::cold::ledger::PairLedger;
use crate::commit::Durability;
use crate::engines::action::Action;
use crate::engines::spaces::{CounterSpace, ExistenceSpace};
use crate::engines::view::View;
use crate::groups::Groups;
use crate::key_patterns::{KeyMatch, Kind, Pattern};
use crate::offsets::Offsets;
use crate::options::Expire;
use crate::tokens::Tokens;
use crate::watch::{WatchedId, Watches};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Target of a key.
pub enum KeyRef<'a> {
    /// A row of counters.
    Row {
        /// Counter space.
        space: &'a CounterSpace,
        /// Id of the row.
        id: u64,
    },
    /// One counter.
    Cell {
        /// Counter space.
        space: &'a CounterSpace,
        /// Id of the row.
        id: u64,
        /// Position of the field.
        field: usize,
    },
    /// All pairs of an id.
    Pair {
        /// Existence space.
        space: &'a ExistenceSpace,
        /// Id of the pairs.
        id: u64,
    },
}

impl KeyRef<'_> {
    /// How the space handles an expiry.
    pub fn expire(&self) -> Expire {
        match self {
            KeyRef::Row { space, .. } | KeyRef::Cell { space, .. } => space.expire,
            KeyRef::Pair { space, .. } => space.expire,
        }
    }
}

/// Reason why a key does not refer to a row, a cell or pairs.
#[derive(Debug, PartialEq, Eq)]
pub enum KeyError<'a> {
    /// The key matches none of these patterns.
    NoPattern(&'a [u8], &'a [(Pattern, Kind, usize)]),
    /// The key names a row, but the command requires a counter.
    WholeRow(&'a [u8]),
    /// The id exceeds 64 bits.
    IdTooBig(&'a [u8]),
    /// The id begins with zeros.
    IdPadded(&'a [u8]),
    /// The schema has no such field.
    NoField {
        /// Name of the space.
        space: &'a str,
        /// Missing field.
        field: &'a [u8],
    },
}

/// The spaces, views and actions of a data set. Immutable.
#[derive(Clone)]
pub struct Engines {
    pub(super) counters: Vec<CounterSpace>,
    pub(super) existences: Vec<ExistenceSpace>,
    pub(super) views: Vec<View>,
    pub(super) actions: Vec<Action>,
    /// Key patterns, each with its kind and the index of its space.
    pub(super) patterns: Vec<(Pattern, Kind, usize)>,
    pub(super) durability: Arc<Durability>,
    pub(super) memory: Arc<MemoryBudget>,
    /// Whether any space spills tables or pairs.
    pub(super) spills: bool,
    pub(crate) watches: Arc<Watches>,
    /// Idempotency tokens of increments.
    pub tokens: Arc<Tokens>,
    /// Offsets up to which events of brokers were applied.
    pub offsets: Arc<Offsets>,
    /// Consumer groups of streams.
    pub groups: Arc<Groups>,
    /// Listener for changes; none by default.
    pub tracking: Listener,
    /// Cache and reader threads of cold rows, shared by all spaces.
    pub cold: Arc<Cold>,
    /// Whether a master's log determines the boundaries of tables.
    pub(crate) follows: Arc<AtomicBool>,
    /// Catalogue. Its schemas may be outdated; the spaces have the current schemas.
    pub(super) catalogue: Arc<Catalogue>,
}

impl Engines {
    /// Resolves a key.
    #[inline]
    pub fn resolve<'a, 'k>(&'a self, key: &'k [u8]) -> Result<KeyRef<'a>, KeyError<'k>>
    where
        'a: 'k,
    {
        for (pattern, kind, index) in &self.patterns {
            let (id, field) = match pattern.read(key) {
                KeyMatch::No => continue,
                KeyMatch::IdTooBig => return Err(KeyError::IdTooBig(key)),
                KeyMatch::IdPadded => return Err(KeyError::IdPadded(key)),
                KeyMatch::Yes(id, field) => (id, field),
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

    /// Resolves a key for a command. With `about_pairs` only key patterns of pairs match, as BFSET
    /// and similar commands require.
    #[inline]
    pub fn resolve_for<'a>(&'a self, about_pairs: bool, key: &[u8]) -> Option<KeyRef<'a>> {
        if about_pairs {
            return self.pair_of(key).map(|(space, id)| KeyRef::Pair { space, id });
        }
        self.resolve(key).ok()
    }

    /// Resolves a key to pairs, even if a row has the same key. Counters and pairs without members
    /// may share keys.
    pub fn pair_of(&self, key: &[u8]) -> Option<(&ExistenceSpace, u64)> {
        self.patterns.iter().find_map(|(pattern, kind, index)| match (kind, pattern.read(key)) {
            (Kind::Pair, KeyMatch::Yes(id, _)) => Some((&self.existences[*index], id)),
            _ => None,
        })
    }

    /// Returns the row for a key of a row or a cell, even if the field does not exist.
    #[inline]
    pub fn row_of(&self, key: &[u8]) -> Option<(&CounterSpace, u64)> {
        self.patterns.iter().find_map(|(pattern, kind, index)| match (pattern.read(key), kind) {
            (KeyMatch::Yes(id, _), Kind::Row | Kind::Cell) => Some((&self.counters[*index], id)),
            _ => None,
        })
    }

    /// Key patterns of a counter space for one kind.
    pub fn counter_patterns(
        &self,
        space: &CounterSpace,
        wanted: Kind,
    ) -> impl Iterator<Item = &Pattern> {
        debug_assert_ne!(wanted, Kind::Pair, "pair patterns have another index");
        self.patterns_of(space.number)
            .filter(move |(_, kind, _)| *kind == wanted)
            .map(|(pattern, ..)| pattern)
    }

    /// Key patterns of a space as text, rows before cells.
    pub fn key_patterns(&self, number: u32) -> Vec<String> {
        self.patterns_of(number).map(|(pattern, ..)| pattern.to_string()).collect()
    }

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

    /// Adds all names under which clients may cache a row or pairs to `names`: the id (for
    /// FEED.GET), and the keys of the row and its cells, or of the pairs.
    pub fn names_of(&self, (space, id): WatchedId, names: &mut BTreeSet<Vec<u8>>) {
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

    /// Prefixes of all names that [`Engines::names_of`] adds for a space.
    pub fn name_starts(&self, space: u32) -> Vec<Vec<u8>> {
        let ids = (b'0'..=b'9').map(|digit| vec![digit]);
        ids.chain(self.patterns_of(space).map(|(pattern, ..)| pattern.start().to_vec())).collect()
    }

    /// Returns the counter space with this name.
    #[inline]
    pub fn counter(&self, name: &[u8]) -> Option<&CounterSpace> {
        self.counters.iter().find(|s| s.name().as_bytes() == name)
    }

    /// Returns the existence space with this name.
    #[inline]
    pub fn existence(&self, name: &[u8]) -> Option<&ExistenceSpace> {
        self.existences.iter().find(|s| s.name().as_bytes() == name)
    }

    /// Returns the view with this name.
    #[inline]
    pub fn view(&self, name: &[u8]) -> Option<&View> {
        self.views.iter().find(|v| v.name.as_bytes() == name)
    }

    /// Returns the action with this name.
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

    /// Counter that an action changes, as "space.field".
    pub fn first_counter_name(&self, action: &Action) -> String {
        self.counter_name(action.counter, action.field)
    }

    /// Names of the further counters that an action changes: counters of the member if `of_member`
    /// is true, otherwise counters of the id.
    pub fn further_counter_names(&self, action: &Action, of_member: bool) -> Vec<String> {
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

    /// Number of rows of all counter spaces, in memory and on disk.
    pub fn all_rows(&self) -> u64 {
        self.counters.iter().map(CounterSpace::all_rows).sum()
    }

    /// All existence spaces.
    #[inline]
    pub fn existences(&self) -> &[ExistenceSpace] {
        &self.existences
    }

    /// Returns the counter space with this number.
    #[inline]
    pub fn counter_by_number(&self, number: u32) -> Option<&CounterSpace> {
        self.counters.iter().find(|s| s.number == number)
    }

    /// Returns the existence space with this number.
    #[inline]
    pub fn existence_by_number(&self, number: u32) -> Option<&ExistenceSpace> {
        self.existences.iter().find(|s| s.number == number)
    }

    /// Replaces an existence space with a space that has the contents of a snapshot and of the cold
    /// files.
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

    /// Returns the catalogue with the current schemas. A running server uses
    /// [`Current::catalogue`](crate::engines::Current::catalogue).
    pub fn catalogue(&self) -> Catalogue {
        let mut catalogue = Catalogue::clone(&self.catalogue);
        for (entry, space) in catalogue.counter.iter_mut().zip(&self.counters) {
            entry.made.fields = space.schema().to_string();
        }
        catalogue
    }

    /// Version of the catalogue, which each change increments.
    #[inline]
    pub fn version(&self) -> u64 {
        self.catalogue.version
    }

    /// Whether a space with this number exists.
    pub fn has(&self, number: u32) -> bool {
        self.counter_by_number(number).is_some() || self.existence_by_number(number).is_some()
    }

    /// Whether a space with this number existed and was dropped.
    pub fn is_dropped(&self, number: u32) -> bool {
        (1..=self.catalogue.last).contains(&number) && !self.has(number)
    }

    /// Progress of commits.
    #[inline]
    pub fn durability(&self) -> &Durability {
        &self.durability
    }

    /// Opens the cold files listed in the manifest, for spaces that have not opened theirs.
    pub(crate) fn attach_cold(&self, store: &store::Store) -> store::Result<()> {
        for space in &self.counters {
            space.cold.attach(&space.space, space.number, store)?;
        }
        self.ledgers().try_for_each(|ledger| ledger.attach(store))
    }

    /// Whether any row or flag may be on disk.
    #[inline]
    pub fn has_cold(&self) -> bool {
        self.cold.any()
    }

    /// All ledgers.
    pub fn ledgers(&self) -> impl Iterator<Item = &Arc<PairLedger>> {
        self.existences.iter().filter_map(|space| space.ledger.as_ref())
    }

    /// Whether writers must wait because a space is nearly full and spills. Every pipelined write
    /// performs this check, so it only costs one or two loads if nothing spills.
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

    /// Counter spaces of a view.
    pub fn sources(&self, view: &View) -> impl Iterator<Item = &CounterSpace> {
        view.sources.iter().map(|&space| &self.counters[space])
    }

    /// Existence spaces of a view's flags.
    pub fn flags(&self, view: &View) -> impl Iterator<Item = &ExistenceSpace> {
        view.flags.iter().map(|&space| &self.existences[space])
    }

    /// Existence space of an action.
    #[inline]
    pub fn flag_of(&self, action: &Action) -> &ExistenceSpace {
        &self.existences[action.flag]
    }

    /// Counter space of an action.
    #[inline]
    pub fn counter_of(&self, action: &Action) -> &CounterSpace {
        &self.counters[action.counter]
    }

    /// Memory use of all tables in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let counters: u64 = self.counters.iter().map(|s| s.memory_bytes()).sum();
        counters
            + self.tokens.stats().bytes
            + self.groups.stats().bytes as u64
            + self.ledgers().map(|l| l.ledger().memory_bytes() as u64).sum::<u64>()
            + self.existences.iter().map(|s| s.memory_bytes()).sum::<u64>()
    }

    /// Performs deferred work of the spaces. Returns true if there may be more.
    pub fn maintain(&self) -> bool {
        let mut worked = false;
        for space in &self.counters {
            worked |= space.wants_maintenance() && space.maintain();
        }
        for space in &self.existences {
            if space.has_unlogged_changes() || space.wants_maintenance() {
                worked |= self.move_on(space) | space.tidy();
            }
        }
        worked
    }

    /// Probes one existence space with `count` canaries to measure its false-positive rate. Selects
    /// the first space that needs probes, starting at index `turn`. The cost does not depend on the
    /// number of spaces.
    pub fn probe(&self, turn: usize, count: u64) {
        let number = self.existences.len();
        let _ =
            (0..number).any(|next| self.existences[(turn % number + next) % number].probe(count));
    }

    /// Whether writers wait for [`Engines::maintain`].
    pub fn has_waiters(&self) -> bool {
        self.counters.iter().any(|space| space.has_waiters())
    }

    /// Calls [`counter::Space::settle`] for idle counter tables.
    pub fn settle(&self) {
        self.counters.iter().for_each(|space| space.settle());
    }

    /// Measures the rates of new pairs. Call this function from one thread, about once per second.
    pub fn measure(&self, elapsed: Duration) {
        self.existences.iter().for_each(|space| space.measure(elapsed));
    }
}

pub(crate) struct MemoryBudget {
    pub(super) budget: AtomicU64,
    /// Whether limits are lifted; see [`Engines::lift_limits`].
    pub(super) is_lifted: AtomicBool,
}

impl MemoryBudget {
    pub(crate) fn new(budget: u64) -> MemoryBudget {
        MemoryBudget { budget: AtomicU64::new(budget), is_lifted: AtomicBool::new(false) }
    }
}

/// Listener for changes, used by client tracking. The server calls the listener only while some
/// client uses tracking.
pub trait ChangeListener: Send + Sync {
    /// Called after a change, while the id's stripe is still locked.
    fn changed(&self, engines: &Engines, place: WatchedId);
    /// Called before the changes of a log record.
    fn begin(&self);
    /// Called after the changes of a log record.
    fn end(&self, engines: &Engines);
    /// Called if any key may have changed, for example after a schema change.
    fn all_changed(&self);
}

/// A [`ChangeListener`] and its number of clients. Without clients, a writer only performs one
/// load.
#[derive(Clone, Default)]
pub struct Listener {
    clients: Arc<AtomicUsize>,
    listener: Option<Arc<dyn ChangeListener>>,
}

impl Listener {
    /// Creates a listener; `clients` is the number of its current clients.
    pub fn new(clients: Arc<AtomicUsize>, listener: Arc<dyn ChangeListener>) -> Listener {
        Listener { clients, listener: Some(listener) }
    }

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

    /// Probing many idle spaces must not take more CPU time than probing one space.
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
        assert_eq!(asked(), [0, 0, 0], "all spaces are empty");
        // The second space is empty, so it cannot have false positives.
        for space in [&engines.existences()[0], &engines.existences()[2]] {
            (0..1000).for_each(|id| _ = space.add(id, &phantom::Member::Number(1)).unwrap());
        }
        (0..6).for_each(|turn| engines.probe(turn, 10));
        assert_eq!(asked(), [20, 0, 40], "one space per turn; an empty space is skipped");
        engines.probe(usize::MAX, 10);
        assert_eq!(asked().iter().sum::<u64>(), 70);
    }
}
