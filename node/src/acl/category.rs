//! ACL categories of commands: Redis's categories, and a category for each family of Tidemark's own
//! commands.

use crate::command::spec::{Spec, flag};

/// All categories, in the order of ACL CAT. Includes Redis categories without commands in this
/// server, so that rules written for Redis are accepted.
pub const CATEGORIES: [&str; 27] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
    // Categories of Redis 8.
    "bloom",
    "cuckoo",
    "feed",
    "counter",
    "phantom",
    "schema",
];

/// Returns the categories of a command.
pub fn of(spec: &Spec) -> Vec<&'static str> {
    let mut all = Vec::with_capacity(4);
    all.extend(match spec.group {
        // In Redis WAIT is in the group "generic" but not in the category "keyspace".
        "generic" if spec.name.starts_with("wait") => None,
        "generic" => Some("keyspace"),
        "transactions" => Some("transaction"),
        group => CATEGORIES.iter().find(|c| **c == group).copied(),
    });
    let name = spec.name;
    let keyspace = ["dbsize", "flushall", "flushdb", "restore-asking"];
    all.extend(keyspace.contains(&name).then_some("keyspace"));
    let connection = ["command", "wait", "waitaof", "readonly", "readwrite", "asking"];
    all.extend(
        (connection.contains(&name) || name.starts_with("command|")).then_some("connection"),
    );
    all.extend(["xread", "xreadgroup"].contains(&name).then_some("blocking"));
    all.extend(["role", "lastsave"].contains(&name).then_some("admin"));
    for (bit, category) in
        [(flag::WRITE, "write"), (flag::READONLY, "read"), (flag::ADMIN, "admin")]
    {
        all.extend(spec.has(bit).then_some(category));
    }
    let dangerous = [
        "keys",
        "flushall",
        "flushdb",
        "info",
        "role",
        "lastsave",
        "sort",
        "restore",
        "restore-asking",
    ];
    all.extend((spec.has(flag::ADMIN) || dangerous.contains(&name)).then_some("dangerous"));
    all.push(if spec.has(flag::FAST) { "fast" } else { "slow" });
    all
}
