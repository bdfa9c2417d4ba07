//! `tidemark cluster`: how a cluster stands, and how it grows: a shard is split, or moves to
//! another node.
//!
//! Nothing is kept here: each step can be seen in the topologies of the nodes. So a command that
//! was ended in the middle is given again, and goes on where it was.

use crate::cluster_nodes::{Node, nodes};
use crate::import::spaces::maps;
use crate::terminal::grouped;
use clap::{Args, Subcommand};
use node::client::connect::{ConnectArgs, Link, within};
use node::cluster::slot::{self, SLOTS};
use node::cluster::topology::ID_BYTES;
use node::cluster::{Member, Topology};
use redis_protocol::resp2::types::OwnedFrame;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Shows a cluster, splits a shard of it, or moves one.
#[derive(Args, Debug)]
pub(super) struct ClusterArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Shows all nodes, and whether they know the same topology.
    Status(StatusArgs),
    /// Gives slots of a shard to a new node.
    Split(SplitArgs),
    /// Gives a whole shard to another node; the old master is a replica of it then.
    Move(MoveArgs),
    /// Deletes the rows that shards have of slots which are not theirs any more.
    Trim(TrimArgs),
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
Exit status 1 if a node does not answer, or knows another topology.")]
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

The new node follows the shard's master until it has all rows. Then writes wait for some \
milliseconds, and it is the master of its slots. Given again, the command goes on where it was. \
One such command at a time changes a cluster.")]
struct SplitArgs {
    #[command(flatten)]
    to: ConnectArgs,
    #[command(flatten)]
    nodes: Nodes,
    /// The slots, as in `0-99 300`; without it the upper half of those that the shard has.
    #[arg(long, value_name = "SLOTS")]
    slots: Option<String>,
}

#[derive(Args, Debug)]
struct MoveArgs {
    #[command(flatten)]
    to: ConnectArgs,
    #[command(flatten)]
    nodes: Nodes,
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
After a split both shards still have all rows of the old one. They serve their own only, but scans \
and counts show the others, and they take memory. They are not kept up to date, so they are of no \
use to go back. Flags stay in their filters until their table is recycled.")]
struct TrimArgs {
    #[command(flatten)]
    to: ConnectArgs,
}

#[derive(Args, Debug)]
struct Nodes {
    /// The master of the shard, as clients and nodes reach it.
    #[arg(long, value_name = "HOST:PORT")]
    from: String,
    /// The node that gets slots: an empty one with `cluster.enabled`, or a replica of the master.
    #[arg(long = "to", value_name = "HOST:PORT")]
    to_node: String,
    /// Says what would be done, and does nothing.
    #[arg(long)]
    plan: bool,
    /// Longest wait in seconds until the new node has all rows.
    #[arg(long, value_name = "SECONDS", default_value_t = 24 * 3600)]
    timeout: u64,
}

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at a node that copies rows, and between two attempts to hand over.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Between two lines that say how far it is.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// Attempts to hand over: each waits for writes that are under way.
const ATTEMPTS: usize = 50;

pub(super) fn run(args: &ClusterArgs) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    runtime.block_on(async {
        match &args.what {
            What::Status(args) => status(&args.to).await,
            What::Split(args) => {
                let asked = args.slots.as_deref().map(slot::parse_ranges).transpose();
                let slots = asked.map_err(|word| format!("--slots: '{word}' is no slot"))?;
                grow(&args.to, &args.nodes, Wanted::Slots(slots)).await
            }
            What::Move(args) => grow(&args.to, &args.nodes, Wanted::Shard).await,
            What::Trim(args) => trim(&args.to).await,
        }
    })
}

/// A node, and how it is reached.
struct Remote {
    address: String,
    link: Link,
}

