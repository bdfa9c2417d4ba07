//! What a replica that is to take over answers, or does not, and what its master makes of it. Two masters there are never.

use super::stops::freeze;
use super::{SPACES, bulk, fine, follow, in_step, in_step_with, is_master, like_of, start};
use crate::common::{FIRST, Program, refusal, until};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// It would be told no by a new master, and be one again itself.
#[test]
fn who_has_no_room_for_the_old_master_does_not_take_its_place() {
    let (_folders, old, new) = in_step_with("max_replicas = 1");
    let folder = tempfile::tempdir().unwrap();
    let last = start(folder.path(), SPACES);
    follow(&last, &new);
    in_step(&last, &new);
    fine(&old, "FAILOVER");
    until("it is over", || old.info("master_failover_state") == "no-failover" && old.info("role") == "master");
    assert_eq!(new.info("role"), "slave");
    is_master(&old, 3);
    in_step(&new, &old);
    assert_eq!((like_of(&new, FIRST), new.info("role")), (bulk(4), "slave".to_owned()));
}

/// What a play of a replica answers to TM.REPLICATE, so long as it says this, and how often it was asked.
#[derive(Default)]
struct Played {
    /// Nothing, and the connection ends.
    says: Mutex<&'static [u8]>,
    /// What it says to PING, if not +PONG.
    greets: Mutex<&'static [u8]>,
    asked: AtomicUsize,
}

impl Played {
    /// A master and its replica, which has everything; the address that it announces is that of this play.
    fn instead_of_a_replica() -> (Arc<Played>, [tempfile::TempDir; 2], Program, Program) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, played) = (listener.local_addr().unwrap().port(), Arc::new(Played::default()));
        let plays = played.clone();
        std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| plays.answer(stream)));
        let (folders, old, new) = in_step_with(&format!("replica_announce_port = {port}"));
        (played, folders, old, new)
    }

    fn answer(&self, mut stream: TcpStream) {
        let mut request = [0; 1000];
        while let Ok(length @ 1..) = stream.read(&mut request) {
            let is_ping = &request[..length] == b"*1\r\n$4\r\nPING\r\n";
            let reply: &[u8] = match *self.greets.lock().unwrap() {
                b"" if is_ping => b"+PONG\r\n",
                b"" => *self.says.lock().unwrap(),
                greets => greets,
            };
            // Whoever counts finds what it has said to the one before.
            self.asked.fetch_add(usize::from(!is_ping || !reply.starts_with(b"+")), SeqCst);
            if reply.is_empty() || stream.write_all(reply).is_err() {
                return;
            }
        }
    }

    /// It is asked twice since, so it has answered once like this, and that has been read.
    fn is_asked_again(&self) {
        let before = self.asked.load(SeqCst);
        until("it is asked again", || self.asked.load(SeqCst) >= before + 2);
    }
}

/// It may have taken over before it was started again.
#[test]
fn a_replica_that_loads_is_asked_again_whether_it_takes_over() {
    let (played, _folders, old, _new) = Played::instead_of_a_replica();
    *played.says.lock().unwrap() = b"-ERR no\r\n";
    *played.greets.lock().unwrap() = b"-LOADING Redis is loading the dataset in memory\r\n";
    fine(&old, "FAILOVER");
    played.is_asked_again();
    assert_eq!((old.info("role"), old.info("master_failover_state")), ("slave".into(), "failover-in-progress".into()));
    *played.greets.lock().unwrap() = b"";
    until("it has said no", || old.info("master_failover_state") == "no-failover");
    is_master(&old, 3);
}

