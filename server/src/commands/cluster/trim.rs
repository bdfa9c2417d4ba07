//! CLUSTERX TRIM and TRIMPAIRS: delete rows and pairs of slots that the shard no longer owns, after
//! slots were given away or the shard was split. Such rows and pairs are not served, but use memory
//! and appear in scans and counts.
//!
//! Rows are deleted through the log, as by DEL. Pairs are removed only from the ledger's files,
//! which are local to each node. The flags of these pairs stay in the filters until their table is
//! recycled, or is rebuilt from the ledger, because a filter cannot remove the pairs of an id.

use crate::commands::call::{Call, disk, integer};
use crate::commands::cluster::roles::require_cluster;
use crate::commands::counter::scan::{MOST_KEYS, parse_cursor, step};
use crate::commands::flags::phantom::no_ledger;
use crate::commands::unreadable::keep_first_unreadable;
use dataset::cold;
use dataset::engines::CounterSpace;
use dataset::tiering::drop_pairs;
use node::cluster::slot::of_id;
use node::cluster::{Server, Topology};
use node::command::error::{Printable, Refusal, refuse};
use node::command::spec::Outcome;
use node::roles::node::Now;
use resp::Reply;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Default number of rows examined per call.
const COUNT: u64 = 1000;

pub(crate) fn run(call: &mut Call<'_>) -> Outcome {
    require_cluster(&call.node)?;
    let cursor = parse_cursor(call.args.at(3))?;
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

/// Returns the topology. Fails if the shard has no slots, because every row would be foreign.
fn own_topology(node: Now<'_>) -> Result<Arc<Topology>, Refusal> {
    let topology = node.cluster.topology();
    if topology.ranges().iter().all(|(first, ..)| is_foreign(&topology, *first)) {
        return Err(refuse!("ERR this node's shard has no slots: assign slots to it first"));
    }
    Ok(topology)
}

fn is_foreign(topology: &Topology, slot: u16) -> bool {
    matches!(topology.server_of(slot), Server::Other(_))
}

fn trim(name: &[u8], cursor: u64, most: u64, node: Now<'_>, reply: &mut Reply<'_>) -> Outcome {
    let Some(space) = node.engines().counter(name) else {
        return Err(refuse!("ERR no such counter space '{}'", Printable(name)));
    };
    let topology = own_topology(node)?;
    let mut foreign = Vec::new();
    let next = step(space, cursor, most, &mut |id| {
        if is_foreign(&topology, of_id(id)) {
            foreign.push(id);
        }
    })?;
    // Read the cold rows first, because a deletion checks whether its row exists.
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

/// Deletes rows that are foreign under this topology; returns their number.
fn delete(
    space: &CounterSpace,
    ids: &[u64],
    topology: &Topology,
    node: Now<'_>,
) -> Result<usize, Refusal> {
    let (mut deleted, mut unreadable) = (0, None);
    for &id in ids {
        // A slot may have returned to this shard with a newer copy of its rows.
        if node.cluster.topology().version != topology.version || !node.replication.is_master() {
            return Err(refuse!("ERR the topology changed: restart with cursor 0"));
        }
        let gone = node.engines().delete_row(space, id);
        deleted += usize::from(keep_first_unreadable(gone, &mut unreadable)?);
    }
    unreadable.map_or(Ok(deleted), |error| Err(error.into()))
}

pub(crate) fn pairs(call: &mut Call<'_>) -> Outcome {
    require_cluster(&call.node)?;
    let (name, first) = (call.args.at(2).to_vec(), call.id(3)?);
    call.answer_later(move |node, reply| {
        let Some(space) = node.engines().existence(&name) else {
            return Err(refuse!("ERR no such existence space '{}'", Printable(&name)));
        };
        if space.ledger().is_none() {
            return Err(no_ledger(space));
        }
        let topology = own_topology(node)?;
        let keep = |id| !is_foreign(&topology, of_id(id));
        let still = || match node.cluster.topology().version == topology.version {
            true => Ok(()),
            // A slot may have returned to this shard with its pairs.
            false => Err(store::Error::Refused("the topology changed: restart with id 0".into())),
        };
        let is_stopped = || node.stop.is_stopped();
        let live = node.live(&is_stopped).ok_or(Refusal::LOADING)?;
        let part = drop_pairs(&live, space, first, keep, still).map_err(disk)?;
        let Some((last, removed)) = part else {
            return Err(refuse!("ERR the space was dropped"));
        };
        reply.array(2);
        reply.bulk(last.wrapping_add(1).to_string().as_bytes());
        reply.count(removed as usize);
        Ok(())
    })
}