impl Remote {
    /// `like`: as which user, and how.
    async fn open(like: &ConnectArgs, address: &str) -> Result<Remote, String> {
        let parts = address.rsplit_once(':');
        let (host, port) = parts
            .and_then(|(host, port)| Some((host, port.parse().ok()?)))
            .ok_or_else(|| format!("'{address}' is no HOST:PORT"))?;
        let to = ConnectArgs { host: host.to_owned(), port, ..like.clone() };
        let tls = to.tls().map_err(|e| e.to_string())?;
        let link = to.open(tls.as_ref()).await.map_err(|e| format!("{address}: {e}"))?;
        Ok(Remote { address: address.to_owned(), link })
    }

    async fn ask(&mut self, words: &[&str]) -> Result<OwnedFrame, String> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let reply = within(PATIENCE, self.link.ask(&words)).await;
        reply.map_err(|e| format!("{}: {e}", self.address))
    }

    async fn text(&mut self, words: &[&str]) -> Result<String, String> {
        match self.ask(words).await? {
            OwnedFrame::BulkString(text) | OwnedFrame::SimpleString(text) => {
                Ok(String::from_utf8_lossy(&text).into_owned())
            }
            OwnedFrame::Integer(number) => Ok(number.to_string()),
            other => Err(format!("{}: an unexpected answer: {other:?}", self.address)),
        }
    }

    /// The topology that it knows. `None`: it has none yet.
    async fn topology(&mut self) -> Result<Option<Topology>, String> {
        let version: i64 = self.text(&["CLUSTERX", "VERSION"]).await?.parse().unwrap_or(-1);
        if version < 0 {
            return Ok(None);
        }
        let nodes = self.text(&["CLUSTER", "NODES"]).await?;
        Topology::parse(&text_of(&nodes), version, "")
            .map(Some)
            .map_err(|why| format!("{}: CLUSTER NODES: {why}", self.address))
    }

    /// A field of INFO.
    async fn info(&mut self, section: &str, name: &str) -> Result<String, String> {
        let info = self.text(&["INFO", section]).await?;
        let found = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(found.unwrap_or_default().to_owned())
    }
}

/// A topology's text, made of what CLUSTER NODES answers.
fn text_of(answer: &str) -> String {
    let line = |node: Node<'_>| {
        let (host, port) = node.address.rsplit_once(':')?;
        let role = if node.is_master() { "master" } else { "slave" };
        let Node { id, master, slots, .. } = node;
        Some(format!("{id} {host} {port} {role} {master} {}\n", slots.join(" ")))
    };
    nodes(answer).filter_map(line).collect()
}

/// The newest topology that a node of a cluster knows, asked of all nodes that one names. Two of
/// one version cannot both be right: then no command goes on.
async fn newest(to: &ConnectArgs) -> Result<Topology, String> {
    let mut first = Remote::open(to, &to.address()).await?;
    let none = || format!("{}: it knows no topology yet", to.address());
    let mut newest = first.topology().await?.ok_or_else(none)?;
    let mut from = to.address();
    for address in addresses(&newest) {
        // One that is away has nothing to say.
        let Ok(mut node) = Remote::open(to, &address).await else { continue };
        let Ok(Some(other)) = node.topology().await else { continue };
        if other.version == newest.version && !other.agrees_with(&newest) {
            return Err(format!(
                "{from} and {address} know two topologies {}: find out which one is right, and \
                 give it to all nodes under the next version (CLUSTERX SETNODES)",
                newest.version
            ));
        }
        if other.version > newest.version {
            (newest, from) = (other, address);
        }
    }
    Ok(newest)
}

/// Keeps other commands from changing the cluster until it is released, or this one is killed and
/// its time is over.
struct Hold<'a> {
    to: &'a ConnectArgs,
    token: String,
    masters: Vec<String>,
    renewed: Instant,
}

/// How long it lasts, how often it is renewed, and how long another command's is waited for.
const HOLD: Duration = Duration::from_secs(5);
const RENEW_EVERY: Duration = Duration::from_secs(1);
const HELD: Duration = Duration::from_secs(15);

