//! The role that the topology gives to this node.

use crate::commands::replication::{all_logged, order};
use node::cluster::Role;
use node::command::error::refuse;
use node::command::spec::Outcome;
use node::roles::node::Node;
use node::roles::{Master, Order};
use std::time::Duration;

/// What of CLUSTER and CLUSTERX only a node of a cluster does.
pub(crate) fn refuse_alone(node: &Node) -> Outcome {
    if !node.cluster.is_enabled() {
        return Err(refuse!("ERR Cluster mode is not enabled"));
    }
    Ok(())
}

/// From now on no turn goes by an older topology, and this node becomes what that says
/// it is. A node that is not among its nodes stays what it is: no slot is its own. `is_news`: the
/// topology is later than the one that it had. That lifts the fence of a master; the same topology
/// told once more does not. `gives_up`: a replica has the data of another shard, and is to have
/// its new master's instead.
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
        all_logged(node)?;
    }
    order(node, Order { master: master.clone(), forced: gives_up, ..Order::default() })?;
    match master {
        Some(master) => tracing::info!("a replica of {master} by topology {}", topology.version),
        None => {
            tracing::info!("a master by topology {}", topology.version);
            // It may be an old message: a HEARTBEAT is to say so, too.
            if node.cluster.lease().is_some() && was_replica {
                node.replication.lease(&node.config(), Duration::ZERO, false);
            }
        }
    }
    Ok(())
}
