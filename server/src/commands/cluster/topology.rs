//! CLUSTER commands. A cluster node replies according to its topology.
//!
//! Any other server presents itself as a cluster of one shard: this node, or its master, owns all
//! slots. Cluster clients can therefore connect without configuration. To all other clients, HELLO
//! and INFO (`cluster_enabled:0`) describe a standalone server. Cluster clients request the slots
//! without reading these fields. Node ids are hashes of addresses, so they are equal on all nodes
//! and stable across restarts.
//!
//! There is no cluster bus. A controller changes the cluster; Redis's commands for that purpose are
//! refused.

use crate::commands::call::Call;
use crate::commands::cluster::{controller, roles};
use crate::commands::command::{Command, Group, Run::Once};
use crate::commands::keys::walk::{every_key, refuse_many_keys};
use ::replication::Sending;
use dataset::clock::unix_ms;
use node::cluster::Member;
use node::cluster::health::{PollState, State};
use node::cluster::slot::{SLOTS, of_key, write_range};
use node::command::error::{Printable, Refusal, refuse};
use node::command::spec::{NO_KEYS, Outcome, flag};
use node::roles::node::Node;
use node::roles::{LinkState, Master};
use resp::Reply;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

const CLUSTER: Group = Group::new("cluster", "3.0.0", NO_KEYS);
const MODULE: Group = Group::new("server", "4.0.0", NO_KEYS);
const SCRIPTING: Group = Group::new("scripting", "7.0.0", NO_KEYS);
const CONTROLLER: u32 = flag::ADMIN | flag::STALE | flag::NO_MULTI | flag::NOSCRIPT;
const QUICK: u32 = flag::LOADING | flag::STALE | flag::FAST;
const ANYTIME: u32 = flag::LOADING | flag::STALE;

