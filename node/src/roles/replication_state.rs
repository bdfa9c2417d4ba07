//! Replication state of a node: its role, its master, its replicas, and whether it accepts writes.
//!
//! The role is on disk before any client or thread sees it. Because the disk may be slow, workers
//! never change the role (`Call::answer_later`), and readers never wait. The write gate is one
//! atomic. The gate is closed on a replica, on a fenced master, and on a master with too few
//! replicas.
//!
//! Long: many short functions read or change the private fields of [`Replication`].

use crate::config::Config;
use crate::roles::failover_state::Failover;
use crate::roles::fence::{Fence, Fenced};
use crate::roles::link_status::{LinkState, ReplicaLinkStatus};
use crate::roles::replicas::ConnectedReplicas;
use crate::roles::role::{Master, Role};
use crate::roles::sentinels::{Sentinel, Sentinels};
use crate::roles::write_gate::{Gate, WriteBlock};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::watch;

/// A new role for a node.
#[derive(Default)]
pub struct Order {
    /// Master to follow; `None` makes the node a master.
    pub master: Option<Master>,
    /// Whether the node discards its data and copies the master's.
    pub forced: bool,
    /// FAILOVER: `master` is a replica of this node and must take over.
    pub handing: Option<Handing>,
    /// Whether the new master starts fenced, because another node may have replaced it.
    pub fenced: bool,
    /// How a connected replica becomes a master.
    pub promotion: Promotion,
    /// Whether a former master has all data of its new master, so that it may be promoted before it
    /// has synced with that master.
    pub fit: bool,
}

/// How a replica becomes a master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promotion {
    /// Becomes a master immediately, with its current data.
    #[default]
    AtOnce,
    /// Its master has handed the role over, so the replica has all data.
    HandedOver,
    /// If the replica's link is up, the master first steps down and sends the rest of its log
    /// (replica.rs).
    TakesOver,
}

/// FAILOVER: progress of the replica that takes over.
#[derive(Clone, Copy)]
pub struct Handing {
    /// Log offset that the replica must have.
    pub(crate) offset: u64,
    /// Whether the replica has all data of this node. If so, this node may be promoted again
    /// immediately.
    pub(crate) has_all: bool,
}

/// A hello of a Sentinel, which reports the address of the master.
pub struct Hello<'a> {
    /// Name of the watched group.
    pub group: &'a str,
    /// Whether the hello reports this node as the master.
    pub is_ours: bool,
    /// Configuration epoch of the group.
    pub epoch: u64,
    /// Address of the reported master.
    pub address: String,
}

/// The replication state of a process.
pub struct Replication {
    role: ArcSwap<Role>,
    /// Serializes role changes, including the write to disk.
    changing: Mutex<()>,
    gate: Gate,
    /// Held while the write gate is set, so that no stale state is set after a role change. A
    /// thread never waits while holding this lock.
    gate_lock: Mutex<()>,
    fence: Fence,
    /// Whether a thread is about to persist the Sentinels' epochs.
    is_saving_epochs: AtomicBool,
    /// Whether the log matches the role: a master's own log, or a copy of its master's log.
    matches_role: AtomicBool,
    /// True until the node has synced with its master in this process.
    is_unsynced: AtomicBool,
    /// Whether the last role change made a master follow another node.
    was_master: AtomicBool,
    /// Permanent error since the last role change, such as a master that is a Redis server. One
    /// line; empty if none.
    pub last_error: Mutex<String>,
    /// Whether this node waits for its master to step down before it becomes the master.
    taking_over: AtomicBool,
    /// Whether Sentinels must be notified that this node took over from a live master.
    announces: AtomicBool,
    /// Whether this node stepped down for a replica.
    stepped_down: AtomicBool,
    sentinels: Sentinels,
    /// Master that this node followed before its promotion.
    replaces: Mutex<Option<Master>>,
    /// Whether the log must begin a new term because another node may have been the master.
    renews: AtomicBool,
    /// Master that Sentinel has chosen in place of this node.
    deposed_by: Mutex<Option<Master>>,
    /// Incremented with every change of the role.
    orders: watch::Sender<u64>,
    /// State of a FAILOVER.
    pub failover: Failover,
    /// State of the link to the master.
    pub link: Mutex<ReplicaLinkStatus>,
    /// Replicas of this node.
    pub feeds: ConnectedReplicas,
    /// Whether writes need a lease (CLUSTERX HEARTBEAT).
    leased: AtomicBool,
    /// Number of full syncs of this node as a replica.
    pub full_syncs: AtomicU64,
    /// Number of links that resumed without a full sync.
    pub continued: AtomicU64,
    /// Term of the newest segment.
    pub term: AtomicU64,
}

