//! What the server has, as far as it tells us.

use super::ImportArgs;
use super::command::Shape;
use super::redis::source::{Remote, bytes};
use crate::cluster_nodes::nodes;
use node::client::connect::{ConnectArgs, Link, refused, timely};
use redis_protocol::resp2::types::OwnedFrame;
use std::collections::HashMap;
use std::io;

/// What the server has, as far as it tells us.
#[derive(Default)]
pub(crate) struct Spaces {
    pub(crate) counters: Vec<String>,
    pub(crate) existences: Vec<String>,
    pub(super) actions: Vec<String>,
    /// The counters of each counter space, in the order of its rows.
    pub(crate) fields: HashMap<String, Vec<String>>,
    /// What it says of its cluster.
    pub(crate) cluster: Cluster,
}

/// What the server says of its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cluster {
    /// It has all rows: it is of no cluster, or of one with one shard; or it may not be asked.
    #[default]
    Whole,
    /// It has the rows of its own slots. These are the masters with slots.
    Part(Vec<String>),
    /// It knows no topology yet, so it serves no slot.
    Unknown,
}

impl Cluster {
    async fn ask(link: &mut Link) -> io::Result<Cluster> {
        let info = timely(link.call(&[b"INFO", b"cluster"])).await?;
        let text = |frame: OwnedFrame| bytes(frame).unwrap_or_default();
        if !String::from_utf8_lossy(&text(info)).contains("cluster_enabled:1") {
            return Ok(Cluster::Whole);
        }
        Ok(match timely(link.call(&[b"CLUSTER", b"NODES"])).await? {
            OwnedFrame::Error(reason) if reason.starts_with("CLUSTERDOWN") => Cluster::Unknown,
            lines => Cluster::of(&String::from_utf8_lossy(&text(lines))),
        })
    }

    /// By what CLUSTER NODES answers.
    fn of(lines: &str) -> Cluster {
        let masters = nodes(lines).filter(|node| node.is_master() && !node.slots.is_empty());
        let masters: Vec<String> = masters.map(|node| node.address.to_owned()).collect();
        if masters.len() > 1 { Cluster::Part(masters) } else { Cluster::Whole }
    }

    /// Refuses to load what one node of a cluster takes only for its own slots.
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Cluster::Whole => Ok(()),
            Cluster::Part(masters) => Err(format!(
                "the server is of a cluster of {} masters ({}), and takes the rows of its own \
                 slots only. Nothing was written. Load into a cluster of one master and divide it \
                 then (`tidemark cluster split`), or load with a client for clusters, which sends \
                 each row to the master of its slot",
                masters.len(),
                masters.join(", ")
            )),
            Cluster::Unknown => Err(
                "the server is a node of a cluster, and knows no topology yet, so it serves no \
                 slot. Nothing was written. Give it one first (CLUSTERX SETNODES)"
                    .to_owned(),
            ),
        }
    }
}

/// Whether a space with these counters has this one.
pub(super) fn check_field(space: &str, known: &[String], field: &String) -> Result<(), String> {
    if known.contains(field) {
        return Ok(());
    }
    Err(format!("the space '{space}' has no field '{field}'; it has: {}", known.join(", ")))
}

