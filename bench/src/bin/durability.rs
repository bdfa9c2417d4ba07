//! What durability costs: Tidemark beside Redis (the same clients, the same likes, one run), as ratios.
//!
//! ```text
//! cargo build --release -p tidemark-server -p tidemark-bench
//! target/release/durability always                    64 clients, one like each in turn, synced before each reply
//! target/release/durability likes --likes 10000000    pipelined likes, synced every second: CPU and log bytes of each like
//! target/release/durability snapshot --rows 20000000  pages while a snapshot is written, then recovery
//! target/release/durability recover --rows 10000000   recovery alone
//! ```
//!
//! A like is `FEED.ACT like USER POST` here and `MULTI, SADD liked:POST USER, HINCRBY post:POST like 1, EXEC` there. Posts are liked by
//! Zipf's law with exponent 1. CPU time is what the kernel counts for the server process (`/proc/PID/stat`, user and system).

use clap::{Parser, Subcommand};
use redis_protocol::resp2::types::OwnedFrame;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidemark_bench::play::{fill, load, median, on_threads, percentile, post, row_redis, row_tidemark, take, text};
use tidemark_bench::server::Server;
use tidemark_server::cli::client::Client;

/// Measures what durability costs, beside redis-server.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
    /// The program; by default the one beside this one.
    #[arg(long, global = true)]
    tidemark: Option<PathBuf>,
    /// Data folders are made here, and removed. It must be on the disk that is to be measured.
    #[arg(long, global = true, default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// Seed of the likes.
    #[arg(long, global = true, default_value_t = 1)]
    seed: u64,
}

#[derive(Subcommand)]
enum What {
    /// Acknowledged likes a second, synced before each reply.
    Always {
        /// Clients, each with one like under way.
        #[arg(long, default_value_t = 64)]
        clients: u64,
        /// Seconds for each server and round.
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        /// Rounds; the servers take turns.
        #[arg(long, default_value_t = 3)]
        rounds: u64,
    },
    /// CPU time and log bytes of pipelined likes, synced every second.
    Likes {
        /// How many.
        #[arg(long, default_value_t = 1_000_000)]
        likes: u64,
        /// Posts that are liked.
        #[arg(long, default_value_t = 1_000_000)]
        posts: usize,
        /// Connections.
        #[arg(long, default_value_t = 4)]
        clients: u64,
    },
    /// Pages while a snapshot is written, and recovery.
    Snapshot {
        #[command(flatten)]
        size: Size,
        /// Pages of 32 posts a second.
        #[arg(long, default_value_t = 1000)]
        pages: u64,
        /// Likes a second, meanwhile.
        #[arg(long, default_value_t = 500)]
        likes: u64,
        /// Snapshots.
        #[arg(long, default_value_t = 3)]
        rounds: u64,
        /// Waits for a line of input between loading and measuring: what else runs on the machine may end meanwhile.
        #[arg(long)]
        wait: bool,
    },
    /// Recovery from a snapshot, without pages before it.
    Recover {
        #[command(flatten)]
        size: Size,
        /// From the log instead: there is no snapshot.
        #[arg(long)]
        log: bool,
    },
}

/// What is held.
#[derive(clap::Args)]
struct Size {
    /// Rows of four counters.
    #[arg(long, default_value_t = 2_000_000)]
    rows: u64,
    /// The same in Redis, as hashes.
    #[arg(long, default_value_t = 500_000)]
    redis_rows: u64,
    /// Pairs set before, newer posts later; 390 million take 1 GiB.
    #[arg(long, default_value_t = 2_000_000)]
    pairs: u64,
}

fn tidemark(args: &Args, fsync: &'static str, more: &str) -> io::Result<Server> {
    Server::tidemark(args.tidemark.as_deref(), &args.dir, fsync, more)
}

fn redis(args: &Args, options: &'static [&'static str]) -> io::Result<Server> {
    Server::redis(Path::new("redis-server"), &args.dir, options)
}

