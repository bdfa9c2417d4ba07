//! Crash simulation: random changes on a simulated disk with faults, crashes and restarts.
//!
//! Only the disk is simulated. The engines, the log and the files are the server's own code.
//! `store/tests/it/clock.rs` and `crash.rs` test only the store.
//!
//! Each run has one seed. Clients randomly change two ranges of ids, even between the steps of log
//! batches, snapshots and spills. After each step the test copies the disk, simulates a killed
//! process or a power loss, and recovers from the copy. Recovery must find the state after the last
//! synced batch or after a later batch. No synced change may be lost, and no change may be applied
//! in part.
//!
//! `cargo xtask sim dataset --runs 5000` runs more seeds; `--seed 7` replays a single seed.
//!
//! Long: the models of a process and of its clients are in one file because they share private
//! types.

use super::*;
use crate::commit::encode::CommitSource;
use crate::cpu_throttle::CpuThrottle;
use crate::dirty_keys::Mark;
use crate::engines::ChangeError;
use crate::engines::events::{Event, EventEffect, Partition};
use crate::engines::{CounterSpace, ExistenceSpace};
use crate::offsets::Offset;
use crate::options::{Fsync, LedgerMode, Options};
use crate::recovery::recover_from;
use crate::snapshot::write::SnapshotWalk;
use crate::tiering::dropped::remove_dropped;
use crate::tiering::{SpillLog, filters};
use crate::tokens::TokenUse;
use counter::{Alteration, Bounds, Change};
use ledger::{Flush, OwnedMember};
use phantom::{Answer, Layout, Member};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Instant;
use store::{Faults, Rounds, SimDisk, Store};

/// Adjacent ids that fill several tables, a second group far above for which another range is
/// created, and two isolated ids.
const IDS: [u64; 202] = {
    let mut ids = [0; 202];
    let mut at = 0;
    while at < 200 {
        ids[at] = if at < UPPER { 1000 + at as u64 * 3 } else { (1 << 50) + at as u64 * 3 };
        at += 1;
    }
    (ids[200], ids[201]) = (1 << 56, u64::MAX);
    ids
};
/// Position in the id list at which the upper group begins.
const UPPER: usize = 120;
/// Upper bound of token times in seconds; greater than the lifetime of tokens.
const TIMES_S: u32 = 9000;
const MEMBERS: [Member<'static>; 5] = [
    Member::Number(0),
    Member::Number(7),
    Member::Number(u64::MAX),
    Member::Bytes(b"ann"),
    Member::Bytes(b""),
];

fn config() -> Options {
    let mut config = Options::default();
    for existence in &mut config.existence {
        // The order of changes affects which false positives occur. Use a rate so low that none
        // occurs.
        (existence.seed, existence.false_positive_rate) = (7, 1e-7);
        // Use small tables, so that a space has several, but too few for one to be recycled.
        existence.pairs_per_table = 200;
        // With 64 outlier pairs (pairs of ids far above all tables), a new range is created.
        (existence.max_outliers, existence.spill) = (1024, true);
    }
    config.existence[1].ledger = LedgerMode::Off;
    config.counter.iter_mut().for_each(|counter| counter.rows_per_table = 40);
    config
}

/// State that a client can observe.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    catalogue: Catalogue,
    rows: Vec<Option<Vec<i64>>>,
    /// Ordered by space, id and member.
    flags: Vec<Answer>,
    /// Pairs of all ledgers: space number, id and member.
    pairs: Vec<(u32, u64, OwnedMember)>,
    /// Tables of each space, each with the number of pairs at which it is closed.
    layouts: Vec<Vec<Layout>>,
    /// Records of unexpired tokens.
    tokens: BTreeSet<Vec<u8>>,
    offsets: Vec<(Box<str>, u32, Offset)>,
}

fn seen(engines: &Engines) -> Seen {
    let row = |space: &crate::engines::CounterSpace, id| {
        let mut row = vec![0; space.schema().width()];
        space.get(id, &mut row).unwrap().then_some(row)
    };
    let (counters, existences) = (engines.counters(), engines.existences());
    let of_ids = || existences.iter().flat_map(|space| IDS.map(|id| (space, id)));
    Seen {
        catalogue: engines.catalogue(),
        rows: counters.iter().flat_map(|space| IDS.map(|id| row(space, id))).collect(),
        flags: of_ids()
            .flat_map(|(space, id)| MEMBERS.map(|member| space.contains(id, &member).unwrap()))
            .collect(),
        pairs: existences.iter().flat_map(pairs).collect(),
        layouts: existences.iter().map(|space| space.layout()).collect(),
        // Ignore expired tokens, which may or may not have been dropped.
        tokens: engines.tokens.all(TIMES_S - 3600),
        offsets: engines.offsets.list(),
    }
}

