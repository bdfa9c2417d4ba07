//! What this node asks other nodes of its cluster, each on a connection of its own. Parts of pages
//! go other ways: the workers keep connections for them.

use crate::client::connect::{ConnectArgs, Link, within};
use crate::cluster::confirm::confirm;
use crate::cluster::{Member, Topology};
use crate::command::error::Refusal;
use crate::command::spec::Outcome;
use crate::roles::node::Process;
use redis_protocol::resp2::types::OwnedFrame;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How long a node may take to say which one it is.
const HEAR: Duration = Duration::from_secs(2);

/// A connection to another node that is logged in, as a replica's to its master.
pub async fn open(process: &Process, host: &str, port: u16) -> io::Result<Link> {
    let ((to, pass), encrypted) = {
        let config = process.config();
        let settings = &config.replication;
        let (user, password) = (&settings.master_user, &settings.master_auth);
        (ConnectArgs::to_peer(host, port, user, password), settings.tls)
    };
    let tls = encrypted.then_some(&process.tls);
    to.open_as(tls, pass, "Set replication.master_auth.").await
}

/// CLUSTERX SETNODES.
pub async fn set_nodes(link: &mut Link, next: &Topology, option: &[u8]) -> io::Result<()> {
    let (text, version) = (next.describe(), next.version.to_string());
    let request = [&b"CLUSTERX"[..], b"SETNODES", text.as_bytes(), version.as_bytes(), option];
    let words = request.len() - usize::from(option.is_empty());
    link.ask(&request[..words]).await.map(drop)
}

/// A connection to this node of the cluster, which has said that it is the one.
pub async fn reach(process: &Process, member: &Member) -> io::Result<Link> {
    let mut link = open(process, &member.host, member.port).await?;
    match within(HEAR, link.ask(&[b"CLUSTERX", b"MYID"])).await? {
        OwnedFrame::BulkString(id) if id == member.id.as_bytes() => Ok(link),
        _ => Err(io::Error::other(format!("it is not the node {}", member.id))),
    }
}

/// Refuses a topology that another node would refuse: see [`confirm`].
pub async fn confirm_topology(process: &Process, next: &Topology) -> Outcome {
    let check = confirm(next, async |member| {
        set_nodes(&mut reach(process, member).await?, next, b"CHECK").await
    });
    check.await
}

/// What a fenced master of a cluster does again and again. Where a replica of it follows, or by its
/// topology it has none, it is the master unless it has heard that late: a controller may have put
/// another node in its place. So the others are asked before it takes writes.
///
/// Whether it has asked.
pub async fn ask_to_rule(
    process: &Arc<Process>,
    topology: &Arc<Topology>,
) -> Result<bool, Refusal> {
    if !has_word(process, topology).await {
        return Ok(false);
    }
    confirm_topology(process, topology).await?;
    // The replica may have gone meanwhile, to be the master itself.
    let is_same = Arc::ptr_eq(&process.cluster.topology(), topology);
    if is_same && has_word(process, topology).await {
        process.replication.followed(&process.config(), true);
    }
    Ok(true)
}

/// Whether anything but its own topology says that this node is a master.
async fn has_word(process: &Arc<Process>, topology: &Arc<Topology>) -> bool {
    // One that ended in the middle of giving slots away knows more than its replicas.
    if !process.replication.waits_for_replica() || process.cluster.is_giving() {
        return false;
    }
    if topology.own().is_none() {
        return process.replication.feeds.count(|_| true) > 0;
    }
    if process.cluster.rules_alone() && process.config().shard.is_empty() {
        return true;
    }
    let (process, topology) = (process.clone(), topology.clone());
    let is_fed = move || {
        let feeds = &process.replication.feeds;
        topology.replicas(&topology.own_id).any(|it| feeds.in_step_at(&it.host, it.port).is_some())
    };
    tokio::task::spawn_blocking(is_fed).await.unwrap_or(false)
}
