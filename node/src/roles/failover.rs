//! FAILOVER: a master hands its role to one of its replicas without losing a write.
//!
//! ```text
//!   waiting-for-sync       writes are paused until a replica has all of the log
//!   failover-in-progress   this node follows that replica and asks it to take over:
//!                          TM.REPLICATE protocol FAILOVER offset lineage term
//!   no-failover            the replica is the master; paused writes fail with -READONLY
//! ```
//!
//! As in Redis, the master steps down before its replica is promoted. If the replica refuses, or on
//! FAILOVER ABORT, this node becomes the master again and executes the paused writes. If the
//! replica is unreachable, this node retries until the replica answers. During a failover REPLICAOF
//! is refused. Under Sentinel, REPLICAOF is allowed in the state failover-in-progress, because
//! Sentinel may have chosen another master.
//!
//! There are never two masters. Once the takeover request is sent, the replica may execute it at
//! any time. A frozen replica could execute the request much later, so this node sends the request
//! only to a replica that has just answered a PING. While the answer is missing (`TakeOverState`),
//! neither ABORT nor a transient refusal makes this node the master again. Only the reply
//! -NOFAILOVER, or REPLICAOF NO ONE by an operator, makes this node the master again.
//!
//! On REPLICAOF NO ONE, or after a refusal by its replica, a node becomes a master when its log has
//! a new segment. A new segment takes one or two disk syncs. Until then writes wait instead of
//! failing with a role error. If the disk fails, writes fail with the disk's error until the disk
//! recovers.

use crate::roles::failover_state::{Failover, Stage, TakeOverState};
pub use crate::roles::failover_state::{HANDING, WAITING};
use crate::roles::node::Node;
use crate::roles::{ConnectedReplica, Handing, Master, Order, Replication};
use crate::runtime::blocking_task::apart;
use crate::runtime::clients::{Client, REPLICA};
use crate::runtime::pause::{By, Paused};
use parking_lot::MutexGuard;
use replication::Sending;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tokio::time::Instant;

/// Timeout of a failover or pause without a deadline.
pub const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// Poll interval for conditions that cannot be awaited.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Retry interval while the disk fails.
const RETRY: Duration = Duration::from_millis(100);

/// Error code by which a replica rejects this and all earlier takeover requests.
pub const NO: &str = "NOFAILOVER";
/// Error codes of replicas that may accept a retry.
const RETRYABLE_ERRORS: [&str; 2] = ["LOADING", "NOMASTERLINK"];
/// Error of FAILOVER on a fenced master.
pub const FENCED: &str = "another node may have become the master";
/// Error of FAILOVER ABORT after the request was sent.
const IN_DOUBT: &str = "ERR the replica did not reply to the takeover request and may already be \
    the master. This node keeps retrying. Use REPLICAOF NO ONE to make this node the master anyway";

/// Arguments of FAILOVER.
pub struct FailoverRequest {
    /// Address of the replica; `None` chooses the first replica that has caught up.
    pub to: Option<Master>,
    /// True if `to` takes over after the timeout even when it lags behind.
    pub force: bool,
    /// TIMEOUT: time after which the failover is aborted or forced.
    pub timeout: Option<Duration>,
}

impl Failover {
    /// Whether REPLICAOF must be refused. REPLICAOF is allowed if the replica's answer was lost, or
    /// if Sentinels choose the master.
    pub fn forbids_orders(&self, replication: &Replication) -> bool {
        match *self.stage.lock() {
            Stage::Nothing | Stage::BecomingMaster => false,
            Stage::Waiting(_) | Stage::Aborting => true,
            Stage::Handing { asked, .. } => {
                asked != TakeOverState::Lost && replication.sentinel_groups() == 0
            }
        }
    }

    /// Executes REPLICAOF, like [`crate::roles::Replication::order`]. Returns `None` while a
    /// failover forbids REPLICAOF.
    pub fn order(&self, node: &Node, order: Order) -> Option<std::io::Result<bool>> {
        let _one = self.order_lock.lock();
        if self.forbids_orders(&node.replication) {
            return None;
        }
        let mut stage = self.stage.lock();
        // If the last role change failed, its takeover request may have ended without a record.
        // Treat the answer as lost.
        stage.answered(TakeOverState::Lost);
        Some(self.give(node, order, stage))
    }

