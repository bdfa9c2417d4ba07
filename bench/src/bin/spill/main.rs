//! More posts than memory holds: what must hold of spilled rows, shown at size.
//!
//! ```text
//! cargo build --release -p tidemark-bench --bin spill
//! target/release/spill fill  --dir DIR --rows 200000000    loads them over a limit of 512 MiB, killed three times in the middle of a spill;
//!                                                          every row is checked then, after a restart, and around a kill in the middle of a merge
//! target/release/spill reads --dir DIR --rows 200000000    one cold row: reads by the kernel's count; 1 to 16 readers beside plain pread
//! target/release/spill hot   --dir DIR --rows 200000000    hot pages without and with 5 % cold ones
//! target/release/spill full  --dir DIR                     a disk that fills up in the middle of a spill and of a merge (a tmpfs: as root)
//! ```
//!
//! The folder stays: `reads` and `hot` go on with what `fill` has made. What does not hold ends the program with an error.

mod check;
mod full;
mod hot;
mod node;
mod reads;
mod rows;

use clap::{Parser, Subcommand};
use node::{Node, Setup};
use rows::Rows;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    what: What,
    /// The data folder; on the disk that is to be measured.
    #[arg(long, global = true, default_value = "spill-data")]
    dir: PathBuf,
    /// Posts.
    #[arg(long, global = true, default_value_t = 10_000_000)]
    rows: u64,
    #[command(flatten)]
    setup: Setup,
}

