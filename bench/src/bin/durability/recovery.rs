//! Fills a server with rows and pairs, and measures its restart after a kill.

use crate::{Args, Size, redis, tidemark};
use client::Reply;
use std::io;
use std::time::Instant;
use tidemark_bench::play::{fill, on_threads, post, row_redis, row_tidemark, take, take_all, text};
use tidemark_bench::server::Server;

/// Memory of the filters in MiB, as reported by the server.
fn filters_mib(server: &Server) -> io::Result<f64> {
    let reply = server.client()?.call(&[b"INFO", b"spaces"])?;
    let Reply::BulkString(text) = reply else {
        return Err(io::Error::other(format!("INFO: {reply:?}")));
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    let of_space =
        |line: &str| line.split_once("memory_bytes=")?.1.split(',').next()?.parse::<f64>().ok();
    Ok(text.lines().filter(|l| l.starts_with("existence_")).filter_map(of_space).sum::<f64>()
        / (1 << 20) as f64)
}

/// Starts a server and fills it with rows and pairs.
pub(crate) fn filled(args: &Args, size: &Size) -> io::Result<Server> {
    let counters = "[[counter]]\nname = \"post\"\nfields = \"like:12 repost:8 comment:8 read:16\"\n\
                    memory_limit = 8_000_000_000\n";
    let filter = |name: &str, pairs: u64| {
        format!("[[existence]]\nname = \"{name}\"\npairs_per_table = {pairs}\nmax_tables = 64\n")
    };
    let rest = "[[view]]\nname = \"home\"\ncounters = [\"post\"]\nflags = [\"liked\", \"read\"]\n\
                [[action]]\nname = \"like\"\nflag = \"liked\"\ncounter = \"post.like\"\n";
    let config =
        format!("{counters}{}{}{rest}", filter("liked", 16 << 20), filter("read", 1 << 20));
    // Retain no segments that recovery does not need, because copying them takes time.
    let server = tidemark(args, "everysec", &format!("keep_log = 0\n{config}"))?;
    let started = Instant::now();
    let name = format!("tidemark-{}-{}", size.rows, size.pairs);
    let server = args.place.filled(&name, server, |server| fill_tidemark(server, size))?;
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

fn fill_tidemark(server: &Server, size: &Size) -> io::Result<()> {
    fill(server, size.rows, row_tidemark)?;
    on_threads(2, |i| {
        let (mut client, mut rng) = (server.client()?, fastrand::Rng::with_seed(100 + i));
        let requests = size.pairs / 2 / 100;
        for member in 0..requests {
            // Likes go to recent posts.
            let first = size.rows.saturating_sub(4000) * member / requests;
            let ids: Vec<Vec<u8>> =
                (0..100).map(|_| text(post(first + rng.u64(0..4000)))).collect();
            let mut words: Vec<&[u8]> = vec![b"PH.ADD", b"liked"];
            let member = text(5_000_000_000 + member * 2 + i);
            words.push(&member);
            words.extend(ids.iter().map(Vec::as_slice));
            client.push(&words);
            if client.waiting() >= 16 {
                take(&mut client, 8)?;
            }
        }
        take_all(&mut client)?;
        Ok(0)
    })?;
    Ok(())
}

/// Starts Redis and loads the same rows as hashes.
pub(crate) fn filled_redis(args: &Args, size: &Size) -> io::Result<Server> {
    let server = redis(args, &["--appendonly", "no"])?;
    args.place.filled(&format!("redis-{}", size.redis_rows), server, |server| {
        fill(server, size.redis_rows, row_redis)
    })
}

/// Kills and restarts both servers.
pub(crate) fn measure(
    size: &Size,
    mut server: Server,
    mut redis: Server,
    from_log: bool,
) -> io::Result<()> {
    if !from_log {
        server.client()?.call(&[b"SAVE"])?;
    }
    let (wall, cpu) = server.restart()?;
    let ours = size.rows as f64 / cpu;
    println!(
        "recovery: {wall:.2} s, {cpu:.2} CPU s: {:.2} million rows per second and core, including \
         the filters (target: 5)",
        ours / 1e6
    );
    drop(server);

    redis.client()?.call(&[b"SAVE"])?;
    let (wall, cpu) = redis.restart()?;
    let theirs = size.redis_rows as f64 / cpu;
    println!(
        "Redis, {} rows from its RDB file: {wall:.2} s, {cpu:.2} CPU s: {:.2} million rows per \
         second and core; ratio {:.1}",
        size.redis_rows,
        theirs / 1e6,
        ours / theirs
    );
    Ok(())
}
