//! Data that a replica receives: while connected, and after a disconnect.

use super::{follow, likes, number, small, wait_for_sync};
use redis::Commands;
use tidemark_server::config::Config;
use tidemark_tests::TestServer;

#[test]
fn replica_gets_old_and_new_writes_through_restarts() {
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
    wait_for_sync(&master, &replica);
    assert_eq!(likes(&replica, 0..5000), likes(&master, 0..5000));
    assert_eq!(number(&replica, "repl_full_syncs"), 1);
    // Make changes while the replica is connected.
    for id in 0..100u64 {
        at_master.hincr::<_, _, _, ()>(format!("post:{id}"), "like", 1000).unwrap();
    }
    let began = std::time::Instant::now();
    assert_eq!(redis::cmd("WAIT").arg(1).arg(60_000).query::<u64>(&mut at_master).unwrap(), 1);
    assert!(
        began.elapsed() < tidemark_tests::DEFAULT_TIMEOUT,
        "told when it is there, not when the time is over"
    );
    assert_eq!(likes(&replica, 0..200), likes(&master, 0..200));
    let flags: Vec<u64> = redis::cmd("PH.EXISTS")
        .arg("liked")
        .arg(7)
        .arg(&[1, 2, 3, 4])
        .query(&mut replica.connection())
        .unwrap();
    assert_eq!(flags, [1, 1, 1, 0]);
    // Writes are refused with Redis's error text.
    let error =
        replica.connection().hset::<_, _, _, ()>("post:1", "like", 1).unwrap_err().to_string();
    assert!(error.to_lowercase().contains("read only replica"), "{error}");
    let error = redis::cmd("WAIT")
        .arg(1)
        .arg(1)
        .query::<u64>(&mut replica.connection())
        .unwrap_err()
        .to_string();
    assert!(error.contains("WAIT cannot be used with replica instances"), "{error}");
    // The replica misses a change during its restart.
    let replica = replica.stopped();
    at_master.hset::<_, _, _, ()>("post:1", "like", 77).unwrap();
    let replica = replica.started();
    wait_for_sync(&master, &replica);
    assert_eq!(likes(&replica, 0..5000), likes(&master, 0..5000));
    assert_eq!(number(&replica, "repl_full_syncs"), 0, "the replica did a full sync");
}

/// A replica writes its own snapshots, which include its master's changes.
#[test]
fn a_replicas_snapshot_has_what_came_since_its_last_one() {
    let tiny = |config: &mut Config| {
        small(config);
        config.existence.iter_mut().for_each(|space| space.pairs_per_table = 5000);
    };
    let (master, replica) = (TestServer::with(tiny), TestServer::with(tiny));
    follow(&replica, &master);
    wait_for_sync(&master, &replica);
    let call = |server: &TestServer, words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        redis::cmd(words[0])
            .arg(&words[1..])
            .query::<redis::Value>(&mut server.connection())
            .unwrap()
    };
    // Three tables of pairs and of rows; only the changes below touch the first two again.
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
        let done =
            redis::cmd("WAITAOF").arg(&words).query::<[u64; 2]>(&mut master.connection()).unwrap();
        assert_eq!(done, [1, 1]);
    };
    let saved = || {
        call(&replica, "SAVE");
        let names =
            std::fs::read_dir(replica.folder()).unwrap().map(|entry| entry.unwrap().file_name());
        names
            .filter(|name| name.to_string_lossy().ends_with(".tsnap"))
            .collect::<std::collections::BTreeSet<_>>()
    };
    synced_by_both();
    let first = saved();
    let kept = saved().intersection(&first).count();
    assert!(kept >= 4, "tables that have not changed are not written again: {first:?}");
    // Change one row and three pairs per table. The pairs are added, removed, or removed and added
    // again.
    for id in [3u64, 503, 1003] {
        call(&master, &format!("HSET post:{id} like 5"));
        call(&master, &format!("PH.ADD liked 9 {id}"));
        call(&master, &format!("PH.DEL liked 8 {id}"));
        call(&master, &format!("PH.DEL liked 7 {}", id + 1));
        call(&master, &format!("PH.ADD liked 7 {}", id + 1));
    }
    // The log is synced before the snapshot begins, so a restart reads these changes from the
    // snapshot only.
    synced_by_both();
    saved();
    let again = replica.killed();
    let mut connection = again.connection();
    for id in ids {
        let is_changed = id % 500 == 3;
        let likes = if is_changed { 5 } else { 0 };
        let row: [Option<u64>; 2] = redis::cmd("HMGET")
            .arg(format!("post:{id}"))
            .arg(&["like", "read"])
            .query(&mut connection)
            .unwrap();
        assert_eq!(row, [Some(likes), Some(id + 1)], "{id}");
        let flags = ["7", "8", "9"].map(|member| {
            redis::cmd("PH.EXISTS")
                .arg("liked")
                .arg(member)
                .arg(id)
                .query::<[bool; 1]>(&mut connection)
                .unwrap()[0]
        });
        assert_eq!(flags, [true, !is_changed, is_changed], "{id}");
    }
}

