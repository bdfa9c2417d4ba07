//! Tests that the real binary counts likes exactly. The number of likes per post follows Zipf's
//! law. The test sends each like twice. When the test repeats a like, the first like is already on
//! disk. The server is killed (SIGKILL) five times. At the end, each counter equals the number of
//! distinct members that were sent, and SMEMBERS of a post returns exactly these members.
//!
//! `TIDEMARK_STEPS` sets the number of likes (default 60,000; 100,000,000 before a release),
//! `TIDEMARK_SEED` the seed.
//!
//! ```text
//!   first    -> [batch][batch][batch][batch]      up to BATCHES_IN_FLIGHT batches without replies
//!   repeats  ->    ... `later` batches later      the same likes on another connection
//! ```

use client::{Client, Reply};
use harness::program::{Program, call, info, names, number_in, refusal, rounds, tidemark};
use std::collections::{BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

const KILLS: usize = 5;
/// Number of likes per batch. `BATCHES_IN_FLIGHT`: number of batches in flight per connection.
const BATCH: usize = 4096;
const BATCHES_IN_FLIGHT: usize = 4;
/// Number of posts per command; one member likes all of them.
const POSTS_PER_COMMAND: usize = 16;
const FIRST: u64 = 1 << 40;
/// Number of posts whose members the test lists at the end.
const LISTED: usize = 1000;

const CONFIG: &str = r#"
[durability]
fsync = "always"
[[counter]]
name = "post"
fields = "like:16"
rows = "post:{id}"
[[existence]]
name = "liked"
pairs = "liked:{id}"
ledger = "exact"
spill = true
max_unset = 16
[[view]]
name = "home"
counters = ["post.like"]
flags = ["liked"]
[[action]]
name = "like"
flag = "liked"
counter = "post.like"
"#;

type Like = (u32, u32);

fn key(prefix: &str, post: u32) -> String {
    format!("{prefix}{}", FIRST + u64::from(post))
}

struct Lane {
    client: Client,
    open: VecDeque<Range<usize>>,
    counted: usize,
}

impl Lane {
    fn new(program: &Program) -> Lane {
        Lane { client: program.client(), open: VecDeque::new(), counted: 0 }
    }

    fn push(&mut self, likes: &[Like]) {
        let mut words: Vec<String> = Vec::with_capacity(POSTS_PER_COMMAND + 3);
        for likes in likes.chunks(POSTS_PER_COMMAND) {
            words.clear();
            words.extend(["FEED.ACT".to_owned(), "like".to_owned(), likes[0].1.to_string()]);
            words.extend(likes.iter().map(|(post, _)| key("", *post)));
            self.client.push(&words.iter().map(String::as_bytes).collect::<Vec<_>>());
        }
        // Ignore an error here, because reading the replies will detect that the server was killed.
        _ = self.client.send();
    }

    fn send(&mut self, sent: &[Like], batch: Range<usize>) {
        self.push(&sent[batch.clone()]);
        self.open.push_back(batch);
        while self.open.len() > BATCHES_IN_FLIGHT {
            self.take();
        }
    }

    fn take(&mut self) {
        let Some(batch) = self.open.pop_front() else { return };
        for _ in 0..batch.len().div_ceil(POSTS_PER_COMMAND) {
            let Reply::Array(replies) = self.client.reply().expect("the server is running") else {
                panic!("no array")
            };
            for reply in &replies {
                let Reply::Integer(done) = reply else { panic!("{reply:?}") };
                self.counted += usize::from(*done == 1);
            }
        }
    }

    fn take_all(&mut self) {
        while !self.open.is_empty() {
            self.take();
        }
    }

    /// After a kill, resends the batches that have no replies.
    fn resume(&mut self, program: &Program, sent: &[Like]) {
        self.client = program.client();
        for batch in self.open.clone() {
            self.push(&sent[batch]);
        }
    }
}

#[derive(Debug, Default)]
struct Figures {
    asked: u64,
    false_positives: u64,
    reads: u64,
    line: String,
}

impl Figures {
    fn note(&mut self, program: &Program) {
        self.line = info(&mut program.client(), "ledger_liked");
        self.asked += self.last("asked");
        self.false_positives += self.last("false_positives");
        self.reads += self.last("reads");
    }

    fn last(&self, name: &str) -> u64 {
        number_in(&self.line, name).unwrap()
    }
}

/// Draws a published post by Zipf's law with exponent 1. The rank of a post is independent of its
/// number.
fn some_post(rng: &mut fastrand::Rng, posts: u32, published: u32) -> u32 {
    loop {
        let rank = f64::from(posts).powf(rng.f64()) as u64;
        let post = (rank.wrapping_mul(0x9E37_79B9_7F4A_7C15) % u64::from(posts)) as u32;
        if post < published {
            return post;
        }
    }
}

fn batch_of(rng: &mut fastrand::Rng, posts: u32, published: u32, members: u32) -> Vec<Like> {
    let some = (0..BATCH / POSTS_PER_COMMAND).flat_map(|_| {
        let member = rng.u32(0..members);
        (0..POSTS_PER_COMMAND)
            .map(|_| (some_post(rng, posts, published), member))
            .collect::<Vec<_>>()
    });
    some.collect()
}

fn integer(frame: &Reply) -> i64 {
    match frame {
        Reply::BulkString(text) => String::from_utf8_lossy(text).parse().unwrap(),
        Reply::Null => 0,
        other => panic!("{other:?}"),
    }
}

/// Reads the reply to SMEMBERS line by line, because a post may have millions of members.
fn members(stream: &mut BufReader<TcpStream>, post: u32) -> Vec<u32> {
    let asked = format!("SMEMBERS {}\r\n", key("liked:", post));
    stream.get_mut().write_all(asked.as_bytes()).unwrap();
    let mut line = String::new();
    let mut number = |sign: &str| {
        line.clear();
        stream.read_line(&mut line).unwrap();
        let digits = line.strip_prefix(sign).unwrap_or_else(|| panic!("post {post}: {line}"));
        digits.trim_end().parse::<u32>().unwrap()
    };
    let count = number("*");
    let members = (0..count).map(|_| {
        number("$");
        number("")
    });
    members.collect()
}

/// Returns the posts whose members are listed. Half of them are the posts of evenly chosen likes,
/// so that popular posts are included; the remaining posts are evenly spaced.
fn some_posts(sent: &[Like], posts: u32) -> BTreeSet<u32> {
    let popular = sent.iter().step_by(sent.len() / (LISTED / 2)).map(|like| like.0);
    let mut some: BTreeSet<u32> = popular.collect();
    let others = (0..posts).step_by((posts as usize / LISTED).max(1));
    for post in others.chain(0..posts) {
        if some.len() >= LISTED {
            break;
        }
        some.insert(post);
    }
    some
}

/// Checks that each counter equals the number of members of its post, and that the listed members
/// are the members that were sent.
fn check(program: &Program, sent: &[Like], posts: u32) {
    let mut client = program.client();
    let mut counts = vec![0i64; posts as usize];
    sent.iter().for_each(|(post, _)| counts[*post as usize] += 1);
    for (first, counts) in (0..).step_by(BATCH).zip(counts.chunks(BATCH)) {
        let numbers = first..first + counts.len() as u32;
        numbers.for_each(|n| client.push(&[b"HGET", key("post:", n).as_bytes(), b"like"]));
        for (post, count) in (first..).zip(counts) {
            assert_eq!(integer(&client.reply().unwrap()), *count, "likes of post number {post}");
        }
    }
    let stream = TcpStream::connect(("127.0.0.1", program.port)).unwrap();
    let mut stream = BufReader::with_capacity(1 << 20, stream);
    for post in some_posts(sent, posts) {
        let from = sent.partition_point(|like| like.0 < post);
        let to = from + sent[from..].partition_point(|like| like.0 == post);
        let expected = sent[from..to].iter().map(|like| like.1);
        let is_same = members(&mut stream, post).into_iter().eq(expected);
        assert!(is_same, "members of post number {post}");
    }
}

struct Play<'a> {
    folder: &'a Path,
    program: Program,
    first: Lane,
    repeats: Lane,
    sent: Vec<Like>,
    figures: Figures,
    kills: usize,
    started: Instant,
}

