//! Looking ahead: which memory a request will need, asked for while the requests before it are
//! still to be executed.
//!
//! A client that sends many small commands at once (HINCRBY, HMGET, SADD, FEED.ACT ...) would else
//! wait for memory with each of them alone: a bucket of counters, two lines of a filter. Commands
//! that name many ids fetch theirs together anyway, and are not in this list.

use crate::command::spec::flag;
use crate::command::table::Found;
use crate::command::table::all;
use crate::handlers::call::member;
use dataset::engines::{CounterSpace, Engines, ExistenceSpace, KeyRef};
use phantom::Member;
use resp::{Args, natural};
use std::sync::LazyLock;

/// What a command's arguments name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ahead {
    /// A key of a row or a cell.
    Counter,
    /// A key of an id's pairs, and the first of the members.
    Pair,
    /// A counter space and an id.
    SpaceId,
    /// An existence space, a member and an id.
    SpaceMemberId,
    /// An action, a viewer and an id.
    ActionViewerId,
}

/// Which commands, by kind.
const COMMANDS: &[(Ahead, &[&str])] = &[
    (
        Ahead::Counter,
        &["hget", "hmget", "hgetall", "hexists", "hvals", "hincrby", "hset", "hmset", "hsetnx"],
    ),
    (Ahead::Counter, &["get", "incr", "incrby", "decr", "decrby", "set", "getset"]),
    (
        Ahead::Pair,
        &[
            "sadd",
            "srem",
            "sismember",
            "smismember",
            "bf.add",
            "bf.exists",
            "bf.madd",
            "bf.mexists",
        ],
    ),
    (Ahead::Pair, &["cf.add", "cf.addnx", "cf.exists", "cf.del"]),
    (Ahead::SpaceId, &["cnt.incrby", "cnt.set"]),
    (Ahead::SpaceMemberId, &["ph.add", "ph.del"]),
    (Ahead::ActionViewerId, &["feed.act", "feed.undo"]),
];

/// What to fetch for the command of this name.
fn of(name: &str) -> Option<Ahead> {
    COMMANDS.iter().find(|(_, names)| names.contains(&name)).map(|(what, _)| *what)
}

/// By the command's number.
static AHEAD: LazyLock<Vec<Option<Ahead>>> =
    LazyLock::new(|| all().iter().map(|spec| of(spec.name)).collect());

/// What to fetch for a request of the command with this number, before it is its turn.
#[inline]
fn ahead_of(number: u16) -> Option<Ahead> {
    AHEAD[usize::from(number)]
}

/// Looks ahead over the requests of one batch. Most of them name ids of one space, so its tables
/// are looked up once.
pub(crate) struct LookAhead<'a> {
    engines: &'a Engines,
    rows: Option<(&'a CounterSpace, counter::Read<'a>)>,
    pairs: Option<(&'a ExistenceSpace, phantom::Hints<'a>)>,
}

impl<'a> LookAhead<'a> {
    /// For requests to these engines.
    #[inline]
    pub(crate) fn new(engines: &'a Engines) -> LookAhead<'a> {
        LookAhead { engines, rows: None, pairs: None }
    }

    /// Asks for what a request will need, if it is one of those that need little. Whatever is wrong
    /// with its arguments is for the command itself to say.
    #[inline]
    pub(crate) fn at(&mut self, found: Found, args: Args<'_>) {
        let Some((number, spec)) = found else { return };
        if let Some(what) = ahead_of(number)
            && let Some(id) = self.fetch(what, args)
            // A read needs nothing of the committer.
            && spec.has(flag::WRITE)
        {
            self.engines.hint(id);
        }
    }

    #[inline]
    fn row(&mut self, space: &'a CounterSpace, id: u64) {
        let view = match &self.rows {
            Some((of, view)) if std::ptr::eq(*of, space) => view,
            _ => &self.rows.insert((space, space.read())).1,
        };
        view.prefetch(&[id]);
    }

    #[inline]
    fn pair(&mut self, space: &'a ExistenceSpace, id: u64, member: &Member<'_>) {
        let hints = match &self.pairs {
            Some((of, hints)) if std::ptr::eq(*of, space) => hints,
            _ => &self.pairs.insert((space, space.hints())).1,
        };
        hints.prefetch(id, member);
    }

    fn fetch(&mut self, what: Ahead, args: Args<'_>) -> Option<u64> {
        let engines = self.engines;
        match what {
            Ahead::Counter => {
                let (space, id) = engines.row_of(args.at(1))?;
                self.row(space, id);
                Some(id)
            }
            Ahead::Pair => match engines.resolve(args.at(1)) {
                Ok(KeyRef::Pair { space, id }) => {
                    self.pair(space, id, &member(args.at(2)));
                    Some(id)
                }
                _ => None,
            },
            Ahead::SpaceId => {
                let (space, id) = (engines.counter(args.at(1))?, natural(args.at(2))?);
                self.row(space, id);
                Some(id)
            }
            Ahead::SpaceMemberId => {
                let (space, id) = (engines.existence(args.at(1))?, natural(args.at(3))?);
                self.pair(space, id, &member(args.at(2)));
                Some(id)
            }
            Ahead::ActionViewerId => {
                let (action, id) = (engines.action(args.at(1))?, natural(args.at(3))?);
                let (flags, counters) = engines.spaces_of(action);
                self.pair(flags, id, &member(args.at(2)));
                self.row(counters, id);
                Some(id)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_command() {
        for name in COMMANDS.iter().flat_map(|(_, names)| *names) {
            assert!(crate::command::table::find(name.as_bytes()).is_some(), "{name}");
        }
    }
}
