//! Crash tests on the simulated disk: log, snapshots, flushes and trims. In each iteration, the
//! simulated process runs a workload until a power loss or a kill at a random step. After the
//! restart all synced changes must be present, changes never written must be absent, and the ledger
//! must equal the state of the log.
//!
//! The test uses the log of the crate `store`. A batch contains changes (pairs set or unset, ids
//! dropped), and snapshots contain the ledger's memory. As in the crate `dataset`, a log record
//! contains the current state of a changed pair, read from memory. A pair that has left memory gets
//! no record. Writes continue during a flush. Set `TIDEMARK_RUNS=100000` for more iterations.

use crate::model::{KIND, SPACE};
use ledger::{Flush, Ledger, Member, Options, OwnedMember};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::{
    Batch, BatchHead, Error, Faults, Lineage, Log, Records, SimDisk, Store, StoreOptions, Tag,
};

type State = BTreeSet<(u64, OwnedMember)>;

#[derive(Clone, Debug)]
enum Change {
    Pair(u64, OwnedMember, bool),
    Drop(u64, u64),
}

impl Change {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let (id, kind, word, rest): (u64, u8, u64, &[u8]) = match self {
            Change::Pair(id, OwnedMember::Number(n), set) => (*id, u8::from(*set), *n, &[]),
            Change::Pair(id, OwnedMember::Bytes(bytes), set) => (*id, 2 + u8::from(*set), 0, bytes),
            Change::Drop(id, up_to) => (*id, 4, *up_to, &[]),
        };
        out.extend_from_slice(&(17 + rest.len() as u16).to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
        out.push(kind);
        out.extend_from_slice(&word.to_le_bytes());
        out.extend_from_slice(rest);
        out
    }

    fn take(bytes: &mut &[u8]) -> Change {
        let (length, rest) = bytes.split_at(2);
        let (body, rest) = rest.split_at(u16::from_le_bytes(length.try_into().unwrap()).into());
        *bytes = rest;
        let number = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().unwrap());
        match body[8] {
            kind @ 0..2 => Change::Pair(number(0), OwnedMember::Number(number(9)), kind == 1),
            kind @ 2..4 => {
                Change::Pair(number(0), OwnedMember::Bytes(body[17..].into()), kind == 3)
            }
            _ => Change::Drop(number(0), number(9)),
        }
    }

    fn apply(&self, state: &mut State) {
        match self {
            Change::Pair(id, member, true) => drop(state.insert((*id, member.clone()))),
            Change::Pair(id, member, false) => drop(state.remove(&(*id, member.clone()))),
            Change::Drop(id, _) => state.retain(|pair| pair.0 != *id),
        }
    }
}

#[derive(Default)]
struct Model {
    /// Last changes written under each sequence number.
    batches: BTreeMap<u64, Vec<Change>>,
    synced: u64,
}

struct Life {
    disk: SimDisk,
    store: Store,
    log: Mutex<Log>,
    ledger: Ledger,
    pending: Mutex<Vec<Change>>,
}

fn quiet<T>(result: store::Result<T>, disk: &SimDisk, seed: u64) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error @ (Error::Corrupt { .. } | Error::Version { .. })) if !disk.crashed() => {
            panic!("seed {seed}: {error}")
        }
        Err(_) => None,
    }
}

