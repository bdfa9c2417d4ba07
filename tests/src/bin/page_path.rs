//! Executes one kind of request repeatedly in an in-process server, so that callgrind can count its
//! instructions:
//!
//! ```text
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*Local::turn_*' \
//!     target/debug/page_path page 1000
//! ```
//!
//! | word | requests per event-loop iteration |
//! |---|---|
//! | `ping` | PING |
//! | `page` | FEED.GET of 20 posts |
//! | `young` | `page`, in spaces whose old tables are on disk |
//! | `cold` | `page`, with half of the posts and their flags read from disk |
//! | `cached` | `page`, with that half in the cache of cold rows |
//! | `coordinator` | `page`, with posts of three shards |
//! | `binary` | `page` with packed rows |
//! | `pages` | 8 pages |
//! | `stock` | 20 HMGET and 2 PH.EXISTS |
//! | `hmget`, `hincrby` | 16 HMGET; 16 HINCRBY |
//! | `likes` | 16 FEED.ACT of new likes, in a space without a ledger |
//! | `exact` | `likes`, in a space with a ledger |
//!
//! The count covers the worker's thread, from requests to replies. The count excludes the threads
//! that read cold blocks, sockets between nodes, and the other nodes. The program prints the number
//! of requests.

use std::error::Error;
use std::fmt::Write;
use tidemark_server::config::{Config, LedgerMode};
use tidemark_tests::{Raw, TestServer, request};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Number of posts that pages draw from.
const POSTS: u64 = 4_000;

const FIRST: u64 = 3_631_614_501_919_378;

const SPACES: [&str; 3] = ["post", "liked", "read"];

fn post(index: u64) -> String {
    (FIRST + index * 4194).to_string()
}

fn of(words: &[&str], more: &[String]) -> Vec<u8> {
    let more = more.iter().map(String::as_str);
    request(&words.iter().copied().chain(more).collect::<Vec<_>>())
}

/// Sends requests and checks their replies, which have `lines` lines each. A MOVED error is
/// accepted, because each node stores only its own posts.
fn tell(raw: &mut Raw, requests: &[Vec<u8>], lines: usize) -> Outcome<()> {
    raw.send(requests.concat());
    for _ in requests {
        for _ in 0..lines {
            let line = raw.line();
            if line.starts_with("-MOVED") {
                break;
            }
            if line.starts_with('-') {
                return Err(line.into());
            }
        }
    }
    Ok(())
}

/// Spills the newest tables of all spaces to disk.
fn spill(raw: &mut Raw) -> Outcome<()> {
    for space in SPACES {
        raw.ask(&["TM.ROLL", space]);
        let spilled = raw.ask(&["TM.SPILL", space]);
        if spilled.trim_start_matches(':').parse::<u64>()? < 90 {
            return Err(format!("{space}: {spilled} were spilled").into());
        }
    }
    Ok(())
}

/// Creates a hundred posts older than all others and spills them.
fn fill_old(raw: &mut Raw) -> Outcome<()> {
    for id in (1..=100).rev().map(|before| (FIRST - before * 4194).to_string()) {
        tell(raw, &[request(&["CNT.SET", "post", &id, "like", "1"])], 1)?;
        for space in ["liked", "read"] {
            tell(raw, &[request(&["PH.ADD", space, "42", &id])], 2)?;
        }
    }
    spill(raw)
}

/// Sets the counters of some posts, and the viewer's flags of a fifth of them. Every node receives
/// all posts and keeps its own.
fn fill(
    raws: &mut [Raw],
    posts: std::ops::Range<u64>,
    flags: &[&str],
    rng: &mut fastrand::Rng,
) -> Outcome<()> {
    for first in posts.step_by(100) {
        let set = |index| {
            let mut count = |most: f64| ((rng.f64().powi(4) * most) as u64).to_string();
            let (like, repost, comment) = (count(200.0), count(40.0), count(40.0));
            let read = count(15_000.0);
            let fields = ["like", &like, "repost", &repost, "comment", &comment, "read", &read];
            request(&[&["CNT.SET", "post", &*post(index)], &fields[..]].concat())
        };
        let rows: Vec<Vec<u8>> = (first..first + 100).map(set).collect();
        for raw in &mut *raws {
            tell(raw, &rows, 1)?;
        }
        let ids: Vec<String> = (0..20).map(|_| post(first + rng.u64(0..100))).collect();
        for flag in flags {
            tell(&mut raws[0], &[of(&["PH.ADD", flag, "42"], &ids)], 21)?;
        }
    }
    Ok(())
}

