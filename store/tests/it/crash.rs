//! Simulation of crashes and recoveries on the simulated disk.
//!
//! One seed determines each run: a disk with fault rates, options, and several simulated processes,
//! one after another. Each process recovers from the last crash and compares the state with the
//! model. Then the process runs a workload (changes, commits, snapshots, seals, new segments) until
//! a power loss or a kill at a random step, possibly during startup. The model records every
//! attempted body for each sequence number of the log.
//!
//! Assertions after each crash:
//!
//! - The log ends at or after the last synced sequence number (promise 3, `always`).
//! - The log is a prefix: batch n has the last body written as n, for all n up to the end
//!   (`everysec`, `no`).
//! - The state that results from snapshot and log equals that prefix (promises 2 and 3).
//! - Without bit rot, startup never reports damage.
//!
//! `cargo xtask sim crash --runs 100000` runs more seeds; `--seed 7` replays seed 7.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use store::{
    Batch, Error, Faults, Lineage, Log, LogOptions, Position, Records, SimDisk, Store,
    StoreOptions, Tag,
};

const KEYS: u64 = 24;
/// Number of keys per table of a snapshot.
const TABLE: u64 = 6;

type State = BTreeMap<u64, u64>;

/// State of the simulation, except for the disk.
#[derive(Default)]
struct Model {
    /// Attempted bodies for each sequence number, starting at 1. The last body is valid.
    tried: Vec<Vec<Vec<u8>>>,
    /// Last synced sequence number.
    acknowledged: u64,
    crashes: u64,
    losses: u64,
    refusals: BTreeMap<&'static str, u64>,
    trace: u64,
}

impl Model {
    fn attempt(&mut self, sequence: u64, body: &[u8]) {
        let at = sequence as usize - 1;
        self.tried.truncate(at + 1);
        if self.tried.len() == at {
            self.tried.push(Vec::new());
        }
        self.tried[at].push(body.to_vec());
    }

    fn mix(&mut self, n: u64) {
        self.trace = (self.trace ^ n).wrapping_mul(0x100_0000_01b3).rotate_left(23);
    }

    fn state_at(&self, sequence: u64) -> State {
        let mut state = State::new();
        for bodies in &self.tried[..sequence as usize] {
            apply(&mut state, bodies.last().unwrap());
        }
        state
    }
}

fn apply(state: &mut State, body: &[u8]) {
    for record in Records::new(body) {
        let payload = record.unwrap().payload;
        put(state, payload);
    }
}

fn put(state: &mut State, row: &[u8]) {
    let n = |at: usize| u64::from_le_bytes(row[at..at + 8].try_into().unwrap());
    // Replay may apply older versions of rows in the snapshot. The last record is always the latest
    // version.
    state.insert(n(0), n(8));
}

fn row(key: u64, value: u64) -> Vec<u8> {
    let mut row = key.to_le_bytes().to_vec();
    row.extend_from_slice(&value.to_le_bytes());
    // Rows have different lengths, so that batches end anywhere in a sector.
    row.resize(16 + (value * 37 % 90) as usize, value as u8);
    row
}

struct Life {
    store: Store,
    log: Log,
    memory: State,
    dirty: Vec<u64>,
    versions: Vec<u64>,
}

/// Starts from the disk. Returns `None` if the machine crashed or the disk failed.
fn start(disk: &SimDisk, options: StoreOptions, model: &mut Model, seed: u64) -> Option<Life> {
    let store = match Store::open_with(Arc::new(disk.clone()), options, || Ok(Lineage([7; 16]))) {
        Ok(store) => store,
        Err(error) => return refused(error, model, seed),
    };
    let state = parking_lot::Mutex::new(State::new());
    let loaded = store.load(
        1,
        |file, chunk| {
            for row in chunk.chunks_exact(16) {
                let n = |at: usize| u64::from_le_bytes(row[at..at + 8].try_into().unwrap());
                assert!((file.tag.low..=file.tag.high).contains(&n(0)));
                state.lock().insert(n(0), n(8));
            }
            Ok(())
        },
        |_| (),
    );
    if let Err(error) = loaded {
        return refused(error, model, seed);
    }
    let mut state = state.into_inner();
    let mut found: Vec<(u64, Vec<u8>)> = Vec::new();
    let replayed = store.replay_batches(
        &mut |head, body| {
            apply(&mut state, body);
            found.push((head.sequence, body.to_vec()));
            Ok(())
        },
        |_| (),
    );
    let (log, end) = match replayed {
        Ok(it) => it,
        Err(error) => return refused(error, model, seed),
    };
    let reached = end.position.sequence;
    assert!(
        reached >= model.acknowledged,
        "seed {seed}: the log ends at batch {reached}, {} was acknowledged",
        model.acknowledged
    );
    assert!(reached <= model.tried.len() as u64, "seed {seed}: batch {reached} was never written");
    for (sequence, body) in &found {
        let tried = &mut model.tried[*sequence as usize - 1];
        if *sequence <= model.acknowledged {
            assert_eq!(
                tried.last(),
                Some(body),
                "seed {seed}: acknowledged batch {sequence} has changed"
            );
        }
        assert!(tried.contains(body), "seed {seed}: batch {sequence} was never written");
        *tried = vec![body.clone()];
    }
    model.losses += model.tried.len() as u64 - reached;
    model.tried.truncate(reached as usize);
    assert_eq!(state, model.state_at(reached), "seed {seed}: a wrong state after batch {reached}");
    // Clients can read recovered data, so it counts as acknowledged. Recovery has synced this data.
    model.acknowledged = reached;
    model.mix(reached);
    Some(Life {
        store,
        log,
        memory: state,
        dirty: Vec::new(),
        versions: vec![0; (KEYS / TABLE) as usize],
    })
}

