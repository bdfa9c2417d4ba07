//! Reads of a feed: posts arrive at a steady rate, and each is read at exponentially distributed
//! ages. A table must leave room for the reads that come after it was closed.

use phantom::{Member, Options, Space, TableStats};

/// First id. It resembles a timestamp in microseconds.
const FIRST_ID: u64 = 5_000_000_000_000_000;
const PAGE_POSTS: u64 = 20;

/// Adds `pairs` reads of posts: `reads` per post, at a mean age of `mean_age` posts, in pages of
/// neighbouring posts. Returns the tables. The numbers of posts and reads, and the tables, are a
/// hundredth of the size of a real feed.
fn read_feed(reads: u64, mean_age: f64, pairs: u64) -> Vec<TableStats> {
    let options = Options { pairs_per_table: 84_000, max_tables: 64, ..Options::default() };
    let limit = Some(64 << 20);
    let space = Space::new(Options { memory_limit_bytes: limit, seed: 9, ..options }).unwrap();
    let mut rng = fastrand::Rng::with_seed(4);
    let (mut posts, mut sent) = (0, 0);
    while sent < pairs {
        posts += PAGE_POSTS;
        for _ in 0..reads {
            let age = (-mean_age * (1.0 - rng.f64()).ln()) as u64;
            let top = (posts - 1).checked_sub(age).unwrap_or_else(|| rng.u64(..posts));
            let viewer = Member::Number(rng.u64(..1 << 30));
            for post in top.saturating_sub(PAGE_POSTS - 1)..=top {
                space.add(FIRST_ID + post * 1000, &viewer).unwrap();
                sent += 1;
            }
        }
        while space.maintain() {}
    }
    space.tables()
}

/// Number of tables that close before the space has seen late reads.
const FIRST_TABLES: usize = 4;

#[test]
fn tables_are_planned_for_late_reads() {
    // The columns are reads per post, mean age in posts, total number of reads, and maximum bits
    // per pair.
    for (reads, mean_age, pairs, most_bits) in
        [(400, 100.0, 1_200_000, 29.0), (200, 1000.0, 1_800_000, 28.0)]
    {
        let tables = read_feed(reads, mean_age, pairs);
        let list: Vec<_> = tables.iter().map(|t| (t.pairs, t.capacity, t.extensions)).collect();
        let bytes = tables.iter().map(|table| table.bytes).sum::<usize>() as f64;
        let pairs = tables.iter().map(|table| table.pairs).sum::<u64>() as f64;
        let bits = 8.0 * bytes / pairs;
        println!("{reads} reads, mean age {mean_age}: {bits:.1} bits a pair, {list:?}");
        assert!(list.len() > 3 * FIRST_TABLES && bits < most_bits, "{bits}: {list:?}");
        let planned = &tables[FIRST_TABLES..];
        let extensions = planned.iter().map(|table| table.extensions);
        assert!(extensions.clone().all(|number| number <= 2), "{list:?}");
        assert!(extensions.sum::<usize>() < planned.len(), "{list:?}");
    }
}