impl Hold<'_> {
    /// All masters are asked in the order of their ids, so of two commands one gets all.
    async fn begin<'a>(to: &'a ConnectArgs, topology: &Topology) -> Result<Hold<'a>, String> {
        let mut masters: Vec<&Member> = topology.masters().collect();
        masters.sort_unstable_by_key(|member| &member.id);
        let masters = masters.into_iter().map(Member::address).collect();
        let mut hold = Hold { to, token: random_id(), masters, renewed: Instant::now() };
        let began = Instant::now();
        loop {
            match hold.ask(HOLD).await {
                Err(why) if why.contains("another command") && began.elapsed() < HELD => {
                    hold.release().await;
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                Err(why) => {
                    hold.release().await;
                    return Err(why);
                }
                Ok(()) => return Ok(hold),
            }
        }
    }

    async fn ask(&mut self, time: Duration) -> Result<(), String> {
        self.renewed = Instant::now();
        for address in &self.masters {
            let mut node = Remote::open(self.to, address).await?;
            let ms = time.as_millis().to_string();
            node.ask(&["CLUSTERX", "HOLD", &self.token, &ms]).await?;
        }
        Ok(())
    }

    async fn renew(&mut self) -> Result<(), String> {
        if self.renewed.elapsed() < RENEW_EVERY { Ok(()) } else { self.ask(HOLD).await }
    }

    /// If a master does not hear of it, it knows when the time is over.
    async fn release(&mut self) {
        let _ = self.ask(Duration::ZERO).await;
    }
}

fn addresses(topology: &Topology) -> Vec<String> {
    topology.members().iter().map(Member::address).collect()
}

