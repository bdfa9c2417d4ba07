//! Tests how a master reacts to the replies of a replica that it asks to take over, and to a
//! missing reply. There must never be two masters.

use super::{
    SPACES, assert_ok, bulk, follow, is_master, like_of, start, synced_pair_with_config,
    synced_pair_with_config_of, wait_for_sync,
};
use harness::program::{FIRST, Program, refusal, until};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// If a new master refused the old one as a replica, both would remain masters.
#[test]
fn a_replica_without_room_for_the_old_master_is_not_promoted() {
    let (_folders, old, new) = synced_pair_with_config("max_replicas = 1");
    let folder = tempfile::tempdir().unwrap();
    let last = start(folder.path(), SPACES);
    follow(&last, &new);
    wait_for_sync(&last, &new);
    assert_ok(&old, "FAILOVER");
    until("the failover has ended", || {
        old.info("master_failover_state") == "no-failover" && old.info("role") == "master"
    });
    assert_eq!(new.info("role"), "slave");
    is_master(&old, 3);
    wait_for_sync(&new, &old);
    assert_eq!((like_of(&new, FIRST), new.info("role")), (bulk(4), "slave".to_owned()));
}

const LOADING: &str = "-LOADING Redis is loading the dataset in memory";
const NOT_NOW: &str = "-NOMASTERLINK not now";

/// A simulated replica with a configurable reply to TM.REPLICATE. The replica counts the requests
/// that it receives.
#[derive(Default)]
struct SimulatedReplica {
    /// Reply to TM.REPLICATE; if empty, the replica closes the connection instead.
    says: Mutex<&'static str>,
    /// Reply to PING; if empty, the reply is +PONG.
    greets: Mutex<&'static str>,
    asked: AtomicUsize,
}

impl SimulatedReplica {
    /// Starts a master and a synced replica. The replica announces the address of the simulated
    /// replica as its own.
    fn instead_of_a_replica(
        greets: &'static str,
        says: &'static str,
    ) -> (Arc<SimulatedReplica>, [tempfile::TempDir; 2], Program, Program) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, played) =
            (listener.local_addr().unwrap().port(), Arc::new(SimulatedReplica::default()));
        played.greets(greets);
        played.says(says);
        let plays = played.clone();
        std::thread::spawn(move || {
            listener.incoming().flatten().for_each(|stream| plays.answer(stream))
        });
        let (folders, old, new) =
            synced_pair_with_config(&format!("replica_announce_port = {port}"));
        (played, folders, old, new)
    }

    fn answer(&self, mut stream: TcpStream) {
        let mut request = [0; 1000];
        while let Ok(length @ 1..) = stream.read(&mut request) {
            let is_ping = &request[..length] == b"*1\r\n$4\r\nPING\r\n";
            let reply = match *self.greets.lock().unwrap() {
                "" if is_ping => "+PONG",
                "" => *self.says.lock().unwrap(),
                greets => greets,
            };
            // Count the request before replying: a test that reads the count then finds the reply
            // to the previous request.
            self.asked.fetch_add(usize::from(!is_ping || !reply.starts_with('+')), SeqCst);
            if reply.is_empty() || stream.write_all(format!("{reply}\r\n").as_bytes()).is_err() {
                return;
            }
        }
    }

    fn greets(&self, reply: &'static str) {
        *self.greets.lock().unwrap() = reply;
    }

    fn says(&self, reply: &'static str) {
        *self.says.lock().unwrap() = reply;
    }

    /// Runs FAILOVER, so that the master asks the simulated replica repeatedly.
    fn is_asked_by(&self, old: &Program) {
        assert_ok(old, "FAILOVER");
        self.is_asked_again();
    }

    /// Waits for two more requests. By then the master has read a reply with the current text.
    fn is_asked_again(&self) {
        let before = self.asked.load(SeqCst);
        until("the replica is asked again", || self.asked.load(SeqCst) >= before + 2);
    }
}

/// The master must retry, because the replica may have taken over before its restart.
#[test]
fn a_replica_that_loads_is_asked_again_whether_it_takes_over() {
    let (played, _folders, old, _new) = SimulatedReplica::instead_of_a_replica(LOADING, "-ERR no");
    played.is_asked_by(&old);
    assert_eq!(
        (old.info("role"), old.info("master_failover_state")),
        ("slave".into(), "failover-in-progress".into())
    );
    played.greets("");
    until("the replica has refused", || old.info("master_failover_state") == "no-failover");
    is_master(&old, 3);
}

