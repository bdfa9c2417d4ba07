//! Batches of 20 random lookups in a table far beyond the cache, beside two peers of the same size
//! and beside what memory alone takes, round by round in one run; then reads while writers work at
//! full speed.
//!
//! `cargo run --release -p tidemark-bench --bin counter_lookup -- [--megabytes 1024]`
//!
//! - *tidemark*: `Space::get_batch`, schema like:12 repost:8 comment:8 read:16.
//! - *floor*: the lines which that touches, fetched in the same order, nothing looked up
//!   (`floor.rs`).
//! - *naive*: 17-byte slots, `h1 + N * h2` slot by slot, batched and prefetched (`naive.rs`).
//! - *HashMap*: std's `HashMap<u64, [u32; 4]>` with a multiplicative hash; batched, but it offers
//!   no prefetch.
//!
//! All lie in 2 MB pages, as far as the system gives them (printed). All are filled first, which
//! takes longer than measuring; with `--wait` it then waits for a line of input, so that other jobs
//! on the machine can be paused. The ids of a round are made before its clock starts.

mod beside;
mod floor;
mod naive;

use clap::Parser;
use counter::{Options, Schema, Space};
use floor::Floor;
use naive::Naive;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::os::unix::process::CommandExt;
use tidemark_bench::cpu_ns;

#[derive(Parser)]
struct Arguments {
    /// Size of each structure.
    #[arg(long, default_value_t = 1024)]
    megabytes: u64,
    /// Repetitions of each measurement; the median is printed, and the least.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Without the peers and without reads beside writes.
    #[arg(long)]
    quick: bool,
    /// Only reads beside writes.
    #[arg(long)]
    beside: bool,
    /// Waits for a line of input before it measures.
    #[arg(long)]
    wait: bool,
}

const BATCH: usize = 20;
const BATCHES: usize = 100_000;

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ (x >> 32)
}

/// The id of post `i`: rising, one in 4,096 ids taken.
fn post(i: u64) -> u64 {
    (1 << 50) + i * 4096 + mix(i) % 4096
}

/// An id near post `i` that no post has.
fn missing(i: u64) -> u64 {
    (1 << 50) + i * 4096 + (mix(i) + 1 + mix(!i) % 4095) % 4096
}

#[derive(Default)]
struct Multiplicative(u64);

impl Hasher for Multiplicative {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, x: u64) {
        self.0 = mix(x);
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What is measured: its ids are those of posts from `first` on, `rows` of them.
struct Tidemark {
    space: Space,
    first: u64,
    rows: u64,
    bytes: u64,
    /// Touched by a hit, and by a miss.
    buckets: [f64; 2],
}

impl Tidemark {
    /// As many rows as make one table of this size; a little is known of them beforehand, as a
    /// running space would know.
    fn new(bytes: u64) -> Result<Tidemark, Box<dyn std::error::Error>> {
        let schema = Schema::parse("like:12 repost:8 comment:8 read:16")?;
        // Buckets of 15; the table rolls at 91 %, and 90 % is what is measured.
        let slots = bytes as f64 / 128.0 * 15.0;
        let (rows_per_table, rows) = ((slots * 0.91) as u64, (slots * 0.9) as u64);
        let space = Space::new(Options {
            rows_per_table,
            memory_limit_bytes: 64 << 30,
            ..Options::new(schema)
        })?;
        let begin = cpu_ns();
        // Smaller tables come first; the one to be measured is the last one opened.
        let (mut first, mut n) = (0, 0);
        while n - first < rows {
            let ids: [u64; 32] = std::array::from_fn(|i| post(n + i as u64));
            space.read().prefetch(&ids);
            for (id, i) in ids.into_iter().zip(n..) {
                let cells: [(usize, i64); 4] =
                    std::array::from_fn(|field| (field, (i % 250) as i64));
                space.set(id, &cells)?;
            }
            n += ids.len() as u64;
            if n % 65_536 == 0 {
                let low = space.tables().last().map_or(0, |t| t.low);
                first = if low <= post(0) { 0 } else { (low - (1 << 50)) / 4096 + 1 };
            }
        }
        let table = space.tables().pop().ok_or("no table")?;
        let buckets = [table.probes_mean, 1.0 / (1.0 - table.past_share)];
        println!(
            "tidemark: {} rows in the measured table, {:.0} MiB, fill {:.1} %, hit {:.3} buckets, \
             miss {:.3}, {:.3} % in the extend dictionary, filled at {:.0} ns a row",
            table.rows,
            table.bytes as f64 / 1048576.0,
            100.0 * table.fill,
            buckets[0],
            buckets[1],
            100.0 * table.extend_rows as f64 / table.rows as f64,
            (cpu_ns() - begin) as f64 / n as f64
        );
        Ok(Tidemark { space, first, rows: n - first, bytes: table.bytes, buckets })
    }
}

type Map = HashMap<u64, [u32; 4], BuildHasherDefault<Multiplicative>>;

/// 24 bytes and a control byte per slot, at most seven of eight taken.
fn map(bytes: u64) -> Map {
    let slots = (bytes / 25).next_power_of_two();
    let slots = if slots * 25 > bytes * 3 / 2 { slots / 2 } else { slots };
    let rows = slots * 7 / 8;
    let mut map = Map::default();
    map.reserve(rows as usize);
    map.extend((0..rows).map(|i| (post(i), [i as u32; 4])));
    println!("HashMap: {rows} rows, {:.0} MiB", (slots * 25) as f64 / 1048576.0);
    map
}

/// Looks up a batch, and says how many were there.
type Look<'a> = Box<dyn FnMut(&[u64]) -> usize + 'a>;

/// One line of the result: what is looked up, where, and how long it took.
struct Subject<'a> {
    name: &'static str,
    kind: &'static str,
    /// Posts that are there, and the id that is made of one of them.
    first: u64,
    rows: u64,
    id: fn(u64) -> u64,
    look: Look<'a>,
    /// Nanoseconds per row, by round.
    times: Vec<f64>,
    found: usize,
}

