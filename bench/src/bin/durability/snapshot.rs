//! Measures page latency during a snapshot, compared with the background noise of the machine.
//!
//! Each round has three phases with the same load: no other activity, a snapshot, and `dd`. `dd`
//! writes as many bytes as the snapshot to the same disk, with a sync every 2 MiB. Server, clients
//! and `dd` share the processors. The latency during `dd` therefore shows the effect of any process
//! that writes at this rate on this machine. Redis is measured the same way with BGSAVE. Redis's
//! pages contain only counters.

use crate::{Args, Like, Size, like_redis, like_tidemark, recovery};
use client::{Client, Reply};
use std::io;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidemark_bench::play::{load, median, percentile, post, take, text};
use tidemark_bench::server::Server;

/// Load during the phases.
pub(crate) struct Traffic {
    pub(crate) pages: u64,
    /// Likes per second.
    pub(crate) likes: u64,
    pub(crate) rounds: u64,
    /// Whether to wait for a line of input before measuring.
    pub(crate) wait: bool,
}

/// Number of posts per page. `AMONG`: number of posts from which the posts of a page are drawn.
const POSTS: usize = 32;
const AMONG: u64 = 4000;
/// Duration of the phase without other activity.
const IDLE_PHASE_DURATION: Duration = Duration::from_secs(8);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Names of the phases: the activity that runs concurrently with the page requests.
const PHASES: [&str; 3] = ["no other work", "a snapshot", "dd of the same size"];
const CALM_AT: usize = 0;
const SNAPSHOT_AT: usize = 1;
const FOREIGN_WRITE_PHASE: usize = 2;
const PHASES_ENDED: usize = usize::MAX;

/// A measured server: its name, and the functions that send its commands.
struct ServerCommands {
    name: &'static str,
    /// Sends the commands of a page and returns the number of replies.
    page: fn(&mut Client, &[Vec<u8>]) -> usize,
    like: Like,
    rows: u64,
}

fn page_of_tidemark(client: &mut Client, ids: &[Vec<u8>]) -> usize {
    let mut words: Vec<&[u8]> = vec![b"FEED.GET", b"home", b"5000000007"];
    words.extend(ids.iter().map(Vec::as_slice));
    client.push(&words);
    1
}

fn page_of_redis(client: &mut Client, ids: &[Vec<u8>]) -> usize {
    for id in ids {
        client.push(&[
            b"HMGET",
            &[b"post:", &id[..]].concat(),
            b"like",
            b"repost",
            b"comment",
            b"read",
        ]);
    }
    ids.len()
}

/// Measurements of one server.
#[derive(Default)]
struct ServerResults {
    /// Page latencies in microseconds, by round and phase.
    pages: Vec<[Vec<f64>; 3]>,
    /// Duration of each snapshot in seconds.
    took: Vec<f64>,
    /// Additional memory used during each snapshot, in MiB.
    extra: Vec<f64>,
}

/// Whether a snapshot is being written.
fn is_saving(client: &mut Client) -> io::Result<bool> {
    match client.call(&[b"INFO", b"persistence"])? {
        Reply::BulkString(text) => {
            Ok(String::from_utf8_lossy(&text).contains("rdb_bgsave_in_progress:1"))
        }
        other => Err(io::Error::other(format!("INFO: {other:?}"))),
    }
}

/// Runs `dd`, which generates and writes `bytes` random bytes.
fn run_dd(args: &Args, bytes: u64) -> io::Result<()> {
    let folder = args.place.folder()?;
    let of = format!("of={}", folder.path().join("stranger").display());
    let count = format!("count={}", bytes.div_ceil(2 << 20));
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/urandom", &of, "bs=2M", &count, "oflag=dsync"]).stderr(Stdio::null());
    if dd.status()?.success() { Ok(()) } else { Err(io::Error::other("dd failed")) }
}

