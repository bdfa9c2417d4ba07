//! The thread `log`, which owns the log in both roles. Commits write the log of a master; the link
//! to the master writes the log of a replica. A role change reopens the log's files, and a
//! promotion begins a segment with a higher term.
//!
//! ```text
//!   master --REPLICAOF host port--> the write gate closes, workers finish their changes, last
//!       commit (repeated until it succeeds, to save acknowledged writes) --> replica
//!   replica --REPLICAOF NO ONE--> writes wait (failover.rs) --> its master steps down and sends
//!       the rest of its log (replica.rs) --> a segment with a higher term is durable
//!       --> the write gate opens
//!   master --NO ONE, or named by Sentinel, after other masters--> like a replica's promotion
//!   replica --full sync complete--> the node is retired, the folder is opened as a new node
//!       --> replica
//! ```

use crate::roles::SENTINEL_CHANNEL;
use crate::roles::load::load;
use crate::roles::node::{Host, Node};
use crate::roles::replica;
use crate::roles::replica::FollowEnd;
use crate::runtime::clients::{self, Client};
use crate::runtime::pubsub::Kind;
use dataset::recovery;
use dataset::recovery::NodeLog;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use store::time::{now, since, sleep};
use store::{Log, ReplicaLog};

/// Time between two attempts after a disk error.
const RETRY: Duration = Duration::from_millis(500);

/// Time after which clients that still use a replaced node are disconnected.
const CLIENT_DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Runs the thread until the server stops.
pub fn direct(host: &Arc<Host>, mut held: NodeLog) -> store::Result<()> {
    loop {
        let node = host.node();
        let master = node.replication.master();
        if host.stop.is_stopped() && matches!(held, NodeLog::Follows(_)) {
            return end(&node, &held);
        }
        held = match (master, held) {
            (None, NodeLog::Own(log)) => {
                let (log, outcome) = run_as_master(host, &node, *log);
                if host.stop.is_stopped() {
                    return closed(&node, &log, outcome);
                }
                if node.replication.renews() {
                    tracing::info!("elected again: starting a new term");
                    convert_to_follower_log(host, node, log)
                } else {
                    NodeLog::Own(Box::new(log))
                }
            }
            (None, NodeLog::Follows(log)) => promote(host, &node, *log),
            (Some(_), NodeLog::Own(log)) => {
                tracing::info!("becoming a replica; the own log ends at {}", log.durable());
                convert_to_follower_log(host, node, *log)
            }
            (Some(master), NodeLog::Follows(log)) => {
                node.durability.accept_writes();
                settle(&node, false, log.term());
                let (log, course) = replica::run(host, node.clone(), *log, &master);
                match course {
                    FollowEnd::Ordered => NodeLog::Follows(Box::new(log)),
                    FollowEnd::Replace { is_whole } => {
                        drop(log);
                        let held = reopen_node(host, node);
                        if is_whole {
                            host.replication.is_whole(&host.config(), &master);
                        }
                        held
                    }
                }
            }
        };
    }
}

fn end(node: &Node, held: &NodeLog) -> store::Result<()> {
    match held {
        NodeLog::Own(log) => closed(node, log, Ok(())),
        NodeLog::Follows(log) => node.store.note(log.durable(), log.term()),
    }
}

/// Closes a master's log after its last log batch, whose result is `outcome`. A full disk is not an
/// error if no acknowledged write is lost.
fn closed(node: &Node, log: &Log, outcome: store::Result<()>) -> store::Result<()> {
    match outcome.and_then(|()| node.store.record_durable(log)) {
        Err(error @ store::Error::Full { .. }) if !node.durability.has_unsynced_acknowledged() => {
            tracing::warn!(
                "stopped with a full disk, no acknowledged write is lost: {error}. Free disk space \
                 before the next start"
            );
            Ok(())
        }
        outcome => outcome,
    }
}

/// Records whether the log is a master's or a replica's. Opens the write gate if the log matches
/// the role.
fn settle(node: &Node, is_master: bool, term: u64) {
    if node.replication.settle(&node.config(), is_master, term) {
        node.replication.failover.settled(node);
        announce(node);
    }
}

/// Announces this master to Sentinels, unless a Sentinel made the change.
pub fn announce(node: &Node) {
    for hello in node.replication.take_announcements() {
        tracing::info!("announced to Sentinels: {hello}");
        let most = node.config().server.max_output_buffer_bytes;
        node.channels.publish(Kind::Channel, SENTINEL_CHANNEL, hello.as_bytes(), most);
    }
}

