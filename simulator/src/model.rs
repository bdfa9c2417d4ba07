//! Model of the expected replies: the possible states of every post.
//!
//! Usually a post has one possible state. After a crash, a post has one possible state for each
//! outcome that `fsync` allows. After an error ("the change is in memory and will be logged"), the
//! states before and after the change are possible. A reply is correct if it matches a possible
//! state. The model then discards the states that the reply does not match. No two commands change
//! a post concurrently, so the order of changes is known.

use client::Reply;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// With `everysec`, a crash may lose writes acknowledged later than this time before the last
/// successful commit.
pub(crate) const MAX_LOSS_SPAN: Duration = Duration::from_secs(1);

/// Length of the history stored per row. Every read completes within this period.
const HISTORY_SPAN: Duration = Duration::from_secs(200);

/// Identifies a row by space and id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Post(u64),
    User(u64),
    /// A row of a space that the workload creates and drops.
    Extra(u32, u64),
}

/// Names of a post's flags, indexed by [`Flag`].
pub(crate) const FLAGS: [&str; 4] = ["like", "repost", "read", "seen"];

/// Identifies a flag by its index in [`FLAGS`]. The first three flags belong to actions, whose
/// counters equal the number of members.
pub(crate) type Flag = usize;
pub(crate) const LIKE: Flag = 0;
pub(crate) const REPOST: Flag = 1;
pub(crate) const READ: Flag = 2;
pub(crate) const SEEN: Flag = 3;

/// Flags whose old tables are recycled. A read of a recycled flag returns nil.
pub(crate) const RECYCLED: [Flag; 2] = [READ, SEEN];

/// State of a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct State {
    /// Counters that do not count the members of a flag.
    counters: BTreeMap<String, i64>,
    members: [BTreeSet<u64>; FLAGS.len()],
    /// Reply to the increment with each token.
    tokens: BTreeMap<u32, i64>,
}

/// Effect of a command on one row, or the part of the row that it reads.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Sets or clears a flag (FEED.ACT, FEED.UNDO, PH.ADD, PH.DEL). The reply shows whether the
    /// flag changed.
    Set { flag: Flag, member: u64, on: bool },
    /// Adds to a counter. The reply is the new value.
    Add { field: String, delta: i64 },
    /// Like [`Step::Add`], but applied only once per token.
    AddOnce { field: String, delta: i64, token: u32 },
    /// Sets a counter. The reply is not checked.
    Put { field: String, value: i64 },
    /// Deletes the row and all flags that a view or an action associates with the row.
    Forget,
    /// Reads the row's entry of a page for this viewer.
    Page { viewer: u64 },
    /// Reads whether the flag is set.
    Is { flag: Flag, member: u64 },
    /// Reads the number of members.
    Count { flag: Flag },
    /// Reads all members from the ledger.
    Members { flag: Flag },
    /// Reads these counters, in order.
    Fields { fields: Vec<String> },
}

impl Step {
    /// Whether the step names a field or a space that another client may have dropped.
    fn may_be_gone(&self, key: Key) -> bool {
        let comes_and_goes = |field: &String| field.starts_with('f');
        matches!(key, Key::Extra(..))
            || match self {
                Step::Add { field, .. } => comes_and_goes(field),
                Step::Fields { fields } => fields.iter().any(comes_and_goes),
                _ => false,
            }
    }

    pub(crate) fn changes(&self) -> bool {
        use Step::{Add, AddOnce, Forget, Put, Set};
        matches!(self, Set { .. } | Add { .. } | AddOnce { .. } | Put { .. } | Forget)
    }
}

/// Returns the value of a counter. Null counts as 0.
fn count(reply: &Reply) -> Option<i64> {
    match reply {
        Reply::Null => Some(0),
        reply => reply.as_integer().or_else(|| reply.clone().into_text()?.parse().ok()),
    }
}

fn is_flag(reply: &Reply, flag: Flag, set: bool) -> bool {
    *reply == Reply::Integer(i64::from(set)) || *reply == Reply::Null && RECYCLED.contains(&flag)
}

impl State {
    fn counter(&self, field: &str) -> i64 {
        match FLAGS[..SEEN].iter().position(|name| *name == field) {
            Some(flag) => self.members[flag].len() as i64,
            None => self.counters.get(field).copied().unwrap_or_default(),
        }
    }

    /// Returns the state after the step if `reply` is a possible reply.
    fn after(&self, step: &Step, reply: &Reply) -> Option<State> {
        if !step.changes() {
            return self.shows(step, reply).then(|| self.clone());
        }
        // The post is below the lowest id that is still stored, so nothing changed.
        if let (Step::Set { flag, .. }, Reply::Null) = (step, reply) {
            return RECYCLED.contains(flag).then(|| self.clone());
        }
        let (next, expected) = self.stepped(step);
        expected.is_none_or(|expected| count(reply) == Some(expected)).then_some(next)
    }

