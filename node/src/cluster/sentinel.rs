//! A topology from Redis Sentinel: which node is the master of which shard, as Sentinels say it.
//!
//! Each failover of Sentinel has a configuration epoch, which only rises. So a Sentinel that was
//! away, and says what was true once, is told from one that knows. What Sentinels say of the same
//! epoch is settled by their number. The version of the topology is the sum of the epochs: it never
//! falls, also not by a restart, since the data folder has it.

use crate::cluster::Topology;
use crate::cluster::slot::{SLOTS, parse_ranges};
use crate::config::{Config, Shard};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Where a node is reached.
pub type Place = (String, u16);

/// What a Sentinel says of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The configuration epoch.
    pub epoch: u64,
    /// The master.
    pub master: Place,
    /// Its replicas that this Sentinel reaches.
    pub replicas: Vec<Place>,
}

/// What all Sentinels have said: by Sentinel and shard.
#[derive(Default)]
pub struct Sentinels {
    said: BTreeMap<(usize, usize), Said>,
}

/// A host and a port, as host:port or [host]:port.
fn place(text: &str) -> Option<Place> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_matches(['[', ']']);
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

/// Where the Sentinels of a configuration are.
pub fn places(config: &Config) -> Vec<Place> {
    config.cluster.sentinels.iter().filter_map(|text| place(text)).collect()
}

/// Checks the Sentinels of a configuration, and the shards that they choose masters for.
pub fn check(config: &Config) -> Result<(), String> {
    let (sentinels, shards) = (&config.cluster.sentinels, &config.shard);
    if let Some(text) = sentinels.iter().find(|text| place(text).is_none()) {
        return Err(format!("cluster.sentinels: '{text}' is no host:port"));
    }
    if sentinels.is_empty() != shards.is_empty() {
        return Err("cluster.sentinels and [[shard]] go together: set both, or none if a \
                    controller says what the cluster is"
            .to_owned());
    }
    let mut taken = vec![false; usize::from(SLOTS)];
    for (at, shard) in shards.iter().enumerate() {
        let Shard { name, slots, master } = shard;
        if name.is_empty() || master.is_empty() {
            return Err("a [[shard]] has a name, and Sentinel's name of its master".to_owned());
        }
        if shards[..at].iter().any(|other| other.name == *name || other.master == *master) {
            return Err(format!("shard '{name}': another one has this name, or this master"));
        }
        let ranges = parse_ranges(slots);
        let ranges = ranges.map_err(|word| format!("shard '{name}': no slots: '{word}'"))?;
        if ranges.is_empty() {
            return Err(format!("shard '{name}': no slots"));
        }
        for slot in ranges.into_iter().flat_map(|(first, last)| first..=last) {
            if std::mem::replace(&mut taken[usize::from(slot)], true) {
                return Err(format!("shard '{name}': slot {slot} is another one's"));
            }
        }
    }
    Ok(())
}

/// The id of a node that Sentinels know by its address.
pub fn id_of((host, port): &Place) -> String {
    let half =
        |seed| xxhash_rust::xxh3::xxh3_128_with_seed(format!("{host} {port}").as_bytes(), seed);
    let mut id = format!("{:032x}{:032x}", half(0), half(1));
    id.truncate(super::topology::ID_BYTES);
    id
}

impl Sentinels {
    /// A Sentinel has said something of a shard. False: it is older than what it said before.
    pub fn hear(&mut self, sentinel: usize, shard: usize, said: Said) -> bool {
        let known = self.said.entry((sentinel, shard)).or_insert_with(|| said.clone());
        let is_older = known.epoch > said.epoch;
        if !is_older {
            *known = said;
        }
        !is_older
    }

