//! What the server must answer: of each post the states that it may be in.
//!
//! Mostly that is one. After a crash it is each state that the promise of `fsync` allows, and after
//! an error ("what was changed is in memory, and will be logged") the one before and the one after.
//! A reply is right if it fits one of them, and leaves those that it fits. No two commands change
//! one post at the same time, so the order of changes is known.

use crate::reply::Reply;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// With `everysec` so much of what was acknowledged may be lost.
pub(crate) const LOST: Duration = Duration::from_secs(1);

/// No read waits for longer.
const KEPT: Duration = Duration::from_secs(200);

/// A row, by its space and its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Post(u64),
    User(u64),
    /// Of a space that comes and goes.
    Extra(u32, u64),
}

/// Flags of a post, by [`Flag`].
pub(crate) const FLAGS: [&str; 4] = ["like", "repost", "read", "seen"];

/// A flag: the first three belong to actions, of which the counter is the number of members.
pub(crate) type Flag = usize;
pub(crate) const LIKE: Flag = 0;
pub(crate) const REPOST: Flag = 1;
pub(crate) const READ: Flag = 2;
pub(crate) const SEEN: Flag = 3;

/// Flags of which old ones are recycled: then the answer is nil.
pub(crate) const RECYCLED: [Flag; 2] = [READ, SEEN];

/// All that is known of one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct State {
    /// Counters that no flag moves.
    counters: BTreeMap<String, i64>,
    members: [BTreeSet<u64>; FLAGS.len()],
    /// What was answered to increments with a token.
    tokens: BTreeMap<u32, i64>,
}

/// What a command does to one row, and shows of it.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// FEED.ACT and FEED.UNDO; PH.ADD and PH.DEL. Answers whether it changed anything.
    Set { flag: Flag, member: u64, on: bool },
    /// Answers the new value.
    Add { field: String, delta: i64 },
    /// The same, once for each token.
    AddOnce { field: String, delta: i64, token: u32 },
    /// Answers a number that says nothing.
    Put { field: String, value: i64 },
    /// The row and all flags that views or actions tie to it are gone.
    Forget,
    /// A page's entry for this viewer.
    Page { viewer: u64 },
    /// Whether the flag is set.
    Is { flag: Flag, member: u64 },
    /// How many members.
    Count { flag: Flag },
    /// All members, by the ledger.
    Members { flag: Flag },
    /// These counters, in order.
    Fields { fields: Vec<String> },
}

impl Step {
    /// Whether it names a field, or a space, that another client may have dropped meanwhile.
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

fn is_flag(reply: &Reply, flag: Flag, set: bool) -> bool {
    *reply == Reply::Int(i64::from(set)) || *reply == Reply::Nil && RECYCLED.contains(&flag)
}

impl State {
    fn counter(&self, field: &str) -> i64 {
        match FLAGS[..SEEN].iter().position(|name| *name == field) {
            Some(flag) => self.members[flag].len() as i64,
            None => self.counters.get(field).copied().unwrap_or_default(),
        }
    }

    /// The state after this, if it answered `reply`.
    fn after(&self, step: &Step, reply: &Reply) -> Option<State> {
        if !step.changes() {
            return self.shows(step, reply).then(|| self.clone());
        }
        // It lies below the horizon: nothing was done.
        if let (Step::Set { flag, .. }, Reply::Nil) = (step, reply) {
            return RECYCLED.contains(flag).then(|| self.clone());
        }
        let (next, expected) = self.stepped(step);
        expected.is_none_or(|expected| reply.count() == Some(expected)).then_some(next)
    }

    /// Whether a read may answer this.
    fn shows(&self, step: &Step, reply: &Reply) -> bool {
        match step {
            Step::Page { viewer } => self.is_page(*viewer, reply.items()),
            Step::Is { flag, member } => {
                is_flag(reply, *flag, self.members[*flag].contains(member))
            }
            Step::Count { flag } => reply.count() == Some(self.members[*flag].len() as i64),
            Step::Members { flag } => {
                let shown: BTreeSet<i64> = reply.items().iter().filter_map(Reply::count).collect();
                shown.into_iter().eq(self.members[*flag].iter().map(|&member| member as i64))
            }
            Step::Fields { fields } => {
                let shown = reply.items().iter().map(Reply::count);
                shown.eq(fields.iter().map(|field| Some(self.counter(field))))
            }
            _ => false,
        }
    }

    /// The state after this, and the number that is answered, if it says something.
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
                // Tokens outlive their rows, and no view or action ties `seen` to them.
                next.counters.clear();
                next.members[..SEEN].iter_mut().for_each(BTreeSet::clear);
                None
            }
            Step::Page { .. } | Step::Is { .. } | Step::Count { .. } => None,
            Step::Members { .. } | Step::Fields { .. } => None,
        };
        (next, expected)
    }

    /// Four counters and two flags, as the view `home` has them.
    fn is_page(&self, viewer: u64, shown: &[Reply]) -> bool {
        let counters = ["like", "repost", "comment", "read"];
        let are_right = counters
            .iter()
            .zip(shown)
            .all(|(field, shown)| shown.count() == Some(self.counter(field)));
        let has = |flag: Flag, shown| is_flag(shown, flag, self.members[flag].contains(&viewer));
        are_right && shown.len() == 6 && has(LIKE, &shown[4]) && has(READ, &shown[5])
    }
}

