//! CLUSTERX: a controller tells this node the topology. Syntax, replies and error texts are those
//! of Kvrocks, so that its controller drives this server, too.
//!
//! A node obeys the topology: as a master it follows no node, as a replica its master. So SETNODES
//! is a failover, too. All of it is durable before it is answered.

use crate::handlers::Handler;
use crate::handlers::call::Call;
use crate::handlers::cluster::replication::{all_logged, order};
use crate::handlers::cluster::{handover, trim};
use crate::handlers::help::help;
use node::cluster::topology::{MOST_TEXT, NODE_ID, is_id};
use node::cluster::{Lease, MOST_HOLD_MS, MOST_LEASE_MS, Nodes, Role, Topology, slot};
use node::command::error::{Printable, Refusal, refuse};
use node::command::spec::Outcome;
use node::roles::Master;
use node::roles::node::Node;
use node::roles::peer::confirm_topology;
use node::runtime::stall;
use resp::Args;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::time::Duration;

pub(crate) const RUN: &[(&str, Handler)] = &[
    ("clusterx", help),
    ("clusterx|heartbeat", heartbeat),
    ("clusterx|help", help),
    ("clusterx|hold", hold),
    ("clusterx|migrate", migrate),
    ("clusterx|myid", my_id),
    ("clusterx|setnodeid", set_node_id),
    ("clusterx|setnodes", set_nodes),
    ("clusterx|setslot", set_slot),
    ("clusterx|trim", trim::run),
    ("clusterx|trimpairs", trim::pairs),
    ("clusterx|version", version),
];

/// What of CLUSTER and CLUSTERX only a node of a cluster does.
pub(crate) fn refuse_alone(node: &Node) -> Outcome {
    if !node.cluster.is_enabled() {
        return Err(refuse!("ERR Cluster mode is not enabled"));
    }
    Ok(())
}

/// What a controller changes, which has no say where Sentinel is the source of the topology.
fn refuse_beside_sentinel(node: &Node) -> Outcome {
    refuse_alone(node)?;
    if !node.config().shard.is_empty() {
        return Err(refuse!("ERR the topology comes from Sentinel ([[shard]])"));
    }
    Ok(())
}

fn word(args: Args<'_>, at: usize) -> String {
    String::from_utf8_lossy(args.at(at)).into_owned()
}

fn id_of(args: Args<'_>, at: usize, why: &str) -> Result<String, Refusal> {
    let id = word(args, at);
    if is_id(&id) { Ok(id) } else { Err(refuse!("ERR {why}")) }
}

fn version(call: &mut Call<'_>) -> Outcome {
    refuse_alone(&call.node)?;
    let version = call.node.cluster.topology().version;
    call.reply.bulk(version.to_string().as_bytes());
    Ok(())
}

fn my_id(call: &mut Call<'_>) -> Outcome {
    refuse_alone(&call.node)?;
    call.reply.bulk(call.node.cluster.topology().own_id.as_bytes());
    Ok(())
}

fn set_node_id(call: &mut Call<'_>) -> Outcome {
    let id = id_of(call.args, 2, NODE_ID)?;
    let only_first = call.args.len() > 3;
    if call.args.len() > 4 || only_first && !call.args.at(3).eq_ignore_ascii_case(b"nx") {
        return Err(Refusal::SYNTAX);
    }
    refuse_beside_sentinel(&call.node)?;
    call.answer_later(move |node, reply| {
        let dir = node.config().durability.dir.clone();
        node.cluster.set_own_id(&dir, &id, only_first)?;
        // An id says nothing of the role.
        obey(&node, false)?;
        reply.ok();
        Ok(())
    })
}

