//! Generates docs/commands.md from the command table.

use crate::commands::families::FAMILIES;
use node::command::spec::{Spec, flag};
use std::fmt::Write as _;

/// Returns the Markdown reference of all commands.
pub fn reference() -> String {
    let mut out = String::from(
        "# Commands\n\nPrinted by `tidemark commands` from the command table; a test keeps this \
         file equal to it.\n\n`space`, `view` and `action` are names from the configuration. An id \
         is a decimal number from 0 to 2^64-1. Keys of Redis's kind\n\
         (`post:17`, `post:17:like`, `liked:17`) name rows, cells and pairs by the patterns that \
         each space declares. Names of commands and\n\
         options may be written in any case. A key that fits no pattern is absent for commands \
         that read or delete, and refused by those that\n\
         write. [keys.md](keys.md) has more of keys, ids and members, and lines for \
         `redis-benchmark`.\n",
    );
    for (title, tables) in FAMILIES {
        let _ = write!(out, "\n## {title}\n");
        for command in tables.iter().copied().flatten() {
            // A pure container is left out, because the rows of its subcommands suffice.
            let spec = &command.spec;
            if command.subcommands.is_empty() || spec.arity == -1 || spec.has(flag::NAMED) {
                describe(&mut out, &command.spec);
            }
            for sub in command.subcommands.iter().filter(|sub| sub.spec.own_name() != "help") {
                describe(&mut out, &sub.spec);
            }
        }
    }
    out
}

fn describe(out: &mut String, spec: &Spec) {
    let mut kinds: Vec<&str> = Vec::new();
    for (bit, name) in flag::NAMES.iter().enumerate() {
        if spec.has(1 << bit) && ["write", "readonly", "admin", "fast"].contains(name) {
            kinds.push(name);
        }
    }
    let kinds = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
    let _ = write!(out, "\n### `{}`\n{}{kinds}\n", spec.synopsis(), spec.summary);
}

#[cfg(test)]
mod tests {
    use super::reference;

    #[test]
    fn the_reference_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/commands.md");
        let shipped = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            shipped == reference(),
            "docs/commands.md differs from the command table: regenerate it with `cargo xtask \
             print`"
        );
    }
}
