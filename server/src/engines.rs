//! The engines of this server: its spaces, views and actions, which keys name what, and the one path by which data change.
//!
//! **Writing.** Every change of data, whichever command asks for it, goes through a method of [`Engines`] in the second half of
//! this file, and nowhere else: it enters the id's stripe of the committer, changes, and marks what it changed, so that the log
//! thread will read and write it. A stripe is held through the whole change, so writers of one id never mix, and no commit
//! parts a flag from its counter (`store/src/commit.rs`).

use crate::catalogue::{self, Catalogue};
use crate::config::{self, Config};
use crate::durability::{Durability, marked};
use crate::keys::{Kind, Match, Pattern, PatternError};
use crate::records::Mark;
use counter::{Alteration, Bounds, Change as Delta, Schema};
use phantom::{Answer, Change, Member};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use store::Turn;

/// Why the engines could not be made from the configuration.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A counter space's options were refused.
    #[error("counter space '{name}': {source}")]
    Counter {
        /// The space.
        name: String,
        /// What the engine said.
        source: counter::Error,
    },
    /// An existence space's options were refused.
    #[error("existence space '{name}': {source}")]
    Existence {
        /// The space.
        name: String,
        /// What the engine said.
        source: phantom::Error,
    },
    /// A key pattern was refused.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A view or an action names something that does not exist.
    #[error("{what} '{name}': there is no {missing}")]
    Missing {
        /// "view" or "action".
        what: &'static str,
        /// Its name.
        name: String,
        /// What it asks for.
        missing: String,
    },
    /// A field's name is also the name of an option.
    #[error("counter space '{space}': a field must not be called '{field}': CNT.INCRBY has an option of that name")]
    Reserved {
        /// The space.
        space: String,
        /// The field.
        field: String,
    },
}

/// A counter space with its name.
pub struct CounterSpace {
    number: u32,
    name: String,
    space: counter::Space,
}

impl CounterSpace {
    /// Its number in the catalogue: what records call it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Deref for CounterSpace {
    type Target = counter::Space;

    fn deref(&self) -> &counter::Space {
        &self.space
    }
}

/// An existence space with its name.
pub struct ExistenceSpace {
    number: u32,
    name: String,
    space: phantom::Space,
    /// [`phantom::Space::pairs_until_recycled`] when the rate was last measured.
    until: AtomicU64,
    /// The rate, as the bits of an f64.
    rate: AtomicU64,
}

impl ExistenceSpace {
    /// Its number in the catalogue: what records call it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl ExistenceSpace {
    /// New pairs per second in the newest table: the mean of about the last minute.
    pub fn pairs_per_s(&self) -> f64 {
        f64::from_bits(self.rate.load(Relaxed))
    }

    /// At the present rate the oldest table is recycled after so many seconds; `None` if nothing comes.
    pub fn recycled_in_s(&self) -> Option<f64> {
        let rate = self.pairs_per_s();
        (rate > 1e-6).then(|| self.space.pairs_until_recycled() as f64 / rate)
    }

    /// To be called now and then, by one thread.
    fn measure(&self, elapsed: Duration) {
        let until = self.space.pairs_until_recycled();
        // After a roll there is room again, and this once nothing is learned.
        let Some(come) = self.until.swap(until, Relaxed).checked_sub(until) else { return };
        let now = come as f64 / elapsed.as_secs_f64().max(1e-3);
        let before = self.pairs_per_s();
        let weight = if before == 0.0 { 1.0 } else { 1.0 - (-elapsed.as_secs_f64() / RATE_OVER_S).exp() };
        self.rate.store((before + (now - before) * weight).to_bits(), Relaxed);
    }
}

impl Deref for ExistenceSpace {
    type Target = phantom::Space;

    fn deref(&self) -> &phantom::Space {
        &self.space
    }
}

/// A column of a view; the first number is an index into [`View::sources`].
enum Column {
    /// One counter, by its position.
    Field(usize, usize),
    /// All that the space has at the moment.
    All(usize),
}

