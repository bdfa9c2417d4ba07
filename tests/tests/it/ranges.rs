//! Two services share a space, with ids 2^52 apart: no write is refused, tables are created in both
//! ranges, and a restart, a crash and a replica reproduce tables and rows.

use crate::replication::{follow, wait_for_sync};
use redis::{Connection, cmd};
use std::collections::HashMap;
use tidemark_server::config::Config;
use tidemark_tests::{TestServer, number, tables};

const FIRST: u64 = 1 << 50;
const GAP: u64 = 1 << 52;
const RATE: f64 = 0.001;
const LIKES: u64 = 3;

fn small(config: &mut Config) {
    let liked = &mut config.existence[0];
    (liked.pairs_per_table, liked.false_positive_rate) = (8000, RATE);
    config.counter[0].rows_per_table = 2048;
}

/// Returns an id; one post in twenty belongs to the upper service.
fn post(n: u64) -> u64 {
    FIRST + n * 16 + if n.is_multiple_of(20) { GAP } else { 0 }
}

/// Adds the posts `from..to` with their likes, and `late` likes of old posts for each.
fn traffic(c: &mut Connection, from: u64, to: u64, late: u64) {
    for first in (from..to).step_by(100) {
        let mut pipe = redis::pipe();
        for n in first..to.min(first + 100) {
            for like in 0..LIKES {
                pipe.cmd("FEED.ACT").arg("like").arg(like).arg(post(n));
            }
            for like in 0..late {
                // Repeat some likes, which changes nothing.
                pipe.cmd("FEED.ACT").arg("like").arg(0).arg(post((n + like * 7) % 100));
            }
        }
        // Fails if any request was refused.
        pipe.query::<()>(c).unwrap();
    }
}

/// Checks the likes and flags of all posts. Returns the lowest id of each table of both spaces;
/// outliers (ids far above all others) are not in tables.
fn verify(c: &mut Connection, posts: u64, what: &str) -> [Vec<u64>; 2] {
    let all: Vec<u64> = (0..posts).map(post).collect();
    let mut lacking = 0;
    for ids in all.chunks(500) {
        let rows: Vec<Option<Vec<i64>>> = cmd("CNT.GET").arg("post").arg(ids).query(c).unwrap();
        for row in &rows {
            // A false positive may suppress a like.
            let likes = row.as_ref().map_or(0, |row| row[0]);
            assert!((1..=LIKES as i64).contains(&likes), "{what}: {row:?}");
            lacking += LIKES - likes as u64;
        }
        let flags: Vec<Option<i64>> =
            cmd("PH.EXISTS").arg("liked").arg(LIKES - 1).arg(ids).query(c).unwrap();
        assert!(flags.iter().all(|flag| *flag == Some(1)), "{what}");
    }
    assert!(lacking as f64 <= posts as f64 * (LIKES - 1) as f64 * RATE, "{what}: {lacking}");
    ["post", "liked"].map(|space| {
        let is_table = |table: &&HashMap<String, redis::Value>| {
            let place = redis::from_redis_value::<String>(table["where"].clone());
            place.unwrap() != "outliers"
        };
        let all = tables(c, space);
        all.iter().filter(is_table).map(|table| number(table, "low") as u64).collect()
    })
}

fn ends(lows: &[u64]) -> (usize, usize) {
    let lower = lows.iter().filter(|&&low| low < FIRST + GAP / 2).count();
    (lower, lows.len() - lower)
}

