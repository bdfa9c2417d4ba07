//! `tm:changes` through the stream commands of stock clients.

use std::path::Path;
use std::process::Command;
use tidemark_tests::{TestServer, eventually};

fn run(c: &mut redis::Connection, words: &str) -> redis::Value {
    let mut words = words.split(' ');
    redis::cmd(words.next().unwrap()).arg(words.collect::<Vec<_>>()).query(c).unwrap()
}

#[test]
fn redis_py_reads_changes_in_both_protocols() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for client in ["redis-py-5", "redis-py-new"] {
        let server = TestServer::with(|config| {
            config.durability.fsync = tidemark_server::config::Fsync::Always;
        });
        let mut python = Command::new(root.join("target/clients").join(client).join("bin/python"));
        python.arg("-B").arg(root.join("tests/clients/changes.py")).arg(server.port().to_string());
        let done = python.output().expect("run tests/clients/setup once");
        let said = String::from_utf8_lossy(&done.stdout);
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && said == "done\n", "{client}: {said}\n{err}");
    }
}

/// Blocked consumers of a group are served in the order in which they began to wait.
#[test]
fn who_waits_longest_for_a_group_is_served_first() {
    let server = TestServer::with(|config| {
        config.server.workers = 2;
        config.durability.fsync = tidemark_server::config::Fsync::Always;
    });
    let mut c = server.connection();
    run(&mut c, "HSET post:1 like 1");
    for round in 0..15 {
        let group = format!("g{round}");
        run(&mut c, &format!("XGROUP CREATE tm:changes:post {group} $ MKSTREAM"));
        let mut waiting = Vec::new();
        for (number, consumer) in ["one", "two", "three"].into_iter().enumerate() {
            let mut raw = server.raw();
            let words = format!(
                "XREADGROUP GROUP {group} {consumer} BLOCK 60000 STREAMS tm:changes:post >"
            );
            raw.request(&words.split(' ').collect::<Vec<_>>());
            waiting.push(raw);
            eventually("the client is blocked", || {
                let info: String = redis::cmd("INFO").arg("clients").query(&mut c).unwrap();
                info.contains(&format!("blocked_clients:{}\r\n", number + 1))
            });
        }
        for served in 1..=3 {
            run(&mut c, "HINCRBY post:1 like 1");
            let mut consumers: Vec<String> = Vec::new();
            eventually("the entry is delivered", || {
                let pending: Vec<(String, String, u64, u64)> = redis::cmd("XPENDING")
                    .arg(&["tm:changes:post", &group, "-", "+", "10"])
                    .query(&mut c)
                    .unwrap();
                consumers = pending.into_iter().map(|(_, consumer, ..)| consumer).collect();
                consumers.len() == served
            });
            assert_eq!(consumers, ["one", "two", "three"][..served], "round {round}");
        }
    }
}

/// Snapshots must contain the groups, because the older log may be removed.
#[test]
fn group_survives_snapshots_and_restarts() {
    let mut server = TestServer::with(|config| config.durability.keep_log_bytes = 0);
    run(&mut server.connection(), "XGROUP CREATE tm:changes:post g $ MKSTREAM");
    // The second snapshot removes the log of the first process.
    for _ in 0..2 {
        run(&mut server.connection(), "HINCRBY post:1 like 1");
        run(&mut server.connection(), "SAVE");
        server = server.restart();
    }
    let reply = run(&mut server.connection(), "XINFO GROUPS tm:changes:post");
    let redis::Value::Array(groups) = reply else { panic!("{reply:?}") };
    assert_eq!(groups.len(), 1, "{groups:?}");
}
