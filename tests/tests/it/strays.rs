//! Floods of ids near 2^64, from a broken client (-1, -2, ...) or an attacker: before, during and
//! after normal traffic. The floods must not affect the closing of tables, the error rate or the
//! horizon (the lowest id that is still stored), and no pair may be lost. No space sets `max_ahead`
//! here.

use redis::{Connection, cmd};
use tidemark_server::config::{Config, LedgerMode};
use tidemark_tests::{TestServer, eventually, number, tables};

const FIRST: u64 = 1 << 50;
const LIKES: u64 = 10;

fn small(config: &mut Config) {
    let liked = &mut config.existence[0];
    (liked.pairs_per_table, liked.max_tables, liked.false_positive_rate) = (8000, 6, 0.001);
    // The space recycles tables, so that its lowest stored id rises.
    (liked.spill, liked.ledger) = (false, LedgerMode::Off);
    // Provide enough memory for the outliers (ids far above all others).
    liked.memory_limit_bytes = 64 << 20;
    config.counter[0].rows_per_table = 4096;
}

/// Adds likes for ids from the end of the id space.
fn flood(c: &mut Connection, from: u64, to: u64) {
    for first in (from..to).step_by(500) {
        let mut pipe = redis::pipe();
        (first..to.min(first + 500))
            .for_each(|i| _ = pipe.cmd("PH.ADD").arg("liked").arg(i % 97).arg(u64::MAX - i));
        pipe.query::<()>(c).unwrap();
    }
}

/// Adds posts with likes; one like in five arrives late.
fn traffic(c: &mut Connection, from: u64, to: u64) {
    for first in (from..to).step_by(50) {
        let mut pipe = redis::pipe();
        for post in first..first + 50 {
            for like in 0..LIKES {
                let late = if like < 2 { (like + 1) * 100 } else { 0 };
                pipe.cmd("PH.ADD")
                    .arg("liked")
                    .arg(post * LIKES + like)
                    .arg(FIRST + post.saturating_sub(late));
            }
        }
        pipe.query::<()>(c).unwrap();
    }
}

/// Checks that outliers do not affect the tables: the tables are full, have the configured error
/// rate, and are as many as the limit allows. Also checks that all pairs above the horizon are
/// found.
fn verify(c: &mut Connection, posts: u64, strays: u64, what: &str) {
    let all = tables(c, "liked");
    let horizon = number(&all[0], "low") as u64;
    // Six full tables of 8,000 pairs, whose pages have some spare space.
    let kept = 6 * 8909 / LIKES;
    assert!(
        horizon > FIRST + posts - kept && horizon < FIRST + posts - kept / 3,
        "{what}: {horizon} {all:#?}"
    );
    let newest = number(&all[all.len() - 1], "low") as u64;
    assert!(newest > FIRST + posts - 1000 && newest <= FIRST + posts, "{what}: {newest}");
    for table in &all {
        assert!(
            number(table, "expected_rate") <= 0.001 && number(table, "extensions") < 2.0,
            "{what}: {table:?}"
        );
        let (measured, canaries) = (number(table, "measured_rate"), number(table, "canaries"));
        assert!(measured <= 0.001 + 5.0 * (0.001 / canaries).sqrt(), "{what}: {table:?}");
    }
    let yes = |c: &mut Connection, ids: &mut dyn Iterator<Item = (u64, u64)>| {
        let ids: Vec<(u64, u64)> = ids.collect();
        let mut found = 0;
        for ids in ids.chunks(500) {
            let mut pipe = redis::pipe();
            ids.iter().for_each(|(viewer, id)| {
                _ = pipe.cmd("PH.EXISTS").arg("liked").arg(viewer).arg(id)
            });
            let replies: Vec<Vec<Option<i64>>> = pipe.query(c).unwrap();
            found += replies.iter().filter(|reply| reply[0] == Some(1)).count() as u64;
        }
        found
    };
    let from = horizon - FIRST + 1;
    assert_eq!(
        yes(c, &mut (from..posts).map(|post| (post * LIKES + 5, FIRST + post))),
        posts - from,
        "{what}"
    );
    assert_eq!(yes(c, &mut (0..strays).map(|i| (i % 97, u64::MAX - i))), strays, "{what}: strays");
    let wrong = yes(c, &mut (0..strays).map(|i| (98, u64::MAX - i)));
    assert!(
        wrong as f64 <= strays as f64 * 0.001 + 5.0 * (strays as f64 * 0.001).sqrt(),
        "{what}: {wrong} wrong"
    );
    let below: Vec<Option<i64>> =
        cmd("PH.EXISTS").arg("liked").arg(1).arg(horizon - 1).query(c).unwrap();
    assert_eq!(below, [None], "{what}");
}

