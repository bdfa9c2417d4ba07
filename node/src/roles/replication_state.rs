//! What a node knows of its role, its master and its replicas, and whether it takes writes.
//!
//! The role is on disk before any client or thread sees it. The disk may be slow, so a worker never
//! changes the role (`Call::answer_later`), and readers never wait. The gate is one atomic: it is
//! shut on a replica, on a fenced master, and on a master with too few replicas.

use crate::config::Config;
use crate::roles::failover_state::Failover;
use crate::roles::fence::{Fence, Fenced};
use crate::roles::link_status::{Link, LinkState};
use crate::roles::replicas::Feeds;
use crate::roles::role::{Master, Role};
use crate::roles::sentinels::{Sentinel, Sentinels};
use crate::roles::write_gate::{Gate, Shut};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::watch;

/// What a node is to be.
#[derive(Default)]
pub struct Order {
    /// Whom it is to follow; none: it is to be a master.
    pub master: Option<Master>,
    /// The data are given up for whatever the master has.
    pub forced: bool,
    /// FAILOVER: the master is a replica, and is to take over.
    pub handing: Option<Handing>,
    /// It is to be a master, but may have been replaced while it was away.
    pub fenced: bool,
    /// How a connected replica becomes a master.
    pub promotion: Promotion,
    /// A master that is to be a replica has all that its next master begins with: it may be
    /// promoted before they have met.
    pub fit: bool,
}

/// How a replica becomes a master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promotion {
    /// With what it has.
    #[default]
    AtOnce,
    /// Its master has handed the role over: the replica has everything.
    HandedOver,
    /// If its link is up, its master steps down first, and it takes the rest of the log
    /// (replica.rs).
    TakesOver,
}

/// FAILOVER: how far the replica is that is to take over.
#[derive(Clone, Copy)]
pub struct Handing {
    /// It is to have the log up to here.
    pub(crate) offset: u64,
    /// It has all that there is here. Then so has this node of what the replica begins with, and it
    /// is fit to take its place at once.
    pub(crate) has_all: bool,
}

/// A Sentinel's word on which node is the master.
pub struct Hello<'a> {
    /// What those Sentinels call what they watch.
    pub group: &'a str,
    /// Whether it names this node.
    pub is_ours: bool,
    /// The configuration epoch that it is of.
    pub epoch: u64,
    /// The master's address, for the server's log.
    pub address: String,
}

/// The replication state of a process.
pub struct Replication {
    role: ArcSwap<Role>,
    /// Held while the role changes, its way to the disk included.
    changing: Mutex<()>,
    gate: Gate,
    /// Held while the gate is set, so that what was true before an order is not said after it.
    /// Never across a wait.
    gating: Mutex<()>,
    fence: Fence,
    /// A thread is about to write down what Sentinels have said.
    keeping: AtomicBool,
    /// The role has been made true: the log is the node's own, or its master's.
    settled: AtomicBool,
    /// It was told in this process whom to follow, and has not been in step with them.
    unmet: AtomicBool,
    /// It was a master until the last order, which has told it to follow another one.
    was_master: AtomicBool,
    /// Why something that was asked for since the last order can never be: REPLICAOF a Redis, or
    /// by one. One line; empty: nothing.
    pub last_error: Mutex<String>,
    /// It is to be a master, and its master steps down for it first.
    taking_over: AtomicBool,
    /// It has taken its role over from a living master, and Sentinels are to learn of that.
    announces: AtomicBool,
    /// It was a master, and has stepped down for a replica.
    stepped_down: AtomicBool,
    /// The Sentinels that watch it.
    sentinels: Sentinels,
    /// The master that it followed until it was ordered to be one.
    replaces: Mutex<Option<Master>>,
    /// It is the master again, after another one may have been: its log is to begin another term.
    renews: AtomicBool,
    /// The master that Sentinel last put in this node's place.
    deposed_by: Mutex<Option<Master>>,
    /// Rises with every change of the role.
    orders: watch::Sender<u64>,
    /// FAILOVER, if it is under way.
    pub failover: Failover,
    /// A replica's link to its master.
    pub link: Mutex<Link>,
    /// The replicas that are fed.
    pub feeds: Feeds,
    /// A HEARTBEAT has given this node a lease, or would have to.
    leased: AtomicBool,
    /// Of this node, as a replica.
    pub full_syncs: AtomicU64,
    /// Links of ours that went on from where we were.
    pub continued: AtomicU64,
    /// Of the newest segment.
    pub term: AtomicU64,
}

