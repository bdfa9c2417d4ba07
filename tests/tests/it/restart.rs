//! Tests of invariants across restarts, and of the changes that replies wait for.

use redis::Commands;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};
use tidemark_server::config::{Config, Fsync};
use tidemark_server::{Server, start};
use tidemark_tests::TestServer;

fn open(dir: &Path, change: impl Fn(&mut Config)) -> (Server, redis::Connection) {
    let mut config = Config::default();
    config.durability.dir = dir.to_path_buf();
    config.server.workers = 1;
    change(&mut config);
    let server = start(config, TcpListener::bind(("127.0.0.1", 0)).unwrap()).unwrap();
    let client = redis::Client::open(format!("redis://127.0.0.1:{}/", server.port())).unwrap();
    (server, client.get_connection().unwrap())
}

/// With fsync `always`, a reply waits only for earlier changes.
#[test]
fn commands_that_change_nothing_are_answered_at_once() {
    let server = TestServer::with(|config| config.durability.fsync = Fsync::Always);
    let mut connection = server.connection();
    let mut quickly = |words: &str| {
        let started = Instant::now();
        let mut command = redis::Cmd::new();
        for word in words.split(' ') {
            command.arg(word);
        }
        let reply = command.query::<redis::Value>(&mut connection);
        assert!(
            started.elapsed() < Duration::from_millis(900),
            "{words}: after {:?}",
            started.elapsed()
        );
        reply
    };
    assert_eq!(quickly("DEL post:1").unwrap(), redis::Value::Int(0));
    assert!(quickly("HINCRBY post:1 like x").is_err());
    quickly("FEED.UNDO like 1 5").unwrap();
    for _ in 0..5 {
        quickly("FEED.ACT like 1 5").unwrap();
    }
    quickly("FEED.UNDO like 1 5").unwrap();
    quickly("FEED.UNDO like 1 5").unwrap();
}

/// A full space refuses new rows but can be reopened.
#[test]
fn a_full_space_survives_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let small = |config: &mut Config| {
        config.counter[0].rows_per_table = 20_000;
        config.counter[0].memory_limit_bytes = 2_000_000;
        config.counter[0].spill = false;
    };
    let (server, mut connection) = open(folder.path(), small);
    let mut rng = fastrand::Rng::with_seed(9);
    let mut held: Vec<(u64, i64)> = vec![];
    loop {
        let mut pipe = redis::pipe();
        let batch: Vec<(u64, i64)> =
            (0..500).map(|_| (rng.u64(1..), rng.i64(1..1_000_000))).collect();
        for (id, n) in &batch {
            pipe.hset(format!("post:{id}"), "like", n).ignore();
        }
        // The first error hides later replies, so query which rows exist.
        let refused = pipe.query::<()>(&mut connection).is_err();
        for (id, n) in batch {
            if connection.exists::<_, bool>(format!("post:{id}")).unwrap() {
                held.push((id, n));
            }
        }
        if refused {
            break;
        }
    }
    assert!(held.len() > 10_000, "{} rows", held.len());
    drop(connection);
    server.stop().unwrap();
    for saves in [true, false] {
        let (server, mut connection) = open(folder.path(), small);
        for chunk in held.chunks(1000) {
            let mut pipe = redis::pipe();
            for (id, _) in chunk {
                pipe.hget(format!("post:{id}"), "like");
            }
            let likes: Vec<i64> = pipe.query(&mut connection).unwrap();
            assert_eq!(likes, chunk.iter().map(|(_, n)| *n).collect::<Vec<_>>());
        }
        if saves {
            redis::cmd("SAVE").query::<()>(&mut connection).unwrap();
        }
        drop(connection);
        server.stop().unwrap();
    }
}

/// Acknowledged writes during repeated snapshots survive a restart.
#[test]
fn snapshots_lose_no_write_that_comes_beside_them() {
    let folder = tempfile::tempdir().unwrap();
    let many = |config: &mut Config| config.counter[0].rows_per_table = 256;
    let (server, mut connection) = open(folder.path(), many);
    const ROWS: u64 = 30_000;
    let mut pipe = redis::pipe();
    for id in 0..ROWS {
        pipe.hset(format!("post:{id}"), "like", 1).ignore();
    }
    pipe.query::<()>(&mut connection).unwrap();
    let mut truth = vec![1i64; ROWS as usize];
    let saver = redis::Client::open(format!("redis://127.0.0.1:{}/", server.port())).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut connection = saver.get_connection().unwrap();
            while !done.load(std::sync::atomic::Ordering::SeqCst) {
                redis::cmd("SAVE").query::<()>(&mut connection).unwrap();
            }
        });
        let mut rng = fastrand::Rng::with_seed(4);
        for _ in 0..150 {
            let id = rng.u64(0..ROWS);
            truth[id as usize] = connection.hincr(format!("post:{id}"), "like", 1).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        done.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    // Take two more snapshots, so that writes made during the last snapshot are in a file and not
    // only in the log.
    (0..2).for_each(|_| redis::cmd("SAVE").query::<()>(&mut connection).unwrap());
    drop(connection);
    server.stop().unwrap();
    let (server, mut connection) = open(folder.path(), many);
    for (id, likes) in truth.iter().enumerate() {
        assert_eq!(
            connection.hget::<_, _, i64>(format!("post:{id}"), "like").unwrap(),
            *likes,
            "row {id}"
        );
    }
    server.stop().unwrap();
}
