//! Checks the false-positive rate (P2) of full tables for adversarial shapes of pairs, by looking
//! up unset pairs. The bound is the expected rate plus four standard deviations. A full table is
//! expected to have 95.2 % of the configured rate.

use phantom::{Answer, Member, Options, Space};
use std::collections::HashSet;
use std::io::Read;

const SHARE_WHEN_FULL: f64 = 0.952;

/// Fills one table and looks up the unset pairs `never`. Returns the number of false positives and
/// the number of lookups.
fn measure(
    rate: f64,
    n: u64,
    pair: impl Fn(u64) -> (u64, u64),
    never: impl Iterator<Item = (u64, u64)>,
) -> (f64, u64) {
    // The first table of a space has an eighth of the full size.
    let options = Options {
        false_positive_rate: rate,
        pairs_per_table: n * 8,
        max_tables: 2,
        seed: 5,
        ..Options::default()
    };
    let space = Space::new(options).expect("memory for one table");
    let capacity = space.tables()[0].capacity;
    // Write the highest ids first. The table then closes above them, so all other ids are late.
    let mut set = vec![];
    for i in (n - n.min(5000)..n).chain(0..n - n.min(5000)).chain(n..) {
        if space.pairs() == capacity {
            break;
        }
        // Additional members replace the pairs that the table already reported as set.
        let (id, member) = if i < n { pair(i) } else { (pair(i % n).0, pair(i % n).1 ^ 1 << 63) };
        space.add(id, &Member::Number(member)).expect("the pairs fit");
        set.push((id, member));
    }
    while space.maintain() {}
    let table = &space.tables_probed(1_000_000)[0];
    assert_eq!((table.fill > 0.998, table.extensions), (true, 0), "the table is full");
    let bits = table.bytes as f64 * 8.0 / table.capacity as f64;
    assert!(bits <= 19.9, "{bits} bits per pair");
    // The measured rate of canaries must agree with the rate of pairs that clients could look up.
    let canaries = 1e6 * rate * SHARE_WHEN_FULL;
    assert!(
        (table.measured.rate().unwrap_or(1.0) * 1e6 - canaries).abs()
            < 4.0 * canaries.sqrt() + 0.1 * canaries
    );
    assert!(
        set.iter()
            .all(|(id, member)| space.contains(*id, &Member::Number(*member)).unwrap()
                == Answer::Yes),
        "P1"
    );
    let (mut asked, mut yes) = (0u64, 0u64);
    for (id, member) in never {
        asked += 1;
        yes += u64::from(space.contains(id, &Member::Number(member)).unwrap() == Answer::Yes);
    }
    (yes as f64, asked)
}

/// Compares a full table with a textbook filter (crate bloomfilter) for the same pairs and rate.
/// Both must match their rate within four standard deviations.
#[test]
fn a_full_table_errs_as_often_as_a_textbook_filter_of_its_rate() {
    let n = if cfg!(debug_assertions) { 200_000 } else { 2_000_000 };
    for rate in [0.01, 0.001] {
        let pair = |i: u64| ((1 << 40) + i / 8, i * 7919);
        // The unset pairs are other members of the same ids.
        let never = |i: u64| (pair(i % n).0, (1 << 50) + i);
        let (ours, asked) = measure(rate, n, pair, (0..2 * n).map(never));
        // The crate requires two different keys.
        let seed = std::array::from_fn(|i| i as u8);
        let mut textbook =
            bloomfilter::Bloom::new_for_fp_rate_with_seed(n as usize, rate, &seed).unwrap();
        (0..n).for_each(|i| textbook.set(&pair(i)));
        let theirs = (0..2 * n).filter(|&i| textbook.check(&never(i))).count() as f64;
        let expected = rate * asked as f64;
        assert_eq!(asked, 2 * n);
        for (whose, yes, share) in [("ours", ours, SHARE_WHEN_FULL), ("theirs", theirs, 1.0)] {
            let expected = expected * share;
            assert!(
                (yes - expected).abs() < 4.0 * expected.sqrt() + 0.05 * expected,
                "{rate}, {whose}: {yes} of {asked}, expected {expected}"
            );
        }
    }
}

