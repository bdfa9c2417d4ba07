//! Spaces whose first ids all lie above the middle: a broken client's, before the traffic comes, which lies below; or a service's own.

use phantom::{Answer, Change, Error, Member, Options, Space, TableDecoder};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const FIRST: u64 = 1 << 50;
const MOST_ASIDE: usize = 2000;

fn space(pairs_per_table: u64) -> Space {
    let (max_tables, max_aside) = (4, MOST_ASIDE);
    Space::new(Options { pairs_per_table, max_tables, max_aside, seed: 3, ..Options::default() }).expect("small tables")
}

fn add(space: &Space, id: u64, member: u64) -> Result<Change, Error> {
    space.add(id, &Member::Number(member))
}

fn contains(space: &Space, id: u64, member: u64) -> Answer {
    space.contains(id, &Member::Number(member))
}

/// The `i`-th pair of ids that are negative numbers.
fn bad(i: u64) -> (u64, u64) {
    (u64::MAX - i / 2, i % 2)
}

/// Posts as they come, of ten pairs, some of them late.
fn traffic(space: &Space, posts: std::ops::Range<u64>) {
    for post in posts {
        for member in 0..10 {
            let late = if member < 2 { 50 } else { 0 };
            add(space, FIRST + post.saturating_sub(late) * 64, post * 10 + member).expect("room for traffic");
        }
        while post % 50 == 0 && space.maintain() {}
    }
}

#[test]
fn traffic_below_takes_over_from_what_came_first() {
    for flood in [MOST_ASIDE as u64, 30_000] {
        let space = space(20_000);
        for i in 0..flood {
            assert_ne!(add(&space, bad(i).0, bad(i).1).expect("it begins there"), Change::Unknown);
        }
        while space.maintain() {}
        assert_eq!((space.horizon(), space.aside_pairs()), (0, 0), "{flood}: in tables");
        traffic(&space, 0..30_000);
        let tables = space.tables_probed(100_000);
        let (below, above): (Vec<_>, Vec<_>) = tables.iter().partition(|table| table.low < 1 << 63);
        assert!(below.len() > 3 && below[0].low > FIRST, "{flood}: it rolls and recycles: {below:#?}");
        assert!(
            below.iter().all(|table| table.extensions == 0 && table.pairs <= table.capacity),
            "{flood}: {below:#?}"
        );
        assert_eq!(below[below.len() - 1].early, 0, "{flood}: the last of these is not closed");
        assert!(above.iter().all(|table| table.early > 0), "{flood}: {above:#?}");
        for table in &tables {
            let rate = table.measured.rate().expect("canaries");
            assert!(table.expected_rate <= 0.0001 && rate < 0.0003, "{flood}: {table:?}");
        }
        let low = space.horizon();
        for post in (low - FIRST) / 64 + 1..30_000 {
            assert_eq!(contains(&space, FIRST + post * 64, post * 10 + 5), Answer::Yes, "{flood}: post {post}");
        }
        assert_eq!(contains(&space, low - 1, 5), Answer::Unknown);
        // What came first is found, counts once, and can be taken back and set again.
        for i in 0..flood {
            let (id, member) = bad(i);
            assert_eq!(contains(&space, id, member), Answer::Yes, "{flood}: {i}");
            assert_eq!(add(&space, id, member).expect("it is there"), Change::Unchanged, "{flood}: {i}");
        }
        let (id, member) = bad(7);
        for _ in 0..2 {
            assert_eq!(space.remove(id, &Member::Number(member)).expect("room"), Change::Changed);
            assert_eq!(contains(&space, id, member), Answer::No);
            assert_eq!(space.remove(id, &Member::Number(member)).expect("nothing to do"), Change::Unchanged);
            assert_eq!(add(&space, id, member).expect("room"), Change::Changed);
        }
        assert_eq!(space.aside_pairs(), 0);
        // More of that kind is far ahead, and bounded.
        let more = (0..100_000u64).filter(|i| matches!(add(&space, 1 << 63 | *i, 9), Err(Error::AsideFull)));
        assert!(more.count() >= 100_000 - MOST_ASIDE - 100 && space.aside_pairs() == MOST_ASIDE);
        traffic(&space, 30_000..60_000);
        assert!(space.horizon() > FIRST + 30_000 * 64 && space.horizon() < FIRST + 60_000 * 64);
        assert_eq!(contains(&space, bad(9).0, bad(9).1), Answer::Yes);
    }
}