fn refused<T>(error: Error, model: &mut Model, seed: u64) -> Option<T> {
    let kind = match &error {
        Error::Io { .. } => "io",
        Error::Full { .. } => "full",
        _ => panic!("seed {seed}: the start was refused: {error}"),
    };
    *model.refusals.entry(kind).or_default() += 1;
    None
}

impl Life {
    fn commit(&mut self, model: &mut Model, sync: bool) -> bool {
        if !self.dirty.is_empty() {
            self.dirty.sort_unstable();
            self.dirty.dedup();
            let mut batch = Batch::new();
            for key in &self.dirty {
                batch.push(1, 1, &row(*key, self.memory[key]));
            }
            model.attempt(self.log.written().sequence + 1, batch.body());
            if self.log.append(&batch, 1).is_err() {
                return false;
            }
            self.dirty.clear();
        }
        if sync {
            let end = self.log.written().sequence;
            if self.log.sync().is_err() {
                return false;
            }
            model.acknowledged = end;
        }
        // The log also syncs when it begins a segment or reaches `unsynced_bytes`.
        model.acknowledged = model.acknowledged.max(self.log.durable().sequence);
        true
    }

    fn change(&mut self, random: &mut fastrand::Rng, clock: &mut u64) {
        let key = random.u64(0..KEYS);
        *clock += 1;
        self.memory.insert(key, *clock);
        self.versions[(key / TABLE) as usize] = *clock;
        self.dirty.push(key);
    }

    /// Takes a snapshot, with changes and commits between its steps.
    fn snapshot(
        &mut self,
        random: &mut fastrand::Rng,
        clock: &mut u64,
        model: &mut Model,
    ) -> store::Result<()> {
        let replay = self.log.durable();
        let mut files = Vec::new();
        // The store borrows a part of `self`, so plan the walk first.
        let versions = self.versions.clone();
        let tags: Vec<Tag> = (0..KEYS / TABLE)
            .map(|t| Tag {
                space: 1,
                kind: 1,
                low: t * TABLE,
                high: t * TABLE + TABLE - 1,
                stamp: versions[t as usize],
            })
            .collect();
        let Life { store, log, memory, dirty, versions } = self;
        let mut snapshot = store.begin_snapshot(replay);
        for tag in tags {
            let current = versions[(tag.low / TABLE) as usize];
            if current == tag.stamp && tag.stamp > 0 && snapshot.carry_over(&tag) > 0 {
                continue;
            }
            let mut file = snapshot.file(Tag { stamp: current, ..tag })?;
            let mut chunk = Vec::new();
            for (key, value) in memory.range(tag.low..=tag.high) {
                chunk.extend_from_slice(&key.to_le_bytes());
                chunk.extend_from_slice(&value.to_le_bytes());
                if random.u32(0..3) == 0 {
                    file.write(&chunk, 1)?;
                    chunk.clear();
                }
            }
            if !chunk.is_empty() {
                file.write(&chunk, 1)?;
            }
            files.push(file.finish()?);
            for _ in 0..random.u32(0..3) {
                let key = random.u64(0..KEYS);
                *clock += 1;
                memory.insert(key, *clock);
                versions[(key / TABLE) as usize] = *clock;
                dirty.push(key);
            }
        }
        for file in files {
            snapshot.add(file);
        }
        // A flush, inlined because `self` is destructured.
        dirty.sort_unstable();
        dirty.dedup();
        if !dirty.is_empty() {
            let mut batch = Batch::new();
            for key in dirty.iter() {
                batch.push(1, 1, &row(*key, memory[key]));
            }
            model.attempt(log.written().sequence + 1, batch.body());
            log.append(&batch, 1)?;
            dirty.clear();
        }
        let durable: Position = log.sync()?;
        model.acknowledged = durable.sequence;
        snapshot.commit(durable)
    }
}

