//! Blocks that are not to be believed, and what they leave behind: nothing.

use super::*;
use xxhash_rust::xxh3::xxh3_64;

#[test]
fn a_union_that_would_break_the_rate_is_refused_whole() {
    let (here, there) = (site(), site());
    here.roll_now();
    there.roll_now();
    add(&here, 1..15_000);
    add(&there, 15_000..30_000);
    let merged = merge(&here, &differing(&here, &there, 0));
    assert!(matches!(merged, Err(MergeError::Overfull)));
    let tables = here.tables_probed(100_000);
    assert!(
        tables[0].measured.rate().unwrap() < 0.0015,
        "what came before the refusal is within the rate: {tables:?}"
    );
    assert!((1..15_000).all(|member| answer(&here, member) == Answer::Yes));
}

/// Few pairs' worth of bits, where they answer much with yes.
#[test]
fn bits_that_no_pairs_have_set_are_refused() {
    let (here, there) = (site(), site());
    add(&there, 1..2000);
    let honest = differing(&here, &there, 0);
    let mut blocks = &honest[..];
    let block = here.read_block(&mut blocks).unwrap();
    let before = here.digest(0);
    // Whole lines, most of every second line, whole pages.
    let shapes: [fn(usize) -> u64; 3] = [
        |word| if word / 8 % 4 == 0 { u64::MAX } else { 0 },
        |word| if word % 8 < 6 && word / 8 % 2 == 0 { u64::MAX } else { 0 },
        |word| if word / PAGE_WORDS == 3 { u64::MAX } else { 0 },
    ];
    for (i, shape) in shapes.into_iter().enumerate() {
        let words = (0..block.words.len()).map(shape).collect();
        let hostile =
            Block { place: block.place(), highest: 99, words, revoked: vec![], forgotten: vec![] };
        assert!(
            matches!(here.merge_block(&hostile, || ()), Err(MergeError::Overfull)),
            "shape {i}"
        );
        assert_eq!(here.digest(0), before);
    }
    assert!(here.merge_block(&block, || ()).is_ok());
}

/// M3: what is refused leaves no filter in the chain, no place taken among the revoked, and the
/// frontier where it was.
#[test]
fn a_refused_block_has_changed_nothing() {
    let (here, there) = (site(), site());
    there.roll_now();
    here.roll_now();
    add(&here, 1..100);
    add(&there, 1..60_000);
    for m in (1..60_000).step_by(500) {
        assert_eq!(there.remove(m % 50, &Member::Number(m)).unwrap(), Change::Changed);
    }
    let blocks = differing(&here, &there, 0);
    // The first filter, and then the first extension, which is not there yet.
    let extension =
        first_extension(&here, &blocks, |block| _ = here.merge_block(block, || ()).unwrap());
    let state = |space: &Space| {
        (
            space.digest(0),
            space.highest_id(),
            space.memory_bytes(),
            space.tables_probed(0)[0].extensions,
        )
    };
    let before = state(&here);
    let entered = || panic!("nothing is refused after this");
    let refuse = |space: &Space, block: &Block| {
        space.merge_block(block, entered).map(|((), _)| ()).unwrap_err().to_string()
    };
    let last = 99;
    let hostile = |words: Vec<u64>, highest: u64| Block {
        place: extension.place,
        highest,
        words,
        revoked: extension.revoked.clone(),
        forgotten: vec![(7, 1)],
    };
    assert!(
        refuse(&here, &hostile(vec![u64::MAX; extension.words.len()], last))
            .contains("exceed the error rate")
    );
    assert_eq!(state(&here), before);
    refuse(&here, &hostile(extension.words.clone(), 1 << 40));
    assert_eq!(state(&here), before);
    let tight = Options { memory_limit_bytes: Some(1), ..here.options().clone() };
    let full = Space::new(tight).unwrap();
    (0..100).for_each(|id| assert_eq!(full.add(id, &Member::Number(0)).unwrap(), Change::Changed));
    assert!(refuse(&full, &extension).contains("memory limit"));
    assert_eq!((state(&here), full.tables_probed(0)[0].extensions), (before, 0));
    let ((), changed) = here.merge_block(&extension, || ()).unwrap();
    assert!(!changed.is_empty(), "some are revoked: they had a place each time");
    assert_eq!(here.tables_probed(0)[0].extensions, 1);
}

