//! The rows of `server/src/handlers/admin/server.rs`.

use super::acl;
use super::backup;
use super::command;
use super::config;
use crate::command::spec::{NO_KEYS, Spec, flag, rows_of};

rows_of!("server", NO_KEYS);

pub(crate) const ALWAYS: u32 = flag::LOADING | flag::STALE;

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    acl::ACL,
    command::COMMAND,
    config::CONFIG,
    spec("dbsize", 1, flag::READONLY | flag::FAST, "1.0.0", "",
        "How many rows there are. Pairs are not counted. Of a space that spills, rows in the range \
         of a file that are new or deleted since it was written are counted when they are merged \
         with it."),
    spec("flushall", -1, flag::WRITE, "1.0.0", "[ASYNC|SYNC]", NO_FLUSH),
    spec("flushdb", -1, flag::WRITE, "1.0.0", "[ASYNC|SYNC]", NO_FLUSH),
    spec("info", -1, ALWAYS, "1.0.0", "[section [section ...]]",
        "What the server knows of itself."),
    spec("bgsave", -1, flag::ADMIN | flag::NOSCRIPT, "1.0.0", "[SCHEDULE]",
        "Begins a snapshot. Reads and writes go on; INFO persistence and LASTSAVE tell when it is \
         done."),
    spec("bgrewriteaof", 1, flag::ADMIN | flag::NOSCRIPT, "1.0.0", "",
        "Begins a snapshot, as BGSAVE does: what the log before it has is not needed any more."),
    spec("lastsave", 1, ALWAYS | flag::FAST, "1.0.0", "",
        "When the last snapshot was complete, in seconds since 1970."),
    spec("save", 1, flag::ADMIN | flag::NO_MULTI | flag::NOSCRIPT, "1.0.0", "",
        "Writes a snapshot, and answers when it is complete. Other clients do not wait."),
    backup::BACKUP,
    spec("shutdown", -1, ALWAYS | flag::ADMIN | flag::NO_MULTI | flag::NOSCRIPT, "1.0.0",
        "[NOSAVE|SAVE] [NOW] [FORCE] [ABORT]",
        "Stops the server. A master first waits until its replicas have everything \
         (shutdown_timeout_s), but for NOW. ABORT ends that. A snapshot is written first if \
         replaying the log would take long, and not with NOSAVE. SAVE writes one; if that fails \
         the server goes on, but for FORCE. The connection ends when another server may have the \
         data folder."),
    spec("time", 1, ALWAYS | flag::FAST, "2.6.0", "",
        "Seconds since 1970, and microseconds in this second."),
];

pub(crate) const NO_FLUSH: &str = "Refused: rows are deleted one by one, pairs are unset one by \
                                   one; an empty server is one with a new data folder.";
