//! The default view and actions, as far as the configured spaces have what they name.
//!
//! A file that lists its own spaces need not list its own views and actions: a default one shows
//! and moves what is there, and goes where nothing of it is.

use crate::config::{Action, Config, View};

/// The default views without what the spaces lack. A view without counters goes.
pub(crate) fn views(config: &Config) -> Vec<View> {
    let mut views = Config::default().view;
    for view in &mut views {
        view.counters.retain(|counter| has_counter(config, counter));
        view.flags.retain(|flag| has_flag(config, flag));
    }
    views.retain(|view| !view.counters.is_empty());
    views
}

/// The default actions whose flag and counter are there.
pub(crate) fn actions(config: &Config) -> Vec<Action> {
    let mut actions = Config::default().action;
    actions.retain(|a| has_flag(config, &a.flag) && has_counter(config, &a.counter));
    actions
}

/// Whether this is a default view: it may name what a space lacks, and goes without that.
pub(crate) fn is_view(config: &Config, view: &View) -> bool {
    Config::default().view.contains(view) || views(config).contains(view)
}

/// Whether this is a default action: where its flag or counter is missing it goes.
pub(crate) fn is_action(action: &Action) -> bool {
    Config::default().action.contains(action)
}

/// Whether a space is configured to have this counter, written as "space.field".
fn has_counter(config: &Config, counter: &str) -> bool {
    let Some((space, field)) = counter.split_once('.') else { return false };
    config.counter.iter().filter(|made| made.name == space).any(|made| {
        // A schema that cannot be read is refused where the space is made.
        counter::Schema::parse(&made.fields)
            .is_ok_and(|schema| schema.index_of(field.as_bytes()).is_some())
    })
}

/// Whether there is an existence space of this name whose pairs have members.
fn has_flag(config: &Config, name: &str) -> bool {
    config.existence.iter().any(|made| made.name == name && made.members)
}