    /// What holds of a shard: of the highest epoch what most Sentinels say, or the present master.
    fn of_shard(&self, shard: usize, now: Option<&Place>) -> Option<Said> {
        let said = || self.said.iter().filter(|((_, of), _)| *of == shard).map(|(_, said)| said);
        let epoch = said().map(|said| said.epoch).max()?;
        let mut votes: BTreeMap<&Place, usize> = BTreeMap::new();
        let newest = || said().filter(|said| said.epoch == epoch);
        newest().for_each(|said| *votes.entry(&said.master).or_default() += 1);
        let (master, _) =
            votes.into_iter().max_by_key(|(master, votes)| (*votes, now == Some(*master)))?;
        let of_it = newest().filter(|said| said.master == *master);
        let replicas: BTreeSet<Place> = of_it.flat_map(|said| said.replicas.clone()).collect();
        let replicas = replicas.into_iter().filter(|place| place != master).collect();
        Some(Said { epoch, master: master.clone(), replicas })
    }

    /// The topology, if it is another one than `now`. None as well while no Sentinel has spoken of
    /// a shard, and if what they say is older. `is_here`: whether an address is this node's.
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
        // A node that its Sentinels do not reach for a moment is the one that it was.
        let own = own.unwrap_or_else(|| now.own_id.clone());
        let next = Topology::parse(&text, version, &own)?;
        Ok(Some(next).filter(|next| next != now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Server;

    fn at(port: u16) -> Place {
        ("127.0.0.1".to_owned(), port)
    }

    fn said(epoch: u64, master: u16, replica: u16) -> Said {
        Said { epoch, master: at(master), replicas: vec![at(replica)] }
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
            ("[cluster]\nsentinels = [\"h\"]".to_owned(), "'h' is no host:port"),
            (sentinels.to_owned(), "go together"),
            (shard("a", "0"), "go together"),
            (format!("{sentinels}{}", shard("", "0")), "has a name"),
            (format!("{sentinels}{}", shard("a", "0-16384")), "no slots: '0-16384'"),
            (format!("{sentinels}{}", shard("a", "")), "shard 'a': no slots"),
            (format!("{sentinels}{}{}", shard("a", "0-9"), shard("b", "9")), "slot 9"),
            (format!("{sentinels}{}{}", shard("a", "0"), shard("a", "1")), "another one has"),
        ] {
            assert!(check(&text).contains(why), "{text}: {}", check(&text));
        }
    }

    /// Three Sentinels, two shards, this node is port 1.
    #[test]
    fn a_sentinel_that_was_away_takes_no_topology_back() {
        let next = |all: &Sentinels, now: &Topology| {
            all.topology(&shards(), now, |_, port| port == 1).unwrap()
        };
        let mut all = Sentinels::default();
        assert!(all.hear(0, 0, said(0, 1, 2)));
        assert_eq!(next(&all, &Topology::default()), None, "no word of the other shard");
        assert!(all.hear(0, 1, said(0, 3, 4)));
        let first = next(&all, &Topology::default()).unwrap();
        assert_eq!((first.version, first.server_of(0)), (0, Server::Own));
        assert!(matches!(first.server_of(16_383), Server::Other(m) if m.port == 3));
        assert_eq!(next(&all, &first), None, "the same is no news");
        // A failover, of which one of them knows.
        assert!(all.hear(1, 0, said(7, 2, 1)));
        let second = next(&all, &first).unwrap();
        assert!(matches!(second.server_of(0), Server::OwnMaster(m) if m.port == 2));
        assert_eq!(second.version, 7);
        assert!(all.hear(0, 0, said(0, 1, 2)) && all.hear(2, 0, said(0, 1, 2)));
        assert_eq!(next(&all, &second), None, "more of them know nothing yet");
        assert!(!all.hear(1, 0, said(6, 1, 2)), "it said 7 before");
        assert_eq!(next(&all, &second), None);
        // After a restart of this node only one that was away answers.
        let mut stale = Sentinels::default();
        assert!(stale.hear(0, 0, said(0, 1, 2)) && stale.hear(0, 1, said(0, 3, 4)));
        assert_eq!(next(&stale, &second), None);
        // Of one epoch what most say holds, and where they are as many what holds already.
        assert!(all.hear(0, 0, said(7, 1, 2)));
        assert_eq!(next(&all, &second), None, "one against one");
        assert!(all.hear(2, 0, said(7, 1, 2)));
        assert!(matches!(next(&all, &second).unwrap().server_of(0), Server::Own));
    }
}
