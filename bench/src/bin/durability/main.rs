//! Measures the cost of durability. Compares Tidemark with Redis in one run, with the same clients
//! and likes, and prints ratios.
//!
//! ```text
//! cargo build --release -p tidemark -p tidemark-bench
//! target/release/durability always                    64 clients, fsync before each reply
//! target/release/durability shown                     readers of pages during such likes
//! target/release/durability likes --likes 10000000    pipelined, everysec: CPU, log bytes
//! target/release/durability snapshot --rows 20000000  pages during a snapshot; then recovery
//! target/release/durability recover --rows 10000000   recovery alone
//! ```
//!
//! `--keep DIR` caches the data of the last two commands. With the cache, a run of the same size
//! takes one minute instead of ten.
//!
//! A like is `FEED.ACT like USER POST` in Tidemark, and `MULTI, SADD liked:POST USER, HINCRBY
//! post:POST like 1, EXEC` in Redis. The number of likes per post follows Zipf's law with exponent
//! 1. CPU time is that of the server process (`/proc/PID/stat`, user and system).

mod recovery;
mod snapshot;

use clap::{Parser, Subcommand};
use client::Client;
use snapshot::Traffic;
use std::io;
use std::time::{Duration, Instant};
use tidemark_bench::play::{load, median, on_threads, post, take, text};
use tidemark_bench::server::{Server, ServerFiles};

/// Measures the cost of durability, compared with redis-server
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    place: ServerFiles,
    /// Seed of the likes
    #[arg(long, global = true, default_value_t = 1)]
    seed: u64,
}

#[derive(Subcommand)]
enum What {
    /// Acknowledged likes per second, with an fsync before each reply
    Always {
        /// Number of clients, each with one pending like
        #[arg(long, default_value_t = 64)]
        clients: u64,
        /// Seconds per server and round
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        /// Number of rounds; the servers alternate
        #[arg(long, default_value_t = 3)]
        rounds: u64,
    },
    /// Page latency while other clients send likes, with an fsync before each reply
    Shown {
        /// Number of clients that send likes, each with one pending like
        #[arg(long, default_value_t = 64)]
        clients: u64,
        /// Number of clients that request pages, each with one pending request
        #[arg(long, default_value_t = 4)]
        readers: u64,
        /// Seconds per server and round
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        /// Number of rounds; the servers alternate
        #[arg(long, default_value_t = 3)]
        rounds: u64,
    },
    /// CPU time and log bytes of pipelined likes, with one fsync per second
    Likes {
        /// Number of likes
        #[arg(long, default_value_t = 1_000_000)]
        likes: u64,
        /// Number of posts
        #[arg(long, default_value_t = 1_000_000)]
        posts: usize,
        /// Number of connections
        #[arg(long, default_value_t = 4)]
        clients: u64,
    },
    /// Page latency during a snapshot, and recovery time
    Snapshot {
        #[command(flatten)]
        size: Size,
        /// Pages of 32 posts per second
        #[arg(long, default_value_t = 1000)]
        pages: u64,
        /// Likes per second during the snapshot
        #[arg(long, default_value_t = 500)]
        likes: u64,
        /// Number of snapshots
        #[arg(long, default_value_t = 3)]
        rounds: u64,
        /// Waits for a line of input between loading and measuring, so that other processes can be
        /// stopped
        #[arg(long)]
        wait: bool,
    },
    /// Recovery from a snapshot, without pages
    Recover {
        #[command(flatten)]
        size: Size,
        /// Recovers from the log, without a snapshot
        #[arg(long)]
        log: bool,
    },
}

/// Amount of data to load.
#[derive(clap::Args)]
struct Size {
    /// Number of rows, with four counters each
    #[arg(long, default_value_t = 2_000_000)]
    rows: u64,
    /// Number of rows to load into Redis, as hashes
    #[arg(long, default_value_t = 500_000)]
    redis_rows: u64,
    /// Number of pairs, in ascending order of posts; 390 million take 1 GiB
    #[arg(long, default_value_t = 2_000_000)]
    pairs: u64,
}

fn tidemark(args: &Args, fsync: &'static str, more: &str) -> io::Result<Server> {
    args.place.tidemark(fsync, more)
}

