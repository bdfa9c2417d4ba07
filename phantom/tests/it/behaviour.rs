//! One test per guarantee.

use phantom::{Answer, Change, Error, Member, Options, Space};

const FIRST: u64 = 3_631_614_501_919_378;

fn space(pairs_per_table: u64, max_tables: usize) -> Space {
    let options = Options {
        false_positive_rate: 0.001,
        pairs_per_table,
        max_tables,
        seed: 1,
        ..Options::default()
    };
    Space::new(options).expect("small tables")
}

fn add(space: &Space, id: u64, member: u64) -> Change {
    space.add(id, &Member::Number(member)).expect("no limit is reached")
}

fn contains(space: &Space, id: u64, member: u64) -> Answer {
    space.contains(id, &Member::Number(member)).unwrap()
}

#[test]
fn like_unlike_like_again() {
    let space = space(1000, 2);
    for id in (0..200).chain([u64::MAX, 1 << 60]) {
        for member in [Member::Number(7), Member::Bytes(b"seven"), Member::parse(b"7.0")] {
            for _ in 0..3 {
                assert_eq!(space.contains(id, &member).unwrap(), Answer::No);
                assert_eq!(space.remove(id, &member).unwrap(), Change::Unchanged);
                assert_eq!(space.add(id, &member).unwrap(), Change::Changed);
                assert_eq!(space.add(id, &member).unwrap(), Change::Unchanged);
                assert_eq!(space.contains(id, &member).unwrap(), Answer::Yes);
                assert_eq!(space.remove(id, &member).unwrap(), Change::Changed);
                assert_eq!(space.remove(id, &member).unwrap(), Change::Unchanged);
            }
        }
    }
    assert_eq!(space.pairs(), 0);
}

#[test]
fn the_order_of_ids_does_not_matter() {
    let pair = |i: u64| (FIRST + i / 10 * 4096, i * 7);
    let n = 50_000u64;
    let mut shuffled: Vec<u64> = (0..n).collect();
    fastrand::Rng::with_seed(3).shuffle(&mut shuffled);
    let orders: [(&str, Vec<u64>); 3] = [
        ("in order", (0..n).collect()),
        ("newest first", (0..n).rev().collect()),
        ("shuffled", shuffled),
    ];
    for (name, order) in orders {
        let space = space(8000, 1000);
        for i in order {
            let (id, member) = pair(i);
            add(&space, id, member);
        }
        while space.maintain() {}
        assert_eq!(space.horizon(), 0);
        let missing =
            (0..n).filter(|&i| contains(&space, pair(i).0, pair(i).1) != Answer::Yes).count();
        assert_eq!(missing, 0, "{name}");
        let wrong = (n..n + 200_000)
            .filter(|&i| contains(&space, pair(i % n).0, i * 7) == Answer::Yes)
            .count();
        assert!(wrong < 200 + 4 * 15, "{name}: {wrong} false positives in 200000 at 0.001");
        assert_eq!(space.outlier_pairs(), 0, "{name}");
        // New ids still get new tables.
        let before = space.layout().len();
        for i in n..2 * n {
            add(&space, pair(i).0, pair(i).1);
        }
        assert!(space.layout().len() >= before + 3, "{name}: {:?}", space.layout());
        let newest = space.layout().last().map(|at| at.low);
        assert!(newest > Some(pair(n).0), "{name}");
    }
}

