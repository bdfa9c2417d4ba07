//! `tidemark demo`: starts a server, loads a generated day, prints a feed page, and compares the
//! memory with Redis.
//!
//! All data goes through a real socket and the real commands. Only the sizes come directly from the
//! engines. If `redis-server` is on the PATH, the demo also measures Redis's `used_memory` with the
//! same posts as hashes and the same likes as sets.

use crate::day;
use crate::day::Post;
use crate::full_tables;
use crate::full_tables::Full;
use crate::terminal::{Align, Paint, grouped, table};
use clap::Args;
use client::{Client, Reply, info_field};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use node::config::Config;
use std::fmt::Write;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Viewer of the printed page.
const VIEWER: u64 = 1_000_000_042;
const USERS: u64 = 50_000;
const SEED: u64 = 20_260_101;
/// Number of pages requested sequentially for the timing.
const PAGES: u32 = 2_000;
/// Number of posts loaded into Redis. Redis's bytes per post do not depend on this number.
const REDIS_POSTS: usize = 50_000;

/// Prints a line. If standard output is closed (`| head`), returns the error, which ends the demo.
macro_rules! say {
    ($($words:tt)*) => { writeln!(io::stdout(), $($words)*)? };
}

/// Shows a feed page of generated data, and compares the memory with Redis.
#[derive(Args, Debug)]
#[command(
    after_long_help = "The server runs until Ctrl-C: try the printed commands with redis-cli.
The generator is seeded, so the data are the same in each run."
)]
pub struct DemoArgs {
    /// Number of posts to generate.
    #[arg(
        long,
        default_value_t = 200_000,
        value_parser = clap::value_parser!(u64).range(20..=100_000_000)
    )]
    pub posts: u64,
    /// Number of likes and reads to generate. Default: twice --posts.
    #[arg(long)]
    pub readings: Option<u64>,
    /// Port to listen on. Default: the usual port, or a free port if the usual one is taken.
    #[arg(long)]
    pub port: Option<u16>,
    /// Exit after the page is printed instead of keeping the server running.
    #[arg(long)]
    pub exit: bool,
}

/// Runs the demo until it has printed the page (`--exit`) or the server is stopped.
pub fn run(args: &DemoArgs) -> io::Result<()> {
    let folder = tempfile::Builder::new().prefix("tidemark-demo-").tempdir()?;
    let mut config = Config::default();
    config.durability.dir = folder.path().to_path_buf();
    let listener = match args.port {
        Some(port) => TcpListener::bind(("127.0.0.1", port)).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot listen on 127.0.0.1:{port}: {error}"))
        })?,
        None => TcpListener::bind(("127.0.0.1", node::config::DEFAULT_PORT))
            .or_else(|_| TcpListener::bind(("127.0.0.1", 0)))?,
    };
    let port = listener.local_addr()?.port();
    config.admin.port = if args.exit { 0 } else { free_admin_port(&config)? };
    let server = tidemark_server::start(config.clone(), listener)?;
    // From here on, Ctrl-C stops the server cleanly and deletes its folder.
    server.on_signals()?;
    match show_day(args, &server, &config, port) {
        // A stopped server also closes the connection, so the connection's error is ignored.
        _ if server.is_stopped() => {}
        Ok(()) => {}
        Err(error) => {
            server.stop()?;
            return if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) };
        }
    }
    if args.exit { server.stop() } else { server.join() }
}

