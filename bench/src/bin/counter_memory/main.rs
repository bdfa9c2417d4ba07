//! Memory of the counter engine per row, broken down by purpose.
//!
//! `cargo run --release -p tidemark-bench --bin counter_memory -- --posts 50000000 [--schema
//! "like:12 ..."] [--per-table 1048576] [--advised] [--redis redis-server]`
//!
//! The workload imitates a microblog: 1,000 new posts per second, one in fifty of them out of
//! order. An id is the time in seconds, shifted left by 22 bits, plus a sequence number. Counts are
//! log-normal with means of 39 likes and 2,900 reads; two thirds of the reposts and comments are 0.
//! Increments create all rows.

mod packed;

use clap::Parser;
use counter::{Alteration, Bounds, Change, Options, Schema, Space};
use std::time::Instant;

#[derive(Parser)]
struct Arguments {
    #[arg(long, default_value_t = 50_000_000)]
    posts: u64,
    #[arg(long, default_value = "like:12 repost:8 comment:8 read:16")]
    schema: String,
    #[arg(long, default_value_t = 1 << 20)]
    per_table: u64,
    /// Load in random order instead of ascending
    #[arg(long)]
    shuffled: bool,
    /// Width of the ids in bits; ids are random and in random order, as in the `user` space
    #[arg(long, conflicts_with = "shuffled")]
    random_bits: Option<u32>,
    /// Afterwards, apply the output of TM.ADVISE, let background work rewrite the tables, and
    /// measure again
    #[arg(long)]
    advised: bool,
    /// Compare with the densest manual encoding in this redis-server
    #[arg(long)]
    redis: Option<std::path::PathBuf>,
    /// Number of posts in Redis
    #[arg(long, default_value_t = 3_000_000)]
    redis_posts: u64,
}

/// Draws the counters of one post.
fn row(rng: &mut fastrand::Rng) -> [i64; 4] {
    [
        count(rng, 39.0, 2.0, 1.0),
        count(rng, 8.0, 1.8, 1.0 / 3.0),
        count(rng, 8.0, 1.8, 1.0 / 3.0),
        count(rng, 2900.0, 1.6, 1.0),
    ]
}

/// Splits a row into two increments.
fn halves(row: [i64; 4]) -> [[i64; 4]; 2] {
    let half = |v: i64| v / 2;
    [row.map(half), row.map(|v| v - half(v))]
}

/// Stores the same posts in Redis.
fn redis(program: &std::path::Path, posts: u64) -> std::io::Result<()> {
    let mut peer = packed::Packed::new(program)?;
    let mut rng = fastrand::Rng::with_seed(1);
    let mut sums = [0; 4];
    for number in 0..posts {
        let row = row(&mut rng);
        for part in halves(row) {
            peer.add(number, part)?;
        }
        sums.iter_mut().zip(row).for_each(|(sum, v)| *sum += v);
    }
    peer.show(posts, sums)
}

/// Draws a log-normal count that is non-zero for a `share` of the rows. The mean includes the
/// zeros.
fn count(rng: &mut fastrand::Rng, mean: f64, sigma: f64, share: f64) -> i64 {
    if rng.f64() >= share {
        return 0;
    }
    // Box-Muller transform.
    let normal = (-2.0 * (1.0 - rng.f64()).ln()).sqrt() * (rng.f64() * std::f64::consts::TAU).cos();
    ((mean / share).ln() - sigma * sigma / 2.0 + sigma * normal).exp() as i64
}

