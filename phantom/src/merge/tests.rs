//! Two sites in one process.

use super::*;
use crate::{Answer, Change, Layout, Member, Options};

mod strangers;

fn site() -> Space {
    let options = Options {
        false_positive_rate: 0.001,
        pairs_per_table: 20_000 * 8,
        max_aside: 1 << 10,
        seed: 4,
        ..Options::default()
    };
    let space = Space::new(options).unwrap();
    for id in 0..100 {
        space.add(id, &Member::Number(0)).unwrap();
    }
    assert_eq!(space.outlier_pairs(), 0);
    space
}

/// These blocks, one after the other.
pub(crate) fn exported(space: &Space, low: u64, numbers: &[usize]) -> Vec<u8> {
    let mut bytes = vec![];
    let sink = |block: &[u8]| {
        bytes.extend_from_slice(block);
        Ok::<(), Unreadable>(())
    };
    assert!(space.export_blocks(low, numbers, sink).unwrap());
    bytes
}

/// The blocks that differ, or all that one has more; in one string.
fn differing(here: &Space, there: &Space, low: u64) -> Vec<u8> {
    let (ours, theirs) =
        (here.digest(low).unwrap().unwrap().blocks, there.digest(low).unwrap().unwrap().blocks);
    let differ = (0..theirs.len()).filter(|&i| ours.get(i) != Some(&theirs[i])).collect::<Vec<_>>();
    exported(there, low, &differ)
}

fn merge(here: &Space, mut bytes: &[u8]) -> Result<usize, MergeError> {
    let mut blocks = 0;
    while !bytes.is_empty() {
        here.merge_block(&here.read_block(&mut bytes)?, || ())?;
        blocks += 1;
    }
    Ok(blocks)
}

/// What a log holds of a merge, told to a space that has not seen it, and told twice.
fn replayed(here: &Space, replica: &Space, mut bytes: &[u8]) {
    let mut places = vec![];
    let mut changed = vec![];
    while !bytes.is_empty() {
        let block = here.read_block(&mut bytes).unwrap();
        changed.extend(here.merge_block(&block, || ()).unwrap().1);
        places.push(block.place());
    }
    for _ in 0..2 {
        places.iter().for_each(|&place| {
            replica.put_block(place, &here.block_state(place).unwrap()).unwrap()
        });
        for &hash in &changed {
            let pair = Pair::from_hash(0, hash);
            replica.put(&pair, here.contains_pair(&pair).unwrap() == Answer::Yes).unwrap();
        }
    }
}

fn add(space: &Space, members: std::ops::Range<u64>) {
    members
        .for_each(|m| assert_ne!(space.add(m % 50, &Member::Number(m)).unwrap(), Change::Unknown));
}

fn answer(space: &Space, member: u64) -> Answer {
    space.contains(member % 50, &Member::Number(member)).unwrap()
}

#[test]
fn what_either_site_had_is_found_and_revoked_where_none_has_it() {
    let (here, there, replica) = (site(), site(), site());
    add(&here, 1..5000);
    add(&there, 4000..9000);
    let revoke =
        |space: &Space, member: u64| space.remove(member % 50, &Member::Number(member)).unwrap();
    // Here only; there only; on both; on both, but revoked on one.
    for (space, member) in
        [(&here, 100), (&there, 8000), (&here, 4500), (&there, 4500), (&here, 4600), (&there, 4700)]
    {
        assert_eq!(revoke(space, member), Change::Changed);
    }
    add(&replica, 1..5000);
    [100, 4500, 4600]
        .into_iter()
        .for_each(|member| assert_eq!(revoke(&replica, member), Change::Changed));
    assert_ne!(here.digest(0), there.digest(0));
    replayed(&here, &replica, &differing(&here, &there, 0));
    for space in [&here, &replica] {
        for member in 1..9000 {
            let expected =
                if [100, 8000, 4500].contains(&member) { Answer::No } else { Answer::Yes };
            assert_eq!(answer(space, member), expected, "{member}");
        }
    }
    assert_eq!(here.digest(0), replica.digest(0));
    let pairs = here.tables()[0].pairs as f64;
    assert!((pairs / 9100.0 - 1.0).abs() < 0.05, "{pairs}");
    // Both ways: now they are one.
    merge(&there, &differing(&there, &here, 0)).unwrap();
    assert_eq!(there.digest(0).unwrap().unwrap().blocks, here.digest(0).unwrap().unwrap().blocks);
    assert_eq!(merge(&here, &differing(&here, &there, 0)).unwrap(), 0, "nothing differs any more");
    // One unlike makes one block of the table differ, and no more is moved.
    assert_eq!(revoke(&there, 77), Change::Changed);
    assert_eq!(merge(&here, &differing(&here, &there, 0)).unwrap(), 1);
    assert_eq!(answer(&here, 77), Answer::Yes, "set on one side is set");
    // Liked again after it came revoked.
    assert_eq!(here.add(8000 % 50, &Member::Number(8000)).unwrap(), Change::Changed);
    assert_eq!(answer(&here, 8000), Answer::Yes);
}

