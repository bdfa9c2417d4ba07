//! Cluster state of a node: slots, the topology, and their persistence.
//!
//! A controller decides which node is a master, and sends complete, versioned topologies with
//! Kvrocks' CLUSTERX commands. A topology is durable before it is published. Older versions are
//! refused, so a stale controller or a delayed message cannot revert a change.

pub mod confirm;
pub mod file;
pub mod handover;
pub mod health;
pub mod sentinel;
pub mod slot;
pub mod topology;

use crate::command::error::{Refusal, refuse};
use crate::config::Config;
use arc_swap::ArcSwap;
use file::StoredState;
use parking_lot::Mutex;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tokio::time::Instant;
pub use topology::{Member, Role, Server, Topology};

/// Reason why a change failed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The change is invalid, or it conflicts with the current state.
    #[error("{0}")]
    Refused(String),
    /// The state cannot be persisted.
    #[error("cannot write the topology to the data folder: {0}")]
    Disk(#[from] io::Error),
}

impl From<ClusterError> for Refusal {
    fn from(error: ClusterError) -> Refusal {
        refuse!("ERR {error}")
    }
}

/// Lease that a HEARTBEAT has granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Election number under which the lease was granted.
    pub election: u64,
    /// Duration of the lease after each HEARTBEAT, in milliseconds.
    pub ms: u64,
}

/// Maximum duration of a lease: a day. A controller sends several HEARTBEATs per lease duration.
pub const MAX_LEASE_MS: u64 = 24 * 3600 * 1000;

/// Maximum time of CLUSTERX HOLD.
pub const MAX_HOLD_MS: u64 = 60_000;

/// Cluster state of a node.
#[derive(Default)]
pub struct Cluster {
    enabled: bool,
    now: ArcSwap<Topology>,
    lease: Mutex<Option<Lease>>,
    giving: AtomicBool,
    /// Health of the other nodes.
    pub health: health::Health,
    /// Number of requests sent to other nodes for their part of a client's request.
    pub asked: AtomicU64,
    /// Number of requests to other nodes that failed because of a timeout or a missing connection.
    pub unanswered: AtomicU64,
    /// Serializes changes to the cluster state, including the write to disk.
    changing: Mutex<()>,
    /// Locked during a hand-over of slots to replicas.
    pub handing: tokio::sync::Mutex<()>,
    /// Locked while other nodes are asked to confirm a topology.
    pub confirming: Mutex<()>,
    /// Token and deadline of CLUSTERX HOLD.
    current_hold: Mutex<Option<(Vec<u8>, Instant)>>,
}

impl Cluster {
    /// Creates the state of an empty node.
    pub fn new(config: &Config) -> Cluster {
        Cluster { enabled: config.cluster.enabled, ..Cluster::default() }
    }

    /// Whether cluster mode is enabled.
    #[inline]
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Returns the current topology.
    pub fn topology(&self) -> Arc<Topology> {
        self.now.load_full()
    }

    /// Returns the lease, or `None` before the first HEARTBEAT.
    pub fn lease(&self) -> Option<Lease> {
        *self.lease.lock()
    }

    /// Restores the state at startup.
    pub fn recall(&self, dir: &Path) -> io::Result<()> {
        if !self.enabled {
            return Ok(());
        }
        let Some(stored) = StoredState::read(dir)? else { return Ok(()) };
        self.now.store(Arc::new(stored.topology));
        self.giving.store(stored.giving, SeqCst);
        *self.lease.lock() = (stored.election > 0)
            .then_some(Lease { election: stored.election, ms: stored.lease_ms });
        Ok(())
    }

    /// Replaces the topology if `next` returns a new topology. The new topology is durable when
    /// this function returns. Returns whether the topology changed.
    pub fn change(
        &self,
        dir: &Path,
        next: impl FnOnce(&Topology) -> Result<Option<Topology>, String>,
    ) -> Result<bool, ClusterError> {
        self.replace(dir, false, next)
    }

