//! Hand-over of slots from a master to its replicas under load, to split or move a shard. This
//! module defines the sequence of steps; [`HandoverSource`] implements each step.
//!
//! The replicas already have the rows, so nothing is copied.
//!
//! 1. The master asks all nodes whether they know a later topology, or a different one of the same
//!    version. The master asks the replicas that will get slots whether they accept the next
//!    topology and can write it to disk. These replicas must be in sync. If step 1 or 2 fails,
//!    nothing has changed.
//! 2. Writes are paused until the hand-over ends, and the master waits until these replicas have
//!    the whole log. The pause has no timeout, because a write accepted after a timeout could be
//!    lost.
//! 3. All requests are paused. The master adopts the next topology durably. From then on the master
//!    never serves these slots again.
//! 4. The other reachable replicas receive the topology. If the master crashes, no controller can
//!    promote one of these replicas with the slots. Then the new owners receive the topology and
//!    become masters.
//! 5. Requests resume. Requests for these slots are redirected. All other nodes receive the
//!    topology.
//!
//! At any time, at most one node serves a slot. If the master or a new owner crashes after step 3,
//! the slots are unavailable until the command is repeated on the master, or the new owner receives
//! the topology (CLUSTERX SETNODES). The new owner has all acknowledged writes, or gets them from
//! the master.
//!
//! The master records on disk that it is giving slots away, until all new owners have confirmed the
//! topology. If the master crashes, the new owners may never receive the topology, and a controller
//! may assign all slots of the master to one of them. After a restart the master is therefore
//! fenced until the command is repeated, and all masters and its replicas have received the
//! topology.
//!
//! `tidemark cluster split` uses a hand-over; a simulator crashes both sides at every step
//! (`cli/src/cluster/simulation`).

use crate::cluster::slot::SLOTS;
use crate::cluster::topology::VERSION;
use crate::cluster::{Cluster, Member, Server, Topology};
use crate::command::error::{Refusal, refuse};
use crate::command::spec::Outcome;
use crate::runtime::pause::Paused;
use client::within;
use futures_util::future::join_all;
use std::io;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum time for which writes are paused while the replicas catch up.
const CATCH_UP_TIMEOUT: Duration = Duration::from_millis(200);
/// Timeout for a replica to become a master; all requests are paused during that time.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_millis(500);
/// Timeout for all other messages to nodes.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(2);

/// A master that may give slots away.
#[allow(async_fn_in_trait, reason = "each use is of one type, whose futures are known")]
pub trait HandoverSource {
    /// Connection to another node.
    type Link;
    /// A replica of this master.
    type ConnectedReplica;

    /// Returns this node's cluster state.
    fn cluster(&self) -> &Cluster;

    /// Fails if this node does not serve its slots.
    fn may_give(&self) -> Outcome;

    /// Connects to a node and verifies its id.
    async fn reach(&self, member: &Member) -> io::Result<Self::Link>;

    /// Sends CLUSTERX SETNODES with this topology; `option` may be empty.
    async fn tell(link: &mut Self::Link, next: &Topology, option: &[u8]) -> io::Result<()>;

    /// Returns the connected replica of this member; fails if the replica is not in sync.
    fn fed(&self, taker: &Member) -> Result<Self::ConnectedReplica, Refusal>;

    /// Pauses clients' requests of this kind until [`HandoverSource::go_on`].
    fn pause(&self, kind: Paused);

    /// Ends the pause.
    fn go_on(&self);

    /// Waits until a replica has the whole log.
    async fn caught_up(&self, fed: &Self::ConnectedReplica);

    /// Adopts the next topology if this node's version is `version`. The topology is durable when
    /// this function returns, and every later event-loop iteration sees it.
    async fn adopt(&self, version: i64, next: Topology) -> Outcome;

    /// Records durably that all new owners know this topology, and applies it to this node's role.
    async fn gave(&self, version: i64) -> Outcome;
}

