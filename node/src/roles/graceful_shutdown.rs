//! Graceful shutdown, by SHUTDOWN or by a signal.
//!
//! A node with a long log first writes a snapshot, as Redis does, and serves clients in the
//! meantime. The snapshot makes the next startup fast. Then a master pauses writes and continues to
//! serve reads. The master sends its replicas the rest of its log, because one of them may be
//! promoted before this node restarts. The master waits until all replicas have the whole log, for
//! at most `server.shutdown_timeout`. SHUTDOWN ABORT cancels the shutdown. A replica does not wait,
//! because its master has all of its data.
//!
//! The shutdown also waits for a FAILOVER in progress. Otherwise the replica might never receive
//! the takeover request, and no node would be the master until this node restarts. Redis does not
//! wait for a FAILOVER. After a timeout, the restarted node repeats the request, or leaves the
//! decision to Sentinel.

use crate::roles::failover;
use crate::roles::failover::FAR;
use crate::roles::node::Node;
use crate::runtime::pause::{By, Paused};
use crate::runtime::service_manager;
use replication::Sending;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Options of SHUTDOWN.
#[derive(Clone, Copy, Default)]
pub struct How {
    /// Whether to stop without waiting for replicas.
    pub now: bool,
    /// Whether to stop even if acknowledged writes are lost.
    pub forced: bool,
    /// Whether a repeated request is forced if this one is refused to protect acknowledged writes.
    pub insists: bool,
}

/// Minimum log length for writing a snapshot, in bytes. A shorter log is replayed in a fraction of
/// a second.
const MIN_SNAPSHOT_LOG_BYTES: u64 = 16 << 20;
/// Maximum ratio of memory to log length. At a higher ratio, writing a snapshot takes longer than
/// replaying the log.
const MAX_MEMORY_TO_LOG_RATIO: u64 = 4;

/// Whether to write a snapshot before stopping. The snapshot must save more time at the next
/// startup than writing it takes.
pub fn saves_first(node: &Node) -> bool {
    let Some(store) = node.store.get().filter(|_| node.is_loaded()) else { return false };
    let begin = store.manifest().replay.offset;
    let log_bytes = node.durability.shown().offset.saturating_sub(begin);
    log_bytes >= MIN_SNAPSHOT_LOG_BYTES
        && node.engines().memory_bytes() <= MAX_MEMORY_TO_LOG_RATIO * log_bytes
}

/// Writes a snapshot for a shutdown, and returns the snapshot's error.
pub async fn save(node: &Node, cause: &str) -> Result<(), String> {
    tracing::info!("{cause}: saving a snapshot before stopping");
    service_manager::status("saving a snapshot before stopping");
    node.snapshots.save().await
}

/// Handles a signal to stop. If stopping would lose acknowledged writes, the shutdown waits until
/// these writes are safe or SHUTDOWN ABORT cancels the shutdown. A second signal does not wait for
/// the snapshot.
pub fn signalled(node: &Arc<Node>, signal: &str) {
    if saves_first(node) && node.stop.begin_save() {
        let (node, signal) = (node.clone(), signal.to_owned());
        tokio::spawn(async move {
            if let Err(why) = save(&node, &signal).await {
                tracing::warn!("{signal}: snapshot failed, the next start replays the log: {why}");
            }
            if node.stop.end_save() {
                stop_on_signal(&node, &signal);
            }
        });
    } else {
        stop_on_signal(node, signal);
    }
}

fn stop_on_signal(node: &Arc<Node>, signal: &str) {
    let forced = node.stop.is_warned();
    if !leave(node, signal, How { now: false, forced, insists: true }) {
        tokio::spawn(retry_stop_after_recovery(node.clone(), signal.to_owned()));
    }
}

async fn retry_stop_after_recovery(node: Arc<Node>, signal: String) {
    loop {
        node.durability.recovered().await;
        if !node.stop.is_warned() || node.stop.is_stopped() {
            return;
        }
        tracing::info!("{signal}: the log is writable again, stopping now");
        if leave(&node, &signal, How { now: false, forced: false, insists: true }) {
            return;
        }
    }
}

