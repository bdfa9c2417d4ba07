//! What a connection has queued since MULTI, and what WATCH takes.

use dataset::engines::KeyRef;
use node::command::footprint::key_positions;
use node::command::spec::{Spec, flag};
use node::roles::node::Now;
use node::runtime::pubsub::Kind;
use resp::{Args, Kept};
use std::time::Duration;

/// Bytes that one watched key takes, in the client's own table and in that of all clients, rounded
/// up: `max_watched_keys` of them are the most.
pub(crate) const WATCHED_BYTES: usize = 192;

/// Changes of spaces that a transaction may have: each takes some tenths of a millisecond, in which
/// the other clients of its worker wait.
pub(crate) const MOST_SPACE_CHANGES: usize = 16;

/// Arguments that the set of an id counts as where its members are in a ledger: one that has to be
/// looked for there is a read of a file or two.
const EXACT_SET: usize = 128;

/// Nanoseconds that an argument takes, roughly.
const ARGUMENT_NS: usize = 1000;

/// Commands between MULTI and EXEC.
#[derive(Default)]
pub(crate) struct Transaction {
    pub(crate) kept: Kept,
    /// One was refused: EXEC will be, too.
    pub(crate) spoilt: bool,
    /// One may change data, or what others get.
    pub(crate) writes: bool,
    /// Arguments of those that touch data.
    data_args: usize,
    /// Changes of spaces.
    space_changes: usize,
    /// One changes data, and does nothing else: it is refused while changes are.
    pub(crate) changes: bool,
    /// EXEC has begun, and the next command of it is suspended.
    pub(crate) begun: Option<Begun>,
}

/// How far EXEC has come.
#[derive(Default)]
pub(crate) struct Begun {
    pub(crate) done: usize,
    pub(crate) replies: Vec<u8>,
    pub(crate) aside: Duration,
}

impl Transaction {
    /// Keeps a command; false, and the transaction is spoilt, if that takes more than `most` bytes.
    pub(crate) fn push(&mut self, spec: &Spec, args: Args<'_>, most: usize) -> bool {
        // Twice the bytes: a list that grows has room for as much again.
        if self.kept.bytes() + args.iter().map(<[u8]>::len).sum::<usize>() + args.len() * 8
            > most / 2
        {
            self.spoil();
            return false;
        }
        self.writes |= spec.may_write(args);
        self.changes |= spec.has(flag::WRITE);
        self.kept.push(args);
        true
    }

    /// Counts the arguments of a command that touches data, and what takes as long as many; whether
    /// they are `most` at most, with those before.
    pub(crate) fn has_room_for(
        &mut self,
        spec: &Spec,
        args: Args<'_>,
        node: Now<'_>,
        most: usize,
    ) -> bool {
        if spec.has(flag::READONLY) || spec.may_write(args) {
            self.data_args += args.len();
        }
        self.data_args += more_args(spec, args, node);
        self.data_args <= most
    }

    /// Counts a change of spaces; whether there are few.
    pub(crate) fn may_change_spaces(&mut self, spec: &Spec) -> bool {
        self.space_changes += usize::from(spec.has(flag::ADMIN) && spec.has(flag::WRITE));
        self.space_changes <= MOST_SPACE_CHANGES
    }

    /// From now on it can only be discarded.
    pub(crate) fn spoil(&mut self) {
        *self = Transaction { spoilt: true, ..Transaction::default() };
    }

    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.kept.bytes() + self.begun.as_ref().map_or(0, |begun| begun.replies.capacity())
    }

    /// What was queued.
    pub(crate) fn requests(&self) -> impl Iterator<Item = Args<'_>> {
        self.kept.iter()
    }

    /// Whether it would change data.
    pub(crate) fn writes(&self) -> bool {
        self.writes
    }
}

/// As how many more arguments a command counts than it has: a set whose members are in a ledger,
/// and a message for many.
fn more_args(spec: &Spec, args: Args<'_>, node: Now<'_>) -> usize {
    let effort = |kind| node.channels.effort(kind, args.at(1), args.at(2)) / ARGUMENT_NS;
    match spec.name {
        "publish" => return effort(Kind::Channel),
        "spublish" => return effort(Kind::Shard),
        _ => {}
    }
    let Some(engines) = node.loaded().filter(|engines| engines.ledgers().next().is_some()) else {
        return 0;
    };
    let is_exact = |at: &usize| {
        matches!(engines.resolve(args.at(*at)), Ok(KeyRef::Pair { space, .. })
            if space.ledger().is_some())
    };
    (EXACT_SET - 1) * key_positions(spec, args).filter(is_exact).count()
}
