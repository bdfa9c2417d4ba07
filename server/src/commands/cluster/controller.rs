//! CLUSTERX commands, with which a controller sets the topology of this node. Syntax, replies and
//! error texts follow Kvrocks, so that the controller of Kvrocks works with this server.
//!
//! A node adopts the role that the topology assigns. SETNODES therefore also performs failovers.
//! Every change is durable before the reply.

use crate::commands::call::Call;
use crate::commands::cluster::roles::{obey, require_cluster};
use crate::commands::cluster::{handover, trim};
use crate::commands::command::{Command, Group, Run::Once};
use crate::commands::replication::order;
use node::cluster::topology::{MAX_TOPOLOGY_BYTES, NODE_ID, is_id};
use node::cluster::{Lease, MAX_HOLD_MS, MAX_LEASE_MS, Nodes, Topology, slot};
use node::command::error::{Printable, Refusal, refuse};
use node::command::spec::{NO_KEYS, Outcome, flag};
use node::roles::Order;
use node::roles::node::Node;
use node::roles::peer::confirm_topology;
use node::runtime::arrival;
use resp::Args;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::Duration;

const CLUSTER: Group = Group::new("cluster", "0.2.0", NO_KEYS);
const CONTROLLER: u32 = flag::ADMIN | flag::STALE | flag::NO_MULTI | flag::NOSCRIPT;
const ANYTIME: u32 = flag::LOADING | flag::STALE;

#[rustfmt::skip]
pub(crate) const CLUSTERX: Command =
    CLUSTER.container("clusterx",
        "A container for commands from a cluster's controller, compatible with Kvrocks.", &[
        CLUSTER.row("clusterx|heartbeat", 5, CONTROLLER,
            "master-node-id lease-milliseconds election-version", Once(heartbeat),
            "Grants the master of this shard a lease to accept writes for the given time. All \
             other nodes of the shard reject writes. Returns the end offset of the log and the \
             role of this node. Fails if the election version is older \
             than the current version.").since("0.1.0"),
        CLUSTER.help("clusterx|help").since("0.1.0"),
        CLUSTER.row("clusterx|hold", 4, CONTROLLER, "token milliseconds", Once(hold),
            "Acquires an advisory lock on changes of the cluster, for at most a minute. While the \
             lock is held, CLUSTERX HOLD with a different token fails. 0 milliseconds release the \
             lock."),
        CLUSTER.row("clusterx|migrate", -4, CONTROLLER, "slot node-id [options]", Once(migrate),
            "Not supported: filters cannot list the contents of a slot. SETNODES ... HANDOVER \
             moves slots to a replica of their master; see `tidemark cluster split`."),
        CLUSTER.row("clusterx|myid", 2, ANYTIME, "", Once(my_id),
            "Returns the id of this node, or an empty \
             string if the node has no id.").since("0.1.0"),
        CLUSTER.row("clusterx|setnodeid", -3, CONTROLLER, "node-id [NX]", Once(set_node_id),
            "Sets the id of this node, which has 40 characters. With NX, fails if the node has a \
             different id.")
            .since("0.1.0"),
        // While data is loading, the handler accepts CHECK only.
        CLUSTER.row("clusterx|setnodes", -4, CONTROLLER | flag::LOADING,
            "nodes version [CHECK|FORCE|HANDOVER]", Once(set_nodes),
            "Sets the topology. Each line describes a node: id, host, port, master or slave, the \
             id of its master (- for a master), and the slots of a master. The node then takes the \
             role that the topology assigns to it. Fails if the version is older than the current \
             version, or if the topology differs at the same version and FORCE is not given. \
             Setting the current topology again changes nothing. A node without an id finds its \
             line by the address on which it listens or which it announces. CHECK only tests \
             whether the topology would be accepted and could be saved; it also works while the \
             node is loading its data. HANDOVER is for a master that gives slots to its replicas: \
             the command waits until the replicas have received all writes of the master.")
            .since("0.1.0"),
        CLUSTER.row("clusterx|setslot", 6, CONTROLLER, "slots NODE node-id version", Once(set_slot),
            "Assigns slots, such as \"7\" or \"0-99 200\", to a master. The version must be one \
             above the current version. Does not move any rows.").since("0.1.0"),
        CLUSTER.row("clusterx|trim", -4, CONTROLLER | flag::WRITE,
            "space cursor [COUNT count]", Once(trim::run),
            "Scans part of a counter space and deletes rows whose slots belong to another shard. \
             Returns the cursor for the next call (0 at the end) and the number of deleted rows. \
             Start with cursor 0."),
        CLUSTER.row("clusterx|trimpairs", 4, CONTROLLER, "space id", Once(trim::pairs),
            "Scans part of an existence space's ledger on this node and deletes pairs whose ids \
             belong to another shard. Returns the id for the next call (0 at the end) and the \
             number of deleted pairs. Start with id 0. The pairs stay in the filters until the \
             next rebuild. Replicas do not receive this change, so send the command to each of \
             them."),
        CLUSTER.row("clusterx|version", 2, ANYTIME, "", Once(version),
            "Returns the version of the topology, or -1 if \
             the node has no topology.").since("0.1.0"),
    ]).since("0.1.0");

