//! Slots go from this master to replicas of it, under load: a shard is split, or moves.
//!
//! A replica has the rows already, so nothing is copied now. It takes these steps:
//!
//! 1. This node reaches the replicas that get slots, and asks whether they are those that the next
//!    topology says, and can write it down. They are in step. Until here nothing has changed, nor
//!    has it when the second step fails.
//! 2. Writes wait until these replicas have all that was written, and then until the end: no clock
//!    ends a pause behind which something may be lost.
//! 3. All requests wait. The next topology is this node's, durably: whatever happens from here on,
//!    it never serves these slots again.
//! 4. Its other replicas get the same topology, those that can be reached: none of them may be
//!    promoted with these slots, should this node end now. Then those that get slots do, and are
//!    masters.
//! 5. Requests go on, and those of these slots are told where they are. All other nodes hear of it.
//!
//! So no two nodes serve a slot at any time. If this node or a replica ends after the third step,
//! none does, until the same command is given again to this node or the topology to the replica
//! (CLUSTERX SETNODES): the replica has all that was acknowledged, or gets it from here.

use crate::handlers::call::{Call, answer};
use crate::handlers::cluster::controller::obey;
use crate::handlers::cluster::peers;
use node::client::connect::{Link, within};
use node::cluster::slot::SLOTS;
use node::cluster::topology::VERSION;
use node::cluster::{Member, Server, Topology};
use node::command::error::{Refusal, refuse};
use node::command::spec::Outcome;
use node::roles::node::Node;
use node::roles::{Master, failover};
use node::runtime::apart::apart;
use node::runtime::pause::{By, Paused};
use redis_protocol::resp2::types::OwnedFrame;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Longest wait of writers for replicas that are to have all.
const CATCH_UP: Duration = Duration::from_millis(200);
/// How long a replica may take to become a master; all requests wait meanwhile.
const TAKE_OVER: Duration = Duration::from_millis(500);
/// No pause of a hand-over ends by the clock.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);
/// How long a node that only has to hear of it may take.
const HEAR: Duration = Duration::from_secs(2);
/// A replica that has less than all but so many bytes of the log is not in step.
const CLOSE: u64 = 1 << 20;

/// CLUSTERX SETNODES ... HANDOVER. It goes on if the client leaves.
pub(crate) fn begin(call: &mut Call<'_>, text: String, version: i64) {
    let (node, protocol) = (call.node.node().clone(), call.reply.protocol());
    let peer = call.session.client.peer;
    let work = tokio::spawn(async move {
        let outcome = hand_over(&node, &text, version).await;
        match &outcome {
            Ok(paused) => tracing::info!(
                "topology {version} by {peer}: slots are handed over; requests waited for {} ms",
                paused.as_millis()
            ),
            Err(refusal) => tracing::warn!(
                "topology {version} by {peer}: {}",
                String::from_utf8_lossy(refusal.text())
            ),
        }
        outcome
    });
    call.answer_when(async move {
        let outcome = work.await.unwrap_or_else(|error| Err(refuse!("ERR {error}")));
        answer(protocol, |reply| {
            outcome?;
            reply.ok();
            Ok(())
        })
    });
}

