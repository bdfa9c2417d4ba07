//! Full sync over a link that disconnects repeatedly: received files are not fetched again, and
//! either side may fail at any time.

use crate::replication::{follow, info, number, wait_for_sync};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tidemark_server::config::Config;
use tidemark_tests::{TestServer, eventually};

/// Proxy that closes each connection after a number of bytes from the server.
struct CuttingProxy {
    port: u16,
    to: Arc<AtomicU16>,
    /// Bytes received from the server, on all connections.
    passed: Arc<AtomicU64>,
    cuts: Arc<AtomicU64>,
}

fn carry(mut from: TcpStream, mut to: TcpStream, limit: u64, passed: &AtomicU64) -> bool {
    let mut buffer = vec![0; 32 << 10];
    let mut left = limit;
    loop {
        let read = from.read(&mut buffer).unwrap_or(0) as u64;
        let take = read.min(left);
        if take == 0 || to.write_all(&buffer[..take as usize]).is_err() {
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            return left == 0;
        }
        passed.fetch_add(take, SeqCst);
        left -= take;
    }
}

fn cutting_proxy(server: u16, limit: u64) -> CuttingProxy {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let link = CuttingProxy {
        port,
        to: Arc::new(server.into()),
        passed: Arc::default(),
        cuts: Arc::default(),
    };
    let (to, passed, cuts) = (link.to.clone(), link.passed.clone(), link.cuts.clone());
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // The server may be restarting.
            let Ok(server) = TcpStream::connect(("127.0.0.1", to.load(SeqCst))) else { continue };
            let (to_server, from_client) =
                (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || carry(from_client, to_server, u64::MAX, &AtomicU64::new(0)));
            let (passed, cuts) = (passed.clone(), cuts.clone());
            std::thread::spawn(move || {
                cuts.fetch_add(u64::from(carry(server, client, limit, &passed)), SeqCst)
            });
        }
    });
    link
}

fn link_once(server: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        drop(listener);
        let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
        let (to_server, from_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || carry(from_client, to_server, u64::MAX, &AtomicU64::new(0)));
        carry(server, client, u64::MAX, &AtomicU64::new(0))
    });
    port
}

fn bytes_of_snapshot(server: &TestServer) -> u64 {
    let entries = std::fs::read_dir(server.folder()).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".tsnap"));
    files.map(|file| file.metadata().unwrap().len()).sum()
}

#[test]
fn a_full_sync_goes_on_where_it_was_cut() {
    let sized = |config: &mut Config| {
        config.durability.snapshot_every_s = 0;
        config.existence.iter_mut().for_each(|space| space.pairs_per_table = 8 << 20);
    };
    let master = TestServer::with(sized);
    let call = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        redis::cmd(words[0])
            .arg(&words[1..])
            .query::<redis::Value>(&mut master.connection())
            .unwrap()
    };
    // Create a few nearly empty tables of one megabyte each.
    for id in 0..6 {
        call(&format!("PH.ADD liked 7 {id}"));
        call(&format!("HSET post:{id} like {id}"));
        call("TM.ROLL liked");
    }
    call("SAVE");
    let bytes = bytes_of_snapshot(&master);
    assert!(bytes > 4 << 20, "{bytes} bytes");
    let link = cutting_proxy(master.port(), bytes / 6);
    let replica = TestServer::with(sized);
    // A single FORCE makes the replica discard its own data, even across a restart.
    redis::cmd("HSET")
        .arg("post:77")
        .arg(&["like", "1"])
        .query::<()>(&mut replica.connection())
        .unwrap();
    let words = ["127.0.0.1", &link.port.to_string(), "FORCE"];
    redis::cmd("REPLICAOF").arg(&words).query::<()>(&mut replica.connection()).unwrap();
    // Every attempt starts with a manifest, and the snapshot changes between attempts.
    eventually("the link is cut", || link.cuts.load(SeqCst) >= 2);
    call("HSET post:3 like 33");
    call("PH.ADD liked 8 5");
    call("SAVE");
    eventually("the link is cut again", || link.cuts.load(SeqCst) >= 3);
    let replica = replica.stopped().started();
    wait_for_sync(&master, &replica);
    let (passed, cuts) = (link.passed.load(SeqCst), link.cuts.load(SeqCst));
    println!("{bytes} bytes of snapshot, {passed} passed, {cuts} cuts");
    assert!(cuts >= 5, "{cuts} cuts");
    // Each disconnect loses at most one message of 256 KiB; the newest table was written twice.
    assert!(
        passed < bytes * 13 / 10 + cuts * (300 << 10),
        "{passed} bytes for {bytes}, with {cuts} cuts"
    );
    assert_eq!(number(&replica, "repl_full_syncs"), 1);
    let mut connection = replica.connection();
    for (id, likes) in [0u64, 1, 2, 33, 4, 5].into_iter().enumerate() {
        let row: u64 = redis::cmd("HGET")
            .arg(format!("post:{id}"))
            .arg("like")
            .query(&mut connection)
            .unwrap();
        assert_eq!(row, likes);
        let flags: [bool; 1] =
            redis::cmd("PH.EXISTS").arg("liked").arg(7).arg(id).query(&mut connection).unwrap();
        assert_eq!(flags, [true], "{id}");
    }
    let late: [bool; 2] =
        redis::cmd("PH.EXISTS").arg("liked").arg(8).arg(&[4, 5]).query(&mut connection).unwrap();
    assert_eq!(late, [false, true]);
}