/// M2: sites are never equally far, and one of them may have few. What comes with ids above ours
/// stays found when the table is closed, and can be unliked.
#[test]
fn ids_above_ours_stay_in_their_table_when_it_is_closed() {
    let (there, young) = (site(), Space::new(site().options().clone()).unwrap());
    (100..800)
        .for_each(|id| assert_eq!(there.add(id, &Member::Number(1)).unwrap(), Change::Changed));
    assert_eq!(there.remove(700, &Member::Number(1)).unwrap(), Change::Changed);
    let blocks = differing(&young, &there, 0);
    let merged = merge(&young, &blocks);
    assert!(
        matches!(merged, Err(MergeError::NoIds { highest: 799 })),
        "it is not known what is far: {merged:?}"
    );
    assert_eq!((young.highest_id(), young.pairs()), (None, 0));
    (0..64).for_each(|id| assert_eq!(young.add(id, &Member::Number(0)).unwrap(), Change::Changed));
    for here in [site(), young] {
        // What was aside, as an id that is ahead, is no more.
        here.add(799, &Member::Number(3)).unwrap();
        let replica = Space::new(here.options().clone()).unwrap();
        replica.put_frontier(&here.course(0).ranges);
        replayed(&here, &replica, &differing(&here, &there, 0));
        while here.maintain() {}
        replica.put_frontier(&here.course(0).ranges);
        replica.lead();
        assert_eq!(here.outlier_pairs(), 0);
        for space in [&here, &replica] {
            assert_eq!(
                (space.remove(300, &Member::Number(1)).unwrap(), space.highest_id()),
                (Change::Changed, Some(799))
            );
            space.add(790, &Member::Number(2)).unwrap();
            assert!(space.roll_now());
            assert_eq!(space.tables()[0].last, 799);
            for id in 100..800 {
                let expected = if [300, 700].contains(&id) { Answer::No } else { Answer::Yes };
                assert_eq!(space.contains(id, &Member::Number(1)).unwrap(), expected, "{id}");
            }
            assert_eq!(space.contains(790, &Member::Number(2)).unwrap(), Answer::Yes);
        }
        assert_eq!(here.contains(799, &Member::Number(3)).unwrap(), Answer::Yes);
    }
}

