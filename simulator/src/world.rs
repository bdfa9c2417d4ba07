//! Main loop of a run. The seed is the only input of a run.
//!
//! Long: this file contains all steps and faults, because they draw from one random number
//! generator in a fixed order.

use crate::cable::ReplicaLink;
use crate::client::{Client, PendingCommand, check};
use crate::counts::{RunCounts, Section};
use crate::model::{MAX_LOSS_SPAN, Model};
use crate::process::Process;
use crate::workload::{Admin, Catalogue, Command, Habits, ReplyShape, Workload, list};
use client::Reply;
use node::config::{Config, Existence, Fsync, LedgerMode};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use store::time::{Simulator, Work, simulate};
use store::{Faults, SimDisk};
use tempfile::TempDir;

pub(crate) const CLIENTS: usize = 4;
/// Start of the simulated clock, in microseconds since 1970.
const EPOCH_US: u64 = 1_800_000_000_000_000;
/// Time after which a missing reply is a failure.
const REPLY_TIMEOUT: Duration = Duration::from_secs(120);
/// Number of commands that an audit sends at once.
pub(crate) const AUDIT_BATCH_COMMANDS: usize = 8;
/// Number of steps within which a server without faults must reply to all commands.
pub(crate) const CALM_STEPS: u32 = 20_000;

/// A machine and its process.
pub(crate) struct Machine {
    pub(crate) config: Config,
    disk: RefCell<SimDisk>,
    pub(crate) process: RefCell<Option<Rc<Process>>>,
    /// Number of syncs of the machine's disk that are on the call stack.
    syncs: Arc<AtomicU32>,
    /// Folder for the file with the node's role. The folder is outside the simulated disk and does
    /// not fail.
    _folder: Option<TempDir>,
}

pub(crate) struct World {
    pub(crate) me: Weak<World>,
    random: RefCell<fastrand::Rng>,
    pub(crate) elapsed: Cell<Duration>,
    /// Sum of all jumps of the wall clock.
    jumped_us: Cell<i64>,
    /// Machines of the run: a single master, or a master and its replica.
    machines: Vec<Machine>,
    /// Index of the master.
    pub(crate) leader: Cell<usize>,
    /// Index of the machine that runs the current step.
    active: Cell<usize>,
    pub(crate) link: ReplicaLink,
    /// Number of nested steps: a step that waits runs other steps.
    pub(crate) depth: Cell<u32>,
    /// Whether connections are being served.
    pub(crate) serving: Cell<bool>,
    /// True while clients send only audits and the disk works without faults.
    is_quiet: Cell<bool>,
    /// Start of the last successful commit.
    committed: Cell<Duration>,
    /// Value of `committed` when the last process ended.
    left: Cell<Duration>,
    /// Whether the catalogue has changed since the last snapshot.
    altered: Cell<bool>,
    /// Time at which a catalogue change was last acknowledged.
    pub(crate) altered_at: Cell<Option<Duration>>,
    pub(crate) model: RefCell<Model>,
    pub(crate) workload: RefCell<Workload>,
    pub(crate) counts: RefCell<RunCounts>,
    /// Probability of a snapshot at each opportunity: 1 in `snapshot_odds`.
    snapshot_odds: u32,
    /// Probability that a server is killed during startup: 1 in `start_odds`.
    start_odds: u32,
    /// Whether to print all events.
    is_traced: bool,
}

impl Simulator for World {
    fn elapsed(&self) -> Duration {
        self.elapsed.get()
    }

    fn unix_us(&self) -> u64 {
        let since = EPOCH_US + self.elapsed.get().as_micros() as u64;
        since.saturating_add_signed(self.jumped_us.get())
    }

    fn wait(&self, at_most: Duration) {
        self.advance(at_most.min(Duration::from_millis(20)));
        self.others();
    }

    fn spawn(&self, work: Work) {
        if let Some(process) = self.machines[self.active.get()].process.borrow().as_ref() {
            process.work.borrow_mut().push_back(work);
        }
    }
}

/// Whether posts have ids in several ranges. Only some seeds use several ranges, so that the other
/// seeds still replay the events that found bugs.
fn is_ranged(seed: u64) -> bool {
    seed % 7 > 3
}

