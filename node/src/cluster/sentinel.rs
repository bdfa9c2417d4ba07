//! Obtains the topology from Redis Sentinel, which reports the master of each shard.
//!
//! Each failover has a higher configuration epoch, so a lower epoch marks a stale Sentinel. Within
//! one epoch the majority decides. The topology's version is the sum of the epochs. The version
//! never decreases, even after a restart, because the data folder stores the version.

use crate::cluster::Topology;
use crate::cluster::slot::{SLOTS, parse_ranges};
use crate::config::{Config, Shard};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Host and port.
pub type SentinelAddress = (String, u16);

/// A Sentinel's view of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentinelReply {
    /// Configuration epoch of the shard.
    pub epoch: u64,
    /// Address of the master.
    pub master: SentinelAddress,
    /// Replicas that this Sentinel can reach.
    pub replicas: Vec<SentinelAddress>,
}

/// Views of all Sentinels, by Sentinel and shard.
#[derive(Default)]
pub struct Sentinels {
    said: BTreeMap<(usize, usize), SentinelReply>,
}

/// Parses `host:port` or `[host]:port`.
fn place(text: &str) -> Option<SentinelAddress> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_matches(['[', ']']);
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

/// Returns the addresses of the configured Sentinels.
pub fn places(config: &Config) -> Vec<SentinelAddress> {
    config.cluster.sentinels.iter().filter_map(|text| place(text)).collect()
}

/// Checks the configuration of Sentinels and shards.
pub fn check(config: &Config) -> Result<(), String> {
    let (sentinels, shards) = (&config.cluster.sentinels, &config.shard);
    if let Some(text) = sentinels.iter().find(|text| place(text).is_none()) {
        return Err(format!("cluster.sentinels: '{text}' is not in the form host:port"));
    }
    if sentinels.is_empty() != shards.is_empty() {
        return Err(
            "set both cluster.sentinels and [[shard]], or neither if a controller manages the \
             cluster"
                .to_owned(),
        );
    }
    let mut taken = vec![false; usize::from(SLOTS)];
    for (at, shard) in shards.iter().enumerate() {
        let Shard { name, slots, master } = shard;
        if name.is_empty() || master.is_empty() {
            return Err("each [[shard]] needs a name and the master's name in Sentinel".to_owned());
        }
        if shards[..at].iter().any(|other| other.name == *name || other.master == *master) {
            return Err(format!("shard '{name}': duplicate name or master"));
        }
        let ranges = parse_ranges(slots);
        let ranges = ranges.map_err(|word| format!("shard '{name}': invalid slots '{word}'"))?;
        if ranges.is_empty() {
            return Err(format!("shard '{name}': slots is empty"));
        }
        for slot in ranges.into_iter().flat_map(|(first, last)| first..=last) {
            if std::mem::replace(&mut taken[usize::from(slot)], true) {
                return Err(format!("shard '{name}': slot {slot} belongs to another shard"));
            }
        }
    }
    Ok(())
}

/// Derives a node id from an address.
pub fn id_of((host, port): &SentinelAddress) -> String {
    let half =
        |seed| xxhash_rust::xxh3::xxh3_128_with_seed(format!("{host} {port}").as_bytes(), seed);
    let mut id = format!("{:032x}{:032x}", half(0), half(1));
    id.truncate(super::topology::ID_BYTES);
    id
}

impl Sentinels {
    /// Records a Sentinel's view of a shard. Returns false if the view is older than the last view
    /// from this Sentinel.
    pub fn hear(&mut self, sentinel: usize, shard: usize, said: SentinelReply) -> bool {
        let known = self.said.entry((sentinel, shard)).or_insert_with(|| said.clone());
        let is_older = known.epoch > said.epoch;
        if !is_older {
            *known = said;
        }
        !is_older
    }

    /// Returns the master that most Sentinels name in the highest epoch. In a tie the current
    /// master wins.
    fn of_shard(&self, shard: usize, now: Option<&SentinelAddress>) -> Option<SentinelReply> {
        let said = || self.said.iter().filter(|((_, of), _)| *of == shard).map(|(_, said)| said);
        let epoch = said().map(|said| said.epoch).max()?;
        let mut votes: BTreeMap<&SentinelAddress, usize> = BTreeMap::new();
        let newest = || said().filter(|said| said.epoch == epoch);
        newest().for_each(|said| *votes.entry(&said.master).or_default() += 1);
        let (master, _) =
            votes.into_iter().max_by_key(|(master, votes)| (*votes, now == Some(*master)))?;
        let of_it = newest().filter(|said| said.master == *master);
        let replicas: BTreeSet<SentinelAddress> =
            of_it.flat_map(|said| said.replicas.clone()).collect();
        let replicas = replicas.into_iter().filter(|place| place != master).collect();
        Some(SentinelReply { epoch, master: master.clone(), replicas })
    }

