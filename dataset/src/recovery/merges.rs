//! What the log has of where tables begin, and of a merge, while others write: the log thread's
//! steps are made one by one, and others write in between.

use super::commit_source::CommitSource;
use super::*;
use crate::catalogue::Catalogue;
use crate::cpu_throttle::CpuThrottle;
use crate::dirty_keys::Mark;
use crate::engines::ExistenceSpace;
use crate::log_records::RecordKind;
use crate::options::{Existence, Fsync, Options};
use crate::snapshot;
use crate::snapshot::write::write_pairs;
use phantom::{Answer, Layout, Member};
use std::collections::BTreeSet;
use std::sync::mpsc;
use std::time::Duration;
use std::time::Instant;
use store::{
    Batch, Committed, FileWriter, Record, Records, Rounds, SimDisk, SnapshotWriter, Source, Store,
    StoreOptions,
};

const IDS: u64 = 3000;
const STEPS: u64 = 60;

fn configured(change: &impl Fn(&mut Existence)) -> Options {
    let mut config = Options::default();
    for existence in &mut config.existence {
        // A first table of one block.
        (existence.seed, existence.pairs_per_table) = (7, 160_000);
        // Only tables in memory are recycled.
        existence.spill = false;
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

    fn unlike(&self, viewer: u64, id: u64) {
        let action = self.engines.action(b"like").unwrap();
        self.engines.undo(action, &Member::Number(viewer), id, &mut vec![]).unwrap();
    }

    fn likes(&self, viewer: u64, id: u64) -> bool {
        self.liked().contains(id, &Member::Number(viewer)).unwrap() == Answer::Yes
    }

    fn counted(&self, id: u64) -> i64 {
        let posts = self.engines.counter(b"post").unwrap();
        let mut row = vec![0; posts.schema().width()];
        posts.get(id, &mut row).unwrap();
        row[posts.schema().index_of(b"like").unwrap()]
    }

    fn liked_space(&self) -> &ExistenceSpace {
        self.engines.existence(b"liked").unwrap()
    }

    fn liked(&self) -> &phantom::Space {
        self.liked_space()
    }

    /// Merges the first block of `there`.
    fn merge(&self, there: &Site) {
        self.merge_blocks(there, 0, &[0]);
    }

    /// Merges these blocks of the table at `low`, of those that there are.
    fn merge_blocks(&self, there: &Site, low: u64, numbers: &[usize]) {
        let mut blocks = vec![];
        let sink = |bytes: &[u8]| {
            blocks.extend_from_slice(bytes);
            Ok::<(), phantom::Unreadable>(())
        };
        assert_eq!(there.liked().export_blocks(low, numbers, sink), Ok(true));
        let liked = self.liked_space();
        let mut rest = &blocks[..];
        while !rest.is_empty() {
            self.engines.merge(liked, &liked.read_block(&mut rest).unwrap()).unwrap();
        }
    }

    /// Another one with the same flags, as by a snapshot.
    fn copied(&self) -> Site {
        let (mut site, liked) = (Site::new(), self.liked());
        let head = liked.encode_head();
        let table = |at: &Layout| {
            let mut decoder = phantom::TableDecoder::new(liked.options(), 1 << 30);
            assert_eq!(liked.encode_table(at.low, |piece| decoder.feed(piece)), Ok(true));
            decoder.finish().unwrap()
        };
        let tables = liked.layout().iter().map(table).collect();
        let number = self.liked_space().number();
        site.engines.restore(
            number,
            phantom::Space::restore(liked.options().clone(), &head, &liked.layout(), tables)
                .unwrap(),
            vec![],
        );
        site.liked().lead();
        site
    }

    /// One round of the log thread; `between` runs after the state of each stripe has been read,
    /// with its marks, and before a batch is made of all, with none.
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

impl Source<Mark> for Interrupted<'_> {
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
    apply_record(&site.engines, &site.durability.parts, record, u64::MAX)
}

/// What the log makes of a site that has nothing; `each` sees it after every batch.
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

/// Has another thread do something, and waits for it, unless it waits for what is held here.
fn beside<'s>(
    scope: &'s std::thread::Scope<'s, '_>,
    what: impl FnOnce() + Send + 's,
) -> mpsc::Receiver<()> {
    let (done, ended) = mpsc::channel();
    scope.spawn(move || {
        what();
        drop(done);
    });
    let _ = ended.recv_timeout(Duration::from_millis(20));
    ended
}

