//! Counts the wake-ups of an idle server's threads. Unlike CPU time, the count does not depend on
//! the speed of the machine.

use client::Reply;
use harness::program::{FIRST, Program, call};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Maximum number of wake-ups per second of all threads. A wake-up costs 20 to 60 us, so this uses
/// at most 0.3 % of a core.
const MAX_WAKEUPS_PER_S: u64 = 50;

/// Returns the number of voluntary context switches of all threads of a process.
fn waits(process: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    // A thread may exit during the loop.
    let statuses = threads
        .filter_map(|thread| std::fs::read_to_string(thread.unwrap().path().join("status")).ok());
    let of = |status: String| {
        status.lines().find_map(|line| {
            line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse::<u64>().ok()
        })
    };
    statuses.map(|status| of(status).unwrap()).sum()
}

#[test]
fn an_idle_server_seldom_wakes_up() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), "everysec");
    let mut client = program.client();
    for post in 0..1000 {
        let liked = call(&mut client, &format!("FEED.ACT like 42 {}", FIRST + post));
        assert!(!matches!(liked, Reply::Error(_)), "{liked:?}");
    }
    let silent: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect(("127.0.0.1", program.port)).unwrap()).collect();
    // Wait until all data is written, and then until a second passes with few wake-ups.
    let began = Instant::now();
    let mut seen = vec![];
    while seen.last().is_none_or(|&a_second| a_second > MAX_WAKEUPS_PER_S) {
        assert!(began.elapsed() < Duration::from_secs(60), "wake-ups per second: {seen:?}");
        let before = waits(program.child.id());
        std::thread::sleep(Duration::from_secs(1));
        seen.push(waits(program.child.id()) - before);
    }
    assert!(seen.iter().any(|&a_second| a_second > 0), "{seen:?}: no wake-up was counted");
    eprintln!("wake-ups per second: {seen:?}");
    drop(silent);
}
