//! What all connections share.

use crate::acl::Acl;
use crate::cluster::Cluster;
use crate::command::error::Refusal;
use crate::config::Config;
use crate::roles::Replication;
use crate::roles::backup_state::Backups;
use crate::runtime::clients::Clients;
use crate::runtime::command_stats::AllCalls;
use crate::runtime::counters::{LongestTurns, Rates, Tallies, Totals};
use crate::runtime::ingest::Ingests;
use crate::runtime::monitors::Monitors;
use crate::runtime::open_files::allowed_clients;
use crate::runtime::pause::{Pause, Paused};
use crate::runtime::pubsub::Channels;
use crate::runtime::settings::{SetError, Settings};
use crate::runtime::shutdown::Stop;
use crate::runtime::slowlog::SlowLog;
use crate::runtime::tls::Tls;
use crate::runtime::tracking::Tracking;
use arc_swap::{ArcSwap, Guard};
use dataset::catalogue::Catalogue;
use dataset::changes::ChangeLog;
use dataset::commit::Durability;
use dataset::engines::{Current, Engines};
use dataset::live::{Live, Snapshots};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How often a long change looks whether changes are still paused.
const PAUSE_POLL_INTERVAL: Duration = Duration::from_millis(1);
const NOT_LOADED: &str = "a command that asks for data is not admitted before they are loaded";

/// Something that is there once the data are loaded. Until then the dispatcher lets only those
/// commands through that do not ask.
pub struct Loaded<T>(OnceLock<T>);

impl<T> Default for Loaded<T> {
    fn default() -> Self {
        Loaded(OnceLock::new())
    }
}

impl<T> Loaded<T> {
    /// From now on it is there.
    pub(crate) fn fill(&self, value: T) {
        assert!(self.0.set(value).is_ok(), "data are loaded once");
    }

    /// What was loaded; none before.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.0.get()
    }
}

impl<T> Deref for Loaded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.get().expect(NOT_LOADED)
    }
}

/// What a process has once, whatever data set it serves.
pub struct Process {
    /// Its configuration as it is now.
    pub settings: Settings,
    /// Connected clients.
    pub clients: Clients,
    /// Subscriptions to channels and patterns.
    pub channels: Channels,
    /// CLIENT PAUSE.
    pub pause: Pause,
    /// Users.
    pub acl: Acl,
    /// Clients of MONITOR.
    pub monitors: Monitors,
    /// Keys that clients cache.
    pub tracking: Arc<Tracking>,
    /// Slow commands, and events with their latencies.
    pub slow: SlowLog,
    /// Its role.
    pub replication: Replication,
    /// Its cluster, if it is a node of one.
    pub cluster: Cluster,
    /// Backups that it makes.
    pub backups: Backups,
    /// Sources of events.
    pub ingest: Ingests,
    /// Its certificates.
    pub tls: Tls,
    /// One per worker.
    pub tallies: Vec<Tallies>,
    /// Locked for reading by [`Node::begin_long_change`].
    pub(crate) long_changes: RwLock<()>,
    /// Only a worker changes its tallies, so a reset notes where they stood.
    totals_base: Mutex<Totals>,
    /// Calls of each command.
    pub calls: AllCalls,
    /// Whether it is to stop.
    pub stop: Stop,
    /// Where it listens.
    pub addresses: Vec<SocketAddr>,
    /// Where metrics and the dashboard are served, if they are.
    pub admin: OnceLock<SocketAddr>,
    /// Since when it runs.
    pub started: Instant,
    /// 40 hexadecimal digits, new with every start.
    pub run_id: String,
    /// Operations and bytes per second.
    pub rates: Rates,
    /// How long the turns of its workers took.
    pub turns: LongestTurns,
}

/// A data set, and the process around it. A replica that takes over another data set gets a new
/// node ([`Host`]).
pub struct Node {
    /// Which of the process's nodes it is.
    pub generation: u64,
    /// Its spaces, views and actions. Work asks once for those of one moment: [`Node::moment`].
    pub current: Loaded<Current>,
    /// Its files.
    pub store: Loaded<store::Store>,
    /// The log's commits, and whether they work.
    pub durability: Arc<Durability>,
    /// Snapshots of it.
    pub snapshots: Arc<Snapshots>,
    /// What is known of where changes lie in the log.
    pub changes: ChangeLog,
    process: Arc<Process>,
}

impl Deref for Node {
    type Target = Process;

