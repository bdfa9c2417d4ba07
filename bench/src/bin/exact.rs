//! Measures the cost of a ledger for likes, and its effect on page latency. Compares a server that
//! has a ledger with one that has none, or two states of one server, in alternating measurements of
//! one run. Only the ratios are meaningful.
//!
//! ```text
//! cargo xtask bench exact -- likes      first likes per CPU second, with / without ledger;
//!                                       includes flushes and merges
//! cargo xtask bench exact -- repeats    p99.9 of pages while one like in five is a repetition /
//!                                       while none is
//! cargo xtask bench exact -- rebuild    p99.9 of pages during a rebuild of filters / without one
//! ```
//!
//! The latency of a page is measured from its scheduled time, unless the client itself was delayed.

use clap::{Parser, Subcommand};
use client::Client;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidemark_bench::play::{load, median, percentile, take_all, text};
use tidemark_bench::server::{Server, ServerFiles};

/// Number of posts that receive likes at the same time. After this number of likes per post, a new
/// post replaces the oldest post.
const POSTS: u64 = 20_000;
const LIKES_PER_POST: u64 = 50;
/// Posts per page.
const PAGE: u64 = 32;
const IN_FLIGHT: usize = 128;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    place: ServerFiles,
    /// Number of measurements per side
    #[arg(long, global = true, default_value_t = 7)]
    turns: usize,
    /// Number of likes to load before the measurement
    #[arg(long, global = true, default_value_t = 4_000_000)]
    fill: u64,
}

#[derive(Subcommand)]
enum What {
    /// Measures first likes (not repeats) per CPU second
    Likes {
        /// Number of likes per measurement
        #[arg(long, default_value_t = 1_500_000)]
        likes: u64,
    },
    /// Page latency while clients repeat likes
    Repeats(Pages),
    /// Page latency during a rebuild of all filters
    Rebuild(Pages),
}

#[derive(clap::Args)]
struct Pages {
    /// Pages per second
    #[arg(long, default_value_t = 1500)]
    pages: u64,
    /// Likes per second
    #[arg(long, default_value_t = 10_000)]
    likes: u64,
    /// Seconds per measurement
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

fn config(ledger: &str) -> String {
    format!(
        "[server]\nworkers = 1\n\
         [[counter]]\nname = \"post\"\nfields = \"like:12\"\nrows = \"post:{{id}}\"\n\
         [[existence]]\nname = \"liked\"\npairs = \"liked:{{id}}\"\nspill = true\n\
         ledger = \"{ledger}\"\n\
         [[view]]\nname = \"home\"\ncounters = [\"post.like\"]\nflags = [\"liked\"]\n\
         [[action]]\nname = \"like\"\nflag = \"liked\"\ncounter = \"post.like\"\n"
    )
}

/// Returns post and member of like number `n`, deterministically.
fn like(n: u64) -> (u64, u64) {
    let mut rng = fastrand::Rng::with_seed(n);
    let newest = POSTS + n / LIKES_PER_POST;
    (tidemark_bench::play::post(newest - rng.u64(..POSTS)), rng.u64(..10_000_000))
}

fn push(client: &mut Client, n: u64) {
    let (post, member) = like(n);
    client.push(&[b"FEED.ACT", b"like", &text(member), &text(post)]);
}

/// Sends likes at full speed.
fn send(server: &Server, likes: std::ops::Range<u64>) -> io::Result<()> {
    let mut client = server.client()?;
    for n in likes {
        push(&mut client, n);
        if client.waiting() >= IN_FLIGHT {
            take_all(&mut client)?;
        }
    }
    take_all(&mut client)
}

/// Waits until flushes and merges have ended, that is, until CPU use is low.
fn settle(server: &Server) {
    let mut before = server.threads_cpu_s();
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let now = server.threads_cpu_s();
        if now - before < 0.02 {
            return;
        }
        before = now;
    }
}

fn likes(place: &ServerFiles, turns: usize, fill: u64, likes: u64) -> io::Result<()> {
    let servers = ["off", "exact"].map(|ledger| place.tidemark("everysec", &config(ledger)));
    let [off, on] = servers;
    let servers = [off?, on?];
    for server in &servers {
        send(server, 0..fill)?;
        settle(server);
    }
    let (mut sent, mut each, mut ratios) = (fill, [vec![], vec![]], vec![]);
    for turn in 0..turns {
        for at in [turn % 2, 1 - turn % 2] {
            let before = servers[at].threads_cpu_s();
            send(&servers[at], sent..sent + likes)?;
            settle(&servers[at]);
            each[at].push(likes as f64 / (servers[at].threads_cpu_s() - before));
        }
        sent += likes;
        ratios.push(each[1][turn] / each[0][turn]);
    }
    let [off, on] = each.map(median);
    println!(
        "first likes per CPU second: {on:.0} with a ledger, {off:.0} without: {:.2} (load {})",
        median(ratios),
        load()
    );
    println!("ledger: {}", servers[1].info("ledger_liked")?);
    Ok(())
}