async fn status(to: &ConnectArgs) -> Result<(), String> {
    let topology = newest(to).await?;
    let mut out = format!("topology {}\n", topology.version);
    let mut is_fine = true;
    let mut shown = vec![["node", "role", "slots", "rows", "topology", "state"].map(str::to_owned)];
    for (member, address) in topology.members().iter().zip(addresses(&topology)) {
        let (role, slots) = match member.master {
            None => ("master", topology.slots_of(&member.id).len().to_string()),
            Some(_) => ("replica", String::new()),
        };
        let [rows, version, state] = match facts(to, &address).await {
            Ok(facts) => facts,
            Err(why) => [String::new(), String::new(), why],
        };
        is_fine &= version == topology.version.to_string();
        shown.push([address, role.to_owned(), slots, rows, version, state]);
    }
    let widths: [usize; 6] = std::array::from_fn(|column| {
        shown.iter().map(|row| row[column].len()).max().unwrap_or_default()
    });
    for row in &shown {
        let cells = row.iter().zip(widths).map(|(text, width)| format!("{text:<width$}"));
        let _ = writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    if topology.assigned() < usize::from(SLOTS) {
        is_fine = false;
        let _ = writeln!(out, "{} slots have no master", usize::from(SLOTS) - topology.assigned());
    }
    super::print(&out)?;
    if is_fine { Ok(()) } else { Err("the cluster is not whole, or not of one mind".to_owned()) }
}

/// Rows, version of the topology, and state of a node.
async fn facts(to: &ConnectArgs, address: &str) -> Result<[String; 3], String> {
    let mut node = Remote::open(to, address).await?;
    let version = node.text(&["CLUSTERX", "VERSION"]).await?;
    let rows = node.text(&["DBSIZE"]).await?.parse().map(grouped).unwrap_or_default();
    let state = match node.info("replication", "master_link_status").await?.as_str() {
        "" => "up".to_owned(),
        link => format!("link to its master: {link}"),
    };
    Ok([rows, version, state])
}

/// What the new node is to get.
enum Wanted {
    /// These, or the upper half.
    Slots(Option<Vec<(u16, u16)>>),
    /// All.
    Shard,
}

/// A topology that is being changed.
struct Draft {
    nodes: Vec<Member>,
    /// Of each slot the id of its master.
    slots: Vec<Option<String>>,
    version: i64,
}

impl Draft {
    fn of(topology: &Topology) -> Draft {
        let members = topology.members();
        let master = |slot| topology.number_of(slot).map(|at| members[at].id.clone());
        Draft {
            nodes: members.to_vec(),
            slots: (0..SLOTS).map(master).collect(),
            version: topology.version,
        }
    }

    /// The next version.
    fn finish(self) -> Result<Topology, String> {
        let line = |member: &Member| {
            let masters = (0..SLOTS).zip(&self.slots);
            let own = masters.filter(|(_, master)| master.as_ref() == Some(&member.id));
            member.line(&own.map(|(slot, _)| format!(" {slot}")).collect::<String>())
        };
        let text: String = self.nodes.iter().map(line).collect();
        let version = self.version.checked_add(1).ok_or("there is no next version")?;
        Topology::parse(&text, version, "")
    }
}

async fn grow(to: &ConnectArgs, asked: &Nodes, wanted: Wanted) -> Result<(), String> {
    let topology = newest(to).await?;
    let at = |address: &str| {
        let position = addresses(&topology).iter().position(|known| known == address);
        position.map(|at| topology.members()[at].clone())
    };
    let from = at(&asked.from).ok_or_else(|| {
        format!("{} is none of the cluster: {}", asked.from, addresses(&topology).join(", "))
    })?;
    let mut new = Remote::open(to, &asked.to_node).await?;
    let id = new.text(&["CLUSTERX", "MYID"]).await?;
    // One that was told nothing, or has lost what it was told, is known by its address.
    let at_address = || at(&asked.to_node).map(|member| member.id);
    let id = if id.is_empty() { at_address().unwrap_or_else(random_id) } else { id };
    let known = topology.members().iter().find(|member| member.id == id);
    let follows = known.and_then(|known| known.master.as_ref());
    let has = topology.slots_of(&id);
    if !has.is_empty() {
        if !is_done(&wanted, &topology, &from, &has) {
            return Err(format!(
                "{} is the master of {} slots: slots go to an empty node, or to a replica of {}",
                asked.to_node,
                has.len(),
                asked.from
            ));
        }
        // An earlier attempt came so far: what is left is that all hear of it.
        spread(to, &topology).await?;
        return super::print(&format!(
            "{} is the master of {} slots already (topology {}); all nodes have heard of it\n",
            asked.to_node,
            has.len(),
            topology.version
        ));
    }
    if from.master.is_some() {
        return Err(format!("{} is no master", asked.from));
    }
    if known.is_none() {
        refuse_stranger(&mut new, &from.id).await?;
    }
    let slots = chosen(&wanted, &topology.slots_of(&from.id), &asked.from)?;
    let is_replica = follows == Some(&from.id);
    if follows.is_some() && !is_replica {
        return Err(format!("{} is a replica of another shard", asked.to_node));
    }
    if asked.plan {
        return super::print(&plan(asked, &topology, slots.len(), is_replica));
    }
    let mut hold = Hold::begin(to, &topology).await?;
    let growth = Growth { to, asked, from: &from.id, id: &id, wanted: &wanted, slots: &slots };
    let grown = growth.run(&mut hold, &mut new, topology, is_replica).await;
    hold.release().await;
    let (next, took) = grown?;
    super::print(&format!(
        "{} is the master of {} slots (topology {}, handed over in {} ms)\n",
        asked.to_node,
        slots.len(),
        next.version,
        took.as_millis()
    ))
}

/// Whether the new node has what it was to get: an earlier attempt was ended behind that.
fn is_done(wanted: &Wanted, topology: &Topology, from: &Member, has: &[u16]) -> bool {
    let left = topology.slots_of(&from.id);
    match wanted {
        Wanted::Shard => left.is_empty() && from.master.is_some(),
        Wanted::Slots(Some(ranges)) => {
            ranges.iter().flat_map(|&(first, last)| first..=last).all(|slot| has.contains(&slot))
        }
        Wanted::Slots(None) => {
            let mut all = [&left[..], has].concat();
            all.sort_unstable();
            all[all.len() / 2..] == *has
        }
    }
}

/// A node that has data, or is of another cluster, would lose that. Redis's words.
async fn refuse_stranger(new: &mut Remote, from: &str) -> Result<(), String> {
    let known = new.topology().await?;
    let is_of_another =
        known.is_some_and(|known| known.members().iter().all(|member| member.id != from));
    if is_of_another || new.text(&["DBSIZE"]).await? != "0" {
        return Err(format!(
            "Node {} is not empty. Either the node already knows other nodes (check with CLUSTER \
             NODES) or contains some key in database 0.",
            new.address
        ));
    }
    Ok(())
}

/// What is to be done, once it is known.
struct Growth<'a> {
    to: &'a ConnectArgs,
    asked: &'a Nodes,
    /// The id of the master that gives slots, and that of the node that gets them.
    from: &'a str,
    id: &'a str,
    wanted: &'a Wanted,
    slots: &'a [u16],
}