/// Gives how long requests have waited.
async fn hand_over(node: &Arc<Node>, text: &str, version: i64) -> Result<Duration, Refusal> {
    let Ok(_one) = node.cluster.handing.try_lock() else {
        return Err(refuse!("ERR slots are being handed over"));
    };
    let now = node.cluster.topology();
    let next = Topology::parse(text, version, &now.own_id).map_err(|why| refuse!("ERR {why}"))?;
    if next == *now {
        return tell_all(node, &next).await.map(|()| Duration::ZERO);
    }
    if Some(version) != now.version.checked_add(1) {
        return Err(refuse!("ERR {VERSION}"));
    }
    let takers = takers(&now, &next)?;
    may_give(node)?;
    let mut links = reach_takers(node, &takers, &next).await?;
    let others = reach_others(node, &now, &takers).await;
    let feeds: Vec<Master> = takers.iter().map(|it| feed_of(node, it)).collect::<Result<_, _>>()?;
    let began = Instant::now();
    let _paused = Pausing::begin(node, Paused::Writes);
    let caught_up = async {
        for feed in &feeds {
            failover::caught_up(node, Some(feed)).await;
        }
    };
    if tokio::time::timeout(CATCH_UP, caught_up).await.is_err() {
        return Err(refuse!(
            "ERR the replicas did not have all that was written within {} ms: nothing was \
             changed, try again",
            CATCH_UP.as_millis()
        ));
    }
    let _all = Pausing::begin(node, Paused::All);
    adopt(node, &now, next.clone()).await?;
    // At once, so that a silent one keeps no other from hearing of it.
    let mut told = JoinSet::new();
    for mut link in others {
        let next = next.clone();
        told.spawn(async move { within(TAKE_OVER, tell(&mut link, &next, b"")).await });
    }
    for error in told.join_all().await.into_iter().filter_map(Result::err) {
        tracing::warn!("a replica has not heard of topology {version} yet: {error}");
    }
    let mut failed = Vec::new();
    for (taker, link) in takers.iter().zip(&mut links) {
        if let Err(error) = within(TAKE_OVER, tell(link, &next, b"")).await {
            failed.push(format!("{}: {error}", taker.address()));
        }
    }
    node.pause.end(By::Slots);
    let paused = began.elapsed();
    if !failed.is_empty() {
        return Err(refuse!(
            "ERR the slots are not served here any more, and their new master has not answered \
             ({}): give this command again",
            failed.join("; ")
        ));
    }
    if let Err(refusal) = tell_all(node, &next).await {
        tracing::warn!("{}", String::from_utf8_lossy(refusal.text()));
    }
    if next.own_master().is_some() {
        blocking(node, obey).await?;
    }
    Ok(paused)
}

/// A pause that ends with this.
struct Pausing<'a>(&'a Node);

impl Pausing<'_> {
    fn begin(node: &Arc<Node>, kind: Paused) -> Pausing<'_> {
        node.pause.begin(By::Slots, kind, Instant::now() + FOR_EVER);
        Pausing(node)
    }
}

impl Drop for Pausing<'_> {
    fn drop(&mut self) {
        self.0.pause.end(By::Slots);
    }
}

/// The nodes that get slots of this one: replicas of it.
fn takers(now: &Topology, next: &Topology) -> Result<Vec<Member>, Refusal> {
    if next.own().is_none() {
        return Err(refuse!("ERR this node is to stay in the topology until it has handed over"));
    }
    let master = |topology: &Topology, slot| {
        topology.number_of(slot).map(|at| topology.members()[at].id.clone())
    };
    let is_own = |topology: &Topology, slot| topology.server_of(slot) == Server::Own;
    if let Some(slot) =
        (0..SLOTS).find(|&slot| !is_own(now, slot) && master(now, slot) != master(next, slot))
    {
        return Err(refuse!("ERR slot {slot} is not this node's: its master alone hands it over"));
    }
    let mut takers: Vec<Member> = Vec::new();
    for slot in (0..SLOTS).filter(|&slot| is_own(now, slot) && !is_own(next, slot)) {
        let taker = next.number_of(slot).map(|at| &next.members()[at]);
        let taker = taker.ok_or_else(|| refuse!("ERR no node gets slot {slot}"))?;
        if !now.replicas(&now.own_id).any(|replica| replica.id == taker.id) {
            return Err(refuse!(
                "ERR slot {slot} would go to {}:{}, which is no replica of this node: make it one \
                 first, so that it has the rows",
                taker.host,
                taker.port
            ));
        }
        if !takers.contains(taker) {
            takers.push(taker.clone());
        }
    }
    if takers.is_empty() {
        return Err(refuse!("ERR this node gives no slots away in that topology"));
    }
    Ok(takers)
}

/// A connection to the node of this id.
async fn reach(node: &Arc<Node>, member: &Member) -> io::Result<Link> {
    let mut link = peers::open(&node.process(), &member.host, member.port).await?;
    match within(HEAR, link.ask(&[b"CLUSTERX", b"MYID"])).await? {
        OwnedFrame::BulkString(id) if id == member.id.as_bytes() => Ok(link),
        _ => Err(io::Error::other(format!("it is not the node {}", member.id))),
    }
}

/// Whether this node serves its slots at all.
fn may_give(node: &Node) -> Outcome {
    let role = &node.replication;
    if !role.is_master() || role.is_fenced() || role.failover.is_under_way() {
        return Err(refuse!("ERR only a master hands slots over"));
    }
    let refused = role.refusal();
    refused.map_or(Ok(()), |why| {
        Err(refuse!("ERR only a master that takes writes hands slots over: {why}"))
    })
}