/// What FEED.GET answers for each id: counters, then flags.
pub struct View {
    name: String,
    /// Counter spaces, each once.
    sources: Vec<usize>,
    columns: Vec<Column>,
    /// Existence spaces.
    flags: Vec<usize>,
}

impl View {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Flags per id.
    pub fn flags(&self) -> usize {
        self.flags.len()
    }
}

/// A flag and a counter that move together.
pub struct Action {
    name: String,
    flag: usize,
    counter: usize,
    field: usize,
}

impl Action {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A page as it was read: for `ids.len()` ids the columns of a view. Its memory is kept from page to page.
#[derive(Default)]
pub struct Page {
    ids: usize,
    /// Index into `sources`, position of the field: the view's columns under the schemas by which the rows were read.
    columns: Vec<(usize, usize)>,
    /// Columns of those sources of which the view wants all.
    all: Vec<(usize, usize)>,
    /// Rows of the first source, then of the second, ...
    rows: Vec<i64>,
    found: Vec<bool>,
    /// Per source: where its rows begin, and values per row.
    sources: Vec<(usize, usize)>,
    /// Answers for the first flag, then for the second, ...
    answers: Vec<Answer>,
}

impl Page {
    /// Counters per id.
    #[inline]
    pub fn counters(&self) -> usize {
        self.columns.len()
    }

    /// Counter `column` of the id at position `index`.
    #[inline]
    pub fn counter(&self, index: usize, column: usize) -> i64 {
        let (source, position) = self.columns[column];
        let (start, width) = self.sources[source];
        self.rows[start + index * width + position]
    }

