//! Second part of [`World`]: the replica, its link, and their faults.

use crate::cable::{Cable, LinkDirection};
use crate::process::{Dial, Process};
use crate::workload::Command;
use crate::world::{AUDIT_BATCH_COMMANDS, CALM_STEPS, CLIENTS, World};
use client::{Reply, Socket};
use node::roles::{LinkState, Master};
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use store::Faults;

impl World {
    /// Runs one step of the replica's machine, of the network, or of fault injection.
    pub(crate) fn step_replica(&self) {
        let other = 1 - self.leader.get();
        let Some(process) = self.other().process.borrow().clone() else { return };
        // The master reads files for the replica on another thread.
        if let Some(master) = self.process().filter(|_| self.chance(3)) {
            self.work(&master);
        }
        self.on(other, || match self.draw(0..100) {
            0..=64 => (0..3).for_each(|_| self.follow()),
            65..=69 => process.maintain(),
            70..=79 => {
                let work = process.work.borrow_mut().pop_front();
                work.into_iter().for_each(|work| work());
            }
            80..=85 => process.spill(),
            86..=88 => process.snapshot(self.chance(2)),
            89..=91 => self.inject_replica_fault(),
            92 => self.link.cut.set([self.chance(2), self.chance(2)]),
            93 => self.link.cut.set([false; 2]),
            94 => {
                let is_up = self.link.cable.take().is_some();
                self.counts.borrow_mut().cuts += u64::from(is_up);
            }
            // In runs with several id ranges, startup takes longer and a replica is rarely able to
            // replace its master. Crash the master more often in these runs.
            96..=97 if self.link.is_promotable.get() && self.workload.borrow().has_ranges() => {
                self.disk().crash_after(Some(self.draw(1..30)));
            }
            // Advance the clock, because a replica reconnects after a second.
            96..=98 => self.advance(Duration::from_millis(self.draw(1..1000))),
            // The master dies while the replica could replace it.
            95 if self.link.is_promotable.get() => self.disk().crash_after(Some(self.draw(1..30))),
            _ => {}
        });
        drop(process);
        self.restart_replica_if_needed();
    }

    /// Restarts the replica's process after a crash, or if the process must open its folder again.
    fn restart_replica_if_needed(&self) {
        if self.other().disk().crashed() {
            self.counts.borrow_mut().replica_crashes += 1;
            self.end_replica();
            self.other().revive(self.chance(3));
            self.restart_replica();
        } else if self.replica().is_some_and(|process| process.is_over()) {
            self.trace(|| "the replica reopens its folder".to_owned());
            self.end_replica();
            self.restart_replica();
        }
    }

    fn replica(&self) -> Option<Rc<Process>> {
        self.other().process.borrow().clone()
    }

    pub(crate) fn end_replica(&self) {
        let Some(process) = self.other().process.take() else { return };
        self.trace(|| "the replica process ends".to_owned());
        let replication = &process.node.replication;
        let counts = &mut *self.counts.borrow_mut();
        counts.continued += replication.continued.load(Relaxed);
        counts.full_syncs += replication.full_syncs.load(Relaxed);
        self.link.cable.take();
        self.link.is_promotable.set(false);
        process.work.take();
    }

    pub(crate) fn restart_replica(&self) {
        let other = 1 - self.leader.get();
        loop {
            self.other().clear_faults();
            self.watch_disk(other);
            let disk = self.other().disk();
            if self.chance(5) {
                disk.crash_after(Some(self.draw(1..200)));
            }
            let master = Master { host: "master".to_owned(), port: 1 + self.leader.get() as u16 };
            let follows = Some((master, self.dialer()));
            let started =
                self.on(other, || Process::start(&self.other().config, &disk, CLIENTS, follows));
            match started {
                Ok(process) if !disk.crashed() => {
                    disk.crash_after(None);
                    self.other().process.replace(Some(Rc::new(process)));
                    return;
                }
                Ok(_) => {}
                Err(error) => assert!(disk.crashed(), "the replica does not start: {error}"),
            }
            self.other().revive(self.chance(3));
        }
    }

    fn inject_replica_fault(&self) {
        let disk = self.other().disk();
        match self.draw(0..8) {
            0 | 1 => disk.set_faults(self.faults().0),
            2 => disk.set_capacity(Some(disk.used_bytes() + self.draw(0..100_000))),
            3..=5 => {
                disk.set_faults(Faults::default());
                disk.set_capacity(None);
            }
            _ => disk.crash_after(Some(self.draw(1..120))),
        }
    }

    fn dialer(&self) -> Dial {
        let world = self.me.clone();
        Rc::new(move || world.upgrade().expect("the world exists").dial())
    }

    /// Connects the replica to the current master.
    fn dial(&self) -> io::Result<Socket> {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        if self.link.cut.get() != [false; 2] {
            return Err(refused());
        }
        let master = self.process().ok_or_else(refused)?;
        let (cable, ours) = Cable::new(master.accept());
        self.link.cable.replace(Some(cable));
        self.link.is_dialed.set(true);
        Ok(Socket::Memory(ours))
    }

    /// Forwards bytes and runs the replica's link.
    pub(crate) fn follow(&self) {
        // The link locks the manifest, which a sync may already have locked.
        if self.other().is_syncing() {
            return;
        }
        // Return if a caller on the stack already runs tasks.
        if self.serving.replace(true) {
            return;
        }
        self.carry();
        if let Some(process) = self.replica() {
            self.on(1 - self.leader.get(), || {
                process.serve();
                process.follow();
            });
            self.check_if_promotable(&process);
        }
        self.serving.set(false);
    }

