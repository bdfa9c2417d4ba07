//! Tests of FAILOVER: handover of the role, and FAILOVER ABORT.

use super::{follow, info, likes, number, small, wait_for_sync};
use redis::Commands;
use tidemark_tests::{TestServer, eventually};

fn port_of(server: &TestServer) -> String {
    server.port().to_string()
}

/// Clients write during the handover; every acknowledged write exists exactly once afterwards.
#[test]
fn failover_hands_the_role_over_and_nothing_is_lost() {
    let (a, b) = (TestServer::with(small), TestServer::with(small));
    let failover = |server: &TestServer, words: &[&str]| {
        redis::cmd("FAILOVER")
            .arg(words)
            .query::<String>(&mut server.connection())
            .map_err(|e| e.to_string())
    };
    let refused = |words: &[&str], why: &str| {
        let error = failover(&a, words).unwrap_err();
        assert!(error.contains(why), "{words:?}: {error}");
    };
    refused(&["ABORT"], "No failover in progress.");
    refused(&[], "requires connected replicas.");
    follow(&b, &a);
    wait_for_sync(&a, &b);
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
                                assert!(
                                    error.to_string().to_lowercase().contains("read only"),
                                    "{error}"
                                );
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
    wait_for_sync(&b, &a);
    assert!(acknowledged > 0);
    assert_eq!(
        (likes(&a, 7..8), likes(&b, 7..8)),
        (vec![Some(acknowledged)], vec![Some(acknowledged)])
    );
    assert_eq!(number(&a, "repl_full_syncs"), 0, "the replica did a full sync");
    let state = info(&mut a.connection(), "master_failover_state");
    assert_eq!(state.as_deref(), Some("no-failover"));
    b.connection().hincr::<_, _, _, ()>("post:7", "like", 1).unwrap();
}

/// A set that replaces another set during the handover exists completely or not at all.
#[test]
fn restore_during_a_failover_is_whole_or_not_at_all() {
    const MEMBERS: u64 = 60_000;
    let source = TestServer::with(small);
    for from in (1..=MEMBERS).step_by(5000) {
        let members: Vec<u64> = (from..from + 5000).collect();
        source.connection().sadd::<_, _, ()>("liked:1", members).unwrap();
    }
    let payload: Vec<u8> =
        redis::cmd("DUMP").arg("liked:1").query(&mut source.connection()).unwrap();
    for round in 0..3u64 {
        let (a, b) = (TestServer::with(small), TestServer::with(small));
        let old: Vec<u64> = (1_000_000..1_001_000).collect();
        a.connection().sadd::<_, _, ()>("liked:1", old).unwrap();
        follow(&b, &a);
        wait_for_sync(&a, &b);
        let port = port_of(&b);
        std::thread::scope(|scope| {
            let restored = scope.spawn(|| {
                let mut restore = redis::cmd("RESTORE");
                restore.arg("liked:1").arg(0).arg(&payload).arg("REPLACE");
                restore.query::<()>(&mut a.connection()).map_err(|error| error.to_string())
            });
            if round > 0 {
                let mut c = a.connection();
                eventually("the old members are gone", || {
                    !c.sismember::<_, _, bool>("liked:1", 1_000_000).unwrap()
                });
            }
            redis::cmd("FAILOVER")
                .arg(&["TO", "127.0.0.1", &port, "TIMEOUT", "20000"])
                .query::<()>(&mut a.connection())
                .unwrap();
            if let Err(error) = restored.join().unwrap() {
                assert!(error.to_lowercase().contains("read only"), "{error}");
            }
        });
        wait_for_sync(&b, &a);
        for server in [&a, &b] {
            let members: u64 = server.connection().scard("liked:1").unwrap();
            let is_old: bool = server.connection().sismember("liked:1", 1_000_000).unwrap();
            let whole = if is_old { 1000 } else { MEMBERS };
            assert_eq!(members, whole, "round {round}");
        }
    }
}

