//! Replication: what a process knows of its role, its master and its replicas. The protocol is the crate `replication`'s.
//!
//! ```text
//!   command REPLICAOF --> Role (on the disk) --> director (thread "log", director.rs): who owns the log, and what becomes of it
//!                                                  a master's log: Durability::run         a replica's: follow.rs, one link to its master
//!   command TM.REPLICATE --> the connection becomes a feed (feed.rs) that sends the log's files
//! ```
//!
//! FAILOVER hands the role to a replica (failover.rs).
//!
//! Whether writes are taken is one atomic, the [`Gate`]: a replica takes none, nor does a master of which it is not known whether it still is one
//! (fence.rs), nor one that has too few replicas.

pub(crate) mod director;
mod dropped;
pub(crate) mod failover;
pub(crate) mod feed;
mod fence;
pub(crate) mod follow;
pub(crate) mod role;

use fence::{Fence, Fenced};
pub(crate) use role::Master;
use role::Role;

use crate::config::Config;
use parking_lot::Mutex;
use replication::Sending;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Instant;
use tokio::sync::watch;

/// Why writes are refused, if they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Gate {
    Open,
    /// This is a replica, or becomes a master at this moment.
    Replica,
    /// It may have been replaced: it was a master of replicas, or has been one, was started again, and nobody has said since that it is the master.
    Fenced,
    /// Too few replicas follow closely enough.
    FewReplicas,
    /// Sentinel has made another node the master.
    Deposed,
}

/// How the link to the master stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    Connect,
    Connecting,
    Sync,
    Connected,
}

/// The link to the master.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) state: LinkState,
    pub(crate) heard: Instant,
    /// Since when it has been down.
    pub(crate) down_since: Option<Instant>,
    /// The last reason why it was.
    pub(crate) error: String,
    /// When the next attempt is due.
    pub(crate) due: Option<Instant>,
    /// The master's end, as it last said.
    pub(crate) master_end: u64,
    /// Bytes that a full sync has brought.
    pub(crate) fetched: u64,
}

/// A replica of ours.
#[derive(Clone, Debug)]
pub(crate) struct Fed {
    pub(crate) ip: String,
    pub(crate) port: u16,
    pub(crate) sending: Sending,
    /// What it has in its log, and shows.
    pub(crate) written: u64,
    pub(crate) durable: u64,
    pub(crate) heard: Instant,
}

/// See the top of the file.
pub(crate) struct Replication {
    role: Mutex<Role>,
    gate: AtomicU8,
    fence: Fence,
    /// The role has been made true: the log is the node's own, or its master's.
    settled: AtomicBool,
    /// Rises with every change of the role.
    orders: watch::Sender<u64>,
    forced: AtomicBool,
    pub(crate) failover: failover::Failover,
    pub(crate) link: Mutex<Link>,
    feeds: Mutex<BTreeMap<u64, Fed>>,
    /// Of this node, as a replica.
    pub(crate) full_syncs: AtomicU64,
    /// Links of ours that went on from where we were.
    pub(crate) continued: AtomicU64,
    /// Replicas to which we sent files first; and those to which the log alone.
    pub(crate) fed_files: AtomicU64,
    pub(crate) fed_log: AtomicU64,
    /// Of the newest segment.
    pub(crate) term: AtomicU64,
}

impl Replication {
    pub(crate) fn new() -> Replication {
        let link = Link {
            state: LinkState::Connect,
            heard: Instant::now(),
            down_since: Some(Instant::now()),
            error: String::new(),
            due: None,
            master_end: 0,
            fetched: 0,
        };
        Replication {
            role: Mutex::new(Role::default()),
            gate: AtomicU8::new(Gate::Replica as u8),
            fence: Fence::new(),
            settled: AtomicBool::new(false),
            orders: watch::Sender::new(0),
            forced: AtomicBool::new(false),
            failover: failover::Failover::new(),
            link: Mutex::new(link),
            feeds: Mutex::default(),
            full_syncs: AtomicU64::new(0),
            continued: AtomicU64::new(0),
            fed_files: AtomicU64::new(0),
            fed_log: AtomicU64::new(0),
            term: AtomicU64::new(0),
        }
    }