/// How a like is said to a server: how many replies it has, and the words.
type Like = fn(&mut Client, post: u64, user: u64) -> usize;

fn like_tidemark(client: &mut Client, post: u64, user: u64) -> usize {
    client.push(&[b"FEED.ACT", b"like", &text(user), &text(post)]);
    1
}

fn like_redis(client: &mut Client, post: u64, user: u64) -> usize {
    let (post, user) = (text(post), text(user));
    client.push(&[b"MULTI"]);
    client.push(&[b"SADD", &[b"liked:", &post[..]].concat(), &user]);
    client.push(&[b"HINCRBY", &[b"post:", &post[..]].concat(), b"like", b"1"]);
    client.push(&[b"EXEC"]);
    4
}

/// Zipf's law with exponent 1 over posts whose fame has nothing to do with their age.
struct Zipf {
    up_to: Vec<f64>,
    posts: Vec<u32>,
}

impl Zipf {
    fn new(posts: usize, rng: &mut fastrand::Rng) -> Zipf {
        let mut sum = 0.0;
        let up_to = (1..=posts).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        let up_to = up_to.collect();
        let mut order: Vec<u32> = (0..posts as u32).collect();
        rng.shuffle(&mut order);
        Zipf { up_to, posts: order }
    }

    fn draw(&self, rng: &mut fastrand::Rng) -> u64 {
        let at = rng.f64() * self.up_to.last().copied().unwrap_or(0.0);
        let rank = self.up_to.partition_point(|&sum| sum < at).min(self.posts.len() - 1);
        post(u64::from(self.posts[rank]))
    }
}

fn always(args: &Args, clients: u64, seconds: u64, rounds: u64) -> io::Result<()> {
    let ours = tidemark(args, "always", "")?;
    let theirs = redis(args, &["--appendonly", "yes", "--appendfsync", "always"])?;
    let zipf = Zipf::new(1_000_000, &mut fastrand::Rng::with_seed(args.seed));
    let rate = |server: &Server, like: Like, round: u64| -> io::Result<f64> {
        let until = Instant::now() + Duration::from_secs(seconds);
        let likes = on_threads(clients, |i| {
            let (mut client, mut rng) = (server.client()?, fastrand::Rng::with_seed(round * clients + i));
            let mut done = 0;
            while Instant::now() < until {
                let replies = like(&mut client, zipf.draw(&mut rng), 5_000_000_000 + rng.u64(0..4_000_000_000));
                take(&mut client, replies)?;
                done += 1;
            }
            Ok(done)
        })?;
        Ok(likes as f64 / seconds as f64)
    };
    println!("{clients} clients, one like each in turn, synced before the reply; acknowledged likes a second");
    println!("{:>8} {:>10} {:>10} {:>7} {:>6}", "round", "tidemark", "redis", "ratio", "load");
    let mut ratios = vec![];
    for round in 0..rounds {
        let (a, b) = (rate(&ours, like_tidemark, round)?, rate(&theirs, like_redis, round)?);
        println!("{round:>8} {a:>10.0} {b:>10.0} {:>7.2} {:>6}", a / b, load());
        ratios.push(a / b);
    }
    println!("median ratio {:.2} (asked: at least 1)", median(ratios));
    Ok(())
}