/// Requests pages at random times until `over` is set. Returns their latencies in milliseconds.
fn pages(server: &Server, per_s: u64, newest: u64, over: &AtomicBool) -> io::Result<Vec<f64>> {
    let (mut client, mut rng) = (server.client()?, fastrand::Rng::new());
    let (mut latencies, mut due) = (vec![], Instant::now());
    while !over.load(Relaxed) {
        due += Duration::from_secs_f64(-(1.0 - rng.f64()).ln() / per_s as f64);
        let now = Instant::now();
        let started = if now < due {
            std::thread::sleep(due - now);
            Instant::now()
        } else {
            due
        };
        let member = text(rng.u64(..10_000_000));
        let ids: Vec<Vec<u8>> = (0..PAGE)
            .map(|_| text(tidemark_bench::play::post(newest - rng.u64(..POSTS))))
            .collect();
        let mut words: Vec<&[u8]> = vec![b"FEED.GET", b"home", &member];
        words.extend(ids.iter().map(Vec::as_slice));
        client.call(&words)?;
        latencies.push(started.elapsed().as_secs_f64() * 1e3);
    }
    Ok(latencies)
}

/// Sends likes at a fixed rate until `over` is set. One in `repeats` repeats an earlier like.
fn drip(
    server: &Server,
    per_s: u64,
    repeats: Option<u64>,
    sent: &AtomicU64,
    over: &AtomicBool,
) -> io::Result<()> {
    const LIKES_PER_BATCH: u64 = 20;
    let mut client = server.client()?;
    let mut due = Instant::now();
    while !over.load(Relaxed) {
        due += Duration::from_secs_f64(LIKES_PER_BATCH as f64 / per_s as f64);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        for at in 0..LIKES_PER_BATCH {
            let is_repeat = repeats.is_some_and(|one_in| at % one_in == 0);
            let first = sent.load(Relaxed);
            // Repeat a like of a post that pages still show. The earlier like is already on disk.
            let n = if is_repeat {
                first - fastrand::u64(1_200_000..2_000_000)
            } else {
                sent.fetch_add(1, Relaxed)
            };
            push(&mut client, n);
        }
        take_all(&mut client)?;
    }
    Ok(())
}

/// Returns the 99.9th percentile of the page latency in one measurement.
fn turn(server: &Server, rates: &Pages, repeats: Option<u64>, sent: &AtomicU64) -> io::Result<f64> {
    let (over, newest) = (AtomicBool::new(false), POSTS + sent.load(Relaxed) / LIKES_PER_POST);
    std::thread::scope(|scope| {
        let pages = scope.spawn(|| pages(server, rates.pages, newest, &over));
        let likes = scope.spawn(|| drip(server, rates.likes, repeats, sent, &over));
        std::thread::sleep(Duration::from_secs(rates.seconds));
        over.store(true, Relaxed);
        let ended = || io::Error::other("a client panicked");
        likes.join().map_err(|_| ended())??;
        Ok(percentile(&mut pages.join().map_err(|_| ended())??, 0.999))
    })
}

/// Compares measurements with and without the background work that `begin` starts.
fn compare(
    place: &ServerFiles,
    turns: usize,
    fill: u64,
    rates: &Pages,
    what: &str,
    repeats: Option<u64>,
    mut begin: impl FnMut(&Server, usize) -> io::Result<()>,
) -> io::Result<()> {
    let server = place.tidemark("everysec", &config("exact"))?;
    send(&server, 0..fill)?;
    settle(&server);
    let sent = AtomicU64::new(fill);
    let (mut without, mut with, mut ratios) = (vec![], vec![], vec![]);
    for at in 0..turns {
        without.push(turn(&server, rates, None, &sent)?);
        begin(&server, at)?;
        with.push(turn(&server, rates, repeats, &sent)?);
        settle(&server);
        ratios.push(with[at] / without[at]);
    }
    println!(
        "p99.9 of pages: {:.2} ms {what}, {:.2} ms without: {:.2} (load {})",
        median(with),
        median(without),
        median(ratios.clone()),
        load()
    );
    ratios.sort_by(f64::total_cmp);
    println!("ratios by turn: {ratios:.2?}\nledger: {}", server.info("ledger_liked")?);
    Ok(())
}

fn main() -> io::Result<()> {
    let Arguments { what, place, turns, fill } = Arguments::parse();
    match what {
        What::Likes { likes: number } => likes(&place, turns, fill, number),
        What::Repeats(rates) => {
            let what = "during repeated likes";
            compare(&place, turns, fill, &rates, what, Some(5), |_, _| Ok(()))
        }
        What::Rebuild(rates) => {
            compare(&place, turns, fill, &rates, "during a rebuild", None, |server, at| {
                let rate: &[u8] = if at % 2 == 0 { b"0.0002" } else { b"0.0001" };
                let words: [&[u8]; 6] =
                    [b"TM.SPACE", b"ALTER", b"liked", b"SET", b"false_positive_rate", rate];
                server.client()?.call(&words).map(drop)
            })
        }
    }
}