/// Lowered limits recycle tables without a rollover, and the log records the change. A follower
/// recycles tables only when it applies a logged layout.
#[test]
fn lowered_limits_recycle_at_once() {
    let filled = || {
        let space = space(1000, 8);
        for i in 0..14_000 {
            add(&space, FIRST + i, i);
        }
        while space.maintain() {}
        assert!(space.horizon() == 0 && space.layout().len() > 5, "{:?}", space.layout());
        space
    };
    let (leads, follows) = (filled(), filled());
    leads.take_unlogged_changes();
    follows.follow();
    for space in [&leads, &follows] {
        let two = Options { max_tables: 2, ..space.options().clone() };
        space.set_options(&two).expect("two tables");
        assert_eq!(space.wants_maintenance(), std::ptr::eq(space, &leads));
        while space.maintain() {}
    }
    assert!(leads.take_unlogged_changes(), "the log receives it");
    let pages: usize = leads.layout().iter().map(|at| at.pages).sum();
    let grown = leads.layout().iter().map(|at| at.pages).max().unwrap_or(0);
    assert!(leads.horizon() > FIRST && pages <= 2 * grown, "{:?}", leads.layout());
    assert_eq!(follows.horizon(), 0);
    follows.put_layout(&leads.layout()).expect("the table is unchanged");
    assert_eq!(follows.layout(), leads.layout());
    // A space that spills keeps all tables, or `keep_tables` of them, until it stops spilling.
    let spills = filled();
    let two = Options { max_tables: 2, spill: true, ..spills.options().clone() };
    spills.set_options(&two).expect("two tables");
    while spills.maintain() {}
    assert_eq!(spills.horizon(), 0);
    assert!(spills.set_options(&Options { keep_tables: 1, ..two.clone() }).is_err());
    spills.set_options(&Options { keep_tables: 4, ..two.clone() }).expect("four tables");
    while spills.maintain() {}
    let kept: usize = spills.layout().iter().map(|at| at.pages).sum();
    assert!(spills.horizon() > FIRST && (3 * grown..=4 * grown).contains(&kept), "{kept} {grown}");
    spills.set_options(&Options { spill: false, ..two }).expect("two tables");
    while spills.maintain() {}
    assert_eq!(spills.layout(), leads.layout());
}

#[test]
fn absurd_ids_leave_other_ids_as_they_are() {
    let space = space(2000, 3);
    for i in 0..5000 {
        add(&space, FIRST + i, i);
    }
    let (layout, horizon) = (space.layout(), space.horizon());
    for member in 0..1000 {
        add(&space, u64::MAX, member);
        add(&space, 1 << 63, member);
    }
    while space.maintain() {}
    assert_eq!((space.layout(), space.horizon()), (layout, horizon));
    assert_eq!(space.outlier_pairs(), 2000);
    for i in 5000..8000 {
        add(&space, FIRST + i, i);
        assert_eq!(contains(&space, FIRST + i, i), Answer::Yes);
    }
    assert!(space.layout().len() > 1);
    assert!((0..1000).all(|member| contains(&space, u64::MAX, member) == Answer::Yes));
    assert_eq!(contains(&space, u64::MAX, 1000), Answer::No);
}

/// Pairs of one id do not affect the tables of other ids. These pairs extend the id's own table. At
/// the memory limit, further writes fail.
#[test]
fn one_id_moves_no_horizon() {
    let options = Options {
        pairs_per_table: 2000,
        max_tables: 2,
        seed: 1,
        memory_limit_bytes: Some(1 << 20),
        ..Options::default()
    };
    let space = Space::new(options).expect("small tables");
    for i in 0..200 {
        add(&space, FIRST + i, i);
    }
    let mut member = 1000;
    while space.add(FIRST, &Member::Number(member)).is_ok() {
        member += 1;
    }
    assert!(matches!(space.add(FIRST, &Member::Number(member)), Err(Error::Full)));
    assert!(space.memory_bytes() <= 1 << 20 && member > 50_000, "{member} pairs");
    assert_eq!(space.horizon(), 0);
    assert!((0..200).all(|i| contains(&space, FIRST + i, i) == Answer::Yes));
    assert!((1000..member).all(|member| contains(&space, FIRST, member) == Answer::Yes));
    for i in 200..1000 {
        add(&space, FIRST + i, i);
    }
}

#[test]
fn the_answer_is_unknown_exactly_below_the_horizon() {
    let space = space(1500, 2);
    let mut i = 0;
    while space.horizon() == 0 {
        add(&space, FIRST + i, i);
        i += 1;
    }
    let horizon = space.horizon();
    assert!(FIRST < horizon && horizon < FIRST + i);
    for (id, unknown) in
        [(0, true), (FIRST, true), (horizon - 1, true), (horizon, false), (u64::MAX, false)]
    {
        assert_eq!(contains(&space, id, 1 << 50) == Answer::Unknown, unknown, "{id}");
        assert_eq!(
            space.remove(id, &Member::Number(1 << 50)).unwrap() == Change::Unknown,
            unknown,
            "{id}"
        );
        assert_eq!(add(&space, id, 1 << 50) == Change::Unknown, unknown, "{id}");
        assert_eq!(contains(&space, id, 1 << 50) == Answer::Unknown, unknown, "{id}");
    }
    assert!((horizon..FIRST + i).all(|id| contains(&space, id, id - FIRST) == Answer::Yes));
}

