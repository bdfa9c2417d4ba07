//! Changes of role, and conditions that a master imposes on replicas.

use super::{follow, follow_port, info, likes, number, relay, small, wait_for_sync};
use crate::admin::{get, with_admin};
use redis::Commands;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use tidemark_server::config::{Config, Fsync};
use tidemark_tests::{TestServer, eventually};

/// REPLICAOF followed immediately by REPLICAOF NO ONE leaves the node as it was.
#[test]
fn an_order_that_is_taken_back_at_once_leaves_a_master() {
    let server = TestServer::with(small);
    let mut connection = server.connection();
    for round in 0..50 {
        let mut orders = redis::pipe();
        orders.cmd("REPLICAOF").arg("127.0.0.1").arg(1).cmd("REPLICAOF").arg("NO").arg("ONE");
        orders.query::<()>(&mut connection).unwrap();
        connection.hset::<_, _, _, ()>(format!("post:{round}"), "like", 1).unwrap();
    }
    assert_eq!(likes(&server, 0..50), [Some(1); 50]);
}

/// After the reply to REPLICAOF NO ONE no write is refused, as in Redis, although the new master
/// must first begin a log. Clients write while the role changes repeatedly; exactly the
/// acknowledged writes remain.
#[test]
fn a_client_of_a_new_master_may_write() {
    let server = TestServer::with(small);
    let (mut operator, mut stays) = (server.raw(), server.raw());
    let over = AtomicBool::new(false);
    let like =
        |post: u64| tidemark_tests::request(&["HINCRBY", &format!("post:{post}"), "like", "1"]);
    let acknowledged: i64 = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let (mut pipeline, mut acknowledged) = (server.raw(), 0);
                    while !over.load(SeqCst) {
                        pipeline.send([like(1), like(1), like(1), like(1)].concat());
                        for _ in 0..4 {
                            let said = pipeline.line();
                            acknowledged += i64::from(said.starts_with(':'));
                            assert!(
                                said.starts_with(':')
                                    || said.starts_with("-READONLY You can't write"),
                                "{said}"
                            );
                        }
                    }
                    acknowledged
                })
            })
            .collect();
        let mut offset = 0;
        for round in 1..=40u64 {
            let now = number(&server, "master_repl_offset");
            assert!(now >= offset, "an offset never falls: {offset}, {now}");
            offset = now;
            assert!(operator.ask(&["REPLICAOF", "127.0.0.1", "1"]).starts_with("+OK"));
            assert!(stays.ask(&["HINCRBY", "post:2", "like", "1"]).starts_with("-READONLY"));
            if round % 2 == 0 {
                assert_eq!(operator.ask(&["REPLICAOF", "NO", "ONE"]), "+OK");
                assert_eq!(stays.ask(&["HINCRBY", "post:2", "like", "1"]), format!(":{round}"));
            } else {
                // Send both requests in one packet, so that the write follows the role change
                // immediately.
                operator
                    .send([tidemark_tests::request(&["REPLICAOF", "NO", "ONE"]), like(2)].concat());
                assert_eq!(
                    [operator.line(), operator.line()],
                    ["+OK".to_owned(), format!(":{round}")]
                );
            }
            let words: [&[&str]; 3] = [&["MULTI"], &["HINCRBY", "post:3", "like", "1"], &["EXEC"]];
            stays.send(words.map(tidemark_tests::request).concat());
            let wanted =
                ["+OK".to_owned(), "+QUEUED".to_owned(), "*1".to_owned(), format!(":{round}")];
            assert_eq!([(); 4].map(|()| stays.line()), wanted);
        }
        over.store(true, SeqCst);
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    });
    assert!(acknowledged > 0);
    let wanted = [Some(acknowledged), Some(40), Some(40)];
    assert_eq!(likes(&server, 1..4), wanted);
    assert_eq!(likes(&server.restart(), 1..4), wanted);
}

