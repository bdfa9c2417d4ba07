//! Tests a new server on which only the memory is configured. The server spills posts and likes
//! that exceed the memory and refuses none of them, although the test kills it (SIGKILL) during
//! spills and merges. At the end, every row and every flag is correct, before and after another
//! restart, and the server has never exceeded its memory.
//!
//! `TIDEMARK_STEPS` sets the number of posts and of likes (default 1,000,000 with 48 MiB;
//! 400,000,000 with 2 GiB before a release).

use client::{Client, Reply};
use harness::program::{Program, call, refusal};
use harness::within;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Number of posts per request, all liked by one member.
const BLOCK: u64 = 1000;
const LOADERS: u64 = 2;
const KILLS: u64 = 3;
/// Maximum ratio of process memory to configured memory. In addition, a process may use
/// `PROGRAM_BYTES` more than configured.
const MAX_MEMORY_RATIO: f64 = 1.05;
const PROGRAM_BYTES: u64 = 40 << 20;
/// One in this many posts gets a comment after all posts are loaded.
const COMMENTED: u64 = 10;

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ (x >> 32)
}

/// Number of blocks between two syncs. After a kill the client resends them, so the server must
/// still have their tokens. The server stores a million tokens, or as many as fit into an eighth of
/// its memory at 80 bytes each. A block uses two tokens per post, one for each of two counters.
fn stretch(memory_bytes: u64) -> u64 {
    let tokens = (memory_bytes / 8 / 80).min(1_000_000);
    (tokens / 2 / (2 * BLOCK)).max(1)
}

fn id(post: u64) -> u64 {
    (1 << 50) + post * 4096 + mix(post) % 4096
}

fn member(block: u64) -> u64 {
    1_000_000 + mix(block) % (1 << 32)
}

fn counts(post: u64) -> [i64; 2] {
    let drawn = mix(post ^ 0x5851_F42D_4C95_7F2D);
    [(drawn % 5000) as i64, (drawn >> 20) as i64 % 6]
}

fn posts(block: u64) -> Range<u64> {
    block * BLOCK..(block + 1) * BLOCK
}

