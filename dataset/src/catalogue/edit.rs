//! Changes of a catalogue at run time, one method per command.
//!
//! Each method checks its own arguments. The caller then checks the whole catalogue with
//! [`Catalogue::check`].

use super::{Catalogue, CounterEntry, ExistenceEntry};
use crate::options::words::with;
use crate::options::{Action, Counter, Existence, LedgerMode, View};

/// Options of a command: keys and values.
pub(super) type Pairs<'a> = &'a [(String, String)];

/// Reason for refusing an edit.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// No object of this kind has that name.
    #[error("no such {0} '{1}'")]
    NoSuch(&'static str, String),
    /// An object of this kind already has that name.
    #[error("the {0} '{1}' exists already")]
    Exists(&'static str, String),
    /// An option is unknown or immutable or has an invalid value, or the result would be
    /// inconsistent.
    #[error("{0}")]
    Invalid(String),
    /// Views or actions use the space or the view.
    #[error("the {what} is used by {by}, drop that first")]
    InUse {
        /// Kind and name of the used object.
        what: String,
        /// Kinds and names of its users.
        by: String,
    },
}

/// Options of a counter space that SET cannot change, each with an explanation.
const FIXED_COUNTER: &[(&str, &str)] = &[
    ("name", "use TM.SPACE RENAME"),
    ("fields", "use TM.SPACE ALTER ADD, WIDEN, NARROW, BOUND or DROP"),
];
/// Options of an existence space that SET cannot change, each with an explanation.
const FIXED_EXISTENCE: &[(&str, &str)] = &[
    ("name", "use TM.SPACE RENAME"),
    ("members", "create another space"),
    ("first_id", "create another space"),
    ("ledger", "create another space"),
    ("false_positive_rate", "create another space, or one with a ledger, where it can change"),
    ("seed", "create another space"),
];

fn changed<T: serde::Serialize + serde::de::DeserializeOwned>(
    made: &T,
    pairs: Pairs<'_>,
    fixed: &[(&str, &str)],
) -> Result<T, EditError> {
    for (key, _) in pairs {
        if let Some((_, advice)) = fixed.iter().find(|(name, _)| name == key) {
            return Err(EditError::Invalid(format!(
                "cannot change {key} of an existing space: {advice}"
            )));
        }
    }
    with(made, pairs).map_err(EditError::Invalid)
}

fn entry<T: Default + serde::Serialize + serde::de::DeserializeOwned>(
    name: &str,
    pairs: Pairs<'_>,
) -> Result<T, EditError> {
    let name = ("name".to_owned(), name.to_owned());
    let pairs: Vec<(String, String)> = [name].into_iter().chain(pairs.iter().cloned()).collect();
    with(&T::default(), &pairs).map_err(EditError::Invalid)
}

/// Adds an entry to a list. If `replaces` is true, replaces an entry with the same name.
fn put<T>(list: &mut Vec<T>, made: T, replaces: bool, name: fn(&T) -> &str) -> Result<(), T> {
    match list.iter_mut().find(|known| name(known) == name(&made)) {
        None => list.push(made),
        Some(known) if replaces => *known = made,
        Some(_) => return Err(made),
    }
    Ok(())
}

/// Whether "space.field" or "space" refers to this space.
fn is_of(counter: &str, space: &str) -> bool {
    counter.split_once('.').map_or(counter, |(space, _)| space) == space
}

impl Catalogue {
    fn number(&mut self) -> Result<u32, EditError> {
        let next = self.last.checked_add(1);
        self.last = next.ok_or_else(|| EditError::Invalid("out of space numbers".to_owned()))?;
        Ok(self.last)
    }

    fn check_new_space(&self, name: &str) -> Result<(), EditError> {
        let counters = self.counter.iter().map(|known| &known.made.name);
        let mut names = counters.chain(self.existence.iter().map(|known| &known.made.name));
        match names.any(|known| known == name) {
            true => Err(EditError::Exists("space", name.to_owned())),
            false => Ok(()),
        }
    }

    /// Creates a counter space (TM.SPACE CREATE).
    pub fn create_counter(&mut self, name: &str, pairs: Pairs<'_>) -> Result<(), EditError> {
        let made: Counter = entry(name, pairs)?;
        self.check_new_space(name)?;
        let number = self.number()?;
        self.counter.push(CounterEntry::new(number, &made));
        Ok(())
    }

    /// Creates an existence space (TM.SPACE CREATE).
    pub fn create_existence(&mut self, name: &str, pairs: Pairs<'_>) -> Result<(), EditError> {
        let made: Existence = entry(name, pairs)?;
        self.check_new_space(name)?;
        let number = self.number()?;
        self.existence.push(ExistenceEntry::new(number, &made));
        Ok(())
    }

    /// Changes options of a space (TM.SPACE ALTER SET).
    pub fn set(&mut self, name: &str, pairs: Pairs<'_>) -> Result<(), EditError> {
        if let Some(known) = self.counter.iter_mut().find(|known| known.made.name == name) {
            known.made = changed(&known.made, pairs, FIXED_COUNTER)?;
            return Ok(());
        }
        let Some(known) = self.existence.iter_mut().find(|known| known.made.name == name) else {
            return Err(EditError::NoSuch("space", name.to_owned()));
        };
        // The false-positive rate can change only in a space with a ledger. The space then rebuilds
        // its filters.
        let has_ledger = known.made.ledger != LedgerMode::Off;
        let is_fixed = |key: &str| !(has_ledger && key == "false_positive_rate");
        let fixed: Vec<_> = FIXED_EXISTENCE.iter().copied().filter(|(k, _)| is_fixed(k)).collect();
        known.made = changed(&known.made, pairs, &fixed)?;
        Ok(())
    }

    /// Renames a space (TM.SPACE RENAME) and its uses in views and actions. Key patterns do not
    /// change.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), EditError> {
        if from != to {
            self.check_new_space(to)?;
        }
        let is_shared = self.view.iter().any(|view| view.name == to)
            || self.action.iter().any(|action| action.name == to);
        if is_shared {
            return Err(EditError::Invalid(format!(
                "a view or an action is named '{to}', and users with access to the space would \
                 gain access to it"
            )));
        }
        let counters = self.counter.iter_mut().map(|known| &mut known.made.name);
        let existences = self.existence.iter_mut().map(|known| &mut known.made.name);
        let Some(name) = counters.chain(existences).find(|name| *name == from) else {
            return Err(EditError::NoSuch("space", from.to_owned()));
        };
        to.clone_into(name);
        let flags = self.view.iter_mut().flat_map(|view| &mut view.flags);
        let flags = flags.chain(self.action.iter_mut().map(|action| &mut action.flag));
        flags.filter(|flag| *flag == from).for_each(|flag| to.clone_into(flag));
        let counters = self.view.iter_mut().flat_map(|view| &mut view.counters);
        let moved = self.action.iter_mut().flat_map(|action| {
            let beside = action.also.iter_mut().chain(&mut action.member_counters);
            std::iter::once(&mut action.counter).chain(beside)
        });
        let counters = counters.chain(moved);
        for counter in counters.filter(|counter| is_of(counter, from)) {
            *counter = format!("{to}{}", &counter[from.len()..]);
        }
        Ok(())
    }

    /// Drops a space (TM.SPACE DROP).
    pub fn drop_space(&mut self, name: &str) -> Result<(), EditError> {
        let is_counter = self.counter.iter().any(|known| known.made.name == name);
        if !is_counter && !self.existence.iter().any(|known| known.made.name == name) {
            return Err(EditError::NoSuch("space", name.to_owned()));
        }
        let shows = |view: &View| {
            view.flags.iter().any(|flag| flag == name)
                || view.counters.iter().any(|counter| is_of(counter, name))
        };
        let moves = |action: &Action| {
            action.flag == name || action.moved().any(|(_, counter)| is_of(counter, name))
        };
        let views = self.view.iter().filter(|view| shows(view));
        let views = views.map(|view| format!("the view '{}'", view.name));
        let actions = self.action.iter().filter(|action| moves(action));
        let actions = actions.map(|action| format!("the action '{}'", action.name));
        let by: Vec<String> = views.chain(actions).collect();
        if !by.is_empty() {
            let what = format!("space '{name}'");
            return Err(EditError::InUse { what, by: by.join(", ") });
        }
        self.counter.retain(|known| known.made.name != name);
        self.existence.retain(|known| known.made.name != name);
        Ok(())
    }

    /// Retires the rows below `horizon` (TM.SPACE RETIRE). The horizon never falls; a lower value
    /// has no effect.
    pub fn retire(&mut self, name: &str, horizon: u64) -> Result<(), EditError> {
        let known = self.counter.iter_mut().find(|known| known.made.name == name);
        let known = known.ok_or_else(|| EditError::NoSuch("counter space", name.to_owned()))?;
        known.horizon = known.horizon.max(horizon);
        Ok(())
    }

    /// Creates a view (TM.VIEW CREATE). If `replaces` is true, replaces a view with the same name.
    pub fn create_view(
        &mut self,
        name: &str,
        pairs: Pairs<'_>,
        replaces: bool,
    ) -> Result<(), EditError> {
        let put = put(&mut self.view, entry(name, pairs)?, replaces, |view: &View| &view.name);
        put.map_err(|view| EditError::Exists("view", view.name))
    }

    /// Drops a view (TM.VIEW DROP).
    pub fn drop_view(&mut self, name: &str) -> Result<(), EditError> {
        let users = self.view.iter().filter(|view| view.then.iter().any(|then| then == name));
        let by: Vec<String> = users.map(|view| format!("the view '{}'", view.name)).collect();
        if !by.is_empty() {
            let what = format!("view '{name}'");
            return Err(EditError::InUse { what, by: by.join(", ") });
        }
        let before = self.view.len();
        self.view.retain(|view| view.name != name);
        if self.view.len() == before {
            return Err(EditError::NoSuch("view", name.to_owned()));
        }
        Ok(())
    }

    /// Creates an action (TM.ACTION CREATE). If `replaces` is true, replaces an action with the
    /// same name.
    pub fn create_action(
        &mut self,
        name: &str,
        pairs: Pairs<'_>,
        replaces: bool,
    ) -> Result<(), EditError> {
        let made = entry(name, pairs)?;
        let put = put(&mut self.action, made, replaces, |action: &Action| &action.name);
        put.map_err(|action| EditError::Exists("action", action.name))
    }

    /// Drops an action (TM.ACTION DROP).
    pub fn drop_action(&mut self, name: &str) -> Result<(), EditError> {
        let before = self.action.len();
        self.action.retain(|action| action.name != name);
        if self.action.len() == before {
            return Err(EditError::NoSuch("action", name.to_owned()));
        }
        Ok(())
    }
}
