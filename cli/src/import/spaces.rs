//! Reads the list of spaces and the cluster topology from a server.

use super::args::{ImportArgs, LineShape};
use crate::cluster_nodes::text_of;
use client::{Client, ConnectArgs, Link, Reply, refused, timely};
use counter::Field;
use node::cluster::slot::{SLOTS, of_id};
use node::cluster::{Member, Topology};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// Spaces, actions and cluster topology of a server. Parts that the user has no permission to read
/// are empty.
#[derive(Default)]
pub(crate) struct Spaces {
    pub(crate) counters: Vec<String>,
    pub(crate) existences: Vec<String>,
    pub(super) actions: Vec<String>,
    /// Counters of each counter space, in the order of its rows.
    pub(crate) fields: HashMap<String, Vec<String>>,
    pub(crate) declared: HashMap<String, Vec<Field>>,
    pub(crate) cluster: Cluster,
}

#[derive(Clone, Debug, Default)]
pub(crate) enum Cluster {
    /// The server has all rows, because it is not part of a cluster. Also used if the user has no
    /// permission to read the topology.
    #[default]
    Whole,
    /// The cluster has this topology: each master has the rows of its own slots.
    Part(Arc<Topology>),
    /// The server is a cluster node without a topology, so it serves no slots.
    Unknown,
}

impl Cluster {
    async fn ask(link: &mut Link) -> io::Result<Cluster> {
        let info = timely(link.call(&[b"INFO", b"cluster"])).await?;
        if !info.into_text().unwrap_or_default().contains("cluster_enabled:1") {
            return Ok(Cluster::Whole);
        }
        match timely(link.call(&[b"CLUSTER", b"NODES"])).await? {
            Reply::Error(reason) if reason.starts_with("CLUSTERDOWN") => Ok(Cluster::Unknown),
            Reply::Error(reason) => Err(refused(format!("CLUSTER NODES failed: {reason}"))),
            lines => Cluster::of(&lines.into_text().unwrap_or_default()),
        }
    }

    fn of(lines: &str) -> io::Result<Cluster> {
        let topology = Topology::parse(&text_of(lines), 0, "");
        let topology = topology.map_err(|why| refused(format!("CLUSTER NODES: {why}")))?;
        Ok(Cluster::Part(Arc::new(topology)))
    }

    /// Returns the servers with rows: the server itself, or the cluster's masters with slots.
    pub(crate) fn servers(&self, connect: &ConnectArgs) -> Vec<ConnectArgs> {
        let Cluster::Part(topology) = self else { return vec![connect.clone()] };
        let to =
            |of: &Member| ConnectArgs { host: of.host.clone(), port: of.port, ..connect.clone() };
        masters(topology).map(to).collect()
    }

    /// Returns the assignment of rows to [`Cluster::servers`].
    pub(crate) fn server_by_slot(&self) -> ServerBySlot {
        let Cluster::Part(topology) = self else { return ServerBySlot::default() };
        let mut of_slots = vec![0; usize::from(SLOTS)];
        for (number, master) in masters(topology).enumerate() {
            for slot in topology.slots_of(&master.id) {
                of_slots[usize::from(slot)] = number as u16;
            }
        }
        ServerBySlot(of_slots)
    }

    /// Returns whether the same masters have the same slots.
    pub(crate) fn is_same(&self, other: &Cluster) -> bool {
        match (self, other) {
            (Cluster::Part(own), Cluster::Part(other)) => own.ranges() == other.ranges(),
            (Cluster::Whole, Cluster::Whole) | (Cluster::Unknown, Cluster::Unknown) => true,
            _ => false,
        }
    }

    /// Fails if some slots have no master.
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Cluster::Part(topology) if topology.assigned() < usize::from(SLOTS) => Err(format!(
                "{} slots of the cluster have no master. Assign them first (see tidemark cluster \
                 status)",
                usize::from(SLOTS) - topology.assigned()
            )),
            Cluster::Whole | Cluster::Part(_) => Ok(()),
            Cluster::Unknown => Err(
                "the server is a cluster node without a topology, so it serves no slots. Send it \
                 one first (CLUSTERX SETNODES)"
                    .to_owned(),
            ),
        }
    }
}

/// Maps each slot to the index of its server. It is empty if one server has all rows.
#[derive(Default)]
pub(crate) struct ServerBySlot(pub(super) Vec<u16>);

impl ServerBySlot {
    /// Returns the index of the server with the row of an id.
    pub(crate) fn of(&self, id: u64) -> usize {
        self.0.get(usize::from(of_id(id))).map_or(0, |number| usize::from(*number))
    }
}

fn masters(topology: &Topology) -> impl Iterator<Item = &Member> {
    topology.masters().filter(|one| !topology.slots_of(&one.id).is_empty())
}

pub(crate) fn with_server_address(server: &ConnectArgs, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", server.address()))
}

pub(super) fn check_field(space: &str, known: &[String], field: &String) -> Result<(), String> {
    if known.contains(field) {
        return Ok(());
    }
    Err(format!("no such field '{field}' in the space '{space}'; it has: {}", known.join(", ")))
}

impl Spaces {
    pub(crate) fn open(connect: &ConnectArgs) -> io::Result<(Client, Spaces)> {
        let mut remote = Client::open(connect)?;
        let spaces = remote.run(Spaces::ask)?;
        Ok((remote, spaces))
    }

