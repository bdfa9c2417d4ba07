//! FAILOVER: a master hands its role to one of its replicas, and nothing is lost on the way.
//!
//! ```text
//!   waiting-for-sync       writes are paused, until a replica has all that was written
//!   failover-in-progress   this node is that one's replica already, and asks it to take over:
//!                          TM.REPLICATE protocol FAILOVER offset lineage term
//!   no-failover            it has; the pause ends, and writes are answered -READONLY
//! ```
//!
//! As in Redis, the master steps down first and its replica up afterwards. If the replica says no,
//! or on FAILOVER ABORT, this node is the master again, and takes the writes that waited. If it
//! cannot be reached, it is asked again and again. A write while this node is a replica already is
//! refused at once. Meanwhile no other order may change the role, REPLICAOF is refused; but for
//! Sentinels, where they have spoken: the replica may answer long after they have made another one
//! the master.
//!
//! That there are never two: from the moment the request leaves until it is answered the replica
//! may have obeyed, or be about to. So it is sent only to a replica that has just answered a PING
//! (it would wait in the socket of a frozen one), and while its answer is missing (`Asked`)
//! neither ABORT nor a refusal for a reason of the moment, a lack of room say, makes this node the
//! master: only the replica's word that it has not taken over and will not (-NOFAILOVER), or an
//! operator's that it does not matter, which is REPLICAOF NO ONE.
//!
//! A node that is to be a master, by REPLICAOF NO ONE or because its replica said no, is one when
//! its log has begun, which takes a sync or two. From the answer to that command on no write is
//! refused because of its role: it waits until then, or until this node is to be a replica after
//! all. If the disk says no it is refused with what the disk says, until it is mended.

use crate::roles::failover_state::{Asked, Failover, Stage};
pub use crate::roles::failover_state::{HANDING, WAITING};
use crate::roles::node::Node;
use crate::roles::{Fed, Handing, Master, Order, Replication};
use crate::runtime::blocking_task::apart;
use crate::runtime::clients::{Client, REPLICA};
use crate::runtime::pause::{By, Paused};
use parking_lot::MutexGuard;
use replication::Sending;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tokio::time::Instant;

/// Without a deadline.
pub const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// Between two looks at what cannot be waited for.
const LOOK: Duration = Duration::from_millis(1);
/// Between two looks at a disk that says no.
const RETRY: Duration = Duration::from_millis(100);

/// The code of a refusal by a replica that has not taken over, and will not, whatever it was asked
/// before.
pub const NO: &str = "NOFAILOVER";
/// Of refusals by a replica that may be asked again.
const LATER: [&str; 2] = ["LOADING", "NOMASTERLINK"];
/// A node that may not be the master any more hands nothing over.
pub const FENCED: &str = "another node may be the master by now";
/// Why there is no way back by ABORT.
const IN_DOUBT: &str = "ERR The replica was asked to take over and has not answered, so it may be \
                        the master by now. It is asked again. REPLICAOF NO ONE makes this node a \
                        master all the same.";

/// What was asked for.
pub struct Wanted {
    /// Address of a replica; none: whichever has everything first.
    pub to: Option<Master>,
    /// After the time is over `to` takes over, whatever it has.
    pub force: bool,
    /// TIMEOUT: when it is given up, or forced.
    pub timeout: Option<Duration>,
}

impl Failover {
    /// No other order may change the role, unless it is unknown how this goes on, or Sentinels
    /// watch.
    pub fn forbids_orders(&self, replication: &Replication) -> bool {
        match *self.stage.lock() {
            Stage::Nothing | Stage::Settling => false,
            Stage::Waiting(_) | Stage::Aborting => true,
            Stage::Handing { asked, .. } => {
                asked != Asked::Lost && replication.sentinel_groups() == 0
            }
        }
    }

    /// REPLICAOF: as [`crate::roles::Replication::order`]. None while a FAILOVER forbids it.
    pub fn order(&self, node: &Node, order: Order) -> Option<std::io::Result<bool>> {
        let _one = self.ordering.lock();
        if self.forbids_orders(&node.replication) {
            return None;
        }
        let mut stage = self.stage.lock();
        // If nothing comes of the order: what is under way may have ended by then, unheard.
        stage.answered(Asked::Lost);
        Some(self.give(node, order, stage))
    }