/// P4: extensions of one bit close no table, so they empty no ring; and its first filter goes on to
/// take pairs.
#[test]
fn an_extension_of_one_bit_closes_no_table() {
    let here = site();
    (100..5_000)
        .for_each(|id| assert_eq!(here.add(id, &Member::Number(1)).unwrap(), Change::Changed));
    let (_, table) = here.table_at(0).unwrap();
    for link in 1..4 {
        let (_, pages) = Table::geometry(table.rate(), table.pages(), link);
        let place = BlockPlace { low: 0, link, block: 0 };
        let mut words = vec![0; block_range(pages, 0).len()];
        words[0] = 1;
        assert!(
            here.merge_block(
                &Block { place, highest: 4_999, words, revoked: vec![], forgotten: vec![] },
                || ()
            )
            .is_ok()
        );
        assert_eq!(here.add(5_000 + link as u64, &Member::Number(1)).unwrap(), Change::Changed);
        while here.maintain() {}
        let tables = here.tables_probed(0);
        assert_eq!((tables.len(), tables[0].extensions), (1, link), "{tables:?}");
    }
    assert!(table.links().skip(1).all(|link| link.pairs() <= 1), "the first filter has room");
    assert_eq!(here.horizon(), 0);
}

/// A revoked set at its bound takes none of the block, and forgets what of it was in.
#[test]
fn a_block_that_revokes_more_than_there_is_room_for_changes_nothing() {
    let there = site();
    let here = Space::new(Options { max_revoked: 30, ..there.options().clone() }).unwrap();
    for id in 0..100 {
        here.add(id, &Member::Number(0)).unwrap();
    }
    let revoke = |space: &Space, members: std::ops::Range<u64>| {
        add(space, members.clone());
        members.for_each(|m| {
            assert_eq!(space.remove(m % 50, &Member::Number(m)).unwrap(), Change::Changed)
        });
    };
    revoke(&here, 1..11);
    revoke(&there, 100..125);
    let before = here.digest(0);
    let merged = merge(&here, &differing(&here, &there, 0));
    assert!(matches!(merged, Err(MergeError::Refused(Error::RevokedFull))), "{merged:?}");
    assert_eq!(here.digest(0), before);
    revoke(&there, 125..135);
    let bytes = differing(&here, &there, 0);
    let read = here.read_block(&mut &bytes[..]).err();
    assert!(
        matches!(read, Some(MergeError::Refused(Error::RevokedFull))),
        "more than may ever be revoked"
    );
}

/// What is there already does no more harm by coming again, however full the filter is; one bit
/// more would.
#[test]
fn what_is_there_already_may_come_again() {
    let here = site();
    let place = BlockPlace { low: 0, link: 0, block: 0 };
    let mut state = here.block_state(place).unwrap();
    // A log may bring what was accepted under other bounds.
    state[16..].iter_mut().for_each(|byte| *byte |= 0x77);
    here.put_block(place, &state).unwrap();
    let words = state[16..].as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let mut block = Block { place, highest: 99, words, revoked: vec![], forgotten: vec![] };
    let before = here.digest(0);
    assert!(here.merge_block(&block, || ()).is_ok());
    block.words[0] = u64::MAX;
    assert!(matches!(here.merge_block(&block, || ()), Err(MergeError::Overfull)));
    assert_eq!(here.digest(0), before);
}

/// M2 where the table was closed after the block had been read.
#[test]
fn a_block_that_reaches_beyond_its_table_is_refused() {
    let (here, there) = (site(), site());
    (100..150)
        .for_each(|id| assert_eq!(there.add(id, &Member::Number(1)).unwrap(), Change::Changed));
    let blocks = differing(&here, &there, 0);
    let block = here.read_block(&mut &blocks[..]).unwrap();
    assert!(here.roll_now());
    let before = here.digest(0);
    let merged = here.merge_block(&block, || ()).map(|_| ());
    assert!(matches!(merged, Err(MergeError::NoTable { low: 0, last: 149 })), "{merged:?}");
    assert_eq!((here.digest(0), here.highest_id()), (before, Some(99)));
}