impl Play<'_> {
    fn start(folder: &Path) -> Play<'_> {
        let program = Program::start_with(folder, CONFIG);
        let (first, repeats) = (Lane::new(&program), Lane::new(&program));
        let (sent, figures, started) = (vec![], Figures::default(), Instant::now());
        Play { folder, program, first, repeats, sent, figures, kills: 0, started }
    }

    /// Kills the server with batches in flight, restarts it, and resends the unanswered batches.
    fn kill(&mut self) {
        self.figures.note(&self.program);
        self.first.take();
        self.program.sigkill();
        let started = Instant::now();
        self.program = Program::start_with(self.folder, CONFIG);
        self.kills += 1;
        self.say(&format!("killed and restarted in {:.1?}", started.elapsed()));
        self.first.resume(&self.program, &self.sent);
        self.repeats.resume(&self.program, &self.sent);
    }

    fn say(&self, what: &str) {
        let seconds = self.started.elapsed().as_secs();
        println!("{seconds:6} s, {} likes: {what}", self.sent.len());
    }
}

#[test]
fn every_counter_is_the_number_of_its_members_after_kills() {
    let (_, seed) = rounds(1);
    let wanted = seeds::given("TIDEMARK_STEPS").map_or(60_000, |steps| steps as usize);
    let posts = u32::try_from(wanted / 50).unwrap();
    let members = u32::try_from((wanted / 10).max(5000)).unwrap();
    let batches = wanted.div_ceil(BATCH);
    // Number of batches between a like and its repetition. By then the like is on disk; a short
    // test triggers a spill to ensure this.
    let later = (wanted / 20).clamp(BATCH, 4_000_000) / BATCH;
    let is_small = wanted < 20_000_000;
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let mut play = Play::start(folder.path());
    let mut said = Instant::now();
    for batch in 0..batches + later {
        if batch < batches {
            // A tenth of the posts exists at the beginning.
            let published = u64::from(posts) * (1 + 9 * batch as u64 / batches as u64) / 10;
            let likes = batch_of(&mut rng, posts, published as u32, members);
            play.sent.extend(likes);
            play.first.send(&play.sent, batch * BATCH..(batch + 1) * BATCH);
        } else {
            play.first.take();
        }
        if is_small && batch % later == 0 {
            play.first.take_all();
            assert_eq!(refusal(&call(&mut play.program.client(), "TM.SPILL liked")), "");
        }
        if let Some(again) = batch.checked_sub(later) {
            play.repeats.send(&play.sent, again * BATCH..(again + 1) * BATCH);
        }
        if play.kills < KILLS && (batch + 1) * (KILLS + 1) > batches * (play.kills + 1) {
            play.kill();
        }
        if said.elapsed() > Duration::from_secs(60) {
            said = Instant::now();
            play.say("...");
        }
    }
    play.first.take_all();
    play.repeats.take_all();
    let Play { mut program, first, repeats, mut sent, mut figures, kills, started, .. } = play;
    let seconds = started.elapsed().as_secs_f64();
    assert_eq!((kills, repeats.counted), (KILLS, 0), "kills, and repeated likes that were counted");
    figures.note(&program);
    let sends = 2 * sent.len();
    sent.sort_unstable();
    sent.dedup();
    assert!(first.counted <= sent.len(), "a like was counted twice");
    println!(
        "{sends} likes of {posts} posts in {seconds:.0} s, {} distinct, {kills} kills",
        sent.len()
    );
    let distinct = sent.len() as f64;
    println!(
        "first likes that asked the disk: {:.4} %; reads per repeated like: {:.3}; bytes per pair \
         on the disk: {:.2}",
        figures.false_positives as f64 / distinct * 100.0,
        figures.reads as f64 / (figures.asked - figures.false_positives) as f64,
        figures.last("disk_bytes") as f64 / figures.last("pairs") as f64,
    );
    println!("since the last kill: {}", figures.line);
    check(&program, &sent, posts);
    program.sigkill();
    let program = Program::start_with(folder.path(), CONFIG);
    check(&program, &sent, posts);
    assert!(figures.reads > 0 && figures.last("asked") > 0, "no like was repeated");
    assert!(
        figures.false_positives as f64 <= distinct / 1000.0,
        "{} first likes read the disk",
        figures.false_positives
    );
}