/// Returns a configuration with tiny tables, so that rollovers, spills and merges are frequent.
fn config(random: &mut fastrand::Rng) -> Config {
    let mut config = Config::default();
    config.durability.fsync = if random.bool() { Fsync::Always } else { Fsync::Everysec };
    config.durability.dir = "/nowhere".into();
    config.server.workers = 1;
    config.server.memory_bytes = 1 << 40;
    config.security.protected_mode = false;
    config.spill.merge_bytes_per_s = 0;
    config.counter[0].rows_per_table = random.u64(100..500);
    config.counter[0].memory_limit_bytes = random.u64(8..40) << 10;
    let seen = Existence { name: "seen".to_owned(), ..Existence::default() };
    config.existence.push(seen);
    let filter_seed = seeds::given("TIDEMARK_FILTER_SEED").unwrap_or(7);
    for space in &mut config.existence {
        // With the lowest possible false-positive rate, about one run in 5,000 has a false
        // positive.
        (space.seed, space.false_positive_rate) = (filter_seed, 1e-7);
        space.pairs_per_table = random.u64(100..600);
        space.max_tables = random.usize(2..6);
    }
    config.existence[1].ledger = LedgerMode::Off;
    config.existence[3].spill = false;
    config
}

impl Machine {
    fn new(seed: u64, config: Config, folder: Option<TempDir>) -> Machine {
        Machine {
            config,
            disk: RefCell::new(SimDisk::new(seed)),
            process: RefCell::default(),
            syncs: Arc::default(),
            _folder: folder,
        }
    }

    pub(crate) fn disk(&self) -> SimDisk {
        self.disk.borrow().clone()
    }

    pub(crate) fn is_syncing(&self) -> bool {
        self.syncs.load(Relaxed) > 0
    }

    /// Restarts the machine after a crash.
    pub(crate) fn revive(&self, is_kill: bool) {
        let disk = self.disk();
        self.disk.replace(if is_kill { disk.kill() } else { disk.power_cut() });
    }

    /// Clears all disk faults.
    pub(crate) fn clear_faults(&self) {
        let disk = self.disk();
        disk.set_faults(Faults::default());
        disk.set_capacity(None);
        disk.crash_after(None);
    }
}

impl World {
    /// Creates a world with one machine, or with two for a master and its replica.
    pub(crate) fn new(seed: u64, machines: usize) -> Rc<World> {
        // Create the folders before seeding, because the choice of a temporary name consumes random
        // numbers, and more of them if the name exists.
        let folders: Vec<TempDir> =
            (0..machines).map(|_| tempfile::tempdir().expect("a folder for the role")).collect();
        let mut random = fastrand::Rng::with_seed(seed);
        // Seed the generator from which the server draws hashes and terms.
        fastrand::seed(seed);
        let mut config = config(&mut random);
        let (mut habits, mut snapshot_odds, mut start_odds) = (Habits::default(), 2, 5);
        if is_ranged(seed) {
            habits = Habits::ranged(&mut random);
            // With old snapshots and interrupted restarts, recovery depends mostly on the log.
            start_odds = 2;
            snapshot_odds = *random.choice(&[2, 8, u32::MAX]).expect("some");
            // With this limit, a new range is created for 64 pairs.
            config.existence.iter_mut().for_each(|space| space.max_outliers = 1024);
            let ledger = if random.bool() { LedgerMode::Exact } else { LedgerMode::Off };
            config.existence[1].ledger = ledger;
        }
        let workload = RefCell::new(Workload::new(habits));
        let machines = if machines == 1 {
            vec![Machine::new(seed, config, None)]
        } else {
            // A small log retention makes full syncs necessary.
            let keeps = [0, 20_000, 1 << 30][random.usize(0..3)];
            let timeout_s = random.u64(2..20);
            let machine = |(at, folder): (u64, TempDir)| {
                let mut config = config.clone();
                config.durability.keep_log_bytes = keeps;
                config.replication.timeout_s = timeout_s;
                config.durability.dir = folder.path().to_owned();
                Machine::new(seed ^ at << 63, config, Some(folder))
            };
            (0..).zip(folders).map(machine).collect()
        };
        let world = Rc::new_cyclic(|me| World {
            me: me.clone(),
            random: RefCell::new(random),
            elapsed: Cell::default(),
            jumped_us: Cell::default(),
            machines,
            leader: Cell::default(),
            active: Cell::default(),
            link: ReplicaLink::default(),
            depth: Cell::default(),
            serving: Cell::default(),
            is_quiet: Cell::new(true),
            committed: Cell::default(),
            left: Cell::default(),
            altered: Cell::default(),
            altered_at: Cell::default(),
            model: RefCell::default(),
            workload,
            snapshot_odds,
            start_odds,
            counts: RefCell::default(),
            is_traced: std::env::var_os("TIDEMARK_TRACE").is_some(),
        });
        (0..world.machines.len()).for_each(|at| world.watch_disk(at));
        world
    }

