//! Client of Redis Sentinels, used when Sentinels define the topology (`[[shard]]`). Polls every
//! Sentinel once a second, and immediately after a `+switch-master` message.

use crate::commands::cluster::controller::is_here;
use client::{ConnectArgs, Link, Reply, closed, put_command, within};
use node::cluster::sentinel::{SentinelAddress, SentinelReply, Sentinels, places};
use node::cluster::topology::MAX_NODES;
use node::roles::node::Host;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Duration;

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a connect or a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn run(host: &Arc<Host>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let all = Arc::new(Mutex::new(Sentinels::default()));
    runtime.block_on(async {
        for (number, address) in places(&host.config()).into_iter().enumerate() {
            tokio::spawn(follow(host.clone(), all.clone(), number, address));
        }
        host.stop.wait().await;
    });
    Ok(())
}

async fn follow(host: Arc<Host>, all: Arc<Mutex<Sentinels>>, number: usize, at: SentinelAddress) {
    let mut told = String::new();
    loop {
        let error = match session(&host, &all, number, &at).await {
            Ok(never) => match never {},
            Err(error) => error.to_string(),
        };
        if told != error {
            tracing::warn!(
                "Sentinel {}:{}: {error}; retrying every second, check cluster.sentinels",
                at.0,
                at.1
            );
            told = error;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn connect(host: &Host, (name, port): &SentinelAddress) -> io::Result<Link> {
    let connect = {
        let settings = &host.config().cluster;
        ConnectArgs::to_peer(name, *port, &settings.sentinel_user, &settings.sentinel_auth)
    };
    within(REPLY_TIMEOUT, connect.open_as(None, "Set cluster.sentinel_auth.")).await
}

/// Opens two connections: one for polling, the other subscribed to `+switch-master`.
async fn session(
    host: &Arc<Host>,
    all: &Mutex<Sentinels>,
    number: usize,
    at: &SentinelAddress,
) -> io::Result<std::convert::Infallible> {
    let mut asked = connect(host, at).await?;
    let mut hears = connect(host, at).await?;
    within(REPLY_TIMEOUT, hears.call(&[b"SUBSCRIBE", b"+switch-master"])).await?;
    let shards = host.config().shard.clone();
    loop {
        for (shard, of) in shards.iter().enumerate() {
            match ask(&mut asked, of.master.as_bytes()).await? {
                Some(said) => _ = all.lock().hear(number, shard, said),
                None => tracing::debug!(
                    "Sentinel {}:{} does not monitor master {}",
                    at.0,
                    at.1,
                    of.master
                ),
            }
        }
        take_over(host, all);
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            message = hears.next() => {
                message?;
            }
        }
    }
}

/// Replaces the topology if the Sentinels report a change.
fn take_over(host: &Arc<Host>, all: &Mutex<Sentinels>) {
    let node = host.node();
    let config = node.config().clone();
    let is_here = |host: &str, port: u16| is_here(&node, host, port);
    let next = |now: &node::cluster::Topology| all.lock().topology(&config.shard, now, is_here);
    match node.cluster.change(&config.durability.dir, next) {
        Ok(false) => {}
        Ok(true) => {
            node.wait_for_turns();
            let topology = node.cluster.topology();
            tracing::info!("topology {} from Sentinel:\n{}", topology.version, topology.describe());
        }
        Err(error) => tracing::warn!("cannot apply the topology from Sentinel: {error}"),
    }
}

/// Asks a Sentinel about a master; returns `None` if the Sentinel does not know it.
async fn ask(link: &mut Link, name: &[u8]) -> io::Result<Option<SentinelReply>> {
    let mut out = Vec::new();
    put_command(&mut out, &[b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name]);
    put_command(&mut out, &[b"SENTINEL", b"MASTER", name]);
    put_command(&mut out, &[b"SENTINEL", b"REPLICAS", name]);
    within(REPLY_TIMEOUT, link.send(&out)).await?;
    let mut replies = Vec::new();
    for _ in 0..3 {
        replies.push(within(REPLY_TIMEOUT, link.next()).await?);
    }
    let [Reply::Array(address), about, Reply::Array(replicas)] = &replies[..] else {
        return Ok(None);
    };
    let text = |reply: &Reply| reply.clone().into_text();
    let value = |reply: &Reply, name: &str| reply.get(name).and_then(text);
    let epoch = value(about, "config-epoch").and_then(|epoch| epoch.parse().ok());
    let place = |host: Option<String>, port: Option<String>| Some((host?, port?.parse().ok()?));
    let master = place(address.first().and_then(text), address.get(1).and_then(text));
    let (Some(epoch), Some(master)) = (epoch, master) else { return Err(closed()) };
    let is_up = |replica: &&Reply| {
        let flags = value(replica, "flags").unwrap_or_default();
        !flags.split(',').any(|flag| ["s_down", "o_down", "disconnected"].contains(&flag))
    };
    let place_of = |replica| place(value(replica, "ip"), value(replica, "port"));
    let replicas = replicas.iter().filter(is_up).filter_map(place_of).take(MAX_NODES).collect();
    Ok(Some(SentinelReply { epoch, master, replicas }))
}
