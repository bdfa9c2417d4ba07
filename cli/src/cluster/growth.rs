//! Moves some slots of a shard, or a whole shard, to another node.
//!
//! ```text
//!   newest topology --> replica of the old master --> in sync --> hand-over --> all nodes informed
//! ```
//!
//! The command stores no state of its own. The topologies of the nodes record each step, so running
//! an interrupted command again resumes it.

use super::hold::{Hold, POLL_INTERVAL, random_id};
use super::remote::{Net, NodeClient, addresses, newest};
use clap::Args;
use node::cluster::slot::SLOTS;
use node::cluster::{Member, Topology};
use std::fmt::Write as _;
use std::time::Duration;
use tokio::time::Instant;

/// Interval between progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of hand-over attempts. Each attempt waits for writes that are in progress.
const ATTEMPTS: usize = 50;

#[derive(Args, Debug)]
pub(super) struct SlotMoveArgs {
    /// Address of the shard's current master, as clients and other nodes reach it.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) from: String,
    /// Address of the node that receives the slots: an empty node with `cluster.enabled`, or a
    /// replica of --from.
    #[arg(long = "to", value_name = "HOST:PORT")]
    pub(super) to_node: String,
    /// Print the planned steps and change nothing.
    #[arg(long)]
    pub(super) plan: bool,
    /// Maximum time to wait until the new node has copied all rows.
    #[arg(long, value_name = "SECONDS", default_value_t = 24 * 3600)]
    pub(super) timeout: u64,
}

pub(super) enum SlotSelection {
    /// The listed slot ranges, or the upper half of the shard's slots.
    Slots(Option<Vec<(u16, u16)>>),
    /// All slots of the shard.
    Shard,
}

/// A topology under construction.
pub(super) struct Draft {
    nodes: Vec<Member>,
    /// Id of the master of each slot.
    slots: Vec<Option<String>>,
    version: i64,
}

impl Draft {
    pub(super) fn of(topology: &Topology) -> Draft {
        let members = topology.members();
        let master = |slot| topology.number_of(slot).map(|at| members[at].id.clone());
        Draft {
            nodes: members.to_vec(),
            slots: (0..SLOTS).map(master).collect(),
            version: topology.version,
        }
    }

    /// Makes `to` the master of `slots`. If `is_shard`, the other nodes of the shard become its
    /// replicas.
    pub(super) fn give(mut self, slots: &[u16], from: &str, to: &str, is_shard: bool) -> Draft {
        slots.iter().for_each(|&slot| self.slots[usize::from(slot)] = Some(to.to_owned()));
        for member in &mut self.nodes {
            let is_of_shard = member.id == from || member.master.as_deref() == Some(from);
            if member.id == to {
                member.master = None;
            } else if is_shard && is_of_shard {
                member.master = Some(to.to_owned());
            }
        }
        self
    }

    /// Returns the draft as the next version of the topology.
    pub(super) fn finish(self) -> Result<Topology, String> {
        let line = |member: &Member| {
            let masters = (0..SLOTS).zip(&self.slots);
            let own = masters.filter(|(_, master)| master.as_ref() == Some(&member.id));
            member.line(&own.map(|(slot, _)| format!(" {slot}")).collect::<String>())
        };
        let text: String = self.nodes.iter().map(line).collect();
        let version =
            self.version.checked_add(1).ok_or("the topology version is at its maximum")?;
        Topology::parse(&text, version, "")
    }
}