fn likes(args: &Args, likes: u64, posts: usize, clients: u64) -> io::Result<()> {
    let zipf = Zipf::new(posts, &mut fastrand::Rng::with_seed(args.seed));
    println!("{likes} pipelined likes by Zipf(1) over {posts} posts, {clients} connections, synced every second");
    println!(
        "{:>8} {:>9} {:>9} {:>12} {:>12} {:>11} {:>6}",
        "", "seconds", "CPU s", "likes/CPU s", "log bytes", "bytes/like", "load"
    );
    // In turn; each is measured by its own CPU time.
    let run = |name: &str, server: &Server, like: Like, log: &str| -> io::Result<(f64, f64)> {
        let (started, cpu) = (Instant::now(), server.cpu_s());
        on_threads(clients, |i| {
            let (mut client, mut rng) = (server.client()?, fastrand::Rng::with_seed(args.seed * 1000 + i));
            let mut waiting = 0;
            for _ in 0..likes / clients {
                waiting += like(&mut client, zipf.draw(&mut rng), 5_000_000_000 + rng.u64(0..4_000_000_000));
                if client.is_full() {
                    take(&mut client, std::mem::take(&mut waiting))?;
                }
            }
            take(&mut client, waiting)?;
            Ok(0)
        })?;
        let seconds = started.elapsed().as_secs_f64();
        // What is still under way to the disk belongs to it.
        std::thread::sleep(Duration::from_millis(2500));
        let (cpu, bytes) = (server.cpu_s() - cpu, server.bytes_of(log) as f64);
        let likes = (likes / clients * clients) as f64;
        println!(
            "{name:>8} {seconds:>9.1} {cpu:>9.2} {:>12.0} {bytes:>12.0} {:>11.1} {:>6}",
            likes / cpu,
            bytes / likes,
            load()
        );
        Ok((likes / cpu, bytes))
    };
    // One after the other, so that neither's memory is in the other's way.
    let (ours, our_bytes) = run("tidemark", &tidemark(args, "everysec", "")?, like_tidemark, ".tlog")?;
    let redis = redis(args, &["--appendonly", "yes", "--appendfsync", "everysec"])?;
    let (theirs, their_bytes) = run("redis", &redis, like_redis, ".aof")?;
    println!("likes per CPU second: {:.1} times Redis's (asked: at least 4)", ours / theirs);
    println!("log bytes: {:.3} of Redis's (asked: at most 0.1)", our_bytes / their_bytes);
    Ok(())
}

/// Latencies of pages in microseconds, by whether a snapshot was being written; round by round.
#[derive(Default)]
struct Pages {
    calm: Vec<Vec<f64>>,
    saving: Vec<Vec<f64>>,
}

impl Pages {
    fn add(&mut self, round: usize, was_saving: bool, us: f64) {
        let rounds = if was_saving { &mut self.saving } else { &mut self.calm };
        if rounds.len() <= round {
            rounds.resize_with(round + 1, Vec::new);
        }
        rounds[round].push(us);
    }
}

/// What is asked meanwhile.
struct Traffic {
    pages: u64,
    likes: u64,
    rounds: u64,
    wait: bool,
}

/// Is a snapshot being written?
fn is_saving(client: &mut Client) -> io::Result<bool> {
    match client.call(&[b"INFO", b"persistence"])? {
        OwnedFrame::BulkString(text) => Ok(String::from_utf8_lossy(&text).contains("rdb_bgsave_in_progress:1")),
        other => Err(io::Error::other(format!("INFO: {other:?}"))),
    }
}

/// Memory of the filters, as the server counts it.
fn filters_mib(server: &Server) -> io::Result<f64> {
    let reply = server.client()?.call(&[b"INFO", b"spaces"])?;
    let OwnedFrame::BulkString(text) = reply else { return Err(io::Error::other(format!("INFO: {reply:?}"))) };
    let text = String::from_utf8_lossy(&text).into_owned();
    let of_space = |line: &str| line.split_once("memory_bytes=")?.1.split(',').next()?.parse::<f64>().ok();
    Ok(text.lines().filter(|l| l.starts_with("existence_")).filter_map(of_space).sum::<f64>() / (1 << 20) as f64)
}

