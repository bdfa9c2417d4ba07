//! Measures the `ledger` crate: CPU time, bytes written and reads per pair (id, member). Decision
//! 0017 lists the results.
//!
//! `cargo run --release -p tidemark-bench --bin ledger`; `--kill N` kills the process N times with
//! `kill -9` and checks that no durable pair is missing.
//!
//! Ids follow Zipf's law; members are random numbers of `--bits` bits. Pairs are inserted in random
//! order, which is the worst case for merges. With `--recent 90`, 90 % of them belong to the newest
//! hundredth of the ids. CPU time is that of the whole process. The kernel counts the bytes
//! written.

mod own;

use crate::own::Pairs;
use clap::Parser;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Fills a ledger and looks up pairs
#[derive(Clone, Debug, Parser)]
struct Args {
    /// Number of pairs
    #[arg(long, default_value_t = 20_000_000)]
    pairs: usize,
    /// Mean number of pairs per id
    #[arg(long, default_value_t = 50)]
    per_id: usize,
    /// Width of a member in bits
    #[arg(long, default_value_t = 40)]
    bits: u32,
    /// Percentage of the pairs that belong to the newest ids
    #[arg(long, default_value_t = 0)]
    recent: u8,
    /// Number of pairs in memory before a flush
    #[arg(long, default_value_t = 1 << 20)]
    memory_pairs: usize,
    /// Number of lookups of existing pairs, and of missing pairs
    #[arg(long, default_value_t = 200_000)]
    lookups: usize,
    /// Parent of the temporary folder for the files
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Number of kills of the process during the fill; checks the remaining pairs after each
    #[arg(long)]
    kill: Option<u64>,
    /// For `--kill`: fills the folder and prints how many pairs are durable
    #[arg(long, hide = true)]
    child: bool,
}

impl Args {
    /// Returns the arguments that make a child process draw the same pairs.
    fn repeated(&self) -> Vec<String> {
        let numbers = [
            ("--pairs", self.pairs),
            ("--per-id", self.per_id),
            ("--bits", self.bits as usize),
            ("--recent", self.recent.into()),
            ("--memory-pairs", self.memory_pairs),
        ];
        numbers.into_iter().flat_map(|(name, n)| [name.to_owned(), n.to_string()]).collect()
    }
}

/// Draws ids from a Zipf distribution.
struct Ids {
    cumulative: Vec<f64>,
    /// Id of each popularity rank.
    ids: Vec<u64>,
}

impl Ids {
    fn new(n: usize, random: &mut fastrand::Rng) -> Ids {
        let mut sum = 0.0;
        let cumulative = (1..=n).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        let cumulative = cumulative.collect();
        let mut ids: Vec<u64> = (0..n as u64).map(|i| (1 << 50) + i * 4194).collect();
        random.shuffle(&mut ids);
        Ids { cumulative, ids }
    }

    fn draw(&self, random: &mut fastrand::Rng) -> u64 {
        let sum = self.cumulative[self.cumulative.len() - 1];
        let at = random.f64() * sum;
        self.ids[self.cumulative.partition_point(|&c| c < at).min(self.ids.len() - 1)]
    }
}

fn pairs(args: &Args) -> Vec<(u64, u64)> {
    let mut random = fastrand::Rng::with_seed(20_261_125);
    let n = (args.pairs / args.per_id).max(1);
    let ids = Ids::new(n, &mut random);
    (0..args.pairs)
        .map(|i| {
            let member = random.u64(..) >> (64 - args.bits);
            if random.u8(..100) < args.recent {
                let newest = (i / args.per_id) as u64;
                let back = random.u64(0..=(n as u64 / 100).max(1)).min(newest);
                return ((1 << 50) + (newest - back) * 4194, member);
            }
            (ids.draw(&mut random), member)
        })
        .collect()
}

fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn of_process(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// CPU time and I/O counters at the start of a step, as reported by the kernel.
struct Step {
    cpu: Duration,
    wall: Instant,
    written: u64,
    read: u64,
    reads: u64,
}

impl Step {
    fn begin() -> Step {
        Step {
            cpu: cpu(),
            wall: Instant::now(),
            written: of_process("io", "write_bytes:"),
            read: of_process("io", "rchar:"),
            reads: of_process("io", "syscr:"),
        }
    }

    fn written(&self) -> u64 {
        of_process("io", "write_bytes:") - self.written
    }

    fn end(&self, n: usize) -> String {
        let n = n as f64;
        let now = Step::begin();
        format!(
            "{:.0} ns of CPU, {:.0} ns of time, {:.1} bytes written, {:.2} reads of {:.0} bytes",
            (now.cpu - self.cpu).as_nanos() as f64 / n,
            self.wall.elapsed().as_nanos() as f64 / n,
            self.written() as f64 / n,
            (now.reads - self.reads) as f64 / n,
            (now.read - self.read) as f64 / (now.reads - self.reads).max(1) as f64,
        )
    }
}

/// Looks up existing and missing pairs.
fn look_up(keeper: &Pairs, pairs: &[(u64, u64)], args: &Args) -> Outcome<[String; 2]> {
    let mut random = fastrand::Rng::with_seed(1);
    let step = Step::begin();
    for _ in 0..args.lookups {
        let (id, member) = pairs[random.usize(..pairs.len())];
        if !keeper.contains(id, member)? {
            return Err(format!("the pair {id} {member} is missing").into());
        }
    }
    let found = format!("found: {}", step.end(args.lookups));
    let step = Step::begin();
    let mut there = 0;
    for _ in 0..args.lookups {
        let (id, _) = pairs[random.usize(..pairs.len())];
        there += usize::from(keeper.contains(id, random.u64(..) >> (64 - args.bits))?);
    }
    Ok([found, format!("absent pairs ({there} were found): {}", step.end(args.lookups))])
}

fn measure(folder: &Path, args: &Args) -> Outcome<()> {
    let pairs = pairs(args);
    let resident = of_process("status", "VmRSS:");
    let mut keeper = Pairs::open(folder, args)?;
    let n = pairs.len();
    let step = Step::begin();
    for &(id, member) in &pairs {
        keeper.insert(id, member)?;
    }
    println!("per inserted pair: {}", step.end(n));
    println!("total: {}", keeper.figures().1);
    // Run once without measuring, to fill the page cache.
    look_up(&keeper, &pairs, args)?;
    for line in look_up(&keeper, &pairs, args)? {
        println!("{line}");
    }
    keeper.sync()?;
    println!("including all merges: {:.1} bytes written", step.written() as f64 / n as f64);
    let (bytes, figures) = keeper.figures();
    println!("on disk: {:.2} bytes per pair; {figures}", bytes as f64 / n as f64);
    let more = of_process("status", "VmRSS:").saturating_sub(resident);
    println!("resident memory without the list of pairs: {:.1} MB", more as f64 / 1024.0);
    Ok(())
}

/// Main function of the process that is killed: fills the folder and prints how many pairs are
/// durable.
fn child(folder: &Path, args: &Args) -> Outcome<()> {
    let mut keeper = Pairs::open(folder, args)?;
    for (i, &(id, member)) in pairs(args).iter().enumerate() {
        keeper.insert(id, member)?;
        if i % 50_000 == 49_999 {
            keeper.sync()?;
            println!("{}", i + 1);
        }
    }
    std::thread::park();
    Ok(())
}

fn kill(folder: &Path, args: &Args, round: u64) -> Outcome<()> {
    let path = folder.join(round.to_string());
    let mut child = Command::new(std::env::current_exe()?)
        .args(args.repeated())
        .args(["--child", "--folder"])
        .arg(&path)
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().ok_or("no output")?;
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        lines.last().and_then(|line| line.parse::<usize>().ok()).unwrap_or(0)
    });
    std::thread::sleep(Duration::from_millis(1500 + round * 370 % 4000));
    child.kill()?;
    child.wait()?;
    let durable = reader.join().map_err(|_| "the reader panicked")?;
    let began = Instant::now();
    let keeper = Pairs::open(&path, args)?;
    let opened = began.elapsed();
    let mut missing = 0;
    for &(id, member) in &pairs(args)[..durable] {
        missing += usize::from(!keeper.contains(id, member)?);
    }
    println!("killed after {durable} pairs: {missing} missing; opened in {opened:.1?}");
    drop(keeper);
    std::fs::remove_dir_all(&path)?;
    if missing > 0 { Err("durable pairs are missing".into()) } else { Ok(()) }
}

fn run(args: &Args) -> Outcome<()> {
    if let (true, Some(folder)) = (args.child, &args.folder) {
        return child(folder, args);
    }
    let base = args.folder.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::tempdir_in(base)?;
    match args.kill {
        Some(rounds) => (0..rounds).try_for_each(|round| kill(folder.path(), args, round)),
        None => measure(folder.path(), args),
    }
}

fn main() -> Outcome<()> {
    run(&Args::parse())
}
