//! Compares random calls with a plain map. Tables are tiny, so they are constantly closed, split
//! and rewritten. Rows often find no slot, and values often outgrow their fields. Some ids are far
//! above all others, and the schema changes. A failure prints its seed; `cargo xtask model counter
//! --seed 7` replays that seed. `--steps` sets the steps per seed, `--runs` the number of seeds.

use counter::{Alteration, Bounds, Change, Error, Options, Schema, Space};
use std::collections::{BTreeMap, BTreeSet};

struct Model {
    rows: BTreeMap<u64, Vec<i64>>,
    schema: Schema,
}

impl Model {
    /// Returns the row under the current schema, with zeros for dropped fields and missing rows.
    fn row(&self, id: u64) -> Vec<i64> {
        let mut row = self.rows.get(&id).cloned().unwrap_or_default();
        row.resize(self.schema.width(), 0);
        for (value, field) in row.iter_mut().zip(self.schema.fields()) {
            if field.dropped {
                *value = 0;
            }
        }
        row
    }
}

/// Generator of ids.
struct Ids {
    rng: fastrand::Rng,
    next: u64,
    kind: u64,
}

impl Ids {
    fn pick(&mut self) -> u64 {
        let reach = self.rng.u32(1..24);
        let jump = self.rng.u32(20..50);
        let rng = &mut self.rng;
        match (self.kind, rng.u32(0..100)) {
            // Ascending ids with some late ids, like posts.
            (0, 0..40) => {
                self.next += rng.u64(1..8192);
                self.next
            }
            (0, 40..97) => self.next.saturating_sub(rng.u64(0..1 << reach)),
            // Dense ids.
            (1, 0..30) => {
                self.next += 1;
                self.next
            }
            (1, 30..97) => self.next - rng.u64(0..self.next.min(3000)),
            // Ids in random order.
            (2, 0..97) => rng.u64(0..6000) << 33 | 77,
            // Descending ids.
            (3, 0..50) => {
                self.next -= rng.u64(1..4096).min(self.next);
                self.next
            }
            (3, 50..97) => self.next.saturating_add(rng.u64(0..1 << reach)),
            // The ids sometimes jump far ahead.
            (4, 0) => {
                self.next = self.next.saturating_add(rng.u64(0..1 << jump));
                self.next
            }
            (4, 1..40) => {
                self.next += rng.u64(0..1000);
                self.next
            }
            (4, 40..97) => self.next.saturating_sub(rng.u64(0..500_000)),
            // A few fixed ids far from all others, including both ends of the id range.
            (_, 97) => [u64::MAX, 0, u64::MAX - 1, 1 << 63, 1][rng.usize(0..5)],
            (_, 98) => u64::MAX / 64 * rng.u64(0..64),
            _ => rng.u64(0..1000),
        }
    }
}

fn value(rng: &mut fastrand::Rng) -> i64 {
    match rng.u32(0..12) {
        0 => -rng.i64(0..100),
        1 => rng.i64(..),
        2 => [i64::MAX, i64::MIN, 1 << 26, (1 << 26) - 1, -1][rng.usize(0..5)],
        3 => rng.i64(0..1 << 20),
        4 => 1 << rng.u32(0..63),
        _ => rng.i64(0..20),
    }
}

fn expected_sum(old: i64, delta: i64, bounds: &Bounds) -> Result<i64, Error> {
    let sum = i128::from(old) + i128::from(delta);
    let low = bounds.min.map(|min| min.min(old)).filter(|_| delta < 0);
    let high = bounds.max.map(|max| max.max(old)).filter(|_| delta >= 0);
    let held = sum.max(low.map_or(i128::MIN, i128::from)).min(high.map_or(i128::MAX, i128::from));
    let whole = i64::try_from(sum).map_err(|_| Error::Overflow);
    if held == sum {
        whole
    } else if bounds.saturate {
        Ok(held as i64)
    } else {
        whole.and(Err(Error::Bounds))
    }
}

