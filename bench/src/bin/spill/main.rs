//! Tests and measures spilled rows, with more posts than fit into memory.
//!
//! ```text
//! cargo build --release -p tidemark-bench --bin spill
//! target/release/spill fill  --dir DIR --rows 200000000
//!     loads more than a limit of 512 MiB, with three kills during a spill; then checks every row,
//!     again after a restart, and before and after a kill during a merge
//! target/release/spill reads --dir DIR --rows 200000000
//!     single cold rows: reads as counted by the kernel; 1 to 16 readers compared with pread
//!     (--rocksdb: and with RocksDB)
//! target/release/spill hot   --dir DIR --rows 200000000
//!     hot pages without and with 5 % cold ones
//! target/release/spill full  --dir DIR
//!     a disk that fills up during a spill and during a merge (a tmpfs: as root)
//! ```
//!
//! If the folder exists, `fill` checks its rows and continues to load. `fill` does not remove the
//! folder, because `reads` and `hot` use its data. The process exits with an error if a check
//! fails.

mod check;
mod full;
mod hot;
mod node;
mod reads;
mod rocksdb;
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
    /// Data folder; must be on the disk to measure
    #[arg(long, global = true, default_value = "spill-data")]
    dir: PathBuf,
    /// Number of posts
    #[arg(long, global = true, default_value_t = 10_000_000)]
    rows: u64,
    #[command(flatten)]
    setup: Setup,
}

#[derive(Subcommand)]
enum What {
    /// Loads, kills, restarts, changes and checks all rows
    Fill {
        /// Check only one in this many pages of consecutive rows, except in the last check
        #[arg(long, default_value_t = 1)]
        sample: u64,
    },
    /// Reads of single cold rows
    Reads {
        /// Number of rounds of changes that `fill` has applied; `fill` prints it at the end
        #[arg(long, default_value_t = 1)]
        rounds: u64,
        /// Reads per measurement
        #[arg(long, default_value_t = 5_000)]
        number: u64,
        /// Number of repetitions; the measurements alternate
        #[arg(long, default_value_t = 5)]
        turns: usize,
        /// Also measures RocksDB (db_bench of rocksdb-tools), in a neighbouring folder
        #[arg(long)]
        rocksdb: bool,
    },
    /// Latency of hot pages while other clients request cold pages
    Hot {
        /// Number of rounds of changes that `fill` has applied; `fill` prints it at the end
        #[arg(long, default_value_t = 1)]
        rounds: u64,
        /// Pages per second
        #[arg(long, default_value_t = 1000)]
        rate: u64,
        /// Seconds per measurement
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        /// Number of repetitions; both measurements alternate
        #[arg(long, default_value_t = 9)]
        turns: u64,
    },
    /// Behaviour on a full disk
    Full,
    /// Runs the server process; the other commands start it
    #[command(hide = true)]
    Node,
}

fn main() -> io::Result<()> {
    let Arguments { what, dir, rows, setup } = Arguments::parse();
    match what {
        What::Node => node::serve(&dir, &setup),
        What::Fill { sample } => fill(&dir, &setup, rows, sample),
        What::Reads { rounds, number, turns, rocksdb } => {
            let peers = if rocksdb { &["none", "zstd"][..] } else { &[] };
            let fill = |kind| rocksdb::Peer::fill(&dir.with_extension(kind), rows, kind);
            let peers = peers.iter().map(|&kind| Ok((kind, fill(kind)?)));
            let peers = peers.collect::<io::Result<Vec<_>>>()?;
            read(&dir, &setup, (rows, rounds), number, turns, &peers)
        }
        What::Hot { rounds, rate, seconds, turns } => {
            hot(&dir, &setup, (rows, rounds), rate, seconds, turns)
        }
        What::Full => full::run(&dir, &setup),
    }
}

/// Maximum accepted ratio of resident to planned memory.
const MAX_MEMORY_RATIO: f64 = 1.1;
/// Maximum memory of unsynced batches (`LogOptions::unsynced_bytes`) and of pending changes
/// (`CommitOptions::queued_keys`).
const LOG_MIB: f64 = 16.0 + 24.0;

fn error(text: impl Into<String>) -> io::Error {
    io::Error::other(text.into())
}

/// Whether a cold file is being written.
fn is_writing(dir: &Path) -> bool {
    let names =
        std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.into_iter().any(|name| name.to_string_lossy().ends_with(".tcold.tmp"))
}

