//! The same rows by different commands, whole turns without a socket: does a pipeline of small
//! commands wait for memory row by row, or once, as a command that names all rows does?
//!
//! `cargo run --release -p tidemark-bench --bin counter_paths` has all in the second cache; `--
//! --rows 50000000` (450 MB) has nothing there. What a way takes more in the second run than in the
//! first is its wait for memory, whatever its commands cost to parse and to answer. `one by one`
//! sends each small command as a turn of its own: what waiting for each row would cost. Nanoseconds
//! of processor time per row.

use clap::Parser;
use std::hint::black_box;
use tidemark_bench::cpu_ns;

/// Measures ways to rows.
#[derive(Parser)]
struct Args {
    /// Rows.
    #[arg(long, default_value_t = 20_000)]
    rows: u64,
    /// Batches of 20 rows of a round.
    #[arg(long, default_value_t = 20_000)]
    batches: usize,
    /// Rounds; the median counts.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Only the ways whose names begin so: for a tool that counts.
    #[arg(long, default_value = "")]
    only: String,
}

const BATCH: usize = 20;

fn post(index: u64) -> u64 {
    3_631_614_501_919_378 + index * 4194
}

fn request(words: &[&str], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    words.iter().for_each(|word| {
        out.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes())
    });
}

/// One command for all, or one for each row.
enum Way {
    /// The words before the ids, and those after each.
    Whole(&'static [&'static str], &'static [&'static str]),
    /// The name, the words after the key, and whether each is a turn of its own.
    Each(&'static str, &'static [&'static str], bool),
}

const FIELDS: &[&str] = &["like", "repost", "comment", "read"];

const WAYS: [(&str, Way); 11] = [
    ("CNT.GET of 20", Way::Whole(&["CNT.GET", "post"], &[])),
    ("20 HMGET, pipelined", Way::Each("HMGET", FIELDS, false)),
    ("20 HMGET, one by one", Way::Each("HMGET", FIELDS, true)),
    ("20 HGETALL, pipelined", Way::Each("HGETALL", &[], false)),
    ("20 HGETALL, one by one", Way::Each("HGETALL", &[], true)),
    ("CNT.MINCRBY of 20", Way::Whole(&["CNT.MINCRBY", "post"], &["read", "1"])),
    ("20 HINCRBY, pipelined", Way::Each("HINCRBY", &["read", "1"], false)),
    ("20 HINCRBY, one by one", Way::Each("HINCRBY", &["read", "1"], true)),
    ("MGET of 20 cells", Way::Whole(&["MGET"], &[])),
    ("20 GET, pipelined", Way::Each("GET", &[], false)),
    ("20 GET, one by one", Way::Each("GET", &[], true)),
];

/// The turns of one batch.
fn turns(way: &Way, ids: &[u64]) -> Vec<Vec<u8>> {
    let mut turns = vec![Vec::new()];
    match way {
        Way::Whole(head, _) if **head == ["MGET"] => {
            let keys: Vec<String> = ids.iter().map(|id| format!("post:{id}:read")).collect();
            request(
                &["MGET"].into_iter().chain(keys.iter().map(String::as_str)).collect::<Vec<_>>(),
                &mut turns[0],
            );
        }
        Way::Whole(head, after) => {
            let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
            let triples =
                ids.iter().flat_map(|id| [id.as_str()].into_iter().chain(after.iter().copied()));
            request(&head.iter().copied().chain(triples).collect::<Vec<_>>(), &mut turns[0]);
        }
        Way::Each(name, after, apart) => {
            for id in ids {
                if *apart && !turns[0].is_empty() {
                    turns.push(Vec::new());
                }
                let key = format!("post:{id}{}", if *name == "GET" { ":read" } else { "" });
                let last = turns.len() - 1;
                let words: Vec<&str> =
                    [*name, key.as_str()].into_iter().chain(after.iter().copied()).collect();
                request(&words, &mut turns[last]);
            }
        }
    }
    turns
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let (server, _folder) = tidemark_bench::server::in_process()?;
    {
        let engines = server.engines();
        let posts = engines.counter(b"post").ok_or("no posts")?;
        for index in 0..args.rows {
            posts.set(post(index), &[(0, 9), (1, 3), (2, 1), (3, 700)])?;
        }
        while engines.maintain() {}
        println!(
            "{} rows in {} kB, {} tables",
            posts.rows(),
            posts.memory_bytes() / 1000,
            posts.tables().len()
        );
    }
    let mut local = server.local().ok_or("no client")?;
    let mut rng = fastrand::Rng::with_seed(1);
    let mut times = [const { Vec::new() }; WAYS.len()];
    // By turns, so that what disturbs one disturbs all.
    for _ in 0..args.rounds {
        for ((_, way), times) in
            WAYS.iter().zip(&mut times).filter(|((name, _), _)| name.starts_with(&args.only))
        {
            let mut spent = 0.0;
            // A few at a time, so that requests are in the cache as those that a socket has just
            // given would be.
            for _ in 0..args.batches / 50 {
                let batches: Vec<Vec<Vec<u8>>> = (0..50)
                    .map(|_| {
                        turns(
                            way,
                            &(0..BATCH).map(|_| post(rng.u64(..args.rows))).collect::<Vec<_>>(),
                        )
                    })
                    .collect();
                let begin = cpu_ns();
                for turn in batches.iter().flatten() {
                    assert!(black_box(local.turn(turn)).len() > 3);
                }
                spent += (cpu_ns() - begin) as f64;
            }
            times.push(spent / (args.batches / 50 * 50 * BATCH) as f64);
        }
    }
    for ((name, _), mut times) in WAYS.iter().zip(times) {
        if times.is_empty() {
            continue;
        }
        times.sort_by(f64::total_cmp);
        println!("{name:24} {:6.0} ns a row (least {:.0})", times[times.len() / 2], times[0]);
    }
    drop(local);
    server.stop()?;
    Ok(())
}