impl Replication {
    pub(crate) fn new() -> Replication {
        Replication {
            role: ArcSwap::default(),
            changing: Mutex::default(),
            gate: Gate::new(),
            gate_lock: Mutex::default(),
            fence: Fence::default(),
            is_saving_epochs: AtomicBool::new(false),
            matches_role: AtomicBool::new(false),
            is_unsynced: AtomicBool::new(false),
            was_master: AtomicBool::new(false),
            taking_over: AtomicBool::new(false),
            announces: AtomicBool::new(false),
            stepped_down: AtomicBool::new(false),
            sentinels: Sentinels::default(),
            replaces: Mutex::default(),
            renews: AtomicBool::new(false),
            last_error: Mutex::default(),
            deposed_by: Mutex::default(),
            orders: watch::Sender::new(0),
            failover: Failover::new(),
            link: Mutex::new(ReplicaLinkStatus::new()),
            feeds: ConnectedReplicas::default(),
            leased: AtomicBool::new(false),
            full_syncs: AtomicU64::new(0),
            continued: AtomicU64::new(0),
            term: AtomicU64::new(0),
        }
    }

    /// Restores the role at startup, from the data folder or from the configuration. `is_alone` is
    /// true if no replica can have been promoted since the node stopped.
    pub fn recall(&self, config: &Config, is_alone: bool) -> io::Result<()> {
        let role = match Role::read(&config.durability.dir)? {
            Some(role) => role,
            None => {
                let role = Role {
                    master: Master::parse(&config.replication.replicaof),
                    ..Role::default()
                };
                if role.master.is_some() {
                    role.write(&config.durability.dir)?;
                }
                role
            }
        };
        self.fence.recall(&role.sentinels);
        // A node that was always alone cannot have been replaced.
        let had_others = role.clone().with_replicated().replicated;
        if role.master.is_none() && had_others && config.replication.fence {
            let until = if !role.sentinels.is_empty() {
                "Sentinel names this node"
            } else if is_alone {
                "the other cluster nodes have replied"
            } else {
                "a replica follows"
            };
            let order = if config.cluster.enabled {
                "CLUSTERX SETNODES with a later version"
            } else {
                "REPLICAOF NO ONE"
            };
            tracing::warn!(
                "this master had replicas or peers: rejecting writes until {until}, or {order}"
            );
            self.fence.raise();
        }
        if let Some((to, offset)) = role.master.as_ref().zip(role.handing) {
            if role.sentinels.is_empty() {
                tracing::warn!(
                    "a FAILOVER was in progress: asking {to} again to take over, unless REPLICAOF \
                     names the master"
                );
                self.failover.resume(offset);
            } else {
                // The Sentinels may have chosen another node.
                tracing::warn!(
                    "a FAILOVER was in progress: Sentinel decides which node is the master"
                );
            }
        }
        self.role.store(Arc::new(role));
        Ok(())
    }

    /// Returns the master that this node follows.
    pub fn master(&self) -> Option<Master> {
        self.role.load().master.clone()
    }

    /// Whether the role is master.
    pub fn is_master(&self) -> bool {
        self.role.load().master.is_none()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.orders.subscribe()
    }

    /// Waits until this node becomes a replica. Other nodes may lack its last writes.
    pub async fn demoted(&self) {
        // The wait cannot fail, because `self` holds the sender.
        let _ = self.subscribe().wait_for(|_| !self.is_master()).await;
    }

    /// Changes the role if `next` returns a new role. The new role is durable when this function
    /// returns. Calls `told` once the role is visible to readers.
    fn change(
        &self,
        config: &Config,
        next: impl FnOnce(&Role) -> Option<Role>,
        told: impl FnOnce(),
    ) -> io::Result<bool> {
        let _one = self.changing.lock();
        let Some(next) = next(&self.role.load()) else { return Ok(false) };
        next.write(&config.durability.dir)?;
        let _gate = self.gate_lock.lock();
        let before = self.role.swap(Arc::new(next));
        if before.begins_another_term(&self.role.load()) {
            self.renew();
        }
        told();
        Ok(true)
    }