    /// Whether a read of this state may return `reply`.
    fn shows(&self, step: &Step, reply: &Reply) -> bool {
        match step {
            Step::Page { viewer } => self.is_page(*viewer, reply.items()),
            Step::Is { flag, member } => {
                is_flag(reply, *flag, self.members[*flag].contains(member))
            }
            Step::Count { flag } => count(reply) == Some(self.members[*flag].len() as i64),
            Step::Members { flag } => {
                let shown: BTreeSet<i64> = reply.items().iter().filter_map(count).collect();
                shown.into_iter().eq(self.members[*flag].iter().map(|&member| member as i64))
            }
            Step::Fields { fields } => {
                let shown = reply.items().iter().map(count);
                shown.eq(fields.iter().map(|field| Some(self.counter(field))))
            }
            _ => false,
        }
    }

    /// Returns the state after the step, and the number that the reply must contain, if it is
    /// checked.
    fn stepped(&self, step: &Step) -> (State, Option<i64>) {
        let mut next = self.clone();
        let expected = match step {
            Step::Set { flag, member, on } => {
                let members = &mut next.members[*flag];
                let changed = if *on { members.insert(*member) } else { members.remove(member) };
                Some(i64::from(changed))
            }
            Step::Add { field, delta } => {
                let value = next.counters.entry(field.clone()).or_default();
                *value += delta;
                Some(*value)
            }
            Step::AddOnce { field, delta, token } => match next.tokens.get(token) {
                Some(answered) => Some(*answered),
                None => {
                    let value = next.counters.entry(field.clone()).or_default();
                    *value += delta;
                    let answer = *value;
                    next.tokens.insert(*token, answer);
                    Some(answer)
                }
            },
            Step::Put { field, value } => {
                next.counters.insert(field.clone(), *value);
                None
            }
            Step::Forget => {
                // Tokens outlive their rows. No view or action associates `seen` with the row.
                next.counters.clear();
                next.members[..SEEN].iter_mut().for_each(BTreeSet::clear);
                None
            }
            Step::Page { .. } | Step::Is { .. } | Step::Count { .. } => None,
            Step::Members { .. } | Step::Fields { .. } => None,
        };
        (next, expected)
    }

    /// Whether `shown` has four counters and two flags, as in the view `home`.
    fn is_page(&self, viewer: u64, shown: &[Reply]) -> bool {
        let counters = ["like", "repost", "comment", "read"];
        let are_right = counters
            .iter()
            .zip(shown)
            .all(|(field, shown)| count(shown) == Some(self.counter(field)));
        let has = |flag: Flag, shown| is_flag(shown, flag, self.members[flag].contains(&viewer));
        are_right && shown.len() == 6 && has(LIKE, &shown[4]) && has(READ, &shown[5])
    }
}

/// Possible states of a row.
type States = Vec<State>;

fn add(states: &mut States, state: State) {
    if !states.contains(&state) {
        states.push(state);
    }
}

/// History of a row.
struct Row {
    /// Time of each acknowledged change, and the possible states after it. The last entry contains
    /// the current state.
    past: Vec<(Duration, States)>,
    /// Number of changes removed from the front of `past`.
    forgotten: usize,
    /// Change whose reply has not arrived.
    asked: Option<Step>,
    /// Whether all commits since the change was sent have succeeded. With `always`, readers then
    /// wait for the change.
    may_wait: bool,
    /// Whether a reader has seen the effect of `asked`.
    shown: bool,
    /// Possible states before the first change with an error reply since the last successful
    /// commit. A crash may restore these states, even if a reader has seen the change.
    unlogged: States,
}

impl Default for Row {
    fn default() -> Row {
        let past = vec![(Duration::ZERO, vec![State::default()])];
        let unlogged = States::new();
        Row { past, forgotten: 0, asked: None, may_wait: true, shown: false, unlogged }
    }
}

impl Row {
    fn now(&self) -> &States {
        &self.past.last().expect("every history has a first state").1
    }

    fn push(&mut self, at: Duration, states: States) {
        self.past.push((at, states));
        // Remove states too old for a crash to restore or for a pending read to return.
        while self.past.len() > 1 && self.past[1].0 + HISTORY_SPAN < at {
            self.past.remove(0);
            self.forgotten += 1;
        }
    }

    /// Number of changes so far.
    fn version(&self) -> usize {
        self.forgotten + self.past.len()
    }

    /// Returns the state at version `since` and all acknowledged states after it.
    fn acknowledged(&self, since: usize) -> impl Iterator<Item = &State> {
        let from = since.saturating_sub(self.forgotten + 1);
        self.past[from..].iter().flat_map(|past| &past.1)
    }