/// Stops the server, immediately or when its replicas have the whole log
/// ([`Stop::leaves`](crate::runtime::shutdown::Stop)). If acknowledged writes would be lost, does
/// not stop and returns false. Must be called on a thread with a tokio runtime. `cause` names the
/// signal or command in the log.
pub fn leave(node: &Arc<Node>, cause: &str, how: How) -> bool {
    if !node.is_loaded() {
        node.stop.stop_while_loading(cause);
        return true;
    }
    // As in Redis, a second request joins the shutdown in progress, even with NOW.
    if node.stop.leaves().is_some() {
        tracing::info!("{cause}: already stopping, waiting for replicas");
        return true;
    }
    if is_refused(node, cause, how) {
        return false;
    }
    let timeout = Duration::from_secs(node.config().server.shutdown_timeout_s).min(FAR);
    let replication = &node.replication;
    let is_fed = replication.is_master() && replication.feeds.count(|_| true) > 0;
    if how.now || timeout.is_zero() || !(is_fed || replication.failover.is_under_way()) {
        tracing::info!("{cause}: stopping");
        log_lagging_replicas(node, node.durability.shown().offset);
        node.stop.now();
        return true;
    }
    let until = Instant::now() + timeout;
    if node.stop.begin_replica_wait(until, || {
        node.pause.begin(By::Stop, Paused::Writes, Instant::now() + FAR)
    }) {
        let what = if replication.failover.is_under_way() {
            "the FAILOVER ends"
        } else {
            "the replicas have caught up"
        };
        tracing::info!("{cause}: stopping when {what}, or after {} s", timeout.as_secs());
        tokio::spawn(wait(node.clone(), cause.to_owned(), how, until));
    }
    true
}

/// Executes SHUTDOWN ABORT. Returns false if there is nothing to abort.
pub fn abort(node: &Node) -> bool {
    node.stop.forget_warning() | node.stop.end_save() | stay(node)
}

/// Cancels a shutdown that waits for replicas. Returns false if no shutdown is waiting.
fn stay(node: &Node) -> bool {
    node.stop.stay(|| node.pause.end(By::Stop))
}

/// Whether the stop is refused because acknowledged writes would be lost. Logs the reason.
fn is_refused(node: &Node, cause: &str, how: How) -> bool {
    let is_free = how.forced || !node.durability.has_unsynced_acknowledged();
    let why = if is_free { None } else { node.durability.refusal() };
    if let Some(why) = &why {
        tracing::error!(
            "{cause}: not stopping, since acknowledged changes would be lost. Free disk space to \
             let the signal proceed, or cancel it with SHUTDOWN ABORT. A second signal or SHUTDOWN \
             FORCE stops anyway. {why}"
        );
        if how.insists {
            node.stop.warn();
        }
    }
    why.is_some()
}

async fn wait(node: Arc<Node>, cause: String, how: How, until: Instant) {
    let end = tokio::select! {
        end = over(&node, how) => end,
        () = tokio::time::sleep_until(until.into()) => node.durability.shown().offset,
        // The shutdown was aborted, or another request forced it.
        () = node.stop.waited(until) => return,
    };
    // The disk may have failed while this task waited.
    if is_refused(&node, &cause, how) {
        stay(&node);
        if how.insists {
            tokio::spawn(retry_stop_after_recovery(node.clone(), cause));
        }
        return;
    }
    log_lagging_replicas(&node, end);
    // Writes stay paused, since no replica would receive them.
    node.stop.left(until);
}

/// Waits until all replicas in sync have the whole log and no FAILOVER is in progress. Returns the
/// log's end offset.
async fn over(node: &Node, how: How) -> u64 {
    // A failing disk may recover before the timeout. A forced shutdown does not wait for the disk.
    let end = failover::wait_for_all_written(node, how.forced).await;
    let replication = &node.replication;
    let is_over = || {
        // A replica has no data that its master lacks.
        let is_known =
            || !replication.is_master() || replication.feeds.count(|fed| fed.written < end) == 0;
        (!replication.failover.is_under_way() && is_known()).then_some(end)
    };
    node.durability.until(is_over).await
}