    /// Makes this node a replica of `successor`, which is becoming the master. Fails if this node
    /// follows another master.
    fn step_down(&self, node: &Node, successor: &Master) -> Result<(), String> {
        let _one = self.order_lock.lock();
        let replication = &node.replication;
        match replication.master() {
            Some(master) if master == *successor => return Ok(()),
            Some(master) => return Err(format!("this node follows {master}")),
            None => {}
        }
        // Ends a failover that still waits for a replica: the successor takes precedence.
        self.end(node);
        let order = Order { master: Some(successor.clone()), fit: true, ..Order::default() };
        match self.give(node, order, self.stage.lock()) {
            Ok(_) => {
                replication.note_stepped_down();
                tracing::info!("{successor} takes over: this node no longer accepts writes");
            }
            Err(error) => {
                // After a restart the node is also fenced, because the role file lists other nodes.
                replication.raise_fence(&node.config());
                tracing::error!(
                    "{successor} takes over, but the new role cannot be saved: this node is \
                     fenced: {error}"
                );
            }
        }
        Ok(())
    }

    /// Makes this node a master again if it was a master and can never follow `master`. The node
    /// still has all its data. Fences the node if it had replicas, because one of them may have
    /// replaced it. Returns false if this node was not a master, or if the role cannot be
    /// persisted.
    pub(crate) fn returns(&self, node: &Node, master: &Master, why: &str) -> bool {
        let _one = self.order_lock.lock();
        let replication = &node.replication;
        if !replication.was_master_before(master) || self.forbids_orders(replication) {
            return false;
        }
        let order = Order { fenced: replication.is_replicated(), ..Order::default() };
        let given = self.give(node, order, self.stage.lock());
        let is_given = given.as_ref().is_ok_and(|&is_new| is_new);
        if is_given {
            replication.note_error(format!("REPLICAOF {master} was reverted: {why}"));
        }
        is_given
    }

    /// Changes the role, which ends a failover. Until the new role is on disk, no replica is asked
    /// to take over. A restart could otherwise create a second master. The caller holds
    /// `order_lock`.
    fn give(
        &self,
        node: &Node,
        order: Order,
        mut stage: MutexGuard<'_, Stage>,
    ) -> std::io::Result<bool> {
        let was = *stage;
        if let Stage::Handing { .. } = was {
            *stage = Stage::Aborting;
        }
        drop(stage);
        let is_master = order.master.is_none();
        let given = node.replication.order(&node.config(), order, || {
            // This must run before the `log` thread applies the role change and ends the pause.
            let mut stage = self.stage.lock();
            if is_master {
                *stage = Stage::BecomingMaster;
                node.pause.begin(By::Role, Paused::Changes, std::time::Instant::now() + FAR);
            } else {
                *stage = Stage::Nothing;
                node.pause.end(By::Role);
            }
        });
        let mut stage = self.stage.lock();
        if *stage == Stage::Aborting {
            // The role change failed or had no effect.
            *stage = was;
        }
        drop(stage);
        node.durability.acknowledged();
        given
    }

