//! Requests to other nodes of the cluster, each on its own connection. Requests for parts of a page
//! use the workers' persistent connections instead.

use crate::cluster::confirm::confirm;
use crate::cluster::{Member, Topology};
use crate::command::error::Refusal;
use crate::command::spec::Outcome;
use crate::roles::node::Process;
use client::{ConnectArgs, Link, Reply, within};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Timeout for a node's reply to CLUSTERX MYID.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Connects to another node, with the credentials of a replica.
pub async fn open(process: &Process, host: &str, port: u16) -> io::Result<Link> {
    let (to, encrypted) = {
        let config = process.config();
        let settings = &config.replication;
        let (user, password) = (&settings.master_user, &settings.master_auth);
        (ConnectArgs::to_peer(host, port, user, password), settings.tls)
    };
    let tls = encrypted.then(|| process.tls.client()).transpose()?;
    to.open_as(tls.as_ref(), "Set replication.master_auth.").await
}

/// Sends a topology with CLUSTERX SETNODES.
pub async fn set_nodes(link: &mut Link, next: &Topology, option: &[u8]) -> io::Result<()> {
    let (text, version) = (next.describe(), next.version.to_string());
    let request = [&b"CLUSTERX"[..], b"SETNODES", text.as_bytes(), version.as_bytes(), option];
    let words = request.len() - usize::from(option.is_empty());
    link.ask(&request[..words]).await.map(drop)
}

/// Connects to a cluster node and verifies its id.
pub async fn reach(process: &Process, member: &Member) -> io::Result<Link> {
    let mut link = open(process, &member.host, member.port).await?;
    match within(REPLY_TIMEOUT, link.ask(&[b"CLUSTERX", b"MYID"])).await? {
        Reply::BulkString(id) if id == member.id.as_bytes() => Ok(link),
        _ => Err(io::Error::other(format!("the node there is not {}", member.id))),
    }
}

/// Fails if another node refuses the topology: see [`confirm`].
pub async fn confirm_topology(process: &Process, next: &Topology) -> Outcome {
    let check = confirm(next, async |member| {
        set_nodes(&mut reach(process, member).await?, next, b"CHECK").await
    });
    check.await
}

/// Lifts the fence of a cluster master, if possible. Called periodically while the master is
/// fenced. A connected replica, or a topology without replicas, suggests that this node is still
/// the master. A controller may have replaced this node in a newer topology, so the other nodes
/// must confirm the current topology first.
///
/// Returns whether the other nodes were queried.
pub async fn try_lift_fence(
    process: &Arc<Process>,
    topology: &Arc<Topology>,
) -> Result<bool, Refusal> {
    if !is_confirmed_master(process, topology).await {
        return Ok(false);
    }
    confirm_topology(process, topology).await?;
    // A replica may have been promoted during the await.
    let is_same = Arc::ptr_eq(&process.cluster.topology(), topology);
    if is_same && is_confirmed_master(process, topology).await {
        process.replication.followed(&process.config(), true);
    }
    Ok(true)
}

/// Whether a connected replica, or the lack of other candidates, suggests that this node is the
/// master.
async fn is_confirmed_master(process: &Arc<Process>, topology: &Arc<Topology>) -> bool {
    // After a restart during a hand-over of slots, connected replicas may not know the new
    // topology.
    if !process.replication.waits_for_replica() || process.cluster.has_unconfirmed_handover() {
        return false;
    }
    if topology.own().is_none() {
        return process.replication.feeds.count(|_| true) > 0;
    }
    if process.cluster.is_sole_owner() && process.config().shard.is_empty() {
        return true;
    }
    let (process, topology) = (process.clone(), topology.clone());
    let is_fed = move || {
        let feeds = &process.replication.feeds;
        topology
            .replicas(&topology.own_id)
            .any(|it| feeds.in_sync_replica_at(&it.host, it.port).is_some())
    };
    tokio::task::spawn_blocking(is_fed).await.unwrap_or(false)
}