    /// At start: the role that the data folder remembers, or else the configuration's.
    pub(crate) fn recall(&self, config: &Config) -> std::io::Result<()> {
        let mut role = match Role::read(&config.durability.dir)? {
            Some(role) => role,
            None => Role { master: Master::parse(&config.replication.replicaof), ..Role::default() },
        };
        // Where there were never others there is nobody who could have become the master meanwhile.
        let had_others = role.clone().among_others().replicated;
        let fenced = role.master.is_none() && had_others && config.replication.fence;
        if fenced {
            let until = if role.sentinel.is_some() { "Sentinel names this node" } else { "a replica follows" };
            tracing::warn!("this was one of several nodes: writes are refused until {until}, or REPLICAOF NO ONE");
        }
        self.fence.recall(role.sentinel);
        if role.master.is_some() && Role::read(&config.durability.dir)?.is_none() {
            role.write(&config.durability.dir)?;
        }
        if fenced {
            self.fence.raise();
        }
        std::mem::swap(&mut *self.role.lock(), &mut role);
        Ok(())
    }

    /// Whom this node is to follow.
    pub(crate) fn master(&self) -> Option<Master> {
        self.role.lock().master.clone()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.orders.subscribe()
    }

    /// REPLICAOF: durable when this returns; the director does the rest. False if nothing is new. A master that is to follow is not fit to be promoted
    /// before it has met who it follows: what it has written may be in nobody else's history, and much of theirs not in its own.
    pub(crate) fn order(&self, config: &Config, master: Option<Master>, forced: bool) -> std::io::Result<bool> {
        self.give(config, master, forced, false)
    }

    /// FAILOVER: as `order`. `has_all`: the replica has all that there is here. Then so has this node of what the replica begins with, and it is fit to
    /// take its place at once.
    fn hand_over(&self, config: &Config, to: Master, has_all: bool) -> std::io::Result<bool> {
        self.give(config, Some(to), false, has_all)
    }

    fn give(&self, config: &Config, master: Option<Master>, forced: bool, synced: bool) -> std::io::Result<bool> {
        let mut role = self.role.lock();
        if role.master == master && !forced {
            if master.is_none() {
                // Sentinel does not say this to a master: an operator does.
                if role.sentinel.is_some() {
                    let next = Role { sentinel: None, ..role.clone() };
                    next.write(&config.durability.dir)?;
                    *role = next;
                }
                self.fence.forget();
                drop(role);
                self.judge(config);
            }
            return Ok(false);
        }
        let mut next = Role { unfit: false, ..role.clone() };
        if role.master.is_none() {
            next = next.among_others();
            next.synced = synced;
        }
        next.master = master;
        next.write(&config.durability.dir)?;
        *role = next;
        self.forced.store(forced, SeqCst);
        self.fence.ordered();
        self.settled.store(false, SeqCst);
        self.gate.store(Gate::Replica as u8, SeqCst);
        drop(role);
        *self.link.lock() = Replication::new().link.into_inner();
        self.orders.send_modify(|n| *n += 1);
        Ok(true)
    }

    /// Whether the data may be given up for whatever the master has, once.
    pub(crate) fn is_forced(&self) -> bool {
        self.forced.load(SeqCst)
    }

    /// The director has made the log a master's, or a replica's. False if this node is to be the other meanwhile: then it is not settled.
    pub(crate) fn settle(&self, config: &Config, is_master: bool, term: u64) -> bool {
        self.term.store(term, Relaxed);
        let role = self.role.lock();
        let is_role = role.master.is_none() == is_master;
        self.look(config, &role, is_role || self.settled.load(SeqCst));
        // Who sees this finds the gate open.
        if is_role {
            self.settled.store(true, SeqCst);
        }
        is_role
    }