#[test]
fn two_ranges_of_ids_are_served_side_by_side_for_ever() {
    let (server, replica) = (TestServer::with(small), TestServer::with(small));
    follow(&replica, &server);
    let c = &mut server.connection();
    traffic(c, 0, 30_000, 0);
    // Traffic has three likes of old posts for each new post, and a broken client sends random ids.
    let mut random = fastrand::Rng::with_seed(7);
    let strays: Vec<u64> = (0..2000).map(|_| random.u64(FIRST * 64..)).collect();
    for ids in strays.chunks(200) {
        let added: Vec<i64> = cmd("PH.ADD").arg("liked").arg(1).arg(ids).query(c).unwrap();
        assert_eq!(added, vec![1; ids.len()]);
    }
    traffic(c, 30_000, 60_000, 3);
    let [rows, pairs] = verify(c, 60_000, "live");
    let (lower, upper) = ends(&rows);
    assert!(lower > 20 && upper > 1, "{lower} and {upper} tables of rows");
    let (lower, upper) = ends(&pairs);
    assert!(lower > 15 && upper > 1, "{lower} and {upper} tables of pairs");
    wait_for_sync(&server, &replica);
    assert_eq!(verify(&mut replica.connection(), 60_000, "replica")[1], pairs);
    let killed = server.killed();
    assert_eq!(verify(&mut killed.connection(), 60_000, "killed")[1], pairs);
    drop(killed);
    // After a restart from a snapshot, both ranges keep rolling.
    cmd("SAVE").query::<()>(c).unwrap();
    let server = server.restart();
    let c = &mut server.connection();
    assert_eq!(verify(c, 60_000, "restarted")[1], pairs);
    // A master that had a replica is fenced after a restart until its role is confirmed.
    cmd("REPLICAOF").arg("NO").arg("ONE").query::<()>(c).unwrap();
    traffic(c, 60_000, 120_000, 0);
    let [more_rows, more_pairs] = verify(c, 120_000, "and on");
    assert!(ends(&more_pairs).0 > ends(&pairs).0 + 10 && ends(&more_pairs).1 > ends(&pairs).1);
    assert!(ends(&more_rows).0 > ends(&rows).0 + 15 && ends(&more_rows).1 > ends(&rows).1);
    let yes: Vec<i64> = cmd("PH.EXISTS").arg("liked").arg(1).arg(&strays).query(c).unwrap();
    assert_eq!(yes, vec![1; strays.len()]);
}

/// Two services begin to write while the space is nearly full and contains many outliers. Rows that
/// are in tables before a restart are still in tables after it and use no more memory, although
/// each batch of the log is sorted by id.
#[test]
fn restart_restores_ranges_opened_under_memory_pressure() {
    const ROWS: u64 = 10_000;
    let server = TestServer::with(|config| {
        let post = &mut config.counter[0];
        (post.rows_per_table, post.memory_limit_bytes) = (8192, 600_000);
        (config.durability.snapshot_every_s, post.spill) = (0, true);
    });
    let mut random = fastrand::Rng::with_seed(3);
    let service = |n: u64| n / 2 + if n.is_multiple_of(2) { 1_000_000 } else { 1_000_000_000_000 };
    let ids: Vec<u64> = (1000..14_000)
        .chain((0..3000).map(|_| random.u64(..1 << 63)))
        .chain((0..ROWS).map(service))
        .collect();
    let c = &mut server.connection();
    for some in ids.chunks(500) {
        let mut pipe = redis::pipe();
        some.iter()
            .for_each(|id| _ = pipe.cmd("CNT.INCRBY").arg("post").arg(id).arg("like").arg(1));
        pipe.query::<()>(c).unwrap();
    }
    let look = |c: &mut Connection| {
        let spaces: Vec<HashMap<String, redis::Value>> =
            cmd("TM.SPACE").arg("LIST").query(c).unwrap();
        let post = &spaces[0];
        ["outlier_rows", "memory_bytes"].map(|name| number(post, name) as u64)
    };
    let [outliers, memory] = look(c);
    assert!(outliers < 2000, "{outliers} outlier rows");
    let mut server = server;
    for _ in 0..2 {
        server = server.restart();
        let c = &mut server.connection();
        let [now, bytes] = look(c);
        assert!(
            now < 2000 && bytes <= memory + memory / 5,
            "{now} rows, {bytes} of {memory} bytes"
        );
        for n in ROWS..ROWS + 200 {
            let id = service(n);
            cmd("CNT.INCRBY").arg("post").arg(id).arg("like").arg(1).query::<()>(c).unwrap();
            cmd("CNT.DEL").arg("post").arg(id).query::<()>(c).unwrap();
        }
    }
}
