//! What a page takes without a socket: the engines alone, and the whole turn from the bytes of a
//! request to those of its reply.
//!
//! ```text
//! target/release/feed_engine --posts 20000 --pairs 80000          all of it in the L2 cache
//! target/release/feed_engine                                      1,000,000 posts
//! target/release/feed_engine --posts 50000000 --pairs 200000000   1.5 GB; loads for a minute
//! ```
//!
//! Posts come in the order of their ids, with log-normal counts; two pairs of five are likes, three
//! are reads, and most of a post's pairs come while it is among the newest. They are stored past
//! the log. Pages are of random posts; nanoseconds are processor time of the thread.

use clap::Parser;
use dataset::engines::Page;
use phantom::Member;
use resp::{Limits, Scan, Scanner};
use rolling::Words;
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Measures pages without sockets.
#[derive(Parser)]
struct Args {
    /// Posts.
    #[arg(long, default_value_t = 1_000_000)]
    posts: u64,
    /// Likes and reads.
    #[arg(long, default_value_t = 4_000_000)]
    pairs: u64,
    /// Viewers.
    #[arg(long, default_value_t = 1_000_000)]
    viewers: u64,
    /// Posts of a page.
    #[arg(long, default_value_t = 20)]
    size: usize,
    /// Pages of a round.
    #[arg(long, default_value_t = 50_000)]
    pages: usize,
    /// At last up to so many threads ask at once.
    #[arg(long, default_value_t = 2)]
    threads: u64,
    /// Rounds; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// Most of a post's pairs come while so many newer posts are there.
const YOUNG: f64 = 5_000.0;

fn post(index: u64) -> u64 {
    3_631_614_501_919_378 + index * 4194
}

fn viewer(index: u64) -> u64 {
    5_000_000_000 + index * 7
}

fn log_normal(rng: &mut fastrand::Rng, mu: f64, sigma: f64) -> i64 {
    let normal = (-2.0 * (1.0 - rng.f64()).ln()).sqrt() * (std::f64::consts::TAU * rng.f64()).cos();
    (mu + sigma * normal).exp() as i64
}

/// A page as it is asked for.
struct Asked {
    viewer: u64,
    ids: Vec<u64>,
    /// The request.
    text: Vec<u8>,
    binary: Vec<u8>,
}

impl Asked {
    fn new(args: &Args, rng: &mut fastrand::Rng) -> Asked {
        let ids: Vec<u64> = (0..args.size).map(|_| post(rng.u64(..args.posts))).collect();
        let viewer = viewer(rng.u64(..args.viewers));
        let (text, binary) = (request(viewer, &ids, None), request(viewer, &ids, Some("BINARY")));
        Asked { viewer, ids, text, binary }
    }
}

fn request(viewer: u64, ids: &[u64], last: Option<&str>) -> Vec<u8> {
    let head = ["FEED.GET".to_owned(), "home".to_owned(), viewer.to_string()];
    let words: Vec<String> = head
        .into_iter()
        .chain(ids.iter().map(u64::to_string))
        .chain(last.map(str::to_owned))
        .collect();
    let mut out = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| out += &format!("${}\r\n{word}\r\n", word.len()));
    out.into_bytes()
}

/// Pages that are made, then measured, in one go: their texts stay in the second cache, as those
/// that a socket has just given would.
const BLOCK: usize = 96;

/// For so long several threads ask at once.
const TOGETHER: Duration = Duration::from_secs(2);

/// Processor time of this thread, in nanoseconds.
fn now_ns() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// Anonymous memory of this process, and how much of it lies in huge pages, in MB.
fn memory_mb() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok())
            .unwrap_or_default()
    };
    (kib("Anonymous:") * 1024 / 1_000_000, kib("AnonHugePages:") * 1024 / 1_000_000)
}

