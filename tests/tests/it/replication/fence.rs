//! Tests of fencing: which events confirm a node as master after a restart or with Sentinels.

use super::{detach, follow, number, small, wait_for_sync};
use redis::Commands;
use tidemark_tests::{TestServer, eventually};

/// Publishes a Sentinel's hello with the master's port and config epoch.
fn hello(server: &TestServer, port: u16, epoch: u64) {
    let text = format!("127.0.0.1,26379,{},9,m,127.0.0.1,{port},{epoch}", "a".repeat(40));
    redis::cmd("PUBLISH")
        .arg("__sentinel__:hello")
        .arg(text)
        .query::<()>(&mut server.connection())
        .unwrap();
}

/// Tests the role of a master that is restarted, replaced, chosen again, and abandoned by all
/// Sentinels.
#[test]
fn master_takes_writes_while_sentinels_name_it() {
    let (master, replica) = (TestServer::with(small), TestServer::with(small));
    let other = replica.port();
    follow(&replica, &master);
    wait_for_sync(&master, &replica);
    drop(replica);
    let master = master.stopped().started();
    let own = master.port();
    let write =
        || master.connection().hset::<_, _, _, ()>("post:1", "like", 1).map_err(|e| e.to_string());
    let refused = |why: &str| {
        let error = write().unwrap_err();
        assert!(error.contains(why), "{error}");
    };
    for nonsense in
        ["", "a,b", "127.0.0.1,1,a,1,m,127.0.0.1,99999999,1", "127.0.0.1,1,a,1,m,127.0.0.1,x,-1"]
    {
        redis::cmd("PUBLISH")
            .arg("__sentinel__:hello")
            .arg(nonsense)
            .query::<()>(&mut master.connection())
            .unwrap();
    }
    refused("fenced until its role is known");
    // One Sentinel announces another node as the master. A second Sentinel was offline during that
    // election and still announces this node, in an older epoch.
    hello(&master, other, 6);
    hello(&master, own, 5);
    refused("fenced until its role is known");
    hello(&master, own, 7);
    eventually("the disk has it", || write().is_ok());
    hello(&master, other, 7);
    write().unwrap();
    hello(&master, other, 8);
    refused("Sentinel has made another node the master");
    assert_eq!(number(&master, "repl_fenced"), 1);
    let given_away =
        redis::cmd("FAILOVER").query::<()>(&mut master.connection()).unwrap_err().to_string();
    assert!(
        given_away.contains("not valid on a fenced node"),
        "the fenced node gave slots away: {given_away}"
    );
    // A replica that does not know of the change cannot confirm the master; a newer epoch can.
    let late = TestServer::with(small);
    follow(&late, &master);
    wait_for_sync(&master, &late);
    hello(&master, own, 7);
    refused("Sentinel has made another node the master");
    hello(&master, own, 9);
    eventually("the disk has it", || write().is_ok());
    assert_eq!(number(&master, "repl_fenced"), 0);
    // Without a reachable Sentinel, an operator or a following replica confirms.
    hello(&master, other, 10);
    refused("Sentinel has made another node the master");
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").query::<()>(&mut master.connection()).unwrap();
    write().unwrap();
    let master = master.stopped().started();
    let again = || master.connection().hset::<_, _, _, ()>("post:1", "like", 1).is_ok();
    assert!(!again() || number(&master, "connected_slaves") == 1);
    eventually("a replica follows, and that is enough", again);
}

/// Master and replica return together after a Sentinel has promoted another node; the replica still
/// follows the old master, which must stay fenced.
#[test]
fn returning_replica_lifts_no_fence_set_by_sentinels() {
    let (master, replica) = (TestServer::with(small), TestServer::with(small));
    follow(&replica, &master);
    wait_for_sync(&master, &replica);
    hello(&master, master.port(), 5);
    let role = master.folder().join("tidemark.role");
    let is_kept = || std::fs::read_to_string(&role).is_ok_and(|text| text.contains("sentinel 5 "));
    eventually("the disk has it", is_kept);
    let master = master.stopped().started();
    wait_for_sync(&master, &replica);
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
    // A node that was promoted in the meantime and restarted also cannot confirm itself as master.
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").query::<()>(&mut replica.connection()).unwrap();
    write(&replica).unwrap();
    let replica = replica.stopped().started();
    refused(&replica);
    hello(&replica, replica.port(), 6);
    eventually("the disk has it", || write(&replica).is_ok());
}

