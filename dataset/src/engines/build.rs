//! How the engines are made: from the configuration, and the catalogue that says what the data
//! folder has of it.

use crate::catalogue;
use crate::catalogue::Catalogue;
use crate::cold::Cold;
use crate::cold::cold_filters::ColdPairs;
use crate::cold::files::ColdSpace;
use crate::commit::Durability;
use crate::engines::page::{Column, Flag, Gate};
use crate::engines::zero_proof::tie_word;
use crate::engines::{Action, CounterSpace, Engines, ExistenceSpace, Loose, Tie, View};
use crate::key_patterns::{Kind, Pattern, PatternError};
use crate::options::{self, Options, defaults};
use counter::Schema;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

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
    #[error(
        "counter space '{space}': a field must not be called '{field}': CNT.INCRBY has an option \
         of that name"
    )]
    Reserved {
        /// The space.
        space: String,
        /// The field.
        field: String,
    },
}

/// Options of CNT.INCRBY, which a field must not be called.
const RESERVED: [&str; 5] = ["min", "max", "sat", "fail", "token"];

/// Tables that the limit of a space that spills has room for, at least: the newest one, which must
/// not spill, one that does, and as much again for what was changed of spilled rows.
const TABLES_WITHIN_LIMIT: u64 = 4;
/// Bits of a row beside its fields: its id, its share of the empty slots, and of dictionaries.
const ROW_BITS: u64 = 32;
/// Bits of each field for values that outgrow it.
const FIELD_SPARE_BITS: u64 = 2;

impl Engines {
    /// Makes the spaces of the configuration, empty, with what the catalogue says of each: it must
    /// have all of them.
    pub fn new(
        options: &Options,
        catalogue: &Catalogue,
        durability: Arc<Durability>,
    ) -> Result<Engines, BuildError> {
        let mut engines = Engines::empty(options, durability);
        engines.extend(options, catalogue)?;
        engines.connect(options)?;
        engines.retie(|_| true);
        Ok(engines)
    }

    /// No spaces yet.
    pub fn empty(options: &Options, durability: Arc<Durability>) -> Engines {
        let spill = &options.spill;
        Engines {
            cold: Cold::new(spill.cache_bytes, spill.read_threads, spill.io_method),
            counters: Vec::new(),
            existences: Vec::new(),
            views: Vec::new(),
            actions: Vec::new(),
            ties: Vec::new(),
            patterns: Vec::new(),
            durability,
            spills: false,
            watches: Default::default(),
            tracking: Default::default(),
            merging: Default::default(),
            catalogue: Catalogue::default(),
        }
    }

    /// Makes true what a catalogue says: makes the spaces that are not there, empty, and alters the
    /// schemas of those that are. A log tells of the spaces in the order in which they came to be;
    /// each has the seed under which its records were written.
    pub fn extend(&mut self, options: &Options, catalogue: &Catalogue) -> Result<(), BuildError> {
        for known in &catalogue.counter {
            if let Some(space) = self.counter_by_number(known.number) {
                let adopted = Schema::parse(&known.fields).and_then(|schema| space.adopt(&schema));
                adopted
                    .map_err(|source| BuildError::Counter { name: known.name.clone(), source })?;
                continue;
            }
            let made = options.counter.iter().find(|made| made.name == known.name);
            let made = made.ok_or_else(|| unconfigured(&known.name))?;
            let index = self.counters.len();
            for (kind, text) in [(Kind::Row, &made.rows), (Kind::Cell, &made.cells)] {
                for pattern in Pattern::parse_all(kind, text)? {
                    // Counters go before pairs that have the same keys.
                    let pairs = self.patterns.iter().position(|(_, kind, _)| *kind == Kind::Pair);
                    let at = pairs.unwrap_or(self.patterns.len());
                    self.patterns.insert(at, (pattern.padded(made.padded_ids), kind, index));
                }
            }
            let space = counter_space(made, &known.fields)?;
            let cold = ColdSpace::new(self.cold.clone());
            let (number, name, spills) = (known.number, made.name.clone(), made.spill);
            self.spills |= spills;
            self.counters.push(CounterSpace {
                number,
                name,
                space: Arc::new(space),
                spills,
                cold,
                tied: vec![],
                text_rows: made.text_rows,
                expire: made.expire,
            });
            self.catalogue.counter.push(known.clone());
        }
        for known in &catalogue.existence {
            if let Some(space) = self.existence_by_number(known.number) {
                space.keep_tie(known.tie);
                continue;
            }
            let made = options.existence.iter().find(|made| made.name == known.name);
            let made = made.ok_or_else(|| unconfigured(&known.name))?;
            let space = existence_space(made, known)?;
            for pattern in Pattern::parse_all(Kind::Pair, &made.pairs)? {
                let pattern = pattern.padded(made.padded_ids);
                self.patterns.push((pattern, Kind::Pair, self.existences.len()));
            }
            let space = ExistenceSpace {
                number: known.number,
                name: made.name.clone(),
                has_members: made.members,
                space: Arc::new(space),
                expire: made.expire,
                kept_tie: Arc::new(AtomicU64::new(tie_word(known.tie))),
                loose: Arc::new(Loose::new(made.max_loose)),
                cold: Arc::new(ColdPairs::new(self.cold.clone())),
                pace: Arc::default(),
            };
            space.loosen_arrivals();
            self.existences.push(space);
            self.catalogue.existence.push(known.clone());
        }
        Ok(())
    }