fn show_day(
    args: &DemoArgs,
    server: &tidemark_server::Server,
    config: &Config,
    port: u16,
) -> io::Result<()> {
    let paint = Paint::of_stdout();
    let folder = config.durability.dir.display();
    say!("The server listens on port {port}. Its data folder is {folder}.");
    let mut client = Client::connect(("127.0.0.1", port))?;
    let posts = day::posts(SEED, args.posts as usize);
    let readings = args.readings.unwrap_or(2 * args.posts) as usize;
    load_posts(&mut client, &posts)?;
    load_readings(&mut client, &posts, readings)?;

    // Take every fifth of the newest posts, so that the page spans a longer time.
    let page: Vec<Post> = posts.iter().rev().step_by(5).take(20).copied().collect();
    let mut request: Vec<Vec<u8>> =
        vec![b"FEED.GET".into(), b"home".into(), VIEWER.to_string().into()];
    request.extend(page.iter().map(|p| p.id.to_string().into_bytes()));
    let request: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
    let reply = client.call(&request)?;
    let heading = format!("FEED.GET home {VIEWER} <{} ids>: one request, one reply", page.len());
    say!("\n{}\n\n{}", paint.bold(&heading), show(&page, reply, paint)?);

    let started = Instant::now();
    for _ in 0..PAGES {
        client.call(&request)?;
    }
    let page_us = started.elapsed() / PAGES;
    say!(
        "The page took {} microseconds, round trip included (mean of {} requests).\n",
        page_us.as_micros(),
        grouped(u64::from(PAGES)),
    );
    let costs = Costs::measure(server, config, &posts)?;
    say!("{}", costs.show(paint));
    let newest = posts[posts.len() - 1].id;
    let title = if args.exit {
        "Try these while a server runs:"
    } else {
        "The server runs until Ctrl-C. Try these from another terminal:"
    };
    say!("{}", paint.bold(title));
    for command in [
        format!("FEED.GET home {VIEWER} {newest} {}", posts[posts.len() - 2].id),
        format!("FEED.ACT like 7 {newest}   # repeated: 0"),
        format!("HGETALL post:{newest}"),
        format!("BF.EXISTS liked:{newest} 7"),
        "TM.TABLES post".to_owned(),
    ] {
        say!("  redis-cli -p {port} {command}");
    }
    if !server.is_stopped() {
        say!("\n{}", paint.bold(&costs.headline(page.len(), page_us)));
        if let Some(admin) = server.admin() {
            let address = format!("http://{admin}/");
            say!("\nDashboard: {}", paint.bold(&address));
        }
    }
    Ok(())
}

/// Returns the usual admin port, or a free port if the usual one is taken.
fn free_admin_port(config: &Config) -> io::Result<u16> {
    let usual = TcpListener::bind((config.admin.bind.as_str(), config.admin.port));
    let free = usual.or_else(|_| TcpListener::bind((config.admin.bind.as_str(), 0)))?;
    Ok(free.local_addr()?.port())
}

