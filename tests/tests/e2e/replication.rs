//! Replicas: attached, cut off, promoted; what they answer and what they refuse.

use redis::Commands;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use tidemark_server::config::{Config, Fsync};
use tidemark_tests::{TestServer, eventually};

/// A field of INFO replication.
pub(crate) fn info(connection: &mut redis::Connection, field: &str) -> Option<String> {
    let text: String = redis::cmd("INFO").arg("replication").query(connection).ok()?;
    let prefix = format!("{field}:");
    text.lines().find_map(|line| line.strip_prefix(&prefix).map(str::to_owned))
}

pub(crate) fn number(server: &TestServer, field: &str) -> u64 {
    let client = redis::Client::open(server.url()).unwrap();
    let Ok(mut connection) = client.get_connection() else { return 0 };
    info(&mut connection, field).and_then(|n| n.parse().ok()).unwrap_or(0)
}

pub(crate) fn follow(replica: &TestServer, master: &TestServer) {
    follow_port(replica, master.port());
}

pub(crate) fn follow_port(replica: &TestServer, port: u16) {
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(port).query::<()>(&mut replica.connection()).unwrap();
}

/// Waits until the replica has all that the master has synced.
pub(crate) fn in_step(master: &TestServer, replica: &TestServer) {
    eventually("the replica is in step", || {
        let link = redis::Client::open(replica.url()).unwrap().get_connection().ok();
        let up = link.and_then(|mut c| info(&mut c, "master_link_status")).as_deref() == Some("up");
        // Who is to be the master may not be one yet.
        let synced = redis::cmd("WAITAOF").arg(1).arg(0).arg(5000).query::<[u64; 2]>(&mut master.connection());
        let synced = synced.is_ok_and(|done| done[0] == 1);
        up && synced && number(master, "master_repl_offset") == number(replica, "slave_repl_offset")
    });
}

fn small(config: &mut Config) {
    config.counter[0].rows_per_table = 1000;
    config.durability.snapshot_every_s = 0;
}

fn likes(server: &TestServer, ids: std::ops::Range<u64>) -> Vec<Option<i64>> {
    let mut pipe = redis::pipe();
    ids.for_each(|id| {
        pipe.hget(format!("post:{id}"), "like");
    });
    pipe.query(&mut server.connection()).unwrap()
}

/// Carries connections to a server as long as more than so many bytes may still come from it; then they wait, open.
struct Relay {
    port: u16,
    left: Arc<AtomicI64>,
}

fn relay(server: u16) -> Relay {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = Relay { port: listener.local_addr().unwrap().port(), left: Arc::new(AtomicI64::new(i64::MAX)) };
    let left = relay.left.clone();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
            for (from, to, costs) in [(&client, &server, 0), (&server, &client, 1)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let left = left.clone();
                std::thread::spawn(move || {
                    let mut buffer = [0; 1024];
                    loop {
                        let read = from.read(&mut buffer).unwrap_or(0);
                        while left.load(SeqCst) <= 0 {
                            std::thread::sleep(std::time::Duration::from_millis(5));
                        }
                        left.fetch_sub(read as i64 * costs, SeqCst);
                        if read == 0 || to.write_all(&buffer[..read]).is_err() {
                            let _ = to.shutdown(std::net::Shutdown::Both);
                            return;
                        }
                    }
                });
            }
        }
    });
    relay
}

fn priority(server: &TestServer) -> u64 {
    number(server, "slave_priority")
}

/// The order to follow somebody is taken back before anybody has looked at it: the node is as it was.
#[test]
fn an_order_that_is_taken_back_at_once_leaves_a_master() {
    let server = TestServer::with(small);
    let mut connection = server.connection();
    for round in 0..50 {
        let mut orders = redis::pipe();
        orders.cmd("REPLICAOF").arg("127.0.0.1").arg(1).cmd("REPLICAOF").arg("NO").arg("ONE");
        orders.query::<()>(&mut connection).unwrap();
        eventually("it takes writes", || connection.hset::<_, _, _, u64>(format!("post:{round}"), "like", 1).is_ok());
    }
    assert_eq!(likes(&server, 0..50), [Some(1); 50]);
}

