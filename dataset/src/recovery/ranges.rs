//! Tests recovery of spaces with two id ranges. Any table may be cold, and a snapshot may be older
//! or newer than the second range. Recovery must find all flags and rows.

use super::*;
use crate::cpu_throttle::CpuThrottle;
use crate::engines::ExistenceSpace;
use crate::options::{Existence, Fsync, LedgerMode, Options};
use crate::snapshot::write::SnapshotWalk;
use crate::tiering::{SpillLog, filters, ledgers};
use phantom::{Answer, Member};
use std::cell::RefCell;
use std::collections::BTreeSet;
use store::SimDisk;

type Flag = (u64, u64);

const MEMBER: u64 = 7;
const LOWER: u64 = 1000;
const UPPER: u64 = 1 << 50;

/// Returns options for a space with small tables, whose second range is created after a few ids.
fn options(ledger: LedgerMode) -> Options {
    let mut options = Options::default();
    let seen = Existence {
        pairs_per_table: 500,
        false_positive_rate: 1e-6,
        max_outliers: 1024,
        seed: 7,
        spill: true,
        ledger,
        ..options.existence[0].clone()
    };
    options.existence = vec![seen];
    options.counter.truncate(1);
    options.counter[0].rows_per_table = 500;
    (options.view, options.action) = (vec![], vec![]);
    options
}

/// A process without a commit thread; the test writes the log.
struct Process<'a> {
    current: &'a Current,
    store: &'a Store,
    durability: &'a Durability,
    /// Writes and syncs the log. Returns its end.
    sync: &'a dyn Fn() -> store::Result<u64>,
    /// Marks the log as durable, like a graceful shutdown.
    stop: &'a dyn Fn(),
    set: RefCell<BTreeSet<Flag>>,
    unset: RefCell<BTreeSet<Flag>>,
}

/// State at the end of a process: the flags that its clients set, and the counts in TM.SPACE LIST.
struct KnownRanges {
    set: BTreeSet<Flag>,
    unset: BTreeSet<Flag>,
    pairs: u64,
    tables: usize,
}

fn process(
    disk: &SimDisk,
    options: &Options,
    set: BTreeSet<Flag>,
    does: impl FnOnce(&Process<'_>),
) -> KnownRanges {
    let durability = Arc::new(Durability::new(Fsync::Always));
    let disk = Arc::new(disk.clone());
    let recovered = recover_from(disk, options, &durability, false, |_| ()).unwrap();
    let NodeLog::Own(log) = recovered.log else { panic!("a master's log") };
    durability.reach(log.written(), log.durable());
    recovered.engines.lead();
    let (current, store) = (Current::new(recovered.engines), recovered.store);
    let writer = RefCell::new((*log, Commits::new(&durability, &current)));
    let sync = || {
        let (log, commits) = &mut *writer.borrow_mut();
        durability.committer().sync_soon();
        commits.round(log)?;
        Ok(durability.positions().1.offset)
    };
    let stop = || store.record_durable(&writer.borrow().0).unwrap();
    let process = Process {
        current: &current,
        store: &store,
        durability: &durability,
        sync: &sync,
        stop: &stop,
        set: RefCell::new(set),
        unset: RefCell::default(),
    };
    does(&process);
    let (set, unset) = (process.set.into_inner(), process.unset.into_inner());
    let engines = current.load();
    let space = &engines.existences()[0];
    KnownRanges { set, unset, pairs: space.pairs(), tables: space.layout().len() }
}

impl Process<'_> {
    fn space(&self) -> ExistenceSpace {
        self.current.load().existences()[0].clone()
    }

    fn ground(&self) -> SpillContext<'_> {
        let log = SpillLog::Stepped(self.sync);
        SpillContext { store: self.store, durability: self.durability, most_bytes: 0, log }
    }

    fn set(&self, id: u64, member: u64) {
        let engines = self.current.load();
        engines.flag(&engines.existences()[0], id, &Member::Number(member)).unwrap();
        self.set.borrow_mut().insert((id, member));
    }

    /// Sets a flag for a range of ids. Calls `between` after every 100 ids.
    fn fill_with(&self, first: u64, ids: std::ops::Range<u64>, between: impl Fn()) {
        for at in ids {
            self.set(first + 16 * at, MEMBER);
            if at % 100 == 99 {
                while self.current.load().maintain() {}
                (self.sync)().unwrap();
                between();
            }
        }
    }

    fn fill(&self, first: u64, ids: std::ops::Range<u64>) {
        self.fill_with(first, ids, || ());
    }

    fn unset(&self, id: u64) {
        let engines = self.current.load();
        engines.unflag(&engines.existences()[0], id, &Member::Number(MEMBER)).unwrap();
        assert!(self.set.borrow_mut().remove(&(id, MEMBER)), "{id} was set");
        self.unset.borrow_mut().insert((id, MEMBER));
        (self.sync)().unwrap();
    }

    fn spill(&self, times: usize) {
        let space = self.space();
        for _ in 0..times {
            ledgers::flush_all(&self.ground(), &space).unwrap();
            filters::spill_oldest(&self.ground(), &space).unwrap();
        }
    }

    fn save(&self) {
        let walk = SnapshotWalk {
            current: self.current,
            store: self.store,
            durability: self.durability,
            pace: &CpuThrottle::new(&|| false),
            keep_free: 0,
        };
        walk.write(&mut || (), || (self.sync)().map(drop)).unwrap();
    }
}

