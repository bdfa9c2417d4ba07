//! The real program as a process: starting it, liking through it, and comparing what it
//! acknowledged with what it holds.

use crate::{program, within};
use node::client::Client;
use redis_protocol::resp2::types::OwnedFrame;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

/// Posts that are liked: few, so that many likes meet in one row.
pub const POSTS: u64 = 50;
/// An id as microblogs have them.
pub const FIRST: u64 = 3_631_614_501_919_378;

/// (post, member) -> was the like acknowledged?
pub type Likes = BTreeMap<(u64, u64), bool>;

/// Returns how often to kill the program, and the seed of the kills, which it prints.
pub fn rounds(full: u64) -> (u64, u64) {
    rounds_at_least(full.min(3), full)
}

/// The same for a test that needs `least` rounds to reach what it asserts.
pub fn rounds_at_least(least: u64, full: u64) -> (u64, u64) {
    let rounds = seeds::rounds_at_least(least, full);
    let seed = seeds::given("TIDEMARK_SEED").unwrap_or(1);
    eprintln!("TIDEMARK_SEED={seed}, {rounds} rounds");
    (rounds, seed)
}

/// The program as a server, and the port that it has chosen. Killed when dropped.
pub struct Program {
    /// The process.
    pub child: Child,
    /// Where it listens.
    pub port: u16,
}

impl Program {
    /// Starts it in a data folder.
    pub fn start(dir: &Path, fsync: &str) -> Program {
        Program::start_as(&[], dir, &["--fsync", fsync])
            .unwrap_or_else(|said| panic!("it did not start: {said:#?}"))
    }

    /// Starts it with this configuration; that and its data are in this folder.
    pub fn start_with(folder: &Path, config: &str) -> Program {
        std::fs::create_dir_all(folder).unwrap();
        let file = folder.join("tidemark.toml");
        std::fs::write(&file, config).unwrap();
        Program::start_as(&[], &folder.join("data"), &["--config", file.to_str().unwrap()])
            .unwrap_or_else(|said| panic!("it did not start: {said:#?}"))
    }

    /// Starts it under another program (a tracer with its options), which must become the same
    /// process. The error is what it said.
    pub fn start_as(under: &[&str], dir: &Path, options: &[&str]) -> Result<Program, Vec<String>> {
        // It listens first, and is ready when it has loaded.
        let (program, lines) = Program::start_until(under, dir, options, "ready to accept")?;
        // What it says later must not block it.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(program)
    }

    /// Starts another build of the program.
    pub fn start_other(
        program: &Path,
        dir: &Path,
        options: &[&str],
    ) -> Result<Program, Vec<String>> {
        let words = [program.to_str().unwrap(), "serve"];
        let (program, lines) = Program::start_words(&words, dir, options, "ready to accept")?;
        std::thread::spawn(move || lines.for_each(drop));
        Ok(program)
    }

    /// The same, until it has said that it listens, and these words; and what it says after them.
    pub fn start_until(
        under: &[&str],
        dir: &Path,
        options: &[&str],
        until: &str,
    ) -> Result<(Program, Lines<BufReader<ChildStderr>>), Vec<String>> {
        let program = program();
        let words = [under, &[program.to_str().unwrap(), "serve"]].concat();
        Program::start_words(&words, dir, options, until)
    }

    fn start_words(
        begins: &[&str],
        dir: &Path,
        options: &[&str],
        until: &str,
    ) -> Result<(Program, Lines<BufReader<ChildStderr>>), Vec<String>> {
        let mut words = begins.to_vec();
        if !options.contains(&"--port") {
            words.extend(["--port", "0"]);
        }
        if !options.contains(&"--admin-port") {
            words.extend(["--admin-port", "0"]);
        }
        words.extend(options);
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .arg("--dir")
            .arg(dir)
            .env("NO_COLOR", "1")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = vec![];
        let mut port = None;
        loop {
            let Some(Ok(line)) = lines.next() else {
                child.wait().unwrap();
                return Err(said);
            };
            if let Some((_, rest)) = line.split_once("listening on 127.0.0.1:") {
                port = rest.split(',').next().and_then(|p| p.parse().ok());
            }
            let is_there = line.contains(until);
            said.push(line);
            if is_there {
                break;
            }
        }
        Ok((Program { child, port: port.expect("it says its port") }, lines))
    }

    /// A connection.
    pub fn client(&self) -> Client {
        Client::connect(("127.0.0.1", self.port)).unwrap()
    }