#[test]
fn a_replica_gets_what_is_there_and_what_comes_and_goes_on_after_restarts_of_either() {
    let master = TestServer::with(small);
    let mut at_master = master.connection();
    let mut pipe = redis::pipe();
    for id in 0..5000u64 {
        pipe.hset(format!("post:{id}"), "like", id).ignore();
    }
    pipe.query::<()>(&mut at_master).unwrap();
    redis::cmd("SAVE").query::<()>(&mut at_master).unwrap();
    redis::cmd("FEED.ACT").arg("like").arg(7).arg(&[1, 2, 3]).query::<()>(&mut at_master).unwrap();
    let replica = TestServer::with(small);
    follow(&replica, &master);
    in_step(&master, &replica);
    assert_eq!(likes(&replica, 0..5000), likes(&master, 0..5000));
    assert_eq!(number(&replica, "repl_full_syncs"), 1);
    // What comes.
    for id in 0..100u64 {
        at_master.hincr::<_, _, _, ()>(format!("post:{id}"), "like", 1000).unwrap();
    }
    let began = std::time::Instant::now();
    assert_eq!(redis::cmd("WAIT").arg(1).arg(60_000).query::<u64>(&mut at_master).unwrap(), 1);
    assert!(began.elapsed() < tidemark_tests::PATIENCE, "told when it is there, not when the time is over");
    assert_eq!(likes(&replica, 0..200), likes(&master, 0..200));
    let flags: Vec<u64> =
        redis::cmd("PH.EXISTS").arg("liked").arg(7).arg(&[1, 2, 3, 4]).query(&mut replica.connection()).unwrap();
    assert_eq!(flags, [1, 1, 1, 0]);
    // It refuses writes, in Redis's words.
    let error = replica.connection().hset::<_, _, _, ()>("post:1", "like", 1).unwrap_err().to_string();
    assert!(error.to_lowercase().contains("read only replica"), "{error}");
    let error = redis::cmd("WAIT").arg(1).arg(1).query::<u64>(&mut replica.connection()).unwrap_err().to_string();
    assert!(error.contains("WAIT cannot be used with replica instances"), "{error}");
    // It is restarted, and misses something meanwhile.
    let replica = replica.stopped();
    at_master.hset::<_, _, _, ()>("post:1", "like", 77).unwrap();
    let replica = replica.started();
    in_step(&master, &replica);
    assert_eq!(likes(&replica, 0..5000), likes(&master, 0..5000));
    assert_eq!(number(&replica, "repl_full_syncs"), 0, "it went on where it was");
}

/// A replica writes snapshots of its own, each with what has changed since the one before: also what its master has changed.
#[test]
fn a_replicas_snapshot_has_what_came_since_its_last_one() {
    let tiny = |config: &mut Config| {
        small(config);
        config.existence.iter_mut().for_each(|space| space.pairs_per_table = 5000);
    };
    let (master, replica) = (TestServer::with(tiny), TestServer::with(tiny));
    follow(&replica, &master);
    in_step(&master, &replica);
    let call = |server: &TestServer, words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        redis::cmd(words[0]).arg(&words[1..]).query::<redis::Value>(&mut server.connection()).unwrap()
    };
    // Three tables of pairs and of rows, the first two of which nobody will touch again but by what comes below.
    let ids: Vec<u64> = (0..1500).collect();
    for some in ids.chunks(500) {
        let mut pipe = redis::pipe();
        for id in some {
            pipe.hset(format!("post:{id}"), "read", id + 1).ignore();
            pipe.cmd("PH.ADD").arg("liked").arg(7).arg(*id).ignore();
            pipe.cmd("PH.ADD").arg("liked").arg(8).arg(*id).ignore();
        }
        pipe.query::<()>(&mut master.connection()).unwrap();
        call(&master, "TM.ROLL liked");
    }
    let synced_by_both = || {
        let words = ["1", "1", "5000"];
        let done = redis::cmd("WAITAOF").arg(&words).query::<[u64; 2]>(&mut master.connection()).unwrap();
        assert_eq!(done, [1, 1]);
    };
    let saved = || {
        call(&replica, "SAVE");
        let names = std::fs::read_dir(replica.folder()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".tsnap")).collect::<std::collections::BTreeSet<_>>()
    };
    synced_by_both();
    let first = saved();
    let kept = saved().intersection(&first).count();
    assert!(kept >= 4, "tables that have not changed are not written again: {first:?}");
    // One row and three pairs of each table: new, taken back, liked again.
    for id in [3u64, 503, 1003] {
        call(&master, &format!("HSET post:{id} like 5"));
        call(&master, &format!("PH.ADD liked 9 {id}"));
        call(&master, &format!("PH.DEL liked 8 {id}"));
        call(&master, &format!("PH.DEL liked 7 {}", id + 1));
        call(&master, &format!("PH.ADD liked 7 {}", id + 1));
    }
    // The log of it is synced before the snapshot begins, so a start reads it from the snapshot alone.
    synced_by_both();
    saved();
    let again = replica.killed();
    let mut connection = again.connection();
    for id in ids {
        let is_changed = id % 500 == 3;
        let likes = if is_changed { 5 } else { 0 };
        let row: [Option<u64>; 2] =
            redis::cmd("HMGET").arg(format!("post:{id}")).arg(&["like", "read"]).query(&mut connection).unwrap();
        assert_eq!(row, [Some(likes), Some(id + 1)], "{id}");
        let flags = ["7", "8", "9"].map(|member| {
            redis::cmd("PH.EXISTS").arg("liked").arg(member).arg(id).query::<[bool; 1]>(&mut connection).unwrap()[0]
        });
        assert_eq!(flags, [true, !is_changed, is_changed], "{id}");
    }
}