/// Sends one command per item and reads all replies. An error reply ends the demo.
fn load<T>(
    client: &mut Client,
    what: &'static str,
    count: usize,
    items: impl Iterator<Item = T>,
    mut push: impl FnMut(&mut Client, T),
) -> io::Result<()> {
    // `{human_pos}` groups digits, but `{per_sec}` would print fractions.
    let rate = |state: &ProgressState, out: &mut dyn Write| {
        let _ = write!(out, "{}/s", grouped(state.per_sec() as u64));
    };
    let style = ProgressStyle::with_template("{msg:>18} {wide_bar} {human_pos} {rate}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .with_key("rate", rate);
    let progress = ProgressBar::new(count as u64).with_style(style).with_message(what);
    let started = Instant::now();
    let take = |client: &mut Client, leave: usize| -> io::Result<()> {
        while client.waiting() > leave {
            if let Reply::Error(reason) = client.reply()? {
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
    let rate = count as f64 / started.elapsed().as_secs_f64();
    say!("{:>11} {what:<18} {:>11}/s", grouped(count as u64), grouped(rate as u64));
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

/// Loads read marks and likes. Users read recent posts; every fourth event is a like. The viewer of
/// the printed page has read most of its posts.
fn load_readings(client: &mut Client, posts: &[Post], count: usize) -> io::Result<()> {
    let liked = |n: usize, every: usize| if n.is_multiple_of(every) { "like" } else { "read" };
    let by_users = day::readings(SEED, posts.len(), USERS).take(count).enumerate();
    let by_users = by_users.map(|(n, (post, user))| (liked(n, 4), user, posts[post].id));
    let recent = posts.iter().rev().take(100).enumerate();
    let by_viewer = recent.map(|(n, post)| (liked(n, 3), VIEWER, post.id));
    let count = count + 100.min(posts.len());
    let acts = by_users.chain(by_viewer);
    load(client, "likes and reads", count, acts, |client, (action, user, post)| {
        client.push(&[
            b"FEED.ACT",
            action.as_bytes(),
            user.to_string().as_bytes(),
            post.to_string().as_bytes(),
        ]);
    })
}

fn show(page: &[Post], reply: Reply, paint: Paint) -> io::Result<String> {
    let unexpected = || io::Error::other("unexpected reply to FEED.GET");
    let Reply::Array(replies) = reply else { return Err(unexpected()) };
    let header = ["post", "at", "likes", "reposts", "comments", "reads", "I liked", "I read"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for (post, row) in page.iter().zip(replies) {
        let Reply::Array(row) = row else { return Err(unexpected()) };
        let (hour, minute) = post.clock();
        let mut cells = vec![post.id.to_string(), format!("{hour:02}:{minute:02}")];
        for (i, cell) in row.iter().enumerate() {
            cells.push(match (i, cell) {
                (0..4, Reply::Integer(n)) if *n < 0 => n.to_string(),
                (0..4, Reply::Integer(n)) => grouped(*n as u64),
                (4, Reply::Integer(1)) => "♥".into(),
                (5.., Reply::Integer(1)) => "✓".into(),
                (4.., Reply::Integer(0)) => String::new(),
                (4.., Reply::Null) => "?".into(),
                _ => return Err(unexpected()),
            });
        }
        rows.push(cells);
    }
    use Align::{Centre, Left, Right};
    let columns = [Left, Left, Right, Right, Right, Right, Centre, Centre];
    Ok(table(&columns, &rows, |row, column, cell| match (row, column) {
        (0, _) => paint.dim(cell),
        (_, 6) => paint.red(cell),
        (_, 7) => paint.good(cell),
        _ => cell.to_owned(),
    }))
}

#[derive(Clone, Copy)]
struct PerEntry {
    post_bytes: f64,
    flag_bits: f64,
}

/// Memory of Tidemark and Redis.
struct Costs {
    /// Memory per entry in the tables of the generated day, which are only partly full.
    young: PerEntry,
    young_entries: (u64, u64),
    full: Full,
    redis: PerEntry,
    /// Version of the measured Redis, or `None` if no Redis was measured.
    redis_version: Option<String>,
}

impl Costs {
    fn measure(
        server: &tidemark_server::Server,
        config: &Config,
        posts: &[Post],
    ) -> io::Result<Costs> {
        let engines = server.engines();
        let post_bytes =
            engines.counter(b"post").map(|s| s.memory_bytes() as f64 / s.rows().max(1) as f64);
        let (mut pairs, mut bytes) = (0, 0);
        for name in [&b"liked"[..], b"read"] {
            if let Some(space) = engines.existence(name) {
                pairs += space.pairs();
                bytes += space.memory_bytes();
            }
        }
        let young = PerEntry {
            post_bytes: post_bytes.unwrap_or(0.0),
            flag_bits: bytes as f64 * 8.0 / pairs.max(1) as f64,
        };
        let (redis, redis_version) = match redis(posts) {
            Ok((measured, version)) => (measured, Some(version)),
            // Measured with Redis 7.0.15: 137 to 147 bytes per hash, 16 to 37 bytes per set member.
            Err(_) => (PerEntry { post_bytes: 142.0, flag_bits: 200.0 }, None),
        };
        let full = full_tables::measure(config).map_err(io::Error::other)?;
        let young_entries = (posts.len() as u64, pairs);
        Ok(Costs { young, young_entries, full, redis, redis_version })
    }

    fn show(&self, paint: Paint) -> String {
        let mut rows = vec![["memory", "Tidemark", "Redis", "ratio"].map(str::to_owned).to_vec()];
        let mut section = |title: &str, unit: &str, redis: f64, young: f64, full: f64| {
            rows.push(vec![title.to_owned()]);
            for (name, ours) in [("  full tables", full), ("  young tables, this run", young)] {
                rows.push(vec![
                    name.to_owned(),
                    format!("{ours:.1} {unit}"),
                    format!("{redis:.1} {unit}"),
                    format!("1 : {:.1}", redis / ours),
                ]);
            }
        };
        let (redis, young, full) = (self.redis, self.young, &self.full);
        let bytes = (redis.post_bytes, young.post_bytes, full.post_bytes);
        section("a post's four counters", "bytes", bytes.0, bytes.1, bytes.2);
        let bits = (redis.flag_bits, young.flag_bits, full.flag_bits);
        section("a viewer's flag on a post", "bits ", bits.0, bits.1, bits.2);
        let columns = [Align::Left, Align::Right, Align::Right, Align::Right];
        let mut text = table(&columns, &rows, |row, column, cell| match (row, column) {
            (0, _) => paint.dim(cell),
            (2 | 5, 3) => paint.good(cell),
            _ => cell.to_owned(),
        });
        let source = match &self.redis_version {
            Some(version) => {
                format!("redis-server {version} on this machine, measured by this demo")
            }
            None => "known figures of Redis 7.0 (redis-server is not installed)".to_owned(),
        };
        let notes = format!(
            "A table allocates its memory when it opens; a young one costs more per entry.\n\
             Young: {} posts and {} flags. Full: {} and {},\n\
             in tables with the same settings, measured by this demo.\n\
             Redis: {source};\n\
             a hash per post, and a set per post for its flags.",
            grouped(self.young_entries.0),
            grouped(self.young_entries.1),
            grouped(full.posts),
            grouped(full.flags),
        );
        text.push('\n');
        for line in notes.lines() {
            text.push_str(&paint.dim(line));
            text.push('\n');
        }
        text
    }

    /// Summarizes the demo in two sentences. Ratios are rounded down.
    fn headline(&self, ids: usize, page: Duration) -> String {
        format!(
            "A page of {ids} posts took one request and {} microseconds.\n\
             In full tables, a post takes 1/{:.0} of Redis's memory, and a flag 1/{:.0}.",
            page.as_micros(),
            (self.redis.post_bytes / self.full.post_bytes).floor(),
            (self.redis.flag_bits / self.full.flag_bits).floor(),
        )
    }
}

/// A redis-server process. The destructor kills it.
struct Redis(
    Child,
    #[expect(dead_code, reason = "its folder lives as long as it does")] tempfile::TempDir,
);

impl Drop for Redis {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures bytes per post (one hash each) and bits per flag (one set per post) in a real Redis.
fn redis(posts: &[Post]) -> io::Result<(PerEntry, String)> {
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
    // Half of the posts get ten likers each, stored as integer sets, Redis's smallest
    // representation.
    const LIKERS: usize = 10;
    let likes = sample.len() / 2 * LIKERS;
    let pairs = day::readings(SEED, sample.len(), USERS).enumerate();
    load(&mut client, "likes into Redis", likes, pairs, |client, (n, (_, user))| {
        let key = format!("liked:{}", sample[n / LIKERS].id);
        client.push(&[b"SADD", key.as_bytes(), user.to_string().as_bytes()]);
    })?;
    let with_likes = used_memory(&mut client)?;
    let measured = PerEntry {
        post_bytes: (with_posts - empty) / sample.len() as f64,
        flag_bits: (with_likes - with_posts) * 8.0 / likes.max(1) as f64,
    };
    say!();
    Ok((measured, info(&mut client, "server", "redis_version")?))
}

fn used_memory(client: &mut Client) -> io::Result<f64> {
    let value = info(client, "memory", "used_memory")?;
    value.parse().map_err(|_| io::Error::other("used_memory in INFO is not a number"))
}

fn info(client: &mut Client, section: &str, name: &str) -> io::Result<String> {
    let info = client.call(&[b"INFO", section.as_bytes()])?.into_text();
    let info = info.ok_or_else(|| io::Error::other("unexpected reply to INFO"))?;
    let value = info_field(&info, name).map(str::to_owned);
    value.ok_or_else(|| io::Error::other(format!("INFO has no field {name}")))
}