// Long: the function is not split because every step changes or measures the same space.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let schema = Schema::parse(&arguments.schema)?;
    let space =
        Space::new(Options { rows_per_table: arguments.per_table, ..Options::new(schema) })?;
    let mut rng = fastrand::Rng::with_seed(1);
    let n = arguments.posts;
    // Apply a bijection of 0..2^k repeatedly until the result is less than n.
    let mask = n.next_power_of_two() - 1;
    let order = |i: u64| {
        let mut x = i;
        if !arguments.shuffled {
            return x;
        }
        loop {
            x = x.wrapping_mul(0x9E37_79B9_7F4A_7C15 | 1) & mask;
            x ^= x >> 13;
            x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9 | 1) & mask;
            if x < n {
                return x;
            }
        }
    };
    // Results are distinct for distinct `i`, because odd factors and xor-shifts are invertible.
    let user = |i: u64, bits: u32| {
        let x = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) & (u64::MAX >> (64 - bits));
        let x =
            (x ^ (x >> (bits / 2))).wrapping_mul(0xBF58_476D_1CE4_E5B9) & (u64::MAX >> (64 - bits));
        x ^ (x >> (bits / 2))
    };
    let post = |i: u64| match arguments.random_bits {
        Some(bits) => user(i, bits.clamp(1, 64)),
        None => ((1_700_000_000 + i / 1000) << 22) | (i % 1000),
    };
    let mut out = Vec::new();
    let mut late = Vec::new();
    let mut sums = [0i64; 4];
    let (begin, cpu) = (Instant::now(), tidemark_bench::cpu_ns());
    let mut add = |id: u64, rng: &mut fastrand::Rng| -> Result<(), counter::Error> {
        let row = row(rng);
        for part in halves(row) {
            let changes: [Change; 4] =
                std::array::from_fn(|field| Change { field, delta: part[field] });
            space.add(id, &changes, &Bounds::default(), &mut out)?;
        }
        sums.iter_mut().zip(row).for_each(|(sum, v)| *sum += v);
        Ok(())
    };
    for i in 0..n {
        let id = post(order(i));
        if rng.u32(0..50) == 0 {
            late.push(id);
        } else {
            add(id, &mut rng)?;
        }
        if late.len() > 20_000 || i + 1 == n {
            for id in late.drain(..) {
                add(id, &mut rng)?;
            }
        }
        if i % 256 == 0 && space.wants_maintenance() {
            space.maintain();
        }
    }
    let (loaded, cpu) = (begin.elapsed(), tidemark_bench::cpu_ns() - cpu);
    let show = |when: &str| {
        let tables = space.tables();
        let rows = space.rows();
        let per_row = |bytes: u64| bytes as f64 / rows as f64;
        println!(
            "\n{when}: {rows} rows in {} tables, {:.3} bytes per row in total",
            tables.len(),
            per_row(space.memory_bytes())
        );
        let closed = &tables[..tables.len() - 1];
        let closed_rows: u64 = closed.iter().map(|t| t.rows).sum();
        let closed_bytes: u64 = closed.iter().map(|t| t.bytes).sum();
        println!(
            "  closed tables only: {:.3} bytes per row",
            closed_bytes as f64 / closed_rows.max(1) as f64
        );
        let fills: Vec<f64> =
            closed.iter().filter(|t| t.rows > 100_000).map(|t| 100.0 * t.fill).collect();
        let least = fills.iter().copied().fold(f64::INFINITY, f64::min);
        let mean = fills.iter().sum::<f64>() / fills.len() as f64;
        println!(
            "  fill of tables with more than 100,000 rows: minimum {least:.1} %, mean {mean:.1} %"
        );
        let sum =
            |f: fn(&counter::TableStats) -> f64| tables.iter().map(f).sum::<f64>() / rows as f64;
        let fields = space.schema().row_bits();
        let key = sum(|t| t.rows as f64 * f64::from(t.remainder_bits));
        println!(
            "  fields {:.3} (at {fields} bits), remainder of the id {:.3} ({key:.1} bits), state \
             {:.3} (3 bits)",
            f64::from(fields) / 8.0,
            key / 8.0,
            3.0 / 8.0
        );
        let used = sum(|t| (t.rows - t.extend_rows) as f64 * f64::from(t.slot_bits) / 8.0);
        let slots = sum(|t| t.capacity as f64 * f64::from(t.slot_bits) / 8.0);
        let buckets = sum(|t| (t.bytes - t.aux_bytes - t.extend_bytes) as f64);
        println!(
            "  empty slots {:.3}, bucket headers and padding {:.3}",
            slots - used,
            buckets - slots
        );
        println!(
            "  aux {:.3} ({:.3} % of rows have an entry, {:.1} bytes each), extend {:.3} ({:.3} % \
             of rows)",
            sum(|t| t.aux_bytes as f64),
            100.0 * sum(|t| t.aux_entries as f64),
            sum(|t| t.aux_bytes as f64) / sum(|t| t.aux_entries as f64).max(1e-9),
            sum(|t| t.extend_bytes as f64),
            100.0 * sum(|t| t.extend_rows as f64)
        );
        println!(
            "  fill {:.1} %, hit {:.3} buckets, p99 {}, max {}, full-and-passed buckets {:.1} %",
            100.0 * tables.iter().map(|t| t.fill * t.capacity as f64).sum::<f64>()
                / tables.iter().map(|t| t.capacity as f64).sum::<f64>(),
            sum(|t| t.probes_mean * t.rows as f64),
            tables.iter().map(|t| t.probes_p99).max().unwrap_or(0),
            tables.iter().map(|t| t.probes_max).max().unwrap_or(0),
            100.0 * sum(|t| t.past_share * t.rows as f64)
        );
        // A lookup of a missing id probes the next bucket with probability p (the bucket has an
        // overflow mark), for at most seven buckets.
        let miss = |p: f64| (0..7).map(|k| p.powi(k)).sum::<f64>();
        println!(
            "  a miss reads {:.3} buckets",
            sum(|t| t.rows as f64 * t.past_share).clamp(0.0, 0.99).pipe(miss)
        );
    };
    println!(
        "{n} posts: {} increments of 4 fields in {loaded:.1?}, {:.0} ns of CPU time each, \
         including the generator",
        2 * n,
        cpu as f64 / (2 * n) as f64
    );
    println!(
        "means: like {:.1} repost {:.1} comment {:.1} read {:.0}",
        sums[0] as f64 / n as f64,
        sums[1] as f64 / n as f64,
        sums[2] as f64 / n as f64,
        sums[3] as f64 / n as f64
    );
    show("after the load");
    while space.maintain() {}
    show("after background work");
    // Call `settle` twice: a table counts as idle if it has not changed between two calls.
    let (begin, cpu) = (Instant::now(), tidemark_bench::cpu_ns());
    space.settle();
    space.settle();
    while space.maintain() {}
    let cpu = tidemark_bench::cpu_ns() - cpu;
    show(&format!(
        "idle, after {:.1?} ({:.0} ns of CPU time per row)",
        begin.elapsed(),
        cpu as f64 / space.rows() as f64
    ));
    if let Some(program) = &arguments.redis {
        redis(program, arguments.redis_posts)?;
    }
    let Some(advice) = space.advise() else { return Ok(()) };
    println!("\n{advice}");
    if arguments.advised {
        for field in &advice.fields {
            space.alter(&Alteration::Widen { name: field.name.clone(), width: field.best })?;
        }
        let (begin, cpu) = (Instant::now(), tidemark_bench::cpu_ns());
        while space.maintain() {}
        println!(
            "rewritten in {:.1?}, {:.0} ns of CPU time per row",
            begin.elapsed(),
            (tidemark_bench::cpu_ns() - cpu) as f64 / space.rows() as f64
        );
        show(&format!("after `{}`", advice.schema()));
    }
    Ok(())
}

/// Lets a free function be called like a method.
trait Pipe: Sized {
    fn pipe<R>(self, f: impl FnOnce(Self) -> R) -> R {
        f(self)
    }
}

impl Pipe for f64 {}
