//! Promotion of a connected replica by REPLICAOF NO ONE: the master steps down first.

use super::{follow, info, number, small, wait_for_sync};
use redis::Commands;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use tidemark_server::config::{Config, Fsync};
use tidemark_tests::{TestServer, eventually};

fn no_one(server: &TestServer) {
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").query::<()>(&mut server.connection()).unwrap();
}

/// Sends increments, and adds members to two sets in a transaction, until the server refuses a
/// write or `is_over` is set. Returns the numbers of acknowledged writes.
fn write(server: &TestServer, number: u64, is_over: &AtomicBool) -> [u64; 2] {
    let (mut connection, mut done) = (server.connection(), [0, 0]);
    while !is_over.load(SeqCst) {
        if let Err(error) = connection.hincr::<_, _, _, i64>("post:7", "like", 1) {
            assert!(error.to_string().to_lowercase().contains("read only"), "{error}");
            break;
        }
        done[0] += 1;
        let member = done[1] + 1;
        let mut both = redis::pipe();
        both.atomic().sadd(format!("liked:{number}"), member).sadd("liked:7", member);
        // The client library reports a refused transaction in several ways.
        if both.query::<()>(&mut connection).is_err() {
            break;
        }
        done[1] += 1;
    }
    done
}

#[test]
fn promoted_replica_has_every_acknowledged_write() {
    for fsync in [Fsync::Always, Fsync::Everysec, Fsync::No] {
        let with = |config: &mut Config| {
            small(config);
            config.durability.fsync = fsync;
        };
        let nodes = [TestServer::with(with), TestServer::with(with)];
        follow(&nodes[1], &nodes[0]);
        wait_for_sync(&nodes[0], &nodes[1]);
        let full_syncs = nodes.each_ref().map(|node| number(node, "repl_full_syncs"));
        let mut likes = 0;
        for round in 0..6 {
            let (old, new) = (&nodes[round % 2], &nodes[1 - round % 2]);
            let numbers = [0, 1].map(|writer| 1000 + round as u64 * 10 + writer);
            let is_over = AtomicBool::new(false);
            let done: Vec<[u64; 2]> = std::thread::scope(|scope| {
                let writers = numbers.map(|number| {
                    let is_over = &is_over;
                    scope.spawn(move || write(old, number, is_over))
                });
                std::thread::sleep(std::time::Duration::from_millis(50));
                no_one(new);
                new.connection().hincr::<_, _, _, ()>("post:8", "like", 1).unwrap();
                // Writes that the old master acknowledged from here on would be lost.
                std::thread::sleep(std::time::Duration::from_millis(50));
                is_over.store(true, SeqCst);
                writers.into_iter().map(|writer| writer.join().unwrap()).collect()
            });
            likes += done.iter().map(|done| done[0]).sum::<u64>();
            let mut connection = new.connection();
            let held: u64 = connection.hget("post:7", "like").unwrap();
            assert_eq!(held, likes, "{fsync:?}, round {round}");
            for (number, done) in numbers.iter().zip(&done) {
                let members: Vec<u64> = (1..=done[1]).collect();
                for some in members.chunks(1000) {
                    let set: Vec<bool> = redis::cmd("SMISMEMBER")
                        .arg(format!("liked:{number}"))
                        .arg(some)
                        .query(&mut connection)
                        .unwrap();
                    assert!(set.iter().all(|&is_set| is_set), "{fsync:?}, round {round}");
                }
            }
            wait_for_sync(new, old);
            assert_eq!(info(&mut old.connection(), "role").as_deref(), Some("slave"));
        }
        let now = nodes.each_ref().map(|node| number(node, "repl_full_syncs"));
        assert_eq!(now, full_syncs, "a node did a full sync");
    }
}

/// A handover request contains the end of the master's log; a replica that lacks part of the log
/// stays a replica.
#[test]
fn replica_that_lacks_the_end_of_the_log_takes_no_role() {
    let nodes = [TestServer::with(small), TestServer::with(small)];
    follow(&nodes[1], &nodes[0]);
    wait_for_sync(&nodes[0], &nodes[1]);
    let mut raw = nodes[1].raw();
    let refusal = raw.ask(&["TM.REPLICATE", "0"]);
    let version = refusal.split(' ').nth(5).unwrap();
    let field = |name: &str| info(&mut nodes[1].connection(), name).unwrap();
    let (replid, term) = (field("master_replid"), field("repl_term"));
    let beyond = (number(&nodes[1], "slave_repl_offset") + 1).to_string();
    let order = ["TM.REPLICATE", version, "FAILOVER", &beyond, &replid[..32], &term];
    let said = raw.ask(&order);
    assert!(said.contains("this replica's log ends at"), "{said}");
    assert_eq!(field("role"), "slave");
}

/// The master does not step down for a replica of its replica.
#[test]
fn end_of_a_chain_is_promoted_with_what_it_has() {
    let nodes = [(); 3].map(|()| TestServer::with(small));
    follow(&nodes[1], &nodes[0]);
    wait_for_sync(&nodes[0], &nodes[1]);
    follow(&nodes[2], &nodes[1]);
    nodes[0].connection().hset::<_, _, _, ()>("post:1", "like", 1).unwrap();
    wait_for_sync(&nodes[0], &nodes[2]);
    no_one(&nodes[2]);
    nodes[2].connection().hset::<_, _, _, ()>("post:1", "like", 2).unwrap();
    nodes[0].connection().hset::<_, _, _, ()>("post:1", "like", 3).unwrap();
    wait_for_sync(&nodes[0], &nodes[1]);
    let role = |node: &TestServer| info(&mut node.connection(), "role");
    assert_eq!(
        nodes.each_ref().map(role),
        ["master", "slave", "master"].map(|it| Some(it.to_owned()))
    );
}

/// Publishes a hello of a Sentinel with this name and master port.
fn hello(server: &TestServer, name: &str, port: u16) {
    let text = format!("127.0.0.1,26379,{},9,m,127.0.0.1,{port},3", name.repeat(40));
    redis::cmd("PUBLISH")
        .arg("__sentinel__:hello")
        .arg(text)
        .query::<()>(&mut server.connection())
        .unwrap();
}

#[test]
fn failover_announces_the_new_master_to_sentinels() {
    let [old, new] = [(); 2].map(|()| TestServer::with(small));
    follow(&new, &old);
    wait_for_sync(&old, &new);
    let failover =
        || redis::cmd("FAILOVER").query::<()>(&mut old.connection()).map_err(|e| e.to_string());
    hello(&old, "a", old.port());
    let refused = failover().unwrap_err();
    assert!(refused.contains("use SENTINEL FAILOVER m"), "{refused}");
    for node in [&old, &new] {
        for name in ["a", "b", "c"] {
            hello(node, name, old.port());
        }
    }
    let mut ear = new.raw();
    ear.request(&["SUBSCRIBE", "__sentinel__:hello"]).take(46);
    failover().unwrap();
    for name in ["c", "b"] {
        let wanted =
            format!("127.0.0.1,26379,{},10,m,127.0.0.1,{},10", name.repeat(40), new.port());
        eventually("it is announced", || ear.line() == wanted);
    }
    new.connection().hset::<_, _, _, ()>("post:1", "like", 1).unwrap();
}