impl Growth<'_> {
    /// All of it, while no other command changes the cluster. Gives the last topology, and how long
    /// the hand-over took.
    async fn run(
        &self,
        hold: &mut Hold<'_>,
        new: &mut Remote,
        topology: Topology,
        is_replica: bool,
    ) -> Result<(Topology, Duration), String> {
        let Growth { to, asked, .. } = self;
        if newest(to).await?.version != topology.version {
            return Err("the cluster has changed meanwhile: give the command again".to_owned());
        }
        // Each step is known to all masters before the next one is taken: so none of them takes
        // another topology of that version.
        tell_masters(to, &topology).await?;
        let topology = if is_replica {
            topology
        } else {
            new.ask(&["CLUSTERX", "SETNODEID", self.id]).await?;
            let next = with_replica(&topology, self.id, self.from, asked)?;
            tell_masters(to, &next).await?;
            next
        };
        tell(to, &asked.to_node, &topology).await?;
        follow(to, hold, new, asked).await?;
        let next = self.handed(&topology)?;
        let took = hand_over(to, hold, asked, &next).await?;
        spread(to, &next).await?;
        Ok((next, took))
    }

    /// The topology in which the new node has its slots.
    fn handed(&self, topology: &Topology) -> Result<Topology, String> {
        let (from, id) = (Some(self.from), self.id);
        let mut draft = Draft::of(topology);
        self.slots.iter().for_each(|&slot| draft.slots[usize::from(slot)] = Some(id.to_owned()));
        for member in &mut draft.nodes {
            let is_of_shard = Some(&*member.id) == from || member.master.as_deref() == from;
            if member.id == id {
                member.master = None;
            } else if matches!(self.wanted, Wanted::Shard) && is_of_shard {
                member.master = Some(id.to_owned());
            }
        }
        draft.finish()
    }
}

/// The next topology: the new node is a replica of the shard's master.
fn with_replica(
    topology: &Topology,
    id: &str,
    master: &str,
    asked: &Nodes,
) -> Result<Topology, String> {
    let (host, port) = asked.to_node.rsplit_once(':').unwrap_or_default();
    let mut draft = Draft::of(topology);
    draft.nodes.retain(|member| member.id != id);
    draft.nodes.push(Member {
        id: id.to_owned(),
        host: host.to_owned(),
        port: port.parse().unwrap_or_default(),
        master: Some(master.to_owned()),
    });
    let next = draft.finish()?;
    say(&format!("{} is to follow {} (topology {})", asked.to_node, asked.from, next.version));
    Ok(next)
}

