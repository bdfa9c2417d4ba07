//! What a check of a pair costs in a large filter: a feed page asks for 20 at once. Beside it, in
//! the same run: the same checks one by one, a plain Bloom filter whose k bits lie anywhere
//! (fetched ahead, too), and the `bloomfilter` crate.
//!
//! `cargo run --release -p tidemark-bench --bin phantom_lookup -- --gib 1`

use bloomfilter::Bloom;
use clap::Parser;
use phantom::{Answer, Member, Options, Space};
use rolling::Words;
use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Measures lookups in large filters.
#[derive(Parser)]
struct Args {
    /// Size of the filters, in GiB.
    #[arg(long, default_value_t = 1.0)]
    gib: f64,
    /// Pairs in the `bloomfilter` crate's filter, which is sized for them.
    #[arg(long, default_value_t = 100_000_000)]
    peer_pairs: usize,
    /// Checks per measurement.
    #[arg(long, default_value_t = 4_000_000)]
    checks: usize,
}

const BATCH: usize = 20;
const RATE: f64 = 0.0001;
const POSTS: u64 = 1 << 20;

/// The i-th pair: posts are liked by many.
fn pair(i: u64) -> (u64, u64) {
    let mixed = (i ^ (i >> 15)).wrapping_mul(0x2545_f491_4f6c_dd1d);
    ((1 << 50) + mixed % POSTS, i)
}

/// A Bloom filter with k bits anywhere.
struct Plain {
    words: Words,
    bits: u64,
    k: usize,
}

impl Plain {
    fn hash(id: u64, member: u64) -> (u64, u64) {
        let mut input = [0; 16];
        input[..8].copy_from_slice(&id.to_le_bytes());
        input[8..].copy_from_slice(&member.to_le_bytes());
        let hash = xxh3_128_with_seed(&input, 7);
        (hash as u64, (hash >> 64) as u64 | 1)
    }

    fn bit(&self, (a, b): (u64, u64), i: usize) -> usize {
        ((u128::from(a.wrapping_add(b.wrapping_mul(i as u64))) * u128::from(self.bits)) >> 64)
            as usize
    }

    fn check_batch(&self, member: u64, ids: &[u64]) -> usize {
        let mut hashes = [(0, 0); BATCH];
        for (hash, &id) in hashes.iter_mut().zip(ids) {
            *hash = Plain::hash(id, member);
            (0..self.k).for_each(|i| self.words.prefetch(self.bit(*hash, i) / 64));
        }
        let has = |hash: (u64, u64)| {
            (0..self.k).all(|i| {
                let bit = self.bit(hash, i);
                self.words[bit / 64].load(Relaxed) >> (bit % 64) & 1 == 1
            })
        };
        hashes[..ids.len()].iter().filter(|hash| has(**hash)).count()
    }
}

/// Pages of 20 ids for one viewer each. `share` of the pairs are among the first `pairs`.
fn pages(
    rng: &mut fastrand::Rng,
    checks: usize,
    pairs: u64,
    share: f64,
) -> Vec<(u64, [u64; BATCH])> {
    let page = |_| {
        // The viewer of a set pair has that one only: a page of hits is as many viewers' first
        // hits, asked one page each.
        let member =
            if rng.f64() < share { rng.u64(0..pairs) } else { (1 << 40) + rng.u64(0..1 << 40) };
        let mut ids = [0; BATCH];
        ids.iter_mut().for_each(|id| *id = (1 << 50) + rng.u64(0..POSTS));
        (member, ids)
    };
    (0..checks / BATCH).map(page).collect()
}

/// CPU time of this thread: the machine may be busy with other things.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn report(name: &str, checks: usize, started: Duration, found: usize) {
    let each = (cpu_time() - started).as_nanos() as f64 / checks as f64;
    println!("{name:<58} {each:>7.1} ns per check   {found:>8} yes");
}