    /// A replica of this node was ordered to be the master: this node accepts no more writes, and
    /// follows it. The error says why it is not for this node to step down.
    fn step_down(&self, node: &Node, successor: &Master) -> Result<(), String> {
        let _one = self.ordering.lock();
        let replication = &node.replication;
        match replication.master() {
            Some(master) if master == *successor => return Ok(()),
            Some(master) => return Err(format!("it follows {master}")),
            None => {}
        }
        // A FAILOVER that waits for a replica: this one takes over before that.
        self.end(node);
        let order = Order { master: Some(successor.clone()), fit: true, ..Order::default() };
        match self.give(node, order, self.stage.lock()) {
            Ok(_) => {
                replication.note_stepped_down();
                tracing::info!("{successor} takes over: this node accepts no more writes");
            }
            Err(error) => {
                // The next start is fenced anyway, as there are others.
                replication.raise_fence(&node.config());
                tracing::error!(
                    "{successor} takes over, and that cannot be written down: this node is \
                     fenced: {error}"
                );
            }
        }
        Ok(())
    }

    /// A node that was a master until it was told to follow `master`, and can never do so, is a
    /// master again: it has all its data. If it was one of several it may have been replaced
    /// meanwhile, and is fenced. False if it is none, or if the role cannot be written down.
    pub(crate) fn returns(&self, node: &Node, master: &Master, why: &str) -> bool {
        let _one = self.ordering.lock();
        let replication = &node.replication;
        if !replication.was_master_before(master) || self.forbids_orders(replication) {
            return false;
        }
        let order = Order { fenced: replication.is_replicated(), ..Order::default() };
        let given = self.give(node, order, self.stage.lock());
        let is_given = given.as_ref().is_ok_and(|&is_new| is_new);
        if is_given {
            replication.note_error(format!("REPLICAOF {master} was taken back: {why}"));
        }
        is_given
    }