/// The slots that are to go.
fn chosen(wanted: &Wanted, own: &[u16], from: &str) -> Result<Vec<u16>, String> {
    let slots: Vec<u16> = match wanted {
        Wanted::Shard => own.to_vec(),
        Wanted::Slots(None) => own[own.len() / 2..].to_vec(),
        Wanted::Slots(Some(ranges)) => {
            ranges.iter().flat_map(|&(first, last)| first..=last).collect()
        }
    };
    if let Some(foreign) = slots.iter().find(|slot| !own.contains(slot)) {
        return Err(format!("slot {foreign} is not one of {from}"));
    }
    if slots.is_empty() {
        return Err(format!("{from} has no slots to give"));
    }
    if matches!(wanted, Wanted::Slots(_)) && slots.len() == own.len() {
        return Err(format!("these are all slots of {from}: tidemark cluster move"));
    }
    Ok(slots)
}

fn plan(asked: &Nodes, topology: &Topology, slots: usize, is_replica: bool) -> String {
    let Nodes { from, to_node, .. } = asked;
    let mut steps = Vec::new();
    if !is_replica {
        steps.push(format!("topology {}: {to_node} is a replica of {from}", topology.version + 1));
    }
    steps.push(format!("{to_node} copies all rows of {from}, and follows it until it is in step"));
    steps.push(format!(
        "writes to {from} wait for some milliseconds; topology {}: {to_node} is the master of \
         {slots} slots",
        topology.version + 1 + i64::from(!is_replica)
    ));
    steps.push("all nodes hear of it".to_owned());
    let numbered = (1..).zip(steps);
    numbered.fold(String::new(), |mut out, (number, step)| {
        let _ = writeln!(out, "{number}. {step}");
        out
    })
}

fn random_id() -> String {
    let id = format!("{:032x}{:032x}", fastrand::u128(..), fastrand::u128(..));
    id[..ID_BYTES].to_owned()
}

/// To people that wait; what a script reads is on stdout.
fn say(text: &str) {
    eprintln!("{text}");
}

/// All nodes of a topology get it. The error names those that have not.
async fn spread(to: &ConnectArgs, topology: &Topology) -> Result<(), String> {
    let mut failed = Vec::new();
    for address in addresses(topology) {
        failed.extend(tell(to, &address, topology).await.err());
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "topology {} is not known to all nodes: {}; give the same command again",
        topology.version,
        failed.join("; ")
    ))
}

/// All masters know it, or nothing more is done.
async fn tell_masters(to: &ConnectArgs, topology: &Topology) -> Result<(), String> {
    for master in topology.masters() {
        tell(to, &master.address(), topology).await?;
    }
    Ok(())
}

async fn tell(to: &ConnectArgs, address: &str, topology: &Topology) -> Result<(), String> {
    let (text, version) = (topology.describe(), topology.version.to_string());
    let mut node = Remote::open(to, address).await?;
    node.ask(&["CLUSTERX", "SETNODES", &text, &version]).await.map(|_| ())
}

