//! Runs readers and writers at full speed on tables that are constantly closed, split and
//! rewritten.

use counter::{Alteration, Bounds, Change, Error, Options, Schema, Space, TableStats};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

fn space(schema: &str, rows_per_table: u64) -> Space {
    Space::new(Options { rows_per_table, ..Options::new(Schema::parse(schema).unwrap()) }).unwrap()
}

/// Of a million concurrent decrements of a stock of 100, exactly 100 succeed.
#[test]
fn a_stock_is_never_oversold() {
    let space = space("left:4", 1 << 10);
    space.set(7, &[(0, 100)]).unwrap();
    let sold = AtomicU64::new(0);
    let floor = Bounds { min: Some(0), ..Bounds::default() };
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                let mut out = vec![];
                for _ in 0..250_000 {
                    match space.add(7, &[Change { field: 0, delta: -1 }], &floor, &mut out) {
                        Ok(()) => sold.fetch_add(1, SeqCst),
                        Err(Error::Bounds) => continue,
                        Err(error) => panic!("{error}"),
                    };
                }
            });
        }
    });
    let mut row = [9];
    assert!(space.get(7, &mut row).unwrap());
    assert_eq!((sold.into_inner(), row), (100, [0]));
}

/// Statistics read during a rewrite are consistent. Either the old table counts its rows and bytes,
/// or the replacement counts them as draining.
#[test]
fn figures_of_a_table_are_of_one_moment() {
    const ROWS: u64 = 20_000;
    let space = space("a:12", 1 << 20);
    (0..ROWS).for_each(|id| _ = space.set(id, &[(0, -1)]).unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let (space, stop) = (&space, &stop);
        s.spawn(move || {
            for width in (12..14).cycle().take_while(|_| !stop.load(SeqCst)) {
                space.alter(&Alteration::Widen { name: "a".to_owned(), width }).unwrap();
                while space.maintain() {}
                // A realistic pause between rewrites.
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let looks = std::iter::repeat_with(|| space.tables());
        let whole = looks.filter(|tables| tables.iter().all(|table| table.draining_bytes == 0));
        let sum =
            |tables: &[TableStats], f: fn(&TableStats) -> u64| tables.iter().map(f).sum::<u64>();
        let figures =
            whole.map(|tables| (sum(&tables, |t| t.rows), sum(&tables, |t| t.aux_entries)));
        let wrong = figures.take(300).find(|&figures| figures != (ROWS, ROWS));
        stop.store(true, SeqCst);
        assert_eq!(wrong, None);
    });
}

/// All fields of a row are equal, in any mix of inline and aux values. Ids arrive in any order, so
/// tables are closed, split and rewritten. No reader sees unequal fields, a missing id, or a
/// counter that decreases.
fn no_reader_sees_a_torn_or_missing_row(schema: &str, scale: i64, order: fn(u64) -> u64) {
    const IDS: u64 = 20_000;
    let space = space(schema, 1500);
    let width = space.schema().width();
    let stop = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    let changes: Vec<Change> = (0..width).map(|field| Change { field, delta: scale }).collect();
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..2u64)
            .map(|seed| {
                let (space, changes, written) = (&space, &changes, &written);
                s.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed);
                    let mut out = vec![];
                    for i in 0..IDS {
                        // Both writers write the same ids, and write old ids repeatedly.
                        space.add(order(i), changes, &Bounds::default(), &mut out).unwrap();
                        written.fetch_max(i, SeqCst);
                        for _ in 0..4 {
                            space
                                .add(order(rng.u64(0..=i)), changes, &Bounds::default(), &mut out)
                                .unwrap();
                            assert!(out.iter().all(|v| *v == out[0]));
                        }
                    }
                })
            })
            .collect();
        s.spawn(|| {
            while !stop.load(SeqCst) {
                space.settle();
                if !space.maintain() {
                    std::thread::yield_now();
                }
            }
        });
        s.spawn(|| {
            while !stop.load(SeqCst) {
                let upto = written.load(SeqCst);
                let mut ids = std::collections::HashSet::new();
                space.for_each(|id, row| {
                    assert!(row.iter().all(|v| *v == row[0]), "torn row in a scan: {row:?}");
                    ids.insert(id);
                });
                for i in 0..upto {
                    assert!(ids.contains(&order(i)), "the scan missed id {}", order(i));
                }
            }
        });
        for seed in 0..2 {
            let (space, stop, written) = (&space, &stop, &written);
            s.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(100 + seed);
                let (mut rows, mut found) = (vec![], vec![]);
                while !stop.load(SeqCst) {
                    let upto = written.load(SeqCst);
                    let ids: Vec<u64> = (0..20).map(|_| order(rng.u64(0..=upto))).collect();
                    let mut before = vec![0; width];
                    space.get(ids[3], &mut before).unwrap();
                    rows.clear();
                    found.clear();
                    space.get_batch(&ids, &mut rows, &mut found).unwrap();
                    for (i, row) in rows.chunks(width).enumerate() {
                        assert!(row.iter().all(|v| *v == row[0]), "torn: {row:?}");
                        assert!(upto == 0 || found[i], "id {} vanished", ids[i]);
                    }
                    assert!(rows[3 * width].abs() >= before[0].abs(), "a counter decreased");
                }
            });
        }
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, SeqCst);
    });
    let mut total = 0;
    space.for_each(|_, row| total += row[0]);
    assert_eq!(total, scale * 2 * 5 * IDS as i64, "no write was lost");
    assert_eq!(space.rows(), IDS);
}