    /// Like `change`, but takes effect even if the disk fails.
    fn note(&self, config: &Config, next: impl Fn(&Role) -> Option<Role>) {
        if let Err(error) = self.change(config, &next, || ()) {
            tracing::error!("cannot save the role: {error}");
            let _one = self.changing.lock();
            if let Some(next) = next(&self.role.load()) {
                self.role.store(Arc::new(next));
            }
        }
    }

    /// Changes the role for REPLICAOF or FAILOVER. The new role is durable when this function
    /// returns, and the thread `log` then applies it. Returns false if nothing changes. A former
    /// master must sync with its master before it may be promoted, since their histories may
    /// differ. `told` is the callback of `change`.
    pub fn order(&self, config: &Config, order: Order, told: impl FnOnce()) -> io::Result<bool> {
        let Order { master, forced, handing, fenced, promotion, fit } = order;
        let mut told = Some(told);
        let mut tell = || told.take().map_or((), |told| told());
        if master.is_none()
            && !forced
            && let Some(is_new) = self.remains_master(config, &mut tell)?
        {
            return Ok(is_new);
        }
        let is_master = master.is_none();
        let was_master = self.is_master();
        let mut replaces = self.master().filter(|_| is_master);
        let next = |role: &Role| {
            // This also ends a FAILOVER to the same node.
            let is_handing = role.handing.is_some() && handing.is_none();
            if role.master == master && !forced && !is_handing {
                return None;
            }
            let handing_to = handing.map(|handing| handing.offset);
            let mut next = Role { unfit: false, forced, handing: handing_to, ..role.clone() };
            if forced {
                // The node's data differ from the next master's.
                next = next.with_replicated();
                next.synced = false;
            }
            if role.master.is_none() {
                next = next.with_replicated();
                next.synced = fit || handing.is_some_and(|handing| handing.has_all);
            }
            let is_promoted = master.is_none() && role.master.is_some();
            next.promoting =
                if master.is_some() { 0 } else { role.promoting.max(is_promoted.into()) };
            next.master.clone_from(&master);
            Some(next)
        };
        let is_new = self.change(config, next, || {
            self.fence.ordered();
            self.sentinels.ordered(was_master && !is_master);
            *self.replaces.lock() = replaces.take();
            let is_linked = self.link.lock().state == LinkState::Connected;
            let takes_over = is_master && promotion == Promotion::TakesOver && is_linked;
            self.taking_over.store(takes_over, SeqCst);
            self.announces.store(promotion == Promotion::HandedOver, SeqCst);
            self.stepped_down.store(false, SeqCst);
            if fenced && config.replication.fence {
                self.fence.raise();
            }
            self.matches_role.store(false, SeqCst);
            self.is_unsynced.store(!is_master, SeqCst);
            self.was_master.store(was_master && !is_master, SeqCst);
            self.last_error.lock().clear();
            self.gate.set(WriteBlock::Replica);
            tell();
        })?;
        if is_new {
            *self.link.lock() = ReplicaLinkStatus::new();
            self.orders.send_modify(|n| *n += 1);
        }
        Ok(is_new)
    }

    /// REPLICAOF NO ONE on a master, by an operator or by a Sentinel that chooses this node again.
    /// Returns `None` on a replica, otherwise whether the master begins a new term.
    fn remains_master(&self, config: &Config, told: &mut dyn FnMut()) -> io::Result<Option<bool>> {
        let missed = self.fence.missed();
        let forget = |role: &Role| {
            let next = Role { sentinels: Vec::new(), ..role.clone() }.renewed(missed);
            (role.master.is_none() && next != *role).then_some(next)
        };
        // Runs under the lock of `change`, so that no other thread persists the epochs again.
        self.change(config, forget, || {
            self.fence.forget();
            if missed > 0 {
                told();
            }
        })?;
        if !self.is_master() {
            return Ok(None);
        }
        self.fence.forget();
        self.judge(config);
        Ok(Some(missed > 0))
    }

    /// Requests a new term of the log before writes are accepted.
    fn renew(&self) {
        self.renews.store(true, SeqCst);
        self.matches_role.store(false, SeqCst);
        self.gate.set(WriteBlock::Replica);
        self.orders.send_modify(|n| *n += 1);
    }

    /// Whether this node's master must step down before this node begins its log.
    pub(crate) fn is_taking_over(&self) -> bool {
        self.taking_over.load(SeqCst) && self.is_master()
    }

    /// Waits until [`is_taking_over`](Replication::is_taking_over).
    pub(crate) async fn takes_over(&self) {
        // The wait cannot fail, because `self` holds the sender.
        let _ = self.subscribe().wait_for(|_| self.is_taking_over()).await;
    }