/// Defines a subcommand that requires the cluster bus, and is therefore refused.
const fn refused(name: &'static str, arity: i32, usage: &'static str) -> Command {
    let flags = flag::ADMIN | flag::STALE;
    let summary = "Not supported: there is no cluster bus.";
    CLUSTER.row(name, arity, flags, usage, Once(no_cluster), summary)
}

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    CLUSTER.row("asking", 1, flag::FAST, "", Once(accepted), ACCEPTED),
    CLUSTER.container("cluster",
        "A container for commands about the cluster. Outside a cluster the server answers as a \
         cluster of one shard.", &[
        refused("cluster|addslots", -3, "slot [slot ...]"),
        refused("cluster|addslotsrange", -4,
            "start-slot end-slot [start-slot end-slot ...]").since("7.0.0"),
        refused("cluster|bumpepoch", 2, ""),
        CLUSTER.row("cluster|count-failure-reports", 3, flag::ADMIN | flag::STALE,
            "node-id", Once(failure_reports),
            "Returns 0: nodes do not report failures of other nodes."),
        CLUSTER.row("cluster|countkeysinslot", 3, flag::STALE, "slot", Once(count_keys),
            "Returns the number of keys of rows in a slot. Fails if the server has more than 10000 \
             rows."),
        refused("cluster|delslots", -3, "slot [slot ...]"),
        refused("cluster|delslotsrange", -4,
            "start-slot end-slot [start-slot end-slot ...]").since("7.0.0"),
        refused("cluster|failover", -2, "[FORCE|TAKEOVER]"),
        refused("cluster|flushslots", 2, ""),
        refused("cluster|forget", 3, "node-id"),
        CLUSTER.row("cluster|getkeysinslot", 4, flag::STALE, "slot count", Once(get_keys),
            "Returns the keys of rows in a slot. Fails if the server has more than 10000 rows."),
        CLUSTER.help("cluster|help").since("5.0.0"),
        CLUSTER.row("cluster|info", 2, ANYTIME, "", Once(info),
            "Returns the state of the cluster (ok if each slot has a master), the number of slots, \
             and the number of nodes. Outside a cluster the server answers as a cluster of one \
             shard."),
        CLUSTER.row("cluster|keyslot", 3, flag::STALE, "key", Once(key_slot),
            "Returns the slot of a key, 0 to 16383."),
        CLUSTER.row("cluster|links", 2, flag::STALE, "", Once(links),
            "Returns an empty list: there is no cluster bus.").since("7.0.0"),
        refused("cluster|meet", -4, "ip port [cluster_bus_port]"),
        CLUSTER.row("cluster|myid", 2, ANYTIME, "", Once(my_id),
            "Returns the id of this node, or an empty string if the node has no id. Outside a \
             cluster, returns a hash of the node's address."),
        CLUSTER.row("cluster|myshardid", 2, ANYTIME, "", Once(my_shard_id),
            "Returns the id of the shard, which identifies the \
             replication history of its data.").since("7.2.0"),
        CLUSTER.row("cluster|nodes", 2, ANYTIME, "", Once(nodes),
            "Lists all nodes, one per line. The line of a master contains its slots. Outside a \
             cluster, the master has all slots."),
        CLUSTER.row("cluster|replicas", 3, flag::ADMIN | flag::STALE, "node-id", Once(replicas),
            "Lists the replicas of a master, one per line.").since("5.0.0"),
        refused("cluster|replicate", 3, "node-id"),
        CLUSTER.row("cluster|reset", -2, CONTROLLER, "[HARD|SOFT]", Once(controller::reset),
            "Removes a node from its cluster by deleting the node's topology. The node becomes a \
             standalone master. Fails if the node has rows or pairs."),
        refused("cluster|saveconfig", 2, ""),
        refused("cluster|set-config-epoch", 3, "config-epoch"),
        refused("cluster|setslot", -4,
            "slot <IMPORTING node-id|MIGRATING node-id|NODE node-id|STABLE>"),
        CLUSTER.row("cluster|shards", 2, ANYTIME, "", Once(shards),
            "Returns the slots and nodes of each shard. Outside a cluster returns one shard with \
             all slots.").since("7.0.0"),
        CLUSTER.row("cluster|slaves", 3, flag::ADMIN | flag::STALE, "node-id", Once(replicas),
            "Lists the replicas of a master, as CLUSTER REPLICAS does."),
        CLUSTER.row("cluster|slots", 2, ANYTIME, "", Once(slots),
            "Returns each range of slots with its master and its reachable replicas. Outside a \
             cluster returns one range, 0 to 16383."),
    ]),
    controller::CLUSTERX,
    CLUSTER.row("tm.coordinator", 1, flag::FAST | flag::NOSCRIPT | flag::NO_MULTI,
        "", Once(coordinator),
        "Internal command of a cluster node that gathers rows from several shards; marks the \
         connection as a connection of such a node. For ids of other shards the server then \
         returns MOVED errors and does not forward the request. The last argument of a request may \
         be shape= with a hash of the requested names. The server rejects a request whose hash \
         differs from its own.").since("0.2.0"),
    CLUSTER.row("readonly", 1, QUICK, "", Once(read_only),
        "In a cluster, lets this connection read keys from a replica of their master."),
    CLUSTER.row("readwrite", 1, QUICK, "", Once(read_write), "Cancels READONLY for this \
                                                              connection."),
    MODULE.container("module", "A container for commands about modules.", &[
        MODULE.help("module|help").since("5.0.0"),
        MODULE.row("module|list", 2, flag::ADMIN | flag::NOSCRIPT, "", Once(list),
            "Lists the module bf, because clients look for RedisBloom. Its commands are built in."),
    ]),
    SCRIPTING.container("function", "A container for commands about functions.", &[
        SCRIPTING.help("function|help"),
        SCRIPTING.row("function|list", -2, flag::NOSCRIPT,
            "[LIBRARYNAME library-name-pattern] [WITHCODE]", Once(list_functions),
            "Returns an empty array: functions are not supported."),
    ]),
    SCRIPTING.container("script", "A container for commands about scripts.", &[
        SCRIPTING.row("script|exists", -3, flag::NOSCRIPT, "sha1 [sha1 ...]", Once(scripts_exist),
            "Returns 0 for each digest: scripts are not supported.").since("2.6.0"),
        SCRIPTING.help("script|help").since("5.0.0"),
    ]).since("2.6.0"),
];

