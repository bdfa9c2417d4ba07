//! Creates the engines from a catalogue.

use crate::catalogue::{Catalogue, CounterEntry, ExistenceEntry};
use crate::cold::Cold;
use crate::cold::cold_filters::ColdPairs;
use crate::cold::files::ColdSpace;
use crate::cold::ledger::PairLedger;
use crate::commit::Durability;
use crate::engines::action::{Action, FurtherCounter};
use crate::engines::error::BuildError;
use crate::engines::forget::related_spaces;
use crate::engines::registry::{Engines, MemoryBudget};
use crate::engines::spaces::{CounterSpace, ExistenceSpace, RelatedSpaces, is_reserved};
use crate::engines::view::{CachedShape, Column, View};
use crate::key_patterns::{Kind, Pattern, PatternError};
use crate::options::{self, LedgerMode, Options};
use crate::tokens::Tokens;
use counter::Schema;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Minimum number of tables within the memory limit of a spilling space. The newest table cannot be
/// spilled, one table is being spilled, and two tables hold changes to spilled rows.
const TABLES_WITHIN_LIMIT: u64 = 4;
/// Number of bits per row in addition to its fields: the id, and the share of empty slots and
/// dictionaries.
const ROW_BITS: u64 = 32;
/// Number of additional bits per field for values that outgrow its width.
const FIELD_SPARE_BITS: u64 = 2;

impl Engines {
    /// Creates empty spaces from a catalogue. Options that are not in the catalogue are taken from
    /// the configuration.
    pub fn new(
        options: &Options,
        catalogue: &Catalogue,
        durability: Arc<Durability>,
    ) -> Result<Engines, BuildError> {
        let mut engines = Engines::empty(options, durability);
        engines.adopt(&catalogue.filled(options))?;
        Ok(engines)
    }

    /// Creates engines without spaces.
    pub fn empty(options: &Options, durability: Arc<Durability>) -> Engines {
        let spill = &options.spill;
        Engines {
            memory: Arc::new(MemoryBudget::new(options.memory_bytes)),
            cold: Cold::new(options.cache_bytes(), spill.read_threads),
            counters: Vec::new(),
            existences: Vec::new(),
            views: Vec::new(),
            actions: Vec::new(),
            patterns: Vec::new(),
            durability,
            spills: false,
            watches: Default::default(),
            tokens: Arc::new(Tokens::new(options.max_tokens(), options.tokens.keep_s)),
            offsets: Arc::default(),
            groups: Arc::default(),
            tracking: Default::default(),
            follows: Default::default(),
            catalogue: Default::default(),
        }
    }

    /// Adopts a catalogue: creates missing spaces, and removes spaces that are not in it. Existing
    /// spaces keep their data. Their schemas, options and limits change, even for other `Engines`
    /// that share the spaces.
    pub fn adopt(&mut self, told: &Catalogue) -> Result<(), BuildError> {
        let mut counters = Vec::new();
        for known in &told.counter {
            let made = self.make_counter(known, free_slot(&self.counters, &counters))?;
            counters.push(made);
        }
        let existences = told.existence.iter().map(|known| self.make_existence(known));
        let existences = existences.collect::<Result<Vec<_>, BuildError>>()?;
        let mut next = Engines {
            spills: counters.iter().any(CounterSpace::spills)
                || existences.iter().any(|space| space.ledger.is_some()),
            counters,
            existences,
            catalogue: Arc::new(told.clone()),
            ..self.clone()
        };
        next.adopt_schemas(told)?;
        next.patterns = patterns(told)?;
        next.connect()?;
        // All checks have passed; the rest should not fail.
        for space in &next.counters {
            let made = &space.made;
            let rows = rows_per_table(made, &space.schema(), next.equal_part(next.counters.len()));
            space.set_limits(rows, (made.max_ahead > 0).then_some(made.max_ahead));
        }
        for (space, known) in next.existences.iter().zip(&told.existence) {
            let refused = |source| BuildError::Existence { name: known.made.name.clone(), source };
            space.set_options(&existence_options(&known.made)).map_err(refused)?;
        }
        next.retire();
        *self = next;
        self.divide_budget();
        Ok(())
    }

    /// Adopts the schemas of a catalogue for existing spaces. During replay, the log may contain
    /// schemas that are older than those of the spaces.
    pub(crate) fn adopt_schemas(&self, told: &Catalogue) -> Result<(), BuildError> {
        for known in &told.counter {
            let Some(space) = self.counter_by_number(known.number) else { continue };
            let adopted = Schema::parse(&known.made.fields).and_then(|schema| space.adopt(&schema));
            adopted
                .map_err(|source| BuildError::Counter { name: known.made.name.clone(), source })?;
        }
        Ok(())
    }