/// L1: a log tells of ids before it tells of the table that has them, and a batch has them by id,
/// so that each lies near the one before. The tables begin where they did, and a block finds its
/// own.
#[test]
fn a_block_finds_its_table_whatever_was_told_before_that_began() {
    let (here, there) = (site(), site());
    let set = |space: &Space, ids: std::ops::Range<u64>, member: u64| {
        ids.for_each(|id| {
            assert_ne!(space.add(id, &Member::Number(member)).unwrap(), Change::Unknown)
        });
    };
    let replica = Space::new(here.options().clone()).unwrap();
    let mut changes = u64::MAX;
    for space in [&here, &there] {
        for low in (100..600).step_by(100) {
            set(space, low..low + 100, 0);
            if std::ptr::eq(space, &here) {
                let course = here.course(changes);
                course.layout.iter().for_each(|layout| replica.put_layout(layout).unwrap());
                replica.put_frontier(&course.ranges);
                changes = course.changes;
                // Outliers at the master, and set by the time it is told of.
                for id in low..low + 300 {
                    replica.put(&replica.pair(id, &Member::Number(0)), true).unwrap();
                }
            }
            assert!(space.roll_now());
        }
    }
    let (low, pages) = (here.layout()[4].low, here.layout()[4].pages);
    assert_eq!((low, there.layout()), (500, here.layout()));
    set(&there, low..low + 100, 1);
    replica.put_layout(&here.layout()).unwrap();
    assert_eq!((replica.layout(), replica.outlier_pairs()), (here.layout(), 200));
    replica.put_frontier(&here.course(0).ranges);
    replayed(&here, &replica, &differing(&here, &there, low));
    assert_eq!(replica.digest(low), here.digest(low));
    for id in low..low + 100 {
        assert_eq!(replica.contains(id, &Member::Number(1)).unwrap(), Answer::Yes, "{id}");
    }
    // Of a table of another size, or of one that never was, its bits say nothing.
    let place = BlockPlace { low, link: 0, block: 0 };
    let state = here.block_state(place).unwrap();
    let error = site().put_block(place, &state).unwrap_err();
    assert!(error.contains("where none does"), "{error}");
    let other = site();
    let at = |low, pages| Layout { low, pages, roll_at: 0 };
    other.put_layout(&[at(0, pages), at(low, pages + 1)]).unwrap();
    let error = other.put_block(place, &state).unwrap_err();
    assert!(error.contains("pages; ours has"), "{error}");
    assert_eq!(
        site().put_layout(&[at(low, 1 << 50)]).map_err(|e| e.to_string()),
        Err("no memory for a table".to_owned())
    );
}

/// A log says how large tables are, whatever our options say now.
#[test]
fn an_empty_table_becomes_as_large_as_the_log_says() {
    let (here, there) = (site(), site());
    add(&there, 1..2000);
    let options = Options { pairs_per_table: 3000, ..here.options().clone() };
    let replica = Space::new(options).unwrap();
    replica.put_layout(&here.layout()).unwrap();
    assert_eq!(replica.layout(), here.layout());
    replica.put_frontier(&here.course(0).ranges);
    replayed(&here, &replica, &differing(&here, &there, 0));
    assert!((1..2000).all(|member| answer(&replica, member) == Answer::Yes));
}

/// Promise 7: a block moves the frontier no further than an id does.
#[test]
fn a_block_of_ids_far_ahead_is_refused_until_there_are_such_ids() {
    let (here, there) = (site(), site());
    for id in 100..5000 {
        there.add(id, &Member::Number(1)).unwrap();
    }
    while there.maintain() {}
    assert_eq!((there.highest_id(), there.outlier_pairs()), (Some(4999), 0));
    let blocks = differing(&here, &there, 0);
    let before = here.digest(0);
    let merged = merge(&here, &blocks);
    assert!(matches!(merged, Err(MergeError::FarAhead { highest: 4999, ours: 99 })), "{merged:?}");
    assert_eq!((here.digest(0), here.highest_id()), (before, Some(99)));
    let limited = Space::new(Options { max_ahead: Some(4000), ..here.options().clone() }).unwrap();
    for id in 0..100 {
        limited.add(id, &Member::Number(0)).unwrap();
    }
    assert!(matches!(merge(&limited, &blocks), Err(MergeError::Refused(Error::KeyTooBig))));
    for id in 4800..5000 {
        here.add(id, &Member::Number(2)).unwrap();
    }
    assert!(merge(&here, &blocks).unwrap() > 0);
    assert_eq!(here.contains(4100, &Member::Number(1)).unwrap(), Answer::Yes);
}

/// A range of ids has tables of its own, and so has the other site when it has such ids.
#[test]
fn blocks_of_a_range_go_to_the_same_range() {
    let (here, there) = (site(), site());
    for id in (0..200).map(|i| 50_000 + i) {
        there.add(id, &Member::Number(1)).unwrap();
    }
    assert_eq!(there.layout()[1].low, 50_000);
    let all: Vec<usize> = (0..there.digest(50_000).unwrap().unwrap().blocks.len()).collect();
    let blocks = exported(&there, 50_000, &all);
    let merged = merge(&here, &blocks);
    assert!(merged.is_err(), "no table of ours begins there");
    for id in (0..200).map(|i| 50_000 + i) {
        here.add(id, &Member::Number(2)).unwrap();
    }
    assert!(merge(&here, &blocks).unwrap() > 0);
    assert_eq!(here.contains(50_100, &Member::Number(1)).unwrap(), Answer::Yes);
}

