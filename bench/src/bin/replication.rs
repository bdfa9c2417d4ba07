//! Measures the cost of replication. Compares Tidemark with Redis in one run.
//!
//! ```text
//! cargo build --release -p tidemark -p tidemark-bench
//! target/release/replication sync --rows 100000000 --redis-rows 15000000 --wait
//!                                   a full sync of 1 GB, and pages of the master during it
//! target/release/replication wait   increments with WAIT 1, in rounds
//! target/release/replication hot    stream bytes of a row that is written a million times
//! target/release/replication away   a replica is down for 20 log segments, and resumes
//! ```
//!
//! In `sync` the replica runs with idle priority (`chrt --idle`), because a replica on another
//! machine would not use the master's CPU. With `--beside`, the replica runs at normal priority. A
//! page is `FEED.GET` of 32 posts in Tidemark, and 32 pipelined HMGET in Redis, without flags. A
//! like is one HINCRBY in both.

use clap::{Parser, Subcommand};
use client::{Client, Reply};
use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidemark_bench::play::{
    fill, load, make_room, median, on_threads, percentile, post, row_redis, row_tidemark, take,
    take_all, text,
};
use tidemark_bench::server::{Server, ServerFiles};

/// Measures the cost of replication, compared with redis-server
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    place: ServerFiles,
}

#[derive(Subcommand)]
enum What {
    /// Duration of a full sync, and the master's page latency before and during the sync
    Sync {
        /// Number of rows, with four counters each
        #[arg(long, default_value_t = 1_000_000)]
        rows: u64,
        /// Number of rows to load into Redis, as hashes
        #[arg(long, default_value_t = 200_000)]
        redis_rows: u64,
        /// Pages per second
        #[arg(long, default_value_t = 1000)]
        pages: u64,
        /// Likes per second during the sync
        #[arg(long, default_value_t = 500)]
        likes: u64,
        /// Seconds for which pages are measured before each sync
        #[arg(long, default_value_t = 10)]
        calm_s: u64,
        /// Runs replicas at normal priority
        #[arg(long)]
        beside: bool,
        /// Number of full syncs of each server; the servers alternate
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Waits for a line of input between loading and measuring, so that other processes can be
        /// stopped
        #[arg(long)]
        wait: bool,
    },
    /// Increments, each followed by WAIT 1, from several clients
    Wait {
        /// Number of clients, each with one pending increment and WAIT
        #[arg(long, default_value_t = 4)]
        clients: u64,
        /// Seconds per server and round
        #[arg(long, default_value_t = 4)]
        seconds: u64,
        /// Number of rounds; the servers alternate
        #[arg(long, default_value_t = 9)]
        rounds: u64,
    },
    /// Bytes sent to a replica for repeated writes to one row
    Hot {
        /// Number of writes
        #[arg(long, default_value_t = 1_000_000)]
        writes: u64,
    },
    /// A replica is killed and resumes after the master has begun `segments` new log segments.
    /// Segment size (64 MiB), snapshots and log retention have their default settings
    Away {
        /// Number of segments
        #[arg(long, default_value_t = 20)]
        segments: u64,
        /// Number of rows that are written repeatedly while the replica is down
        #[arg(long, default_value_t = 4_000_000)]
        rows: u64,
    },
}

/// One of the two compared servers, with its commands.
#[derive(Clone, Copy, PartialEq)]
enum ServerKind {
    Tidemark,
    Redis { options: &'static [&'static str] },
}

/// Redis without persistence, except for full syncs, which start immediately.
const REDIS: ServerKind =
    ServerKind::Redis { options: &["--appendonly", "no", "--repl-diskless-sync-delay", "0"] };
/// Redis with Tidemark's default durability.
const REDIS_EVERYSEC: ServerKind = ServerKind::Redis {
    options: &[
        "--appendonly",
        "yes",
        "--appendfsync",
        "everysec",
        "--repl-diskless-sync-delay",
        "0",
    ],
};

const CONFIG: &str = "[[counter]]\nname = \"post\"\n\
                      fields = \"like:12 repost:8 comment:8 read:16\"\nrows = \"post:{id}\"\n\
                      memory_limit = 16_000_000_000\n[[view]]\nname = \"home\"\n\
                      counters = [\"post\"]\n";

