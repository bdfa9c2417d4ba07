//! Cost per pair: bytes on disk, bytes in memory, and reads per lookup.

use crate::model::{KIND, SPACE, open};
use ledger::{Answer, Flush, Ledger, Member, Options};
use store::SimDisk;

/// Returns 50 pairs per id on average, unevenly distributed and in random order.
fn pairs(n: usize, bits: u32) -> Vec<(u64, u64)> {
    let mut random = fastrand::Rng::with_seed(7);
    let ids = n as f64 / 50.0;
    (0..n)
        .map(|_| {
            // Approximates a Zipf distribution with exponent 1.
            let rank = ids.powf(random.f64()) as u64;
            let id = (1 << 50) + rank.wrapping_mul(0x9e37_79b9) % ids as u64 * 4194;
            (id, random.u64(..) >> (64 - bits))
        })
        .collect()
}

/// Returns the number of blocks read by a lookup, and its answer.
fn lookup(ledger: &Ledger, id: u64, member: u64) -> (u64, bool) {
    let (mut reads, mut answer) = (0, ledger.ask(id, Member::Number(member)));
    loop {
        match answer {
            Answer::Known(set) => return (reads, set),
            Answer::NeedsBlock(question) => {
                reads += 1;
                answer = question.read().unwrap();
            }
        }
    }
}

#[test]
fn pairs_take_few_bytes_and_lookups_few_reads() {
    for (bits, most) in [(40, 6.0), (64, 10.0)] {
        let store = open(&SimDisk::new(1));
        // Scale `upper_pairs` as if there were 100,000,000 pairs.
        let options = Options {
            memory_pairs: 20_000,
            range_pairs: 200_000,
            upper_pairs: 25_000,
            ..Options::default()
        };
        let ledger = Ledger::open(&store, SPACE, KIND, options).unwrap();
        let pairs = pairs(600_000, bits);
        for &(id, member) in &pairs {
            ledger.set(id, Member::Number(member), true);
            if ledger.is_due() {
                ledger.flush(&store, Flush::Most, 0, || Ok(0)).unwrap();
            }
        }
        ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap();
        let stats = ledger.stats();
        let n = stats.run_pairs as f64;
        assert!(stats.run_pairs <= 600_000 && n > 599_000.0, "{stats:?}");
        let bytes = stats.run_bytes as f64 / n;
        assert!(bytes < most, "{bytes} bytes per pair of {bits} bits");
        let memory = stats.index_bytes as f64 * 8.0 / n;
        // Each run takes 600 bytes of memory, in addition to its index, checksums and filter.
        let fixed = stats.runs as f64 * 600.0 * 8.0 / n;
        assert!(
            memory - fixed < 0.5,
            "{memory} bits per pair, {fixed} of them by {} runs",
            stats.runs
        );
        let written = stats.written_pairs as f64 / n;
        assert!(written < 16.0, "each pair was written {written} times");

        let mut random = fastrand::Rng::with_seed(2);
        let (mut found, mut absent) = (0, 0);
        for _ in 0..5000 {
            let (id, member) = pairs[random.usize(..pairs.len())];
            let (reads, set) = lookup(&ledger, id, member);
            assert!(set && reads <= options.runs as u64);
            found += reads;
            let (reads, set) = lookup(&ledger, id, random.u64(..) >> (64 - bits));
            assert!(!set && reads <= options.runs as u64);
            absent += reads;
        }
        for reads in [found, absent] {
            assert!(reads < 5000 * 5 / 4, "{reads} reads of 5,000 lookups");
        }
    }
}

#[test]
fn strings_share_their_beginnings() {
    let store = open(&SimDisk::new(1));
    let ledger = Ledger::open(&store, SPACE, KIND, Options::default()).unwrap();
    for n in 0..100_000 {
        ledger.set(n % 20, Member::Bytes(format!("user:{:09}", n * 7).as_bytes()), true);
    }
    assert!(ledger.stats().memory_bytes > 100_000 * 40);
    ledger.flush(&store, Flush::All, 0, || Ok(0)).unwrap();
    let stats = ledger.stats();
    let bytes = stats.run_bytes as f64 / 100_000.0;
    assert!(bytes < 6.0, "{bytes} bytes per string of 14");
    assert_eq!(stats.memory_bytes, 0);
    for n in (0..100_000).step_by(37) {
        let has = |n| {
            let member = format!("user:{:09}", n * 7);
            ledger.contains(n % 20, Member::Bytes(member.as_bytes())).unwrap()
        };
        assert!(has(n));
        assert!(!ledger.contains(n % 20, Member::Bytes(b"user:000000001")).unwrap());
    }
}
