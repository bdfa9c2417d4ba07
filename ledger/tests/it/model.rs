//! Compares a ledger with a `BTreeSet` after random changes, flushes, merges, deletions of ids and
//! restarts.

use ledger::{Flush, Ledger, Member, Options, OwnedMember};
use std::collections::BTreeSet;
use std::sync::Arc;
use store::{Lineage, SimDisk, Store, StoreOptions};

pub(crate) const SPACE: u32 = 3;
pub(crate) const KIND: u32 = 15;

type Model = BTreeSet<(u64, OwnedMember)>;

pub(crate) fn open(disk: &SimDisk) -> Store {
    Store::open_with(Arc::new(disk.clone()), StoreOptions::default(), || Ok(Lineage([7; 16])))
        .unwrap()
}

fn id(random: &mut fastrand::Rng) -> u64 {
    match random.u8(..) {
        0..3 => 0,
        3..6 => u64::MAX,
        6..60 => 500,
        60..100 => random.u64(..),
        _ => random.u64(1..40) * 1000,
    }
}

fn member(random: &mut fastrand::Rng, wide: bool) -> OwnedMember {
    match random.u8(..) {
        0..4 => OwnedMember::Number(0),
        4..8 => OwnedMember::Number(u64::MAX),
        8..12 => OwnedMember::Bytes(Box::new([])),
        12..16 => OwnedMember::Bytes([random.u8(..3); 512].into()),
        16..50 => OwnedMember::Bytes(format!("user:{}", random.u32(..500)).into_bytes().into()),
        _ if wide => OwnedMember::Number(random.u64(..) >> random.u32(0..64)),
        _ => OwnedMember::Number(random.u64(..3000)),
    }
}

