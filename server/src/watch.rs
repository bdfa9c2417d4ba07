//! Health checks among cluster nodes (`node::cluster::health`). Each node is polled on a separate
//! connection, so a slow node does not delay the other nodes. A restarted master is fenced: it
//! refuses writes until other nodes confirm its role. This module requests the confirmation.

use client::{Link, Reply, within};
use dataset::clock::unix_ms;
use node::cluster::Member;
use node::cluster::confirm::is_final;
use node::roles::node::Host;
use node::roles::peer;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Polling interval for each node, in a cluster of up to a hundred nodes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum polling interval, multiplied by the number of cluster members. Bounds the polling rate
/// in large clusters.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Interval at which a node checks whether it is fenced.
const FENCE_CHECK_INTERVAL: Duration = Duration::from_millis(50);
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// Error code that a node returns while it loads its data.
const LOADING: &str = "LOADING";

pub(crate) fn run(host: &Arc<Host>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            never = follow(host) => match never {},
            never = lift_fences(host) => match never {},
            () = host.stop.wait() => {}
        }
    });
    // Does not wait for blocking threads: a name lookup may still be running.
    runtime.shutdown_background();
    Ok(())
}

/// Lets a fenced master accept writes again when other nodes confirm its role.
async fn lift_fences(host: &Arc<Host>) -> std::convert::Infallible {
    let process = host.node().process();
    // After a final refusal, do not ask for confirmation again under the same topology. On a second
    // attempt, the node that refused might be unreachable, and the other nodes might confirm.
    let mut refused = None;
    loop {
        let topology = process.cluster.topology();
        let is_refused = refused.as_ref().is_some_and(|it| Arc::ptr_eq(it, &topology));
        let mut has_asked = false;
        if process.replication.is_fenced() && !is_refused {
            match peer::try_lift_fence(&process, &topology).await {
                Ok(asked) => has_asked = asked,
                Err(refusal) => {
                    has_asked = true;
                    let why = String::from_utf8_lossy(refusal.text());
                    tracing::warn!("this master remains fenced: {why}");
                    refused = Some(topology).filter(|_| is_final(&refusal));
                }
            }
        }
        tokio::time::sleep(if has_asked { POLL_INTERVAL } else { FENCE_CHECK_INTERVAL }).await;
    }
}

/// Maintains one polling task for each other node of the topology.
async fn follow(host: &Arc<Host>) -> std::convert::Infallible {
    let mut asking: HashMap<String, (Member, JoinHandle<()>)> = HashMap::new();
    loop {
        let topology = host.cluster.topology();
        let others = topology.members().iter().filter(|member| member.id != topology.own_id);
        let others: HashMap<&str, &Member> = others.map(|it| (it.id.as_str(), it)).collect();
        asking.retain(|id, (member, task)| {
            let is_same = |now: &&Member| now.host == member.host && now.port == member.port;
            let stays = others.get(id.as_str()).is_some_and(is_same);
            if !stays {
                task.abort();
            }
            stays
        });
        host.cluster.health.follow(&topology);
        for (id, member) in others {
            asking.entry(id.to_owned()).or_insert_with(|| {
                let task = tokio::spawn(ask(host.clone(), member.clone()));
                (member.clone(), task)
            });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn ask(host: Arc<Host>, member: Member) {
    loop {
        // An error only ends the connection. The health record already shows the missing reply.
        let _ = session(&host, &member).await;
        tokio::time::sleep(pause(&host)).await;
    }
}

async fn session(host: &Host, member: &Member) -> io::Result<std::convert::Infallible> {
    let (health, id) = (&host.cluster.health, member.id.as_str());
    health.asked(id, unix_ms());
    let mut link = match peer::open(host, &member.host, member.port).await {
        Ok(link) => link,
        Err(error) => {
            // The node is alive but rejects the login.
            if error.kind() == io::ErrorKind::PermissionDenied {
                health.heard(id, unix_ms(), false);
            }
            return Err(error);
        }
    };
    loop {
        health.asked(id, unix_ms());
        let answer = within(REPLY_TIMEOUT, link.call(&[b"PING"])).await?;
        let is_loading = matches!(&answer, Reply::Error(why) if why.starts_with(LOADING));
        health.heard(id, unix_ms(), is_loading);
        if !is_loading && !has_data(&mut link).await? {
            health.heard(id, unix_ms(), true);
        }
        tokio::time::sleep(pause(host)).await;
    }
}

/// Returns whether a node has its shard's data. A replica that is not yet synchronized has no data,
/// or data of another shard. A node that refuses ROLE counts as having data.
async fn has_data(link: &mut Link) -> io::Result<bool> {
    let role = within(REPLY_TIMEOUT, link.call(&[b"ROLE"])).await?;
    let Reply::Array(role) = role else { return Ok(true) };
    let is_replica = matches!(role.first(), Some(Reply::BulkString(word)) if word == b"slave");
    let is_behind = matches!(role.last(), Some(Reply::Integer(offset)) if *offset < 0);
    Ok(!(is_replica && is_behind))
}

fn pause(host: &Host) -> Duration {
    POLL_INTERVAL.max(MIN_POLL_INTERVAL * host.cluster.topology().members().len() as u32)
}