    /// Returns the existing space with this entry's number, or a new space, with the entry's
    /// options.
    fn make_counter(&self, known: &CounterEntry, slot: u8) -> Result<CounterSpace, BuildError> {
        let made = Arc::new(known.made.clone());
        let (text_rows, expire) = (made.text_rows, made.expire);
        if let Some(space) = self.counter_by_number(known.number) {
            return Ok(CounterSpace { made, text_rows, expire, ..space.clone() });
        }
        let space = Arc::new(counter_space(&made, self.equal_part(1))?);
        let cold = ColdSpace::new(self.cold.clone());
        Ok(CounterSpace {
            number: known.number,
            slot,
            made,
            space,
            cold,
            related: RelatedSpaces::default(),
            text_rows,
            expire,
        })
    }

    /// Returns the existing space with this entry's number, or a new space, with the entry's
    /// options.
    fn make_existence(&self, known: &ExistenceEntry) -> Result<ExistenceSpace, BuildError> {
        let made = Arc::new(known.made.clone());
        let (has_members, expire) = (made.members, made.expire);
        if let Some(space) = self.existence_by_number(known.number) {
            return Ok(ExistenceSpace { made, has_members, expire, ..space.clone() });
        }
        let refused = |source| BuildError::Existence { name: known.made.name.clone(), source };
        let space = phantom::Space::new(existence_options(&made)).map_err(refused)?;
        if self.follows.load(SeqCst) {
            space.follow();
        }
        Ok(ExistenceSpace {
            number: known.number,
            has_members,
            expire,
            space: Arc::new(space),
            cold: Arc::new(ColdPairs::new(self.cold.cache().clone())),
            ledger: (made.ledger == LedgerMode::Exact)
                .then(|| PairLedger::new(known.number, self.cold.cache().clone())),
            pair_rate: Arc::default(),
            made,
        })
    }

    fn connect(&mut self) -> Result<(), BuildError> {
        let (counters, existences) = (&self.counters, &self.existences);
        let actions = self.catalogue.action.iter().map(|a| action(a, counters, existences));
        let mut actions: Vec<Action> = actions.collect::<Result<_, _>>()?;
        let moved = |action: &Action| (action.flag, action.counter, action.field);
        let all: Vec<_> = actions.iter().map(moved).collect();
        for action in &mut actions {
            let this = moved(action);
            action.counts_without_row = all.iter().all(|one| one.0 != this.0 || *one == this);
        }
        let views = self.catalogue.view.iter().map(|v| view(v, counters, existences));
        let mut views = views.collect::<Result<Vec<View>, _>>()?;
        for (index, made) in self.catalogue.view.iter().enumerate() {
            let at = |then: &String| {
                let found = self.catalogue.view.iter().position(|other| other.name == *then);
                found.ok_or_else(|| BuildError::Missing {
                    what: "view",
                    name: made.name.clone(),
                    missing: format!("view '{then}'"),
                })
            };
            views[index].then = made.then.iter().map(at).collect::<Result<_, _>>()?;
        }
        let related = related_spaces(self.counters.len(), &views, &actions);
        let spaces = self.counters.iter_mut().zip(related);
        spaces.for_each(|(space, related)| space.related = related);
        (self.actions, self.views) = (actions, views);
        Ok(())
    }
}

fn free_slot(before: &[CounterSpace], now: &[CounterSpace]) -> u8 {
    let is_free = |slot: &u8| !before.iter().chain(now).any(|space| space.slot == *slot);
    (0..=u8::MAX).find(is_free).unwrap_or(u8::MAX)
}

/// Key patterns of all spaces. Patterns of counters precede patterns of pairs, which may match the
/// same keys.
fn patterns(told: &Catalogue) -> Result<Vec<(Pattern, Kind, usize)>, PatternError> {
    let counters = told.counter.iter().enumerate().flat_map(|(index, known)| {
        let made = &known.made;
        [(Kind::Row, &made.rows), (Kind::Cell, &made.cells)]
            .map(|(kind, text)| (kind, text, made.padded_ids, index))
    });
    let pairs = told.existence.iter().enumerate();
    let pairs =
        pairs.map(|(index, known)| (Kind::Pair, &known.made.pairs, known.made.padded_ids, index));
    let mut all = Vec::new();
    for (kind, text, padded, index) in counters.chain(pairs) {
        let patterns = Pattern::parse_all(kind, text)?.into_iter();
        all.extend(patterns.map(|pattern| (pattern.padded(padded), kind, index)));
    }
    Ok(all)
}

