//! What all connections share.

use crate::clients::Clients;
use crate::config::Config;
use crate::durability::Durability;
use crate::engines::Engines;
use crate::snapshot::Snapshots;
use crate::stop::Stop;
use arc_swap::ArcSwap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A counter that one thread writes and others read now and then: a load and a store instead of a locked addition.
#[derive(Default)]
pub(crate) struct Tally(AtomicU64);

impl Tally {
    /// Only the owning worker may call this.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What one worker counts. Its own cache lines, so that workers do not slow each other down.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Tallies {
    pub(crate) commands: Tally,
    pub(crate) errors: Tally,
    pub(crate) bytes_in: Tally,
    pub(crate) bytes_out: Tally,
}

/// Sums of [`Tallies`].
#[derive(Default, Clone, Copy)]
pub(crate) struct Totals {
    pub(crate) commands: u64,
    pub(crate) errors: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}

/// Something that is there once the data are loaded. Until then the dispatcher lets only those commands through that do not ask.
pub(crate) struct Loaded<T>(OnceLock<T>);

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

    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        self.0.get()
    }
}

impl<T> Deref for Loaded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.get().expect("a command that asks for data is not admitted before they are loaded")
    }
}

/// What a process has once, whatever data set it serves.
pub(crate) struct Process {
    pub(crate) config: Config,
    pub(crate) clients: Clients,
    /// One per worker.
    pub(crate) tallies: Vec<Tallies>,
    pub(crate) stop: Stop,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) started: Instant,
    /// 40 hexadecimal digits, new with every start.
    pub(crate) run_id: String,
    /// Commands per second, measured over the last second.
    pub(crate) commands_per_s: AtomicU64,
}

/// A data set, and the process around it. A replica that takes over another data set gets a new node ([`Host`]).
pub(crate) struct Node {
    pub(crate) engines: Loaded<Engines>,
    pub(crate) store: Loaded<store::Store>,
    pub(crate) durability: Arc<Durability>,
    pub(crate) snapshots: Arc<Snapshots>,
    process: Arc<Process>,
}

impl Deref for Node {
    type Target = Process;

    #[inline]
    fn deref(&self) -> &Process {
        &self.process
    }
}

/// The process, and the node that it serves now. Whoever outlives a node holds this.
pub(crate) struct Host {
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
    pub(crate) fn new(mut config: Config, addresses: Vec<SocketAddr>, stop: Stop) -> Host {
        if config.server.workers == 0 {
            config.server.workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        }
        let mut random = fastrand::Rng::new();
        let process = Arc::new(Process {
            clients: Clients::default(),
            tallies: (0..config.server.workers).map(|_| Tallies::default()).collect(),
            stop,
            addresses,
            started: Instant::now(),
            run_id: (0..40).map(|_| char::from(b"0123456789abcdef"[random.usize(..16)])).collect(),
            commands_per_s: AtomicU64::new(0),
            config,
        });
        Host { node: ArcSwap::from_pointee(Node::new(process.clone())), process }
    }

    /// The node of this moment. It is not to be kept for long: the next one waits until nobody has it any more.
    pub(crate) fn node(&self) -> Arc<Node> {
        self.node.load_full()
    }
}

impl Node {
    fn new(process: Arc<Process>) -> Node {
        Node {
            engines: Loaded::default(),
            store: Loaded::default(),
            snapshots: Arc::default(),
            durability: Arc::new(Durability::new(process.config.durability.fsync)),
            process,
        }
    }

    /// Whether the data are there.
    #[inline]
    pub(crate) fn is_loaded(&self) -> bool {
        self.engines.get().is_some()
    }
}

impl Process {
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for tallies in &self.tallies {
            totals.commands += tallies.commands.get();
            totals.errors += tallies.errors.get();
            totals.bytes_in += tallies.bytes_in.get();
            totals.bytes_out += tallies.bytes_out.get();
        }
        totals
    }
}

/// Microseconds since 1970.
pub(crate) fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
