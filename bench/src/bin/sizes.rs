//! Memory per post and per flag for different numbers of entries, compared with redis-server.
//!
//! `cargo run --release -p tidemark-bench --bin sizes > docs/performance/sizes.md`
//!
//! The engines use the default configuration. The sizes include all memory of the engines, even the
//! unused part of the newest table. Redis stores a hash of four fields per post and a set of flags
//! per post. Only the smaller sizes are loaded into Redis. Larger sizes are computed as in
//! `tidemark size`.

use clap::Parser;
use cli::day;
use cli::size::{Plan, SizeArgs};
use client::Client;
use std::error::Error;
use std::process::{Command, Stdio};
use tidemark_bench::play::{make_room, row_redis, take_all, text};
use tidemark_bench::server::Server;
use tidemark_server::config::Config;

/// Loads Tidemark and Redis with the same numbers of posts and flags, and prints
/// docs/performance/sizes.md
#[derive(Parser)]
struct Arguments {
    /// Numbers of entries to measure, separated by commas; each is loaded as posts and as flags
    #[arg(long, value_delimiter = ',', default_values_t = [1_000_000, 10_000_000, 100_000_000])]
    entries: Vec<u64>,
    /// Largest number of entries to load into Redis; larger numbers use the bytes per entry of this
    /// one
    #[arg(long, default_value_t = 10_000_000)]
    redis_up_to: u64,
    /// Number of entries for which the size is computed instead of measured
    #[arg(long, default_value_t = 10_000_000_000)]
    computed: u64,
    /// Path of redis-server
    #[arg(long, default_value = "redis-server")]
    redis: std::path::PathBuf,
}

type Outcome<T> = Result<T, Box<dyn Error>>;

const SEED: u64 = 20_260_103;
/// Distance between the ids of two posts.
const GAP: u64 = 4_194;
const FLAGS_PER_POST: u64 = 10;
/// Number of newest posts that receive most of the flags.
const RECENT_POSTS: f64 = 20_000.0;
const USERS: u64 = 50_000_000;

/// Memory per entry: bytes for the four counters of a post, and bits per flag.
#[derive(Clone, Copy)]
struct PerEntry {
    post_bytes: f64,
    flag_bits: f64,
}

fn post(index: u64) -> u64 {
    3_631_614_501_919_378 + index * GAP
}

/// Returns an endless sequence of realistic counts.
fn counts() -> impl Iterator<Item = [u64; 4]> {
    let posts = day::posts(SEED, 200_000);
    posts.into_iter().map(|post| post.counts).collect::<Vec<_>>().into_iter().cycle()
}

/// Returns an endless sequence of flags (post, user), roughly in the order of posts.
fn flags() -> impl Iterator<Item = (u64, u64)> {
    let mut rng = fastrand::Rng::with_seed(SEED);
    (0..).map(move |n: u64| {
        let age = (rng.f64().powi(3) * RECENT_POSTS) as u64;
        (post((n / FLAGS_PER_POST).saturating_sub(age)), rng.u64(0..USERS))
    })
}

fn ours(entries: u64) -> Outcome<PerEntry> {
    let config = Config::default();
    let (made, schema) = (&config.counter[0], counter::Schema::parse(&config.counter[0].fields)?);
    let rows_per_table = made.rows_per_table;
    let options = counter::Options { rows_per_table, ..counter::Options::new(schema) };
    let space = counter::Space::new(options)?;
    for (index, row) in (0..entries).zip(counts()) {
        let cells: [(usize, i64); 4] = std::array::from_fn(|field| (field, row[field] as i64));
        space.set(post(index), &cells)?;
        if index % 256 == 0 && space.wants_maintenance() {
            space.maintain();
        }
    }
    while space.maintain() {}
    let post_bytes = space.memory_bytes() as f64 / space.rows() as f64;
    drop(space);

    let made = &config.existence[0];
    let space = phantom::Space::new(phantom::Options {
        false_positive_rate: made.false_positive_rate,
        pairs_per_table: made.pairs_per_table,
        max_tables: made.tables(),
        ..phantom::Options::default()
    })?;
    for (id, user) in flags().take(usize::try_from(entries)?) {
        space.add(id, &user.into())?;
    }
    while space.maintain() {}
    let flag_bits = space.memory_bytes() as f64 * 8.0 / space.pairs() as f64;
    Ok(PerEntry { post_bytes, flag_bits })
}

