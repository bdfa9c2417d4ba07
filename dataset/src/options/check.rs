//! Checks that spaces, views and actions are consistent with each other, in a configuration and
//! after each change at run time. The engines check schemas and filter parameters themselves.

use super::{Action, Counter, Existence, LedgerMode, View};
use crate::key_patterns::{Kind, Pattern, overlap};
use std::collections::BTreeMap;

/// Maximum number of spaces of each kind, because a SCAN cursor has one byte for the space.
const MOST_SPACES: usize = 256;
/// Maximum number of views; also the maximum number of actions.
const MOST_VIEWS: usize = 1024;

/// Predicates that select the views and the actions that may refer to missing spaces or fields.
type Excused<'a> = (&'a dyn Fn(&View) -> bool, &'a dyn Fn(&Action) -> bool);

/// Spaces, views and actions to check; see the module's documentation.
pub struct Lists<'a> {
    /// Counter spaces.
    pub counter: &'a [Counter],
    /// Existence spaces.
    pub existence: &'a [Existence],
    /// Views.
    pub view: &'a [View],
    /// Actions.
    pub action: &'a [Action],
}

/// Key patterns by prefix. Two patterns can match the same key only if one prefix begins with the
/// other, so only a few patterns must be compared.
#[derive(Default)]
struct Known {
    by_start: BTreeMap<Vec<u8>, Vec<(usize, Pattern)>>,
    number: usize,
}

impl Known {
    fn add(&mut self, pattern: Pattern) {
        let others = self.by_start.entry(pattern.start().to_vec()).or_default();
        others.push((self.number, pattern));
        self.number += 1;
    }

    /// Returns a known pattern that could match the same key as `pattern`. Ignores patterns with
    /// numbers below `from`.
    fn overlapping(&self, pattern: &Pattern, from: usize) -> Option<&Pattern> {
        let start = pattern.start();
        let shorter = (0..start.len()).filter_map(|end| self.by_start.get(&start[..end]));
        let longer = self.by_start.range(start.to_vec()..);
        let longer = longer.take_while(|(other, _)| other.starts_with(start));
        let near = shorter.chain(longer.map(|(_, near)| near)).flatten();
        let mut near = near.filter(|(number, other)| *number >= from && overlap(other, pattern));
        near.next().map(|(_, other)| other)
    }
}