/// An unlike is read for the log; then a merge sets the pair again, before the round has come to
/// what the merge marks.
#[test]
fn what_a_merge_sets_is_not_unset_by_what_was_read_before() {
    let (here, there) = (Site::new(), Site::new());
    let disk = SimDisk::new(1);
    let mut log = new_log(&disk);
    // All stripes have something for this round.
    (0..IDS).for_each(|id| here.like(1, id));
    here.round(&mut log, &mut |_| ());
    (0..IDS).for_each(|id| here.like(2, id));
    (0..100).for_each(|id| {
        there.like(1, id);
        here.unlike(1, id);
    });
    std::thread::scope(|scope| {
        let mut seen = 0;
        let (here, there) = (&here, &there);
        here.round(&mut log, &mut |marks| {
            let unlikes = marks.iter().filter(|mark| mark.place().1 < 100).count();
            seen += unlikes;
            if unlikes > 0 && (50..50 + unlikes).contains(&seen) {
                beside(scope, || here.merge(there));
            }
        });
    });
    here.round(&mut log, &mut |_| ());
    let replayed = replayed(&disk, |_| ());
    for id in 0..IDS {
        assert!(here.likes(1, id) && here.likes(2, id), "set on either side is set: {id}");
        assert!(replayed.likes(1, id) && replayed.likes(2, id), "promise 6: {id}");
        assert_eq!(replayed.counted(id), here.counted(id));
    }
}

/// A client likes what is revoked at the other site, or has its bits among those of the block, at
/// every step of the round that logs the merge: after each batch of the log, whichever is the last
/// one, flags and counters agree.
#[test]
fn no_flag_of_a_merged_block_comes_without_its_counter() {
    let (here, there) = (Site::new(), Site::new());
    let disk = SimDisk::new(2);
    let mut log = new_log(&disk);
    (0..IDS).for_each(|id| here.like(1, id));
    let mut ids = 0..IDS;
    std::thread::scope(|scope| {
        let (here, there) = (&here, &there);
        let mut last: Option<mpsc::Receiver<()>> = None;
        for step in 0..STEPS {
            if step % 3 == 0 {
                let revoked = IDS / 2 / STEPS * step..IDS / 2 / STEPS * (step + 3);
                revoked.clone().for_each(|id| there.like(2, id));
                revoked.for_each(|id| there.unlike(2, id));
                here.merge(there);
            }
            // So that the round has some stripes to visit.
            (IDS / STEPS * step..IDS / STEPS * (step + 1)).for_each(|id| here.like(3, id));
            here.round(&mut log, &mut |marks| {
                // One after the other: a thread that is still there waits for a stripe. Before a
                // batch is made none is held.
                let nothing_is_held = marks.is_empty();
                if let Some(last) = last.take_if(|_| nothing_is_held) {
                    let _ = last.recv();
                }
                let is_free = last
                    .as_ref()
                    .is_none_or(|last| last.try_recv() == Err(mpsc::TryRecvError::Disconnected));
                if is_free && let Some(id) = ids.next() {
                    // What is revoked at the other site by now, and what is not.
                    let id = if id % 2 == 0 { id / 2 } else { IDS - 1 - id / 2 };
                    let like = last.insert(beside(scope, move || here.like(2, id)));
                    if nothing_is_held {
                        let _ = like.recv();
                    }
                }
            });
        }
    });
    here.round(&mut log, &mut |_| ());
    let mut batches = 0;
    let replayed = replayed(&disk, |site| {
        batches += 1;
        for id in 0..IDS {
            let flags = (1..=3).filter(|&viewer| site.likes(viewer, id)).count() as i64;
            assert_eq!(flags, site.counted(id), "post {id} after batch {batches}");
        }
    });
    assert!(batches > 1);
    let liked = (0..IDS).filter(|&id| here.likes(2, id)).count();
    assert!(liked >= STEPS as usize, "{liked} likes came in between");
    assert!((0..IDS).all(|id| replayed.likes(2, id) == here.likes(2, id) && replayed.likes(3, id)));
}

