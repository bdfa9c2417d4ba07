//! The error rate of full tables, for pairs of every shape, and what a pair takes.
//!
//! `cargo run --release -p tidemark-bench --bin phantom_fpr`

use clap::Parser;
use phantom::{Answer, Member, Options, Space};
use std::collections::HashSet;
use std::io::Read;

/// Measures error rates at the moment when a table is full: for each shape of pairs in one table
/// for each seed, and in all of these together.
#[derive(Parser)]
struct Args {
    /// Pairs in the table, about.
    #[arg(long, default_value_t = 10_000_000)]
    pairs: u64,
    /// Pairs that were never set, and are asked for; when there are more than pairs in the table,
    /// by other users of the same ids.
    #[arg(long, default_value_t = 10_000_000)]
    probes: u64,
    /// Secret of the hash: the first.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// So many seeds.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// The configured rates.
    #[arg(long, value_delimiter = ',', default_value = "0.01,0.001,0.0001")]
    rates: Vec<f64>,
}

type Pairs = Vec<(u64, u64)>;
type Shape = (&'static str, fn(u64) -> (u64, u64));

fn main() {
    let args = Args::parse();
    let n = args.pairs;
    let shapes: [Shape; 6] = [
        ("sequential ids", |i| ((1 << 40) + i, 7)),
        ("sequential users", |i| (1 << 40, i)),
        ("ids with equal low bits", |i| ((i << 38) | 12_345, 99)),
        ("ids with equal high bits", |i| ((77 << 40) | (i / 3), i % 3)),
        ("users with equal low bits", |i| (1 << 41, i << 38)),
        ("snowflakes, 20 users each", |i| {
            (3_631_614_501_919_378 + (i / 20) * 4096, 833_933_534_602 + i * 37)
        }),
    ];
    println!(
        "{:<10} {:<28} {:>9} {:>7} {:>11} {:>10} {:>9}",
        "configured", "pairs", "in table", "fill", "bits/pair", "measured", "share"
    );
    let seeds = || args.seed..args.seed + args.seeds;
    for rate in args.rates.iter().copied() {
        let mut all = (0, 0);
        for (name, shape) in shapes {
            let mut of_shape = (0, 0);
            for seed in seeds() {
                // Every other one is set; those between are as alike as can be.
                let never = (0..args.probes).map(|i| {
                    let (id, member) = shape(2 * (i % n) + 1);
                    (id, member ^ (i / n) << 56)
                });
                let (yes, asked) = measure(seed, rate, name, n, |i| shape(2 * i), never);
                of_shape = (of_shape.0 + yes, of_shape.1 + asked);
            }
            if args.seeds > 1 {
                sum_up(rate, name, of_shape);
            }
            all = (all.0 + of_shape.0, all.1 + of_shape.1);
        }
        sum_up(rate, "all of these shapes", all);
        match real_pairs() {
            None => println!("skipped: shared/data/weibo_reposts.csv.gz is not here"),
            Some(pairs) => {
                let known: HashSet<(u64, u64)> = pairs.iter().copied().collect();
                let ids: Vec<u64> =
                    pairs.iter().map(|p| p.0).collect::<HashSet<_>>().into_iter().collect();
                let users: Vec<u64> =
                    pairs.iter().map(|p| p.1).collect::<HashSet<_>>().into_iter().collect();
                let (mut ids, mut users) = (ids, users);
                ids.sort_unstable();
                users.sort_unstable();
                let never = users.iter().flat_map(|user| ids.iter().map(move |id| (*id, *user)));
                let never = never.filter(|pair| !known.contains(pair)).take(args.probes as usize);
                let count = pairs.len() as u64;
                let mut of_shape = (0, 0);
                for seed in seeds() {
                    // Fewer by 5 %, as those that are taken for set at once leave the table short.
                    let pair = |i| pairs[(i % count) as usize];
                    let (yes, asked) =
                        measure(seed, rate, "real reposts", count * 19 / 20, pair, never.clone());
                    of_shape = (of_shape.0 + yes, of_shape.1 + asked);
                }
                if args.seeds > 1 {
                    sum_up(rate, "real reposts", of_shape);
                }
            }
        }
    }
}

/// What is known of the rate of a shape: with one chance in 1,000 it lies outside of this.
fn sum_up(rate: f64, name: &str, (yes, asked): (u64, u64)) {
    let (expected, measured) = (asked as f64 * rate, yes as f64);
    let (low, high) = (measured - 3.3 * measured.sqrt(), measured + 3.3 * measured.sqrt());
    println!(
        "{rate:<10} {name:<28} together: {yes} of {asked}, share {:.3} to {:.3}",
        low / expected,
        high / expected
    );
}

/// Fills one table of about `n` pairs to the brim, and asks for pairs that are not in it: how many
/// were answered with yes, of how many.
fn measure(
    seed: u64,
    rate: f64,
    name: &str,
    n: u64,
    pair: impl Fn(u64) -> (u64, u64),
    never: impl Iterator<Item = (u64, u64)>,
) -> (u64, u64) {
    // The first table of a space is an eighth of a grown one.
    let options = Options {
        false_positive_rate: rate,
        pairs_per_table: n * 8,
        max_tables: 2,
        seed,
        ..Options::default()
    };
    let space = Space::new(options).expect("memory for one table");
    let capacity = space.tables()[0].capacity;
    // The highest ids first, so that the table is closed above all of them, and the others are
    // late.
    let order = (n - n.min(5000)..n).chain(0..n - n.min(5000)).chain(n..);
    let mut set = vec![];
    for i in order {
        if space.pairs() == capacity {
            break;
        }
        // Those that were taken for set are made up for, by other users of the same ids.
        let (id, member) = if i < n { pair(i) } else { (pair(i % n).0, pair(i % n).1 ^ 1 << 63) };
        space.add(id, &Member::Number(member)).expect("room for all");
        set.push((id, member));
    }
    while space.maintain() {}
    let table = &space.tables_probed(0)[0];
    let bits = table.bytes as f64 * 8.0 / table.capacity as f64;
    assert!(
        set.iter().all(|(id, member)| space
            .contains(*id, &Member::Number(*member))
            .expect("all is in memory")
            == Answer::Yes),
        "a false no"
    );
    let (mut asked, mut yes) = (0u64, 0u64);
    for (id, member) in never {
        asked += 1;
        yes += u64::from(
            space.contains(id, &Member::Number(member)).expect("all is in memory") == Answer::Yes,
        );
    }
    let measured = yes as f64 / asked as f64;
    println!(
        "{rate:<10} {name:<28} {:>9} {:>7.4} {bits:>9.2} {asked:>9} {yes:>8} {measured:>10.6} \
         {:>7.3}",
        table.pairs,
        table.fill,
        measured / rate
    );
    (yes, asked)
}

/// The distinct (origin, user) pairs of the real data.
fn real_pairs() -> Option<Pairs> {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = here
        .ancestors()
        .map(|dir| dir.join("shared/data/weibo_reposts.csv.gz"))
        .find(|path| path.exists())?;
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).ok()?).read_to_string(&mut text).ok()?;
    let pair = |line: &str| {
        let mut fields = line.split(',').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    let pairs: HashSet<(u64, u64)> = text.lines().skip(1).filter_map(pair).collect();
    let mut pairs: Pairs = pairs.into_iter().collect();
    pairs.sort_unstable();
    Some(pairs)
}