const ACCEPTED: &str = "Returns OK and does nothing; for compatibility with cluster clients.";

fn no_cluster(call: &mut Call<'_>) -> Outcome {
    if call.node.cluster.is_enabled() {
        return Err(refuse!("ERR there is no cluster bus: change the topology with CLUSTERX"));
    }
    Err(refuse!("ERR This instance has cluster support disabled"))
}

fn accepted(call: &mut Call<'_>) -> Outcome {
    call.reply.ok();
    Ok(())
}

fn read_only(call: &mut Call<'_>) -> Outcome {
    call.session.reads_replica = true;
    accepted(call)
}

fn read_write(call: &mut Call<'_>) -> Outcome {
    call.session.reads_replica = false;
    accepted(call)
}

struct ClusterNode {
    /// Node id of 40 characters.
    id: String,
    ip: String,
    port: u16,
    is_self: bool,
    master: Option<String>,
    /// Log offset, as last reported to this node.
    offset: u64,
    state: State,
    /// Time of the last health check, and time of the last reply to a health check.
    pulse: PollState,
}

impl ClusterNode {
    fn health(&self) -> &'static str {
        match self.state {
            State::Online => "online",
            State::Loading => "loading",
            State::Failed => "fail",
        }
    }

    fn is_replica_of(&self, master: &ClusterNode) -> bool {
        self.master.as_ref() == Some(&master.id)
    }
}

struct ClusterMap {
    version: i64,
    places: Vec<ClusterNode>,
    /// Ranges of slots: first slot, last slot, and index of the master.
    ranges: Vec<(u16, u16, usize)>,
}

impl ClusterMap {
    fn slots_of(&self, at: usize) -> impl Iterator<Item = (u16, u16)> + '_ {
        let ranges = self.ranges.iter().filter(move |(.., master)| *master == at);
        ranges.map(|(first, last, _)| (*first, *last))
    }

    fn replicas_of<'a>(&'a self, master: &'a ClusterNode) -> impl Iterator<Item = &'a ClusterNode> {
        self.places.iter().filter(move |place| place.is_replica_of(master))
    }

    fn named(&self, id: &[u8]) -> Result<(usize, &ClusterNode), Refusal> {
        let is_it =
            |(_, place): &(usize, &ClusterNode)| place.id.as_bytes().eq_ignore_ascii_case(id);
        self.places.iter().enumerate().find(is_it).ok_or_else(|| controller::unknown_node(id))
    }
}

/// Returns the map of the cluster, or of the single shard that this server forms.
fn map(call: &Call<'_>) -> Result<ClusterMap, Refusal> {
    if !call.node.cluster.is_enabled() {
        return Ok(ClusterMap {
            version: 1,
            places: places(call),
            ranges: vec![(0, SLOTS - 1, 0)],
        });
    }
    let topology = call.node.cluster.topology();
    if topology.version < 0 {
        return Err(refuse!("CLUSTERDOWN The cluster is not initialized"));
    }
    let offset = call.node.durability.acknowledged_offset();
    let timeout_ms = call.node.config().cluster.node_timeout_ms;
    let place = |member: &Member| {
        let is_self = member.id == topology.own_id;
        let pulse = call.node.cluster.health.of(&member.id);
        let state = match is_self {
            true => loaded(call.node.is_loaded() && call.node.replication.is_fit()),
            false => pulse.state(unix_ms(), timeout_ms),
        };
        ClusterNode {
            id: member.id.clone(),
            ip: member.host.clone(),
            port: member.port,
            is_self,
            master: member.master.clone(),
            offset: if is_self { offset } else { 0 },
            state,
            pulse,
        }
    };
    let places: Vec<ClusterNode> = topology.members().iter().map(place).collect();
    let numbers: HashMap<&str, usize> =
        places.iter().enumerate().map(|(at, place)| (place.id.as_str(), at)).collect();
    let ranges = topology.ranges();
    let ranges =
        ranges.iter().filter_map(|(a, b, of)| Some((*a, *b, *numbers.get(of.id.as_str())?)));
    let ranges = ranges.collect();
    Ok(ClusterMap { version: topology.version, places, ranges })
}

