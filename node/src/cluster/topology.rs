//! Topology: the master of each slot and the replicas of each master. A topology is immutable and
//! has a version; each change creates a new topology.
//!
//! The text of a topology has a line per node, as in Kvrocks' CLUSTERX SETNODES and in the data
//! folder:
//!
//! ```text
//!   <id> <host> <port> master - [<slot>|<first>-<last> ...]
//!   <id> <host> <port> slave <id of its master>
//! ```

use crate::cluster::slot::{self, SLOTS};
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

/// Length of a node's id, in bytes.
pub const ID_BYTES: usize = 40;
/// Maximum number of nodes. The limit bounds the memory that a client of CLUSTERX can allocate.
pub const MAX_NODES: usize = 2_000;
/// Maximum length of a topology's text, in bytes.
pub const MAX_TOPOLOGY_BYTES: usize = 1 << 20;
/// Maximum length of a host name, in bytes.
const MAX_HOST_BYTES: usize = 255;

const NO_NODE: u16 = u16::MAX;
const _: () = assert!(MAX_NODES < NO_NODE as usize);

/// Error text of Kvrocks for an invalid topology.
const NODES_INFO: &str = "Invalid cluster nodes info";
/// Error of Kvrocks for an invalid id.
pub const NODE_ID: &str = "Invalid cluster node id";
/// Error of Kvrocks for an outdated version.
pub const VERSION: &str = "Invalid cluster version";
const OUT_OF_RANGE: &str = "Slot is out of range";

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Id of 40 characters.
    pub id: String,
    /// Host for clients and other nodes.
    pub host: String,
    /// Port for clients and other nodes.
    pub port: u16,
    /// Id of its master, or `None` for a master.
    pub master: Option<String>,
}

impl Member {
    /// Returns `host:port`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Returns the node's line in a topology's text. `slots` lists the slots of a master, each with
    /// a leading space.
    pub fn line(&self, slots: &str) -> String {
        let Member { id, host, port, master } = self;
        match master {
            None => format!("{id} {host} {port} master -{slots}\n"),
            Some(master) => format!("{id} {host} {port} slave {master}\n"),
        }
    }
}

/// Node that serves a slot, from the point of view of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server<'a> {
    /// This node, as a master.
    Own,
    /// This node's master; this node can serve reads.
    OwnMaster(&'a Member),
    /// The master of another shard.
    Other(&'a Member),
    /// No node serves the slot.
    None,
}

/// Role of this node in its topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role<'a> {
    /// This node is a master.
    Master,
    /// This node is a replica of the given node.
    ReplicaOf(&'a Member),
}

impl Server<'_> {
    /// Whether this node answers requests for the slot. `may_read` returns whether a replica may
    /// answer the current request.
    pub fn is_here(self, may_read: impl FnOnce() -> bool) -> bool {
        match self {
            Server::Own => true,
            Server::OwnMaster(_) => may_read(),
            Server::Other(_) | Server::None => false,
        }
    }
}

/// Topology of a cluster. A topology is immutable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Version; -1 if there is no topology yet.
    pub version: i64,
    /// Id of this node; empty if it has none yet.
    pub own_id: String,
    members: Vec<Member>,
    /// Index of the master of each slot, or [`NO_NODE`].
    slots: Box<[u16; SLOTS as usize]>,
    /// Indexes of this node and its master; [`NO_NODE`] if not in the topology. For a master both
    /// are equal.
    own: u16,
    own_master: u16,
}

impl Default for Topology {
    fn default() -> Topology {
        Topology {
            version: -1,
            own_id: String::new(),
            members: Vec::new(),
            slots: Box::new([NO_NODE; SLOTS as usize]),
            own: NO_NODE,
            own_master: NO_NODE,
        }
    }
}

/// Whether a text is a valid node id.
pub fn is_id(id: &str) -> bool {
    id.len() == ID_BYTES && id.bytes().all(|b| b.is_ascii_graphic())
}

impl Topology {
    /// Parses a topology for the node with this id. Errors have the texts of Kvrocks.
    pub fn parse(text: &str, version: i64, own_id: &str) -> Result<Topology, String> {
        let mut next = Topology { version, own_id: own_id.to_owned(), ..Topology::default() };
        for line in text.split('\n').filter(|line| !line.is_empty()) {
            next.add(line)?;
        }
        if next.members.is_empty() {
            return Err(NODES_INFO.to_owned());
        }
        let mut ids = HashSet::new();
        if !next.members.iter().all(|member| ids.insert(&member.id)) {
            return Err(NODES_INFO.to_owned());
        }
        next.find_own();
        Ok(next)
    }