#[test]
fn an_overrun_table_brings_its_extensions() {
    let (here, there) = (site(), site());
    there.roll_now();
    here.roll_now();
    add(&here, 1..1000);
    add(&there, 1..60_000);
    assert!(there.tables()[0].extensions >= 2);
    merge(&here, &differing(&here, &there, 0)).unwrap();
    (1..60_000).for_each(|member| assert_eq!(answer(&here, member), Answer::Yes));
    assert_eq!(there.tables()[0].extensions, here.tables()[0].extensions);
    add(&here, 60_000..61_000);
    (1..61_000).for_each(|member| assert_eq!(answer(&here, member), Answer::Yes));
}

/// An extension may come alone, and to the newest table: that one is filled and closed like any
/// other, and rolling goes on.
#[test]
fn a_newest_table_with_an_extension_is_closed() {
    let (here, there) = (site(), site());
    there.roll_now();
    add(&there, 1..60_000);
    let blocks = differing(&here, &there, 0);
    let extension = first_extension(&here, &blocks, |_| ());
    let words = vec![0; extension.words.len()];
    let empty = Block {
        place: extension.place,
        highest: extension.highest,
        words,
        revoked: vec![],
        forgotten: vec![],
    };
    here.merge_block(&empty, || ()).unwrap();
    assert_eq!(here.tables()[0].extensions, 0, "a filter without a bit is not chained");
    here.merge_block(&extension, || ()).unwrap();
    assert_eq!(here.tables()[0].extensions, 1);
    let roll_at = here.tables_probed(0)[0].roll_at;
    for id in 100..60_000 {
        assert_ne!(here.add(id, &Member::Number(1)).unwrap(), Change::Unknown, "{id}");
        if id % 100 == 0 {
            while here.maintain() {}
        }
    }
    let tables = here.tables();
    assert!(
        tables.len() > 2 && tables[1..].iter().all(|table| table.extensions == 0),
        "{tables:?}"
    );
    assert!(
        (roll_at - 100..roll_at + 100).contains(&tables[0].early),
        "not closed before it was due: {tables:?}"
    );
    assert!((100..60_000).all(|id| here.contains(id, &Member::Number(1)).unwrap() == Answer::Yes));
}

/// The first block of an extension; `before` is told those that come before it.
fn first_extension(space: &Space, mut blocks: &[u8], mut before: impl FnMut(&Block)) -> Block {
    loop {
        let block = space.read_block(&mut blocks).unwrap();
        if block.place.link == 1 {
            return block;
        }
        before(&block);
    }
}

