//! What happens between the order to stop, by SHUTDOWN or by a signal, and the stop.
//!
//! A node with a long log first writes a snapshot, as Redis does, and serves meanwhile: the next
//! start is short then. A master then gives its replicas what was written last, as one of them may
//! be the master before this one is back. Writes are paused meanwhile, and reads go on. It waits
//! until all that are in step have everything, for `server.shutdown_timeout_s` at most, or until
//! SHUTDOWN ABORT, after which all goes on. A replica does not wait: it has nothing that its master
//! has not.
//!
//! A FAILOVER that is under way, or comes meanwhile, is waited for, too: else the replica that is
//! to take over might never hear of it, and there would be no master until this node is back. Redis
//! does not wait for that. If the time is over first, the next start asks the replica again, or
//! leaves it to Sentinel where one has spoken.

use crate::roles::failover;
use crate::roles::failover::FAR;
use crate::roles::node::Node;
use crate::runtime::pause::{By, Paused};
use crate::runtime::service_manager;
use replication::Sending;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How it is to stop.
#[derive(Clone, Copy, Default)]
pub struct How {
    /// Without waiting for replicas.
    pub now: bool,
    /// Also if changes that were acknowledged are lost with it.
    pub forced: bool,
    /// If it is refused for them, the next one is forced.
    pub insists: bool,
}

/// A log that is shorter than this is replayed in a fraction of a second.
const WORTH_LOG_BYTES: u64 = 16 << 20;
/// Memory for each byte of the log, beyond which writing all of it would take longer than replaying
/// the log does.
const WORTH_RATIO: u64 = 4;

/// Whether a stop writes a snapshot first: reading it will take less time than replaying the log
/// that it stands for, by more than writing it takes.
pub fn saves_first(node: &Node) -> bool {
    let Some(store) = node.store.get().filter(|_| node.is_loaded()) else { return false };
    let begin = store.manifest().replay.offset;
    let log_bytes = node.durability.shown().offset.saturating_sub(begin);
    log_bytes >= WORTH_LOG_BYTES && node.engines().memory_bytes() <= WORTH_RATIO * log_bytes
}

/// Writes a snapshot, as the server is told to stop. The error is that of the snapshot.
pub async fn save(node: &Node, cause: &str) -> Result<(), String> {
    tracing::info!("{cause}: writing a snapshot, then stopping");
    service_manager::status("writing a snapshot before the stop");
    node.snapshots.save().await
}

/// A signal to stop came. If it is refused, it is followed as soon as nothing would be lost by
/// that, unless SHUTDOWN ABORT comes first. A second signal does not wait for the snapshot.
pub fn signalled(node: &Arc<Node>, signal: &str) {
    if saves_first(node) && node.stop.begin_save() {
        let (node, signal) = (node.clone(), signal.to_owned());
        tokio::spawn(async move {
            if let Err(why) = save(&node, &signal).await {
                tracing::warn!("{signal}: no snapshot, so the next start replays the log: {why}");
            }
            if node.stop.end_save() {
                stop_by(&node, &signal);
            }
        });
    } else {
        stop_by(node, signal);
    }
}

fn stop_by(node: &Arc<Node>, signal: &str) {
    let forced = node.stop.is_warned();
    if !leave(node, signal, How { now: false, forced, insists: true }) {
        tokio::spawn(follow_later(node.clone(), signal.to_owned()));
    }
}

async fn follow_later(node: Arc<Node>, signal: String) {
    loop {
        node.durability.recovered().await;
        if !node.stop.is_warned() || node.stop.is_stopped() {
            return;
        }
        tracing::info!("{signal}: the log is written again, so it is followed now");
        if leave(&node, &signal, How { now: false, forced: false, insists: true }) {
            return;
        }
    }
}

/// Stops the server: at once, or when its replicas have everything; until then
/// [`Stop::leaves`](crate::runtime::shutdown::Stop). False: it goes on, since changes that were
/// acknowledged would be lost. To be called in a runtime. `cause` names the signal or command.
pub fn leave(node: &Arc<Node>, cause: &str, how: How) -> bool {
    if !node.is_loaded() {
        node.stop.while_loading(cause);
        return true;
    }
    // As in Redis: a second order to stop, NOW or not, waits with the first one.
    if node.stop.leaves().is_some() {
        tracing::info!("{cause}: stopping already, when the replicas have everything");
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
        say_what_is_left(node, node.durability.shown().offset);
        node.stop.now();
        return true;
    }
    let until = Instant::now() + timeout;
    if node
        .stop
        .leave_by(until, || node.pause.begin(By::Stop, Paused::Writes, Instant::now() + FAR))
    {
        let what = if replication.failover.is_under_way() {
            "the FAILOVER is over"
        } else {
            "the replicas have everything"
        };
        tracing::info!("{cause}: stopping when {what}, or after {} s", timeout.as_secs());
        tokio::spawn(wait(node.clone(), cause.to_owned(), how, until));
    }
    true
}