#[test]
fn a_replica_that_was_away_while_the_log_rolled_many_times_goes_on_from_the_files() {
    let rolling = |config: &mut Config| {
        small(config);
        config.durability.keep_log_bytes = 1 << 30;
    };
    let master = TestServer::with(rolling);
    let replica = TestServer::with(rolling);
    follow(&replica, &master);
    in_step(&master, &replica);
    let replica = replica.stopped();
    // Each restart of the master begins a segment.
    let mut master = master;
    for round in 0..20i64 {
        master.connection().hset::<_, _, _, ()>("post:1", "like", round).unwrap();
        master = master.stopped().started();
        // It has had a replica: nobody has said yet that it still is the master.
        let error = master.connection().hset::<_, _, _, ()>("post:1", "like", 1).unwrap_err().to_string();
        assert!(error.contains("fenced until its role is known"), "{error}");
        redis::cmd("REPLICAOF").arg("NO").arg("ONE").query::<()>(&mut master.connection()).unwrap();
    }
    assert!(segment(&master) >= 20, "{}", segment(&master));
    let replica = replica.started();
    in_step(&master, &replica);
    assert_eq!(likes(&replica, 0..3), [None, Some(19), None]);
    assert_eq!(number(&replica, "repl_full_syncs"), 0);
}

fn segment(server: &TestServer) -> u64 {
    let text: String = redis::cmd("INFO").arg("persistence").query(&mut server.connection()).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("log_written_segment:")).unwrap();
    line.parse().unwrap()
}

/// What a Sentinel says every two seconds: the master's address, and the epoch since which it is that.
fn hello(server: &TestServer, port: u16, epoch: u64) {
    let text = format!("127.0.0.1,26379,{},9,m,127.0.0.1,{port},{epoch}", "a".repeat(40));
    redis::cmd("PUBLISH").arg("__sentinel__:hello").arg(text).query::<()>(&mut server.connection()).unwrap();
}

/// Started again, replaced, chosen again, left alone by all Sentinels: who may say what a node is.
#[test]
fn a_master_takes_writes_while_it_is_one_as_far_as_sentinels_know() {
    let (master, replica) = (TestServer::with(small), TestServer::with(small));
    let other = replica.port();
    follow(&replica, &master);
    in_step(&master, &replica);
    drop(replica);
    let master = master.stopped().started();
    let own = master.port();
    let write = || master.connection().hset::<_, _, _, ()>("post:1", "like", 1).map_err(|e| e.to_string());
    let refused = |why: &str| {
        let error = write().unwrap_err();
        assert!(error.contains(why), "{error}");
    };
    for nonsense in ["", "a,b", "127.0.0.1,1,a,1,m,127.0.0.1,99999999,1", "127.0.0.1,1,a,1,m,127.0.0.1,x,-1"] {
        redis::cmd("PUBLISH").arg("__sentinel__:hello").arg(nonsense).query::<()>(&mut master.connection()).unwrap();
    }
    refused("fenced until its role is known");
    // One that knows of another master, and one that was away while that was chosen.
    hello(&master, other, 6);
    hello(&master, own, 5);
    refused("fenced until its role is known");
    hello(&master, own, 7);
    write().unwrap();
    hello(&master, other, 7);
    write().unwrap();
    hello(&master, other, 8);
    refused("Sentinel has made another node the master");
    assert_eq!(number(&master, "repl_fenced"), 1);
    // A replica that nobody has told yet does not know better; a newer epoch does.
    let late = TestServer::with(small);
    follow(&late, &master);
    in_step(&master, &late);
    hello(&master, own, 7);
    refused("Sentinel has made another node the master");
    hello(&master, own, 9);
    write().unwrap();
    assert_eq!(number(&master, "repl_fenced"), 0);
    // No Sentinel left, and none that could be asked: an operator says so, or a replica that follows.
    hello(&master, other, 10);
    refused("Sentinel has made another node the master");
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").query::<()>(&mut master.connection()).unwrap();
    write().unwrap();
    let master = master.stopped().started();
    let again = || master.connection().hset::<_, _, _, ()>("post:1", "like", 1).is_ok();
    assert!(!again() || number(&master, "connected_slaves") == 1);
    eventually("a replica follows, and that is enough", again);
}