    /// Gives an order, with which a FAILOVER is over. Until the disk has it no replica is asked to
    /// take over: there would be a master beside the one that the order names. The caller holds
    /// `ordering`.
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
            // Before the order is obeyed, which ends the pause.
            let mut stage = self.stage.lock();
            if is_master {
                *stage = Stage::Settling;
                node.pause.begin(By::Role, Paused::Changes, std::time::Instant::now() + FAR);
            } else {
                *stage = Stage::Nothing;
                node.pause.end(By::Role);
            }
        });
        let mut stage = self.stage.lock();
        if *stage == Stage::Aborting {
            // Nothing came of it.
            *stage = was;
        }
        drop(stage);
        node.durability.acknowledged();
        given
    }

    /// The request is about to leave. None: this node does not hand its role over any more.
    pub(crate) fn asking(&self) -> Option<Asking<'_>> {
        let mut stage = self.stage.lock();
        let Stage::Handing { offset, asked: before } = *stage else { return None };
        *stage = Stage::Handing { offset, asked: Asked::Now };
        Some(Asking { failover: self, before })
    }

    /// It is over: nothing waits for it any more. False if it has ended already.
    pub(crate) fn end(&self, node: &Node) -> bool {
        let mut stage = self.stage.lock();
        let was = !matches!(*stage, Stage::Nothing | Stage::Settling);
        if was {
            *stage = Stage::Nothing;
            self.ended.notify_waiters();
            node.pause.end(By::Role);
        }
        // A later look takes the stage.
        drop(stage);
        node.durability.acknowledged();
        was
    }

    /// The replica has taken over.
    pub(crate) fn done(&self, node: &Node) {
        if self.end(node) {
            tracing::info!("failover: the replica has taken over");
        }
    }

    /// Everything is as it was before; an error if there was nothing to abort, or too late.
    /// `refused`: by the replica, which had been asked like this before.
    fn take_back(&self, node: &Node, why: &str, refused: Option<Asked>) -> Result<(), String> {
        let _one = self.ordering.lock();
        let mut stage = self.stage.lock();
        match *stage {
            // Nothing else aborts: this is the only thread that orders.
            Stage::Nothing | Stage::Settling | Stage::Aborting => {
                return Err("ERR No failover in progress.".to_owned());
            }
            // The one before was taken back a moment ago, and this node is not the master again
            // yet.
            Stage::Waiting(_) if !node.replication.is_settled() => {
                *stage = Stage::Settling;
                drop(stage);
                self.ended.notify_waiters();
            }
            Stage::Waiting(_) => {
                // While no other thread can hand it over.
                *stage = Stage::Nothing;
                drop(stage);
                self.ended.notify_waiters();
                node.pause.end(By::Role);
            }
            Stage::Handing { asked, .. } if asked != Asked::No && refused.is_none() => {
                return Err(IN_DOUBT.to_owned());
            }
            Stage::Handing { .. } => {
                // Not this replica, but perhaps another one, while this node was away or heard
                // nothing.
                let order = Order { fenced: refused == Some(Asked::Lost), ..Order::default() };
                let unwritten =
                    |error| format!("ERR the role cannot be written to the data folder: {error}");
                self.give(node, order, stage).map_err(unwritten)?;
                self.ended.notify_waiters();
                if refused == Some(Asked::Lost) {
                    // A replica that follows once more lifts the fence, where no Sentinel does.
                    let is_fed = |client: &Arc<Client>| client.flags.load(SeqCst) & REPLICA != 0;
                    node.clients.list().into_iter().filter(is_fed).for_each(|client| client.kill());
                }
            }
        }
        node.durability.acknowledged();
        tracing::warn!("failover aborted: {why}");
        Ok(())
    }

    /// FAILOVER ABORT, or its time is over: everything is as it was before; an error if there was
    /// nothing to abort, or too late.
    pub fn abort(&self, node: &Node, why: &str) -> Result<(), String> {
        self.take_back(node, why, None)
    }

    /// This node has the role that it was given last, unless it was given another meanwhile.
    pub(crate) fn settled(&self, node: &Node) {
        let mut stage = self.stage.lock();
        if *stage == Stage::Settling && node.replication.is_settled() {
            *stage = Stage::Nothing;
            node.pause.end(By::Role);
        }
    }

    /// The log of a node that is to be a master cannot be begun, for this reason, which is the
    /// answer to writes, and to a FAILOVER that cannot get on without it. True if that is news.
    pub(crate) fn stuck(&self, node: &Node, error: &store::Error) -> bool {
        let mut stage = self.stage.lock();
        // It may be a replica by now, and a replica's disk is its link's affair.
        let is_news = node.replication.is_master() && node.durability.unable(error);
        if matches!(*stage, Stage::Settling | Stage::Waiting(_)) {
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

/// Describes a refusal by the peer of a link.
pub(crate) fn was_answered(verb: &str, reply: &str) -> String {
    format!("{verb} was answered {reply}")
}

/// A request to take over, from before it leaves until it is answered. Dropped without an answer it
/// stays open for good.
pub(crate) struct Asking<'a> {
    failover: &'a Failover,
    before: Asked,
}

impl Asking<'_> {
    /// The replica's error reply: this node is the master again, if that means no. Gives what is to
    /// be told.
    pub(crate) fn refused(self, node: &Node, reply: &str) -> String {
        let code = reply.trim_start_matches('-').split(' ').next().unwrap_or_default();
        // What refuses this request says nothing of one that is still on its way.
        let is_no = code == NO || (self.before == Asked::No && !LATER.contains(&code));
        let why = was_answered("TM.REPLICATE", reply);
        let failed =
            is_no.then(|| self.failover.take_back(node, &why, Some(self.before)).err()).flatten();
        self.failover.stage.lock().answered(self.before);
        failed.unwrap_or(why)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.failover.stage.lock().answered(Asked::Lost);
    }
}

/// Begins. The caller has checked what can be checked. False if another one, or an order, has come
/// meanwhile; none if an order is on its way to the disk, which is waited for if `may_wait`.
pub fn begin(node: &Arc<Node>, wanted: Wanted, may_wait: bool) -> Option<bool> {
    let failover = &node.replication.failover;
    let _one = if may_wait { failover.ordering.lock() } else { failover.ordering.try_lock()? };
    if failover.is_under_way() || !node.replication.is_master() {
        return Some(false);
    }
    let number = failover.attempts.fetch_add(1, SeqCst);
    *failover.stage.lock() = Stage::Waiting(number);
    node.pause.begin(By::Role, Paused::Writes, std::time::Instant::now() + FAR);
    tokio::spawn(run(node.clone(), wanted, number));
    Some(true)
}

