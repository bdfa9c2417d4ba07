//! Damaged runs: lookups in the damaged block return an error that names the file. All other
//! lookups succeed.

use crate::model::{KIND, SPACE, open};
use ledger::{Flush, Ledger, Member, Options};
use store::{Error, SimDisk};

#[test]
fn flipped_bits_are_errors_of_their_own_pairs() {
    let disk = SimDisk::new(1);
    let store = open(&disk);
    let ledger = Ledger::open(&store, SPACE, KIND, Options::default()).unwrap();
    let pairs: Vec<(u64, u64)> = (0..20_000).map(|n| (n / 60 * 9, n * n * 31)).collect();
    pairs.iter().for_each(|&(id, member)| ledger.set(id, Member::Number(member), true));
    ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap();
    let name = store.cold_files()[0].name.clone();
    let bytes = store.cold_files()[0].bytes;
    drop((ledger, store));
    let mut random = fastrand::Rng::with_seed(2);
    for round in 0..300 {
        let at = match round {
            0..100 => round * 40,
            100..200 => bytes - 1 - (round - 100),
            _ => random.u64(..bytes),
        };
        let damaged = disk.kill().fork(round);
        assert!(damaged.flip_bit(&name, at * 8 + random.u64(..8)));
        let store = open(&damaged);
        let ledger = match Ledger::open(&store, SPACE, KIND, Options::default()) {
            Ok(ledger) => ledger,
            Err(Error::Corrupt { path, .. } | Error::Version { path, .. }) => {
                assert!(path.ends_with(&name), "byte {at}");
                continue;
            }
            Err(other) => panic!("byte {at}: {other}"),
        };
        let mut wrong = 0;
        for &(id, member) in &pairs {
            match ledger.contains(id, Member::Number(member)) {
                Ok(set) => assert!(set, "byte {at}"),
                Err(Error::Corrupt { path, offset, .. }) => {
                    assert!(path.ends_with(&name) && offset / 4096 == at / 4096, "byte {at}");
                    wrong += 1;
                }
                Err(other) => panic!("byte {at}: {other}"),
            }
        }
        assert!((1..2000).contains(&wrong), "byte {at}: {wrong} pairs");
        assert!(ledger.list((0, u64::MAX), None, usize::MAX).is_err(), "byte {at}");
        // A merge must not copy damaged data into a block with a valid checksum.
        ledger.set(5, Member::Number(5), true);
        let before = damaged.list_names();
        assert!(ledger.trim(&store, (0, u64::MAX), |_| true, || Ok(0)).is_err());
        assert_eq!(damaged.list_names(), before);
    }
}

#[test]
fn damaged_run_keeps_no_pairs_in_memory() {
    let disk = SimDisk::new(3);
    let store = open(&disk);
    let options =
        Options { memory_pairs: 1000, range_pairs: 2000, upper_pairs: 0, ..Options::default() };
    let ledger = Ledger::open(&store, SPACE, KIND, options).unwrap();
    (0..6000).for_each(|n| ledger.set(n / 3, Member::Number(n * 7), true));
    ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap();
    assert_eq!(ledger.stats().ranges, 3);
    let first = store.cold_files().into_iter().find(|file| file.tag.low == 0).unwrap();
    assert!(disk.flip_bit(&first.name, 8 * 5000));
    // Most pairs are in the damaged range.
    (0..3000).for_each(|n| ledger.set(n % 500, Member::Number(50_000 + n), true));
    (0..600).for_each(|n| ledger.set(1500 + n % 500, Member::Number(50_000 + n), true));
    // The first flush writes a run above the damaged run. Later flushes merge with the new run.
    for round in 0..6 {
        ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap();
        let error = ledger.take_unreadable();
        let is_of_it =
            matches!(&error, Some(Error::Corrupt { path, .. }) if path.ends_with(&first.name));
        assert!(is_of_it || round > 0, "{error:?}");
        let stats = ledger.stats();
        assert!(stats.memory_pairs == 0 && stats.most_runs <= options.runs, "{stats:?}");
        (0..3000).for_each(|n| ledger.set(n % 500, Member::Number(50_000 + n), true));
    }
    ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap();
    for n in 0..3000 {
        assert!(ledger.contains(n % 500, Member::Number(50_000 + n)).unwrap());
    }
    for n in 0..600 {
        assert!(ledger.contains(1500 + n % 500, Member::Number(50_000 + n)).unwrap());
    }
}
