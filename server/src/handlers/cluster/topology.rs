//! CLUSTER, as a cluster of one shard answers it: this node, or the master that it follows, owns
//! all slots, and replicas are replicas of it. So clients for clusters connect by default. For all
//! others this is a standalone server: HELLO says so, and INFO's `cluster_enabled` is 0, which no
//! client for clusters looks at before it asks for the slots.
//!
//! A node's id is the hash of its address, so it is the same in the words of each node, and after a
//! restart. There is no cluster bus: what changes a cluster is refused.

use crate::handlers::Handler;
use crate::handlers::call::Call;
use crate::handlers::help::help;
use crate::handlers::redis::keys::{every_key, refuse_many_keys};
use ::replication::Sending;
use node::command::error::{Refusal, refuse};
use node::command::spec::Outcome;
use node::roles::node::Node;
use node::roles::{LinkState, Master};
use resp::Reply;
use std::collections::BTreeSet;
use std::fmt::Write as _;

pub(crate) const RUN: &[(&str, Handler)] = &[
    ("asking", accepted),
    ("cluster|addslots", no_cluster),
    ("cluster|addslotsrange", no_cluster),
    ("cluster|bumpepoch", no_cluster),
    ("cluster|count-failure-reports", failure_reports),
    ("cluster|countkeysinslot", count_keys),
    ("cluster|delslots", no_cluster),
    ("cluster|delslotsrange", no_cluster),
    ("cluster|failover", no_cluster),
    ("cluster|flushslots", no_cluster),
    ("cluster|forget", no_cluster),
    ("cluster|getkeysinslot", get_keys),
    ("cluster|help", help),
    ("cluster|info", info),
    ("cluster|keyslot", key_slot),
    ("cluster|links", links),
    ("cluster|meet", no_cluster),
    ("cluster|myid", my_id),
    ("cluster|myshardid", my_shard_id),
    ("cluster|nodes", nodes),
    ("cluster|replicas", replicas),
    ("cluster|replicate", no_cluster),
    ("cluster|reset", no_cluster),
    ("cluster|saveconfig", no_cluster),
    ("cluster|set-config-epoch", no_cluster),
    ("cluster|setslot", no_cluster),
    ("cluster|shards", shards),
    ("cluster|slaves", replicas),
    ("cluster|slots", slots),
    ("cluster", help),
    ("readonly", accepted),
    ("readwrite", accepted),
    ("module|help", help),
    ("module|list", list),
    ("module", help),
];

const SLOTS: u16 = 16_384;

fn no_cluster(_: &mut Call<'_>) -> Outcome {
    Err(refuse!("ERR This instance has cluster support disabled"))
}

fn accepted(call: &mut Call<'_>) -> Outcome {
    call.reply.ok();
    Ok(())
}

/// A node as clients reach it.
struct Place {
    ip: String,
    port: u16,
    is_self: bool,
    is_master: bool,
    /// Where it is in the log.
    offset: u64,
    is_up: bool,
}

impl Place {
    /// 40 hexadecimal digits.
    fn id(&self) -> String {
        id_of(&format!("{} {}", self.ip, self.port))
    }

    /// As CLUSTER SHARDS calls it.
    fn health(&self) -> &'static str {
        if self.is_up { "online" } else { "loading" }
    }
}

fn id_of(name: &str) -> String {
    let half = |seed| xxhash_rust::xxh3::xxh3_128_with_seed(name.as_bytes(), seed);
    let mut id = format!("{:032x}{:032x}", half(0), half(1));
    id.truncate(40);
    id
}

/// The master first, then the replicas that are known here.
fn places(call: &Call<'_>) -> Vec<Place> {
    let node = call.node;
    let config = node.config();
    let settings = &config.replication;
    // What this client has reached it by, unless that is said otherwise.
    let local = call.session.client.local;
    let announced_port = Some(settings.replica_announce_port).filter(|&port| port != 0);
    let ip = match settings.replica_announce_ip.as_str() {
        "" => local.ip().to_canonical().to_string(),
        ip => ip.to_owned(),
    };
    let follows = node.replication.master().or_else(|| node.replication.deposed_by());
    let offset = node.durability.shown().offset;
    let own = Place {
        ip,
        port: announced_port.unwrap_or(local.port()),
        is_self: true,
        is_master: follows.is_none(),
        offset,
        is_up: node.is_loaded(),
    };
    match follows {
        Some(Master { host, port }) => {
            let link = node.replication.link.lock();
            let is_up = link.state == LinkState::Connected;
            let offset = link.master_end;
            let master = Place { ip: host, port, is_self: false, is_master: true, offset, is_up };
            vec![master, own]
        }
        None => {
            let of_replica = |fed: node::roles::Fed| Place {
                ip: fed.ip,
                port: fed.port,
                is_self: false,
                is_master: false,
                offset: fed.written,
                is_up: fed.sending == Sending::Log,
            };
            let feeds = node.replication.feeds.reachable();
            [own].into_iter().chain(feeds.into_iter().map(of_replica)).collect()
        }
    }
}