    /// Sets the node's id. With `only_first` the function does not replace an existing id, since a
    /// concurrent command may already have announced that id to other nodes.
    pub fn set_own_id(&self, dir: &Path, id: &str, only_first: bool) -> Result<bool, ClusterError> {
        self.change(dir, |now| match now.own_id.as_str() {
            own if own == id => Ok(None),
            own if only_first && !own.is_empty() => {
                Err(format!("this node already has the id {own}, send the command again"))
            }
            _ => Ok(Some(now.with_own_id(id))),
        })
    }

    /// Like [`Cluster::change`], for a master that gives slots away. [`Cluster::gave`] records the
    /// end of the hand-over.
    pub fn give(
        &self,
        dir: &Path,
        next: impl FnOnce(&Topology) -> Result<Option<Topology>, String>,
    ) -> Result<bool, ClusterError> {
        self.replace(dir, true, next)
    }

    fn replace(
        &self,
        dir: &Path,
        gives: bool,
        next: impl FnOnce(&Topology) -> Result<Option<Topology>, String>,
    ) -> Result<bool, ClusterError> {
        let _one = self.changing.lock();
        let now = self.now.load();
        let next = next(&now).map_err(ClusterError::Refused)?;
        let Some(topology) = next else { return Ok(false) };
        let giving = gives || topology.version == now.version && self.giving.load(SeqCst);
        StoredState { giving, ..self.stored(&topology) }.write(dir)?;
        self.giving.store(giving, SeqCst);
        self.now.store(Arc::new(topology));
        Ok(true)
    }

    /// Returns true if this node has handed over slots and still waits for a new owner to confirm
    /// the topology.
    pub fn has_unconfirmed_handover(&self) -> bool {
        self.giving.load(SeqCst)
    }

    /// Records durably that all new owners know the topology of this version.
    pub fn gave(&self, dir: &Path, version: i64) -> Result<(), ClusterError> {
        let _one = self.changing.lock();
        let now = self.now.load();
        if now.version == version && self.giving.load(SeqCst) {
            StoredState { giving: false, ..self.stored(&now) }.write(dir)?;
            self.giving.store(false, SeqCst);
        }
        Ok(())
    }

    fn stored(&self, topology: &Topology) -> StoredState {
        let (election, lease_ms) = self.lease().map_or((0, 0), |lease| (lease.election, lease.ms));
        StoredState {
            topology: topology.clone(),
            election,
            lease_ms,
            giving: self.giving.load(SeqCst),
        }
    }

    /// CLUSTERX HOLD: reserves the cluster for the command with this token. Returns false if
    /// another command has reserved the cluster. If `time` is zero, releases the reservation. The
    /// hold is advisory and lost on restart. The hold prevents concurrent commands of two
    /// operators, but does not fence masters.
    pub fn hold(&self, token: &[u8], time: Duration) -> bool {
        let mut current_hold = self.current_hold.lock();
        let now = Instant::now();
        let is_other =
            current_hold.as_ref().is_some_and(|(other, end)| *end > now && other != token);
        if !is_other {
            *current_hold = (!time.is_zero()).then(|| (token.to_vec(), now + time));
        }
        !is_other
    }

    /// CLUSTERX SETNODES ... CHECK: tests whether [`Cluster::set_nodes`] would succeed, including
    /// the disk. Changes nothing.
    pub fn check_nodes(
        &self,
        dir: &Path,
        nodes: &Nodes<'_>,
        is_here: impl Fn(&str, u16) -> bool,
    ) -> Result<(), ClusterError> {
        let _one = self.changing.lock();
        let next = nodes.resolve(&self.now.load(), is_here).map_err(ClusterError::Refused)?;
        if let Some(next) = next {
            self.stored(&next).try_write(dir)?;
        }
        Ok(())
    }

    /// CLUSTERX SETNODES. Refuses an older version, and a different topology of the same version;
    /// an equal topology changes nothing. A node without an id finds its own line with `is_here`,
    /// which returns whether a host and port belong to this node. If several lines match, the node
    /// refuses the topology.
    pub fn set_nodes(
        &self,
        dir: &Path,
        nodes: &Nodes<'_>,
        is_here: impl Fn(&str, u16) -> bool,
    ) -> Result<bool, ClusterError> {
        self.change(dir, |now| nodes.resolve(now, is_here))
    }

