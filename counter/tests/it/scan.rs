//! Tests that scans of a space terminate and return every row that exists during the whole scan.

use counter::{Options, Schema, Space};
use std::collections::BTreeMap;

fn space(rows_per_table: u64) -> Space {
    Space::new(Options { rows_per_table, ..Options::new(Schema::parse("a:12 b:8").unwrap()) })
        .unwrap()
}

/// Returns how often a scan in steps of `most` returned each id.
fn scanned(space: &Space, most: u64) -> BTreeMap<u64, u32> {
    let mut given = BTreeMap::new();
    let (mut cursor, mut calls) = (0, 0);
    loop {
        cursor = space.scan(cursor, most, |id| *given.entry(id).or_insert(0) += 1);
        calls += 1;
        if cursor == 0 {
            return given;
        }
        assert!(
            cursor < 1 << 41 && calls < 200_000,
            "the scan loops: {} ids returned so far",
            given.len()
        );
    }
}

/// A rewrite may pause indefinitely while memory is short.
#[test]
fn a_scan_ends_while_a_split_stands_still() {
    let space = space(4000);
    let ids: Vec<u64> = (0..6000u64).map(|i| (1 << 40) + i * 7919 % 6000 * 100).collect();
    ids.iter().for_each(|&id| _ = space.set(id, &[(0, 1)]).unwrap());
    // Run rewrite steps until one table is being split into several.
    let drains = || space.tables().iter().any(|t| t.draining_rows > 0) && space.tables().len() > 2;
    while !drains() {
        assert!(space.maintain(), "no table was split: {:#?}", space.tables());
    }
    for most in [1, 10, 1000, 100_000] {
        let given = scanned(&space, most);
        assert!(
            given.len() == ids.len() && given.values().all(|&times| times == 1),
            "{most}: {}",
            given.len()
        );
    }
}

/// With this many tables, at least two have the same name in scan cursors.
#[test]
fn a_scan_ends_among_thousands_of_tables() {
    let space = space(1000);
    for i in 0..6000 {
        space.put((1 << 40) + i, Some(&[1, 2])).unwrap();
        if space.frontier().is_some() {
            space.roll_now().unwrap();
        }
    }
    assert!(space.tables().len() > 1500, "{}", space.tables().len());
    assert!(scanned(&space, 1).into_iter().eq((0..6000).map(|i| ((1 << 40) + i, 1))));
}
