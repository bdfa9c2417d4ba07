//! Machines that crash and restart, a network, clients, a controller, and the checks of the
//! invariants.

use super::{FAULT_PERIOD, Machine, NODES, Process, SLOTS_USED, Stage, World, id_of, number_of};
use crate::cluster::growth::Draft;
use client::{Reply, within};
use node::cluster::topology::VERSION;
use node::cluster::{Cluster, Member, Topology};
use node::config::Config;
use node::runtime::pause::Paused;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::pending;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::{AbortHandle, JoinError, spawn_local};
use tokio::time::{Instant, sleep};

impl World {
    pub(super) fn new(seed: u64) -> Rc<World> {
        // Seeds the tokens and ids that the command draws.
        fastrand::seed(seed);
        let machine = |_| Machine {
            folder: tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap(),
            disk: RefCell::default(),
            process: RefCell::default(),
        };
        Rc::new(World {
            random: RefCell::new(fastrand::Rng::with_seed(seed)),
            machines: (0..NODES).map(machine).collect(),
            parted: RefCell::default(),
            kept_down: Cell::default(),
            acknowledged: RefCell::default(),
            next_write: Cell::default(),
            calm: Cell::default(),
            sim_counts: RefCell::default(),
            told: std::env::var_os("TIDEMARK_TRACE").is_some(),
        })
    }

    pub(super) fn tell(&self, what: impl FnOnce() -> String) {
        if self.told {
            println!("{}", what());
        }
    }

    pub(super) fn chance(&self, one_in: u32) -> bool {
        self.random.borrow_mut().u32(0..one_in) == 0
    }

    pub(super) fn draw(&self, range: std::ops::Range<u64>) -> u64 {
        self.random.borrow_mut().u64(range)
    }

    /// Returns a random duration for a message or a disk operation.
    pub(super) fn delay(&self) -> Duration {
        let most_us = if !self.calm.get() && self.chance(30) { 3_000_000 } else { 15_000 };
        Duration::from_micros(self.draw(20..most_us))
    }

    pub(super) fn process(&self, number: usize) -> Option<Rc<Process>> {
        self.machines[number].process.borrow().clone()
    }

    pub(super) fn are_parted(&self, a: usize, b: usize) -> bool {
        self.parted.borrow().contains(&(a.min(b), a.max(b)))
    }

    // Processes.

    pub(super) fn start(self: &Rc<World>, number: usize) {
        let machine = &self.machines[number];
        if machine.process.borrow().is_some() || self.kept_down.get() == Some(number) {
            return;
        }
        let mut config = Config::default();
        config.cluster.enabled = true;
        let cluster = Cluster::new(&config);
        cluster.recall(machine.folder.path()).unwrap();
        let is_fenced = {
            let disk = machine.disk.borrow();
            disk.follows.is_none() && disk.had_others
        };
        let process = Rc::new(Process {
            number,
            world: Rc::downgrade(self),
            cluster,
            paused: Cell::new(Paused::Nothing),
            fenced: Cell::new(is_fenced),
            kill_stage: Cell::default(),
            fed: RefCell::default(),
            tasks: RefCell::default(),
        });
        *machine.process.borrow_mut() = Some(process.clone());
        self.tell(|| format!("{number} starts, fenced: {is_fenced}"));
        process.spawn(process.clone().follow());
        process.spawn(process.clone().lift_fence_if_confirmed());
    }

    /// Kills the process as `kill -9` does. The disk retains everything that was written.
    pub(super) fn kill(&self, number: usize) {
        let Some(process) = self.machines[number].process.take() else { return };
        process.tasks.borrow().iter().for_each(AbortHandle::abort);
        self.tell(|| format!("{number} is killed"));
        self.sim_counts.borrow_mut().kills += 1;
    }

    /// Records that a hand-over has reached `stage`. If `stage` equals `kill_stage`, the simulation
    /// may kill the master.
    pub(super) async fn stage(self: &Rc<World>, number: usize, stage: Stage) {
        let is_doomed = self.process(number).is_some_and(|it| it.kill_stage.get() == Some(stage));
        // A hand-over may enter some stages several times.
        if self.calm.get() || !is_doomed || self.chance(3) {
            return;
        }
        *self.sim_counts.borrow_mut().kills_in.entry(stage).or_default() += 1;
        self.tell(|| format!("{number} in {stage:?}"));
        self.kill(number);
        let (world, later) = (self.clone(), self.draw(0..2_000));
        spawn_local(async move {
            sleep(Duration::from_millis(later)).await;
            world.start(number);
        });
        pending::<()>().await;
    }

