//! Events of the simulation: crashes, power cuts, promotions, changed masters, faults of disks and
//! of the network.

use super::node::{Kind, Life, Node};
use super::world::World;
use replication::{next_term, promotions};
use store::{Faults, ReplicaLog};

impl World {
    /// Adjusts the expectations after a power failure or disk failure of a node. Such a failure may
    /// destroy data that was not durable.
    ///
    /// WAIT promises only that a write is in memory and in the file, as in Redis. The node may
    /// therefore be promoted even if it has lost such a write. The node must still have all durable
    /// data, and all writes that it acknowledged as durable.
    pub(crate) fn forgive(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let safe = node.durable().map_or(node.safe, |end| end.offset);
        node.safe = safe;
        let before = node.acknowledged.len();
        node.acknowledged.retain(|w| w.0 <= safe);
        self.figures.forgiven += (before - node.acknowledged.len()) as u64;
        for link in
            self.links.iter_mut().filter(|l| l.replica == n && l.data_sets == node.data_sets)
        {
            link.kept = link.kept.min(safe);
            link.check_durable();
        }
    }

    pub(crate) fn crash(&mut self, n: usize) {
        let power = self.random.bool();
        if power {
            self.forgive(n);
        }
        let node = &mut self.nodes[n];
        node.safe = node.durable().map_or(node.safe, |end| end.offset);
        node.life = None;
        node.disk = if power { node.disk.power_cut() } else { node.disk.kill() };
        node.starts_at = self.now + self.random.u64(0..4_000);
        self.links.iter_mut().for_each(|link| {
            if link.master == n {
                link.sender = None;
            }
            if link.replica == n {
                link.follower = None;
            }
        });
        self.figures.crashes += 1;
    }

    /// Promotes the best reachable replica, as an operator would.
    pub(crate) fn promote(&mut self) {
        let fit = |n: &Node| n.life.is_some() && n.has_data && n.follows.is_some();
        let best = (0..self.nodes.len()).filter(|&n| fit(&self.nodes[n])).max_by_key(|&n| {
            (promotions(self.nodes[n].term()), self.nodes[n].durable().map(|p| p.offset))
        });
        let Some(best) = best else { return };
        let random = self.random.u32(..);
        let node = &mut self.nodes[best];
        let Some(life) = node.life.take() else { return };
        let Life { store, map, kind: Kind::Replica(mut log) } = life else { return };
        if log.sync().is_err() {
            // The promotion failed, so restart the node.
            node.life = Some(Life { store, map, kind: Kind::Replica(log) });
            self.forgive(best);
            return self.crash(best);
        }
        for write @ (_, key, value) in &node.acknowledged {
            let held = map.get(key).copied().unwrap_or(0);
            assert!(
                held >= *value,
                "node {best} is promoted without {write:?}, which it acknowledged; it has {held}"
            );
        }
        node.safe = log.durable().offset;
        let term = next_term(log.term(), 1, random);
        let options = store.log_options();
        match log.into_log(options, term) {
            Ok(log) => {
                node.life = Some(Life { store, map, kind: Kind::Master(log) });
                node.follows = None;
                self.newest = best;
                self.figures.promotions += 1;
                self.links.iter_mut().filter(|l| l.replica == best).for_each(|l| l.follower = None);
            }
            Err(_) => {
                drop(store);
                self.crash(best);
            }
        }
        for other in 0..self.nodes.len() {
            // Some nodes are not notified of the promotion.
            if other != best && (self.calm || !self.chance(3)) {
                self.follow(other, best);
            }
        }
    }

    pub(crate) fn follow(&mut self, n: usize, master: usize) {
        if self.nodes[n].follows == Some(master) || n == master {
            return;
        }
        let node = &mut self.nodes[n];
        node.follows = Some(master);
        self.links.iter_mut().filter(|l| l.replica == n).for_each(|l| l.follower = None);
        let Some(life) = node.life.take() else { return };
        let Life { store, map, kind } = life;
        node.life = match kind {
            // After a failed sync, memory may contain writes that the log lacks, so the node must
            // restart.
            Kind::Master(mut log) => {
                node.safe = log.durable().offset;
                let followed = log.sync().and_then(|end| {
                    drop(log);
                    ReplicaLog::open(store.disk().clone(), store.lineage(), end)
                });
                followed.ok().map(|log| Life { store, map, kind: Kind::Replica(log) })
            }
            kind => Some(Life { store, map, kind }),
        };
        if node.life.is_none() {
            self.crash(n);
        }
    }

    pub(crate) fn trouble(&mut self) {
        let count = self.nodes.len();
        let n = self.random.usize(0..count);
        if self.chance(60) {
            self.crash(n);
        }
        if self.chance(15) {
            let other = self.random.usize(0..count);
            if other != n {
                self.parted.insert((n.min(other), n.max(other)));
            }
        }
        if self.chance(10) {
            self.parted.pop_first();
        }
        if self.chance(15) && !self.links.is_empty() {
            let i = self.random.usize(0..self.links.len());
            // One end of the link or both ends detect the partition.
            match self.random.u32(0..3) {
                0 => self.links[i].sender = None,
                1 => self.links[i].follower = None,
                _ => (self.links[i].sender, self.links[i].follower) = (None, None),
            }
            self.figures.cuts += 1;
        }
        if self.chance(80) {
            self.promote();
        }
        if self.chance(40) {
            // Chained replication: follow another replica, or the master again.
            let to = self.random.usize(0..count);
            let is_loop = self.nodes[to].follows == Some(n);
            if self.nodes[n].follows.is_some() && to != n && !is_loop && self.nodes[to].has_data {
                self.follow(n, to);
            }
        }
        if self.chance(25) {
            let mut random = self.random.fork();
            if self.nodes[n].snapshot(&mut random).is_err() {
                // The failed step may have been a sync of the log. Its durable end is then unknown.
                self.reopen(n);
            }
        }
        let rate = if self.chance(4) { self.random.u32(0..60) } else { 0 };
        let faults = Faults {
            sync_error: rate / 2,
            no_space: rate,
            short_write: 4 * rate,
            write_error: rate / 4,
            sync_dir_error: rate / 4,
            ..Faults::default()
        };
        self.nodes[n].disk.set_faults(faults);
    }
}