/// Requests pages and measures each latency from the scheduled time of the request. A slow page
/// therefore increases the latency of the pages that it delays.
fn read(
    server: &Server,
    manner: &ServerCommands,
    every: Duration,
    stage: &AtomicUsize,
) -> io::Result<Vec<[Vec<f64>; 3]>> {
    let (mut client, mut rng) = (server.client()?, fastrand::Rng::with_seed(7));
    let mut pages: Vec<[Vec<f64>; 3]> = vec![];
    let mut due = Instant::now();
    loop {
        let now = stage.load(Relaxed);
        if now == PHASES_ENDED {
            return Ok(pages);
        }
        due += every;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let first = rng.u64(0..manner.rows.saturating_sub(AMONG).max(1));
        let ids: Vec<Vec<u8>> = (0..POSTS)
            .map(|_| text(post(first + rng.u64(0..AMONG).min(manner.rows - 1))))
            .collect();
        let replies = (manner.page)(&mut client, &ids);
        take(&mut client, replies)?;
        let us = due.elapsed().as_secs_f64() * 1e6;
        // Discard pages that overlap two phases.
        if now == stage.load(Relaxed) {
            let (round, phase) = (now / PHASES.len(), now % PHASES.len());
            pages.resize_with(pages.len().max(round + 1), Default::default);
            pages[round][phase].push(us);
        }
    }
}

fn write(
    server: &Server,
    manner: &ServerCommands,
    every: Duration,
    stage: &AtomicUsize,
) -> io::Result<()> {
    let (mut client, mut rng) = (server.client()?, fastrand::Rng::with_seed(8));
    let mut due = Instant::now();
    while stage.load(Relaxed) != PHASES_ENDED {
        due += every;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let replies = (manner.like)(&mut client, post(rng.u64(0..manner.rows)), rng.u64(..1 << 40));
        take(&mut client, replies)?;
    }
    Ok(())
}