/// A master and a replica come back together after a Sentinel has had another one promoted: the replica follows that master as before.
#[test]
fn a_replica_that_follows_lifts_no_fence_where_sentinels_have_spoken() {
    let (master, replica) = (TestServer::with(small), TestServer::with(small));
    follow(&replica, &master);
    in_step(&master, &replica);
    hello(&master, master.port(), 5);
    let master = master.stopped().started();
    in_step(&master, &replica);
    assert_eq!(number(&master, "connected_slaves"), 1);
    let write = |server: &TestServer| server.connection().hset::<_, _, _, ()>("post:1", "like", 1);
    let refused = |server: &TestServer| {
        let error = write(server).unwrap_err().to_string();
        assert!(error.contains("fenced until its role is known"), "{error}");
    };
    refused(&master);
    hello(&master, replica.port(), 6);
    hello(&master, master.port(), 5);
    refused(&master);
    // Who was promoted meanwhile, and is started again, does not know better.
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").query::<()>(&mut replica.connection()).unwrap();
    eventually("it takes writes", || write(&replica).is_ok());
    let replica = replica.stopped().started();
    refused(&replica);
    hello(&replica, replica.port(), 6);
    write(&replica).unwrap();
}

/// Nobody has written since the start, or since the promotion: replicas have what was there before.
#[test]
fn wait_counts_replicas_before_the_first_write() {
    let always = |config: &mut Config| {
        small(config);
        config.durability.fsync = Fsync::Always;
    };
    let (a, b) = (TestServer::with(always), TestServer::with(always));
    a.connection().hset::<_, _, _, ()>("post:1", "like", 1).unwrap();
    follow(&b, &a);
    in_step(&a, &b);
    let wait = |server: &TestServer| {
        eventually("its replica is back", || number(server, "connected_slaves") == 1);
        redis::cmd("WAIT").arg(1).arg(10_000).query::<u64>(&mut server.connection()).unwrap()
    };
    let a = a.stopped().started();
    assert_eq!(wait(&a), 1, "started");
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").query::<()>(&mut b.connection()).unwrap();
    follow(&a, &b);
    assert_eq!(wait(&b), 1, "promoted");
}

/// It has more than its master, and that will be given up: who promoted it would lose what its master has acknowledged since.
#[test]
fn who_gives_its_data_up_is_not_to_be_promoted() {
    let (a, b) = (TestServer::with(small), TestServer::with(small));
    let fill = |server: &TestServer, ids: std::ops::Range<u64>| {
        let mut pipe = redis::pipe();
        ids.for_each(|id| {
            pipe.hset(format!("post:{id}"), "like", id + 1).ignore();
        });
        pipe.query::<()>(&mut server.connection())
    };
    fill(&b, 0..10).unwrap();
    follow(&a, &b);
    in_step(&b, &a);
    assert_eq!(priority(&a), 100);
    // Both are masters for a while.
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").query::<()>(&mut a.connection()).unwrap();
    eventually("it takes writes", || fill(&a, 10..5000).is_ok());
    fill(&b, 10..20).unwrap();
    redis::cmd("WAITAOF").arg(1).arg(0).arg(5000).query::<()>(&mut a.connection()).unwrap();
    let link = relay(a.port());
    // Its manifest passes, and not what that names.
    link.left.store(4000, SeqCst);
    follow_port(&b, link.port);
    let asked = |field: &str| {
        let connection = redis::Client::open(b.url()).unwrap().get_connection().ok();
        connection.and_then(|mut c| info(&mut c, field))
    };
    eventually("it fetches", || asked("master_sync_in_progress").as_deref() == Some("1"));
    assert_eq!(asked("slave_priority").as_deref(), Some("0"));
    link.left.store(i64::MAX, SeqCst);
    in_step(&a, &b);
    eventually("it may be promoted", || priority(&b) == 100);
    // Another data set, which it refuses.
    let foreign = TestServer::with(small);
    follow(&b, &foreign);
    eventually("it refuses", || asked("master_link_error").is_some_and(|e| e.contains("another data set")));
    assert_eq!(priority(&b), 0);
    follow(&b, &a);
    in_step(&a, &b);
    eventually("it may be promoted", || priority(&b) == 100);
}

