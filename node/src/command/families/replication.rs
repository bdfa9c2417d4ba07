//! The rows of `server/src/handlers/cluster/replication.rs`.

use crate::command::spec::{NO_KEYS, Spec, flag, rows_of};

rows_of!("server", NO_KEYS);

pub(crate) const ADMIN: u32 = flag::ADMIN | flag::NOSCRIPT | flag::STALE;

pub(crate) const NOT_TO_REDIS: &str = "Refused: a Redis server cannot replicate from Tidemark.";

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    spec("replicaof", -3, ADMIN, "5.0.0", "<host port [FORCE]|NO ONE>",
        "Follows a master, or becomes one. Kept in the data folder before it answers. FORCE: the \
         data are given up for whatever the master has. NO ONE on a connected replica: its master \
         steps down and follows it, and no write is lost."),
    spec("slaveof", -3, ADMIN, "1.0.0", "<host port [FORCE]|NO ONE>", "The same as REPLICAOF."),
    spec("role", 1, flag::LOADING | flag::STALE | flag::FAST | flag::NOSCRIPT, "2.8.12", "",
        "Master or slave, the offset, and the replicas or the master."),
    Spec { group: "generic", ..spec("wait", 3, flag::NOSCRIPT, "3.0.0", "numreplicas timeout",
        "Answers when so many replicas have all that was written before, or after so many \
         milliseconds (0: never): with how many have it.") },
    Spec { group: "generic", ..spec("waitaof", 4, flag::NOSCRIPT, "7.2.0",
        "numlocal numreplicas timeout",
        "Waits for disks, the own one and those of replicas: answers with 1 or 0 for it, and with \
         how many replicas have all synced.") },
    spec("failover", -1, flag::ADMIN | flag::NOSCRIPT | flag::STALE, "6.2.0",
        "[TO host port [FORCE]] [ABORT] [TIMEOUT milliseconds]",
        "Pauses writes until a replica has everything, and makes it the master; this node follows \
         it. ABORT ends that, unless the replica was asked and its answer is missing."),
    spec("tm.replicate", -2, ADMIN | flag::NO_MULTI, "0.1.0",
        "protocol [FAILOVER offset lineage term]",
        "Turns the connection into a replica's. For Tidemark's own replicas. FAILOVER: takes over \
         first, if this node has that history, up to the offset."),
    spec("replconf", -1, ADMIN, "3.0.0", "[option value [option value ...]]",
        NOT_TO_REDIS),
    spec("psync", -3, ADMIN | flag::NO_MULTI, "2.8.0", "replicationid offset",
        NOT_TO_REDIS),
    spec("sync", 1, ADMIN | flag::NO_MULTI, "1.0.0", "", NOT_TO_REDIS),
];