    /// Runs `steps` steps, then checks the final state.
    pub(crate) fn run(self: &Rc<World>, steps: u32) {
        simulate(Some(self.clone()));
        self.restart();
        if self.is_pair() {
            self.restart_replica();
        }
        for _ in 0..steps {
            self.step();
            if self.disk().crashed() {
                self.crash_process();
                if !self.fail_over() {
                    self.restart();
                }
            }
        }
        self.clear_faults();
        self.run_until_answered();
        self.audit();
        if self.is_pair() {
            self.catch_up();
            self.compare();
            self.end_replica();
        }
        self.crash_process();
        self.restart();
        // Drop the references that the processes and this thread have to the world.
        self.machines.iter().for_each(|machine| drop(machine.process.take()));
        simulate(None);
    }

    pub(crate) fn is_pair(&self) -> bool {
        self.machines.len() > 1
    }

    pub(crate) fn leader(&self) -> &Machine {
        &self.machines[self.leader.get()]
    }

    /// Returns the machine of the replica.
    pub(crate) fn other(&self) -> &Machine {
        &self.machines[1 - self.leader.get()]
    }

    fn config(&self) -> &Config {
        &self.leader().config
    }

    pub(crate) fn trace(&self, what: impl FnOnce() -> String) {
        if self.is_traced {
            println!("{:>12?} {:1$}{2}", self.elapsed.get(), self.depth.get() as usize, what());
        }
    }

    pub(crate) fn chance(&self, one_in: u32) -> bool {
        self.random.borrow_mut().u32(0..one_in) == 0
    }

    pub(crate) fn draw(&self, range: std::ops::Range<u64>) -> u64 {
        self.random.borrow_mut().u64(range)
    }

    pub(crate) fn process(&self) -> Option<Rc<Process>> {
        self.leader().process.borrow().clone()
    }

    pub(crate) fn disk(&self) -> SimDisk {
        self.leader().disk()
    }

    /// Makes each sync of this disk take simulated time. Other threads run during a sync.
    pub(crate) fn watch_disk(&self, at: usize) {
        let slow_ms = if self.chance(4) { 2000 } else { 4 };
        let (disk, syncs) = (self.machines[at].disk(), self.machines[at].syncs.clone());
        disk.set_sync_hook(move || {
            syncs.fetch_add(1, Relaxed);
            store::time::sleep(Duration::from_millis(slow_ms));
            syncs.fetch_sub(1, Relaxed);
        });
    }

    pub(crate) fn advance(&self, time: Duration) {
        self.elapsed.set(self.elapsed.get() + time);
        if self.serving.get() {
            return;
        }
        for (at, machine) in self.machines.iter().enumerate() {
            let process = machine.process.borrow().clone();
            // Advance the clock of the process, which may run its tasks.
            process.iter().for_each(|process| self.on(at, || process.advance(time)));
        }
    }

    /// Runs `work` on a machine during a step of another machine.
    pub(crate) fn on<R>(&self, machine: usize, work: impl FnOnce() -> R) -> R {
        let before = self.active.replace(machine);
        let done = work();
        self.active.set(before);
        done
    }

