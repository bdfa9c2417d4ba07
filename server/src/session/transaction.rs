//! Commands queued after MULTI, and the memory cost of WATCH.

use dataset::engines::KeyRef;
use node::command::footprint::key_positions;
use node::command::id_list::count_packed;
use node::command::spec::{Spec, flag};
use node::roles::node::Now;
use node::runtime::pubsub::ChannelKind;
use resp::{Args, RequestQueue};
use std::time::Duration;

/// Bytes per watched key, rounded up: entries in the client's table and in the global table. A
/// client may watch at most `max_watched_keys` keys.
pub(crate) const WATCHED_BYTES: usize = 192;

/// Maximum number of schema changes per transaction. Each change takes a few tenths of a
/// millisecond and blocks the worker's other clients.
pub(crate) const MAX_SPACE_CHANGES: usize = 16;

/// Number of arguments that a key of a set with an exact ledger counts as. A lookup in the ledger
/// may read one or two files.
const EXACT_SET: usize = 128;

/// Approximate execution time per argument, in nanoseconds.
const ARGUMENT_NS: usize = 1000;

#[derive(Default)]
pub(crate) struct Transaction {
    pub(crate) kept: RequestQueue,
    /// True if the server has refused to queue a command. EXEC then returns an error.
    pub(crate) has_refused_command: bool,
    /// Whether a command may change data or send messages.
    pub(crate) writes: bool,
    /// Number of arguments of commands that access data.
    data_args: usize,
    space_changes: usize,
    /// Whether a command with the flag WRITE is queued. EXEC is then refused while the node accepts
    /// no writes.
    pub(crate) changes: bool,
    pub(crate) begun: Option<ExecProgress>,
}

/// Progress of a suspended EXEC.
#[derive(Default)]
pub(crate) struct ExecProgress {
    pub(crate) done: usize,
    pub(crate) replies: Vec<u8>,
    pub(crate) aside: Duration,
}

impl Transaction {
    /// Queues a command. Returns false and marks the transaction as failed if the queue would take
    /// more than `most` bytes.
    pub(crate) fn push(&mut self, spec: &Spec, args: Args<'_>, most: usize) -> bool {
        // Compare with half the limit, because a growing vector may reserve twice its length.
        if self.kept.bytes() + args.iter().map(<[u8]>::len).sum::<usize>() + args.len() * 8
            > most / 2
        {
            self.fail_transaction();
            return false;
        }
        self.writes |= spec.may_write(args);
        self.changes |= spec.has(flag::WRITE);
        self.kept.push(args);
        true
    }

    /// Adds the cost of a command that accesses data to the total. Returns whether the total is at
    /// most `most` arguments.
    pub(crate) fn has_room_for(
        &mut self,
        spec: &Spec,
        args: Args<'_>,
        node: Now<'_>,
        most: usize,
    ) -> bool {
        if spec.has(flag::READONLY) || spec.may_write(args) {
            self.data_args += args.len() + count_packed(args);
        }
        self.data_args += more_args(spec, args, node);
        self.data_args <= most
    }

    /// Counts a schema change; returns whether the number is within the limit.
    pub(crate) fn may_change_spaces(&mut self, spec: &Spec) -> bool {
        self.space_changes += usize::from(spec.has(flag::ADMIN) && spec.has(flag::WRITE));
        self.space_changes <= MAX_SPACE_CHANGES
    }

    /// Discards the queue; only DISCARD or a failing EXEC can follow.
    pub(crate) fn fail_transaction(&mut self) {
        *self = Transaction { has_refused_command: true, ..Transaction::default() };
    }

    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.kept.bytes() + self.begun.as_ref().map_or(0, |begun| begun.replies.capacity())
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = Args<'_>> {
        self.kept.iter()
    }

    /// Returns whether a queued command may change data or send messages.
    pub(crate) fn writes(&self) -> bool {
        self.writes
    }
}

/// Returns the additional cost of a command, expressed as a number of arguments. Sets in exact
/// ledgers and messages with many receivers cost more.
fn more_args(spec: &Spec, args: Args<'_>, node: Now<'_>) -> usize {
    let effort = |kind| node.channels.effort(kind, args.at(1), args.at(2)) / ARGUMENT_NS;
    match spec.name {
        "publish" => return effort(ChannelKind::Channel),
        "spublish" => return effort(ChannelKind::Shard),
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