#[test]
fn max_ahead_refuses_ids_too_far_ahead() {
    let options =
        Options { max_ahead: Some(1 << 30), pairs_per_table: 1000, seed: 1, ..Options::default() };
    let space = Space::new(options).expect("small tables");
    for i in 0..200 {
        add(&space, FIRST + i, i);
    }
    assert!(matches!(space.add(FIRST + (1 << 31), &Member::Number(1)), Err(Error::KeyTooBig)));
    assert!(matches!(space.add(u64::MAX, &Member::Number(1)), Err(Error::KeyTooBig)));
    assert_eq!(contains(&space, u64::MAX, 1), Answer::No);
    assert_eq!(add(&space, FIRST + (1 << 29), 1), Change::Changed);
    // The limit does not apply to replay.
    space.put(&space.pair(u64::MAX, &Member::Number(1)), true).unwrap();
    assert_eq!(contains(&space, u64::MAX, 1), Answer::Yes);
}

/// After a few tables have measured the share of late pairs, tables close early enough and need no
/// extensions.
#[test]
fn tables_learn_to_leave_room_for_late_pairs() {
    for late in [0u64, 30, 45] {
        let space = space(4000, 1000);
        let mut rng = fastrand::Rng::with_seed(late);
        for i in 0..200_000u64 {
            // The late pairs have ids of the last one or two closed tables.
            let behind = if rng.u64(0..100) < late { 3000 } else { 0 };
            add(&space, FIRST + (i + 3000 - behind), i);
        }
        let tables = space.tables();
        let learned = &tables[tables.len() / 2..tables.len() - 3];
        assert!(learned.len() > 5);
        let extended = learned.iter().filter(|table| table.extensions > 0).count();
        assert!(
            extended * 10 <= learned.len(),
            "{late} %: {extended} of {} extended",
            learned.len()
        );
        let fill = learned.iter().map(|table| table.fill).sum::<f64>() / learned.len() as f64;
        assert!(fill > 0.7, "{late} %: they are {fill} full");
    }
}

#[test]
fn memory_grows_by_table() {
    let space = Space::new(Options { seed: 1, pairs_per_table: 2 << 20, ..Options::default() })
        .expect("small tables");
    assert!(space.memory_bytes() < 1 << 20, "{}", space.memory_bytes());
    let options = space.options().clone();
    let mut most: f64 = 0.0;
    for i in 0..3_000_000u64 {
        add(&space, FIRST + i / 3, i);
        if i > 300_000 && i % 100_000 == 0 {
            while space.maintain() {}
            most = most.max(space.memory_bytes() as f64 / i as f64);
        }
    }
    // Tables double in size, and the next table may already be allocated. The maximum is about
    // seven times 20 bits per pair.
    assert!(most < 18.0, "{most} bytes per pair");
    assert!(
        space
            .layout()
            .iter()
            .all(|at| at.pages * 4096 <= (options.pairs_per_table * 20 / 8) as usize + 4096)
    );
}

#[test]
fn the_forecast_comes_true() {
    let space = space(3000, 3);
    let mut i = 0;
    let next = |i: &mut u64| {
        *i += 1;
        add(&space, FIRST + *i, *i)
    };
    // The space must close a few tables to learn that no pair is late.
    while space.changes() < 25 {
        next(&mut i);
    }
    for _ in 0..5 {
        let (horizon, forecast) = (space.horizon(), space.pairs_until_recycled());
        let started = i;
        while space.horizon() == horizon {
            next(&mut i);
        }
        let took = i - started;
        assert!(took.abs_diff(forecast) <= forecast / 20 + 50, "took {took}, forecast {forecast}");
        (0..100).for_each(|_| _ = next(&mut i));
    }
}

