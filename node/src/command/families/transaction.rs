//! The rows of `server/src/handlers/redis/transaction.rs`.

use crate::command::spec::{ALL_KEYS, NO_KEYS, Spec, flag};

pub(crate) const ALWAYS: u32 = flag::LOADING | flag::STALE | flag::FAST | flag::NOSCRIPT;

pub(crate) const fn spec(
    name: &'static str,
    flags: u32,
    since: &'static str,
    summary: &'static str,
) -> Spec {
    Spec {
        name,
        arity: 1,
        flags,
        keys: NO_KEYS,
        group: "transactions",
        since,
        usage: "",
        summary,
        subcommands: &[],
    }
}

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    spec("multi", ALWAYS | flag::AT_ONCE, "1.2.0",
        "From now on commands are queued, for EXEC."),
    spec("exec", ALWAYS & !flag::FAST | flag::AT_ONCE | flag::SKIP_SLOWLOG, "1.2.0",
        "Executes what was queued: no other client's change comes between, and the log has all of \
         it or nothing. Per command its reply; nil if a watched key has changed. A command that \
         fails does not stop the others."),
    spec("discard", ALWAYS | flag::AT_ONCE, "2.0.0",
        "Forgets what was queued, and what is watched."),
    Spec { arity: -2, keys: ALL_KEYS, usage: "key [key ...]",
        ..spec("watch", flag::STALE | flag::FAST | flag::NOSCRIPT | flag::AT_ONCE, "2.2.0",
        "The next EXEC does nothing if one of these keys has changed by then. A cell's key watches \
         its whole row; a change of a space's schema, or a roll, counts as a change of all its \
         keys.") },
    spec("unwatch", ALWAYS, "2.2.0", "Forgets what is watched."),
];
