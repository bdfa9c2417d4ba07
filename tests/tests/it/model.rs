//! Random commands compared with plain maps, on engines so small that rolling, recycling, probe
//! overflow, aux overflow, outliers (ids far above all tables) and revocation occur constantly.
//!
//! Checked at every step: counts are exact; there are no false negatives; *unknown* is returned
//! exactly below the horizon, the lowest id that is still stored; a flag and its counter change
//! together; false positives stay within the configured rate, with a margin for small samples.
//!
//! `cargo xtask model commands` runs longer with `--steps` (default 1,000,000 per seed) and
//! `--runs` (default 3, from seed 1), or replays one `--seed`.

use counter::{Bounds, Change as Delta};
use dataset::Engines;
use dataset::catalogue::Catalogue;
use dataset::commit::Durability;
use dataset::engines::Page;
use dataset::options::{Fsync, LedgerMode, Options};
use phantom::{Answer, Change, Member};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

const UNBOUNDED: Bounds = Bounds { min: None, max: None, saturate: false };
const RATE: f64 = 0.01;

fn tiny() -> Options {
    let mut config = Options::default();
    for counter in &mut config.counter {
        counter.rows_per_table = 64;
    }
    for existence in &mut config.existence {
        existence.pairs_per_table = 300;
        (existence.spill, existence.max_tables) = (false, 5);
        existence.ledger = LedgerMode::Off;
        existence.false_positive_rate = RATE;
        existence.max_unset = 100_000;
        existence.max_outliers = 100_000;
        existence.max_forgotten = 100_000;
        existence.seed = 7;
        existence.memory_limit_bytes = 1 << 30;
    }
    config
}

#[derive(Default)]
struct Truth {
    rows: HashMap<u64, [i64; 4]>,
    /// Pairs of `liked` and `read` by id, removed when their table is recycled.
    flags: [HashMap<u64, HashSet<u64>>; 2],
    asked: u64,
    wrong: u64,
}

