//! A simulated server process: its replies, its replication and its hand-overs.

use super::world::killed;
use super::{Machine, Process, REPLY_TIMEOUT, STAGES, Stage, World, number_of, ranges};
use client::{Reply, within};
use node::cluster::confirm::{confirm, is_final};
use node::cluster::handover::{HandoverSource, hand_over};
use node::cluster::topology::VERSION;
use node::cluster::{Cluster, Member, Role, Server, Topology};
use node::command::error::{Refusal, refuse};
use node::command::spec::Outcome;
use node::runtime::pause::Paused;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_local;
use tokio::time::sleep;

/// Interval between the checks of a fenced node.
const FENCE_CHECK_INTERVAL: Duration = Duration::from_millis(50);

impl Process {
    pub(super) fn world(&self) -> Rc<World> {
        self.world.upgrade().expect("the world outlives its processes")
    }

    pub(super) fn machine<R>(&self, with: impl FnOnce(&Machine) -> R) -> R {
        with(&self.world().machines[self.number])
    }

    /// Spawns a task that is aborted when the process dies.
    pub(super) fn spawn<T: 'static>(
        &self,
        task: impl Future<Output = T> + 'static,
    ) -> tokio::task::JoinHandle<T> {
        let task = spawn_local(task);
        let mut tasks = self.tasks.borrow_mut();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task.abort_handle());
        task
    }

    /// Returns whether the process serves a slot as its master.
    pub(super) fn serves(&self, slot: u16) -> bool {
        self.paused.get() != Paused::All && self.cluster.topology().server_of(slot) == Server::Own
    }

    pub(super) fn takes_writes(&self, slot: u16) -> bool {
        let is_master = self.machine(|it| it.disk.borrow().follows.is_none());
        self.serves(slot) && is_master && !self.fenced.get()
    }

    /// Copies the master's log in small batches, as a replica does.
    pub(super) async fn follow(self: Rc<Process>) {
        loop {
            let world = self.world();
            sleep(Duration::from_micros(world.draw(500..40_000))).await;
            let own = &world.machines[self.number];
            let Some(master) = own.disk.borrow().follows else { continue };
            if world.are_parted(self.number, master) || master == self.number {
                continue;
            }
            let Some(of_master) = world.process(master) else { continue };
            // The first request registers the replica with its master.
            if !of_master.fed.borrow().contains_key(&self.number) {
                own.disk.borrow_mut().had_others = true;
                world.machines[master].disk.borrow_mut().had_others = true;
                of_master.fed.borrow_mut().insert(self.number, 0);
                continue;
            }
            let length = {
                let theirs = world.machines[master].disk.borrow();
                let mut ours = own.disk.borrow_mut();
                // If two logs have the same write at one position, they are equal up to that
                // position.
                let same = match ours.log.len().checked_sub(1) {
                    Some(last) => theirs.log.get(last) == ours.log.get(last),
                    None => true,
                };
                if same {
                    let some = (theirs.log.len() - ours.log.len()).min(world.draw(1..20) as usize);
                    let from = ours.log.len();
                    ours.log.extend_from_slice(&theirs.log[from..from + some]);
                } else {
                    ours.log.clone_from(&theirs.log);
                }
                ours.synced |= ours.log.len() == theirs.log.len();
                ours.log.len()
            };
            sleep(Duration::from_micros(world.draw(20..3_000))).await;
            if !world.are_parted(self.number, master) {
                of_master.fed.borrow_mut().insert(self.number, length);
            }
        }
    }

    pub(super) async fn answer(self: Rc<Process>, words: &[String]) -> Result<Reply, String> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let bulk = |text: String| Ok(Reply::BulkString(text.into_bytes()));
        let ok = Ok(Reply::SimpleString(b"OK".to_vec()));
        let dir = self.machine(|it| it.folder.path().to_owned());
        let topology = self.cluster.topology();
        match &words[..] {
            ["CLUSTERX", "VERSION"] => bulk(topology.version.to_string()),
            ["CLUSTERX", "MYID"] => bulk(topology.own_id.clone()),
            ["CLUSTERX", "HOLD", token, ms] => {
                let time = Duration::from_millis(ms.parse().unwrap());
                if self.cluster.hold(token.as_bytes(), time) {
                    ok
                } else {
                    Err("HOLD another command is changing the cluster".to_owned())
                }
            }
            ["CLUSTERX", "SETNODEID", id, "NX"] => {
                self.busy().await;
                self.cluster.set_own_id(&dir, id, true).map_err(|e| e.to_string())?;
                self.apply_topology(true).await.map_err(said)?;
                ok
            }
            ["CLUSTERX", "SETNODES", text, version, option @ ..] => {
                let version: i64 = version.parse().unwrap();
                if option == ["HANDOVER"] {
                    let (own, text) = (self.clone(), (*text).to_owned());
                    // The hand-over continues if the client disconnects.
                    let work =
                        self.spawn(async move { hand_over(&Own(own), &text, version).await });
                    let handed = work.await.map_err(|ended| killed(ended, "closed"))?;
                    handed.map_err(said)?;
                    self.world().sim_counts.borrow_mut().handed_over += 1;
                    return ok;
                }
                let lacks_data = self.machine(|it| {
                    let disk = it.disk.borrow();
                    disk.follows.is_some() && !disk.synced
                });
                let nodes = node::cluster::Nodes { text, version, forced: false, lacks_data };
                let is_here = |_: &str, port| number_of(port) == Some(self.number);
                self.busy().await;
                if option == ["CHECK"] {
                    self.cluster.check_nodes(&dir, &nodes, is_here).map_err(|e| e.to_string())?;
                    return ok;
                }
                if self.fenced.get() {
                    let next = Topology::parse(text, version, &topology.own_id)?;
                    self.confirm_with_other_nodes(&next).await.map_err(said)?;
                }
                let set = self.cluster.set_nodes(&dir, &nodes, is_here);
                let is_news = set.map_err(|e| e.to_string())?;
                self.world().tell(|| format!("{} has {version}, new: {is_news}", self.number));
                self.apply_topology(is_news).await.map_err(said)?;
                ok
            }
            ["CLUSTER", "NODES"] => bulk(lines(&topology)),
            ["INFO", "replication"] => {
                let is_up = self.machine(|it| {
                    let disk = it.disk.borrow();
                    disk.follows.map(|master| disk.synced && self.world().process(master).is_some())
                });
                bulk(is_up.map_or(String::new(), |is_up| {
                    format!("master_link_status:{}\r\n", if is_up { "up" } else { "down" })
                }))
            }
            ["INFO", _] => bulk(String::new()),
            ["DBSIZE"] => {
                let rows = self.machine(|it| it.disk.borrow().log.len());
                Ok(Reply::Integer(rows as i64))
            }
            other => panic!("the command asks for {other:?}"),
        }
    }

    /// Asks the other nodes whether they refuse the topology, as a fenced node does.
    pub(super) async fn confirm_with_other_nodes(&self, next: &Topology) -> Outcome {
        let (world, text, version) = (self.world(), next.describe(), next.version.to_string());
        let words = ["CLUSTERX", "SETNODES", &text, &version, "CHECK"];
        let confirmed = confirm(next, async |member| {
            let to = number_of(member.port).ok_or(io::ErrorKind::NotFound)?;
            let link = Link { world: world.clone(), from: self.number, to };
            link.ask(&words).await.map(drop)
        });
        confirmed.await
    }

    /// Ends the fencing of this node once the other nodes confirm its topology. A real node does
    /// this in `roles/peer.rs`.
    pub(super) async fn lift_fence_if_confirmed(self: Rc<Process>) {
        let mut refused = None;
        loop {
            sleep(FENCE_CHECK_INTERVAL).await;
            let topology = self.cluster.topology();
            let is_refused = refused.as_ref().is_some_and(|it| Arc::ptr_eq(it, &topology));
            if !self.fenced.get() || is_refused || !self.may_lift_fence(&topology) {
                continue;
            }
            if let Err(refusal) = self.confirm_with_other_nodes(&topology).await {
                refused = Some(topology).filter(|_| is_final(&refusal));
                continue;
            }
            let is_same = Arc::ptr_eq(&topology, &self.cluster.topology());
            if is_same && self.may_lift_fence(&topology) && self.fenced.replace(false) {
                self.world().tell(|| format!("the fence of {} is lifted", self.number));
            }
        }
    }

    fn may_lift_fence(&self, topology: &Topology) -> bool {
        let world = self.world();
        let follows = |number: usize| {
            world.process(number).is_some()
                && world.machines[number].disk.borrow().follows == Some(self.number)
        };
        let mut replicas = topology.replicas(&topology.own_id);
        let is_fed = |member: &Member| {
            let number = number_of(member.port);
            number.is_some_and(|it| self.fed.borrow().contains_key(&it) && follows(it))
        };
        self.machine(|it| it.disk.borrow().follows.is_none())
            && !self.cluster.has_unconfirmed_handover()
            && (self.cluster.is_sole_owner() || replicas.any(is_fed))
    }

    pub(super) async fn busy(&self) {
        sleep(Duration::from_micros(self.world().draw(10..4_000))).await;
    }

    pub(super) async fn apply_topology(&self, is_news: bool) -> Outcome {
        self.busy().await;
        let topology = self.cluster.topology();
        let master = match topology.own_role() {
            Some(Role::Master) => None,
            Some(Role::ReplicaOf(at)) => number_of(at.port),
            None => return Ok(()),
        };
        self.machine(|it| {
            let mut disk = it.disk.borrow_mut();
            if disk.follows == master && !(is_news && self.fenced.get()) {
                return;
            }
            if disk.follows.is_none() && master.is_some() {
                disk.synced = false;
            }
            disk.follows = master;
            self.fenced.set(false);
        });
        Ok(())
    }
}

