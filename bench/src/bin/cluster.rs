//! Measures the cost of a page that a node assembles from several shards, compared with a page that
//! one node serves alone.
//!
//! ```text
//! cargo build --release -p tidemark -p tidemark-bench
//! target/release/cluster --shards 4 --clients 32 --rate 8000
//! ```
//!
//! The benchmark alternates between a single server and a cluster. Both store the same posts and
//! receive the same number of page requests per second. A page is `FEED.GET` with the two flags of
//! `home` for posts spread over all shards. Clients are distributed evenly over all nodes of the
//! cluster. Each run reports the CPU time of all servers per page, and the page latency that
//! clients observe.

use clap::Parser;
use client::Reply;
use std::fmt::Write as _;
use std::io;
use std::time::{Duration, Instant};
use tidemark_bench::play::{load, make_room, median, percentile, post, take_all, text};
use tidemark_bench::server::{Server, ServerFiles};

/// Compares pages of a cluster with pages of one node
#[derive(Parser)]
struct Args {
    /// Number of shards, one node each
    #[arg(long, default_value_t = 4)]
    shards: usize,
    /// Number of clients
    #[arg(long, default_value_t = 32)]
    clients: u64,
    /// Page requests per second, summed over all clients; 0 for no limit
    #[arg(long, default_value_t = 8000)]
    rate: u64,
    /// Number of page requests that a client pipelines
    #[arg(long, default_value_t = 1)]
    pipeline: u64,
    /// Posts per page
    #[arg(long, default_value_t = 20)]
    posts: u64,
    /// Total number of posts
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Seconds per run
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Number of runs per deployment
    #[arg(long, default_value_t = 5)]
    turns: usize,
    #[command(flatten)]
    place: ServerFiles,
}

/// The single server, or all servers of the cluster.
struct Deployment {
    name: &'static str,
    servers: Vec<Server>,
}

/// Result of a run.
struct Turn {
    pages: f64,
    cpu_us: f64,
    p50_us: f64,
    p99_us: f64,
}

fn start(args: &Args, shards: usize) -> io::Result<Vec<Server>> {
    let server =
        |_| args.place.tidemark("no", "[server]\nworkers = 1\n[cluster]\nenabled = true\n");
    let servers: Vec<Server> = (0..shards).map(server).collect::<io::Result<_>>()?;
    let mut nodes = String::new();
    for (at, server) in servers.iter().enumerate() {
        let (first, last) = (16_384 * at / shards, 16_384 * (at + 1) / shards - 1);
        let _ = writeln!(nodes, "{at:040} 127.0.0.1 {} master - {first}-{last}", server.port());
    }
    for server in &servers {
        let reply = server.client()?.call(&[b"CLUSTERX", b"SETNODES", nodes.as_bytes(), b"1"])?;
        println!("topology: {reply:?}");
    }
    Ok(servers)
}

/// Runs one client and returns its page latencies in microseconds.
fn ask(args: &Args, kind: &Deployment, number: u64) -> io::Result<Vec<f64>> {
    let mut client = kind.servers[number as usize % kind.servers.len()].client()?;
    let mut random = fastrand::Rng::with_seed(number);
    let every = match args.rate {
        0 => Duration::ZERO,
        rate => Duration::from_nanos(1_000_000_000 * args.clients * args.pipeline / rate),
    };
    let began = Instant::now();
    let end = began + Duration::from_secs(args.seconds);
    let mut due = began + every.mul_f64(number as f64 / args.clients as f64);
    let mut times = Vec::new();
    while Instant::now() < end {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        due += every;
        for _ in 0..args.pipeline {
            let viewer = text(random.u64(..1000));
            let mut words: Vec<Vec<u8>> = vec![b"FEED.GET".to_vec(), b"home".to_vec(), viewer];
            words.extend((0..args.posts).map(|_| text(post(random.u64(..args.rows)))));
            client.push(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
        let sent = Instant::now();
        for _ in 0..args.pipeline {
            let reply = client.reply()?;
            let is_row = |row: &Reply| matches!(row, Reply::Array(_));
            if !matches!(&reply, Reply::Array(rows) if rows.iter().all(is_row)) {
                return Err(io::Error::other(format!("incomplete page: {reply:?}")));
            }
            times.push(sent.elapsed().as_secs_f64() * 1e6);
        }
    }
    Ok(times)
}

/// Stores counts for all posts.
fn fill(args: &Args, server: &Server) -> io::Result<()> {
    let mut client = server.client()?;
    for first in (0..args.rows).step_by(100) {
        let mut words: Vec<Vec<u8>> = vec![b"CNT.MINCRBY".to_vec(), b"post".to_vec()];
        for id in (first..(first + 100).min(args.rows)).map(|index| text(post(index))) {
            words.extend([id.clone(), b"like".to_vec(), b"3".to_vec()]);
            words.extend([id, b"read".to_vec(), text(first % 5000 + 1)]);
        }
        client.push(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
        make_room(&mut client)?;
    }
    take_all(&mut client)
}

fn turn(args: &Args, kind: &Deployment) -> io::Result<Turn> {
    let cpu = || kind.servers.iter().map(Server::threads_cpu_s).sum::<f64>();
    let (before, began) = (cpu(), Instant::now());
    let times = std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..args.clients).map(|number| scope.spawn(move || ask(args, kind, number))).collect();
        let mut all = Vec::new();
        for client in clients {
            let times = client.join().map_err(|_| io::Error::other("a client failed"))??;
            all.extend(times);
        }
        Ok::<_, io::Error>(all)
    });
    let mut times = times?;
    let pages = times.len() as f64;
    Ok(Turn {
        pages: pages / began.elapsed().as_secs_f64(),
        cpu_us: (cpu() - before) / pages * 1e6,
        p50_us: percentile(&mut times, 0.5),
        p99_us: percentile(&mut times, 0.99),
    })
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let kinds = [("one node", 1), ("shards", args.shards)].map(|(name, shards)| {
        Ok::<_, io::Error>(Deployment { name, servers: start(&args, shards)? })
    });
    let [one, parted] = kinds;
    let kinds = [one?, parted?];
    for kind in &kinds {
        fill(&args, &kind.servers[0])?;
    }
    println!("load average of the machine: {}", load());
    let mut all: [Vec<Turn>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..args.turns {
        for (kind, turns) in kinds.iter().zip(&mut all) {
            let now = turn(&args, kind)?;
            println!(
                "{:>8}: {:.0} pages/s, {:.1} us of CPU time per page, p50 {:.0} us, p99 {:.0} us",
                kind.name, now.pages, now.cpu_us, now.p50_us, now.p99_us
            );
            turns.push(now);
        }
    }
    let [one, parted] = all;
    let ratios = |of: fn(&Turn) -> f64| {
        median(one.iter().zip(&parted).map(|(one, parted)| of(parted) / of(one)).collect())
    };
    println!(
        "{} shards compared with one node, medians of {} pairs of turns: CPU time {:.2} times, p50 \
         {:.2} times, p99 {:.2} times",
        args.shards,
        args.turns,
        ratios(|turn| turn.cpu_us),
        ratios(|turn| turn.p50_us),
        ratios(|turn| turn.p99_us),
    );
    Ok(())
}