fn check_all(space: &Space, model: &Model, what: &str) {
    let mut walked = BTreeMap::new();
    space.for_each(|id, row| {
        walked.insert(id, row.to_vec());
    });
    assert!(walked.keys().eq(model.rows.keys()), "{what}: the scan has the same ids");
    let ids: Vec<u64> = model.rows.keys().copied().collect();
    let (mut rows, mut found) = (vec![], vec![]);
    space.get_batch(&ids, &mut rows, &mut found).unwrap();
    for (i, &id) in ids.iter().enumerate() {
        let width = model.schema.width();
        assert!(found[i], "{what}: {id} exists");
        assert_eq!(rows[i * width..][..width], model.row(id), "{what}: row {id}");
        assert_eq!(walked[&id], model.row(id), "{what}: scanned row {id}");
    }
    // Includes absent neighbours, many of which match the first byte of a stored tag.
    let asked: Vec<u64> = ids.iter().flat_map(|&id| [id, id.wrapping_add(1)]).collect();
    (rows, found) = (vec![], vec![]);
    space.get_batch(&asked, &mut rows, &mut found).unwrap();
    for (i, id) in asked.iter().enumerate() {
        let row = &rows[i * model.schema.width()..][..model.schema.width()];
        assert_eq!(found[i], model.rows.contains_key(id), "{what}: existence of {id}");
        assert!(
            found[i] || row.iter().all(|&value| value == 0),
            "{what}: {id} does not exist, but has {row:?}"
        );
    }
    let tables = space.tables();
    let counted: u64 = tables.iter().map(|t| t.rows + t.draining_rows).sum();
    assert_eq!(counted + space.outlier_rows(), model.rows.len() as u64, "{what}: rows");
    assert_eq!(space.rows(), model.rows.len() as u64, "{what}: rows");
}

#[derive(Default, Debug)]
struct Seen {
    tables: usize,
    splits: usize,
    extend_rows: u64,
    aux_entries: u64,
    outliers: u64,
    alters: usize,
}