fn pairs(space: &ExistenceSpace) -> Vec<(u32, u64, OwnedMember)> {
    let Some(ledger) = space.ledger() else { return Vec::new() };
    let pairs = ledger.ledger().list((0, u64::MAX), None, usize::MAX).unwrap();
    pairs.iter().map(|pair| (space.number(), pair.id, pair.member.to_owned())).collect()
}

/// Returns the pairs for which filters and ledger disagree. The test has no false positives.
fn differing(engines: &Engines) -> Vec<String> {
    let spaces = engines.existences().iter().filter(|space| space.ledger().is_some());
    let all = spaces.flat_map(|space| IDS.map(|id| (space, id)));
    all.flat_map(|(space, id)| MEMBERS.map(|member| (space, id, member)))
        .filter(|(space, id, member)| {
            let seems = space.contains(*id, member).unwrap() == Answer::Yes;
            seems != space.confirm_set(*id, member).unwrap()
        })
        .map(|(space, id, member)| format!("{} {id} {member:?}", space.name()))
        .collect()
}

fn start(disk: &SimDisk, durability: &Arc<Durability>) -> (Engines, Store, Log) {
    let recovered =
        recover_from(Arc::new(disk.clone()), &config(), durability, false, |_| ()).unwrap();
    let NodeLog::Own(log) = recovered.log else { panic!("a master's log") };
    durability.reach(log.written(), log.durable());
    recovered.engines.lead();
    assert_eq!(differing(&recovered.engines), [""; 0]);
    (recovered.engines, recovered.store, *log)
}

/// Applies one random change. Ignores refused changes.
fn change(current: &Current, ids: &[u64], random: &mut fastrand::Rng) {
    let engines = &*current.load();
    if random.u32(0..12) == 0
        || engines.actions().is_empty()
        || engines.existences().is_empty()
        || engines.counters().is_empty()
    {
        return change_scene(current, random);
    }
    let id = ids[random.usize(0..ids.len())];
    let member = &MEMBERS[random.usize(0..MEMBERS.len())];
    let action = &engines.actions()[random.usize(0..engines.actions().len())];
    let flags = &engines.existences()[random.usize(0..engines.existences().len())];
    let rows = &engines.counters()[random.usize(0..engines.counters().len())];
    let schema = rows.schema();
    let fields: Vec<usize> = schema.living().map(|(position, _)| position).collect();
    let field = fields[random.usize(0..fields.len())];
    let value = [0, 1, 5, -1, 1 << 40][random.usize(0..5)];
    let change = [Change { field, delta: value }];
    let name = format!("f{}", random.u32(0..3));
    match random.u32(0..100) {
        // Marks the posts of a page as read, or enough posts for a new range.
        0..=9 => {
            let (first, most) = (random.usize(0..ids.len()), [30, 100][random.usize(0..2)]);
            let page = ids.iter().skip(first).take(most);
            page.for_each(|&id| drop(engines.act(action, member, id, &mut vec![])));
        }
        10..=34 => drop(engines.act(action, member, id, &mut vec![])),
        35..=49 => drop(engines.undo(action, member, id, &mut vec![])),
        50..=59 => drop(engines.flag(flags, id, member)),
        60..=66 => drop(engines.unflag(flags, id, member)),
        67..=71 => drop(engines.add(rows, id, &change, &Bounds::default(), &mut vec![])),
        // In most cases the token has been used before, and it may have expired.
        72..=76 => {
            let token = [random.u8(0..3)];
            let once = TokenUse {
                token: &token,
                is_of_cell: random.bool(),
                now_s: random.u32(0..TIMES_S),
            };
            drop(engines.add_once(rows, id, &change, &Bounds::default(), once, &mut vec![]));
        }
        77..=82 => drop(engines.set(rows, id, &[(field, value)])),
        83..=85 => drop(engines.set_new(rows, id, &[(field, value)])),
        86..=88 => drop(engines.clear(rows, id, field)),
        89..=91 => drop(engines.delete(rows, id)),
        92 => drop(engines.forget(rows, id)),
        93 => drop(engines.forget_flags(flags, id)),
        94..=96 => _ = engines.roll_pairs(flags),
        97 => drop(current.alter(
            rows.number(),
            &Alteration::Add { name, width: random.u8(1..20), bounds: Default::default() },
        )),
        98 => drop(current.alter(rows.number(), &Alteration::Drop { name })),
        _ => while engines.maintain() {},
    }
}