/// Executes CLUSTERX SETNODES ... HANDOVER. Returns the time for which requests were paused.
// Long: this function is long because a failed step must undo the steps before it.
pub async fn hand_over<G: HandoverSource>(
    giver: &G,
    text: &str,
    version: i64,
) -> Result<Duration, Refusal> {
    let Ok(_one) = giver.cluster().handing.try_lock() else {
        return Err(refuse!("ERR a slot handover is already in progress"));
    };
    let now = giver.cluster().topology();
    let next = Topology::parse(text, version, &now.own_id).map_err(|why| refuse!("ERR {why}"))?;
    if next.version == now.version && next.agrees_with(&now) {
        let has_unconfirmed_handover = giver.cluster().has_unconfirmed_handover();
        let told = send_topology_to_all(giver, &next).await;
        // All masters, including the new owners, and all replicas of this node must receive the
        // topology. A node that refuses the topology has a later topology.
        let is_needed = |(member, error): &&(&Member, String)| {
            member.master.is_none()
                || member.master.as_ref() == Some(&next.own_id)
                || error.contains(VERSION)
        };
        if let Some((_, error)) = told.iter().find(is_needed) {
            return Err(refuse!("ERR {error}. Send this command again"));
        }
        // This also lifts the fence that has been up since the unfinished hand-over.
        if has_unconfirmed_handover {
            giver.gave(version).await?;
        }
        return check_all_received(version, &told).map(|()| Duration::ZERO);
    }
    if Some(version) != now.version.checked_add(1) {
        return Err(refuse!("ERR {VERSION}"));
    }
    let new_owners = new_owners(&now, &next)?;
    giver.may_give()?;
    refuse_conflict(giver, &now).await?;
    let mut links = connect_new_owners(giver, &new_owners, &next).await?;
    let others = connect_other_nodes(giver, &now, &new_owners).await;
    let feeds: Vec<G::ConnectedReplica> =
        new_owners.iter().map(|it| giver.fed(it)).collect::<Result<_, _>>()?;
    let began = Instant::now();
    let paused = PauseGuard::begin(giver, Paused::Writes);
    let caught_up = async {
        for feed in &feeds {
            giver.caught_up(feed).await;
        }
    };
    if tokio::time::timeout(CATCH_UP_TIMEOUT, caught_up).await.is_err() {
        return Err(refuse!(
            "ERR replicas did not catch up within {} ms. Nothing was changed, try again",
            CATCH_UP_TIMEOUT.as_millis()
        ));
    }
    giver.pause(Paused::All);
    giver.adopt(now.version, next.clone()).await?;
    // Send to all nodes concurrently, so that a silent node does not delay the other nodes.
    let told = others.into_iter().map(|mut link| {
        let next = &next;
        async move { within(TAKE_OVER_TIMEOUT, G::tell(&mut link, next, b"")).await }
    });
    for error in join_all(told).await.into_iter().filter_map(Result::err) {
        tracing::warn!("a replica has not received topology {version} yet: {error}");
    }
    let mut failed = Vec::new();
    for (taker, link) in new_owners.iter().zip(&mut links) {
        if let Err(error) = within(TAKE_OVER_TIMEOUT, G::tell(link, &next, b"")).await {
            failed.push(format!("{}: {error}", taker.address()));
        }
    }
    drop(paused);
    let paused = began.elapsed();
    if !failed.is_empty() {
        return Err(refuse!(
            "ERR the slots are no longer served here, and their new master has not replied ({}). \
             Send this command again",
            failed.join("; ")
        ));
    }
    if let Err(refusal) = check_all_received(version, &send_topology_to_all(giver, &next).await) {
        tracing::warn!("{}", String::from_utf8_lossy(refusal.text()));
    }
    giver.gave(version).await?;
    Ok(paused)
}

struct PauseGuard<'a, G: HandoverSource>(&'a G);

impl<G: HandoverSource> PauseGuard<'_, G> {
    fn begin(giver: &G, kind: Paused) -> PauseGuard<'_, G> {
        giver.pause(kind);
        PauseGuard(giver)
    }
}

impl<G: HandoverSource> Drop for PauseGuard<'_, G> {
    fn drop(&mut self) {
        self.0.go_on();
    }
}