fn set_nodes(call: &mut Call<'_>) -> Outcome {
    let version = resp::integer(call.args.at(3)).ok_or_else(|| refuse!("ERR Invalid version"))?;
    let option = if call.args.len() > 4 { call.args.at(4) } else { b"" };
    let forced = option.eq_ignore_ascii_case(b"force");
    let hands_over = option.eq_ignore_ascii_case(b"handover");
    let is_check = option.eq_ignore_ascii_case(b"check");
    if call.args.len() > 5 || call.args.len() == 5 && !forced && !hands_over && !is_check {
        return Err(refuse!("ERR Invalid setnodes options"));
    }
    // What it knows it knows from the start: nodes that begin together need not wait for the
    // slowest.
    if !is_check && !call.node.is_loaded() {
        return Err(Refusal::LOADING);
    }
    refuse_beside_sentinel(&call.node)?;
    if call.args.at(2).len() > MOST_TEXT {
        return Err(refuse!("ERR Invalid cluster nodes info: more than {MOST_TEXT} bytes"));
    }
    let text = word(call.args, 2);
    if hands_over {
        handover::begin(call, text, version);
        return Ok(());
    }
    let peer = call.session.client.peer;
    call.answer_later(move |node, reply| {
        let dir = node.config().durability.dir.clone();
        let is_here = |host: &str, port: u16| is_here(&node, host, port);
        let lacks_data = !node.replication.is_fit();
        let nodes = Nodes { text: &text, version, forced, lacks_data };
        if is_check {
            node.cluster.check_nodes(&dir, &nodes, is_here)?;
            reply.ok();
            return Ok(());
        }
        let before = node.cluster.topology();
        if node.replication.is_fenced() && !forced {
            refuse_what_others_refuse(&node, &text, version)?;
        }
        let is_news = node.cluster.set_nodes(&dir, &nodes, is_here)?;
        if is_news {
            tracing::info!("topology {version} by {peer}");
            node.replication.skipped(node.cluster.topology().skipped(&before));
        }
        obey(&node, is_news || forced)?;
        reply.ok();
        Ok(())
    })
}

/// See [`confirm_topology`]; on a thread that may wait.
fn refuse_what_others_refuse(node: &Node, text: &str, version: i64) -> Outcome {
    let own_id = node.cluster.topology().own_id.clone();
    // If it is none it is refused anyway.
    let Ok(next) = Topology::parse(text, version, &own_id) else { return Ok(()) };
    // One at a time: each of the others is sent all of the text.
    let _one = node.cluster.confirming.lock();
    if !node.replication.is_fenced() {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| refuse!("ERR {error}"))?;
    let confirmed = runtime.block_on(confirm_topology(node, &next));
    // The name of a node may still be looked up.
    runtime.shutdown_background();
    confirmed
}

fn migrate(call: &mut Call<'_>) -> Outcome {
    refuse_beside_sentinel(&call.node)?;
    Err(refuse!(
        "ERR slots are not copied one by one: a replica of their master gets them, see `tidemark \
         cluster split`"
    ))
}

fn set_slot(call: &mut Call<'_>) -> Outcome {
    let slots = word(call.args, 2);
    let ranges = slot::parse_ranges(&slots);
    let ranges = ranges.map_err(|word| refuse!("ERR Invalid slot range: `{word}`."))?;
    if ranges.is_empty() {
        return Err(refuse!("ERR No slots to parse."));
    }
    if !call.args.at(3).eq_ignore_ascii_case(b"node") {
        return Err(refuse!("ERR Invalid setslot options"));
    }
    let id = id_of(call.args, 4, "Invalid node id")?;
    let version = resp::integer(call.args.at(5)).ok_or(Refusal::NOT_AN_INTEGER)?;
    if version < 0 {
        return Err(refuse!("ERR Invalid version"));
    }
    refuse_beside_sentinel(&call.node)?;
    call.answer_later(move |node, reply| {
        if node.replication.is_fenced() {
            return Err(refuse!("ERR this node is fenced: tell it the whole topology (SETNODES)"));
        }
        let dir = node.config().durability.dir.clone();
        let next = node.cluster.change(&dir, |now| now.with_slots(&ranges, &id, version).map(Some));
        next?;
        node.wait_for_turns();
        reply.ok();
        Ok(())
    })
}

/// Of several commands that change the cluster one does, and the others wait.
fn hold(call: &mut Call<'_>) -> Outcome {
    let ms = resp::natural(call.args.at(3)).ok_or(Refusal::NOT_AN_INTEGER)?;
    refuse_beside_sentinel(&call.node)?;
    if call.args.at(2).len() > MOST_TOKEN || ms > MOST_HOLD_MS {
        return Err(refuse!(
            "ERR a token has at most {MOST_TOKEN} bytes, and a hold {MOST_HOLD_MS} milliseconds"
        ));
    }
    if !call.node.cluster.hold(call.args.at(2), Duration::from_millis(ms)) {
        return Err(refuse!("ERR another command changes the cluster"));
    }
    call.reply.ok();
    Ok(())
}

/// Bytes of a HOLD's token.
const MOST_TOKEN: usize = 64;

/// No lease.
const NONE: (Duration, bool) = (Duration::ZERO, false);