    /// Runs `work` and counts a crash during it.
    fn counting_crashes<R>(&self, section: Section, work: impl FnOnce() -> R) -> R {
        let before = (self.disk().crashed(), self.disk().steps());
        let done = work();
        if !before.0 && self.disk().crashed() && self.disk().steps() > before.1 {
            *self.counts.borrow_mut().crashes_in.entry(section).or_default() += 1;
            if self.altered.get() {
                self.counts.borrow_mut().crashes_after_alter += 1;
            }
        }
        done
    }

    /// Runs one step: of a client, a thread, the clock, or fault injection.
    fn step(&self) {
        let Some(process) = self.process() else { return };
        self.depth.set(1);
        self.active.set(self.leader.get());
        if self.is_pair() {
            self.step_replica();
        }
        match self.draw(0..100) {
            0..=49 => self.clients(&process),
            50..=69 => self.round(&process),
            70..=74 => self.advance(Duration::from_millis(self.draw(1..400))),
            75..=79 => process.maintain(),
            80..=89 => self.work(&process),
            90..=93 => self.counting_crashes(Section::Spill, || process.spill()),
            94..=95 => {
                let due = self.chance(self.snapshot_odds);
                self.counting_crashes(Section::Snapshot, || process.snapshot(due));
            }
            96..=97 => self.inject_fault(),
            _ => {}
        }
        self.depth.set(0);
    }

    /// Draws a kind of disk fault and its rate.
    pub(crate) fn faults(&self) -> (Faults, u32) {
        let rate = self.draw(1..100) as u32;
        let mut faults = Faults::default();
        match self.draw(0..4) {
            0 => faults.sync_error = rate,
            1 => faults.write_error = rate,
            2 => faults.no_space = rate,
            _ => faults.sync_dir_error = rate,
        }
        (faults, rate)
    }

    /// Injects or clears a fault.
    fn inject_fault(&self) {
        let disk = self.disk();
        match self.draw(0..12) {
            0..=2 => {
                let (mut faults, rate) = self.faults();
                (faults.short_write, faults.interrupted) = (rate, rate);
                disk.set_faults(faults);
            }
            3 => disk.set_capacity(Some(disk.used_bytes() + self.draw(0..100_000))),
            4..=6 => {
                disk.set_faults(Faults::default());
                disk.set_capacity(None);
            }
            7 => {
                let jump = self.draw(0..600_000_000) as i64;
                self.jumped_us.set(if self.chance(2) { jump } else { -jump });
                self.counts.borrow_mut().clock_jumps += 1;
            }
            8..=9 => disk.crash_after(Some(1)),
            _ => disk.crash_after(Some(self.draw(1..120))),
        }
    }

    /// Runs steps of other threads while one thread waits.
    fn others(&self) {
        let depth = self.depth.get();
        self.depth.set(depth + 1);
        if let Some(process) = self.process() {
            self.on(self.leader.get(), || {
                // Commit first, because the waiting work may depend on the log.
                self.round(&process);
                for _ in 0..if depth < 3 { self.draw(0..4) } else { 0 } {
                    match self.draw(0..4) {
                        0..=1 => self.clients(&process),
                        2 => self.round(&process),
                        _ => process.maintain(),
                    }
                }
            });
        }
        if self.is_pair() {
            self.follow();
        }
        self.depth.set(depth);
    }

    pub(crate) fn round(&self, process: &Process) {
        let began = self.elapsed.get();
        if let Some(went_well) = self.counting_crashes(Section::Commit, || process.round()) {
            if went_well {
                self.committed.set(began);
                let end = process.node.durability.shown().offset;
                self.link.marks.borrow_mut().push((began, end));
            }
            let counts = &mut *self.counts.borrow_mut();
            self.trace(|| format!("round {went_well}"));
            counts.rounds += 1;
            counts.failed_rounds += u64::from(!went_well);
            if went_well {
                self.model.borrow_mut().round_succeeded();
            } else {
                self.model.borrow_mut().round_failed();
            }
        }
    }

    /// Runs one pending task of another thread.
    pub(crate) fn work(&self, process: &Process) {
        let work = process.work.borrow_mut().pop_front();
        if let Some(work) = work {
            self.trace(|| "work".to_owned());
            self.counting_crashes(Section::Work, work);
        }
    }