/// Applies events of one of two partitions to several ids.
fn take_over(engines: &Engines, ids: &[u64], random: &mut fastrand::Rng) {
    let partition = Partition { source: "likes", number: random.u32(0..2) };
    let from = engines.offsets.get(partition.source, partition.number);
    let at = |events| Offset { events, ..from.unwrap_or_default() };
    let rows = &engines.counters()[random.usize(0..engines.counters().len())];
    let field = rows.schema().living().next().map_or(0, |(position, _)| position);
    let mut event = |number: u64| {
        let action = &engines.actions()[random.usize(0..engines.actions().len())];
        let member = MEMBERS[random.usize(0..MEMBERS.len())];
        let doing = match random.u32(0..4) {
            0 => EventEffect::Undo(action, member),
            1 => EventEffect::Add(rows, field, 1),
            2 => EventEffect::Set(rows, field, 3),
            _ => EventEffect::Act(action, member),
        };
        Event { id: ids[random.usize(0..ids.len())], doing, at: at(number) }
    };
    let events: Vec<Event<'_>> = (0..8).map(&mut event).collect();
    let bytes = engines.log_bytes_of_events(events.len());
    let Some(reserved) = engines.durability().committer().reserve(bytes) else { return };
    let end = Offset { message: at(0).message + 1, events: 0, hash: random.u64(..) };
    let ends = random.bool();
    let each = |_, _| if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    engines.take_over(partition, &events, (from, end), reserved, each).unwrap();
}

/// Creates, changes or drops a space, a view or an action, and sometimes frees replaced engines.
fn change_scene(current: &Current, random: &mut fastrand::Rng) {
    let known = current.catalogue();
    let mut some = |names: Vec<String>| random.choice(names).unwrap_or_default();
    let counter = some(known.counters().into_iter().map(|made| made.name).collect());
    let flag = some(known.existences().into_iter().map(|made| made.name).collect());
    let view = some(known.view.iter().map(|view| view.name.clone()).collect());
    let action = some(known.action.iter().map(|action| action.name.clone()).collect());
    let name = format!("n{}", random.u32(0..6));
    let space = if random.bool() { &counter } else { &flag };
    let pairs = |list: &[(&str, &str)]| -> Vec<(String, String)> {
        list.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    };
    let horizon = random.u64(900..1100);
    let changed: Result<(), ChangeError> = current.edit(
        || Ok(()),
        |now| match random.u32(0..15) {
            0 | 1 => now.create_counter(&name, &pairs(&[("fields", "a:4 b:8")])),
            2 | 3 => now.create_existence(
                &name,
                &pairs(&[
                    ("seed", "7"),
                    ("false_positive_rate", "1e-7"),
                    ("pairs_per_table", "200"),
                ]),
            ),
            4 => now.create_view(&name, &pairs(&[("counters", &counter), ("flags", &flag)]), false),
            5..=7 => {
                let fields = known.counter.iter().find(|known| known.made.name == counter);
                let fields =
                    fields.map(|known| counter::Schema::parse(&known.made.fields).unwrap());
                let field = fields.and_then(|schema| Some(schema.living().next()?.1.name.clone()));
                let moved = format!("{counter}.{}", field.unwrap_or_default());
                now.create_action(&name, &pairs(&[("flag", &flag), ("counter", &moved)]), true)
            }
            8 => now.drop_view(&view),
            9 => now.drop_action(&action),
            10 => now.drop_space(space),
            11 => now.rename(space, &name),
            12 => now.retire(&counter, horizon),
            _ => now.set(space, &pairs(&[("max_ahead", "9223372036854775807")])),
        },
    );
    drop(changed);
    if random.bool() {
        current.free_former_engines();
    }
}

#[derive(Default)]
struct Sums {
    rounds: u64,
    failed: u64,
    snapshots: u64,
    failed_snapshots: u64,
    flushes: u64,
    failed_flushes: u64,
    spills: u64,
    failed_spills: u64,
    starts: u64,
    /// Maximum number of id ranges in one existence space.
    ranges: usize,
    /// Maximum number of tables in one space.
    tables: usize,
}