/// An order that comes while the last one is being obeyed waits for nobody who waits for it.
#[test]
fn roles_change_as_fast_as_they_are_told() {
    let server = TestServer::with(small);
    let mut connection = server.connection();
    for _ in 0..100 {
        for to in [["127.0.0.1", "1"], ["NO", "ONE"]] {
            redis::cmd("REPLICAOF").arg(&to).query::<()>(&mut connection).unwrap();
        }
    }
    eventually("it takes writes", || connection.hset::<_, _, _, ()>("post:1", "like", 1).is_ok());
    assert_eq!(likes(&server, 1..2), [Some(1)]);
}

#[test]
fn the_stream_of_a_hot_row_is_small() {
    let master = TestServer::with(small);
    let replica = TestServer::with(small);
    follow(&replica, &master);
    in_step(&master, &replica);
    let before = number(&master, "master_repl_offset");
    let mut connection = master.connection();
    const WRITES: u64 = 1_000_000;
    let began = std::time::Instant::now();
    for _ in 0..WRITES / 5000 {
        let mut pipe = redis::pipe();
        (0..5000).for_each(|_| {
            pipe.hincr("post:7", "like", 1).ignore();
        });
        pipe.query::<()>(&mut connection).unwrap();
    }
    in_step(&master, &replica);
    assert_eq!(likes(&replica, 7..8), [Some(WRITES as i64)]);
    let bytes = number(&master, "master_repl_offset") - before;
    // Changes gather for 50 ms, and then the row is told once: a batch of one record, some 56 bytes. How many of them there are is a question of
    // how long the writes take, not of how many they are; three more for the sync and the seal at the end.
    let batches = began.elapsed().as_millis() as u64 / 50 + 3;
    println!("{bytes} bytes for {WRITES} writes of one row, in at most {batches} batches");
    assert!(bytes <= 64 * batches, "{bytes} bytes for {WRITES} writes of one row, in at most {batches} batches");
    assert!(bytes < 100_000, "that is kilobytes, not megabytes: {bytes}");
}

#[test]
fn a_foreign_master_is_refused_unless_forced_and_what_is_dropped_is_kept() {
    let (master, other) = (TestServer::with(small), TestServer::with(small));
    master.connection().hset::<_, _, _, ()>("post:1", "like", 1).unwrap();
    other.connection().hset::<_, _, _, ()>("post:2", "like", 2).unwrap();
    follow(&other, &master);
    let mut connection = other.connection();
    eventually("it refuses", || {
        info(&mut connection, "master_link_error").is_some_and(|e| e.contains("another data set"))
    });
    assert_eq!(info(&mut connection, "slave_priority").as_deref(), Some("0"));
    assert_eq!(likes(&other, 1..3), [None, Some(2)], "nothing was given up");
    let port = master.port().to_string();
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(port).arg("FORCE").query::<()>(&mut connection).unwrap();
    in_step(&master, &other);
    assert_eq!(likes(&other, 1..3), [Some(1), None]);
    assert_eq!(dropped(&other).len(), 1, "what was dropped is in a file");
}

/// Folders with what a node gave up.
fn dropped(server: &TestServer) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(server.folder()).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("dropped-")).collect()
}

/// The log alone would not tell: it was removed as far as there is a snapshot.
#[test]
fn what_is_given_up_is_kept_whole_where_the_log_is_gone() {
    let forgetful = |config: &mut Config| {
        small(config);
        config.durability.keep_log_bytes = 0;
    };
    let (master, other) = (TestServer::with(forgetful), TestServer::with(forgetful));
    master.connection().hset::<_, _, _, ()>("post:1", "like", 1).unwrap();
    let mut other = other;
    for round in 0..3i64 {
        other.connection().hset::<_, _, _, ()>(format!("post:{}", 10 + round), "like", round).unwrap();
        redis::cmd("SAVE").query::<()>(&mut other.connection()).unwrap();
        other = other.stopped().started();
    }
    other.connection().hset::<_, _, _, ()>("post:20", "like", 20).unwrap();
    assert!(!other.folder().join("log-0000000000000001.tlog").exists(), "the log is not whole");
    // Once more changes nothing.
    let port = master.port().to_string();
    for _ in 0..3 {
        redis::cmd("REPLICAOF").arg("127.0.0.1").arg(&port).arg("FORCE").query::<()>(&mut other.connection()).unwrap();
        in_step(&master, &other);
    }
    assert_eq!(likes(&other, 10..13), [None, None, None]);
    let kept = dropped(&other);
    assert_eq!(kept.len(), 1, "{kept:?}");
    let again = other.on_copy(&kept[0]);
    assert_eq!(likes(&again, 10..13), [Some(0), Some(1), Some(2)]);
    assert_eq!(likes(&again, 20..21), [Some(20)]);
    assert_eq!(likes(&again, 1..2), [None]);
}