    /// A connection of redis-rs.
    pub fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap();
        client.get_connection().unwrap()
    }

    /// The reply; none where clients are disconnected at this moment, as another data set takes the
    /// place of the old one.
    pub fn ask(&self, words: &str) -> OwnedFrame {
        let words: Vec<_> = words.split(' ').map(str::as_bytes).collect();
        self.client().call(&words).unwrap_or(OwnedFrame::Null)
    }

    /// A line of INFO; empty where there is none, or no reply.
    pub fn info(&self, key: &str) -> String {
        match self.ask("INFO") {
            OwnedFrame::BulkString(all) => info_line(all, key).unwrap_or_default(),
            _ => String::new(),
        }
    }

    /// Waits until the server has executed this many further commands, of all clients.
    pub fn after_commands(&self, more: u64) {
        let executed = || self.info("total_commands_processed").parse().unwrap_or(0u64);
        let from = executed();
        until("clients' commands are executed", || executed() >= from + more);
    }

    /// kill -9.
    pub fn kill(mut self) {
        self.sigkill();
    }

    /// kill -9, and waits for its end.
    pub fn sigkill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Freezes the process, or lets it go on.
    pub fn freeze(&self, is_frozen: bool) {
        freeze(&self.child, is_frozen);
    }

    /// SIGTERM.
    pub fn sigterm(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// SIGTERM, and how it ended.
    pub fn terminate(mut self) -> ExitStatus {
        self.sigterm();
        self.child.wait().unwrap()
    }
}

/// Freezes a process, or lets it go on.
pub fn freeze(child: &Child, is_frozen: bool) {
    let signal =
        if is_frozen { rustix::process::Signal::STOP } else { rustix::process::Signal::CONT };
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
    // One of its threads takes the signal when it runs next, and until then the others go on.
    until("it stands still", || !is_frozen || stands_still(child.id()));
}

/// Whether all threads of a process are stopped.
fn stands_still(process: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let state = |task: std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("stat")).unwrap_or_default()
    };
    tasks
        .map(|task| state(task.unwrap()))
        .all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A number as text.
pub fn text(n: u64) -> Vec<u8> {
    n.to_string().into_bytes()
}

/// Likes with members of its own until the connection breaks, or a like is refused and `on_refusal`
/// (which sees the words) says that it is enough. Gives what was sent, and what was acknowledged.
pub fn like(
    port: u16,
    first_member: u64,
    seed: u64,
    on_refusal: impl FnMut(&str) -> bool,
) -> Likes {
    like_from(port, FIRST, first_member, (20, seed), on_refusal)
}

/// The same, of [`POSTS`] posts from `first_post` on, by fewer than `most` (up to 100) at a time.
pub fn like_from(
    port: u16,
    first_post: u64,
    first_member: u64,
    (most, seed): (u64, u64),
    mut on_refusal: impl FnMut(&str) -> bool,
) -> Likes {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut likes = Likes::new();
    let Ok(mut client) = Client::connect(("127.0.0.1", port)) else { return likes };
    for member in first_member.. {
        let sent: Vec<(u64, u64)> = (0..rng.u64(1..most))
            .map(|i| (first_post + rng.u64(0..POSTS) * 4096, member * 100 + i))
            .collect();
        for &(post, member) in &sent {
            client.push(&[b"FEED.ACT", b"like", &text(member), &text(post)]);
        }
        likes.extend(sent.iter().map(|&like| (like, false)));
        let mut enough = false;
        for like in sent {
            match client.reply() {
                Ok(OwnedFrame::Array(items)) => {
                    // 0 for a new member is a false yes (one in ten thousand): nothing was done,
                    // nothing is promised.
                    likes.insert(like, items[0] == OwnedFrame::Integer(1));
                }
                Ok(OwnedFrame::Error(words)) => enough |= on_refusal(&words),
                Ok(other) => panic!("{other:?}"),
                Err(_) => return likes,
            }
        }
        if enough {
            break;
        }
    }
    likes
}

/// What a server holds of the likes that were sent: those that it says yes to, and each post's
/// count.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// (post, member)
    pub flags: Vec<(u64, u64)>,
    /// Likes by post.
    pub counts: BTreeMap<u64, i64>,
}