#[test]
fn absent_replica_resumes_from_files_after_many_log_rolls() {
    let rolling = |config: &mut Config| {
        small(config);
        config.durability.keep_log_bytes = 1 << 30;
    };
    let master = TestServer::with(rolling);
    let replica = TestServer::with(rolling);
    follow(&replica, &master);
    wait_for_sync(&master, &replica);
    let replica = replica.stopped();
    // Each restart of the master starts a segment.
    let mut master = master;
    for round in 0..20i64 {
        master.connection().hset::<_, _, _, ()>("post:1", "like", round).unwrap();
        master = master.stopped().started();
        // A master that had a replica is fenced until its role is confirmed.
        let error =
            master.connection().hset::<_, _, _, ()>("post:1", "like", 1).unwrap_err().to_string();
        assert!(error.contains("fenced until its role is known"), "{error}");
        redis::cmd("REPLICAOF").arg("NO").arg("ONE").query::<()>(&mut master.connection()).unwrap();
    }
    assert!(segment(&master) >= 20, "{}", segment(&master));
    let replica = replica.started();
    wait_for_sync(&master, &replica);
    assert_eq!(likes(&replica, 0..3), [None, Some(19), None]);
    assert_eq!(number(&replica, "repl_full_syncs"), 0);
}

fn segment(server: &TestServer) -> u64 {
    let text: String =
        redis::cmd("INFO").arg("persistence").query(&mut server.connection()).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("log_written_segment:")).unwrap();
    line.parse().unwrap()
}

#[test]
fn the_stream_of_a_hot_row_is_small() {
    let master = TestServer::with(small);
    let replica = TestServer::with(small);
    follow(&replica, &master);
    // The first batch includes the catalogue.
    let mut connection = master.connection();
    redis::cmd("HINCRBY").arg("post:8").arg("like").arg(1).query::<i64>(&mut connection).unwrap();
    wait_for_sync(&master, &replica);
    let before = number(&master, "master_repl_offset");
    const WRITES: u64 = 1_000_000;
    let began = std::time::Instant::now();
    for _ in 0..WRITES / 5000 {
        let mut pipe = redis::pipe();
        (0..5000).for_each(|_| {
            pipe.hincr("post:7", "like", 1).ignore();
        });
        pipe.query::<()>(&mut connection).unwrap();
    }
    wait_for_sync(&master, &replica);
    assert_eq!(likes(&replica, 7..8), [Some(WRITES as i64)]);
    let bytes = number(&master, "master_repl_offset") - before;
    // Changes are collected for 50 ms and written as a batch of one record, about 56 bytes. The
    // number of batches depends on the duration, not on the number of writes; three more batches
    // allow for the sync and the final seal.
    let batches = began.elapsed().as_millis() as u64 / 50 + 3;
    println!("{bytes} bytes for {WRITES} writes of one row, in at most {batches} batches");
    assert!(
        bytes <= 64 * batches,
        "{bytes} bytes for {WRITES} writes of one row, in at most {batches} batches"
    );
    assert!(bytes < 100_000, "expected kilobytes, found {bytes} bytes");
}

/// Clients of a replica stay connected during schema changes.
#[test]
fn a_schema_changes_on_replicas_while_they_follow() {
    let (master, replica) = (TestServer::with(small), TestServer::with(small));
    follow(&replica, &master);
    wait_for_sync(&master, &replica);
    let (mut at_master, mut at_replica) = (master.connection(), replica.connection());
    let mut alter = |words: &[&str]| {
        redis::cmd("TM.SPACE")
            .arg("ALTER")
            .arg("post")
            .arg(words)
            .query::<()>(&mut at_master)
            .unwrap();
        at_master.hincr::<_, _, _, ()>("post:1", "like", 1).unwrap();
        if words[0] == "ADD" {
            at_master.hset::<_, _, _, ()>("post:1", "share", 40).unwrap();
        }
        assert_eq!(redis::cmd("WAIT").arg(1).arg(5000).query::<u64>(&mut at_master).unwrap(), 1);
    };
    alter(&["ADD", "share:6"]);
    let row: Vec<i64> =
        redis::cmd("HMGET").arg("post:1").arg(&["like", "share"]).query(&mut at_replica).unwrap();
    assert_eq!(row, [1, 40]);
    alter(&["WIDEN", "share:30"]);
    alter(&["DROP", "share"]);
    let fields: Vec<String> = redis::cmd("HKEYS").arg("post:1").query(&mut at_replica).unwrap();
    assert_eq!(
        fields,
        redis::cmd("HKEYS").arg("post:1").query::<Vec<String>>(&mut at_master).unwrap()
    );
    assert!(!fields.contains(&"share".to_owned()), "{fields:?}");
    assert_eq!(at_replica.hget::<_, _, i64>("post:1", "like").unwrap(), 3);
}

#[test]
fn watch_on_a_replica_sees_changes_by_its_master() {
    let (master, replica) = (TestServer::with(small), TestServer::with(small));
    follow(&replica, &master);
    wait_for_sync(&master, &replica);
    let mut at_replica = replica.connection();
    let mut run = |change: Option<(&str, i64)>| {
        redis::cmd("WATCH").arg("post:1").query::<()>(&mut at_replica).unwrap();
        if let Some((key, value)) = change {
            let mut connection = master.connection();
            connection.hset::<_, _, _, ()>(key, "like", value).unwrap();
            assert_eq!(
                redis::cmd("WAIT").arg(1).arg(5000).query::<u64>(&mut connection).unwrap(),
                1
            );
        }
        redis::cmd("MULTI").query::<()>(&mut at_replica).unwrap();
        redis::cmd("HGET").arg("post:1").arg("like").query::<()>(&mut at_replica).unwrap();
        redis::cmd("EXEC").query::<Option<Vec<Option<i64>>>>(&mut at_replica).unwrap()
    };
    assert_eq!(run(None), Some(vec![None]));
    assert_eq!(run(Some(("post:1", 5))), None, "the watched key was changed");
    assert_eq!(run(Some(("post:2", 5))), Some(vec![Some(5)]), "another one was");
}