/// A replica that did not reply may have taken over. Only a refusal by the replica itself, or an
/// operator, can end the hand-over.
#[test]
fn handover_in_doubt_ends_only_by_refusal_or_operator() {
    for end in ["no", "NO ONE", "the same"] {
        let (played, _folders, old, new) = SimulatedReplica::instead_of_a_replica("", "");
        played.is_asked_by(&old);
        let is_in_doubt = |says: &str| {
            let state = ["role", "master_failover_state"].map(|line| old.info(line));
            assert_eq!(state, ["slave", "failover-in-progress"], "{says}");
            let refused = old.ask("FAILOVER ABORT");
            assert!(refusal(&refused).contains("may already be the master"), "{says}: {refused:?}");
        };
        is_in_doubt("nothing");
        for says in [
            "-ERR max number of replicas reached",
            "-NOMASTERLINK no",
            "-LOADING yes",
            "-NOPERM no",
        ] {
            played.says(says);
            played.is_asked_again();
            is_in_doubt(says);
        }
        match end {
            "no" => {
                new.freeze(true);
                played.says("-NOFAILOVER this replica has a different history");
                until("the node is a master again", || old.info("role") == "master");
                // Another node may have become the master, for example one that has replicas
                // itself.
                let refused = old.ask(&format!("HINCRBY post:{FIRST} like 1"));
                assert!(
                    refusal(&refused).contains("fenced until its role is known"),
                    "{refused:?}"
                );
                assert_eq!(refusal(&old.ask("FAILOVER ABORT")), "ERR No failover in progress.");
                // The real replica still exists, and follows the master again.
                new.freeze(false);
            }
            "NO ONE" => assert_ok(&old, "REPLICAOF NO ONE"),
            _ => {
                assert_ok(&old, &format!("REPLICAOF 127.0.0.1 {}", old.info("master_port")));
                assert_eq!(
                    old.info("master_failover_state"),
                    "no-failover",
                    "an operator knows that it has"
                );
                assert_ok(&old, "REPLICAOF NO ONE");
            }
        }
        is_master(&old, 3);
        assert_eq!(old.info("master_failover_state"), "no-failover");
    }
}

/// A temporary refusal is final if the replica has received no other request.
#[test]
fn a_replica_that_was_asked_once_and_refuses_does_not_take_over() {
    for says in ["-ERR max number of replicas reached", "-NOPERM no", "-NOFAILOVER no"] {
        let (played, _folders, old, _new) = SimulatedReplica::instead_of_a_replica("", NOT_NOW);
        played.is_asked_by(&old);
        assert_eq!(old.info("role"), "slave");
        played.says(says);
        is_master(&old, 3);
    }
    // A replica that asks the master to retry later has not taken over. A server that has too many
    // clients refuses even PING, and does not read the request that follows.
    for (greets, says) in [("", NOT_NOW), ("-ERR max number of clients reached", "")] {
        let (played, _folders, old, _new) = SimulatedReplica::instead_of_a_replica(greets, says);
        played.is_asked_by(&old);
        assert_ok(&old, "FAILOVER ABORT");
        is_master(&old, 3);
    }
}

/// A frozen replica may continue, and take over, long after Sentinels have chosen another master.
#[test]
fn sentinels_are_obeyed_while_a_replica_is_to_take_over() {
    for speaks in [false, true] {
        let (played, _folders, old, _new) = SimulatedReplica::instead_of_a_replica(LOADING, "");
        if speaks {
            // Announce two Sentinels, because the server refuses FAILOVER if there is only one
            // Sentinel.
            for sentinel in ["a", "b"].map(|name| name.repeat(40)) {
                let hello = format!("127.0.0.1,26379,{sentinel},9,m,127.0.0.1,{},7", old.port);
                assert_ok(&old, &format!("PUBLISH __sentinel__:hello {hello}"));
            }
        }
        played.is_asked_by(&old);
        let reply = old.ask("REPLICAOF 127.0.0.1 1");
        assert_eq!(refusal(&reply).is_empty(), speaks, "{reply:?}");
        if !speaks {
            continue;
        }
        assert_eq!(
            (old.info("master_port"), old.info("master_failover_state")),
            ("1".into(), "no-failover".into())
        );
        let asked = played.asked.load(SeqCst);
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(played.asked.load(SeqCst), asked, "the replica was asked again");
    }
}

/// The replica's configuration was copied, including its announced address.
#[test]
fn a_node_refuses_a_failover_to_itself() {
    let (_folders, old, _new) =
        synced_pair_with_config_of(|old| format!("replica_announce_port = {}", old.port));
    assert_ok(&old, "FAILOVER");
    until("the replica was asked", || {
        old.info("master_failover_state") == "no-failover" && old.info("role") == "master"
    });
    is_master(&old, 3);
}