/// Who was asked to take over and was not heard may have done so: there is no way back but its own word, and an operator's.
#[test]
fn a_replica_that_may_have_taken_over_is_not_overruled_by_chance() {
    for end in ["no", "NO ONE", "the same"] {
        let (played, _folders, old, new) = Played::instead_of_a_replica();
        fine(&old, "FAILOVER");
        played.is_asked_again();
        // Its master has not parted with it: it is fed all the while.
        let is_in_doubt = |says: &str| {
            let state = ["role", "master_failover_state"].map(|line| old.info(line));
            assert_eq!(state, ["slave", "failover-in-progress"], "{says}");
            let refused = old.ask("FAILOVER ABORT");
            assert!(refusal(&refused).contains("it may be the master by now"), "{says}: {refused:?}");
        };
        is_in_doubt("nothing");
        for says in ["-ERR max number of replicas reached", "-NOMASTERLINK no", "-LOADING yes", "-NOPERM no"] {
            *played.says.lock().unwrap() = format!("{says}\r\n").leak().as_bytes();
            played.is_asked_again();
            is_in_doubt(says);
        }
        match end {
            "no" => {
                freeze(&new, true);
                *played.says.lock().unwrap() = b"-NOFAILOVER this replica has another history\r\n";
                until("it is the master again", || old.info("role") == "master");
                // It is not known who is: somebody whom others follow, say.
                let refused = old.ask(&format!("HINCRBY post:{FIRST} like 1"));
                assert!(refusal(&refused).contains("fenced until its role is known"), "{refused:?}");
                assert_eq!(refusal(&old.ask("FAILOVER ABORT")), "ERR No failover in progress.");
                // One that was there all the time follows anew.
                freeze(&new, false);
            }
            "NO ONE" => fine(&old, "REPLICAOF NO ONE"),
            _ => {
                fine(&old, &format!("REPLICAOF 127.0.0.1 {}", old.info("master_port")));
                assert_eq!(old.info("master_failover_state"), "no-failover", "an operator knows that it has");
                fine(&old, "REPLICAOF NO ONE");
            }
        }
        is_master(&old, 3);
        assert_eq!(old.info("master_failover_state"), "no-failover");
    }
}

/// What it says for a reason of the moment means no, if it has been asked nothing else.
#[test]
fn a_replica_that_was_asked_once_and_refuses_does_not_take_over() {
    for says in ["-ERR max number of replicas reached", "-NOPERM no", "-NOFAILOVER no"] {
        let (played, _folders, old, _new) = Played::instead_of_a_replica();
        *played.says.lock().unwrap() = b"-NOMASTERLINK not now\r\n";
        fine(&old, "FAILOVER");
        played.is_asked_again();
        assert_eq!(old.info("role"), "slave");
        *played.says.lock().unwrap() = format!("{says}\r\n").leak().as_bytes();
        is_master(&old, 3);
    }
    // And while it is asked later it is not asked now. Who has no room for a client says so to its PING, and reads nothing.
    for (greets, says) in [("", "-NOMASTERLINK not now\r\n"), ("-ERR max number of clients reached\r\n", "")] {
        let (played, _folders, old, _new) = Played::instead_of_a_replica();
        *played.greets.lock().unwrap() = greets.as_bytes();
        *played.says.lock().unwrap() = says.as_bytes();
        fine(&old, "FAILOVER");
        played.is_asked_again();
        fine(&old, "FAILOVER ABORT");
        is_master(&old, 3);
    }
}

/// A frozen one may wake up, and obey, long after Sentinels have chosen.
#[test]
fn sentinels_are_obeyed_while_a_replica_is_to_take_over() {
    for speaks in [false, true] {
        let (played, _folders, old, _new) = Played::instead_of_a_replica();
        *played.greets.lock().unwrap() = b"-LOADING Redis is loading the dataset in memory\r\n";
        if speaks {
            let hello = format!("127.0.0.1,26379,{},9,m,127.0.0.1,{},7", "a".repeat(40), old.port);
            fine(&old, &format!("PUBLISH __sentinel__:hello {hello}"));
        }
        fine(&old, "FAILOVER");
        played.is_asked_again();
        let reply = old.ask("REPLICAOF 127.0.0.1 1");
        assert_eq!(refusal(&reply).is_empty(), speaks, "{reply:?}");
        if !speaks {
            continue;
        }
        assert_eq!((old.info("master_port"), old.info("master_failover_state")), ("1".into(), "no-failover".into()));
        let asked = played.asked.load(SeqCst);
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(played.asked.load(SeqCst), asked, "nobody asks it any more");
    }
}

/// Its configuration was copied, with what it announces of itself.
#[test]
fn who_is_asked_by_itself_says_no() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let old = start(folders[0].path(), SPACES);
    let new = start(folders[1].path(), &format!("{SPACES}[replication]\nreplica_announce_port = {}\n", old.port));
    fine(&old, &format!("CNT.SET post {FIRST} like 3"));
    follow(&new, &old);
    in_step(&new, &old);
    until("the master knows", || old.info("slave0").contains("lag_bytes=0"));
    fine(&old, "FAILOVER");
    until("it was asked", || old.info("master_failover_state") == "no-failover" && old.info("role") == "master");
    is_master(&old, 3);
}