#[test]
fn check_names_a_run_with_a_flipped_byte() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start_with(folder.path(), CONFIG);
    let mut client = program.client();
    let likes: Vec<Like> = (0..3000).map(|n| (n % 30, n)).collect();
    likes.iter().for_each(|(post, member)| {
        let (id, member) = (key("", *post), member.to_string());
        client.push(&[b"FEED.ACT", b"like", member.as_bytes(), id.as_bytes()]);
    });
    likes.iter().for_each(|_| _ = client.reply().unwrap());
    let data = folder.path().join("data");
    let before = names(&data);
    // The newest table is the only table of the space, so the spill only writes a run of the
    // ledger.
    assert_eq!(refusal(&call(&mut client, "TM.SPILL liked")), "");
    let is_run = |name: &String| !before.contains(name) && name.ends_with(".tcold");
    let runs: Vec<String> = names(&data).into_iter().filter(is_run).collect();
    let [run] = &runs[..] else { panic!("{runs:?} of {:?}", names(&data)) };
    assert!(program.terminate().success());
    let check = || tidemark(&["check", data.to_str().unwrap()]);
    assert!(check().status.success());
    let path = data.join(run);
    let whole = std::fs::read(&path).unwrap();
    for at in [0, 2000, whole.len() / 2, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        let output = check();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(!output.status.success() && said.contains(run.as_str()), "byte {at}: {said}");
    }
    std::fs::write(&path, whole).unwrap();
    assert!(check().status.success());
}