    /// Lets one client read its replies and send more commands, and serves all connections.
    pub(crate) fn clients(&self, process: &Process) {
        // A connection to a replica locks the manifest, which a sync may already have locked.
        if self.is_pair() && self.leader().is_syncing() {
            return;
        }
        // `serve` can call this function recursively; the inner call does nothing.
        if self.serving.replace(true) {
            return;
        }
        let index = self.draw(0..CLIENTS as u64) as usize;
        // After a crash of the machine, clients receive no replies.
        if !self.disk().crashed() {
            self.turn(&mut process.clients[index].borrow_mut());
        }
        self.counting_crashes(Section::Clients, || process.serve());
        self.serving.set(false);
    }

    fn turn(&self, client: &mut Client) {
        let now = self.elapsed.get();
        self.read(client);
        if let Some(first) = client.asked.front() {
            let waits = now.saturating_sub(first.at);
            assert!(waits < REPLY_TIMEOUT, "no reply after {waits:?}: {:?}", first.command);
            return;
        }
        if self.is_quiet.get() {
            return;
        }
        for _ in 0..self.draw(1..4) {
            let (model, workload) =
                (&mut *self.model.borrow_mut(), &mut *self.workload.borrow_mut());
            let Some(command) = workload.draw(model, &mut self.random.borrow_mut()) else {
                continue;
            };
            self.trace(|| format!("{:?}", command.requests));
            if let ReplyShape::Admin(admin) = &command.shape {
                let changes = !matches!(
                    admin,
                    Admin::Save | Admin::Roll | Admin::Spill | Admin::Rebuild | Admin::List
                );
                workload.catalogue.changing |= changes;
            }
            client.send(command, model, now);
        }
    }

    /// Checks the replies that have arrived.
    fn read(&self, client: &mut Client) {
        while let Some((asked, reply)) = client.take() {
            self.counts.borrow_mut().commands += 1;
            self.trace(|| format!("{:?} -> {reply:?}", asked.command.requests));
            if matches!(reply, Reply::Error(_)) {
                self.counts.borrow_mut().errors += 1;
            }
            if let ReplyShape::Admin(admin) = &asked.command.shape {
                self.administered(admin, &asked, &reply);
                continue;
            }
            let checked = check(&asked, &reply, &mut self.model.borrow_mut(), self.elapsed.get());
            checked.unwrap_or_else(|wrong| panic!("{wrong}"));
            // The client may act as if it had not received the reply, and send the command again.
            self.workload.borrow_mut().keep_for_resend(asked.command);
        }
    }

    /// Handles the reply to an operator's command.
    fn administered(&self, admin: &Admin, asked: &PendingCommand, reply: &Reply) {
        let workload = &mut *self.workload.borrow_mut();
        let catalogue = &mut workload.catalogue;
        let model = &mut *self.model.borrow_mut();
        let counts = &mut *self.counts.borrow_mut();
        catalogue.saving &= *admin != Admin::Save;
        if let Reply::Error(text) = reply {
            // The change may be in memory but not in the log. A crash may then undo the change, so
            // later commands avoid the changed name. Other failed changes have no effect.
            let may_fail = ["MISCONF ", "OOM ", "ERR writing", "ERR "];
            assert!(
                may_fail.iter().any(|code| text.starts_with(code)),
                "{asked:?}: {text}",
                asked = asked.command
            );
            return;
        }
        match admin {
            Admin::AddField(name) => {
                catalogue.fields.insert(name.clone());
                catalogue.altered.insert(name.clone(), self.elapsed.get());
            }
            // Do not remove the values from the model, because a crash may undo the drop.
            Admin::DropField(name) => {
                catalogue.fields.remove(name);
                catalogue.altered.insert(name.clone(), self.elapsed.get());
            }
            Admin::Create(number) => {
                (catalogue.extra, catalogue.is_renamed) = (Some(*number), false);
            }
            Admin::Rename(_) => catalogue.is_renamed = true,
            Admin::Drop(number) => {
                catalogue.extra = None;
                model.drop_space(*number);
            }
            Admin::Save => {
                counts.saves += 1;
                self.altered.set(false);
                return;
            }
            Admin::Spill => {
                counts.spills += 1;
                return;
            }
            Admin::Roll | Admin::Rebuild => return,
            Admin::List => return self.resolve_unacknowledged(reply, workload, model),
        }
        counts.altered += 1;
        self.altered.set(true);
        self.altered_at.set(Some(self.elapsed.get()));
        catalogue.changing = false;
    }

