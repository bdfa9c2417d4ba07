//! CLUSTERX TRIM: a shard that has given slots away, or was split off another one, still has rows
//! of slots that are not its own. They are not served, but scans and counts show them, and they
//! take memory, until they are deleted, some at a time.
//!
//! Flags of these ids stay in their filters until their table is recycled: a filter cannot give
//! back the pairs of an id.

use crate::handlers::call::{Call, integer};
use crate::handlers::cluster::controller::refuse_alone;
use crate::handlers::counter::scan::step;
use crate::handlers::execute::but_unreadable;
use crate::handlers::redis::keys::MOST_KEYS;
use dataset::cold;
use dataset::engines::CounterSpace;
use node::cluster::slot::of_id;
use node::cluster::{Server, Topology};
use node::command::error::{Printable, Refusal, refuse};
use node::command::spec::Outcome;
use node::roles::node::Now;
use resp::Reply;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Rows that a call looks at.
const COUNT: u64 = 1000;

pub(crate) fn run(call: &mut Call<'_>) -> Outcome {
    refuse_alone(&call.node)?;
    let cursor = resp::natural(call.args.at(3)).ok_or_else(|| refuse!("ERR invalid cursor"))?;
    let most = match call.args.len() {
        4 => COUNT,
        6 if call.args.at(4).eq_ignore_ascii_case(b"count") => match integer(call.args.at(5))? {
            count @ 1.. => count.unsigned_abs().min(MOST_KEYS),
            _ => return Err(Refusal::SYNTAX),
        },
        _ => return Err(Refusal::SYNTAX),
    };
    let name = call.args.at(2).to_vec();
    call.answer_later(move |node, reply| trim(&name, cursor, most, node, reply))
}

/// The topology by which this node is the master of some slots: what it lacks there is foreign.
fn own_topology(node: Now<'_>) -> Result<Arc<Topology>, Refusal> {
    let topology = node.cluster.topology();
    let own = topology.ranges().iter().any(|(first, ..)| topology.server_of(*first) == Server::Own);
    if !own {
        return Err(refuse!("ERR this node is the master of no slots: all its rows are foreign"));
    }
    Ok(topology)
}

fn trim(name: &[u8], cursor: u64, most: u64, node: Now<'_>, reply: &mut Reply<'_>) -> Outcome {
    let Some(space) = node.engines().counter(name) else {
        return Err(refuse!("ERR no such counter space '{}'", Printable(name)));
    };
    let topology = own_topology(node)?;
    let mut foreign = Vec::new();
    let next = step(space, cursor, most, &mut |id| {
        if matches!(topology.server_of(of_id(id)), Server::Other(_)) {
            foreign.push(id);
        }
    })?;
    // Whether a row on the disk is there is read before it is deleted.
    if space.cold_end() > 0
        && let Ok(runtime) = Handle::try_current()
    {
        runtime.block_on(space.fetch(&foreign));
    }
    let deleted = delete(space, &foreign, &topology, node);
    cold::unpin();
    let deleted = deleted?;
    reply.array(2);
    reply.bulk(next.to_string().as_bytes());
    reply.count(deleted);
    Ok(())
}

/// Deletes rows that are foreign by this topology: how many there were.
fn delete(
    space: &CounterSpace,
    ids: &[u64],
    topology: &Topology,
    node: Now<'_>,
) -> Result<usize, Refusal> {
    let (mut deleted, mut all_read) = (0, Ok(()));
    for &id in ids {
        // A slot may come back, with another copy of its rows.
        if node.cluster.topology().version != topology.version || !node.replication.is_master() {
            return Err(refuse!("ERR the topology has changed: begin again"));
        }
        let gone = node.engines().drop_foreign_row(space, id);
        deleted += usize::from(but_unreadable(gone, &mut all_read)?);
    }
    all_read?;
    Ok(deleted)
}
