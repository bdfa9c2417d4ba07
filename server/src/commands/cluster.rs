//! What clients ask to see whether this is a part of a cluster, or has modules. It is none.

use super::{Call, NO_KEYS, Outcome, Spec, flag, help, help_row, refuse};
use crate::resp::Reply;

const fn spec(
    name: &'static str,
    arity: i32,
    flags: u32,
    summary: &'static str,
    run: super::Handler,
) -> Spec {
    Spec {
        name,
        arity,
        flags,
        keys: NO_KEYS,
        group: "cluster",
        since: "3.0.0",
        usage: "",
        summary,
        run,
        subcommands: &[],
    }
}

const NONE: &str = "Refused: this is not a part of a cluster.";

#[rustfmt::skip]
pub(super) const TABLE: &[Spec] = &[
    spec("asking", 1, flag::FAST, NONE, no_cluster),
    Spec { usage: "subcommand [arg [arg ...]]", ..spec("cluster", -2, 0, NONE, no_cluster) },
    spec("readonly", 1, flag::LOADING | flag::STALE | flag::FAST, NONE, no_cluster),
    spec("readwrite", 1, flag::LOADING | flag::STALE | flag::FAST, NONE, no_cluster),
    Spec {
        group: "server",
        since: "4.0.0",
        subcommands: &[
            help_row("module|help", "server", "5.0.0"),
            Spec { group: "server", since: "4.0.0", ..spec("module|list", 2, flag::ADMIN | flag::NOSCRIPT,
                "bf, for clients that look for RedisBloom: its commands are built in.", list) },
        ],
        ..spec("module", -2, 0, "A container for commands about modules.", help)
    },
];

fn no_cluster(_: &mut Call<'_>) -> Outcome {
    Err(refuse!("ERR This instance has cluster support disabled"))
}

/// The version of RedisBloom whose commands these are, as a module says it.
const BLOOM_VERSION: i64 = 20_405;

fn list(call: &mut Call<'_>) -> Outcome {
    write_modules(&mut call.reply);
    Ok(())
}

/// As MODULE LIST and HELLO have it.
pub(super) fn write_modules(reply: &mut Reply<'_>) {
    reply.array(1);
    reply.map(4);
    reply.bulk(b"name");
    reply.bulk(b"bf");
    reply.bulk(b"ver");
    reply.int(BLOOM_VERSION);
    reply.bulk(b"path");
    reply.bulk(b"");
    reply.bulk(b"args");
    reply.array(0);
}
