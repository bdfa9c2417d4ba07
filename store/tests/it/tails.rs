//! Tests of tailing readers: a reader from any position returns exactly the following batches,
//! across segments and failed syncs.

use std::sync::Arc;

use store::{Disk, Error, Faults, Position, SimDisk, Step, StoreOptions, Tail};

use crate::basics::{batch, options, start};

fn disk_of(disk: &SimDisk) -> Arc<dyn Disk> {
    Arc::new(disk.clone())
}

/// Reads the log up to `limit`. Returns the sequence numbers and bodies of the batches.
fn follow(tail: &mut Tail, limit: Position) -> Vec<(u64, Vec<u8>)> {
    let mut batches = Vec::new();
    loop {
        match tail.next(limit).unwrap() {
            Step::Segment(_) => {}
            Step::Batch(head, frame) => {
                batches.push((head.sequence, frame[store::BATCH_HEAD_BYTES..].to_vec()))
            }
            Step::End => return batches,
        }
    }
}

#[test]
fn tail_returns_each_durable_batch_once() {
    let mut healed = 0;
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let disk = SimDisk::new(seed);
        let options = StoreOptions { keep_log_bytes: u64::MAX, ..options(random.u64(100..2000)) };
        let (_store, mut log, _, _) = start(&disk, options).unwrap();
        let mut tail = Tail::open(disk_of(&disk), log.durable(), log.durable()).unwrap();
        let mut followed = Vec::new();
        let mut places = vec![log.durable()];
        for i in 0..80u64 {
            let rate = if random.bool() { 0 } else { 150 };
            disk.set_faults(Faults {
                sync_error: rate,
                no_space: rate,
                short_write: 4 * rate,
                ..Faults::default()
            });
            let _ = log.append(&batch(&[&i.to_le_bytes()]), i);
            if random.u32(0..3) == 0 && log.sync().is_ok() {
                places.push(log.durable());
            }
            disk.set_faults(Faults::default());
            if random.u32(0..4) == 0 {
                followed.extend(follow(&mut tail, log.durable()));
                assert_eq!(tail.position().offset, log.durable().offset);
            }
        }
        log.sync().unwrap();
        healed += log.stats().healed;
        let end = log.durable();
        followed.extend(follow(&mut tail, end));
        assert_eq!((tail.position().offset, tail.position().chain), (end.offset, end.chain));
        let numbers: Vec<u64> = followed.iter().map(|(n, _)| *n).collect();
        assert_eq!(numbers, (1..=end.sequence).collect::<Vec<_>>(), "seed {seed}");
        // Every durable position remains valid, even after restarts and in older segments.
        for place in places {
            let mut tail = Tail::open(disk_of(&disk), place, end)
                .unwrap_or_else(|e| panic!("seed {seed}: {place}: {e}"));
            assert_eq!(
                follow(&mut tail, end),
                followed[place.sequence as usize..],
                "seed {seed}: from {place}"
            );
        }
    }
    assert!(healed > 100, "{healed}");
}

#[test]
fn a_place_that_the_log_does_not_have_is_refused() {
    let disk = SimDisk::new(1);
    let options = options(200);
    let (store, mut log, _, _) = start(&disk, options).unwrap();
    let mut places = Vec::new();
    for i in 0..30u64 {
        log.append(&batch(&[&i.to_le_bytes()]), i).unwrap();
        places.push(log.sync().unwrap());
    }
    let end = log.durable();
    let place = places[20];
    let open = |place: Position| Tail::open(disk_of(&disk), place, end);
    open(place).unwrap();
    for other in [
        Position { chain: place.chain ^ 1, ..place },
        Position { sequence: place.sequence + 1, ..place },
        Position { byte: place.byte + 1, offset: place.offset + 1, ..place },
        Position { offset: place.offset + 1, ..place },
        Position { segment: end.segment + 7, ..place },
        Position { byte: 0, offset: u64::MAX, ..place },
        Position { offset: end.offset + 1, ..end },
    ] {
        assert!(matches!(open(other), Err(Error::Refused(_))), "{other:?}");
    }
    // The snapshot removes the log before it.
    store.begin_snapshot(end).commit(end).unwrap();
    assert!(matches!(open(places[0]), Err(Error::Refused(_))));
    open(end).unwrap();
}

/// The tailing reader must not buffer a partly written batch.
#[test]
fn what_lies_behind_the_limit_is_not_remembered() {
    let disk = SimDisk::new(1);
    let (_store, mut log, _, _) = start(&disk, options(10_000)).unwrap();
    log.append(&batch(&[b"one"]), 0).unwrap();
    let limit = log.sync().unwrap();
    let file = disk.open_write(&store::segment_name(limit.segment)).unwrap();
    store::write_all_at(&*file, &[0xee; 30], limit.byte).unwrap();
    let mut tail = Tail::open(disk_of(&disk), Position::START, limit).unwrap();
    assert_eq!(follow(&mut tail, limit).len(), 1);
    log.append(&batch(&[b"two"]), 0).unwrap();
    let limit = log.sync().unwrap();
    assert_eq!(follow(&mut tail, limit).len(), 1);
}