impl Life {
    fn start(disk: &SimDisk, options: Options, model: &mut Model, seed: u64) -> Option<Life> {
        let store = Store::open_with(Arc::new(disk.clone()), StoreOptions::default(), || {
            Ok(Lineage([7; 16]))
        });
        let store = quiet(store, disk, seed)?;
        let ledger = quiet(Ledger::open(&store, SPACE, KIND, options), disk, seed)?;
        // `end` is the log offset after the batch, or the offset at which the snapshot began.
        let apply = |mut bytes: &[u8], end: u64, is_log: bool| {
            while !bytes.is_empty() {
                match Change::take(&mut bytes) {
                    Change::Pair(id, ..) | Change::Drop(id, _) if end <= ledger.covered(id) => {}
                    Change::Pair(id, member, set) => ledger.set(id, member.as_member(), set),
                    Change::Drop(id, _) if is_log => ledger.drop_id(id),
                    Change::Drop(id, up_to) => ledger.restore_drop(id, up_to),
                }
            }
            Ok(())
        };
        let mut at = store.manifest().replay.offset;
        quiet(store.load(1, |_, chunk| apply(chunk, at, false), |_| ()), disk, seed)?;
        let replayed = store.replay_batches(
            &mut |head: &BatchHead, body: &[u8]| {
                at += head.bytes();
                for record in Records::new(body) {
                    apply(record?.payload, at, true)?;
                }
                // Limits memory during replay; a failed flush is harmless.
                if ledger.is_due() {
                    let _ = ledger.flush(&store, Flush::Most, at, || Ok(0));
                }
                Ok(())
            },
            |_| (),
        );
        let (log, end) = quiet(replayed, disk, seed)?;
        let sequence = end.position.sequence;
        assert!(sequence >= model.synced, "seed {seed}: {sequence} of {}", model.synced);
        model.synced = sequence;
        model.batches.retain(|&number, _| number <= sequence);
        let mut state = State::new();
        model.batches.values().flatten().for_each(|change| change.apply(&mut state));
        let list = quiet(ledger.list((0, u64::MAX), None, usize::MAX), disk, seed)?;
        let read: State = list.iter().map(|pair| (pair.id, pair.member.to_owned())).collect();
        assert!(read == state, "seed {seed}: {} pairs, not {}", read.len(), state.len());
        Some(Life {
            disk: disk.clone(),
            store,
            log: Mutex::new(log),
            ledger,
            pending: Mutex::default(),
        })
    }

    fn write(&self, random: &mut fastrand::Rng) {
        // In one call of four, change only a few pairs, and most of these repeatedly.
        let (ids, members) = if random.u8(..4) == 0 { (2, 3) } else { (9, 60) };
        for _ in 0..random.usize(1..12) {
            let id = random.u64(0..ids) * 11;
            let member = match random.u8(..8) {
                0 => {
                    let name = format!("m{}", random.u64(..members.min(30)));
                    OwnedMember::Bytes(name.into_bytes().into())
                }
                _ => OwnedMember::Number(random.u64(..members)),
            };
            let change = match random.u8(..40) {
                0 => {
                    self.ledger.drop_id(id);
                    Change::Drop(id, 0)
                }
                _ => {
                    let set = random.u8(..) < 180;
                    self.ledger.set(id, member.as_member(), set);
                    Change::Pair(id, member, set)
                }
            };
            self.pending.lock().push(change);
        }
    }

    /// Returns the log record of a change.
    fn logged(&self, change: &Change) -> Option<Change> {
        let Change::Pair(id, member, _) = change else { return Some(change.clone()) };
        let set = self.ledger.in_memory(*id, member.as_member())?;
        Some(Change::Pair(*id, member.clone(), set))
    }

    /// Appends pending changes to the log. After an error they stay pending.
    fn append(&self, model: &mut Model) -> store::Result<()> {
        let mut pending = self.pending.lock();
        if pending.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        let logged = pending.iter().filter_map(|change| self.logged(change));
        batch.push(SPACE, 3, &logged.flat_map(|change| change.encode()).collect::<Vec<_>>());
        let mut log = self.log.lock();
        model.batches.insert(log.written().sequence + 1, pending.clone());
        log.append(&batch, 0)?;
        pending.clear();
        Ok(())
    }

    fn sync(&self, model: &mut Model) -> store::Result<u64> {
        self.append(model)?;
        let durable = self.log.lock().sync()?;
        model.synced = durable.sequence;
        Ok(durable.offset)
    }

    fn snapshot(&self, model: &mut Model, random: &mut fastrand::Rng) -> store::Result<()> {
        let replay = self.log.lock().durable();
        let mut snapshot = self.store.begin_snapshot(replay);
        let tag = Tag { space: SPACE, kind: 6, low: 0, high: u64::MAX, stamp: 0 };
        let mut file = snapshot.file(tag)?;
        let mut changes = Vec::new();
        for (id, up_to) in self.ledger.drops() {
            changes.extend(Change::Drop(id, up_to).encode());
        }
        self.ledger.walk_memory(|pairs| {
            let pairs = pairs.iter();
            let pairs = pairs.map(|pair| Change::Pair(pair.id, pair.member.to_owned(), pair.set));
            changes.extend(pairs.flat_map(|pair| pair.encode()));
        });
        if !changes.is_empty() {
            file.write(&changes, 1)?;
        }
        // Files may change between the walk and the commit.
        if random.bool() {
            let how = if random.bool() { Flush::All } else { Flush::Most };
            self.flush(how, model, random)?;
        }
        snapshot.add(file.finish()?);
        self.sync(model)?;
        let durable = self.log.lock().durable();
        snapshot.commit(durable)
    }

