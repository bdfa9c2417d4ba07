//! Bytes per pair of viewer and post: Tidemark's filters, sets of redis-server, and Bloom filters
//! of a Redis module or of a compatible server.
//!
//! `cargo run --release -p tidemark-bench --bin phantom_memory -- [--module redisbloom.so |
//! --program valkey-server --module libvalkey_bloom.so]`
//!
//! The memory of a server is the growth of its `used_memory`, which includes keys and allocator
//! rounding. For filters, the server also reports the size of the filter itself.

use clap::Parser;
use client::Reply;
use phantom::{Member, Options, Space};
use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tidemark_bench::play::{make_room, take_all};
use tidemark_bench::server::Server;

/// Fills each store with the same pairs
#[derive(Parser)]
struct Args {
    /// Number of pairs
    #[arg(long, default_value_t = 4_000_000)]
    pairs: u64,
    /// Server that stores the sets, and the filters if it supports them
    #[arg(long, default_value = "redis-server")]
    program: PathBuf,
    /// Module with BF.RESERVE and BF.MADD to load into the server
    #[arg(long)]
    module: Option<PathBuf>,
}

type Outcome = Result<(), Box<dyn Error>>;

/// Returns a distinct viewer id for each pair: as short as possible for redis-server, or eight
/// bytes long.
fn viewer(i: u64, bits: u32) -> u64 {
    // The factor is odd, so the ids are distinct.
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)
}

fn ours(pairs: u64, rate: f64) -> Outcome {
    let options = Options {
        false_positive_rate: rate,
        pairs_per_table: pairs / 8,
        max_tables: 1000,
        ..Options::default()
    };
    let space = Space::new(options)?;
    for i in 0..pairs {
        space.add((1 << 50) + i / 10, &Member::Number(viewer(i, 64)))?;
    }
    while space.maintain() {}
    let tables = space.tables();
    let full =
        tables.iter().rev().skip(1).max_by_key(|table| table.pairs).ok_or("no table was closed")?;
    let whole = space.memory_bytes() as f64 / space.pairs() as f64;
    let closed = full.bytes as f64 / full.pairs as f64;
    println!(
        "| phantom at {} %: a full filter; a closed table; the whole space, including the newest \
         table and the spare | {:.2}; {closed:.2}; {whole:.2} |",
        rate * 100.0,
        full.bytes as f64 / full.capacity as f64
    );
    Ok(())
}

/// Stores all pairs in a server, with `per_key` pairs per key. Returns the memory used and, if the
/// server reports it, the size of the filters. `reserve`, if not empty, is sent once per key;
/// `command` adds the pairs.
fn measure_server_memory(
    args: &Args,
    (bits, per_key): (u32, u64),
    command: &[u8],
    reserve: &[&str],
) -> Result<(f64, Option<f64>), Box<dyn Error>> {
    let (program, module) = (args.program.clone(), args.module.clone());
    let server = Server::new(&std::env::temp_dir(), move |folder, port| {
        let mut command = Command::new(&program);
        command
            .args(["--port", &port.to_string(), "--save", ""])
            .arg("--dir")
            .arg(folder)
            .stdout(Stdio::null());
        module.iter().for_each(|module| _ = command.arg("--loadmodule").arg(module));
        command
    })?;
    // Wait until the buffers of other connections are freed.
    let used = || loop {
        if server.info("connected_clients")? == "1" {
            return Ok::<f64, Box<dyn Error>>(server.info("used_memory")?.parse()?);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    let before = used()?;
    let mut client = server.client()?;
    for first in (0..args.pairs).step_by(per_key as usize) {
        let key = format!("liked:{}", (1u64 << 50) + first);
        if !reserve.is_empty() {
            let words: Vec<&[u8]> = [b"BF.RESERVE", key.as_bytes()]
                .into_iter()
                .chain(reserve.iter().map(|word| word.as_bytes()))
                .collect();
            client.push(&words);
        }
        // Limit the number of members per request.
        let end = (first + per_key).min(args.pairs);
        for first in (first..end).step_by(1000) {
            make_room(&mut client)?;
            let viewers: Vec<String> =
                (first..end.min(first + 1000)).map(|i| viewer(i, bits).to_string()).collect();
            let mut words = vec![command, key.as_bytes()];
            words.extend(viewers.iter().map(|viewer| viewer.as_bytes()));
            client.push(&words);
        }
    }
    take_all(&mut client)?;
    let key = format!("liked:{}", 1u64 << 50);
    let size = match client.call(&[b"BF.INFO", key.as_bytes(), b"SIZE"]) {
        Ok(Reply::Array(size)) => size
            .first()
            .and_then(|size| if let Reply::Integer(size) = size { Some(*size) } else { None }),
        _ => None,
    };
    drop(client);
    Ok((
        (used()? - before) / args.pairs as f64,
        size.map(|size| size as f64 / per_key.min(args.pairs) as f64),
    ))
}

fn main() -> Outcome {
    let args = Args::parse();
    println!("{} pairs\n\n| | bytes per pair |\n|---|---|", args.pairs);
    for rate in [0.01, 0.001, 0.0001] {
        ours(args.pairs, rate)?;
    }
    for (bits, per_key) in [(32, 10), (32, 100), (32, 1000), (48, 10), (48, 100), (48, 1000)] {
        let (bytes, _) = measure_server_memory(&args, (bits, per_key), b"SADD", &[])?;
        println!("| sets of {per_key} viewers, ids of {bits} bits | {bytes:.1} |");
    }
    if args.module.is_some() {
        let all = args.pairs.to_string();
        let kinds: [(&str, u64, &[&str]); 6] = [
            (
                "one filter for all pairs at 1 %, non-scaling",
                args.pairs,
                &["0.01", &all, "NONSCALING"],
            ),
            ("same at 0.1 %", args.pairs, &["0.001", &all, "NONSCALING"]),
            ("same at 0.01 %", args.pairs, &["0.0001", &all, "NONSCALING"]),
            ("one filter for all pairs at 1 %, scaling", args.pairs, &["0.01", &all]),
            ("one filter without BF.RESERVE", args.pairs, &[]),
            ("one filter per post for 10 viewers at 1 %", 10, &["0.01", "10"]),
        ];
        for (kind, per_key, reserve) in kinds {
            let (bytes, size) = measure_server_memory(&args, (48, per_key), b"BF.MADD", reserve)?;
            println!("| {kind}; from BF.INFO | {bytes:.2}; {:.2} |", size.unwrap_or(f64::NAN));
        }
    }
    Ok(())
}
