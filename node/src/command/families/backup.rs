//! The rows of `server/src/handlers/admin/backup.rs`.

use crate::command::spec::{NO_KEYS, Spec, flag, help_row};

const fn spec(
    name: &'static str,
    arity: i32,
    flags: u32,
    usage: &'static str,
    summary: &'static str,
) -> Spec {
    Spec {
        name,
        arity,
        flags: flag::ADMIN | flag::NOSCRIPT | flags,
        keys: NO_KEYS,
        group: "server",
        since: "0.1.0",
        usage,
        summary,
        subcommands: &[],
    }
}

#[rustfmt::skip]
pub(crate) const BACKUP: Spec = Spec {
    name: "backup", arity: -2, flags: 0, keys: NO_KEYS, group: "server", since: "0.1.0", usage: "",
    summary: "A container for commands about backups.",
    subcommands: &[
        help_row("backup|help", "server", "0.1.0"),
        spec("backup|status", 2, flag::LOADING | flag::STALE, "",
            "The backup that is being made, how the last one went, and up to where the log is kept \
             beside them, as a map."),
        spec("backup|stop", 2, flag::LOADING | flag::STALE, "",
            "Gives up the backup that is being made; nothing is left of it."),
        spec("backup|to", 3, flag::STALE | flag::NO_MULTI, "dir",
            "Begins a backup in a new folder below backup.dir, with a name like nightly/monday, or \
             a name of its own for that folder itself (.). Reads and writes go on; BACKUP STATUS \
             and INFO persistence tell when it is done. It holds all that was acknowledged before, \
             and more. tidemark restore makes a data folder of it."),
    ],
};
