//! A hundred million likes through rolling tables: 30 % of them for posts whose table is closed
//! already, some unliked, some with absurd ids. Then every one of them is asked for: none may be
//! missing (no false no), no unliked one may be found.
//!
//! `cargo run --release -p tidemark-bench --bin phantom_replay`

use clap::Parser;
use phantom::{Answer, Change, Member, Options, Space};

/// Adds pairs, removes some, and asks for all.
#[derive(Parser)]
struct Args {
    /// Pairs to add.
    #[arg(long, default_value_t = 100_000_000)]
    pairs: u64,
    /// Configured error rate.
    #[arg(long, default_value_t = 0.0001)]
    rate: f64,
    /// Pairs in a grown table.
    #[arg(long, default_value_t = 10_000_000)]
    pairs_per_table: u64,
}

/// Likes per new post.
const LIKES: u64 = 10;
/// One in so many is unliked again.
const UNLIKED: u64 = 97;
/// One in so many has an id far ahead.
const STRAYS: u64 = 10_000_019;

fn mix(i: u64) -> u64 {
    let i = (i ^ (i >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let i = (i ^ (i >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    i ^ (i >> 31)
}

/// The i-th like. `behind`: how many posts back the late ones reach.
fn pair(i: u64, behind: u64) -> (u64, u64) {
    if i % STRAYS == STRAYS - 1 {
        return (u64::MAX - i, i);
    }
    let newest = i / LIKES;
    let dice = mix(i);
    let post = match dice % 10 {
        // Late: one to two tables back.
        0..3 => newest.saturating_sub(behind + mix(dice) % behind),
        _ => newest.saturating_sub(mix(dice) % 100),
    };
    (3_631_614_501_919_378 + post * 4096, i)
}

fn main() {
    let args = Args::parse();
    let behind = args.pairs_per_table / LIKES;
    let options = Options {
        false_positive_rate: args.rate,
        pairs_per_table: args.pairs_per_table,
        max_tables: 1000,
        max_revoked: 10_000_000,
        seed: 3,
        ..Options::default()
    };
    let space = Space::new(options).expect("small tables");
    let taken = |i: u64| i.is_multiple_of(UNLIKED);
    let (mut for_set, mut unliked) = (0u64, 0u64);
    for i in 0..args.pairs {
        let (id, member) = pair(i + 8, behind);
        space.prefetch(id, &Member::Number(member));
        let (id, member) = pair(i, behind);
        for_set += u64::from(
            space.add(id, &Member::Number(member)).expect("nothing is at a bound")
                == Change::Unchanged,
        );
        if i >= 1000 && taken(i - 1000) {
            let (id, member) = pair(i - 1000, behind);
            let done = space.remove(id, &Member::Number(member)).expect("nothing is at a bound");
            assert_eq!(done, Change::Changed, "pair {} was lost", i - 1000);
            unliked += 1;
        }
        if i.is_multiple_of(4096) {
            while space.maintain() {}
        }
    }
    let tables = space.tables();
    println!("{} pairs added, {unliked} unset; {for_set} were taken for set before", args.pairs);
    println!(
        "{:>3} tables  {:>10} {:>10} {:>6} {:>6} {:>10} {:>12}",
        tables.len(),
        "pairs",
        "early",
        "late",
        "fill",
        "extensions",
        "rate"
    );
    for table in &tables {
        let late = table.pairs.saturating_sub(table.early) as f64 / table.early.max(1) as f64;
        println!(
            "            {:>10} {:>10} {late:>6.3} {:>6.3} {:>10} {:>12.7}",
            table.pairs, table.early, table.fill, table.extensions, table.expected_rate
        );
    }
    let (mut missing, mut found) = (0u64, 0u64);
    for i in 0..args.pairs {
        let (id, member) = pair(i + 8, behind);
        space.prefetch(id, &Member::Number(member));
        let (id, member) = pair(i, behind);
        let answer = space.contains(id, &Member::Number(member)).expect("all is in memory");
        let gone = taken(i) && i + 1000 < args.pairs;
        missing += u64::from(!gone && answer != Answer::Yes);
        found += u64::from(gone && answer != Answer::No);
    }
    let bits = space.memory_bytes() as f64 * 8.0 / args.pairs as f64;
    println!(
        "{missing} false no, {found} unset pairs found; {bits:.1} bits per pair, all memory counted"
    );
    assert!(missing == 0 && found == 0);
}