/// M1 for a whole table: bits that are within what chance may do to each block, in all of them.
#[test]
fn a_table_keeps_its_rate_however_its_blocks_are_filled() {
    let options = || Options { pairs_per_table: 400_000 * 8, ..site().options().clone() };
    let (here, there) = (Space::new(options()).unwrap(), Space::new(options()).unwrap());
    for space in [&here, &there] {
        (0..100)
            .for_each(|id| assert_eq!(space.add(id, &Member::Number(0)).unwrap(), Change::Changed));
    }
    let (_, table) = there.table_at(0).unwrap();
    let link = table.link(0).unwrap();
    let allowed = link.filter.sizing().rate(link.capacity(), link.filter.pages());
    let mut member = 0;
    while FillRatio::of(&link.filter).rate() < allowed * 1.1 {
        for _ in 0..link.capacity() / 400 {
            member += 1;
            Table::set(link, &there.pair(member % 50, &Member::Number(member)));
        }
    }
    let (blocks, all) =
        (differing(&here, &there, 0), there.digest(0).unwrap().unwrap().blocks.len());
    let mut merged = 0;
    let mut rest = &blocks[..];
    let refused = loop {
        let block = here.read_block(&mut rest).unwrap();
        match here.merge_block(&block, || ()) {
            Ok(_) => merged += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, MergeError::Overfull));
    assert!(
        merged > all / 2 && merged < all,
        "{merged} of {all}: each of them alone is within its bound"
    );
    let by_bits = || {
        let (_, table) = here.table_at(0).unwrap();
        table.links().map(|link| FillRatio::of(&link.filter).rate()).sum::<f64>()
    };
    // Three deviations of 180 pages are 3.6 %, and a twentieth of the rate was left for extensions.
    assert!(by_bits() <= 0.001, "{} by its bits", by_bits());
    let table = &here.tables_probed(4_000_000)[0];
    assert!(table.measured.rate().unwrap() <= 0.00105, "{table:?}");
    // And however much comes afterwards.
    (0..400_000).for_each(|m| assert!(here.add(m % 50, &Member::Number(1 << 40 | m)).is_ok()));
    assert!(by_bits() <= 0.00103, "{} by its bits", by_bits());
    let table = &here.tables_probed(4_000_000)[0];
    assert!(table.extensions > 0 && table.measured.rate().unwrap() <= 0.00108, "{table:?}");
    // As it is stored and read again it has no more room than before.
    let mut decoder = crate::TableDecoder::new(here.options(), 1 << 30);
    assert!(here.encode_table(0, |piece| decoder.feed(piece)).unwrap());
    let stored = decoder.finish().unwrap().table;
    let (_, ours) = here.table_at(0).unwrap();
    let (stored, ours) = (stored.link(0).unwrap().load(), ours.link(0).unwrap().load());
    assert!(stored.abs_diff(ours) < ours / 100, "{stored} for {ours}");
}

/// A log has the states of pairs, not their changes: a reader never had the bits of a pair that
/// came and went between two batches.
#[test]
fn what_was_unset_before_the_log_looked_is_not_brought_back_by_a_block() {
    let (here, there, replica) = (site(), site(), site());
    for member in 1..200 {
        assert_eq!(here.add(member % 50, &Member::Number(member)).unwrap(), Change::Changed);
        assert_eq!(here.remove(member % 50, &Member::Number(member)).unwrap(), Change::Changed);
        replica.put(&here.pair(member % 50, &Member::Number(member)), false).unwrap();
    }
    add(&there, 200..400);
    replayed(&here, &replica, &differing(&here, &there, 0));
    for space in [&here, &replica] {
        assert!((1..200).all(|member| answer(space, member) == Answer::No));
        assert!((200..400).all(|member| answer(space, member) == Answer::Yes));
    }
    assert_eq!(replica.digest(0), here.digest(0));
    // As an older log has it: no hashes behind the words; and half a hash.
    let place = BlockPlace { low: 0, link: 0, block: 0 };
    let state = here.block_state(place).unwrap();
    let (_, table) = here.table_at(0).unwrap();
    let words = table.first_filter().words().len() * 8 + 16;
    assert_eq!(site().put_block(place, &state[..words]), Ok(()));
    assert!(site().put_block(place, &state[..words + 8]).is_err());
    assert!(site().put_block(place, &state[..words - 16]).is_err());
    // As a damaged one could: of a table of another size, of a block or a filter that there is not,
    // of a table that begins elsewhere.
    let mut other = state.clone();
    other[8] ^= 1;
    assert!(site().put_block(place, &other).is_err());
    for place in [
        BlockPlace { block: 1, ..place },
        BlockPlace { link: LINKS, ..place },
        BlockPlace { link: usize::MAX, block: usize::MAX, ..place },
        BlockPlace { low: 7, ..place },
    ] {
        assert!(site().put_block(place, &state).is_err(), "{place:?}");
    }
    // A log of before frontiers were logged: the block alone says how far ids reach.
    let young = Space::new(here.options().clone()).unwrap();
    assert_eq!(young.put_block(place, &state), Ok(()));
    assert_eq!(young.highest_id(), here.highest_id());
}