/// Median over the rounds of nanoseconds per page. New pages each time, so that what is in the
/// caches of the data is by chance.
fn measure(args: &Args, rng: &mut fastrand::Rng, mut block: impl FnMut(&[Asked])) -> f64 {
    let blocks = args.pages.div_ceil(BLOCK);
    let mut rounds: Vec<f64> = (0..args.rounds)
        .map(|_| {
            let mut spent = 0.0;
            for _ in 0..blocks {
                let pages: Vec<Asked> = (0..BLOCK).map(|_| Asked::new(args, rng)).collect();
                let begin = now_ns();
                block(&pages);
                spent += now_ns() - begin;
            }
            spent / (blocks * BLOCK) as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

/// Nanoseconds of a page's bare fetches: of two lines side by side for each row, and one for each
/// of two flags, at random from so many bytes of huge pages. Where they are is known beforehand;
/// all are asked for, then all are read.
fn floor(args: &Args, bytes: u64, rng: &mut fastrand::Rng) -> std::io::Result<f64> {
    let words = Words::zeroed(bytes as usize / 8)?;
    words.iter().step_by(512).for_each(|word| word.store(1, Relaxed));
    let mut rounds: Vec<f64> = (0..args.rounds)
        .map(|_| {
            let mut spent = 0.0;
            for _ in 0..args.pages.div_ceil(BLOCK) {
                let places: Vec<usize> = (0..BLOCK * args.size * 3)
                    .map(|_| rng.usize(..words.len() / 16) * 16)
                    .collect();
                let begin = now_ns();
                for page in places.chunks_exact(args.size * 3) {
                    let (rows, flags) = page.split_at(args.size);
                    rows.iter().for_each(|&row| words.prefetch_lines::<2>(row));
                    flags.iter().for_each(|&flag| words.prefetch(flag));
                    let line = |&at: &usize| words[at].load(Relaxed);
                    black_box(
                        flags.iter().map(line).sum::<u64>()
                            + rows.iter().map(|&row| line(&row) + line(&(row + 8))).sum::<u64>(),
                    );
                }
                spent += now_ns() - begin;
            }
            spent / (args.pages.div_ceil(BLOCK) * BLOCK) as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[rounds.len() / 2])
}

/// Pages per second of the clock, whole turns of one page, by several threads at once. The making
/// of the pages is not counted.
fn together(args: &Args, server: &tidemark_server::Server, threads: u64) -> f64 {
    let ready = Barrier::new(threads as usize);
    let one = |seed: u64| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut local = server.local().expect("a client");
        // A share of what a round has, again and again.
        let pages: Vec<Asked> =
            (0..args.pages.min(10_000)).map(|_| Asked::new(args, &mut rng)).collect();
        ready.wait();
        let (begin, mut done) = (Instant::now(), 0);
        while begin.elapsed() < TOGETHER {
            for page in &pages {
                black_box(local.turn(&page.text).len());
            }
            done += pages.len();
        }
        done as f64 / begin.elapsed().as_secs_f64()
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|seed| {
                scope.spawn({
                    let one = &one;
                    move || one(seed)
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    })
}

// Long: one measurement after the other.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let (server, _folder) = tidemark_bench::server::in_process()?;
    let mut rng = fastrand::Rng::with_seed(1);
    {
        let engines = server.engines();
        let posts = engines.counter(b"post").ok_or("no posts")?;
        let flags = ["liked", "read"].map(|name| engines.existence(name.as_bytes()));
        let [Some(liked), Some(read)] = flags else { return Err("no flags".into()) };
        let mut due = 0.0;
        for index in 0..args.posts {
            let rare = |rng: &mut fastrand::Rng| {
                if rng.u8(0..3) == 0 { log_normal(rng, 1.0, 1.5) } else { 0 }
            };
            let row = [
                log_normal(&mut rng, 2.2, 1.7),
                rare(&mut rng),
                rare(&mut rng),
                log_normal(&mut rng, 6.6, 1.65),
            ];
            posts.set(post(index), &[(0, row[0]), (1, row[1]), (2, row[2]), (3, row[3])])?;
            due += args.pairs as f64 / args.posts as f64;
            while due >= 1.0 {
                due -= 1.0;
                let age = (-YOUNG * (1.0 - rng.f64()).ln()) as u64;
                let (id, member) = (
                    post(index.saturating_sub(age)),
                    Member::Number(viewer(rng.u64(..args.viewers))),
                );
                if rng.u8(..5) < 2 { liked } else { read }.add(id, &member)?;
            }
        }
        while engines.maintain() {}
        println!(
            "{} posts in {} kB, {} pairs in {} kB",
            posts.rows(),
            posts.memory_bytes() / 1000,
            args.pairs,
            (liked.memory_bytes() + read.memory_bytes()) / 1000
        );
        for flags in [liked, read] {
            // Ids are spread evenly.
            let (first, last) = (post(0), post(args.posts));
            let weighed = |table: &phantom::TableStats| {
                let ids = table.last.min(last).saturating_sub(table.low.max(first));
                ids as f64 / (last - first) as f64 * (1 + table.extensions) as f64
            };
            let tables = flags.tables_probed(0);
            let filters: f64 = tables.iter().map(weighed).sum();
            println!(
                "{} tables of flags; a pair is looked for in {filters:.2} filters in the mean",
                tables.len()
            );
        }
        let (all, huge) = memory_mb();
        println!("{all} MB of memory in all, {huge} of them in huge pages");
        let bytes = posts.memory_bytes() + liked.memory_bytes() + read.memory_bytes();
        println!("bare fetches {:.0} ns a page of {}", floor(&args, bytes, &mut rng)?, args.size);
    }
    let mut local = server.local().ok_or("no client")?;
    let engines = server.engines();
    let view = engines.view(b"home").ok_or("no view")?;
    let mut page = Page::default();
    let limits = Limits { max_args: 1 << 20, max_bulk_bytes: 1 << 20, unauthenticated: false };
    let mut scanner = Scanner::default();
    let scan = measure(&args, &mut rng, |pages| {
        for page in pages {
            assert!(matches!(scanner.scan(&page.text, &limits), Scan::Request(_)));
            black_box(scanner.args(&page.text).len());
            scanner.restart();
        }
    });
    println!("scanner {scan:.0} ns a page of {}", args.size);
    let feed = measure(&args, &mut rng, |pages| {
        for asked in pages {
            engines
                .feed_get(view, &Member::Number(asked.viewer), &asked.ids, black_box(&mut page))
                .expect("all is in memory");
        }
    });
    println!("engines {feed:.0} ns");
    let mut bytes = Vec::new();
    for at_once in [1, 8, 32] {
        let turn = measure(&args, &mut rng, |pages| {
            for pages in pages.chunks_exact(at_once) {
                bytes.clear();
                pages.iter().for_each(|page| bytes.extend_from_slice(&page.text));
                black_box(local.turn(&bytes).len());
            }
        });
        println!("whole turns of {at_once}: {turn:.0} ns a page");
    }
    let binary = measure(&args, &mut rng, |pages| {
        pages.iter().for_each(|page| assert!(black_box(local.turn(&page.binary)).len() > 10));
    });
    println!("whole turns of 1, BINARY: {binary:.0} ns");
    drop(local);
    let mut alone = 0.0;
    for threads in 1..=args.threads {
        let per_s = together(&args, &server, threads);
        if threads == 1 {
            alone = per_s;
        }
        println!(
            "{threads} threads at once: {per_s:.0} pages a second of the clock, {:.2} times one",
            per_s / alone
        );
    }
    drop(engines);
    server.stop()?;
    Ok(())
}
