//! The real binary on a full disk: which requests it refuses, which data it retains, and how it
//! recovers.
//!
//! The tests mount a small tmpfs, which needs root or a new namespace (`SmallDisk`). Without
//! permission to mount, a test prints a warning and passes, unless `CI` or `TIDEMARK_ALL_FAULTS` is
//! set.

use client::{Client, Reply};
use harness::in_process::listener;
use harness::program::{
    FIRST, Likes, Program, SmallDisk, acknowledged, assert_likes_are_refused, call, cannot, check,
    like, like_until_accepted, names, refusal, snapshot, text, tidemark, until,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

#[test]
fn a_full_disk_refuses_writes_and_loses_nothing() {
    for ping_fails in [true, false] {
        let Some(disk) = SmallDisk::mount(96) else {
            return cannot("requires permission to mount a tmpfs");
        };
        let config = tempfile::NamedTempFile::new().unwrap();
        writeln!(&config, "[durability]\nping_fails_with_log = {ping_fails}").unwrap();
        let admin = listener().local_addr().unwrap();
        let port = admin.port().to_string();
        let file = config.path().to_str().unwrap();
        let options = ["--fsync", "always", "--config", file, "--admin-port", &port];
        let start = || {
            Program::start_as(&[], disk.path(), &options).unwrap_or_else(|said| panic!("{said:#?}"))
        };
        let program = start();
        let mut client = program.client();
        let mut transaction = program.client();
        for words in ["MULTI", &format!("HINCRBY post:{FIRST} like 1"), "PING"] {
            assert_eq!(refusal(&call(&mut transaction, words)), "");
        }
        disk.fill(256 << 10);

        let mut said = String::new();
        let mut likes = like(program.port, 1, 7, |words| {
            said = words.to_owned();
            true
        });
        // The first request that returns this error has changed the data in memory.
        assert!(
            said.starts_with("MISCONF Tidemark cannot write its log. The change is in memory"),
            "{said}"
        );
        assert!(acknowledged(&likes) > 100, "the disk was full too early");
        assert_likes_are_refused(&mut client, 5_000_000);
        says_why_and_not_where(admin, disk.path());
        // The server refuses the queued transaction as a whole.
        let exec = call(&mut transaction, "EXEC");
        let why = "EXECABORT Transaction discarded because of: MISCONF ";
        assert!(refusal(&exec).starts_with(why), "{exec:?}");
        let pong = call(&mut client, "PING");
        assert_eq!(refusal(&pong).starts_with("MISCONF "), ping_fails, "{pong:?}");
        check(program.port, &likes);

        let before = names(disk.path());
        assert!(!snapshot(&mut client), "a snapshot succeeded on a full disk");
        assert_eq!(names(disk.path()), before, "a failed snapshot left files");
        let save = call(&mut client, "SAVE");
        assert!(
            refusal(&save).starts_with("ERR ") && refusal(&save).contains("No space left"),
            "{save:?}"
        );
        assert_likes_are_refused(&mut client, 6_000_000);

        // The import ends immediately and shows the server's error.
        let mut rows = tempfile::Builder::new().suffix(".csv").tempfile().unwrap();
        writeln!(rows, "id,like,repost,comment,read\n1,2,3,4,5\n6,7,8,9,10").unwrap();
        let import = tidemark(&[
            "import",
            "--port",
            &program.port.to_string(),
            rows.path().to_str().unwrap(),
        ]);
        let words = format!(
            "{}{}",
            String::from_utf8_lossy(&import.stdout),
            String::from_utf8_lossy(&import.stderr)
        );
        assert!(!import.status.success() && words.contains("MISCONF"), "{words}");

        // Kill and restart on the full disk. The log contains all acknowledged writes, and may
        // contain refused writes.
        program.kill();
        let program = start();
        let mut client = program.client();
        check(program.port, &likes);
        likes.extend(like(program.port, 10_000, 8, |words| words.starts_with("MISCONF ")));
        assert_likes_are_refused(&mut client, 7_000_000);

        disk.make_room();
        like_until_accepted(&mut client, &mut likes, 20_000_000);
        assert_eq!(refusal(&call(&mut client, "PING")), "");
        assert!(snapshot(&mut client), "a snapshot succeeds after space was freed");
        let held = check(program.port, &likes);
        program.kill();
        assert_eq!(check(start().port, &likes), held, "memory and log differ");
    }
}

/// Without a login, the admin pages report the full disk but not the data folder.
fn says_why_and_not_where(admin: SocketAddr, folder: &Path) {
    for page in ["/readyz", "/api/status"] {
        let mut stream = TcpStream::connect(admin).unwrap();
        write!(stream, "GET {page} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("No space left") && answer.contains("log-"), "{answer}");
        assert!(!answer.contains(folder.to_str().unwrap()), "{answer}");
    }
}

/// Every reply reports the failure, and the server applies no change that does not fit into the
/// log.
#[test]
fn a_start_without_room_refuses_writes_from_the_first_one_on() {
    for fsync in ["always", "everysec"] {
        let Some(disk) = SmallDisk::mount(96) else {
            return cannot("requires permission to mount a tmpfs");
        };
        let program = Program::start(disk.path(), fsync);
        let mut likes = Likes::new();
        like_until_accepted(&mut program.client(), &mut likes, 1);
        assert!(program.terminate().success());
        disk.fill(0);
        let program = Program::start(disk.path(), fsync);
        let mut client = program.client();
        assert_likes_are_refused(&mut client, 5_000_000);
        let pong = call(&mut client, "PING");
        assert!(refusal(&pong).starts_with("MISCONF "), "{pong:?}");
        check(program.port, &likes);
        disk.make_room();
        like_until_accepted(&mut client, &mut likes, 20_000_000);
        assert!(program.terminate().success());
        check(Program::start(disk.path(), "always").port, &likes);
    }
}

fn rows(client: &mut Client, from: u64, to: u64) -> bool {
    for first in (from..to).step_by(1000) {
        let last = (first + 1000).min(to);
        for id in first..last {
            client.push(&[
                b"CNT.SET",
                b"post",
                &text(FIRST + id),
                b"like",
                &text(id % 4000),
                b"read",
                &text(id % 60_000),
            ]);
        }
        let refused =
            (first..last).filter(|_| !refusal(&client.reply().unwrap()).is_empty()).count();
        if refused > 0 {
            return false;
        }
    }
    true
}

/// When new writes need the space, the server deletes log segments that it retains for returning
/// replicas.
#[test]
fn log_that_no_start_needs_gives_way_on_a_full_disk() {
    let Some(disk) = SmallDisk::mount(96) else {
        return cannot("requires permission to mount a tmpfs");
    };
    let segments = || {
        names(disk.path()).into_iter().filter(|name| name.ends_with(".tlog")).collect::<Vec<_>>()
    };
    for round in 0..4 {
        let program = Program::start(disk.path(), "everysec");
        let mut client = program.client();
        assert!(rows(&mut client, round * 100_000, (round + 1) * 100_000));
        assert_eq!(refusal(&call(&mut client, "SAVE")), "");
        assert!(program.terminate().success());
    }
    let program = Program::start(disk.path(), "always");
    let mut client = program.client();
    let before = segments();
    assert!(before.len() >= 4, "{before:?}");
    disk.fill(64 << 10);
    // One or two writes fail while the server frees space.
    let mut at = 400_000;
    until("writes go on", || {
        at += 20_000;
        rows(&mut client, at - 20_000, at) && segments().first() > before.first()
    });
    assert_eq!(refusal(&call(&mut client, "PING")), "");
    program.kill();
    disk.make_room();
    let program = Program::start(disk.path(), "always");
    let mut client = program.client();
    for id in (0..400_000).step_by(1013).chain([at - 1]) {
        let row = call(&mut client, &format!("HMGET post:{} like read", FIRST + id));
        let wanted = [id % 4000, id % 60_000].map(|n| Reply::BulkString(text(n)));
        assert_eq!(row, Reply::Array(wanted.to_vec()), "{id}");
    }
}

/// A scheduled snapshot leaves the last free space to the log. After a failure, the server does not
/// retry the snapshot continuously.
#[test]
fn snapshots_that_fail_do_not_take_the_log_with_them() {
    let Some(disk) = SmallDisk::mount(96) else {
        return cannot("requires permission to mount a tmpfs");
    };
    let program = Program::start_until(&[], disk.path(), &["--fsync", "always"], "ready to accept");
    let (program, said) = program.unwrap_or_else(|said| panic!("{said:#?}"));
    let failures = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counted = failures.clone();
    std::thread::spawn(move || {
        for line in said.map_while(Result::ok) {
            counted.fetch_add(
                u32::from(line.contains("snapshot failed")),
                std::sync::atomic::Ordering::Relaxed,
            );
        }
    });
    let mut client = program.client();
    assert!(rows(&mut client, 0, 600_000));
    disk.fill(18 << 20);
    assert_eq!(refusal(&call(&mut client, "CONFIG SET durability.snapshot_log 1000")), "");
    let failed = || failures.load(std::sync::atomic::Ordering::Relaxed);
    let (mut id, mut least) = (600_000, u64::MAX);
    let mut write = |client: &mut Client| {
        assert!(rows(client, id, id + 10), "a write was rejected");
        id += 10;
        // Write slowly, so that the log uses little of the free space.
        std::thread::sleep(Duration::from_millis(5));
        let figures = rustix::fs::statvfs(disk.path()).unwrap();
        least = least.min(figures.f_bavail * figures.f_frsize);
    };
    until("a snapshot fails", || {
        write(&mut client);
        failed() > 0
    });
    // Without a pause between attempts, the server would start dozens of snapshots in this time.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        write(&mut client);
    }
    assert!(failed() <= 2, "{} failed", failed());
    // A snapshot reserves space before it writes. Without the reservation, the snapshot would use
    // all free space.
    assert!(least > 4 << 20, "{least} bytes were free");
    assert_eq!(refusal(&call(&mut client, "PING")), "");
    // A snapshot that a client requests may use all free space.
    assert_eq!(refusal(&call(&mut client, "SAVE")), "");
}

/// As in Redis, stopping a server that cannot write its log loses acknowledged writes, so the
/// operator must repeat the command.
#[test]
fn a_server_that_cannot_save_is_not_stopped_by_chance() {
    let Some(disk) = SmallDisk::mount(96) else {
        return cannot("requires permission to mount a tmpfs");
    };
    let start = || Program::start(disk.path(), "everysec");
    let program = start();
    disk.fill(256 << 10);
    let mut likes = like(program.port, 1, 7, |words| words.starts_with("MISCONF "));
    let mut client = program.client();
    for words in ["SHUTDOWN", "SHUTDOWN SAVE", "SHUTDOWN NOW"] {
        assert_eq!(
            refusal(&call(&mut client, words)),
            "ERR Errors trying to SHUTDOWN. Check logs.",
            "{words}"
        );
    }
    program.sigterm();
    std::thread::sleep(Duration::from_millis(500));
    check(program.port, &likes);
    assert_eq!(
        refusal(&call(&mut client, "SHUTDOWN ABORT")),
        "",
        "the signal is no longer pending"
    );
    disk.make_room();
    like_until_accepted(&mut client, &mut likes, 20_000_000);
    check(program.port, &likes);
    assert!(program.terminate().success());
    check(start().port, &likes);

    let mut program = start();
    disk.fill(256 << 10);
    like(program.port, 30_000_000, 8, |words| words.starts_with("MISCONF "));
    program.sigterm();
    // A signal within half a second counts as the same request.
    program.sigterm();
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(program.child.try_wait().unwrap(), None);
    assert_eq!(
        program.terminate().code(),
        Some(1),
        "the second signal ends the server, which logs the loss"
    );
}

/// A service manager sends the stop signal only once.
#[test]
fn refused_stop_signal_takes_effect_once_disk_has_room() {
    let Some(disk) = SmallDisk::mount(96) else {
        return cannot("requires permission to mount a tmpfs");
    };
    let mut program = Program::start(disk.path(), "everysec");
    disk.fill(256 << 10);
    let likes = like(program.port, 1, 7, |words| words.starts_with("MISCONF "));
    program.sigterm();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(program.child.try_wait().unwrap(), None, "acknowledged likes are not synced");
    check(program.port, &likes);
    disk.make_room();
    until("the server exits", || program.child.try_wait().unwrap().is_some());
    assert!(program.child.wait().unwrap().success());
    check(Program::start(disk.path(), "everysec").port, &likes);
}

/// With `always`, no acknowledged write can be lost, so the server stops. While the disk is full,
/// the server logs the failure once rather than at each attempt.
#[test]
fn server_without_unsynced_writes_stops_on_full_disk() {
    let Some(disk) = SmallDisk::mount(96) else {
        return cannot("requires permission to mount a tmpfs");
    };
    let program = Program::start_until(&[], disk.path(), &["--fsync", "always"], "ready to accept");
    let (program, said) = program.unwrap_or_else(|said| panic!("{said:#?}"));
    let said = std::thread::spawn(move || said.map_while(Result::ok).collect::<Vec<String>>());
    disk.fill(256 << 10);
    let likes = like(program.port, 1, 7, |words| words.starts_with("MISCONF "));
    assert!(acknowledged(&likes) > 100);
    std::thread::sleep(Duration::from_secs(3));
    assert!(program.terminate().success());
    let said = said.join().unwrap();
    let errors = said.iter().filter(|line| line.contains("log write failed")).count();
    assert!((1..=2).contains(&errors), "{errors} lines in three seconds: {said:#?}");
    disk.make_room();
    check(Program::start(disk.path(), "always").port, &likes);
}