#[test]
fn pairs_of_every_shape_meet_the_rate() {
    type Shape = (&'static str, fn(u64) -> (u64, u64));
    let shapes: [Shape; 6] = [
        ("sequential ids", |i| ((1 << 40) + i, 7)),
        ("sequential users", |i| (1 << 40, i)),
        ("ids with equal low bits", |i| ((i << 38) | 12_345, 99)),
        ("ids with equal high bits", |i| ((77 << 40) | (i / 3), i % 3)),
        ("users with equal low bits", |i| (1 << 41, i << 38)),
        ("snowflakes, 20 users each", |i| {
            (3_631_614_501_919_378 + (i / 20) * 4096, 833_933_534_602 + i * 37)
        }),
    ];
    let n = if cfg!(debug_assertions) { 400_000 } else { 4_000_000 };
    for rate in [0.01, 0.001, 0.0001] {
        for (name, shape) in shapes {
            let (yes, asked) = measure(rate, n, |i| shape(2 * i), (0..n).map(|i| shape(2 * i + 1)));
            let expected = rate * SHARE_WHEN_FULL * asked as f64;
            println!("{rate} {name}: {yes} of {asked}, {expected:.0} expected");
            assert!(
                (yes - expected).abs() < 4.0 * expected.sqrt() + 0.02 * expected,
                "{name}: {yes} positives, expected {expected}"
            );
        }
    }
}

/// Generated pairs with the shape of real data.
#[test]
fn generated_pairs_of_a_microblog_meet_the_rate() {
    check_pairs(&generated_pairs());
}

#[test]
fn real_pairs_meet_the_rate() {
    if let Some(pairs) = real_pairs() {
        assert_eq!(pairs.len(), 63_172);
        check_pairs(&pairs);
    }
}

/// Sets these pairs and looks up other pairs of the same 521 ids and their users.
fn check_pairs(pairs: &[(u64, u64)]) {
    let known: HashSet<(u64, u64)> = pairs.iter().copied().collect();
    let mut ids: Vec<u64> = pairs.iter().map(|p| p.0).collect();
    let mut users: Vec<u64> = pairs.iter().map(|p| p.1).collect();
    ids.sort_unstable();
    ids.dedup();
    users.sort_unstable();
    users.dedup();
    assert_eq!(ids.len(), 521);
    for rate in [0.01, 0.001, 0.0001] {
        let never = users.iter().flat_map(|user| ids.iter().map(move |id| (*id, *user)));
        let never = never.filter(|pair| !known.contains(pair)).take(3_000_000);
        let count = pairs.len() as u64;
        let (yes, asked) = measure(rate, count * 19 / 20, |i| pairs[(i % count) as usize], never);
        let expected = rate * SHARE_WHEN_FULL * asked as f64;
        println!("{rate}: {yes} of {asked}, {expected:.0} expected");
        // There are few pages, so the rate varies between filters.
        assert!(
            (yes - expected).abs() < 4.0 * expected.sqrt() + 0.15 * expected,
            "{yes} positives, expected {expected}"
        );
    }
}

/// Returns as many ids and pairs as the real data has, with a skewed distribution of ids.
fn generated_pairs() -> Vec<(u64, u64)> {
    const POSTS: u64 = 521;
    let mut rng = fastrand::Rng::with_seed(19);
    let mut pairs: HashSet<(u64, u64)> = HashSet::new();
    while pairs.len() < 63_172 {
        let post = ((rng.f64().powi(3) * POSTS as f64) as u64).min(POSTS - 1);
        let user = 833_930_000_000 + rng.u64(0..40_000) * 37;
        pairs.insert((3_631_614_501_919_378 + post * 7_919 * 4096, user));
    }
    let mut pairs: Vec<(u64, u64)> = pairs.into_iter().collect();
    pairs.sort_unstable();
    pairs
}

/// Returns the distinct (origin, user) pairs of the real data, if present.
fn real_pairs() -> Option<Vec<(u64, u64)>> {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = here
        .ancestors()
        .map(|dir| dir.join("shared/data/weibo_reposts.csv.gz"))
        .find(|path| path.exists())?;
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).ok()?).read_to_string(&mut text).ok()?;
    let pair = |line: &str| {
        let mut fields = line.split(',').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    let pairs: HashSet<(u64, u64)> = text.lines().skip(1).filter_map(pair).collect();
    let mut pairs: Vec<(u64, u64)> = pairs.into_iter().collect();
    pairs.sort_unstable();
    Some(pairs)
}
