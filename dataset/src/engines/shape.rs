//! What the elements of a reply mean, as one number: a hash of the names of counters and flags in
//! their order. Nodes that join their rows compare it, as rows of another shape would be read
//! wrongly.

use crate::engines::page::Column;
use crate::engines::{Action, CounterSpace, Engines, View};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A hash of words: each has the hash of those before as its seed. Builds that differ must agree on
/// it.
#[derive(Default)]
struct Shape(u64);

impl Shape {
    fn word(&mut self, word: &str) {
        self.0 = xxh3_64_with_seed(word.as_bytes(), self.0);
    }

    fn counter(&mut self, space: &CounterSpace, position: usize) {
        self.word(space.name());
        self.word(space.schema().fields().get(position).map_or("", |field| field.name.as_str()));
    }

    fn counters(&mut self, space: &CounterSpace) {
        for (_, field) in space.schema().living() {
            self.word(space.name());
            self.word(&field.name);
        }
    }

    fn view(&mut self, view: &View, engines: &Engines) {
        for column in &view.columns {
            match *column {
                Column::All(at) => self.counters(&engines.counters[view.sources[at]]),
                Column::Field(at, position) => {
                    self.counter(&engines.counters[view.sources[at]], position);
                }
            }
        }
        self.word("flags");
        engines.flags(view).for_each(|space| self.word(space.name()));
    }

    fn action(&mut self, action: &Action, engines: &Engines) {
        self.word(engines.flag_of(action).name());
        self.counter(engines.counter_of(action), action.field);
        for beside in &action.beside {
            self.word(if beside.of_member { "member" } else { "also" });
            self.counter(&engines.counters[beside.counter], beside.field);
        }
    }
}

impl Engines {
    /// Of a view's rows, and of the action that marks its ids.
    pub fn shape_of_view(&self, view: &View, mark: Option<&Action>) -> u64 {
        let mut shape = Shape::default();
        shape.view(view, self);
        for then in self.then(view) {
            shape.word("then");
            shape.view(then, self);
        }
        if let Some(action) = mark {
            shape.word("mark");
            shape.action(action, self);
        }
        shape.0
    }

    /// Of what an action does.
    pub fn shape_of_action(&self, action: &Action) -> u64 {
        let mut shape = Shape::default();
        shape.action(action, self);
        shape.0
    }
}

impl CounterSpace {
    /// Of its rows.
    pub fn shape_of_rows(&self) -> u64 {
        let mut shape = Shape::default();
        shape.counters(self);
        shape.0
    }
}
