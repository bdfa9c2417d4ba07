//! The node and its process: the state that all connections share.
//!
//! A [`Process`] exists once. A [`Node`] is one data set within the process; a full sync replaces
//! the node. The [`Host`] holds the process and the current node. An event-loop iteration of a
//! worker loads the engines once, so that a change of the catalogue does not affect the iteration
//! midway ([`Now`], [`OwnedView`]).

use crate::acl::Acl;
use crate::cluster::Cluster;
use crate::command::error::Refusal;
use crate::config::Config;
use crate::roles::Replication;
use crate::roles::audit_state::Audits;
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

/// Poll interval of [`Node::begin_long_change`] while changes are paused.
const PAUSE_POLL_INTERVAL: Duration = Duration::from_millis(1);
const NOT_LOADED: &str = "commands that need the data set are rejected while loading";

/// A value that is available after the data are loaded. Until then, the dispatcher rejects commands
/// that need the value.
pub struct LoadedOnce<T>(OnceLock<T>);

impl<T> Default for LoadedOnce<T> {
    fn default() -> Self {
        LoadedOnce(OnceLock::new())
    }
}

impl<T> LoadedOnce<T> {
    pub(crate) fn fill(&self, value: T) {
        assert!(self.0.set(value).is_ok(), "the data set loads once");
    }

    /// Returns the value, or `None` before the data are loaded.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.0.get()
    }
}

impl<T> Deref for LoadedOnce<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.get().expect(NOT_LOADED)
    }
}

/// State that outlives a data set.
pub struct Process {
    /// Current configuration.
    pub settings: Settings,
    /// Connected clients.
    pub clients: Clients,
    /// Subscriptions to channels and patterns.
    pub channels: Channels,
    /// Commands that are paused by CLIENT PAUSE or by a role change.
    pub pause: Pause,
    /// Users and their rules.
    pub acl: Acl,
    /// Clients of MONITOR.
    pub monitors: Monitors,
    /// Keys that clients cache (CLIENT TRACKING).
    pub tracking: Arc<Tracking>,
    /// State of SLOWLOG and LATENCY.
    pub slow: SlowLog,
    /// Replication state: role, master and replicas.
    pub replication: Replication,
    /// State of the cluster; disabled on a standalone server.
    pub cluster: Cluster,
    /// Running and finished backups.
    pub backups: Backups,
    /// Audits under way or finished.
    pub audits: Audits,
    /// Event sources.
    pub ingest: Ingests,
    /// TLS certificates.
    pub tls: Tls,
    /// Counters of each worker.
    pub tallies: Vec<Tallies>,
    /// Lock that [`Node::begin_long_change`] holds for reading.
    pub(crate) long_changes: RwLock<()>,
    /// Values of the workers' counters at the last CONFIG RESETSTAT. The counters themselves are
    /// not reset, because only their worker writes them.
    totals_base: Mutex<Totals>,
    /// Statistics of each command.
    pub calls: AllCalls,
    /// Handle that stops the server.
    pub stop: Stop,
    /// Addresses of the listening sockets.
    pub addresses: Vec<SocketAddr>,
    /// Address of the metrics and dashboard server, if enabled.
    pub admin: OnceLock<SocketAddr>,
    /// Time at which the process started.
    pub started: Instant,
    /// Random identifier of this run, 40 hexadecimal digits.
    pub run_id: String,
    /// Commands and bytes per second.
    pub rates: Rates,
    /// Longest event-loop iterations of the workers.
    pub turns: LongestTurns,
}

/// A data set and its process. A replica that replaces its data set gets a new node ([`Host`]).
pub struct Node {
    /// Number of nodes that this process had before.
    pub generation: u64,
    /// Spaces, views and actions. Code that needs a consistent set calls [`Node::moment`] once.
    pub current: LoadedOnce<Current>,
    /// Files of the data set.
    pub store: LoadedOnce<store::Store>,
    /// Commits of the log, and their errors.
    pub durability: Arc<Durability>,
    /// Running and finished snapshots.
    pub snapshots: Arc<Snapshots>,
    /// Index of changes by log offset.
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

/// A node with its engines at one point in time, for one event-loop iteration of a worker.
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
    /// Creates a view. `engines` is `None` before the data are loaded.
    #[inline]
    pub fn new(node: &'a Arc<Node>, engines: Option<&'a Engines>) -> Now<'a> {
        Now { node, engines }
    }

    /// Returns the engines. Before the data are loaded, the dispatcher rejects commands that need
    /// the engines.
    ///
    /// # Panics
    /// If the data are not loaded.
    #[inline]
    pub fn engines(&self) -> &'a Engines {
        self.engines.expect(NOT_LOADED)
    }

    /// Returns the engines, or `None` before the data are loaded.
    #[inline]
    pub fn loaded(&self) -> Option<&'a Engines> {
        self.engines
    }

    /// Returns the node itself, whose engines may change at any time.
    #[inline]
    pub fn node(&self) -> &'a Arc<Node> {
        self.node
    }
}