struct Run {
    engines: Engines,
    truth: Truth,
    rng: fastrand::Rng,
    /// Center of the random ids. The center increases over time.
    now: u64,
    page: Page,
    horizon: [u64; 2],
    /// Number of times that the horizon rose.
    horizons: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        let config = tiny();
        let catalogue = Catalogue::default().completed(&config);
        let durability = Arc::new(Durability::new(Fsync::No));
        Run {
            engines: Engines::new(&config, &catalogue, durability).unwrap(),
            truth: Truth::default(),
            rng: fastrand::Rng::with_seed(seed),
            now: 3_631_614_501_919_378,
            page: Page::default(),
            horizon: [0; 2],
            horizons: 0,
        }
    }

    fn id(&mut self) -> u64 {
        match self.rng.u32(0..100) {
            0 => [0, 1, u64::MAX, u64::MAX - 1, 1 << 63][self.rng.usize(0..5)],
            1 => self.now + (self.rng.u64(1..1000) << 40),
            2..20 => self.now - self.rng.u64(0..4_000_000).min(self.now),
            _ => {
                self.now += self.rng.u64(0..300);
                self.now - self.rng.u64(0..20_000)
            }
        }
    }

    fn member(&mut self) -> u64 {
        self.rng.u64(0..40)
    }

    fn row(&mut self, id: u64) {
        let mut row = [0; 4];
        let post = self.engines.counter(b"post").unwrap();
        let found = post.get(id, &mut row).unwrap();
        assert_eq!(found, self.truth.rows.contains_key(&id), "row {id}: existence differs");
        assert_eq!(row, self.truth.rows.get(&id).copied().unwrap_or_default(), "row {id}");
    }

    fn flag(&mut self, which: usize, id: u64, member: u64) {
        let space = self.engines.existence([&b"liked"[..], b"read"][which]).unwrap();
        let answer = space.contains(id, &Member::Number(member)).unwrap();
        let is_set = self.truth.flags[which].get(&id).is_some_and(|m| m.contains(&member));
        let horizon = space.horizon();
        match answer {
            Answer::Unknown => assert!(id < horizon, "{id} is unknown, the horizon is {horizon}"),
            Answer::No => {
                assert!(
                    id >= horizon && !is_set,
                    "false negative: {id}, {member}, horizon {horizon}"
                )
            }
            Answer::Yes => {
                assert!(id >= horizon, "{id} is known below the horizon {horizon}");
                self.truth.wrong += u64::from(!is_set);
            }
        }
        self.truth.asked += u64::from(!is_set && id >= horizon);
    }

    /// Executes or undoes an action and applies the expected effect to the model.
    fn act(&mut self, which: usize, id: u64, member: u64, undo: bool) {
        let name: &[u8] = [&b"like"[..], b"read"][which];
        let action = self.engines.action(name).unwrap();
        let viewer = Member::Number(member);
        let mut scratch = vec![];
        let full = self.truth.rows.get(&id).is_some_and(|row| row[[0, 3][which]] == i64::MAX);
        // If the row was deleted, the first action counts although the flag is set.
        let is_absent = !self.truth.rows.contains_key(&id);
        let change = match undo {
            // A counter that cannot be incremented refuses the action, and the flag stays unset.
            false if full => match self.engines.act(action, &viewer, id, &mut scratch) {
                Err(_) => return,
                Ok(change) => change,
            },
            false => self.engines.act(action, &viewer, id, &mut scratch).unwrap(),
            true => self.engines.undo(action, &viewer, id, &mut scratch).unwrap(),
        };
        assert!(!(full && !undo && change == Change::Changed), "{id}: counted beyond the maximum");
        let members = self.truth.flags[which].entry(id).or_default();
        let was_set = members.contains(&member);
        let field = [0, 3][which];
        match (change, undo) {
            (Change::Unknown, _) => {
                let horizon =
                    self.engines.existence([&b"liked"[..], b"read"][which]).unwrap().horizon();
                assert!(id < horizon, "{id} is unknown, the horizon is {horizon}");
            }
            (Change::Changed, false) => {
                assert!(!was_set || is_absent, "{id}, {member}: a second like counted");
                members.insert(member);
                self.truth.rows.entry(id).or_default()[field] += 1;
            }
            (Change::Unchanged, false) => self.truth.wrong += u64::from(!was_set),
            (Change::Changed, true) => {
                // A false positive can be cleared like any other pair.
                self.truth.wrong += u64::from(!was_set);
                members.remove(&member);
                let row = self.truth.rows.entry(id).or_default();
                row[field] -= i64::from(row[field] > 0);
            }
            (Change::Unchanged, true) => {
                assert!(!was_set, "{id}, {member}: a like could not be undone")
            }
        }
        self.truth.asked += u64::from(!was_set);
    }

    /// Removes pairs of recycled tables from the model.
    fn forget(&mut self) {
        for (which, name) in [&b"liked"[..], b"read"].into_iter().enumerate() {
            let horizon = self.engines.existence(name).unwrap().horizon();
            if std::mem::replace(&mut self.horizon[which], horizon) != horizon {
                self.horizons += 1;
                self.truth.flags[which].retain(|&id, _| id >= horizon);
            }
        }
    }

    fn step(&mut self) {
        let (id, member) = (self.id(), self.member());
        let (field, which) = (self.rng.usize(0..4), self.rng.usize(0..2));
        let deltas = [self.delta(), self.delta(), self.delta()];
        let post = self.engines.counter(b"post").unwrap();
        match self.rng.u32(0..100) {
            0..25 => self.act(0, id, member, false),
            25..45 => self.act(1, id, member, false),
            45..55 => self.act(0, id, member, true),
            55..60 => self.act(1, id, member, true),
            60..70 => {
                let delta = deltas[0];
                let (mut out, truth) =
                    (vec![], self.truth.rows.get(&id).copied().unwrap_or_default()[field]);
                let result =
                    self.engines.add(post, id, &[Delta { field, delta }], &UNBOUNDED, &mut out);
                match truth.checked_add(delta) {
                    Some(value) => {
                        result.unwrap();
                        assert_eq!(out, [value]);
                        self.truth.rows.entry(id).or_default()[field] = value;
                    }
                    None => assert!(result.is_err(), "{truth} + {delta} did not overflow"),
                }
            }
            70..75 => {
                let row = [deltas[0], 0, deltas[1], deltas[2]];
                let cells: Vec<(usize, i64)> = row.iter().copied().enumerate().collect();
                self.engines.set(post, id, &cells).unwrap();
                self.truth.rows.insert(id, row);
            }
            75..77 => {
                assert_eq!(
                    self.engines.delete(post, id).unwrap(),
                    self.truth.rows.remove(&id).is_some(),
                    "delete {id}"
                );
            }
            77 => {
                assert_eq!(
                    self.engines.forget(post, id).unwrap(),
                    self.truth.rows.remove(&id).is_some(),
                    "forget {id}"
                );
                self.truth.flags.iter_mut().for_each(|flags| _ = flags.remove(&id));
            }
            78..85 => self.row(id),
            85..95 => self.flag(which, id, member),
            95..99 => self.page(member),
            _ => {
                self.engines.maintain();
            }
        }
        self.forget();
    }

    fn delta(&mut self) -> i64 {
        match self.rng.u32(0..20) {
            0 => [i64::MAX, i64::MIN, i64::MAX - 1, -1][self.rng.usize(0..4)],
            1..4 => self.rng.i64(-100_000..100_000),
            _ => self.rng.i64(0..100),
        }
    }

    /// Checks that a page agrees with individual reads of rows and flags.
    fn page(&mut self, member: u64) {
        let ids: Vec<u64> = (0..20).map(|_| self.id()).collect();
        let mut page = std::mem::take(&mut self.page);
        let view = self.engines.view(b"home").unwrap();
        self.engines.feed_get(view, &Member::Number(member), &ids, &mut page).unwrap();
        for (index, &id) in ids.iter().enumerate() {
            let row = self.truth.rows.get(&id).copied().unwrap_or_default();
            for (column, &value) in row.iter().enumerate() {
                assert_eq!(page.counter(index, column), value, "page, row {id}");
            }
            for which in 0..2 {
                let is_set = self.truth.flags[which].get(&id).is_some_and(|m| m.contains(&member));
                assert!(
                    !(is_set && page.flag(index, which) == Answer::No),
                    "page, false negative: {id}, {member}"
                );
            }
        }
        self.page = page;
    }
}

