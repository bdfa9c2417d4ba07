//! Default views and actions, restricted to spaces and fields that exist.
//!
//! A configuration file may define spaces without defining views and actions. Default views then
//! omit missing counters and flags. Default actions whose flag or counter is missing are dropped.

use super::{Action, Counter, Existence, Options, View};

/// Returns the default views without missing counters and flags. Drops views that have no counters
/// left.
pub fn views(counters: &[Counter], existences: &[Existence]) -> Vec<View> {
    let views = Options::default().view.into_iter();
    views.filter_map(|view| what_is_there(view, counters, existences)).collect()
}

/// Removes missing counters and flags from a view. Returns `None` if no counter is left.
pub fn what_is_there(view: View, counters: &[Counter], existences: &[Existence]) -> Option<View> {
    let mut view = view;
    view.counters.retain(|counter| has_counter(counters, counter));
    view.flags.retain(|flag| has_flag(existences, flag));
    (!view.counters.is_empty()).then_some(view)
}

/// Whether an action's flag and counter both exist.
pub fn fits(action: &Action, counters: &[Counter], existences: &[Existence]) -> bool {
    has_flag(existences, &action.flag) && has_counter(counters, &action.counter)
}

/// Returns the default actions whose flag and counter both exist.
pub fn actions(counters: &[Counter], existences: &[Existence]) -> Vec<Action> {
    let mut actions = Options::default().action;
    actions.retain(|action| fits(action, counters, existences));
    actions
}

/// Whether this is a default view, complete or restricted to existing counters and flags. A default
/// view may refer to counters and flags that do not exist.
pub fn is_view(counters: &[Counter], existences: &[Existence], view: &View) -> bool {
    Options::default().view.contains(view) || views(counters, existences).contains(view)
}

/// Whether this is a default action, which is dropped if its flag or counter is missing.
pub fn is_action(action: &Action) -> bool {
    Options::default().action.contains(action)
}

/// Whether a space is configured to have this counter, written as "space.field".
fn has_counter(counters: &[Counter], counter: &str) -> bool {
    let Some((space, field)) = counter.split_once('.') else { return false };
    counters.iter().filter(|made| made.name == space).any(|made| {
        // Ignore an invalid schema here: creating the space reports the error.
        counter::Schema::parse(&made.fields)
            .is_ok_and(|schema| schema.index_of(field.as_bytes()).is_some())
    })
}

/// Whether there is an existence space of this name whose pairs have members.
fn has_flag(existences: &[Existence], name: &str) -> bool {
    existences.iter().any(|made| made.name == name && made.members)
}