#[test]
fn bad_options_are_refused() {
    let bad = |change: fn(&mut Options)| {
        let mut options = Options { pairs_per_table: 1000, ..Options::default() };
        change(&mut options);
        Space::new(options).is_err()
    };
    assert!(!bad(|_| ()));
    assert!(bad(|o| o.false_positive_rate = 0.0));
    assert!(bad(|o| o.false_positive_rate = 0.3));
    assert!(bad(|o| o.false_positive_rate = f64::NAN));
    assert!(bad(|o| o.pairs_per_table = 0));
    assert!(bad(|o| o.pairs_per_table = u64::MAX));
    assert!(bad(|o| o.max_tables = 1));
    assert!(bad(|o| o.max_tables = usize::MAX));
    assert!(bad(|o| o.max_outliers = 0));
}

/// Random invalid ids do not prevent tables for valid ids that jump ahead.
#[test]
fn strays_anywhere_let_traffic_move_on() {
    let options = Options {
        pairs_per_table: 1000,
        memory_limit_bytes: Some(1 << 30),
        max_outliers: 500,
        seed: 1,
        ..Options::default()
    };
    let space = Space::new(options).expect("small tables");
    (0..200).for_each(|i| _ = add(&space, FIRST + i, i));
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..150 {
        add(&space, rng.u64(FIRST * 2..), 1);
        (0..20).for_each(|i| _ = add(&space, FIRST + i, rng.u64(..)));
    }
    let strays = space.outlier_pairs();
    assert_eq!(strays, 150, "{:?}", space.course(0).ranges);
    let later = FIRST + FIRST / 2;
    (0..5000).for_each(|i| _ = add(&space, later + i * 3, i));
    assert_eq!(space.outlier_pairs(), strays);
    assert!((0..5000).all(|i| contains(&space, later + i * 3, i) == Answer::Yes));
    let newest = space.layout().last().map(|at| at.low);
    assert!(
        newest > Some(later) && newest < Some(later + 3 * 5000),
        "the ring covers the traffic: {newest:?}"
    );
    assert!((0..200).all(|i| contains(&space, FIRST + i, i) == Answer::Yes));
}

/// Returns a space with pairs near [`FIRST`] and `strays` outliers (ids far above all tables) at
/// the top of the id range.
fn beside_strays(strays: u64, max_outliers: usize) -> Space {
    let space = Space::new(Options {
        pairs_per_table: 20_000,
        memory_limit_bytes: Some(1 << 30),
        max_outliers,
        seed: 1,
        ..Options::default()
    })
    .expect("small tables");
    (0..200).for_each(|i| _ = add(&space, FIRST + i, i));
    (0..strays).for_each(|i| _ = add(&space, u64::MAX - i, 1));
    assert_eq!((space.outlier_pairs(), space.highest_id()), (strays as usize, Some(FIRST + 199)));
    space
}

/// All new ids are 2^52 higher than before, while nearly all writes still go to old ids.
#[test]
fn new_posts_that_jump_are_taken_in_beside_likes_of_old_ones() {
    let space = Space::new(Options { seed: 1, ..Options::default() }).unwrap();
    (0..200).for_each(|i| _ = add(&space, FIRST + i, i));
    let post = |i: u64| FIRST + (1 << 52) + i / 4;
    for i in 0..20_000 {
        (0..300).for_each(|j| _ = add(&space, FIRST + (i + j) % 200, i * 20 + j));
        add(&space, post(i), i);
    }
    assert!(space.highest_id() >= Some(post(0)), "{:?}", space.highest_id());
    assert!(space.outlier_pairs() < 4096, "{}", space.outlier_pairs());
    assert!((0..20_000).all(|i| contains(&space, post(i), i) == Answer::Yes));
}