    /// Flag `flag` of the id at position `index`.
    #[inline]
    pub fn flag(&self, index: usize, flag: usize) -> Answer {
        self.answers[flag * self.ids + index]
    }
}

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

/// Why a key names nothing.
#[derive(Debug, PartialEq, Eq)]
pub enum KeyError<'a> {
    /// It fits no pattern.
    NoPattern(&'a [u8]),
    /// It fits one, but for an id of more than 64 bits.
    IdTooBig(&'a [u8]),
    /// The schema has no such field.
    NoField {
        /// The space's name.
        space: &'a str,
        /// The field that it lacks.
        field: &'a [u8],
    },
}

/// Why a write was refused. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// By the counter engine.
    #[error(transparent)]
    Counter(#[from] counter::Error),
    /// By the existence engine.
    #[error(transparent)]
    Phantom(#[from] phantom::Error),
}

/// Why a schema was not changed.
#[derive(Debug, thiserror::Error)]
pub enum AlterError {
    /// By the counter engine: no such field, too many, and so on.
    #[error(transparent)]
    Counter(#[from] counter::Error),
    /// CNT.INCRBY has an option of that name.
    #[error("a field must not be called '{0}': CNT.INCRBY has an option of that name")]
    Reserved(String),
    /// A view or an action needs the field; it would miss it now, and at the next start.
    #[error("the {what} '{name}' of the configuration names the field '{field}'")]
    InUse {
        /// "view" or "action".
        what: &'static str,
        /// Its name.
        name: String,
        /// The field.
        field: String,
    },
}

/// The spaces, views and actions of a server. See the top of the file.
pub struct Engines {
    counters: Vec<CounterSpace>,
    existences: Vec<ExistenceSpace>,
    views: Vec<View>,
    actions: Vec<Action>,
    /// Patterns with what they name and the index of the space. No two match one key.
    patterns: Vec<(Pattern, Kind, usize)>,
    durability: Arc<Durability>,
    /// But for the schemas, which the spaces themselves know.
    catalogue: Catalogue,
}

/// Over about so many seconds the rate of new pairs is averaged.
const RATE_OVER_S: f64 = 60.0;
/// Options of CNT.INCRBY, which a field must not be called.
const RESERVED: [&str; 5] = ["min", "max", "sat", "fail", "token"];

impl Engines {
    /// Makes the spaces of the configuration, empty, with what the catalogue says of each: it must have all of them.
    pub fn new(config: &Config, catalogue: &Catalogue, durability: Arc<Durability>) -> Result<Engines, BuildError> {
        let mut engines = Engines::empty(durability);
        engines.extend(config, catalogue)?;
        engines.connect(config)?;
        Ok(engines)
    }

    /// No spaces yet.
    pub(crate) fn empty(durability: Arc<Durability>) -> Engines {
        Engines {
            counters: Vec::new(),
            existences: Vec::new(),
            views: Vec::new(),
            actions: Vec::new(),
            patterns: Vec::new(),
            durability,
            catalogue: Catalogue::default(),
        }
    }

    /// Makes true what a catalogue says: makes the spaces that are not there, empty, and alters the schemas of those that are. A log tells
    /// of the spaces in the order in which they came to be; each has the seed under which its records were written.
    pub(crate) fn extend(&mut self, config: &Config, catalogue: &Catalogue) -> Result<(), BuildError> {
        for known in &catalogue.counter {
            if let Some(space) = self.counter_by_number(known.number) {
                let adopted = Schema::parse(&known.fields).and_then(|schema| space.adopt(&schema));
                adopted.map_err(|source| BuildError::Counter { name: known.name.clone(), source })?;
                continue;
            }
            let made = config.counter.iter().find(|made| made.name == known.name);
            let made = made.ok_or_else(|| unconfigured(&known.name))?;
            let index = self.counters.len();
            for (kind, text) in [(Kind::Row, &made.rows), (Kind::Cell, &made.cells)] {
                if !text.is_empty() {
                    self.patterns.push((Pattern::parse(kind, text)?, kind, index));
                }
            }
            let space = counter_space(made, &known.fields)?;
            self.counters.push(CounterSpace { number: known.number, name: made.name.clone(), space });
            self.catalogue.counter.push(known.clone());
        }
        for known in &catalogue.existence {
            if self.existence_by_number(known.number).is_some() {
                continue;
            }
            let made = config.existence.iter().find(|made| made.name == known.name);
            let made = made.ok_or_else(|| unconfigured(&known.name))?;
            let space = existence_space(made, known)?;
            if !made.pairs.is_empty() {
                self.patterns.push((Pattern::parse(Kind::Pair, &made.pairs)?, Kind::Pair, self.existences.len()));
            }
            self.existences.push(ExistenceSpace {
                number: known.number,
                name: made.name.clone(),
                space,
                until: AtomicU64::new(0),
                rate: AtomicU64::new(0),
            });
            self.catalogue.existence.push(known.clone());
        }
        Ok(())
    }

    /// Makes the views and actions: when all spaces are there, with their latest schemas.
    pub(crate) fn connect(&mut self, config: &Config) -> Result<(), BuildError> {
        let (counters, existences) = (&self.counters, &self.existences);
        self.views = config.view.iter().map(|v| view(v, counters, existences)).collect::<Result<_, _>>()?;
        self.actions = config.action.iter().map(|a| action(a, counters, existences)).collect::<Result<_, _>>()?;
        Ok(())
    }

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
                Match::Yes(id, field) => (id, field),
            };
            return Ok(match kind {
                Kind::Row => KeyRef::Row { space: &self.counters[*index], id },
                Kind::Pair => KeyRef::Pair { space: &self.existences[*index], id },
                Kind::Cell => {
                    let space = &self.counters[*index];
                    match space.schema().index_of(field) {
                        Some(field) => KeyRef::Cell { space, id, field },
                        None => return Err(KeyError::NoField { space: &space.name, field }),
                    }
                }
            });
        }
        Err(KeyError::NoPattern(key))
    }

    /// The counter space of that name.
    #[inline]
    pub fn counter(&self, name: &[u8]) -> Option<&CounterSpace> {
        self.counters.iter().find(|s| s.name.as_bytes() == name)
    }

    /// The existence space of that name.
    #[inline]
    pub fn existence(&self, name: &[u8]) -> Option<&ExistenceSpace> {
        self.existences.iter().find(|s| s.name.as_bytes() == name)
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

    /// All counter spaces.
    pub fn counters(&self) -> &[CounterSpace] {
        &self.counters
    }

    /// All existence spaces.
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

    /// While data are read back nothing is refused for want of memory: what was accepted once is accepted again.
    pub(crate) fn lift_limits(&self) {
        self.counters.iter().for_each(|s| s.set_memory_limit_bytes(u64::MAX));
    }

    /// From now on the configured limits hold.
    pub(crate) fn set_limits(&self, config: &Config) {
        for space in &self.counters {
            if let Some(made) = config.counter.iter().find(|made| made.name == space.name) {
                space.set_memory_limit_bytes(made.memory_limit_bytes);
            }
        }
    }

    /// Replaces an existence space by what a snapshot held of it.
    pub(crate) fn restore(&mut self, number: u32, space: phantom::Space) {
        if let Some(existence) = self.existences.iter_mut().find(|s| s.number == number) {
            existence.space = space;
        }
    }

    /// What the data folder is to know of the spaces, as they are now.
    pub fn catalogue(&self) -> Catalogue {
        let mut catalogue = self.catalogue.clone();
        for (entry, space) in catalogue.counter.iter_mut().zip(&self.counters) {
            entry.fields = space.schema().to_string();
        }
        catalogue
    }

    /// How far changes have come on their way to the disk.
    #[inline]
    pub fn durability(&self) -> &Durability {
        &self.durability
    }

    // --- reading ---

    /// Reads a page: one viewer, many ids. It allocates only if `page` has never been so large.
    pub fn feed_get(&self, view: &View, viewer: &Member<'_>, ids: &[u64], page: &mut Page) {
        page.ids = ids.len();
        page.rows.clear();
        page.found.clear();
        page.sources.clear();
        page.answers.clear();
        page.columns.clear();
        page.all.clear();
        for (source, &space) in view.sources.iter().enumerate() {
            let start = page.rows.len();
            let mut read = self.counters[space].read();
            read.get_batch(ids, &mut page.rows, &mut page.found);
            let schema = read.schema();
            page.sources.push((start, schema.width()));
            page.all.extend(schema.living().map(|(position, _)| (source, position)));
        }
        for column in &view.columns {
            match *column {
                Column::Field(source, position) => page.columns.push((source, position)),
                Column::All(source) => page.columns.extend(page.all.iter().filter(|(s, _)| *s == source)),
            }
        }
        for &flag in &view.flags {
            self.existences[flag].contains_batch(viewer, ids, &mut page.answers);
        }
    }

    /// Bytes of memory that all tables take.
    pub fn memory_bytes(&self) -> u64 {
        let counters: u64 = self.counters.iter().map(|s| s.memory_bytes()).sum();
        counters + self.existences.iter().map(|s| s.memory_bytes()).sum::<u64>()
    }

    /// Does some of the work that the spaces have put off. True if there was any: call again.
    pub fn maintain(&self) -> bool {
        let mut worked = false;
        for space in &self.counters {
            worked |= space.wants_maintenance() && space.maintain();
        }
        for space in &self.existences {
            worked |= space.wants_maintenance() && space.maintain();
        }
        worked
    }

    // --- writing: see the top of the file ---

    /// Enters the stripe of an id.
    #[inline]
    fn turn(&self, id: u64) -> Turn<'_, Mark> {
        // The upper half of a multiplication by 2^64 / golden ratio: neighbouring ids go to different stripes.
        self.durability.committer().enter(id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32)
    }

    /// Changes the schema of a counter space, at once: the engine has the rules. The log learns of it before the first row that needs it.
    pub fn alter(&self, space: &CounterSpace, change: &Alteration) -> Result<Arc<Schema>, AlterError> {
        match change {
            Alteration::Add { name, .. } if is_reserved(name) => return Err(AlterError::Reserved(name.clone())),
            Alteration::Drop { name } => {
                let (position, _) = space.field(name.as_bytes())?;
                let is_this = |index: usize| std::ptr::eq(&self.counters[index], space);
                let in_use = |what, by: &str| AlterError::InUse { what, name: by.to_owned(), field: name.clone() };
                if let Some(action) = self.actions.iter().find(|a| is_this(a.counter) && a.field == position) {
                    return Err(in_use("action", &action.name));
                }
                let names = |view: &View, column: &Column| matches!(*column, Column::Field(source, field) if is_this(view.sources[source]) && field == position);
                if let Some(view) = self.views.iter().find(|v| v.columns.iter().any(|c| names(v, c))) {
                    return Err(in_use("view", &view.name));
                }
            }
            _ => {}
        }
        let mut turn = self.turn(0);
        let schema = space.space.alter(change)?;
        turn.mark(Mark::Catalogue);
        Ok(schema)
    }

    /// Measures how fast pairs come. To be called about once a second, by one thread.
    pub(crate) fn measure(&self, elapsed: Duration) {
        self.existences.iter().for_each(|space| space.measure(elapsed));
    }

    /// Closes the newest table of an existence space, and logs that. False if it is empty.
    pub fn roll_pairs(&self, space: &ExistenceSpace) -> bool {
        let mut turn = self.turn(0);
        turn.mark(Mark::Catalogue);
        space.space.roll_now()
    }

    /// Adds a table that was exported elsewhere. It is not logged: a snapshot must follow.
    pub(crate) fn merge(&self, space: &ExistenceSpace, table: phantom::StoredTable) -> Result<(), phantom::MergeError> {
        let (low, _) = table.range();
        let merged = space.space.merge_table(table);
        // If it was refused half way the table may have changed, too.
        self.durability.parts.touch(space.number, low);
        merged
    }

    /// Adds to counters of one row; all or nothing. The new values of the changed fields are appended to `out`.
    #[inline]
    pub fn add(
        &self,
        space: &CounterSpace,
        id: u64,
        changes: &[Delta],
        bounds: &Bounds,
        out: &mut Vec<i64>,
    ) -> Result<(), WriteError> {
        let mut turn = self.turn(id);
        space.space.add(id, changes, bounds, out)?;
        turn.mark(Mark::Row { space: space.number, id });
        Ok(())
    }

    /// Sets counters of one row, which `values` names at most once each. Gives how many were set for the first time: all of them if
    /// there was no row, else none.
    #[inline]
    pub fn set(&self, space: &CounterSpace, id: u64, values: &[(usize, i64)]) -> Result<usize, WriteError> {
        let mut turn = self.turn(id);
        let created = space.space.set(id, values)?;
        turn.mark(Mark::Row { space: space.number, id });
        Ok(if created > 0 { values.len() } else { 0 })
    }

    /// Sets counters of a row that does not exist; false, and nothing is changed, if it does. Two callers never both succeed.
    pub fn set_new(&self, space: &CounterSpace, id: u64, values: &[(usize, i64)]) -> Result<bool, WriteError> {
        let mut turn = self.turn(id);
        if space.space.exists(id) {
            return Ok(false);
        }
        space.space.set(id, values)?;
        turn.mark(Mark::Row { space: space.number, id });
        Ok(true)
    }

    /// Makes one counter 0, if it is not. False if it was, or there is no row.
    pub fn clear(&self, space: &CounterSpace, id: u64, field: usize) -> Result<bool, WriteError> {
        let mut turn = self.turn(id);
        let mut row = vec![0; space.space.schema().width()];
        if !space.space.get(id, &mut row) || row.get(field).copied().unwrap_or(0) == 0 {
            return Ok(false);
        }
        space.space.set(id, &[(field, 0)])?;
        turn.mark(Mark::Row { space: space.number, id });
        Ok(true)
    }

    /// Deletes a row. False if there was none.
    #[inline]
    pub fn delete(&self, space: &CounterSpace, id: u64) -> bool {
        let mut turn = self.turn(id);
        let deleted = space.space.delete(id);
        if deleted {
            turn.mark(Mark::Row { space: space.number, id });
        }
        deleted
    }

    /// Sets a pair.
    #[inline]
    pub fn flag(&self, space: &ExistenceSpace, id: u64, member: &Member<'_>) -> Result<Change, WriteError> {
        let mut turn = self.turn(id);
        let change = space.space.add(id, member)?;
        mark_pair(&mut turn, space, id, member, change, true);
        Ok(change)
    }

    /// Unsets a pair.
    #[inline]
    pub fn unflag(&self, space: &ExistenceSpace, id: u64, member: &Member<'_>) -> Result<Change, WriteError> {
        let mut turn = self.turn(id);
        let change = space.space.remove(id, member)?;
        mark_pair(&mut turn, space, id, member, change, false);
        Ok(change)
    }

    /// Does an action: if the viewer's flag on `id` is not set, sets it and adds 1 to the counter, both or neither. Whoever
    /// repeats it, or does it at the same moment on another connection, finds it done.
    #[inline]
    pub fn act(
        &self,
        action: &Action,
        viewer: &Member<'_>,
        id: u64,
        scratch: &mut Vec<i64>,
    ) -> Result<Change, WriteError> {
        let unbounded = Bounds { min: None, max: None, saturate: false };
        self.move_both(action, viewer, id, 1, &unbounded, scratch)
    }

    /// Undoes an action: if the flag is set, unsets it and takes 1 from the counter, which does not go below 0 by that.
    #[inline]
    pub fn undo(
        &self,
        action: &Action,
        viewer: &Member<'_>,
        id: u64,
        scratch: &mut Vec<i64>,
    ) -> Result<Change, WriteError> {
        let floor = Bounds { min: Some(0), max: None, saturate: true };
        self.move_both(action, viewer, id, -1, &floor, scratch)
    }

    /// A flag and its counter, together.
    #[inline]
    fn move_both(
        &self,
        action: &Action,
        viewer: &Member<'_>,
        id: u64,
        delta: i64,
        bounds: &Bounds,
        scratch: &mut Vec<i64>,
    ) -> Result<Change, WriteError> {
        let (flags, counters) = (&self.existences[action.flag], &self.counters[action.counter]);
        let mut turn = self.turn(id);
        let count = || {
            scratch.clear();
            let change = [Delta { field: action.field, delta }];
            counters.space.add_paired(id, &change, bounds, scratch).map_err(WriteError::from)
        };
        let change = match delta > 0 {
            true => flags.space.add_with(id, viewer, count)?,
            false => flags.space.remove_with(id, viewer, count)?,
        };
        mark_pair(&mut turn, flags, id, viewer, change, delta > 0);
        if change == Change::Changed {
            turn.mark(Mark::Row { space: counters.number, id });
        }
        Ok(change)
    }
}

/// A pair that was to be set and seemed to be set is marked, too: it may only have seemed so, and a filter that is rebuilt from
/// the log need not have the same chance hits. Whoever was told that it is set must find it (promise 6).
#[inline]
fn mark_pair(
    turn: &mut Turn<'_, Mark>,
    space: &ExistenceSpace,
    id: u64,
    member: &Member<'_>,
    change: Change,
    to_set: bool,
) {
    if change == Change::Changed || (change == Change::Unchanged && to_set) {
        turn.mark(Mark::Pair { space: space.number, id, member: marked(space, id, member) });
    }
}

fn unconfigured(name: &str) -> BuildError {
    BuildError::Missing { what: "space", name: name.to_owned(), missing: "such space in the configuration".to_owned() }
}

fn existence_space(made: &config::Existence, known: &catalogue::Existence) -> Result<phantom::Space, BuildError> {
    phantom::Space::new(existence_options(made, known))
        .map_err(|source| BuildError::Existence { name: made.name.clone(), source })
}

/// What an existence space is made of: the seed and the rate are data, the rest is configuration.
pub fn existence_options(made: &config::Existence, known: &catalogue::Existence) -> phantom::Options {
    phantom::Options {
        false_positive_rate: known.false_positive_rate,
        pairs_per_table: made.pairs_per_table,
        max_tables: made.max_tables,
        max_revoked: made.max_revoked,
        max_aside: made.max_aside,
        max_ahead: (made.max_ahead > 0).then_some(made.max_ahead),
        seed: known.seed,
        memory_limit_bytes: (made.memory_limit_bytes > 0).then_some(made.memory_limit_bytes),
    }
}

fn is_reserved(field: &str) -> bool {
    RESERVED.contains(&field.to_ascii_lowercase().as_str())
}

fn counter_space(made: &config::Counter, fields: &str) -> Result<counter::Space, BuildError> {
    let source = |source| BuildError::Counter { name: made.name.clone(), source };
    let schema = counter::Schema::parse(fields).map_err(source)?;
    if let Some((_, field)) = schema.living().find(|(_, field)| is_reserved(&field.name)) {
        return Err(BuildError::Reserved { space: made.name.clone(), field: field.name.clone() });
    }
    counter::Space::new(counter::Options {
        rows_per_table: made.rows_per_table,
        memory_limit_bytes: made.memory_limit_bytes,
        max_ahead: (made.max_ahead > 0).then_some(made.max_ahead),
        seed: fastrand::u64(..),
        ..counter::Options::new(schema)
    })
    .map_err(source)
}

fn view(made: &config::View, counters: &[CounterSpace], existences: &[ExistenceSpace]) -> Result<View, BuildError> {
    let missing = |missing: String| BuildError::Missing { what: "view", name: made.name.clone(), missing };
    let mut built = View { name: made.name.clone(), sources: vec![], columns: vec![], flags: vec![] };
    for text in &made.counters {
        let (name, field) = text.split_once('.').map_or((text.as_str(), None), |(name, field)| (name, Some(field)));
        let space =
            counters.iter().position(|s| s.name == name).ok_or_else(|| missing(format!("counter space '{name}'")))?;
        let source = built.sources.iter().position(|&s| s == space).unwrap_or_else(|| {
            built.sources.push(space);
            built.sources.len() - 1
        });
        let schema = counters[space].schema();
        match field {
            None => built.columns.push(Column::All(source)),
            Some(field) => {
                let position = schema.index_of(field.as_bytes());
                let position = position.ok_or_else(|| missing(format!("counter '{text}'")))?;
                built.columns.push(Column::Field(source, position));
            }
        }
    }
    for name in &made.flags {
        let space = existences.iter().position(|s| s.name == *name);
        built.flags.push(space.ok_or_else(|| missing(format!("existence space '{name}'")))?);
    }
    Ok(built)
}

fn action(
    made: &config::Action,
    counters: &[CounterSpace],
    existences: &[ExistenceSpace],
) -> Result<Action, BuildError> {
    let missing = |missing: String| BuildError::Missing { what: "action", name: made.name.clone(), missing };
    let flag = existences
        .iter()
        .position(|s| s.name == made.flag)
        .ok_or_else(|| missing(format!("existence space '{}'", made.flag)))?;
    let found = made.counter.split_once('.').and_then(|(name, field)| {
        let counter = counters.iter().position(|s| s.name == name)?;
        Some((counter, counters[counter].schema().index_of(field.as_bytes())?))
    });
    let (counter, field) = found.ok_or_else(|| missing(format!("counter '{}'", made.counter)))?;
    Ok(Action { name: made.name.clone(), flag, counter, field })
}
