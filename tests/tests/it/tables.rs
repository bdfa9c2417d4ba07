//! Compares every number in TM.TABLES and INFO tables with a plain map of the same rows.

use std::collections::{BTreeMap, HashMap};
use tidemark_tests::{TestServer, eventually};

type Table = HashMap<String, String>;

const WIDTHS: [u32; 4] = [12, 8, 8, 16];
const FIELDS: [&str; 4] = ["like", "repost", "comment", "read"];

/// Returns whether a value needs the aux dictionary; the all-ones pattern is its marker.
fn escapes(value: i64, width: u32) -> bool {
    !(0..(1 << width) - 1).contains(&value)
}

fn tables(c: &mut redis::Connection) -> Vec<Table> {
    redis::cmd("TM.TABLES").arg("post").query(c).unwrap()
}

fn number(table: &Table, name: &str) -> f64 {
    table[name].parse().unwrap_or_else(|_| panic!("{name} of {table:?}"))
}

fn count(table: &Table, name: &str) -> u64 {
    table[name].parse().unwrap_or_else(|_| panic!("{name} of {table:?}"))
}

/// Adds posts: 5% late, 2% of the values wider than their field, some negative, some rows deleted
/// again.
fn load(c: &mut redis::Connection, rng: &mut fastrand::Rng, posts: u64) -> BTreeMap<u64, [i64; 4]> {
    let mut rows = BTreeMap::new();
    let mut pipe = redis::pipe();
    for i in 0..posts {
        let late = if rng.u32(0..20) == 0 { rng.u64(0..=i) } else { 0 };
        let id = (1 << 50) + ((i - late) << 12) + rng.u64(0..4096);
        let row = WIDTHS.map(|width| match rng.u32(0..100) {
            0 => -rng.i64(1..100),
            1 => rng.i64(0..1 << 40),
            2 => (1 << width) - 1 - i64::from(rng.bool()),
            _ => rng.i64(0..100),
        });
        let cells: Vec<(&str, i64)> = FIELDS.into_iter().zip(row).collect();
        pipe.cmd("CNT.SET").arg("post").arg(id).arg(cells).ignore();
        rows.insert(id, row);
        if i % 1000 == 999 {
            pipe.query::<()>(c).unwrap();
            pipe.clear();
        }
    }
    assert_eq!(posts % 1000, 0, "all posts are sent");
    let doomed: Vec<u64> = rows.keys().copied().filter(|_| rng.u32(0..30) == 0).collect();
    let deleted: u64 = redis::cmd("CNT.DEL").arg("post").arg(&doomed).query(c).unwrap();
    assert_eq!(deleted, doomed.len() as u64);
    rows.retain(|id, _| doomed.binary_search(id).is_err());
    rows
}

