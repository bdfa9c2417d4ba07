//! Definition of a command: its row in the command table and its handler.
//!
//! A family's file starts with a [`Group`], the properties shared by its commands, and a list of
//! [`Command`]s. `families.rs` lists all families. [`install`] registers the rows in the
//! process-wide table and the handlers for [`handler`], so that a handler does not depend on the
//! list of families.

use crate::commands::call::Call;
use crate::commands::help::help;
use crate::commands::turn::Answered;
use node::command::spec::{Cost, KeyArgs, NO_KEYS, Outcome, Spec, flag};
use node::command::table;
use std::sync::OnceLock;

/// Handler of a command. It writes one reply, or returns a refusal that replaces everything
/// written.
pub(crate) type Handler = fn(&mut Call<'_>) -> Outcome;
/// Handler of a command that processes many items. The handler may yield the worker (`items.rs`).
pub(crate) type LongHandler = fn(&mut Call<'_>) -> Answered;

#[derive(Clone, Copy)]
pub(crate) enum Run {
    Once(Handler),
    Long(LongHandler),
}

#[derive(Clone, Copy)]
pub(crate) struct Command {
    pub(crate) spec: Spec,
    pub(crate) run: Run,
    pub(crate) subcommands: &'static [Command],
}

/// Properties shared by the commands of a family. A command's row may override them.
pub(crate) struct Group {
    /// See [`Spec::group`].
    name: &'static str,
    since: &'static str,
    keys: KeyArgs,
}

impl Group {
    pub(crate) const fn new(name: &'static str, since: &'static str, keys: KeyArgs) -> Group {
        Group { name, since, keys }
    }

    pub(crate) const fn row(
        &self,
        name: &'static str,
        arity: i32,
        flags: u32,
        usage: &'static str,
        run: Run,
        summary: &'static str,
    ) -> Command {
        let spec = Spec {
            name,
            arity,
            flags,
            keys: self.keys,
            group: self.name,
            since: self.since,
            usage,
            summary,
            cost: Cost::Constant,
            uses: ("", ""),
            tips: &[],
            subcommands: &[],
        };
        Command { spec, run, subcommands: &[] }
    }

    /// Defines a container command. If called without a subcommand, the command prints the help.
    pub(crate) const fn container(
        &self,
        name: &'static str,
        summary: &'static str,
        subcommands: &'static [Command],
    ) -> Command {
        self.row(name, -2, 0, "", Run::Once(help), summary).keys(NO_KEYS).with(subcommands)
    }

    pub(crate) const fn help(&self, name: &'static str) -> Command {
        let flags = flag::LOADING | flag::STALE;
        self.row(name, 2, flags, "", Run::Once(help), "Print this help.").keys(NO_KEYS)
    }
}

impl Command {
    pub(crate) const fn keys(mut self, keys: KeyArgs) -> Command {
        self.spec.keys = keys;
        self
    }

    pub(crate) const fn group(mut self, group: &'static str) -> Command {
        self.spec.group = group;
        self
    }

    pub(crate) const fn since(mut self, since: &'static str) -> Command {
        self.spec.since = since;
        self
    }

    /// Declares a complexity of O(N), where N is the number of `items`.
    pub(crate) const fn linear(mut self, items: &'static str) -> Command {
        self.spec.cost = Cost::Linear(items);
        self
    }

    pub(crate) const fn cost(mut self, cost: &'static str) -> Command {
        self.spec.cost = Cost::Other(cost);
        self
    }

    /// Sets the key usage flags that COMMAND INFO reports ([`Spec::uses`]).
    pub(crate) const fn uses(self, uses: &'static str) -> Command {
        self.two_uses(uses, uses)
    }

    /// Sets the key usage flags of the first key, and those of the other keys.
    pub(crate) const fn two_uses(mut self, first: &'static str, others: &'static str) -> Command {
        self.spec.uses = (first, others);
        self
    }

    pub(crate) const fn tips(mut self, tips: &'static [&'static str]) -> Command {
        self.spec.tips = tips;
        self
    }

    pub(crate) const fn with(mut self, subcommands: &'static [Command]) -> Command {
        self.subcommands = subcommands;
        self
    }

    /// Returns the row of the command, including the rows of its subcommands. The subcommands are
    /// leaked, because they live as long as the process.
    fn whole_row(&self) -> Spec {
        let subcommands: Vec<Spec> = self.subcommands.iter().map(|sub| sub.spec).collect();
        Spec { subcommands: Vec::leak(subcommands), ..self.spec }
    }
}

/// Handlers of all commands and subcommands, indexed by number ([`table::bit_of`]).
static HANDLERS: OnceLock<Vec<Run>> = OnceLock::new();

/// Registers the commands of this process; only the first call has an effect.
pub(crate) fn install<'a>(commands: impl Iterator<Item = &'a Command> + Clone) {
    HANDLERS.get_or_init(|| {
        table::install(|| commands.clone().map(Command::whole_row).collect());
        let with_subcommands =
            |command: &'a Command| [command].into_iter().chain(command.subcommands);
        commands.flat_map(with_subcommands).map(|command| command.run).collect()
    });
}

#[inline]
pub(crate) fn handler(number: usize) -> Run {
    HANDLERS.get().map_or(&[][..], Vec::as_slice)[number]
}