/// L1: ids leap ahead and wait aside, tables are closed, and another site's blocks come to all of
/// them; after each batch, whichever is the last one, the tables that the log makes are ours, and
/// in the end they have the same bits.
#[test]
fn tables_begin_where_they_did_whichever_batch_is_the_last() {
    let here = Site::new();
    let disk = SimDisk::new(3);
    let mut log = new_log(&disk);
    let mut rng = fastrand::Rng::with_seed(3);
    let (mut now, mut lows, mut early, mut theirs) = (100, BTreeSet::new(), 0, vec![]);
    for round in 0..60u64 {
        for _ in 0..60 {
            now += rng.u64(0..40);
            // Some of them lie beyond the window, until others have come between: then the log has
            // them first, or by id among those.
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
        if round % 10 == 9 {
            // A copy goes its own way.
            let there = here.copied();
            let reach = there.liked().highest_id().unwrap();
            for at in there.liked().layout() {
                for _ in 0..20 {
                    let id = rng.u64(at.low..=reach);
                    there.like(1000 + round, id);
                    theirs.push((1000 + round, id));
                }
            }
            now += 50;
            here.like(round, now);
            for at in there.liked().layout() {
                here.merge_blocks(&there, at.low, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
            }
            here.round(&mut log, &mut |_| ());
        }
    }
    while here.engines.maintain() {}
    here.like(1, now);
    here.round(&mut log, &mut |_| ());
    lows.extend(here.liked().layout().iter().map(|at| at.low));
    let replayed = replayed(&disk, |site| {
        // As a replica is maintained.
        while site.engines.maintain() {}
        let other = site.liked().layout().into_iter().find(|at| !lows.contains(&at.low));
        assert_eq!(other, None, "a table that was never ours");
    });
    assert!(
        early > 10 && lows.len() > 5 && theirs.len() > 300,
        "{early} aside, {} tables",
        lows.len()
    );
    assert_eq!(replayed.liked().layout(), here.liked().layout());
    for site in [&here, &replayed] {
        theirs
            .iter()
            .for_each(|&(viewer, id)| assert!(site.likes(viewer, id), "{viewer} likes {id}"));
    }
    for at in here.liked().layout() {
        assert_eq!(replayed.liked().digest(at.low), here.liked().digest(at.low));
    }
}

/// L1: ids 2^40 higher get a range of their own, with a table that begins there; both ranges roll,
/// and a log tells all of it, whichever batch is the last one.
#[test]
fn a_range_that_opens_is_in_the_log() {
    let here = Site::with(|existence| existence.max_aside = 2000);
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
    assert!(seen[&1] > 0 && seen[&2] == 0, "{seen:?}: pairs aside by number of ranges");
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
        assert_eq!(replayed.liked().digest(at.low), here.liked().digest(at.low));
    }
}

/// L1: a table that is due, as another site's block has filled it, is closed by an unlike for which
/// there is no room among the revoked. No other write follows: the log has it all the same.
#[test]
fn a_table_that_a_refused_write_has_closed_is_in_the_log() {
    let here = Site::with(|existence| existence.max_revoked = 1);
    let disk = SimDisk::new(5);
    let mut log = new_log(&disk);
    (0..100).for_each(|id| here.like(1, id));
    here.unlike(1, 0);
    let there = here.copied();
    there.engines.roll_pairs(there.liked_space());
    (0..40_000).for_each(|viewer| there.like(1 << 20 | viewer, viewer % 100));
    // The only block of the first filter.
    here.merge_blocks(&there, 0, &[0]);
    here.round(&mut log, &mut |_| ());
    assert_eq!((here.liked().layout().len(), here.liked().most_revoked()), (1, 1));
    let action = here.engines.action(b"like").unwrap();
    let undone =
        here.engines.undo(action, &Member::Number(1), 1, &mut vec![]).map_err(|e| e.to_string());
    assert_eq!(undone, Err(phantom::Error::RevokedFull.to_string()));
    assert_eq!(here.liked().layout().len(), 2, "it was closed");
    here.round(&mut log, &mut |_| ());
    assert_eq!(replayed(&disk, |_| ()).liked().layout(), here.liked().layout());
}

/// Tables are recycled while a snapshot is written, some before it comes to them: in its middle, up
/// to its end, all that there were. The log has blocks of each of them, from after the snapshot's
/// beginning.
#[test]
fn a_snapshot_beside_recyclings_has_all_tables_from_the_horizon_on() {
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
        // All tables are as large as they become, and there are as many as are kept.
        while here.liked().horizon() == 0 {
            roll(&mut id);
        }
        (0..100).for_each(|viewer| here.like(viewer, id + viewer));
        here.round(&mut log, &mut |_| ());
        let tables = here.liked().layout();
        let from = log.durable();
        let mut snapshot = store.begin_snapshot(from);
        let there = here.copied();
        for at in &tables {
            there.like(1000, at.low);
            here.merge_blocks(&there, at.low, &(0..20).collect::<Vec<_>>());
        }
        here.round(&mut log, &mut |_| ());
        let (pace, parts, stamp) =
            (CpuThrottle::new(&|| false), &here.durability.parts, from.offset.max(1));
        for space in here.engines.existences() {
            let mut files = 0;
            let mut add = |writer: &mut SnapshotWriter<'_>, file: FileWriter| {
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
        assert_eq!(lows, expected, "none is missing between others");
        assert!(lows[0] <= here.liked().horizon());
        store.replay(|record| applied(&again, record), |_| ()).unwrap();
        assert_eq!(again.liked().layout(), here.liked().layout());
        for at in here.liked().layout() {
            assert_eq!(again.liked().digest(at.low), here.liked().digest(at.low), "{at:?}");
        }
        let kept = tables.iter().filter(|at| at.low >= here.liked().horizon());
        kept.for_each(|at| assert!(again.likes(1000, at.low)));
        assert!(again.likes(1001, id));
    }
}
