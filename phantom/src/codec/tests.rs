use super::*;
use crate::{Answer, Change, Layout, Member, Options, Space};

fn options() -> Options {
    Options {
        false_positive_rate: 0.001,
        pairs_per_table: 4000,
        max_tables: 100,
        max_outliers: 1 << 10,
        seed: 11,
        ..Options::default()
    }
}

type Pairs = Vec<(u64, u64)>;

/// Returns a space with closed tables, an extension, deleted pairs and outliers (pairs of ids far
/// above all tables).
fn busy() -> (Space, Pairs, Pairs) {
    let space = Space::new(options()).unwrap();
    let (mut set, mut unset) = (vec![], vec![]);
    for i in 0..30_000u64 {
        // The first ids receive many late pairs.
        let id = if i % 3 == 0 { 5 } else { 1000 + i };
        if space.add(id, &Member::Number(i)).unwrap() == Change::Changed {
            set.push((id, i));
        }
        if i % 10 == 9
            && let Some((id, member)) = set.pop()
        {
            assert_eq!(space.remove(id, &Member::Number(member)).unwrap(), Change::Changed);
            unset.push((id, member));
        }
    }
    for i in 0..10 {
        space.add(u64::MAX - i, &Member::Number(i)).unwrap();
        set.push((u64::MAX - i, i));
    }
    let tables = space.tables();
    assert!(
        tables.len() > 3
            && tables[0].extensions > 0
            && tables[0].revoked > 0
            && space.outlier_pairs() == 10
    );
    (space, set, unset)
}

fn encoded(space: &Space, low: u64) -> Vec<u8> {
    let mut bytes = vec![];
    let sink = |piece: &[u8]| {
        assert!(piece.len() <= 64 * 1024 + CHECKSUM_BYTES);
        bytes.extend_from_slice(piece);
        Ok::<(), ()>(())
    };
    assert!(space.encode_table(low, sink).unwrap());
    bytes
}

fn decoded(options: &Options, bytes: &[u8]) -> Result<StoredTable, DecodeError> {
    let mut decoder = TableDecoder::new(options, 1 << 30);
    decoder.feed(bytes)?;
    decoder.finish()
}

#[test]
fn what_is_restored_is_what_was_stored() {
    let (space, set, unset) = busy();
    let head = space.encode_head();
    let mut tables = vec![];
    for (i, at) in space.layout().iter().enumerate() {
        let mut decoder = TableDecoder::new(&options(), 1 << 30);
        for piece in encoded(&space, at.low).chunks(i * 977 + 1) {
            decoder.feed(piece).unwrap();
        }
        tables.push(decoder.finish().unwrap());
    }
    tables.reverse();
    let restored = Space::restore(options(), &head, &space.layout(), tables).unwrap();
    assert_eq!(restored.layout(), space.layout());
    assert_eq!(restored.pairs(), space.pairs());
    assert_eq!(restored.outlier_pairs(), 10);
    let (mut before, mut after) = (space.tables_probed(0), restored.tables_probed(0));
    for table in before.iter_mut().chain(&mut after) {
        (table.version, table.measured) = (0, Default::default());
    }
    assert_eq!(before, after);
    for space in [&space, &restored] {
        for &(id, member) in &set {
            assert_eq!(space.contains(id, &Member::Number(member)).unwrap(), Answer::Yes);
        }
        for &(id, member) in &unset {
            assert_eq!(space.contains(id, &Member::Number(member)).unwrap(), Answer::No);
        }
    }
    restored.lead();
    for i in 0..10_000 {
        space.add(40_000 + i, &Member::Number(i)).unwrap();
        restored.add(40_000 + i, &Member::Number(i)).unwrap();
    }
    assert_eq!(restored.layout(), space.layout());
    assert!(!space.encode_table(3, |_| Ok::<(), ()>(())).unwrap(), "no table starts there");
}