/// Regression test: the master was demoted while its replica loaded the data of a full sync. No
/// node could be promoted afterwards, and Sentinel had no candidate.
#[test]
fn replica_is_promotable_if_master_is_lost_after_full_sync() {
    let master = TestServer::start();
    let mut connection = master.connection();
    redis::cmd("HSET").arg("post:1").arg(&["like", "3"]).query::<()>(&mut connection).unwrap();
    redis::cmd("SAVE").query::<()>(&mut connection).unwrap();
    let port = link_once(master.port());
    let replica = TestServer::start();
    redis::cmd("HSET")
        .arg("post:77")
        .arg(&["like", "1"])
        .query::<()>(&mut replica.connection())
        .unwrap();
    // The replica's own data must not make it a candidate.
    let words = ["127.0.0.1", &port.to_string(), "FORCE"];
    redis::cmd("REPLICAOF").arg(&words).query::<()>(&mut replica.connection()).unwrap();
    assert_eq!(number(&replica, "slave_priority"), 0);
    eventually("the node can be promoted", || {
        number(&replica, "slave_priority") == 100 && number(&replica, "repl_full_syncs") == 1
    });
    let status = info(&mut replica.connection(), "master_link_status");
    assert_eq!(status.as_deref(), Some("down"));
    redis::cmd("REPLICAOF").arg(&["NO", "ONE"]).query::<()>(&mut replica.connection()).unwrap();
    let read = |key: &str| -> Option<u64> {
        redis::cmd("HGET").arg(key).arg("like").query(&mut replica.connection()).unwrap()
    };
    assert_eq!((read("post:1"), read("post:77")), (Some(3), None));
}

/// REPLICAOF NO ONE during a full sync: the replica keeps its old data and removes the received
/// files.
#[test]
fn aborted_full_sync_keeps_old_data_and_removes_staged_files() {
    let sized = |config: &mut Config| {
        config.durability.snapshot_every_s = 0;
        config.existence.iter_mut().for_each(|space| space.pairs_per_table = 8 << 20);
    };
    let [master, replica] = [(); 2].map(|()| TestServer::with(sized));
    let mut connection = master.connection();
    for id in 0..6 {
        redis::cmd("PH.ADD").arg("liked").arg(7).arg(id).query::<()>(&mut connection).unwrap();
        redis::cmd("TM.ROLL").arg("liked").query::<()>(&mut connection).unwrap();
    }
    redis::cmd("SAVE").query::<()>(&mut connection).unwrap();
    redis::cmd("HSET")
        .arg("post:77")
        .arg(&["like", "1"])
        .query::<()>(&mut replica.connection())
        .unwrap();
    let link = cutting_proxy(master.port(), bytes_of_snapshot(&master) / 4);
    let staged = || {
        let names =
            std::fs::read_dir(replica.folder()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("staged-")).count()
    };
    let words = ["127.0.0.1", &link.port.to_string(), "FORCE"];
    redis::cmd("REPLICAOF").arg(&words).query::<()>(&mut replica.connection()).unwrap();
    eventually("a part is received", || link.cuts.load(SeqCst) >= 1 && staged() > 1);
    redis::cmd("REPLICAOF").arg(&["NO", "ONE"]).query::<()>(&mut replica.connection()).unwrap();
    let like = || {
        redis::cmd("HINCRBY")
            .arg("post:77")
            .arg(&["like", "1"])
            .query::<u64>(&mut replica.connection())
    };
    assert_eq!(like().unwrap(), 2);
    eventually("the partial files are removed", || staged() == 0);
    let replica = replica.stopped().started();
    assert_eq!(number(&replica, "repl_full_syncs"), 0);
    let row: u64 =
        redis::cmd("HGET").arg("post:77").arg("like").query(&mut replica.connection()).unwrap();
    assert_eq!(row, 2);
}