/// Set here, and aside; revoked there: it stays set, here and wherever the log is told.
#[test]
fn a_pair_aside_is_not_revoked_by_a_block() {
    let (here, there) = (site(), site());
    let early = 99 + 1024 + 5;
    (100..=early)
        .step_by(100)
        .chain([early])
        .for_each(|id| assert!(there.add(id, &Member::Number(1)).is_ok()));
    assert_eq!(there.remove(early, &Member::Number(1)).unwrap(), Change::Changed);
    let replica = Space::new(here.options().clone()).unwrap();
    let pair = here.pair(early, &Member::Number(1));
    assert_eq!(here.add(early, &Member::Number(1)).unwrap(), Change::Changed);
    replica.put_frontier(&here.course(0).ranges);
    replica.put(&pair, true).unwrap();
    assert_eq!((here.outlier_pairs(), replica.outlier_pairs()), (1, 1));
    here.add(110, &Member::Number(1)).unwrap();
    assert_eq!(here.outlier_pairs(), 1);
    let blocks = differing(&here, &there, 0);
    let block = here.read_block(&mut &blocks[..]).unwrap();
    let ((), changed) = here.merge_block(&block, || ()).unwrap();
    assert_eq!((changed.len(), block.revoked.len(), here.outlier_pairs()), (0, 1, 1));
    replica.put_frontier(&here.course(0).ranges);
    replica.put_block(block.place(), &here.block_state(block.place()).unwrap()).unwrap();
    while here.maintain() {}
    for space in [&here, &replica] {
        assert_eq!((space.contains_pair(&pair).unwrap(), space.outlier_pairs()), (Answer::Yes, 0));
        assert_eq!(space.most_revoked(), 0);
    }
}

/// M2 at the site that exports: no pair of a block has a higher id than the block says, while new
/// ids come.
#[test]
fn a_block_says_no_less_than_how_far_its_ids_reach() {
    let space = site();
    let done = std::sync::atomic::AtomicBool::new(false);
    let blocks = std::sync::atomic::AtomicU64::new(0);
    let mut above = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for id in 100..8_000 {
                // However the threads are scheduled, blocks are exported between some ids and
                // others.
                let is_ahead = |_: &u32| blocks.load(Relaxed) < id / 1000;
                (0..1 << 20).take_while(is_ahead).for_each(|_| std::thread::yield_now());
                space.add(id, &Member::Number(0)).unwrap();
                (0..20).for_each(|_| std::hint::spin_loop());
            }
            done.store(true, Relaxed);
        });
        while !done.load(Relaxed) {
            let sink = |bytes: &[u8]| {
                let block = space.read_block(&mut &bytes[..]).unwrap();
                let (_, table) = space.table_at(0).unwrap();
                let filter = &table.link(0).unwrap().filter;
                let ids = (block.highest + 1..block.highest + 6)
                    .map(|id| space.pair(id, &Member::Number(0)));
                above += ids.filter(|pair| filter.contains_in(pair, &block.words, 0)).count();
                blocks.fetch_add(1, Relaxed);
                Ok::<(), Unreadable>(())
            };
            space.export_blocks(0, &[0], sink).unwrap();
        }
    });
    let blocks = blocks.into_inner();
    assert!(
        blocks > 5 && above <= 3,
        "{above} in {blocks}: more than the false yeses of so few questions"
    );
}

/// A writer likes and unlikes while blocks are exported: none has the bits without what revokes
/// them.
#[test]
fn what_is_unset_while_blocks_are_exported_is_not_exported_as_set() {
    let options = || Options { pairs_per_table: 400_000 * 8, ..site().options().clone() };
    let (here, there) = (Space::new(options()).unwrap(), Space::new(options()).unwrap());
    for space in [&here, &there] {
        (0..100)
            .for_each(|id| assert_eq!(space.add(id, &Member::Number(0)).unwrap(), Change::Changed));
    }
    let numbers: Vec<usize> = (0..there.digest(0).unwrap().unwrap().blocks.len()).collect();
    assert!(numbers.len() > 4);
    let (mut bytes, mut pieces) = (vec![], 0);
    let sink = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        pieces += 1;
        if pieces == 1 {
            for member in 1..50 {
                assert_eq!(there.add(member, &Member::Number(member)).unwrap(), Change::Changed);
                assert_eq!(there.remove(member, &Member::Number(member)).unwrap(), Change::Changed);
            }
        }
        Ok::<(), Unreadable>(())
    };
    assert!(there.export_blocks(0, &numbers, sink).unwrap());
    merge(&here, &bytes).unwrap();
    assert!(
        (1..50).all(|member| here.contains(member, &Member::Number(member)).unwrap() == Answer::No)
    );
}