struct World {
    disk: SimDisk,
    store: Store,
    ledger: Ledger,
    options: Options,
    model: Model,
    random: fastrand::Rng,
    seed: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = fastrand::Rng::with_seed(seed);
        let options = Options {
            memory_pairs: random.usize(50..2000),
            runs: random.usize(1..6),
            range_pairs: random.u64(300..20_000),
            upper_part: random.u64(1..20),
            upper_pairs: random.u64(..40_000),
        };
        let disk = SimDisk::new(seed);
        let store = open(&disk);
        let ledger = Ledger::open(&store, SPACE, KIND, options).unwrap();
        World { disk, store, ledger, options, model: Model::new(), random, seed }
    }

    fn change(&mut self) {
        let (id, wide) = (id(&mut self.random), self.seed.is_multiple_of(2));
        let member = member(&mut self.random, wide);
        let set = self.random.u8(..) < 200;
        self.ledger.set(id, member.as_member(), set);
        if set {
            self.model.insert((id, member));
        } else {
            self.model.remove(&(id, member));
        }
    }

    fn ask(&mut self) {
        let pair = match self.random.bool() {
            true => {
                let (id, wide) = (id(&mut self.random), self.seed.is_multiple_of(2));
                (id, member(&mut self.random, wide))
            }
            false => {
                let some = (id(&mut self.random), OwnedMember::Number(self.random.u64(..5000)));
                match self.model.range(some..).next() {
                    Some(pair) => pair.clone(),
                    None => return,
                }
            }
        };
        let is_set = self.ledger.contains(pair.0, pair.1.as_member()).unwrap();
        assert_eq!(is_set, self.model.contains(&pair), "seed {}: {pair:?}", self.seed);
    }

    fn list(&mut self) {
        let (low, high) = match self.random.u8(..) {
            0..40 => (0, u64::MAX),
            40..90 => {
                let (a, b) = (id(&mut self.random), id(&mut self.random));
                (a.min(b), a.max(b))
            }
            _ => {
                let id = id(&mut self.random);
                (id, id)
            }
        };
        let most = self.random.usize(1..600);
        let (mut read, mut after) = (Vec::new(), None::<(u64, OwnedMember)>);
        loop {
            let from = after.as_ref().map(|(id, member)| (*id, member.as_member()));
            let page = self.ledger.list((low, high), from, most).unwrap();
            assert!(page.len() <= most);
            read.extend(page.iter().map(|pair| (pair.id, pair.member.to_owned())));
            if page.len() < most {
                break;
            }
            after = read.last().cloned();
        }
        let expected: Vec<_> =
            self.model.iter().filter(|pair| (low..=high).contains(&pair.0)).cloned().collect();
        assert!(read == expected, "seed {}: {low} to {high}", self.seed);
    }

    /// Changes after a snapshot do not show in it.
    fn snapshot(&mut self) {
        let id = id(&mut self.random);
        let snapshot = self.ledger.snapshot(id);
        let first = (id, OwnedMember::Number(0));
        let of_id = self.model.range(first..).take_while(|pair| pair.0 == id);
        let expected: Vec<_> = of_id.map(|(_, member)| member.clone()).collect();
        (0..50).for_each(|_| self.change());
        match self.random.u8(..4) {
            0 => self.drop_id(),
            1 => self.flush(Flush::All),
            _ => {}
        }
        let mut read = Vec::new();
        snapshot.for_each(|pair| read.push(pair.member.to_owned())).unwrap();
        assert!(read == expected, "seed {}: {id}", self.seed);
    }

    fn flush(&mut self, flush: Flush) {
        self.ledger.flush(&self.store, flush, 0, || Ok(0)).unwrap();
        let stats = self.ledger.stats();
        assert!(stats.most_runs <= self.options.runs, "seed {}: {stats:?}", self.seed);
        // L3: the lowest run of a range has no unset pairs.
        if stats.runs == stats.ranges && stats.drops == 0 && stats.memory_pairs == 0 {
            assert_eq!(stats.run_pairs, self.model.len() as u64, "seed {}", self.seed);
        }
        match flush {
            Flush::All => assert_eq!(stats.memory_pairs, 0),
            Flush::Most => assert!(stats.memory_pairs <= self.options.memory_pairs / 2),
        }
    }

    fn drop_id(&mut self) {
        let id = id(&mut self.random);
        self.ledger.drop_id(id);
        self.model.retain(|pair| pair.0 != id);
    }

    fn trim(&mut self) {
        self.flush(Flush::All);
        let odd = |id: u64| id % 7 != 3;
        let (low, high) = (0, if self.random.bool() { u64::MAX } else { 20_000 });
        let kept = |id| odd(id) || id > high;
        // A trim rewrites whole ranges.
        self.ledger.trim(&self.store, (low, high), kept, || Ok(0)).unwrap();
        self.model.retain(|pair| kept(pair.0));
        if high == u64::MAX {
            assert_eq!(self.ledger.stats().drops, 0, "seed {}", self.seed);
        }
    }

    /// The ledger removes only whole ranges below the horizon. Callers never look up the remaining
    /// pairs below the horizon.
    fn drop_below(&mut self) {
        let horizon = id(&mut self.random) / 4;
        let ranges = self.ledger.stats().ranges;
        let dropped = self.ledger.drop_below(&self.store, horizon).unwrap();
        assert_eq!(dropped, self.ledger.stats().ranges < ranges || ranges == 1 && dropped);
        let left = self.ledger.list((0, horizon.saturating_sub(1)), None, usize::MAX).unwrap();
        let left: Model = left.iter().map(|pair| (pair.id, pair.member.to_owned())).collect();
        assert!(left.is_subset(&self.model));
        self.model.retain(|pair| pair.0 >= horizon || left.contains(pair));
    }

    /// Reopens the ledger and restores its memory as from a snapshot.
    fn reopen(&mut self) {
        let mut left = Vec::new();
        self.ledger.walk_memory(|pairs| {
            left.extend(pairs.iter().map(|pair| (pair.id, pair.member.to_owned(), pair.set)));
        });
        let drops = self.ledger.drops();
        let before = self.ledger.stats();
        let disk = self.disk.kill();
        self.store = open(&disk);
        self.disk = disk;
        self.ledger = Ledger::open(&self.store, SPACE, KIND, self.options).unwrap();
        drops.iter().for_each(|&(id, up_to)| self.ledger.restore_drop(id, up_to));
        left.iter().for_each(|(id, member, set)| self.ledger.set(*id, member.as_member(), *set));
        let after = self.ledger.stats();
        assert_eq!(
            (after.runs, after.run_pairs, after.run_bytes, after.memory_pairs, after.drops),
            (before.runs, before.run_pairs, before.run_bytes, before.memory_pairs, before.drops)
        );
    }

    fn step(&mut self) {
        match self.random.u32(..4000) {
            0..8 => self.flush(Flush::Most),
            8..14 => self.flush(Flush::All),
            14..17 => self.reopen(),
            17..40 => self.drop_id(),
            40..42 => self.trim(),
            42..43 => self.drop_below(),
            43..60 => self.list(),
            60..80 => self.snapshot(),
            80..800 => self.ask(),
            _ => self.change(),
        }
    }
}