/// Engine options of an existence space.
pub fn existence_options(made: &options::Existence) -> phantom::Options {
    phantom::Options {
        false_positive_rate: made.false_positive_rate,
        pairs_per_table: made.pairs_per_table,
        max_tables: made.tables(),
        spill: made.spill,
        keep_tables: made.keep_tables(),
        max_unset: made.max_unset,
        max_outliers: made.max_outliers,
        max_forgotten: made.max_forgotten,
        max_ahead: (made.max_ahead > 0).then_some(made.max_ahead),
        seed: made.seed,
        first_id: made.first_id,
        memory_limit_bytes: (made.memory_limit_bytes > 0).then_some(made.memory_limit_bytes),
    }
}

/// Number of rows per table of a counter space. A spill writes a full table, so
/// [`TABLES_WITHIN_LIMIT`] tables must fit into the limit of a spilling space. A space without a
/// configured limit has a limit of `part` bytes.
fn rows_per_table(made: &options::Counter, schema: &counter::Schema, part: u64) -> u64 {
    let bits: u64 =
        schema.living().map(|(_, field)| u64::from(field.width) + FIELD_SPARE_BITS).sum();
    let limit = if made.memory_limit_bytes == 0 { part } else { made.memory_limit_bytes };
    let room = (limit / TABLES_WITHIN_LIMIT).saturating_mul(8) / (bits + ROW_BITS);
    if made.spill && room < made.rows_per_table {
        tracing::warn!(
            "counter space '{}': using {room} rows per table instead of rows_per_table = {}, since \
             its {limit} bytes of memory cannot hold {TABLES_WITHIN_LIMIT} such tables. Raise \
             server.memory or memory_limit, or lower rows_per_table",
            made.name,
            made.rows_per_table,
        );
        return room.max(1);
    }
    made.rows_per_table
}

fn counter_space(made: &options::Counter, memory_bytes: u64) -> Result<counter::Space, BuildError> {
    let source = |source| BuildError::Counter { name: made.name.clone(), source };
    let schema = counter::Schema::parse(&made.fields).map_err(source)?;
    if let Some((_, field)) = schema.living().find(|(_, field)| is_reserved(&field.name)) {
        return Err(BuildError::Reserved { space: made.name.clone(), field: field.name.clone() });
    }
    counter::Space::new(counter::Options {
        rows_per_table: rows_per_table(made, &schema, memory_bytes),
        memory_limit_bytes: memory_bytes,
        max_ahead: (made.max_ahead > 0).then_some(made.max_ahead),
        seed: fastrand::u64(..),
        ..counter::Options::new(schema)
    })
    .map_err(source)
}

fn view(
    made: &options::View,
    counters: &[CounterSpace],
    existences: &[ExistenceSpace],
) -> Result<View, BuildError> {
    let missing =
        |missing: String| BuildError::Missing { what: "view", name: made.name.clone(), missing };
    let mut built = View {
        name: made.name.clone(),
        sources: vec![],
        columns: vec![],
        flags: vec![],
        then: vec![],
        shape: CachedShape::default(),
    };
    for text in &made.counters {
        let (name, field) =
            text.split_once('.').map_or((text.as_str(), None), |(name, field)| (name, Some(field)));
        let space = counters
            .iter()
            .position(|s| s.name() == name)
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
        let space = existences.iter().position(|s| s.name() == *name);
        built.flags.push(space.ok_or_else(|| missing(format!("existence space '{name}'")))?);
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
        .position(|s| s.name() == made.flag)
        .ok_or_else(|| missing(format!("existence space '{}'", made.flag)))?;
    let find = |text: &str| {
        let found = text.split_once('.').and_then(|(name, field)| {
            let counter = counters.iter().position(|s| s.name() == name)?;
            Some((counter, counters[counter].schema().index_of(field.as_bytes())?))
        });
        found.ok_or_else(|| missing(format!("counter '{text}'")))
    };
    let (counter, field) = find(&made.counter)?;
    let also = made.also.iter().map(|text| (text, false));
    let beside = also.chain(made.member_counters.iter().map(|text| (text, true)));
    let beside = beside.map(|(text, of_member)| {
        find(text).map(|(counter, field)| FurtherCounter { counter, field, of_member })
    });
    let beside = beside.collect::<Result<_, _>>()?;
    let name = made.name.clone();
    Ok(Action { name, flag, counter, field, beside, counts_without_row: true })
}
