//! The rows of `server/src/handlers/cluster/topology.rs`.

use crate::command::spec::{NO_KEYS, Spec, flag, help_row, rows_of};

rows_of!("cluster", NO_KEYS);

/// A subcommand that changes a cluster.
pub(crate) const fn refused(
    name: &'static str,
    arity: i32,
    since: &'static str,
    usage: &'static str,
) -> Spec {
    const FLAGS: u32 = flag::ADMIN | flag::STALE;
    spec(name, arity, FLAGS, since, usage, "Refused: there is no cluster bus.")
}

pub(crate) const ANYTIME: u32 = flag::LOADING | flag::STALE;

pub(crate) const QUICK: u32 = flag::LOADING | flag::STALE | flag::FAST;

pub(crate) const ACCEPTED: &str = "Accepted from clients for clusters; changes nothing.";

const CONTROLLER: u32 = flag::ADMIN | flag::STALE | flag::NO_MULTI | flag::NOSCRIPT;

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    spec("asking", 1, flag::FAST, "3.0.0", "", ACCEPTED),
    Spec {
        subcommands: &[
            refused("cluster|addslots", -3, "3.0.0", "slot [slot ...]"),
            refused("cluster|addslotsrange", -4, "7.0.0",
                "start-slot end-slot [start-slot end-slot ...]"),
            refused("cluster|bumpepoch", 2, "3.0.0", ""),
            spec("cluster|count-failure-reports", 3, flag::ADMIN | flag::STALE, "3.0.0", "node-id",
                "0: no node reports another one."),
            spec("cluster|countkeysinslot", 3, flag::STALE, "3.0.0", "slot",
                "How many keys of rows are in a slot, if there are at most 10000 rows in all: else \
                 an error that says so."),
            refused("cluster|delslots", -3, "3.0.0", "slot [slot ...]"),
            refused("cluster|delslotsrange", -4, "7.0.0",
                "start-slot end-slot [start-slot end-slot ...]"),
            refused("cluster|failover", -2, "3.0.0", "[FORCE|TAKEOVER]"),
            refused("cluster|flushslots", 2, "3.0.0", ""),
            refused("cluster|forget", 3, "3.0.0", "node-id"),
            spec("cluster|getkeysinslot", 4, flag::STALE, "3.0.0", "slot count",
                "Some keys of rows in a slot, under the same limit as COUNTKEYSINSLOT."),
            help_row("cluster|help", "cluster", "5.0.0"),
            spec("cluster|info", 2, ANYTIME, "3.0.0", "",
                "State of the cluster: ok if each slot has a master; how many slots are served, \
                 and how many nodes there are. A server that is of no cluster answers as one of \
                 one shard."),
            spec("cluster|keyslot", 3, flag::STALE, "3.0.0", "key",
                "The slot of a key, 0 to 16383."),
            spec("cluster|links", 2, flag::STALE, "7.0.0", "",
                "An empty list: there is no cluster bus."),
            refused("cluster|meet", -4, "3.0.0", "ip port [cluster_bus_port]"),
            spec("cluster|myid", 2, ANYTIME, "3.0.0", "",
                "The id of this node, empty if it has none yet. A server that is of no cluster \
                 answers the hash of its address."),
            spec("cluster|myshardid", 2, ANYTIME, "7.2.0", "",
                "The id of the shard: that of the history of its data."),
            spec("cluster|nodes", 2, ANYTIME, "3.0.0", "",
                "All nodes, a line each, masters with their slots. A server that is of no cluster \
                 answers as one of one shard: the master has all slots."),
            spec("cluster|replicas", 3, flag::ADMIN | flag::STALE, "5.0.0", "node-id",
                "The replicas of the master, a line each."),
            refused("cluster|replicate", 3, "3.0.0", "node-id"),
            spec("cluster|reset", -2, CONTROLLER, "3.0.0", "[HARD|SOFT]",
                "Forgets the topology, on a node without rows: it is of no cluster, and a master."),
            refused("cluster|saveconfig", 2, "3.0.0", ""),
            refused("cluster|set-config-epoch", 3, "3.0.0", "config-epoch"),
            refused("cluster|setslot", -4, "3.0.0",
                "slot <IMPORTING node-id|MIGRATING node-id|NODE node-id|STABLE>"),
            spec("cluster|shards", 2, ANYTIME, "7.0.0", "",
                "Each shard: its slots and its nodes. A server that is of no cluster answers with \
                 one shard, which has all slots."),
            spec("cluster|slaves", 3, flag::ADMIN | flag::STALE, "3.0.0", "node-id",
                "The same as CLUSTER REPLICAS."),
            spec("cluster|slots", 2, ANYTIME, "3.0.0", "",
                "Each range of slots, with its master and the replicas that can be reached. A \
                 server that is of no cluster answers with one range, 0 to 16383."),
        ],
        ..spec("cluster", -2, 0, "3.0.0", "",
            "A container for commands about the cluster. A server that is of no cluster answers \
             as a cluster of one shard.")
    },
    Spec {
        subcommands: &[
            spec("clusterx|heartbeat", 5, CONTROLLER, "0.1.0",
                "master-node-id lease-milliseconds election-version",
                "The master of this shard takes writes for so long, any other node of it none. \
                 Answers where the log ends, and the role. An older election is refused."),
            help_row("clusterx|help", "cluster", "0.1.0"),
            spec("clusterx|hold", 4, CONTROLLER, "0.2.0", "token milliseconds",
                "For so long, at most a minute, the command with this token changes the cluster, \
                 and every other one is refused HOLD; 0: it has ended. Nothing else is refused."),
            spec("clusterx|migrate", -4, CONTROLLER, "0.2.0", "slot node-id [options]",
                "Refused: filters cannot say what a slot holds. Slots go to a replica of their \
                 master, with SETNODES ... HANDOVER, as `tidemark cluster split` does it."),
            spec("clusterx|myid", 2, ANYTIME, "0.1.0", "",
                "The id of this node, empty if it has none."),
            spec("clusterx|setnodeid", -3, CONTROLLER, "0.1.0", "node-id [NX]",
                "This node is the one with this id, of 40 characters. NX: not if it has another \
                 id."),
            // The handler refuses all but CHECK while the data are loaded.
            spec("clusterx|setnodes", -4, CONTROLLER | flag::LOADING, "0.1.0",
                "nodes version [CHECK|FORCE|HANDOVER]",
                "The topology is this one, a line per node: id, host, port, master or slave, - or \
                 the id of its master, slots of a master. The node follows its master, or becomes \
                 one. An older version is refused, and another topology of the same version, \
                 unless FORCE; the same one changes nothing. A node without an id finds its line \
                 by the address that it listens on or announces. \
                 CHECK: says whether it would be taken and can be written down, also while the \
                 node loads its data, and does nothing. \
                 HANDOVER: to the master that gives slots to replicas of its own, which have all \
                 that was written before they serve them."),
            spec("clusterx|setslot", 6, CONTROLLER, "0.1.0", "slots NODE node-id version",
                "Slots, \"7\" or \"0-99 200\", are those of this master. The version is the next \
                 one. No rows are moved."),
            spec("clusterx|trim", -4, CONTROLLER | flag::WRITE, "0.2.0",
                "space cursor [COUNT count]",
                "Deletes some rows of a counter space whose slots are not of this shard any more: \
                 the cursor for the next call (0: that was all), and how many were deleted. Begin \
                 with cursor 0."),
            spec("clusterx|trimpairs", 4, CONTROLLER, "0.2.0", "space id",
                "Removes the pairs of ids whose slots are not of this shard any more from a part \
                 of the ledger of an existence space, on this node: the id for the next call (0: \
                 that was all), and how many were removed. Begin with id 0. Filters forget them \
                 when they are built anew. Each replica does it for itself."),
            spec("clusterx|version", 2, ANYTIME, "0.1.0", "",
                "The version of the topology, -1 if there is none."),
        ],
        ..spec("clusterx", -2, 0, "0.1.0", "",
            "A container for what a controller tells a node of a cluster, as Kvrocks has it.")
    },
    spec("tm.coordinator", 1, flag::FAST | flag::NO_MULTI | flag::NOSCRIPT, "0.2.0", "",
        "Says that this connection is of a node that joins pages from several shards: an id of \
         another shard has MOVED in its place, and no other node is asked for it. A request \
         may have shape= and a hash of the names of what is asked for as its last argument; it \
         is refused if they are others here."),
    spec("readonly", 1, QUICK, "3.0.0", "",
        "In a cluster: a replica answers reads of this connection for its master's slots."),
    spec("readwrite", 1, QUICK, "3.0.0", "", "Takes READONLY back."),
    Spec {
        group: "server",
        since: "4.0.0",
        subcommands: &[
            help_row("module|help", "server", "5.0.0"),
            Spec { group: "server", ..spec("module|list", 2, flag::ADMIN | flag::NOSCRIPT, "4.0.0",
                "",
                "bf, for clients that look for RedisBloom: its commands are built in.") },
        ],
        ..spec("module", -2, 0, "4.0.0", "", "A container for commands about modules.")
    },
    Spec {
        group: "scripting",
        subcommands: &[
            help_row("function|help", "scripting", "7.0.0"),
            Spec { group: "scripting", ..spec("function|list", -2, flag::NOSCRIPT, "7.0.0",
                "[LIBRARYNAME library-name-pattern] [WITHCODE]",
                "An empty array: there are no functions.") },
        ],
        ..spec("function", -2, 0, "7.0.0", "", "A container for commands about functions.")
    },
    Spec {
        group: "scripting",
        subcommands: &[
            Spec { group: "scripting", ..spec("script|exists", -3, flag::NOSCRIPT, "2.6.0",
                "sha1 [sha1 ...]",
                "A 0 for each digest: there are no scripts.") },
            help_row("script|help", "scripting", "5.0.0"),
        ],
        ..spec("script", -2, 0, "2.6.0", "", "A container for commands about scripts.")
    },
];
