//! Main loop: steps with faults, followed by steps without faults until all nodes are equal.

use super::link::Link;
use super::node::{Kind, Life, Map, Node, row};
use super::truth::Truth;
use super::{Figures, STEP_MS};
use replication::promotions;
use std::collections::BTreeSet;
use store::{Batch, Error, Faults, LogOptions, SimDisk, StoreOptions};

pub(crate) struct World {
    pub(crate) random: fastrand::Rng,
    pub(crate) now: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) links: Vec<Link>,
    /// Pairs of nodes that cannot reach each other.
    pub(crate) parted: BTreeSet<(usize, usize)>,
    pub(crate) value: u64,
    /// All writes: term of the master, end offset, key, value.
    pub(crate) writes: Vec<(u64, u64, u64, u64)>,
    pub(crate) figures: Figures,
    pub(crate) calm: bool,
    pub(crate) elected: bool,
    pub(crate) last_error: String,
    pub(crate) newest: usize,
    pub(crate) truth: Truth,
}

impl World {
    pub(crate) fn new(seed: u64) -> World {
        let mut random = fastrand::Rng::with_seed(seed);
        let count = random.usize(2..5);
        let nodes = (0..count)
            .map(|n| Node {
                disk: SimDisk::new(seed * 8 + n as u64),
                seed: seed * 8 + n as u64,
                options: StoreOptions {
                    log: LogOptions {
                        segment_bytes: random.u64(300..3000),
                        ..LogOptions::default()
                    },
                    keep_log_bytes: if random.bool() { random.u64(0..4000) } else { 1 << 20 },
                },
                life: None,
                follows: (n > 0).then_some(0),
                has_data: n == 0,
                starts_at: 0,
                connects_at: 0,
                always: random.u32(0..3) == 0,
                safe: 0,
                acknowledged: BTreeSet::new(),
                dropped: Vec::new(),
                data_sets: 0,
            })
            .collect();
        World {
            random,
            now: 0,
            nodes,
            links: Vec::new(),
            parted: BTreeSet::new(),
            value: 0,
            writes: Vec::new(),
            figures: Figures::default(),
            calm: false,
            elected: false,
            last_error: String::new(),
            newest: 0,
            truth: Truth::default(),
        }
    }

    pub(crate) fn chance(&mut self, one_in: u32) -> bool {
        self.random.u32(0..one_in) == 0
    }

    pub(crate) fn reaches(&self, a: usize, b: usize) -> bool {
        !self.parted.contains(&(a.min(b), a.max(b)))
    }

    fn write(&mut self, n: usize) {
        let keys = self.random.u64(1..4);
        let node = &mut self.nodes[n];
        let Some(Life { map, kind: Kind::Master(log), .. }) = &mut node.life else { return };
        let mut batch = Batch::new();
        let mut rows = Vec::new();
        for _ in 0..keys {
            self.value += 1;
            let key = self.random.u64(0..60);
            rows.push((key, self.value));
            batch.push(1, 1, &row(key, self.value));
        }
        if log.append(&batch, self.now).is_err() {
            return;
        }
        for &(key, value) in &rows {
            map.insert(key, value);
            self.writes.push((log.term(), log.written().offset, key, value));
        }
        self.figures.writes += 1;
        if self.random.bool() {
            let _ = log.sync();
        }
        if self.random.u32(0..20) == 0 {
            let _ = log.seal(self.now);
        }
    }

    fn step(&mut self) {
        self.now += STEP_MS;
        for n in 0..self.nodes.len() {
            if self.nodes[n].life.is_none() && self.now >= self.nodes[n].starts_at {
                if let Err(error) = self.nodes[n].start() {
                    let transient = error.is_transient() && !self.calm;
                    assert!(
                        transient || matches!(error, Error::Locked { .. }),
                        "node {n} does not start: {error}"
                    );
                    self.crash(n);
                } else if let Some(Life { kind: Kind::Master(log), .. }) = &self.nodes[n].life {
                    // Forget the writes that were lost in a power cut, because later writes reuse
                    // their offsets.
                    let (term, end) = (log.term(), log.written().offset);
                    self.writes.retain(|w| w.0 != term || w.1 <= end);
                }
            }
        }
        // Record all batches before any node receives them.
        self.nodes.iter().enumerate().for_each(|(n, node)| self.truth.learn(n, node));
        self.connect();
        self.carry();
        self.links.retain(|l| l.sender.is_some() || l.follower.is_some());
    }

    pub(crate) fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            self.trouble();
            for n in 0..self.nodes.len() {
                if self.nodes[n].follows.is_none() && self.random.bool() {
                    self.write(n);
                }
            }
            self.step();
        }
        // End all faults, and keep only one master.
        self.calm = true;
        self.parted.clear();
        for n in 0..self.nodes.len() {
            self.nodes[n].disk.set_faults(Faults::default());
            self.nodes[n].starts_at = 0;
        }
        self.step();
        // Like an operator, select the branch with the most promotions, and prefer the master of
        // that branch.
        let rank = |n: &usize| {
            let node = &self.nodes[*n];
            (
                node.has_data,
                promotions(node.term()),
                node.follows.is_none(),
                *n == self.newest,
                node.durable().map(|p| p.offset),
            )
        };
        let last = (0..self.nodes.len()).max_by_key(rank).unwrap_or(0);
        if self.nodes[last].follows.is_some() {
            self.nodes[last].follows = None;
            self.crash(last);
        }
        for n in (0..self.nodes.len()).filter(|&n| n != last) {
            self.follow(n, last);
            self.nodes[n].follows = Some(last);
        }
        self.elected = true;
        for round in 0.. {
            self.step();
            if let Some(Life { kind: Kind::Master(log), .. }) = &mut self.nodes[last].life {
                log.seal(self.now).unwrap();
            }
            let end = self.nodes[last].durable();
            // Wait until everything visible is durable before comparing the durable ends.
            let settled = self.nodes.iter().all(|n| n.shown() == n.durable());
            let equal = end.is_some()
                && settled
                && self.nodes.iter().all(|n| {
                    n.durable() == end
                        || n.durable().is_some_and(|p| {
                            end.is_some_and(|e| {
                                (p.offset, p.chain, p.sequence) == (e.offset, e.chain, e.sequence)
                            })
                        })
                });
            if equal {
                break;
            }
            if round > 2_000 {
                for (n, node) in self.nodes.iter().enumerate() {
                    println!(
                        "{n}: follows {:?}, durable {:?}, term {:x}",
                        node.follows,
                        node.durable(),
                        node.term()
                    );
                }
                println!("{:?}", self.nodes[last].disk.list_names());
                panic!(
                    "not equal after {round} fault-free steps; {:?}; {}",
                    self.figures, self.last_error
                );
            }
        }
        let strip = |map: &Map| map.range(..100).map(|(k, v)| (*k, *v)).collect::<Vec<_>>();
        let expected = strip(&self.nodes[last].life.as_ref().unwrap().map);
        for (n, node) in self.nodes.iter().enumerate() {
            assert_eq!(
                strip(&node.life.as_ref().unwrap().map),
                expected,
                "node {n} differs from {last}"
            );
        }
    }
}