#[test]
fn pairs_of_ids_near_the_end_of_all_take_nothing_from_others() {
    let server = TestServer::with(small);
    let c = &mut server.connection();
    // Add outliers as the first ids of the space, then hundreds and thousands at once.
    flood(c, 0, 700);
    traffic(c, 0, 6000);
    flood(c, 700, 6000);
    traffic(c, 6000, 12_000);
    verify(c, 12_000, 6000, "beside strays");
    // Add more outliers than can be stored outside the tables. These outliers still get no tables,
    // because they are too close to the end of the id space.
    flood(c, 6000, 80_000);
    traffic(c, 12_000, 18_000);
    verify(c, 18_000, 80_000, "beside many");
    let server = server.restart();
    let c = &mut server.connection();
    verify(c, 18_000, 80_000, "after a restart");
    traffic(c, 18_000, 24_000);
    verify(c, 24_000, 80_000, "and on");
}

/// A few hundred outliers in another part of the id space are too few to become a range.
#[test]
fn hundreds_of_strays_anywhere_take_nothing_from_others() {
    let server = TestServer::with(small);
    let c = &mut server.connection();
    traffic(c, 0, 1000);
    for place in [FIRST << 1, FIRST << 5, 1 << 62] {
        let ids: Vec<u64> = (0..900).map(|i| place + i * 64).collect();
        let added: Vec<i64> = cmd("PH.ADD").arg("liked").arg(7).arg(ids).query(c).unwrap();
        assert_eq!(added, [1; 900]);
    }
    traffic(c, 1000, 12_000);
    verify(c, 12_000, 0, "beside strays");
    let ids: Vec<u64> = (0..900).map(|i| (1 << 62) + i * 64).collect();
    assert_eq!(
        cmd("PH.EXISTS").arg("liked").arg(7).arg(ids).query::<Vec<i64>>(c).unwrap(),
        [1; 900]
    );
}

#[test]
fn rows_of_ids_near_the_end_of_all_take_nothing_from_others() {
    let server = TestServer::with(small);
    let c = &mut server.connection();
    let count = |c: &mut Connection, ids: &mut dyn Iterator<Item = u64>| {
        let ids: Vec<u64> = ids.collect();
        for ids in ids.chunks(500) {
            let mut pipe = redis::pipe();
            ids.iter()
                .for_each(|id| _ = pipe.cmd("CNT.INCRBY").arg("post").arg(*id).arg("like").arg(3));
            pipe.query::<()>(c).unwrap();
        }
    };
    let bad = |from: u64, to: u64| (from..to).map(|i| u64::MAX - i);
    let good = |from: u64, to: u64| (from..to).map(|i| FIRST + i * 16);
    count(c, &mut bad(0, 700));
    count(c, &mut good(0, 20_000));
    count(c, &mut bad(700, 6000));
    count(c, &mut good(20_000, 60_000));
    let mut before = vec![];
    eventually("the tables stop changing", || {
        let now: Vec<_> = tables(c, "post")
            .iter()
            .map(|t| (number(t, "low") as u64, number(t, "rows") as u64))
            .collect();
        std::mem::replace(&mut before, now.clone()) == now
    });
    let all = tables(c, "post");
    let rows: f64 = all.iter().map(|table| number(table, "rows")).sum();
    assert_eq!(rows, 60_000.0, "outliers are not in tables");
    assert!(number(&all[all.len() - 1], "low") as u64 > FIRST + 50_000 * 16, "{all:#?}");
    for table in &all[..all.len() - 1] {
        // The extend dictionary can take a third of a small table, so the limit applies to large
        // tables.
        let rows = number(table, "rows");
        assert!(
            rows > 1000.0 && (rows < 10_000.0 || number(table, "bytes_per_row") < 16.0),
            "{table:?}"
        );
    }
    for id in bad(0, 6000).chain(good(0, 60_000)).step_by(7) {
        assert_eq!(
            cmd("HGET").arg(format!("post:{id}")).arg("like").query::<i64>(c).unwrap(),
            3,
            "{id}"
        );
    }
}