/// FAILOVER ABORT may arrive at any moment around the change of role. A waiting write is executed
/// exactly once.
#[test]
fn failover_abort_at_any_moment_runs_waiting_writes_once() {
    let master = TestServer::with(small);
    // No server listens on the announced port, so the handover stays pending until ABORT.
    let unreachable = TestServer::with(|config| {
        small(config);
        config.replication.replica_announce_port = 1;
    });
    follow(&unreachable, &master);
    wait_for_sync(&master, &unreachable);
    let (mut writer, mut operator) = (master.raw(), master.connection());
    let mut rng = fastrand::Rng::with_seed(11);
    for round in 1..=40u64 {
        // Both commands arrive together, so the write is paused before the failover makes progress.
        let both =
            [&["FAILOVER", "TO", "127.0.0.1", "1"][..], &["HINCRBY", "post:1", "like", "1"][..]];
        writer.send(both.map(tidemark_tests::request).concat());
        writer.expect("+OK\r\n");
        std::thread::sleep(std::time::Duration::from_micros(rng.u64(0..6_000)));
        for to in [["127.0.0.1", "2"], ["NO", "ONE"]] {
            let error = redis::cmd("REPLICAOF")
                .arg(&to)
                .query::<()>(&mut operator)
                .unwrap_err()
                .to_string();
            assert!(error.contains("REPLICAOF not allowed while failing over."), "{error}");
        }
        redis::cmd("FAILOVER").arg("ABORT").query::<()>(&mut operator).unwrap();
        assert_eq!(writer.line(), format!(":{round}"), "the write of round {round}, which waited");
        assert_eq!(info(&mut operator, "role").as_deref(), Some("master"));
        assert_eq!(info(&mut operator, "master_failover_state").as_deref(), Some("no-failover"));
    }
    wait_for_sync(&master, &unreachable);
    assert_eq!(likes(&unreachable, 1..2), [Some(40)]);
    assert_eq!(number(&unreachable, "repl_full_syncs"), 1);
}

/// TM.REPLICATE FAILOVER may come from a master of another data set, and the node must refuse it.
#[test]
fn a_role_is_taken_over_from_the_own_master_only() {
    let (master, replica, stranger) =
        (TestServer::with(small), TestServer::with(small), TestServer::with(small));
    master.connection().hset::<_, _, _, ()>("post:1", "like", 1).unwrap();
    follow(&replica, &master);
    wait_for_sync(&master, &replica);
    let said = |field: &str| info(&mut master.connection(), field).unwrap();
    let (lineage, term) = (said("master_replid")[..32].to_owned(), said("repl_term"));
    let hand = |to: &TestServer, lineage: &str, term: &str| {
        to.raw().ask(&["TM.REPLICATE", "3", "FAILOVER", "0", lineage, term])
    };
    let other_term = format!("{:x}", u64::from_str_radix(&term, 16).unwrap() + (1 << 32));
    for (to, lineage, term) in [
        (&replica, &"0".repeat(32), &term),
        (&replica, &lineage, &other_term),
        (&stranger, &lineage, &term),
    ] {
        let answer = hand(to, lineage, term);
        assert!(answer.starts_with("-NOFAILOVER this replica has a different history"), "{answer}");
    }
    let role = || info(&mut replica.connection(), "role");
    // The replica reads the old master's request after REPLICAOF has given it another master.
    redis::cmd("REPLICAOF")
        .arg("127.0.0.1")
        .arg("1")
        .query::<()>(&mut replica.connection())
        .unwrap();
    assert!(hand(&replica, &lineage, &term).starts_with("-NOMASTERLINK"));
    assert_eq!(role().as_deref(), Some("slave"));
    follow(&replica, &master);
    wait_for_sync(&master, &replica);
    let by_hello = |server: &TestServer| {
        let said: std::collections::HashMap<String, redis::Value> =
            redis::cmd("HELLO").arg(3).query(&mut server.connection()).unwrap();
        redis::from_redis_value::<String>(said["role"].clone()).unwrap()
    };
    assert_eq!((role().as_deref(), by_hello(&replica).as_str()), (Some("slave"), "replica"));
    assert_eq!(hand(&replica, &lineage, &term), "+OK");
    assert_eq!((role().as_deref(), by_hello(&replica).as_str()), (Some("master"), "master"));
    assert_eq!(hand(&replica, &lineage, &term), "+OK", "once more, as if our answer had been lost");

    // The replica, now a master, hands the role over to a third node.
    let next = TestServer::with(small);
    follow(&next, &replica);
    wait_for_sync(&replica, &next);
    redis::cmd("FAILOVER").query::<()>(&mut replica.connection()).unwrap();
    let is_over = || {
        [&replica, &next].map(|node| info(&mut node.connection(), "role").unwrap())
            == ["slave", "master"]
    };
    tidemark_tests::eventually("the next one is the master", is_over);
    wait_for_sync(&next, &replica);
    assert_eq!(hand(&replica, &lineage, &term), "+OK", "the promoted node was asked again");
    assert_eq!(role().as_deref(), Some("slave"));
}