fn run(seed: u64, steps: u64, seen: &mut Seen) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let schemas = ["a:4 b:3", "like:12 repost:8 comment:8 read:16", "a:1", "a:64 b:1 c:30 d:2 e:5"];
    let schema = Schema::parse(schemas[rng.usize(0..schemas.len())]).unwrap();
    let options =
        Options { rows_per_table: rng.u64(50..1500), seed, ..Options::new(schema.clone()) };
    let space = Space::new(options).unwrap();
    let mut model = Model { rows: BTreeMap::new(), schema };
    let start = [0, 1 << 20, 3_631_614_501_919_378, u64::MAX >> 1][rng.usize(0..4)] + (1 << 40);
    let mut ids = Ids { rng: fastrand::Rng::with_seed(!seed), next: start, kind: seed % 5 };
    let mut out = vec![];
    let maintained = rng.u64(0..4);
    for step in 0..steps {
        let what = format!("seed {seed} step {step}");
        let id = ids.pick();
        let living: Vec<usize> = model.schema.living().map(|f| f.0).collect();
        let field = living[rng.usize(0..living.len())];
        match rng.u32(0..100) {
            0..55 => {
                let mut changes: Vec<Change> = (0..rng.usize(1..3))
                    .map(|_| Change { field, delta: value(&mut rng) })
                    .collect();
                changes.push(Change { field: living[rng.usize(0..living.len())], delta: 1 });
                let mut bounds = Bounds { min: None, max: None, saturate: rng.bool() };
                if rng.u32(0..5) == 0 {
                    bounds.min = Some(value(&mut rng)).filter(|_| rng.bool());
                    bounds.max = Some(value(&mut rng)).filter(|_| rng.bool());
                }
                let mut row = model.row(id);
                let mut sums = vec![];
                let expected = changes.iter().try_for_each(|c| {
                    row[c.field] = expected_sum(row[c.field], c.delta, &bounds)?;
                    sums.push(row[c.field]);
                    Ok(())
                });
                let result = space.add(id, &changes, &bounds, &mut out);
                assert_eq!(result, expected, "{what}: add {changes:?} {bounds:?} to {id}");
                if result.is_ok() {
                    assert_eq!(out, sums, "{what}");
                    model.rows.insert(id, row);
                }
            }
            55..65 => {
                let cells = [
                    (field, value(&mut rng)),
                    (living[rng.usize(0..living.len())], value(&mut rng)),
                ];
                let mut row = model.row(id);
                let fields: BTreeSet<usize> = cells.iter().map(|cell| cell.0).collect();
                let new_fields = fields.iter().filter(|field| row[**field] == 0).count();
                cells.iter().for_each(|c| row[c.0] = c.1);
                assert_eq!(space.set(id, &cells), Ok(new_fields), "{what}");
                model.rows.insert(id, row);
            }
            65..72 => assert_eq!(
                space.delete(id).unwrap(),
                model.rows.remove(&id).is_some(),
                "{what}: delete {id}"
            ),
            72..80 => {
                if rng.u32(0..4) == 0 {
                    space.put(id, None).unwrap();
                    model.rows.remove(&id);
                } else {
                    let row: Vec<i64> =
                        (0..rng.usize(0..=model.schema.width())).map(|_| value(&mut rng)).collect();
                    space.put(id, Some(&row)).unwrap();
                    model.rows.insert(id, row);
                    let row = model.row(id);
                    model.rows.insert(id, row);
                }
            }
            80..98 => {
                let mut row = vec![9; model.schema.width() + rng.usize(0..2)];
                assert_eq!(
                    space.get(id, &mut row).unwrap(),
                    model.rows.contains_key(&id),
                    "{what}: {id}"
                );
                assert_eq!(row[..model.schema.width()], model.row(id), "{what}: {id}");
                assert_eq!(space.exists(id).unwrap(), model.rows.contains_key(&id), "{what}: {id}");
            }
            _ if rng.u64(0..steps / 500) == 0 => {
                let name = model.schema.fields()[field].name.clone();
                let change = match rng.u32(0..3) {
                    0 => Alteration::Add {
                        name: format!("n{step}"),
                        width: rng.u8(1..20),
                        bounds: Default::default(),
                    },
                    1 => Alteration::Widen { name, width: rng.u8(1..40) },
                    _ => Alteration::Drop { name },
                };
                if let Ok(schema) = space.alter(&change) {
                    seen.alters += 1;
                    model.schema = (*schema).clone();
                    for id in model.rows.keys().copied().collect::<Vec<_>>() {
                        let row = model.row(id);
                        model.rows.insert(id, row);
                    }
                }
            }
            _ => {}
        }
        if maintained > 0 && step % (maintained * 37) == 0 {
            space.maintain();
        }
        if step % 501 == 0 {
            space.settle();
        }
        if step % (steps / 10) == 0 {
            check_all(&space, &model, &what);
        }
        if step % 1000 == 0 {
            for table in space.tables() {
                seen.extend_rows = seen.extend_rows.max(table.extend_rows);
                seen.aux_entries = seen.aux_entries.max(table.aux_entries);
                seen.splits += usize::from(table.draining_rows > 0);
            }
            seen.outliers = seen.outliers.max(space.outlier_rows());
        }
    }
    check_all(&space, &model, &format!("seed {seed} at the end"));
    let mut turns = 0;
    while space.maintain() {
        turns += 1;
        assert!(turns < 100_000, "seed {seed}: background work ends");
    }
    check_all(&space, &model, &format!("seed {seed} maintained"));
    for table in space.tables() {
        assert!(
            table.extend_rows <= 16.max(table.rows / 200) || table.last == u64::MAX,
            "seed {seed}: {table:?}"
        );
        assert!(
            table.schema == model.schema.to_string(),
            "seed {seed}: newest schema at the end: {table:?}"
        );
    }
    if std::env::var("MODEL_TALK").is_ok() {
        let kind = ids.kind;
        eprintln!(
            "seed {seed} kind {kind}: {} tables, {} rows, {} bytes",
            space.tables().len(),
            space.rows(),
            space.memory_bytes()
        );
    }
    seen.tables = seen.tables.max(space.tables().len());
    for (id, _) in std::mem::take(&mut model.rows) {
        assert!(space.delete(id).unwrap());
    }
    check_all(&space, &model, &format!("seed {seed} emptied"));
}

#[test]
fn all_operations_match_a_map() {
    let steps = seeds::given("TIDEMARK_STEPS").unwrap_or(20_000);
    let mut seen = Seen::default();
    for seed in seeds::seeds_at_least(8, 40) {
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, steps, &mut seen)));
        if let Err(panic) = result {
            eprintln!("failed with TIDEMARK_SEED={seed} TIDEMARK_STEPS={steps}");
            std::panic::resume_unwind(panic);
        }
    }
    eprintln!("{seen:?}");
    // A single seed does not reach all cases.
    assert!(
        seeds::is_replay()
            || seen.tables > 10
                && seen.splits > 0
                && seen.extend_rows > 16
                && seen.outliers > 60
                && seen.alters > 10,
        "{seen:?}"
    );
}
