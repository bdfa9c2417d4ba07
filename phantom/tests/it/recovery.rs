//! Recovery from a log and a snapshot that was taken during writes. Records are replayed repeatedly
//! and from different positions. The restored tables must match the originals in id range and page
//! count.

use phantom::{Answer, Change, Layout, Member, Options, Pair, Range, Space, TableDecoder};
use std::collections::BTreeMap;

const FIRST: u64 = 1 << 50;

/// Log record. Records contain states, not changes.
enum Record {
    Pair(Pair, bool),
    Layout(Vec<Layout>),
    Frontier(Vec<Range>),
    Generation(u64, u64),
}

struct Traffic {
    space: Space,
    model: BTreeMap<(u64, u64), bool>,
    rng: fastrand::Rng,
    now: u64,
    /// Whether there is a second service. The next field is the id at which that service stops.
    two: bool,
    until: u64,
    /// Pairs written and ids forgotten since the last commit.
    dirty: Vec<Pair>,
    forgotten: Vec<u64>,
    logged: Option<(u64, Vec<Range>)>,
    log: Vec<Record>,
    events: Events,
}

/// Event counts, to verify coverage.
#[derive(Default, Debug)]
struct Events {
    forgotten: usize,
    ranges: usize,
}

impl Traffic {
    fn new(seed: u64) -> Traffic {
        let options = Options {
            false_positive_rate: 0.0001,
            pairs_per_table: 3000,
            max_tables: 4,
            max_ahead: seed.is_multiple_of(2).then_some(1 << 40),
            max_outliers: 2000,
            first_id: 0,
            seed,
            ..Options::default()
        };
        Traffic {
            space: Space::new(options).expect("small tables"),
            model: BTreeMap::new(),
            rng: fastrand::Rng::with_seed(seed),
            now: FIRST,
            two: seed % 4 < 2,
            until: if seed % 8 < 4 { u64::MAX } else { FIRST + 10_000 },
            dirty: vec![],
            forgotten: vec![],
            logged: None,
            log: vec![],
            events: Events::default(),
        }
    }

    fn step(&mut self) {
        self.now += self.rng.u64(0..3);
        self.events.ranges = self.events.ranges.max(self.space.course(0).ranges.len());
        let id = match self.rng.u32(0..200) {
            // Writes of the second service, which stops early in some runs.
            60..80 if self.two && self.now < self.until => {
                FIRST + (1 << 38) + (self.now - FIRST) / 8
            }
            0 => FIRST + (1 << 39) + self.rng.u64(..1 << 20),
            1 => self.now + self.rng.u64(..1 << 30),
            2..60 => self.now.saturating_sub(self.rng.u64(0..3000)),
            _ => self.now,
        };
        let (member, set) = (self.rng.u64(0..100), self.rng.u32(0..4) > 0);
        self.write(id, member, set);
        if self.rng.u32(0..300) == 0 && self.space.highest_id().is_some_and(|high| id <= high) {
            self.events.forgotten += usize::from(self.space.forget(id));
            self.forget(id);
        }
        if self.rng.u32(0..100) == 0 {
            self.commit();
        }
        if self.rng.u32(0..1000) == 0 {
            while self.space.maintain() {}
        }
    }

    /// A false positive suppresses the write of a pair. The pair is then not logged, and a restored
    /// space may not report it as set.
    fn write(&mut self, id: u64, member: u64, set: bool) {
        let (space, text) = (&self.space, Member::Number(member));
        let done = if set { space.add(id, &text) } else { space.remove(id, &text) };
        if let Ok(Change::Changed) = done {
            self.model.insert((id, member), set);
            self.dirty.push(space.pair(id, &text));
        }
    }

    fn forget(&mut self, id: u64) {
        self.model.range_mut((id, 0)..=(id, u64::MAX)).for_each(|(_, set)| *set = false);
        self.forgotten.push(id);
    }

    /// Mirrors the log writer: reads the states of changed pairs by id, reads the course, and then
    /// logs the course before the pairs.
    fn commit(&mut self) {
        self.dirty.sort_unstable();
        let mut states: Vec<Record> = vec![];
        for pair in self.dirty.drain(..) {
            match self.space.contains_pair(&pair).unwrap() {
                Answer::Unknown => (),
                answer => states.push(Record::Pair(pair, answer == Answer::Yes)),
            }
        }
        let course = self.space.course(self.logged.as_ref().map_or(u64::MAX, |logged| logged.0));
        self.log.extend(course.layout.map(Record::Layout));
        if self.logged.as_ref().is_none_or(|logged| logged.1 != course.ranges) {
            self.log.push(Record::Frontier(course.ranges.clone()));
        }
        self.logged = Some((course.changes, course.ranges));
        let generations = self.forgotten.drain(..).map(|id| (id, self.space.generation(id)));
        // Ids below the horizon, the lowest id that is still stored, have no generation.
        let generations = generations.filter(|(_, generation)| *generation > 0);
        self.log.extend(generations.map(|(id, generation)| Record::Generation(id, generation)));
        self.log.extend(states);
    }