#[test]
fn every_figure_is_that_of_the_rows() {
    let server = TestServer::with(|config| config.counter[0].rows_per_table = 4096);
    let c = &mut server.connection();
    let mut rng = fastrand::Rng::with_seed(5);
    let rows = load(c, &mut rng, 40_000);
    // A table being rewritten counts twice, so wait until no rewrite remains.
    let (mut all, mut still) = (tables(c), 0);
    eventually("the tables stop changing", || {
        let before = std::mem::replace(&mut all, tables(c));
        still = if before == all && all.iter().all(|t| count(t, "draining_bytes") == 0) {
            still + 1
        } else {
            0
        };
        still == 40
    });
    assert!(all.len() > 8, "{} tables", all.len());

    let mut low = 0;
    for (i, table) in all.iter().enumerate() {
        assert_eq!((&table["space"][..], &table["where"][..]), ("post", "memory"));
        // Ranges have no gap and no overlap.
        assert_eq!(count(table, "low"), low, "{table:?}");
        let last = count(table, "last");
        low = last.wrapping_add(1);
        assert!((last == u64::MAX) == (i == all.len() - 1), "{table:?}");
        let here = rows.range(count(table, "low")..=last);
        let n = here.clone().count() as u64;
        assert_eq!(count(table, "rows"), n, "{table:?}");
        let extended = count(table, "extend_rows");
        let (capacity, fill) = (number(table, "capacity"), number(table, "fill"));
        assert!((fill - (n - extended) as f64 / capacity).abs() < 1e-3 && fill <= 1.0, "{table:?}");
        // The aux dictionary contains the values wider than their fields.
        let wide = here
            .flat_map(|(_, row)| row.iter().zip(WIDTHS))
            .filter(|(v, w)| escapes(**v, *w))
            .count() as u64;
        assert_eq!(count(table, "aux_entries"), wide, "{table:?}");
        assert!(count(table, "aux_bytes") >= wide * 8, "{table:?}");
        assert!(
            extended * 100 <= n && (extended == 0 || count(table, "extend_bytes") > extended * 8),
            "{table:?}"
        );
        // A lookup of a row in the extend dictionary searches seven buckets, then the dictionary.
        let (mean, p99, max) =
            (number(table, "probes_mean"), count(table, "probes_p99"), count(table, "probes_max"));
        if n == 0 {
            assert_eq!((mean, p99, max), (0.0, 0, 0), "{table:?}");
        } else {
            assert!((1.0..1.3).contains(&mean) && p99 <= max && mean <= max as f64, "{table:?}");
        }
        assert_eq!(max == 8, extended > 0, "{table:?}");
        // A table's bytes are its slots, headers and dictionaries.
        let bytes = number(table, "bytes");
        let beside = number(table, "aux_bytes") + number(table, "extend_bytes");
        assert!(bytes - beside >= capacity * number(table, "slot_bits") / 8.0, "{table:?}");
        // The remaining bytes are fixed costs: stripes, shards, and the unused rest of a page.
        assert!(
            bytes - beside <= capacity * number(table, "slot_bits") / 8.0 * 1.2 + 8192.0,
            "{table:?}"
        );
        assert!(
            (number(table, "bytes_per_row") - bytes / n.max(1) as f64).abs() < 0.01,
            "{table:?}"
        );
        assert_eq!(table["fields"], "like:12 repost:8 comment:8 read:16");
    }
    assert_eq!(all.iter().map(|t| count(t, "rows")).sum::<u64>(), rows.len() as u64);
    let (full, extended) = (
        all.iter().any(|t| number(t, "fill") > 0.85),
        all.iter().any(|t| count(t, "extend_rows") > 0),
    );
    assert!(full && extended, "no full table with an extension: {all:?}");

    // INFO shows the same numbers, and the space's totals are their sums.
    let info: String = redis::cmd("INFO").arg("tables").query(c).unwrap();
    for (i, table) in all.iter().enumerate() {
        let head = format!("table_post_{i}:");
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(&head))
            .unwrap_or_else(|| panic!("{head} in {info}"));
        let said: Vec<(&str, &str)> =
            line.split(',').filter_map(|field| field.split_once('=')).collect();
        let names = "low last rows fill probes_mean probes_p99 probes_max aux_entries aux_bytes \
                     extend_rows extend_bytes bytes bytes_per_row";
        assert!(said.iter().map(|field| field.0).eq(names.split(' ')), "{line}");
        for (name, value) in said {
            let same = value == table[name]
                || (value.parse::<f64>().unwrap() - number(table, name)).abs() <= 0.006
                    && value.contains('.');
            assert!(same, "{name}: {value} and {}", table[name]);
        }
    }
    let spaces: String = redis::cmd("INFO").arg("spaces").query(c).unwrap();
    let line = spaces
        .lines()
        .find_map(|line| line.strip_prefix("counter_post:"))
        .unwrap_or_else(|| panic!("{spaces}"));
    let of_space: HashMap<&str, u64> = line
        .split(',')
        .filter_map(|f| f.split_once('='))
        .map(|(name, n)| (name, n.parse().unwrap()))
        .collect();
    assert_eq!((of_space["rows"], of_space["tables"]), (rows.len() as u64, all.len() as u64));
    let bytes: u64 = all.iter().map(|t| count(t, "bytes")).sum();
    let taken = of_space["memory_bytes"];
    assert!(bytes <= taken && taken - bytes <= taken / 50, "{bytes} of {taken}");
}