/// Notifies the waiting thread when dropped, even by a panic. Otherwise the scope would never end.
struct NotifyOnDrop<'a>(&'a tokio::sync::Notify);

impl Drop for NotifyOnDrop<'_> {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Makes the node a master with this log.
pub fn lead(node: &Node, log: &Log) {
    // This must run before the write gate opens and before a change to the replica role. From now
    // on this node may have writes that no replica has.
    node.durability.begin(log);
    node.engines().lead();
    settle(node, true, log.term());
    node.replication.promoted(&node.config());
    replica::forget_full_sync(node);
}

/// Commits until the role changes or the server stops. Returns the error of the last commit if the
/// server stops or the node stays a master.
fn run_as_master(host: &Arc<Host>, node: &Arc<Node>, log: Log) -> (Log, store::Result<()>) {
    let committer = node.durability.committer();
    committer.reopen();
    if host.stop.is_stopped() {
        // `reopen` may have discarded a stop that arrived before it.
        committer.stop();
    }
    let mut orders = node.replication.subscribe();
    lead(node, &log);
    let over = tokio::sync::Notify::new();
    let (mut log, mut outcome) = std::thread::scope(|scope| {
        let watch = || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else { return };
            runtime.block_on(async {
                // Step down after every role change, even if a later change reverted the role. The
                // change has closed the write gate, and only a new term as a master opens it. The
                // guard from `wait_for` locks `orders`. Drop the guard before waiting for the
                // workers, because a worker may be changing the role.
                let is_ordered =
                    |_: &u64| !node.replication.is_master() || !node.replication.log_matches_role();
                let ordered = async { drop(orders.wait_for(is_ordered).await) };
                tokio::select! {
                    () = over.notified() => {}
                    () = ordered => {
                        host.wait_for_turns();
                        // A change of the catalogue checks the write gate first, and completes
                        // after it is logged.
                        node.current.wait_for_changes();
                        node.engines().follow();
                        committer.step_down();
                    }
                }
            });
        };
        let watcher = scope.spawn(watch);
        let ended = {
            let _told = NotifyOnDrop(&over);
            recovery::run_commits(&node.durability, log, &node.current)
        };
        // The watcher thread cannot fail.
        let _ = watcher.join();
        ended
    });
    // Acknowledged writes are only in memory, so repeat the commit. The write gate is closed. If
    // the disk keeps failing, it could not store a new master's data either.
    while let Err(error) = &outcome {
        if host.stop.is_stopped() || keeps_role(node) {
            break;
        }
        wait_to_retry_commit(host, node, error);
        committer.reopen();
        committer.step_down();
        (log, outcome) = recovery::run_commits(&node.durability, log, &node.current);
    }
    (log, outcome)
}

/// Reports that the last commit before a role change failed, and waits before the next attempt.
fn wait_to_retry_commit(host: &Host, node: &Node, error: &store::Error) {
    let why = format!("the last commit as a master failed, trying again: {error}");
    let is_news = {
        let mut link = node.replication.link.lock();
        let is_news = store::gist(&link.error) != store::gist(&why);
        link.fail(why.clone(), now() + RETRY);
        is_news
    };
    if is_news {
        tracing::error!("{why}");
    }
    wait(host, RETRY, || keeps_role(node));
}

/// Whether the node keeps its role and term as a master.
fn keeps_role(node: &Node) -> bool {
    node.replication.is_master() && !node.replication.renews()
}

/// Makes a replica a master, or begins another term of a master.
pub fn promote(host: &Host, node: &Arc<Node>, mut log: ReplicaLog) -> NodeLog {
    let (term, end) = (log.term(), log.durable());
    let next = replication::next_term(term, node.replication.promoting(), fastrand::u32(..));
    let attempt = match log.sync() {
        Ok(_) => log.into_log(node.store.log_options(), next),
        Err(error) => Err(error),
    };
    match attempt {
        Ok(log) => {
            node.replication.renewed();
            tracing::info!(
                "promoted: log continues at {} with term {:x}",
                log.written(),
                log.term()
            );
            NodeLog::Own(Box::new(log))
        }
        Err(error) => {
            if node.replication.failover.stuck(node, &error) {
                tracing::error!("promotion failed, retrying: {error}");
            }
            wait(host, RETRY, || !node.replication.is_master());
            NodeLog::Follows(Box::new(reopen_log(host, node, end)))
        }
    }
}