/// Recovers this disk and compares the state. Returns the number of files that recovery wrote.
fn check(disk: &SimDisk, options: &Options, follows: bool, known: &KnownRanges) -> u64 {
    let durability = Arc::new(Durability::new(Fsync::Always));
    let recovered =
        recover_from(Arc::new(disk.clone()), options, &durability, follows, |_| ()).unwrap();
    let engines = recovered.engines;
    let space = &engines.existences()[0];
    let other = |flags: &BTreeSet<Flag>, answer| {
        let is_other =
            |&&(id, member): &&Flag| space.contains(id, &Member::Number(member)) != Ok(answer);
        flags.iter().filter(is_other).count()
    };
    assert_eq!(
        other(&known.set, Answer::Yes),
        0,
        "{} flags were set, some are lost",
        known.set.len()
    );
    assert_eq!(
        other(&known.unset, Answer::No),
        0,
        "{} flags were unset, some are set again",
        known.unset.len()
    );
    assert_eq!((space.pairs(), space.layout().len()), (known.pairs, known.tables));
    if let Some(ledger) = space.ledger() {
        let pairs = ledger.ledger().list((0, u64::MAX), None, usize::MAX).unwrap();
        let listed: Option<BTreeSet<Flag>> = pairs
            .iter()
            .map(|pair| match pair.member {
                ledger::Member::Number(member) => Some((pair.id, member)),
                ledger::Member::Bytes(_) => None,
            })
            .collect();
        assert!(listed.as_ref() == Some(&known.set), "the ledger has different pairs");
    }
    let figures = &engines.cold.figures;
    figures.merges.load(SeqCst) + figures.spilled_tables.load(SeqCst)
}

fn for_each_mode(test: impl Fn(&Options)) {
    [LedgerMode::Off, LedgerMode::Exact].into_iter().for_each(|ledger| test(&options(ledger)));
}

/// Fills two ranges, spills their older tables, and unsets flags before and after the spill.
fn two_ranges(process: &Process<'_>, from: u64) {
    process.fill(LOWER, from..4000);
    process.fill(UPPER, 0..6000);
    assert!(process.space().layout().iter().any(|at| at.low == UPPER), "a second range has opened");
    // Unset one flag before the spill, and two more flags after the spill.
    process.unset(UPPER);
    process.spill(6);
    process.unset(LOWER);
    process.unset(UPPER + 16 * 5999);
    assert!(process.space().is_cold(LOWER) && process.space().is_cold(UPPER));
}

#[test]
fn killed_process_keeps_both_ranges() {
    for_each_mode(|options| {
        let disk = SimDisk::new(1);
        let known = process(&disk, options, BTreeSet::new(), |process| two_ranges(process, 0));
        check(&disk.kill(), options, false, &known);
        check(&disk.power_cut(), options, false, &known);
    });
}

#[test]
fn stopped_process_keeps_both_ranges() {
    for_each_mode(|options| {
        let mut disk = SimDisk::new(2);
        let mut known = process(&disk, options, BTreeSet::new(), |process| {
            two_ranges(process, 0);
            (process.stop)();
        });
        for round in 0..2 {
            disk = disk.kill();
            check(&disk, options, false, &known);
            known = process(&disk, options, known.set, |process| {
                let next = 4000 + 1500 * round..5500 + 1500 * round;
                process.fill(LOWER, next.clone());
                process.fill(UPPER, next.start + 2000..next.end + 2000);
                process.spill(3);
                (process.stop)();
            });
        }
        check(&disk.kill(), options, false, &known);
    });
}

#[test]
fn snapshot_older_than_a_range_loses_no_table() {
    for_each_mode(|options| {
        let disk = SimDisk::new(3);
        let known = process(&disk, options, BTreeSet::new(), |process| {
            process.fill(LOWER, 0..2000);
            // The snapshot's head contains these pairs as outliers, because their ids are far above
            // all tables. Later they are in a spilled table.
            process.fill(UPPER, 0..50);
            process.save();
            two_ranges(process, 2000);
            process.spill(4);
            process.unset(UPPER + 16);
        });
        check(&disk.kill(), options, false, &known);
    });
}