fn loaded(is_loaded: bool) -> State {
    if is_loaded { State::Online } else { State::Loading }
}

fn id_of(name: &str) -> String {
    let half = |seed| xxhash_rust::xxh3::xxh3_128_with_seed(name.as_bytes(), seed);
    let mut id = format!("{:032x}{:032x}", half(0), half(1));
    id.truncate(40);
    id
}

/// Returns the nodes of a server outside a cluster: the master first, then its known replicas.
fn places(call: &Call<'_>) -> Vec<ClusterNode> {
    let node = call.node;
    let config = node.config();
    let settings = &config.replication;
    // Use the address to which this client has connected, unless another address is configured.
    let local = call.session.client.local;
    let announced_port = Some(settings.replica_announce_port).filter(|&port| port != 0);
    let ip = match settings.replica_announce_ip.as_str() {
        "" => local.ip().to_canonical().to_string(),
        ip => ip.to_owned(),
    };
    let follows = node.replication.master().or_else(|| node.replication.deposed_by());
    let at = |ip: String, port: u16, offset: u64, is_up: bool| ClusterNode {
        id: id_of(&format!("{ip} {port}")),
        ip,
        port,
        is_self: false,
        master: None,
        offset,
        state: loaded(is_up),
        pulse: PollState::default(),
    };
    let offset = node.durability.acknowledged_offset();
    let port = announced_port.unwrap_or(local.port());
    let own = ClusterNode { is_self: true, ..at(ip, port, offset, node.is_loaded()) };
    match follows {
        Some(Master { host, port }) => {
            let link = node.replication.link.lock();
            let master = at(host, port, link.master_end, link.state == LinkState::Connected);
            let own = ClusterNode { master: Some(master.id.clone()), ..own };
            vec![master, own]
        }
        None => {
            let of_replica = |fed: node::roles::ConnectedReplica| ClusterNode {
                master: Some(own.id.clone()),
                ..at(fed.ip, fed.port, fed.written, fed.sending == Sending::Log)
            };
            let feeds = node.replication.feeds.reachable();
            let replicas: Vec<_> = feeds.into_iter().map(of_replica).collect();
            [own].into_iter().chain(replicas).collect()
        }
    }
}

fn slots(call: &mut Call<'_>) -> Outcome {
    let map = map(call)?;
    let reply = &mut call.reply;
    reply.array(map.ranges.len());
    for &(first, last, master) in &map.ranges {
        let master = &map.places[master];
        // List only online replicas, because clients send reads to every replica in the reply.
        let replicas: Vec<_> =
            map.replicas_of(master).filter(|place| place.state == State::Online).collect();
        reply.array(3 + replicas.len());
        reply.int(i64::from(first));
        reply.int(i64::from(last));
        for place in [master].into_iter().chain(replicas) {
            reply.array(4);
            reply.bulk(place.ip.as_bytes());
            reply.int(i64::from(place.port));
            reply.bulk(place.id.as_bytes());
            reply.array(0);
        }
    }
    Ok(())
}

fn shards(call: &mut Call<'_>) -> Outcome {
    let map = map(call)?;
    let local_port = call.session.client.local.port();
    let is_tls = local_port == call.node.config().tls.port;
    let reply = &mut call.reply;
    let masters = || map.places.iter().enumerate().filter(|(_, place)| place.master.is_none());
    reply.array(masters().count());
    for (at, master) in masters() {
        let nodes: Vec<&ClusterNode> =
            [master].into_iter().chain(map.replicas_of(master)).collect();
        reply.map(2);
        reply.bulk(b"slots");
        reply.array(2 * map.slots_of(at).count());
        for (first, last) in map.slots_of(at) {
            reply.int(i64::from(first));
            reply.int(i64::from(last));
        }
        reply.bulk(b"nodes");
        reply.array(nodes.len());
        nodes.into_iter().for_each(|place| write_shard_node(reply, place, is_tls));
    }
    Ok(())
}

