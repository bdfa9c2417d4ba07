//! Filters on the way from one server to another: digest, export, merge. And what clients of sets and filters ask a filter that it cannot know.

use crate::commands::check;
use std::collections::HashMap;
use tidemark_tests::TestServer;

type Maps = Vec<HashMap<String, redis::Value>>;

fn site() -> TestServer {
    TestServer::with(|config| {
        for existence in &mut config.existence {
            existence.seed = 7;
        }
    })
}

fn like(server: &TestServer, members: std::ops::Range<u64>) {
    let mut pipe = redis::pipe();
    for member in members {
        pipe.cmd("PH.ADD").arg("liked").arg(member).arg(member % 500).ignore();
    }
    pipe.query::<()>(&mut server.connection()).unwrap();
}

fn liked(server: &TestServer, members: std::ops::Range<u64>) -> usize {
    let mut pipe = redis::pipe();
    for member in members {
        pipe.cmd("PH.EXISTS").arg("liked").arg(member).arg(member % 500);
    }
    let answers: Vec<Vec<i64>> = pipe.query(&mut server.connection()).unwrap();
    answers.iter().filter(|answer| **answer == [1]).count()
}

fn export(server: &TestServer) -> Vec<u8> {
    redis::cmd("TM.EXPORT").arg(&["liked", "0"]).query(&mut server.connection()).unwrap()
}

fn digest(server: &TestServer) -> Vec<String> {
    let maps: Maps = redis::cmd("TM.DIGEST").arg(&["liked", "0"]).query(&mut server.connection()).unwrap();
    redis::from_redis_value_ref(&maps[0]["blocks"]).unwrap()
}

#[test]
fn two_sites_become_one_and_a_crash_does_not_part_them() {
    let (here, there) = (site(), site());
    like(&here, 0..2000);
    like(&there, 0..2000);
    assert_eq!(digest(&here), digest(&there), "the same pairs, the same filters");
    like(&there, 2000..4000);
    assert_ne!(digest(&here), digest(&there));
    let table = export(&there);
    assert!(liked(&here, 2000..4000) < 20);
    let merged: String = redis::cmd("TM.MERGE").arg("liked").arg(&table).query(&mut here.connection()).unwrap();
    assert_eq!(merged, "OK");
    assert_eq!(liked(&here, 0..4000), 4000);
    assert_eq!(digest(&here), digest(&there));
    // Acknowledged is durable.
    assert_eq!(liked(&here.killed(), 0..4000), 4000);
    like(&here, 4000..4100);
    let here = here.restart();
    assert_eq!(liked(&here, 0..4100), 4100);
}

#[test]
fn a_strangers_table_does_no_harm() {
    let (here, there) = (site(), site());
    like(&here, 0..300);
    like(&there, 300..600);
    let table = export(&there);
    let before = digest(&here);
    let c = &mut here.connection();
    let mut refused = |space: &str, bytes: &[u8]| {
        let error = redis::cmd("TM.MERGE").arg(space).arg(bytes).query::<String>(c).unwrap_err();
        error.to_string()
    };
    assert!(refused("nope", &table).contains("no such existence space 'nope'"));
    assert!(refused("post", &table).contains("no such existence space 'post'"));
    assert!(refused("liked", b"").contains("too early"));
    assert!(refused("liked", b"TMPHTAB\x01").contains("too early"));
    assert!(refused("liked", &table[..table.len() - 1]).contains("too early"));
    assert!(refused("liked", &[&table[..], b"x"].concat()).contains("after the end"));
    let mut rng = fastrand::Rng::with_seed(5);
    for _ in 0..300 {
        let mut damaged = table.clone();
        for _ in 0..rng.usize(1..4) {
            // The header is short, and decides most.
            let at = if rng.bool() { rng.usize(0..200) } else { rng.usize(0..damaged.len()) };
            damaged[at] ^= 1 << rng.u8(0..8);
        }
        if damaged != table {
            refused("liked", &damaged);
        }
    }
    assert_eq!(digest(&here), before);
    // Another seed: its bits say nothing here.
    let other = TestServer::start();
    like(&other, 0..300);
    let error = redis::cmd("TM.MERGE").arg("liked").arg(export(&other)).query::<String>(c).unwrap_err();
    assert!(error.to_string().contains("not merged"), "{error}");
    assert_eq!(digest(&here), before);
    let error = redis::cmd("TM.EXPORT").arg(&["liked", "7"]).query::<Vec<u8>>(c).unwrap_err();
    assert!(error.to_string().contains("no table of 'liked' begins at 7"), "{error}");
}