/// The controller's word on which node is the master of this shard, for so long. What it asks with
/// it is answered: how far this node is, and its role.
fn heartbeat(call: &mut Call<'_>) -> Outcome {
    let master = id_of(call.args, 2, "Invalid node id")?;
    let number = |at| resp::natural(call.args.at(at)).ok_or(Refusal::NOT_AN_INTEGER);
    let (ms, election) = (number(3)?, number(4)?);
    refuse_beside_sentinel(&call.node)?;
    if !(1..=MOST_LEASE_MS).contains(&ms) {
        return Err(refuse!("ERR Invalid lease: must be 1 to {MOST_LEASE_MS} milliseconds"));
    }
    if election == 0 {
        return Err(refuse!("ERR Invalid election version"));
    }
    // From when it came: the controller counts from when it was sent.
    let came = stall::came();
    call.answer_later(move |node, reply| {
        let config = node.config();
        let dir = &config.durability.dir;
        let known = node.cluster.lease().map(|lease| lease.election);
        node.cluster.heartbeat(dir, Lease { election, ms })?;
        let is_ours = node.cluster.topology().own_id == master;
        let left = Duration::from_millis(ms).saturating_sub(came.elapsed());
        let (left, is_again) = if is_ours { (left, known == Some(election)) } else { NONE };
        node.replication.lease(&config, left, is_again);
        // Its role is known again.
        if is_ours && node.replication.is_fenced() {
            obey(&node, true)?;
        }
        let role = if node.replication.is_master() { "master" } else { "slave" };
        reply.text(&format!("sequence:{}\r\nrole:{role}\r\n", node.durability.shown().offset));
        Ok(())
    })
}

/// From now on no turn goes by an older topology, and this node becomes what that says
/// it is. A node that is not among its nodes stays what it is: no slot is its own. `is_news`: the
/// topology is later than the one that it had. That lifts the fence of a master; the same topology
/// told once more does not.
pub(crate) fn obey(node: &Node, is_news: bool) -> Outcome {
    node.wait_for_turns();
    let topology = node.cluster.topology();
    let master = match topology.own_role() {
        Some(Role::Master) => None,
        Some(Role::ReplicaOf(at)) => Some(Master { host: at.host.clone(), port: at.port }),
        None => return Ok(()),
    };
    if node.replication.master() == master && !(is_news && node.replication.is_fenced()) {
        return Ok(());
    }
    if master.is_some() {
        all_logged(node)?;
    }
    let was_replica = !node.replication.is_master();
    order(node, master.clone(), false)?;
    match master {
        Some(master) => tracing::info!("a replica of {master} by topology {}", topology.version),
        None => {
            tracing::info!("a master by topology {}", topology.version);
            // It may be an old message: a HEARTBEAT is to say so, too.
            if node.cluster.lease().is_some() && was_replica {
                node.replication.lease(&node.config(), Duration::ZERO, false);
            }
        }
    }
    Ok(())
}

/// Whether clients reach this node there: it listens on the port, or announces it, and the host is
/// an address of this machine. A socket can be bound to no other.
pub(crate) fn is_here(node: &Node, host: &str, port: u16) -> bool {
    let config = node.config();
    let settings = &config.replication;
    let is_port = node.addresses.iter().any(|at| at.port() == port)
        || port == config.tls.port
        || port == settings.replica_announce_port;
    let is_local = |ip: IpAddr| UdpSocket::bind((ip, 0)).is_ok();
    port != 0
        && is_port
        && (host == settings.replica_announce_ip
            || (host, 0).to_socket_addrs().is_ok_and(|mut at| at.any(|at| is_local(at.ip()))))
}

/// CLUSTER RESET.
pub(crate) fn reset(call: &mut Call<'_>) -> Outcome {
    let how = call.args.at(2);
    let known = [&b"hard"[..], b"soft"].iter().any(|word| how.eq_ignore_ascii_case(word));
    if call.args.len() > 3 || call.args.len() == 3 && !known {
        return Err(Refusal::SYNTAX);
    }
    if !call.node.cluster.is_enabled() {
        return Err(refuse!("ERR This instance has cluster support disabled"));
    }
    call.answer_later(|node, reply| {
        let engines = node.engines();
        let has_pairs = engines.existences().iter().any(|space| space.pairs() > 0);
        if engines.all_rows() > 0 || has_pairs {
            return Err(refuse!("ERR Can't reset cluster while database is not empty"));
        }
        let config = node.config();
        node.cluster.reset(&config.durability.dir)?;
        node.replication.end_lease(&config);
        if !node.replication.is_master() {
            order(&node, None, false)?;
        }
        reply.ok();
        Ok(())
    })
}

/// For CLUSTER REPLICAS and its kin: a node that the topology does not have.
pub(crate) fn unknown_node(id: &[u8]) -> Refusal {
    refuse!("ERR Unknown node {}", Printable(id))
}