    /// Reads the spaces of the server. Without permission to list them, a missing space is only
    /// reported at the first line.
    pub(crate) async fn ask(link: &mut Link) -> io::Result<Spaces> {
        let mut spaces = Spaces::default();
        let list = timely(link.call(&[b"TM.SPACE", b"LIST"])).await?;
        if let Reply::Error(reason) = &list
            && reason.starts_with("ERR unknown command")
        {
            return Err(refused(format!("not a Tidemark server: {reason}")));
        }
        for map in maps(list) {
            let Some(name) = map.get("name").cloned() else { continue };
            match map.get("kind").map(String::as_str) {
                Some("counter") => {
                    let fields = map.get("fields").map(String::as_str).unwrap_or_default();
                    spaces.fields.insert(name.clone(), names_of(fields));
                    let words = fields.split_whitespace().filter(|word| !word.starts_with('!'));
                    let declared = words.map(Field::parse).collect::<Result<_, _>>();
                    let declared = declared.map_err(|e| refused(format!("its schema: {e}")))?;
                    spaces.declared.insert(name.clone(), declared);
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

    /// Checks that the server has the space or action that a file needs, and all fields of the
    /// file.
    pub(super) fn check(&self, shape: &LineShape, args: &ImportArgs) -> Result<(), String> {
        if let LineShape::Rows { fields, .. } = shape
            && let Some(known) = self.fields.get(&args.space)
        {
            let is_twice = |at: usize| fields[..at].contains(&fields[at]);
            if let Some(at) = (0..fields.len()).find(|at| is_twice(*at)) {
                return Err(format!("duplicate field '{}'", fields[at]));
            }
            fields.iter().try_for_each(|field| check_field(&args.space, known, field))?;
        }
        let (what, name, all) = match shape {
            LineShape::Rows { .. } => ("counter space", &args.space, &self.counters),
            LineShape::Flags => ("existence space", &args.space, &self.existences),
            LineShape::Events => ("action", &args.action, &self.actions),
        };
        if !all.is_empty() && !all.contains(name) {
            return Err(format!("no such {what} '{name}'; the server has: {}", all.join(", ")));
        }
        self.cluster.check()
    }
}

/// Returns the field names of a schema in the order of CNT.GET replies. Omits dropped fields, whose
/// names begin with `!`.
pub(crate) fn names_of(fields: &str) -> Vec<String> {
    let name = |field: &str| field.split(':').next().unwrap_or_default().to_owned();
    fields.split_whitespace().filter(|field| !field.starts_with('!')).map(name).collect()
}

/// Converts a list of maps, omitting values that are not strings.
pub(crate) fn maps(reply: Reply) -> Vec<HashMap<String, String>> {
    let Reply::Array(maps) = reply else { return Vec::new() };
    let text = |reply: &Reply| reply.clone().into_text();
    let one = |map: Reply| {
        let Reply::Array(items) = map else { return None };
        let pairs = items.chunks_exact(2);
        Some(pairs.filter_map(|pair| Some((text(&pair[0])?, text(&pair[1])?))).collect())
    };
    maps.into_iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(port: u16, flags: &str, master: &str, slots: &str) -> String {
        let id = |port: &str| if port == "-" { "-".to_owned() } else { format!("{port:0>40}") };
        let (own, master) = (id(&port.to_string()), id(master));
        format!("{own} 10.0.0.1:{port}@0 {flags} {master} 0 0 1 connected {slots}\n")
    }

    #[test]
    fn the_rows_of_a_slot_are_at_its_master() {
        let ports = |cluster: &Cluster| {
            let servers = cluster.servers(&ConnectArgs::default());
            servers.iter().map(|to| to.port).collect::<Vec<_>>()
        };
        // The result does not depend on the node that sends the reply.
        let all = line(7001, "master", "-", "0-16383");
        let others = line(7002, "slave", "7001", "") + &line(7003, "myself,master", "-", "");
        let one = Cluster::of(&(all.clone() + &others)).unwrap();
        assert_eq!((ports(&one), one.check()), (vec![7001], Ok(())));
        assert!(one.is_same(&Cluster::of(&all).unwrap()), "a replica makes no difference");
        let own = line(7001, "myself,master", "-", "0-8191");
        let of = |slots| Cluster::of(&(own.clone() + &line(7002, "master,fail?", "-", slots)));
        let (both, some) = (of("8192-16383").unwrap(), of("8192-16000").unwrap());
        assert_eq!((ports(&both), both.check()), (vec![7001, 7002], Ok(())));
        let ServerBySlot(of_slots) = both.server_by_slot();
        assert_eq!((of_slots[8191], of_slots[8192], of_slots[16383]), (0, 1, 1));
        for (lacks, cluster) in [("383", some.clone()), ("8192", Cluster::of(&own).unwrap())] {
            let refused = cluster.check().unwrap_err();
            assert!(refused.starts_with(&format!("{lacks} slots of the cluster")), "{refused}");
        }
        assert!(Cluster::Unknown.check().is_err());
        assert_eq!(Cluster::Whole.server_by_slot().0, [0; 0]);
        assert!(both.is_same(&both) && !both.is_same(&some) && !both.is_same(&Cluster::Whole));
        for strange in ["", "what is this? no line of a cluster has so many words"] {
            assert!(Cluster::of(strange).is_err());
        }
    }
}