impl ServerKind {
    fn name(self) -> &'static str {
        if self == ServerKind::Tidemark { "tidemark" } else { "redis" }
    }

    fn start(self, args: &Args) -> io::Result<Server> {
        match self {
            ServerKind::Tidemark => args.place.tidemark("everysec", CONFIG),
            ServerKind::Redis { options } => args.place.redis(options),
        }
    }

    /// Starts another, empty server with idle priority.
    fn start_idly(self, args: &Args) -> io::Result<Server> {
        let idly = || {
            let thread = rustix::thread::gettid().to_string();
            let done = Command::new("chrt").args(["--idle", "--pid", "0", &thread]).status()?;
            if done.success() { self.start(args) } else { Err(io::Error::other("chrt failed")) }
        };
        // Child processes inherit the scheduling policy of the thread.
        std::thread::scope(|s| {
            s.spawn(idly).join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
        })
    }

    fn page(self, client: &mut Client, posts: &[u64]) -> io::Result<()> {
        let posts: Vec<Vec<u8>> = posts.iter().map(|p| text(*p)).collect();
        if self == ServerKind::Tidemark {
            let mut words: Vec<&[u8]> = vec![b"FEED.GET", b"home", b"5000000007"];
            words.extend(posts.iter().map(Vec::as_slice));
            client.push(&words);
        } else {
            for post in &posts {
                client.push(&[
                    b"HMGET",
                    &[b"post:", &post[..]].concat(),
                    b"like",
                    b"repost",
                    b"comment",
                    b"read",
                ]);
            }
        }
        take_all(client)
    }
}

fn like(client: &mut Client, post: u64) {
    client.push(&[b"HINCRBY", &[b"post:", &text(post)[..]].concat(), b"like", b"1"]);
}

fn number(server: &Server, field: &str) -> io::Result<f64> {
    server.info(field)?.parse().map_err(|e| io::Error::other(format!("{field}: {e}")))
}

fn rows_of(server: &Server) -> io::Result<i64> {
    match server.client()?.call(&[b"DBSIZE"])? {
        Reply::Integer(rows) => Ok(rows),
        other => Err(io::Error::other(format!("DBSIZE: {other:?}"))),
    }
}