/// The arguments of a request, in one allocation.
#[derive(Default)]
struct Words {
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Words {
    fn new(first: &[&str]) -> Words {
        let mut words = Words::default();
        first.iter().for_each(|word| words.add(word));
        words
    }

    fn add(&mut self, word: impl std::fmt::Display) {
        use std::io::Write as _;
        write!(self.text, "{word}").unwrap();
        self.ends.push(self.text.len());
    }

    fn push(&self, client: &mut Client) {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        let words: Vec<&[u8]> =
            begins.zip(&self.ends).map(|(begin, end)| &self.text[begin..*end]).collect();
        client.push(&words);
    }
}

/// Sends the counters and likes of a block. The counter command has a TOKEN, so the server applies
/// it only once even if the block is sent again.
fn push_block(client: &mut Client, block: u64) {
    let mut counters = Words::new(&["CNT.MINCRBY", "post"]);
    for post in posts(block) {
        let [read, comment] = counts(post);
        for (field, by) in [("read", read), ("comment", comment)] {
            counters.add(id(post));
            counters.add(field);
            counters.add(by);
        }
    }
    counters.add("TOKEN");
    counters.add(format_args!("block-{block}"));
    counters.push(client);
    let mut likes = Words::new(&["FEED.ACT", "like"]);
    likes.add(member(block));
    posts(block).for_each(|post| likes.add(id(post)));
    likes.push(client);
}

/// Adds a comment to some posts of a block, with tokens.
fn push_comments(client: &mut Client, block: u64) {
    let mut comments = Words::new(&["CNT.MINCRBY", "post"]);
    for post in posts(block).filter(|post| post % COMMENTED == 0) {
        comments.add(id(post));
        comments.add("comment");
        comments.add(1);
    }
    comments.add("TOKEN");
    comments.add(format_args!("comments-{block}"));
    comments.push(client);
}

/// Sends blocks on several connections until they are synced or the server is killed. Returns
/// whether they are synced. Panics on an error reply.
fn send(port: u16, blocks: Range<u64>, replies: usize, push: fn(&mut Client, u64)) -> bool {
    let (next, is_whole) = (AtomicU64::new(blocks.start), AtomicBool::new(true));
    let load = || -> Result<(), std::io::Error> {
        let mut client = Client::connect(("127.0.0.1", port))?;
        let mut waiting = 0;
        let read = |client: &mut Client, waiting: &mut usize, down_to: usize| {
            while *waiting > down_to {
                let reply = client.reply()?;
                assert_eq!(refusal(&reply), "");
                *waiting -= 1;
            }
            Ok::<(), std::io::Error>(())
        };
        loop {
            let block = next.fetch_add(1, Relaxed);
            if block >= blocks.end {
                break;
            }
            push(&mut client, block);
            waiting += replies;
            read(&mut client, &mut waiting, 4 * replies)?;
        }
        read(&mut client, &mut waiting, 0)?;
        client.call(&[b"WAITAOF", b"1", b"0", b"0"]).map(drop)
    };
    std::thread::scope(|scope| {
        for _ in 0..LOADERS {
            scope.spawn(|| {
                if load().is_err() {
                    is_whole.store(false, Relaxed);
                }
            });
        }
    });
    is_whole.into_inner()
}

struct Fresh {
    folder: tempfile::TempDir,
    config: String,
    memory_bytes: u64,
    program: Program,
    /// Maximum memory of any process so far, as a share of the configured memory.
    worst: f64,
}

impl Fresh {
    fn start(memory_bytes: u64) -> Fresh {
        let folder = tempfile::tempdir().unwrap();
        let config = format!("[server]\nmemory = {memory_bytes}\n");
        let program = Program::start_with(folder.path(), &config);
        Fresh { folder, config, memory_bytes, program, worst: 0.0 }
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn look_at_memory(&mut self) {
        let path = format!("/proc/{}/status", self.program.child.id());
        let status = std::fs::read_to_string(path).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        self.worst = self.worst.max((peak * 1024) as f64 / self.memory_bytes as f64);
    }

    fn kill(&mut self) {
        self.look_at_memory();
        self.program.sigkill();
        self.program = Program::start_with(self.folder.path(), &self.config);
    }

    fn info(&self, name: &str) -> u64 {
        self.program.info(name).parse().unwrap_or_else(|_| panic!("INFO {name}"))
    }

    /// Sends all blocks, and waits for a sync after each stretch of blocks. In the second half,
    /// sometimes kills the server while it writes a cold file, and resends the stretch. Returns the
    /// number of kills.
    fn send_all(&mut self, blocks: u64, replies: usize, push: fn(&mut Client, u64)) -> u64 {
        let mut killed = 0;
        let stretch = stretch(self.memory_bytes);
        for from in (0..blocks).step_by(stretch as usize) {
            let stretch = from..(from + stretch).min(blocks);
            let (port, dir) = (self.program.port, self.dir());
            let may_die = killed < KILLS && from >= blocks * (killed + 5) / 9;
            let is_over = AtomicBool::new(!may_die);
            let is_whole = std::thread::scope(|scope| {
                let sends = scope.spawn(|| {
                    let is_whole = send(port, stretch.clone(), replies, push);
                    is_over.store(true, Relaxed);
                    is_whole
                });
                while !is_over.load(Relaxed) {
                    if is_writing(&dir) {
                        self.kill();
                        killed += 1;
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                sends.join().unwrap()
            });
            if !is_whole {
                assert!(send(self.program.port, stretch, replies, push), "the server has exited");
            }
            self.look_at_memory();
        }
        killed
    }

    /// Checks every row, and the flags of one block in `sample`, including flags that were never
    /// set.
    fn check(&self, blocks: u64, comments: i64, sample: u64) {
        let next = AtomicU64::new(0);
        let wrong = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..LOADERS {
                scope.spawn(|| {
                    let mut client = self.program.client();
                    loop {
                        let block = next.fetch_add(1, Relaxed);
                        if block >= blocks {
                            break;
                        }
                        check_rows(&mut client, block, comments);
                        if block.is_multiple_of(sample) {
                            let found = flags(&mut client, block, member(block));
                            assert_eq!(found, BLOCK, "likes of block {block}");
                            let others = flags(&mut client, block, member(block) + 1);
                            wrong.fetch_add(others, Relaxed);
                        }
                    }
                });
            }
        });
        let rate = wrong.into_inner() as f64 / (blocks.div_ceil(sample) * BLOCK) as f64;
        assert!(rate < 2e-4, "rate of false positives: {rate}");
    }
}

fn is_writing(dir: &Path) -> bool {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
    names.into_iter().any(|entry| entry.file_name().to_string_lossy().ends_with("cold.tmp"))
}

fn check_rows(client: &mut Client, block: u64, comments: i64) {
    let mut words = Words::new(&["CNT.GET", "post"]);
    posts(block).for_each(|post| words.add(id(post)));
    words.push(client);
    let Reply::Array(rows) = client.reply().unwrap() else { panic!("no rows") };
    for (post, row) in posts(block).zip(rows) {
        let Reply::Array(values) = row else { panic!("post {post}: {row:?}") };
        let [read, comment] = counts(post);
        let comment = comment + if post % COMMENTED == 0 { comments } else { 0 };
        // Fields in order: like, repost, comment, read.
        let expected = [1, 0, comment, read].map(Reply::Integer);
        assert_eq!(values, expected, "post {post}");
    }
}

fn flags(client: &mut Client, block: u64, member: u64) -> u64 {
    let mut words = Words::new(&["PH.EXISTS", "liked"]);
    words.add(member);
    posts(block).for_each(|post| words.add(id(post)));
    words.push(client);
    let Reply::Array(flags) = client.reply().unwrap() else { panic!("no flags") };
    flags.iter().filter(|flag| **flag == Reply::Integer(1)).count() as u64
}

#[test]
fn a_fresh_server_takes_more_than_its_memory_holds() {
    let all = seeds::given("TIDEMARK_STEPS").unwrap_or(1_000_000);
    let blocks = all / BLOCK;
    // Use the same memory per post as 2 GiB for 400,000,000 posts, but at least 48 MiB for the
    // process itself.
    let memory_bytes = ((all as f64 * 5.37) as u64).max(48 << 20);
    let mut fresh = Fresh::start(memory_bytes);
    let began = Instant::now();
    let spilled = fresh.send_all(blocks, 2, push_block);
    let took = began.elapsed();
    let sample = blocks.div_ceil(10_000);
    assert!(spilled > 0, "no kill was during a spill");
    within(Duration::from_secs(600), "rows and flags are on disk", || {
        fresh.info("cold_rows") > 0 && fresh.info("cold_pairs") > 0
    });
    fresh.check(blocks, 0, sample);
    let merged = fresh.send_all(blocks, 1, push_comments);
    fresh.check(blocks, 1, sample);
    assert_eq!(refusal(&call(&mut fresh.program.client(), "SAVE")), "");
    fresh.kill();
    fresh.check(blocks, 1, sample);
    fresh.look_at_memory();
    let on_disk = fresh.info("cold_file_bytes") as f64;
    println!(
        "{all} posts and likes over {} MiB: loaded in {took:.0?} ({:.0} a second), none refused; \
         {spilled} kills in spills, {merged} in merges; {:.2} of its memory at most; {:.2} bytes \
         on the disk for each of {} rows",
        memory_bytes >> 20,
        2.0 * all as f64 / took.as_secs_f64(),
        fresh.worst,
        on_disk / fresh.info("cold_rows") as f64,
        fresh.info("cold_rows"),
    );
    let program = (memory_bytes + PROGRAM_BYTES) as f64 / memory_bytes as f64;
    assert!(fresh.worst <= MAX_MEMORY_RATIO.max(program), "{:.3} of its memory", fresh.worst);
}

/// Several connections write rows faster than the server spills them, so memory is scarce from the
/// beginning. All writes wait, and the server refuses no write.
#[test]
fn writers_that_are_faster_than_the_disk_wait() {
    const CLIENTS: u64 = 4;
    const REQUESTS: u64 = 300;
    const ROWS: u64 = 1500;
    let fresh = Fresh::start(48 << 20);
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let mut client = fresh.program.client();
            scope.spawn(move || {
                for request in 0..REQUESTS {
                    let mut words = Words::new(&["CNT.MINCRBY", "post"]);
                    for row in 0..ROWS {
                        words.add((request * ROWS + row) * CLIENTS + number);
                        words.add("read");
                        words.add(300);
                    }
                    words.push(&mut client);
                    assert_eq!(refusal(&client.reply().unwrap()), "", "request {request}");
                }
            });
        }
    });
    assert!(fresh.info("spilled_tables") > 0, "no memory limit was reached");
    let rows = CLIENTS * REQUESTS * ROWS;
    let mut client = fresh.program.client();
    for id in (0..rows).step_by(997) {
        let row = call(&mut client, &format!("HGET post:{id} read"));
        assert_eq!(row, Reply::BulkString(b"300".to_vec()), "{id}");
    }
}
