//! Tests of ring layouts in the log under concurrent writes. The tests run the steps of the commit
//! thread one by one and write between them.

use super::*;
use crate::catalogue::Catalogue;
use crate::commit::encode::CommitSource;
use crate::cpu_throttle::CpuThrottle;
use crate::dirty_keys::Mark;
use crate::engines::ExistenceSpace;
use crate::log_records::RecordKind;
use crate::options::{Existence, Fsync, LedgerMode, Options};
use crate::snapshot;
use crate::snapshot::write::write_pairs;
use phantom::{Answer, Member};
use std::collections::BTreeSet;
use std::time::Instant;
use store::{
    Batch, Committed, LoggedState, Record, Records, Rounds, SimDisk, SnapshotFileWriter,
    SnapshotWriter, Store, StoreOptions,
};

fn configured(change: &impl Fn(&mut Existence)) -> Options {
    let mut config = Options::default();
    for existence in &mut config.existence {
        // The first table has one block.
        (existence.seed, existence.pairs_per_table) = (7, 160_000);
        // Only tables in memory are recycled.
        (existence.spill, existence.ledger) = (false, LedgerMode::Off);
        change(existence);
    }
    config
}

struct Site {
    engines: Engines,
    durability: Arc<Durability>,
}

impl Site {
    fn new() -> Site {
        Site::with(|_| ())
    }

    fn with(change: impl Fn(&mut Existence)) -> Site {
        let config = configured(&change);
        let durability = Arc::new(Durability::new(Fsync::Always));
        let catalogue = Catalogue::default().completed(&config);
        Site { engines: Engines::new(&config, &catalogue, durability.clone()).unwrap(), durability }
    }

    fn like(&self, viewer: u64, id: u64) {
        let action = self.engines.action(b"like").unwrap();
        self.engines.act(action, &Member::Number(viewer), id, &mut vec![]).unwrap();
    }

    fn likes(&self, viewer: u64, id: u64) -> bool {
        self.liked().contains(id, &Member::Number(viewer)).unwrap() == Answer::Yes
    }

    fn liked_space(&self) -> &ExistenceSpace {
        self.engines.existence(b"liked").unwrap()
    }

    fn liked(&self) -> &phantom::Space {
        self.liked_space()
    }

    fn bits(&self, low: u64) -> Vec<u8> {
        let (mut bits, mut is_header) = (vec![], true);
        let sink = |piece: &[u8]| {
            if !std::mem::take(&mut is_header) {
                bits.extend_from_slice(piece);
            }
            Ok::<(), phantom::Unreadable>(())
        };
        assert_eq!(self.liked().encode_table(low, sink), Ok(true));
        bits
    }

    /// Writes one log batch. Calls `between` with the marks of each stripe after reading their
    /// state, and with no marks before encoding the batch.
    fn round(&self, log: &mut Log, between: &mut dyn FnMut(&[Mark])) {
        let current = Current::new(self.engines.clone());
        let mut source =
            Interrupted { state: CommitSource::new(&self.durability, &current), between };
        Rounds::new(&self.durability.committer)
            .turn(log, &mut source, Instant::now(), false)
            .unwrap();
    }
}

struct Interrupted<'a> {
    state: CommitSource<'a>,
    between: &'a mut dyn FnMut(&[Mark]),
}

impl LoggedState<Mark> for Interrupted<'_> {
    fn collect(&mut self, marks: &[Mark]) -> usize {
        let bytes = self.state.collect(marks);
        (self.between)(marks);
        bytes
    }

    fn encode(&mut self, batch: &mut Batch) -> store::Result<()> {
        (self.between)(&[]);
        self.state.encode(batch)
    }

    fn forget(&mut self) {
        self.state.forget();
    }

    fn published(&mut self, now: &Committed) {
        self.state.published(now);
    }
}

fn open(disk: &SimDisk) -> Store {
    Store::open(Arc::new(disk.clone()), StoreOptions::default()).unwrap()
}

fn new_log(disk: &SimDisk) -> Log {
    open(disk).replay(|_| Ok(()), |_| ()).unwrap().0
}