    /// Whether it has, since the last order.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled.load(SeqCst)
    }

    /// The replica is in step with its master, with a complete data set.
    pub(crate) fn synced(&self, config: &Config) {
        self.forced.store(false, SeqCst);
        let mut role = self.role.lock();
        if role.master.is_some() && (!role.synced || role.unfit) {
            (role.synced, role.unfit) = (true, false);
            if let Err(error) = role.write(&config.durability.dir) {
                tracing::error!("the role cannot be written down: {error}");
            }
        }
    }

    /// The replica gives its data up for its master's, which begin to come. Durable when this returns.
    pub(crate) fn gives_up(&self, config: &Config) -> std::io::Result<()> {
        let mut role = self.role.lock();
        if role.synced {
            let next = Role { synced: false, ..role.clone().among_others() };
            next.write(&config.durability.dir)?;
            *role = next;
        }
        Ok(())
    }

    /// The replica's data and this master's do not fit, and neither gives way: only an operator may promote it, also after a restart.
    pub(crate) fn refuses(&self, config: &Config, master: &Master) {
        let mut role = self.role.lock();
        if role.master.as_ref() == Some(master) && !role.unfit {
            role.unfit = true;
            if let Err(error) = role.write(&config.durability.dir) {
                tracing::error!("the role cannot be written down: {error}");
            }
        }
    }

    /// Whether this node could be promoted without losing what others have.
    pub(crate) fn is_fit(&self) -> bool {
        let role = self.role.lock();
        role.master.is_none() || (role.synced && !role.unfit)
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.fence.now() != Fenced::No
    }

    /// A replica follows: so this node is its master.
    pub(crate) fn followed(&self, config: &Config) {
        if self.fence.followed() {
            tracing::info!("a replica follows: this node is the master; writes are taken again");
        }
        self.judge(config);
    }

    /// A Sentinel has said who is the master, and since which epoch.
    pub(crate) fn named(&self, config: &Config, is_ours: bool, epoch: u64, who: &str) {
        if !config.replication.fence {
            return;
        }
        let change = self.fence.named(is_ours, epoch, self.master().is_none());
        self.keep_epoch(config);
        match change {
            None => return,
            Some(Fenced::Deposed) => {
                tracing::warn!("Sentinel has made another node the master ({who}, epoch {epoch}): writes are refused");
            }
            Some(_) => {
                tracing::info!("Sentinel names this node as the master ({who}, epoch {epoch}): writes are taken again")
            }
        }
        self.judge(config);
    }

    /// A restart must know it, too.
    fn keep_epoch(&self, config: &Config) {
        let mut role = self.role.lock();
        let sentinel = self.fence.epoch();
        if role.sentinel != sentinel {
            let next = Role { sentinel, ..role.clone() };
            match next.write(&config.durability.dir) {
                Ok(()) => *role = next,
                Err(error) => tracing::error!("what Sentinel says cannot be written down: {error}"),
            }
        }
    }

    /// Looks again whether writes are to be taken. To be called whenever something of that has changed, and now and then, as time goes by.
    pub(crate) fn judge(&self, config: &Config) {
        // Held until the gate is set: what was true before an order must not be said after it.
        let role = self.role.lock();
        self.look(config, &role, self.settled.load(SeqCst));
    }

    /// Sets the gate, under the lock of the role.
    fn look(&self, config: &Config, role: &Role, is_settled: bool) {
        let settings = &config.replication;
        let wanted = settings.min_replicas_to_write;
        let is_replica = role.master.is_some() || !is_settled;
        let gate = match self.fence.now() {
            _ if is_replica => Gate::Replica,
            Fenced::Unknown => Gate::Fenced,
            Fenced::Deposed => Gate::Deposed,
            Fenced::No
                if wanted > 0
                    && settings.min_replicas_max_lag_s > 0
                    && self.good_replicas(settings.min_replicas_max_lag_s) < wanted =>
            {
                Gate::FewReplicas
            }
            Fenced::No => Gate::Open,
        };
        self.gate.store(gate as u8, SeqCst);
    }

    fn good_replicas(&self, max_lag_s: u64) -> usize {
        let good = |f: &&Fed| f.sending == Sending::Log && f.heard.elapsed().as_secs() <= max_lag_s;
        self.feeds.lock().values().filter(good).count()
    }

    /// Why a write must be refused now, if it must.
    #[inline]
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        // The turn has begun before: either the gate is shut for it, or who has shut it waits for its end.
        match self.gate.load(SeqCst) {
            0 => None,
            gate => Some(refusal_text(gate)),
        }
    }

    /// Replicas in step of which this is true.
    pub(crate) fn count(&self, has: impl Fn(&Fed) -> bool) -> usize {
        self.feeds.lock().values().filter(|f| f.sending == Sending::Log && has(f)).count()
    }

    /// The replicas that have said where they can be reached: Sentinel would remember any other address for ever.
    pub(crate) fn feeds(&self) -> Vec<Fed> {
        self.feeds.lock().values().filter(|f| f.port != 0).cloned().collect()
    }

    /// A feed begins; false if there are `most` already.
    pub(crate) fn admit_feed(&self, client: u64, peer: IpAddr, most: usize) -> bool {
        let mut feeds = self.feeds.lock();
        if feeds.len() >= most {
            return false;
        }
        let fed = Fed {
            ip: peer.to_string(),
            port: 0,
            sending: Sending::Nothing,
            written: 0,
            durable: 0,
            heard: Instant::now(),
        };
        feeds.insert(client, fed);
        true
    }

    /// True if WAIT may be over for somebody.
    pub(crate) fn update_feed(&self, client: u64, peer: &replication::Peer, heard: Instant) -> bool {
        let mut feeds = self.feeds.lock();
        let Some(fed) = feeds.get_mut(&client) else { return false };
        if !peer.ip.is_empty() {
            fed.ip.clone_from(&peer.ip);
        }
        let now = (peer.sending, peer.written, peer.durable);
        let grown = (fed.sending, fed.written, fed.durable) != now;
        match (fed.sending, peer.sending) {
            (Sending::Nothing, Sending::Files) => _ = self.fed_files.fetch_add(1, Relaxed),
            (Sending::Nothing, Sending::Log) => _ = self.fed_log.fetch_add(1, Relaxed),
            _ => {}
        }
        (fed.port, fed.heard) = (peer.port, heard);
        (fed.sending, fed.written, fed.durable) = now;
        grown
    }

    pub(crate) fn end_feed(&self, client: u64) {
        self.feeds.lock().remove(&client);
    }

    /// From now on a restart of this node must not take it for granted that it is the master.
    pub(crate) fn note_replicated(&self, config: &Config) -> std::io::Result<()> {
        let mut role = self.role.lock();
        if !role.replicated {
            let next = Role { replicated: true, ..role.clone() };
            next.write(&config.durability.dir)?;
            *role = next;
        }
        Ok(())
    }
}