/// A server with rows and pairs in it.
fn filled(args: &Args, size: &Size) -> io::Result<Server> {
    let counters = "[[counter]]\nname = \"post\"\nfields = \"like:12 repost:8 comment:8 read:16\"\nmemory_limit_bytes = 8_000_000_000\n";
    let filter = |name: &str, pairs: u64| {
        format!("[[existence]]\nname = \"{name}\"\npairs_per_table = {pairs}\nmax_tables = 64\n")
    };
    let rest = "[[view]]\nname = \"home\"\ncounters = [\"post\"]\nflags = [\"liked\", \"read\"]\n[[action]]\nname = \"like\"\nflag = \"liked\"\ncounter = \"post.like\"\n";
    let config = format!("{counters}{}{}{rest}", filter("liked", 16 << 20), filter("read", 1 << 20));
    let server = tidemark(args, "everysec", &config)?;
    let started = Instant::now();
    fill(&server, size.rows, row_tidemark)?;
    on_threads(2, |i| {
        let (mut client, mut rng) = (server.client()?, fastrand::Rng::with_seed(100 + i));
        let requests = size.pairs / 2 / 100;
        for member in 0..requests {
            // Who likes, likes what is recent.
            let first = size.rows.saturating_sub(4000) * member / requests;
            let ids: Vec<Vec<u8>> = (0..100).map(|_| text(post(first + rng.u64(0..4000)))).collect();
            let mut words: Vec<&[u8]> = vec![b"PH.ADD", b"liked"];
            let member = text(5_000_000_000 + member * 2 + i);
            words.push(&member);
            words.extend(ids.iter().map(Vec::as_slice));
            client.push(&words);
            if client.waiting() >= 16 {
                take(&mut client, 8)?;
            }
        }
        let waiting = client.waiting();
        take(&mut client, waiting)?;
        Ok(0)
    })?;
    println!(
        "{} rows; {} pairs in filters of {:.0} MiB; loaded in {:.0} s, {:.0} MiB resident",
        size.rows,
        size.pairs,
        filters_mib(&server)?,
        started.elapsed().as_secs_f64(),
        server.memory_mib()
    );
    Ok(server)
}

