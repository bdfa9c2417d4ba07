//! Tests a rolling upgrade as described in docs/operations.md: a replica with the new version
//! follows the old master and takes over under load. The old node then becomes its replica, with
//! the new version.
//!
//! `TIDEMARK_OLD` names the old binary: `cargo xtask upgrade` builds it from a commit. Without
//! `TIDEMARK_OLD`, both nodes run this build. The test then covers the procedure, but no difference
//! between versions.

use client::{Client, Reply};
use harness::program::{
    FIRST, Likes, POSTS, Program, acknowledged, call, check, refusal, text, tidemark, until,
};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Maximum time during which writes may fail around the failover.
const WINDOW: Duration = Duration::from_secs(3);

fn old_program() -> PathBuf {
    std::env::var_os("TIDEMARK_OLD").map_or_else(|| harness::program().to_owned(), PathBuf::from)
}

fn start(program: &Path, dir: &Path, port: u16) -> Program {
    let port = port.to_string();
    let options = ["--fsync", "always", "--port", &port];
    Program::start_other(program, dir, &options).unwrap_or_else(|said| panic!("{said:#?}"))
}

#[derive(Default)]
struct SeenStates {
    likes: Likes,
    failed: Vec<Instant>,
}

/// Sends one like after another until `is_over`, and repeats each like until a reply arrives.
/// `ports` are the ports of both nodes; `at` is the port of the node that clients regard as the
/// master.
fn like(ports: [u16; 2], at: &AtomicU16, member: u64, is_over: &AtomicBool) -> SeenStates {
    let (mut seen, mut client) = (SeenStates::default(), None);
    for n in 0.. {
        let (post, member) = (FIRST + n % POSTS * 4096, member + n);
        let words: [&[u8]; 4] = [b"FEED.ACT", b"like", &text(member), &text(post)];
        seen.likes.insert((post, member), false);
        loop {
            let port = at.load(SeqCst);
            let connected = match client.take() {
                Some(client) => Ok(client),
                None => Client::connect(("127.0.0.1", port)),
            };
            if let Ok(mut now) = connected
                && let Ok(Reply::Array(said)) = now.call(&words)
            {
                // 0 if the reply to an earlier attempt was lost, or for a false positive.
                seen.likes.insert((post, member), said[0] == Reply::Integer(1));
                client = Some(now);
                break;
            }
            seen.failed.push(Instant::now());
            // The other node may be the new master. With Sentinel, the client would ask Sentinel
            // for the master's address.
            let other = ports[usize::from(port == ports[0])];
            let _ = at.compare_exchange(port, other, SeqCst, SeqCst);
            if is_over.load(SeqCst) {
                return seen;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        if is_over.load(SeqCst) {
            return seen;
        }
    }
    unreachable!("the loop ends by the flag");
}

/// Stops the clients in its destructor, so that a failing test does not wait for them.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn is_in_sync(program: &Program) -> bool {
    program.info("master_link_status") == "up" && program.info("master_sync_in_progress") == "0"
}

#[test]
fn an_upgrade_under_load_fails_writes_only_around_the_failover() {
    let (old, new) = (old_program(), harness::program());
    let folder = tempfile::tempdir().unwrap();
    let [a, b, fresh] = ["a", "b", "fresh"].map(|name| folder.path().join(name));
    // Step 1: the old version runs a master and its replica, with a snapshot and a log after the
    // snapshot.
    let mut master = start(&old, &a, 0);
    let replica = start(&old, &b, 0);
    let ports = [master.port, replica.port];
    assert_eq!(refusal(&replica.ask(&format!("REPLICAOF 127.0.0.1 {}", ports[0]))), "");
    until("the replica is connected", || is_in_sync(&replica));
    let at = AtomicU16::new(ports[0]);
    let is_over = AtomicBool::new(false);
    let handed: Mutex<Option<Instant>> = Mutex::default();
    let (seen, nodes) = std::thread::scope(|s| {
        let clients: Vec<_> = (0..2)
            .map(|i| {
                let (at, is_over) = (&at, &is_over);
                s.spawn(move || like(ports, at, 1 + i * 1_000_000, is_over))
            })
            .collect();
        let over = StopOnDrop(&is_over);
        assert_eq!(refusal(&call(&mut master.client(), "SAVE")), "");
        assert_eq!(refusal(&call(&mut replica.client(), "SAVE")), "");

        // Step 2: the replica restarts with the new version on its old folder.
        assert!(replica.terminate().success());
        let replica = start(new, &b, ports[1]);
        until("the replica is connected to the old master", || is_in_sync(&replica));
        assert_eq!(replica.info("repl_full_syncs"), "0", "the replica did a full sync");
        // A replica without data copies all files from the old master.
        let third = start(new, &fresh, 0);
        assert_eq!(refusal(&third.ask(&format!("REPLICAOF 127.0.0.1 {}", ports[0]))), "");
        until("a full sync between versions", || is_in_sync(&third));
        assert_eq!(third.info("repl_full_syncs"), "1");
        third.kill();

        // Step 3: the nodes switch roles.
        *handed.lock().unwrap() = Some(Instant::now());
        let [from, to] = [ports[0].to_string(), format!("127.0.0.1:{}", ports[1])];
        let done = tidemark(&["upgrade", "-p", &from, "--to", &to, "--timeout", "10"]);
        let said = [done.stdout, done.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(done.status.success() && said.contains("roles        switched in"), "{said}");
        eprintln!("{said}");
        assert_eq!(replica.info("role"), "master");
        // The old version may not understand the records of the new master. In that case the old
        // master reports this and waits.
        until("the old master is a replica", || master.info("role") == "slave");
        std::thread::sleep(WINDOW);
        eprintln!(
            "the old program replicates from the new one: {}",
            match master.info("master_link_status") {
                up if up == "up" => up,
                _ => master.info("master_link_error"),
            }
        );

        // Step 4: the old master restarts with the new version on its folder.
        master.sigterm();
        assert!(master.child.wait().unwrap().success());
        let master = start(new, &a, ports[0]);
        until("the node is a connected replica", || is_in_sync(&master));
        assert_eq!(master.info("repl_full_syncs"), "0");
        std::thread::sleep(Duration::from_millis(500));
        drop(over);
        let seen: Vec<SeenStates> =
            clients.into_iter().map(|client| client.join().unwrap()).collect();
        (seen, [master, replica])
    });
    let handed = handed.into_inner().unwrap().unwrap();
    let mut all = Likes::new();
    let mut failed = Vec::new();
    for seen in seen {
        all.extend(seen.likes);
        failed.extend(seen.failed);
    }
    let outside: Vec<_> =
        failed.iter().filter(|at| **at < handed || **at > handed + WINDOW).collect();
    let last = failed.iter().max().map(|last| last.saturating_duration_since(handed));
    eprintln!(
        "{} likes acknowledged; {} attempts failed around the failover, the last {last:?} after it \
         was asked for, {} at other times",
        acknowledged(&all),
        failed.len(),
        outside.len()
    );
    assert!(outside.is_empty(), "{} writes failed beyond the failover", outside.len());
    assert!(acknowledged(&all) > 500);
    // All likes must be present on both nodes, on disk, and readable by the new version.
    let held = check(nodes[1].port, &all);
    until("the replica has the same data", || {
        check_quietly(nodes[0].port, &all) == Some(held.counts.clone())
    });
    for (node, dir) in nodes.into_iter().zip([&a, &b]) {
        assert!(node.terminate().success());
        let checked = tidemark(&["check", dir.to_str().unwrap()]);
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    }
    goes_back(&old, &b, &all);
}

fn check_quietly(port: u16, likes: &Likes) -> Option<std::collections::BTreeMap<u64, i64>> {
    let mut client = Client::connect(("127.0.0.1", port)).ok()?;
    let posts: std::collections::BTreeSet<u64> = likes.keys().map(|like| like.0).collect();
    let count = |post: u64| {
        let row = client.call(&[b"HGET", &[b"post:", &text(post)[..]].concat(), b"like"]).ok()?;
        match row {
            Reply::BulkString(n) => Some((post, String::from_utf8(n).ok()?.parse().ok()?)),
            _ => None,
        }
    };
    posts.into_iter().map(count).collect()
}

/// Starts the old version on a folder of the new version. The old version must either find all
/// data, or refuse the folder with an error that names a file, and change nothing.
fn goes_back(old: &Path, dir: &Path, likes: &Likes) {
    let files = || {
        let mut all: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
        all.sort();
        let read = |path: &PathBuf| (path.clone(), std::fs::read(path).unwrap());
        all.iter().filter(|path| !path.ends_with("tidemark.lock")).map(read).collect::<Vec<_>>()
    };
    let before = files();
    match Program::start_other(old, dir, &["--fsync", "always"]) {
        Ok(program) => {
            // The node keeps its role. The node may wait for its replica, but serves reads.
            check(program.port, likes);
            eprintln!("the old program reads the folder of the new one");
        }
        Err(said) => {
            let said = said.join("\n");
            assert!(said.contains(dir.to_str().unwrap()), "the error names no file: {said}");
            assert!(before == files(), "the old program changed the folder");
            eprintln!("the old program refuses the folder of the new one: {said}");
        }
    }
}
