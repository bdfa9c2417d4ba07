//! `tidemark cluster status`: prints one line per node, with the node's faults.

use super::remote::{NodeClient, addresses, newest};
use crate::import::spaces::names_of;
use crate::terminal::grouped;
use client::{ConnectArgs, Reply, info_field};
use node::cluster::Member;
use node::cluster::slot::SLOTS;
use std::collections::BTreeMap;
use std::fmt::Write as _;

#[derive(Default)]
struct NodeStatus {
    /// Id of the node; empty if the node has no id.
    id: String,
    /// Version of the node's topology; -1 if the node has no topology.
    version: String,
    rows: String,
    replication: String,
    /// For a master: the error returned to writes; empty while it accepts them.
    refusal: String,
    /// Schema, or `None` if the user lacks permission to read the definitions.
    schema: Option<Schema>,
}

/// Definitions of spaces, views and actions, by kind and name (`view 'home'`).
type Schema = BTreeMap<String, Vec<Reply>>;

pub(super) async fn status(to: &ConnectArgs) -> Result<(), String> {
    let topology = newest(to).await?;
    let members: Vec<_> = topology.members().iter().zip(addresses(&topology)).collect();
    let mut told = Vec::with_capacity(members.len());
    for (_, address) in &members {
        told.push(node_status(to, address).await);
    }
    // First definition found for each space, view and action, and the node that returned it. All
    // nodes must have the same definitions.
    let mut known = BTreeMap::new();
    for ((_, address), node_status) in members.iter().zip(&told) {
        let own = node_status.iter().flat_map(|node_status| &node_status.schema).flatten();
        own.for_each(|(name, what)| _ = known.entry(name).or_insert((what, address.as_str())));
    }
    let mut out = format!("topology {}\n", topology.version);
    let mut is_fine = true;
    let mut shown = vec![["node", "role", "slots", "rows", "topology", "state"].map(str::to_owned)];
    // Addresses of the nodes by id. An id must be unique, so each list should have one address.
    let mut by_id: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for ((member, address), node_status) in members.iter().zip(&told) {
        let (role, slots) = match member.master {
            None => ("master", topology.slots_of(&member.id).len().to_string()),
            Some(_) => ("replica", String::new()),
        };
        let [rows, version, state] = match node_status {
            Ok(node_status) => {
                let mut faults = faults(node_status, member, topology.version);
                faults.extend(node_status.schema.iter().flat_map(|own| difference(own, &known)));
                is_fine &= faults.is_empty();
                let state = match faults.is_empty() {
                    true => health(member).to_owned(),
                    false => faults.join("; "),
                };
                if !node_status.id.is_empty() {
                    by_id.entry(&node_status.id).or_default().push(address);
                }
                [node_status.rows.clone(), node_status.version.clone(), state]
            }
            Err(why) => {
                is_fine = false;
                [String::new(), String::new(), why.clone()]
            }
        };
        shown.push([address.clone(), role.to_owned(), slots, rows, version, state]);
    }
    let widths: [usize; 6] = std::array::from_fn(|column| {
        shown.iter().map(|row| row[column].len()).max().unwrap_or_default()
    });
    for row in &shown {
        let cells = row.iter().zip(widths).map(|(text, width)| format!("{text:<width$}"));
        let _ = writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    for (id, addresses) in by_id.iter().filter(|(_, addresses)| addresses.len() > 1) {
        is_fine = false;
        let _ = writeln!(out, "{} have the same id: {id}", addresses.join(" and "));
    }
    if topology.assigned() < usize::from(SLOTS) {
        is_fine = false;
        let _ = writeln!(out, "{} slots have no master", usize::from(SLOTS) - topology.assigned());
    }
    crate::terminal::print(&out)?;
    if is_fine { Ok(()) } else { Err("the cluster has faults: see above".to_owned()) }
}

async fn node_status(to: &ConnectArgs, address: &str) -> Result<NodeStatus, String> {
    let mut node = NodeClient::open(to, address).await?;
    let version = node.text(&["CLUSTERX", "VERSION"]).await?;
    let id = node.text(&["CLUSTERX", "MYID"]).await?;
    let rows = node.text(&["DBSIZE"]).await?.parse().map(grouped).unwrap_or_default();
    let replication = node.text(&["INFO", "replication"]).await?;
    let is_master = field(&replication, "role") == "master";
    let refusal = if is_master { refusal(&mut node).await } else { String::new() };
    let schema = schema(&mut node).await?;
    Ok(NodeStatus { id, version, rows, replication, refusal, schema })
}

/// Reads the definitions that must be equal on all nodes, because a page may span shards.
async fn schema(node: &mut NodeClient<'_, ConnectArgs>) -> Result<Option<Schema>, String> {
    let mut all = Schema::new();
    for kind in ["space", "view", "action"] {
        let list = match node.ask(&[&format!("TM.{kind}"), "LIST"]).await {
            Err(why) if why.contains(": NOPERM ") => return Ok(None),
            list => list?,
        };
        let Reply::Array(list) = list else { continue };
        for entry in list {
            let Reply::Array(entry) = entry else { continue };
            let (name, what) = parse_definition(kind, &entry);
            all.insert(format!("{kind} '{name}'"), what);
        }
    }
    Ok(Some(all))
}

/// Returns the name of a space, view or action, and the values to compare. Omits values that depend
/// on the contents of a space.
fn parse_definition(kind: &str, entry: &[Reply]) -> (String, Vec<Reply>) {
    let of_space = ["kind", "keys", "fields", "ledger"];
    let (mut name, mut what) = (String::new(), Vec::new());
    for pair in entry.chunks_exact(2) {
        let [Reply::BulkString(key), value] = pair else { continue };
        let key = String::from_utf8_lossy(key);
        match (key.as_ref(), value) {
            ("name", Reply::BulkString(own)) => {
                name = String::from_utf8_lossy(own).into_owned();
            }
            // Field names without widths and without dropped fields.
            ("fields", Reply::BulkString(all)) => {
                let names = names_of(&String::from_utf8_lossy(all)).join(" ");
                what.push(Reply::BulkString(names.into_bytes()));
            }
            (key, value) if kind != "space" || of_space.contains(&key) => what.push(value.clone()),
            _ => {}
        }
    }
    (name, what)
}

/// Describes how the node's definitions differ from `known`, which holds each definition and the
/// node that has it.
fn difference(own: &Schema, known: &BTreeMap<&String, (&Vec<Reply>, &str)>) -> Vec<String> {
    let told = known.iter().filter_map(|(name, (what, first))| match own.get(*name) {
        None => Some(format!("has no {name}, unlike {first}")),
        Some(own) if own != *what => Some(format!("its {name} differs from that of {first}")),
        Some(_) => None,
    });
    told.collect()
}

/// Returns the error with which the node rejects writes. INFO does not report an expired lease, so
/// this function sends a write that has no effect: TRIM of a space that cannot exist. A master that
/// accepts writes replies that the space does not exist.
async fn refusal(node: &mut NodeClient<'_, ConnectArgs>) -> String {
    let Err(said) = node.ask(&["CLUSTERX", "TRIM", "", "0"]).await else { return String::new() };
    let said = said.strip_prefix(&format!("{}: ", node.address)).unwrap_or(&said);
    // If the user lacks permission to write, the reply does not show the state of the master.
    let is_taken = ["ERR ", "NOPERM ", "LOADING "].iter().any(|word| said.starts_with(word));
    if is_taken { String::new() } else { said.to_owned() }
}

fn field<'a>(info: &'a str, name: &str) -> &'a str {
    info_field(info, name).unwrap_or_default()
}