#[test]
fn random_commands_do_what_plain_maps_do() {
    let steps = seeds::given("TIDEMARK_STEPS").unwrap_or(1_000_000);
    for seed in seeds::seeds(3) {
        eprintln!("seed {seed}, {steps} steps");
        let mut run = Run::new(seed);
        for step in 0..steps {
            let before = run.rng.get_seed();
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.step()));
            if let Err(panic) = outcome {
                eprintln!("TIDEMARK_SEED={seed}: step {step} (generator at {before}) failed");
                std::panic::resume_unwind(panic);
            }
        }
        // Checks everything once more.
        let ids: Vec<u64> = run.truth.rows.keys().copied().collect();
        ids.into_iter().for_each(|id| run.row(id));
        for which in 0..2 {
            let pairs: Vec<(u64, u64)> = run.truth.flags[which]
                .iter()
                .flat_map(|(&id, m)| m.iter().map(move |&m| (id, m)))
                .collect();
            pairs.into_iter().for_each(|(id, member)| run.flag(which, id, member));
        }
        // Checks that the intended events have occurred.
        let post = run.engines.counter(b"post").unwrap().tables();
        assert!(post.len() > 20, "only {} counter tables", post.len());
        assert!(post.iter().map(|t| t.aux_entries).sum::<u64>() > 100, "no aux overflow");
        assert!(run.horizons > 20, "only {} recycled tables", run.horizons);
        let rate = run.truth.wrong as f64 / run.truth.asked as f64;
        eprintln!(
            "seed {seed}: {} rows, {} horizons, false yes {:.3} %",
            run.truth.rows.len(),
            run.horizons,
            rate * 100.0
        );
        let margin = 4.0 * (RATE / run.truth.asked as f64).sqrt();
        assert!(rate <= RATE + margin, "false yes {rate} of {}", run.truth.asked);
    }
}
