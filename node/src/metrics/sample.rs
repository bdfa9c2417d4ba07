//! Values shared by the metrics of one INFO or one scrape.

use super::metric::{self, Metric, Value};
use crate::roles::ReplicaLinkStatus;
use crate::roles::backup_state::Status;
use crate::roles::node::Node;
use crate::runtime::clients::Client;
use crate::runtime::counters::Totals;
use dataset::engines::{CounterSpace, ExistenceSpace};
use dataset::groups::GroupStats;
use dataset::live::SnapshotStatus;
use dataset::tokens::TokenStats;
use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use store::{CommitStats, Position};

/// Values read by one INFO or one scrape. Sums that several metrics need are computed once.
pub struct Sample {
    /// Node whose values are read.
    pub node: Arc<Node>,
    totals: OnceCell<Totals>,
    clients: OnceCell<Vec<Arc<Client>>>,
    commits: OnceCell<CommitStats>,
    positions: OnceCell<(Position, Position)>,
    saved: OnceCell<SnapshotStatus>,
    cold: OnceCell<ColdSums>,
    link: OnceCell<Option<ReplicaLinkStatus>>,
    backups: OnceCell<Status>,
    tokens: OnceCell<TokenStats>,
    damaged: OnceCell<Vec<(String, usize)>>,
}

/// Totals of cold data over all spaces.
#[derive(Clone, Copy, Default)]
pub(super) struct ColdSums {
    pub(super) files: u64,
    pub(super) rows: u64,
    pub(super) pairs: u64,
    pub(super) bytes: u64,
    pub(super) index_bytes: u64,
    pub(super) changed: u64,
    pub(super) overlay_bytes: u64,
    pub(super) deleted: u64,
    pub(super) late: u64,
}

impl Sample {
    /// Creates an empty sample.
    pub fn new(node: Arc<Node>) -> Sample {
        Sample {
            node,
            totals: OnceCell::new(),
            clients: OnceCell::new(),
            commits: OnceCell::new(),
            positions: OnceCell::new(),
            saved: OnceCell::new(),
            cold: OnceCell::new(),
            link: OnceCell::new(),
            backups: OnceCell::new(),
            tokens: OnceCell::new(),
            damaged: OnceCell::new(),
        }
    }

    pub(super) fn totals(&self) -> &Totals {
        self.totals.get_or_init(|| self.node.totals())
    }

    /// Returns the connected clients.
    pub fn clients(&self) -> &[Arc<Client>] {
        self.clients.get_or_init(|| self.node.clients.list())
    }

    pub(super) fn count_clients(&self, is_meant: impl Fn(&Client) -> bool) -> Value {
        self.clients().iter().filter(|client| is_meant(client)).count().into()
    }

    pub(super) fn commits(&self) -> &CommitStats {
        self.commits.get_or_init(|| self.node.durability.committer().stats())
    }

    pub(super) fn positions(&self) -> (Position, Position) {
        *self.positions.get_or_init(|| self.node.durability.positions())
    }

    /// Returns the newest snapshot.
    pub fn saved(&self) -> &SnapshotStatus {
        self.saved.get_or_init(|| self.node.snapshots.saved.borrow().clone())
    }

    /// Returns the state of backups.
    pub fn backups(&self) -> &Status {
        self.backups.get_or_init(|| self.node.backups.status())
    }

    /// Returns the state of the link to the master, or `None` on a master.
    pub(super) fn link(&self) -> Option<&ReplicaLinkStatus> {
        let replication = &self.node.replication;
        let link = || replication.master().map(|_| replication.link.lock().clone());
        self.link.get_or_init(link).as_ref()
    }

    pub(super) fn groups(&self) -> GroupStats {
        self.node.loaded().map(|engines| engines.groups.stats()).unwrap_or_default()
    }

    pub(super) fn tokens(&self) -> &TokenStats {
        let stats = || self.node.loaded().map(|engines| engines.tokens.stats());
        self.tokens.get_or_init(|| stats().unwrap_or_default())
    }

    pub(super) fn cold(&self) -> ColdSums {
        *self.cold.get_or_init(|| cold_sums(&self.node))
    }

    pub(super) fn of_counters(&self, of: impl Fn(&CounterSpace) -> u64) -> u64 {
        self.node.loaded().map_or(0, |engines| engines.counters().iter().map(of).sum())
    }

    pub(super) fn of_existences(&self, of: impl Fn(&ExistenceSpace) -> u64) -> u64 {
        self.node.loaded().map_or(0, |engines| engines.existences().iter().map(of).sum())
    }

    pub(super) fn figure(&self, of: fn(&dataset::cold::ColdStats) -> &AtomicU64) -> Value {
        let engines = self.node.loaded();
        engines.map_or(0, |engines| of(&engines.cold.figures).load(Relaxed)).into()
    }

    /// Returns the damaged cold files, and the number of damaged parts of each.
    pub fn damaged(&self) -> &[(String, usize)] {
        let files = || {
            let there = |name: &str| self.node.store.manifest().file(name).is_some();
            self.node.loaded().map(|engines| engines.cold.damaged.files(there)).unwrap_or_default()
        };
        self.damaged.get_or_init(files)
    }

    pub(super) fn cache(&self) -> (u64, u64) {
        self.node.loaded().map_or((0, 0), |engines| engines.cold.cache_bytes())
    }
}

fn cold_sums(node: &Node) -> ColdSums {
    let mut sums = ColdSums::default();
    let Some(engines) = node.loaded() else { return sums };
    for space in engines.counters() {
        sums.changed += space.changed_rows();
        sums.overlay_bytes += space.overlay_bytes();
        sums.deleted += space.tombstones().0;
        for file in space.cold().files().all() {
            sums.files += 1;
            sums.rows += file.head().rows;
            sums.bytes += file.entry().bytes;
            sums.index_bytes += file.memory_bytes() as u64;
        }
    }
    for space in engines.existences() {
        sums.late += space.late().0 as u64;
        for file in &*space.cold().files() {
            sums.files += 1;
            sums.pairs += file.pairs();
            sums.bytes += file.entry().bytes;
            sums.index_bytes += file.memory_bytes() as u64;
        }
    }
    sums
}

/// Memory used by a connection, excluding its buffers, in bytes: its task and its entry in the
/// client list.
pub const CONNECTION_BYTES: usize = 8 << 10;

/// Returns the memory used by a client's buffers, in bytes.
pub fn buffer_bytes(client: &Client) -> usize {
    let of_worker = [&client.query_bytes, &client.output_bytes, &client.queued_bytes];
    of_worker.iter().map(|bytes| bytes.load(Relaxed)).sum::<usize>()
        + client.inbox.waiting()
        + client.kept_bytes.load(Relaxed)
}

pub(super) type SampleMetric = Metric<Sample>;
pub(super) type Read = fn(&Sample) -> Value;

/// Declares a metric with the same value as a field of INFO.
pub(super) const fn field(
    field: &'static str,
    kind: metric::MetricKind,
    name: &'static str,
    help: &'static str,
    read: Read,
) -> SampleMetric {
    Metric::new(field, kind, name, help, read)
}

/// Declares a metric without a field of INFO.
pub(super) const fn metric_without_field(
    kind: metric::MetricKind,
    name: &'static str,
    help: &'static str,
    read: Read,
) -> SampleMetric {
    Metric::new("", kind, name, help, read)
}
