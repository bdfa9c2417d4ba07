//! `tidemark demo`: a server, a generated day, a feed page as a table, and what it cost beside
//! Redis.
//!
//! Everything goes over a real socket through the real commands; only the sizes are asked of the
//! engines. The comparison is measured on the spot when there is a `redis-server` on the PATH: the
//! same posts as one hash each, the same likes as one set per post, its own `used_memory` before
//! and after.

use super::client::Client;
use super::day::{self, Post};
use crate::config::Config;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use redis_protocol::resp2::types::OwnedFrame;
use std::io;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The viewer whose page is shown.
const VIEWER: u64 = 1_000_000_042;
const USERS: u64 = 50_000;
const SEED: u64 = 20_260_101;
/// Pages asked one by one for the timing.
const PAGES: u32 = 2_000;
/// Posts that the Redis of the comparison loads; its bytes per post do not depend on how many there
/// are.
const REDIS_POSTS: usize = 50_000;

/// Starts a server in a temporary folder, loads a generated day, shows a feed page and what it
/// cost.
#[derive(Args, Debug)]
#[command(after_long_help = "\
The server stays up until ctrl-C, so that redis-cli can be tried with the lines that the demo prints.
The day is the same every time: the generator is seeded.")]
pub struct DemoArgs {
    /// Posts to generate.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(20..=100_000_000))]
    pub posts: u64,
    /// Likes and reads to generate; by default twice the posts.
    #[arg(long)]
    pub readings: Option<u64>,
    /// Port to listen on; by default the usual one, or any free one if that is taken.
    #[arg(long)]
    pub port: Option<u16>,
    /// End after showing the page, instead of leaving the server up.
    #[arg(long)]
    pub exit: bool,
}

/// Runs the demo until it is done (`--exit`) or the server is stopped.
pub fn run(args: &DemoArgs) -> io::Result<()> {
    let folder = tempfile::Builder::new().prefix("tidemark-demo-").tempdir()?;
    let mut config = Config::default();
    config.durability.dir = folder.path().to_path_buf();
    let listener = match args.port {
        Some(port) => TcpListener::bind(("127.0.0.1", port))?,
        None => TcpListener::bind(("127.0.0.1", crate::config::DEFAULT_PORT))
            .or_else(|_| TcpListener::bind(("127.0.0.1", 0)))?,
    };
    let port = listener.local_addr()?.port();
    let server = crate::start(config, listener)?;
    println!("A server on port {port}, with its files in {}.", folder.path().display());

    let mut client = Client::connect(("127.0.0.1", port))?;
    let posts = day::posts(SEED, args.posts as usize);
    let readings = args.readings.unwrap_or(2 * args.posts) as usize;
    load_posts(&mut client, &posts)?;
    load_readings(&mut client, &posts, readings)?;

    // The page: every fifth of the newest posts, so that it spans some time.
    let page: Vec<Post> = posts.iter().rev().step_by(5).take(20).copied().collect();
    let mut request: Vec<Vec<u8>> =
        vec![b"FEED.GET".into(), b"home".into(), VIEWER.to_string().into()];
    request.extend(page.iter().map(|p| p.id.to_string().into_bytes()));
    let request: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
    println!(
        "\nFEED.GET home {VIEWER} <20 ids>: one request, one reply\n\n{}",
        show(&page, client.call(&request)?)?
    );

    let started = Instant::now();
    for _ in 0..PAGES {
        client.call(&request)?;
    }
    let page_time = started.elapsed() / PAGES;
    println!("{}", cost(&server, &posts, page_time));
    let newest = posts[posts.len() - 1].id;
    println!(
        "Try it:\n  \
         redis-cli -p {port} FEED.GET home {VIEWER} {newest} {}\n  \
         redis-cli -p {port} FEED.ACT like 7 {newest}      # once more: it counts once\n  \
         redis-cli -p {port} HGETALL post:{newest}\n  \
         redis-cli -p {port} BF.EXISTS liked:{newest} 7\n  \
         redis-cli -p {port} TM.TABLES post",
        posts[posts.len() - 2].id
    );
    if args.exit {
        return server.stop();
    }
    println!("\nThe server stays up; ctrl-C ends it and removes its folder.");
    server.wait()
}