async fn run(node: Arc<Node>, wanted: Wanted, number: u64) {
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
                // It is not handed over yet, so this cannot fail.
                let _ = failover.abort(&node, "no replica has caught up before the time was over");
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
    // It goes on also if nothing waits for it any more.
    let _ = apart(move || hand_over(&on_disk, order, offset, number)).await;
}

fn hand_over(node: &Node, order: Order, offset: u64, number: u64) {
    let failover = &node.replication.failover;
    // Until the disk has it: an ABORT in between would take back an order that is yet to be given,
    // and this node would be a replica for good.
    let _one = failover.ordering.lock();
    let is_fenced = node.replication.is_fenced();
    {
        let mut stage = failover.stage.lock();
        // A stopped server asks no replica any more.
        if *stage != Stage::Waiting(number) || node.stop.is_stopped() {
            return;
        }
        if !is_fenced {
            *stage = Stage::Handing { offset, asked: Asked::No };
        }
    }
    if is_fenced {
        failover.end(node);
        tracing::warn!("failover aborted: {FENCED}");
        return;
    }
    if let Some(target) = &order.master {
        tracing::info!("failover: {target} is to take over at offset {offset}");
    }
    if let Err(error) = node.replication.order(&node.config(), order, || ()) {
        failover.end(node);
        tracing::error!("failover aborted: the role cannot be written down: {error}");
    }
}

/// Steps down for a replica that was ordered to be the master, and waits until no change is on its
/// way to the log. Gives where the log ends.
pub(crate) async fn step_down(node: Arc<Node>, successor: Master) -> Result<u64, String> {
    let at = node.clone();
    let given = apart(move || at.replication.failover.step_down(&at, &successor)).await;
    given.unwrap_or_else(|error| Err(error.to_string()))?;
    let replication = &node.replication;
    while !replication.is_master() && !replication.is_settled() {
        tokio::time::sleep(LOOK).await;
    }
    // Fenced as a master, its log is written by rounds still.
    Ok(all_written(&node, true).await)
}

/// Waits until all that was written before writes were paused is in the log, and may be had by
/// replicas; gives where that ends. While the disk says no it waits for it to say yes, unless
/// `gives_up`: then for what is there.
pub async fn all_written(node: &Node, gives_up: bool) -> u64 {
    for turn in node.turns() {
        let seen = turn.load(SeqCst);
        while seen % 2 == 1 && turn.load(SeqCst) == seen {
            tokio::time::sleep(LOOK).await;
        }
    }
    while node.long_changes.try_write().is_none() {
        tokio::time::sleep(LOOK).await;
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

/// Waits until a replica, or this one, has all that was written.
pub async fn caught_up(node: &Node, to: Option<&Master>) -> (Master, u64) {
    let offset = all_written(node, false).await;
    // The log may still be sealed, and so become longer.
    let has_all = |fed: &Fed| {
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

    /// A node that is to be a master, and has replicas, is to hand its role over before it has a
    /// log.
    #[tokio::test]
    async fn a_failover_of_a_node_whose_log_cannot_begin_is_aborted() {
        let node = Host::new(Config::default(), Vec::new(), Stop::new()).node();
        let failover = &node.replication.failover;
        assert_eq!(
            begin(&node, Wanted { to: None, force: false, timeout: None }, false),
            Some(true)
        );
        assert_eq!((failover.name(), node.pause.now()), ("waiting-for-sync", Paused::Writes));
        assert!(failover.stuck(&node, &store::Error::Refused("no room".to_owned())));
        assert_eq!((failover.name(), node.pause.now()), ("no-failover", Paused::Nothing));
        assert!(
            node.durability.refusal().unwrap().contains("no room"),
            "each waiter gets that answer"
        );
        // The task that waits for the replica finds nothing to do any more.
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
                begin(&node, Wanted { to: None, force: false, timeout: None }, false),
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
                "a replica that is asked when this node is back"
            );
        }
    }
}
