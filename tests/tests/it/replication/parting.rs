//! Diverged histories: which node discards its data, what it saves of that data, and which node may
//! be promoted in the meantime.

use super::{detach, follow, follow_port, info, likes, number, relay, small, wait_for_sync};
use redis::Commands;
use std::sync::atomic::Ordering::SeqCst;
use tidemark_server::config::{Config, Fsync};
use tidemark_tests::{TestServer, eventually};

fn priority(server: &TestServer) -> u64 {
    number(server, "slave_priority")
}

/// A node that is about to discard its data must not be promoted, because it lacks what its master
/// has acknowledged since.
#[test]
fn a_node_that_gives_its_data_up_is_not_promotable() {
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
    wait_for_sync(&b, &a);
    assert_eq!(priority(&a), 100);
    // Both nodes are masters for a while.
    detach(&a);
    fill(&a, 10..5000).unwrap();
    fill(&b, 10..20).unwrap();
    redis::cmd("WAITAOF").arg(1).arg(0).arg(5000).query::<()>(&mut a.connection()).unwrap();
    let link = relay(a.port());
    // The proxy forwards the manifest, but not the files.
    link.left.store(4000, SeqCst);
    follow_port(&b, link.port);
    let asked = |field: &str| {
        let connection = redis::Client::open(b.url()).unwrap().get_connection().ok();
        connection.and_then(|mut c| info(&mut c, field))
    };
    eventually("it fetches", || asked("master_sync_in_progress").as_deref() == Some("1"));
    assert_eq!(asked("slave_priority").as_deref(), Some("0"));
    link.left.store(i64::MAX, SeqCst);
    wait_for_sync(&a, &b);
    eventually("it may be promoted", || priority(&b) == 100);
    // The node refuses another data set.
    let foreign = TestServer::with(small);
    follow(&b, &foreign);
    eventually("it refuses", || {
        asked("master_link_error").is_some_and(|e| e.contains("a different data set"))
    });
    assert_eq!(priority(&b), 0);
    follow(&b, &a);
    wait_for_sync(&a, &b);
    eventually("it may be promoted", || priority(&b) == 100);
}

#[test]
fn foreign_master_needs_force_and_dropped_data_is_kept() {
    let (master, other) = (TestServer::with(small), TestServer::with(small));
    master.connection().hset::<_, _, _, ()>("post:1", "like", 1).unwrap();
    other.connection().hset::<_, _, _, ()>("post:2", "like", 2).unwrap();
    follow(&other, &master);
    let mut connection = other.connection();
    eventually("it refuses", || {
        info(&mut connection, "master_link_error")
            .is_some_and(|e| e.contains("a different data set"))
    });
    assert_eq!(info(&mut connection, "slave_priority").as_deref(), Some("0"));
    assert_eq!(likes(&other, 1..3), [None, Some(2)], "writes were dropped");
    let port = master.port().to_string();
    redis::cmd("REPLICAOF")
        .arg("127.0.0.1")
        .arg(port)
        .arg("FORCE")
        .query::<()>(&mut connection)
        .unwrap();
    wait_for_sync(&master, &other);
    assert_eq!(likes(&other, 1..3), [Some(1), None]);
    assert_eq!(dropped(&other).len(), 1, "the dropped writes are in a file");
}

/// A master restored from an older backup: neither its name nor its former role is a reason for the
/// replica to discard newer data.
#[test]
fn master_with_older_data_is_refused_unless_forced() {
    let always = |config: &mut Config| {
        small(config);
        config.durability.fsync = Fsync::Always;
    };
    let (master, replica) = (TestServer::with(always), TestServer::with(always));
    master.connection().hset::<_, _, _, ()>("post:1", "like", 1).unwrap();
    follow(&replica, &master);
    wait_for_sync(&master, &replica);
    let older = master.killed();
    // A replica cannot know whether its master had synced the last batch.
    for likes in [1, 2] {
        master.connection().hset::<_, _, _, ()>("post:2", "like", likes).unwrap();
    }
    wait_for_sync(&master, &replica);
    drop(master);
    follow(&replica, &older);
    let mut connection = replica.connection();
    eventually("it refuses", || {
        let error = info(&mut connection, "master_link_error");
        error.is_some_and(|e| e.contains("history ends or diverges before ours"))
    });
    assert_eq!((priority(&replica), likes(&replica, 1..3)), (0, vec![Some(1), Some(2)]));
    assert!(dropped(&replica).is_empty());
    let port = older.port().to_string();
    redis::cmd("REPLICAOF")
        .arg("127.0.0.1")
        .arg(port)
        .arg("FORCE")
        .query::<()>(&mut connection)
        .unwrap();
    wait_for_sync(&older, &replica);
    assert_eq!((priority(&replica), likes(&replica, 1..3)), (100, vec![Some(1), None]));
    assert_eq!(dropped(&replica).len(), 1, "the dropped writes are in a file");
}

/// Returns the folders with discarded data.
fn dropped(server: &TestServer) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(server.folder()).unwrap().map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("dropped-"))
        .collect()
}

/// Snapshots have replaced the beginning of the log, so the node must also save the snapshots.
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
        other
            .connection()
            .hset::<_, _, _, ()>(format!("post:{}", 10 + round), "like", round)
            .unwrap();
        redis::cmd("SAVE").query::<()>(&mut other.connection()).unwrap();
        other = other.stopped().started();
    }
    other.connection().hset::<_, _, _, ()>("post:20", "like", 20).unwrap();
    assert!(!other.folder().join("log-0000000000000001.tlog").exists(), "the log is not whole");
    // Repeating the command changes nothing.
    let port = master.port().to_string();
    for _ in 0..3 {
        redis::cmd("REPLICAOF")
            .arg("127.0.0.1")
            .arg(&port)
            .arg("FORCE")
            .query::<()>(&mut other.connection())
            .unwrap();
        wait_for_sync(&master, &other);
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
fn old_master_drops_its_own_writes_to_follow_promoted_replica() {
    let nodes: Vec<TestServer> = (0..3).map(|_| TestServer::with(small)).collect();
    let [a, b, c] = &nodes[..] else { unreachable!() };
    a.connection().hset::<_, _, _, ()>("post:1", "like", 1).unwrap();
    follow(b, a);
    wait_for_sync(a, b);
    // Build a chain of replicas.
    follow(c, b);
    wait_for_sync(a, b);
    wait_for_sync(a, c);
    assert_eq!(likes(c, 1..2), [Some(1)]);
    detach(b);
    // Both nodes are masters for a while.
    b.connection().hset::<_, _, _, ()>("post:2", "like", 22).unwrap();
    a.connection().hset::<_, _, _, ()>("post:3", "like", 33).unwrap();
    redis::cmd("WAITAOF").arg(1).arg(0).arg(5000).query::<()>(&mut a.connection()).unwrap();
    let full_syncs = number(c, "repl_full_syncs");
    wait_for_sync(b, c);
    assert_eq!(number(c, "repl_full_syncs"), full_syncs, "the sibling went on");
    follow(a, b);
    wait_for_sync(b, a);
    for node in &nodes {
        assert_eq!(likes(node, 1..4), [Some(1), Some(22), None]);
    }
    // Data that only `a` had is kept in a file.
    assert_eq!(dropped(a).len(), 1);
}