    // Network.

    /// Sends a request to a node. The reply may be lost. The request arrives even if the caller no
    /// longer waits for the reply.
    pub(super) async fn request(
        self: &Rc<World>,
        from: Option<usize>,
        to: usize,
        words: Vec<String>,
    ) -> Result<Reply, String> {
        let world = self.clone();
        let sent = spawn_local(async move {
            sleep(world.delay()).await;
            let is_lost = |world: &World| {
                from.is_some_and(|from| world.are_parted(from, to))
                    || !world.calm.get() && world.chance(250)
            };
            if is_lost(&world) {
                return pending().await;
            }
            let Some(process) = world.process(to) else {
                return Err("Connection refused".to_owned());
            };
            let answering = process.clone();
            let work = process.spawn(async move { answering.answer(&words).await });
            let answer = match work.await {
                Ok(answer) => answer,
                Err(ended) => return Err(killed(ended, "the server closed the connection")),
            };
            sleep(world.delay()).await;
            if is_lost(&world) { pending().await } else { answer }
        });
        sent.await.unwrap_or_else(|ended| Err(killed(ended, "the request is gone")))
    }

    // Invariants.

    pub(super) fn check(&self) {
        for slot in SLOTS_USED {
            let writers: Vec<usize> = (0..NODES)
                .filter(|&number| self.process(number).is_some_and(|it| it.takes_writes(slot)))
                .collect();
            assert!(writers.len() <= 1, "{writers:?} take writes of slot {slot}");
        }
        if !self.calm.get() && !self.chance(6) {
            return;
        }
        for number in 0..NODES {
            let disk = self.machines[number].disk.borrow();
            let has: BTreeSet<u64> = disk.log.iter().map(|write| write.0).collect();
            for slot in SLOTS_USED {
                let Some(process) = self.process(number) else { continue };
                if !process.serves(slot) || process.fenced.get() {
                    continue;
                }
                let all = self.acknowledged.borrow();
                let lost = all.range((slot, 0)..=(slot, u64::MAX)).find(|it| !has.contains(&it.1));
                assert!(lost.is_none(), "{number} answers for slot {slot} without {lost:?}");
            }
        }
    }

    /// Returns a random master with slots, and a node that may receive the slots: a replica of the
    /// master, or a new node.
    pub(super) fn choose(&self) -> Option<(usize, usize)> {
        let known = (0..NODES).filter_map(|it| Some(self.process(it)?.cluster.topology()));
        let newest = known.max_by_key(|topology| topology.version)?;
        let masters: Vec<&Member> =
            newest.masters().filter(|it| !newest.slots_of(&it.id).is_empty()).collect();
        let from = masters[self.draw(0..masters.len() as u64) as usize];
        let of =
            |number: usize| newest.members().iter().find(|it| number_of(it.port) == Some(number));
        let may = |number: &usize| match of(*number) {
            Some(member) => member.master.as_ref() == Some(&from.id),
            None => true,
        };
        let takers: Vec<usize> = (0..NODES).filter(may).collect();
        let to = *takers.get(self.draw(0..takers.len().max(1) as u64) as usize)?;
        Some((number_of(from.port)?, to))
    }

    // Clients.

    pub(super) async fn write(self: Rc<World>) {
        loop {
            sleep(Duration::from_millis(self.draw(1..150))).await;
            let slot = SLOTS_USED[self.draw(0..SLOTS_USED.len() as u64) as usize];
            self.check();
            for number in 0..NODES {
                let Some(process) = self.process(number) else { continue };
                if !process.takes_writes(slot) || process.paused.get() != Paused::Nothing {
                    continue;
                }
                let write = self.next_write.get();
                self.next_write.set(write + 1);
                self.machines[number].disk.borrow_mut().log.push((write, slot));
                self.acknowledged.borrow_mut().insert((slot, write));
                self.sim_counts.borrow_mut().writes += 1;
            }
        }
    }

    // Faults.