    /// Refuses two nodes at one address and replicas of replicas.
    pub fn check(&self) -> Result<(), String> {
        let replicas = self.members.iter().filter(|member| member.master.is_some());
        let replicas: HashSet<&str> = replicas.map(|member| member.id.as_str()).collect();
        let mut addresses = HashSet::new();
        for member in &self.members {
            if !addresses.insert((&member.host, member.port)) {
                return Err(format!("{NODES_INFO}: two nodes are at {}", member.address()));
            }
            if member.master.as_ref().is_some_and(|id| replicas.contains(id.as_str())) {
                return Err(format!("{NODES_INFO}: {} is a replica of a replica", member.id));
            }
        }
        Ok(())
    }

    /// Whether this node has become a replica of a master that belonged to another shard in
    /// `before`. Returns false if `before` does not know the master.
    pub fn joins_another_shard(&self, before: &Topology) -> bool {
        let shard_of = |id: &str| {
            let member = before.members.iter().find(|member| member.id == id)?;
            Some(member.master.clone().unwrap_or_else(|| member.id.clone()))
        };
        let own = shard_of(&self.own_id);
        let master = self.own_master().and_then(|master| shard_of(&master.id));
        own.zip(master).is_some_and(|(own, master)| own != master)
    }

    /// Adds the node of one line.
    fn add(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [id, host, port, role, master, slots @ ..] = &words[..] else {
            return Err(NODES_INFO.to_owned());
        };
        if self.members.len() >= MAX_NODES {
            return Err(format!("{NODES_INFO}: too many nodes, the limit is {MAX_NODES}"));
        }
        if !is_id(id) {
            return Err(NODE_ID.to_owned());
        }
        if host.len() > MAX_HOST_BYTES || !host.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(NODES_INFO.to_owned());
        }
        let port = port.parse().ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| "Invalid cluster node port".to_owned())?;
        let is_master = role.eq_ignore_ascii_case("master");
        if !is_master
            && !role.eq_ignore_ascii_case("slave")
            && !role.eq_ignore_ascii_case("replica")
        {
            return Err("Invalid cluster node role".to_owned());
        }
        if if is_master { *master != "-" } else { !is_id(master) } {
            return Err(NODE_ID.to_owned());
        }
        if !is_master && !slots.is_empty() {
            return Err(NODES_INFO.to_owned());
        }
        let number = self.members.len() as u16;
        self.members.push(Member {
            id: (*id).to_owned(),
            host: (*host).to_owned(),
            port,
            master: (!is_master).then(|| (*master).to_owned()),
        });
        slots.iter().try_for_each(|word| self.assign(word, number))
    }

    /// Assigns free slots to a node.
    fn assign(&mut self, word: &str, number: u16) -> Result<(), String> {
        if is_id(word) && word.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(
                "Invalid nodes definition: Missing newline between node entries.".to_owned()
            );
        }
        for (first, last) in slot::parse_ranges(word).map_err(|_| OUT_OF_RANGE.to_owned())? {
            for of in &mut self.slots[usize::from(first)..=usize::from(last)] {
                if *of != NO_NODE {
                    return Err("Slot distribution is overlapped".to_owned());
                }
                *of = number;
            }
        }
        Ok(())
    }

    /// Returns the next version, with these slots assigned to node `id`.
    pub fn with_slots(
        &self,
        ranges: &[(u16, u16)],
        id: &str,
        version: i64,
    ) -> Result<Topology, String> {
        // The caller's change is based on the current topology, so it must carry the next version.
        if version <= 0 || Some(version) != self.version.checked_add(1) {
            return Err(VERSION.to_owned());
        }
        let at = self.position(id).ok_or_else(|| "No this node in the cluster".to_owned())?;
        if self.members[usize::from(at)].master.is_some() {
            return Err("The node isn't a master".to_owned());
        }
        let mut next = Topology { version, ..self.clone() };
        for &(first, last) in ranges {
            next.slots[usize::from(first)..=usize::from(last)].fill(at);
        }
        Ok(next)
    }

    /// Returns the topology for the node with this id.
    pub fn with_own_id(&self, id: &str) -> Topology {
        let mut next = Topology { own_id: id.to_owned(), ..self.clone() };
        next.find_own();
        next
    }

    fn find_own(&mut self) {
        self.own = self.position(&self.own_id).unwrap_or(NO_NODE);
        self.own_master = match self.own().and_then(|own| own.master.as_deref()) {
            Some(master) => self.position(master).unwrap_or(NO_NODE),
            None => self.own,
        };
    }

    fn position(&self, id: &str) -> Option<u16> {
        self.members.iter().position(|member| member.id == id).map(|at| at as u16)
    }

    fn member(&self, at: u16) -> Option<&Member> {
        self.members.get(usize::from(at))
    }

    /// Returns this node, if it is in the topology.
    pub fn own(&self) -> Option<&Member> {
        self.member(self.own)
    }

    /// Number of versions between `before` and this topology, if this node is a master in both;
    /// otherwise 0.
    pub fn skipped(&self, before: &Topology) -> u64 {
        let next = before.version.saturating_add(1).min(self.version);
        if before.leads() && self.leads() { self.version.abs_diff(next) } else { 0 }
    }

    /// Whether this node is a master.
    pub fn leads(&self) -> bool {
        self.own().is_some_and(|own| own.master.is_none())
    }

    /// Returns the role of this node. Returns `None` if the node or its master is not in the
    /// topology. The node then keeps its role.
    pub fn own_role(&self) -> Option<Role<'_>> {
        match self.own()?.master {
            None => Some(Role::Master),
            Some(_) => self.own_master().map(Role::ReplicaOf),
        }
    }

    /// Returns this node's master, if it is a replica.
    pub fn own_master(&self) -> Option<&Member> {
        self.member(self.own_master).filter(|_| self.own_master != self.own)
    }

    /// Returns the masters of all shards.
    pub fn masters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.master.is_none())
    }

    /// Returns all nodes.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the replicas of a node.
    pub fn replicas<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a Member> {
        self.members.iter().filter(move |member| member.master.as_deref() == Some(id))
    }

    /// Returns the node that serves a slot.
    #[inline]
    pub fn server_of(&self, slot: u16) -> Server<'_> {
        let at = self.slots[usize::from(slot % SLOTS)];
        let Some(member) = self.member(at) else { return Server::None };
        if at == self.own {
            Server::Own
        } else if at == self.own_master {
            Server::OwnMaster(member)
        } else {
            Server::Other(member)
        }
    }

    /// Returns the index of a slot's master in [`Topology::members`].
    #[inline]
    pub fn number_of(&self, slot: u16) -> Option<usize> {
        let at = usize::from(self.slots[usize::from(slot % SLOTS)]);
        (at < self.members.len()).then_some(at)
    }

    /// Returns the slots of a node, in ascending order.
    pub fn slots_of(&self, id: &str) -> Vec<u16> {
        let Some(at) = self.position(id) else { return Vec::new() };
        (0..SLOTS).filter(|&slot| self.slots[usize::from(slot)] == at).collect()
    }

    /// Returns ranges of slots with their masters, in ascending order, without unassigned slots.
    pub fn ranges(&self) -> Vec<(u16, u16, &Member)> {
        let mut ranges = Vec::new();
        let mut first = 0;
        for run in self.slots.chunk_by(|a, b| a == b) {
            let last = first + (run.len() - 1) as u16;
            ranges.extend(self.member(run[0]).map(|member| (first, last, member)));
            first = last.wrapping_add(1);
        }
        ranges
    }

    /// Number of slots with a master.
    pub fn assigned(&self) -> usize {
        self.slots.iter().filter(|of| **of != NO_NODE).count()
    }

    /// Whether both have the same version, nodes and slots, in any order.
    pub fn agrees_with(&self, other: &Topology) -> bool {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<HashSet<_>>();
        self.version == other.version && lines(&self.describe()) == lines(&other.describe())
    }

    /// Returns the text of the topology.
    pub fn describe(&self) -> String {
        let mut of_master: HashMap<&str, String> = HashMap::new();
        for (first, last, member) in self.ranges() {
            let _ = write!(
                of_master.entry(member.id.as_str()).or_default(),
                " {}",
                slot::write_range(first, last)
            );
        }
        let slots = |member: &Member| of_master.get(member.id.as_str()).map_or("", String::as_str);
        self.members.iter().map(|member| member.line(slots(member))).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn id(letter: char) -> String {
        letter.to_string().repeat(ID_BYTES)
    }

    pub(crate) fn two_shards() -> String {
        let (a, b, c) = (id('a'), id('b'), id('c'));
        format!(
            "{a} 127.0.0.1 7001 master - 0-5460 5462\n{b} 127.0.0.1 7002 slave {a}\n\
             {c} 127.0.0.1 7003 master - 5461 5463-16383\n"
        )
    }

    #[test]
    fn a_topology_reads_back_and_says_who_serves() {
        let topology = Topology::parse(&two_shards(), 7, &id('b')).unwrap();
        assert_eq!(topology.describe(), two_shards());
        assert_eq!(Topology::parse(&topology.describe(), 7, &id('b')), Ok(topology.clone()));
        assert_eq!(topology.assigned(), 16_384);
        assert!(matches!(topology.server_of(5462), Server::OwnMaster(m) if m.port == 7001));
        assert!(matches!(topology.server_of(16_383), Server::Other(m) if m.port == 7003));
        let master = topology.with_own_id(&id('a'));
        assert_eq!(master.server_of(0), Server::Own);
        let stranger = topology.with_own_id(&id('d'));
        assert!(stranger.own().is_none());
        assert!(matches!(stranger.server_of(0), Server::Other(m) if m.port == 7001));
        assert_eq!(Topology::default().server_of(0), Server::None);
    }

    #[test]
    fn two_nodes_at_one_address_and_rings_of_replicas_are_refused() {
        let (a, b, c) = (id('a'), id('b'), id('c'));
        let check = |text: &str| Topology::parse(text, 1, "").unwrap().check();
        assert_eq!(check(&two_shards()), Ok(()));
        for (text, why) in [
            (format!("{a} h 1 master -\n{b} h 1 master - 1"), "two nodes are at h:1".to_owned()),
            (format!("{a} h 1 slave {a}"), format!("{a} is a replica of a replica")),
            (
                format!("{c} h 1 master -\n{a} h 2 slave {b}\n{b} h 3 slave {c}"),
                format!("{a} is a replica of a replica"),
            ),
        ] {
            assert_eq!(check(&text), Err(format!("{NODES_INFO}: {why}")));
        }
    }

    #[test]
    fn moved_replica_is_distinguished_from_a_failover() {
        let (a, b, c) = (id('a'), id('b'), id('c'));
        let next = |master: &str, own: char| {
            let others = format!("{a} h 1 master -\n{c} h 3 master -\n");
            Topology::parse(&format!("{others}{b} h 2 slave {master}"), 8, &id(own)).unwrap()
        };
        let before = Topology::parse(&two_shards(), 7, &b).unwrap();
        assert!(next(&c, 'b').joins_another_shard(&before));
        assert!(!next(&a, 'b').joins_another_shard(&before));
        assert!(!next(&c, 'a').joins_another_shard(&before), "a master");
        assert!(!next(&c, 'b').joins_another_shard(&Topology::default()));
        let swapped = format!("{b} h 2 master -\n{a} h 1 slave {b}");
        let swapped = Topology::parse(&swapped, 8, &a).unwrap();
        assert!(!swapped.joins_another_shard(&before), "its own replica");
    }

    #[test]
    fn slots_move_one_version_at_a_time() {
        let topology = Topology::parse(&two_shards(), 7, &id('a')).unwrap();
        let moved = topology.with_slots(&[(0, 1), (9, 9)], &id('c'), 8).unwrap();
        assert!(matches!(moved.server_of(9), Server::Other(m) if m.port == 7003));
        assert_eq!((moved.server_of(2), moved.version), (Server::Own, 8));
        for (id, version, why) in [
            (id('c'), 7, VERSION),
            (id('c'), 9, VERSION),
            (id('d'), 8, "No this node in the cluster"),
            (id('b'), 8, "The node isn't a master"),
        ] {
            assert_eq!(topology.with_slots(&[(0, 1)], &id, version), Err(why.to_owned()));
        }
    }

    #[test]
    fn texts_that_are_none_are_refused_in_kvrocks_words() {
        let (a, b) = (id('a'), id('b'));
        for (text, why) in [
            (String::new(), NODES_INFO),
            (format!("{a} 127.0.0.1 7001 master"), NODES_INFO),
            (format!("{a} 127.0.0.1 7001 slave {b} 0"), NODES_INFO),
            (format!("{a} h 1 master - 0\n{a} h 2 master - 1"), NODES_INFO),
            (format!("{} h 1 master - 0", &a[1..]), NODE_ID),
            (format!("{a} h 1 master {b} 0"), NODE_ID),
            (format!("{a} h 1 slave -"), NODE_ID),
            (format!("{a} h x master - 0"), "Invalid cluster node port"),
            (format!("{a} h 0 master - 0"), "Invalid cluster node port"),
            (format!("{a} h 1 boss - 0"), "Invalid cluster node role"),
            (format!("{a} h 1 master - 16384"), OUT_OF_RANGE),
            (format!("{a} h 1 master - 5-1"), OUT_OF_RANGE),
            (
                format!("{a} h 1 master - 0-9\n{b} h 2 master - 9-10"),
                "Slot distribution is overlapped",
            ),
            (
                format!("{a} h 1 master - 0-9 {b} h 2 master - 10"),
                "Invalid nodes definition: Missing newline between node entries.",
            ),
        ] {
            assert_eq!(Topology::parse(&text, 1, ""), Err(why.to_owned()), "{text}");
        }
        let line = |n: usize| format!("{n:040} h 1 master -\n");
        let many: String = (0..MAX_NODES).map(line).collect();
        assert!(Topology::parse(&many, 1, "").is_ok());
        let why = Topology::parse(&(many + &line(MAX_NODES)), 1, "").unwrap_err();
        assert!(why.contains("too many nodes, the limit is 2000"), "{why}");
    }
}