/// Returns the replicas that get slots of this node.
fn new_owners(now: &Topology, next: &Topology) -> Result<Vec<Member>, Refusal> {
    if next.own().is_none() {
        return Err(refuse!(
            "ERR this node must stay in the topology until the handover is complete"
        ));
    }
    let master = |topology: &Topology, slot| {
        topology.number_of(slot).map(|at| topology.members()[at].id.clone())
    };
    let is_own = |topology: &Topology, slot| topology.server_of(slot) == Server::Own;
    if let Some(slot) =
        (0..SLOTS).find(|&slot| !is_own(now, slot) && master(now, slot) != master(next, slot))
    {
        return Err(refuse!(
            "ERR slot {slot} is not served by this node, only its master can hand it over"
        ));
    }
    let mut new_owners: Vec<Member> = Vec::new();
    for slot in (0..SLOTS).filter(|&slot| is_own(now, slot) && !is_own(next, slot)) {
        let taker = next.number_of(slot).map(|at| &next.members()[at]);
        let taker =
            taker.ok_or_else(|| refuse!("ERR the topology assigns slot {slot} to no node"))?;
        if !now.replicas(&now.own_id).any(|replica| replica.id == taker.id) {
            return Err(refuse!(
                "ERR slot {slot} would move to {}:{}, which is not a replica of this node. Make it \
                 a replica first",
                taker.host,
                taker.port
            ));
        }
        if !new_owners.contains(taker) {
            new_owners.push(taker.clone());
        }
    }
    if new_owners.is_empty() {
        return Err(refuse!("ERR the topology moves no slots away from this node"));
    }
    Ok(new_owners)
}

/// Fails if another node knows a later topology, or a different one of this version. The next
/// version would revert that topology, for example a failover.
async fn refuse_conflict<G: HandoverSource>(giver: &G, now: &Topology) -> Outcome {
    let others = now.members().iter().filter(|member| member.id != now.own_id);
    let asked = others.map(|member| async move {
        let hear = async { G::tell(&mut giver.reach(member).await?, now, b"CHECK").await };
        let error = within(MESSAGE_TIMEOUT, hear).await.err()?;
        error.to_string().contains(VERSION).then(|| member.address())
    });
    match join_all(asked).await.into_iter().flatten().next() {
        None => Ok(()),
        Some(address) => Err(refuse!(
            "ERR {VERSION}: {address} has a newer topology, or a different {}",
            now.version
        )),
    }
}

/// Connects to the new owners and checks that they would accept the topology.
async fn connect_new_owners<G: HandoverSource>(
    giver: &G,
    new_owners: &[Member],
    next: &Topology,
) -> Result<Vec<G::Link>, Refusal> {
    let mut links = Vec::new();
    for taker in new_owners {
        let ready = async {
            let mut link = giver.reach(taker).await?;
            G::tell(&mut link, next, b"CHECK").await?;
            Ok::<G::Link, io::Error>(link)
        };
        let ready = within(MESSAGE_TIMEOUT, ready);
        let failed = |error| refuse!("ERR {} cannot take over the slots: {error}", taker.address());
        links.push(ready.await.map_err(failed)?);
    }
    Ok(links)
}

/// Connects to the other replicas that are reachable.
async fn connect_other_nodes<G: HandoverSource>(
    giver: &G,
    now: &Topology,
    new_owners: &[Member],
) -> Vec<G::Link> {
    let is_taker = |id: &str| new_owners.iter().any(|taker| taker.id == id);
    let others = now.replicas(&now.own_id).filter(|replica| !is_taker(&replica.id));
    let reached = others.map(|member| within(MESSAGE_TIMEOUT, giver.reach(member)));
    join_all(reached).await.into_iter().flatten().collect()
}

/// Sends the topology to all other nodes. Returns the nodes that failed, with the reasons.
async fn send_topology_to_all<'a, G: HandoverSource>(
    giver: &G,
    next: &'a Topology,
) -> Vec<(&'a Member, String)> {
    let others = next.members().iter().filter(|member| member.id != next.own_id);
    let told = others.map(|member| async move {
        let hear = async { G::tell(&mut giver.reach(member).await?, next, b"").await };
        let heard = within(MESSAGE_TIMEOUT, hear).await;
        heard.err().map(|error| (member, format!("{}: {error}", member.address())))
    });
    join_all(told).await.into_iter().flatten().collect()
}

fn check_all_received(version: i64, failed: &[(&Member, String)]) -> Outcome {
    if failed.is_empty() {
        return Ok(());
    }
    let failed: Vec<&str> = failed.iter().map(|(_, why)| why.as_str()).collect();
    Err(refuse!(
        "ERR some nodes have not received topology {} ({}). Send this command again",
        version,
        failed.join("; ")
    ))
}
