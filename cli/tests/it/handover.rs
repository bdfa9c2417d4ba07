//! Tests FAILOVER, and crashes of both nodes during a FAILOVER. While the nodes switch roles, both
//! are briefly replicas of each other. One of the two must become the master, with all data.

use client::Reply;
use harness::program::{FIRST, Program, call, refusal, text, until};
use rustix::process::{Pid, Signal, kill_process};
use std::thread::sleep;
use std::time::{Duration, Instant};

fn start(folder: &tempfile::TempDir, port: Option<u16>) -> Program {
    let port = port.map(|port| port.to_string());
    let options: Vec<&str> = ["--fsync", "everysec"]
        .into_iter()
        .chain(port.iter().flat_map(|p| ["--port", p]))
        .collect();
    Program::start_as(&[], folder.path(), &options).unwrap_or_else(|said| panic!("{said:#?}"))
}

fn assert_ok(program: &Program, words: &str) {
    assert_eq!(refusal(&call(&mut program.client(), words)), "", "{words}");
}

fn like() -> String {
    format!("HINCRBY post:{FIRST} like 1")
}

fn likes(program: &Program) -> Reply {
    program.ask(&format!("HGET post:{FIRST} like"))
}

/// Stops the replica and sends FAILOVER to the master. Returns false if the master is still waiting
/// for the replica to reach the end of the log.
fn is_asked_when_stopped(old: &Program, new: &Program) -> bool {
    assert_ok(old, "WAITAOF 1 1 10000");
    kill_process(Pid::from_child(&new.child), Signal::STOP).unwrap();
    assert_ok(old, "FAILOVER");
    let deadline = Instant::now() + Duration::from_secs(2);
    while old.info("role") != "slave" {
        if Instant::now() > deadline {
            return false;
        }
        sleep(Duration::from_millis(10));
    }
    true
}

/// Kills a master and the replica that should take over, before the replica has read the request.
/// Returns the ports of both.
fn killed_between(folders: &[tempfile::TempDir; 2]) -> [u16; 2] {
    let [mut old, mut new] = [start(&folders[0], None), start(&folders[1], None)];
    assert_ok(&old, &like());
    assert_ok(&new, &format!("REPLICAOF 127.0.0.1 {}", old.port));
    until("the replica has all data", || {
        likes(&new) == Reply::BulkString(text(1)) && old.info("slave0").contains("lag_bytes=0")
    });
    // One second after the last write, the master seals the log with a batch. The replica needs
    // this batch before it can take over. If the replica was stopped before it received the seal,
    // let it continue.
    while !is_asked_when_stopped(&old, &new) {
        assert_ok(&old, "FAILOVER ABORT");
        kill_process(Pid::from_child(&new.child), Signal::CONT).unwrap();
        until("the replica has the seal", || old.info("slave0").contains("lag_bytes=0"));
    }
    assert_eq!(old.info("master_failover_state"), "failover-in-progress");
    old.sigkill();
    new.sigkill();
    [old.port, new.port]
}

/// The old master does not respond. Its replica is promoted anyway, and the old master steps down
/// when it responds again.
#[test]
fn hung_master_delays_a_promotion_and_steps_down_later() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [old, new] = [start(&folders[0], None), start(&folders[1], None)];
    assert_ok(&old, &like());
    assert_ok(&new, &format!("REPLICAOF 127.0.0.1 {}", old.port));
    until("the replica is connected", || {
        new.info("master_link_status") == "up" && likes(&new) == Reply::BulkString(text(1))
    });
    old.freeze(true);
    let began = Instant::now();
    assert_ok(&new, "REPLICAOF NO ONE");
    assert_ok(&new, &like());
    let waited = began.elapsed();
    assert!(waited < Duration::from_secs(4), "the promotion took {waited:?}");
    old.freeze(false);
    until("the old master steps down", || {
        old.info("role") == "slave" && old.info("master_link_status") == "up"
    });
    assert!(refusal(&call(&mut old.client(), &like())).starts_with("READONLY"));
    until("the old master has all writes", || likes(&old) == Reply::BulkString(text(2)));
}

#[test]
fn a_handover_that_was_killed_goes_on() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let ports = killed_between(&folders);
    let old = start(&folders[0], Some(ports[0]));
    assert_eq!(
        (old.info("role"), old.info("master_failover_state")),
        ("slave".into(), "failover-in-progress".into())
    );
    assert!(refusal(&call(&mut old.client(), &like())).starts_with("READONLY"));
    let new = start(&folders[1], Some(ports[1]));
    until("the replica is promoted", || {
        new.info("role") == "master" && old.info("master_link_status") == "up"
    });
    assert_eq!(old.info("master_failover_state"), "no-failover");
    until("the node accepts writes", || refusal(&call(&mut new.client(), &like())).is_empty());
    until("the old master has the writes", || likes(&old) == Reply::BulkString(text(2)));
    assert_eq!(
        (old.info("repl_full_syncs"), new.info("repl_full_syncs")),
        ("0".into(), "0".into())
    );
    // The hand-over is complete, so the old master does not request it again at the next start.
    old.kill();
    let old = start(&folders[0], Some(ports[0]));
    assert_eq!(old.info("master_failover_state"), "no-failover");
    until("the node is a connected replica", || old.info("master_link_status") == "up");
}

#[test]
fn killed_handover_ends_by_replica_refusal_or_operator() {
    for by_operator in [false, true] {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let ports = killed_between(&folders);
        let old = start(&folders[0], Some(ports[0]));
        if by_operator {
            // It is unknown whether the replica has received the request.
            let refused = old.ask("FAILOVER ABORT");
            assert!(refusal(&refused).contains("may already be the master"), "{refused:?}");
            assert_ok(&old, "REPLICAOF NO ONE");
            until("the node accepts writes", || {
                refusal(&call(&mut old.client(), &like())).is_empty()
            });
        } else {
            // The replica has lost its data, so it cannot take over. However, another node might
            // have taken over.
            let empty = tempfile::tempdir().unwrap();
            let new = start(&empty, Some(ports[1]));
            until("the node is a master again", || old.info("role") == "master");
            let reply = call(&mut old.client(), &like());
            assert!(refusal(&reply).contains("fenced until its role is known"), "{reply:?}");
            assert_ok(&new, &format!("REPLICAOF 127.0.0.1 {}", old.port));
            until("a replica follows", || refusal(&call(&mut old.client(), &like())).is_empty());
        }
        assert_eq!(old.info("master_failover_state"), "no-failover");
        assert_eq!(likes(&old), Reply::BulkString(text(2)));
    }
}