/// Waits until the new node has all rows.
async fn follow(
    to: &ConnectArgs,
    hold: &mut Hold<'_>,
    new: &mut Remote,
    asked: &Nodes,
) -> Result<(), String> {
    let (began, mut said) = (Instant::now(), Instant::now());
    loop {
        hold.renew().await?;
        match new.info("replication", "master_link_status").await?.as_str() {
            "up" => return Ok(()),
            "" => return Err(format!("{} is no replica of {}", asked.to_node, asked.from)),
            _ => {}
        }
        if began.elapsed() > Duration::from_secs(asked.timeout) {
            return Err(format!("{} is not in step yet; give the command again", asked.to_node));
        }
        if said.elapsed() > SAY_EVERY {
            said = Instant::now();
            let rows = new.text(&["DBSIZE"]).await.unwrap_or_default();
            let all = match Remote::open(to, &asked.from).await {
                Ok(mut from) => from.text(&["DBSIZE"]).await.unwrap_or_default(),
                Err(_) => String::new(),
            };
            let why = new.info("replication", "master_link_error").await.unwrap_or_default();
            let why = if why.is_empty() { why } else { format!(" ({why})") };
            say(&format!("{} copies: {rows} of {all} rows{why}", asked.to_node));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The old master gives the slots away: as often as it says that it is not the moment.
async fn hand_over(
    to: &ConnectArgs,
    hold: &mut Hold<'_>,
    asked: &Nodes,
    next: &Topology,
) -> Result<Duration, String> {
    let (text, version) = (next.describe(), next.version.to_string());
    let mut attempt = 0;
    loop {
        attempt += 1;
        hold.renew().await?;
        let began = Instant::now();
        let mut from = Remote::open(to, &asked.from).await?;
        let handed = from.ask(&["CLUSTERX", "SETNODES", &text, &version, "HANDOVER"]).await;
        match handed {
            Ok(_) => return Ok(began.elapsed()),
            Err(why) if attempt == ATTEMPTS => return Err(why),
            Err(why) if why.contains("again") || why.contains("in step") => {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Err(why) => return Err(why),
        }
    }
}

/// All nodes delete what is not their shard's: masters rows, and each node pairs of its ledgers.
async fn trim(to: &ConnectArgs) -> Result<(), String> {
    let topology = newest(to).await?;
    for (member, address) in topology.members().iter().zip(addresses(&topology)) {
        let is_master = member.master.is_none();
        let shard = member.master.as_ref().unwrap_or(&member.id);
        if topology.slots_of(shard).is_empty() {
            continue;
        }
        let mut node = Remote::open(to, &address).await?;
        let version = node.text(&["CLUSTERX", "VERSION"]).await?;
        if version != topology.version.to_string() {
            return Err(format!(
                "{address} knows another topology: {version}; nothing was deleted"
            ));
        }
        let spaces = maps(node.ask(&["TM.SPACE", "LIST"]).await?);
        for space in &spaces {
            let word = |key: &str| space.get(key).map_or("", String::as_str);
            let (what, subcommand) = match (word("kind"), word("ledger")) {
                ("counter", _) if is_master => ("rows", "TRIM"),
                ("existence", "exact") => ("pairs of its ledger", "TRIMPAIRS"),
                _ => continue,
            };
            let name = word("name");
            let deleted = trim_space(&mut node, subcommand, name).await?;
            super::print(&format!("{address}: {name}: {} {what} deleted\n", grouped(deleted)))?;
        }
    }
    Ok(())
}

async fn trim_space(node: &mut Remote, subcommand: &str, space: &str) -> Result<u64, String> {
    let (mut cursor, mut deleted) = ("0".to_owned(), 0);
    loop {
        let reply = node.ask(&["CLUSTERX", subcommand, space, &cursor]).await?;
        let OwnedFrame::Array(words) = &reply else {
            return Err(format!("{}: an unexpected answer: {reply:?}", node.address));
        };
        let [OwnedFrame::BulkString(next), OwnedFrame::Integer(gone)] = &words[..] else {
            return Err(format!("{}: an unexpected answer: {reply:?}", node.address));
        };
        deleted += gone.unsigned_abs();
        cursor = String::from_utf8_lossy(next).into_owned();
        if cursor == "0" {
            return Ok(deleted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let choose = |wanted: Wanted| chosen(&wanted, &own, "h:1");
        assert_eq!(choose(Wanted::Shard), Ok(own.to_vec()));
        assert_eq!(choose(Wanted::Slots(None)), Ok(vec![3, 9]));
        assert_eq!(choose(Wanted::Slots(Some(vec![(2, 3)]))), Ok(vec![2, 3]));
        assert!(choose(Wanted::Slots(Some(vec![(3, 4)]))).unwrap_err().contains("slot 4"));
        assert!(choose(Wanted::Slots(Some(vec![(1, 3), (9, 9)]))).unwrap_err().contains("move"));
        assert!(chosen(&Wanted::Shard, &[], "h:1").is_err());
    }
}
