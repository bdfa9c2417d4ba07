//! Shared workload helpers: realistic ids and rows, client threads, percentiles.

use crate::server::Server;
use client::{Client, Reply};
use std::io;

/// Returns a post id with 16 digits. As in microblogs, there are gaps between ids.
pub fn post(index: u64) -> u64 {
    3_631_614_501_919_378 + index * 4194
}

/// Formats a number as an argument.
pub fn text(n: u64) -> Vec<u8> {
    n.to_string().into_bytes()
}

/// Reads `replies` replies. An error reply is returned as an error.
pub fn take(client: &mut Client, replies: usize) -> io::Result<()> {
    for _ in 0..replies {
        if let Reply::Error(words) = client.reply()? {
            return Err(io::Error::other(words.to_string()));
        }
    }
    Ok(())
}

/// Reads all pending replies.
pub fn take_all(client: &mut Client) -> io::Result<()> {
    let waiting = client.waiting();
    take(client, waiting)
}

/// Reads all pending replies if the client's pipeline is full.
pub fn make_room(client: &mut Client) -> io::Result<()> {
    if client.is_full() { take_all(client) } else { Ok(()) }
}

/// Runs a job on each of `threads` threads and sums the results.
pub fn on_threads(threads: u64, job: impl Fn(u64) -> io::Result<u64> + Sync) -> io::Result<u64> {
    let job = &job;
    std::thread::scope(|s| {
        let all: Vec<_> = (0..threads).map(|i| s.spawn(move || job(i))).collect();
        all.into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err(io::Error::other("a client panicked"))))
            .sum()
    })
}

/// The machine's one-minute load average.
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// Returns the median. For an even number of values, returns the higher of the two middle values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Sorts the values and returns the percentile `share` (0..1).
pub fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values
        .get(((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}

/// Stores `rows` rows over two connections. `row` sends the command for a post and its four counts.
pub fn fill(
    server: &Server,
    rows: u64,
    row: impl Fn(&mut Client, u64, [&[u8]; 4]) + Sync,
) -> io::Result<()> {
    on_threads(2, |i| {
        let (mut client, mut rng) = (server.client()?, fastrand::Rng::with_seed(i));
        for index in (i..rows).step_by(2) {
            let counts = [40, 27, 21, 2900]
                .map(|mean| text((rng.f64().powi(4) * 5.0 * f64::from(mean)) as u64));
            row(&mut client, post(index), [&counts[0], &counts[1], &counts[2], &counts[3]]);
            make_room(&mut client)?;
        }
        take_all(&mut client)?;
        Ok(0)
    })?;
    Ok(())
}

/// Sends a row of [`fill`] to Tidemark's space `post`.
pub fn row_tidemark(client: &mut Client, post: u64, [like, repost, comment, read]: [&[u8]; 4]) {
    let id = text(post);
    client.push(&[
        b"CNT.SET", b"post", &id, b"like", like, b"repost", repost, b"comment", comment, b"read",
        read,
    ]);
}

/// Sends a row of [`fill`] to Redis, as a hash.
pub fn row_redis(client: &mut Client, post: u64, [like, repost, comment, read]: [&[u8]; 4]) {
    let key = [b"post:", &text(post)[..]].concat();
    client.push(&[
        b"HSET", &key, b"like", like, b"repost", repost, b"comment", comment, b"read", read,
    ]);
}