    /// Marks the takeover request as sent. Returns `None` if the failover was cancelled.
    pub(crate) fn asking(&self) -> Option<TakeOverRequest<'_>> {
        let mut stage = self.stage.lock();
        let Stage::Handing { offset, asked: before } = *stage else { return None };
        *stage = Stage::Handing { offset, asked: TakeOverState::Now };
        Some(TakeOverRequest { failover: self, before })
    }

    /// Ends a failover and its pause. Returns false if no failover is in progress.
    pub(crate) fn end(&self, node: &Node) -> bool {
        let mut stage = self.stage.lock();
        let was = !matches!(*stage, Stage::Nothing | Stage::BecomingMaster);
        if was {
            *stage = Stage::Nothing;
            self.ended.notify_waiters();
            node.pause.end(By::Role);
        }
        // Unlock before `acknowledged`, because the tasks that it wakes lock the stage.
        drop(stage);
        node.durability.acknowledged();
        was
    }

    pub(crate) fn done(&self, node: &Node) {
        if self.end(node) {
            tracing::info!("failover: the replica has taken over");
        }
    }

    /// Restores the master after ABORT, a timeout, or a refusal by the replica. After a refusal,
    /// `refused` is the previous state of the takeover request. Fails if there is no failover, or
    /// if the replica may have taken over.
    fn restore_master(
        &self,
        node: &Node,
        why: &str,
        refused: Option<TakeOverState>,
    ) -> Result<(), String> {
        let _one = self.order_lock.lock();
        let mut stage = self.stage.lock();
        match *stage {
            // `Aborting` cannot occur here, because only the holder of `order_lock` sets it.
            Stage::Nothing | Stage::BecomingMaster | Stage::Aborting => {
                return Err("ERR No failover in progress.".to_owned());
            }
            // The previous failover was aborted, and this node is not a master again yet.
            Stage::Waiting(_) if !node.replication.log_matches_role() => {
                *stage = Stage::BecomingMaster;
                drop(stage);
                self.ended.notify_waiters();
            }
            Stage::Waiting(_) => {
                // Change the stage while holding its lock, so that no other thread hands the role
                // over.
                *stage = Stage::Nothing;
                drop(stage);
                self.ended.notify_waiters();
                node.pause.end(By::Role);
            }
            Stage::Handing { asked, .. } if asked != TakeOverState::No && refused.is_none() => {
                return Err(IN_DOUBT.to_owned());
            }
            Stage::Handing { .. } => {
                // If an answer was lost, another replica may have been promoted, so this node
                // starts fenced.
                let order =
                    Order { fenced: refused == Some(TakeOverState::Lost), ..Order::default() };
                let unwritten =
                    |error| format!("ERR cannot write the role to the data folder: {error}");
                self.give(node, order, stage).map_err(unwritten)?;
                self.ended.notify_waiters();
                if refused == Some(TakeOverState::Lost) {
                    // Disconnects all replicas. Without Sentinel, a replica that reconnects lifts
                    // the fence.
                    let is_fed = |client: &Arc<Client>| client.flags.load(SeqCst) & REPLICA != 0;
                    node.clients.list().into_iter().filter(is_fed).for_each(|client| client.kill());
                }
            }
        }
        node.durability.acknowledged();
        tracing::warn!("failover aborted: {why}");
        Ok(())
    }

    /// Aborts a failover: FAILOVER ABORT or the timeout. Fails if no failover is in progress, or if
    /// the replica may have taken over.
    pub fn abort(&self, node: &Node, why: &str) -> Result<(), String> {
        self.restore_master(node, why, None)
    }

    /// Ends the pause when the log matches the role, unless another role change is pending.
    pub(crate) fn settled(&self, node: &Node) {
        let mut stage = self.stage.lock();
        if *stage == Stage::BecomingMaster && node.replication.log_matches_role() {
            *stage = Stage::Nothing;
            node.pause.end(By::Role);
        }
    }

    /// Handles a failure to begin the log of a new master. `error` becomes the reply to writes and
    /// aborts a waiting failover. Returns true if the error is new.
    pub(crate) fn stuck(&self, node: &Node, error: &store::Error) -> bool {
        let mut stage = self.stage.lock();
        // A node that has become a replica reports disk errors through its link.
        let is_news = node.replication.is_master() && node.durability.refuse_writes(error);
        if matches!(*stage, Stage::BecomingMaster | Stage::Waiting(_)) {
            if matches!(*stage, Stage::Waiting(_)) {
                tracing::warn!("failover aborted: {error}");
            }
            *stage = Stage::Nothing;
            self.ended.notify_waiters();
            node.pause.end(By::Role);
        }
        drop(stage);
        node.durability.acknowledged();
        is_news
    }
}

pub(crate) fn describe_answer(verb: &str, reply: &str) -> String {
    format!("{verb} failed: {reply}")
}