/// The states that a row may be in.
type States = Vec<State>;

fn add(states: &mut States, state: State) {
    if !states.contains(&state) {
        states.push(state);
    }
}

/// What is known of one row.
struct Row {
    /// What it was after each acknowledged change, and when that was acknowledged; the last one is
    /// what it is.
    past: Vec<(Duration, States)>,
    /// How many changes there were before the first of `past`.
    forgotten: usize,
    /// A change that is asked for and not answered.
    asked: Option<Step>,
    /// No round of commits has failed since: with `always` readers wait for it.
    may_wait: bool,
    /// A reader was shown it.
    shown: bool,
    /// What it was before the first change that was answered with an error since the last round
    /// that went well: the next crash may bring that back, also if a reader was shown the change.
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
        &self.past.last().expect("it has a first state").1
    }

    fn push(&mut self, at: Duration, states: States) {
        self.past.push((at, states));
        // It can neither be lost any more nor be shown to a read of before.
        while self.past.len() > 1 && self.past[1].0 + KEPT < at {
            self.past.remove(0);
            self.forgotten += 1;
        }
    }

    /// How many changes there were.
    fn version(&self) -> usize {
        self.forgotten + self.past.len()
    }

    /// The state of when there were so many changes, and those since that were acknowledged.
    fn acknowledged(&self, since: usize) -> impl Iterator<Item = &State> {
        let from = since.saturating_sub(self.forgotten + 1);
        self.past[from..].iter().flat_map(|past| &past.1)
    }

    /// What a read may show that was asked for when there were so many changes: the state of then,
    /// or any since.
    fn readable(&self, since: usize) -> States {
        let mut states = States::new();
        self.acknowledged(since).for_each(|state| add(&mut states, state.clone()));
        let asked = self.asked.iter();
        let next = asked.flat_map(|step| self.now().iter().map(|state| state.stepped(step).0));
        next.collect::<States>().into_iter().for_each(|state| add(&mut states, state));
        states
    }
}

/// See the top of the file.
#[derive(Default)]
pub(crate) struct Model {
    rows: BTreeMap<Key, Row>,
}

impl Model {
    /// Whether a change of it is asked for.
    pub(crate) fn is_busy(&self, key: Key) -> bool {
        self.rows.get(&key).is_some_and(|row| row.asked.is_some())
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.rows.keys().copied()
    }

    /// This is asked for. Gives how many changes there were before.
    pub(crate) fn ask(&mut self, key: Key, step: &Step) -> usize {
        let row = self.rows.entry(key).or_default();
        if step.changes() {
            assert!(row.asked.is_none(), "{key:?} is changed by two at once");
            (row.asked, row.may_wait, row.shown) = (Some(step.clone()), true, false);
        }
        row.version()
    }

    /// This was answered, at this time. `since`: what [`Model::ask`] gave.
    pub(crate) fn answer(
        &mut self,
        (key, step, since): (Key, &Step, usize),
        reply: &Reply,
        at: Duration,
    ) -> Result<(), String> {
        // Its space may have been dropped.
        let Some(row) = self.rows.get_mut(&key) else { return Ok(()) };
        let is_calm = row.asked.is_none() && since == row.version();
        if !step.changes() && is_calm && row.now().iter().any(|state| state.shows(step, reply)) {
            // It is known better than before.
            let states = &mut row.past.last_mut().expect("it has a first state").1;
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
                    // It may have been done, and may be logged yet.
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
            return Err(format!("{key:?}: {step:?} was answered {reply:?}; it may be {may_be:?}"));
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

    /// A round of commits has failed: what is changed in memory is shown to readers from now on.
    pub(crate) fn round_failed(&mut self) {
        self.rows.values_mut().for_each(|row| row.may_wait = false);
    }

    /// One has gone well: all that is changed in memory is in the log.
    pub(crate) fn round_went_well(&mut self) {
        self.rows.values_mut().for_each(|row| row.unlogged.clear());
    }

    /// The process has died. `committed`: when the last round of commits began that went well. A
    /// change may be lost if it was acknowledged later than a second before that. `exact`: nothing
    /// that was acknowledged may be lost.
    pub(crate) fn crash(&mut self, at: Duration, committed: Duration, exact: bool) {
        for row in self.rows.values_mut() {
            let mut states = States::new();
            for (index, (_, may_be)) in row.past.iter().enumerate() {
                let next = row.past.get(index + 1);
                if next.is_none_or(|(acknowledged, _)| !exact && *acknowledged + LOST >= committed)
                {
                    may_be.iter().for_each(|state| add(&mut states, state.clone()));
                }
            }
            if let Some(step) = row.asked.take() {
                // What a reader was shown is as safe as what was acknowledged.
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

    /// A space that comes and goes has gone.
    pub(crate) fn drop_space(&mut self, number: u32) {
        self.rows.retain(|key, _| !matches!(key, Key::Extra(of, _) if *of == number));
    }
}