/// SHUTDOWN ABORT. False if there is nothing to abort.
pub fn abort(node: &Node) -> bool {
    node.stop.forget_warning() | node.stop.end_save() | stay(node)
}

/// The stop that waits for replicas does not take place. False if there is none.
fn stay(node: &Node) -> bool {
    node.stop.stay(|| node.pause.end(By::Stop))
}

/// Whether acknowledged changes would be lost without a warning to the operator.
fn is_refused(node: &Node, cause: &str, how: How) -> bool {
    let is_free = how.forced || !node.durability.would_lose();
    let why = if is_free { None } else { node.durability.refusal() };
    if let Some(why) = &why {
        tracing::error!(
            "{cause}: not stopping, as changes that were acknowledged would be lost; SHUTDOWN \
             FORCE, or a second signal, stops all the same. A signal is followed when there is \
             room again, unless SHUTDOWN ABORT comes first. {why}"
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
        // Aborted.
        () = node.stop.waited(until) => return,
    };
    // The disk may have said no meanwhile.
    if is_refused(&node, &cause, how) {
        stay(&node);
        if how.insists {
            tokio::spawn(follow_later(node.clone(), cause));
        }
        return;
    }
    say_what_is_left(&node, end);
    // Writes stay paused: no replica would get them.
    node.stop.left(until);
}

/// Until no replica is left that will get more of what was written; returns where the log ends
/// then.
async fn over(node: &Node, how: How) -> u64 {
    // What the disk does not take by now it may take before the time is over, but a forced stop
    // does not wait for that.
    let end = failover::all_written(node, how.forced).await;
    let replication = &node.replication;
    let is_over = || {
        // A replica has nothing that its master has not.
        let is_known =
            || !replication.is_master() || replication.feeds.count(|fed| fed.written < end) == 0;
        (!replication.failover.is_under_way() && is_known()).then_some(end)
    };
    node.durability.until(is_over).await
}

/// In Redis's words, as far as it has such.
fn say_what_is_left(node: &Node, end: u64) {
    if node.replication.failover.handover().is_some() {
        let then = match node.replication.sentinel_groups() {
            0 => "the replica is asked again to take over when this node is back",
            _ => "Sentinel decides which node is the master when this node is back",
        };
        tracing::warn!("a FAILOVER is under way: {then}");
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

    /// A master whose disk says no after it was told to stop goes on with what it has in memory; a
    /// second order to stop is obeyed.
    #[tokio::test]
    async fn a_stop_that_would_lose_something_by_now_is_none() {
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
            node.durability.able();
            assert_eq!(node.stop.is_warned(), forced, "a second order is a confirmation");
            signalled(&node, "a test");
            assert_eq!(node.pause.now(), Paused::Writes);
            let until = node.stop.leaves().expect("it waits");
            node.durability.unable(&store::Error::Refused("no room".to_owned()));
            node.stop.waited(until).await;
            assert_eq!(node.stop.is_stopped(), is_stopped);
            assert_eq!(
                node.pause.now() == Paused::Writes,
                is_stopped,
                "no replica would have what is written then"
            );
        }
        assert!(!abort(&node));
    }

    /// F29. With `always` every acknowledged change is in the log.
    #[tokio::test]
    async fn a_stop_is_refused_only_where_something_acknowledged_is_not_synced() {
        for (policy, changes, later) in [
            (Fsync::Always, true, None),
            (Fsync::Everysec, false, None),
            (Fsync::Everysec, true, None),
            // What was acknowledged before the policy changed is not synced yet.
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
            node.durability.unable(&store::Error::Refused("no room".to_owned()));
            let is_refused = changes && (policy, later) != (Fsync::Always, None);
            assert_eq!(node.durability.would_lose(), is_refused);
            signalled(&node, "a test");
            assert_eq!(!node.stop.is_stopped(), is_refused, "{policy:?} {changes} {later:?}");
            assert_eq!(abort(&node), is_refused, "a signal that waits for room is forgotten");
            assert!(!node.stop.is_warned());
        }
    }
}
