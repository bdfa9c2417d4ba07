//! Slots go from a master to replicas of it, under load: a shard is split, or moves. This is the
//! order of the steps; what a step does is the node's ([`Giver`]).
//!
//! A replica has the rows already, so nothing is copied now. It takes these steps:
//!
//! 1. The master asks all nodes whether they know another topology of the version that it has, or
//!    a later one. It reaches the replicas that get slots, and asks whether they are those that the
//!    next topology says, and can write it down. They are in step. Until here nothing has changed,
//!    nor has it when the second step fails.
//! 2. Writes wait until these replicas have all that was written, and then until the end: no clock
//!    ends a pause behind which something may be lost.
//! 3. All requests wait. The next topology is the master's, durably: whatever happens from here on,
//!    it never serves these slots again.
//! 4. Its other replicas get the same topology, those that can be reached: none of them may be
//!    promoted with these slots, should the master end now. Then those that get slots do, and are
//!    masters.
//! 5. Requests go on, and those of these slots are told where they are. All other nodes hear of it.
//!
//! So no two nodes serve a slot at any time. If the master or a replica ends after the third step,
//! none does, until the same command is given again to the master or the topology to the replica
//! (CLUSTERX SETNODES): the replica has all that was acknowledged, or gets it from there.
//!
//! Until it knows that they know, the master notes that it is giving slots away. If it ends, they
//! may never hear of it, and a controller may give one of them all slots of the master: so it is
//! fenced when it starts again, until the same command has been heard by all masters, and by its
//! replicas.
//!
//! `tidemark cluster split` drives it; a simulator kills both at every step
//! (`cli/src/cluster/simulation`).

use crate::client::connect::within;
use crate::cluster::slot::SLOTS;
use crate::cluster::topology::VERSION;
use crate::cluster::{Cluster, Member, Server, Topology};
use crate::command::error::{Refusal, refuse};
use crate::command::spec::Outcome;
use crate::runtime::pause::Paused;
use futures_util::future::join_all;
use std::io;
use std::time::Duration;
use tokio::time::Instant;

/// Longest wait of writers for replicas that are to have all.
const CATCH_UP: Duration = Duration::from_millis(200);
/// How long a replica may take to become a master; all requests wait meanwhile.
const TAKE_OVER: Duration = Duration::from_millis(500);
/// How long a node that only has to hear of it may take.
const HEAR: Duration = Duration::from_secs(2);

/// A master that may give slots away.
#[allow(async_fn_in_trait, reason = "each use is of one type, whose futures are known")]
pub trait Giver {
    /// A connection to another node.
    type Link;
    /// A replica as this master feeds it.
    type Fed;

    /// What this node knows of its cluster.
    fn cluster(&self) -> &Cluster;

    /// An error if it does not serve its slots at all.
    fn may_give(&self) -> Outcome;

    /// A connection to a node that says that it is this one.
    async fn reach(&self, member: &Member) -> io::Result<Self::Link>;

    /// CLUSTERX SETNODES of this topology; `option` may be empty.
    async fn tell(link: &mut Self::Link, next: &Topology, option: &[u8]) -> io::Result<()>;

    /// The replica as it is fed. An error: it is not in step.
    fn fed(&self, taker: &Member) -> Result<Self::Fed, Refusal>;

    /// Clients' requests of this kind wait, until [`Giver::go_on`].
    fn pause(&self, kind: Paused);

    /// No request waits any more.
    fn go_on(&self);

    /// Waits until a replica has all that was written here.
    async fn caught_up(&self, fed: &Self::Fed);

    /// The next topology is this node's, if it still has this version: durable when this returns,
    /// and seen by every turn that begins after it.
    async fn adopt(&self, version: i64, next: Topology) -> Outcome;

    /// Those that get slots know this topology: durable when this returns. The node becomes what
    /// that says.
    async fn gave(&self, version: i64) -> Outcome;
}