/// FORCE discards a replica's data only once. A later empty server at the master's address is
/// refused.
#[test]
fn empty_master_is_refused_after_an_earlier_force() {
    let [master, empty, replica] = [(); 3].map(|()| TestServer::start());
    let link = cutting_proxy(master.port(), u64::MAX);
    for (server, likes) in [(&master, 5), (&replica, 9)] {
        redis::cmd("HSET")
            .arg("post:1")
            .arg(&["like", &likes.to_string()])
            .query::<()>(&mut server.connection())
            .unwrap();
    }
    let words = ["127.0.0.1", &link.port.to_string(), "FORCE"];
    redis::cmd("REPLICAOF").arg(&words).query::<()>(&mut replica.connection()).unwrap();
    wait_for_sync(&master, &replica);
    link.to.store(empty.port(), SeqCst);
    drop(master);
    let mut connection = replica.connection();
    eventually("it refuses", || {
        info(&mut connection, "master_link_error")
            .is_some_and(|error| error.contains("a different data set"))
    });
    assert_eq!(
        redis::cmd("HGET").arg("post:1").arg("like").query::<u64>(&mut connection).unwrap(),
        5
    );
}

/// A damaged file on the master's disk makes every attempt fetch it again, with increasing delays.
/// A change of the configuration resets the delay, since it may fix the problem.
#[test]
fn what_is_damaged_is_asked_for_less_and_less_often() {
    let (master, replica) = (TestServer::start(), TestServer::start());
    redis::cmd("HSET").arg(&["post:1", "like", "5"]).query::<()>(&mut master.connection()).unwrap();
    redis::cmd("SAVE").query::<()>(&mut master.connection()).unwrap();
    let files = std::fs::read_dir(master.folder()).unwrap().map(|entry| entry.unwrap().path());
    let snapshot = files.filter(|path| path.extension().is_some_and(|e| e == "tsnap"));
    let largest = snapshot.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&largest).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&largest, &bytes).unwrap();
    let mut attempts = attempts_at(&master);
    follow(&replica, &master);
    let mut connection = replica.connection();
    eventually("the error names the reason", || {
        info(&mut connection, "master_link_error").is_some_and(|e| e.contains("checksum"))
    });
    assert_retries_slow_down(&mut attempts, 4);
    let left_s = |connection: &mut _| {
        info(connection, "master_link_retry_seconds").and_then(|s| s.parse::<u64>().ok())
    };
    eventually("the time of the error is reported", || {
        left_s(&mut connection).is_some_and(|s| (4..=8).contains(&s))
    });
    let asked = Instant::now();
    redis::cmd("CONFIG")
        .arg(&["SET", "slowlog-max-len", "7"])
        .query::<()>(&mut connection)
        .unwrap();
    eventually("at once", || attempts() == 5);
    assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
    let asked = Instant::now();
    eventually("one second later", || attempts() == 6);
    assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
    bytes[last] ^= 1;
    std::fs::write(&largest, &bytes).unwrap();
    wait_for_sync(&master, &replica);
}

/// Counts connections to a server from now on.
fn attempts_at(master: &TestServer) -> impl FnMut() -> u64 {
    let mut connection = master.connection();
    let mut count = move || -> u64 {
        let text: String = redis::cmd("INFO").arg("stats").query(&mut connection).unwrap();
        let count =
            text.lines().find_map(|line| line.strip_prefix("total_connections_received:")).unwrap();
        count.parse().unwrap()
    };
    let before = count();
    move || count() - before
}

/// Checks that the delays between attempts are one second, then two, then four.
fn assert_retries_slow_down(attempts: &mut impl FnMut() -> u64, most: u64) {
    let began = Instant::now();
    for count in 2..=most {
        eventually("another attempt", || attempts() == count);
        let after = Duration::from_secs((1 << (count - 1)) - 1);
        assert!(
            began.elapsed() + Duration::from_millis(100) > after,
            "{count}: {:?}",
            began.elapsed()
        );
    }
}

fn shop(config: &Config) -> tidemark_server::config::Counter {
    let mut shop = config.counter[0].clone();
    (shop.name, shop.rows, shop.cells) =
        ("shop".to_owned(), "shop:{id}".to_owned(), "shop:{id}:{field}".to_owned());
    shop
}