    /// Records that the old master has stepped down. `is_ordered` is true if a Sentinel has already
    /// announced this node as the new master. Otherwise this node will announce itself to the
    /// Sentinels.
    pub(crate) fn took_over(&self, is_ordered: bool) {
        self.announces.store(!is_ordered, SeqCst);
    }

    /// Records that this master has stepped down for a replica.
    pub(crate) fn note_stepped_down(&self) {
        self.stepped_down.store(true, SeqCst);
    }

    /// Fences this master, because another node is the master and the role could not be persisted.
    pub(crate) fn raise_fence(&self, config: &Config) {
        self.fence.raise();
        self.judge(config);
    }

    /// Returns the pending hellos that notify Sentinels of this master, and clears the list.
    pub(crate) fn take_announcements(&self) -> Vec<String> {
        let is_due = self.announces.swap(false, SeqCst) && self.is_master();
        if !is_due {
            return Vec::new();
        }
        self.sentinels.announcements(self.replaces.lock().take())
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.sentinels.watch()
    }

    pub(crate) fn is_named(&self) -> bool {
        self.sentinels.is_named_by_sentinel()
    }

    /// Number of Sentinels that published a hello within the last five seconds.
    pub fn sentinels_heard(&self) -> usize {
        self.sentinels.count()
    }

    /// Returns a group with only one live Sentinel, which could not agree on a FAILOVER.
    pub fn single_sentinel_group(&self) -> Option<String> {
        self.sentinels.single_sentinel()
    }

    /// Records a hello that a Sentinel published on this node. `named` is the address of the
    /// master, and `is_ours` is true if this node has that address. Returns true if the Sentinel
    /// has missed the announcement, which must be repeated (`take_announcements`).
    pub fn heard(&self, said: Sentinel<'_>, named: &str, is_ours: bool) -> bool {
        self.sentinels.hear(said);
        if is_ours && self.is_master() {
            self.sentinels.name_as_master();
        }
        let is_missed =
            self.log_matches_role() && self.is_master() && self.sentinels.is_replaced(named);
        is_missed && !self.announces.swap(true, SeqCst)
    }

    pub(crate) fn renews(&self) -> bool {
        self.renews.load(SeqCst) && self.is_master()
    }

    /// Whether the node must discard its data and copy the master's. Cleared after the next sync.
    pub(crate) fn is_forced(&self) -> bool {
        self.role.load().forced
    }

    /// Records whether the log is a master's or a replica's. Returns false if the log does not
    /// match the role, which may have changed again.
    pub fn settle(&self, config: &Config, is_master: bool, term: u64) -> bool {
        self.term.store(term, Relaxed);
        let _gate = self.gate_lock.lock();
        let is_role = self.is_master() == is_master && !self.renews();
        self.look(config, is_role || self.matches_role.load(SeqCst));
        // Store the flag after the write gate is open.
        if is_role {
            self.matches_role.store(true, SeqCst);
        }
        is_role
    }