    /// Makes the views and actions: when all spaces are there, with their latest schemas.
    pub fn connect(&mut self, options: &Options) -> Result<(), BuildError> {
        let (counters, existences) = (&self.counters, &self.existences);
        self.actions = options
            .action
            .iter()
            .filter(|a| {
                !defaults::is_action(a)
                    || has_counter(counters, &a.counter) && has_flag(existences, &a.flag)
            })
            .map(|a| action(a, counters, existences))
            .collect::<Result<_, _>>()?;
        let only_tie = |flag: usize| {
            let mut all =
                self.actions.iter().filter(|a| a.flag == flag).map(|a| (a.counter, a.field));
            let first = all.next()?;
            all.all(|tie| tie == first).then_some(first)
        };
        let ties: Vec<Option<(usize, usize)>> = (0..existences.len()).map(only_tie).collect();
        self.views = options
            .view
            .iter()
            .filter_map(|v| match defaults::is_view(&options.counter, &options.existence, v) {
                true => what_is_there(v, counters, existences),
                false => Some(v.clone()),
            })
            .map(|v| view(&v, counters, existences, &ties))
            .collect::<Result<_, _>>()?;
        let tie = |&(counter, field): &(usize, usize)| -> Tie {
            (counters[counter].number, field as u32)
        };
        self.ties = ties.iter().map(|t| t.as_ref().map(tie)).collect();
        for (index, space) in self.counters.iter_mut().enumerate() {
            let here = |(flag, tie): (usize, &Option<(usize, usize)>)| {
                tie.filter(|t| t.0 == index).map(|t| (t.1, flag))
            };
            space.tied = ties.iter().enumerate().filter_map(here).collect();
        }
        Ok(())
    }

    /// While data are read back nothing is refused for want of memory: what was accepted once is
    /// accepted again.
    pub fn lift_limits(&self) {
        self.counters.iter().for_each(|s| s.set_memory_limit_bytes(u64::MAX));
    }

    /// From now on the configured limits hold.
    pub fn set_limits(&self, options: &Options) {
        for space in &self.counters {
            if let Some(made) = options.counter.iter().find(|made| made.name == space.name) {
                space.set_memory_limit_bytes(made.memory_limit_bytes);
            }
        }
    }
}

fn unconfigured(name: &str) -> BuildError {
    BuildError::Missing {
        what: "space",
        name: name.to_owned(),
        missing: "such space in the configuration".to_owned(),
    }
}

fn existence_space(
    made: &options::Existence,
    known: &catalogue::Existence,
) -> Result<phantom::Space, BuildError> {
    phantom::Space::new(existence_options(made, known))
        .map_err(|source| BuildError::Existence { name: made.name.clone(), source })
}

/// What an existence space is made of: what the catalogue has of it is data, the rest is
/// configuration.
pub fn existence_options(
    made: &options::Existence,
    known: &catalogue::Existence,
) -> phantom::Options {
    phantom::Options {
        false_positive_rate: known.false_positive_rate,
        pairs_per_table: made.pairs_per_table,
        max_tables: made.max_tables,
        spill: made.spill,
        max_revoked: made.max_revoked,
        max_aside: made.max_aside,
        max_ahead: (made.max_ahead > 0).then_some(made.max_ahead),
        seed: known.seed,
        first_id: known.first_id,
        memory_limit_bytes: (made.memory_limit_bytes > 0).then_some(made.memory_limit_bytes),
    }
}