fn write_shard_node(reply: &mut Reply<'_>, place: &ClusterNode, is_tls: bool) {
    reply.map(7);
    reply.bulk(b"id");
    reply.bulk(place.id.as_bytes());
    reply.bulk(if is_tls { b"tls-port" } else { b"port" });
    reply.int(i64::from(place.port));
    for (name, value) in [("ip", &place.ip), ("endpoint", &place.ip)] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"role");
    reply.bulk(if place.master.is_none() { b"master" } else { b"replica" });
    reply.bulk(b"replication-offset");
    reply.int(i64::try_from(place.offset).unwrap_or(i64::MAX));
    reply.bulk(b"health");
    reply.bulk(place.health().as_bytes());
}

fn line(map: &ClusterMap, at: usize) -> String {
    let place = &map.places[at];
    let myself = if place.is_self { "myself," } else { "" };
    let role = if place.master.is_none() { "master" } else { "slave" };
    // Redis's flag for a failure that other nodes have not confirmed.
    let failed = if place.state == State::Failed { ",fail?" } else { "" };
    let of = place.master.as_deref().unwrap_or("-");
    let is_connected = place.is_self || place.state == State::Online;
    let link = if is_connected { "connected" } else { "disconnected" };
    let ClusterNode { id, ip, port, pulse: PollState { asked_ms, heard_ms, .. }, .. } = place;
    let mut line = format!(
        "{id} {ip}:{port}@0 {myself}{role}{failed} {of} {asked_ms} {heard_ms} {} {link}",
        map.version
    );
    for (first, last) in map.slots_of(at) {
        let _ = write!(line, " {}", write_range(first, last));
    }
    line
}

fn nodes(call: &mut Call<'_>) -> Outcome {
    let map = map(call)?;
    let lines: String = (0..map.places.len()).map(|at| line(&map, at) + "\n").collect();
    call.reply.text(&lines);
    Ok(())
}

fn replicas(call: &mut Call<'_>) -> Outcome {
    let map = map(call)?;
    let (_, master) = map.named(call.args.at(2))?;
    if master.master.is_some() {
        return Err(refuse!("ERR The specified node is not a master"));
    }
    let places = map.places.iter().enumerate();
    let replicas = places.filter(|(_, place)| place.is_replica_of(master));
    let lines: Vec<_> = replicas.map(|(at, _)| line(&map, at)).collect();
    call.reply.array(lines.len());
    lines.iter().for_each(|line| call.reply.bulk(line.as_bytes()));
    Ok(())
}

fn info(call: &mut Call<'_>) -> Outcome {
    let map = map(call)?;
    let size = |(first, last, _): &(u16, u16, usize)| u32::from(last - first) + 1;
    let assigned: u32 = map.ranges.iter().map(size).sum();
    let is_failed = |range: &&(u16, u16, usize)| map.places[range.2].state == State::Failed;
    let failed: u32 = map.ranges.iter().filter(is_failed).map(size).sum();
    let masters: BTreeSet<usize> = map.ranges.iter().map(|(.., master)| *master).collect();
    call.reply.text(&format!(
        "cluster_state:{}\r\ncluster_slots_assigned:{assigned}\r\ncluster_slots_ok:{}\r\n\
         cluster_slots_pfail:{failed}\r\ncluster_slots_fail:0\r\ncluster_known_nodes:{}\r\n\
         cluster_size:{}\r\ncluster_current_epoch:{version}\r\ncluster_my_epoch:{version}\r\n\
         cluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\n\
         total_cluster_links_buffer_limit_exceeded:0\r\n",
        if assigned == u32::from(SLOTS) { "ok" } else { "fail" },
        assigned - failed,
        map.places.len(),
        masters.len(),
        version = map.version,
    ));
    Ok(())
}