    /// CLUSTERX HEARTBEAT: grants a lease. The election number is durable when this function
    /// returns. Refuses an older election.
    pub fn heartbeat(&self, dir: &Path, lease: Lease) -> Result<(), ClusterError> {
        let _one = self.changing.lock();
        let now = self.lease();
        match now {
            Some(now) if now.election > lease.election => {
                return Err(ClusterError::Refused(format!(
                    "election version mismatch: {} is older than {}",
                    lease.election, now.election
                )));
            }
            Some(now) if now == lease => return Ok(()),
            _ => {}
        }
        let stored = self.stored(&self.now.load());
        StoredState { election: lease.election, lease_ms: lease.ms, ..stored }.write(dir)?;
        *self.lease.lock() = Some(lease);
        Ok(())
    }

    /// Whether this node is a master without replicas in its topology. If so, no other node can
    /// serve its slots. During a hand-over the function returns false, because a controller may
    /// have assigned all slots to a replica that did not receive the topology.
    pub fn is_sole_owner(&self) -> bool {
        let topology = self.topology();
        !self.giving.load(SeqCst)
            && topology.leads()
            && topology.replicas(&topology.own_id).next().is_none()
    }

    /// CLUSTER RESET: discards all cluster state.
    pub fn reset(&self, dir: &Path) -> Result<(), ClusterError> {
        let _one = self.changing.lock();
        StoredState::default().write(dir)?;
        self.giving.store(false, SeqCst);
        self.now.store(Arc::default());
        *self.lease.lock() = None;
        Ok(())
    }
}

/// Arguments of CLUSTERX SETNODES.
pub struct Nodes<'a> {
    /// Lines in the format of CLUSTER NODES.
    pub text: &'a str,
    /// Version of the topology.
    pub version: i64,
    /// Option FORCE: replaces the current topology regardless of its version.
    pub forced: bool,
    /// Whether this node lacks data of its master. If so, only FORCE makes this node a master.
    pub lacks_data: bool,
}

impl Nodes<'_> {
    /// Returns the next topology, or `None` if it equals the current one.
    fn resolve(
        &self,
        now: &Topology,
        is_here: impl Fn(&str, u16) -> bool,
    ) -> Result<Option<Topology>, String> {
        let Nodes { text, version, forced, lacks_data } = *self;
        let next = if forced && version >= 0 {
            Topology::parse(text, version, &now.own_id)?
        } else {
            let Some(next) = taken(now, text, version)? else { return Ok(None) };
            next
        };
        next.check()?;
        // `is_here` may need DNS lookups, so it is called only if the node's id may change.
        let mut here = Vec::new();
        if now.own_id.is_empty() || forced {
            let members = next.members().iter();
            here.extend(members.filter(|member| is_here(&member.host, member.port)).take(2));
        }
        let own_id = match here[..] {
            [member] => Some(member.id.clone()),
            // Several lines match, so the operator must set the node's id first.
            [one, other] if now.own_id.is_empty() => {
                return Err(format!(
                    "Invalid cluster nodes info: nodes {} and {} both have an address of this \
                     node. Set its id first with CLUSTERX SETNODEID",
                    one.id, other.id
                ));
            }
            _ => None,
        };
        let next = match own_id {
            Some(id) => next.with_own_id(&id),
            None => next,
        };
        if next.leads() && lacks_data && !forced {
            return Err(
                "this replica's copy of its master's data is incomplete, and promoting it would \
                 lose data. Use SETNODES ... FORCE to promote it anyway"
                    .to_owned(),
            );
        }
        Ok(Some(next))
    }
}