/// What a stranger says is revoked fills no set of ours with pairs that his block says nothing of:
/// they lie in another one, or nowhere.
#[test]
fn a_block_revokes_pairs_of_its_own_only() {
    let options = || Options { pairs_per_table: 400_000 * 8, ..site().options().clone() };
    let (here, there) = (Space::new(options()).unwrap(), Space::new(options()).unwrap());
    for space in [&here, &there] {
        (0..100)
            .for_each(|id| assert_eq!(space.add(id, &Member::Number(0)).unwrap(), Change::Changed));
    }
    let (_, table) = here.table_at(0).unwrap();
    let in_block = |block: usize| {
        let mut pairs = (1..1000).map(|member| (member, here.pair(1, &Member::Number(member))));
        let (member, pair) =
            pairs.find(|(_, pair)| block_of(table.pages(), pair) == block).unwrap();
        assert_eq!(there.add(1, &Member::Number(member)).unwrap(), Change::Changed);
        assert_eq!(there.remove(1, &Member::Number(member)).unwrap(), Change::Changed);
        pair.hash()
    };
    let (ours, others, nowhere) =
        (in_block(0), in_block(1), here.pair(1, &Member::Number(1 << 40)).hash());
    let blocks = differing(&here, &there, 0);
    let mut block = here.read_block(&mut &blocks[..]).unwrap();
    assert_eq!((block.place.block, &block.revoked[..]), (0, &[ours][..]));
    block.revoked.extend([others, nowhere, nowhere ^ 1, 0, u128::MAX]);
    block.revoked.sort_unstable();
    assert_eq!(here.merge_block(&block, || ()).unwrap().1, [ours]);
    assert_eq!(here.most_revoked(), 1);
}

/// Of a filter that is there, and of one that would come next in the chain.
#[test]
fn a_block_without_a_bit_changes_nothing() {
    let here = site();
    let state =
        || (here.digest(0), here.pairs(), here.memory_bytes(), here.tables_probed(0)[0].extensions);
    let before = state();
    let (_, table) = here.table_at(0).unwrap();
    for link in [0, 1] {
        let place = BlockPlace { low: 0, link, block: 0 };
        let (_, pages) = Table::geometry(table.rate(), table.pages(), link);
        let words = vec![0; block_range(pages, 0).len()];
        let revoked = (1..50).map(|member| here.pair(7, &Member::Number(member)).hash());
        let block =
            Block { place, highest: 99, words, revoked: revoked.collect(), forgotten: vec![] };
        assert_eq!(here.merge_block(&block, || ()).unwrap(), ((), vec![]));
        assert_eq!(state(), before);
        assert_eq!(here.block_state(place).is_some(), link == 0, "there is nothing to tell of it");
    }
}

/// The header of a block is a stranger's word: each field has to fit our table, whatever the
/// checksum says.
#[test]
fn each_field_of_a_header_has_to_fit() {
    let (here, there) = (site(), site());
    add(&there, 1..500);
    let whole = differing(&here, &there, 0);
    let read = |fields: &[(usize, u64)]| {
        let mut bytes = whole.clone();
        fields
            .iter()
            .for_each(|&(at, field)| bytes[at..at + 8].copy_from_slice(&field.to_le_bytes()));
        let end = bytes.len() - 8;
        let check = xxh3_64(&bytes[..end]);
        bytes[end..].copy_from_slice(&check.to_le_bytes());
        here.read_block(&mut &bytes[..]).map_or_else(|error| error.to_string(), |_| String::new())
    };
    assert_eq!(read(&[]), "");
    let u64_at = |at| crate::bytes::u64_at(&whole, at);
    let halves = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    for (fields, words) in [
        (vec![(0, u64_at(0) + (1 << 56))], "no block of version 1"),
        (vec![(8, 0.01f64.to_bits())], "another error rate"),
        (vec![(8, f64::NAN.to_bits())], "another error rate"),
        (vec![(16, !u64_at(16))], "another seed"),
        (vec![(24, 9), (32, 8)], "no table covers the ids 9..=8"),
        (vec![(24, 200)], "a highest id that is none of the table's"),
        (vec![(32, 98)], "a highest id that is none of the table's"),
        (vec![(48, u64_at(48) + 1)], "another size"),
        (vec![(48, u64::MAX)], "another size"),
        (vec![(56, halves(2, 0))], "has no predecessor"),
        (vec![(56, halves(16, 0))], "has no predecessor"),
        (vec![(56, halves(u32::MAX, u32::MAX))], "has no predecessor"),
        (vec![(56, halves(0, 1))], "a block that its filter has not"),
        (vec![(56, halves(0, u32::MAX))], "a block that its filter has not"),
        (vec![(64, halves(1, 0))], "too early"),
        (vec![(64, halves(u32::MAX, 0))], "too many pairs were unset"),
        (vec![(64, halves(0, 1))], "too early"),
        (vec![(64, halves(0, u32::MAX))], "too many ids are forgotten"),
    ] {
        assert!(read(&fields).contains(words), "{fields:?}: {}", read(&fields));
    }
    // One that a filter of the chain may have that is not there yet is shorter, and its checksum
    // lies elsewhere.
    assert!(read(&[(56, halves(1, 0))]).contains("checksum"));
}