fn wait_for(
    what: &str,
    patience_s: u64,
    mut is: impl FnMut() -> io::Result<bool>,
) -> io::Result<()> {
    let began = Instant::now();
    while !is()? {
        if began.elapsed().as_secs() > patience_s {
            return Err(error(format!("timed out after {patience_s} s: {what}")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Approximate number of rows in memory and on disk.
fn loaded(node: &Node) -> io::Result<f64> {
    node.call(&["DBSIZE"])?.parse().map_err(io::Error::other)
}

/// Prints the current resident memory and its peak since the last call. Returns the ratio of the
/// peak to the planned memory.
fn memory(node: &Node, setup: &Setup, base_mib: f64, when: &str) -> io::Result<f64> {
    let (now, peak) = node.resident_mib();
    let mib = |name| node.info(name).map(|n| n / 1048576.0);
    let (index, cached, deleted) =
        (mib("cold_index_bytes")?, mib("cold_cache_bytes")?, 24.0 * mib("overlay_deleted")?);
    // A spill sorts ids in chunks, and the log keeps unsynced data in memory: see [spill] in the
    // configuration.
    let spill = 16.0 * (setup.per_table as f64 / 16.0).max(65536.0) / 1048576.0 + 1.0;
    let overheads = base_mib + index + setup.cache_mib as f64 + deleted + spill + LOG_MIB;
    let planned = setup.limit_mib as f64 + overheads;
    println!(
        "  {when}: resident {now:.0} MiB, peak {peak:.0} MiB since the last line: {:.2} of the \
         planned {planned:.0} (limit {}, empty process {base_mib:.0}, file indexes {index:.1}, \
         cache {} with {cached:.0} used, deleted rows {deleted:.1}, spill {spill:.0}, log \
         {LOG_MIB:.0})",
        peak / planned,
        setup.limit_mib,
        setup.cache_mib,
    );
    println!("    {} MiB", node.at_peak());
    node.forget_peak()?;
    Ok(peak / planned)
}

fn check(
    node: &Node,
    all: &Rows,
    (rows, rounds): (u64, u64),
    sample: u64,
    when: &str,
) -> io::Result<()> {
    let took = check::sampled_pages(node, all, rows, rounds, sample)?;
    let of = if sample == 1 { "all".to_owned() } else { format!("one in {sample}") };
    println!("  {of} of {rows} rows correct {when} ({:.0} s)", took.as_secs_f64());
    Ok(())
}

fn start(dir: &Path, setup: &Setup, after: &str) -> io::Result<Node> {
    let node = Node::start(dir, setup)?;
    let read_mib = node.proc("io", "rchar") / 1048576.0;
    println!("  started {after} in {:.1} s, {read_mib:.0} MiB read", node.started_in.as_secs_f64());
    Ok(node)
}

// Long: the function is not split because every step changes or measures the same data set.
fn fill(dir: &Path, setup: &Setup, rows: u64, sample: u64) -> io::Result<()> {
    const KILLS: u64 = 3;
    let all = Rows::new();
    let goes_on = dir.exists();
    let scratch = tempfile::tempdir()?;
    let empty = Node::start(scratch.path(), setup)?;
    let base_mib = empty.resident_mib().0;
    empty.stop()?;
    let mut node = Node::start(dir, setup)?;
    let mut worst = 0f64;
    println!("load {rows} rows, limit {} MiB", setup.limit_mib);
    let (mut from, mut loading) = (0, Duration::ZERO);
    if goes_on {
        let there = check::whole_or_absent(&node, &all, 0, rows)?;
        println!("  resuming: {there} rows found, all correct");
        from = there.saturating_sub(1_000_000);
    }
    let first = from;
    for part in 1..=KILLS {
        let (until, began) = (rows * part / (KILLS + 1), Instant::now());
        if until <= from {
            continue;
        }
        node.begin_load(from, rows)?;
        // Samples: time, and number of loaded rows.
        let mut seen = vec![(Instant::now(), from as f64)];
        wait_for("loading", 36_000, || {
            std::thread::sleep(Duration::from_millis(100));
            seen.push((Instant::now(), loaded(&node)?));
            Ok(seen.last().is_some_and(|seen| seen.1 > until as f64))
        })?;
        wait_for("a spill", 600, || Ok(is_writing(dir)))?;
        let killed = Instant::now();
        loading += killed - began;
        worst = worst.max(memory(&node, setup, base_mib, "before a kill during a spill")?);
        node.kill()?;
        node = start(dir, setup, "after the kill")?;
        // With one sync per second, a kill loses at most the rows of one second plus the duration
        // of a sync.
        let safe = seen
            .iter()
            .rev()
            .find(|seen| killed - seen.0 > Duration::from_secs(3))
            .map_or(0.0, |seen| seen.1);
        let there = from + check::whole_or_absent(&node, &all, from, rows)?;
        if (there as f64) < safe * 0.999 {
            return Err(error(format!(
                "found {there} rows, but {safe} existed 3 seconds before the kill"
            )));
        }
        println!("  found {there} rows, all correct; {safe:.0} existed 3 seconds before the kill");
        worst = worst.max(memory(&node, setup, base_mib, "after the restart")?);
        from = there.saturating_sub(1_000_000);
    }
    let began = Instant::now();
    node.begin_load(from, rows)?;
    node.end_load()?;
    loading += began.elapsed();
    println!("  loaded, {:.0} rows per second", (rows - first) as f64 / loading.as_secs_f64());
    worst = worst.max(memory(&node, setup, base_mib, "at the end of loading")?);
    check(&node, &all, (rows, 0), sample, "after the load")?;
    worst = worst.max(memory(&node, setup, base_mib, "after the check")?);
    let (bytes, cold) = (node.info("cold_file_bytes")?, node.info("cold_rows")?);
    println!(
        "  {:.0} files, {cold} rows in them, {:.3} bytes per row",
        node.info("cold_files")?,
        bytes / cold
    );
    if bytes / cold > 7.0 {
        return Err(error("more than 7 bytes per row"));
    }

    println!("restart");
    println!("  stopped in {:.1} s", node.stop()?.as_secs_f64());
    let node = start(dir, setup, "after the stop")?;
    check(&node, &all, (rows, 0), sample, "after a restart")?;
    worst = worst.max(memory(&node, setup, base_mib, "after the check")?);

    println!(
        "changes of one row in {} and as many deletions, then a kill during a merge",
        rows::STRIDE
    );
    let (mut rounds, mut took, waiting) = (0, Duration::ZERO, |node: &Node| {
        Ok::<f64, io::Error>(node.info("overlay_bytes")? + 24.0 * node.info("overlay_deleted")?)
    });
    // Change rows until the overlay is large enough for a merge.
    while rounds < 5 && waiting(&node)? < (setup.limit_mib << 20) as f64 / 16.0 {
        took += check::change(&node, &all, rows, rounds)?;
        rounds += 1;
    }
    println!("  {} changes in {:.1} s", rows / rows::STRIDE * 2 * rounds, took.as_secs_f64());
    node.call(&["WAITAOF", "1", "0", "10000"])?;
    let merges = node.info("merges")?;
    let small = node.info("overlay_bytes")?;
    println!(
        "  {merges} merges so far; {:.0} changed rows of {small:.0} bytes pending",
        node.info("merge_backlog_rows")?
    );
    wait_for("a merge", 60, || Ok(is_writing(dir)))?;
    node.kill()?;
    let node = start(dir, setup, "after a kill during a merge")?;
    check(&node, &all, (rows, rounds), sample, "after the kill")?;
    worst = worst.max(memory(&node, setup, base_mib, "after the check")?);
    let mut before = f64::NAN;
    wait_for("the end of merges", 3600, || {
        let merges = node.info("merges")?;
        std::thread::sleep(Duration::from_secs(3));
        Ok(std::mem::replace(&mut before, merges) == merges && !is_writing(dir))
    })?;
    println!("  {before} merges; {:.0} changed rows pending", node.info("merge_backlog_rows")?);
    check(&node, &all, (rows, rounds), 1, "after all merges")?;
    worst = worst.max(memory(&node, setup, base_mib, "after the check")?);
    let (bytes, cold) = (node.info("cold_file_bytes")?, node.info("cold_rows")?);
    println!(
        "  {:.0} files, {:.3} bytes per row; stopped in {:.1} s",
        node.info("cold_files")?,
        bytes / cold,
        node.stop()?.as_secs_f64()
    );
    if worst > MAX_MEMORY_RATIO {
        return Err(error(format!(
            "used {worst:.2} of the planned memory, more than {MAX_MEMORY_RATIO}"
        )));
    }
    println!("  used at most {worst:.2} of the planned memory");
    println!(
        "to reuse this folder: spill reads (or hot) --dir {} --rows {rows} --rounds {rounds} \
         --limit-mib {} --per-table {}",
        dir.display(),
        setup.limit_mib,
        setup.per_table
    );
    Ok(())
}

fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

fn read(
    dir: &Path,
    setup: &Setup,
    (rows, rounds): (u64, u64),
    number: u64,
    turns: usize,
    peers: &[(&str, rocksdb::Peer)],
) -> io::Result<()> {
    // Use a small cache, so that most reads go to the disk. Exclude the last rows, which are in
    // memory.
    let setup = &Setup { cache_mib: 1, ..setup.clone() };
    let (all, mut node) = (Rows::new(), Node::start(dir, setup)?);
    let cold = (node.info("cold_rows")? as u64).min(rows) / 10 * 9;
    let files = Arc::new(reads::Files::open(dir)?);
    println!(
        "{number} random reads each, in alternating turns: pread with one thread per reader, rows \
         inside the server (one thread per core, readers are tasks), rows over sockets"
    );
    for (kind, peer) in peers {
        println!("  RocksDB, compression {kind}: {:.1} bytes per row", peer.bytes_per_row);
    }
    for readers in [1, 2, 4, 8, 16] {
        let mut ratios = [vec![], vec![], vec![], vec![]];
        for turn in 0..turns {
            // Use other rows for each measurement, so that they are not in the page cache.
            let pattern = |way: u64| {
                let seed = readers << 16 | (turn as u64) << 8 | way;
                files.drop_cache().map(|()| reads::Pattern { cold, rounds, readers, number, seed })
            };
            let plain = reads::plain(&files, &pattern(0)?)?;
            let inside = node.read_inside(&pattern(1)?)?;
            let served = reads::served(&node, &all, &pattern(2)?)?;
            for (name, m) in [("pread", &plain), ("inside", &inside), ("served", &served)] {
                let reads::Measured { per_s, p50_us, p99_us, device_bytes, calls, busy_us } = m;
                println!(
                    "  {readers:2} readers, {name:6}: {per_s:6.0}/s, p50 {p50_us:4.0} us, p99 \
                     {p99_us:5.0} us, {busy_us:5.1} us of CPU time; from the device \
                     {device_bytes:.0} bytes, {calls:.3} read calls"
                );
            }
            for (kind, peer) in peers {
                let (per_s, busy_us) = peer.read(readers, number)?;
                println!(
                    "  {readers:2} readers, RocksDB, {kind}: {per_s:6.0}/s, {busy_us:5.1} us of \
                     CPU time"
                );
            }
            let of = [
                inside.p99_us / plain.p99_us,
                served.p99_us / plain.p99_us,
                inside.p50_us / plain.p50_us,
                served.p50_us / plain.p50_us,
            ];
            ratios.iter_mut().zip(of).for_each(|(ratios, ratio)| ratios.push(ratio));
        }
        let [inside99, served99, inside50, served50] =
            ratios.each_mut().map(|ratios| median(ratios));
        println!(
            "  {readers:2} readers, relative to pread: p99 {inside99:.2} inside, {served99:.2} \
             served; p50 {inside50:.2}, {served50:.2} (medians of {turns} turns)"
        );
    }
    node.stop().map(drop)
}

fn hot(
    dir: &Path,
    setup: &Setup,
    (rows, rounds): (u64, u64),
    rate: u64,
    seconds: u64,
    turns: u64,
) -> io::Result<()> {
    let setup = &Setup { cache_mib: 1, ..setup.clone() };
    let (all, node) = (Rows::new(), Node::start(dir, setup)?);
    let cold = (node.info("cold_rows")? as u64).min(rows) / 10 * 9;
    // The rows of the newest table are in memory.
    let load = hot::Load {
        hot: rows - 100_000..rows,
        cold,
        rounds,
        rate,
        time: Duration::from_secs(seconds),
    };
    let files = reads::Files::open(dir)?;
    hot::pages(&node, &all, &load, 0.0, 0)?;
    let (mut ratios, mut all_none, mut all_some) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 1..=turns {
        let ask = |share: f64| -> io::Result<Vec<u64>> {
            files.drop_cache()?;
            hot::pages(&node, &all, &load, share, turn)
        };
        // Alternate the order, so that other processes on the machine affect both measurements
        // equally.
        let (none, some) = if turn % 2 == 1 {
            let none = ask(0.0)?;
            (none, ask(0.05)?)
        } else {
            let some = ask(0.05)?;
            (ask(0.0)?, some)
        };
        let us = |ns: &[u64]| {
            [0.5, 0.99, 0.999].map(|share| reads::percentile(&mut ns.to_vec(), share) / 1000.0)
        };
        let (without, with) = (us(&none), us(&some));
        ratios.push(with[2] / without[2]);
        println!(
            "  hot pages, p50, p99, p99.9: {without:.0?} us without cold pages, {with:.0?} us with \
             5 %: {:.2} times",
            with[2] / without[2]
        );
        all_none.extend(none);
        all_some.extend(some);
    }
    let of_all = reads::percentile(&mut all_some, 0.999) / reads::percentile(&mut all_none, 0.999);
    println!(
        "  p99.9 {:.2} times (median of {turns} turns), {of_all:.2} times over all turns; {rate} \
         pages of 32 posts per second",
        median(&mut ratios)
    );
    node.stop().map(drop)
}