#[test]
fn filters_and_sets_under_other_names() {
    let server = TestServer::start();
    let unknowable = "-ERR a filter cannot tell how many or which members one id has: it holds those of all ids of its table together. Ask for \
                      members one by one, keep a counter for their number (FEED.ACT moves both), and see TM.TABLES for the table\r\n";
    let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
    check(
        &mut server.raw(),
        &[
            ("CF.ADD liked:1 a", ":1\r\n"),
            ("CF.ADD liked:1 a", ":1\r\n"),
            ("CF.ADDNX liked:1 a", ":0\r\n"),
            ("CF.ADDNX liked:1 b", ":1\r\n"),
            ("CF.EXISTS liked:1 a", ":1\r\n"),
            ("CF.MEXISTS liked:1 a b c", "*3\r\n:1\r\n:1\r\n:0\r\n"),
            ("CF.DEL liked:1 a", ":1\r\n"),
            ("CF.DEL liked:1 a", ":0\r\n"),
            ("CF.EXISTS liked:1 a", ":0\r\n"),
            ("CF.ADD post:1 a", wrong_type),
            ("BF.INSERT liked:2 ITEMS a b a", "*3\r\n:1\r\n:1\r\n:0\r\n"),
            ("BF.INSERT liked:2 CAPACITY 1000 ERROR 0.01 EXPANSION 2 NOCREATE NONSCALING ITEMS c", "*1\r\n:1\r\n"),
            (
                "BF.INSERT liked:2 ERROR 0.000001 ITEMS c",
                "-ERR the space 'liked' was made for an error rate of 0.0001\r\n",
            ),
            ("BF.INSERT liked:2 ERROR x ITEMS c", "-ERR 'x' is no error rate between 0 and 1\r\n"),
            ("BF.INSERT liked:2 CAPACITY x ITEMS c", "-ERR value is not an integer or out of range\r\n"),
            ("BF.INSERT liked:2 NOCREATE ITEMS", "-ERR wrong number of arguments for 'bf.insert' command\r\n"),
            ("BF.INSERT liked:2 NOCREATE CAPACITY", "-ERR syntax error\r\n"),
            ("BF.INSERT liked:2 a b", "-ERR syntax error\r\n"),
            ("BF.RESERVE liked:2 0.01 1000", "+OK\r\n"),
            ("BF.RESERVE liked:2 0.01 1000 EXPANSION 2", "+OK\r\n"),
            ("BF.RESERVE liked:2 0.00001 1000", "-ERR the space 'liked' was made for an error rate of 0.0001\r\n"),
            ("BF.RESERVE liked:2 0.01 x", "-ERR value is not an integer or out of range\r\n"),
            ("BF.CARD liked:2", unknowable),
            ("BF.INFO liked:2", unknowable),
            ("SCARD liked:2", unknowable),
            ("SMEMBERS liked:2", unknowable),
            ("SPOP liked:2", unknowable),
            ("SRANDMEMBER liked:2 3", unknowable),
            ("SSCAN liked:2 0", unknowable),
            ("SCARD post:2", wrong_type),
            ("SCARD nope", "-ERR Invalid key 'nope': it fits no key pattern of any space\r\n"),
        ],
    );
}