/// Starts an empty Redis and calls `load`. Returns the bytes used per entry, and the version of
/// Redis.
fn redis(
    program: &std::path::Path,
    entries: u64,
    load: impl Fn(&mut Client) -> std::io::Result<()>,
) -> Outcome<(f64, String)> {
    let program = program.to_path_buf();
    let server = Server::new(&std::env::temp_dir(), move |folder, port| {
        let mut command = Command::new(&program);
        command.args(["--port", &port.to_string(), "--save", ""]).arg("--dir").arg(folder);
        command.stdout(Stdio::null());
        command
    })?;
    // Wait until the buffers of other connections are freed.
    let used = || loop {
        if server.info("connected_clients")? == "1" {
            return Ok::<f64, Box<dyn Error>>(server.info("used_memory")?.parse()?);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    let empty = used()?;
    let mut client = server.client()?;
    load(&mut client)?;
    // Each lookup advances the rehashing of the key table. Redis frees the old table at the end.
    for _ in 0..entries {
        client.push(&[b"EXISTS", b"none"]);
        make_room(&mut client)?;
    }
    take_all(&mut client)?;
    drop(client);
    Ok(((used()? - empty) / entries as f64, server.info("redis_version")?))
}

fn theirs(program: &std::path::Path, entries: u64) -> Outcome<(PerEntry, String)> {
    let (post_bytes, version) = redis(program, entries, |client| {
        for (index, row) in (0..entries).zip(counts()) {
            let [like, repost, comment, read] = row.map(text);
            row_redis(client, post(index), [&like, &repost, &comment, &read]);
            make_room(client)?;
        }
        Ok(())
    })?;
    let (flag_bytes, _) = redis(program, entries, |client| {
        for ((id, user), _) in flags().zip(0..entries) {
            client.push(&[b"SADD", format!("liked:{id}").as_bytes(), &text(user)]);
            make_room(client)?;
        }
        Ok(())
    })?;
    Ok((PerEntry { post_bytes, flag_bits: flag_bytes * 8.0 }, version))
}

/// Computes the sizes as `tidemark size` does, for `entries` posts with one flag each, all in
/// memory.
fn computed(entries: u64) -> Outcome<PerEntry> {
    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        size: SizeArgs,
    }
    let days = "--retention-days 1 --memory-days 1 --like-days 1 --likes-per-post 1";
    let words = format!("size --posts-per-day {entries} {days}");
    let plan = Plan::of(&Cli::parse_from(words.split(' ')).size)?;
    Ok(PerEntry {
        post_bytes: plan.row_memory / plan.rows,
        flag_bits: plan.flags[0].bytes * 8.0 / plan.flags[0].flags,
    })
}

/// Formats 1000000 as `1,000,000`.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|g| std::str::from_utf8(g).ok()).collect();
    groups.join(",")
}

fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    let mut peer: Option<(PerEntry, String)> = None;
    let mut rows = vec![];
    let mut row = |entries: u64, ours: PerEntry, peer: PerEntry, how: &str| {
        rows.push(format!(
            "| {} | {:.1} | {:.1} | {:.1} | {:.1} | {how} |",
            grouped(entries),
            ours.post_bytes,
            peer.post_bytes,
            ours.flag_bits,
            peer.flag_bits
        ));
    };
    for entries in arguments.entries {
        let measures_redis = entries <= arguments.redis_up_to || peer.is_none();
        if measures_redis {
            peer = Some(theirs(&arguments.redis, entries)?);
        }
        let known = peer.as_ref().ok_or("no size was given")?.0;
        let how = if measures_redis { "both measured" } else { "Redis as above" };
        row(entries, ours(entries)?, known, how);
    }
    let (known, version) = peer.ok_or("no size was given")?;
    row(arguments.computed, computed(arguments.computed)?, known, "computed; Redis as above");
    println!("# Memory by size\n");
    println!("`cargo run --release -p tidemark-bench --bin sizes` prints this page.");
    println!("A post has four counters.");
    println!("There are as many flags as posts, about ten on each flagged post.");
    println!("The figures include all memory of the tables with default settings.");
    println!("Redis {version} has one hash per post for counters, and one set per post for flags.");
    println!("The last line uses the formula of `tidemark size`.\n");
    println!("| posts and flags | bytes per post | Redis | bits per flag | Redis | how |");
    println!("|---|---|---|---|---|---|");
    println!("{}", rows.join("\n"));
    Ok(())
}