    fn check(&self, other: &Space, what: &str) {
        let horizon = other.horizon();
        assert!(horizon <= self.space.horizon(), "{what}: the horizon is too high");
        let mut wrong = 0;
        for (&(id, member), &set) in &self.model {
            match other.contains(id, &Member::Number(member)).unwrap() {
                Answer::Unknown => assert!(id < horizon),
                Answer::No => {
                    assert!(!set || id < self.space.horizon(), "{what}: ({id}, {member}) is lost")
                }
                Answer::Yes => wrong += u32::from(!set),
            }
        }
        // The log omits pairs of ids that are no longer stored, so it may lack their last change.
        let above = self.model.range((self.space.horizon(), 0)..);
        let back = above.filter(|(pair, set)| {
            !**set && other.contains(pair.0, &Member::Number(pair.1)).unwrap() == Answer::Yes
        });
        let back = back.count();
        assert!(
            back <= 5,
            "{what}: {back} unset pairs are set again ({wrong} including those below the horizon)"
        );
    }
}

/// Replays the log. If `serves`, the space also runs its own maintenance, as a replica does.
fn replay(space: &Space, log: &[Record], serves: bool) {
    for record in log {
        match record {
            Record::Pair(pair, set) => space.put(pair, *set).expect("an accepted pair is set"),
            Record::Layout(layout) => space.put_layout(layout).expect("small tables"),
            Record::Frontier(frontier) => space.put_frontier(frontier),
            Record::Generation(id, generation) => space.put_generation(*id, *generation),
        }
        if serves && space.wants_maintenance() {
            space.maintain();
        }
    }
}

#[test]
fn a_log_brings_all_back_from_any_earlier_position() {
    let mut happened = Events::default();
    for seed in 0..if cfg!(debug_assertions) { 8 } else { 100 } {
        let mut traffic = Traffic::new(seed);
        (0..20_000).for_each(|_| traffic.step());
        // Take a snapshot during writes. Replay starts at the log position before the snapshot.
        let position = traffic.log.len();
        traffic.commit();
        let position = position.min(traffic.log.len());
        let head = traffic.space.encode_head();
        let mut tables = vec![];
        for at in traffic.space.layout() {
            let mut decoder = TableDecoder::new(traffic.space.options(), 1 << 30);
            let whole = traffic.space.encode_table(at.low, |piece| decoder.feed(piece));
            // `Ok(false)` means that the table was recycled during the snapshot.
            if whole == Ok(true) {
                tables.push(decoder.finish().expect("the encoded table decodes"));
            }
            (0..500).for_each(|_| traffic.step());
        }
        let generations = traffic.space.forgotten(0, u64::MAX);
        let layout = traffic.space.layout();
        (0..5_000).for_each(|_| traffic.step());
        while traffic.space.move_on() {}
        traffic.commit();
        traffic.check(&traffic.space, &format!("seed {seed}, live"));

        let options = traffic.space.options().clone();
        let restored =
            Space::restore(options.clone(), &head, &layout, tables).expect("a whole snapshot");
        restored.restore_generations(&generations);
        replay(&restored, &traffic.log[position..], false);
        traffic.check(&restored, &format!("seed {seed}, snapshot and log"));
        // A recovery that was interrupted replays the log from the same position again.
        replay(&restored, &traffic.log[position..], false);
        traffic.check(&restored, &format!("seed {seed}, log twice"));

        // A follower may have other options; the log determines table sizes.
        let other = Options {
            pairs_per_table: if seed % 3 == 0 { 800 } else { options.pairs_per_table },
            ..options
        };
        let fresh = Space::new(other).expect("small tables");
        replay(&fresh, &traffic.log, seed % 2 == 0);
        traffic.check(&fresh, &format!("seed {seed}, log only"));
        for space in [&restored, &fresh] {
            assert_eq!(space.layout(), traffic.space.layout(), "seed {seed}: L1, L2");
            assert_eq!(space.course(0).ranges, traffic.space.course(0).ranges, "seed {seed}");
            assert_eq!(space.outlier_pairs(), traffic.space.outlier_pairs(), "seed {seed}");
        }
        assert!(
            traffic.space.horizon() > 0 && traffic.space.layout().len() > 3,
            "the ring rolled and recycled: seed {seed} {:?} {:?}",
            traffic.space.layout(),
            traffic.space.course(0).ranges
        );
        let Events { forgotten, ranges } = traffic.events;
        // A seed may have more ranges than services, because a range is also created when outliers
        // (ids far above all tables) use much memory.
        assert!(ranges > 1 || !traffic.two, "seed {seed}: {ranges} ranges of ids");
        happened.ranges += ranges;
        happened.forgotten += forgotten;
    }
    println!("{happened:?}");
    assert!(happened.forgotten > 100, "some events did not happen: {happened:?}");
}
