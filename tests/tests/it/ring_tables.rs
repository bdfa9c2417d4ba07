//! Tests of a ring's tables on several nodes, and of set and filter commands that a filter cannot
//! answer.

use crate::commands::check;
use crate::replication::{follow, wait_for_sync};
use std::collections::HashMap;
use tidemark_server::config::{Fsync, LedgerMode};
use tidemark_tests::TestServer;

/// Even if ids jump and tables roll, the master after a crash, a connected replica, a replica of a
/// replica and a replica that connects later have the same tables.
#[test]
fn the_tables_of_a_log_are_the_same_everywhere() {
    let small = || {
        TestServer::with(|config| {
            for existence in &mut config.existence {
                (existence.seed, existence.spill) = (7, false);
                existence.ledger = LedgerMode::Off;
            }
            config.durability.fsync = Fsync::Always;
            config.existence[0].pairs_per_table = 64_000;
        })
    };
    let (master, replica, behind) = (small(), small(), small());
    follow(&replica, &master);
    follow(&behind, &replica);
    let mut rng = fastrand::Rng::with_seed(4);
    let mut model = std::collections::BTreeMap::new();
    let mut now = 1000;
    let mut some = |server: &TestServer, viewer: u64, now: &mut u64| {
        let mut pipe = redis::pipe();
        for _ in 0..300 {
            *now += rng.u64(0..30);
            let id =
                if rng.u32(0..6) == 0 { *now + rng.u64(900..4000) } else { *now - rng.u64(0..900) };
            pipe.cmd("PH.ADD").arg("liked").arg(viewer).arg(id).ignore();
            model.insert((viewer, id), 1);
        }
        // Removes one of the earlier pairs.
        if let Some((&(viewer, id), set)) = model.iter_mut().nth(rng.usize(0..300)) {
            pipe.cmd("PH.DEL").arg("liked").arg(viewer).arg(id).ignore();
            *set = 0;
        }
        pipe.query::<()>(&mut server.connection()).unwrap();
    };
    for round in 0..6 {
        some(&master, round, &mut now);
        redis::cmd("TM.ROLL").arg("liked").query::<()>(&mut master.connection()).unwrap();
        some(&master, 100 + round, &mut now);
    }
    let late = small();
    redis::cmd("SAVE").query::<()>(&mut master.connection()).unwrap();
    some(&master, 2001, &mut now);
    follow(&late, &master);
    [&replica, &behind, &late].into_iter().for_each(|server| wait_for_sync(&master, server));
    let tables = layout(&master);
    let master = master.killed();
    for server in [&master, &replica, &behind, &late] {
        assert_eq!(layout(server), tables);
        let mut pipe = redis::pipe();
        model.keys().for_each(|(viewer, id)| {
            pipe.cmd("PH.EXISTS").arg("liked").arg(viewer).arg(id);
        });
        let answers: Vec<Vec<i64>> = pipe.query(&mut server.connection()).unwrap();
        let answers: Vec<i64> = answers.into_iter().map(|answer| answer[0]).collect();
        let lost = model.values().zip(&answers).filter(|(set, found)| **set > **found).count();
        let back = model.values().zip(&answers).filter(|(set, found)| **set < **found).count();
        assert!(lost == 0 && back <= 3, "{lost} lost, {back} back of {}", answers.len());
    }
}

/// Returns the range of each table.
fn layout(server: &TestServer) -> Vec<(u64, u64)> {
    let maps: Vec<HashMap<String, redis::Value>> =
        redis::cmd("TM.TABLES").arg("liked").query(&mut server.connection()).unwrap();
    let number = |value: &redis::Value| redis::from_redis_value_ref(value).unwrap();
    maps.iter().map(|map| (number(&map["low"]), number(&map["last"]))).collect()
}

#[test]
fn filters_and_sets_under_other_names() {
    let server = TestServer::start();
    let unknowable = "-ERR a filter cannot count or list the members of one id. Query members one \
        by one, or keep their number in a counter (FEED.ACT updates both). TM.TABLES shows the \
        table\r\n";
    let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
    check(
        &mut server.raw(),
        &[
            ("CF.ADD read:1 a", ":1\r\n"),
            ("CF.ADD read:1 a", ":1\r\n"),
            ("CF.ADDNX read:1 a", ":0\r\n"),
            ("CF.ADDNX read:1 b", ":1\r\n"),
            ("CF.EXISTS read:1 a", ":1\r\n"),
            ("CF.MEXISTS read:1 a b c", "*3\r\n:1\r\n:1\r\n:0\r\n"),
            ("CF.COUNT read:1 a", ":1\r\n"),
            ("CF.DEL read:1 a", ":1\r\n"),
            ("CF.COUNT read:1 a", ":0\r\n"),
            ("CF.DEL read:1 a", ":0\r\n"),
            ("CF.EXISTS read:1 a", ":0\r\n"),
            ("CF.ADD post:1 a", wrong_type),
            ("BF.INSERT read:2 ITEMS a b a", "*3\r\n:1\r\n:1\r\n:0\r\n"),
            (
                "BF.INSERT read:2 CAPACITY 1000 ERROR 0.01 EXPANSION 2 NOCREATE NONSCALING ITEMS \
                 c",
                "*1\r\n:1\r\n",
            ),
            (
                "BF.INSERT read:2 ERROR 0.000001 ITEMS c",
                "-ERR the space 'read' has the error rate 0.0001: a lower one is not supported\r\n",
            ),
            ("BF.INSERT read:2 ERROR x ITEMS c", "-ERR Bad error rate\r\n"),
            ("BF.INSERT read:2 CAPACITY x ITEMS c", "-ERR Bad capacity\r\n"),
            (
                "BF.INSERT read:2 NOCREATE ITEMS",
                "-ERR wrong number of arguments for 'bf.insert' command\r\n",
            ),
            (
                "BF.INSERT read:2 NOCREATE CAPACITY",
                "-ERR wrong number of arguments for 'bf.insert' command\r\n",
            ),
            ("BF.INSERT read:2 a b", "-ERR Unknown argument received\r\n"),
            ("BF.RESERVE read:3 0.01 1000 EXPANSION 2", "+OK\r\n"),
            (
                "BF.RESERVE read:2 0.00001 1000",
                "-ERR the space 'read' has the error rate 0.0001: a lower one is not supported\r\n",
            ),
            ("BF.RESERVE read:2 0.01 x", "-ERR bad capacity\r\n"),
            ("BF.SCANDUMP read:2 0", unknowable),
            ("BF.LOADCHUNK read:2 1 x", "-ERR received bad data\r\n"),
            ("SINTERCARD 2 read:1 read:2", unknowable),
            ("SINTERCARD 1 read:1 LIMIT 1", unknowable),
            ("SINTERCARD 0 read:1", "-ERR numkeys should be greater than 0\r\n"),
            ("SINTERCARD 2 read:1", "-ERR Number of keys can't be greater than number of args\r\n"),
            ("SINTERCARD 1 read:1 LIMIT -1", "-ERR LIMIT can't be negative\r\n"),
            ("SINTERCARD 1 read:1 read:2", "-ERR syntax error\r\n"),
            ("SCARD read:2", unknowable),
            ("SMEMBERS read:2", unknowable),
            ("SPOP read:2", unknowable),
            ("SRANDMEMBER read:2 3", unknowable),
            ("SSCAN read:2 0", unknowable),
            ("SCARD post:2", wrong_type),
            ("SCARD nope", ":0\r\n"),
        ],
    );
}