/// Everything acknowledged is there; flags and counters agree.
pub fn check(port: u16, likes: &Likes) -> Held {
    let mut client = Client::connect(("127.0.0.1", port)).unwrap();
    let mut flags_of: BTreeMap<u64, i64> = BTreeMap::new();
    let mut held = Held::default();
    let mut asked = likes.keys();
    for (&(post, member), &acknowledged) in likes {
        while !client.is_full() {
            let Some(&(post, member)) = asked.next() else { break };
            client.push(&[b"PH.EXISTS", b"liked", &text(member), &text(post)]);
        }
        let OwnedFrame::Array(found) = client.reply().unwrap() else { panic!("no array") };
        let is_set = found[0] == OwnedFrame::Integer(1);
        assert!(is_set || !acknowledged, "post {post}, member {member}: acknowledged, and lost");
        *flags_of.entry(post).or_default() += i64::from(is_set);
        if is_set {
            held.flags.push((post, member));
        }
    }
    for (post, count) in flags_of {
        let row = client.call(&[b"HGET", &[b"post:", &text(post)[..]].concat(), b"like"]).unwrap();
        let likes = match row {
            OwnedFrame::BulkString(n) => String::from_utf8(n).unwrap().parse::<i64>().unwrap(),
            OwnedFrame::Null => 0,
            other => panic!("{other:?}"),
        };
        // False yeses (one in ten thousand of those that are not there) show as flags without a
        // like.
        let uncounted = 3 + count / 1000;
        assert!(
            (count - uncounted..=count).contains(&likes),
            "post {post}: {likes} likes, {count} flags"
        );
        held.counts.insert(post, likes);
    }
    held
}

/// How many likes were acknowledged.
pub fn acknowledged(likes: &Likes) -> usize {
    likes.values().filter(|&&a| a).count()
}

/// A command's words, one reply.
pub fn call(client: &mut Client, words: &str) -> OwnedFrame {
    client.call(&words.split(' ').map(str::as_bytes).collect::<Vec<_>>()).unwrap()
}

fn info_line(all: Vec<u8>, key: &str) -> Option<String> {
    let all = String::from_utf8(all).unwrap();
    all.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':').map(str::to_owned))
}

/// A number in a line of INFO, `asked=7,reads=2`.
pub fn number_in(line: &str, name: &str) -> Option<u64> {
    let mut parts = line.split(',').filter_map(|part| part.split_once('='));
    parts.find(|(key, _)| *key == name).map(|(_, value)| value.trim().parse().unwrap())
}

/// A line of INFO, which must be there.
pub fn info(client: &mut Client, key: &str) -> String {
    let OwnedFrame::BulkString(all) = call(client, "INFO") else { panic!("INFO is text") };
    info_line(all, key).unwrap_or_else(|| panic!("there is no {key}"))
}

/// The same, a number.
pub fn count(client: &mut Client, key: &str) -> u64 {
    info(client, key).parse().unwrap()
}

/// The words of a refusal, also of one part of an array; empty for any other reply.
pub fn refusal(reply: &OwnedFrame) -> &str {
    match reply {
        OwnedFrame::Error(words) => words,
        OwnedFrame::Array(parts) => {
            parts.iter().map(refusal).find(|words| !words.is_empty()).unwrap_or_default()
        }
        _ => "",
    }
}

/// Waits up to ten seconds.
#[track_caller]
pub fn until(what: &str, holds: impl FnMut() -> bool) {
    within(Duration::from_secs(10), what, holds);
}

/// Says that a test cannot run here, as [`crate::cannot`] does; fails where it must be able to.
pub fn cannot(why: &str) {
    let must = ["CI", "TIDEMARK_ALL_FAULTS"].iter().any(|name| std::env::var_os(name).is_some());
    assert!(!must, "{why}");
    crate::cannot(why);
}

/// A file system of its own in memory, gone when dropped. It needs the right to mount one: root's,
/// or, for anybody, that of a namespace of his own.
pub struct SmallDisk {
    folder: tempfile::TempDir,
    /// Where it is for those outside the namespace, too.
    path: PathBuf,
    namespace: Option<Namespace>,
}

/// A shell that is root in a namespace, and keeps it alive.
struct Namespace {
    shell: Child,
    answers: BufReader<ChildStdout>,
}