pub(super) async fn move_slots<N: Net>(
    net: &N,
    args: &SlotMoveArgs,
    selection: SlotSelection,
) -> Result<String, String> {
    let topology = newest(net).await?;
    let at = |address: &str| {
        let position = addresses(&topology).iter().position(|known| known == address);
        position.map(|at| topology.members()[at].clone())
    };
    let from = at(&args.from).ok_or_else(|| {
        format!("{} is not a node of the cluster: {}", args.from, addresses(&topology).join(", "))
    })?;
    let mut new = NodeClient::open(net, &args.to_node).await?;
    let id = new.text(&["CLUSTERX", "MYID"]).await?;
    // A node that lost its topology, or never had one, is identified by its address.
    let at_address = || at(&args.to_node).map(|member| member.id);
    let id = if id.is_empty() { at_address().unwrap_or_else(random_id) } else { id };
    let known = topology.members().iter().find(|member| member.id == id);
    let follows = known.and_then(|known| known.master.as_ref());
    let has = topology.slots_of(&id);
    if !has.is_empty() {
        if !is_done(&selection, &topology, &from, &has) {
            return Err(format!(
                "{} is already the master of {} slots: use an empty node or a replica of {}",
                args.to_node,
                has.len(),
                args.from
            ));
        }
        if args.plan {
            return Ok(format!(
                "{} already has the slots: the topology will be sent to all nodes\n",
                args.to_node
            ));
        }
        // An earlier run has completed the hand-over. The old master may not know yet that the new
        // master serves the slots, and other nodes may lack the new topology.
        let heard = order_hand_over(net, &args.from, &topology).await;
        send_topology_to_all(net, &topology).await?;
        heard?;
        return Ok(format!(
            "{} is already the master of {} slots (topology {}); all nodes have the topology\n",
            args.to_node,
            has.len(),
            topology.version
        ));
    }
    if from.master.is_some() {
        return Err(format!("{} is not a master", args.from));
    }
    if known.is_none() {
        refuse_stranger(&mut new, &from.id).await?;
    }
    let slots = chosen(&selection, &topology.slots_of(&from.id), &args.from)?;
    let is_replica = follows == Some(&from.id);
    if follows.is_some() && !is_replica {
        return Err(format!("{} is a replica of another shard", args.to_node));
    }
    if args.plan {
        return Ok(plan(args, &topology, slots.len(), is_replica));
    }
    let mut hold = Hold::begin(net, &topology).await?;
    let growth =
        SlotMove { net, args, from: &from.id, id: &id, selection: &selection, slots: &slots };
    let grown = growth.run(&mut hold, &mut new, topology, is_replica).await;
    hold.release().await;
    let (next, took) = grown?;
    Ok(format!(
        "{} is the master of {} slots (topology {}, handed over in {} ms)\n",
        args.to_node,
        slots.len(),
        next.version,
        took.as_millis()
    ))
}

/// Returns whether an earlier run already gave the new node its slots.
fn is_done(selection: &SlotSelection, topology: &Topology, from: &Member, has: &[u16]) -> bool {
    let left = topology.slots_of(&from.id);
    match selection {
        SlotSelection::Shard => left.is_empty() && from.master.is_some(),
        SlotSelection::Slots(Some(ranges)) => {
            ranges.iter().flat_map(|&(first, last)| first..=last).all(|slot| has.contains(&slot))
        }
        SlotSelection::Slots(None) => {
            let mut all = [&left[..], has].concat();
            all.sort_unstable();
            all[all.len() / 2..] == *has
        }
    }
}

/// Refuses a node that holds data or belongs to another cluster, because joining the cluster would
/// delete the node's data. The error text is the same as in Redis.
async fn refuse_stranger<N: Net>(new: &mut NodeClient<'_, N>, from: &str) -> Result<(), String> {
    let known = new.topology().await?;
    let is_of_another =
        known.is_some_and(|known| known.members().iter().all(|member| member.id != from));
    if is_of_another || new.text(&["DBSIZE"]).await? != "0" || new.has_flags().await? {
        return Err(format!(
            "Node {} is not empty. Either the node already knows other nodes (check with CLUSTER \
             NODES) or contains some key in database 0, or flags.",
            new.address
        ));
    }
    Ok(())
}

struct SlotMove<'a, N> {
    net: &'a N,
    args: &'a SlotMoveArgs,
    /// Id of the master that gives up the slots.
    from: &'a str,
    id: &'a str,
    selection: &'a SlotSelection,
    slots: &'a [u16],
}