fn redis(args: &Args, options: &'static [&'static str]) -> io::Result<Server> {
    args.place.redis(options)
}

/// Sends the commands of a page. Returns the number of replies.
type Page = fn(&mut Client, posts: &[u64]) -> usize;

/// Sends the commands of a like. Returns the number of replies.
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

/// Zipf distribution with exponent 1 over posts. The popularity rank of each post is random.
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

fn page_tidemark(client: &mut Client, posts: &[u64]) -> usize {
    let ids: Vec<_> = posts.iter().map(|&post| text(post)).collect();
    let words: Vec<&[u8]> =
        [&b"FEED.GET"[..], b"home", b"7"].into_iter().chain(ids.iter().map(|id| &id[..])).collect();
    client.push(&words);
    1
}

fn page_redis(client: &mut Client, posts: &[u64]) -> usize {
    for &post in posts {
        let post = text(post);
        client.push(&[
            b"HMGET",
            &[b"post:", &post[..]].concat(),
            b"like",
            b"repost",
            b"comment",
            b"read",
        ]);
        client.push(&[b"SISMEMBER", &[b"liked:", &post[..]].concat(), b"7"]);
    }
    2 * posts.len()
}

/// Measures page requests while other clients send likes, with an fsync before each reply. Returns
/// pages per second, and latencies in milliseconds.
fn shown(args: &Args, clients: u64, readers: u64, seconds: u64, rounds: u64) -> io::Result<()> {
    let ours = tidemark(args, "always", "")?;
    let theirs = redis(args, &["--appendonly", "yes", "--appendfsync", "always"])?;
    let zipf = Zipf::new(1_000_000, &mut fastrand::Rng::with_seed(args.seed));
    println!(
        "{clients} clients like posts, Zipf(1) over 1,000,000 posts; {readers} clients read pages \
         of 20 random posts; no pipelining"
    );
    println!(
        "{:>8} {:>6} {:>9} {:>9} {:>8} {:>8} {:>8} {:>6}",
        "", "round", "likes/s", "pages/s", "p50", "p99", "p99.9", "load"
    );
    let run = |name: &str, server: &Server, like: Like, page: Page, round: u64| -> io::Result<()> {
        let until = Instant::now() + Duration::from_secs(seconds);
        let times = std::sync::Mutex::new(Vec::new());
        let likes = on_threads(clients + readers, |i| {
            let (mut client, mut rng) =
                (server.client()?, fastrand::Rng::with_seed(round * 1000 + i));
            let (mut done, mut took) = (0, vec![]);
            while Instant::now() < until {
                if i < clients {
                    let replies = like(
                        &mut client,
                        zipf.draw(&mut rng),
                        5_000_000_000 + rng.u64(0..4_000_000_000),
                    );
                    take(&mut client, replies)?;
                    done += 1;
                } else {
                    let posts: Vec<u64> = (0..20).map(|_| post(rng.u64(0..1_000_000))).collect();
                    let began = Instant::now();
                    let replies = page(&mut client, &posts);
                    take(&mut client, replies)?;
                    took.push(began.elapsed());
                }
            }
            times.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(took);
            Ok(done)
        })?;
        let mut times = times.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        times.sort_unstable();
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
        println!(
            "{name:>8} {round:>6} {:>9.0} {:>9.0} {:>8.2} {:>8.2} {:>8.2} {:>6}",
            likes as f64 / seconds as f64,
            times.len() as f64 / seconds as f64,
            at(0.5),
            at(0.99),
            at(0.999),
            load()
        );
        Ok(())
    };
    for round in 0..rounds {
        run("tidemark", &ours, like_tidemark, page_tidemark, round)?;
        run("redis", &theirs, like_redis, page_redis, round)?;
    }
    Ok(())
}