fn said(refusal: Refusal) -> String {
    String::from_utf8_lossy(refusal.text()).into_owned()
}

fn lines(topology: &Topology) -> String {
    let line = |member: &Member| {
        let Member { id, host, port, master } = member;
        let role = if master.is_none() { "master" } else { "slave" };
        let of = master.as_deref().unwrap_or("-");
        let slots = ranges(topology, id);
        format!("{id} {host}:{port}@0 {role} {of} 0 0 {} connected{slots}\n", topology.version)
    };
    topology.members().iter().map(line).collect()
}

struct Own(Rc<Process>);

struct Link {
    world: Rc<World>,
    from: usize,
    to: usize,
}

impl Link {
    async fn ask(&self, words: &[&str]) -> io::Result<Reply> {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let asked = self.world.request(Some(self.from), self.to, words);
        asked.await.map_err(io::Error::other)
    }
}

impl HandoverSource for Own {
    type Link = Link;
    type ConnectedReplica = usize;

    fn cluster(&self) -> &Cluster {
        &self.0.cluster
    }

    fn may_give(&self) -> Outcome {
        let is_master = self.0.machine(|it| it.disk.borrow().follows.is_none());
        if !is_master || self.0.fenced.get() {
            return Err(refuse!("ERR only a master can hand slots over"));
        }
        let world = self.0.world();
        let stage = STAGES[world.draw(0..STAGES.len() as u64) as usize];
        self.0.kill_stage.set(Some(stage).filter(|_| !world.chance(3)));
        Ok(())
    }