pub(crate) fn is_reserved(field: &str) -> bool {
    RESERVED.contains(&field.to_ascii_lowercase().as_str())
}

/// What spills does so table by table, of those that are full: the limit must have room for some,
/// or nothing ever could.
fn rows_per_table(made: &options::Counter, schema: &counter::Schema) -> u64 {
    let bits: u64 =
        schema.living().map(|(_, field)| u64::from(field.width) + FIELD_SPARE_BITS).sum();
    let room = made.memory_limit_bytes / TABLES_WITHIN_LIMIT * 8 / (bits + ROW_BITS);
    if made.spill && room < made.rows_per_table {
        tracing::warn!(
            "counter space '{}': tables are made for {room} rows instead of rows_per_table = {}, \
             of which memory_limit_bytes = {} has no room for {TABLES_WITHIN_LIMIT}; raise \
             memory_limit_bytes, or set fewer rows_per_table",
            made.name,
            made.rows_per_table,
            made.memory_limit_bytes
        );
        return room.max(1);
    }
    made.rows_per_table
}

fn counter_space(made: &options::Counter, fields: &str) -> Result<counter::Space, BuildError> {
    let source = |source| BuildError::Counter { name: made.name.clone(), source };
    let schema = counter::Schema::parse(fields).map_err(source)?;
    if let Some((_, field)) = schema.living().find(|(_, field)| is_reserved(&field.name)) {
        return Err(BuildError::Reserved { space: made.name.clone(), field: field.name.clone() });
    }
    counter::Space::new(counter::Options {
        rows_per_table: rows_per_table(made, &schema),
        memory_limit_bytes: made.memory_limit_bytes,
        max_ahead: (made.max_ahead > 0).then_some(made.max_ahead),
        seed: fastrand::u64(..),
        ..counter::Options::new(schema)
    })
    .map_err(source)
}

/// Whether a space has this counter ("space.field").
fn has_counter(counters: &[CounterSpace], name: &str) -> bool {
    let of = |(space, field): (&str, &str)| {
        let space = counters.iter().find(|s| s.name == space)?;
        space.schema().index_of(field.as_bytes())
    };
    name.split_once('.').and_then(of).is_some()
}

/// Whether there is an existence space of this name whose pairs have members.
fn has_flag(existences: &[ExistenceSpace], name: &str) -> bool {
    existences.iter().any(|s| s.name == name && s.has_members)
}

/// A default view without what the spaces lack: an existing data folder's schema, which ALTER may
/// have changed, need not have every field that the default view names.
fn what_is_there(
    made: &options::View,
    counters: &[CounterSpace],
    existences: &[ExistenceSpace],
) -> Option<options::View> {
    let mut kept = made.clone();
    kept.counters.retain(|name| has_counter(counters, name));
    kept.flags.retain(|name| has_flag(existences, name));
    (!kept.counters.is_empty()).then_some(kept)
}

fn view(
    made: &options::View,
    counters: &[CounterSpace],
    existences: &[ExistenceSpace],
    ties: &[Option<(usize, usize)>],
) -> Result<View, BuildError> {
    let missing =
        |missing: String| BuildError::Missing { what: "view", name: made.name.clone(), missing };
    let mut built =
        View { name: made.name.clone(), sources: vec![], columns: vec![], flags: vec![] };
    for text in &made.counters {
        let (name, field) =
            text.split_once('.').map_or((text.as_str(), None), |(name, field)| (name, Some(field)));
        let space = counters
            .iter()
            .position(|s| s.name == name)
            .ok_or_else(|| missing(format!("counter space '{name}'")))?;
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
        let space = space.ok_or_else(|| missing(format!("existence space '{name}'")))?;
        // Only a counter that the page reads anyway is asked about the flag.
        let gate = ties[space].and_then(|(counter, field)| {
            let source = built.sources.iter().position(|&source| source == counter)?;
            Some(Gate { tie: (counters[counter].number, field as u32), source, field })
        });
        built.flags.push(Flag { space, gate });
    }
    Ok(built)
}

fn action(
    made: &options::Action,
    counters: &[CounterSpace],
    existences: &[ExistenceSpace],
) -> Result<Action, BuildError> {
    let missing =
        |missing: String| BuildError::Missing { what: "action", name: made.name.clone(), missing };
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