impl Subject<'_> {
    fn measure(&mut self, seed: u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let ids: Vec<u64> =
            (0..BATCH * BATCHES).map(|_| (self.id)(self.first + rng.u64(0..self.rows))).collect();
        let begin = cpu_ns();
        for batch in ids.chunks_exact(BATCH) {
            self.found += (self.look)(batch);
        }
        self.times.push((cpu_ns() - begin) as f64 / ids.len() as f64);
    }

    fn print(self) {
        let lookups = self.times.len() * BATCH * BATCHES;
        let least = self.times.iter().copied().fold(f64::INFINITY, f64::min);
        println!(
            "{:24} {:>5} {:>10.1} {:>8.1} {:>7.1}%",
            self.name,
            self.kind,
            median(self.times),
            least,
            100.0 * self.found as f64 / lookups as f64
        );
    }
}

/// How much of this process's memory is in huge pages, and how much there is, in KiB; zeros where
/// the system does not say.
fn huge_kib() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let kib = |name: &str| {
        text.lines()
            .find_map(|l| l.strip_prefix(name)?.split_whitespace().next()?.parse::<f64>().ok())
    };
    (kib("AnonHugePages:").unwrap_or_default(), kib("Rss:").unwrap_or_default())
}

/// Says how much of what was allocated since `before` is in huge pages.
fn print_huge(what: &str, before: (f64, f64)) {
    let now = huge_kib();
    println!(
        "{what}: {:.1} % in huge pages",
        100.0 * (now.0 - before.0) / (now.1 - before.1).max(1.0)
    );
}

/// Has glibc's allocator ask for huge pages, which it is told by the environment before it starts:
/// the map of std is to have them, too.
fn with_huge_allocations() -> std::io::Result<()> {
    const NAME: &str = "GLIBC_TUNABLES";
    if std::env::var_os(NAME).is_some() {
        return Ok(());
    }
    let mut again = std::process::Command::new(std::env::current_exe()?);
    Err(again.args(std::env::args_os().skip(1)).env(NAME, "glibc.malloc.hugetlb=1").exec())
}

// Long: one measurement after the other.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Arguments { megabytes, rounds, quick, beside, wait } = Arguments::parse();
    with_huge_allocations()?;
    let bytes = megabytes << 20;
    let before = huge_kib();
    let tidemark = Tidemark::new(bytes)?;
    let floor = Floor::new(tidemark.bytes)?;
    print_huge("tidemark's and the floor's memory", before);
    if beside {
        tidemark.print_reads_beside_writes(rounds, &floor);
        return Ok(());
    }
    let peers = if quick {
        None
    } else {
        let before = huge_kib();
        let naive = Naive::new(bytes)?;
        let rows = naive.slots * 9 / 10;
        (0..rows).for_each(|i| naive.insert(post(i), i));
        print_huge("naive slots", before);
        let before = huge_kib();
        let map = map(bytes);
        print_huge("HashMap", before);
        Some((naive, rows, map))
    };
    if wait {
        println!("ready");
        std::io::stdin().read_line(&mut String::new())?;
    }
    let mut subjects = Vec::new();
    for (i, (kind, id)) in
        [("hit", post as fn(u64) -> u64), ("miss", missing)].into_iter().enumerate()
    {
        let subject = |name, first, rows| Subject {
            name,
            kind,
            first,
            rows,
            id,
            look: Box::new(|_| 0),
            times: vec![],
            found: 0,
        };
        let (ours, floor, buckets) = (&tidemark, &floor, tidemark.buckets[i]);
        let (mut out, mut found) = (Vec::new(), Vec::new());
        let look = move |ids: &[u64]| {
            out.clear();
            found.clear();
            ours.space.get_batch(ids, &mut out, &mut found).expect("all is in memory");
            black_box(&out);
            found.iter().filter(|f| **f).count()
        };
        subjects
            .push(Subject { look: Box::new(look), ..subject("tidemark", ours.first, ours.rows) });
        let fetch = move |ids: &[u64]| {
            black_box(floor.fetch_batch(ids, buckets));
            0
        };
        subjects.push(Subject {
            look: Box::new(fetch),
            ..subject("floor: bare fetch", ours.first, ours.rows)
        });
        let Some((naive, rows, map)) = &peers else { continue };
        let mut answers = Vec::new();
        let look = move |ids: &[u64]| {
            naive.get_batch(ids, &mut answers);
            black_box(&answers);
            answers.iter().flatten().count()
        };
        subjects.push(Subject { look: Box::new(look), ..subject("naive 17-byte slots", 0, *rows) });
        let look = move |ids: &[u64]| {
            let mut found = 0;
            for row in ids.iter().filter_map(|id| map.get(id)) {
                black_box(row);
                found += 1;
            }
            found
        };
        subjects.push(Subject {
            look: Box::new(look),
            ..subject("HashMap<u64, [u32; 4]>", 0, map.len() as u64)
        });
    }
    for round in 0..rounds {
        for subject in &mut subjects {
            subject.measure(round as u64);
        }
    }
    println!("\n{:24} {:>5} {:>10} {:>8} {:>8}", "ns per row", "", "median", "least", "found");
    subjects.into_iter().for_each(Subject::print);
    if !quick {
        tidemark.print_reads_beside_writes(rounds, &floor);
    }
    Ok(())
}
