//! The real binary as a process: starts it, sends likes, and compares acknowledged likes with the
//! stored likes.

use crate::{program, within};
use client::{Client, Reply, info_field};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

/// Number of liked posts. The number is small, so that each row receives many likes.
pub const POSTS: u64 = 50;
/// Lowest post id. The id has 16 digits, like the ids of microblogs.
pub const FIRST: u64 = 3_631_614_501_919_378;

/// Whether each (post, member) like was acknowledged.
pub type Likes = BTreeMap<(u64, u64), bool>;

/// Returns the number of kills and the random seed, and prints the seed.
pub fn rounds(full: u64) -> (u64, u64) {
    rounds_at_least(full.min(3), full)
}

/// Like [`rounds`], for a test that needs `least` or more rounds.
pub fn rounds_at_least(least: u64, full: u64) -> (u64, u64) {
    let rounds = seeds::rounds_at_least(least, full);
    let seed = seeds::given("TIDEMARK_SEED").unwrap_or(1);
    eprintln!("TIDEMARK_SEED={seed}, {rounds} rounds");
    (rounds, seed)
}

/// The binary, running as a server. The destructor kills the process.
pub struct Program {
    /// Process of the server.
    pub child: Child,
    /// Port on which the server listens.
    pub port: u16,
}

impl Program {
    /// Starts the server on a data folder.
    pub fn start(dir: &Path, fsync: &str) -> Program {
        Program::start_as(&[], dir, &["--fsync", fsync])
            .unwrap_or_else(|said| panic!("the server did not start: {said:#?}"))
    }

    /// Starts the server with a configuration. The configuration file and the data are in `folder`.
    pub fn start_with(folder: &Path, config: &str) -> Program {
        std::fs::create_dir_all(folder).unwrap();
        let file = folder.join("tidemark.toml");
        std::fs::write(&file, config).unwrap();
        Program::start_as(&[], &folder.join("data"), &["--config", file.to_str().unwrap()])
            .unwrap_or_else(|said| panic!("the server did not start: {said:#?}"))
    }

    /// Starts the server under another command such as a tracer, which must exec the server in its
    /// own process.
    ///
    /// # Errors
    ///
    /// The output of the server, if it does not become ready.
    pub fn start_as(under: &[&str], dir: &Path, options: &[&str]) -> Result<Program, Vec<String>> {
        // The server listens before it loads its data. The server is ready when the data are
        // loaded.
        let (program, lines) = Program::start_until(under, dir, options, "ready to accept")?;
        // Read its output, so that a full pipe never blocks the server.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(program)
    }

    /// Starts another build of the server.
    ///
    /// # Errors
    ///
    /// The output of the server, if it does not become ready.
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

    /// Starts the server and waits until its output contains `until`. Also returns an iterator over
    /// the rest of the output.
    ///
    /// # Errors
    ///
    /// The output of the server, if it exits without printing `until`.
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
        Ok((Program { child, port: port.expect("the server prints its port") }, lines))
    }

    /// Opens a connection to the server.
    pub fn client(&self) -> Client {
        Client::connect(("127.0.0.1", self.port)).unwrap()
    }

    /// Opens a connection of redis-rs.
    pub fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap();
        client.get_connection().unwrap()
    }

    /// Sends a command. Returns a null reply if the server closes the connection. A server that
    /// replaces its data set closes connections.
    pub fn ask(&self, words: &str) -> Reply {
        let words: Vec<_> = words.split(' ').map(str::as_bytes).collect();
        self.client().call(&words).unwrap_or(Reply::Null)
    }

    /// Returns the value of an INFO field. Empty if the field or the reply is missing.
    pub fn info(&self, key: &str) -> String {
        match self.ask("INFO") {
            Reply::BulkString(all) => info_line(all, key).unwrap_or_default(),
            _ => String::new(),
        }
    }

    /// Waits until the server has executed `more` additional commands of any client.
    pub fn wait_for_commands(&self, more: u64) {
        let executed = || self.info("total_commands_processed").parse().unwrap_or(0u64);
        let from = executed();
        until("client commands are executed", || executed() >= from + more);
    }

    /// Sends SIGKILL.
    pub fn kill(mut self) {
        self.sigkill();
    }

    /// Sends SIGKILL and waits until the process has ended.
    pub fn sigkill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops or resumes the process (SIGSTOP, SIGCONT).
    pub fn freeze(&self, is_frozen: bool) {
        freeze(&self.child, is_frozen);
    }

    /// Sends SIGTERM.
    pub fn sigterm(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Sends SIGTERM and returns the exit status.
    pub fn terminate(mut self) -> ExitStatus {
        self.sigterm();
        self.child.wait().unwrap()
    }
}

/// Stops or resumes a process (SIGSTOP, SIGCONT).
pub fn freeze(child: &Child, is_frozen: bool) {
    let signal =
        if is_frozen { rustix::process::Signal::STOP } else { rustix::process::Signal::CONT };
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
    // Wait for all threads, because each one stops only when it handles the signal.
    until("the process is stopped", || !is_frozen || is_stopped(child.id()));
}

