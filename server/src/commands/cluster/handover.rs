//! CLUSTERX SETNODES ... HANDOVER: this master hands slots to its replicas.
//! [`node::cluster::handover`] defines the sequence of steps. This file implements the steps for a
//! node with clients.

use crate::commands::call::{Call, answer};
use crate::commands::cluster::roles::obey;
use client::Link;
use node::cluster::handover::{HandoverSource, hand_over};
use node::cluster::topology::VERSION;
use node::cluster::{Cluster, Member, Topology};
use node::command::error::{Refusal, refuse};
use node::command::spec::Outcome;
use node::roles::node::Node;
use node::roles::{Master, failover, peer};
use node::runtime::blocking_task::apart;
use node::runtime::pause::{By, Paused};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Timeout of the client pause during a handover. The handover ends the pause explicitly.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// Maximum lag of a replica, in bytes of the log, at which the replica counts as in sync.
const MAX_IN_SYNC_LAG_BYTES: u64 = 1 << 20;

/// Starts the handover, which continues even if the client disconnects.
pub(crate) fn begin(call: &mut Call<'_>, text: String, version: i64) {
    let (node, protocol) = (call.node.node().clone(), call.reply.protocol());
    let peer = call.session.client.peer;
    let work = tokio::spawn(async move {
        let outcome = hand_over(&LocalMaster(node), &text, version).await;
        match &outcome {
            Ok(paused) => tracing::info!(
                "topology {version} by {peer}: handed slots over; requests waited for {} ms",
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

struct LocalMaster(Arc<Node>);

impl HandoverSource for LocalMaster {
    type Link = Link;
    type ConnectedReplica = Master;

    fn cluster(&self) -> &Cluster {
        &self.0.cluster
    }

    fn may_give(&self) -> Outcome {
        let role = &self.0.replication;
        if !role.is_master() || role.is_fenced() || role.failover.is_under_way() {
            return Err(refuse!("ERR only a master can hand slots over"));
        }
        let refused = role.refusal();
        refused.map_or(Ok(()), |why| {
            Err(refuse!("ERR a master that rejects writes cannot hand slots over: {why}"))
        })
    }

    async fn reach(&self, member: &Member) -> io::Result<Link> {
        peer::reach(&self.0.process(), member).await
    }

    async fn tell(link: &mut Link, next: &Topology, option: &[u8]) -> io::Result<()> {
        peer::set_nodes(link, next, option).await
    }

    fn fed(&self, taker: &Member) -> Result<Master, Refusal> {
        replica_in_sync(&self.0, taker)
    }

    fn pause(&self, kind: Paused) {
        self.0.pause.begin(By::Slots, kind, Instant::now() + PAUSE_TIMEOUT);
    }

    fn go_on(&self) {
        self.0.pause.end(By::Slots);
    }

    async fn caught_up(&self, fed: &Master) {
        failover::caught_up(&self.0, Some(fed)).await;
    }

    async fn adopt(&self, version: i64, next: Topology) -> Outcome {
        blocking(&self.0, move |node| {
            node.wait_for_turns();
            let dir = node.config().durability.dir.clone();
            node.cluster.give(&dir, |at| {
                if at.version == version { Ok(Some(next)) } else { Err(VERSION.to_owned()) }
            })?;
            Ok(())
        })
        .await
    }

    async fn gave(&self, version: i64) -> Outcome {
        blocking(&self.0, move |node| {
            let dir = node.config().durability.dir.clone();
            node.cluster.gave(&dir, version)?;
            obey(node, true, false)
        })
        .await
    }
}

/// Returns the address of a replica. Fails if the replica is not in sync.
fn replica_in_sync(node: &Node, taker: &Member) -> Result<Master, Refusal> {
    let Member { host, port, .. } = taker;
    let end = node.durability.shown().offset;
    let fed = node.replication.feeds.in_sync_replica_at(host, *port);
    let fed = fed.filter(|fed| fed.written + MAX_IN_SYNC_LAG_BYTES >= end);
    fed.map(|fed| Master { host: fed.ip, port: fed.port }).ok_or_else(|| {
        refuse!(
            "ERR replica {host}:{port} is not in sync: retry when it is (if it is, its \
             replica_announce_ip differs from its address in the topology)"
        )
    })
}

async fn blocking(
    node: &Arc<Node>,
    work: impl FnOnce(&Node) -> Outcome + Send + 'static,
) -> Outcome {
    let node = node.clone();
    let work = apart(move || work(&node));
    work.await.unwrap_or_else(|error| Err(refuse!("ERR {error}")))
}
