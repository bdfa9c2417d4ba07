//! A bulk load of a saved space yields the same rows, and the loaded space behaves like the
//! original.

use counter::{Alteration, LoadRange, Options, Schema, Space};
use std::collections::BTreeMap;

const BASE: u64 = 3_631_614_501_919_378;

fn options(rows_per_table: u64) -> Options {
    Options {
        rows_per_table,
        ..Options::new(Schema::parse("like:12 repost:8 comment:8 read:16").unwrap())
    }
}

fn settle(space: &Space) {
    while space.wants_maintenance() && space.maintain() {}
}

/// Returns a value that usually fits into its field, sometimes needs an aux entry, and rarely is
/// very large.
fn value(rng: &mut fastrand::Rng) -> i64 {
    match rng.u32(0..100) {
        0 => [-1, i64::MIN, i64::MAX, 1 << 40][rng.usize(0..4)],
        1..6 => rng.i64(0..100_000),
        _ => rng.i64(0..255),
    }
}

/// Loads a copy as a snapshot does: table by table, then the head.
fn reload(
    from: &Space,
    into: Options,
    wrong_rows: Option<u64>,
    with_head: bool,
    rng: &mut fastrand::Rng,
) -> Space {
    let tables: Vec<(u64, u64)> = from.tables().iter().map(|t| (t.low, t.last)).collect();
    let rows_of = |&(low, last): &(u64, u64)| {
        let mut rows: Vec<(u64, Vec<i64>)> = vec![];
        from.for_each_in(low, last, |id, row| rows.push((id, row.to_vec())));
        // A walk may visit a row twice; the later version wins.
        for _ in 0..rows.len() / 50 {
            let (id, row) = rows[rng.usize(0..rows.len())].clone();
            rows.insert(0, (id, row.iter().map(|v| v ^ 1).collect()));
        }
        rows
    };
    let rows: Vec<Vec<(u64, Vec<i64>)>> = tables.iter().map(rows_of).collect();
    let head = if with_head { from.encode_head() } else { vec![] };
    let range = |(&(low, last), rows): (&(u64, u64), &Vec<_>)| LoadRange {
        low,
        last,
        rows: wrong_rows.unwrap_or(rows.len() as u64),
    };
    let ranges: Vec<LoadRange> = tables.iter().zip(&rows).map(range).collect();
    let space = Space::new(into).unwrap();
    let loader = space.loader(&head, &ranges).unwrap();
    std::thread::scope(|s| {
        for (range, rows) in ranges.iter().zip(&rows) {
            let loader = &loader;
            s.spawn(move || {
                for chunk in rows.chunks(1000) {
                    let mut part = loader.part(range.low).unwrap();
                    chunk.iter().for_each(|(id, row)| part.push(*id, row).unwrap());
                }
            });
        }
    });
    assert!(loader.part(BASE + 1).is_none());
    loader.install().unwrap();
    space
}

fn assert_same(space: &Space, model: &BTreeMap<u64, Vec<i64>>, what: &str) {
    let mut row = vec![0; space.schema().width()];
    for (&id, values) in model {
        assert!(space.get(id, &mut row).unwrap(), "{what}: {id} is missing");
        assert_eq!(row, *values, "{what}: {id}");
    }
    let mut found = BTreeMap::new();
    space.for_each(|id, row| drop(found.insert(id, row.to_vec())));
    assert_eq!(found.len(), model.len(), "{what}: rows that were never written");
}

#[test]
fn a_loaded_space_is_the_one_that_was_written_out() {
    for seed in 0..4 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (space, shuffled) = (Space::new(options(4096)).unwrap(), seed % 2 == 1);
        let mut model: BTreeMap<u64, Vec<i64>> = BTreeMap::new();
        for i in 0..20_000u64 {
            let id = match rng.u32(0..200) {
                0 => rng.u64(..),
                1 => u64::MAX - rng.u64(0..3),
                2 => rng.u64(0..3),
                _ if shuffled => BASE + rng.u64(0..30_000) * 4096,
                // Late ids between ascending ids.
                3..10 => BASE + rng.u64(0..i + 1) * 4096,
                _ => BASE + i * 4096,
            };
            let row: Vec<i64> = (0..4).map(|_| value(&mut rng)).collect();
            space.put(id, Some(&row)).unwrap();
            model.insert(id, row);
            if i % 1000 == 0 {
                settle(&space);
            }
        }
        if seed >= 2 {
            // Create tables with several schemas. The older tables have no bits for the new field.
            space.alter(&Alteration::Drop { name: "repost".into() }).unwrap();
            space
                .alter(&Alteration::Add {
                    name: "share".into(),
                    width: 9,
                    bounds: Default::default(),
                })
                .unwrap();
            for (i, (&id, row)) in model.iter_mut().enumerate() {
                row[1] = 0;
                row.push(0);
                if i % 3 == 0 {
                    row[4] = value(&mut rng);
                    space.set(id, &[(4, row[4])]).unwrap();
                }
            }
        }
        assert_same(&space, &model, "before");
        let schema = (*space.schema()).clone();
        for (wrong_rows, with_head) in
            [(None, true), (Some(0), true), (Some(1 << 16), true), (None, false)]
        {
            let what = format!("seed {seed}, rows {wrong_rows:?}, head {with_head}");
            let mut model = model.clone();
            let made = Options { schema: schema.clone(), ..options(4096) };
            let loaded = reload(&space, made, wrong_rows, with_head, &mut rng);
            assert_same(&loaded, &model, &what);
            // Add more rows, with higher ids and with late ids.
            let newest = loaded.tables().len();
            for i in 20_000..40_000u64 {
                let id = BASE + if i % 20 == 0 { rng.u64(0..i) } else { i } * 4096;
                let row: Vec<i64> = (0..schema.width())
                    .map(|f| if schema.fields()[f].dropped { 0 } else { value(&mut rng) })
                    .collect();
                loaded.put(id, Some(&row)).unwrap();
                model.insert(id, row);
                settle(&loaded);
            }
            assert_same(&loaded, &model, &what);
            if !shuffled && wrong_rows != Some(1 << 16) {
                assert!(loaded.tables().len() >= newest + 3, "{what}: it no longer rolls");
            }
        }
    }
}

/// A loaded space takes no more memory than a space whose tables were filled in id order.
#[test]
fn a_loaded_space_is_no_larger_than_it_was() {
    let space = Space::new(options(20_000)).unwrap();
    for i in 0..200_000 {
        space.put(BASE + i * 4096, Some(&[i as i64 & 0xff, 0, 1, 2])).unwrap();
    }
    settle(&space);
    let loaded = reload(&space, options(20_000), None, true, &mut fastrand::Rng::with_seed(1));
    settle(&loaded);
    let (before, after) = (space.memory_bytes() as f64, loaded.memory_bytes() as f64);
    // Allow for one more page, for an extend dictionary that did not exist before.
    assert!(after < before * 1.04, "{before} bytes became {after}");
}

#[test]
fn a_head_is_one_or_is_refused() {
    let space = Space::new(options(4096)).unwrap();
    let head = space.encode_head();
    assert!(space.loader(&head, &[]).is_ok());
    for cut in 1..head.len() {
        assert!(space.loader(&head[..cut], &[]).is_err(), "{cut}");
    }
    for at in [0, 7, 8, 56] {
        let mut bad = head.clone();
        bad[at] ^= 4;
        assert!(space.loader(&bad, &[]).is_err(), "{at}");
    }
    assert!(space.loader(&[head, vec![0]].concat(), &[]).is_err());
}
