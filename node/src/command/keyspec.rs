//! What commands do with their keys, and hints for clusters, in the words of Redis's COMMAND: key
//! specifications and tips.
//!
//! Where the keys are follows from [`Spec::keys`]; what is done with them from the flags, but for
//! the commands that are named here.

use crate::command::spec::{KeyArgs, Spec, flag};
use resp::Args;

/// Some of a command's keys, and what is done with them.
pub struct KeySpec {
    /// As in [`Spec::keys`].
    pub keys: KeyArgs,
    /// `RO`, `RW`, `OW` (overwritten) or `RM` (removed), then what of their content is touched,
    /// parted by spaces.
    pub uses: &'static str,
}

const READ: &str = "RO access";
const LOOK: &str = "RO";
const UPDATE: &str = "RW update";
const EXCHANGE: &str = "RW access update";
const INSERT: &str = "RW insert";
const OVERWRITE: &str = "OW update";

/// What the flags do not tell.
const USES: &[(&str, &[&str])] = &[
    (
        LOOK,
        &[
            "hexists",
            "hlen",
            "hstrlen",
            "strlen",
            "sismember",
            "scard",
            "exists",
            "type",
            "touch",
            "watch",
            "xlen",
        ],
    ),
    (
        LOOK,
        &["object|encoding", "object|freq", "object|idletime", "object|refcount", "memory|usage"],
    ),
    (LOOK, &["bf.card", "bf.info", "cf.info"]),
    (EXCHANGE, &["setbit", "getex", "hincrbyfloat", "incrbyfloat", "move"]),
    (
        INSERT,
        &[
            "hsetnx",
            "append",
            "sadd",
            "bf.add",
            "bf.madd",
            "bf.insert",
            "bf.reserve",
            "cf.add",
            "cf.addnx",
            "cf.insert",
            "cf.insertnx",
            "cf.reserve",
        ],
    ),
    ("RW delete", &["hdel", "srem", "cf.del", "xautoclaim", "xdel", "xtrim"]),
    ("RW access delete", &["getdel", "spop"]),
    ("OW insert", &["setnx", "msetnx"]),
    (OVERWRITE, &["mset", "setex", "psetex", "restore", "restore-asking"]),
    ("RM delete", &["del", "unlink"]),
    ("RW access update variable_flags", &["set"]),
];

/// Commands whose first key is treated otherwise than those behind it.
const TWO_USES: &[(&str, &str, &str)] = &[
    ("smove", "RW access delete", INSERT),
    ("rename", "RW access delete", OVERWRITE),
    ("renamenx", "RW access delete", "OW insert"),
    ("copy", READ, OVERWRITE),
    ("sinterstore", UPDATE, READ),
    ("sunionstore", OVERWRITE, READ),
    ("sdiffstore", OVERWRITE, READ),
];

/// The key specifications of a command.
pub fn of(spec: &Spec) -> Vec<KeySpec> {
    let (first, last, step) = match spec.keys {
        KeyArgs::Keys(..) | KeyArgs::Shown => spec.keys.positions(),
        KeyArgs::Streams(_) => return vec![KeySpec { keys: spec.keys, uses: READ }],
        KeyArgs::None | KeyArgs::Ids(..) => return Vec::new(),
    };
    if let Some((_, one, others)) = TWO_USES.iter().find(|(name, ..)| *name == spec.name) {
        let rest = KeyArgs::Keys(first + step, last, step);
        return vec![
            KeySpec { keys: KeyArgs::Keys(first, first, 1), uses: one },
            KeySpec { keys: rest, uses: others },
        ];
    }
    let named = USES.iter().find(|(_, names)| names.contains(&spec.name)).map(|(uses, _)| *uses);
    let uses = named.unwrap_or(match (spec.has(flag::WRITE), spec.has(flag::READS)) {
        (false, _) => READ,
        (true, false) => UPDATE,
        (true, true) => EXCHANGE,
    });
    vec![KeySpec { keys: spec.keys, uses }]
}

/// What a request does with its keys, in the words of [`KeySpec::uses`].
pub struct Uses {
    /// Where the first key stands.
    at: usize,
    first: &'static str,
    others: &'static str,
}