/// Makes `replica` follow `master` and waits until it is in sync. Returns the duration in seconds.
fn attach(replica: &Server, master: &Server) -> io::Result<f64> {
    let started = Instant::now();
    replica.client()?.call(&[b"REPLICAOF", b"127.0.0.1", &text(u64::from(master.port()))])?;
    // The replica may be loading, or may close connections because it replaces its data.
    while !replica.info("master_link_status").is_ok_and(|s| s == "up")
        || !master.info("slave0")?.contains("state=online")
    {
        if started.elapsed() > Duration::from_secs(600) {
            return Err(io::Error::other(format!(
                "the replica has not caught up: {:?}",
                replica.info("master_link_error")
            )));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(started.elapsed().as_secs_f64())
}

/// Measurements of one server.
#[derive(Default)]
struct Synced {
    /// Page latencies in microseconds by round, before and during the sync.
    calm: Vec<Vec<f64>>,
    during: Vec<Vec<f64>>,
    seconds: Vec<f64>,
    /// Anonymous memory of the master in MiB, followed by its maximum growth.
    memory_mib: f64,
    growth_mib: f64,
}

/// Load during a sync.
struct Traffic {
    pages: u64,
    likes: u64,
    calm_s: u64,
    beside: bool,
}

const WARM_UP_PHASE: usize = 0;
const IDLE_PHASE: usize = 1;
const SYNC_PHASE: usize = 2;

/// Runs one full sync under load.
fn sync_once(
    args: &Args,
    kind: ServerKind,
    master: &Server,
    rows: u64,
    traffic: &Traffic,
    to: &mut Synced,
) -> io::Result<()> {
    let (phase, over) = (&AtomicUsize::new(WARM_UP_PHASE), &AtomicBool::new(false));
    let [calm, during] = std::thread::scope(|s| -> io::Result<[Vec<f64>; 2]> {
        let reader = s.spawn(move || -> io::Result<[Vec<f64>; 2]> {
            let (mut client, mut rng) = (master.client()?, fastrand::Rng::with_seed(7));
            let mut taken = [vec![], vec![]];
            let mut due = Instant::now();
            while !over.load(Relaxed) {
                due += Duration::from_secs_f64(1.0 / traffic.pages as f64);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                let before = phase.load(Relaxed);
                let posts: Vec<u64> = (0..32).map(|_| post(rng.u64(0..rows))).collect();
                kind.page(&mut client, &posts)?;
                // Measure from the scheduled time. A slow page then increases the latency of the
                // pages that it delays.
                if before != WARM_UP_PHASE && before == phase.load(Relaxed) {
                    taken[before - IDLE_PHASE].push(due.elapsed().as_secs_f64() * 1e6);
                }
            }
            Ok(taken)
        });
        let writer = s.spawn(move || -> io::Result<()> {
            let (mut client, mut rng) = (master.client()?, fastrand::Rng::with_seed(8));
            let mut due = Instant::now();
            while !over.load(Relaxed) {
                due += Duration::from_secs_f64(1.0 / traffic.likes as f64);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                like(&mut client, post(rng.u64(0..rows)));
                take(&mut client, 1)?;
            }
            Ok(())
        });
        let mut control = || -> io::Result<()> {
            let replica = if traffic.beside { kind.start(args)? } else { kind.start_idly(args)? };
            std::thread::sleep(Duration::from_secs(1));
            phase.store(IDLE_PHASE, Relaxed);
            std::thread::sleep(Duration::from_secs(traffic.calm_s));
            to.memory_mib = master.memory_mib();
            phase.store(SYNC_PHASE, Relaxed);
            let done = &AtomicBool::new(false);
            let (seconds, most) = std::thread::scope(|s| {
                let watch = s.spawn(move || {
                    let mut most = 0f64;
                    while !done.load(Relaxed) {
                        most = most.max(master.memory_mib());
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    most
                });
                let seconds = attach(&replica, master);
                done.store(true, Relaxed);
                (seconds, watch.join().unwrap_or(f64::NAN))
            });
            phase.store(WARM_UP_PHASE, Relaxed);
            to.seconds.push(seconds?);
            to.growth_mib = to.growth_mib.max(most - to.memory_mib);
            let (here, there) = (rows_of(master)?, rows_of(&replica)?);
            if here != there {
                return Err(io::Error::other(format!("the replica has {there} of {here} rows")));
            }
            Ok(())
        };
        let outcome = control();
        over.store(true, Relaxed);
        let panicked = |_| io::Error::other("a client panicked");
        writer.join().map_err(panicked)??;
        let taken = reader.join().map_err(panicked)??;
        outcome.map(|()| taken)
    })?;
    to.calm.push(calm);
    to.during.push(during);
    Ok(())
}

// Long: the function is not split because the measurements and the printed table use the same list
// of masters.
fn sync(
    args: &Args,
    rows: u64,
    redis_rows: u64,
    traffic: &Traffic,
    rounds: usize,
    wait: bool,
) -> io::Result<()> {
    let both = [(ServerKind::Tidemark, rows), (REDIS, redis_rows)];
    let mut masters = vec![];
    for (kind, rows) in both {
        let master = kind.start(args)?;
        let is_ours = kind == ServerKind::Tidemark;
        fill(&master, rows, if is_ours { row_tidemark } else { row_redis })?;
        master.client()?.call(&[b"SAVE"])?;
        let bytes = master.bytes_of(if is_ours { ".tsnap" } else { ".rdb" });
        println!(
            "{:>8}: {rows} rows, {:.0} MB of snapshot, {:.0} MiB of memory",
            kind.name(),
            bytes as f64 / 1e6,
            master.memory_mib()
        );
        masters.push((kind, rows, bytes, master, Synced::default()));
    }
    if wait {
        println!("loaded; press Enter to start the measurement");
        io::stdin().read_line(&mut String::new())?;
    }
    for _ in 0..rounds {
        for (kind, rows, _, master, synced) in &mut masters {
            sync_once(args, *kind, master, *rows, traffic, synced)?;
            std::thread::sleep(Duration::from_secs(2));
        }
    }
    println!(
        "{:>8} {:>24} {:>7} {:>9} {:>30} {:>30} {:>20}   microseconds",
        "",
        "seconds to online",
        "MB/s",
        "rows/s",
        "before: p50, p99, p99.9",
        "during the sync: p50, p99, p99.9",
        "p99.9 by round"
    );
    for (kind, rows, bytes, master, synced) in masters {
        let Synced { mut calm, mut during, seconds, memory_mib, growth_mib } = synced;
        let median_s = median(seconds.clone());
        let list = |values: &[f64], digits: usize| {
            values.iter().map(|v| format!("{v:.digits$}")).collect::<Vec<_>>().join(" ")
        };
        let line = |values: &mut Vec<f64>| {
            list(&[0.5, 0.99, 0.999].map(|share| percentile(values, share)), 0)
        };
        let ratios: Vec<f64> = calm
            .iter_mut()
            .zip(&mut during)
            .map(|(c, d)| percentile(d, 0.999) / percentile(c, 0.999))
            .collect();
        println!(
            "{:>8} {:>24} {:>7.0} {:>9.0} {:>30} {:>30} {:>20}",
            kind.name(),
            list(&seconds, 2),
            bytes as f64 / 1e6 / median_s,
            rows as f64 / median_s,
            line(&mut calm.concat()),
            line(&mut during.concat()),
            list(&ratios, 2)
        );
        let child = master.info("rdb_last_cow_size").unwrap_or_default();
        println!(
            "{:>8} memory of the master {memory_mib:.0} MiB, up to {growth_mib:.0} MiB more during \
             a sync{}",
            "",
            if kind == ServerKind::Tidemark {
                String::new()
            } else {
                format!(", and {child} bytes in its child process")
            }
        );
    }
    println!("load {}", load());
    Ok(())
}

fn pair(args: &Args, kind: ServerKind) -> io::Result<(Server, Server)> {
    let (master, replica) = (kind.start(args)?, kind.start(args)?);
    attach(&replica, &master)?;
    Ok((master, replica))
}

fn wait(args: &Args, clients: u64, seconds: u64, rounds: u64) -> io::Result<()> {
    let ours = pair(args, ServerKind::Tidemark)?;
    let theirs = pair(args, REDIS_EVERYSEC)?;
    // Returns the number of increments with WAIT per second, and the CPU time of master and replica
    // per increment in microseconds.
    let rate = |(server, replica): &(Server, Server), round: u64| -> io::Result<(f64, f64)> {
        let cpu = || server.threads_cpu_s() + replica.threads_cpu_s();
        let (before, until) = (cpu(), Instant::now() + Duration::from_secs(seconds));
        let pairs = on_threads(clients, |i| {
            let (mut client, mut rng) =
                (server.client()?, fastrand::Rng::with_seed(round * clients + i));
            let mut done = 0;
            while Instant::now() < until {
                like(&mut client, post(rng.u64(0..100_000)));
                client.push(&[b"WAIT", b"1", b"5000"]);
                take(&mut client, 1)?;
                if client.reply()? != Reply::Integer(1) {
                    return Err(io::Error::other(
                        "the replica did not receive the write within 5 s",
                    ));
                }
                done += 1;
            }
            Ok(done)
        })?;
        Ok((pairs as f64 / seconds as f64, (cpu() - before) * 1e6 / pairs as f64))
    };
    println!(
        "{clients} clients, each alternating an increment and WAIT 1; one replica, everysec; \
         acknowledged pairs per second, and microseconds of CPU time of master and replica per pair"
    );
    println!("{:>8} {:>16} {:>16} {:>7} {:>6}", "round", "tidemark", "redis", "ratio", "load");
    let mut ratios = vec![];
    for round in 0..rounds {
        let (a, b) = (rate(&ours, round)?, rate(&theirs, round)?);
        let pair = |(rate, us): (f64, f64)| format!("{rate:.0}, {us:.1}");
        println!("{round:>8} {:>16} {:>16} {:>7.2} {:>6}", pair(a), pair(b), a.0 / b.0, load());
        ratios.push(a.0 / b.0);
    }
    ratios.sort_by(f64::total_cmp);
    let ends = ratios.first().zip(ratios.last()).unwrap_or((&f64::NAN, &f64::NAN));
    println!("ratio: median {:.2}, from {:.2} to {:.2}", median(ratios.clone()), ends.0, ends.1);
    Ok(())
}

fn hot(args: &Args, writes: u64) -> io::Result<()> {
    println!(
        "{writes} times HINCRBY of one row, pipeline of {}; bytes of the replication stream",
        Client::IN_FLIGHT
    );
    let mut bytes = vec![];
    for kind in [ServerKind::Tidemark, REDIS_EVERYSEC] {
        let (master, replica) = pair(args, kind)?;
        let before = number(&master, "master_repl_offset")?;
        let mut client = master.client()?;
        let started = Instant::now();
        for _ in 0..writes {
            like(&mut client, post(7));
            make_room(&mut client)?;
        }
        take_all(&mut client)?;
        let seconds = started.elapsed().as_secs_f64();
        if client.call(&[b"WAIT", b"1", b"60000"])? != Reply::Integer(1) {
            return Err(io::Error::other("the replica did not receive the writes within a minute"));
        }
        let streamed = number(&master, "master_repl_offset")? - before;
        let held = replica.client()?.call(&[
            b"HGET",
            &[b"post:", &text(post(7))[..]].concat(),
            b"like",
        ])?;
        if held != Reply::BulkString(text(writes)) {
            return Err(io::Error::other(format!("the replica returned {held:?}")));
        }
        println!(
            "{:>8}: {streamed:.0} bytes, in {seconds:.2} s; the replica has {writes}",
            kind.name()
        );
        bytes.push(streamed);
    }
    println!("{:.6} of Redis's (target: kilobytes)", bytes[0] / bytes[1]);
    Ok(())
}

fn away(args: &Args, segments: u64, rows: u64) -> io::Result<()> {
    let (master, mut replica) = pair(args, ServerKind::Tidemark)?;
    // Restore the default.
    master.client()?.call(&[b"CONFIG", b"SET", b"durability.snapshot_log", b"268435456"])?;
    replica.kill()?;
    let (first, before) =
        (number(&master, "log_written_segment")?, number(&master, "master_repl_offset")?);
    let (started, mut pass) = (Instant::now(), 0u64);
    while number(&master, "log_written_segment")? < first + segments as f64 {
        pass += 1;
        on_threads(2, |i| {
            let mut client = master.client()?;
            for some in (i..rows).step_by(200) {
                let ids: Vec<Vec<u8>> = (some..rows.min(some + 200))
                    .step_by(2)
                    .map(|index| text(post(index)))
                    .collect();
                let mut words: Vec<&[u8]> = vec![b"CNT.MINCRBY", b"post"];
                ids.iter().for_each(|id| words.extend([&id[..], b"like", b"1"]));
                client.push(&words);
                make_room(&mut client)?;
            }
            take_all(&mut client)?;
            Ok(0)
        })?;
    }
    let missed = number(&master, "master_repl_offset")? - before;
    println!(
        "the log rolled {} times and grew by {:.0} MB in {:.0} s; {:.0} MB of it are on disk",
        number(&master, "log_written_segment")? - first,
        missed / 1e6,
        started.elapsed().as_secs_f64(),
        master.bytes_of(".tlog") as f64 / 1e6,
    );
    let (ready_s, _) = replica.again()?;
    let back = Instant::now();
    let end = number(&master, "master_repl_offset")?;
    while replica.info("slave_repl_offset").ok().and_then(|n| n.parse().ok()).unwrap_or(0f64) < end
    {
        if back.elapsed() > Duration::from_secs(600) {
            return Err(io::Error::other(format!(
                "the replica has not caught up: {:?}",
                replica.info("master_link_error")
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let seconds = back.elapsed().as_secs_f64();
    let (full, continued) =
        (number(&replica, "repl_full_syncs")?, number(&replica, "repl_continued")?);
    println!(
        "the replica was ready after {ready_s:.1} s and caught up {seconds:.1} s later, {:.0} \
         MB/s; full syncs: {full}",
        missed / 1e6 / seconds
    );
    let (mut here, mut there) = (master.client()?, replica.client()?);
    for index in (0..rows).step_by(rows.div_ceil(1000) as usize) {
        let id = text(post(index));
        let words: [&[u8]; 3] = [b"CNT.GET", b"post", &id];
        let held = [here.call(&words)?, there.call(&words)?];
        if held[0] != held[1] || !format!("{:?}", held[0]).contains(&format!("Integer({pass})")) {
            return Err(io::Error::other(format!(
                "post {index}: expected a count of {pass}, found {held:?}"
            )));
        }
    }
    if full > 0.0 || continued != 1.0 {
        return Err(io::Error::other("the replica did a full sync instead of resuming"));
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    match args.what {
        What::Sync { rows, redis_rows, pages, likes, calm_s, beside, rounds, wait } => {
            sync(&args, rows, redis_rows, &Traffic { pages, likes, calm_s, beside }, rounds, wait)
        }
        What::Wait { clients, seconds, rounds } => wait(&args, clients, seconds, rounds),
        What::Hot { writes } => hot(&args, writes),
        What::Away { segments, rows } => away(&args, segments, rows),
    }
}