#[test]
fn rising_ids() {
    no_reader_sees_a_torn_or_missing_row("a:16 b:16 c:16", 1, |i| (1 << 50) + i * 4096);
}

#[test]
fn shuffled_ids_whose_counters_outgrow_their_bits() {
    no_reader_sees_a_torn_or_missing_row("a:2 b:30 c:5 d:64", 1, |i| {
        i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20
    });
}

#[test]
fn falling_ids_with_negative_counters() {
    no_reader_sees_a_torn_or_missing_row("a:7 b:3", -1_000_000_007, |i| (1 << 40) - i * 100);
}

/// State of a row, published by its only writer.
#[derive(Default)]
struct ReportedRow {
    /// Incremented before a deletion and after a recreation; odd while the row may be missing.
    lives: AtomicU64,
    /// Lower bound of the value.
    value: AtomicI64,
    /// Bitmap of the fields whose value is at least `value`.
    fields: AtomicU64,
}

/// Fields are added, resized and dropped while rows are written, deleted, rewritten, split, read
/// and walked. The first two fields of a row always exist and are equal. Any other field has the
/// same value, or 0 if the row was not written since the field was added.
struct Altering {
    space: Space,
    rows: Vec<ReportedRow>,
    order: fn(u64) -> u64,
    written: AtomicU64,
    alterations: AtomicU64,
    stop: AtomicBool,
}