/// One id receives 30 % of the pairs, which is far more than the frontier counts for a single id.
#[test]
fn a_popular_id_keeps_no_traffic_out_of_the_tables() {
    for (strays, max_outliers) in [(600, 500), (70_000, 1 << 16)] {
        let space = beside_strays(strays, max_outliers);
        let post = |i: u64| FIRST + (1 << 40) + if i % 10 < 3 { 7 } else { i / 10 };
        (0..30_000).for_each(|i| _ = add(&space, post(i), i));
        while space.maintain() {}
        assert_eq!(
            (space.highest_id(), space.outlier_pairs()),
            (Some(post(29_999)), strays as usize)
        );
        assert!((0..30_000).all(|i| contains(&space, post(i), i) == Answer::Yes));
    }
}

/// A few ids far above all others stay outliers, and all writes to them succeed.
#[test]
fn few_ids_far_ahead_open_no_table() {
    for (max_outliers, ids) in [(500, 1), (500, 63), (1 << 16, 20)] {
        let space = beside_strays(10, max_outliers);
        let layout = space.layout();
        (0..100_000).for_each(|i| _ = add(&space, FIRST + (1 << 40) + i % ids, i));
        assert_eq!((space.layout(), space.outlier_pairs()), (layout, 100_010));
    }
}

/// Many distant clusters of ids, each too small for a range of its own, fit into a small memory.
#[test]
fn small_space_takes_small_clusters_far_apart() {
    let options = Options {
        pairs_per_table: 20_000,
        max_tables: 20,
        memory_limit_bytes: Some(3 << 20),
        seed: 1,
        ..Options::default()
    };
    let space = Space::new(options).unwrap();
    let ids = || (0..40u64).flat_map(|n| (0..1000).map(move |i| FIRST + (n << 40) + i));
    let (mut most, mut taken_for_set) = (0, 0);
    for id in ids() {
        taken_for_set += u32::from(add(&space, id, 7) != Change::Changed);
        most = most.max(space.outlier_pairs());
    }
    assert!((1000..5000).contains(&most), "{most} outlier pairs");
    // False positives: 40,000 pairs at a rate of 1 in 10,000.
    assert!(taken_for_set < 15, "{taken_for_set}");
    assert!(ids().all(|id| contains(&space, id, 7) == Answer::Yes));
}

/// At the memory limit the space refuses further outliers, but other writes succeed.
#[test]
fn outlying_ids_are_refused_at_the_memory_limit() {
    let limit = 4 << 20;
    let space = Space::new(Options {
        pairs_per_table: 20_000,
        memory_limit_bytes: Some(limit),
        max_outliers: 1000,
        seed: 1,
        ..Options::default()
    })
    .expect("small tables");
    (0..200).for_each(|i| _ = add(&space, FIRST + i, i));
    let full = |i| matches!(space.add(u64::MAX - i, &Member::Number(1)), Err(Error::Full));
    let first = (0..200_000).find(|&i| full(i)).expect("outside the limit");
    assert!((10_000..40_000).contains(&first), "{first} of about 150 bytes");
    assert!(space.memory_bytes() < limit + (1 << 20), "{}", space.memory_bytes());
    // Deleted outliers free memory.
    (0..1000).for_each(|i| _ = space.remove(u64::MAX - i, &Member::Number(1)).unwrap());
    assert!(!full(0));
    (200..100_000).for_each(|i| _ = add(&space, FIRST + i, i));
    assert!(space.layout().len() > 3);
}