#[test]
fn a_promoted_replica_goes_on_with_its_siblings_and_the_old_master_gives_up_what_it_had_alone() {
    let nodes: Vec<TestServer> = (0..3).map(|_| TestServer::with(small)).collect();
    let [a, b, c] = &nodes[..] else { unreachable!() };
    a.connection().hset::<_, _, _, ()>("post:1", "like", 1).unwrap();
    follow(b, a);
    in_step(a, b);
    // A chain.
    follow(c, b);
    in_step(a, b);
    in_step(a, c);
    assert_eq!(likes(c, 1..2), [Some(1)]);
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").query::<()>(&mut b.connection()).unwrap();
    // Both are masters for a while.
    eventually("b takes writes", || b.connection().hset::<_, _, _, ()>("post:2", "like", 22).is_ok());
    a.connection().hset::<_, _, _, ()>("post:3", "like", 33).unwrap();
    redis::cmd("WAITAOF").arg(1).arg(0).arg(5000).query::<()>(&mut a.connection()).unwrap();
    let full_syncs = number(c, "repl_full_syncs");
    in_step(b, c);
    assert_eq!(number(c, "repl_full_syncs"), full_syncs, "the sibling went on");
    follow(a, b);
    in_step(b, a);
    for node in &nodes {
        assert_eq!(likes(node, 1..4), [Some(1), Some(22), None]);
    }
    // What a had alone is in a file.
    assert_eq!(dropped(a).len(), 1);
}

fn port_of(server: &TestServer) -> String {
    server.port().to_string()
}

/// Everybody writes while the role goes over: what was acknowledged is there afterwards, once.
#[test]
fn failover_hands_the_role_over_and_nothing_is_lost() {
    let (a, b) = (TestServer::with(small), TestServer::with(small));
    let failover = |server: &TestServer, words: &[&str]| {
        redis::cmd("FAILOVER").arg(words).query::<String>(&mut server.connection()).map_err(|e| e.to_string())
    };
    let refused = |words: &[&str], why: &str| {
        let error = failover(&a, words).unwrap_err();
        assert!(error.contains(why), "{words:?}: {error}");
    };
    refused(&["ABORT"], "No failover in progress.");
    refused(&[], "requires connected replicas.");
    follow(&b, &a);
    in_step(&a, &b);
    let port = port_of(&b);
    refused(&["TIMEOUT", "0"], "timeout must be greater than 0");
    refused(&["TO", "127.0.0.1", "1"], "is not a replica.");
    refused(&["TO", "127.0.0.1", &port, "FORCE"], "requires both a timeout and target");
    refused(&["NOW"], "syntax error");
    assert!(failover(&b, &[]).unwrap_err().contains("is not valid when server is a replica."));
    let acknowledged: i64 = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let mut connection = a.connection();
                scope.spawn(move || {
                    let mut acknowledged = 0;
                    loop {
                        match connection.hincr::<_, _, _, i64>("post:7", "like", 1) {
                            Ok(_) => acknowledged += 1,
                            Err(error) => {
                                assert!(error.to_string().to_lowercase().contains("read only"), "{error}");
                                return acknowledged;
                            }
                        }
                    }
                })
            })
            .collect();
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!(failover(&a, &["TO", "127.0.0.1", &port, "TIMEOUT", "10000"]).unwrap(), "OK");
        writers.into_iter().map(|w| w.join().unwrap()).sum()
    });
    in_step(&b, &a);
    assert!(acknowledged > 0);
    assert_eq!((likes(&a, 7..8), likes(&b, 7..8)), (vec![Some(acknowledged)], vec![Some(acknowledged)]));
    assert_eq!(number(&a, "repl_full_syncs"), 0, "it went on where it was");
    let state = info(&mut a.connection(), "master_failover_state");
    assert_eq!(state.as_deref(), Some("no-failover"));
    b.connection().hincr::<_, _, _, ()>("post:7", "like", 1).unwrap();
}