/// An owned [`Now`] for long operations. Engines replaced during the operation stay in memory until
/// it ends.
pub struct OwnedView {
    node: Arc<Node>,
    engines: Option<Arc<Engines>>,
}

impl OwnedView {
    /// Returns a [`Now`] that borrows from this view.
    pub fn now(&self) -> Now<'_> {
        Now::new(&self.node, self.engines.as_deref())
    }
}

/// The process and its current node. Code that outlives a node holds a `Host`.
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
    /// Creates a process whose data are not loaded.
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
            audits: Audits::default(),
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

    pub(crate) fn replace_node(&self) {
        let generation = self.node.load().generation + 1;
        self.node.store(Arc::new(Node::new(generation, self.process.clone())));
    }

    /// Creates a node without threads, sockets and files, for tests.
    ///
    /// # Panics
    /// If the configuration's spaces contradict each other.
    pub fn alone(config: &Config) -> Arc<Node> {
        let node = Host::new(config.clone(), Vec::new(), Stop::new()).node();
        let options = config.data_set();
        let catalogue = Catalogue::default().completed(&options);
        let engines = Engines::new(&options, &catalogue, node.durability.clone());
        node.fill(engines.expect("the spaces match"));
        let disk = Arc::new(store::SimDisk::new(1));
        let store = store::Store::open(disk, store::StoreOptions::default());
        node.store.fill(store.expect("the disk is empty"));
        node.replication.settle(config, true, 0);
        node
    }

    /// Returns the current node for one event-loop iteration. Do not hold the guard across a wait.
    #[inline]
    pub fn now(&self) -> Guard<Arc<Node>> {
        self.node.load()
    }

    /// Returns the current node. Release the reference promptly, because a replacement waits until
    /// no thread uses the old node.
    pub fn node(&self) -> Arc<Node> {
        self.node.load_full()
    }
}

impl Node {
    fn new(generation: u64, process: Arc<Process>) -> Node {
        Node {
            generation,
            current: LoadedOnce::default(),
            store: LoadedOnce::default(),
            snapshots: Arc::default(),
            changes: ChangeLog::default(),
            durability: Arc::new(Durability::new(process.config().durability.fsync)),
            process,
        }
    }

    /// Returns the process, for tasks that may outlive the node.
    pub fn process(&self) -> Arc<Process> {
        self.process.clone()
    }

    /// Publishes the loaded engines of this node.
    pub fn fill(&self, mut engines: Engines) {
        engines.tracking = self.tracking.listener();
        self.current.fill(Current::new(engines));
        // Clients stay connected across a full sync, so their caches may be stale.
        if self.tracking.any() {
            self.tracking.all_changed();
        }
    }

    /// Updates users' rules for spaces renamed since `before`.
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

    /// Returns the data set for background work, or `None` before the data are loaded.
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

    /// Returns an owned view of the current engines.
    pub fn moment(self: &Arc<Node>) -> OwnedView {
        OwnedView { node: self.clone(), engines: self.loaded() }
    }

    /// Returns the current engines, or `None` before the data are loaded.
    pub fn loaded(&self) -> Option<Arc<Engines>> {
        self.current.get().map(Current::load)
    }

    /// Returns the current engines.
    ///
    /// # Panics
    /// If the data are not loaded.
    pub fn engines(&self) -> Arc<Engines> {
        self.current.load()
    }

    /// Whether writers must wait: [`Engines::is_spilling`].
    pub fn is_spilling(&self) -> bool {
        self.current.get().is_some_and(|current| current.now().is_spilling())
    }

    /// Whether the data are loaded.
    #[inline]
    pub fn is_loaded(&self) -> bool {
        self.current.get().is_some()
    }