/// Two services write to one space, with ids 2^52 apart. Tables are created in both ranges, and
/// each table keeps its false-positive rate.
#[test]
fn two_ranges_of_ids_roll_side_by_side() {
    for spill in [false, true] {
        let space = Space::new(Options {
            false_positive_rate: 0.001,
            pairs_per_table: 20_000,
            max_tables: 100,
            spill,
            seed: 1,
            ..Options::default()
        })
        .expect("small tables");
        let id = |i: u64| FIRST + i / 10 + if i.is_multiple_of(20) { 1 << 52 } else { 0 };
        for i in 0..1_000_000 {
            add(&space, id(i), i);
            if i % 1000 == 0 {
                while space.maintain() {}
            }
        }
        assert!(space.outlier_pairs() < 4096, "{}", space.outlier_pairs());
        let tables = space.tables();
        let (lower, upper): (Vec<_>, Vec<_>) =
            tables.iter().partition(|table| table.low < FIRST + (1 << 51));
        assert!(lower.len() > 40 && upper.len() > 2, "{} {}", lower.len(), upper.len());
        assert!(tables.iter().all(|table| table.expected_rate <= 0.001 && table.extensions == 0));
        assert_eq!(tables.iter().filter(|table| table.early == 0).count(), 2, "open tables");
        assert!((0..1_000_000).all(|i| contains(&space, id(i), i) == Answer::Yes));
        assert_eq!(space.oldest_in_memory().map(|(low, _)| low), Some(0));
        // Tables are still created in both ranges after a restart from a snapshot without a log.
        let copy = crate::copies::copy(&space);
        copy.lead();
        assert_eq!(
            (copy.layout(), copy.course(0).ranges),
            (space.layout(), space.course(0).ranges)
        );
        for i in 1_000_000..1_200_000 {
            add(&copy, id(i), i);
        }
        assert!((0..1_200_000).all(|i| contains(&copy, id(i), i) == Answer::Yes));
        assert!(copy.layout().len() >= tables.len() + 8, "{}", copy.layout().len());
        assert!(copy.tables().iter().all(|table| table.expected_rate <= 0.001));
    }
}

/// If all tables in memory are open, the space closes the table of the least recently used range. A
/// spill selects the oldest table of the range with the most tables in memory.
#[test]
fn a_range_closes_its_table_where_nothing_else_can_be_spilled() {
    let options = Options {
        pairs_per_table: 20_000,
        max_tables: 100,
        spill: true,
        seed: 1,
        ..Options::default()
    };
    let space = Space::new(options).unwrap();
    let open = |space: &Space| space.tables().iter().filter(|table| table.early == 0).count();
    let upper = FIRST + (1 << 52);
    (0..500).for_each(|i| _ = add(&space, FIRST + i, i));
    assert!(!space.has_ranges() && !space.close_range(), "the newest table stays open");
    (0..5000).for_each(|i| _ = add(&space, upper + i / 10, i));
    assert_eq!((open(&space), space.has_ranges(), space.oldest_in_memory()), (2, true, None));
    space.follow();
    assert!(!space.has_ranges() && !space.close_range(), "the log records when");
    space.lead();
    space.take_unlogged_changes();
    assert!(space.close_range() && !space.has_ranges() && !space.close_range());
    assert!(space.take_unlogged_changes(), "the log receives it");
    assert_eq!((open(&space), space.oldest_in_memory().map(|oldest| oldest.0)), (1, Some(0)));
    (500..900).for_each(|i| _ = add(&space, FIRST + i, i));
    assert!((0..900).all(|i| contains(&space, FIRST + i, i) == Answer::Yes));

    // The upper range has three closed tables; the lower range has one closed table.
    let space = Space::new(space.options().clone()).unwrap();
    (0..500).for_each(|i| _ = add(&space, FIRST + i, i));
    assert!(space.roll_now());
    (500..900).for_each(|i| _ = add(&space, FIRST + i, i));
    for n in 0..4 {
        (0..5000).for_each(|i| _ = add(&space, upper + n * 500 + i / 10, i));
        assert!(space.roll_now());
    }
    assert_eq!((open(&space), space.oldest_in_memory().map(|oldest| oldest.0)), (2, Some(upper)));
}

/// The horizon, the lowest id that is still stored, does not pass any id of a range in use. It
/// rises again once that range is idle.
#[test]
fn the_horizon_passes_no_range_in_use() {
    let space = space(2000, 8);
    let lower = |i: u64| FIRST + i / 10;
    let upper = |i: u64| FIRST + (1 << 52) + i / 10;
    let mut low = 0;
    (0..10_000).for_each(|i| _ = space.add(lower(i), &Member::Number(i)).unwrap());
    for i in 0..60_000 {
        let done = space.add(upper(i), &Member::Number(i));
        assert!(
            matches!(done, Ok(Change::Changed | Change::Unchanged) | Err(Error::Full)),
            "{done:?}"
        );
        if i % 50 == 0 {
            low += 10;
            assert_eq!(
                space.add(lower(10_000 + low), &Member::Number(i)).ok(),
                Some(Change::Changed),
                "{i}"
            );
        }
        while space.maintain() {}
    }
    assert!((1..=lower(10_000 + low)).contains(&space.horizon()), "{}", space.horizon());
    for i in 60_000..1_500_000 {
        _ = space.add(upper(i), &Member::Number(i));
        while i % 100 == 0 && space.maintain() {}
    }
    assert!(space.horizon() > FIRST + (1 << 52), "{}", space.horizon());
    assert_eq!(contains(&space, lower(1), 0), Answer::Unknown);
}

