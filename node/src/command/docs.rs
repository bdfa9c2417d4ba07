//! What COMMAND DOCS tells of a command. What it costs is named here; the rest stands in the table.

use crate::command::spec::Spec;
use crate::command::usage;
use crate::command::usage::Argument;
use resp::Reply;

/// What a command costs that takes more than constant time.
const COSTS: &[(&str, &[&str])] = &[
    (
        "O(N) where N is the number of ids",
        &["feed.get", "feed.act", "feed.undo", "cnt.get", "cnt.mincrby", "cnt.del", "tm.forget"],
    ),
    ("O(N) where N is the number of ids", &["ph.add", "ph.exists", "ph.del"]),
    (
        "O(N) where N is the number of bytes of the payload, and of members of a set",
        &["restore", "restore-asking"],
    ),
    ("O(N) where N is the number of fields", &["dump"]),
    (
        "O(N) where N is the number of fields",
        &[
            "cnt.incrby",
            "cnt.set",
            "hset",
            "hmset",
            "hmget",
            "hgetall",
            "hkeys",
            "hvals",
            "hdel",
            "hscan",
        ],
    ),
    (
        "O(N) where N is the number of keys",
        &["mget", "mset", "msetnx", "del", "unlink", "exists", "touch", "watch"],
    ),
    ("O(N) where N is the number of keys", &["mincr", "bfmset", "bfmget"]),
    (
        "O(N) where N is the number of members",
        &["sadd", "srem", "smismember", "bf.madd", "bf.mexists", "bf.insert", "cf.mexists"],
    ),
    ("O(N) where N is the number of rows of all spaces, at most 10000", &["keys"]),
    (
        "O(1) for every call, O(N) for all of them, where N is the number of rows",
        &["scan", "cnt.scan"],
    ),
    (
        "O(N+M) where N is the number of entries that are given and M the bytes of 64 KiB of log, \
         or, where an id lies in a segment that was not looked at since the start, of that",
        &["xread", "xrange", "xrevrange", "xreadgroup", "xclaim", "xautoclaim"],
    ),
    (
        "O(N) where N is the number of bytes of the log, the first time, and of what it has grown \
         by since, each other time",
        &["xlen", "xinfo|stream", "xinfo|groups"],
    ),
    ("O(N) where N is the number of ids", &["xack"]),
    ("O(N) where N is the number of pending entries", &["xpending", "xgroup|delconsumer"]),
    ("O(N) where N is the number of consumers", &["xinfo|consumers"]),
    ("O(N) where N is the number of rows in a sample of at most a million", &["tm.advise"]),
    ("O(N) where N is the number of tables", &["tm.tables", "tm.space|list", "tm.rebuild"]),
    ("O(N) where N is the number of rows in the tables", &["tm.spill"]),
    (
        "O(N) where N is the number of rows and bytes of filters that have changed since the last \
         one",
        &["save", "bgsave"],
    ),
    (
        "O(N) where N is the number of commands",
        &["command", "command|docs", "command|info", "command|list"],
    ),
    ("O(N) where N is the number of commands that were timed", &["latency|histogram"]),
    ("O(N) where N is the number of entries", &["slowlog|get", "slowlog|reset", "acl|log"]),
    ("O(N) where N is the number of settings", &["config|get", "config|set", "config|rewrite"]),
    ("O(N) where N is the number of users", &["acl|list", "acl|load", "acl|save", "acl|users"]),
    ("O(N) where N is the number of rules", &["acl|setuser", "acl|getuser"]),
    (
        "O(N) where N is the number of connections",
        &["acl|deluser", "client|kill", "client|list", "client|unpause"],
    ),
    (
        "O(N) where N is the number of channels",
        &["subscribe", "unsubscribe", "ssubscribe", "sunsubscribe", "pubsub|numsub"],
    ),
    (
        "O(N) where N is the number of channels",
        &["pubsub|channels", "pubsub|shardchannels", "pubsub|shardnumsub"],
    ),
    ("O(N) where N is the number of patterns", &["psubscribe", "punsubscribe"]),
    (
        "O(N+M) where N is the number of listeners of the channel and M the number of patterns",
        &["publish"],
    ),
    ("O(N) where N is the number of listeners of the channel", &["spublish"]),
    ("O(N) where N is the number of replicas", &["role"]),
    ("O(N) where N is the number of spaces", &["dbsize", "info"]),
    ("what the commands of the transaction cost", &["exec"]),
    ("O(N) where N is the number of queued commands", &["discard"]),
    ("what all commands of all clients cost, once more", &["monitor"]),
    ("what the replica lacks: its files, or the log since it was away", &["tm.replicate"]),
];

/// What a command costs.
fn cost(spec: &Spec) -> &'static str {
    COSTS.iter().find(|(_, names)| names.contains(&spec.name)).map_or("O(1)", |(cost, _)| cost)
}

/// A command's name, and what there is to say of it.
pub fn write(reply: &mut Reply<'_>, spec: &Spec) {
    let arguments = usage::arguments(spec);
    reply.bulk(spec.name.as_bytes());
    reply.map(4 + usize::from(!arguments.is_empty()) + usize::from(!spec.subcommands.is_empty()));
    for (name, text) in [
        ("summary", spec.summary),
        ("since", spec.since),
        ("group", spec.group),
        ("complexity", cost(spec)),
    ] {
        reply.bulk(name.as_bytes());
        reply.bulk(text.as_bytes());
    }
    if !arguments.is_empty() {
        write_arguments(reply, &arguments);
    }
    if !spec.subcommands.is_empty() {
        reply.bulk(b"subcommands");
        reply.map(spec.subcommands.len());
        for sub in spec.subcommands {
            write(reply, sub);
        }
    }
}

fn write_arguments(reply: &mut Reply<'_>, arguments: &[Argument]) {
    reply.bulk(b"arguments");
    reply.array(arguments.len());
    for argument in arguments {
        let flags: Vec<&str> = [
            (argument.optional, "optional"),
            (argument.multiple, "multiple"),
            (argument.multiple_token, "multiple_token"),
        ]
        .into_iter()
        .filter_map(|(is, name)| is.then_some(name))
        .collect();
        let there = [
            argument.key.is_some(),
            argument.token.is_some(),
            !flags.is_empty(),
            !argument.parts.is_empty(),
        ];
        reply.map(2 + there.into_iter().filter(|is| *is).count());
        reply.bulk(b"name");
        reply.bulk(argument.name.as_bytes());
        reply.bulk(b"type");
        reply.bulk(argument.kind.as_bytes());
        if let Some(key) = argument.key {
            reply.bulk(b"key_spec_index");
            reply.count(key);
        }
        if let Some(token) = &argument.token {
            reply.bulk(b"token");
            reply.bulk(token.as_bytes());
        }
        if !flags.is_empty() {
            reply.bulk(b"flags");
            reply.set(flags.len());
            flags.iter().for_each(|flag| reply.simple(flag));
        }
        if !argument.parts.is_empty() {
            write_arguments(reply, &argument.parts);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::command::table::with_numbers;

    #[test]
    fn what_costs_something_is_a_command() {
        let known: Vec<&str> = with_numbers().map(|(_, spec)| spec.name).collect();
        for name in super::COSTS.iter().flat_map(|(_, names)| *names) {
            assert!(known.contains(name), "{name}");
        }
    }
}