fn my_id(call: &mut Call<'_>) -> Outcome {
    let own_id = if call.node.cluster.is_enabled() {
        call.node.cluster.topology().own_id.clone()
    } else {
        let own = places(call).into_iter().find(|place| place.is_self);
        own.map(|place| place.id).unwrap_or_default()
    };
    call.reply.bulk(own_id.as_bytes());
    Ok(())
}

fn my_shard_id(call: &mut Call<'_>) -> Outcome {
    let lineage = call.node.store.get().map(|store| store.lineage().to_string());
    call.reply.bulk(id_of(&lineage.unwrap_or_default()).as_bytes());
    Ok(())
}

fn links(call: &mut Call<'_>) -> Outcome {
    call.reply.array(0);
    Ok(())
}

fn failure_reports(call: &mut Call<'_>) -> Outcome {
    map(call)?.named(call.args.at(2))?;
    call.reply.int(0);
    Ok(())
}

fn key_slot(call: &mut Call<'_>) -> Outcome {
    call.reply.int(i64::from(of_key(call.args.at(2))));
    Ok(())
}

fn slot(text: &[u8]) -> Result<Option<u16>, Refusal> {
    let slot = crate::commands::call::integer(text)?;
    Ok(u16::try_from(slot).ok().filter(|&slot| slot < SLOTS))
}

fn keys_in(node: &Node, wanted: u16) -> Result<BTreeSet<Vec<u8>>, Refusal> {
    let mut found = BTreeSet::new();
    every_key(&node.engines(), None, &mut |key| {
        if of_key(&key) == wanted {
            found.insert(key);
        }
    })?;
    Ok(found)
}

fn count_keys(call: &mut Call<'_>) -> Outcome {
    let wanted = slot(call.args.at(2))?.ok_or_else(|| refuse!("ERR Invalid slot"))?;
    refuse_many_keys(&call.node)?;
    call.answer_later(move |node, reply| {
        reply.count(keys_in(&node, wanted)?.len());
        Ok(())
    })
}

fn get_keys(call: &mut Call<'_>) -> Outcome {
    let (wanted, most) = (slot(call.args.at(2))?, crate::commands::call::integer(call.args.at(3))?);
    let (Some(wanted), Ok(most)) = (wanted, usize::try_from(most)) else {
        return Err(refuse!("ERR Invalid slot or number of keys"));
    };
    refuse_many_keys(&call.node)?;
    call.answer_later(move |node, reply| {
        let found = keys_in(&node, wanted)?;
        let count = found.len().min(most);
        reply.array(count);
        found.iter().take(count).for_each(|key| reply.bulk(key));
        Ok(())
    })
}

/// Version of RedisBloom whose commands are supported, in module format.
const BLOOM_VERSION: i64 = 20_405;

fn list(call: &mut Call<'_>) -> Outcome {
    write_modules(&mut call.reply);
    Ok(())
}

fn list_functions(call: &mut Call<'_>) -> Outcome {
    let (mut has_name, mut with_code) = (false, false);
    let mut options = call.args.from(2).iter();
    while let Some(option) = options.next() {
        if !with_code && option.eq_ignore_ascii_case(b"withcode") {
            with_code = true;
        } else if !has_name && option.eq_ignore_ascii_case(b"libraryname") {
            has_name = true;
            if options.next().is_none() {
                return Err(refuse!("ERR library name argument was not given"));
            }
        } else {
            return Err(refuse!("ERR Unknown argument {}", Printable(option)));
        }
    }
    call.reply.array(0);
    Ok(())
}

fn scripts_exist(call: &mut Call<'_>) -> Outcome {
    let digests = call.args.len() - 2;
    call.reply.array(digests);
    (0..digests).for_each(|_| call.reply.int(0));
    Ok(())
}

pub(crate) fn write_modules(reply: &mut Reply<'_>) {
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

fn coordinator(call: &mut Call<'_>) -> Outcome {
    roles::require_cluster(&call.node)?;
    call.session.is_coordinator = true;
    call.reply.ok();
    Ok(())
}
