//! Looking ahead: which memory a request will need, asked for while the requests before it are still to be executed.
//!
//! A client that sends many small commands at once (HINCRBY, HMGET, SADD, FEED.ACT ...) would else wait for memory with each of them alone:
//! a bucket of counters, two lines of a filter. Commands that name many ids fetch theirs together anyway, and are not in this list.

use crate::engines::{Engines, KeyRef};
use crate::resp::{Args, natural};
use phantom::Member;

/// What a command's arguments name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ahead {
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
    (Ahead::Counter, &["hget", "hmget", "hgetall", "hexists", "hvals", "hincrby", "hset", "hmset", "hsetnx"]),
    (Ahead::Counter, &["get", "incr", "incrby", "decr", "decrby", "set", "getset"]),
    (Ahead::Pair, &["sadd", "srem", "sismember", "smismember", "bf.add", "bf.exists", "bf.madd", "bf.mexists"]),
    (Ahead::Pair, &["cf.add", "cf.addnx", "cf.exists", "cf.del"]),
    (Ahead::SpaceId, &["cnt.incrby", "cnt.set"]),
    (Ahead::SpaceMemberId, &["ph.add", "ph.del"]),
    (Ahead::ActionViewerId, &["feed.act", "feed.undo"]),
];

/// What to fetch for the command of this name.
pub(super) fn of(name: &str) -> Option<Ahead> {
    COMMANDS.iter().find(|(_, names)| names.contains(&name)).map(|(what, _)| *what)
}

/// Asks for it. Whatever is wrong with the arguments is for the command itself to say.
#[inline]
pub(super) fn fetch(what: Ahead, args: Args<'_>, engines: &Engines) {
    match what {
        Ahead::Counter => {
            if let Ok(KeyRef::Row { space, id } | KeyRef::Cell { space, id, .. }) = engines.resolve(args.at(1)) {
                engines.hint(id);
                space.prefetch(id);
            }
        }
        Ahead::Pair => {
            if let Ok(KeyRef::Pair { space, id }) = engines.resolve(args.at(1)) {
                engines.hint(id);
                space.prefetch(id, &Member::parse(args.at(2)));
            }
        }
        Ahead::SpaceId => {
            if let (Some(space), Some(id)) = (engines.counter(args.at(1)), natural(args.at(2))) {
                engines.hint(id);
                space.prefetch(id);
            }
        }
        Ahead::SpaceMemberId => {
            if let (Some(space), Some(id)) = (engines.existence(args.at(1)), natural(args.at(3))) {
                engines.hint(id);
                space.prefetch(id, &Member::parse(args.at(2)));
            }
        }
        Ahead::ActionViewerId => {
            if let (Some(action), Some(id)) = (engines.action(args.at(1)), natural(args.at(3))) {
                engines.hint(id);
                engines.prefetch(action, &Member::parse(args.at(2)), id);
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
            assert!(super::super::find(name.as_bytes()).is_some(), "{name}");
        }
    }
}