    pub(super) async fn inject_faults(self: Rc<World>) {
        let end = Instant::now() + FAULT_PERIOD;
        while Instant::now() < end {
            sleep(Duration::from_millis(self.draw(1..3_000))).await;
            let (a, b) = (self.draw(0..NODES as u64) as usize, self.draw(0..NODES as u64) as usize);
            match self.draw(0..10) {
                0..=2 => {
                    self.kill(a);
                    let (world, later) = (self.clone(), self.draw(0..3_000));
                    spawn_local(async move {
                        sleep(Duration::from_millis(later)).await;
                        world.start(a);
                    });
                }
                3..=5 if a != b => {
                    let pair = (a.min(b), a.max(b));
                    self.parted.borrow_mut().insert(pair);
                    let (world, later) = (self.clone(), self.draw(0..4_000));
                    spawn_local(async move {
                        sleep(Duration::from_millis(later)).await;
                        world.parted.borrow_mut().remove(&pair);
                    });
                }
                9 => self.clone().fail_over(a).await,
                _ => {}
            }
        }
        self.calm.set(true);
        self.parted.borrow_mut().clear();
        (0..NODES).for_each(|number| self.start(number));
    }

    /// Sends the last hand-over command again to masters that do not know whether the new master
    /// has received the slots.
    pub(super) async fn repeat_handover(self: &Rc<World>, newest: &Topology) {
        let (text, version) = (newest.describe(), newest.version.to_string());
        for number in 0..NODES {
            if self.process(number).is_some_and(|it| it.cluster.has_unconfirmed_handover()) {
                let words = ["CLUSTERX", "SETNODES", &text, &version, "HANDOVER"];
                let _ = self.request(None, number, words.map(str::to_owned).into()).await;
            }
        }
    }

    /// Acts as a controller: assigns the slots of a dead master to one of its replicas, based on
    /// the newest topology of the other nodes. The controller acts only while all other nodes are
    /// reachable, and retries until all of them have the new topology.
    pub(super) async fn fail_over(self: Rc<World>, number: usize) {
        let topologies: Vec<Topology> = (0..NODES)
            .filter(|&other| other != number)
            .filter_map(|other| Some((*self.process(other)?.cluster.topology()).clone()))
            .collect();
        let newest = topologies.iter().max_by_key(|it| it.version);
        let Some(newest) = newest.filter(|_| topologies.len() == NODES - 1) else { return };
        let id = id_of(number);
        let fit = |member: &&Member| {
            let at = number_of(member.port).unwrap();
            let disk = self.machines[at].disk.borrow();
            disk.follows == Some(number) && disk.synced
        };
        let length = |member: &Member| {
            self.machines[number_of(member.port).unwrap()].disk.borrow().log.len()
        };
        let Some(next) = newest.replicas(&id).filter(fit).max_by_key(|it| length(it)) else {
            return;
        };
        let slots = newest.slots_of(&id);
        if slots.is_empty() {
            return;
        }
        let told = Draft::of(newest).give(&slots, &id, &next.id, true).finish().unwrap();
        self.kill(number);
        self.kept_down.set(Some(number));
        self.tell(|| format!("{number} is failed over to {}", next.address()));
        let at = number_of(next.port).unwrap();
        let has: BTreeSet<u64> =
            self.machines[at].disk.borrow().log.iter().map(|write| write.0).collect();
        self.acknowledged
            .borrow_mut()
            .retain(|(slot, write)| !slots.contains(slot) || has.contains(write));
        self.sim_counts.borrow_mut().failovers += 1;
        let (text, version) = (told.describe(), told.version.to_string());
        let others = [at].into_iter().chain((0..NODES).filter(|&it| it != number && it != at));
        for other in others {
            for attempt in 0.. {
                let words = ["CLUSTERX", "SETNODES", &text, &version].map(str::to_owned);
                let told = within(Duration::from_secs(1), async {
                    self.request(None, other, words.into()).await.map_err(io::Error::other)
                });
                match told.await {
                    Ok(_) => break,
                    // The node has a different topology with this version. Only an operator can
                    // resolve the conflict.
                    Err(error) if error.to_string().contains(VERSION) && other != at => break,
                    Err(error) if error.to_string().contains(VERSION) => {
                        self.kept_down.set(None);
                        return self.start(number);
                    }
                    Err(_) if attempt == 40 => break,
                    Err(_) => self.start(other),
                }
            }
        }
        self.kept_down.set(None);
        self.start(number);
    }
}

/// Returns the error of a killed task. Propagates the panic if the task panicked.
pub(super) fn killed(ended: JoinError, said: &str) -> String {
    if ended.is_panic() {
        std::panic::resume_unwind(ended.into_panic());
    }
    said.to_owned()
}