/// Traffic jumps to a new range among many outliers, and 30% of the traffic is for one post.
/// Nothing is refused, and the data survives two restarts.
#[test]
fn a_popular_post_keeps_no_traffic_out_beside_many_strays() {
    let server = TestServer::with(small);
    let c = &mut server.connection();
    traffic(c, 0, 1000);
    flood(c, 0, (1 << 16) + 100);
    let there = FIRST + (1 << 40);
    let post = |i: u64| there + if i % 10 < 3 { 7 } else { i / 10 };
    let set: Vec<u64> = (0..30_000).collect();
    for some in set.chunks(500) {
        let mut pipe = redis::pipe();
        some.iter().for_each(|&i| _ = pipe.cmd("PH.ADD").arg("liked").arg(i).arg(post(i)));
        pipe.query::<()>(c).unwrap();
    }
    let verify = |c: &mut Connection, what: &str| {
        for some in set.chunks(500) {
            let mut pipe = redis::pipe();
            some.iter().for_each(|&i| _ = pipe.cmd("PH.EXISTS").arg("liked").arg(i).arg(post(i)));
            let replies: Vec<Vec<Option<i64>>> = pipe.query(c).unwrap();
            assert!(replies.iter().all(|reply| reply[0] == Some(1)), "{what}: {replies:?}");
        }
        let strays: Vec<u64> = (0..1 << 16).step_by(97).map(|i| u64::MAX - i).collect();
        let held: Vec<Option<i64>> =
            cmd("PH.EXISTS").arg("liked").arg(0).arg(&strays).query(c).unwrap();
        assert_eq!(held, vec![Some(1); strays.len()], "{what}: strays");
        tidemark_tests::eventually("tables follow the traffic", || {
            let all = tables(c, "liked");
            number(&all[all.len() - 1], "low") as u64 >= there
        });
    };
    verify(c, "at once");
    let server = server.restart();
    verify(&mut server.connection(), "after a start");
    let server = server.restart();
    verify(&mut server.connection(), "after another");
}

/// The traffic can jump to a new range even if there are more outlier rows than the space can
/// store.
#[test]
fn rows_near_the_end_of_all_leave_room_for_a_new_range() {
    const LIMIT: u64 = 8 << 20;
    let server = TestServer::with(|config| {
        let post = &mut config.counter[0];
        (post.rows_per_table, post.memory_limit_bytes, post.spill) = (8192, LIMIT, true);
    });
    let c = &mut server.connection();
    let count = |c: &mut Connection, ids: &mut dyn Iterator<Item = u64>| {
        let ids: Vec<u64> = ids.collect();
        let mut refused = 0;
        for ids in ids.chunks(500) {
            let mut request = cmd("CNT.MINCRBY");
            request.arg("post");
            ids.iter().for_each(|id| _ = request.arg(*id).arg("like").arg(1));
            let is_error = |reply: &&redis::Value| matches!(reply, redis::Value::ServerError(_));
            // Counts the errors, or all requests if the reply itself is an error.
            refused += match request.query::<Vec<redis::Value>>(c) {
                Ok(replies) => replies.iter().filter(is_error).count(),
                Err(_) => ids.len(),
            };
        }
        refused
    };
    assert_eq!(count(c, &mut (FIRST..FIRST + 30_000)), 0);
    let near_the_end = count(c, &mut (0..40_000).map(|i| u64::MAX - i));
    assert!((20_000..30_000).contains(&near_the_end), "{near_the_end} of 40,000 were rejected");
    for to in [FIRST << 1, FIRST << 4, FIRST << 8] {
        assert_eq!(count(c, &mut (to..to + 20_000)), 0, "{to}");
    }
    assert_eq!(count(c, &mut (FIRST + 30_000..FIRST + 60_000)), 0, "the old range continues");
    let mut page = cmd("CNT.GET");
    page.arg("post").arg(u64::MAX).arg(FIRST << 8).arg(FIRST + 59_999).arg(u64::MAX - 39_999);
    let rows: Vec<Option<Vec<i64>>> = page.query(c).unwrap();
    let likes = rows.iter().map(|row| row.as_ref().map(|row| row[0])).collect::<Vec<_>>();
    assert_eq!(likes, [Some(1), Some(1), Some(1), None]);
}