/// Refuses commands of a controller when the topology comes from Sentinel.
fn refuse_under_sentinel(node: &Node) -> Outcome {
    require_cluster(node)?;
    if !node.config().shard.is_empty() {
        return Err(refuse!(
            "ERR Sentinel manages the topology ([[shard]]): CLUSTERX cannot change it"
        ));
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
    require_cluster(&call.node)?;
    let version = call.node.cluster.topology().version;
    call.reply.bulk(version.to_string().as_bytes());
    Ok(())
}

fn my_id(call: &mut Call<'_>) -> Outcome {
    require_cluster(&call.node)?;
    call.reply.bulk(call.node.cluster.topology().own_id.as_bytes());
    Ok(())
}

fn set_node_id(call: &mut Call<'_>) -> Outcome {
    let id = id_of(call.args, 2, NODE_ID)?;
    let only_first = call.args.len() > 3;
    if call.args.len() > 4 || only_first && !call.args.at(3).eq_ignore_ascii_case(b"nx") {
        return Err(Refusal::SYNTAX);
    }
    refuse_under_sentinel(&call.node)?;
    call.answer_later(move |node, reply| {
        let dir = node.config().durability.dir.clone();
        node.cluster.set_own_id(&dir, &id, only_first)?;
        // A new id does not confirm the role of a fenced master, so the topology counts as
        // unchanged.
        obey(&node, false, false)?;
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
    // CHECK needs no data, so it does not wait for loading.
    if !is_check && !call.node.is_loaded() {
        return Err(Refusal::LOADING);
    }
    refuse_under_sentinel(&call.node)?;
    if call.args.at(2).len() > MAX_TOPOLOGY_BYTES {
        return Err(refuse!(
            "ERR Invalid cluster nodes info: more than {MAX_TOPOLOGY_BYTES} bytes"
        ));
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
            confirm_with_others(&node, &text, version)?;
        }
        let is_news = node.cluster.set_nodes(&dir, &nodes, is_here)?;
        if is_news {
            tracing::info!("topology {version} set by {peer}");
            if node.cluster.topology().own_id.is_empty() {
                tracing::warn!(
                    "topology {version} has no line for this node, so it serves no slots: set its \
                     id (CLUSTERX SETNODEID), or set replica_announce_ip and \
                     replica_announce_port to its address there and send the next version"
                );
            }
            node.replication.skipped(node.cluster.topology().skipped(&before));
        }
        // With FORCE, a replica that cannot follow its new master discards its own data.
        let gives_up = (is_news && node.cluster.topology().joins_another_shard(&before))
            || (forced && node.replication.is_refused());
        obey(&node, is_news || forced, gives_up)?;
        reply.ok();
        Ok(())
    })
}

/// Runs [`confirm_topology`] on a thread that may block.
fn confirm_with_others(node: &Node, text: &str, version: i64) -> Outcome {
    let own_id = node.cluster.topology().own_id.clone();
    // The caller refuses an invalid topology with its own error.
    let Ok(next) = Topology::parse(text, version, &own_id) else { return Ok(()) };
    // One confirmation at a time, because each sends the whole text to every other node.
    let _one = node.cluster.confirming.lock();
    if !node.replication.is_fenced() {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| refuse!("ERR {error}"))?;
    let confirmed = runtime.block_on(confirm_topology(node, &next));
    // Do not wait for blocking threads, because a name lookup may still be running.
    runtime.shutdown_background();
    confirmed
}

fn migrate(call: &mut Call<'_>) -> Outcome {
    refuse_under_sentinel(&call.node)?;
    Err(refuse!(
        "ERR CLUSTERX MIGRATE is not supported: move slots to a replica of their master with \
         `tidemark cluster split`"
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
    refuse_under_sentinel(&call.node)?;
    call.answer_later(move |node, reply| {
        if node.replication.is_fenced() {
            return Err(refuse!(
                "ERR this node is fenced: send the whole topology with CLUSTERX SETNODES"
            ));
        }
        let dir = node.config().durability.dir.clone();
        let next = node.cluster.change(&dir, |now| now.with_slots(&ranges, &id, version).map(Some));
        next?;
        node.wait_for_turns();
        reply.ok();
        Ok(())
    })
}

/// CLUSTERX HOLD: serializes commands that change the cluster.
fn hold(call: &mut Call<'_>) -> Outcome {
    let ms = resp::natural(call.args.at(3)).ok_or(Refusal::NOT_AN_INTEGER)?;
    refuse_under_sentinel(&call.node)?;
    if call.args.at(2).len() > MAX_TOKEN_BYTES || ms > MAX_HOLD_MS {
        return Err(refuse!(
            "ERR a token is limited to {MAX_TOKEN_BYTES} bytes, and a hold to {MAX_HOLD_MS} \
             milliseconds"
        ));
    }
    if !call.node.cluster.hold(call.args.at(2), Duration::from_millis(ms)) {
        return Err(refuse!("ERR another command is changing the cluster"));
    }
    call.reply.ok();
    Ok(())
}

const MAX_TOKEN_BYTES: usize = 64;

const NO_LEASE: (Duration, bool) = (Duration::ZERO, false);

/// CLUSTERX HEARTBEAT: grants the master of this shard a lease. Replies with the node's log offset
/// and role.
fn heartbeat(call: &mut Call<'_>) -> Outcome {
    let master = id_of(call.args, 2, "Invalid node id")?;
    let number = |at| resp::natural(call.args.at(at)).ok_or(Refusal::NOT_AN_INTEGER);
    let (ms, election) = (number(3)?, number(4)?);
    refuse_under_sentinel(&call.node)?;
    if !(1..=MAX_LEASE_MS).contains(&ms) {
        return Err(refuse!("ERR Invalid lease: must be 1 to {MAX_LEASE_MS} milliseconds"));
    }
    if election == 0 {
        return Err(refuse!("ERR Invalid election version"));
    }
    // The lease starts when the request arrives. The controller counts from the time at which it
    // sends the request.
    let came = arrival::came();
    call.answer_later(move |node, reply| {
        let config = node.config();
        let dir = &config.durability.dir;
        let known = node.cluster.lease().map(|lease| lease.election);
        node.cluster.heartbeat(dir, Lease { election, ms })?;
        let is_ours = node.cluster.topology().own_id == master;
        let left = Duration::from_millis(ms).saturating_sub(came.elapsed());
        let (left, is_again) = if is_ours { (left, known == Some(election)) } else { NO_LEASE };
        node.replication.lease(&config, left, is_again);
        if is_ours && node.replication.is_fenced() {
            obey(&node, true, false)?;
        }
        let role = if node.replication.is_master() { "master" } else { "slave" };
        reply.text(&format!(
            "sequence:{}\r\nrole:{role}\r\n",
            node.durability.acknowledged_offset()
        ));
        Ok(())
    })
}

/// Returns whether a host and port of the topology belong to this node. They must be an address
/// that this node listens on, or the address that it announces. Another node on the same machine
/// differs in port or address.
pub(crate) fn is_here(node: &Node, host: &str, port: u16) -> bool {
    let config = node.config();
    let settings = &config.replication;
    let reached = OwnAddresses::of(
        &node.addresses,
        config.tls.port,
        &settings.replica_announce_ip,
        settings.replica_announce_port,
    );
    reached.has_port(port)
        && (reached.announces(host, port)
            || (host.trim_matches(['[', ']']), port)
                .to_socket_addrs()
                .is_ok_and(|mut all| all.any(|at| reached.is_at(at, is_local))))
}

/// Returns whether an IP address is local. A socket can be bound only to a local address.
fn is_local(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

struct OwnAddresses<'a> {
    /// Listening addresses with and without TLS. Also contains the same IP addresses with the
    /// announced port.
    addresses: Box<[SocketAddr]>,
    /// Value of `replica_announce_ip`, which may be a host name, and the ports that apply to that
    /// address.
    announced: Option<(&'a str, Box<[u16]>)>,
}

impl OwnAddresses<'_> {
    /// Collects the addresses. `listens` contains the plain-text addresses; TLS uses the same IP
    /// addresses. Port 0 or an empty host means that the address is not configured.
    fn of<'a>(
        listens: &[SocketAddr],
        tls_port: u16,
        announced_ip: &'a str,
        announced_port: u16,
    ) -> OwnAddresses<'a> {
        let at_port = |port: u16| {
            let some = listens.iter().filter(move |_| port != 0);
            some.map(move |at| SocketAddr::new(at.ip().to_canonical(), port))
        };
        let own = listens.iter().map(|at| SocketAddr::new(at.ip().to_canonical(), at.port()));
        let mut addresses: Vec<SocketAddr> = own.chain(at_port(tls_port)).collect();
        if announced_ip.is_empty() {
            addresses.extend(at_port(announced_port));
            return OwnAddresses { addresses: addresses.into(), announced: None };
        }
        let ports: Vec<u16> = match announced_port {
            0 => addresses.iter().map(SocketAddr::port).collect(),
            port => vec![port],
        };
        if let Ok(ip) = announced_ip.parse::<IpAddr>() {
            addresses.extend(ports.iter().map(|&port| SocketAddr::new(ip.to_canonical(), port)));
        }
        OwnAddresses { addresses: addresses.into(), announced: Some((announced_ip, ports.into())) }
    }

    /// Returns whether this node uses the port. Callers check the port first, because the host may
    /// require a name lookup.
    fn has_port(&self, port: u16) -> bool {
        let is_announced = |(_, ports): &(&str, Box<[u16]>)| ports.contains(&port);
        port != 0
            && (self.addresses.iter().any(|at| at.port() == port)
                || self.announced.as_ref().is_some_and(is_announced))
    }

    fn announces(&self, host: &str, port: u16) -> bool {
        let is_it = |(ip, ports): &(&str, Box<[u16]>)| {
            ip.eq_ignore_ascii_case(host) && ports.contains(&port)
        };
        self.announced.as_ref().is_some_and(is_it)
    }

    /// Returns whether `at` is an address of this node. 0.0.0.0 matches every IPv4 address of the
    /// machine, and :: every IPv6 address. Any other address matches only itself.
    fn is_at(&self, at: SocketAddr, is_local: impl Fn(IpAddr) -> bool) -> bool {
        let ip = at.ip().to_canonical();
        let is_it = |own: &SocketAddr| {
            let is_any = own.ip().is_unspecified() && own.is_ipv4() == ip.is_ipv4();
            own.port() == at.port() && (own.ip() == ip || is_any && is_local(ip))
        };
        !ip.is_unspecified() && self.addresses.iter().any(is_it)
    }
}

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
            order(&node, Order::default())?;
        }
        reply.ok();
        Ok(())
    })
}