impl Namespace {
    fn new() -> Option<Namespace> {
        let mut unshare = Command::new("unshare");
        unshare
            .args(["--user", "--map-root-user", "--mount", "sh"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut shell = unshare.spawn().ok()?;
        let answers = BufReader::new(shell.stdout.take().unwrap());
        let mut namespace = Namespace { shell, answers };
        // Where it must not be made `unshare` ends.
        namespace.run("true").then_some(namespace)
    }

    fn run(&mut self, command: &str) -> bool {
        let asked = writeln!(self.shell.stdin.as_mut().unwrap(), "{command}; echo $?");
        let mut answer = String::new();
        asked.and_then(|()| self.answers.read_line(&mut answer)).is_ok() && answer == "0\n"
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

impl SmallDisk {
    /// Mounts one of so many MiB; none where that is not allowed.
    pub fn mount(mib: u32) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={mib}m");
        let outside = folder.path().to_owned();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "none"])
            .arg(&outside)
            .stderr(Stdio::null())
            .status();
        if mounted.is_ok_and(|s| s.success()) {
            return Some(SmallDisk { folder, path: outside, namespace: None });
        }
        let mut namespace = Namespace::new()?;
        let path =
            PathBuf::from(format!("/proc/{}/root{}", namespace.shell.id(), outside.display()));
        let mounted =
            namespace.run(&format!("mount -t tmpfs -o {size} none {}", outside.display()));
        mounted.then_some(SmallDisk { folder, path, namespace: Some(namespace) })
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes all room but `leave` bytes.
    pub fn fill(&self, leave: u64) {
        let file = std::fs::File::create(self.path().join("ballast")).unwrap();
        let figures = rustix::fs::statvfs(self.path()).unwrap();
        let bytes = (figures.f_bavail * figures.f_frsize).saturating_sub(leave);
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).unwrap();
    }

    /// Read-only ("ro"), or no longer ("rw"); no file of it may be open for writing.
    pub fn remount(&mut self, how: &str) {
        let command = format!("mount -o remount,bind,{how} {}", self.folder.path().display());
        assert!(match &mut self.namespace {
            Some(namespace) => namespace.run(&command),
            None => Command::new("sh").args(["-c", &command]).status().unwrap().success(),
        });
    }

    /// Takes back [`SmallDisk::fill`].
    pub fn make_room(&self) {
        std::fs::remove_file(self.path().join("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if self.namespace.is_none() {
            // Lazily: a failed test's server may still be on it.
            let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
        }
    }
}

/// The files of a folder, in order.
pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// BGSAVE, and whether it went well.
pub fn snapshot(client: &mut Client) -> bool {
    assert_eq!(refusal(&call(client, "BGSAVE")), "");
    until("the snapshot ends", || info(client, "rdb_bgsave_in_progress") == "0");
    info(client, "rdb_last_bgsave_status") == "ok"
}

/// Likes that must all be refused, and must have changed nothing.
pub fn refused_without_trace(client: &mut Client, member: u64) {
    let key = format!("HGET post:{FIRST} like");
    let before = call(client, &key);
    let mut set = 0;
    for member in member..member + 50 {
        let reply = call(client, &format!("FEED.ACT like {member} {FIRST}"));
        assert!(
            refusal(&reply)
                .starts_with("MISCONF Tidemark cannot write its log, so changes are refused"),
            "{reply:?}"
        );
        set += u64::from(
            call(client, &format!("PH.EXISTS liked {member} {FIRST}"))
                == OwnedFrame::Array(vec![OwnedFrame::Integer(1)]),
        );
    }
    // A page is answered all the same, and says of its mark that it failed.
    let page = call(client, &format!("FEED.GET home {member} {FIRST}"));
    let OwnedFrame::Array(mut rows) =
        call(client, &format!("FEED.GET home {member} {FIRST} MARK read"))
    else {
        panic!("a page is an array")
    };
    assert!(rows.len() == 2 && refusal(&rows[1]).starts_with("MISCONF "), "{rows:?}");
    rows.pop();
    assert_eq!(OwnedFrame::Array(rows), page);
    let OwnedFrame::Array(packed) =
        call(client, &format!("FEED.GET home {member} {FIRST} BINARY MARK read"))
    else {
        panic!("a packed page with an error is an array")
    };
    assert_eq!(packed[0], call(client, &format!("FEED.GET home {member} {FIRST} BINARY")));
    assert!(packed.len() == 2 && refusal(&packed[1]).starts_with("MISCONF "), "{packed:?}");
    assert_eq!(
        call(client, &format!("FEED.GET home {member} {FIRST}")),
        page,
        "a refused mark was made"
    );
    assert!(set <= 1, "{set} of 50 refused likes are set (one may be a false yes)");
    assert_eq!(call(client, &key), before, "a refused like was counted");
}

/// Waits until a like is accepted; notes what became of each.
pub fn accepts_writes(client: &mut Client, likes: &mut Likes, member: u64) {
    let mut tried = member;
    until("writes are accepted again", || {
        tried += 1;
        let fine = refusal(&call(client, &format!("FEED.ACT like {tried} {FIRST}"))).is_empty();
        likes.insert((FIRST, tried), fine);
        fine
    });
}

/// Runs a subcommand of the program.
pub fn tidemark(words: &[&str]) -> Output {
    Command::new(program()).args(words).env("NO_COLOR", "1").output().unwrap()
}