    #[inline]
    fn deref(&self) -> &Process {
        &self.process
    }
}

/// A node with its engines as they are at one moment: what one turn of a worker sees, or one piece
/// of work.
#[derive(Clone, Copy)]
pub struct Now<'a> {
    node: &'a Arc<Node>,
    engines: Option<&'a Engines>,
}

impl Deref for Now<'_> {
    type Target = Arc<Node>;

    #[inline]
    fn deref(&self) -> &Arc<Node> {
        self.node
    }
}

impl<'a> Now<'a> {
    /// `engines`: none before the data are loaded.
    #[inline]
    pub fn new(node: &'a Arc<Node>, engines: Option<&'a Engines>) -> Now<'a> {
        Now { node, engines }
    }

    /// The engines. The dispatcher lets only those commands through before they are loaded that do
    /// not ask.
    #[inline]
    pub fn engines(&self) -> &'a Engines {
        self.engines.expect(NOT_LOADED)
    }

    /// The same, if they are there.
    #[inline]
    pub fn loaded(&self) -> Option<&'a Engines> {
        self.engines
    }

    /// The node, whose engines may be others at the next moment.
    #[inline]
    pub fn node(&self) -> &'a Arc<Node> {
        self.node
    }
}

/// [`Now`] for work that takes its time: what was dropped meanwhile is in memory until it ends.
pub struct Moment {
    node: Arc<Node>,
    engines: Option<Arc<Engines>>,
}

impl Moment {
    /// To work with it.
    pub fn now(&self) -> Now<'_> {
        Now::new(&self.node, self.engines.as_deref())
    }
}

/// The process, and the node that it serves now. Code that outlives a node holds this.
pub struct Host {
    process: Arc<Process>,
    node: ArcSwap<Node>,
}

impl Deref for Host {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl Host {
    /// A process before its data are loaded.
    pub fn new(config: Config, addresses: Vec<SocketAddr>, stop: Stop) -> Host {
        let workers = match config.server.workers {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            workers => workers,
        };
        let mut random = fastrand::Rng::new();
        let process = Arc::new(Process {
            clients: Clients::default(),
            channels: Channels::default(),
            pause: Pause::default(),
            acl: Acl::default(),
            monitors: Monitors::default(),
            tracking: Arc::default(),
            slow: SlowLog::default(),
            replication: Replication::new(),
            cluster: Cluster::new(&config),
            backups: Backups::default(),
            ingest: Ingests::new(&config.ingest),
            tls: Tls::default(),
            long_changes: RwLock::default(),
            tallies: (0..workers).map(|_| Tallies::default()).collect(),
            totals_base: Mutex::default(),
            calls: AllCalls::new(workers),
            stop,
            addresses,
            admin: OnceLock::new(),
            started: Instant::now(),
            run_id: (0..40).map(|_| char::from(b"0123456789abcdef"[random.usize(..16)])).collect(),
            rates: Rates::default(),
            turns: LongestTurns::default(),
            settings: Settings::new(config),
        });
        process.tracking.configure(&process.config());
        Host { node: ArcSwap::from_pointee(Node::new(0, process.clone())), process }
    }

    /// Another node, empty, takes the place of this one.
    pub(crate) fn replace_node(&self) {
        let generation = self.node.load().generation + 1;
        self.node.store(Arc::new(Node::new(generation, self.process.clone())));
    }

    /// A node without threads, sockets and files, for tests of what needs none.
    ///
    /// # Panics
    /// If the configuration's spaces contradict each other.
    pub fn alone(config: &Config) -> Arc<Node> {
        let node = Host::new(config.clone(), Vec::new(), Stop::new()).node();
        let options = config.data_set();
        let catalogue = Catalogue::default().completed(&options);
        let engines = Engines::new(&options, &catalogue, node.durability.clone());
        node.fill(engines.expect("spaces that agree"));
        let disk = Arc::new(store::SimDisk::new(1));
        let store = store::Store::open(disk, store::StoreOptions::default());
        node.store.fill(store.expect("an empty disk"));
        node.replication.settle(config, true, 0);
        node
    }

    /// The node of this moment, for one turn: the guard is not to be kept across a wait.
    #[inline]
    pub fn now(&self) -> Guard<Arc<Node>> {
        self.node.load()
    }

