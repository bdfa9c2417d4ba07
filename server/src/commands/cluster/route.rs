//! Routing by slots: determines whether this node serves a request. Errors use Redis's texts.

use crate::session::Session;
use dataset::engines::Engines;
use node::cluster::slot::{of_id, of_key, tag_of};
use node::cluster::{Server, Topology};
use node::command::error::{Printable, Refusal, refuse};
use node::command::footprint::{Footprint, Placed};
use node::command::spec::{Outcome, Spec};
use node::roles::node::Now;
use resp::Args;

pub(super) const CROSS_SLOT: Refusal =
    Refusal::fixed(b"CROSSSLOT Keys in request don't hash to the same slot");

/// Determines which node serves a request, or all requests of a transaction.
pub(crate) struct Router<'a> {
    topology: &'a Topology,
    /// Whether a replica serves reads of this client (READONLY).
    reads_here: bool,
    first: Option<u16>,
    is_parted: bool,
    /// Whether the ids belong to several slots. `are_all_here` is true if this node serves all of
    /// these slots, and `share_node` if a single node does.
    spans_slots: bool,
    are_all_here: bool,
    share_node: bool,
    untagged_refusal: Option<Refusal>,
}

impl<'a> Router<'a> {
    pub(crate) fn new(topology: &'a Topology, session: &Session, node: Now<'_>) -> Router<'a> {
        Router {
            topology,
            reads_here: reads_replica(session, node),
            first: None,
            is_parted: false,
            spans_slots: false,
            are_all_here: true,
            share_node: true,
            untagged_refusal: None,
        }
    }

    pub(crate) fn add(&mut self, spec: &Spec, args: Args<'_>, engines: &Engines) {
        let changes = spec.may_write(args);
        Footprint::new(spec, args, engines).placed(|placed| match placed {
            Placed::Id(id) => self.place(of_id(id), false, changes),
            Placed::Key(key) => match untagged(key) {
                Some(refusal) => _ = self.untagged_refusal.get_or_insert(refusal),
                None => self.place(of_key(key), true, changes),
            },
        });
    }

    fn place(&mut self, slot: u16, is_key: bool, changes: bool) {
        let server = self.topology.server_of(slot);
        self.are_all_here &= server.is_here(|| self.reads_here && !changes);
        let first = *self.first.get_or_insert(slot);
        if first != slot {
            self.is_parted |= is_key;
            self.spans_slots = true;
            self.share_node &= self.topology.server_of(first) == server;
        }
    }

    /// Returns a refusal unless this node serves all keys added so far.
    pub(crate) fn outcome(self) -> Outcome {
        if let Some(refusal) = self.untagged_refusal {
            return Err(refusal);
        }
        let Some(slot) = self.first else { return Ok(()) };
        // As in Redis, this is refused even if one node owns all slots, because the slots may later
        // move to different nodes.
        if self.is_parted {
            return Err(CROSS_SLOT);
        }
        if self.are_all_here {
            return Ok(());
        }
        if self.spans_slots && !self.share_node {
            return Err(CROSS_SLOT);
        }
        match self.topology.server_of(slot) {
            Server::None => Err(refuse!("CLUSTERDOWN Hash slot not served")),
            Server::OwnMaster(at) | Server::Other(at) => {
                Err(refuse!("MOVED {slot} {}:{}", at.host, at.port))
            }
            // A transaction may combine reads and writes.
            Server::Own => Ok(()),
        }
    }
}

/// Returns whether this node serves the client's reads as a replica.
pub(crate) fn reads_replica(session: &Session, node: Now<'_>) -> bool {
    session.reads_replica && has_masters_data(node)
}

/// Returns whether this replica has the data of the master that the topology assigns. A replica
/// that lacks this data would miss rows, or return rows of another shard. The data stays valid
/// while the link is down.
pub(crate) fn has_masters_data(node: Now<'_>) -> bool {
    let (topology, replication) = (node.cluster.topology(), &node.replication);
    // The topology changes before the node's role changes. With Sentinel, the master may appear
    // under another name.
    let is_ordered = || {
        let told = replication.master();
        let at = topology.own_master().map(|at| (at.host.as_str(), at.port));
        told.as_ref().map(|told| (told.host.as_str(), told.port)) == at
    };
    replication.is_fit()
        && replication.has_synced_with_master()
        && (is_ordered() || !node.config().shard.is_empty())
}

/// Returns the error for a key whose slot would differ from the slot of its id.
fn untagged(key: &[u8]) -> Option<Refusal> {
    let padded = |tag: &[u8]| tag.len() > 1 && tag[0] == b'0' && tag.iter().all(u8::is_ascii_digit);
    match tag_of(key) {
        None => Some(refuse!(
            "ERR Invalid key '{}': in cluster mode the id of a key must be in braces, as in \
             post:{{1001}}",
            Printable(key)
        )),
        Some(tag) if padded(tag) => Some(refuse!(
            "ERR Invalid key '{}': in cluster mode an id must not have leading zeros",
            Printable(key)
        )),
        Some(_) => None,
    }
}