#[test]
fn snapshot_between_two_spills_loses_no_table() {
    for_each_mode(|options| {
        let disk = SimDisk::new(4);
        let known = process(&disk, options, BTreeSet::new(), |process| {
            two_ranges(process, 0);
            process.save();
            process.fill(LOWER, 4000..7000);
            process.fill(UPPER, 6000..8000);
            process.spill(2);
        });
        check(&disk.kill(), options, false, &known);
    });
}

/// The first table of a new range is spilled before all outliers have moved to it.
#[test]
fn outliers_of_a_spilled_table_outlive_a_start() {
    for_each_mode(|options| {
        let disk = SimDisk::new(8);
        let known = process(&disk, options, BTreeSet::new(), |process| {
            process.fill(LOWER, 0..2000);
            let many = (0..50).flat_map(|at| (0..20).map(move |member| (at, member)));
            many.for_each(|(at, member)| process.set(UPPER + 16 * at, member));
            let has_opened = || process.space().layout().iter().any(|at| at.low == UPPER);
            let mut more = (50..).map(|at| process.set(UPPER + 16 * at, 0));
            while !has_opened() {
                more.next();
            }
            more.next();
            process.current.load().roll_pairs(&process.space());
            (process.sync)().unwrap();
            let outliers = process.space().outlier_pairs();
            assert!((1..1000).contains(&outliers), "{outliers} outliers have not moved yet");
            process.spill(4);
            assert!(process.space().is_cold(UPPER));
        });
        check(&disk.kill(), options, false, &known);
    });
}

#[test]
fn replica_has_both_ranges_after_a_full_sync() {
    for_each_mode(|options| {
        let disk = SimDisk::new(5);
        let known = process(&disk, options, BTreeSet::new(), |process| two_ranges(process, 0));
        // A replica starts with the master's files and follows the log.
        check(&disk.power_cut(), options, true, &known);
    });
}

#[test]
fn automatic_spills_lose_no_table() {
    for_each_mode(|options| {
        let mut options = options.clone();
        options.existence[0].max_tables = 3;
        let disk = SimDisk::new(6);
        let known = process(&disk, &options, BTreeSet::new(), |process| {
            let look = || {
                let space = process.space();
                while process.ground().do_urgent_pair_work(&space, 0).unwrap() == Some(true) {}
            };
            process.fill_with(LOWER, 0..4000, look);
            process.fill_with(UPPER, 0..8000, look);
            process.fill_with(LOWER, 4000..6000, look);
        });
        assert!(known.tables > 6);
        let written = check(&disk.kill(), &options, false, &known);
        assert_eq!(written, 0, "a start rewrites no complete file");
    });
}

#[test]
fn start_finds_rows_of_both_ranges() {
    let options = options(LedgerMode::Off);
    let disk = SimDisk::new(7);
    let ids = |first: u64| (0..3000).map(move |at| first + 16 * at);
    let kept = |id: &u64| !(id / 16).is_multiple_of(7);
    process(&disk, &options, BTreeSet::new(), |process| {
        let engines = process.current.load();
        let space = &engines.counters()[0];
        for (at, id) in ids(LOWER).chain(ids(UPPER)).enumerate() {
            engines.set(space, id, &[(0, id as i64 % 100)]).unwrap();
            if at % 100 == 99 {
                while engines.maintain() {}
                (process.sync)().unwrap();
            }
            if at == 2000 {
                process.save();
            }
        }
        for round in 0..2 {
            let ranges = space.ranges().into_iter();
            let closed: Vec<_> = ranges.filter(|range| !range.open && range.rows > 0).collect();
            assert!(round > 0 || closed.len() > 4, "both ranges have closed tables");
            for range in &closed {
                process.ground().spill(space, range.low, range.last, 0).unwrap();
            }
            // Delete half of the rows before the second spill, and half after it.
            let gone = ids(LOWER).chain(ids(UPPER)).filter(|id| !kept(id));
            for id in gone.filter(|id| (id / 16 % 2 == 0) == (round == 0)) {
                engines.delete(space, id).unwrap();
            }
            (process.sync)().unwrap();
        }
    });
    let durability = Arc::new(Durability::new(Fsync::Always));
    let start = recover_from(Arc::new(disk.kill()), &options, &durability, false, |_| ()).unwrap();
    let space = &start.engines.counters()[0];
    let mut row = vec![0; space.schema().width()];
    for id in ids(LOWER).chain(ids(UPPER)) {
        let found = space.get(id, &mut row).unwrap().then(|| row[0]);
        assert_eq!(found, kept(&id).then_some(id as i64 % 100), "{id}");
    }
}