impl Uses {
    /// Of a request of this command.
    pub fn of(spec: &Spec, args: Args<'_>) -> Uses {
        let at = usize::try_from(spec.keys.positions().0).unwrap_or(0);
        if spec.name == "set" {
            // Whether SET also reads depends on its options.
            let gets = args.from(3).iter().any(|word| word.eq_ignore_ascii_case(b"get"));
            let uses = if gets { EXCHANGE } else { OVERWRITE };
            return Uses { at, first: uses, others: uses };
        }
        let specs = of(spec);
        let of = |keys: Option<&KeySpec>| keys.map_or("", |keys| keys.uses);
        Uses { at, first: of(specs.first()), others: of(specs.last()) }
    }

    /// What is done with the key at this position.
    pub fn at(&self, position: usize) -> &'static str {
        if position == self.at { self.first } else { self.others }
    }

    /// Whether the content of the key at this position is read, and whether it is changed: the
    /// rights that this needs. Neither where it is only looked whether something is there.
    pub(crate) fn needs(&self, position: usize) -> (bool, bool) {
        let uses = self.at(position);
        let has = |word| uses.split(' ').any(|used| used == word);
        (has("access"), ["insert", "update", "delete"].into_iter().any(has))
    }
}

/// For clients of clusters: how to send a command to several servers, how to join the replies, and
/// whether these are the same each time.
const TIPS: &[(&str, &[&str])] = &[
    ("request_policy:multi_shard", &["mget", "mset", "msetnx", "del", "unlink", "exists", "touch"]),
    ("request_policy:all_shards", &["keys", "randomkey", "ping", "dbsize", "info", "wait"]),
    ("request_policy:all_shards", &["flushall", "flushdb"]),
    ("response_policy:all_succeeded", &["flushall", "flushdb"]),
    (
        "request_policy:all_shards",
        &["memory|doctor", "memory|malloc-stats", "memory|purge", "memory|stats"],
    ),
    (
        "request_policy:all_nodes",
        &["config|set", "slowlog|get", "slowlog|len", "slowlog|reset", "latency|doctor"],
    ),
    (
        "request_policy:all_nodes",
        &["latency|histogram", "latency|history", "latency|latest", "latency|reset"],
    ),
    ("request_policy:special", &["scan"]),
    (
        "response_policy:all_succeeded",
        &["mset", "ping", "config|set", "slowlog|reset", "latency|reset", "memory|purge"],
    ),
    ("response_policy:agg_min", &["msetnx", "wait"]),
    ("response_policy:agg_sum", &["del", "unlink", "exists", "touch", "dbsize", "slowlog|len"]),
    (
        "response_policy:special",
        &["info", "memory|doctor", "memory|malloc-stats", "memory|stats", "latency|doctor"],
    ),
    ("response_policy:special", &["latency|histogram", "latency|history", "latency|latest"]),
    (
        "nondeterministic_output_order",
        &["hgetall", "hkeys", "hvals", "smembers", "sinter", "sunion", "sdiff", "keys"],
    ),
    ("nondeterministic_output_order", &["command", "command|docs", "command|info", "command|list"]),
    (
        "nondeterministic_output",
        &["hscan", "spop", "srandmember", "sscan", "ttl", "pttl", "dump", "scan", "randomkey"],
    ),
    (
        "nondeterministic_output",
        &["object|encoding", "object|freq", "object|idletime", "object|refcount"],
    ),
    (
        "nondeterministic_output",
        &["client|info", "client|list", "info", "lastsave", "time", "slowlog|get", "slowlog|len"],
    ),
    (
        "nondeterministic_output",
        &["memory|doctor", "memory|malloc-stats", "memory|stats", "latency|doctor"],
    ),
    ("nondeterministic_output", &["latency|histogram", "latency|history", "latency|latest"]),
    ("nondeterministic_output", &["xadd", "xautoclaim", "xclaim", "xpending", "xtrim"]),
];

/// The tips of a command.
pub fn tips(spec: &Spec) -> Vec<&'static str> {
    TIPS.iter().filter(|(_, names)| names.contains(&spec.name)).map(|(tip, _)| *tip).collect()
}

#[cfg(test)]
mod tests {
    use crate::command::table::with_numbers;

    #[test]
    fn every_name_is_a_command() {
        let known = |name: &str| with_numbers().any(|(_, spec)| spec.name == name);
        let named = super::USES.iter().chain(super::TIPS).flat_map(|(_, names)| *names).copied();
        for name in named.chain(super::TWO_USES.iter().map(|two| two.0)) {
            assert!(known(name), "{name}");
        }
    }
}