/// Converts a master's log into a replica's log, for a role change or a new term.
fn convert_to_follower_log(host: &Arc<Host>, node: Arc<Node>, log: Log) -> NodeLog {
    let end = log.durable();
    drop(log);
    node.durability.followed(end, end);
    NodeLog::Follows(Box::new(reopen_log(host, &node, end)))
}

/// Opens the log after `end`; retries until it succeeds.
fn reopen_log(host: &Host, node: &Arc<Node>, end: store::Position) -> ReplicaLog {
    let mut reported = String::new();
    loop {
        match ReplicaLog::open(node.store.disk().clone(), node.store.lineage(), end) {
            Ok(log) => return log,
            Err(error) if host.stop.is_stopped() => {
                tracing::error!("cannot open the log: {error}");
                std::process::exit(1);
            }
            Err(error) => {
                node.replication.failover.stuck(node, &error);
                if reported != error.gist() {
                    tracing::error!("cannot open the log, retrying: {error}");
                    reported = error.gist();
                }
            }
        }
        wait(host, RETRY, || false);
    }
}

/// Retires the node and reopens its folder, possibly with another data set. As in Redis, clients
/// stay connected and receive -LOADING. Replicas are disconnected, because the history may differ.
/// Clients that still use the old node are disconnected after [`CLIENT_DRAIN_TIMEOUT`].
fn reopen_node(host: &Arc<Host>, node: Arc<Node>) -> NodeLog {
    host.replace_node();
    let began = now();
    let mut said = Duration::from_secs(5);
    // Waits until the last reference to the old node is dropped, which frees its memory and unlocks
    // its folder.
    let mut node = node;
    loop {
        // A FAILOVER that waits for a replica also uses the old node.
        node.replication.failover.end(&node);
        let is_over = since(began) >= CLIENT_DRAIN_TIMEOUT;
        let keeps_it = |client: &&Arc<Client>| {
            client.kind() == clients::Kind::Replica || is_over && client.away.load(Relaxed)
        };
        host.clients.list().iter().filter(keeps_it).for_each(|client| client.kill());
        match Arc::try_unwrap(node) {
            Ok(last) => {
                drop(last);
                break;
            }
            Err(shared) => node = shared,
        }
        if since(began) > said {
            tracing::warn!("the old data set is still in use after {} s", said.as_secs());
            said *= 2;
        }
        sleep(Duration::from_millis(2));
    }
    loop {
        let node = host.node();
        match load(&node) {
            Ok(held) => {
                settle(&node, held.is_own(), held.term());
                return held;
            }
            Err(error) => tracing::error!("cannot open the data set: {error}"),
        }
        if host.stop.is_stopped() {
            std::process::exit(1);
        }
        host.replace_node();
        wait(host, Duration::from_secs(5), || false);
    }
}

/// Waits for `time`, until the server stops, or until `enough` returns true.
fn wait(host: &Host, time: Duration, enough: impl Fn() -> bool) {
    let began = now();
    while since(began) < time && !host.stop.is_stopped() && !enough() {
        sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::runtime::shutdown::Stop;
    use store::{Position, SEGMENT_HEAD_BYTES, SegmentHead, SimDisk, Store, StoreOptions};

    /// A master may report any term, even the highest possible term. Its former replica can still
    /// be promoted, even twice.
    #[test]
    fn a_term_that_a_master_names_stops_no_promotion() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.durability.dir = folder.path().to_path_buf();
        for term in [u64::from(u32::MAX) << 32, u64::MAX] {
            let host = Host::new(config.clone(), Vec::new(), Stop::new());
            let node = host.node();
            node.store
                .fill(Store::open(Arc::new(SimDisk::new(1)), StoreOptions::default()).unwrap());
            let (disk, lineage) = (node.store.disk().clone(), node.store.lineage());
            let mut log = ReplicaLog::open(disk.clone(), lineage, Position::START).unwrap();
            let head = SegmentHead {
                void: false,
                lineage,
                segment: 1,
                previous: 0,
                base: 0,
                sequence: 0,
                term,
                chain: 0,
            };
            log.begin(head).unwrap();
            for _ in 0..2 {
                let NodeLog::Own(own) = promote(&host, &node, log) else {
                    panic!("the node is not a master")
                };
                assert!(own.term() >= term && own.written().byte == SEGMENT_HEAD_BYTES);
                let end = own.durable();
                drop(own);
                log = ReplicaLog::open(disk.clone(), lineage, end).unwrap();
            }
        }
    }
}
