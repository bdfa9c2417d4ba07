//! Offsets shown to clients contain every acknowledged write; scripts and Sentinel rely on that.

use super::{follow, likes, number, small, wait_for_sync};
use tidemark_server::config::{Config, Fsync};
use tidemark_tests::{TestServer, eventually};

const POLICIES: [Fsync; 3] = [Fsync::Always, Fsync::Everysec, Fsync::No];

fn with(fsync: Fsync) -> TestServer {
    TestServer::with(move |config: &mut Config| {
        small(config);
        config.durability.fsync = fsync;
    })
}

fn role_offset(server: &TestServer) -> u64 {
    let role: Vec<redis::Value> = redis::cmd("ROLE").query(&mut server.connection()).unwrap();
    redis::from_redis_value(role[1].clone()).unwrap()
}

#[test]
fn offset_contains_every_kind_of_write() {
    let kinds: &[&[&str]] = &[
        &["HSET post:1 like 9"],
        &["INCRBY post:1:like 2"],
        &["MSET post:2:like 1 post:3:like 2"],
        &["CNT.INCRBY post 4 like 1 TOKEN once"],
        &["SADD liked:1 7 8"],
        &["SREM liked:1 7"],
        &["PH.ADD liked 9 1 2 3"],
        &["FEED.ACT like 42 1 2 3"],
        &["FEED.UNDO like 42 2"],
        &["MULTI", "HSET post:5 like 1", "SADD liked:5 1", "EXEC"],
        &["TM.FORGET post 5"],
        &["DEL post:1"],
        &["TM.SPACE CREATE photo COUNTER fields like:10 rows photo:{id}"],
        &["TM.SPACE ALTER photo SET keep_newest 9000000"],
        &["TM.VIEW CREATE wall counters photo.like"],
        &["TM.VIEW DROP wall"],
        &["TM.SPACE DROP photo YES-I-MEAN-photo"],
    ];
    for fsync in POLICIES {
        let server = with(fsync);
        let mut client = server.raw();
        // After a second without writes the log is sealed, which moves the end of the log once
        // more.
        let mut other = server.raw();
        for (round, words) in kinds.iter().cycle().take(3 * kinds.len()).enumerate() {
            other.ask(&["HSET", "post:99", "like", &round.to_string()]);
            let before = number(&server, "master_repl_offset");
            let said: Vec<String> = words
                .iter()
                .map(|words| client.ask(&words.split(' ').collect::<Vec<_>>()))
                .collect();
            let is_change = said.last().is_some_and(|said| !said.starts_with('-'));
            let shown = number(&server, "master_repl_offset");
            // A table that has just been created is empty, so TM.ROLL does not close it.
            let is_empty = words[0].starts_with("TM.ROLL") && said == [":0"];
            if round < kinds.len() && !is_empty {
                assert!(is_change, "{fsync:?} {words:?}: {said:?}");
                assert!(shown > before, "{fsync:?} {words:?}: {before} before and {shown} after");
            }
            // EXEC's reply has unread lines, so reconnect.
            client = server.raw();
            other.ask(&["HSET", "post:99", "read", &round.to_string()]);
            let role = role_offset(&server);
            assert!(role > shown, "{fsync:?}: ROLE shows {role} after {shown}");
        }
    }
}

#[test]
fn wait_in_a_transaction_counts_no_replica_that_lacks_a_write() {
    let (master, replica) = (with(Fsync::Everysec), with(Fsync::Everysec));
    follow(&replica, &master);
    wait_for_sync(&master, &replica);
    let mut client = master.raw();
    for round in 0..20 {
        client.ask(&["HSET", "post:1", "like", &round.to_string()]);
        for word in [&["MULTI"][..], &["WAIT", "1", "100"], &["HGET", "post:1", "like"], &["EXEC"]]
        {
            client.ask(word);
        }
        let counted = client.line() == ":1";
        let held = likes(&replica, 1..2) == [Some(round)];
        assert!(held || !counted, "round {round}: the replica lacks it");
        client = master.raw();
    }
}

/// Tests a manual switchover: pause the master, wait for equal offsets, and promote the replica.
#[test]
fn equal_offsets_under_a_pause_mean_nothing_is_missing() {
    for fsync in POLICIES {
        let (master, replica) = (with(fsync), with(fsync));
        follow(&replica, &master);
        master.raw().ask(&["HSET", "post:1000", "like", "1"]);
        wait_for_sync(&master, &replica);
        for round in 0..6u64 {
            let mut client = master.raw();
            for post in 0..30 {
                let said =
                    client.ask(&["HSET", &format!("post:{post}"), "like", &round.to_string()]);
                assert!(said.starts_with(':'), "{said}");
            }
            let mut operator = master.raw();
            assert_eq!(operator.ask(&["CLIENT", "PAUSE", "20000", "WRITE"]), "+OK");
            eventually("the offsets are equal", || {
                let shown = number(&master, "master_repl_offset");
                shown != 0 && shown == number(&replica, "slave_repl_offset")
            });
            assert_eq!(likes(&replica, 0..30), [Some(round as i64); 30], "{fsync:?}");
            assert_eq!(operator.ask(&["CLIENT", "UNPAUSE"]), "+OK");
        }
    }
}

#[test]
fn pause_answers_when_every_write_is_logged() {
    for fsync in POLICIES {
        let server = with(fsync);
        let mut client = server.raw();
        for round in 0..5 {
            client.ask(&["HSET", "post:1", "like", &round.to_string()]);
            assert_eq!(client.ask(&["CLIENT", "PAUSE", "20000", "WRITE"]), "+OK");
            assert_eq!(likes(&server.on_copy(server.folder()), 1..2), [Some(round)], "{fsync:?}");
            assert_eq!(client.ask(&["CLIENT", "UNPAUSE"]), "+OK");
        }
    }
}