#[cold]
fn refusal_text(gate: u8) -> &'static str {
    match gate {
        1 => "READONLY You can't write against a read only replica.",
        2 => {
            "READONLY This master was started again and is fenced until its role is known: until Sentinel names it, a replica follows it where \
             there is no Sentinel, or REPLICAOF NO ONE."
        }
        3 => "NOREPLICAS Not enough good replicas to write.",
        _ => {
            "READONLY Sentinel has made another node the master: this one is fenced until Sentinel names it again, or makes it a replica, or \
             REPLICAOF NO ONE."
        }
    }
}

/// Milliseconds of a clock that never goes back.
pub(crate) fn now_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn master() -> (Replication, Config, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.durability.dir = folder.path().to_path_buf();
        let replication = Replication::new();
        assert!(replication.refusal().is_some(), "before the log is there");
        assert!(replication.settle(&config, true, 1));
        assert_eq!(replication.refusal(), None);
        (replication, config, folder)
    }

    /// The thread that owns the log obeys one order after the other, and may come to an end with one when the next has been given: what it has made
    /// of the log then is not what is wanted, and nothing may be written into it.
    #[test]
    fn only_who_has_obeyed_the_last_order_opens_the_gate() {
        let (replication, config, _folder) = master();
        let other = |port| Master { host: "127.0.0.1".to_owned(), port };
        let order = |to: Option<Master>| {
            assert!(replication.order(&config, to.clone(), false).unwrap());
            let kept = Role::read(&config.durability.dir).unwrap().map(|role| role.master);
            assert_eq!(kept, Some(to), "on the disk before anybody is told");
            assert!(replication.refusal().unwrap().starts_with("READONLY "));
            assert!(!replication.is_settled());
        };
        // It is a replica by now, and is to be a master.
        order(Some(other(1)));
        order(None);
        assert!(!replication.settle(&config, false, 1));
        assert!(!replication.is_settled());
        assert!(replication.refusal().is_some(), "the log is still a replica's");
        assert!(replication.settle(&config, true, 2));
        assert!(replication.is_settled());
        assert_eq!(replication.refusal(), None);
        // The other way round.
        order(Some(other(1)));
        assert!(replication.settle(&config, false, 2));
        order(None);
        order(Some(other(2)));
        assert!(!replication.settle(&config, true, 3));
        assert!(!replication.is_settled());
        assert!(replication.refusal().is_some(), "a master's log, of a node that is to be a replica");
        // Looking again changes nothing.
        replication.judge(&config);
        assert!(replication.refusal().is_some());
        assert!(replication.settle(&config, false, 3));
        assert!(replication.refusal().is_some());
    }

    /// Who looks whether a master may write, and is slow about it, must not open the gate of a replica.
    #[test]
    fn an_order_that_comes_while_somebody_looks_shuts_the_gate() {
        let (replication, mut config, _folder) = master();
        config.replication.min_replicas_to_write = 1;
        let counted = replication::Peer {
            ip: String::new(),
            port: 1,
            sending: Sending::Log,
            written: 0,
            durable: 0,
            heard_ms: 0,
        };
        assert!(replication.admit_feed(1, IpAddr::from([127, 0, 0, 1]), 1));
        replication.update_feed(1, &counted, Instant::now());
        let pause = || std::thread::sleep(std::time::Duration::from_millis(100));
        let feeds = replication.feeds.lock();
        std::thread::scope(|scope| {
            // It has to count the replicas, so it waits for us.
            scope.spawn(|| replication.judge(&config));
            pause();
            let other = Master { host: "127.0.0.1".to_owned(), port: 1 };
            scope.spawn(|| replication.order(&config, Some(other), false).unwrap());
            pause();
            drop(feeds);
        });
        assert!(replication.refusal().unwrap().contains("read only replica"));
    }

    /// A node with this role, after a start.
    fn started(role: Role) -> (Replication, Config, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.durability.dir = folder.path().to_path_buf();
        role.write(folder.path()).unwrap();
        let replication = Replication::new();
        replication.recall(&config).unwrap();
        replication.settle(&config, role.master.is_none(), 1);
        (replication, config, folder)
    }

    #[test]
    fn who_was_promoted_is_fenced_after_a_start_too() {
        let (replication, config, _folder) = started(Role { synced: true, ..Role::default() });
        assert!(replication.is_fenced() && replication.refusal().unwrap().contains("fenced"));
        replication.followed(&config);
        assert_eq!(replication.refusal(), None);
        let (replication, ..) = started(Role::default());
        assert_eq!(replication.refusal(), None, "it was always alone");
    }

    #[test]
    fn what_sentinels_have_said_is_known_after_a_start() {
        let (replication, config, folder) = started(Role { replicated: true, ..Role::default() });
        let kept = || Role::read(folder.path()).unwrap().unwrap().sentinel;
        replication.named(&config, true, 5, "this one");
        assert_eq!((replication.refusal(), kept()), (None, Some(5)));
        let again = Replication::new();
        again.recall(&config).unwrap();
        again.settle(&config, true, 2);
        again.followed(&config);
        again.named(&config, true, 4, "this one");
        assert!(again.refusal().unwrap().contains("fenced"), "a replica follows, and a Sentinel was away");
        again.named(&config, false, 6, "another one");
        assert!(again.refusal().unwrap().contains("fenced"));
        assert_eq!(kept(), Some(6));
        // An operator.
        assert!(!again.order(&config, None, false).unwrap());
        assert_eq!((again.refusal(), kept()), (None, None));
    }

    fn other(port: u16) -> Master {
        Master { host: "127.0.0.1".to_owned(), port }
    }

    #[test]
    fn who_gives_its_data_up_or_does_not_fit_is_not_to_be_promoted() {
        let master = Some(other(1));
        let (replication, config, folder) = started(Role { master, synced: true, ..Role::default() });
        let is_fit_after_a_start = || {
            let again = Replication::new();
            again.recall(&config).unwrap();
            again.is_fit()
        };
        assert!(replication.is_fit() && is_fit_after_a_start());
        replication.refuses(&config, &other(2));
        assert!(replication.is_fit(), "who is not its master any more says nothing");
        replication.refuses(&config, &other(1));
        assert!(!replication.is_fit() && !is_fit_after_a_start());
        replication.synced(&config);
        assert!(replication.is_fit() && is_fit_after_a_start());
        replication.refuses(&config, &other(1));
        assert!(replication.order(&config, Some(other(2)), false).unwrap());
        assert!(replication.is_fit() && is_fit_after_a_start(), "of another master nothing is known yet");
        replication.gives_up(&config).unwrap();
        assert!(!replication.is_fit());
        assert!(!Role::read(folder.path()).unwrap().unwrap().synced, "also after a start");
        replication.synced(&config);
        assert!(replication.is_fit());
    }

    #[test]
    fn a_master_that_is_to_follow_is_fit_once_it_has_met_its_master() {
        let was_replica = Role { synced: true, ..Role::default() };
        let (replication, config, folder) = started(was_replica.clone());
        assert!(replication.order(&config, Some(other(1)), false).unwrap());
        assert!(!replication.is_fit());
        let kept = || Role::read(folder.path()).unwrap().unwrap();
        assert!(!kept().synced && kept().replicated, "there are others, as a master's start must know");
        replication.synced(&config);
        assert!(replication.order(&config, Some(other(2)), false).unwrap());
        assert!(replication.is_fit(), "a replica that changes its master has a whole data set");

        for has_all in [false, true] {
            let (replication, config, _folder) = started(was_replica.clone());
            assert!(replication.hand_over(&config, other(1), has_all).unwrap());
            assert_eq!(replication.is_fit(), has_all);
        }
    }
}
