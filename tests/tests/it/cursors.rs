//! Scan cursors stay below 2^50, because clients store them as doubles and proxies add bits.

use super::cold::{call, small};
use redis::{Commands, Connection, FromRedisValue, cmd};
use std::collections::BTreeSet;
use tidemark_tests::TestServer;

/// Repeats a scan command, with options after the cursor, until the scan ends.
fn walk<T: FromRedisValue + Ord>(
    c: &mut Connection,
    words: &[&str],
    options: &[&str],
) -> BTreeSet<T> {
    let (mut cursor, mut all) = (0u64, BTreeSet::new());
    loop {
        let mut request = cmd(words[0]);
        request.arg(&words[1..]).arg(cursor).arg(options);
        let (next, found): (u64, Vec<T>) = request.query(c).unwrap();
        all.extend(found);
        assert!(next < 1 << 50, "{words:?} {options:?}: {next}");
        if next == 0 {
            return all;
        }
        cursor = next;
    }
}

#[test]
fn all_cursors_fit_a_double_and_lead_to_every_key() {
    const ROWS: u64 = 6_000;
    let server = TestServer::with(small);
    let mut c = server.connection();
    let ids: Vec<u64> = (1..=ROWS).chain(u64::MAX - ROWS + 1..=u64::MAX).collect();
    for ids in ids.chunks(1000) {
        let mut pipe = redis::pipe();
        for id in ids {
            pipe.cmd("HSET").arg(format!("post:{id}")).arg("like").arg(1).ignore();
            pipe.cmd("HSET").arg(format!("user:{id}")).arg("follower").arg(1).ignore();
        }
        let members: Vec<u64> = ids.to_vec();
        pipe.cmd("SADD").arg("liked:7").arg(members).ignore();
        let texts: Vec<String> = ids.iter().map(|id| format!("user-{id}")).collect();
        pipe.cmd("SADD").arg("liked:8").arg(texts).ignore();
        pipe.exec(&mut c).unwrap();
    }
    for spilled in [false, true] {
        if spilled {
            assert!(call::<u64>(&mut c, "TM.SPILL post 20").unwrap() > 0);
            c.hset::<_, _, _, ()>("post:3", "like", 2).unwrap();
        }
        for count in ["1", "10", "1000"] {
            let rows: BTreeSet<String> = walk(&mut c, &["SCAN"], &["COUNT", count]);
            assert_eq!(rows.len() as u64, 4 * ROWS, "COUNT {count}, spilled: {spilled}");
            let options = ["TYPE", "hash", "MATCH", "post:*", "COUNT", count];
            let rows: BTreeSet<String> = walk(&mut c, &["SCAN"], &options);
            assert_eq!(rows.len() as u64, 2 * ROWS, "COUNT {count}, spilled: {spilled}");
            let rows: BTreeSet<Vec<i128>> = walk(&mut c, &["CNT.SCAN", "post"], &["COUNT", count]);
            assert_eq!(rows.len() as u64, 2 * ROWS, "COUNT {count}, spilled: {spilled}");
            for key in ["liked:7", "liked:8"] {
                let members: BTreeSet<String> = walk(&mut c, &["SSCAN", key], &["COUNT", count]);
                assert_eq!(members.len() as u64, 2 * ROWS, "{key}, COUNT {count}");
            }
        }
    }
}

/// A client that stores numbers as doubles has rounded these cursors of an earlier release.
#[test]
fn larger_cursors_are_invalid() {
    let server = TestServer::start();
    let mut c = server.connection();
    call::<()>(&mut c, "HSET post:1 like 9").unwrap();
    call::<()>(&mut c, "SADD liked:1 7").unwrap();
    for cursor in [8850040560224829440u64, 1 << 50, u64::MAX] {
        for words in ["SCAN", "CNT.SCAN post", "SSCAN liked:1"] {
            let refused = call::<redis::Value>(&mut c, &format!("{words} {cursor}"));
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("invalid cursor"), "{words} {cursor}: {refused}");
        }
    }
    let all: BTreeSet<String> = {
        let (_, found): (u64, Vec<String>) = call(&mut c, "SCAN 255").unwrap();
        found.into_iter().collect()
    };
    assert_eq!(all, BTreeSet::from(["post:1".to_owned()]));
}
