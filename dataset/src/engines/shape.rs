//! Shape of a reply: a hash of the names of its counters and flags, in order. Nodes compare shapes
//! before they merge rows of a reply, because rows of another shape would be misread.

use crate::engines::action::Action;
use crate::engines::registry::Engines;
use crate::engines::spaces::CounterSpace;
use crate::engines::view::{Column, Shape, View};
use counter::Schema;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Separators between kinds of names. No name begins with a space character.
const FLAGS_SEPARATOR: &str = " flags";
const THEN_SEPARATOR: &str = " then";
const MARK_SEPARATOR: &str = " mark";
const ALSO_SEPARATOR: &str = " also";
const MEMBER_SEPARATOR: &str = " member";

/// Text to hash: words separated by newlines, which names cannot contain. All releases must produce
/// the same text.
#[derive(Default)]
struct ShapeText(String);

impl ShapeText {
    fn add(&mut self, word: &str) {
        self.0.push('\n');
        self.0.push_str(word);
    }

    fn counter(&mut self, space: &CounterSpace, schema: &Schema, position: usize) {
        self.add(space.name());
        self.add(schema.fields().get(position).map_or("", |field| field.name.as_str()));
    }

    fn counters(&mut self, space: &CounterSpace, schema: &Schema) {
        schema.living().for_each(|(position, _)| self.counter(space, schema, position));
    }

    fn action(&mut self, action: &Action, engines: &Engines) {
        self.add(engines.flag_of(action).name());
        let counter = engines.counter_of(action);
        self.counter(counter, &counter.schema(), action.field);
        for beside in &action.beside {
            self.add(if beside.of_member { MEMBER_SEPARATOR } else { ALSO_SEPARATOR });
            let counter = &engines.counters[beside.counter];
            self.counter(counter, &counter.schema(), beside.field);
        }
    }

    fn hash(&self) -> u64 {
        xxh3_64(self.0.as_bytes())
    }
}

impl Engines {
    /// Shape of a view's rows, including the action `mark` that marks its ids.
    pub fn shape_of_view(&self, view: &View, mark: Option<&Action>) -> u64 {
        let own = self.shape_alone(view);
        if mark.is_none() && !view.is_joined() {
            return own;
        }
        let mut words = ShapeText(own.to_string());
        for then in self.then(view) {
            words.add(THEN_SEPARATOR);
            words.add(&self.shape_alone(then).to_string());
        }
        if let Some(action) = mark {
            words.add(MARK_SEPARATOR);
            words.action(action, self);
        }
        words.hash()
    }

    fn shape_alone(&self, view: &View) -> u64 {
        let is_same = |found: &Shape| {
            let mut both = self.sources(view).zip(&found.schemas);
            both.all(|(space, schema)| Arc::ptr_eq(&space.schema(), schema))
        };
        if let Some(found) = &*view.shape.0.load()
            && is_same(found)
        {
            return found.shape;
        }
        let schemas: Box<[Arc<Schema>]> = self.sources(view).map(|space| space.schema()).collect();
        let mut words = ShapeText::default();
        for column in &view.columns {
            let (Column::Field(at, _) | Column::All(at)) = *column;
            let (space, schema) = (&self.counters[view.sources[at]], &schemas[at]);
            match *column {
                Column::All(_) => words.counters(space, schema),
                Column::Field(_, position) => words.counter(space, schema, position),
            }
        }
        words.add(FLAGS_SEPARATOR);
        self.flags(view).for_each(|space| words.add(space.name()));
        let shape = words.hash();
        view.shape.0.store(Some(Arc::new(Shape { schemas, shape })));
        shape
    }

    /// Shape of an action's effect.
    pub fn shape_of_action(&self, action: &Action) -> u64 {
        let mut words = ShapeText::default();
        words.action(action, self);
        words.hash()
    }
}

impl CounterSpace {
    /// Shape of the space's rows.
    pub fn shape_of_rows(&self) -> u64 {
        let mut words = ShapeText::default();
        words.counters(self, &self.schema());
        words.hash()
    }
}
