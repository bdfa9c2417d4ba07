//! Replication lag: INFO on both sides, and WAIT and WAITAOF where they cannot block.

use super::{follow, follow_port, info, number, relay, small, wait_for_sync};
use redis::Value;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tidemark_tests::{TestServer, eventually};

fn fill(master: &TestServer, ids: std::ops::Range<u64>) {
    let mut pipe = redis::pipe();
    ids.for_each(|id| {
        pipe.hset(format!("post:{}", id * 7919), "like", id + 1).ignore();
    });
    pipe.query::<()>(&mut master.connection()).unwrap();
}

/// Returns a field that the master reports about its replica.
fn fed(master: &TestServer, key: &str) -> u64 {
    let said = info(&mut master.connection(), "slave0").unwrap_or_default();
    let value = said.split(',').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
    value.and_then(|n| n.parse().ok()).unwrap_or(u64::MAX)
}

#[test]
fn both_ends_say_how_far_a_replica_is_behind() {
    let (master, replica) = (TestServer::with(small), TestServer::with(small));
    let link = relay(master.port());
    fill(&master, 0..1);
    follow_port(&replica, link.port);
    wait_for_sync(&master, &replica);
    eventually("the replica has acknowledged the write", || fed(&master, "lag_bytes") == 0);
    assert!(fed(&master, "lag") <= 3 && number(&replica, "master_last_io_seconds_ago") <= 3);
    assert_eq!(number(&replica, "slave_lag_bytes"), 0);

    // The link is open but forwards nothing.
    link.left.store(0, SeqCst);
    fill(&master, 1..2000);
    eventually("the log grows", || fed(&master, "lag_bytes") > 5_000);
    assert_eq!(
        fed(&master, "lag_bytes"),
        number(&master, "master_repl_offset") - fed(&master, "offset")
    );
    eventually("the master received an acknowledgement", || (2..60).contains(&fed(&master, "lag")));
    eventually("the replica received data", || number(&replica, "master_last_io_seconds_ago") >= 2);
    link.left.store(i64::MAX, SeqCst);
    wait_for_sync(&master, &replica);
    eventually("the replica has acknowledged the write", || fed(&master, "lag_bytes") == 0);

    // After a disconnect the replica knows its lag before it has received the data.
    let away = replica.stopped();
    fill(&master, 2000..6000);
    redis::cmd("WAITAOF").arg(&[1, 0, 0]).query::<()>(&mut master.connection()).unwrap();
    link.left.store(2000, SeqCst);
    let replica = away.started();
    eventually("it knows", || number(&replica, "slave_lag_bytes") > 5_000);
    let behind = number(&replica, "slave_lag_bytes");
    assert_eq!(
        behind,
        number(&master, "master_repl_offset") - number(&replica, "slave_repl_offset")
    );
    link.left.store(i64::MAX, SeqCst);
    wait_for_sync(&master, &replica);
    eventually("the replica has all writes", || {
        (fed(&master, "lag_bytes"), number(&replica, "slave_lag_bytes")) == (0, 0)
    });
    assert_eq!(number(&replica, "repl_full_syncs"), 0, "since the start");
}

#[test]
fn wait_in_a_transaction_answers_at_once() {
    let (master, replica) = (TestServer::with(small), TestServer::with(small));
    follow(&replica, &master);
    wait_for_sync(&master, &replica);
    let exec = |server: &TestServer, words: &[&str]| {
        let mut connection = server.connection();
        connection.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        for words in ["MULTI"].iter().chain(words) {
            let words: Vec<_> = words.split(' ').collect();
            redis::cmd(words[0]).arg(&words[1..]).query::<()>(&mut connection).unwrap();
        }
        redis::cmd("EXEC").query::<Value>(&mut connection)
    };
    let number = |n: i64| Value::Int(n);
    // Outside a transaction this would wait forever, since there are no three replicas.
    let Value::Array(done) =
        exec(&master, &["HINCRBY post:1 like 1", "WAIT 3 0", "WAITAOF 1 3 0"]).unwrap()
    else {
        panic!("EXEC has a reply for each")
    };
    assert_eq!(done[..2], [number(1), number(1)], "the replica has the earlier writes");
    let Value::Array(local) = &done[2] else { panic!("WAITAOF has two") };
    assert_eq!(local[0], number(0), "writes of an open transaction were synced");
    eventually("both have synced", || {
        let done = exec(&master, &["WAIT 3 0", "WAITAOF 1 3 0"]).unwrap();
        done == Value::Array(vec![number(1), Value::Array(vec![number(1), number(1)])])
    });
    for command in ["WAIT 1 0", "WAITAOF 1 0 0", "WAITAOF 0 1 0"] {
        let words: Vec<_> = command.split(' ').collect();
        let asked =
            || redis::cmd(words[0]).arg(&words[1..]).query::<Value>(&mut replica.connection());
        let refusal = format!("{} cannot be used with replica instances.", words[0]);
        let error = asked().unwrap_err().to_string();
        assert!(error.contains(&refusal), "{error}");
        let error = format!("{:?}", exec(&replica, &[command]));
        assert!(error.contains(&refusal), "{error}");
    }
}
