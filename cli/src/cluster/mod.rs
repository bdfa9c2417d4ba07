//! `tidemark cluster`: shows the state of a cluster, splits a shard, or moves a shard to another
//! node.
//!
//! The commands store no state of their own. The topologies of the nodes record each step, so
//! running an interrupted command again resumes it.

mod growth;
mod hold;
mod remote;
#[cfg(test)]
mod simulation;
mod status;

use crate::import::spaces::maps;
use crate::terminal::grouped;
use clap::{Args, Subcommand};
use client::{ConnectArgs, Reply};
use growth::{SlotMoveArgs, SlotSelection, move_slots};
use node::cluster::slot;
use remote::{NodeClient, addresses, newest};

/// Shows a cluster, splits or moves a shard, or deletes leftover rows.
#[derive(Args, Debug)]
pub(super) struct ClusterArgs {
    #[command(subcommand)]
    what: ClusterCommand,
}

#[derive(Subcommand, Debug)]
enum ClusterCommand {
    /// Lists all nodes and reports what differs from the topology.
    Status(StatusArgs),
    /// Moves some slots of a shard to another node.
    Split(SplitArgs),
    /// Moves a whole shard to another node; the old master becomes its replica.
    Move(MoveArgs),
    /// Deletes rows in slots that their shard no longer owns.
    Trim(TrimArgs),
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
The exit status is 1 if a slot has no master, or if a node
- does not reply, or has another id or role than in the topology;
- has an older topology, or none;
- is a master that refuses writes: it is fenced, its lease has expired, or it has too few replicas;
- is a replica whose link to its master is down;
- has spaces, views or actions that differ from those of another node.")]
struct StatusArgs {
    #[command(flatten)]
    to: ConnectArgs,
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  tidemark cluster split --host db1 --from db1:6399 --to db9:6399 --plan
  tidemark cluster split --host db1 --from db1:6399 --to db9:6399
  tidemark cluster split --host db1 --from db1:6399 --to db9:6399 --slots '0-99 300'

The new node first replicates from the shard's master until it has caught up. Then writes pause \
for some milliseconds, and the new node becomes the master of the slots. If the command is \
interrupted, run it again to resume. Only one such command can change a cluster at a time.")]
struct SplitArgs {
    #[command(flatten)]
    to: ConnectArgs,
    #[command(flatten)]
    nodes: SlotMoveArgs,
    /// Slots to move, for example `0-99 300`. Default: the upper half of the shard's slots.
    #[arg(long, value_name = "SLOTS")]
    slots: Option<String>,
}

#[derive(Args, Debug)]
struct MoveArgs {
    #[command(flatten)]
    to: ConnectArgs,
    #[command(flatten)]
    nodes: SlotMoveArgs,
}

#[derive(Args, Debug)]
#[command(
    after_long_help = "After a split, both shards still contain all rows of the old shard. Each \
                       serves only its own slots, but scans and counts include the foreign rows, \
                       and these take memory. They are not updated, so they cannot be used to undo \
                       the split. Flags stay in their filters until the table is recycled."
)]
struct TrimArgs {
    #[command(flatten)]
    to: ConnectArgs,
}

pub(super) fn run(args: &ClusterArgs) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    runtime.block_on(async {
        match &args.what {
            ClusterCommand::Status(args) => status::status(&args.to).await,
            ClusterCommand::Split(args) => {
                let asked = args.slots.as_deref().map(slot::parse_ranges).transpose();
                let slots =
                    asked.map_err(|word| format!("--slots: '{word}' is not a valid slot"))?;
                crate::terminal::print(
                    &move_slots(&args.to, &args.nodes, SlotSelection::Slots(slots)).await?,
                )
            }
            ClusterCommand::Move(args) => crate::terminal::print(
                &move_slots(&args.to, &args.nodes, SlotSelection::Shard).await?,
            ),
            ClusterCommand::Trim(args) => trim(&args.to).await,
        }
    })
}

/// Deletes data in slots that the shard no longer owns: rows on all masters, and pairs in the
/// ledgers of all nodes.
async fn trim(to: &ConnectArgs) -> Result<(), String> {
    let topology = newest(to).await?;
    for (member, address) in topology.members().iter().zip(addresses(&topology)) {
        let is_master = member.master.is_none();
        let shard = member.master.as_ref().unwrap_or(&member.id);
        if topology.slots_of(shard).is_empty() {
            continue;
        }
        let mut node = NodeClient::open(to, &address).await?;
        let version = node.text(&["CLUSTERX", "VERSION"]).await?;
        if version != topology.version.to_string() {
            return Err(format!(
                "{address} has another topology version: {version}; nothing was deleted"
            ));
        }
        let spaces = maps(node.ask(&["TM.SPACE", "LIST"]).await?);
        for space in &spaces {
            let word = |key: &str| space.get(key).map_or("", String::as_str);
            let (what, subcommand) = match (word("kind"), word("ledger")) {
                ("counter", _) if is_master => ("rows", "TRIM"),
                ("existence", "exact") => ("ledger pairs", "TRIMPAIRS"),
                _ => continue,
            };
            let name = word("name");
            let deleted = trim_space(&mut node, subcommand, name).await?;
            crate::terminal::print(&format!(
                "{address}: {name}: {} {what} deleted\n",
                grouped(deleted)
            ))?;
        }
    }
    Ok(())
}

async fn trim_space(
    node: &mut NodeClient<'_, ConnectArgs>,
    subcommand: &str,
    space: &str,
) -> Result<u64, String> {
    let (mut cursor, mut deleted) = ("0".to_owned(), 0);
    loop {
        let reply = node.ask(&["CLUSTERX", subcommand, space, &cursor]).await?;
        let Reply::Array(words) = &reply else {
            return Err(format!("{}: unexpected reply: {reply:?}", node.address));
        };
        let [Reply::BulkString(next), Reply::Integer(gone)] = &words[..] else {
            return Err(format!("{}: unexpected reply: {reply:?}", node.address));
        };
        deleted += gone.unsigned_abs();
        cursor = String::from_utf8_lossy(next).into_owned();
        if cursor == "0" {
            return Ok(deleted);
        }
    }
}
