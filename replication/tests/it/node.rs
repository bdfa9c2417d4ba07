//! A node: a data folder on a simulated disk, and a process that may be down.

use replication::ReplicaHost;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use store::{
    Batch, BatchHead, Disk, Error, Lineage, Log, Manifest, Position, Records, ReplicaLog, SimDisk,
    Store, StoreOptions, Tag,
};

pub(crate) type Map = BTreeMap<u64, u64>;

pub(crate) enum Kind {
    Master(Log),
    Replica(ReplicaLog),
}

pub(crate) struct Life {
    pub(crate) store: Store,
    pub(crate) map: Map,
    pub(crate) kind: Kind,
}

pub(crate) struct Node {
    pub(crate) disk: SimDisk,
    pub(crate) seed: u64,
    pub(crate) options: StoreOptions,
    pub(crate) life: Option<Life>,
    /// Index of the node's master, or `None` if the node is a master. The value survives crashes.
    pub(crate) follows: Option<usize>,
    /// Whether the node has ever been a master or followed a master.
    pub(crate) has_data: bool,
    pub(crate) starts_at: u64,
    pub(crate) connects_at: u64,
    /// Whether data must be durable before the node shows it to other nodes.
    pub(crate) always: bool,
    /// Durable end of the log when the node stopped. A power cut may still destroy data after it.
    pub(crate) safe: u64,
    /// Writes that the node acknowledged as a replica and still has: offset, key, value.
    pub(crate) acknowledged: BTreeSet<(u64, u64, u64)>,
    pub(crate) dropped: Vec<u64>,
    /// Number of times that the node replaced its data.
    pub(crate) data_sets: u64,
}

fn read(map: &mut Map, body: &[u8]) {
    for record in Records::new(body) {
        let bytes = record.unwrap().payload;
        let n = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        map.insert(n(0), n(8));
    }
}

pub(crate) fn row(key: u64, value: u64) -> Vec<u8> {
    let mut row = key.to_le_bytes().to_vec();
    row.extend_from_slice(&value.to_le_bytes());
    row.resize(16 + (value % 40) as usize, 7);
    row
}

pub(crate) struct ReplicaNode<'a> {
    pub(crate) store: &'a Store,
    pub(crate) map: &'a mut Map,
    pub(crate) log: &'a mut ReplicaLog,
    pub(crate) is_empty: bool,
    pub(crate) always: bool,
    pub(crate) dropped: &'a mut Vec<u64>,
}

impl ReplicaHost for ReplicaNode<'_> {
    fn log(&mut self) -> &mut ReplicaLog {
        self.log
    }
    fn disk(&self) -> Arc<dyn Disk> {
        self.store.disk().clone()
    }
    fn manifest(&self) -> Manifest {
        self.store.manifest().clone()
    }
    fn is_empty(&self) -> bool {
        self.is_empty
    }
    fn sync_after_ms(&self) -> u64 {
        if self.always { 0 } else { 800 }
    }
    fn apply(&mut self, _: &BatchHead, body: &[u8]) -> Result<bool, String> {
        read(self.map, body);
        Ok(true)
    }
    fn save_dropped_batches(&mut self, from: u64) -> Result<(), Error> {
        self.dropped.push(from);
        Ok(())
    }
    fn settled(&mut self) {}
}

impl Node {
    pub(crate) fn start(&mut self) -> Result<(), Error> {
        let lineage = Lineage((u128::from(self.seed) + 1).to_be_bytes());
        let store = Store::open_with(Arc::new(self.disk.clone()), self.options, || Ok(lineage))?;
        let map = Mutex::new(Map::new());
        store.load(
            1,
            |_, chunk| {
                read(&mut map.lock().unwrap(), chunk);
                Ok(())
            },
            |_| (),
        )?;
        let mut map = map.into_inner().unwrap();
        let mut apply = |_: &BatchHead, body: &[u8]| {
            read(&mut map, body);
            Ok(())
        };
        let kind = match self.follows {
            None => Kind::Master(store.replay_batches(&mut apply, |_| ())?.0),
            Some(_) => Kind::Replica(store.replay_following(&mut apply, |_| ())?.0),
        };
        self.life = Some(Life { store, map, kind });
        Ok(())
    }

    pub(crate) fn durable(&self) -> Option<Position> {
        Some(match &self.life.as_ref()?.kind {
            Kind::Master(log) => log.durable(),
            Kind::Replica(log) => log.durable(),
        })
    }

    /// Returns the end of the log that other nodes may see.
    pub(crate) fn shown(&self) -> Option<Position> {
        Some(match &self.life.as_ref()?.kind {
            Kind::Master(log) if self.always => log.durable(),
            Kind::Master(log) => log.written(),
            Kind::Replica(log) => log.written(),
        })
    }

    pub(crate) fn term(&self) -> u64 {
        match self.life.as_ref().map(|l| &l.kind) {
            Some(Kind::Master(log)) => log.term(),
            Some(Kind::Replica(log)) => log.term(),
            None => 0,
        }
    }

    pub(crate) fn snapshot(&mut self, random: &mut fastrand::Rng) -> Result<(), Error> {
        let Some(life) = &mut self.life else { return Ok(()) };
        let start = match &life.kind {
            Kind::Master(log) => log.durable(),
            Kind::Replica(log) => log.durable(),
        };
        let mut snapshot = life.store.begin_snapshot(start);
        for low in [0, 20, 40] {
            let tag = Tag { space: 1, kind: 1, low, high: low + 19, stamp: start.offset };
            let mut file = snapshot.file(tag)?;
            let rows: Vec<(&u64, &u64)> = life.map.range(low..low + 20).collect();
            for some in rows.chunks(random.usize(1..5)) {
                let mut batch = Batch::new();
                some.iter().for_each(|(k, v)| batch.push(1, 1, &row(**k, **v)));
                file.write(batch.body(), some.len() as u64)?;
            }
            let mut rest = Batch::new();
            rest.push(1, 1, &row(100 + low, 0));
            file.write(rest.body(), 1)?;
            snapshot.add(file.finish()?);
        }
        let end = match &mut life.kind {
            Kind::Master(log) => log.sync()?,
            Kind::Replica(log) => log.sync()?,
        };
        snapshot.commit(end)
    }
}