/// Whether all threads of a process are stopped.
fn is_stopped(process: u32) -> bool {
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

/// Formats a number in decimal.
pub fn text(n: u64) -> Vec<u8> {
    n.to_string().into_bytes()
}

/// Sends likes of new members until the connection breaks or `on_refusal` returns true.
/// `on_refusal` receives the error text of a refused like. Returns whether each like was
/// acknowledged.
pub fn like(
    port: u16,
    first_member: u64,
    seed: u64,
    on_refusal: impl FnMut(&str) -> bool,
) -> Likes {
    like_from(port, FIRST, first_member, (20, seed), on_refusal)
}

/// Like [`like`], for [`POSTS`] posts from `first_post` on. Sends likes in batches of fewer than
/// `most` (up to 100).
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
                Ok(Reply::Array(items)) => {
                    // A reply of 0 for a new member is a false positive (one in ten thousand). The
                    // like was not stored.
                    likes.insert(like, items[0] == Reply::Integer(1));
                }
                Ok(Reply::Error(words)) => enough |= on_refusal(&words),
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

/// Likes stored in a server: the flags that are set, and the like count of each post.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StoredLikes {
    /// Pairs of (post, member).
    pub flags: Vec<(u64, u64)>,
    /// Number of likes by post.
    pub counts: BTreeMap<u64, i64>,
}

/// Asserts that every acknowledged like is stored and that flags and counters agree. Returns what
/// is stored.
pub fn check(port: u16, likes: &Likes) -> StoredLikes {
    let mut client = Client::connect(("127.0.0.1", port)).unwrap();
    let mut flags_of: BTreeMap<u64, i64> = BTreeMap::new();
    let mut held = StoredLikes::default();
    let mut asked = likes.keys();
    for (&(post, member), &acknowledged) in likes {
        while !client.is_full() {
            let Some(&(post, member)) = asked.next() else { break };
            client.push(&[b"PH.EXISTS", b"liked", &text(member), &text(post)]);
        }
        let Reply::Array(found) = client.reply().unwrap() else { panic!("no array") };
        let is_set = found[0] == Reply::Integer(1);
        assert!(
            is_set || !acknowledged,
            "post {post}, member {member}: an acknowledged write was lost"
        );
        *flags_of.entry(post).or_default() += i64::from(is_set);
        if is_set {
            held.flags.push((post, member));
        }
    }
    for (post, count) in flags_of {
        let row = client.call(&[b"HGET", &[b"post:", &text(post)[..]].concat(), b"like"]).unwrap();
        let likes = match row {
            Reply::BulkString(n) => String::from_utf8(n).unwrap().parse::<i64>().unwrap(),
            Reply::Null => 0,
            other => panic!("{other:?}"),
        };
        // A false positive (one in ten thousand absent pairs) reads as a set flag, but no like was
        // counted for it.
        let uncounted = 3 + count / 1000;
        assert!(
            (count - uncounted..=count).contains(&likes),
            "post {post}: {likes} likes, {count} flags"
        );
        held.counts.insert(post, likes);
    }
    held
}

/// Number of acknowledged likes.
pub fn acknowledged(likes: &Likes) -> usize {
    likes.values().filter(|&&a| a).count()
}

/// Sends a command and returns its reply.
pub fn call(client: &mut Client, words: &str) -> Reply {
    client.call(&words.split(' ').map(str::as_bytes).collect::<Vec<_>>()).unwrap()
}

fn info_line(all: Vec<u8>, key: &str) -> Option<String> {
    let all = String::from_utf8(all).unwrap();
    info_field(&all, key).map(str::to_owned)
}

/// Returns a number from an INFO line such as `asked=7,reads=2`.
pub fn number_in(line: &str, name: &str) -> Option<u64> {
    let mut parts = line.split(',').filter_map(|part| part.split_once('='));
    parts.find(|(key, _)| *key == name).map(|(_, value)| value.trim().parse().unwrap())
}

/// Returns the value of an INFO field, which must exist.
pub fn info(client: &mut Client, key: &str) -> String {
    let Reply::BulkString(all) = call(client, "INFO") else { panic!("INFO is text") };
    info_line(all, key).unwrap_or_else(|| panic!("no {key} in INFO"))
}

/// Returns the number in an INFO field.
pub fn count(client: &mut Client, key: &str) -> u64 {
    info(client, key).parse().unwrap()
}

/// Returns the error text of a reply or of an array element; empty if the reply is not an error.
pub fn refusal(reply: &Reply) -> &str {
    match reply {
        Reply::Error(words) => words,
        Reply::Array(parts) => {
            parts.iter().map(refusal).find(|words| !words.is_empty()).unwrap_or_default()
        }
        _ => "",
    }
}

/// Waits up to ten seconds until `holds` returns true.
#[track_caller]
pub fn until(what: &str, holds: impl FnMut() -> bool) {
    within(Duration::from_secs(10), what, holds);
}