    /// Returns the states that a read sent at version `since` may return: that state and all later
    /// states, acknowledged or not.
    fn readable(&self, since: usize) -> States {
        let mut states = States::new();
        self.acknowledged(since).for_each(|state| add(&mut states, state.clone()));
        let asked = self.asked.iter();
        let next = asked.flat_map(|step| self.now().iter().map(|state| state.stepped(step).0));
        next.collect::<States>().into_iter().for_each(|state| add(&mut states, state));
        states
    }
}

#[derive(Default)]
pub(crate) struct Model {
    rows: BTreeMap<Key, Row>,
}

impl Model {
    /// Whether a change of the row is pending.
    pub(crate) fn is_busy(&self, key: Key) -> bool {
        self.rows.get(&key).is_some_and(|row| row.asked.is_some())
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.rows.keys().copied()
    }

    /// Records a sent step. Returns the version of the row before the step.
    pub(crate) fn ask(&mut self, key: Key, step: &Step) -> usize {
        let row = self.rows.entry(key).or_default();
        if step.changes() {
            assert!(row.asked.is_none(), "two concurrent changes of {key:?}");
            (row.asked, row.may_wait, row.shown) = (Some(step.clone()), true, false);
        }
        row.version()
    }

    /// Checks a reply. `since` is the result of [`Model::ask`].
    pub(crate) fn answer(
        &mut self,
        (key, step, since): (Key, &Step, usize),
        reply: &Reply,
        at: Duration,
    ) -> Result<(), String> {
        // The space may have been dropped.
        let Some(row) = self.rows.get_mut(&key) else { return Ok(()) };
        let is_calm = row.asked.is_none() && since == row.version();
        if !step.changes() && is_calm && row.now().iter().any(|state| state.shows(step, reply)) {
            // Discard the states that do not match the reply.
            let states = &mut row.past.last_mut().expect("every history has a first state").1;
            states.retain(|state| state.shows(step, reply));
            return Ok(());
        }
        let may_be = if step.changes() { row.now().clone() } else { row.readable(since) };
        let mut next = States::new();
        match reply {
            Reply::Error(text) => {
                let codes = ["MISCONF ", "OOM ", "LOADING ", "EXECABORT "];
                let is_gone = text.starts_with("ERR ") && step.may_be_gone(key);
                if is_gone || codes.iter().any(|code| text.starts_with(code)) {
                    // The change may have been applied, and may be logged later.
                    next.clone_from(&may_be);
                    may_be.iter().for_each(|state| add(&mut next, state.stepped(step).0));
                }
            }
            reply => {
                let after = may_be.iter().filter_map(|state| state.after(step, reply));
                after.for_each(|state| add(&mut next, state));
            }
        }
        if next.is_empty() {
            return Err(format!(
                "{key:?}: {step:?} returned {reply:?}; expected one of {may_be:?}"
            ));
        }
        if step.changes() {
            if matches!(reply, Reply::Error(_)) && row.unlogged.is_empty() {
                row.unlogged = row.now().clone();
            }
            row.asked = None;
            row.push(at, next);
        } else if row.asked.is_some() && row.may_wait {
            let is_before = row.acknowledged(since).any(|state| state.shows(step, reply));
            row.shown |= !is_before && !matches!(reply, Reply::Error(_));
        }
        Ok(())
    }

    /// Called after a failed commit. Readers may see unlogged changes from now on.
    pub(crate) fn round_failed(&mut self) {
        self.rows.values_mut().for_each(|row| row.may_wait = false);
    }

    /// Called after a successful commit. All changes in memory are in the log.
    pub(crate) fn round_succeeded(&mut self) {
        self.rows.values_mut().for_each(|row| row.unlogged.clear());
    }

    /// Called after the death of the process. `committed` is the start of the last successful
    /// commit. With `exact`, no acknowledged change may be lost. Otherwise, changes acknowledged
    /// before `committed` minus one second must survive, and later changes may be lost.
    pub(crate) fn crash(&mut self, at: Duration, committed: Duration, exact: bool) {
        for row in self.rows.values_mut() {
            let mut states = States::new();
            for (index, (_, may_be)) in row.past.iter().enumerate() {
                let next = row.past.get(index + 1);
                if next.is_none_or(|(acknowledged, _)| {
                    !exact && *acknowledged + MAX_LOSS_SPAN >= committed
                }) {
                    may_be.iter().for_each(|state| add(&mut states, state.clone()));
                }
            }
            if let Some(step) = row.asked.take() {
                // A change that a reader has seen is as durable as an acknowledged change.
                if exact && row.shown {
                    states.clear();
                }
                row.now().clone().iter().for_each(|state| add(&mut states, state.stepped(&step).0));
            }
            row.unlogged.drain(..).for_each(|state| add(&mut states, state));
            row.forgotten += row.past.len();
            row.past = vec![(at, states)];
        }
    }

    pub(crate) fn drop_space(&mut self, number: u32) {
        self.rows.retain(|key, _| !matches!(key, Key::Extra(of, _) if *of == number));
    }
}
