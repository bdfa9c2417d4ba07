//! The rows of `server/src/handlers/admin/command.rs`.

use crate::command::spec::{NO_KEYS, Spec, flag, help_row};

pub(crate) const ALWAYS: u32 = flag::LOADING | flag::STALE;

pub(crate) const fn spec(
    name: &'static str,
    arity: i32,
    usage: &'static str,
    summary: &'static str,
) -> Spec {
    Spec {
        name,
        arity,
        flags: ALWAYS,
        keys: NO_KEYS,
        group: "server",
        since: "2.8.13",
        usage,
        summary,
        subcommands: &[],
    }
}

#[rustfmt::skip]
pub(crate) const COMMAND: Spec = Spec {
    subcommands: &[
        spec("command|count", 2, "", "How many commands there are."),
        Spec { since: "7.0.0", ..spec("command|docs", -2, "[command-name [command-name ...]]",
            "What commands do, as a map.") },
        spec("command|getkeys", -4, "command arg [arg ...]",
            "Which arguments of a command are keys."),
        Spec { since: "7.0.0", ..spec("command|getkeysandflags", -4, "command arg [arg ...]",
            "Which arguments of a command are keys, and what it does with them.") },
        help_row("command|help", "server", "5.0.0"),
        spec("command|info", -2, "[command-name [command-name ...]]",
            "What clients need to know of commands."),
        Spec { since: "7.0.0", ..spec("command|list", -2,
            "[FILTERBY <MODULE module-name|ACLCAT category|PATTERN pattern>]",
            "Names of commands.") },
    ],
    ..spec("command", -1, "", "What clients need to know of all commands.")
};