/// A takeover request. Created before the request is sent, and dropped after the answer. Dropping
/// it without an answer records the answer as lost.
pub(crate) struct TakeOverRequest<'a> {
    failover: &'a Failover,
    before: TakeOverState,
}

impl TakeOverRequest<'_> {
    /// Handles the replica's error reply: this node becomes the master again if the reply is a
    /// final refusal. Returns the text to log.
    pub(crate) fn refused(self, node: &Node, reply: &str) -> String {
        let code = reply.trim_start_matches('-').split(' ').next().unwrap_or_default();
        // After a transient refusal, the replica may still execute an earlier request.
        let is_no =
            code == NO || (self.before == TakeOverState::No && !RETRYABLE_ERRORS.contains(&code));
        let why = describe_answer("TM.REPLICATE", reply);
        let failed = is_no
            .then(|| self.failover.restore_master(node, &why, Some(self.before)).err())
            .flatten();
        self.failover.stage.lock().answered(self.before);
        failed.unwrap_or(why)
    }
}

impl Drop for TakeOverRequest<'_> {
    fn drop(&mut self) {
        self.failover.stage.lock().answered(TakeOverState::Lost);
    }
}

/// Starts a failover. The caller has validated the arguments. Returns false if another failover or
/// role change is in progress. Returns `None` if a role is being written to disk and `may_wait` is
/// false.
pub fn begin(node: &Arc<Node>, wanted: FailoverRequest, may_wait: bool) -> Option<bool> {
    let failover = &node.replication.failover;
    let _one =
        if may_wait { failover.order_lock.lock() } else { failover.order_lock.try_lock()? };
    if failover.is_under_way() || !node.replication.is_master() {
        return Some(false);
    }
    let number = failover.attempts.fetch_add(1, SeqCst);
    *failover.stage.lock() = Stage::Waiting(number);
    node.pause.begin(By::Role, Paused::Writes, std::time::Instant::now() + FAR);
    tokio::spawn(run(node.clone(), wanted, number));
    Some(true)
}

async fn run(node: Arc<Node>, wanted: FailoverRequest, number: u64) {
    let failover = &node.replication.failover;
    let ended = failover.ended.notified();
    tokio::pin!(ended);
    let is_wanted = || *failover.stage.lock() == Stage::Waiting(number);
    if !ended.as_mut().enable() && !is_wanted() {
        return;
    }
    let deadline = Instant::now() + wanted.timeout.unwrap_or(FAR);
    let (target, offset, has_all) = tokio::select! {
        (target, offset) = caught_up(&node, wanted.to.as_ref()) => (target, offset, true),
        () = &mut ended => return,
        () = tokio::time::sleep_until(deadline) => match wanted.to {
            Some(to) if wanted.force => (to, 0, false),
            _ if !is_wanted() => return,
            _ => {
                // The abort cannot fail, because the role has not been handed over.
                let _ = failover.abort(&node, "no replica caught up before the timeout");
                return;
            }
        }
    };
    let order = Order {
        master: Some(target),
        handing: Some(Handing { offset, has_all }),
        ..Order::default()
    };
    let on_disk = node.clone();
    // The hand-over completes even if this task is dropped.
    let _ = apart(move || hand_over(&on_disk, order, offset, number)).await;
}

fn hand_over(node: &Node, order: Order, offset: u64, number: u64) {
    let failover = &node.replication.failover;
    // Hold the lock until the new role is on disk. Otherwise a concurrent ABORT would restore the
    // master before the role has changed, and this node would then become a replica.
    let _one = failover.order_lock.lock();
    let is_fenced = node.replication.is_fenced();
    {
        let mut stage = failover.stage.lock();
        if *stage != Stage::Waiting(number) || node.stop.is_stopped() {
            return;
        }
        if !is_fenced {
            *stage = Stage::Handing { offset, asked: TakeOverState::No };
        }
    }
    if is_fenced {
        failover.end(node);
        tracing::warn!("failover aborted: {FENCED}");
        return;
    }
    if let Some(target) = &order.master {
        tracing::info!("failover: asking {target} to take over at offset {offset}");
    }
    if let Err(error) = node.replication.order(&node.config(), order, || ()) {
        failover.end(node);
        tracing::error!("failover aborted: cannot save the role: {error}");
    }
}