    /// The node of this moment. It is not to be kept for long: the next one waits until no thread
    /// holds it any more.
    pub fn node(&self) -> Arc<Node> {
        self.node.load_full()
    }
}

impl Node {
    fn new(generation: u64, process: Arc<Process>) -> Node {
        Node {
            generation,
            current: Loaded::default(),
            store: Loaded::default(),
            snapshots: Arc::default(),
            changes: ChangeLog::default(),
            durability: Arc::new(Durability::new(process.config().durability.fsync)),
            process,
        }
    }

    /// The process around it, for tasks that may outlive the node.
    pub fn process(&self) -> Arc<Process> {
        self.process.clone()
    }

    /// From now on the data are there.
    pub fn fill(&self, mut engines: Engines) {
        engines.tracking = self.tracking.listener();
        self.current.fill(Current::new(engines));
        // Clients stay connected though the node before this one had other data.
        if self.tracking.any() {
            self.tracking.all_changed();
        }
    }

    /// Users' rules follow where spaces have other names than in `before`.
    pub fn follow_renames(&self, before: &Catalogue) {
        let now = self.current.catalogue();
        let renamed = now.renamed_since(before);
        let stays = |name: &str| {
            now.view.iter().any(|view| view.name == name)
                || now.action.iter().any(|action| action.name == name)
        };
        if !renamed.is_empty() && self.acl.follow_renames(&renamed, &stays) {
            self.settings.touch();
        }
    }

    /// The data set as work in the background sees it; none while it is loaded.
    pub fn live<'a>(&'a self, is_stopped: &'a (dyn Fn() -> bool + Sync)) -> Option<Live<'a>> {
        let spill = &self.config().spill;
        Some(Live {
            current: self.current.get()?,
            store: &self.store,
            durability: &self.durability,
            snapshots: &self.snapshots,
            max_cold_bytes: spill.max_bytes,
            merge_bytes_per_s: spill.merge_bytes_per_s,
            scrub_bytes_per_s: spill.scrub_bytes_per_s,
            is_stopped,
        })
    }

    /// As it is now, for work that takes its time.
    pub fn moment(self: &Arc<Node>) -> Moment {
        Moment { node: self.clone(), engines: self.loaded() }
    }

    /// The engines as they are now; none before the data are loaded.
    pub fn loaded(&self) -> Option<Arc<Engines>> {
        self.current.get().map(Current::load)
    }

    /// The same, once they are.
    pub fn engines(&self) -> Arc<Engines> {
        self.current.load()
    }

    /// Whether writers are to wait: [`Engines::is_spilling`].
    pub fn is_spilling(&self) -> bool {
        self.current.get().is_some_and(|current| current.now().is_spilling())
    }

    /// Whether the data are there.
    #[inline]
    pub fn is_loaded(&self) -> bool {
        self.current.get().is_some()
    }

    /// Why a write must be refused now, if it must. First what the disk says, as in Redis: of a
    /// node that is to be a master and cannot begin its log, too.
    #[inline]
    pub fn refusal(&self) -> Option<Refusal> {
        if let Some(text) = self.durability.refusal() {
            return Some(Refusal::new(text.into_bytes()));
        }
        self.replication.refusal().map(|text| Refusal::new(text.as_bytes().to_vec()))
    }

    /// Begins a change of many parts that a thread other than a worker makes. A new role, a
    /// FAILOVER and a hand-over of slots wait until the guard is dropped, so they find all of it or
    /// nothing. Waits while changes are paused. An error: the node takes no changes.
    pub fn begin_long_change(&self) -> Result<RwLockReadGuard<'_, ()>, Refusal> {
        loop {
            let guard = self.long_changes.read();
            let is_paused = self.pause.now() != Paused::Nothing;
            if is_paused && self.stop.is_stopped() {
                return Err(Refusal::fixed(b"ERR the server is ending"));
            }
            if !is_paused {
                return self.refusal().map_or(Ok(guard), Err);
            }
            drop(guard);
            store::time::sleep(PAUSE_POLL_INTERVAL);
        }
    }

    /// Makes a changed configuration take effect where copies of it are held. An error: then
    /// nothing changes.
    pub fn apply(&self, before: &Config, after: &Config, certificates: bool) -> Result<(), String> {
        let wanted = after.server.max_clients;
        let allowed = allowed_clients(wanted);
        if wanted > before.server.max_clients && allowed < wanted {
            return Err(format!(
                "The operating system is not able to handle the specified number of clients, try \
                 with {allowed}"
            ));
        }
        if certificates {
            self.tls.configure(&after.tls)?;
        }
        if before.security.password != after.security.password {
            self.acl.set_default_password(&after.security.password)?;
        }
        self.acl.log.lock().most = after.security.acl_log_entries;
        self.clients.budget.set_most(after.server.max_clients_memory_bytes);
        self.tracking.configure(after);
        if let Some(engines) = self.loaded() {
            engines.limit_kept(&after.data_set());
        }
        self.durability.set_policy(after.durability.fsync);
        self.replication.judge(after);
        Ok(())
    }
}