/// One process from startup to its crash.
struct Life<'a> {
    seed: u64,
    /// Ids that this process changes. Each process uses higher ids than the previous process, so
    /// that new tables are created.
    ids: &'a [u64],
    current: &'a Current,
    store: &'a Store,
    durability: &'a Durability,
    disk: &'a SimDisk,
    log: Log,
    rounds: Rounds<'a, Mark>,
    state: CommitSource<'a>,
    /// States that recovery may find: after the last synced batch, and after each later batch.
    states: Vec<Seen>,
    faults: Faults,
    /// Whether a spill or a flush of a ledger is running.
    is_rewriting: bool,
    random: &'a mut fastrand::Rng,
    sums: &'a mut Sums,
}

impl Life<'_> {
    fn round(&mut self, must_sync: bool) -> store::Result<()> {
        if must_sync {
            self.durability.committer.sync_soon();
        }
        let turn = || self.rounds.turn(&mut self.log, &mut self.state, Instant::now(), false);
        let outcome = under(self.disk, self.faults, turn);
        self.sums.rounds += 1;
        self.sums.failed += u64::from(outcome.is_err());
        if outcome.is_ok() && self.log.durable().offset == self.log.written().offset {
            self.states.clear();
            // The log is synced, so files of dropped spaces may be removed, unless another task
            // writes files.
            if self.random.bool() && !self.is_rewriting {
                let engines = self.current.load();
                drop(remove_dropped(self.store, &engines, &self.durability.parts));
            }
        }
        let engines = self.current.load();
        assert_eq!(differing(&engines), [""; 0], "seed {}", self.seed);
        // A failed batch may still have reached the disk, so recovery may find its state.
        let seen = seen(&engines);
        self.sums.tables = seen.layouts.iter().map(Vec::len).fold(self.sums.tables, usize::max);
        let ranges = engines.existences().iter().map(|space| space.course(u64::MAX).ranges.len());
        self.sums.ranges = ranges.fold(self.sums.ranges, usize::max);
        self.states.push(seen);
        outcome
    }

    /// Applies some changes of other clients, and sometimes commits a batch.
    fn others_write(&mut self) {
        for _ in 0..self.random.u32(0..6) {
            // Event batches are committed separately from other changes, so recovery might find
            // only one of the two. Therefore a quarter of the seeds changes data only by events.
            match self.seed % 4 {
                3 => take_over(&self.current.load(), self.ids, self.random),
                _ => change(self.current, self.ids, self.random),
            }
        }
        if self.random.bool() {
            let must_sync = self.random.bool();
            let _ = self.round(must_sync);
            self.crash();
        }
    }

    /// Crashes a copy of the disk and checks the state after recovery.
    fn crash(&mut self) {
        let copy = self.disk.fork(self.random.u64(..));
        let left = if self.random.u32(0..4) == 0 { copy.kill() } else { copy.power_cut() };
        let (engines, ..) = start(&left, &Arc::new(Durability::new(Fsync::Always)));
        self.sums.starts += 1;
        let found = seen(&engines);
        let Some(last) = self.states.last() else { return };
        assert!(
            self.states.contains(&found),
            "seed {}: the state is none of {} valid ones; compared with the last one{}",
            self.seed,
            self.states.len(),
            difference(last, &found)
        );
    }
}

fn difference(held: &Seen, found: &Seen) -> String {
    let mut said = String::new();
    if (&held.catalogue, &held.layouts) != (&found.catalogue, &found.layouts) {
        said += &format!(
            "\n{:?} {:?}\n{:?} {:?}",
            held.catalogue, held.layouts, found.catalogue, found.layouts
        );
    }
    if held.pairs != found.pairs {
        let lost = held.pairs.iter().filter(|pair| !found.pairs.contains(pair));
        let come = found.pairs.iter().filter(|pair| !held.pairs.contains(pair));
        said += &format!(
            "\npairs lost {:?}, added {:?}",
            lost.collect::<Vec<_>>(),
            come.collect::<Vec<_>>()
        );
    }
    if held.offsets != found.offsets {
        said += &format!("\n{:?}\n{:?}", held.offsets, found.offsets);
    }
    if held.tokens != found.tokens {
        said += &format!("\n{:?}\n{:?}", held.tokens, found.tokens);
    }
    let other = |(at, (held, found)): (usize, (String, String))| {
        (held != found).then(|| format!("\n{at}: expected {held}, found {found}"))
    };
    let texts =
        |rows: &[Option<Vec<i64>>]| rows.iter().map(|row| format!("{row:?}")).collect::<Vec<_>>();
    let flags = |flags: &[Answer]| flags.iter().map(|flag| format!("{flag:?}")).collect::<Vec<_>>();
    for (held, found) in
        [(texts(&held.rows), texts(&found.rows)), (flags(&held.flags), flags(&found.flags))]
    {
        said.extend(held.into_iter().zip(found).enumerate().filter_map(other));
    }
    said
}

