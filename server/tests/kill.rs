//! The real program, killed (SIGKILL) under load, again and again: with `--fsync always` every acknowledged like is there after
//! the restart, and no crash parts a flag from its counter. Snapshots are taken in between.
//!
//! `TIDEMARK_KILL_ROUNDS` (default 8; 200 before a release) and `TIDEMARK_SEED`.

use redis_protocol::resp2::types::OwnedFrame;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tidemark_server::cli::client::Client;

const POSTS: u64 = 50;
const FIRST: u64 = 3_631_614_501_919_378;

/// The program, and the port that it has chosen. Killed when dropped.
struct Program(Child, u16);

impl Program {
    fn start(dir: &Path, fsync: &str) -> Program {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidemark"))
            .args(["serve", "--port", "0", "--fsync", fsync, "--dir"])
            .arg(dir)
            .env("NO_COLOR", "1")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = vec![];
        let mut port = None;
        // It listens first, and is ready when it has loaded.
        loop {
            let Some(Ok(line)) = lines.next() else { panic!("it did not start: {said:#?}") };
            if let Some((_, rest)) = line.split_once("listening on 127.0.0.1:") {
                port = rest.split(',').next().and_then(|p| p.parse().ok());
            }
            let ready = line.contains("ready to accept");
            said.push(line);
            if ready {
                break;
            }
        }
        // What it says later must not block it.
        std::thread::spawn(move || lines.for_each(drop));
        Program(child, port.expect("it says its port"))
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn text(n: u64) -> Vec<u8> {
    n.to_string().into_bytes()
}

/// Likes with members of its own until the connection breaks; what was sent, and what was acknowledged.
fn like(port: u16, first_member: u64, seed: u64) -> Vec<(u64, u64, bool)> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut sent = vec![];
    let Ok(mut client) = Client::connect(("127.0.0.1", port)) else { return sent };
    for member in first_member.. {
        let burst = rng.usize(1..20);
        let start = sent.len();
        for i in 0..burst as u64 {
            let post = FIRST + rng.u64(0..POSTS) * 4096;
            client.push(&[b"FEED.ACT", b"like", &text(member * 100 + i), &text(post)]);
            sent.push((post, member * 100 + i, false));
        }
        for item in &mut sent[start..] {
            match client.reply() {
                Ok(OwnedFrame::Array(items)) => {
                    assert_eq!(items[0], OwnedFrame::Integer(1), "a new like");
                    item.2 = true;
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) => return sent,
            }
        }
    }
    sent
}

/// Everything acknowledged is there; flags and counters agree. Gives what is there of all that was sent.
fn check(port: u16, sent: &BTreeMap<(u64, u64), bool>) {
    let mut client = Client::connect(("127.0.0.1", port)).unwrap();
    let mut counts: BTreeMap<u64, i64> = BTreeMap::new();
    for (&(post, member), &acknowledged) in sent {
        let found = client.call(&[b"PH.EXISTS", b"liked", &text(member), &text(post)]).unwrap();
        let OwnedFrame::Array(found) = found else { panic!("{found:?}") };
        let is_set = found[0] == OwnedFrame::Integer(1);
        assert!(is_set || !acknowledged, "post {post}, member {member}: acknowledged, and lost");
        *counts.entry(post).or_default() += i64::from(is_set);
    }
    for (post, count) in counts {
        let row = client.call(&[b"HGET", &[b"post:", &text(post)[..]].concat(), b"like"]).unwrap();
        let likes = match row {
            OwnedFrame::BulkString(n) => String::from_utf8(n).unwrap().parse::<i64>().unwrap(),
            OwnedFrame::Null => 0,
            other => panic!("{other:?}"),
        };
        // A false yes (one in ten thousand of those that are not there) would show as one flag more.
        assert!(likes <= count && count - likes <= 2, "post {post}: {likes} likes, {count} flags");
    }
}

#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (rounds, seed) = (number("TIDEMARK_KILL_ROUNDS", 8), number("TIDEMARK_SEED", 1));
    eprintln!("TIDEMARK_SEED={seed}, {rounds} rounds");
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let mut sent: BTreeMap<(u64, u64), bool> = BTreeMap::new();
    for round in 0..rounds {
        let program = Program::start(folder.path(), "always");
        let port = program.1;
        check(port, &sent);
        let pause = Duration::from_millis(rng.u64(1..400));
        let (saves, seeds) = (round % 3 == 1, [rng.u64(..), rng.u64(..)]);
        let fresh: Vec<_> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..2)
                .map(|i| s.spawn(move || like(port, (round * 2 + i) * 1_000_000 + 1, seeds[i as usize])))
                .collect();
            if saves {
                s.spawn(move || {
                    // The kill may come first.
                    let _ = Client::connect(("127.0.0.1", port)).and_then(|mut c| c.call(&[b"BGSAVE"]));
                });
            }
            std::thread::sleep(pause);
            program.kill();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        let acknowledged = fresh.iter().filter(|f| f.2).count();
        eprintln!("round {round}: {} sent, {acknowledged} acknowledged, killed after {pause:?}", fresh.len());
        sent.extend(fresh.into_iter().map(|(post, member, acknowledged)| ((post, member), acknowledged)));
    }
    let program = Program::start(folder.path(), "always");
    check(program.1, &sent);
    assert!(sent.values().filter(|&&a| a).count() as u64 > rounds * 10, "the test did not do much");
}

#[test]
fn a_clean_end_loses_nothing_whatever_the_policy() {
    for fsync in ["no", "everysec"] {
        let folder = tempfile::tempdir().unwrap();
        let mut program = Program::start(folder.path(), fsync);
        let mut client = Client::connect(("127.0.0.1", program.1)).unwrap();
        for i in 0..500 {
            client.push(&[b"FEED.ACT", b"like", &text(i), &text(FIRST)]);
        }
        (0..500).for_each(|_| drop(client.reply().unwrap()));
        assert!(client.call(&[b"SHUTDOWN"]).is_err(), "the connection ends without a reply");
        assert!(program.0.wait().unwrap().success());
        let again = Program::start(folder.path(), fsync);
        let all = (0..500).map(|member| ((FIRST, member), true)).collect();
        check(again.1, &all);
        // The same folder, a second time: refused, and the first goes on.
        let second = Command::new(env!("CARGO_BIN_EXE_tidemark"))
            .args(["serve", "--port", "0", "--dir"])
            .arg(folder.path())
            .output()
            .unwrap();
        assert!(!second.status.success());
        assert!(String::from_utf8_lossy(&second.stderr).contains("in use by another process"));
        check(again.1, &all);
    }
}
