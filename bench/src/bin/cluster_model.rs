//! What 1,000 nodes do as few shards with many replicas, or as many shards with few: a model, with
//! constants that are measured on one machine.
//!
//! ```text
//! cargo run --release -p tidemark-bench --bin cluster_model
//! ```
//!
//! A page of 20 ids meets 20 random shards, so many different ones as chance gives. The node that
//! is asked has one of them, or one more request to make. The time of a page is that of its slowest
//! part: each part is drawn from the measured times of one node's pages (Dean and Barroso, The Tail
//! at Scale, 2013). What the model leaves out: the network's own limits, ids that many pages share,
//! and nodes that fail together.

use clap::Parser;

/// Prints a table: a line for each number of shards.
#[derive(Parser)]
struct Args {
    /// Nodes in all.
    #[arg(long, default_value_t = 1000)]
    nodes: u32,
    /// Cores of a node that serve.
    #[arg(long, default_value_t = 8)]
    cores: u32,
    /// Ids of a page.
    #[arg(long, default_value_t = 20)]
    posts: u32,
    /// Microseconds of one core for a page of one node (`bench feed`, unpipelined).
    #[arg(long, default_value_t = 11.9)]
    page_us: f64,
    /// Microseconds of all cores for each further shard of a page (`bench cluster`).
    #[arg(long, default_value_t = 11.9)]
    part_us: f64,
    /// Microseconds that half, 99 %, 99.9 % and 99.99 % of one node's pages take at most.
    #[arg(long, value_delimiter = ',', default_values_t = [150.0, 600.0, 2_500.0, 12_000.0])]
    page_times_us: Vec<f64>,
    /// Seconds until a shard without its master has another one (`play failover`).
    #[arg(long, default_value_t = 2.4)]
    failover_s: f64,
    /// Days between two failures of one node.
    #[arg(long, default_value_t = 365.0)]
    days_between_failures: f64,
    /// Gigabytes of all data.
    #[arg(long, default_value_t = 2_000.0)]
    data_gb: f64,
    /// Megabytes a second of a full sync (`bench replication`).
    #[arg(long, default_value_t = 400.0)]
    sync_mb_per_s: f64,
    /// Pages that are drawn for each line.
    #[arg(long, default_value_t = 2_000_000)]
    pages: u32,
}

const SHARES: [f64; 4] = [0.5, 0.99, 0.999, 0.9999];

/// A time that a share of `at` does not exceed: between the measured ones in a straight line over
/// the logarithm of what exceeds them.
fn quantile(times: &[f64], at: f64) -> f64 {
    let rarity = |share: f64| -(1.0 - share).log10();
    let (mut below, mut least) = (0.0, times[0] / 3.0);
    for (&share, &time) in SHARES.iter().zip(times) {
        if at <= share {
            let part = (rarity(at) - below) / (rarity(share) - below);
            return least * (time / least).powf(part);
        }
        (below, least) = (rarity(share), time);
    }
    least
}

/// Of some pages: shards that they meet, and their times, sorted.
fn draw(args: &Args, shards: u32) -> (f64, Vec<f64>) {
    let mut random = fastrand::Rng::with_seed(u64::from(shards));
    let mut met = vec![0; shards as usize];
    let (mut sum, mut times) = (0u64, Vec::with_capacity(args.pages as usize));
    for page in 1..=args.pages {
        let mut slowest = 0f64;
        for _ in 0..args.posts {
            let shard = random.usize(..shards as usize);
            if met[shard] != page {
                met[shard] = page;
                sum += 1;
                slowest = slowest.max(quantile(&args.page_times_us, random.f64()));
            }
        }
        times.push(slowest);
    }
    times.sort_unstable_by(f64::total_cmp);
    (sum as f64 / f64::from(args.pages), times)
}

fn main() {
    let args = Args::parse();
    assert!(args.page_times_us.len() == SHARES.len(), "four times: 50, 99, 99.9 and 99.99 %");
    println!(
        "| shards x nodes | shards of a page | million pages/s | p50 ms | p99 ms | p99.9 ms | \
         partial pages | GB of a node | a split takes |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let counts = [1, 2, 4, 10, 32, 100, 333, 1000];
    for shards in counts.into_iter().filter(|shards| *shards <= args.nodes) {
        let (met, times) = draw(&args, shards);
        // The node that is asked has a part of its own as often as chance gives.
        let own = met / f64::from(shards);
        let page_us = args.page_us + (met - own) * args.part_us;
        let pages = f64::from(args.nodes * args.cores) * 1e6 / page_us;
        let at = |share: f64| times[(times.len() as f64 * share) as usize] / 1000.0;
        let fails_a_day = f64::from(shards) / args.days_between_failures;
        let touched = met / f64::from(shards);
        let partial = fails_a_day * args.failover_s / 86_400.0 * touched;
        let gb = args.data_gb / f64::from(shards);
        let split_s = gb * 1000.0 / args.sync_mb_per_s;
        println!(
            "| {shards} x {} | {met:.1} | {:.0} | {:.2} | {:.2} | {:.1} | {:.0e} | {gb:.0} | {} |",
            args.nodes / shards,
            pages / 1e6,
            at(0.5),
            at(0.99),
            at(0.999),
            partial,
            if split_s < 120.0 {
                format!("{split_s:.0} s")
            } else {
                format!("{:.0} min", split_s / 60.0)
            },
        );
    }
}