#[test]
fn a_service_above_rolls_there_beside_strays_below() {
    const BEGIN: u64 = (1 << 63) + (1 << 62);
    let space = space(20_000);
    let mut strays = 0;
    for i in 0..300_000u64 {
        assert_ne!(add(&space, BEGIN + i / 10, i % 10).expect("room for traffic"), Change::Unknown, "{i}");
        if i > 5000 && i % 7 == 0 && strays < MOST_ASIDE as u64 / 2 {
            // Until the first table above is recycled, and with it all below.
            let kept = if space.horizon() == 0 { Change::Changed } else { Change::Unknown };
            assert_eq!(add(&space, strays, 1).expect("room aside"), kept);
            strays += 1;
        }
        while i % 500 == 0 && space.maintain() {}
        assert!(strays == 0 || i % 1000 != 0 || contains(&space, strays / 2, 1) != Answer::No, "{i}");
    }
    let tables = space.tables();
    assert!(tables.len() > 3 && space.horizon() > BEGIN, "{tables:#?}");
    assert!(tables.iter().all(|table| table.extensions < 2), "{tables:#?}");
    assert_eq!(contains(&space, BEGIN + 29_999, 9), Answer::Yes);
    assert_eq!(contains(&space, BEGIN, 9), Answer::Unknown);
    assert_eq!((contains(&space, 5, 1), add(&space, 5, 2).expect("nothing to do")), (Answer::Unknown, Change::Unknown));
}

/// The frontier turns under writers of the very pairs that it leaves (P3).
#[test]
fn of_two_that_set_a_pair_while_the_frontier_turns_one_is_told() {
    for round in 0..20 {
        let space = space(20_000);
        (0..MOST_ASIDE as u64).for_each(|i| _ = add(&space, bad(i).0, bad(i).1).expect("it begins there"));
        let (changed, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for i in 0..MOST_ASIDE as u64 {
                        match add(&space, u64::MAX - i, 100 + round) {
                            Ok(done) => _ = changed.fetch_add(u64::from(done == Change::Changed), Relaxed),
                            Err(_) => _ = refused.fetch_add(1, Relaxed),
                        }
                    }
                });
            }
            scope.spawn(|| traffic(&space, 0..300));
        });
        let found = (0..MOST_ASIDE as u64).filter(|i| contains(&space, u64::MAX - i, 100 + round) == Answer::Yes);
        let (changed, found) = (changed.into_inner(), found.count() as u64);
        assert!(changed <= found && changed + 3 >= found, "{changed} of {found} in round {round}");
        assert!(space.layout().iter().any(|at| at.low == 1 << 63));
    }
}

/// The active table rolls between the list of the tables and its turn to be encoded: the one above it is in no snapshot, and nothing was recycled.
#[test]
fn a_roll_below_the_middle_during_a_snapshot_loses_nothing() {
    let options =
        Options { pairs_per_table: 20_000, max_tables: 40, max_aside: MOST_ASIDE, seed: 3, ..Options::default() };
    let space = Space::new(options.clone()).expect("small tables");
    (0..MOST_ASIDE as u64).for_each(|i| _ = add(&space, bad(i).0, bad(i).1).expect("it begins there"));
    while space.maintain() {}
    traffic(&space, 0..10_000);
    let (before, head, list) = (space.layout(), space.encode_head(), space.ranges_in_memory());
    assert!(before.len() > 3 && space.roll_now());
    let mut tables = vec![];
    for (low, _) in list {
        let mut decoder = TableDecoder::new(&options, u64::MAX);
        assert!(space.encode_table(low, |bytes| decoder.feed(bytes)).expect("what was encoded"));
        tables.push(decoder.finish().expect("a table"));
    }
    let back = Space::restore(options, &head, tables).expect("a ring");
    assert_eq!(back.layout(), before);
    // What the log tells after it.
    traffic(&space, 10_000..10_050);
    let course = space.course(u64::MAX);
    back.put_layout(&course.layout.expect("asked for")).expect("memory");
    back.put_frontier(course.frontier);
    assert_eq!(back.layout(), space.layout());
    back.lead();
    for post in 0..10_000 {
        assert_eq!(contains(&back, FIRST + post * 64, post * 10 + 5), Answer::Yes, "post {post}");
    }
    traffic(&back, 10_050..20_000);
    assert!((0..MOST_ASIDE as u64).all(|i| contains(&back, bad(i).0, bad(i).1) == Answer::Yes));
}