fn flush_ledgers(life: &RefCell<Life<'_>>) {
    let (current, store) = (life.borrow().current, life.borrow().store);
    let how = if life.borrow_mut().random.bool() { Flush::All } else { Flush::Most };
    let fails = life.borrow_mut().random.u32(0..3) == 0;
    let (disk, faults) = (life.borrow().disk, life.borrow().faults);
    let spoil = || disk.set_faults(if fails { faults } else { Faults::default() });
    for ledger in current.load().ledgers() {
        let synced = life.borrow_mut().round(true);
        let covered = synced.map_or(0, |()| life.borrow().durability.applied_and_synced().offset);
        life.borrow_mut().others_write();
        spoil();
        let log = || {
            disk.set_faults(Faults::default());
            life.borrow_mut().others_write();
            let synced = life.borrow_mut().round(true);
            spoil();
            synced.map(|()| life.borrow().durability.positions().1.offset)
        };
        let trims = life.borrow_mut().random.u32(0..5) == 0;
        life.borrow_mut().is_rewriting = true;
        let outcome = match trims {
            true => ledger.ledger().trim(store, (0, u64::MAX), |_| true, log).map(drop),
            false => ledger.flush(store, how, covered, log).map(|_| ()),
        };
        disk.set_faults(Faults::default());
        let life = &mut *life.borrow_mut();
        life.is_rewriting = false;
        life.sums.flushes += 1;
        life.sums.failed_flushes += u64::from(outcome.is_err());
        life.crash();
    }
}

/// Sets a flag of a space for all ids, range by range. Usually closes the newest table after each
/// range.
fn fill(life: &mut Life<'_>) {
    let engines = life.current.load();
    let Some(space) = life.random.choice(engines.existences()) else { return };
    let member = &MEMBERS[life.random.usize(0..MEMBERS.len())];
    let (lower, upper) = life.ids.split_at(life.ids.partition_point(|&id| id < IDS[UPPER]));
    for range in [lower, upper] {
        range.iter().for_each(|&id| drop(engines.flag(space, id, member)));
        while engines.maintain() {}
        if life.random.u32(0..4) > 0 {
            engines.roll_pairs(space);
        }
        let _ = life.round(true);
    }
    life.crash();
}

fn spill(life: &RefCell<Life<'_>>) {
    let (current, store, durability, disk, faults) = {
        let life = life.borrow();
        (life.current, life.store, life.durability, life.disk, life.faults)
    };
    let fails = life.borrow_mut().random.u32(0..3) == 0;
    let spoil = || disk.set_faults(if fails { faults } else { Faults::default() });
    let sync = || {
        disk.set_faults(Faults::default());
        life.borrow_mut().others_write();
        let synced = life.borrow_mut().round(true);
        let end = life.borrow().durability.positions().1.offset;
        life.borrow_mut().others_write();
        spoil();
        synced.map(|()| end)
    };
    let ground = SpillContext { store, durability, most_bytes: 0, log: SpillLog::Stepped(&sync) };
    let engines = current.load();
    while engines.maintain() {}
    for space in engines.existences() {
        if life.borrow_mut().random.bool() {
            engines.roll_pairs(space);
        }
    }
    let closed = |space: &CounterSpace| {
        space.ranges().into_iter().find(|range| !range.open && range.rows > 0)
    };
    let rows = engines.counters().iter().filter_map(|space| Some((space, closed(space)?)));
    type Spill<'a> = Box<dyn FnOnce() -> store::Result<bool> + 'a>;
    let rows = rows.map(|(space, range)| {
        let spill = move || ground.spill(space, range.low, range.last, 0).map(|_| true);
        Box::new(spill) as Spill<'_>
    });
    let pairs = engines.existences().iter().map(|space| {
        Box::new(move || Ok(filters::spill_oldest(&ground, space)?.is_some())) as Spill<'_>
    });
    for spill in rows.chain(pairs) {
        if life.borrow_mut().random.bool() {
            continue;
        }
        spoil();
        life.borrow_mut().is_rewriting = true;
        let outcome = spill();
        disk.set_faults(Faults::default());
        let life = &mut *life.borrow_mut();
        life.is_rewriting = false;
        life.sums.spills += u64::from(matches!(outcome, Ok(true)));
        life.sums.failed_spills += u64::from(outcome.is_err());
        life.crash();
    }
}