/// Regression test: the second of two failovers returned to the old master before Sentinel had
/// reconfigured it. REPLICAOF NO ONE had no effect on that node. The other nodes had a later term
/// and never followed that node again. Sentinel may also send no REPLICAOF NO ONE at all, because
/// the node already reports that it is a master.
#[test]
fn replicas_follow_a_master_that_is_promoted_again() {
    for is_told in [true, false] {
        let [old, new, third] = [0; 3].map(|_| TestServer::with(small));
        for replica in [&new, &third] {
            follow(replica, &old);
            wait_for_sync(&old, replica);
        }
        hello(&old, old.port(), 5);
        eventually("the disk has it", || number(&old, "repl_sentinel_groups") == 1);
        let no_one = |server: &TestServer| {
            let mut connection = server.connection();
            redis::cmd("REPLICAOF").arg("NO").arg("ONE").query::<()>(&mut connection).unwrap();
        };
        let write = |server: &TestServer, key| {
            server.connection().hset::<_, _, _, ()>(key, "like", 1).is_ok()
        };
        detach(&new);
        follow(&third, &new);
        eventually("the node accepts writes", || write(&new, "post:2"));
        wait_for_sync(&new, &third);
        hello(&old, new.port(), 6);
        assert!(!write(&old, "post:3"), "the old master accepted a write");
        if is_told {
            no_one(&old);
        }
        hello(&old, old.port(), 7);
        eventually("the node is a master again", || write(&old, "post:3"));
        let old = old.stopped().started();
        hello(&old, old.port(), 7);
        eventually("it still is after a start", || write(&old, "post:4"));
        for replica in [&new, &third] {
            follow(replica, &old);
            wait_for_sync(&old, replica);
            assert!(replica.connection().hexists::<_, _, bool>("post:4", "like").unwrap());
        }
    }
}

/// A master demoted by Sentinel disconnects its clients immediately; otherwise the clients would
/// get READONLY errors for eight seconds. Sentinels stay connected. A client that connects later is
/// disconnected after its first write.
#[test]
fn a_master_that_sentinel_deposes_parts_with_its_clients() {
    let server = TestServer::with(small);
    let mut sentinel = server.raw();
    sentinel.request(&["CLIENT", "SETNAME", "sentinel-0a1b2c3d-cmd"]).expect("+OK\r\n");
    let mut ear = server.raw();
    ear.request(&["CLIENT", "SETNAME", "sentinel-0a1b2c3d-pubsub"]).expect("+OK\r\n");
    ear.request(&["SUBSCRIBE", "__sentinel__:hello"]).take(46);
    let (mut idle, mut listener) = (server.raw(), server.raw());
    idle.request(&["HSET", "post:1", "like", "1"]).expect(":1\r\n");
    listener.request(&["SUBSCRIBE", "news"]).line();
    hello(&server, server.port(), 1);
    eventually("the disk has it", || number(&server, "repl_sentinel_groups") == 1);
    idle.request(&["HGET", "post:1", "like"]).expect("$1\r\n1\r\n");
    hello(&server, 1, 2);
    assert_eq!(idle.rest(), "");
    assert!(!listener.rest().contains("message"));
    sentinel.request(&["PING"]).expect("+PONG\r\n");
    // Reads are not limited.
    let mut late = server.raw();
    for _ in 0..3 {
        late.request(&["HGET", "post:1", "like"]).expect("$1\r\n1\r\n");
    }
    let refused = late.request(&["HSET", "post:1", "like", "2"]).rest();
    assert!(refused.starts_with("-READONLY Sentinel has made"), "{refused}");
    let mut in_transaction = server.raw();
    in_transaction.request(&["MULTI"]).expect("+OK\r\n").request(&["HSET", "post:1", "like", "2"]);
    assert!(in_transaction.rest().starts_with("-READONLY"));
    // A node that is chosen again keeps its clients.
    hello(&server, server.port(), 3);
    eventually("the disk has it", || {
        let written = server.raw().ask(&["HSET", "post:1", "like", "2"]);
        written == ":0"
    });
}