    /// Returns the topology if it differs from `now`. Also returns `None` if a shard has no view,
    /// or if the views are older than `now`. `is_here` returns whether an address belongs to this
    /// node.
    pub fn topology(
        &self,
        shards: &[Shard],
        now: &Topology,
        is_here: impl Fn(&str, u16) -> bool,
    ) -> Result<Option<Topology>, String> {
        let (mut text, mut version, mut own) = (String::new(), 0, None);
        for (number, shard) in shards.iter().enumerate() {
            let ranges = parse_ranges(&shard.slots).unwrap_or_default();
            let present = ranges.first().and_then(|range| now.number_of(range.0));
            let present = present.map(|at| &now.members()[at]);
            let present = present.map(|member| (member.host.clone(), member.port));
            let Some(said) = self.of_shard(number, present.as_ref()) else { return Ok(None) };
            version += i64::try_from(said.epoch).unwrap_or(i64::MAX / 2);
            let (id, (host, port)) = (id_of(&said.master), &said.master);
            let _ = writeln!(text, "{id} {host} {port} master - {}", shard.slots);
            for place in &said.replicas {
                let _ = writeln!(text, "{} {} {} slave {id}", id_of(place), place.0, place.1);
            }
            let all = std::iter::once(&said.master).chain(&said.replicas);
            own = own.or_else(|| all.into_iter().find(|at| is_here(&at.0, at.1)).map(id_of));
        }
        if version < now.version {
            return Ok(None);
        }
        // A node keeps its id while the Sentinels cannot reach the node.
        let own = own.unwrap_or_else(|| now.own_id.clone());
        let next = Topology::parse(&text, version, &own)?;
        Ok(Some(next).filter(|next| next != now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Server;

    fn at(port: u16) -> SentinelAddress {
        ("127.0.0.1".to_owned(), port)
    }

    fn said(epoch: u64, master: u16, replica: u16) -> SentinelReply {
        SentinelReply { epoch, master: at(master), replicas: vec![at(replica)] }
    }

    fn shards() -> Vec<Shard> {
        let shard = |name: &str, slots: &str| Shard {
            name: name.to_owned(),
            slots: slots.to_owned(),
            master: name.to_owned(),
        };
        vec![shard("a", "0-8191"), shard("b", "8192-16383")]
    }

    #[test]
    fn shards_and_sentinels_go_together_and_share_no_slot() {
        let check = |text: &str| {
            check(&Config::parse(text, std::path::Path::new("t.toml")).unwrap()).unwrap_err()
        };
        let sentinels = "[cluster]\nsentinels = [\"h:1\"]\n";
        let shard = |name: &str, slots: &str| {
            format!("[[shard]]\nname = \"{name}\"\nmaster = \"{name}\"\nslots = \"{slots}\"\n")
        };
        for (text, why) in [
            ("[cluster]\nsentinels = [\"h\"]".to_owned(), "'h' is not in the form host:port"),
            (sentinels.to_owned(), "set both"),
            (shard("a", "0"), "set both"),
            (format!("{sentinels}{}", shard("", "0")), "needs a name"),
            (format!("{sentinels}{}", shard("a", "0-16384")), "invalid slots '0-16384'"),
            (format!("{sentinels}{}", shard("a", "")), "shard 'a': slots is empty"),
            (format!("{sentinels}{}{}", shard("a", "0-9"), shard("b", "9")), "slot 9"),
            (format!("{sentinels}{}{}", shard("a", "0"), shard("a", "1")), "duplicate name"),
        ] {
            assert!(check(&text).contains(why), "{text}: {}", check(&text));
        }
    }

    /// Three Sentinels and two shards; this node has port 1.
    #[test]
    fn a_sentinel_that_was_away_takes_no_topology_back() {
        let next = |all: &Sentinels, now: &Topology| {
            all.topology(&shards(), now, |_, port| port == 1).unwrap()
        };
        let mut all = Sentinels::default();
        assert!(all.hear(0, 0, said(0, 1, 2)));
        assert_eq!(next(&all, &Topology::default()), None, "the other shard is unknown");
        assert!(all.hear(0, 1, said(0, 3, 4)));
        let first = next(&all, &Topology::default()).unwrap();
        assert_eq!((first.version, first.server_of(0)), (0, Server::Own));
        assert!(matches!(first.server_of(16_383), Server::Other(m) if m.port == 3));
        assert_eq!(next(&all, &first), None, "an equal reply changes nothing");
        // Only one Sentinel knows about this failover.
        assert!(all.hear(1, 0, said(7, 2, 1)));
        let second = next(&all, &first).unwrap();
        assert!(matches!(second.server_of(0), Server::OwnMaster(m) if m.port == 2));
        assert_eq!(second.version, 7);
        assert!(all.hear(0, 0, said(0, 1, 2)) && all.hear(2, 0, said(0, 1, 2)));
        assert_eq!(next(&all, &second), None, "most Sentinels do not know the master yet");
        assert!(!all.hear(1, 0, said(6, 1, 2)), "an earlier Sentinel said 7");
        assert_eq!(next(&all, &second), None);
        // After a restart of this node only a stale Sentinel answers.
        let mut stale = Sentinels::default();
        assert!(stale.hear(0, 0, said(0, 1, 2)) && stale.hear(0, 1, said(0, 3, 4)));
        assert_eq!(next(&stale, &second), None);
        // Within an epoch the majority wins. In a tie the current master wins.
        assert!(all.hear(0, 0, said(7, 1, 2)));
        assert_eq!(next(&all, &second), None, "one Sentinel against one");
        assert!(all.hear(2, 0, said(7, 1, 2)));
        assert!(matches!(next(&all, &second).unwrap().server_of(0), Server::Own));
    }
}