#[derive(Subcommand)]
enum What {
    /// Loads, kills, restarts, changes and checks every row.
    Fill {
        /// All checks but the last look at one page of neighbours in so many.
        #[arg(long, default_value_t = 1)]
        sample: u64,
    },
    /// Cold rows one by one.
    Reads {
        /// Rounds of changes that `fill` has done.
        #[arg(long, default_value_t = 1)]
        rounds: u64,
        /// Reads of each measurement.
        #[arg(long, default_value_t = 20_000)]
        number: u64,
    },
    /// Hot pages beside cold ones.
    Hot {
        /// Rounds of changes that `fill` has done.
        #[arg(long, default_value_t = 1)]
        rounds: u64,
        /// Pages per second.
        #[arg(long, default_value_t = 1000)]
        rate: u64,
        /// Seconds of each measurement.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// A full disk.
    Full,
    /// The server itself: started by the others.
    #[command(hide = true)]
    Node,
}

fn main() -> io::Result<()> {
    let Arguments { what, dir, rows, setup } = Arguments::parse();
    match what {
        What::Node => node::serve(&dir, &setup),
        What::Fill { sample } => fill(&dir, &setup, rows, sample),
        What::Reads { rounds, number } => read(&dir, &setup, rows, rounds, number),
        What::Hot { rounds, rate, seconds } => hot(&dir, &setup, (rows, rounds), rate, seconds),
        What::Full => full::run(&dir, &setup),
    }
}

/// What may be resident, of what the configuration says.
const MOST: f64 = 1.1;
/// Batches that are not synced: `LogOptions::unsynced_bytes`.
const LOG_MIB: f64 = 16.0;

fn error(text: impl Into<String>) -> io::Error {
    io::Error::other(text.into())
}

/// Whether a cold file is being written at this moment.
fn is_writing(dir: &Path) -> bool {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.into_iter().any(|name| name.to_string_lossy().ends_with(".tcold.tmp"))
}

fn wait_for(what: &str, patience_s: u64, mut is: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let began = Instant::now();
    while !is()? {
        if began.elapsed().as_secs() > patience_s {
            return Err(error(format!("not in {patience_s} s: {what}")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Rows in memory and on the disk, about.
fn loaded(node: &Node) -> io::Result<f64> {
    node.call(&["DBSIZE"])?.parse().map_err(io::Error::other)
}

fn memory(node: &Node, setup: &Setup, base_mib: f64, when: &str) -> io::Result<()> {
    let (now, peak) = node.resident_mib();
    let mib = |name| node.info(name).map(|n| n / 1048576.0);
    let (index, cached, deleted) = (mib("cold_index_bytes")?, mib("cold_cache_bytes")?, 24.0 * mib("overlay_deleted")?);
    // A spill sorts ids piece by piece, and what is not synced yet the log has in memory: see the configuration, [spill].
    let spill = 16.0 * (setup.per_table as f64 / 16.0).max(65536.0) / 1048576.0 + 1.0;
    let overheads = base_mib + index + setup.cache_mib as f64 + deleted + spill + LOG_MIB;
    let planned = setup.limit_mib as f64 + overheads;
    println!(
        "  {when}: resident {now:.0} MiB, at most {peak:.0} MiB since the last line: {:.2} of the planned {planned:.0} (limit {}, process \
         without rows {base_mib:.0}, index of the files {index:.1}, cache {} of which {cached:.0} used, deleted rows {deleted:.1}, a spill \
         {spill:.0}, the log {LOG_MIB:.0})",
        peak / planned,
        setup.limit_mib,
        setup.cache_mib,
    );
    if peak > MOST * planned {
        return Err(error(format!("more than {MOST} of what was planned")));
    }
    node.forget_peak()
}

fn check(node: &Node, all: &Rows, (rows, rounds): (u64, u64), sample: u64, when: &str) -> io::Result<()> {
    let took = check::one_in(node, all, rows, rounds, sample)?;
    let of = if sample == 1 { "every one".to_owned() } else { format!("one in {sample}") };
    println!("  {of} of {rows} rows is right {when} ({:.0} s)", took.as_secs_f64());
    Ok(())
}

fn start(dir: &Path, setup: &Setup, after: &str) -> io::Result<Node> {
    let node = Node::start(dir, setup)?;
    let read_mib = node.proc("io", "rchar") / 1048576.0;
    println!("  started {after} in {:.1} s, {read_mib:.0} MiB read", node.started_in.as_secs_f64());
    Ok(node)
}

fn fill(dir: &Path, setup: &Setup, rows: u64, sample: u64) -> io::Result<()> {
    if dir.exists() {
        return Err(error(format!("{} is there already", dir.display())));
    }
    const KILLS: u64 = 3;
    let all = Rows::new();
    let mut node = Node::start(dir, setup)?;
    let base_mib = node.resident_mib().0;
    println!("load {rows} rows, limit {} MiB", setup.limit_mib);
    let (mut from, mut loading) = (0, Duration::ZERO);
    for part in 1..=KILLS {
        let (until, began) = (rows * part / (KILLS + 1), Instant::now());
        node.begin_load(from, rows)?;
        // How many there were, and when.
        let mut seen = vec![(Instant::now(), from as f64)];
        wait_for("loading", 36_000, || {
            std::thread::sleep(Duration::from_millis(100));
            seen.push((Instant::now(), loaded(&node)?));
            Ok(seen.last().is_some_and(|seen| seen.1 > until as f64))
        })?;
        wait_for("a spill", 600, || Ok(is_writing(dir)))?;
        let killed = Instant::now();
        loading += killed - began;
        memory(&node, setup, base_mib, "before a kill in the middle of a spill")?;
        node.kill()?;
        node = start(dir, setup, "after it")?;
        // What is synced every second has at most a second to lose, and the time that the sync takes.
        let safe = seen.iter().rev().find(|seen| killed - seen.0 > Duration::from_secs(3)).map_or(0.0, |seen| seen.1);
        let there = from + check::whole_or_absent(&node, &all, from, rows)?;
        if (there as f64) < safe * 0.999 {
            return Err(error(format!("{there} rows are there, {safe} had been 3 seconds before the kill")));
        }
        println!("  {there} rows are there, each as it was; {safe:.0} had been 3 seconds before the kill");
        memory(&node, setup, base_mib, "after the restart")?;
        from = there.saturating_sub(1_000_000);
    }
    let began = Instant::now();
    node.begin_load(from, rows)?;
    node.end_load()?;
    loading += began.elapsed();
    println!("  loaded, {:.0} rows per second", rows as f64 / loading.as_secs_f64());
    memory(&node, setup, base_mib, "at the end of loading")?;
    check(&node, &all, (rows, 0), sample, "right after the load")?;
    memory(&node, setup, base_mib, "after that check")?;
    let (bytes, cold) = (node.info("cold_file_bytes")?, node.info("cold_rows")?);
    println!("  {:.0} files, {cold} rows in them, {:.3} bytes per row", node.info("cold_files")?, bytes / cold);
    if bytes / cold > 7.0 {
        return Err(error("more than 7 bytes per row"));
    }

    println!("restart");
    println!("  stopped in {:.1} s", node.stop()?.as_secs_f64());
    let node = start(dir, setup, "after that")?;
    check(&node, &all, (rows, 0), sample, "after a restart")?;
    memory(&node, setup, base_mib, "after that check")?;

    println!("changes of one row in {} and deletion of as many, then a kill in the middle of a merge", rows::STRIDE);
    let (mut rounds, mut took, waiting) = (0, Duration::ZERO, |node: &Node| {
        Ok::<f64, io::Error>(node.info("overlay_bytes")? + 24.0 * node.info("overlay_deleted")?)
    });
    // Until it is worth a merge.
    while rounds < 5 && waiting(&node)? < (setup.limit_mib << 20) as f64 / 16.0 {
        took += check::change(&node, &all, rows, rounds)?;
        rounds += 1;
    }
    println!("  {} changes in {:.1} s", rows / rows::STRIDE * 2 * rounds, took.as_secs_f64());
    node.call(&["WAITAOF", "1", "0", "10000"])?;
    let merges = node.info("merges")?;
    let small = node.info("overlay_bytes")?;
    println!(
        "  {merges} merges until here; {:.0} changed rows of {small:.0} bytes wait",
        node.info("merge_backlog_rows")?
    );
    wait_for("a merge", 60, || Ok(is_writing(dir)))?;
    node.kill()?;
    let node = start(dir, setup, "after a kill in the middle of a merge")?;
    check(&node, &all, (rows, rounds), sample, "after that")?;
    memory(&node, setup, base_mib, "after that check")?;
    let mut before = f64::NAN;
    wait_for("merges end", 3600, || {
        let merges = node.info("merges")?;
        std::thread::sleep(Duration::from_secs(3));
        Ok(std::mem::replace(&mut before, merges) == merges && !is_writing(dir))
    })?;
    println!("  {before} merges; {:.0} changed rows wait", node.info("merge_backlog_rows")?);
    check(&node, &all, (rows, rounds), 1, "after all merges")?;
    memory(&node, setup, base_mib, "after that check")?;
    let (bytes, cold) = (node.info("cold_file_bytes")?, node.info("cold_rows")?);
    println!(
        "  {:.0} files, {:.3} bytes per row; stopped in {:.1} s",
        node.info("cold_files")?,
        bytes / cold,
        node.stop()?.as_secs_f64()
    );
    Ok(())
}

fn read(dir: &Path, setup: &Setup, rows: u64, rounds: u64, number: u64) -> io::Result<()> {
    // Rows that are cached would be too cheap, and those of the last part are in memory.
    let setup = &Setup { cache_mib: 1, ..setup.clone() };
    let (all, node) = (Arc::new(Rows::new()), Node::start(dir, setup)?);
    let cold = (node.info("cold_rows")? as u64).min(rows) / 10 * 9;
    let files = Arc::new(reads::Files::open(dir)?);
    println!("{number} random reads each; per reader count: cold rows, plain pread");
    let mut seed = 0;
    for readers in [1, 2, 4, 8, 16] {
        let mut ratios = Vec::new();
        for _ in 0..3 {
            seed += 1;
            files.drop_cache()?;
            let mut plain = reads::plain(&files, readers, number, seed)?;
            files.drop_cache()?;
            let mut ours = reads::rows(&node, &all, cold, rounds, readers, number, seed)?;
            let ratio = ours.us(0.99) / plain.us(0.99);
            ratios.push(ratio);
            println!(
                "  {readers:2} readers: {:6.0} rows/s, p50 {:4.0} us, p99 {:5.0} us; pread {:6.0}/s, p50 {:4.0} us, p99 {:5.0} us: p99 {ratio:.2} \
                 times; from the device {:.0} bytes per row ({:.0} per pread), {:.3} read calls",
                ours.per_s(),
                ours.us(0.5),
                ours.us(0.99),
                plain.per_s(),
                plain.us(0.5),
                plain.us(0.99),
                ours.device_bytes,
                plain.device_bytes,
                ours.calls,
            );
        }
        ratios.sort_by(f64::total_cmp);
        println!("  {readers:2} readers: p99 is {:.2} times pread's (median of {})", ratios[1], ratios.len());
    }
    node.stop().map(drop)
}

fn hot(dir: &Path, setup: &Setup, (rows, rounds): (u64, u64), rate: u64, seconds: u64) -> io::Result<()> {
    let setup = &Setup { cache_mib: 1, ..setup.clone() };
    let (all, node) = (Rows::new(), Node::start(dir, setup)?);
    let cold = (node.info("cold_rows")? as u64).min(rows) / 10 * 9;
    // The newest table's are in memory.
    let load = hot::Load { hot: rows - 100_000..rows, cold, rounds, rate, time: Duration::from_secs(seconds) };
    let files = reads::Files::open(dir)?;
    hot::pages(&node, &all, &load, 0.0, 0)?;
    let mut ratios = Vec::new();
    for round in 1..=3 {
        let none = hot::p999_us(hot::pages(&node, &all, &load, 0.0, round)?);
        files.drop_cache()?;
        let some = hot::p999_us(hot::pages(&node, &all, &load, 0.05, round)?);
        ratios.push(some / none);
        println!(
            "  hot pages' p99.9: {none:.0} us without, {some:.0} us with 5 % of cold pages: {:.2} times",
            some / none
        );
    }
    ratios.sort_by(f64::total_cmp);
    println!("  {:.2} times (median), {rate} pages per second of 32 posts", ratios[1]);
    node.stop().map(drop)
}
