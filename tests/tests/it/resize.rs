//! Likes of old posts: the server rebuilds the filters of tables that receive more pairs than
//! planned.

use harness::within;
use redis::Connection;
use std::time::Duration;
use tidemark_tests::{TestServer, number, tables};

const POSTS: u64 = 2000;
const LATE_VIEWERS: u64 = 30;
/// Maximum time until the filters are rebuilt. A table is rebuilt once it has hardly grown for 10
/// seconds.
const RESIZE_TIMEOUT: Duration = Duration::from_secs(60);

/// Sets the flags of a viewer on all posts, in random order.
fn like_all(connection: &mut Connection, viewer: u64, rng: &mut fastrand::Rng) {
    let mut posts: Vec<u64> = (1..=POSTS).collect();
    rng.shuffle(&mut posts);
    let set: Vec<u64> =
        redis::cmd("PH.ADD").arg("liked").arg(viewer).arg(&posts).query(connection).unwrap();
    assert!(set.iter().all(|&changed| changed == 1), "viewer {viewer} set a flag twice");
}

/// Checks that every flag that was set reads as set, and that at most a few of 20,000 other flags
/// read as set.
fn verify(connection: &mut Connection) {
    let posts: Vec<u64> = (1..=POSTS).collect();
    let mut flags = |viewer: u64| -> u64 {
        let flags: Vec<u64> =
            redis::cmd("PH.EXISTS").arg("liked").arg(viewer).arg(&posts).query(connection).unwrap();
        flags.iter().sum()
    };
    (0..=LATE_VIEWERS).for_each(|viewer| assert_eq!(flags(viewer), POSTS, "viewer {viewer}"));
    let wrong: u64 = (1000..1010).map(&mut flags).sum();
    assert!(wrong < 20, "{wrong} of 20,000 flags are false positives, at a rate of 0.01 %");
}

/// Waits until each table has one filter, and the filter of the oldest table has the right size.
fn wait_for_resize(connection: &mut Connection) {
    within(RESIZE_TIMEOUT, "the old table has one filter of its size", || {
        let tables = tables(connection, "liked");
        let oldest = &tables[0];
        let [pairs, capacity] = ["pairs", "capacity"].map(|name| number(oldest, name));
        assert!(pairs > 60_000.0, "{oldest:?}");
        tables.iter().all(|table| number(table, "extensions") == 0.0) && capacity < 1.2 * pairs
    });
}

#[test]
fn late_likes_leave_one_filter_per_table() {
    let server = TestServer::with(|config| {
        config.existence[0].pairs_per_table = 20_000;
        config.durability.snapshot_every_s = 0;
    });
    let mut connection = server.connection();
    let rng = &mut fastrand::Rng::with_seed(5);
    like_all(&mut connection, 0, rng);
    redis::cmd("TM.ROLL").arg("liked").query::<()>(&mut connection).unwrap();
    (1..=LATE_VIEWERS).for_each(|viewer| like_all(&mut connection, viewer, rng));
    wait_for_resize(&mut connection);
    verify(&mut connection);
    // The log and the last snapshot do not contain the new filters.
    let server = server.killed();
    verify(&mut server.connection());
    wait_for_resize(&mut server.connection());
    redis::cmd("SAVE").query::<()>(&mut server.connection()).unwrap();
    let server = server.killed();
    verify(&mut server.connection());
    let oldest = &tables(&mut server.connection(), "liked")[0];
    assert_eq!(number(oldest, "extensions"), 0.0, "{oldest:?}");
}