// Long: this function has a few lines for each kind of change, and all of them use the same `life`
// and `walk`.
fn live(
    seed: u64,
    ids: &[u64],
    disk: &SimDisk,
    before: Option<Vec<Seen>>,
    random: &mut fastrand::Rng,
    sums: &mut Sums,
) -> Vec<Seen> {
    let policy = if random.bool() { Fsync::Always } else { Fsync::Everysec };
    let durability = &Arc::new(Durability::new(policy));
    let (engines, store, log) = start(disk, durability);
    let current = Current::new(engines.clone());
    let found = seen(&engines);
    assert!(before.is_none_or(|states| states.contains(&found)), "seed {seed}: after a start");
    let rate = if random.bool() { random.u32(1..400) } else { 0 };
    let steps = random.u32(1..20);
    let life = RefCell::new(Life {
        seed,
        ids,
        current: &current,
        store: &store,
        durability,
        disk,
        log,
        rounds: Rounds::new(durability.committer()),
        state: CommitSource::new(durability, &current),
        states: vec![found],
        faults: Faults {
            sync_error: rate,
            write_error: rate / 2,
            no_space: rate / 2,
            ..Faults::default()
        },
        is_rewriting: false,
        random,
        sums,
    });
    let walk = SnapshotWalk {
        current: &current,
        store: &store,
        durability,
        pace: &CpuThrottle::new(&|| false),
        keep_free: 0,
    };
    for _ in 0..steps {
        // The first step may be a snapshot of the state that was read from the log.
        let (quiet, fills, flushes, spills, saves) = {
            let random = &mut life.borrow_mut().random;
            let mut is_one_of = |many| random.u32(0..many) == 0;
            (is_one_of(5), is_one_of(5), is_one_of(4), is_one_of(2), is_one_of(4))
        };
        if !quiet {
            life.borrow_mut().others_write();
        }
        if fills && seed % 4 != 3 {
            fill(&mut life.borrow_mut());
        }
        if flushes {
            flush_ledgers(&life);
        }
        if spills {
            spill(&life);
        }
        if !saves {
            continue;
        }
        let fails = life.borrow_mut().random.u32(0..3) == 0;
        let faults = life.borrow().faults;
        // Writes of the snapshot may also fail.
        let spoil = || disk.set_faults(if fails { faults } else { Faults::default() });
        spoil();
        let mut between = || {
            disk.set_faults(Faults::default());
            life.borrow_mut().others_write();
            spoil();
        };
        let flush = || {
            let flushed = life.borrow_mut().round(true);
            spoil();
            flushed
        };
        let outcome = walk.write(&mut between, flush);
        disk.set_faults(Faults::default());
        let life = &mut *life.borrow_mut();
        life.sums.snapshots += 1;
        life.sums.failed_snapshots += u64::from(outcome.is_err());
        life.crash();
    }
    life.into_inner().states
}

/// Runs up to three processes in sequence on one disk.
fn run(seed: u64, sums: &mut Sums) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut disk = SimDisk::new(seed);
    let mut states = None;
    for upper in [30, 70, 82].into_iter().take(random.usize(1..4)) {
        let ids = [&IDS[..UPPER * upper / 82], &IDS[UPPER..][..upper]].concat();
        states = Some(live(seed, &ids, &disk, states, &mut random, sums));
        disk = if random.u32(0..4) == 0 { disk.kill() } else { disk.power_cut() };
    }
}

