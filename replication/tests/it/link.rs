//! Links between nodes. Messages are delayed and split, and are lost if the link breaks.

use super::TIMEOUTS;
use super::node::{Kind, Life, ReplicaNode};
use super::truth::{Place, place};
use super::world::World;
use replication::{Follower, FollowerStep, LinkError, LogSource, Sender};
use std::collections::VecDeque;

pub(crate) struct Link {
    pub(crate) master: usize,
    pub(crate) replica: usize,
    pub(crate) sender: Option<Sender>,
    pub(crate) follower: Option<Follower>,
    pub(crate) to_master: VecDeque<(u64, Vec<u8>)>,
    pub(crate) to_replica: VecDeque<(u64, Vec<u8>)>,
    /// Whether the master sends more bytes only after the replica has received all earlier bytes.
    pub(crate) narrow: bool,
    pub(crate) was_following: bool,
    /// End of the master's log when the master answered Hello.
    pub(crate) answered: Option<Place>,
    /// [`Node::data_sets`] of the replica at the start of the link.
    pub(crate) data_sets: u64,
    /// Offset up to which the replica still has the data that it has received on this link.
    /// Acknowledgements of lost data may still be in flight.
    pub(crate) kept: u64,
}

impl Link {
    /// Asserts that the replica has all data that the master considers durable on the replica.
    pub(crate) fn check_durable(&self) {
        if let Some(sender) = &self.sender
            && sender.peer().sending == replication::Sending::Log
        {
            let (said, kept) = (sender.peer().durable, self.kept);
            assert!(
                said <= kept,
                "node {} reported {said} durable, but has {kept} after a power cut",
                self.replica
            );
        }
    }
}

impl World {
    pub(crate) fn connect(&mut self) {
        for n in 0..self.nodes.len() {
            let Some(master) = self.nodes[n].follows else { continue };
            let has_link = self.links.iter().any(|l| l.replica == n && l.follower.is_some());
            if has_link || self.now < self.nodes[n].connects_at || self.nodes[n].life.is_none() {
                continue;
            }
            self.nodes[n].connects_at = self.now + self.random.u64(200..1500);
            if self.nodes[master].life.is_none() || !self.reaches(n, master) {
                continue;
            }
            let mut out = Vec::new();
            let now = self.now;
            let follower = self
                .local(n, |local| Follower::new(TIMEOUTS, false, ("", 1), local, &mut out, now));
            let follower = match follower {
                Some(Ok(follower)) => follower,
                Some(Err(error)) => {
                    self.last_error = error.to_string();
                    self.reopen(n);
                    continue;
                }
                None => continue,
            };
            let pinned_bytes = if self.random.bool() { 2_000 } else { 1 << 20 };
            let mut link = Link {
                master,
                replica: n,
                sender: Some(Sender::new(TIMEOUTS, pinned_bytes, now)),
                follower: Some(follower),
                to_master: VecDeque::new(),
                to_replica: VecDeque::new(),
                narrow: self.random.u32(0..4) == 0,
                was_following: false,
                answered: None,
                data_sets: self.nodes[n].data_sets,
                kept: u64::MAX,
            };
            link.to_master.push_back((now, out));
            self.links.push(link);
        }
    }

    /// Recovers a replica after a disk failure.
    pub(crate) fn reopen(&mut self, n: usize) {
        let Some(Life { kind: Kind::Replica(log), .. }) = &mut self.nodes[n].life else { return };
        if log.sync_and_truncate().is_err() {
            // Memory contains writes that the log lacks, so restart the node.
            self.forgive(n);
            self.crash(n);
        }
    }