/// Whoever reads from a replica stays connected while the schema changes.
#[test]
fn a_schema_changes_on_replicas_while_they_follow() {
    let (master, replica) = (TestServer::with(small), TestServer::with(small));
    follow(&replica, &master);
    in_step(&master, &replica);
    let (mut at_master, mut at_replica) = (master.connection(), replica.connection());
    let mut alter = |words: &[&str]| {
        redis::cmd("TM.SPACE").arg("ALTER").arg("post").arg(words).query::<()>(&mut at_master).unwrap();
        at_master.hincr::<_, _, _, ()>("post:1", "like", 1).unwrap();
        if words[0] == "ADD" {
            at_master.hset::<_, _, _, ()>("post:1", "share", 40).unwrap();
        }
        assert_eq!(redis::cmd("WAIT").arg(1).arg(5000).query::<u64>(&mut at_master).unwrap(), 1);
    };
    alter(&["ADD", "share:6"]);
    let row: Vec<i64> = redis::cmd("HMGET").arg("post:1").arg(&["like", "share"]).query(&mut at_replica).unwrap();
    assert_eq!(row, [1, 40]);
    alter(&["WIDEN", "share:30"]);
    alter(&["DROP", "share"]);
    let fields: Vec<String> = redis::cmd("HKEYS").arg("post:1").query(&mut at_replica).unwrap();
    assert_eq!(fields, redis::cmd("HKEYS").arg("post:1").query::<Vec<String>>(&mut at_master).unwrap());
    assert!(!fields.contains(&"share".to_owned()), "{fields:?}");
    assert_eq!(at_replica.hget::<_, _, i64>("post:1", "like").unwrap(), 3);
}

/// FAILOVER ends while this node becomes a replica of the one that is to take over, or after that: a write that waited is taken, once.
#[test]
fn a_failover_that_is_aborted_at_any_moment_takes_the_writes_that_waited() {
    let master = TestServer::with(small);
    // Where it says that it listens nobody does: so the role is on its way to it until somebody says ABORT.
    let unreachable = TestServer::with(|config| {
        small(config);
        config.replication.replica_announce_port = 1;
    });
    follow(&unreachable, &master);
    in_step(&master, &unreachable);
    let (mut writer, mut operator) = (master.raw(), master.connection());
    let mut rng = fastrand::Rng::with_seed(11);
    for round in 1..=40u64 {
        // In one turn: the write is behind the pause, and before anything has come of the failover.
        let both = [&["FAILOVER", "TO", "127.0.0.1", "1"][..], &["HINCRBY", "post:1", "like", "1"][..]];
        writer.send(both.map(tidemark_tests::request).concat());
        writer.expect("+OK\r\n");
        std::thread::sleep(std::time::Duration::from_micros(rng.u64(0..6_000)));
        for to in [["127.0.0.1", "2"], ["NO", "ONE"]] {
            let error = redis::cmd("REPLICAOF").arg(&to).query::<()>(&mut operator).unwrap_err().to_string();
            assert!(error.contains("REPLICAOF not allowed while failing over."), "{error}");
        }
        redis::cmd("FAILOVER").arg("ABORT").query::<()>(&mut operator).unwrap();
        assert_eq!(writer.line(), format!(":{round}"), "the write of round {round}, which waited");
        assert_eq!(info(&mut operator, "role").as_deref(), Some("master"));
        assert_eq!(info(&mut operator, "master_failover_state").as_deref(), Some("no-failover"));
    }
    in_step(&master, &unreachable);
    assert_eq!(likes(&unreachable, 1..2), [Some(40)]);
    assert_eq!(number(&unreachable, "repl_full_syncs"), 1);
}

/// Whoever says TM.REPLICATE FAILOVER to it may be a master of something else.
#[test]
fn a_role_is_taken_over_from_the_own_master_only() {
    let (master, replica, stranger) = (TestServer::with(small), TestServer::with(small), TestServer::with(small));
    master.connection().hset::<_, _, _, ()>("post:1", "like", 1).unwrap();
    follow(&replica, &master);
    in_step(&master, &replica);
    let said = |field: &str| info(&mut master.connection(), field).unwrap();
    let (lineage, term) = (said("master_replid")[..32].to_owned(), said("repl_term"));
    let hand = |to: &TestServer, lineage: &str, term: &str| {
        to.raw().ask(&["TM.REPLICATE", "3", "FAILOVER", "0", lineage, term])
    };
    let other_term = format!("{:x}", u64::from_str_radix(&term, 16).unwrap() + (1 << 32));
    for (to, lineage, term) in
        [(&replica, &"0".repeat(32), &term), (&replica, &lineage, &other_term), (&stranger, &lineage, &term)]
    {
        let answer = hand(to, lineage, term);
        assert!(answer.starts_with("-ERR this replica has another history"), "{answer}");
    }
    let role = || info(&mut replica.connection(), "role");
    assert_eq!(role().as_deref(), Some("slave"));
    assert_eq!(hand(&replica, &lineage, &term), "+OK");
    assert_eq!(role().as_deref(), Some("master"));
    assert_eq!(hand(&replica, &lineage, &term), "+OK", "once more, as if our answer had been lost");
}