impl<N: Net> SlotMove<'_, N> {
    /// Runs all steps. The caller has acquired the hold. Returns the final topology and the
    /// duration of the hand-over.
    async fn run(
        &self,
        hold: &mut Hold<'_, N>,
        new: &mut NodeClient<'_, N>,
        topology: Topology,
        is_replica: bool,
    ) -> Result<(Topology, Duration), String> {
        let SlotMove { net, args, .. } = self;
        if newest(*net).await?.version != topology.version {
            return Err("the topology has changed: run the command again".to_owned());
        }
        // All masters must know the current topology before the command creates the next topology.
        // Otherwise a master could accept a different topology with the same version.
        send_topology_to_masters(*net, &topology).await?;
        let topology = if is_replica {
            topology
        } else {
            new.ask(&["CLUSTERX", "SETNODEID", self.id, "NX"]).await?;
            let next = with_replica(&topology, self.id, self.from, args)?;
            net.print_progress(&format!(
                "{} becomes a replica of {} (topology {})",
                args.to_node, args.from, next.version
            ));
            send_topology_to_masters(*net, &next).await?;
            next
        };
        send_topology(*net, &args.to_node, &topology).await?;
        follow(*net, hold, new, args).await?;
        let next = self.handed(&topology)?;
        let took = hand_over(*net, hold, args, &next).await?;
        send_topology_to_all(*net, &next).await?;
        Ok((next, took))
    }

    fn handed(&self, topology: &Topology) -> Result<Topology, String> {
        let is_shard = matches!(self.selection, SlotSelection::Shard);
        Draft::of(topology).give(self.slots, self.from, self.id, is_shard).finish()
    }
}

/// Returns the next topology, which adds the new node as a replica of the shard's master.
fn with_replica(
    topology: &Topology,
    id: &str,
    master: &str,
    args: &SlotMoveArgs,
) -> Result<Topology, String> {
    let (host, port) = args.to_node.rsplit_once(':').unwrap_or_default();
    let mut draft = Draft::of(topology);
    draft.nodes.retain(|member| member.id != id);
    draft.nodes.push(Member {
        id: id.to_owned(),
        host: host.to_owned(),
        port: port.parse().unwrap_or_default(),
        master: Some(master.to_owned()),
    });
    draft.finish()
}

/// Returns the slots to move. `own` must be sorted.
fn chosen(selection: &SlotSelection, own: &[u16], from: &str) -> Result<Vec<u16>, String> {
    let slots: Vec<u16> = match selection {
        SlotSelection::Shard => own.to_vec(),
        SlotSelection::Slots(None) => own[own.len() / 2..].to_vec(),
        SlotSelection::Slots(Some(ranges)) => {
            ranges.iter().flat_map(|&(first, last)| first..=last).collect()
        }
    };
    if let Some(foreign) = slots.iter().find(|slot| own.binary_search(slot).is_err()) {
        return Err(format!("slot {foreign} is not served by {from}"));
    }
    if slots.is_empty() {
        return Err(format!("{from} has no slots to move"));
    }
    if matches!(selection, SlotSelection::Slots(_)) && slots.len() == own.len() {
        return Err(format!("these are all slots of {from}: use tidemark cluster move"));
    }
    Ok(slots)
}

fn plan(args: &SlotMoveArgs, topology: &Topology, slots: usize, is_replica: bool) -> String {
    let SlotMoveArgs { from, to_node, .. } = args;
    let mut steps = Vec::new();
    if !is_replica {
        steps.push(format!(
            "topology {}: {to_node} becomes a replica of {from}",
            topology.version + 1
        ));
    }
    steps.push(format!("{to_node} copies all data of {from} and catches up with its log"));
    steps.push(format!(
        "writes to {from} pause for some milliseconds; topology {}: {to_node} becomes the master \
         of {slots} slots",
        topology.version + 1 + i64::from(!is_replica)
    ));
    steps.push("the topology is sent to all nodes".to_owned());
    let numbered = (1..).zip(steps);
    numbered.fold(String::new(), |mut out, (number, step)| {
        let _ = writeln!(out, "{number}. {step}");
        out
    })
}

/// Sends the topology to each of its nodes. The error lists the nodes that did not accept it.
pub(super) async fn send_topology_to_all<N: Net>(
    net: &N,
    topology: &Topology,
) -> Result<(), String> {
    let mut failed = Vec::new();
    for address in addresses(topology) {
        failed.extend(send_topology(net, &address, topology).await.err());
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "some nodes do not have topology {}: {}; run the same command again",
        topology.version,
        failed.join("; ")
    ))
}

async fn send_topology_to_masters<N: Net>(net: &N, topology: &Topology) -> Result<(), String> {
    for master in topology.masters() {
        send_topology(net, &master.address(), topology).await?;
    }
    Ok(())
}

