//! What this node asks other nodes of its cluster, each on a connection of its own. Parts of pages
//! go other ways: the workers keep connections for them.

use crate::client::connect::{ConnectArgs, Link};
use crate::cluster::Topology;
use crate::cluster::confirm::confirm;
use crate::command::error::refuse;
use crate::command::spec::Outcome;
use crate::roles::node::{Node, Process};
use crate::runtime::apart::apart;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

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

/// Whether no other node would refuse this topology: see [`confirm`]. It waits for their answers,
/// and for others that ask the same: each node is sent all of the text.
pub fn confirm_topology(process: &Process, next: &Topology) -> Outcome {
    let _one = process.cluster.confirming.lock();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| refuse!("ERR {error}"))?;
    let confirmed = runtime.block_on(confirm(next, async |member| {
        let mut link = open(process, &member.host, member.port).await?;
        set_nodes(&mut link, next, b"CHECK").await
    }));
    // The name of a node may still be looked up.
    runtime.shutdown_background();
    confirmed
}

/// A replica follows this node. That says that it is the master, unless it is one of a cluster:
/// there the replica may have heard of the same topology late, when a controller had put another
/// node in this one's place. So the others are asked, too, and meanwhile it stays fenced.
pub(super) fn followed(node: &Arc<Node>) {
    let config = node.config();
    if !(node.cluster.is_enabled() && node.replication.is_fenced()) {
        return node.replication.followed(&config, true);
    }
    node.replication.followed(&config, false);
    if node.cluster.believing.swap(true, SeqCst) {
        return;
    }
    let node = node.clone();
    drop(apart(move || {
        let topology = node.cluster.topology();
        let confirmed = confirm_topology(&node, &topology);
        node.cluster.believing.store(false, SeqCst);
        let (config, now) = (node.config(), node.cluster.topology());
        match confirmed {
            // A replica has not heard more than this node, which may have ended in the middle of
            // giving slots away.
            Ok(()) if Arc::ptr_eq(&now, &topology) && !node.cluster.is_giving() => {
                node.replication.followed(&config, true);
            }
            Ok(()) => {}
            Err(refusal) => tracing::warn!(
                "a replica follows, but this node stays fenced: {}",
                String::from_utf8_lossy(refusal.text())
            ),
        }
    }));
}