/// Logs the replicas that lag behind, with the text of Redis where Redis has the same message.
fn log_lagging_replicas(node: &Node, end: u64) {
    if node.replication.failover.handover().is_some() {
        let then = match node.replication.sentinel_groups() {
            0 => "this node asks the replica again after its next start",
            _ => "Sentinel decides which node is the master after the next start",
        };
        tracing::warn!("stopping during a FAILOVER: {then}");
    }
    let all = node.replication.feeds.reachable();
    let behind: Vec<_> =
        all.iter().filter(|fed| fed.sending != Sending::Log || fed.written < end).collect();
    for fed in &behind {
        tracing::warn!(
            "Lagging replica {}:{} reported offset {} behind master, lag={}, state={}.",
            fed.ip,
            fed.port,
            end.saturating_sub(fed.written),
            fed.heard.elapsed().as_secs(),
            fed.state(),
        );
    }
    if !all.is_empty() {
        tracing::info!(
            "{} of {} replicas are in sync when shutting down.",
            all.len() - behind.len(),
            all.len()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Fsync};
    use crate::roles::node::Host;
    use replication::Peer;

    /// The disk fails during a shutdown. The master keeps running, because the last writes are only
    /// in its memory. A second request stops the master.
    #[tokio::test]
    async fn a_stop_is_cancelled_if_it_would_lose_writes() {
        let mut config = Config::default();
        config.server.shutdown_timeout_s = 1;
        let node = Host::alone(&config);
        let nowhere = std::net::IpAddr::from([127, 0, 0, 1]);
        assert!(node.replication.feeds.admit(1, nowhere, 1));
        let peer = Peer {
            ip: String::new(),
            port: 0,
            refused_log: false,
            diverged_at: None,
            sending: Sending::Log,
            written: 0,
            durable: 0,
            heard_ms: 0,
        };
        node.replication.feeds.update(1, &peer, Instant::now());
        node.engines().set(&node.engines().counters()[0], 7, &[(0, 1)]).unwrap();
        for (forced, is_stopped) in [(false, false), (true, true)] {
            node.durability.accept_writes();
            assert_eq!(node.stop.is_warned(), forced, "a second order confirms the first");
            signalled(&node, "a test");
            assert_eq!(node.pause.now(), Paused::Writes);
            let until = node.stop.leaves().expect("the stop waits");
            node.durability.refuse_writes(&store::Error::Refused("no room".to_owned()));
            node.stop.waited(until).await;
            assert_eq!(node.stop.is_stopped(), is_stopped);
            assert_eq!(
                node.pause.now() == Paused::Writes,
                is_stopped,
                "no replica would have the last writes"
            );
        }
        assert!(!abort(&node));
    }

    /// With `always` every acknowledged write is in the log.
    #[tokio::test]
    async fn stop_is_refused_only_with_unsynced_acknowledged_writes() {
        for (policy, changes, later) in [
            (Fsync::Always, true, None),
            (Fsync::Everysec, false, None),
            (Fsync::Everysec, true, None),
            // Writes acknowledged before the policy changed are not synced yet.
            (Fsync::Everysec, true, Some(Fsync::Always)),
            (Fsync::Always, true, Some(Fsync::Everysec)),
        ] {
            let mut config = Config::default();
            config.durability.fsync = policy;
            let node = Host::alone(&config);
            if changes {
                node.engines().set(&node.engines().counters()[0], 7, &[(0, 1)]).unwrap();
            }
            if let Some(later) = later {
                node.durability.set_policy(later);
            }
            node.durability.refuse_writes(&store::Error::Refused("no room".to_owned()));
            let is_refused = changes && (policy, later) != (Fsync::Always, None);
            assert_eq!(node.durability.has_unsynced_acknowledged(), is_refused);
            signalled(&node, "a test");
            assert_eq!(!node.stop.is_stopped(), is_refused, "{policy:?} {changes} {later:?}");
            assert_eq!(abort(&node), is_refused, "SHUTDOWN ABORT forgets a delayed signal");
            assert!(!node.stop.is_warned());
        }
    }
}