/// Returns the error for a node that the topology does not contain.
pub(crate) fn unknown_node(id: &[u8]) -> Refusal {
    refuse!("ERR Unknown node {}", Printable(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_found(reached: &OwnAddresses<'_>, host: &str, port: u16) -> bool {
        let is_local = |ip: IpAddr| {
            ["127.0.0.1", "127.0.0.2", "10.0.0.1", "::1"].contains(&ip.to_string().as_str())
        };
        let ip = host.parse::<IpAddr>();
        let is_at = |ip| reached.is_at(SocketAddr::new(ip, port), is_local);
        reached.has_port(port) && (reached.announces(host, port) || ip.is_ok_and(is_at))
    }

    fn listening(all: &[&str]) -> Vec<SocketAddr> {
        all.iter().map(|at| at.parse().unwrap()).collect()
    }

    /// Three nodes on one machine use the same port.
    #[test]
    fn nodes_with_one_port_are_distinguished_by_address() {
        let at = listening(&["127.0.0.2:7000"]);
        let reached = OwnAddresses::of(&at, 0, "", 0);
        let found = |host| is_found(&reached, host, 7000);
        assert_eq!(["127.0.0.1", "127.0.0.2", "127.0.0.3"].map(found), [false, true, false]);
        assert!(!is_found(&reached, "127.0.0.2", 7001) && !is_found(&reached, "127.0.0.2", 0));
    }

    #[test]
    fn an_unspecified_address_is_each_of_the_machine_of_its_family() {
        let at = listening(&["0.0.0.0:7000"]);
        let reached = OwnAddresses::of(&at, 0, "", 0);
        let found = |host| is_found(&reached, host, 7000);
        assert_eq!(
            ["127.0.0.2", "10.0.0.1", "10.0.0.9", "::1"].map(found),
            [true, true, false, false]
        );
        assert!(!found("0.0.0.0"), "the wildcard address is not reachable");
        let at = listening(&["[::]:7000"]);
        let reached = OwnAddresses::of(&at, 0, "", 0);
        assert!(is_found(&reached, "::1", 7000) && !is_found(&reached, "127.0.0.1", 7000));
    }

    #[test]
    fn a_mapped_address_is_the_ipv4_address() {
        let at = listening(&["[::ffff:10.0.0.1]:7000"]);
        let reached = OwnAddresses::of(&at, 0, "", 0);
        assert!(
            is_found(&reached, "10.0.0.1", 7000) && is_found(&reached, "::ffff:10.0.0.1", 7000)
        );
        assert!(!is_found(&reached, "127.0.0.1", 7000));
    }

    #[test]
    fn a_tls_listener_has_the_addresses_of_the_others() {
        let at = listening(&["10.0.0.1:7000"]);
        let reached = OwnAddresses::of(&at, 7443, "", 0);
        assert!(is_found(&reached, "10.0.0.1", 7443) && !is_found(&reached, "127.0.0.1", 7443));
    }

    #[test]
    fn an_announced_address_is_the_node() {
        let at = listening(&["10.0.0.1:7000"]);
        let reached = OwnAddresses::of(&at, 0, "192.0.2.1", 8000);
        assert!(is_found(&reached, "192.0.2.1", 8000) && is_found(&reached, "10.0.0.1", 7000));
        assert!(!is_found(&reached, "192.0.2.1", 7000) && !is_found(&reached, "10.0.0.1", 8000));
        let reached = OwnAddresses::of(&at, 0, "db1.example", 0);
        assert!(is_found(&reached, "DB1.example", 7000), "a host name with the own port");
        assert!(!is_found(&reached, "db2.example", 7000));
        let reached = OwnAddresses::of(&at, 0, "", 8000);
        assert!(is_found(&reached, "10.0.0.1", 8000), "a mapped port at the own address");
    }
}
