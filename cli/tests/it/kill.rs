//! Kills the real binary (SIGKILL) repeatedly under load, with snapshots between the kills. With
//! `--fsync always`, every acknowledged like is present after the restart. Flags and counters are
//! always consistent.
//!
//! `TIDEMARK_RUNS` (default 8; 200 before a release) sets the number of runs, `TIDEMARK_SEED` the
//! seed.

use client::Client;
use harness::program::{
    FIRST, Likes, POSTS, Program, acknowledged, check, like_from, rounds_at_least, text,
};
use std::process::Command;
use std::time::Duration;

/// Number of rounds that like the same group of posts. Each round checks the newest group and one
/// random group, so that all rounds take equally long.
const ROUNDS_PER_ERA: u64 = 10;

#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    let (rounds, seed) = rounds_at_least(8, 8);
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let mut eras: Vec<Likes> = vec![];
    let (mut snapshots, mut all) = (0, 0);
    for round in 0..rounds {
        let program = Program::start(folder.path(), "always");
        let port = program.port;
        if let Some(now) = eras.last() {
            check(port, now);
            check(port, &eras[rng.usize(0..eras.len())]);
        }
        if round % ROUNDS_PER_ERA == 0 {
            eras.push(Likes::new());
        }
        let first_post = FIRST + (eras.len() as u64 - 1) * POSTS * 4096;
        let pause = Duration::from_millis(rng.u64(1..400));
        let seeds = [rng.u64(..), rng.u64(..)];
        let fresh: Vec<Likes> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..2)
                .map(|i| {
                    let first_member = (round * 2 + i) * 1_000_000 + 1;
                    s.spawn(move || {
                        let how = (100, seeds[i as usize]);
                        like_from(port, first_post, first_member, how, |words| panic!("{words}"))
                    })
                })
                .collect();
            if round % 3 == 1 {
                s.spawn(move || {
                    let _ =
                        Client::connect(("127.0.0.1", port)).and_then(|mut c| c.call(&[b"BGSAVE"]));
                });
            }
            std::thread::sleep(pause);
            program.kill();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        snapshots += u64::from(
            std::fs::read_dir(folder.path())
                .unwrap()
                .any(|e| e.unwrap().file_name().to_string_lossy().ends_with(".tsnap")),
        );
        for fresh in fresh {
            let (sent, kept) = (fresh.len(), acknowledged(&fresh));
            eprintln!("round {round}: {sent} sent, {kept} acknowledged, killed after {pause:?}");
            all += kept as u64;
            eras.last_mut().unwrap().extend(fresh);
        }
    }
    let program = Program::start(folder.path(), "always");
    eras.iter().for_each(|likes| drop(check(program.port, likes)));
    assert!(
        all > rounds * 10 && snapshots > 0,
        "the test made too few changes: {all} likes, {snapshots} starts from a snapshot"
    );
    eprintln!("{all} acknowledged likes, none lost; {snapshots} starts had a snapshot");
}

#[test]
fn a_clean_end_loses_nothing_whatever_the_policy() {
    for fsync in ["no", "everysec"] {
        let folder = tempfile::tempdir().unwrap();
        let mut program = Program::start(folder.path(), fsync);
        let mut client = Client::connect(("127.0.0.1", program.port)).unwrap();
        for i in 0..500 {
            client.push(&[b"FEED.ACT", b"like", &text(i), &text(FIRST)]);
        }
        (0..500).for_each(|_| drop(client.reply().unwrap()));
        assert!(
            client.call(&[b"SHUTDOWN"]).is_err(),
            "the server closed the connection without a reply"
        );
        assert!(program.child.wait().unwrap().success());
        let again = Program::start(folder.path(), fsync);
        let all = (0..500).map(|member| ((FIRST, member), true)).collect();
        check(again.port, &all);
        // A second server refuses to start on the same folder, and the first server continues to
        // run.
        let second = Command::new(harness::program())
            .args(["serve", "--port", "0", "--dir"])
            .arg(folder.path())
            .output()
            .unwrap();
        assert!(!second.status.success());
        assert!(String::from_utf8_lossy(&second.stderr).contains("in use by another process"));
        check(again.port, &all);
    }
}