/// A missing table or a gap between tables does not count as recycling.
#[test]
fn restored_ring_begins_where_the_layout_says() {
    let (space, ..) = busy();
    let layout = space.layout();
    let lows: Vec<u64> = layout.iter().map(|at| at.low).collect();
    let restored = |lows: &[u64], endless: u64, layout: &[Layout]| {
        let stored = |&low: &u64| {
            let mut stored = decoded(&options(), &encoded(&space, low)).unwrap();
            stored.last = if low == endless { u64::MAX } else { stored.last };
            stored
        };
        let tables = lows.iter().map(stored).collect();
        let restored = Space::restore(options(), &space.encode_head(), layout, tables).unwrap();
        restored.layout()
    };
    assert!(lows.len() > 3);
    let newest = lows[lows.len() - 1];
    for part in [&lows[..], &lows[1..], &[lows[0], lows[1], newest], &lows[..2], &[]] {
        assert_eq!(restored(part, 1, &layout), layout, "{part:?}");
        assert_eq!(
            restored(part, 1, &layout[2..]),
            layout[2..],
            "{part:?}, two tables are recycled"
        );
        let begins = |from: &[Layout]| restored(part, 1, from)[0].low;
        assert_eq!(begins(&[]), 0, "{part:?}, the log has the rest");
    }
    assert_eq!(
        restored(&lows[..2], lows[1], &layout),
        layout,
        "the newest table at that time has no end"
    );
    let alone = restored(&lows[1..2], 1, &[]);
    let lows_of = |layout: &[Layout]| layout.iter().map(|at| at.low).collect::<Vec<_>>();
    assert_eq!(lows_of(&alone), [0, lows[1], lows[2]], "gaps are filled");
}

#[test]
fn damage_is_found_and_named() {
    let (space, ..) = busy();
    let bytes = encoded(&space, 0);
    assert!(decoded(&options(), &bytes).is_ok());
    for cut in [0, 1, 199, 200, bytes.len() - 1] {
        assert!(
            matches!(decoded(&options(), &bytes[..cut]), Err(DecodeError::Corrupt { .. })),
            "cut at {cut}"
        );
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(matches!(
        decoded(&options(), &longer),
        Err(DecodeError::Corrupt { what: "bytes after the end", .. })
    ));
    for at in (0..300).chain((300..bytes.len()).step_by(997)) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        let error = decoded(&options(), &damaged).err().unwrap();
        let DecodeError::Corrupt { offset, .. } = error else { panic!("byte {at}: {error}") };
        assert!(offset <= at as u64 && at as u64 - offset < 66_000, "byte {at} named as {offset}");
    }
    let other = Options { seed: 12, ..options() };
    assert_eq!(decoded(&other, &bytes).err(), Some(DecodeError::OtherSeed));
    let mut small = TableDecoder::new(&options(), 4096);
    assert!(matches!(small.feed(&bytes), Err(DecodeError::TooLarge { limit: 4096, .. })));

    let head = space.encode_head();
    for at in 0..head.len() {
        let mut damaged = head.clone();
        damaged[at] ^= 1;
        assert!(Space::restore(options(), &damaged, &[], vec![]).is_err());
        assert!(Space::restore(options(), &head[..at], &[], vec![]).is_err());
    }
    // After the snapshot was taken, all of its tables may have been spilled and recycled.
    let none_left = Space::restore(options(), &head, &[], vec![]).unwrap();
    assert_eq!(none_left.horizon(), 0);
    // In the log, the pairs written during the snapshot precede the layout.
    let pair = none_left.pair(7, &Member::Number(1));
    assert_eq!(none_left.contains_pair(&pair), Ok(Answer::No));
    assert!(none_left.put(&pair, true).is_ok());
    let twice = (0..2).map(|_| decoded(&options(), &bytes).unwrap()).collect();
    let twice = Space::restore(options(), &head, &[], twice);
    assert_eq!(twice.err(), Some(DecodeError::NoRing));
}

/// A restored ring can contain tables above its frontier. Replay may still add pairs to them, so
/// they must not be spilled yet.
#[test]
fn restored_table_above_the_frontier_is_not_spilled() {
    let options = Options { spill: true, ..options() };
    let space = Space::new(options.clone()).unwrap();
    let head = space.encode_head();
    (0..30_000).for_each(|id| _ = space.add(id, &Member::Number(id)).unwrap());
    let restored = Space::restore(options, &head, &space.layout(), vec![]).unwrap();
    assert_eq!(restored.layout(), space.layout());
    assert_eq!(restored.oldest_in_memory(), None);
    restored.put_frontier(&space.course(0).ranges);
    assert_eq!(restored.oldest_in_memory().map(|(low, _)| low), Some(0));
}

/// The decoder derives the pair count from the bits, regardless of the header. An overfull filter
/// accepts no pairs and reports its actual rate.
#[test]
fn a_filter_that_is_too_full_says_so() {
    let (space, ..) = busy();
    let mut bytes = encoded(&space, 0);
    let end = bytes.len().min(200 + 4096);
    bytes[200..end].fill(0xff);
    let mut decoder = TableDecoder::new(&options(), 1 << 30).without_checksums();
    decoder.feed(&bytes).unwrap();
    let table = decoder.finish().unwrap().table;
    let first = table.link(0).unwrap();
    assert!(
        first.pairs() > first.capacity() && table.expected_rate() > options().false_positive_rate
    );
    let next = table.room(|_| true).unwrap();
    assert!(!std::ptr::eq(next, first));
}