#[test]
fn ledger_answers_as_a_set_does() {
    for seed in seeds::seeds(12) {
        let mut world = World::new(seed);
        (0..15_000).for_each(|_| world.step());
        world.reopen();
        world.list();
        (0..200).for_each(|_| world.ask());
    }
}

#[test]
fn members_of_an_id_come_in_pages() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let ledger = Ledger::open(&store, SPACE, KIND, Options::default()).unwrap();
    (0..30_000).for_each(|n| ledger.set(7, Member::Number(n * 3), true));
    ledger.set(6, Member::Number(1), true);
    ledger.set(8, Member::Bytes(b"x"), true);
    ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap();
    (0..30_000).step_by(2).for_each(|n| ledger.set(7, Member::Number(n * 3), false));
    let page = ledger.list((7, 7), Some((7, Member::Number(50_000))), 3).unwrap();
    let members: Vec<_> = page.iter().map(|pair| pair.member).collect();
    assert_eq!(members, [50_001, 50_007, 50_013].map(Member::Number));
    assert_eq!(ledger.list((7, 7), None, usize::MAX).unwrap().len(), 15_000);
    assert!(!Ledger::takes(Member::Bytes(&[0; 513])) && Ledger::takes(Member::Bytes(&[0; 512])));
}

/// A trim removes drop records that apply to no run. A trim of the range with the most drop records
/// does not rewrite other ranges.
#[test]
fn drops_are_forgotten_range_by_range() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let options = Options { range_pairs: 1000, ..Options::default() };
    let ledger = Ledger::open(&store, SPACE, KIND, options).unwrap();
    let trim = |ledger: &Ledger| {
        let range = ledger.range_with_most_drops().unwrap();
        ledger.trim(&store, range, |_| true, || Ok(0)).unwrap();
        range
    };
    ledger.set(7, Member::Number(1), true);
    (0..20).for_each(|id| ledger.drop_id(id));
    assert_eq!(trim(&ledger), (0, u64::MAX));
    assert_eq!((ledger.dropped_ids(), ledger.stats().runs), (0, 0), "no run exists");
    for id in 0..40 {
        (0..100).for_each(|member| ledger.set(id, Member::Number(member), true));
    }
    ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap();
    assert!(ledger.stats().ranges >= 4);
    (0..2).chain(30..34).for_each(|id| ledger.drop_id(id));
    let (before, pairs) = (ledger.stats().written_pairs, ledger.stats().run_pairs);
    let (low, high) = trim(&ledger);
    assert!(low <= 33 && high >= 30, "{low} to {high}");
    let after = ledger.stats();
    assert!(after.written_pairs - before <= 1000 && after.drops < 6, "{after:?}");
    while ledger.dropped_ids() > 0 {
        trim(&ledger);
    }
    assert_eq!(ledger.stats().run_pairs, pairs - 600);
}
