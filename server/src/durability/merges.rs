//! What the log has of a merge, while others write the same pairs: the log thread's steps are made one by one, and others write in between.

use super::*;
use crate::config::Config;
use std::sync::mpsc;
use store::{Rounds, SimDisk};

const IDS: u64 = 3000;
const STEPS: u64 = 60;

struct Site {
    engines: Engines,
    durability: Arc<Durability>,
}

impl Site {
    fn new() -> Site {
        let mut config = Config::default();
        for existence in &mut config.existence {
            // A first table of one block.
            (existence.seed, existence.pairs_per_table) = (7, 160_000);
        }
        let durability = Arc::new(Durability::new(Fsync::Always));
        let catalogue = Catalogue::default().completed(&config).unwrap();
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
        self.engines.existence(b"liked").unwrap().contains(id, &Member::Number(viewer)) == Answer::Yes
    }

    fn counted(&self, id: u64) -> i64 {
        let posts = self.engines.counter(b"post").unwrap();
        let mut row = vec![0; posts.schema().width()];
        posts.get(id, &mut row);
        row[posts.schema().index_of(b"like").unwrap()]
    }

    /// Merges the first block of `there`.
    fn merge(&self, there: &Site) {
        let mut block = vec![];
        let from = there.engines.existence(b"liked").unwrap();
        let sink = |bytes: &[u8]| {
            block.extend_from_slice(bytes);
            Ok::<(), ()>(())
        };
        assert_eq!(from.export_blocks(0, &[0], sink), Ok(true));
        let liked = self.engines.existence(b"liked").unwrap();
        self.engines.merge(liked, &liked.read_block(&mut &block[..]).unwrap()).unwrap();
    }

    /// One round of the log thread; `between` runs after the state of each stripe has been read, with its marks, and before a batch is made of all,
    /// with none.
    fn round(&self, log: &mut Log, between: &mut dyn FnMut(&[Mark])) {
        let mut source = Interrupted { state: self.durability.state(&self.engines), between };
        Rounds::new(&self.durability.committer).turn(log, &mut source, Instant::now(), false).unwrap();
    }
}

struct Interrupted<'a> {
    state: State<'a>,
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

/// What the log makes of a site that has nothing; `each` sees it after every batch.
fn replayed(disk: &SimDisk, mut each: impl FnMut(&Site)) -> Site {
    let site = Site::new();
    let mut apply = |_: &store::BatchHead, body: &[u8]| {
        for record in Records::new(body) {
            let record = record?;
            if record.kind != RecordKind::Catalogue as u8 {
                apply_record(&site.engines, &site.durability.parts, record.space, record.kind, record.payload)?;
            }
        }
        each(&site);
        Ok(())
    };
    open(disk).replay_batches(&mut apply, |_| ()).unwrap();
    site
}

/// Has somebody else do something, who is waited for, unless he waits for what is held here.
fn beside<'s>(scope: &'s std::thread::Scope<'s, '_>, what: impl FnOnce() + Send + 's) -> mpsc::Receiver<()> {
    let (done, ended) = mpsc::channel();
    scope.spawn(move || {
        what();
        drop(done);
    });
    let _ = ended.recv_timeout(Duration::from_millis(20));
    ended
}

/// An unlike is read for the log; then a merge sets the pair again, before the round has come to what the merge marks.
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

/// Somebody likes what is revoked at the other site, or has its bits among those of the block, at every step of the round that logs the merge: after each
/// batch of the log, whichever is the last one, flags and counters agree.
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
                // One after the other: who is still there waits for a stripe. Before a batch is made none is held.
                let nothing_is_held = marks.is_empty();
                if let Some(last) = last.take_if(|_| nothing_is_held) {
                    let _ = last.recv();
                }
                let is_free = last.as_ref().is_none_or(|last| last.try_recv() == Err(mpsc::TryRecvError::Disconnected));
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
