//! Applies the role that the topology assigns to this node.

use crate::commands::replication::{ensure_all_logged, order};
use node::cluster::Role;
use node::command::error::refuse;
use node::command::spec::Outcome;
use node::roles::node::Node;
use node::roles::{Master, Order};
use std::time::Duration;

/// Refuses commands that require cluster mode.
pub(crate) fn require_cluster(node: &Node) -> Outcome {
    if !node.cluster.is_enabled() {
        return Err(refuse!("ERR Cluster mode is not enabled"));
    }
    Ok(())
}

/// Adopts the role that the topology assigns. First waits until no worker uses an older topology. A
/// node outside the topology keeps its role and owns no slot. `is_news` is true if the topology has
/// changed; only a changed topology allows a fenced master to accept writes again. If `gives_up`, a
/// replica discards its data, which may belong to another shard, and fetches its new master's data.
pub(crate) fn obey(node: &Node, is_news: bool, gives_up: bool) -> Outcome {
    node.wait_for_turns();
    let topology = node.cluster.topology();
    let master = match topology.own_role() {
        Some(Role::Master) => None,
        Some(Role::ReplicaOf(at)) => Some(Master { host: at.host.clone(), port: at.port }),
        None => return Ok(()),
    };
    let was_replica = !node.replication.is_master();
    let gives_up = gives_up && was_replica && master.is_some();
    let is_same = node.replication.master() == master && !gives_up;
    if is_same && !(is_news && node.replication.is_fenced()) {
        return Ok(());
    }
    if master.is_some() {
        ensure_all_logged(node)?;
    }
    order(node, Order { master: master.clone(), forced: gives_up, ..Order::default() })?;
    match master {
        Some(master) => tracing::info!("replica of {master} by topology {}", topology.version),
        None => {
            tracing::info!("master by topology {}", topology.version);
            // The topology may be outdated. A HEARTBEAT must therefore also confirm that this node
            // is the master.
            if node.cluster.lease().is_some() && was_replica {
                node.replication.lease(&node.config(), Duration::ZERO, false);
            }
        }
    }
    Ok(())
}