impl Spaces {
    /// A connection to the server, and what it has.
    pub(crate) fn open(connect: &ConnectArgs) -> io::Result<(Remote, Spaces)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let tls = connect.tls()?;
        let (link, spaces) = runtime.block_on(async {
            let mut link = connect.open(tls.as_ref()).await?;
            let spaces = Spaces::ask(&mut link).await?;
            io::Result::Ok((link, spaces))
        })?;
        Ok((Remote::of(link, runtime), spaces))
    }

    /// Asks. Users without the right to ask hear of what is missing with the first line.
    pub(crate) async fn ask(link: &mut Link) -> io::Result<Spaces> {
        let mut spaces = Spaces::default();
        let list = timely(link.call(&[b"TM.SPACE", b"LIST"])).await?;
        if let OwnedFrame::Error(reason) = &list
            && reason.starts_with("ERR unknown command")
        {
            return Err(refused(format!("it is no Tidemark: {reason}")));
        }
        for map in maps(list) {
            let Some(name) = map.get("name").cloned() else { continue };
            match map.get("kind").map(String::as_str) {
                Some("counter") => {
                    let fields = map.get("fields").map(String::as_str).unwrap_or_default();
                    spaces.fields.insert(name.clone(), names_of(fields));
                    spaces.counters.push(name);
                }
                Some("existence") => spaces.existences.push(name),
                _ => {}
            }
        }
        let actions = maps(timely(link.call(&[b"TM.ACTION", b"LIST"])).await?);
        spaces.actions = actions.into_iter().filter_map(|mut map| map.remove("name")).collect();
        spaces.cluster = Cluster::ask(link).await?;
        Ok(spaces)
    }

    /// Whether what a file wants is there.
    pub(super) fn check(&self, shape: &Shape, args: &ImportArgs) -> Result<(), String> {
        if let Shape::Rows { fields } = shape
            && let Some(known) = self.fields.get(&args.space)
        {
            let is_twice = |at: usize| fields[..at].contains(&fields[at]);
            if let Some(at) = (0..fields.len()).find(|at| is_twice(*at)) {
                return Err(format!("the field '{}' is named twice", fields[at]));
            }
            fields.iter().try_for_each(|field| check_field(&args.space, known, field))?;
        }
        let (what, name, all) = match shape {
            Shape::Rows { .. } => ("counter space", &args.space, &self.counters),
            Shape::Flags => ("existence space", &args.space, &self.existences),
            Shape::Events => ("action", &args.action, &self.actions),
        };
        if !all.is_empty() && !all.contains(name) {
            return Err(format!("the server has no {what} '{name}'; it has: {}", all.join(", ")));
        }
        match &self.cluster {
            // A node passes flags and events on to their shards.
            Cluster::Part(_) if !matches!(shape, Shape::Rows { .. }) => Ok(()),
            cluster => cluster.check(),
        }
    }
}

/// The names of a schema, in the order in which CNT.GET answers their values: dropped fields, which
/// begin with `!`, have none.
fn names_of(fields: &str) -> Vec<String> {
    let name = |field: &str| field.split(':').next().unwrap_or_default().to_owned();
    fields.split_whitespace().filter(|field| !field.starts_with('!')).map(name).collect()
}

/// The texts of each of the maps of a list, by name.
pub(crate) fn maps(reply: OwnedFrame) -> Vec<HashMap<String, String>> {
    let OwnedFrame::Array(maps) = reply else { return Vec::new() };
    let text = |frame: &OwnedFrame| match frame {
        OwnedFrame::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    };
    let one = |map: OwnedFrame| {
        let OwnedFrame::Array(items) = map else { return None };
        let pairs = items.chunks_exact(2);
        Some(pairs.filter_map(|pair| Some((text(&pair[0])?, text(&pair[1])?))).collect())
    };
    maps.into_iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(port: u16, flags: &str, master: &str, slots: &str) -> String {
        format!("{port} 10.0.0.1:{port}@0 {flags} {master} 0 0 1 connected {slots}\n")
    }

    #[test]
    fn a_node_has_all_rows_unless_several_masters_have_slots() {
        let own = line(7001, "myself,master", "-", "0-16383");
        assert_eq!(Cluster::of(""), Cluster::Whole);
        let others = line(7002, "slave", "7001", "") + &line(7003, "master", "-", "");
        assert_eq!(Cluster::of(&(own + &others)), Cluster::Whole);
        let own = line(7001, "myself,master", "-", "0-8191");
        let both = Cluster::of(&(own + &line(7002, "master,fail?", "-", "8192-16383")));
        let masters = ["10.0.0.1:7001", "10.0.0.1:7002"].map(str::to_owned).to_vec();
        assert_eq!(both, Cluster::Part(masters));
    }

    #[test]
    fn rows_for_a_part_of_a_cluster_are_refused_and_flags_are_not() {
        let cluster = Cluster::Part(vec!["a:1".to_owned(), "b:1".to_owned()]);
        let mut spaces = Spaces { cluster, ..Spaces::default() };
        let args = ImportArgs::default();
        let rows = Shape::Rows { fields: Vec::new() };
        let refused = spaces.check(&rows, &args).unwrap_err();
        assert!(refused.contains("2 masters (a:1, b:1)"), "{refused}");
        assert!(spaces.check(&Shape::Flags, &args).is_ok());
        assert!(spaces.check(&Shape::Events, &args).is_ok());
        spaces.cluster = Cluster::Unknown;
        assert!(spaces.check(&Shape::Flags, &args).is_err());
        spaces.cluster = Cluster::Whole;
        assert!(spaces.check(&rows, &args).is_ok());
    }
}