/// Reports that a test cannot run here, like [`crate::cannot`]. Fails in CI and if
/// `TIDEMARK_ALL_FAULTS` is set.
pub fn cannot(why: &str) {
    let must = ["CI", "TIDEMARK_ALL_FAULTS"].iter().any(|name| std::env::var_os(name).is_some());
    assert!(!must, "{why}");
    crate::cannot(why);
}

/// A small file system in memory. The destructor unmounts it. Mounting needs root, or a user
/// namespace.
pub struct SmallDisk {
    folder: tempfile::TempDir,
    /// Path that is valid inside and outside the namespace.
    path: PathBuf,
    namespace: Option<Namespace>,
}

/// A root shell in the user namespace, which keeps the namespace alive.
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
        // Without permission, `unshare` exits.
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
    /// Mounts a file system of `mib` MiB. Returns `None` if the user may not mount file systems.
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

    /// Path of the mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fills the disk except for `leave` bytes.
    pub fn fill(&self, leave: u64) {
        let file = std::fs::File::create(self.path().join("ballast")).unwrap();
        let figures = rustix::fs::statvfs(self.path()).unwrap();
        let bytes = (figures.f_bavail * figures.f_frsize).saturating_sub(leave);
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).unwrap();
    }

    /// Remounts the disk read-only ("ro") or writable ("rw"). No file on the disk may be open for
    /// writing.
    pub fn remount(&mut self, how: &str) {
        let command = format!("mount -o remount,bind,{how} {}", self.folder.path().display());
        assert!(match &mut self.namespace {
            Some(namespace) => namespace.run(&command),
            None => Command::new("sh").args(["-c", &command]).status().unwrap().success(),
        });
    }

    /// Deletes the file that [`SmallDisk::fill`] wrote.
    pub fn make_room(&self) {
        std::fs::remove_file(self.path().join("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if self.namespace.is_none() {
            // Unmount lazily, because the server of a failed test may still use the file system.
            let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
        }
    }
}

/// File names of a folder, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Runs BGSAVE. Returns whether the snapshot succeeded.
pub fn snapshot(client: &mut Client) -> bool {
    assert_eq!(refusal(&call(client, "BGSAVE")), "");
    until("the snapshot ends", || info(client, "rdb_bgsave_in_progress") == "0");
    info(client, "rdb_last_bgsave_status") == "ok"
}

/// Asserts that likes are refused and change nothing.
pub fn assert_likes_are_refused(client: &mut Client, member: u64) {
    let key = format!("HGET post:{FIRST} like");
    let before = call(client, &key);
    let mut set = 0;
    for member in member..member + 50 {
        let reply = call(client, &format!("FEED.ACT like {member} {FIRST}"));
        assert!(
            refusal(&reply)
                .starts_with("MISCONF Tidemark cannot write its log, so it rejects writes"),
            "{reply:?}"
        );
        set += u64::from(
            call(client, &format!("PH.EXISTS liked {member} {FIRST}"))
                == Reply::Array(vec![Reply::Integer(1)]),
        );
    }
    // A page with MARK still returns its rows, and an error for the refused action.
    let page = call(client, &format!("FEED.GET home {member} {FIRST}"));
    let Reply::Array(mut rows) = call(client, &format!("FEED.GET home {member} {FIRST} MARK read"))
    else {
        panic!("a page is an array")
    };
    assert!(rows.len() == 2 && refusal(&rows[1]).starts_with("MISCONF "), "{rows:?}");
    rows.pop();
    assert_eq!(Reply::Array(rows), page);
    let Reply::Array(packed) =
        call(client, &format!("FEED.GET home {member} {FIRST} BINARY MARK read"))
    else {
        panic!("a packed page with an error is an array")
    };
    assert_eq!(packed[0], call(client, &format!("FEED.GET home {member} {FIRST} BINARY")));
    assert!(packed.len() == 2 && refusal(&packed[1]).starts_with("MISCONF "), "{packed:?}");
    assert_eq!(
        call(client, &format!("FEED.GET home {member} {FIRST}")),
        page,
        "a mark of a failed read was stored"
    );
    assert!(set <= 1, "{set} of 50 rejected likes are set (one may be a false positive)");
    assert_eq!(call(client, &key), before, "a rejected like was counted");
}

/// Waits until a like is accepted, and records the result of each attempt.
pub fn like_until_accepted(client: &mut Client, likes: &mut Likes, member: u64) {
    let mut tried = member;
    until("writes are accepted again", || {
        tried += 1;
        let fine = refusal(&call(client, &format!("FEED.ACT like {tried} {FIRST}"))).is_empty();
        likes.insert((FIRST, tried), fine);
        fine
    });
}

/// Runs a subcommand of the binary.
pub fn tidemark(words: &[&str]) -> Output {
    Command::new(program()).args(words).env("NO_COLOR", "1").output().unwrap()
}