    /// Returns the error for writes, or `None` if they are accepted. As in Redis, a disk error
    /// takes precedence over an error of the role. The error of a new master that cannot begin its
    /// log also takes precedence.
    #[inline]
    pub fn refusal(&self) -> Option<Refusal> {
        if let Some(text) = self.durability.refusal() {
            return Some(Refusal::new(text.into_bytes()));
        }
        self.replication.refusal().map(|text| Refusal::new(text.as_bytes().to_vec()))
    }

    /// Begins a change that consists of several parts, on a thread other than a worker. A role
    /// change, a FAILOVER and a hand-over of slots wait until the guard is dropped, so they see all
    /// parts or none. Waits while changes are paused.
    ///
    /// # Errors
    /// If the node refuses writes or is shutting down.
    pub fn begin_long_change(&self) -> Result<RwLockReadGuard<'_, ()>, Refusal> {
        loop {
            let guard = self.long_changes.read();
            let is_paused = self.pause.now() != Paused::Nothing;
            if is_paused && self.stop.is_stopped() {
                return Err(Refusal::fixed(b"ERR the server is shutting down"));
            }
            if !is_paused {
                return self.refusal().map_or(Ok(guard), Err);
            }
            drop(guard);
            store::time::sleep(PAUSE_POLL_INTERVAL);
        }
    }

    /// Applies a changed configuration to the components that have copies of settings.
    ///
    /// # Errors
    /// If a value is refused. The configuration must then stay unchanged.
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
        self.clients.budget.set_limit_bytes(after.server.max_clients_memory_bytes);
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
    /// Returns the iteration counter of each thread that makes changes. A counter is odd during an
    /// iteration.
    pub(crate) fn turns(&self) -> impl Iterator<Item = &AtomicU64> {
        self.tallies.iter().chain([&self.ingest.tallies]).map(|tallies| &tallies.turn)
    }

    /// Waits until every worker and the ingest thread have finished their current iterations, and
    /// all long changes have ended. Every later change sees the state that the caller published
    /// before this call.
    pub fn wait_for_turns(&self) {
        for turn in self.turns() {
            let seen = turn.load(SeqCst);
            while seen % 2 == 1 && turn.load(SeqCst) == seen {
                store::time::sleep(Duration::from_micros(50));
            }
        }
        drop(self.long_changes.write());
    }

    /// Returns the current configuration. Do not hold the guard across a wait.
    #[inline]
    pub fn config(&self) -> Guard<Arc<Config>> {
        self.settings.now()
    }

    /// Reloads the certificates (SIGHUP). After an error the old certificates stay in use.
    pub fn reload_certificates(&self) {
        let refused = |why| SetError::Refused { name: "tls".to_owned(), why };
        let read = |_: &Config, now: &Config| self.tls.configure(&now.tls).map_err(refused);
        match self.settings.change(|_| Ok(()), read) {
            Ok(()) => tracing::info!("SIGHUP: reloaded the TLS certificates"),
            // Only this variant has the reason without the prefix "CONFIG SET failed".
            Err(SetError::Refused { why, .. }) => {
                tracing::error!("SIGHUP: keeping the old TLS certificates: {why}");
            }
            Err(error) => {
                tracing::error!("SIGHUP: keeping the old TLS certificates: {error}");
            }
        }
    }

    /// Number of other cluster nodes that this node considers failed.
    pub fn cluster_failed(&self) -> usize {
        let timeout_ms = self.config().cluster.node_timeout_ms;
        self.cluster.health.failed(dataset::clock::unix_ms(), timeout_ms)
    }

    /// Port of the first listening socket; 0 without a socket.
    pub fn port(&self) -> u16 {
        self.addresses.first().map_or(0, SocketAddr::port)
    }

    /// Returns the workers' totals since startup or the last CONFIG RESETSTAT.
    pub fn totals(&self) -> Totals {
        let (all, base) = (self.totals_since_start(), *self.totals_base.lock());
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

    /// Resets the statistics: CONFIG RESETSTAT.
    pub fn reset_totals(&self) {
        *self.totals_base.lock() = self.totals_since_start();
        self.clients.accepted.store(0, Relaxed);
        self.clients.rejected.store(0, Relaxed);
        self.clients.ended.reset();
        self.calls.reset();
    }

    fn totals_since_start(&self) -> Totals {
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