/// Starts and fills the servers that `what` needs.
fn start(what: &str, rng: &mut fastrand::Rng) -> Outcome<Vec<TestServer>> {
    let spills = matches!(what, "young" | "cold" | "cached" | "exact");
    let nodes = if what == "coordinator" { 3 } else { 1 };
    let change = |config: &mut Config| {
        config.counter[0].spill = spills;
        for space in &mut config.existence {
            (space.spill, space.ledger) = (spills, LedgerMode::Off);
        }
        if what == "exact" {
            config.existence[0].ledger = LedgerMode::Exact;
        }
        config.cluster.enabled = nodes > 1;
        // Valgrind slows down all nodes.
        config.cluster.peer_timeout_ms = 60_000;
        if what == "cold" {
            config.spill.cache_bytes = 1;
        }
    };
    let servers: Vec<TestServer> = (0..nodes).map(|_| TestServer::with(change)).collect();
    // Uses sockets, because callgrind counts every call of `Local`.
    let mut raws: Vec<Raw> = servers.iter().map(TestServer::raw).collect();
    if nodes > 1 {
        let mut topology = String::new();
        for (at, server) in servers.iter().enumerate() {
            let (from, to) = (16_384 * at / nodes, 16_384 * (at + 1) / nodes - 1);
            writeln!(topology, "{at:040} 127.0.0.1 {} master - {from}-{to}", server.port())?;
        }
        for raw in &mut raws {
            tell(raw, &[request(&["CLUSTERX", "SETNODES", &topology, "1"])], 1)?;
        }
    }
    if what == "young" {
        fill_old(&mut raws[0])?;
    }
    let has_cold = matches!(what, "cold" | "cached");
    let flags: &[&str] = if has_cold { &["liked", "read"] } else { &["liked"] };
    fill(&mut raws, 0..POSTS / 2, flags, rng)?;
    if has_cold {
        spill(&mut raws[0])?;
    }
    fill(&mut raws, POSTS / 2..POSTS, flags, rng)?;
    if what == "cached" {
        for first in (0..POSTS / 2).step_by(100) {
            let ids: Vec<String> = (first..first + 100).map(post).collect();
            // Each row takes seven lines: its length, four counters and two flags.
            tell(&mut raws[0], &[of(&["FEED.GET", "home", "42"], &ids)], 1 + 7 * 100)?;
        }
    }
    Ok(servers)
}

fn requests(what: &str, rng: &mut fastrand::Rng) -> Outcome<Vec<u8>> {
    // In the runs "cold" and "cached", the older half of the posts is on disk. Pages alternate
    // between the two halves.
    let page = |rng: &mut fastrand::Rng| -> Vec<String> {
        if matches!(what, "cold" | "cached") {
            return (0..20).map(|at| post(rng.u64(..POSTS / 2) + at % 2 * (POSTS / 2))).collect();
        }
        (0..20).map(|_| post(rng.u64(..POSTS))).collect()
    };
    let get = |rng: &mut fastrand::Rng| of(&["FEED.GET", "home", "42"], &page(rng));
    let hmget =
        |id: &str| request(&["HMGET", &format!("post:{id}"), "like", "repost", "comment", "read"]);
    let hincrby = |id: &str| request(&["HINCRBY", &format!("post:{id}"), "like", "1"]);
    let ids = |rng: &mut fastrand::Rng| -> Vec<String> {
        (0..16).map(|_| post(rng.u64(..POSTS))).collect()
    };
    Ok(match what {
        "ping" => request(&["PING"]),
        "page" | "young" | "cold" | "cached" | "coordinator" => get(rng),
        "binary" => of(&["FEED.GET", "home", "42"], &[page(rng), vec!["BINARY".into()]].concat()),
        "pages" => (0..8).flat_map(|_| get(rng)).collect(),
        "stock" => {
            let ids = page(rng);
            let mut bytes: Vec<u8> = ids.iter().flat_map(|id| hmget(id)).collect();
            for space in ["liked", "read"] {
                bytes.extend(of(&["PH.EXISTS", space, "42"], &ids));
            }
            bytes
        }
        "hmget" => ids(rng).iter().flat_map(|id| hmget(id)).collect(),
        "hincrby" => ids(rng).iter().flat_map(|id| hincrby(id)).collect(),
        "likes" | "exact" => (0..16)
            .flat_map(|_| {
                let viewer = rng.u64(1000..1 << 40).to_string();
                request(&["FEED.ACT", "like", &viewer, &post(rng.u64(..POSTS))])
            })
            .collect(),
        other => return Err(format!("unknown: {other}").into()),
    })
}

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let (Some(what), Some(turns)) = (words.next(), words.next()) else {
        return Err("page_path WHAT TURNS".into());
    };
    let turns: u64 = turns.parse()?;
    let mut rng = fastrand::Rng::with_seed(1);
    let servers = start(&what, &mut rng)?;
    let mut local = servers[0].server().local().ok_or("no client")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut asked, mut replies) = (0, 0);
    for _ in 0..turns {
        let bytes = requests(&what, &mut rng)?;
        let told = runtime.block_on(local.answers(&bytes));
        // Packed rows may contain any bytes.
        let may_begin_in_the_middle = what != "binary";
        let has_error = told.starts_with(b"-")
            || may_begin_in_the_middle && told.windows(2).any(|two| two == b"\n-");
        if has_error {
            return Err(String::from_utf8_lossy(told).into());
        }
        replies += told.len();
        asked += bytes.iter().filter(|&&b| b == b'*').count();
    }
    println!("{asked} requests, {replies} bytes of replies");
    drop(local);
    servers.into_iter().for_each(TestServer::stop);
    Ok(())
}