fn applied(site: &Site, record: &Record<'_>) -> Result<(), String> {
    if record.kind == RecordKind::Catalogue as u8 {
        return Ok(());
    }
    super::apply::apply_record(&site.engines, &site.durability.parts, record, u64::MAX)
}

/// Replays the log into an empty site. Calls `each` after every batch.
fn replayed(disk: &SimDisk, mut each: impl FnMut(&Site)) -> Site {
    let site = Site::new();
    let mut apply = |_: &store::BatchHead, body: &[u8]| {
        for record in Records::new(body) {
            applied(&site, &record?)?;
        }
        each(&site);
        Ok(())
    };
    open(disk).replay_batches(&mut apply, |_| ()).unwrap();
    site
}

/// Tests invariant L1 of `phantom/src/rollover.rs`: some ids are far above all tables and become
/// outliers, and tables are closed. After each batch the replayed tables must be a subset of the
/// original tables. At the end all bits must be equal.
#[test]
fn tables_begin_where_they_did_whichever_batch_is_the_last() {
    let here = Site::new();
    let disk = SimDisk::new(3);
    let mut log = new_log(&disk);
    let mut rng = fastrand::Rng::with_seed(3);
    let (mut now, mut lows, mut early) = (100, BTreeSet::new(), 0);
    for round in 0..60u64 {
        for _ in 0..60 {
            now += rng.u64(0..40);
            // Some ids are beyond the window until others fill the gap. The log may contain them
            // before they move to the tables.
            let id =
                if rng.u32(0..6) == 0 { now + rng.u64(900..3000) } else { now - rng.u64(0..100) };
            here.like(round, id);
            early = early.max(here.liked().outlier_pairs());
        }
        if round % 7 == 6 {
            here.engines.roll_pairs(here.liked_space());
        }
        if rng.bool() {
            here.engines.maintain();
        }
        here.round(&mut log, &mut |_| ());
        lows.extend(here.liked().layout().iter().map(|at| at.low));
    }
    while here.engines.maintain() {}
    here.like(1, now);
    here.round(&mut log, &mut |_| ());
    lows.extend(here.liked().layout().iter().map(|at| at.low));
    let replayed = replayed(&disk, |site| {
        // Run maintenance, as a replica does.
        while site.engines.maintain() {}
        let other = site.liked().layout().into_iter().find(|at| !lows.contains(&at.low));
        assert_eq!(other, None, "a table the master never had");
    });
    assert!(early > 10 && lows.len() > 5, "{early} outliers, {} tables", lows.len());
    assert_eq!(replayed.liked().layout(), here.liked().layout());
    for at in here.liked().layout() {
        assert!(replayed.bits(at.low) == here.bits(at.low), "{at:?}");
    }
}

/// Tests invariant L1 of `phantom/src/rollover.rs`: ids above 2^40 open a second range. Tables are
/// created in both ranges, and every prefix of the log must contain the layout that its pairs need.
#[test]
fn a_range_that_opens_is_in_the_log() {
    let here = Site::with(|existence| existence.max_outliers = 2000);
    let disk = SimDisk::new(4);
    let mut log = new_log(&disk);
    (0..100).for_each(|id| here.like(1, id));
    here.round(&mut log, &mut |_| ());
    let state = |site: &Site| {
        let liked = site.liked();
        (liked.course(0).ranges, liked.outlier_pairs(), liked.layout())
    };
    let mut seen = std::collections::BTreeMap::from([(1, 0)]);
    for round in 0..40u64 {
        for i in 0..50 {
            let n = round * 50 + i;
            here.like(2, 100 + n);
            here.like(3, (1 << 40) + n);
        }
        if round % 10 == 9 {
            here.engines.roll_pairs(here.liked_space());
        }
        here.round(&mut log, &mut |_| ());
        let (ranges, aside, layout) = state(&here);
        seen.insert(ranges.len(), aside);
        assert_eq!(ranges.len() > 1, layout.iter().any(|at| at.low == 1 << 40));
    }
    assert!(seen[&1] > 0 && seen[&2] == 0, "{seen:?}: outliers by number of ranges");
    let replayed = replayed(&disk, |site| {
        while site.engines.maintain() {}
        let lows = |site: &Site| site.liked().layout().into_iter().map(|at| at.low);
        assert!(lows(site).all(|low| lows(&here).any(|ours| ours == low)));
    });
    assert_eq!(state(&replayed), state(&here));
    for n in 0..2000 {
        assert!(replayed.likes(2, 100 + n) && replayed.likes(3, (1 << 40) + n), "{n}");
    }
    for at in here.liked().layout() {
        assert!(replayed.bits(at.low) == here.bits(at.low), "{at:?}");
    }
}