/// CLUSTERX SETNODES ... HANDOVER. Gives how long requests have waited.
pub async fn hand_over<G: Giver>(giver: &G, text: &str, version: i64) -> Result<Duration, Refusal> {
    let Ok(_one) = giver.cluster().handing.try_lock() else {
        return Err(refuse!("ERR slots are being handed over"));
    };
    let now = giver.cluster().topology();
    let next = Topology::parse(text, version, &now.own_id).map_err(|why| refuse!("ERR {why}"))?;
    if next.version == now.version && next.agrees_with(&now) {
        let is_giving = giver.cluster().is_giving();
        let told = tell_all(giver, &next).await;
        // Each that got slots is among these, and each that could have been given this node's; and
        // one that refuses it knows better.
        let is_needed = |(member, error): &&(&Member, String)| {
            member.master.is_none()
                || member.master.as_ref() == Some(&next.own_id)
                || error.contains(VERSION)
        };
        if let Some((_, error)) = told.iter().find(is_needed) {
            return Err(refuse!("ERR {error}: give this command again"));
        }
        // That lifts the fence, but not one that is there for another reason.
        if is_giving {
            giver.gave(version).await?;
        }
        return all_told(version, &told).map(|()| Duration::ZERO);
    }
    if Some(version) != now.version.checked_add(1) {
        return Err(refuse!("ERR {VERSION}"));
    }
    let takers = takers(&now, &next)?;
    giver.may_give()?;
    refuse_conflict(giver, &now).await?;
    let mut links = reach_takers(giver, &takers, &next).await?;
    let others = reach_others(giver, &now, &takers).await;
    let feeds: Vec<G::Fed> = takers.iter().map(|it| giver.fed(it)).collect::<Result<_, _>>()?;
    let began = Instant::now();
    let paused = Pausing::begin(giver, Paused::Writes);
    let caught_up = async {
        for feed in &feeds {
            giver.caught_up(feed).await;
        }
    };
    if tokio::time::timeout(CATCH_UP, caught_up).await.is_err() {
        return Err(refuse!(
            "ERR the replicas did not have all that was written within {} ms: nothing was \
             changed, try again",
            CATCH_UP.as_millis()
        ));
    }
    giver.pause(Paused::All);
    giver.adopt(now.version, next.clone()).await?;
    // At once, so that a silent one keeps no other from hearing of it.
    let told = others.into_iter().map(|mut link| {
        let next = &next;
        async move { within(TAKE_OVER, G::tell(&mut link, next, b"")).await }
    });
    for error in join_all(told).await.into_iter().filter_map(Result::err) {
        tracing::warn!("a replica has not heard of topology {version} yet: {error}");
    }
    let mut failed = Vec::new();
    for (taker, link) in takers.iter().zip(&mut links) {
        if let Err(error) = within(TAKE_OVER, G::tell(link, &next, b"")).await {
            failed.push(format!("{}: {error}", taker.address()));
        }
    }
    drop(paused);
    let paused = began.elapsed();
    if !failed.is_empty() {
        return Err(refuse!(
            "ERR the slots are not served here any more, and their new master has not answered \
             ({}): give this command again",
            failed.join("; ")
        ));
    }
    if let Err(refusal) = all_told(version, &tell_all(giver, &next).await) {
        tracing::warn!("{}", String::from_utf8_lossy(refusal.text()));
    }
    giver.gave(version).await?;
    Ok(paused)
}

/// A pause that ends with this.
struct Pausing<'a, G: Giver>(&'a G);

impl<G: Giver> Pausing<'_, G> {
    fn begin(giver: &G, kind: Paused) -> Pausing<'_, G> {
        giver.pause(kind);
        Pausing(giver)
    }
}

impl<G: Giver> Drop for Pausing<'_, G> {
    fn drop(&mut self) {
        self.0.go_on();
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

/// Refuses to go on from a topology beside which there is another of its version, or a later one: a
/// failover, say, that the next version would bring to nothing.
async fn refuse_conflict<G: Giver>(giver: &G, now: &Topology) -> Outcome {
    let others = now.members().iter().filter(|member| member.id != now.own_id);
    let asked = others.map(|member| async move {
        let hear = async { G::tell(&mut giver.reach(member).await?, now, b"CHECK").await };
        let error = within(HEAR, hear).await.err()?;
        error.to_string().contains(VERSION).then(|| member.address())
    });
    match join_all(asked).await.into_iter().flatten().next() {
        None => Ok(()),
        Some(address) => Err(refuse!(
            "ERR {VERSION}: {address} knows a later topology, or another {}",
            now.version
        )),
    }
}

/// Connections to the nodes that get slots, which would take the topology.
async fn reach_takers<G: Giver>(
    giver: &G,
    takers: &[Member],
    next: &Topology,
) -> Result<Vec<G::Link>, Refusal> {
    let mut links = Vec::new();
    for taker in takers {
        let ready = async {
            let mut link = giver.reach(taker).await?;
            G::tell(&mut link, next, b"CHECK").await?;
            Ok::<G::Link, io::Error>(link)
        };
        let ready = within(HEAR, ready);
        let failed = |error| refuse!("ERR {} cannot take them: {error}", taker.address());
        links.push(ready.await.map_err(failed)?);
    }
    Ok(links)
}

/// Connections to those of its other replicas that can be reached.
async fn reach_others<G: Giver>(giver: &G, now: &Topology, takers: &[Member]) -> Vec<G::Link> {
    let is_taker = |id: &str| takers.iter().any(|taker| taker.id == id);
    let others = now.replicas(&now.own_id).filter(|replica| !is_taker(&replica.id));
    let reached = others.map(|member| within(HEAR, giver.reach(member)));
    join_all(reached).await.into_iter().flatten().collect()
}

/// Tells all other nodes. Gives those that have not heard it, and why.
async fn tell_all<'a, G: Giver>(giver: &G, next: &'a Topology) -> Vec<(&'a Member, String)> {
    let others = next.members().iter().filter(|member| member.id != next.own_id);
    let told = others.map(|member| async move {
        let hear = async { G::tell(&mut giver.reach(member).await?, next, b"").await };
        let heard = within(HEAR, hear).await;
        heard.err().map(|error| (member, format!("{}: {error}", member.address())))
    });
    join_all(told).await.into_iter().flatten().collect()
}

/// An error if some nodes have not heard of a topology.
fn all_told(version: i64, failed: &[(&Member, String)]) -> Outcome {
    if failed.is_empty() {
        return Ok(());
    }
    let failed: Vec<&str> = failed.iter().map(|(_, why)| why.as_str()).collect();
    Err(refuse!(
        "ERR not all nodes have heard of topology {} ({}): give this command again",
        version,
        failed.join("; ")
    ))
}