fn snapshot(args: &Args, size: &Size, traffic: &Traffic) -> io::Result<()> {
    let server = filled(args, size)?;
    if traffic.wait {
        println!("loaded; a line of input begins the measurement");
        io::stdin().read_line(&mut String::new())?;
    }
    let (saving, over, round) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
    let mut extra = vec![];
    let mut took = vec![];
    let pages = std::thread::scope(|s| -> io::Result<Pages> {
        let (saving, over, round, server) = (&saving, &over, &round, &server);
        let reader = s.spawn(move || -> io::Result<Pages> {
            let (mut client, mut rng) = (server.client()?, fastrand::Rng::with_seed(7));
            let mut pages = Pages::default();
            let mut due = Instant::now();
            while !over.load(Relaxed) {
                due += Duration::from_secs_f64(1.0 / traffic.pages as f64);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                let was_saving = saving.load(Relaxed);
                let first = rng.u64(0..size.rows.saturating_sub(4000).max(1));
                let ids: Vec<Vec<u8>> =
                    (0..32).map(|_| text(post(first + rng.u64(0..4000).min(size.rows - 1)))).collect();
                let mut words: Vec<&[u8]> = vec![b"FEED.GET", b"home", b"5000000007"];
                words.extend(ids.iter().map(Vec::as_slice));
                client.call(&words)?;
                // From the moment it was due, so that a page that holds up others counts for them, too.
                let us = due.elapsed().as_secs_f64() * 1e6;
                if was_saving != saving.load(Relaxed) {
                    continue;
                }
                pages.add(round.load(Relaxed), was_saving, us);
            }
            Ok(pages)
        });
        let writer = s.spawn(move || -> io::Result<()> {
            let (mut client, mut rng) = (server.client()?, fastrand::Rng::with_seed(8));
            let mut due = Instant::now();
            while !over.load(Relaxed) {
                due += Duration::from_secs_f64(1.0 / traffic.likes as f64);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                let replies = like_tidemark(&mut client, post(rng.u64(0..size.rows)), rng.u64(..1 << 40));
                take(&mut client, replies)?;
            }
            Ok(())
        });
        let mut control = || -> io::Result<()> {
            let mut client = server.client()?;
            for number in 0..traffic.rounds as usize {
                round.store(number, Relaxed);
                std::thread::sleep(Duration::from_secs(8));
                let before = server.memory_mib();
                let (mut most, started) = (before, Instant::now());
                client.call(&[b"BGSAVE"])?;
                saving.store(true, Relaxed);
                while is_saving(&mut client)? {
                    most = most.max(server.memory_mib());
                    std::thread::sleep(Duration::from_millis(10));
                }
                saving.store(false, Relaxed);
                took.push(started.elapsed().as_secs_f64());
                extra.push(most - before);
            }
            Ok(())
        };
        let outcome = control();
        over.store(true, Relaxed);
        let panicked = |_| io::Error::other("a client panicked");
        writer.join().map_err(panicked)??;
        let pages = reader.join().map_err(panicked)??;
        outcome.map(|()| pages)
    })?;
    let Pages { mut calm, mut saving } = pages;
    println!("{:>20} {:>9} {:>9} {:>9} {:>9}   microseconds", "pages", "number", "p50", "p99", "p99.9");
    let line = |name: &str, values: &mut Vec<f64>| {
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| percentile(values, share));
        println!("{name:>20} {:>9} {p50:>9.0} {p99:>9.0} {p999:>9.0}", values.len());
        p999
    };
    let mut ratios = vec![];
    for (calm, saving) in calm.iter_mut().zip(&mut saving) {
        ratios.push(1.0 / line("without a snapshot", calm) * line("while it is written", saving));
    }
    let ratio = 1.0 / line("without, all", &mut calm.concat()) * line("while, all", &mut saving.concat());
    let each: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
    println!(
        "p99.9 ratio of all pages {ratio:.2}, of each round {}, their median {:.2} (asked: at most 1.5); load {}",
        each.join(" "),
        median(ratios),
        load()
    );
    println!(
        "a snapshot took {:.1} s (median), {:.0} MiB on the disk, and at most {:.0} MiB more memory (asked: at most 64)",
        median(took),
        server.bytes_of(".tsnap") as f64 / (1 << 20) as f64,
        extra.iter().copied().fold(0.0, f64::max)
    );
    recover(args, size, server, false)
}

/// Kills it and starts it again; then the same with Redis.
fn recover(args: &Args, size: &Size, mut server: Server, from_log: bool) -> io::Result<()> {
    let mut client = server.client()?;
    if !from_log {
        client.call(&[b"SAVE"])?;
    }
    drop(client);
    let (wall, cpu) = server.restart()?;
    let ours = size.rows as f64 / cpu;
    println!(
        "recovery: {wall:.2} s, {cpu:.2} CPU s: {:.2} million rows per second and core, the filter included (asked: 5)",
        ours / 1e6
    );
    drop(server);

    let mut redis = redis(args, &["--appendonly", "no"])?;
    fill(&redis, size.redis_rows, row_redis)?;
    redis.client()?.call(&[b"SAVE"])?;
    let (wall, cpu) = redis.restart()?;
    let theirs = size.redis_rows as f64 / cpu;
    println!(
        "Redis, {} rows from its RDB file: {wall:.2} s, {cpu:.2} CPU s: {:.2} million rows per second and core; ratio {:.1}",
        size.redis_rows,
        theirs / 1e6,
        ours / theirs
    );
    Ok(())
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    match args.what {
        What::Always { clients, seconds, rounds } => always(&args, clients, seconds, rounds),
        What::Likes { likes: count, posts, clients } => likes(&args, count, posts, clients),
        What::Snapshot { ref size, pages, likes, rounds, wait } => {
            snapshot(&args, size, &Traffic { pages, likes, rounds, wait })
        }
        What::Recover { ref size, log } => recover(&args, size, filled(&args, size)?, log),
    }
}
