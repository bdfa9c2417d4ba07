//! Readers and writers at full speed on tables that roll, are rewritten and split all the time.
#![allow(clippy::unwrap_used)]

use counter::{Bounds, Change, Error, Options, Schema, Space};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

fn space(schema: &str, rows_per_table: u64) -> Space {
    Space::new(Options { rows_per_table, ..Options::new(Schema::parse(schema).unwrap()) }).unwrap()
}

/// A stock that must not be oversold: of a million concurrent decrements on 100 items exactly 100 succeed.
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
    assert!(space.get(7, &mut row));
    assert_eq!((sold.into_inner(), row), (100, [0]));
}

/// Every field of a row says the same, whatever mix of bits and aux entries holds it; ids come in every order, so that tables roll and
/// are rewritten under the readers. No reader sees fields that disagree, an id that vanished, or a counter that went back.
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
                        // Both writers write the same ids; and old ones again and again.
                        space.add(order(i), changes, &Bounds::default(), &mut out).unwrap();
                        written.fetch_max(i, SeqCst);
                        for _ in 0..4 {
                            space.add(order(rng.u64(0..=i)), changes, &Bounds::default(), &mut out).unwrap();
                            assert!(out.iter().all(|v| *v == out[0]));
                        }
                    }
                })
            })
            .collect();
        s.spawn(|| {
            while !stop.load(SeqCst) {
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
                    assert!(row.iter().all(|v| *v == row[0]), "torn in a walk: {row:?}");
                    ids.insert(id);
                });
                for i in 0..upto {
                    assert!(ids.contains(&order(i)), "the walk missed id {}", order(i));
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
                    space.get(ids[3], &mut before);
                    rows.clear();
                    found.clear();
                    space.get_batch(&ids, &mut rows, &mut found);
                    for (i, row) in rows.chunks(width).enumerate() {
                        assert!(row.iter().all(|v| *v == row[0]), "torn: {row:?}");
                        assert!(upto == 0 || found[i], "id {} vanished", ids[i]);
                    }
                    assert!(rows[3 * width].abs() >= before[0].abs(), "a counter went back");
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
    no_reader_sees_a_torn_or_missing_row("a:2 b:30 c:5 d:64", 1, |i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20);
}

#[test]
fn falling_ids_with_negative_counters() {
    no_reader_sees_a_torn_or_missing_row("a:7 b:3", -1_000_000_007, |i| (1 << 40) - i * 100);
}