async fn send_topology<N: Net>(net: &N, address: &str, topology: &Topology) -> Result<(), String> {
    let (text, version) = (topology.describe(), topology.version.to_string());
    let mut node = NodeClient::open(net, address).await?;
    node.ask(&["CLUSTERX", "SETNODES", &text, &version]).await.map(|_| ())
}

async fn follow<N: Net>(
    net: &N,
    hold: &mut Hold<'_, N>,
    new: &mut NodeClient<'_, N>,
    args: &SlotMoveArgs,
) -> Result<(), String> {
    let (began, mut said) = (Instant::now(), Instant::now());
    loop {
        hold.renew().await?;
        match new.info("replication", "master_link_status").await?.as_str() {
            "up" => return Ok(()),
            "" => return Err(format!("{} is not a replica of {}", args.to_node, args.from)),
            _ => {}
        }
        if began.elapsed() > Duration::from_secs(args.timeout) {
            return Err(format!("{} has not caught up yet; run the command again", args.to_node));
        }
        if said.elapsed() > PROGRESS_INTERVAL {
            said = Instant::now();
            let rows = new.text(&["DBSIZE"]).await.unwrap_or_default();
            let all = match NodeClient::open(net, &args.from).await {
                Ok(mut from) => from.text(&["DBSIZE"]).await.unwrap_or_default(),
                Err(_) => String::new(),
            };
            let why = new.info("replication", "master_link_error").await.unwrap_or_default();
            let why = if why.is_empty() { why } else { format!(" ({why})") };
            net.print_progress(&format!("{} copied {rows} of {all} rows{why}", args.to_node));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Requests the hand-over of the slots. Retries while the master replies that it cannot give up the
/// slots yet.
async fn hand_over<N: Net>(
    net: &N,
    hold: &mut Hold<'_, N>,
    args: &SlotMoveArgs,
    next: &Topology,
) -> Result<Duration, String> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        hold.renew().await?;
        let began = Instant::now();
        match order_hand_over(net, &args.from, next).await {
            Ok(()) => return Ok(began.elapsed()),
            Err(why) if attempt == ATTEMPTS => return Err(why),
            Err(why) if ["again", "retry", "in sync"].iter().any(|word| why.contains(word)) => {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            Err(why) => return Err(why),
        }
    }
}

async fn order_hand_over<N: Net>(net: &N, from: &str, next: &Topology) -> Result<(), String> {
    let (text, version) = (next.describe(), next.version.to_string());
    let mut from = NodeClient::open(net, from).await?;
    from.ask(&["CLUSTERX", "SETNODES", &text, &version, "HANDOVER"]).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_nodes::text_of;

    #[test]
    fn cluster_nodes_become_a_topology() {
        let (a, b) = ("a".repeat(40), "b".repeat(40));
        let lines = format!(
            "{a} ::1:7001@0 myself,master - 0 0 3 connected 0-5 9\n\
             {b} h:7002@0,name slave {a} 0 0 3 connected\n"
        );
        let topology = Topology::parse(&text_of(&lines), 3, "").unwrap();
        assert_eq!(
            topology.describe(),
            format!("{a} ::1 7001 master - 0-5 9\n{b} h 7002 slave {a}\n")
        );
        let mut draft = Draft::of(&topology);
        draft.nodes[1].master = None;
        draft.slots[9] = Some(b.clone());
        let next = draft.finish().unwrap();
        assert_eq!(next.describe(), format!("{a} ::1 7001 master - 0-5\n{b} h 7002 master - 9\n"));
        assert_eq!(next.version, 4);
    }

    #[test]
    fn slots_are_chosen_among_those_of_the_shard() {
        let own = [1, 2, 3, 9];
        let choose = |selection: SlotSelection| chosen(&selection, &own, "h:1");
        assert_eq!(choose(SlotSelection::Shard), Ok(own.to_vec()));
        assert_eq!(choose(SlotSelection::Slots(None)), Ok(vec![3, 9]));
        assert_eq!(choose(SlotSelection::Slots(Some(vec![(2, 3)]))), Ok(vec![2, 3]));
        assert!(choose(SlotSelection::Slots(Some(vec![(3, 4)]))).unwrap_err().contains("slot 4"));
        assert!(
            choose(SlotSelection::Slots(Some(vec![(1, 3), (9, 9)]))).unwrap_err().contains("move")
        );
        assert!(chosen(&SlotSelection::Shard, &[], "h:1").is_err());
    }
}