/// A replica takes spaces, views and actions from its master, regardless of its own configuration.
#[test]
fn a_replica_takes_its_masters_spaces_over() {
    for is_saved in [false, true] {
        let master = TestServer::with(|config| config.counter.push(shop(config)));
        let replica = TestServer::with(|config| {
            config.counter[0].fields.push_str(" share:6");
            config.view[0].counters = vec!["post.share".to_owned()];
        });
        let ask = |server: &TestServer, words: &[&str]| -> redis::RedisResult<u64> {
            redis::cmd(words[0]).arg(&words[1..]).query(&mut server.connection())
        };
        ask(&master, &["HSET", "shop:1", "like", "5"]).unwrap();
        ask(&replica, &["HSET", "post:1", "share", "9"]).unwrap();
        if is_saved {
            redis::cmd("SAVE").query::<()>(&mut master.connection()).unwrap();
        }
        let words = ["127.0.0.1", &master.port().to_string(), "FORCE"];
        redis::cmd("REPLICAOF").arg(&words).query::<()>(&mut replica.connection()).unwrap();
        wait_for_sync(&master, &replica);
        let replica = replica.stopped().started();
        wait_for_sync(&master, &replica);
        assert_eq!(ask(&replica, &["HGET", "shop:1", "like"]).unwrap(), 5, "saved: {is_saved}");
        assert!(
            ask(&replica, &["HSET", "post:1", "share", "1"]).is_err(),
            "the replica accepted an unknown field"
        );
        let page: Vec<Vec<i64>> = redis::cmd("FEED.GET")
            .arg(&["home", "7", "1"])
            .query(&mut replica.connection())
            .unwrap();
        assert_eq!(page, [[0; 6]]);
    }
}

/// Repeats a request while the data is loading.
fn when_loaded(raw: &mut tidemark_tests::Raw, words: &[&str]) -> String {
    loop {
        let line = raw.ask(words);
        if !line.starts_with("-LOADING") {
            return line;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A full sync closes no client connection: an idle client, a busy client, a subscriber, a
/// transaction with a watched key, and a monitor all stay connected.
#[test]
fn clients_of_a_replica_stay_connected_through_a_full_sync() {
    let quiet = |config: &mut Config| config.durability.snapshot_every_s = 0;
    let (master, replica) = (TestServer::with(quiet), TestServer::with(quiet));
    for id in 1..2000 {
        master.raw().request(&["HSET", &format!("post:{id}"), "like", "7"]).line();
    }
    master.raw().request(&["SAVE"]).expect("+OK\r\n");
    replica.raw().request(&["HSET", "post:1", "like", "1"]).expect(":1\r\n");
    let (mut idle, mut listener, mut watcher) = (replica.raw(), replica.raw(), replica.raw());
    idle.request(&["CLIENT", "SETNAME", "idle"]).expect("+OK\r\n");
    listener
        .request(&["SUBSCRIBE", "news"])
        .expect("*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    watcher
        .request(&["WATCH", "post:1"])
        .expect("+OK\r\n")
        .request(&["MULTI"])
        .expect("+OK\r\n")
        .request(&["HGET", "post:1", "like"])
        .expect("+QUEUED\r\n");
    let mut paused = replica.raw();
    let mut busy = replica.raw();
    busy.request(&["CLIENT", "PAUSE", "600000", "WRITE"]).expect("+OK\r\n");
    paused.request(&["HINCRBY", "post:1", "like", "1"]);
    let port = master.port().to_string();
    let mut admin = replica.raw();
    admin.request(&["REPLICAOF", "127.0.0.1", &port, "FORCE"]).expect("+OK\r\n");
    // A busy client sees only the old row, -LOADING, and the new row.
    let began = Instant::now();
    let mut seen = std::collections::BTreeSet::new();
    while !seen.contains("7") {
        assert!(began.elapsed() < tidemark_tests::DEFAULT_TIMEOUT, "{seen:?}");
        let line = busy.ask(&["HGET", "post:1", "like"]);
        let said = if line.starts_with('$') { busy.line() } else { line };
        let code = said.split(' ').next().unwrap().to_owned();
        assert!(["1", "7", "-LOADING"].contains(&code.as_str()), "{said}");
        seen.insert(code);
    }
    assert_eq!(number(&replica, "repl_full_syncs"), 1);
    assert_eq!(idle.ask(&["CLIENT", "GETNAME"]), "$4");
    idle.expect("idle\r\n");
    assert_eq!(when_loaded(&mut idle, &["HGET", "post:1999", "like"]), "$1");
    idle.expect("7\r\n");
    // A paused write keeps waiting for the end of the pause and is then refused by the replica.
    admin.request(&["CLIENT", "UNPAUSE"]).expect("+OK\r\n");
    assert!(paused.line().starts_with("-READONLY"));
    admin.request(&["PUBLISH", "news", "still here"]).expect(":1\r\n");
    listener.expect("*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$10\r\nstill here\r\n");
    // As in Redis, a full sync counts as a change of all keys.
    watcher.request(&["EXEC"]).expect("*-1\r\n");
}
