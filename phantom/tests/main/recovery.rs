//! What a log and a snapshot bring back: states in any order, several times, before or after the layouts that went with them, over a
//! snapshot that was taken while writes went on.

use phantom::{Answer, Change, Layout, Member, Options, Pair, Space, TableDecoder};
use std::collections::BTreeMap;

const FIRST: u64 = 1 << 50;

/// What a log holds: states, not changes.
enum Record {
    Pair(Pair),
    Layout(Vec<Layout>),
}

struct Traffic {
    space: Space,
    model: BTreeMap<(u64, u64), bool>,
    rng: fastrand::Rng,
    now: u64,
    /// Pairs written since the last commit.
    dirty: Vec<Pair>,
    changes: u64,
    log: Vec<(Record, bool)>,
}

impl Traffic {
    fn new(seed: u64) -> Traffic {
        let options = Options {
            false_positive_rate: 0.0001,
            pairs_per_table: 3000,
            max_tables: 4,
            max_ahead: seed.is_multiple_of(2).then_some(1 << 40),
            seed,
            ..Options::default()
        };
        Traffic {
            space: Space::new(options).expect("small tables"),
            model: BTreeMap::new(),
            rng: fastrand::Rng::with_seed(seed),
            now: FIRST,
            dirty: vec![],
            changes: 0,
            log: vec![],
        }
    }

    fn step(&mut self) {
        self.now += self.rng.u64(0..3);
        let id = match self.rng.u32(0..200) {
            0 => FIRST + (1 << 39) + self.rng.u64(..1 << 20),
            1 => self.now + self.rng.u64(..1 << 30),
            2..60 => self.now.saturating_sub(self.rng.u64(0..3000)),
            _ => self.now,
        };
        let (member, set) = (self.rng.u64(0..100), self.rng.u32(0..4) > 0);
        let (space, text) = (&self.space, Member::Number(member));
        let done = if set { space.add(id, &text) } else { space.remove(id, &text) };
        if let Ok(Change::Changed) = done {
            self.model.insert((id, member), set);
            self.dirty.push(space.pair(id, &text));
        }
        // A pair that is taken for set (a false yes) changes nothing, hence is not logged, and need not be found again.
        if self.rng.u32(0..100) == 0 {
            self.commit();
        }
        if self.rng.u32(0..1000) == 0 {
            while self.space.maintain() {}
        }
    }

    /// As the log's writer does it: the current states of what changed, in no particular order; the layout read after them.
    fn commit(&mut self) {
        self.rng.shuffle(&mut self.dirty);
        for pair in self.dirty.drain(..) {
            match self.space.contains_pair(&pair) {
                Answer::Unknown => (),
                answer => self.log.push((Record::Pair(pair), answer == Answer::Yes)),
            }
        }
        if self.space.changes() != self.changes {
            self.changes = self.space.changes();
            self.log.push((Record::Layout(self.space.layout()), true));
        }
    }

    fn check(&self, other: &Space, what: &str) {
        let horizon = other.horizon();
        assert!(horizon <= self.space.horizon(), "{what}: the horizon is too high");
        let mut wrong = 0;
        for (&(id, member), &set) in &self.model {
            match other.contains(id, &Member::Number(member)) {
                Answer::Unknown => assert!(id < horizon),
                Answer::No => assert!(!set || id < self.space.horizon(), "{what}: ({id}, {member}) is lost"),
                Answer::Yes => wrong += u32::from(!set),
            }
        }
        // Pairs below the live horizon are not logged any more: their last state may be missing.
        let above = self.model.range((self.space.horizon(), 0)..);
        let back = above.filter(|(pair, set)| !**set && other.contains(pair.0, &Member::Number(pair.1)) == Answer::Yes);
        let back = back.count();
        assert!(back <= 5, "{what}: {back} unset pairs are back ({wrong} with those below the horizon)");
    }
}

fn replay(space: &Space, log: &[(Record, bool)]) {
    for (record, set) in log {
        match record {
            Record::Pair(pair) => space.put(pair, *set).expect("what was accepted is accepted"),
            Record::Layout(layout) => space.put_layout(layout).expect("small tables"),
        }
    }
}

#[test]
fn a_log_brings_all_back_from_any_earlier_position() {
    for seed in 0..if cfg!(debug_assertions) { 8 } else { 100 } {
        let mut traffic = Traffic::new(seed);
        (0..20_000).for_each(|_| traffic.step());
        // A snapshot, while writes go on: the log is replayed from where it was when that began.
        let position = traffic.log.len();
        traffic.commit();
        let position = position.min(traffic.log.len());
        let head = traffic.space.encode_head();
        let mut tables = vec![];
        for at in traffic.space.layout() {
            let mut decoder = TableDecoder::new(traffic.space.options(), 1 << 30);
            let whole = traffic.space.encode_table(at.low, |piece| decoder.feed(piece));
            // One that was recycled meanwhile is not needed.
            if whole == Ok(true) {
                tables.push(decoder.finish().expect("what was encoded"));
            }
            (0..500).for_each(|_| traffic.step());
        }
        (0..5_000).for_each(|_| traffic.step());
        traffic.commit();

        let options = traffic.space.options().clone();
        let restored = Space::restore(options.clone(), &head, tables).expect("a whole snapshot");
        replay(&restored, &traffic.log[position..]);
        traffic.check(&restored, &format!("seed {seed}, snapshot and log"));
        // Recovery may begin again from the same position.
        replay(&restored, &traffic.log[position..]);
        traffic.check(&restored, &format!("seed {seed}, log twice"));
        assert_eq!(restored.horizon(), traffic.space.horizon(), "seed {seed}");

        let fresh = Space::new(options).expect("small tables");
        replay(&fresh, &traffic.log);
        traffic.check(&fresh, &format!("seed {seed}, log only"));
        assert!(traffic.space.horizon() > 0 && traffic.space.layout().len() > 3, "it rolled and recycled");
    }
}
