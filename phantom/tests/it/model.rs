//! Random operations compared with a map. Small tables make rollovers, recycling, extensions,
//! deletions and outliers (ids far above all tables) frequent.

use phantom::{Answer, Change, Error, Member, Options, Space};
use std::collections::BTreeMap;

struct Run {
    space: Space,
    options: Options,
    /// State of each pair ever written.
    model: BTreeMap<(u64, u64), bool>,
    rng: fastrand::Rng,
    now: u64,
    /// Whether an import of old ids is in progress.
    backfill: bool,
    step: u64,
    /// Number of lookups of unset pairs, and of false positives.
    asked: u64,
    wrong: u64,
    events: Events,
}

/// Event counts, to verify coverage.
#[derive(Default, Debug)]
struct Events {
    changed: u64,
    revoked: u64,
    unknown: u64,
    outliers: u64,
    ranges: u64,
    revoked_full: u64,
    forgotten: u64,
    forgotten_full: u64,
    extensions: usize,
    rolls: u64,
    horizon: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = fastrand::Rng::with_seed(seed);
        let options = Options {
            false_positive_rate: [0.01, 0.003, 0.001][rng.usize(0..3)],
            pairs_per_table: 1 << rng.u32(9..15),
            max_tables: rng.usize(2..5),
            keep_tables: 0,
            spill: false,
            max_unset: rng.usize(50..2000),
            max_outliers: rng.usize(100..3000),
            max_forgotten: rng.usize(10..500),
            max_ahead: None,
            first_id: 0,
            seed,
            memory_limit_bytes: Some(1 << 30),
        };
        let now = [0, 1 << 40, 3_631_614_501_919_378, u64::MAX - (1 << 50)][rng.usize(0..4)];
        Run {
            space: Space::new(options.clone()).expect("small tables"),
            options,
            model: BTreeMap::new(),
            rng,
            now,
            backfill: false,
            step: 0,
            asked: 0,
            wrong: 0,
            events: Events::default(),
        }
    }

    /// Returns a new, recent, old or invalid id, with frequencies that resemble real traffic.
    fn id(&mut self) -> u64 {
        let kind = if self.backfill { self.rng.u32(35..100) } else { self.rng.u32(0..100) };
        match kind {
            0..40 => {
                self.now += self.rng.u64(0..20);
                self.now
            }
            40..75 => self.now.saturating_sub(self.rng.u64(0..2000)),
            75..90 => self.now.saturating_sub(self.rng.u64(0..100_000)),
            90..98 => {
                self.model.range((self.rng.u64(..), 0)..).next().map_or(7, |((id, _), _)| *id)
            }
            98 => self.rng.u64(..),
            _ => [0, 1, u64::MAX, u64::MAX - 1, 1 << 63][self.rng.usize(0..5)],
        }
    }

    fn is_set(&self, id: u64, member: u64) -> bool {
        self.model.get(&(id, member)).copied().unwrap_or(false)
    }

    fn step(&mut self) {
        self.step += 1;
        let id = self.id();
        let crowd = 1 << self.rng.u32(1..20);
        let member = self.rng.u64(0..crowd);
        match self.rng.u32(0..100) {
            0..50 => self.write(id, member, true),
            50..60 => self.write(id, member, false),
            60..65 => {
                let from = (self.now.saturating_sub(self.rng.u64(0..50_000)), self.rng.u64(..));
                if let Some((&(id, member), _)) = self.model.range(from..).next() {
                    self.write(id, member, false);
                }
            }
            65..90 => self.read(id, member),
            90..97 => self.read_batch(member),
            97 => self.forget(id),
            _ => while self.rng.bool() && self.space.maintain() {},
        }
        if self.rng.u32(0..20_000) == 0 {
            self.space.roll_now();
        }
        if self.rng.u32(0..30_000) == 0 {
            self.now = self.now.saturating_add(1 << self.rng.u32(10..45));
        }
        if self.rng.u32(0..10_000) == 0 {
            self.backfill ^= true;
        }
        if self.rng.u32(0..5_000) == 0 {
            let extensions = self.space.tables().iter().map(|table| table.extensions).sum();
            self.events.extensions = self.events.extensions.max(extensions);
        }
        let horizon = self.space.horizon();
        assert!(horizon >= self.events.horizon, "the horizon fell");
        if horizon > self.events.horizon {
            self.events.horizon = horizon;
            self.model = self.model.split_off(&(horizon, 0));
        }
    }

    fn write(&mut self, id: u64, member: u64, set: bool) {
        let before = self.is_set(id, member);
        let result = if set {
            self.space.add(id, &Member::Number(member))
        } else {
            self.space.remove(id, &Member::Number(member))
        };
        match result {
            Ok(Change::Unknown) => {
                assert!(id < self.space.horizon(), "step {}: unknown at {id}", self.step);
                self.events.unknown += 1;
            }
            Ok(Change::Changed) => {
                if before == set {
                    // A deletion changes an unset pair only if the pair is a false positive.
                    assert!(
                        !set,
                        "step {}: ({id}, {member}) was set twice: a false negative",
                        self.step
                    );
                    self.wrong += 1;
                }
                self.asked += u64::from(!before);
                self.events.changed += 1;
                self.events.revoked += u64::from(!set);
                self.model.insert((id, member), set);
            }
            Ok(Change::Unchanged) => {
                if before != set {
                    assert!(
                        set,
                        "step {}: ({id}, {member}) was set and not unset: a false negative",
                        self.step
                    );
                    // From now on, the model treats this false positive as a set pair.
                    self.wrong += 1;
                    self.model.insert((id, member), true);
                }
                self.asked += u64::from(!before);
            }
            Err(Error::RevokedFull) => self.events.revoked_full += 1,
            Err(error) => panic!("step {}: {error}", self.step),
        }
        let outliers = self.space.outlier_pairs();
        self.events.ranges = self.events.ranges.max(self.space.course(0).ranges.len() as u64);
        self.events.outliers = self.events.outliers.max(outliers as u64);
    }

    fn forget(&mut self, id: u64) {
        if self.space.may_forget(id).is_err() {
            self.events.forgotten_full += 1;
            return;
        }
        if self.space.forget(id) {
            self.events.forgotten += 1;
            self.drop_from_model(id);
        } else {
            let mut pairs = self.model.range((id, 0)..=(id, u64::MAX));
            assert!(pairs.all(|(_, set)| !set), "step {}: {id} has pairs", self.step);
        }
        let most = self.options.max_forgotten;
        assert!(self.space.forgotten_ids() <= most, "P6");
    }

    fn drop_from_model(&mut self, id: u64) {
        let pairs: Vec<_> =
            self.model.range((id, 0)..=(id, u64::MAX)).map(|(pair, _)| *pair).collect();
        pairs.iter().for_each(|pair| _ = self.model.remove(pair));
    }

    fn check(&mut self, id: u64, member: u64, answer: Answer) {
        let below = id < self.space.horizon();
        assert_eq!(answer == Answer::Unknown, below, "step {}: {answer:?} for {id}", self.step);
        if !below {
            let set = self.is_set(id, member);
            assert!(
                !set || answer == Answer::Yes,
                "step {}: ({id}, {member}) is set: a false negative",
                self.step
            );
            self.asked += u64::from(!set);
            self.wrong += u64::from(!set && answer == Answer::Yes);
        }
    }

    fn read(&mut self, id: u64, member: u64) {
        let answer = self.space.contains(id, &Member::Number(member)).unwrap();
        self.check(id, member, answer);
    }

    fn read_batch(&mut self, member: u64) {
        let ids: Vec<u64> = (0..self.rng.usize(0..100)).map(|_| self.id()).collect();
        let mut answers = vec![Answer::Yes];
        self.space.contains_batch(&Member::Number(member), &ids, &mut answers).unwrap();
        assert_eq!(answers.len(), ids.len() + 1, "answers are appended");
        for (i, &id) in ids.iter().enumerate() {
            self.check(id, member, answers[i + 1]);
        }
    }

    fn check_all(&mut self) {
        let pairs: Vec<(u64, u64)> = self.model.keys().copied().collect();
        for (id, member) in pairs {
            if self.is_set(id, member) {
                self.read(id, member);
            }
        }
        let tables = self.space.tables();
        self.events.rolls = self.space.changes();
        assert!(
            tables.iter().all(|table| table.expected_rate <= table.configured_rate),
            "{tables:#?}"
        );
        assert!(tables.iter().all(|table| table.revoked <= self.options.max_unset));
    }
}