impl Process {
    /// Of all threads that make changes: each says whether it is in a turn.
    pub(crate) fn turns(&self) -> impl Iterator<Item = &AtomicU64> {
        self.tallies.iter().chain([&self.ingest.tallies]).map(|tallies| &tallies.turn)
    }

    /// Waits until every worker, and ingest, has ended the turn that it may have been in, and every
    /// long change has ended: whatever was decided before this call is seen by all changes after
    /// it.
    pub fn wait_for_turns(&self) {
        for turn in self.turns() {
            let seen = turn.load(SeqCst);
            while seen % 2 == 1 && turn.load(SeqCst) == seen {
                store::time::sleep(Duration::from_micros(50));
            }
        }
        drop(self.long_changes.write());
    }

    /// The configuration as it is now. Do not keep the guard across a wait.
    #[inline]
    pub fn config(&self) -> Guard<Arc<Config>> {
        self.settings.now()
    }

    /// SIGHUP: reads the certificates again, as CONFIG SET of a key of `[tls]` does. If they cannot
    /// be read, those that there are stay.
    pub fn reload_certificates(&self) {
        let refused = |why| SetError::Refused { name: "tls".to_owned(), why };
        let read = |_: &Config, now: &Config| self.tls.configure(&now.tls).map_err(refused);
        match self.settings.change(|_| Ok(()), read) {
            Ok(()) => tracing::info!("SIGHUP: the TLS certificates are read again"),
            // Without the words of CONFIG SET.
            Err(SetError::Refused { why, .. }) => {
                tracing::error!("SIGHUP: the TLS certificates stay as they are: {why}");
            }
            Err(error) => {
                tracing::error!("SIGHUP: the TLS certificates stay as they are: {error}");
            }
        }
    }

    /// How many other nodes of its cluster have failed, as this one finds.
    pub fn cluster_failed(&self) -> usize {
        let timeout_ms = self.config().cluster.node_timeout_ms;
        self.cluster.health.failed(dataset::clock::unix_ms(), timeout_ms)
    }

    /// The port of the first listening socket.
    pub fn port(&self) -> u16 {
        self.addresses.first().map_or(0, SocketAddr::port)
    }

    /// What the workers have counted since the start, or since CONFIG RESETSTAT.
    pub fn totals(&self) -> Totals {
        let (all, base) = (self.totals_ever(), *self.totals_base.lock());
        Totals {
            commands: all.commands.wrapping_sub(base.commands),
            errors: all.errors.wrapping_sub(base.errors),
            bytes_in: all.bytes_in.wrapping_sub(base.bytes_in),
            bytes_out: all.bytes_out.wrapping_sub(base.bytes_out),
            hits: all.hits.wrapping_sub(base.hits),
            misses: all.misses.wrapping_sub(base.misses),
            link_bytes_in: all.link_bytes_in.wrapping_sub(base.link_bytes_in),
            link_bytes_out: all.link_bytes_out.wrapping_sub(base.link_bytes_out),
        }
    }

    /// CONFIG RESETSTAT.
    pub fn reset_totals(&self) {
        *self.totals_base.lock() = self.totals_ever();
        self.clients.accepted.store(0, Relaxed);
        self.clients.rejected.store(0, Relaxed);
        self.clients.ended.reset();
        self.calls.reset();
    }

    fn totals_ever(&self) -> Totals {
        let mut totals = Totals::default();
        for tallies in &self.tallies {
            totals.commands += tallies.commands.get();
            totals.errors += tallies.errors.get();
            totals.bytes_in += tallies.bytes_in.get();
            totals.bytes_out += tallies.bytes_out.get();
            totals.hits += tallies.hits.get();
            totals.misses += tallies.misses.get();
        }
        let feeds = &self.replication.feeds;
        totals.link_bytes_in = feeds.bytes_in.load(Relaxed);
        totals.link_bytes_out = feeds.bytes_out.load(Relaxed);
        totals
    }
}