/// A new space derives its frontier from its first pairs, even if these have few distinct ids.
#[test]
fn a_space_begins_however_few_pairs_may_be_aside() {
    for max_outliers in [1, 2, 10, 63, 64, 100, 1000, 5000] {
        for posts in [1, 3, 30, 5000] {
            for strays in [0, max_outliers as u64 / 3, max_outliers as u64 / 2] {
                let options = Options {
                    pairs_per_table: 20_000,
                    max_outliers,
                    seed: 1,
                    ..Options::default()
                };
                let space = Space::new(options).expect("small tables");
                (0..strays).for_each(|i| _ = add(&space, u64::MAX - i, i));
                (0..10_000).for_each(|i| _ = add(&space, FIRST + i % posts, i));
                assert_eq!(
                    space.highest_id(),
                    Some(FIRST + posts - 1),
                    "{posts} posts, max_aside {max_outliers}, {strays} strays"
                );
            }
        }
    }
}

/// Pairs of a single invalid id near the top of the range fill the outliers before there is a
/// regular id.
#[test]
fn a_space_begins_behind_an_aside_that_one_id_has_filled() {
    for max_outliers in [1, 2, 10, 63, 64, 100, 1000, 4000] {
        let options =
            Options { pairs_per_table: 20_000, max_outliers, seed: 1, ..Options::default() };
        let space = Space::new(options).expect("small tables");
        (0..max_outliers as u64).for_each(|i| _ = add(&space, u64::MAX, i));
        (0..10_000).for_each(|i| _ = add(&space, FIRST + i, i));
        assert_eq!(space.highest_id(), Some(FIRST + 9999), "{max_outliers}");
    }
}

/// Deletions do not count as traffic. Deleting an unset pair far ahead does not move the frontier,
/// and `max_ahead` does not apply to it.
#[test]
fn removals_move_no_frontier() {
    for max_ahead in [None, Some(10)] {
        let space = Space::new(Options {
            pairs_per_table: 20_000,
            max_ahead,
            seed: 1,
            ..Options::default()
        })
        .unwrap();
        (0..100_000).for_each(|i| _ = space.add(FIRST + i / 50, &Member::Number(i)).unwrap());
        let high = space.highest_id();
        assert!(high.is_some());
        for step in [1, 3, 1024, 1 << 40] {
            for i in 1..5000 {
                let done = space.remove(FIRST + 2000 + i * step, &Member::Number(1));
                assert!(matches!(done, Ok(Change::Unchanged)), "{done:?}");
            }
        }
        assert_eq!((space.highest_id(), space.outlier_pairs()), (high, 0));
    }
}

/// Ids below the first id of a space are unknown, even while all pairs are outliers and no table
/// has pairs.
#[test]
fn a_new_space_may_begin_above_id_0() {
    let space = Space::new(Options { first_id: 10, ..Options::default() }).unwrap();
    let member = Member::Number(1);
    assert_eq!(space.horizon(), 10);
    for id in [0, 9] {
        assert_eq!(space.contains(id, &member).unwrap(), Answer::Unknown);
        assert_eq!(space.add(id, &member).unwrap(), Change::Unknown);
        assert_eq!(space.remove(id, &member).unwrap(), Change::Unknown);
        assert_eq!(space.contains(id, &member).unwrap(), Answer::Unknown);
    }
    assert_eq!(space.add(10, &member).unwrap(), Change::Changed);
    assert_eq!(space.contains(10, &member).unwrap(), Answer::Yes);
    assert_eq!((space.pairs(), space.horizon()), (1, 10));
}