#[test]
fn a_transaction_on_a_replica_sees_that_its_master_has_changed_what_it_watches() {
    let (master, replica) = (TestServer::with(small), TestServer::with(small));
    follow(&replica, &master);
    in_step(&master, &replica);
    let mut at_replica = replica.connection();
    let mut run = |change: Option<(&str, i64)>| {
        redis::cmd("WATCH").arg("post:1").query::<()>(&mut at_replica).unwrap();
        if let Some((key, value)) = change {
            let mut connection = master.connection();
            connection.hset::<_, _, _, ()>(key, "like", value).unwrap();
            assert_eq!(redis::cmd("WAIT").arg(1).arg(5000).query::<u64>(&mut connection).unwrap(), 1);
        }
        redis::cmd("MULTI").query::<()>(&mut at_replica).unwrap();
        redis::cmd("HGET").arg("post:1").arg("like").query::<()>(&mut at_replica).unwrap();
        redis::cmd("EXEC").query::<Option<Vec<Option<i64>>>>(&mut at_replica).unwrap()
    };
    assert_eq!(run(None), Some(vec![None]));
    assert_eq!(run(Some(("post:1", 5))), None, "it was changed");
    assert_eq!(run(Some(("post:2", 5))), Some(vec![Some(5)]), "another one was");
}

#[test]
fn a_master_lets_in_whom_it_should_and_no_more_than_it_should() {
    let master = TestServer::with(|config| {
        small(config);
        config.security.password = "secret".to_owned();
        config.replication.max_replicas = 1;
    });
    let with = |password: &str, user: &str| {
        TestServer::with(|config| {
            small(config);
            config.replication.master_auth = password.to_owned();
            config.replication.master_user = user.to_owned();
        })
    };
    // While a data set takes the place of another, clients are disconnected.
    let asked = |replica: &TestServer, field: &str| {
        let connection = redis::Client::open(replica.url()).unwrap().get_connection().ok();
        connection.and_then(|mut c| info(&mut c, field))
    };
    let says = |replica: &TestServer, what: &str| {
        eventually(what, || asked(replica, "master_link_error").is_some_and(|e| e.contains(what)));
    };
    let is_up = |replica: &TestServer| {
        eventually("up", || asked(replica, "master_link_status").as_deref() == Some("up"));
    };
    let stranger = with("", "");
    follow(&stranger, &master);
    says(&stranger, "NOAUTH");
    let mistaken = with("wrong", "");
    follow(&mistaken, &master);
    says(&mistaken, "WRONGPASS");
    // A user that may do this and nothing else.
    let mut at_master = master.raw();
    at_master.request(&["AUTH", "secret"]).expect("+OK\r\n");
    at_master.request(&["ACL", "SETUSER", "copy", "on", ">pw", "+tm.replicate"]).expect("+OK\r\n");
    let replica = with("pw", "copy");
    follow(&replica, &master);
    is_up(&replica);
    let one_more = with("secret", "default");
    follow(&one_more, &master);
    says(&one_more, "max number of replicas reached");
    replica.stop();
    is_up(&one_more);
}

#[test]
fn a_master_with_too_few_replicas_refuses_writes() {
    let master = TestServer::with(|config| {
        small(config);
        config.replication.min_replicas_to_write = 1;
    });
    let refused = |server: &TestServer| {
        let written = server.connection().hset::<_, _, _, ()>("post:1", "like", 1);
        written.is_err_and(|e| e.to_string().contains("Not enough good replicas"))
    };
    assert!(refused(&master));
    let replica = TestServer::with(small);
    follow(&replica, &master);
    eventually("it takes writes", || !refused(&master));
    let stopped = replica.stopped();
    eventually("it refuses again", || refused(&master));
    drop(stopped);
    let set = |name: &str, value: &str| {
        redis::cmd("CONFIG").arg("SET").arg(name).arg(value).query::<()>(&mut master.connection()).unwrap();
    };
    set("min-replicas-to-write", "0");
    assert!(!refused(&master), "from now on");
    // A replica that falls silent does not say so.
    let link = relay(master.port());
    let replica = TestServer::with(small);
    follow_port(&replica, link.port);
    in_step(&master, &replica);
    set("min-replicas-max-lag", "1");
    set("min-replicas-to-write", "1");
    assert!(!refused(&master));
    link.left.store(0, SeqCst);
    eventually("it refuses when time has gone by", || refused(&master));
    link.left.store(i64::MAX, SeqCst);
    eventually("it was heard again", || !refused(&master));
    set("min-replicas-to-write", "2");
    assert!(refused(&master), "from now on");
}