#[test]
fn random_operations_agree_with_a_map() {
    let steps = seeds::given("TIDEMARK_STEPS").unwrap_or(100_000);
    let mut happened = Events::default();
    for seed in seeds::seeds(10) {
        let mut run = Run::new(seed);
        for _ in 0..steps {
            run.step();
        }
        run.check_all();
        println!(
            "seed {seed}: {} false positives in {} lookups, {:?}",
            run.wrong, run.asked, run.events
        );
        let expected = run.options.false_positive_rate * run.asked as f64;
        // The bound exceeds four standard deviations, because some pairs are looked up repeatedly.
        let bound = expected + 8.0 * expected.sqrt() + 10.0;
        assert!(
            (run.wrong as f64) < bound,
            "seed {seed}: P2: {} false positives, expected {expected}",
            run.wrong
        );
        happened.revoked += run.events.revoked;
        happened.unknown += run.events.unknown;
        happened.outliers += run.events.outliers;
        happened.ranges = happened.ranges.max(run.events.ranges);
        happened.revoked_full += run.events.revoked_full;
        happened.forgotten += run.events.forgotten;
        happened.forgotten_full += run.events.forgotten_full;
        happened.extensions += run.events.extensions;
        happened.rolls += run.events.rolls;
    }
    if !seeds::is_replay() {
        let each = [
            happened.revoked,
            happened.unknown,
            happened.outliers,
            happened.rolls,
            happened.forgotten,
            happened.forgotten_full,
        ];
        assert!(each.iter().all(|&count| count > 10), "some events did not happen: {happened:?}");
        assert!(happened.extensions > 3, "hardly a table overflowed: {happened:?}");
        assert!(
            happened.ranges > 1 && happened.revoked_full > 0,
            "no limit was reached: {happened:?}"
        );
    }
}