/// Without a write since startup or promotion, replicas count as up to date.
#[test]
fn wait_counts_replicas_before_the_first_write() {
    let always = |config: &mut Config| {
        small(config);
        config.durability.fsync = Fsync::Always;
    };
    let (a, b) = (TestServer::with(always), TestServer::with(always));
    a.connection().hset::<_, _, _, ()>("post:1", "like", 1).unwrap();
    follow(&b, &a);
    wait_for_sync(&a, &b);
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

/// REPLICAOF during a change of role does not wait for the clients that this change blocks.
#[test]
fn roles_change_as_fast_as_they_are_told() {
    let server = TestServer::with(small);
    let mut connection = server.connection();
    for _ in 0..100 {
        for to in [["127.0.0.1", "1"], ["NO", "ONE"]] {
            redis::cmd("REPLICAOF").arg(&to).query::<()>(&mut connection).unwrap();
        }
    }
    connection.hset::<_, _, _, ()>("post:1", "like", 1).unwrap();
    assert_eq!(likes(&server, 1..2), [Some(1)]);
}

#[test]
fn a_master_admits_permitted_replicas_up_to_its_limit() {
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
    // A full sync may close connections.
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
    // Use a user that only has the right to replicate.
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
    eventually("the node accepts writes", || !refused(&master));
    let stopped = replica.stopped();
    eventually("it refuses again", || refused(&master));
    drop(stopped);
    let set = |name: &str, value: &str| {
        redis::cmd("CONFIG")
            .arg("SET")
            .arg(name)
            .arg(value)
            .query::<()>(&mut master.connection())
            .unwrap();
    };
    set("min-replicas-to-write", "0");
    assert!(!refused(&master), "from now on");
    // A silent replica no longer counts toward `min_replicas_to_write`.
    let link = relay(master.port());
    let replica = TestServer::with(small);
    follow_port(&replica, link.port);
    wait_for_sync(&master, &replica);
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

/// A master returns with an empty folder: the replica keeps its data, and the master is not ready
/// until the replica follows.
#[test]
fn an_empty_master_whose_replica_has_data_is_not_ready() {
    let (master, admin) = with_admin(small);
    let replica = TestServer::with(small);
    let mut connection = master.connection();
    (1..100).for_each(|id| connection.hset(format!("post:{id}"), "like", id).unwrap());
    follow(&replica, &master);
    wait_for_sync(&master, &replica);
    assert_eq!(get(admin, "/readyz", &[]).status, 200);
    let master = master.restart_with(|config| {
        for file in std::fs::read_dir(&config.durability.dir).unwrap() {
            std::fs::remove_file(file.unwrap().path()).unwrap();
        }
    });
    follow(&replica, &master);
    eventually("the replica refuses", || number(&master, "repl_refusing_replicas") == 1);
    let answer = get(admin, "/readyz", &[]);
    assert!(answer.status == 503 && answer.body.contains("refuses to follow"), "{}", answer.body);
    let gauge = "tidemark_replication_refusing_replicas 1\n";
    assert!(get(admin, "/metrics", &[]).body.contains(gauge));
    assert_eq!(likes(&replica, 7..8), [Some(7)]);
    // The operator decides to keep the master's data.
    redis::cmd("REPLICAOF")
        .arg(&["127.0.0.1", &master.port().to_string(), "FORCE"])
        .exec(&mut replica.connection())
        .unwrap();
    eventually("the replica is connected", || get(admin, "/readyz", &[]).status == 200);
    assert_eq!(number(&master, "repl_refusing_replicas"), 0);
}

/// REPLICAOF to a Redis server is reverted, and the error lists the alternatives.
#[test]
fn replicaof_to_redis_is_reverted_with_an_error() {
    let redis = crate::beside_redis::redis();
    let server = TestServer::with(small);
    let mut connection = server.connection();
    connection.hset::<_, _, _, ()>("post:1", "like", 1).unwrap();
    follow_port(&server, redis.port);
    let asked = |field: &str| info(&mut server.connection(), field);
    eventually("it is told why", || asked("repl_last_error").is_some());
    let error = asked("repl_last_error").unwrap();
    for word in ["tidemark import", "redis-cli --pipe", "RedisShake"] {
        assert!(error.contains(word), "{error}");
    }
    eventually("the node accepts writes", || {
        server.connection().hincr::<_, _, _, i64>("post:1", "like", 1).is_ok()
    });
    assert_eq!(likes(&server, 1..2), [Some(2)]);
    assert_eq!(asked("role").as_deref(), Some("master"));
    let role: redis::Value = redis::cmd("ROLE").query(&mut server.connection()).unwrap();
    assert!(format!("{role:?}").contains("master"));
    // The next REPLICAOF clears the error.
    let master = TestServer::with(small);
    follow(&server, &master);
    assert_eq!(asked("repl_last_error"), None);
}

/// A node that is configured as a replica remains a replica and shows the same error.
#[test]
fn configured_replica_of_redis_reports_the_alternatives() {
    let redis = crate::beside_redis::redis();
    let port = redis.port;
    let server = TestServer::with(|config| {
        small(config);
        config.replication.replicaof = format!("127.0.0.1 {port}");
    });
    let asked = |field: &str| info(&mut server.connection(), field).unwrap_or_default();
    eventually("the error names the reason", || {
        asked("master_link_error").contains("tidemark import")
    });
    assert_eq!((asked("role"), asked("master_link_status")), ("slave".into(), "down".into()));
    // The node does not retry every second.
    assert!(asked("master_link_retry_seconds").parse::<u64>().unwrap() > 30);
}

/// The reverse case: a Redis configured to follow this server.
#[test]
fn redis_as_our_replica_gets_an_error_with_alternatives() {
    let redis = crate::beside_redis::redis();
    let server = TestServer::with(small);
    let mut at_redis =
        ::redis::Client::open(("127.0.0.1", redis.port)).unwrap().get_connection().unwrap();
    ::redis::cmd("REPLICAOF")
        .arg("127.0.0.1")
        .arg(server.port())
        .query::<()>(&mut at_redis)
        .unwrap();
    eventually("it has asked", || {
        info(&mut server.connection(), "repl_last_error")
            .is_some_and(|error| error.contains("SCAN and HGETALL") && error.contains("--pipe"))
    });
    // Redis retries once a second, not in a tight loop.
    let accepted =
        || -> u64 { ::redis::cmd("CLIENT").arg("ID").query(&mut server.connection()).unwrap() };
    let before = accepted();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let more = accepted() - before;
    assert!(more <= 8, "{more} connections in 1.5 s");
    let refused = ::redis::cmd("PSYNC").arg("?").arg(-1).query::<()>(&mut server.connection());
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("a Redis server cannot replicate from Tidemark"), "{refused}");
}
