//! The default view and actions, as far as the configured spaces have what they name.
//!
//! A file that lists its own spaces need not list its own views and actions: a default one shows
//! and moves what is there, and goes where nothing of it is.

use super::{Action, Counter, Existence, Options, View};

/// The default views without what the spaces lack. A view without counters goes.
pub fn views(counters: &[Counter], existences: &[Existence]) -> Vec<View> {
    let views = Options::default().view.into_iter();
    views.filter_map(|view| what_is_there(view, counters, existences)).collect()
}

/// A view without what the spaces lack; none if no counter is left.
pub fn what_is_there(view: View, counters: &[Counter], existences: &[Existence]) -> Option<View> {
    let mut view = view;
    view.counters.retain(|counter| has_counter(counters, counter));
    view.flags.retain(|flag| has_flag(existences, flag));
    (!view.counters.is_empty()).then_some(view)
}

/// Whether an action's flag and counter are there.
pub fn fits(action: &Action, counters: &[Counter], existences: &[Existence]) -> bool {
    has_flag(existences, &action.flag) && has_counter(counters, &action.counter)
}

/// The default actions whose flag and counter are there.
pub fn actions(counters: &[Counter], existences: &[Existence]) -> Vec<Action> {
    let mut actions = Options::default().action;
    actions.retain(|action| fits(action, counters, existences));
    actions
}

/// Whether this is a default view: it may name what a space lacks, and goes without that.
pub fn is_view(counters: &[Counter], existences: &[Existence], view: &View) -> bool {
    Options::default().view.contains(view) || views(counters, existences).contains(view)
}

/// Whether this is a default action: where its flag or counter is missing it goes.
pub fn is_action(action: &Action) -> bool {
    Options::default().action.contains(action)
}

/// Whether a space is configured to have this counter, written as "space.field".
fn has_counter(counters: &[Counter], counter: &str) -> bool {
    let Some((space, field)) = counter.split_once('.') else { return false };
    counters.iter().filter(|made| made.name == space).any(|made| {
        // A schema that cannot be read is refused where the space is made.
        counter::Schema::parse(&made.fields)
            .is_ok_and(|schema| schema.index_of(field.as_bytes()).is_some())
    })
}

/// Whether there is an existence space of this name whose pairs have members.
fn has_flag(existences: &[Existence], name: &str) -> bool {
    existences.iter().any(|made| made.name == name && made.members)
}