    /// After a restart, determines from the catalogue which unacknowledged changes have survived.
    fn resolve_unacknowledged(&self, reply: &Reply, workload: &mut Workload, model: &mut Model) {
        let catalogue = &mut workload.catalogue;
        let text = |reply: &Reply| reply.clone().into_text().expect("a string");
        let (mut fields, mut extra) = (Vec::new(), None);
        for space in reply.items() {
            let of = |key: &str| space.get(key).map(text);
            let name = of("name").expect("a space has a name");
            if name == "post" {
                let all = of("fields").expect("a space has counters");
                fields =
                    all.split(' ').filter_map(|f| Some(f.split_once(':')?.0.to_owned())).collect();
            }
            if let Some(number) = name.strip_prefix('x') {
                let number = number.trim_end_matches('r').parse().expect("a number");
                extra = Some((number, name.ends_with('r')));
            }
        }
        fields.retain(|field: &String| field.starts_with('f'));
        let there: BTreeSet<String> = fields.iter().cloned().collect();
        if !catalogue.changing {
            let differ = catalogue.fields.symmetric_difference(&there);
            let lost: Vec<&String> =
                differ.filter(|field| !self.may_be_lost(catalogue, field)).collect();
            assert!(
                lost.is_empty(),
                "acknowledged fields {:?}, found {fields:?}",
                catalogue.fields
            );
            let known = catalogue.extra.map(|number| (number, catalogue.is_renamed));
            assert_eq!(known, extra, "the space was acknowledged");
        }
        catalogue.fields = there;
        if let Some(number) = catalogue.extra.filter(|number| extra.is_none_or(|e| e.0 != *number))
        {
            model.drop_space(number);
        }
        catalogue.extra = extra.map(|(number, _)| number);
        catalogue.is_renamed = extra.is_some_and(|(_, is_renamed)| is_renamed);
        (catalogue.changing, catalogue.saving) = (false, false);
    }

    /// Whether `fsync` allows the last crash to undo the last change of this field.
    fn may_be_lost(&self, catalogue: &Catalogue, field: &str) -> bool {
        let altered = catalogue.altered.get(field);
        self.config().durability.fsync == Fsync::Everysec
            && altered.is_some_and(|altered| *altered + MAX_LOSS_SPAN >= self.left.get())
    }

    /// Ends the process by a simulated kill, or by a power loss of the machine.
    fn crash_process(&self) {
        let Some(process) = self.leader().process.take() else { return };
        let is_kill = self.chance(3);
        self.link.cable.take();
        self.link.is_dialed.set(false);
        self.note_cold(&process);
        // Commands without a reply may be resent if they have a token.
        for client in &process.clients {
            let asked = client.borrow_mut().asked.drain(..).collect::<Vec<PendingCommand>>();
            let workload = &mut *self.workload.borrow_mut();
            asked.into_iter().for_each(|asked| workload.keep_for_resend(asked.command));
        }
        let disk = self.disk();
        disk.crash_after(Some(1));
        self.trace(|| format!("process ends, kill: {is_kill}"));
        process.work.take();
        drop(process);
        self.leader().revive(is_kill);
        let counts = &mut *self.counts.borrow_mut();
        *if is_kill { &mut counts.kills } else { &mut counts.power_cuts } += 1;
    }

    /// Notifies the model which acknowledged changes a crash may lose under this `fsync` policy.
    fn lose(&self) {
        self.left.set(self.committed.get());
        let exact = self.config().durability.fsync == Fsync::Always;
        self.model.borrow_mut().crash(self.elapsed.get(), self.committed.get(), exact);
    }

    /// Notifies the model that all changes acknowledged after `then` may be lost.
    pub(crate) fn drop_acknowledged_since(&self, then: Duration) {
        self.left.set(then + MAX_LOSS_SPAN);
        self.model.borrow_mut().crash(self.elapsed.get(), then + MAX_LOSS_SPAN, false);
    }