/// Sends one command per item, and takes every reply: an error reply ends the demo, since nothing
/// here should fail.
fn load<T>(
    client: &mut Client,
    what: &'static str,
    count: usize,
    items: impl Iterator<Item = T>,
    mut push: impl FnMut(&mut Client, T),
) -> io::Result<()> {
    let style =
        ProgressStyle::with_template("{msg:>16} {wide_bar} {human_pos} of {human_len}, {per_sec}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
    let progress = ProgressBar::new(count as u64).with_style(style).with_message(what);
    let take = |client: &mut Client, leave: usize| -> io::Result<()> {
        while client.waiting() > leave {
            if let OwnedFrame::Error(reason) = client.reply()? {
                return Err(io::Error::other(format!("{what}: {reason}")));
            }
            progress.inc(1);
        }
        Ok(())
    };
    for item in items.take(count) {
        push(client, item);
        if client.is_full() {
            take(client, Client::IN_FLIGHT / 2)?;
        }
    }
    take(client, 0)?;
    progress.finish_and_clear();
    let rate = count as f64 / progress.elapsed().as_secs_f64();
    println!("{} {what} loaded, {} per second.", HumanCount(count as u64), HumanCount(rate as u64));
    Ok(())
}

fn load_posts(client: &mut Client, posts: &[Post]) -> io::Result<()> {
    load(client, "posts", posts.len(), posts.iter(), |client, post| {
        let [like, repost, comment, read] = post.counts.map(|n| n.to_string());
        let id = post.id.to_string();
        let command = [
            "CNT.SET", "post", &id, "like", &like, "repost", &repost, "comment", &comment, "read",
            &read,
        ];
        client.push(&command.map(str::as_bytes));
    })
}

/// Users read recent posts; every fourth reading ends in a like. The viewer of the page has read
/// most of it.
fn load_readings(client: &mut Client, posts: &[Post], count: usize) -> io::Result<()> {
    let act = |client: &mut Client, action: &str, user: u64, post: u64| {
        client.push(&[
            b"FEED.ACT",
            action.as_bytes(),
            user.to_string().as_bytes(),
            post.to_string().as_bytes(),
        ]);
    };
    let by_users = day::readings(SEED, posts.len(), USERS).enumerate();
    load(client, "likes and reads", count, by_users, |client, (n, (post, user))| {
        act(client, if n % 4 == 0 { "like" } else { "read" }, user, posts[post].id);
    })?;
    let recent = posts.iter().rev().take(100).enumerate();
    load(client, "acts of ours", 100.min(posts.len()), recent, |client, (n, post)| {
        act(client, if n % 3 == 0 { "like" } else { "read" }, VIEWER, post.id);
    })
}

/// The page as a table that a person wants to read.
fn show(page: &[Post], reply: OwnedFrame) -> io::Result<Table> {
    let unexpected = || io::Error::other("FEED.GET answered in an unexpected shape");
    let OwnedFrame::Array(rows) = reply else { return Err(unexpected()) };
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(["post", "at", "likes", "reposts", "comments", "reads", "I liked", "I read"]);
    for (post, row) in page.iter().zip(rows) {
        let OwnedFrame::Array(row) = row else { return Err(unexpected()) };
        let (hour, minute) = post.clock();
        let mut cells = vec![post.id.to_string(), format!("{hour:02}:{minute:02}")];
        for (i, cell) in row.iter().enumerate() {
            cells.push(match (i, cell) {
                (0..4, OwnedFrame::Integer(n)) if *n < 0 => n.to_string(),
                (0..4, OwnedFrame::Integer(n)) => HumanCount(*n as u64).to_string(),
                (4, OwnedFrame::Integer(1)) => "♥".into(),
                (5.., OwnedFrame::Integer(1)) => "✓".into(),
                (4.., OwnedFrame::Integer(0)) => String::new(),
                (4.., OwnedFrame::Null) => "?".into(),
                _ => return Err(unexpected()),
            });
        }
        table.add_row(cells);
    }
    for column in 2..6 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    Ok(table)
}

/// What the page and the data cost, beside Redis.
fn cost(server: &crate::Server, posts: &[Post], page_time: Duration) -> String {
    let engines = server.engines();
    let mut lines = vec![format!(
        "The page took {:.0} microseconds, round trip included (mean of {PAGES}, one after the other).",
        page_time.as_secs_f64() * 1e6
    )];
    let bytes_per_post =
        engines.counter(b"post").map(|s| s.memory_bytes() as f64 / s.rows().max(1) as f64);
    let (mut pairs, mut bytes) = (0, 0);
    for name in [&b"liked"[..], b"read"] {
        if let Some(space) = engines.existence(name) {
            pairs += space.pairs();
            bytes += space.memory_bytes();
        }
    }
    let bits_per_flag = bytes as f64 * 8.0 / pairs.max(1) as f64;
    let ours = (bytes_per_post.unwrap_or(0.0), bits_per_flag);
    let (redis, source) = match redis(posts) {
        Ok(measured) => (measured, "measured just now, redis-server on this machine"),
        // Redis 7.0.15: 137 to 147 bytes a hash, 16 to 37 bytes a set member.
        Err(_) => ((142.0, 200.0), "known figures of Redis 7.0: no redis-server here to measure"),
    };
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(["memory", "Tidemark", "Redis", "ratio"]);
    let mut row = |what: &str, ours: f64, redis: f64, unit: &str| {
        table.add_row([
            what.to_string(),
            format!("{ours:.1} {unit}"),
            format!("{redis:.1} {unit}"),
            format!("1 : {:.1}", redis / ours),
        ]);
    };
    row("a post's four counters (hash per post)", ours.0, redis.0, "bytes");
    row("a viewer's flag on a post (set per post)", ours.1, redis.1, "bits");
    lines.push(table.to_string());
    lines.push(format!(
        "Redis: {source}. Ours is all memory of the tables, over {} posts and {} flags: tables fill up as they\n\
         go, so a young space costs more per entry than a full one (docs/performance.md has full ones).",
        HumanCount(posts.len() as u64),
        HumanCount(pairs),
    ));
    lines.join("\n") + "\n"
}

/// A redis-server of our own, ended when dropped.
struct Redis(
    Child,
    #[expect(dead_code, reason = "its folder lives as long as it does")] tempfile::TempDir,
);

impl Drop for Redis {
    fn drop(&mut self) {
        // It may be gone already; either way there is nothing to do about it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Bytes per post (one hash each) and bits per flag (one set per post, as many members per set as
/// our posts have likers) in a real Redis.
fn redis(posts: &[Post]) -> io::Result<(f64, f64)> {
    let folder = tempfile::tempdir()?;
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let child = Command::new("redis-server")
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let _redis = Redis(child, folder);
    let started = Instant::now();
    let mut client = loop {
        match Client::connect(("127.0.0.1", port)) {
            Ok(client) => break client,
            Err(e) if started.elapsed() > Duration::from_secs(5) => return Err(e),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let empty = used_memory(&mut client)?;
    let sample = &posts[posts.len().saturating_sub(REDIS_POSTS)..];
    load(&mut client, "posts into Redis", sample.len(), sample.iter(), |client, post| {
        let [like, repost, comment, read] = post.counts.map(|n| n.to_string());
        let key = format!("post:{}", post.id);
        let command =
            ["HSET", &key, "like", &like, "repost", &repost, "comment", &comment, "read", &read];
        client.push(&command.map(str::as_bytes));
    })?;
    let with_posts = used_memory(&mut client)?;
    // Half the posts have had ten likers each: sets of integers, the smallest that Redis has.
    const LIKERS: usize = 10;
    let likes = sample.len() / 2 * LIKERS;
    let pairs = day::readings(SEED, sample.len(), USERS).enumerate();
    load(&mut client, "likes into Redis", likes, pairs, |client, (n, (_, user))| {
        let key = format!("liked:{}", sample[n / LIKERS].id);
        client.push(&[b"SADD", key.as_bytes(), user.to_string().as_bytes()]);
    })?;
    let with_likes = used_memory(&mut client)?;
    let per_post = (with_posts - empty) / sample.len() as f64;
    Ok((per_post, (with_likes - with_posts) * 8.0 / likes.max(1) as f64))
}

fn used_memory(client: &mut Client) -> io::Result<f64> {
    let OwnedFrame::BulkString(info) = client.call(&[b"INFO", b"memory"])? else {
        return Err(io::Error::other("INFO answered in an unexpected shape"));
    };
    let info = String::from_utf8_lossy(&info).into_owned();
    let value = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"))
        .and_then(|v| v.trim().parse().ok());
    value.ok_or_else(|| io::Error::other("INFO has no used_memory"))
}
