//! Finds masters of a Redis Cluster that are missing among the sources.

use crate::cluster_nodes::nodes;
use client::{Client, Reply};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(super) struct ClusterNodes {
    /// Addresses of masters with slots, by id.
    masters: BTreeMap<String, String>,
    /// Ids of masters that are sources themselves, or that have a replica among the sources.
    named: BTreeSet<String>,
}

impl ClusterNodes {
    /// Asks a source for its cluster nodes. Ignores errors, such as a missing permission.
    pub(super) fn note(&mut self, remote: &mut Client) {
        let nodes = remote.ask(&[b"CLUSTER", b"NODES"]).ok().and_then(Reply::into_text);
        self.read(&nodes.unwrap_or_default());
    }

    fn read(&mut self, text: &str) {
        for node in nodes(text) {
            if node.is_master() && !node.slots.is_empty() {
                self.masters.insert(node.id.to_owned(), node.address.to_owned());
            }
            if node.is_myself() {
                let master = if node.is_master() { node.id } else { node.master };
                self.named.insert(master.to_owned());
            }
        }
    }

    pub(super) fn absent(&self) -> Vec<String> {
        let absent = self.masters.iter().filter(|(id, _)| !self.named.contains(*id));
        absent.map(|(_, address)| address.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::ClusterNodes;

    #[test]
    fn masters_that_no_source_is_are_found() {
        let line = |id: &str, port: u16, flags: &str, master: &str, slots: &str| {
            format!("{id} 10.0.0.1:{port}@1{port} {flags} {master} 0 0 1 connected {slots}\n")
        };
        let mut known = ClusterNodes::default();
        known.read(
            &(line("a", 7001, "myself,master", "-", "0-5460")
                + &line("b", 7002, "master", "-", "5461-10922")
                + &line("c", 7003, "master,fail", "-", "10923-16383 [0->-a]")
                + &line("d", 7004, "slave", "b", "")
                + &line("e", 7005, "master", "-", "")),
        );
        assert_eq!(known.absent(), ["10.0.0.1:7002", "10.0.0.1:7003"]);
        known.read(&line("d", 7004, "myself,slave", "b", ""));
        assert_eq!(known.absent(), ["10.0.0.1:7003"]);
        known.read(&line("c", 7003, "myself,master", "-", "10923-16383"));
        assert!(known.absent().is_empty());
    }
}