/// Connections to the nodes that get slots, which would take the topology.
async fn reach_takers(
    node: &Arc<Node>,
    takers: &[Member],
    next: &Topology,
) -> Result<Vec<Link>, Refusal> {
    let mut links = Vec::new();
    for taker in takers {
        let ready = async {
            let mut link = reach(node, taker).await?;
            within(HEAR, tell(&mut link, next, b"CHECK")).await?;
            Ok::<Link, io::Error>(link)
        };
        let failed = |error| refuse!("ERR {} cannot take them: {error}", taker.address());
        links.push(ready.await.map_err(failed)?);
    }
    Ok(links)
}

/// Connections to those of its other replicas that can be reached.
async fn reach_others(node: &Arc<Node>, now: &Topology, takers: &[Member]) -> Vec<Link> {
    let is_taker = |id: &str| takers.iter().any(|taker| taker.id == id);
    let mut reached = JoinSet::new();
    for member in now.replicas(&now.own_id).filter(|replica| !is_taker(&replica.id)) {
        let (node, member) = (node.clone(), member.clone());
        reached.spawn(async move { within(HEAR, reach(&node, &member)).await.ok() });
    }
    reached.join_all().await.into_iter().flatten().collect()
}

/// The replica as this node feeds it. An error: it is not in step.
fn feed_of(node: &Node, taker: &Member) -> Result<Master, Refusal> {
    use std::net::ToSocketAddrs;
    let Member { host, port, .. } = taker;
    let ips: Vec<String> = (host.as_str(), *port)
        .to_socket_addrs()
        .map(|all| all.map(|at| at.ip().to_string()).collect())
        .unwrap_or_default();
    let end = node.durability.shown().offset;
    let fed = node.replication.feeds.reachable().into_iter().find(|fed| {
        fed.port == *port
            && (fed.ip == *host || ips.contains(&fed.ip))
            && fed.sending == replication::Sending::Log
            && fed.written + CLOSE >= end
    });
    fed.map(|fed| Master { host: fed.ip, port: fed.port }).ok_or_else(|| {
        refuse!(
            "ERR {host}:{port} is not in step with this node: wait until it is (if it is, \
             replica_announce_ip of that node differs from its address in the topology)"
        )
    })
}

/// The next topology is this node's: durable, and seen by every turn that begins from now on.
async fn adopt(node: &Arc<Node>, now: &Topology, next: Topology) -> Outcome {
    let version = now.version;
    blocking(node, move |node| {
        node.wait_for_turns();
        let dir = node.config().durability.dir.clone();
        node.cluster.change(&dir, |at| {
            if at.version == version { Ok(Some(next)) } else { Err(VERSION.to_owned()) }
        })?;
        Ok(())
    })
    .await
}

async fn blocking(
    node: &Arc<Node>,
    work: impl FnOnce(&Node) -> Outcome + Send + 'static,
) -> Outcome {
    let node = node.clone();
    let work = apart(move || work(&node));
    work.await.unwrap_or_else(|error| Err(refuse!("ERR {error}")))
}

/// `option`: of SETNODES, or empty.
async fn tell(link: &mut Link, next: &Topology, option: &[u8]) -> io::Result<()> {
    let (text, version) = (next.describe(), next.version.to_string());
    let request = [&b"CLUSTERX"[..], b"SETNODES", text.as_bytes(), version.as_bytes(), option];
    let words = request.len() - usize::from(option.is_empty());
    link.ask(&request[..words]).await.map(drop)
}

/// Tells all other nodes. The error names those that have not heard it.
async fn tell_all(node: &Arc<Node>, next: &Topology) -> Outcome {
    let mut told = JoinSet::new();
    for member in next.members().iter().filter(|member| member.id != next.own_id) {
        let (node, member, next) = (node.clone(), member.clone(), next.clone());
        told.spawn(async move {
            let hear = async { tell(&mut reach(&node, &member).await?, &next, b"").await };
            let heard = within(HEAR, hear).await;
            heard.err().map(|error| format!("{}: {error}", member.address()))
        });
    }
    let failed: Vec<String> = told.join_all().await.into_iter().flatten().collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(refuse!(
        "ERR not all nodes have heard of topology {} ({}): give this command again",
        next.version,
        failed.join("; ")
    ))
}