    fn carry(&self) {
        let cut = self.link.cut.get();
        let mut cable = self.link.cable.borrow_mut();
        let Some(there) = cable.as_mut() else { return };
        let ways = [LinkDirection::ToMaster, LinkDirection::ToReplica].into_iter().zip(cut);
        let is_up = ways.filter(|(_, is_cut)| !is_cut).all(|(way, _)| {
            let most = 1 << self.draw(4..20);
            there.carry(way, most)
        });
        if !is_up {
            cable.take();
        }
    }

    /// Sets `is_promotable` if the replica can now replace the master.
    fn check_if_promotable(&self, process: &Process) {
        let is_up = process.node.replication.link.lock().state == LinkState::Connected;
        let has = process.node.durability.positions().0.offset;
        if self.link.is_dialed.get() && is_up && has >= self.link.floor.get() {
            self.link.is_promotable.set(true);
        }
    }

    /// After the master's death, promotes the replica if it can replace the master and a random
    /// draw selects the promotion.
    pub(crate) fn fail_over(&self) -> bool {
        if !self.is_pair() || !self.link.is_promotable.get() || self.chance(3) {
            return false;
        }
        let Some(process) = self.replica() else { return false };
        if self.other().disk().crashed() || process.is_over() {
            return false;
        }
        // The replica's log is final, because the replica receives nothing without a master.
        let has_before = self.link.has_all_before(process.node.durability.positions().0.offset);
        // The model cannot undo changes to the catalogue, so no such change may be lost.
        let catalogue_is_there = {
            let workload = self.workload.borrow();
            !workload.catalogue.changing
                && self.altered_at.get().is_none_or(|altered| altered < has_before)
        };
        if !catalogue_is_there {
            return false;
        }
        self.trace(|| format!("the replica takes over, had all data before: {has_before:?}"));
        self.other().clear_faults();
        self.serving.set(true);
        self.on(1 - self.leader.get(), || process.promote());
        self.serving.set(false);
        let is_lost = self.other().disk().crashed() || process.is_over();
        assert!(!is_lost, "a fit replica has not taken over");
        self.leader.set(1 - self.leader.get());
        self.counts.borrow_mut().promotions += 1;
        self.drop_acknowledged_since(has_before);
        self.leads();
        self.restart_replica();
        true
    }

    /// Runs without faults until the replica has all of the master's data. Panics after too many
    /// steps.
    pub(crate) fn catch_up(&self) {
        self.link.cut.set([false; 2]);
        self.other().clear_faults();
        self.depth.set(1);
        for _ in 0..CALM_STEPS {
            self.restart_replica_if_needed();
            let (Some(master), Some(replica)) = (self.process(), self.replica()) else { break };
            self.on(self.leader.get(), || {
                self.clients(&master);
                self.work(&master);
                self.round(&master);
            });
            self.on(1 - self.leader.get(), || {
                self.follow();
                let work = replica.work.borrow_mut().pop_front();
                work.into_iter().for_each(|work| work());
                replica.spill();
                replica.maintain();
            });
            let end = master.node.durability.shown();
            let is_up = replica.node.replication.link.lock().state == LinkState::Connected;
            if is_up && self.link.is_promotable.get() && replica.node.durability.shown() == end {
                self.depth.set(0);
                return;
            }
            self.advance(Duration::from_millis(20));
        }
        let (master, replica) = (self.process(), self.replica());
        let shown = |process: Option<Rc<Process>>| process.map(|it| it.node.durability.shown());
        let why = self.replica().map(|it| it.node.replication.link.lock().error.clone());
        panic!(
            "the replica does not follow: {:?}, the master {:?}, {why:?}",
            shown(replica),
            shown(master)
        );
    }

    /// Asserts that the replica gives the same replies as the master.
    pub(crate) fn compare(&self) {
        let both = [self.process(), self.replica()].map(|it| it.expect("the master is up"));
        let all = self.workload.borrow().audit(&self.model.borrow());
        for some in all.chunks(AUDIT_BATCH_COMMANDS) {
            let [ours, theirs] = [0, 1].map(|at| self.answers(&both[at], at, some));
            for (command, (ours, theirs)) in some.iter().zip(ours.iter().zip(&theirs)) {
                assert_eq!(theirs, ours, "the replica and its master: {:?}", command.requests);
                self.counts.borrow_mut().compared += 1;
            }
        }
    }

    /// Returns the replies of one machine to some commands. `at` is 0 for the master and 1 for the
    /// replica.
    fn answers(&self, process: &Process, at: usize, some: &[Command]) -> Vec<Reply> {
        let machine = if at == 0 { self.leader.get() } else { 1 - self.leader.get() };
        let mut client = process.clients[0].borrow_mut();
        for command in some {
            client.send(command.clone(), &mut self.model.borrow_mut(), self.elapsed.get());
        }
        let mut replies = Vec::new();
        for _ in 0..CALM_STEPS {
            self.on(machine, || {
                process.serve();
                let work = process.work.borrow_mut().pop_front();
                work.into_iter().for_each(|work| work());
                self.round(process);
            });
            self.follow();
            while let Some((_, reply)) = client.take() {
                replies.push(reply);
            }
            if client.asked.is_empty() {
                return replies;
            }
            self.advance(Duration::from_millis(1));
        }
        panic!("a read has no reply: {:?}", some[replies.len()].requests);
    }
}