    async fn reach(&self, member: &Member) -> io::Result<Link> {
        let world = self.0.world();
        world.stage(self.0.number, Stage::FootprintScope).await;
        let to = number_of(member.port).ok_or(io::ErrorKind::NotFound)?;
        let link = Link { world, from: self.0.number, to };
        match within(REPLY_TIMEOUT, link.ask(&["CLUSTERX", "MYID"])).await? {
            Reply::BulkString(id) if id == member.id.as_bytes() => Ok(link),
            _ => Err(io::Error::other(format!("the node there is not {}", member.id))),
        }
    }

    async fn tell(link: &mut Link, next: &Topology, option: &[u8]) -> io::Result<()> {
        let is_news = option != b"CHECK";
        if is_news {
            link.world.stage(link.from, Stage::Tell).await;
        }
        let (text, version) = (next.describe(), next.version.to_string());
        let option = String::from_utf8_lossy(option).into_owned();
        let words = ["CLUSTERX", "SETNODES", &text, &version, &option];
        link.ask(&words[..words.len() - usize::from(option.is_empty())]).await?;
        if is_news {
            link.world.stage(link.from, Stage::Told).await;
        }
        Ok(())
    }

    fn fed(&self, taker: &Member) -> Result<usize, Refusal> {
        let number = number_of(taker.port);
        let fed = number.filter(|number| self.0.fed.borrow().contains_key(number));
        fed.ok_or_else(|| {
            refuse!("ERR replica {} is not in sync: retry when it is", taker.address())
        })
    }

    fn pause(&self, kind: Paused) {
        self.0.paused.set(kind);
    }

    fn go_on(&self) {
        self.0.paused.set(Paused::Nothing);
    }

    async fn caught_up(&self, fed: &usize) {
        let world = self.0.world();
        world.stage(self.0.number, Stage::Pause).await;
        let has = || self.0.fed.borrow().get(fed).copied().unwrap_or(0);
        while has() < self.0.machine(|it| it.disk.borrow().log.len()) {
            sleep(Duration::from_millis(1)).await;
        }
        world.stage(self.0.number, Stage::CaughtUp).await;
    }

    async fn adopt(&self, version: i64, next: Topology) -> Outcome {
        let world = self.0.world();
        world.stage(self.0.number, Stage::Adopt).await;
        self.0.busy().await;
        let dir = self.0.machine(|it| it.folder.path().to_owned());
        self.0.cluster.give(&dir, |at| {
            if at.version == version { Ok(Some(next)) } else { Err(VERSION.to_owned()) }
        })?;
        world.tell(|| format!("{} gives slots away, version {version}", self.0.number));
        world.stage(self.0.number, Stage::Adopted).await;
        Ok(())
    }

    async fn gave(&self, version: i64) -> Outcome {
        self.0.world().stage(self.0.number, Stage::Gave).await;
        self.0.busy().await;
        let dir = self.0.machine(|it| it.folder.path().to_owned());
        self.0.cluster.gave(&dir, version)?;
        self.0.apply_topology(true).await
    }
}