    fn local<T>(&mut self, n: usize, work: impl FnOnce(&mut ReplicaNode<'_>) -> T) -> Option<T> {
        let node = &mut self.nodes[n];
        let Some(Life { store, map, kind: Kind::Replica(log) }) = &mut node.life else {
            return None;
        };
        let is_empty = !node.has_data && map.range(..100).next().is_none();
        Some(work(&mut ReplicaNode {
            store,
            map,
            log,
            is_empty,
            always: node.always,
            dropped: &mut node.dropped,
        }))
    }

    /// Delivers bytes and runs both ends of each link.
    pub(crate) fn carry(&mut self) {
        for i in 0..self.links.len() {
            let (m, r) = (self.links[i].master, self.links[i].replica);
            let reaches = self.reaches(m, r);
            let delay = if self.calm { 0 } else { self.random.u64(0..400) };
            let mut sender = self.links[i].sender.take();
            let mut acknowledged = Vec::new();
            if let (Some(f), Some(life)) = (&mut sender, &self.nodes[m].life) {
                let end = self.nodes[m].shown().unwrap();
                let origin = LogSource { store: &life.store, end, term: self.nodes[m].term() };
                let mut result = Ok(());
                while result.is_ok()
                    && reaches
                    && let Some((at, _)) = self.links[i].to_master.front()
                    && *at <= self.now
                {
                    let (_, bytes) = self.links[i].to_master.pop_front().unwrap();
                    let before = f.peer().written;
                    result = f.receive(&bytes, &origin, self.now);
                    let after = f.peer().written;
                    if after > before && f.peer().sending == replication::Sending::Log {
                        acknowledged.push((before, after));
                    }
                }
                let mut out = Vec::new();
                // A narrow link sends only if all earlier bytes have arrived.
                let is_full = self.links[i].narrow && !self.links[i].to_replica.is_empty();
                let filled = result.and_then(|()| f.check_timeout(self.now)).and_then(|()| {
                    f.tick(end);
                    if is_full { Ok(()) } else { f.fill(&mut out, &origin, self.now) }
                });
                if let Err(error) = &filled
                    && matches!(error, LinkError::Protocol(_))
                {
                    panic!("sender {m} -> {r}: {error}");
                }
                if !out.is_empty() {
                    self.links[i].answered.get_or_insert(place(end));
                    let at = self.links[i]
                        .to_replica
                        .back()
                        .map_or(0, |(at, _)| *at)
                        .max(self.now + delay);
                    // Split the output; the link may break before the second piece arrives.
                    let cut = self.random.usize(0..=out.len());
                    let tail = out.split_off(cut);
                    self.links[i].to_replica.push_back((at, out));
                    self.links[i].to_replica.push_back((at + self.random.u64(0..200), tail));
                }
                if let Err(error) = filled {
                    self.last_error = error.to_string();
                    sender = None;
                }
            } else {
                sender = None;
            }
            for (before, after) in acknowledged {
                // Ignore acknowledgements sent before the replica replaced or lost its data.
                if self.links[i].data_sets == self.nodes[r].data_sets {
                    self.acknowledged(m, r, before, after.min(self.links[i].kept));
                }
            }
            if sender.is_none() {
                // A connection reset may not reach the other end.
                if self.calm || self.random.bool() {
                    self.links[i].follower = None;
                }
            }
            self.links[i].sender = sender;
            if self.links[i].data_sets == self.nodes[r].data_sets {
                self.links[i].check_durable();
            }
            self.replica_end(i, m, r, reaches, delay);
        }
    }

    fn acknowledged(&mut self, m: usize, r: usize, before: u64, after: u64) {
        let master_term = self.nodes[m].term();
        let chained = self.nodes[m]
            .life
            .as_ref()
            .filter(|life| matches!(life.kind, Kind::Replica(_)))
            .map(|life| &life.map);
        let waited: Vec<(u64, u64, u64)> = self
            .writes
            .iter()
            .filter(|w| w.0 == master_term && w.1 > before && w.1 <= after)
            // Offsets do not distinguish branches of one term. The master of a chained replica may
            // have lost power and then written different data at these offsets. Therefore, compare
            // the writes with the chained replica's data. A master needs no such check, because it
            // sends only its own writes.
            .filter(|w| chained.is_none_or(|map| map.get(&w.2).is_some_and(|value| *value >= w.3)))
            .map(|w| (w.1, w.2, w.3))
            .collect();
        self.figures.waited += waited.len() as u64;
        self.nodes[r].acknowledged.extend(waited);
    }

    fn replica_end(&mut self, i: usize, m: usize, r: usize, reaches: bool, delay: u64) {
        let Some(mut follower) = self.links[i].follower.take() else { return };
        let now = self.now;
        let mut arrived = Vec::new();
        while reaches
            && let Some((at, _)) = self.links[i].to_replica.front()
            && *at <= now
        {
            arrived.push(self.links[i].to_replica.pop_front().unwrap().1);
        }
        let mut out = Vec::new();
        let (was_fetching, dropped) =
            (follower.is_fetching().is_some(), self.nodes[r].dropped.len());
        let held =
            self.local(r, |local| (!local.is_empty).then(|| place(local.log.written()))).flatten();
        let result = self.local(r, |local| -> Result<FollowerStep, LinkError> {
            for bytes in &arrived {
                match follower.receive(bytes, local, &mut out, now)? {
                    FollowerStep::On => {}
                    other => return Ok(other),
                }
            }
            if follower.is_verifying() {
                follower.look(local, &mut out)?;
            }
            let course = follower.settle(local, &mut out, now)?;
            follower.check_timeout(now)?;
            follower.tick(local, &mut out, now)?;
            Ok(course)
        });
        if !out.is_empty() {
            let at = self.links[i].to_master.back().map_or(0, |(at, _)| *at).max(now + delay);
            self.links[i].to_master.push_back((at, out));
        }
        if let (false, Some(_), Some(own)) = (was_fetching, follower.is_fetching(), held) {
            self.check_dropped(i, own, self.nodes[r].dropped.get(dropped).copied());
        }
        match result {
            None => {}
            Some(Ok(FollowerStep::On)) => {
                if follower.is_following() && !self.links[i].was_following {
                    self.links[i].was_following = true;
                    self.figures.continued += 1;
                    self.nodes[r].has_data = true;
                }
                self.links[i].follower = Some(follower);
            }
            Some(Ok(FollowerStep::Adopt | FollowerStep::Reopen)) => {
                self.figures.full_syncs += 1;
                self.figures.rewound += u64::from(
                    self.nodes[r].term() == self.nodes[m].term()
                        && !self.nodes[r].dropped.is_empty(),
                );
                self.figures.dropped += self.nodes[r].dropped.drain(..).len() as u64;
                self.nodes[r].acknowledged.clear();
                self.nodes[r].data_sets += 1;
                self.nodes[r].has_data = true;
                self.nodes[r].life = None;
                self.nodes[r].disk = self.nodes[r].disk.kill();
                self.nodes[r].starts_at = now;
                self.links.iter_mut().filter(|l| l.master == r).for_each(|l| l.sender = None);
            }
            Some(Err(error)) => {
                self.last_error = error.to_string();
                let _ = self.local(r, |local| follower.finish(local).unwrap());
                match &error {
                    LinkError::Protocol(what) => panic!("follower {r} of {m}: {what}"),
                    LinkError::CannotFollow(_) => {
                        self.figures.refusals += 1;
                        assert!(!self.elected, "node {r} refuses the newest master {m}: {error}");
                    }
                    LinkError::Store(_) => self.reopen(r),
                    _ => {}
                }
                if follower.is_fetching().is_some_and(|bytes| bytes > 0) {
                    self.figures.resumed_files += 1;
                }
            }
        }
    }
    /// Asserts that a replica with a log up to `own` saves its diverged batches before it drops
    /// them. `from` is the first saved offset, or `None`.
    fn check_dropped(&mut self, i: usize, own: Place, from: Option<u64>) {
        let Link { master, replica, answered, .. } = self.links[i];
        let Some(parting) = answered.and_then(|theirs| self.truth.parting(own, theirs)) else {
            self.figures.untold += 1;
            return;
        };
        if parting < own.0 {
            let safe =
                from.map_or(!self.truth.has_data_after(own, parting), |from| from <= parting);
            assert!(
                safe,
                "node {replica} discards {parting} to {} for {master}, and serves from {from:?}",
                own.0
            );
            self.figures.parted += u64::from(from.is_some());
            self.figures.exactly += u64::from(from == Some(parting));
        }
    }
}