    fn flush(
        &self,
        how: Flush,
        model: &mut Model,
        random: &mut fastrand::Rng,
    ) -> store::Result<()> {
        // An older offset of the log is also valid.
        let covered = if random.u8(..4) > 0 { self.sync(model)? } else { 0 };
        (0..random.u8(..3)).for_each(|_| self.write(random));
        let log = || {
            // Write before and after the log sync, like concurrent clients.
            (0..random.u8(..3)).for_each(|_| self.write(random));
            let durable = self.sync(model)?;
            (0..random.u8(..3)).for_each(|_| self.write(random));
            Ok(durable)
        };
        self.ledger.flush(&self.store, how, covered, log).map(drop)
    }

    fn step(&self, model: &mut Model, random: &mut fastrand::Rng) -> store::Result<()> {
        match random.u8(..40) {
            0 => self.flush(Flush::All, model, random),
            1 | 2 => self.flush(Flush::Most, model, random),
            3 => self.snapshot(model, random),
            4 if random.bool() => self
                .ledger
                .trim(&self.store, (0, u64::MAX), |_| true, || self.sync(model))
                .map(drop),
            5..12 => self.append(model),
            12..16 => self.sync(model).map(drop),
            _ => {
                self.write(random);
                Ok(())
            }
        }
    }
}

fn run(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let options = Options {
        memory_pairs: random.usize(10..200),
        runs: random.usize(1..5),
        range_pairs: random.u64(20..400),
        upper_part: random.u64(1..13),
        upper_pairs: random.u64(..800),
    };
    let rate = |random: &mut fastrand::Rng| if random.u8(..4) == 0 { 20 } else { 0 };
    let faults = Faults {
        short_write: rate(&mut random),
        interrupted: rate(&mut random),
        write_error: rate(&mut random),
        no_space: rate(&mut random),
        sync_error: rate(&mut random),
        sync_dir_error: rate(&mut random),
        read_error: 0,
    };
    let (mut disk, mut model) = (SimDisk::new(seed), Model::default());
    for life in 0..4 {
        let is_last = life == 3;
        disk.set_faults(if is_last { Faults::default() } else { faults });
        disk.crash_after((!is_last).then(|| random.u64(1..400)));
        if let Some(life) = Life::start(&disk, options, &mut model, seed) {
            for _ in 0..random.u32(20..200) {
                let outcome = life.step(&mut model, &mut random);
                if life.disk.crashed() || (outcome.is_err() && life.log.lock().has_failed()) {
                    break;
                }
            }
        } else {
            assert!(!is_last, "seed {seed}: the last start fails");
        }
        disk = if random.bool() { disk.power_cut() } else { disk.kill() };
    }
    disk.set_faults(Faults::default());
    assert!(Life::start(&disk, options, &mut model, seed).is_some(), "seed {seed}");
}

#[test]
fn crashes_keep_synced_pairs_and_add_no_unsent_ones() {
    seeds::seeds(400).for_each(run);
}

#[test]
fn a_pair_dropped_and_set_again_survives_a_flush_and_a_crash() {
    let disk = SimDisk::new(1);
    let mut model = Model::default();
    let life = Life::start(&disk, Options::default(), &mut model, 1).unwrap();
    let member = Member::Number(5);
    life.ledger.set(1, member, true);
    life.ledger.flush(&life.store, Flush::All, 0, || life.sync(&mut Model::default())).unwrap();
    life.ledger.drop_id(1);
    life.ledger.set(1, member, true);
    life.ledger.set(1, Member::Number(6), true);
    life.ledger.flush(&life.store, Flush::All, 0, || life.sync(&mut Model::default())).unwrap();
    life.ledger.set(1, Member::Number(6), false);
    let there = life.ledger.list((1, 1), None, 10).unwrap();
    assert_eq!(there.iter().map(|pair| pair.member).collect::<Vec<_>>(), [member]);
}