    fn note_cold(&self, process: &Process) {
        let Some(engines) = process.node.loaded() else { return };
        let (figures, counts) = (&engines.cold.figures, &mut *self.counts.borrow_mut());
        counts.spilled_tables += figures.spilled_tables.load(Relaxed);
        counts.merges += figures.merges.load(Relaxed);
        counts.failed_spills += figures.failures.load(Relaxed);
        counts.cold_reads += figures.misses.load(Relaxed);
        for space in engines.existences() {
            counts.ranges += u64::from(space.has_ranges());
            counts.outliers += u64::from(space.outlier_pairs() > 0);
            let Some(ledger) = space.ledger() else { continue };
            counts.rebuilt += ledger.rebuilds.tables.load(Relaxed);
            counts.cut_rebuilds += u64::from(ledger.rebuilds.left.load(Relaxed) > 0);
        }
    }

    /// Clears the faults of the master's disk.
    fn clear_faults(&self) {
        self.is_quiet.set(true);
        self.leader().clear_faults();
    }

    /// Starts a process, in several attempts if some are interrupted, and audits the recovered
    /// data.
    fn restart(&self) {
        self.lose();
        loop {
            self.clear_faults();
            self.watch_disk(self.leader.get());
            let disk = self.disk();
            if self.chance(self.start_odds) {
                disk.crash_after(Some(self.draw(1..200)));
            }
            let started = self.counting_crashes(Section::Recovery, || {
                Process::start(self.config(), &disk, CLIENTS, None)
            });
            match started {
                Ok(process) if !disk.crashed() => {
                    disk.crash_after(None);
                    let recovered = process.node.loaded().expect("the data set is loaded");
                    let figures = &recovered.cold.figures;
                    let written =
                        figures.spilled_tables.load(Relaxed) + figures.merges.load(Relaxed);
                    self.counts.borrow_mut().spills_in_recovery += written;
                    self.leader().process.replace(Some(Rc::new(process)));
                    break;
                }
                Ok(_) => {}
                Err(error) => assert!(disk.crashed(), "the start failed: {error}"),
            }
            self.leader().revive(self.chance(3));
        }
        self.counts.borrow_mut().starts += 1;
        self.leads();
    }

    /// Resets the link for a new master and audits its data.
    pub(crate) fn leads(&self) {
        let process = self.process().expect("the master is up");
        let end = process.node.durability.positions().0.offset;
        self.link.begin(self.elapsed.get(), end);
        self.active.set(self.leader.get());
        self.audit();
        self.is_quiet.set(false);
    }

    /// Reads all data and compares it with the model.
    fn audit(&self) {
        let Some(process) = self.process() else { return };
        let ask = |some: Vec<Command>| {
            for command in some {
                let now = self.elapsed.get();
                process.clients[0].borrow_mut().send(command, &mut self.model.borrow_mut(), now);
            }
            self.run_until_answered();
        };
        // Read the catalogue first, because the other commands depend on it.
        ask(vec![list()]);
        let mut all = self.workload.borrow().audit(&self.model.borrow()).into_iter();
        while all.len() > 0 {
            ask(all.by_ref().take(AUDIT_BATCH_COMMANDS).collect());
        }
    }

    /// Runs without faults until every command has its reply.
    fn run_until_answered(&self) {
        let Some(process) = self.process() else { return };
        self.depth.set(1);
        for _ in 0..CALM_STEPS {
            process.serve();
            for client in &process.clients {
                self.read(&mut client.borrow_mut());
            }
            if process.clients.iter().all(|client| client.borrow().asked.is_empty()) {
                self.depth.set(0);
                return;
            }
            self.work(&process);
            self.round(&process);
            process.spill();
            process.snapshot(false);
            process.maintain();
            self.advance(Duration::from_millis(2));
        }
        let waits: Vec<String> = process
            .clients
            .iter()
            .filter_map(|client| Some(format!("{:?}", client.borrow().asked.front()?.command)))
            .collect();
        panic!("no reply although there was no fault: {waits:?}");
    }
}

/// Formats the state for the report of a failed run.
impl std::fmt::Display for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at {:?}: {:?}", self.elapsed.get(), self.counts.borrow())
    }
}