/// Runs the phases.
fn control(
    args: &Args,
    server: &Server,
    traffic: &Traffic,
    files: &str,
    stage: &AtomicUsize,
) -> io::Result<ServerResults> {
    let mut client = server.client()?;
    let mut seen = ServerResults::default();
    // Send the same INFO requests in every phase.
    let mut watch = |until: &mut dyn FnMut(bool) -> bool| -> io::Result<f64> {
        let mut most = 0.0f64;
        loop {
            let saving = is_saving(&mut client)?;
            most = most.max(server.memory_mib());
            if until(saving) {
                return Ok(most);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    };
    for round in 0..traffic.rounds as usize {
        let enter = |phase: usize| stage.store(round * PHASES.len() + phase, Relaxed);
        enter(CALM_AT);
        let begun = Instant::now();
        watch(&mut |_| begun.elapsed() >= IDLE_PHASE_DURATION)?;
        let before = server.memory_mib();
        enter(SNAPSHOT_AT);
        let begun = Instant::now();
        server.client()?.call(&[b"BGSAVE"])?;
        let most = watch(&mut |saving| !saving)?;
        seen.took.push(begun.elapsed().as_secs_f64());
        seen.extra.push(most - before);
        enter(FOREIGN_WRITE_PHASE);
        std::thread::scope(|s| {
            let dd = s.spawn(|| run_dd(args, server.bytes_of(files)));
            watch(&mut |_| dd.is_finished())?;
            dd.join().map_err(|_| io::Error::other("dd's thread panicked"))?
        })?;
    }
    Ok(seen)
}

/// Runs all phases against one server.
fn run(
    args: &Args,
    server: &Server,
    manner: &ServerCommands,
    traffic: &Traffic,
    files: &str,
) -> io::Result<ServerResults> {
    let stage = AtomicUsize::new(CALM_AT);
    let every = |per_second: u64| Duration::from_secs_f64(1.0 / per_second as f64);
    std::thread::scope(|s| {
        let reader = s.spawn(|| read(server, manner, every(traffic.pages), &stage));
        let writer = s.spawn(|| write(server, manner, every(traffic.likes), &stage));
        let seen = control(args, server, traffic, files, &stage);
        stage.store(PHASES_ENDED, Relaxed);
        let panicked = |_| io::Error::other("a client panicked");
        writer.join().map_err(panicked)??;
        let pages = reader.join().map_err(panicked)??;
        seen.map(|seen| ServerResults { pages, ..seen })
    })
}

/// Prints latencies and their ratios.
fn print(manner: &ServerCommands, seen: &mut ServerResults) {
    println!(
        "{:>10} {:>14} {:>9} {:>9} {:>9} {:>9} {:>9}   microseconds",
        manner.name, "during", "pages", "p50", "p99", "p99.9", "p99.99"
    );
    let mut ratios = [vec![], vec![], vec![]];
    let line = |name: &str, phase: usize, values: &mut Vec<f64>| {
        let shares = [0.5, 0.99, 0.999, 0.9999].map(|share| percentile(values, share));
        let [p50, p99, p999, p9999] = shares;
        println!(
            "{name:>10} {:>14} {:>9} {p50:>9.0} {p99:>9.0} {p999:>9.0} {p9999:>9.0}",
            PHASES[phase],
            values.len()
        );
        p999
    };
    for (round, phases) in seen.pages.iter_mut().enumerate() {
        let name = format!("round {round}");
        let calm = line(&name, CALM_AT, &mut phases[CALM_AT]);
        ratios[CALM_AT].push(1.0);
        for phase in [SNAPSHOT_AT, FOREIGN_WRITE_PHASE] {
            ratios[phase].push(line(&name, phase, &mut phases[phase]) / calm);
        }
    }
    let all = [CALM_AT, SNAPSHOT_AT, FOREIGN_WRITE_PHASE].map(|phase| {
        let mut values: Vec<f64> =
            seen.pages.iter().flat_map(|phases| phases[phase].iter().copied()).collect();
        line("all", phase, &mut values)
    });
    for phase in [SNAPSHOT_AT, FOREIGN_WRITE_PHASE] {
        let each: Vec<String> = ratios[phase].iter().map(|ratio| format!("{ratio:.2}")).collect();
        println!(
            "p99.9 during {}: {:.2} times the value without it, all pages; by round {}, median \
             {:.2}; load {}",
            PHASES[phase],
            all[phase] / all[CALM_AT],
            each.join(" "),
            median(ratios[phase].clone()),
            load()
        );
    }
}

/// Measures Tidemark, then Redis, then recovery of both.
pub(crate) fn measure(args: &Args, size: &Size, traffic: &Traffic) -> io::Result<()> {
    let (ours, redis) = (recovery::filled(args, size)?, recovery::filled_redis(args, size)?);
    if traffic.wait {
        println!("loaded; press Enter to start the measurement");
        io::stdin().read_line(&mut String::new())?;
    }
    let manner = ServerCommands {
        name: "tidemark",
        page: page_of_tidemark,
        like: like_tidemark,
        rows: size.rows,
    };
    let mut seen = run(args, &ours, &manner, traffic, ".tsnap")?;
    print(&manner, &mut seen);
    println!(
        "a snapshot took {:.1} s (median), {:.0} MiB on disk, and up to {:.0} MiB more memory \
         (target: at most 64); target for p99.9: at most 1.5 times",
        median(seen.took),
        ours.bytes_of(".tsnap") as f64 / (1 << 20) as f64,
        seen.extra.iter().copied().fold(0.0, f64::max)
    );
    let manner = ServerCommands {
        name: "redis",
        page: page_of_redis,
        like: like_redis,
        rows: size.redis_rows,
    };
    let mut seen = run(args, &redis, &manner, traffic, ".rdb")?;
    print(&manner, &mut seen);
    println!(
        "a BGSAVE of {} rows took {:.1} s (median), {:.0} MiB on disk, and {:.0} MiB more memory",
        size.redis_rows,
        median(seen.took),
        redis.bytes_of(".rdb") as f64 / (1 << 20) as f64,
        redis.info("rdb_last_cow_size")?.parse::<f64>().unwrap_or(f64::NAN) / (1 << 20) as f64
    );
    recovery::measure(size, ours, redis, false)
}