fn always(args: &Args, clients: u64, seconds: u64, rounds: u64) -> io::Result<()> {
    let ours = tidemark(args, "always", "")?;
    let theirs = redis(args, &["--appendonly", "yes", "--appendfsync", "always"])?;
    let zipf = Zipf::new(1_000_000, &mut fastrand::Rng::with_seed(args.seed));
    let rate = |server: &Server, like: Like, round: u64| -> io::Result<f64> {
        let until = Instant::now() + Duration::from_secs(seconds);
        let likes = on_threads(clients, |i| {
            let (mut client, mut rng) =
                (server.client()?, fastrand::Rng::with_seed(round * clients + i));
            let mut done = 0;
            while Instant::now() < until {
                let replies = like(
                    &mut client,
                    zipf.draw(&mut rng),
                    5_000_000_000 + rng.u64(0..4_000_000_000),
                );
                take(&mut client, replies)?;
                done += 1;
            }
            Ok(done)
        })?;
        Ok(likes as f64 / seconds as f64)
    };
    println!(
        "{clients} clients, one like at a time, synced before the reply; acknowledged likes per \
         second"
    );
    println!("{:>8} {:>10} {:>10} {:>7} {:>6}", "round", "tidemark", "redis", "ratio", "load");
    let mut ratios = vec![];
    for round in 0..rounds {
        let (a, b) = (rate(&ours, like_tidemark, round)?, rate(&theirs, like_redis, round)?);
        println!("{round:>8} {a:>10.0} {b:>10.0} {:>7.2} {:>6}", a / b, load());
        ratios.push(a / b);
    }
    println!("median ratio {:.2} (target: at least 1)", median(ratios));
    Ok(())
}

fn likes(args: &Args, likes: u64, posts: usize, clients: u64) -> io::Result<()> {
    let zipf = Zipf::new(posts, &mut fastrand::Rng::with_seed(args.seed));
    println!(
        "{likes} pipelined likes, Zipf(1) over {posts} posts, {clients} connections, synced every \
         second"
    );
    println!(
        "{:>8} {:>9} {:>9} {:>12} {:>12} {:>11} {:>6}",
        "", "seconds", "CPU s", "likes/CPU s", "log bytes", "bytes/like", "load"
    );
    // Run the servers one after the other, so that neither affects the CPU time of the other.
    let run = |name: &str, server: &Server, like: Like, log: &str| -> io::Result<(f64, f64)> {
        let (started, cpu) = (Instant::now(), server.cpu_s());
        on_threads(clients, |i| {
            let (mut client, mut rng) =
                (server.client()?, fastrand::Rng::with_seed(args.seed * 1000 + i));
            let mut waiting = 0;
            for _ in 0..likes / clients {
                waiting += like(
                    &mut client,
                    zipf.draw(&mut rng),
                    5_000_000_000 + rng.u64(0..4_000_000_000),
                );
                if client.is_full() {
                    take(&mut client, std::mem::take(&mut waiting))?;
                }
            }
            take(&mut client, waiting)?;
            Ok(0)
        })?;
        let seconds = started.elapsed().as_secs_f64();
        // Wait until pending writes have reached the disk.
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
    // Run one server at a time, so that they do not compete for memory.
    let (ours, our_bytes) =
        run("tidemark", &tidemark(args, "everysec", "")?, like_tidemark, ".tlog")?;
    let redis = redis(args, &["--appendonly", "yes", "--appendfsync", "everysec"])?;
    let (theirs, their_bytes) = run("redis", &redis, like_redis, ".aof")?;
    println!("likes per CPU second: {:.1} times Redis's (target: at least 4)", ours / theirs);
    println!("log bytes: {:.3} of Redis's (target: at most 0.1)", our_bytes / their_bytes);
    Ok(())
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    match args.what {
        What::Always { clients, seconds, rounds } => always(&args, clients, seconds, rounds),
        What::Shown { clients, readers, seconds, rounds } => {
            shown(&args, clients, readers, seconds, rounds)
        }
        What::Likes { likes: count, posts, clients } => likes(&args, count, posts, clients),
        What::Snapshot { ref size, pages, likes, rounds, wait } => {
            snapshot::measure(&args, size, &Traffic { pages, likes, rounds, wait })
        }
        What::Recover { ref size, log } => {
            let (ours, redis) =
                (recovery::filled(&args, size)?, recovery::filled_redis(&args, size)?);
            recovery::measure(size, ours, redis, log)
        }
    }
}