/// Returns the state to show for a node without faults.
fn health(member: &Member) -> &'static str {
    if member.master.is_some() { "link to its master: up" } else { "up" }
}

/// Lists the differences between a node's state and its entry in the newest topology.
fn faults(node_status: &NodeStatus, member: &Member, version: i64) -> Vec<String> {
    let NodeStatus { id, replication, refusal, .. } = node_status;
    let mut faults = Vec::new();
    if id.is_empty() {
        faults.push("has no id and serves no slots".to_owned());
    } else if *id != member.id {
        faults.push(format!("is another node: {id}"));
    }
    match node_status.version.parse::<i64>() {
        Ok(known) if known == version => {}
        Ok(known) if known > version => faults.push("has a newer topology".to_owned()),
        Ok(0..) => faults.push("has an older topology".to_owned()),
        _ => faults.push("has no topology".to_owned()),
    }
    let is_master = field(replication, "role") == "master";
    if is_master && field(replication, "repl_fenced") == "1" {
        faults.push("fenced: refuses writes".to_owned());
    } else if refusal.starts_with("CLUSTERDOWN master lease expired") {
        faults.push("its lease has expired: refuses writes".to_owned());
    } else if !refusal.is_empty() {
        faults.push(format!("refuses writes: {refusal}"));
    }
    match &member.master {
        None if !is_master => faults.push("is a replica instead of a master".to_owned()),
        Some(_) if is_master => faults.push("is a master instead of a replica".to_owned()),
        _ => {}
    }
    if !is_master && field(replication, "master_link_status") != "up" {
        let why = match field(replication, "master_link_error") {
            "" if field(replication, "master_sync_in_progress") == "1" => "full sync",
            why => why,
        };
        let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
        faults.push(format!("link to its master: down{why}"));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASTER: &str = "role:master\r\nrepl_fenced:0\r\n";
    const REPLICA: &str = "role:slave\r\nmaster_link_status:up\r\nrepl_fenced:0\r\n";

    fn told(id: &str, version: i64, replication: &str, refusal: &str, is_replica: bool) -> String {
        let member = Member {
            id: "a".repeat(40),
            host: "h".to_owned(),
            port: 1,
            master: is_replica.then(|| "b".repeat(40)),
        };
        let node_status = NodeStatus {
            id: id.repeat(40),
            version: version.to_string(),
            rows: String::new(),
            replication: replication.to_owned(),
            refusal: refusal.to_owned(),
            schema: None,
        };
        faults(&node_status, &member, 7).join("; ")
    }

    #[test]
    fn a_node_that_does_its_part_has_no_faults() {
        assert_eq!(told("a", 7, MASTER, "", false), "");
        assert_eq!(told("a", 7, REPLICA, "", true), "");
    }

    #[test]
    fn a_node_that_is_not_that_of_its_line_is_told() {
        assert_eq!(told("", 7, MASTER, "", false), "has no id and serves no slots");
        assert_eq!(told("c", 7, MASTER, "", false), format!("is another node: {}", "c".repeat(40)));
        assert_eq!(told("a", 6, MASTER, "", false), "has an older topology");
        assert_eq!(told("a", 8, MASTER, "", false), "has a newer topology");
        let none = told("", -1, MASTER, "", false);
        assert_eq!(none, "has no id and serves no slots; has no topology");
        assert_eq!(told("a", 7, REPLICA, "", false), "is a replica instead of a master");
        assert_eq!(told("a", 7, MASTER, "", true), "is a master instead of a replica");
    }

    #[test]
    fn a_master_that_takes_no_writes_is_told() {
        let fenced = MASTER.replace("fenced:0", "fenced:1");
        let refused = "READONLY This master is fenced until its role is known";
        assert_eq!(told("a", 7, &fenced, refused, false), "fenced: refuses writes");
        let over = "CLUSTERDOWN master lease expired: another node may be the master";
        assert_eq!(told("a", 7, MASTER, over, false), "its lease has expired: refuses writes");
        let few = "NOREPLICAS Not enough good replicas to write.";
        assert_eq!(told("a", 7, MASTER, few, false), format!("refuses writes: {few}"));
    }

    #[test]
    fn nodes_with_other_views_are_told() {
        let text = |text: &str| Reply::BulkString(text.into());
        let space = |fields, rows| {
            let words = ["name", "post", "fields", fields, "rows", rows];
            parse_definition("space", &words.map(text))
        };
        assert_eq!(space("like:12 !old:8 read:16", "5"), space("like:14 read:16", "6"));
        assert_ne!(space("like:12", "5"), space("read:12", "5"));
        let what = [1, 2].map(|what| vec![Reply::Integer(what)]);
        let [home, wall] = ["view 'home'", "view 'wall'"].map(str::to_owned);
        let known = [(&home, (&what[0], "h:1")), (&wall, (&what[1], "h:2"))].into();
        let told = |own: &[(&String, usize)]| {
            let own = own.iter().map(|(name, of)| ((*name).clone(), what[*of].clone()));
            difference(&own.collect(), &known).join("; ")
        };
        assert_eq!(told(&[(&home, 0), (&wall, 1)]), "");
        let both = "its view 'home' differs from that of h:1; has no view 'wall', unlike h:2";
        assert_eq!(told(&[(&home, 1)]), both);
    }

    #[test]
    fn a_replica_whose_link_is_down_is_told_with_the_reason() {
        let down = |more: &str| {
            told("a", 7, &format!("role:slave\r\nmaster_link_status:down\r\n{more}"), "", true)
        };
        assert_eq!(down("master_link_error:no route\r\n"), "link to its master: down (no route)");
        let copies = "master_link_error:\r\nmaster_sync_in_progress:1\r\n";
        assert_eq!(down(copies), "link to its master: down (full sync)");
        assert_eq!(down(""), "link to its master: down");
    }
}