/// Steps down for a replica that is becoming the master, and waits until all changes are in the
/// log. Returns the log's end offset, or the reason for a refusal.
pub(crate) async fn step_down(node: Arc<Node>, successor: Master) -> Result<u64, String> {
    let at = node.clone();
    let given = apart(move || at.replication.failover.step_down(&at, &successor)).await;
    given.unwrap_or_else(|error| Err(error.to_string()))?;
    let replication = &node.replication;
    while !replication.is_master() && !replication.log_matches_role() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    // A fenced master still commits its own log, so this also waits for its last changes.
    Ok(wait_for_all_written(&node, true).await)
}

/// Waits until all changes made before the pause are in the log and visible to replicas. Returns
/// the log's end offset. If the disk fails, the function retries; with `gives_up` it returns the
/// current end of the log instead.
pub async fn wait_for_all_written(node: &Node, gives_up: bool) -> u64 {
    for turn in node.turns() {
        let seen = turn.load(SeqCst);
        while seen % 2 == 1 && turn.load(SeqCst) == seen {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    while node.long_changes.try_write().is_none() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let ticket = node.durability.committer().ticket();
    loop {
        match node.durability.shown_offset(ticket).await {
            Ok(offset) => return offset,
            Err(_) if gives_up => return node.durability.shown().offset,
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

/// Waits until the replica `to`, or any replica for `None`, has the whole log. Returns its address
/// and offset.
pub async fn caught_up(node: &Node, to: Option<&Master>) -> (Master, u64) {
    let offset = wait_for_all_written(node, false).await;
    // Sealing a segment may still extend the log.
    let has_all = |fed: &ConnectedReplica| {
        let is_wanted = to.is_none_or(|to| (&fed.ip, fed.port) == (&to.host, to.port));
        is_wanted
            && fed.port != 0
            && fed.sending == Sending::Log
            && fed.written >= offset.max(node.durability.shown().offset)
    };
    let found = || node.replication.feeds.reachable().into_iter().find(has_all);
    let fed = node.durability.until(found).await;
    (Master { host: fed.ip, port: fed.port }, fed.written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::roles::node::Host;
    use crate::runtime::shutdown::Stop;

    /// Runs FAILOVER on a node that is becoming a master and has not begun its log.
    #[tokio::test]
    async fn a_failover_of_a_node_whose_log_cannot_begin_is_aborted() {
        let node = Host::new(Config::default(), Vec::new(), Stop::new()).node();
        let failover = &node.replication.failover;
        assert_eq!(
            begin(&node, FailoverRequest { to: None, force: false, timeout: None }, false),
            Some(true)
        );
        assert_eq!((failover.name(), node.pause.now()), ("waiting-for-sync", Paused::Writes));
        assert!(failover.stuck(&node, &store::Error::Refused("no room".to_owned())));
        assert_eq!((failover.name(), node.pause.now()), ("no-failover", Paused::Nothing));
        assert!(
            node.durability.refusal().unwrap().contains("no room"),
            "every waiter gets that reply"
        );
        // The aborted task must not change the state when it ends.
        tokio::task::yield_now().await;
        assert_eq!((failover.name(), node.pause.now()), ("no-failover", Paused::Nothing));
    }

    #[tokio::test]
    async fn a_stopped_node_hands_nothing_over() {
        for is_stopped in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let mut config = Config::default();
            config.durability.dir = folder.path().to_path_buf();
            let node = Host::new(config, Vec::new(), Stop::new()).node();
            assert_eq!(
                begin(&node, FailoverRequest { to: None, force: false, timeout: None }, false),
                Some(true)
            );
            if is_stopped {
                node.stop.now();
            }
            let master = Some(Master { host: "127.0.0.1".to_owned(), port: 1 });
            hand_over(&node, Order { master, ..Order::default() }, 0, 0);
            assert_eq!(
                node.replication.is_master(),
                is_stopped,
                "the replica is asked again after a restart"
            );
        }
    }
}