/// A table that a snapshot has is written again if a merge has only changed what is revoked.
#[test]
fn a_merge_that_adds_no_pair_is_a_change() {
    let (here, there, replica) = (site(), site(), site());
    let (liked, unliked) = (Member::Number(1000), Member::Number(1001));
    for space in [&here, &there, &replica] {
        [&liked, &unliked]
            .into_iter()
            .for_each(|member| assert_eq!(space.add(7, member).unwrap(), Change::Changed));
    }
    [&liked, &unliked]
        .into_iter()
        .for_each(|member| assert_eq!(here.remove(7, member).unwrap(), Change::Changed));
    assert_eq!(there.remove(7, &unliked).unwrap(), Change::Changed);
    let version = |space: &Space| space.tables_probed(0)[0].version;
    let before = [&here, &replica].map(version);
    let blocks = differing(&here, &there, 0);
    let block = here.read_block(&mut &blocks[..]).unwrap();
    assert_eq!(here.merge_block(&block, || ()).unwrap().1, [here.pair(7, &liked).hash()]);
    replica.put_block(block.place(), &here.block_state(block.place()).unwrap()).unwrap();
    for (space, before) in [&here, &replica].into_iter().zip(before) {
        assert!(version(space) > before);
        assert_eq!(
            [liked, unliked].map(|member| space.contains(7, &member).unwrap()),
            [Answer::Yes, Answer::No]
        );
    }
}

/// A log is read from before a table was recycled: what it says of that table's blocks is past.
#[test]
fn a_block_of_a_table_that_was_recycled_is_passed_over() {
    let options = Options { pairs_per_table: 2000, max_tables: 2, seed: 4, ..Options::default() };
    let space = Space::new(options).unwrap();
    (0..100).for_each(|id| _ = space.add(id, &Member::Number(0)).unwrap());
    let place = BlockPlace { low: 0, link: 0, block: 0 };
    let state = space.block_state(place).unwrap();
    let mut id = 100;
    while space.horizon() == 0 {
        space.add(id, &Member::Number(0)).unwrap();
        id += 1;
    }
    assert_eq!(space.put_block(place, &state), Ok(()));
    assert!(space.block_state(place).is_none());
    let nowhere = BlockPlace { low: space.horizon() + 1, ..place };
    assert!(space.put_block(nowhere, &state).unwrap_err().contains("where none does"));
}

/// The sites agree on the higher generation, and what was set under a lower one is not set on
/// either.
#[test]
fn an_id_that_one_site_has_forgotten_is_forgotten_at_the_other() {
    let (here, there) = (site(), site());
    let (liked, again) = (Member::Number(0), Member::Number(1));
    assert!(there.forget(7) && there.forget(8) && here.forget(8));
    there.add(7, &again).unwrap();
    assert_eq!(
        (here.contains(7, &liked).unwrap(), there.contains(7, &liked).unwrap()),
        (Answer::Yes, Answer::No)
    );
    assert!(merge(&here, &differing(&here, &there, 0)).unwrap() > 0);
    assert!(merge(&there, &differing(&there, &here, 0)).is_ok());
    for space in [&here, &there] {
        assert_eq!(space.forgotten(0, u64::MAX), [(7, 1), (8, 1)]);
        assert_eq!(space.contains(7, &liked).unwrap(), Answer::No, "of an earlier generation");
        assert_eq!(space.contains(7, &again).unwrap(), Answer::Yes);
        assert_eq!(space.contains(9, &liked).unwrap(), Answer::Yes);
    }
    assert_eq!(here.digest(0).unwrap().unwrap().blocks, there.digest(0).unwrap().unwrap().blocks);
    // Nothing but the generation differs.
    assert!(there.forget(9));
    assert!(merge(&here, &differing(&here, &there, 0)).is_ok());
    assert_eq!(here.contains(9, &liked).unwrap(), Answer::No);
    here.add(9, &liked).unwrap();
    assert!(merge(&there, &differing(&there, &here, 0)).is_ok());
    assert_eq!(there.contains(9, &liked).unwrap(), Answer::Yes);
}