impl Altering {
    fn new(seed: u64) -> Altering {
        let schema =
            Schema::parse(["a:4 b:6", "a:12 b:8 c:8 d:16", "a:1 b:64 c:30"][seed as usize % 3])
                .unwrap();
        let orders: [fn(u64) -> u64; 3] = [
            |i| (1 << 50) + i * 4096,
            |i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20,
            |i| (1 << 40) - i * 100,
        ];
        Altering {
            space: Space::new(Options { rows_per_table: 1500, seed, ..Options::new(schema) })
                .unwrap(),
            rows: (0..12_000).map(|_| ReportedRow::default()).collect(),
            order: orders[seed as usize / 3 % 3],
            written: AtomicU64::new(0),
            alterations: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// Writes rows `which`, `which + 2`, ..., with growing values. Returns their final contents.
    fn write(&self, seed: u64, which: u64, steps: u64) -> HashMap<u64, (i64, u64)> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut model = HashMap::new();
        let mut value = 0;
        for step in 0..steps {
            value += rng.i64(1..200);
            let upto =
                (step * 2 * self.rows.len() as u64 / steps).clamp(1, self.rows.len() as u64 / 2);
            let i = 2 * rng.u64(0..upto) + which;
            let (told, id) = (&self.rows[i as usize], (self.order)(i));
            if rng.u32(0..50) == 0 {
                if told.lives.load(SeqCst) % 2 == 0 && model.contains_key(&i) {
                    told.lives.fetch_add(1, SeqCst);
                }
                assert_eq!(
                    self.space.delete(id).unwrap(),
                    model.remove(&i).is_some(),
                    "delete {id}"
                );
                continue;
            }
            let fields = loop {
                let schema = self.space.schema();
                let cells: Vec<(usize, i64)> =
                    schema.living().map(|(field, _)| (field, value)).collect();
                let fields = cells.iter().fold(0, |bits, cell| bits | 1 << cell.0);
                let written = if rng.u32(0..5) == 0 {
                    let mut row = vec![0; schema.width()];
                    cells.iter().for_each(|cell| row[cell.0] = value);
                    self.space.put(id, Some(&row))
                } else {
                    self.space.set(id, &cells).map(|_| ())
                };
                match written {
                    Ok(()) => break fields,
                    // The field has been dropped in the meantime.
                    Err(Error::NoField(_)) => continue,
                    Err(error) => panic!("{error}"),
                }
            };
            told.value.store(value, SeqCst);
            told.fields.store(fields, SeqCst);
            if model.insert(i, (value, fields)).is_none() && told.lives.fetch_add(1, SeqCst) == 0 {
                told.lives.fetch_add(1, SeqCst);
            }
            self.written.fetch_add(1, SeqCst);
        }
        model
    }

    fn alter(&self, seed: u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut next = 0;
        while !self.stop.load(SeqCst) {
            if self.written.load(SeqCst) < next {
                std::thread::yield_now();
                continue;
            }
            next = self.written.load(SeqCst) + rng.u64(1..4000);
            let schema = self.space.schema();
            let living: Vec<String> =
                schema.living().map(|(_, field)| field.name.clone()).collect();
            let change = match rng.u32(0..4) {
                0 | 1 => Alteration::Add {
                    name: format!("n{}", schema.width()),
                    width: rng.u8(1..20),
                    bounds: Default::default(),
                },
                2 => Alteration::Widen {
                    name: rng.choice(&living).unwrap().clone(),
                    width: rng.u8(1..40),
                },
                _ if living.len() > 2 => {
                    Alteration::Drop { name: living[rng.usize(2..living.len())].clone() }
                }
                _ => continue,
            };
            // The schema refuses too many fields or bits.
            self.alterations.fetch_add(u64::from(self.space.alter(&change).is_ok()), SeqCst);
        }
    }

    fn read(&self, seed: u64) -> u64 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut rows, mut found, mut reads) = (vec![], vec![], 0);
        while !self.stop.load(SeqCst) {
            let which: Vec<usize> = (0..20).map(|_| rng.usize(0..self.rows.len())).collect();
            let ids: Vec<u64> = which.iter().map(|&i| (self.order)(i as u64)).collect();
            let load = |i: &usize| {
                let told = &self.rows[*i];
                (told.lives.load(SeqCst), told.value.load(SeqCst), told.fields.load(SeqCst))
            };
            let before: Vec<_> = which.iter().map(load).collect();
            let mut view = self.space.read();
            let schema = view.schema().clone();
            let width = schema.width();
            rows.clear();
            found.clear();
            if rng.bool() {
                view.get_batch(&ids, &mut rows, &mut found).unwrap();
            } else {
                for &id in &ids {
                    let at = rows.len();
                    rows.resize(at + width, 0);
                    found.push(view.get(id, &mut rows[at..]).unwrap());
                }
            }
            reads += 20;
            let still = self.space.schema();
            for (i, row) in rows.chunks_exact(width).enumerate() {
                self.agree(ids[i], row);
                assert!(found[i] || row[0] == 0, "{} is missing, read {row:?}", ids[i]);
                let (lives, value, fields) = before[i];
                if lives % 2 == 1 || lives == 0 || self.rows[which[i]].lives.load(SeqCst) != lives {
                    continue;
                }
                assert!(found[i], "{} vanished", ids[i]);
                assert!(row[0] >= value, "{} decreased from {value}: {row:?}", ids[i]);
                for (field, _) in schema.living().filter(|(field, _)| fields >> field & 1 == 1) {
                    let dropped = still.fields()[field].dropped;
                    assert!(
                        dropped || row[field] == row[0],
                        "{} lost field {field}: {row:?}",
                        ids[i]
                    );
                }
            }
        }
        reads
    }

    fn agree(&self, id: u64, row: &[i64]) {
        // Load the schema after the row: a writer stops writing a dropped field only after it sees
        // the new schema.
        let still = self.space.schema();
        let fields = row.iter().zip(still.fields()).filter(|(_, field)| !field.dropped);
        assert!(
            row[0] == row[1] && fields.map(|f| f.0).all(|v| *v == row[0] || *v == 0),
            "{id} is torn: {row:?}"
        );
    }

    fn run(&self, seed: u64, steps: u64) -> u64 {
        let reads = AtomicU64::new(0);
        let models = std::thread::scope(|s| {
            let writers = [0, 1]
                .map(|which| s.spawn(move || self.write(seed * 10 + which, which, steps / 2)));
            s.spawn(|| self.alter(seed));
            s.spawn(|| {
                while !self.stop.load(SeqCst) {
                    self.space.settle();
                    if !self.space.maintain() {
                        std::thread::yield_now();
                    }
                }
            });
            s.spawn(|| {
                while !self.stop.load(SeqCst) {
                    self.space.for_each(|id, row| self.agree(id, row));
                }
            });
            for reader in 0..2 {
                let reads = &reads;
                s.spawn(move || reads.fetch_add(self.read(seed * 10 + 5 + reader), SeqCst));
            }
            let models = writers.map(|writer| writer.join());
            // Stop the other threads even if a writer failed; otherwise its panic would go
            // unnoticed.
            self.stop.store(true, SeqCst);
            models.map(|model| model.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        while self.space.maintain() {}
        let schema = self.space.schema();
        let [mut model, other] = models;
        model.extend(other);
        assert_eq!(self.space.rows(), model.len() as u64);
        let mut row = vec![0; schema.width()];
        for (i, (value, fields)) in model {
            assert!(self.space.get((self.order)(i), &mut row).unwrap());
            for (field, _) in schema.living() {
                assert_eq!(
                    row[field],
                    if fields >> field & 1 == 1 { value } else { 0 },
                    "field {field} of {i}"
                );
            }
        }
        assert!(
            self.space.tables().iter().all(|table| table.schema == schema.to_string()),
            "all rows have the newest schema"
        );
        reads.into_inner()
    }
}

/// `cargo xtask model concurrent --runs 90` runs more seeds. `--seed 7` runs a single seed;
/// `--steps` sets the number of writes per seed.
#[test]
fn fields_agree_while_the_schema_changes() {
    let steps = seeds::given("TIDEMARK_STEPS").unwrap_or(100_000);
    let seeds = seeds::seeds(9);
    let (mut alterations, mut reads, runs) = (0, 0, seeds.end - seeds.start);
    for seed in seeds {
        let altering = Altering::new(seed);
        let run =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| altering.run(seed, steps)));
        reads += run.unwrap_or_else(|panic| {
            eprintln!("failed with TIDEMARK_SEED={seed} TIDEMARK_STEPS={steps}");
            std::panic::resume_unwind(panic)
        });
        alterations += altering.alterations.load(SeqCst);
    }
    eprintln!("{runs} runs of {steps} writes, {reads} concurrent reads, {alterations} alterations");
    assert!(alterations > 5 * runs, "{alterations}");
}