#[test]
fn tables_that_do_not_match_are_refused() {
    let here = site();
    here.roll_now();
    here.roll_now();
    let newest = differing(&here, &site(), 0);
    assert!(matches!(merge(&here, &newest), Ok(0) | Err(MergeError::NoTable { low: 0, .. })));
    let other = site();
    add(&other, 1..500);
    assert!(matches!(
        merge(&here, &differing(&here, &other, 0)),
        Err(MergeError::NoTable { low: 0, .. })
    ));
    let options = Options { pairs_per_table: 5000 * 8, ..here.options().clone() };
    let other = Space::new(options).unwrap();
    for id in 0..100 {
        other.add(id, &Member::Number(0)).unwrap();
    }
    other.roll_now();
    assert!(matches!(merge(&here, &differing(&here, &other, 0)), Err(MergeError::OtherLayout)));
    assert!(here.digest(7).unwrap().is_none());
}

/// Each of these would otherwise take memory without a bound, or keep an id from being forgotten
/// ever again.
#[test]
fn forgotten_ids_that_cannot_be_are_refused() {
    let there = site();
    let here = Space::new(Options { max_forgotten: 3, ..there.options().clone() }).unwrap();
    (0..100).for_each(|id| _ = here.add(id, &Member::Number(0)).unwrap());
    let bytes = exported(&there, 0, &[0]);
    let body = bytes.len() - 8;
    // Both say that they are forgotten, in a block that is whole.
    let with = |forgotten: &[(u64, u64)]| {
        let mut block = bytes[..body].to_vec();
        block[68..72].copy_from_slice(&(forgotten.len() as u32).to_le_bytes());
        for number in forgotten.iter().flat_map(|&(id, generation)| [id, generation]) {
            block.extend_from_slice(&number.to_le_bytes());
        }
        block.extend_from_slice(&xxhash_rust::xxh3::xxh3_64(&block).to_le_bytes());
        block
    };
    let outcome = |forgotten: &[(u64, u64)]| {
        merge(&here, &with(forgotten)).map_or_else(|error| error.to_string(), |_| String::new())
    };
    for hostile in [
        &[(7, 0)][..],
        &[(7, u64::MAX)],
        &[(7, (1 << 32) + 1)],
        &[(100, 1)],
        &[(u64::MAX, 1)],
        &[(7, 1), (7, 2)],
        &[(8, 1), (7, 1)],
    ] {
        assert!(outcome(hostile).contains("forgotten ids that cannot be"), "{hostile:?}");
    }
    assert!(outcome(&[(1, 1), (2, 1), (3, 1), (4, 1)]).contains("max_forgotten"));
    assert_eq!(here.forgotten_ids(), 0);
    assert_eq!(outcome(&[(1, 1), (2, 1)]), "");
    assert!(outcome(&[(3, 1), (4, 1)]).contains("max_forgotten"), "with those that are there");
    assert_eq!(here.forgotten(0, 99), [(1, 1), (2, 1)]);
    assert_eq!(outcome(&[(2, 5), (3, 1)]), "");
    assert_eq!(here.forgotten(0, 99), [(1, 1), (2, 5), (3, 1)]);
}