impl Replication {
    pub(crate) fn new() -> Replication {
        Replication {
            role: ArcSwap::default(),
            changing: Mutex::default(),
            gate: Gate::new(),
            gating: Mutex::default(),
            fence: Fence::default(),
            keeping: AtomicBool::new(false),
            settled: AtomicBool::new(false),
            unmet: AtomicBool::new(false),
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
            link: Mutex::new(Link::new()),
            feeds: Feeds::default(),
            leased: AtomicBool::new(false),
            full_syncs: AtomicU64::new(0),
            continued: AtomicU64::new(0),
            term: AtomicU64::new(0),
        }
    }

    /// At start: the role that the data folder remembers, or else the configuration's. `is_alone`:
    /// as a master it has no replica that could have been promoted meanwhile.
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
        // Without any other node there is none that could have become the master meanwhile.
        let had_others = role.clone().among_others().replicated;
        if role.master.is_none() && had_others && config.replication.fence {
            let until = if !role.sentinels.is_empty() {
                "Sentinel names this node"
            } else if is_alone {
                "the other nodes of the cluster have been asked"
            } else {
                "a replica follows"
            };
            let order = if config.cluster.enabled {
                "CLUSTERX SETNODES of a later version"
            } else {
                "REPLICAOF NO ONE"
            };
            tracing::warn!(
                "this was one of several nodes: writes are refused until {until}, or {order}"
            );
            self.fence.raise();
        }
        if let Some((to, offset)) = role.master.as_ref().zip(role.handing) {
            if role.sentinels.is_empty() {
                tracing::warn!(
                    "a FAILOVER was under way: {to} is asked again to take over, unless REPLICAOF \
                     names the master"
                );
                self.failover.resume(offset);
            } else {
                // By now they may have chosen another one.
                tracing::warn!(
                    "a FAILOVER was under way: Sentinel decides which node is the master"
                );
            }
        }
        self.role.store(Arc::new(role));
        Ok(())
    }

    /// Whom this node is to follow.
    pub fn master(&self) -> Option<Master> {
        self.role.load().master.clone()
    }

    /// Whether it takes writes of its own.
    pub fn is_master(&self) -> bool {
        self.role.load().master.is_none()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.orders.subscribe()
    }

    /// Until this node is to be a replica: then it is unknown whether others have what was written
    /// here.
    pub async fn demoted(&self) {
        // An error means that no sender is left, and `self` is one.
        let _ = self.subscribe().wait_for(|_| !self.is_master()).await;
    }

    /// Another role, if `next` gives one: durable when this returns. `told` is done as others begin
    /// to see it.
    fn change(
        &self,
        config: &Config,
        next: impl FnOnce(&Role) -> Option<Role>,
        told: impl FnOnce(),
    ) -> io::Result<bool> {
        let _one = self.changing.lock();
        let Some(next) = next(&self.role.load()) else { return Ok(false) };
        next.write(&config.durability.dir)?;
        let _gate = self.gating.lock();
        let before = self.role.swap(Arc::new(next));
        if before.begins_another_term(&self.role.load()) {
            self.renew();
        }
        told();
        Ok(true)
    }

    /// As `change`, of what holds whether the disk takes it or not.
    fn note(&self, config: &Config, next: impl Fn(&Role) -> Option<Role>) {
        if let Err(error) = self.change(config, &next, || ()) {
            tracing::error!("the role cannot be written down: {error}");
            let _one = self.changing.lock();
            if let Some(next) = next(&self.role.load()) {
                self.role.store(Arc::new(next));
            }
        }
    }

    /// REPLICAOF, and FAILOVER: durable when this returns; the director does the rest. False if
    /// nothing is new. A master that is to follow is not fit to be promoted before it has met its
    /// master: what it has written may be in no other history, and much of theirs not in its own.
    /// `told`: see `change`.
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
            // To follow the one that it asks to take over, though: it is not asked any more.
            let is_handing = role.handing.is_some() && handing.is_none();
            if role.master == master && !forced && !is_handing {
                return None;
            }
            let handing_to = handing.map(|handing| handing.offset);
            let mut next = Role { unfit: false, forced, handing: handing_to, ..role.clone() };
            if forced {
                // What it gives up is not what the next master has.
                next = next.among_others();
                next.synced = false;
            }
            if role.master.is_none() {
                next = next.among_others();
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
            self.settled.store(false, SeqCst);
            self.unmet.store(!is_master, SeqCst);
            self.was_master.store(was_master && !is_master, SeqCst);
            self.last_error.lock().clear();
            self.gate.set(Shut::Replica);
            tell();
        })?;
        if is_new {
            *self.link.lock() = Link::new();
            self.orders.send_modify(|n| *n += 1);
        }
        Ok(is_new)
    }

    /// REPLICAOF NO ONE to a master: by an operator, or by a Sentinel that has deposed it and
    /// chooses it again before it was made a replica. `None` if it is none; whether it begins
    /// another term by that.
    fn remains_master(&self, config: &Config, told: &mut dyn FnMut()) -> io::Result<Option<bool>> {
        let missed = self.fence.missed();
        let forget = |role: &Role| {
            let next = Role { sentinels: Vec::new(), ..role.clone() }.renewed(missed);
            (role.master.is_none() && next != *role).then_some(next)
        };
        // Before another thread writes down once more what they have said.
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

    /// As a master again, the director is to begin another term before writes are taken.
    fn renew(&self) {
        self.renews.store(true, SeqCst);
        self.settled.store(false, SeqCst);
        self.gate.set(Shut::Replica);
        self.orders.send_modify(|n| *n += 1);
    }

    /// Whether its old master is to step down before this node begins its log.
    pub(crate) fn is_taking_over(&self) -> bool {
        self.taking_over.load(SeqCst) && self.is_master()
    }

    /// Waits until it is.
    pub(crate) async fn takes_over(&self) {
        // An error means that no sender is left, and `self` is one.
        let _ = self.subscribe().wait_for(|_| self.is_taking_over()).await;
    }

    /// The old master has stepped down: `is_ordered` by a Sentinel, which knows of it.
    pub(crate) fn took_over(&self, is_ordered: bool) {
        self.announces.store(!is_ordered, SeqCst);
    }

    /// This node was a master, and has stepped down for a replica that it follows now.
    pub(crate) fn note_stepped_down(&self) {
        self.stepped_down.store(true, SeqCst);
    }

    /// Fences this master: another node is the master, and this one could not note that.
    pub(crate) fn raise_fence(&self, config: &Config) {
        self.fence.raise();
        self.judge(config);
    }

    /// The hellos by which Sentinels are to learn, once, that this node is the master.
    pub(crate) fn take_announcements(&self) -> Vec<String> {
        let is_due = self.announces.swap(false, SeqCst) && self.is_master();
        if !is_due {
            return Vec::new();
        }
        self.sentinels.announcements(self.replaces.lock().take())
    }

    /// Whether a Sentinel has been heard within the last seconds.
    pub(crate) fn is_watched(&self) -> bool {
        self.sentinels.watch()
    }

    /// Whether a Sentinel has named this node as the master since its last order.
    pub(crate) fn is_named(&self) -> bool {
        self.sentinels.have_named()
    }

    /// How many Sentinels have been heard within the last seconds.
    pub fn sentinels_heard(&self) -> usize {
        self.sentinels.count()
    }

    /// A group of Sentinels that could not learn of a FAILOVER: only one of them is heard.
    pub fn lonely_group(&self) -> Option<String> {
        self.sentinels.lonely()
    }

    /// A Sentinel has published a hello here, and names this node as the master if `is_ours`.
    /// `named`: the master's address. True if the Sentinel has missed the announcement, which is to
    /// be made again (`take_announcements`).
    pub fn heard(&self, said: Sentinel<'_>, named: &str, is_ours: bool) -> bool {
        self.sentinels.hear(said);
        if is_ours && self.is_master() {
            self.sentinels.name_as_master();
        }
        let is_missed = self.is_settled() && self.is_master() && self.sentinels.is_replaced(named);
        is_missed && !self.announces.swap(true, SeqCst)
    }

    /// Whether this master's log is to begin another term.
    pub(crate) fn renews(&self) -> bool {
        self.renews.load(SeqCst) && self.is_master()
    }

    /// Whether the data are given up for whatever the master has, once.
    pub(crate) fn is_forced(&self) -> bool {
        self.role.load().forced
    }

    /// The director has made the log a master's, or a replica's. False if this node is to be the
    /// other meanwhile: then it is not settled.
    pub fn settle(&self, config: &Config, is_master: bool, term: u64) -> bool {
        self.term.store(term, Relaxed);
        let _gate = self.gating.lock();
        let is_role = self.is_master() == is_master && !self.renews();
        self.look(config, is_role || self.settled.load(SeqCst));
        // A reader that sees this finds the gate open.
        if is_role {
            self.settled.store(true, SeqCst);
        }
        is_role
    }

    /// Waits until it has. False: not within this time. Not for workers.
    pub fn wait_settled(&self, time: Duration) -> bool {
        let began = store::time::now();
        while !self.is_settled() {
            if store::time::since(began) >= time {
                return false;
            }
            store::time::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Whether it has, since the last order.
    pub fn is_settled(&self) -> bool {
        self.settled.load(SeqCst)
    }

    /// The replica is in step with its master, with a complete data set. So the node that was to
    /// take over has done so.
    pub(crate) fn synced(&self, config: &Config) {
        self.unmet.store(false, SeqCst);
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

    /// The replica has its master's whole data set as it was when a full sync was complete. It may
    /// never hear of more: that master may be lost since, and no other node have as much.
    pub(crate) fn is_whole(&self, config: &Config, master: &Master) {
        self.note(config, |role| {
            (role.master.as_ref() == Some(master) && !role.synced)
                .then(|| Role { synced: true, ..role.clone() })
        });
    }

    /// As a replica: it has been in step with its current master, in this process.
    pub fn has_met_its_master(&self) -> bool {
        !self.unmet.load(SeqCst)
    }

    /// Whether it was a master when it was told, in this process, to follow `master`, and has met
    /// no other master since.
    pub(crate) fn was_master_before(&self, master: &Master) -> bool {
        let is_its_master = self.role.load().master.as_ref() == Some(master);
        is_its_master && self.was_master.load(SeqCst) && !self.has_met_its_master()
    }

    /// For INFO. True if that is new.
    pub(super) fn note_error(&self, error: String) -> bool {
        let mut last = self.last_error.lock();
        let is_new = *last != error;
        *last = error;
        is_new
    }

    /// A server that speaks another protocol was told to follow this one, and tries again and
    /// again: it is logged once.
    pub fn note_foreign_replica(&self, peer: std::net::IpAddr, why: &str) {
        if self.note_error(format!("a server at {peer} was told to follow this one: {why}")) {
            tracing::warn!("a server at {peer} was told to follow this one: refused, as {why}");
        }
    }

    /// It is to be a master, and its log is still the one of a replica: by how many promotions its
    /// term is to be later. 0: it is a master's.
    pub(crate) fn promoting(&self) -> u32 {
        self.role.load().promoting
    }

    /// Its log has a later term.
    pub(crate) fn renewed(&self) {
        self.renews.store(false, SeqCst);
    }

    /// Its log has begun as a master's.
    pub(crate) fn promoted(&self, config: &Config) {
        self.note(config, |role| {
            (role.promoting > 0 && !self.renews()).then(|| Role { promoting: 0, ..role.clone() })
        });
    }

    /// The replica gives its data up for its master's, which begin to come. Durable when this
    /// returns.
    pub(crate) fn gives_up(&self, config: &Config) -> io::Result<()> {
        let gives_up = |role: &Role| {
            role.synced.then(|| Role { synced: false, ..role.clone().among_others() })
        };
        self.change(config, gives_up, || ()).map(|_| ())
    }

    /// The replica's data and this master's do not fit, and neither gives way: only an operator may
    /// promote it, also after a restart.
    pub(crate) fn refuses(&self, config: &Config, master: &Master) {
        self.note(config, |role| {
            (role.master.as_ref() == Some(master) && !role.unfit)
                .then(|| Role { unfit: true, ..role.clone() })
        });
    }

    /// Whether this node could be promoted without losing what others have.
    pub fn is_fit(&self) -> bool {
        let role = self.role.load();
        role.master.is_none() || (role.synced && !role.unfit)
    }

    /// Whether its master's data do not go on from what this replica has.
    pub fn is_refused(&self) -> bool {
        self.role.load().unfit
    }

    /// Whether a Sentinel's word on another master keeps it from writes.
    pub fn is_fenced(&self) -> bool {
        self.fence.now() != Fenced::No
    }

    /// How many groups of Sentinels have spoken.
    pub fn sentinel_groups(&self) -> usize {
        self.fence.groups()
    }

    /// Whether it is fenced until a replica follows.
    pub(crate) fn waits_for_replica(&self) -> bool {
        self.is_master() && self.fence.believes_replicas()
    }

    /// A replica follows: so this node is its master, if that one `knows`; in a cluster that is to
    /// be confirmed by others.
    pub(crate) fn followed(&self, config: &Config, knows: bool) {
        if knows && self.fence.followed() {
            tracing::info!("this node is the master still: writes are taken again");
        }
        self.judge(config);
    }

    /// A Sentinel has named the master. True if a start must know it, too, and no thread is about
    /// to write that down: [`Replication::keep_epochs`] is to be called where the disk may be
    /// waited for.
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
                 {epoch}): writes are refused; clients find the new one through Sentinel"
            );
        }
        self.fence_changed(config, effect.change);
        effect.is_news && !self.keeping.swap(true, SeqCst)
    }

    /// It is a master by a topology, as by the one before that it knows, and has not heard of so
    /// many between them: it is fenced until it is ordered to be one, which begins another term.
    pub fn skipped(&self, topologies: u64) {
        if topologies > 0 && self.is_master() {
            self.fence.skipped(topologies);
        }
    }

    /// See [`Replication::named`].
    pub fn keep_epochs(&self, config: &Config) {
        self.keeping.store(false, SeqCst);
        let mut epochs = Vec::new();
        let keep = |role: &Role| {
            epochs = self.fence.epochs();
            let missed = if role.master.is_none() { self.fence.missed_when_lifted() } else { 0 };
            let next = Role { sentinels: epochs.clone(), ..role.clone() }.renewed(missed);
            (next != *role).then_some(next)
        };
        match self.change(config, keep, || ()) {
            Ok(_) => self.fence_changed(config, self.fence.kept(&epochs)),
            Err(error) => tracing::error!("what Sentinel says cannot be written down: {error}"),
        }
    }

    fn fence_changed(&self, config: &Config, change: Option<Fenced>) {
        if change == Some(Fenced::No) {
            tracing::info!("Sentinel names this node as the master: writes are taken again");
        }
        if change.is_some() {
            self.judge(config);
        }
    }

    /// Looks again whether writes are to be taken. To be called whenever something of that has
    /// changed, and now and then, as time goes by.
    pub fn judge(&self, config: &Config) {
        let _gate = self.gating.lock();
        self.look(config, self.settled.load(SeqCst));
    }

    /// Sets the gate; the caller holds `gating`.
    fn look(&self, config: &Config, is_settled: bool) {
        let settings = &config.replication;
        let (wanted, max_lag_s) = (settings.min_replicas_to_write, settings.min_replicas_max_lag_s);
        let too_few = || wanted > 0 && max_lag_s > 0 && self.feeds.close(max_lag_s) < wanted;
        self.gate.set(match self.fence.now() {
            _ if !self.is_master() || !is_settled => Shut::Replica,
            Fenced::Unknown if config.cluster.enabled => Shut::FencedInCluster,
            Fenced::Unknown => Shut::Fenced,
            Fenced::Deposed => Shut::Deposed,
            Fenced::No if too_few() => Shut::FewReplicas,
            Fenced::No if self.leased.load(SeqCst) && config.cluster.is_leased() => Shut::Leased,
            Fenced::No => Shut::No,
        });
    }

    /// As a master it takes writes for so long; `is_again`: it has this lease already, which may be
    /// over (`write_gate.rs`).
    pub fn lease(&self, config: &Config, time: Duration, is_again: bool) {
        let gate = self.gating.lock();
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

    /// It takes them for as long as it is the master.
    pub fn end_lease(&self, config: &Config) {
        self.leased.store(false, SeqCst);
        self.judge(config);
    }

    /// Whether Sentinel has made another node the master.
    pub fn is_deposed(&self) -> bool {
        self.fence.now() == Fenced::Deposed
    }

    /// The master that Sentinel has put in this node's place, if it has.
    pub fn deposed_by(&self) -> Option<Master> {
        self.deposed_by.lock().clone().filter(|_| self.is_deposed())
    }

    /// Whether a client whose write was refused is better off with another node: this one is
    /// fenced, or has stepped down, and a Sentinel knows which node is the master.
    pub fn sends_writers_away(&self) -> bool {
        match self.gate.shut() {
            Shut::Deposed => true,
            Shut::Fenced | Shut::FencedInCluster => self.fence.groups() > 0,
            Shut::Replica => self.stepped_down.load(SeqCst) && self.is_watched(),
            Shut::No | Shut::FewReplicas | Shut::Leased => false,
        }
    }

    /// Why a write must be refused now, if it must.
    #[inline]
    pub fn refusal(&self) -> Option<&'static str> {
        self.gate.refusal()
    }

    /// Whether a restart of this node knows that there are others.
    pub fn is_replicated(&self) -> bool {
        self.role.load().replicated
    }

    /// From now on a restart of this node must not take it for granted that it is the master.
    pub fn note_replicated(&self, config: &Config) -> io::Result<()> {
        let replicated =
            |role: &Role| (!role.replicated).then(|| Role { replicated: true, ..role.clone() });
        self.change(config, replicated, || ()).map(|_| ())
    }
}

#[cfg(test)]
mod tests;