fn slots(call: &mut Call<'_>) -> Outcome {
    let places = places(call);
    let reply = &mut call.reply;
    reply.array(1);
    // Clients send reads to each replica that is listed.
    let listed: Vec<_> = places.iter().filter(|place| place.is_master || place.is_up).collect();
    reply.array(2 + listed.len());
    reply.int(0);
    reply.int(i64::from(SLOTS - 1));
    for place in listed {
        reply.array(4);
        reply.bulk(place.ip.as_bytes());
        reply.int(i64::from(place.port));
        reply.bulk(place.id().as_bytes());
        reply.array(0);
    }
    Ok(())
}

fn shards(call: &mut Call<'_>) -> Outcome {
    let places = places(call);
    let local_port = call.session.client.local.port();
    let is_tls = local_port == call.node.config().tls.port;
    let reply = &mut call.reply;
    reply.array(1);
    reply.map(2);
    reply.bulk(b"slots");
    reply.array(2);
    reply.int(0);
    reply.int(i64::from(SLOTS - 1));
    reply.bulk(b"nodes");
    reply.array(places.len());
    for place in &places {
        reply.map(7);
        reply.bulk(b"id");
        reply.bulk(place.id().as_bytes());
        reply.bulk(if is_tls { b"tls-port" } else { b"port" });
        reply.int(i64::from(place.port));
        for (name, value) in [("ip", &place.ip), ("endpoint", &place.ip)] {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
        reply.bulk(b"role");
        reply.bulk(if place.is_master { b"master" } else { b"replica" });
        reply.bulk(b"replication-offset");
        reply.int(i64::try_from(place.offset).unwrap_or(i64::MAX));
        reply.bulk(b"health");
        reply.bulk(place.health().as_bytes());
    }
    Ok(())
}

/// A line of CLUSTER NODES, without its end.
fn line(place: &Place, master: &Place) -> String {
    let flags = match (place.is_self, place.is_master) {
        (true, true) => "myself,master",
        (true, false) => "myself,slave",
        (false, true) => "master",
        (false, false) => "slave",
    };
    let of = if place.is_master { "-".to_owned() } else { master.id() };
    let state = if place.is_self || place.is_up { "connected" } else { "disconnected" };
    let mut line =
        format!("{} {}:{}@0 {flags} {of} 0 0 1 {state}", place.id(), place.ip, place.port);
    if place.is_master {
        let _ = write!(line, " 0-{}", SLOTS - 1);
    }
    line
}

fn nodes(call: &mut Call<'_>) -> Outcome {
    let places = places(call);
    let lines: String = places.iter().map(|place| line(place, &places[0]) + "\n").collect();
    call.reply.text(&lines);
    Ok(())
}

fn replicas(call: &mut Call<'_>) -> Outcome {
    let (places, wanted) = (places(call), String::from_utf8_lossy(call.args.at(2)));
    let known = places.iter().find(|place| place.id().eq_ignore_ascii_case(&wanted));
    match known {
        None => {
            Err(refuse!("ERR Unknown node {}", node::command::error::Printable(call.args.at(2))))
        }
        Some(place) if !place.is_master => Err(refuse!("ERR The specified node is not a master")),
        Some(master) => {
            let lines: Vec<_> = places[1..].iter().map(|replica| line(replica, master)).collect();
            call.reply.array(lines.len());
            lines.iter().for_each(|line| call.reply.bulk(line.as_bytes()));
            Ok(())
        }
    }
}

fn info(call: &mut Call<'_>) -> Outcome {
    let nodes = places(call).len();
    call.reply.text(&format!(
        "cluster_state:ok\r\ncluster_slots_assigned:{SLOTS}\r\ncluster_slots_ok:{SLOTS}\r\n\
         cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:{nodes}\r\n\
         cluster_size:1\r\ncluster_current_epoch:1\r\ncluster_my_epoch:1\r\n\
         cluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\n\
         total_cluster_links_buffer_limit_exceeded:0\r\n"
    ));
    Ok(())
}

fn my_id(call: &mut Call<'_>) -> Outcome {
    let own = places(call).into_iter().find(|place| place.is_self);
    call.reply.bulk(own.map(|place| place.id()).unwrap_or_default().as_bytes());
    Ok(())
}

fn my_shard_id(call: &mut Call<'_>) -> Outcome {
    let lineage = call.node.store.get().map(|store| store.lineage().to_string());
    call.reply.bulk(id_of(&lineage.unwrap_or_default()).as_bytes());
    Ok(())
}

fn links(call: &mut Call<'_>) -> Outcome {
    call.reply.array(0);
    Ok(())
}

fn failure_reports(call: &mut Call<'_>) -> Outcome {
    let wanted = String::from_utf8_lossy(call.args.at(2));
    if !places(call).iter().any(|place| place.id().eq_ignore_ascii_case(&wanted)) {
        return Err(refuse!(
            "ERR Unknown node {}",
            node::command::error::Printable(call.args.at(2))
        ));
    }
    call.reply.int(0);
    Ok(())
}

/// CRC-16/XMODEM, as Redis has it.
const fn crc16(bytes: &[u8]) -> u16 {
    let (mut crc, mut at) = (0u16, 0);
    while at < bytes.len() {
        crc ^= (bytes[at] as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        at += 1;
    }
    crc
}

const _: () = assert!(crc16(b"123456789") == 0x31c3, "the check value of CRC-16/XMODEM");

/// The slot of a key: of what stands in its first braces, if that is not empty.
fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&b| b == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|&b| b == b'}').filter(|&length| length > 0).map(|end| &rest[..end])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

fn key_slot(call: &mut Call<'_>) -> Outcome {
    call.reply.int(i64::from(slot_of(call.args.at(2))));
    Ok(())
}

fn slot(text: &[u8]) -> Result<Option<u16>, Refusal> {
    let slot = crate::handlers::call::integer(text)?;
    Ok(u16::try_from(slot).ok().filter(|&slot| slot < SLOTS))
}

fn keys_in(node: &Node, wanted: u16) -> Result<BTreeSet<Vec<u8>>, Refusal> {
    let mut found = BTreeSet::new();
    every_key(&node.engines(), None, &mut |key| {
        if slot_of(&key) == wanted {
            found.insert(key);
        }
    })?;
    Ok(found)
}

fn count_keys(call: &mut Call<'_>) -> Outcome {
    let wanted = slot(call.args.at(2))?.ok_or_else(|| refuse!("ERR Invalid slot"))?;
    refuse_many_keys(&call.node)?;
    call.answer_later(move |node, reply| {
        reply.count(keys_in(&node, wanted)?.len());
        Ok(())
    })
}

fn get_keys(call: &mut Call<'_>) -> Outcome {
    let (wanted, most) = (slot(call.args.at(2))?, crate::handlers::call::integer(call.args.at(3))?);
    let (Some(wanted), Ok(most)) = (wanted, usize::try_from(most)) else {
        return Err(refuse!("ERR Invalid slot or number of keys"));
    };
    refuse_many_keys(&call.node)?;
    call.answer_later(move |node, reply| {
        let found = keys_in(&node, wanted)?;
        let count = found.len().min(most);
        reply.array(count);
        found.iter().take(count).for_each(|key| reply.bulk(key));
        Ok(())
    })
}

/// The version of RedisBloom whose commands these are, as a module says it.
const BLOOM_VERSION: i64 = 20_405;

fn list(call: &mut Call<'_>) -> Outcome {
    write_modules(&mut call.reply);
    Ok(())
}

/// As MODULE LIST and HELLO have it.
pub(crate) fn write_modules(reply: &mut Reply<'_>) {
    reply.array(1);
    reply.map(4);
    reply.bulk(b"name");
    reply.bulk(b"bf");
    reply.bulk(b"ver");
    reply.int(BLOOM_VERSION);
    reply.bulk(b"path");
    reply.bulk(b"");
    reply.bulk(b"args");
    reply.array(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots that redis-server 7.0 gives.
    #[test]
    fn slots_of_keys_are_those_of_redis() {
        for (key, slot) in [
            (&b"foo"[..], 12_182),
            (b"post:1", 10_484),
            (b"{post:1}:like", 10_484),
            (b"a{post:1}b{c}", 10_484),
            (b"{}post:1", 8_252),
            (b"", 0),
        ] {
            assert_eq!(slot_of(key), slot, "{}", String::from_utf8_lossy(key));
        }
        assert_ne!(slot_of(b"{}a"), slot_of(b"{}b"), "empty braces are no tag");
    }
}