/// None, some or all tables are recycled during a snapshot. The log contains flags of each table,
/// set after the snapshot began.
#[test]
fn snapshot_during_recycling_has_all_tables_above_horizon() {
    let small = |existence: &mut Existence| {
        (existence.pairs_per_table, existence.max_tables) = (160_000, 4)
    };
    for recycled in [0, 1, 2, 3, 6] {
        let here = Site::with(small);
        let disk = SimDisk::new(recycled);
        let store = open(&disk);
        let mut log = store.replay(|_| Ok(()), |_| ()).unwrap().0;
        let mut id = 0;
        let roll = |id: &mut u64| {
            (0..100).for_each(|viewer| here.like(viewer, *id + viewer));
            *id += 100;
            assert!(here.engines.roll_pairs(here.liked_space()));
        };
        // Fill tables until the ring recycles the oldest table. The tables then have their final
        // size.
        while here.liked().horizon() == 0 {
            roll(&mut id);
        }
        (0..100).for_each(|viewer| here.like(viewer, id + viewer));
        here.round(&mut log, &mut |_| ());
        let tables = here.liked().layout();
        let from = log.durable();
        let mut snapshot = store.begin_snapshot(from);
        tables.iter().for_each(|at| here.like(1000, at.low));
        here.round(&mut log, &mut |_| ());
        let (pace, parts, stamp) =
            (CpuThrottle::new(&|| false), &here.durability.parts, from.offset.max(1));
        for space in here.engines.existences() {
            let mut files = 0;
            let mut add = |writer: &mut SnapshotWriter<'_>, file: SnapshotFileWriter| {
                writer.add(file.finish().unwrap());
                files += 1;
                if files == 1 && space.number() == here.liked_space().number() {
                    (0..recycled).for_each(|_| roll(&mut id));
                    here.round(&mut log, &mut |_| ());
                }
                Ok(())
            };
            write_pairs(space, parts, &mut snapshot, stamp, &pace, &mut add).unwrap();
        }
        snapshot.commit(log.durable()).unwrap();
        here.like(1001, id);
        here.round(&mut log, &mut |_| ());
        let is_left = |at: &&phantom::Layout| tables.iter().any(|old| old.low == at.low);
        assert_eq!(
            here.liked().layout().iter().filter(is_left).count() as u64,
            4_u64.saturating_sub(recycled)
        );
        drop((log, store));

        let mut again = Site::with(small);
        let store = open(&disk);

        snapshot::load(&store, &mut again.engines, &again.durability.parts, |_| ()).unwrap();
        let lows: Vec<u64> = again.liked().layout().iter().map(|at| at.low).collect();
        let all: BTreeSet<u64> =
            tables.iter().chain(&here.liked().layout()).map(|at| at.low).collect();
        let expected: Vec<u64> = all.range(lows[0]..=lows[lows.len() - 1]).copied().collect();
        assert_eq!(lows, expected, "the layout has no gap");
        assert!(lows[0] <= here.liked().horizon());
        store.replay(|record| applied(&again, record), |_| ()).unwrap();
        assert_eq!(again.liked().layout(), here.liked().layout());
        for at in here.liked().layout() {
            assert!(again.bits(at.low) == here.bits(at.low), "{at:?}");
        }
        let kept = tables.iter().filter(|at| at.low >= here.liked().horizon());
        kept.for_each(|at| assert!(again.likes(1000, at.low)));
        assert!(again.likes(1001, id));
    }
}