pub(crate) fn run(seed: u64) -> (u64, u64, u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut disk = SimDisk::new(seed);
    let options = StoreOptions {
        log: LogOptions {
            segment_bytes: random.u64(100..3000),
            unsynced_bytes: random.usize(100..4000),
        },
        keep_log_bytes: if random.bool() { 0 } else { random.u64(0..20_000) },
    };
    let faulty = random.u32(0..3);
    let rate = |random: &mut fastrand::Rng| {
        if faulty == 0 { 0 } else { random.u32(0..4) * random.u32(0..40) }
    };
    let mut model = Model::default();
    let mut clock = 0;
    for _ in 0..random.u32(2..8) {
        let faults = Faults {
            short_write: rate(&mut random),
            interrupted: rate(&mut random),
            write_error: rate(&mut random) / 4,
            no_space: rate(&mut random) / 4,
            sync_error: rate(&mut random) / 2,
            sync_dir_error: rate(&mut random) / 4,
            read_error: rate(&mut random) / 4,
        };
        // Half of the processes start with disk faults enabled. For the other processes, faults
        // begin after startup.
        disk.set_faults(if random.bool() { faults } else { Faults::default() });
        disk.crash_after((random.u32(0..4) > 0).then(|| random.u64(1..120)));
        if random.u32(0..6) == 0 {
            disk.set_capacity(Some(disk.used_bytes() + random.u64(0..200)));
        }
        if let Some(mut life) = start(&disk, options, &mut model, seed) {
            disk.set_faults(faults);
            let full_at = random.u32(0..4) == 0;
            if full_at {
                disk.set_capacity(Some(disk.used_bytes() + random.u64(0..3000)));
            }
            for _ in 0..random.u32(1..60) {
                if disk.crashed() {
                    break;
                }
                match random.u32(0..40) {
                    0..=19 => life.change(&mut random, &mut clock),
                    20..=30 => {
                        life.commit(&mut model, false);
                    }
                    31..=35 => {
                        life.commit(&mut model, true);
                    }
                    36 => {
                        let end = life.log.written().sequence;
                        model.attempt(end + 1, &[]);
                        let sealed = life.log.seal(1).is_ok();
                        // A redundant seal writes no batch, so its number was not attempted.
                        model.tried.truncate(model.tried.len().min(
                            life.log.written().sequence.max(end + u64::from(!sealed)) as usize,
                        ));
                        if sealed {
                            model.acknowledged = life.log.durable().sequence;
                        }
                    }
                    37 => {
                        let term = life.log.term() + u64::from(random.bool());
                        let _ = life.log.roll(term);
                    }
                    38 if random.u32(0..3) == 0 => disk.set_capacity(None),
                    _ => {
                        let _ = life.snapshot(&mut random, &mut clock, &mut model);
                    }
                }
                model.acknowledged = model.acknowledged.max(life.log.durable().sequence);
            }
        }
        disk.set_capacity(None);
        model.crashes += 1;
        disk.set_faults(Faults::default());
        disk = if random.u32(0..4) == 0 { disk.kill() } else { disk.power_cut() };
        model.mix(disk.steps());
    }
    // Without faults, all acknowledged changes must be recovered.
    disk.set_faults(Faults::default());
    disk.crash_after(None);
    assert!(
        start(&disk, options, &mut model, seed).is_some(),
        "seed {seed}: no start on a good disk: {:?}",
        model.refusals
    );
    (model.crashes, model.losses, model.trace)
}

#[test]
fn whatever_was_acknowledged_survives_every_crash() {
    let seeds = seeds::seeds(4000);
    if seeds.end - seeds.start == 1 {
        println!("seed {}: {:?}", seeds.start, run(seeds.start));
        return;
    }
    let total = seeds.end - seeds.start;
    let next = AtomicU64::new(seeds.start);
    let (crashes, losses) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let (c, l, _) = run(seed);
                    crashes.fetch_add(c, Ordering::Relaxed);
                    losses.fetch_add(l, Ordering::Relaxed);
                }
            });
        }
    });
    let (crashes, losses) = (crashes.into_inner(), losses.into_inner());
    println!("{total} runs, {crashes} crashes, {losses} unacknowledged batches lost");
    assert!(losses > total / 10, "the crashes lose too little to prove anything: {losses}");
}

#[test]
fn a_run_replays_exactly() {
    for seed in 0..100 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

/// Crashes at each step of a first startup, a commit and a snapshot, with several outcomes for
/// unsynced bytes.
#[test]
fn crash_at_each_step_of_start_commit_and_snapshot_recovers() {
    let options = StoreOptions {
        log: LogOptions { segment_bytes: 200, unsynced_bytes: 4000 },
        keep_log_bytes: 0,
    };
    let mut steps = 0;
    for step in 1.. {
        let mut finished = false;
        for seed in 0..40u64 {
            let disk = SimDisk::new(step * 1000 + seed);
            disk.crash_after(Some(step));
            let mut model = Model::default();
            let mut random = fastrand::Rng::with_seed(seed);
            let mut clock = 0;
            if let Some(mut life) = start(&disk, options, &mut model, seed) {
                for _ in 0..3 {
                    life.change(&mut random, &mut clock);
                    life.change(&mut random, &mut clock);
                    life.commit(&mut model, true);
                }
                let first = life.snapshot(&mut random, &mut clock, &mut model);
                life.change(&mut random, &mut clock);
                let second = life.commit(&mut model, true)
                    && life.snapshot(&mut random, &mut clock, &mut model).is_ok();
                finished |= first.is_ok() && second && !disk.crashed();
            }
            let disk = disk.power_cut();
            assert!(start(&disk, options, &mut model, seed).is_some(), "step {step} seed {seed}");
        }
        if finished {
            steps = step;
            break;
        }
    }
    assert!(steps > 60, "only {steps} steps");
}