impl Lists<'_> {
    /// Checks the lists. The error describes the first inconsistency.
    pub fn check(&self, excused: Excused<'_>) -> Result<(), String> {
        let Lists { counter, existence, view, action } = *self;
        for (what, number, most) in [
            ("counter spaces", counter.len(), MOST_SPACES),
            ("existence spaces", existence.len(), MOST_SPACES),
            ("views", view.len(), MOST_VIEWS),
            ("actions", action.len(), MOST_VIEWS),
        ] {
            if number > most {
                return Err(format!("there may be {most} {what}"));
            }
        }
        let spaces = counter.iter().map(|c| c.name.as_str());
        let spaces = spaces.chain(existence.iter().map(|e| e.name.as_str()));
        check_names("counter or existence space", &spaces.collect::<Vec<_>>())?;
        check_names("view", &view.iter().map(|v| v.name.as_str()).collect::<Vec<_>>())?;
        check_names("action", &action.iter().map(|a| a.name.as_str()).collect::<Vec<_>>())?;
        self.check_patterns()?;
        if let Some(none) = counter.iter().find(|made| made.rows_per_table == 0) {
            return Err(format!(
                "counter space '{}': rows_per_table must be at least 1",
                none.name
            ));
        }
        for existence in existence {
            if existence.ledger == LedgerMode::Exact && !(existence.spill && existence.members) {
                return Err(format!(
                    "existence space '{}': ledger = \"exact\" keeps every pair: it needs \
                     spill = true and members = true",
                    existence.name
                ));
            }
            if existence.ledger == LedgerMode::Exact && existence.keep_newest > 0 {
                return Err(format!(
                    "existence space '{}': ledger = \"exact\" keeps every pair: leave keep_newest \
                     out",
                    existence.name
                ));
            }
            let rate = existence.false_positive_rate;
            if !phantom::RATES.contains(&rate) {
                return Err(format!(
                    "existence space '{}': false_positive_rate is {rate}: must lie between \
                     0.0000001 and 0.25",
                    existence.name
                ));
            }
        }
        view.iter().filter(|view| !excused.0(view)).try_for_each(|view| self.check_view(view))?;
        let mut actions = action.iter().filter(|action| !excused.1(action));
        actions.try_for_each(|action| self.check_action(action))
    }

    /// Checks that no two patterns match the same key.
    fn check_patterns(&self) -> Result<(), String> {
        let mut known = Known::default();
        let counters = self
            .counter
            .iter()
            .flat_map(|c| [(Kind::Row, &c.rows, false), (Kind::Cell, &c.cells, false)]);
        let pairs = self.existence.iter().map(|e| (Kind::Pair, &e.pairs, !e.members));
        let mut of_counters = 0;
        for (kind, text, bare) in counters.chain(pairs) {
            for text in text.split_ascii_whitespace() {
                let pattern = Pattern::parse(kind, text).map_err(|e| e.to_string())?;
                // Pairs without members have separate commands, so they may have the same keys as
                // counters.
                let from = if bare { of_counters } else { 0 };
                if let Some(other) = known.overlapping(&pattern, from) {
                    return Err(format!(
                        "key patterns '{other}' and '{text}' could both match one key"
                    ));
                }
                known.add(pattern);
            }
            if kind != Kind::Pair {
                of_counters = known.number;
            }
        }
        Ok(())
    }

    /// Checks that a view can show this flag, or that an action can set it.
    fn check_flag(&self, what: &str, name: &str, flag: &str) -> Result<(), String> {
        match self.existence.iter().find(|e| e.name == flag) {
            None => Err(format!("{what} '{name}': there is no existence space '{flag}'")),
            Some(space) if !space.members => Err(format!(
                "{what} '{name}': the existence space '{flag}' has no members (members = false)"
            )),
            Some(_) => Ok(()),
        }
    }

    fn check_space(&self, what: &str, name: &str, space: &str) -> Result<(), String> {
        if self.counter.iter().any(|c| c.name == space) {
            return Ok(());
        }
        Err(format!("{what} '{name}': there is no counter space '{space}'"))
    }

    fn check_view(&self, view: &View) -> Result<(), String> {
        if view.counters.is_empty() && view.flags.is_empty() && view.then.is_empty() {
            return Err(format!("view '{}': it shows nothing: name counters or flags", view.name));
        }
        view.flags.iter().try_for_each(|flag| self.check_flag("view", &view.name, flag))?;
        view.counters.iter().try_for_each(|counter| {
            let space = counter.split_once('.').map_or(counter.as_str(), |(space, _)| space);
            self.check_space("view", &view.name, space)
        })?;
        view.then.iter().try_for_each(|then| match self.view.iter().find(|v| v.name == *then) {
            None => Err(format!("view '{}': there is no view '{then}'", view.name)),
            Some(next) if !next.then.is_empty() => Err(format!(
                "view '{}': the view '{then}' has views of further ids itself",
                view.name
            )),
            Some(_) => Ok(()),
        })
    }

    fn check_action(&self, action: &Action) -> Result<(), String> {
        self.check_flag("action", &action.name, &action.flag)?;
        // Check the counters of the id and of the member separately: an action may change the same
        // counter of both.
        let counters: Vec<(bool, &str)> =
            action.moved().map(|(key, counter)| (key == "member_counters", counter)).collect();
        if let Some(at) = (1..counters.len()).find(|&at| counters[..at].contains(&counters[at])) {
            let (of_member, counter) = counters[at];
            return Err(format!(
                "action '{}': the counter '{counter}' of the {} is named twice",
                action.name,
                if of_member { "member" } else { "id" }
            ));
        }
        action.moved().try_for_each(|(key, counter)| {
            let Some((space, _)) = counter.split_once('.') else {
                return Err(format!(
                    "action '{}': {key} is '{counter}': write it as space.field",
                    action.name
                ));
            };
            self.check_space("action", &action.name, space)
        })
    }
}

/// Checks that names are short, unique identifiers, because they appear in commands, keys, file
/// names and metrics.
fn check_names(kind: &str, names: &[&str]) -> Result<(), String> {
    for (i, name) in names.iter().enumerate() {
        let legal = (1..=64).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            && !name.starts_with(|c: char| c.is_ascii_digit());
        if !legal {
            return Err(format!(
                "'{name}' cannot name a {kind}: a name has 1 to 64 of a-z, 0-9 and _, and does \
                 not begin with a digit"
            ));
        }
        if names[..i].contains(name) {
            return Err(format!("two {kind}s are named '{name}'"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result must be the same as if each pattern were compared with every other pattern.
    #[test]
    fn patterns_that_may_match_one_key_are_found_among_many() {
        let mut random = fastrand::Rng::with_seed(31);
        let (mut found, mut none) = (0, 0);
        for _ in 0..2000 {
            let (mut all, mut known) = (Vec::<Pattern>::new(), Known::default());
            for _ in 0..random.usize(1..12) {
                let text = |random: &mut fastrand::Rng, most: usize| -> String {
                    (0..random.usize(0..most))
                        .map(|_| ["a", "b", ":", "7"][random.usize(0..4)])
                        .collect()
                };
                let shape = format!("{}{{id}}{}", text(&mut random, 4), text(&mut random, 3));
                let field = random.bool().then(|| format!("{{field}}{}", text(&mut random, 2)));
                let shape = shape + &field.unwrap_or_default();
                let Ok(pattern) = Pattern::parse(Kind::Cell, &shape) else { continue };
                let from = random.usize(0..all.len() + 1);
                let expected = all[from..].iter().any(|other| overlap(other, &pattern));
                assert_eq!(known.overlapping(&pattern, from).is_some(), expected, "{pattern}");
                *if expected { &mut found } else { &mut none } += 1;
                known.add(pattern.clone());
                all.push(pattern);
            }
        }
        assert!(found > 40 && none > 1000, "{found} {none}");
    }
}