#[test]
fn what_was_synced_is_what_a_start_finds() {
    let mut sums = Sums::default();
    let seeds = seeds::seeds_at_least(20, 40);
    let runs = seeds.end - seeds.start;
    seeds.for_each(|seed| run(seed, &mut sums));
    if seeds::is_replay() {
        return;
    }
    let Sums { rounds, failed, snapshots, failed_snapshots, starts, tables, .. } = sums;
    let Sums { flushes, failed_flushes, spills, failed_spills, ranges, .. } = sums;
    println!(
        "{runs} runs: {rounds} rounds, {failed} of them failed, {snapshots} snapshots, \
         {failed_snapshots} of them failed, {flushes} flushes of a ledger, {failed_flushes} of \
         them failed, {spills} spills, {failed_spills} of them failed, {starts} crashes; up to \
         {tables} tables, {ranges} ranges"
    );
    assert!(
        rounds > 5 * runs
            && failed > runs / 2
            && snapshots > runs
            && failed_snapshots > runs / 20
            && flushes > runs
            && failed_flushes > runs / 20
            && spills > runs
            && failed_spills > runs / 20
            && tables > 3
            && ranges > 1,
        "too few events to prove anything"
    );
}

fn under<R>(disk: &SimDisk, faults: Faults, does: impl FnOnce() -> R) -> R {
    disk.set_faults(faults);
    let done = does();
    disk.set_faults(Faults::default());
    done
}

/// After a failed sync the batch is in the page cache, and recovery finds it after a kill. The
/// recovered batch must not be reported as durable.
#[test]
fn written_but_unsynced_batches_are_not_durable() {
    let disk = SimDisk::new(1);
    let durability = &Arc::new(Durability::new(Fsync::Always));
    let (engines, _store, mut log) = start(&disk, durability);
    let current = Current::new(engines.clone());
    let (mut rounds, mut state) =
        (Rounds::new(durability.committer()), CommitSource::new(durability, &current));
    engines.set(&engines.counters()[0], 7, &[(0, 1)]).unwrap();
    let ticket = durability.committer().ticket();
    let mut round =
        |faults| under(&disk, faults, || rounds.turn(&mut log, &mut state, Instant::now(), false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let safe = || runtime.block_on(durability.safe(ticket));
    round(Faults { sync_error: 1024, ..Faults::default() }).unwrap_err();
    assert!(durability.positions().0.offset > durability.positions().1.offset, "not written");
    assert!(safe().unwrap_err().starts_with("MISCONF "));
    round(Faults::default()).unwrap();
    assert_eq!(safe(), Ok(()));
}

/// Records in the unsynced part of the log may be lost, and other records may then get the same
/// offsets. Recovery must replay these records, so the replay begins at the position that was
/// synced when the snapshot began.
#[test]
fn a_snapshot_replays_from_what_was_synced_when_it_began() {
    let disk = SimDisk::new(1);
    let durability = &Arc::new(Durability::new(Fsync::No));
    let (engines, store, log) = start(&disk, durability);
    let current = Current::new(engines.clone());
    let rows = &engines.counters()[0];
    let (log, state) = (RefCell::new(log), RefCell::new(CommitSource::new(durability, &current)));
    let rounds = RefCell::new(Rounds::new(durability.committer()));
    let round = |faults| {
        let turn = || {
            rounds.borrow_mut().turn(
                &mut log.borrow_mut(),
                &mut *state.borrow_mut(),
                Instant::now(),
                false,
            )
        };
        under(&disk, faults, turn)
    };
    IDS.iter().for_each(|&id| _ = engines.set(rows, id, &[(0, 1)]).unwrap());
    round(Faults::default()).unwrap();
    assert!(
        durability.positions().0.offset > durability.positions().1.offset + 1000,
        "most of the log is written but not synced"
    );
    let walk = SnapshotWalk {
        current: &current,
        store: &store,
        durability,
        pace: &CpuThrottle::new(&|| false),
        keep_free: 0,
    };
    // The closure runs after each file of the snapshot, so these writes are newer than the file of
    // rows.
    let written = std::cell::Cell::new(2);
    let mut between = || {
        engines.set(rows, IDS[0], &[(0, written.get())]).unwrap();
        durability.committer().sync_soon();
        round(Faults { sync_error: 1024, ..Faults::default() }).unwrap_err();
        written.set(written.get() + 1);
    };
    let flush = || {
        durability.committer().sync_soon();
        round(Faults::default())
    };
    walk.write(&mut between, flush).unwrap();
    assert!(written.get() > 2, "the writes ran between two files");
    let held = seen(&engines);
    let (found, ..) = start(&disk.power_cut(), &Arc::new(Durability::new(Fsync::No)));
    let found = seen(&found);
    assert!(found == held, "{}", difference(&held, &found));
}
