//! Told to stop, by SHUTDOWN or by a signal, a master first gives its replicas what was written last, as Redis does: one of them may be the master before this
//! one is back. Writes are paused meanwhile, and reads go on. It waits until all that are in step have everything, for `server.shutdown_timeout_s` at most, or
//! until SHUTDOWN ABORT, after which all goes on. A replica does not wait: it has nothing that its master has not.

use crate::node::Node;
use crate::pause::{By, Paused};
use crate::replication::failover::{self, FAR};
use replication::Sending;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How it is to stop.
#[derive(Clone, Copy, Default)]
pub(crate) struct How {
    /// Without waiting for replicas.
    pub(crate) now: bool,
    /// Also if changes that were acknowledged are lost with it.
    pub(crate) forced: bool,
    /// If it is refused for them, the next one is forced.
    pub(crate) insists: bool,
}

/// A signal to stop came.
pub(crate) fn signalled(node: &Arc<Node>, signal: &str) {
    leave(node, signal, How { now: false, forced: node.stop.is_warned(), insists: true });
}

/// Stops the server: at once, or when its replicas have everything; until then [`Stop::leaves`](crate::Stop). False: it goes on, since changes that were
/// acknowledged would be lost. To be called in a runtime. `who` says so.
pub(crate) fn leave(node: &Arc<Node>, who: &str, how: How) -> bool {
    if !node.is_loaded() {
        node.stop.while_loading(who);
        return true;
    }
    // As in Redis: whoever says so too, NOW or not, waits with the first one.
    if node.stop.leaves().is_some() {
        tracing::info!("{who}: stopping already, when the replicas have everything");
        return true;
    }
    if is_refused(node, who, how) {
        return false;
    }
    let timeout = Duration::from_secs(node.config().server.shutdown_timeout_s).min(FAR);
    let replication = &node.replication;
    let is_fed = replication.is_master() && replication.is_settled() && replication.feeds.count(|_| true) > 0;
    if how.now || timeout.is_zero() || !is_fed {
        tracing::info!("{who}: stopping");
        say_who_lags(node, node.durability.shown().offset);
        node.stop.now();
        return true;
    }
    let until = Instant::now() + timeout;
    if node.stop.leave_by(until, || node.pause.begin(By::Stop, Paused::Writes, Instant::now() + FAR)) {
        tracing::info!("{who}: stopping when the replicas have everything, or after {} s", timeout.as_secs());
        tokio::spawn(wait(node.clone(), who.to_owned(), how, until));
    }
    true
}

/// SHUTDOWN ABORT. False if there is nothing to abort.
pub(crate) fn abort(node: &Node) -> bool {
    node.stop.stay(|| node.pause.end(By::Stop))
}

/// Whether changes that were acknowledged would be lost, and who stops it does not know.
fn is_refused(node: &Node, who: &str, how: How) -> bool {
    let why = if how.forced { None } else { node.durability.refusal() };
    if let Some(why) = &why {
        tracing::error!(
            "{who}: not stopping, as changes that were acknowledged would be lost; SHUTDOWN FORCE, or a second signal, stops all the same. {why}"
        );
        if how.insists {
            node.stop.warn();
        }
    }
    why.is_some()
}

async fn wait(node: Arc<Node>, who: String, how: How, until: Instant) {
    let end = tokio::select! {
        end = fed(&node) => end,
        () = node.replication.demoted() => node.durability.shown().offset,
        () = tokio::time::sleep_until(until.into()) => node.durability.shown().offset,
        // Aborted.
        () = node.stop.waited(until) => return,
    };
    // The disk may have said no meanwhile.
    if is_refused(&node, &who, how) {
        abort(&node);
        return;
    }
    say_who_lags(&node, end);
    // Writes stay paused: nobody would have them.
    node.stop.left(until);
}

/// Until every replica in step has all that was written; gives where the log ends with that.
async fn fed(node: &Node) -> u64 {
    let end = failover::all_written(node).await;
    let has_all = || (node.replication.feeds.count(|fed| fed.written < end) == 0).then_some(end);
    node.durability.until(has_all).await
}

/// In Redis's words.
fn say_who_lags(node: &Node, end: u64) {
    let all = node.replication.feeds.reachable();
    let behind: Vec<_> = all.iter().filter(|fed| fed.sending != Sending::Log || fed.written < end).collect();
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
        tracing::info!("{} of {} replicas are in sync when shutting down.", all.len() - behind.len(), all.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use replication::Peer;

    /// A master whose disk says no after it was told to stop goes on with what it has in memory; who says so twice knows.
    #[tokio::test]
    async fn a_stop_that_would_lose_something_by_now_is_none() {
        let mut config = Config::default();
        config.server.shutdown_timeout_s = 1;
        let node = crate::fuzz::commands::alone(&config);
        let nowhere = std::net::IpAddr::from([127, 0, 0, 1]);
        assert!(node.replication.feeds.admit(1, nowhere, 1));
        let peer = Peer { ip: String::new(), port: 0, sending: Sending::Log, written: 0, durable: 0, heard_ms: 0 };
        node.replication.feeds.update(1, &peer, Instant::now());
        for (forced, is_stopped) in [(false, false), (true, true)] {
            node.durability.able();
            assert_eq!(node.stop.is_warned(), forced, "who says so twice knows");
            signalled(&node, "a test");
            assert_eq!(node.pause.now(), Paused::Writes);
            let until = node.stop.leaves().expect("it waits");
            node.durability.unable(&store::Error::Refused("no room".to_owned()));
            node.stop.waited(until).await;
            assert_eq!(node.stop.is_stopped(), is_stopped);
            assert_eq!(node.pause.now() == Paused::Writes, is_stopped, "nobody would have what is written then");
        }
        assert!(!abort(&node));
    }
}