    /// Waits up to `time` until the log matches the role. Must not be called on a worker.
    pub fn wait_for_matching_log(&self, time: Duration) -> bool {
        let began = store::time::now();
        while !self.log_matches_role() {
            if store::time::since(began) >= time {
                return false;
            }
            store::time::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Whether the log matches the role.
    pub fn log_matches_role(&self) -> bool {
        self.matches_role.load(SeqCst)
    }

    /// Records that the replica has caught up with its master, which completes a FAILOVER to it.
    pub(crate) fn synced(&self, config: &Config) {
        self.is_unsynced.store(false, SeqCst);
        self.note(config, |role| {
            let is_news = !role.synced || role.unfit || role.forced || role.handing.is_some();
            (role.master.is_some() && is_news).then(|| Role {
                synced: true,
                unfit: false,
                forced: false,
                handing: None,
                ..role.clone()
            })
        });
    }

    /// Records that a full sync is complete. The replica may now be promoted without its master.
    pub(crate) fn is_whole(&self, config: &Config, master: &Master) {
        self.note(config, |role| {
            (role.master.as_ref() == Some(master) && !role.synced)
                .then(|| Role { synced: true, ..role.clone() })
        });
    }

    /// Whether the node has synced with its current master in this process.
    pub fn has_synced_with_master(&self) -> bool {
        !self.is_unsynced.load(SeqCst)
    }

    /// Whether this process was a master before it was ordered to follow `master`, and has not
    /// synced since.
    pub(crate) fn was_master_before(&self, master: &Master) -> bool {
        let is_its_master = self.role.load().master.as_ref() == Some(master);
        is_its_master && self.was_master.load(SeqCst) && !self.has_synced_with_master()
    }

    /// Sets the error that INFO shows. Returns true if it is new.
    pub(super) fn note_error(&self, error: String) -> bool {
        let mut last = self.last_error.lock();
        let is_new = *last != error;
        *last = error;
        is_new
    }

    /// Logs once that a server with another protocol tries to follow this node.
    pub fn note_foreign_replica(&self, peer: std::net::IpAddr, why: &str) {
        if self.note_error(format!("rejected replica {peer}: {why}")) {
            tracing::warn!("rejected replica {peer}: {why}");
        }
    }

    /// Number of promotions by which the term must rise when this node begins a master's log; 0 if
    /// it has begun.
    pub(crate) fn promoting(&self) -> u32 {
        self.role.load().promoting
    }

    /// Records that the log has a new term.
    pub(crate) fn renewed(&self) {
        self.renews.store(false, SeqCst);
    }

    /// Records that this node has begun its log as a master.
    pub(crate) fn promoted(&self, config: &Config) {
        self.note(config, |role| {
            (role.promoting > 0 && !self.renews()).then(|| Role { promoting: 0, ..role.clone() })
        });
    }

    /// Records durably that the replica discards its data and copies its master's.
    pub(crate) fn gives_up(&self, config: &Config) -> io::Result<()> {
        let gives_up = |role: &Role| {
            role.synced.then(|| Role { synced: false, ..role.clone().with_replicated() })
        };
        self.change(config, gives_up, || ()).map(|_| ())
    }

    /// Records that the replica's history diverges from its master's. Only an operator may promote
    /// this replica, even after a restart.
    pub(crate) fn refuses(&self, config: &Config, master: &Master) {
        self.note(config, |role| {
            (role.master.as_ref() == Some(master) && !role.unfit)
                .then(|| Role { unfit: true, ..role.clone() })
        });
    }

    /// Whether promoting this node loses no writes. Returns true for a master, and for a replica
    /// that has all data of its master.
    pub fn is_fit(&self) -> bool {
        let role = self.role.load();
        role.master.is_none() || (role.synced && !role.unfit)
    }

    /// Whether this node's history diverges from its master's.
    pub fn is_refused(&self) -> bool {
        self.role.load().unfit
    }

    /// Whether the node is fenced. A fenced node refuses writes, because another node may be the
    /// master.
    pub fn is_fenced(&self) -> bool {
        self.fence.now() != Fenced::No
    }

    /// Number of Sentinel groups that have published hellos.
    pub fn sentinel_groups(&self) -> usize {
        self.fence.groups()
    }

    /// Whether the node is fenced until a replica connects.
    pub(crate) fn waits_for_replica(&self) -> bool {
        self.is_master() && self.fence.lets_replica_lift_fence()
    }

    /// Handles a replica that connected. If the replica `knows` this node as its master, the fence
    /// is lifted.
    pub(crate) fn followed(&self, config: &Config, knows: bool) {
        if knows && self.fence.followed() {
            tracing::info!("this node is still the master: accepting writes again");
        }
        self.judge(config);
    }

    /// Handles a hello of a Sentinel. Returns true if the caller must persist its epoch with
    /// [`Replication::keep_epochs`], on a thread that may block.
    pub fn named(&self, config: &Config, hello: &Hello<'_>) -> bool {
        if !config.replication.fence {
            return false;
        }
        let effect = self.fence.named(hello.group, hello.is_ours, hello.epoch, self.is_master());
        if effect.change == Some(Fenced::Deposed) {
            let Hello { group, address, epoch, .. } = hello;
            *self.deposed_by.lock() = Master::parse(address);
            tracing::warn!(
                "Sentinel has made another node the master ('{group}' at {address}, epoch \
                 {epoch}): rejecting writes; clients find the new master through Sentinel"
            );
        }
        self.fence_changed(config, effect.change);
        effect.is_news && !self.is_saving_epochs.swap(true, SeqCst)
    }

    /// Fences a master that has missed this many topologies, until an explicit role change begins a
    /// new term.
    pub fn skipped(&self, topologies: u64) {
        if topologies > 0 && self.is_master() {
            self.fence.skipped(topologies);
        }
    }

    /// Persists the epochs of Sentinels: [`Replication::named`].
    pub fn keep_epochs(&self, config: &Config) {
        self.is_saving_epochs.store(false, SeqCst);
        let mut epochs = Vec::new();
        let keep = |role: &Role| {
            epochs = self.fence.epochs();
            let missed = if role.master.is_none() { self.fence.missed_when_lifted() } else { 0 };
            let next = Role { sentinels: epochs.clone(), ..role.clone() }.renewed(missed);
            (next != *role).then_some(next)
        };
        match self.change(config, keep, || ()) {
            Ok(_) => self.fence_changed(config, self.fence.kept(&epochs)),
            Err(error) => tracing::error!("cannot save the state of Sentinel: {error}"),
        }
    }

    fn fence_changed(&self, config: &Config, change: Option<Fenced>) {
        if change == Some(Fenced::No) {
            tracing::info!("Sentinel names this node as the master: accepting writes again");
        }
        if change.is_some() {
            self.judge(config);
        }
    }

    /// Evaluates again whether this node accepts writes. Called after each change, and
    /// periodically.
    pub fn judge(&self, config: &Config) {
        let _gate = self.gate_lock.lock();
        self.look(config, self.matches_role.load(SeqCst));
    }

    /// Sets the write gate. The caller holds `gate_lock`.
    fn look(&self, config: &Config, log_matches_role: bool) {
        let settings = &config.replication;
        let (wanted, max_lag_s) = (settings.min_replicas_to_write, settings.min_replicas_max_lag_s);
        let too_few = || wanted > 0 && max_lag_s > 0 && self.feeds.close(max_lag_s) < wanted;
        self.gate.set(match self.fence.now() {
            _ if !self.is_master() || !log_matches_role => WriteBlock::Replica,
            Fenced::Unknown if config.cluster.enabled => WriteBlock::FencedInCluster,
            Fenced::Unknown => WriteBlock::Fenced,
            Fenced::Deposed => WriteBlock::Deposed,
            Fenced::No if too_few() => WriteBlock::FewReplicas,
            Fenced::No if self.leased.load(SeqCst) && config.cluster.is_leased() => {
                WriteBlock::Leased
            }
            Fenced::No => WriteBlock::No,
        });
    }

    /// Grants a lease for writes. `is_again` is true if the message renews a lease that may have
    /// expired (`write_gate.rs`).
    pub fn lease(&self, config: &Config, time: Duration, is_again: bool) {
        let gate = self.gate_lock.lock();
        if is_again {
            self.gate.renew(time)
        } else {
            self.gate.lease(time)
        }
        drop(gate);
        if !self.leased.swap(true, SeqCst) {
            self.judge(config);
        }
    }

    /// Ends the lease. Writes no longer need a lease.
    pub fn end_lease(&self, config: &Config) {
        self.leased.store(false, SeqCst);
        self.judge(config);
    }

    /// Whether Sentinel has promoted another node.
    pub fn is_deposed(&self) -> bool {
        self.fence.now() == Fenced::Deposed
    }

    /// Returns the master that Sentinel has chosen instead of this node.
    pub fn deposed_by(&self) -> Option<Master> {
        self.deposed_by.lock().clone().filter(|_| self.is_deposed())
    }

    /// Whether clients should ask Sentinel for the master after a refused write. This node is
    /// fenced or has stepped down, and a Sentinel knows the master.
    pub fn redirects_writers(&self) -> bool {
        match self.gate.shut() {
            WriteBlock::Deposed => true,
            WriteBlock::Fenced | WriteBlock::FencedInCluster => self.fence.groups() > 0,
            WriteBlock::Replica => self.stepped_down.load(SeqCst) && self.is_watched(),
            WriteBlock::No | WriteBlock::FewReplicas | WriteBlock::Leased => false,
        }
    }

    /// Returns the error for writes, or `None` if they are accepted.
    #[inline]
    pub fn refusal(&self) -> Option<&'static str> {
        self.gate.refusal()
    }

    /// Whether the role on disk records that other nodes exist.
    pub fn is_replicated(&self) -> bool {
        self.role.load().replicated
    }

    /// Records on disk that other nodes exist, so that after a restart this node does not assume
    /// that it is the master.
    pub fn note_replicated(&self, config: &Config) -> io::Result<()> {
        let replicated =
            |role: &Role| (!role.replicated).then(|| Role { replicated: true, ..role.clone() });
        self.change(config, replicated, || ()).map(|_| ())
    }
}

#[cfg(test)]
mod tests;
