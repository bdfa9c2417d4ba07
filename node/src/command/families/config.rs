//! The rows of `server/src/handlers/admin/config.rs`.

use crate::command::spec::{NO_KEYS, Spec, flag, help_row};

pub(crate) const ADMIN: u32 = flag::ADMIN | flag::NOSCRIPT | flag::LOADING | flag::STALE;

pub(crate) const fn spec(
    name: &'static str,
    arity: i32,
    usage: &'static str,
    since: &'static str,
    summary: &'static str,
) -> Spec {
    Spec {
        name,
        arity,
        flags: ADMIN,
        keys: NO_KEYS,
        group: "server",
        since,
        usage,
        summary,
        subcommands: &[],
    }
}

#[rustfmt::skip]
pub(crate) const CONFIG: Spec = Spec {
    name: "config", arity: -2, flags: 0, keys: NO_KEYS, group: "server", since: "2.0.0", usage: "",
    summary: "A container for commands about the configuration.", 
    subcommands: &[
        spec("config|get", -3, "parameter [parameter ...]", "2.0.0",
            "Settings whose names match the patterns; our own by section and key (server.port), \
             and those that Redis's tools ask for. Passwords are shown only to users that may do \
             everything."),
        help_row("config|help", "server", "5.0.0"),
        spec("config|resetstat", 2, "", "2.0.0",
            "Begins the counts of INFO stats, commandstats, latencystats and errorstats anew."),
        spec("config|rewrite", 2, "", "2.8.0",
            "Writes what has changed into the configuration file, and keeps the rest of it: \
             settings, users, and the fields of counter spaces as TM.SPACE ALTER left them, so \
             that a new node starts with the file. When it answers, the file is safe on the \
             disk."),
        spec("config|set", -4, "parameter value [parameter value ...]", "2.0.0",
            "Changes settings while the server runs: all of them, or none. The configuration file \
             marks those that can be changed with *. client-output-buffer-limit sets \
             max_output_buffer_bytes (normal) and max_push_buffer_bytes (pubsub). Names of Redis \
             that tune what does not exist here (hz, maxmemory-samples, hash-max-listpack-entries \
             and their like) take any value and have no effect."),
    ],
};