// Long: one measurement after the other.
fn main() {
    let args = Args::parse();
    let bytes = (args.gib * (1u64 << 30) as f64) as u64;
    // The first table of a space is an eighth of a grown one.
    let full = (bytes as f64 * 8.0 / 19.9) as u64;
    let options = Options {
        false_positive_rate: RATE,
        pairs_per_table: full * 8,
        max_tables: 2,
        seed: 7,
        ..Options::default()
    };
    let space = Space::new(options).expect("memory for one filter");
    let started = cpu_time();
    for i in 0..full {
        let (id, member) = pair(i + 16);
        space.prefetch(id, &Member::Number(member));
        let (id, member) = pair(i);
        space.add(id, &Member::Number(member)).expect("room for all");
    }
    let add = (cpu_time() - started).as_nanos() as f64 / full as f64;
    let table = &space.tables()[0];
    println!(
        "{full} pairs in {} MiB, {:.3} full, added in {add:.0} ns each",
        table.bytes >> 20,
        table.fill
    );

    let mut rng = fastrand::Rng::with_seed(1);
    let checks = args.checks / BATCH * BATCH;
    let misses = pages(&mut rng, checks, full, 0.0);
    let hits: Vec<(u64, u64)> = (0..checks).map(|_| pair(rng.u64(0..full))).collect();
    let yes = |answers: &[Answer]| answers.iter().filter(|answer| **answer == Answer::Yes).count();

    let mut answers = Vec::with_capacity(BATCH);
    for round in 0..3 {
        let started = cpu_time();
        let mut found = 0;
        for (member, ids) in &misses {
            answers.clear();
            space
                .contains_batch(&Member::Number(*member), ids, &mut answers)
                .expect("all is in memory");
            found += yes(&answers);
        }
        report(
            &format!("phantom, batches of {BATCH}, not set (round {round})"),
            checks,
            started,
            found,
        );
    }
    let started = cpu_time();
    let mut found = 0;
    for (member, ids) in &misses {
        for id in ids {
            found += usize::from(
                space.contains(*id, &Member::Number(*member)).expect("all is in memory")
                    == Answer::Yes,
            );
        }
    }
    report("phantom, one by one, not set", checks, started, found);
    let started = cpu_time();
    let found = hits
        .iter()
        .filter(|(id, member)| {
            space.contains(*id, &Member::Number(*member)).expect("all is in memory") == Answer::Yes
        })
        .count();
    report("phantom, one by one, set", checks, started, found);
    drop(space);

    let words = (bytes / 8) as usize;
    let plain = Plain {
        words: Words::zeroed(words).expect("memory for one filter"),
        bits: words as u64 * 64,
        k: 13,
    };
    // Half of its bits at random: as if it were full.
    plain.words.iter().for_each(|word| word.store(rng.u64(..), Relaxed));
    for round in 0..3 {
        let started = cpu_time();
        let found = misses.iter().map(|(member, ids)| plain.check_batch(*member, ids)).sum();
        report(
            &format!("plain filter, k 13, prefetched batches of {BATCH} (round {round})"),
            checks,
            started,
            found,
        );
    }
    drop(plain);

    let mut peer = Bloom::<(u64, u64)>::new_for_fp_rate_with_seed(
        args.peer_pairs,
        RATE,
        &std::array::from_fn(|i| i as u8 * 7),
    )
    .expect("its size");
    (0..args.peer_pairs as u64).for_each(|i| peer.set(&pair(i)));
    let started = cpu_time();
    let found = misses
        .iter()
        .map(|(member, ids)| {
            ids.iter().filter(|id| black_box(peer.check(&(**id, *member)))).count()
        })
        .sum();
    report(
        &format!("bloomfilter crate, {} MiB, not set", peer.len() >> 23),
        checks,
        started,
        found,
    );
    let set: Vec<(u64, u64)> =
        (0..checks).map(|_| pair(rng.u64(0..args.peer_pairs as u64))).collect();
    let started = cpu_time();
    let found = set.iter().filter(|pair| black_box(peer.check(pair))).count();
    report(&format!("bloomfilter crate, {} MiB, set", peer.len() >> 23), checks, started, found);
}