/// Returns the next topology, or `None` if it equals the current one. Fails if the current topology
/// has the same version and different contents.
fn taken(now: &Topology, text: &str, version: i64) -> Result<Option<Topology>, String> {
    if version < 0 || version < now.version {
        return Err(topology::VERSION.to_owned());
    }
    let next = Topology::parse(text, version, &now.own_id)?;
    if version > now.version {
        return Ok(Some(next));
    }
    if next.agrees_with(now) {
        return Ok(None);
    }
    Err(format!("{}: this node has a different topology {version}", topology::VERSION))
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::tests::{id, two_shards};

    fn cluster() -> Cluster {
        Cluster { enabled: true, ..Cluster::default() }
    }

    fn nodes(text: &str, version: i64, forced: bool) -> Nodes<'_> {
        Nodes { text, version, forced, lacks_data: false }
    }

    #[test]
    fn an_older_version_is_refused_also_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let set = |cluster: &Cluster, version, forced| {
            cluster
                .set_nodes(dir, &nodes(&two_shards(), version, forced), |_, port| port == 7003)
                .map_err(|error| error.to_string())
        };
        let first = cluster();
        assert_eq!(set(&first, 7, false), Ok(true));
        assert_eq!(first.topology().own_id, id('c'), "the node with its address");
        let again = cluster();
        again.recall(dir).unwrap();
        assert_eq!(again.topology(), first.topology());
        for cluster in [&first, &again] {
            assert_eq!(set(cluster, 7, false), Ok(false), "the same topology changes nothing");
            let other = two_shards().replace("5461 5463-16383", "5463-16383");
            let told = |forced| {
                let told = cluster.set_nodes(dir, &nodes(&other, 7, forced), |_, _| false);
                told.map_err(|error| error.to_string())
            };
            let refused = "Invalid cluster version: this node has a different topology 7";
            assert_eq!(
                told(false),
                Err(refused.to_owned()),
                "two different topologies of one version"
            );
            let check = |text: &str, version| {
                cluster.check_nodes(dir, &nodes(text, version, false), |_, _| false)
            };
            assert_eq!(check(&other, 7).unwrap_err().to_string(), refused);
            let lines: Vec<_> = two_shards().lines().rev().map(str::to_owned).collect();
            assert!(check(&lines.join("\n"), 7).is_ok(), "in another order");
            assert!(check(&other, 8).is_ok());
            assert_eq!(cluster.topology().version, 7, "CHECK changes nothing");
            assert_eq!(set(cluster, 6, false), Err("Invalid cluster version".to_owned()));
            assert_eq!(set(cluster, -1, true), Err("Invalid cluster version".to_owned()));
        }
        assert_eq!(set(&again, 6, true), Ok(true));
        assert_eq!(again.topology().version, 6);
        let nothing = std::path::Path::new("/proc/nothing");
        let tried = again.check_nodes(nothing, &nodes(&two_shards(), 8, false), |_, _| false);
        assert!(matches!(tried, Err(ClusterError::Disk(_))));
        let failed = again.set_nodes(nothing, &nodes(&two_shards(), 8, false), |_, _| false);
        assert!(matches!(failed, Err(ClusterError::Disk(_))));
        assert_eq!(again.topology().version, 6, "an unsaved topology is not published");
    }

    #[test]
    fn node_without_own_id_refuses_a_topology_of_several_nodes() {
        let (folder, cluster) = (tempfile::tempdir().unwrap(), cluster());
        let (dir, text) = (folder.path(), two_shards());
        let set = |version, forced| {
            let set = cluster.set_nodes(dir, &nodes(&text, version, forced), |_, _| true);
            set.map_err(|error| error.to_string())
        };
        let refused = |forced| set(1, forced).unwrap_err();
        assert!(refused(false).contains("SETNODEID") && refused(true).contains("SETNODEID"));
        assert!(cluster.check_nodes(dir, &nodes(&text, 1, false), |_, _| true).is_err());
        assert_eq!(cluster.topology().version, -1, "the failed change has no effect");
        cluster.set_own_id(dir, &id('c'), false).unwrap();
        assert_eq!(set(1, false), Ok(true));
        assert_eq!(set(1, true), Ok(true));
        assert_eq!(cluster.topology().own_id, id('c'), "the node keeps its id");
    }

    #[test]
    fn a_node_without_an_id_in_no_line_takes_the_topology() {
        let (folder, cluster) = (tempfile::tempdir().unwrap(), cluster());
        let (dir, text) = (folder.path(), two_shards());
        assert!(cluster.set_nodes(dir, &nodes(&text, 1, false), |_, _| false).unwrap());
        assert_eq!((cluster.topology().version, cluster.topology().own()), (1, None));
    }

    #[test]
    fn a_node_that_lacks_data_is_made_a_master_by_force_only() {
        for (own_port, leads) in [(7003, true), (7002, false)] {
            let (folder, cluster) = (tempfile::tempdir().unwrap(), cluster());
            let (dir, text) = (folder.path(), two_shards());
            let here = |_: &str, port| port == own_port;
            let of = |forced| Nodes { lacks_data: true, ..nodes(&text, 1, forced) };
            let set = |forced| cluster.set_nodes(dir, &of(forced), here);
            assert_eq!(cluster.check_nodes(dir, &of(false), here).is_err(), leads);
            assert!(cluster.check_nodes(dir, &of(true), here).is_ok());
            assert_eq!(set(false).is_err(), leads);
            assert_eq!(cluster.topology().version == 1, !leads);
            assert!(set(true).unwrap());
        }
    }

    #[test]
    fn master_giving_slots_away_waits_until_others_know() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let again = || {
            let cluster = cluster();
            cluster.recall(dir).unwrap();
            cluster.is_sole_owner()
        };
        let alone = |version| {
            let text = format!("{} h 1 master - 0-99\n", id('a'));
            Topology::parse(&text, version, &id('a'))
        };
        let cluster = cluster();
        cluster.change(dir, |_| alone(1).map(Some)).unwrap();
        assert!(cluster.is_sole_owner() && again());
        cluster.give(dir, |_| alone(2).map(Some)).unwrap();
        assert!(!cluster.is_sole_owner() && !again());
        cluster.heartbeat(dir, Lease { election: 1, ms: 5 }).unwrap();
        cluster.change(dir, |now| Ok(Some(now.with_own_id(&id('a'))))).unwrap();
        cluster.gave(dir, 1).unwrap();
        assert!(!cluster.is_sole_owner() && !again(), "the hand-over is still in progress");
        cluster.gave(dir, 2).unwrap();
        assert!(cluster.is_sole_owner() && again());
        assert_eq!(cluster.lease(), Some(Lease { election: 1, ms: 5 }));
        cluster.give(dir, |_| alone(3).map(Some)).unwrap();
        cluster.change(dir, |_| alone(4).map(Some)).unwrap();
        assert!(cluster.is_sole_owner() && again(), "a later topology ends the hand-over");
    }

    #[test]
    fn one_command_holds_the_cluster_at_a_time() {
        let cluster = cluster();
        let minute = Duration::from_secs(60);
        assert!(cluster.hold(b"a", minute) && cluster.hold(b"a", minute));
        assert!(!cluster.hold(b"b", minute) && !cluster.hold(b"b", Duration::ZERO));
        assert!(!cluster.hold(b"b", minute), "another command cannot end the hold");
        assert!(cluster.hold(b"a", Duration::ZERO) && cluster.hold(b"b", Duration::from_nanos(1)));
        assert!(cluster.hold(b"a", minute), "the hold has expired");
    }

    #[test]
    fn an_older_election_is_refused_also_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let first = cluster();
        first.heartbeat(dir, Lease { election: 5, ms: 1000 }).unwrap();
        first.change(dir, |now| Ok(Some(now.with_own_id(&id('a'))))).unwrap();
        let again = cluster();
        again.recall(dir).unwrap();
        for cluster in [&first, &again] {
            assert_eq!(cluster.lease(), Some(Lease { election: 5, ms: 1000 }));
            let older = cluster.heartbeat(dir, Lease { election: 4, ms: 1000 }).unwrap_err();
            assert!(older.to_string().contains("election version mismatch"), "{older}");
            assert!(cluster.heartbeat(dir, Lease { election: 5, ms: 1000 }).is_ok());
        }
        again.reset(dir).unwrap();
        let empty = cluster();
        empty.recall(dir).unwrap();
        assert_eq!((empty.topology(), empty.lease()), (Arc::default(), None));
    }
}
